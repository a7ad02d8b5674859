/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_measure.h: the measurements of the compiler for an error budget. */
#ifndef AMPC_FRONTEND_DRIVER_CMD_MEASURE_H
#define AMPC_FRONTEND_DRIVER_CMD_MEASURE_H

#include "frontend/cli/cmd.h"

/* Runs the passes of m up to pass place, which keeps the limits of errors;
   does nothing if the options set no limits. */
Status place_measured(Session *s, const char *model, Module *m, bool keep);

#endif
