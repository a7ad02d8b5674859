/* SPDX-License-Identifier: Apache-2.0 */
/* peak.h: GPUs by their data sheets (gpus.def). */
#ifndef AMPC_CUDA_PEAK_H
#define AMPC_CUDA_PEAK_H

#include <ctype.h>

#include "runtime/cuda/arch.h"

typedef struct GpuSheet {
    const char *name;
    const GpuArch *arch;
    double bandwidth, cache, tensor, single, clock;
    int sms;
} GpuSheet;

static const GpuSheet gpu_sheets[] = {
#define GPU(name, number, ...) {name, &gpu_archs[GPU_SM_##number], __VA_ARGS__},
#include "runtime/cuda/gpus.def"
#undef GPU
};
enum { NGPU_SHEET = sizeof gpu_sheets / sizeof *gpu_sheets };

/* The sheet of the GPU that the driver names; NULL: it is unknown, or a part
   of a GPU (MIG). */
static inline const GpuSheet *gpu_sheet(const char *text) {
    if (strstr(text, " MIG ")) return NULL;
    for (int i = 0; i < NGPU_SHEET; i++) {
        size_t n = strlen(gpu_sheets[i].name);
        for (const char *p = text; (p = strstr(p, gpu_sheets[i].name)); p++)
            if (!isalnum((unsigned char)p[n])) return &gpu_sheets[i];
    }
    return NULL;
}

/* Dense 16-bit FLOPs per second; 0: there is no sheet. */
static inline double peak_of(const char *text) {
    const GpuSheet *s = gpu_sheet(text);
    return s ? s->tensor : 0;
}

#endif
