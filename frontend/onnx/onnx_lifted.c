/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_lifted.c: constants of dynamo's program that its optimiser merged. For
   static shapes Keras on PyTorch makes constants of its variables
   (lifted_tensor_3), and of equal ones the file stores one, such as zeros for a
   bias and for the offset of a norm. The record of each node in the file still
   names its own:
     args = (%add, [8], %c_lifted_tensor_2, %c_lifted_tensor_3, 0.001)     */
#include <string.h>

#include "frontend/onnx/onnx.h"

static const OxSigned *lifted_by(const Ox *ox, Str argument) {
    for (int k = 0; k < ox->signature.len; k++) {
        const OxSigned *p = &ox->signature.data[k];
        if (p->argument == argument && ox_signed_as(p, "CONSTANT_TENSOR"))
            return p;
    }
    return NULL;
}

static bool names_argument(const OxNode *n, Str argument) {
    const char *s = strstr(ox_torch_text(n->proto), "(args = ");
    for (Str name; s && (name = ox_torch_next_name(&s));)
        if (name == argument) return true;
    return false;
}

/* The next operand, from k on, that is a constant of the program which the
   node's record does not name; n->nin: none. */
static int unnamed_constant(const Ox *ox, const OxNode *n, int k) {
    for (; k < n->nin; k++) {
        const OxName *x = ox_name_of(ox, n->in[k]);
        if (!x || x->kind != OX_INIT) continue;
        for (int i = 0; i < ox->signature.len; i++) {
            const OxSigned *p = &ox->signature.data[i];
            if (p->target == n->in[k] && ox_signed_as(p, "CONSTANT_TENSOR") &&
                !names_argument(n, p->argument))
                return k;
        }
    }
    return k;
}

bool ox_lacks_constants(const Ox *ox) {
    for (int k = 0; k < ox->signature.len; k++) {
        const OxSigned *p = &ox->signature.data[k];
        if (ox_signed_as(p, "CONSTANT_TENSOR") && !ox_name_of(ox, p->target))
            return true;
    }
    return false;
}

bool ox_next_merged(const Ox *ox, const OxNode *n, OxMerged *at) {
    if (!at->rest) at->rest = strstr(ox_torch_text(n->proto), "(args = ");
    for (Str name; at->rest && at->operand < n->nin &&
                   (name = ox_torch_next_name(&at->rest));) {
        const OxSigned *p = lifted_by(ox, name);
        const OxName *held = p ? ox_name_of(ox, p->target) : NULL;
        bool own =
            held && held->kind == OX_INIT && ox->inits.data[held->index].alias;
        if (!p || (held && !own)) continue;
        at->operand = unnamed_constant(ox, n, at->operand);
        at->name = p->target;
        return at->operand < n->nin;
    }
    return false;
}

/* ---- views of variables -------------------------------------------------- */

static bool ends_with(Str name, const char *end) {
    size_t n = strlen(name), k = strlen(end);
    return n >= k && !strcmp(name + n - k, end);
}

static bool is_lifted(const OxSigned *p) {
    return ox_signed_as(p, "CONSTANT_TENSOR") &&
           !strncmp(p->target, "lifted_tensor_", 14);
}

bool ox_lifts_variables(const Ox *ox) {
    int parameters = 0, lifted = 0;
    for (int k = 0; k < ox->signature.len; k++) {
        const OxSigned *p = &ox->signature.data[k];
        lifted += is_lifted(p);
        if (!ox_signed_as(p, "PARAMETER") ||
            ends_with(p->target, "/seed_generator_state"))
            continue;
        if (ox_name_of(ox, p->target) || ends_with(p->target, "/moving_mean") ||
            ends_with(p->target, "/moving_variance"))
            return false;
        parameters++;
    }
    return parameters > 0 && parameters == lifted;
}

static bool is_folded_from(const OxInit *x, const OxSigned *p) {
    return x->folded && strstr(x->folded, internf("'%s'", p->target));
}

Str ox_viewed_variable(const Ox *ox, const OxInit *x) {
    static const char *const ops[] = {"view",      "reshape", "permute", "t",
                                      "transpose", "squeeze", "select",  "neg",
                                      "unsqueeze", "slice"};
    bool views = false;
    Str from = NULL;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        views |= ox_torch_counts(x->name, ops[i]);
    if (!views || !x->folded || !ox_lifts_variables(ox)) return NULL;
    for (int k = 0; k < ox->signature.len; k++) {
        const OxSigned *p = &ox->signature.data[k];
        if (!is_lifted(p) || !is_folded_from(x, p)) continue;
        if (from) return NULL;
        from = p->target;
    }
    return from;
}

bool ox_lost_constant(const Ox *ox, const OxSigned *p) {
    if (!is_lifted(p) || ox_name_of(ox, p->target)) return false;
    for (int i = 0; i < ox->inits.len; i++)
        if (is_folded_from(&ox->inits.data[i], p)) return false;
    return true;
}
