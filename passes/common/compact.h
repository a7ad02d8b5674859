/* SPDX-License-Identifier: Apache-2.0 */
/* compact.h: parameters and optimizer state in less than fp32 (--masters,
   --state-dtype), and gradients (--gradient-dtype).
   Before:  %w.new, %m.new = adamw %w, %g, .., %m            %w, %m: f32
   After:   %w.f32 = cast %w   %m.f32 = cast %m              %w, %m: bf16
            %w.new, %m.new = adamw %w.f32, %g, .., %m.f32
            %w.out, %m.out = either bf16 number beside %w.new, %m.new
   All is part of the one kernel that updates the parameter. Rounding to nearest
   would lose each change below half a unit in the last place, which is most
   changes of a weight and all changes of a slow mean; stochastic rounding is
   correct on average. Its random numbers are a function of the seed, the step
   and the place of the element.

   kahan: the state `remainder` has what bf16 leaves of the parameter.

   int8, f8: %m has codes and %m.scale: f32[n/128] the largest magnitude of each
   block of 128 elements. Where the update is one of single elements, all of it
   is computed as [n/128,128], so that it is one kernel of rows; else codes are
   widened before it and made after it. State that is not whole blocks is
   bf16. */
#ifndef AMPC_PASSES_COMMON_COMPACT_H
#define AMPC_PASSES_COMMON_COMPACT_H

#include "ir/fn/optimizer.h"
#include "passes/options.h"

/* True if updates round stochastically. */
bool compact_draws(const Options *o);
/* The key of random numbers that updates read: the seed and the number of
   steps before this one, which are the same on all ranks; ampc.rng counts
   forward passes, and each rank makes its own. */
ValueId compact_random(Builder *b);
/* Makes the parameters to which --masters applies bf16. */
Status compact_params(Module *m, const Options *o, Diag *d, Arena *scratch);

/* A gradient as --gradient-dtype keeps it, if the last node on its way is a
   product of 16 bits. */
ValueId compact_gradient(Builder *b, const Options *o, ValueId grad);

/* One variable, as an update reads and writes it. */
typedef struct CompactVar {
    ValueId var;   /* what is stored */
    ValueId more;  /* its remainder; 0: none */
    ValueId scale; /* its blocks'; 0: no codes */
    int of;        /* number of the parameter */
    TypeId as;     /* f32, in the shape of the update */
    bool compact;  /* by --masters or --state-dtype */
} CompactVar;

/* The shape of the update of a parameter of type `whole` (f32) whose state has
   codes, if they are whole blocks; else `whole`. */
TypeId compact_blocks(const Options *o, TypeId whole);
/* x in the shape of t. */
ValueId compact_view(Builder *b, ValueId x, TypeId t);

/* as: the type of the update's operands. */
ValueId compact_read_param(Builder *b, const Options *o, ValueId p, TypeId as,
                           CompactVar *c);
/* What is stored, as f32 in the variable's shape. */
ValueId compact_write_param(Builder *b, const CompactVar *c, ValueId x,
                            ValueId ok);
/* A state of variable v, of type `type`; `as`: how the update wants it. */
ValueId compact_read_state(Builder *b, const Options *o, const Var *v,
                           const OptimizerState *state, TypeId type, TypeId as,
                           CompactVar *c);
void compact_write_state(Builder *b, const CompactVar *c, ValueId x,
                         ValueId ok);

#endif
