/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_run.c: `ampc run`; the work is in run_cmd.c. */
#include "frontend/cli/cmd.h"
#include "frontend/run/run_cmd.h"

int cmd_run(int argc, char **argv) { return run_cmd(argc, argv, NULL); }
