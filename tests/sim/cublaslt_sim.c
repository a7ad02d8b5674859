/* SPDX-License-Identifier: Apache-2.0 */
/* cublaslt_sim.c: the functions of libcublasLt that runtime/cuda/cublaslt.def
   names.

   Attributes behave as in the real library (measured with 13.1): an unknown
   name, a wrong size or NULL is INVALID_VALUE; values are checked when a
   product is requested. Algorithms contain version and problem; those of
   another version or problem are refused. AMPC_SIM_BLAS_VERSION changes the
   version (default 130100).                                                  */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "tests/sim/cublaslt_sim.h"
#include "tests/sim/sim.h"

#define EXPORT __attribute__((visibility("default")))

/* The exported functions have the prototypes of the .def file. */
#define LT(member, symbol, parameters) typedef int Lt##member##Fn parameters;
#include "runtime/cuda/cublaslt.def"
#undef LT
EXPORT LtCreateFn cublasLtCreate;
EXPORT LtDestroyFn cublasLtDestroy;
EXPORT LtDescCreateFn cublasLtMatmulDescCreate;
EXPORT LtDescDestroyFn cublasLtMatmulDescDestroy;
EXPORT LtDescSetFn cublasLtMatmulDescSetAttribute;
EXPORT LtLayoutCreateFn cublasLtMatrixLayoutCreate;
EXPORT LtLayoutDestroyFn cublasLtMatrixLayoutDestroy;
EXPORT LtLayoutSetFn cublasLtMatrixLayoutSetAttribute;
EXPORT LtPrefCreateFn cublasLtMatmulPreferenceCreate;
EXPORT LtPrefDestroyFn cublasLtMatmulPreferenceDestroy;
EXPORT LtPrefSetFn cublasLtMatmulPreferenceSetAttribute;
EXPORT LtHeuristicFn cublasLtMatmulAlgoGetHeuristic;
EXPORT LtAlgoCheckFn cublasLtMatmulAlgoCheck;
EXPORT LtMatmulFn cublasLtMatmul;
EXPORT size_t cublasLtGetVersion(void);

struct LtHandle_st {
    int device;
};

/* Counts a call and returns if a failure was requested. */
#define ENTER()                                                                \
    do {                                                                       \
        int injected_ = sim_entered(__func__);                                 \
        if (injected_)                                                         \
            return injected_ == SIM_LEFT_OUT ? LT_SUCCESS : injected_;         \
    } while (0)

static int create(void **out, size_t size) {
    if (!out) return LT_INVALID_VALUE;
    *out = calloc(1, size);
    return *out ? LT_SUCCESS : LT_ALLOC_FAILED;
}

static int set_field(void *field, size_t want, const void *value, size_t size) {
    if (!value || size != want) return LT_INVALID_VALUE;
    memcpy(field, value, size);
    return LT_SUCCESS;
}

/* ---- objects ------------------------------------------------------------- */

size_t cublasLtGetVersion(void) {
    const char *s = getenv("AMPC_SIM_BLAS_VERSION");
    return s && *s ? strtoul(s, NULL, 10) : 130100;
}

int cublasLtCreate(LtHandle *h) {
    ENTER();
    if (sim_current_device() < 0) return LT_NOT_INITIALIZED;
    int s = create((void **)h, sizeof **h);
    if (s == LT_SUCCESS) (*h)->device = sim_current_device();
    return s;
}

int cublasLtDestroy(LtHandle h) {
    ENTER();
    free(h);
    return LT_SUCCESS;
}

int cublasLtMatmulDescCreate(LtDesc *d, int compute_type, int scale_type) {
    ENTER();
    int s = create((void **)d, sizeof **d);
    if (s != LT_SUCCESS) return s;
    (*d)->compute = compute_type;
    (*d)->scale = scale_type;
    (*d)->epilogue = LT_EPILOGUE_DEFAULT;
    return LT_SUCCESS;
}

int cublasLtMatmulDescDestroy(LtDesc d) {
    ENTER();
    free(d);
    return LT_SUCCESS;
}

int cublasLtMatmulDescSetAttribute(LtDesc d, int attribute, const void *value,
                                   size_t size) {
    ENTER();
    if (!d) return LT_INVALID_VALUE;
    switch (attribute) {
    case LT_DESC_POINTER_MODE:
        return set_field(&d->pointer_mode, 4, value, size);
    case LT_DESC_TRANSA: return set_field(&d->transa, 4, value, size);
    case LT_DESC_TRANSB: return set_field(&d->transb, 4, value, size);
    case LT_DESC_EPILOGUE: return set_field(&d->epilogue, 4, value, size);
    case LT_DESC_BIAS_POINTER: return set_field(&d->bias, 8, value, size);
    case LT_DESC_AUX_POINTER: return set_field(&d->aux, 8, value, size);
    case LT_DESC_AUX_LD: return set_field(&d->aux_ld, 8, value, size);
    case LT_DESC_A_SCALE_POINTER:
        return set_field(&d->scales[0], 8, value, size);
    case LT_DESC_B_SCALE_POINTER:
        return set_field(&d->scales[1], 8, value, size);
    case LT_DESC_A_SCALE_MODE: return set_field(&d->mode[0], 4, value, size);
    case LT_DESC_B_SCALE_MODE: return set_field(&d->mode[1], 4, value, size);
    default: return LT_INVALID_VALUE;
    }
}

int cublasLtMatrixLayoutCreate(LtLayout *l, int type, uint64_t rows,
                               uint64_t cols, int64_t ld) {
    ENTER();
    int s = create((void **)l, sizeof **l);
    if (s != LT_SUCCESS) return s;
    **l = (struct LtLayout_st){.type = type,
                               .order = LT_ORDER_COL,
                               .batch = 1,
                               .rows = rows,
                               .cols = cols,
                               .ld = ld};
    return LT_SUCCESS;
}

int cublasLtMatrixLayoutDestroy(LtLayout l) {
    ENTER();
    free(l);
    return LT_SUCCESS;
}

int cublasLtMatrixLayoutSetAttribute(LtLayout l, int attribute,
                                     const void *value, size_t size) {
    ENTER();
    if (!l) return LT_INVALID_VALUE;
    switch (attribute) {
    case LT_LAYOUT_ORDER: return set_field(&l->order, 4, value, size);
    case LT_LAYOUT_BATCH_COUNT: return set_field(&l->batch, 4, value, size);
    case LT_LAYOUT_BATCH_STRIDE: return set_field(&l->stride, 8, value, size);
    default: return LT_INVALID_VALUE;
    }
}

int cublasLtMatmulPreferenceCreate(LtPref *p) {
    ENTER();
    int s = create((void **)p, sizeof **p);
    if (s != LT_SUCCESS) return s;
    **p = (struct LtPref_st){
        .workspace = 0, .reductions = 7, .align = {256, 256, 256, 256}};
    return LT_SUCCESS;
}

int cublasLtMatmulPreferenceDestroy(LtPref p) {
    ENTER();
    free(p);
    return LT_SUCCESS;
}

int cublasLtMatmulPreferenceSetAttribute(LtPref p, int attribute,
                                         const void *value, size_t size) {
    ENTER();
    if (!p) return LT_INVALID_VALUE;
    switch (attribute) {
    case LT_PREF_MAX_WORKSPACE: return set_field(&p->workspace, 8, value, size);
    case LT_PREF_REDUCTION_MASK:
        return set_field(&p->reductions, 4, value, size);
    case LT_PREF_ALIGN_A:
    case LT_PREF_ALIGN_B:
    case LT_PREF_ALIGN_C:
    case LT_PREF_ALIGN_D:
        return set_field(&p->align[attribute - LT_PREF_ALIGN_A], 4, value,
                         size);
    default: return LT_INVALID_VALUE;
    }
}

/* ---- algorithms ---------------------------------------------------------- */

enum { ALGO_MARK, ALGO_VERSION, ALGO_KIND, ALGO_PROBLEM };
static const uint64_t mark = UINT64_C(0x6f676c612d6d6973); /* "sim-algo" */

static uint64_t mix(uint64_t h, uint64_t v) {
    return (h ^ v) * UINT64_C(1099511628211);
}

/* A hash of everything that an algorithm depends on: everything except
   addresses. */
static uint64_t problem_hash(const LtProblem *p) {
    uint64_t h = UINT64_C(14695981039346656037);
    const struct LtDesc_st *d = &p->desc;
    h = mix(mix(h, (uint64_t)d->compute), (uint64_t)d->scale);
    h = mix(mix(h, (uint64_t)d->pointer_mode), d->epilogue);
    h = mix(h, (uint64_t)d->aux_ld);
    h = mix(mix(h, (uint64_t)d->transa), (uint64_t)d->transb);
    h = mix(mix(h, (uint64_t)d->mode[0]), (uint64_t)d->mode[1]);
    for (int i = 0; i < 4; i++) {
        const struct LtLayout_st *m = &p->m[i];
        h = mix(mix(h, (uint64_t)m->type), (uint64_t)m->batch);
        h = mix(mix(h, m->rows), m->cols);
        h = mix(mix(h, (uint64_t)m->ld), (uint64_t)m->stride);
    }
    return h;
}

static LtAlgo algo_make(int kind, const LtProblem *p) {
    LtAlgo a = {{0}};
    a.data[ALGO_MARK] = mark;
    a.data[ALGO_VERSION] = cublasLtGetVersion();
    a.data[ALGO_KIND] = (uint64_t)kind;
    a.data[ALGO_PROBLEM] = problem_hash(p);
    return a;
}

static int algo_check(const LtAlgo *a, const LtProblem *p) {
    if (a->data[ALGO_MARK] != mark || a->data[ALGO_KIND] >= LT_NKIND)
        return LT_INVALID_VALUE;
    if (a->data[ALGO_VERSION] != cublasLtGetVersion()) return LT_NOT_SUPPORTED;
    if (a->data[ALGO_PROBLEM] != problem_hash(p)) return LT_INVALID_VALUE;
    return lt_kind_fits((int)a->data[ALGO_KIND], p) ? LT_SUCCESS
                                                    : LT_NOT_SUPPORTED;
}

static void describe(int kind, const LtProblem *p, LtHeuristic *out) {
    out->workspace = lt_kind_workspace(kind, p);
    out->state = LT_SUCCESS;
    out->waves = 1.0f / (float)(kind + 1);
}

/* Reads AMPC_SIM_REFUSE: no algorithms for "epilogues", for "gelu" among them,
   or for "products", or a status that the heuristic returns. */
static int answer(void) {
    const char *what = getenv("AMPC_SIM_REFUSE");
    return what ? atoi(what) : LT_SUCCESS;
}

static bool refuses(const LtProblem *p) {
    const char *what = getenv("AMPC_SIM_REFUSE");
    if (!what) return false;
    return !strcmp(what, "products") || (!strcmp(what, "gelu") && lt_gelu(p)) ||
           (!strcmp(what, "epilogues") &&
            (p->desc.epilogue != LT_EPILOGUE_DEFAULT ||
             p->desc.pointer_mode != LT_POINTER_HOST));
}

static bool preferred(int kind, const LtProblem *p, const struct LtPref_st *f) {
    uint32_t scheme = lt_kind_reduction(kind);
    if (refuses(p)) return false;
    if (!lt_kind_fits(kind, p) || lt_kind_workspace(kind, p) > f->workspace)
        return false;
    for (int i = 0; i < 4; i++)
        if (f->align[i] % lt_kind_align(kind, p->m[i].type)) return false;
    return !scheme || scheme & f->reductions;
}

static int problem_of(LtHandle h, LtDesc d, LtLayout a, LtLayout b, LtLayout c,
                      LtLayout out, LtProblem *p) {
    if (!h || !d || !a || !b || !c || !out) return LT_INVALID_VALUE;
    *p = (LtProblem){*d, {*a, *b, *c, *out}};
    return LT_SUCCESS;
}

int cublasLtMatmulAlgoGetHeuristic(LtHandle h, LtDesc d, LtLayout a, LtLayout b,
                                   LtLayout c, LtLayout out, LtPref p,
                                   int wanted, LtHeuristic *result,
                                   int *found) {
    ENTER();
    LtProblem problem;
    const char *why;
    if (!p || !result || !found || wanted < 1) return LT_INVALID_VALUE;
    *found = 0;
    int s = problem_of(h, d, a, b, c, out, &problem);
    if (s == LT_SUCCESS) s = lt_check_problem(&problem, &why);
    if (s == LT_SUCCESS) s = answer();
    if (s == LT_SUCCESS && sim_captures()) s = LT_INTERNAL_ERROR; /* 13.3 */
    if (s != LT_SUCCESS) return s;
    for (int kind = 0; kind < LT_NKIND && *found < wanted; kind++)
        if (preferred(kind, &problem, p)) {
            LtHeuristic *r = &result[(*found)++];
            memset(r, 0, sizeof *r);
            r->algo = algo_make(kind, &problem);
            describe(kind, &problem, r);
        }
    return LT_SUCCESS;
}

int cublasLtMatmulAlgoCheck(LtHandle h, LtDesc d, LtLayout a, LtLayout b,
                            LtLayout c, LtLayout out, const LtAlgo *algo,
                            LtHeuristic *result) {
    ENTER();
    LtProblem problem;
    const char *why;
    if (!algo || !result) return LT_INVALID_VALUE;
    int s = problem_of(h, d, a, b, c, out, &problem);
    if (s == LT_SUCCESS) s = lt_check_problem(&problem, &why);
    if (s == LT_SUCCESS) s = algo_check(algo, &problem);
    if (s == LT_SUCCESS) describe((int)algo->data[ALGO_KIND], &problem, result);
    return s;
}

/* ---- the product --------------------------------------------------------- */

/* Without an algorithm the library asks its heuristic itself. */
static int default_kind(const LtProblem *p, size_t workspace) {
    struct LtPref_st f = {
        .workspace = workspace, .reductions = 7, .align = {256, 256, 256, 256}};
    for (int kind = 0; kind < LT_NKIND; kind++)
        if (preferred(kind, p, &f)) return kind;
    return LT_KIND_LOOSE;
}

static double host_scalar(int type, const void *at) {
    float f;
    double d;
    if (type == LT_R_64F) return memcpy(&d, at, 8), d;
    return memcpy(&f, at, 4), f;
}

static void take_scalars(LtCall *call, const void *alpha, const void *beta) {
    if (call->p.desc.pointer_mode == LT_POINTER_DEVICE) {
        call->alpha_at = (uint64_t)(uintptr_t)alpha;
        call->beta_at = (uint64_t)(uintptr_t)beta;
        return;
    }
    call->alpha = host_scalar(call->p.desc.scale, alpha);
    call->beta = host_scalar(call->p.desc.scale, beta);
}

static int check(LtCall *call, const LtAlgo *algo, const void *alpha,
                 const void *beta) {
    const char *why = "an algorithm of another version or problem";
    int s = lt_check_problem(&call->p, &why);
    if (s == LT_SUCCESS && algo) s = algo_check(algo, &call->p);
    if (s == LT_SUCCESS) {
        take_scalars(call, alpha, beta);
        call->kind = algo ? (int)algo->data[ALGO_KIND]
                          : default_kind(&call->p, call->workspace_bytes);
        s = lt_check_call(call, &why);
    }
    if (s != LT_SUCCESS) sim_violation("cublasLtMatmul: %s", why);
    return s;
}

static int enqueue(const LtCall *call, CUstream s) {
    LtCall *copy = malloc(sizeof *copy);
    if (!copy) return LT_ALLOC_FAILED;
    *copy = *call;
    return sim_enqueue(s, "cublasLtMatmul", lt_product, copy, free)
               ? LT_EXECUTION_FAILED
               : LT_SUCCESS;
}

int cublasLtMatmul(LtHandle h, LtDesc d, const void *alpha, const void *a,
                   LtLayout la, const void *b, LtLayout lb, const void *beta,
                   const void *c, LtLayout lc, void *out, LtLayout lout,
                   const LtAlgo *algo, void *workspace, size_t workspace_bytes,
                   CUstream s) {
    ENTER();
    LtCall call = {.workspace = (uint64_t)(uintptr_t)workspace,
                   .workspace_bytes = workspace_bytes};
    if (problem_of(h, d, la, lb, lc, lout, &call.p) || !alpha || !beta) {
        sim_violation("cublasLtMatmul: a NULL argument");
        return LT_INVALID_VALUE;
    }
    const void *at[] = {a, b, c, out};
    for (int i = 0; i < 4; i++) call.at[i] = (uint64_t)(uintptr_t)at[i];
    int status = check(&call, algo, alpha, beta);
    return status == LT_SUCCESS ? enqueue(&call, s) : status;
}
