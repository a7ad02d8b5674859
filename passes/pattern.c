/* SPDX-License-Identifier: Apache-2.0 */
/* pattern.c: see pattern.h. The search keeps a list of goals, an expression and
   the value that it should be each, and tries both orders of operands. */
#include "passes/pattern.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

#include "ir/fn/fn.h"

enum { GOALS = 40 };

typedef struct Goal {
    const Expr *e;
    ValueId v;
} Goal;

typedef struct Search {
    const Graph *g;
    const Pattern *p;
    Match *m;
    Goal goal[GOALS];
    int goals, parts; /* parts of the pattern that are goals already */
} Search;

/* ---- names and numbers --------------------------------------------------- */

static const FormulaName *meaning_of(const Match *m, const char *name) {
    for (int i = 0; i < m->names; i++)
        if (!strcmp(m->name[i].name, name)) return &m->name[i];
    return NULL;
}

static void add_name(Match *m, FormulaName n) {
    ASSERT(m->names < MATCH_NAMES);
    m->name[m->names++] = n;
}

void match_bind(Match *m, const char *name, ValueId v) {
    add_name(m, (FormulaName){.name = intern(name), .value = v});
}

ValueId match_value(const Match *m, const char *name) {
    const FormulaName *n = meaning_of(m, name);
    ASSERT(n && n->kind != FORMULA_ATTR);
    return n->value;
}

double match_number(const Match *m, const char *name) {
    const FormulaName *n = meaning_of(m, name);
    ASSERT(n && n->kind == FORMULA_NUMBER);
    return n->number;
}

int64_t match_int(const Match *m, const char *name) {
    const FormulaName *n = meaning_of(m, name);
    ASSERT(n && n->kind == FORMULA_ATTR);
    return n->attr.u.i;
}

/* A number as it is written. */
static bool written(const Expr *e, double *c) {
    bool minus = e->kind == E_NEG;
    if (minus) e = e->a;
    *c = e->kind == E_FLOAT ? e->f : (double)e->i;
    if (minus) *c = -*c;
    return e->kind == E_INT || e->kind == E_FLOAT || e->kind == E_BOOL;
}

static bool takes_name(const Search *s, const Expr *e, ValueId v) {
    const FormulaName *old = meaning_of(s->m, e->name);
    FormulaName n = {.name = e->name, .value = v};
    if (old) return same_value(old->value, v);
    if (!is_value(v)) return false;
    if (isupper((unsigned char)*e->name)) {
        n.kind = FORMULA_NUMBER;
        if (!value_number(s->g, v, &n.number)) return false;
    }
    add_name(s->m, n);
    return true;
}

/* ---- nodes --------------------------------------------------------------- */

static OpCode op_of(const Expr *e) {
    if (e->kind == E_CALL)
        return e->callee == CALLEE_FN   ? OP_CALL
               : e->callee == CALLEE_OP ? e->code
                                        : NUM_OPS;
    return e->kind == E_NEG                       ? OP_NEG
           : e->kind == E_NOT                     ? OP_NOT
           : e->kind == E_BINARY && e->op != B_NE ? binary_op(e->op)
                                                  : NUM_OPS;
}

static int expr_operands(const Expr *e, const Expr **to) {
    if (e->kind != E_CALL) {
        to[0] = e->a;
        to[1] = e->b;
        return e->kind == E_BINARY ? 2 : 1;
    }
    for (int i = 0; i < e->args.len; i++) to[i] = e->args.data[i];
    return e->args.len;
}

/* The node's attribute of that name, or its default. */
static bool attr_named(const Graph *g, const Node *n, Str name, Attr *out) {
    if (n->fn) return call_attr(g, n, name, out);
    const OpInfo *info = node_info(n);
    for (int i = 0; i < info->nattr; i++) {
        const AttrInfo *a = attr_get(info->attrs[i]);
        if (strcmp(a->text, name)) continue;
        *out = (Attr){.key = info->attrs[i]};
        switch (a->kind) {
        case ATTR_INT: out->u.i = attr_int(n, out->key); break;
        case ATTR_FLOAT: out->u.f = attr_float(n, out->key); break;
        case ATTR_STR: out->u.s = attr_str(n, out->key); break;
        case ATTR_INTS: out->u.ints.n = attr_ints(n, out->key, &out->u.ints.v);
        }
        return true;
    }
    return false;
}

static bool attrs_equal(const Attr *a, const Attr *b) {
    switch (attr_get(a->key)->kind) {
    case ATTR_INT: return a->u.i == b->u.i;
    case ATTR_FLOAT: return a->u.f == b->u.f;
    case ATTR_STR: return !strcmp(a->u.s, b->u.s);
    case ATTR_INTS:
        return a->u.ints.n == b->u.ints.n &&
               !memcmp(a->u.ints.v, b->u.ints.v,
                       (size_t)a->u.ints.n * sizeof *a->u.ints.v);
    }
    return false;
}

/* Axes before 0 count from the last one of the first operand. */
static bool is_list(const Search *s, const Node *n, const Expr *e,
                    const Attr *a) {
    int rank = value_type(s->g, n->in[0])->rank;
    double c;
    if (a->u.ints.n != e->args.len) return false;
    for (int i = 0; i < e->args.len; i++) {
        ASSERT(written(e->args.data[i], &c));
        if ((double)a->u.ints.v[i] != (c < 0 ? c + rank : c)) return false;
    }
    return true;
}

static bool attr_matches(Search *s, const Node *n, const KeyArg *k) {
    double c;
    Attr a;
    if (!attr_named(s->g, n, k->name, &a)) return false;
    if (k->value->kind == E_LIST) return is_list(s, n, k->value, &a);
    if (k->value->kind == E_NAME) {
        const FormulaName *old = meaning_of(s->m, k->value->name);
        if (old) return attrs_equal(&old->attr, &a);
        add_name(s->m, (FormulaName){.name = k->value->name,
                                     .kind = FORMULA_ATTR,
                                     .attr = a});
        return true;
    }
    ASSERT(written(k->value, &c));
    return attr_get(a.key)->kind == ATTR_INT ? (double)a.u.i == c : a.u.f == c;
}

static bool has_default(const Graph *g, const Node *n, const Attr *a) {
    Node bare = *n;
    Attr without;
    bare.nattr = 0;
    return attr_named(g, &bare, attr_get(a->key)->text, &without) &&
           attrs_equal(a, &without);
}

static bool attributes_match(Search *s, const Node *n, const Expr *e) {
    for (int i = 0; i < n->nattr; i++) {
        bool named = false;
        for (int k = 0; k < e->keys.len; k++)
            named |=
                !strcmp(e->keys.data[k].name, attr_get(n->attrs[i].key)->text);
        if (!named && !has_default(s->g, n, &n->attrs[i])) return false;
    }
    for (int k = 0; k < e->keys.len; k++)
        if (!attr_matches(s, n, &e->keys.data[k])) return false;
    return true;
}

/* ---- the search ---------------------------------------------------------- */

static bool solve_goals(Search *s, int at);

static void add_goal(Search *s, const Expr *e, ValueId v) {
    ASSERT(s->goals < GOALS);
    s->goal[s->goals++] = (Goal){e, v};
}

static bool solve_node(Search *s, int at, const Expr *e, ValueId v) {
    const Expr *to[MATCH_NODES];
    OpCode op = op_of(e);
    ASSERT(op != NUM_OPS);
    const Node *n = def_of(s->g, v, op);
    int operands = expr_operands(e, to);
    bool either = op == OP_ADD || op == OP_MUL;
    if (!n || (op == OP_CALL && n->fn != e->fn) || n->nin != operands ||
        !attributes_match(s, n, e))
        return false;
    ASSERT(s->m->nodes < MATCH_NODES);
    s->m->node[s->m->nodes++] = value_get(s->g, v)->def;
    const Match before = *s->m;
    int goals = s->goals;
    for (int swap = 0; swap <= either; swap++) {
        for (int k = 0; k < operands; k++) add_goal(s, to[k], n->in[k ^ swap]);
        if (solve_goals(s, at + 1)) return true;
        s->goals = goals;
        *s->m = before;
    }
    return false;
}

/* Parts become goals when all names before are known. */
static bool solve_part(Search *s, int at) {
    if (s->parts == s->p->of.parts.len) return true;
    const KeyArg *k = &s->p->of.parts.data[s->parts++];
    add_goal(s, k->value, match_value(s->m, k->name));
    if (solve_goals(s, at)) return true;
    s->parts--;
    s->goals--;
    return false;
}

/* The goals from `at` on. */
static bool solve_goals(Search *s, int at) {
    double c, x;
    if (at == s->goals) return solve_part(s, at);
    const Expr *e = s->goal[at].e;
    ValueId v = s->goal[at].v;
    if (e->kind == E_NAME) return takes_name(s, e, v) && solve_goals(s, at + 1);
    if (!written(e, &c)) return solve_node(s, at, e, v);
    if (!value_number(s->g, v, &x)) return false;
    bool equal = x == c || fabs(x - c) <= s->p->near * fabs(c);
    return equal && solve_goals(s, at + 1);
}

bool pattern_matches(Pattern *p, const Graph *g, ValueId v, Match *m) {
    Search s = {.g = g, .p = p, .m = m};
    if (!p->of.whole) p->of = formula_read(p->text);
    add_goal(&s, p->of.whole, v);
    return solve_goals(&s, 0);
}

/* ---- rows ---------------------------------------------------------------- */

/* True if the tree has an f64 value, or a number beyond f32, and its result is
   computed in f32. */
static bool narrows(const Graph *g, const Match *m, DType result) {
    bool parts = false;
    for (int i = 0; i < m->names; i++)
        parts |= m->name[i].kind == FORMULA_NUMBER &&
                 isfinite(m->name[i].number) &&
                 fabs(m->name[i].number) > dtype_info[DT_F32].most;
    for (int i = 0; i < m->nodes; i++)
        parts |= value_dtype(g, node_get(g, m->node[i])->out[0]) == DT_F64;
    return parts && result != DT_F64;
}

static bool row_applies(const Graph *g, const PatternRow *row, const Match *m,
                        ValueId result) {
    const Type *t = value_type(g, result);
    bool same = row->when & (SAME_TYPE | SAME_SHAPE);
    const Value *x = same ? value_get(g, match_value(m, "x")) : NULL;
    return (!(row->when & SAME_TYPE) ||
            x->type.i == value_get(g, result)->type.i) &&
           (!(row->when & SAME_SHAPE) || shape_equal(type_get(x->type), t)) &&
           (!(row->when & FLOATS) || dtype_is_float(t->dtype)) &&
           (!(row->when & TYPED) || g->module->stage <= STAGE_TYPED) &&
           !narrows(g, m, t->dtype);
}

static void row_read(PatternRow *row) {
    row->made = formula_read(row->make);
    row->find.of = formula_read(row->find.text);
    row->op = op_of(row->find.of.whole);
}

bool pattern_rows(Rewriter *rw, PatternRow *rows, int n, const Node *node,
                  ValueId *with) {
    Graph *g = rw->g;
    ValueId v = node->out[0];
    for (int i = 0; i < n; i++) {
        PatternRow *row = &rows[i];
        if (!row->made.whole) row_read(row);
        if (row->op != node->op) continue;
        Match m = {0};
        if (!pattern_matches(&row->find, g, v, &m) ||
            !row_applies(g, row, &m, v))
            continue;
        with[0] = formula_make(&rw->b, row->made.whole, m.name, m.names,
                               value_dtype(g, v));
        return true;
    }
    return false;
}
