/* SPDX-License-Identifier: Apache-2.0 */
/* wino_turn.h: the transforms of wino.h, for tiles of `edge` x `edge` results,
   edge being a constant 2 or 4.

   A tile has edge + 2 places along a side. For edge 2 they are the points 0, 1,
   -1 and infinity of Toom and Cook; for edge 4 the points 0, +-5/8, +-3/2 and
   infinity, whose rounding error is half of that of 0, +-1, +-2. */
#ifndef AMPC_CPU_WINO_TURN_H
#define AMPC_CPU_WINO_TURN_H

#include "runtime/cpu/simd.h"

enum { WINO_SIDE = 6 /* most places along a side */ };

/* The points p and q, and numbers made of them; those of the source and of
   results are exact in fp32. */
#define WINO_P  0.625f
#define WINO_Q  1.5f
#define WINO_PP (WINO_P * WINO_P)
#define WINO_QQ (WINO_Q * WINO_Q)
#define WINO_NP (0.5f / (WINO_PP * (WINO_PP - WINO_QQ)))
#define WINO_NQ (0.5f / (WINO_QQ * (WINO_QQ - WINO_PP)))

#define NEXT(p, step)                                                          \
    do {                                                                       \
        (p) += (step);                                                         \
        SIMD_HIDE(p);                                                          \
    } while (0)

/* Calls a transform for `edge`, a variable. */
#define WINO_TURN(name, edge, ...)                                             \
    do {                                                                       \
        if ((edge) == 2)                                                       \
            name(2, __VA_ARGS__);                                              \
        else                                                                   \
            name(4, __VA_ARGS__);                                              \
    } while (0)

/* t[0] = even + x * odd, t[1] = even - x * odd */
INLINE void wino_pair(vf even, vf odd, float x, vf *t) {
    t[0] = vfma(vset(x), odd, even);
    t[1] = vfma(vset(-x), odd, even);
}

/* B' of a column. */
INLINE void wino_source(int edge, const vf *d, vf *t) {
    if (edge == 2) {
        t[0] = vsub(d[0], d[2]);
        t[1] = vadd(d[1], d[2]);
        t[2] = vsub(d[2], d[1]);
        t[3] = vsub(d[1], d[3]);
        return;
    }
    vf both = vset(WINO_PP * WINO_QQ), sum = vset(-(WINO_PP + WINO_QQ));
    vf pp = vset(-WINO_PP), qq = vset(-WINO_QQ);
    t[0] = vfma(both, d[0], vfma(sum, d[2], d[4]));
    wino_pair(vfma(qq, d[2], d[4]), vfma(qq, d[1], d[3]), WINO_P, t + 1);
    wino_pair(vfma(pp, d[2], d[4]), vfma(pp, d[1], d[3]), WINO_Q, t + 3);
    t[5] = vfma(both, d[1], vfma(sum, d[3], d[5]));
}

/* A' times a column of sums. */
INLINE void wino_result(int edge, const vf *m, vf *y) {
    if (edge == 2) {
        y[0] = vadd(vadd(m[0], m[1]), m[2]);
        y[1] = vsub(vsub(m[1], m[2]), m[3]);
        return;
    }
    vf p = vadd(m[1], m[2]), q = vadd(m[3], m[4]);
    vf dp = vsub(m[1], m[2]), dq = vsub(m[3], m[4]);
    y[0] = vadd(vadd(m[0], p), q);
    y[1] = vfma(vset(WINO_P), dp, vmul(vset(WINO_Q), dq));
    y[2] = vfma(vset(WINO_PP), p, vmul(vset(WINO_QQ), q));
    y[3] = vfma(vset(WINO_P * WINO_PP), dp,
                vfma(vset(WINO_Q * WINO_QQ), dq, m[5]));
}

/* G times a column of weights. */
INLINE void wino_weight(int edge, const vf w[3], vf *t) {
    if (edge == 2) {
        vf half = vset(0.5f);
        vf even = vmul(half, vadd(w[0], w[2])), odd = vmul(half, w[1]);
        t[0] = w[0];
        t[1] = vadd(even, odd);
        t[2] = vsub(even, odd);
        t[3] = w[2];
        return;
    }
    vf p = vset(WINO_NP), q = vset(WINO_NQ);
    t[0] = vmul(vset(1 / (WINO_PP * WINO_QQ)), w[0]);
    wino_pair(vmul(p, vfma(vset(WINO_PP), w[2], w[0])), vmul(p, w[1]), WINO_P,
              t + 1);
    wino_pair(vmul(q, vfma(vset(WINO_QQ), w[2], w[0])), vmul(q, w[1]), WINO_Q,
              t + 3);
    t[5] = w[2];
}

/* G' times a column of sums of dW. */
INLINE void wino_weight_back(int edge, const vf *m, vf w[3]) {
    if (edge == 2) {
        vf half = vset(0.5f), sum = vmul(half, vadd(m[1], m[2]));
        w[0] = vadd(m[0], sum);
        w[1] = vmul(half, vsub(m[1], m[2]));
        w[2] = vadd(sum, m[3]);
        return;
    }
    vf p = vmul(vset(WINO_NP), vadd(m[1], m[2]));
    vf q = vmul(vset(WINO_NQ), vadd(m[3], m[4]));
    w[0] = vfma(vset(1 / (WINO_PP * WINO_QQ)), m[0], vadd(p, q));
    w[1] = vfma(vset(WINO_P * WINO_NP), vsub(m[1], m[2]),
                vmul(vset(WINO_Q * WINO_NQ), vsub(m[3], m[4])));
    w[2] = vfma(vset(WINO_PP), p, vfma(vset(WINO_QQ), q, m[5]));
}

/* A times a column of dY. */
INLINE void wino_gradient(int edge, const vf *d, vf *t) {
    if (edge == 2) {
        t[0] = d[0];
        t[1] = vadd(d[0], d[1]);
        t[2] = vsub(d[0], d[1]);
        t[3] = vneg(d[1]);
        return;
    }
    vf pp = vset(WINO_PP), qq = vset(WINO_QQ);
    t[0] = d[0];
    wino_pair(vfma(pp, d[2], d[0]), vfma(pp, d[3], d[1]), WINO_P, t + 1);
    wino_pair(vfma(qq, d[2], d[0]), vfma(qq, d[3], d[1]), WINO_Q, t + 3);
    t[5] = d[3];
}

/* Transforms a row of `wide` tiles, VL channels, from the first point that
   tile 0 reads, to places `step` apart; tiles are `next` apart there. */
INLINE void wino_turn_source(int edge, const float *from, int64_t cb,
                             int64_t pitch, int64_t wide, float *to,
                             int64_t next, int64_t step) {
    int side = edge + 2;
    vf col[WINO_SIDE][WINO_SIDE], t[WINO_SIDE];
    for (int x = 0; x < 2; x++) {
        for (int y = 0; y < side; y++)
            t[y] = vload(from + (y * pitch + x) * cb);
        wino_source(edge, t, col[x]);
    }
    from += 2 * cb;
    for (int64_t i = 0; i < wide; i++, to += next, from += edge * cb) {
        float *place = to;
        for (int x = 0; x < edge; x++) {
            for (int y = 0; y < side; y++)
                t[y] = vload(from + (y * pitch + x) * cb);
            wino_source(edge, t, col[x + 2]);
        }
        for (int y = 0; y < side; y++) {
            vf d[WINO_SIDE];
            for (int x = 0; x < side; x++) d[x] = col[x][y];
            wino_source(edge, d, t);
            for (int x = 0; x < side; x++) {
                vstore(place, t[x]);
                NEXT(place, step);
            }
        }
        for (int y = 0; y < side; y++) {
            col[0][y] = col[edge][y];
            col[1][y] = col[edge + 1][y];
        }
    }
}

/* The same for dY, whose tiles do not overlap. */
INLINE void wino_turn_gradient(int edge, const float *from, int64_t cb,
                               int64_t pitch, int64_t wide, float *to,
                               int64_t next, int64_t step) {
    int side = edge + 2;
    for (int64_t i = 0; i < wide; i++, to += next, from += edge * cb) {
        vf col[WINO_SIDE][WINO_SIDE], t[WINO_SIDE], d[WINO_SIDE];
        float *place = to;
        for (int x = 0; x < edge; x++) {
            for (int y = 0; y < edge; y++)
                d[y] = vload(from + (y * pitch + x) * cb);
            wino_gradient(edge, d, col[x]);
        }
        for (int y = 0; y < side; y++) {
            for (int x = 0; x < edge; x++) d[x] = col[x][y];
            wino_gradient(edge, d, t);
            for (int x = 0; x < side; x++) {
                vstore(place, t[x]);
                NEXT(place, step);
            }
        }
    }
}

/* The nine weights of a channel and VL columns to places `step` apart. */
INLINE void wino_turn_weights(int edge, const vf tap[9], float *to,
                              int64_t step) {
    int side = edge + 2;
    vf col[3][WINO_SIDE], t[WINO_SIDE];
    for (int x = 0; x < 3; x++) {
        vf d[3] = {tap[x], tap[3 + x], tap[6 + x]};
        wino_weight(edge, d, col[x]);
    }
    for (int y = 0; y < side; y++) {
        vf d[3] = {col[0][y], col[1][y], col[2][y]};
        wino_weight(edge, d, t);
        for (int x = 0; x < side; x++) {
            vstore(to, t[x]);
            NEXT(to, step);
        }
    }
}

/* Transforms the sums of a row of tiles, VL columns, to the `rows` rows of
   results that begin at `to`, `width` points of `ld` floats. */
INLINE void wino_turn_sums(int edge, const float *from, int64_t step,
                           int64_t next, int64_t wide, float *to, int64_t ld,
                           int64_t width, int64_t rows) {
    int side = edge + 2;
    for (int64_t i = 0; i < wide; i++, from += next, to += edge * ld) {
        vf row[WINO_SIDE][WINO_SIDE], m[WINO_SIDE], y[WINO_SIDE];
        const float *place = from;
        for (int a = 0; a < side; a++) {
            for (int b = 0; b < side; b++) {
                m[b] = vload(place);
                NEXT(place, step);
            }
            wino_result(edge, m, row[a]);
        }
        for (int b = 0; b < edge && edge * i + b < width; b++) {
            for (int a = 0; a < side; a++) m[a] = row[a][b];
            wino_result(edge, m, y);
            for (int a = 0; a < edge && a < rows; a++)
                vstore(to + (a * width + b) * ld, y[a]);
        }
    }
}

/* The sums of a channel and VL columns, places `step` apart, to its nine
   weights' gradients. */
INLINE void wino_turn_back(int edge, const float *from, int64_t step,
                           float *to) {
    int side = edge + 2;
    vf row[WINO_SIDE][3], s[WINO_SIDE], w[3];
    for (int y = 0; y < side; y++) {
        for (int x = 0; x < side; x++) {
            s[x] = vload(from);
            NEXT(from, step);
        }
        wino_weight_back(edge, s, row[y]);
    }
    for (int x = 0; x < 3; x++) {
        for (int y = 0; y < side; y++) s[y] = row[y][x];
        wino_weight_back(edge, s, w);
        for (int y = 0; y < 3; y++) vstore(to + (y * 3 + x) * VL, w[y]);
    }
}

#endif
