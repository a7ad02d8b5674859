/* SPDX-License-Identifier: Apache-2.0 */
/* try.h: a failure is passed up at once. A function that must clean up or
   report first keeps the status in a variable instead. */
#ifndef AMPC_TRY_H
#define AMPC_TRY_H

#include "runtime/ampc.h"

#define TRY(expr)                                                              \
    do {                                                                       \
        ampc_status try_status_ = (expr);                                      \
        if (try_status_ != AMPC_OK) return try_status_;                        \
    } while (0)

#endif
