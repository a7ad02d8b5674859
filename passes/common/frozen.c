/* SPDX-License-Identifier: Apache-2.0 */
/* frozen.c: see frozen.h.
   Before:  frozen %w: f32[out,in]       %y = matmul %x, %w {trans_b=1}
   After:   frozen %w: i8[out,in], %ampc.int8/w: f32[out*in/64]
            %w.f32 = widen_quantized %w, %ampc.int8/w : f32[out,in]
            %y = matmul %x, %w.f32 {trans_b=1}
   Of a table that is looked up, rows of codes and of scales are: its rows must
   be whole blocks.                                                          */
#include "passes/common/frozen.h"

#include <string.h>

#include "passes/rewrite.h"
#include "runtime/program/quantized.h"

enum { FEW = 4096 }; /* elements: smaller weights are left unchanged */

/* ---- readers ------------------------------------------------------------- */

int weight_at(const Graph *g, ValueId v, bool *turned) {
    const int64_t *perm;
    const Node *n;
    while ((n = def_of(g, v, OP_TRANSPOSE)) &&
           attr_ints(n, AK_perm, &perm) == 2 && perm[0] == 1) {
        *turned = !*turned;
        v = n->in[0];
    }
    return value_get(g, v)->kind == VK_VAR ? value_get(g, v)->var : -1;
}

int weight_of(const Graph *g, const Node *n, bool *columns) {
    if (n->fn || n->op != OP_MATMUL || value_type(g, n->in[1])->rank != 2)
        return -1;
    *columns = !attr_int(n, AK_trans_b);
    return weight_at(g, n->in[1], columns);
}

/* The table from which n gathers rows; -1: none. */
static int frozen_table_of(const Graph *g, const Node *n) {
    if (n->fn || n->op != OP_GATHER || attr_int(n, AK_axis) != 0) return -1;
    const Value *x = value_get(g, n->in[0]);
    return x->kind == VK_VAR && type_get(x->type)->rank == 2 ? x->var : -1;
}

typedef struct Readers {
    bool product, table;
    const char *other; /* NULL, or a reader that is neither of the two */
} Readers;

static void frozen_note_readers(const Graph *g, const Node *n, Readers *r) {
    bool turned = false;
    int w = weight_of(g, n, &turned), t = frozen_table_of(g, n);
    if (w >= 0) r[w].product = true;
    if (t >= 0) r[t].table = true;
    for (int k = 0; k < n->nin; k++) {
        if (!n->in[k].i || (w >= 0 && k == 1) || (t >= 0 && k == 0)) continue;
        int v = weight_at(g, n->in[k], &turned);
        if (v >= 0 && (n->fn || n->op != OP_TRANSPOSE))
            r[v].other = node_info(n)->text;
    }
}

static Readers *readers_of(const Module *m, Arena *a) {
    Readers *r = NEW_ARRAY(a, Readers, m->vars.len + 1);
    for (int i = 0; i < m->graphs.len; i++) {
        const Graph *g = m->graphs.data[i];
        for (int k = 0; graph_is_model(g) && k < g->order.len; k++)
            frozen_note_readers(g, node_at(g, k), r);
        for (int k = 0; graph_is_model(g) && graph_root(g, k); k++) {
            const Value *x = value_get(g, *graph_root(g, k));
            if (x->kind == VK_VAR) r[x->var].other = "the model's output";
        }
    }
    return r;
}

/* ---- storing ------------------------------------------------------------- */

/* The reason why a weight has no codes; NULL: it may have codes. */
static const char *why_whole(const Type *t, const Readers *r, int code) {
    if (t->rank != 2) return "is no matrix";
    if (r->other) return internf("is read by %s", r->other);
    if (code != QUANTIZED_INT8 && t->dim[1] % 2) return "has odd rows";
    if (r->table && t->dim[1] % QUANTIZED_BLOCK)
        return "is looked up, and its rows are not whole blocks of 64";
    return r->product || r->table ? NULL : "is read by nothing";
}

static const char *const quantized_text[QUANTIZED_CODES] = {"int8", "int4",
                                                            "nf4"};

static int quantize(Module *m, int var, int code) {
    Var *v = &m->vars.data[var];
    Type t = *type_get(v->type);
    int64_t n = type_count(&t), blocks = quantized_blocks(n);
    const Tensor *wide = var_initial(m->arena, v);
    t.dtype = code == QUANTIZED_INT8 ? DT_I8 : DT_U8;
    if (code != QUANTIZED_INT8) t.dim[1] /= 2;
    TypeId type = type_make(t.dtype, t.rank, t.dim);
    Tensor *q = tensor_new(m->arena, type);
    Tensor *scale = tensor_new(m->arena, type_make(DT_F32, 1, &blocks));
    for (int64_t i = 0; i < n; i += QUANTIZED_BLOCK) {
        float x[QUANTIZED_BLOCK];
        int some = n - i < QUANTIZED_BLOCK ? (int)(n - i) : QUANTIZED_BLOCK;
        for (int k = 0; k < some; k++)
            x[k] = (float)(wide ? tensor_get(wide, i + k) : v->fill);
        quantized_put(code, x, i, some, q->data, scale->data);
    }
    v->type = type;
    v->init = q;
    v->init_text = NULL;
    v->draw = (Draw){0};
    v->fill = 0;
    v->why = internf("%s%s%s codes, a scale for each %d", v->why ? v->why : "",
                     v->why ? "; " : "", quantized_text[code], QUANTIZED_BLOCK);
    for (int i = 0; i < m->graphs.len; i++) {
        ValueId x = graph_find_var(m->graphs.data[i], var);
        if (x.i) value_get(m->graphs.data[i], x)->type = type;
    }
    Str name = family_name((Family)(FAMILY_INT8 + code), v->name);
    int s = module_var(m, VAR_FROZEN, name, scale->type, scale, 0);
    m->vars.data[s].why = internf("scales of '%s'", m->vars.data[var].name);
    return s;
}

Stored *frozen_store(Module *m, PassCtx *cx, const bool *ours, int n) {
    const Options *o = cx->opt;
    Stored *s = NEW_ARRAY(cx->scratch, Stored, n + 1);
    const Readers *readers = readers_of(m, cx->scratch);
    int code = (int)o->frozen_dtype - FROZEN_INT8;
    bool bf16 = o->frozen_dtype == FROZEN_BF16;
    StrBuf left = {0};
    for (int i = 0; i < n; i++) {
        const Var *v = &m->vars.data[i];
        const Type *t = type_get(v->type);
        const Readers *r = &readers[i];
        bool here = ours[i] || (o->frozen_dtype && (r->product || r->table));
        if (v->kind != VAR_FROZEN || !here || t->dtype != DT_F32 ||
            t->rank < 2 || type_count(t) < FEW)
            continue;
        const char *why = code < 0 ? "" : why_whole(t, r, code);
        if (!why) {
            s[i].code = code;
            s[i].scale = quantize(m, i, code);
            continue;
        }
        if (code >= 0)
            sb_printf(&left, "%s'%s' %s", left.len ? ", " : "", v->name, why);
        s[i].narrow = bf16 || (ours[i] && o->precision != PREC_FP32);
        if (s[i].narrow)
            var_narrow(m, i, bf16 ? DT_BF16 : precision_dtype[o->precision]);
    }
    if (left.len)
        fail_note(cx->diag, (Loc){.file = m->file},
                  "--frozen-dtype: not stored in codes: %s", left.data);
    sb_free(&left);
    return s;
}

/* ---- reading ------------------------------------------------------------- */

static ValueId frozen_widened(Builder *b, ValueId q, ValueId scale, int code) {
    Attr a = attr_i(AK_code, code);
    return build(b, OP_WIDEN_QUANTIZED, (ValueId[]){q, scale}, 2, &a, 1, DT_F32,
                 NULL);
}

Stored frozen_stored(const Module *m, int var) {
    Stored s = {.narrow =
                    dtype_is_low(type_get(m->vars.data[var].type)->dtype)};
    for (int code = 0; code < QUANTIZED_CODES; code++) {
        Str name =
            family_name((Family)(FAMILY_INT8 + code), m->vars.data[var].name);
        int scale = module_find_var(m, name);
        if (scale >= 0) s = (Stored){.scale = scale, .code = code};
    }
    return s;
}

ValueId frozen_read(Builder *b, const Stored *s, int var) {
    ValueId v = graph_var(b->g, var);
    if (s->scale)
        return frozen_widened(b, v, graph_var(b->g, s->scale), s->code);
    return s->narrow ? b_cast(b, v, DT_F32) : v;
}

bool frozen_rows(Builder *b, const Stored *s, int nvar, const Node *n,
                 ValueId *with) {
    int var = frozen_table_of(b->g, n);
    if (var < 0 || var >= nvar || !s[var].scale) return false;
    ValueId scale = graph_var(b->g, s[var].scale), in[2];
    int64_t rows = value_type(b->g, n->in[0])->dim[0];
    int64_t lines[] = {rows, rows ? value_count(b->g, scale) / rows : 0};
    Attr axis = attr_i(AK_axis, 0);
    in[0] = build(b, OP_GATHER, n->in, 2, &axis, 1, NUM_DTYPES, NULL);
    ValueId of[] = {b_reshape(b, scale, 2, lines), n->in[1]};
    in[1] = build(b, OP_GATHER, of, 2, &axis, 1, DT_F32, NULL);
    *with = frozen_widened(b, in[0], in[1], s[var].code);
    return true;
}

/* ---- as f32 again -------------------------------------------------------- */

/* The nodes between a variable and an operand of widen_quantized. */
static void note_path(const Graph *g, ValueId x, bool *path) {
    NodeId def = value_get(g, x)->def;
    if (!def.i) return;
    path[def.i] = true;
    note_path(g, node_get(g, def)->in[0], path);
}

static ValueId widen_var(Graph *g, ValueId x, int64_t code) {
    int i = value_get(g, x)->var;
    Var *v = &g->module->vars.data[i];
    Type t = *type_get(v->type);
    if (t.dtype == DT_F32) return x;
    if (code != QUANTIZED_INT8) t.dim[1] *= 2;
    v->type = value_get(g, x)->type = type_make(DT_F32, t.rank, t.dim);
    v->init = NULL;
    v->init_text = NULL;
    return x;
}

/* n widens all codes of a variable, or rows of them (frozen_rows). */
static ValueId frozen_read_wide(Builder *b, const Node *n) {
    NodeId rows = value_get(b->g, n->in[0])->def;
    int64_t code = attr_int(n, AK_code);
    if (!rows.i) return widen_var(b->g, n->in[0], code);
    const Node *gather = node_get(b->g, rows);
    ValueId in[] = {widen_var(b->g, gather->in[0], code), gather->in[1]};
    Attr axis = attr_i(AK_axis, 0);
    return build(b, OP_GATHER, in, 2, &axis, 1, NUM_DTYPES, NULL);
}

void frozen_widen(Graph *g, Arena *scratch) {
    Builder b = {.g = g};
    uint32_t limit = (uint32_t)g->values.len;
    ValueId *map = NEW_ARRAY(scratch, ValueId, limit);
    bool *path = NEW_ARRAY(scratch, bool, g->nodes.len + 1);
    int n;
    NodeId *old = order_take(g, scratch, &n);
    for (int i = 0; i < n; i++) {
        const Node *x = node_get(g, old[i]);
        for (int k = 0; k < 2 && x->op == OP_WIDEN_QUANTIZED; k++)
            note_path(g, x->in[k], path);
    }
    for (int i = 0; i < n; i++) {
        Node *o = node_get(g, old[i]);
        const Node x = *o; /* building moves the pool */
        if (path[old[i].i]) continue;
        for (int k = 0; k < o->nin; k++)
            if (o->in[k].i < limit && map[o->in[k].i].i)
                o->in[k] = map[o->in[k].i];
        if (x.op == OP_WIDEN_QUANTIZED)
            map[x.out[0].i] = frozen_read_wide(&b, &x);
        else
            vec_push(g->arena, &g->order, old[i]);
    }
    for (int i = 0; graph_root(g, i); i++) {
        ValueId *v = graph_root(g, i);
        if (v->i < limit && map[v->i].i) *v = map[v->i];
    }
}
