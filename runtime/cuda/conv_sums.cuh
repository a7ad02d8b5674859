/* SPDX-License-Identifier: Apache-2.0 */
/* conv_sums.cuh: convolutions whose results are also added up, in strips of
   P::strip positions (tile.cuh).

   P: as for conv.cuh and conv_window.cuh; strip; scale, the bits of a factor of
   the results, or of x of a gradient; tiles consist of whole strips. Gradients:
   Norm, Gate, Add, the types of x, gate and add; gated, adds: the last two
   exist.                                                                    */
#ifndef AMPC_CONV_SUMS_CUH
#define AMPC_CONV_SUMS_CUH

#include "conv_window.cuh"

/* Keeps sums[strip][channel], likewise squares. */
template <class P> struct StoreSums : StoreConv<P> {
    typedef typename P::Y Y;
    float *sums, *squares;
    static __device__ float rounded(float x) {
        return widen(narrow<Y>(x * __uint_as_float((unsigned)P::scale)));
    }
    template <class I>
    __device__ void keep(I channel, I strip, float sum, float square) const {
        I at = strip * Conv<P>::k + channel;
        ampc_store_f32(sums, at, sum);
        ampc_store_f32(squares, at, square);
    }
};

template <class P> constexpr int strip_of<ConvOut<P, StoreSums<P>>> = P::strip;

template <class P>
__device__ void conv_sums(const typename P::X *x, const typename P::W *w,
                          typename P::Y *y, float *sums, float *squares) {
    conv_fwd<P>(x, w, StoreSums<P>{{y}, sums, squares});
}

template <class P>
__device__ void conv_sums_window(const typename P::X *x, const typename P::W *w,
                                 typename P::Y *y, float *sums, float *squares,
                                 const Words<4> *turned) {
    conv_fwd_window<P>(x, w, StoreSums<P>{{y}, sums, squares}, turned);
}

/* ---- gradient by the input ----------------------------------------------- */

/* Operands and results of a gradient that passes a batch norm's gate, and
   `channel`, the group's first. */
template <class P> struct ConvGate {
    typedef Conv<P> G;
    typedef typename G::I I;
    typedef typename P::X X;
    static constexpr int near = near_of<X>(G::x_size);
    const typename P::Norm *x;
    const float *mean, *rstd;
    const typename P::Gate *gate;
    const float *gain, *shift;
    const typename P::Add *add;
    X *dx;
    float *sums, *products;
    I channel;

    __device__ ConvGate operator()(I c, const ConvPhases<P> &) const {
        ConvGate to = *this;
        to.channel = c;
        return to;
    }
    __device__ SumPair operator()(I m, I n,
                                  const Pack<near, float> &acc) const {
        I c = channel + m;
        I at = (n / G::x_size * G::c + c) * G::x_size + n % G::x_size;
        const float scale = __uint_as_float((unsigned)P::scale);
        const float from = mean[c], by = rstd[c];
        const float up = P::gated ? 0 : gain[c], to = P::gated ? 0 : shift[c];
        auto in = pack_load<near>(x + at);
        Pack<near, typename P::Gate> open = {};
        Pack<near, typename P::Add> more = {};
        Pack<near, X> result;
        SumPair sum = {};
        if constexpr (P::gated) open = pack_load<near>(gate + at);
        if constexpr (P::adds) more = pack_load<near>(add + at);
        UNROLL
        for (int i = 0; i < near; i++) {
            float norm = (widen(in.v[i]) * scale - from) * by;
            float g = P::gated ? widen(open.v[i]) : norm * up + to;
            float v = P::adds ? acc.v[i] + widen(more.v[i]) : acc.v[i];
            result.v[i] = narrow<X>(g <= 0 ? 0.f : v);
            v = widen(result.v[i]);
            sum.first += v;
            sum.second = fmaf(v, norm, sum.second);
        }
        pack_store(dx + at, result);
        return sum;
    }
    __device__ void keep(I m, I strip, float sum, float product) const {
        I at = strip * G::c + (channel + m);
        ampc_store_f32(sums, at, sum);
        ampc_store_f32(products, at, product);
    }
};

template <class P> constexpr int pairs_of<ConvGate<P>> = P::strip;

template <class P>
__device__ void conv_dgrad_sums(const typename P::Y *dy, const typename P::W *w,
                                const typename P::Norm *x, const float *mean,
                                const float *rstd, const typename P::Gate *gate,
                                const float *gain, const float *shift,
                                const typename P::Add *add, typename P::X *dx,
                                float *sums, float *products) {
    conv_dgrad_tile<P>(dy, w,
                       ConvGate<P>{x, mean, rstd, gate, gain, shift, add, dx,
                                   sums, products, 0});
}

template <class P>
__device__ void conv_dgrad_sums_window(
    const typename P::Y *dy, const typename P::W *, const typename P::Norm *x,
    const float *mean, const float *rstd, const typename P::Gate *gate,
    const float *gain, const float *shift, const typename P::Add *add,
    typename P::X *dx, float *sums, float *products, const Words<4> *turned) {
    conv_dgrad_window_tile<P>(dy, turned,
                              ConvGate<P>{x, mean, rstd, gate, gain, shift, add,
                                          dx, sums, products, 0});
}

#endif
