/* SPDX-License-Identifier: Apache-2.0 */
/* tiny_module.h: a hand-written plan, so that the runtime is tested without
   the compiler.  y = x w + b, x f32[4,3], w f32[3,2], b f32[2]; mean squared
   error against target f32[4,2]; SGD with momentum, its own loss scale;
   non-finite steps are skipped. Kernels are plain C. */
#ifndef AMPC_TESTS_SUPPORT_TINY_MODULE_H
#define AMPC_TESTS_SUPPORT_TINY_MODULE_H

#define AMPC_NO_LOADER
#include "runtime/ampc.h"
#include "runtime/program/plan.h"

enum { TINY_BATCH = 4, TINY_IN = 3, TINY_OUT = 2 };

extern const AmpcModule tiny_module;       /* train, eval, predict, refresh */
extern const AmpcModule tiny_accumulating; /* micro, update; 2 micro-batches */
extern const AmpcModule tiny_other;        /* like tiny_module, with another
                                              hash */
extern const AmpcModule tiny_labels;       /* target i64[4]; a classifier */

const ampc_module_t *tiny_handle(const AmpcModule *m);

/* The table of ampc.h for tiny_module; open accepts any module. */
const ampc_api *tiny_api(void);

/* Batch number i of an endless, fixed stream. */
void tiny_batch(int i, float x[TINY_BATCH * TINY_IN],
                float target[TINY_BATCH * TINY_OUT]);

#endif
