/* SPDX-License-Identifier: Apache-2.0 */
/* fn.c: what calls of functions are: types, attributes in one form, and the
   graph that a call with given operands stands for. */
#include "ir/fn/fn.h"

#include <string.h>

#include "ir/graph/ir_impl.h"

/* ---- attributes ---------------------------------------------------------- */

bool call_attr(const Graph *g, const Node *call, const char *name, Attr *out) {
    const FnAttr *a = fn_attr(call->fn, name);
    ASSERT(a);
    const Attr *given = attr_find(call, a->key);
    char msg[MSG_TEXT];
    if (given) *out = *given;
    if (given || !a->dflt) return given;
    Status s =
        fn_default(call->fn, (Graph *)g, call->in, call->nin, a, out, msg);
    ASSERT(s == OK);
    return true;
}

static bool is_default(const Fn *fn, Graph *g, const FnAttr *a, const Attr *x) {
    char msg[MSG_TEXT];
    Attr d = {0};
    if (!a->dflt || a->kind == FA_AXIS || a->kind == FA_AXES) return false;
    return fn_default(fn, g, NULL, 0, a, &d, msg) == OK && attr_same(&d, x);
}

static Status canonical_call(Graph *g, Node *n, char *msg) {
    const Fn *fn = n->fn;
    Attr *to = NEW_ARRAY(g->arena, Attr, n->nattr + fn->attrs.len + 1);
    int rank = n->nin && is_value(n->in[0]) ? value_type(g, n->in[0])->rank : 0;
    int kept = 0;
    for (int i = 0; i < n->nattr; i++) { /* checks report unknown names */
        Attr x = n->attrs[i];
        const FnAttr *a = fn_attr(fn, attr_get(x.key)->text);
        bool ours = a && a->key == x.key;
        if (ours && is_default(fn, g, a, &x)) continue;
        if (ours) x = attr_copy(g->arena, x);
        if (ours && a->kind == FA_AXES) /* our own copy */
            attr_sort_axes((int64_t *)x.u.ints.v, x.u.ints.n, rank);
        if (ours && a->kind == FA_AXIS && axis_norm(x.u.i, rank) >= 0)
            x.u.i = axis_norm(x.u.i, rank);
        to[kept++] = x;
    }
    for (int i = 0; i < fn->attrs.len; i++) {
        const FnAttr *a = &fn->attrs.data[i];
        bool axis = a->kind == FA_AXIS || a->kind == FA_AXES;
        if (!axis || !a->dflt || attr_find(n, a->key)) continue;
        TRY(fn_default(fn, g, n->in, n->nin, a, &to[kept++], msg));
    }
    n->attrs = to;
    n->nattr = kept;
    return OK;
}

/* ---- instances ----------------------------------------------------------- */

typedef struct FnEntry {
    uint64_t hash;
    TypeId in[MAX_FN_OPERANDS];
    Node call; /* the call's attributes and counts */
    FnInstance made;
} FnEntry;

static int *find_slot(struct FnTable *t, const FnEntry *e) {
    for (uint64_t i = e->hash;; i++) {
        int *slot = &t->slots.data[i & (uint64_t)(t->slots.len - 1)];
        const FnEntry *x = *slot ? t->entries.data[*slot - 1] : NULL;
        if (!x || (x->hash == e->hash && node_same_work(&x->call, &e->call) &&
                   !memcmp(x->in, e->in, sizeof e->in)))
            return slot;
    }
}

static void fn_grow(Arena *a, struct FnTable *t) {
    if (t->slots.len > 2 * t->entries.len) return;
    int n = t->slots.len ? 2 * t->slots.len : 16;
    t->slots.data = NEW_ARRAY(a, int, n);
    t->slots.len = t->slots.cap = n;
    for (int i = 0; i < t->entries.len; i++)
        *find_slot(t, t->entries.data[i]) = i + 1;
}

static void instantiate(const Fn *fn, FnEntry *e) {
    char msg[MSG_TEXT] = "";
    Graph *g = graph_new(module_new(fn->arena, ""), fn->info.text);
    Builder b = {.g = g};
    int nin = e->call.nin;
    ValueId *in = NEW_ARRAY(fn->arena, ValueId, nin + 1);
    ValueId *out = NEW_ARRAY(fn->arena, ValueId, e->call.nout + 1);
    for (int i = 0; i < nin; i++)
        if (e->in[i].i)
            in[i] = graph_input(g, fn->operands.data[i].name, e->in[i]);
    FnCall call = fn_call(&e->call);
    call.in = in;
    e->made = (FnInstance){.g = g, .in = in, .out = out};
    e->made.status = fn_run(&b, &call, &fn->body, out, msg);
    if (e->made.status != OK) e->made.msg = arena_printf(fn->arena, "%s", msg);
}

const FnInstance *fn_instance(const Node *call, const Type *const *in) {
    const Fn *fn = call->fn;
    FnEntry e = {.call = *call};
    struct FnTable *t = fn->instances;
    for (int i = 0; i < call->nin; i++)
        if (in[i]) e.in[i] = type_make(in[i]->dtype, in[i]->rank, in[i]->dim);
    e.hash = hash_bytes((uint64_t)call->nout, e.in, sizeof e.in);
    for (int i = 0; i < call->nattr; i++)
        e.hash = attr_hash(e.hash, &call->attrs[i]);
    fn_grow(fn->arena, t);
    int *slot = find_slot(t, &e);
    if (*slot) return &t->entries.data[*slot - 1]->made;
    FnEntry *kept = arena_dup(fn->arena, &e, sizeof e);
    Attr *attrs = NEW_ARRAY(fn->arena, Attr, call->nattr);
    for (int i = 0; i < call->nattr; i++)
        attrs[i] = attr_copy(fn->arena, call->attrs[i]);
    kept->call.attrs = attrs;
    vec_push(fn->arena, &t->entries, kept);
    *slot = t->entries.len;
    instantiate(fn, kept);
    return &kept->made;
}

/* ---- types --------------------------------------------------------------- */

static Status call_types(TypeCtx *cx) {
    const Fn *fn = cx->n->fn;
    DType first = DT_F32;
    for (int i = cx->n->nin - 1; i >= 0; i--)
        if (cx->ins[i] && dtype_is_float(cx->ins[i]->dtype))
            first = cx->ins[i]->dtype;
    const FnInstance *x = fn_instance(cx->n, cx->ins);
    if (x->status != OK) return type_error(cx, "%s", x->msg);
    for (int i = 0; i < cx->n->nout; i++) {
        Type t = *value_type(x->g, x->out[i]);
        DType fixed = fn->results.data[i].dtype;
        if (fixed != NUM_DTYPES)
            t.dtype = fixed;
        else if (dtype_is_float(t.dtype))
            t.dtype = first;
        type_result(cx, i, &t);
    }
    return OK;
}

const CallRules fn_calls = {
    .types = call_types, .attrs = canonical_call, .instance = fn_instance};
