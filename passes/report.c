/* report.c: what was decided, for people (text) and for tools (JSON).      */
#include "passes/passes.h"
#include "passes/target/flow.h"

#include <string.h>

static void put_json_string(StrBuf *sb, const char *s) {
    sb_puts(sb, "\"");
    sb_put_json(sb, s);
    sb_puts(sb, "\"");
}

static void put_type(StrBuf *sb, bool json, TypeId t) {
    if (json) sb_puts(sb, "\"");
    sb_put_type(sb, t);
    if (json) sb_puts(sb, "\"");
}

/* ---- parameters ---------------------------------------------------------- */

static bool is_model_var(const Var *v) {
    return v->kind == VAR_PARAM || v->kind == VAR_FROZEN ||
           v->kind == VAR_BUFFER;
}

static void put_param(bool json, const char *kind, const char *name,
                      TypeId type, const char *why, int64_t n, StrBuf *sb) {
    if (!json) {
        sb_printf(sb, "%-7s", kind);
        sb_put_escaped(sb, name);
        sb_puts(sb, "  ");
        sb_put_type(sb, type);
        sb_printf(sb, "  %s\n", why ? why : "");
        return;
    }
    sb_puts(sb, n ? ",\n{\"name\":" : "{\"name\":");
    put_json_string(sb, name);
    sb_printf(sb, ",\"kind\":\"%s\",\"type\":", kind);
    put_type(sb, true, type);
    sb_puts(sb, ",\"why\":");
    put_json_string(sb, why ? why : "");
    sb_puts(sb, "}");
}

void report_params(const Module *m, bool json, StrBuf *sb) {
    int64_t trained = 0, n = 0;
    if (json) sb_puts(sb, "[");
    for (int i = 0; i < m->vars.len; i++) {
        const Var *v = &m->vars.data[i];
        if (!is_model_var(v)) continue;
        int64_t count = type_count(type_get(v->type));
        if (v->kind == VAR_PARAM) trained += count;
        put_param(json, var_kind_text[v->kind], v->name, v->type, v->why, n++,
                  sb);
    }
    for (int i = 0; i < m->literals.len; i++) {
        const Literal *l = &m->literals.data[i];
        put_param(json, "number", l->name, l->type, l->why, n++, sb);
    }
    if (json)
        sb_puts(sb, "]\n");
    else
        sb_printf(sb, "%lld trained elements\n", (long long)trained);
}

/* ---- casts --------------------------------------------------------------- */

static const char *class_reason(AmpClass c) {
    switch (c) {
    case AMP_LOW: return "reads 16 bits (matrix units)";
    case AMP_FULL: return "computes in fp32, reads either";
    case AMP_FULLOUT: return "its result must be fp32";
    case AMP_WIDEST: return "follows its widest operand";
    case AMP_FOLLOW: return "follows its operand";
    case AMP_ANY: return "rounds nothing, follows its operand";
    case AMP_NONE: break;
    }
    return "the declared type of an output or variable";
}

/* Who asked for a cast: its first reader; none: a graph output. */
static const Node *cast_reader(const Graph *g, ValueId v) {
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        for (int k = 0; k < n->nin; k++)
            if (same_value(n->in[k], v)) return n;
    }
    return NULL;
}

static int64_t cast_bytes(const Graph *g, const Node *n) {
    return type_bytes(value_type(g, n->in[0])) +
           type_bytes(value_type(g, n->out[0]));
}

static void cast_line(const Graph *g, const Node *n, bool json, StrBuf *sb) {
    const Node *r = cast_reader(g, n->out[0]);
    const Value *from = value_get(g, n->in[0]);
    bool user = attr_int(n, AK_user, 0) != 0;
    bool weight = from->kind == VK_VAR;
    const char *why = user ? "written in the model"
                           : class_reason(r ? op_info[r->op].amp : AMP_NONE);
    const char *reader = r ? op_info[r->op].text : "output";
    const char *to = dtype_info[value_dtype(g, n->out[0])].text;
    const char *name = from->name ? from->name : "(constant)";
    if (json) {
        sb_puts(sb, "{\"value\":");
        put_json_string(sb, name);
        sb_puts(sb, ",\"from\":");
        put_type(sb, true, from->type);
        sb_printf(sb, ",\"to\":\"%s\",\"for\":\"%s\",\"why\":\"%s\"", to,
                  reader, why);
        sb_printf(sb, ",\"per\":\"%s\",\"bytes\":%lld}",
                  weight ? "update" : "step", (long long)cast_bytes(g, n));
        return;
    }
    sb_puts(sb, "  cast ");
    sb_put_escaped(sb, name);
    sb_puts(sb, " ");
    sb_put_type(sb, from->type);
    sb_printf(sb, " -> %s for %s: %s; %lld bytes%s\n", to, reader, why,
              (long long)cast_bytes(g, n),
              weight ? ", written by the update" : "");
}

static void value_line(const Graph *g, const Node *n, bool json, int *count,
                       StrBuf *sb) {
    if (n->op == OP_CAST || !n->nout) return;
    const Value *v = value_get(g, n->out[0]);
    if (!dtype_is_float(type_get(v->type)->dtype)) return;
    const char *why = class_reason(op_info[n->op].amp);
    if (json) {
        sb_puts(sb, (*count)++ ? ",\n" : "");
        sb_puts(sb, "{\"value\":");
        put_json_string(sb, v->name);
        sb_printf(sb, ",\"op\":\"%s\",\"type\":", op_info[n->op].text);
        put_type(sb, true, v->type);
        sb_printf(sb, ",\"why\":\"%s\"}", why);
        return;
    }
    sb_puts(sb, "  ");
    sb_put_type(sb, v->type);
    sb_printf(sb, " %s ", op_info[n->op].text);
    sb_put_escaped(sb, v->name);
    sb_printf(sb, ": %s\n", why);
}

static void casts_of_graph(const Graph *g, bool json, StrBuf *sb) {
    int casts = 0, values = 0;
    int64_t bytes = 0;
    if (json)
        sb_printf(sb, "{\"program\":\"%s\",\"casts\":[\n", g->name);
    else
        sb_printf(sb, "program %s\n", g->name);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        if (n->op != OP_CAST || !dtype_is_float(value_dtype(g, n->in[0])) ||
            !dtype_is_float(value_dtype(g, n->out[0])))
            continue;
        if (json && casts) sb_puts(sb, ",\n");
        casts++;
        bytes += cast_bytes(g, n);
        cast_line(g, n, json, sb);
    }
    if (json)
        sb_puts(sb, "],\"values\":[\n");
    else
        sb_printf(sb, "  %d casts, %lld bytes; values:\n", casts,
                  (long long)bytes);
    for (int i = 0; i < g->order.len; i++)
        value_line(g, node_get(g, g->order.data[i]), json, &values, sb);
    if (json) sb_puts(sb, "]}");
}

void report_casts(const Module *m, bool json, StrBuf *sb) {
    if (json) sb_puts(sb, "[");
    for (int i = 0; i < m->graphs.len; i++) {
        if (json && i) sb_puts(sb, ",\n");
        casts_of_graph(m->graphs.data[i], json, sb);
    }
    if (json) sb_puts(sb, "]\n");
}

/* ---- kernels ------------------------------------------------------------- */

/* note: how it runs, in lines or JSON members */
static void kernel_line(const Graph *g, int first, int last, bool json,
                        const char *note, StrBuf *sb) {
    const Node *end = node_get(g, g->order.data[last]);
    const char *kind = group_kind_text[g->groups.data[end->group].kind];
    const Value *v = value_get(g, end->out[0]);
    if (json)
        sb_printf(sb, "{\"kind\":\"%s\",\"ops\":[", kind);
    else
        sb_printf(sb, "  %-7s", kind);
    for (int i = first; i <= last; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        sb_printf(sb, json ? "%s\"%s\"" : "%s%s",
                  i == first ? ""
                  : json     ? ","
                             : " ",
                  op_info[n->op].text);
    }
    sb_puts(sb, json ? "],\"result\":" : " -> ");
    if (json)
        put_json_string(sb, v->name);
    else
        sb_put_escaped(sb, v->name);
    sb_puts(sb, json ? ",\"type\":" : " ");
    put_type(sb, json, v->type);
    while (*note) {
        size_t n = json ? strlen(note) : strcspn(note, "\n");
        sb_puts(sb, json ? "," : "\n          ");
        sb_putn(sb, note, n);
        note += n + (note[n] == '\n');
    }
    sb_puts(sb, json ? "}" : "\n");
}

/* What the groups of a program read from memory and write to it, each buffer
   once a group. */
static int64_t bytes_moved(Graph *g) {
    Arena *a = arena_new();
    const Flow *f = flow_new(g, a);
    int64_t sum = 0;
    for (int i = 0; i < f->read_at[f->ngroup]; i++)
        sum += flow_bytes(f, f->read[i]);
    for (uint32_t v = 1; v < (uint32_t)g->values.len; v++)
        if (f->def[v] >= 0 && f->stored[v]) sum += flow_bytes(f, (ValueId){v});
    arena_free(a);
    return sum;
}

static int launches(const Graph *g) {
    int n = 0;
    for (int i = 0; i < g->groups.len; i++) n += !g->groups.data[i].beside;
    return n;
}

static void kernels_of_graph(Graph *g, bool json, const char *const *notes,
                             StrBuf *sb) {
    long long bytes = (long long)bytes_moved(g);
    int count = 0;
    if (json)
        sb_printf(sb, "{\"program\":\"%s\",\"target\":\"%s\",\"kernels\":[\n",
                  g->name, target_text[g->target]);
    else
        sb_printf(sb, "program %s on %s\n", g->name, target_text[g->target]);
    for (int i = 0, j; i < g->order.len; i = j) {
        int group = node_get(g, g->order.data[i])->group;
        for (j = i + 1; j < g->order.len; j++)
            if (node_get(g, g->order.data[j])->group != group) break;
        if (group < 0) continue;
        if (json && count) sb_puts(sb, ",\n");
        count++;
        kernel_line(g, i, j - 1, json, notes[group], sb);
    }
    if (json)
        sb_printf(sb, "],\"launches\":%d,\"bytes\":%lld}", launches(g), bytes);
    else if (launches(g) < count)
        sb_printf(sb, "  %d kernels in %d launches, %lld bytes\n", count,
                  launches(g), bytes);
    else
        sb_printf(sb, "  %d kernels, %lld bytes\n", count, bytes);
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

/* ---- memory -------------------------------------------------------------- */

static int64_t var_bytes(const Module *m, VarKind k) {
    int64_t sum = 0;
    for (int i = 0; i < m->vars.len; i++)
        if (m->vars.data[i].kind == k)
            sum += type_bytes(type_get(m->vars.data[i].type));
    return sum;
}

void report_memory(const Module *m, bool json, StrBuf *sb) {
    TargetKind open = TARGET_ANY;
    sb_puts(sb, json ? "{\"arena\":{" : "");
    for (int i = 0; i < m->graphs.len; i++) {
        const Graph *g = m->graphs.data[i];
        const char *on = target_text[g->target];
        if (!json) {
            sb_printf(sb, "arena of %-8s on %-5s %12lld bytes\n", g->name, on,
                      (long long)g->arena_bytes);
            continue;
        }
        if (g->target != open) sb_printf(sb, "%s\"%s\":{", i ? "}," : "", on);
        sb_printf(sb, "%s\"%s\":%lld", g->target == open ? "," : "", g->name,
                  (long long)g->arena_bytes);
        open = g->target;
    }
    if (json && m->graphs.len) sb_puts(sb, "}");
    sb_puts(sb, json ? "},\"variables\":{" : "");
    for (int k = VAR_PARAM; k <= VAR_GRAD; k++) {
        long long n = (long long)var_bytes(m, (VarKind)k);
        if (json)
            sb_printf(sb, "%s\"%s\":%lld", k ? "," : "", var_kind_text[k], n);
        else
            sb_printf(sb, "%-26s %12lld bytes\n", var_kind_text[k], n);
    }
    if (json) sb_puts(sb, "}}\n");
}
