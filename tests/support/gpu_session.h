/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_session.h: sessions of a small compiled model on the simulated GPU. */
#ifndef AMPC_TESTS_SUPPORT_GPU_SESSION_H
#define AMPC_TESTS_SUPPORT_GPU_SESSION_H

#include "tests/support/compiled.h"
#include "tests/support/device_check.h"
#include "tests/support/simulate.h"

/* A model, compiled in one way, once per process. */
typedef struct Model {
    const char *precision, *archs, *options;
    Compiled c;
    DcRandom *feed;
} Model;
extern Model plain;        /* fp32, all images */
extern Model accumulating; /* bf16, two micro-batches */
extern Model scaled;       /* fp16, its first steps overflow */
const Model *model(Model *m);

/* A simulated machine in its initial state; NULL: the usual one. Returns m's
   table. */
const ampc_api *machine(const Model *m, const SimConfig *config);
void cache_in(char dir[600], const char *name); /* below the test's folder */
/* Nothing is left on the machine, and there was no violation. */
void check_clean(void);

extern char open_text[1200]; /* try_open: the message of a failure */
extern char log_text[4000];  /* ... and what was logged since */
ampc_status try_open(const ampc_api *a, const char *device, void *stream,
                     ampc_session **s);
ampc_session *open_gpu(const ampc_api *a); /* a failure ends the test case */
/* Step i with the model's own batches; out may be NULL. */
ampc_status step(const Model *m, ampc_session *s, int i, ampc_metrics *out);

#endif
