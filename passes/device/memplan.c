/* SPDX-License-Identifier: Apache-2.0 */
/* memplan.c: assigns every buffer its place in memory.
   Before:  group point { %p.new = sub %p, %step : f32[10] }   write %p = %p.new
   After:   group point { %p.new = ... -> param %p }   nothing to copy
            and %h = ... : f32[64,256] @0   at byte 0 of the program's arena

   - The new content of a variable is computed straight into it (Value.home)
     when no group still reads the old content, or only the same element of it.
   - A result of a POINT or ROW group takes the place of an operand that dies
     there and is read element for element, reduced, or cut (node_cuts_rows).
   - Sums over ranks that nothing reads between them lie side by side, so that
     they are one step (emit_plan.c).
   - Groups of one launch run at the same time.
   - Results of groups that depend on variables alone stay to the end.
   - Everything else gets an offset so that buffers that live at the same time
     do not overlap: greedy best fit in several orders (the order of time takes
     linear time); the smallest arena wins.

   requires     stage FUSED, scheduled
   establishes  stage PLANNED
   breaks       nothing                                                      */
#include "passes/device/flow.h"
#include "passes/device/fold.h"
#include "passes/device/product.h"
#include "passes/passes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A piece of the arena: one value, a chain of values computed in place, or
   adjacent values. */
typedef struct Block {
    ValueId value, now; /* the first value, and the present one of a chain */
    int64_t bytes, offset;
    int from, to; /* first and last group, both inclusive; whole launches */
    bool side_by_side;
} Block;

/* Limit for one program; no machine has more. */
#define MAX_STORED ((int64_t)1 << 50)

typedef struct Plan {
    Flow *f;
    Graph *g;
    Arena *a;
    VEC(Block) blocks;
    int64_t bytes; /* bytes of all stored values */
    int *block_of; /* per root: its block; -1: none */
    int64_t *at;   /* per root: offset in its block */
    int sums;      /* the block that the next sum over ranks joins, or -1 */
} Plan;

/* ---- variables ----------------------------------------------------------- */

static void choose_homes(Plan *p) {
    const Flow *f = p->f;
    for (int i = 0; i < p->g->writes.len; i++) {
        const Write *w = &p->g->writes.data[i];
        ValueId r = f->root[w->value.i];
        Value *v = value_get(p->g, r);
        const Type *t = type_get(v->type), *var = value_type(p->g, w->var);
        int maker = f->def[r.i], last = f->last[w->var.i];
        if (maker < 0 || v->home >= 0 || t->dtype != var->dtype ||
            type_count(t) != type_count(var))
            continue;
        if (last < f->from[maker] || (last == maker && !f->crowded[w->var.i] &&
                                      flow_reads_in_step(f, last, w->var, t)))
            v->home = value_get(p->g, w->var)->var;
    }
}

/* Operands of group i last until the next group has run. */
static void hold_for_next(Plan *p, int i) {
    Flow *f = p->f;
    for (int k = f->read_at[i]; k < f->read_at[i + 1]; k++) {
        ValueId r = f->read[k];
        if (f->last[r.i] != i || value_get(p->g, r)->kind != VK_RESULT)
            continue;
        f->last[r.i] = i + 1;
        f->crowded[r.i] = true;
    }
}

/* With --tile one kernel may do a product and the kernel behind it
   (emit_tile.c): until then nothing takes the place of the product's
   operands. */
static void hold_operands(Plan *p) {
    for (int i = 0; i + 1 < p->f->ngroup; i++) {
        const Group *x = &p->g->groups.data[i];
        if (x[0].kind == GROUP_ANCHOR && x[1].kind == GROUP_POINT)
            hold_for_next(p, i);
    }
}

/* The same for products that cuBLASLt may compute with GELU (PLAN_GELU): no
   result takes the place of an operand, GELU's included. */
static void hold_gelu(Plan *p) {
    Flow *f = p->f;
    for (int i = 0; i + 1 < f->ngroup; i++) {
        ProductGelu x;
        if (p->g->groups.data[i].kind != GROUP_ANCHOR ||
            !product_gelu(p->g, f->first[i], f->first[i + 1], &x))
            continue;
        hold_for_next(p, i);
        ValueId at = f->root[x.at.i];
        if (x.slope && f->last[at.i] == i + 1) f->crowded[at.i] = true;
    }
}

/* Results of fixed groups that later groups read stay for the next run. */
static void hold_fixed(Plan *p) {
    Flow *f = p->f;
    const bool *fixed = flow_fixed(f, p->a);
    int begin = 0;
    while (begin < f->ngroup && fixed[begin]) begin++;
    p->g->nfixed = begin;
    for (int v = 1; v < p->g->values.len; v++)
        if (f->def[v] >= 0 && f->def[v] < begin && f->last[v] >= begin)
            f->last[v] = f->ngroup;
}

/* ---- blocks -------------------------------------------------------------- */

/* A block whose last use is in `group` and which may hold the group's result
   v; -1: none. */
static int dying_block(const Plan *p, int group, ValueId v) {
    const Flow *f = p->f;
    for (int k = f->read_at[group]; k < f->read_at[group + 1]; k++) {
        ValueId r = f->read[k];
        int b = p->block_of[r.i];
        if (b < 0 || p->blocks.data[b].to != f->to[group] || f->crowded[r.i] ||
            !same_value(p->blocks.data[b].now, r))
            continue;
        if (!p->blocks.data[b].side_by_side && flow_in_place(f, group, r, v))
            return b;
    }
    return -1;
}

/* Sums over ranks are adjacent until something reads one of them. */
static int block_of_sums(Plan *p, int group) {
    const Flow *f = p->f;
    for (int k = f->read_at[group]; k < f->read_at[group + 1]; k++)
        if (p->sums >= 0 && p->block_of[f->read[k].i] == p->sums) p->sums = -1;
    return flow_sums_ranks(f, group) ? p->sums : -1;
}

static void place_value(Plan *p, int group, ValueId v) {
    const Flow *f = p->f;
    int b = block_of_sums(p, group);
    if (!f->stored[v.i] || value_get(p->g, v)->home >= 0 ||
        p->bytes > MAX_STORED)
        return;
    int last = f->last[v.i] < group ? group : f->last[v.i];
    if (last < f->ngroup) last = f->to[last];
    int64_t bytes =
        (flow_bytes(f, v) + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    bool sums = flow_sums_ranks(f, group);
    p->bytes += bytes;
    if (b >= 0) {
        p->at[v.i] = p->blocks.data[b].bytes;
        p->blocks.data[b].bytes += bytes;
    } else if ((b = dying_block(p, group, v)) < 0) {
        Block x = {v, v, bytes, -1, f->from[group], last, sums};
        b = p->blocks.len;
        vec_push(p->a, &p->blocks, x);
    }
    if (sums) p->sums = b;
    if (p->blocks.data[b].to < last) p->blocks.data[b].to = last;
    p->blocks.data[b].now = v;
    p->block_of[v.i] = b;
}

/* ---- offsets ------------------------------------------------------------- */

typedef enum Order { BY_BYTES, BY_AREA, BY_LIFE, IN_TIME } Order;

enum {
    FEW_BLOCKS = 4096
}; /* limit for these orders, which take quadratic
      time */

typedef struct Sorted {
    double size;
    int block;
} Sorted;

/* Greatest first. */
static int by_size(const void *a, const void *b) {
    const Sorted *x = a, *y = b;
    return x->size != y->size ? (x->size < y->size) - (x->size > y->size)
                              : x->block - y->block;
}

/* The smallest sufficient gap among placed blocks (sorted by offset) that
   are alive with b; else the place after all of them. */
static int64_t best_gap(const Plan *p, const int *placed, int n, const Block *b,
                        const int64_t *offset) {
    int64_t end = 0, best = -1, best_size = INT64_MAX;
    for (int i = 0; i < n; i++) {
        const Block *x = &p->blocks.data[placed[i]];
        if (x->from > b->to || b->from > x->to) continue; /* apart in time */
        int64_t gap = offset[placed[i]] - end;
        if (gap >= b->bytes && gap < best_size) {
            best = end;
            best_size = gap;
        }
        if (offset[placed[i]] + x->bytes > end)
            end = offset[placed[i]] + x->bytes;
    }
    return best >= 0 ? best : end;
}

static int64_t place_blocks(const Plan *p, Order by, int64_t *offset) {
    int n = p->blocks.len;
    Sorted *order = NEW_ARRAY(p->a, Sorted, n + 1);
    int *placed = NEW_ARRAY(p->a, int, n + 1);
    int64_t total = 0;
    for (int i = 0; i < n; i++) {
        const Block *b = &p->blocks.data[i];
        double life = by == BY_BYTES ? 1 : b->to - b->from + 1;
        order[i] = (Sorted){by == BY_LIFE ? life : (double)b->bytes * life, i};
    }
    qsort(order, (size_t)n, sizeof *order, by_size);
    for (int i = 0; i < n; i++) {
        const Block *b = &p->blocks.data[order[i].block];
        int64_t at = best_gap(p, placed, i, b, offset);
        int k = i;
        offset[order[i].block] = at;
        for (; k > 0 && offset[placed[k - 1]] > at; k--)
            placed[k] = placed[k - 1];
        placed[k] = order[i].block;
        if (at + b->bytes > total) total = at + b->bytes;
    }
    return total;
}

/* ---- offsets in the order of time ---------------------------------------- */

typedef struct Gap {
    int64_t from, to;
} Gap;

/* Free ranges below `end`, ascending and disjoint. */
typedef struct Gaps {
    VEC(Gap) list;
    int64_t end;
} Gaps;

static int64_t memplan_take(Gaps *s, int64_t bytes) {
    int best = -1;
    for (int i = 0; i < s->list.len; i++) {
        int64_t size = s->list.data[i].to - s->list.data[i].from;
        if (size >= bytes && (best < 0 || size < s->list.data[best].to -
                                                     s->list.data[best].from))
            best = i;
    }
    if (best < 0) return (s->end += bytes) - bytes;
    Gap *g = &s->list.data[best];
    int64_t at = g->from;
    g->from += bytes;
    if (g->from == g->to)
        memmove(g, g + 1, (size_t)(--s->list.len - best) * sizeof *g);
    return at;
}

static void give_back(Arena *a, Gaps *s, int64_t from, int64_t to) {
    int i = s->list.len;
    vec_push(a, &s->list, (Gap){from, to});
    Gap *g = s->list.data;
    for (; i > 0 && g[i - 1].from > from; i--) g[i] = g[i - 1];
    g[i] = (Gap){from, to};
    for (int k = i + 1; k >= i; k--) /* joins the next one and the one before */
        if (k > 0 && k < s->list.len && g[k - 1].to == g[k].from) {
            g[k - 1].to = g[k].to;
            memmove(g + k, g + k + 1, (size_t)(--s->list.len - k) * sizeof *g);
        }
    if (s->list.len && g[s->list.len - 1].to == s->end)
        s->end = g[--s->list.len].from;
}

/* Blocks are sorted by the time at which they are first written. */
static int64_t place_in_time(const Plan *p, int64_t *offset) {
    int ng = p->f->ngroup, nb = p->blocks.len;
    int64_t total = 0;
    Gaps gaps = {0};
    int *dies = NEW_ARRAY(p->a, int, ng + 2); /* + 1: the first block whose last
                                                 use is there */
    int *next = NEW_ARRAY(p->a, int, nb + 1);
    for (int i = 0, now = 0; i < nb; i++) {
        const Block *b = &p->blocks.data[i];
        for (; now < b->from; now++)
            for (int d = dies[now]; d; d = next[d - 1])
                give_back(p->a, &gaps, offset[d - 1],
                          offset[d - 1] + p->blocks.data[d - 1].bytes);
        offset[i] = memplan_take(&gaps, b->bytes);
        if (offset[i] + b->bytes > total) total = offset[i] + b->bytes;
        next[i] = dies[b->to];
        dies[b->to] = i + 1;
    }
    return total;
}

static void choose_offsets(Plan *p) {
    int n = p->blocks.len;
    int64_t *offset = NEW_ARRAY(p->a, int64_t, n + 1), best = INT64_MAX;
    for (Order o = n > FEW_BLOCKS ? IN_TIME : BY_BYTES; o <= IN_TIME; o++) {
        int64_t total = o == IN_TIME ? place_in_time(p, offset)
                                     : place_blocks(p, o, offset);
        if (total >= best) continue;
        best = total;
        for (int i = 0; i < n; i++) p->blocks.data[i].offset = offset[i];
    }
    p->g->arena_bytes = best;
}

static Status plan_graph(Graph *g, PassCtx *cx) {
    Plan p = {
        .f = flow_new(g, cx->scratch), .g = g, .a = cx->scratch, .sums = -1};
    p.at = NEW_ARRAY(p.a, int64_t, g->values.len);
    p.block_of = NEW_ARRAY(p.a, int, g->values.len);
    memset(p.block_of, -1, (size_t)g->values.len * sizeof(int));
    for (int v = 1; v < g->values.len; v++) {
        g->values.data[v].offset = -1;
        g->values.data[v].home = -1;
    }
    if (cx->opt->tile && g->target == TARGET_CUDA) hold_operands(&p);
    if (g->target == TARGET_CUDA && gpu_reaches(cx->opt, PLAN_GELU_SINCE))
        hold_gelu(&p);
    hold_fixed(&p);
    choose_homes(&p);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        for (int k = 0; k < n->nout && n->group >= 0; k++)
            place_value(&p, n->group, n->out[k]);
    }
    if (p.bytes > MAX_STORED)
        return fail(cx->diag, (Loc){.file = g->module->file},
                    "program '%s' stores more than %" PRId64 " bytes", g->name,
                    MAX_STORED);
    choose_offsets(&p);
    for (int v = 1; v < g->values.len; v++)
        if (p.block_of[v] >= 0)
            g->values.data[v].offset =
                p.blocks.data[p.block_of[v]].offset + p.at[v];
    return OK;
}

Status pass_memplan(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++)
        TRY(plan_graph(m->graphs.data[i], cx));
    return OK;
}
