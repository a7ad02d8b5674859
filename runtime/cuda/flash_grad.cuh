/* SPDX-License-Identifier: Apache-2.0 */
/* flash_grad.cuh: the gradient of attention on tensor cores.

   A block has some keys of a matrix, with their values, and sweeps over the
   queries that read them.  It computes their scores once for dq, dk and dv:
   five products in all.  dk and dv are sums in registers.  dq is a sum over
   blocks of keys, which grows in memory, in fp32, in their order, whichever
   block runs first.  P::slices blocks of threads share the keys of a matrix;
   each has sums of its own, which a second kernel adds in order.
   P::adds: one block has all keys of a matrix, and adds up the columns of what
   it stores, warp by warp, for the bias before them. */
#ifndef AMPC_FLASH_GRAD_CUH
#define AMPC_FLASH_GRAD_CUH

#include "flash.cuh"

template <class P> struct FlashGrad {
    typedef Flash<P> F;
    typedef typename F::E E;
    typedef typename F::At At;
    /* keys of a warp and of a block; queries of a step */
    static constexpr int own = (int)P::own, step = own;
    static constexpr int mt = own / 16, keys = FLASH_WARPS * own;
    static constexpr int blocks = (int)up_div(some(P::u), keys);
    static constexpr int steps = (int)up_div(P::t, step);
    static constexpr int group = (int)some(P::group), slices = (int)P::slices;
    static constexpr bool grows = blocks > 1; /* dq has several terms */
    /* sums of columns: dq's, a thread's own terms; dk's and dv's, a warp's */
    static constexpr int own_sums = 8, dk0 = FLASH_THREADS * own_sums;
    static constexpr int dv0 = dk0 + FLASH_WARPS * F::d;
    static constexpr int all_sums = dv0 + FLASH_WARPS * F::e;
    static_assert(!P::adds || (slices == 1 && group == 1 && !F::turned),
                  "a block has all rows of a column");

    struct In {
        Panel<step, F::d> q;
        Panel<step, F::e> dy;
        float top[step], less[step], delta[step];
    };
    struct Shared {
        typename F::template Keys<keys> k;
        Panel<keys, F::e> v;
        Panel<keys, step> ds;
        In in[2];
    };
    static_assert(sizeof(Shared) == P::shared, "as cuda_lib.c counts");

    const Attend<P> &all;
    const typename P::V *v;
    const typename P::Y *dy;
    const typename P::Lse *lse;
    const typename P::Delta *delta;
    typename P::DQ *dq;
    float *partial, *columns; /* columns: of all warps */

    /* The first step of queries for a block of keys: that of the first query
       that reads any.  Block 0 meets all of them. */
    static __device__ int start_of(int block) {
        return block ? F::first_row(block * keys) / step * step : 0;
    }
    /* True if there is such a block, and it meets the step from query j on. */
    static __device__ bool meets(int block, int j) {
        return block < blocks && start_of(block) <= j;
    }

    /* A warp computes 16 queries by 32 columns of a step's dq, from these on.
     */
    static __device__ int dq_row() {
        return mt == 2 ? flash_warp() / 2 * 16 : 0;
    }
    static __device__ int dq_col() {
        return (mt == 2 ? flash_warp() % 2 : flash_warp()) * 32;
    }
    /* The sums of this thread in a slice: part n is 128 elements further. */
    static __device__ float *sums_at(float *partial, int slice, int matrix,
                                     int j) {
        long long at =
            ((long long)slice * P::batch + matrix) * steps + j / step;
        at = (at * FLASH_WARPS + flash_warp()) * (32 * FLASH_GRAD_SUMS);
        return partial + (at + (int)threadIdx.x % 32 * 4);
    }
    static __device__ void load_sums(float (&x)[4][4], const float *from) {
        UNROLL
        for (int n = 0; n < 4; n++) {
            Pack<4, float> part = pack_load<4>(from + 128 * n);
            UNROLL
            for (int i = 0; i < 4; i++) x[n][i] = part.v[i];
        }
    }
    static __device__ void store_sums(float *to, const float (&x)[4][4]) {
        UNROLL
        for (int n = 0; n < 4; n++)
            pack_store(to + 128 * n,
                       Pack<4, float>{{x[n][0], x[n][1], x[n][2], x[n][3]}});
    }
    static __device__ void add(float (&x)[4][4], const float (&y)[4][4]) {
        UNROLL
        for (int n = 0; n < 4; n++) UNROLL
        for (int i = 0; i < 4; i++) x[n][i] += y[n][i];
    }
    static __device__ void store_dq(typename P::DQ *dq, float (&x)[4][4],
                                    int matrix, int j) {
        typedef typename At::DQ Q;
        UNROLL
        for (int n = 0; n < 4; n++) UNROLL
        for (int i = 0; i < 4; i++) x[n][i] *= Attend<P>::scale();
        flash_store<(int)P::d, Q::pitch, false>(dq + Q::at(matrix, 0), x,
                                                j + dq_row(), F::t, dq_col());
    }

    /* Adds lines row0 .. of dk or dv, as they are stored, to the warp's sums of
       its N columns. */
    template <int N, int NT>
    __device__ void add_own(int to, const float (&x)[NT][4], int row0) const {
        float *const sums = columns + to + flash_warp() * N;
        UNROLL
        for (int n = 0; n < NT; n++) UNROLL
        for (int i = 0; i < 2; i++) {
            float sum = 0;
            UNROLL
            for (int k = i; k < 4; k += 2)
                if (row0 + flash_row(k) < F::u)
                    sum += widen(narrow<typename P::DQ>(x[n][k]));
            UNROLL
            for (int by = 4; by < 32; by *= 2)
                sum += __shfl_xor_sync(0xffffffffu, sum, by);
            if (threadIdx.x % 32 < 4) sums[flash_col(n, i)] += sum;
        }
    }
    /* dq's sums go to the thread's own sums, since the registers of
       shuffles would be too many. */
    __device__ void add_own_dq(const float (&x)[4][4], int row0) const {
        float *const sums = columns + threadIdx.x * own_sums;
        UNROLL
        for (int n = 0; n < 4; n++) UNROLL
        for (int k = 0; k < 4; k++)
            if (row0 + flash_row(k) < F::t)
                sums[2 * n + k % 2] += widen(narrow<typename P::DQ>(x[n][k]));
    }
    /* The sum of dq's column c over all threads that have terms of it. */
    __device__ float dq_sum(int c) const {
        const int at = c % 32 / 8 * 2 + c % 2;
        float sum = 0;
        for (int i = c % 8 / 2; i < FLASH_THREADS; i += 4) {
            const int from = (mt == 2 ? i / 32 % 2 : i / 32) * 32;
            if (from == c / 32 * 32) sum += columns[i * own_sums + at];
        }
        return sum;
    }
    template <int N> __device__ float own_sum(int from, int c) const {
        float sum = 0;
        UNROLL
        for (int w = 0; w < FLASH_WARPS; w++) sum += columns[from + w * N + c];
        return sum;
    }
    /* The sums of a gradient's matrix, which are where its columns are. */
    template <class Rows>
    static __device__ typename P::Sums *sums_of(typename P::Sums *to,
                                                int matrix) {
        return to + matrix / (int)some(At::qh) * Rows::pitch +
               Rows::at(matrix, 0) % Rows::pitch;
    }
    __device__ void put_sums(typename P::Sums *to, int matrix) const {
        typedef typename P::Sums T;
        T *const q = sums_of<typename At::DQ>(to, matrix);
        T *const k = sums_of<typename At::DK>(to, matrix);
        T *const v = sums_of<typename At::DV>(to, matrix);
        const int i = (int)threadIdx.x;
        static_assert(F::d <= FLASH_THREADS && F::e <= FLASH_THREADS, "");
        if (i < P::d) q[i] = narrow<T>(dq_sum(i));
        if (i < P::d) k[i] = narrow<T>(own_sum<F::d>(dk0, i));
        if (i < P::e) v[i] = narrow<T>(own_sum<F::e>(dv0, i));
    }

    __device__ void fill(In &to, int matrix, int j) const {
        const int i = (int)threadIdx.x, row = j + i;
        F::template fill<typename At::Q>(to.q, all.q + At::Q::at(matrix, 0), j);
        F::template fill<typename At::Y>(to.dy, dy + At::Y::at(matrix, 0), j);
        if (i >= step) return;
        const bool in = row < F::t;
        const long long sums = (long long)matrix * P::t + row;
        const float top = in ? widen(lse[2 * sums]) : 0.0f;
        const float less = in ? widen(lse[2 * sums + 1]) : 0.0f;
        to.top[i] = P::plain ? 0.0f : top;
        to.less[i] = FLASH_PER_LN2 * (P::plain ? top + less : less);
        to.delta[i] = in ? widen(delta[At::Delta::at(matrix, row)]) : 0.0f;
    }

    /* Sums of a warp's keys and values. */
    struct Own {
        float dk[mt][F::d / 8][4], dv[mt][F::e / 8][4];
    };

    /* s += A B, where A is the warp's rows of a panel and B has DEPTH steps of
       k and 16 columns of `p`, from h on. */
    template <bool TURNED, int DEPTH, class Rows, class Pn>
    static __device__ void product(float (&s)[mt][2][4], const Rows &rows,
                                   const Pn &p, int h) {
        UNROLL
        for (int k = 0; k < DEPTH; k += 16) {
            unsigned a[mt][1][4];
            UNROLL
            for (int m = 0; m < mt; m++)
                panel_a<TURNED>(a[m][0], rows, flash_warp() * own + 16 * m, k);
            flash_product<E, false>(s, a, p, k, h);
        }
    }

    /* 16 queries of `in`, those from h on: they are queries from row on of the
       matrix.  first: the warp's first key. */
    __device__ void add_queries(Own &to, Shared &shared, const In &in, int h,
                                int matrix, int row, int first) const {
        const int at = flash_warp() * own;
        float s[mt][2][4] = {}, ds[mt][2][4] = {};
        unsigned p[mt][1][4];
        product<F::turned, F::d>(s, shared.k, in.q, h);
        __syncwarp(); /* operands of both products at once would spill */
        product<false, F::e>(ds, shared.v, in.dy, h);
        UNROLL
        for (int m = 0; m < mt; m++) {
            const int key0 = first + 16 * m;
            F::template scores<false>(all, s[m], matrix, row, key0);
            UNROLL
            for (int n = 0; n < 2; n++) UNROLL
            for (int i = 0; i < 4; i++) {
                const int col = flash_col(n, i);
                const float y =
                    F::power(s[m][n][i], P::plain ? 0.0f : in.top[h + col],
                             in.less[h + col]);
                const float kept = all.kept(
                    (long long)matrix * P::t + row + col, key0 + flash_row(i));
                s[m][n][i] = y * kept;
                ds[m][n][i] = y * (ds[m][n][i] * kept - in.delta[h + col]);
            }
            flash_operand<E>(p[m], s[m]);
        }
        flash_product<E, true>(to.dv, p, in.dy, h);
        UNROLL
        for (int m = 0; m < mt; m++) {
            flash_operand<E>(p[m], ds[m]);
            UNROLL
            for (int i = 0; i < 4; i++)
                shared.ds.v[at + 16 * m + flash_row(i % 2 * 2)]
                           [panel_word(h + flash_col(i / 2, 0))] = p[m][0][i];
        }
        flash_product<E, true>(to.dk, p, in.q, h);
    }

    /* Adds the terms of the block's keys from key0 on to dq of the step from
       query j on.  before: there are terms of earlier blocks; last: none will
       follow. */
    __device__ void add_dq(const Shared &shared, float *sums, int matrix, int j,
                           int key0, bool before, bool last) const {
        float x[4][4] = {}, old[4][4] = {};
        if (grows && before) load_sums(old, sums);
        const int seen = F::seen(j + step) - key0;
        __syncthreads();
        if (dq_col() >= F::d) return;
        UNROLL_4
        for (int k = 0; k < keys && k < seen; k += 16) {
            unsigned a[4], b[4];
            panel_a<true>(a, shared.ds, dq_row(), k);
            UNROLL
            for (int n = 0; n < 4; n += 2) {
                if (F::d % 32 && dq_col() + 8 * n >= F::d) continue;
                panel_b<!F::turned>(b, shared.k, k, dq_col() + 8 * n);
                mma(E(), x[n], a, b);
                mma(E(), x[n + 1], a, b + 2);
            }
        }
        if (grows && before) add(x, old);
        if (slices == 1 && last) {
            store_dq(dq, x, matrix, j);
            if constexpr (P::adds) add_own_dq(x, j + dq_row());
        } else
            store_sums(sums, x);
    }

    template <class DK, class DV>
    __device__ void block(Shared &shared, int matrix, int b, int slice, DK *dk,
                          DV *dv) const {
        typedef typename At::DK K;
        typedef typename At::DV V;
        const int key0 = b * keys, first = key0 + flash_warp() * own;
        Own to = {};
        __syncthreads();
        F::fill_keys(shared.k,
                     all.k + F::template keys_at<typename At::K>(matrix), key0);
        F::template fill<typename At::V>(shared.v, v + At::V::at(matrix, 0),
                                         key0);
        /* number of steps, and the matrices to which they belong */
        const int start = start_of(b), past = (matrix + 1) * group;
        int of = start < F::t ? matrix * group : past, next_of;
        int j = start, next, n = 0;
        if (of < past) fill(shared.in[0], of, j);
        UNROLL_1
        for (; of < past; of = next_of, j = next, n ^= 1) {
            const In &in = shared.in[n];
            next = j + step < F::t ? j + step : start;
            next_of = of + (j + step >= F::t);
            flash_wait();
            if (next_of < past) fill(shared.in[n ^ 1], next_of, next);
            if (first < F::seen(j + step)) UNROLL_1
            for (int h = 0; h < step; h += 16)
                add_queries(to, shared, in, h, of, j + h, first);
            if (P::packed || dq)
                add_dq(shared, sums_at(partial, slice, of, j), of, j, key0,
                       b != slice, !meets(b + slices, j));
        }
        UNROLL
        for (int m = 0; m < mt; m++) {
            UNROLL
            for (int c = 0; c < F::d / 8; c++) UNROLL
            for (int i = 0; i < 4; i++) to.dk[m][c][i] *= all.scale();
            if constexpr (P::adds) {
                add_own<F::d>(dk0, to.dk[m], first + 16 * m);
                add_own<F::e>(dv0, to.dv[m], first + 16 * m);
            }
            if (dk)
                flash_store<(int)P::d, K::pitch, F::turned>(
                    dk + F::template keys_at<K>(matrix), to.dk[m],
                    first + 16 * m, F::u);
            if (dv)
                flash_store<(int)P::e, V::pitch, false>(
                    dv + V::at(matrix, 0), to.dv[m], first + 16 * m, F::u);
        }
    }
};

template <class P>
__device__ void
attend_grad_flash(const typename P::Q *q, const typename P::K *k,
                  const typename P::V *v, const typename P::Y *dy,
                  const typename P::Lse *lse, const typename P::Delta *delta,
                  const typename P::Mask *mask, const typename P::Rng *rng,
                  typename P::DQ *dq, typename P::DK *dk, typename P::DV *dv,
                  typename P::Sums *sums, float *partial) {
    typedef FlashGrad<P> G;
    BLOCK_SHARED(bytes);
    auto &shared = *reinterpret_cast<typename G::Shared *>(bytes);
    constexpr unsigned matrices = (unsigned)(P::batch / G::group);
    const Attend<P> all = {q, k, mask, rng};
    float *const columns = reinterpret_cast<float *>(bytes + sizeof shared);
    const G grad = {all, v, dy, lse, delta, dq, partial, columns};
    /* where attention is causal, the first slice has most queries */
    const int slice = (int)(blockIdx.x / some(matrices));
    const int matrix = (int)(blockIdx.x % some(matrices));
    if constexpr (P::adds)
        for (int i = (int)threadIdx.x; i < G::all_sums; i += FLASH_THREADS)
            columns[i] = 0;
    UNROLL_1
    for (int b = slice; b < G::blocks; b += G::slices)
        grad.block(shared, matrix, b, slice, attend_result<P>(dq, dk),
                   attend_result<P>(dq, dv));
    if constexpr (P::adds) {
        __syncthreads();
        grad.put_sums(sums, matrix);
    }
}

/* Adds the slices of dq. */
template <class P>
__device__ void attend_grad_flash_sum(typename P::DQ *dq, float *partial) {
    typedef FlashGrad<P> G;
    const int matrix = (int)(blockIdx.x / (unsigned)some(G::steps));
    const int j = (int)(blockIdx.x % (unsigned)some(G::steps)) * G::step;
    float x[4][4] = {}, part[4][4];
    if (!dq || G::dq_col() >= G::F::d) return;
    UNROLL_1
    for (int s = 0; s < G::slices && G::meets(s, j); s++) {
        G::load_sums(part, G::sums_at(partial, s, matrix, j));
        G::add(x, part);
    }
    G::store_dq(dq, x, matrix, j);
}

#endif
