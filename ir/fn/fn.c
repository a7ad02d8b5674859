/* SPDX-License-Identifier: Apache-2.0 */
/* fn.c: the functions there are, and what calls of them are: types, attributes
   in one form, and the graph that a call with given operands stands for.    */
#include "ir/fn/fn.h"

#include <string.h>

#include "ir/graph/ir_impl.h"

/* ---- the library --------------------------------------------------------- */

static VEC(Fn *) library, layers;
static const Fn *rules[NUM_OPS];

/* A definition or a rule. */
static Status read_one(Lexer *lx, Arena *a) {
    OpCode ops[MAX_RULE_OPS];
    Fn *f;
    int n;
    if (lex_is_word(lx, "def")) {
        TRY(parse_def(lx, a, NULL, &f));
        if (f->layer)
            vec_push(a, &layers, f);
        else
            vec_push(a, &library, f);
        return OK;
    }
    if (lex_is_word(lx, "optimizer")) {
        Fn *once;
        TRY(parse_optimizer(lx, a, NULL, &once, &f));
        vec_push(a, &library, once);
        vec_push(a, &library, f);
        return OK;
    }
    Token at = lx->tok;
    if (!lex_is_word(lx, "gradient"))
        return lex_fail(lx, &at, "a definition or a gradient expected");
    TRY(parse_rule(lx, a, &f, ops, &n));
    for (int i = 0; i < n; i++) {
        if (rules[ops[i]]) return lex_fail(lx, &at, "a second rule");
        rules[ops[i]] = f;
    }
    return OK;
}

static Status read_text(Arena *a, Diag *d, const char *file, const char *text,
                        size_t n) {
    Lexer lx;
    TRY(lex_start(&lx, d, file, text, n));
    while (lx.tok.kind != T_EOF) TRY(read_one(&lx, a));
    return OK;
}

static Status read_fn_lines(Arena *a, Diag *d, const char *file,
                            const char *const *lines) {
    StrBuf text = {0};
    while (*lines) sb_puts(&text, *lines++);
    const char *kept = arena_dup(a, text.data, text.len + 1);
    Status s = read_text(a, d, file, kept, text.len);
    sb_free(&text);
    return s;
}

/* std.amp, the gradients that stand in ops.def, and layers.amp.  Read once,
   when the first name is looked up; parse_def finds the functions above the one
   it reads. */
static void read_library(void) {
    static bool read;
    if (read) return;
    read = true;
    Arena *a = arena_new(); /* lives as long as the process */
    Diag d = {0};
    Status s = read_fn_lines(a, &d, "std.amp", std_amp_lines);
    for (int op = 0; op < NUM_OPS && s == OK; op++) {
        const char *dx = op_info[op].grad_text;
        if (strncmp(dx, "dx(", 3)) continue;
        Str rule = internf("gradient %s(x) -> y { dx = (%s }", op_info[op].text,
                           dx + 3);
        s = read_text(a, &d, "ops.def", rule, strlen(rule));
    }
    if (s == OK) s = read_fn_lines(a, &d, "losses.amp", losses_amp_lines);
    if (s == OK) s = read_fn_lines(a, &d, "microsoft.amp", microsoft_amp_lines);
    if (s == OK)
        s = read_fn_lines(a, &d, "optimizers.amp", optimizers_amp_lines);
    if (s == OK) s = read_fn_lines(a, &d, "layers.amp", layers_amp_lines);
    if (s != OK) fputs(d.text.data, stderr);
    ASSERT(s == OK && "the library can be read");
}

const Fn *op_gradient(OpCode op) {
    read_library();
    return rules[op];
}

int fn_std_count(void) {
    read_library();
    return library.len;
}

const Fn *fn_std_at(int i) {
    read_library();
    return library.data[i];
}

static bool has_name(const Fn *f, const char *s, size_t n) {
    const char *t = f->info.text; /* nearly always another first letter */
    return n && *t == *s && strncmp(t, s, n) == 0 && !t[n];
}

const Fn *fn_find(const Module *m, const char *name, size_t n) {
    read_library();
    for (int i = 0; m && i < m->fns.len; i++)
        if (has_name(m->fns.data[i], name, n)) return m->fns.data[i];
    for (int i = 0; i < library.len; i++)
        if (has_name(library.data[i], name, n)) return library.data[i];
    for (int i = 0; i < library.len; i++) {
        const char *loss = library.data[i]->loss;
        if (loss && strncmp(loss, name, n) == 0 && !loss[n])
            return library.data[i];
    }
    for (int i = 0; i < layers.len; i++)
        if (has_name(layers.data[i], name, n)) return layers.data[i];
    return NULL;
}

const Fn *fn_std(const char *name) { return fn_find(NULL, name, strlen(name)); }

const Fn *fn_loss(const char *name) {
    for (int i = 0; i < fn_std_count(); i++) {
        const Fn *f = fn_std_at(i);
        if (f->loss && !strcmp(f->loss, name)) return f;
    }
    return NULL;
}

int fn_loss_target(const Fn *loss) {
    for (int i = 0; i < loss->operands.len; i++)
        if (!strcmp(loss->operands.data[i].name, "target")) return i;
    return -1;
}

const FnAttr *fn_attr(const Fn *fn, const char *name) {
    for (int i = 0; i < fn->attrs.len; i++)
        if (strcmp(fn->attrs.data[i].name, name) == 0)
            return &fn->attrs.data[i];
    return NULL;
}

const OpInfo *callee_info(Callee c) {
    return c.fn ? &c.fn->info : &op_info[c.op];
}

const OpInfo *node_info(const Node *n) { return callee_info(node_callee(n)); }

AmpClass node_class(const Node *n) {
    return n->loc.amp ? (AmpClass)(n->loc.amp - 1) : node_info(n)->amp;
}

bool is_call(const Node *n, const char *name) {
    return n->fn && n->fn == fn_std(name);
}

FnCall fn_call(const Node *n) {
    return (FnCall){.fn = n->fn,
                    .in = n->in,
                    .nin = n->nin,
                    .attrs = n->attrs,
                    .nattr = n->nattr,
                    .nout = n->nout};
}

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

Status fn_canonical_attrs(Graph *g, Node *n, char *msg) {
    const Fn *fn = n->fn;
    Attr *to = NEW_ARRAY(g->arena, Attr, n->nattr + fn->attrs.len + 1);
    int rank = n->nin && is_value(n->in[0]) ? value_type(g, n->in[0])->rank : 0;
    int kept = 0;
    for (int i = 0; i < n->nattr; i++) { /* checks report unknown ones */
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
    Node call; /* the call: attributes and counts */
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

Status ty_call(TypeCtx *cx) {
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
