/* SPDX-License-Identifier: Apache-2.0 */
/* known.c: values known at compile time (numbers, booleans, text, lists,
   dtypes), operators on them, and messages about values of the wrong kind. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ir/eval/evaluate.h"
#include "ir/fn/model.h"
#include "ir/fn/run.h"

/* ---- messages ------------------------------------------------------------ */

void run_failed_at(const Run *r, int line, int col) {
    Model *e = r->model;
    int n = e->failed.len;
    if (n && e->failed.data[n - 1].depth <= r->depth) return;
    vec_push(e->m->arena, &e->failed,
             ((Frame){r->fn, r->scope->prefix, r->depth, line, col}));
}

Status run_fail(Run *r, const Expr *at, const char *fmt, ...) {
    char text[MSG_TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (at && r->model) run_failed_at(r, at->line, at->col);
    if (at && !r->model)
        snprintf(r->msg, MSG_TEXT, "%.180s (%.40s:%d:%d)", text,
                 r->fn->file ? r->fn->file : "def", at->line, at->col);
    else
        memcpy(r->msg, text, sizeof text);
    return ERR_USER;
}

const char *val_kind(const Val *v) {
    static const char *const text[] = {
        "nothing", "a boolean", "an integer", "a number",      "text",
        "a dtype", "a list",    "a tensor",   "an initialiser"};
    return text[v->kind];
}

Status run_wants(Run *r, const Expr *at, const char *what, const Val *v) {
    return run_fail(r, at, "%s expected, found %s%s", what, val_kind(v),
                    v->kind == V_TENSOR
                        ? " (the compiler does not know its values; gather "
                          "and where read positions from data)"
                        : "");
}

/* ---- values -------------------------------------------------------------- */

Val val_int(int64_t i) { return (Val){.kind = V_INT, .i = i}; }
Val val_bool(bool b) { return (Val){.kind = V_BOOL, .i = b}; }
Val val_float(double f) { return (Val){.kind = V_FLOAT, .f = f}; }
Val val_dtype(DType d) { return (Val){.kind = V_DTYPE, .i = d}; }
Val val_tensor(ValueId t) {
    return (Val){.kind = is_value(t) ? V_TENSOR : V_NONE, .t = t};
}

bool val_is_number(const Val *v) {
    return v->kind == V_INT || v->kind == V_FLOAT || v->kind == V_BOOL;
}

double val_number(const Val *v) {
    return v->kind == V_FLOAT ? v->f : (double)v->i;
}

const Type *val_type(const Run *r, const Val *v) {
    return value_type(r->b->g, v->t);
}

Val val_list(Run *r, const ValueId *v, int n) {
    Val *list = NEW_ARRAY(r->a, Val, n + 1);
    for (int i = 0; i < n; i++) list[i] = val_tensor(v[i]);
    return (Val){.kind = V_LIST, .list = list, .n = n};
}

Val val_ints(Run *r, const int64_t *v, int n) {
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

Status run_want_element(Run *r, const Expr *at, const Val *v, DType d,
                        int64_t *out) {
    bool whole = v->kind != V_FLOAT || v->f == floor(v->f);
    bool fits = v->kind != V_FLOAT || fabs(v->f) < 0x1p63;
    if (!whole) return run_fail(r, at, "%g meets integers", v->f);
    if (fits) *out = v->kind == V_FLOAT ? (int64_t)v->f : v->i;
    if (fits && dtype_holds(d, *out)) return OK;
    return run_fail(r, at, "%.17g is outside %s", val_number(v),
                    dtype_info[d].text);
}

Status run_want_bool(Run *r, const Expr *at, const Val *v, bool *out) {
    if (v->kind != V_BOOL) return run_wants(r, at, "true or false", v);
    *out = v->i != 0;
    return OK;
}

Status run_want_dtype(Run *r, const Expr *at, const Val *v, DType *out) {
    if (v->kind != V_DTYPE) return run_wants(r, at, "a dtype", v);
    *out = (DType)v->i;
    return OK;
}

Status run_want_ints(Run *r, const Expr *at, const Val *v, int64_t **out,
                     int *n) {
    bool one = v->kind == V_INT;
    if (!one && v->kind != V_LIST) return run_wants(r, at, "a list", v);
    *n = one ? 1 : v->n;
    *out = NEW_ARRAY(r->a, int64_t, *n + 1);
    for (int i = 0; i < *n; i++)
        TRY(run_want_int(r, at, one ? v : &v->list[i], &(*out)[i]));
    return OK;
}

Status run_want_shape(Run *r, const Expr *at, const Val *v, Type *out) {
    int64_t *dim;
    int n;
    TRY(run_want_ints(r, at, v, &dim, &n));
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

/* Limits the work that a text can cause at compile time. */
Status run_count(Run *r, const Expr *at, int64_t n) {
    *r->work += n;
    if (*r->work <= MAX_WORK) return OK;
    return run_fail(r, at, "more than %d steps at compile time", MAX_WORK);
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
    bool divides = e->op == B_FLOORDIV || e->op == B_MOD;
    if (divides && y == 0) return run_fail(r, e, "division by 0");
    /* Does not negate: the least integer has no positive counterpart. */
    int64_t q = divides && y != -1 ? x / y : 0;
    int64_t rest = divides && y != -1 ? x % y : 0;
    if (rest != 0 && (rest < 0) != (y < 0)) {
        rest += y;
        q--;
    }
    switch (e->op) {
    case B_ADD: ok = add_ok(x, y, &i); break;
    case B_SUB: ok = y != INT64_MIN && add_ok(x, -y, &i); break;
    case B_MUL: ok = mul_ok(x, y, &i); break;
    case B_FLOORDIV:
        ok = y != -1 || mul_ok(x, y, &q);
        i = q;
        break;
    default: i = rest; break;
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
    int64_t n = !range ? a->n + b->n : 0;
    bool fits = !range || hi <= lo ||
                (lo != INT64_MIN && add_ok(hi, -lo, &n) && n <= MAX_LIST);
    if (!fits)
        return run_fail(r, e, "the list is too long: at most %d elements",
                        MAX_LIST);
    TRY(run_count(r, e, n));
    Val *list = NEW_ARRAY(r->a, Val, n + 1);
    for (int i = 0; i < (int)n; i++)
        list[i] = range      ? val_int(lo + i)
                  : i < a->n ? a->list[i]
                             : b->list[i - a->n];
    *out = (Val){.kind = V_LIST, .list = list, .n = (int)n};
    return OK;
}

/* "block." + i */
static Status known_text(Run *r, const Expr *e, const Val *a, const Val *b,
                         Val *out) {
    StrBuf sb = {0};
    if (b->kind != V_STR && b->kind != V_INT)
        return run_wants(r, e, "text or an integer", b);
    run_put(r, &sb, a);
    run_put(r, &sb, b);
    bool fits = sb.len <= MAX_LIST;
    *out = (Val){.kind = V_STR, .s = intern_n(sb.data, fits ? sb.len : 0)};
    sb_free(&sb);
    return fits ? OK : run_fail(r, e, "the text is too long");
}

Status known_binary(Run *r, const Expr *e, const Val *a, const Val *b,
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

bool known_op(OpCode op, const Val *v, int n, Val *out) {
    if (n == 2 && (op == OP_MIN || op == OP_MAX)) {
        bool first = (val_number(&v[0]) < val_number(&v[1])) == (op == OP_MIN);
        *out = v[first ? 0 : 1];
        return true;
    }
    if (n != 1 || !op_numeric[op].folds) return false;
    *out = val_float(eval_expr_f(op, val_number(&v[0]), 0));
    return true;
}

void run_put(Run *r, StrBuf *sb, const Val *v) {
    switch (v->kind) {
    case V_NONE: sb_puts(sb, "absent"); break;
    case V_BOOL: sb_puts(sb, v->i ? "true" : "false"); break;
    case V_INT: sb_printf(sb, "%" PRId64, v->i); break;
    case V_FLOAT: sb_printf(sb, "%g", v->f); break;
    case V_STR: sb_puts(sb, v->s); break;
    case V_DTYPE: sb_puts(sb, dtype_info[v->i].text); break;
    case V_TENSOR: sb_puts(sb, TXT(val_type(r, v))); break;
    case V_INIT: sb_puts(sb, val_kind(v)); break;
    case V_LIST:
        sb_puts(sb, "[");
        for (int i = 0; i < v->n; i++) {
            if (i) sb_puts(sb, ", ");
            run_put(r, sb, &v->list[i]);
        }
        sb_puts(sb, "]");
        break;
    }
}
