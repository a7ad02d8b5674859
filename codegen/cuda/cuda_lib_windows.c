/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_lib_windows.c: convolutions of stride 1 whose windows have several
   places, and their gradients (runtime/cuda/conv_window.cuh). */
#include "codegen/cuda/cuda_lib.h"
#include "runtime/program/strip.h"

#include <math.h>

/* Tiles of at least 1, 33 and 65 rows: more of them, or wider ones. */
static const TileShape window_shapes[][2] = {
    {{32, 128, 16, 32, 256, 2}, {32, 256, 16, 64, 256, 2}},
    {{64, 64, 32, 16, 256, 2}, {64, 256, 32, 64, 256, 2}},
    {{128, 128, 64, 32, 256, 2}, {128, 256, 64, 64, 256, 1}}};

/* Of whole strips. */
static const TileShape window_sums_shapes[][2] = {
    {{32, 128, 16, 32, 256, 2}, {32, 256, 16, 64, 256, 2}},
    {{64, 128, 32, 32, 256, 2}, {64, 256, 32, 64, 256, 2}},
    {{128, 128, 64, 32, 256, 2}, {128, 256, 64, 64, 256, 1}}};

/* WINDOW_SHARED: static shared memory of a block. */
enum { WINDOW_DEPTH = 16, WINDOW_SHARED = 48 << 10 };

typedef struct WindowPick {
    const TileShape *shape;
    int64_t rows, depth, cols; /* of a group */
    int64_t out[3], line[3];   /* a plane without and with padding */
    int64_t taps, tiles;       /* tiles: of a group */
    int64_t channels, places;  /* a block keeps at once */
    int64_t sums; /* results that a gradient by the weights adds at once */
} WindowPick;

static int64_t window_place(const WindowPick *w, int64_t n) {
    int64_t plane = lib_volume(w->out), x = n % w->out[2];
    int64_t y = n / w->out[2] % w->out[1];
    int64_t z = n % plane / w->out[2] / w->out[1];
    return ((n / plane * w->line[0] + z) * w->line[1] + y) * w->line[2] + x;
}

/* Most multiples of `length` among n - 1 columns behind a multiple of n. */
static int64_t boundaries(int64_t n, int64_t length) {
    return length % n == 0   ? 0
           : n % length == 0 ? n / length - 1
                             : up_div(n - 1, length);
}

/* Most places between the first and the last input of n results. */
static int64_t window_places(const WindowPick *w, int64_t n) {
    int64_t far[3], places = n, length = 1, between = 1;
    for (int i = 0; i < 3; i++) far[i] = w->line[i] - w->out[i];
    for (int i = 2; i >= 0; i--) {
        places += boundaries(n, length *= w->out[i]) * far[i] * between;
        places += far[i] * between;
        between *= w->line[i];
    }
    return places;
}

/* Share of the time in which all multiprocessors work. */
static double window_fill(const WindowPick *w, const TileShape *s,
                          int64_t group) {
    double waves = (double)(up_div(w->rows, s->m) * up_div(w->cols, s->n)) *
                   (double)group / (GPU_BLOCKS / 2.);
    return waves / ceil(waves);
}

/* Takes the tile if its inputs fit in shared memory, as many channels at once
   as do. */
static bool window_fits(WindowPick *w, const TileShape *s) {
    w->shape = s;
    w->tiles = up_div(w->rows, s->m) * up_div(w->cols, s->n);
    w->places = window_places(w, s->n);
    for (w->channels = w->depth > 16 ? 32 : 16; w->channels; w->channels -= 16)
        if (w->places * (w->channels * 2 + 16) <= WINDOW_SHARED) return true;
    return false;
}

/* The windows of a convolution or of its gradient by X; false: another kernel
   is for it. */
static bool window_of(const LibConv *c, bool back, WindowPick *w) {
    double lines = (double)c->n;
    *w = (WindowPick){.rows = (back ? c->c : c->k) / c->group,
                      .depth = (back ? c->k : c->c) / c->group,
                      .cols = c->n * lib_volume(back ? c->in : c->out),
                      .taps = lib_volume(c->kernel)};
    for (int i = 0; i < 3; i++) {
        w->out[i] = (back ? c->in : c->out)[i];
        w->line[i] = w->out[i] + (c->kernel[i] - 1) * c->dilation[i];
        lines *= (double)w->line[i];
    }
    return w->taps > 1 && lib_volume(c->stride) == 1 && w->cols > 0 &&
           w->depth >= WINDOW_DEPTH && lines < 1e9;
}

static bool window_pick(const LibPrint *p, const LibConv *c, bool back,
                        WindowPick *w) {
    int64_t in = back ? c->y_dtype : c->x_dtype;
    if (!window_of(c, back, w) || !dtype_is_low((DType)in) ||
        in != c->w_dtype || w->rows <= CONV_FEW_CHANNELS)
        return false;
    int size = (w->rows > 32) + (w->rows > 64);
    const TileShape *s =
        cl_sums(p) ? window_sums_shapes[size] : window_shapes[size];
    bool wide =
        window_fill(w, s + 1, c->group) > 0.9 * window_fill(w, s, c->group);
    return (wide && window_fits(w, s + 1)) || window_fits(w, s);
}

/* Wavefronts of a matrix of eight results' inputs, on average: inputs whose
   places are equal modulo 8 are in the same banks. */
static double window_conflicts(const WindowPick *w) {
    int64_t sum = 0, groups = 0;
    for (int64_t n = 0; n + 8 <= w->cols && groups < 512; n += 8, groups++) {
        int64_t most = 0, met[8] = {0};
        for (int i = 0; i < 8; i++) {
            int64_t *m = &met[window_place(w, n + i) % 8];
            if (++*m > most) most = *m;
        }
        sum += most;
    }
    return groups ? (double)sum / (double)groups : 1;
}

/* For each part of the channels a thread stores vectors of eight channels, 36
   instructions each; for each place of a window its warp then multiplies, with
   32 more instructions (counted in SASS of sm_90). */
static CudaWork window_work(const WindowPick *w, StoreRun r, int64_t blocks) {
    const TileShape *s = w->shape;
    double parts = (double)up_div(w->depth, w->channels);
    double halves = (double)w->channels / 16, warps = s->threads / 32.;
    double mt = s->sub_m / 16., nt = s->sub_n / 8.;
    double stored = (double)w->places * (double)w->channels / 8;
    double each =
        (double)up_div(w->places, s->threads) * (double)w->channels / 8;
    double tap = halves * (mt * nt + nt / 2 + mt) + 32;
    double read = halves * 4 * (nt / 2 * window_conflicts(w) + mt);
    double taps = (double)w->taps, results = (double)blocks * s->m * s->n;
    return (CudaWork){.wavefronts =
                          (double)blocks * parts *
                          (stored * (8 / 32. + 1 / 8.) + taps * warps * read),
                      .insts = (double)blocks * s->threads * parts *
                                   (36 * each + taps * tap) +
                               results * r.insts,
                      .second = true};
}

/* A kernel turns the weights, and one multiplies. */
bool cl_put_window(LibPrint *p, const LibConv *c, bool back, StoreRun r) {
    WindowPick w;
    if (!window_pick(p, c, back, &w)) return false;
    const TileShape *s = w.shape;
    int64_t steps = up_div(w.depth, w.channels) * w.taps * (w.channels / 16);
    int64_t panels = up_div(w.rows, s->m) * (s->m / 16);
    int64_t lanes = c->group * panels * steps * 32;
    cl_begin_conv(p, c);
    cl_put_tile(p, "MmaTile", dtype_info[c->w_dtype].cuda, s);
    cl_put_number(p, "channels", w.channels);
    cl_put_number(p, "places", w.places);
    p->out->scratch = (uint64_t)lanes * 16;
    p->out->work = window_work(&w, r, w.tiles * c->group);
    p->out->work.bytes = 2 * (double)p->out->scratch;
    p->out->weight = 20;
    cl_kernel_each(p, false, lanes);
    cl_put_operands(p, ", Words<4> *turned");
    sb_printf(p->sb, "    conv_turn<L%d, %s>(w, turned);\n}\n", p->number,
              back ? "true" : "false");
    cl_kernel_for(p, true, s->threads, s->resident, w.tiles * c->group);
    cl_put_body(p, "_window", ", Words<4> *turned", ", turned");
    return true;
}

/* ---- gradient by the weights --------------------------------------------- */

/* WindowSums of conv_window.cuh. */
static int64_t window_sums_bytes(const WindowPick *w) {
    return w->places * (2 * w->channels + 16) +
           WINDOW_ROWS * (2 * w->sums + 16) + 4 * w->sums;
}

/* False: another kernel computes the gradient by the weights. */
static bool window_sums_pick(const LibPrint *p, const LibConv *c,
                             WindowPick *w) {
    if (!window_of(c, false, w) || !dtype_is_low((DType)c->x_dtype) ||
        c->x_dtype != c->y_dtype || w->taps > 9 || w->rows <= WINDOW_ROWS / 4)
        return false;
    w->channels = 32;
    w->tiles = up_div(w->rows, WINDOW_ROWS) * up_div(w->depth, w->channels);
    for (w->sums = 256; w->sums >= 64; w->sums /= 2) {
        w->places = window_places(w, w->sums);
        if (window_sums_bytes(w) <= p->s->block_shared) return true;
    }
    return false;
}

/* For each part of the results a thread computes places and stores vectors of
   X, then pairs of dY's rows; for each 16 results its warp multiplies, with 30
   more instructions (counted in SASS of sm_90). */
static CudaWork window_sums_work(const WindowPick *w, bool pairs,
                                 int64_t blocks, int64_t slices) {
    const double threads = WINDOW_THREADS, warps = threads / 32, mt = 2;
    double parts = ceil((double)w->cols / (double)slices / (double)w->sums);
    double spots = (double)up_div(w->places, WINDOW_THREADS);
    double y = WINDOW_ROWS * (double)w->sums / 2, taps = (double)w->taps;
    double steps = (double)w->sums / 16, two = ceil(taps / 2);
    double stored = (double)w->places * (double)w->channels / 8;
    double insts = spots * (36 * (double)w->channels / 8 + 40) + 30 +
                   y / threads * (pairs ? 7 : 21) +
                   steps * (taps * mt + two + mt + 21);
    double wavefronts =
        stored * (8 / 32. + 1 / 8.) + y / 32 * (pairs ? 2 : 3) +
        steps * warps * (1 + 4 * mt + 4 * two * window_conflicts(w));
    return (CudaWork){.wavefronts = (double)blocks * parts * wavefronts,
                      .insts = (double)blocks * threads * parts * insts};
}

int64_t cl_window_sums(const LibPrint *p, const LibConv *c) {
    WindowPick w;
    return window_sums_pick(p, c, &w) ? w.tiles : 0;
}

void cl_put_window_sums(LibPrint *p, const LibConv *c, int64_t blocks,
                        int64_t slices) {
    WindowPick w;
    ASSERT(window_sums_pick(p, c, &w));
    cl_put_number(p, "channels", w.channels);
    cl_put_number(p, "places", w.places);
    cl_put_number(p, "sums", w.sums);
    p->out->work =
        window_sums_work(&w, lib_volume(c->out) % 2 == 0, blocks, slices);
    p->out->first.shared = (uint32_t)window_sums_bytes(&w);
    p->out->weight = 20;
}
