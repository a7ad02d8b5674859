/* SPDX-License-Identifier: Apache-2.0 */
/* dims.h: what the command line says of a model's text before it is read. */
#ifndef AMPC_IR_FN_DIMS_H
#define AMPC_IR_FN_DIMS_H

#include "ir/ir.h"

/* A dimension that the command line sets before a text is read. */
typedef struct DimBind {
    Str name; /* a symbol, or an input's name when axis >= 0 */
    int axis; /* -1: name is a symbol */
    int64_t value;
} DimBind;

/* All sizes of a dimension that --dim gives several, in ascending order. */
typedef struct DimSizes {
    Str name; /* as in DimBind, whose value is the last size */
    int axis;
    VEC(int64_t) sizes;
} DimSizes;

typedef struct TextOptions {
    const DimBind *dims;
    int ndims;
    int64_t seed; /* seed for initial values and dropout */
    /* First dimension of the first input: batch overrides dims, batch_else
       is used if dims do not name it; 0: not given. */
    int64_t batch, batch_else;
    /* Imports an ONNX file for inputs of types in[0..n), for `def .. =
       onnx("FILE")`; NULL: files cannot be imported. */
    Status (*layer)(void *ctx, Str file, const TypeId *in, int n, Module **out);
    void *ctx;
} TextOptions;

#endif
