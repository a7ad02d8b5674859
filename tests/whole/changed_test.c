/* SPDX-License-Identifier: Apache-2.0 */
/* changed_test.c: the graphs of tests/ops, changed at random (changed_graph.h),
   so that every op gets unforeseen operands, attributes and neighbours. As in
   random_test.c all are parts of one program; the CPU and the simulated GPU are
   compared with the interpreter.

   Changed graphs overflow, divide by tiny numbers and are close to steps:
   the allowed error of an element follows from its values in double
   precision with unchanged and with slightly moved operands; elements are
   not compared if one of these is not finite. */
#define _GNU_SOURCE
#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/codegen.h"
#include "ir/fn/fn.h"
#include "ir/text/text.h"
#include "tests/support/changed_graph.h"
#include "tests/support/ops_run.h"
#include "tests/support/parts.h"
#include "tests/support/passed.h"
#include "tests/support/random_graph.h"
#include "tests/tolerance.h"

enum {
    NUMBERS = 1 << 13
}; /* largest number of elements in a changed
      graph's values */

static size_t below(size_t n) { return n ? (size_t)random_below((int)n) : 0; }

/* ---- which of them ------------------------------------------------------- */

/* True if it is compiled for both targets; *checked: row or class numbers in
   inputs are checked. */
static bool compiles(Arena *a, const char *text, bool *checked) {
    Module *m;
    Diag d = {0};
    Options o = options_of(a, FLAGS("--loss", "none", "--precision", "fp32",
                                    "--target", "cpu,cuda:sm_80"));
    Status s = parse_module(a, &d, "changed", text, strlen(text), &m);
    if (s == OK && graph_numbers(m->graphs.data[0]) > NUMBERS) s = ERR_USER;
    if (s == OK) s = run_pipeline(m, &d, &o, STAGE_PLANNED, false);
    if (s == OK) s = emit_check(m, &o, &d, &(EmitInput){0});
    sb_free(&d.text);
    *checked = false;
    for (int i = 0; s == OK && i < m->graphs.len; i++) {
        const Graph *g = m->graphs.data[i];
        for (int k = 0; k < g->outputs.len; k++)
            *checked |= family_has(FAMILY_CHECK, g->outputs.data[k].name);
    }
    return s == OK;
}

/* Dividing integers by numbers that may be 0 is an error, and so are more turns
   of a loop than its bound. */
static bool data_may_stop(const Graph *g) {
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if ((n->op == OP_DIV || n->op == OP_MOD || n->fn) && n->nout &&
            dtype_is_int(value_dtype(g, n->out[0])))
            return true;
        if (is_call(n, "ended")) return true;
    }
    return false;
}

typedef struct Changing {
    OpsBench *b;
    const char *dtype;
    uint64_t seed;
} Changing;

static void add_changed(OpsBench *b, const Graph *from, const char *name) {
    Diag d = {0};
    StrBuf text = {0};
    bool checked, grad = random_below(3) == 0;
    Module *m = changed_graph(b->a, from, below);
    if (!m) return;
    print_module(m, &text);
    Graph *g = m->graphs.data[0];
    if (compiles(b->a, text.data, &checked) && !data_may_stop(g) &&
        (!grad || parts_to_gradients(g, &d) == OK) && g->outputs.len) {
        Held held = {0};
        PassCtx cx = {b->a, NULL, NULL};
        REQUIRE(pass_dce(m, &cx) == OK);
        parts_add(b->all, g,
                  internf("%s%d.%s", name, b->instances, grad ? "g." : ""),
                  &held);
        for (int i = 0; i < g->inputs.len + held.len; i++) {
            OpsRange range = {"", -2, 2}, first = {"", 0, 1};
            vec_push(b->a, &b->ranges, checked ? first : range);
        }
        b->instances++;
    }
    sb_free(&text);
    sb_free(&d.text);
}

static void change_file(const char *path, const char *name, void *arg) {
    const Changing *c = arg;
    size_t n;
    /* A new file changes nothing about the others. */
    random_seed(c->seed + hash_bytes(0, name, strlen(name)));
    Diag d = {0};
    Module *m;
    char *text = test_read_file(path, &n);
    char *of_type = ops_with_dtype(text, c->dtype);
    if (parse_module(c->b->a, &d, name, of_type, strlen(of_type), &m) != OK)
        FAIL("%s", d.text.data);
    for (int i = 0; i < m->graphs.len; i++)
        add_changed(c->b, m->graphs.data[i], name);
    free(of_type);
    free(text);
}

static OpsBench changed_bench(uint64_t seed, const char *dtype) {
    OpsBench b = {.a = arena_new()};
    Changing c = {&b, dtype, seed};
    b.m = module_new(b.a, "changed");
    b.all = graph_new(b.m, "predict");
    test_each_file("tests/ops", ".amp", change_file, &c);
    return b;
}

/* ---- what they compute --------------------------------------------------- */

/* TRUNCATED: with calls expanded, and every result rounded toward 0, which
   shows how far roundings inside of functions move a result. */
enum { ROUNDED, EXACT, MOVED, TRUNCATED, WAYS };

typedef struct Wanted {
    const EvalTensor **by[WAYS];
} Wanted;

static void move_inputs(const OpsBench *b, Evaluator *e, const OpsData *d,
                        double by) {
    const Graph *g = b->all;
    for (int i = 0; i < g->inputs.len; i++) {
        ValueId v = g->inputs.data[i];
        Tensor t = {value_get(g, v)->type, (void *)d->in[i].data};
        EvalTensor *x = eval_from_tensor(b->a, &t);
        int64_t n = type_count(type_get(t.type));
        for (int64_t k = 0; k < n && x->f; k++)
            x->f[k] *= 1 + by * random_number();
        eval_bind(e, v, x);
    }
}

static const EvalTensor **evaluated(const OpsBench *b, const OpsData *d,
                                    EvalMode mode, double moved) {
    Diag diag = {0};
    Evaluator *e = eval_new(b->all, b->a, mode);
    move_inputs(b, e, d, moved);
    if (eval_run(e, &diag) != OK) FAIL("%s", diag.text.data);
    return ops_wanted(b, e);
}

static const EvalTensor **truncated(const OpsBench *b, const OpsData *d) {
    Diag diag = {0};
    OpsBench inner = *b;
    PassCtx cx = {b->a, &diag, NULL};
    const char *text = ops_text(b);
    if (parse_module(b->a, &diag, "inner", text, strlen(text), &inner.m) !=
            OK ||
        pass_inline(inner.m, &cx) != OK)
        FAIL("%s", diag.text.data);
    inner.all = inner.m->graphs.data[0];
    fesetround(FE_TOWARDZERO);
    const EvalTensor **t = evaluated(&inner, d, EVAL_STORAGE, 0);
    fesetround(FE_TONEAREST);
    return t;
}

static Wanted wanted(const OpsBench *b, const OpsData *d, bool low) {
    return (Wanted){
        {[ROUNDED] = evaluated(b, d, EVAL_STORAGE, 0),
         [EXACT] = evaluated(b, d, EVAL_EXACT, 0),
         [MOVED] = evaluated(b, d, EVAL_EXACT, low ? 0x1p-8 : 0x1p-20),
         [TRUNCATED] = truncated(b, d)}};
}

/* The allowed error of element k; INFINITY: it is not compared. */
static double good_to(const Wanted *w, int i, int64_t k) {
    double far = 0;
    for (int way = 0; way < WAYS; way++) {
        const EvalTensor *t = w->by[way][i], *first = w->by[0][i];
        if (t->i) {
            if (t->i[k] != first->i[k]) return INFINITY;
        } else if (!isfinite(t->f[k])) {
            return INFINITY;
        } else {
            far = fmax(far, fabs(t->f[k] - first->f[k]));
        }
    }
    return TOL_CHANGED_MOVED * far;
}

/* Softmax and norms compute a row together: one of its elements may be near to
   its value in all ways by chance. Attention that hides every key by -10000
   keeps three digits of its scores. */
static double row_good_to(const Wanted *w, int i, int64_t first, int64_t n) {
    double far = 0;
    for (int64_t k = first; k < first + n; k++) {
        double one = good_to(w, i, k);
        if (isfinite(one)) far = fmax(far, one);
    }
    return far;
}

/* The share of elements that were compared. */
static double compare(const OpsBench *b, const Wanted *w, const OpsData *d,
                      bool low, const char *where) {
    double all = 0, compared = 0;
    for (int i = 0; i < d->nout; i++) {
        const Output *o = &b->all->outputs.data[i];
        Tensor got = {value_get(b->all, o->value)->type, d->out[i].data};
        const EvalTensor *t = w->by[ROUNDED][i];
        const Type *type = type_get(got.type);
        int64_t n = type_count(type);
        int64_t row = type->rank ? type->dim[type->rank - 1] : 1;
        double scale = 0, near = 0;
        for (int64_t k = 0; k < n && t->f; k++)
            if (isfinite(t->f[k])) scale = fmax(scale, fabs(t->f[k]));
        double allowed =
            (low ? TOL_RANDOM_LOW : TOL_RANDOM_F32) * scale + TOL_RANDOM_FLOOR;
        for (int64_t k = 0; k < n; k++) {
            double far = good_to(w, i, k);
            if (k % row == 0) near = row_good_to(w, i, k, row);
            double want = t->f ? t->f[k] : (double)t->i[k];
            double is =
                t->f ? tensor_get(&got, k) : (double)tensor_get_int(&got, k);
            all++;
            compared += isfinite(far);
            if (isfinite(far) && !(fabs(is - want) <= allowed + near) &&
                !CHECK_MSG(false, "%s: %s[%lld] is %.9g, not %.9g", where,
                           o->name, (long long)k, is, want))
                break;
        }
    }
    return compared / fmax(all, 1);
}

static void check_cpu(uint64_t seed, const char *dtype, bool low) {
    OpsBench b = changed_bench(seed, dtype);
    OpsData d = ops_data_new(&b, NULL);
    Wanted w = wanted(&b, &d, low);
    ops_on_cpu(ops_text(&b), "", &d);
    double share = compare(&b, &w, &d, low, "fused");
    printf("%d changed graphs, %.0f %% of their numbers compared\n",
           b.instances, 100 * share);
    CHECK(b.instances > 100);
    CHECK(share > 0.5);
    ops_on_cpu(ops_text(&b), "--target cpu:x86-64-v3 --no-fuse", &d);
    compare(&b, &w, &d, low, "unfused");
    arena_free(b.a);
}

static void check_gpu(uint64_t seed, const char *dtype, bool low) {
    OpsBench b = changed_bench(seed, dtype);
    OpsData d = ops_data_new(&b, NULL);
    Wanted w = wanted(&b, &d, low);
    ops_on_gpu(ops_text(&b), "cuda:sm_80", seed, &d);
    compare(&b, &w, &d, low, "GPU");
    arena_free(b.a);
}

/* script/test --slow runs more of them. */
static void for_seeds(void (*check)(uint64_t, const char *, bool),
                      const char *dtype, bool low) {
    for (uint64_t seed = 1; seed <= (test_slow() ? 11 : 1); seed++)
        check(seed, dtype, low);
}

TEST_CASE(changed_graphs, fp32_on_the_cpu) {
    for_seeds(check_cpu, "f32", false);
}

TEST_CASE(changed_graphs, bf16_on_the_cpu) {
    for_seeds(check_cpu, "bf16", true);
}

TEST_CASE(changed_graphs, fp32_on_the_gpu) {
    for_seeds(check_gpu, "f32", false);
}

TEST_CASE(changed_graphs, bf16_on_the_gpu) {
    for_seeds(check_gpu, "bf16", true);
}
