/* SPDX-License-Identifier: Apache-2.0 */
/* launch.c: puts groups of equal work into one launch (launch.h).
   Before:  group point { %w.new = sub %w, %w.step : f32[784,10] }
            group anchor { .. }
            group point { %b.new = sub %b, %b.step : f32[10] }
   After:   group point { %w.new = .. }
            group point beside { %b.new = .. }
            group anchor { .. }
   Equal work is element-wise over one flat range of any length (operands are as
   large as the results or one number), or a fold of rows of any length
   (folds_alike), or the same of operands of the same shapes.  A group moves up
   to a launch whose groups all run after everything that it needs, but only if
   its earlier results occupy little more memory: the updates of all parameters
   do. A group with others of its kind first moves down to its first reader,
   unless a value that it alone reads would then live longer. So the last stages
   of bias gradients become one launch, as do the norms of all gradients, which
   the updates read.

   Before:  group row { %p = reduce_sumsq %x {axes=[1]} : f64[256,1] }
            group row { %n = reduce_sum %p {axes=[0]} : f64[1,1] }
   After:   group row { %p = .. }   group row after { %n = .. }
   What folds all that a fold of such a launch has made is done by the last of
   its blocks, in the same launch: some hundred numbers, so the norms of all
   gradients are one.  Sums of columns are not: their parts are megabytes, which
   one block would read for longer than a launch takes.                      */
#include "passes/device/fold.h"
#include "passes/device/launch.h"

#include <stdlib.h>
#include <string.h>

enum { REACH = 256 }; /* groups of one kind that may share a launch */

typedef struct NumberVec {
    int *data, len, cap;
} NumberVec;

typedef struct Launcher {
    Flow *f;
    const Edges *next;
    int *waiting;  /* per group: number of groups that it needs and that are not
                      yet placed
                    */
    int *need;     /* per group: position of the last group that it needs; -1:
                      none */
    int *left;     /* per root: number of readers not yet placed */
    bool *content; /* per root: the new value of a variable */
    int *later;    /* per group: the next of its kind; -1: none */
    bool *paired;  /* per group: others of its kind exist */
    bool *placed;  /* per group */
    int *at;       /* per group: its position, once placed */
    NumberVec *work; /* per group */
    uint64_t *sort;  /* per group: equal numbers for groups of equal work; 0:
                        shares no launch */
} Launcher;

/* ---- equal work ---------------------------------------------------------- */

/* The number of a root among the roots of a group. */
static int number_of(Arena *a, NumberVec *met, ValueId root) {
    int i = 0;
    while (i < met->len && met->data[i] != (int)root.i) i++;
    if (i == met->len) vec_push(a, met, (int)root.i);
    return i;
}

/* Elements of the flat range that a group computes; 0 if it has none. */
static int64_t flat_count(const Flow *f, int group) {
    int64_t count = 0;
    for (int i = f->first[group]; i < f->end[group]; i++) {
        const Node *n = node_at(f->g, i);
        int64_t own = value_count(f->g, n->out[0]);
        if (node_kind(n) != KIND_ELEM || n->nout != 1) return 0;
        if (i > f->first[group] && own != count) return 0;
        count = own;
        for (int k = 0; k < n->nin; k++) {
            int64_t u = value_count(f->g, n->in[k]);
            if (u != 1 && u != count) return 0;
        }
    }
    return count > 1 ? count : 0;
}

/* How a group's kernel gets its shapes. */
typedef enum Sizes {
    SIZES_TEXT, /* they are constants in its text */
    SIZES_FLAT, /* one flat range of any length     */
    SIZES_FOLD  /* rows of any number and length    */
} Sizes;

typedef struct Span {
    Sizes sizes;
    int64_t rows, count; /* for SIZES_FOLD: number of rows, and of elements
                            of all rows */
} Span;

/* Number of rows that reduction n folds, if they are adjacent in memory;
   else 0. */
static int64_t rows_folded(const Graph *g, const Node *n) {
    const Type *t = value_type(g, n->in[0]);
    const int64_t *axes;
    int na = attr_ints(n, AK_axes, &axes);
    int64_t rows = 1;
    bool begun = false;
    for (int d = 0; d < t->rank; d++) {
        bool folded = false;
        for (int i = 0; i < na; i++) folded |= axes[i] == d;
        if (begun && !folded && t->dim[d] != 1) return 0;
        begun |= folded && t->dim[d] != 1;
        if (!folded) rows *= t->dim[d];
    }
    return rows;
}

/* True if a group folds rows of any length; sets the number of elements in
   the rows, and of values that it computes from the folds. */
static bool folds_rows(const Flow *f, int group, Span *s) {
    const Graph *g = f->g;
    *s = (Span){.sizes = SIZES_FOLD};
    for (int i = f->first[group]; i < f->end[group]; i++) {
        const Node *n = node_at(f->g, i);
        if (node_kind(n) != KIND_REDUCE) continue;
        int64_t rows = rows_folded(g, n);
        int64_t count = value_count(g, n->in[0]);
        if (rows == 0 || (s->rows && (rows != s->rows || count != s->count)))
            return false;
        s->rows = rows;
        s->count = count;
    }
    if (!s->rows || !folds_alike(s->rows, s->count / s->rows)) return false;
    for (int i = f->first[group]; i < f->end[group]; i++) {
        const Node *n = node_at(f->g, i);
        int64_t own = value_count(g, n->out[0]);
        bool fold = node_kind(n) == KIND_REDUCE;
        if ((!fold && node_kind(n) != KIND_ELEM) || n->nout != 1 ||
            (own != s->rows && (own != s->count || f->stored[n->out[0].i])))
            return false;
        for (int k = 0; k < n->nin && !fold; k++) {
            int64_t u = value_count(g, n->in[k]);
            if (u != 1 && u != own) return false;
        }
    }
    return true;
}

static Span span_of(const Flow *f, int group) {
    GroupKind kind = f->g->groups.data[group].kind;
    Span s = {SIZES_TEXT, 0, 0};
    if (kind == GROUP_POINT && flat_count(f, group) > 0)
        s.sizes = SIZES_FLAT;
    else if (kind == GROUP_ROW && !folds_rows(f, group, &s))
        s.sizes = SIZES_TEXT;
    return s;
}

/* The facts about a value's type that must be equal in kernels of equal
   text. made: computed by the group, so in a fold with one number per row it
   counts as a row even if there is one. */
static int kind_of_type(const Flow *f, ValueId v, const Span *s, bool made) {
    const Type *t = value_type(f->g, v);
    int64_t count = type_count(t);
    if (s->sizes == SIZES_TEXT) return (int)value_get(f->g, v)->type.i;
    int rows = count == s->count ? 2 : made || count > 1;
    return (int)t->dtype << 2 | (s->sizes == SIZES_FLAT ? count == 1 : rows);
}

/* True if the group adds up the rows on which it works, which takes two
   launches. */
static bool sums_columns(const Flow *f, int group) {
    for (int i = f->first[group]; i < f->end[group]; i++)
        for (int j = f->first[group]; j < f->end[group]; j++)
            if (node_kind(node_at(f->g, j)) == KIND_REDUCE &&
                node_sums_columns(f->g, node_at(f->g, i), node_at(f->g, j)))
                return true;
    return false;
}

/* Describes the group's work without attributes as a list of numbers; empty
   if it shares no launch. */
static NumberVec describe(const Flow *f, int group) {
    const Graph *g = f->g;
    NumberVec w = {0}, met = {0};
    GroupKind kind = g->groups.data[group].kind;
    Span span = span_of(f, group);
    if (is_value(g->groups.data[group].guard.when)) return w;
    if (kind != GROUP_POINT && (kind != GROUP_ROW || sums_columns(f, group)))
        return w;
    vec_push(f->a, &w, (int)kind << 2 | (int)span.sizes);
    for (int i = f->first[group]; i < f->end[group]; i++) {
        const Node *n = node_at(f->g, i);
        vec_push(f->a, &w, (int)n->op);
        for (int k = 0; k < n->nin; k++) {
            ValueId root = f->root[n->in[k].i];
            bool number = value_is_immediate(g, root);
            int bits[2] = {0};
            if (number)
                memcpy(bits, value_get(g, root)->data->data,
                       (size_t)type_bytes(value_type(g, root)));
            else
                bits[0] = number_of(f->a, &met, root);
            vec_push(f->a, &w,
                     kind_of_type(f, n->in[k], &span, f->def[root.i] == group)
                             << 1 |
                         number);
            vec_push(f->a, &w, bits[0]);
            vec_push(f->a, &w, bits[1]);
        }
        for (int k = 0; k < n->nout; k++) {
            vec_push(f->a, &w, kind_of_type(f, n->out[k], &span, true));
            vec_push(f->a, &w, f->stored[n->out[k].i]);
            number_of(f->a, &met, n->out[k]);
        }
    }
    return w;
}

/* True if groups a and b compute the same on different operands. */
static bool same_work(const Launcher *l, int a, int b) {
    const Flow *f = l->f;
    const NumberVec *x = &l->work[a], *y = &l->work[b];
    bool same = x->len == y->len &&
                !memcmp(x->data, y->data, (size_t)x->len * sizeof *x->data);
    for (int i = 0; same && f->first[a] + i < f->end[a]; i++) {
        const Node *m = node_at(f->g, f->first[a] + i);
        bool fold = node_kind(m) == KIND_REDUCE;
        same =
            (fold && (x->data[0] & 3) == SIZES_FOLD) || /* whatever its axes */
            node_same_work(m, node_at(f->g, f->first[b] + i));
    }
    return same;
}

/* ---- memory -------------------------------------------------------------- */

/* True if results other than new values of variables are hardly larger than
   the operands that nothing else reads any more. */
static bool keeps_no_more(const Launcher *l, int group) {
    const Flow *f = l->f;
    int64_t more = 0;
    for (int i = f->first[group]; i < f->end[group]; i++) {
        ValueId v = node_at(f->g, i)->out[0];
        if (f->stored[v.i] && !l->content[v.i]) more += flow_bytes(f, v);
    }
    for (int k = f->read_at[group]; k < f->read_at[group + 1]; k++) {
        ValueId r = f->read[k];
        if (f->def[r.i] >= 0 && l->left[r.i] == 1 && f->last[r.i] < f->ngroup)
            more -= flow_bytes(f, r);
    }
    return more <= 4 * target_of(f->g)->tiny_tensor;
}

/* ---- order --------------------------------------------------------------- */

typedef struct Sorted {
    uint64_t sort;
    int place, group;
} Sorted;

static int by_sort(const void *x, const void *y) {
    const Sorted *a = x, *b = y;
    if (a->sort != b->sort) return a->sort < b->sort ? -1 : 1;
    return (a->place > b->place) - (a->place < b->place);
}

static uint64_t sort_of(const NumberVec *w) {
    return w->len ? hash_bytes(1, w->data, (size_t)w->len * sizeof *w->data) | 1
                  : 0;
}

static void launch_start(Launcher *l) {
    Flow *f = l->f;
    int n = f->ngroup;
    for (int i = 0; i < n; i++) {
        const Edges *e = &l->next[i];
        l->need[i] = -1;
        l->work[i] = describe(f, i);
        l->sort[i] = sort_of(&l->work[i]);
        for (int k = 0; k < e->len; k++) l->waiting[e->to[k]]++;
    }
    for (int k = 0; k < f->read_at[n]; k++) l->left[f->read[k].i]++;
    for (int i = 0; i < f->g->writes.len; i++)
        l->content[f->root[f->g->writes.data[i].value.i].i] = true;
}

/* The next group of each group's kind in that order. */
static void chain(Launcher *l, const int *order) {
    Flow *f = l->f;
    int n = f->ngroup;
    Sorted *all = NEW_ARRAY(f->a, Sorted, n + 1);
    for (int i = 0; i < n; i++)
        all[i] = (Sorted){l->sort[order[i]], i, order[i]};
    qsort(all, (size_t)n, sizeof *all, by_sort);
    for (int i = 0; i < n; i++) {
        bool more = i + 1 < n && all[i + 1].sort == all[i].sort;
        l->later[all[i].group] = more && all[i].sort ? all[i + 1].group : -1;
        if (l->later[all[i].group] < 0) continue;
        l->paired[all[i].group] = l->paired[all[i + 1].group] = true;
    }
}

/* Moves groups of a kind down to where their results are needed, if this
   keeps only few bytes alive for longer. */
static void move_down(Launcher *l, int *order) {
    const Flow *f = l->f;
    int n = f->ngroup;
    int *to = NEW_ARRAY(f->a, int, n + 1);
    int *until = NEW_ARRAY(f->a, int, f->g->values.len); /* per root */
    Sorted *all = NEW_ARRAY(f->a, Sorted, n + 1);
    for (int i = 0; i < n; i++)
        for (int k = f->read_at[order[i]]; k < f->read_at[order[i] + 1]; k++)
            until[f->read[k].i] = f->last[f->read[k].i] < n ? i : n;
    for (int i = n - 1; i >= 0; i--) {
        int group = order[i], last = n;
        const Edges *e = &l->next[group];
        int64_t bytes = 0;
        for (int k = 0; k < e->len; k++)
            if (to[e->to[k]] < last) last = to[e->to[k]];
        for (int k = f->read_at[group]; k < f->read_at[group + 1]; k++)
            if (f->def[f->read[k].i] >= 0 && until[f->read[k].i] < last)
                bytes += flow_bytes(f, f->read[k]);
        bool sinks = l->paired[group] && last < n &&
                     bytes <= 4 * target_of(f->g)->small_tensor;
        to[group] = sinks ? last : i;
        all[i] = (Sorted){2 * (uint64_t)to[group] + !sinks, i, group};
    }
    qsort(all, (size_t)n, sizeof *all, by_sort);
    for (int i = 0; i < n; i++) order[i] = all[i].group;
}

static void place(Launcher *l, int group, int at) {
    const Flow *f = l->f;
    l->placed[group] = true;
    l->at[group] = at;
    for (int k = f->read_at[group]; k < f->read_at[group + 1]; k++)
        l->left[f->read[k].i]--;
    for (int k = 0; k < l->next[group].len; k++) {
        l->need[l->next[group].to[k]] = at;
        l->waiting[l->next[group].to[k]]--;
    }
}

/* ---- behind a launch ----------------------------------------------------- */

/* True if c folds all results of `group`, whose launch begins at position
   `from`, and needs nothing else from the launch. */
static bool finishes(const Launcher *l, int group, int c, int from) {
    const Flow *f = l->f;
    Span made, s;
    bool reads = false;
    if (f->g->groups.data[c].kind != GROUP_ROW ||
        !folds_rows(f, group, &made) || !folds_rows(f, c, &s) || s.rows != 1 ||
        s.count != made.rows)
        return false;
    for (int k = f->read_at[c]; k < f->read_at[c + 1]; k++) {
        int maker = f->def[f->read[k].i];
        reads |= maker == group;
        if (maker >= 0 && maker != group && l->at[maker] >= from) return false;
    }
    return reads;
}

/* True if another group of the launch at positions [from, to) must come before
   c.
 */
static bool follows_another(const Launcher *l, const int *order, int from,
                            int to, int group, int c) {
    for (int i = from; i < to; i++)
        for (int k = 0; order[i] != group && k < l->next[order[i]].len; k++)
            if (l->next[order[i]].to[k] == c) return true;
    return false;
}

/* After the launch at positions [from, to), places for each of its groups
   one group that folds its results, all of equal work; returns the end of
   these positions. */
static int place_after(Launcher *l, int *order, int from, int to) {
    const NumberVec *work = &l->work[order[from]];
    int at = to, first = -1;
    if (!work->len || (work->data[0] & 3) != SIZES_FOLD) return to;
    for (int i = from; i < to; i++) {
        const Edges *e = &l->next[order[i]];
        for (int k = 0; k < e->len; k++) {
            int c = e->to[k];
            if (l->placed[c] || l->waiting[c] || !l->work[c].len ||
                (first >= 0 && !same_work(l, first, c)) ||
                !finishes(l, order[i], c, from) ||
                follows_another(l, order, from, to, order[i], c))
                continue;
            if (first < 0) first = c;
            place(l, c, at);
            order[at++] = c;
            break;
        }
    }
    return at;
}

Joins *launch_together(Flow *f, const Edges *next, int *order) {
    int n = f->ngroup, nv = f->g->values.len, at = 0;
    Launcher l = {.f = f,
                  .next = next,
                  .waiting = NEW_ARRAY(f->a, int, n + 1),
                  .need = NEW_ARRAY(f->a, int, n + 1),
                  .left = NEW_ARRAY(f->a, int, nv),
                  .content = NEW_ARRAY(f->a, bool, nv),
                  .later = NEW_ARRAY(f->a, int, n + 1),
                  .paired = NEW_ARRAY(f->a, bool, n + 1),
                  .placed = NEW_ARRAY(f->a, bool, n + 1),
                  .at = NEW_ARRAY(f->a, int, n + 1),
                  .work = NEW_ARRAY(f->a, NumberVec, n + 1),
                  .sort = NEW_ARRAY(f->a, uint64_t, n + 1)};
    int *old = arena_dup(f->a, order, (size_t)n * sizeof *old);
    Joins *joins = NEW_ARRAY(f->a, Joins, n + 1);
    launch_start(&l);
    chain(&l, old);
    move_down(&l, old);
    chain(&l, old);
    for (int i = 0; i < n; i++) {
        int from = at, tries = 0;
        if (l.placed[old[i]]) continue;
        place(&l, old[i], at);
        order[at++] = old[i];
        for (int c = l.later[old[i]]; c >= 0 && tries++ < REACH;
             c = l.later[c]) {
            if (l.placed[c] || l.waiting[c] || l.need[c] >= from ||
                !same_work(&l, old[i], c) || !keeps_no_more(&l, c))
                continue;
            place(&l, c, at);
            joins[at] = JOINS_BESIDE;
            order[at++] = c;
        }
        int to = at;
        at = place_after(&l, order, from, to);
        while (to < at) joins[to++] = JOINS_AFTER;
    }
    return joins;
}
