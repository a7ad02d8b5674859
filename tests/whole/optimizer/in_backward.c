/* SPDX-License-Identifier: Apache-2.0 */
/* in_backward.c: updates in the backward pass. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"

/* ---- updates in the backward pass ---------------------------------------- */

/* Each weight of 4 MiB is a part of the update. */
static const char deep[] =
    "graph forward(%x: f32[4,64], %s: f32[]) {\n"
    "  param %u: f32[64,1024] = normal(1, 0.1)\n"
    "  param %v: f32[1024,1024] = normal(2, 0.03)\n"
    "  param %w: f32[1024,1024] = normal(3, 0.03), %b: f32[1024] = 0\n"
    "  %xu = matmul %x, %u\n  %h = tanh %xu\n  %k = mul %h, %s\n"
    "  %kv = matmul %k, %v\n  %i = tanh %kv\n"
    "  %iw = matmul %i, %w\n  %y = add %iw, %b\n  return %y\n}\n";

enum { DEEP_ROWS = 4, DEEP_IN = 64, DEEP_OUT = 1024 };

typedef struct DeepFeed {
    float x[DEEP_ROWS * DEEP_IN], t[DEEP_ROWS * DEEP_OUT], s;
    ampc_input in[3];
} DeepFeed;

static void deep_feed(DeepFeed *f, int step) {
    f->s = 1;
    for (int i = 0; i < DEEP_ROWS * DEEP_IN; i++)
        f->x[i] = sinf((float)(i + 7 * step));
    for (int i = 0; i < DEEP_ROWS * DEEP_OUT; i++)
        f->t[i] = cosf((float)(i * (step + 1)));
    f->in[0] = ampc_in("x", f->x, sizeof f->x, AMPC_DTYPE_F32);
    f->in[1] = ampc_in("s", &f->s, sizeof f->s, AMPC_DTYPE_F32);
    f->in[2] = ampc_in("target", f->t, sizeof f->t, AMPC_DTYPE_F32);
}

#define ALL_STATE (1u << AMPC_KIND_PARAMETER | 1u << AMPC_KIND_STATE)
#define DEEP      "--loss mse --gradient clip_each,norm=0.5 --clip-value 0.01 "

static void check_in_backward(const char *options) {
    static DeepFeed f;
    void *state[2];
    size_t bytes[2];
    double norm[2][3];
    for (int i = 0; i < 2; i++) {
        char all[300];
        snprintf(all, sizeof all, "%s%s", options,
                 i ? " --optimizer-in-backward" : "");
        Compiled c = compile_text(deep, all);
        ampc_session *s = open_threads(&c, 2);
        for (int k = 0; k < 3; k++) {
            deep_feed(&f, k);
            ampc_metrics m = step_ok(&c, s, f.in, 3);
            CHECK_EQ_INT(m.applied, 1);
            norm[i][k] = m.grad_norm;
        }
        state[i] = read_all(&c, s, ALL_STATE, &bytes[i]);
        c.api->close(s);
        compiled_close(&c);
    }
    CHECK_EQ_INT(bytes[0], bytes[1]);
    CHECK_MEM(state[0], state[1], bytes[0]);
    CHECK_MEM(norm[0], norm[1], sizeof *norm);
    free(state[0]);
    free(state[1]);
}

/* Updates of parts during the backward pass give the same bits, and the same
   norm, as one update at the end; also after a first pass for the norm. */
TEST_CASE(optimizer, in_backward_computes_the_same_bits) {
    check_in_backward(DEEP "--ema 0.9");
    check_in_backward("--loss mse --clip-norm 0.001 --precision fp16");
}

static void changed(const Compiled *c, ampc_session *s, const char *name,
                    size_t n, const float *before, bool want) {
    static float now[1024 * 1024];
    read_var(c, s, name, now, n * sizeof *now, AMPC_DTYPE_F32);
    CHECK_MSG((memcmp(now, before, n * sizeof *now) != 0) == want, "%s %s",
              name, want ? "is as before" : "changed");
}

/* Of three layers only the first has gradients that overflow: the others
   change if `later` says so, and the step counts as skipped. A loss that is
   NaN changes nothing. */
static void check_bad_gradient(const char *options, bool later) {
    enum { NU = 64 * 1024, NW = 1024 * 1024 };
    static float u[NU], v[NW], w[NW];
    static DeepFeed f;
    Compiled c = compile_text(deep, options);
    ampc_session *s = open_threads(&c, 2);
    read_var(&c, s, "u", u, sizeof u, AMPC_DTYPE_F32);
    read_var(&c, s, "v", v, sizeof v, AMPC_DTYPE_F32);
    read_var(&c, s, "w", w, sizeof w, AMPC_DTYPE_F32);
    deep_feed(&f, 0);
    f.s = NAN;
    CHECK_EQ_INT(step_ok(&c, s, f.in, 3).applied, 0);
    changed(&c, s, "w", NW, w, false);
    changed(&c, s, "u", NU, u, false);
    memset(f.x, 0, sizeof f.x);
    f.x[0] = 0x1p-120f; /* h is about x, so that k is finite */
    f.s = 0x1p120f;
    for (int i = 0; i < DEEP_ROWS * DEEP_OUT; i++) f.t[i] = 0x1p40f;
    ampc_metrics m = step_ok(&c, s, f.in, 3);
    CHECK(isfinite(m.loss));
    CHECK_EQ_INT(m.applied, 0);
    CHECK_EQ_INT(m.skipped, 2);
    CHECK_EQ_INT(m.step, 0);
    changed(&c, s, "w", NW, w, later);
    changed(&c, s, "v", NW, v, later);
    changed(&c, s, "u", NU, u, false);
    c.api->close(s);
    compiled_close(&c);
}

TEST_CASE(optimizer, in_backward_keeps_the_parts_before_a_bad_gradient) {
    check_bad_gradient("--loss mse --precision fp32 --optimizer sgd,lr=0.1 "
                       "--optimizer-in-backward",
                       true);
}

TEST_CASE(optimizer, a_first_pass_skips_a_step_whole) {
    check_bad_gradient("--loss mse --precision fp32 --optimizer sgd,lr=0.1 "
                       "--optimizer-in-backward --clip-norm 1",
                       false);
}
