/* SPDX-License-Identifier: Apache-2.0 */
/* call.c: a call as its body takes it, and the attributes that a function
   has. */
#include <string.h>

#include "ir/fn/fn.h"

const FnAttr *fn_attr(const Fn *fn, const char *name) {
    for (int i = 0; i < fn->attrs.len; i++)
        if (strcmp(fn->attrs.data[i].name, name) == 0)
            return &fn->attrs.data[i];
    return NULL;
}

FnCall fn_call(const Node *n) {
    return (FnCall){.fn = n->fn,
                    .in = n->in,
                    .nin = n->nin,
                    .attrs = n->attrs,
                    .nattr = n->nattr,
                    .nout = n->nout};
}
