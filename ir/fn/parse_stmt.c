/* SPDX-License-Identifier: Apache-2.0 */
/* parse_stmt.c: the statements and blocks of a definition, and those that
   only models have (ast.h). */
#include "ir/fn/parse_fn.h"

static Status parse_stmts(DefParser *p, Block *b);

/* Behind the `if`. */
static Status parse_if(DefParser *p, Stmt *s) {
    bool more;
    s->kind = S_IF;
    TRY(def_binary(p, 0, &s->value));
    TRY(parse_stmts(p, &s->body));
    TRY(def_word(p->lx, "else", &more));
    if (!more) return OK;
    TRY(def_word(p->lx, "if", &more));
    if (!more) return parse_stmts(p, &s->other);
    Stmt inner = {0};
    TRY(def_deeper(p));
    TRY(parse_if(p, &inner));
    p->depth--;
    vec_push(p->a, &s->other, inner);
    return OK;
}

Status def_dims(DefParser *p, Stmt *s) {
    Lexer *lx = p->lx;
    bool more;
    if (!lex_is_dtype(lx, &s->dtype))
        return lex_expected(lx, "a type such as f32[2,3]");
    TRY(lex_next(lx));
    TRY(lex_open(lx, '[', ']', &more));
    while (more) {
        const Expr *dim;
        if (s->parts.len == MAX_RANK)
            return lex_fail(lx, &lx->tok, "more than %d dimensions", MAX_RANK);
        TRY(def_expr(p, &dim));
        vec_push(p->a, &s->parts, dim);
        TRY(lex_more(lx, ']', &more));
    }
    return OK;
}

/* Parses the rest of a line that begins with `param` or the like. */
static Status parse_variable(DefParser *p, Stmt *s) {
    Lexer *lx = p->lx;
    bool more = false;
    Str name;
    s->kind = S_VAR;
    TRY(def_name(p, "the variable's name", &name));
    vec_push(p->a, &s->names, name);
    TRY(lex_expect(lx, ':'));
    TRY(def_dims(p, s));
    TRY(lex_take(lx, '=', &more));
    if (more) TRY(def_expr(p, &s->value));
    if (!lex_is(lx, '{')) return OK;
    TRY(lex_open(lx, '{', '}', &more));
    while (more) {
        KeyArg k = {0};
        TRY(def_name(p, "an option", &k.name));
        TRY(lex_expect(lx, '='));
        TRY(def_expr(p, &k.value));
        vec_push(p->a, &s->keys, k);
        TRY(lex_more(lx, '}', &more));
    }
    return OK;
}

/* A word that begins a line of a model; assigned to, it is a name. */
static bool is_keyword(const Lexer *lx, const char *word) {
    char next = lex_behind(lx);
    return lex_is_word(lx, word) && next && next != '=' && next != ',';
}

static Status parse_model_stmt(DefParser *p, Stmt *s, bool *is) {
    Lexer *lx = p->lx;
    *is = true;
    for (int k = 0; k <= VAR_STATE; k++) {
        if (!is_keyword(lx, var_kind_text[k])) continue;
        s->var = (VarKind)k;
        TRY(lex_next(lx));
        return parse_variable(p, s);
    }
    if (is_keyword(lx, "write")) {
        Str name;
        s->kind = S_WRITE;
        TRY(lex_next(lx));
        TRY(def_name(p, "a variable", &name));
        vec_push(p->a, &s->names, name);
        TRY(lex_expect(lx, '='));
        return def_expr(p, &s->value);
    }
    if (is_keyword(lx, "scope")) {
        s->kind = S_SCOPE;
        TRY(lex_next(lx));
        TRY(def_expr(p, &s->value));
        return parse_stmts(p, &s->body);
    }
    if (is_keyword(lx, "autocast")) {
        s->kind = S_REGION;
        TRY(lex_next(lx));
        s->off = lex_is_word(lx, "off");
        if (!s->off && !lex_is_word(lx, "on"))
            return lex_fail(lx, &lx->tok, "autocast off or on");
        TRY(lex_next(lx));
        return parse_stmts(p, &s->body);
    }
    if (is_keyword(lx, "checkpoint")) {
        s->kind = S_CHECKPOINT;
        TRY(lex_next(lx));
        return parse_stmts(p, &s->body);
    }
    *is = false;
    return OK;
}

Status def_stmt(DefParser *p, Stmt *s) {
    Lexer *lx = p->lx;
    bool is;
    s->line = lx->tok.line;
    s->col = lx->tok.col;
    TRY(parse_model_stmt(p, s, &is));
    if (is && p->fn->layer) return OK;
    if (is) {
        Token at = lex_token_at(lx, s->line, s->col);
        return lex_fail(
            lx, &at,
            "a function with a class cannot have variables and regions");
    }
    TRY(def_word(lx, "if", &is));
    if (is) return parse_if(p, s);
    TRY(def_word(lx, "for", &is));
    if (is) {
        Str name;
        s->kind = S_FOR;
        TRY(def_name(p, "the loop's name", &name));
        vec_push(p->a, &s->names, name);
        TRY(def_expect_word(p, "in"));
        TRY(def_binary(p, 0, &s->value));
        return parse_stmts(p, &s->body);
    }
    TRY(def_word(lx, "require", &is));
    if (!is) {
        s->kind = S_ASSIGN;
        TRY(def_names(p, "a statement", &s->names));
        TRY(lex_expect(lx, '='));
        return def_expr(p, &s->value);
    }
    s->kind = S_REQUIRE;
    TRY(def_expr(p, &s->value));
    TRY(lex_expect(lx, ','));
    while (is) {
        const Expr *part;
        TRY(def_expr(p, &part));
        vec_push(p->a, &s->parts, part);
        TRY(lex_take(lx, ',', &is));
    }
    return OK;
}

Status def_open_block(DefParser *p, Block *b) {
    TRY(def_deeper(p));
    TRY(lex_expect(p->lx, '{'));
    while (!lex_is(p->lx, '}')) {
        Stmt s = {0};
        TRY(def_stmt(p, &s));
        vec_push(p->a, b, s);
    }
    p->depth--;
    return OK;
}

static Status parse_stmts(DefParser *p, Block *b) {
    TRY(def_open_block(p, b));
    return lex_next(p->lx);
}
