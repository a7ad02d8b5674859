/* SPDX-License-Identifier: Apache-2.0 */
/* sums.h: between the files of pass sums. */
#ifndef AMPC_PASSES_DEVICE_SUMS_H
#define AMPC_PASSES_DEVICE_SUMS_H

#include "ir/ir.h"

/* Tiles of 128 channels and positions of the first result keep half of the GPU
   busy. */
bool conv_fills_gpu(const Graph *g, const Node *conv);
/* The sums of a batch norm's gradient come from the kernel of the convolution's
   gradient before it (sums_grad.c). */
void sums_of_gradients(Graph *g, Arena *scratch);
/* The gradient of a bias before q, k and v is added up by the kernel of
   attention's gradient (sums_attend.c). */
void sums_of_attention(Graph *g, Arena *scratch);

#endif
