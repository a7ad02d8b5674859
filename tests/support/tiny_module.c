/* SPDX-License-Identifier: Apache-2.0 */
/* tiny_module.c: see tiny_module.h. */
#include "tests/support/tiny_module.h"

#include <math.h>
#include <string.h>

#include "runtime/program/dtype.h"
#include "runtime/api/session.h"
#include "tests/support/cpu_levels.h"

/* ---- kernels ------------------------------------------------------------- */

enum { B = TINY_BATCH, I = TINY_IN, O = TINY_OUT };

/* y[r] = x[r] w + b for rows [lo, hi): buf x, w, b, y */
static void k_forward(void *const *buf, const void *table, const int64_t *par,
                      int64_t lo, int64_t hi) {
    (void)table;
    const float *x = buf[0], *w = buf[1], *b = buf[2];
    float *y = buf[3];
    (void)par;
    for (int64_t r = lo; r < hi; r++)
        for (int o = 0; o < O; o++) {
            float sum = b[o];
            for (int i = 0; i < I; i++) sum += x[r * I + i] * w[i * O + o];
            y[r * O + o] = sum;
        }
}

/* Scaled gradient of the mean squared error: buf y, target, scale, loss, dy */
static void k_loss(void *const *buf, const void *table, const int64_t *par,
                   int64_t lo, int64_t hi) {
    (void)table;
    const float *y = buf[0], *t = buf[1], *scale = buf[2];
    float *loss = buf[3], *dy = buf[4], sum = 0;
    (void)par, (void)lo, (void)hi;
    for (int k = 0; k < B * O; k++) {
        float d = y[k] - t[k];
        sum += d * d;
        dy[k] = 2 * d * (*scale / (B * O));
    }
    *loss = sum / (B * O);
}

/* buf x, dy, gw, gb; par[0] = 1: adds */
static void k_wgrad(void *const *buf, const void *table, const int64_t *par,
                    int64_t lo, int64_t hi) {
    (void)table;
    const float *x = buf[0], *dy = buf[1];
    float *gw = buf[2], *gb = buf[3];
    (void)lo, (void)hi;
    if (!par[0]) {
        memset(gw, 0, I * O * sizeof *gw);
        memset(gb, 0, O * sizeof *gb);
    }
    for (int r = 0; r < B; r++)
        for (int o = 0; o < O; o++) {
            gb[o] += dy[r * O + o];
            for (int i = 0; i < I; i++)
                gw[i * O + o] += x[r * I + i] * dy[r * O + o];
        }
}

static double square_sum(const float *g, int n, float inv) {
    double sum = 0;
    for (int k = 0; k < n; k++) sum += (double)(g[k] * inv) * (g[k] * inv);
    return sum;
}

static void momentum(float *p, float *m, const float *g, int n, float inv,
                     float lr) {
    for (int k = 0; k < n; k++) {
        m[k] = 0.9f * m[k] + g[k] * inv;
        p[k] -= lr * m[k];
    }
}

/* buf gw gb w b mw mb lr scale good step tried skipped bad_forward loss_in
   -> loss norm scale_used lr_used applied step_out; par[0] = micro-batches  */
static void k_update(void *const *buf, const void *table, const int64_t *par,
                     int64_t lo, int64_t hi) {
    (void)table;
    float *gw = buf[0], *gb = buf[1], *w = buf[2], *b = buf[3];
    float *mw = buf[4], *mb = buf[5], *scale = buf[7];
    const float *lr = buf[6], *loss = buf[13];
    int32_t *good = buf[8];
    int64_t *step = buf[9], *tried = buf[10], *skipped = buf[11];
    int64_t *bad_forward = buf[12];
    float inv = 1 / (*scale * (float)par[0]);
    (void)lo, (void)hi;
    double norm = sqrt(square_sum(gw, I * O, inv) + square_sum(gb, O, inv));
    int ok = isfinite(norm) != 0;
    *(float *)buf[14] = *loss / (float)par[0];
    *(float *)buf[15] = (float)norm;
    *(float *)buf[16] = *scale;
    *(float *)buf[17] = *lr;
    *(uint8_t *)buf[18] = (uint8_t)ok;
    *tried += 1;
    *skipped += !ok;
    *bad_forward += !isfinite(*loss);
    *step += ok;
    *good = ok ? *good + 1 : 0;
    if (!ok) *scale *= 0.5f;
    if (ok) {
        momentum(w, mw, gw, I * O, inv, *lr);
        momentum(b, mb, gb, O, inv, *lr);
    }
    *(int64_t *)buf[19] = *step;
}

/* buf loss, sum, out: micro-steps sum their losses */
static void k_add_loss(void *const *buf, const void *table, const int64_t *par,
                       int64_t lo, int64_t hi) {
    (void)table;
    float *sum = buf[1];
    const int32_t *micro = buf[2];
    (void)par, (void)lo, (void)hi;
    *sum = (*micro ? *sum : 0) + *(const float *)buf[0];
}

/* Per sample: buf y, target, num, den */
static void k_eval(void *const *buf, const void *table, const int64_t *par,
                   int64_t lo, int64_t hi) {
    (void)table;
    const float *y = buf[0], *t = buf[1];
    float *num = buf[2], *den = buf[3];
    (void)par;
    for (int64_t r = lo; r < hi; r++) {
        num[r] = 0;
        den[r] = O;
        for (int o = 0; o < O; o++) {
            float d = y[r * O + o] - t[r * O + o];
            num[r] += d * d;
        }
    }
}

/* w as bf16: buf w, copy */
static void k_refresh(void *const *buf, const void *table, const int64_t *par,
                      int64_t lo, int64_t hi) {
    (void)table;
    (void)par;
    for (int64_t k = lo; k < hi; k++)
        ((uint16_t *)buf[1])[k] = f32_to_bf16(((const float *)buf[0])[k]);
}

/* Labels as one-hot rows: buf label, onehot */
static void k_onehot(void *const *buf, const void *table, const int64_t *par,
                     int64_t lo, int64_t hi) {
    (void)table;
    const int64_t *label = buf[0];
    float *t = buf[1];
    (void)par;
    for (int64_t r = lo; r < hi; r++)
        for (int o = 0; o < O; o++) t[r * O + o] = label[r] == o;
}

/* buf y, label, correct, count */
static void k_accuracy(void *const *buf, const void *table, const int64_t *par,
                       int64_t lo, int64_t hi) {
    (void)table;
    const float *y = buf[0];
    const int64_t *label = buf[1];
    (void)par;
    for (int64_t r = lo; r < hi; r++) {
        int best = y[r * O + 1] > y[r * O];
        ((float *)buf[2])[r] = label[r] == best;
        ((float *)buf[3])[r] = 1;
    }
}

static const PlanKernel kernels[] = {
    {k_forward, NULL}, {k_loss, NULL},     {k_wgrad, NULL},
    {k_update, NULL},  {k_add_loss, NULL}, {k_eval, NULL},
    {k_refresh, NULL}, {k_onehot, NULL},   {k_accuracy, NULL}};
enum {
    K_FORWARD,
    K_LOSS,
    K_WGRAD,
    K_UPDATE,
    K_ADD_LOSS,
    K_EVAL,
    K_REFRESH,
    K_ONEHOT,
    K_ACCURACY
};

static const PlanIsa isas[] = {{AMPC_ISA_V2, kernels, NULL, &ampc_v2_level}};

/* ---- variables ----------------------------------------------------------- */

enum {
    V_W,
    V_B,
    V_MW,
    V_MB,
    V_LR,
    V_SEED,
    V_SCALE,
    V_GOOD,
    V_STEP,
    V_TRIED,
    V_SKIPPED,
    V_BAD_FORWARD,
    V_MICRO,
    V_LOSS_SUM,
    V_W16,
    V_GW,
    V_GB,
    V_MEAN,
    V_RNG,
    V_COUNT
};

#define VAR(n, k, t, size, r, d0, d1, value)                                   \
    {                                                                          \
        .name = n, .kind = k, .dtype = t, .rank = r, .stored_dtype = t,        \
        .dim = {d0, d1}, .bytes = size, .init = -1, .fill = value              \
    }
static const PlanVar vars[V_COUNT] = {
    [V_W] = VAR("w", PLAN_PARAM, AMPC_F32, 24, 2, I, O, 0.25),
    [V_B] = VAR("b", PLAN_PARAM, AMPC_F32, 8, 1, O, 0, 0),
    [V_MW] =
        VAR("ampc.opt/w/momentum_buffer", PLAN_STATE, AMPC_F32, 24, 2, I, O, 0),
    [V_MB] =
        VAR("ampc.opt/b/momentum_buffer", PLAN_STATE, AMPC_F32, 8, 1, O, 0, 0),
    [V_LR] = VAR("ampc.lr", PLAN_HYPER, AMPC_F32, 4, 0, 0, 0, 0.1),
    [V_SEED] = VAR("ampc.seed", PLAN_HYPER, AMPC_I64, 8, 0, 0, 0, 7),
    [V_SCALE] = VAR("ampc.scale", PLAN_STATE, AMPC_F32, 4, 0, 0, 0, 1024),
    [V_GOOD] = VAR("ampc.good", PLAN_STATE, AMPC_I32, 4, 0, 0, 0, 0),
    [V_STEP] = VAR("ampc.step", PLAN_STATE, AMPC_I64, 8, 0, 0, 0, 0),
    [V_TRIED] = VAR("ampc.tried", PLAN_STATE, AMPC_I64, 8, 0, 0, 0, 0),
    [V_SKIPPED] = VAR("ampc.skipped", PLAN_STATE, AMPC_I64, 8, 0, 0, 0, 0),
    [V_BAD_FORWARD] =
        VAR("ampc.bad_forward", PLAN_STATE, AMPC_I64, 8, 0, 0, 0, 0),
    [V_MICRO] = VAR("ampc.micro", PLAN_STATE, AMPC_I32, 4, 0, 0, 0, 0),
    [V_LOSS_SUM] = VAR("ampc.loss_sum", PLAN_STATE, AMPC_F32, 4, 0, 0, 0, 0),
    [V_W16] = VAR("w.bf16", PLAN_SHADOW, AMPC_BF16, 12, 2, I, O, 0),
    [V_GW] = VAR("ampc.grad/w", PLAN_GRAD, AMPC_F32, 24, 2, I, O, 0),
    [V_GB] = VAR("ampc.grad/b", PLAN_GRAD, AMPC_F32, 8, 1, O, 0, 0),
    [V_MEAN] = VAR("running \"mean\"", PLAN_BUFFER, AMPC_F32, 4, 0, 0, 0, 1.5),
    [V_RNG] =
        VAR("ampc.rng", PLAN_STATE, AMPC_I64, 16, 1, 2, 0, -9007199254740993.0),
};

/* ---- programs ------------------------------------------------------------ */

#define VARREF(v)                                                              \
    { PLAN_VAR, v, 0 }
#define ARENA(o)                                                               \
    { PLAN_ARENA, 0, o }
#define INPUT(i)                                                               \
    { PLAN_INPUT, i, 0 }

enum { /* arena */
       A_Y = 0,
       A_DY = 64,
       A_GW = 128,
       A_GB = 192,
       A_LOSS = 256,
       A_OUT = 320,
       A_T = 384,
       A_NUM = 448,
       A_DEN = 512,
       A_CORRECT = 576,
       A_COUNTED = 640,
       ARENA_BYTES = 704
};

#define UPDATE_VARS                                                            \
    VARREF(V_W), VARREF(V_B), VARREF(V_MW), VARREF(V_MB), VARREF(V_LR),        \
        VARREF(V_SCALE), VARREF(V_GOOD), VARREF(V_STEP), VARREF(V_TRIED),      \
        VARREF(V_SKIPPED), VARREF(V_BAD_FORWARD)
#define UPDATE_OUTS                                                            \
    ARENA(A_OUT), ARENA(A_OUT + 4), ARENA(A_OUT + 8), ARENA(A_OUT + 12),       \
        ARENA(A_OUT + 16), ARENA(A_OUT + 24)

enum {
    R_FORWARD = 0,
    R_LOSS = 4,
    R_WGRAD = 9,
    R_UPDATE = 13,
    R_EVAL = 33,
    R_REFRESH = 37,
    R_MICRO_WGRAD = 39,
    R_ADD_LOSS = 43,
    R_MICRO_UPDATE = 46,
    R_ONEHOT = 66,
    R_LOSS_T = 68,
    R_EVAL_T = 73,
    R_ACCURACY = 77,
    R_COPY = 81,
    R_FORWARD_W = 83,
    R_OUT = 87, /* refs of outputs: of tensor 2 and later tensors */
    R_COUNT = 105
};

static const PlanRef refs[R_COUNT] = {
    /* forward   */ INPUT(0),
    VARREF(V_W),
    VARREF(V_B),
    ARENA(A_Y),
    /* loss      */ ARENA(A_Y),
    INPUT(1),
    VARREF(V_SCALE),
    ARENA(A_LOSS),
    ARENA(A_DY),
    /* wgrad     */ INPUT(0),
    ARENA(A_DY),
    ARENA(A_GW),
    ARENA(A_GB),
    /* update    */ ARENA(A_GW),
    ARENA(A_GB),
    UPDATE_VARS,
    ARENA(A_LOSS),
    UPDATE_OUTS,
    /* eval      */ ARENA(A_Y),
    INPUT(1),
    ARENA(A_NUM),
    ARENA(A_DEN),
    /* refresh   */ VARREF(V_W),
    VARREF(V_W16),
    /* micro     */ INPUT(0),
    ARENA(A_DY),
    VARREF(V_GW),
    VARREF(V_GB),
    ARENA(A_LOSS),
    VARREF(V_LOSS_SUM),
    VARREF(V_MICRO),
    /* update    */ VARREF(V_GW),
    VARREF(V_GB),
    UPDATE_VARS,
    VARREF(V_LOSS_SUM),
    UPDATE_OUTS,
    /* onehot    */ INPUT(1),
    ARENA(A_T),
    /* loss_t    */ ARENA(A_Y),
    ARENA(A_T),
    VARREF(V_SCALE),
    ARENA(A_LOSS),
    ARENA(A_DY),
    /* eval_t    */ ARENA(A_Y),
    ARENA(A_T),
    ARENA(A_NUM),
    ARENA(A_DEN),
    /* accuracy  */ ARENA(A_Y),
    INPUT(1),
    ARENA(A_CORRECT),
    ARENA(A_COUNTED),
    /* copy      */ ARENA(A_Y),
    ARENA(A_DY),
    /* forward   */ INPUT(0),
    VARREF(V_W),
    VARREF(V_B),
    ARENA(A_Y),
    /* outputs   */ ARENA(A_OUT),
    ARENA(A_OUT + 4),
    ARENA(A_OUT + 8),
    ARENA(A_OUT + 12),
    ARENA(A_OUT + 16),
    ARENA(A_OUT + 24),
    ARENA(A_NUM),
    ARENA(A_DEN),
    ARENA(A_Y),
    ARENA(A_DY),
    ARENA(A_LOSS),
    INPUT(0),
    INPUT(1),
    ARENA(A_NUM),
    ARENA(A_DEN),
    ARENA(A_CORRECT),
    ARENA(A_COUNTED),
    ARENA(A_Y),
};

static const int64_t pars[] = {0, 1, 2, 32, AMPC_F32}; /* last: LibCopy */

#define STEP(k, r, nr, p, np, u, n)                                            \
    {                                                                          \
        .kind = PLAN_KERNEL, .fn = k, .ref0 = r, .nref = nr, .par0 = p,        \
        .npar = np, .units = u, .grain = 1, .name = n                          \
    }
static const PlanStep steps[] = {
    /* 0 train */
    STEP(K_FORWARD, R_FORWARD, 4, 0, 0, B, "y"),
    STEP(K_LOSS, R_LOSS, 5, 0, 0, 1, "loss"),
    STEP(K_WGRAD, R_WGRAD, 4, 0, 1, 1, "w.grad"),
    STEP(K_UPDATE, R_UPDATE, 20, 1, 1, 1, "update"),
    STEP(K_REFRESH, R_REFRESH, 2, 0, 0, I *O, "w.bf16"),
    /* 5 eval */
    STEP(K_FORWARD, R_FORWARD, 4, 0, 0, B, "y"),
    STEP(K_EVAL, R_EVAL, 4, 0, 0, B, "eval"),
    /* 7 predict: through the copy routine */
    STEP(K_FORWARD, R_FORWARD, 4, 0, 0, B, "y"),
    {.kind = PLAN_LIB,
     .fn = PLAN_LIB_COPY,
     .ref0 = R_COPY,
     .nref = 2,
     .par0 = 3,
     .npar = 2,
     .name = "copy"},
    /* 9 refresh */
    STEP(K_REFRESH, R_REFRESH, 2, 0, 0, I *O, "w.bf16"),
    /* 10 micro */
    STEP(K_FORWARD, R_FORWARD, 4, 0, 0, B, "y"),
    STEP(K_LOSS, R_LOSS, 5, 0, 0, 1, "loss"),
    STEP(K_WGRAD, R_MICRO_WGRAD, 4, 1, 1, 1, "w.grad"),
    STEP(K_ADD_LOSS, R_ADD_LOSS, 3, 0, 0, 1, "loss_sum"),
    /* 14 update */
    STEP(K_UPDATE, R_MICRO_UPDATE, 20, 2, 1, 1, "update"),
    STEP(K_REFRESH, R_REFRESH, 2, 0, 0, I *O, "w.bf16"),
    /* 16 train with labels */
    STEP(K_ONEHOT, R_ONEHOT, 2, 0, 0, B, "onehot"),
    STEP(K_FORWARD, R_FORWARD, 4, 0, 0, B, "y"),
    STEP(K_LOSS, R_LOSS_T, 5, 0, 0, 1, "loss"),
    STEP(K_WGRAD, R_WGRAD, 4, 0, 1, 1, "w.grad"),
    STEP(K_UPDATE, R_UPDATE, 20, 1, 1, 1, "update"),
    STEP(K_REFRESH, R_REFRESH, 2, 0, 0, I *O, "w.bf16"),
    /* 22 eval with labels */
    STEP(K_ONEHOT, R_ONEHOT, 2, 0, 0, B, "onehot"),
    STEP(K_FORWARD, R_FORWARD, 4, 0, 0, B, "y"),
    STEP(K_EVAL, R_EVAL_T, 4, 0, 0, B, "eval"),
    STEP(K_ACCURACY, R_ACCURACY, 4, 0, 0, B, "accuracy"),
};

#define TENSOR(n, t, r, d0, d1)                                                \
    {                                                                          \
        .name = n, .dtype = t, .rank = r, .dim = {d0, d1},                     \
        .sample_rows = (d0) == B                                               \
    }
static const PlanTensor tensors[] = {
    /* 0 inputs */
    TENSOR("x", AMPC_F32, 2, B, I),
    TENSOR("target", AMPC_F32, 2, B, O),
    /* 2 train, update */
    TENSOR("ampc.loss", AMPC_F32, 0, 0, 0),
    TENSOR("ampc.grad_norm", AMPC_F32, 0, 0, 0),
    TENSOR("ampc.scale", AMPC_F32, 0, 0, 0),
    TENSOR("ampc.lr", AMPC_F32, 0, 0, 0),
    TENSOR("ampc.applied", AMPC_BOOL, 0, 0, 0),
    TENSOR("ampc.step", AMPC_I64, 0, 0, 0),
    /* 8 eval */
    TENSOR("ampc.loss_num", AMPC_F32, 1, B, 0),
    TENSOR("ampc.loss_den", AMPC_F32, 1, B, 0),
    TENSOR("y/out", AMPC_F32, 2, B, O),
    /* 11 predict */
    TENSOR("y/out", AMPC_F32, 2, B, O),
    /* 12 micro */
    TENSOR("ampc.loss", AMPC_F32, 0, 0, 0),
    /* 13 labels */
    TENSOR("x", AMPC_F32, 2, B, I),
    TENSOR("target", AMPC_I64, 1, B, 0),
    /* 15 eval with labels */
    TENSOR("ampc.loss_num", AMPC_F32, 1, B, 0),
    TENSOR("ampc.loss_den", AMPC_F32, 1, B, 0),
    TENSOR("ampc.correct", AMPC_F32, 1, B, 0),
    TENSOR("ampc.count", AMPC_F32, 1, B, 0),
    TENSOR("y/out", AMPC_F32, 2, B, O),
};

static const PlanProgram programs[] = {
    {"train", 0, 2, 2, 6},
    {"eval", 0, 2, 8, 3},
    {"predict", 0, 1, 11, 1},
    {"refresh", 0, 0, 0, 0},
};
static const PlanRun programs_runs[] = {
    {0, 5, R_OUT + 0, 0, ARENA_BYTES, 0, 0},
    {5, 2, R_OUT + 6, 0, ARENA_BYTES, 0, 0},
    {7, 2, R_OUT + 9, 0, ARENA_BYTES, 0, 0},
    {9, 1, 0, 0, 0, 0, 0},
};
static const PlanProgram accumulating[] = {
    {"micro", 0, 2, 12, 1},   {"update", 0, 0, 2, 6},  {"eval", 0, 2, 8, 3},
    {"predict", 0, 1, 11, 1}, {"refresh", 0, 0, 0, 0},
};
static const PlanRun accumulating_runs[] = {
    {10, 4, R_OUT + 10, 0, ARENA_BYTES, 0, 0},
    {14, 2, R_OUT + 0, 0, ARENA_BYTES, 0, 0},
    {5, 2, R_OUT + 6, 0, ARENA_BYTES, 0, 0},
    {7, 2, R_OUT + 9, 0, ARENA_BYTES, 0, 0},
    {9, 1, 0, 0, 0, 0, 0},
};
static const PlanProgram labels[] = {
    {"train", 13, 2, 2, 6},
    {"eval", 13, 2, 15, 5},
    {"predict", 13, 1, 11, 1},
    {"refresh", 0, 0, 0, 0},
};
static const PlanRun labels_runs[] = {
    {16, 6, R_OUT + 0, 0, ARENA_BYTES, 0, 0},
    {22, 4, R_OUT + 13, 0, ARENA_BYTES, 0, 0},
    {7, 2, R_OUT + 9, 0, ARENA_BYTES, 0, 0},
    {9, 1, 0, 0, 0, 0, 0},
};

#define COUNT(a) (uint32_t)(sizeof(a) / sizeof *(a))
#define PLAN(name)                                                             \
    static const PlanTarget name##_plan = {.nstep = COUNT(steps),              \
                                           .nref = R_COUNT,                    \
                                           .npar = COUNT(pars),                \
                                           .runs = name##_runs,                \
                                           .steps = steps,                     \
                                           .refs = refs,                       \
                                           .pars = pars}
PLAN(programs);
PLAN(accumulating);
PLAN(labels);

#define MODULE(text, hash, progs)                                              \
    {                                                                          \
        .version = AMPC_PLAN_VERSION, .model = "tiny", .info = text,           \
        .graph_hash = hash, .nprogram = COUNT(progs), .nvar = V_COUNT,         \
        .ntensor = COUNT(tensors), .nisa = 1, .programs = progs, .vars = vars, \
        .tensors = tensors, .cpu = &progs##_plan, .isas = isas                 \
    }
/* The compiler's note on the model and the options. */
#define SAID(model)                                                            \
    "\"said\":{\"the model\":\"" model "\",\"--optimizer\":\"sgd,lr=0.1\"}"
const AmpcModule tiny_module =
    MODULE("{\"accumulate\":1," SAID("1") "}", 0x1234, programs);
const AmpcModule tiny_accumulating =
    MODULE("{\"accumulate\":2}", 0x1234, accumulating);
const AmpcModule tiny_other = MODULE("{" SAID("2") "}", 0x9999, programs);
const AmpcModule tiny_labels = MODULE("{}", 0x1234, labels);

const ampc_module_t *tiny_handle(const AmpcModule *m) {
    return (const ampc_module_t *)(const void *)m;
}

const ampc_api *tiny_api(void) {
    return ampc_module_api(&tiny_module, AMPC_ABI_VERSION);
}

void tiny_batch(int i, float x[TINY_BATCH * TINY_IN],
                float target[TINY_BATCH * TINY_OUT]) {
    uint32_t r = (uint32_t)i * 2654435761u + 1;
    for (int b = 0; b < B; b++) {
        for (int k = 0; k < I; k++) {
            r = r * 1664525u + 1013904223u;
            x[b * I + k] = (float)(r >> 8) / 16777216.0f - 0.5f;
        }
        target[b * O] = x[b * I] - 2 * x[b * I + 1] + 0.5f;
        target[b * O + 1] = x[b * I + 2] * 3 - 1;
    }
}
