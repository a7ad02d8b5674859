/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_conv_test.c: convolution and pooling on CPUs against a naive reference
   in double, over random shapes and dtypes, at every ISA level this machine
   has; the same bits for 1, 2 and 5 threads; scratch memory stays within its
   bounds. */
#include <math.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/runtime/cpu_conv/cpu_conv.h"
#include "tests/support/cpu_cases.h"

int64_t conv_volume(const int64_t v[3]) { return v[0] * v[1] * v[2]; }

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
void conv_fill(ConvCase *k) {
    const LibConv *c = &k->c;
    k->taps = conv_volume(c->kernel);
    k->xs = conv_volume(c->in);
    k->ys = conv_volume(c->out);
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

void conv_free(ConvCase *k) {
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

void conv_call(const ConvCase *k, const AmpcCpuLib *lib, int which, int pool,
               void *out) {
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

LibConv conv_of_row(const ConvRow *r) {
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

void conv_check_row(const ConvRow *r) {
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
        {2, 5, 5, 5, {7, 7}, {7, 7}, 1, 3},
        {1, 3, 3, 3, {14, 61}, {7, 7}, 1, 3},
        {1, 4, 4, 4, {9, 130}, {5, 3}, 1, 1},
        {1, 3, 3, 3, {2, 20}, {2, 9}, 1, 4},
    };
    rng = 22;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        conv_check_row(&rows[i]);
}

/* ---- ways to compute ----------------------------------------------------- */

/* How 300 drawn convolutions are computed, as it is today: by minimal
   filtering, staged channels-last, as products, else; the cuts and scratch
   memory of the plans. A change of the choice that means to change these
   numbers records them here. */
typedef struct Ways {
    long long threads;
    long long wino, staged, products, items, kilobytes;
} Ways;

static void add_ways(Ways *w, const LibConv *c, int kind, int dgrad) {
    WinoPlan wino;
    ChlastPlan staged;
    ConvPlan plain;
    LibGemm g;
    conv_plan(c, dgrad, kind != 0, (int)w->threads, &plain);
    w->items += plain.items;
    w->wino += wino_plan(c, dgrad, kind, (int)w->threads, &wino) != 0;
    w->staged += chlast_plan(c, dgrad, kind, (int)w->threads, &staged) != 0;
    w->products += conv_product(c, dgrad, &g) != 0;
    w->kilobytes +=
        (long long)((dgrad ? cpu_conv_dgrad_scratch(c, (int)w->threads)
                           : cpu_conv_fwd_scratch(c, (int)w->threads)) /
                    1024);
}

static void add_ways_of_wgrad(Ways *w, const LibConv *c, int kind) {
    WinoPlan wino;
    ChlastPlan staged;
    w->wino += wino_wgrad_plan(c, kind, &wino) != 0;
    w->staged += chlast_wgrad_plan(c, kind, (int)w->threads, &staged) != 0;
    w->kilobytes +=
        (long long)(cpu_conv_wgrad_scratch(c, (int)w->threads) / 1024);
}

TEST_CASE(conv, ways_are_as_recorded) {
    static const Ways recorded[] = {{1, 213, 2025, 288, 9352, 2228781},
                                    {6, 213, 2025, 288, 22835, 4086858}};
    for (size_t i = 0; i < sizeof recorded / sizeof *recorded; i++) {
        Ways w = {.threads = recorded[i].threads};
        const Ways *was = &recorded[i];
        rng = 23;
        for (int n = 0; n < 300; n++) {
            int64_t size = rnd_in(1, 40), kernel = rnd_in(0, 2) ? 3 : 1;
            ConvRow r = {.n = rnd_in(1, 9),
                         .c = rnd_in(1, 130),
                         .k = rnd_in(1, 130),
                         .group = 1,
                         .in = {size + 3, size + rnd_in(3, 5)},
                         .kernel = {kernel, kernel},
                         .stride = rnd_in(1, 2),
                         .pad = kernel / 2};
            LibConv c = conv_of_row(&r);
            for (int kind = 0; kind < 3; kind++) {
                for (int dgrad = 0; dgrad < 2; dgrad++)
                    add_ways(&w, &c, kind, dgrad);
                add_ways_of_wgrad(&w, &c, kind);
            }
        }
        CHECK_MSG(!memcmp(&w, was, sizeof w),
                  "300 convolutions: {%lld, %lld, %lld, %lld, %lld, %lld}, "
                  "recorded {%lld, %lld, %lld, %lld, %lld, %lld}",
                  w.threads, w.wino, w.staged, w.products, w.items, w.kilobytes,
                  was->threads, was->wino, was->staged, was->products,
                  was->items, was->kilobytes);
    }
}
