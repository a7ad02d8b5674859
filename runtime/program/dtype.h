/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.h: the table of element types (dtypes.def), and floating numbers of any
   width. */
#ifndef AMPC_DTYPE_H
#define AMPC_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/program/half.h"

#define AMPC_MAX_RANK 8

/* Files store the numbers of the rows. */
typedef enum AmpcDtype {
#define DTYPE(E, ...) AMPC_##E,
#include "runtime/program/dtypes.def"
    AMPC_NDTYPE
} AmpcDtype;

/* How a GPU reads the fp32 operands of a product (--matmul-precision); sums
   are fp32. */
typedef enum AmpcFactors {
    AMPC_FACTORS_F32,
    AMPC_FACTORS_TF32, /* rounded to 11 significant bits */
    AMPC_FACTORS_BF16, /* rounded to bf16 */
    AMPC_NFACTORS
} AmpcFactors;

/* Factors that tensor cores multiply (runtime/cuda/archs.def). */
enum {
    TENSOR_F16 = 1,
    TENSOR_BF16 = 2,
    TENSOR_TF32 = 4,
    TENSOR_F8 = 8,
    TENSOR_MX = 16 /* f8 with scales of blocks (blocks.h) */
};

typedef enum DKind { DK_B, DK_U, DK_I, DK_F } DKind; /* bool, unsigned, ... */

typedef struct DTypeInfo {
    const char *text;  /* "bf16" */
    const char *macro; /* "BF16": part of the names of macros in kernels */
    const char *c;     /* type that stores it in C */
    const char *cuda;  /* ... and in CUDA */
    int bytes;
    DKind kind;
    bool low;           /* low: computed in fp32, rounded when stored */
    bool stored;        /* a low one that only casts read or write */
    bool shuffled;      /* shuffled: vectors are converted in another order;
                           kmath_narrow.h has PACK_E, and GET_E, PUT_E, STORE_E for
                           memory order */
    AmpcDtype compute;  /* type of arithmetic on it */
    int mantissa;       /* significant bits */
    double most, least; /* floating: the largest number, and the smallest
                           normal one */
    int onnx;           /* TensorProto.DataType */
    const char *safetensors, *npy; /* NumPy's letter, without the byte order;
                                      NULL: none */
    const char *numpy, *buffer;    /* names of NumPy and of Python's buffers */
    int idx;                       /* type byte of IDX files; 0: none */
    int cublaslt, nccl; /* 1 + cudaDataType_t, ncclDataType_t; 0, -1: none */
    unsigned tensor;    /* what tensor cores must multiply; 0: nothing */
    const char *state;  /* word of --state-dtype; NULL: none. State in a type
                           of 8 bits is codes of blocks with a scale each */
} DTypeInfo;
extern const DTypeInfo dtype_info[AMPC_NDTYPE];

size_t dtype_bytes(uint32_t dtype); /* 0: no such dtype */
const char *dtype_name(uint32_t dtype);
bool is_float_dtype(uint32_t dtype);
/* Bytes of a dense array; false on overflow or a bad dtype, rank or dim. */
bool dense_bytes(uint32_t dtype, uint32_t rank, const int64_t *dim,
                 uint64_t *bytes);
/* "f32[64,10]" */
const char *shape_text(char buf[160], uint32_t dtype, uint32_t rank,
                       const int64_t *dim);
/* "; its axes in the order (0, 3, 1, 2) would fit" if that is true, ignoring
   axes of length 1, else "". samples: the first axis of `want` may have any
   size, and the others may be merged into one axis of `have`, or the
   reverse. */
const char *axes_hint(char buf[160], uint32_t rank, const int64_t *have,
                      uint32_t want_rank, const int64_t *want, bool samples);

/* For floating dtypes. 16-bit types are rounded from f32. float_put returns
   false if a finite number became infinite. */
double float_at(uint32_t dtype, const void *p);
bool float_put(uint32_t dtype, double x, void *p);
/* x as an element of any dtype that has it. */
void number_put(uint32_t dtype, double x, void *p);
/* Copies what two dense arrays have in common at their first corner. One of
   them is on no axis longer than the other; each: bytes of an element. */
void corner_copy(char *to, const int64_t *to_dim, const char *from,
                 const int64_t *from_dim, uint32_t rank, size_t each);

/* dtype: a low one. */
static inline float half_to_f32(uint32_t dtype, uint16_t h) {
    switch (dtype) {
#define LOW(E, text, C, ...)                                                   \
    case AMPC_##E:                                                             \
        return text##_to_f32((C)h);
#include "runtime/program/dtypes.def"
    default: __builtin_unreachable();
    }
}

static inline uint16_t half_of_f32(uint32_t dtype, float f) {
    switch (dtype) {
#define LOW(E, text, C, ...)                                                   \
    case AMPC_##E:                                                             \
        return f32_to_##text(f);
#include "runtime/program/dtypes.def"
    default: __builtin_unreachable();
    }
}

#endif
