/* SPDX-License-Identifier: Apache-2.0 */
/* wino.c: chooses the convolutions that use wino.h; block sizes and scratch
   memory. */
#include "runtime/cpu/wino.h"

enum {
    WINO_TILES = 96, /* with fewer, transforming the weights costs more than
                        it saves */
    WINO_PART = 3,   /* faster only if this many quarters of the tiles are
                        results */
    WINO_SOURCE = 1 << 17, /* floats of an item's tiles                     */
    WINO_SOURCE_MAX = 1 << 18, /* the same for a single row of tiles */
    WINO_ITEM = 64,        /* tiles of an item                             */
    WINO_TURN = 64,        /* tiles per turn of dW; twice as many if the */
    WINO_SUMS = 1 << 17,   /* sums of a position have more floats than this */
    WINO_SLICES = 8,       /* slices of turns, each of which is short, */
    WINO_SLICED = 1 << 13, /* used if a position has at most this many sums */
};

static size_t wino_floats(int64_t n) {
    return (size_t)round_up(n, BLOCK_LANES) * sizeof(float);
}

/* Floats per position: an odd number of cache lines, so that equal elements
   of all positions do not share a cache set. */
static int64_t wino_place(int64_t n) {
    return (ceil_div(n, BLOCK_LANES) | 1) * BLOCK_LANES;
}

/* Rows of tiles per item: the number from most / 2 to most that leaves the
   fewest tiles in an incomplete block of BLOCK_ROWS. */
static int64_t wino_rows(int64_t most, int64_t wide) {
    int64_t best = most;
    for (int64_t n = most; 2 * n > most; n--)
        if (round_up(n * wide, BLOCK_ROWS) * best <
            round_up(best * wide, BLOCK_ROWS) * n)
            best = n;
    return best;
}

/* The stage, including the points that tiles read beyond its end. */
static void wino_staged(ChlastPlan *p) {
    p->points += p->pitch[2] + 2;
    p->stage = wino_floats(p->points * p->cb * p->cblocks + BLOCK_LANES);
}

static int wino_geometry(const LibConv *c, int dgrad, int kind, WinoPlan *p) {
    *p = (WinoPlan){0};
    int flat =
        c->in[0] == 1 && c->out[0] == 1 && c->kernel[0] == 1 && c->pad[0] == 0;
    for (int i = 1; i < 3; i++)
        flat &= c->kernel[i] == 3 && c->stride[i] == 1 && c->dilation[i] == 1;
    if (!flat || kind != TILE_WIDENED ||
        !chlast_geometry(c, dgrad, kind, 1, 1, &p->x))
        return 0;
    const ConvPlan *x = &p->x.p;
    p->high = ceil_div(x->dim[1].result, 2);
    p->wide = ceil_div(x->dim[2].result, 2);
    for (int i = 0; i < 2; i++)
        p->begin[i] = min64(conv_shift(x, i + 1, 0), conv_shift(x, i + 1, 2));
    int64_t tiles = p->high * p->wide;
    if (tiles * c->n < WINO_TILES ||
        x->dim[1].result * x->dim[2].result < tiles * WINO_PART)
        return 0;
    wino_staged(&p->x);
    p->channels = p->x.cb * p->x.cblocks;
    p->cols = round_up(x->m, BLOCK_COLS);
    return WINO_PLACES * p->wide * (p->channels + 3 * BLOCK_COLS) <=
           WINO_SOURCE_MAX;
}

int wino_plan(const LibConv *c, int dgrad, int kind, int threads, WinoPlan *p) {
    if (!wino_geometry(c, dgrad, kind, p)) return 0;
    int64_t tile = WINO_PLACES * (p->channels + 3 * BLOCK_COLS);
    int64_t tiles = min64(WINO_SOURCE / tile, WINO_ITEM);
    int64_t all = p->x.images * p->high;
    p->rows = max64(1, tiles / p->wide);
    if (threads > 1) p->rows = min64(p->rows, max64(1, all / (4 * threads)));
    p->rows = wino_rows(p->rows, p->wide);
    tiles = p->rows * p->wide;
    p->source = wino_place(tiles * p->channels);
    p->sums = wino_place(tiles * 3 * BLOCK_COLS);
    p->other = wino_floats(WINO_PLACES * p->x.p.channels * p->cols);
    /* results of 3 vectors by point, followed by a block for transposing */
    int64_t points = 4 * tiles + BLOCK_LANES;
    p->worker = wino_floats(WINO_PLACES * (p->source + p->sums) +
                            2 * points * 3 * BLOCK_COLS);
    return 1;
}

int wino_wgrad_plan(const LibConv *c, int kind, WinoPlan *p) {
    if (!wino_geometry(c, 0, kind, p)) return 0;
    /* dY as the source of a convolution that extends over odd edges */
    LibConv even = *c;
    even.c = c->k;
    for (int i = 1; i < 3; i++) {
        even.in[i] = even.out[i] = c->out[i];
        even.kernel[i] = 1 + c->out[i] % 2;
        even.pad[i] = 0;
    }
    if (!chlast_geometry(&even, 0, kind, 1, 1, &p->dy)) return 0;
    wino_staged(&p->dy);
    int64_t images = min64(p->x.images, p->dy.images);
    p->x.images = p->dy.images = images;
    p->cols = p->dy.cb * p->dy.cblocks;
    int64_t turn =
        p->channels * p->cols > WINO_SUMS ? 2 * WINO_TURN : WINO_TURN;
    p->rows = min64(max64(1, turn / p->wide), images * p->high);
    int64_t tiles = p->rows * p->wide;
    p->source = wino_place(tiles * p->channels);
    p->sums = wino_place(tiles * p->cols);
    size_t both = wino_floats(WINO_PLACES * (p->source + p->sums));
    int64_t turns = ceil_div(min64(images, c->n) * p->high, p->rows);
    p->slices =
        p->channels * p->cols > WINO_SLICED ? 1 : min64(turns, WINO_SLICES);
    p->other = (p->slices > 1 ? 0 : both) +
               wino_floats(p->slices * WINO_PLACES * p->channels * p->cols) +
               wino_floats(2 * tiles);
    /* a block of dW: nine taps of its channels, and their transposes */
    p->worker = 2 * wino_floats(9 * CHLAST * BLOCK_LANES);
    if (p->slices > 1 && p->worker < both) p->worker = both;
    return 1;
}

size_t wino_bytes(const WinoPlan *p, int threads) {
    return p->x.stage + p->dy.stage + p->other + (size_t)threads * p->worker;
}
