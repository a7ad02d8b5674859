/* SPDX-License-Identifier: Apache-2.0 */
/* launch.h: finds groups that share a launch (launch.c), and the groups that
   must run after others. */
#ifndef AMPC_PASSES_TARGET_LAUNCH_H
#define AMPC_PASSES_TARGET_LAUNCH_H

#include "passes/device/flow.h"
#include "passes/device/target.h"

/* Groups that must run later than a given one. */
typedef struct Edges {
    int *to, len, cap;
} Edges;

/* Reorders groups so that those that can share a launch are neighbours; the
   result says for each position how its group joins the previous one. */
typedef enum Joins {
    JOINS_NOT,
    JOINS_BESIDE,
    JOINS_AFTER /* Group.after */
} Joins;
Joins *launch_together(Flow *f, const Edges *next, int *order);

#endif
