/* fn.c: the functions there are, and what calls of them are: types, attributes
   in one form, and the graph that a call with given operands stands for.    */
#include "ir/fn/fn.h"

#include <string.h>

#include "ir/graph/ir_impl.h"

/* ---- the library --------------------------------------------------------- */

extern const char *const std_amp_lines[]; /* std.amp, by ir/BUILD; ends in 0 */

static VEC(Fn *) library;
static const Fn *rules[NUM_OPS];

/* A definition or a rule. */
static Status read_one(Lexer *lx, Arena *a) {
    OpCode ops[MAX_RULE_OPS];
    Fn *f;
    int n;
    if (lex_is_word(lx, "def")) {
        TRY(parse_def(lx, a, NULL, &f));
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

/* std.amp, and the gradients that stand in ops.def.  Read once, when the first
   name is looked up; parse_def finds the functions above the one it reads. */
static void read_library(void) {
    static bool read;
    if (read) return;
    read = true;
    Arena *a = arena_new(); /* lives as long as the process */
    StrBuf text = {0};
    Diag d = {0};
    for (int i = 0; std_amp_lines[i]; i++) sb_puts(&text, std_amp_lines[i]);
    const char *kept = arena_dup(a, text.data, text.len + 1);
    Status s = read_text(a, &d, "std.amp", kept, text.len);
    for (int op = 0; op < NUM_OPS && s == OK; op++) {
        const char *dx = op_info[op].grad_text;
        if (strncmp(dx, "dx(", 3)) continue;
        Str rule = internf("gradient %s(x) -> y { dx = (%s }", op_info[op].text,
                           dx + 3);
        s = read_text(a, &d, "ops.def", rule, strlen(rule));
    }
    if (s != OK) fputs(d.text.data, stderr);
    ASSERT(s == OK && "the library can be read");
    sb_free(&text);
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
    return strlen(f->info.text) == n && memcmp(f->info.text, s, n) == 0;
}

const Fn *fn_find(const Module *m, const char *name, size_t n) {
    read_library();
    for (int i = 0; m && i < m->fns.len; i++)
        if (has_name(m->fns.data[i], name, n)) return m->fns.data[i];
    for (int i = 0; i < library.len; i++)
        if (has_name(library.data[i], name, n)) return library.data[i];
    return NULL;
}

const Fn *fn_std(const char *name) { return fn_find(NULL, name, strlen(name)); }

const FnAttr *fn_attr(const Fn *fn, const char *name) {
    for (int i = 0; i < fn->attrs.len; i++)
        if (strcmp(fn->attrs.data[i].name, name) == 0)
            return &fn->attrs.data[i];
    return NULL;
}

const OpInfo *callee_info(Callee c) {
    return c.fn ? &c.fn->info : &op_info[c.op];
}

const OpInfo *node_info(const Node *n) {
    return callee_info((Callee){n->op, n->fn});
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

/* A copy in memory of the arena's, axes counted from the front. */
static Attr own_attr(const FnAttr *a, int rank, Arena *arena, Attr x) {
    if (a->kind == FA_AXIS && axis_norm(x.u.i, rank) >= 0)
        x.u.i = axis_norm(x.u.i, rank);
    if (attr_get(a->key)->kind != ATTR_INTS) return x;
    int64_t *v =
        arena_dup(arena, x.u.ints.v, (size_t)x.u.ints.n * sizeof(int64_t));
    if (a->kind == FA_AXES) attr_sort_axes(v, x.u.ints.n, rank);
    x.u.ints.v = v;
    return x;
}

Status fn_canonical_attrs(const Fn *fn, Graph *g, const ValueId *in, int nin,
                          const Attr *attrs, int *nattr, Attr **out,
                          char *msg) {
    Attr *to = *out = NEW_ARRAY(g->arena, Attr, *nattr + fn->attrs.len + 1);
    int rank = nin && is_value(in[0]) ? value_type(g, in[0])->rank : 0, n = 0;
    Node holder = {.attrs = attrs, .nattr = *nattr};
    for (int i = 0; i < *nattr; i++) { /* unknown ones are told by the checks */
        const FnAttr *a = fn_attr(fn, attr_get(attrs[i].key)->text);
        if (a && a->key == attrs[i].key && is_default(fn, g, a, &attrs[i]))
            continue;
        bool ours = a && a->key == attrs[i].key;
        to[n++] = ours ? own_attr(a, rank, g->arena, attrs[i]) : attrs[i];
    }
    for (int i = 0; i < fn->attrs.len; i++) {
        const FnAttr *a = &fn->attrs.data[i];
        bool axis = a->kind == FA_AXIS || a->kind == FA_AXES;
        if (!axis || !a->dflt || attr_find(&holder, a->key)) continue;
        TRY(fn_default(fn, g, in, nin, a, &to[n++], msg));
    }
    *nattr = n;
    return OK;
}

/* ---- instances ----------------------------------------------------------- */

typedef struct FnEntry {
    uint64_t hash;
    TypeId in[MAX_FN_OPERANDS];
    int nin, nout, nattr;
    const Attr *attrs;
    FnInstance made;
} FnEntry;

static uint64_t entry_hash(const FnEntry *e) {
    uint64_t h = hash_bytes(1, e->in, sizeof e->in);
    h = hash_bytes(h, &e->nout, sizeof e->nout);
    for (int i = 0; i < e->nattr; i++) h = attr_hash(h, &e->attrs[i]);
    return h;
}

static bool entry_same(const FnEntry *a, const FnEntry *b) {
    if (a->hash != b->hash || a->nin != b->nin || a->nout != b->nout ||
        a->nattr != b->nattr || memcmp(a->in, b->in, sizeof a->in) != 0)
        return false;
    for (int i = 0; i < a->nattr; i++)
        if (!attr_same(&a->attrs[i], &b->attrs[i])) return false;
    return true;
}

static int *find_slot(struct FnTable *t, const FnEntry *e) {
    for (uint64_t i = e->hash;; i++) {
        int *slot = &t->slots.data[i & (uint64_t)(t->slots.len - 1)];
        if (!*slot || entry_same(t->entries.data[*slot - 1], e)) return slot;
    }
}

static void grow(Arena *a, struct FnTable *t) {
    if (t->slots.len > 2 * t->entries.len) return;
    int n = t->slots.len ? 2 * t->slots.len : 16;
    t->slots.data = NEW_ARRAY(a, int, n);
    t->slots.len = t->slots.cap = n;
    for (int i = 0; i < t->entries.len; i++)
        *find_slot(t, t->entries.data[i]) = i + 1;
}

/* Attributes in memory of the function's own. */
static const Attr *keep_attrs(Arena *a, const Attr *attrs, int n) {
    Attr *to = arena_dup(a, attrs, (size_t)n * sizeof *attrs);
    for (int i = 0; i < n; i++)
        if (attr_get(to[i].key)->kind == ATTR_INTS)
            to[i].u.ints.v = arena_dup(
                a, to[i].u.ints.v, (size_t)to[i].u.ints.n * sizeof(int64_t));
    return to;
}

static void instantiate(const Fn *fn, FnEntry *e) {
    char msg[MSG_TEXT] = "";
    FnInstance *x = &e->made;
    Module *m = module_new(fn->arena, "");
    Graph *g = graph_new(m, fn->info.text);
    Builder b = {.g = g};
    ValueId *in = NEW_ARRAY(fn->arena, ValueId, e->nin + 1);
    ValueId *out = NEW_ARRAY(fn->arena, ValueId, e->nout + 1);
    for (int i = 0; i < e->nin; i++)
        if (e->in[i].i)
            in[i] = graph_input(g, fn->operands.data[i].name, e->in[i]);
    FnCall call = {.fn = fn,
                   .in = in,
                   .nin = e->nin,
                   .attrs = e->attrs,
                   .nattr = e->nattr,
                   .nout = e->nout};
    *x = (FnInstance){.g = g, .in = in, .out = out};
    x->status = fn_run_body(&b, &call, out, msg);
    if (x->status != OK) x->msg = arena_printf(fn->arena, "%s", msg);
}

const FnInstance *fn_instance(const Fn *fn, const Type *const *in, int nin,
                              const Attr *attrs, int nattr, int nout) {
    FnEntry e = {.nin = nin, .nout = nout, .attrs = attrs, .nattr = nattr};
    struct FnTable *t = fn->instances;
    for (int i = 0; i < nin; i++)
        if (in[i]) e.in[i] = type_make(in[i]->dtype, in[i]->rank, in[i]->dim);
    e.hash = entry_hash(&e);
    grow(fn->arena, t);
    int *slot = find_slot(t, &e);
    if (*slot) return &t->entries.data[*slot - 1]->made;
    FnEntry *kept = NEW(fn->arena, FnEntry);
    *kept = e;
    kept->attrs = keep_attrs(fn->arena, attrs, nattr);
    vec_push(fn->arena, &t->entries, kept);
    *slot = t->entries.len;
    instantiate(fn, kept);
    return &kept->made;
}

/* ---- types --------------------------------------------------------------- */

Status ty_call(TypeCtx *cx) {
    const Fn *fn = cx->fn;
    DType first = DT_F32;
    for (int i = cx->nin - 1; i >= 0; i--)
        if (cx->ins[i] && dtype_is_float(cx->ins[i]->dtype))
            first = cx->ins[i]->dtype;
    const FnInstance *x = fn_instance(fn, cx->ins, cx->nin, cx->attrs->attrs,
                                      cx->attrs->nattr, cx->nout);
    if (x->status != OK) return type_error(cx, "%s", x->msg);
    for (int i = 0; i < cx->nout; i++) {
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
