/* SPDX-License-Identifier: Apache-2.0 */
/* arch.h: GPUs by compute capability (archs.def). */
#ifndef AMPC_CUDA_ARCH_H
#define AMPC_CUDA_ARCH_H

#include <stdlib.h>
#include <string.h>

#include "runtime/program/dtype.h"

enum { GPU_USUAL = 1, GPU_PTX = 2 };

typedef enum GpuArchRow {
#define ARCH(number, ...) GPU_SM_##number,
#include "runtime/cuda/archs.def"
    NGPU_ARCH
} GpuArchRow;

typedef struct GpuArch {
    const char *name, *ptx; /* "sm_90", "compute_90" */
    int number;
    unsigned tensor;
    int block, shared, threads;
    double mma, latency;
    int flags;
} GpuArch;

static const GpuArch gpu_archs[NGPU_ARCH] = {
#define ARCH(number, ...)                                                      \
    {"sm_" #number, "compute_" #number, number, __VA_ARGS__},
#include "runtime/cuda/archs.def"
};

/* The row of a compute capability; of one before the oldest row, that row. */
static inline const GpuArch *gpu_arch(int number) {
    int i = NGPU_ARCH - 1;
    while (i > 0 && gpu_archs[i].number > number) i--;
    return &gpu_archs[i];
}

/* The row that PTX is made for. */
static inline const GpuArch *gpu_arch_of_ptx(void) {
    int i = 0;
    while (!(gpu_archs[i].flags & GPU_PTX)) i++;
    return &gpu_archs[i];
}

/* .. of a word of --target, "sm_90" or "ptx". */
static inline const GpuArch *gpu_arch_of(const char *word) {
    return strcmp(word, "ptx") ? gpu_arch(atoi(word + 3)) : gpu_arch_of_ptx();
}

/* Words of `--target cuda`, newest first, "ptx" last; then NULL. */
static inline const char *gpu_usual(int n) {
    for (int i = NGPU_ARCH - 1; i >= 0; i--)
        if ((gpu_archs[i].flags & GPU_USUAL) && !n--) return gpu_archs[i].name;
    return n ? NULL : "ptx";
}

#endif
