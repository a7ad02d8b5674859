/* SPDX-License-Identifier: Apache-2.0 */
/* flash.cuh: attention and its gradient on tensor cores (FlashAttention-2, Dao
   2023): a block keeps some rows of one operand in registers and goes over the
   other operand; scores are never in memory.

   P: the parameters of LibAttend (attend.cuh) with Q, K, V and, for the
   gradient, Y of one 16-bit type, d and e up to FLASH_MOST; plain (Flash) and
   tall, the number of times 16 rows of a warp in forward. Scores, their sums
   and the softmax are fp32; probabilities and gradients of scores are rounded
   to 16 bits where they are operands of a product.  The gradient has blocks for
   rows of dq and others for rows of dk and dv, each of which computes its
   scores: 7 products instead of 5, but no sum depends on the order in which
   blocks finish. */
#ifndef AMPC_FLASH_CUH
#define AMPC_FLASH_CUH

#include "attend.cuh"
#include "fold.cuh"
#include "tile.cuh"

#define FLASH_PER_LN2 0x1.715476p+0f

/* ---- panels in shared memory --------------------------------------------- */

/* Lines of 16-bit values; the pitch keeps ldmatrix free of bank conflicts. */
template <int LINES, int COLS> struct Panel {
    static constexpr int lines = LINES, cols = COLS, pitch = COLS / 2 + 4;
    alignas(16) unsigned v[LINES][pitch];
};

/* Fills a panel from a matrix whose rows begin ROW elements apart, at a
   multiple of STEP. `lines` and `cols` remain from `from` on; the rest becomes
   zero. Rows that begin at multiples of 16 bytes are copied asynchronously. */
template <long long ROW, long long STEP, class E, class Pn>
__device__ void panel_fill(Pn &to, const E *from, int lines, int cols) {
    constexpr int n = ROW % 8 || STEP % 8 ? 2 : 8, per = Pn::cols / n;
    constexpr int all = Pn::lines * per;
    auto put = [&](int i) {
        int r = i / per, c = i % per * n;
        bool in = (r < lines) & (c < cols);
        const E *p = from + r * ROW + c;
        if constexpr (n == 8) {
            ampc_cp_async_16(&to.v[r][c / 2], p, in);
        } else {
            unsigned low = in ? p[0].bits : 0;
            unsigned high = in & (c + 1 < cols) ? p[1].bits : 0;
            to.v[r][c / 2] = low | high << 16;
        }
    };
    if constexpr (n == 8) {
        UNROLL
        for (int i = 0; i < all / FLASH_THREADS; i++)
            put((int)threadIdx.x + i * FLASH_THREADS);
        int rest = (int)threadIdx.x + all / FLASH_THREADS * FLASH_THREADS;
        if (all % FLASH_THREADS && rest < all) put(rest);
    } else { /* few columns at a time: registers hold the results */
        UNROLL_2
        for (int i = (int)threadIdx.x; i < all; i += FLASH_THREADS) put(i);
    }
}

/* Operand A, 16 x 16, from row m0 and column k0 on.  TURNED: the panel holds
   the transposed matrix. */
template <bool TURNED, class Pn>
__device__ void panel_a(unsigned a[4], const Pn &p, int m0, int k0) {
    int lane = (int)threadIdx.x % 32;
    if (TURNED)
        ampc_ldmatrix_x4_trans(
            a,
            &p.v[k0 + lane / 16 * 8 + lane % 8][(m0 + lane / 8 % 2 * 8) / 2]);
    else
        ampc_ldmatrix_x4(a, &p.v[m0 + lane % 16][(k0 + lane / 16 * 8) / 2]);
}

/* Two operands B, 16 x 8 each, from k0 and column n0 on. TURNED: lines of
   the panel are k. */
template <bool TURNED, class Pn>
__device__ void panel_b(unsigned b[4], const Pn &p, int k0, int n0) {
    int lane = (int)threadIdx.x % 32;
    if (TURNED)
        ampc_ldmatrix_x4_trans(b,
                               &p.v[k0 + lane % 16][(n0 + lane / 16 * 8) / 2]);
    else
        ampc_ldmatrix_x4(
            b,
            &p.v[n0 + lane / 16 * 8 + lane % 8][(k0 + lane / 8 % 2 * 8) / 2]);
}

/* ---- fragments in registers ---------------------------------------------- */

/* Operand A: 16 rows from m0 on. */
template <bool TURNED, int KT, class Pn>
__device__ void flash_rows(unsigned (&a)[KT][4], const Pn &p, int m0) {
    UNROLL
    for (int k = 0; k < KT; k++) panel_a<TURNED>(a[k], p, m0, 16 * k);
}

/* acc += A B for MT x 16 rows; KT steps of 16, from k0 on of the panel, NT
   results of 8 columns. */
template <class E, bool TURNED, int MT, int KT, int NT, class Pn>
__device__ void flash_product(float (&acc)[MT][NT][4],
                              const unsigned (&a)[MT][KT][4], const Pn &p,
                              int k0 = 0) {
    UNROLL
    for (int k = 0; k < KT; k++) UNROLL
    for (int n = 0; n < NT; n += 2) {
        unsigned b[4];
        panel_b<TURNED>(b, p, k0 + 16 * k, 8 * n);
        UNROLL
        for (int i = 0; i < MT; i++) {
            mma(E(), acc[i][n], a[i][k], b);
            mma(E(), acc[i][n + 1], a[i][k], b + 2);
        }
    }
}

/* Turns results into operand A of the next product. */
template <class E, int NT>
__device__ void flash_operand(unsigned (&a)[NT / 2][4],
                              const float (&s)[NT][4]) {
    UNROLL
    for (int k = 0; k < NT / 2; k++) UNROLL
    for (int i = 0; i < 4; i++) {
        const float *two = &s[2 * k + i / 2][i % 2 * 2];
        a[k][i] = narrow<E>(two[0]).bits | (unsigned)narrow<E>(two[1]).bits
                                               << 16;
    }
}

/* Row and column of element i of result n: within 16 rows, 8 n columns. */
__device__ inline int flash_row(int i) {
    return (int)threadIdx.x % 32 / 4 + i / 2 * 8;
}
__device__ inline int flash_col(int n, int i) {
    return n * 8 + (int)threadIdx.x % 4 * 2 + i % 2;
}

/* Four lanes that share a row have two columns of each of four results;
   afterwards each lane has all eight columns of one result. */
__device__ inline void flash_gather(unsigned (&two)[4]) {
    const int lane = (int)threadIdx.x % 4;
    UNROLL
    for (int by = 1; by < 4; by *= 2) UNROLL
    for (int n = 0; n < 4; n++) {
        if (n & by) continue;
        const bool high = lane & by;
        const unsigned x =
            __shfl_xor_sync(0xffffffffu, high ? two[n] : two[n | by], by);
        two[n] = high ? x : two[n];
        two[n | by] = high ? two[n | by] : x;
    }
}

/* Rows from row0 on of a matrix of `rows` by COLS, PITCH elements apart;
   TURNED: a matrix with `rows` columns. */
template <int COLS, long long PITCH, bool TURNED, class T, int NT>
__device__ void flash_store(T *to, const float (&x)[NT][4], int row0,
                            int rows) {
    constexpr bool wide =
        !TURNED && COLS % 8 == 0 && NT % 4 == 0 && sizeof(T) == 2;
    constexpr int step = wide ? 4 : 1;
    UNROLL
    for (int n = 0; n < NT; n += step) UNROLL
    for (int i = 0; i < 4; i += 2) {
        long long r = row0 + flash_row(i);
        if constexpr (wide) {
            unsigned two[4];
            UNROLL
            for (int k = 0; k < 4; k++)
                two[k] = narrow<T>(x[n + k][i]).bits |
                         (unsigned)narrow<T>(x[n + k][i + 1]).bits << 16;
            flash_gather(two);
            int c = (n + (int)threadIdx.x % 4) * 8;
            if (r < rows && c < COLS)
                pack_store(reinterpret_cast<unsigned *>(to + r * PITCH + c),
                           Pack<4, unsigned>{{two[0], two[1], two[2], two[3]}});
            continue;
        }
        int c = flash_col(n, 0);
        if (r >= rows || c >= COLS) continue;
        if constexpr (TURNED || COLS % 2) {
            UNROLL
            for (int k = 0; k < 2; k++)
                if (c + k < COLS)
                    to[TURNED ? (long long)(c + k) * rows + r
                              : r * PITCH + c + k] = narrow<T>(x[n][i + k]);
        } else {
            pack_store(
                to + r * PITCH + c,
                Pack<2, T>{{narrow<T>(x[n][i]), narrow<T>(x[n][i + 1])}});
        }
    }
}

/* ---- shapes and scores --------------------------------------------------- */

template <class P> struct Flash {
    typedef typename P::Q E;
    typedef AttendLayout<P> At;
    static constexpr int t = (int)P::t, u = (int)P::u;
    static constexpr int d = (int)up_div(P::d, 16) * 16;
    static constexpr int e = (int)up_div(P::e, 16) * 16;
    static constexpr bool narrow = d <= FLASH_NARROW && e <= FLASH_NARROW;
    /* number of times 16 rows of a result in each warp; keys per step */
    static constexpr int mt = (int)P::tall, step = 32;
    static constexpr int rows = FLASH_WARPS * 16 * mt;
    static constexpr bool turned = !P::trans_b; /* keys are [d, u] */
    template <int N> using Keys = Panel<turned ? d : N, turned ? N : d>;

    /* Rows R from row j on; p points to row 0 of their matrix. */
    template <class R, class Pn>
    static __device__ void fill(Pn &to, const E *p, int j) {
        panel_fill<R::pitch, R::cols>(to, p + j * R::pitch, (int)R::rows - j,
                                      (int)R::cols);
    }
    /* Keys from j on; k points to the keys of one matrix. */
    template <class Pn>
    static __device__ void fill_keys(Pn &to, const E *k, int j) {
        if constexpr (turned)
            panel_fill<P::u, P::u>(to, k + j, (int)P::d, u - j);
        else
            fill<typename At::K>(to, k, j);
    }
    /* Offset of a matrix of keys, or of their gradients, with rows R. */
    template <class R> static __device__ long long keys_at(int matrix) {
        return turned ? (long long)matrix * P::u * P::d : R::at(matrix, 0);
    }

    static __device__ int seen(int n) { return Attend<P>::seen(n); }
    /* The first row that attends to a key. */
    static __device__ int first_row(int key) {
        return P::causal && key > P::offset ? key - (int)P::offset : 0;
    }

    /* P::plain: nothing is added to a score and `scale` keeps the order of
       scores, so that a score is the plain product, which is multiplied by
       `factor` later. */
    static __device__ float factor() {
        return P::plain ? Attend<P>::scale() : 1.0f;
    }

    /* exp(s - top) divided by 2^less.  A mask may be so large that only the
       difference is exact. */
    static __device__ float power(float s, float top, float less) {
        const float by = factor() * FLASH_PER_LN2;
        return ampc_exp2(P::plain ? fmaf(s, by, -fmaf(top, by, less))
                                  : fmaf(s - top, by, -less));
    }

    /* Scales products to scores; masked elements become -inf. row0 and key0:
       position of s. ROWS: rows of s are queries, else keys. */
    template <bool ROWS, int NT>
    static __device__ void scores(const Attend<P> &a, float (&s)[NT][4],
                                  long long matrix, int row0, int key0) {
        int last_row = row0 + (ROWS ? 16 : 8 * NT);
        int last_key = key0 + (ROWS ? 8 * NT : 16);
        bool edge = last_row > t || last_key > seen(row0 + 1);
        if (P::plain && !edge) return;
        UNROLL
        for (int n = 0; n < NT; n++) UNROLL
        for (int i = 0; i < 4; i++) {
            int row = row0 + (ROWS ? flash_row(i) : flash_col(n, i));
            int key = key0 + (ROWS ? flash_col(n, i) : flash_row(i));
            bool sees = row < t && key < seen(row + 1);
            if (!P::plain && sees)
                s[n][i] = a.masked(s[n][i] * a.scale(), matrix * t + row, key);
            if (!sees) s[n][i] = -INFINITY;
        }
    }
};

__device__ inline int flash_warp() { return (int)threadIdx.x / 32; }

__device__ inline void flash_wait() {
    ampc_cp_async_wait();
    __syncthreads();
}

/* ---- forward ------------------------------------------------------------- */

/* State of the online softmax for rows flash_row(2 h): `top`, the largest
   score, and this lane's part of the sum.  x: the result, scaled alike. */
template <class F, int NT, int ET>
__device__ void flash_softmax(float (&s)[NT][4], float (&x)[ET][4], float *top,
                              float *sum) {
    UNROLL
    for (int h = 0; h < 2; h++) {
        float most = top[h], part = 0.0f;
        UNROLL
        for (int n = 0; n < NT; n++)
            most = fmaxf(most, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        most =
            fold_lanes<4>(most, [](float l, float r) { return fmaxf(l, r); });
        float base = most == -INFINITY ? 0.0f : most;
        float scale = F::power(top[h], base, 0.0f);
        UNROLL
        for (int n = 0; n < NT; n++) UNROLL
        for (int i = 2 * h; i < 2 * h + 2; i++)
            part += s[n][i] = F::power(s[n][i], base, 0.0f);
        UNROLL
        for (int n = 0; n < ET; n++) UNROLL
        for (int i = 2 * h; i < 2 * h + 2; i++) x[n][i] *= scale;
        top[h] = most;
        sum[h] = sum[h] * scale + part;
    }
}

template <class P>
__device__ void attend_flash(const typename P::Q *q, const typename P::K *k,
                             const typename P::V *v,
                             const typename P::Mask *mask,
                             const typename P::Rng *rng, typename P::Y *y,
                             typename P::Lse *lse) {
    typedef Flash<P> F;
    typedef typename F::E E;
    struct In {
        typename F::template Keys<F::step> k;
        Panel<F::step, F::e> v;
    };
    union Shared {
        Panel<F::rows, F::d> q;
        In in[2];
    };
    __shared__ Shared shared;
    const Attend<P> all = {q, k, mask, rng};
    constexpr unsigned blocks = (unsigned)up_div(F::t, F::rows);
    /* blocks that attend to most keys start first */
    const int row0 = (int)(blocks - 1 - blockIdx.x % blocks) * F::rows;
    const int warp0 = row0 + flash_warp() * 16 * F::mt;
    const int matrix = (int)(blockIdx.x / blocks);
    unsigned a[F::mt][F::d / 16][4];
    F::template fill<typename F::At::Q>(shared.q, q + F::At::Q::at(matrix, 0),
                                        row0);
    flash_wait();
    UNROLL
    for (int m = 0; m < F::mt; m++)
        flash_rows<false>(a[m], shared.q, (flash_warp() * F::mt + m) * 16);
    __syncthreads();
    k += F::template keys_at<typename F::At::K>(matrix / (int)some(P::group));
    v += F::At::V::at(matrix / (int)some(P::group), 0);
    auto fill = [&](int n, int j) {
        F::fill_keys(shared.in[n].k, k, j);
        F::template fill<typename F::At::V>(shared.in[n].v, v, j);
    };
    float x[F::mt][F::e / 8][4] = {}, top[F::mt][2], sum[F::mt][2] = {};
    UNROLL
    for (int m = 0; m < F::mt; m++) top[m][0] = top[m][1] = -INFINITY;
    const int end = F::seen(row0 + F::rows);
    const int warp_end = F::seen(warp0 + 16 * F::mt);
    int n = 0;
    if (end > 0) fill(0, 0);
    UNROLL_1
    for (int j = 0; j < end; j += F::step, n ^= 1) {
        flash_wait();
        if (j + F::step < end) fill(n ^ 1, j + F::step);
        if (j >= warp_end) continue;
        float s[F::mt][F::step / 8][4] = {};
        unsigned p[F::mt][F::step / 16][4];
        flash_product<E, F::turned>(s, a, shared.in[n].k);
        UNROLL
        for (int m = 0; m < F::mt; m++) {
            F::template scores<true>(all, s[m], matrix, warp0 + 16 * m, j);
            flash_softmax<F>(s[m], x[m], top[m], sum[m]);
            if constexpr (P::drop > 0) UNROLL
            for (int c = 0; c < F::step / 8; c++) UNROLL
            for (int i = 0; i < 4; i++)
                s[m][c][i] *= all.kept((long long)matrix * P::t + warp0 +
                                           16 * m + flash_row(i),
                                       j + flash_col(c, i));
            flash_operand<E>(p[m], s[m]);
        }
        flash_product<E, true>(x, p, shared.in[n].v);
    }
    UNROLL
    for (int m = 0; m < F::mt; m++) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            float part = fold_lanes<4>(sum[m][h],
                                       [](float l, float r) { return l + r; });
            int row = warp0 + 16 * m + flash_row(2 * h);
            bool none = top[m][h] == -INFINITY; /* no key is seen */
            float by = none && P::zeros ? 0.0f : 1.0f / part;
            UNROLL
            for (int c = 0; c < F::e / 8; c++) UNROLL
            for (int i = 2 * h; i < 2 * h + 2; i++) x[m][c][i] *= by;
            if (lse && threadIdx.x % 4 == 0 && row < F::t) {
                typename P::Lse *to =
                    lse + 2 * ((long long)matrix * P::t + row);
                to[0] = none && P::zeros ? INFINITY : top[m][h] * F::factor();
                to[1] = none ? 0.0f : LOG_F32(part);
            }
        }
        flash_store<(int)P::e, F::At::Y::pitch, false>(
            y + F::At::Y::at(matrix, 0), x[m], warp0 + 16 * m, F::t);
    }
}

/* ---- gradient ------------------------------------------------------------ */

/* KEYS: the block's own rows are keys (it computes dk and dv) and it sweeps
   over the queries of all matrices that read them. Otherwise its rows are
   queries (it computes dq) and it sweeps over keys. `own` holds the two
   matrices of its rows, `in` those of a step; the first matrix of each pair
   is a factor of the scores. */
template <class P, bool KEYS> struct FlashSweep {
    typedef Flash<P> F;
    typedef typename F::E E;
    static constexpr int rows = FLASH_GRAD_ROWS;
    static constexpr int step = KEYS && !F::narrow ? 16 : 32;
    /* The second matrix of `own` stays in shared memory, since registers are
       few. */
    static constexpr bool stays = !F::narrow && KEYS;
    static constexpr bool own_turned = KEYS && F::turned;
    static constexpr bool in_turned = !KEYS && F::turned;
    template <int N, bool TURNED>
    using First = Panel<TURNED ? F::d : N, TURNED ? N : F::d>;
    struct In {
        First<step, in_turned> first;
        Panel<step, F::e> second;
        float top[step], less[step], delta[step];
    };
    struct Shared {
        Panel<stays ? rows : 1, F::e> second;
        union {
            First<rows, own_turned> first;
            Panel<rows, F::e> second;
            In in[2];
        } moving;
    };

    const Attend<P> &all;
    const typename P::V *v;
    const typename P::Y *dy;
    const typename P::Lse *lse;
    const typename P::Delta *delta;

    /* The address of a matrix: keys and values, or queries and dy, with the
       sums of their rows. */
    template <bool OF_KEYS> struct Matrix {
        const E *first, *second;
        const typename P::Lse *lse;
        const typename P::Delta *delta;

        __device__ Matrix(const FlashSweep &s, int matrix) {
            if constexpr (OF_KEYS) {
                first =
                    s.all.k + F::template keys_at<typename F::At::K>(matrix);
                second = s.v + F::At::V::at(matrix, 0);
            } else {
                first = s.all.q + F::At::Q::at(matrix, 0);
                second = s.dy + F::At::Y::at(matrix, 0);
                lse = s.lse + 2 * ((long long)matrix * P::t);
                delta = s.delta + F::At::Delta::at(matrix, 0);
            }
        }
        template <class Pn> __device__ void fill_first(Pn &to, int from) const {
            if constexpr (OF_KEYS)
                F::fill_keys(to, first, from);
            else
                F::template fill<typename F::At::Q>(to, first, from);
        }
        template <class Pn>
        __device__ void fill_second(Pn &to, int from) const {
            if constexpr (OF_KEYS)
                F::template fill<typename F::At::V>(to, second, from);
            else
                F::template fill<typename F::At::Y>(to, second, from);
        }
        /* Sets the arguments of power() and delta for a row. */
        __device__ void sums(int row, float &top, float &less,
                             float &sum) const {
            const bool in = row < F::t;
            top = in ? widen(lse[2 * row]) / F::factor() : 0.0f;
            less = in ? widen(lse[2 * row + 1]) * FLASH_PER_LN2 : 0.0f;
            sum = in ? widen(delta[row * F::At::Delta::pitch]) : 0.0f;
        }
    };
    static __device__ void fill(In &to, const Matrix<!KEYS> &m, int from) {
        int i = (int)threadIdx.x;
        m.fill_first(to.first, from);
        m.fill_second(to.second, from);
        if constexpr (KEYS)
            if (i < step) m.sums(from + i, to.top[i], to.less[i], to.delta[i]);
    }

    /* Computes the results of the block's rows, from row0 on in that matrix. */
    template <class DK, class DV>
    __device__ void run(Shared &shared, int matrix, int row0,
                        typename P::DQ *dq, DK *dk, DV *dv) const {
        const int warp0 = row0 + flash_warp() * 16;
        unsigned a[1][F::d / 16][4], b[1][stays ? 1 : F::e / 16][4];
        auto &moving = shared.moving;
        const Matrix<KEYS> own(*this, matrix);
        own.fill_first(moving.first, row0);
        flash_wait();
        flash_rows<own_turned>(a[0], moving.first, flash_warp() * 16);
        __syncthreads();
        if constexpr (stays) {
            own.fill_second(shared.second, row0);
        } else {
            own.fill_second(moving.second, row0);
            flash_wait();
            flash_rows<false>(b[0], moving.second, flash_warp() * 16);
            __syncthreads();
        }
        float top[2] = {}, less[2] = {}, sum[2] = {};
        UNROLL
        for (int h = 0; h < 2; h++)
            if constexpr (!KEYS)
                own.sums(warp0 + flash_row(2 * h), top[h], less[h], sum[h]);
        float x[1][F::d / 8][4] = {}, z[1][KEYS ? F::e / 8 : 2][4] = {};
        /* number of steps, and the matrices to which they belong */
        const int start = KEYS ? F::first_row(row0) / step * step : 0;
        const int end = KEYS ? F::t : F::seen(row0 + rows);
        constexpr int group = (int)some(P::group);
        const int from = KEYS ? matrix * group : matrix / group;
        const int to = KEYS ? from + group : from + 1;
        int of = start < end ? from : to, next_of;
        int j = start, next, n = 0;
        Matrix<!KEYS> other(*this, from);
        if (of < to) fill(moving.in[0], other, j);
        UNROLL_1
        for (; of < to; of = next_of, j = next, n ^= 1) {
            const In &in = moving.in[n];
            next = j + step < end ? j + step : start;
            next_of = of + (j + step >= end);
            if (KEYS && group > 1 && next_of > of)
                other = Matrix<!KEYS>(*this, next_of);
            flash_wait();
            if (next_of < to) fill(moving.in[n ^ 1], other, next);
            float s[1][step / 8][4] = {}, ds[1][step / 8][4] = {};
            unsigned p[1][step / 16][4];
            const int of_query = KEYS ? of : matrix;
            flash_product<E, in_turned>(s, a, in.first);
            UNROLL
            for (int k = 0; k < (stays ? F::e : 16); k += 16) {
                if (stays)
                    panel_a<false>(b[0][0], shared.second, flash_warp() * 16,
                                   k);
                flash_product<E, false>(ds, b, in.second, k);
            }
            F::template scores<!KEYS>(all, s[0], of_query, KEYS ? j : warp0,
                                      KEYS ? warp0 : j);
            UNROLL
            for (int c = 0; c < step / 8; c++) UNROLL
            for (int i = 0; i < 4; i++) {
                int col = flash_col(c, i), row = warp0 + flash_row(i);
                float y = F::power(s[0][c][i], KEYS ? in.top[col] : top[i / 2],
                                   KEYS ? in.less[col] : less[i / 2]);
                float kept = all.kept((long long)of_query * P::t +
                                          (KEYS ? j + col : row),
                                      KEYS ? row : j + col);
                s[0][c][i] = y * kept;
                ds[0][c][i] = y * (ds[0][c][i] * kept -
                                   (KEYS ? in.delta[col] : sum[i / 2]));
            }
            flash_operand<E>(p[0], ds[0]);
            flash_product<E, !in_turned>(x, p, in.first);
            if constexpr (KEYS) {
                flash_operand<E>(p[0], s[0]);
                flash_product<E, true>(z, p, in.second);
            }
        }
        UNROLL
        for (int c = 0; c < F::d / 8; c++) UNROLL
        for (int i = 0; i < 4; i++) x[0][c][i] *= all.scale();
        if constexpr (KEYS) {
            typedef typename F::At::DK K;
            typedef typename F::At::DV V;
            if (dk)
                flash_store<(int)P::d, K::pitch, F::turned>(
                    dk + F::template keys_at<K>(matrix), x[0], warp0, F::u);
            if (dv)
                flash_store<(int)P::e, V::pitch, false>(dv + V::at(matrix, 0),
                                                        z[0], warp0, F::u);
        } else {
            typedef typename F::At::DQ Q;
            flash_store<(int)P::d, Q::pitch, false>(dq + Q::at(matrix, 0), x[0],
                                                    warp0, F::t);
        }
    }
};

template <class P>
__device__ void
attend_grad_flash(const typename P::Q *q, const typename P::K *k,
                  const typename P::V *v, const typename P::Y *dy,
                  const typename P::Lse *lse, const typename P::Delta *delta,
                  const typename P::Mask *mask, const typename P::Rng *rng,
                  typename P::DQ *dq, typename P::DK *dk, typename P::DV *dv) {
    typedef FlashSweep<P, false> Queries;
    typedef FlashSweep<P, true> Keys;
    __shared__ union {
        typename Queries::Shared queries;
        typename Keys::Shared keys;
    } shared;
    const Attend<P> all = {q, k, mask, rng};
    constexpr unsigned rows = FLASH_GRAD_ROWS;
    constexpr unsigned most = (unsigned)up_div(P::t, rows);
    constexpr unsigned keys = (unsigned)up_div(P::u, rows);
    const bool query = blockIdx.x < P::batch * most;
    const unsigned i = blockIdx.x - (query ? 0 : (unsigned)P::batch * most);
    auto *to_k = attend_result<P>(dq, dk);
    auto *to_v = attend_result<P>(dq, dv);
    if (query ? !dq : !to_k && !to_v) return;
    if (query)
        Queries{all, v, dy, lse, delta}.run(shared.queries, (int)(i / most),
                                            (int)((most - 1 - i % most) * rows),
                                            dq, dk, dv);
    else
        Keys{all, v, dy, lse, delta}.run(shared.keys, (int)(i / keys),
                                         (int)(i % keys * rows), dq, to_k,
                                         to_v);
}

#endif
