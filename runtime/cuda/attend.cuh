/* attend.cuh: attention and its gradient, one thread for each row of a result.

   No first choice on any GPU, whose compiler leaves attention in parts: scores
   are computed for each ATTEND_COLUMNS columns of a result anew.
   P: the parameters of LibAttend; Q, K, V, Y, Lse, Delta, DQ, DK, DV: types. */
#ifndef AMPC_ATTEND_CUH
#define AMPC_ATTEND_CUH

#include "device.cuh"

enum { ATTEND_COLUMNS = 16 };

/* Where column c of key j of matrix b lies. */
template <class P>
__device__ inline long long attend_key(long long b, long long j, long long c) {
    return P::trans_b ? (b * P::u + j) * P::d + c : (b * P::d + c) * P::u + j;
}

/* row: of all matrices; its matrix is row / t. */
template <class P>
__device__ inline float attend_score(const typename P::Q *q,
                                     const typename P::K *k, long long row,
                                     long long j) {
    float s = 0.0f;
    for (long long c = 0; c < P::d; c++)
        s = fmaf(widen(q[row * P::d + c]),
                 widen(k[attend_key<P>(row / some(P::t), j, c)]), s);
    return s;
}

template <class P> __device__ inline long long attend_seen(long long row) {
    long long n = row % some(P::t) + 1;
    return P::causal && n < P::u ? n : P::u;
}

template <class P>
__device__ void attend(const typename P::Q *q, const typename P::K *k,
                       const typename P::V *v, typename P::Y *y,
                       typename P::Lse *lse) {
    long long row = flat_index<long long>();
    if (row >= P::batch * P::t) return;
    long long n = attend_seen<P>(row), b = row / some(P::t);
    float top = -INFINITY, sum = 0.0f;
    for (long long j = 0; j < n; j++) {
        float s = attend_score<P>(q, k, row, j);
        top = s > top ? s : top;
    }
    for (long long j = 0; j < n; j++)
        sum += EXP_F32(attend_score<P>(q, k, row, j) - top);
    top += LOG_F32(sum);
    if (lse) lse[row] = top;
    for (long long c0 = 0; c0 < P::e; c0 += ATTEND_COLUMNS) {
        float to[ATTEND_COLUMNS] = {};
        for (long long j = 0; j < n; j++) {
            float p = EXP_F32(attend_score<P>(q, k, row, j) - top);
            UNROLL for (int c = 0; c < ATTEND_COLUMNS; c++) if (c0 + c < P::e)
                to[c] =
                    fmaf(p, widen(v[(b * P::u + j) * P::e + c0 + c]), to[c]);
        }
        UNROLL for (int c = 0; c < ATTEND_COLUMNS; c++) if (c0 + c < P::e)
            y[row * P::e + c0 + c] = narrow<typename P::Y>(to[c]);
    }
}

/* The probability of key j for the row, and the gradient of its score. */
template <class P> struct AttendSlope {
    float p, ds;
    __device__ AttendSlope(const typename P::Q *q, const typename P::K *k,
                           const typename P::V *v, const typename P::Y *dy,
                           const typename P::Lse *lse,
                           const typename P::Delta *delta, long long row,
                           long long j) {
        long long value = row / some(P::t) * P::u + j;
        float dp = 0.0f;
        for (long long c = 0; c < P::e; c++)
            dp =
                fmaf(widen(dy[row * P::e + c]), widen(v[value * P::e + c]), dp);
        p = EXP_F32(attend_score<P>(q, k, row, j) - widen(lse[row]));
        ds = p * (dp - widen(delta[row]));
    }
};

/* Threads of the rows of dq, then of those of dk and dv. */
template <class P>
__device__ void attend_grad(const typename P::Q *q, const typename P::K *k,
                            const typename P::V *v, const typename P::Y *dy,
                            const typename P::Lse *lse,
                            const typename P::Delta *delta, typename P::DQ *dq,
                            typename P::DK *dk, typename P::DV *dv) {
    long long i = flat_index<long long>(), rows = P::batch * P::t;
    bool query = i < rows;
    if (i >= rows + P::batch * P::u) return;
    if (!query) i -= rows;
    long long b = i / some(query ? P::t : P::u), j = i % some(P::u);
    long long from = query || !P::causal ? 0 : j;
    long long to = query ? attend_seen<P>(i) : P::t;
    long long columns = query || P::d > P::e ? P::d : P::e;
    for (long long c0 = 0; c0 < columns; c0 += ATTEND_COLUMNS) {
        float x[ATTEND_COLUMNS] = {}, y[ATTEND_COLUMNS] = {};
        for (long long n = from; n < to; n++) {
            long long row = query ? i : b * P::t + n;
            AttendSlope<P> s(q, k, v, dy, lse, delta, row, query ? n : j);
            UNROLL for (int c = 0; c < ATTEND_COLUMNS; c++) {
                if (c0 + c < P::d)
                    x[c] = fmaf(s.ds,
                                query ? widen(k[attend_key<P>(b, n, c0 + c)])
                                      : widen(q[row * P::d + c0 + c]),
                                x[c]);
                if (!query && c0 + c < P::e)
                    y[c] = fmaf(s.p, widen(dy[row * P::e + c0 + c]), y[c]);
            }
        }
        UNROLL for (int c = 0; c < ATTEND_COLUMNS; c++) {
            if (c0 + c < P::d && query && dq)
                dq[i * P::d + c0 + c] = narrow<typename P::DQ>(x[c]);
            if (c0 + c < P::d && !query && dk)
                dk[attend_key<P>(b, j, c0 + c)] = narrow<typename P::DK>(x[c]);
            if (c0 + c < P::e && !query && dv)
                dv[i * P::e + c0 + c] = narrow<typename P::DV>(y[c]);
        }
    }
}

#endif
