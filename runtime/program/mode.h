/* SPDX-License-Identifier: Apache-2.0 */
/* mode.h: the floating-point mode of a host's thread inside a call. A host may
   have set another rounding mode, flushing of subnormals, or traps. A call
   computes with the mode in which processes start, like the threads of the
   pool, so that results do not depend on the host, and nothing traps. When
   the call returns, the host's mode and its exception flags are restored. */
#ifndef AMPC_RUNTIME_MODE_H
#define AMPC_RUNTIME_MODE_H

#include <fenv.h>

static inline void mode_enter(fenv_t *host) {
    fegetenv(host);
    fesetenv(FE_DFL_ENV);
#ifdef __SSE__
    __builtin_ia32_ldmxcsr(0x1f80); /* glibc does not mask the trap for
                                       subnormals */
#endif
}

static inline void mode_leave(const fenv_t *host) { fesetenv(host); }

#endif
