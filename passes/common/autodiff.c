/* SPDX-License-Identifier: Apache-2.0 */
/* autodiff.c: appends the backward graph.

   Before:  graph train(..) { param %w  ..  return ampc.loss=%loss }
   After:   .. %w.grad = ..   return ampc.loss=%loss, ampc.grad/w=%w.grad

   A reverse walk over the nodes; gradients of ops are defined in ops.def and
   std.amp. Contributions to one value are added in fp32 in a fixed order and
   rounded once.  A gradient has the dtype of its value, with one exception: the
   gradient of a cast that the compiler made from an fp32 value stays fp32, so
   that weight gradients leave 16-bit products unrounded.  A call without a
   gradient of its own is differentiated through its body, which is built again
   after the forward nodes; cse then merges the values that occur twice. The
   walk reads and writes the same IR, so it may be applied to its own result.
   Elements that are not selected have gradient 0, whatever their slope is.
   Before a node that may leave elements out (where, max, relu), an op whose
   slope can be infinite passes 0 if the gradient of its result is 0, because 0
   times infinity would be NaN. Slices and gathers leave out whole samples or
   positions, mostly of values that are finite everywhere: an op before them
   does so only if finite.c finds no bound of its slope. In the same way the
   root of a sum of squares passes 0 if the sum is 0, as norms and
   deviations do in PyTorch. requires     stage CAST; output "ampc.loss";
   "ampc.scale" if losses are scaled establishes  stage DIFF; an output
   "ampc.grad/NAME", f32, for every parameter that the objective trains and its
   loss depends on breaks       nothing */
#include "ir/fn/fn.h"
#include "passes/common/finite.h"
#include "passes/rewrite.h"
#include "passes/passes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef VEC(ValueId) Parts;

typedef struct Diff {
    Graph *g;
    Diag *diag;
    Arena *scratch;
    Builder b;
    uint32_t first, end;  /* the wanted values, and before them .. */
    const ValueId *outer; /* .. the operands of the call whose body this is */
    int nouter;
    uint32_t first_node; /* of the body */
    int start;           /* position of the body's first node in the order */
    bool *wanted;        /* per slot */
    bool *active;        /* per slot: floating, and depends on a wanted value */
    uint8_t *selected;   /* per slot: OpLeaves of later nodes that read it */
    Finite *finite;      /* of the graph */
    Parts *parts;        /* per slot: contributions to the gradient */
    ValueId *grad;       /* per slot: their sum, once it was requested */
    VEC(int) rank; /* per value: rank of its name's source, see name_grad */
} Diff;

/* Index of v's slot; 0 if no gradient flows through v. */
static uint32_t slot(const Diff *s, ValueId v) {
    if (v.i >= s->end) return 0;
    if (v.i >= s->first) return v.i - s->first + 1 + (uint32_t)s->nouter;
    for (int k = 0; k < s->nouter; k++)
        if (same_value(s->outer[k], v)) return (uint32_t)k + 1;
    return 0;
}

static Diff diff_new(Graph *g, Diag *d, Arena *scratch, uint32_t flags,
                     uint32_t first, const ValueId *outer, int nouter,
                     Finite *finite) {
    int n = g->values.len - (int)first + nouter + 1;
    Diff s = {.g = g,
              .diag = d,
              .scratch = scratch,
              .b = {.g = g, .flags = flags},
              .first = first,
              .end = (uint32_t)g->values.len,
              .outer = outer,
              .nouter = nouter,
              .first_node = (uint32_t)g->nodes.len,
              .start = g->order.len,
              .wanted = NEW_ARRAY(scratch, bool, n),
              .active = NEW_ARRAY(scratch, bool, n),
              .selected = NEW_ARRAY(scratch, uint8_t, n),
              .finite = finite,
              .parts = NEW_ARRAY(scratch, Parts, n),
              .grad = NEW_ARRAY(scratch, ValueId, n)};
    return s;
}

static bool differentiable(const Node *n) {
    return n->fn || op_gradient(n->op);
}

/* ---- which values matter ------------------------------------------------- */

static bool grad_is_float(const Graph *g, ValueId v) {
    return is_value(v) && dtype_is_float(value_dtype(g, v));
}

static void mark_wanted(Diff *s, ValueId v) {
    if (!slot(s, v)) return;
    s->wanted[slot(s, v)] = true;
    s->active[slot(s, v)] = grad_is_float(s->g, v);
}

static void mark_active(Diff *s, int start) {
    for (int k = start; k < s->g->order.len; k++) {
        const Node *node = node_at(s->g, k);
        bool any = false;
        finite_note(s->finite, node);
        for (int j = 0; j < node->nin; j++)
            any |= s->active[slot(s, node->in[j])];
        if (!any || !differentiable(node)) continue;
        for (int j = 0; j < node->nout; j++)
            s->active[slot(s, node->out[j])] |=
                grad_is_float(s->g, node->out[j]);
    }
}

/* ---- which slopes must not be multiplied by 0 ---------------------------- */

/* In the gradient of a matrix product's result, a zero is only one term of
   sums. */
static void mark_selected(Diff *s, int start, const ValueId *out, int nout,
                          const uint8_t *selected) {
    for (int k = 0; k < nout; k++) s->selected[slot(s, out[k])] |= selected[k];
    for (int k = s->g->order.len - 1; k >= start; k--) {
        const Node *n = node_at(s->g, k);
        unsigned how =
            is_call(n, "dropout") ? LEAVES_ELEMENTS : op_leaves_out[n->op];
        for (int j = 0; j < n->nout; j++)
            how |= s->selected[slot(s, n->out[j])];
        if (op_info[n->op].kind == KIND_ANCHOR) continue;
        for (int j = 0; j < n->nin; j++)
            if (s->active[slot(s, n->in[j])])
                s->selected[slot(s, n->in[j])] |= (uint8_t)how;
    }
}

/* An even power, or a power of a base that is not negative. */
static bool is_even_power(const Graph *g, const Node *n) {
    const Node *base = value_maker(g, n->in[0]);
    double k;
    return n->op == OP_POW && value_is_splat(g, n->in[1], &k) && k > 1 &&
           (fmod(k, 2) == 0 || (base && base->op == OP_ABS));
}

/* True if v is 0 only if all values whose squares it sums are 0. */
static bool is_sum_of_squares(const Graph *g, ValueId v, int depth) {
    const Node *n = value_maker(g, v);
    double k;
    if (!n || depth == 16) return false;
    bool scaled = (n->op == OP_MUL || n->op == OP_DIV) &&
                  value_is_splat(g, n->in[1], &k) && k > 0;
    bool summed = n->op == OP_REDUCE_SUM || n->op == OP_REDUCE_MEAN;
    bool moved = op_info[n->op].kind == KIND_VIEW || n->op == OP_CAST ||
                 n->op == OP_EXPAND || n->op == OP_TRANSPOSE;
    if (n->op == OP_REDUCE_SUMSQ || is_even_power(g, n)) return true;
    if (n->op == OP_MUL && same_value(n->in[0], n->in[1])) return true;
    if (n->op == OP_ADD && !is_sum_of_squares(g, n->in[1], depth + 1))
        return false;
    return (scaled || summed || moved || n->op == OP_ADD) &&
           is_sum_of_squares(g, n->in[0], depth + 1);
}

static bool is_root(const Graph *g, const Node *n) {
    double k;
    bool root =
        n->op == OP_SQRT ||
        (n->op == OP_POW && value_is_splat(g, n->in[1], &k) && k > 0 && k < 1);
    return root && is_sum_of_squares(g, n->in[0], 0);
}

/* True if n multiplies or divides by a constant that is neither 0 nor
   infinite. */
static bool scales_by_number(const Graph *g, const Node *n) {
    double k;
    if (n->op != OP_MUL && n->op != OP_DIV) return false;
    return (value_is_splat(g, n->in[1], &k) && k != 0 && isfinite(k)) ||
           (n->op == OP_MUL && value_is_splat(g, n->in[0], &k) && isfinite(k));
}

/* Where no gradient passes n, given the gradient dy of its result: wherever dy
   is 0.
 */
static ValueId closed_at(Diff *s, const Node *n, ValueId dy) {
    Graph *g = s->g;
    ValueId zero = NO_VALUE, flat = NO_VALUE;
    if (n->nout != 1 || !is_value(dy) || !op_steep[n->op]) return NO_VALUE;
    unsigned how = s->selected[slot(s, n->out[0])];
    if ((how & LEAVES_ELEMENTS && !scales_by_number(g, n)) ||
        (how & LEAVES_PARTS && has_infinite_slope(s->finite, n)))
        zero = b2(&s->b, OP_EQUAL, dy, b_scalar(&s->b, value_dtype(g, dy), 0),
                  DT_BOOL);
    if (is_root(g, n))
        flat = b2(&s->b, OP_EQUAL, n->in[0],
                  b_scalar(&s->b, value_dtype(g, n->in[0]), 0), DT_BOOL);
    if (!is_value(zero)) return flat;
    return is_value(flat) ? b2(&s->b, OP_OR, zero, flat, DT_BOOL) : zero;
}

/* ---- sums ---------------------------------------------------------------- */

/* The sum for %v is called %v.grad.  A sum that is passed on unchanged to a
   value further up keeps its name, unless that value is a wanted one. */
static void name_grad(Diff *s, ValueId grad, ValueId of) {
    const Value *v = value_get(s->g, of);
    int rank = s->wanted[slot(s, of)] ? 2 : 1;
    if (s->outer) return; /* names inside a body are meaningless to the user */
    while (s->rank.len <= (int)grad.i) vec_push(s->scratch, &s->rank, 0);
    if (grad.i < s->end || s->rank.data[grad.i] >= rank || !v->name) return;
    if (value_get(s->g, grad)->kind != VK_RESULT) return; /* shared constant */
    graph_rename(s->g, grad,
                 graph_unique_name(s->g, internf("%s.grad", v->name)));
    s->rank.data[grad.i] = rank;
}

/* A contribution to a gradient from a slice of v: `of`, at [from, to) of
   `axis`, and zero elsewhere. */
typedef struct Sliced {
    ValueId of;
    int axis;
    int64_t from, to;
} Sliced;

static bool is_sliced(const Graph *g, ValueId v, Sliced *r) {
    const Node *n = value_maker(g, v);
    if (!n || n->op != OP_SLICE_GRAD) return false;
    const Type *whole = value_type(g, v), *part = value_type(g, n->in[0]);
    const int64_t *starts, *steps;
    int nsteps = attr_ints(n, AK_steps, &steps), cut = 0;
    attr_ints(n, AK_starts, &starts);
    *r = (Sliced){.of = n->in[0]};
    for (int d = 0; d < whole->rank; d++) {
        if (d < nsteps && steps[d] != 1) return false;
        if (part->dim[d] == whole->dim[d]) continue;
        r->axis = d, r->from = starts[d], r->to = starts[d] + part->dim[d];
        cut++;
    }
    return cut == 1 && part->dtype == whole->dtype && r->from < r->to;
}

static int by_start(const void *a, const void *b) {
    const Sliced *x = a, *y = b;
    if (x->axis != y->axis) return x->axis - y->axis;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    return x->of.i < y->of.i ? -1 : x->of.i > y->of.i;
}

static void push_zeros(Diff *s, Parts *all, const Type *whole, int axis,
                       int64_t n) {
    Type t = *whole;
    if (n == 0) return;
    t.dim[axis] = n;
    vec_push(s->scratch, all,
             b_full(&s->b, type_make(t.dtype, t.rank, t.dim), 0));
}

/* The contributions to a gradient, with those from slices that do not
   overlap (the steps of a recurrence) joined into one concatenation: adding
   them up would read the whole gradient once per slice. */
static Parts join_slices(Diff *s, const Parts *p) {
    Type whole = {0};
    VEC(Sliced) cut = {0};
    Parts rest = {0}, all = {0};
    for (int k = 0; k < p->len; k++) {
        Sliced x;
        bool sliced = is_sliced(s->g, p->data[k], &x);
        if (sliced && !cut.len) whole = *value_type(s->g, p->data[k]);
        if (sliced && value_dtype(s->g, x.of) == whole.dtype)
            vec_push(s->scratch, &cut, x);
        else
            vec_push(s->scratch, &rest, p->data[k]);
    }
    if (cut.len < 2) return *p;
    qsort(cut.data, (size_t)cut.len, sizeof *cut.data, by_start);
    int64_t end = 0;
    for (int k = 0; k < cut.len; k++) {
        const Sliced *x = &cut.data[k];
        if (x->axis != cut.data[0].axis || x->from < end) return *p;
        push_zeros(s, &all, &whole, x->axis, x->from - end);
        vec_push(s->scratch, &all, x->of);
        end = x->to;
    }
    int axis = cut.data[0].axis;
    push_zeros(s, &all, &whole, axis, whole.dim[axis] - end);
    Attr a = attr_i(AK_axis, axis);
    vec_push(
        s->scratch, &rest,
        build(&s->b, OP_CONCAT, all.data, all.len, &a, 1, whole.dtype, NULL));
    return rest;
}

/* The gradient of v, or 0: complete once every user of v has been visited. */
static ValueId gradient(Diff *s, ValueId v) {
    uint32_t at = slot(s, v);
    Parts *p = &s->parts[at];
    if (!at || is_value(s->grad[at]) || p->len == 0) return s->grad[at];
    if (p->len > 1) *p = join_slices(s, p);
    DType d = grad_dtype(s->g, v), wide = dtype_compute(d, d);
    ValueId sum = p->data[0];
    for (int k = 1; k < p->len; k++)
        sum = b2(&s->b, OP_ADD, sum, p->data[k], k == p->len - 1 ? d : wide);
    /* Inside a body a gradient keeps the dtype in which it was computed; the
       node that computes a narrower gradient stores it in that dtype. */
    bool fits = s->outer && (dtype_promote(value_dtype(s->g, sum), d) == d ||
                             node_store(s->g, s->first_node, s->start, sum, d));
    if (!fits) sum = b_cast(&s->b, sum, d);
    name_grad(s, sum, v);
    return s->grad[at] = sum;
}

/* ---- one node ------------------------------------------------------------ */

static Status grad_visit(Diff *s, NodeId id);

static Status walk_back(Diff *s, int start) {
    int n = s->g->order.len - start;
    NodeId *order = arena_dup(s->scratch, s->g->order.data + start,
                              (size_t)n * sizeof *order);
    for (int k = n - 1; k >= 0; k--) TRY(grad_visit(s, order[k]));
    return OK;
}

/* Builds the body again, without roundings, and its gradient. */
static Status through_body(Diff *s, const FnCall *call, const Node *of,
                           const ValueId *gout, ValueId *gin, char *msg) {
    Graph *g = s->g;
    uint32_t node = (uint32_t)g->nodes.len, first = (uint32_t)g->values.len;
    int start = g->order.len;
    ValueId *out = NEW_ARRAY(s->scratch, ValueId, call->nout);
    FnCall wide = *call;
    wide.want = NULL;
    TRY(fn_run(&s->b, &wide, &wide.fn->body, out, msg));
    Diff d = diff_new(g, s->diag, s->scratch, s->b.flags, first, call->in,
                      call->nin, s->finite);
    d.first_node = node;
    d.start = start;
    d.b.loc = s->b.loc;
    for (int k = 0; k < call->nin; k++)
        if (call->want[k] != NUM_DTYPES) mark_wanted(&d, call->in[k]);
    mark_active(&d, start);
    uint8_t *selected = NEW_ARRAY(s->scratch, uint8_t, call->nout);
    for (int k = 0; k < call->nout; k++)
        selected[k] = s->selected[slot(s, of->out[k])];
    mark_selected(&d, start, out, call->nout, selected);
    for (int k = 0; k < call->nout; k++) {
        uint32_t at = slot(&d, out[k]);
        if (is_value(gout[k]) && at)
            vec_push(s->scratch, &d.parts[at], gout[k]);
    }
    TRY(walk_back(&d, start));
    for (int k = 0; k < call->nin; k++) {
        bool again = false; /* one value as two operands */
        for (int j = 0; j < k; j++)
            again |= same_value(call->in[j], call->in[k]);
        if (call->want[k] != NUM_DTYPES && !again)
            gin[k] = gradient(&d, call->in[k]);
    }
    graph_drop_unneeded(g, node, start, gin, call->nin);
    return OK;
}

/* want[k]: the dtype of operand k's gradient; NUM_DTYPES: no gradient is
   needed. */
static Status grad_node(Diff *s, const Node *n, const ValueId *gout,
                        const DType *want, ValueId *gin) {
    char msg[MSG_TEXT] = "";
    FnCall call = fn_call(n);
    call.want = want;
    if (!n->fn) call.fn = op_gradient(n->op);
    call.closed = closed_at(s, n, gout[0]);
    Status st = call.fn->grad.given
                    ? fn_run_grad(&s->b, &call, n->out, gout, gin, msg)
                    : through_body(s, &call, n, gout, gin, msg);
    if (st == OK && n->nin == 1 && is_value(gin[0]))
        gin[0] = b_close(&s->b, call.closed, gin[0]);
    if (st != OK && *msg)
        fail(s->diag, n->loc, "%s: %s", node_info(n)->text, msg);
    return st;
}

static Status grad_visit(Diff *s, NodeId id) {
    Node n = *node_get(s->g, id);
    bool flows = false, wanted = false;
    for (int k = 0; k < n.nout; k++)
        flows |= s->parts[slot(s, n.out[k])].len > 0;
    for (int k = 0; k < n.nin; k++) wanted |= s->active[slot(s, n.in[k])];
    if (!flows || !wanted || !differentiable(&n)) return OK;
    ValueId *gout = NEW_ARRAY(s->scratch, ValueId, n.nout);
    ValueId *gin = NEW_ARRAY(s->scratch, ValueId, n.nin);
    DType *want = NEW_ARRAY(s->scratch, DType, n.nin);
    uint32_t made = (uint32_t)s->g->nodes.len;
    int from = s->g->order.len;
    s->b.loc = n.loc;
    for (int k = 0; k < n.nout; k++) gout[k] = gradient(s, n.out[k]);
    for (int k = 0; k < n.nin; k++)
        want[k] = !s->active[slot(s, n.in[k])] ? NUM_DTYPES
                  : n.fn                       ? grad_dtype(s->g, n.in[k])
                                               : value_dtype(s->g, n.in[k]);
    TRY(grad_node(s, &n, gout, want, gin));
    for (int k = 0; k < n.nin; k++) {
        if (want[k] == NUM_DTYPES || !is_value(gin[k])) continue;
        ASSERT(
            shape_equal(value_type(s->g, gin[k]), value_type(s->g, n.in[k])));
        DType d = value_dtype(s->g, gin[k]);
        if (s->outer && dtype_is_low(d)) /* rounded once, when it is complete */
            node_store(s->g, made, from, gin[k], DT_F32);
        vec_push(s->scratch, &s->parts[slot(s, n.in[k])], gin[k]);
    }
    return OK;
}

static ValueId start(Diff *s, ValueId loss, ValueId seed) {
    Type t = *value_type(s->g, loss);
    if (!is_value(seed)) seed = b_scalar(&s->b, t.dtype, 1);
    return b_reshape(&s->b, b_cast(&s->b, seed, t.dtype), t.rank, t.dim);
}

Status autodiff(Graph *g, Diag *d, Arena *scratch, uint32_t flags, ValueId loss,
                ValueId seed, const ValueId *want, int n, ValueId *grads) {
    Finite finite = {.g = g, .a = scratch};
    Diff s = diff_new(g, d, scratch, flags, 1, NULL, 0, &finite);
    if (!grad_is_float(g, loss) ||
        (!is_value(seed) && value_count(g, loss) != 1))
        return fail(d, (Loc){0},
                    "the loss '%s' is not one floating-point "
                    "number",
                    value_get(g, loss)->name);
    for (int k = 0; k < n; k++) mark_wanted(&s, want[k]);
    mark_active(&s, 0);
    mark_selected(&s, 0, NULL, 0, NULL);
    vec_push(scratch, &s.parts[slot(&s, loss)], start(&s, loss, seed));
    TRY(walk_back(&s, 0));
    for (int k = 0; k < n; k++) grads[k] = gradient(&s, want[k]);
    return OK;
}

/* ---- the pass ------------------------------------------------------------ */

static Status nothing_trains(const Graph *g, Diag *d, ValueId loss) {
    StrBuf names = {0};
    const char *name = value_get(g, loss)->name; /* a constant has none */
    int n = 0;
    bool frozen = false;
    for (int k = 0; k < g->module->vars.len; k++) {
        const Var *v = &g->module->vars.data[k];
        if (v->kind != VAR_PARAM && v->kind != VAR_FROZEN) continue;
        frozen |= v->kind == VAR_FROZEN;
        if (sb_put_next(&names, n++)) {
            sb_puts(&names, "'");
            sb_put_escaped(&names, v->name);
            sb_puts(&names, v->kind == VAR_PARAM ? "'" : "' (frozen)");
        }
    }
    sb_put_more(&names, n);
    Status s = fail(
        d, (Loc){.file = g->module->file},
        "the loss%s%s%s depends on no trained parameter%s%s%s",
        name ? " '" : "", name ? name : "", name ? "'" : "",
        n ? "; there are "
          : "; the model has none (in a text: param NAME: TYPE = ..; quantised "
            "weights of an ONNX file do not train)",
        n ? names.data : "", frozen ? "; --train '*' trains all that can" : "");
    sb_free(&names);
    return s;
}

/* Names the first node after v at which gradients end. */
static Status no_gradient(const Graph *g, PassCtx *cx, const bool *needs,
                          ValueId v, int nnode) {
    bool *after = NEW_ARRAY(cx->scratch, bool, g->values.len);
    const Node *block = NULL;
    after[v.i] = true;
    for (int k = 0; k < nnode && !block; k++) {
        const Node *n = node_at(g, k);
        bool reads = false, used = false, passes = differentiable(n);
        for (int j = 0; j < n->nin; j++) reads |= after[n->in[j].i];
        for (int j = 0; j < n->nout; j++) {
            used |= needs[n->out[j].i];
            passes &= grad_is_float(g, n->out[j]) || j > 0;
        }
        if (!reads || !used) continue;
        if (!passes) block = n;
        for (int j = 0; j < n->nout; j++) after[n->out[j].i] = true;
    }
    Loc loc = block ? block->loc : (Loc){0};
    if (!loc.file) loc.file = g->module->file;
    return fail(cx->diag, loc,
                "parameter '%s' only reaches the loss through a "
                "non-differentiable input%s%s; freeze it",
                value_get(g, v)->name, block ? " of " : "",
                block ? node_info(block)->text : "");
}

/* An .amp text may contain any graph named train. */
static Status check_train(const Graph *g, PassCtx *cx, ValueId loss) {
    Loc loc = {.file = g->module->file};
    if (value_get(g, loss)->type.i != type_scalar(DT_F32).i)
        return fail(cx->diag, loc, "graph %s: the loss is not f32[]", g->name);
    bool done = false;
    for (int i = 0; i < g->order.len; i++) done |= node_at(g, i)->flags != 0;
    for (int i = 0; i < g->outputs.len; i++)
        done |= family_has(FAMILY_GRAD, g->outputs.data[i].name);
    if (!done) return OK;
    return fail(cx->diag, loc, "graph %s is already differentiated", g->name);
}

/* Parameters change only through the update, and only if gradients are
   finite. */
static Status check_writes(const Graph *g, Diag *d) {
    for (int i = 0; i < g->writes.len; i++) {
        const Var *v = value_var(g, g->writes.data[i].var);
        if (v->kind == VAR_PARAM)
            return fail(d, (Loc){.file = g->module->file},
                        "parameter '%s' is written by the model: freeze it, "
                        "or make it a buffer; an update rule of your own is "
                        "an optimizer in a text (--optimizer FILE.amp)",
                        v->name);
    }
    return OK;
}

int trained_params(const Graph *g, Arena *scratch, const Objective *j,
                   ValueId loss, ValueId *params) {
    const Module *m = g->module;
    const bool *needs = needed_by(g, scratch, &loss, 1);
    int n = 0;
    for (int k = 0; k < m->vars.len; k++) {
        ValueId v = graph_find_var(g, k);
        const Var *var = &m->vars.data[k];
        if (var->kind == VAR_PARAM && is_value(v) && needs[v.i] &&
            objective_trains(j, var->name))
            params[n++] = v;
    }
    return n;
}

/* Gradients of the parameters that the objective trains and its loss is
   computed from; or, by pass perturb, of what stands in their places. */
static Status diff_train(Graph *g, PassCtx *cx, const Objective *j) {
    const Module *m = g->module;
    int nnode = g->order.len, n = 0;
    ValueId loss = graph_output(g, own_output(OUT_LOSS, g->objective));
    if (!is_value(loss))
        return fail(cx->diag, (Loc){.file = m->file},
                    "graph %s has no output %s to differentiate", g->name,
                    own_output(OUT_LOSS, g->objective));
    TRY(check_train(g, cx, loss));
    ValueId *params = NEW_ARRAY(cx->scratch, ValueId, m->vars.len + 1);
    ValueId *want = NEW_ARRAY(cx->scratch, ValueId, m->vars.len + 1);
    ValueId *grads = NEW_ARRAY(cx->scratch, ValueId, m->vars.len + 1);
    n = trained_params(g, cx->scratch, j, loss, params);
    if (n == 0) return nothing_trains(g, cx->diag, loss);
    for (int k = 0; k < n; k++) {
        Str name = value_get(g, params[k])->name;
        want[k] = graph_take_output(g, family_name(FAMILY_MOVED, name));
        if (!is_value(want[k])) want[k] = params[k];
    }
    ValueId moved =
        graph_take_output(g, own_output(OUT_MOVED_LOSS, g->objective));
    if (is_value(moved)) loss = moved;
    const bool *needs = needed_by(g, cx->scratch, &loss, 1);
    TRY(check_writes(g, cx->diag));
    Builder b = {.g = g, .flags = NODE_BACKWARD};
    bool scaled = module_find_own_var(m, OWN_SCALE, g->objective) >= 0;
    ValueId seed = scaled ? optimizer_scale(&b, cx->opt) : NO_VALUE;
    TRY(autodiff(g, cx->diag, cx->scratch, NODE_BACKWARD, loss, seed, want, n,
                 grads));
    Status s = OK;
    for (int k = 0; k < n; k++) {
        Str name = value_get(g, params[k])->name;
        DType d = value_dtype(g, want[k]);
        bool low = dtype_is_low(d) && cx->opt->masters != MASTERS_F32;
        if (d != DT_F32 && !low && !(m->rule && d == m->low))
            return fail(
                cx->diag, (Loc){.file = m->file},
                "parameter '%s' is %s: parameters that train are f32, and read "
                "through a cast where it should not be",
                name, dtype_info[d].text);
        if (is_value(grads[k]))
            graph_add_output(g, family_name(FAMILY_GRAD, name),
                             b_cast(&b, grads[k], DT_F32));
        else
            s = no_gradient(g, cx, needs, want[k], nnode);
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
                        "graph %s: unknown objective '%s'", g->name,
                        g->objective);
        TRY(diff_train(g, cx, j));
    }
    return OK;
}
