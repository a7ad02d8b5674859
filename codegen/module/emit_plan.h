/* SPDX-License-Identifier: Apache-2.0 */
/* emit_plan.h: a module's programs as tables, collected by emit_plan.c and
   printed as C by emit_tables.c.                                            */
#ifndef AMPC_CODEGEN_MODULE_EMIT_PLAN_H
#define AMPC_CODEGEN_MODULE_EMIT_PLAN_H

#include "codegen/cuda/cuda.h"

/* A program for one target. */
typedef struct EmitRun {
    const Graph *g;
    int step0, nstep, out0, nfixed;
    int64_t arena;
} EmitRun;

/* The parts of a plan that each target has separately. */
typedef struct EmitTarget {
    TargetKind kind;
    KernelSet *kernels;
    VEC(EmitRun) runs;
    VEC(PlanStep) steps;
    VEC(PlanRef) refs;
    VEC(int64_t) pars;
} EmitTarget;

/* A program for the host. */
typedef struct EmitProgram {
    Str name;
    int in0, nin, out0, nout;
} EmitProgram;

/* One PlanVar: a variable of the module or a constant. */
typedef struct EmitVar {
    const Var *var;     /* NULL: constant                                  */
    const Tensor *data; /* initial value, or NULL                          */
    uint64_t hash;      /* hash of a constant's data */
    int64_t init;
} EmitVar;

typedef struct Emit {
    Module *m;
    const Options *opt;
    Diag *d;
    Arena *a;
    PlanSource *out;
    int *var_number; /* of module variables: PlanVar or -1 */
    VEC(EmitVar) vars;
    VEC(EmitProgram) programs;
    VEC(PlanTensor) tensors;
    EmitTarget target[NUM_TARGETS]; /* without runs: the target is not
                                       compiled */
    int *const_number; /* of the current graph, by ValueId.i: PlanVar or -1 */
} Emit;

/* ---- emit_plan.c --------------------------------------------------------- */

/* The reference of v. PLAN_NONE for an optional result without readers. */
PlanRef emit_ref(Emit *e, const Graph *g, ValueId v);
/* Whether v at a and w at b share bytes. */
bool emit_lie_over(const Graph *g, ValueId v, PlanRef a, ValueId w, PlanRef b);
/* Appends the step as it is. */
const PlanStep *emit_step(Emit *e, const Graph *g, const LoweredStep *s, int n,
                          const LoweredStep *x);

/* The step of n groups that share a launch; NULL: the step has no work. */
const PlanStep *emit_groups(Emit *e, const Graph *g, const LoweredStep *s,
                            int n);

/* ---- emit_gelu.c --------------------------------------------------------- */

/* Adds a PLAN_GELU for steps i and i + 1, which follow it, and behind it
   steps[i].sums; false: cuBLASLt does not compute both. */
bool emit_gelu(Emit *e, const Graph *g, const LoweredStep *steps, int i);

/* ---- emit_tile.c --------------------------------------------------------- */

/* With --tile: adds a PLAN_TILE for steps i and i + 1, which follow it. Returns
   its kernel's number + 1; 0: no Tile kernel does their work. */
uint32_t emit_tile(Emit *e, const Graph *g, const LoweredStep *steps, int i);
/* A step by itself, always run, of a group that shares no launch. */
bool emit_is_alone(const Graph *g, const LoweredStep *steps, int i);
/* Whether steps behind i + 1 read the value, a root. */
bool emit_is_kept(const Graph *g, const LoweredStep *steps, int i,
                  ValueId root);
/* True if all begin at 16 bytes, and nothing that is written lies where
   another is: blocks run in any order. */
bool emit_lies_apart(Emit *e, const Graph *g, const ValueId *v,
                     const bool *written, int n);
/* Called behind all steps: warns if none became a PLAN_TILE. */
void emit_tile_warn(const Emit *e);

/* emit_products.c: refuses what a GPU of the options cannot compute. */
Status emit_check_products(const Module *m, const Options *o, Diag *d);
/* emit_tables.c */
void put_plan(StrBuf *sb, Emit *e, const EmitInput *in);

#endif
