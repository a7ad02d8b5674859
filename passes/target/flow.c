/* flow.c: see flow.h. */
#include "passes/target/flow.h"

#include <string.h>

/* The nodes of each group, the launches, and what buffers there are. */
static void find_groups(Flow *f) {
    Graph *g = f->g;
    for (int v = 0; v < g->values.len; v++) f->root[v].i = (uint32_t)v;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        OpKind kind = op_info[n->op].kind;
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

/* What each group reads from outside. */
static void find_reads(Flow *f) {
    Graph *g = f->g;
    int total = 0;
    for (int i = 0; i < g->order.len; i++)
        total += node_get(g, g->order.data[i])->nin;
    f->read = NEW_ARRAY(f->a, ValueId, total + 1);
    int *mark = NEW_ARRAY(f->a, int, g->values.len); /* + 1, by root */
    for (int i = 0; i < f->ngroup; i++) {
        int at = f->read_at[i];
        for (int j = f->first[i]; j < f->end[i]; j++) {
            const Node *n = node_get(g, g->order.data[j]);
            for (int k = 0; k < n->nin; k++) {
                if (!is_value(n->in[k]) || value_is_immediate(g, n->in[k]))
                    continue;
                ValueId r = f->root[n->in[k].i];
                if (f->def[r.i] == i || mark[r.i] == i + 1) continue;
                mark[r.i] = i + 1;
                f->read[at++] = r;
                f->crowded[r.i] = f->last[r.i] >= f->from[i];
                f->last[r.i] = i;
                if (f->def[r.i] >= 0) f->stored[r.i] = true;
            }
        }
        f->read_at[i + 1] = at;
    }
}

static void keep(Flow *f, ValueId v) {
    ValueId r = f->root[v.i];
    f->last[r.i] = f->ngroup;
    if (f->def[r.i] >= 0) f->stored[r.i] = true;
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
    for (int i = 0; i < g->outputs.len; i++) keep(f, g->outputs.data[i].value);
    for (int i = 0; i < g->writes.len; i++) keep(f, g->writes.data[i].value);
    return f;
}

int64_t flow_bytes(const Flow *f, ValueId root) {
    return type_bytes(value_type(f->g, root));
}
