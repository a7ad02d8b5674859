/* SPDX-License-Identifier: Apache-2.0 */
/* tile_product.cuh: a matrix product in CUDA Tile C++ and what kernels compute
   behind it (codegen/cuda/print_tile.c).

   A block computes rows x columns of the result. T has the sizes m, n, k of
   the product, those of a block, and whether operands are stored transposed.
   Whole rows and addresses are multiples of 16 bytes, which the GPU's copies
   of tiles need. Names of math functions are those of kmath.h; they take
   tiles. */
#ifndef AMPC_TILE_PRODUCT_CUH
#define AMPC_TILE_PRODUCT_CUH

#include <cuda_tile.h>

#ifdef __CUDACC_RTC__ /* declared by cuda_tile.h, defined by headers that      \
                         NVRTC has not at hand */
struct __tile_builtin__ __align__(2) __nv_bfloat16 {
    unsigned short bits;
};
struct __tile_builtin__ __align__(2) __half {
    unsigned short bits;
};
#endif

namespace ct = cuda::tiles;
typedef __nv_bfloat16 bf16;
typedef __half f16;

/* ---- where ----------------------------------------------------------------*/

struct TilePlace {
    int row, column; /* of the blocks */
};

/* Blocks that run at the same time share operands: they are numbered down
   groups of some rows of blocks. */
template <class T> __tile__ TilePlace tile_place() {
    constexpr int down = (T::m + T::rows - 1) / T::rows;
    constexpr int across = (T::n + T::columns - 1) / T::columns;
    constexpr int group = down < 8 ? down : 8;
    int block = ct::bid().x;
    int first = block / (group * across) * group;
    int high = down - first < group ? down - first : group;
    int in_group = block % (group * across);
    return {first + in_group % high, in_group / high};
}

/* ---- memory -------------------------------------------------------------- */

template <int M, int N, int R, int C, class E> __tile__ auto tile_view(E *p) {
    return ct::partition_view{ct::tensor_span{ct::assume_aligned<16>(p),
                                              ct::extents<unsigned, M, N>{}},
                              ct::shape<R, C>{}};
}

/* Zeros outside of the matrix. */
template <int M, int N, int R, int C, class View>
__tile__ auto tile_load(const View &v, int row, int column) {
    if constexpr (M % R == 0 && N % C == 0)
        return v.load(row, column);
    else
        return v.template load_masked<ct::view_padding::zero>(row, column);
}

template <class T, class E> __tile__ auto tile_all(const E *p, TilePlace at) {
    return ct::element_cast<float>(tile_load<T::m, T::n, T::rows, T::columns>(
        tile_view<T::m, T::n, T::rows, T::columns>(p), at.row, at.column));
}

/* One number a column. */
template <class T, class E>
__tile__ auto tile_columns(const E *p, TilePlace at) {
    return ct::element_cast<float>(tile_load<1, T::n, 1, T::columns>(
        tile_view<1, T::n, 1, T::columns>(p), 0, at.column));
}

template <class T, class E> __tile__ auto tile_number(const E *p, TilePlace) {
    return ct::element_cast<float>(ct::load(p));
}

template <class T, class E, class V>
__tile__ void tile_store(E *p, const V &x, TilePlace at) {
    auto v = tile_view<T::m, T::n, T::rows, T::columns>(p);
    if constexpr (T::m % T::rows == 0 && T::n % T::columns == 0)
        v.store(ct::element_cast<E>(x), at.row, at.column);
    else
        v.store_masked(ct::element_cast<E>(x), at.row, at.column);
}

/* ---- the product --------------------------------------------------------- */

/* Sums in fp32. */
template <class T>
__tile__ auto tile_product(const typename T::factor *a,
                           const typename T::factor *b, TilePlace at) {
    constexpr int m = T::m, n = T::n, k = T::k, d = T::depth;
    constexpr int steps = (k + d - 1) / d;
    auto sum = ct::zeros<ct::tile<float, ct::shape<T::rows, T::columns>>>();
    if constexpr (!T::turn_a && !T::turn_b) {
        auto x = tile_view<m, k, T::rows, d>(a);
        auto y = tile_view<k, n, d, T::columns>(b);
        for (auto i : ct::irange(0, steps))
            sum = ct::mma(tile_load<m, k, T::rows, d>(x, at.row, i),
                          tile_load<k, n, d, T::columns>(y, i, at.column), sum);
    } else if constexpr (!T::turn_a) {
        auto x = tile_view<m, k, T::rows, d>(a);
        auto y = tile_view<n, k, T::columns, d>(b);
        for (auto i : ct::irange(0, steps))
            sum = ct::mma(
                tile_load<m, k, T::rows, d>(x, at.row, i),
                ct::transpose(tile_load<n, k, T::columns, d>(y, at.column, i)),
                sum);
    } else if constexpr (!T::turn_b) {
        auto x = tile_view<k, m, d, T::rows>(a);
        auto y = tile_view<k, n, d, T::columns>(b);
        for (auto i : ct::irange(0, steps))
            sum = ct::mma(
                ct::transpose(tile_load<k, m, d, T::rows>(x, i, at.row)),
                tile_load<k, n, d, T::columns>(y, i, at.column), sum);
    } else {
        auto x = tile_view<k, m, d, T::rows>(a);
        auto y = tile_view<n, k, T::columns, d>(b);
        for (auto i : ct::irange(0, steps))
            sum = ct::mma(
                ct::transpose(tile_load<k, m, d, T::rows>(x, i, at.row)),
                ct::transpose(tile_load<n, k, T::columns, d>(y, at.column, i)),
                sum);
    }
    return sum;
}

/* ---- arithmetic ---------------------------------------------------------- */

template <class X> __tile__ auto ROUND_BF16(const X &x) {
    return ct::element_cast<float>(ct::element_cast<bf16>(x));
}
template <class X> __tile__ auto ROUND_F16(const X &x) {
    return ct::element_cast<float>(ct::element_cast<f16>(x));
}
template <class X> __tile__ auto ABS_F32(const X &x) { return ct::abs(x); }
template <class X> __tile__ auto EXP_F32(const X &x) { return ct::exp(x); }
template <class X> __tile__ auto EXP_LOW_F32(const X &x) { return ct::exp(x); }
template <class X> __tile__ auto SQRT_F32(const X &x) { return ct::sqrt(x); }
template <class X> __tile__ auto TANH_F32(const X &x) { return ct::tanh(x); }
template <class X, class Y> __tile__ auto DIV_F32(const X &x, const Y &y) {
    return x / y;
}
template <class X> __tile__ auto SIGMOID_F32(const X &x) {
    return 1.0f / (1.0f + ct::exp(-x));
}

/* As km_upper_tail of kmath_f32.h. */
template <class X> __tile__ auto tile_upper_tail(const X &given, float slope) {
    auto y = ct::select(given > 15.0f, ct::full<X>(15.0f), given);
    auto sq = y * y;
    auto err = ct::fma(y, y, -sq);
    auto u = 1.0f / (0.3f * y + 1.0f);
    auto p = u * 0x1.3aa284p-5f + -0x1.5abe5p-3f;
    p = p * u + 0x1.d4e588p-3f;
    p = p * u + -0x1.3abe18p-4f;
    p = p * u + 0x1.2462bap-3f;
    p = p * u + 0x1.836bfcp-4f;
    p = p * u + 0x1.f37cfep-4f;
    p = p * u + 0x1.e96842p-4f;
    p = p * u + 0x1.eecda8p-18f;
    p = p - slope * y;
    return ct::exp(-0.5f * sq) * (p - p * (0.5f * err));
}

template <class X> __tile__ auto GELU_F32(const X &x) {
    auto q = tile_upper_tail(ct::abs(x), 0.0f);
    return x * ct::select(x < 0.0f, q, 1.0f - q);
}

template <class X> __tile__ auto GELU_LOW_F32(const X &x) {
    return GELU_F32(x);
}

template <class X> __tile__ auto GELU_SLOPE_F32(const X &x) {
    auto s = tile_upper_tail(ct::abs(x), 0x1.988454p-2f);
    return ct::select(x < 0.0f, s, 1.0f - s);
}

template <class X> __tile__ auto GELU_TANH_F32(const X &x) {
    auto u = 0x1.988454p+0f * (0.044715f * x * x * x + x);
    return x * SIGMOID_F32(u);
}

template <class X> __tile__ auto ERF_F32(const X &x) {
    auto a = ct::abs(x), s = x * x;
    auto big = 1.0f - 2.0f * tile_upper_tail(a * 0x1.6a09e6p+0f, 0.0f);
    auto p = s * 0x1.165cdap-8f + -0x1.b142f8p-6f;
    p = p * s + 0x1.cddf4cp-4f;
    p = p * s + -0x1.8126p-2f;
    p = p * s + 0x1.20dd74p+0f;
    return ct::select(a < 0.7f, x * p, ct::select(x < 0.0f, -big, big));
}

#endif
