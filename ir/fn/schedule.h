/* SPDX-License-Identifier: Apache-2.0 */
/* schedule.h: schedules of the learning rate that a user defines. */
#ifndef AMPC_IR_FN_SCHEDULE_H
#define AMPC_IR_FN_SCHEDULE_H

#include "ir/fn/fn.h"

/* Reads the functions of a text into m, the last of which is the schedule:
   operands lr, i and further numbers; numbers with defaults as attributes; one
   result. */
Status schedule_read(Module *m, Diag *d, const char *file, const char *text,
                     size_t n, const Fn **out);

#endif
