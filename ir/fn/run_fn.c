/* SPDX-License-Identifier: Apache-2.0 */
/* run_fn.c: runs a function's body: expressions, statements, calls.

   Values are known when the model is compiled (known.c) or are tensors. An
   operator gives a known value if all its operands are known, else it makes
   a node (make.c). */
#include <inttypes.h>
#include <string.h>

#include "ir/fn/run.h"

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

/* ---- operators ----------------------------------------------------------- */

/* rng() is a state, for functions that draw from it. */
static Status check_random(Run *r, const Expr *e, const Val *v, int n) {
    for (int i = 0; i < n; i++)
        if (model_random(r, &v[i]))
            return run_fail(r, e,
                            "rng() is the state of random numbers, not a "
                            "number: random_uniform(rng(), shape=[..], "
                            "salt=salt()) draws numbers from 0 to 1");
    return OK;
}

OpCode binary_op(BinaryOp op) {
    static const OpCode ops[] = {
        [B_OR] = OP_OR,      [B_AND] = OP_AND,          [B_EQ] = OP_EQUAL,
        [B_NE] = OP_EQUAL,   [B_LT] = OP_LESS,          [B_LE] = OP_LESS_EQUAL,
        [B_GT] = OP_GREATER, [B_GE] = OP_GREATER_EQUAL, [B_IN] = NUM_OPS,
        [B_RANGE] = NUM_OPS, [B_ADD] = OP_ADD,          [B_SUB] = OP_SUB,
        [B_MUL] = OP_MUL,    [B_DIV] = OP_DIV,          [B_FLOORDIV] = NUM_OPS,
        [B_MOD] = OP_MOD,    [B_MATMUL] = OP_MATMUL};
    return ops[op];
}

static Status eval_binary(Run *r, const Expr *e, Val *out) {
    Val v[2];
    TRY(run_eval(r, e->a, &v[0]));
    bool logic = e->op == B_AND || e->op == B_OR;
    if (logic && v[0].kind != V_TENSOR) { /* the right side is evaluated only
                                             if needed */
        bool left;
        TRY(run_want_bool(r, e->a, &v[0], &left));
        if (left == (e->op == B_OR)) {
            *out = val_bool(left);
            return OK;
        }
        TRY(run_eval(r, e->b, out));
        return run_want_bool(r, e->b, out, &left);
    }
    TRY(run_eval(r, e->b, &v[1]));
    if (v[0].kind != V_TENSOR && v[1].kind != V_TENSOR && e->op != B_MATMUL)
        return known_binary(r, e, &v[0], &v[1], out);
    TRY(check_random(r, e, v, 2));
    if (binary_op(e->op) == NUM_OPS) return run_wants(r, e, "a known value", v);
    TRY(make_elementwise(r, e, binary_op(e->op), v, 2, out));
    if (e->op != B_NE) return OK;
    v[0] = *out;
    return make_elementwise(r, e, OP_NOT, v, 1, out);
}

static Status eval_unary(Run *r, const Expr *e, Val *out) {
    bool neg = e->kind == E_NEG, b;
    Val v;
    TRY(run_eval(r, e->a, &v));
    TRY(check_random(r, e, &v, 1));
    if (v.kind == V_TENSOR)
        return make_elementwise(r, e, neg ? OP_NEG : OP_NOT, &v, 1, out);
    if (!neg) {
        TRY(run_want_bool(r, e, &v, &b));
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
    TRY(run_count(r, e, all.n));
    Val *list = NEW_ARRAY(r->a, Val, all.n + 1);
    vec_push(r->a, &r->env, (Binding){e->name, all});
    for (int i = 0; i < all.n; i++) {
        bool kept;
        r->env.data[outside].val = all.list[i];
        if (e->c) TRY(run_eval(r, e->c, &keep));
        TRY(run_want_bool(r, e, &keep, &kept));
        if (kept) TRY(run_eval(r, e->a, &list[n++]));
    }
    r->env.len = outside;
    *out = (Val){.kind = V_LIST, .list = list, .n = n};
    return OK;
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

typedef struct Arg {
    const Type *t;
    int64_t i;
    DType d;
    Type shape;
} Arg;

static Status take_arg(Run *r, const Expr *e, char kind, const Val *v, Arg *a) {
    switch (kind) {
    case 'i': return run_want_int(r, e, v, &a->i);
    case 'd': return run_want_dtype(r, e, v, &a->d);
    case 's': return run_want_shape(r, e, v, &a->shape);
    case 'n': return val_is_number(v) ? OK : run_wants(r, e, "a number", v);
    case 'l': return v->kind == V_LIST ? OK : run_wants(r, e, "a list", v);
    case 't':
        if (v->kind != V_TENSOR) return run_wants(r, e, "a tensor", v);
        a->t = val_type(r, v);
    }
    return OK;
}

/* Number of elements of a tensor or of a shape. */
static Status run_count_of(Run *r, const Expr *e, const Val *v, Val *out) {
    int64_t *dim, n = 1;
    int k;
    if (v->kind == V_TENSOR) {
        *out = val_int(type_count(val_type(r, v)));
        return OK;
    }
    TRY(run_want_ints(r, e, v, &dim, &k));
    for (int i = 0; i < k; i++)
        if (!mul_ok(n, dim[i], &n))
            return run_fail(r, e, "the integer is too large");
    *out = val_int(n);
    return OK;
}

static Status eval_builtin(Run *r, const Expr *e, const Val *v, Val *out) {
    const char *takes = builtins[e->builtin].takes;
    int n = (int)strlen(takes), axis;
    Arg a[2] = {{0}};
    Type both = {0};
    double number;
    if (e->args.len != n || e->keys.len)
        return run_fail(r, e, "%s takes %d operand%s", e->name, n,
                        n == 1 ? "" : "s");
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
    case F_count: return run_count_of(r, e, v, out);
    case F_len: *out = val_int(v->n); break;
    case F_dtype: *out = val_dtype(a->t->dtype); break;
    case F_total:
        return run_fail(r, e,
                        "a total is a line of its own in the body of an "
                        "optimizer: NAME = total(x)");
    case F_present: *out = val_bool(v->kind != V_NONE); break;
    case F_holds: *out = val_bool(dtype_holds(a->d, a[1].i)); break;
    case F_broadcasts:
        *out = val_bool(shape_broadcast(a->t, &a[1].shape, &both) &&
                        shape_equal(&both, &a[1].shape));
        break;
    case F_cast:
        *out = val_tensor(make_cast(r, v->t, a[1].d));
        out->typed = true;
        break;
    case F_plus:
        *out = v[v[0].kind == V_NONE];
        if (v[0].kind == V_NONE || v[1].kind == V_NONE) break;
        return make_elementwise(r, e, OP_ADD, v, 2, out);
    case F_sum_to: {
        ValueId open = b_close(r->b, r->call->closed, v[0].t);
        *out = val_tensor(b_sum_to(r->b, open, v[1].t, r->wide));
        out->typed = v[0].typed && same_value(out->t, v[0].t);
        break;
    }
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
    TRY(run_count(r, e, 1));
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
        else if ((builtin = fn_builtin(e->name)) >= 0 &&
                 !*builtins[builtin].takes) {
            /* a call without operands is written as a name */
            Expr call = *e;
            call.builtin = builtin;
            return eval_builtin(r, &call, NULL, out);
        } else
            return run_fail(r, e, "'%.60s' has no value here", e->name);
        return OK;
    case E_VALUE:
        *out =
            val_tensor(r->model ? graph_find_name(r->b->g, e->name) : NO_VALUE);
        if (out->kind == V_TENSOR) return OK;
        return run_fail(r, e, "'%%%.60s' is not defined here", e->name);
    case E_LIST:
        TRY(run_count(r, e, e->args.len));
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
        TRY(run_want_bool(r, e->c, &v, &yes));
        return run_eval(r, yes ? e->a : e->b, out);
    }
    return OK;
}

/* ---- statements ---------------------------------------------------------- */

static Status run_require(Run *r, const Stmt *s) {
    Val c;
    bool ok;
    TRY(run_eval(r, s->value, &c));
    TRY(run_want_bool(r, s->value, &c, &ok));
    if (ok) return OK;
    StrBuf sb = {0};
    Status status = OK;
    for (int i = 0; i < s->parts.len && status == OK; i++) {
        Val v;
        status = run_eval(r, s->parts.data[i], &v);
        if (status == OK) run_put(r, &sb, &v);
    }
    if (status == OK) {
        snprintf(r->msg, MSG_TEXT, "%.*s", MSG_TEXT - 1,
                 sb.data ? sb.data : "");
        if (r->model) run_failed_at(r, s->line, s->col);
    }
    sb_free(&sb);
    return ERR_USER;
}

/* The gradient of an operand that needs none is not computed. */
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
            TRY(run_want_bool(r, s->value, &v, &yes));
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

/* The given value, or the default; *out absent: neither. */
Status run_attr(Run *r, const FnAttr *a, Attr *x, bool *found) {
    Node holder = {.attrs = r->call->attrs, .nattr = r->call->nattr};
    const Attr *given = attr_find(&holder, a->key);
    Val v;
    *found = given || a->dflt;
    if (given) {
        *x = *given;
    } else if (a->dflt) {
        TRY(run_eval(r, a->dflt, &v));
        TRY(make_attr(r, a->dflt, a->key, &v, x));
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

Status run_start(Run *r, const FnCall *call, Builder *b, char *msg) {
    run_open(r, call, b, msg);
    for (int i = 0; i < r->fn->attrs.len; i++) {
        const FnAttr *a = &r->fn->attrs.data[i];
        Attr x = {0};
        bool found;
        TRY(run_attr(r, a, &x, &found));
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

/* A tensor, or a number in place of one. */
Status run_take_value(Run *r, const Val *v, Str name, DType d, ValueId *out) {
    *out = NO_VALUE;
    if (!v || v->kind == V_NONE) return OK;
    if (val_is_number(v)) {
        return run_scalar(r, NULL, v, d == NUM_DTYPES ? r->wide : d, out);
    }
    if (v->kind != V_TENSOR)
        return run_fail(r, NULL, "'%.60s' is %s, not a tensor", name,
                        val_kind(v));
    *out = make_rounded(r, v->t, d);
    return OK;
}

Status run_value(Run *r, const Expr *e, ValueId *out) {
    Val v;
    TRY(run_eval(r, e, &v));
    if (val_is_number(&v)) {
        return run_scalar(r, e, &v, r->wide, out);
    }
    if (v.kind != V_TENSOR) return run_wants(r, e, "a tensor", &v);
    *out = v.t;
    return OK;
}

Status run_results(Run *r, ValueId *out) {
    const FnCall *c = r->call;
    for (int i = 0; i < c->nout; i++) {
        Str name = r->fn->results.data[i].name;
        TRY(run_take_value(r, run_lookup(r, name), name,
                           c->want ? c->want[i] : NUM_DTYPES, &out[i]));
        if (!is_value(out[i]))
            return run_fail(r, NULL, "gives no result '%.60s' here", name);
    }
    return OK;
}
