/* policy.c: --amp-policy FILE, and the model's own `policy` block before it:
   autocast classes that the user gives to nodes.
   Before:  %y = softmax %x {axis=1} : f32[4,8]
   After:   %y = softmax %x {axis=1} : f32[4,8] !low       with "op softmax low"
   A line is `op NAME CLASS` (NAME of ampc --list-ops or of a function, in any
   case and with or without underscores) or `node GLOB CLASS` (nodes of the
   model; where it names none, their first results), or a comment behind #.
   Later lines win; a region of the text wins over both.  Gradients of a node
   have its class.
     low      it reads 16 bits
     full     it reads and returns fp32; fullout: returns
     widest, follow, any: whatever is cheapest, also where fp32 was due
   requires     stage TYPED                                                  */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "passes/passes.h"

typedef struct Rule {
    bool op;
    Str name; /* or glob */
    AmpClass class;
    Loc loc;
    bool used;
} Rule;

typedef VEC(Rule) Rules;

static bool same_letters(const char *a, const char *b) {
    for (;; a++, b++) {
        while (*a == '_') a++;
        while (*b == '_') b++;
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b))
            return false;
        if (!*a) return true;
    }
}

static bool applies(const Rule *r, const Graph *g, const Node *n) {
    const char *name =
        n->loc.node ? n->loc.node : value_get(g, n->out[0])->name;
    if (r->op) return same_letters(r->name, node_info(n)->text);
    return name && glob_match(r->name, name);
}

/* Words of a line, in place; how many. */
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

static Status read_line(char *line, Loc loc, Rules *rules, PassCtx *cx) {
    char *word[3];
    int n = split(line, word, 3), class = 0;
    if (!n) return OK;
    if (n != 3 || (strcmp(word[0], "op") && strcmp(word[0], "node")))
        return fail(cx->diag, loc, "'op NAME CLASS' or 'node GLOB CLASS'");
    while (class < AMP_NONE && strcmp(word[2], amp_class_text[class])) class ++;
    if (class == AMP_NONE)
        return fail(cx->diag, loc,
                    "'%s' is no class: low, full, fullout, widest, follow, any",
                    word[2]);
    Rule r = {!strcmp(word[0], "op"), intern(word[1]), (AmpClass) class, loc,
              false};
    vec_push(cx->scratch, rules, r);
    return OK;
}

static Status read_block(const Module *m, Rules *rules, PassCtx *cx) {
    for (int i = 0; i < m->policy.len; i++) {
        const Setting *s = &m->policy.data[i];
        char *line = arena_dup(cx->scratch, s->text, strlen(s->text) + 1);
        TRY(read_line(line, s->loc, rules, cx));
    }
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
        TRY(read_line(line, loc, rules, cx));
    }
    return OK;
}

static void apply(const Graph *g, Node *n, Rules *rules) {
    unsigned char amp = 0;
    for (int i = 0; i < rules->len; i++) {
        Rule *r = &rules->data[i];
        if (!applies(r, g, n)) continue;
        r->used = true;
        amp = (unsigned char)(1 + r->class);
    }
    if (!n->loc.amp) n->loc.amp = amp;
}

Status pass_policy(Module *m, PassCtx *cx) {
    Rules rules = {0};
    Status s = OK;
    TRY(read_block(m, &rules, cx));
    TRY(read_rules(&rules, cx));
    if (!rules.len) return OK;
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        for (int k = 0; k < g->order.len; k++)
            apply(g, node_get(g, g->order.data[k]), &rules);
    }
    for (int i = 0; i < rules.len; i++) {
        const Rule *r = &rules.data[i];
        if (!r->used)
            s = fail(cx->diag, r->loc, "no %s of the model is '%s'",
                     r->op ? "op" : "node", r->name);
    }
    return s;
}
