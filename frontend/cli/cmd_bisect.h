/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_bisect.h: the parts of `ampc bisect`.

   cmd_bisect.c        the command: two modules in step
   cmd_bisect_side.c   one of them: what its steps leave in memory
   cmd_bisect_slice.c  what a kernel computes on the way, interpreted        */
#ifndef AMPC_FRONTEND_DRIVER_CMD_BISECT_H
#define AMPC_FRONTEND_DRIVER_CMD_BISECT_H

#include "codegen/module/section.h"
#include "frontend/cli/cmd.h"
#include "frontend/run/run_cmd.h"

/* Values of one program, with their names in the IR after pass memplan. */
typedef struct Seen {
    const Graph *g;
    void **bytes; /* by ValueId.i: result stored by the last run; NULL: none  */
} Seen;

/* A variable as it was before the step. */
typedef struct Before {
    ampc_variable_info info;
    char *bytes;
} Before;

typedef struct Side {
    Session *s;
    RunOptions opt;
    Run run;
    SectionFile file;
    bool opened;
    Module *m; /* after pass memplan */
    FeedSet feed;
    VEC(Seen) seen; /* the programs of a step, in their order */
    VEC(Before) before;
    ampc_metrics metrics;
    Status failed; /* set by the profile's function */
} Side;

/* Loads the module, its weights and its IR, and opens its data. */
Status side_open(Side *x, Session *s, const RunOptions *o, const char *module);
void side_close(Side *x);
/* Keeps all variables. */
Status side_keep(Side *x);
const Before *side_before(const Side *x, const char *name); /* NULL */
/* Copies a variable's current value to memory of its size. */
Status side_now(Side *x, const Before *v, void *to);
/* One optimizer step on samples from `first` on, recorded. */
Status side_step(Side *x, int64_t first);
Seen *side_program(const Side *x, const char *name); /* NULL */

/* The relative distance of `times` a and b: the norm of the difference divided
   by the larger norm; infinite where only one is finite. */
double tensors_apart(const Tensor *a, double times, const Tensor *b);
/* The loss scale of the last step; 1: none. Gradients inside the step are
   multiplied by it. */
double side_scale(const Side *x);
/* Root of the mean square. */
double tensor_size(const Tensor *t);

/* ---- cmd_bisect_slice.c -------------------------------------------------- */

/* The nodes that compute a value from values in memory, and their values. */
typedef struct Slice {
    const Side *side, *other;
    const Seen *p, *q; /* of the sides */
    VEC(NodeId) order;
    EvalTensor **value; /* by ValueId.i */
    double largest;     /* root mean square of the elements that it reads */
    double work;        /* estimate of the number of multiply-adds */
} Slice;

/* Also uses values that the other side's program has in memory; false: an
   operand is unknown. */
bool slice_find(Slice *x, const Side *side, const Seen *p, ValueId v,
                const Side *other, const Seen *q);
/* The stored value: of `like` if that side has it. */
Status slice_run(Slice *x, const Slice *like, Arena *a, Diag *d);
/* The stored values with a name; NULL if there are none. */
const Tensor *known_value(const Side *x, const Seen *p, ValueId v, Arena *a);

#endif
