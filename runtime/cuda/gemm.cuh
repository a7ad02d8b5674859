/* gemm.cuh: matrix products of any strides, batches and dtypes.

   P: the parameters of LibGemm; Tile; long long
   a_at(batch), b_at(batch): element offsets of the batch's matrices.        */
#ifndef AMPC_GEMM_CUH
#define AMPC_GEMM_CUH

#include "tile.cuh"

/* Past the last element that a tile may address. */
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
    typename P::C *c;
    template <class Acc>
    __device__ void operator()(Acc acc, long long batch, long long row,
                               long long col) const {
        c[(batch * P::m + row) * P::n + col] = narrow<typename P::C>(acc);
    }
};

template <class Out, class I> struct GemmOut {
    const Out &out;
    long long batch;
    template <class Acc> __device__ void operator()(I m, I n, Acc acc) const {
        out(acc, batch, m, n);
    }
};

template <class P, class Out>
__device__ void gemm(const typename P::A *a, const typename P::B *b,
                     const Out &out) {
    typedef typename GemmSize<P>::I I;
    typedef typename P::Tile T;
    constexpr unsigned mt = some(up_div(P::m, T::m));
    constexpr unsigned nt = some(up_div(P::n, T::n));
    unsigned tile = blockIdx.x % (mt * nt);
    long long batch = blockIdx.x / (mt * nt);
    Matrix<typename P::A, I, P::a_rs, P::a_cs> la = {a + P::a_at(batch)};
    Matrix<typename P::B, I, P::b_cs, P::b_rs> lb = {b + P::b_at(batch)};
    Part<I> part = {(I)(tile % mt) * T::m,
                    (I)P::m,
                    (I)(tile / mt) * T::n,
                    (I)P::n,
                    0,
                    (I)P::k};
    T::run(la, lb, GemmOut<Out, I>{out, batch}, part);
}

#endif
