/* SPDX-License-Identifier: Apache-2.0 */
/* attend.cuh: attention and its gradient, one thread for each row of a result.

   For cases that tensor cores do not support (flash.cuh), which the compiler
   avoids fusing where it can: scores are computed again for each
   ATTEND_COLUMNS columns of a result. P: the parameters of LibAttend; Q, K,
   V, Y, Lse, Delta, DQ, DK, DV, Sums: types. */
#ifndef AMPC_ATTEND_CUH
#define AMPC_ATTEND_CUH

#include "device.cuh"

enum { ATTEND_COLUMNS = 16 };

/* Describes how matrices of ROWS x COLS elements are stored: HEADS of them
   beside each other, from FIRST of WIDTH on (LibAttend). */
template <long long ROWS, long long COLS, long long HEADS, long long WIDTH,
          long long FIRST>
struct AttendRows {
    static constexpr long long rows = ROWS, cols = COLS, pitch = WIDTH * COLS;
    /* Offset of row `row` of matrix b. */
    template <class I> static __device__ long long at(I b, I row) {
        return (((long long)(b / (I)HEADS) * ROWS + row) * WIDTH + FIRST +
                b % (I)HEADS) *
               COLS;
    }
};

/* Rows of q, k (with trans_b), v and y, and of their gradients. */
template <class P> struct AttendLayout {
    static constexpr bool packed = P::packed;
    static constexpr long long qh = P::q_heads, kh = P::kv_heads;
    typedef AttendRows<P::t, P::d, qh, P::q_width, P::q_first> Q;
    typedef AttendRows<P::u, P::d, kh, P::k_width, P::k_first> K;
    typedef AttendRows<P::u, P::e, kh, P::v_width, P::v_first> V;
    typedef AttendRows<P::t, P::e, qh, qh, 0> Y;
    typedef AttendRows<P::t, 1, qh, qh, 0> Delta;
    typedef AttendRows<P::t, P::d, qh, packed ? P::q_width : qh,
                       packed ? P::q_first : 0>
        DQ;
    typedef AttendRows<P::u, P::d, kh, packed ? P::k_width : kh,
                       packed ? P::k_first : 0>
        DK;
    typedef AttendRows<P::u, P::e, kh, packed ? P::v_width : kh,
                       packed ? P::v_first : 0>
        DV;
};

/* Offset of column c of key j in matrix b, with rows R. */
template <class P, class R>
__device__ inline long long attend_key(long long b, long long j, long long c) {
    return P::trans_b ? R::at(b, j) + c : (b * P::d + c) * P::u + j;
}

/* Operands that all threads read. Rows are counted over all matrices: row
   `row` belongs to matrix row / t. */
template <class P> struct Attend {
    typedef AttendLayout<P> At;
    const typename P::Q *q;
    const typename P::K *k;
    const typename P::Mask *mask;
    const typename P::Rng *rng;

    __device__ static long long keys(long long row) { /* matrix of keys */
        return row / some(P::t) / some(P::group);
    }
    /* Number of keys to which the first n rows of a matrix attend. */
    template <class I> __device__ static I seen(I n) {
        n += (I)P::offset;
        return !P::causal || n > (I)P::u ? (I)P::u : n < 0 ? 0 : n;
    }
    __device__ static float scale() {
        return __uint_as_float((unsigned)P::scale);
    }
    /* Offset of row `row` in rows R. */
    template <class R> __device__ static long long line(long long row) {
        return R::at(row / some(R::rows), row % some(R::rows));
    }
    __device__ float score(long long row, long long j) const {
        float s = 0.0f;
        const long long from = line<typename At::Q>(row);
        for (long long c = 0; c < P::d; c++)
            s = fmaf(widen(q[from + c]),
                     widen(k[attend_key<P, typename At::K>(keys(row), j, c)]),
                     s);
        return masked(s * scale(), row, j);
    }
    __device__ float masked(float s, long long row, long long j) const {
        long long rows = P::mask_rows ? P::t : 1,
                  cols = P::mask_cols ? P::u : 1;
        long long m = row / some(P::t) / some(P::mask_div) % some(P::mask_mod);
        m = (m * rows + (P::mask_rows ? row % some(P::t) : 0)) * cols;
        return mask ? s + widen(mask[m + (P::mask_cols ? j : 0)]) : s;
    }
    __device__ float kept(long long row, long long j) const {
        if (P::drop == 0) return 1.0f;
        float x = PHILOX(rng[0], rng[1], row * P::u + j, P::salt) * 0x1p24f;
        return x >= (float)P::drop ? __uint_as_float((unsigned)P::keep) : 0.0f;
    }
};

template <class P>
__device__ void attend(const typename P::Q *q, const typename P::K *k,
                       const typename P::V *v, const typename P::Mask *mask,
                       const typename P::Rng *rng, typename P::Y *y,
                       typename P::Lse *lse) {
    typedef AttendLayout<P> At;
    Attend<P> a = {q, k, mask, rng};
    long long row = flat_index<long long>();
    if (row >= P::batch * P::t) return;
    const long long out = a.template line<typename At::Y>(row);
    long long n = a.seen(row % some(P::t) + 1), b = a.keys(row);
    float top = -INFINITY, sum = 0.0f;
    for (long long j = 0; j < n; j++) {
        float s = a.score(row, j);
        top = s > top ? s : top;
    }
    for (long long j = 0; j < n; j++) sum += EXP_F32(a.score(row, j) - top);
    bool none = top == -INFINITY; /* no key is seen */
    float log_sum = none ? 0.0f : LOG_F32(sum);
    if (none && P::zeros) top = INFINITY;
    if (lse) lse[2 * row] = top;
    if (lse) lse[2 * row + 1] = log_sum;
    for (long long c0 = 0; c0 < P::e; c0 += ATTEND_COLUMNS) {
        float to[ATTEND_COLUMNS] = {};
        for (long long j = 0; j < n && !none; j++) {
            float p = EXP_F32(a.score(row, j) - top - log_sum) * a.kept(row, j);
            UNROLL for (int c = 0; c < ATTEND_COLUMNS; c++) if (c0 + c < P::e)
                to[c] = fmaf(p, widen(v[At::V::at(b, j) + c0 + c]), to[c]);
        }
        UNROLL for (int c = 0; c < ATTEND_COLUMNS; c++) if (c0 + c < P::e)
            y[out + c0 + c] =
                narrow<typename P::Y>(none && !P::zeros ? NAN : to[c]);
    }
}

/* The probability of key j for the row, as the factor of the value, and the
   gradient of that product. */
template <class P> struct AttendSlope {
    float p, ds;
    __device__ AttendSlope(const Attend<P> &a, const typename P::V *v,
                           const typename P::Y *dy, const typename P::Lse *lse,
                           const typename P::Delta *delta, long long row,
                           long long j) {
        typedef AttendLayout<P> At;
        const long long value = At::V::at(a.keys(row), j);
        const long long out = a.template line<typename At::Y>(row);
        float dp = 0.0f, kept = a.kept(row, j);
        for (long long c = 0; c < P::e; c++)
            dp = fmaf(widen(dy[out + c]), widen(v[value + c]), dp);
        p = EXP_F32(a.score(row, j) - widen(lse[2 * row]) -
                    widen(lse[2 * row + 1]));
        ds = p *
             (dp * kept -
              widen(delta[a.template line<typename At::Delta>(row)])) *
             a.scale();
        p *= kept;
    }
};

/* The address of a gradient: in its own result, or in the one that all
   share. */
template <class P, class One, class Own>
__device__ inline auto attend_result(One *one, Own *own) {
    if constexpr (P::packed)
        return one;
    else
        return own;
}

template <class T>
__device__ inline void attend_put(T *to, long long at, float value) {
    if (to) to[at] = narrow<T>(value);
}

/* The first threads each compute a row of dq, the following ones a row of dk
   and dv. */
template <class P>
__device__ void
attend_grad(const typename P::Q *q, const typename P::K *k,
            const typename P::V *v, const typename P::Y *dy,
            const typename P::Lse *lse, const typename P::Delta *delta,
            const typename P::Mask *mask, const typename P::Rng *rng,
            typename P::DQ *dq, typename P::DK *dk, typename P::DV *dv,
            typename P::Sums *) {
    typedef AttendLayout<P> At;
    Attend<P> a = {q, k, mask, rng};
    long long i = flat_index<long long>(), rows = P::batch * P::t;
    long long matrices = P::batch / some(P::group);
    bool query = i < rows;
    if (i >= rows + matrices * P::u) return;
    if (!query) i -= rows;
    long long b = query ? a.keys(i) : i / some(P::u), j = i % some(P::u);
    long long from = query ? i : b * P::group * P::t;
    long long to = query ? i + 1 : from + P::group * P::t;
    long long columns = query || P::d > P::e ? P::d : P::e;
    for (long long c0 = 0; c0 < columns; c0 += ATTEND_COLUMNS) {
        float x[ATTEND_COLUMNS] = {}, y[ATTEND_COLUMNS] = {};
        for (long long row = from; row < to; row++)
            for (long long n = query ? 0 : j;
                 n < (query ? P::u : j + 1) && n < a.seen(row % some(P::t) + 1);
                 n++) {
                AttendSlope<P> s(a, v, dy, lse, delta, row, n);
                UNROLL for (int c = 0; c < ATTEND_COLUMNS; c++) {
                    if (c0 + c < P::d)
                        x[c] = fmaf(
                            s.ds,
                            query
                                ? widen(k[attend_key<P, typename At::K>(
                                      b, n, c0 + c)])
                                : widen(q[a.template line<typename At::Q>(row) +
                                          c0 + c]),
                            x[c]);
                    if (!query && c0 + c < P::e)
                        y[c] =
                            fmaf(s.p,
                                 widen(dy[a.template line<typename At::Y>(row) +
                                          c0 + c]),
                                 y[c]);
                }
            }
        UNROLL for (int c = 0; c < ATTEND_COLUMNS; c++) {
            if (c0 + c < P::d && query)
                attend_put(dq, a.template line<typename At::DQ>(i) + c0 + c,
                           x[c]);
            if (c0 + c < P::d && !query)
                attend_put(attend_result<P>(dq, dk),
                           attend_key<P, typename At::DK>(b, j, c0 + c), x[c]);
            if (c0 + c < P::e && !query)
                attend_put(attend_result<P>(dq, dv), At::DV::at(b, j) + c0 + c,
                           y[c]);
        }
    }
}

/* The sums of a packed gradient's columns over the rows of each matrix of rows,
   where the kernel before has no sums of its own. */
template <class P>
__device__ void attend_grad_columns(const typename P::DQ *dq,
                                    typename P::Sums *sums) {
    constexpr long long pitch = AttendLayout<P>::DQ::pitch;
    const long long i = flat_index<long long>();
    if (i >= P::batch / some(P::q_heads) * pitch) return;
    const typename P::DQ *from = dq + i / pitch * P::t * pitch + i % pitch;
    float sum = 0;
    for (long long row = 0; row < P::t; row++) sum += widen(from[row * pitch]);
    sums[i] = narrow<typename P::Sums>(sum);
}

#endif
