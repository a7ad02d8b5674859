/* SPDX-License-Identifier: Apache-2.0 */
/* programs.c: one graph per program.
   Before:  graph forward
   After:   graph train    the loss alone, batch statistics, dropout; one for
                           each objective
            graph eval     per-sample loss and hits, then the model's outputs
            graph predict  the model's outputs
            graph outputs  the outputs in training mode, for a loss in the host
   and graphs forward@SIZE, for other sizes, to eval@SIZE and predict@SIZE,
   and to train@SIZE if training has several sizes, too. In eval and
   predict functions take their inference form (batch_norm reads the running
   statistics, dropout is the identity) and nothing is written. eval reports
   sums over samples, so that a padded last batch can be masked exactly:
   ampc.loss_num[B] / ampc.loss_den[B], ampc.correct[B] / ampc.count[B].  A loss
   that is not a mean over samples is reported unchanged (ampc.loss).
   requires     stage TYPED, an output "ampc.loss" for each objective that
                trains (none: predict only)                                  */
#include "ir/fn/fn.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

#include <string.h>

/* In graph forward the losses are the only outputs that are not the model's
   own. */
static void drop_losses(Graph *g) {
    int kept = 0;
    for (int i = 0; i < g->outputs.len; i++)
        if (!name_is_own(g->outputs.data[i].name))
            g->outputs.data[kept++] = g->outputs.data[i];
    g->outputs.len = kept;
}

/* ---- inference forms ----------------------------------------------------- */

static bool inference_rule(Rewriter *rw, NodeId id, ValueId *with) {
    Node n = *node_get(rw->g, id); /* building may move the pool */
    char msg[MSG_TEXT];
    if (!n.fn || !n.fn->inference.given) return false;
    FnCall call = fn_call(&n);
    DType d = value_dtype(rw->g, n.out[0]);
    call.nout = 1;
    call.want = &d;
    Status s = fn_run(&rw->b, &call, &call.fn->inference, with, msg);
    ASSERT(s == OK && "an inference part takes what its function takes");
    return true;
}

static void make_inference(Graph *g, Arena *scratch) {
    g->writes.len = 0;
    rewrite_graph(g, scratch, inference_rule, NULL);
}

/* ---- per-sample loss ----------------------------------------------------- */

static bool is_per_sample(const Graph *g, ValueId v, int64_t batch) {
    if (!is_value(v)) return false;
    const Type *t = value_type(g, v);
    return t->rank == 1 && t->dim[0] == batch;
}

static void top_hits(Builder *b, Str objective, const Node *loss, Attr axis,
                     int64_t top_k) {
    const Fn *fn = fn_std("top_hits");
    Attr attrs[3] = {axis, attr_named_i("best", top_k)};
    bool ignores = call_attr(b->g, loss, "ignore_index", &attrs[2]);
    NodeId hits =
        build_call(b, fn, loss->in, 2, attrs, ignores ? 3 : 2, 1, NULL);
    graph_add_output(b->g, own_output(OUT_CORRECT_TOP, objective),
                     node_get(b->g, hits)->out[0]);
}

/* A term of the loss, which is a sum of means over samples times constants. */
typedef struct Term {
    Node node;
    double factor;
    ValueId num, den; /* sums over the samples [B]; 0: none */
} Term;
enum { TERMS = 16 };

typedef struct Sum {
    Term term[TERMS];
    int n;
    Node classifies; /* the first term with operands; none: no term has any */
    ValueId correct, count;
} Sum;

/* Finds the terms of v, which may be any value; false: v is not such a sum.
   Looks through casts and reshapes. */
static bool find_terms(const Graph *g, ValueId v, double factor, Sum *s) {
    double x;
    const Node *n = NULL;
    for (;;) {
        if (value_get(g, v)->kind != VK_RESULT) return false;
        n = node_get(g, value_get(g, v)->def);
        if (n->fn || (n->op != OP_CAST && n->op != OP_RESHAPE)) break;
        v = n->in[0];
    }
    if (!n->fn && n->op == OP_ADD)
        return find_terms(g, n->in[0], factor, s) &&
               find_terms(g, n->in[1], factor, s);
    for (int i = 0; !n->fn && n->op == OP_MUL && i < 2; i++)
        if (value_is_splat(g, n->in[i], &x))
            return find_terms(g, n->in[1 - i], factor * x, s);
    if (s->n == TERMS) return false;
    s->term[s->n++] = (Term){.node = *n, .factor = factor};
    return n->fn ? n->fn->samples.given : n->op == OP_REDUCE_MEAN;
}

/* A call of a loss as its sums per sample, by the loss's own definition. */
static void split_call(Builder *b, Sum *sum, Term *t, int64_t batch) {
    Graph *g = b->g;
    char msg[MSG_TEXT];
    FnSamples s;
    Node loss = t->node;
    FnCall call = fn_call(&loss);
    Status ok = fn_run_samples(b, &call, &s, msg);
    ASSERT(ok == OK && "a samples part takes what its function takes");
    if (is_per_sample(g, s.num, batch)) {
        t->num = s.num;
        t->den = s.den;
    }
    if (!is_per_sample(g, s.correct, batch) || sum->classifies.nin) return;
    sum->classifies = loss;
    sum->correct = s.correct;
    sum->count = s.count;
}

/* Hits of the first classification among the terms. */
static void report_hits(Builder *b, Str objective, const Sum *s,
                        int64_t top_k) {
    Graph *g = b->g;
    Attr axis;
    if (!s->classifies.nin) return;
    call_attr(g, &s->classifies, "axis", &axis);
    g->module->class_axis = (int)axis.u.i;
    graph_add_output(g, own_output(OUT_CORRECT, objective), s->correct);
    graph_add_output(g, own_output(OUT_COUNT, objective), s->count);
    if (top_k && dtype_is_int(value_dtype(g, s->classifies.in[1])))
        top_hits(b, objective, &s->classifies, axis, top_k);
}

/* A mean over all elements whose first axis is the batch: sums [B], each
   over the sample's share. */
static void split_mean(Builder *b, Term *term, int64_t batch) {
    Graph *g = b->g;
    Node mean = term->node;
    Type t = *value_type(g, mean.in[0]);
    const int64_t *all;
    int64_t axes[MAX_RANK];
    if (attr_ints(&mean, AK_axes, &all) != t.rank || t.rank < 1 ||
        t.dim[0] != batch)
        return;
    for (int i = 1; i < t.rank; i++) axes[i - 1] = i;
    term->num = b_cast(b, mean.in[0], DT_F32);
    if (t.rank > 1)
        term->num = b_reduce(b, OP_REDUCE_SUM, term->num, axes, t.rank - 1,
                             false, DT_F32);
    int64_t share = type_count(&t) / (batch ? batch : 1);
    term->den = b_full(b, type_make(DT_F32, 1, &batch), (double)share);
}

/* True if each sample has the same weight in the mean: then a sum of such
   means is a mean, too. */
static bool samples_count_alike(const Graph *g, const Term *t) {
    Attr x;
    const Fn *fn = t->node.fn;
    if (!fn) return true;
    if (fn_attr(fn, "ignore_index") &&
        call_attr(g, &t->node, "ignore_index", &x))
        return false;
    return fn_loss_target(fn) < 0 || t->node.nin <= fn_loss_target(fn) + 1;
}

/* The sum of factor num / den, over 1 per sample; a single term keeps its
   own den. */
static bool report_sum(Builder *b, Str objective, Sum *s, int64_t batch) {
    ValueId num = NO_VALUE, den = s->term[0].den;
    for (int i = 0; i < s->n; i++) {
        Term *t = &s->term[i];
        if (!is_value(t->num) || (s->n > 1 && !samples_count_alike(b->g, t)))
            return false;
        ValueId x = t->num;
        if (s->n > 1) x = b2(b, OP_DIV, x, t->den, DT_F32);
        if (t->factor != 1)
            x = b2(b, OP_MUL, x, b_scalar(b, DT_F32, t->factor), DT_F32);
        num = i ? b2(b, OP_ADD, num, x, DT_F32) : x;
    }
    if (s->n > 1) den = b_full(b, type_make(DT_F32, 1, &batch), 1);
    graph_add_output(b->g, own_output(OUT_LOSS_NUM, objective), num);
    graph_add_output(b->g, own_output(OUT_LOSS_DEN, objective), den);
    return true;
}

/* Reports the scalar `loss` in eval. */
static void report_loss(Graph *g, Str objective, ValueId loss, int64_t top_k) {
    Builder b = {.g = g};
    Sum s = {.n = 0};
    int64_t batch = 0;
    for (int i = g->inputs.len - 1; i >= 0; i--) {
        const Type *t = value_type(g, g->inputs.data[i]);
        if (t->rank) batch = t->dim[0];
    }
    bool sum = find_terms(g, loss, 1, &s);
    for (int i = 0; i < s.n; i++) {
        Term *t = &s.term[i];
        if (t->node.fn && t->node.fn->samples.given)
            split_call(&b, &s, t, batch);
        else if (!t->node.fn && t->node.op == OP_REDUCE_MEAN)
            split_mean(&b, t, batch);
    }
    sum = sum && report_sum(&b, objective, &s, batch);
    report_hits(&b, objective, &s, top_k);
    if (!sum) graph_add_output(g, own_output(OUT_LOSS, objective), loss);
}

/* ---- the pass ------------------------------------------------------------ */

/* With several objectives each program runs only the nodes that its loss
   needs: running statistics that the loss does not read stay unchanged. */
static void drop_writes(Graph *g, Arena *scratch, ValueId loss) {
    const bool *needed = needed_by(g, scratch, &loss, 1);
    bool *off = NEW_ARRAY(scratch, bool, g->values.len);
    int kept = 0;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        bool any = is_call(n, "batch_norm");
        for (int k = 0; k < n->nout; k++) any &= !needed[n->out[k].i];
        for (int k = 0; k < n->nin; k++) any |= off[n->in[k].i];
        for (int k = 0; k < n->nout; k++) off[n->out[k].i] = any;
    }
    for (int i = 0; i < g->writes.len; i++)
        if (!off[g->writes.data[i].value.i])
            g->writes.data[kept++] = g->writes.data[i];
    g->writes.len = kept;
}

static void drop_inputs(Graph *g, Arena *scratch) {
    const int *uses = graph_use_counts(g, scratch);
    int kept = 0;
    for (int i = 0; i < g->inputs.len; i++)
        if (uses[g->inputs.data[i].i])
            g->inputs.data[kept++] = g->inputs.data[i];
    g->inputs.len = kept;
}

/* --top-k needs a classification loss with at least K classes. */
static Status check_top_k(const Graph *g, PassCtx *cx) {
    Loc at = {.file = g->module->file};
    bool any = false;
    for (int i = 0; i < cx->opt->objectives.len; i++) {
        Str name = cx->opt->objectives.data[i].name;
        any |= is_value(graph_output(g, own_output(OUT_CORRECT_TOP, name)));
    }
    if (!any)
        return fail(cx->diag, at,
                    "--top-k %lld: the loss is not a classification loss",
                    (long long)cx->opt->top_k);
    return OK;
}

static Status make_eval(const Graph *f, PassCtx *cx) {
    Str name = program_name(PROGRAM_EVAL, intern(""));
    Graph *g = graph_clone(f, name_at_size(name, f->size));
    int n = cx->opt->objectives.len;
    const Objective *j = cx->opt->objectives.data;
    ValueId *loss = NEW_ARRAY(cx->scratch, ValueId, n);
    make_inference(g, cx->scratch);
    for (int i = 0; i < n; i++)
        loss[i] = graph_output(g, own_output(OUT_LOSS, j[i].name));
    drop_losses(g);
    for (int i = 0; i < n; i++)
        if (is_value(loss[i]) && j[i].loss.kind != LOSS_HOST)
            report_loss(g, j[i].name, loss[i], cx->opt->top_k);
    return cx->opt->top_k ? check_top_k(g, cx) : OK;
}

/* Turns graph forward into predict. */
static void make_predict(Graph *f, PassCtx *cx) {
    Module *m = f->module;
    Str name = program_name(PROGRAM_PREDICT, intern(""));
    module_remove_graph(m, f->name);
    graph_append(m, f, name_at_size(name, f->size));
    make_inference(f, cx->scratch);
    drop_losses(f);
}

/* One program that trains for each objective whose loss graph f has. */
static void make_train(const Graph *f, PassCtx *cx, const Objective *j,
                       ValueId loss) {
    Str name = program_name(PROGRAM_TRAIN, j->name);
    Graph *g = graph_clone(f, name_at_size(name, f->size));
    g->outputs.len = 0;
    graph_add_output(g, own_output(OUT_LOSS, j->name), loss);
    if (cx->opt->objectives.len > 1) drop_writes(g, cx->scratch, loss);
    if (options_has_scaler(cx->opt))
        graph_var(g, module_own_var(f->module, OWN_SCALE, j->name,
                                    cx->opt->scale.init));
}

static void make_outputs(const Graph *f) {
    Str name = program_name(PROGRAM_OUTPUTS, intern(""));
    Graph *all = graph_clone(f, name_at_size(name, f->size));
    drop_losses(all);
    all->writes.len = 0;
}

/* The programs of model f. Training has one batch size. */
static Status make_programs(Graph *f, PassCtx *cx) {
    bool reports = false, host = false, trains = !size_batch(f->size);
    for (int i = 0; i < cx->opt->objectives.len; i++) {
        const Objective *j = &cx->opt->objectives.data[i];
        ValueId loss = graph_output(f, own_output(OUT_LOSS, j->name));
        if (!is_value(loss)) continue;
        if (trains) make_train(f, cx, j, loss);
        *(j->loss.kind == LOSS_HOST ? &host : &reports) = true;
    }
    if (reports) TRY(make_eval(f, cx));
    if (host && trains) make_outputs(f);
    make_predict(f, cx);
    return OK;
}

Status pass_programs(Module *m, PassCtx *cx) {
    VEC(Graph *) models = {0};
    if (!module_graph(m, FORWARD)) return OK;
    for (int i = 0; i < m->graphs.len; i++) /* a text may contain anything */
        if (m->graphs.data[i]->program != PROGRAM_NONE)
            return fail(cx->diag, (Loc){.file = m->file},
                        "graph %s: a file with a graph %s, which the programs "
                        "are made from, cannot have programs itself",
                        m->graphs.data[i]->name, FORWARD);
    for (int i = 0; i < m->graphs.len; i++)
        if (graph_is_model(m->graphs.data[i]))
            vec_push(cx->scratch, &models, m->graphs.data[i]);
    for (int i = 0; i < models.len; i++) TRY(make_programs(models.data[i], cx));
    TRY(pass_dce(m, cx));
    /* predict reads no targets; train reads no other objective's targets */
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        if (g->program == PROGRAM_PREDICT || g->program == PROGRAM_OUTPUTS ||
            (g->program == PROGRAM_TRAIN && cx->opt->objectives.len > 1))
            drop_inputs(g, cx->scratch);
    }
    return OK;
}
