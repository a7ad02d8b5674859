/* SPDX-License-Identifier: Apache-2.0 */
/* kinks.c: gradients at kinks, ties and singular points: PyTorch's. */
#define _GNU_SOURCE
#include <math.h>
#include <string.h>

#include "passes/passes.h"
#include "tests/harness.h"
#include "tests/ir/grad/grad.h"

/* ---- conventions at kinks: PyTorch's ------------------------------------- */

/* Gradient of sum(results) with respect to %x = x[0..n); all else is
   constant. */
static void expect_grad(const char *file, int line, const char *type,
                        const char *body, int n, const double *x,
                        const double *want) {
    Arena *a = arena_new();
    GradCase c = {"kink", SIGNED, grad_format("%%x: %s", type), body, "%y"};
    Trial t = grad_trial(a, &c, "f32");
    Builder b = {.g = t.g};
    int64_t axes[MAX_RANK] = {0, 1, 2, 3};
    ValueId y = t.g->outputs.data[0].value;
    ValueId loss = b_reduce(&b, OP_REDUCE_SUM, y, axes,
                            value_type(t.g, y)->rank, false, DT_F32);
    grad_differentiate(&t, loss);
    Evaluator *e = grad_evaluator(&t, t.g);
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

PassCtx pass_context(Arena *a, Diag *d) {
    Options *o = NEW(a, Options);
    PassCtx cx = {.scratch = a, .diag = d, .opt = o};
    options_init(o, a);
    return cx;
}

Graph *train_graph(Arena *a, const char *text) {
    Diag d = {0};
    Module *m = parse_text(a, text);
    PassCtx cx = pass_context(a, &d);
    if (pass_autodiff(m, &cx) != OK) FAIL("%s", d.text.data);
    if (verify_module(m, STAGE_DIFF, &d) != OK) FAIL("%s", d.text.data);
    return module_graph(m, "train");
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
