/* SPDX-License-Identifier: Apache-2.0 */
/* policy.c: --amp-policy FILE, and before it the model's own `policy` block:
   autocast classes that the user chooses for nodes, and checkpoint regions.
   Before:  %y = softmax %x {axis=1} : f32[4,8]
   After:   %y = softmax %x {axis=1} : f32[4,8] !low       with "op softmax low"
   A line is `op NAME CLASS` (NAME of ampc --list-ops or of a function, or a
   type of the ONNX model's nodes or DOMAIN::FUNCTION of its own functions; in
   any case and with or without underscores) or `node GLOB CLASS` (nodes of the
   model; where it names none, their first results; or layers, as parameters are
   named up to a dot: all nodes that read these), or a comment behind #.
   Later lines win; a region of the text wins over both.  Gradients of a node
   have its class.  `checkpoint GLOB`: the parts of the model that GLOB matches,
   /encoder/layer.0 and /encoder/layer.1 of /encoder/layer.*, are regions as
   `checkpoint { }` makes them (remat.c); a part is the shortest beginning of
   the node's name, up to a slash or dot, that it matches.
     low      it reads 16 bits; bf16 or fp16: the same, if the module's are
     full     it reads and returns fp32; fp32: the same; fullout: returns
     widest, follow, any: whatever is cheapest, also where fp32 was due
   requires     stage TYPED                                                  */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "ir/base/near.h"
#include "passes/passes.h"

typedef struct Rule {
    enum { RULE_OP, RULE_NODE, RULE_CHECKPOINT } kind;
    Str name; /* or glob */
    AmpClass class;
    Loc loc;
    bool used;
} Rule;

typedef struct Rules {
    VEC(Rule) list;
    VEC(Str) parts; /* number of parts that are regions */
    int regions;    /* of the text */
} Rules;

static bool same_letters(const char *a, const char *b) {
    for (;; a++, b++) {
        while (*a == '_') a++;
        while (*b == '_') b++;
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b))
            return false;
        if (!*a) return true;
    }
}

/* True if `name` is the node's op, or its op in the model's file. */
static bool is_op(const Node *n, Str name) {
    if (same_letters(name, node_info(n)->text)) return true;
    for (const Str *t = n->loc.types; t && *t; t++)
        if (same_letters(name, *t)) return true;
    return false;
}

/* Splits a line into words in place; returns their number. */
static int split(char *line, char **word, int max) {
    int n = 0;
    line[strcspn(line, "#")] = 0;
    for (char *p = line; *(p += strspn(p, " \t\r"));) {
        if (n == max) return max + 1;
        word[n++] = p;
        p += strcspn(p, " \t\r");
        if (*p) *p++ = 0;
    }
    return n;
}

/* A class, or the dtype that stands for a class. */
static Status read_class(const char *word, Loc loc, PassCtx *cx,
                         AmpClass *out) {
    static const char *const low[] = {
        [PREC_BF16] = "bf16", [PREC_FP16] = "fp16"};
    char text[NEAR_TEXT];
    Near near = near_to(word);
    Precision p = cx->opt->precision;
    for (int i = 0; i < AMP_NONE; i++) {
        *out = (AmpClass)i;
        if (!strcmp(word, amp_class_text[i])) return OK;
        near_offer(&near, amp_class_text[i]);
    }
    bool bf16 = !strcmp(word, "bf16"), fp16 = !strcmp(word, "fp16");
    *out = bf16 || fp16 ? AMP_LOW : AMP_FULL;
    if (!strcmp(word, "fp32")) return OK;
    if ((bf16 || fp16) && (p == PREC_FP32 || !strcmp(word, low[p]))) return OK;
    if (bf16 || fp16)
        return fail(cx->diag, loc,
                    "'%s': the 16 bits of this module are %s (--precision)",
                    word, low[p]);
    return fail(
        cx->diag, loc,
        "'%s' is not a class: fp32 (full), bf16 or fp16 (low), fullout, "
        "widest, follow, any%s",
        word, near_text(&near, text));
}

static Status policy_read_line(char *line, Loc loc, Rules *rules, PassCtx *cx) {
    static const char *const kinds[] = {"op", "node", "checkpoint"};
    char *word[3];
    int n = split(line, word, 3), kind = 0;
    if (!n) return OK;
    while (kind < 3 && strcmp(word[0], kinds[kind])) kind++;
    if (n != (kind == RULE_CHECKPOINT ? 2 : 3) || kind == 3)
        return fail(cx->diag, loc,
                    "'op NAME CLASS', 'node GLOB CLASS' or 'checkpoint GLOB'");
    Rule r = {.kind = kind, .name = intern(word[1]), .loc = loc};
    if (n == 3) TRY(read_class(word[2], loc, cx, &r.class));
    vec_push(cx->scratch, &rules->list, r);
    return OK;
}

static Status read_rules(Rules *rules, PassCtx *cx) {
    Loc loc = {.file = cx->opt->amp_policy};
    size_t n;
    if (!loc.file) return OK;
    char *text = read_file(cx->diag, loc.file, &n), *copy;
    if (!text) return ERR_USER;
    copy = arena_dup(cx->scratch, text, n + 1);
    free(text);
    copy[n] = 0;
    if (memchr(copy, 0, n)) return fail(cx->diag, loc, "this is no text");
    for (char *p = copy; *p;) {
        char *line = p;
        p += strcspn(p, "\n");
        if (*p) *p++ = 0;
        loc.line++;
        TRY(policy_read_line(line, loc, rules, cx));
    }
    return OK;
}

/* The region of a node's part; 0: GLOB does not match. */
static int policy_region_of(Rules *rules, const char *glob, Str name,
                            Arena *a) {
    for (size_t n = 1; name && *name && name[n - 1]; n++) {
        Str part = !name[n] || name[n] == '/' || name[n] == '.'
                       ? intern_n(name, n)
                       : NULL;
        int i = 0;
        if (!part || !glob_match(glob, part)) continue;
        while (i < rules->parts.len && rules->parts.data[i] != part) i++;
        if (i == rules->parts.len) vec_push(a, &rules->parts, part);
        return rules->regions + 1 + i;
    }
    return 0;
}

/* The first variable of a value that is made of variables alone, such as the
   gates of an LSTM in another order; NULL if it is not, or if more than *left
   nodes make it. */
static const Var *variable_of(const Graph *g, ValueId v, int *left) {
    const Value *val = value_get(g, v);
    if (val->kind == VK_VAR) return value_var(g, v);
    if (val->kind == VK_INPUT) *left = 0;
    if (val->kind != VK_RESULT || --*left < 0) return NULL;
    const Node *n = node_get(g, val->def);
    const Var *first = NULL;
    for (int i = 0; *left > 0 && i < n->nin; i++) {
        const Var *var =
            is_value(n->in[i]) ? variable_of(g, n->in[i], left) : NULL;
        if (!first) first = var;
    }
    return *left > 0 ? first : NULL;
}

Str node_layer(const Graph *g, const Node *n) {
    enum { NODES = 64 };
    for (int i = 0; i < n->nin; i++) {
        int left = NODES;
        const Var *v =
            is_value(n->in[i]) ? variable_of(g, n->in[i], &left) : NULL;
        const char *dot =
            v && !name_is_own(v->name) ? strrchr(v->name, '.') : NULL;
        if (dot && dot > v->name)
            return intern_n(v->name, (size_t)(dot - v->name));
    }
    return NULL;
}

/* The name of a node in policy lines, and what reports say of it; later passes
   copy them to all nodes made from it. */
static void name_nodes(const Graph *g) {
    for (int k = 0; k < g->order.len; k++) {
        Node *n = node_at(g, k);
        if (n->loc.named) continue;
        n->loc.named =
            n->loc.node ? n->loc.node : value_get(g, n->out[0])->name;
        n->loc.does = n->loc.types && *n->loc.types
                          ? *n->loc.types
                          : intern(node_info(n)->text);
        n->loc.layer = node_layer(g, n);
    }
}

static void apply(const Graph *g, Node *n, Rules *rules, Arena *a) {
    unsigned char amp = 0;
    int region = 0, found;
    Str name = n->loc.named, layer = node_layer(g, n);
    for (int i = 0; i < rules->list.len; i++) {
        Rule *r = &rules->list.data[i];
        switch (r->kind) {
        case RULE_OP:
            if (!is_op(n, r->name)) continue;
            break;
        case RULE_NODE:
            if (!glob_match(r->name, name) &&
                !(layer && glob_layer(r->name, layer)))
                continue;
            break;
        case RULE_CHECKPOINT:
            found = policy_region_of(rules, r->name, name, a);
            if (!found) continue;
            region = found;
        }
        r->used = true;
        if (r->kind != RULE_CHECKPOINT) amp = (unsigned char)(1 + r->class);
    }
    if (!n->loc.amp) n->loc.amp = amp;
    if (!n->loc.region) n->loc.region = region;
}

static int last_region(const Module *m) {
    int last = 0;
    for (int i = 0; i < m->graphs.len; i++) {
        const Graph *g = m->graphs.data[i];
        for (int k = 0; k < g->order.len; k++) {
            int region = node_at(g, k)->loc.region;
            if (region > last) last = region;
        }
    }
    return last;
}

static Status refuse_unused(const Module *m, const Rule *r, PassCtx *cx) {
    static const char *const what[] = {"op", "node or layer", "part"};
    char text[NEAR_TEXT];
    Near near = near_to(r->name);
    for (int i = 0; i < m->graphs.len; i++) {
        const Graph *g = m->graphs.data[i];
        for (int k = 0; k < g->order.len; k++) {
            const Node *n = node_at(g, k);
            const Str *types = r->kind == RULE_OP ? n->loc.types : NULL;
            if (r->kind == RULE_OP) near_offer(&near, node_info(n)->text);
            for (; types && *types; types++) near_offer(&near, *types);
            if (r->kind == RULE_OP) continue;
            near_offer(&near, n->loc.named);
            near_offer(&near, node_layer(g, n));
        }
    }
    return fail(cx->diag, r->loc,
                "no %s of the model is '%s'%s (ampc inspect MODEL --nodes)",
                what[r->kind], r->name, near_text(&near, text));
}

static Status refuse_low_ranks(const Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++) {
        const Graph *g = m->graphs.data[i];
        for (int k = 0; k < g->order.len; k++) {
            const Node *n = node_at(g, k);
            if (n->op == OP_RANK_MAX && node_class(n) == AMP_LOW)
                return fail(cx->diag, n->loc,
                            "rank_max reads f32 and cannot be of class low: "
                            "leave it out of the policy");
        }
    }
    return OK;
}

Status pass_policy(Module *m, PassCtx *cx) {
    Rules rules = {.regions = last_region(m)};
    Status s = OK;
    for (int i = 0; i < m->graphs.len; i++) name_nodes(m->graphs.data[i]);
    for (int i = 0; i < m->policy.len; i++) {
        const Setting *line = &m->policy.data[i];
        char *copy = arena_dup(cx->scratch, line->text, strlen(line->text) + 1);
        TRY(policy_read_line(copy, line->loc, &rules, cx));
    }
    TRY(read_rules(&rules, cx));
    if (!rules.list.len) return refuse_low_ranks(m, cx);
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        for (int k = 0; k < g->order.len; k++)
            apply(g, node_at(g, k), &rules, cx->scratch);
    }
    for (int i = 0; i < rules.list.len; i++) {
        const Rule *r = &rules.list.data[i];
        if (!r->used) s = refuse_unused(m, r, cx);
    }
    return s == OK ? refuse_low_ranks(m, cx) : s;
}
