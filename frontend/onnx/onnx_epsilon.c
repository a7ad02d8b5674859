/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_epsilon.c: warns of epsilons that PyTorch's default export dropped.

   Its optimiser takes a number of at most 1e-8 for 0 and drops the addition:
   log(h + 1e-8) becomes log(h), whose gradient at h = 0 is not finite. The
   node's fx_node still names the sum,
       %log : [..] = call_function[target=..aten.log.default](args = (%add,),
   ..) while its operand is h. The number itself is lost. Only ops that are
   singular at 0 matter, and products and views that such ops read. */
#include <string.h>

#include "frontend/onnx/onnx.h"

/* The operand at which an op is singular; -1: none. */
static int singular_operand(const OxNode *n) {
    static const struct {
        const char *type;
        int operand;
    } ops[] = {
        {"Log", 0}, {"Sqrt", 0}, {"Reciprocal", 0}, {"Pow", 0}, {"Div", 1}};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (!strcmp(n->type, ops[i].type)) return ops[i].operand;
    return -1;
}

/* Its result is 0 where an operand is 0. */
static bool carries_zeros(const OxNode *n) {
    static const char *const types[] = {
        "Mul",       "Abs",     "Neg",    "Reshape",  "Transpose",
        "Unsqueeze", "Squeeze", "Expand", "Identity", "Cast"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(n->type, types[i])) return true;
    return false;
}

/* The names that must not be 0. */
static void find_singular(const Ox *ox, StrMap *names) {
    for (int i = ox->order.len; i-- > 0;) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        bool all =
            carries_zeros(n) && n->nout && str_map_get(names, n->out[0]) >= 0;
        for (int k = 0; k < n->nin; k++)
            if (all || k == singular_operand(n))
                str_map_put(ox->scratch, names, n->in[k], i);
    }
}

/* The names of PyTorch's graph that the file has. */
static void read_known(const Ox *ox, StrMap *known) {
    for (int i = 0; i < ox->nodes.len; i++) {
        const char *s = ox_torch_text(ox->nodes.data[i].proto);
        Str name = *s == '%' ? ox_torch_next_name(&s) : NULL;
        if (name) str_map_put(ox->scratch, known, name, i);
    }
}

/* The line of code has a number so small, or the name of one. */
static bool says_epsilon(const OxNode *n) {
    Str trace = ox_text(ox_metadata(n->proto->metadata_props,
                                    n->proto->n_metadata_props,
                                    "pkg.torch.onnx.stack_trace"));
    static const char *const words[] = {"eps", "EPS", "e-8", "e-08",
                                        "e-9", "e-1", "tiny"};
    const char *last = strrchr(trace, '\n');
    for (size_t i = 0; last && i < sizeof words / sizeof *words; i++)
        if (strstr(last, words[i])) return true;
    return false;
}

/* The sum that the node read as that operand and the file lacks, or NULL. A
   sum that an equal one replaced is no such: its operand is a sum, too. */
static Str dropped_sum(const Ox *ox, const StrMap *known, const OxNode *n,
                       int operand) {
    Str argument = ox_torch_argument(n, operand);
    if (!argument || *argument != '%') return NULL;
    const char *s = argument;
    Str name = ox_torch_next_name(&s);
    const OxName *x = ox_name_of(ox, n->in[operand]);
    if (!(ox_torch_counts(name, "add") || ox_torch_counts(name, "sub")) ||
        str_map_get(known, name) >= 0 || !x || x->kind == OX_INIT)
        return NULL;
    const OxNode *from = ox_made_by(ox, n->in[operand]);
    bool sum = from && (ox_torch_node(from, "aten.add") ||
                        ox_torch_node(from, "aten.sub"));
    return !sum || says_epsilon(n) ? name : NULL;
}

void ox_warn_epsilons(Ox *ox) {
    StrMap known = {0}, singular = {0};
    const OxNode *first = NULL;
    Str sum = NULL, operand = NULL;
    int count = 0;
    if (!ox->has_signature || ox_by_ampc(ox)) return;
    read_known(ox, &known);
    find_singular(ox, &singular);
    for (int i = 0; i < ox->order.len; i++) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        for (int k = 0; k < n->nin; k++) {
            if (str_map_get(&singular, n->in[k]) < 0 ||
                (k != singular_operand(n) && !carries_zeros(n)))
                continue;
            Str dropped = dropped_sum(ox, &known, n, k);
            if (dropped && !count++)
                first = n, sum = dropped, operand = n->in[k];
        }
    }
    if (first)
        ox_warn_node(ox, first,
                     "the exporter dropped '%s', which adds a number of at "
                     "most 1e-8, an epsilon, to '%s'%s: where that is 0, the "
                     "loss or its gradient is not finite; export with "
                     "optimize=False, which keeps it",
                     ox_quote(ox, sum), ox_quote(ox, operand),
                     count > 1
                         ? arena_printf(ox->scratch,
                                        " (the first of %d such sums)", count)
                         : "");
}
