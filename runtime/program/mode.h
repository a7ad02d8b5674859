/* SPDX-License-Identifier: Apache-2.0 */
/* mode.h: how a host's thread computes inside a call.  A host may have set
   another rounding mode, zeros for subnormals or traps; a call computes with
   the mode that processes start with, as the threads of the pool do, so that
   results do not depend on the host, and nothing traps.  The host's mode, with
   its exception flags, comes back when the call returns.                     */
#ifndef AMPC_RUNTIME_MODE_H
#define AMPC_RUNTIME_MODE_H

#include <fenv.h>

static inline void mode_enter(fenv_t *host) {
    fegetenv(host);
    fesetenv(FE_DFL_ENV);
#ifdef __SSE__
    __builtin_ia32_ldmxcsr(0x1f80); /* glibc leaves the trap for subnormals */
#endif
}

static inline void mode_leave(const fenv_t *host) { fesetenv(host); }

#endif
