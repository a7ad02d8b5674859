/* SPDX-License-Identifier: Apache-2.0 */
/* run_underflow.c: gradient elements that fp16 flushes to zero, for modules
   compiled with --count-underflow: measured at intervals, printed at the
   end. */
#include "frontend/run/run_cmd.h"

#include <stdlib.h>
#include <string.h>

enum { EVERY = 100 }; /* optimizer steps */
#define LARGE 0.01    /* the share from which a line is printed */

static void underflow_add(void *ctx, const char *parameter, double flushed,
                          double nonzero) {
    RunUnderflow *u = ctx;
    int i = 0;
    while (i < u->n && strcmp(u->of[i].parameter, parameter) != 0) i++;
    if (i == u->limit) return;
    if (i == u->n) u->of[u->n++] = (RunFlushed){.parameter = parameter};
    u->of[i].flushed += flushed;
    u->of[i].nonzero += nonzero;
}

Status run_underflow_open(Run *r) {
    ampc_program_info p = {.size = sizeof p};
    RunUnderflow *u = &r->underflow;
    if (r->api->program(r->api->module, "underflow", &p) != AMPC_OK) return OK;
    u->limit = (int)r->info.nvariable;
    u->of = calloc((size_t)u->limit + 1, sizeof *u->of);
    return u->of ? OK : fail(&r->diag, (Loc){0}, "out of memory");
}

Status run_underflow_look(Run *r) {
    RunUnderflow *u = &r->underflow;
    if (!u->of || u->steps++ % EVERY) return OK;
    u->looks++;
    if (r->api->underflow(r->s, r->train.in, (size_t)r->train.n, underflow_add,
                          u) == AMPC_OK)
        return OK;
    return run_api_fail(r, "--count-underflow");
}

void run_underflow_close(Run *r) {
    RunUnderflow *u = &r->underflow;
    int told = 0;
    for (int i = 0; i < u->n; i++) {
        const RunFlushed *f = &u->of[i];
        if (!(f->flushed > LARGE * f->nonzero)) continue;
        told++;
        log_note(r,
                 "fp16 flushes %.3g %% of the gradient of '%s' to zero "
                 "(batches looked at: %lld)",
                 100 * f->flushed / f->nonzero, f->parameter,
                 (long long)u->looks);
    }
    if (told) log_note(r, "a larger loss scale or --precision bf16 keeps them");
    log_underflow(r);
}
