/* op_grad_expr.c: gradients written as expressions in ops.def: dx(g * cos(x)).

   Every operation becomes a node in the operand's wide dtype, the outermost one
   in the operand's own.  A number is a constant beside its neighbour.  An op
   takes those of the node's attributes that it has; f(g, !name) inverts one. */
#include "ir/op/op_grad.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ATTRS = 8 };

typedef struct Expr {
    Builder *b;
    Node n;
    const char *at; /* what is to be read */
    ValueId x, y, g;
    DType wide, own;
} Expr;

/* What was read: its last operation is not built yet, since only the outermost
   one rounds to the operand's dtype. */
typedef struct Term {
    OpCode op;
    int nin; /* 0: `in[0]` itself */
    ValueId in[2];
    Attr attr[MOST_ATTRS];
    int nattr;
} Term;

static Term sum(Expr *e);

static ValueId built(Expr *e, Term t, DType d) {
    if (t.nin == 0) return t.in[0];
    return build(e->b, t.op, t.in, t.nin, t.attr, t.nattr, d, NULL);
}

static Term value(ValueId v) { return (Term){.in = {v}}; }

static Term one(OpCode op, ValueId v) {
    return (Term){.op = op, .nin = 1, .in = {v}};
}

static Term two(Expr *e, OpCode op, ValueId left, Term right) {
    return (Term){.op = op, .nin = 2, .in = {left, built(e, right, e->wide)}};
}

/* ---- reading ------------------------------------------------------------- */

static char look(Expr *e) {
    while (isspace((unsigned char)*e->at)) e->at++;
    return *e->at;
}

static void expect(Expr *e, char c) {
    ASSERT(look(e) == c);
    e->at++;
}

static size_t word(Expr *e, const char **start) {
    look(e);
    *start = e->at;
    while (isalnum((unsigned char)*e->at) || *e->at == '_') e->at++;
    return (size_t)(e->at - *start);
}

static Term number(Expr *e) {
    char *end;
    double v = strtod(e->at, &end);
    e->at = end;
    return value(b_scalar(e->b, e->wide, v));
}

/* ", !name" */
static Attr inverted(Expr *e) {
    const char *start;
    AttrKey k = 0;
    expect(e, ',');
    expect(e, '!');
    size_t n = word(e, &start);
    while (k < NUM_ATTRS && (strlen(attr_get(k)->text) != n ||
                             memcmp(attr_get(k)->text, start, n)))
        k++;
    ASSERT(k < NUM_ATTRS);
    return attr_i(k, !attr_int(&e->n, k, 0));
}

/* x, y, g, or an op of one operand. */
static Term name(Expr *e) {
    const char *start;
    OpCode op;
    size_t n = word(e, &start);
    if (n == 1 && *start == 'x') return value(e->x);
    if (n == 1 && *start == 'y') return value(e->y);
    if (n == 1 && *start == 'g') return value(e->g);
    bool known = op_from_text(start, n, &op);
    ASSERT(known && op_info[op].in_max == 1);
    expect(e, '(');
    Term t = one(op, built(e, sum(e), e->wide));
    Attr more[MOST_ATTRS];
    int nmore = 0;
    while (look(e) == ',' && nmore < MOST_ATTRS) more[nmore++] = inverted(e);
    t.nattr = grad_attrs(&e->n, op, more, nmore, t.attr);
    expect(e, ')');
    return t;
}

static Term factor(Expr *e) {
    char c = look(e);
    bool minus = c == '-';
    if (isdigit((unsigned char)e->at[minus])) return number(e);
    if (c != '(' && !minus) return name(e);
    e->at++;
    if (minus) return one(OP_NEG, built(e, factor(e), e->wide));
    Term t = sum(e);
    expect(e, ')');
    return t;
}

static Term product(Expr *e) {
    Term t = factor(e);
    for (char c; (c = look(e)) == '*' || c == '/';) {
        ValueId left = built(e, t, e->wide);
        e->at++;
        t = two(e, c == '*' ? OP_MUL : OP_DIV, left, factor(e));
    }
    return t;
}

static Term sum(Expr *e) {
    Term t = product(e);
    for (char c; (c = look(e)) == '+' || c == '-';) {
        ValueId left = built(e, t, e->wide);
        e->at++;
        t = two(e, c == '+' ? OP_ADD : OP_SUB, left, product(e));
    }
    return t;
}

Status grad_by_expr(GradCtx *cx) {
    Node n = grad_node(cx);
    Expr e = {.b = cx->b,
              .n = n,
              .at = op_info[n.op].grad_text + strlen("dx("),
              .x = n.in[0],
              .y = n.out[0],
              .g = cx->gout[0],
              .wide = wide_of(cx->b, n.in[0]),
              .own = dtype_of(cx->b, n.in[0])};
    Term t = sum(&e);
    expect(&e, ')');
    cx->gin[0] = built(&e, t, e.own);
    return OK;
}
