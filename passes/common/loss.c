/* loss.c: give the forward graph the scalar loss of each objective.
   Before:  return %logits
   After:   input %target; %loss = softmax_cross_entropy %logits, %target
            return %logits, ampc.loss=%loss
   --loss auto takes the model's own single floating one-element output.
   requires     stage TYPED, graph "forward"
   establishes  an output "ampc.loss" (f32[]), unless --loss none           */
#include "passes/passes.h"

#include <limits.h>
#include <string.h>

static Status no_loss(PassCtx *cx, const Graph *g, const char *why) {
    StrBuf names = {0};
    for (int i = 0; i < g->outputs.len; i++) {
        sb_puts(&names, i ? ", " : "");
        sb_put_escaped(&names, g->outputs.data[i].name);
        sb_puts(&names, " ");
        sb_put_type(&names, value_get(g, g->outputs.data[i].value)->type);
    }
    Status s = fail(cx->diag, (Loc){.file = g->module->file},
                    "%s; outputs: %s. Choose with --loss "
                    "cross_entropy|nll|mse|l1|huber|bce_with_logits[:OUTPUT], "
                    "or --loss none for an inference module",
                    why, names.data ? names.data : "(none)");
    sb_free(&names);
    return s;
}

static Status loss_auto(Graph *g, PassCtx *cx, ValueId *loss) {
    int found = 0;
    for (int i = 0; i < g->outputs.len; i++) {
        ValueId v = g->outputs.data[i].value;
        const Type *t = value_type(g, v);
        if (!dtype_is_float(t->dtype) || type_count(t) != 1) continue;
        *loss = v;
        found++;
    }
    if (found == 0)
        return no_loss(cx, g, "the model has no output that is one number");
    if (found > 1) return no_loss(cx, g, "several outputs could be the loss");
    return OK;
}

static Status pick_output(const Graph *g, PassCtx *cx, const LossSpec *l,
                          ValueId *v) {
    Str want = l->output;
    if (!want && g->outputs.len != 1)
        return no_loss(cx, g, "the loss needs an output to look at");
    for (int i = 0; i < g->outputs.len; i++) {
        *v = g->outputs.data[i].value;
        if (!want || g->outputs.data[i].name == want) return OK;
    }
    return no_loss(cx, g, "--loss names an output that does not exist");
}

/* design.md: 1 for rank 2 and rank >= 4, last for rank 3 */
static int class_axis(const LossSpec *l, int rank) {
    if (l->axis != INT_MIN) return axis_norm(l->axis, rank);
    return rank == 3 ? 2 : rank >= 2 ? 1 : -1;
}

static Status class_loss(Builder *b, PassCtx *cx, const LossSpec *l, ValueId x,
                         ValueId *loss) {
    Graph *g = b->g;
    Type t = *value_type(g, x);
    int axis = class_axis(l, t.rank);
    if (axis < 0) return no_loss(cx, g, "the output has no class axis");
    for (int i = axis; i + 1 < t.rank; i++) t.dim[i] = t.dim[i + 1];
    t.rank--;
    ValueId target = graph_input(g, "target", type_make(DT_I64, t.rank, t.dim));
    Attr a[] = {attr_i(AK_axis, axis), attr_i(AK_ignore_index, l->ignore_index),
                attr_s(AK_reduction, "mean"),
                attr_f(AK_label_smoothing, l->label_smoothing)};
    ValueId in[] = {x, target};
    bool nll = l->kind == LOSS_NLL;
    int na = nll ? 3 : l->label_smoothing > 0 ? 4 : 3;
    DType d[] = {DT_F32, DT_F32};
    NodeId n = build_multi(b, nll ? OP_NLL_LOSS : OP_SOFTMAX_CROSS_ENTROPY, in,
                           2, a, na, nll ? 1 : 2, d, NULL);
    *loss = node_get(g, n)->out[0];
    return OK;
}

/* huber: d^2/2 for |d| < delta, else delta (|d| - delta/2) */
static ValueId huber(Builder *b, ValueId d, double delta) {
    ValueId a = b1(b, OP_ABS, d, DT_F32);
    ValueId half = b_scalar(b, DT_F32, 0.5), k = b_scalar(b, DT_F32, delta);
    ValueId inner = b2(b, OP_MUL, half, b2(b, OP_MUL, d, d, DT_F32), DT_F32);
    ValueId shifted = b2(b, OP_SUB, a, b_scalar(b, DT_F32, delta / 2), DT_F32);
    ValueId outer = b2(b, OP_MUL, k, shifted, DT_F32);
    return b3(b, OP_WHERE, b2(b, OP_LESS, a, k, DT_DEFAULT), inner, outer,
              DT_F32);
}

/* -(y log s(x) + (1-y) log s(-x)) = (1-y) x - log s(x) */
static ValueId bce_with_logits(Builder *b, ValueId x, ValueId y) {
    ValueId one = b_scalar(b, DT_F32, 1);
    ValueId rest = b2(b, OP_SUB, one, y, DT_F32);
    return b2(b, OP_SUB, b2(b, OP_MUL, rest, x, DT_F32),
              b1(b, OP_LOG_SIGMOID, x, DT_F32), DT_F32);
}

static Status regression_loss(Builder *b, const LossSpec *l, ValueId x,
                              ValueId *loss) {
    Graph *g = b->g;
    Type t = *value_type(g, x);
    ValueId y = graph_input(g, "target", type_make(DT_F32, t.rank, t.dim));
    ValueId e;
    if (l->kind == LOSS_BCE_LOGITS) {
        e = bce_with_logits(b, x, y);
    } else {
        ValueId d = b2(b, OP_SUB, x, y, DT_F32);
        e = l->kind == LOSS_MSE  ? b2(b, OP_MUL, d, d, DT_F32)
            : l->kind == LOSS_L1 ? b1(b, OP_ABS, d, DT_F32)
                                 : huber(b, d, l->delta);
    }
    int64_t axes[MAX_RANK];
    for (int i = 0; i < t.rank; i++) axes[i] = i;
    *loss = t.rank ? b_reduce(b, OP_REDUCE_MEAN, e, axes, t.rank, false, DT_F32)
                   : e;
    return OK;
}

static Status check_float(PassCtx *cx, const Graph *g, ValueId x) {
    if (dtype_is_float(value_dtype(g, x))) return OK;
    return no_loss(cx, g, "the loss needs a floating-point output");
}

static Status add_loss(Graph *g, PassCtx *cx, const Objective *j) {
    const LossSpec *l = &j->loss;
    Builder b = {.g = g};
    ValueId x = NO_VALUE, loss = NO_VALUE;
    if (l->kind == LOSS_AUTO) {
        TRY(loss_auto(g, cx, &loss));
    } else {
        TRY(pick_output(g, cx, l, &x));
        TRY(check_float(cx, g, x));
        if (l->kind == LOSS_CROSS_ENTROPY || l->kind == LOSS_NLL)
            TRY(class_loss(&b, cx, l, x, &loss));
        else
            TRY(regression_loss(&b, l, x, &loss));
    }
    if (value_type(g, loss)->rank) loss = b_reshape(&b, loss, 0, NULL);
    graph_add_output(g, own_output(OUT_LOSS, j->name),
                     b_cast(&b, loss, DT_F32));
    return OK;
}

/* Frontends refuse such names; a text may hold anything. */
static Status check_names(const Graph *g, PassCtx *cx) {
    for (int i = 0; i < g->outputs.len; i++)
        if (name_is_own(g->outputs.data[i].name))
            return fail(cx->diag, (Loc){.file = g->module->file},
                        "output '%s' of graph %s: names that start with "
                        "'ampc.' are the compiler's",
                        g->outputs.data[i].name, g->name);
    return OK;
}

Status pass_loss(Module *m, PassCtx *cx) {
    Graph *g = module_graph(m, FORWARD);
    if (!g) return OK;
    TRY(check_names(g, cx));
    for (int i = 0; i < cx->opt->objectives.len; i++) {
        const Objective *j = &cx->opt->objectives.data[i];
        if (j->loss.kind != LOSS_NONE) TRY(add_loss(g, cx, j));
    }
    return OK;
}
