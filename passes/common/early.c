/* SPDX-License-Identifier: Apache-2.0 */
/* early.c: see early.h. */
#include "passes/common/early.h"

#include "ir/fn/optimizer.h"
#include "passes/rewrite.h"

#include <stdlib.h>
#include <string.h>

/* Largest number of parts, all of at least this size except the last. */
#define MOST_PARTS  16
#define LEAST_BYTES ((int64_t)4 << 20)
/* Smaller gradients are not computed twice. */
#define LEAST_AGAIN ((int64_t)64 << 10)

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

bool early_needs_norm(const Graph *g, const Options *o) {
    const Objective *j = options_objective(o, g->objective);
    return o->optimizer_in_backward && g->program == PROGRAM_TRAIN &&
           j->clip_norm > 0 && !o->clip_previous;
}

/* ---- gradients of a second pass ------------------------------------------ */

enum { AGAIN_DEPTH = 8 };

static bool again_passes(const Node *n) {
    OpKind kind = op_info[n->op].kind;
    return !n->fn && (n->op == OP_CAST || n->op == OP_ADD ||
                      kind == KIND_VIEW || kind == KIND_MOVE);
}

static bool again_ends(const Node *n) {
    OpKind kind = op_info[n->op].kind;
    return !n->fn && n->nout == 1 && (kind == KIND_ANCHOR || kind == KIND_LIB);
}

/* The number of the operand that backward computes; -1: there is none. */
static int backward_operand(const Graph *g, const Node *n) {
    for (int k = 0; k < n->nin; k++)
        if (is_value(n->in[k]) && dtype_is_float(value_dtype(g, n->in[k])) &&
            value_maker(g, n->in[k]) &&
            value_maker(g, n->in[k])->flags & NODE_BACKWARD)
            return k;
    return -1;
}

/* Bytes that are kept until v is computed again; without a matrix
   multiplication on the way, v itself. */
static int64_t again_bytes(const Graph *g, ValueId v, int depth) {
    const Node *n = value_maker(g, v);
    int64_t sum = 0;
    bool ends = n && again_ends(n) && backward_operand(g, n) >= 0;
    if (!n || !(n->flags & NODE_BACKWARD) || depth == AGAIN_DEPTH ||
        (!ends && !again_passes(n)))
        return type_bytes(value_type(g, v));
    for (int k = 0; k < n->nin; k++) {
        if (!is_value(n->in[k])) continue;
        if (!ends)
            sum += again_bytes(g, n->in[k], depth + 1);
        else if (value_get(g, n->in[k])->kind == VK_RESULT)
            sum += type_bytes(value_type(g, n->in[k]));
    }
    return sum;
}

/* The operand that backward computes is zeros unless ok: the matrix
   multiplication can only begin when the first pass has ended. */
static ValueId early_make_again(Builder *b, ValueId v, ValueId ok) {
    Graph *g = b->g;
    NodeId id = value_get(g, v)->def;
    if (value_get(g, v)->kind != VK_RESULT) return v;
    const Node n = *node_get(g, id);
    if (!(n.flags & NODE_BACKWARD)) return v;
    ValueId *in = arena_dup(g->arena, n.in, (size_t)n.nin * sizeof *in);
    if (again_ends(&n)) {
        int k = backward_operand(g, &n);
        in[k] = b_where(b, ok, in[k], b_scalar(b, value_dtype(g, in[k]), 0));
    } else {
        for (int k = 0; k < n.nin; k++) in[k] = early_make_again(b, in[k], ok);
    }
    return node_get(g, build_again(b, id, in))->out[0];
}

ValueId early_again(Builder *b, ValueId grad, ValueId ok) {
    int64_t bytes = type_bytes(value_type(b->g, grad));
    if (bytes < LEAST_AGAIN || again_bytes(b->g, grad, 0) >= bytes) return grad;
    return early_make_again(b, grad, ok);
}

/* ---- parts --------------------------------------------------------------- */

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
    bool once = j->clip_norm == 0 || o->clip_previous;
    if (o->clip_previous && j->clip_norm == 0) {
        fail(d, (Loc){0},
             "--clip-previous needs --clip-norm X, the largest norm");
        return ERR_USAGE;
    }
    if (!o->optimizer_in_backward) return OK;
    if (once && options_has_scaler(o))
        why = "loss scaling leaves all parameters as they are where any "
              "gradient overflows; use --precision bf16 or fp32, or "
              "--clip-norm without --clip-previous, which computes gradients "
              "twice";
    else if (o->accumulate > 1)
        why = "--accumulate keeps the sums of all gradients; a batch of all "
              "samples with checkpoint regions takes less memory";
    else if (j->optimizer.fn->optimizer->totals.len)
        why = "the optimizer adds up numbers of all parameters before it "
              "updates one";
    else if (once && o->debug_nonfinite)
        why = "--debug-nonfinite repeats a skipped step with the parameters "
              "that it had";
    if (!why) return OK;
    fail(d, (Loc){0}, "--optimizer-in-backward: %s", why);
    return ERR_USAGE;
}
