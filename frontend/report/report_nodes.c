/* SPDX-License-Identifier: Apache-2.0 */
/* report_nodes.c: the model's nodes by the names that policy lines use. */
#include <string.h>

#include "frontend/report/report.h"
#include "passes/passes.h"

static void put_json_text(StrBuf *sb, const char *key, const char *text) {
    sb_puts(sb, ",");
    sb_put_json_field(sb, key, text);
}

/* One op of a node; a node of the model may become several ops. */
static void put_report_node(const Graph *g, const Node *n, bool json,
                            StrBuf *sb) {
    const char *op = n->loc.does ? n->loc.does : node_info(n)->text;
    Str layer = n->loc.layer;
    const char *class = amp_class_text[node_class(n)];
    TypeId type = value_get(g, n->out[0])->type;
    if (json) {
        sb_puts(sb, "{");
        sb_put_json_field(sb, "node", n->loc.named);
        put_json_text(sb, "op", op);
        put_json_text(sb, "layer", layer);
        put_json_text(sb, "class", class);
        sb_printf(sb, ",\"policy\":%s,\"type\":\"",
                  n->loc.amp ? "true" : "false");
        sb_put_type(sb, type);
        sb_puts(sb, "\"}");
        return;
    }
    sb_put_escaped(sb, n->loc.named);
    sb_printf(sb, "  %s  ", op);
    sb_put_type(sb, type);
    sb_printf(sb, "  %s%s", class, n->loc.amp ? " (the policy)" : "");
    if (layer) {
        sb_puts(sb, "  of ");
        sb_put_escaped(sb, layer);
    }
    sb_puts(sb, "\n");
}

/* The program that trains, or the first one. */
void report_nodes(const Module *m, bool json, StrBuf *sb) {
    const Graph *g = m->graphs.len ? m->graphs.data[0] : NULL;
    int rows = 0;
    for (int i = m->graphs.len - 1; i >= 0; i--)
        if (m->graphs.data[i]->program == PROGRAM_TRAIN) g = m->graphs.data[i];
    if (json) sb_puts(sb, "[");
    for (int i = 0; g && i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (n->flags || !n->loc.named || n->op == OP_CAST) continue;
        if (json && rows++) sb_puts(sb, ",\n");
        put_report_node(g, n, json, sb);
    }
    if (json) sb_puts(sb, "]\n");
}
