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

static float x[ALL], a[ALL], b[ALL], slope[ALL];

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

static float largest(const float *v) {
    float size = 1e-12f;
    for (int i = 0; i < ALL; i++) size = fmaxf(size, fabsf(v[i]));
    return size;
}

/* The numbers for which codes stand whose scale is made for that size. */
static void as_eight(float *v, bool gradient, float size) {
    float most = gradient ? 57344 : 448, inverse = most / size;
    for (int i = 0; i < ALL; i++) {
        float y = fmaxf(fminf(v[i] * inverse, most), -most);
        v[i] = gradient ? f8e5m2_to_f32(f32_to_f8e5m2(y)) / inverse
                        : f8e4m3_to_f32(f32_to_f8e4m3(y)) / inverse;
    }
}

/* Rounds with a scale for each 32 along rows, or along columns: the least
   power of two for which no number is beyond 448. */
static void as_blocks(float *v, bool down) {
    int step = down ? N : 1, line = down ? 1 : N;
    for (int i = 0; i < ALL / 32; i++) {
        float *at = v + i % N * line + i / N * 32 * step, most = 0;
        int e = -126;
        for (int k = 0; k < 32; k++) most = fmaxf(most, fabsf(at[k * step]));
        while (ldexp(448, e) < (double)most) e++;
        for (int k = 0; k < 32; k++) {
            float y = ldexpf(at[k * step], -e);
            at[k * step] = ldexpf(f8e4m3_to_f32(f32_to_f8e4m3(y)), e);
        }
    }
}

static float h[ALL], dy[ALL];

/* The operands of the middle product's gradient, in bf16. */
static void make_operands(void) {
    static double sum[ALL];
    product(x, false, a, false, sum);
    as_bf16(sum, h);
    product(slope, false, b, true, sum);
    as_bf16(sum, dy);
}

/* A step by SGD changes w by the gradient from codes for numbers up to those
   sizes; 0: of blocks. Returns the loss. */
static double check_step(const Compiled *m, ampc_session *s, float h_size,
                         float dy_size) {
    static float before[ALL], w[ALL];
    static double sum[ALL], exact[ALL];
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("a", a, sizeof a, AMPC_DTYPE_F32),
                       ampc_in("b", b, sizeof b, AMPC_DTYPE_F32),
                       ampc_in("c", slope, sizeof slope, AMPC_DTYPE_F32)};
    double off = 0, rounding = 0, size = 0;
    read_var(m, s, "w", before, sizeof before, AMPC_DTYPE_F32);
    double loss = step_ok(m, s, in, 4).loss;
    read_var(m, s, "w", w, sizeof w, AMPC_DTYPE_F32);
    make_operands();
    product(h, true, dy, false, exact);
    if (h_size > 0) {
        as_eight(h, false, h_size);
        as_eight(dy, true, dy_size);
    } else {
        as_blocks(h, true);
        as_blocks(dy, true);
    }
    product(h, true, dy, false, sum);
    for (int i = 0; i < ALL; i++) {
        off += pow((double)before[i] - (double)w[i] - sum[i], 2);
        rounding += pow(sum[i] - exact[i], 2);
        size += exact[i] * exact[i];
    }
    printf("%g of %g of %g\n", sqrt(off), sqrt(rounding), sqrt(size));
    CHECK_MSG(off <= 1e-10 * size, "%g of %g", sqrt(off), sqrt(size));
    CHECK_MSG(rounding >= 1e-4 * size, "%g of %g", sqrt(rounding), sqrt(size));
    return loss;
}

static void fill_all(void) {
    uint64_t state = fill(x, 3, 1);
    fill(slope, fill(b, fill(a, state, 0.25f), 0.5f), 0.125f);
    make_operands();
}

TEST_CASE(eight, gradients_of_the_middle_product_read_f8) {
    fill_all();
    Compiled m = compile_text(model, "--precision f8 --optimizer sgd,lr=1");
    ampc_session *s = open_threads(&m, 2);
    check_step(&m, s, largest(h), largest(dy));
    m.api->close(s);
    compiled_close(&m);
}

/* Rows of many sizes. */
static void stretch(float *v) {
    for (int i = 0; i < ALL; i++) v[i] = ldexpf(v[i], i / N * 5 % 7);
}

/* The loss from codes of the middle product's operands. */
static double loss_of_blocks(const float *weight) {
    static float w[ALL], y[ALL];
    static double sum[ALL];
    double loss = 0;
    make_operands();
    memcpy(w, weight, sizeof w);
    as_blocks(h, false);
    as_blocks(w, true);
    product(h, false, w, false, sum);
    as_bf16(sum, y);
    product(y, false, b, false, sum);
    for (int i = 0; i < ALL; i++)
        loss += (double)(bf16((float)sum[i]) * bf16(slope[i]));
    return loss;
}

TEST_CASE(eight, scales_of_blocks) {
    float w[ALL];
    fill_all();
    stretch(x);
    stretch(slope);
    Compiled m = compile_text(model, "--precision f8 --f8-scales block "
                                     "--optimizer sgd,lr=1");
    ampc_session *s = open_threads(&m, 2);
    for (int i = 0; i < 3; i++) {
        read_var(&m, s, "w", w, sizeof w, AMPC_DTYPE_F32);
        double loss = check_step(&m, s, 0, 0), want = loss_of_blocks(w);
        CHECK_MSG(fabs(loss - want) <= 1e-5 * fabs(want),
                  "step %d: loss %g, want %g", i, loss, want);
    }
    m.api->close(s);
    compiled_close(&m);
}

/* Before the first step gradients beyond 1/16 are clipped; a batch with
   smaller gradients has the scale of the one before; after a batch with larger
   ones the scale is theirs. */
TEST_CASE(eight, scales_of_earlier_steps) {
    static const float times[] = {1, 0.25f, 2, 1};
    fill_all();
    Compiled m = compile_text(model, "--precision f8 --f8-scales delayed "
                                     "--optimizer sgd,lr=1");
    ampc_session *s = open_threads(&m, 2);
    float h_size = 448, dy_size = 1.0f / 16, known = 0;
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < ALL; k++) slope[k] *= times[i];
        make_operands();
        float now = largest(dy);
        check_step(&m, s, h_size, dy_size);
        if (now > known) known = now;
        dy_size = known;
        make_operands();
        h_size = largest(h);
        for (int k = 0; k < ALL; k++) slope[k] /= times[i];
    }
    m.api->close(s);
    compiled_close(&m);
}

/* An optimizer's state may have any name that a text can give it. */
TEST_CASE(eight, histories_leave_names_to_optimizers) {
    static const char text[] = "optimizer own(p, g; lr = 0.1 \"rate\")\n"
                               "  source \"none\"\n"
                               "  state amax\n"
                               "{\n"
                               "  amax = max(amax, abs(g))\n"
                               "  p = p - g / (amax + 1) * lr\n"
                               "}\n";
    char options[400];
    const char *file = test_tmp("own.amp");
    REQUIRE(test_write_file(file, text, strlen(text)));
    snprintf(options, sizeof options,
             "--precision f8 --f8-scales delayed --optimizer '%s'", file);
    Compiled m = compile_text(model, options);
    ampc_session *s = open_threads(&m, 2);
    float own[ALL], history[16];
    read_var(&m, s, "ampc.opt/w/amax", own, sizeof own, AMPC_DTYPE_F32);
    read_var(&m, s, "ampc.opt/w/f8.amax", history, sizeof history,
             AMPC_DTYPE_F32);
    m.api->close(s);
    compiled_close(&m);
}
