/* SPDX-License-Identifier: Apache-2.0 */
/* codes.c: see codes.h. */
#include "passes/codes.h"

#include "passes/rewrite.h"

enum { LEAST_ROW = 64 }; /* elements that share a scale of 4 bytes */
static const double most = 448, least = 0x1p-9; /* of f8e4m3 */

/* The first axis of a row. */
static int row_axis(const Type *t) {
    int axis = t->rank;
    for (int64_t n = 1; axis > 0 && n < LEAST_ROW;) n *= t->dim[--axis];
    return axis;
}

int64_t codes_bytes(const Type *t) {
    int64_t rows = 1;
    for (int d = row_axis(t) - 1; d >= 0; d--) rows *= t->dim[d];
    return type_count(t) + rows * 4;
}

static ValueId by(Builder *b, OpCode op, ValueId x, double y) {
    return b2(b, op, x, b_scalar(b, DT_F32, y), DT_F32);
}

/* 1 / scale; 0 for a row of zeros. */
static ValueId scale_inverse(Builder *b, ValueId scale) {
    ValueId x = by(b, OP_MIN, b1(b, OP_RECIPROCAL, scale, DT_F32), 3e38);
    ValueId any = b2(b, OP_GREATER, scale, b_scalar(b, DT_F32, 0), DT_DEFAULT);
    return b_where(b, any, x, b_scalar(b, DT_F32, 0));
}

Codes codes_make(Builder *b, ValueId x) {
    const Type t = *value_type(b->g, x);
    int64_t axes[MAX_RANK];
    int first = row_axis(&t);
    for (int d = first; d < t.rank; d++) axes[d - first] = d;
    ValueId size = b1(b, OP_ABS, x, DT_F32);
    /* the scale is a fold's result, which fusion does not copy to backward */
    Codes c = {.scale =
                   b_reduce(b, OP_REDUCE_MAX, by(b, OP_MUL, size, 1 / most),
                            axes, t.rank - first, true, DT_F32)};
    ValueId part = b2(b, OP_MUL, size, scale_inverse(b, c.scale), DT_F32);
    part = by(b, OP_MAX, by(b, OP_MIN, part, most), least);
    ValueId y = b2(b, OP_MUL, part, b1(b, OP_SIGN, x, DT_F32), DT_F32);
    Attr kept = attr_i(AK_user, 1); /* a rounding that no pass removes */
    c.code = build(b, OP_CAST, &y, 1, &kept, 1, DT_F8E4M3, NULL);
    return c;
}

ValueId codes_read(Builder *b, Codes c) {
    return b2(b, OP_MUL, b_cast(b, c.code, DT_F32), c.scale, DT_F32);
}

/* ---- finding them again -------------------------------------------------- */

ValueId codes_value(const Graph *g, ValueId code) {
    const Node *n = value_maker(g, code);
    bool is = n && n->op == OP_CAST && value_dtype(g, code) == DT_F8E4M3;
    const Node *y = is ? def_of(g, n->in[0], OP_MUL) : NULL;
    const Node *sign = y ? def_of(g, y->in[1], OP_SIGN) : NULL;
    return sign ? sign->in[0] : NO_VALUE;
}

/* The scale with which codes of x were made, and the codes. */
static Codes codes_by_sign(const Graph *g, const UserIndex *users,
                           ValueId sign) {
    Codes c = {NO_VALUE, NO_VALUE};
    for (Users u = users_of(users, sign); u.at < u.end; u.at++)
        for (Users w = users_of(users, node_get(g, *u.at)->out[0]);
             w.at < w.end; w.at++) {
            ValueId code = node_get(g, *w.at)->out[0];
            if (codes_value(g, code).i) c.code = code;
        }
    for (Users u = users_of(users, c.code); c.code.i && u.at < u.end; u.at++)
        for (Users w = users_of(users, node_get(g, *u.at)->out[0]);
             w.at < w.end; w.at++)
            c.scale = node_get(g, *w.at)->in[1];
    return c;
}

Codes codes_of(const Graph *g, const UserIndex *users, ValueId v) {
    Codes c = {NO_VALUE, NO_VALUE};
    for (Users u = users_of(users, v); u.at < u.end && !c.scale.i; u.at++)
        if (node_get(g, *u.at)->op == OP_SIGN)
            c = codes_by_sign(g, users, node_get(g, *u.at)->out[0]);
    return c.scale.i ? c : (Codes){NO_VALUE, NO_VALUE};
}

ValueId codes_source(const Graph *g, ValueId v) {
    const Node *n = value_maker(g, v);
    if (n && n->op == OP_CAST) n = value_maker(g, n->in[0]);
    const Node *wide = n && n->op == OP_MUL ? value_maker(g, n->in[0]) : NULL;
    return wide && wide->op == OP_CAST ? codes_value(g, wide->in[0]) : NO_VALUE;
}
