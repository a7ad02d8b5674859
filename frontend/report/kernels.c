/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.c: what each kernel computes, reads and writes. */
#include <string.h>

#include "frontend/report/report.h"
#include "frontend/report/report_names.h"
#include "passes/device/flow.h"

static void put_names(const Graph *g, const ValueId *v, int n, StrBuf *sb) {
    for (int i = 0; i < n; i++) {
        sb_puts(sb, i ? "," : "");
        sb_put_json_string(sb, value_get(g, v[i])->name);
    }
}

/* JSON members: the buffers that a kernel reads and writes. */
static void put_buffers(const Flow *f, int group, StrBuf *sb) {
    bool first = true;
    sb_puts(sb, ",\"reads\":[");
    put_names(f->g, f->read + f->read_at[group],
              f->read_at[group + 1] - f->read_at[group], sb);
    sb_puts(sb, "],\"writes\":[");
    for (int i = f->first[group]; i < f->end[group]; i++) {
        const Node *n = node_at(f->g, i);
        for (int k = 0; k < n->nout; k++) {
            if (!f->stored[n->out[k].i]) continue;
            sb_puts(sb, first ? "" : ",");
            put_names(f->g, &n->out[k], 1, sb);
            first = false;
        }
    }
    sb_puts(sb, "]");
}

/* note: how it runs, in lines or JSON members */
static void kernel_line(const Flow *f, int group, bool json, const char *note,
                        StrBuf *sb) {
    const Graph *g = f->g;
    int first = f->first[group], last = f->end[group] - 1;
    const Node *end = node_at(g, last);
    const char *kind = group_kind_text[g->groups.data[end->group].kind];
    const Value *v = value_get(g, end->out[0]);
    StrBuf name = {0};
    if (json)
        sb_printf(sb, "{\"kind\":\"%s\",\"part\":\"%s\",\"ops\":[", kind,
                  report_part_of(end));
    else
        sb_printf(sb, "  %-7s", kind);
    for (int i = first; i <= last; i++) {
        const Node *n = node_at(g, i);
        sb_printf(sb, json ? "%s\"%s\"" : "%s%s",
                  i == first ? ""
                  : json     ? ","
                             : " ",
                  op_info[n->op].text);
    }
    sb_puts(sb, json ? "],\"result\":" : " -> ");
    if (json)
        sb_put_json_string(sb, v->name);
    else
        sb_put_escaped(sb, v->name);
    sb_puts(sb, json ? ",\"type\":" : " ");
    report_put_type(sb, json, v->type);
    report_kernel_name(f, group, &name);
    if (json) {
        sb_puts(sb, ",\"name\":");
        sb_put_json_string(sb, name.data);
        put_buffers(f, group, sb);
    }
    while (*note) {
        size_t n = json ? strlen(note) : strcspn(note, "\n");
        sb_puts(sb, json ? "," : "\n          ");
        sb_putn(sb, note, n);
        note += n + (note[n] == '\n');
    }
    if (!json) {
        sb_puts(sb, "\n          for: ");
        sb_put_escaped(sb, name.data);
    }
    sb_free(&name);
    sb_puts(sb, json ? "}" : "\n");
}

static int launches(const Graph *g) {
    int n = 0;
    for (int i = 0; i < g->groups.len; i++) n += !g->groups.data[i].beside;
    return n;
}

static void kernels_of_graph(Graph *g, bool json, const char *const *notes,
                             StrBuf *sb) {
    Arena *a = arena_new();
    const Flow *f = flow_new(g, a);
    long long bytes = 0; /* each buffer once per group */
    for (int i = 0; i < f->read_at[f->ngroup]; i++)
        bytes += flow_bytes(f, f->read[i]);
    for (uint32_t v = 1; v < (uint32_t)g->values.len; v++)
        if (f->def[v] >= 0 && f->stored[v])
            bytes += flow_bytes(f, (ValueId){v});
    sb_printf(sb,
              json ? "{\"program\":\"%s\",\"target\":\"%s\",\"kernels\":[\n"
                   : "program %s on %s\n",
              g->name, target_text[g->target]);
    for (int i = 0; i < f->ngroup; i++) {
        if (json && i) sb_puts(sb, ",\n");
        kernel_line(f, i, json, notes[i], sb);
    }
    if (json)
        sb_printf(sb, "],\"launches\":%d,\"bytes\":%lld}", launches(g), bytes);
    else if (launches(g) < f->ngroup)
        sb_printf(sb, "  %d kernels in %d launches, %lld bytes\n", f->ngroup,
                  launches(g), bytes);
    else
        sb_printf(sb, "  %d kernels, %lld bytes\n", f->ngroup, bytes);
    arena_free(a);
}

void report_kernels(const Module *m, bool json, const char *const *notes,
                    const char *why, StrBuf *sb) {
    sb_puts(sb, json ? "[" : "");
    if (why && !json) sb_printf(sb, "no GPU code: %s\n", why);
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        if (json && i) sb_puts(sb, ",\n");
        kernels_of_graph(g, json, notes, sb);
        notes += g->groups.len;
    }
    if (json) sb_puts(sb, "]\n");
}
