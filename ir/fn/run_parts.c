/* SPDX-License-Identifier: Apache-2.0 */
/* run_parts.c: runs the body and the parts of a function for given operands. */
#include "ir/fn/run.h"

Status fn_run(Builder *b, const FnCall *call, const FnPart *part, ValueId *out,
              char *msg) {
    Run r = {0};
    Status s = run_start(&r, call, b, msg);
    if (s == OK) s = run_block(&r, &part->block);
    if (s == OK) s = run_results(&r, out);
    if (s == OK) graph_drop_unneeded(b->g, r.first, r.start, out, call->nout);
    arena_free(r.a);
    return s;
}

Status fn_run_samples(Builder *b, const FnCall *call, FnSamples *out,
                      char *msg) {
    static const char *const names[] = {"num", "den", "correct", "count"};
    ValueId *to[] = {&out->num, &out->den, &out->correct, &out->count};
    Run r = {0};
    Status s = run_start(&r, call, b, msg);
    if (s == OK) s = run_block(&r, &call->fn->samples.block);
    for (int i = 0; i < 4 && s == OK; i++) {
        Str name = intern(names[i]);
        s = run_take_value(&r, run_lookup(&r, name), name, DT_F32, to[i]);
    }
    arena_free(r.a);
    return s;
}

static Status take_gradient(Run *r, int i, ValueId *out) {
    bool rule = r->fn->rule;
    Str name = r->fn->grad.out.data[r->fn->all_in ? 0 : i];
    const Val *v = run_lookup(r, name);
    DType d = r->call->want[i];
    if (r->fn->all_in) v = &v->list[i];
    TRY(run_take_value(r, v, name, rule ? NUM_DTYPES : d, out));
    if (rule && is_value(*out) && !v->typed && d != NUM_DTYPES &&
        value_dtype(r->b->g, *out) != d)
        node_store(r->b->g, r->first, r->start, *out, d);
    return OK;
}

/* Names of the body stay bound in the grad part: values that the forward
   pass also computes become one value when equal nodes are merged. */
static Status grad_of(Run *r, const ValueId *result, const ValueId *gout,
                      ValueId *gin) {
    const FnCall *c = r->call;
    const FnPart *part = &r->fn->grad;
    bool all = r->fn->all_out;
    TRY(run_block(r, &r->fn->body.block));
    for (int i = 0; i < (all ? 1 : c->nout); i++)
        run_bind(r, r->fn->results.data[i].name,
                 all ? val_list(r, result, c->nout) : val_tensor(result[i]));
    for (int i = 0; i < part->in.len; i++)
        run_bind(r, part->in.data[i],
                 all ? val_list(r, gout, c->nout)
                     : val_tensor(i < c->nout ? gout[i] : NO_VALUE));
    TRY(run_block(r, &part->block));
    for (int i = 0; i < c->nin; i++) {
        gin[i] = NO_VALUE;
        if (r->fn->all_in || i < part->out.len)
            TRY(take_gradient(r, i, &gin[i]));
    }
    graph_drop_unneeded(r->b->g, r->first, r->start, gin, c->nin);
    return OK;
}

Status fn_run_grad(Builder *b, const FnCall *call, const ValueId *result,
                   const ValueId *gout, ValueId *gin, char *msg) {
    Run r = {0};
    Status s = run_start(&r, call, b, msg);
    if (s == OK) s = grad_of(&r, result, gout, gin);
    arena_free(r.a);
    return s;
}

/* ---- attributes ---------------------------------------------------------- */

Status fn_default(const Fn *fn, Graph *g, const ValueId *in, int nin,
                  const FnAttr *attr, Attr *out, char *msg) {
    Run r = {0};
    Builder b = {.g = g};
    FnCall call = {.fn = fn, .in = in, .nin = nin};
    bool found;
    run_open(&r, &call, &b, msg);
    Status s = run_attr(&r, attr, out, &found);
    if (attr_get(attr->key)->kind == ATTR_INTS && s == OK && out->u.ints.n)
        out->u.ints.v = arena_dup(g->arena, out->u.ints.v,
                                  (size_t)out->u.ints.n * sizeof(int64_t));
    arena_free(r.a);
    return s;
}
