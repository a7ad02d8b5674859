/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_nodes_test.c: the ONNX backend tests in compiled code.

   Two sets: those that Debian ships (libonnx-testdata, release 1.12) and the
   node tests that the pinned onnx package generates (make_nodes.py, a folder
   named by AMPC_ONNX_NODES).  Each model is imported and evaluated by the
   interpreter (onnx_case.h).  The models that pass become disjoint parts of
   programs "predict", some hundreds in one module, which are compiled; their
   results are compared with the stored ones in the same way.

   script/test compiles every fourth of Debian's set, --slow all of it.

   Gradients: for every model with a floating-point input and result, at inputs
   moved slightly away from the kinks at round numbers. Autodiff's, exact,
   against differences along a random direction; the compiled one against
   autodiff's.

   tests/onnx/conformance.skip lists what is out of scope, by name or SET/NAME,
   with the reason.  A model of an op without a row in onnx_ops.def is refused.
   Neither is a separate case: one case checks that all of them still fail, and
   the last one prints a table by operator, which counts them.

   AMPC_NODES=GLOB runs only some tests, while one fixes them. */
#define _GNU_SOURCE
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/onnx/onnx.h"
#include "ir/text/text.h"
#include "tests/support/onnx_case.h"
#include "tests/support/onnx_util.h"
#include "tests/support/ops_run.h"
#include "tests/support/parts.h"
#include "tests/tolerance.h"

enum { BATCH = 256 }; /* number of models in one module */

typedef enum Verdict { PASSED, REFUSED, EXCLUDED, WRONG } Verdict;

/* The numbers of a graph's inputs. */
typedef struct Fed {
    EvalTensor **in;
} Fed;

typedef struct Item {
    const char *set, *name;
    OnnxCase c;
    Verdict verdict;
    char why[300];
    Str op;
    const Graph *back; /* graph of its gradients; NULL: none */
    Fed fed, moved;
    bool counts;       /* a case of its own */
    bool chosen;       /* to be compiled */
    int out, back_out; /* offset of its results; -1: not compiled */
} Item;

static struct {
    VEC(Item) items;
    Arena *a;
    bool ran;
    int slopes, rough; /* numbers of: compared with differences; not finite, or
                          with differences that do not converge */
} all;

/* ---- numbers ------------------------------------------------------------- */

/* True if an input is only used where no gradient flows. */
static bool is_fixed(const Item *t, Str name) {
    const Onnx__GraphProto *g = t->c.model->graph;
    for (size_t i = 0; i < g->n_node; i++) {
        const OxOp *op = ox_op_find(g->node[i]->op_type);
        for (size_t k = 0; k < g->node[i]->n_input; k++)
            if (!strcmp(g->node[i]->input[k], name) &&
                !(op && op->nd >> (k < 31 ? k : 31) & 1))
                return false;
    }
    return true;
}

static double uniform(uint64_t *s) {
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (double)(*s >> 11) * 0x1p-53;
}

/* Scales inputs towards zero and moves them by random amounts: no ties, no
   exact bounds of a domain. tame: no infinities either, and no numbers so large
   that a step is lost.
 */
static void move(EvalTensor *t, bool tame, uint64_t *seed) {
    const Type *type = type_get(t->type);
    for (int64_t i = 0; t->f && i < type_count(type); i++) {
        double v = t->f[i] * (1 - 0.04 * uniform(seed));
        v += copysign(0.003 * uniform(seed), v);
        if ((tame || isfinite(v)) && !(fabs(v) < 1e30)) v = uniform(seed);
        t->f[i] = round_to_dtype(v, type->dtype);
    }
}

typedef enum Feed { STORED, MOVED, TAME } Feed;

static Fed feed(Item *t, Feed how) {
    const Graph *g = t->c.g;
    Fed f = {NEW_ARRAY(t->c.a, EvalTensor *, g->inputs.len + 1)};
    uint64_t seed = 7;
    for (int i = 0; i < g->inputs.len; i++) {
        Str name = value_get(g, g->inputs.data[i])->name;
        f.in[i] = (EvalTensor *)onnx_case_input(&t->c, name);
        if (how != STORED && !is_fixed(t, name))
            move(f.in[i], how == TAME, &seed);
    }
    return f;
}

static Evaluator *evaluator(Item *t, Arena *a, const Graph *g, EvalMode mode,
                            const Fed *f) {
    Evaluator *e = eval_new(g, a, mode);
    for (int i = 0; i < g->inputs.len; i++)
        eval_bind(e, g->inputs.data[i], f->in[i]);
    if (eval_run(e, &t->c.d) != OK) FAIL("%s: %s", t->name, t->c.d.text.data);
    return e;
}

/* ---- gradients ----------------------------------------------------------- */

/* A random direction for all inputs that get gradients. */
static Fed direction(Item *t) {
    const Graph *g = t->c.g;
    Fed f = {NEW_ARRAY(t->c.a, EvalTensor *, g->inputs.len + 1)};
    uint64_t seed = 11;
    for (int i = 0; i < g->inputs.len; i++) {
        const Value *v = value_get(g, g->inputs.data[i]);
        f.in[i] = eval_tensor_new(t->c.a, v->type);
        if (is_fixed(t, v->name) || !f.in[i]->f ||
            dtype_info[type_get(v->type)->dtype].stored)
            continue;
        for (int64_t k = 0; k < type_count(type_get(v->type)); k++)
            f.in[i]->f[k] = uniform(&seed) - 0.5;
    }
    return f;
}

/* The loss of parts_to_gradients, at inputs moved by h. */
static double loss_at(Item *t, const Fed *way, double h) {
    const Graph *g = t->c.g;
    Arena *a = arena_new();
    Fed f = {NEW_ARRAY(a, EvalTensor *, g->inputs.len + 1)};
    double sum = 0;
    for (int i = 0; i < g->inputs.len; i++) {
        const EvalTensor *x = f.in[i] = t->moved.in[i];
        if (!x->f) continue;
        f.in[i] = eval_tensor_new(a, x->type);
        for (int64_t k = 0; k < type_count(type_get(x->type)); k++)
            f.in[i]->f[k] = x->f[k] + h * way->in[i]->f[k];
    }
    Evaluator *e = evaluator(t, a, g, EVAL_EXACT, &f);
    for (int i = 0; i < g->outputs.len; i++) {
        const EvalTensor *y = eval_get(e, g->outputs.data[i].value);
        int64_t n = y->f ? type_count(type_get(y->type)) : 0;
        for (int64_t k = 0; k < n; k++) sum += y->f[k] * parts_weight(k);
    }
    arena_free(a);
    return sum;
}

static double difference(Item *t, const Fed *way, double h) {
    return (8 * (loss_at(t, way, h) - loss_at(t, way, -h)) -
            (loss_at(t, way, 2 * h) - loss_at(t, way, -2 * h))) /
           (12 * h);
}

/* The same slope from autodiff's results; *scale: the sum of the terms'
   magnitudes. */
static double slope(Item *t, const Fed *way, double *scale) {
    const Graph *g = t->back;
    Arena *a = arena_new();
    Evaluator *e = evaluator(t, a, g, EVAL_EXACT, &t->moved);
    double sum = 0;
    *scale = 0;
    for (int i = 0; i < g->inputs.len; i++) {
        Str name = value_get(g, g->inputs.data[i])->name;
        ValueId v = graph_output(g, internf("grad.%s", name));
        if (!is_value(v)) continue;
        const EvalTensor *d = eval_get(e, v);
        for (int64_t k = 0; k < type_count(type_get(d->type)); k++) {
            double term = way->in[i]->f[k] * d->f[k];
            if (way->in[i]->f[k] == 0) continue; /* fixed */
            sum += term;
            *scale += fabs(term);
        }
    }
    arena_free(a);
    return sum;
}

static void wrong(Item *t, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void wrong(Item *t, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(t->why, sizeof t->why, fmt, ap);
    va_end(ap);
    t->verdict = WRONG;
}

/* A long step crosses kinks if there are many, and a short one is less
   exact: one of them must agree. */
static void check_slope(Item *t, const Fed *way) {
    const double steps[] = {1e-4, 1e-6, 1e-7};
    double scale, got = slope(t, way, &scale), want[3];
    for (int i = 0; i < 3; i++) {
        want[i] = difference(t, way, steps[i]);
        if (fabs(got - want[i]) <= TOL_SLOPE * scale + 1e-8) return;
    }
    if (fabs(want[1] - want[2]) > 0.01 * scale) { /* jumps at every step */
        all.slopes--;
        all.rough++;
        return;
    }
    wrong(t, "slope %.12g, difference %.12g, terms %.3g", got, want[2], scale);
}

static void differentiate(Item *t) {
    Graph *g = graph_clone(t->c.g, "gradients");
    Diag d = {0};
    if (parts_to_gradients(g, &d) != OK)
        wrong(t, "gradient: %.250s", d.text.data);
    sb_free(&d.text);
    if (t->verdict != PASSED || !g->outputs.len) return;
    t->back = g;
    Fed way = direction(t);
    t->moved = feed(t, MOVED);
    if (!isfinite(loss_at(t, &way, 0))) t->moved = feed(t, TAME);
    bool smooth = isfinite(loss_at(t, &way, 0));
    smooth ? all.slopes++ : all.rough++;
    if (smooth) check_slope(t, &way);
}

/* ---- importing ----------------------------------------------------------- */

/* The op's name before the model was expanded. */
static Str op_of(const Item *t) {
    const Onnx__GraphProto *g = t->c.model ? t->c.model->graph : NULL;
    if (!g) return "(unreadable)";
    const char *cut = strstr(t->name, "_expanded");
    if (!cut) return intern(g->n_node ? g->node[0]->op_type : "(none)");
    for (int i = 0; i < all.items.len; i++) {
        const Item *o = &all.items.data[i];
        if (o->op && !strncmp(o->name, t->name, (size_t)(cut - t->name)) &&
            !o->name[cut - t->name])
            return o->op;
    }
    return intern("(expanded)");
}

static void import_item(Item *t) {
    const char *skip = onnx_case_out_of_scope(t->set, t->name);
    const char *bad = onnx_case_run(&t->c);
    const char *op = onnx_case_unknown_op(&t->c);
    t->op = op_of(t);
    t->out = t->back_out = -1;
    if (skip && !bad)
        wrong(t, "passes: take it out of tests/onnx/conformance.skip");
    else if (bad)
        wrong(t, "%s", skip ? skip : op ? op : bad);
    if (skip && bad) t->verdict = EXCLUDED;
    if (!skip && bad && op) {
        t->verdict = REFUSED;
        snprintf(t->why, sizeof t->why, "%s has no row in onnx_ops.def", op);
    }
    if (t->verdict != PASSED) return;
    t->fed = feed(t, STORED);
    differentiate(t);
}

/* ---- compiling ----------------------------------------------------------- */

typedef struct Batch {
    Arena *a;
    Module *m;
    Graph *g;
    VEC(ampc_input) in;
    VEC(ampc_output) out;
} Batch;

static void add_part(Batch *b, Item *t, const Graph *g, const Fed *f,
                     const char *kind) {
    Held held = {0};
    parts_add(b->g, g, arena_printf(b->a, "%s/%s.%s", t->set, t->name, kind),
              &held);
    for (int i = 0; i < g->inputs.len + held.len; i++) {
        const Value *v = value_get(b->g, b->g->inputs.data[b->in.len]);
        const Tensor *x = i < g->inputs.len
                              ? eval_to_tensor(b->a, f->in[i], v->type)
                              : held.data[i - g->inputs.len];
        vec_push(b->a, &b->in,
                 ampc_in(v->name, x->data,
                         (size_t)type_bytes(type_get(v->type)),
                         (ampc_dtype)type_get(v->type)->dtype));
    }
    for (int i = b->out.len; i < b->g->outputs.len; i++) {
        const Output *o = &b->g->outputs.data[i];
        size_t bytes = (size_t)type_bytes(value_type(b->g, o->value));
        vec_push(b->a, &b->out,
                 ampc_out(o->name, arena_alloc(b->a, bytes + 8), bytes,
                          (ampc_dtype)value_dtype(b->g, o->value)));
    }
}

static EvalTensor *result(const Batch *b, int i) {
    ValueId v = b->g->outputs.data[i].value;
    Tensor t = {value_get(b->g, v)->type, b->out.data[i].data};
    return eval_from_tensor(b->a, &t);
}

static void check_compiled(const Batch *b, Item *t) {
    for (int i = 0; i < t->c.out.len; i++) {
        const EvalTensor *y = result(b, t->out + i);
        int rows = onnx_case_rows(&t->c, t->c.g, i);
        if (rows >= 0)
            y = onnx_case_counted(&t->c, i, y, result(b, t->out + rows)->i[0]);
        const char *bad = onnx_case_differs(&t->c, i, y);
        if (bad) wrong(t, "compiled: %s", bad);
    }
    if (!t->back || t->verdict != PASSED) return;
    Evaluator *e = evaluator(t, b->a, t->back, EVAL_STORAGE, &t->moved);
    for (int i = 0; i < t->back->outputs.len; i++) {
        const Output *o = &t->back->outputs.data[i];
        const EvalTensor *want = eval_get(e, o->value);
        bool low = dtype_is_low(value_dtype(t->back, o->value));
        double tol = low ? TOL_RANDOM_LOW : TOL_RANDOM_F32, scale = 0;
        for (int64_t k = 0; k < type_count(type_get(want->type)); k++)
            if (isfinite(want->f[k])) scale = fmax(scale, fabs(want->f[k]));
        const char *bad =
            tensor_differs(b->a, result(b, t->back_out + i), want, 0,
                           tol * scale + TOL_RANDOM_FLOOR, true);
        if (bad) wrong(t, "compiled %s: %s", o->name, bad);
    }
}

static void run_on_cpu(const char *text, OpsData *d) {
    ops_on_cpu(text, "--target cpu:x86-64-v3", d);
}

static void run_on_gpu(const char *text, OpsData *d) {
    ops_on_gpu(text, GPU_PTX, 1, d);
}

static void compile_batch(Item **items, int n,
                          void (*run)(const char *, OpsData *)) {
    Batch b = {.a = arena_new()};
    StrBuf text = {0};
    b.m = module_new(b.a, "nodes");
    b.g = graph_new(b.m, "predict");
    for (int i = 0; i < n; i++) {
        Item *t = items[i];
        t->out = b.g->outputs.len;
        add_part(&b, t, t->c.g, &t->fed, "");
        t->back_out = b.g->outputs.len;
        if (t->back) add_part(&b, t, t->back, &t->moved, "g.");
    }
    print_module(b.m, &text);
    OpsData d = {b.in.data, b.out.data, b.in.len, b.out.len};
    run(text.data, &d);
    for (int i = 0; i < n; i++) check_compiled(&b, items[i]);
    sb_free(&text);
    arena_free(b.a);
}

static void compile_all(void) {
    Item *batch[BATCH];
    int n = 0;
    for (int i = 0; i < all.items.len; i++) {
        Item *t = &all.items.data[i];
        if (t->verdict == PASSED && t->chosen) batch[n++] = t;
        if (n == BATCH || (n && i + 1 == all.items.len)) {
            printf("module of %d models\n", n);
            compile_batch(batch, n, run_on_cpu);
            n = 0;
        }
    }
}

static void run_all(void) {
    if (all.ran) return;
    all.ran = true;
    for (int i = 0; i < all.items.len; i++) import_item(&all.items.data[i]);
    compile_all();
}

/* ---- cases --------------------------------------------------------------- */

static void report(void *arg) {
    Item *t = &all.items.data[(intptr_t)arg];
    run_all();
    if (t->verdict != PASSED) FAIL("%s", t->why);
    if (t->chosen && t->out < 0) FAIL("its module was not compiled");
}

/* One of `every` models is compiled. */
static void register_kind(const char *set, int every, const char *root,
                          const char *kind) {
    int n;
    const char *const *names = onnx_case_names(all.a, root, kind, &n);
    const char *only = getenv("AMPC_NODES");
    for (int i = 0; i < n; i++) {
        if (only && fnmatch(only, names[i], 0)) continue;
        Item t = {.set = set, .name = names[i]};
        t.chosen = test_slow() || i % every == 0;
        t.c.a = arena_new();
        t.c.dir = arena_printf(all.a, "%s/%s", root, t.name);
        t.counts = onnx_case_counts(set, t.name, t.c.dir);
        if (t.counts)
            harness_register(set, t.name, report,
                             (void *)(intptr_t)all.items.len);
        vec_push(all.a, &all.items, t);
    }
}

static void register_all(void) {
    const char *debian = "/usr/share/libonnx-testdata/data";
    const char *made = getenv("AMPC_ONNX_NODES");
    all.a = arena_new();
    if (made) register_kind("onnx_1_23", 1, made, "node");
    register_kind("onnx_1_12", 4, debian, "node");
    register_kind("onnx_1_12", 4, debian, "simple");
    register_kind("onnx_1_12", 4, debian, "pytorch-converted");
    register_kind("onnx_1_12", 4, debian, "pytorch-operator");
}
TEST_REGISTRAR(register_all);

/* ---- what the suites do not ask ------------------------------------------ */

/* The bytes of output y of m, compiled, for input x. */
static void predict_made(Made *m, const void *x, size_t xbytes, ampc_dtype dx,
                         void *y, size_t ybytes, ampc_dtype dy) {
    size_t n;
    uint8_t *bytes = model_pack(&m->model, &n);
    const char *path = arena_printf(m->a, "%s/made.onnx", test_tmpdir());
    REQUIRE(test_write_file(path, bytes, n));
    free(bytes);
    Compiled c = compile_file(
        path, "--loss none --precision fp32 --target cpu:x86-64-v3");
    ampc_session *s = open_threads(&c, 1);
    ampc_input in = ampc_in("x", x, xbytes, dx);
    ampc_output out = ampc_out("y", y, ybytes, dy);
    OpsData d = {&in, &out, 1, 1};
    ops_run(&c, s, &d);
    c.api->close(s);
    compiled_close(&c);
    made_end(m);
}

TEST_CASE(onnx_compiled, clip_with_min_above_max_gives_max) {
    Made m;
    float x[4] = {-3, 1.5f, 3, NAN}, y[4];
    made_start(&m, 10);
    made_input(&m, "x", DT_F32, "4");
    Onnx__NodeProto *clip = made_node(&m, "Clip", "x", "y");
    made_float(&m, clip, "min", 2);
    made_float(&m, clip, "max", 1);
    made_output(&m, "y");
    predict_made(&m, x, sizeof x, AMPC_DTYPE_F32, y, sizeof y, AMPC_DTYPE_F32);
    for (int i = 0; i < 3; i++) CHECK_NEAR(y[i], 1, 0);
    CHECK(isnan(y[3]));
}

TEST_CASE(onnx_compiled, any_and_all_of_no_bools) {
    for (int all_of = 0; all_of < 2; all_of++) {
        Made m;
        int64_t axis = 0;
        uint8_t none = 0, y[3] = {7, 7, 7};
        made_start(&m, 20);
        made_input(&m, "x", DT_BOOL, "0,3");
        made_i64(&m, "axes", 1, &axis);
        made_node(&m, all_of ? "ReduceMin" : "ReduceMax", "x,axes", "y");
        made_output(&m, "y");
        predict_made(&m, &none, 0, AMPC_DTYPE_BOOL, y, 3, AMPC_DTYPE_BOOL);
        for (int i = 0; i < 3; i++) CHECK_EQ_INT(y[i], all_of);
    }
}

TEST_CASE(onnx_compiled, an_output_declared_as_binary16_leaves_as_such) {
    Made m;
    int32_t ones[4] = {0x3c00, 0x3c00, 0x3c00, 0x3c00};
    uint16_t x[2] = {0x3c00, 0x4000}, y[2] = {0}; /* 1, 2 */
    made_start(&m, 13);
    made_input(&m, "x", DT_F16, "1,2");
    Onnx__TensorProto *w = made_f32(&m, "w", "2,2", 0);
    w->data_type = ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT16;
    w->n_float_data = 0;
    w->n_int32_data = 4;
    w->int32_data = ones;
    made_node(&m, "MatMul", "x,w", "y");
    made_output(&m, "y");
    made_input(&m, "y", DT_F16, "1,2"); /* the output has the input's dtype */
    m.graph.output[0]->type = m.graph.input[--m.graph.n_input]->type;
    predict_made(&m, x, sizeof x, AMPC_DTYPE_F16, y, sizeof y, AMPC_DTYPE_F16);
    CHECK_EQ_INT(y[0], 0x4200); /* 3 */
    CHECK_EQ_INT(y[1], 0x4200);
}

/* ---- the table ----------------------------------------------------------- */

typedef struct Row {
    Str op;
    int count[4];
    const Item *example; /* examples of models that did not pass */
} Row;

static int by_op(const void *a, const void *b) {
    return strcmp(((const Row *)a)->op, ((const Row *)b)->op);
}

static void print_set(const char *set) {
    VEC(Row) rows = {0};
    int sum[4] = {0}, compiled = 0;
    for (int i = 0; i < all.items.len; i++) {
        const Item *t = &all.items.data[i];
        int k = 0;
        if (strcmp(t->set, set)) continue;
        while (k < rows.len && rows.data[k].op != t->op) k++;
        if (k == rows.len) vec_push(all.a, &rows, (Row){.op = t->op});
        rows.data[k].count[t->verdict]++;
        sum[t->verdict]++;
        compiled += t->verdict == PASSED && t->out >= 0;
        if (t->verdict != PASSED) rows.data[k].example = t;
    }
    if (!rows.len) return;
    qsort(rows.data, (size_t)rows.len, sizeof *rows.data, by_op);
    printf("%s\n%-28s %6s %7s %8s %5s\n", set, "operator", "passed", "refused",
           "excluded", "wrong");
    for (int i = 0; i < rows.len; i++) {
        const Row *r = &rows.data[i];
        printf("%-28s %6d %7d %8d %5d  %s\n", r->op, r->count[PASSED],
               r->count[REFUSED], r->count[EXCLUDED], r->count[WRONG],
               r->example ? r->example->why : "");
    }
    int scope = sum[PASSED] + sum[REFUSED] + sum[WRONG];
    double share = 100.0 * sum[PASSED] / scope;
    printf("ONNX node tests, %s: %d of %d in scope pass (%.1f %%), %d of them "
           "compiled, %d refused, %d wrong, %d excluded, of %d\n",
           set, sum[PASSED], scope, share, compiled, sum[REFUSED], sum[WRONG],
           sum[EXCLUDED], scope + sum[EXCLUDED]);
    CHECK_MSG(share >= 97, "%s: %.1f %% of what is in scope", set, share);
}

TEST_CASE(onnx_table, models_out_of_scope_fail_still) {
    run_all();
    for (int i = 0; i < all.items.len; i++) {
        const Item *t = &all.items.data[i];
        CHECK_MSG(t->counts || t->verdict == EXCLUDED || t->verdict == REFUSED,
                  "%s/%s %s", t->set, t->name, t->why);
    }
}

TEST_CASE(onnx_table, by_operator) {
    if (!all.items.len) SKIP("package libonnx-testdata is not installed");
    run_all();
    print_set("onnx_1_23");
    print_set("onnx_1_12");
    printf("ONNX gradients: %d models agree with differences, %d have results "
           "that are not finite\n",
           all.slopes, all.rough);
}

/* Every 16th model of each set. */
TEST_CASE(onnx_table, a_sample_on_the_simulated_gpu) {
    Item *sample[BATCH];
    int n = 0;
    if (!all.items.len) SKIP("package libonnx-testdata is not installed");
    run_all();
    for (int i = 0; i < all.items.len && n < BATCH; i++)
        if (all.items.data[i].out >= 0 && i % 16 == 0)
            sample[n++] = &all.items.data[i];
    compile_batch(sample, n, run_on_gpu);
    for (int i = 0; i < n; i++)
        CHECK_MSG(sample[i]->verdict == PASSED, "%s: %s", sample[i]->name,
                  sample[i]->why);
    printf("ONNX node tests on the simulated GPU: %d\n", n);
}

TEST_CASE(onnx_table, the_generated_tests_are_there) {
    if (!getenv("AMPC_ONNX_NODES")) SKIP("AMPC_ONNX_NODES is not set");
}
