/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_stops_read.c: what the file tells of PyTorch's graph: the name and the
   arguments of each node, its block, and how often a line of Python says
   detach(). */
#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/onnx/onnx_stops.h"

static Fx fx_of(const OxNode *n) {
    Fx fx = {ox_metadata(n->proto->metadata_props, n->proto->n_metadata_props,
                         "pkg.torch.onnx.fx_node"),
             NULL};
    const char *s = fx.all;
    fx.name = s && *s == '%' ? ox_torch_next_name(&s) : NULL;
    return fx;
}

bool stops_is_of(Str name, const char *op) {
    size_t n = strlen(op);
    return !strncmp(name, op, n) && (!name[n] || name[n] == '_');
}

/* ---- blocks ---------------------------------------------------------------
 */

Str stops_trace(const OxNode *n) {
    return ox_text(ox_metadata(n->proto->metadata_props,
                               n->proto->n_metadata_props,
                               "pkg.torch.onnx.stack_trace"));
}

static Str block_of(const OxNode *n) {
    static const char open[] = "File \"<eval_with_key>";
    Str s = stops_trace(n);
    const char *end =
        !strncmp(s, open, strlen(open)) ? strchr(s + strlen(open), '"') : NULL;
    return end ? intern_n(s, (size_t)(end - s)) : NULL;
}

/* A word such as p_fc_weight or arg2_1. */
static bool has_word(const char *s, const char *start, bool number) {
    size_t n = strlen(start);
    for (const char *p = s; (p = strstr(p, start)); p += n) {
        bool whole = p == s || !ox_torch_in_name(p[-1]);
        if (whole && (!number || isdigit((unsigned char)p[n]))) return true;
    }
    return false;
}

/* The kind of block, from the trace of one node. */
static Block kind_told(const OxNode *n) {
    Str s = stops_trace(n);
    if (strstr(s, "wrap_with_set_grad_enabled(False")) return NO_GRAD;
    const char *next = strstr(s, "\n  File ");
    Str first = intern_n(s, next ? (size_t)(next - s) : strlen(s));
    if (has_word(first, "p_", false) || has_word(first, "b_", false))
        return NO_GRAD;
    return has_word(first, "arg", true) ? AUTOCAST : UNKNOWN;
}

Block stops_kind(const Stops *s, Str block) {
    int kind = str_map_get(&s->kinds, block);
    return kind < 0 ? NO_BLOCK : (Block)kind;
}

/* ---- what the nodes are ---------------------------------------------------
 */

static void read_arguments(Stops *s, const char *text) {
    text = text ? strstr(text, "(args = ") : NULL;
    for (Str name; text && (name = ox_torch_next_name(&text));)
        str_map_put(s->ox->scratch, &s->read, name, 1);
}

void stops_read_nodes(Stops *s) {
    Ox *ox = s->ox;
    for (int i = 0; i < ox->nodes.len; i++) {
        const OxNode *n = &ox->nodes.data[i];
        s->fx[i] = fx_of(n);
        s->block[i] = block_of(n);
        read_arguments(s, s->fx[i].all);
        if (s->fx[i].name)
            str_map_put(ox->scratch, &s->known, s->fx[i].name, i);
        if (!s->block[i]) continue;
        Block told = kind_told(n);
        if (told != UNKNOWN || stops_kind(s, s->block[i]) == NO_BLOCK)
            str_map_put(ox->scratch, &s->kinds, s->block[i], (int)told);
    }
    for (int i = 0; i < ox->signature.len; i++) {
        const OxSigned *x = &ox->signature.data[i];
        str_map_put(ox->scratch, &s->arguments,
                    *x->target ? x->target : x->argument, i);
        str_map_put(ox->scratch, &s->inputs, x->argument, i);
    }
}

/* A node of PyTorch's graph that the file lacks. */
static bool is_dropped(const Stops *s, Str name) {
    return str_map_get(&s->known, name) < 0 &&
           (str_map_get(&s->inputs, name) < 0 || stops_is_of(name, "detach"));
}

bool stops_is_copy(Str name) {
    static const char *const copies[] = {"clone", "_to_copy", "alias",
                                         "view",  "expand",   "copy"};
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++)
        if (stops_is_of(name, copies[i])) return true;
    return false;
}

static int count_of(const char *s, const char *text) {
    int n = 0;
    for (; (s = strstr(s, text)); s += strlen(text)) n++;
    return n;
}

/* True at the first call. */
static bool count_once(Stops *s, int line, Str name) {
    Str key = internf("%d:%s", line, name);
    if (str_map_get(&s->counted, key) >= 0) return false;
    str_map_put(s->ox->scratch, &s->counted, key, 1);
    return true;
}

/* Upper bound of how often the line ran: the count of its rarest op. */
static void count_times(Stops *s, int line, int node) {
    Str op = ox_torch_node(&s->ox->nodes.data[node], "");
    size_t length = op ? strcspn(op, "]") : 0;
    Str key = internf("%d=%.*s", line, (int)length, op ? op : "");
    if (!op || !count_once(s, line, internf("=%s", s->fx[node].name))) return;
    int before = str_map_get(&s->counted, key);
    str_map_put(s->ox->scratch, &s->counted, key, before < 0 ? 1 : before + 1);
}

static void find_times(Stops *s, int line, int node) {
    Str op = ox_torch_node(&s->ox->nodes.data[node], "");
    size_t length = op ? strcspn(op, "]") : 0;
    int n = str_map_get(&s->counted,
                        internf("%d=%.*s", line, (int)length, op ? op : ""));
    Line *l = &s->list.data[line];
    if (n > 0 && (!l->times || n < l->times)) l->times = n;
}

static int line_of(Stops *s, int node) {
    Str trace = stops_trace(&s->ox->nodes.data[node]);
    int says = count_of(trace, "detach("), at = str_map_get(&s->lines, trace);
    if (!says || !s->fx[node].name || at >= 0) return at;
    str_map_put(s->ox->scratch, &s->lines, trace, s->list.len);
    vec_push(s->ox->scratch, &s->list, (Line){.says = says});
    return s->list.len - 1;
}

/* A line that ran n times made n * says nodes of detach(): those that are not
   named went with the copies that were made of them. */
static Copied copies_of(const Line *l) {
    bool passes = false, stops = false, some = false;
    for (int n = 1; n <= l->times && !some; n++) {
        int64_t hidden = (int64_t)n * l->says - l->named;
        passes |= hidden == 0;
        stops |= hidden == l->copies;
        some |= hidden > 0 && hidden < l->copies;
    }
    return some || (passes && stops) ? EITHER : stops ? STOPS : PASSES;
}

void stops_read_lines(Stops *s) {
    int n = s->ox->nodes.len;
    for (int i = 0; i < n; i++) {
        int line = line_of(s, i);
        if (line < 0) continue;
        const char *text = strstr(s->fx[i].all, "(args = ");
        for (Str name; text && (name = ox_torch_next_name(&text));) {
            bool detach = stops_is_of(name, "detach");
            bool lost = is_dropped(s, name), copy = stops_is_copy(name);
            if ((!detach && !lost) || !count_once(s, line, name)) continue;
            s->list.data[line].named += detach;
            s->list.data[line].copies += lost && copy;
            s->list.data[line].merged += lost && !copy && !detach;
        }
        count_times(s, line, i);
    }
    for (int i = 0; i < n && s->list.len; i++) {
        int line = line_of(s, i);
        if (line >= 0) find_times(s, line, i);
    }
    for (int i = 0; i < s->list.len; i++) {
        Line *l = &s->list.data[i];
        if (!l->times) l->times = 1;
        l->copied = copies_of(l);
    }
}

void stops_find_trained(Stops *s) {
    Ox *ox = s->ox;
    for (int i = 0; i < ox->signature.len; i++) {
        const OxSigned *x = &ox->signature.data[i];
        const OxName *n = ox_name_of(ox, x->target);
        if (n && ox_signed_as(x, "PARAMETER"))
            s->trained[n - ox->names.data] = true;
    }
    for (int i = 0; i < ox->nodes.len; i++) {
        const OxNode *n = &ox->nodes.data[i];
        bool trained = false;
        for (int k = 0; k < n->nin; k++) {
            const OxName *x = ox_name_of(ox, n->in[k]);
            trained |= x && s->trained[x - ox->names.data];
        }
        for (int r = 0; r < n->nout && trained; r++) {
            const OxName *x = ox_name_of(ox, n->out[r]);
            if (x) s->trained[x - ox->names.data] = true;
        }
    }
}

bool stops_trains(const Stops *s, Str name) {
    const OxName *n = ox_name_of(s->ox, name);
    int64_t i = n ? n - s->ox->names.data : s->names;
    return i < s->names && s->trained[i];
}

const OxNode *stops_maker(const Stops *s, Str name) {
    const OxName *x = ox_name_of(s->ox, name);
    bool made = x && x->kind == OX_RESULT && x->index < s->nodes;
    return made ? &s->ox->nodes.data[x->index] : NULL;
}

Str stops_called(const Stops *s, int node, Str operand) {
    const OxName *n = ox_name_of(s->ox, operand);
    if (!n) return NULL;
    if (n->kind != OX_RESULT) {
        int at = str_map_get(&s->arguments, operand);
        return at < 0 ? NULL : s->ox->signature.data[at].argument;
    }
    if (n->index >= s->nodes) return NULL;
    Fx fx = s->fx[n->index];
    bool constant = onnx_is_op(s->ox->nodes.data[n->index].proto, "Constant");
    if (constant || fx.all == s->fx[node].all) return NULL;
    return fx.name ? fx.name : operand;
}

void stops_read_node(const Stops *s, int node, Reads *r) {
    const OxNode *n = &s->ox->nodes.data[node];
    const char *text = strstr(s->fx[node].all, "(args = ");
    *r = (Reads){.nargs = 0};
    for (Str name;
         text && r->nargs < MOST && (name = ox_torch_next_name(&text));)
        r->args[r->nargs++] = name;
    for (int k = 0; k < n->nin && r->nouter < MOST; k++) {
        Str c = stops_called(s, node, n->in[k]);
        bool named = false;
        if (!c) continue;
        for (int i = 0; i < r->nargs; i++) named |= r->args[i] == c;
        r->call[r->nouter] = named ? c : NULL;
        r->odd += !named;
        r->outer[r->nouter++] = k;
    }
}

void stops_count_odd(Stops *s) {
    Reads r;
    for (int i = 0; i < s->nodes; i++) {
        Str line = s->fx[i].name;
        if (!line) continue;
        stops_read_node(s, i, &r);
        for (int k = 0; k < r.nouter; k++) {
            Str key =
                internf("%s %s", line, s->ox->nodes.data[i].in[r.outer[k]]);
            if (r.call[k] || str_map_get(&s->odd, key) >= 0) continue;
            int before = str_map_get(&s->odd, line);
            str_map_put(s->ox->scratch, &s->odd, key, 0);
            str_map_put(s->ox->scratch, &s->odd, line,
                        before < 0 ? 1 : before + 1);
        }
    }
}

bool stops_reads_lost(const Reads *r, int i, const bool *is, int lost) {
    return r->odd == lost ? !r->call[i] : r->nouter == r->nargs && is[i];
}
