/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_use.c: how the model uses each initializer: whether a gradient
   reaches it, whether an op uses it as a weight, and whether it only
   normalises an input or is a statistic of a normalisation written as
   arithmetic. */
#include <string.h>

#include "frontend/onnx/onnx.h"

/* ---- roles --------------------------------------------------------------- */

bool ox_among(unsigned mask, int operand) {
    return mask >> (operand < 30 ? operand : 30) & 1;
}

bool ox_elementwise(const OxNode *n) {
    return n->op->handler == OX_elem && ox_among(n->op->weight, 1);
}

/* A subgraph, and the values that its inputs stand for in the model (such as
   a weight that a loop passes on); NULL: computed in the surrounding one. */
typedef struct Body {
    const struct Body *up;
    StrMap formal; /* an input's name to its index in `actual` */
    OxName *const *actual;
} Body;

/* The meaning of a name inside the innermost of nested bodies of `owner`;
   NULL: it is defined inside. */
static OxName *outside(const Ox *ox, const OxNode *owner, const Body *body,
                       const char *name) {
    for (; body; body = body->up) {
        int i = str_map_get(&body->formal, ox_text(name));
        if (i >= 0) return body->actual[i];
    }
    return ox_name_of(ox, ox_scoped(owner, name));
}

/* Finds weights that the body of an If, a Loop or a Scan reads; single
   numbers there are bounds or steps, not weights. */
static void find_body_roles(Ox *ox, const OxNode *owner, const Body *up,
                            OxName *const *actual, size_t n,
                            const Onnx__GraphProto *g) {
    Body body = {.up = up, .actual = actual};
    for (size_t i = 0; i < g->n_input && i < n; i++)
        str_map_put(ox->scratch, &body.formal, ox_text(g->input[i]->name),
                    (int)i);
    for (size_t i = g->n_node; i-- > 0;) {
        const Onnx__NodeProto *p = g->node[i];
        const OxOp *op = ox_op_in(onnx_domain(p), ox_text(p->op_type));
        OxName **in = NEW_ARRAY(ox->scratch, OxName *, p->n_input);
        for (size_t k = 0; k < p->n_input; k++) {
            in[k] = outside(ox, owner, &body, p->input[k]);
            if (op && in[k] && in[k]->kind == OX_INIT && !in[k]->role &&
                ox_among(op->weight, (int)k) &&
                onnx_may_be_weight(ox->inits.data[in[k]->index].proto))
                in[k]->role = owner;
        }
        for (size_t k = 0; k < p->n_attribute; k++)
            if (p->attribute[k]->g)
                find_body_roles(ox, owner, &body, in, p->n_input,
                                p->attribute[k]->g);
    }
}

static void find_roles_inside(Ox *ox, const OxNode *n) {
    OxName **in = NULL;
    for (int k = 0; k < n->nattr; k++) {
        if (!n->attr[k].p->g) continue;
        if (!in) {
            in = NEW_ARRAY(ox->scratch, OxName *, n->nin);
            for (int i = 0; i < n->nin; i++) in[i] = ox_name_of(ox, n->in[i]);
        }
        find_body_roles(ox, n, NULL, in, (size_t)n->nin, n->attr[k].p->g);
    }
}

/* The bound of a clamp may train (PACT), but it is in no weight's place. */
static bool is_bound(const OxNode *n, int operand) {
    return n->op->handler == OX_clip && operand > 0;
}

/* Goes backwards over the live nodes: marks everything that reaches an
   output through differentiable operands, and the operands used as weights. */
static void find_roles(Ox *ox) {
    for (size_t i = 0; i < ox->graph->n_output; i++)
        ox_name_of(ox, intern(ox->graph->output[i]->name))->reaches = true;
    for (int i = ox->order.len - 1; i >= 0; i--) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        bool reaches = false, detached = false;
        const OxNode *role = NULL;
        for (int r = 0; r < n->nout; r++) {
            const OxName *out = ox_name_of(ox, n->out[r]);
            if (!out) continue;
            reaches |= out->reaches && !ox_stops(ox, n, r);
            detached |= out->detached || (out->reaches && ox_detaches(ox, n));
            if (!role) role = out->role;
        }
        for (int k = 0; k < n->nin && detached; k++)
            if (ox_name_of(ox, n->in[k]) && !ox_among(n->op->nd, k))
                ox_name_of(ox, n->in[k])->detached = true;
        for (int k = 0; k < n->nin && reaches; k++) {
            OxName *in = ox_name_of(ox, n->in[k]);
            if (!in || ox_among(n->op->nd, k)) continue;
            in->reaches = true;
            if (is_bound(n, k)) continue;
            if (ox_among(n->op->weight, k) && (!in->role || !ox_elementwise(n)))
                in->role = n;
            else if (n->op->weight >> 31 && !in->role)
                in->role = role;
        }
        if (reaches) find_roles_inside(ox, n);
    }
}

/* ---- data and statistics ------------------------------------------------- */

static bool does(const OxNode *n, OpCode core) {
    return n->op->handler == OX_elem && n->op->core == core;
}

static bool float_of(const Onnx__TensorProto *t, double *out) {
    float f;
    if (!t || t->data_type != ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT)
        return false;
    for (size_t i = 0; i < t->n_dims; i++)
        if (t->dims[i] != 1) return false;
    if (t->n_float_data == 1)
        f = t->float_data[0];
    else if (t->has_raw_data && t->raw_data.len == sizeof f)
        memcpy(&f, t->raw_data.data, sizeof f);
    else
        return false;
    *out = (double)f;
    return true;
}

/* The only element of an initializer or of a Constant node. */
static bool use_number_of(Ox *ox, Str name, double *out) {
    const OxName *n = ox_name_of(ox, name);
    if (!n || n->kind == OX_INPUT) return false;
    if (n->kind == OX_INIT)
        return float_of(ox->inits.data[n->index].proto, out);
    const Onnx__NodeProto *p = ox->nodes.data[n->index].proto;
    if (!onnx_is_op(p, "Constant") || p->n_attribute != 1) return false;
    *out = (double)p->attribute[0]->f;
    return p->attribute[0]->has_f || float_of(p->attribute[0]->t, out);
}

/* The values from which a value is computed. */
typedef struct Made {
    int source;     /* 1 + the only initializer on which it depends, besides
                       constants */
    int minus;      /* 1 + the initializer that is subtracted last */
    bool raw;       /* computed from data and constants only */
    bool epsilon;   /* a small constant is added to an initializer */
    bool negated;   /* an initializer is subtracted */
    bool deviation; /* the square root of such a sum, its inverse, or a
                       multiple */
} Made;

typedef struct Uses {
    Ox *ox;
    Made *made; /* by name */
} Uses;

static Made made_of(const Uses *u, Str name) {
    const OxName *n = ox_name_of(u->ox, name);
    DType d;
    if (!n || n->kind == OX_INPUT) return (Made){.raw = n != NULL};
    if (n->kind == OX_RESULT) return u->made[n - u->ox->names.data];
    const Onnx__TensorProto *t = u->ox->inits.data[n->index].proto;
    bool is_float = dtype_from_onnx(t->data_type, &d) && dtype_is_float(d);
    return (Made){.source = is_float ? 1 + n->index : 0};
}

static OxInit *init_at(const Uses *u, int source) {
    return &u->ox->inits.data[source - 1];
}

/* Collects these from a node's operands, except operands without a gradient. */
typedef struct Operands {
    bool raw, deviation, other;
    int source;
} Operands;

static Operands operands_of(const Uses *u, const OxNode *n) {
    Operands o = {0};
    for (int k = 0; k < n->nin; k++) {
        double v;
        Made m = made_of(u, n->in[k]);
        if (!*n->in[k] || ox_among(n->op->nd, k) ||
            use_number_of(u->ox, n->in[k], &v))
            continue;
        if (m.raw)
            o.raw = true;
        else if (m.deviation)
            o.deviation = true;
        else if (m.source && (!o.source || o.source == m.source))
            o.source = m.source;
        else
            o.other = true;
    }
    return o;
}

/* (x - mean) / std of input data. */
static void follow_data(const Uses *u, const OxNode *n, const Operands *o,
                        Made *out) {
    Made x = made_of(u, n->in[0]);
    out->raw = !o->other && !o->deviation && !o->source;
    if (!x.raw || out->raw || o->other || o->deviation) return;
    if (does(n, OP_SUB)) out->raw = true;
    if (!does(n, OP_DIV)) return;
    out->raw = true;
    init_at(u, o->source)->normalises = n;
    if (x.minus) init_at(u, x.minus)->normalises = n;
}

static bool adds_epsilon(Ox *ox, const OxNode *n) {
    double v;
    if (!does(n, OP_ADD)) return false;
    for (int k = 0; k < 2; k++)
        if (use_number_of(ox, n->in[k], &v) && v > 0 && v < 0.1) return true;
    return false;
}

static bool takes_root(Ox *ox, const OxNode *n) {
    double v;
    return does(n, OP_SQRT) || (n->op->handler == OX_pow &&
                                use_number_of(ox, n->in[1], &v) && v == -0.5);
}

/* (x - mean) (scale / sqrt(variance + epsilon)), or x times the second
   factor minus mean times it. */
static void follow_statistics(const Uses *u, const OxNode *n, const Operands *o,
                              Made *out) {
    Made x = made_of(u, n->in[0]);
    bool alone = o->source && !o->raw && !o->other && !o->deviation;
    if (alone && adds_epsilon(u->ox, n)) out->epsilon = true;
    if (alone && does(n, OP_NEG)) out->negated = true;
    if (alone && takes_root(u->ox, n) && x.epsilon) {
        init_at(u, o->source)->statistic = n;
        out->deviation = true;
    }
    if (does(n, OP_SUB) && !x.source) out->minus = made_of(u, n->in[1]).source;
    bool scales = does(n, OP_RECIPROCAL) || does(n, OP_MUL) || does(n, OP_DIV);
    if (!o->deviation || !scales) return;
    out->deviation = !o->raw && !o->other;
    for (int k = 0; k < n->nin; k++) {
        Made y = made_of(u, n->in[k]);
        int mean = y.negated ? y.source : y.minus;
        if (mean) init_at(u, mean)->statistic = n;
    }
}

/* Running statistics and a deviation of the data are read as they are stored,
   up to shape, sign, an epsilon and a root. A mean or a square of a tensor, as
   weight standardisation has it, is no statistic of the data. */
static bool keeps_source(const OxNode *n) {
    static const OpCode kept[] = {OP_ADD, OP_SUB,  OP_MUL,       OP_DIV,
                                  OP_NEG, OP_SQRT, OP_RECIPROCAL};
    if (n->op->handler == OX_reduce) return false;
    if (n->op->handler != OX_elem) return true;
    if (n->nin > 1 && n->in[0] == n->in[1]) return false;
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (n->op->core == kept[i]) return true;
    return false;
}

/* Goes forwards: computes the origin of each result. */
static void find_sources(Ox *ox) {
    Arena *tmp = arena_new();
    Uses u = {ox, NEW_ARRAY(tmp, Made, ox->names.len + 1)};
    for (int i = 0; i < ox->order.len; i++) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        const OxName *name = n->nout == 1 ? ox_name_of(ox, n->out[0]) : NULL;
        if (!name || !n->nin || n->captured) continue;
        Made *out = &u.made[name - ox->names.data];
        Operands o = operands_of(&u, n);
        if (o.source && !o.raw && !o.other && !o.deviation && keeps_source(n))
            out->source = o.source;
        if (o.raw) follow_data(&u, n, &o, out);
        follow_statistics(&u, n, &o, out);
    }
    arena_free(tmp);
}

void ox_find_uses(Ox *ox) {
    find_roles(ox);
    if (ox->inits.len) find_sources(ox);
}
