/* SPDX-License-Identifier: Apache-2.0 */
/* node.c: the row of what a node calls, and its class. */
#include <string.h>

#include "ir/op/function.h"
#include "ir/op/node.h"

const OpInfo *callee_info(Callee c) {
    return c.fn ? &c.fn->info : &op_info[c.op];
}

const OpInfo *node_info(const Node *n) { return callee_info(node_callee(n)); }

AmpClass node_class(const Node *n) {
    return n->loc.amp ? (AmpClass)(n->loc.amp - 1) : node_info(n)->amp;
}

bool node_made_low(const Node *n) {
    return !n->fn && op_info[n->op].amp == AMP_LOW &&
           !strcmp(op_info[n->op].grad_text, "none");
}

bool node_wide_by_policy(const Node *n) {
    AmpClass class = node_class(n);
    return n->loc.amp && class <= AMP_FULLOUT && class != AMP_LOW;
}
