/* SPDX-License-Identifier: Apache-2.0 */
/* cublaslt_sim.h: the look-alike of libcublasLt in three files.

   cublaslt_sim.c      the exported functions, attributes, algorithms
   cublaslt_check.c    what the library demands of a product
   cublaslt_product.c  the product itself, run when its stream gets to it    */
#ifndef AMPC_SIM_CUBLASLT_H
#define AMPC_SIM_CUBLASLT_H

#include <stdbool.h>

#include "runtime/cuda/driver.h"

struct LtLayout_st {
    int type, order, batch;
    uint64_t rows, cols;
    int64_t ld, stride; /* elements; stride: from matrix to matrix */
};

struct LtDesc_st {
    int compute, scale, pointer_mode, transa, transb;
    uint32_t epilogue;
    uint64_t bias, aux; /* device addresses */
    int64_t aux_ld;
    int mode[2];        /* of the scales of a and b */
    uint64_t scales[2]; /* device addresses: of a float, or of a byte for each
                          32 elements along k; 0: 1 */
};

struct LtPref_st {
    uint64_t workspace;
    uint32_t reductions, align[4]; /* alignment of a, b, c, d in bytes */
};

/* One product with everything by value, since the caller may change or
   destroy its descriptors before the stream runs it. */
typedef struct LtProblem {
    struct LtDesc_st desc;
    struct LtLayout_st m[4]; /* a, b, c, d */
} LtProblem;

typedef struct LtCall {
    LtProblem p;
    uint64_t at[4]; /* a, b, c, d */
    double alpha, beta;
    uint64_t alpha_at, beta_at; /* LT_POINTER_DEVICE */
    uint64_t workspace;
    size_t workspace_bytes;
    int kind; /* LtKind */
} LtCall;

/* Ways to sum over k, so that algorithms can be distinguished by their bits. */
typedef enum LtKind {
    LT_KIND_OUTPUT,  /* 3 parts, rounded to D's type in the workspace */
    LT_KIND_PLAIN,   /* one sum in order                              */
    LT_KIND_COMPUTE, /* 2 parts in the workspace                      */
    LT_KIND_INPLACE, /* 4 parts, counters in the workspace            */
    LT_KIND_LOOSE,   /* 8 interleaved sums; any alignment             */
    LT_NKIND
} LtKind;

size_t lt_type_size(int type);
/* True if fp32 operands are rounded before they are multiplied. */
bool lt_is_fast(int compute);
/* Numbers of 8 bits: e4m3, e5m2. */
static inline bool lt_is_eight(int type) {
    return type == LT_R_8F_E4M3 || type == LT_R_8F_E5M2;
}
static inline int lt_is_half(int type) {
    return type == LT_R_16F || type == LT_R_16BF;
}
static inline bool lt_has_bias(const LtProblem *p) {
    return p->desc.epilogue & 4;
}
static inline uint64_t lt_k(const LtProblem *p) {
    return p->desc.transa ? p->m[0].rows : p->m[0].cols;
}
/* GELU, or its slope. */
static inline bool lt_gelu(const LtProblem *p) {
    return p->desc.epilogue & (LT_EPILOGUE_GELU | LT_EPILOGUE_AUX);
}
/* The operand of GELU, or of its gradient, is in memory. */
static inline bool lt_has_aux(const LtProblem *p) {
    return p->desc.epilogue & LT_EPILOGUE_AUX;
}
/* True if operands have a scale for each 32 elements. */
static inline bool lt_has_blocks(const LtProblem *p) {
    return p->desc.mode[0] == LT_SCALE_VEC32_UE8M0;
}
/* The bytes of the scales of operand `which`, and where that of element k of
   line i lies. */
uint64_t lt_block_bytes(const LtProblem *p, int which);
uint64_t lt_block_at(const LtProblem *p, uint64_t i, uint64_t k);
/* Bytes from the first to the last element of all matrices of a layout. */
uint64_t lt_extent(const struct LtLayout_st *m);

/* LT_SUCCESS, or another status and the reason in *why. */
int lt_check_problem(const LtProblem *p, const char **why);
/* True if an algorithm of that kind can compute it. */
bool lt_kind_fits(int kind, const LtProblem *p);
/* Bytes of workspace that it needs, and the alignment of pointers and
   columns. */
size_t lt_kind_workspace(int kind, const LtProblem *p);
uint32_t lt_kind_align(int kind, int type);
/* Reduction scheme (LT_REDUCTION_*), 0: none. */
uint32_t lt_kind_reduction(int kind);
/* The call's addresses: ranges, alignment, overlap. */
int lt_check_call(const LtCall *c, const char **why);
/* On the device: what is in the scales of blocks. */
int lt_check_tails(const LtCall *c, const char **why);

int lt_product(void *call); /* an LtCall; a CUresult */

#endif
