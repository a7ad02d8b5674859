/* SPDX-License-Identifier: Apache-2.0 */
/* parse_node.c: the text of a node, of what stands in one (types, places,
   operands, attributes), and of a group of nodes. */
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

void parse_put_place(Graph *g, ValueId v, const Placed *place) {
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

Status parse_declared(Parser *p, Token *at, Placed *out) {
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

Status parse_present(Parser *p, ValueId *out) {
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
    unsigned char amp, factors;
    int region, chunk; /* as in Loc */
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

static Status parse_factors(Lexer *lx, NodeText *t) {
    int i = 0;
    while (i < AMPC_NFACTORS && !lex_is_word(lx, factors_text[i])) i++;
    if (i == AMPC_NFACTORS) return lex_fail(lx, &lx->tok, "fp32, tf32 or bf16");
    t->factors = (unsigned char)i;
    return lex_next(lx);
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
             !lex_is_word(lx, "of") && !lex_is_word(lx, "factors"))
        return lex_fail(lx, &lx->tok,
                        "!backward, !update, !again, !checkpoint=N, "
                        "!chunk=N, !of=\"NODE\", !factors=tf32, or a class "
                        "as !full");
    bool valued = class == AMP_NONE && i == MARKS, of = lex_is_word(lx, "of");
    bool chunk = lex_is_word(lx, "chunk");
    bool factors = lex_is_word(lx, "factors");
    TRY(lex_next(lx));
    if (!valued) return OK;
    TRY(lex_expect(lx, '='));
    if (of) return lex_expect_string(lx, &t->named);
    if (factors) return parse_factors(lx, t);
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
        if (t->types.len) parse_put_place(p->g, v, &t->types.data[i]);
    }
    return OK;
}

Status parse_node(Parser *p) {
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
    b.loc.factors = t.factors;
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

/* ["if" %a | "unless" %a], where the group runs. */
static Status parse_guard(Parser *p, Guard *guard) {
    guard->unless = lex_is_word(&p->lx, "unless");
    if (!guard->unless && !lex_is_word(&p->lx, "if")) return OK;
    TRY(lex_next(&p->lx));
    if (p->lx.tok.kind != T_NAME)
        return lex_fail(&p->lx, &p->lx.tok, "the value that is the condition");
    return parse_operand(p, &guard->when);
}

Status parse_group(Parser *p) {
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
    TRY(parse_guard(p, &group.guard));
    TRY(lex_expect(&p->lx, '{'));
    vec_push(p->m->arena, &p->g->groups, group);
    p->group = p->g->groups.len - 1;
    while (!lex_is(&p->lx, '}')) TRY(parse_node(p));
    p->group = -1;
    return lex_next(&p->lx);
}
