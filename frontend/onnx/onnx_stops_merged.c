/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_stops_merged.c: values that another one stands for, because the
   exporter merged equal nodes or dropped a copy. */
#include <stdlib.h>
#include <string.h>

#include "frontend/onnx/onnx_stops.h"

void stops_put(Stops *s, int node, int k) {
    Ox *ox = s->ox;
    Str from = ox->nodes.data[node].in[k];
    int old = str_map_get(&s->stopped, from);
    if (old >= 0) {
        ox->nodes.data[node].in[k] = ox->nodes.data[old].out[0];
        return;
    }
    Onnx__NodeProto *p = NEW(ox->scratch, Onnx__NodeProto);
    onnx__node_proto__init(p);
    OxNode n = ox->nodes.data[node];
    n.proto = p;
    n.type = intern("Identity");
    n.op = ox_op_find("Identity");
    n.domain = intern("");
    n.nin = n.nout = 1;
    n.nattr = n.captured = 0;
    n.in = NEW(ox->scratch, Str);
    n.out = NEW(ox->scratch, Str);
    n.in[0] = from;
    n.out[0] = n.name = internf("%.80s.detach.%d", from, ox->nodes.len);
    if (ox_name_of(ox, n.name)) return; /* the model itself says so */
    str_map_put(ox->scratch, &s->stopped, from, ox->nodes.len);
    vec_push(ox->scratch, &ox->nodes, n);
    (void)ox_define_results(ox, ox->nodes.len - 1);
    ox_name_of(ox, n.name)->stops = true;
    ox->nodes.data[node].in[k] = n.name;
}

void stops_doubt(Doubt *d, const OxNode *n) {
    if (!d->count++) d->first = n->name;
}

/* True for two nodes of one op, as linear and linear_1. */
static bool of_one_op(Str a, Str b) {
    size_t n[2], i = 0;
    for (const char *s = a; i < 2; i++, s = b) {
        const char *end = strrchr(s, '_');
        bool counts = end && end[1] && !end[1 + strspn(end + 1, "0123456789")];
        n[i] = counts ? (size_t)(end - s) : strlen(s);
    }
    return n[0] == n[1] && !memcmp(a, b, n[0]);
}

/* The number of operands with that name, minus that of arguments with it. */
static int unnamed(const Stops *s, int node, const Reads *r, Str name) {
    const OxNode *n = &s->ox->nodes.data[node];
    int count = 0;
    for (int i = 0; i < r->nouter; i++)
        count += stops_called(s, node, n->in[r->outer[i]]) == name;
    for (int k = 0; k < r->nargs; k++) count -= r->args[k] == name;
    return count;
}

/* The number of nodes of PyTorch's graph that read the node's result and whose
   record the file lacks. */
static int unseen_users(Stops *s, int node) {
    const char *at = strstr(ox_text(s->fx[node].all), "[num_users=");
    int users = at ? atoi(at + strlen("[num_users=")) : 0;
    StrMap seen = {0};
    for (int i = 0; i < s->nodes; i++) {
        const Fx *fx = &s->fx[i];
        if (!fx->all || !fx->name || str_map_get(&seen, fx->name) >= 0 ||
            !ox_torch_reads(fx->all, s->fx[node].name))
            continue;
        str_map_put(s->ox->scratch, &seen, fx->name, 0);
        users--;
    }
    return users;
}

/* The only operand that trains, if a node computed it; else NULL. */
static Str only_trained(const Stops *s, const OxNode *n) {
    Str of = NULL;
    for (int k = 0; k < n->nin; k++) {
        if (!stops_trains(s, n->in[k]) || n->in[k] == of) continue;
        if (of || !stops_maker(s, n->in[k])) return NULL;
        of = n->in[k];
    }
    return of;
}

/* The value is computed, from node to node of one operand that trains, from a
   value that was read once more: there an equal computation began, and
   wherever it detached, no gradient passed it. */
static bool is_function_of_one(Stops *s, Str value) {
    const OxNode *n = stops_maker(s, value);
    for (int i = 0; n && i < s->nodes; i++) { /* a file may hold a circle */
        Str of = only_trained(s, n);
        const OxNode *by = of ? stops_maker(s, of) : NULL;
        if (!by) return false;
        int node = (int)(by - s->ox->nodes.data);
        bool inside = s->fx[node].all == s->fx[n - s->ox->nodes.data].all;
        if (!inside && unseen_users(s, node) > 0) return true;
        n = by;
    }
    return false;
}

/* The node's line says detach() as often as its nodes name values that were
   merged with equal ones: each of those is one of a detached value. The index
   of the operand that is argument k; -1: the line does not tell. */
static int stopped_operand(Stops *s, int node, const Reads *r, int k, int i) {
    const OxNode *n = &s->ox->nodes.data[node];
    int at = str_map_get(&s->lines, stops_trace(n));
    const Line *l = at < 0 ? NULL : &s->list.data[at];
    int operand = r->nouter == r->nargs ? r->outer[k] : r->outer[i];
    if (!l || l->copies ||
        (int64_t)l->times * l->says - l->named != l->merged ||
        !is_function_of_one(s, n->in[r->outer[i]]))
        return -1;
    return n->in[operand] == n->in[r->outer[i]] ? operand : -1;
}

void stops_find_merged(Stops *s, int node) {
    const OxNode *n = &s->ox->nodes.data[node];
    Reads r;
    stops_read_node(s, node, &r);
    for (int i = 0; i < r.nouter; i++) {
        Str operand = n->in[r.outer[i]], c = stops_called(s, node, operand);
        const OxNode *by = stops_maker(s, operand);
        Str block = by ? s->block[by - s->ox->nodes.data] : NULL;
        if (!by || !stops_trains(s, operand) || unnamed(s, node, &r, c) < 1 ||
            (block && block != s->block[node]))
            continue;
        for (int k = 0; k < r.nargs; k++)
            if (str_map_get(&s->known, r.args[k]) < 0 &&
                !stops_is_copy(r.args[k]) && of_one_op(r.args[k], c)) {
                int at = stopped_operand(s, node, &r, k, i);
                if (at >= 0)
                    stops_put(s, node, at);
                else
                    stops_doubt(&s->merged, n);
                return;
            }
    }
}

/* The line says detach() once more than its nodes show: its last value is
   detached. */
static bool hides_detach(const Stops *s, Str name) {
    const OxNode *n = stops_maker(s, name);
    int at = n ? str_map_get(&s->lines, stops_trace(n)) : -1;
    const Line *l = at < 0 ? NULL : &s->list.data[at];
    return l && (int64_t)l->times * l->says > (int64_t)l->named + l->copies;
}

/* The node compares its operands, as a loss compares with a target;
   contiguous() and inactive dropout make copies too, and do not imply
   detach(). */
static bool is_target(const Stops *s, int node) {
    static const char *const ops[] = {"aten.sub.", "aten.kl_div", "_loss",
                                      "aten.cosine_", "cross_entropy"};
    const char *op = ox_torch_node(&s->ox->nodes.data[node], "");
    size_t length = op ? strcspn(op, "]") : 0;
    for (size_t i = 0; op && i < sizeof ops / sizeof *ops; i++) {
        const char *at = strstr(op, ops[i]);
        if (at && at < op + length) return true;
    }
    return false;
}

void stops_find_copies(Stops *s, int node) {
    const OxNode *n = &s->ox->nodes.data[node];
    Reads r;
    bool is[MOST], clones = false, views = false;
    int lost = 0;
    if (str_map_get(&s->lines, stops_trace(n)) >= 0) return;
    stops_read_node(s, node, &r);
    for (int i = 0; i < r.nargs; i++)
        lost += is[i] =
            stops_is_copy(r.args[i]) && str_map_get(&s->known, r.args[i]) < 0;
    for (int i = 0; i < r.nargs; i++) {
        clones |= is[i] && stops_is_of(r.args[i], "clone");
        views |= is[i] && ox_torch_counts(r.args[i], "view");
    }
    for (int i = 0; i < r.nouter && lost; i++) {
        n = &s->ox->nodes.data[node]; /* a stop moves them */
        Str operand = n->in[r.outer[i]], name = stops_called(s, node, operand);
        if (!stops_reads_lost(&r, i, is, lost) || !stops_trains(s, operand))
            continue;
        if (hides_detach(s, operand))
            stops_put(s, node, r.outer[i]);
        else if (str_map_get(&s->read, name) >= 0 ||
                 (clones && is_target(s, node)))
            stops_doubt(&s->copies, n);
        else if (views && r.nargs == r.nouter)
            stops_doubt(&s->views, n);
    }
}
