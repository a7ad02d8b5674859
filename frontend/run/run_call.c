/* SPDX-License-Identifier: Apache-2.0 */
/* run_call.c: calls and facts of the module that all parts of a run share. */
#include "frontend/run/run_cmd.h"

#include <stddef.h>

Status run_api_fail(Run *r, const char *what) {
    return fail(&r->diag, (Loc){0}, "%s: %s", what, r->api->error(r->s));
}

/* Without --quiet it is in the log. */
void run_print_notice(Run *r) {
    const char *text = r->api->notice(r->s);
    if (*text && r->opt->quiet) fprintf(stderr, "%s\n", text);
}

const char *run_objective(const Run *r, uint32_t i) {
    const ampc_api *api = r->api;
    if (api->size < offsetof(ampc_api, objective) + sizeof api->objective)
        return i ? NULL : "";
    return api->objective_name(api->module, i);
}

Status run_choose(Run *r, uint32_t objective) {
    if (!run_objective(r, 1)) return OK;
    if (r->api->objective(r->s, run_objective(r, objective)) == AMPC_OK)
        return OK;
    return run_api_fail(r, "objective");
}

int64_t run_step_samples(const Run *r) {
    return r->info.batch * r->info.accumulate * r->world;
}
