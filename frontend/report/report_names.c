/* SPDX-License-Identifier: Apache-2.0 */
/* report_names.c: kernels by what they do for the model. */
#include "frontend/report/report_names.h"

#include <string.h>

#include "ir/graph/names.h"

enum { NAMES = 3 }; /* most names in one kernel's name */

/* Names in the order in which they were met, each once. */
typedef struct NameList {
    Str of[NAMES];
    int n; /* may exceed NAMES: the others are counted only */
} NameList;

static void name_add(NameList *l, Str name) {
    for (int i = 0; i < l->n && i < NAMES; i++)
        if (l->of[i] == name) return;
    if (l->n < NAMES) l->of[l->n] = name;
    l->n++;
}

/* "verb a, b, c and 4 more" */
static void put_name_list(const char *verb, const NameList *l, StrBuf *sb) {
    sb_puts(sb, verb);
    for (int i = 0; i < l->n && i < NAMES; i++)
        sb_printf(sb, "%s%s", i ? ", " : " ", l->of[i]);
    if (l->n > NAMES) sb_printf(sb, " and %d more", l->n - NAMES);
}

/* ---- what it writes ------------------------------------------------------ */

/* The rule that made a parameter's next value: its value is named after the
   parameter and the optimizer, "fc1.weight.adamw.2". */
static Str rule_of(const Var *p, const Value *v) {
    size_t n = strlen(p->name);
    if (!v->name || strncmp(v->name, p->name, n) || v->name[n] != '.')
        return intern("update");
    const char *rule = v->name + n + 1;
    return intern_n(rule, strcspn(rule, "."));
}

/* True if the kernel writes variables of that kind: their names, and the rule
   of the last one. */
static bool writes_kind(const Flow *f, int group, VarKind kind, NameList *l,
                        Str *rule) {
    for (int i = f->first[group]; i < f->end[group]; i++) {
        const Node *n = node_at(f->g, i);
        for (int k = 0; k < n->nout; k++) {
            const Value *v = value_get(f->g, n->out[k]);
            if (v->home < 0) continue;
            const Var *var = &f->g->module->vars.data[v->home];
            if (var->kind != kind) continue;
            name_add(l, var->name);
            *rule = rule_of(var, v);
        }
    }
    return l->n > 0;
}

static bool name_by_writes(const Flow *f, int group, StrBuf *sb) {
    static const struct {
        VarKind kind;
        const char *verb; /* NULL: the optimizer's rule */
    } rows[] = {{VAR_PARAM, NULL},
                {VAR_GRAD, "add to"},
                {VAR_BUFFER, "update"},
                {VAR_SHADOW, "copy to"},
                {VAR_STATE, "update"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        NameList l = {0};
        Str rule;
        if (!writes_kind(f, group, rows[i].kind, &l, &rule)) continue;
        put_name_list(rows[i].verb ? rows[i].verb : rule, &l, sb);
        return true;
    }
    return false;
}

/* ---- gradients ----------------------------------------------------------- */

/* The parameter for whose gradient a value is named: "fc1.weight.grad" and,
   with `parts`, "fc1.weight.grad.reduce_sumsq"; NULL: none. */
static Str param_of_grad(const Graph *g, const Value *v, bool parts) {
    const char *dot = v->name ? strstr(v->name, ".grad") : NULL;
    if (!dot || (dot[5] && !parts)) return NULL;
    Str name = intern_n(v->name, (size_t)(dot - v->name));
    int var = module_find_var(g->module, name);
    return var >= 0 && g->module->vars.data[var].kind == VAR_PARAM ? name
                                                                   : NULL;
}

static bool name_by_gradients(const Flow *f, int group, StrBuf *sb) {
    const Graph *g = f->g;
    NameList made = {0}, read = {0};
    for (int i = f->first[group]; i < f->end[group]; i++) {
        const Node *n = node_at(g, i);
        Str of = param_of_grad(g, value_get(g, n->out[0]), false);
        if (of && n->flags & NODE_BACKWARD) name_add(&made, of);
        of = param_of_grad(g, value_get(g, n->out[0]), true);
        if (of && n->flags & NODE_UPDATE) name_add(&read, of);
    }
    if (made.n) put_name_list("gradient of", &made, sb);
    if (made.n || !read.n) return made.n > 0;
    put_name_list("norm of the gradient of", &read, sb);
    return true;
}

/* ---- the model's nodes --------------------------------------------------- */

/* Nodes of which this kernel computes a part; what backward computes again is
   left out if there is more. */
static bool counts(const Node *n, bool again) {
    return n->loc.named && n->loc.does && (again || !(n->flags & NODE_AGAIN));
}

static int put_group_nodes(const Flow *f, int group, bool again, StrBuf *sb) {
    Str named[NAMES + 1] = {0}, layer = NULL;
    int put = 0;
    for (int i = f->first[group]; i < f->end[group]; i++) {
        const Node *n = node_at(f->g, i);
        bool known = !counts(n, again);
        for (int k = 0; k < put && !known; k++)
            known = named[k] == n->loc.named;
        if (known) continue;
        if (put == NAMES) {
            sb_puts(sb, " + ..");
            return put;
        }
        named[put++] = n->loc.named;
        if (put > 1) sb_puts(sb, " + ");
        sb_puts(sb, n->loc.does);
        Str where = n->loc.layer ? n->loc.layer : put > 1 ? NULL : n->loc.named;
        if (where && where != layer) sb_printf(sb, " %s", where);
        layer = n->loc.layer ? n->loc.layer : layer;
    }
    return put;
}

void report_kernel_name(const Flow *f, int group, StrBuf *sb) {
    const Node *last = node_at(f->g, f->end[group] - 1);
    StrBuf nodes = {0};
    if (name_by_writes(f, group, sb) || name_by_gradients(f, group, sb)) return;
    bool backward = last->flags & NODE_BACKWARD;
    if (put_group_nodes(f, group, false, &nodes) ||
        put_group_nodes(f, group, true, &nodes))
        sb_printf(sb, "%s%s", backward ? "backward of " : "", nodes.data);
    else
        sb_printf(sb, "%s of %s", op_info[last->op].text,
                  value_get(f->g, last->out[0])->name);
    sb_free(&nodes);
}
