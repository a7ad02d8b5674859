/* SPDX-License-Identifier: Apache-2.0 */
/* pooling.c: windows against a naive reference. */
#include <math.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/runtime/cpu_conv/cpu_conv.h"
#include "tests/support/cpu_cases.h"

static int64_t pool_pos(const LibPool *p, int d, int64_t o, int64_t t) {
    return o * p->stride[d] + t * p->dilation[d] - p->pad[d];
}

static void pool_random(LibPool *p, int rank) {
    static const int64_t types[] = {AMPC_F32, AMPC_BF16, AMPC_F16, AMPC_F64};
    memset(p, 0, sizeof *p);
    p->planes = rnd_in(1, 5);
    p->dtype = types[rnd() % 4];
    p->count_include_pad = rnd() % 2;
    int plain = rnd() % 3 == 0; /* 2x2, stride 2 */
    for (int d = 0; d < 3; d++) {
        p->in[d] = p->out[d] = p->kernel[d] = p->stride[d] = p->dilation[d] = 1;
        if (d < 3 - rank) continue;
        do {
            p->in[d] = rnd_in(1, rank == 1 ? 400 : rank == 2 ? 40 : 9);
            p->kernel[d] = plain ? 2 : rnd_in(1, 4);
            p->stride[d] = plain ? 2 : rnd_in(1, 3);
            p->dilation[d] = plain ? 1 : rnd_in(1, 2);
            p->pad[d] = plain ? 0 : rnd_in(0, p->kernel[d] - 1);
            p->pad_end[d] = plain ? 0 : rnd_in(0, p->kernel[d] - 1);
            int64_t span = (p->kernel[d] - 1) * p->dilation[d] + 1;
            int64_t room = p->in[d] + p->pad[d] + p->pad_end[d] - span;
            p->out[d] = room < 0 ? 0 : room / p->stride[d] + 1;
        } while (p->out[d] == 0);
    }
}

/* One window that covers the plane. */
static void pool_whole(LibPool *p, int64_t h, int64_t w) {
    static const int64_t types[] = {AMPC_F32, AMPC_BF16, AMPC_F16, AMPC_F64};
    *p = (LibPool){.planes = 3,
                   .in = {1, h, w},
                   .kernel = {1, h, w},
                   .out = {1, 1, 1},
                   .stride = {1, 1, 1},
                   .dilation = {1, 1, 1},
                   .dtype = types[rnd() % 4]};
}

typedef struct PoolRef {
    double *max, *avg, *dmax, *davg, *mag;
    int32_t *tap;
} PoolRef;

/* One window: its maximum, the maximum's number and position, the sum and
   the count. */
static void pool_window_ref(const LibPool *p, const void *x, int64_t plane,
                            int64_t o, double *max, int32_t *best,
                            int64_t *from, double *sum, double *count) {
    int64_t in = conv_volume(p->in);
    *max = -INFINITY;
    *best = -1;
    *sum = *count = 0;
    for (int64_t t = 0; t < conv_volume(p->kernel); t++) {
        int64_t at[3],
            tap[3] = {t / p->kernel[2] / p->kernel[1],
                      t / p->kernel[2] % p->kernel[1], t % p->kernel[2]};
        int64_t pos[3] = {o / p->out[2] / p->out[1], o / p->out[2] % p->out[1],
                          o % p->out[2]};
        int inside = 1, padded = 1;
        for (int d = 0; d < 3; d++) {
            at[d] = pool_pos(p, d, pos[d], tap[d]);
            inside &= at[d] >= 0 && at[d] < p->in[d];
            padded &= at[d] < p->in[d] + p->pad_end[d];
        }
        if (inside || (p->count_include_pad && padded)) *count += 1;
        if (!inside) continue;
        int64_t i = (at[0] * p->in[1] + at[1]) * p->in[2] + at[2];
        double v = array_get(x, p->dtype, plane * in + i);
        *sum += v;
        if (*best < 0 || v > *max || (isnan(v) && !isnan(*max))) {
            *max = v;
            *best = (int32_t)t;
            *from = i;
        }
    }
}

static void pool_spread_ref(const LibPool *p, int64_t plane, int64_t o,
                            double g, double *dx, double *mag) {
    for (int64_t t = 0; t < conv_volume(p->kernel); t++) {
        int64_t z = pool_pos(p, 0, o / p->out[2] / p->out[1],
                             t / p->kernel[2] / p->kernel[1]);
        int64_t h = pool_pos(p, 1, o / p->out[2] % p->out[1],
                             t / p->kernel[2] % p->kernel[1]);
        int64_t w = pool_pos(p, 2, o % p->out[2], t % p->kernel[2]);
        if (z < 0 || z >= p->in[0] || h < 0 || h >= p->in[1] || w < 0 ||
            w >= p->in[2])
            continue;
        int64_t i = ((plane * p->in[0] + z) * p->in[1] + h) * p->in[2] + w;
        dx[i] += g;
        mag[i] += fabs(g);
    }
}

static void pool_check(const LibPool *p, const void *x, const void *dy,
                       const PoolRef *ref, const AmpcCpuLib *lib, int t) {
    int64_t nx = p->planes * conv_volume(p->in),
            ny = p->planes * conv_volume(p->out);
    void *y = array(p->dtype, ny + 1), *dx = array(p->dtype, nx + 1);
    void *idx = array(p->idx_dtype, ny + 1);
    array_set(y, p->dtype, ny, 7); /* stays */
    array_set(dx, p->dtype, nx, 7);
    array_set(idx, p->idx_dtype, ny, 7);
    lib->maxpool(pools[t], p, x, y, idx);
    array_close("maxpool", y, p->dtype, ref->max, 0, ny);
    for (int64_t i = 0; i < ny; i++)
        if (!CHECK(array_get(idx, p->idx_dtype, i) == ref->tap[i])) break;
    lib->maxpool(pools[t], p, x, y, NULL);
    array_close("maxpool", y, p->dtype, ref->max, 0, ny);
    lib->maxpool_grad(pools[t], p, dy, idx, dx);
    array_close("maxpool_grad", dx, p->dtype, ref->dmax, 1e-5, nx);
    lib->avgpool(pools[t], p, x, y);
    array_close("avgpool", y, p->dtype, ref->avg, 1e-5, ny);
    lib->avgpool_grad(pools[t], p, dy, dx);
    array_close("avgpool_grad", dx, p->dtype, ref->davg, 1e-5, nx);
    CHECK(array_get(y, p->dtype, ny) == 7 && array_get(dx, p->dtype, nx) == 7 &&
          array_get(idx, p->idx_dtype, ny) == 7);
    block_free(y);
    block_free(dx);
    block_free(idx);
}

static void pool_compare(LibPool p) {
    bool wide = conv_volume(p.kernel) > INT8_MAX || rnd() % 4 == 0;
    p.idx_dtype = wide ? AMPC_I32 : AMPC_I8;
    int64_t in = conv_volume(p.in), out = conv_volume(p.out);
    int64_t nx = p.planes * in, ny = p.planes * out;
    void *x = array(p.dtype, nx), *dy = array(p.dtype, ny);
    if (rnd() % 4 == 0) array_set(x, p.dtype, rnd_in(0, nx - 1), NAN);
    PoolRef ref = {zeros(ny), zeros(ny), zeros(nx),
                   zeros(nx), zeros(nx), block((size_t)ny * sizeof(int32_t))};
    int nan = 0;
    for (int64_t o = 0; o < ny; o++) {
        double sum, count, g = array_get(dy, p.dtype, o);
        int64_t from = 0;
        pool_window_ref(&p, x, o / out, o % out, &ref.max[o], &ref.tap[o],
                        &from, &sum, &count);
        ref.avg[o] = count > 0 ? sum / count : 0;
        nan |= isnan(sum);
        if (ref.tap[o] >= 0) ref.dmax[o / out * in + from] += g;
        pool_spread_ref(&p, o / out, o % out, count > 0 ? g / count : 0,
                        ref.davg, ref.mag);
    }
    int top = top_level();
    for (int level = 2; level <= top; level++)
        for (int t = 0; t < 3; t++)
            pool_check(&p, x, dy, &ref, lib_of(level), t);
    void *all[] = {x,        dy,       ref.max, ref.avg,
                   ref.dmax, ref.davg, ref.mag, ref.tap};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) block_free(all[i]);
}

/* Among equal elements the first counts as the maximum, even if all are
   minus infinity. */
TEST_CASE(pooling, windows_of_minus_infinity) {
    static const int64_t types[] = {AMPC_F32, AMPC_BF16, AMPC_F16, AMPC_F64};
    enum { SIDE = 22, IN = SIDE * SIDE, OUT = IN / 4 };
    pools_open();
    for (int k = 0; k < 4; k++) {
        LibPool p;
        pool_whole(&p, SIDE, SIDE);
        for (int d = 1; d < 3; d++) {
            p.kernel[d] = p.stride[d] = 2;
            p.out[d] = SIDE / 2;
        }
        p.planes = 1, p.dtype = types[k], p.idx_dtype = AMPC_I32;
        void *x = array(p.dtype, IN), *y = array(p.dtype, OUT);
        void *dx = array(p.dtype, IN), *idx = array(AMPC_I32, OUT);
        for (int i = 0; i < IN; i++) array_set(x, p.dtype, i, -INFINITY);
        for (int level = 2; level <= top_level(); level++) {
            const AmpcCpuLib *lib = lib_of(level);
            lib->maxpool(pools[0], &p, x, y, idx);
            int wrong = 0;
            for (int i = 0; i < OUT; i++)
                wrong += array_get(y, p.dtype, i) != -INFINITY ||
                         array_get(idx, AMPC_I32, i) != 0;
            for (int i = 0; i < OUT; i++) array_set(y, p.dtype, i, 3);
            lib->maxpool_grad(pools[0], &p, y, idx, dx);
            for (int i = 0; i < IN; i++) {
                bool first = i % 2 == 0 && i / SIDE % 2 == 0;
                wrong += array_get(dx, p.dtype, i) != (first ? 3 : 0);
            }
            CHECK_MSG(wrong == 0, "type %d, level %d: %d wrong", k, level,
                      wrong);
        }
        block_free(x);
        block_free(y);
        block_free(dx);
        block_free(idx);
    }
    pools_close();
}

TEST_CASE(pooling, whole_planes) {
    rng = 32;
    pools_open();
    for (int64_t n = 1; n <= 40; n++) {
        LibPool p;
        pool_whole(&p, 1 + n % 3, n);
        pool_compare(p);
        pool_whole(&p, n % 9 + 1, n % 9 + 1); /* 7 x 7: one more than whole
                                                 vectors */
        pool_compare(p);
    }
    pools_close();
}

/* Rows of 2 x 2 windows of about the length of a vector, planes of few rows. */
TEST_CASE(pooling, halves) {
    rng = 33;
    pools_open();
    for (int64_t n = 2; n <= 70; n++) {
        LibPool p;
        pool_whole(&p, 2 + n * 5 % 7, n);
        for (int d = 1; d < 3; d++) {
            p.kernel[d] = p.stride[d] = 2;
            p.out[d] = p.in[d] / 2;
        }
        pool_compare(p);
    }
    pools_close();
}

/* Rows about as wide as the lines in which gradients are summed, and wider
   ones. */
TEST_CASE(pooling, wide_rows) {
    static const int64_t types[] = {AMPC_F32, AMPC_BF16, AMPC_F16};
    static const int64_t widths[] = {2030, 2036, 2037, 2038, 2039, 2040,
                                     2041, 2042, 2043, 2048, 4100, 6001};
    rng = 34;
    pools_open();
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int64_t step = 1; step <= 3; step++) {
            LibPool p;
            pool_whole(&p, 2, widths[i]);
            p.dtype = types[rnd() % 3];
            p.planes = 1;
            p.count_include_pad = rnd() % 2;
            p.kernel[1] = 2;
            p.kernel[2] = 3;
            p.stride[2] = step;
            p.dilation[2] = rnd_in(1, 2);
            p.pad[2] = rnd_in(0, 1);
            p.pad_end[2] = rnd_in(0, 1);
            int64_t span = 2 * p.dilation[2] + 1;
            p.out[2] =
                (p.in[2] + p.pad[2] + p.pad_end[2] - span) / p.stride[2] + 1;
            pool_compare(p);
        }
    pools_close();
}

/* Windows wider than such a line are read in parts. */
TEST_CASE(pooling, wide_windows) {
    static const int64_t widths[] = {1025, 2047, 2049, 4100};
    rng = 35;
    pools_open();
    for (int i = 0; i < 24; i++) {
        LibPool p;
        pool_whole(&p, 1, 0);
        p.planes = 1;
        p.kernel[2] = widths[i % 4];
        p.stride[2] = rnd_in(1, 3);
        p.dilation[2] = rnd_in(1, 2);
        p.pad[2] = rnd_in(0, 2);
        int64_t span = (p.kernel[2] - 1) * p.dilation[2] + 1;
        p.in[2] = span + rnd_in(0, 9);
        p.out[2] = (p.in[2] + p.pad[2] - span) / p.stride[2] + 1;
        pool_compare(p);
    }
    pools_close();
}

TEST_CASE(pooling, random_shapes) {
    rng = 31;
    pools_open();
    for (int i = 0; i < 240; i++) {
        LibPool p;
        pool_random(&p, i % 3 + 1);
        pool_compare(p);
    }
    pools_close();
}
