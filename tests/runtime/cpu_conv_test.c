/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_conv_test.c: convolution and pooling on CPUs against a naive reference
   in double, over random shapes and dtypes, at every ISA level this machine
   has; the same bits for 1, 2 and 5 threads; scratch memory stays within its
   bounds. */
#define _POSIX_C_SOURCE 200809L
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cpu/wino.h"
#include "tests/harness.h"
#include "tests/support/cpu_cases.h"
#include "tests/tolerance.h"

/* ---- convolution --------------------------------------------------------- */

typedef struct ConvCase {
    LibConv c;
    int64_t nx, nw, ny, xs, ys, taps;
    void *x, *w, *dy;
    double *y, *dx, *dw; /* references                              */
    double *y_mag, *dx_mag, *dw_mag; /* sums of magnitudes                   */
} ConvCase;

static int64_t prod3(const int64_t v[3]) { return v[0] * v[1] * v[2]; }

/* Input position that tap t of output o reads, or -1. */
static int64_t conv_at(const LibConv *c, int d, int64_t o, int64_t t) {
    int64_t i = o * c->stride[d] - c->pad[d] + t * c->dilation[d];
    return i < 0 || i >= c->in[d] ? -1 : i;
}

static void conv_term(ConvCase *k, int64_t yi, int64_t xi, int64_t wi) {
    double x = array_get(k->x, k->c.x_dtype, xi),
           w = array_get(k->w, k->c.w_dtype, wi);
    double g = array_get(k->dy, k->c.y_dtype, yi);
    k->y[yi] += x * w;
    k->y_mag[yi] += fabs(x * w);
    k->dx[xi] += g * w;
    k->dx_mag[xi] += fabs(g * w);
    k->dw[wi] += g * x;
    k->dw_mag[wi] += fabs(g * x);
}

static void conv_reference(ConvCase *k) {
    const LibConv *c = &k->c;
    int64_t cg = c->c / c->group, kg = c->k / c->group;
    for (int64_t yi = 0; yi < k->ny; yi++) {
        int64_t o = yi % k->ys, ch = yi / k->ys % c->k, n = yi / k->ys / c->k;
        int64_t od = o / c->out[2] / c->out[1], oh = o / c->out[2] % c->out[1];
        for (int64_t wi = ch * cg * k->taps; wi < (ch + 1) * cg * k->taps;
             wi++) {
            int64_t t = wi % k->taps, ci = ch / kg * cg + wi / k->taps % cg;
            int64_t d = conv_at(c, 0, od, t / c->kernel[2] / c->kernel[1]);
            int64_t h = conv_at(c, 1, oh, t / c->kernel[2] % c->kernel[1]);
            int64_t w = conv_at(c, 2, o % c->out[2], t % c->kernel[2]);
            if (d < 0 || h < 0 || w < 0) continue;
            int64_t at = (d * c->in[1] + h) * c->in[2] + w;
            conv_term(k, yi, (n * c->c + ci) * k->xs + at, wi);
        }
    }
}

/* Operands with the dtypes of k->c, and the references. */
static void conv_fill(ConvCase *k) {
    const LibConv *c = &k->c;
    k->taps = prod3(c->kernel);
    k->xs = prod3(c->in);
    k->ys = prod3(c->out);
    k->nx = c->n * c->c * k->xs;
    k->ny = c->n * c->k * k->ys;
    k->nw = c->k * (c->c / c->group) * k->taps;
    k->x = array(c->x_dtype, k->nx);
    k->w = array(c->w_dtype, k->nw);
    k->dy = array(c->y_dtype, k->ny);
    k->y = zeros(k->ny);
    k->y_mag = zeros(k->ny);
    k->dx = zeros(k->nx);
    k->dx_mag = zeros(k->nx);
    k->dw = zeros(k->nw);
    k->dw_mag = zeros(k->nw);
    conv_reference(k);
}

static void conv_prepare(ConvCase *k) {
    k->c.x_dtype = rnd_float();
    k->c.w_dtype = rnd_float();
    k->c.y_dtype = rnd_float();
    conv_fill(k);
}

static void conv_free(ConvCase *k) {
    void *all[] = {k->x,  k->w,      k->dy, k->y,     k->y_mag,
                   k->dx, k->dx_mag, k->dw, k->dw_mag};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) block_free(all[i]);
}

static void conv_close(const ConvCase *k, const char *what, const void *got,
                       int64_t dtype, const double *want, const double *mag,
                       int64_t n) {
    const LibConv *c = &k->c;
    for (int64_t i = 0; i < n; i++) {
        double tol = 1e-4 * mag[i] + unit(dtype) * fabs(want[i]) + 1e-7;
        if (!CHECK_MSG(
                fabs(array_get(got, dtype, i) - want[i]) <= tol,
                "%s n=%d c=%d k=%d g=%d in=%d,%d,%d kernel=%d,%d,%d "
                "stride=%d,%d,%d dil=%d,%d,%d pad=%d,%d,%d at %d: %g want %g",
                what, (int)c->n, (int)c->c, (int)c->k, (int)c->group,
                (int)c->in[0], (int)c->in[1], (int)c->in[2], (int)c->kernel[0],
                (int)c->kernel[1], (int)c->kernel[2], (int)c->stride[0],
                (int)c->stride[1], (int)c->stride[2], (int)c->dilation[0],
                (int)c->dilation[1], (int)c->dilation[2], (int)c->pad[0],
                (int)c->pad[1], (int)c->pad[2], (int)i,
                array_get(got, dtype, i), want[i]))
            return;
    }
}

/* which: 0 forward, 1 dgrad, 2 wgrad */
static size_t conv_need(const LibConv *c, int which, int threads) {
    return which == 0   ? cpu_conv_fwd_scratch(c, threads)
           : which == 1 ? cpu_conv_dgrad_scratch(c, threads)
                        : cpu_conv_wgrad_scratch(c, threads);
}

static void conv_call(const ConvCase *k, const AmpcCpuLib *lib, int which,
                      int pool, void *out) {
    const LibConv *c = &k->c;
    size_t need = conv_need(c, which, thread_counts[pool]);
    void *scratch = scratch_of(need);
    if (which == 0)
        lib->conv_fwd(lib->isa, pools[pool], c, k->x, k->w, out, NULL, scratch,
                      NULL);
    else if (which == 1)
        lib->conv_dgrad(lib->isa, pools[pool], c, k->dy, k->w, out, scratch);
    else
        lib->conv_wgrad(lib->isa, pools[pool], c, k->x, k->dy, out, scratch);
    scratch_check(scratch, need);
}

/* The packed W that forward kept replaces W: the same bits, even if W is gone.
 */
static void conv_check_kept(const ConvCase *k, const AmpcCpuLib *lib,
                            const void *want, size_t bytes) {
    for (int t = 0; t < 3; t++) {
        size_t keeps = cpu_conv_fwd_kept(&k->c, thread_counts[t]);
        size_t need = cpu_conv_fwd_scratch(&k->c, thread_counts[t]);
        if (!keeps) return;
        void *out = block(bytes), *scratch = scratch_of(need);
        CpuKept kept = {scratch_of(keeps), 0};
        for (int made = 0; made < 2; made++) {
            memset(out, 0x55, bytes);
            lib->conv_fwd(lib->isa, pools[t], &k->c, k->x, made ? NULL : k->w,
                          out, NULL, scratch, &kept);
            CHECK_MSG(kept.made && memcmp(want, out, bytes) == 0,
                      "kept weights change bits");
        }
        scratch_check(kept.memory, keeps);
        scratch_check(scratch, need);
        block_free(out);
    }
}

static void conv_check_routine(const ConvCase *k, const AmpcCpuLib *lib,
                               int which) {
    const LibConv *c = &k->c;
    static const char *const names[] = {"conv", "dgrad", "wgrad"};
    const int64_t n[] = {k->ny, k->nx, k->nw};
    const int64_t dtype[] = {c->y_dtype, c->x_dtype, c->w_dtype};
    const double *want[] = {k->y, k->dx, k->dw};
    const double *mag[] = {k->y_mag, k->dx_mag, k->dw_mag};
    size_t bytes = (size_t)n[which] * size_of(dtype[which]);
    void *first = block(bytes);
    memset(first, 0xff, bytes);
    conv_call(k, lib, which, 0, first);
    conv_close(k, names[which], first, dtype[which], want[which], mag[which],
               n[which]);
    for (int t = 1; t < 3; t++) {
        void *out = block(bytes);
        conv_call(k, lib, which, t, out);
        CHECK_MSG(memcmp(first, out, bytes) == 0, "%s: threads change bits",
                  names[which]);
        block_free(out);
    }
    if (which == 0) conv_check_kept(k, lib, first, bytes);
    block_free(first);
}

static void conv_check_epilogue(const ConvCase *k, const AmpcCpuLib *lib) {
    Record r = {.rows = k->c.k, .cols = k->ys, .inside = 1};
    r.out = block((size_t)k->ny * sizeof(float));
    r.count = block((size_t)k->ny);
    memset(r.count, 0, (size_t)k->ny);
    void *const buf[1] = {&r};
    CpuEpilogue ep = {.fn = record, .buf = buf};
    void *scratch = scratch_of(cpu_conv_fwd_scratch(&k->c, 2));
    lib->conv_fwd(lib->isa, pools[1], &k->c, k->x, k->w, NULL, &ep, scratch,
                  NULL);
    record_check(&r, k->ny);
    conv_close(k, "conv epilogue", r.out, AMPC_F32, k->y, k->y_mag, k->ny);
    block_free(scratch);
    block_free(r.out);
    block_free(r.count);
}

static void conv_check(const LibConv *shape) {
    ConvCase k = {.c = *shape};
    conv_prepare(&k);
    int top = top_level();
    for (int level = 2; level <= top; level++) {
        for (int which = 0; which < 3; which++)
            conv_check_routine(&k, lib_of(level), which);
        conv_check_epilogue(&k, lib_of(level));
    }
    conv_free(&k);
}

static void conv_spatial(LibConv *c, int rank, int64_t extent) {
    for (int d = 0; d < 3; d++) {
        c->in[d] = c->out[d] = c->kernel[d] = c->stride[d] = c->dilation[d] = 1;
        c->pad[d] = 0;
        if (d < 3 - rank) continue;
        do {
            c->in[d] = rnd_in(1, extent);
            c->kernel[d] = rnd_in(1, 4);
            c->stride[d] = rnd_in(1, 3);
            c->dilation[d] = rnd_in(1, 3);
            c->pad[d] = rnd_in(0, 3);
            int64_t span = (c->kernel[d] - 1) * c->dilation[d] + 1;
            int64_t room = c->in[d] + c->pad[d] + rnd_in(0, 3) - span;
            c->out[d] = room < 0 ? 0 : room / c->stride[d] + 1;
        } while (c->out[d] == 0);
    }
}

TEST_CASE(conv, random_shapes) {
    rng = 21;
    pools_open();
    for (int i = 0; i < 120; i++) {
        LibConv c = {.n = rnd_in(1, 3), .group = i % 4 == 0 ? rnd_in(2, 4) : 1};
        c.c = c.group * rnd_in(1, 5);
        c.k = c.group * rnd_in(1, 19);
        int rank = i % 3 + 1;
        conv_spatial(&c, rank, rank == 1 ? 60 : rank == 2 ? 20 : 7);
        conv_check(&c);
    }
    pools_close();
}

/* Random convolutions of one group. */
typedef struct ConvRange {
    int cases, least; /* channels on either side                             */
    int c[2], k[2];   /* largest numbers; the second for every third case */
    int extent[3];    /* at most, by rank                                    */
} ConvRange;

static void conv_range(const ConvRange *r) {
    pools_open();
    for (int i = 0; i < r->cases; i++) {
        LibConv c = {.n = rnd_in(1, 5), .group = 1};
        c.c = rnd_in(r->least, r->c[i % 3 == 0]);
        c.k = rnd_in(r->least, r->k[i % 3 == 0]);
        conv_spatial(&c, i % 3 + 1, r->extent[i % 3]);
        conv_check(&c);
    }
    pools_close();
}

/* Enough channels on both sides to be staged channels-last. */
TEST_CASE(conv, many_channels) {
    rng = 23;
    conv_range(&(ConvRange){60, 16, {20, 45}, {30, 250}, {40, 10, 5}});
}

/* Pairs of channels and of points: odd numbers of both, rows shorter than the
   stride, pads that belong to two images.                                   */
TEST_CASE(conv, pairs_of_bf16) {
    rng = 25;
    only_bf16 = 1;
    conv_range(&(ConvRange){60, 1, {19, 70}, {70, 19}, {40, 9, 5}});
    conv_range(&(ConvRange){60, 16, {19, 70}, {70, 19}, {40, 9, 5}});
    only_bf16 = 0;
}

/* A convolution of images: n, channels, results, groups; then height, width,
   kernel's height and width, stride, pad.                                   */
typedef struct ConvRow {
    int64_t n, c, k, group, in[2], kernel[2], stride, pad;
} ConvRow;

static LibConv conv_of_row(const ConvRow *r) {
    LibConv c = {.n = r->n, .c = r->c, .k = r->k, .group = r->group};
    c.in[0] = c.out[0] = c.kernel[0] = c.stride[0] = c.dilation[0] = 1;
    for (int d = 0; d < 2; d++) {
        c.in[d + 1] = r->in[d];
        c.kernel[d + 1] = r->kernel[d];
        c.stride[d + 1] = r->stride;
        c.dilation[d + 1] = 1;
        c.pad[d + 1] = r->kernel[d] > 1 ? r->pad : 0;
        c.out[d + 1] =
            (r->in[d] + 2 * c.pad[d + 1] - r->kernel[d]) / r->stride + 1;
    }
    return c;
}

static void conv_check_row(const ConvRow *r) {
    LibConv c = conv_of_row(r);
    pools_open();
    conv_check(&c);
    pools_close();
}

/* Images staged one after the other, and 165 small ones as 83 and 82, whose
   pads are skipped.                                                         */
TEST_CASE(conv, images_in_turns) {
    rng = 24;
    conv_check_row(&(ConvRow){2, 16, 17, 1, {1, 40001}, {1, 3}, 2, 1});
    conv_check_row(&(ConvRow){165, 56, 57, 1, {4, 4}, {3, 3}, 1, 1});
}

/* Most taps read pads: odd widths, strides, taps beyond both edges, rows of
   one result. */
TEST_CASE(conv, small_images) {
    static const ConvRow rows[] = {
        {5, 64, 66, 1, {5, 5}, {3, 3}, 1, 1},
        {3, 70, 70, 1, {7, 4}, {3, 3}, 2, 1},
        {2, 40, 50, 1, {3, 6}, {5, 5}, 1, 2},
        {9, 48, 64, 1, {2, 1}, {3, 3}, 1, 1},
    };
    rng = 26;
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
        only_bf16 = i % 2;
        conv_check_row(&rows[i / 2]);
    }
    only_bf16 = 0;
}

/* Of the 16 results of a 4x4 image, 4 use all nine taps of a 3x3 kernel, 8 use
   six and 4 use four: over eight images, tiles of 8 results use no other tap.
 */
TEST_CASE(conv, taps_that_read_pads_are_skipped) {
    LibConv c = {16,        64,        64,        1,         {1, 4, 4},
                 {1, 4, 4}, {1, 3, 3}, {1, 1, 1}, {1, 1, 1}, {0, 1, 1},
                 0,         0,         0};
    ChlastPlan p;
    ConvSub s;
    uint64_t taps[256];
    int32_t order[256], used = 0;
    REQUIRE(chlast_plan(&c, 0, 0, 1, &p) && p.skips && p.block == 256);
    conv_sub(&p.p, 0, &s);
    CHECK_EQ_INT(chlast_reads(&p, &s, 16, 1, taps, order), 256);
    chlast_order(&p, 256, order);
    for (int i = 0; i < 256; i += 8) {
        uint64_t any = 0;
        for (int k = i; k < i + 8; k++) any |= taps[order[k]];
        used += __builtin_popcountll(any);
    }
    CHECK_EQ_INT(used, 2 * (4 * 9 + 8 * 6 + 4 * 4));
    c.in[1] = c.in[2] = c.out[1] = c.out[2] = 56;
    CHECK(chlast_plan(&c, 0, 0, 1, &p) && !p.skips);
    c.in[1] = c.in[2] = c.out[1] = c.out[2] = 4;
    c.c = c.k = 32; /* too little work to make finding pads worthwhile */
    CHECK(chlast_plan(&c, 0, 0, 1, &p) && !p.skips);
}

/* Kernels of one element: images that are matrix products, and some that are
   too small. */
TEST_CASE(conv, products) {
    static const ConvRow rows[] = {
        {2, 40, 24, 1, {13, 11}, {1, 1}, 1, 0},
        {3, 17, 70, 1, {12, 15}, {1, 1}, 1, 0},
        {2, 3, 9, 1, {40, 31}, {1, 1}, 1, 0},
        {5, 65, 33, 1, {5, 7}, {1, 1}, 1, 0},
    };
    rng = 31;
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
        LibConv c = conv_of_row(&rows[i / 2]);
        LibGemm g;
        CHECK_EQ_INT(conv_product(&c, 0, &g), rows[i / 2].in[0] > 5);
        only_bf16 = i % 2;
        conv_check_row(&rows[i / 2]);
    }
    only_bf16 = 0;
}

/* The common kinds: 3x3 pad 1, strided, 1x1, depthwise, patches, long 1-D. */
TEST_CASE(conv, common_shapes) {
    static const ConvRow rows[] = {
        {2, 1, 16, 1, {28, 28}, {3, 3}, 1, 0},
        {3, 20, 33, 1, {14, 14}, {3, 3}, 1, 1},
        {2, 40, 24, 1, {9, 9}, {3, 3}, 2, 1},
        {2, 17, 40, 1, {10, 12}, {1, 1}, 2, 0},
        {2, 32, 32, 32, {15, 15}, {3, 3}, 1, 1},
        {1, 3, 20, 1, {32, 32}, {8, 8}, 8, 0},
        {1, 2, 5, 1, {1, 3000}, {1, 10}, 2, 2},
        {1, 6, 300, 1, {40, 70}, {3, 3}, 1, 1},
        {40, 5, 7, 1, {4, 4}, {3, 3}, 1, 0},
    };
    rng = 22;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        conv_check_row(&rows[i]);
}

/* buf: the result, its number of elements per image and per plane: stores
   twice the sum. */
static void store_twice(void *const *buf, const float *acc, int64_t ld,
                        int64_t batch, int64_t row, int64_t col, int64_t rows,
                        int64_t cols) {
    float *out = buf[0];
    int64_t image = *(int64_t *)buf[1], plane = *(int64_t *)buf[2];
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            out[batch * image + (row + i) * plane + col + j] =
                2 * acc[i * ld + j];
}

/* Checks that convolution and pool together give the same bits as one after
   the other, with and without storing the convolution's result and with an
   epilogue, for any number of threads. */
static void conv_check_pooled(const ConvCase *k, const LibPool *p, int max) {
    LibConv c = k->c;
    int64_t out = p->planes * prod3(p->out), image = c.k * k->ys, plane = k->ys;
    for (int twice = 0; twice < 2; twice++)
        for (int level = 2; level <= top_level(); level++) {
            const AmpcCpuLib *lib = lib_of(level);
            float *y = array(AMPC_F32, k->ny), *all = array(AMPC_F32, k->ny);
            float *want = array(AMPC_F32, out), *got = array(AMPC_F32, out);
            int8_t *tap = block((size_t)out), *taps = block((size_t)out);
            void *ep_buf[3] = {y, &image, &plane};
            CpuEpilogue ep = {twice ? store_twice : NULL, ep_buf, NULL};
            void *scratch = scratch_of(cpu_conv_fwd_scratch(&c, 1));
            lib->conv_fwd(lib->isa, pools[0], &c, k->x, k->w, y, &ep, scratch,
                          NULL);
            if (max)
                lib->maxpool(pools[0], p, y, want, tap);
            else
                lib->avgpool(pools[0], p, y, want);
            block_free(scratch);
            for (int i = 0; i < 6; i++) {
                size_t need = cpu_conv_fwd_scratch(&c, thread_counts[i / 2]) +
                              cpu_pool_scratch(&c, p, thread_counts[i / 2]);
                void *place = i % 2 ? all : NULL;
                void *buf[3] = {place, got, taps};
                CpuPool pool = {max ? PLAN_LIB_MAXPOOL : PLAN_LIB_AVGPOOL, p,
                                buf, twice && !place ? ep_buf : NULL};
                ep_buf[0] = place;
                ep.pool = &pool;
                scratch = scratch_of(need);
                memset(got, 0x55, (size_t)out * 4);
                lib->conv_fwd(lib->isa, pools[i / 2], &c, k->x, k->w, place,
                              &ep, scratch, NULL);
                CHECK(!memcmp(got, want, (size_t)out * 4));
                CHECK(!max || !memcmp(tap, taps, (size_t)out));
                CHECK(!place || !memcmp(all, y, (size_t)k->ny * 4));
                scratch_check(scratch, need);
            }
            void *blocks[] = {y, all, want, got, tap, taps};
            for (int i = 0; i < 6; i++) block_free(blocks[i]);
        }
}

TEST_CASE(conv, pools_behind) {
    static const ConvRow rows[] = {
        {11, 1, 9, 1, {28, 28}, {3, 3}, 1, 1},   /* one channel               */
        {13, 16, 40, 1, {14, 14}, {3, 3}, 1, 1}, /* tiles of 2x2              */
        {29, 20, 33, 1, {15, 15}, {3, 3}, 2, 1}, /* staged                    */
        {2, 6, 10, 2, {9, 70}, {1, 1}, 1, 0},
    };
    rng = 30;
    pools_open();
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
        ConvCase k = {.c = conv_of_row(&rows[i / 2])};
        LibPool p = {.planes = k.c.n * k.c.k,
                     .in = {1, k.c.out[1], k.c.out[2]},
                     .out = {1, k.c.out[1] / 2, (k.c.out[2] - 1) / 2},
                     .kernel = {1, 2, 3},
                     .stride = {1, 2, 2},
                     .dilation = {1, 1, 1},
                     .dtype = AMPC_F32,
                     .idx_dtype = AMPC_I8};
        k.c.x_dtype = k.c.w_dtype = k.c.y_dtype = AMPC_F32;
        conv_fill(&k);
        conv_check_pooled(&k, &p, i % 2);
        conv_free(&k);
    }
    pools_close();
}

/* Tiles of 2x2 results: odd heights and widths, pads beyond the kernel,
   channels that do not fill a vector, images staged in turns, wide rows. */
static const ConvRow filtered[] = {
    {7, 17, 19, 1, {9, 8}, {3, 3}, 1, 1},
    {3, 33, 16, 1, {13, 15}, {3, 3}, 1, 0},
    {3, 16, 50, 1, {12, 11}, {3, 3}, 1, 2},
    {70, 40, 21, 1, {8, 8}, {3, 3}, 1, 1},
    {1, 20, 30, 1, {3, 300}, {3, 3}, 1, 1},
};

TEST_CASE(conv, minimal_filtering) {
    rng = 27;
    for (size_t i = 0; i < sizeof filtered / sizeof *filtered; i++) {
        LibConv c = conv_of_row(&filtered[i]);
        WinoPlan p;
        CHECK(wino_plan(&c, 0, TILE_WIDENED, 1, &p));
        CHECK(wino_plan(&c, 1, TILE_WIDENED, 1, &p));
        CHECK(wino_wgrad_plan(&c, TILE_WIDENED, &p));
        CHECK(!wino_plan(&c, 0, TILE_PAIRS, 1, &p));
        conv_check_row(&filtered[i]);
    }
}

/* Tiles of 4x4 results in 16 bits: heights and widths that do not fill them,
   and the rest as above; a sum of dW over several turns, and one by slices. */
static const ConvRow filtered_4[] = {
    {11, 17, 19, 1, {7, 7}, {3, 3}, 1, 1},
    {3, 33, 16, 1, {15, 18}, {3, 3}, 1, 0},
    {4, 16, 50, 1, {14, 11}, {3, 3}, 1, 2},
    {70, 40, 21, 1, {8, 8}, {3, 3}, 1, 1},
    {1, 20, 30, 1, {4, 300}, {3, 3}, 1, 1},
    {9, 100, 70, 1, {8, 15}, {3, 3}, 1, 1},
};

TEST_CASE(conv, minimal_filtering_in_16_bits) {
    rng = 31;
    for (size_t i = 0; i < sizeof filtered_4 / sizeof *filtered_4; i++) {
        LibConv c = conv_of_row(&filtered_4[i]);
        WinoPlan p;
        c.x_dtype = c.w_dtype = c.y_dtype = AMPC_BF16;
        for (int kind = TILE_WIDENED; kind <= TILE_AMX; kind++) {
            int here = kind != TILE_AMX;
            CHECK_EQ_INT(wino_plan(&c, 0, kind, 1, &p) ? p.edge : 0, 4 * here);
            CHECK_EQ_INT(wino_plan(&c, 1, kind, 2, &p) ? p.edge : 0, 4 * here);
            CHECK_EQ_INT(wino_wgrad_plan(&c, kind, &p) ? p.edge : 0, 4 * here);
        }
        for (only_bf16 = 0; only_bf16 < 2; only_bf16++)
            conv_check_row(&filtered_4[i]);
        only_bf16 = 0;
    }
    /* many channels, where the sums of dW are too large to read again */
    LibConv many =
        conv_of_row(&(ConvRow){9, 256, 256, 1, {14, 14}, {3, 3}, 1, 1});
    WinoPlan p;
    many.x_dtype = many.w_dtype = many.y_dtype = AMPC_F16;
    CHECK(wino_plan(&many, 0, TILE_WIDENED, 1, &p) && p.edge == 4);
    CHECK(wino_wgrad_plan(&many, TILE_WIDENED, &p) && p.edge == 2);
}

static double conv_worst(const float *got, const double *want,
                         const double *mag, int64_t n) {
    double worst = 0;
    for (int64_t i = 0; i < n; i++)
        worst = fmax(worst, fabs(got[i] - want[i]) / mag[i]);
    return worst;
}

TEST_CASE(conv, minimal_filtering_is_as_exact_as_taps) {
    static const ConvRow few = {1, 64, 32, 1, {16, 16}, {3, 3}, 1, 1};
    static const ConvRow many = {2, 64, 32, 1, {16, 16}, {3, 3}, 1, 1};
    double worst[2];
    rng = 28;
    pools_open();
    for (int filters = 0; filters < 2; filters++) {
        ConvCase k = {.c = conv_of_row(filters ? &many : &few)};
        WinoPlan p;
        k.c.x_dtype = k.c.w_dtype = k.c.y_dtype = AMPC_F32;
        CHECK_EQ_INT(wino_plan(&k.c, 0, TILE_WIDENED, 1, &p), filters);
        conv_fill(&k);
        const double *want[] = {k.y, k.dx, k.dw};
        const double *mag[] = {k.y_mag, k.dx_mag, k.dw_mag};
        const int64_t n[] = {k.ny, k.nx, k.nw};
        worst[filters] = 0;
        for (int which = 0; which < 3; which++) {
            float *out = array(AMPC_F32, n[which]);
            conv_call(&k, lib_of(top_level() < 4 ? top_level() : 4), which, 0,
                      out);
            worst[filters] =
                fmax(worst[filters],
                     conv_worst(out, want[which], mag[which], n[which]));
            block_free(out);
        }
        conv_free(&k);
    }
    pools_close();
    CHECK(worst[1] <= TOL_FILTERED);
    CHECK(worst[1] <= worst[0]);
}

/* Both factors have 16 bits, the result 32, so that only sums err. */
TEST_CASE(conv, minimal_filtering_in_16_bits_is_near_double) {
    static const ConvRow row = {4, 64, 32, 1, {16, 16}, {3, 3}, 1, 1};
    double worst = 0;
    rng = 32;
    pools_open();
    for (int which = 0; which < 3; which++) {
        ConvCase k = {.c = conv_of_row(&row)};
        WinoPlan p;
        int64_t *const result[] = {&k.c.y_dtype, &k.c.x_dtype, &k.c.w_dtype};
        k.c.x_dtype = k.c.w_dtype = k.c.y_dtype = AMPC_F16;
        *result[which] = AMPC_F32;
        CHECK(which == 2 ? wino_wgrad_plan(&k.c, TILE_WIDENED, &p)
                         : wino_plan(&k.c, which, TILE_WIDENED, 1, &p));
        CHECK_EQ_INT(p.edge, 4);
        conv_fill(&k);
        const double *want[] = {k.y, k.dx, k.dw};
        const double *mag[] = {k.y_mag, k.dx_mag, k.dw_mag};
        const int64_t n[] = {k.ny, k.nx, k.nw};
        float *out = array(AMPC_F32, n[which]);
        for (int level = 2; level <= top_level(); level++) {
            conv_call(&k, lib_of(level), which, 0, out);
            worst =
                fmax(worst, conv_worst(out, want[which], mag[which], n[which]));
        }
        block_free(out);
        conv_free(&k);
    }
    pools_close();
    CHECK_MSG(worst <= TOL_FILTERED_4, "%g", worst);
}

/* A result does not depend on elements that it does not read, even in the
   same tile of 2x2; in a tile of 4x4 it may be NaN. */
static void filtering_keeps_infinities_apart(int edge) {
    static const ConvRow row = {5, 16, 16, 1, {11, 11}, {3, 3}, 1, 1};
    ConvCase k = {.c = conv_of_row(&row)};
    WinoPlan p;
    int dtype = edge == 4 ? AMPC_F16 : AMPC_F32;
    rng = 29;
    pools_open();
    k.c.x_dtype = k.c.w_dtype = dtype;
    k.c.y_dtype = AMPC_F32;
    CHECK(wino_plan(&k.c, 0, TILE_WIDENED, 1, &p));
    CHECK_EQ_INT(p.edge, edge);
    conv_fill(&k);
    float *clean = array(AMPC_F32, k.ny), *y = array(AMPC_F32, k.ny);
    for (int level = 2; level <= top_level(); level++) {
        conv_call(&k, lib_of(level), 0, 0, clean);
        for (int64_t at = 0; at < k.xs; at += 7) {
            double was = array_get(k.x, dtype, at);
            array_set(k.x, dtype, at, at % 2 ? INFINITY : NAN);
            conv_call(&k, lib_of(level), 0, 0, y);
            array_set(k.x, dtype, at, was);
            for (int64_t i = 0; i < k.ny; i++) {
                int64_t o = i % k.ys, v[] = {o / 11, o % 11};
                int64_t x[] = {at % k.ys / 11, at % k.ys % 11};
                int reads = i / (16 * k.ys) == at / (16 * k.ys), near = reads;
                for (int d = 0; d < 2; d++) {
                    int64_t first = v[d] - v[d] % edge;
                    reads &= v[d] - x[d] >= -1 && v[d] - x[d] <= 1;
                    near &= x[d] >= first - 1 && x[d] <= first + edge;
                }
                int same = memcmp(&y[i], &clean[i], sizeof *y) == 0;
                if (!CHECK_MSG(reads               ? !isfinite(y[i])
                               : near && edge == 4 ? same || isnan(y[i])
                                                   : same,
                               "level %d: x[%d] in y[%d]", level, (int)at,
                               (int)i))
                    break;
            }
        }
    }
    block_free(clean);
    block_free(y);
    conv_free(&k);
    pools_close();
}

TEST_CASE(conv, minimal_filtering_keeps_infinities_apart) {
    filtering_keeps_infinities_apart(2);
    filtering_keeps_infinities_apart(4);
}

/* ---- pooling ------------------------------------------------------------- */

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
    int64_t in = prod3(p->in);
    *max = -INFINITY;
    *best = -1;
    *sum = *count = 0;
    for (int64_t t = 0; t < prod3(p->kernel); t++) {
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
    for (int64_t t = 0; t < prod3(p->kernel); t++) {
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
    int64_t nx = p->planes * prod3(p->in), ny = p->planes * prod3(p->out);
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
    bool wide = prod3(p.kernel) > INT8_MAX || rnd() % 4 == 0;
    p.idx_dtype = wide ? AMPC_I32 : AMPC_I8;
    int64_t in = prod3(p.in), out = prod3(p.out);
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
