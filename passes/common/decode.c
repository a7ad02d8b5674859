/* SPDX-License-Identifier: Apache-2.0 */
/* decode.c: see decode.h.
   Before:  graph predict(%tokens: i64[1,16])
              %x = gather %wte, %tokens : f32[1,16,8]
              %y = add %x, %wpe : f32[1,16,8]
              %a = attention %q, %k, %v {causal=1} : f32[1,16,8]
   After:   graph predict(%tokens: i64[1,1], %position: i64[])
              buffer %k.kept: f32[1,16,8], ...
              %x = gather %wte, %tokens : f32[1,1,8]
              %wpe.gather = gather %wpe, %position : f32[1,8]
              %y = add %x, %wpe.gather : f32[1,1,8]
              %k.all = where (iota == %position), %k, %k.kept
              %a = attention %q, %k.all, %v.all, lens=%position + 1 {causal=1}
              write %k.kept = %k.all
   Every value has at most one axis of positions (rows.h), which shrinks to one
   element.  Values without it that meet one, such as tables and masks, are cut
   to the row of the position.  The right operand of a matrix product, keys and
   values of an attention, and masks over keys are kept whole.  What else
   combines positions is refused.
   requires     stage TYPED, program predict, no checks of indices            */
#include "passes/common/decode.h"

#include <string.h>

#include "ir/fn/fn.h"
#include "passes/common/rows.h"
#include "passes/rewrite.h"

typedef struct Decode {
    Graph *g;
    PassCtx *cx;
    Builder b;
    int64_t window, samples;
    int room;
    Rows *of;        /* per value of the old program; its axis of positions */
    ValueId *now;    /* per value: the value of the new program */
    ValueId *whole;  /* per value: all positions of it */
    ValueId at;      /* the position, i64[1] */
    ValueId counted; /* the number of positions so far, i64[samples] */
} Decode;

/* Values are made on the way. */
static void make_room(Decode *d) {
    int need = d->g->values.len + 1, room = d->room ? d->room : 64;
    if (need <= d->room) return;
    while (room < need) room *= 2;
    Rows *of = NEW_ARRAY(d->cx->scratch, Rows, room);
    ValueId *now = NEW_ARRAY(d->cx->scratch, ValueId, room);
    ValueId *whole = NEW_ARRAY(d->cx->scratch, ValueId, room);
    if (d->room) {
        memcpy(of, d->of, (size_t)d->room * sizeof *of);
        memcpy(now, d->now, (size_t)d->room * sizeof *now);
        memcpy(whole, d->whole, (size_t)d->room * sizeof *whole);
    }
    d->of = of;
    d->now = now;
    d->whole = whole;
    d->room = room;
}

static Status decode_refuse(const Decode *d, const Node *n, const char *why) {
    Loc loc = n->loc;
    if (!loc.file) loc.file = d->g->module->file;
    return fail(d->cx->diag, loc, "--decode: %s %s", node_info(n)->text, why);
}

static Status refuse_mixed(const Decode *d, NodeId id) {
    return decode_refuse(
        d, node_get(d->g, id),
        "combines positions of the text otherwise than attention to "
        "earlier ones does");
}

/* ---- values of one and of all positions ---------------------------------- */

static bool is_one(const Rows *r) { return r->outer == 1 && r->inner == 1; }

static Type cut_type(const Type *whole, const Rows *r) {
    Type t = *whole;
    if (r->has) t.dim[r->axis] = r->outer * r->inner;
    return t;
}

/* The row of the position along an axis of x, which has all positions. */
static ValueId decode_row_of(Decode *d, ValueId x, int axis) {
    Attr a = attr_i(AK_axis, axis);
    return build(&d->b, OP_GATHER, (ValueId[]){x, d->at}, 2, &a, 1, DT_DEFAULT,
                 NULL);
}

static int kept_var(Decode *d, const char *name, TypeId type) {
    Str own = internf("%s.kept", name ? name : "value");
    for (int i = 2; module_find_var(d->g->module, own) >= 0; i++)
        own = internf("%s.kept.%d", name ? name : "value", i);
    return module_var(d->g->module, VAR_BUFFER, own, type, NULL, 0);
}

/* All positions of v so far, kept in a buffer; zeros behind them. */
static ValueId decode_keep(Decode *d, ValueId v) {
    Graph *g = d->g;
    Rows r = d->of[v.i];
    Type t = *value_type(g, v);
    int64_t along[MAX_RANK];
    if (d->whole[v.i].i) return d->whole[v.i];
    ValueId old =
        graph_var(g, kept_var(d, value_get(g, v)->name, value_get(g, v)->type));
    for (int i = 0; i < t.rank; i++) along[i] = i == r.axis ? d->window : 1;
    Attr axis = attr_i(AK_axis, r.axis);
    ValueId i = build_gen(&d->b, OP_IOTA, NULL, 0, &axis, 1,
                          type_make(DT_I64, t.rank, along), NULL);
    ValueId here = b2(&d->b, OP_EQUAL, i, d->at, DT_DEFAULT);
    ValueId all = b_where(&d->b, here, d->now[v.i], old);
    graph_write(g, old, all);
    make_room(d);
    d->whole[v.i] = all;
    return all;
}

/* ---- nodes --------------------------------------------------------------- */

/* Operand v of a node whose results run over positions along `axis` of
   `rank` axes: a value of all positions is cut to its row. */
static ValueId meets(Decode *d, ValueId v, int axis, int rank) {
    if (!v.i || d->of[v.i].has) return v.i ? d->now[v.i] : v;
    const Type *t = value_type(d->g, v);
    int own = axis - (rank - t->rank);
    return own >= 0 && d->window > 1 && t->dim[own] == d->window
               ? decode_row_of(d, v, own)
               : v;
}

/* Builds n again on the operands in[]; false: with other types it would not
   give what is wanted. */
static bool decode_again(Decode *d, const Node *n, const ValueId *in) {
    Graph *g = d->g;
    Diag quiet = {0};
    NodeId made;
    Attr *attrs = NEW_ARRAY(d->cx->scratch, Attr, n->nattr + 1);
    TypeId *types = NEW_ARRAY(d->cx->scratch, TypeId, n->nout + 1);
    for (int k = 0; k < n->nout; k++) {
        Type t = cut_type(value_type(g, n->out[k]), &d->of[n->out[k].i]);
        types[k] = type_make(t.dtype, t.rank, t.dim);
    }
    const Type *first = type_get(types[0]);
    for (int i = 0; i < n->nattr; i++) {
        attrs[i] = n->attrs[i];
        bool shape = attrs[i].key == AK_shape &&
                     (n->op == OP_RESHAPE || n->op == OP_EXPAND);
        if (!n->fn &&
            (shape || (attrs[i].key == AK_sizes && n->op == OP_SLICE)))
            attrs[i] = attr_v(attrs[i].key, first->dim, first->rank);
    }
    Status st = build_checked(&d->b, &quiet, node_callee(n), in, n->nin, attrs,
                              n->nattr, n->nout, types, NULL, &made);
    sb_free(&quiet.text);
    if (st != OK) return false;
    make_room(d);
    for (int k = 0; k < n->nout; k++) {
        d->now[n->out[k].i] = node_get(g, made)->out[k];
        rewrite_take_name(g, n->out[k], d->now[n->out[k].i]);
    }
    return true;
}

/* Functions that number positions cannot be called with one position. */
static bool numbers_positions(const Graph *g, const Node *n) {
    const Type *in[MAX_FN_OPERANDS] = {0};
    for (int i = 0; i < n->nin; i++)
        in[i] = n->in[i].i ? value_type(g, n->in[i]) : NULL;
    const FnInstance *x = fn_instance(n, in);
    if (x->status != OK) return true;
    for (int i = 0; i < x->g->order.len; i++) {
        const Node *m = node_at(x->g, i);
        if (m->fn ? numbers_positions(x->g, m)
                  : m->op == OP_IOTA || m->op == OP_TRILU ||
                        m->op == OP_RAND_UNIFORM)
            return true;
    }
    return false;
}

/* A call stays a call if no operand has to be cut. */
static bool stays_call(const Decode *d, const Node *n) {
    for (int i = 0; i < n->nin; i++) {
        if (!n->in[i].i || d->of[n->in[i].i].has) continue;
        const Type *t = value_type(d->g, n->in[i]);
        for (int k = 0; k < t->rank; k++)
            if (t->dim[k] == d->window) return false;
    }
    return !numbers_positions(d->g, n);
}

static Status step(Decode *d, NodeId id);

/* The nodes of a call's body, one after the other. */
static Status decode_expand(Decode *d, const Node *n) {
    Graph *g = d->g;
    FnCall call = fn_call(n);
    char msg[MSG_TEXT];
    DType *want = NEW_ARRAY(d->cx->scratch, DType, n->nout + 1);
    ValueId *out = NEW_ARRAY(d->cx->scratch, ValueId, n->nout + 1);
    VEC(NodeId) body = {0};
    int from = g->order.len;
    for (int k = 0; k < n->nout; k++) want[k] = value_dtype(g, n->out[k]);
    call.want = want;
    TRY(fn_run(&d->b, &call, &call.fn->body, out, msg));
    for (int i = from; i < g->order.len; i++)
        vec_push(d->cx->scratch, &body, g->order.data[i]);
    g->order.len = from;
    make_room(d);
    for (int i = 0; i < body.len; i++) TRY(step(d, body.data[i]));
    for (int k = 0; k < n->nout; k++) {
        if (!out[k].i) continue;
        d->of[n->out[k].i] = d->of[out[k].i];
        d->now[n->out[k].i] = d->now[out[k].i];
    }
    return OK;
}

/* A mask [.., queries, keys] of an attention. */
static ValueId mask_now(Decode *d, ValueId mask) {
    if (!mask.i) return mask;
    const Type *t = value_type(d->g, mask);
    Rows r = d->of[mask.i];
    int rank = t->rank;
    bool rows = rank >= 2 && t->dim[rank - 2] == d->window;
    if (r.has && r.axis == rank - 2) return d->now[mask.i];
    ValueId all = r.has ? decode_keep(d, mask) : mask;
    return rows ? decode_row_of(d, all, rank - 2) : all;
}

static Status attention(Decode *d, const Node *n) {
    enum { MASK = 3, PAST = 4, LENS = 6, OPERANDS = 7 };
    Graph *g = d->g;
    ValueId in[OPERANDS] = {{0}};
    Attr causal;
    int axis = value_type(g, n->in[0])->rank == 3 ? 1 : 2;
    for (int i = 0; i < 3; i++) {
        Rows r = d->of[n->in[i].i];
        if (!r.has || r.axis != axis || !is_one(&r))
            return decode_refuse(d, n,
                                 "reads queries, keys or values that are not "
                                 "of the positions of one text");
    }
    for (int i = 0; i < n->nin; i++) in[i] = n->in[i];
    if (in[PAST].i || in[LENS].i)
        return decode_refuse(d, n, "has keys of a past or lengths of its own");
    if (!in[MASK].i && !(call_attr(g, n, "causal", &causal) && causal.u.i))
        return decode_refuse(
            d, n, "reads later positions: neither causal nor masked");
    in[0] = d->now[in[0].i];
    in[1] = decode_keep(d, in[1]);
    in[2] = decode_keep(d, in[2]);
    in[MASK] = mask_now(d, in[MASK]);
    in[LENS] = d->counted;
    NodeId made =
        build_call(&d->b, n->fn, in, OPERANDS, n->attrs, n->nattr, 1, NULL);
    make_room(d);
    d->of[n->out[0].i] = rows_along(axis);
    d->now[n->out[0].i] = node_get(g, made)->out[0];
    for (int k = 1; k < n->nout; k++) d->of[n->out[k].i].mixed = true;
    return OK;
}

/* What n's operands become where both run over positions along different
   axes: those of the right operand of a product, or along the later axis,
   are kept. */
static int kept_operand(const Decode *d, const Node *n) {
    int later = -1, axis = -1, rank = value_type(d->g, n->out[0])->rank;
    if (n->op == OP_MATMUL) return d->of[n->in[1].i].has ? 1 : -1;
    if (node_kind(n) != KIND_ELEM) return -1;
    for (int i = 0; i < n->nin; i++) {
        const Rows *r = &d->of[n->in[i].i];
        int at = r->axis + rank - value_type(d->g, n->in[i])->rank;
        if (r->has && at > axis) {
            axis = at;
            later = i;
        }
    }
    return later;
}

/* A node of the table. */
static Status plain(Decode *d, NodeId id) {
    Node n = *node_get(d->g, id);
    ValueId *in = NEW_ARRAY(d->cx->scratch, ValueId, n.nin + 1);
    ValueId *old =
        arena_dup(d->cx->scratch, n.in, (size_t)n.nin * sizeof *n.in + 1);
    bool cuts = node_kind(&n) == KIND_ELEM || n.op == OP_CONCAT;
    n.in = old;
    rows_step(d->g, d->cx->scratch, d->window, d->of, &n);
    if (d->of[n.out[0].i].mixed) { /* with all positions of an operand */
        int k = kept_operand(d, &n);
        if (k < 0 || !is_one(&d->of[old[k].i])) return refuse_mixed(d, id);
        ValueId all = decode_keep(d, old[k]);
        d->of[all.i] = (Rows){0};
        d->now[all.i] = all;
        old[k] = all;
        rows_step(d->g, d->cx->scratch, d->window, d->of, &n);
    }
    Rows r = d->of[n.out[0].i];
    int rank = value_type(d->g, n.out[0])->rank;
    if (r.mixed) return refuse_mixed(d, id);
    for (int i = 0; i < n.nin; i++) {
        in[i] = old[i].i ? d->now[old[i].i] : old[i];
        if (cuts && r.has && is_one(&r)) in[i] = meets(d, old[i], r.axis, rank);
    }
    return decode_again(d, &n, in)
               ? OK
               : decode_refuse(d, node_get(d->g, id),
                               "cannot be computed for one position alone");
}

static Status step(Decode *d, NodeId id) {
    Node n = *node_get(d->g, id);
    bool any = false;
    make_room(d);
    for (int i = 0; i < n.nin; i++) {
        if (!n.in[i].i) continue;
        if (!d->now[n.in[i].i].i) d->now[n.in[i].i] = n.in[i];
        any |= d->of[n.in[i].i].has;
        if (d->of[n.in[i].i].mixed)
            return decode_refuse(d, &n,
                                 "reads keys, values or scores of attention");
    }
    d->b.loc = n.loc;
    d->b.flags = n.flags;
    if (!any) { /* the same for every text */
        vec_push(d->g->arena, &d->g->order, id);
        for (int k = 0; k < n.nout; k++) d->now[n.out[k].i] = n.out[k];
        return OK;
    }
    if (is_call(&n, "attention")) return attention(d, &n);
    if (!n.fn) return plain(d, id);
    rows_step(d->g, d->cx->scratch, d->window, d->of, &n);
    bool mixed = false;
    for (int k = 0; k < n.nout; k++) mixed |= d->of[n.out[k].i].mixed;
    ValueId *in = NEW_ARRAY(d->cx->scratch, ValueId, n.nin + 1);
    for (int i = 0; i < n.nin; i++)
        in[i] = n.in[i].i ? d->now[n.in[i].i] : n.in[i];
    if (!mixed && stays_call(d, &n) && decode_again(d, &n, in)) return OK;
    return decode_expand(d, &n);
}

/* ---- the program --------------------------------------------------------- */

static bool is_text(const Type *t) {
    return t->rank == 2 && dtype_is_int(t->dtype);
}

/* Inputs [samples, positions] of integers become [samples, 1]. */
static Status cut_inputs(Decode *d) {
    Graph *g = d->g;
    for (int i = 0; i < g->inputs.len && !d->window; i++) {
        const Type *t = value_type(g, g->inputs.data[i]);
        if (!is_text(t)) continue;
        d->samples = t->dim[0];
        d->window = t->dim[1];
    }
    if (d->window < 2)
        return fail(d->cx->diag, (Loc){.file = g->module->file},
                    "--decode: the model has no input of tokens: integers "
                    "[batch, window]");
    for (int i = 0; i < g->inputs.len; i++) {
        ValueId old = g->inputs.data[i];
        Type t = *value_type(g, old);
        d->now[old.i] = old;
        if (!is_text(&t) || t.dim[1] != d->window) continue;
        int n = g->inputs.len;
        t.dim[1] = 1;
        Str name = value_get(g, old)->name;
        ValueId cut = graph_input(g, name, type_make(t.dtype, t.rank, t.dim));
        make_room(d);
        g->inputs.len = n;
        g->inputs.data[i] = cut;
        d->now[old.i] = cut;
        d->of[old.i] = rows_along(1);
        graph_rename(g, cut, name);
    }
    ValueId at = graph_input(g, DECODE_POSITION, type_scalar(DT_I64));
    int64_t one = 1;
    d->at = b_reshape(&d->b, at, 1, &one);
    d->counted = b2(&d->b, OP_ADD, d->at, b_scalar(&d->b, DT_I64, 1), DT_I64);
    if (d->samples > 1) {
        Attr shape = attr_v(AK_shape, &d->samples, 1);
        d->counted =
            build(&d->b, OP_EXPAND, &d->counted, 1, &shape, 1, DT_I64, NULL);
    }
    make_room(d);
    return OK;
}

static void own_outputs_away(Graph *g) {
    int kept = 0;
    for (int i = 0; i < g->outputs.len; i++)
        if (!name_is_own(g->outputs.data[i].name))
            g->outputs.data[kept++] = g->outputs.data[i];
    g->outputs.len = kept;
}

static Status outputs_now(Decode *d) {
    Graph *g = d->g;
    for (int i = 0; i < g->outputs.len; i++) {
        ValueId *v = &g->outputs.data[i].value;
        if (d->of[v->i].mixed)
            return fail(d->cx->diag, (Loc){.file = g->module->file},
                        "--decode: output '%s' has keys, values or scores of "
                        "attention",
                        g->outputs.data[i].name);
        if (d->now[v->i].i) *v = d->now[v->i];
    }
    Tensor *t = tensor_new(g->arena, type_make(DT_I64, 1, &d->samples));
    tensor_set_int(t, 0, d->window);
    tensor_repeat(t);
    graph_add_output(g, intern(DECODE_WINDOW),
                     graph_const(g, DECODE_WINDOW, t));
    return OK;
}

Status decode_program(Graph *g, PassCtx *cx) {
    Decode d = {.g = g, .cx = cx, .b = {.g = g}};
    int n;
    own_outputs_away(g);
    TRY(pass_dce(g->module, cx));
    NodeId *old = order_take(g, cx->scratch, &n);
    make_room(&d);
    TRY(cut_inputs(&d));
    for (int i = 0; i < n; i++) TRY(step(&d, old[i]));
    return outputs_now(&d);
}
