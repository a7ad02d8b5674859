/* SPDX-License-Identifier: Apache-2.0 */
/* lower.h: declarations shared by the lower*.c files.

   Lowering asks for values at an index: a vector of KIndex, one per dim of the
   value, in terms of the loops of the kernel's domain.  Element-wise nodes ask
   for their operands at the broadcast index, data movement at a mapped one, and
   values from outside the group become loads.  A guard (an instruction of type
   KT_B8, 0 = none) tells whether the index is inside the value; loads
   under a false guard touch no memory and give 0. */
#ifndef AMPC_CODEGEN_KERNEL_LOWER_H
#define AMPC_CODEGEN_KERNEL_LOWER_H

#include "codegen/kernel/schedule.h"

typedef struct LowerMemo {
    ValueId v;
    int guard, inst;
    KIndex at[MAX_RANK];
} LowerMemo;

typedef struct Lower {
    const Graph *g;
    int group;
    TargetKind target;
    Arena *arena;
    Kernel *k;
    VEC(ValueId) refs; /* value of each buffer */
    VEC(LowerMemo) memo;
    ValueId stored;   /* a value of the group that is in memory */
    ValueId anchor;   /* the value whose elements are accumulators */
    Type domain;      /* shape */
    const Node *rows; /* true: a reduction along the rows; NULL: none */
    int64_t par[MAX_KERNEL_PARS]; /* of the step */
    int npar;
} Lower;

/* ---- values (lower_value.c) ---------------------------------------------- */

/* The instruction that holds v[at], rounded to v's dtype. */
int lower_value(Lower *l, ValueId v, const KIndex *at, int guard);
/* Element `at` of v broadcast to `rank` dims. */
int lower_broadcast(Lower *l, ValueId v, const KIndex *at, int rank, int guard);
int lower_as(Lower *l, int inst, DType d); /* converts, rounds */
int lower_const(Lower *l, KType t, double f, int64_t i);
int lower_op(Lower *l, OpCode code, KType compute, int a, int b, int c);
void lower_store(Lower *l, ValueId v, int inst, KIndex at);
/* Element src of one operand; the instruction `which` holds the operand's
   number. Returns 0 unless all operands of the node have one type and the
   group computes none of them. */
int lower_operand(Lower *l, const Node *n, int which, const KIndex *src);
/* Like lower_store, but adds up the values of all rows in each column. */
void lower_add_up(Lower *l, ValueId v, int inst, KIndex at);
/* Row-major element offset of an index into a value of type t. */
KIndex lower_flatten(Lower *l, const Type *t, const KIndex *at);

/* ---- indices (lower_move.c) ---------------------------------------------- */

KIndex at_const(int64_t c);
KIndex at_loop(int dim);
KIndex at_add(Lower *l, KIndex x, KIndex y);
KIndex at_scale(Lower *l, KIndex x, int64_t s);
int at_value(Lower *l, KIndex x); /* the index as one instruction */
bool guard_is_false(const Lower *l, int guard);

/* The result of a MOVE node. */
int lower_move(Lower *l, const Node *n, const KIndex *at, int guard);
/* pad_grad: every padded position added to its source. */
int lower_pad_grad(Lower *l, const Node *n, const KIndex *at);

/* ---- tiles (lower_tile.c) ------------------------------------------------ */

/* Stores v, the codes that n transposes, or codes or scales of blocks. */
void lower_tile(Lower *l, ValueId v, const Node *n);
/* Element `at` of the codes, scales or sums of blocks that n makes. */
int lower_block_code(Lower *l, const Node *n, const KIndex *at, int guard);
int lower_block_scale(Lower *l, const Node *n, const KIndex *at, int guard);
int lower_block_sum(Lower *l, const Node *n, const KIndex *at, int guard);

/* ---- library steps (lower_lib.c) ----------------------------------------- */

/* Parameters and refs of the ANCHOR or LIB node's routine; for an anchor the
   result is the last ref. */
Status lower_lib_call(const Graph *g, const Node *n, Arena *a, Diag *d,
                      LoweredStep *out);
/* True if a node of kind ANCHOR or LIB becomes a step of that kind. */
bool lower_has_routine(OpCode op);
/* Rows of one batch in the routine's numbering: `row` of PlanEpilogueFn. */
int64_t lower_tile_rows(const LoweredStep *s);

#endif
