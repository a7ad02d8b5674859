/* SPDX-License-Identifier: Apache-2.0 */
/* conv_places.cuh: where convolutions find the elements of X: sizes of each
   dimension, offsets of results and of places in their windows, padding. */
#ifndef AMPC_CONV_PLACES_CUH
#define AMPC_CONV_PLACES_CUH

#include "tile.cuh"

constexpr long long conv_gcd(long long a, long long b) {
    return b == 0 ? a : conv_gcd(b, a % b);
}

/* One spatial dimension.  dgrad: results i = phase + j * stride; taps that
   meet them are `period` apart, and each next one reads `step` outputs before.
   */
template <class Int, long long IN, long long OUT, long long KERNEL,
          long long STRIDE, long long DILATION, long long PAD>
struct ConvDim {
    static constexpr Int in = IN, out = OUT, kernel = KERNEL, stride = STRIDE,
                         dilation = DILATION, pad = PAD;
    static constexpr Int period = STRIDE / conv_gcd(STRIDE, DILATION);
    static constexpr Int step = period * DILATION / STRIDE;
    static constexpr Int count = up_div(IN, STRIDE); /* results of a phase   */
    static constexpr Int ntap = up_div(KERNEL, period);
    /* more than the number of outputs that a result reads */
    static constexpr Int past = IN + PAD + 2 * STRIDE;
    /* No window reads padding; every result reads one output. */
    static constexpr bool whole =
        PAD == 0 && (OUT - 1) * STRIDE + (KERNEL - 1) * DILATION < IN;
    static constexpr bool single =
        PAD == 0 && KERNEL == 1 && STRIDE == 1 && IN == OUT;
    /* True for an input that some window reads; else it is padding. */
    static __device__ bool inside(Int i) { return whole || below(i, in); }
    static __device__ bool written(Int o) { return single || below(o, out); }
    /* Bit t: place t of the window that begins at `first` is padding. */
    static __device__ unsigned padding(Int first) {
        unsigned bits = 0;
        UNROLL
        for (int t = 0; t < (int)kernel; t++)
            bits |= (unsigned)!inside(first + t * dilation) << t;
        return bits;
    }
};

template <class P> struct Conv {
    static constexpr long long xs = P::in0 * P::in1 * P::in2;
    static constexpr long long ys = P::out0 * P::out1 * P::out2;
    static constexpr long long taps_all = P::kernel0 * P::kernel1 * P::kernel2;
    /* a tile may extend 128 images or channels beyond the end */
    typedef Index<largest((P::n + 128) * P::c * largest(xs, 1),
                          (P::n + 128) * P::k * largest(ys, 1),
                          (P::k + 128) * (P::c / P::group + 128) * taps_all)>
        I;
    static constexpr I x_size = some(xs), y_size = some(ys), taps = taps_all;
    static constexpr I n = P::n, c = P::c, k = P::k, group = P::group;
    static constexpr I cg = P::c / P::group, kg = P::k / P::group;
    typedef ConvDim<I, P::in0, P::out0, P::kernel0, P::stride0, P::dilation0,
                    P::pad0>
        D0;
    typedef ConvDim<I, P::in1, P::out1, P::kernel1, P::stride1, P::dilation1,
                    P::pad1>
        D1;
    typedef ConvDim<I, P::in2, P::out2, P::kernel2, P::stride2, P::dilation2,
                    P::pad2>
        D2;
    /* 1 x 1 windows at stride 1: results are products of channels alone. */
    static constexpr bool points = D0::single && D1::single && D2::single;
};

/* Contribution of an index to an address: `base` to the element's offset, z,
   y, x to its coordinates, which decide whether the element exists. */
template <class I> struct Spot { I base, z, y, x; };

/* An offset, and a bit for each place of a window in each dimension: of a
   window the places that are padding, of a step its own. An element exists if
   window and step have no bit in common. */
template <class I> struct alignas(2 * sizeof(I)) Bits {
    I base;
    unsigned places;
};

/* Windows have bits if their extents add up to at most 32. */
template <class I, bool BITS> struct PlaceOf { typedef Spot<I> Type; };
template <class I> struct PlaceOf<I, true> { typedef Bits<I> Type; };

/* The bits of a window in three dimensions with n0, n1 and n2 places. */
__device__ inline unsigned join_bits(unsigned z, unsigned y, unsigned x, int n0,
                                     int n1) {
    return z | y << n0 | x << (n0 + n1);
}

/* i = ((base * n0 + z) * n1 + y) * n2 + x */
template <class I> __device__ inline Spot<I> spot_of(I i, I n0, I n1, I n2) {
    Spot<I> s;
    s.x = i % n2;
    i /= n2;
    s.y = i % n1;
    i /= n1;
    s.z = i % n0;
    s.base = i / n0;
    return s;
}

/* Offset of coordinates in a plane of n1 x n2 lines. */
template <class I>
__device__ inline I spot_offset(const Spot<I> &s, I n1, I n2) {
    return (s.z * n1 + s.y) * n2 + s.x;
}

/* * *p, or zero unless `in`. These two-byte loads are most of a tile's text;
   without a branch they need fewer instructions and compile faster. */
template <class T> __device__ inline T load_if(const T *p, bool in) {
    if constexpr (sizeof(T) == 2)
        return T{ampc_load_16(p, in)};
    else
        return in ? *p : T();
}

/* ---- X as a matrix: (image, output) by (channel, tap) -------------------- */

/* BITS: bits tell padding. Coordinates cost less where a thread meets each
   output once (wgrad). */
template <class P, bool BITS = true> struct ConvX {
    typedef Conv<P> G;
    typedef typename G::I I;
    typedef typename G::D0 D0;
    typedef typename G::D1 D1;
    typedef typename G::D2 D2;
    typedef typename P::X Element;
    static constexpr int n0 = D0::kernel, n1 = D1::kernel, n2 = D2::kernel;
    static constexpr bool bits =
        BITS && P::kernel0 + P::kernel1 + P::kernel2 <= 32;
    typedef typename PlaceOf<I, bits>::Type Place;
    static constexpr bool table = true;
    static constexpr int near = 1;
    const Element *x; /* at the group's first channel */

    static __device__ Place output(I i) {
        Spot<I> s = spot_of<I>(i, some(D0::out), some(D1::out), some(D2::out));
        s.z = s.z * D0::stride - D0::pad;
        s.y = s.y * D1::stride - D1::pad;
        s.x = s.x * D2::stride - D2::pad;
        s.base *= G::c * G::x_size;
        s.base += spot_offset<I>(s, D1::in, D2::in);
        if constexpr (bits)
            return {s.base, join_bits(D0::padding(s.z), D1::padding(s.y),
                                      D2::padding(s.x), n0, n1)};
        else
            return s;
    }
    static __device__ Place tap(I i) {
        Spot<I> s = spot_of<I>(i, D0::kernel, D1::kernel, D2::kernel);
        I z = s.z, y = s.y, at = s.x;
        s.z *= D0::dilation;
        s.y *= D1::dilation;
        s.x *= D2::dilation;
        s.base *= G::x_size;
        s.base += spot_offset<I>(s, D1::in, D2::in);
        if constexpr (bits)
            return {s.base, join_bits(1u << z, 1u << y, 1u << at, n0, n1)};
        else
            return s;
    }
    __device__ Element load(Place a, Place b, bool ok) const {
        if constexpr (bits)
            ok &= !(a.places & b.places);
        else
            ok &= D0::inside(a.z + b.z) & D1::inside(a.y + b.y) &
                  D2::inside(a.x + b.x);
        return load_if(x + (a.base + b.base), ok);
    }
};

#endif
