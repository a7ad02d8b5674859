/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_bisect_slice.c: see cmd_bisect.h.

   A kernel stores only its last values. Its inner values are interpreted for
   both modules: the same nodes from the same operands. */
#include "frontend/cli/cmd_bisect.h"

#include <math.h>
#include <string.h>

/* ---- numbers ------------------------------------------------------------- */

double tensors_apart(const Tensor *a, double times, const Tensor *b) {
    int64_t n = type_count(type_get(a->type));
    bool whole = !dtype_is_float(type_get(a->type)->dtype);
    double apart = 0, size_a = 0, size_b = 0;
    if (n != type_count(type_get(b->type))) return INFINITY;
    for (int64_t i = 0; i < n; i++) {
        double x = times * tensor_get(a, i), y = tensor_get(b, i);
        if (whole && tensor_get_int(a, i) != tensor_get_int(b, i))
            return INFINITY;
        if (x == y || (isnan(x) && isnan(y))) {
            if (!isfinite(x)) continue;
        } else if (!isfinite(x) || !isfinite(y)) {
            return INFINITY;
        }
        apart += (x - y) * (x - y);
        size_a += x * x;
        size_b += y * y;
    }
    return apart == 0 ? 0 : sqrt(apart / fmax(size_a, size_b));
}

int64_t tensors_furthest(const Tensor *a, double times, const Tensor *b) {
    int64_t at = 0, n = type_count(type_get(a->type));
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = times * tensor_get(a, i), y = tensor_get(b, i);
        double apart = x == y ? 0 : fabs(x - y);
        if (isnan(apart)) apart = isnan(x) && isnan(y) ? 0 : INFINITY;
        if (apart > most) most = apart, at = i;
    }
    return at;
}

double tensor_size(const Tensor *t) {
    int64_t n = type_count(type_get(t->type));
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = tensor_get(t, i);
        if (isfinite(x)) sum += x * x;
    }
    return n ? sqrt(sum / (double)n) : 0;
}

/* ---- what is in memory --------------------------------------------------- */

static const Tensor *over(Arena *a, TypeId type, void *bytes) {
    Tensor *t = NEW(a, Tensor);
    *t = (Tensor){type, bytes};
    return t;
}

static const Tensor *input_value(const Side *x, const Value *v, Arena *a) {
    for (int i = 0; i < x->feed.n; i++) {
        const Feed *f = &x->feed.feed[i];
        if (strcmp(f->want.name, v->name)) continue;
        return over(a, v->type, (void *)(uintptr_t)x->feed.in[i].data);
    }
    return NULL;
}

/* A program makes copies of parameters when it first runs: here they are made
   from the parameters. */
static const Tensor *variable_value(const Side *x, const Seen *p,
                                    const Value *v, Arena *a) {
    const Module *m = p->g->module;
    const Var *var = &m->vars.data[v->var];
    int source = var->kind == VAR_SHADOW ? shadow_source(m, var) : -1;
    if (source >= 0) var = &m->vars.data[source];
    /* program micro's sums belong to this step, not to an earlier one */
    if (var->kind == VAR_GRAD && p->g->program == PROGRAM_UPDATE) return NULL;
    const Before *before = side_before(x, var->name);
    if (!before) return NULL;
    const Tensor *t = over(a, var->type, before->bytes);
    return source < 0 ? t : eval_to_tensor(a, eval_from_tensor(a, t), v->type);
}

const Tensor *known_value(const Side *x, const Seen *p, ValueId v, Arena *a) {
    const Value *val = value_get(p->g, v);
    switch (val->kind) {
    case VK_CONST: return val->data;
    case VK_INPUT: return input_value(x, val, a);
    case VK_VAR: return variable_value(x, p, val, a);
    case VK_RESULT: break;
    }
    return p->bytes[v.i] ? over(a, val->type, p->bytes[v.i]) : NULL;
}

Mark mark_of(const Side *x, const Seen *p, ValueId v) {
    const Value *val = value_get(p->g, v);
    const Before *before =
        val->kind == VK_VAR
            ? side_before(x, p->g->module->vars.data[val->var].name)
            : NULL;
    return before ? before->mark : p->mark[v.i];
}

bool is_noise(const Slice *x, ValueId v) {
    const double far = 0.5;
    const Value *val = value_get(x->p->g, v);
    bool computed = val->kind == VK_RESULT || val->kind == VK_VAR;
    Mark mark = mark_of(x->side, x->p, v);
    if (mark != MARK_NONE) return mark == MARK_NOISE;
    if (!computed || !val->name || !dtype_is_float(type_get(val->type)->dtype))
        return false;
    ValueId w = graph_find_value(x->q->g, val->name);
    Arena *a = arena_new();
    const Tensor *own = known_value(x->side, x->p, v, a);
    const Tensor *theirs = w.i ? known_value(x->other, x->q, w, a) : NULL;
    double ratio = side_scale(x->side) / side_scale(x->other);
    bool apart = own && theirs && tensors_apart(theirs, 1, own) > far &&
                 (ratio == 1 || tensors_apart(theirs, ratio, own) > far);
    arena_free(a);
    return apart;
}

/* ---- the nodes ----------------------------------------------------------- */

static double slice_work_of(const Graph *g, const Node *n) {
    double most = 1;
    for (int i = 0; i < n->nin; i++)
        if (n->in[i].i) most = fmax(most, (double)value_count(g, n->in[i]));
    for (int i = 0; i < n->nout; i++)
        most = fmax(most, (double)value_count(g, n->out[i]));
    OpKind kind = node_kind(n);
    if (kind != KIND_ANCHOR) return most;
    /* a product of matrices with this number of elements each */
    double a = (double)value_count(g, n->in[0]);
    double b = (double)value_count(g, n->in[1]);
    return sqrt(a * b * (double)value_count(g, n->out[0]));
}

/* True if the other side has it in memory. */
static bool is_common(const Slice *x, ValueId v) {
    const Value *val = value_get(x->p->g, v);
    if (val->kind != VK_RESULT) return true;
    ValueId w = graph_find_value(x->q->g, val->name);
    return w.i && x->q->bytes[w.i] &&
           value_count(x->q->g, w) == value_count(x->p->g, v);
}

static bool slice_need(Slice *x, ValueId v, bool *seen, bool target, Arena *a) {
    const Graph *g = x->p->g;
    if (!v.i || seen[v.i]) return true;
    seen[v.i] = true;
    const Tensor *known =
        target || !is_common(x, v) ? NULL : known_value(x->side, x->p, v, a);
    if (known) {
        if (dtype_is_float(type_get(known->type)->dtype))
            x->largest = fmax(x->largest, tensor_size(known));
        return true;
    }
    if (value_get(g, v)->kind != VK_RESULT) return false;
    NodeId id = value_get(g, v)->def;
    const Node *n = node_get(g, id);
    for (int i = 0; i < n->nin; i++)
        if (!slice_need(x, n->in[i], seen, false, a)) return false;
    for (int i = 0; i < n->nout; i++) seen[n->out[i].i] = true;
    x->work += slice_work_of(g, n);
    vec_push(x->side->s->arena, &x->order, id);
    return true;
}

bool slice_find(Slice *x, const Side *side, const Seen *p, ValueId v,
                const Side *other, const Seen *q) {
    *x = (Slice){.side = side, .other = other, .p = p, .q = q};
    Arena *a = arena_new();
    bool *seen = NEW_ARRAY(a, bool, p->g->values.len);
    bool all = slice_need(x, v, seen, true, a);
    arena_free(a);
    return all;
}

/* t as the side whose own value is `own` has it: a gradient that is
   multiplied by another loss scale is multiplied by the ratio of the two. */
static const Tensor *with_scale_of(const Tensor *own, double ratio,
                                   const Tensor *t, Arena *a) {
    bool same = !own || ratio == 1 || !dtype_is_float(type_get(t->type)->dtype);
    if (same || tensors_apart(t, 1, own) <= tensors_apart(t, ratio, own))
        return t;
    TypeId type = type_with_dtype(t->type, DT_F32);
    Tensor *to = NEW(a, Tensor);
    *to = (Tensor){type, arena_alloc(a, (size_t)type_bytes(type_get(type)))};
    for (int64_t i = 0; i < type_count(type_get(type)); i++)
        tensor_set(to, i, ratio * tensor_get(t, i));
    return to;
}

static const Tensor *slice_operand(const Slice *x, const Slice *like, ValueId v,
                                   Arena *a) {
    const Value *val = value_get(x->p->g, v);
    const Tensor *own = known_value(x->side, x->p, v, a);
    if (is_noise(x, v)) return own;
    if (like && val->name && val->kind != VK_CONST) {
        ValueId w = graph_find_value(like->p->g, val->name);
        const Tensor *t = w.i ? known_value(like->side, like->p, w, a) : NULL;
        double ratio = side_scale(x->side) / side_scale(like->side);
        if (t && shape_equal(type_get(t->type), type_get(val->type)))
            return val->kind == VK_RESULT ? with_scale_of(own, ratio, t, a) : t;
    }
    return own;
}

/* Changes each element up or down at random. The last repetition changes all
   elements of a value alike; elements whose sums are in fp32, all upwards,
   which is the worst that an order of the sum can do. */
static void change(const Slice *x, ValueId v) {
    EvalTensor *t = x->value[v.i];
    const Unit *u = x->unit ? &x->unit[v.i] : NULL;
    if (!u || u->part == 0 || !t->f) return;
    uint32_t state = v.i * 2654435761u + (uint32_t)x->repetition * 40503u;
    bool alike = x->repetition == ROUNDING_REPETITIONS - 1;
    for (int64_t k = 0; k < type_count(type_get(t->type)); k++) {
        double size = u->part * fmax(fabs(t->f[k]), u->least);
        if (t->f[k] == 0) continue;
        if (alike && !u->adds_up) size = copysign(size, t->f[k]);
        if (!alike || k == 0) state = state * 1664525u + 1013904223u;
        bool down = state >> 31 && !(alike && u->adds_up);
        t->f[k] += down ? -size : size;
    }
}

static void slice_load(Slice *x, const Slice *like, ValueId v, Arena *a) {
    const Tensor *t = slice_operand(x, like, v, a);
    if (!t) return;
    x->value[v.i] = eval_from_tensor(a, t);
    change(x, v);
}

Status slice_run(Slice *x, const Slice *like, Arena *a, Diag *d) {
    const Graph *g = x->p->g;
    x->value = NEW_ARRAY(a, EvalTensor *, g->values.len);
    for (int i = 0; i < x->order.len; i++) {
        const Node *n = node_get(g, x->order.data[i]);
        const EvalTensor **in = NEW_ARRAY(a, const EvalTensor *, n->nin + 1);
        EvalTensor **out = NEW_ARRAY(a, EvalTensor *, n->nout + 1);
        char msg[MSG_TEXT] = "";
        for (int k = 0; k < n->nin; k++) {
            if (!n->in[k].i) continue;
            if (!x->value[n->in[k].i]) slice_load(x, like, n->in[k], a);
            in[k] = x->value[n->in[k].i];
            if (x->chosen && x->chosen[n->in[k].i])
                in[k] = x->chosen[n->in[k].i];
            if (!in[k]) return fail(d, n->loc, "an operand is not known");
        }
        if (eval_node(g, x->order.data[i], a, EVAL_STORAGE, in, out, msg) != OK)
            return fail(d, n->loc, "%s", msg);
        for (int k = 0; k < n->nout; k++) {
            x->value[n->out[k].i] = out[k];
            if (out[k]) change(x, n->out[k]);
        }
    }
    return OK;
}
