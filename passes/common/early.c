/* SPDX-License-Identifier: Apache-2.0 */
/* early.c: see early.h. */
#include "passes/common/early.h"

#include "passes/rewrite.h"

#include <stdlib.h>
#include <string.h>

/* Largest number of parts, all of at least this size except the last. */
#define MOST_PARTS  16
#define LEAST_BYTES ((int64_t)4 << 20)

typedef struct Placed {
    int at, number;
} Placed;

static int by_place(const void *x, const void *y) {
    const Placed *a = x, *b = y;
    return a->at != b->at ? a->at - b->at : a->number - b->number;
}

/* Casts are skipped, since they may stand anywhere in the order. */
static const Value *made_value(const Graph *g, ValueId v) {
    const Node *n;
    while ((n = def_of(g, v, OP_CAST))) v = n->in[0];
    return value_get(g, v);
}

/* The numbers of gradients in the order in which they are complete. */
static int *finished(Graph *g, const ValueId *grads, int n) {
    const int *position = graph_positions(g, g->arena);
    Placed *all = NEW_ARRAY(g->arena, Placed, n);
    int *number = NEW_ARRAY(g->arena, int, n);
    for (int i = 0; i < n; i++) {
        const Value *v = made_value(g, grads[i]);
        bool made = v->kind == VK_RESULT;
        all[i] = (Placed){made ? position[v->def.i] : -1, i};
    }
    qsort(all, (size_t)n, sizeof *all, by_place);
    for (int i = 0; i < n; i++) number[i] = all[i].number;
    return number;
}

EarlyParts early_parts(Graph *g, const Options *o, const ValueId *grads,
                       int n) {
    EarlyParts parts = {0};
    bool early = o->optimizer_in_backward && g->program == PROGRAM_TRAIN;
    int *which = NEW_ARRAY(g->arena, int, n), from = 0;
    int64_t total = 0, bytes = 0, least;
    for (int i = 0; i < n; i++) {
        which[i] = i;
        total += type_bytes(value_type(g, grads[i]));
    }
    if (early) which = finished(g, grads, n);
    least = total / MOST_PARTS > LEAST_BYTES ? total / MOST_PARTS : LEAST_BYTES;
    for (int i = 0; i < n; i++) {
        bytes += type_bytes(value_type(g, grads[which[i]]));
        if (i + 1 < n && (!early || bytes < least)) continue;
        EarlyPart part = {which + from, i + 1 - from, early * (parts.len + 1)};
        vec_push(g->arena, &parts, part);
        from = i + 1;
        bytes = 0;
    }
    return parts;
}

Status early_check(const Options *o, const Objective *j, Diag *d) {
    const char *why = NULL;
    if (!o->optimizer_in_backward) return OK;
    if (j->clip_norm > 0)
        why = "--clip-norm needs the norm of all gradients first; "
              "--clip-value or --gradient clip_each need no norm of all";
    else if (options_has_scaler(o))
        why = "loss scaling leaves all parameters as they are where any "
              "gradient overflows; use --precision bf16 or fp32";
    else if (o->accumulate > 1)
        why = "--accumulate keeps the sums of all gradients; a batch of all "
              "samples with checkpoint regions takes less memory";
    else if (o->debug_nonfinite)
        why = "--debug-nonfinite repeats a skipped step with the parameters "
              "that it had";
    if (!why) return OK;
    fail(d, (Loc){0}, "--optimizer-in-backward: %s", why);
    return ERR_USAGE;
}
