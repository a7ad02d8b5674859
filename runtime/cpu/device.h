/* SPDX-License-Identifier: Apache-2.0 */
/* device.h: declarations shared by the two files of the CPU backend. */
#ifndef AMPC_CPU_DEVICE_H
#define AMPC_CPU_DEVICE_H

#include "runtime/api/session.h"

/* Data that routine `lib` with parameters `par` derived from a variable or
   from a value of the arena. seen: the device's `written` of the variable,
   or its `runs`, at that time, or when fixed steps computed the value. */
typedef struct Kept {
    struct Kept *next;
    size_t bytes;
    uint32_t lib;
    /* Steps of the program that is being bound; the value is fixed. */
    uint32_t uses;
    bool fixed;
    const int64_t *par;
    PlanRef of;
    uint64_t seen;
    CpuKept kept; /* memory NULL: not yet worthwhile */
} Kept;

/* One step with its operands resolved. */
typedef struct BoundStep {
    uint32_t kind, lib;
    PlanKernel kernel;
    void **buf;
    const int64_t *par;
    int64_t units, grain;
    CpuEpilogue epilogue;
    CpuPool pool; /* the epilogue's pool, if any */
    Kept *kept;   /* NULL: nothing                                           */
    bool fixed;   /* .. of a value that fixed steps compute                  */
    bool writes;  /* variables that the step writes */
    bool unless;
    void *when; /* the truth value of PlanStep.when; NULL: always */
} BoundStep;

/* A table entry that must follow an input's address. */
typedef struct BoundPatch {
    void **slot;
    uint32_t input;
    uint64_t offset;
} BoundPatch;

/* A program that is ready to run; `memory` holds all its tables. NULL: not
   bound. */
typedef struct Bound {
    void *memory;
    size_t bytes;
    BoundStep *steps;
    BoundPatch *patches;
    const void **inputs; /* addresses that the tables hold now */
    uint32_t npatch;
    uint64_t fixed; /* the device's `runs` when its fixed steps ran */
} Bound;

typedef struct CpuDevice {
    const PlanIsa *isa;
    AmpcPool *pool;
    Bound *bound;      /* per program */
    void **var;        /* address of each variable; gradients are set late */
    uint64_t *written; /* how often each was */
    uint64_t runs;     /* of programs */
    uint64_t changes;  /* all variables together */
    /* The program, + 1, whose fixed steps' results are in the arena; 0: none;
       and `changes` when they were computed. */
    int fixed_of;
    uint64_t fixed_at;
    Kept *kept;
    void *vars, *grads, *arena, *scratch;
    size_t vars_bytes, grads_bytes, arena_bytes, scratch_bytes;
} CpuDevice;

ampc_status cpu_need_grads(ampc_session *s);

/* run.c */
ampc_status cpu_prepare(ampc_session *s, int program);
ampc_status cpu_begin(ampc_session *s, int program, const void *const *in,
                      uint32_t *first);
ampc_status cpu_step(ampc_session *s, int program, uint32_t step);
ampc_status cpu_end(ampc_session *s, int program, ampc_status status);

#endif
