/* parse.c: reads what print.c prints, and hand-written files: types may be
   left out where a rule knows them, initialisers may be generated
   (parse_data.c).

     file   = ["module" word [options]] (def | graph)*       def: fn/ast.h
     graph  = "graph" word "(" [%x: type, ..] ")" ["on" target] ["arena" n]
              "{" line* "}"                             target: cpu, cuda
     line   = kind %x: type [= init] [options], ..    kind: param, buffer, ..
            | "const" %x: type = init
            | %a, .. = op operand, .. {attr=value, ..} : type, .. !flag
            | "group" kind ["beside"] "{" nodes "}"
            | "write" %var = operand
            | "return" [word=]operand, ..
     type   = f32[2,3] [@offset] [@%variable]                               */
#include "ir/fn/fn.h"
#include "ir/text/parse_impl.h"

#include <math.h>
#include <string.h>

/* ---- types --------------------------------------------------------------- */

static Status parse_dims(Parser *p, int64_t *dim, int *rank) {
    TRY(lex_expect(&p->lx, '['));
    *rank = 0;
    for (bool more = !lex_is(&p->lx, ']'); more;) {
        if (*rank == MAX_RANK)
            return lex_fail(&p->lx, &p->lx.tok, "more than %d dimensions",
                            MAX_RANK);
        TRY(lex_expect_int(&p->lx, &dim[(*rank)++]));
        TRY(lex_take(&p->lx, ',', &more));
    }
    return lex_expect(&p->lx, ']');
}

static Status parse_type(Parser *p, TypeId *out) {
    Token at = p->lx.tok;
    int64_t dim[MAX_RANK];
    int rank;
    DType d;
    if (at.kind != T_WORD || !dtype_from_text(at.text, strlen(at.text), &d)) {
        char buf[80];
        return lex_fail(&p->lx, &at,
                        "a type such as f32[2,3] expected, "
                        "found %s",
                        lex_describe(&at, buf));
    }
    TRY(lex_next(&p->lx));
    TRY(parse_dims(p, dim, &rank));
    *out = type_make(d, rank, dim);
    if (!out->i)
        return lex_fail(&p->lx, &at,
                        "a dimension is negative, or the type "
                        "is too large");
    return OK;
}

/* Where the memory plan put a value. */
typedef struct Place {
    int64_t offset;
    int home;
} Place;

static Status parse_places(Parser *p, Place *place) {
    bool more;
    *place = (Place){-1, -1};
    TRY(lex_take(&p->lx, '@', &more));
    while (more) {
        Token at = p->lx.tok;
        if (at.kind == T_NAME) {
            place->home = module_find_var(p->m, at.text);
            if (place->home < 0)
                return lex_fail(&p->lx, &at, "unknown variable");
            TRY(lex_next(&p->lx));
        } else {
            TRY(lex_expect_int(&p->lx, &place->offset));
            if (place->offset < 0)
                return lex_fail(&p->lx, &at, "negative offset");
        }
        TRY(lex_take(&p->lx, '@', &more));
    }
    return OK;
}

static void put_place(Graph *g, ValueId v, Place place) {
    value_get(g, v)->offset = place.offset;
    value_get(g, v)->home = place.home;
}

/* ---- names --------------------------------------------------------------- */

/* A new name: the value is made by the caller right after. */
static Status parse_new_name(Parser *p, Token *at) {
    char buf[80];
    *at = p->lx.tok;
    if (at->kind != T_NAME)
        return lex_fail(&p->lx, at, "a name such as %%x expected, found %s",
                        lex_describe(at, buf));
    if (is_value(graph_find_value(p->g, at->text)))
        return lex_fail(&p->lx, at, "%s is defined already",
                        lex_describe(at, buf));
    return lex_next(&p->lx);
}

static Status parse_operand(Parser *p, ValueId *out) {
    Lexer *lx = &p->lx;
    Token at = lx->tok;
    char buf[80];
    *out = NO_VALUE;
    if (lex_is_word(lx, "_")) return lex_next(lx);
    if (at.kind == T_NUMBER || lex_is_word(lx, "nan") || lex_is_word(lx, "inf"))
        return parse_scalar(p, out);
    if (at.kind != T_NAME)
        return lex_fail(lx, &at, "an operand expected, found %s",
                        lex_describe(&at, buf));
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
    return lex_fail(&p->lx, &at, "a value must stand here");
}

/* ---- attributes ---------------------------------------------------------- */

static bool attr_from_text(const OpInfo *info, Str s, AttrKey *out) {
    for (int k = 0; k < info->nattr; k++) {
        if (strcmp(attr_get(info->attrs[k])->text, s) != 0) continue;
        *out = info->attrs[k];
        return true;
    }
    return false;
}

static Status parse_ints(Parser *p, Attr *a) {
    VEC(int64_t) v = {0};
    TRY(lex_expect(&p->lx, '['));
    for (bool more = !lex_is(&p->lx, ']'); more;) {
        int64_t i;
        TRY(lex_expect_int(&p->lx, &i));
        vec_push(p->scratch, &v, i);
        TRY(lex_take(&p->lx, ',', &more));
    }
    a->u.ints.v = v.data;
    a->u.ints.n = v.len;
    return lex_expect(&p->lx, ']');
}

static Status parse_attr(Parser *p, const OpInfo *info, Attr *a) {
    Token at = p->lx.tok;
    Str name;
    TRY(lex_expect_word(&p->lx, &name, "an attribute"));
    if (!attr_from_text(info, name, &a->key))
        return lex_fail(&p->lx, &at, "%s: has no attribute '%.60s'", info->text,
                        name);
    TRY(lex_expect(&p->lx, '='));
    switch (attr_get(a->key)->kind) {
    case ATTR_INT: return lex_expect_int(&p->lx, &a->u.i);
    case ATTR_FLOAT: return lex_expect_double(&p->lx, &a->u.f);
    case ATTR_STR: return lex_expect_string(&p->lx, &a->u.s);
    case ATTR_INTS: return parse_ints(p, a);
    }
    return OK;
}

typedef VEC(Attr) AttrList;

static Status parse_attrs(Parser *p, const OpInfo *info, AttrList *list) {
    bool open;
    TRY(lex_take(&p->lx, '{', &open));
    if (!open) return OK;
    for (bool more = !lex_is(&p->lx, '}'); more;) {
        Attr a;
        TRY(parse_attr(p, info, &a));
        vec_push(p->scratch, list, a);
        TRY(lex_take(&p->lx, ',', &more));
    }
    return lex_expect(&p->lx, '}');
}

/* ---- nodes --------------------------------------------------------------- */

typedef struct NodeText {
    VEC(Token) names;
    Token op;
    Callee callee;
    VEC(ValueId) in;
    AttrList attrs;
    VEC(TypeId) types;
    VEC(Place) places;
    uint32_t flags;
} NodeText;

static Status parse_results(Parser *p, NodeText *t) {
    for (bool more = true; more;) {
        Token at;
        TRY(parse_new_name(p, &at));
        vec_push(p->scratch, &t->names, at);
        TRY(lex_take(&p->lx, ',', &more));
    }
    return lex_expect(&p->lx, '=');
}

/* Operands stand on the op's line or behind a comma, so that an op without
   any does not swallow the next line. */
static Status parse_operands(Parser *p, NodeText *t) {
    Lexer *lx = &p->lx;
    bool more = (lx->tok.kind == T_NAME || lx->tok.kind == T_NUMBER ||
                 lx->tok.kind == T_WORD) &&
                lx->tok.line == lx->prev_line;
    while (more) {
        ValueId v;
        TRY(parse_operand(p, &v));
        vec_push(p->scratch, &t->in, v);
        TRY(lex_take(lx, ',', &more));
    }
    return OK;
}

static Status parse_result_types(Parser *p, NodeText *t) {
    Token at = p->lx.tok;
    bool more;
    TRY(lex_take(&p->lx, ':', &more));
    while (more) {
        TypeId type;
        Place place;
        TRY(parse_type(p, &type));
        TRY(parse_places(p, &place));
        vec_push(p->scratch, &t->types, type);
        vec_push(p->scratch, &t->places, place);
        TRY(lex_take(&p->lx, ',', &more));
    }
    if (t->types.len && t->types.len != t->names.len)
        return lex_fail(&p->lx, &at, "%d types for %d results", t->types.len,
                        t->names.len);
    return OK;
}

static Status parse_flags(Parser *p, NodeText *t) {
    bool more;
    TRY(lex_take(&p->lx, '!', &more));
    while (more) {
        if (lex_is_word(&p->lx, "backward"))
            t->flags |= NODE_BACKWARD;
        else if (lex_is_word(&p->lx, "update"))
            t->flags |= NODE_UPDATE;
        else
            return lex_fail(&p->lx, &p->lx.tok, "!backward or !update");
        TRY(lex_next(&p->lx));
        TRY(lex_take(&p->lx, '!', &more));
    }
    return OK;
}

static Status parse_op(Parser *p, NodeText *t) {
    char buf[80];
    t->op = p->lx.tok;
    Callee *c = &t->callee;
    size_t n = strlen(t->op.text);
    if (t->op.kind == T_WORD && (c->fn = fn_find(p->m, t->op.text, n)))
        c->op = OP_CALL;
    else if (t->op.kind != T_WORD || !op_from_text(t->op.text, n, &c->op) ||
             c->op == OP_CALL)
        return lex_fail(&p->lx, &t->op, "an operator expected, found %s",
                        lex_describe(&t->op, buf));
    return lex_next(&p->lx);
}

/* The text's name wins over the one the builder thought unique: it may be the
   name of a variable that this graph does not read. */
static Status name_results(Parser *p, const NodeText *t, NodeId id) {
    char buf[80];
    for (int i = 0; i < t->names.len; i++) {
        const Token *at = &t->names.data[i];
        ValueId v = node_get(p->g, id)->out[i];
        if (value_get(p->g, v)->name != at->text) {
            if (is_value(graph_find_value(p->g, at->text)))
                return lex_fail(&p->lx, at, "%s is defined already",
                                lex_describe(at, buf));
            graph_rename(p->g, v, at->text);
        }
        if (t->places.len) put_place(p->g, v, t->places.data[i]);
    }
    return OK;
}

static Status parse_node(Parser *p) {
    NodeText t = {0};
    NodeId id;
    TRY(parse_results(p, &t));
    TRY(parse_op(p, &t));
    TRY(parse_operands(p, &t));
    TRY(parse_attrs(p, callee_info(t.callee), &t.attrs));
    TRY(parse_result_types(p, &t));
    TRY(parse_flags(p, &t));
    const char **names = NEW_ARRAY(p->scratch, const char *, t.names.len);
    for (int i = 0; i < t.names.len; i++) names[i] = t.names.data[i].text;
    Builder b = {.g = p->g, .flags = t.flags, .loc = lex_loc(&p->lx, &t.op)};
    Status s = build_checked(&b, p->lx.diag, t.callee, t.in.data, t.in.len,
                             t.attrs.data, t.attrs.len, t.names.len,
                             t.types.data, names, &id);
    if (s != OK) {
        lex_show(&p->lx, &t.op);
        return s;
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
    group.beside = lex_is_word(&p->lx, "beside");
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
    Token at = lx->tok, value;
    Str name;
    TRY(lex_expect_word(lx, &name, "an option"));
    TRY(lex_expect(lx, '='));
    if (strcmp(name, "lr_scale") == 0)
        return lex_expect_double(lx, &v->lr_scale);
    if (strcmp(name, "weight_decay") == 0)
        return lex_expect_double(lx, &v->weight_decay);
    if (strcmp(name, "why") == 0) return lex_expect_string(lx, &v->why);
    if (strcmp(name, "stored") != 0)
        return lex_fail(lx, &at, "lr_scale, stored, weight_decay or why");
    value = lx->tok;
    TRY(lex_expect_word(lx, &name, "a dtype"));
    if (!dtype_from_text(name, strlen(name), &v->stored_dtype))
        return lex_fail(lx, &value, "unknown dtype '%.40s'", name);
    return OK;
}

static Status parse_var_options(Parser *p, Var *v) {
    bool open;
    TRY(lex_take(&p->lx, '{', &open));
    if (!open) return OK;
    for (bool more = !lex_is(&p->lx, '}'); more;) {
        TRY(parse_var_option(p, v));
        TRY(lex_take(&p->lx, ',', &more));
    }
    return lex_expect(&p->lx, '}');
}

static bool same_bits(double a, double b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

static bool same_init(const Var *a, const Var *b) {
    if (!a->init != !b->init || a->init_text != b->init_text) return false;
    if (!a->init) return same_bits(a->fill, b->fill);
    return memcmp(a->init->data, b->init->data,
                  (size_t)type_bytes(type_get(a->type))) == 0;
}

/* Graphs of one file declare a variable alike; init and options of the
   second one, when given, agree with the first. */
static Status redeclare(Parser *p, const Token *at, const Var *old,
                        const Var *v, bool has_init) {
    char buf[80];
    if (old->kind != v->kind || old->type.i != v->type.i)
        return lex_fail(&p->lx, at, "%s is a %s of type %s in another graph",
                        lex_describe(at, buf), var_kind_text[old->kind],
                        TXT(type_get(old->type)));
    if (has_init && !same_init(old, v))
        return lex_fail(&p->lx, at, "%s begins otherwise in another graph",
                        lex_describe(at, buf));
    return OK;
}

static Status parse_var(Parser *p, VarKind kind) {
    Token at;
    Place place;
    bool has_init;
    Init init = {0};
    Var v = {.kind = kind, .lr_scale = 1, .weight_decay = (double)NAN};
    TRY(parse_new_name(p, &at));
    TRY(lex_expect(&p->lx, ':'));
    TRY(parse_type(p, &v.type));
    TRY(parse_places(p, &place));
    v.name = at.text;
    v.stored_dtype = type_get(v.type)->dtype;
    TRY(lex_take(&p->lx, '=', &has_init));
    if (has_init) TRY(parse_init(p, v.type, false, &init));
    v.init = init.tensor;
    v.fill = init.fill;
    v.init_text = init.text;
    TRY(parse_var_options(p, &v));
    int i = module_find_var(p->m, v.name);
    if (i >= 0) {
        TRY(redeclare(p, &at, &p->m->vars.data[i], &v, has_init));
    } else {
        i = module_var(p->m, kind, v.name, v.type, v.init, v.fill);
        p->m->vars.data[i] = v;
    }
    put_place(p->g, graph_var(p->g, i), place);
    return OK;
}

static Status parse_vars(Parser *p, VarKind kind) {
    TRY(lex_next(&p->lx));
    for (bool more = true; more;) {
        TRY(parse_var(p, kind));
        TRY(lex_take(&p->lx, ',', &more));
    }
    return OK;
}

static Status parse_const(Parser *p) {
    Token at;
    TypeId type;
    Place place;
    Init init;
    TRY(lex_next(&p->lx));
    TRY(parse_new_name(p, &at));
    TRY(lex_expect(&p->lx, ':'));
    TRY(parse_type(p, &type));
    TRY(parse_places(p, &place));
    TRY(lex_expect(&p->lx, '='));
    TRY(parse_init(p, type, true, &init));
    ValueId v = value_new(p->g, (Value){.name = at.text,
                                        .type = type,
                                        .kind = VK_CONST,
                                        .data = init.tensor,
                                        .init_text = init.text});
    put_place(p->g, v, place);
    return OK;
}

/* ---- effects ------------------------------------------------------------- */

static Status parse_write(Parser *p) {
    Write w;
    TRY(lex_next(&p->lx));
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
    vec_push(p->m->arena, &p->g->writes, w);
    return OK;
}

static Status parse_output(Parser *p) {
    Lexer *lx = &p->lx;
    Token at = lx->tok;
    Output o = {0};
    bool number = lex_is_word(lx, "nan") || lex_is_word(lx, "inf");
    if ((at.kind == T_WORD && !number) || at.kind == T_STRING) {
        o.name = at.text;
        TRY(lex_next(lx));
        TRY(lex_expect(lx, '='));
    }
    at = lx->tok;
    TRY(parse_present(p, &o.value));
    if (!o.name) o.name = value_get(p->g, o.value)->name;
    if (!o.name) return lex_fail(lx, &at, "the output needs a name: name=..");
    vec_push(p->m->arena, &p->g->outputs, o);
    return OK;
}

/* Nothing but the closing brace may follow, so the end needs no marker. */
static Status parse_return(Parser *p) {
    TRY(lex_next(&p->lx));
    for (bool more = !lex_is(&p->lx, '}'); more;) {
        TRY(parse_output(p));
        TRY(lex_take(&p->lx, ',', &more));
    }
    if (!lex_is(&p->lx, '}')) return lex_expect(&p->lx, '}');
    return OK;
}

/* ---- graphs and files ---------------------------------------------------- */

static Status parse_line(Parser *p) {
    Lexer *lx = &p->lx;
    char buf[80];
    if (lx->tok.kind == T_NAME) return parse_node(p);
    for (int k = 0; k <= VAR_GRAD; k++)
        if (lex_is_word(lx, var_kind_text[k])) return parse_vars(p, (VarKind)k);
    if (lex_is_word(lx, "const")) return parse_const(p);
    if (lex_is_word(lx, "group")) return parse_group(p);
    if (lex_is_word(lx, "write")) return parse_write(p);
    if (lex_is_word(lx, "return")) return parse_return(p);
    return lex_fail(lx, &lx->tok, "a node or declaration expected, found %s",
                    lex_describe(&lx->tok, buf));
}

static Status parse_inputs(Parser *p) {
    TRY(lex_expect(&p->lx, '('));
    for (bool more = !lex_is(&p->lx, ')'); more;) {
        Token at;
        TypeId type;
        Place place;
        TRY(parse_new_name(p, &at));
        TRY(lex_expect(&p->lx, ':'));
        TRY(parse_type(p, &type));
        TRY(parse_places(p, &place));
        ValueId v = value_new(
            p->g, (Value){.name = at.text, .type = type, .kind = VK_INPUT});
        put_place(p->g, v, place);
        vec_push(p->m->arena, &p->g->inputs, v);
        TRY(lex_take(&p->lx, ',', &more));
    }
    return lex_expect(&p->lx, ')');
}

/* on cpu */
static Status parse_target(Parser *p) {
    Lexer *lx = &p->lx;
    if (!lex_is_word(lx, "on")) return OK;
    TRY(lex_next(lx));
    for (TargetKind t = TARGET_CPU; t < NUM_TARGETS; t++)
        if (lex_is_word(lx, target_text[t])) p->g->target = t;
    if (p->g->target == TARGET_ANY)
        return lex_fail(lx, &lx->tok, "cpu or cuda");
    return lex_next(lx);
}

static Status parse_graph(Parser *p) {
    Lexer *lx = &p->lx;
    Str name;
    if (!lex_is_word(lx, "graph"))
        return lex_fail(lx, &lx->tok, "'graph' or 'def' expected");
    TRY(lex_next(lx));
    Token at = lx->tok;
    TRY(lex_expect_word(lx, &name, "the graph's name"));
    p->g = graph_new(p->m, name);
    p->group = -1;
    TRY(parse_inputs(p));
    TRY(parse_target(p));
    if (module_graph_on(p->m, name, p->g->target) != p->g)
        return lex_fail(lx, &at, "there is a graph of this name already");
    if (lex_is_word(lx, "arena")) {
        TRY(lex_next(lx));
        TRY(lex_expect_int(lx, &p->g->arena_bytes));
    }
    TRY(lex_expect(lx, '{'));
    while (!lex_is(lx, '}')) TRY(parse_line(p));
    TRY(lex_next(lx));
    return verify_graph(p->g, STAGE_TYPED, lx->diag); /* outputs, writes */
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

static Status parse_header(Parser *p) {
    bool open;
    if (!lex_is_word(&p->lx, "module")) return OK;
    TRY(lex_next(&p->lx));
    TRY(lex_expect_word(&p->lx, &p->m->name, "the module's name"));
    TRY(lex_take(&p->lx, '{', &open));
    if (!open) return OK;
    for (bool more = !lex_is(&p->lx, '}'); more;) {
        TRY(parse_module_option(p));
        TRY(lex_take(&p->lx, ',', &more));
    }
    return lex_expect(&p->lx, '}');
}

static Status parse_function(Parser *p) {
    Fn *f;
    TRY(parse_def(&p->lx, p->m->arena, p->m, &f));
    vec_push(p->m->arena, &p->m->fns, f);
    return OK;
}

static Status parse_file(Parser *p) {
    TRY(parse_header(p));
    while (p->lx.tok.kind != T_EOF)
        TRY(lex_is_word(&p->lx, "def") ? parse_function(p) : parse_graph(p));
    if (!p->m->graphs.len)
        return lex_fail(&p->lx, &p->lx.tok, "the file has no graph");
    return OK;
}

Status parse_module(Arena *a, Diag *d, const char *file, const char *text,
                    size_t n, Module **out) {
    Parser p = {.scratch = arena_new(), .group = -1};
    p.m = module_new(a, "");
    p.m->file = file ? intern(file) : NULL;
    Status s = lex_start(&p.lx, d, file, text, n);
    if (s == OK) s = parse_file(&p);
    if (s == OK) *out = p.m;
    arena_free(p.scratch);
    return s;
}
