/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_stops.c: finds where the gradient stops although no node says it.

   PyTorch's default export drops the nodes of detach(), but a node's fx_node
   still tells what it read,
       %mul : [..] = call_function[target=..](args = (%tanh, %detach), ..)
   while its operands are both 'tanh'.  A block under torch.no_grad() was a
   graph of its own, which shows in the first line of its nodes' stack traces; a
   block under torch.autocast() looks alike, but names parameters by numbers.
   ox_stops (onnx_names.c) handles the other exporters' marks. */
#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/onnx/onnx.h"

/* Name of an operand or a node in PyTorch's graph. */
typedef struct Fx {
    Str all;  /* the text; NULL: none */
    Str name; /* without '%' */
} Fx;

typedef enum Block { NO_BLOCK, NO_GRAD, AUTOCAST, UNKNOWN } Block;

/* The kind of copies that the exporter dropped: copies of values, or of
   detached values. */
typedef enum Copied { PASSES, STOPS, EITHER } Copied;

/* A line of Python that says detach(), and what its nodes read. */
typedef struct Line {
    int says;   /* how often the line says detach() */
    int named;  /* detach() nodes that its nodes name */
    int copies; /* dropped copies that its nodes name */
    int merged; /* other nodes that they name and the file lacks */
    int times;  /* upper bound of how often the line ran */
    Copied copied;
} Line;

/* Nodes at which the gradient may have to stop. */
typedef struct Doubt {
    Str first; /* the name of the first one */
    int count;
} Doubt;

typedef struct Stops {
    Ox *ox;
    int names, nodes; /* nodes of the file; nodes of stops follow them */
    Fx *fx;           /* by node */
    Str *block;       /* by node: the block that contains it; NULL: none */
    bool *trained;    /* by name: a function of parameters */
    StrMap known;     /* nodes in PyTorch's graph by name */
    StrMap arguments; /* name of an initializer or an input to its line of
                         the signature */
    StrMap stopped;   /* a value's name to the node of its stop */
    StrMap kinds;     /* a block's name to its Block */
    StrMap read;      /* names read by nodes in PyTorch's graph */
    StrMap inputs;    /* names of inputs and initializers in that graph */
    StrMap lines;     /* a trace that says detach(), to its Line */
    StrMap counted;   /* names that a line has counted already */
    StrMap placed;    /* lines of PyTorch's graph that got their stops */
    VEC(Line) list;
    Doubt copies;   /* reads a copy, perhaps of a detached value */
    Doubt unknown;  /* reads a block of unknown kind */
    Doubt merged;   /* reads a node that an equal node replaced */
    Doubt unplaced; /* reads a detached value through an unknown operand */
    Doubt in_place; /* its line says detach_(), which leaves no node */
} Stops;

static Fx fx_of(const OxNode *n) {
    Fx fx = {ox_metadata(n->proto->metadata_props, n->proto->n_metadata_props,
                         "pkg.torch.onnx.fx_node"),
             NULL};
    const char *s = fx.all;
    fx.name = s && *s == '%' ? ox_torch_next_name(&s) : NULL;
    return fx;
}

/* True for a name that numbers results of one op, as detach, detach_1,
   detach_. */
static bool is_of(Str name, const char *op) {
    size_t n = strlen(op);
    return !strncmp(name, op, n) && (!name[n] || name[n] == '_');
}

/* ---- blocks ---------------------------------------------------------------
 */

/* "" if the node has none. */
static Str trace_of(const OxNode *n) {
    return ox_text(ox_metadata(n->proto->metadata_props,
                               n->proto->n_metadata_props,
                               "pkg.torch.onnx.stack_trace"));
}

static Str block_of(const OxNode *n) {
    static const char open[] = "File \"<eval_with_key>";
    Str s = trace_of(n);
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
    Str s = trace_of(n);
    if (strstr(s, "wrap_with_set_grad_enabled(False")) return NO_GRAD;
    const char *next = strstr(s, "\n  File ");
    Str first = intern_n(s, next ? (size_t)(next - s) : strlen(s));
    if (has_word(first, "p_", false) || has_word(first, "b_", false))
        return NO_GRAD;
    return has_word(first, "arg", true) ? AUTOCAST : UNKNOWN;
}

static Block kind_of(const Stops *s, Str block) {
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

static void read_nodes(Stops *s) {
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
        if (told != UNKNOWN || kind_of(s, s->block[i]) == NO_BLOCK)
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
           (str_map_get(&s->inputs, name) < 0 || is_of(name, "detach"));
}

static bool is_copy(Str name) {
    static const char *const copies[] = {"clone", "_to_copy", "alias",
                                         "view",  "expand",   "copy"};
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++)
        if (is_of(name, copies[i])) return true;
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
    Str trace = trace_of(&s->ox->nodes.data[node]);
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

static void read_lines(Stops *s) {
    int n = s->ox->nodes.len;
    for (int i = 0; i < n; i++) {
        int line = line_of(s, i);
        if (line < 0) continue;
        const char *text = strstr(s->fx[i].all, "(args = ");
        for (Str name; text && (name = ox_torch_next_name(&text));) {
            bool detach = is_of(name, "detach");
            bool lost = is_dropped(s, name), copy = is_copy(name);
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

/* In the file's order; PyTorch sorts nodes. */
static void find_trained(Stops *s) {
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

static bool is_trained(const Stops *s, Str name) {
    const OxName *n = ox_name_of(s->ox, name);
    int64_t i = n ? n - s->ox->names.data : s->names;
    return i < s->names && s->trained[i];
}

/* The node that made it; NULL: the file has no such node. */
static const OxNode *maker(const Stops *s, Str name) {
    const OxName *x = ox_name_of(s->ox, name);
    bool made = x && x->kind == OX_RESULT && x->index < s->nodes;
    return made ? &s->ox->nodes.data[x->index] : NULL;
}

/* The operand's name in PyTorch's graph, or in the file if its node does not
   tell; NULL: it is a constant, or a result of the same line as the node. */
static Str called(const Stops *s, int node, Str operand) {
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

/* ---- stops ----------------------------------------------------------------
 */

/* The operand is read through a node that stops the gradient. */
static void stop(Stops *s, int node, int k) {
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

enum { MOST = 64 };            /* index among a node's operands */
enum { PLACED = INT_MAX - 1 }; /* no node; a map holds no larger number */

static void doubt(Doubt *d, const OxNode *n) {
    if (!d->count++) d->first = n->name;
}

/* The program reads `name`, whose node the exporter dropped: a detach(), or
   a copy of a value that the same line of Python detached. */
static bool is_lost_stop(Stops *s, int node, Str name) {
    if (str_map_get(&s->known, name) >= 0) return false;
    if (is_of(name, "detach")) return true;
    int at = is_copy(name)
                 ? str_map_get(&s->lines, trace_of(&s->ox->nodes.data[node]))
                 : -1;
    Copied copied = at < 0 ? PASSES : s->list.data[at].copied;
    if (copied == EITHER) doubt(&s->copies, &s->ox->nodes.data[node]);
    return copied == STOPS;
}

/* What a node reads in PyTorch's graph, besides its operands. */
typedef struct Reads {
    Str args[MOST];
    int nargs;
    int outer[MOST]; /* operands computed by other lines than the node's */
    Str call[MOST];  /* their names in PyTorch's graph; NULL: not in args */
    int nouter, odd; /* odd: operands without such a name */
} Reads;

static void read_node(const Stops *s, int node, Reads *r) {
    const OxNode *n = &s->ox->nodes.data[node];
    const char *text = strstr(s->fx[node].all, "(args = ");
    *r = (Reads){.nargs = 0};
    for (Str name;
         text && r->nargs < MOST && (name = ox_torch_next_name(&text));)
        r->args[r->nargs++] = name;
    for (int k = 0; k < n->nin && r->nouter < MOST; k++) {
        Str c = called(s, node, n->in[k]);
        bool named = false;
        if (!c) continue;
        for (int i = 0; i < r->nargs; i++) named |= r->args[i] == c;
        r->call[r->nouter] = named ? c : NULL;
        r->odd += !named;
        r->outer[r->nouter++] = k;
    }
}

/* True if operand i of r->outer is one of the `lost` arguments, for which
   is[..] is true. */
static bool reads_lost(const Reads *r, int i, const bool *is, int lost) {
    return r->odd == lost ? !r->call[i] : r->nouter == r->nargs && is[i];
}

/* Operands of cat() and stack() are in the order of its arguments. */
static bool stop_in_order(Stops *s, int node, const Reads *r, const bool *is) {
    bool placed = false;
    const OxNode *n = &s->ox->nodes.data[node];
    if (n->op->handler != OX_concat || n->nin != r->nargs) return false;
    for (int k = 0; k < r->nargs; k++) {
        if (!is[k]) continue;
        stop(s, node, k);
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
    read_node(s, node, &r);
    for (int i = 0; i < r.nargs; i++)
        lost += is[i] = is_lost_stop(s, node, r.args[i]);
    bool trained = false, placed = stop_in_order(s, node, &r, is);
    if (placed) lost = 0;
    for (int i = 0; i < r.nouter && lost; i++) {
        trained |= is_trained(s, s->ox->nodes.data[node].in[r.outer[i]]);
        if (!reads_lost(&r, i, is, lost)) continue;
        stop(s, node, r.outer[i]);
        placed = true;
    }
    if (placed || trained)
        str_map_put(s->ox->scratch, &s->placed, s->fx[node].name,
                    placed ? PLACED : node);
}

/* Some nodes of one line read the operands, and none got the stop. */
static void find_unplaced(Stops *s) {
    for (int i = 0; i < s->nodes; i++)
        if (s->fx[i].name && str_map_get(&s->placed, s->fx[i].name) == i)
            doubt(&s->unplaced, &s->ox->nodes.data[i]);
}

/* ---- values that another stands for --------------------------------------
 */

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
        count += called(s, node, n->in[r->outer[i]]) == name;
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
        if (!is_trained(s, n->in[k]) || n->in[k] == of) continue;
        if (of || !maker(s, n->in[k])) return NULL;
        of = n->in[k];
    }
    return of;
}

/* The value is computed, from node to node of one operand that trains, from a
   value that was read once more: there an equal computation began, and
   wherever it detached, no gradient passed it. */
static bool is_function_of_one(Stops *s, Str value) {
    const OxNode *n = maker(s, value);
    for (int i = 0; n && i < s->nodes; i++) { /* a file may hold a circle */
        Str of = only_trained(s, n);
        const OxNode *by = of ? maker(s, of) : NULL;
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
    int at = str_map_get(&s->lines, trace_of(n));
    const Line *l = at < 0 ? NULL : &s->list.data[at];
    int operand = r->nouter == r->nargs ? r->outer[k] : r->outer[i];
    if (!l || l->copies ||
        (int64_t)l->times * l->says - l->named != l->merged ||
        !is_function_of_one(s, n->in[r->outer[i]]))
        return -1;
    return n->in[operand] == n->in[r->outer[i]] ? operand : -1;
}

/* f(h) and f(h.detach()) are equal, and the exporter keeps one of them.
   leave_block() knows which one if it is in a block. */
static void find_merged(Stops *s, int node) {
    const OxNode *n = &s->ox->nodes.data[node];
    Reads r;
    read_node(s, node, &r);
    for (int i = 0; i < r.nouter; i++) {
        Str operand = n->in[r.outer[i]], c = called(s, node, operand);
        const OxNode *by = maker(s, operand);
        Str block = by ? s->block[by - s->ox->nodes.data] : NULL;
        if (!by || !is_trained(s, operand) || unnamed(s, node, &r, c) < 1 ||
            (block && block != s->block[node]))
            continue;
        for (int k = 0; k < r.nargs; k++)
            if (str_map_get(&s->known, r.args[k]) < 0 && !is_copy(r.args[k]) &&
                of_one_op(r.args[k], c)) {
                int at = stopped_operand(s, node, &r, k, i);
                if (at >= 0)
                    stop(s, node, at);
                else
                    doubt(&s->merged, n);
                return;
            }
    }
}

/* The line says detach() once more than its nodes show: its last value is
   detached. */
static bool hides_detach(const Stops *s, Str name) {
    const OxNode *n = maker(s, name);
    int at = n ? str_map_get(&s->lines, trace_of(n)) : -1;
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

/* Copies whose node is gone, on lines without detach(): t =
   h.detach().clone() and t = h.clone() look alike. */
static void find_copies(Stops *s, int node) {
    const OxNode *n = &s->ox->nodes.data[node];
    Reads r;
    bool is[MOST], clones = false;
    int lost = 0;
    if (str_map_get(&s->lines, trace_of(n)) >= 0) return;
    read_node(s, node, &r);
    for (int i = 0; i < r.nargs; i++)
        lost += is[i] =
            is_copy(r.args[i]) && str_map_get(&s->known, r.args[i]) < 0;
    for (int i = 0; i < r.nargs; i++)
        clones |= is[i] && is_of(r.args[i], "clone");
    for (int i = 0; i < r.nouter && lost; i++) {
        n = &s->ox->nodes.data[node]; /* a stop moves them */
        Str operand = n->in[r.outer[i]], name = called(s, node, operand);
        if (!reads_lost(&r, i, is, lost) || !is_trained(s, operand)) continue;
        if (hides_detach(s, operand))
            stop(s, node, r.outer[i]);
        else if (str_map_get(&s->read, name) >= 0 ||
                 (clones && is_target(s, node)))
            doubt(&s->copies, n);
    }
}

/* Operands that leave a block. */
static void leave_block(Stops *s, int node) {
    int nin = s->ox->nodes.data[node].nin;
    for (int k = 0; k < nin; k++) {
        Str operand = s->ox->nodes.data[node].in[k];
        const OxName *x = ox_name_of(s->ox, operand);
        if (!x || x->kind != OX_RESULT || !is_trained(s, operand)) continue;
        Str block = s->block[x->index];
        if (!block || block == s->block[node]) continue;
        Block kind = kind_of(s, block);
        Str name = s->fx[x->index].name;
        /* equal values inside and outside of the block are one value in the
           file */
        Str reads = s->fx[node].all;
        if (name && reads && !ox_torch_reads(reads, name)) continue;
        if (kind == NO_GRAD) stop(s, node, k);
        if (kind == UNKNOWN) doubt(&s->unknown, &s->ox->nodes.data[node]);
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
        {&s->unknown,
         "node '%s' reads what was computed under torch.no_grad() or under "
         "torch.autocast(), the file does not tell which: the gradient "
         "passes; where it must stop, write .detach() and export again"},
        {&s->merged,
         "node '%s' reads one of two equal nodes that the exporter merged; if "
         "the model computes one of them from a detached value or under "
         "torch.no_grad(), the gradient must stop, and passes here: "
         "optimize=False keeps both nodes"},
        {&s->unplaced,
         "node '%s' reads a detached value, but the file does not tell by "
         "which operand: the gradient must stop, and passes here; export "
         "with optimize=False, which keeps the node of detach()"},
        {&s->in_place,
         "node '%s': its line says detach_(), which the exporter drops: the "
         "gradient passes; write detach() and export again"},
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
    read_nodes(&s);
    read_lines(&s);
    find_trained(&s);
    for (int i = 0; i < n; i++) {
        if (s.fx[i].all && !s.fx[i].name) s.fx[i].all = NULL;
        if (strstr(trace_of(&s.ox->nodes.data[i]), ".detach_("))
            doubt(&s.in_place, &s.ox->nodes.data[i]);
        if (s.fx[i].all) find_merged(&s, i);
        if (s.fx[i].all) find_copies(&s, i);
        if (s.fx[i].all) restore_detach(&s, i);
        leave_block(&s, i);
    }
    find_unplaced(&s);
    if (options_train(ox->opt)) warn_doubts(&s);
}
