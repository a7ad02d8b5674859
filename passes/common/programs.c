/* programs.c: one graph per program.
   Before:  graph forward
   After:   graph train    the loss alone, batch statistics, dropout
            graph eval     per-sample loss and hits, then the model's outputs
            graph predict  the model's outputs
   In eval and predict batch_norm reads the running statistics, dropout is the
   identity and nothing is written.
   eval reports sums over samples, so that a padded last batch can be masked
   exactly: ampc.loss_num[B] / ampc.loss_den[B], ampc.correct[B] /
   ampc.count[B].  A loss that is no mean over samples is reported as it is
   (ampc.loss).
   requires     stage TYPED, output "ampc.loss" (absent: predict only)      */
#include "passes/passes.h"
#include "passes/common/rewrite.h"

#include <string.h>

static Output *find_output(Graph *g, const char *name) {
    Str want = intern(name);
    for (int i = 0; i < g->outputs.len; i++)
        if (g->outputs.data[i].name == want) return &g->outputs.data[i];
    return NULL;
}

static void add_output(Graph *g, const char *name, ValueId v) {
    Output o = {intern(name), v};
    vec_push(g->arena, &g->outputs, o);
}

static void drop_loss(Graph *g) {
    int kept = 0;
    for (int i = 0; i < g->outputs.len; i++)
        if (strcmp(g->outputs.data[i].name, "ampc.loss"))
            g->outputs.data[kept++] = g->outputs.data[i];
    g->outputs.len = kept;
}

/* ---- inference forms --------------------------------------------------------
 */

static bool inference_rule(Rewriter *rw, NodeId id, ValueId *with) {
    const Node *n = node_get(rw->g, id);
    if (n->op == OP_DROPOUT) {
        with[0] = n->in[0];
        return true;
    }
    if (n->op != OP_BATCH_NORM || !attr_int(n, AK_training, 0)) return false;
    Attr a[] = {attr_f(AK_epsilon, attr_float(n, AK_epsilon, 1e-5)),
                attr_i(AK_training, 0)};
    DType d = value_dtype(rw->g, n->out[0]);
    with[0] = build(&rw->b, OP_BATCH_NORM, n->in, n->nin, a, 2, d, NULL);
    return true;
}

static void make_inference(Graph *g, Arena *scratch) {
    g->writes.len = 0;
    rewrite_graph(g, scratch, inference_rule, NULL);
}

/* ---- per-sample loss ----------------------------------------------------- */

/* Looks through the casts and reshapes that a scalar loss may wear. */
static const Node *loss_node(const Graph *g, ValueId v) {
    for (;;) {
        const Value *val = value_get(g, v);
        if (val->kind != VK_RESULT) return NULL;
        const Node *n = node_get(g, val->def);
        if (n->op != OP_CAST && n->op != OP_RESHAPE) return n;
        v = n->in[0];
    }
}

/* x[B, ...] summed to [B]; false if its first dim is not the batch. */
static bool sum_samples(Builder *b, ValueId x, int64_t batch, ValueId *out) {
    Type t = *value_type(b->g, x);
    if (t.rank < 1 || t.dim[0] != batch) return false;
    int64_t axes[MAX_RANK];
    for (int i = 1; i < t.rank; i++) axes[i - 1] = i;
    *out = b_cast(b, x, DT_F32);
    if (t.rank > 1)
        *out =
            b_reduce(b, OP_REDUCE_SUM, *out, axes, t.rank - 1, false, DT_F32);
    return true;
}

/* 1 where the target counts, else 0; f32, shaped like the target */
static ValueId kept_targets(Builder *b, const Node *loss) {
    ValueId t = loss->in[1];
    const Attr *ignore = attr_find(loss, AK_ignore_index);
    Type ty = *value_type(b->g, t);
    if (!ignore) return b_full(b, type_make(DT_F32, ty.rank, ty.dim), 1);
    ValueId k = graph_scalar_int(b->g, ty.dtype, ignore->u.i);
    ValueId same = b2(b, OP_EQUAL, t, k, DT_DEFAULT);
    return b_cast(b, b1(b, OP_NOT, same, DT_DEFAULT), DT_F32);
}

static void add_accuracy(Builder *b, const Node *loss, ValueId kept,
                         int64_t batch) {
    Graph *g = b->g;
    int axis =
        axis_norm(attr_int(loss, AK_axis, 1), value_type(g, loss->in[0])->rank);
    Attr a[] = {attr_i(AK_axis, axis), attr_i(AK_keepdims, 0)};
    ValueId in[] = {loss->in[0]};
    ValueId best = build(b, OP_ARGMAX, in, 1, a, 2, DT_DEFAULT, NULL);
    ValueId want = b_cast(b, loss->in[1], DT_I64);
    ValueId hit = b_cast(b, b2(b, OP_EQUAL, best, want, DT_DEFAULT), DT_F32);
    ValueId correct, count;
    if (!sum_samples(b, b2(b, OP_MUL, hit, kept, DT_F32), batch, &correct) ||
        !sum_samples(b, kept, batch, &count))
        return;
    g->module->class_axis = axis;
    add_output(g, "ampc.correct", correct);
    add_output(g, "ampc.count", count);
}

/* The class losses: the same node without its reduction. */
static bool split_class_loss(Builder *b, Node loss, int64_t batch) {
    Graph *g = b->g;
    bool mean = !strcmp(attr_str(&loss, AK_reduction, "mean"), "mean");
    bool weighted = loss.nin > 2 && loss.in[2].i;
    ValueId kept = kept_targets(b, &loss), num, den;
    if (!mean || weighted) {
        add_accuracy(b, &loss, kept, batch);
        return false;
    }
    Attr a[4] = {attr_i(AK_axis, attr_int(&loss, AK_axis, 1)),
                 attr_s(AK_reduction, "none")};
    int na = 2;
    const Attr *ignore = attr_find(&loss, AK_ignore_index);
    const Attr *smooth = attr_find(&loss, AK_label_smoothing);
    if (ignore) a[na++] = *ignore;
    if (smooth) a[na++] = *smooth;
    DType d[] = {DT_F32, DT_F32};
    NodeId n = build_multi(b, loss.op, loss.in, 2, a, na, loss.nout, d, NULL);
    ValueId each = node_get(g, n)->out[0];
    bool ok =
        sum_samples(b, each, batch, &num) && sum_samples(b, kept, batch, &den);
    if (ok) {
        add_output(g, "ampc.loss_num", num);
        add_output(g, "ampc.loss_den", den);
    }
    add_accuracy(b, &loss, kept, batch);
    return ok;
}

/* A mean over everything: per-sample sums over the sample's share. */
static bool split_mean(Builder *b, Node mean, int64_t batch) {
    Graph *g = b->g;
    Type t = *value_type(g, mean.in[0]);
    const int64_t *axes;
    ValueId num;
    if (attr_ints(&mean, AK_axes, &axes) != t.rank ||
        !sum_samples(b, mean.in[0], batch, &num))
        return false;
    int64_t share = type_count(&t) / (batch ? batch : 1);
    add_output(g, "ampc.loss_num", num);
    add_output(g, "ampc.loss_den",
               b_full(b, type_make(DT_F32, 1, &batch), (double)share));
    return true;
}

static int64_t batch_of(const Graph *g) {
    for (int i = 0; i < g->inputs.len; i++) {
        const Type *t = value_type(g, g->inputs.data[i]);
        if (t->rank) return t->dim[0];
    }
    return 0;
}

static void eval_outputs(Graph *g) {
    Builder b = {.g = g};
    ValueId scalar = find_output(g, "ampc.loss")->value;
    const Node *n = loss_node(g, scalar);
    int64_t batch = batch_of(g);
    drop_loss(g);
    bool split = false;
    if (n && (n->op == OP_SOFTMAX_CROSS_ENTROPY || n->op == OP_NLL_LOSS))
        split = split_class_loss(&b, *n, batch);
    else if (n && n->op == OP_REDUCE_MEAN)
        split = split_mean(&b, *n, batch);
    if (!split) add_output(g, "ampc.loss", scalar);
}

/* ---- the pass ------------------------------------------------------------ */

static void keep_only_loss(Graph *g) {
    Output o = *find_output(g, "ampc.loss");
    g->outputs.len = 0;
    vec_push(g->arena, &g->outputs, o);
}

/* Inputs that only the loss reads (targets) are no inputs of predict. */
static void drop_unused_inputs(Graph *g, Arena *scratch) {
    int *uses = graph_use_counts(g, scratch), kept = 0;
    for (int i = 0; i < g->inputs.len; i++)
        if (uses[g->inputs.data[i].i])
            g->inputs.data[kept++] = g->inputs.data[i];
    g->inputs.len = kept;
}

Status pass_programs(Module *m, PassCtx *cx) {
    Graph *f = module_graph(m, "forward");
    if (!f) return OK;
    bool trains = find_output(f, "ampc.loss") != NULL;
    if (trains) {
        Graph *train = graph_clone(f, "train");
        keep_only_loss(train);
        if (options_has_scaler(cx->opt)) {
            int v = module_var(m, VAR_STATE, "ampc.scale", type_scalar(DT_F32),
                               NULL, cx->opt->scale.init);
            graph_var(train, v);
        }
        Graph *eval = graph_clone(f, "eval");
        make_inference(eval, cx->scratch);
        eval_outputs(eval);
    }
    Graph *predict = graph_clone(f, "predict");
    make_inference(predict, cx->scratch);
    drop_loss(predict);
    module_remove_graph(m, "forward");
    TRY(pass_dce(m, cx));
    drop_unused_inputs(module_graph(m, "predict"), cx->scratch);
    return OK;
}
