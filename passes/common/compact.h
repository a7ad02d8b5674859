/* SPDX-License-Identifier: Apache-2.0 */
/* compact.h: parameters and optimizer state in less than fp32 (--masters,
   --state-dtype).
   Before:  %w.new, %m.new = adamw %w, %g, .., %m            %w, %m: f32
   After:   %w.f32 = cast %w   %m.f32 = cast %m              %w, %m: bf16
            %w.new, %m.new = adamw %w.f32, %g, .., %m.f32
            %w.out, %m.out = either bf16 number beside %w.new, %m.new
   All is part of the one kernel that updates the parameter. A rounding to
   nearest would lose each change below half a unit in the last place, which is
   most changes of a weight and all of a slow mean; a stochastic one is right on
   average. Its random numbers are those of dropout: a function of the seed, the
   step and the place of the element.

   kahan: the state `remainder` has what bf16 leaves of the parameter. */
#ifndef AMPC_PASSES_COMMON_COMPACT_H
#define AMPC_PASSES_COMMON_COMPACT_H

#include "ir/fn/optimizer.h"
#include "passes/options.h"

/* Whether updates read random numbers. */
bool compact_draws(const Options *o);
/* Makes the parameters that --masters is about bf16 ones. */
Status compact_params(Module *m, const Options *o, Diag *d, Arena *scratch);

/* One variable, as an update reads and writes it. */
typedef struct CompactVar {
    ValueId var;  /* what is stored */
    ValueId more; /* its remainder; 0: none */
    bool compact; /* in 16 bits by --masters or --state-dtype */
} CompactVar;

ValueId compact_read_param(Builder *b, const Options *o, ValueId p,
                           CompactVar *c);
/* What is stored, as f32. */
ValueId compact_write_param(Builder *b, const CompactVar *c, ValueId x,
                            ValueId ok);
/* A state of variable v, of a type that the update wants. */
ValueId compact_read_state(Builder *b, const Options *o, const Var *v,
                           const OptimizerState *state, TypeId type,
                           CompactVar *c);
void compact_write_state(Builder *b, const CompactVar *c, ValueId x,
                         ValueId ok);

#endif
