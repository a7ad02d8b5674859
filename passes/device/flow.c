/* SPDX-License-Identifier: Apache-2.0 */
/* flow.c: see flow.h. */
#include "passes/device/flow.h"

#include <string.h>

/* Finds the nodes of each group, the launches and the buffers. */
static void find_groups(Flow *f) {
    Graph *g = f->g;
    for (int v = 0; v < g->values.len; v++) f->root[v].i = (uint32_t)v;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        OpKind kind = node_kind(n);
        if (kind == KIND_VIEW) f->root[n->out[0].i] = f->root[n->in[0].i];
        if (kind == KIND_LIB) f->stored[n->out[0].i] = true;
        if (n->group < 0) continue;
        if (!f->end[n->group]) f->first[n->group] = i;
        f->end[n->group] = i + 1;
        for (int k = 0; k < n->nout; k++) f->def[n->out[k].i] = n->group;
    }
    for (int i = 0; i < f->ngroup; i++)
        f->from[i] = g->groups.data[i].beside ? f->from[i - 1] : i;
    for (int i = f->ngroup - 1; i >= 0; i--) {
        bool last = i + 1 == f->ngroup || !g->groups.data[i + 1].beside;
        f->to[i] = last ? i : f->to[i + 1];
    }
}

/* Group i reads buffer r, which another one computes. */
static void add_read(Flow *f, int i, ValueId r, int *at) {
    f->read[(*at)++] = r;
    f->crowded[r.i] = f->last[r.i] >= f->from[i];
    f->last[r.i] = i;
    if (f->def[r.i] >= 0) f->stored[r.i] = true;
}

/* Lists the values that each group reads from other groups. A condition is
   read before the group runs: no result takes its place. */
static void find_reads(Flow *f) {
    Graph *g = f->g;
    int total = f->ngroup;
    for (int i = 0; i < g->order.len; i++) total += node_at(g, i)->nin;
    f->read = NEW_ARRAY(f->a, ValueId, total + 1);
    int *mark = NEW_ARRAY(f->a, int, g->values.len); /* + 1, by root */
    for (int i = 0; i < f->ngroup; i++) {
        int at = f->read_at[i];
        for (int j = f->first[i]; j < f->end[i]; j++) {
            const Node *n = node_at(g, j);
            for (int k = 0; k < n->nin; k++) {
                if (!is_value(n->in[k]) || value_is_immediate(g, n->in[k]))
                    continue;
                ValueId r = f->root[n->in[k].i];
                if (f->def[r.i] == i || mark[r.i] == i + 1) continue;
                mark[r.i] = i + 1;
                add_read(f, i, r, &at);
            }
        }
        ValueId when = f->root[g->groups.data[i].guard.when.i];
        if (is_value(when) && mark[when.i] != i + 1) add_read(f, i, when, &at);
        if (is_value(when)) f->crowded[when.i] = true;
        f->read_at[i + 1] = at;
    }
}

bool flow_sums_ranks(const Flow *f, int group) {
    const Node *n = node_at(f->g, f->first[group]);
    return f->g->program == PROGRAM_UPDATE && n->op == OP_RANK_SUM;
}

/* An epilogue runs on finished elements of its product. */
bool flow_reads_in_step(const Flow *f, int group, ValueId r, const Type *t) {
    const Graph *g = f->g;
    GroupKind kind = g->groups.data[group].kind;
    bool rows = kind == GROUP_ROW;
    bool tile = kind == GROUP_ANCHOR;
    if (kind != GROUP_POINT && !rows && !tile) return false;
    for (int i = f->first[group]; i < f->end[group]; i++) {
        const Node *n = node_at(g, i);
        OpKind op = node_kind(n);
        if (op == KIND_MOVE && !rows) return false;
        for (int k = 0; k < n->nin; k++) {
            if (!is_value(n->in[k]) || !same_value(f->root[n->in[k].i], r))
                continue;
            bool here = op == KIND_MOVE
                            ? node_cuts_rows(g, n)
                            : op == KIND_REDUCE ||
                                  shape_equal(value_type(g, n->out[0]), t);
            if (tile && op != KIND_ELEM) return false;
            if (!here || !shape_equal(value_type(g, n->in[k]), t)) return false;
        }
    }
    return true;
}

bool flow_in_place(const Flow *f, int group, ValueId r, ValueId v) {
    const Type *u = value_type(f->g, r), *t = value_type(f->g, v);
    if (node_by_tile(f->g, node_get(f->g, value_get(f->g, v)->def)))
        return false;
    return dtype_info[u->dtype].bytes == dtype_info[t->dtype].bytes &&
           type_count(u) == type_count(t) && flow_reads_in_step(f, group, r, t);
}

Flow *flow_new(Graph *g, Arena *a) {
    Flow *f = NEW(a, Flow);
    int nv = g->values.len;
    *f = (Flow){.g = g, .a = a, .ngroup = g->groups.len};
    f->first = NEW_ARRAY(a, int, f->ngroup + 1);
    f->end = NEW_ARRAY(a, int, f->ngroup + 1);
    f->from = NEW_ARRAY(a, int, f->ngroup + 1);
    f->to = NEW_ARRAY(a, int, f->ngroup + 1);
    f->read_at = NEW_ARRAY(a, int, f->ngroup + 1);
    f->root = NEW_ARRAY(a, ValueId, nv);
    f->def = NEW_ARRAY(a, int, nv);
    f->last = NEW_ARRAY(a, int, nv);
    f->crowded = NEW_ARRAY(a, bool, nv);
    f->stored = NEW_ARRAY(a, bool, nv);
    memset(f->def, -1, (size_t)nv * sizeof *f->def);
    memset(f->last, -1, (size_t)nv * sizeof *f->last);
    find_groups(f);
    find_reads(f);
    for (int i = 0; graph_root(g, i); i++) {
        ValueId r = f->root[graph_root(g, i)->i];
        f->last[r.i] = f->ngroup;
        f->stored[r.i] |= f->def[r.i] >= 0;
    }
    return f;
}

int64_t flow_bytes(const Flow *f, ValueId root) {
    return type_bytes(value_type(f->g, root));
}

/* True if the group has a forward node. */
static bool is_forwards(const Flow *f, int group) {
    for (int i = f->first[group]; i < f->end[group]; i++)
        if (!node_at(f->g, i)->flags) return true;
    return false;
}

/* True if forward computes v, or if v is computed for backward from forward
   values (a mask, a slope) and is not a gradient. */
static bool is_of_forward(const Flow *f, ValueId v) {
    const Graph *g = f->g;
    const Value *val = value_get(g, v);
    if (val->kind != VK_RESULT || !is_forwards(f, f->def[v.i])) return false;
    const Node *n = node_get(g, val->def);
    for (int k = 0; k < n->nin && n->flags; k++) {
        const Value *x = value_get(g, n->in[k]);
        if (x->kind == VK_RESULT && node_get(g, x->def)->flags) return false;
    }
    return true;
}

const bool *flow_kept(const Flow *f, Arena *a) {
    bool *kept = NEW_ARRAY(a, bool, f->g->values.len);
    for (int i = 0; i < f->ngroup; i++) {
        const Node *first = node_at(f->g, f->first[i]);
        if (!(first->flags & NODE_BACKWARD) || is_forwards(f, i)) continue;
        for (int k = f->read_at[i]; k < f->read_at[i + 1]; k++)
            kept[f->read[k].i] |= is_of_forward(f, f->read[k]);
    }
    return kept;
}

/* ---- what stays from run to run ------------------------------------------ */

/* Bytes of results that a program may keep. */
enum { FIXED_MOST = 16 << 20 };

static bool is_fixed(const Flow *f, int group, const bool *fixed) {
    if (is_value(f->g->groups.data[group].guard.when)) return false;
    for (int k = f->read_at[group]; k < f->read_at[group + 1]; k++) {
        ValueId r = f->read[k];
        if (f->def[r.i] >= 0 ? !fixed[f->def[r.i]]
                             : value_get(f->g, r)->kind == VK_INPUT)
            return false;
    }
    return true;
}

const bool *flow_fixed(const Flow *f, Arena *a) {
    const Graph *g = f->g;
    bool *fixed = NEW_ARRAY(a, bool, f->ngroup + 1);
    int64_t left = FIXED_MOST;
    for (int i = 0; i < f->ngroup && g->target == TARGET_CPU && !g->writes.len;
         i++) {
        int64_t bytes = 0;
        for (int j = f->first[i]; j < f->end[i]; j++) {
            const Node *n = node_at(g, j);
            for (int k = 0; k < n->nout; k++)
                if (f->stored[n->out[k].i]) bytes += flow_bytes(f, n->out[k]);
        }
        fixed[i] = bytes <= left && is_fixed(f, i, fixed);
        if (fixed[i]) left -= bytes;
    }
    return fixed;
}

/* ---- order --------------------------------------------------------------- */

static void put_views(Graph *g, bool *done, ValueId v) {
    if (!is_value(v) || value_get(g, v)->kind != VK_RESULT) return;
    NodeId id = value_get(g, v)->def;
    const Node *n = node_get(g, id);
    if (node_kind(n) != KIND_VIEW || done[id.i]) return;
    put_views(g, done, n->in[0]);
    done[id.i] = true;
    vec_push(g->arena, &g->order, id);
}

void groups_reorder(Graph *g, Arena *scratch, const int *order, int n) {
    int total = g->order.len, ng = g->groups.len;
    NodeId *old =
        arena_dup(scratch, g->order.data, (size_t)total * sizeof *old);
    Group *groups =
        arena_dup(scratch, g->groups.data, (size_t)ng * sizeof *groups);
    NodeId *node = NEW_ARRAY(scratch, NodeId, total + 1);
    int *at = NEW_ARRAY(scratch, int, ng + 2); /* each group's nodes */
    bool *done = NEW_ARRAY(scratch, bool, g->nodes.len);
    for (int i = 0; i < total; i++)
        if (node_get(g, old[i])->group >= 0)
            at[node_get(g, old[i])->group + 2]++;
    for (int i = 0; i < ng; i++) at[i + 2] += at[i + 1];
    for (int pools = 0; pools < 2; pools++) /* a pool ends its group */
        for (int i = 0; i < total; i++) {
            const Node *x = node_get(g, old[i]);
            if (x->group >= 0 && node_pools(x) == pools)
                node[at[x->group + 1]++] = old[i];
        }
    g->order.len = 0;
    g->groups.len = n;
    for (int i = 0; i < n; i++) {
        int from = at[order[i]], end = at[order[i] + 1];
        g->groups.data[i] = groups[order[i]];
        for (int j = from; j < end; j++)
            for (int k = 0; k < node_get(g, node[j])->nin; k++)
                put_views(g, done, node_get(g, node[j])->in[k]);
        for (int j = from; j < end; j++) {
            node_get(g, node[j])->group = i;
            vec_push(g->arena, &g->order, node[j]);
        }
    }
    for (int i = 0; i < total; i++)
        if (node_get(g, old[i])->group < 0)
            put_views(g, done, node_get(g, old[i])->out[0]);
}
