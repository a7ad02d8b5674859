/* SPDX-License-Identifier: Apache-2.0 */
/* lib.h: parameters of the library routines, and lib.def as data. */
#ifndef AMPC_LIB_H
#define AMPC_LIB_H

#include "runtime/program/plan.h"

/* ---- parameters ---------------------------------------------------------- */

#define NUMBER(f)   int64_t f;
#define SPATIAL(f)  int64_t f[3];
#define RANKS(f)    int64_t f[AMPC_MAX_RANK];
#define DTYPE(f, T) int64_t f;
#define PARAMS(S, fields)                                                      \
    typedef struct S {                                                         \
        fields                                                                 \
    } S;
#include "runtime/program/lib.def"
#undef NUMBER
#undef SPATIAL
#undef RANKS
#undef DTYPE

/* Room for the parameters of any routine. */
typedef union LibParams {
#define PARAMS(S, fields) S as_##S;
#include "runtime/program/lib.def"
} LibParams;

/* The AmpcFactors of a PLAN_PRODUCT. */
static inline int64_t plan_factors(const PlanTarget *p, const PlanStep *t) {
    const uint32_t exact = sizeof(LibGemm) / sizeof(int64_t);
    return t->kind == PLAN_PRODUCT && t->npar > exact ? p->pars[t->par0 + exact]
                                                      : AMPC_FACTORS_F32;
}

/* The convolution without its sums. */
static inline const LibConv *conv_of_sums(const LibConvSums *p) {
    return (const void *)p;
}

static inline const LibConv *conv_of_dgrad_sums(const LibConvDgradSums *p) {
    return (const void *)p;
}

/* A number of 4 bytes is a parameter through its bits. */
static inline float lib_float(int64_t bits) {
    union {
        uint32_t u;
        float f;
    } x = {(uint32_t)bits};
    return x.f;
}

static inline int64_t lib_bits(float f) {
    union {
        float f;
        uint32_t u;
    } x = {f};
    return x.u;
}

/* True for the numbers of 8 bits that cuBLASLt multiplies. */
static inline int lib_is_eight(int64_t dtype) {
    return dtype == AMPC_F8E4M3 || dtype == AMPC_F8E5M2;
}

static inline int64_t lib_volume(const int64_t *v) {
    return v[0] * v[1] * v[2];
}

/* ---- the table ----------------------------------------------------------- */

/* Sets of dtypes, as lib.def names them: bit 1 << AmpcDtype. */
enum {
    LIB_I32 = 1 << AMPC_I32,
    LIB_I64 = 1 << AMPC_I64,
    LIB_F32 = 1 << AMPC_F32,
    LIB_BOOL = 1 << AMPC_BOOL,
    LIB_TAP = 1 << AMPC_I8 | 1 << AMPC_I32,
    LIB_BYTE = 1 << AMPC_U8 | 1 << AMPC_I8,
    LIB_WEIGHT = LIB_BYTE | LIB_F32,
    LIB_INT = 1 << AMPC_U8 | 1 << AMPC_I8 | 1 << AMPC_U16 | 1 << AMPC_I16 |
              1 << AMPC_U32 | 1 << AMPC_I32 | 1 << AMPC_U64 | 1 << AMPC_I64,
    LIB_LOW = 1 << AMPC_F16 | 1 << AMPC_BF16,
    LIB_FLOAT32 = LIB_LOW | 1 << AMPC_F32,
    LIB_FLOAT = LIB_FLOAT32 | 1 << AMPC_F64,
    LIB_FACTOR = LIB_FLOAT | 1 << AMPC_F8E4M3 | 1 << AMPC_F8E5M2, /* on GPUs */
    LIB_NUMERIC = LIB_INT | LIB_FLOAT,
    LIB_ANY = (1 << AMPC_NDTYPE) - 1
};

typedef enum LibRole {
    LIB_ROLE_IN,
    LIB_ROLE_OPT_IN,
    LIB_ROLE_OUT,
    LIB_ROLE_OPT_OUT,
    LIB_ROLE_RESULT
} LibRole;

typedef struct LibOperand {
    const char *name;
    LibRole role;
    uint32_t dtypes;   /* set                                               */
    uint32_t dtype_at; /* index of its dtype among the parameters */
} LibOperand;

/* A field of the parameters; earlier fields take up the positions before it. */
typedef struct LibField {
    const char *name;
    const char *type; /* DTYPE: the type's name in CUDA, else NULL */
    uint32_t n;       /* int64_t of it                                      */
} LibField;

typedef struct LibInfo {
    const char *name;      /* gemm                                          */
    const char *plan_name; /* PLAN_LIB_GEMM                                 */
    uint32_t npar, noperand, nfield;
    const LibOperand *operands;
    const LibField *fields;
} LibInfo;

/* NULL if the number is not a routine. */
const LibInfo *lib_info(uint32_t lib);

static inline int lib_writes(const LibInfo *l, int operand) {
    return l->operands[operand].role > LIB_ROLE_OPT_IN;
}

#endif
