/* sort.cuh: where the first of each row stand, in order. */
#ifndef AMPC_SORT_CUH
#define AMPC_SORT_CUH

#include "device.cuh"

/* ---- keys ---------------------------------------------------------------- */

/* Unsigned numbers in the order that is asked for.  Zeros are equal, NaNs too,
   and greater than all.                                                      */
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

/* P: the parameters of LibArgsort.  A thread for each element of all rows
   counts those that come before it.                                          */
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

/* Blocks sort row after row by digits of SORT_BITS, the lowest first.  A thread
   has a strip of positions; count[d][t] is how many of its keys have digit d,
   then where it puts the next one.  Scratch, for each block: positions[2][n].
   SORT_THREADS threads.                                                      */
template <class P>
__device__ void argsort_pass(const typename P::T *x, const int *from, int *to,
                             int shift, bool first) {
    constexpr int digits = 1 << SORT_BITS, strip = up_div(P::n, SORT_THREADS);
    __shared__ int count[digits][SORT_THREADS], sums[SORT_THREADS];
    int t = (int)threadIdx.x, low = t * strip, high = low + strip;
    if (high > P::n) high = P::n;
    for (int d = 0; d < digits; d++) count[d][t] = 0;
    UNROLL_4
    for (int i = low; i < high; i++) {
        int at = first ? i : from[i];
        count[(int)(sort_key<P>(x[at]) >> shift) & (digits - 1)][t]++;
    }
    __syncthreads();
    /* a thread sums `digits` counts that follow each other */
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
        int n = mine[d];
        mine[d] = sum;
        sum += n;
    }
    __syncthreads();
    for (int i = low; i < high; i++) {
        int at = first ? i : from[i];
        to[count[(int)(sort_key<P>(x[at]) >> shift) & (digits - 1)][t]++] = at;
    }
    __syncthreads();
}

template <class P>
__device__ void argsort_long(const typename P::T *x, typename P::Out *out,
                             int *scratch) {
    int *from = scratch + 2 * P::n * blockIdx.x, *to = from + P::n;
    constexpr int bits = 8 * (int)sizeof(KeyOf<P>);
    for (long long row = blockIdx.x; row < P::rows; row += gridDim.x) {
        UNROLL_1
        for (int shift = 0; shift < bits; shift += SORT_BITS) {
            argsort_pass<P>(x + row * P::n, from, to, shift, shift == 0);
            int *was = from;
            from = to;
            to = was;
        }
        for (int i = (int)threadIdx.x; i < P::k; i += SORT_THREADS)
            out[row * P::k + i] = from[i];
        __syncthreads();
    }
}

#endif
