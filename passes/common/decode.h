/* SPDX-License-Identifier: Apache-2.0 */
/* decode.h: a program that predicts one token at a time. */
#ifndef AMPC_PASSES_COMMON_DECODE_H
#define AMPC_PASSES_COMMON_DECODE_H

#include "passes/passes.h"

/* Makes program predict, which reads a whole text [samples, positions], read
   one position and keep in buffers what later positions read of it. */
Status decode_program(Graph *g, PassCtx *cx);

/* The new input, and an output: the number of positions, for each sample. */
#define DECODE_POSITION "position"
#define DECODE_WINDOW   "window"

#endif
