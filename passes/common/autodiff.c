/* autodiff.c: appends the backward graph.

   Before:  graph train(..) { param %w  ..  return ampc.loss=%loss }
   After:   .. %w.grad = ..   return ampc.loss=%loss, ampc.grad/w=%w.grad

   A reverse walk over the nodes; what an op's gradient is stands in op_grad*.c.
   Contributions to one value are added in fp32 in a fixed order and rounded
   once.  A gradient has its value's dtype, except that of a cast which the
   compiler made of an fp32 value: it stays fp32, so that weight gradients
   leave 16-bit products unrounded.  The walk reads and writes the same IR, so
   it may be applied to its own result.
   requires     stage CAST; output "ampc.loss"; "ampc.scale" if losses are
                scaled
   establishes  stage DIFF; an output "ampc.grad/NAME", f32, for every
                parameter that the objective trains and its loss depends on
   breaks       nothing                                                      */
#include "ir/op/op_grad.h"
#include "passes/passes.h"

#include <string.h>

typedef VEC(ValueId) Parts;

typedef struct Diff {
    Graph *g;
    Diag *diag;
    Arena *scratch;
    Builder b;
    uint32_t nvalue; /* values that existed before */
    bool *wanted;    /* by value */
    bool *active;    /* by value: floating, and depends on a wanted value */
    Parts *parts;    /* by value: contributions to its gradient */
    ValueId *grad;   /* by value: their sum, once asked for */
    VEC(int) rank;   /* by value: how good its name is, see name_grad */
} Diff;

/* ---- which values matter ------------------------------------------------- */

static bool is_float(const Graph *g, ValueId v) {
    return is_value(v) && dtype_is_float(value_dtype(g, v));
}

static void mark_active(Diff *s, const ValueId *want, int n) {
    for (int k = 0; k < n; k++) {
        s->wanted[want[k].i] = true;
        s->active[want[k].i] = is_float(s->g, want[k]);
    }
    for (int k = 0; k < s->g->order.len; k++) {
        const Node *node = node_get(s->g, s->g->order.data[k]);
        bool any = false;
        for (int j = 0; j < node->nin; j++) any |= s->active[node->in[j].i];
        if (!any || !op_grad[node->op]) continue;
        for (int j = 0; j < node->nout; j++)
            s->active[node->out[j].i] |= is_float(s->g, node->out[j]);
    }
}

/* ---- sums ---------------------------------------------------------------- */

/* The sum for %v is called %v.grad.  One that passes on unchanged to a value
   further up keeps its name, unless that value is a wanted one. */
static void name_grad(Diff *s, ValueId grad, ValueId of) {
    const Value *v = value_get(s->g, of);
    int rank = s->wanted[of.i] ? 2 : 1;
    while (s->rank.len <= (int)grad.i) vec_push(s->scratch, &s->rank, 0);
    if (grad.i < s->nvalue || s->rank.data[grad.i] >= rank || !v->name) return;
    if (value_get(s->g, grad)->kind != VK_RESULT) return; /* shared constant */
    graph_rename(s->g, grad,
                 graph_unique_name(s->g, internf("%s.grad", v->name)));
    s->rank.data[grad.i] = rank;
}

/* The gradient of v, or 0: complete once every user of v has been visited. */
static ValueId gradient(Diff *s, ValueId v) {
    const Parts *p = &s->parts[v.i];
    DType d = grad_store(&s->b, v), wide = dtype_compute(d, d);
    if (is_value(s->grad[v.i]) || p->len == 0) return s->grad[v.i];
    ValueId sum = p->data[0];
    for (int k = 1; k < p->len; k++)
        sum = add(&s->b, sum, p->data[k], k == p->len - 1 ? d : wide);
    sum = b_cast(&s->b, sum, d);
    name_grad(s, sum, v);
    return s->grad[v.i] = sum;
}

/* ---- one node ------------------------------------------------------------ */

static bool reached(const Diff *s, const Node *n) {
    bool gradient_in = false, wanted = false;
    for (int k = 0; k < n->nout; k++)
        gradient_in |= s->parts[n->out[k].i].len > 0;
    for (int k = 0; k < n->nin; k++) wanted |= s->active[n->in[k].i];
    return gradient_in && wanted && op_grad[n->op];
}

static Status visit(Diff *s, NodeId id) {
    Node n = *node_get(s->g, id);
    if (!reached(s, &n)) return OK;
    ValueId *gout = NEW_ARRAY(s->scratch, ValueId, n.nout);
    ValueId *gin = NEW_ARRAY(s->scratch, ValueId, n.nin);
    bool *want = NEW_ARRAY(s->scratch, bool, n.nin);
    s->b.loc = n.loc;
    for (int k = 0; k < n.nout; k++) gout[k] = gradient(s, n.out[k]);
    for (int k = 0; k < n.nin; k++) want[k] = s->active[n.in[k].i];
    GradCtx cx = {&s->b, id, gout, gin, want};
    if (op_grad[n.op](&cx) != OK)
        return fail(s->diag, n.loc, "%s has no gradient here",
                    op_info[n.op].text);
    for (int k = 0; k < n.nin; k++) {
        if (!want[k] || !is_value(gin[k])) continue;
        ASSERT(
            shape_equal(value_type(s->g, gin[k]), value_type(s->g, n.in[k])));
        vec_push(s->scratch, &s->parts[n.in[k].i], gin[k]);
    }
    return OK;
}

static ValueId start(Diff *s, ValueId loss, ValueId seed) {
    Type t = *value_type(s->g, loss);
    if (!is_value(seed)) seed = b_scalar(&s->b, t.dtype, 1);
    return b_reshape(&s->b, b_cast(&s->b, seed, t.dtype), t.rank, t.dim);
}

Status autodiff(Graph *g, Diag *d, Arena *scratch, ValueId loss, ValueId seed,
                const ValueId *want, int n, ValueId *grads) {
    int nvalue = g->values.len, nnode = g->order.len;
    Diff s = {.g = g,
              .diag = d,
              .scratch = scratch,
              .b = {.g = g, .flags = NODE_BACKWARD},
              .nvalue = (uint32_t)nvalue,
              .wanted = NEW_ARRAY(scratch, bool, nvalue),
              .active = NEW_ARRAY(scratch, bool, nvalue),
              .parts = NEW_ARRAY(scratch, Parts, nvalue),
              .grad = NEW_ARRAY(scratch, ValueId, nvalue)};
    if (!is_float(g, loss) || type_count(value_type(g, loss)) != 1)
        return fail(d, (Loc){0},
                    "the loss '%s' is not one floating-point "
                    "number",
                    value_get(g, loss)->name);
    mark_active(&s, want, n);
    vec_push(scratch, &s.parts[loss.i], start(&s, loss, seed));
    NodeId *order =
        arena_dup(scratch, g->order.data, (size_t)nnode * sizeof *order);
    for (int k = nnode - 1; k >= 0; k--) TRY(visit(&s, order[k]));
    for (int k = 0; k < n; k++) grads[k] = gradient(&s, want[k]);
    return OK;
}

/* ---- the pass ------------------------------------------------------------ */

/* By value: the loss is computed from it, through any operand. */
static bool *loss_needs(const Graph *g, Arena *scratch, ValueId loss) {
    bool *needs = NEW_ARRAY(scratch, bool, g->values.len);
    needs[loss.i] = true;
    for (int k = g->order.len - 1; k >= 0; k--) {
        const Node *n = node_get(g, g->order.data[k]);
        bool any = false;
        for (int j = 0; j < n->nout; j++) any |= needs[n->out[j].i];
        for (int j = 0; any && j < n->nin; j++) needs[n->in[j].i] = true;
    }
    needs[0] = false;
    return needs;
}

typedef struct Wanted {
    VEC(ValueId) value;
    VEC(int) var;
} Wanted;

/* Parameters that the objective trains and its loss is computed from. */
static Wanted find_wanted(Graph *g, Arena *scratch, const bool *needs,
                          const Objective *j) {
    Wanted w = {0};
    for (int k = 0; k < g->module->vars.len; k++) {
        ValueId v = graph_find_var(g, k);
        const Var *var = &g->module->vars.data[k];
        if (var->kind != VAR_PARAM || !is_value(v) || !needs[v.i] ||
            !objective_trains(j, var->name))
            continue;
        vec_push(scratch, &w.value, v);
        vec_push(scratch, &w.var, k);
    }
    return w;
}

static Status nothing_trains(const Graph *g, Diag *d, ValueId loss) {
    StrBuf names = {0};
    int n = 0;
    for (int k = 0; k < g->module->vars.len; k++) {
        const Var *v = &g->module->vars.data[k];
        if (v->kind != VAR_PARAM && v->kind != VAR_FROZEN) continue;
        if (n++ < 8) {
            sb_puts(&names, n > 1 ? ", '" : "'");
            sb_put_escaped(&names, v->name);
            sb_puts(&names, v->kind == VAR_PARAM ? "'" : "' (frozen)");
        }
    }
    if (n > 8) sb_printf(&names, " and %d more", n - 8);
    Status s = fail(d, (Loc){.file = g->module->file},
                    "the loss '%s' depends on no trained parameter%s%s",
                    value_get(g, loss)->name, n ? "; there are " : "",
                    n ? names.data : "");
    sb_free(&names);
    return s;
}

/* The first node after v where gradients end, to name in the message. */
static const Node *blocking_node(const Graph *g, Arena *scratch,
                                 const bool *needs, ValueId v, int nnode) {
    bool *after = NEW_ARRAY(scratch, bool, g->values.len);
    after[v.i] = true;
    for (int k = 0; k < nnode; k++) {
        const Node *n = node_get(g, g->order.data[k]);
        bool reads = false, used = false, passes = op_grad[n->op] != NULL;
        for (int j = 0; j < n->nin; j++) reads |= after[n->in[j].i];
        for (int j = 0; j < n->nout; j++) {
            used |= needs[n->out[j].i];
            passes &= is_float(g, n->out[j]) || j > 0;
        }
        if (!reads || !used) continue;
        if (!passes) return n;
        for (int j = 0; j < n->nout; j++) after[n->out[j].i] = true;
    }
    return NULL;
}

static Status no_gradient(const Graph *g, PassCtx *cx, const bool *needs,
                          ValueId v, int nnode) {
    const Node *n = blocking_node(g, cx->scratch, needs, v, nnode);
    Loc loc = n ? n->loc : (Loc){0};
    if (!loc.file) loc.file = g->module->file;
    return fail(cx->diag, loc,
                "parameter '%s' only reaches the loss through a "
                "non-differentiable input%s%s; freeze it",
                value_get(g, v)->name, n ? " of " : "",
                n ? op_info[n->op].text : "");
}

/* The loss is multiplied by it; 0 when nothing scales. */
static ValueId scale_value(Graph *g) {
    int var = module_find_own_var(g->module, OWN_SCALE, g->objective);
    return var >= 0 ? graph_var(g, var) : NO_VALUE;
}

/* A text may hold any graph of that name. */
static Status check_train(const Graph *g, PassCtx *cx, ValueId loss) {
    Loc loc = {.file = g->module->file};
    if (value_get(g, loss)->type.i != type_scalar(DT_F32).i)
        return fail(cx->diag, loc, "graph %s: the loss is not f32[]", g->name);
    bool done = false;
    for (int i = 0; i < g->order.len; i++)
        done |= node_get(g, g->order.data[i])->flags != 0;
    for (int i = 0; i < g->outputs.len; i++)
        done |= family_member(FAMILY_GRAD, g->outputs.data[i].name) != NULL;
    if (!done) return OK;
    return fail(cx->diag, loc, "graph %s is differentiated already", g->name);
}

static Status diff_train(Graph *g, PassCtx *cx, const Objective *j) {
    int nnode = g->order.len;
    ValueId loss = graph_output(g, own_output(OUT_LOSS, g->objective));
    if (!is_value(loss))
        return fail(cx->diag, (Loc){.file = g->module->file},
                    "graph %s has no output %s to differentiate", g->name,
                    own_output(OUT_LOSS, g->objective));
    TRY(check_train(g, cx, loss));
    bool *needs = loss_needs(g, cx->scratch, loss);
    Wanted w = find_wanted(g, cx->scratch, needs, j);
    int n = w.value.len;
    ValueId *grads = NEW_ARRAY(cx->scratch, ValueId, n + 1);
    if (n == 0) return nothing_trains(g, cx->diag, loss);
    TRY(autodiff(g, cx->diag, cx->scratch, loss, scale_value(g), w.value.data,
                 n, grads));
    Status s = OK;
    for (int k = 0; k < n; k++) {
        Str name = g->module->vars.data[w.var.data[k]].name;
        if (value_dtype(g, w.value.data[k]) != DT_F32)
            return fail(cx->diag, (Loc){.file = g->module->file},
                        "parameter '%s' is %s: what trains is f32, and read "
                        "through a cast where it should not be",
                        name, dtype_info[value_dtype(g, w.value.data[k])].text);
        if (is_value(grads[k]))
            graph_add_output(g, family_name(FAMILY_GRAD, name), grads[k]);
        else
            s = no_gradient(g, cx, needs, w.value.data[k], nnode);
    }
    return s;
}

Status pass_autodiff(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        if (g->program != PROGRAM_TRAIN) continue;
        const Objective *j = options_objective(cx->opt, g->objective);
        if (!j)
            return fail(cx->diag, (Loc){.file = m->file},
                        "graph %s: there is no objective '%s'", g->name,
                        g->objective);
        TRY(diff_train(g, cx, j));
    }
    return OK;
}
