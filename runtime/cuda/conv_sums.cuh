/* SPDX-License-Identifier: Apache-2.0 */
/* conv_sums.cuh: convolution whose results are also added up, in strips of
   P::strip positions (tile.cuh).

   P: as for conv.cuh and conv_window.cuh; strip; scale, the bits of a factor of
   the results; tiles consist of whole strips.                               */
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
        sums[at] = sum;
        squares[at] = square;
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

#endif
