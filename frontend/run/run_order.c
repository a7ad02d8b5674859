/* SPDX-License-Identifier: Apache-2.0 */
/* run_order.c: which samples an epoch trains, and in which order. */
#include "frontend/run/run_cmd.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/program/draw.h"

int64_t run_trained_samples(const Run *r) {
    int64_t n = r->train.samples;
    if (r->info.parts) return n;
    return n - n % (r->world > 1 ? run_step_samples(r) : r->info.batch);
}

/* A permutation that depends only on the seed and the epoch. */
static void shuffle(int64_t *order, int64_t n, int64_t seed, int64_t epoch) {
    uint64_t state = (uint64_t)seed * 0xd1342543de82ef95u + (uint64_t)epoch;
    for (int64_t i = 0; i < n; i++) order[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        uint64_t bound = (uint64_t)i + 1;
        uint64_t limit = UINT64_MAX - UINT64_MAX % bound, x;
        do x = draw_next(&state);
        while (x >= limit);
        int64_t j = (int64_t)(x % bound), keep = order[i];
        order[i] = order[j];
        order[j] = keep;
    }
}

/* --sort-by-length: the samples of a step have one size, as far as they can;
   with --shuffle whole steps are in another order in each epoch. A step that
   is not full stays the last one. */
static void group_by_size(Run *r) {
    int64_t n = run_trained_samples(r), need = run_step_samples(r), at = 0;
    int64_t whole = r->opt->shuffle ? n / need : 0;
    int64_t *sorted = r->sorted, *step = sorted + r->train.samples;
    for (int k = 0; k < feed_sizes_count(&r->train); k++)
        for (int64_t i = 0; i < n; i++)
            if (r->size_of[r->order[i]] == k) sorted[at++] = r->order[i];
    shuffle(step, whole, r->info.seed + 1, r->at.epoch);
    for (int64_t i = 0; i < whole; i++)
        memcpy(r->order + i * need, sorted + step[i] * need,
               (size_t)need * sizeof *sorted);
    memcpy(r->order + whole * need, sorted + whole * need,
           (size_t)(n - whole * need) * sizeof *sorted);
}

void run_order_epoch(Run *r) {
    int64_t n = r->train.samples;
    if (r->opt->shuffle) shuffle(r->order, n, r->info.seed, r->at.epoch);
    for (int64_t i = 0; i < n && r->order && !r->opt->shuffle; i++)
        r->order[i] = i;
    if (r->size_of) group_by_size(r);
}

/* The size of each sample, for --sort-by-length. */
static Status find_sizes(Run *r) {
    int64_t n = r->train.samples;
    int sizes = feed_sizes_count(&r->train), size;
    StrBuf told = {0};
    if (sizes == 1)
        return fail(&r->diag, (Loc){0},
                    "--sort-by-length: the module has one size; ampc --dim "
                    "NAME=N|N compiles it for several");
    r->size_of = malloc((size_t)n);
    r->sorted = malloc(2 * (size_t)n * sizeof *r->sorted);
    if (!r->size_of || !r->sorted)
        return fail(&r->diag, (Loc){0}, "out of memory");
    for (int64_t i = 0; i < n; i++) {
        TRY(feeds_size(&r->diag, &r->train, i, &size));
        r->size_of[i] = (unsigned char)size;
    }
    for (int k = 0; k < sizes; k++) {
        long long count = 0;
        for (int64_t i = 0; i < n; i++) count += r->size_of[i] == k;
        sb_printf(&told, "%s%lld", k ? ", " : "", count);
    }
    log_note(r, "--sort-by-length: samples by size, from the smallest on: %s",
             told.data);
    sb_free(&told);
    return OK;
}

Status run_order_open(Run *r) {
    if (r->opt->sort_by_length) TRY(find_sizes(r));
    if (!r->opt->shuffle && !r->size_of) return OK;
    r->order = malloc((size_t)r->train.samples * sizeof *r->order);
    return r->order ? OK : fail(&r->diag, (Loc){0}, "out of memory");
}
