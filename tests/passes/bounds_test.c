/* SPDX-License-Identifier: Apache-2.0 */
/* bounds_test.c: inputs are changed step by step until the largest magnitude of
   a value grows no more; it must stay within what bounds.c proves. The
   interpreter computes the values and rounds them to their dtypes. */
#include <math.h>

#include "passes/common/bounds.h"
#include "tests/harness.h"
#include "tests/support/passed.h"

enum { ROWS = 2, COLUMNS = 8, ALL = ROWS * COLUMNS, TRIES = 240 };

#define MEAN_OF(of, to)                                                        \
    "  %q = mul " of ", " of " : f32[2,8]\n"                                   \
    "  %" to " = reduce_mean %q {axes=[1], keepdims=1} : f32[2,1]\n"
#define ROOT_OF(of, eps)                                                       \
    "  %e = add " of ", " eps " : f32[2,1]\n  %r = rsqrt %e : f32[2,1]\n"
#define LARGEST "  %m = reduce_max %x {axes=[1], keepdims=1} : f32[2,1]\n"
#define THROUGH(from, dtype, to, shape)                                        \
    "  %c = cast " from " : " dtype shape "\n  %" to " = cast %c : f32" shape  \
    "\n"

/* Lines that compute %y from %x: f32[2,8]. */
static const struct Case {
    const char *name, *lines;
    double reached; /* part of the bound that ascent must reach; 0: there may be
                       no bound */
} cases[] = {
    {"softmax",
     LARGEST "  %d = sub %x, %m : f32[2,8]\n  %e = exp %d : f32[2,8]\n"
             "  %t = reduce_sum %e {axes=[1], keepdims=1} : f32[2,1]\n"
             "  %y = div %e, %t : f32[2,8]\n",
     0.9},
    {"softmax of f16 terms",
     LARGEST "  %d = sub %x, %m : f32[2,8]\n  %f = exp %d : f32[2,8]\n" THROUGH(
         "%f", "f16", "e", "[2,8]") "  %t = reduce_sum %e {axes=[1], "
                                    "keepdims=1} : f32[2,1]\n"
                                    "  %y = div %e, %t : f32[2,8]\n",
     0.9},
    {"rms norm",
     MEAN_OF("%x", "v") ROOT_OF("%v", "1e-5") "  %y = mul %x, %r : f32[2,8]\n",
     0.9},
    {"layer norm",
     "  %a = reduce_mean %x {axes=[1], keepdims=1} : f32[2,1]\n"
     "  %d = sub %x, %a : f32[2,8]\n" MEAN_OF("%d", "v")
         ROOT_OF("%v", "1e-5") "  %y = mul %d, %r : f32[2,8]\n",
     0.85},
    {"norm of bf16",
     MEAN_OF("%x", "v") ROOT_OF("%v", "1e-5")
         THROUGH("%x", "bf16", "d", "[2,8]") "  %y = mul %d, %r : f32[2,8]\n",
     0.9},
    {"norm of f16",
     MEAN_OF("%x", "v") ROOT_OF("%v", "1e-30")
         THROUGH("%x", "f16", "d", "[2,8]") "  %y = mul %d, %r : f32[2,8]\n",
     0},
    {"norm of f8",
     MEAN_OF("%x", "v") ROOT_OF("%v", "1e-5")
         THROUGH("%x", "f8e4m3", "d", "[2,8]") "  %y = mul %d, %r : f32[2,8]\n",
     0},
    {"norm of truth values",
     MEAN_OF("%x", "v") ROOT_OF("%v", "1e-5")
         THROUGH("%x", "bool", "d", "[2,8]") "  %y = mul %d, %r : f32[2,8]\n",
     0},
    {"norm with an f16 mean",
     MEAN_OF("%x", "w") THROUGH("%w", "f16", "v", "[2,1]")
         ROOT_OF("%v", "1e-12") "  %y = mul %x, %r : f32[2,8]\n",
     0},
    {"exp below a bf16 maximum",
     LARGEST THROUGH("%m", "bf16", "n",
                     "[2,1]") "  %d = sub %x, %n : f32[2,8]\n"
                              "  %y = exp %d : f32[2,8]\n",
     0},
    {"gates",
     "  %a = sigmoid %x : f32[2,8]\n  %b = tanh %x : f32[2,8]\n"
     "  %y = mul %a, %b : f32[2,8]\n",
     0.99},
    {"clipped and rounded",
     "  %a = clip %x {min=-0.3, max=0.3} : f32[2,8]\n" THROUGH("%a", "bf16",
                                                               "y", "[2,8]"),
     0.99},
    {"a sum",
     "  %a = clip %x {min=-0.3, max=0.3} : f32[2,8]\n"
     "  %y = reduce_sum %a {axes=[1], keepdims=1} : f32[2,1]\n",
     0.99},
};

static uint64_t state = 1;

/* From 0 to 1. */
static double uniform(void) {
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (double)(state >> 11) / 0x1p53;
}

static double largest(const Graph *g, const double *x) {
    Arena *a = arena_new();
    Diag d = {0};
    Evaluator *e = eval_new(g, a, EVAL_STORAGE);
    ValueId in = g->inputs.data[0], out = g->outputs.data[0].value;
    EvalTensor *t = eval_tensor_new(a, value_get(g, in)->type);
    double most = 0;
    for (int i = 0; i < ALL; i++) t->f[i] = x[i];
    eval_bind(e, in, t);
    if (eval_run(e, &d) != OK) FAIL("%s", d.text.data);
    const EvalTensor *y = eval_get(e, out);
    for (int64_t i = 0; i < value_count(g, out); i++)
        most = fmax(most, fabs(y->f[i]));
    arena_free(a);
    return most;
}

/* One or all elements grow, shrink, vanish or change sign. */
static void change(const double *x, double *to) {
    int one = (int)(uniform() * ALL), how = (int)(uniform() * 4);
    bool all = uniform() < 0.3;
    double by = how == 0   ? 1 + uniform()
                : how == 1 ? uniform()
                : how == 2 ? 1 + uniform() / 64
                           : -1;
    for (int i = 0; i < ALL; i++)
        to[i] = (double)(float)(all || i == one ? x[i] * by : x[i]);
}

/* The largest magnitude that ascent from inputs of some size finds. */
static double ascend(const Graph *g, double size) {
    double x[ALL], next[ALL], most;
    for (int i = 0; i < ALL; i++)
        x[i] = (double)(float)((2 * uniform() - 1) * size);
    most = largest(g, x);
    for (int k = 0; k < TRIES; k++) {
        change(x, next);
        double now = largest(g, next);
        if (!(now >= most)) continue;
        most = now;
        for (int i = 0; i < ALL; i++) x[i] = next[i];
    }
    return most;
}

TEST_CASE(bounds, ascent_stays_within_them) {
    static const double sizes[] = {1e-12, 1e-7, 1e-3, 0.1, 1, 30, 1e3, 1e5};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        Module *m = parsed(a, arena_printf(a,
                                           "graph predict(%%x: f32[2,8]) {\n%s"
                                           "  return %%y\n}\n",
                                           cases[i].lines));
        const Graph *g = m->graphs.data[0];
        double bound = bounds_find(g, a)[g->outputs.data[0].value.i], most = 0;
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
            most = fmax(most, ascend(g, sizes[k]));
        CHECK_MSG(most <= bound, "%s: %.9g above %.9g", cases[i].name, most,
                  bound);
        CHECK_MSG(cases[i].reached == 0 || most >= cases[i].reached * bound,
                  "%s: %.9g of %.9g", cases[i].name, most, bound);
        arena_free(a);
    }
}
