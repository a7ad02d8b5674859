/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h: for plan_test.c and the files of folder plan. */
#ifndef AMPC_TESTS_CODEGEN_PLAN_PLAN_H
#define AMPC_TESTS_CODEGEN_PLAN_PLAN_H

#include "codegen/cuda/cuda.h"

typedef struct Whole {
    Arena *a;
    Diag d;
    Options opt;
    Module *m;
    const Graph *g; /* program train */
    PlanSource src;
    StrBuf cost;
} Whole;

void plan_end(Whole *w);

/* The value below views that is in memory. Time is counted in launches. */
typedef struct Buffer {
    int64_t bytes;
    int born, dies;
    int reads, reader; /* number of groups that do, and the last of them */
    uint32_t by;       /* flags of the nodes that do */
    bool made, arena, outlives;
    bool kept; /* groups of forward compute it, and others read it for
                  backward */
} Buffer;

typedef struct Buffers {
    const Graph *g;
    Buffer *of; /* by ValueId.i */
    int n, end;
} Buffers;

const Node *plan_maker(const Graph *g, ValueId v);
Buffers buffers_of(const Whole *w);

/* Bytes that groups read and write. */
double plan_moved(const Buffers *b);

/* Bytes that forward stores for backward. */
int64_t plan_kept(const Buffers *b);

/* Gaps between blocks and results computed in place nearly balance. */
void check_arena(const Whole *w, const Buffers *b);

bool has_moves(const Graph *g, int group);

/* Element-wise work whose only operand is element-wise work would be one
   kernel with it; vit's first token, which is prepended, is an exception. */
void check_chains(const Buffers *b);

/* Expensive work is not repeated in each sweep of a kernel over its rows,
   unless it depends on the result of an earlier sweep. */
void check_rows(const Buffers *b, Arena *a);

#endif
