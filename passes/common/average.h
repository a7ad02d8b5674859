/* SPDX-License-Identifier: Apache-2.0 */
/* average.h: averages of parameters and buffers (--ema, --swa).

   They are optimizer state, ampc.opt/NAME/average in f32, which the update of a
   parameter writes with it.  Programs eval and predict read an average in the
   place of its variable while ampc.averaged is not 0, from the first step on;
   the state `evaluated` of an optimizer always. */
#ifndef AMPC_PASSES_COMMON_AVERAGE_H
#define AMPC_PASSES_COMMON_AVERAGE_H

#include "passes/passes.h"

/* The share of the average that step `number` replaces, f32; none: no
   average. */
ValueId average_share(Builder *b, const Options *o, ValueId number);
/* Writes the average of variable `var`, whose new value is x. */
void average_write(Builder *b, const Options *o, ValueId var, ValueId x,
                   ValueId share, ValueId ok);
/* Writes the averages of the buffers that `train` writes. */
void average_buffers(Builder *b, const Options *o, const Graph *train,
                     ValueId share, ValueId ok);
/* Lets eval and predict read them, and the state `evaluated`. */
void average_read(Module *m, Arena *scratch);

#endif
