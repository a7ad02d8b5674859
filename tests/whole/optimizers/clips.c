/* SPDX-License-Identifier: Apache-2.0 */
/* clips.c: limits of gradients: the norm of all, then each element. */
#include <math.h>
#include <stdio.h>

#include "tests/support/compiled.h"

/* The loss is the sum of x*p, its gradient x. A step with lr 1 subtracts the
   limited gradient. grad_norm is measured before the limits. */
TEST_CASE(optimizers, the_norm_is_limited_before_each_element) {
    enum { N = 4 };
    static const char text[] =
        "graph forward(%x: f32[4]) {\n  param %p: f32[4] = 0\n"
        "  %xp = mul %x, %p\n"
        "  %loss = reduce_sum %xp {axes=[0], keepdims=0}\n"
        "  return %loss\n}\n";
    static const float x[N] = {3, -4, 0.125f, 12}; /* of norm 13.0006 */
    static const struct {
        const char *options;
        double norm, value; /* INFINITY: none */
    } rows[] = {{"", INFINITY, INFINITY},
                {"--clip-norm 2", 2, INFINITY},
                {"--clip-value 3.5", INFINITY, 3.5},
                {"--clip-norm 6.5 --clip-value 1.75", 6.5, 1.75},
                {"--clip-value 1.75 --clip-norm 6.5", 6.5, 1.75},
                {"--clip-norm 100 --clip-value 4", 100, 4}};
    double norm = 0;
    for (int i = 0; i < N; i++) norm += (double)x[i] * (double)x[i];
    norm = sqrt(norm);
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        char options[200];
        float p[N];
        snprintf(options, sizeof options,
                 "--precision fp32 --target cpu:x86-64-v2 --optimizer "
                 "sgd,lr=1 %s",
                 rows[k].options);
        Compiled c = compile_text(text, options);
        ampc_session *s = open_threads(&c, 1);
        ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
        ampc_metrics m = step_ok(&c, s, &in, 1);
        read_var(&c, s, "p", p, sizeof p, AMPC_DTYPE_F32);
        CHECK_REL(m.grad_norm, norm, 1e-6);
        for (int i = 0; i < N; i++) {
            double g = (double)x[i] * fmin(1, rows[k].norm / (norm + 1e-6));
            double want = -fmax(-rows[k].value, fmin(rows[k].value, g));
            CHECK_MSG(fabs((double)p[i] - want) <= 1e-5 * fabs(want),
                      "%s: element %d moves by %.9g, not %.9g", rows[k].options,
                      i, (double)p[i], want);
        }
        c.api->close(s);
        compiled_close(&c);
    }
}
