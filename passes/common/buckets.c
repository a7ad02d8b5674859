/* buckets.c: which gradients are summed over ranks together.
   Before:  graph micro:  write %ampc.grad/a = %a.sum    # last in backward
                          write %ampc.grad/b = %b.sum    # first
   After:                 write %ampc.grad/a = %a.sum bucket 2
                          write %ampc.grad/b = %b.sum bucket 1
   Every gradient is in one bucket, in the order in which backward makes them,
   so that the sum of one begins while the next are still computed (PLAN_SUM).
   A bucket ends before it would exceed --comm-bucket; one gradient alone may.
   In a session without ranks nothing is summed.
   requires     stage PRIMITIVE, types chosen
   establishes  buckets from 1 on, in all programs that sum gradients        */
#include "passes/passes.h"

#include <stdlib.h>

typedef struct Made {
    int at, write; /* position of the maker; index in g->writes */
} Made;

static int by_position(const void *a, const void *b) {
    const Made *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x->write - y->write;
}

static void fill_buckets(Graph *g, PassCtx *cx) {
    const int *at = graph_positions(g, cx->scratch);
    Made *made = NEW_ARRAY(cx->scratch, Made, g->writes.len + 1);
    int n = 0, bucket = 1;
    int64_t sum = 0;
    for (int i = 0; i < g->writes.len; i++) {
        const Value *x = value_get(g, g->writes.data[i].value);
        if (value_var(g, g->writes.data[i].var)->kind != VAR_GRAD) continue;
        made[n++] = (Made){x->kind == VK_RESULT ? at[x->def.i] : -1, i};
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

Status pass_buckets(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++)
        if (m->graphs.data[i]->program == PROGRAM_MICRO)
            fill_buckets(m->graphs.data[i], cx);
    return OK;
}
