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
#include <math.h>
#include <string.h>

#include "ir/fn/fn.h"
#include "ir/text/text.h"
#include "passes/passes.h"
#include "tests/harness.h"
#include "tests/ir/grad/grad.h"

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

const char *grad_format(const char *fmt, ...) {
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
            (GradCase){grad_format("%s_broadcast_%d", op, k % NSHAPES),
                       binary_ops[k / NSHAPES].range,
                       grad_format("%%a: %s, %%b: %s", shape[0], shape[1]),
                       grad_format("%%y = %s %%a, %%b", op), "%y"};
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
        grad_format("%s%s", sb.data ? sb.data : "", *count ? "}" : "");
    sb_free(&sb);
    return text;
}

static void make_unary_case(OpCode op, Range range) {
    const OpInfo *x = &op_info[op];
    int count = 0;
    for (int chosen = 0; chosen < 1 << count; chosen++) {
        const char *flags = flags_of(x, chosen, &count);
        unary_cases[nunary++] = (GradCase){
            grad_format("%s_%d", x->text, chosen), range, "%x: f32[3,2]",
            grad_format("%%y = %s %%x %s", x->text, flags), "%y"};
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

const char *grad_replace(Arena *a, const char *s, const char *from,
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

Module *parse_text(Arena *a, const char *text) {
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
    return parse_text(a, grad_replace(a, text, "f32", dtype))->graphs.data[0];
}

bool is_float(const Graph *g, ValueId v) {
    return dtype_is_float(value_dtype(g, v));
}

ValueId weighed_sum(Graph *g, const ValueId *v, int n) {
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

ValueId results_sum(Graph *g, bool squares) {
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

Trial grad_trial(Arena *a, const GradCase *c, const char *dtype) {
    Trial t = {.a = a, .c = c, .g = case_graph(a, c, dtype)};
    for (int k = 0; k < t.g->inputs.len; k++) {
        ValueId v = t.g->inputs.data[k];
        if (is_float(t.g, v)) t.want[t.n++] = v;
    }
    return t;
}

void grad_differentiate(Trial *t, ValueId loss) {
    Diag d = {0};
    if (autodiff(t->g, &d, t->a, NODE_BACKWARD, loss, NO_VALUE, t->want, t->n,
                 t->grads) != OK)
        FAIL("%s", d.text.data);
    if (verify_graph(t->g, STAGE_DIFF, &d) != OK) FAIL("%s", d.text.data);
}

/* ---- numbers ------------------------------------------------------------- */

uint32_t next_random(uint32_t *s) {
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

Evaluator *grad_evaluator(const Trial *t, const Graph *g) {
    Evaluator *e = eval_new(g, t->a, EVAL_EXACT);
    for (int k = 0; k < g->inputs.len; k++) {
        EvalTensor *x =
            eval_tensor_new(t->a, value_get(g, g->inputs.data[k])->type);
        if (x->f) fill(x, k, k < t->n ? t->c->range : SIGNED);
        eval_bind(e, g->inputs.data[k], x);
    }
    return e;
}

double value_of(Evaluator *e, ValueId v) {
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
    Evaluator *plain = grad_evaluator(t, fwd), *full = grad_evaluator(t, t->g);
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

void compare_alone(const Trial *t, const Graph *fwd, ValueId loss,
                   Evaluator *given) {
    value_of(given, loss);
    for (int k = 0; k < t->n && t->n > 1; k++) {
        Trial one = {.a = t->a, .g = graph_clone(fwd, "alone"), .n = 1};
        one.want[0] = t->want[k];
        grad_differentiate(&one, loss);
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
    Trial t = grad_trial(a, c, dtype);
    ValueId loss = results_sum(t.g, false);
    const Graph *first = graph_clone(t.g, "first");
    grad_differentiate(&t, loss);
    CHECK_MSG(any_grad(&t), "no gradient");
    check_types(&t);
    compare(&t, first, loss, tol, dtype);
    compare_alone(&t, first, loss, grad_evaluator(&t, t.g));

    ValueId slope = weighed_sum(t.g, t.grads, t.n);
    const Graph *second = graph_clone(t.g, "second");
    grad_differentiate(&t, slope);
    compare(&t, second, slope, 10 * tol, "second order");
    arena_free(a);
}

static void check_case(void *arg) {
    const GradCase *c = arg;
    check_numbers(c, "f32", 1e-6);
    check_numbers(c, "f64", 1e-8);
    Arena *a = arena_new();
    Trial t = grad_trial(a, c, "bf16");
    grad_differentiate(&t, results_sum(t.g, false));
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
