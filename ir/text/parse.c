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
            | "group" kind ["beside" | "after"] "{" nodes "}"
            | "write" %var = operand
            | "return" [word=]operand, ..
            | a statement of fn/ast.h, also behind "return" [word=]
     type   = f32[2,3] [@offset] [@%variable]; in a model its dimensions are
              expressions, elsewhere numbers and symbols */
#include "ir/fn/fn.h"
#include "ir/text/parse_impl.h"

#include <math.h>
#include <string.h>

/* ---- types --------------------------------------------------------------- */

static Status parse_type(Parser *p, TypeId *out) {
    Lexer *lx = &p->lx;
    Token at = lx->tok;
    int64_t dim[MAX_RANK];
    int rank = 0;
    bool more;
    DType d;
    if (!lex_is_dtype(lx, &d))
        return lex_expected(lx, "a type such as f32[2,3]");
    TRY(lex_next(lx));
    TRY(lex_open(lx, '[', ']', &more));
    while (more) {
        if (rank == MAX_RANK)
            return lex_fail(lx, &lx->tok, "more than %d dimensions", MAX_RANK);
        Token word = lx->tok;
        if (word.kind == T_WORD) {
            if (!model_symbol(&p->model, word.text, &dim[rank++]))
                return lex_fail(lx, &word,
                                "dimension '%.60s' has no value; --dim "
                                "%.60s=64 gives one",
                                word.text, word.text);
            TRY(lex_next(lx));
        } else {
            TRY(lex_expect_int(lx, &dim[rank++]));
        }
        TRY(lex_more(lx, ']', &more));
    }
    *out = type_make(d, rank, dim);
    if (out->i) return OK;
    return lex_fail(lx, &at,
                    "a dimension is negative, or the type is too large");
}

/* A type, and the memory plan's place of the value. */
typedef struct Placed {
    TypeId type;
    int64_t offset;
    int home;
} Placed;

static Status parse_placed(Parser *p, Placed *out) {
    Lexer *lx = &p->lx;
    bool more;
    *out = (Placed){.offset = -1, .home = -1};
    TRY(parse_type(p, &out->type));
    TRY(lex_take(lx, '@', &more));
    while (more) {
        Token at = lx->tok;
        if (at.kind == T_NAME) {
            out->home = module_find_var(p->m, at.text);
            if (out->home < 0) return lex_fail(lx, &at, "unknown variable");
            TRY(lex_next(lx));
        } else {
            TRY(lex_expect_int(lx, &out->offset));
            if (out->offset < 0) return lex_fail(lx, &at, "negative offset");
        }
        TRY(lex_take(lx, '@', &more));
    }
    return OK;
}

static void put_place(Graph *g, ValueId v, const Placed *place) {
    value_get(g, v)->offset = place->offset;
    value_get(g, v)->home = place->home;
}

/* ---- names --------------------------------------------------------------- */

static Status twice(Parser *p, const Token *at) {
    char buf[80];
    return lex_fail(&p->lx, at, "%s is already defined", lex_describe(at, buf));
}

/* Reads a new name; the caller makes the value right after. */
static Status parse_new_name(Parser *p, Token *at) {
    *at = p->lx.tok;
    if (at->kind != T_NAME) return lex_expected(&p->lx, "a name such as %x");
    if (is_value(graph_find_value(p->g, at->text))) return twice(p, at);
    return lex_next(&p->lx);
}

/* %x: type */
static Status parse_declared(Parser *p, Token *at, Placed *out) {
    TRY(parse_new_name(p, at));
    TRY(lex_expect(&p->lx, ':'));
    return parse_placed(p, out);
}

static Status parse_operand(Parser *p, ValueId *out) {
    Lexer *lx = &p->lx;
    Token at = lx->tok;
    char buf[80];
    *out = NO_VALUE;
    if (lex_is_word(lx, "_")) return lex_next(lx);
    if (at.kind == T_NUMBER || lex_is_word(lx, "nan") || lex_is_word(lx, "inf"))
        return parse_scalar(p, out);
    if (at.kind != T_NAME) return lex_expected(lx, "an operand");
    *out = graph_find_value(p->g, at.text);
    if (!is_value(*out))
        return lex_fail(lx, &at, "%s is not defined here",
                        lex_describe(&at, buf));
    return lex_next(lx);
}

static Status parse_present(Parser *p, ValueId *out) {
    Token at = p->lx.tok;
    TRY(parse_operand(p, out));
    if (is_value(*out)) return OK;
    return lex_fail(&p->lx, &at, "a value expected");
}

/* ---- nodes --------------------------------------------------------------- */

static Status parse_attr(Parser *p, const OpInfo *info, Attr *a) {
    Lexer *lx = &p->lx;
    Token at = lx->tok;
    Str name;
    int k = 0;
    bool more;
    VEC(int64_t) v = {0};
    TRY(lex_expect_word(lx, &name, "an attribute"));
    while (k < info->nattr && strcmp(attr_get(info->attrs[k])->text, name)) k++;
    if (k == info->nattr)
        return lex_fail(lx, &at, "%s: has no attribute '%.60s'", info->text,
                        name);
    a->key = info->attrs[k];
    TRY(lex_expect(lx, '='));
    switch (attr_get(a->key)->kind) {
    case ATTR_INT: return lex_expect_int(lx, &a->u.i);
    case ATTR_FLOAT: return lex_expect_double(lx, &a->u.f);
    case ATTR_STR: return lex_expect_string(lx, &a->u.s);
    case ATTR_INTS: break;
    }
    TRY(lex_open(lx, '[', ']', &more));
    while (more) {
        int64_t i;
        TRY(lex_expect_int(lx, &i));
        vec_push(p->scratch, &v, i);
        TRY(lex_more(lx, ']', &more));
    }
    a->u.ints.v = v.data;
    a->u.ints.n = v.len;
    return OK;
}

typedef struct NodeText {
    VEC(Token) names;
    Token op;
    Callee callee;
    VEC(ValueId) in;
    VEC(Attr) attrs;
    VEC(Placed) types;
    uint32_t flags;
    unsigned char amp; /* as Loc.amp, .region, .named */
    int region, chunk;
    Str named;
} NodeText;

/* %a, .. = op operand, .. Operands are on the op's line or after a comma, so
   that an op without operands does not swallow the next line. */
static Status parse_call(Parser *p, NodeText *t) {
    Lexer *lx = &p->lx;
    Callee *c = &t->callee;
    bool more;
    do {
        Token at;
        TRY(parse_new_name(p, &at));
        vec_push(p->scratch, &t->names, at);
        TRY(lex_take(lx, ',', &more));
    } while (more);
    TRY(lex_expect(lx, '='));
    t->op = lx->tok;
    size_t n = strlen(t->op.text);
    if (t->op.kind == T_WORD && (c->fn = fn_find(p->m, t->op.text, n))) {
        c->op = OP_CALL;
        if (c->fn->layer)
            return lex_fail(lx, &t->op,
                            "a function without a class is called as y = "
                            "%.60s(..)",
                            t->op.text);
    } else if (t->op.kind != T_WORD || !op_from_text(t->op.text, n, &c->op) ||
               c->op == OP_CALL)
        return lex_expected(lx, "an operator");
    TRY(lex_next(lx));
    TokenKind k = lx->tok.kind;
    more = (k == T_NAME || k == T_NUMBER || k == T_WORD) &&
           lx->tok.line == lx->prev_line;
    while (more) {
        ValueId v;
        TRY(parse_operand(p, &v));
        vec_push(p->scratch, &t->in, v);
        TRY(lex_take(lx, ',', &more));
    }
    return OK;
}

/* Behind a `!`. */
static Status parse_mark(Parser *p, NodeText *t) {
    static const struct {
        const char *word;
        uint32_t flags;
    } marks[] = {{"backward", NODE_BACKWARD},
                 {"update", NODE_UPDATE},
                 {"again", NODE_AGAIN}};
    enum { MARKS = sizeof marks / sizeof *marks };
    Lexer *lx = &p->lx;
    int class = 0, i = 0;
    int64_t region;
    while (class < AMP_NONE && !lex_is_word(lx, amp_class_text[class]))
        class ++;
    while (i < MARKS && !lex_is_word(lx, marks[i].word)) i++;
    if (class < AMP_NONE)
        t->amp = (unsigned char)(1 + class);
    else if (i < MARKS)
        t->flags |= marks[i].flags;
    else if (!lex_is_word(lx, "checkpoint") && !lex_is_word(lx, "chunk") &&
             !lex_is_word(lx, "of"))
        return lex_fail(lx, &lx->tok,
                        "!backward, !update, !again, !checkpoint=N, "
                        "!chunk=N, !of=\"NODE\", or a class as !full");
    bool valued = class == AMP_NONE && i == MARKS, of = lex_is_word(lx, "of");
    bool chunk = lex_is_word(lx, "chunk");
    TRY(lex_next(lx));
    if (!valued) return OK;
    TRY(lex_expect(lx, '='));
    if (of) return lex_expect_string(lx, &t->named);
    Token at = lx->tok;
    TRY(lex_expect_int(lx, &region));
    if (region < 1 || region >= INT32_MAX)
        return lex_fail(lx, &at, "%s are counted from 1",
                        chunk ? "chunks" : "checkpoints");
    if (chunk) {
        t->chunk = (int)region;
        return OK;
    }
    t->region = (int)region;
    if (t->region > p->model.regions) p->model.regions = t->region;
    return OK;
}

/* {attr=value, ..} : type, .. !mark */
static Status parse_rest(Parser *p, NodeText *t) {
    Lexer *lx = &p->lx;
    bool more = false;
    if (lex_is(lx, '{')) TRY(lex_open(lx, '{', '}', &more));
    while (more) {
        Attr a;
        TRY(parse_attr(p, callee_info(t->callee), &a));
        vec_push(p->scratch, &t->attrs, a);
        TRY(lex_more(lx, '}', &more));
    }
    Token at = lx->tok;
    TRY(lex_take(lx, ':', &more));
    while (more) {
        Placed type;
        TRY(parse_placed(p, &type));
        vec_push(p->scratch, &t->types, type);
        TRY(lex_take(lx, ',', &more));
    }
    if (t->types.len && t->types.len != t->names.len)
        return lex_fail(lx, &at, "%d types for %d results", t->types.len,
                        t->names.len);
    TRY(lex_take(lx, '!', &more));
    while (more) {
        TRY(parse_mark(p, t));
        TRY(lex_take(lx, '!', &more));
    }
    return OK;
}

/* The text's name wins over the one that the builder made unique: it may be
   the name of a variable that this graph does not read. */
static Status name_results(Parser *p, const NodeText *t, NodeId id) {
    for (int i = 0; i < t->names.len; i++) {
        const Token *at = &t->names.data[i];
        ValueId v = node_get(p->g, id)->out[i];
        if (value_get(p->g, v)->name != at->text) {
            if (is_value(graph_find_value(p->g, at->text))) return twice(p, at);
            graph_rename(p->g, v, at->text);
        }
        if (t->types.len) put_place(p->g, v, &t->types.data[i]);
    }
    return OK;
}

static Status parse_node(Parser *p) {
    NodeText t = {0};
    NodeId id;
    TRY(parse_call(p, &t));
    TRY(parse_rest(p, &t));
    int n = t.names.len;
    const char **names = NEW_ARRAY(p->scratch, const char *, n);
    TypeId *types = NEW_ARRAY(p->scratch, TypeId, n);
    for (int i = 0; i < n; i++) {
        names[i] = t.names.data[i].text;
        if (t.types.len) types[i] = t.types.data[i].type;
    }
    Builder b = {.g = p->g, .flags = t.flags, .loc = lex_loc(&p->lx, &t.op)};
    b.loc.amp = t.amp ? t.amp : p->model.amp;
    b.loc.region = t.region ? t.region : p->model.region;
    b.loc.chunk = t.chunk;
    b.loc.named = t.named;
    if (build_checked(&b, p->lx.diag, t.callee, t.in.data, t.in.len,
                      t.attrs.data, t.attrs.len, n, types, names, &id) != OK) {
        lex_show(&p->lx, &t.op);
        return ERR_USER;
    }
    node_get(p->g, id)->group = p->group;
    return name_results(p, &t, id);
}

static Status parse_group(Parser *p) {
    Group group = {0};
    int kind = -1;
    TRY(lex_next(&p->lx));
    for (int i = 0; i <= GROUP_LIB; i++)
        if (lex_is_word(&p->lx, group_kind_text[i])) kind = i;
    if (kind < 0)
        return lex_fail(&p->lx, &p->lx.tok, "point, row, anchor or lib");
    group.kind = (GroupKind)kind;
    TRY(lex_next(&p->lx));
    group.after = lex_is_word(&p->lx, "after");
    group.beside = group.after || lex_is_word(&p->lx, "beside");
    if (group.beside) TRY(lex_next(&p->lx));
    TRY(lex_expect(&p->lx, '{'));
    vec_push(p->m->arena, &p->g->groups, group);
    p->group = p->g->groups.len - 1;
    while (!lex_is(&p->lx, '}')) TRY(parse_node(p));
    p->group = -1;
    return lex_next(&p->lx);
}

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
    put_place(p->g, graph_var(p->g, i), &place);
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
    put_place(p->g, v, &place);
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
        TRY(parse_import(lx, &p->m->onnx, &end));
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
    return lex_fail(&p->lx, &p->lx.tok, "the file has no graph");
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
        put_place(g, v, &place);
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
        } else if (lex_is_word(lx, "optimizer")) {
            Fn *once;
            TRY(parse_optimizer(lx, p->m->arena, p->m, &once, &f));
            vec_push(p->m->arena, &p->m->fns, once);
            vec_push(p->m->arena, &p->m->fns, f);
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
