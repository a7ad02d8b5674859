/* SPDX-License-Identifier: Apache-2.0 */
/* formula.c: see formula.h. */
#include "ir/fn/formula.h"

#include <stdio.h>
#include <string.h>

#include "ir/fn/run.h"

static Status read_formula(Lexer *lx, Arena *a, Formula *f) {
    bool more = true;
    TRY(lex_again(lx, &lx->tok, true));
    TRY(parse_model_expr(lx, a, NULL, &f->whole));
    if (lex_is_word(lx, "where"))
        TRY(lex_next(lx));
    else
        more = false;
    while (more) {
        KeyArg part;
        TRY(parse_model_expr(lx, a, NULL, &part.at));
        part.name = part.at->name;
        TRY(lex_expect(lx, '='));
        TRY(parse_model_expr(lx, a, NULL, &part.value));
        vec_push(a, &f->parts, part);
        TRY(lex_take(lx, ',', &more));
    }
    return lx->tok.kind == T_EOF ? OK : lex_expected(lx, "the end");
}

Formula formula_read(const char *text) {
    static Arena *a;
    Formula f = {0};
    Diag d = {0};
    Lexer lx;
    if (!a) a = arena_new(); /* lives as long as the process */
    fn_library_read();
    Status s = lex_start(&lx, &d, "formula", text, strlen(text));
    if (s == OK) s = read_formula(&lx, a, &f);
    if (s != OK) fputs(d.text.data, stderr);
    ASSERT(s == OK && "the formula can be read");
    return f;
}

static Val meaning(Run *r, const FormulaName *n) {
    const Attr *a = &n->attr;
    if (n->kind == FORMULA_VALUE) return val_tensor(n->value);
    if (n->kind == FORMULA_NUMBER) return val_float(n->number);
    switch (attr_get(a->key)->kind) {
    case ATTR_INT: return val_int(a->u.i);
    case ATTR_FLOAT: return val_float(a->u.f);
    case ATTR_STR: return (Val){.kind = V_STR, .s = a->u.s};
    case ATTR_INTS: return val_ints(r, a->u.ints.v, a->u.ints.n);
    }
    return (Val){0};
}

ValueId formula_make(Builder *b, const Expr *e, const FormulaName *names, int n,
                     DType d) {
    static const Fn no_function;
    char msg[MSG_TEXT] = "";
    Run r = {0};
    ValueId out = NO_VALUE;
    FnCall call = {.fn = &no_function};
    run_open(&r, &call, b, msg);
    if (d == DT_F64) r.wide = DT_F64;
    for (int i = 0; i < n; i++) {
        run_bind(&r, names[i].name, meaning(&r, &names[i]));
        if (names[i].kind == FORMULA_VALUE &&
            value_dtype(b->g, names[i].value) == DT_F64)
            r.wide = DT_F64;
    }
    Status s = run_value(&r, e, &out);
    if (s == OK) out = make_rounded(&r, out, d);
    arena_free(r.a);
    if (s != OK) fprintf(stderr, "graph %s: %s\n", b->g->name, msg);
    ASSERT(s == OK && "the formula can be made");
    return out;
}
