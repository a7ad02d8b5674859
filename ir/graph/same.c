/* SPDX-License-Identifier: Apache-2.0 */
/* same.c: tells if two nodes compute the same, and computes P0 and P1 of an
   expression. Passes, importers and printers share these functions on
   attributes. */
#include <math.h>
#include <string.h>

#include "ir/op/function.h"
#include "ir/graph/ir_impl.h"

/* Integers, floats and interned strings fill the union's first 8 bytes. */
uint64_t attr_hash(uint64_t h, const Attr *a) {
    h = hash_bytes(h, &a->key, sizeof a->key);
    if (attr_get(a->key)->kind != ATTR_INTS)
        return hash_bytes(h, &a->u.i, sizeof a->u.i);
    size_t bytes = (size_t)a->u.ints.n * sizeof(int64_t);
    return hash_bytes(h, a->u.ints.v, bytes);
}

bool attr_same(const Attr *a, const Attr *b) {
    if (a->key != b->key) return false;
    if (attr_get(a->key)->kind != ATTR_INTS) return a->u.i == b->u.i;
    size_t bytes = (size_t)a->u.ints.n * sizeof(int64_t);
    return a->u.ints.n == b->u.ints.n &&
           (!bytes || !memcmp(a->u.ints.v, b->u.ints.v, bytes));
}

bool node_same_work(const Node *a, const Node *b) {
    if (a->op != b->op || a->fn != b->fn || a->nin != b->nin ||
        a->nout != b->nout || a->nattr != b->nattr)
        return false;
    for (int i = 0; i < a->nattr; i++)
        if (!attr_same(&a->attrs[i], &b->attrs[i])) return false;
    return true;
}

uint64_t node_hash(const Graph *g, const Node *n) {
    uint64_t h = hash_bytes(1, &n->op, sizeof n->op);
    h = hash_bytes(h, &n->fn, sizeof n->fn);
    h = hash_bytes(h, n->in, (size_t)n->nin * sizeof *n->in);
    for (int i = 0; i < n->nattr; i++) h = attr_hash(h, &n->attrs[i]);
    for (int i = 0; i < n->nout; i++)
        h = hash_bytes(h, &value_get(g, n->out[i])->type, sizeof(TypeId));
    return h;
}

bool node_same(const Graph *g, const Node *a, const Node *b) {
    if (!node_same_work(a, b) || a->loc.amp != b->loc.amp ||
        a->loc.factors != b->loc.factors || (a->flags ^ b->flags) & NODE_AGAIN)
        return false;
    if (a->loc.chunk != b->loc.chunk &&
        (!a->nin || (a->flags | b->flags) & NODE_UPDATE))
        return false;
    for (int i = 0; i < a->nin; i++)
        if (!same_value(a->in[i], b->in[i])) return false;
    for (int i = 0; i < a->nout; i++)
        if (value_get(g, a->out[i])->type.i != value_get(g, b->out[i])->type.i)
            return false;
    return true;
}

void node_expr_params(const Node *n, double p[2]) {
    const OpInfo *info = &op_info[n->op];
    int np = 0;
    for (int k = 0; k < info->nattr && np < 2; k++)
        if (attr_get(info->attrs[k])->kind == ATTR_FLOAT)
            p[np++] = attr_float(n, info->attrs[k]);
}

/* ---- equal programs ------------------------------------------------------ */

static uint64_t hash_text(uint64_t h, const char *s) {
    return s ? hash_bytes(h, s, strlen(s) + 1) : hash_bytes(h, "", 1);
}

static uint64_t hash_type(uint64_t h, TypeId id) {
    const Type *t = type_get(id);
    int32_t head[] = {(int32_t)t->dtype, t->rank};
    h = hash_bytes(h, head, sizeof head);
    return hash_bytes(h, t->dim, (size_t)t->rank * sizeof *t->dim);
}

/* All NaNs are equal here. */
static uint64_t hash_number(uint64_t h, double x) {
    if (isnan(x)) x = (double)NAN;
    return hash_bytes(h, &x, sizeof x);
}

/* Hashes data as the text shows them: large data by their hash. */
static uint64_t hash_data(uint64_t h, const Value *x) {
    StrBuf text = {0};
    if (x->init_text) return hash_text(h, x->init_text);
    put_data(&text, x->data);
    h = hash_text(h, text.data);
    sb_free(&text);
    return h;
}

/* made: position of the value's node. The initial value of a variable is not
   a part of the program: a checkpoint holds the value. */
static uint64_t hash_value(const Graph *g, ValueId v, uint64_t made) {
    const Value *x = value_get(g, v);
    uint64_t h = hash_type(hash_text((uint64_t)x->kind, x->name), x->type);
    if (x->kind == VK_CONST) return hash_data(h, x);
    if (x->kind == VK_RESULT) return hash_bytes(h, &made, sizeof made);
    if (x->kind == VK_VAR)
        h = hash_bytes(h, &value_var(g, v)->kind, sizeof(VarKind));
    return h;
}

static uint64_t hash_node(uint64_t h, const Node *n) {
    uint32_t head[] = {n->flags, (uint32_t)n->nin, (uint32_t)n->group};
    h = hash_bytes(hash_text(h, node_info(n)->text), head, sizeof head);
    if (n->fn) h = hash_bytes(h, n->fn->text, n->fn->size);
    for (int i = 0; i < n->nattr; i++) {
        const Attr *a = &n->attrs[i];
        h = hash_text(h, attr_get(a->key)->text);
        switch (attr_get(a->key)->kind) {
        case ATTR_STR: h = hash_text(h, a->u.s); break;
        case ATTR_FLOAT: h = hash_number(h, a->u.f); break;
        case ATTR_INT: h = hash_bytes(h, &a->u.i, sizeof a->u.i); break;
        case ATTR_INTS:
            h = hash_bytes(h, a->u.ints.v,
                           (size_t)a->u.ints.n * sizeof *a->u.ints.v);
        }
    }
    return h;
}

uint64_t graph_hash(const Graph *g) {
    Arena *scratch = arena_new();
    uint64_t *of = NEW_ARRAY(scratch, uint64_t, g->values.len);
    uint64_t h = hash_text(0, g->name);
    for (uint32_t i = 1; i < (uint32_t)g->values.len; i++)
        if (value_get(g, (ValueId){i})->kind != VK_RESULT)
            of[i] = hash_value(g, (ValueId){i}, 0);
    for (int i = 0; i < g->inputs.len; i++)
        h = hash_bytes(h, &of[g->inputs.data[i].i], sizeof *of);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        h = hash_node(h, n);
        for (int k = 0; k < n->nin; k++)
            h = hash_bytes(h, &of[n->in[k].i], sizeof *of);
        for (int k = 0; k < n->nout; k++) {
            of[n->out[k].i] = hash_value(g, n->out[k], (uint64_t)i);
            h = hash_bytes(h, &of[n->out[k].i], sizeof *of);
        }
    }
    for (int i = 0; i < g->writes.len; i++) {
        uint64_t w[] = {of[g->writes.data[i].var.i],
                        of[g->writes.data[i].value.i]};
        h = hash_bytes(h, w, sizeof w);
    }
    for (int i = 0; i < g->outputs.len; i++) {
        h = hash_text(h, g->outputs.data[i].name);
        h = hash_bytes(h, &of[g->outputs.data[i].value.i], sizeof *of);
    }
    arena_free(scratch);
    return h;
}
