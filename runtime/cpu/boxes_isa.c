/* SPDX-License-Identifier: Apache-2.0 */
/* boxes_isa.c: greedy choice of boxes that do not overlap.

   The boxes kept so far lie in five arrays of a worker's scratch: their lower
   corners, upper corners and areas. Lanes behind the last one have no area. */
#include <string.h>

#include "runtime/cpu/block.h"
#include "runtime/cpu/routines.h"

enum { SUPPRESS_GRAIN = 64 }; /* boxes for which a worker is worth it */

typedef struct SuppressRun {
    const LibSuppress *s;
    const float *boxes, *overlap;
    const uint8_t *candidate;
    uint8_t *kept;
    float *memory;
} SuppressRun;

typedef struct KeptBoxes {
    float *x0, *y0, *x1, *y1, *area;
    int64_t n;
} KeptBoxes;

static KeptBoxes kept_none(const SuppressRun *r, int worker) {
    int64_t all = suppress_room(r->s), each = all / SUPPRESS_PARTS;
    float *p = r->memory + all * worker;
    KeptBoxes k = {p, p + each, p + 2 * each, p + 3 * each, p + 4 * each, 0};
    memset(p, 0, (size_t)all * sizeof *p);
    return k;
}

INLINE float box_area(const float *b) { return (b[2] - b[0]) * (b[3] - b[1]); }

static void keep_box(KeptBoxes *k, const float *b) {
    CONTRACT(k->n < k->y0 - k->x0);
    k->x0[k->n] = b[0];
    k->y0[k->n] = b[1];
    k->x1[k->n] = b[2];
    k->y1[k->n] = b[3];
    k->area[k->n++] = box_area(b);
}

INLINE vf vleast(vf a, vf b) { return vselect(vabove(a, b), b, a); }
INLINE vf vmost(vf a, vf b) { return vselect(vabove(a, b), a, b); }

/* 1 in the lanes of kept boxes from i on that b overlaps by more than most. */
INLINE vf overlaps(const KeptBoxes *k, int64_t i, const float *b, vf most) {
    vf zero = vset(0), own = vset(box_area(b)), area = vload(k->area + i);
    vf wide = vsub(vleast(vload(k->x1 + i), vset(b[2])),
                   vmost(vload(k->x0 + i), vset(b[0])));
    vf tall = vsub(vleast(vload(k->y1 + i), vset(b[3])),
                   vmost(vload(k->y0 + i), vset(b[1])));
    vf both = vmul(wide, tall), all = vsub(vadd(own, area), both);
    vf y = vkeep(vabove(vdiv(both, all), most), vset(1));
    y = vkeep(vabove(wide, zero), vkeep(vabove(tall, zero), y));
    y = vkeep(vabove(area, zero), vkeep(vabove(both, zero), y));
    return vkeep(vabove(all, zero), y);
}

static int overlaps_any(const KeptBoxes *k, const float *b, float most) {
    vf limit = vset(most);
    if (!(box_area(b) > 0)) return 0;
    for (int64_t i = 0; i < k->n; i += 4 * VL) {
        vf any = overlaps(k, i, b, limit);
        for (int64_t j = i + VL; j < min64(k->n, i + 4 * VL); j += VL)
            any = vadd(any, overlaps(k, j, b, limit));
        if (vsum(any) > 0) return 1;
    }
    return 0;
}

static void suppress_rows(void *ctx, int64_t lo, int64_t hi, int worker) {
    const SuppressRun *r = ctx;
    int64_t n = r->s->n;
    for (int64_t row = lo; row < hi; row++) {
        const float *b = r->boxes + row * n * 4;
        KeptBoxes k = kept_none(r, worker);
        for (int64_t i = 0; i < n; i++) {
            int keep = r->candidate[row * n + i] && k.n < r->s->k &&
                       !overlaps_any(&k, b + i * 4, *r->overlap);
            if (keep) keep_box(&k, b + i * 4);
            r->kept[row * n + i] = (uint8_t)keep;
        }
    }
}

void ISA(suppress)(AmpcPool *pool, const LibSuppress *s, const void *boxes,
                   const void *candidate, const void *overlap, void *kept,
                   void *scratch) {
    SuppressRun r = {s, boxes, overlap, candidate, kept, scratch};
    pool_run(pool, s->rows, ceil_div(SUPPRESS_GRAIN, s->n + 1), suppress_rows,
             &r);
}
