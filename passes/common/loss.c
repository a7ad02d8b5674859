/* SPDX-License-Identifier: Apache-2.0 */
/* loss.c: adds the scalar loss of each objective to the forward graph.
   Before:  return %logits
   After:   input %target; %loss = softmax_cross_entropy %logits, %target
            return %logits, ampc.loss=%loss
   --loss host: sum <output, input "gradient:OUTPUT">; the gradient of this loss
   with respect to an output is the host's input. --loss auto takes the model's
   only floating-point output with one element, or the one whose name says that
   it is the loss.
   requires     stage TYPED, graph "forward"
   establishes  an output "ampc.loss" (f32[]), unless --loss none; only
                variables that an objective trains are parameters */
#include "ir/base/near.h"
#include "ir/fn/fn.h"
#include "passes/rewrite.h"
#include "passes/passes.h"

#include <limits.h>
#include <string.h>

/* Number of the model's own outputs; the losses of earlier objectives follow
   them. */
static int model_outputs(const Graph *g) {
    int n = 0;
    while (n < g->outputs.len && !name_is_own(g->outputs.data[n].name)) n++;
    return n;
}

static Status no_loss(PassCtx *cx, const Graph *g, const char *why) {
    StrBuf names = {0};
    int n = model_outputs(g);
    for (int i = 0; i < n && sb_put_next(&names, i); i++) {
        sb_put_escaped(&names, g->outputs.data[i].name);
        sb_puts(&names, " ");
        sb_put_type(&names, value_get(g, g->outputs.data[i].value)->type);
    }
    sb_put_more(&names, n);
    Status s = fail(cx->diag, (Loc){.file = g->module->file},
                    "%s; outputs: %s. Choose with --loss "
                    "cross_entropy|nll|mse|l1|huber|bce_with_logits|host"
                    "[:OUTPUT], "
                    "or --loss none for an inference module",
                    why, names.data ? names.data : "(none)");
    sb_free(&names);
    return s;
}

/* True if the parameters that node n reads belong to layer `name`, or to one
   below it. */
static bool in_layer(const Graph *g, const Node *n, Str name) {
    Str layer = node_layer(g, n);
    size_t length = strlen(name);
    return layer && !strncmp(layer, name, length) &&
           (!layer[length] || layer[length] == '.');
}

/* An inner value: an input or a result with that name; else the result of
   the last node with that name or with a parameter of that layer. */
static ValueId inner_value(const Graph *g, Str name) {
    ValueId found = NO_VALUE;
    for (int i = 0; i < g->inputs.len; i++)
        if (value_get(g, g->inputs.data[i])->name == name)
            return g->inputs.data[i];
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        for (int k = 0; k < n->nout; k++)
            if (is_value(n->out[k]) && value_get(g, n->out[k])->name == name)
                return n->out[k];
        if (is_value(n->out[0]) &&
            (n->loc.node == name || in_layer(g, n, name)))
            found = n->out[0];
    }
    return found;
}

static Status no_operand(PassCtx *cx, const Graph *g, Str name) {
    char text[NEAR_TEXT];
    Near near = near_to(name);
    for (int i = 0; i < g->outputs.len; i++)
        near_offer(&near, g->outputs.data[i].name);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (is_value(n->out[0]))
            near_offer(&near, value_get(g, n->out[0])->name);
        near_offer(&near, n->loc.node);
        near_offer(&near, node_layer(g, n));
    }
    return no_loss(cx, g,
                   internf("'%s' is not an output, inner value, node or layer "
                           "of the model%s (ampc inspect MODEL --nodes)",
                           name, near_text(&near, text)));
}

static bool is_output(const Graph *g, ValueId v) {
    for (int i = 0, n = model_outputs(g); i < n; i++)
        if (same_value(g->outputs.data[i].value, v)) return true;
    return false;
}

/* The output or inner value with that name; without a name the only output.
 */
static Status pick_operand(const Graph *g, PassCtx *cx, Str name, ValueId *v) {
    if (!name && model_outputs(g) != 1)
        return no_loss(cx, g, "the loss needs an output to look at");
    for (int i = 0, n = model_outputs(g); i < n; i++) {
        *v = g->outputs.data[i].value;
        if (!name || g->outputs.data[i].name == name) return OK;
    }
    *v = inner_value(g, name);
    return is_value(*v) ? OK : no_operand(cx, g, name);
}

static bool is_one_number(const Graph *g, ValueId v) {
    const Type *t = value_type(g, v);
    return dtype_is_float(t->dtype) && type_count(t) == 1;
}

static Status loss_auto(const Graph *g, PassCtx *cx, Str name, ValueId *loss) {
    int found = 0;
    if (name) {
        TRY(pick_operand(g, cx, name, loss));
        return is_one_number(g, *loss)
                   ? OK
                   : no_loss(cx, g, internf("'%s' is not one number", name));
    }
    for (int i = 0, n = model_outputs(g); i < n; i++) {
        if (!is_one_number(g, g->outputs.data[i].value)) continue;
        *loss = g->outputs.data[i].value;
        found++;
    }
    if (found == 0)
        return no_loss(cx, g, "the model has no output with a single element");
    if (found > 1) return no_loss(cx, g, "several outputs could be the loss");
    return OK;
}

/* True if targets need names of their own. */
static bool many_targets(const Options *o, const Graph *g, ValueId x) {
    return o->objectives.len > 1 ||
           (o->objectives.data[0].added.len &&
            (model_outputs(g) > 1 || !is_output(g, x)));
}

/* "target", or with several losses "target:OUTPUT", where x may also be an
   inner value that `given` names. Losses on one output share a target of
   equal type; a target of another type is "target:OUTPUT:LOSS". model:
   number of the model's inputs. */
static ValueId target_input(const Options *o, Graph *g, int model, ValueId x,
                            Str given, TypeId t, Str loss) {
    bool many = many_targets(o, g, x);
    Str name = many && given ? internf("target:%s", given) : intern("target");
    for (int i = 0; i < g->outputs.len && many; i++)
        if (same_value(g->outputs.data[i].value, x))
            name = internf("target:%s", g->outputs.data[i].name);
    for (int i = model; i < g->inputs.len; i++) {
        const Value *v = value_get(g, g->inputs.data[i]);
        if (v->name != name) continue;
        if (v->type.i == t.i) return g->inputs.data[i];
        name = internf("%s:%s", name, loss);
        i = model - 1;
    }
    return graph_input(g, name, t);
}

/* For other ranks it is axis 1. */
static void note_axis(PassCtx *cx, const Graph *g, ValueId x) {
    StrBuf type = {0};
    sb_put_type(&type, value_get(g, x)->type);
    fail_note(cx->diag, (Loc){.file = g->module->file},
              "--loss: classes are along the last axis, 2, of %s; axis=1 takes "
              "the other",
              type.data);
    sb_free(&type);
}

/* Losses that apply the softmax or the sigmoid to the output themselves. */
static bool takes_logits(const Fn *fn) {
    static const char *const names[] = {"cross_entropy", "soft_cross_entropy",
                                        "focal", "bce_with_logits",
                                        "sigmoid_focal"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(fn->loss, names[i])) return true;
    return false;
}

/* The source of the output, ignoring casts and reshapes. */
static ValueId behind_moves(const Graph *g, ValueId x) {
    const Node *n;
    while ((n = def_of(g, x, OP_CAST)) || (n = def_of(g, x, OP_RESHAPE)))
        x = n->in[0];
    return x;
}

/* The output is the result of a softmax or sigmoid, and the loss applies
   another one to it: PyTorch would compute the same, but it is rarely
   intended. */
static void warn_of_probabilities(PassCtx *cx, const Graph *g, const Fn *fn,
                                  ValueId x) {
    if (!takes_logits(fn)) return;
    x = behind_moves(g, x);
    bool soft = call_of(g, x, "softmax") != NULL;
    if (!soft && !def_of(g, x, OP_SIGMOID)) return;
    warn(cx->diag, (Loc){.file = g->module->file},
         "--loss: the output is a %s's result, probabilities, and %s takes %s "
         "of it again; --loss %s is the loss of probabilities",
         soft ? "Softmax" : "Sigmoid", fn->info.text,
         soft ? "the softmax" : "the sigmoid", soft ? "nll" : "bce");
}

/* Replaces a loss of probabilities by one of logits, which does not overflow
   at probabilities of 0 or 1: nll of a softmax's result takes the log of it,
   and bce of a sigmoid's result becomes bce_with_logits. *fn: the function
   to call. */
static ValueId before_probabilities(Builder *b, PassCtx *cx, ValueId x,
                                    const Fn **fn) {
    Graph *g = b->g;
    Type t = *value_type(g, x);
    ValueId p = behind_moves(g, x);
    const Node *soft = call_of(g, p, "softmax");
    const Node *sigmoid = def_of(g, p, OP_SIGMOID);
    ValueId y = NO_VALUE;
    if (!strcmp((*fn)->loss, "bce") && sigmoid) {
        *fn = fn_std("bce_with_logits_loss");
        y = sigmoid->in[0];
    } else if (!strcmp((*fn)->loss, "nll") && soft) {
        Attr axis = attr_i(AK_axis, attr_int(soft, AK_axis));
        ValueId z = soft->in[0];
        NodeId n =
            build_call(b, fn_std("log_softmax"), &z, 1, &axis, 1, 1, NULL);
        y = node_get(g, n)->out[0];
        if (!*g->size)
            fail_note(cx->diag, (Loc){.file = g->module->file},
                      "--loss nll: the output is a Softmax's result: its log "
                      "is taken");
    }
    if (!is_value(y)) return x;
    return shape_equal(value_type(g, y), &t) ? y
                                             : b_reshape(b, y, t.rank, t.dim);
}

/* One call of a loss, while it is built. */
typedef struct Call {
    const LossSpec *l;
    ValueId in[MAX_FN_OPERANDS];
    int nin;
    Attr attrs[MAX_OP_ATTRS];
    int nattr;
    int axis; /* class axis; -1: the loss has none */
} Call;

/* Refuses an output of which data say how many rows count. */
static Status check_rows(const Graph *g, PassCtx *cx, ValueId v) {
    const Node *n;
    Str name = value_get(g, v)->name;
    while ((n = value_maker(g, v)) && !n->fn && n->op == OP_CAST) v = n->in[0];
    if (!n || n->fn != fn_std("counted_first")) return OK;
    return no_loss(cx, g,
                   internf("the number of rows of '%s' depends on data: reduce "
                           "them in the model",
                           name));
}

/* The named outputs, or all. */
static Status loss_operands(const Graph *g, PassCtx *cx, Call *c) {
    int target = fn_loss_target(c->l->fn), all = model_outputs(g);
    int n = target < 0 ? c->l->fn->info.in_min : target;
    c->nin = n;
    if (n > 1 && !c->l->outputs.len && all != n)
        return no_loss(cx, g,
                       internf("%s takes %d outputs, %s:OUTPUT,OUTPUT..",
                               c->l->fn->loss, n, c->l->fn->loss));
    for (int i = 0; i < n; i++) {
        if (n > 1 && !c->l->outputs.len)
            c->in[i] = g->outputs.data[i].value;
        else
            TRY(pick_operand(g, cx,
                             c->l->outputs.len ? c->l->outputs.data[i] : NULL,
                             &c->in[i]));
        if (!dtype_is_float(value_dtype(g, c->in[i])))
            return no_loss(cx, g, "the loss needs a floating-point operand");
        TRY(check_rows(g, cx, c->in[i]));
    }
    return OK;
}

/* The class axis is 1 for rank 2 and rank >= 4, the last for rank 3. */
static Status class_axis(const Graph *g, PassCtx *cx, Call *c) {
    const Type *t = value_type(g, c->in[0]);
    double given = loss_key(c->l, "axis", INT_MIN);
    c->axis = -1;
    if (!fn_attr(c->l->fn, "axis")) return OK;
    c->axis = t->rank == 3 ? 2 : t->rank >= 2 ? 1 : -1;
    if (given != INT_MIN) c->axis = axis_norm((int64_t)given, t->rank);
    if (c->axis < 0)
        return no_loss(cx, g,
                       given == INT_MIN ? "the output has no class axis"
                                        : "axis= is not an axis of the output");
    if (t->rank == 3 && given == INT_MIN && !*g->size)
        note_axis(cx, g, c->in[0]);
    if (t->dim[c->axis] == 0) return no_loss(cx, g, "the class axis is empty");
    return OK;
}

/* The loss's definition gives the target's type: class numbers without the
   class axis, or the output's type. */
static void add_target(Graph *g, PassCtx *cx, Call *c, int model) {
    int target = fn_loss_target(c->l->fn);
    if (target < 0) return;
    Type t = *value_type(g, c->in[0]);
    t.dtype = DT_F32;
    if (c->l->fn->operands.data[target].kind == FO_INT) {
        for (int i = c->axis; i + 1 < t.rank; i++) t.dim[i] = t.dim[i + 1];
        t.rank--;
        t.dtype = DT_I64;
    }
    TypeId type = type_make(t.dtype, t.rank, t.dim);
    c->in[c->nin++] = target_input(
        cx->opt, g, model, c->in[0],
        c->l->outputs.len ? c->l->outputs.data[0] : NULL, type, c->l->fn->loss);
}

static void add_attrs(Call *c) {
    const Fn *fn = c->l->fn;
    for (int i = 0; i < fn->attrs.len; i++) {
        const FnAttr *a = &fn->attrs.data[i];
        double v = loss_key(c->l, a->name, NAN);
        if (a->kind == FA_AXIS) v = c->axis;
        if (v != v) continue;
        c->attrs[c->nattr++] = a->kind == FA_FLOAT
                                   ? attr_named_f(a->name, v)
                                   : attr_named_i(a->name, (int64_t)v);
    }
}

static Status add_weights(Graph *g, PassCtx *cx, Call *c) {
    int classes = c->l->class_weights.len;
    if (!classes) return OK;
    int64_t dim = value_type(g, c->in[0])->dim[c->axis];
    if (classes != dim)
        return no_loss(cx, g,
                       arena_printf(cx->scratch,
                                    "%d class_weights for %lld classes",
                                    classes, (long long)dim));
    Tensor *w = tensor_new(g->arena, type_make(DT_F32, 1, &dim));
    for (int i = 0; i < classes; i++)
        tensor_set(w, i, c->l->class_weights.data[i]);
    c->in[c->nin++] = graph_const(g, "class_weights", w);
    return OK;
}

static Status call_loss(Builder *b, PassCtx *cx, const LossSpec *l, int model,
                        ValueId *loss) {
    Graph *g = b->g;
    Call c = {.l = l};
    Callee callee = {.op = OP_CALL, .fn = l->fn};
    NodeId n;
    TRY(loss_operands(g, cx, &c));
    if (!*g->size) warn_of_probabilities(cx, g, l->fn, c.in[0]);
    TRY(class_axis(g, cx, &c));
    add_target(g, cx, &c, model);
    add_attrs(&c);
    TRY(add_weights(g, cx, &c));
    c.in[0] = before_probabilities(b, cx, c.in[0], &callee.fn);
    TRY(build_checked(b, cx->diag, callee, c.in, c.nin, c.attrs, c.nattr,
                      l->fn->info.out_max, NULL, NULL, &n));
    *loss = node_get(g, n)->out[0];
    return OK;
}

/* Sums the products of outputs and their given gradients, for the named
   output or for all floating-point ones. */
static Status host_loss(Builder *b, PassCtx *cx, Str output, ValueId *loss) {
    Graph *g = b->g;
    int64_t axes[MAX_RANK];
    *loss = NO_VALUE;
    for (int i = 0; i < MAX_RANK; i++) axes[i] = i;
    for (int i = 0, n = model_outputs(g); i < n; i++) {
        Output o = g->outputs.data[i];
        const Type *t = value_type(g, o.value);
        if (!dtype_is_float(t->dtype) || (output && o.name != output)) continue;
        Str name = internf("gradient:%s", o.name);
        int rank = t->rank;
        TypeId type = type_with_dtype(value_get(g, o.value)->type, DT_F32);
        ValueId y = b_cast(b, o.value, DT_F32);
        y = b2(b, OP_MUL, y, graph_input(g, name, type), DT_F32);
        if (rank) y = b_reduce(b, OP_REDUCE_SUM, y, axes, rank, false, DT_F32);
        *loss = is_value(*loss) ? b2(b, OP_ADD, *loss, y, DT_F32) : y;
    }
    if (is_value(*loss)) return OK;
    return no_loss(cx, g,
                   output ? internf("'%s' is not an output of the model that "
                                    "--loss host can take",
                                    output)
                          : "--loss host needs a floating-point output");
}

/* One term times its factor: a scalar. */
static Status add_term(Builder *b, PassCtx *cx, const LossSpec *l, int model,
                       ValueId *loss) {
    Graph *g = b->g;
    Str output = l->outputs.len ? l->outputs.data[0] : NULL;
    if (l->kind == LOSS_AUTO)
        TRY(loss_auto(g, cx, output, loss));
    else if (l->kind == LOSS_HOST)
        TRY(host_loss(b, cx, output, loss));
    else
        TRY(call_loss(b, cx, l, model, loss));
    if (value_type(g, *loss)->rank) *loss = b_reshape(b, *loss, 0, NULL);
    *loss = b_cast(b, *loss, DT_F32);
    if (l->factor != 1)
        *loss = b2(b, OP_MUL, *loss, b_scalar(b, DT_F32, l->factor), DT_F32);
    return OK;
}

static Status add_loss(Graph *g, PassCtx *cx, const Objective *j, int model) {
    Builder b = {.g = g};
    ValueId sum = NO_VALUE, loss;
    TRY(add_term(&b, cx, &j->loss, model, &sum));
    for (int i = 0; i < j->added.len; i++) {
        TRY(add_term(&b, cx, &j->added.data[i], model, &loss));
        sum = b2(&b, OP_ADD, sum, loss, DT_F32);
    }
    graph_add_output(g, own_output(OUT_LOSS, j->name), sum);
    return OK;
}

/* Warns of parameters that no objective trains, and which keep their values. */
static void freeze_rest(Module *m, PassCtx *cx) {
    Str first = NULL;
    int frozen = 0;
    for (int i = 0; i < m->vars.len; i++) {
        Var *v = &m->vars.data[i];
        bool trains = v->kind != VAR_PARAM;
        for (int k = 0; k < cx->opt->objectives.len; k++)
            trains |= objective_trains(&cx->opt->objectives.data[k], v->name);
        if (trains) continue;
        v->kind = VAR_FROZEN;
        v->why = intern("no --objective trains it");
        first = frozen++ ? first : v->name;
    }
    if (frozen)
        warn(cx->diag, (Loc){.file = m->file},
             "no --objective trains '%s'%s: it keeps its value", first,
             frozen > 1 ? " and others" : "");
}

static void mark_operands(const Graph *g, ValueId v, bool *var, bool *seen) {
    if (!is_value(v)) return;
    const Value *val = value_get(g, v);
    if (val->kind == VK_VAR) var[value_var(g, v) - g->module->vars.data] = true;
    if (val->kind != VK_RESULT || seen[val->def.i]) return;
    seen[val->def.i] = true;
}

/* Reports parameters on which no loss depends, and which keep their values. */
static void note_unread(const Module *m, PassCtx *cx) {
    const Graph *g = module_graph(m, FORWARD);
    bool *var = NEW_ARRAY(cx->scratch, bool, m->vars.len + 1);
    bool *seen = NEW_ARRAY(cx->scratch, bool, g->nodes.len + 1);
    StrBuf names = {0};
    int n = 0;
    if (g->outputs.len == model_outputs(g)) return; /* --loss none */
    for (int i = model_outputs(g); i < g->outputs.len; i++)
        mark_operands(g, g->outputs.data[i].value, var, seen);
    for (int i = g->order.len - 1; i >= 0; i--) {
        const Node *node = node_at(g, i);
        for (int k = 0; k < node->nin && seen[g->order.data[i].i]; k++)
            mark_operands(g, node->in[k], var, seen);
    }
    for (int i = 0; i < m->vars.len; i++) {
        if (m->vars.data[i].kind != VAR_PARAM || var[i]) continue;
        if (sb_put_next(&names, n++))
            sb_put_escaped(&names, m->vars.data[i].name);
    }
    sb_put_more(&names, n);
    if (n)
        fail_note(cx->diag, (Loc){.file = m->file}, "no loss depends on %s: %s",
                  names.data,
                  n > 1 ? "they keep their values" : "it keeps its value");
    sb_free(&names);
}

/* A text may contain any name. */
static Status check_name(const Graph *g, PassCtx *cx, const char *what,
                         Str name) {
    if (!name_is_own(name)) return OK;
    return fail(cx->diag, (Loc){.file = g->module->file},
                "%s '%s' of graph %s: names that start with 'ampc.' are the "
                "compiler's",
                what, name, g->name);
}

static Status model_losses(Graph *g, PassCtx *cx) {
    int model = g->inputs.len;
    for (int i = 0; i < g->outputs.len; i++)
        TRY(check_name(g, cx, "output", g->outputs.data[i].name));
    for (int i = 0; i < g->writes.len; i++)
        TRY(check_name(g, cx, "written variable",
                       value_var(g, g->writes.data[i].var)->name));
    for (int i = 0; i < cx->opt->objectives.len; i++) {
        const Objective *j = &cx->opt->objectives.data[i];
        if (j->loss.kind != LOSS_NONE) TRY(add_loss(g, cx, j, model));
    }
    return OK;
}

Status pass_loss(Module *m, PassCtx *cx) {
    if (!module_graph(m, FORWARD)) return OK;
    for (int i = 0; i < m->graphs.len; i++)
        if (graph_is_model(m->graphs.data[i]))
            TRY(model_losses(m->graphs.data[i], cx));
    freeze_rest(m, cx);
    note_unread(m, cx);
    return OK;
}
