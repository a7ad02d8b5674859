/* run_fn.c: makes the nodes of a function's body.

   Values are known when the model is compiled (numbers, booleans, text, lists,
   dtypes) or tensors; an operator whose operands are all known gives a known
   value, one with a tensor makes a node.  Arithmetic is wide: a node that
   rounds stores fp32 (fp64 where a floating operand of the call is), whatever
   the operands are stored as; ops of class ANY keep their operand's dtype.
   cast(x, D) and a result's declared dtype round once: where x is a node that
   nothing else reads, that node stores D itself.                            */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ir/fn/run.h"

/* ---- messages ------------------------------------------------------------ */

Status run_fail(Run *r, const Expr *at, const char *fmt, ...) {
    char text[MSG_TEXT];
    bool ours = r->model && r->fn->file == r->model->file;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (at && ours) model_failed_at(r->model, at->line, at->col);
    if (at && !ours)
        snprintf(r->msg, MSG_TEXT, "%.180s (%.40s:%d:%d)", text,
                 r->fn->file ? r->fn->file : "def", at->line, at->col);
    else
        memcpy(r->msg, text, sizeof text);
    return ERR_USER;
}

static const char *kind_text(const Val *v) {
    static const char *const text[] = {
        "nothing", "a boolean", "an integer", "a number",      "text",
        "a dtype", "a list",    "a tensor",   "an initialiser"};
    return text[v->kind];
}

Status run_wants(Run *r, const Expr *at, const char *what, const Val *v) {
    return run_fail(r, at, "%s expected, found %s", what, kind_text(v));
}

/* ---- values -------------------------------------------------------------- */

Val val_int(int64_t i) { return (Val){.kind = V_INT, .i = i}; }
static Val val_bool(bool b) { return (Val){.kind = V_BOOL, .i = b}; }
static Val val_float(double f) { return (Val){.kind = V_FLOAT, .f = f}; }
static Val val_dtype(DType d) { return (Val){.kind = V_DTYPE, .i = d}; }
Val val_tensor(ValueId t) {
    return (Val){.kind = is_value(t) ? V_TENSOR : V_NONE, .t = t};
}

bool val_is_number(const Val *v) {
    return v->kind == V_INT || v->kind == V_FLOAT || v->kind == V_BOOL;
}

double val_number(const Val *v) {
    return v->kind == V_FLOAT ? v->f : (double)v->i;
}

static const Type *tensor_type(const Run *r, const Val *v) {
    return value_type(r->b->g, v->t);
}

static Val val_list(Run *r, const ValueId *v, int n) {
    Val *list = NEW_ARRAY(r->a, Val, n + 1);
    for (int i = 0; i < n; i++) list[i] = val_tensor(v[i]);
    return (Val){.kind = V_LIST, .list = list, .n = n};
}

static Val val_ints(Run *r, const int64_t *v, int n) {
    Val *list = NEW_ARRAY(r->a, Val, n + 1);
    for (int i = 0; i < n; i++) list[i] = val_int(v[i]);
    return (Val){.kind = V_LIST, .list = list, .n = n};
}

Status run_want_int(Run *r, const Expr *at, const Val *v, int64_t *out) {
    if (v->kind != V_INT && v->kind != V_BOOL)
        return run_wants(r, at, "an integer", v);
    *out = v->i;
    return OK;
}

static Status want_bool(Run *r, const Expr *at, const Val *v, bool *out) {
    if (v->kind != V_BOOL) return run_wants(r, at, "true or false", v);
    *out = v->i != 0;
    return OK;
}

static Status want_dtype(Run *r, const Expr *at, const Val *v, DType *out) {
    if (v->kind != V_DTYPE) return run_wants(r, at, "a dtype", v);
    *out = (DType)v->i;
    return OK;
}

/* A list of integers; one integer is a list of one. */
static Status want_ints(Run *r, const Expr *at, const Val *v, int64_t **out,
                        int *n) {
    bool one = v->kind == V_INT;
    if (!one && v->kind != V_LIST) return run_wants(r, at, "a list", v);
    *n = one ? 1 : v->n;
    *out = NEW_ARRAY(r->a, int64_t, *n + 1);
    for (int i = 0; i < *n; i++)
        TRY(run_want_int(r, at, one ? v : &v->list[i], &(*out)[i]));
    return OK;
}

static Status want_shape(Run *r, const Expr *at, const Val *v, Type *out) {
    int64_t *dim;
    int n;
    TRY(want_ints(r, at, v, &dim, &n));
    if (n > MAX_RANK) return run_fail(r, at, "rank %d", n);
    out->rank = n;
    memcpy(out->dim, dim, (size_t)n * sizeof *dim);
    return OK;
}

static bool val_same(const Val *a, const Val *b) {
    if (val_is_number(a) && val_is_number(b))
        return val_number(a) == val_number(b);
    if (a->kind != b->kind) return false;
    if (a->kind == V_LIST) {
        bool same = a->n == b->n;
        for (int i = 0; same && i < a->n; i++)
            same = val_same(&a->list[i], &b->list[i]);
        return same;
    }
    return a->kind == V_NONE ||
           (a->kind == V_STR ? a->s == b->s : a->i == b->i);
}

/* What a text makes us do is bounded, whatever it says. */
static Status count_work(Run *r, const Expr *at, int64_t n) {
    *r->work += n;
    if (*r->work <= MAX_WORK) return OK;
    return run_fail(r, at, "more than %d steps at compile time", MAX_WORK);
}

/* ---- names --------------------------------------------------------------- */

Val *run_lookup(Run *r, Str name) {
    for (int i = r->env.len - 1; i >= 0; i--)
        if (r->env.data[i].name == name) return &r->env.data[i].val;
    return NULL;
}

void run_bind(Run *r, Str name, Val v) {
    Val *old = run_lookup(r, name);
    if (old)
        *old = v;
    else
        vec_push(r->a, &r->env, (Binding){name, v});
}

/* ---- nodes --------------------------------------------------------------- */

/* What a call in a body asks for. */
typedef struct Made {
    Node n;
    const OpInfo *info;
    Attr attrs[MAX_OP_ATTRS]; /* n.attrs while they are read */
    DType dtype;              /* asked for; NUM_DTYPES: by rule */
    Type gen;                 /* of a generator; rank -1: none  */
    Str scope;                /* of a layer */
    bool list;                /* results are one, whatever their number */
} Made;

static Made made_new(OpCode op, const Fn *fn) {
    return (Made){.n = {.op = fn ? OP_CALL : op, .fn = fn, .nout = 1},
                  .info = fn ? &fn->info : &op_info[op],
                  .dtype = NUM_DTYPES,
                  .gen = type_by_rule()};
}

/* The dtype of a result whose rule gives d. */
static DType stored(const Run *r, const Made *m, DType d) {
    OpKind kind = m->info->kind;
    if (m->dtype != NUM_DTYPES) return m->dtype;
    if (!dtype_is_float(d) || m->info->amp == AMP_ANY || kind == KIND_MOVE ||
        kind == KIND_VIEW || kind == KIND_GEN)
        return d;
    return r->wide;
}

static Status start_run(Run *r, const FnCall *call, Builder *b, char *msg);
static Status take_results(Run *r, ValueId *out);

/* The body of a function called inside, in place. */
static Status expand_call(Run *r, const Expr *at, const Made *m,
                          const DType *want, ValueId *out) {
    char msg[MSG_TEXT];
    Run inner = {.depth = r->depth + 1, .work = r->work};
    FnCall call = fn_call(&m->n);
    const char *name = m->info->text;
    call.want = want;
    call.flat = r->call->flat;
    if (call.fn->layer) inner.model = r->model;
    if (inner.model) inner.scope = model_call_scope(r, call.fn, m->scope);
    if (inner.depth > MAX_CALLS) return run_fail(r, at, "calls nest too deep");
    Status s = start_run(&inner, &call, r->b, msg);
    if (s == OK) s = run_block(&inner, &call.fn->body.block);
    if (s == OK) s = take_results(&inner, out);
    arena_free(inner.a);
    return s == OK ? OK : run_fail(r, at, "%s: %s", name, msg);
}

/* A layer is what its body makes in the model. */
static Status expand_layer(Run *r, const Expr *at, const Made *m, Val *out) {
    const OpInfo *info = m->info;
    if (m->n.nin < info->in_min || m->n.nin > info->in_max)
        return run_fail(r, at, "%s takes %d to %d operands, found %d",
                        info->text, info->in_min, info->in_max, m->n.nin);
    if (m->n.nout < info->out_min || m->n.nout > info->out_max)
        return run_fail(r, at, "%s gives %d to %d results", info->text,
                        info->out_min, info->out_max);
    ValueId *made = NEW_ARRAY(r->a, ValueId, m->n.nout);
    TRY(expand_call(r, at, m, NULL, made));
    *out = m->n.nout == 1 ? val_tensor(made[0]) : val_list(r, made, m->n.nout);
    return OK;
}

/* Where a node of a model comes from. */
static void set_place(Run *r, const Expr *at) {
    Loc *loc = &r->b->loc;
    if (r->fn->file == r->model->file)
        *loc = (Loc){.file = r->fn->file, .line = at->line, .col = at->col};
    loc->amp = r->model->amp;
    loc->region = r->model->region;
}

static Status make(Run *r, const Expr *at, Made *m, Val *out) {
    char msg[MSG_TEXT];
    NodeId id;
    Graph *g = r->b->g;
    int nout = m->n.nout;
    Type *given = NEW_ARRAY(r->a, Type, nout);
    TypeId *types = NEW_ARRAY(r->a, TypeId, nout);
    ValueId *made = NEW_ARRAY(r->a, ValueId, nout);
    DType *want = NEW_ARRAY(r->a, DType, nout);
    m->n.attrs = m->attrs;
    if (r->model) set_place(r, at);
    for (int i = 0; i < nout; i++) {
        given[i] = type_by_rule();
        if (m->gen.rank >= 0) given[i] = m->gen;
        if (m->dtype != NUM_DTYPES) given[i].dtype = m->dtype;
    }
    if (canonical_attrs(g, &m->n, given, msg) ||
        infer_types(g, &m->n, given, types, msg))
        return run_fail(r, at, "%s: %s", m->info->text, msg);
    for (int i = 0; i < nout; i++)
        given[i].dtype = want[i] = stored(r, m, type_get(types[i])->dtype);
    if (m->n.fn && r->call->flat) {
        TRY(expand_call(r, at, m, want, made));
    } else {
        if (node_make(r->b, &m->n, given, NULL, &id, msg))
            return run_fail(r, at, "%s: %s", m->info->text, msg);
        for (int i = 0; i < nout; i++) made[i] = node_get(g, id)->out[i];
    }
    *out =
        nout == 1 && !m->list ? val_tensor(made[0]) : val_list(r, made, nout);
    out->typed = m->dtype != NUM_DTYPES;
    return OK;
}

/* A number as a scalar that meets a tensor of dtype d. */
static Status scalar_for(Run *r, const Expr *at, const Val *v, DType d,
                         ValueId *out) {
    Graph *g = r->b->g;
    if (dtype_is_float(d)) {
        *out = graph_scalar(g, r->wide, val_number(v));
        return OK;
    }
    if (v->kind == V_FLOAT && v->f != floor(v->f))
        return run_fail(r, at, "%g meets integers", v->f);
    *out = graph_scalar_int(g, d, v->kind == V_FLOAT ? (int64_t)v->f : v->i);
    return OK;
}

/* Operands: numbers are what a function asks for, and take the kind of the
   tensors beside them in an op (the condition of `where` does not count). */
static Status take_operands(Run *r, const Expr *at, const Val *v, int n,
                            Made *m) {
    DType beside = DT_F32;
    int skip = m->n.op == OP_WHERE && !m->n.fn;
    bool any = false;
    m->n.in = NEW_ARRAY(r->a, ValueId, n + 1);
    for (int i = skip; i < n; i++)
        if (v[i].kind == V_TENSOR && !any) {
            beside = tensor_type(r, &v[i])->dtype;
            any = true;
        }
    for (int i = 0; i < n; i++) {
        m->n.in[i] = v[i].t;
        bool real = m->n.fn && i < m->n.fn->operands.len &&
                    m->n.fn->operands.data[i].kind == FO_FLOAT;
        DType d = i < skip ? DT_BOOL : real ? DT_F32 : beside;
        if (val_is_number(&v[i]))
            TRY(scalar_for(r, at, &v[i], d, &m->n.in[i]));
        else if (v[i].kind != V_TENSOR && v[i].kind != V_NONE)
            return run_wants(r, at, "a tensor or a number", &v[i]);
    }
    m->n.nin = n;
    return OK;
}

static Status elementwise(Run *r, const Expr *at, OpCode op, const Val *v,
                          int n, Val *out) {
    Made m = made_new(op, NULL);
    TRY(take_operands(r, at, v, n, &m));
    return make(r, at, &m, out);
}

/* ---- operators ----------------------------------------------------------- */

static Status known_arithmetic(Run *r, const Expr *e, const Val *a,
                               const Val *b, Val *out) {
    bool whole = a->kind != V_FLOAT && b->kind != V_FLOAT;
    int64_t i = 0, x = a->i, y = b->i;
    bool ok = true;
    if (e->op == B_DIV || !whole) {
        double p = val_number(a), q = val_number(b);
        double f = e->op == B_ADD   ? p + q
                   : e->op == B_SUB ? p - q
                   : e->op == B_MUL ? p * q
                   : e->op == B_DIV ? p / q
                   : e->op == B_MOD ? p - q * floor(p / q)
                                    : floor(p / q);
        *out = val_float(f);
        return OK;
    }
    if ((e->op == B_FLOORDIV || e->op == B_MOD) && (y == 0 || y == -1))
        return run_fail(r, e, "division by %" PRId64, y);
    int64_t q = y ? x / y - (x % y != 0 && (x < 0) != (y < 0)) : 0;
    switch (e->op) {
    case B_ADD: ok = add_ok(x, y, &i); break;
    case B_SUB: ok = y != INT64_MIN && add_ok(x, -y, &i); break;
    case B_MUL: ok = mul_ok(x, y, &i); break;
    case B_FLOORDIV: i = q; break;
    default: i = x - q * y; break;
    }
    *out = val_int(i);
    return ok ? OK : run_fail(r, e, "the integer is too large");
}

static Status known_list(Run *r, const Expr *e, const Val *a, const Val *b,
                         Val *out) {
    int64_t lo, hi;
    bool range = e->op == B_RANGE;
    if (range) TRY(run_want_int(r, e, a, &lo));
    if (range) TRY(run_want_int(r, e, b, &hi));
    int64_t n = !range ? a->n + b->n : hi > lo ? hi - lo : 0;
    if (range && (n > MAX_LIST || n < 0))
        return run_fail(r, e, "the list is too long: at most %d elements",
                        MAX_LIST);
    TRY(count_work(r, e, n));
    Val *list = NEW_ARRAY(r->a, Val, n + 1);
    for (int i = 0; i < (int)n; i++)
        list[i] = range      ? val_int(lo + i)
                  : i < a->n ? a->list[i]
                             : b->list[i - a->n];
    *out = (Val){.kind = V_LIST, .list = list, .n = (int)n};
    return OK;
}

static void put_part(Run *r, StrBuf *sb, const Val *v);

/* "block." + i */
static Status known_text(Run *r, const Expr *e, const Val *a, const Val *b,
                         Val *out) {
    StrBuf sb = {0};
    if (b->kind != V_STR && b->kind != V_INT)
        return run_wants(r, e, "text or an integer", b);
    put_part(r, &sb, a);
    put_part(r, &sb, b);
    bool fits = sb.len <= MAX_LIST;
    *out = (Val){.kind = V_STR, .s = intern_n(sb.data, fits ? sb.len : 0)};
    sb_free(&sb);
    return fits ? OK : run_fail(r, e, "the text is too long");
}

static Status known_binary(Run *r, const Expr *e, const Val *a, const Val *b,
                           Val *out) {
    bool found = false, lists = a->kind == V_LIST && b->kind == V_LIST;
    if (e->op == B_RANGE || (e->op == B_ADD && lists))
        return known_list(r, e, a, b, out);
    if (e->op == B_ADD && a->kind == V_STR) return known_text(r, e, a, b, out);
    if (e->op == B_EQ || e->op == B_NE) {
        *out = val_bool(val_same(a, b) == (e->op == B_EQ));
        return OK;
    }
    if (e->op == B_IN) {
        if (b->kind != V_LIST) return run_wants(r, e, "a list", b);
        for (int i = 0; i < b->n; i++) found |= val_same(a, &b->list[i]);
        *out = val_bool(found);
        return OK;
    }
    if (!val_is_number(a)) return run_wants(r, e, "a number", a);
    if (!val_is_number(b)) return run_wants(r, e, "a number", b);
    double x = val_number(a), y = val_number(b);
    switch (e->op) {
    case B_LT: *out = val_bool(x < y); return OK;
    case B_LE: *out = val_bool(x <= y); return OK;
    case B_GT: *out = val_bool(x > y); return OK;
    case B_GE: *out = val_bool(x >= y); return OK;
    default: return known_arithmetic(r, e, a, b, out);
    }
}

static Status eval_binary(Run *r, const Expr *e, Val *out) {
    static const OpCode ops[] = {
        [B_OR] = OP_OR,      [B_AND] = OP_AND,          [B_EQ] = OP_EQUAL,
        [B_NE] = OP_EQUAL,   [B_LT] = OP_LESS,          [B_LE] = OP_LESS_EQUAL,
        [B_GT] = OP_GREATER, [B_GE] = OP_GREATER_EQUAL, [B_IN] = NUM_OPS,
        [B_RANGE] = NUM_OPS, [B_ADD] = OP_ADD,          [B_SUB] = OP_SUB,
        [B_MUL] = OP_MUL,    [B_DIV] = OP_DIV,          [B_FLOORDIV] = NUM_OPS,
        [B_MOD] = OP_MOD,    [B_MATMUL] = OP_MATMUL};
    Val v[2];
    TRY(run_eval(r, e->a, &v[0]));
    bool logic = e->op == B_AND || e->op == B_OR;
    if (logic && v[0].kind != V_TENSOR) { /* the right side only if needed */
        bool left;
        TRY(want_bool(r, e->a, &v[0], &left));
        if (left == (e->op == B_OR)) {
            *out = val_bool(left);
            return OK;
        }
        TRY(run_eval(r, e->b, out));
        return want_bool(r, e->b, out, &left);
    }
    TRY(run_eval(r, e->b, &v[1]));
    if (v[0].kind != V_TENSOR && v[1].kind != V_TENSOR && e->op != B_MATMUL)
        return known_binary(r, e, &v[0], &v[1], out);
    if (ops[e->op] == NUM_OPS) return run_wants(r, e, "a known value", v);
    TRY(elementwise(r, e, ops[e->op], v, 2, out));
    if (e->op != B_NE) return OK;
    v[0] = *out;
    return elementwise(r, e, OP_NOT, v, 1, out);
}

static Status eval_unary(Run *r, const Expr *e, Val *out) {
    bool neg = e->kind == E_NEG, b;
    Val v;
    TRY(run_eval(r, e->a, &v));
    if (v.kind == V_TENSOR)
        return elementwise(r, e, neg ? OP_NEG : OP_NOT, &v, 1, out);
    if (!neg) {
        TRY(want_bool(r, e, &v, &b));
        *out = val_bool(!b);
        return OK;
    }
    if (!val_is_number(&v)) return run_wants(r, e, "a number", &v);
    *out = v.kind == V_FLOAT ? val_float(-v.f) : val_int(-v.i);
    return OK;
}

static Status eval_each(Run *r, const Expr *e, Val *out) {
    Val all, keep = val_bool(true);
    int n = 0, outside = r->env.len;
    TRY(run_eval(r, e->b, &all));
    if (all.kind != V_LIST) return run_wants(r, e->b, "a list", &all);
    TRY(count_work(r, e, all.n));
    Val *list = NEW_ARRAY(r->a, Val, all.n + 1);
    vec_push(r->a, &r->env, (Binding){e->name, all});
    for (int i = 0; i < all.n; i++) {
        bool kept;
        r->env.data[outside].val = all.list[i];
        if (e->c) TRY(run_eval(r, e->c, &keep));
        TRY(want_bool(r, e, &keep, &kept));
        if (kept) TRY(run_eval(r, e->a, &list[n++]));
    }
    r->env.len = outside;
    *out = (Val){.kind = V_LIST, .list = list, .n = n};
    return OK;
}

/* ---- calls --------------------------------------------------------------- */

static Status take_attr(Run *r, const Expr *at, AttrKey key, const Val *v,
                        Attr *out) {
    int64_t *ints;
    out->key = key;
    switch (attr_get(key)->kind) {
    case ATTR_INT: return run_want_int(r, at, v, &out->u.i);
    case ATTR_FLOAT:
        if (!val_is_number(v)) return run_wants(r, at, "a number", v);
        out->u.f = val_number(v);
        return OK;
    case ATTR_STR:
        if (v->kind != V_STR) return run_wants(r, at, "text", v);
        out->u.s = v->s;
        return OK;
    case ATTR_INTS:
        TRY(want_ints(r, at, v, &ints, &out->u.ints.n));
        out->u.ints.v = ints;
        return OK;
    }
    return OK;
}

/* dtype= of any op; shape= of a generator, which has no such attribute. */
static Status take_keys(Run *r, const Expr *e, Made *m) {
    for (int i = 0; i < e->keys.len; i++) {
        const KeyArg *k = &e->keys.data[i];
        Val v;
        int a = 0;
        TRY(run_eval(r, k->value, &v));
        if (v.kind == V_NONE) continue;
        while (a < m->info->nattr &&
               strcmp(attr_get(m->info->attrs[a])->text, k->name) != 0)
            a++;
        if (a < m->info->nattr) {
            TRY(take_attr(r, k->value, m->info->attrs[a], &v,
                          &m->attrs[m->n.nattr++]));
        } else if (strcmp(k->name, "dtype") == 0) {
            TRY(want_dtype(r, k->value, &v, &m->dtype));
        } else if (strcmp(k->name, "shape") == 0 && m->info->kind == KIND_GEN) {
            TRY(want_shape(r, k->value, &v, &m->gen));
        } else if (strcmp(k->name, "scope") == 0 && m->n.fn && m->n.fn->layer) {
            if (v.kind != V_STR) return run_wants(r, k->value, "text", &v);
            m->scope = v.s;
        } else {
            return run_fail(r, k->value, "%s has no attribute '%.40s'",
                            m->info->text, k->name);
        }
    }
    if (m->info->kind == KIND_GEN &&
        (m->gen.rank < 0 || m->dtype == NUM_DTYPES))
        return run_fail(r, e, "%s needs shape= and dtype=", m->info->text);
    return OK;
}

/* In a rule: those of the node's attributes that the op takes too. */
static void inherit_attrs(const Run *r, const Expr *e, Made *m) {
    for (int i = 0; i < m->info->nattr; i++) {
        Node holder = {.attrs = r->call->attrs, .nattr = r->call->nattr};
        const Attr *a = attr_find(&holder, m->info->attrs[i]);
        bool given = false;
        for (int k = 0; a && k < e->keys.len; k++)
            given |= !strcmp(e->keys.data[k].name, attr_get(a->key)->text);
        if (a && !given) m->attrs[m->n.nattr++] = *a;
    }
}

/* Over no axes a reduction gives its operand (sumsq: its square); what has the
   wanted shape is not reshaped. */
static Status shortcut(Run *r, const Expr *e, const Made *m, bool *done,
                       Val *out) {
    const Type *x = m->n.nin ? value_type(r->b->g, m->n.in[0]) : NULL;
    const Attr *a = NULL;
    *done = false;
    for (int i = 0; i < m->n.nattr; i++)
        if (m->attrs[i].key == AK_shape || m->attrs[i].key == AK_axes)
            a = &m->attrs[i];
    if (m->n.fn || !x || !a) return OK;
    int n = a->u.ints.n;
    size_t bytes = (size_t)n * sizeof(int64_t);
    bool reduce = m->info->kind == KIND_REDUCE && n == 0;
    bool reshape = (m->n.op == OP_RESHAPE || m->n.op == OP_EXPAND) &&
                   n == x->rank &&
                   (n == 0 || memcmp(a->u.ints.v, x->dim, bytes) == 0);
    *done = reduce || reshape;
    *out = val_tensor(m->n.in[0]);
    if (!reduce || m->n.op != OP_REDUCE_SUMSQ) return OK;
    Val square[] = {*out, *out};
    return elementwise(r, e, OP_MUL, square, 2, out);
}

/* sqrt(2.0): an element-wise op of known numbers. */
static bool known_op(OpCode op, const Val *v, int n, Val *out) {
    static const OpCode plain[] = {OP_SQRT,  OP_EXP,  OP_LOG,  OP_ABS,
                                   OP_FLOOR, OP_CEIL, OP_TANH, OP_RSQRT};
    if (n == 2 && (op == OP_MIN || op == OP_MAX)) {
        bool first = (val_number(&v[0]) < val_number(&v[1])) == (op == OP_MIN);
        *out = v[first ? 0 : 1];
        return true;
    }
    for (size_t i = 0; n == 1 && i < sizeof plain / sizeof *plain; i++)
        if (plain[i] == op) {
            *out = val_float(eval_expr_f(op, val_number(&v[0]), 0));
            return true;
        }
    return false;
}

/* An op of any number of results has one for each of its sizes, as a list. */
static void count_results(Made *m) {
    for (int i = 0; i < m->n.nattr && m->info->out_max < 0; i++) {
        if (m->attrs[i].key != AK_sizes) continue;
        m->n.nout = m->attrs[i].u.ints.n;
        m->list = true;
    }
}

static Status make_call(Run *r, const Expr *e, int nout, const Val *v, int n,
                        Val *out) {
    bool known = n > 0, same;
    Made m = made_new(e->code, e->callee == CALLEE_FN ? e->fn : NULL);
    m.n.nout = nout;
    for (int i = 0; i < n; i++) known &= val_is_number(&v[i]);
    if (known && !m.n.fn && known_op(m.n.op, v, n, out)) return OK;
    TRY(take_operands(r, e, v, n, &m));
    TRY(take_keys(r, e, &m));
    if (r->fn->rule) inherit_attrs(r, e, &m);
    count_results(&m);
    m.n.attrs = m.attrs;
    if (m.n.fn && m.n.fn->layer) return expand_layer(r, e, &m, out);
    TRY(shortcut(r, e, &m, &same, out));
    return same ? OK : make(r, e, &m, out);
}

/* ---- built-ins ----------------------------------------------------------- */

static const struct {
    const char *name, *takes;
} builtins[] = {
#define BUILTIN(name, takes) {#name, takes},
#include "ir/fn/builtins.def"
};

int fn_builtin(Str name) {
    for (int i = 0; i < NUM_BUILTINS; i++)
        if (strcmp(builtins[i].name, name) == 0) return i;
    return -1;
}

/* A built-in that needs no operands is a value. */
static bool builtin_value(Str name, int *out) {
    *out = fn_builtin(name);
    return *out >= 0 && !*builtins[*out].takes;
}

typedef struct Arg {
    const Type *t;
    int64_t i;
    DType d;
    Type shape;
} Arg;

static Status take_arg(Run *r, const Expr *e, char kind, const Val *v, Arg *a) {
    switch (kind) {
    case 'i': return run_want_int(r, e, v, &a->i);
    case 'd': return want_dtype(r, e, v, &a->d);
    case 's': return want_shape(r, e, v, &a->shape);
    case 'n': return val_is_number(v) ? OK : run_wants(r, e, "a number", v);
    case 'l': return v->kind == V_LIST ? OK : run_wants(r, e, "a list", v);
    case 't':
        if (v->kind != V_TENSOR) return run_wants(r, e, "a tensor", v);
        a->t = tensor_type(r, v);
    }
    return OK;
}

/* Elements of a tensor or of a shape. */
static Status count_of(Run *r, const Expr *e, const Val *v, Val *out) {
    int64_t *dim, n = 1;
    int k;
    if (v->kind == V_TENSOR) {
        *out = val_int(type_count(tensor_type(r, v)));
        return OK;
    }
    TRY(want_ints(r, e, v, &dim, &k));
    for (int i = 0; i < k; i++)
        if (!mul_ok(n, dim[i], &n))
            return run_fail(r, e, "the integer is too large");
    *out = val_int(n);
    return OK;
}

/* Whether integers of a dtype can equal i at all. */
static bool dtype_holds(DType d, int64_t i) {
    bool is_signed = dtype_info[d].kind == DK_I;
    int bits = 8 * dtype_info[d].bytes - is_signed;
    int64_t top = i < 0 ? -(i + 1) : i;
    return (i >= 0 || is_signed) && (bits >= 63 || !(top >> bits));
}

static ValueId round_to(Run *r, ValueId v, DType d);

/* What has a name keeps its dtype. */
static ValueId cast_to(Run *r, ValueId v, DType d) {
    bool named = r->model;
    for (int i = 0; i < r->env.len; i++)
        named |= same_value(r->env.data[i].val.t, v);
    return named ? b_cast(r->b, v, d) : round_to(r, v, d);
}

static Status eval_builtin(Run *r, const Expr *e, const Val *v, Val *out) {
    const char *takes = builtins[e->builtin].takes;
    int n = (int)strlen(takes), axis;
    Arg a[2] = {{0}};
    Type both = {0};
    double number;
    if (e->args.len != n || e->keys.len)
        return run_fail(r, e, "%s takes %d", e->name, n);
    for (int i = 0; i < n; i++) TRY(take_arg(r, e, takes[i], &v[i], &a[i]));
    *out = (Val){.kind = V_NONE};
    switch ((Builtin)e->builtin) {
    case F_rank: *out = val_int(a->t->rank); break;
    case F_shape: *out = val_ints(r, a->t->dim, a->t->rank); break;
    case F_dim:
        axis = axis_norm(a[1].i, a->t->rank);
        if (axis < 0)
            return run_fail(r, e, "axis %" PRId64 " is outside rank %d", a[1].i,
                            a->t->rank);
        *out = val_int(a->t->dim[axis]);
        break;
    case F_count: return count_of(r, e, v, out);
    case F_len: *out = val_int(v->n); break;
    case F_dtype: *out = val_dtype(a->t->dtype); break;
    case F_present: *out = val_bool(v->kind != V_NONE); break;
    case F_holds: *out = val_bool(dtype_holds(a->d, a[1].i)); break;
    case F_broadcasts:
        *out = val_bool(shape_broadcast(a->t, &a[1].shape, &both) &&
                        shape_equal(&both, &a[1].shape));
        break;
    case F_cast:
        *out = val_tensor(cast_to(r, v->t, a[1].d));
        out->typed = true;
        break;
    case F_plus:
        *out = v[v[0].kind == V_NONE];
        if (v[0].kind == V_NONE || v[1].kind == V_NONE) break;
        return elementwise(r, e, OP_ADD, v, 2, out);
    case F_sum_to:
        *out = val_tensor(b_sum_to(r->b, v[0].t, v[1].t, r->wide));
        out->typed = v[0].typed && same_value(out->t, v[0].t);
        break;
    case F_constant:
        if (value_is_splat(r->b->g, v->t, &number)) *out = val_float(number);
        break;
    case F_grad_dtype: *out = val_dtype(grad_dtype(r->b->g, v->t)); break;
    case F_rng:
    case F_salt:
    case F_zeros:
    case F_ones:
    case F_normal:
    case F_uniform:
    case F_kaiming:
    case F_xavier: return model_builtin(r, e, v, out);
    case NUM_BUILTINS: ASSERT(!"a built-in");
    }
    return OK;
}

static Status eval_value(Run *r, const Expr *e, int builtin, Val *out) {
    Expr call = *e;
    call.builtin = builtin;
    return eval_builtin(r, &call, NULL, out);
}

static Status eval_call(Run *r, const Expr *e, int nout, Val *out) {
    Val v[MAX_ARGS] = {{0}};
    if (e->args.len > MAX_ARGS)
        return run_fail(r, e, "more than %d operands", MAX_ARGS);
    for (int i = 0; i < e->args.len; i++)
        TRY(run_eval(r, e->args.data[i], &v[i]));
    if (e->callee == CALLEE_BUILTIN) return eval_builtin(r, e, v, out);
    if (e->callee == CALLEE_OP && e->args.len == 1 && v->kind == V_LIST &&
        op_info[e->code].in_max < 0)
        return make_call(r, e, nout, v->list, v->n, out);
    return make_call(r, e, nout, v, e->args.len, out);
}

Status run_eval(Run *r, const Expr *e, Val *out) {
    Val v, at, *list;
    const Val *bound;
    int64_t i;
    int builtin;
    DType d;
    bool yes;
    TRY(count_work(r, e, 1));
    switch (e->kind) {
    case E_INT: *out = val_int(e->i); return OK;
    case E_FLOAT: *out = val_float(e->f); return OK;
    case E_STR: *out = (Val){.kind = V_STR, .s = e->name}; return OK;
    case E_BOOL: *out = val_bool(e->i); return OK;
    case E_NONE: *out = (Val){.kind = V_NONE}; return OK;
    case E_NAME:
        if ((bound = run_lookup(r, e->name)))
            *out = *bound;
        else if (r->model && model_lookup(r, e->name, out))
            return OK;
        else if (dtype_from_text(e->name, strlen(e->name), &d))
            *out = val_dtype(d);
        else if (builtin_value(e->name, &builtin))
            return eval_value(r, e, builtin, out);
        else
            return run_fail(r, e, "'%.60s' has no value here", e->name);
        return OK;
    case E_VALUE:
        *out =
            val_tensor(r->model ? graph_find_name(r->b->g, e->name) : NO_VALUE);
        if (out->kind == V_TENSOR) return OK;
        return run_fail(r, e, "'%%%.60s' is not defined here", e->name);
    case E_LIST:
        TRY(count_work(r, e, e->args.len));
        list = NEW_ARRAY(r->a, Val, e->args.len + 1);
        for (int k = 0; k < e->args.len; k++)
            TRY(run_eval(r, e->args.data[k], &list[k]));
        *out = (Val){.kind = V_LIST, .list = list, .n = e->args.len};
        return OK;
    case E_EACH: return eval_each(r, e, out);
    case E_NEG:
    case E_NOT: return eval_unary(r, e, out);
    case E_BINARY: return eval_binary(r, e, out);
    case E_INDEX:
        TRY(run_eval(r, e->a, &v));
        TRY(run_eval(r, e->b, &at));
        if (v.kind != V_LIST) return run_wants(r, e, "a list", &v);
        TRY(run_want_int(r, e->b, &at, &i));
        if (i < 0) i += v.n;
        if (i < 0 || i >= v.n)
            return run_fail(r, e->b, "element %" PRId64 " of %d", at.i, v.n);
        *out = v.list[i];
        return OK;
    case E_CALL: return eval_call(r, e, 1, out);
    case E_COND:
        TRY(run_eval(r, e->c, &v));
        TRY(want_bool(r, e->c, &v, &yes));
        return run_eval(r, yes ? e->a : e->b, out);
    }
    return OK;
}

/* ---- statements ---------------------------------------------------------- */

static void put_part(Run *r, StrBuf *sb, const Val *v) {
    switch (v->kind) {
    case V_NONE: sb_puts(sb, "absent"); break;
    case V_BOOL: sb_puts(sb, v->i ? "true" : "false"); break;
    case V_INT: sb_printf(sb, "%" PRId64, v->i); break;
    case V_FLOAT: sb_printf(sb, "%g", v->f); break;
    case V_STR: sb_puts(sb, v->s); break;
    case V_DTYPE: sb_puts(sb, dtype_info[v->i].text); break;
    case V_TENSOR: sb_puts(sb, TXT(tensor_type(r, v))); break;
    case V_INIT: sb_puts(sb, kind_text(v)); break;
    case V_LIST:
        sb_puts(sb, "[");
        for (int i = 0; i < v->n; i++) {
            if (i) sb_puts(sb, ", ");
            put_part(r, sb, &v->list[i]);
        }
        sb_puts(sb, "]");
        break;
    }
}

static Status run_require(Run *r, const Stmt *s) {
    Val c;
    bool ok;
    TRY(run_eval(r, s->value, &c));
    TRY(want_bool(r, s->value, &c, &ok));
    if (ok) return OK;
    StrBuf sb = {0};
    Status status = OK;
    for (int i = 0; i < s->parts.len && status == OK; i++) {
        Val v;
        status = run_eval(r, s->parts.data[i], &v);
        if (status == OK) put_part(r, &sb, &v);
    }
    if (status == OK) {
        snprintf(r->msg, MSG_TEXT, "%.*s", MSG_TEXT - 1,
                 sb.data ? sb.data : "");
        if (r->model && r->fn->file == r->model->file)
            model_failed_at(r->model, s->line, s->col);
    }
    sb_free(&sb);
    return ERR_USER;
}

/* A rule's gradient of an operand that needs none is not computed. */
static bool is_unwanted(const Run *r, Str name) {
    const FnPart *p = &r->fn->grad;
    bool unwanted = false;
    if (!r->fn->rule || r->fn->all_in) return false;
    for (int i = 0; i < r->call->nin; i++)
        unwanted |= p->out.data[i] == name && r->call->want[i] == NUM_DTYPES;
    return unwanted;
}

static Status run_assign(Run *r, const Stmt *s) {
    uint32_t first = (uint32_t)r->b->g->nodes.len;
    int n = s->names.len;
    Val v;
    if (n == 1 && is_unwanted(r, s->names.data[0])) return OK;
    if (s->value->kind == E_CALL)
        TRY(eval_call(r, s->value, n, &v));
    else
        TRY(run_eval(r, s->value, &v));
    if (n == 1) {
        if (r->model) model_name(r, first, s->names.data[0], &v);
        run_bind(r, s->names.data[0], v);
        return OK;
    }
    if (v.kind != V_LIST || v.n != n)
        return run_fail(r, s->value, "%d values expected", n);
    for (int i = 0; i < n; i++) {
        if (r->model) model_name(r, first, s->names.data[i], &v.list[i]);
        run_bind(r, s->names.data[i], v.list[i]);
    }
    return OK;
}

Status run_block(Run *r, const Block *b) {
    for (int i = 0; i < b->len; i++) {
        const Stmt *s = &b->data[i];
        Val v;
        bool yes;
        switch (s->kind) {
        case S_ASSIGN: TRY(run_assign(r, s)); break;
        case S_REQUIRE: TRY(run_require(r, s)); break;
        case S_IF:
            TRY(run_eval(r, s->value, &v));
            TRY(want_bool(r, s->value, &v, &yes));
            TRY(run_block(r, yes ? &s->body : &s->other));
            break;
        case S_FOR:
            TRY(run_eval(r, s->value, &v));
            if (v.kind != V_LIST) return run_wants(r, s->value, "a list", &v);
            for (int k = 0; k < v.n; k++) {
                run_bind(r, s->names.data[0], v.list[k]);
                TRY(run_block(r, &s->body));
            }
            break;
        case S_VAR:
        case S_WRITE:
        case S_SCOPE:
        case S_REGION:
        case S_CHECKPOINT: TRY(run_model_stmt(r, s)); break;
        }
    }
    return OK;
}

/* ---- a run --------------------------------------------------------------- */

static Val attr_val(Run *r, const FnAttr *a, const Attr *x) {
    switch (a->kind) {
    case FA_INT:
    case FA_AXIS: return val_int(x->u.i);
    case FA_BOOL: return val_bool(x->u.i != 0);
    case FA_FLOAT: return val_float(x->u.f);
    case FA_STR: return (Val){.kind = V_STR, .s = x->u.s};
    case FA_INTS:
    case FA_AXES: return val_ints(r, x->u.ints.v, x->u.ints.n);
    }
    return (Val){0};
}

static Status check_axes(Run *r, const FnAttr *a, Attr *x) {
    int rank = r->call->nin && is_value(r->call->in[0])
                   ? value_type(r->b->g, r->call->in[0])->rank
                   : 0;
    const int64_t *v = a->kind == FA_AXIS ? &x->u.i : x->u.ints.v;
    int n = a->kind == FA_AXIS ? 1 : x->u.ints.n;
    int64_t *axes = NEW_ARRAY(r->a, int64_t, n + 1);
    for (int i = 0; i < n; i++) {
        axes[i] = axis_norm(v[i], rank);
        if (axes[i] >= 0) continue;
        return run_fail(r, NULL, "axis %" PRId64 " is outside rank %d", v[i],
                        rank);
    }
    if (a->kind == FA_AXIS)
        x->u.i = axes[0];
    else
        x->u.ints.v = axes;
    return OK;
}

/* Given, or else the default; *out absent: neither. */
static Status find_attr(Run *r, const FnAttr *a, Attr *x, bool *found) {
    Node holder = {.attrs = r->call->attrs, .nattr = r->call->nattr};
    const Attr *given = attr_find(&holder, a->key);
    Val v;
    *found = given || a->dflt;
    if (given) {
        *x = *given;
    } else if (a->dflt) {
        TRY(run_eval(r, a->dflt, &v));
        TRY(take_attr(r, a->dflt, a->key, &v, x));
    } else if (!a->optional) {
        return run_fail(r, NULL, "needs attribute '%s'", a->name);
    }
    if (*found && (a->kind == FA_AXIS || a->kind == FA_AXES))
        TRY(check_axes(r, a, x));
    return OK;
}

void run_open(Run *r, const FnCall *call, Builder *b, char *msg) {
    *r = (Run){.call = call,
               .fn = call->fn,
               .b = b,
               .msg = msg,
               .a = arena_new(),
               .wide = DT_F32,
               .first = (uint32_t)b->g->nodes.len,
               .start = b->g->order.len,
               .depth = r->depth,
               .work = r->work,
               .model = r->model,
               .scope = r->scope};
    if (!r->work) r->work = &r->own_work;
    for (int i = 0; i < call->nin; i++)
        if (is_value(call->in[i]) && value_dtype(b->g, call->in[i]) == DT_F64)
            r->wide = DT_F64;
    for (int i = 0; i < r->fn->operands.len; i++)
        run_bind(r, r->fn->operands.data[i].name,
                 r->fn->all_in
                     ? val_list(r, call->in, call->nin)
                     : val_tensor(i < call->nin ? call->in[i] : NO_VALUE));
}

static Status start_run(Run *r, const FnCall *call, Builder *b, char *msg) {
    run_open(r, call, b, msg);
    for (int i = 0; i < r->fn->attrs.len; i++) {
        const FnAttr *a = &r->fn->attrs.data[i];
        Attr x = {0};
        bool found;
        TRY(find_attr(r, a, &x, &found));
        vec_push(r->a, &r->env,
                 (Binding){a->name, found ? attr_val(r, a, &x) : (Val){0}});
    }
    for (int i = 0; i < call->nin && !r->fn->rule; i++) {
        if (!is_value(call->in[i])) continue;
        FnOperandKind kind = r->fn->operands.data[i].kind;
        const Type *t = value_type(b->g, call->in[i]);
        bool is_float = dtype_is_float(t->dtype);
        if (kind == FO_ANY || (is_float && kind == FO_FLOAT) ||
            (dtype_is_int(t->dtype) && kind == FO_INT))
            continue;
        return run_fail(r, NULL, "operand %d is %s, wants %s", i, TXT(t),
                        kind == FO_FLOAT ? "floating point" : "integers");
    }
    return OK;
}

static ValueId round_to(Run *r, ValueId v, DType d) {
    if (d == NUM_DTYPES || value_dtype(r->b->g, v) == d) return v;
    if (node_store(r->b->g, r->first, r->start, v, d)) return v;
    return b_cast(r->b, v, d);
}

/* A tensor, or a number that stands for one. */
static Status take_value(Run *r, const Val *v, Str name, DType d,
                         ValueId *out) {
    *out = NO_VALUE;
    if (!v || v->kind == V_NONE) return OK;
    if (val_is_number(v)) {
        *out =
            graph_scalar(r->b->g, d == NUM_DTYPES ? r->wide : d, val_number(v));
        return OK;
    }
    if (v->kind != V_TENSOR)
        return run_fail(r, NULL, "'%.60s' is %s, not a tensor", name,
                        kind_text(v));
    *out = round_to(r, v->t, d);
    return OK;
}

Status run_value(Run *r, const Expr *e, ValueId *out) {
    Val v;
    TRY(run_eval(r, e, &v));
    if (val_is_number(&v)) {
        *out = graph_scalar(r->b->g, r->wide, val_number(&v));
        return OK;
    }
    if (v.kind != V_TENSOR) return run_wants(r, e, "a tensor", &v);
    *out = v.t;
    return OK;
}

static Status take_results(Run *r, ValueId *out) {
    const FnCall *c = r->call;
    for (int i = 0; i < c->nout; i++) {
        Str name = r->fn->results.data[i].name;
        TRY(take_value(r, run_lookup(r, name), name,
                       c->want ? c->want[i] : NUM_DTYPES, &out[i]));
        if (!is_value(out[i]))
            return run_fail(r, NULL, "gives no result '%.60s' here", name);
    }
    return OK;
}

Status fn_run(Builder *b, const FnCall *call, const FnPart *part, ValueId *out,
              char *msg) {
    Run r = {0};
    Status s = start_run(&r, call, b, msg);
    if (s == OK) s = run_block(&r, &part->block);
    if (s == OK) s = take_results(&r, out);
    if (s == OK) graph_drop_unneeded(b->g, r.first, r.start, out, call->nout);
    arena_free(r.a);
    return s;
}

Status fn_run_samples(Builder *b, const FnCall *call, FnSamples *out,
                      char *msg) {
    static const char *const names[] = {"num", "den", "correct", "count"};
    ValueId *to[] = {&out->num, &out->den, &out->correct, &out->count};
    Run r = {0};
    Status s = start_run(&r, call, b, msg);
    if (s == OK) s = run_block(&r, &call->fn->samples.block);
    for (int i = 0; i < 4 && s == OK; i++) {
        Str name = intern(names[i]);
        s = take_value(&r, run_lookup(&r, name), name, DT_F32, to[i]);
    }
    arena_free(r.a);
    return s;
}

static Status take_gradient(Run *r, int i, ValueId *out) {
    bool rule = r->fn->rule;
    Str name = r->fn->grad.out.data[r->fn->all_in ? 0 : i];
    const Val *v = run_lookup(r, name);
    DType d = r->call->want[i];
    if (r->fn->all_in) v = &v->list[i];
    TRY(take_value(r, v, name, rule ? NUM_DTYPES : d, out));
    if (rule && is_value(*out) && !v->typed && d != NUM_DTYPES &&
        value_dtype(r->b->g, *out) != d)
        node_store(r->b->g, r->first, r->start, *out, d);
    return OK;
}

/* Names of the body stay bound: what the forward pass computes too is one
   value once equal nodes are joined. */
static Status grad_of(Run *r, const ValueId *result, const ValueId *gout,
                      ValueId *gin) {
    const FnCall *c = r->call;
    const FnPart *part = &r->fn->grad;
    bool all = r->fn->all_out;
    TRY(run_block(r, &r->fn->body.block));
    for (int i = 0; i < (all ? 1 : c->nout); i++)
        run_bind(r, r->fn->results.data[i].name,
                 all ? val_list(r, result, c->nout) : val_tensor(result[i]));
    for (int i = 0; i < part->in.len; i++)
        run_bind(r, part->in.data[i],
                 all ? val_list(r, gout, c->nout)
                     : val_tensor(i < c->nout ? gout[i] : NO_VALUE));
    TRY(run_block(r, &part->block));
    for (int i = 0; i < c->nin; i++) {
        gin[i] = NO_VALUE;
        if (r->fn->all_in || i < part->out.len)
            TRY(take_gradient(r, i, &gin[i]));
    }
    graph_drop_unneeded(r->b->g, r->first, r->start, gin, c->nin);
    return OK;
}

Status fn_run_grad(Builder *b, const FnCall *call, const ValueId *result,
                   const ValueId *gout, ValueId *gin, char *msg) {
    Run r = {0};
    Status s = start_run(&r, call, b, msg);
    if (s == OK) s = grad_of(&r, result, gout, gin);
    arena_free(r.a);
    return s;
}

/* ---- attributes ---------------------------------------------------------- */

Status fn_default(const Fn *fn, Graph *g, const ValueId *in, int nin,
                  const FnAttr *attr, Attr *out, char *msg) {
    Run r = {0};
    Builder b = {.g = g};
    FnCall call = {.fn = fn, .in = in, .nin = nin};
    bool found;
    run_open(&r, &call, &b, msg);
    Status s = find_attr(&r, attr, out, &found);
    if (attr_get(attr->key)->kind == ATTR_INTS && s == OK && out->u.ints.n)
        out->u.ints.v = arena_dup(g->arena, out->u.ints.v,
                                  (size_t)out->u.ints.n * sizeof(int64_t));
    arena_free(r.a);
    return s;
}
