/* SPDX-License-Identifier: Apache-2.0 */
/* flash.cuh: attention on tensor cores (FlashAttention-2, Dao 2023): a block
   keeps some rows of one operand and goes over the other operand; scores are
   never in memory.

   P: the parameters of LibAttend (attend.cuh) with Q, K, V and, for the
   gradient (flash_grad.cuh), Y of one 16-bit type, d and e up to FLASH_MOST;
   plain (Flash) and tall, the number of times 16 rows of a warp in forward.
   Scores, their sums and the softmax are fp32; probabilities and gradients of
   scores are rounded to 16 bits where they are operands of a product. */
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

/* The word of a line with column `col`, which is even. */
__device__ inline unsigned panel_word(int col) { return (unsigned)col / 2; }

/* Operand A, 16 x 16, from row m0 and column k0 on.  TURNED: the panel holds
   the transposed matrix. */
template <bool TURNED, class Pn>
__device__ void panel_a(unsigned a[4], const Pn &p, int m0, int k0) {
    unsigned lane = threadIdx.x % 32, beside = lane / 16 * 4;
    if (TURNED)
        ampc_ldmatrix_x4_trans(a, &p.v[k0 + lane / 16 * 8 + lane % 8]
                                      [panel_word(m0) + lane / 8 % 2 * 4]);
    else
        ampc_ldmatrix_x4(a, &p.v[m0 + lane % 16][panel_word(k0) + beside]);
}

/* Two operands B, 16 x 8 each, from k0 and column n0 on. TURNED: lines of
   the panel are k. */
template <bool TURNED, class Pn>
__device__ void panel_b(unsigned b[4], const Pn &p, int k0, int n0) {
    unsigned lane = threadIdx.x % 32, beside = lane / 16 * 4;
    if (TURNED)
        ampc_ldmatrix_x4_trans(b,
                               &p.v[k0 + lane % 16][panel_word(n0) + beside]);
    else
        ampc_ldmatrix_x4(b, &p.v[n0 + lane / 16 * 8 + lane % 8]
                                [panel_word(k0) + lane / 8 % 2 * 4]);
}

/* ---- fragments in registers ---------------------------------------------- */

/* Operand A: 16 rows from m0 on. */
template <bool TURNED, int KT, class Pn>
__device__ void flash_rows(unsigned (&a)[KT][4], const Pn &p, int m0) {
    UNROLL
    for (int k = 0; k < KT; k++) panel_a<TURNED>(a[k], p, m0, 16 * k);
}

/* acc += A B for MT x 16 rows; KT steps of 16, NT results of 8 columns, from
   k0 and n0 on of the panel. */
template <class E, bool TURNED, int MT, int KT, int NT, class Pn>
__device__ void flash_product(float (&acc)[MT][NT][4],
                              const unsigned (&a)[MT][KT][4], const Pn &p,
                              int k0 = 0, int n0 = 0) {
    UNROLL
    for (int k = 0; k < KT; k++) UNROLL
    for (int n = 0; n < NT; n += 2) {
        unsigned b[4];
        panel_b<TURNED>(b, p, k0 + 16 * k, n0 + 8 * n);
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

/* Rows from row0 and columns from col0 on of a matrix of `rows` by COLS, PITCH
   elements apart; TURNED: a matrix with `rows` columns. */
template <int COLS, long long PITCH, bool TURNED, class T, int NT>
__device__ void flash_store(T *to, const float (&x)[NT][4], int row0, int rows,
                            int col0 = 0) {
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
            int c = col0 + (n + (int)threadIdx.x % 4) * 8;
            if (r < rows && c < COLS)
                pack_store(reinterpret_cast<unsigned *>(to + r * PITCH + c),
                           Pack<4, unsigned>{{two[0], two[1], two[2], two[3]}});
            continue;
        }
        int c = col0 + flash_col(n, 0);
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
    /* one number for a warp, as the compiler sees, too: else each shuffle of
       the loop is there twice, once for lanes that are apart */
    const int warp = __shfl_sync(0xffffffffu, flash_warp(), 0);
    const int warp0 = row0 + warp * 16 * F::mt;
    const int matrix = (int)(blockIdx.x / blocks);
    unsigned a[F::mt][F::d / 16][4];
    F::template fill<typename F::At::Q>(shared.q, q + F::At::Q::at(matrix, 0),
                                        row0);
    flash_wait();
    UNROLL
    for (int m = 0; m < F::mt; m++)
        flash_rows<false>(a[m], shared.q, (warp * F::mt + m) * 16);
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

#endif
