/* SPDX-License-Identifier: Apache-2.0 */
/* cost.h: for cost_test.c and the files of folder cost. */
#ifndef AMPC_TESTS_CODEGEN_COST_COST_H
#define AMPC_TESTS_CODEGEN_COST_COST_H

#include "codegen/cost/cost.h"
#include "codegen/cost/roofline.h"
#include "codegen/cost/scaling.h"
#include "frontend/cli/options_text.h"
#include "passes/passes.h"

typedef struct Costs {
    Arena *a;
    Diag d;
    Options opt;
    PlanSource src;
    StrBuf text;
} Costs;

/* Fields after `launches` for a step that is neither a product nor a tile. */
#define COST_REST "\t0\t0\t0\t0\t0\t0\t0"

void cost_set(Costs *c, const char *name, const char *value);
void cost_count(Costs *c, const char *text, const char *target);
void cost_end(Costs *c);
StepCost cost_step(const Costs *c, const char *how, int skip);
double cost_number_after(const char *text, const char *key);

#endif
