/* SPDX-License-Identifier: Apache-2.0 */
/* gemm.cuh: matrix products of any strides, batches and dtypes.

   P: the parameters of LibGemm; Tile; a_near, b_near: `near` of the loaders
   (tile.cuh); long long a_at(batch), b_at(batch): element offsets of the
   batch's matrices.                                                         */
#ifndef AMPC_GEMM_CUH
#define AMPC_GEMM_CUH

#include "blocks.cuh"
#include "tile.cuh"

/* One past the last element that a tile may address. */
constexpr long long gemm_reach(long long rows, long long row, long long cols,
                               long long col) {
    return (rows + 128) * row + (cols + 128) * col;
}

template <class P> struct GemmSize {
    typedef Index<largest(gemm_reach(P::m, P::a_rs, P::k, P::a_cs),
                          gemm_reach(P::k, P::b_rs, P::n, P::b_cs),
                          gemm_reach(P::m, P::n, P::n, 1))>
        I;
};

/* Row-major C, without an epilogue. */
template <class P> struct StoreGemm {
    typedef typename P::C C;
    static constexpr int near = near_of<C>(some(P::n));
    C *c;
    template <int N, class Acc>
    __device__ void operator()(const Pack<N, Acc> &acc, long long batch,
                               long long row, long long col) const {
        pack_store(c + ((batch * P::m + row) * P::n + col), narrow<C>(acc));
    }
};

template <class Out, class I> struct GemmOut {
    static constexpr int near = Out::near;
    const Out &out;
    long long batch;
    template <class Acc>
    __device__ void operator()(I m, I n, const Pack<near, Acc> &acc) const {
        out(acc, batch, m, n);
    }
};

/* The part of C that is tile `tile`; tiles are numbered down columns first. */
template <class P, class I> __device__ auto gemm_part(unsigned tile) {
    typedef typename P::Tile T;
    constexpr unsigned mt = some(up_div(P::m, T::m));
    return Part<I, P::m % T::m == 0, P::n % T::n == 0, P::k % T::k == 0>{
        (I)(tile % mt) * T::m,
        (I)P::m,
        (I)(tile / mt) * T::n,
        (I)P::n,
        0,
        (I)P::k};
}

template <class P, class Out>
__device__ void gemm(const typename P::A *a, const typename P::B *b,
                     const Out &out) {
    typedef typename GemmSize<P>::I I;
    typedef typename P::Tile T;
    constexpr unsigned mt = some(up_div(P::m, T::m));
    constexpr unsigned nt = some(up_div(P::n, T::n));
    unsigned tile = blockIdx.x % (mt * nt);
    long long batch = blockIdx.x / (mt * nt);
    Matrix<typename P::A, I, P::a_rs, P::a_cs, P::a_near> la = {a +
                                                                P::a_at(batch)};
    Matrix<typename P::B, I, P::b_cs, P::b_rs, P::b_near> lb = {b +
                                                                P::b_at(batch)};
    T::run(la, lb, GemmOut<Out, I>{out, batch}, gemm_part<P, I>(tile));
}

/* ---- where cuBLASLt refuses ---------------------------------------------- */

/* A PlanProduct, computed by product_any. */
#define PRODUCT_PLAIN       0
#define PRODUCT_BIAS        1
#define PRODUCT_SCALE       2
#define PRODUCT_ADD         3
#define PRODUCT_SCALE_BIAS  4
#define PRODUCT_SCALE_ADD   5
#define PRODUCT_BLOCKS_BIAS 7
#define PRODUCT_BLOCKS_ADD  8

/* The epilogue: `more` has elements of C. */
struct ProductAfter {
    long long how;
    const float *scale; /* null: 1 */
    const void *more;
    /* The epilogue of element i, in column col; rounds once. */
    template <class C, class Acc>
    __device__ C finish(Acc acc, long long i, long long col) const {
        const C *c = (const C *)more;
        if (scale) acc = acc * (Acc)*scale;
        if (how == PRODUCT_BIAS || how == PRODUCT_SCALE_BIAS ||
            how == PRODUCT_BLOCKS_BIAS)
            acc = acc + (Acc)widen(c[col]);
        if (how == PRODUCT_ADD || how == PRODUCT_SCALE_ADD ||
            how == PRODUCT_BLOCKS_ADD)
            acc = acc + (Acc)widen(c[i]);
        return narrow<C>(acc);
    }
};

template <class P> struct StoreAny {
    static constexpr int near = 1;
    typename P::C *c;
    const ProductAfter &after;
    long long at, ld; /* offset of the matrix; leading dimension */
    template <class Acc>
    __device__ void operator()(long long m, long long n,
                               const Pack<1, Acc> &acc) const {
        long long i = at + m * ld + n;
        c[i] = after.template finish<typename P::C>(acc.v[0], i, n);
    }
};

/* An operand, and the scales of its blocks; null: it has none. */
template <class T> struct AnyOperand {
    const T *p;
    const e8m0 *scales;
};

/* A matrix with any strides, of columns k. */
template <class T, bool EIGHT = sizeof(T) == 1> struct AnyMatrix {
    typedef T Element;
    typedef long long I;
    static constexpr bool along_k = true, table = false;
    static constexpr int near = 1;
    AnyOperand<T> of;
    I at, rs, cs, k;
    __device__ I row(I i) const { return at + i * rs; }
    __device__ I col(I k) const { return k * cs; }
    __device__ T load(I r, I c, bool ok) const {
        return ok ? of.p[r + c] : T();
    }
};

/* .. of codes of 8 bits, whose blocks may have scales. */
template <class T> struct AnyMatrix<T, true> {
    typedef float Element;
    typedef long long I;
    static constexpr bool along_k = true, table = false;
    static constexpr int near = 1;
    AnyOperand<T> of;
    I at, rs, cs, k;
    __device__ I row(I i) const { return i; }
    __device__ I col(I k) const { return k; }
    __device__ float scale(I r, I c) const {
        return widen(of.scales[blocks_place(r, c / 32, (k + 127) / 128)]);
    }
    __device__ float load(I r, I c, bool ok) const {
        if (!ok) return 0;
        float x = widen(of.p[at + r * rs + c * cs]);
        return of.scales ? x * scale(r, c) : x;
    }
};

/* The fields of LibGemm for a product with at most one batch dim. */
struct ProductShape {
    long long m, n, k, batch, a_bs, b_bs, a_rs, a_cs, b_rs, b_cs;
};

/* P: A, B, C, Acc. */
template <class P>
__device__ void product_any(const AnyOperand<typename P::A> &a,
                            const AnyOperand<typename P::B> &b,
                            typename P::C *c, const ProductShape &s,
                            const ProductAfter &after) {
    typedef FmaTile<typename P::Acc, 64, 64, 4, 4> T;
    long long mt = up_div(s.m, T::m), nt = up_div(s.n, T::n);
    UNROLL_1
    for (long long t = blockIdx.x; t < mt * nt * s.batch; t += gridDim.x) {
        long long batch = t / (mt * nt);
        AnyMatrix<typename P::A> la = {a, batch * s.a_bs, s.a_rs, s.a_cs, s.k};
        AnyMatrix<typename P::B> lb = {b, batch * s.b_bs, s.b_cs, s.b_rs, s.k};
        StoreAny<P> out = {c, after, batch * s.m * s.n, s.n};
        Part<long long> part = {t % mt * T::m, s.m, t / mt % nt * T::n,
                                s.n,           0,   s.k};
        T::run(la, lb, out, part);
        __syncthreads();
    }
}

/* The product is in c: applies what follows it. */
template <class P>
__device__ void product_after(typename P::C *c, const ProductShape &s,
                              const ProductAfter &after) {
    long long count = s.m * s.n * s.batch;
    long long step = (long long)gridDim.x * blockDim.x;
    UNROLL_1
    for (long long i = flat_index<long long>(); i < count; i += step)
        c[i] = after.template finish<typename P::C>(
            (typename P::Acc)widen(c[i]), i, i % s.n);
}

#endif
