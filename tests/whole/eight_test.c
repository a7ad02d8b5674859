/* SPDX-License-Identifier: Apache-2.0 */
/* eight_test.c: products that read numbers of 8 bits (--precision f8), beside
   the rounding of this file. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/program/half.h"
#include "tests/support/compiled.h"
#include "tests/tolerance.h"

enum { N = 64, ALL = N * N };

/* Of three products only the second reads f8. All numbers are multiples of
   1/8, so that sums of bf16 products are exact. */
static const char model[] =
    "graph forward(%x: f32[64,64], %a: f32[64,64], %b: f32[64,64], "
    "%c: f32[64,64]) {\n"
    "  param %w: f32[64,64] = 0.5\n"
    "  %h = matmul %x, %a : f32[64,64] !of=\"one\"\n"
    "  %y = matmul %h, %w : f32[64,64] !of=\"two\"\n"
    "  %z = matmul %y, %b : f32[64,64] !of=\"three\"\n"
    "  %zc = mul %z, %c : f32[64,64]\n"
    "  %loss = reduce_sum %zc {axes=[0,1], keepdims=0} : f32[]\n"
    "  return %loss\n"
    "}\n";

static float x[ALL], a[ALL], b[ALL], slope[ALL], w[ALL];

static uint64_t fill(float *to, uint64_t state, float part) {
    for (int i = 0; i < ALL; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        to[i] = (float)((int)(state >> 40) % 7 - 3) * part;
    }
    return state;
}

static float bf16(float v) { return bf16_to_f32(f32_to_bf16(v)); }

/* p times q, transposed if asked for. */
static void product(const float *p, bool tp, const float *q, bool tq,
                    double *to) {
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int k = 0; k < N; k++)
                sum += (double)p[tp ? k * N + i : i * N + k] *
                       (double)q[tq ? j * N + k : k * N + j];
            to[i * N + j] = sum;
        }
}

static void as_bf16(const double *from, float *to) {
    for (int i = 0; i < ALL; i++) to[i] = bf16((float)from[i]);
}

/* The numbers for which codes with one scale stand. */
static void as_eight(float *v, bool gradient) {
    float most = gradient ? 57344 : 448, size = 1e-12f;
    for (int i = 0; i < ALL; i++) size = fmaxf(size, fabsf(v[i]));
    float inverse = most / size;
    for (int i = 0; i < ALL; i++) {
        float y = fmaxf(fminf(v[i] * inverse, most), -most);
        v[i] = gradient ? f8e5m2_to_f32(f32_to_f8e5m2(y)) / inverse
                        : f8e4m3_to_f32(f32_to_f8e4m3(y)) / inverse;
    }
}

TEST_CASE(eight, gradients_of_the_middle_product_read_f8) {
    static float h[ALL], dy[ALL], now[ALL];
    static double sum[ALL], exact[ALL];
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("a", a, sizeof a, AMPC_DTYPE_F32),
                       ampc_in("b", b, sizeof b, AMPC_DTYPE_F32),
                       ampc_in("c", slope, sizeof slope, AMPC_DTYPE_F32)};
    uint64_t state = fill(x, 3, 1);
    state = fill(slope, fill(b, fill(a, state, 0.25f), 0.5f), 0.125f);
    Compiled m = compile_text(model, "--precision f8 --optimizer sgd,lr=1");
    ampc_session *s = open_threads(&m, 2);
    step_ok(&m, s, in, 4);
    read_var(&m, s, "w", w, sizeof w, AMPC_DTYPE_F32);
    product(x, false, a, false, sum);
    as_bf16(sum, h);
    product(slope, false, b, true, sum);
    as_bf16(sum, dy);
    product(h, true, dy, false, exact);
    as_eight(h, false);
    as_eight(dy, true);
    product(h, true, dy, false, sum);
    double off = 0, rounding = 0, size = 0;
    for (int i = 0; i < ALL; i++) {
        now[i] = 0.5f - w[i];
        off += pow((double)now[i] - sum[i], 2);
        rounding += pow(sum[i] - exact[i], 2);
        size += exact[i] * exact[i];
    }
    printf("%g of %g of %g\n", sqrt(off), sqrt(rounding), sqrt(size));
    CHECK_MSG(off <= 1e-10 * size, "%g of %g", sqrt(off), sqrt(size));
    CHECK_MSG(rounding >= 1e-4 * size, "%g of %g", sqrt(rounding), sqrt(size));
    m.api->close(s);
    compiled_close(&m);
}
