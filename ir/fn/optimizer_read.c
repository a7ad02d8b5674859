/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer_read.c: reads optimizers and wrappers (optimizer.h).

   Statements that a definition leaves out are added to its body: old values
   are kept under names that no text can contain, and at the end every result
   is where(finite, new, old). */
#include "ir/fn/optimizer.h"

#include <string.h>

#include "ir/graph/fn_table.h"
#include "ir/fn/parse_fn.h"
#include "ir/fn/run.h"

/* ---- statements that are added ------------------------------------------- */

static Expr *made_expr(DefParser *p, ExprKind kind, Str name) {
    Expr *e = NEW(p->a, Expr);
    e->kind = kind;
    e->name = name;
    e->line = p->fn->line;
    e->col = 1;
    return e;
}

static Stmt made_assign(DefParser *p, Str name, const Expr *value) {
    Stmt s = {.kind = S_ASSIGN, .line = p->fn->line, .value = value};
    vec_push(p->a, &s.names, name);
    return s;
}

static Str old_name(Str name) { return internf("old %s", name); }
static Str finite_name(void) { return intern("all finite"); }

/* name = where(finite, name, old name) */
static Stmt optimizer_guarded(DefParser *p, Str name) {
    Expr *e = made_expr(p, E_CALL, intern("where"));
    e->callee = CALLEE_OP;
    e->code = OP_WHERE;
    vec_push(p->a, &e->args, made_expr(p, E_NAME, finite_name()));
    vec_push(p->a, &e->args, made_expr(p, E_NAME, name));
    vec_push(p->a, &e->args, made_expr(p, E_NAME, old_name(name)));
    return made_assign(p, name, e);
}

/* The same for state. What replaces a missing entry makes no node: p, or 0 of
   f64, which p is not. */
static Stmt guarded_state(DefParser *p, const OptimizerState *state) {
    Stmt s = {.kind = S_IF, .line = p->fn->line};
    Str name = state->name;
    Expr *e = made_expr(p, E_CALL, intern("present"));
    e->callee = CALLEE_BUILTIN;
    e->builtin = F_present;
    vec_push(p->a, &e->args, made_expr(p, E_NAME, old_name(name)));
    s.value = e;
    vec_push(p->a, &s.body, optimizer_guarded(p, name));
    Str parameter = p->fn->operands.data[0].name;
    Expr *missing = state->dtype == DT_F64 ? made_expr(p, E_FLOAT, NULL)
                                           : made_expr(p, E_NAME, parameter);
    vec_push(p->a, &s.other, made_assign(p, name, missing));
    return s;
}

static void keep_old(DefParser *p, Block *b, Str name) {
    vec_push(p->a, b,
             made_assign(p, old_name(name), made_expr(p, E_NAME, name)));
}

static void add_guards(DefParser *p, const Optimizer *o) {
    Str parameter = p->fn->operands.data[0].name;
    Block *b = &p->fn->body.block, all = {0};
    keep_old(p, &all, parameter);
    for (int i = 0; i < o->states.len; i++)
        keep_old(p, &all, o->states.data[i].name);
    for (int i = 0; i < b->len; i++) vec_push(p->a, &all, b->data[i]);
    vec_push(p->a, &all, optimizer_guarded(p, parameter));
    for (int i = 0; i < o->states.len; i++)
        vec_push(p->a, &all, guarded_state(p, &o->states.data[i]));
    *b = all;
}

/* ---- the header ---------------------------------------------------------- */

/* A default is a number that needs no other key or operand, within the bounds
   of its key. Without `from` it may be negative. */
static Status check_default(DefParser *p, const Token *at, const FnAttr *a) {
    Graph *g = graph_new(module_new(p->a, ""), "default");
    char msg[MSG_TEXT];
    Attr x;
    if (fn_default(p->fn, g, NULL, 0, a, &x, msg))
        return lex_fail(p->lx, at, "the default of '%.60s' is not a number: %s",
                        a->name, msg);
    double v = a->kind == FA_FLOAT ? x.u.f : (double)x.u.i;
    double least = a->lo > 0 ? a->lo : -1e38;
    if (v >= least && v <= a->hi && a->lo <= a->hi) return OK;
    return lex_fail(p->lx, at, "the default %g of '%.60s' is not in [%g, %g]",
                    v, a->name, a->lo, a->hi);
}

static Status parse_keys(DefParser *p, Optimizer *o) {
    Lexer *lx = p->lx;
    Fn *f = p->fn;
    bool more;
    TRY(lex_take(lx, ';', &more));
    while (more) {
        Token at = lx->tok;
        TRY(def_attribute(p));
        FnAttr *a = &f->attrs.data[f->attrs.len - 1];
        if ((a->kind != FA_FLOAT && a->kind != FA_INT && a->kind != FA_BOOL) ||
            !a->dflt)
            return lex_fail(lx, &at,
                            "a key is a number or a bool, with a default");
        TRY(def_bounds(p, a));
        if (p->m) TRY(check_default(p, &at, a));
        if (!strcmp(a->name, "lr")) {
            if (a->kind != FA_FLOAT)
                return lex_fail(lx, &at, "lr is a number such as 0.001");
            o->lr = *a;
            f->attrs.len--;
            f->info.nattr--;
        }
        TRY(lex_take(lx, ',', &more));
    }
    if (!o->lr.name == (o->role != ROLE_OPTIMIZER)) return OK;
    return lex_fail(lx, &lx->tok,
                    o->lr.name ? "a wrapper has no key lr: it is that of the "
                                 "optimizer, which once (lr, t) reads"
                               : "an optimizer has a key lr");
}

/* Reads `before` or `after`; the parser of the title passes one word. */
static Status parse_role(Lexer *lx, Optimizer *o) {
    if (!lex_is_word(lx, "wrapper")) return OK;
    TRY(lex_next(lx));
    o->role = lex_is_word(lx, "before") ? WRAPPER_BEFORE : WRAPPER_AFTER;
    if (o->role == WRAPPER_BEFORE || lex_is_word(lx, "after")) return OK;
    return lex_expected(lx, "'before' or 'after'");
}

static Status parse_title(DefParser *p, Optimizer *o) {
    Lexer *lx = p->lx;
    bool comma;
    TRY(parse_role(lx, o));
    TRY(def_title(p, "the optimizer's name"));
    TRY(lex_expect(lx, '('));
    Token at = lx->tok;
    TRY(def_operand(p));
    TRY(lex_take(lx, ',', &comma));
    if (comma) TRY(def_operand(p));
    for (int i = 0; i < p->fn->operands.len; i++)
        comma &= !p->fn->operands.data[i].optional &&
                 p->fn->operands.data[i].kind == FO_FLOAT;
    if (!comma)
        return lex_fail(lx, &at,
                        o->role == WRAPPER_AFTER
                            ? "the operands are a parameter and its value "
                              "before the optimizer's step"
                            : "the operands are a parameter and its gradient");
    TRY(parse_keys(p, o));
    return lex_expect(lx, ')');
}

static Status parse_state(DefParser *p, Optimizer *o) {
    OptimizerState s = {.dtype = DT_F32};
    Lexer *lx = p->lx;
    bool taken;
    Token at = lx->tok;
    TRY(def_name(p, "the state's name", &s.name));
    const Fn *f = p->fn;
    bool used = s.name == o->lr.name;
    if (o->role == WRAPPER_BEFORE)
        return lex_fail(lx, &at, "a wrapper before the gradient has no state");
    for (int i = 0; i < f->operands.len; i++)
        used |= f->operands.data[i].name == s.name;
    for (int i = 0; i < f->attrs.len; i++)
        used |= f->attrs.data[i].name == s.name;
    for (int i = 0; i < o->states.len; i++)
        used |= o->states.data[i].name == s.name;
    if (used) return lex_fail(lx, &at, "'%.60s' is there already", s.name);
    if (!strcmp(s.name, "average"))
        return lex_fail(lx, &at,
                        "'average' is the state of --ema and --swa; give this "
                        "one another name");
    TRY(lex_take(lx, ':', &taken));
    if (taken) TRY(lex_expect_dtype(lx, &s.dtype));
    if (lex_is(lx, '[')) TRY(def_primary(p, &s.shape));
    if (!strcmp(s.name, OPTIMIZER_EVALUATED) && (s.shape || s.dtype != DT_F32))
        return lex_fail(lx, &at,
                        "'evaluated' stands in for the parameter: it is f32 "
                        "and has no shape of its own");
    TRY(lex_take(lx, '=', &taken));
    if (taken) TRY(def_number(lx, &s.initial));
    TRY(def_word(lx, "if", &taken));
    if (taken) TRY(def_expr(p, &s.when));
    vec_push(p->a, &o->states, s);
    return OK;
}

/* ---- `once` -------------------------------------------------------------- */

/* The names of lr, t and the results; if this part is missing, lr is f32.
 */
static Status parse_once(DefParser *p, const Optimizer *o, Fn *f) {
    Lexer *lx = p->lx;
    Names in = {0}, out = {0};
    bool given;
    TRY(def_word(lx, "once", &given));
    Token at = lx->tok;
    if (given && o->role == WRAPPER_BEFORE)
        return lex_fail(lx, &at, "a wrapper before the gradient has no once");
    if (given) {
        TRY(lex_expect(lx, '('));
        TRY(def_names(p, "the name of the learning rate", &in));
        TRY(lex_expect(lx, ')'));
        if (!lex_is(lx, LEX_ARROW)) return lex_expected(lx, "'->'");
        TRY(lex_next(lx));
        TRY(def_names(p, "a result", &out));
        if (in.len != 2)
            return lex_fail(lx, &at,
                            "once takes the learning rate and the step's "
                            "number: once (lr, t)");
        TRY(def_open_block(p, &f->body.block));
        TRY(lex_next(lx));
    } else {
        vec_push(p->a, &in, intern("lr"));
        vec_push(p->a, &in, intern("t"));
        if (o->lr.name) vec_push(p->a, &out, o->lr.name);
    }
    for (int i = 0; i < 2; i++)
        def_add_operand(f, (FnOperand){in.data[i], FO_FLOAT, false});
    for (int i = 0; i < out.len; i++)
        def_add_result(f, (FnResult){out.data[i], false, DT_F32});
    return OK;
}

/* ---- totals -------------------------------------------------------------- */

static bool is_total(const Stmt *s) {
    const Expr *e = s->value;
    return s->kind == S_ASSIGN && e->kind == E_CALL &&
           e->callee == CALLEE_BUILTIN && e->builtin == F_total;
}

/* A function without operands and body, for another part of the definition;
   at: what asks for it. */
static Status new_part(DefParser *p, const Token *at, Str name, Fn **out) {
    const Fn *of = p->fn;
    Fn *f = *out = NEW(p->a, Fn);
    *f = (Fn){.arena = of->arena,
              .file = of->file,
              .line = at->line,
              .attrs = of->attrs,
              .info = of->info,
              .text = ""};
    f->instances = NEW(of->arena, struct FnTable);
    f->info.text = internf("%s_%s", of->info.text, name);
    f->info.in_min = f->info.in_max = f->info.out_min = f->info.out_max = 0;
    if (!fn_table_find(p->m, f->info.text, strlen(f->info.text))) return OK;
    return lex_fail(p->lx, at,
                    "'%.60s' of optimizer %.60s makes a function %.60s, which "
                    "exists already; choose another name",
                    name, of->info.text, f->info.text);
}

static bool optimizer_has_name(const Names *n, Str name) {
    bool any = false;
    for (int i = 0; i < n->len; i++) any |= n->data[i] == name;
    return any;
}

static bool assigns(const Block *b, Str name) {
    bool any = false;
    for (int i = 0; i < b->len; i++) {
        const Stmt *s = &b->data[i];
        any |= optimizer_has_name(&s->names, name) || assigns(&s->body, name) ||
               assigns(&s->other, name);
    }
    return any;
}

/* Whether an operand, a key, a state, one of the first `once` results of that
   part, or an earlier total has that name. */
static bool optimizer_is_taken(const Fn *f, const Optimizer *o, int once,
                               Str name) {
    bool used = false;
    for (int i = 0; i < f->operands.len; i++)
        used |= f->operands.data[i].name == name;
    for (int i = 0; i < f->attrs.len; i++)
        used |= f->attrs.data[i].name == name;
    for (int i = 0; i < o->states.len; i++)
        used |= o->states.data[i].name == name;
    for (int i = 0; i < once; i++)
        used |= o->once->results.data[i].name == name;
    for (int i = 0; i < o->totals.len; i++)
        used |= o->totals.data[i]->results.data[0].name == name;
    return used;
}

static Status check_once(DefParser *p, const Optimizer *o) {
    for (int i = 0; i < o->once->results.len; i++) {
        Str name = o->once->results.data[i].name;
        Token at = lex_token_at(p->lx, o->once->line, 1);
        if (optimizer_is_taken(p->fn, o, i, name))
            return lex_fail(p->lx, &at, "'%.60s' is there already", name);
    }
    return OK;
}

/* The body gives the parameter a value; `once` each of its results, but lr,
   which has the step's. */
static Status check_assigned(DefParser *p, const Optimizer *o, const Fn *once) {
    Str parameter = p->fn->operands.data[0].name;
    Token at = lex_token_at(p->lx, p->fn->line, 1);
    if (!assigns(&p->fn->body.block, parameter))
        return lex_fail(p->lx, &at,
                        "the body of '%.60s' assigns no value to '%.60s'; end "
                        "it with %.60s = ..",
                        p->fn->info.text, parameter, parameter);
    at = lex_token_at(p->lx, once->line, 1);
    for (int i = 0; i < once->results.len; i++) {
        Str name = once->results.data[i].name;
        if (name != o->lr.name && !assigns(&once->body.block, name))
            return lex_fail(p->lx, &at,
                            "once assigns no value to its result '%.60s'",
                            name);
    }
    return OK;
}

/* The function of total s, whose body begins with the lines before it. */
static Status add_total(DefParser *p, Optimizer *o, const Stmt *s,
                        const Block *before) {
    Token at = lex_token_at(p->lx, s->line, s->col);
    if (s->names.len != 1 || s->value->args.len != 1 || s->value->keys.len)
        return lex_fail(p->lx, &at, "a total is NAME = total(x)");
    Str name = s->names.data[0];
    Fn *f;
    if (optimizer_is_taken(p->fn, o, o->once->results.len, name) ||
        assigns(before, name) || name == intern("once"))
        return lex_fail(p->lx, &at, "'%.60s' is there already", name);
    TRY(new_part(p, &at, name, &f));
    Expr *sum = made_expr(p, E_CALL, intern("total_of"));
    sum->line = s->value->line;
    sum->col = s->value->col;
    sum->callee = CALLEE_FN;
    sum->fn = fn_table_find(NULL, "total_of", strlen("total_of"));
    vec_push(p->a, &sum->args, s->value->args.data[0]);
    for (int i = 0; i < before->len; i++)
        vec_push(p->a, &f->body.block, before->data[i]);
    vec_push(p->a, &f->body.block, made_assign(p, name, sum));
    def_add_result(f, (FnResult){name, false, DT_F64});
    vec_push(p->a, &o->totals, f);
    return OK;
}

/* Replaces the lines that are totals by functions of their own. */
static Status take_totals(DefParser *p, Optimizer *o) {
    Block *body = &p->fn->body.block, rest = {0};
    for (int i = 0; i < body->len; i++) {
        const Stmt *s = &body->data[i];
        if (is_total(s))
            TRY(add_total(p, o, s, &rest));
        else
            vec_push(p->a, &rest, *s);
    }
    *body = rest;
    return OK;
}

/* ---- the whole ----------------------------------------------------------- */

/* The operands of the update, or of total number `totals`, behind p and g. */
static void add_operands(const Optimizer *o, Fn *f, int totals) {
    def_add_operand(f, (FnOperand){finite_name(), FO_ANY, false});
    for (int i = 0; i < o->once->results.len; i++)
        def_add_operand(
            f, (FnOperand){o->once->results.data[i].name, FO_FLOAT, false});
    for (int i = 0; i < totals; i++)
        def_add_operand(f, (FnOperand){o->totals.data[i]->results.data[0].name,
                                       FO_FLOAT, false});
    for (int i = 0; i < o->states.len; i++)
        def_add_operand(f, (FnOperand){o->states.data[i].name, FO_ANY, true});
}

static void finish_part(const Optimizer *o, Fn *f) {
    f->body.given = true;
    f->info.amp = AMP_NONE;
    f->info.torch = TORCH_PROMOTE;
    f->optimizer = o;
}

static Status optimizer_finish(DefParser *p, Optimizer *o, Fn *once) {
    Fn *f = p->fn;
    o->once = once;
    o->update = f;
    TRY(check_once(p, o));
    TRY(take_totals(p, o));
    TRY(check_assigned(p, o, once));
    if (MAX_FN_OPERANDS < 3 + once->results.len + o->totals.len + o->states.len)
        return lex_fail(p->lx, &p->lx->tok,
                        "more than %d results of once, totals and state",
                        MAX_FN_OPERANDS - 3);
    for (int i = 0; i < o->totals.len; i++) {
        Fn *total = (Fn *)o->totals.data[i];
        for (int k = 0; k < 2; k++) def_add_operand(total, f->operands.data[k]);
        add_operands(o, total, i);
        total->whole = true;
        finish_part(o, total);
    }
    add_operands(o, f, o->totals.len);
    def_add_result(f, (FnResult){f->operands.data[0].name, false, NUM_DTYPES});
    for (int i = 0; i < o->states.len; i++) {
        bool wide = o->states.data[i].dtype == DT_F64; /* else p's: f32 */
        def_add_result(f, (FnResult){o->states.data[i].name, false,
                                     wide ? DT_F64 : NUM_DTYPES});
    }
    add_guards(p, o);
    f->whole = true;
    finish_part(o, once);
    finish_part(o, f);
    return OK;
}

Status parse_optimizer(Lexer *lx, Arena *a, const Module *m,
                       const Fn **update) {
    DefParser p = {.lx = lx, .a = a, .m = m, .fn = def_new(lx, a)};
    Fn *f = p.fn, *once;
    Optimizer *o = NEW(a, Optimizer);
    Token title = lx->tok;
    size_t start = title.at;
    bool more;
    lx->infix = true;
    TRY(parse_title(&p, o));
    TRY(def_word(lx, "source", &more));
    if (more) TRY(lex_expect_string(lx, &o->source));
    TRY(def_word(lx, "state", &more));
    while (more) {
        TRY(parse_state(&p, o));
        TRY(lex_take(lx, ',', &more));
        if (!more) TRY(def_word(lx, "state", &more));
    }
    TRY(new_part(&p, &title, intern("once"), &once));
    TRY(parse_once(&p, o, once));
    TRY(def_open_block(&p, &f->body.block));
    f->size = lx->tok.at + 1 - start;
    f->text = arena_dup(a, lx->text + start, f->size);
    TRY(optimizer_finish(&p, o, once));
    for (int i = 0; m && i < m->fns.len; i++)
        vec_push(a, &o->helpers, m->fns.data[i]);
    lx->infix = false;
    *update = f;
    return lex_next(lx);
}

Status optimizer_read(Module *m, Diag *d, const char *file, const char *text,
                      size_t n, const Fn **out) {
    Lexer lx;
    *out = NULL;
    fn_library_read();
    TRY(lex_start(&lx, d, file, text, n));
    while (lx.tok.kind != T_EOF) {
        const Fn *update = NULL;
        Fn *f;
        bool def = lex_is_word(&lx, "def");
        if (!def && !optimizer_begins(&lx))
            return lex_expected(&lx, "'def', 'optimizer' or 'wrapper'");
        if (*out)
            return lex_fail(&lx, &lx.tok,
                            "a file has one optimizer or wrapper, at its end");
        if (def) {
            TRY(parse_def(&lx, m->arena, m, &f));
            vec_push(m->arena, &m->fns, f);
        } else {
            TRY(parse_optimizer(&lx, m->arena, m, &update));
        }
        *out = update;
    }
    return *out ? OK
                : lex_fail(&lx, &lx.tok,
                           "the text defines no optimizer and no wrapper");
}
