/* op_grad_expr.c: gradients written as expressions in ops.def: dx(g * cos(x)).

   Every operation becomes a node in the operand's wide dtype, the outermost one
   in the operand's own.  A number is a constant beside its neighbour.       */
#include "ir/op/op_grad.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct Expr {
    Builder *b;
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
} Term;

static Term sum(Expr *e);

static ValueId built(Expr *e, Term t, DType d) {
    return t.nin ? build(e->b, t.op, t.in, t.nin, NULL, 0, d, NULL) : t.in[0];
}

static char look(Expr *e) {
    while (isspace((unsigned char)*e->at)) e->at++;
    return *e->at;
}

static void expect(Expr *e, char c) {
    ASSERT(look(e) == c);
    e->at++;
}

static Term value(ValueId v) { return (Term){.in = {v}}; }

static Term number(Expr *e) {
    char *end;
    double v = strtod(e->at, &end);
    e->at = end;
    return value(b_scalar(e->b, e->wide, v));
}

/* x, y, g, or an op of one operand. */
static Term name(Expr *e) {
    const char *start = e->at;
    OpCode op;
    while (isalnum((unsigned char)*e->at) || *e->at == '_') e->at++;
    size_t n = (size_t)(e->at - start);
    if (n == 1 && *start == 'x') return value(e->x);
    if (n == 1 && *start == 'y') return value(e->y);
    if (n == 1 && *start == 'g') return value(e->g);
    bool known = op_from_text(start, n, &op);
    ASSERT(known && op_info[op].in_max == 1);
    expect(e, '(');
    Term t = {.op = op, .nin = 1, .in = {built(e, sum(e), e->wide)}};
    expect(e, ')');
    return t;
}

static Term factor(Expr *e) {
    char c = look(e);
    if (c == '-') {
        e->at++;
        return (Term){OP_NEG, 1, {built(e, factor(e), e->wide)}};
    }
    if (c != '(') return isdigit((unsigned char)c) ? number(e) : name(e);
    e->at++;
    Term t = sum(e);
    expect(e, ')');
    return t;
}

static Term product(Expr *e) {
    Term t = factor(e);
    for (char c; (c = look(e)) == '*' || c == '/';) {
        ValueId left = built(e, t, e->wide);
        e->at++;
        Term right = factor(e);
        t = (Term){
            c == '*' ? OP_MUL : OP_DIV, 2, {left, built(e, right, e->wide)}};
    }
    return t;
}

static Term sum(Expr *e) {
    Term t = product(e);
    for (char c; (c = look(e)) == '+' || c == '-';) {
        ValueId left = built(e, t, e->wide);
        e->at++;
        Term right = product(e);
        t = (Term){
            c == '+' ? OP_ADD : OP_SUB, 2, {left, built(e, right, e->wide)}};
    }
    return t;
}

Status grad_by_expr(GradCtx *cx) {
    Node n = grad_node(cx);
    Expr e = {.b = cx->b,
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
