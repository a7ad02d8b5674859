/* SPDX-License-Identifier: Apache-2.0 */
/* samples.c: the weight of a micro-batch in the mean of a step, and samples
   that only fill a batch.
   Before:  %loss = softmax_cross_entropy %y, %target {ignore_index=-100}
            return ampc.loss=%loss
   After:   %rows = 1 for the first %ampc.valid samples, else 0
            %share = number of targets that count / number of targets
            %loss = softmax_cross_entropy %y, where(%rows, %target, -100)
            return ampc.loss=%loss * %ampc.shares, ampc.share=%share,
                   ampc.rows=%rows
   So the loss of a step, sum of ampc.loss / sum of ampc.share over its
   micro-batches and ranks, equals the loss of all its samples in one batch, and
   its gradients are equal, too. A mean over samples has the share of samples
   that count; a quotient of sums has its divisor; a sum has the constant 0,
   which says that losses are added up. Terms that are added must have the same
   share. With any other loss each micro-batch has the same weight: there is no
   ampc.share. Samples are masked only in the loss; so nothing is masked if one
   sample can affect another's loss or a running statistic (rows.h). Pass
   optimizer removes both outputs. It puts the share where %ampc.shares is read,
   which stands for it until then; in program train that and the rows are
   1, and simplify leaves the model's own loss.

   requires     stage TYPED; one graph per program, whose inputs were checked
   establishes  Module.masks: whether all objectives can mask samples        */
#include "passes/common/samples_impl.h"

#include <math.h>

static Pool samples_pool(Samples *s, ValueId v);

/* ---- masks --------------------------------------------------------------- */

ValueId samples_mask(Samples *s, ValueId v, Rows r) {
    Type t = *value_type(s->g, v);
    int64_t dim[MAX_RANK] = {1, s->batch, 1}, rank = t.rank - r.axis;
    ValueId m = s->valid;
    if (r.outer * r.inner > 1) {
        m = b_reshape(&s->b, m, 3, dim);
        dim[0] = r.outer;
        dim[2] = r.inner;
        Attr shape = attr_v(AK_shape, dim, 3);
        m = build(&s->b, OP_EXPAND, &m, 1, &shape, 1, DT_DEFAULT, NULL);
    }
    for (int i = 0; i < rank; i++) dim[i] = 1;
    dim[0] = t.dim[r.axis];
    return b_reshape(&s->b, m, (int)rank, dim);
}

bool samples_maskable(Samples *s, ValueId v) {
    Rows r = s->rows[v.i];
    if (s->masks && (!r.has || r.mixed)) s->fails = true;
    return s->masks && !s->fails;
}

/* Multiplies instead of selecting: a select would add guards to the
   gradients before it, and the samples that fill a batch are copies of
   others, thus finite. */
static ValueId samples_masked(Samples *s, ValueId v) {
    if (!samples_maskable(s, v)) return v;
    DType d = value_dtype(s->g, v);
    ValueId m = b_cast(&s->b, samples_mask(s, v, s->rows[v.i]), d);
    return b2(&s->b, OP_MUL, v, m, d);
}

ValueId samples_times(Samples *s, ValueId v, ValueId by) {
    return by.i ? b2(&s->b, OP_MUL, v, by, value_dtype(s->g, v)) : v;
}

/* ---- sums and quotients -------------------------------------------------- */

static bool is_linear(PoolKind k) {
    return k == POOL_MEAN || k == POOL_SUM || k == POOL_LABELS;
}

/* Node id with operand k replaced by the given one. */
static Pool again(Samples *s, NodeId id, int k, Pool p) {
    Node n = *node_get(s->g, id);
    ValueId in[2] = {n.in[0], n.nin > 1 ? n.in[1] : NO_VALUE};
    if (!is_linear(p.kind)) return pool_other();
    if (same_value(in[k], p.value)) {
        p.value = n.out[0];
        return p;
    }
    in[k] = p.value;
    p.value = node_get(s->g, build_again(&s->b, id, in))->out[0];
    return p;
}

static Pool samples_reduced(Samples *s, NodeId id) {
    Node n = *node_get(s->g, id);
    Pool p = samples_pool(s, n.in[0]);
    if (p.kind == POOL_EACH) {
        p.kind = n.op == OP_REDUCE_MEAN ? POOL_MEAN : POOL_SUM;
        p.nominal = (double)value_count(s->g, n.in[0]) /
                    (double)value_count(s->g, n.out[0]);
    }
    return again(s, id, 0, p);
}

/* A sum divided by the number of its samples or elements is a mean. */
static bool counts_them(const Samples *s, const Pool *sum, ValueId by) {
    double n;
    if (sum->kind != POOL_SUM || !value_is_splat(s->g, by, &n)) return false;
    if (n < (double)s->batch || n > sum->nominal || n != (double)(int64_t)n)
        return false;
    return (int64_t)n % s->batch == 0 &&
           (int64_t)sum->nominal % (int64_t)n == 0;
}

/* The divisor of a quotient: a *sum over samples, possibly bounded away from
   0 (`kept`). sum: the sum itself. */
static ValueId divisor(Samples *s, ValueId v, Pool *sum, bool *kept) {
    const Value *val = value_get(s->g, v);
    NodeId id = val->kind == VK_RESULT ? val->def : NO_NODE;
    *sum = samples_pool(s, v);
    if (sum->kind == POOL_MEAN || sum->kind == POOL_SUM || !id.i)
        return sum->value;
    Node n = *node_get(s->g, id);
    int k = 0;
    if (n.op == OP_ADD || n.op == OP_MAX)
        k = value_get(s->g, n.in[0])->kind == VK_CONST;
    else if (n.op != OP_CAST && n.op != OP_RESHAPE && n.op != OP_CLIP)
        return v;
    if (n.nin > 1 && value_get(s->g, n.in[1 - k])->kind != VK_CONST) return v;
    ValueId in[2] = {n.in[0], n.nin > 1 ? n.in[1] : NO_VALUE};
    *kept |= n.op == OP_ADD || n.op == OP_MAX || n.op == OP_CLIP;
    in[k] = divisor(s, in[k], sum, kept);
    if (same_value(in[k], n.in[k])) return v;
    return node_get(s->g, build_again(&s->b, id, in))->out[0];
}

ValueId samples_add_up(Samples *s, ValueId v) {
    int rank = value_type(s->g, v)->rank;
    int64_t axes[MAX_RANK];
    for (int i = 0; i < MAX_RANK; i++) axes[i] = i;
    return rank ? b_reduce(&s->b, OP_REDUCE_SUM, v, axes, rank, false, DT_F32)
                : v;
}

/* The nominal that all sizes of the model divide their next share by: that of
   the model's own sizes, so that micro-batches of several sizes add up. */
static double common_nominal(Samples *s, double nominal) {
    int k = s->shares++;
    if (!s->nominals) return nominal;
    if (!*s->g->size) vec_push(s->g->arena, s->nominals, nominal);
    return k < s->nominals->len ? s->nominals->data[k] : nominal;
}

ValueId samples_share_of(Samples *s, ValueId sum, double nominal) {
    nominal = common_nominal(s, nominal);
    ValueId x = b_reshape(&s->b, b_cast(&s->b, sum, DT_F32), 0, NULL);
    return b2(&s->b, OP_DIV, x, b_scalar(&s->b, DT_F32, nominal), DT_F32);
}

/* The share of a quotient whose model bounds its divisor `by` away from 0,
   as detectors do that divide by the number of objects: if there are no
   objects but the numerator is not 0, the share counts as `by`. */
static ValueId kept_share(Samples *s, ValueId num, ValueId by, ValueId share,
                          double nominal) {
    ValueId zero = b_scalar(&s->b, DT_F32, 0);
    ValueId all = b_cast(&s->b, num, DT_F32);
    all = samples_add_up(s, b1(&s->b, OP_ABS, all, DT_F32));
    ValueId alone = b2(&s->b, OP_GREATER, all, zero, DT_DEFAULT);
    alone = b_where(&s->b, alone, samples_share_of(s, by, nominal), zero);
    ValueId some = b2(&s->b, OP_GREATER, share, zero, DT_DEFAULT);
    return b_where(&s->b, some, share, alone);
}

/* sum(each * weight) / sum(weight), the weights known without parameters. If
   all weights are 0 it is NaN, like the mean of a library's loss, and has no
   gradient.
 */
static Pool quotient(Samples *s, NodeId id) {
    Node n = *node_get(s->g, id);
    Pool num = samples_pool(s, n.in[0]), den;
    if (s->rows[n.in[1].i].has) return pool_other();
    if (!s->rows[n.in[1].i].mixed) {
        if (counts_them(s, &num, n.in[1])) num.kind = POOL_MEAN;
        return again(s, id, 0, num);
    }
    bool kept = false;
    ValueId by = divisor(s, n.in[1], &den, &kept);
    bool sums = (num.kind == POOL_SUM || num.kind == POOL_MEAN) &&
                (den.kind == POOL_SUM || den.kind == POOL_MEAN);
    if (!sums || s->trained[n.in[1].i] || value_count(s->g, n.in[1]) != 1)
        return pool_other();
    double nominal = den.kind == POOL_SUM ? den.nominal : 1;
    if (s->opt->equal_batches) {
        ValueId in[] = {num.value, by};
        ValueId mean = node_get(s->g, build_again(&s->b, id, in))->out[0];
        return (Pool){.kind = POOL_MEAN,
                      .value = samples_times(s, mean, s->part)};
    }
    ValueId share = samples_share_of(s, den.value, nominal);
    if (kept) share = kept_share(s, num.value, by, share, nominal);
    ValueId zero = b_scalar(&s->b, DT_F32, 0);
    ValueId some = b2(&s->b, OP_GREATER, share, zero, DT_DEFAULT);
    DType d = value_dtype(s->g, by), to = value_dtype(s->g, n.out[0]);
    ValueId in[] = {num.value, b_where(&s->b, some, by, b_scalar(&s->b, d, 1))};
    ValueId mean = node_get(s->g, build_again(&s->b, id, in))->out[0];
    ValueId nan = b_scalar(&s->b, to, NAN);
    nan = b_where(&s->b, some, b_scalar(&s->b, to, 0), nan);
    mean = b2(&s->b, OP_ADD, mean, nan, to);
    return (Pool){POOL_LABELS, samples_times(s, mean, s->stand_in), share, 0};
}

static bool same_share(const Samples *s, ValueId a, ValueId b) {
    if (same_value(a, b)) return true;
    const Value *x = value_get(s->g, a), *y = value_get(s->g, b);
    if (x->kind == VK_CONST && y->kind == VK_CONST) {
        double u, v;
        return x->type.i == y->type.i && value_is_splat(s->g, a, &u) &&
               value_is_splat(s->g, b, &v) && u == v;
    }
    if (x->kind != VK_RESULT || y->kind != VK_RESULT || x->type.i != y->type.i)
        return false;
    const Node *m = node_get(s->g, x->def), *n = node_get(s->g, y->def);
    if (!node_same_work(m, n) || m->nin != n->nin) return false;
    for (int i = 0; i < m->nin; i++)
        if (m->in[i].i != n->in[i].i &&
            (!m->in[i].i || !n->in[i].i || !same_share(s, m->in[i], n->in[i])))
            return false;
    return true;
}

/* A term that depends on no sample has the same weight as the others. */
static Pool added(Samples *s, NodeId id) {
    Node n = *node_get(s->g, id);
    Pool p[] = {samples_pool(s, n.in[0]), samples_pool(s, n.in[1])};
    for (int i = 0; i < 2; i++) {
        if (p[i].kind != POOL_NONE || !is_linear(p[1 - i].kind)) continue;
        if (p[1 - i].kind == POOL_SUM) return pool_other();
        p[i].kind = p[1 - i].kind;
        p[i].share = p[1 - i].share;
        p[i].value =
            samples_times(s, p[i].value, p[i].share.i ? s->stand_in : s->part);
    }
    if (p[0].kind != p[1].kind || !is_linear(p[0].kind)) return pool_other();
    if (p[0].kind == POOL_LABELS && !same_share(s, p[0].share, p[1].share))
        return pool_other();
    p[0].nominal = 0;
    if (same_value(p[0].value, n.in[0]) && same_value(p[1].value, n.in[1])) {
        p[0].value = n.out[0];
        return p[0];
    }
    ValueId in[] = {p[0].value, p[1].value};
    p[0].value = node_get(s->g, build_again(&s->b, id, in))->out[0];
    return p[0];
}

static Pool product(Samples *s, NodeId id) {
    Node n = *node_get(s->g, id);
    Pool a = samples_pool(s, n.in[0]), b = samples_pool(s, n.in[1]);
    if (a.kind == POOL_NONE) return again(s, id, 1, b);
    return b.kind == POOL_NONE ? again(s, id, 0, a) : pool_other();
}

/* ---- the loss ------------------------------------------------------------ */

static Pool unary(Samples *s, NodeId id) {
    return again(s, id, 0, samples_pool(s, node_get(s->g, id)->in[0]));
}

/* How a value without the axis of samples was computed. */
static const struct {
    OpCode op;
    Pool (*rule)(Samples *s, NodeId id);
} rules[] = {
    {OP_CAST, unary},
    {OP_RESHAPE, unary},
    {OP_NEG, unary},
    {OP_REDUCE_MEAN, samples_reduced},
    {OP_REDUCE_SUM, samples_reduced},
    {OP_ADD, added},
    {OP_SUB, added},
    {OP_MUL, product},
    {OP_DIV, quotient},
    {OP_CALL, samples_call_loss},
};

static Pool samples_pool(Samples *s, ValueId v) {
    Rows r = s->rows[v.i];
    if (!r.has && !r.mixed) return (Pool){.kind = POOL_NONE, .value = v};
    if (r.has) return (Pool){.kind = POOL_EACH, .value = samples_masked(s, v)};
    const Value *val = value_get(s->g, v);
    if (val->kind != VK_RESULT) return pool_other();
    NodeId id = val->def;
    const Node *n = node_get(s->g, id);
    s->b.loc = n->loc;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].op == n->op) return rules[i].rule(s, id);
    return pool_other();
}

/* Per value: it depends on a parameter. */
static bool *find_trained(const Graph *g, Arena *a) {
    bool *t = NEW_ARRAY(a, bool, g->values.len + 1);
    for (int i = 1; i < g->values.len; i++) {
        ValueId v = {(uint32_t)i};
        t[i] = value_get(g, v)->kind == VK_VAR &&
               value_var(g, v)->kind == VAR_PARAM;
    }
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        bool any = false;
        for (int k = 0; k < n->nin; k++) any |= t[n->in[k].i];
        for (int k = 0; k < n->nout; k++) t[n->out[k].i] = any;
    }
    return t;
}

/* Running statistics would count masked samples, too. */
static bool keeps_statistics(const Graph *g, const Rows *rows) {
    for (int i = 0; i < g->writes.len; i++) {
        const Write *w = &g->writes.data[i];
        VarKind kind = value_var(g, w->var)->kind;
        Rows r = rows[w->value.i];
        if ((kind == VAR_BUFFER || kind == VAR_FROZEN) && (r.has || r.mixed))
            return true;
    }
    return false;
}

/* Splits the loss of g into terms, with masks or without; returns whether it
   succeeded. nominals: of the objective; NULL: a trial, in which the number of
   samples is not a variable. */
static bool take_apart(Graph *g, PassCtx *cx, bool masks, Reals *nominals,
                       PoolKind *kind) {
    bool trial = !nominals;
    Samples s = {.g = g,
                 .b = {.g = g},
                 .opt = cx->opt,
                 .masks = masks,
                 .nominals = nominals};
    Str name = own_output(OUT_LOSS, g->objective);
    ValueId loss = graph_output(g, name);
    s.batch = graph_samples(g);
    s.rows = rows_find(g, cx->scratch, s.batch);
    s.trained = find_trained(g, cx->scratch);
    if (masks && (s.batch < 2 || keeps_statistics(g, s.rows))) return false;
    s.stand_in =
        trial ? b_scalar(&s.b, DT_F32, 1) : graph_own_var(g, OWN_SHARES, 0);
    if (masks) {
        ValueId n = trial ? graph_scalar_int(g, DT_I32, s.batch)
                          : graph_own_var(g, OWN_VALID, (double)s.batch);
        ValueId at = build_gen(&s.b, OP_IOTA, NULL, 0, NULL, 0,
                               type_make(DT_I32, 1, &s.batch), NULL);
        ValueId in = b2(&s.b, OP_LESS, at, n, DT_DEFAULT);
        s.valid = b_cast(&s.b, in, DT_F32);
        s.part = samples_share_of(&s, n, (double)s.batch);
    }
    Pool p = samples_pool(&s, loss);
    *kind = p.kind;
    if (masks && (s.fails || !is_linear(p.kind))) return false;
    if (!is_linear(p.kind)) return true;
    ValueId share = p.kind == POOL_SUM      ? b_scalar(&s.b, DT_F32, 0)
                    : p.kind == POOL_LABELS ? p.share
                                            : s.part;
    if (masks && cx->opt->equal_batches && p.kind == POOL_MEAN) {
        p.value = b2(&s.b, OP_DIV, p.value, s.part, DT_F32);
        share = b_scalar(&s.b, DT_F32, 1);
    }
    for (int i = 0; i < g->outputs.len; i++)
        if (g->outputs.data[i].name == name) g->outputs.data[i].value = p.value;
    if (share.i)
        graph_add_output(g, own_output(OUT_SHARE, g->objective), share);
    if (masks) graph_add_output(g, own_output(OUT_ROWS, g->objective), s.valid);
    return true;
}

static bool can_mask(const Graph *g, PassCtx *cx) {
    Module aside = *g->module;
    PoolKind kind;
    Graph *trial = graph_clone_aside(g, &aside, cx->scratch);
    return take_apart(trial, cx, true, NULL, &kind);
}

static void samples_tell(const Graph *g, PassCtx *cx, PoolKind kind) {
    Loc at = {.file = g->module->file};
    if (cx->opt->accumulate == 1 || cx->opt->equal_batches) return;
    if (kind == POOL_SUM)
        fail_note(cx->diag, at,
                  "--accumulate: the loss is a sum over samples: losses and "
                  "gradients of micro-batches are added, not averaged");
    if (!is_linear(kind))
        fail_note(cx->diag, at,
                  "--accumulate: what the loss divides by is not known, so "
                  "each micro-batch counts the same, however many labels it "
                  "has");
}

Status pass_samples(Module *m, PassCtx *cx) {
    int n = 0, masked_ones = 0;
    Reals *nominals = NEW_ARRAY(cx->scratch, Reals, cx->opt->objectives.len);
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        const Objective *j = options_objective(cx->opt, g->objective);
        Str loss = own_output(OUT_LOSS, g->objective);
        PoolKind kind;
        rows_mark_outputs(g, cx->scratch);
        if (g->program != PROGRAM_TRAIN) continue;
        n++;
        if (!j || j->loss.kind == LOSS_HOST || !graph_output(g, loss).i)
            continue;
        bool masks = can_mask(g, cx);
        masked_ones += masks;
        take_apart(g, cx, masks, &nominals[j - cx->opt->objectives.data],
                   &kind);
        if (!*g->size) samples_tell(g, cx, kind);
    }
    m->masks = n > 0 && masked_ones == n;
    return OK;
}
