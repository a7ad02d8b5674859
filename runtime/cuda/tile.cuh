/* tile.cuh: C[m, n] = sum over k of A(m, k) B(k, n), one tile of C per block.

   Operands come from loaders, results go to a functor out(m, n, value), so
   that matrix products and convolutions are the same loop.  A loader L:
     L::Element, L::I          type in memory, type of indices
     L::along_k                neighbours in memory are neighbours in k
     Row L::row(i), Col L::col(k)   what an index contributes to an address
     Element L::load(Row, Col)      0 in the padding
   A block stages TILE_K steps of both operands in shared memory while the next
   ones are on their way to registers.  Elements past the edges are zeros.    */
#ifndef AMPC_TILE_CUH
#define AMPC_TILE_CUH

#include "device.cuh"
#include "ptx.cuh"

/* The part of a product that a block computes: rows from m0 below m, columns
   from n0 below n, steps [k0, k1). */
template <class I> struct Part {
    I m0, m, n0, n, k0, k1;
};

/* ---- staging ------------------------------------------------------------- */

/* Where unit u of this thread lies in a tile of ROWS x COLS units: neighbours
   are taken along k or along rows. */
template <int ROWS, int COLS, int THREADS, bool ALONG_K> struct Unit {
    static_assert(ROWS * COLS % THREADS == 0, "whole units");
    static_assert(THREADS % (ALONG_K ? COLS : ROWS) == 0, "whole lines");
    static constexpr int count = ROWS * COLS / THREADS;
    static __device__ int row(int u)
    {
        int at = (int)threadIdx.x + u * THREADS;
        return ALONG_K ? at / COLS : at % ROWS;
    }
    static __device__ int col(int u)
    {
        int at = (int)threadIdx.x + u * THREADS;
        return ALONG_K ? at % COLS : at / ROWS;
    }
};

/* Pairs of 16-bit values that follow each other in k: to[row][k / 2].  The
   pitch of 20 words keeps ldmatrix free of bank conflicts.                  */
template <class L, int ROWS, int THREADS> struct Pairs {
    static constexpr int cols = TILE_K_MMA / 2, pitch = cols + 4;
    typedef Unit<ROWS, cols, THREADS, L::along_k> U;
    typedef typename L::I I;
    unsigned v[U::count];

    __device__ void load(const L &in, I row0, I rows, I k0, I k1)
    {
        UNROLL
        for (int u = 0; u < U::count; u++) {
            I r = row0 + U::row(u), k = k0 + 2 * U::col(u);
            unsigned low = 0, high = 0;
            auto row = in.row(r);
            if (r < rows && k < k1) low = in.load(row, in.col(k)).bits;
            if (r < rows && k + 1 < k1) high = in.load(row, in.col(k + 1)).bits;
            v[u] = low | high << 16;
        }
    }

    __device__ void store(unsigned (*to)[pitch]) const
    {
        UNROLL
        for (int u = 0; u < U::count; u++) to[U::row(u)][U::col(u)] = v[u];
    }
};

/* Single values, widened to C: to[k][row]. */
template <class L, class C, int ROWS, int THREADS> struct Singles {
    static constexpr int pitch = ROWS + 4;
    typedef Unit<ROWS, TILE_K_FMA, THREADS, L::along_k> U;
    typedef typename L::I I;
    C v[U::count];

    __device__ void load(const L &in, I row0, I rows, I k0, I k1)
    {
        UNROLL
        for (int u = 0; u < U::count; u++) {
            I r = row0 + U::row(u), k = k0 + U::col(u);
            v[u] = 0;
            if (r < rows && k < k1)
                v[u] = (C)widen(in.load(in.row(r), in.col(k)));
        }
    }

    __device__ void store(C (*to)[pitch]) const
    {
        UNROLL
        for (int u = 0; u < U::count; u++) to[U::col(u)][U::row(u)] = v[u];
    }
};

/* ---- tensor cores -------------------------------------------------------- */

__device__ inline void mma(bf16, float d[4], const unsigned a[4],
                           const unsigned b[2])
{
    ampc_mma_bf16_16816(d, a, b);
}

__device__ inline void mma(f16, float d[4], const unsigned a[4],
                           const unsigned b[2])
{
    ampc_mma_f16_16816(d, a, b);
}

/* E x E products with fp32 sums: BM x BN of C per block, WM x WN per warp. */
template <class E, int BM, int BN, int WM, int WN> struct MmaTile {
    static constexpr int m = BM, n = BN, k = TILE_K_MMA;
    static constexpr int threads = BM / WM * (BN / WN) * 32;
    static constexpr int pitch = TILE_K_MMA / 2 + 4;
    static constexpr int mt = WM / 16, nt = WN / 8;
    static_assert(nt % 2 == 0, "ldmatrix brings two columns of B");

    /* 16 steps of k, from word kw of each row on. */
    static __device__ void step(const unsigned (*as)[pitch],
                                const unsigned (*bs)[pitch], int kw,
                                float acc[mt][nt][4])
    {
        int lane = (int)threadIdx.x % 32;
        unsigned b[nt][2];
        UNROLL
        for (int j = 0; j < nt; j += 2) {
            unsigned four[4];
            int row = j * 8 + lane / 16 * 8 + lane % 8;
            ampc_ldmatrix_x4(four, &bs[row][kw + lane / 8 % 2 * 4]);
            b[j][0] = four[0], b[j][1] = four[1];
            b[j + 1][0] = four[2], b[j + 1][1] = four[3];
        }
        UNROLL
        for (int i = 0; i < mt; i++) {
            unsigned a[4];
            ampc_ldmatrix_x4(a, &as[i * 16 + lane % 16][kw + lane / 16 * 4]);
            UNROLL
            for (int j = 0; j < nt; j++) mma(E(), acc[i][j], a, b[j]);
        }
    }

    template <class I, class Out>
    static __device__ void store(const Out &out, const Part<I> &p, int row,
                                 int col, const float acc[mt][nt][4])
    {
        int lane = (int)threadIdx.x % 32;
        UNROLL
        for (int j = 0; j < nt; j++)
            UNROLL
            for (int i = 0; i < mt; i++)
                UNROLL
                for (int e = 0; e < 4; e++) {
                    I r = p.m0 + row + i * 16 + lane / 4 + e / 2 * 8;
                    I c = p.n0 + col + j * 8 + lane % 4 * 2 + e % 2;
                    if (r < p.m && c < p.n) out(r, c, acc[i][j][e]);
                }
    }

    template <class A, class B, class Out, class I>
    static __device__ void run(const A &a, const B &b, const Out &out,
                               const Part<I> &p)
    {
        alignas(16) __shared__ unsigned as[BM][pitch];
        alignas(16) __shared__ unsigned bs[BN][pitch];
        Pairs<A, BM, threads> pa;
        Pairs<B, BN, threads> pb;
        int warp = (int)threadIdx.x / 32;
        int row = warp % (BM / WM) * WM, col = warp / (BM / WM) * WN;
        float acc[mt][nt][4] = {};
        pa.load(a, p.m0, p.m, p.k0, p.k1);
        pb.load(b, p.n0, p.n, p.k0, p.k1);
        for (I at = p.k0; at < p.k1; at += k) {
            pa.store(as);
            pb.store(bs);
            __syncthreads();
            if (at + k < p.k1) {
                pa.load(a, p.m0, p.m, at + k, p.k1);
                pb.load(b, p.n0, p.n, at + k, p.k1);
            }
            step(as + row, bs + col, 0, acc);
            step(as + row, bs + col, 8, acc);
            __syncthreads();
        }
        store(out, p, row, col, acc);
    }
};

/* ---- fused multiply-add -------------------------------------------------- */

/* Any operands, widened to C: BM x BN of C per block, TM x TN per thread. */
template <class C, int BM, int BN, int TM, int TN> struct FmaTile {
    static constexpr int m = BM, n = BN, k = TILE_K_FMA;
    static constexpr int cols = BN / TN, threads = BM / TM * cols;

    /* Rows of a thread come in fours, which lie next to each other. */
    static __device__ int row(int i)
    {
        return i / 4 * (BM / (TM / 4)) + (int)threadIdx.x / cols * 4 + i % 4;
    }
    static __device__ int col(int j)
    {
        return j / 4 * (BN / (TN / 4)) + (int)threadIdx.x % cols * 4 + j % 4;
    }

    static __device__ void step(const C *as, const C *bs, C acc[TM][TN])
    {
        C x[TM], y[TN];
        UNROLL
        for (int i = 0; i < TM; i++) x[i] = as[row(i)];
        UNROLL
        for (int j = 0; j < TN; j++) y[j] = bs[col(j)];
        UNROLL
        for (int i = 0; i < TM; i++)
            UNROLL
            for (int j = 0; j < TN; j++)
                acc[i][j] = fused(x[i], y[j], acc[i][j]);
    }

    template <class I, class Out>
    static __device__ void store(const Out &out, const Part<I> &p,
                                 const C acc[TM][TN])
    {
        UNROLL
        for (int j = 0; j < TN; j++)
            UNROLL
            for (int i = 0; i < TM; i++) {
                I r = p.m0 + row(i), c = p.n0 + col(j);
                if (r < p.m && c < p.n) out(r, c, acc[i][j]);
            }
    }

    template <class A, class B, class Out, class I>
    static __device__ void run(const A &a, const B &b, const Out &out,
                               const Part<I> &p)
    {
        alignas(16) __shared__ C as[k][BM + 4];
        alignas(16) __shared__ C bs[k][BN + 4];
        Singles<A, C, BM, threads> sa;
        Singles<B, C, BN, threads> sb;
        C acc[TM][TN] = {};
        sa.load(a, p.m0, p.m, p.k0, p.k1);
        sb.load(b, p.n0, p.n, p.k0, p.k1);
        for (I at = p.k0; at < p.k1; at += k) {
            sa.store(as);
            sb.store(bs);
            __syncthreads();
            if (at + k < p.k1) {
                sa.load(a, p.m0, p.m, at + k, p.k1);
                sb.load(b, p.n0, p.n, at + k, p.k1);
            }
            UNROLL_4
            for (int i = 0; i < k; i++) step(as[i], bs[i], acc);
            __syncthreads();
        }
        store(out, p, acc);
    }
};

/* ---- loaders and results ------------------------------------------------- */

/* A matrix with literal strides. */
template <class T, class Int, long long ROW, long long COL> struct Matrix {
    typedef T Element;
    typedef Int I;
    static constexpr bool along_k = COL <= ROW;
    const T *p;
    __device__ I row(I i) const { return i * (I)ROW; }
    __device__ I col(I k) const { return k * (I)COL; }
    __device__ T load(I r, I c) const { return p[r + c]; }
};

/* Partial sums of one slice of k. */
template <class C, class I> struct StorePartial {
    C *to;
    I ld;
    __device__ void operator()(I m, I n, C v) const { to[m * ld + n] = v; }
};

#endif
