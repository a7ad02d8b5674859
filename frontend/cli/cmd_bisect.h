/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_bisect.h: the parts of `ampc bisect`.

   cmd_bisect.c           the command: two modules in step
   cmd_bisect_print.c     its answer
   cmd_bisect_side.c      one module: what its steps leave in memory
   cmd_bisect_slice.c     what a kernel computes on the way, interpreted
   cmd_bisect_rounding.c  how far rounding alone moves these values          */
#ifndef AMPC_FRONTEND_DRIVER_CMD_BISECT_H
#define AMPC_FRONTEND_DRIVER_CMD_BISECT_H

#include "codegen/section.h"
#include "frontend/cli/cmd.h"
#include "frontend/run/run_cmd.h"
#include "ir/eval/evaluate.h"

/* Why a value whose two sides differ is nobody's fault. */
typedef enum Mark {
    MARK_NONE,
    MARK_NOISE,
    /* it is nothing but rounding error */ MARK_CHOSEN, /* rounding decides it,
     such as which of nearly equal numbers is the largest */
    MARK_BEHIND /* it is computed from such a value */
} Mark;

/* Values of one program, with their names in the IR after pass memplan. */
typedef struct Seen {
    const Graph *g;
    void **bytes; /* by ValueId.i: result stored by the last run; NULL: none  */
    Mark *mark;   /* by ValueId.i: of this step */
    Mark *told;   /* .. of the first step in which it had one */
} Seen;

/* A variable as it was before the step. */
typedef struct Before {
    ampc_variable_info info;
    char *bytes;
    Mark mark; /* of what the last step wrote */
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

/* Loads the module and its IR. */
Status side_open(Side *x, Session *s, const RunOptions *o, const char *module);
/* Opens its data. */
Status side_feed(Side *x);
void side_close(Side *x);
/* Keeps all variables. */
Status side_keep(Side *x);
Before *side_before(const Side *x, const char *name); /* NULL */
/* Copies a variable's current value to memory of its size. */
Status side_now(Side *x, const Before *v, void *to);
/* One optimizer step on samples from `first` on, recorded. */
Status side_step(Side *x, int64_t first);
Seen *side_program(const Side *x, const char *name); /* NULL */

/* The relative distance of `times` a and b: the norm of the difference divided
   by the larger norm; infinite where only one is finite. */
double tensors_apart(const Tensor *a, double times, const Tensor *b);
/* The element in which `times` a and b differ most. */
int64_t tensors_furthest(const Tensor *a, double times, const Tensor *b);
/* The loss scale of the last step; 1: none. Gradients inside the step are
   multiplied by it. */
double side_scale(const Side *x);
/* Root of the mean square. */
double tensor_size(const Tensor *t);

/* ---- cmd_bisect_slice.c -------------------------------------------------- */

/* A change of each element of a value, as large as rounding makes. */
typedef struct Unit {
    double part;  /* of the element; 0: no change */
    double least; /* smaller elements change as this number does */
    bool adds_up; /* its sums are in fp32: their order can add errors up */
} Unit;

/* The nodes that compute a value from values in memory, and their values. */
typedef struct Slice {
    const Side *side, *other;
    const Seen *p, *q; /* of the sides */
    VEC(NodeId) order;
    EvalTensor **value;  /* by ValueId.i */
    EvalTensor **chosen; /* by ValueId.i: what nodes read in its place; NULL: no
                            such value */
    double largest;      /* root mean square of the elements that it reads */
    double work;         /* estimate of the number of multiply-adds */
    const Unit *unit; /* by ValueId.i: slice_run changes values so; NULL: no */
    int repetition;   /* of such changes, which are random */
} Slice;

enum { ROUNDING_REPETITIONS = 3 };

/* Also uses values that the other side's program has in memory; false: an
   operand is unknown. */
bool slice_find(Slice *x, const Side *side, const Seen *p, ValueId v,
                const Side *other, const Seen *q);
/* The stored value: of `like` if that side has it. */
Status slice_run(Slice *x, const Slice *like, Arena *a, Diag *d);
/* The stored values with a name; NULL if there are none. */
const Tensor *known_value(const Side *x, const Seen *p, ValueId v, Arena *a);
/* True if the sides have no equal numbers for a value of the slice: it is
   nothing but rounding error, or the two are far apart. */
bool is_noise(const Slice *x, ValueId v);
/* Of a result of this step, or of what the last step wrote. */
Mark mark_of(const Side *x, const Seen *p, ValueId v);
/* ---- cmd_bisect_rounding.c ----------------------------------------------- */

typedef enum Roundings {
    ROUND_APART, /* of values that one side stores in fewer bits, and of fp32 */
    ROUND_CODE,  /* of what a module's own code rounds, in any order of sums */
    ROUND_ALL    /* of all values, each in the fewer bits of the two sides */
} Roundings;

/* After slice_run(x, like): how far such roundings move each value, as a root
   mean square, by ValueId.i; NULL: the nodes cannot be interpreted. */
double *slice_moved(Slice *x, const Slice *like, Roundings which, Arena *a);
/* After slice_run: true if v, an index or a comparison, becomes `other` in each
   element in which they differ, when the numbers that its node reads move as
   far as such roundings move them. */
bool is_rounded_to(Slice *x, ValueId v, const EvalTensor *other,
                   const double *moved, Roundings which, Arena *a);

/* ---- the command --------------------------------------------------------- */

typedef enum Cause {
    CAUSE_START,
    CAUSE_IR,
    CAUSE_A,
    CAUSE_B,
    CAUSE_GROWN
} Cause;

/* Where two modules part. */
typedef struct Part {
    bool found;
    int64_t step;        /* from 1 */
    const char *program; /* NULL: before the first step */
    Str value, node;
    double apart;
    double limit; /* the distance that is allowed to the value */
    Str of;       /* stored value on the way to which it is computed; NULL */
    double of_apart;
    Cause cause;
    int64_t element;  /* in which they differ most */
    double number[2]; /* that element: in A and B; or stored and interpreted */
    char *line[2];    /* the node in A and in B; NULL: no node differs */
} Part;

typedef struct Bisect {
    Session *s;
    RunOptions opt;
    const char *path[2];
    Side side[2];
    int64_t steps;
    double tolerance; /* < 0: chosen by the modules' precision */
    bool json;
    Part part;
    Part grown; /* the first value that was only amplified, used unless a
                   cause is found later */
    int looks;  /* number of values interpreted in this step */
} Bisect;

/* ---- cmd_bisect_print.c -------------------------------------------------- */

void put_bisect_text(const Bisect *b, StrBuf *sb);
void put_bisect_json(const Bisect *b, StrBuf *sb);

#endif
