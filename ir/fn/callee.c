/* SPDX-License-Identifier: Apache-2.0 */
/* callee.c: what a call names, and its attributes. */
#include "ir/fn/fn.h"

#include <string.h>

const FnAttr *fn_attr(const Fn *fn, const char *name) {
    for (int i = 0; i < fn->attrs.len; i++)
        if (strcmp(fn->attrs.data[i].name, name) == 0)
            return &fn->attrs.data[i];
    return NULL;
}

const OpInfo *callee_info(Callee c) {
    return c.fn ? &c.fn->info : &op_info[c.op];
}

const OpInfo *node_info(const Node *n) { return callee_info(node_callee(n)); }

AmpClass node_class(const Node *n) {
    return n->loc.amp ? (AmpClass)(n->loc.amp - 1) : node_info(n)->amp;
}

bool node_wide_by_policy(const Node *n) {
    AmpClass class = node_class(n);
    return n->loc.amp && class <= AMP_FULLOUT && class != AMP_LOW;
}

FnCall fn_call(const Node *n) {
    return (FnCall){.fn = n->fn,
                    .in = n->in,
                    .nin = n->nin,
                    .attrs = n->attrs,
                    .nattr = n->nattr,
                    .nout = n->nout};
}
