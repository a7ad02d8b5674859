/* SPDX-License-Identifier: Apache-2.0 */
/* traffic.c: see traffic.h.

   Fusion decides which values reach memory, but it runs after types are chosen.
   So a copy of the graph is fused here, once for each kind of target (a very
   large graph only for one kind), whatever targets the options name: types
   must not depend on the machine. */
#include "passes/common/traffic.h"
#include "passes/device/flow.h"

bool is_forward(const Graph *g, ValueId v) {
    const Value *val = v.i ? value_get(g, v) : NULL;
    return val && val->kind == VK_RESULT && !node_get(g, val->def)->flags;
}

bool is_updates(const Graph *g, ValueId v) {
    const Value *val = value_get(g, v);
    return val->kind == VK_RESULT && node_get(g, val->def)->flags & NODE_UPDATE;
}

/* A copy of forward and backward in a module of its own, over the same
   variables; its outputs are the values that the update reads. */
static Graph *graph_aside(const Graph *g, Module *aside, Arena *a) {
    Graph *copy = graph_clone_aside(g, aside, a);
    bool *read = NEW_ARRAY(a, bool, g->values.len);
    copy->order.len = copy->writes.len = 0;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (!(n->flags & NODE_UPDATE))
            vec_push(a, &copy->order, g->order.data[i]);
        for (int k = 0; k < n->nin && n->flags & NODE_UPDATE; k++)
            read[n->in[k].i] |= n->in[k].i && !is_updates(g, n->in[k]);
    }
    for (int i = 0; i < g->writes.len; i++)
        if (!is_updates(g, g->writes.data[i].value))
            vec_push(a, &copy->writes, g->writes.data[i]);
    for (uint32_t v = 1; v < (uint32_t)g->values.len; v++)
        if (read[v] && value_get(g, (ValueId){v})->kind == VK_RESULT)
            vec_push(a, &copy->outputs,
                     (Output){.name = intern(""), .value = {v}});
    return copy;
}

static void note_group(const Flow *f, int group, Traffic *t, uint32_t limit) {
    bool backward = false;
    for (int i = f->first[group]; i < f->end[group]; i++) {
        const Node *n = node_at(f->g, i);
        backward |= (n->flags & NODE_BACKWARD) != 0;
    }
    for (int i = f->read_at[group]; i < f->read_at[group + 1]; i++) {
        ValueId v = f->read[i];
        if (v.i >= limit) continue;
        t[v.i].reads++;
        t[v.i].saved |= backward && is_forward(f->g, v);
    }
}

static Traffic *traffic_in(Graph *g, uint32_t limit, Arena *a) {
    const Flow *f = flow_new(g, a);
    Traffic *t = NEW_ARRAY(a, Traffic, limit);
    for (int i = 0; i < f->ngroup; i++) note_group(f, i, t, limit);
    for (int i = 0; graph_root(g, i); i++) {
        ValueId kept = f->root[graph_root(g, i)->i];
        if (kept.i < limit) t[kept.i].reads++;
    }
    for (uint32_t v = 1; v < limit; v++)
        t[v].stored = f->def[v] >= 0 && f->stored[v];
    return t;
}

void traffic_join(const Graph *g, Traffic *all, int values, PassCtx *cx) {
    enum { LARGE = 1 << 18 }; /* larger graphs: CPU only */
    uint32_t limit = (uint32_t)values;
    Options opt = *cx->opt;
    opt.no_fuse = false;
    for (TargetKind k = TARGET_CPU;
         k < (g->order.len < LARGE ? NUM_TARGETS : TARGET_CPU + 1); k++) {
        Module aside;
        PassCtx inner = {arena_new(), cx->diag, &opt};
        Graph *copy = graph_aside(g, &aside, inner.scratch);
        copy->target = k;
        Status s = pass_fuse(&aside, &inner);
        ASSERT(s == OK && "fusion does not fail");
        const Traffic *t = traffic_in(copy, limit, inner.scratch);
        for (uint32_t v = 1; v < limit; v++) {
            all[v].stored |= t[v].stored;
            all[v].saved |= t[v].saved;
            if (t[v].reads > all[v].reads) all[v].reads = t[v].reads;
        }
        arena_free(inner.scratch);
    }
}

/* The groups of g on a target, where attention is one node; heads: it reads
   and writes them beside rows. */
static const Flow *flow_attended(const Graph *g, TargetKind k, bool heads,
                                 Module *aside, PassCtx *inner) {
    Graph *copy = graph_aside(g, aside, inner->scratch);
    copy->target = k;
    Status s = pass_attend(aside, inner);
    if (s == OK && heads) s = pass_heads(aside, inner);
    if (s == OK) s = pass_dce(aside, inner);
    if (s == OK) s = pass_fuse(aside, inner);
    ASSERT(s == OK && "these do not fail");
    return flow_new(copy, inner->scratch);
}

void traffic_kept(const Graph *g, bool *all, PassCtx *cx) {
    uint32_t limit = (uint32_t)g->values.len;
    for (TargetKind k = TARGET_CPU; k < NUM_TARGETS; k++) {
        Module aside;
        PassCtx inner = {arena_new(), cx->diag, cx->opt};
        const Flow *f = flow_attended(g, k, true, &aside, &inner);
        const bool *kept = flow_kept(f, inner.scratch);
        for (uint32_t v = 1; v < limit; v++) all[v] |= kept[v];
        arena_free(inner.scratch);
    }
}

int64_t traffic_beyond_half(const Graph *g, PassCtx *cx) {
    int64_t most = 0;
    for (TargetKind k = TARGET_CPU; k < NUM_TARGETS; k++) {
        Module aside;
        PassCtx inner = {arena_new(), cx->diag, cx->opt};
        const Flow *f = flow_attended(g, k, false, &aside, &inner);
        const Graph *copy = f->g;
        const bool *kept = flow_kept(f, inner.scratch);
        int64_t beyond = 0;
        for (uint32_t v = 1; v < (uint32_t)copy->values.len; v++) {
            ValueId id = {v};
            int64_t bytes = flow_bytes(f, id);
            if (kept[v])
                beyond += dtype_is_float(value_dtype(copy, id))
                              ? bytes - 2 * value_count(copy, id)
                              : bytes / 2;
        }
        if (beyond > most) most = beyond;
        arena_free(inner.scratch);
    }
    return most;
}
