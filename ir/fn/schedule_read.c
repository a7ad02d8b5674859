/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_read.c: reads a schedule of the learning rate, the last function of
   a text:
     def NAME(lr, i, KEY ..; KEY = DEFAULT, ..) -> rate class none { .. }
   lr is the rate that the optimizer has, i the number of successful steps so
   far. All operands are numbers in f64. */
#include "ir/fn/parse_fn.h"
#include "ir/fn/schedule.h"

static Status check_form(Lexer *lx, const Token *at, const Fn *f) {
    static const char form[] =
        "a schedule is def NAME(lr, i; KEY = 0.5) -> rate class none { .. }";
    bool numbers = true;
    for (int i = 0; i < f->operands.len; i++)
        numbers &= f->operands.data[i].kind == FO_FLOAT &&
                   !f->operands.data[i].optional;
    if (f->layer || f->onnx)
        return lex_fail(lx, at, "'%.60s' has no class; %s", f->info.text, form);
    if (f->operands.len < 2 || !numbers)
        return lex_fail(lx, at,
                        "'%.60s' takes no learning rate and number of steps; "
                        "%s",
                        f->info.text, form);
    if (f->results.len != 1)
        return lex_fail(lx, at, "'%.60s' gives %d results, not one; %s",
                        f->info.text, f->results.len, form);
    for (int i = 0; i < f->attrs.len; i++) {
        const FnAttr *a = &f->attrs.data[i];
        if ((a->kind != FA_FLOAT && a->kind != FA_INT) || !a->dflt)
            return lex_fail(lx, at,
                            "key '%.60s' of '%.60s' is not a number with a "
                            "default; %s",
                            a->name, f->info.text, form);
    }
    return OK;
}

Status schedule_read(Module *m, Diag *d, const char *file, const char *text,
                     size_t n, const Fn **out) {
    Lexer lx;
    Fn *f = NULL;
    Token at;
    fn_library_read();
    TRY(lex_start(&lx, d, file, text, n));
    while (lx.tok.kind != T_EOF) {
        at = lx.tok;
        if (!lex_is_word(&lx, "def")) return lex_expected(&lx, "'def'");
        TRY(parse_def(&lx, m->arena, m, &f));
        vec_push(m->arena, &m->fns, f);
    }
    if (!f) return lex_fail(&lx, &lx.tok, "the text defines no schedule");
    *out = f;
    return check_form(&lx, &at, f);
}
