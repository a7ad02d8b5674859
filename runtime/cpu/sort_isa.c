/* SPDX-License-Identifier: Apache-2.0 */
/* sort_isa.c: positions of the first elements of each row, in sorted order.

   An item has a 32-bit key, whose order is the requested one, above a position.
   Sorts of items are stable: equal keys keep their order.
   Keys of 64 bits are sorted by their lower half, then by their upper half.
   The row determines the result, so cuts may depend on the number of
   threads. */
#include <string.h>

#include "runtime/cpu/block.h"
#include "runtime/cpu/routines.h"

/* A row of at most FEW items is sorted by comparing all pairs. */
enum { FEW = 16 * VL, DIGITS = SORT_DIGITS, KEYS = 256, SORT_GRAIN = 1 << 12 };

typedef struct SortRun {
    const LibArgsort *a;
    SortBlocks b;
    const void *x;
    int32_t *out;
    uint64_t *memory, *found;
    uint32_t (*count)[DIGITS];
    int64_t row; /* the row that all workers sort together */
} SortRun;

/* ---- keys ---------------------------------------------------------------- */

/* All zeros are equal; all NaNs are equal, and greater than all other
   values. */
INLINE uint32_t key_of(float v, uint32_t flip) {
    union {
        float f;
        uint32_t u;
    } b = {v + 0.0f};
    uint32_t u = v != v ? 0x7fffffffu : b.u;
    return u ^ ((u >> 31 ? ~0u : 0x80000000u) ^ flip);
}

INLINE uint64_t wide_key_of(const SortRun *r, int64_t at) {
    int dtype = (int)r->a->dtype;
    uint64_t top = (uint64_t)1 << 63, u;
    if (dtype == AMPC_F64) {
        double v = ((const double *)r->x)[at] + 0.0;
        memcpy(&u, &v, sizeof u);
        if (v != v) u = ~top;
        u ^= u & top ? ~(uint64_t)0 : top;
    } else {
        u = (uint64_t)integer_at(r->x, dtype, at) ^
            (dtype == AMPC_U64 ? 0 : top);
    }
    return r->a->descending ? ~u : u;
}

/* Fills the keys of elements [at, at + n); n is at most KEYS. */
static void put_keys(const SortRun *r, int64_t at, int64_t n, uint32_t *key) {
    uint32_t flip = r->a->descending ? ~0u : 0;
    float v[KEYS];
    widen(v, r->x, (int)r->a->dtype, at, n);
    for (int64_t i = 0; i < n; i++) key[i] = key_of(v[i], flip);
}

static void put_items(const SortRun *r, int64_t row, int64_t from, int64_t to,
                      uint64_t *items) {
    int64_t at = row * r->a->n;
    uint32_t key[KEYS];
    for (int64_t i = from; i < to; i += KEYS) {
        int64_t n = min64(KEYS, to - i);
        put_keys(r, at + i, n, key);
        for (int64_t j = 0; j < n; j++)
            items[i + j] = (uint64_t)key[j] << 32 | (uint64_t)(i + j);
    }
}

/* Sorts by one half of 64-bit keys, at positions [from, to). */
static void put_halves(const SortRun *r, int64_t row, int64_t from, int64_t to,
                       int half, uint64_t *items) {
    for (int64_t i = from; i < to; i++) {
        int64_t place = half ? (int64_t)(uint32_t)items[i] : i;
        uint64_t key = wide_key_of(r, row * r->a->n + place) >> 32 * half;
        items[i] = key << 32 | (uint64_t)place;
    }
}

/* ---- sorts --------------------------------------------------------------- */

/* Sets all bits of the lanes whose items come after that of `key` and `place`.
 */
INLINE vu precedes(uint32_t key, int64_t place, vu mine, vu lane) {
    vu x = vu_set(key), at = vu_set((uint32_t)place);
    return vu_or(vu_less(x, mine),
                 vu_and(vu_equal(x, mine), vu_less(at, lane)));
}

/* Counting sort: an item's place is the number of items before it. */
static void sort_few(const uint64_t *items, uint64_t *to, int64_t n) {
    uint32_t key[FEW], place[FEW];
    vu lane;
    for (int i = 0; i < VL; i++) LANE(lane, i) = (uint32_t)i;
    for (int64_t i = 0; i < n; i++) key[i] = (uint32_t)(items[i] >> 32);
    for (int64_t i = n; i < round_up(n, VL); i++) key[i] = 0;
    for (int64_t i = 0; i < n; i += VL) {
        vu mine = vu_load(key + i), before = {0};
        int64_t same = min64(n, i + VL);
        for (int64_t j = 0; j < i; j++)
            before = vu_sub(before, vu_most(vu_set(key[j]), mine));
        for (int64_t j = i; j < same; j++)
            before = vu_sub(before, precedes(key[j], j - i, mine, lane));
        for (int64_t j = same; j < n; j++)
            before = vu_sub(before, vu_less(vu_set(key[j]), mine));
        vu_store(place + i, before);
    }
    for (int64_t i = 0; i < n; i++) to[place[i]] = items[i];
}

typedef struct Radix {
    const uint64_t *from;
    uint64_t *to;
    int64_t n, parts;
    int shift;
    uint32_t (*count)[DIGITS];
} Radix;

/* Sets the positions where digits begin in each part, from their counts;
   returns whether there is more than one digit. */
static int radix_starts(const Radix *r) {
    uint32_t at = 0;
    for (int d = 0; d < DIGITS; d++) {
        uint32_t first = at;
        for (int64_t p = 0; p < r->parts; p++) {
            uint32_t n = r->count[p][d];
            r->count[p][d] = at;
            at += n;
        }
        if (at - first == (uint32_t)r->n) return 0;
    }
    return 1;
}

static void radix_count(void *ctx, int64_t lo, int64_t hi, int worker) {
    const Radix *r = ctx;
    (void)worker;
    for (int64_t p = lo; p < hi; p++) {
        uint32_t *count = r->count[p];
        memset(count, 0, sizeof *r->count);
        for (int64_t i = r->n * p / r->parts; i < r->n * (p + 1) / r->parts;
             i++)
            count[(uint8_t)(r->from[i] >> r->shift)]++;
    }
}

static void radix_place(void *ctx, int64_t lo, int64_t hi, int worker) {
    const Radix *r = ctx;
    (void)worker;
    for (int64_t p = lo; p < hi; p++) {
        uint32_t *at = r->count[p];
        for (int64_t i = r->n * p / r->parts; i < r->n * (p + 1) / r->parts;
             i++)
            r->to[at[(uint8_t)(r->from[i] >> r->shift)]++] = r->from[i];
    }
}

/* Sorts n items; returns the array that holds the result, `items` or
   `other`. */
static uint64_t *sort_items(AmpcPool *pool, uint64_t *items, uint64_t *other,
                            int64_t n, int64_t parts,
                            uint32_t (*count)[DIGITS]) {
    Radix r = {items, other, n, parts, 32, count};
    if (n <= FEW) {
        sort_few(items, other, n);
        return other;
    }
    for (; r.shift < 64; r.shift += 8) {
        pool_run(pool, parts, 1, radix_count, &r);
        if (!radix_starts(&r)) continue;
        pool_run(pool, parts, 1, radix_place, &r);
        uint64_t *to = r.to;
        r.to = (uint64_t *)r.from;
        r.from = to;
    }
    return (uint64_t *)r.from;
}

/* ---- few of many --------------------------------------------------------- */

typedef struct Best {
    uint64_t *items, *other;
    int64_t len;
    uint32_t limit; /* upper bound of keys that may be among the first k */
    int done;
} Best;

/* Sorts the items found and keeps the first k. */
static void best_sort(const SortRun *r, Best *b) {
    uint32_t count[1][DIGITS];
    uint64_t *first = sort_items(NULL, b->items, b->other, b->len, 1, count);
    if (first != b->items) b->other = b->items, b->items = first;
    b->len = min64(b->len, r->a->k);
    if (b->len < r->a->k) return;
    uint32_t last = (uint32_t)(b->items[b->len - 1] >> 32);
    b->done = last == 0;
    b->limit = last - 1; /* an equal key here comes later */
}

INLINE int any_below(const uint32_t *key, uint32_t limit) {
    vu any = {0};
    for (int i = 0; i < 4; i++)
        any = vu_or(any, vu_most(vu_load(key + i * VL), vu_set(limit)));
    uint32_t all = 0;
    for (int i = 0; i < VL; i++) all |= LANE(any, i);
    return all != 0;
}

/* The first elements among [from, to) of a row. */
static uint64_t first_of(const SortRun *r, int64_t row, int64_t from,
                         int64_t to) {
    uint64_t first = 0;
    uint32_t key[KEYS];
    for (int64_t i = from; i < to; i += KEYS) {
        int64_t n = min64(KEYS, to - i), at = 0;
        uint32_t least = UINT32_MAX;
        put_keys(r, row * r->a->n + i, n, key);
        for (int64_t j = 0; j < n; j++) least = key[j] < least ? key[j] : least;
        if (i > from && least >= first >> 32) continue;
        while (key[at] != least) at++;
        first = (uint64_t)least << 32 | (uint64_t)(i + at);
    }
    return first;
}

/* The first k elements among [from, to) of a row, sorted. */
static Best best_of(const SortRun *r, int64_t row, int64_t from, int64_t to,
                    int worker) {
    uint64_t *memory = r->memory + 2 * r->b.room * worker;
    Best b = {memory, memory + r->b.room, 0, UINT32_MAX, 0};
    uint32_t key[KEYS];
    if (r->a->k == 1) {
        *b.items = first_of(r, row, from, to);
        return b;
    }
    for (int64_t i = from; i < to && !b.done; i += KEYS) {
        int64_t n = min64(KEYS, to - i);
        put_keys(r, row * r->a->n + i, n, key);
        for (int64_t j = n; j < round_up(n, 4 * VL); j++) key[j] = UINT32_MAX;
        for (int64_t j = 0; j < n && !b.done; j += 4 * VL) {
            if (!any_below(key + j, b.limit)) continue;
            for (int64_t q = j; q < min64(n, j + 4 * VL); q++) {
                if (key[q] > b.limit || b.done) continue;
                b.items[b.len++] = (uint64_t)key[q] << 32 | (uint64_t)(i + q);
                if (b.len == r->b.room) best_sort(r, &b);
            }
        }
    }
    if (!b.done) best_sort(r, &b);
    return b;
}

static void best_of_part(void *ctx, int64_t lo, int64_t hi, int worker) {
    const SortRun *r = ctx;
    int64_t n = r->a->n, k = r->a->k;
    for (int64_t p = lo; p < hi; p++) {
        Best b = best_of(r, r->row, n * p / r->b.parts,
                         n * (p + 1) / r->b.parts, worker);
        memcpy(r->found + p * k, b.items, (size_t)k * sizeof *b.items);
    }
}

/* ---- rows ---------------------------------------------------------------- */

static void put_places(const SortRun *r, int64_t row, const uint64_t *items) {
    int32_t *out = r->out + row * r->a->k;
    for (int64_t i = 0; i < r->a->k; i++) out[i] = (int32_t)items[i];
}

/* Rows [lo, hi), each sorted by one worker. */
static void sort_rows(void *ctx, int64_t lo, int64_t hi, int worker) {
    const SortRun *r = ctx;
    int64_t n = r->a->n;
    uint64_t *items = r->memory + 2 * r->b.room * worker;
    uint64_t *other = items + r->b.room;
    uint32_t count[1][DIGITS];
    for (int64_t row = lo; row < hi; row++) {
        uint64_t *first = items;
        if (r->b.selects) {
            first = best_of(r, row, 0, n, worker).items;
        } else if (r->b.wide) {
            for (int half = 0; half < 2; half++) {
                put_halves(r, row, 0, n, half, first);
                first = sort_items(NULL, first, first == items ? other : items,
                                   n, 1, count);
            }
        } else {
            put_items(r, row, 0, n, items);
            first = sort_items(NULL, items, other, n, 1, count);
        }
        put_places(r, row, first);
    }
}

static void items_of_part(void *ctx, int64_t lo, int64_t hi, int worker) {
    const SortRun *r = ctx;
    int64_t n = r->a->n, parts = r->b.parts;
    (void)worker;
    put_items(r, r->row, n * lo / parts, n * hi / parts, r->memory);
}

/* A row that all workers sort together. */
static void sort_row(AmpcPool *pool, SortRun *r) {
    int64_t n = r->a->n, k = r->a->k, parts = r->b.parts;
    uint64_t *first;
    if (r->b.selects) {
        pool_run(pool, parts, 1, best_of_part, r);
        first = sort_items(NULL, r->found, r->found + parts * k, parts * k, 1,
                           r->count);
    } else {
        pool_run(pool, parts, 1, items_of_part, r);
        first = sort_items(pool, r->memory, r->memory + n, n, parts, r->count);
    }
    put_places(r, r->row, first);
}

void ISA(argsort)(AmpcPool *pool, const LibArgsort *a, const void *x, void *out,
                  void *scratch) {
    SortRun r = {.a = a,
                 .b = sort_blocks(a, pool_threads(pool)),
                 .x = x,
                 .out = out,
                 .memory = scratch};
    r.found = r.memory + r.b.memory;
    r.count = (uint32_t(*)[DIGITS])(r.found + r.b.found);
    if (a->k <= 0) return;
    if (r.b.parts)
        for (; r.row < a->rows; r.row++) sort_row(pool, &r);
    else
        pool_run(pool, a->rows, ceil_div(SORT_GRAIN, a->n), sort_rows, &r);
}
