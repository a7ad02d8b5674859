/* SPDX-License-Identifier: Apache-2.0 */
/* measure.h: one program with and without roundings, measured. */
#ifndef AMPC_FRONTEND_CLI_MEASURE_H
#define AMPC_FRONTEND_CLI_MEASURE_H

#include "frontend/cli/cmd_audit.h"
#include "ir/graph/names.h"
#include "passes/common/sensitivity.h"

/* LEAST_DRAWS: of a long step, whose sums over millions of elements hardly
   differ between repetitions. */
enum { LEAST_DRAWS = 1, MOST_DRAWS = 64 };

/* Inputs are normally distributed; in [0, 1) if the loss would not be
   finite, as with a logarithm. */
typedef enum Floats { FLOATS_NORMAL, FLOATS_UNIT } Floats;

typedef struct Range {
    Str input;
    int64_t least, most;
} Range;

/* One program of sensitivity.h. */
typedef struct Program {
    const char *name;
    ampc_input *in; /* the model's inputs, then signs or switches */
    char **own;     /* data of the inputs that --calibrate does not feed */
    int nmodel, nin;
} Program;

typedef struct Measure {
    Session *s;
    Module *m;
    Str objective;
    Replica r;
    Sensitivity sensitivity;
    Program slopes, step; /* "eval" and "predict" of r */
    int weights;          /* the repetition whose random weights r has */
    VEC(Range) ranges;
    FeedSet feed; /* of --calibrate */
    Floats floats;
    double *sum[2 * NUM_ERRORS]; /* per site: sum of squared relative errors */
    int draws;                   /* number of repetitions in these sums */
    double fp32[NUM_ERRORS];
    int *used, kept;     /* repetitions whose gradients in fp32 are kept */
    double *loss, *norm; /* in fp32, per kept repetition */
    float *ref, *grad;   /* gradients of the kept repetitions; one gradient of
                            the present one */
    void *weight;        /* room for the largest random weight */
} Measure;

typedef VEC(Measure *) Measures;

bool measure_is_own(const char *input);
Status measure_fail(const Measure *x, const char *what);
Status measure_no_memory(const Measure *x, size_t bytes);
void measure_ranges(Measure *x, const Graph *g);
Status measure_room(Measure *x);
Status measure_open_data(Measure *x);
Status measure_open_inputs(Measure *x, Program *p);
int measure_all_draws(const Measure *x);
Status measure_fill_inputs(Measure *x, Program *p, int draw);

#endif
