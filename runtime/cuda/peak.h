/* SPDX-License-Identifier: Apache-2.0 */
/* peak.h: dense FLOPs of 16 bits a second, by NVIDIA's data sheets. */
#ifndef AMPC_CUDA_PEAK_H
#define AMPC_CUDA_PEAK_H

#include <string.h>

#define PEAK_H100 989e12
#define PEAK_H200 989e12
#define PEAK_A100 312e12

/* Peak of the GPU named in the text; 0 if the GPU is unknown or a part of
   one (MIG). */
static inline double peak_of(const char *text) {
    if (strstr(text, " MIG ")) return 0;
    if (strstr(text, "H100 PCIe")) return 756e12;
    if (strstr(text, "H100 NVL")) return 835e12;
    if (strstr(text, "H100")) return PEAK_H100;
    if (strstr(text, "H200")) return PEAK_H200;
    return strstr(text, "A100") ? PEAK_A100 : 0;
}

#endif
