/* SPDX-License-Identifier: Apache-2.0 */
/* rules.c: chooses dtypes op by op, by a rule of PyTorch or Apex instead of the
   minimum cut.
   Before:  %h = matmul %x, %w : f32[..]      %p = softmax %h : f32[..]
   After:   %x.f16 = cast %x {user=1}   %w.f16 = cast %w {user=1}
            %h = matmul %x.f16, %w.f16 : f16[..]   %p = softmax %h : f32[..]
   --placement pytorch: every op reads and returns the dtypes that
   torch.autocast gives it on a GPU, by PyTorch's lists (column torch of
   ops.def).  Ops that are on no list follow ordinary type promotion, in which a
   scalar does not widen a tensor.  A parameter that is added to the result of a
   product is its bias, as in nn.Linear.
   --precision O2, O3: the rules of Apex.  Inputs, parameters, buffers and
   constants are 16 bits, and all else follows by promotion; outputs and losses
   are f32.  O2 keeps f32 masters and f32 batch normalisation; O3 keeps neither,
   so its parameters are 16-bit variables.
   The casts count as the user's, so no later pass moves them and a gradient has
   the dtype of its value, also for parameters.  Classes of --amp-policy take
   precedence.
   requires     stage TYPED
   establishes  stage CAST where one of the options is given, else nothing;
                passes autocast, lift and place have nothing to do then      */
#include "ir/fn/fn.h"
#include "passes/common/origin.h"
#include "passes/rewrite.h"
#include "passes/common/compact.h"
#include "passes/passes.h"

typedef struct Rules {
    Graph *g;
    const Options *opt;
    DType low;
    Builder b;
    Origins origins;
    const bool *norm;  /* per variable: belongs to a batch normalisation */
    bool *biased;      /* per value: a product before its bias is added */
    const bool *model; /* per value: an output of the model depends on it */
    ValueId *cast[2];  /* per value: its casts to low and to f32 */
} Rules;

static bool rules_is_float(const Rules *r, ValueId v) {
    DType d = v.i ? value_dtype(r->g, v) : NUM_DTYPES;
    return d == DT_F32 || d == r->low;
}

static ValueId cast_to(Rules *r, ValueId v, DType d) {
    Attr user = attr_i(AK_user, 1);
    if (!rules_is_float(r, v) || value_dtype(r->g, v) == d) return v;
    ValueId *c = &r->cast[d == DT_F32][v.i];
    if (!c->i) *c = build(&r->b, OP_CAST, &v, 1, &user, 1, d, NULL);
    return *c;
}

/* ---- which rule ---------------------------------------------------------- */

static TorchRule rules_rule_of(const Rules *r, const Node *n) {
    TorchRule rule = node_info(n)->torch;
    AmpClass class = node_class(n);
    /* and whatever evaluation computes from it */
    bool loss = (n->fn && node_info(n)->amp == AMP_FULLOUT) ||
                (r->g->program == PROGRAM_EVAL && !r->model[n->out[0].i]);
    bool lists = r->opt->placement == PLACE_PYTORCH && !n->loc.amp;
    if (loss || n->op == OP_RANK_MAX || (n->loc.amp && class == AMP_FULL))
        return TORCH_WIDE;
    if (n->loc.amp && class == AMP_FULLOUT) return TORCH_RESULT;
    if (n->loc.amp && class == AMP_LOW) return TORCH_LOW;
    return lists || rule == TORCH_FIRST ? rule : TORCH_PROMOTE;
}

static bool is_leaf(const Graph *g, ValueId v) {
    ValueKind kind = value_get(g, view_root(g, v))->kind;
    return kind == VK_VAR || kind == VK_CONST;
}

/* The operand of n that is a product's result and to which n adds a bias;
   -1: none. */
static int find_biased(const Graph *g, const Node *n, const int *uses) {
    for (int k = 0; k < 2 && n->op == OP_ADD; k++) {
        ValueId y = n->in[k], b = n->in[!k];
        const Value *val = value_get(g, y);
        if (val->kind == VK_RESULT && uses[y.i] == 1 && is_leaf(g, b) &&
            node_kind(node_get(g, val->def)) == KIND_ANCHOR &&
            value_count(g, b) < value_count(g, y))
            return k;
    }
    return -1;
}

/* ---- one node ------------------------------------------------------------ */

/* True for leaves that are 16 bits in a 16-bit model: all except single
   numbers, and constants beyond the range of 16 bits. */
static bool halves(const Rules *r, ValueId v) {
    const Value *val = value_get(r->g, v);
    const Type *t = value_type(r->g, v);
    double most = dtype_info[r->low].most;
    switch (val->kind) {
    case VK_INPUT: return true;
    case VK_CONST: return type_count(t) > 1 && r->origins.bound[v.i] <= most;
    case VK_VAR:
        return !r->norm[val->var] && value_var(r->g, v)->kind <= VAR_BUFFER;
    case VK_RESULT: break;
    }
    return false;
}

/* True if n, in a 16-bit model, is a product of a 16-bit operand and one
   left in f32 by a class or as a large constant: from here on values are 16
   bits, since the product reads 16 bits. */
static bool meets_halves(const Rules *r, const Node *n) {
    bool wide = false, low = false;
    for (int k = 0; k < n->nin; k++) {
        ValueId v = n->in[k];
        if (!rules_is_float(r, v)) continue;
        bool half = value_dtype(r->g, v) == r->low || halves(r, v);
        low |= half;
        wide |= !half;
    }
    return wide && low && node_info(n)->amp == AMP_LOW;
}

static ValueId rules_operand(Rules *r, TorchRule rule, ValueId v) {
    if (!rules_is_float(r, v)) return v;
    if (rule == TORCH_WIDE) return cast_to(r, v, DT_F32);
    if (rule == TORCH_LOW && !r->biased[v.i]) return cast_to(r, v, r->low);
    return r->opt->half_model && halves(r, v) ? cast_to(r, v, r->low) : v;
}

static DType result(const Rules *r, const Node *n, TorchRule rule) {
    DType tensor = NUM_DTYPES, number = NUM_DTYPES;
    switch (rule) {
    case TORCH_LOW: return r->low;
    case TORCH_WIDE:
    case TORCH_RESULT: return DT_F32;
    case TORCH_FIRST: return value_dtype(r->g, n->in[0]);
    case TORCH_PROMOTE: break;
    }
    for (int k = 0; k < n->nin; k++) {
        ValueId v = n->in[k];
        if (!rules_is_float(r, v)) continue;
        const Type *t = value_type(r->g, v);
        bool one = !t->rank || (type_count(t) == 1 && is_leaf(r->g, v));
        DType *d = one ? &number : &tensor;
        if (*d != DT_F32) *d = t->dtype;
    }
    /* single numbers do not count among tensors */
    return tensor == NUM_DTYPES ? number : tensor;
}

static void do_node(Rules *r, NodeId id) {
    Graph *g = r->g;
    Node *n = node_get(g, id);
    TorchRule rule = rules_rule_of(r, n);
    bool add = false; /* of a bias */
    r->b.loc = n->loc;
    for (int k = 0; k < n->nin; k++) add |= r->biased[n->in[k].i];
    if (add ||
        (r->opt->half_model && rule == TORCH_PROMOTE && meets_halves(r, n)))
        rule = TORCH_LOW;
    for (int k = 0; k < n->nin; k++) {
        if (n->fn && n->fn->operands.data[k].kind == FO_ANY) continue;
        ValueId v = rules_operand(r, rule, n->in[k]);
        n = node_get(g, id); /* building may move the pool */
        n->in[k] = v;
    }
    vec_push(g->arena, &g->order, id);
    DType d = result(r, n, rule);
    if (n->op == OP_CAST || d == NUM_DTYPES) return;
    for (int k = 0; k < n->nout; k++) {
        Value *val = value_get(g, n->out[k]);
        bool fixed = n->fn && n->fn->results.data[k].dtype != NUM_DTYPES;
        if (fixed || !rules_is_float(r, n->out[k])) continue;
        DType own = r->biased[n->out[k].i] ? DT_F32 : d;
        val->type = type_with_dtype(val->type, own);
        val->why = g->module->rule;
    }
}

static void note(Rules *r, Arena *a) {
    Graph *g = r->g;
    const int *uses = graph_use_counts(g, a);
    ValueId *model = NEW_ARRAY(a, ValueId, g->outputs.len);
    int n = 0;
    for (int i = 0; i < g->outputs.len; i++)
        if (!name_is_own(g->outputs.data[i].name))
            model[n++] = g->outputs.data[i].value;
    r->model = needed_by(g, a, model, n);
    for (int i = 0; i < g->order.len; i++) {
        const Node *x = node_at(g, i);
        int k = find_biased(g, x, uses);
        if (k >= 0 && rules_rule_of(r, x) == TORCH_PROMOTE)
            r->biased[x->in[k].i] = true;
    }
}

static void do_graph(Graph *g, PassCtx *cx, const bool *norm) {
    Arena *a = cx->scratch;
    int n, values = g->values.len;
    Rules r = {.g = g, .opt = cx->opt, .low = g->module->low, .b = {.g = g}};
    r.norm = norm;
    r.origins = origins_of(g, a);
    r.biased = NEW_ARRAY(a, bool, values);
    for (int i = 0; i < 2; i++) r.cast[i] = NEW_ARRAY(a, ValueId, values);
    note(&r, a);
    NodeId *old = order_take(g, a, &n);
    for (int i = 0; i < n; i++) do_node(&r, old[i]);
    r.b.loc = (Loc){0};
    for (int i = 0; i < g->outputs.len; i++) /* outputs were f32 before */
        g->outputs.data[i].value =
            cast_to(&r, g->outputs.data[i].value, DT_F32);
    for (int i = 0; i < g->writes.len; i++) {
        Write *w = &g->writes.data[i];
        w->value = cast_to(&r, w->value, value_dtype(g, w->var));
    }
}

/* ---- variables ----------------------------------------------------------- */

static void find_norms(const Module *m, bool *norm) {
    for (int i = 0; i < m->graphs.len; i++) {
        const Graph *g = m->graphs.data[i];
        for (int k = 0; k < g->order.len; k++) {
            const Node *n = node_at(g, k);
            for (int j = 1; is_call(n, "batch_norm") && j < n->nin; j++)
                if (value_get(g, n->in[j])->kind == VK_VAR)
                    norm[value_get(g, n->in[j])->var] = true;
        }
    }
}

Status pass_rules(Module *m, PassCtx *cx) {
    const Options *o = cx->opt;
    bool *norm = NEW_ARRAY(cx->scratch, bool, m->vars.len + 1);
    if (o->half_model && o->placement == PLACE_PYTORCH) {
        fail(cx->diag, (Loc){0},
             "--placement pytorch: a model of 16 bits (--precision O2, O3) has "
             "no casts to place");
        return ERR_USAGE;
    }
    TRY(compact_params(m, o, cx->diag, cx->scratch));
    if (!o->fp16_residuals && o->residuals < INFINITY &&
        (o->half_model || o->precision == PREC_FP16)) {
        fail(cx->diag, (Loc){0},
             "--placement exact,residuals=N is for bf16: fp16 would overflow "
             "in residual streams, and a model of 16 bits (--precision O2, O3) "
             "has its own types");
        return ERR_USAGE;
    }
    if (o->precision == PREC_FP32 ||
        (!o->half_model && o->placement == PLACE_EXACT))
        return OK;
    m->low = precision_dtype[o->precision];
    m->rule = o->half_model ? "Apex's rule" : "torch.autocast's rule";
    if (o->half_model && o->keep_batchnorm) find_norms(m, norm);
    if (o->half_model && !o->master_weights) { /* variables of 16 bits */
        warn(cx->diag, (Loc){.file = m->file},
             "parameters of 16 bits without f32 masters: updates below half a "
             "unit in the last place are lost");
        for (int i = 0; i < m->vars.len; i++) {
            const Var *v = &m->vars.data[i];
            if (v->kind <= VAR_BUFFER && !norm[i] &&
                type_get(v->type)->dtype == DT_F32)
                var_narrow(m, i, m->low);
        }
    }
    for (int i = 0; i < m->graphs.len; i++)
        do_graph(m->graphs.data[i], cx, norm);
    return OK;
}
