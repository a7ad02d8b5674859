/* SPDX-License-Identifier: Apache-2.0 */
/* weights.c: micro-batches whose labels weigh differently. */
#include <math.h>
#include <stdio.h>

#include "tests/support/compiled.h"

enum { LABELS = 4, WIDTH = 3 };

/* The parameter after a step on all samples, `micro` micro-batches. */
static double weighted_step(const char *loss, int micro, float w[WIDTH]) {
    static const float x[LABELS * WIDTH] = {1, 0.5f, -1, 0.25f, 2,  -0.5f,
                                            0, 1.5f, 1,  -1,    -2, 0.75f};
    static const int64_t t[LABELS] = {0, 2, 1, 0};
    char text[600], options[200];
    int n = LABELS / micro;
    ampc_metrics m = {.size = sizeof m};
    snprintf(text, sizeof text,
             "graph forward(%%x: f32[%d,3], %%t: i64[%d]) {\n"
             "  param %%w: f32[3] = [0.5, -1, 1]\n"
             "  const %%k: f32[3] = [1, 2, 5]\n"
             "  %%y = mul %%x, %%w : f32[%d,3]\n"
             "  %%loss = %s : f32[]\n  return %%loss\n}\n",
             n, n, n, loss);
    snprintf(options, sizeof options,
             "--precision fp32 --target cpu:x86-64-v2 --optimizer sgd,lr=1 "
             "--accumulate %d",
             micro);
    Compiled c = compile_text(text, options);
    ampc_session *s = open_threads(&c, 1);
    for (int i = 0; i < micro; i++) {
        size_t some = (size_t)n;
        ampc_input in[] = {
            ampc_in("x", x + i * n * WIDTH, some * WIDTH * 4, AMPC_DTYPE_F32),
            ampc_in("t", t + i * n, some * 8, AMPC_DTYPE_I64)};
        m = step_ok(&c, s, in, 2);
    }
    read_var(&c, s, "w", w, WIDTH * sizeof *w, AMPC_DTYPE_F32);
    c.api->close(s);
    compiled_close(&c);
    return m.loss;
}

TEST_CASE(accumulate, labels_weigh_what_their_classes_weigh) {
    static const char *const losses[] = {
        "softmax_cross_entropy %y, %t, %k",
        "softmax_cross_entropy %y, %t, %k {ignore_index=1}",
        "softmax_cross_entropy %y, %t {ignore_index=0}",
        "softmax_cross_entropy %y, %t"};
    for (size_t k = 0; k < sizeof losses / sizeof *losses; k++) {
        float whole[WIDTH], parts[WIDTH];
        double want = weighted_step(losses[k], 1, whole),
               got = weighted_step(losses[k], 2, parts);
        CHECK_MSG(fabs(got - want) < 1e-5 * want, "%s: loss %g, not %g",
                  losses[k], got, want);
        for (int i = 0; i < WIDTH; i++)
            CHECK_MSG(fabsf(whole[i] - parts[i]) < 1e-5f,
                      "%s: w[%d] is %g, not %g", losses[k], i, (double)parts[i],
                      (double)whole[i]);
    }
}
