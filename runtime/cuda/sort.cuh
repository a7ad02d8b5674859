/* SPDX-License-Identifier: Apache-2.0 */
/* sort.cuh: positions of the first elements of each row, in order. */
#ifndef AMPC_SORT_CUH
#define AMPC_SORT_CUH

#include "device.cuh"

/* ---- keys ---------------------------------------------------------------- */

/* Converts keys to unsigned numbers in the requested order. All zeros are
   equal; all NaNs are equal, and greater than all other values. */
template <class C> struct SortKey {
    typedef unsigned long long Key;
    __device__ static Key of(C x) {
        return (Key)x ^ ((C)-1 < (C)0 ? 1ull << 63 : 0);
    }
};
template <> struct SortKey<float> {
    typedef unsigned Key;
    __device__ static Key of(float x) {
        unsigned u = x != x ? 0x7fffffffu : __float_as_uint(x + 0.0f);
        return u ^ (u >> 31 ? ~0u : 1u << 31);
    }
};
template <> struct SortKey<double> {
    typedef unsigned long long Key;
    __device__ static Key of(double x) {
        const Key top = 1ull << 63;
        Key u = x != x ? ~top : (Key)__double_as_longlong(x + 0.0);
        return u ^ (u & top ? ~0ull : top);
    }
};

template <class P> using KeyOf = typename SortKey<Compute<typename P::T>>::Key;

template <class P> __device__ inline KeyOf<P> sort_key(typename P::T x) {
    KeyOf<P> key = SortKey<Compute<typename P::T>>::of(widen(x));
    return P::descending ? ~key : key;
}

/* ---- short rows ---------------------------------------------------------- */

/* P: the parameters of LibArgsort.  One thread for each element of all rows
   counts the elements that come before it. */
template <class P>
__device__ void argsort(const typename P::T *x, typename P::Out *out) {
    long long i = flat_index<long long>();
    if (i >= P::rows * P::n) return;
    long long row = i / some(P::n);
    int mine = (int)(i % some(P::n)), place = 0;
    const typename P::T *from = x + row * P::n;
    KeyOf<P> key = sort_key<P>(from[mine]);
    for (int j = 0; j < P::n; j++) {
        KeyOf<P> other = sort_key<P>(from[j]);
        place += other < key || (other == key && j < mine);
    }
    if (place < P::k) out[row * P::k + place] = mine;
}

/* ---- long rows ----------------------------------------------------------- */

/* A block sorts at most N positions [begin, begin + n) of a row by a digit of
   SORT_BITS. A thread has a strip of them; count[d][t] is the number of its
   keys with digit d, then the position for the next such key. SORT_THREADS
   threads. */
template <class P, int N>
__device__ void argsort_digit(const typename P::T *x, const int *from, int *to,
                              int begin, int n, int shift) {
    constexpr int digits = 1 << SORT_BITS, strip = up_div(N, SORT_THREADS);
    __shared__ int count[digits][SORT_THREADS], sums[SORT_THREADS];
    int t = (int)threadIdx.x, low = t * strip, high = low + strip;
    if (high > n) high = n;
    for (int d = 0; d < digits; d++) count[d][t] = 0;
    UNROLL_4
    for (int i = low; i < high; i++) {
        int at = shift ? from[i] : begin + i;
        count[(int)(sort_key<P>(x[at]) >> shift) & (digits - 1)][t]++;
    }
    __syncthreads();
    /* a thread sums `digits` consecutive counts */
    int *mine = &count[0][0] + t * digits, sum = 0;
    for (int d = 0; d < digits; d++) sum += mine[d];
    sums[t] = sum;
    for (int reach = 1; reach < SORT_THREADS; reach *= 2) {
        __syncthreads();
        int before = t >= reach ? sums[t - reach] : 0;
        __syncthreads();
        sums[t] += before;
    }
    sum = sums[t] - sum;
    for (int d = 0; d < digits; d++) {
        int own = mine[d];
        mine[d] = sum;
        sum += own;
    }
    __syncthreads();
    for (int i = low; i < high; i++) {
        int at = shift ? from[i] : begin + i;
        to[count[(int)(sort_key<P>(x[at]) >> shift) & (digits - 1)][t]++] = at;
    }
    __syncthreads();
}

/* Sorts by all digits, lowest digit first. Returns the half of `space` (room
   for 2 N) that holds the sorted positions. */
template <class P, int N>
__device__ const int *argsort_block(const typename P::T *x, int *space,
                                    int begin, int n) {
    int *from = space, *to = space + N;
    UNROLL_1
    for (int shift = 0; shift < 8 * (int)sizeof(KeyOf<P>); shift += SORT_BITS) {
        argsort_digit<P, N>(x, from, to, begin, n, shift);
        int *was = from;
        from = to;
        to = was;
    }
    return from;
}

/* Blocks take row after row; scratch, for each of them: positions[2][n]. */
template <class P>
__device__ void argsort_long(const typename P::T *x, typename P::Out *out,
                             int *scratch) {
    int *space = scratch + 2 * P::n * blockIdx.x;
    for (long long row = blockIdx.x; row < P::rows; row += gridDim.x) {
        const int *order =
            argsort_block<P, (int)P::n>(x + row * P::n, space, 0, (int)P::n);
        for (int i = (int)threadIdx.x; i < P::k; i += SORT_THREADS)
            out[row * P::k + i] = order[i];
        __syncthreads();
    }
}

/* ---- parts of long rows -------------------------------------------------- */

/* A row is cut into P::parts of `size`, the last ones shorter. Only the first
   `most` elements of each sorted part can be among the row's first k. Scratch:
     keys[rows][parts][most], places[rows][parts][most]  of those, in order
     positions[rows][parts][2][size]                                         */
template <class P> struct SortParts {
    typedef KeyOf<P> Key;
    static constexpr int size = up_div(P::n, P::parts);
    static constexpr int most = P::k < size ? P::k : size;
    static constexpr long long all = P::rows * P::parts;
    Key *keys;
    int *places, *positions;
    __device__ explicit SortParts(int *scratch)
        : keys(reinterpret_cast<Key *>(scratch)),
          places(reinterpret_cast<int *>(keys + all * most)),
          positions(places + all * most) {}
    static __device__ int count(int part) {
        long long n = P::n - (long long)part * size;
        return n < 0 ? 0 : n < size ? (int)n : size;
    }
    static __device__ int kept(int part) {
        int n = count(part);
        return n < most ? n : most;
    }
};

/* A block sorts a part. */
template <class P>
__device__ void argsort_parts(const typename P::T *x, int *scratch) {
    typedef SortParts<P> S;
    S s(scratch);
    long long at = blockIdx.x;
    int part = (int)(at % P::parts);
    x += at / P::parts * P::n;
    const int *order = argsort_block<P, S::size>(
        x, s.positions + at * 2 * S::size, part * S::size, S::count(part));
    for (int i = (int)threadIdx.x; i < S::kept(part); i += SORT_THREADS) {
        s.places[at * S::most + i] = order[i];
        s.keys[at * S::most + i] = sort_key<P>(x[order[i]]);
    }
}

/* The number of the n sorted keys that are less than `key`, or `equal` to
   it. */
template <class Key>
__device__ inline int argsort_before(const Key *keys, int n, Key key,
                                     bool equal) {
    int low = 0;
    while (n > 0) {
        int half = n / 2;
        bool before =
            keys[low + half] < key || (equal && keys[low + half] == key);
        low = before ? low + half + 1 : low;
        n = before ? n - half - 1 : half;
    }
    return low;
}

/* One thread per kept element: its position in the row is its position in
   its part plus the number of elements of other parts that come before it. */
template <class P>
__device__ void argsort_merge(typename P::Out *out, int *scratch) {
    typedef SortParts<P> S;
    S s(scratch);
    long long i = flat_index<long long>();
    if (i >= S::all * S::most) return;
    int place = (int)(i % S::most), part = (int)(i / S::most % P::parts);
    long long row = i / S::most / P::parts;
    if (place >= S::kept(part)) return;
    for (int other = 0; other < P::parts && place < P::k; other++)
        if (other != part)
            place += argsort_before(s.keys + (row * P::parts + other) * S::most,
                                    S::kept(other), s.keys[i], other < part);
    if (place < P::k) out[row * P::k + place] = s.places[i];
}

#endif
