/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_run.c: `ampc run`; the work is in run_cmd.c. */
#include "frontend/cli/cmd.h"
#include "frontend/cli/options_text.h"
#include "frontend/run/run_cmd.h"

int cmd_run(int argc, char **argv) {
    run_hint = options_hint;
    return run_cmd(argc, argv, NULL);
}
