/* SPDX-License-Identifier: Apache-2.0 */
/* buckets.c: groups the gradients that are summed over ranks together.
   Before:  graph micro:  write %ampc.grad/a = %a.sum    # last in backward
                          write %ampc.grad/b = %b.sum    # first
   After:                 write %ampc.grad/a = %a.sum bucket 2
                          write %ampc.grad/b = %b.sum bucket 1
   Every gradient is in one bucket, in the order in which backward makes them,
   so that the sum of one begins while the next are still computed (PLAN_SUM).
   A bucket ends before it would exceed --comm-bucket; only a bucket of one
   gradient may exceed it. In a session without ranks nothing is summed.
   requires     stage PRIMITIVE, types chosen
   establishes  buckets from 1 on, in all programs that sum gradients        */
#include "passes/passes.h"

#include <stdlib.h>

typedef struct Made {
    int at, write; /* when backward has computed it; index in g->writes */
} Made;

static int by_position(const void *a, const void *b) {
    const Made *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x->write - y->write;
}

/* For each value, the position of the last backward node that it depends on.
   Sums with gradients of earlier micro-steps count as the end of backward. */
static int *ready_at(const Graph *g, Arena *scratch) {
    int *at = NEW_ARRAY(scratch, int, g->values.len + 1);
    for (int i = 0; i < g->values.len; i++) at[i] = -1;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        int last = n->flags & NODE_UPDATE ? -1 : i;
        for (int k = 0; k < n->nin; k++)
            if (is_value(n->in[k]) && at[n->in[k].i] > last)
                last = at[n->in[k].i];
        for (int k = 0; k < n->nout; k++) at[n->out[k].i] = last;
    }
    return at;
}

static void fill_buckets(Graph *g, PassCtx *cx) {
    const int *at = ready_at(g, cx->scratch);
    Made *made = NEW_ARRAY(cx->scratch, Made, g->writes.len + 1);
    int n = 0, bucket = 1;
    int64_t sum = 0;
    for (int i = 0; i < g->writes.len; i++) {
        const Write *w = &g->writes.data[i];
        if (value_var(g, w->var)->kind != VAR_GRAD) continue;
        made[n++] = (Made){at[w->value.i], i};
    }
    if (n) qsort(made, (size_t)n, sizeof *made, by_position);
    for (int i = 0; i < n; i++) {
        Write *w = &g->writes.data[made[i].write];
        int64_t bytes = type_bytes(value_type(g, w->var));
        if (i && bytes > cx->opt->comm_bucket - sum) {
            bucket++;
            sum = 0;
        }
        sum += bytes;
        w->bucket = bucket;
    }
}

/* Ranks may compute programs of different sizes in one step: they send the same
   buckets. */
static void take_buckets(Graph *g, const Graph *own) {
    for (int i = 0; i < g->writes.len; i++)
        for (int k = 0; k < own->writes.len; k++)
            if (value_get(g, g->writes.data[i].var)->var ==
                value_get(own, own->writes.data[k].var)->var)
                g->writes.data[i].bucket = own->writes.data[k].bucket;
}

Status pass_buckets(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        if (g->program != PROGRAM_MICRO) continue;
        if (*g->size)
            take_buckets(g, module_program(m, PROGRAM_MICRO, g->objective));
        else
            fill_buckets(g, cx);
    }
    return OK;
}
