/* SPDX-License-Identifier: Apache-2.0 */
/* ranges_test.c: warnings of pass `ranges`, and no warning if numbers fit.
   Types come from the texts: autocast's decisions are not tested here. */
#include <math.h>
#include <string.h>

#include "passes/common/bounds.h"
#include "tests/harness.h"
#include "tests/support/passed.h"

/* A model whose loss is a sum, around some lines that compute %y: f16[4]
   from %x: f16[4], %i: i32[4]. */
#define MODEL(lines)                                                           \
    "graph forward(%x: f16[4], %i: i32[4]) {\n"                                \
    "  param %w: f32[4] = 0.5\n" lines "  %yw = mul %y, %w : f32[4]\n"         \
    "  %l = reduce_sum %yw {axes=[0], keepdims=0} : f32[]\n"                   \
    "  return %l\n}\n"
#define PLAIN MODEL("  %y = neg %x : f16[4]\n")

static const struct Case {
    const char *text, *options[6]; /* name, value, ... */
    const char *want;              /* NULL: silence */
} cases[] = {
    /* the loss scale */
    {PLAIN,
     {"--precision", "fp16", "--loss-scale", "none"},
     "fp16 without a loss scale"},
    {PLAIN,
     {"--precision", "fp16", "--loss-scale", "static=1"},
     "fp16 without a loss scale"},
    {PLAIN, {"--precision", "fp16", "--loss-scale", "static=1.1"}, NULL},
    {PLAIN, {"--precision", "fp16"}, NULL},
    {PLAIN, {"--precision", "bf16", "--loss-scale", "none"}, NULL},
    {PLAIN,
     {"--precision", "fp16", "--loss-scale", "static=33554432"},
     "static=3.35544e+07: gradients of 0.002 and above leave fp16"},
    {PLAIN, {"--precision", "fp16", "--loss-scale", "static=16777216"}, NULL},
    /* the optimizer */
    {PLAIN, {"--optimizer", "adam,eps=0"}, "eps=0 is 0 in fp32"},
    {PLAIN, {"--optimizer", "adamw,eps=1e-50"}, "eps=1e-50 is 0 in fp32"},
    {PLAIN, {"--optimizer", "adamw,eps=1e-30"}, NULL},
    {PLAIN, {"--optimizer", "sgd,lr=1"}, NULL},
    /* weights and constants as 16-bit copies */
    {MODEL("  frozen %f: f32[4] = [1, 70000, -1e6, 3]\n"
           "  %c = cast %f : f16[4]\n"
           "  %y = add %x, %c : f16[4]\n"),
     {0},
     "'f': 2 of 4 elements, one of them -1e+06, are beyond f16's 65504"},
    {MODEL("  frozen %f: f32[4] = [1, 65519, -1e-9, 3]\n"
           "  %c = cast %f : f16[4]\n"
           "  %y = add %x, %c : f16[4]\n"),
     {0},
     NULL},
    {MODEL("  frozen %f: f32[4] = [1, 3.4e38, 2, 3]\n"
           "  %c = cast %f : bf16[4]\n"
           "  %y = add %x, %c : f16[4]\n"),
     {0},
     "'f': 1 of 4 elements, one of them 3.4e+38, are beyond bf16's "
     "3.38953e+38"},
    {MODEL("  const %f: f32[4] = [1e-8, 2e-8, -1e-9, 3]\n"
           "  %c = cast %f : f16[4]\n"
           "  %y = add %x, %c : f16[4]\n"),
     {0},
     "'f': 3 of 4 elements, one of them -1e-09, become 0 in f16"},
    {MODEL("  const %f: f32[4] = [1e-8, 2, -1e-9, 3]\n" /* half of them */
           "  %c = cast %f : f16[4]\n"
           "  %y = add %x, %c : f16[4]\n"),
     {0},
     "'f': 2 of 4 elements, one of them -1e-09, become 0 in f16"},
    {MODEL("  const %f: f32[4] = [1e-8, 2, -1, 3]\n"
           "  %c = cast %f : f16[4]\n"
           "  %y = add %x, %c : f16[4]\n"),
     {0},
     NULL},
    /* of several kinds the worst is told, with its example */
    {MODEL("  const %f: f32[4] = [1e-8, 70000, -1e-9, 3]\n"
           "  %c = cast %f : f16[4]\n"
           "  %y = add %x, %c : f16[4]\n"),
     {0},
     "'f': 1 of 4 elements, one of them 70000, are beyond f16's 65504"},
    {MODEL("  const %f: f32[4] = [0.9999, -70000, -1e-9, 0.9998]\n"
           "  %c = cast %f : f16[4]\n"
           "  %y = add %x, %c : f16[4]\n"),
     {0},
     "'f': 1 of 4 elements, one of them -70000, are beyond f16's 65504"},
    {MODEL("  const %f: f32[4] = [0.9999, 1e-8, -1e-9, 2]\n"
           "  %c = cast %f : f16[4]\n"
           "  %y = add %x, %c : f16[4]\n"),
     {0},
     "'f': 2 of 4 elements, one of them -1e-09, become 0 in f16"},
    {MODEL("  const %f: f32[4] = [0.999, 0.5, 0.25, 3]\n"
           "  %c = cast %f : bf16[4]\n"
           "  %y = add %x, %c : f16[4]\n"),
     {0},
     "constant 'f': 0.999"},
    {MODEL("  frozen %f: f32[4] = [0.999, 0.5, 0.25, 3]\n"
           "  %c = cast %f : bf16[4]\n"
           "  %y = add %x, %c : f16[4]\n"),
     {0},
     NULL},
    /* masks */
    {MODEL("  const %f: f32[4] = [0, -1e9, 0, 0]\n"
           "  %y = add %x, %f : f16[4]\n"),
     {0},
     "add: the constant -1e+09 is beyond f16's 65504, and the result infinite"},
    {MODEL("  const %f: f32[4] = [0, -65504, 0, 0]\n"
           "  %y = add %x, %f : f16[4]\n"),
     {0},
     NULL},
    {MODEL("  const %f: f32[4] = [0, -1e9, 0, 0]\n"
           "  %z = add %x, %f : f32[4]\n"
           "  %y = softmax %z {axis=0} : f16[4]\n"),
     {0},
     NULL},
    {MODEL("  const %b: bool[4] = [1, 0, 1, 0]\n"
           "  %y = where %b, %x, -1e9 : f16[4]\n"),
     {0},
     "where: the constant -1e+09"},
    {MODEL("  %y = mul %x, 1e5 : f16[4]\n"), {0}, "mul: the constant 100000"},
    {MODEL("  %y = min %x, 1e5 : f16[4]\n"), {0}, NULL},
    {MODEL("  %y = clip %x {max=1e9} : f16[4]\n"), {0}, NULL},
    /* integers */
    {MODEL("  %y = cast %i {user=1} : f16[4]\n"),
     {0},
     "casts i32 to f16, in which integers beyond 2048 are not exact"},
    {MODEL("  %c = cast %i {user=1} : bf16[4]\n"
           "  %y = add %x, %c : f16[4]\n"),
     {0},
     "integers beyond 256 are not exact"},
    {MODEL("  %c = cast %i {user=1} : f32[4]\n"
           "  %y = add %x, %c : f16[4]\n"),
     {0},
     NULL},
    /* probabilities */
    {MODEL("  %s = sigmoid %x : f16[4]\n"
           "  %n = sub 1, %s : f32[4]\n"
           "  %y = log %n : f16[4]\n"),
     {0},
     "log of a sigmoid in f16, which is 1 from 8.32 on"},
    {MODEL("  %s = sigmoid %x : bf16[4]\n"
           "  %y = log %s : f16[4]\n"),
     {0},
     "which is 1 from 6.24 on"},
    {MODEL("  %s = softmax %x {axis=0} : f16[4]\n"
           "  %y = log %s : f16[4]\n"),
     {0},
     "log of a softmax in f16, which may be 0"},
    {MODEL("  %s = sigmoid %x : f32[4]\n"
           "  %y = log %s : f16[4]\n"),
     {0},
     NULL},
};

static void check(const struct Case *c) {
    Arena *a = arena_new();
    Diag d = {0};
    const char *flags[] = {"--precision", "fp32",        c->options[0],
                           c->options[1], c->options[2], c->options[3],
                           NULL};
    Options o = options_of(a, flags);
    Module *m = parsed(a, c->text);
    if (run_passes(m, &d, &o, "loss,programs,dce,ranges", false) != OK)
        FAIL("%s\n%s", c->text, d.text.data);
    CHECK_MSG(d.warnings == (c->want != NULL), "%s %s: %d warnings\n%s",
              c->text, c->options[0] ? c->options[1] : "", d.warnings,
              d.text.data ? d.text.data : "");
    if (c->want && CHECK(d.text.data)) CHECK_HAS(d.text.data, c->want);
    sb_free(&d.text);
    arena_free(a);
}

TEST_CASE(ranges, each_finding_is_told_once) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check(&cases[i]);
}

/* ---- proven magnitudes --------------------------------------------------- */

/* %s: a factor of the input. */
#define BOUNDED                                                                \
    "graph predict(%%x: f32[8,8]) {\n"                                         \
    "  %%s = mul %%x, %s : f32[8,8]\n"                                         \
    "  %%m = reduce_max %%s {axes=[1], keepdims=1} : f32[8,1]\n"               \
    "  %%d = sub %%s, %%m : f32[8,8]\n  %%e = exp %%d : f32[8,8]\n"            \
    "  %%t = reduce_sum %%e {axes=[1], keepdims=1} : f32[8,1]\n"               \
    "  %%softmax = div %%e, %%t : f32[8,8]\n"                                  \
    "  %%q = mul %%s, %%s : f32[8,8]\n"                                        \
    "  %%v = reduce_mean %%q {axes=[1], keepdims=1} : f32[8,1]\n"              \
    "  %%w = add %%v, 1e-5 : f32[8,1]\n  %%r = rsqrt %%w : f32[8,1]\n"         \
    "  %%norm = mul %%s, %%r : f32[8,8]\n"                                     \
    "  %%sigmoid = sigmoid %%s : f32[8,8]\n"                                   \
    "  %%tanh = tanh %%s : f32[8,8]\n"                                         \
    "  %%clip = clip %%s {min=-2, max=3} : f32[8,8]\n"                         \
    "  %%both = mul %%tanh, %%clip : f32[8,8]\n"                               \
    "  %%low = cast %%both : bf16[8,8]\n"                                      \
    "  %%all = reduce_sum %%sigmoid {axes=[0], keepdims=1} : f32[1,8]\n"       \
    "  %%relu = relu %%s : f32[8,8]\n"                                         \
    "  %%turned = reshape %%m {shape=[1,8]} : f32[1,8]\n"                      \
    "  %%f = sub %%s, %%turned : f32[8,8]\n  %%other = exp %%f : f32[8,8]\n"   \
    "  %%columns = reduce_sum %%e {axes=[0], keepdims=1} : f32[1,8]\n"         \
    "  %%ratio = div 1, %%columns : f32[1,8]\n"                                \
    "  return %%softmax, %%norm, %%sigmoid, %%tanh, %%clip, %%both, %%low, "   \
    "%%all, %%relu, %%other, %%ratio\n}\n"

/* A bound that does not depend on inputs holds for inputs of every size; an
   axis that is not the reduced one, or another row's maximum, proves nothing.
 */
TEST_CASE(bounds, hold_for_inputs_of_every_size) {
    static const char *const factors[] = {"1e-6", "1", "-50", "1e15"};
    static const double want[] = {1, 2.8284271, 1,        1,        3,       3,
                                  3, 8,         INFINITY, INFINITY, INFINITY};
    enum { N = sizeof want / sizeof *want };
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        Arena *a = arena_new();
        Module *m = parsed(a, arena_printf(a, BOUNDED, factors[i]));
        const Graph *g = m->graphs.data[0];
        const double *most = bounds_find(g, a);
        Results r = results(a, g, EVAL_STORAGE);
        REQUIRE(r.len == N && g->outputs.len == N);
        for (int k = 0; k < N; k++) {
            double bound = most[g->outputs.data[k].value.i];
            CHECK_MSG(isinf(want[k]) ? isinf(bound)
                                     : fabs(bound / want[k] - 1) < 0.02,
                      "%s: %g, not %g", g->outputs.data[k].name, bound,
                      want[k]);
            for (int e = 0;
                 e < (int)type_count(value_type(g, g->outputs.data[k].value));
                 e++)
                CHECK_MSG(fabs(r.data[k]->f[e]) <= bound, "%s: %g above %g",
                          g->outputs.data[k].name, r.data[k]->f[e], bound);
        }
        arena_free(a);
    }
}
