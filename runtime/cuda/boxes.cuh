/* SPDX-License-Identifier: Apache-2.0 */
/* boxes.cuh: greedy choice of boxes that do not overlap. */
#ifndef AMPC_BOXES_CUH
#define AMPC_BOXES_CUH

#include "device.cuh"

struct Box {
    float x0, y0, x1, y1, area;
    __device__ explicit Box(const float *p)
        : x0(p[0]), y0(p[1]), x1(p[2]), y1(p[3]),
          area((p[2] - p[0]) * (p[3] - p[1])) {}
};

__device__ inline bool overlap_more(const Box &a, const Box &b, float most) {
    float wide = (a.x1 > b.x1 ? b.x1 : a.x1) - (a.x0 > b.x0 ? a.x0 : b.x0);
    float tall = (a.y1 > b.y1 ? b.y1 : a.y1) - (a.y0 > b.y0 ? a.y0 : b.y0);
    float both = wide * tall, all = a.area + b.area - both;
    return wide > 0 && tall > 0 && both > 0 && a.area > 0 && b.area > 0 &&
           all > 0 && both / all > most;
}

/* P: the parameters of LibSuppress. A block takes row after row: when it comes
   to a box that is still there, its threads drop the later ones that overlap
   it. SUPPRESS_THREADS threads. */
template <class P>
__device__ void suppress(const float *boxes,
                         const typename P::Candidate *candidate,
                         const float *overlap, typename P::Kept *kept) {
    const int t = (int)threadIdx.x;
    const long long n = P::n;
    for (long long row = blockIdx.x; row < P::rows; row += gridDim.x) {
        const float *from = boxes + row * n * 4;
        volatile typename P::Kept *to = kept + row * n;
        for (long long i = t; i < n; i += SUPPRESS_THREADS)
            to[i] = candidate[row * n + i];
        __syncthreads();
        long long found = 0;
        for (long long i = 0; i < n; i++) {
            if (!to[i]) continue;
            Box box(from + 4 * i);
            bool full = found++ == P::k;
            for (long long j = i + 1 + t; j < n; j += SUPPRESS_THREADS)
                if (to[j] &&
                    (full || overlap_more(Box(from + 4 * j), box, *overlap)))
                    to[j] = 0;
            __syncthreads();
            if (full) {
                if (t == 0) to[i] = 0;
                break;
            }
        }
        __syncthreads();
    }
}

#endif
