/* SPDX-License-Identifier: Apache-2.0 */
/* strip.h: what passes and the GPU's convolutions agree on. */
#ifndef AMPC_STRIP_H
#define AMPC_STRIP_H

/* Positions whose results conv_sums adds up: the columns of a tile of the GPU's
   kernels, or of half a tile. */
#define CONV_STRIP 128
/* So few channels of a group are not for tensor cores. */
#define CONV_FEW_CHANNELS 4

#endif
