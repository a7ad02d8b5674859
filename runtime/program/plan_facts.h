/* SPDX-License-Identifier: Apache-2.0 */
/* plan_facts.h: facts about a plan that need no session. */
#ifndef AMPC_PLAN_FACTS_H
#define AMPC_PLAN_FACTS_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/json.h"
#include "runtime/program/plan.h"

int find_program(const AmpcModule *m, const char *name);
int find_var(const AmpcModule *m, const char *name);
/* A member of m->info, or of its "options"; dflt if absent. */
int64_t info_int(const AmpcModule *m, const char *key, int64_t dflt);
/* The model and the options that the user gave; false: unknown.
 */
bool module_said(const AmpcModule *m, JsonSpan *said);
int64_t module_batch(const AmpcModule *m);
/* The plan that describes the module without a session: the CPU's if there
   is one. */
const PlanTarget *module_plan(const AmpcModule *m);
/* The first defect of the tables, or NULL. */
const char *plan_defect(const AmpcModule *m);

#endif
