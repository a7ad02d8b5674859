/* SPDX-License-Identifier: Apache-2.0 */
/* wide_products_test.c: products whose rounding errors would be the result
   read f32, in forward and backward (passes/common/wide_products.h). */
#include <string.h>

#include "tests/harness.h"
#include "tests/support/passed.h"

static const char begin[] =
    "graph forward(%a: f32[64,16], %c: f32[64,16], %r: f32[8,3,3],\n"
    "              %i: f32[4,3,16,16], %v: f32[16384,128]) {\n"
    "  param %many: f32[16384,128] = 0\n"
    "  param %w: f32[16,16] = normal(1, 0.1), %e: f32[32,16] = normal(2, 1)\n"
    "  param %k: f32[3,1,3,3] = normal(3, 1), %s: f32[3,3] = normal(4, 1)\n"
    "  const %box: f32[3,1,3,3] = 0.11111111\n"
    "  frozen %edge: f32[3,3] = normal(5, 1)\n"
    "  frozen %deep: f32[3,1,3,3] = normal(6, 1), %shift: f32[3,1,1] = 1\n"
    "  %third = div %edge, 3\n"
    "  %turned = transpose %third {perm=[1,0]}\n"
    "  %both = concat %third, %turned, %third {axis=0}\n"
    "  %filters = reshape %both {shape=[3,1,3,3]}\n"
    "  %x = matmul %a, %w\n"
    "  %x2 = mul %x, %x\n"
    "  %xx = reduce_sum %x2 {axes=[1], keepdims=1}\n"
    "  %e2 = pow %e, 2\n"
    "  %ee = reduce_sum %e2 {axes=[1], keepdims=0}\n"
    "  %m = reduce_mean %x {axes=[0], keepdims=1}\n"
    "  %mt = reshape %m {shape=[16,1]}\n";

/* The module in the form that pass place leaves; %d is the result and %p the
   product. */
static Module *placed(Arena *a, const char *body, const char *precision) {
    Module *m =
        parsed(a, arena_printf(a,
                               "%s%s  %%y = reduce_sum %%d {axes=[0,1], "
                               "keepdims=0}\n  return loss=%%y\n}\n",
                               begin, body));
    staged(a, m, STAGE_PRIMITIVE,
           FLAGS("--precision", precision, "--loss", "auto"));
    return m;
}

/* Products of the module whose operands are f32, except the product of %x. */
static int count_wide(const Module *m) {
    const Graph *g = m->graphs.data[0];
    int n = 0;
    for (int i = 0; i < g->order.len; i++) {
        const Node *x = node_at(g, i);
        n += op_info[x->op].amp == AMP_LOW &&
             value_dtype(g, x->in[0]) == DT_F32 &&
             value_dtype(g, x->in[1]) == DT_F32;
    }
    return n;
}

static const struct {
    const char *what, *body;
    int wide; /* in forward and backward */
} cases[] = {
    {"distances to rows of a parameter, by expansion",
     "  %p = matmul %x, %e {trans_b=1}\n  %two = mul %p, 2\n"
     "  %all = add %xx, %ee\n  %d = sub %all, %two\n",
     3},
    {"the same, in another order",
     "  %n = mul %x, -2\n  %t = transpose %e {perm=[1,0]}\n"
     "  %p = matmul %n, %t\n  %one = add %p, %xx\n  %d = add %one, %ee\n",
     3},
    {"a covariance as a difference of moments",
     "  %p = matmul %x, %x {trans_a=1}\n  %mean = div %p, 64\n"
     "  %mm = mul %mt, %m\n  %d = sub %mean, %mm\n",
     3},
    {"distances by norms that are squared",
     "  %l = reduce_l2 %x {axes=[1], keepdims=1}\n  %l2 = pow %l, 2\n"
     "  %p = matmul %x, %e {trans_b=1}\n  %two = mul %p, -2\n"
     "  %one = add %two, %l2\n  %d = add %one, %ee\n",
     3},
    {"distances of many terms, most of the work",
     "  %f = add %v, %many\n  %f2 = mul %f, %f\n"
     "  %ff = reduce_sum %f2 {axes=[1], keepdims=1}\n"
     "  %t = reshape %ff {shape=[1,16384]}\n  %p = matmul %f, %f {trans_b=1}\n"
     "  %two = mul %p, 2\n  %all = add %ff, %t\n  %d = sub %all, %two\n",
     0},
    {"sums over other values",
     "  %p = matmul %x, %e {trans_b=1}\n"
     "  %c2 = mul %c, %c\n  %cc = reduce_sum %c2 {axes=[1], keepdims=1}\n"
     "  %d = sub %p, %cc\n",
     0},
    {"a bias", "  %p = matmul %x, %w\n  %d = add %p, %x\n", 0},
    {"a constant filter of each channel",
     "  %p = conv %i, %box {group=3}\n  %g = mul %p, %p\n"
     "  %f = reshape %g {shape=[12,196]}\n"
     "  %t = tanh %xx\n  %u = reduce_sum %t {axes=[0,1], keepdims=0}\n"
     "  %d = mul %f, %u\n",
     1},
    {"filters computed from a buffer, whose results are squared",
     "  %p = conv %i, %filters {group=3}\n  %g = mul %p, %p\n"
     "  %f = reshape %g {shape=[12,196]}\n"
     "  %t = tanh %xx\n  %u = reduce_sum %t {axes=[0,1], keepdims=0}\n"
     "  %d = mul %f, %u\n",
     1},
    {"a frozen layer of depthwise convolutions",
     "  %p = conv %i, %deep {group=3}\n  %g = add %p, %shift\n"
     "  %h = relu %g\n  %f = reshape %h {shape=[12,196]}\n"
     "  %t = tanh %xx\n  %u = reduce_sum %t {axes=[0,1], keepdims=0}\n"
     "  %d = mul %f, %u\n",
     0},
    {"a filter that trains",
     "  %p = conv %i, %k {group=3}\n  %d = reshape %p {shape=[12,196]}\n", 0},
    {"rotations",
     "  %q = mul %r, %s\n  %p = matmul %q, %r\n"
     "  %d = reshape %p {shape=[8,9]}\n",
     2},
    {"a small weight",
     "  %p = matmul %r, %s\n  %d = reshape %p {shape=[8,9]}\n", 0},
};

static void check_case(size_t i, const char *precision) {
    Arena *a = arena_new();
    int got = count_wide(placed(a, cases[i].body, precision));
    CHECK_MSG(got == cases[i].wide, "%s, %s: %d products read f32, expected %d",
              cases[i].what, precision, got, cases[i].wide);
    arena_free(a);
}

TEST_CASE(wide_products, terms_that_cancel_filters_and_small_matrices) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_case(i, "bf16");
        check_case(i, "fp16");
    }
}
