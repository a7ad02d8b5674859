/* SPDX-License-Identifier: Apache-2.0 */
/* index.cuh: scatter-add, argmax and cumulative sums. */
#ifndef AMPC_INDEX_CUH
#define AMPC_INDEX_CUH

#include "device.cuh"

/* ---- scatter-add --------------------------------------------------------- */

/* out[o, t, i] = sum over s with idx[s] == t of src[o, s, i], in order of s.

   The first kernel inverts the index, each block for a range of rows: it
   counts the positions that belong to ranges before its own, collects its own
   in order, and sorts these by row.  The second one sums each row.
   P: the parameters of LibScatterAdd; Src, Idx, Out: types; idx_signed; range
   and threads: rows and threads of a block of the first kernel; line: threads
   per row of the second (a power of two), each of which has `near` columns.
   Scratch, all int: found[nidx], order[nidx], start[rows + 1]. */
template <class P> struct Scatter {
    typedef Index<largest(P::outer *largest(P::nidx, 1) * largest(P::inner, 1),
                          P::outer *P::rows *largest(P::inner, 1))>
        I;
    static constexpr int nidx = P::nidx, rows = P::rows, range = P::range;
    int *found, *order, *start;
    __device__ explicit Scatter(int *scratch)
        : found(scratch), order(scratch + nidx), start(scratch + 2ll * nidx) {}
};

/* Row that an index names, or -1. */
template <class P> __device__ inline int scatter_row(typename P::Idx i) {
    long long t = (long long)i;
    if (t < 0 && P::idx_signed) t += P::rows;
    return t < 0 || t >= P::rows ? -1 : (int)t;
}

/* The row of position s, or -1. */
template <class P>
__device__ inline int scatter_row(const typename P::Idx *idx, int s) {
    return s < P::nidx ? scatter_row<P>(idx[s]) : -1;
}

/* Number of earlier threads whose flag is set; *all: the number in the whole
   block.
   Every thread calls it.                                                     */
template <int THREADS> __device__ int block_rank(bool flag, int *all) {
    __shared__ int warps[THREADS / 32];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    unsigned vote = __ballot_sync(0xffffffffu, flag);
    if (lane == 0) warps[warp] = __popc(vote);
    __syncthreads();
    int before = __popc(vote & ((1u << lane) - 1)), sum = 0;
    for (int i = 0; i < THREADS / 32; i++) {
        if (i == warp) before += sum;
        sum += warps[i];
    }
    __syncthreads();
    *all = sum;
    return before;
}

/* Sum of n over the threads of the block, returned to every thread. */
template <int THREADS> __device__ int block_sum(int n) {
    __shared__ int sums[THREADS];
    int t = (int)threadIdx.x;
    sums[t] = n;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (t < half) sums[t] += sums[t + half];
    }
    __syncthreads();
    return sums[0];
}

/* Number of positions that name a row before `low`. */
template <class P>
__device__ int scatter_before(const typename P::Idx *idx, int low) {
    constexpr int N = 16 / sizeof(typename P::Idx);
    constexpr int whole = P::nidx / N * N;
    int n = 0;
    const auto count = [&](int t) { n += t >= 0 && t < low; };
    UNROLL_2
    for (int s = (int)threadIdx.x * N; s < whole; s += P::threads * N) {
        Pack<N, typename P::Idx> some = pack_load<N>(idx + s);
        UNROLL
        for (int u = 0; u < N; u++) count(scatter_row<P>(some.v[u]));
    }
    if ((int)threadIdx.x < N)
        count(scatter_row<P>(idx, whole + (int)threadIdx.x));
    return block_sum<P::threads>(n);
}

/* Collects the positions of rows [low, high) in order; returns their number. */
template <class P>
__device__ int scatter_find(const typename P::Idx *idx, int low, int high,
                            int *to) {
    int n = 0;
    for (int s0 = 0; s0 < P::nidx; s0 += P::threads) {
        int s = s0 + (int)threadIdx.x, all;
        int t = scatter_row<P>(idx, s);
        bool mine = t >= low && t < high;
        int rank = block_rank<P::threads>(mine, &all);
        if (mine) to[n + rank] = s;
        n += all;
    }
    __syncthreads();
    return n;
}

/* Calls visit(j) if the row of found[j] is `row`, in ascending order. */
template <class P, class Visit>
__device__ void scatter_each(const typename P::Idx *idx, const int *found,
                             int n, int row, Visit visit) {
    __shared__ int rows[P::threads];
    for (int j0 = 0; j0 < n; j0 += P::threads) {
        int j = j0 + (int)threadIdx.x, end = n - j0;
        if (j < n) rows[threadIdx.x] = scatter_row<P>(idx, found[j]);
        if (end > P::threads) end = P::threads;
        __syncthreads();
        for (int i = 0; i < end; i++)
            if (rows[i] == row) visit(j0 + i);
        __syncthreads();
    }
}

/* Stably sorts found[0, n) by row: each row's thread counts and places. */
template <class P>
__device__ void scatter_sort(const typename P::Idx *idx, const int *found,
                             int n, int low, int high, int base,
                             const Scatter<P> &s) {
    __shared__ int counts[P::threads];
    int thread = (int)threadIdx.x;
    for (int row0 = low; row0 < high; row0 += P::threads) {
        int row = row0 + thread, count = 0, at = base;
        scatter_each<P>(idx, found, n, row, [&](int) { count++; });
        counts[thread] = count;
        __syncthreads();
        for (int i = 0; i < P::threads && row0 + i < high; i++) {
            if (i < thread) at += counts[i];
            base += counts[i];
        }
        __syncthreads();
        if (row < high) s.start[row] = at;
        scatter_each<P>(idx, found, n, row,
                        [&](int j) { s.order[at++] = found[j]; });
    }
    if (high == s.rows && thread == 0) s.start[high] = base;
}

template <class P>
__device__ void scatter_invert(const typename P::Idx *idx, int *scratch) {
    Scatter<P> s(scratch);
    int low = (int)blockIdx.x * s.range, high = low + s.range;
    if (high > s.rows) high = s.rows;
    int base = scatter_before<P>(idx, low);
    int *found = s.found + base;
    int n = scatter_find<P>(idx, low, high, found);
    scatter_sort<P>(idx, found, n, low, high, base, s);
}

/* `line` threads sum a row; each takes `near` adjacent columns at a time. */
template <class P>
__device__ void scatter_sum(const typename P::Src *src, typename P::Out *out,
                            int *scratch) {
    typedef typename Scatter<P>::I I;
    Scatter<P> s(scratch);
    I all = flat_index<I>(), row = all / P::line;
    if (row >= (I)(P::outer * P::rows)) return;
    int t = (int)(row % s.rows), first = s.start[t], last = s.start[t + 1];
    const typename P::Src *from = src + row / s.rows * (I)(P::nidx * P::inner);
    constexpr int N = P::near;
    for (I i = all % P::line * N; i < (I)P::inner; i += P::line * N) {
        Pack<N, Compute<typename P::Src>> sum = {};
        UNROLL_4
        for (int q = first; q < last; q++) {
            Pack<N, typename P::Src> x =
                pack_load<N>(from + (s.order[q] * (I)P::inner + i));
            UNROLL
            for (int u = 0; u < N; u++) sum.v[u] += widen(x.v[u]);
        }
        pack_store(out + (row * (I)P::inner + i), narrow<typename P::Out>(sum));
    }
}

/* ---- argmax -------------------------------------------------------------- */

template <class C> struct Best {
    C value;
    long long at;
};

/* NaN counts as the largest value; among equal values the first wins. */
template <class C>
__device__ inline bool better(const Best<C> &a, const Best<C> &b) {
    bool an = a.value != a.value, bn = b.value != b.value;
    if (an || bn) return an && (!bn || a.at < b.at);
    return a.value > b.value || (a.value == b.value && a.at < b.at);
}

/* The best of elements first, first + step, ... below P::axis. */
template <class P>
__device__ inline Best<Compute<typename P::T>>
argmax_of(const typename P::T *x, long long first, long long step) {
    typedef Compute<typename P::T> C;
    Best<C> best = {widen(x[first * P::inner]), first};
    for (long long k = first + step; k < P::axis; k += step) {
        Best<C> next = {widen(x[k * P::inner]), k};
        if (better(next, best)) best = next;
    }
    return best;
}

/* P: the parameters of LibArgmax; T: type of x. */
template <class P>
__device__ void argmax(const typename P::T *x, typename P::Out *out) {
    long long i = flat_index<long long>();
    if (i >= P::outer * P::inner) return;
    const typename P::T *from =
        x + i / P::inner * (P::axis * P::inner) + i % P::inner;
    out[i] = argmax_of<P>(from, 0, 1).at;
}

/* For inner = 1 and axis >= 32: one warp computes each result. */
template <class P>
__device__ void argmax_warp(const typename P::T *x, typename P::Out *out) {
    typedef Compute<typename P::T> C;
    long long i = flat_index<long long>() / ARGMAX_WARP;
    int lane = (int)threadIdx.x % ARGMAX_WARP;
    if (i >= P::outer) return;
    Best<C> best = argmax_of<P>(x + i * P::axis, lane, ARGMAX_WARP);
    for (int half = ARGMAX_WARP / 2; half > 0; half /= 2) {
        Best<C> other = {(C)__shfl_xor_sync(0xffffffffu, best.value, half),
                         __shfl_xor_sync(0xffffffffu, best.at, half)};
        if (better(other, best)) best = other;
    }
    if (lane == 0) out[i] = best.at;
}

/* ---- cumulative sum ------------------------------------------------------ */

/* Accumulator type; integers wrap. */
template <class C> struct CumsumSum { typedef unsigned long long Type; };
template <> struct CumsumSum<float> { typedef float Type; };
template <> struct CumsumSum<double> { typedef double Type; };

/* P: the parameters of LibCumsum.  One thread for each column. */
template <class P>
__device__ void cumsum(const typename P::T *x, typename P::Out *y) {
    typedef typename CumsumSum<Compute<typename P::T>>::Type Sum;
    long long i = flat_index<long long>();
    if (i >= P::outer * P::inner) return;
    long long first = i / P::inner * (P::axis * P::inner) + i % P::inner;
    Sum sum = 0;
    for (long long k = 0; k < P::axis; k++) {
        long long at = first + (P::reverse ? P::axis - 1 - k : k) * P::inner;
        Sum before = sum;
        sum += (Sum)widen(x[at]);
        y[at] = narrow<typename P::Out>(P::exclusive ? before : sum);
    }
}

#endif
