/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_stops.c: finds where the gradient stops although no node says it.

   PyTorch's default export drops the nodes of detach(), but a node's fx_node
   still tells what it read,
       %mul : [..] = call_function[target=..](args = (%tanh, %detach), ..)
   while its operands are both 'tanh'.  A block under torch.no_grad() was a
   graph of its own, which shows in the first line of its nodes' stack traces; a
   block under torch.autocast() looks alike, but names parameters by numbers.
   ox_stops (onnx_names.c) handles the other exporters' marks. */
#include <limits.h>
#include <string.h>

#include "frontend/onnx/onnx_stops.h"

enum { PLACED = INT_MAX - 1 }; /* no node; a map holds no larger number */

/* The program reads `name`, whose node the exporter dropped: a detach(), or
   a copy of a value that the same line of Python detached. */
static bool is_lost_stop(Stops *s, int node, Str name) {
    if (str_map_get(&s->known, name) >= 0) return false;
    if (stops_is_of(name, "detach")) return true;
    int at = stops_is_copy(name)
                 ? str_map_get(&s->lines, stops_trace(&s->ox->nodes.data[node]))
                 : -1;
    Copied copied = at < 0 ? PASSES : s->list.data[at].copied;
    if (copied == EITHER) stops_doubt(&s->copies, &s->ox->nodes.data[node]);
    return copied == STOPS;
}

/* Operands of cat() and stack() are in the order of its arguments. */
static bool stop_in_order(Stops *s, int node, const Reads *r, const bool *is) {
    bool placed = false;
    const OxNode *n = &s->ox->nodes.data[node];
    /* no op: one that the import will refuse */
    if (!n->op || n->op->handler != OX_concat || n->nin != r->nargs)
        return false;
    for (int k = 0; k < r->nargs; k++) {
        if (!is[k]) continue;
        stops_put(s, node, k);
        placed = true;
    }
    return placed;
}

/* Operands of a node that reads the result of a detach() that the file
   lacks. */
static void restore_detach(Stops *s, int node) {
    Reads r;
    bool is[MOST];
    int lost = 0;
    stops_read_node(s, node, &r);
    for (int i = 0; i < r.nargs; i++)
        lost += is[i] = is_lost_stop(s, node, r.args[i]);
    bool trained = false, placed = stop_in_order(s, node, &r, is);
    if (placed) lost = 0;
    /* the line's other nodes may read other values that the file renamed */
    if (r.odd && lost) r.odd = str_map_get(&s->odd, s->fx[node].name);
    for (int i = 0; i < r.nouter && lost; i++) {
        trained |= stops_trains(s, s->ox->nodes.data[node].in[r.outer[i]]);
        if (!stops_reads_lost(&r, i, is, lost)) continue;
        stops_put(s, node, r.outer[i]);
        placed = true;
    }
    bool done = str_map_get(&s->placed, s->fx[node].name) == PLACED;
    if (placed || (trained && !done))
        str_map_put(s->ox->scratch, &s->placed, s->fx[node].name,
                    placed ? PLACED : node);
}

/* Some nodes of one line read the operands, and none got the stop. */
static void find_unplaced(Stops *s) {
    for (int i = 0; i < s->nodes; i++)
        if (s->fx[i].name && str_map_get(&s->placed, s->fx[i].name) == i)
            stops_doubt(&s->unplaced, &s->ox->nodes.data[i]);
}

/* The signature names the value as one that the forward writes to a
   parameter: PyTorch's gradient of it is the parameter's (onnx_mutation.c). */
static bool becomes_parameter(const Stops *s, Str value) {
    for (int i = 0; i < s->ox->signature.len; i++) {
        const OxSigned *x = &s->ox->signature.data[i];
        if (x->argument == value && ox_signed_as(x, "PARAMETER_MUTATION"))
            return true;
    }
    return false;
}

/* The trace begins with an op that writes to its first argument, such as
   torch.ops.aten.clamp_.default(h, -1, 1). */
static bool traced_in_place(const OxNode *n) {
    static const char start[] = "torch.ops.aten.";
    const char *op = strstr(stops_trace(n), start);
    const char *end = op ? strchr(op + strlen(start), '.') : NULL;
    return end && end[-1] == '_';
}

/* A block writes to a value that was computed outside of it. */
static bool overwrites_outer(const Stops *s, int node) {
    Str block = s->block[node];
    while (traced_in_place(&s->ox->nodes.data[node])) {
        Str first = ox_torch_argument(&s->ox->nodes.data[node], 0);
        if (!first || *first != '%') return false;
        Str name = intern(first + 1);
        const OxName *x = ox_name_of(s->ox, name);
        if (!x || x->kind != OX_RESULT || x->index >= node) return false;
        if (s->block[x->index] != block) return stops_trains(s, name);
        node = x->index;
    }
    return false;
}

/* Operands that leave a block. */
static void leave_block(Stops *s, int node) {
    int nin = s->ox->nodes.data[node].nin;
    for (int k = 0; k < nin; k++) {
        Str operand = s->ox->nodes.data[node].in[k];
        const OxName *x = ox_name_of(s->ox, operand);
        if (!x || x->kind != OX_RESULT || !stops_trains(s, operand)) continue;
        Str block = s->block[x->index];
        if (!block || block == s->block[node]) continue;
        Block kind = stops_kind(s, block);
        Str name = s->fx[x->index].name;
        /* equal values inside and outside of the block are one value in the
           file */
        Str reads = s->fx[node].all;
        if (name && reads && !ox_torch_reads(reads, name)) continue;
        if (kind == NO_GRAD && becomes_parameter(s, operand)) continue;
        if (kind == NO_GRAD && overwrites_outer(s, x->index) &&
            !ox_by_ampc(s->ox))
            stops_doubt(&s->overwritten, &s->ox->nodes.data[node]);
        if (kind == NO_GRAD) stops_put(s, node, k);
        if (kind == UNKNOWN && !ox_by_ampc(s->ox)) /* it writes detach() */
            stops_doubt(&s->unknown, &s->ox->nodes.data[node]);
    }
}

static void warn_doubts(const Stops *s) {
    const struct {
        const Doubt *at;
        const char *text;
    } rows[] = {
        {&s->copies,
         "node '%s' reads a copy whose node the exporter dropped; if the "
         "model copies a detached value (h.detach().clone()), the gradient "
         "must stop, and passes here: optimize=False keeps both nodes"},
        {&s->views,
         "node '%s' reads a view to its operand's own shape, whose node the "
         "exporter dropped; if a torch.autograd.Function returns it (gradient "
         "reversal), the file lacks its backward(): write it with detach(), as "
         "2 * x.detach() - x for a reversed gradient"},
        {&s->unknown,
         "node '%s' reads what was computed under torch.no_grad() or under "
         "torch.autocast(), the file does not tell which: the gradient "
         "passes; where it must stop, write .detach(), where the block wrote "
         "to a computed value h, h + (new - h).detach(), and export again"},
        {&s->merged,
         "node '%s' reads one of two equal nodes that the exporter merged; if "
         "the model computes one of them from a detached value, under "
         "torch.no_grad(), or by a layer whose weights only begin as equal, "
         "its gradient differs here: optimize=False keeps both nodes"},
        {&s->unplaced,
         "node '%s' reads a detached value, but the file does not tell by "
         "which operand: the gradient must stop, and passes here; export "
         "with optimize=False, which keeps the node of detach()"},
        {&s->in_place,
         "node '%s': its line says detach_(), which the exporter drops: the "
         "gradient passes; write detach() and export again"},
        {&s->overwritten,
         "node '%s' reads a value that was computed and then written to under "
         "torch.no_grad(): the gradient stops here; PyTorch passes it on to "
         "what was computed, unless that was detached; where it must pass, "
         "write h + (new - h).detach() and export again"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        StrBuf sb = {0};
        const char *hole = strstr(rows[i].text, "%s");
        if (!rows[i].at->count) continue;
        sb_putn(&sb, rows[i].text, (size_t)(hole - rows[i].text));
        sb_printf(&sb, "%s%s", ox_quote(s->ox, rows[i].at->first), hole + 2);
        ox_warn_model(s->ox, "%s", sb.data);
        sb_free(&sb);
    }
}

void ox_restore_stops(Ox *ox) {
    if (!ox->has_signature) return;
    int n = ox->nodes.len;
    Stops s = {.ox = ox,
               .names = ox->names.len,
               .nodes = n,
               .fx = NEW_ARRAY(ox->scratch, Fx, n + 1),
               .block = NEW_ARRAY(ox->scratch, Str, n + 1),
               .trained = NEW_ARRAY(ox->scratch, bool, ox->names.len + 1)};
    stops_read_nodes(&s);
    stops_read_lines(&s);
    stops_find_trained(&s);
    stops_count_odd(&s);
    for (int i = 0; i < n; i++) {
        if (s.fx[i].all && !s.fx[i].name) s.fx[i].all = NULL;
        if (strstr(stops_trace(&s.ox->nodes.data[i]), ".detach_("))
            stops_doubt(&s.in_place, &s.ox->nodes.data[i]);
        if (s.fx[i].all) stops_find_merged(&s, i);
        if (s.fx[i].all) stops_find_copies(&s, i);
        if (s.fx[i].all) restore_detach(&s, i);
        leave_block(&s, i);
    }
    find_unplaced(&s);
    if (options_train(ox->opt)) warn_doubts(&s);
}
