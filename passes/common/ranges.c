/* SPDX-License-Identifier: Apache-2.0 */
/* ranges.c: warns of constants and options that 16-bit types cannot represent.
   Changes nothing.  Each finding is a warning at the node of the model, with
   what to do:
     training in fp16 without a loss scale, or with one that is too large
     Adam that divides by zero where a gradient is zero
     weights and constants whose 16-bit copy is infinite, zero or one
     constants, mostly masks, that make a 16-bit result infinite
     integers that the model itself casts to 16 bits
     logarithms of probabilities stored in 16 bits
   Scalars need no check: kernels hold them in fp32.
   requires     stage CAST                                                   */
#include "ir/fn/fn.h"
#include "passes/passes.h"

#include <math.h>

typedef struct Ranges {
    const Graph *g;
    Diag *diag;
    const Options *opt;
    Arena *scratch;
} Ranges;

/* Facts of a 16-bit type, for messages. */
typedef struct Low {
    double most;  /* largest finite                       */
    double least; /* normal                              */
    int exact;    /* largest range of consecutive integers */
    double one;   /* from this x on, sigmoid(x) rounds to 1 */
} Low;

static Low range_low_of(DType d) {
    const DTypeInfo *i = &dtype_info[d];
    return (Low){i->most, i->least, 1 << i->mantissa,
                 (i->mantissa + 1) * log(2)};
}

/* The --precision whose type has a longer range. */
static const char *longer_range(DType d) {
    return dtype_is_short(d) ? "bf16" : "fp32";
}

/* ---- options ------------------------------------------------------------- */

static void check_scale(const Ranges *r) {
    const ScaleSpec *c = &r->opt->scale;
    bool one = c->kind == SCALE_STATIC && c->init <= 1;
    if (r->opt->precision != PREC_FP16) return;
    if (c->kind == SCALE_NONE || one)
        warn(r->diag, (Loc){0},
             "fp16 without a loss scale: gradients of 3e-8 and below become 0; "
             "--loss-scale dynamic is the default");
    if (c->kind == SCALE_STATIC && c->init > 0x1p24)
        warn(r->diag, (Loc){0},
             "--loss-scale static=%g: gradients of %.2g and above leave fp16; "
             "--loss-scale dynamic finds a scale",
             c->init, 65504 / c->init);
}

/* A parameter without a gradient, such as an unused row of a table: 0 / 0. */
static void check_eps(const Ranges *r) {
    const Objective *j = options_objective(r->opt, r->g->objective);
    const double *eps = j ? optimizer_key(&j->optimizer, "eps") : NULL;
    if (!eps || (float)*eps > 0) return;
    warn(r->diag, (Loc){0},
         "--optimizer: eps=%g is 0 in fp32: where a gradient is 0, the update "
         "is 0/0 and spoils the parameter; 1e-8 is the default",
         *eps);
}

/* ---- weights and constants ----------------------------------------------- */

/* The data of a constant or of a variable with initial values; NULL if there
   are none. Random numbers are drawn only if many of them may be lost in 16
   bits. */
static const Tensor *data_of(const Ranges *r, ValueId v, DType d) {
    const Value *val = value_get(r->g, v);
    if (val->kind == VK_CONST) return val->data;
    if (val->kind != VK_VAR) return NULL;
    const Var *var = value_var(r->g, v);
    double most = draw_bound(&var->draw);
    bool safe = most <= range_low_of(d).most && most > 0x1p-20;
    return var->draw.kind && safe ? NULL : var_initial(r->scratch, var);
}

/* The effect of a cast on the elements of its operand. */
typedef struct Lost {
    int64_t n, infinite, zero, one;
    double example; /* an element of the worst kind */
} Lost;

static Lost lost_in(const Tensor *t, DType d) {
    Lost l = {.n = type_count(type_get(t->type))};
    double worst[3] = {0};
    Low low = range_low_of(d);
    for (int64_t i = 0; i < l.n; i++) {
        double x = tensor_get(t, i), a = fabs(x);
        if (a <= low.most && a >= low.least && fabs(x - 1) > 0x1p-6) continue;
        double y = dtype_nearest(d, x);
        if (isfinite(x) && !isfinite(y)) {
            l.infinite++;
            worst[0] = x;
        } else if (x != 0 && y == 0) {
            l.zero++;
            worst[1] = x;
        } else if (x != 1 && y == 1) {
            l.one++;
            worst[2] = x;
        }
    }
    l.example = l.infinite ? worst[0] : l.zero ? worst[1] : worst[2];
    return l;
}

/* Warns of constants that a cast changes. Weights near 0 or 1 are ordinary
   and give no warning; a constant near 0 or 1 was chosen deliberately. */
static void check_cast(const Ranges *r, const Node *n) {
    const Value *from = value_get(r->g, n->in[0]);
    DType d = value_dtype(r->g, n->out[0]);
    const Tensor *t = data_of(r, n->in[0], d);
    if (!t || !dtype_is_float(type_get(t->type)->dtype)) return;
    Lost l = lost_in(t, d);
    const char *text = dtype_info[d].text;
    if (l.infinite)
        warn(r->diag, n->loc,
             "'%s': %lld of %lld elements, one of them %g, are beyond %s's "
             "%g and infinite in its 16-bit copy; use --precision %s",
             from->name, (long long)l.infinite, (long long)l.n, l.example, text,
             range_low_of(d).most, longer_range(d));
    else if (l.zero && l.zero >= l.n - l.n / 2)
        warn(r->diag, n->loc,
             "'%s': %lld of %lld elements, one of them %g, become 0 in %s; use "
             "--precision %s",
             from->name, (long long)l.zero, (long long)l.n, l.example, text,
             longer_range(d));
    else if (l.one && from->kind == VK_CONST)
        warn(r->diag, n->loc, "constant '%s': %.9g becomes 1 in %s; use fp32",
             from->name, l.example, text);
}

/* ---- constants beside 16-bit values -------------------------------------- */

/* The constant that v repeats, or NULL. */
static const Tensor *constant(const Graph *g, ValueId v) {
    const Value *val = value_get(g, v);
    while (val->kind == VK_RESULT) {
        const Node *n = node_get(g, val->def);
        if (n->op != OP_RESHAPE && n->op != OP_EXPAND) return NULL;
        val = value_get(g, n->in[0]);
    }
    return val->kind == VK_CONST ? val->data : NULL;
}

static void check_operand(const Ranges *r, const Node *n, int k) {
    const Tensor *t = constant(r->g, n->in[k]);
    DType d = value_dtype(r->g, n->out[0]);
    if (!t || !dtype_is_float(type_get(t->type)->dtype)) return;
    for (int64_t i = 0, end = type_count(type_get(t->type)); i < end; i++) {
        double x = tensor_get(t, i);
        if (!isfinite(x) || isfinite(dtype_nearest(d, x))) continue;
        warn(r->diag, n->loc,
             "%s: the constant %g is beyond %s's %g, and the result infinite: "
             "as a mask, a softmax over nothing else gives NaN; use a constant "
             "within the range, or compute this in fp32",
             op_info[n->op].text, x, dtype_info[d].text, range_low_of(d).most);
        return;
    }
}

/* ---- ops ----------------------------------------------------------------- */

static void check_integers(const Ranges *r, const Node *n) {
    const DTypeInfo *from = &dtype_info[value_dtype(r->g, n->in[0])];
    DType d = value_dtype(r->g, n->out[0]);
    if (!attr_int(n, AK_user) || from->mantissa <= 8) return;
    warn(r->diag, n->loc,
         "the model casts %s to %s, in which integers beyond %d are not exact; "
         "cast to f32",
         from->text, dtype_info[d].text, range_low_of(d).exact);
}

/* The sigmoid or softmax in 16 bits from which v is computed by arithmetic
   with constants only; NULL if there is none. */
static const Node *probability(const Graph *g, ValueId v) {
    for (int hops = 0; hops < 4; hops++) {
        const Value *val = value_get(g, v);
        if (val->kind != VK_RESULT) return NULL;
        const Node *n = node_get(g, val->def);
        if (n->op == OP_SIGMOID || is_call(n, "softmax"))
            return dtype_is_low(value_dtype(g, n->out[0])) ? n : NULL;
        if (n->op != OP_CAST && n->op != OP_CLIP && n->op != OP_SUB &&
            n->op != OP_ADD && n->op != OP_MAX)
            return NULL;
        v = n->nin > 1 && constant(g, n->in[0]) ? n->in[1] : n->in[0];
    }
    return NULL;
}

static void check_log(const Ranges *r, const Node *n) {
    const Node *p = probability(r->g, n->in[0]);
    if (!p) return;
    DType d = value_dtype(r->g, p->out[0]);
    bool sigmoid = p->op == OP_SIGMOID;
    if (sigmoid)
        warn(r->diag, n->loc,
             "log of a sigmoid in %s, which is 1 from %.3g on: log(1 - p) is "
             "-inf; compute the loss from the logits (--loss bce_with_logits)",
             dtype_info[d].text, range_low_of(d).one);
    else
        warn(r->diag, n->loc,
             "log of a softmax in %s, which may be 0: compute the loss from "
             "the logits (log_softmax, --loss cross_entropy)",
             dtype_info[d].text);
}

static void range_check_node(const Ranges *r, const Node *n) {
    if (n->op == OP_LOG) check_log(r, n);
    if (!n->nout || !dtype_is_low(value_dtype(r->g, n->out[0]))) return;
    if (n->op == OP_CAST) {
        check_cast(r, n);
        if (!dtype_is_float(value_dtype(r->g, n->in[0]))) check_integers(r, n);
    }
    /* bounds (min, max, clip) outside of the range never take effect */
    bool where = n->op == OP_WHERE;
    if (n->op != OP_ADD && n->op != OP_SUB && n->op != OP_MUL && !where) return;
    for (int k = where ? 1 : 0; k < n->nin; k++) check_operand(r, n, k);
}

/* All programs come from the same nodes, so that checking one of them is
   enough. */
Status pass_ranges(Module *m, PassCtx *cx) {
    Ranges r = {NULL, cx->diag, cx->opt, cx->scratch};
    if (!m->graphs.len) return OK;
    r.g = m->graphs.data[0];
    for (int i = 0; i < m->graphs.len && r.g->program != PROGRAM_TRAIN; i++)
        if (m->graphs.data[i]->program == PROGRAM_TRAIN)
            r.g = m->graphs.data[i];
    if (r.g->program == PROGRAM_TRAIN) {
        check_scale(&r);
        check_eps(&r);
    }
    for (int i = 0; i < r.g->order.len; i++)
        range_check_node(&r, node_at(r.g, i));
    return OK;
}
