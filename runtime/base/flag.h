/* SPDX-License-Identifier: Apache-2.0 */
/* flag.h: a flag that one thread at a time takes; host_take says whether
   another has it. */
#ifndef AMPC_BASE_FLAG_H
#define AMPC_BASE_FLAG_H

#ifdef AMPC_PLAIN /* no atomics: one thread calls */
typedef int HostFlag;
static inline int host_take(HostFlag *f) {
    int was = *f;
    *f = 1;
    return was;
}
static inline void host_drop(HostFlag *f) { *f = 0; }
#else
#include <stdatomic.h>
typedef atomic_int HostFlag;
static inline int host_take(HostFlag *f) { return atomic_exchange(f, 1); }
static inline void host_drop(HostFlag *f) { atomic_store(f, 0); }
#endif

#endif
