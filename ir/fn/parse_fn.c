/* SPDX-License-Identifier: Apache-2.0 */
/* parse_fn.c: the text of a definition to its tree (ast.h). */
#include "ir/base/near.h"
#include "ir/fn/parse_fn.h"
#include "ir/text/parse_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Limits on the nesting of expressions and blocks in the text, and on the
   depth of the tree, in which a chain of operators counts as nesting, too. */
enum { MAX_DEPTH = 64, MAX_TREE = 256 };

/* ---- words --------------------------------------------------------------- */

static Status take_word(DefParser *p, const char *word, bool *taken) {
    *taken = lex_is_word(p->lx, word);
    return *taken ? lex_next(p->lx) : OK;
}

static Status expect_word(DefParser *p, const char *word) {
    char what[16];
    if (lex_is_word(p->lx, word)) return lex_next(p->lx);
    snprintf(what, sizeof what, "'%s'", word);
    return lex_expected(p->lx, what);
}

static Status expect_arrow(DefParser *p) {
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

/* name, .. */
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

/* Enters one more expression or block; the caller decrements the depth
   afterwards. */
static Status deeper(DefParser *p) {
    if (++p->depth <= MAX_DEPTH) return OK;
    return lex_fail(p->lx, &p->lx->tok, "more than %d in one another",
                    MAX_DEPTH);
}

/* ---- expressions --------------------------------------------------------- */

static void reach(Expr *e, const Expr *child) {
    if (child && child->depth >= e->depth) e->depth = child->depth + 1;
}

/* Ends an expression. */
static Status grown(DefParser *p, Expr *e) {
    reach(e, e->a);
    reach(e, e->b);
    reach(e, e->c);
    for (int i = 0; i < e->args.len; i++) reach(e, e->args.data[i]);
    for (int i = 0; i < e->keys.len; i++) reach(e, e->keys.data[i].value);
    if (e->depth <= MAX_TREE) return OK;
    return lex_fail(p->lx, &p->lx->tok,
                    "more than %d operators in one expression", MAX_TREE);
}

static Status parse_binary(DefParser *p, int level, const Expr **out);

static Expr *new_expr(DefParser *p, ExprKind kind) {
    Expr *e = NEW(p->a, Expr);
    e->kind = kind;
    e->line = p->lx->tok.line;
    e->col = p->lx->tok.col;
    return e;
}

/* [a, b, ..] or [a for name in list if c] */
static Status parse_list(DefParser *p, Expr *e) {
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
            TRY(expect_word(p, "in"));
            TRY(parse_binary(p, 0, &e->b));
            TRY(take_word(p, "if", &is));
            if (is) TRY(parse_binary(p, 0, &e->c));
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
    for (int i = 0; i < fn_std_count(); i++)
        near_offer(&near, fn_std_at(i)->info.text);
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
    if ((e->fn = fn_find(p->m, e->name, n))) return OK;
    if (p->in_part && e->name == p->fn->info.text) {
        e->fn = p->fn;
        return OK;
    }
    e->callee = CALLEE_OP;
    if (op_from_text(e->name, n, &e->code) && e->code != OP_CALL) return OK;
    return unknown_callee(p, at, e->name);
}

static Status parse_args(DefParser *p, const Token *at, Expr *e) {
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
    return parse_args(p, &at, e);
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
    TRY(parse_list(p, e));
    return grown(p, e);
}

static Status parse_unary(DefParser *p, const Expr **out) {
    if (lex_is(p->lx, '-')) {
        Expr *e = new_expr(p, E_NEG);
        *out = e;
        TRY(deeper(p));
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

static Status parse_binary(DefParser *p, int level, const Expr **out) {
    if (level == UNARY_LEVEL) return parse_unary(p, out);
    if (level == NOT_LEVEL && lex_is_word(p->lx, "not")) {
        Expr *e = new_expr(p, E_NOT);
        *out = e;
        TRY(lex_next(p->lx));
        TRY(parse_binary(p, NOT_LEVEL + 1, &e->a));
        return grown(p, e);
    }
    TRY(parse_binary(p, level + 1, out));
    for (const Operator *o; (o = operator_at(p->lx, level));) {
        Expr *e = new_expr(p, E_BINARY);
        e->op = o->op;
        e->a = *out;
        *out = e;
        TRY(lex_next(p->lx));
        TRY(parse_binary(p, level + 1, &e->b));
        TRY(grown(p, e));
    }
    return OK;
}

Status def_expr(DefParser *p, const Expr **out) {
    TRY(deeper(p));
    TRY(parse_binary(p, 0, out));
    if (lex_is_word(p->lx, "if") && p->lx->tok.line == p->lx->prev_line) {
        TRY(lex_next(p->lx));
        Expr *e = new_expr(p, E_COND);
        e->a = *out;
        *out = e;
        TRY(parse_binary(p, 0, &e->c));
        TRY(expect_word(p, "else"));
        TRY(def_expr(p, &e->b));
        TRY(grown(p, e));
    }
    p->depth--;
    return OK;
}

/* ---- statements ---------------------------------------------------------- */

static Status parse_stmts(DefParser *p, Block *b);

/* Behind the `if`. */
static Status parse_if(DefParser *p, Stmt *s) {
    bool more;
    s->kind = S_IF;
    TRY(parse_binary(p, 0, &s->value));
    TRY(parse_stmts(p, &s->body));
    TRY(take_word(p, "else", &more));
    if (!more) return OK;
    TRY(take_word(p, "if", &more));
    if (!more) return parse_stmts(p, &s->other);
    Stmt inner = {0};
    TRY(deeper(p));
    TRY(parse_if(p, &inner));
    p->depth--;
    vec_push(p->a, &s->other, inner);
    return OK;
}

/* dtype "[" expression, .. "]" */
static Status parse_dims(DefParser *p, Stmt *s) {
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
    TRY(parse_dims(p, s));
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

static Status parse_stmt(DefParser *p, Stmt *s) {
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
    TRY(take_word(p, "if", &is));
    if (is) return parse_if(p, s);
    TRY(take_word(p, "for", &is));
    if (is) {
        Str name;
        s->kind = S_FOR;
        TRY(def_name(p, "the loop's name", &name));
        vec_push(p->a, &s->names, name);
        TRY(expect_word(p, "in"));
        TRY(parse_binary(p, 0, &s->value));
        return parse_stmts(p, &s->body);
    }
    TRY(take_word(p, "require", &is));
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

/* Reads up to the closing brace, which is not consumed. */
Status def_open_block(DefParser *p, Block *b) {
    TRY(deeper(p));
    TRY(lex_expect(p->lx, '{'));
    while (!lex_is(p->lx, '}')) {
        Stmt s = {0};
        TRY(parse_stmt(p, &s));
        vec_push(p->a, b, s);
    }
    p->depth--;
    return OK;
}

static Status parse_stmts(DefParser *p, Block *b) {
    TRY(def_open_block(p, b));
    return lex_next(p->lx);
}

/* ---- the header ---------------------------------------------------------- */

/* Reads the name of an operand, attribute or result; `?` and `:` follow it. */
static Status parse_member(DefParser *p, const char *what, Str *name,
                           bool *optional, bool *typed) {
    const Fn *f = p->fn;
    Token at = p->lx->tok;
    bool used = false;
    TRY(def_name(p, what, name));
    for (int i = 0; i < f->operands.len; i++)
        used |= f->operands.data[i].name == *name;
    for (int i = 0; i < f->attrs.len; i++)
        used |= f->attrs.data[i].name == *name;
    for (int i = 0; i < f->results.len; i++)
        used |= f->results.data[i].name == *name;
    if (used) return lex_fail(p->lx, &at, "'%.60s' exists already", *name);
    TRY(lex_take(p->lx, '?', optional));
    return lex_take(p->lx, ':', typed);
}

/* Parses one of several words after a colon. */
static Status parse_choice(DefParser *p, const char *const *words, int n,
                           const char *what, int *out) {
    for (*out = 0; *out < n; ++*out)
        if (lex_is_word(p->lx, words[*out])) return lex_next(p->lx);
    return lex_expected(p->lx, what);
}

Status def_operand(DefParser *p) {
    static const char *const kinds[] = {"float", "int", "any"};
    FnOperand o = {.kind = FO_FLOAT};
    Token at = p->lx->tok;
    Fn *f = p->fn;
    bool typed;
    int kind;
    TRY(parse_member(p, "an operand", &o.name, &o.optional, &typed));
    if (typed) {
        TRY(parse_choice(p, kinds, 3, "float, int or any", &kind));
        o.kind = (FnOperandKind)kind;
    }
    if (f->operands.len && !o.optional &&
        f->operands.data[f->operands.len - 1].optional)
        return lex_fail(p->lx, &at, "optional operands come last");
    if (f->operands.len == MAX_FN_OPERANDS)
        return lex_fail(p->lx, &at, "more than %d operands", MAX_FN_OPERANDS);
    def_add_operand(f, o);
    return OK;
}

/* The kind of an attribute, from its default. */
static Status kind_of_default(DefParser *p, const Token *at, const Expr *e,
                              FnAttrKind *out) {
    const Expr *x = e && e->kind == E_NEG ? e->a : e;
    switch (x ? x->kind : E_NAME) {
    case E_INT: *out = FA_INT; return OK;
    case E_FLOAT: *out = FA_FLOAT; return OK;
    case E_STR: *out = FA_STR; return OK;
    case E_BOOL: *out = FA_BOOL; return OK;
    case E_LIST: *out = FA_INTS; return OK;
    default:
        return lex_fail(p->lx, at, "the attribute needs a kind: NAME: int");
    }
}

Status def_attribute(DefParser *p) {
    static const char *const kinds[] = {"int",  "bool", "float", "str",
                                        "ints", "axis", "axes"};
    static const AttrKind stored[] = {ATTR_INT,  ATTR_INT, ATTR_FLOAT, ATTR_STR,
                                      ATTR_INTS, ATTR_INT, ATTR_INTS};
    FnAttr a = {0};
    Token at = p->lx->tok;
    OpInfo *info = &p->fn->info;
    bool typed, given;
    int kind = -1;
    TRY(parse_member(p, "an attribute", &a.name, &a.optional, &typed));
    if (typed)
        TRY(parse_choice(p, kinds, 7,
                         "int, bool, float, str, ints, axis or axes", &kind));
    TRY(lex_take(p->lx, '=', &given));
    if (given) TRY(def_expr(p, &a.dflt));
    a.kind = (FnAttrKind)kind;
    if (kind < 0) TRY(kind_of_default(p, &at, a.dflt, &a.kind));
    if (info->nattr == MAX_OP_ATTRS)
        return lex_fail(p->lx, &at, "more than %d attributes", MAX_OP_ATTRS);
    a.key = attr_key(a.name, stored[a.kind]);
    info->attrs[info->nattr++] = a.key;
    vec_push(p->a, &p->fn->attrs, a);
    return OK;
}

Status def_word(Lexer *lx, const char *word, bool *taken) {
    *taken = lex_is_word(lx, word);
    return *taken ? lex_next(lx) : OK;
}

Status def_number(Lexer *lx, double *out) {
    bool minus;
    TRY(lex_take(lx, '-', &minus));
    TRY(lex_expect_double(lx, out));
    if (minus) *out = -*out;
    return OK;
}

Status def_bounds(DefParser *p, FnAttr *a) {
    Lexer *lx = p->lx;
    bool taken;
    a->hi = 1e38; /* numbers become f32 */
    TRY(def_word(lx, "from", &taken));
    if (taken) TRY(def_number(lx, &a->lo));
    TRY(def_word(lx, "to", &taken));
    if (!taken) {
        TRY(def_word(lx, "below", &taken));
        a->open = taken;
    }
    if (taken) TRY(def_number(lx, &a->hi));
    return lx->tok.kind == T_STRING ? lex_expect_string(lx, &a->doc) : OK;
}

void def_add_result(Fn *f, FnResult r) {
    vec_push(f->arena, &f->results, r);
    f->info.out_max++;
    f->info.out_min += !r.optional;
}

void def_add_operand(Fn *f, FnOperand o) {
    vec_push(f->arena, &f->operands, o);
    f->info.in_max++;
    f->info.in_min += !o.optional;
}

static Status parse_result(DefParser *p) {
    FnResult r = {.dtype = NUM_DTYPES};
    Lexer *lx = p->lx;
    bool typed;
    TRY(parse_member(p, "a result", &r.name, &r.optional, &typed));
    if (typed) {
        if (!lex_is_dtype(lx, &r.dtype)) return lex_expected(lx, "a dtype");
        TRY(lex_next(lx));
    }
    def_add_result(p->fn, r);
    return OK;
}

Status def_title(DefParser *p, const char *what) {
    Lexer *lx = p->lx;
    Str name;
    OpCode op;
    DType d;
    TRY(lex_next(lx)); /* def, optimizer */
    Token at = lx->tok;
    TRY(def_name(p, what, &name));
    size_t n = strlen(name);
    if (op_from_text(name, n, &op) || dtype_from_text(name, n, &d) ||
        fn_builtin(name) >= 0)
        return lex_fail(lx, &at, "'%.60s' is a word of the language", name);
    /* a model's own function may be named like a loss */
    const Fn *other = fn_find(p->m, name, n);
    if (other && !(p->m && other->loss && other == fn_find(NULL, name, n)))
        return lex_fail(lx, &at, "a function '%.60s' exists already%s", name,
                        other == fn_find(NULL, name, n)
                            ? ", in ampc's library: call it, or choose "
                              "another name"
                            : "");
    p->fn->info.text = name;
    return OK;
}

static Status parse_header(DefParser *p) {
    Lexer *lx = p->lx;
    bool more;
    int class, torch;
    TRY(def_title(p, "the function's name"));
    p->fn->layer = p->m && lex_is(lx, '=');
    if (p->fn->layer) return parse_import(lx, &p->fn->onnx, &p->fn->size);
    TRY(lex_expect(lx, '('));
    for (more = !lex_is(lx, ')') && !lex_is(lx, ';'); more;) {
        TRY(def_operand(p));
        TRY(lex_take(lx, ',', &more));
    }
    TRY(lex_take(lx, ';', &more));
    while (more) {
        TRY(def_attribute(p));
        if (!p->m) TRY(def_bounds(p, &p->fn->attrs.data[p->fn->attrs.len - 1]));
        TRY(lex_take(lx, ',', &more));
    }
    TRY(lex_expect(lx, ')'));
    TRY(expect_arrow(p));
    do {
        TRY(parse_result(p));
        TRY(lex_take(lx, ',', &more));
    } while (more);
    p->fn->layer = lex_is(lx, '{');
    if (p->fn->layer) return OK;
    TRY(expect_word(p, "class"));
    TRY(parse_choice(p, amp_class_text, 7,
                     "low, full, fullout, widest, follow, any or none",
                     &class));
    p->fn->info.amp = (AmpClass) class;
    p->fn->info.torch = class == AMP_LOW ? TORCH_LOW : TORCH_PROMOTE;
    if (!p->m && lex_is_word(lx, "torch")) {
        TRY(lex_next(lx));
        TRY(parse_choice(p, torch_rule_text, 5,
                         "low, wide, result, promote or first", &torch));
        p->fn->info.torch = (TorchRule)torch;
    }
    if (p->m) return OK;
    bool loss;
    TRY(def_word(lx, "whole", &p->fn->whole));
    TRY(def_word(lx, "loss", &loss));
    return loss ? def_name(p, "what --loss calls it", &p->fn->loss) : OK;
}

/* ---- parts --------------------------------------------------------------- */

/* Reads the parts after the body. The definition's closing brace is read in
   the lexer mode of the text after it. */
static Status parse_parts(DefParser *p) {
    Fn *f = p->fn;
    Lexer *lx = p->lx;
    f->body.given = true;
    TRY(def_open_block(p, &f->body.block));
    p->in_part = true;
    for (;;) {
        f->size = lx->tok.at + 1;
        lx->infix = false;
        TRY(lex_next(lx));
        lx->infix = true;
        FnPart *part = lex_is_word(lx, "grad")        ? &f->grad
                       : lex_is_word(lx, "inference") ? &f->inference
                       : lex_is_word(lx, "samples")   ? &f->samples
                                                      : NULL;
        if (!part || part->given) break;
        if (f->layer)
            return lex_fail(lx, &lx->tok,
                            "only functions with a class have a '%s'",
                            lx->tok.text);
        part->given = true;
        TRY(lex_next(lx));
        Token at = lx->tok;
        if (part == &f->grad) {
            TRY(lex_expect(lx, '('));
            TRY(def_names(p, "the gradient of a result", &part->in));
            TRY(lex_expect(lx, ')'));
            TRY(expect_arrow(p));
            TRY(def_names(p, "the gradient of an operand", &part->out));
        }
        if (part->in.len > f->results.len || part->out.len > f->operands.len)
            return lex_fail(lx, &at,
                            "%d results and %d operands have gradients",
                            f->results.len, f->operands.len);
        TRY(def_open_block(p, &part->block));
    }
    lx->infix = false;
    return OK;
}

Fn *def_new(Lexer *lx, Arena *a) {
    Fn *f = NEW(a, Fn);
    f->arena = a;
    f->file = lx->file;
    f->line = lx->tok.line;
    f->instances = NEW(a, struct FnTable);
    f->info.kind = KIND_COMPOSITE;
    f->info.type_text = f->info.grad_text = "body";
    f->info.expr = "0";
    return f;
}

Status parse_def(Lexer *lx, Arena *a, const Module *m, Fn **out) {
    DefParser p = {.lx = lx, .a = a, .m = m, .fn = def_new(lx, a)};
    size_t start = lx->tok.at;
    Fn *f = p.fn;
    lx->infix = true;
    TRY(parse_header(&p));
    Token behind = lx->tok;
    if (f->onnx)
        TRY(lex_again(lx, &behind, false));
    else
        TRY(parse_parts(&p));
    f->size -= start;
    f->text = arena_dup(a, lx->text + start, f->size);
    if (f->grad.given) f->info.grad_text = "own";
    *out = f;
    return OK;
}

/* ---- lines of a model ---------------------------------------------------- */

static DefParser line_parser(Lexer *lx, Arena *a, const Module *m, Fn *fn) {
    fn->layer = true;
    return (DefParser){.lx = lx, .a = a, .m = m, .fn = fn};
}

Status parse_model_line(Lexer *lx, Arena *a, const Module *m, Stmt *out) {
    Fn fn = {0};
    DefParser p = line_parser(lx, a, m, &fn);
    *out = (Stmt){0};
    return parse_stmt(&p, out);
}

Status parse_model_expr(Lexer *lx, Arena *a, const Module *m,
                        const Expr **out) {
    Fn fn = {0};
    DefParser p = line_parser(lx, a, m, &fn);
    return def_expr(&p, out);
}

Status parse_model_type(Lexer *lx, Arena *a, const Module *m, Stmt *out) {
    Fn fn = {0};
    DefParser p = line_parser(lx, a, m, &fn);
    *out = (Stmt){0};
    return parse_dims(&p, out);
}

/* ---- rules --------------------------------------------------------------- */

/* `x, y` or `xs ..`; the gradient of x is dx. */
static Status parse_rule_names(DefParser *p, bool *all, Names *names,
                               Names *grads) {
    TRY(def_names(p, "a name", names));
    TRY(lex_take(p->lx, LEX_RANGE, all));
    for (int i = 0; i < names->len; i++)
        vec_push(p->a, grads, internf("d%s", names->data[i]));
    return OK;
}

Status parse_rule(Lexer *lx, Arena *a, Fn **out, OpCode *ops, int *n) {
    static const FnAttrKind kinds[] = {[ATTR_INT] = FA_INT,
                                       [ATTR_FLOAT] = FA_FLOAT,
                                       [ATTR_INTS] = FA_INTS,
                                       [ATTR_STR] = FA_STR};
    Fn *f = *out = NEW(a, Fn);
    DefParser p = {.lx = lx, .a = a, .fn = f};
    Names in = {0}, res = {0};
    lx->infix = true;
    *n = 0;
    do {
        TRY(lex_next(lx));
        Str op = lx->tok.text;
        if (lx->tok.kind != T_WORD || *n == MAX_RULE_OPS ||
            !op_from_text(op, strlen(op), &ops[(*n)++]))
            return lex_expected(lx, "an op");
        TRY(lex_next(lx));
    } while (lex_is(lx, ','));
    *f = (Fn){.info = op_info[*ops], .rule = true, .arena = a};
    f->file = lx->file;
    f->grad.given = true;
    TRY(lex_expect(lx, '('));
    TRY(parse_rule_names(&p, &f->all_in, &in, &f->grad.out));
    TRY(lex_expect(lx, ')'));
    TRY(expect_arrow(&p));
    TRY(parse_rule_names(&p, &f->all_out, &res, &f->grad.in));
    for (int i = 0; i < in.len; i++)
        vec_push(a, &f->operands, (FnOperand){in.data[i], FO_ANY, true});
    for (int i = 0; i < res.len; i++)
        vec_push(a, &f->results, (FnResult){res.data[i], true, NUM_DTYPES});
    for (int i = 0; i < f->info.nattr; i++) {
        AttrKey key = f->info.attrs[i];
        FnAttr x = {.name = intern(attr_get(key)->text),
                    .kind = kinds[attr_get(key)->kind],
                    .key = key,
                    .optional = true};
        vec_push(a, &f->attrs, x);
    }
    TRY(def_open_block(&p, &f->grad.block));
    lx->infix = false;
    return lex_next(lx);
}
