/* SPDX-License-Identifier: Apache-2.0 */
/* verify.h: declarations shared by the files verify*.c. */
#ifndef AMPC_IR_GRAPH_VERIFY_H
#define AMPC_IR_GRAPH_VERIFY_H

#include "ir/graph/ir_impl.h"

typedef struct Verifier {
    const Graph *g;
    Stage stage;
    Diag *diag;
    Arena *a;
    bool *defined; /* per value: defined so far in the order */
    int *pos;      /* per node: position in the order, -1: none */
} Verifier;

/* "graph train, after fused: %y = add: message" */
Status verify_fail(Verifier *v, const Node *n, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
Status verify_cast(Verifier *v);      /* stage CAST */
Status verify_diff(Verifier *v);      /* stage DIFF, and no later one */
Status verify_step(Verifier *v);      /* stages STEP and PRIMITIVE */
Status verify_inlined(Verifier *v);   /* stage INLINED */
Status verify_primitive(Verifier *v); /* stage PRIMITIVE */
Status verify_groups(Verifier *v);    /* stage FUSED */
Status verify_plan(Verifier *v);      /* stage PLANNED */

#endif
