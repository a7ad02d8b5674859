/* SPDX-License-Identifier: Apache-2.0 */
/* quantized.cuh: quantised weights (quantized.h), widened as a whole or by
   the products that read them. */
#ifndef AMPC_QUANTIZED_CUH
#define AMPC_QUANTIZED_CUH

#include "gemm.cuh"
#include "quantized.h"

/* Element i of a weight, before its scale. */
template <int CODE, class Q>
__device__ float unscaled_at(const Q *q, long long i) {
    if constexpr (CODE == QUANTIZED_F32 || CODE == QUANTIZED_INT8) {
        return (float)q[i];
    } else {
        unsigned bits = q[i / 2] >> i % 2 * 4 & 15;
        if constexpr (CODE == QUANTIZED_INT4) {
            return (float)bits - 8;
        } else {
            constexpr float nf4[16] = {NF4_LEVELS};
            return nf4[bits];
        }
    }
}

/* Element i of a weight. */
template <int CODE, class Q>
__device__ float quantized_at(const Q *q, const float *scale, long long i) {
    float level = unscaled_at<CODE>(q, i);
    return CODE == QUANTIZED_F32 ? level : level * scale[i / QUANTIZED_BLOCK];
}

template <class P>
__device__ void widen_quantized(const typename P::Q *q,
                                const typename P::S *scale, typename P::Y *y) {
    long long i = flat_index<long long>();
    if (i < P::n)
        y[i] = narrow<typename P::Y>(quantized_at<(int)P::code>(q, scale, i));
}

/* Column n of B as a row of a loader (tile.cuh). */
template <class P> struct QuantizedMatrix {
    typedef typename P::A Element;
    typedef long long I;
    static constexpr bool along_k = P::b_rs <= P::b_cs, table = false;
    static constexpr int near = 1;
    const typename P::Q *q;
    const typename P::S *scale;
    __device__ I row(I i) const { return i * P::b_cs; }
    __device__ I col(I k) const { return k * P::b_rs; }
    __device__ Element load(I r, I c, bool ok) const {
        return ok ? narrow<Element>(quantized_at<(int)P::code>(q, scale, r + c))
                  : Element();
    }
};

template <class P, class Out>
__device__ void gemm_quantized(const typename P::A *a, const typename P::Q *q,
                               const typename P::S *scale, const Out &out) {
    typedef long long I;
    typedef typename P::Tile T;
    Matrix<typename P::A, I, P::k, 1, P::a_near> la = {a};
    QuantizedMatrix<P> lb = {q, scale};
    T::run(la, lb, GemmOut<Out, I>{out, 0}, gemm_part<P, I>(blockIdx.x));
}

#endif
