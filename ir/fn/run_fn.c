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

#include "ir/fn/fn.h"
#include "ir/graph/ir_impl.h"

typedef enum ValKind {
    V_NONE, /* absent */
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STR,
    V_DTYPE,
    V_LIST,
    V_TENSOR
} ValKind;

typedef struct Val Val;
struct Val {
    ValKind kind;
    int64_t i; /* BOOL, INT; DTYPE */
    double f;
    Str s;
    ValueId t;
    const Val *list;
    int n;
    bool typed; /* TENSOR: the text says of which dtype */
};

typedef struct Binding {
    Str name;
    Val val;
} Binding;

enum { MAX_CALLS = 64, MAX_LIST = 4096, MAX_ARGS = 64 };

typedef struct Run {
    const FnCall *call;
    const Fn *fn;
    Builder *b;
    Arena *a;
    VEC(Binding) env;
    DType wide;
    uint32_t first; /* node of this run */
    int start;      /* of its nodes in the order */
    int depth;      /* of calls */
    char *msg;
} Run;

/* ---- messages ------------------------------------------------------------ */

static Status run_fail(Run *r, const Expr *at, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
static Status run_fail(Run *r, const Expr *at, const char *fmt, ...) {
    char text[MSG_TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(r->msg, MSG_TEXT, "%.180s (%.40s:%d:%d)", text,
             r->fn->file ? r->fn->file : "def", at->line, at->col);
    return ERR_USER;
}

static const char *kind_text(const Val *v) {
    static const char *const text[] = {"nothing",  "a boolean", "an integer",
                                       "a number", "text",      "a dtype",
                                       "a list",   "a tensor"};
    return text[v->kind];
}

static Status wants(Run *r, const Expr *at, const char *what, const Val *v) {
    return run_fail(r, at, "%s expected, found %s", what, kind_text(v));
}

/* ---- values -------------------------------------------------------------- */

static Val val_int(int64_t i) { return (Val){.kind = V_INT, .i = i}; }
static Val val_bool(bool b) { return (Val){.kind = V_BOOL, .i = b}; }
static Val val_float(double f) { return (Val){.kind = V_FLOAT, .f = f}; }
static Val val_dtype(DType d) { return (Val){.kind = V_DTYPE, .i = d}; }
static Val val_tensor(ValueId t) {
    return (Val){.kind = is_value(t) ? V_TENSOR : V_NONE, .t = t};
}

static bool is_number(const Val *v) {
    return v->kind == V_INT || v->kind == V_FLOAT || v->kind == V_BOOL;
}

static double number(const Val *v) {
    return v->kind == V_FLOAT ? v->f : (double)v->i;
}

static const Type *tensor_type(const Run *r, const Val *v) {
    return value_type(r->b->g, v->t);
}

static Status want_int(Run *r, const Expr *at, const Val *v, int64_t *out) {
    if (v->kind != V_INT && v->kind != V_BOOL)
        return wants(r, at, "an integer", v);
    *out = v->i;
    return OK;
}

static Status want_bool(Run *r, const Expr *at, const Val *v, bool *out) {
    if (v->kind != V_BOOL) return wants(r, at, "true or false", v);
    *out = v->i != 0;
    return OK;
}

static Status want_tensor(Run *r, const Expr *at, const Val *v) {
    return v->kind == V_TENSOR ? OK : wants(r, at, "a tensor", v);
}

/* A list of integers; one integer is a list of one. */
static Status want_ints(Run *r, const Expr *at, const Val *v, int64_t **out,
                        int *n) {
    bool one = v->kind == V_INT;
    if (!one && v->kind != V_LIST) return wants(r, at, "a list", v);
    *n = one ? 1 : v->n;
    *out = NEW_ARRAY(r->a, int64_t, *n + 1);
    for (int i = 0; i < *n; i++)
        TRY(want_int(r, at, one ? v : &v->list[i], &(*out)[i]));
    return OK;
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

static bool val_same(const Val *a, const Val *b) {
    if (is_number(a) && is_number(b)) return number(a) == number(b);
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

/* ---- names --------------------------------------------------------------- */

static Val *lookup(Run *r, Str name) {
    for (int i = r->env.len - 1; i >= 0; i--)
        if (r->env.data[i].name == name) return &r->env.data[i].val;
    return NULL;
}

static void bind(Run *r, Str name, Val v) {
    Val *old = lookup(r, name);
    if (old)
        *old = v;
    else
        vec_push(r->a, &r->env, (Binding){name, v});
}

static Status eval(Run *r, const Expr *e, Val *out);

static Status eval_name(Run *r, const Expr *e, Val *out) {
    const Val *v = lookup(r, e->name);
    DType d;
    if (v) {
        *out = *v;
        return OK;
    }
    if (!dtype_from_text(e->name, strlen(e->name), &d))
        return run_fail(r, e, "'%.60s' has no value here", e->name);
    *out = val_dtype(d);
    return OK;
}

/* ---- nodes --------------------------------------------------------------- */

/* What a call in a body asks for. */
typedef struct Made {
    OpCode op;
    const Fn *fn;
    const OpInfo *info;
    ValueId *in;
    int nin;
    Attr attrs[MAX_OP_ATTRS];
    int nattr;
    DType dtype; /* asked for; NUM_DTYPES: by rule */
    Type gen;    /* of a generator; rank -1: none  */
} Made;

/* The dtype of a result whose rule gives d. */
static DType stored(const Run *r, const Made *m, DType d) {
    OpKind kind = m->info->kind;
    if (m->dtype != NUM_DTYPES) return m->dtype;
    if (!dtype_is_float(d) || m->info->amp == AMP_ANY || kind == KIND_MOVE ||
        kind == KIND_VIEW || kind == KIND_GEN)
        return d;
    return r->wide;
}

static Status run_part(Run *r, const FnPart *part);
static Status start_run(Run *r, const FnCall *call, Builder *b, char *msg);
static Status take_results(Run *r, ValueId *out);

/* The body of a function called inside, in place. */
static Status expand_call(Run *r, const Expr *at, const Made *m, int nout,
                          const DType *want, ValueId *out) {
    char msg[MSG_TEXT];
    Run inner = {.depth = r->depth + 1};
    FnCall call = {.fn = m->fn,
                   .in = m->in,
                   .nin = m->nin,
                   .attrs = m->attrs,
                   .nattr = m->nattr,
                   .nout = nout,
                   .want = want,
                   .flat = true};
    if (inner.depth > MAX_CALLS) return run_fail(r, at, "calls nest too deep");
    Status s = start_run(&inner, &call, r->b, msg);
    if (s == OK) s = run_part(&inner, &m->fn->body);
    if (s == OK) s = take_results(&inner, out);
    arena_free(inner.a);
    return s == OK ? OK : run_fail(r, at, "%s: %s", m->info->text, msg);
}

static Status make(Run *r, const Expr *at, const Made *m, int nout, Val *out) {
    enum { FEW = 16 };
    char msg[MSG_TEXT];
    Type given[FEW];
    TypeId types[FEW];
    ValueId made[FEW];
    DType want[FEW];
    NodeId id;
    if (nout > FEW) return run_fail(r, at, "more than %d results", FEW);
    for (int i = 0; i < nout; i++) {
        given[i] = type_by_rule();
        if (m->gen.rank >= 0) given[i] = m->gen;
        if (m->dtype != NUM_DTYPES) given[i].dtype = m->dtype;
    }
    Callee callee = {m->op, m->fn};
    int nattr = m->nattr;
    const Attr *attrs = m->attrs;
    Graph *g = r->b->g;
    if (canonical_attrs(g, callee, m->in, m->nin, &attrs, &nattr, given, msg) ||
        infer_types(g, callee, m->in, m->nin, attrs, nattr, nout, given, types,
                    msg))
        return run_fail(r, at, "%s: %s", m->info->text, msg);
    for (int i = 0; i < nout; i++)
        given[i].dtype = want[i] = stored(r, m, type_get(types[i])->dtype);
    if (m->fn && r->call->flat) {
        TRY(expand_call(r, at, m, nout, want, made));
    } else {
        if (node_make(r->b, callee, m->in, m->nin, attrs, nattr, nout, given,
                      NULL, &id, msg))
            return run_fail(r, at, "%s: %s", m->info->text, msg);
        for (int i = 0; i < nout; i++) made[i] = node_get(r->b->g, id)->out[i];
    }
    if (nout == 1) {
        *out = val_tensor(made[0]);
        out->typed = m->dtype != NUM_DTYPES;
        return OK;
    }
    *out = val_list(r, made, nout);
    return OK;
}

/* A number as a scalar that meets a tensor of dtype d. */
static Status scalar_for(Run *r, const Expr *at, const Val *v, DType d,
                         ValueId *out) {
    Graph *g = r->b->g;
    if (dtype_is_float(d)) {
        *out = graph_scalar(g, r->wide, number(v));
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
    int skip = m->op == OP_WHERE && !m->fn;
    bool any = false;
    m->in = NEW_ARRAY(r->a, ValueId, n + 1);
    for (int i = skip; i < n; i++)
        if (v[i].kind == V_TENSOR && !any) {
            beside = tensor_type(r, &v[i])->dtype;
            any = true;
        }
    for (int i = 0; i < n; i++) {
        m->in[i] = v[i].t;
        bool real = m->fn && i < m->fn->operands.len &&
                    m->fn->operands.data[i].kind == FO_FLOAT;
        DType d = i < skip ? DT_BOOL : real ? DT_F32 : beside;
        if (is_number(&v[i]))
            TRY(scalar_for(r, at, &v[i], d, &m->in[i]));
        else if (v[i].kind != V_TENSOR && v[i].kind != V_NONE)
            return wants(r, at, "a tensor or a number", &v[i]);
    }
    m->nin = n;
    return OK;
}

static Status elementwise(Run *r, const Expr *at, OpCode op, const Val *v,
                          int n, Val *out) {
    Made m = {.op = op,
              .info = &op_info[op],
              .dtype = NUM_DTYPES,
              .gen = type_by_rule()};
    TRY(take_operands(r, at, v, n, &m));
    return make(r, at, &m, 1, out);
}

/* ---- operators ----------------------------------------------------------- */

static Status known_arithmetic(Run *r, const Expr *e, const Val *a,
                               const Val *b, Val *out) {
    bool whole = a->kind != V_FLOAT && b->kind != V_FLOAT;
    int64_t i = 0, x = a->i, y = b->i;
    bool ok = true;
    if (e->op == B_DIV || !whole) {
        double p = number(a), q = number(b);
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

static Status join_lists(Run *r, const Val *a, const Val *b, Val *out) {
    Val *list = NEW_ARRAY(r->a, Val, a->n + b->n + 1);
    for (int i = 0; i < a->n; i++) list[i] = a->list[i];
    for (int i = 0; i < b->n; i++) list[a->n + i] = b->list[i];
    *out = (Val){.kind = V_LIST, .list = list, .n = a->n + b->n};
    return OK;
}

static Status range(Run *r, const Expr *e, const Val *a, const Val *b,
                    Val *out) {
    int64_t lo, hi;
    TRY(want_int(r, e, a, &lo));
    TRY(want_int(r, e, b, &hi));
    int64_t n = hi > lo ? hi - lo : 0;
    if (n > MAX_LIST || n < 0) return run_fail(r, e, "the list is too long");
    int64_t *v = NEW_ARRAY(r->a, int64_t, n + 1);
    for (int64_t i = 0; i < n; i++) v[i] = lo + i;
    *out = val_ints(r, v, (int)n);
    return OK;
}

static Status known_binary(Run *r, const Expr *e, const Val *a, const Val *b,
                           Val *out) {
    bool found = false;
    switch (e->op) {
    case B_EQ: *out = val_bool(val_same(a, b)); return OK;
    case B_NE: *out = val_bool(!val_same(a, b)); return OK;
    case B_RANGE: return range(r, e, a, b, out);
    case B_IN:
        if (b->kind != V_LIST) return wants(r, e, "a list", b);
        for (int i = 0; i < b->n; i++) found |= val_same(a, &b->list[i]);
        *out = val_bool(found);
        return OK;
    default: break;
    }
    if (e->op == B_ADD && a->kind == V_LIST && b->kind == V_LIST)
        return join_lists(r, a, b, out);
    if (!is_number(a)) return wants(r, e, "a number", a);
    if (!is_number(b)) return wants(r, e, "a number", b);
    double x = number(a), y = number(b);
    switch (e->op) {
    case B_LT: *out = val_bool(x < y); return OK;
    case B_LE: *out = val_bool(x <= y); return OK;
    case B_GT: *out = val_bool(x > y); return OK;
    case B_GE: *out = val_bool(x >= y); return OK;
    default: return known_arithmetic(r, e, a, b, out);
    }
}

static Status tensor_binary(Run *r, const Expr *e, const Val *v, Val *out) {
    static const OpCode ops[] = {
        [B_OR] = OP_OR,      [B_AND] = OP_AND,          [B_EQ] = OP_EQUAL,
        [B_NE] = OP_EQUAL,   [B_LT] = OP_LESS,          [B_LE] = OP_LESS_EQUAL,
        [B_GT] = OP_GREATER, [B_GE] = OP_GREATER_EQUAL, [B_IN] = NUM_OPS,
        [B_RANGE] = NUM_OPS, [B_ADD] = OP_ADD,          [B_SUB] = OP_SUB,
        [B_MUL] = OP_MUL,    [B_DIV] = OP_DIV,          [B_FLOORDIV] = NUM_OPS,
        [B_MOD] = OP_MOD};
    if (ops[e->op] == NUM_OPS) return wants(r, e, "a known value", v);
    TRY(elementwise(r, e, ops[e->op], v, 2, out));
    if (e->op != B_NE) return OK;
    Val equal = *out;
    return elementwise(r, e, OP_NOT, &equal, 1, out);
}

static Status eval_binary(Run *r, const Expr *e, Val *out) {
    Val v[2];
    TRY(eval(r, e->a, &v[0]));
    bool logic = e->op == B_AND || e->op == B_OR;
    if (logic && v[0].kind != V_TENSOR) { /* the right side only if needed */
        bool left;
        TRY(want_bool(r, e->a, &v[0], &left));
        if (left == (e->op == B_OR)) {
            *out = val_bool(left);
            return OK;
        }
        TRY(eval(r, e->b, out));
        return want_bool(r, e->b, out, &left);
    }
    TRY(eval(r, e->b, &v[1]));
    if (v[0].kind == V_TENSOR || v[1].kind == V_TENSOR)
        return tensor_binary(r, e, v, out);
    return known_binary(r, e, &v[0], &v[1], out);
}

static Status eval_negation(Run *r, const Expr *e, Val *out) {
    Val v;
    bool b;
    TRY(eval(r, e->a, &v));
    if (v.kind == V_TENSOR)
        return elementwise(r, e, e->kind == E_NEG ? OP_NEG : OP_NOT, &v, 1,
                           out);
    if (e->kind == E_NOT) {
        TRY(want_bool(r, e, &v, &b));
        *out = val_bool(!b);
        return OK;
    }
    if (!is_number(&v)) return wants(r, e, "a number", &v);
    *out = v.kind == V_FLOAT ? val_float(-v.f) : val_int(-v.i);
    return OK;
}

static Status eval_index(Run *r, const Expr *e, Val *out) {
    Val list, at;
    int64_t i;
    TRY(eval(r, e->a, &list));
    TRY(eval(r, e->b, &at));
    if (list.kind != V_LIST) return wants(r, e, "a list", &list);
    TRY(want_int(r, e->b, &at, &i));
    if (i < 0) i += list.n;
    if (i < 0 || i >= list.n)
        return run_fail(r, e->b, "element %" PRId64 " of %d", at.i, list.n);
    *out = list.list[i];
    return OK;
}

static Status eval_list(Run *r, const Expr *e, Val *out) {
    Val *list = NEW_ARRAY(r->a, Val, e->args.len + 1);
    for (int i = 0; i < e->args.len; i++)
        TRY(eval(r, e->args.data[i], &list[i]));
    *out = (Val){.kind = V_LIST, .list = list, .n = e->args.len};
    return OK;
}

static Status eval_each(Run *r, const Expr *e, Val *out) {
    Val all, keep = val_bool(true);
    int n = 0, outside = r->env.len;
    TRY(eval(r, e->b, &all));
    if (all.kind != V_LIST) return wants(r, e->b, "a list", &all);
    Val *list = NEW_ARRAY(r->a, Val, all.n + 1);
    vec_push(r->a, &r->env, (Binding){e->name, all});
    for (int i = 0; i < all.n; i++) {
        bool kept;
        r->env.data[outside].val = all.list[i];
        if (e->c) TRY(eval(r, e->c, &keep));
        TRY(want_bool(r, e, &keep, &kept));
        if (kept) TRY(eval(r, e->a, &list[n++]));
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
    case ATTR_INT: return want_int(r, at, v, &out->u.i);
    case ATTR_FLOAT:
        if (!is_number(v)) return wants(r, at, "a number", v);
        out->u.f = number(v);
        return OK;
    case ATTR_STR:
        if (v->kind != V_STR) return wants(r, at, "text", v);
        out->u.s = v->s;
        return OK;
    case ATTR_INTS:
        TRY(want_ints(r, at, v, &ints, &out->u.ints.n));
        out->u.ints.v = ints;
        return OK;
    }
    return OK;
}

static Status want_dtype(Run *r, const Expr *at, const Val *v, DType *out) {
    if (v->kind != V_DTYPE) return wants(r, at, "a dtype", v);
    *out = (DType)v->i;
    return OK;
}

/* dtype= of any op; shape= of a generator, which has no such attribute. */
static Status take_keys(Run *r, const Expr *e, Made *m) {
    for (int i = 0; i < e->keys.len; i++) {
        const KeyArg *k = &e->keys.data[i];
        Val v;
        int a = 0;
        TRY(eval(r, k->value, &v));
        if (v.kind == V_NONE) continue;
        while (a < m->info->nattr &&
               strcmp(attr_get(m->info->attrs[a])->text, k->name) != 0)
            a++;
        if (a < m->info->nattr) {
            TRY(take_attr(r, k->value, m->info->attrs[a], &v,
                          &m->attrs[m->nattr++]));
        } else if (strcmp(k->name, "dtype") == 0) {
            TRY(want_dtype(r, k->value, &v, &m->dtype));
        } else if (strcmp(k->name, "shape") == 0 && m->info->kind == KIND_GEN) {
            int64_t *shape;
            int n;
            TRY(want_ints(r, k->value, &v, &shape, &n));
            if (n > MAX_RANK) return run_fail(r, e, "rank %d", n);
            m->gen.rank = n;
            memcpy(m->gen.dim, shape, (size_t)n * sizeof *shape);
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
        if (a && !given) m->attrs[m->nattr++] = *a;
    }
}

/* Over no axes a reduction gives its operand (sumsq: its square); what has the
   wanted shape is not reshaped. */
static Status shortcut(Run *r, const Expr *e, const Made *m, bool *done,
                       Val *out) {
    const Type *x = m->nin ? value_type(r->b->g, m->in[0]) : NULL;
    const Attr *a = NULL;
    *done = false;
    for (int i = 0; i < m->nattr; i++)
        if (m->attrs[i].key == AK_shape || m->attrs[i].key == AK_axes)
            a = &m->attrs[i];
    if (m->fn || !x || !a) return OK;
    int n = a->u.ints.n;
    size_t bytes = (size_t)n * sizeof(int64_t);
    bool reduce = m->info->kind == KIND_REDUCE && n == 0;
    bool reshape = (m->op == OP_RESHAPE || m->op == OP_EXPAND) &&
                   n == x->rank &&
                   (n == 0 || memcmp(a->u.ints.v, x->dim, bytes) == 0);
    *done = reduce || reshape;
    *out = val_tensor(m->in[0]);
    if (!reduce || m->op != OP_REDUCE_SUMSQ) return OK;
    Val square[] = {*out, *out};
    return elementwise(r, e, OP_MUL, square, 2, out);
}

typedef double Known(double);
static double known_rsqrt(double x) { return 1 / sqrt(x); }

/* sqrt(2.0): an element-wise op of known numbers. */
static bool known_op(OpCode op, const Val *v, int n, Val *out) {
    static const struct {
        OpCode op;
        Known *fn;
    } table[] = {{OP_SQRT, sqrt}, {OP_EXP, exp},          {OP_LOG, log},
                 {OP_ABS, fabs},  {OP_FLOOR, floor},      {OP_CEIL, ceil},
                 {OP_TANH, tanh}, {OP_RSQRT, known_rsqrt}};
    if (n == 2 && (op == OP_MIN || op == OP_MAX)) {
        bool first = (number(&v[0]) < number(&v[1])) == (op == OP_MIN);
        *out = v[first ? 0 : 1];
        return true;
    }
    for (size_t i = 0; n == 1 && i < sizeof table / sizeof *table; i++)
        if (table[i].op == op) {
            *out = val_float(table[i].fn(number(&v[0])));
            return true;
        }
    return false;
}

static Status make_call(Run *r, const Expr *e, int nout, const Val *v, int n,
                        Val *out) {
    bool known = n > 0, same;
    Made m = {.op = e->callee == CALLEE_OP ? e->code : OP_CALL,
              .fn = e->fn,
              .info = e->callee == CALLEE_OP ? &op_info[e->code] : &e->fn->info,
              .dtype = NUM_DTYPES,
              .gen = type_by_rule()};
    for (int i = 0; i < n; i++) known &= is_number(&v[i]);
    if (known && !m.fn && known_op(m.op, v, n, out)) return OK;
    TRY(take_operands(r, e, v, n, &m));
    TRY(take_keys(r, e, &m));
    if (r->fn->rule) inherit_attrs(r, e, &m);
    TRY(shortcut(r, e, &m, &same, out));
    if (same) return OK;
    return make(r, e, &m, nout, out);
}

/* ---- built-ins ----------------------------------------------------------- */

typedef Status BuiltinFn(Run *r, const Expr *e, const Val *v, Val *out);

static Status f_rank(Run *r, const Expr *e, const Val *v, Val *out) {
    TRY(want_tensor(r, e, v));
    *out = val_int(tensor_type(r, v)->rank);
    return OK;
}

static Status f_shape(Run *r, const Expr *e, const Val *v, Val *out) {
    TRY(want_tensor(r, e, v));
    const Type *t = tensor_type(r, v);
    *out = val_ints(r, t->dim, t->rank);
    return OK;
}

static Status f_dim(Run *r, const Expr *e, const Val *v, Val *out) {
    int64_t i;
    TRY(want_tensor(r, e, v));
    TRY(want_int(r, e, &v[1], &i));
    const Type *t = tensor_type(r, v);
    int axis = axis_norm(i, t->rank);
    if (axis < 0)
        return run_fail(r, e, "axis %" PRId64 " is outside rank %d", i,
                        t->rank);
    *out = val_int(t->dim[axis]);
    return OK;
}

/* elements of a tensor or of a shape */
static Status f_count(Run *r, const Expr *e, const Val *v, Val *out) {
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

static Status f_len(Run *r, const Expr *e, const Val *v, Val *out) {
    if (v->kind != V_LIST) return wants(r, e, "a list", v);
    *out = val_int(v->n);
    return OK;
}

static Status f_dtype(Run *r, const Expr *e, const Val *v, Val *out) {
    TRY(want_tensor(r, e, v));
    *out = val_dtype(tensor_type(r, v)->dtype);
    return OK;
}

static Status f_present(Run *r, const Expr *e, const Val *v, Val *out) {
    (void)r;
    (void)e;
    *out = val_bool(v->kind != V_NONE);
    return OK;
}

/* whether integers of a dtype can equal i at all */
static Status f_holds(Run *r, const Expr *e, const Val *v, Val *out) {
    DType d;
    int64_t i;
    TRY(want_dtype(r, e, &v[0], &d));
    TRY(want_int(r, e, &v[1], &i));
    bool is_unsigned = dtype_info[d].kind != DK_I;
    int bits = 8 * dtype_info[d].bytes - !is_unsigned;
    int64_t top = i < 0 ? -(i + 1) : i;
    *out = val_bool((i >= 0 || !is_unsigned) && (bits >= 63 || !(top >> bits)));
    return OK;
}

/* whether x stretches to exactly this shape */
static Status f_broadcasts(Run *r, const Expr *e, const Val *v, Val *out) {
    int64_t *dim;
    int n;
    TRY(want_tensor(r, e, v));
    TRY(want_ints(r, e, &v[1], &dim, &n));
    Type to = {.rank = n}, both = {0};
    if (n > MAX_RANK) return run_fail(r, e, "rank %d", n);
    memcpy(to.dim, dim, (size_t)n * sizeof *dim);
    *out = val_bool(shape_broadcast(tensor_type(r, v), &to, &both) &&
                    shape_equal(&both, &to));
    return OK;
}

static ValueId round_to(Run *r, ValueId v, DType d);

/* what has a name keeps its dtype */
static Status f_cast(Run *r, const Expr *e, const Val *v, Val *out) {
    DType d;
    bool named = false;
    TRY(want_tensor(r, e, v));
    TRY(want_dtype(r, e, &v[1], &d));
    for (int i = 0; i < r->env.len; i++)
        named |= same_value(r->env.data[i].val.t, v->t);
    *out = val_tensor(named ? b_cast(r->b, v->t, d) : round_to(r, v->t, d));
    out->typed = true;
    return OK;
}

/* x + y where either may be absent: sums of gradients */
static Status f_plus(Run *r, const Expr *e, const Val *v, Val *out) {
    *out = v[v[0].kind == V_NONE];
    if (v[0].kind == V_NONE || v[1].kind == V_NONE) return OK;
    return elementwise(r, e, OP_ADD, v, 2, out);
}

/* g summed to the shape of x: undoes broadcasting */
static Status f_sum_to(Run *r, const Expr *e, const Val *v, Val *out) {
    TRY(want_tensor(r, e, &v[0]));
    TRY(want_tensor(r, e, &v[1]));
    *out = val_tensor(b_sum_to(r->b, v[0].t, v[1].t, r->wide));
    out->typed = v[0].typed && same_value(out->t, v[0].t);
    return OK;
}

/* the number that all elements of a constant are */
static Status f_constant(Run *r, const Expr *e, const Val *v, Val *out) {
    double number;
    TRY(want_tensor(r, e, v));
    *out = (Val){.kind = V_NONE};
    if (value_is_splat(r->b->g, v->t, &number)) *out = val_float(number);
    return OK;
}

static Status f_grad_dtype(Run *r, const Expr *e, const Val *v, Val *out) {
    TRY(want_tensor(r, e, v));
    *out = val_dtype(grad_dtype(r->b->g, v->t));
    return OK;
}

static const struct {
    const char *name;
    int nargs;
    BuiltinFn *fn;
} builtins[] = {
    {"rank", 1, f_rank},
    {"shape", 1, f_shape},
    {"dim", 2, f_dim},
    {"count", 1, f_count},
    {"len", 1, f_len},
    {"dtype", 1, f_dtype},
    {"present", 1, f_present},
    {"holds", 2, f_holds},
    {"broadcasts", 2, f_broadcasts},
    {"cast", 2, f_cast},
    {"plus", 2, f_plus},
    {"sum_to", 2, f_sum_to},
    {"constant", 1, f_constant},
    {"grad_dtype", 1, f_grad_dtype},
};

int fn_builtin(Str name) {
    for (size_t i = 0; i < sizeof builtins / sizeof *builtins; i++)
        if (strcmp(builtins[i].name, name) == 0) return (int)i;
    return -1;
}

static Status eval_call(Run *r, const Expr *e, int nout, Val *out) {
    Val v[MAX_ARGS] = {{0}};
    if (e->args.len > MAX_ARGS)
        return run_fail(r, e, "more than %d operands", MAX_ARGS);
    for (int i = 0; i < e->args.len; i++) TRY(eval(r, e->args.data[i], &v[i]));
    if (e->callee == CALLEE_OP && e->args.len == 1 && v->kind == V_LIST &&
        op_info[e->code].in_max < 0)
        return make_call(r, e, nout, v->list, v->n, out);
    if (e->callee != CALLEE_BUILTIN)
        return make_call(r, e, nout, v, e->args.len, out);
    if (e->args.len != builtins[e->builtin].nargs || e->keys.len)
        return run_fail(r, e, "%s takes %d", e->name,
                        builtins[e->builtin].nargs);
    return builtins[e->builtin].fn(r, e, v, out);
}

static Status eval(Run *r, const Expr *e, Val *out) {
    Val c;
    bool yes;
    switch (e->kind) {
    case E_INT: *out = val_int(e->i); return OK;
    case E_FLOAT: *out = val_float(e->f); return OK;
    case E_STR: *out = (Val){.kind = V_STR, .s = e->name}; return OK;
    case E_BOOL: *out = val_bool(e->i); return OK;
    case E_NONE: *out = (Val){.kind = V_NONE}; return OK;
    case E_NAME: return eval_name(r, e, out);
    case E_LIST: return eval_list(r, e, out);
    case E_EACH: return eval_each(r, e, out);
    case E_NEG:
    case E_NOT: return eval_negation(r, e, out);
    case E_BINARY: return eval_binary(r, e, out);
    case E_INDEX: return eval_index(r, e, out);
    case E_CALL: return eval_call(r, e, 1, out);
    case E_COND:
        TRY(eval(r, e->c, &c));
        TRY(want_bool(r, e->c, &c, &yes));
        return eval(r, yes ? e->a : e->b, out);
    }
    return OK;
}

/* ---- statements ---------------------------------------------------------- */

static Status run_block(Run *r, const Block *b);

static void put_part(Run *r, StrBuf *sb, const Val *v) {
    switch (v->kind) {
    case V_NONE: sb_puts(sb, "absent"); break;
    case V_BOOL: sb_puts(sb, v->i ? "true" : "false"); break;
    case V_INT: sb_printf(sb, "%" PRId64, v->i); break;
    case V_FLOAT: sb_printf(sb, "%g", v->f); break;
    case V_STR: sb_puts(sb, v->s); break;
    case V_DTYPE: sb_puts(sb, dtype_info[v->i].text); break;
    case V_TENSOR: sb_puts(sb, TXT(tensor_type(r, v))); break;
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
    TRY(eval(r, s->value, &c));
    TRY(want_bool(r, s->value, &c, &ok));
    if (ok) return OK;
    StrBuf sb = {0};
    Status status = OK;
    for (int i = 0; i < s->parts.len && status == OK; i++) {
        Val v;
        status = eval(r, s->parts.data[i], &v);
        if (status == OK) put_part(r, &sb, &v);
    }
    if (status == OK) snprintf(r->msg, MSG_TEXT, "%s", sb.data ? sb.data : "");
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
    int n = s->names.len;
    Val v;
    if (n == 1 && is_unwanted(r, s->names.data[0])) return OK;
    if (s->value->kind == E_CALL)
        TRY(eval_call(r, s->value, n, &v));
    else
        TRY(eval(r, s->value, &v));
    if (n == 1) {
        bind(r, s->names.data[0], v);
        return OK;
    }
    if (v.kind != V_LIST || v.n != n)
        return run_fail(r, s->value, "%d values expected", n);
    for (int i = 0; i < n; i++) bind(r, s->names.data[i], v.list[i]);
    return OK;
}

static Status run_for(Run *r, const Stmt *s) {
    Val list;
    TRY(eval(r, s->value, &list));
    if (list.kind != V_LIST) return wants(r, s->value, "a list", &list);
    for (int i = 0; i < list.n; i++) {
        bind(r, s->names.data[0], list.list[i]);
        TRY(run_block(r, &s->body));
    }
    return OK;
}

static Status run_if(Run *r, const Stmt *s) {
    Val c;
    bool yes;
    TRY(eval(r, s->value, &c));
    TRY(want_bool(r, s->value, &c, &yes));
    return run_block(r, yes ? &s->body : &s->other);
}

static Status run_block(Run *r, const Block *b) {
    for (int i = 0; i < b->len; i++) {
        const Stmt *s = &b->data[i];
        switch (s->kind) {
        case S_ASSIGN: TRY(run_assign(r, s)); break;
        case S_IF: TRY(run_if(r, s)); break;
        case S_FOR: TRY(run_for(r, s)); break;
        case S_REQUIRE: TRY(run_require(r, s)); break;
        }
    }
    return OK;
}

static Status run_part(Run *r, const FnPart *part) {
    return run_block(r, &part->block);
}

/* ---- a run --------------------------------------------------------------- */

static Status check_operand(Run *r, int i, ValueId v) {
    const FnOperand *o = &r->fn->operands.data[i];
    const Type *t = value_type(r->b->g, v);
    bool ok =
        o->kind == FO_ANY || (o->kind == FO_FLOAT ? dtype_is_float(t->dtype)
                                                  : dtype_is_int(t->dtype));
    if (!ok)
        snprintf(r->msg, MSG_TEXT, "operand %d is %s, wants %s", i, TXT(t),
                 o->kind == FO_FLOAT ? "floating point" : "integers");
    return ok ? OK : ERR_USER;
}

static void bind_operands(Run *r) {
    const FnCall *c = r->call;
    for (int i = 0; i < c->nin; i++)
        if (is_value(c->in[i]) && value_dtype(r->b->g, c->in[i]) == DT_F64)
            r->wide = DT_F64;
    for (int i = 0; i < r->fn->operands.len; i++)
        bind(r, r->fn->operands.data[i].name,
             r->fn->all_in ? val_list(r, c->in, c->nin)
                           : val_tensor(i < c->nin ? c->in[i] : NO_VALUE));
}

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
        snprintf(r->msg, MSG_TEXT, "axis %" PRId64 " is outside rank %d", v[i],
                 rank);
        return ERR_USER;
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
        TRY(eval(r, a->dflt, &v));
        TRY(take_attr(r, a->dflt, a->key, &v, x));
    } else if (!a->optional) {
        snprintf(r->msg, MSG_TEXT, "needs attribute '%s'", a->name);
        return ERR_USER;
    }
    if (*found && (a->kind == FA_AXIS || a->kind == FA_AXES))
        TRY(check_axes(r, a, x));
    return OK;
}

static Status bind_attrs(Run *r) {
    for (int i = 0; i < r->fn->attrs.len; i++) {
        const FnAttr *a = &r->fn->attrs.data[i];
        Attr x = {0};
        bool found;
        TRY(find_attr(r, a, &x, &found));
        vec_push(r->a, &r->env,
                 (Binding){a->name, found ? attr_val(r, a, &x) : (Val){0}});
    }
    return OK;
}

static void open_run(Run *r, const FnCall *call, Builder *b, char *msg) {
    r->call = call;
    r->fn = call->fn;
    r->b = b;
    r->msg = msg;
    r->a = arena_new();
    r->wide = DT_F32;
    r->first = (uint32_t)b->g->nodes.len;
    r->start = b->g->order.len;
    bind_operands(r);
}

static Status start_run(Run *r, const FnCall *call, Builder *b, char *msg) {
    open_run(r, call, b, msg);
    TRY(bind_attrs(r));
    for (int i = 0; i < call->nin; i++)
        if (is_value(call->in[i]) && !r->fn->rule)
            TRY(check_operand(r, i, call->in[i]));
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
    if (is_number(v)) {
        *out = graph_scalar(r->b->g, d == NUM_DTYPES ? r->wide : d, number(v));
        return OK;
    }
    if (v->kind != V_TENSOR) {
        snprintf(r->msg, MSG_TEXT, "'%.60s' is %s, not a tensor", name,
                 kind_text(v));
        return ERR_USER;
    }
    *out = round_to(r, v->t, d);
    return OK;
}

static Status take_results(Run *r, ValueId *out) {
    const FnCall *c = r->call;
    for (int i = 0; i < c->nout; i++) {
        Str name = r->fn->results.data[i].name;
        TRY(take_value(r, lookup(r, name), name,
                       c->want ? c->want[i] : NUM_DTYPES, &out[i]));
        if (is_value(out[i])) continue;
        snprintf(r->msg, MSG_TEXT, "gives no result '%.60s' here", name);
        return ERR_USER;
    }
    return OK;
}

static Status run_results(Builder *b, const FnCall *call, const FnPart *part,
                          ValueId *out, char *msg) {
    Run r = {0};
    Status s = start_run(&r, call, b, msg);
    if (s == OK) s = run_part(&r, part);
    if (s == OK) s = take_results(&r, out);
    if (s == OK) graph_drop_unneeded(b->g, r.first, r.start, out, call->nout);
    arena_free(r.a);
    return s;
}

Status fn_run_body(Builder *b, const FnCall *call, ValueId *out, char *msg) {
    return run_results(b, call, &call->fn->body, out, msg);
}

Status fn_run_inference(Builder *b, const FnCall *call, ValueId *out,
                        char *msg) {
    return run_results(b, call, &call->fn->inference, out, msg);
}

static Status samples_of(Run *r, FnSamples *out) {
    static const char *const names[] = {"num", "den", "correct", "count"};
    ValueId *to[] = {&out->num, &out->den, &out->correct, &out->count};
    TRY(run_part(r, &r->fn->samples));
    for (int i = 0; i < 4; i++) {
        Str name = intern(names[i]);
        TRY(take_value(r, lookup(r, name), name, DT_F32, to[i]));
    }
    return OK;
}

Status fn_run_samples(Builder *b, const FnCall *call, FnSamples *out,
                      char *msg) {
    Run r = {0};
    Status s = start_run(&r, call, b, msg);
    if (s == OK) s = samples_of(&r, out);
    arena_free(r.a);
    return s;
}

static Status take_gradient(Run *r, int i, ValueId *out) {
    bool rule = r->fn->rule;
    Str name = r->fn->grad.out.data[r->fn->all_in ? 0 : i];
    const Val *v = lookup(r, name);
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
    TRY(run_part(r, &r->fn->body));
    for (int i = 0; i < (all ? 1 : c->nout); i++)
        bind(r, r->fn->results.data[i].name,
             all ? val_list(r, result, c->nout) : val_tensor(result[i]));
    for (int i = 0; i < part->in.len; i++)
        bind(r, part->in.data[i],
             all ? val_list(r, gout, c->nout)
                 : val_tensor(i < c->nout ? gout[i] : NO_VALUE));
    TRY(run_part(r, part));
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
    open_run(&r, &call, &b, msg);
    Status s = find_attr(&r, attr, out, &found);
    if (attr_get(attr->key)->kind == ATTR_INTS && s == OK && out->u.ints.n)
        out->u.ints.v = arena_dup(g->arena, out->u.ints.v,
                                  (size_t)out->u.ints.n * sizeof(int64_t));
    arena_free(r.a);
    return s;
}
