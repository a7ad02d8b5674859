/* chlast.c: geometry, block sizes and scratch of the staged convolutions. */
#include "runtime/cpu/chlast.h"

#include <string.h>

enum {
    CHLAST_CHANNELS = 16,   /* fewer of source or result: not here       */
    CHLAST_STAGE = 1 << 18, /* floats staged at a time, if an image fits   */
    CHLAST_STAGE_MAX = 1 << 27,
    CHLAST_POINTS = 128, /* results of an item                          */
    CHLAST_COLS = 192,   /* channels of an item                         */
    CHLAST_TAPS = 64,    /* more taps or strides: not here             */
    CHLAST_KC = 288,     /* products summed in registers                */
    CHLAST_PAD = 3 * BLOCK_COLS /* a panel may be this wide                  */
};

static int64_t chlast_min(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t chlast_max(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t chlast_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static size_t chlast_floats(int64_t n) {
    return (size_t)chlast_div(n, BLOCK_LANES) * BLOCK_LANES * sizeof(float);
}

/* How far the results of one dimension reach over the source's edges. */
static void chlast_reach(const ChlastPlan *c, int i, int64_t *low,
                         int64_t *high) {
    const ConvDim *d = &c->p.dim[i];
    int64_t step = c->p.dgrad ? 1 : d->stride;
    *low = *high = 0;
    for (int64_t t = 0; t < d->kernel; t++) {
        int64_t s = conv_shift(&c->p, i, t);
        *low = chlast_max(*low, -s);
        *high = chlast_max(*high, (d->count - 1) * step + s - (d->in - 1));
    }
}

static int chlast_geometry(const LibConv *c, int dgrad, int64_t per,
                           int64_t along, ChlastPlan *p) {
    memset(p, 0, sizeof *p);
    conv_geometry(c, dgrad, &p->p);
    p->per = per;
    p->along = along;
    p->p.cs = chlast_div(p->p.channels, per);
    p->p.pairs = per * along == 2;
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
        p->pitch[i] = d->in + chlast_max(low[i], high);
        if (p->pitch[i] > CHLAST_STAGE_MAX / p->image) return 0;
        p->image *= p->pitch[i];
        if (d->result > CHLAST_STAGE_MAX / results) return 0;
        results *= d->result;
    }
    p->lead = (low[0] * p->pitch[1] + low[1]) * p->pitch[2] + low[2];
    p->cb = chlast_min(p->p.cs, CHLAST);
    p->cblocks = chlast_div(p->p.cs, p->cb);
    int64_t size = p->image * p->cb * p->cblocks;
    if (p->image + p->lead > CHLAST_STAGE_MAX / (p->cb * p->cblocks) ||
        c->n > CHLAST_STAGE_MAX)
        return 0;
    int64_t turns = chlast_div(size * c->n, CHLAST_STAGE);
    p->images = chlast_div(c->n, chlast_min(c->n, turns));
    p->points = p->lead + p->images * p->image;
    p->stage = chlast_floats(p->points * p->cb * p->cblocks + BLOCK_LANES);
    p->count = p->images;
    for (int i = 0; i < 2; i++) p->count *= p->p.dim[i].count;
    p->count *= chlast_div(p->p.dim[2].count, along);
    if (p->p.taps > CHLAST_TAPS || p->p.subs > CHLAST_TAPS) return 0;
    /* row and place of each sub-problem; shift and order of taps */
    p->rows = chlast_floats(2 * p->p.subs * p->count + 2 * p->p.taps);
    return 1;
}

int chlast_plan(const LibConv *c, int dgrad, int pairs, int threads,
                ChlastPlan *p) {
    if (!chlast_geometry(c, dgrad, 1 + !!pairs, 1, p)) return 0;
    int64_t m = p->p.m, want = threads == 1 ? 1 : 4 * threads;
    int64_t blocks = chlast_div(p->count, CHLAST_POINTS), parts = 1;
    while (m / parts > CHLAST_COLS ||
           (p->p.subs * blocks * parts < want && m / parts > CHLAST_PAD))
        parts++;
    p->block =
        chlast_div(chlast_div(p->count, blocks), BLOCK_ROWS) * BLOCK_ROWS;
    p->cols = chlast_div(chlast_div(m, parts), CHLAST_PAD) * CHLAST_PAD;
    p->kc = chlast_max(1, CHLAST_KC / (p->cb * p->p.taps));
    /* Rows of panels are whole vectors; each sub-problem has its own. */
    p->other = chlast_floats(p->p.cs * p->p.taps * chlast_div(m, BLOCK_COLS) *
                             BLOCK_COLS);
    p->worker = chlast_floats((p->block + BLOCK_ROWS) * p->cols +
                              CHLAST_PAD * (p->block + BLOCK_LANES));
    return 1;
}

int chlast_wgrad_plan(const LibConv *c, int pairs, ChlastPlan *p) {
    if (!chlast_geometry(c, 0, 1, 1 + !!pairs, p)) return 0;
    const ConvDim *row = &p->p.dim[2];
    if (pairs && (row->count < 2 || row->in < row->stride)) return 0;
    p->width = chlast_div(p->p.m, BLOCK_COLS) * BLOCK_COLS;
    p->other = chlast_floats(p->count * p->width) +
               chlast_floats(p->p.taps * p->cb * p->cblocks * p->width);
    p->worker = chlast_floats(BLOCK_ROWS * (p->cb * p->p.taps + BLOCK_LANES));
    return 1;
}

size_t chlast_bytes(const ChlastPlan *p, int threads) {
    return p->stage + p->other + p->rows + (size_t)threads * p->worker;
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
