/* SPDX-License-Identifier: Apache-2.0 */
/* parse_fn.c: the text of a definition to its tree (ast.h): its header, the
   parts after its body, and gradient rules. */
#include "ir/graph/fn_table.h"
#include "ir/fn/parse_fn.h"

#include <stdlib.h>
#include <string.h>

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
    const Fn *other = fn_table_find(p->m, name, n);
    if (other &&
        !(p->m && other->loss && other == fn_table_find(NULL, name, n)))
        return lex_fail(lx, &at, "a function '%.60s' exists already%s", name,
                        other == fn_table_find(NULL, name, n)
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
    if (p->fn->layer) return lex_import(lx, &p->fn->onnx, &p->fn->size);
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
    TRY(def_expect_arrow(p));
    do {
        TRY(parse_result(p));
        TRY(lex_take(lx, ',', &more));
    } while (more);
    p->fn->layer = lex_is(lx, '{');
    if (p->fn->layer) return OK;
    TRY(def_expect_word(p, "class"));
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
            TRY(def_expect_arrow(p));
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
    f->info.call = &fn_calls;
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
    return def_stmt(&p, out);
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
    return def_dims(&p, out);
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
    TRY(def_expect_arrow(&p));
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
