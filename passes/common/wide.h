/* SPDX-License-Identifier: Apache-2.0 */
/* wide.h: what torch.autocast has in fp32, and which of it must stay so.    */
#ifndef AMPC_PASSES_COMMON_WIDE_H
#define AMPC_PASSES_COMMON_WIDE_H

#include "passes/common/origin.h"

/* Facts about the values of a graph that pass lift has left, by ValueId.i. */
typedef struct Facts {
    const Graph *g;
    DType low;
    Origins origins;
    int *uses;
    ValueId *cast; /* its 16-bit copy for products                       */
    bool *half;    /* autocast has it in 16 bits                         */
    bool *wide;    /* made by a product of vectors that reads f32        */
    bool *few;     /* a sum, or computed from one element-wise           */
    bool *own;     /* computed of variables and constants alone          */
    bool *copied;  /* products alone read it, rounded                    */
    bool *stream;  /* part of a residual stream that autocast has in fp32 */
    bool *scores;  /* of attention: the operand of a softmax that a product
                      reads, in 16 bits where PyTorch does not fuse them     */
    const char **exact; /* why 16 bits would make loss or gradient less exact
                           than autocast's; NULL: they would not              */
} Facts;

Facts facts_of(const Graph *g, Arena *a);

/* Whether v is of a variable or a constant. */
bool is_leaf(const Graph *g, ValueId v);
DType dtype_of(const Graph *g, ValueId v);
/* Whether n repeats v to the shape of its result. */
bool broadcasts(const Graph *g, const Node *n, ValueId v);
/* Whether operand and result of n have one buffer or one type. */
bool shares_type(const Node *n);
/* Whether v is a row or a column, a view of a value with one axis. */
bool is_vector_view(const Graph *g, ValueId v);

#endif
