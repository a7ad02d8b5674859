/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_check.c: ampc check MODEL: everything that compiling would refuse, and
   why.  Imports, runs all passes and lowers every group; compiles nothing.
   Lists what trains and what does not.                                      */
#include "codegen/codegen.h"
#include "frontend/cli/cmd.h"
#include "frontend/report/report.h"

static Status check(Session *s, const char *model) {
    Module *m;
    TRY(load_model(s, model, &m));
    if (s->opt.targets.len)
        TRY(cuda_targets(&s->opt, &s->diag, NULL));
    else
        TRY(cuda_tile_check(&s->opt, &s->diag));
    for (int k = 0; k < NUM_ERRORS; k++)
        s->opt.max_error[k] = 0; /* nothing is measured */
    TRY(run_pipeline(m, &s->diag, &s->opt, STAGE_PLANNED, false));
    TRY(check_pads(s, m));
    TRY(emit_check(m, &s->opt, &s->diag, &(EmitInput){0}));
    StrBuf params = {0};
    report_params(m, false, &params);
    printf("%s%s: can be compiled\n", params.data ? params.data : "", model);
    sb_free(&params);
    return OK;
}

int cmd_check(int argc, char **argv) {
    Session s;
    const char *model = NULL;
    session_init(&s);
    Status st = session_args(&s, argc, argv, "check", &model);
    if (st == OK) st = check(&s, model);
    return session_end(&s, st);
}
