/* SPDX-License-Identifier: Apache-2.0 */
/* keep_test.c: what forward stores for backward as codes of f8 (--keep f8).

   The gradients of a small model are compared with the rounding of this file,
   those of whole models with the interpreter, which reads the same codes. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/program/half.h"
#include "tests/support/interpreted.h"
#include "tests/tolerance.h"

enum { N = 64 };

/* The gradient of %w is (x * s)^T c, and %h = x * s is kept. */
static const char model[] =
    "graph forward(%x: f32[64,64], %c: f32[64,64]) {\n"
    "  param %s: f32[64,64] = 1\n"
    "  param %w: f32[64,64] = 0.5\n"
    "  %h = mul %x, %s : f32[64,64]\n"
    "  %y = matmul %h, %w : f32[64,64]\n"
    "  %yc = mul %y, %c : f32[64,64]\n"
    "  %loss = reduce_sum %yc {axes=[0,1], keepdims=0} : f32[]\n"
    "  return %loss\n"
    "}\n";

static float x[N * N], y_slope[N * N];

static float noise(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(*state >> 40) / (1 << 23) - 1);
}

/* Rows of different sizes; a row of zeros, and numbers far below the largest
   of their row. */
static void fill_data(void) {
    uint64_t seed = 5;
    for (int i = 0; i < N * N; i++) {
        x[i] = ldexpf(noise(&seed), i / N % 9 - 4) * (i / N != 3);
        if (i % 7 == 0) x[i] = ldexpf(x[i], -20);
        y_slope[i] = noise(&seed);
    }
}

static void as_kept(const float *row, float *to) {
    float scale = 0;
    for (int i = 0; i < N; i++)
        scale = fmaxf(scale, fabsf(row[i]) * (1 / 448.0f));
    float inverse = scale > 0 ? fminf(1 / scale, 3e38f) : 0;
    for (int i = 0; i < N; i++) {
        float y = fmaxf(fminf(fabsf(row[i]) * inverse, 448), 0x1p-9f);
        y = row[i] == 0 ? 0 : copysignf(y, row[i]);
        to[i] = f8e4m3_to_f32(f32_to_f8e4m3(y)) * scale;
    }
}

TEST_CASE(keep, gradients_read_codes_by_rows) {
    static float kept[N * N], w[N * N];
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("c", y_slope, sizeof y_slope, AMPC_DTYPE_F32)};
    Compiled m =
        compile_text(model, "--precision fp32 --keep f8 --optimizer sgd,lr=1");
    ampc_session *s = open_threads(&m, 2);
    fill_data();
    for (int i = 0; i < N; i++) as_kept(x + i * N, kept + i * N);
    step_ok(&m, s, in, 2);
    read_var(&m, s, "w", w, sizeof w, AMPC_DTYPE_F32);
    for (int k = 0; k < N; k++)
        for (int j = 0; j < N; j++) {
            double g = 0, size = 0;
            for (int i = 0; i < N; i++) {
                double term =
                    (double)kept[i * N + k] * (double)y_slope[i * N + j];
                g += term;
                size += fabs(term);
            }
            CHECK_NEAR((double)w[k * N + j], 0.5 - g, 1e-6 * size + 1e-6);
        }
    m.api->close(s);
    compiled_close(&m);
}

/* ---- beside the interpreter ---------------------------------------------- */

typedef struct Beside {
    const char *name, *model, *options;
    double tolerance; /* distance of the changes of all weights, relative */
} Beside;

typedef struct Batch {
    float x[32 * 3 * 32 * 32];
    int64_t id[32 * 64];
    ampc_input in[4];
    int n;
} Batch;

static void batch_fill(Batch *b, const ampc_api *api) {
    uint64_t seed = 9;
    ampc_tensor_info t;
    b->n = 0;
    for (size_t i = 0; i < sizeof b->x / sizeof *b->x; i++)
        b->x[i] = noise(&seed);
    for (size_t i = 0; i < sizeof b->id / sizeof *b->id; i++)
        b->id[i] = (int64_t)(i * i + i / 5) % 10;
    for (uint32_t i = 0;; i++) {
        t.size = sizeof t;
        if (api->input(api->module, "train", i, &t)) break;
        bool f = t.dtype == AMPC_DTYPE_F32;
        REQUIRE(t.bytes <= (f ? sizeof b->x : sizeof b->id));
        b->in[b->n++] = ampc_in(t.name, f ? (void *)b->x : (void *)b->id,
                                t.bytes, (ampc_dtype)t.dtype);
    }
}

/* Distance of the weights from the interpreter's, divided by the distance from
   their initial values. */
static double distance(const Compiled *m, ampc_session *s,
                       const Interpreted *now, const Interpreted *first) {
    static float w[1 << 18];
    double off = 0, moved = 0;
    for (int i = 0; i < now->m->vars.len; i++) {
        const Var *v = &now->m->vars.data[i];
        int64_t n = type_count(type_get(v->type));
        if (v->kind != VAR_PARAM) continue;
        REQUIRE((size_t)n <= sizeof w / sizeof *w);
        read_var(m, s, v->name, w, (size_t)n * sizeof *w, AMPC_DTYPE_F32);
        const EvalTensor *t = interpreted_var(now, v->name),
                         *t0 = interpreted_var(first, v->name);
        for (int64_t k = 0; k < n; k++) {
            off += pow((double)w[k] - t->f[k], 2);
            moved += pow(t->f[k] - t0->f[k], 2);
        }
    }
    return sqrt(off / moved);
}

static void check_beside(void *arg) {
    static Batch b;
    const Beside *e = arg;
    char all[300];
    snprintf(all, sizeof all, "%s --keep f8 --optimizer sgd,lr=0.1",
             e->options);
    Compiled m = compile_file(test_data_path(e->model), all);
    Interpreted now = interpreted_new(m.path, EVAL_STORAGE),
                first = interpreted_new(m.path, EVAL_STORAGE);
    ampc_session *s = open_threads(&m, 2);
    batch_fill(&b, m.api);
    step_ok(&m, s, b.in, (size_t)b.n);
    interpreted_run(&now, "train", b.in, b.n);
    double far = distance(&m, s, &now, &first);
    printf("%s: %.3g\n", e->name, far);
    CHECK_MSG(far <= e->tolerance, "%s: %.3g", e->name, far);
    m.api->close(s);
    interpreted_free(&now);
    interpreted_free(&first);
    compiled_close(&m);
}

#define GPT                                                                    \
    "--dim B=4 --dim T=32 --dim VOCAB=64 --dim D=64 --dim HEADS=2 --dim L=2 "
static const Beside subjects[] = {
    {"cnn_fp32", "models/cnn.amp", "--precision fp32 --dim B=16 --dim W=16",
     TOL_KEEP_F32},
    {"cnn_bf16", "models/cnn.amp", "--dim B=16 --dim W=16", TOL_KEEP_LOW},
    {"vit_fp32", "models/vit.amp",
     "--precision fp32 --dim B=8 --dim SIZE=16 --dim D=64 --dim HEADS=2 "
     "--dim L=1",
     TOL_KEEP_F32},
    {"gpt_bf16", "models/gpt.amp", GPT, TOL_KEEP_LOW},
    {"gpt_fp16_remat", "models/gpt.amp", GPT "--precision fp16 --remat 400000",
     TOL_KEEP_LOW},
};

static void register_subjects(void) {
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++)
        harness_register("keep", subjects[i].name, check_beside,
                         (void *)&subjects[i]);
}
TEST_REGISTRAR(register_subjects);
