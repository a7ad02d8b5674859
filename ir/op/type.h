/* SPDX-License-Identifier: Apache-2.0 */
/* type.h: interned tensor types.  Equal type, equal TypeId.  Shapes are
   static; a dimension may be 0; rank 0 is a scalar. */
#ifndef AMPC_IR_OP_TYPE_H
#define AMPC_IR_OP_TYPE_H

#include "ir/base/base.h"
#include "runtime/program/dtype.h"

#define MAX_RANK 8
/* So small that byte counts of several tensors, and strides, cannot
   overflow. */
#define MAX_ELEMENTS ((int64_t)1 << 40)

typedef enum DType {
#define DTYPE(E, ...) DT_##E,
#include "runtime/program/dtypes.def"
    NUM_DTYPES
} DType;

bool dtype_from_text(const char *s, size_t n, DType *out);
bool dtype_from_onnx(int code, DType *out);
static inline bool dtype_is_float(DType d) {
    return dtype_info[d].kind == DK_F;
}
static inline bool dtype_is_int(DType d) {
    return dtype_info[d].kind == DK_I || dtype_info[d].kind == DK_U;
}
/* True if an integer dtype or bool can represent v. */
bool dtype_holds(DType d, int64_t v);
/* Low types (f16, bf16) are only stored; arithmetic uses a wider type. */
static inline bool dtype_is_low(DType d) { return dtype_info[d].low; }
/* True for a low type with a shorter range than f32, such as f16. */
static inline bool dtype_is_short(DType d) {
    return dtype_is_low(d) && dtype_info[d].most < dtype_info[DT_F32].most / 2;
}
/* True if the floating type `to` can represent every number of `from`. */
bool dtype_widens(DType from, DType to);

/* The arithmetic dtype of a float op: F64 if any is F64, else F32. */
DType dtype_compute(DType a, DType b);
/* The smallest type that can represent the numbers of both. Floating: one of
   the two, else F32 (BF16 and F16). Integers: the larger. */
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

int64_t type_count(const Type *t); /* number of elements; it never overflows:
                                      whoever makes a type checks it against
                                      INT64_MAX/16 */
int64_t type_bytes(const Type *t);
bool shape_equal(const Type *a, const Type *b);
/* numpy broadcasting of shapes (dtype of `out` untouched); false: mismatch */
bool shape_broadcast(const Type *a, const Type *b, Type *out);
/* Row-major element strides. */
void shape_strides(const Type *t, int64_t *stride);
/* -rank <= axis < rank; returns the non-negative axis or -1. */
int axis_norm(int64_t axis, int rank);
/* "f32[2,3]", "absent": for messages.  buf of TYPE_TEXT bytes is returned. */
enum { TYPE_TEXT = 200 };
const char *type_text(const Type *t, char *buf);
#define TXT(t) type_text((t), (char[TYPE_TEXT]){0})
/* "f32[64,784]" */
void sb_put_type(StrBuf *sb, TypeId t);

#endif
