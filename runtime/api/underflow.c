/* SPDX-License-Identifier: Apache-2.0 */
/* underflow.c: runs program underflow (passes/common/underflow.c) and
   reports its counts for each parameter. */
#include <stdio.h>
#include <string.h>

#include "runtime/api/session.h"

/* A count that the last program run returned; 0 if there is none. */
static ampc_status count(ampc_session *s, int output, double *n) {
    *n = 0;
    if (output < 0) return AMPC_OK;
    return s->backend->get(s, output_ref(s, s->last, output), n, sizeof *n);
}

static ampc_status tell_all(ampc_session *s, ampc_underflow_fn fn, void *ctx) {
    static const char lost[] = "ampc.flushed/", all[] = "ampc.nonzero/";
    const PlanProgram *p = &s->m->programs[s->last];
    for (uint32_t i = 0; i < p->nout; i++) {
        const char *name = s->m->tensors[p->out0 + i].name;
        double nonzero = 0, flushed = 0;
        if (strncmp(name, all, sizeof all - 1) != 0) continue;
        const char *parameter = name + sizeof all - 1;
        ampc_status status = count(s, (int)i, &nonzero);
        for (uint32_t k = 0; k < p->nout && status == AMPC_OK; k++) {
            const char *other = s->m->tensors[p->out0 + k].name;
            if (strncmp(other, lost, sizeof lost - 1) == 0 &&
                strcmp(other + sizeof lost - 1, parameter) == 0)
                status = count(s, (int)k, &flushed);
        }
        if (status != AMPC_OK) return status;
        fn(ctx, parameter, flushed, nonzero);
    }
    return AMPC_OK;
}

ampc_status api_underflow(ampc_session *s, const ampc_input *in, size_t nin,
                          ampc_underflow_fn fn, void *ctx) {
    ENTER(s);
    if (s->program[PROG_UNDERFLOW] < 0)
        return api_leave(s, api_unsupported(s, "count what fp16 flushes to "
                                               "zero (--count-underflow)"));
    if (!fn)
        return api_leave(s, session_fail(s, AMPC_ERR_ARGUMENT, "fn is NULL"));
    sizes_choose(s, PROG_UNDERFLOW, in, nin);
    ampc_status status = sizes_pad(s, PROG_UNDERFLOW, &in, nin);
    if (status == AMPC_OK) status = session_run(s, PROG_UNDERFLOW, in, nin);
    if (status == AMPC_OK) status = tell_all(s, fn, ctx);
    return api_leave(s, status);
}
