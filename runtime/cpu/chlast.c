/* SPDX-License-Identifier: Apache-2.0 */
/* chlast.c: geometry, block sizes and scratch of the staged convolutions. */
#include "runtime/cpu/chlast.h"

#include <string.h>

enum {
    CHLAST_CHANNELS = 16, /* fewer channels of source or result: not
                             supported here */
    CHLAST_STAGE_MAX = 1 << 27,
    CHLAST_POINTS = 256, /* results of an item                          */
    CHLAST_COLS = 192,   /* channels of an item                         */
    CHLAST_KC = 288,     /* products summed in registers                */
    CHLAST_TILES = 16,   /* share of multiplications in pads from which
                            skipping them pays */
    CHLAST_LISTS = 16,   /* the same limit for dW, which skips all pads */
    CHLAST_WORTH = 8192, /* multiplications in pads per result */
    CHLAST_PAD = 3 * BLOCK_COLS /* a panel may have this many columns */
};

static size_t chlast_floats(int64_t n) {
    return (size_t)ceil_div(n, BLOCK_LANES) * BLOCK_LANES * sizeof(float);
}

/* How far the results of one dimension extend over the source's edges. */
static void chlast_reach(const ChlastPlan *c, int i, int64_t *low,
                         int64_t *high) {
    const ConvDim *d = &c->p.dim[i];
    int64_t step = c->p.dgrad ? 1 : d->stride;
    *low = *high = 0;
    for (int64_t t = 0; t < d->kernel; t++) {
        int64_t s = conv_shift(&c->p, i, t);
        *low = max64(*low, -s);
        *high = max64(*high, (d->count - 1) * step + s - (d->in - 1));
    }
}

int chlast_geometry(const LibConv *c, int dgrad, int kind, int64_t per,
                    int64_t along, int64_t most, ChlastPlan *p) {
    memset(p, 0, sizeof *p);
    conv_geometry(c, dgrad, &p->p);
    p->kind = kind;
    p->per = per;
    p->along = along;
    p->p.cs = ceil_div(p->p.channels, per);
    if (kind == TILE_AMX) p->p.cs = ceil_div(p->p.cs, CHLAST) * CHLAST;
    p->p.pairs = kind != 0;
    if (c->group != 1 || c->n < 1 || p->p.channels < CHLAST_CHANNELS ||
        p->p.m < CHLAST_CHANNELS)
        return 0;
    int64_t low[3], results = 1;
    p->image = 1;
    for (int i = 0; i < 3; i++) {
        const ConvDim *d = &p->p.dim[i];
        int64_t high;
        if (d->in < 1 || d->result < 1 || d->kernel < 1) return 0;
        chlast_reach(p, i, &low[i], &high);
        p->pitch[i] = d->in + max64(low[i], high);
        if (p->pitch[i] > CHLAST_STAGE_MAX / p->image) return 0;
        p->image *= p->pitch[i];
        if (d->result > CHLAST_STAGE_MAX / results) return 0;
        results *= d->result;
    }
    p->lead = (low[0] * p->pitch[1] + low[1]) * p->pitch[2] + low[2];
    p->cb = min64(p->p.cs, CHLAST);
    p->cblocks = ceil_div(p->p.cs, p->cb);
    int64_t size = p->image * p->cb * p->cblocks;
    if (p->image + p->lead > CHLAST_STAGE_MAX / (p->cb * p->cblocks) ||
        c->n > CHLAST_STAGE_MAX)
        return 0;
    int64_t turns = ceil_div(size * c->n, most);
    p->images = ceil_div(c->n, min64(c->n, turns));
    p->points = p->lead + p->images * p->image;
    p->stage = chlast_floats(p->points * p->cb * p->cblocks + BLOCK_LANES);
    p->count = p->images;
    for (int i = 0; i < 2; i++) p->count *= p->p.dim[i].count;
    p->count *= ceil_div(p->p.dim[2].count, along);
    if (p->p.taps > CHLAST_TAPS || p->p.subs > CHLAST_TAPS) return 0;
    /* row and position of each sub-problem; shift and order of taps */
    p->rows = chlast_floats(2 * p->p.subs * p->count + 2 * p->p.taps);
    return 1;
}

/* The taps through which result x of dimension i reads the source, as bits. */
static uint64_t chlast_inside(const ChlastPlan *p, const ConvSub *s, int i,
                              int64_t x) {
    const ConvDim *d = &p->p.dim[i];
    int64_t from = x * (p->p.dgrad ? 1 : d->stride);
    uint64_t bits = 0;
    for (int64_t k = 0; k < s->ntap[i]; k++) {
        int64_t at = from + conv_shift(&p->p, i, s->t0[i] + k * s->tstep[i]);
        bits |= (uint64_t)(at >= 0 && at < d->in) << k;
    }
    return bits;
}

/* True if more than 1/parts of all multiplications read pads, and each
   result has enough of them to make finding them worthwhile. */
static int chlast_skips(const ChlastPlan *p, int parts) {
    double all = 0, real = 0, results = 0;
    for (int64_t k = 0; k < p->p.subs; k++) {
        ConvSub s;
        double a = 1, r = 1, n = 1;
        conv_sub(&p->p, k, &s);
        for (int i = 0; i < 3; i++) {
            int64_t inside = 0;
            for (int64_t x = 0; x < s.count[i]; x++)
                inside += __builtin_popcountll(chlast_inside(p, &s, i, x));
            a *= (double)(s.count[i] * s.ntap[i]);
            r *= (double)inside;
            n *= (double)s.count[i];
        }
        all += a;
        real += r;
        results += n;
    }
    double pads = (all - real) * (double)(p->p.channels * p->p.m);
    return (all - real) * parts > all && pads > CHLAST_WORTH * results;
}

int chlast_plan(const LibConv *c, int dgrad, int kind, int threads,
                ChlastPlan *p) {
    if (!chlast_geometry(c, dgrad, kind, 1 + !!kind, 1, CHLAST_STAGE, p))
        return 0;
    int64_t m = p->p.m, want = threads == 1 ? 1 : 4 * threads;
    int64_t blocks = ceil_div(p->count, CHLAST_POINTS), parts = 1;
    while (m / parts > CHLAST_COLS ||
           (p->p.subs * blocks * parts < want && m / parts > CHLAST_PAD))
        parts++;
    int64_t rows = kind == TILE_AMX ? BLOCK_TALL : BLOCK_ROWS;
    p->block = ceil_div(ceil_div(p->count, blocks), rows) * rows;
    /* equal groups for threads, else whole panels */
    p->cols = round_up(ceil_div(m, parts), want > 1 ? BLOCK_COLS : CHLAST_PAD);
    p->kc = max64(1, CHLAST_KC / (p->cb * p->p.taps));
    /* Rows of panels are whole vectors; each sub-problem has its own. */
    p->other = chlast_floats(p->p.cs * p->p.taps * ceil_div(m, BLOCK_COLS) *
                             BLOCK_COLS);
    p->worker = chlast_floats((p->block + BLOCK_ROWS) * p->cols +
                              CHLAST_PAD * (p->block + BLOCK_LANES));
    if (kind == TILE_AMX)
        p->worker += chlast_floats(BLOCK_TALL * p->kc * p->cb * p->p.taps);
    else
        p->skips = chlast_skips(p, CHLAST_TILES);
    /* taps and order of all results, or the numbers from 0 on */
    p->order = p->skips ? chlast_floats(3 * p->p.subs * p->count)
                        : chlast_floats(max64(p->block, p->p.taps));
    return 1;
}

int chlast_wgrad_plan(const LibConv *c, int kind, int threads, ChlastPlan *p) {
    int64_t dw = c->c * c->k * lib_volume(c->kernel);
    if (!chlast_geometry(c, 0, kind, 1, 1 + !!kind, max64(CHLAST_STAGE, dw), p))
        return 0;
    const ConvDim *row = &p->p.dim[2];
    if (kind && (row->count < 2 || row->in < row->stride)) return 0;
    int64_t items = ceil_div(p->p.m, CHLAST_PAD) * p->cblocks;
    int64_t block = p->cb * p->p.taps;
    p->parted = items < 4 * threads;
    p->at_once = kind != TILE_AMX && !p->parted && p->images == c->n;
    p->width = ceil_div(p->p.m, BLOCK_COLS) * BLOCK_COLS;
    p->length = p->count;
    p->worker = chlast_floats(BLOCK_ROWS * (block + BLOCK_LANES));
    if (p->at_once) p->worker += chlast_floats(block * CHLAST_PAD);
    if (kind == TILE_AMX) {
        p->length = ceil_div(p->count, BLOCK_UNIT) * BLOCK_UNIT;
        p->worker = chlast_floats(2 * BLOCK_COLS * CHLAST_GATHER) +
                    chlast_floats(2 * BLOCK_COLS * p->p.taps);
    } else {
        p->skips = chlast_skips(p, CHLAST_LISTS);
    }
    p->other = chlast_floats(p->length * p->width);
    if (!p->at_once) p->other += chlast_floats(block * p->cblocks * p->width);
    /* taps of all elements, lists and their lengths, or one list */
    p->order =
        p->skips
            ? chlast_floats(2 * p->count + p->p.taps * p->count + p->p.taps)
            : chlast_floats(p->count);
    return 1;
}

size_t chlast_bytes(const ChlastPlan *p, int threads) {
    return p->stage + p->other + p->rows + p->order +
           (size_t)threads * p->worker;
}

int64_t chlast_rows(const ChlastPlan *p, const ConvSub *s, int64_t images,
                    int64_t every, int32_t *row, int32_t *place) {
    const ConvDim *d = p->p.dim;
    int64_t step[3], n = 0;
    for (int i = 0; i < 3; i++) step[i] = p->p.dgrad ? 1 : d[i].stride;
    for (int64_t b = 0; b < images; b++)
        for (int64_t z = 0; z < s->count[0]; z++)
            for (int64_t y = 0; y < s->count[1]; y++) {
                int64_t at =
                    p->lead + b * p->image +
                    (z * step[0] * p->pitch[1] + y * step[1]) * p->pitch[2];
                int64_t to =
                    (s->first[0] + z * d[0].result_step) * d[1].result +
                    s->first[1] + y * d[1].result_step;
                to = to * d[2].result + s->first[2];
                for (int64_t x = 0; x < s->count[2]; x += every, n++) {
                    CONTRACT((at + x * step[2]) * p->cb <= INT32_MAX);
                    row[n] = (int32_t)((at + x * step[2]) * p->cb);
                    place[n] = (int32_t)(to + x * d[2].result_step);
                }
            }
    return n;
}

void chlast_shifts(const ChlastPlan *p, const ConvSub *s, int32_t *shift) {
    for (int64_t i = 0; i < s->taps; i++) {
        int64_t t[3], at = 0;
        conv_tap3(s, i, t);
        for (int j = 0; j < 3; j++)
            at = at * p->pitch[j] + conv_shift(&p->p, j, t[j]);
        shift[i] = (int32_t)(at * p->cb);
    }
}

/* Along one dimension: the taps of a result, and how often they have changed
   before it. */
typedef struct Side {
    uint64_t bits;
    int64_t sort;
} Side;

/* For each group of `every` neighbours: the taps through which at least one
   of them reads the source. */
static void chlast_side(const ChlastPlan *p, const ConvSub *s, int i, int64_t x,
                        int64_t every, Side *side) {
    uint64_t was = side->bits;
    int64_t end = min64(x + every, s->count[i]);
    side->bits = 0;
    for (int64_t k = x; k < end; k++) side->bits |= chlast_inside(p, s, i, k);
    side->sort = x == 0 ? 0 : side->sort + (side->bits != was);
}

/* Bit set of the first tap of every row of taps that reads the source in the
   first two dimensions. */
static uint64_t chlast_rows_read(const ConvSub *s, const Side side[2]) {
    uint64_t rows = 0;
    for (int64_t z = 0; z < s->ntap[0]; z++)
        for (int64_t y = 0; y < s->ntap[1]; y++)
            rows |= (side[0].bits >> z & side[1].bits >> y & 1)
                    << (z * s->ntap[1] + y) * s->ntap[2];
    return rows;
}

int64_t chlast_reads(const ChlastPlan *p, const ConvSub *s, int64_t images,
                     int64_t every, uint64_t *taps, int32_t *sort) {
    int64_t n = 0, sorts[2] = {0};
    Side side[3];
    for (int i = 0; i < 2; i++)
        for (int64_t x = 0; x < s->count[i + 1]; x += i ? every : 1) {
            chlast_side(p, s, i + 1, x, i ? every : 1, &side[i + 1]);
            sorts[i] = side[i + 1].sort + 1;
        }
    for (int64_t b = 0; b < images; b++)
        for (int64_t z = 0; z < s->count[0]; z++) {
            chlast_side(p, s, 0, z, 1, &side[0]);
            for (int64_t y = 0; y < s->count[1]; y++) {
                chlast_side(p, s, 1, y, 1, &side[1]);
                uint64_t rows = chlast_rows_read(s, side);
                int64_t first = side[0].sort * sorts[0] + side[1].sort;
                for (int64_t x = 0; x < s->count[2]; x += every, n++) {
                    chlast_side(p, s, 2, x, every, &side[2]);
                    taps[n] = rows * side[2].bits;
                    sort[n] = (int32_t)(first * sorts[1] + side[2].sort);
                }
            }
        }
    return n;
}

void chlast_order(const ChlastPlan *p, int64_t n, int32_t *order) {
    enum { SORTS = 256, MOST = CHLAST_POINTS + BLOCK_ROWS };
    CONTRACT(p->block > 0 && p->block <= MOST);
    for (int64_t first = 0; first < n; first += p->block) {
        int64_t len = min64(p->block, n - first);
        int32_t begin[SORTS + 1] = {0}, of[MOST];
        for (int64_t i = 0; i < len; i++) {
            of[i] = (int32_t)min64(order[first + i], SORTS - 1);
            begin[of[i] + 1]++;
        }
        for (int i = 0; i < SORTS; i++) begin[i + 1] += begin[i];
        for (int32_t i = 0; i < len; i++) order[first + begin[of[i]]++] = i;
    }
}

void chlast_lists(const ChlastPlan *p, int64_t n, const uint64_t *taps,
                  int32_t *list, int32_t *many) {
    CONTRACT(n <= p->count && p->p.taps <= CHLAST_TAPS);
    for (int64_t t = 0; t < p->p.taps; t++) {
        many[t] = 0;
        for (int32_t i = 0; i < n; i++)
            if (taps[i] >> t & 1) list[t * p->count + many[t]++] = i;
    }
}
