/* SPDX-License-Identifier: Apache-2.0 */
/* range_test.c: numbers out of 16 bits' range, in models that PyTorch's
   autocast trains: masks with huge constants, fully masked rows, and values
   computed from positions. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/tolerance.h"

static const char *const precisions[] = {"bf16", "fp16"};

/* ---- masks --------------------------------------------------------------- */

enum { BATCH = 4, TOKENS = 5, WIDTH = 8, STEPS = 6 };
enum { NX = BATCH * TOKENS * WIDTH };

/* How %m (1 where the mask is), times a constant, masks the scores %s. */
static const char *const masks[] = {
    "  const %%mask: f32[5,5] = %s\n  %%z = add %%s, %%mask",
    "  frozen %%mask: f32[5,5] = %s\n  %%z = add %%s, %%mask",
    "  const %%mask: f32[5,5] = %s\n  %%h = cast %%mask : bool[5,5]\n"
    "  %%z = where %%h, %g, %%s",
};

/* Later tokens are masked; in row 2 all are. */
static void mask_text(char *out, size_t size, double value) {
    size_t n = 0;
    for (int i = 0; i < TOKENS * TOKENS; i++) {
        bool masked = i % TOKENS > i / TOKENS || i / TOKENS == 2;
        n += (size_t)snprintf(out + n, size - n, "%s%.9g", i ? ", " : "[",
                              masked ? value : 0);
    }
    snprintf(out + n, size - n, "]");
}

static Compiled masked_model(const char *form, double value,
                             const char *precision) {
    char mask[1000], line[1600], text[3000], options[200];
    mask_text(mask, sizeof mask, value);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(line, sizeof line, form, mask, value);
#pragma GCC diagnostic pop
    snprintf(text, sizeof text,
             "graph forward(%%x: f32[4,5,8]) {\n"
             "  param %%wq: f32[8,8] = normal(1, 0.6)\n"
             "  param %%wk: f32[8,8] = normal(2, 0.6)\n"
             "  param %%wv: f32[8,8] = normal(3, 0.6)\n"
             "  %%q = matmul %%x, %%wq\n  %%k = matmul %%x, %%wk\n"
             "  %%v = matmul %%x, %%wv\n"
             "  %%s = matmul %%q, %%k {trans_b=1}\n%s\n"
             "  %%p = softmax %%z {axis=2}\n  %%y = matmul %%p, %%v\n"
             "  return y=%%y\n}\n",
             line);
    snprintf(options, sizeof options,
             "--loss mse --optimizer sgd,lr=0.1 --precision %s", precision);
    return compile_text(text, options);
}

static void train(const char *form, double value, const char *precision,
                  double *loss) {
    static float x[NX], target[NX];
    Compiled c = masked_model(form, value, precision);
    ampc_session *s = open_threads(&c, 1);
    for (int i = 0; i < NX; i++) {
        x[i] = sinf((float)i * 1.3f);
        target[i] = cosf((float)i * 0.7f);
    }
    ampc_input in[] = {
        ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
        ampc_in("target", target, sizeof target, AMPC_DTYPE_F32)};
    for (int i = 0; i < STEPS; i++) {
        ampc_metrics m = step_ok(&c, s, in, 2);
        CHECK_MSG(m.skipped == 0, "%s, %g: step %d is skipped", precision,
                  value, i);
        loss[i] = m.loss;
    }
    c.api->close(s);
    compiled_close(&c);
}

TEST_CASE(range, masks_train_as_in_fp32) {
    static const double values[] = {-3.4028234e38, -1e9, -65504};
    double want[STEPS], got[STEPS];
    for (int f = 0; f < 3; f++)
        for (int v = 0; v < (f ? 1 : 3); v++) {
            train(masks[f], values[v], "fp32", want);
            for (int p = 0; p < 2; p++) {
                train(masks[f], values[v], precisions[p], got);
                for (int i = 0; i < STEPS; i++)
                    CHECK_MSG(fabs(got[i] - want[i]) < TOL_MASKED * want[i],
                              "form %d, %g, %s, step %d: %g, not %g", f,
                              values[v], precisions[p], i, got[i], want[i]);
            }
        }
}

/* ---- positions ----------------------------------------------------------- */

enum { NPOS = 64, NFREQ = 8 };

/* %p: i64[64,1], to the angles %a: f32[64,8] at frequencies 2 ** -j */
static const char *const angles[] = {
    "  %f = cast %p {user=1} : f32[64,1]\n"
    "  %a = matmul %f, %freq : f32[64,8]",
    "  %c = cumsum %p {axis=1}\n"
    "  %f = cast %c {user=1} : f32[64,1]\n"
    "  %t = transpose %f {perm=[1,0]} : f32[1,64]\n"
    "  %m = matmul %freq, %t {trans_a=1} : f32[8,64]\n"
    "  %a = transpose %m {perm=[1,0]} : f32[64,8]",
    "  %i = cast %p {user=1} : f32[64,1]\n"
    "  %h = mul %i, 0.5\n  %d = add %h, %h\n"
    "  %a = matmul %d, %freq : f32[64,8]",
};

static void predict_angles(const char *how, const char *precision,
                           const int64_t *p, float *y) {
    char text[1000], options[100];
    snprintf(text, sizeof text,
             "graph forward(%%p: i64[64,1]) {\n"
             "  const %%freq: f32[1,8] = [1, 0.5, 0.25, 0.125, 0.0625, "
             "0.03125, 0.015625, 0.0078125]\n"
             "%s\n  %%y = cos %%a : f32[64,8]\n"
             "  return y=%%y\n}\n",
             how);
    snprintf(options, sizeof options, "--loss none --precision %s", precision);
    Compiled c = compile_text(text, options);
    ampc_session *s = open_threads(&c, 1);
    ampc_input in = ampc_in("p", p, NPOS * sizeof *p, AMPC_DTYPE_I64);
    ampc_output out =
        ampc_out("y", y, NPOS * NFREQ * sizeof *y, AMPC_DTYPE_F32);
    REQUIRE(!c.api->predict(s, &in, 1, NPOS, &out, 1));
    c.api->close(s);
    compiled_close(&c);
}

TEST_CASE(range, angles_of_positions_are_exact) {
    int64_t p[NPOS];
    static float y[NPOS * NFREQ];
    for (int i = 0; i < NPOS; i++) p[i] = i * 997;
    for (int f = 0; f < 3; f++)
        for (int k = 0; k < 2; k++) {
            predict_angles(angles[f], precisions[k], p, y);
            for (int i = 0; i < NPOS * NFREQ; i++) {
                double want = cos(ldexp((double)p[i / NFREQ], -(i % NFREQ)));
                CHECK_MSG(fabs((double)y[i] - want) < 1e-5,
                          "form %d, %s: position %lld, frequency %d: %g, not "
                          "%g",
                          f, precisions[k], (long long)p[i / NFREQ], i % NFREQ,
                          (double)y[i], want);
            }
        }
}
