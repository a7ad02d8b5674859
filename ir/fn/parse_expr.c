/* SPDX-License-Identifier: Apache-2.0 */
/* parse_expr.c: the words and expressions of a definition (ast.h). */
#include "ir/base/near.h"
#include "ir/graph/fn_table.h"
#include "ir/fn/parse_fn.h"

#include <stdlib.h>
#include <string.h>

/* Limits on the nesting of expressions and blocks in the text, and on the
   depth of the tree, in which a chain of operators counts as nesting, too. */
enum { MAX_DEPTH = 64, MAX_TREE = 256 };

/* ---- words --------------------------------------------------------------- */

Status def_word(Lexer *lx, const char *word, bool *taken) {
    *taken = lex_is_word(lx, word);
    return *taken ? lex_next(lx) : OK;
}

Status def_expect_word(DefParser *p, const char *word) {
    char what[16];
    if (lex_is_word(p->lx, word)) return lex_next(p->lx);
    snprintf(what, sizeof what, "'%s'", word);
    return lex_expected(p->lx, what);
}

Status def_expect_arrow(DefParser *p) {
    return lex_is(p->lx, LEX_ARROW) ? lex_next(p->lx)
                                    : lex_expected(p->lx, "'->'");
}

Status def_name(DefParser *p, const char *what, Str *out) {
    static const char *const reserved[] = {"if",      "else",  "for", "in",
                                           "require", "and",   "or",  "not",
                                           "true",    "false", "none"};
    if (p->lx->tok.kind != T_WORD) return lex_expected(p->lx, what);
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (lex_is_word(p->lx, reserved[i])) return lex_expected(p->lx, what);
    *out = p->lx->tok.text;
    return lex_next(p->lx);
}

Status def_names(DefParser *p, const char *what, Names *out) {
    bool more;
    do {
        Str name;
        TRY(def_name(p, what, &name));
        vec_push(p->a, out, name);
        TRY(lex_take(p->lx, ',', &more));
    } while (more);
    return OK;
}

Status def_deeper(DefParser *p) {
    if (++p->depth <= MAX_DEPTH) return OK;
    return lex_fail(p->lx, &p->lx->tok, "more than %d in one another",
                    MAX_DEPTH);
}

/* ---- expressions --------------------------------------------------------- */

static void expr_reach(Expr *e, const Expr *child) {
    if (child && child->depth >= e->depth) e->depth = child->depth + 1;
}

/* Ends an expression. */
static Status grown(DefParser *p, Expr *e) {
    expr_reach(e, e->a);
    expr_reach(e, e->b);
    expr_reach(e, e->c);
    for (int i = 0; i < e->args.len; i++) expr_reach(e, e->args.data[i]);
    for (int i = 0; i < e->keys.len; i++) expr_reach(e, e->keys.data[i].value);
    if (e->depth <= MAX_TREE) return OK;
    return lex_fail(p->lx, &p->lx->tok,
                    "more than %d operators in one expression", MAX_TREE);
}

static Expr *new_expr(DefParser *p, ExprKind kind) {
    Expr *e = NEW(p->a, Expr);
    e->kind = kind;
    e->line = p->lx->tok.line;
    e->col = p->lx->tok.col;
    return e;
}

/* [a, b, ..] or [a for name in list if c] */
static Status expr_parse_list(DefParser *p, Expr *e) {
    Lexer *lx = p->lx;
    bool more, is;
    TRY(lex_open(lx, '[', ']', &more));
    while (more) {
        const Expr *item;
        TRY(def_expr(p, &item));
        vec_push(p->a, &e->args, item);
        if (e->args.len == 1 && lex_is_word(lx, "for")) {
            e->kind = E_EACH;
            e->a = item;
            TRY(lex_next(lx));
            TRY(def_name(p, "the name of an element", &e->name));
            TRY(def_expect_word(p, "in"));
            TRY(def_binary(p, 0, &e->b));
            TRY(def_word(lx, "if", &is));
            if (is) TRY(def_binary(p, 0, &e->c));
            return lex_expect(lx, ']');
        }
        TRY(lex_more(lx, ']', &more));
    }
    return OK;
}

static Status unknown_callee(DefParser *p, const Token *at, const char *name) {
    char text[NEAR_TEXT];
    Near near = near_to(name);
    for (int i = 0; p->m && i < p->m->fns.len; i++)
        near_offer(&near, p->m->fns.data[i]->info.text);
    for (int i = 0; i < fn_table_count(); i++)
        near_offer(&near, fn_table_at(i)->info.text);
    for (int i = 0; i < NUM_OPS; i++)
        if (i != OP_CALL) near_offer(&near, op_info[i].text);
    return lex_fail(p->lx, at,
                    "'%.60s' is not an op or a function defined above%s", name,
                    near_text(&near, text));
}

static Status find_callee(DefParser *p, const Token *at, Expr *e) {
    size_t n = strlen(e->name);
    e->callee = CALLEE_BUILTIN;
    if ((e->builtin = fn_builtin(e->name)) >= 0) return OK;
    e->callee = CALLEE_FN;
    if ((e->fn = fn_table_find(p->m, e->name, n))) return OK;
    if (p->in_part && e->name == p->fn->info.text) {
        e->fn = p->fn;
        return OK;
    }
    e->callee = CALLEE_OP;
    if (op_from_text(e->name, n, &e->code) && e->code != OP_CALL) return OK;
    return unknown_callee(p, at, e->name);
}

static Status expr_parse_args(DefParser *p, const Token *at, Expr *e) {
    Lexer *lx = p->lx;
    bool more;
    TRY(find_callee(p, at, e));
    TRY(lex_open(lx, '(', ')', &more));
    while (more) {
        const Expr *value;
        Token name = lx->tok;
        TRY(def_expr(p, &value));
        if (lex_is(lx, '=')) {
            if (value->kind != E_NAME)
                return lex_fail(lx, &name, "an attribute's name expected");
            KeyArg key = {.name = value->name, .at = value};
            TRY(lex_next(lx));
            TRY(def_expr(p, &key.value));
            vec_push(p->a, &e->keys, key);
        } else {
            if (e->keys.len)
                return lex_fail(lx, &name, "operands come before attributes");
            vec_push(p->a, &e->args, value);
        }
        TRY(lex_more(lx, ')', &more));
    }
    return OK;
}

static Status parse_word(DefParser *p, Expr *e) {
    Lexer *lx = p->lx;
    Token at = lx->tok;
    if (lex_is_word(lx, "true") || lex_is_word(lx, "false")) {
        e->kind = E_BOOL;
        e->i = lex_is_word(lx, "true");
        return lex_next(lx);
    }
    if (lex_is_word(lx, "none")) {
        e->kind = E_NONE;
        return lex_next(lx);
    }
    if (lex_is_word(lx, "inf") || lex_is_word(lx, "nan")) {
        e->kind = E_FLOAT;
        return lex_expect_double(lx, &e->f);
    }
    TRY(def_name(p, "a value", &e->name));
    if (!lex_is(lx, '(')) return OK;
    e->kind = E_CALL;
    return expr_parse_args(p, &at, e);
}

Status def_primary(DefParser *p, const Expr **out) {
    Lexer *lx = p->lx;
    const char *text = lx->tok.text;
    bool whole = text[strspn(text, "0123456789")] == 0;
    Expr *e;
    if (lex_is(lx, '(')) {
        TRY(lex_next(lx));
        TRY(def_expr(p, out));
        return lex_expect(lx, ')');
    }
    *out = e = new_expr(p, E_NAME);
    if (lex_is(lx, '%')) {
        e->kind = E_VALUE;
        Token at = lx->tok;
        TRY(lex_again(lx, &at, false));
        e->name = lx->tok.text;
        lx->infix = true;
        return lex_next(lx);
    }
    if (lx->tok.kind == T_WORD) {
        TRY(parse_word(p, e));
        return grown(p, e);
    }
    if (lx->tok.kind == T_NUMBER) {
        e->kind = whole ? E_INT : E_FLOAT;
        return whole ? lex_expect_int(lx, &e->i) : lex_expect_double(lx, &e->f);
    }
    if (lx->tok.kind == T_STRING) {
        e->kind = E_STR;
        e->name = text;
        return lex_next(lx);
    }
    e->kind = E_LIST;
    if (!lex_is(lx, '[')) return lex_expected(lx, "a value");
    TRY(expr_parse_list(p, e));
    return grown(p, e);
}

static Status parse_unary(DefParser *p, const Expr **out) {
    if (lex_is(p->lx, '-')) {
        Expr *e = new_expr(p, E_NEG);
        *out = e;
        TRY(def_deeper(p));
        TRY(lex_next(p->lx));
        TRY(parse_unary(p, &e->a));
        p->depth--;
        return grown(p, e);
    }
    TRY(def_primary(p, out));
    while (lex_is(p->lx, '[') && p->lx->tok.line == p->lx->prev_line) {
        Expr *e = new_expr(p, E_INDEX);
        e->a = *out;
        *out = e;
        TRY(lex_next(p->lx));
        TRY(def_expr(p, &e->b));
        TRY(lex_expect(p->lx, ']'));
        TRY(grown(p, e));
    }
    return OK;
}

/* Binary operators, the loosest binding first. */
typedef struct Operator {
    int level;
    char ch; /* or */
    const char *word;
    BinaryOp op;
} Operator;

enum { NOT_LEVEL = 2, UNARY_LEVEL = 7 };

static const Operator operators[] = {{0, 0, "or", B_OR},
                                     {1, 0, "and", B_AND},
                                     {3, LEX_EQ, NULL, B_EQ},
                                     {3, LEX_NE, NULL, B_NE},
                                     {3, '<', NULL, B_LT},
                                     {3, LEX_LE, NULL, B_LE},
                                     {3, '>', NULL, B_GT},
                                     {3, LEX_GE, NULL, B_GE},
                                     {3, 0, "in", B_IN},
                                     {4, LEX_RANGE, NULL, B_RANGE},
                                     {5, '+', NULL, B_ADD},
                                     {5, '-', NULL, B_SUB},
                                     {6, '*', NULL, B_MUL},
                                     {6, '/', NULL, B_DIV},
                                     {6, LEX_FLOORDIV, NULL, B_FLOORDIV},
                                     {6, '%', NULL, B_MOD},
                                     {6, '@', NULL, B_MATMUL}};

/* A line that begins with % is a node in IR. */
static const Operator *operator_at(const Lexer *lx, int level) {
    if (lex_is(lx, '%') && lx->tok.line != lx->prev_line) return NULL;
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        const Operator *o = &operators[i];
        if (o->level == level &&
            (o->word ? lex_is_word(lx, o->word) : lex_is(lx, o->ch)))
            return o;
    }
    return NULL;
}

Status def_binary(DefParser *p, int level, const Expr **out) {
    if (level == UNARY_LEVEL) return parse_unary(p, out);
    if (level == NOT_LEVEL && lex_is_word(p->lx, "not")) {
        Expr *e = new_expr(p, E_NOT);
        *out = e;
        TRY(lex_next(p->lx));
        TRY(def_binary(p, NOT_LEVEL + 1, &e->a));
        return grown(p, e);
    }
    TRY(def_binary(p, level + 1, out));
    for (const Operator *o; (o = operator_at(p->lx, level));) {
        Expr *e = new_expr(p, E_BINARY);
        e->op = o->op;
        e->a = *out;
        *out = e;
        TRY(lex_next(p->lx));
        TRY(def_binary(p, level + 1, &e->b));
        TRY(grown(p, e));
    }
    return OK;
}

Status def_expr(DefParser *p, const Expr **out) {
    TRY(def_deeper(p));
    TRY(def_binary(p, 0, out));
    if (lex_is_word(p->lx, "if") && p->lx->tok.line == p->lx->prev_line) {
        TRY(lex_next(p->lx));
        Expr *e = new_expr(p, E_COND);
        e->a = *out;
        *out = e;
        TRY(def_binary(p, 0, &e->c));
        TRY(def_expect_word(p, "else"));
        TRY(def_expr(p, &e->b));
        TRY(grown(p, e));
    }
    p->depth--;
    return OK;
}
