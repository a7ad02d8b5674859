/* SPDX-License-Identifier: Apache-2.0 */
/* model.c: the parts of models that are not functions: symbols, variables and
   their initial values, scopes, regions, layers from files. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ir/fn/model.h"
#include "ir/fn/run.h"
#include "ir/graph/init.h"

/* ---- the model ----------------------------------------------------------- */

void model_open(Model *e, Lexer *lx, Module *m, const TextOptions *opt) {
    *e = (Model){.lx = lx, .m = m, .file = lx->file, .opt = opt};
    e->fn = NEW(m->arena, Fn);
    e->fn->layer = true;
    e->fn->file = lx->file;
    e->fn->info.text = "model";
}

void model_begin(Model *e, Graph *g) {
    static const FnCall nothing = {0};
    FnCall *call = arena_dup(e->m->arena, &nothing, sizeof nothing);
    call->fn = e->fn;
    model_close(e);
    e->batch = NULL;
    e->b = (Builder){.g = g};
    e->top = NEW(e->m->arena, Run);
    e->top->work = &e->work;
    e->top->model = e;
    e->top->scope = NEW(e->m->arena, Scope);
    e->top->scope->prefix = intern("");
    run_open(e->top, call, &e->b, e->msg);
}

void model_close(Model *e) {
    if (e->top) arena_free(e->top->a);
    e->top = NULL;
}

/* Returns file:line:col: in Linear of h.0.fc1, and the source line. */
static void show_frame(Model *e, const Frame *f) {
    Lexer own = {.diag = e->lx->diag, .text = f->fn->text, .n = f->fn->size};
    bool ours = f->fn->file == e->file;
    Lexer *lx = ours ? e->lx : &own;
    Token at = lex_token_at(lx, f->line - (ours ? 0 : f->fn->line - 1), f->col);
    int n = (int)strlen(f->prefix);
    fail_note(lx->diag, (Loc){f->fn->file, .line = f->line, .col = f->col},
              "in %s%s%.*s", f->fn->info.text, n ? " of " : "", n ? n - 1 : 0,
              f->prefix);
    lex_show(lx, &at);
}

/* Reports a mistake at the model's own line, followed by the calls that led
   there. */
static Status told(Model *e, Status s, int line, int col) {
    if (s == OK) return OK;
    run_failed_at(e->top, line, col);
    const Frame *f = &e->failed.data[e->failed.len - 1];
    Token at = lex_token_at(e->lx, f->line, f->col);
    lex_fail(e->lx, &at, "%s", e->msg);
    while (f-- > e->failed.data) show_frame(e, f);
    return ERR_USER;
}

Status model_run(Model *e, const Stmt *s) {
    Block one = {.data = (Stmt *)s, .len = 1, .cap = 1};
    return told(e, run_block(e->top, &one), s->line, s->col);
}

Status model_value(Model *e, const Expr *x, ValueId *out) {
    return told(e, run_value(e->top, x, out), x->line, x->col);
}

/* ---- symbols ------------------------------------------------------------- */

static Symbol *find_symbol(Model *e, Str name) {
    for (int i = 0; i < e->symbols.len; i++)
        if (e->symbols.data[i].name == name) return &e->symbols.data[i];
    return NULL;
}

Symbol *model_declare(Model *e, Str name, int64_t value) {
    Symbol s = {.name = name, .value = value};
    if (find_symbol(e, name)) return NULL;
    for (int i = 0; i < e->opt->ndims; i++) {
        const DimBind *b = &e->opt->dims[i];
        if (b->axis >= 0 || b->name != name) continue;
        s.value = b->value;
        s.given = true;
    }
    vec_push(e->m->arena, &e->symbols, s);
    return &e->symbols.data[e->symbols.len - 1];
}

/* An unknown name that --dim gives a value becomes a symbol. */
static Symbol *symbol_of(Model *e, Str name) {
    Symbol *s = find_symbol(e, name);
    for (int i = 0; i < e->opt->ndims && !s; i++)
        if (e->opt->dims[i].axis < 0 && e->opt->dims[i].name == name)
            s = model_declare(e, name, -1);
    return s;
}

bool model_symbol(Model *e, Str name, int64_t *value) {
    const Symbol *s = symbol_of(e, name);
    if (s) *value = s->value;
    return s && s->value >= 0;
}

static Status bind_batch(Model *e, Str input, const Stmt *type) {
    const TextOptions *o = e->opt;
    if ((!o->batch && !o->batch_else) || e->batch || !type->parts.len)
        return OK;
    const Expr *x = type->parts.data[0];
    Token at = lex_token_at(e->lx, type->line, type->col);
    e->batch = intern("");
    if (x->kind != E_NAME)
        return o->batch ? lex_fail(e->lx, &at,
                                   "--batch-sizes %" PRId64 ": the first "
                                   "dimension of '%.60s' is not a symbol",
                                   o->batch, input)
                        : OK;
    Symbol *s = symbol_of(e, x->name);
    if (!s) s = model_declare(e, x->name, -1);
    e->batch = x->name;
    if (!o->batch && s->value >= 0) return OK;
    s->value = o->batch ? o->batch : o->batch_else;
    s->given = true;
    return OK;
}

Status model_bind_axes(Model *e, Str input, const Stmt *type) {
    TRY(bind_batch(e, input, type));
    for (int i = 0; i < e->opt->ndims; i++) {
        const DimBind *b = &e->opt->dims[i];
        if (b->axis < 0 || b->name != input) continue;
        const Expr *x =
            b->axis < type->parts.len ? type->parts.data[b->axis] : NULL;
        Token at = lex_token_at(e->lx, type->line, type->col);
        if (!x || x->kind != E_NAME)
            return lex_fail(e->lx, &at,
                            "--dim %s:%d=%" PRId64
                            ": that dimension is not a symbol",
                            input, b->axis, b->value);
        Symbol *s = symbol_of(e, x->name);
        if (!s) s = model_declare(e, x->name, -1);
        if (e->opt->batch && x->name == e->batch) continue;
        if (s->given && s->value != b->value)
            return lex_fail(e->lx, &at,
                            "dimension '%s' is bound to %" PRId64
                            " and to %" PRId64,
                            s->name, s->value, b->value);
        s->value = b->value;
        s->given = true;
    }
    return OK;
}

Status model_check_dims(Model *e) {
    StrBuf names = {0};
    Status st = OK;
    for (int i = 0; i < e->symbols.len && sb_put_next(&names, i); i++)
        sb_puts(&names, e->symbols.data[i].name);
    sb_put_more(&names, e->symbols.len);
    for (int i = 0; i < e->opt->ndims && st == OK; i++) {
        const DimBind *b = &e->opt->dims[i];
        Loc loc = {.file = e->file};
        bool input = false;
        for (int k = 0; b->axis >= 0 && k < e->m->graphs.len; k++)
            input |= is_value(graph_find_name(e->m->graphs.data[k], b->name));
        if (b->axis >= 0 ? input : find_symbol(e, b->name) != NULL) continue;
        if (b->axis >= 0)
            fail(e->lx->diag, loc, "--dim %s:%d: the model has no such input",
                 b->name, b->axis);
        else
            fail(e->lx->diag, loc,
                 "--dim %s: the text has no such symbol; its symbols: %s",
                 b->name, names.data ? names.data : "(none)");
        st = ERR_USAGE;
    }
    sb_free(&names);
    return st;
}

bool model_lookup(Run *r, Str name, Val *out) {
    ValueId v = NO_VALUE;
    int64_t n;
    if (r == r->model->top) v = graph_find_name(r->b->g, name);
    if (is_value(v)) {
        *out = val_tensor(v);
        return true;
    }
    if (!model_symbol(r->model, name, &n)) return false;
    *out = val_int(n);
    return true;
}

/* ---- types --------------------------------------------------------------- */

static Status run_type(Run *r, const Stmt *s, TypeId *out) {
    int64_t dim[MAX_RANK], known;
    for (int i = 0; i < s->parts.len; i++) {
        const Expr *x = s->parts.data[i];
        Val v;
        if (x->kind == E_NAME && !run_lookup(r, x->name) &&
            !model_symbol(r->model, x->name, &known))
            return run_fail(r, x,
                            "dimension '%s' has no value; --dim %s=64 gives "
                            "one",
                            x->name, x->name);
        TRY(run_eval(r, x, &v));
        TRY(run_want_int(r, x, &v, &dim[i]));
        if (dim[i] < 0)
            return run_fail(r, x, "a dimension of %" PRId64, dim[i]);
    }
    *out = type_make(s->dtype, s->parts.len, dim);
    return out->i ? OK : run_fail(r, NULL, "the type is too large");
}

Status model_type(Model *e, const Stmt *s, TypeId *out) {
    return told(e, run_type(e->top, s, out), s->line, s->col);
}

/* ---- variables ----------------------------------------------------------- */

enum { NUMBERS = 2 };

/* Fan-out and fan-in of a weight [out, in, ..]: the number of elements
   computed from one input, and read for one output. */
static Status fans(Run *r, const Stmt *s, const Type *t, double *in,
                   double *out) {
    double window = 1;
    if (t->rank < 2)
        return run_fail(r, s->value,
                        "weights of rank 2 and more begin so, [out, in, ..]");
    for (int i = 2; i < t->rank; i++) window *= (double)t->dim[i];
    *in = fmax(1, (double)t->dim[1] * window);
    *out = fmax(1, (double)t->dim[0] * window);
    return OK;
}

static Status run_init(Run *r, const Stmt *s, Str name, TypeId t, Init *init) {
    Model *e = r->model;
    const Type *type = type_get(t);
    double range[NUMBERS] = {0}, in, out;
    Generator gen = GEN_UNIFORM;
    Val v = {.kind = V_INT};
    if (s->value) TRY(run_eval(r, s->value, &v));
    if (val_is_number(&v)) {
        int64_t i = 0, exact = INT64_C(1) << 53;
        if (!dtype_is_float(type->dtype))
            TRY(run_want_element(r, s->value, &v, type->dtype, &i));
        if (i > exact || i < -exact)
            return run_fail(r, s->value, "%" PRId64 " is beyond 2^53", i);
        init->fill = val_number(&v);
        return dtype_is_float(type->dtype)
                   ? run_want_number(r, s->value, &v, type->dtype, &init->fill)
                   : OK;
    }
    if (v.kind != V_INIT)
        return run_wants(r, s->value, "a number or an initialiser", &v);
    if (v.i == F_zeros || v.i == F_ones) {
        init->fill = v.i == F_ones;
        return OK;
    }
    if (!dtype_is_float(type->dtype))
        return run_fail(r, s->value, "random numbers are for floating point");
    if (v.i == F_kaiming || v.i == F_xavier) {
        TRY(fans(r, s, type, &in, &out));
        gen = v.i == F_kaiming ? GEN_NORMAL : GEN_UNIFORM;
        range[1] = sqrt(6 / (in + out));
        range[0] = v.i == F_kaiming ? sqrt(2 / in) : -range[1];
    } else {
        gen = v.i == F_normal ? GEN_NORMAL : GEN_UNIFORM;
        for (int i = 0; i < v.n; i++)
            TRY(run_want_number(r, s->value, &v.list[i], type->dtype,
                                &range[i]));
    }
    uint64_t seed = hash_bytes((uint64_t)e->opt->seed, name, strlen(name));
    init_draw(gen, seed >> 1, range, init);
    return OK;
}

static Status var_options(Run *r, const Stmt *s, Var *v) {
    for (int i = 0; i < s->keys.len; i++) {
        const KeyArg *k = &s->keys.data[i];
        double *to = !strcmp(k->name, "lr_scale")       ? &v->lr_scale
                     : !strcmp(k->name, "weight_decay") ? &v->weight_decay
                                                        : NULL;
        Val x;
        if (!to) return run_fail(r, k->value, "lr_scale or weight_decay");
        TRY(run_eval(r, k->value, &x));
        if (!val_is_number(&x)) return run_wants(r, k->value, "a number", &x);
        TRY(run_want_number(r, k->value, &x, DT_F32, to));
        if (!(*to >= 0 && *to < INFINITY))
            return run_fail(r, k->value, "%s is %g", k->name, *to);
    }
    return OK;
}

static Status run_var(Run *r, const Stmt *s) {
    Str local = s->names.data[0];
    Init init = {0};
    ValueId value;
    TypeId t;
    TRY(run_type(r, s, &t));
    Var v = {.name = internf("%s%s", r->scope->prefix, local),
             .kind = s->var,
             .type = t,
             .stored_dtype = s->dtype,
             .lr_scale = 1,
             .weight_decay = (double)NAN};
    if (module_find_name(r->model->m, v.name) < 0) {
        TRY(run_init(r, s, v.name, t, &init));
        TRY(var_options(r, s, &v));
        v.fill = init.fill;
        v.draw = init.draw;
        v.init_text = init.text;
    }
    TRY(model_add_var(r, &v, &value));
    run_bind(r, local, val_tensor(value));
    return OK;
}

static Status run_write(Run *r, const Stmt *s) {
    Graph *g = r->b->g;
    const Val *v = run_lookup(r, s->names.data[0]);
    Val named;
    Write w = {.bucket = 0};
    if (!v && model_lookup(r, s->names.data[0], &named)) v = &named;
    if (!v || v->kind != V_TENSOR || value_get(g, v->t)->kind != VK_VAR)
        return run_fail(r, NULL, "'%.60s' is not a variable", s->names.data[0]);
    w.var = v->t;
    TRY(run_value(r, s->value, &w.value));
    if (value_get(g, w.var)->type.i != value_get(g, w.value)->type.i)
        return run_fail(r, s->value, "the variable is %s, the value %s",
                        TXT(value_type(g, w.var)), TXT(value_type(g, w.value)));
    return model_add_write(r, w);
}

/* ---- scopes and regions -------------------------------------------------- */

static Scope *inner_scope(Run *r, Str name) {
    Scope *s = NEW(r->a, Scope);
    s->prefix =
        *name ? internf("%s%s.", r->scope->prefix, name) : r->scope->prefix;
    return s;
}

Scope *model_call_scope(Run *r, const Fn *fn, Str name) {
    Scope *s = r->scope;
    if (name) return inner_scope(r, name);
    for (int i = 0; i < s->calls.len; i++) {
        Binding *b = &s->calls.data[i];
        if (b->name == fn->info.text)
            return inner_scope(r, internf("%s%" PRId64, b->name, ++b->val.i));
    }
    vec_push(r->a, &s->calls, (Binding){fn->info.text, val_int(1)});
    return inner_scope(r, fn->info.text);
}

static Status run_scope(Run *r, const Stmt *s) {
    Scope *around = r->scope;
    Val name;
    TRY(run_eval(r, s->value, &name));
    if (name.kind != V_STR) return run_wants(r, s->value, "text", &name);
    r->scope = inner_scope(r, name.s);
    TRY(run_block(r, &s->body));
    r->scope = around;
    return OK;
}

static Status run_region(Run *r, const Stmt *s) {
    Model *e = r->model;
    unsigned char amp = e->amp;
    int region = e->region;
    if (s->kind == S_CHECKPOINT)
        e->region = model_region(e);
    else
        e->amp = s->off ? 1 + AMP_FULL : 0;
    TRY(run_block(r, &s->body));
    e->amp = amp;
    e->region = region;
    return OK;
}

Status run_model_stmt(Run *r, const Stmt *s) {
    Status st;
    if (!r->model)
        return run_fail(r, NULL,
                        "variables and regions belong in models, not in an op");
    switch (s->kind) {
    case S_VAR: st = run_var(r, s); break;
    case S_WRITE: st = run_write(r, s); break;
    case S_SCOPE: st = run_scope(r, s); break;
    default: st = run_region(r, s); break;
    }
    if (st != OK) run_failed_at(r, s->line, s->col);
    return st;
}

void model_name(Run *r, uint32_t first, Str name, const Val *v) {
    Graph *g = r->b->g;
    if (v->kind != V_TENSOR) return;
    const Value *x = value_get(g, v->t);
    if (x->kind != VK_RESULT || x->def.i < first) return;
    Str full = internf("%s%s", r->scope->prefix, name);
    if (x->name != full) graph_rename(g, v->t, graph_unique_name(g, full));
}

/* ---- built-ins of models ------------------------------------------------- */

bool model_random(const Run *r, const Val *v) {
    if (!r->model || v->kind != V_TENSOR) return false;
    const Value *x = value_get(r->b->g, v->t);
    return x->kind == VK_VAR &&
           name_is_own(r->model->m->vars.data[x->var].name);
}

Status model_builtin(Run *r, const Expr *e, const Val *v, Val *out) {
    Val *list;
    bool random = e->builtin == F_rng || e->builtin == F_salt;
    if (!r->model && random)
        return run_fail(
            r, e,
            "%s() is for models and layers; a function with a class "
            "takes it: def f(x, rng: int; salt = 0), called "
            "f(x, rng(), salt=salt())",
            e->name);
    if (!r->model) return run_fail(r, e, "%s is for models", e->name);
    if (e->builtin == F_rng) {
        *out = val_tensor(model_random_state(r));
        return OK;
    }
    if (e->builtin == F_salt) {
        *out = val_int(r->model->salt++);
        return OK;
    }
    list = NEW_ARRAY(r->a, Val, NUMBERS);
    for (int i = 0; i < e->args.len; i++) list[i] = v[i];
    *out =
        (Val){.kind = V_INIT, .i = e->builtin, .list = list, .n = e->args.len};
    return OK;
}
