/* SPDX-License-Identifier: Apache-2.0 */
/* print.c: the text form.  What is printed, parse.c reads, and prints again
   to the same bytes.  Dead constants and nodes are left out; a variable is
   declared where it is read or written.

     module "mlp" {producer="pytorch"}

     graph train(%x: f32[64,784]) on cpu arena 65536 {
       param %w: f32[784,10], %b: f32[10]
       const %m: f32[2] = [1, 2]
       group row {
         %y = matmul %x, %w {trans_b=1} : f32[64,10] @1024 !backward
       }
       write %w = %w.new
       return %loss, logits=%z
     } */
#include "ir/fn/fn.h"
#include "ir/graph/ir_impl.h"
#include "ir/text/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- words --------------------------------------------------------------- */

static bool plain_name(const char *s) {
    if (!*s) return false;
    for (; *s; s++)
        if (!name_char(s[0], s[1])) return false;
    return true;
}

static void put_name(StrBuf *sb, Str s) {
    sb_puts(sb, "%");
    if (plain_name(s))
        sb_puts(sb, s);
    else
        sb_put_quoted(sb, s);
}

/* Names of graphs, modules, outputs: no % in front, so no digit or - first. */
static void put_word(StrBuf *sb, Str s) {
    bool word = (s[0] >= 'a' && s[0] <= 'z') || (s[0] >= 'A' && s[0] <= 'Z') ||
                s[0] == '_';
    if (word && plain_name(s))
        sb_puts(sb, s);
    else
        sb_put_quoted(sb, s);
}

/* ---- attributes ---------------------------------------------------------- */

static void print_put_attr(StrBuf *sb, const Attr *a) {
    const AttrInfo *info = attr_get(a->key);
    sb_printf(sb, "%s=", info->text);
    switch (info->kind) {
    case ATTR_INT: sb_printf(sb, "%lld", (long long)a->u.i); break;
    case ATTR_FLOAT: sb_put_double(sb, a->u.f, false); break;
    case ATTR_STR: sb_put_quoted(sb, a->u.s); break;
    case ATTR_INTS:
        sb_puts(sb, "[");
        for (int i = 0; i < a->u.ints.n; i++)
            sb_printf(sb, "%s%lld", i ? "," : "", (long long)a->u.ints.v[i]);
        sb_puts(sb, "]");
        break;
    }
}

/* ---- values -------------------------------------------------------------- */

static void put_operand(StrBuf *sb, const Graph *g, ValueId id) {
    if (!is_value(id)) {
        sb_puts(sb, "_");
        return;
    }
    const Value *v = value_get(g, id);
    if (v->name) {
        put_name(sb, v->name);
        return;
    }
    DType d = type_get(v->type)->dtype;
    put_element(sb, v->data, 0);
    if (d != DT_F32) sb_printf(sb, ":%s", dtype_info[d].text);
}

/* "f32[2] @1024": a type and the memory plan's place of the value. */
static void put_typed(StrBuf *sb, const Graph *g, const Value *v) {
    sb_put_type(sb, v->type);
    if (v->offset >= 0) sb_printf(sb, " @%lld", (long long)v->offset);
    if (v->home >= 0) {
        sb_puts(sb, " @");
        put_name(sb, g->module->vars.data[v->home].name);
    }
}

static void print_put_declared(StrBuf *sb, const Graph *g, const Value *v) {
    put_name(sb, v->name);
    sb_puts(sb, ": ");
    put_typed(sb, g, v);
}

/* ---- variables ----------------------------------------------------------- */

/* " = 0.9"; nothing for zero, and for data too large to show. */
static void put_init(StrBuf *sb, const Var *v) {
    StrBuf text = {0};
    const Type *t = type_get(v->type);
    int64_t n = type_count(t);
    uint64_t storage = 0;
    Tensor one = {.type = type_scalar(t->dtype), .data = &storage};
    bool shown = v->init && v->kind != VAR_PARAM &&
                 (n <= INIT_SHOWN || data_all_equal(v->init, n));
    if (v->init_text) {
        sb_puts(&text, v->init_text);
    } else if (!v->init && (v->fill != 0 || signbit(v->fill))) {
        /* the number in the variable's dtype */
        tensor_set(&one, 0, v->fill);
        put_element(&text, &one, 0);
    } else if (shown) {
        put_data(&text, v->init);
    }
    if (text.len && strcmp(text.data, "0") != 0)
        sb_printf(sb, " = %s", text.data);
    sb_free(&text);
}

static void print_put_option(StrBuf *sb, bool *any, const char *name) {
    sb_printf(sb, "%s%s=", *any ? ", " : " {", name);
    *any = true;
}

/* " {lr_scale=0.1}": the options that differ from the defaults. */
static void put_var_options(StrBuf *sb, const Var *v) {
    bool any = false;
    if (v->lr_scale != 1) {
        print_put_option(sb, &any, "lr_scale");
        sb_put_double(sb, v->lr_scale, false);
    }
    if (v->stored_dtype != type_get(v->type)->dtype) {
        print_put_option(sb, &any, "stored");
        sb_puts(sb, dtype_info[v->stored_dtype].text);
    }
    if (!isnan(v->weight_decay)) {
        print_put_option(sb, &any, "weight_decay");
        sb_put_double(sb, v->weight_decay, false);
    }
    if (v->why) {
        print_put_option(sb, &any, "why");
        sb_put_quoted(sb, v->why);
    }
    if (any) sb_puts(sb, "}");
}

static bool print_used_elsewhere(const Graph *g, int var, Arena *scratch) {
    const Module *m = g->module;
    for (int i = 0; i < m->graphs.len; i++) {
        const Graph *h = m->graphs.data[i];
        ValueId v = h == g ? NO_VALUE : graph_find_var(h, var);
        if (is_value(v) && graph_use_counts(h, scratch)[v.i]) return true;
    }
    return false;
}

/* Marks the values that the text declares. The first graph also declares
   variables that no graph uses, so that they are not lost. */
static int *shown_values(const Graph *g, Arena *scratch) {
    int *shown = graph_use_counts(g, scratch);
    bool first = g->module->graphs.len && g->module->graphs.data[0] == g;
    for (int i = 0; i < g->writes.len; i++) shown[g->writes.data[i].var.i]++;
    for (int i = 1; i < g->values.len; i++) {
        int home = g->values.data[i].home;
        if (home >= 0) shown[graph_find_var(g, home).i]++;
    }
    for (int i = 1; first && i < g->values.len; i++) {
        const Value *v = &g->values.data[i];
        if (v->kind == VK_VAR && !shown[i])
            shown[i] = !print_used_elsewhere(g, v->var, scratch);
    }
    return shown;
}

/* Declarations of one kind share a line of at most 80 columns. */
static void print_vars(StrBuf *sb, const Graph *g, const int *shown) {
    StrBuf item = {0};
    int kind = -1;
    size_t line = sb->len;
    for (int i = 1; i < g->values.len; i++) {
        const Value *v = &g->values.data[i];
        if (v->kind != VK_VAR || !shown[i]) continue;
        const Var *var = &g->module->vars.data[v->var];
        item.len = 0;
        print_put_declared(&item, g, v);
        put_init(&item, var);
        put_var_options(&item, var);
        if ((int)var->kind == kind && sb->len - line + item.len + 2 <= 80) {
            sb_puts(sb, ", ");
        } else {
            if (kind >= 0) sb_puts(sb, "\n");
            line = sb->len;
            sb_printf(sb, "  %s ", var_kind_text[var->kind]);
        }
        sb_putn(sb, item.data, item.len);
        kind = (int)var->kind;
    }
    if (kind >= 0) sb_puts(sb, "\n");
    sb_free(&item);
}

static void print_consts(StrBuf *sb, const Graph *g, const int *shown) {
    for (int i = 1; i < g->values.len; i++) {
        const Value *v = &g->values.data[i];
        if (v->kind != VK_CONST || !v->name || !shown[i]) continue;
        sb_puts(sb, "  const ");
        print_put_declared(sb, g, v);
        sb_puts(sb, " = ");
        if (v->init_text)
            sb_puts(sb, v->init_text);
        else
            put_data(sb, v->data);
        sb_puts(sb, "\n");
    }
}

/* ---- nodes --------------------------------------------------------------- */

void print_node(const Graph *g, const Node *n, StrBuf *sb) {
    for (int i = 0; i < n->nout; i++) {
        if (i) sb_puts(sb, ", ");
        put_name(sb, value_get(g, n->out[i])->name);
    }
    sb_printf(sb, " = %s", node_info(n)->text);
    for (int i = 0; i < n->nin; i++) {
        sb_puts(sb, i ? ", " : " ");
        put_operand(sb, g, n->in[i]);
    }
    for (int i = 0; i < n->nattr; i++) {
        sb_puts(sb, i ? ", " : " {");
        print_put_attr(sb, &n->attrs[i]);
    }
    sb_puts(sb, n->nattr ? "} :" : " :");
    for (int i = 0; i < n->nout; i++) {
        sb_puts(sb, i ? ", " : " ");
        put_typed(sb, g, value_get(g, n->out[i]));
    }
    if (n->loc.amp) sb_printf(sb, " !%s", amp_class_text[n->loc.amp - 1]);
    if (n->loc.factors)
        sb_printf(sb, " !factors=%s", factors_text[n->loc.factors]);
    if (n->loc.region) sb_printf(sb, " !checkpoint=%d", n->loc.region);
    if (n->loc.chunk) sb_printf(sb, " !chunk=%d", n->loc.chunk);
    if (n->flags & NODE_BACKWARD) sb_puts(sb, " !backward");
    if (n->flags & NODE_UPDATE) sb_puts(sb, " !update");
    if (n->flags & NODE_AGAIN) sb_puts(sb, " !again");
    if (n->loc.named) {
        sb_puts(sb, " !of=");
        sb_put_quoted(sb, n->loc.named);
    }
    sb_puts(sb, "\n");
}

static void print_nodes(StrBuf *sb, const Graph *g) {
    int open = -1;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (open >= 0 && n->group != open) sb_puts(sb, "  }\n");
        if (n->group >= 0 && n->group != open) {
            Group group = g->groups.data[n->group];
            sb_printf(sb, "  group %s%s", group_kind_text[group.kind],
                      group.after    ? " after"
                      : group.beside ? " beside"
                                     : "");
            if (is_value(group.guard.when)) {
                sb_puts(sb, group.guard.unless ? " unless " : " if ");
                put_operand(sb, g, group.guard.when);
            }
            sb_puts(sb, " {\n");
        }
        open = n->group;
        sb_puts(sb, open >= 0 ? "    " : "  ");
        print_node(g, n, sb);
    }
    if (open >= 0) sb_puts(sb, "  }\n");
}

static void print_effects(StrBuf *sb, const Graph *g) {
    for (int i = 0; i < g->writes.len; i++) {
        sb_puts(sb, "  write ");
        put_operand(sb, g, g->writes.data[i].var);
        sb_puts(sb, " = ");
        put_operand(sb, g, g->writes.data[i].value);
        if (g->writes.data[i].bucket)
            sb_printf(sb, " bucket %d", g->writes.data[i].bucket);
        sb_puts(sb, "\n");
    }
    sb_puts(sb, "  return");
    for (int i = 0; i < g->outputs.len; i++) {
        const Output *o = &g->outputs.data[i];
        sb_puts(sb, i ? ", " : " ");
        if (value_get(g, o->value)->name != o->name) {
            put_word(sb, o->name);
            sb_puts(sb, "=");
        }
        put_operand(sb, g, o->value);
    }
    sb_puts(sb, "\n");
}

/* ---- graphs and modules -------------------------------------------------- */

void print_graph(const Graph *g, StrBuf *sb) {
    Arena *scratch = arena_new();
    int *shown = shown_values(g, scratch);
    sb_puts(sb, "graph ");
    put_word(sb, g->name);
    sb_puts(sb, "(");
    for (int i = 0; i < g->inputs.len; i++) {
        if (i) sb_puts(sb, ", ");
        print_put_declared(sb, g, value_get(g, g->inputs.data[i]));
    }
    sb_puts(sb, ")");
    if (g->target != TARGET_ANY)
        sb_printf(sb, " on %s", target_text[g->target]);
    if (g->arena_bytes) sb_printf(sb, " arena %lld", (long long)g->arena_bytes);
    sb_puts(sb, " {\n");
    print_vars(sb, g, shown);
    print_consts(sb, g, shown);
    print_nodes(sb, g);
    print_effects(sb, g);
    sb_puts(sb, "}\n");
    arena_free(scratch);
}

static void print_header(const Module *m, StrBuf *sb) {
    bool any = false;
    if (!m->name[0] && !m->producer && m->class_axis < 0) return;
    sb_puts(sb, "module ");
    put_word(sb, m->name);
    if (m->class_axis >= 0) {
        print_put_option(sb, &any, "class_axis");
        sb_printf(sb, "%d", m->class_axis);
    }
    if (m->producer) {
        print_put_option(sb, &any, "producer");
        sb_put_quoted(sb, m->producer);
    }
    sb_puts(sb, any ? "}\n\n" : "\n\n");
}

void print_module(const Module *m, StrBuf *sb) {
    print_header(m, sb);
    for (int i = 0; i < m->fns.len; i++) {
        if (!m->fns.data[i]->size)
            continue; /* the text of the next token
                         contains it */
        sb_putn(sb, m->fns.data[i]->text, m->fns.data[i]->size);
        sb_puts(sb, "\n\n");
    }
    for (int i = 0; i < m->graphs.len; i++) {
        if (i) sb_puts(sb, "\n");
        print_graph(m->graphs.data[i], sb);
    }
}
