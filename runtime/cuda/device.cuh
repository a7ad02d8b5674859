/* SPDX-License-Identifier: Apache-2.0 */
/* device.cuh: storage types, conversions and indices of hand-written kernels.

   Kernels are templates over a struct P, printed by codegen/cuda_lib.c, whose
   static members are the step's parameters: every shape is a literal, so that
   divisions become multiplications and dead branches disappear.             */
#ifndef AMPC_DEVICE_CUH
#define AMPC_DEVICE_CUH

#include "fold.cuh"
#include "kmath.h"
#include "tile.h"

#ifdef __CUDACC_RTC__
#define UNROLL_8 _Pragma("unroll 8")
#define UNROLL_4 _Pragma("unroll 4")
#define UNROLL_2 _Pragma("unroll 2")
#define UNROLL_1 _Pragma("unroll 1")
#else
#define UNROLL_8
#define UNROLL_4
#define UNROLL_2
#define UNROLL_1
#endif

struct f16 {
    uint16_t bits;
};

struct bf16 {
    uint16_t bits;
};

struct f8e4m3 {
    uint8_t bits;
};

struct f8e5m2 {
    uint8_t bits;
};

struct e8m0 {
    uint8_t bits;
};

/* ---- widening and narrowing ---------------------------------------------- */

/* The type for computing with a value: float, double, or an integer of 4 or
   8 bytes. */
__device__ inline float widen(f16 x) { return F16_TO_F32(x.bits); }
__device__ inline float widen(bf16 x) { return BF16_TO_F32(x.bits); }
__device__ inline float widen(f8e4m3 x) { return F8E4M3_TO_F32(x.bits); }
__device__ inline float widen(f8e5m2 x) { return F8E5M2_TO_F32(x.bits); }
__device__ inline float widen(e8m0 x) { return E8M0_TO_F32(x.bits); }
template <class T> __device__ inline auto widen(T x) { return +x; }
template <class T> using Compute = decltype(widen(T()));

template <class T> struct Narrow {
    template <class C> static __device__ T from(C x) { return (T)x; }
};
template <> struct Narrow<f16> {
    template <class C> static __device__ f16 from(C x) {
        return f16{F32_TO_F16((float)x)};
    }
};
template <> struct Narrow<bf16> {
    template <class C> static __device__ bf16 from(C x) {
        return bf16{F32_TO_BF16((float)x)};
    }
};
template <> struct Narrow<f8e4m3> {
    template <class C> static __device__ f8e4m3 from(C x) {
        return f8e4m3{F32_TO_F8E4M3((float)x)};
    }
};
template <> struct Narrow<f8e5m2> {
    template <class C> static __device__ f8e5m2 from(C x) {
        return f8e5m2{F32_TO_F8E5M2((float)x)};
    }
};
template <> struct Narrow<e8m0> {
    template <class C> static __device__ e8m0 from(C x) {
        return e8m0{F32_TO_E8M0((float)x)};
    }
};
template <class T, class C> __device__ inline T narrow(C x) {
    return Narrow<T>::from(x);
}

/* Each of N neighbours. */
template <class T, int N, class C>
__device__ inline Pack<N, T> narrow(const Pack<N, C> &x) {
    Pack<N, T> y;
    UNROLL
    for (int i = 0; i < N; i++) y.v[i] = narrow<T>(x.v[i]);
    return y;
}

__device__ inline float fused(float a, float b, float c) {
    return fmaf(a, b, c);
}
__device__ inline double fused(double a, double b, double c) {
    return fma(a, b, c);
}

/* ---- indices ------------------------------------------------------------- */

/* int if `most` elements, and a block beyond them, can be counted in an int. */
template <bool SMALL> struct IndexOf { typedef int Type; };
template <> struct IndexOf<false> { typedef long long Type; };
template <long long MOST>
using Index = typename IndexOf<(MOST < (1ll << 31) - (1ll << 20))>::Type;

constexpr long long largest(long long a, long long b) { return a > b ? a : b; }
constexpr long long largest(long long a, long long b, long long c) {
    return largest(largest(a, b), c);
}
constexpr long long up_div(long long a, long long b) { return (a + b - 1) / b; }
/* Divisors for shapes without elements. */
constexpr long long some(long long a) { return a > 0 ? a : 1; }

/* 0 <= i < n as one comparison, which compilers do not find by themselves. */
__device__ inline bool below(int i, int n) { return (unsigned)i < (unsigned)n; }
__device__ inline bool below(long long i, long long n) {
    return (unsigned long long)i < (unsigned long long)n;
}

/* Returns how many neighbouring elements fit in 16 bytes, or fewer if a line
   of `line` elements is not a multiple of that. */
template <class T> constexpr int near_of(long long line) {
    int n = 16 / sizeof(T);
    while (line % n) n /= 2;
    return n;
}

/* Index of this thread in the grid. */
template <class I> __device__ inline I flat_index() {
    return (I)blockIdx.x * (I)blockDim.x + (I)threadIdx.x;
}

/* Converts CONVERT_NEAR of n neighbours to another type, or the remainder. */
template <class To, class From>
__device__ void convert(const From *from, To *to, long long n) {
    constexpr int N = CONVERT_NEAR;
    long long i = flat_index<long long>() * N;
    if (i + N <= n) {
        Pack<N, From> x = pack_load<N>(from + i);
        Pack<N, To> y;
        UNROLL
        for (int u = 0; u < N; u++) y.v[u] = narrow<To>(widen(x.v[u]));
        pack_store(to + i, y);
        return;
    }
    for (; i < n; i++) to[i] = narrow<To>(widen(from[i]));
}

#endif
