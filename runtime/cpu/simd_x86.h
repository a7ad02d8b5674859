/* SPDX-License-Identifier: Apache-2.0 */
/* simd_x86.h: parts that the levels of x86-64 share; see simd.h. */
#ifndef AMPC_CPU_SIMD_X86_H
#define AMPC_CPU_SIMD_X86_H

#include <immintrin.h>

#include "runtime/cpu/simd_types.h"

INLINE float x86_sum(__m128 t) {
    t = _mm_add_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_add_ss(t, _mm_shuffle_ps(t, t, 1)));
}

/* Stores the sums of the elements of x, y, z and w. */
INLINE void x86_sum4(float *to, __m128 x, __m128 y, __m128 z, __m128 w) {
    __m128 xy = _mm_add_ps(_mm_unpacklo_ps(x, y), _mm_unpackhi_ps(x, y));
    __m128 zw = _mm_add_ps(_mm_unpacklo_ps(z, w), _mm_unpackhi_ps(z, w));
    _mm_storeu_ps(to, _mm_add_ps(_mm_movelh_ps(xy, zw), _mm_movehl_ps(zw, xy)));
}

/* Loads n bytes, at most VL and 8; other lanes are 0. They go through a
   general register, not through memory: loading a vector right after storing
   its parts stalls (store forwarding). */
INLINE __m128i x86_bytes(const int8_t *p, int64_t n) {
    enum { MOST = VL < 8 ? VL : 8 };
    uint64_t all = 0;
    if (n >= MOST)
        memcpy(&all, p, MOST);
    else
        for (int64_t k = n; k-- > 0;) all = all << 8 | (uint8_t)p[k];
    return _mm_cvtsi64_si128((long long)all);
}

#endif
