/* SPDX-License-Identifier: Apache-2.0 */
/* parse.c: reads what print.c prints, and hand-written files: types may be
   left out where a rule knows them, initialisers may be generated
   (parse_data.c).

     file   = ["module" word [options]] (def | graph | model | dim | block)*
                                         def: fn/ast.h; block: blocks.c
     dim    = "dim" name ["=" integer], ..
     model  = "model" name "(" [name: type, ..] ")" "{" line* "}"
     graph  = "graph" word "(" [%x: type, ..] ")" ["on" target] ["arena" n]
              "{" line* "}"                             target: cpu, cuda
     line   = kind %x: type [= init] [options], ..    kind: param, buffer, ..
            | "const" %x: type = init
            | %a, .. = op operand, .. {attr=value, ..} : type, .. !flag
            | "group" kind ["beside" | "after"] [("if" | "unless") %a]
              "{" nodes "}"
            | "write" %var = operand
            | "return" [word=]operand, ..
            | a statement of fn/ast.h, also behind "return" [word=]
     type   = f32[2,3] [@offset] [@%variable]; in a model its dimensions are
              expressions, elsewhere numbers and symbols */
#include "ir/fn/optimizer.h"
#include "ir/text/parse_impl.h"
#include "ir/text/text.h"

#include <math.h>
#include <string.h>

/* ---- variables and constants --------------------------------------------- */

static Status parse_var_option(Parser *p, Var *v) {
    Lexer *lx = &p->lx;
    Token at = lx->tok;
    Str name;
    TRY(lex_expect_word(lx, &name, "an option"));
    TRY(lex_expect(lx, '='));
    if (strcmp(name, "lr_scale") == 0)
        return lex_expect_double(lx, &v->lr_scale);
    if (strcmp(name, "weight_decay") == 0)
        return lex_expect_double(lx, &v->weight_decay);
    if (strcmp(name, "why") == 0) return lex_expect_string(lx, &v->why);
    if (strcmp(name, "stored") == 0)
        return lex_expect_dtype(lx, &v->stored_dtype);
    return lex_fail(lx, &at, "lr_scale, stored, weight_decay or why");
}

/* Graphs of one file declare a variable alike; if a second declaration gives
   init and options, they must equal the first's. */
static Status redeclare(Parser *p, const Token *at, const Var *old,
                        const Var *v, bool has_init) {
    char buf[80];
    if (old->kind != v->kind || old->type.i != v->type.i)
        return lex_fail(&p->lx, at, "%s is a %s of type %s in another graph",
                        lex_describe(at, buf), var_kind_text[old->kind],
                        TXT(type_get(old->type)));
    bool same = !old->init == !v->init && old->init_text == v->init_text;
    if (same && old->init)
        same = !memcmp(old->init->data, v->init->data,
                       (size_t)type_bytes(type_get(old->type)));
    else if (same)
        same = !memcmp(&old->fill, &v->fill, sizeof v->fill);
    if (!has_init || same) return OK;
    return lex_fail(&p->lx, at, "%s begins otherwise in another graph",
                    lex_describe(at, buf));
}

static Status parse_var(Parser *p, VarKind kind) {
    Lexer *lx = &p->lx;
    Token at;
    Placed place;
    bool has_init, more = false;
    Init init = {0};
    TRY(parse_declared(p, &at, &place));
    Var v = {.name = at.text,
             .kind = kind,
             .type = place.type,
             .stored_dtype = type_get(place.type)->dtype,
             .lr_scale = 1,
             .weight_decay = (double)NAN};
    TRY(lex_take(lx, '=', &has_init));
    if (has_init) TRY(parse_init(p, v.type, false, &init));
    v.init = init.tensor;
    v.fill = init.fill;
    v.draw = init.draw;
    v.init_text = init.text;
    if (lex_is(lx, '{')) TRY(lex_open(lx, '{', '}', &more));
    while (more) {
        TRY(parse_var_option(p, &v));
        TRY(lex_more(lx, '}', &more));
    }
    int i = module_find_var(p->m, v.name);
    if (i >= 0) {
        TRY(redeclare(p, &at, &p->m->vars.data[i], &v, has_init));
    } else {
        i = module_var(p->m, kind, v.name, v.type, v.init, v.fill);
        p->m->vars.data[i] = v;
    }
    parse_put_place(p->g, graph_var(p->g, i), &place);
    return OK;
}

static Status parse_const(Parser *p) {
    Token at;
    Placed place;
    Init init;
    TRY(lex_next(&p->lx));
    TRY(parse_declared(p, &at, &place));
    TRY(lex_expect(&p->lx, '='));
    TRY(parse_init(p, place.type, true, &init));
    ValueId v = value_new(p->g, (Value){.name = at.text,
                                        .type = place.type,
                                        .kind = VK_CONST,
                                        .data = init.tensor,
                                        .init_text = init.text});
    parse_put_place(p->g, v, &place);
    return OK;
}

/* ---- effects ------------------------------------------------------------- */

static Status parse_write(Parser *p) {
    Write w = {.bucket = 0};
    int64_t bucket;
    Token at = p->lx.tok;
    TRY(parse_present(p, &w.var));
    if (value_get(p->g, w.var)->kind != VK_VAR)
        return lex_fail(&p->lx, &at, "only variables are written");
    TRY(lex_expect(&p->lx, '='));
    Token value = p->lx.tok;
    TRY(parse_present(p, &w.value));
    if (value_get(p->g, w.var)->type.i != value_get(p->g, w.value)->type.i)
        return lex_fail(&p->lx, &value, "the variable is %s, the value %s",
                        TXT(value_type(p->g, w.var)),
                        TXT(value_type(p->g, w.value)));
    if (lex_is_word(&p->lx, "bucket")) {
        TRY(lex_next(&p->lx));
        at = p->lx.tok;
        TRY(lex_expect_int(&p->lx, &bucket));
        if (bucket < 1 || bucket > INT32_MAX)
            return lex_fail(&p->lx, &at, "buckets are counted from 1");
        w.bucket = (int)bucket;
    }
    vec_push(p->m->arena, &p->g->writes, w);
    return OK;
}

/* A line of the language, from a token that was read as IR. */
static Status parse_infix(Parser *p, const Token *from) {
    Lexer *lx = &p->lx;
    Stmt s;
    TRY(lex_again(lx, from, true));
    TRY(parse_model_line(lx, p->m->arena, p->m, &s));
    TRY(model_run(&p->model, &s));
    Token next = lx->tok;
    return lex_again(lx, &next, false);
}

/* True if a number in the form of IR (2:i64) follows, and nothing after it;
   lx is in infix mode. */
static bool is_scalar(const Lexer *lx) {
    const char *text = lx->text + lx->tok.at, *end = lx->text + lx->n;
    if (text < end && *text == '-') text++;
    size_t n = (size_t)(end - text);
    bool word = n >= 3 && (!memcmp(text, "inf", 3) || !memcmp(text, "nan", 3));
    if (n && *text == '_') return lex_is_word(lx, "_");
    if (!word && !(n && *text >= '0' && *text <= '9')) return false;
    for (char e = 0; text < end; e = *text++)
        if (!strchr("+-", *text) ? !name_char(*text, 0) || *text == '/'
                                 : e != 'e' && e != 'E')
            break;
    while (text < end && (*text == ' ' || *text == '\t')) text++;
    return text == end || strchr(",}:#\r\n", *text);
}

static Status parse_output(Parser *p) {
    Lexer *lx = &p->lx;
    Token at = lx->tok, next;
    Output o = {0};
    const Expr *e;
    if (at.kind == T_WORD || at.kind == T_STRING) {
        TRY(lex_next(lx));
        if (lex_is(lx, '=')) {
            o.name = at.text;
            lx->infix = true;
            TRY(lex_next(lx));
            at = lx->tok;
        }
    }
    TRY(lex_again(lx, &at, true));
    if (is_scalar(lx)) {
        TRY(lex_again(lx, &at, false));
        TRY(parse_present(p, &o.value));
    } else {
        TRY(parse_model_expr(lx, p->m->arena, p->m, &e));
        TRY(model_value(&p->model, e, &o.value));
        if (!o.name && e->kind == E_NAME) o.name = e->name;
        next = lx->tok;
        TRY(lex_again(lx, &next, false));
    }
    if (!o.name) o.name = value_get(p->g, o.value)->name;
    if (!o.name) return lex_fail(lx, &at, "the output needs a name: name=..");
    if (is_value(graph_output(p->g, o.name)))
        return lex_fail(lx, &at, "an output '%.60s' exists already", o.name);
    vec_push(p->m->arena, &p->g->outputs, o);
    return OK;
}

/* ---- graphs and files ---------------------------------------------------- */

static Status parse_line(Parser *p);

/* autocast off { } marks all nodes in it with !full; autocast on { } with
   the op's class; checkpoint { } with !checkpoint=N, where the outermost
   block counts. */
static Status parse_region(Parser *p) {
    Lexer *lx = &p->lx;
    Model *e = &p->model;
    unsigned char amp = e->amp;
    int region = e->region;
    bool autocast = lex_is_word(lx, "autocast");
    if (p->regions == 64)
        return lex_fail(lx, &lx->tok, "regions are not deeper than 64");
    p->regions++;
    TRY(lex_next(lx));
    if (autocast) {
        bool off = lex_is_word(lx, "off");
        if (!off && !lex_is_word(lx, "on"))
            return lex_fail(lx, &lx->tok, "autocast off or on");
        TRY(lex_next(lx));
        e->amp = off ? 1 + AMP_FULL : 0;
    } else {
        e->region = model_region(e);
    }
    TRY(lex_expect(lx, '{'));
    while (!lex_is(lx, '}')) TRY(parse_line(p));
    e->amp = amp;
    e->region = region;
    p->regions--;
    return lex_next(lx);
}

static Status parse_line(Parser *p) {
    Lexer *lx = &p->lx;
    Token first = lx->tok;
    bool more = true;
    if (first.kind == T_NAME) return parse_node(p);
    for (int k = 0; k <= VAR_GRAD; k++) {
        if (!lex_is_word(lx, var_kind_text[k])) continue;
        TRY(lex_next(lx));
        if (lx->tok.kind != T_NAME) return parse_infix(p, &first);
        while (more) {
            TRY(parse_var(p, (VarKind)k));
            TRY(lex_take(lx, ',', &more));
        }
        return OK;
    }
    if (lex_is_word(lx, "const")) return parse_const(p);
    if (lex_is_word(lx, "group")) return parse_group(p);
    /* `checkpoint` may also be a name that is assigned to */
    if (lex_is_word(lx, "autocast") ||
        (lex_is_word(lx, "checkpoint") && lex_behind(lx) == '{'))
        return parse_region(p);
    if (lex_is_word(lx, "write")) {
        TRY(lex_next(lx));
        return lx->tok.kind == T_NAME ? parse_write(p) : parse_infix(p, &first);
    }
    if (first.kind != T_WORD) return lex_expected(lx, "a node or declaration");
    if (!lex_is_word(lx, "return")) return parse_infix(p, &first);
    TRY(lex_next(lx));
    for (more = !lex_is(lx, '}'); more;) {
        TRY(parse_output(p));
        TRY(lex_take(lx, ',', &more));
    }
    /* only the closing brace may follow, so the end needs no marker */
    return lex_is(lx, '}') ? OK : lex_expect(lx, '}');
}

static Status parse_body(Parser *p) {
    TRY(lex_expect(&p->lx, '{'));
    while (!lex_is(&p->lx, '}')) TRY(parse_line(p));
    TRY(lex_next(&p->lx));
    return verify_graph(p->g, STAGE_TYPED, p->lx.diag); /* outputs, writes */
}

static void start_graph(Parser *p, Str name) {
    p->g = graph_new(p->m, name);
    p->group = -1;
    model_begin(&p->model, p->g);
}

/* (x: f32[B,4], ..); all inputs are parsed before any is made, for --dim
   INPUT:AXIS */
static Status parse_inputs(Parser *p) {
    Lexer *lx = &p->lx;
    VEC(Stmt) inputs = {0};
    bool more;
    TRY(lex_open(lx, '(', ')', &more));
    while (more) {
        Stmt s;
        Token at = lx->tok;
        if (at.kind != T_WORD) return lex_expected(lx, "an input's name");
        TRY(lex_next(lx));
        TRY(lex_expect(lx, ':'));
        TRY(parse_model_type(lx, p->m->arena, p->m, &s));
        s.line = at.line;
        s.col = at.col;
        vec_push(p->m->arena, &s.names, at.text);
        TRY(model_bind_axes(&p->model, at.text, &s));
        vec_push(p->m->arena, &inputs, s);
        TRY(lex_more(lx, ')', &more));
    }
    for (int i = 0; i < inputs.len; i++) {
        const Stmt *s = &inputs.data[i];
        Str name = s->names.data[0];
        TypeId t;
        if (is_value(graph_find_value(p->g, name))) {
            Token at = lex_token_at(lx, s->line, s->col);
            return lex_fail(lx, &at, "'%.60s' is already defined", name);
        }
        TRY(model_type(&p->model, s, &t));
        graph_input(p->g, name, t);
    }
    return OK;
}

/* model NAME(x: f32[B,4]) { .. }: the graph that is trained. */
static Status parse_model_def(Parser *p) {
    Lexer *lx = &p->lx;
    Token at = lx->tok;
    Str name;
    size_t end;
    TRY(lex_again(lx, &at, true));
    TRY(lex_next(lx));
    TRY(lex_expect_word(lx, &name, "the model's name"));
    if (module_graph(p->m, FORWARD) || p->m->onnx)
        return lex_fail(lx, &at, "a file has one model");
    p->m->name = name;
    bool import = lex_is(lx, '=');
    if (import) {
        TRY(lex_import(lx, &p->m->onnx, &end));
    } else {
        start_graph(p, intern(FORWARD));
        TRY(parse_inputs(p));
    }
    at = lx->tok;
    TRY(lex_again(lx, &at, false));
    return import ? OK : parse_body(p);
}

/* Blocks belong to the model; an imported model has no graph here. */
static Status check_model(Parser *p) {
    Module *m = p->m;
    Graph *g = m->graphs.len == 1 ? m->graphs.data[0] : NULL;
    for (int i = 0; i < p->blocks.len; i++) {
        const Token *t = &p->blocks.data[i];
        if (t->text == m->name || (g && t->text == g->name)) continue;
        return lex_fail(&p->lx, t, "the file has no model '%.60s'", t->text);
    }
    if (m->onnx && m->graphs.len)
        return fail(p->lx.diag, (Loc){.file = m->file},
                    "a file that imports its model cannot have a graph");
    if (m->onnx) return OK;
    if (m->graphs.len) return model_check_dims(&p->model);
    return lex_fail(&p->lx, &p->lx.tok, "the file has no model");
}

/* dim B = 64, T */
static Status parse_dim(Parser *p) {
    Lexer *lx = &p->lx;
    bool more = true;
    TRY(lex_next(lx));
    while (more) {
        Token at = lx->tok;
        int64_t value = -1;
        bool given;
        if (!lex_is_plain(&at)) return lex_expected(lx, "a symbol's name");
        TRY(lex_next(lx));
        TRY(lex_take(lx, '=', &given));
        Token number = lx->tok;
        if (given) TRY(lex_expect_int(lx, &value));
        if (given && value < 0)
            return lex_fail(lx, &number, "a symbol must be 0 or more");
        if (!model_declare(&p->model, at.text, value))
            return lex_fail(lx, &at, "'%.60s' is already declared", at.text);
        TRY(lex_take(lx, ',', &more));
    }
    return OK;
}

static Status parse_graph(Parser *p) {
    Lexer *lx = &p->lx;
    Str name;
    bool more;
    if (!lex_is_word(lx, "graph"))
        return lex_fail(lx, &lx->tok,
                        "'graph', 'model', 'def', 'dim', 'train' or 'policy' "
                        "expected");
    TRY(lex_next(lx));
    Token at = lx->tok, input;
    TRY(lex_expect_word(lx, &name, "the graph's name"));
    start_graph(p, name);
    Graph *g = p->g;
    TRY(lex_open(lx, '(', ')', &more));
    while (more) {
        Placed place;
        TRY(parse_declared(p, &input, &place));
        ValueId v = value_new(
            g,
            (Value){.name = input.text, .type = place.type, .kind = VK_INPUT});
        parse_put_place(g, v, &place);
        vec_push(p->m->arena, &g->inputs, v);
        TRY(lex_more(lx, ')', &more));
    }
    if (lex_is_word(lx, "on")) {
        TRY(lex_next(lx));
        for (TargetKind t = TARGET_CPU; t < NUM_TARGETS; t++)
            if (lex_is_word(lx, target_text[t])) g->target = t;
        if (g->target == TARGET_ANY)
            return lex_fail(lx, &lx->tok, "cpu or cuda");
        TRY(lex_next(lx));
    }
    if (module_graph_on(p->m, name, g->target) != g)
        return lex_fail(lx, &at, "a graph of this name exists already");
    if (lex_is_word(lx, "arena")) {
        TRY(lex_next(lx));
        TRY(lex_expect_int(lx, &g->arena_bytes));
    }
    return parse_body(p);
}

static Status parse_module_option(Parser *p) {
    Lexer *lx = &p->lx;
    Token at = lx->tok, value;
    int64_t axis;
    Str name;
    TRY(lex_expect_word(lx, &name, "an option"));
    TRY(lex_expect(lx, '='));
    if (strcmp(name, "producer") == 0)
        return lex_expect_string(lx, &p->m->producer);
    if (strcmp(name, "class_axis") != 0)
        return lex_fail(lx, &at, "class_axis or producer");
    value = lx->tok;
    TRY(lex_expect_int(lx, &axis));
    if (axis < 0 || axis >= MAX_RANK)
        return lex_fail(lx, &value, "an axis is 0 to %d", MAX_RANK - 1);
    p->m->class_axis = (int)axis;
    return OK;
}

static Status parse_file(Parser *p) {
    Lexer *lx = &p->lx;
    bool more = false;
    fn_library_read();
    if (lex_is_word(lx, "module")) {
        TRY(lex_next(lx));
        TRY(lex_expect_word(lx, &p->m->name, "the module's name"));
        if (lex_is(lx, '{')) TRY(lex_open(lx, '{', '}', &more));
    }
    while (more) {
        TRY(parse_module_option(p));
        TRY(lex_more(lx, '}', &more));
    }
    while (lx->tok.kind != T_EOF) {
        Fn *f;
        if (lex_is_word(lx, "def")) {
            TRY(parse_def(lx, p->m->arena, p->m, &f));
            vec_push(p->m->arena, &p->m->fns, f);
        } else if (optimizer_begins(lx)) {
            const Fn *update;
            TRY(parse_optimizer(lx, p->m->arena, p->m, &update));
            optimizer_keep(p->m, update);
        } else if (lex_is_word(lx, "dim")) {
            TRY(parse_dim(p));
        } else if (lex_is_word(lx, "train") || lex_is_word(lx, "policy")) {
            Token name;
            TRY(parse_block(lx, p->m, &name));
            vec_push(p->scratch, &p->blocks, name);
        } else {
            TRY(lex_is_word(lx, "model") ? parse_model_def(p) : parse_graph(p));
        }
    }
    return check_model(p);
}

Status parse_model(Arena *a, Diag *d, const char *file, const char *text,
                   size_t n, const TextOptions *opt, Module **out) {
    Parser p = {.scratch = arena_new(), .group = -1};
    p.m = module_new(a, "");
    p.m->file = file ? intern(file) : NULL;
    Status s = lex_start(&p.lx, d, file, text, n);
    model_open(&p.model, &p.lx, p.m, opt);
    if (s == OK) s = parse_file(&p);
    if (s == OK) *out = p.m;
    model_close(&p.model);
    arena_free(p.scratch);
    return s;
}

Status parse_module(Arena *a, Diag *d, const char *file, const char *text,
                    size_t n, Module **out) {
    static const TextOptions none = {0};
    return parse_model(a, d, file, text, n, &none, out);
}
