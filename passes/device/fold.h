/* SPDX-License-Identifier: Apache-2.0 */
/* fold.h: rules about GPUs that passes and codegen share. */
#ifndef AMPC_PASSES_TARGET_FOLD_H
#define AMPC_PASSES_TARGET_FOLD_H

#include "passes/options.h"
#include "runtime/cuda/arch.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { GPU_BLOCKS = 264 }; /* blocks that fill the GPU: 2 on each SM */

/* Bytes of shared memory: all that a block uses, which GPUs with bf16 have;
   those that sums of columns leave to other uses. */
enum { GPU_BLOCK_SHARED = 99 << 10, GPU_SHARED_APART = 3 << 10 };

static inline bool any_gpu(const Options *opt) {
    bool any = false;
    for (int i = 0; i < opt->targets.len; i++) any |= opt->targets.data[i].cuda;
    return any;
}

/* True if the module has code for a GPU of that compute capability, times 10,
   or a newer one. */
static inline bool gpu_reaches(const Options *opt, int number) {
    for (int i = 0; i < opt->targets.len; i++) {
        const Target *t = &opt->targets.data[i];
        if (t->cuda &&
            (!strcmp(t->arch, "ptx") || gpu_arch_of(t->arch)->number >= number))
            return true;
    }
    return false;
}

/* The first target with a GPU that does not multiply all of `tensor`, or
   NULL. */
static inline const Target *gpu_without(const Options *opt, unsigned tensor) {
    for (int i = 0; i < opt->targets.len; i++) {
        const Target *t = &opt->targets.data[i];
        if (t->cuda && (tensor & ~gpu_arch_of(t->arch)->tensor)) return t;
    }
    return NULL;
}

/* Bytes of shared memory that a block has on every GPU of the options. */
static inline int64_t gpu_block_shared(const Options *opt) {
    int64_t least = GPU_BLOCK_SHARED;
    for (int i = 0; i < opt->targets.len; i++) {
        const Target *t = &opt->targets.data[i];
        if (t->cuda && gpu_arch_of(t->arch)->block < least)
            least = gpu_arch_of(t->arch)->block;
    }
    return least;
}

/* True if one kernel can fold rows of any number and length, given by the
   step, with one block per row: rows are few, and at least as long as a
   block has threads. */
static inline bool folds_alike(int64_t rows, int64_t columns) {
    enum { LEAST = 256 };
    if (rows < 1 || columns < 1 || columns > INT32_MAX / 2) return false;
    return rows == 1 || (rows <= GPU_BLOCKS && columns >= LEAST);
}

/* True if cuBLASLt should multiply planes of that many elements of `bytes`, the
   rows of a matrix: for rows of 16-bit elements that do not begin at multiples
   of 16 bytes it has slow kernels only. */
static inline bool planes_align(int64_t elements, int bytes) {
    return bytes != 2 || elements % 8 == 0;
}

#endif
