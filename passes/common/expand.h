/* expand.h: what expand.c and reduce.c share. */
#ifndef AMPC_PASSES_COMMON_EXPAND_H
#define AMPC_PASSES_COMMON_EXPAND_H

#include "passes/passes.h"
#include "passes/common/rewrite.h"

typedef struct Expand {
    Rewriter *rw;
    DType dt; /* of the arithmetic: F32 or F64 */
} Expand;

/* `op` of x over axes, dimensions kept, stored as dtype: one REDUCE, several
   stages, or none where every axis has length 1.                            */
ValueId expand_reduce(Expand *e, OpCode op, ValueId x, const int64_t *axes,
                      int naxes, DType dtype);

#endif
