/* SPDX-License-Identifier: Apache-2.0 */
/* tile.cuh: C[m, n] = sum over k of A(m, k) B(k, n), one tile of C per block.

   Operands come from loaders, and results go to a functor, so that matrix
   products and convolutions share the same loop. A loader L:
     L::Element, L::I          type in memory, type of indices
     L::along_k                neighbours in memory are neighbours in k
     L::table                  the index that a thread meets in many values is
                               worth being looked up in shared memory
     Place L::row(i), L::col(k)     what an index contributes to an address
     Element L::load(row, col, ok)  0 in the padding, and unless ok
     L::near                   for k a multiple of it (1, 2, 4, 8), as many
                               elements from k on are neighbours, aligned to
                               their size: Element *L::place(row, col).  It
                               divides the last k, too
   A functor Out:
     Out::near                 n is a multiple of it, a divisor of the last n
     out(m, n, Pack<near, C>)  takes as many results from n on
   A block stages some steps of both operands in shared memory while the next
   ones are on their way to registers.  Elements past the edges are zeros.
   Results pass through shared memory, so that neighbouring threads store
   neighbours, and the functor's code occurs once.
     strip_of<Out>                    not 0: before, each row's results of a
                                      strip of so many columns are added up
     Out::rounded(float)              a result as it is stored
     out.keep(m, strip, sum, squares) takes their sum, and the sum of squares
                                      around their mean
     pairs_of<Out>                    not 0: out(m, n, v) returns two numbers,
                                      added up likewise and kept as above   */
#ifndef AMPC_TILE_CUH
#define AMPC_TILE_CUH

#include "device.cuh"
#include "ptx.cuh"

/* The part of a product that a block computes: rows from m0 below m, columns
   from n0 below n, steps [k0, k1).  M, N, K: extents of which only whole
   tiles exist. */
template <class Int, bool M = false, bool N = false, bool K = false>
struct Part {
    typedef Int I;
    static constexpr bool whole_m = M, whole_n = N, whole_k = K;
    I m0, m, n0, n, k0, k1;
};

/* ---- places of a loader -------------------------------------------------- */

/* Tables for the rows (along_k) or columns of a tile, in shared memory;
   empty for loaders without tables. */
template <class L, int ROWS, int COLS, bool TABLE> struct Table {
    typedef typename L::I I;
    __device__ void start(const L &, I) {}
    __device__ void next(const L &, I) {}
    __device__ auto row(const L &in, I row0, int r) const {
        return in.row(row0 + r);
    }
    __device__ auto col(const L &in, I k0, int c) const {
        return in.col(k0 + c);
    }
};

template <class L, int ROWS, int COLS> struct Table<L, ROWS, COLS, true> {
    typedef typename L::I I;
    static constexpr int lines = L::along_k ? ROWS : COLS;
    typename L::Place at[lines];

    /* Called before the first tile, and before each one; a barrier follows. */
    __device__ void start(const L &in, I row0) {
        int t = (int)threadIdx.x;
        if (L::along_k && t < lines) at[t] = in.row(row0 + t);
    }
    __device__ void next(const L &in, I k0) {
        int t = (int)threadIdx.x;
        if (!L::along_k && t < lines) at[t] = in.col(k0 + t);
    }
    __device__ typename L::Place row(const L &in, I row0, int r) const {
        return L::along_k ? at[r] : in.row(row0 + r);
    }
    __device__ typename L::Place col(const L &in, I k0, int c) const {
        return L::along_k ? in.col(k0 + c) : at[c];
    }
};

/* ---- staging ------------------------------------------------------------- */

/* Position of unit u of this thread in a tile of ROWS x COLS units:
   neighbouring threads take neighbours along k or along rows. */
template <int ROWS, int COLS, int THREADS, bool ALONG_K> struct Unit {
    static_assert(ROWS * COLS % THREADS == 0, "whole units");
    static_assert(THREADS % (ALONG_K ? COLS : ROWS) == 0, "whole lines");
    static constexpr int count = ROWS * COLS / THREADS;
    static __device__ int row(int u) {
        return ALONG_K ? (int)(threadIdx.x / COLS) + u * (THREADS / COLS)
                       : (int)(threadIdx.x % ROWS);
    }
    static __device__ int col(int u) {
        return ALONG_K ? (int)(threadIdx.x % COLS)
                       : (int)(threadIdx.x / ROWS) + u * (THREADS / ROWS);
    }
};

/* W words of 32 bits. */
template <int W> struct alignas(4 * W) Words { unsigned v[W]; };

struct tf32 {};

/* Factors of type E: `per` of them, adjacent in k, in a word; word(x): of as
   many fp32 elements x. */
template <class E> struct Factor { static constexpr int per = 2; };
template <> struct Factor<tf32> {
    static constexpr int per = 1;
    static __device__ unsigned word(const unsigned *x) {
        return ampc_tf32(__uint_as_float(x[0]));
    }
};
template <> struct Factor<bf16> {
    static constexpr int per = 2;
    static __device__ unsigned word(const unsigned *x) {
        unsigned low = F32_TO_BF16(__uint_as_float(x[0]));
        unsigned high = F32_TO_BF16(__uint_as_float(x[1]));
        return low | high << 16;
    }
};

/* Position in shared memory of word `word` of a row's TILE_K_MMA / 2 words.
   A row has four pieces of 16 bytes; rows exchange theirs, so that the eight
   lanes that shared memory serves at once meet all banks, whether they have
   the same piece of eight rows (ldmatrix, gathers) or all pieces of two. */
__device__ inline int tile_word(int row, int word) {
    return word ^ row / 2 % 4 * 4;
}

/* to[row][tile_word(row, k / per)], factors of type E.  A thread gathers enough
   values to fill 16 bytes if its neighbours have the same k of other rows.
   Values are converted when they are stored: a conversion waits for the
   load. */
template <class E, class L, int ROWS, int THREADS> struct Factors {
    typedef typename L::Element Element;
    static constexpr int per = Factor<E>::per, pitch = TILE_K_MMA / 2;
    static constexpr bool converts = sizeof(Element) == 4;
    static constexpr int most = ROWS * pitch / THREADS;
    static constexpr int words = L::near > 1  ? L::near / per
                                 : L::along_k ? 1
                                              : 4;
    static constexpr int width = words < most ? words : most;
    static constexpr int loaded = converts ? width * per : width;
    static constexpr int each = converts ? 1 : 2; /* elements of a word */
    static constexpr int cols = pitch / width;
    typedef Unit<ROWS, cols, THREADS, L::along_k> U;
    typedef Table<L, ROWS, pitch * per, L::table> Places;
    typedef typename L::I I;
    Words<loaded> v[U::count];

    template <bool ROWS_WHOLE, bool K_WHOLE>
    __device__ void load(const L &in, const Places &t, I row0, I rows, I k0,
                         I k1) {
        UNROLL
        for (int u = 0; u < U::count; u++) {
            int r = U::row(u), c = per * width * U::col(u);
            auto row = t.row(in, row0, r);
            bool here = ROWS_WHOLE || row0 + r < rows;
            if constexpr (L::near > 1) {
                bool in_k = here & (K_WHOLE || k0 + c < k1);
                auto p = in.place(row, t.col(in, k0, c));
                v[u] = in_k ? *reinterpret_cast<const Words<loaded> *>(p)
                            : Words<loaded>{};
            } else {
                UNROLL
                for (int w = 0; w < loaded; w++) {
                    int k = c + each * w;
                    bool first = here & (K_WHOLE || k0 + k < k1);
                    Element x = in.load(row, t.col(in, k0, k), first);
                    if constexpr (converts) {
                        v[u].v[w] = __float_as_uint(x);
                    } else {
                        bool second = here & (K_WHOLE || k0 + k + 1 < k1);
                        unsigned low = x.bits;
                        unsigned high =
                            in.load(row, t.col(in, k0, k + 1), second).bits;
                        v[u].v[w] = low | high << 16;
                    }
                }
            }
        }
    }

    __device__ Words<width> factors(int u) const {
        if constexpr (converts) {
            Words<width> x;
            UNROLL
            for (int w = 0; w < width; w++)
                x.v[w] = Factor<E>::word(&v[u].v[w * per]);
            return x;
        } else {
            return v[u];
        }
    }

    __device__ void store(unsigned (*to)[pitch]) const {
        UNROLL
        for (int u = 0; u < U::count; u++)
            *reinterpret_cast<Words<width> *>(
                &to[U::row(u)][tile_word(U::row(u), width * U::col(u))]) =
                factors(u);
    }
};

/* Single values, converted to C: to[k][row]. */
template <class L, class C, int ROWS, int THREADS> struct Singles {
    static constexpr int pitch = ROWS + 4;
    typedef Unit<ROWS, TILE_K_FMA, THREADS, L::along_k> U;
    typedef Table<L, ROWS, TILE_K_FMA, L::table> Places;
    typedef typename L::I I;
    C v[U::count];

    template <bool ROWS_WHOLE, bool K_WHOLE>
    __device__ void load(const L &in, const Places &t, I row0, I rows, I k0,
                         I k1) {
        UNROLL
        for (int u = 0; u < U::count; u++) {
            int r = U::row(u), c = U::col(u);
            bool ok =
                (ROWS_WHOLE || row0 + r < rows) & (K_WHOLE || k0 + c < k1);
            v[u] = (C)widen(in.load(t.row(in, row0, r), t.col(in, k0, c), ok));
        }
    }

    __device__ void store(C (*to)[pitch]) const {
        UNROLL
        for (int u = 0; u < U::count; u++) to[U::col(u)][U::row(u)] = v[u];
    }
};

/* The loop over k: `step` computes on the tiles that SA and SB have staged
   in as and bs, while the next ones are loaded. */
template <class T, class SA, class SB, class A, class B, class P, class SharedA,
          class SharedB, class Step>
__device__ void tile_loop(const A &a, const B &b, const P &p, SharedA &as,
                          SharedB &bs, Step step) {
    constexpr bool m = P::whole_m, n = P::whole_n, k = P::whole_k;
    __shared__ typename SA::Places ta;
    __shared__ typename SB::Places tb;
    SA sa;
    SB sb;
    ta.start(a, p.m0);
    tb.start(b, p.n0);
    ta.next(a, p.k0);
    tb.next(b, p.k0);
    __syncthreads();
    for (typename P::I at = p.k0;; at += T::k) {
        bool more = at < p.k1;
        if (more) sa.template load<m, k>(a, ta, p.m0, p.m, at, p.k1);
        if (more) sb.template load<n, k>(b, tb, p.n0, p.n, at, p.k1);
        if (at > p.k0) step(); /* on the tile before */
        if (!more) break;
        __syncthreads();
        sa.store(as);
        sb.store(bs);
        ta.next(a, at + T::k);
        tb.next(b, at + T::k);
        __syncthreads();
    }
}

/* ---- sums of strips ------------------------------------------------------ */

template <class Out> constexpr int strip_of = 0;
template <class Out> constexpr int pairs_of = 0;

struct SumPair {
    float first, second;
};

/* The sum over LANES neighbouring lanes, for each of them. */
template <int LANES> __device__ float lanes_sum(float x) {
    UNROLL
    for (int d = 1; d < LANES; d *= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

/* N neighbours in a line of a slice. */
template <int N, class C, int PITCH>
__device__ Pack<N, C> slice_pack(const C (&line)[PITCH], int c) {
    Pack<N, C> v;
    UNROLL
    for (int i = 0; i < N; i++) v.v[i] = line[c + i];
    return v;
}

/* Passes a slice of results to `out`; row_of: maps a slice's row to the
   tile's row. */
template <class T, class C, int ROWS, int PITCH, class P, class Out,
          class RowOf>
__device__ void tile_flush(const C (&slice)[ROWS][PITCH], const P &p,
                           const Out &out, RowOf row_of) {
    constexpr int near = Out::near, units = T::n / near;
    UNROLL_1
    for (int e = (int)threadIdx.x; e < ROWS * units; e += T::threads) {
        int r = e / units, c = e % units * near;
        typename P::I m = p.m0 + row_of(r), n = p.n0 + c;
        Pack<near, C> v = slice_pack<near>(slice[r], c);
        if ((P::whole_m || m < p.m) && (P::whole_n || n < p.n)) out(m, n, v);
    }
}

/* The same, and adds up each row's results of a strip: a lane's, then its
   neighbours'. */
template <class T, int ROWS, int PITCH, class P, class Out, class RowOf>
__device__ void tile_flush_strips(const float (&slice)[ROWS][PITCH], const P &p,
                                  const Out &out, RowOf row_of) {
    constexpr int near = Out::near, each = near < 4 ? 4 : near;
    constexpr int wide = strip_of<Out>, lanes = wide / each;
    constexpr int units = T::n / each;
    static_assert(ROWS * units % T::threads == 0 && T::n % wide == 0, "whole");
    UNROLL_1
    for (int k = 0; k < ROWS * units / T::threads; k++) {
        int e = k * T::threads + (int)threadIdx.x;
        int r = e / units, c = e % units * each;
        typename P::I m = p.m0 + row_of(r), n = p.n0 + c, from = n - c % wide;
        int cols = P::whole_n || p.n - from > wide ? wide : (int)(p.n - from);
        bool here = P::whole_m || m < p.m;
        auto v = slice_pack<each>(slice[r], c);
        float sum = 0, square = 0;
        UNROLL
        for (int i = 0; i < each; i++) {
            bool in = P::whole_n || c % wide + i < cols;
            v.v[i] = in ? Out::rounded(v.v[i]) : 0;
            sum += v.v[i];
        }
        sum = lanes_sum<lanes>(sum);
        float mean = sum / (float)cols;
        UNROLL
        for (int i = 0; i < each; i++) {
            bool in = P::whole_n || c % wide + i < cols;
            float d = v.v[i] - mean;
            square = in ? fmaf(d, d, square) : square;
        }
        square = lanes_sum<lanes>(square);
        UNROLL
        for (int i = 0; i < each; i += near)
            if (here && (P::whole_n || n + i < p.n))
                out(m, n + i, slice_pack<near>(v.v, i));
        if (here && c % wide == 0 && (P::whole_n || n < p.n))
            out.keep(m, n / wide, sum, square);
    }
}

/* The same for a functor that returns the numbers of each row to be added
   up. */
template <class T, int ROWS, int PITCH, class P, class Out, class RowOf>
__device__ void tile_flush_pairs(const float (&slice)[ROWS][PITCH], const P &p,
                                 const Out &out, RowOf row_of) {
    constexpr int near = Out::near, units = T::n / near;
    constexpr int wide = pairs_of<Out>, lanes = wide / near;
    static_assert(lanes <= 32 && ROWS * units % T::threads == 0, "whole warps");
    UNROLL_1
    for (int k = 0; k < ROWS * units / T::threads; k++) {
        int e = k * T::threads + (int)threadIdx.x;
        int r = e / units, c = e % units * near;
        typename P::I m = p.m0 + row_of(r), n = p.n0 + c;
        bool in = (P::whole_m || m < p.m) && (P::whole_n || n < p.n);
        SumPair sum = {};
        if (in) sum = out(m, n, slice_pack<near>(slice[r], c));
        sum.first = lanes_sum<lanes>(sum.first);
        sum.second = lanes_sum<lanes>(sum.second);
        if (in && c % wide == 0) out.keep(m, n / wide, sum.first, sum.second);
    }
}

/* ---- tensor cores -------------------------------------------------------- */

__device__ inline void mma(bf16, float d[4], const unsigned a[4],
                           const unsigned b[2]) {
    ampc_mma_bf16_16816(d, a, b);
}

__device__ inline void mma(f16, float d[4], const unsigned a[4],
                           const unsigned b[2]) {
    ampc_mma_f16_16816(d, a, b);
}

__device__ inline void mma(tf32, float d[4], const unsigned a[4],
                           const unsigned b[2]) {
    ampc_mma_tf32_1688(d, a, b);
}

/* Products of factors E, to which fp32 elements are rounded, with fp32 sums:
   BM x BN of C per block, WM x WN per warp. */
template <class E, int BM, int BN, int WM, int WN> struct MmaTile {
    typedef E Operand;
    static constexpr int m = BM, n = BN, k = TILE_K_MMA / 2 * Factor<E>::per;
    static constexpr int threads = BM / WM * (BN / WN) * 32;
    static constexpr int pitch = TILE_K_MMA / 2;
    static constexpr int mt = WM / 16, nt = WN / 8, warp_n = WN;
    static_assert(nt % 2 == 0, "ldmatrix brings two columns of B");

    /* Eight words of each row, from word kw on; lane and row must be equal
       modulo 8, as tile_word needs. */
    static __device__ void step(const unsigned (*as)[pitch],
                                const unsigned (*bs)[pitch], int kw,
                                float acc[mt][nt][4]) {
        int lane = (int)threadIdx.x % 32;
        unsigned b[nt][2];
        UNROLL
        for (int j = 0; j < nt; j += 2) {
            unsigned four[4];
            int row = j * 8 + lane / 16 * 8 + lane % 8;
            ampc_ldmatrix_x4(four,
                             &bs[row][tile_word(lane, kw + lane / 8 % 2 * 4)]);
            b[j][0] = four[0], b[j][1] = four[1];
            b[j + 1][0] = four[2], b[j + 1][1] = four[3];
        }
        UNROLL
        for (int i = 0; i < mt; i++) {
            unsigned a[4];
            ampc_ldmatrix_x4(
                a,
                &as[i * 16 + lane % 16][tile_word(lane, kw + lane / 16 * 4)]);
            UNROLL
            for (int j = 0; j < nt; j++) mma(E(), acc[i][j], a, b[j]);
        }
    }

    /* The operands, then slices of the results: 16 rows of each warp. */
    struct Staged {
        unsigned a[BM][pitch], b[BN][pitch];
    };
    typedef float Slice[BM / WM * 16][BN + 8];
    union Shared {
        Staged in;
        Slice slice;
    };

    template <class P, class Out>
    static __device__ void store(const Out &out, const P &p,
                                 const float (&acc)[mt][nt][4], Slice &slice) {
        int lane = (int)threadIdx.x % 32;
        int row = warp_row() / WM * 16 + lane / 4;
        int col = warp_col() + lane % 4 * 2;
        __syncthreads();
        UNROLL_1
        for (int pass = 0; pass < mt; pass++) {
            UNROLL
            for (int i = 0; i < mt; i++) {
                if (i != pass) continue;
                UNROLL
                for (int j = 0; j < nt; j++) UNROLL
                for (int e = 0; e < 4; e++)
                    slice[row + e / 2 * 8][col + j * 8 + e % 2] = acc[i][j][e];
            }
            __syncthreads();
            const auto row_of = [&](int r) {
                return r / 16 * WM + pass * 16 + r % 16;
            };
            if constexpr (strip_of < Out >> 0)
                tile_flush_strips<MmaTile>(slice, p, out, row_of);
            else if constexpr (pairs_of < Out >> 0)
                tile_flush_pairs<MmaTile>(slice, p, out, row_of);
            else
                tile_flush<MmaTile>(slice, p, out, row_of);
            __syncthreads();
        }
    }

    static __device__ int warp_row() {
        return (int)threadIdx.x / 32 % (BM / WM) * WM;
    }
    static __device__ int warp_col() {
        return (int)threadIdx.x / 32 / (BM / WM) * WN;
    }

    template <class A, class B, class Out, class P>
    static __device__ void run(const A &a, const B &b, const Out &out,
                               const P &p) {
        alignas(16) __shared__ Shared s;
        float acc[mt][nt][4] = {};
        tile_loop<MmaTile, Factors<E, A, BM, threads>,
                  Factors<E, B, BN, threads>>(a, b, p, s.in.a, s.in.b, [&] {
            step(s.in.a + warp_row(), s.in.b + warp_col(), 0, acc);
            step(s.in.a + warp_row(), s.in.b + warp_col(), 8, acc);
        });
        store(out, p, acc, s.slice);
    }
};

/* ---- fused multiply-add -------------------------------------------------- */

/* Any operands, converted to C: BM x BN of C per block, TM x TN per thread. */
template <class C, int BM, int BN, int TM, int TN> struct FmaTile {
    static constexpr int m = BM, n = BN, k = TILE_K_FMA;
    static constexpr int cols = BN / TN, threads = BM / TM * cols;

    /* Rows of a thread come in groups of four adjacent rows. */
    static __device__ int row(int i) {
        return i / 4 * (BM / (TM / 4)) + (int)threadIdx.x / cols * 4 + i % 4;
    }
    static __device__ int col(int j) {
        return j / 4 * (BN / (TN / 4)) + (int)threadIdx.x % cols * 4 + j % 4;
    }

    static __device__ void step(const C *as, const C *bs, C acc[TM][TN]) {
        C x[TM], y[TN];
        UNROLL
        for (int i = 0; i < TM; i++) x[i] = as[row(i)];
        UNROLL
        for (int j = 0; j < TN; j++) y[j] = bs[col(j)];
        UNROLL
        for (int i = 0; i < TM; i++) UNROLL
        for (int j = 0; j < TN; j++) acc[i][j] = fused(x[i], y[j], acc[i][j]);
    }

    /* One slice: two rows of each thread. */
    template <class P, class Out>
    static __device__ void store(const Out &out, const P &p,
                                 const C acc[TM][TN]) {
        alignas(16) __shared__ C slice[BM / TM * 2][BN + 4];
        int first = (int)threadIdx.x / cols * 2;
        UNROLL_1
        for (int pass = 0; pass < TM; pass += 2) {
            UNROLL
            for (int i = 0; i < TM; i += 2) {
                if (i != pass) continue;
                UNROLL
                for (int j = 0; j < TN; j++) {
                    slice[first][col(j)] = acc[i][j];
                    slice[first + 1][col(j)] = acc[i + 1][j];
                }
            }
            __syncthreads();
            tile_flush<FmaTile>(slice, p, out, [&](int r) {
                return pass / 4 * (BM / (TM / 4)) + r / 2 * 4 + pass % 4 +
                       r % 2;
            });
            __syncthreads();
        }
    }

    template <class A, class B, class Out, class P>
    static __device__ void run(const A &a, const B &b, const Out &out,
                               const P &p) {
        alignas(16) __shared__ C as[k][BM + 4];
        alignas(16) __shared__ C bs[k][BN + 4];
        C acc[TM][TN] = {};
        tile_loop<FmaTile, Singles<A, C, BM, threads>,
                  Singles<B, C, BN, threads>>(a, b, p, as, bs, [&] {
            UNROLL_4
            for (int i = 0; i < k; i++) step(as[i], bs[i], acc);
        });
        store(out, p, acc);
    }
};

/* ---- loaders and results ------------------------------------------------- */

/* A matrix with literal strides. */
template <class T, class Int, long long ROW, long long COL, int NEAR = 1>
struct Matrix {
    typedef T Element;
    typedef Int I;
    static constexpr bool along_k = COL <= ROW, table = false;
    static constexpr int near = NEAR;
    const T *p;
    __device__ I row(I i) const { return i * (I)ROW; }
    __device__ I col(I k) const { return k * (I)COL; }
    __device__ const T *place(I r, I c) const { return p + (r + c); }
    __device__ T load(I r, I c, bool ok) const { return ok ? p[r + c] : T(); }
};

/* A matrix with rows of LD elements. */
template <class T, class I, long long LD> struct StoreRows {
    static constexpr int near = near_of<T>(LD);
    T *to;
    template <int N, class C>
    __device__ void operator()(I m, I n, const Pack<N, C> &v) const {
        pack_store(to + (m * (I)LD + n), narrow<T>(v));
    }
};

#endif
