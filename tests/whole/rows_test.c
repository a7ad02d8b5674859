/* SPDX-License-Identifier: Apache-2.0 */
/* rows_test.c: rows and columns of every length, folded, on both devices.

   out = z + sum of z's row, z = x*g + b; the gradients of sum(y * out) for g
   and b are sums of columns beside sums of rows, as in a normalisation.  All
   numbers are small integers, so that every order of the sums gives the
   result of the loops here, and reading beyond a row, or leaving something
   out, shows. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/base/base.h"
#include "tests/support/on_device.h"

enum { SHAPES = 72, LENGTH = 2100, ROWS = 300, MOST = 24576 };
enum {
    TALL = 5000,
    TALL_COLS = 17,
    ELEMENTS = TALL * TALL_COLS
}; /* more than two rows for every team */

static uint64_t state;

static int below(int n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)n);
}

typedef struct Shape {
    int rows, cols;
    ampc_dtype dtype; /* of x and y */
    float x[ELEMENTS], y[ELEMENTS], g[LENGTH], b[LENGTH];
    uint16_t x16[ELEMENTS], y16[ELEMENTS];
} Shape;

/* Lengths around multiples of warps, vectors and blocks. */
static int length(int most) {
    static const int units[] = {1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 256, 512};
    int unit = units[below(12)];
    int times = most / unit < 6 ? most / unit : 6;
    int n = unit * (1 + below(times > 1 ? times : 1)) +
            (below(2) ? 0 : below(5) - 2);
    return n < 1 ? 1 : n > most ? most : n;
}

/* A random integer from -3 to 3 in 16 bits. */
static uint16_t narrow(ampc_dtype dtype, float x) {
    static const uint16_t bf16[] = {0, 0x3f80, 0x4000, 0x4040},
                          f16[] = {0, 0x3c00, 0x4000, 0x4200};
    int n = (int)(x < 0 ? -x : x);
    uint16_t bits = dtype == AMPC_DTYPE_BF16 ? bf16[n] : f16[n];
    return (uint16_t)(bits | (x < 0 ? 0x8000 : 0));
}

static Shape *shapes_new(uint64_t seed) {
    static const ampc_dtype dtypes[] = {AMPC_DTYPE_F32, AMPC_DTYPE_BF16,
                                        AMPC_DTYPE_F16};
    Shape *all = calloc(SHAPES, sizeof *all);
    REQUIRE(all);
    state = seed;
    for (Shape *s = all; s < all + SHAPES; s++) {
        s->cols = length(LENGTH);
        s->rows = length(ROWS);
        while (s->rows * s->cols > MOST) s->rows = (s->rows + 1) / 2;
        if (s == all) s->rows = TALL, s->cols = TALL_COLS;
        s->dtype = dtypes[below(3)];
        for (int i = 0; i < s->cols; i++)
            s->g[i] = (float)(below(5) - 2), s->b[i] = (float)(below(5) - 2);
        for (int i = 0; i < s->rows * s->cols; i++) {
            s->x[i] = (float)(below(7) - 3);
            s->y[i] = (float)(below(5) - 2);
            if (s->dtype == AMPC_DTYPE_F32) continue;
            s->x16[i] = narrow(s->dtype, s->x[i]);
            s->y16[i] = narrow(s->dtype, s->y[i]);
        }
    }
    return all;
}

static const char *dtype_text(const Shape *s) {
    return s->dtype == AMPC_DTYPE_F32    ? "f32"
           : s->dtype == AMPC_DTYPE_BF16 ? "bf16"
                                         : "f16";
}

static char *program(const Shape *all) {
    StrBuf sig = {0}, params = {0}, body = {0}, results = {0};
    for (int k = 0; k < SHAPES; k++) {
        const Shape *s = &all[k];
        int r = s->rows, c = s->cols;
        sb_printf(&sig, "%s%%x%d: %s[%d,%d], %%y%d: %s[%d,%d]", k ? ", " : "",
                  k, dtype_text(s), r, c, k, dtype_text(s), r, c);
        sb_printf(&params, "  param %%g%d: f32[%d] = 0, %%b%d: f32[%d] = 0\n",
                  k, c, k, c);
        sb_printf(&body,
                  "  %%p%d = mul %%x%d, %%g%d : f32[%d,%d]\n"
                  "  %%z%d = add %%p%d, %%b%d : f32[%d,%d]\n"
                  "  %%m%d = reduce_sum %%z%d {axes=[1], keepdims=1}\n"
                  "  %%o%d = add %%z%d, %%m%d : f32[%d,%d]\n"
                  "  %%w%d = mul %%o%d, %%y%d : f32[%d,%d]\n"
                  "  %%l%d = reduce_sum %%w%d {axes=[0,1], keepdims=0}\n",
                  k, k, k, r, c, k, k, k, r, c, k, k, k, k, k, r, c, k, k, k, r,
                  c, k, k);
        if (k)
            sb_printf(&body, "  %%s%d = add %s%d, %%l%d\n", k,
                      k == 1 ? "%l" : "%s", k - 1, k);
        sb_printf(&results, ", o%d=%%o%d", k, k);
    }
    StrBuf sb = {0};
    sb_printf(&sb, "graph forward(%s) {\n%s%s  return l=%%s%d%s\n}\n", sig.data,
              params.data, body.data, SHAPES - 1, results.data);
    sb_free(&sig);
    sb_free(&params);
    sb_free(&body);
    sb_free(&results);
    return sb.data;
}

/* ---- checks -------------------------------------------------------------- */

static void check_values(const Compiled *c, ampc_session *t, const Shape *s,
                         int k) {
    static float got[ELEMENTS];
    char name[16];
    int wrong = 0;
    ampc_output out = ampc_out(
        NULL, got, (size_t)(s->rows * s->cols) * sizeof *got, AMPC_DTYPE_F32);
    snprintf(name, sizeof name, "o%d", k);
    if (c->api->read_output(t, name, &out)) FAIL("%s", c->api->error(t));
    for (int i = 0; i < s->rows && !wrong; i++) {
        const float *x = s->x + i * s->cols;
        float sum = 0;
        for (int j = 0; j < s->cols; j++) sum += x[j] * s->g[j] + s->b[j];
        for (int j = 0; j < s->cols && !wrong; j++)
            wrong = !CHECK_MSG(got[i * s->cols + j] ==
                                   x[j] * s->g[j] + s->b[j] + sum,
                               "%s[%d,%d], row %d, column %d", dtype_text(s),
                               s->rows, s->cols, i, j);
    }
}

static void check_slopes(const Compiled *c, ampc_session *t, const Shape *s,
                         int k) {
    static float got[2][LENGTH], want[2][LENGTH];
    memset(want, 0, sizeof want);
    for (int i = 0; i < s->rows; i++) {
        const float *x = s->x + i * s->cols, *y = s->y + i * s->cols;
        float sum = 0;
        for (int j = 0; j < s->cols; j++) sum += y[j];
        for (int j = 0; j < s->cols; j++) {
            want[0][j] += (y[j] + sum) * x[j];
            want[1][j] += y[j] + sum;
        }
    }
    for (int which = 0; which < 2; which++) {
        const float *from = which ? s->b : s->g;
        char name[16];
        int wrong = 0;
        snprintf(name, sizeof name, "%c%d", "gb"[which], k);
        read_var(c, t, name, got[which], (size_t)s->cols * sizeof(float),
                 AMPC_DTYPE_F32);
        for (int j = 0; j < s->cols && !wrong; j++)
            wrong = !CHECK_MSG(
                from[j] - got[which][j] == want[which][j],
                "gradient %c of %s[%d,%d], column %d: %g, not %g", "gb"[which],
                dtype_text(s), s -> rows, s -> cols, j,
                (double)(from[j] - got[which][j]), (double)want[which][j]);
    }
}

static ampc_input input(const Shape *s, const char *name) {
    size_t n = (size_t)(s->rows * s->cols);
    bool x = *name == 'x';
    if (s->dtype == AMPC_DTYPE_F32)
        return ampc_in(name, x ? s->x : s->y, n * sizeof *s->x, s->dtype);
    return ampc_in(name, x ? s->x16 : s->y16, n * sizeof *s->x16, s->dtype);
}

/* A step with learning rate 1 subtracts the gradient. */
static void check(const Shape *all, const Compiled *c, ampc_session *t) {
    static char names[2 * SHAPES][16];
    ampc_input in[2 * SHAPES];
    for (int k = 0; k < SHAPES; k++) {
        const Shape *s = &all[k];
        char name[16];
        for (int i = 0; i < 2; i++) {
            snprintf(names[2 * k + i], sizeof *names, "%c%d", "xy"[i], k);
            in[2 * k + i] = input(s, names[2 * k + i]);
            snprintf(name, sizeof name, "%c%d", "gb"[i], k);
            write_var(c, t, name, i ? s->b : s->g,
                      (size_t)s->cols * sizeof(float), AMPC_DTYPE_F32);
        }
    }
    if (c->api->predict(t, in, 2 * SHAPES, 1, NULL, 0))
        FAIL("%s", c->api->error(t));
    for (int k = 0; k < SHAPES; k++) check_values(c, t, &all[k], k);
    step_ok(c, t, in, 2 * SHAPES);
    for (int k = 0; k < SHAPES; k++) check_slopes(c, t, &all[k], k);
    c->api->close(t);
}

#define OPTIONS "--precision fp32 --loss auto:l --optimizer sgd,lr=1 "

TEST_CASE(rows, of_every_length_on_the_cpu) {
    static const char *const levels[] = {"v2", "v3", "v4"};
    Shape *all = shapes_new(1);
    char *text = program(all);
    Compiled c = compile_text(text, OPTIONS ALL_LEVELS);
    for (int i = 0; i < 3; i++) {
        setenv("AMPC_ISA", levels[i], 1);
        check(all, &c, open_threads(&c, 1 + i));
    }
    unsetenv("AMPC_ISA");
    compiled_close(&c);
    free(text);
    free(all);
}

TEST_CASE(rows, of_every_length_on_the_gpu) {
    Shape *all = shapes_new(2);
    char *text = program(all);
    const Compiled *c = compile_on("cuda", text, OPTIONS, "");
    check(all, c, open_on(c, "cuda", 0));
    free(text);
    free(all);
}
