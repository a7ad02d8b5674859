/* SPDX-License-Identifier: Apache-2.0 */
/* guarded.h: memory for sessions (ampc_options.alloc) that notices what leaves
   its block: a page behind it that may not be touched, bytes around it that
   must stay, and its size, which free must be given again. Blocks begin as
   ones, so that numbers nobody wrote are not zero. */
#ifndef AMPC_TESTS_SUPPORT_GUARDED_H
#define AMPC_TESTS_SUPPORT_GUARDED_H

#include <stddef.h>

typedef struct Guarded {
    _Atomic long blocks, bytes; /* in use */
} Guarded;

/* ctx: a Guarded. */
void *guarded_alloc(void *ctx, size_t bytes, size_t align);
void guarded_free(void *ctx, void *p, size_t bytes);

#endif
