/* SPDX-License-Identifier: Apache-2.0 */
/* wide.h: values that torch.autocast has in fp32, and those that must stay
   fp32. */
#ifndef AMPC_PASSES_COMMON_WIDE_H
#define AMPC_PASSES_COMMON_WIDE_H

#include "passes/common/origin.h"

/* Facts about the values of a graph after pass lift, by ValueId.i. */
typedef struct Facts {
    const Graph *g;
    DType low;
    Origins origins;
    int *uses;
    ValueId *cast; /* its 16-bit copy that products read */
    bool *half;    /* autocast has it in 16 bits                         */
    bool *wide;    /* the result of a vector's product, which reads f32 */
    bool *few;     /* a sum, or computed element-wise from one sum */
    bool *own;     /* computed only from variables and constants */
    bool *copied;  /* only matrix products read it, rounded */
    bool *stream;  /* part of a residual stream that autocast has in fp32 */
    bool *scores;  /* scores of attention: the operand of a softmax that a
                      product reads; 16 bits in PyTorch unless it fuses them */
    const char **exact; /* why 16 bits would make loss or gradient less exact
                           than autocast's; NULL: they would not              */
} Facts;

Facts facts_of(const Graph *g, Arena *a);

/* True if v is a variable or a constant, possibly moved. */
bool is_leaf(const Graph *g, ValueId v);
/* NUM_DTYPES: the operand is missing. */
DType dtype_of(const Graph *g, ValueId v);
/* False for a missing operand. */
bool has_float(const Graph *g, ValueId v);
/* True if n repeats v to the shape of its result. */
bool broadcasts(const Graph *g, const Node *n, ValueId v);
/* True if operand and result of n must share a buffer or a type. */
bool shares_type(const Node *n);
/* True if v is a row or a column: a view of a value with one axis. */
bool is_vector_view(const Graph *g, ValueId v);

#endif
