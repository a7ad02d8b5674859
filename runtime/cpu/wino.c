/* SPDX-License-Identifier: Apache-2.0 */
/* wino.c: chooses the convolutions that use wino.h; block sizes and scratch
   memory. */
#include "runtime/cpu/wino.h"

/* Measured limits of both sizes of tiles. */
typedef struct WinoRule {
    int edge;
    int64_t results; /* fewest results in a channel: with fewer, transforming
                        the weights costs more than it saves */
    int64_t weights; /* most channels times result channels                 */
} WinoRule;

static const WinoRule wino_rules[] = {{2, 384, INT64_MAX}, {4, 512, 1 << 16}};

enum {
    WINO_PART = 3,         /* faster only if this many quarters of the tiles are
                              results */
    WINO_SOURCE = 1 << 17, /* floats of an item's tiles                     */
    WINO_SOURCE_MAX = 1 << 18, /* the same for a single row of tiles */
    WINO_ITEM = 64,        /* tiles of an item                             */
    WINO_TURN = 64,        /* tiles per turn of dW; twice as many if the */
    WINO_SUMS = 1 << 17,   /* sums of a position have more floats than this */
    WINO_SLICES = 8,       /* slices of turns, each of which is short, */
    WINO_SLICED = 1 << 13, /* used if a position has at most this many sums */
    WINO_SUMS_4 =
        1 << 15,         /* most sums per position of 4x4 tiles, if there are */
    WINO_ONCE = 1 << 10, /* more results in a channel than one turn has   */
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

static int wino_geometry(const LibConv *c, int dgrad, const WinoRule *rule,
                         WinoPlan *p) {
    int edge = rule->edge;
    *p = (WinoPlan){.edge = edge};
    conv_geometry(c, dgrad, &p->x);
    const ConvPlan *x = &p->x;
    int64_t results = x->dim[1].result * x->dim[2].result;
    p->high = ceil_div(x->dim[1].result, edge);
    p->wide = ceil_div(x->dim[2].result, edge);
    for (int i = 0; i < 2; i++)
        p->begin[i] = min64(conv_shift(x, i + 1, 0), conv_shift(x, i + 1, 2));
    if (results * c->n < rule->results || x->channels * x->m > rule->weights ||
        results * 4 < p->high * p->wide * edge * edge * WINO_PART)
        return 0;
    p->channels = round_up(x->channels, CHLAST);
    p->cols = round_up(x->m, BLOCK_COLS);
    p->window = wino_floats((WINO_ROWS + 2) * (p->wide * edge + 2) * CHLAST);
    return wino_places(p) * p->wide * (p->channels + 3 * BLOCK_COLS) <=
           WINO_SOURCE_MAX;
}

static int wino_is_narrow(int64_t dtype) {
    return dtype == AMPC_BF16 || dtype == AMPC_F16;
}

/* Tiles of 4x4 only where both factors have 16 bits; else tiles of 2x2 where
   kind permits them. */
static int wino_choose(const LibConv *c, int dgrad, int narrow, int kind,
                       WinoPlan *p) {
    int flat = c->n > 0 && c->group == 1 && c->c >= CHLAST && c->k >= CHLAST &&
               c->in[0] == 1 && c->out[0] == 1 && c->kernel[0] == 1 &&
               c->pad[0] == 0;
    for (int i = 1; i < 3; i++)
        flat &= c->kernel[i] == 3 && c->stride[i] == 1 && c->dilation[i] == 1 &&
                c->in[i] > 0 && c->out[i] > 0;
    if (!flat || kind == TILE_AMX) return 0;
    for (int i = narrow; i >= 0; i--)
        if ((i || kind == TILE_WIDENED) &&
            wino_geometry(c, dgrad, &wino_rules[i], p))
            return 1;
    return 0;
}

int wino_plan(const LibConv *c, int dgrad, int kind, int threads, WinoPlan *p) {
    int narrow = wino_is_narrow(dgrad ? c->y_dtype : c->x_dtype) &&
                 wino_is_narrow(c->w_dtype);
    if (!wino_choose(c, dgrad, narrow, kind, p)) return 0;
    p->weights = wino_place(p->x.channels * p->cols);
    /* Each item reads all weights: fewer items if these are large. */
    int large = p->edge == 4 && wino_places(p) * p->weights > WINO_SOURCE_MAX;
    int64_t tile = wino_places(p) * (p->channels + 3 * BLOCK_COLS);
    int64_t source = large ? WINO_SOURCE_MAX : WINO_SOURCE;
    int64_t tiles = min64(source / tile, WINO_ITEM);
    int64_t all = c->n * p->high, items = (large ? 2 : 4) * threads;
    p->rows = max64(1, tiles / p->wide);
    if (threads > 1) p->rows = min64(p->rows, max64(1, all / items));
    p->rows = wino_rows(p->rows, p->wide);
    CONTRACT(p->rows > 0);
    tiles = p->rows * p->wide;
    p->source = wino_place(tiles * p->channels);
    p->sums = wino_place(tiles * 3 * BLOCK_COLS);
    p->other = wino_floats(wino_places(p) * p->weights);
    /* results of 3 vectors by point, followed by a block for transposing */
    int64_t points = p->edge * p->edge * tiles + BLOCK_LANES;
    p->worker = p->window + wino_floats(wino_places(p) * (p->source + p->sums) +
                                        2 * points * 3 * BLOCK_COLS);
    return 1;
}

int wino_wgrad_plan(const LibConv *c, int kind, WinoPlan *p) {
    int narrow = wino_is_narrow(c->x_dtype) && wino_is_narrow(c->y_dtype);
    int64_t sums = c->c * c->k;
    if (sums > WINO_SUMS_4 && c->n * c->out[1] * c->out[2] > WINO_ONCE)
        narrow = 0;
    if (!wino_choose(c, 0, narrow, kind, p)) return 0;
    int64_t turn = sums > WINO_SUMS ? 2 * WINO_TURN : WINO_TURN;
    p->rows = min64(max64(1, turn / p->wide), c->n * p->high);
    int64_t tiles = p->rows * p->wide;
    p->source = wino_place(tiles * p->channels);
    p->sums = wino_place(tiles * p->cols);
    p->weights = wino_place(p->channels * p->cols);
    size_t both = wino_floats(wino_places(p) * (p->source + p->sums));
    int64_t turns = ceil_div(c->n * p->high, p->rows);
    p->slices = sums > WINO_SLICED ? 1 : min64(turns, WINO_SLICES);
    p->other = (p->slices > 1 ? 0 : both) +
               wino_floats(p->slices * wino_places(p) * p->weights) +
               wino_floats(2 * tiles);
    /* a block of dW: nine taps of its channels, and their transposes */
    p->worker = 2 * wino_floats(9 * CHLAST * BLOCK_LANES);
    if (p->slices > 1 && p->worker < both) p->worker = both;
    p->worker += p->window;
    return 1;
}

size_t wino_bytes(const WinoPlan *p, int threads) {
    return p->other + (size_t)threads * p->worker;
}
