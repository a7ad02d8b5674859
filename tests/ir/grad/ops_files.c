/* SPDX-License-Identifier: Apache-2.0 */
/* ops_files.c: the graphs of tests/ops, differentiated once and twice. */
#define _GNU_SOURCE
#include <math.h>
#include <string.h>

#include "ir/fn/fn.h"
#include "tests/harness.h"
#include "tests/ir/grad/grad.h"
#include "tests/tolerance.h"

/* ---- the graphs of tests/ops (the form: ops_test.c) ---------------------- */

typedef struct OpsFile {
    char *name, *text;
    bool nograd;
} OpsFile;

static OpsFile ops_files[128];

static int nops_files;

/* In f64, if the file says that its ops accept it; else in f32, or in bf16 if
   they accept halves alone. */
static Module *ops_module(Arena *a, const OpsFile *f) {
    const char *said = strstr(f->text, "# dtypes "), *dtype = "f64";
    if (said && !memmem(said, strcspn(said, "\n"), "f64", 3))
        dtype = strncmp(said, "# dtypes bf16 f16\n", 18) ? "f32" : "bf16";
    return parse_text(a, grad_replace(a, f->text, "$T", dtype));
}

/* Uniform in the range given by the file, else in -2 .. 2. */
static void fill_range(const OpsFile *f, const char *name, EvalTensor *t) {
    uint32_t seed = (uint32_t)(99 + strlen(name) * 7 + (unsigned char)*name);
    int64_t n = type_count(type_get(t->type));
    double lo = -2, hi = 2, from, to;
    char input[64];
    for (const char *s = f->text; *s == '#'; s += strcspn(s, "\n") + 1)
        if (sscanf(s, "# input %63s %lf %lf", input, &from, &to) == 3 &&
            !strcmp(input, name)) {
            lo = from;
            hi = to;
        }
    for (int64_t i = 0; i < n; i++) {
        double u = lo + (hi - lo) * next_random(&seed) / 0x1p24;
        if (t->f)
            t->f[i] = u;
        else
            t->i[i] =
                type_get(t->type)->dtype == DT_BOOL ? u > 0 : (int64_t)floor(u);
    }
}

static bool is_fixed(const OpsFile *f, const char *name) {
    char input[64];
    for (const char *s = f->text; *s == '#'; s += strcspn(s, "\n") + 1)
        if (sscanf(s, "# fixed %63s", input) == 1 && !strcmp(input, name))
            return true;
    return false;
}

static Evaluator *ops_evaluator(Arena *a, const OpsFile *f, const Graph *g) {
    Evaluator *e = eval_new(g, a, EVAL_EXACT);
    for (int k = 0; k < g->inputs.len; k++) {
        const Value *v = value_get(g, g->inputs.data[k]);
        EvalTensor *t = eval_tensor_new(a, v->type);
        fill_range(f, v->name, t);
        eval_bind(e, g->inputs.data[k], t);
    }
    return e;
}

/* x + h v for all inputs that count, v random in -1 .. 1; the sum of <g, v> and
   of its magnitudes. */
static void move_along(const Trial *t, Evaluator *e, const Evaluator *grads,
                       double h, double *sum, double *size) {
    uint32_t seed = 7;
    *sum = *size = 0;
    for (int k = 0; k < t->n; k++) {
        EvalTensor *x = (EvalTensor *)eval_get(e, t->want[k]);
        const EvalTensor *g =
            is_value(t->grads[k]) ? eval_get(grads, t->grads[k]) : NULL;
        int64_t n = type_count(type_get(x->type));
        for (int64_t i = 0; i < n; i++) {
            double v = next_random(&seed) / 0x1p23 - 1;
            x->f[i] += h * v;
            *sum += g ? g->f[i] * v : 0;
            *size += g ? fabs(g->f[i] * v) : 0;
        }
    }
}

/* The error of step h is of order h^2, the rounding error of order 1e-16 / h.
 */
static void compare_along(const Trial *t, const OpsFile *f, const Graph *fwd,
                          ValueId loss, const char *what) {
    double h = 1e-6, sum, size, lo, hi;
    Evaluator *plain = ops_evaluator(t->a, f, fwd);
    Evaluator *full = ops_evaluator(t->a, f, t->g);
    value_of(full, loss);
    move_along(t, plain, full, h, &sum, &size);
    hi = value_of(plain, loss);
    move_along(t, plain, full, -2 * h, &sum, &size);
    lo = value_of(plain, loss);
    double got = (hi - lo) / (2 * h);
    CHECK_MSG(
        fabs(got - sum) <= TOL_SLOPE * fmax(size, 1),
        "%s, graph %s, %s: the gradient gives %.12g, the difference %.12g",
        f->name, fwd->name, what, sum, got);
}

static void mark_fns(const Graph *g, bool *seen);

/* The function, and the functions that its body calls. */
static void mark_call(const Graph *g, const Node *n, bool *seen) {
    const Type *types[MAX_FN_OPERANDS];
    for (int i = 0; i < fn_std_count(); i++)
        if (fn_std_at(i) == n->fn) seen[i] = true;
    for (int i = 0; i < n->nin; i++)
        types[i] = is_value(n->in[i]) ? value_type(g, n->in[i]) : NULL;
    mark_fns(fn_instance(n, types)->g, seen);
}

static void mark_fns(const Graph *g, bool *seen) {
    for (int k = 0; k < g->order.len; k++) {
        const Node *n = node_get(g, g->order.data[k]);
        if (n->fn) mark_call(g, n, seen);
    }
}

/* Rules that second-order gradients have passed through. */
typedef struct Passed {
    bool op[NUM_OPS], *fn;
} Passed;

static void note_passed(const Trial *t, const Graph *g, ValueId slope,
                        Passed *passed) {
    bool *active = NEW_ARRAY(t->a, bool, g->values.len);
    bool *needed = NEW_ARRAY(t->a, bool, g->values.len);
    for (int k = 0; k < t->n; k++) active[t->want[k].i] = true;
    for (int k = 0; k < g->order.len; k++) {
        const Node *x = node_get(g, g->order.data[k]);
        bool any = false;
        for (int j = 0; j < x->nin; j++) any |= active[x->in[j].i];
        any &= x->fn || op_gradient(x->op);
        for (int j = 0; j < x->nout; j++)
            active[x->out[j].i] |= any && is_float(g, x->out[j]);
    }
    needed[slope.i] = true;
    for (int k = g->order.len - 1; k >= 0; k--) {
        const Node *x = node_get(g, g->order.data[k]);
        bool any = false;
        for (int j = 0; j < x->nout; j++)
            any |= needed[x->out[j].i] && active[x->out[j].i];
        if (!any) continue;
        for (int j = 0; j < x->nin; j++) needed[x->in[j].i] = true;
        if (x->fn)
            mark_call(g, x, passed->fn);
        else
            passed->op[x->op] = true;
    }
}

/* passed: records the rules there, and compares no numbers; or NULL */
static void check_ops_graph(Arena *a, const OpsFile *f, Graph *g,
                            Passed *passed) {
    Trial t = {.a = a, .g = g};
    int inputs = g->inputs.len;
    for (int k = 0; k < inputs; k++)
        if (is_float(g, g->inputs.data[k]) &&
            !is_fixed(f, value_get(g, g->inputs.data[k])->name)) {
            REQUIRE(t.n < MOST_WANTED);
            t.want[t.n++] = g->inputs.data[k];
        }
    ValueId loss = results_sum(g, true);
    if (!t.n || !is_value(loss)) return;
    const Graph *first = graph_clone(g, g->name);
    grad_differentiate(&t, loss);
    if (!passed) {
        compare_along(&t, f, first, loss, "first order");
        compare_alone(&t, first, loss, ops_evaluator(a, f, t.g));
    }
    int weights = g->inputs.len;
    ValueId slope = weighed_sum(g, t.grads, t.n);
    if (!is_value(slope)) return;
    for (int k = inputs; k < weights; k++) {
        REQUIRE(t.n < MOST_WANTED);
        t.want[t.n++] = g->inputs.data[k];
    }
    const Graph *second = graph_clone(g, g->name);
    if (passed) note_passed(&t, second, slope, passed);
    grad_differentiate(&t, slope);
    if (!passed) compare_along(&t, f, second, slope, "second order");
}

static void check_ops_file(void *arg) {
    Arena *a = arena_new();
    Module *m = ops_module(a, arg);
    int n = m->graphs.len; /* clones are appended */
    for (int i = 0; i < n; i++)
        check_ops_graph(a, arg, m->graphs.data[i], NULL);
    arena_free(a);
}

static void add_ops_file(const char *path, const char *name, void *arg) {
    size_t n;
    (void)arg;
    REQUIRE(nops_files < 128);
    OpsFile *f = &ops_files[nops_files++];
    f->name = strdup(name);
    f->text = test_read_file(path, &n);
    f->nograd = strstr(f->text, "# nograd") != NULL;
    if (!f->nograd) harness_register("grad_ops", f->name, check_ops_file, f);
}

static void register_ops(void) {
    test_each_file("tests/ops", ".amp", add_ops_file, NULL);
}

TEST_REGISTRAR(register_ops);

/* ---- what has a case ----------------------------------------------------- */

static void mark_ops(const Graph *g, bool *seen) {
    for (int k = 0; k < g->order.len; k++)
        seen[node_get(g, g->order.data[k])->op] = true;
}

TEST_CASE(grad_table, every_op_and_function_with_a_gradient_has_a_case) {
    Arena *a = arena_new();
    bool ops[NUM_OPS] = {false};
    bool *fns = NEW_ARRAY(a, bool, fn_std_count());
    for (int k = 0; k < nops_files; k++) {
        if (ops_files[k].nograd) continue;
        const Module *m = ops_module(a, &ops_files[k]);
        for (int i = 0; i < m->graphs.len; i++) {
            mark_ops(m->graphs.data[i], ops);
            mark_fns(m->graphs.data[i], fns);
        }
    }
    for (int op = 0; op < NUM_OPS; op++) {
        bool none = strcmp(op_info[op].grad_text, "none") == 0;
        CHECK_MSG(none == !op_gradient((OpCode)op), "%s", op_info[op].text);
        CHECK_MSG(none || ops[op], "no case in tests/ops differentiates %s",
                  op_info[op].text);
    }
    for (int i = 0; i < fn_std_count(); i++) {
        const OpInfo *fn = &fn_std_at(i)->info;
        CHECK_MSG(fns[i] || fn->amp == AMP_NONE,
                  "no case in tests/ops differentiates %s", fn->text);
    }
    arena_free(a);
}

TEST_CASE(grad_table, every_rule_is_differentiated_again) {
    Arena *a = arena_new();
    Passed passed = {.fn = NEW_ARRAY(a, bool, fn_std_count())};
    for (int k = 0; k < nops_files; k++) {
        if (ops_files[k].nograd) continue;
        Module *m = ops_module(a, &ops_files[k]);
        int n = m->graphs.len; /* clones are appended */
        for (int i = 0; i < n; i++)
            check_ops_graph(a, &ops_files[k], m->graphs.data[i], &passed);
    }
    for (int op = 0; op < NUM_OPS; op++)
        CHECK_MSG(passed.op[op] || !op_gradient((OpCode)op),
                  "no case in tests/ops differentiates %s twice",
                  op_info[op].text);
    for (int i = 0; i < fn_std_count(); i++) {
        const OpInfo *fn = &fn_std_at(i)->info;
        bool slope = strcmp(fn->text, "fake_quantize") != 0; /* see below */
        CHECK_MSG(passed.fn[i] || fn->amp == AMP_NONE || !slope,
                  "no case in tests/ops differentiates %s twice", fn->text);
    }
    arena_free(a);
}

/* A difference cannot test this: g is c where x is in range, else 0, and so
   the gradient of sum g^2 with respect to c is 2 g. */
TEST_CASE(grad_table, a_straight_through_gradient_is_differentiated_again) {
    static const double x[] = {-1.2, -0.8, 0.03, 0.7, 0.9};
    Arena *a = arena_new();
    GradCase c = {"straight", SIGNED, "%x: f32[5], %c: f32[5]",
                  "%q = fake_quantize %x, 0.1 {high=7, low=-8}\n"
                  "%y = mul %q, %c",
                  "%y"};
    Trial t = grad_trial(a, &c, "f32");
    ValueId by = t.want[1];
    t.n = 1;
    grad_differentiate(&t, results_sum(t.g, false));
    Builder b = {.g = t.g};
    int64_t axis = 0;
    ValueId g = t.grads[0];
    ValueId r = t.g->inputs.data[2]; /* of the sum */
    ValueId sum = b_reduce(&b, OP_REDUCE_SUM, b2(&b, OP_MUL, g, g, DT_F64),
                           &axis, 1, false, DT_F64);
    t.want[0] = by;
    grad_differentiate(&t, sum);
    Evaluator *e = grad_evaluator(&t, t.g);
    memcpy(((EvalTensor *)eval_get(e, t.g->inputs.data[0]))->f, x, sizeof x);
    value_of(e, sum);
    for (int i = 0; i < 5; i++) {
        double in = x[i] > -0.85 && x[i] < 0.75;
        double w = eval_get(e, r)->f[i], ci = eval_get(e, by)->f[i];
        CHECK_NEAR(eval_get(e, g)->f[i], in * w * ci, 1e-7);
        CHECK_NEAR(eval_get(e, t.grads[0])->f[i], 2 * in * w * w * ci, 1e-6);
    }
    arena_free(a);
}
