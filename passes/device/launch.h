/* SPDX-License-Identifier: Apache-2.0 */
/* launch.h: which groups share a launch (launch.c); between groups, what must
   come later.                                                               */
#ifndef AMPC_PASSES_TARGET_LAUNCH_H
#define AMPC_PASSES_TARGET_LAUNCH_H

#include "passes/device/flow.h"
#include "passes/device/target.h"

/* Groups that must come later than one. */
typedef struct Edges {
    int *to, len, cap;
} Edges;

/* Changes the order of groups so that those which can share a launch are
   neighbours; the result tells by place how it joins the one before.        */
typedef enum Joins {
    JOINS_NOT,
    JOINS_BESIDE,
    JOINS_AFTER /* Group.after */
} Joins;
Joins *launch_together(Flow *f, const Edges *next, int *order);

#endif
