/* SPDX-License-Identifier: Apache-2.0 */
/* strip.h: positions whose results conv_sums adds up: the columns of a tile
   of the GPU's kernels, or of half a tile. */
#ifndef AMPC_STRIP_H
#define AMPC_STRIP_H

#define CONV_STRIP 128

#endif
