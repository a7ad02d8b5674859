/* SPDX-License-Identifier: Apache-2.0 */
/* device_check.h: compares one device with another through the public API only.

   Plain C without a test framework: gtest cases call it with the simulated GPU,
   script/gpu-check with a real one.  Every function fills a report and
   returns whether all checks passed; the report's text has the failures. */
#ifndef AMPC_TESTS_SUPPORT_DEVICE_CHECK_H
#define AMPC_TESTS_SUPPORT_DEVICE_CHECK_H

#include <stdbool.h>

#include "runtime/ampc.h"

typedef struct DcReport {
    long compared, failed; /* tensors and numbers */
    double worst;          /* the largest error, divided by the allowed one */
    char worst_name[160];
    char text[2400]; /* one line per failure, the first ones; "" when none */
} DcReport;

/* Inputs of step `step`; valid until the next call. */
typedef const ampc_input *DcFeed(void *ctx, int step, size_t *nin);

/* Allowed error of an output, relative to a tensor's largest magnitude: both
   sides sum in fp32 (f64) in different orders and round once. 0: equal. */
double dc_output_tolerance(ampc_dtype d);

/* Runs "predict" on both devices; compares every output. */
bool dc_predict(const ampc_api *api, const char *device_a, const char *device_b,
                const ampc_input *in, size_t nin, DcReport *r);

/* Allowed errors of training.  A tensor may differ by `tensor` of its norm,
   plus `floor` of the norm of all tensors of its kind: a gradient that is
   zero in exact arithmetic (a bias before a batch norm) is rounding noise. */
typedef struct DcTolerance {
    double loss, grad_norm; /* relative */
    double tensor, floor;
} DcTolerance;
/* For "fp32", "bf16" or "fp16". */
DcTolerance dc_training_tolerance(const char *precision);

typedef struct DcTraining {
    int steps;
    bool forced;       /* true: before every step B's variables are set to
                          A's */
    bool metrics_only; /* true: compares loss, norm and scaler, not the
                          variables */
    DcTolerance tolerance;
    DcFeed *feed;
    void *feed_ctx;
} DcTraining;

/* Trains on both devices; after every step compares metrics, scaler and all
   parameters, buffers and optimizer state.  Scale and whether a step was
   skipped must be equal. */
bool dc_train(const ampc_api *api, const char *device_a, const char *device_b,
              const DcTraining *t, DcReport *r);

/* Trains twice on one device, the second time with the environment variable
   `name` set to `value` (NULL: unchanged); metrics and all variables must
   have the same bits after every step. */
bool dc_same_bits(const ampc_api *api, const char *device, const char *name,
                  const char *value, const DcTraining *t, DcReport *r);

/* Bytes in use, on the device or in the process. */
typedef size_t DcMemory(void *ctx);
/* Memory of the process: resident, from /proc. */
size_t dc_process_memory(void *ctx);

/* `memory` may not grow by more than `slack` bytes over t->steps steps after
   a warm-up, nor by opening and closing sessions. */
bool dc_leaks(const ampc_api *api, const char *device, const DcTraining *t,
              DcMemory *memory, void *ctx, size_t slack, DcReport *r);

/* Reproducible inputs of a program: floats in [-1, 1), integers in
   [0, int_below), by position; the same for the same step and seed. */
typedef struct DcRandom DcRandom;
DcRandom *dc_random_new(const ampc_api *api, const char *program,
                        int64_t int_below, uint64_t seed);
/* bounds: "INPUT=N,..", which take precedence over int_below; the text is
   kept. */
DcRandom *dc_random_bounded(const ampc_api *api, const char *program,
                            int64_t int_below, const char *bounds,
                            uint64_t seed);
const ampc_input *dc_random_feed(void *random, int step, size_t *nin);
void dc_random_free(DcRandom *f);

/* Data from a file; after its last step it starts again from the first. */
typedef struct DcFile DcFile;
bool dc_file_write(const char *path, int steps, DcFeed *feed, void *ctx);
DcFile *dc_file_open(const char *path);
const ampc_input *dc_file_feed(void *file, int step, size_t *nin);
int dc_file_steps(const DcFile *f);
void dc_file_free(DcFile *f);

#endif
