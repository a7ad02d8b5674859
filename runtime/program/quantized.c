/* SPDX-License-Identifier: Apache-2.0 */
/* quantized.c: see quantized.h. */
#include "runtime/base/contract.h"
#include "runtime/program/quantized.h"

#include <math.h>

static int nearest_nf4(float x) {
    int i = 0;
    while (i < 15 && x > (quantized_level4(QUANTIZED_NF4, (unsigned)i) +
                          quantized_level4(QUANTIZED_NF4, (unsigned)i + 1)) /
                             2)
        i++;
    return i;
}

/* The scale of a block, and the divisor in its reciprocal. */
static float scale_of(int code, const float *x, int n) {
    float most = 0;
    for (int i = 0; i < n; i++) {
        if (!isfinite(x[i])) return NAN;
        most = fmaxf(most, fabsf(x[i]));
    }
    return code == QUANTIZED_INT8   ? most / 127
           : code == QUANTIZED_INT4 ? most / 7
                                    : most;
}

void quantized_put(int code, const float *x, int64_t first, int n, void *q,
                   float *scale) {
    CONTRACT(first % QUANTIZED_BLOCK == 0 && n > 0 && n <= QUANTIZED_BLOCK);
    float s = scale[first / QUANTIZED_BLOCK] = scale_of(code, x, n);
    int end = code == QUANTIZED_INT8 ? 127 : 7;
    for (int i = 0; i < n; i++) {
        float r = s > 0 ? x[i] / s : 0;
        int64_t at = first + i;
        int level = (int)fmaxf(fminf(nearbyintf(r), (float)end), (float)-end);
        if (code == QUANTIZED_INT8) {
            ((int8_t *)q)[at] = (int8_t)level;
            continue;
        }
        int bits = code == QUANTIZED_NF4 ? nearest_nf4(r) : level + 8;
        uint8_t *byte = (uint8_t *)q + at / 2;
        *byte = (uint8_t)(at % 2 ? (*byte & 15) | bits << 4
                                 : (*byte & 0xf0) | bits);
    }
}
