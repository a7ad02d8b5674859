/* SPDX-License-Identifier: Apache-2.0 */
/* type.h: interned tensor types.  Equal type, equal TypeId.  Shapes are
   static; a dimension may be 0; rank 0 is a scalar. */
#ifndef AMPC_IR_GRAPH_TYPE_H
#define AMPC_IR_GRAPH_TYPE_H

#include "ir/base/base.h"

#define MAX_RANK 8
/* So that bytes of some, and strides, are far from overflowing. */
#define MAX_ELEMENTS ((int64_t)1 << 40)

typedef enum DType {
#define DTYPE(E, text, bytes, kind, c, onnx, mant) DT_##E,
#include "ir/graph/dtypes.def"
#undef DTYPE
    NUM_DTYPES
} DType;

typedef enum DKind { DK_B, DK_U, DK_I, DK_F } DKind;

typedef struct DTypeInfo {
    const char *text; /* "bf16" */
    int bytes;
    DKind kind;
    const char *c; /* storage type in C */
    int onnx;      /* TensorProto.DataType */
    int mantissa;  /* significant bits */
} DTypeInfo;
extern const DTypeInfo dtype_info[NUM_DTYPES];

bool dtype_from_text(const char *s, size_t n, DType *out);
bool dtype_from_onnx(int code, DType *out);
static inline bool dtype_is_float(DType d) {
    return dtype_info[d].kind == DK_F;
}
static inline bool dtype_is_int(DType d) {
    return dtype_info[d].kind == DK_I || dtype_info[d].kind == DK_U;
}
/* Whether an integer dtype or bool has v. */
bool dtype_holds(DType d, int64_t v);
static inline bool dtype_is_16(DType d) { return d == DT_F16 || d == DT_BF16; }

/* The arithmetic dtype of a float op: F64 if any is F64, else F32. */
DType dtype_compute(DType a, DType b);
/* Widest of two operands of one kind: F64 > F32 > (BF16|F16); the two 16-bit
   types together give F32.  Integers: the larger. */
DType dtype_promote(DType a, DType b);

typedef struct Type {
    DType dtype;
    int rank;
    int64_t dim[MAX_RANK]; /* unused entries are 0 */
} Type;

typedef struct TypeId {
    uint32_t i;
} TypeId; /* 0 = none */

/* Interned in a process-wide table (types are few). */
TypeId type_make(DType dtype, int rank, const int64_t *dim);
TypeId type_scalar(DType dtype);
TypeId type_with_dtype(TypeId t, DType dtype);
const Type *type_get(TypeId t);

int64_t type_count(const Type *t); /* elements; types never overflow: the
                                      maker checks against INT64_MAX/16      */
int64_t type_bytes(const Type *t);
bool shape_equal(const Type *a, const Type *b);
/* numpy broadcasting of shapes (dtype of `out` untouched); false: mismatch */
bool shape_broadcast(const Type *a, const Type *b, Type *out);
/* Row-major element strides. */
void shape_strides(const Type *t, int64_t *stride);
/* -rank <= axis < rank; returns the non-negative axis or -1. */
int axis_norm(int64_t axis, int rank);
/* "f32[64,784]" */
void sb_put_type(StrBuf *sb, TypeId t);

#endif
