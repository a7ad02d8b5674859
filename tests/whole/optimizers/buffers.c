/* SPDX-License-Identifier: Apache-2.0 */
/* buffers.c: averages of parameters beside running statistics. */
#include <math.h>
#include <stdio.h>

#include "tests/support/compiled.h"

/* Evaluation averages running statistics with buffers=average alone. Parameters
   stay as they are here, so that other averages change nothing. */
TEST_CASE(averages, buffers_are_averaged_on_request_alone) {
    enum { X = 20, T = 10 };
    static const char text[] =
        "model net(x: f32[5,4], t: f32[5,2]) {\n"
        "  param w1: f32[4,4] = normal(0.5)\n"
        "  param w2: f32[4,2] = normal(0.5)\n"
        "  y = tanh(BatchNorm(x @ w1, scope=\"bn\")) @ w2 - t\n"
        "  return loss = reduce_mean(y * y, axes=[0,1], keepdims=0)\n}\n";
    static const char *const with[] = {"", " --ema 0.5",
                                       " --ema 0.5,buffers=average"};
    float x[X], t[T];
    double loss[3];
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("t", t, sizeof t, AMPC_DTYPE_F32)};
    for (int i = 0; i < T; i++) t[i] = (float)i / T;
    for (int k = 0; k < 3; k++) {
        char options[200];
        snprintf(options, sizeof options,
                 "--precision fp32 --target cpu:x86-64-v2 --optimizer "
                 "sgd,lr=1e-30%s",
                 with[k]);
        Compiled c = compile_text(text, options);
        ampc_session *s = open_threads(&c, 1);
        ampc_eval e = {.size = sizeof e};
        for (int step = 0; step < 3; step++) {
            for (int i = 0; i < X; i++)
                x[i] = (float)((29 * i + 5 + 7 * step) % 64 - 24) / 16;
            step_ok(&c, s, in, 2);
        }
        if (k && c.api->set_hyper(s, "averaged", 1))
            FAIL("%s", c.api->error(s));
        if (c.api->evaluate(s, in, 2, 5, &e)) FAIL("%s", c.api->error(s));
        loss[k] = e.loss_num / e.loss_den;
        c.api->close(s);
        compiled_close(&c);
    }
    CHECK_REL(loss[1], loss[0], 1e-6);
    CHECK_MSG(fabs(loss[2] - loss[0]) > 1e-3 * loss[0], "%g and %g", loss[2],
              loss[0]);
}
