/* SPDX-License-Identifier: Apache-2.0 */
/* grad_test.c: compares autodiff with finite differences.

   Every graph of grad_cases.def, every unary op, and every binary op in five
   broadcast patterns, is reduced to loss = sum over results of <result, random
   numbers>. The gradient from autodiff, evaluated without rounding, must equal
   the fourth-order central difference of the forward graph in fp64. The same is
   then tested for the gradient of the gradient. In f32 the constants of the
   rules are rounded to fp32, so the bound is 1e-6; in f64 it is 1e-8. The
   larger graphs of tests/ops are tested along one random direction of all
   inputs: a new op has its case there. They are also reduced by the squares of
   the results; the second order uses random numbers, too, so that it passes
   through forward and through all nodes that rules make.
   Conventions at kinks, dtypes and messages are tested after that. */
#define _GNU_SOURCE
#include "ir/fn/fn.h"
#include "passes/passes.h"
#include "tests/harness.h"
#include "tests/tolerance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Magnitudes of 0.3 .. 1.5, with random signs except for POSITIVE; UNIT:
   times 0.6; ABOVE_1: larger by 1, without signs. */
typedef enum Range { SIGNED, POSITIVE, UNIT, ABOVE_1, NRANGE } Range;

typedef struct GradCase {
    const char *name;
    Range range;
    const char *inputs, *body, *results;
} GradCase;

static const GradCase cases[] = {
#define CASE(name, range, inputs, body, results)                               \
    {#name, range, inputs, body, results},
#include "tests/ir/grad_cases.def"
#undef CASE
};
enum { NCASES = sizeof cases / sizeof *cases };

/* ---- binary ops, all ways to broadcast ----------------------------------- */

static const struct {
    const char *op;
    Range range;
} binary_ops[] = {
    {"add", SIGNED}, {"sub", SIGNED}, {"mul", SIGNED},   {"div", SIGNED},
    {"mod", SIGNED}, {"min", SIGNED}, {"pow", POSITIVE}, {"max", SIGNED},
};
static const char *const binary_shapes[][2] = {
    {"f32[2,3]", "f32[2,3]"},   {"f32[2,3]", "f32[3]"},
    {"f32[2,1]", "f32[1,3]"},   {"f32[]", "f32[2,2]"},
    {"f32[1,3]", "f32[2,1,3]"},
};
enum {
    NBINARY_OPS = sizeof binary_ops / sizeof *binary_ops,
    NSHAPES = sizeof binary_shapes / sizeof *binary_shapes
};
static GradCase binary_cases[NBINARY_OPS * NSHAPES];

static const char *format(const char *fmt, ...) {
    StrBuf sb = {0}; /* cases live as long as the process */
    va_list ap;
    va_start(ap, fmt);
    sb_vprintf(&sb, fmt, ap);
    va_end(ap);
    const char *kept = intern(sb.data);
    sb_free(&sb);
    return kept;
}

static void make_binary_cases(void) {
    for (int k = 0; k < NBINARY_OPS * NSHAPES; k++) {
        const char *op = binary_ops[k / NSHAPES].op;
        const char *const *shape = binary_shapes[k % NSHAPES];
        binary_cases[k] =
            (GradCase){format("%s_broadcast_%d", op, k % NSHAPES),
                       binary_ops[k / NSHAPES].range,
                       format("%%a: %s, %%b: %s", shape[0], shape[1]),
                       format("%%y = %s %%a, %%b", op), "%y"};
    }
}

/* ---- unary ops ----------------------------------------------------------- */

static double in_range(double magnitude, Range range) {
    return range == UNIT      ? magnitude * 0.6
           : range == ABOVE_1 ? magnitude + 1
                              : magnitude;
}

static bool is_defined(OpCode op, Range range) {
    bool ok = true;
    for (double m = 0.3; m <= 1.5; m += 0.1) {
        double x = in_range(m, range);
        ok &= isfinite(eval_expr_f(op, x, 0));
        if (range == SIGNED || range == UNIT)
            ok &= isfinite(eval_expr_f(op, -x, 0));
    }
    return ok;
}

static GradCase unary_cases[4 * NUM_OPS];
static int nunary;

/* Attributes with the values yes and no; `chosen` has a bit for each. */
static const char *flags_of(const OpInfo *x, int chosen, int *count) {
    StrBuf sb = {0};
    *count = 0;
    for (int i = 0; i < x->nattr; i++) {
        AttrKey k = x->attrs[i];
        if (attr_get(k)->kind != ATTR_INT || k == AK_axis) continue;
        sb_printf(&sb, "%s%s=%d", *count ? ", " : "{", attr_get(k)->text,
                  chosen >> *count & 1);
        ++*count;
    }
    const char *text =
        format("%s%s", sb.data ? sb.data : "", *count ? "}" : "");
    sb_free(&sb);
    return text;
}

static void make_unary_case(OpCode op, Range range) {
    const OpInfo *x = &op_info[op];
    int count = 0;
    for (int chosen = 0; chosen < 1 << count; chosen++) {
        const char *flags = flags_of(x, chosen, &count);
        unary_cases[nunary++] =
            (GradCase){format("%s_%d", x->text, chosen), range, "%x: f32[3,2]",
                       format("%%y = %s %%x %s", x->text, flags), "%y"};
    }
}

static void make_unary_cases(void) {
    for (int op = 0; op < NUM_OPS; op++) {
        const OpInfo *x = &op_info[op];
        int range = SIGNED;
        if (strncmp(x->type_text, "unary_", 6) || !op_gradient((OpCode)op))
            continue;
        while (x->kind == KIND_ELEM && range < NRANGE &&
               !is_defined((OpCode)op, (Range)range))
            range++;
        if (range < NRANGE) make_unary_case((OpCode)op, (Range)range);
    }
}

/* ---- graphs from cases --------------------------------------------------- */

static const char *replace(Arena *a, const char *s, const char *from,
                           const char *to) {
    StrBuf sb = {0};
    for (; *s; s++)
        if (strncmp(s, from, strlen(from)) == 0) {
            sb_puts(&sb, to);
            s += strlen(from) - 1;
        } else {
            sb_putn(&sb, s, 1);
        }
    const char *r = sb.data ? arena_dup(a, sb.data, sb.len + 1) : "";
    sb_free(&sb);
    return r;
}

static Module *parse_text(Arena *a, const char *text) {
    Diag d = {0};
    Module *m = NULL;
    if (parse_module(a, &d, "test.amp", text, strlen(text), &m) != OK)
        FAIL("%s\n%s", text, d.text.data);
    sb_free(&d.text);
    return m;
}

static Graph *case_graph(Arena *a, const GradCase *c, const char *dtype) {
    const char *text = arena_printf(a, "graph g(%s) {\n%s\nreturn %s\n}\n",
                                    c->inputs, c->body, c->results);
    return parse_text(a, replace(a, text, "f32", dtype))->graphs.data[0];
}

enum { MOST_WANTED = 24 };

/* One graph under test: forward as parsed, and full, with the gradient
   appended. */
typedef struct Trial {
    Arena *a;
    const GradCase *c;
    Graph *g;
    ValueId want[MOST_WANTED], grads[MOST_WANTED];
    int n;
} Trial;

static bool is_float(const Graph *g, ValueId v) {
    return dtype_is_float(value_dtype(g, v));
}

/* Sums <value, fresh random input> over the values */
static ValueId weighed_sum(Graph *g, const ValueId *v, int n) {
    Builder b = {.g = g};
    ValueId sum = NO_VALUE;
    for (int k = 0; k < n; k++) {
        if (!is_value(v[k]) || !is_float(g, v[k])) continue;
        TypeId t = type_with_dtype(value_get(g, v[k])->type, DT_F64);
        ValueId r = graph_input(g, "r", t);
        ValueId p = b2(&b, OP_MUL, v[k], r, DT_F64);
        int64_t axes[MAX_RANK], rank = type_get(t)->rank;
        for (int d = 0; d < rank; d++) axes[d] = d;
        if (rank)
            p = b_reduce(&b, OP_REDUCE_SUM, p, axes, (int)rank, false, DT_F64);
        sum = is_value(sum) ? b2(&b, OP_ADD, sum, p, DT_F64) : p;
    }
    return sum;
}

/* squares: and the squares, so that the slope is not constant */
static ValueId results_sum(Graph *g, bool squares) {
    Builder b = {.g = g};
    ValueId v[16];
    int n = 0;
    for (int k = 0; k < g->outputs.len; k++) {
        ValueId y = g->outputs.data[k].value;
        v[n++] = y;
        if (squares && is_float(g, y)) v[n++] = b2(&b, OP_MUL, y, y, DT_F64);
    }
    return weighed_sum(g, v, n);
}

static Trial trial(Arena *a, const GradCase *c, const char *dtype) {
    Trial t = {.a = a, .c = c, .g = case_graph(a, c, dtype)};
    for (int k = 0; k < t.g->inputs.len; k++) {
        ValueId v = t.g->inputs.data[k];
        if (is_float(t.g, v)) t.want[t.n++] = v;
    }
    return t;
}

static void differentiate(Trial *t, ValueId loss) {
    Diag d = {0};
    if (autodiff(t->g, &d, t->a, NODE_BACKWARD, loss, NO_VALUE, t->want, t->n,
                 t->grads) != OK)
        FAIL("%s", d.text.data);
    if (verify_graph(t->g, STAGE_DIFF, &d) != OK) FAIL("%s", d.text.data);
}

/* ---- numbers ------------------------------------------------------------- */

static uint32_t next_random(uint32_t *s) {
    *s = *s * 1664525u + 1013904223u;
    return *s >> 8;
}

/* Fills t with distinct numbers, which also differ from the other inputs': a
   shuffled grid. */
static void fill(EvalTensor *t, int input, Range range) {
    int64_t n = type_count(type_get(t->type));
    uint32_t seed = (uint32_t)(77 + 13 * input);
    for (int64_t i = 0; i < n; i++)
        t->f[i] = in_range(
            0.3 + 1.2 * ((double)i + 0.2 + 0.13 * input) / (double)n, range);
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = next_random(&seed) % (i + 1);
        double x = t->f[i];
        t->f[i] = t->f[j];
        t->f[j] = x;
    }
    bool sign = range == SIGNED || range == UNIT;
    for (int64_t i = 0; i < n && sign; i++)
        if (next_random(&seed) & 1) t->f[i] = -t->f[i];
}

static Evaluator *evaluator(const Trial *t, const Graph *g) {
    Evaluator *e = eval_new(g, t->a, EVAL_EXACT);
    for (int k = 0; k < g->inputs.len; k++) {
        EvalTensor *x =
            eval_tensor_new(t->a, value_get(g, g->inputs.data[k])->type);
        if (x->f) fill(x, k, k < t->n ? t->c->range : SIGNED);
        eval_bind(e, g->inputs.data[k], x);
    }
    return e;
}

static double value_of(Evaluator *e, ValueId v) {
    Diag d = {0};
    if (eval_run(e, &d) != OK) FAIL("%s", d.text.data);
    return eval_get(e, v)->f[0];
}

/* d loss / d x[i], error of order h^4 */
static double difference(Evaluator *e, ValueId loss, ValueId x, int64_t i) {
    static const double at[] = {1, -1, 2, -2}, by[] = {8, -8, -1, 1};
    EvalTensor *t = (EvalTensor *)eval_get(e, x);
    double x0 = t->f[i], h = 1e-3, sum = 0;
    for (int k = 0; k < 4; k++) {
        t->f[i] = x0 + at[k] * h;
        sum += by[k] * value_of(e, loss);
    }
    t->f[i] = x0;
    return sum / (12 * h);
}

/* Compares t->grads, evaluated in t->g, with differences of `loss` in `fwd`. */
static void compare(const Trial *t, const Graph *fwd, ValueId loss, double tol,
                    const char *what) {
    Evaluator *plain = evaluator(t, fwd), *full = evaluator(t, t->g);
    value_of(full, loss);
    for (int k = 0; k < t->n; k++) {
        int64_t n = type_count(value_type(fwd, t->want[k]));
        const EvalTensor *g =
            is_value(t->grads[k]) ? eval_get(full, t->grads[k]) : NULL;
        double *fd = NEW_ARRAY(t->a, double, n + 1), scale = 1e-2;
        for (int64_t i = 0; i < n; i++) {
            fd[i] = difference(plain, loss, t->want[k], i);
            scale = fmax(scale, fabs(fd[i]));
        }
        for (int64_t i = 0; i < n; i++) {
            double got = g ? g->f[i] : 0;
            CHECK_MSG(fabs(got - fd[i]) <= tol * scale,
                      "%s, %s: gradient of %s[%d] is %.12g, difference %.12g",
                      t->c->name, what, value_get(fwd, t->want[k])->name,
                      (int)i, got, fd[i]);
        }
    }
}

/* A gradient requested alone equals the one computed together with all
   others. given: an evaluator of t->g with its inputs. */
static void compare_alone(const Trial *t, const Graph *fwd, ValueId loss,
                          Evaluator *given) {
    value_of(given, loss);
    for (int k = 0; k < t->n && t->n > 1; k++) {
        Trial one = {.a = t->a, .g = graph_clone(fwd, "alone"), .n = 1};
        one.want[0] = t->want[k];
        differentiate(&one, loss);
        const char *name = value_get(fwd, t->want[k])->name;
        CHECK_MSG(is_value(one.grads[0]) == is_value(t->grads[k]),
                  "%s: a gradient of %s", fwd->name, name);
        if (!is_value(one.grads[0]) || !is_value(t->grads[k])) continue;
        Evaluator *e = eval_new(one.g, t->a, EVAL_EXACT);
        for (int i = 0; i < fwd->inputs.len; i++)
            eval_bind(e, fwd->inputs.data[i],
                      eval_get(given, fwd->inputs.data[i]));
        value_of(e, loss);
        const EvalTensor *got = eval_get(e, one.grads[0]);
        const EvalTensor *want = eval_get(given, t->grads[k]);
        for (int64_t i = 0; i < type_count(type_get(got->type)); i++)
            CHECK_MSG(fabs(got->f[i] - want->f[i]) <=
                          1e-12 * fmax(1, fabs(want->f[i])),
                      "%s: gradient of %s[%d] alone is %.17g, with others "
                      "%.17g",
                      fwd->name, name, (int)i, got->f[i], want->f[i]);
    }
}

static bool any_grad(const Trial *t) {
    for (int k = 0; k < t->n; k++)
        if (is_value(t->grads[k])) return true;
    return false;
}

/* ---- the checks of one case ---------------------------------------------- */

static void check_types(const Trial *t) {
    for (int k = 0; k < t->n; k++)
        if (is_value(t->grads[k]))
            CHECK_EQ_INT(value_get(t->g, t->grads[k])->type.i,
                         value_get(t->g, t->want[k])->type.i);
}

static void check_numbers(const GradCase *c, const char *dtype, double tol) {
    Arena *a = arena_new();
    Trial t = trial(a, c, dtype);
    ValueId loss = results_sum(t.g, false);
    const Graph *first = graph_clone(t.g, "first");
    differentiate(&t, loss);
    CHECK_MSG(any_grad(&t), "no gradient");
    check_types(&t);
    compare(&t, first, loss, tol, dtype);
    compare_alone(&t, first, loss, evaluator(&t, t.g));

    ValueId slope = weighed_sum(t.g, t.grads, t.n);
    const Graph *second = graph_clone(t.g, "second");
    differentiate(&t, slope);
    compare(&t, second, slope, 10 * tol, "second order");
    arena_free(a);
}

static void check_case(void *arg) {
    const GradCase *c = arg;
    check_numbers(c, "f32", 1e-6);
    check_numbers(c, "f64", 1e-8);
    Arena *a = arena_new();
    Trial t = trial(a, c, "bf16");
    differentiate(&t, results_sum(t.g, false));
    check_types(&t);
    arena_free(a);
}

static void register_cases(void) {
    for (int k = 0; k < NCASES; k++)
        harness_register("grad", cases[k].name, check_case, (void *)&cases[k]);
    make_unary_cases();
    for (int k = 0; k < nunary; k++)
        harness_register("grad", unary_cases[k].name, check_case,
                         &unary_cases[k]);
    make_binary_cases();
    for (int k = 0; k < NBINARY_OPS * NSHAPES; k++)
        harness_register("grad", binary_cases[k].name, check_case,
                         &binary_cases[k]);
}
TEST_REGISTRAR(register_cases);

/* ---- the graphs of tests/ops (the form: ops_test.c) ---------------------- */

typedef struct OpsFile {
    char *name, *text;
    bool nograd;
} OpsFile;

static OpsFile ops_files[128];
static int nops_files;

/* In f64, or in f32 if the file does not say that its ops accept f64. */
static Module *ops_module(Arena *a, const OpsFile *f) {
    const char *dtypes = strstr(f->text, "# dtypes ");
    bool wide = !dtypes || memmem(dtypes, strcspn(dtypes, "\n"), "f64", 3);
    return parse_text(a, replace(a, f->text, "$T", wide ? "f64" : "f32"));
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
    differentiate(&t, loss);
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
    differentiate(&t, slope);
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
    Trial t = trial(a, &c, "f32");
    ValueId by = t.want[1];
    t.n = 1;
    differentiate(&t, results_sum(t.g, false));
    Builder b = {.g = t.g};
    int64_t axis = 0;
    ValueId g = t.grads[0];
    ValueId r = t.g->inputs.data[2]; /* of the sum */
    ValueId sum = b_reduce(&b, OP_REDUCE_SUM, b2(&b, OP_MUL, g, g, DT_F64),
                           &axis, 1, false, DT_F64);
    t.want[0] = by;
    differentiate(&t, sum);
    Evaluator *e = evaluator(&t, t.g);
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

/* ---- conventions at kinks: PyTorch's ------------------------------------- */

/* Gradient of sum(results) with respect to %x = x[0..n); all else is
   constant. */
static void expect_grad(const char *file, int line, const char *type,
                        const char *body, int n, const double *x,
                        const double *want) {
    Arena *a = arena_new();
    GradCase c = {"kink", SIGNED, format("%%x: %s", type), body, "%y"};
    Trial t = trial(a, &c, "f32");
    Builder b = {.g = t.g};
    int64_t axes[MAX_RANK] = {0, 1, 2, 3};
    ValueId y = t.g->outputs.data[0].value;
    ValueId loss = b_reduce(&b, OP_REDUCE_SUM, y, axes,
                            value_type(t.g, y)->rank, false, DT_F32);
    differentiate(&t, loss);
    Evaluator *e = evaluator(&t, t.g);
    memcpy(((EvalTensor *)eval_get(e, t.want[0]))->f, x, (size_t)n * sizeof *x);
    value_of(e, loss);
    const EvalTensor *g = eval_get(e, t.grads[0]);
    for (int k = 0; k < n; k++)
        if (!(g->f[k] == want[k] || fabs(g->f[k] - want[k]) < 1e-7 ||
              (isnan(g->f[k]) && isnan(want[k]))))
            harness_fail_at(file, line, "element %d: %g, wanted %g", k, g->f[k],
                            want[k]);
    arena_free(a);
}

#define LIST(...) __VA_ARGS__
#define KINK(type, body, x, want)                                              \
    expect_grad(__FILE__, __LINE__, type, body,                                \
                (int)(sizeof((double[]){x}) / sizeof(double)), (double[]){x},  \
                (double[]){want})

TEST_CASE(grad_kinks, one_operand) {
    KINK("f32[3]", "%y = abs %x", LIST(-1, 0, 2), LIST(-1, 0, 1));
    KINK("f32[3]", "%y = relu %x", LIST(-1, 0, 2), LIST(0, 0, 1));
    KINK("f32[3]", "%y = leaky_relu %x {alpha=0.5}", LIST(-1, 0, 2),
         LIST(0.5, 0.5, 1));
    KINK("f32[4]", "%y = clip %x {min=0, max=6, inclusive=1}",
         LIST(-1, 0, 6, 7), LIST(0, 1, 1, 0));
    KINK("f32[4]", "%y = clip %x {min=0, max=6}", LIST(-1, 0, 6, 3),
         LIST(0, 0, 0, 1));
    KINK("f32[2]", "%y = sqrt %x", LIST(0, 4), LIST(INFINITY, 0.25));
    KINK("f32[2]", "%y = pow %x, 2", LIST(0, -3), LIST(0, -6));
    KINK("f32[2]", "%y = pow %x, 0", LIST(0, -3), LIST(0, 0));
}

TEST_CASE(grad_kinks, ties) {
    KINK("f32[3]", "%y = max %x, 2", LIST(1, 2, 3), LIST(0, 0.5, 1));
    KINK("f32[3]", "%y = min %x, 2", LIST(1, 2, 3), LIST(1, 0.5, 0));
    KINK("f32[1,4]", "%y = reduce_max %x {axes=[1]}", LIST(3, 1, 3, 2),
         LIST(0.5, 0, 0.5, 0));
    KINK("f32[1,4]", "%y = reduce_min %x {axes=[1]}", LIST(1, 1, 3, 1),
         LIST(1.0 / 3, 1.0 / 3, 0, 1.0 / 3));
    KINK("f32[1,1,4]", "%y, %i = max_pool %x {kernel_shape=[4], sizes=[1]}",
         LIST(1, 5, 5, 2), LIST(0, 1, 0, 0));
}

TEST_CASE(grad_kinks, where_does_not_leak_the_other_branch) {
    KINK("f32[2]",
         "%c = greater %x, 0\n%s = where %c, %x, 1\n%l = log %s\n"
         "%y = where %c, %l, 0",
         LIST(0, 2), LIST(0, 0.5));
    KINK("f32[2]", "%c = greater %x, 0\n%y = where %c, %x, inf", LIST(0, 2),
         LIST(0, 1));
}

/* A value that was not selected has gradient 0, not 0 times an infinite slope.
 */
TEST_CASE(grad_kinks, a_branch_that_is_not_taken_passes_nothing) {
    KINK("f32[2]", "%l = log %x\n%y = max %l, -100", LIST(0, 2), LIST(0, 0.5));
    KINK("f32[2]", "%l = log %x\n%y = clip %l {min=-100}", LIST(0, 2),
         LIST(0, 0.5));
    KINK("f32[2]", "%l = sqrt %x\n%c = greater %x, 0\n%y = where %c, %l, 0",
         LIST(0, 4), LIST(0, 0.25));
    KINK("f32[2]",
         "%c = greater %x, 0\n%l = log %x\n%z = mul %x, %l\n"
         "%y = where %c, %z, 0",
         LIST(0, 1), LIST(0, 1));
    KINK("f32[2]", "%e = exp %x\n%c = less %x, 80\n%y = where %c, %e, 0",
         LIST(800, 0), LIST(0, 1));
    KINK("f32[2]", "%l = log %x\n%y = relu %l", LIST(0, 2), LIST(0, 0.5));
    KINK("f32[2]",
         "const %b: f32[1] = [0]\n%q = div %x, %b\n"
         "%c = greater %x, 0\n%y = where %c, 0, %q",
         LIST(1, 2), LIST(0, 0));
}

TEST_CASE(grad_kinks, what_a_slice_leaves_out_passes_nothing) {
#define SECOND "%y = slice %s {sizes=[1], starts=[1], steps=[1]}"
    KINK("f32[2]", "%s = log %x\n" SECOND, LIST(0, 2), LIST(0, 0.5));
    KINK("f32[2]", "%s = sqrt %x\n" SECOND, LIST(0, 4), LIST(0, 0.25));
    KINK("f32[2]", "%s = exp %x\n" SECOND, LIST(800, 0), LIST(0, 1));
    KINK("f32[2]", "%s = pow %x, -1\n" SECOND, LIST(0, 1), LIST(0, -1));
    KINK("f32[2]", "%s = rsqrt %x\n" SECOND, LIST(0, 1), LIST(0, -0.5));
    KINK("f32[2]", "const %b: f32[2] = [0, 4]\n%s = div %x, %b\n" SECOND,
         LIST(1, 2), LIST(0, 0.25));
    KINK("f32[2]", "%l = log %x\n%s = mul %x, %l\n" SECOND, LIST(0, 1),
         LIST(0, 1));
    KINK("f32[2]",
         "%l = log %x\nconst %i: i64[1] = [1]\n%y = gather %l, %i {axis=0}",
         LIST(0, 2), LIST(0, 0.5));
#undef SECOND
}

/* Like PyTorch's norms and standard deviations. */
TEST_CASE(grad_kinks, root_of_a_sum_of_squares_at_zero) {
    KINK("f32[2]",
         "%s = mul %x, %x\n%r = reduce_sum %s {axes=[0]}\n%y = sqrt %r",
         LIST(0, 0), LIST(0, 0));
    KINK("f32[2]",
         "%m = reduce_mean %x {axes=[0]}\n%d = sub %x, %m\n"
         "%s = mul %d, %d\n%v = reduce_mean %s {axes=[0]}\n"
         "%w = mul %v, 2\n%y = sqrt %w",
         LIST(3, 3), LIST(0, 0));
    KINK("f32[2]",
         "%a = abs %x\n%c = pow %a, 3\n%r = reduce_sum %c {axes=[0]}\n"
         "%y = pow %r, 0.3333333432674408",
         LIST(0, 0), LIST(0, 0));
    KINK("f32[2]",
         "%c = pow %x, 3\n%r = reduce_sum %c {axes=[0]}\n%y = sqrt %r",
         LIST(1, -1), LIST(INFINITY, INFINITY));
}

TEST_CASE(grad_kinks, powers_of_zero) {
    /* d/dp x^p = x^p ln x, 0 at x = 0 */
    KINK("f32[2]", "const %b: f32[2] = [0, 2]\n%y = pow %b, %x", LIST(2, 1),
         LIST(0, 1.38629436));
}

TEST_CASE(grad_kinks, ignored_rows_are_zero_even_when_all_are) {
    KINK("f32[2,2]",
         "const %t: i64[2] = [7, 7]\n%l, %e = softmax_cross_entropy %x, %t "
         "{ignore_index=7}\n%y = reshape %l {shape=[1]}",
         LIST(1, 2, 3, 4), LIST(0, 0, 0, 0));
}

/* ---- dtypes -------------------------------------------------------------- */

static PassCtx pass_context(Arena *a, Diag *d) {
    Options *o = NEW(a, Options);
    PassCtx cx = {.scratch = a, .diag = d, .opt = o};
    options_init(o, a);
    return cx;
}

static Graph *train_graph(Arena *a, const char *text) {
    Diag d = {0};
    Module *m = parse_text(a, text);
    PassCtx cx = pass_context(a, &d);
    if (pass_autodiff(m, &cx) != OK) FAIL("%s", d.text.data);
    if (verify_module(m, STAGE_DIFF, &d) != OK) FAIL("%s", d.text.data);
    return module_graph(m, "train");
}

static ValueId output(const Graph *g, const char *name) {
    for (int k = 0; k < g->outputs.len; k++)
        if (strcmp(g->outputs.data[k].name, name) == 0)
            return g->outputs.data[k].value;
    FAIL("no output %s", name);
}

static const Node *maker(const Graph *g, ValueId v) {
    return node_get(g, value_get(g, v)->def);
}

/* Slopes of a norm and a softmax are finite: a slice after them costs no
   comparison. */
TEST_CASE(grad_kinks, finite_slopes_in_front_of_a_slice_are_not_guarded) {
#define GUARDS(body, n)                                                        \
    do {                                                                       \
        Arena *a = arena_new();                                                \
        Graph *g = train_graph(                                                \
            a, "graph train(%x: f32[4,8]) {\n  param %w: f32[8] = 1\n"         \
               "  %h = mul %x, %w\n" body                                      \
               "\n  %y = slice %s {sizes=[4,1], starts=[0,0], steps=[1,1]}\n"  \
               "  %l = reduce_sum %y {axes=[0,1], keepdims=0}\n"               \
               "  return ampc.loss=%l\n}\n");                                  \
        int found = 0;                                                         \
        for (int i = 0; i < g->order.len; i++)                                 \
            found += node_get(g, g->order.data[i])->op == OP_EQUAL;            \
        CHECK_MSG(found == n, "%d", found);                                    \
        arena_free(a);                                                         \
    } while (0)
    GUARDS("  %m = reduce_mean %h {axes=[1], keepdims=1}\n"
           "  %d = sub %h, %m\n  %q = mul %d, %d\n"
           "  %v = reduce_mean %q {axes=[1], keepdims=1}\n"
           "  %e = add %v, 1e-5\n  %r = rsqrt %e\n  %s = mul %d, %r",
           0);
    GUARDS("  %s = softmax %h {axis=1}", 0);
    GUARDS("  %s = log %h", 1);
    GUARDS("  %m = reduce_mean %h {axes=[1], keepdims=1}\n"
           "  %r = rsqrt %m\n  %s = mul %h, %r",
           2);
#undef GUARDS
}

/* 1 - p is e^-8 / (1 + e^-8); beside a logit of 60, fp32 has six digits less
   than that needs. */
TEST_CASE(grad_dtypes, a_sure_class_keeps_its_gradient_beside_large_logits) {
    static const char text[] =
        "graph train(%x: f32[1,2]) {\n  param %w: f32[1,2] = 0\n"
        "  const %t: i64[1] = [0]\n  %z = add %x, %w\n"
        "  %l, %e = softmax_cross_entropy %z, %t\n  return ampc.loss=%l\n}\n";
    Arena *a = arena_new();
    Graph *g = train_graph(a, text);
    Evaluator *e = eval_new(g, a, EVAL_STORAGE);
    EvalTensor *x = eval_tensor_new(a, value_get(g, g->inputs.data[0])->type);
    x->f[0] = 60, x->f[1] = 52;
    eval_bind(e, g->inputs.data[0], x);
    double want = -exp(-8) / (1 + exp(-8));
    ValueId grad = output(g, "ampc.grad/w");
    CHECK_NEAR(value_of(e, grad), want, -want / 1000);
    arena_free(a);
}

static int count_ops(const Graph *g, OpCode op, bool backward) {
    int n = 0;
    for (int k = 0; k < g->order.len; k++) {
        const Node *x = node_get(g, g->order.data[k]);
        n += x->op == op && backward == !!(x->flags & NODE_BACKWARD);
    }
    return n;
}

#define TRAIN_16(cast)                                                         \
    "graph train(%x: bf16[2,4,3]) {\nparam %w: f32[3,5]\n"                     \
    "%h = cast %w" cast " : bf16[3,5]\n%y = matmul %x, %h : bf16[2,4,5]\n"     \
    "%l = reduce_sum %y {axes=[0,1,2], keepdims=0} : f32[]\n"                  \
    "return ampc.loss=%l\n}\n"

TEST_CASE(grad_dtypes, weight_gradients_leave_16_bit_products_in_fp32) {
    Arena *a = arena_new();
    Graph *g = train_graph(a, TRAIN_16(""));
    ValueId w = output(g, "ampc.grad/w");
    const Node *n = maker(g, w);
    CHECK_EQ_INT(value_dtype(g, w), DT_F32);
    CHECK_STR(value_get(g, w)->name, "w.grad");
    REQUIRE(n->op == OP_MATMUL);
    CHECK_EQ_INT(value_dtype(g, n->in[0]), DT_BF16);
    CHECK_EQ_INT(value_dtype(g, n->in[1]), DT_BF16);
    CHECK_EQ_INT(value_type(g, n->in[0])->rank, 2); /* one product, no sum */
    CHECK_EQ_INT(count_ops(g, OP_REDUCE_SUM, true), 0);
    arena_free(a);
}

TEST_CASE(grad_dtypes, a_cast_of_the_user_rounds_the_gradient) {
    Arena *a = arena_new();
    Graph *g = train_graph(a, TRAIN_16(" {user=1}"));
    const Node *n = maker(g, output(g, "ampc.grad/w"));
    REQUIRE(n->op == OP_CAST);
    CHECK_EQ_INT(value_dtype(g, n->in[0]), DT_BF16);
    arena_free(a);
}

TEST_CASE(grad_dtypes, products_read_16_bits_where_the_forward_one_did) {
    Arena *a = arena_new();
    Graph *g = train_graph(
        a, "graph train(%x: bf16[4,3]) {\nparam %w: f32[3,5]\n"
           "%h = cast %w : bf16[3,5]\n%y = matmul %x, %h : f32[4,5]\n"
           "%e = exp %y\n%l = reduce_sum %e {axes=[0,1], keepdims=0}\n"
           "return ampc.loss=%l\n}\n");
    const Node *n = maker(g, output(g, "ampc.grad/w"));
    REQUIRE(n->op == OP_MATMUL);
    CHECK_EQ_INT(value_dtype(g, n->in[1]), DT_BF16);
    arena_free(a);
}

/* ---- the pass ------------------------------------------------------------ */

#define TWO_LAYERS                                                             \
    "graph train(%x: f32[4,3]) {\nparam %w: f32[3,5], %b: f32[5]\n"            \
    "%y = matmul %x, %w\n%z = add %y, %b\n%r = relu %z\n"                      \
    "%l = reduce_mean %r {axes=[0,1], keepdims=0}\nreturn ampc.loss=%l\n}\n"

TEST_CASE(autodiff, outputs_and_names) {
    Arena *a = arena_new();
    Graph *g = train_graph(a, TWO_LAYERS);
    CHECK_EQ_INT(g->outputs.len, 3);
    CHECK_STR(value_get(g, output(g, "ampc.grad/w"))->name, "w.grad");
    CHECK_STR(value_get(g, output(g, "ampc.grad/b"))->name, "b.grad");
    CHECK(maker(g, output(g, "ampc.grad/b"))->flags & NODE_BACKWARD);
    CHECK_EQ_INT(count_ops(g, OP_MATMUL, true), 1); /* none for x */
    arena_free(a);
}

TEST_CASE(autodiff, the_loss_scale_is_the_seed) {
    Arena *a = arena_new();
    Module *m = parse_text(a, TWO_LAYERS);
    Diag d = {0};
    PassCtx cx = pass_context(a, &d);
    module_var(m, VAR_STATE, "ampc.scale", type_scalar(DT_F32), NULL, 8);
    REQUIRE(pass_autodiff(m, &cx) == OK);
    Graph *g = module_graph(m, "train");
    Evaluator *e = eval_new(g, a, EVAL_EXACT);
    double sum[2];
    for (int k = 0; k < 2; k++) {
        TypeId type = value_get(g, g->inputs.data[0])->type;
        EvalTensor *x = eval_tensor_new(a, type);
        EvalTensor *s = eval_tensor_new(a, type_scalar(DT_F32));
        int64_t five = 5;
        EvalTensor *b = eval_tensor_new(a, type_make(DT_F32, 1, &five));
        s->f[0] = k ? 8 : 1;
        for (int i = 0; i < 5; i++) b->f[i] = 1;
        eval_bind(e, g->inputs.data[0], x);
        eval_bind(e, graph_find_value(g, "ampc.scale"), s);
        eval_bind(e, graph_find_value(g, "b"), b);
        REQUIRE(eval_run(e, &d) == OK);
        sum[k] = eval_get(e, output(g, "ampc.grad/b"))->f[0];
    }
    CHECK_NEAR(sum[0], 4.0 / 20, 1e-7);
    CHECK_NEAR(sum[1], 8 * 4.0 / 20, 1e-6);
    arena_free(a);
}

static void expect_error(const char *text, const char *const *parts) {
    Arena *a = arena_new();
    Diag d = {0};
    Module *m = parse_text(a, text);
    PassCtx cx = pass_context(a, &d);
    CHECK_EQ_INT(pass_autodiff(m, &cx), ERR_USER);
    for (; *parts; parts++) CHECK_HAS(d.text.data, *parts);
    sb_free(&d.text);
    arena_free(a);
}
#define ERROR_SAYS(text, ...)                                                  \
    expect_error(text, (const char *const[]){__VA_ARGS__, NULL})

TEST_CASE(autodiff, parameters_without_a_gradient_are_errors) {
    ERROR_SAYS("graph train(%x: f32[4]) {\nparam %w: f32[4], %v: f32[4]\n"
               "%c = greater %w, %x\n%y = where %c, %x, %v\n"
               "%l = reduce_sum %y {axes=[0], keepdims=0}\n"
               "return ampc.loss=%l\n}\n",
               "parameter 'w'", "non-differentiable input of greater");
    for (int k = 0; k < 2; k++) { /* after either result of split */
        char text[500];
        snprintf(text, sizeof text,
                 "graph train(%%x: f32[4]) {\nparam %%w: f32[8], %%v: f32[4]\n"
                 "%%p, %%q = split %%w {axis=0, sizes=[4,4]}\n"
                 "%%c = greater %%%c, %%x\n%%y = where %%c, %%x, %%v\n"
                 "%%l = reduce_sum %%y {axes=[0], keepdims=0}\n"
                 "return ampc.loss=%%l\n}\n",
                 "pq"[k]);
        ERROR_SAYS(text, "parameter 'w'",
                   "non-differentiable input of greater");
    }
    ERROR_SAYS("graph train(%x: f32[4]) {\n"
               "param %w: f32[4]\nfrozen %v: f32[4]\n"
               "%y = mul %x, %v\n%z = mul %w, %x\n"
               "%l = reduce_sum %y {axes=[0], keepdims=0}\n"
               "return ampc.loss=%l, other=%z\n}\n",
               "depends on no trained parameter", "'w'", "'v' (frozen)");
}

TEST_CASE(autodiff, a_parameter_beside_the_loss_is_left_alone) {
    Arena *a = arena_new();
    Graph *g = train_graph(
        a, "graph train(%x: f32[4]) {\nparam %w: f32[4], %v: f32[4]\n"
           "%y = mul %x, %v\n%z = mul %w, %x\n"
           "%l = reduce_sum %y {axes=[0], keepdims=0}\n"
           "return ampc.loss=%l, other=%z\n}\n");
    CHECK_EQ_INT(g->outputs.len, 3);
    CHECK_STR(g->outputs.data[2].name, "ampc.grad/v");
    arena_free(a);
}

TEST_CASE(autodiff, tied_parameters_get_one_sum) {
    Arena *a = arena_new();
    Graph *g = train_graph(
        a, "graph train(%i: i64[2]) {\nparam %w: f32[3,2]\n"
           "%e = gather %w, %i {axis=0}\n%y = matmul %e, %w {trans_b=1}\n"
           "%l = reduce_sum %y {axes=[0,1], keepdims=0}\n"
           "return ampc.loss=%l\n}\n");
    CHECK(maker(g, output(g, "ampc.grad/w"))->op == OP_ADD);
    arena_free(a);
}
