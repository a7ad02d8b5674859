/* SPDX-License-Identifier: Apache-2.0 */
/* verify_group.c: checks of the stages FUSED and PLANNED (list in verify.c).

   A buffer belongs to a root: a value that is not the result of a VIEW.     */
#include "ir/graph/verify.h"

#include <stdlib.h>
#include <string.h>

typedef struct Span {
    int first, end; /* positions in order */
} Span;

typedef struct GroupCheck {
    Verifier *v;
    const Graph *g;
    Span *span;    /* per group */
    bool *leaves;  /* per value: read outside of its group */
    ValueId *root; /* per value: view_root */
} GroupCheck;

static int group_of(const GroupCheck *c, ValueId v) {
    const Value *x = value_get(c->g, v);
    return x->kind == VK_RESULT ? node_get(c->g, x->def)->group : -1;
}

/* ---- facts for the checks ------------------------------------------------ */

static Status find_spans(GroupCheck *c) {
    const Graph *g = c->g;
    int open = -1;
    for (int i = 0; i < g->groups.len; i++) c->span[i] = (Span){-1, -1};
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(c->g, i);
        int at = n->group;
        if (at < -1 || at >= g->groups.len)
            return verify_fail(c->v, n, "in group %d of %d", at, g->groups.len);
        if ((at < 0) != (node_kind(n) == KIND_VIEW))
            return verify_fail(
                c->v, n, at < 0 ? "is in no group" : "a view is in no group");
        if (at >= 0 && at != open && c->span[at].first >= 0)
            return verify_fail(c->v, n, "group %d is torn apart", at);
        if (at >= 0 && at != open) c->span[at].first = i;
        if (at >= 0) c->span[at].end = i + 1;
        open = at;
    }
    for (int i = 0; i < g->groups.len; i++)
        if (c->span[i].first < 0)
            return verify_fail(c->v, NULL, "group %d is empty", i);
    return OK;
}

/* ---- promises by kind ---------------------------------------------------- */

/* Columns of several axes are one axis to the kernel of n's tile. */
static Status check_columns(GroupCheck *c, Span s, const Node *n) {
    int64_t count = value_count(c->g, n->in[0]);
    if (node_tiles(c->g, n) == value_type(c->g, n->in[0])->rank - 1) return OK;
    for (int i = s.first; i < s.end; i++) {
        const Node *x = node_at(c->g, i);
        if (!node_reads_alike(c->g, x, node_by_tile(c->g, x), count))
            return verify_fail(c->v, n,
                               "has columns of several axes in its tile, "
                               "beside %s",
                               op_info[x->op].text);
    }
    return OK;
}

static Status check_point(GroupCheck *c, Span s) {
    const Type *domain = NULL;
    int rows = 0;
    for (int i = s.first; i < s.end; i++) {
        const Node *n = node_at(c->g, i);
        OpKind k = node_kind(n);
        if (k != KIND_ELEM && k != KIND_GEN && k != KIND_MOVE)
            return verify_fail(c->v, n, "does not belong in a point group");
        int own = node_by_tile(c->g, n) ? node_tiles(c->g, n) : 0;
        if (rows && own && own != rows)
            return verify_fail(
                c->v, n, "has %d axes of rows in its tile, not %d", own, rows);
        if (own) TRY(check_columns(c, s, n));
        if (own) rows = own;
        for (int j = 0; j < n->nout; j++) {
            const Type *t =
                value_type(c->g, node_by_tile(c->g, n) ? n->in[0] : n->out[j]);
            if (!c->leaves[n->out[j].i]) continue;
            if (domain && !shape_equal(domain, t))
                return verify_fail(c->v, n,
                                   "%s leaves a point group, so does "
                                   "%s",
                                   TXT(t), TXT(domain));
            domain = t;
        }
    }
    return OK;
}

/* Does n read, directly or not, a reduction of its group?  `tainted` is by
   position. */
static bool reads_tainted(const GroupCheck *c, const Node *n,
                          const bool *tainted) {
    for (int k = 0; k < n->nin; k++)
        if (is_value(n->in[k]) && group_of(c, n->in[k]) == n->group &&
            tainted[c->v->pos[value_get(c->g, n->in[k])->def.i]])
            return true;
    return false;
}

/* The first reduction of a row group along its rows. */
static const Node *row_reduction(const GroupCheck *c, Span s) {
    const Node *first = NULL;
    for (int i = s.first; i < s.end; i++) {
        const Node *n = node_at(c->g, i);
        if (node_kind(n) != KIND_REDUCE) continue;
        if (!first || node_sums_columns(c->g, n, first)) first = n;
    }
    return first;
}

/* Column sums are read only by other groups. */
static Status check_column_sum(GroupCheck *c, Span s, const Node *n) {
    for (int i = s.first; i < s.end; i++)
        for (int k = 0; k < node_at(c->g, i)->nin; k++)
            if (same_value(c->root[node_at(c->g, i)->in[k].i], n->out[0]))
                return verify_fail(c->v, node_at(c->g, i),
                                   "reads a sum over the rows of its group");
    return OK;
}

static bool turns_rows(const GroupCheck *c, const Node *reduce, const Node *n) {
    return node_by_tile(c->g, n) && node_tiles_rows(c->g, reduce, n);
}

static Status check_row(GroupCheck *c, Span s, bool *tainted) {
    const Node *first = row_reduction(c, s);
    if (!first)
        return verify_fail(c->v, node_at(c->g, s.first),
                           "a row group without a reduction");
    const Type *full = value_type(c->g, first->in[0]);
    const Type *row = value_type(c->g, first->out[0]);
    for (int i = s.first; i < s.end; i++) {
        const Node *n = node_at(c->g, i);
        OpKind k = node_kind(n);
        if (k != KIND_ELEM && k != KIND_GEN && k != KIND_MOVE &&
            k != KIND_REDUCE)
            return verify_fail(c->v, n, "does not belong in a row group");
        tainted[i] = k == KIND_REDUCE || reads_tainted(c, n, tainted);
        if (k == KIND_MOVE && tainted[i] &&
            !(c->leaves[n->out[0].i] &&
              (node_pads_rows(c->g, first, n) || node_by_tile(c->g, n))))
            return verify_fail(c->v, n,
                               "moves what a reduction of its group makes");
        if (k != KIND_REDUCE) continue;
        if (node_sums_columns(c->g, first, n)) {
            TRY(check_column_sum(c, s, n));
            continue;
        }
        if (!attr_same(attr_find(first, AK_axes), attr_find(n, AK_axes)) ||
            !shape_equal(full, value_type(c->g, n->in[0])))
            return verify_fail(
                c->v, n,
                "a row group folds one shape, %s, along one set of axes",
                TXT(full));
    }
    for (int i = s.first; i < s.end; i++) {
        const Node *n = node_at(c->g, i);
        bool sums =
            node_kind(n) == KIND_REDUCE && node_sums_columns(c->g, first, n);
        for (int j = 0; j < n->nout; j++) {
            const Type *t = value_type(c->g, n->out[j]);
            if (c->leaves[n->out[j].i] && !sums && !shape_equal(t, full) &&
                !shape_equal(t, row) && !node_pads_rows(c->g, first, n) &&
                !turns_rows(c, first, n))
                return verify_fail(c->v, n, "%s leaves a row group of %s",
                                   TXT(t), TXT(full));
        }
    }
    return OK;
}

static Status check_anchor(GroupCheck *c, Span s) {
    const Node *anchor = NULL;
    for (int i = s.first; i < s.end; i++) {
        const Node *n = node_at(c->g, i);
        if (node_kind(n) != KIND_ANCHOR) continue;
        if (anchor) return verify_fail(c->v, n, "a second anchor in a group");
        anchor = n;
    }
    if (!anchor)
        return verify_fail(c->v, node_at(c->g, s.first),
                           "an anchor group without an anchor");
    const Type *shape = value_type(c->g, anchor->out[0]);
    for (int k = 0; k < anchor->nin; k++)
        for (int i = s.first; i < s.end; i++)
            if (same_value(c->root[anchor->in[k].i], node_at(c->g, i)->out[0]))
                return verify_fail(c->v, anchor,
                                   "reads what its own group makes");
    for (int i = s.first; i < s.end; i++) {
        const Node *n = node_at(c->g, i);
        OpKind k = node_kind(n);
        if (k == KIND_LIB && anchor->op == OP_CONV && node_pools(n) &&
            i == s.end - 1 && group_of(c, n->in[0]) == n->group)
            continue;
        if (k != KIND_ANCHOR && k != KIND_ELEM && k != KIND_GEN)
            return verify_fail(c->v, n, "does not belong in an anchor group");
        if (!shape_equal(value_type(c->g, n->out[0]), shape))
            return verify_fail(c->v, n, "%s in an anchor group of %s",
                               TXT(value_type(c->g, n->out[0])), TXT(shape));
    }
    return OK;
}

static GroupCheck *group_check(Verifier *v) {
    GroupCheck *c = NEW(v->a, GroupCheck);
    c->v = v;
    c->g = v->g;
    c->span = NEW_ARRAY(v->a, Span, v->g->groups.len + 1);
    c->leaves = NEW_ARRAY(v->a, bool, v->g->values.len);
    c->root = NEW_ARRAY(v->a, ValueId, v->g->values.len);
    for (uint32_t i = 1; i < (uint32_t)v->g->values.len; i++)
        c->root[i] = (ValueId){i};
    for (int i = 0; i < v->g->order.len; i++) {
        const Node *n = node_at(c->g, i);
        if (node_kind(n) == KIND_VIEW)
            c->root[n->out[0].i] = c->root[n->in[0].i];
        for (int k = 0; k < n->nin; k++)
            if (is_value(n->in[k]) && group_of(c, n->in[k]) != n->group)
                c->leaves[n->in[k].i] = true;
    }
    for (int i = 0; i < v->g->groups.len; i++)
        c->leaves[v->g->groups.data[i].guard.when.i] = true;
    for (int i = 0; graph_root(v->g, i); i++)
        c->leaves[graph_root(v->g, i)->i] = true;
    return c;
}

/* Groups of one launch (the first is `first`) run at the same time, except
   groups marked `after`: each runs after another group of the launch. done:
   by group, a group runs after it. */
static Status check_beside(GroupCheck *c, int group, int first, bool *done) {
    const Group *g = c->g->groups.data;
    GroupKind kind = g[group].kind;
    bool after = g[group].after;
    int before = -1; /* the group after which this one runs */
    if (group == 0 || (kind != GROUP_POINT && kind != GROUP_ROW) ||
        g[first].kind != kind || (after && kind != GROUP_ROW))
        return verify_fail(c->v, node_at(c->g, c->span[group].first),
                           "only point or row groups share a launch");
    if (!after && g[group - 1].after)
        return verify_fail(
            c->v, node_at(c->g, c->span[group].first),
            "a group after others must be the last of its launch");
    for (int i = c->span[group].first; i < c->span[group].end; i++)
        for (int k = 0; k < node_at(c->g, i)->nin; k++) {
            ValueId v = node_at(c->g, i)->in[k];
            int maker = is_value(v) ? group_of(c, c->root[v.i]) : -1;
            if (maker < first || maker >= group) continue;
            if (!after || g[maker].after || (before >= 0 && maker != before))
                return verify_fail(c->v, node_at(c->g, i),
                                   "reads what its own launch makes");
            before = maker;
        }
    if (after && (before < 0 || done[before]))
        return verify_fail(c->v, node_at(c->g, c->span[group].first),
                           "a group of a launch has one after it at most");
    if (after) done[before] = true;
    return OK;
}

/* A group's condition is one truth value that an earlier group computes, and
   always. */
static Status check_guard(GroupCheck *c, int group) {
    const Group *x = &c->g->groups.data[group];
    const Node *first = node_at(c->g, c->span[group].first);
    if (!is_value(x->guard.when)) return OK;
    const Type *t = value_type(c->g, x->guard.when);
    int maker = group_of(c, c->root[x->guard.when.i]);
    if (t->dtype != DT_BOOL || type_count(t) != 1)
        return verify_fail(c->v, first, "its group's condition is %s", TXT(t));
    if (x->beside || maker >= group ||
        (maker >= 0 && is_value(c->g->groups.data[maker].guard.when)))
        return verify_fail(c->v, first,
                           "the condition of its group is not always there");
    return OK;
}

Status verify_groups(Verifier *v) {
    GroupCheck *c = group_check(v);
    bool *tainted = NEW_ARRAY(v->a, bool, v->g->order.len + 1);
    bool *done = NEW_ARRAY(v->a, bool, v->g->groups.len + 1);
    int launch = 0;
    TRY(find_spans(c));
    for (int i = 0; i < v->g->groups.len; i++) {
        if (!v->g->groups.data[i].beside) launch = i;
        if (v->g->groups.data[i].beside) TRY(check_beside(c, i, launch, done));
        TRY(check_guard(c, i));
        Span s = c->span[i];
        const Node *n = node_at(c->g, s.first);
        switch (v->g->groups.data[i].kind) {
        case GROUP_POINT: TRY(check_point(c, s)); break;
        case GROUP_ROW: TRY(check_row(c, s, tainted)); break;
        case GROUP_ANCHOR: TRY(check_anchor(c, s)); break;
        case GROUP_LIB:
            if (s.end - s.first != 1 || node_kind(n) != KIND_LIB)
                return verify_fail(v, n, "a lib group is one library op");
            break;
        }
    }
    return OK;
}

/* ---- the memory plan ----------------------------------------------------- */

/* A root computed by a group; time is counted in launches. */
typedef struct Buffer {
    ValueId value;
    int64_t from, to; /* bytes */
    int born, dies;   /* first and last step, both inclusive */
} Buffer;

typedef struct PlanCheck {
    GroupCheck *c;
    int *step;   /* per group: the launch to which it belongs */
    int *last;   /* per root: last launch that reads it */
    int *reader; /* per root: the only group of that launch that reads it;
                    -1: several groups */
    const Write **write; /* per variable */
    int steps;
} PlanCheck;

static void find_lives(PlanCheck *p) {
    GroupCheck *c = p->c;
    const Graph *g = c->g;
    int at = -1;
    for (int i = 0; i < g->values.len; i++) p->last[i] = p->reader[i] = -1;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(c->g, i);
        if (n->group < 0) continue;
        at += c->span[n->group].first == i && !g->groups.data[n->group].beside;
        p->step[n->group] = at;
        uint32_t when = c->root[g->groups.data[n->group].guard.when.i].i;
        p->last[when] = at;
        p->reader[when] = -1;
        for (int k = 0; k < n->nin; k++) {
            uint32_t r = c->root[n->in[k].i].i;
            bool other = p->last[r] == at && p->reader[r] != n->group;
            p->reader[r] = other ? -1 : n->group;
            p->last[r] = at;
        }
    }
    p->steps = at + 1;
    for (int i = 0; graph_root(g, i); i++)
        p->last[c->root[graph_root(g, i)->i].i] = p->steps;
}

/* True if in the last launch that reads buffer r only this group reads it,
   and only at the index that it writes. */
static bool reads_in_step(const PlanCheck *p, int group, ValueId r,
                          const Type *domain) {
    const GroupCheck *c = p->c;
    GroupKind kind = c->g->groups.data[group].kind;
    bool rows = kind == GROUP_ROW;
    bool tile = kind == GROUP_ANCHOR;
    if ((kind != GROUP_POINT && !rows && !tile) || p->reader[r.i] != group)
        return false;
    for (int i = c->span[group].first; i < c->span[group].end; i++) {
        const Node *n = node_at(c->g, i);
        if (node_kind(n) == KIND_MOVE && !rows) return false;
        bool here = node_kind(n) == KIND_MOVE ? node_cuts_rows(c->g, n)
                                              : node_kind(n) == KIND_REDUCE;
        for (int k = 0; k < n->nin; k++) {
            if (!same_value(c->root[n->in[k].i], r)) continue;
            if (tile && node_kind(n) != KIND_ELEM) return false;
            if (!shape_equal(value_type(c->g, n->in[k]), domain) ||
                (!here && (node_kind(n) == KIND_MOVE ||
                           !shape_equal(value_type(c->g, n->out[0]), domain))))
                return false;
        }
    }
    return true;
}

/* b may overwrite a: a is last read where b is computed, and both have the
   same offset and size. */
static bool in_place(const PlanCheck *p, const Buffer *a, const Buffer *b) {
    const Type *ta = value_type(p->c->g, a->value);
    const Type *tb = value_type(p->c->g, b->value);
    return a->dies == b->born && a->born < b->born && a->from == b->from &&
           dtype_info[ta->dtype].bytes == dtype_info[tb->dtype].bytes &&
           type_count(ta) == type_count(tb) &&
           reads_in_step(p, group_of(p->c, b->value), a->value, tb);
}

static Status check_pair(PlanCheck *p, const Buffer *a, const Buffer *b) {
    const Graph *g = p->c->g;
    bool apart = a->to <= b->from || b->to <= a->from;
    bool at_once = a->born <= b->dies && b->born <= a->dies;
    if (apart || !at_once || in_place(p, a, b) || in_place(p, b, a)) return OK;
    return verify_fail(
        p->c->v, NULL, "%%%s and %%%s live at the same time and overlap",
        value_get(g, a->value)->name, value_get(g, b->value)->name);
}

static int by_start(const void *a, const void *b) {
    int64_t x = ((const Buffer *)a)->from, y = ((const Buffer *)b)->from;
    return (x > y) - (x < y);
}

/* The new value of a variable is computed directly in the variable's memory. */
static Status check_home(PlanCheck *p, const Node *n, ValueId id) {
    GroupCheck *c = p->c;
    const Value *x = value_get(c->g, id);
    const Type *t = type_get(x->type);
    bool known = x->home < c->g->module->vars.len;
    const Write *write = known ? p->write[x->home] : NULL;
    if (!write || !same_value(c->root[write->value.i], id))
        return verify_fail(c->v, n, "its home is not written with it");
    const Type *var = value_type(c->g, write->var);
    if (var->dtype != t->dtype || type_count(var) != type_count(t))
        return verify_fail(c->v, n, "%s in a home of %s", TXT(t), TXT(var));
    int last = p->last[write->var.i], here = p->step[n->group];
    if (last > here)
        return verify_fail(c->v, n,
                           "%%%s is still read after it is "
                           "overwritten",
                           value_get(c->g, write->var)->name);
    if (last == here && !reads_in_step(p, n->group, write->var, t))
        return verify_fail(c->v, n,
                           "%%%s is read at other places than "
                           "written",
                           value_get(c->g, write->var)->name);
    return OK;
}

static Status check_place(PlanCheck *p, const Node *n, ValueId id,
                          Buffer *out) {
    const Graph *g = p->c->g;
    const Value *x = value_get(g, id);
    int born = p->step[n->group], dies = p->last[id.i];
    *out = (Buffer){id, x->offset, x->offset, born, dies < born ? born : dies};
    if (x->home >= 0) return check_home(p, n, id);
    if (x->offset < 0)
        return verify_fail(p->c->v, n, "leaves its group and has no place");
    if (!add_ok(x->offset, type_bytes(type_get(x->type)), &out->to) ||
        out->to > g->arena_bytes)
        return verify_fail(p->c->v, n, "ends at byte %lld of an arena of %lld",
                           (long long)out->to, (long long)g->arena_bytes);
    return OK;
}

Status verify_plan(Verifier *v) {
    const Graph *g = v->g;
    PlanCheck p = {.c = group_check(v)};
    VEC(Buffer) buffers = {0};
    TRY(find_spans(p.c));
    p.step = NEW_ARRAY(v->a, int, g->groups.len + 1);
    p.last = NEW_ARRAY(v->a, int, g->values.len);
    p.reader = NEW_ARRAY(v->a, int, g->values.len);
    p.write = NEW_ARRAY(v->a, const Write *, g->module->vars.len + 1);
    for (int i = 0; i < g->writes.len; i++) {
        const Write *w = &g->writes.data[i];
        p.write[value_get(g, w->var)->var] = w;
    }
    find_lives(&p);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(p.c->g, i);
        for (int k = 0; n->group >= 0 && k < n->nout; k++) {
            Buffer b;
            if (!p.c->leaves[n->out[k].i]) continue;
            TRY(check_place(&p, n, n->out[k], &b));
            if (b.to > b.from) vec_push(v->a, &buffers, b);
        }
    }
    Buffer *list = buffers.data;
    int n = buffers.len;
    if (n) qsort(list, (size_t)n, sizeof *list, by_start);
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n && list[j].from < list[i].to; j++)
            TRY(check_pair(&p, &list[i], &list[j]));
    return OK;
}
