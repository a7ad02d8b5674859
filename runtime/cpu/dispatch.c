/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch.c: calls of the CPU's routines by their rows of lib.def. */
#include "runtime/cpu/kernels.h"

/* Addresses of operands by name, as they are in a step's table. */
#define REF_IN(x)                   const void *x;
#define REF_OPT_IN(x)               const void *x;
#define REF_OUT(x)                  void *x;
#define REF_OPT_OUT(x)              void *x;
#define REF_RESULT(x)               void *x;
#define OPERAND(role, x, f, dtypes) REF_##role(x)
#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    typedef struct name##_refs {                                               \
        operands                                                               \
    } name##_refs;
#include "runtime/program/lib.def"
#undef OPERAND

#define ARG_IN(x)      , r->x
#define ARG_OPT_IN(x)  , r->x
#define ARG_OUT(x)     , r->x
#define ARG_OPT_OUT(x) , r->x
#define ARG_RESULT(x)  , r->x, c->epilogue
#define ARG_scratch    , c->scratch
#define ARG_kept       , c->scratch, c->kept
#define ARG_none
#define LEVEL_amx l->isa,
#define LEVEL_none

void cpu_lib_run(const AmpcCpuLib *l, PlanLib lib, const CpuLibCall *c) {
    CONTRACT(lib < PLAN_NLIB);
    CONTRACT((uintptr_t)c->scratch % 64 == 0);
    switch (lib) {
#define OPERAND(role, x, f, dtypes) ARG_##role(x)
#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    case PLAN_LIB_##E: {                                                       \
        const name##_refs *r = (const void *)c->buf;                           \
        CONTRACT(l->name); /* the module names all that its steps need */      \
        l->name(LEVEL_##tiles c->pool, c->par operands ARG_##scratch);         \
        break;                                                                 \
    }
#include "runtime/program/lib.def"
#undef OPERAND
    case PLAN_NLIB: break;
    }
}

#define NEED_scratch(name) need = cpu_##name##_scratch(par, threads)
#define NEED_kept(name)    NEED_scratch(name)
#define NEED_none(name)

size_t cpu_lib_scratch(PlanLib lib, const void *par, int threads) {
    size_t need = 0;
    switch (lib) {
#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    case PLAN_LIB_##E: {                                                       \
        NEED_##scratch(name);                                                  \
        break;                                                                 \
    }
#include "runtime/program/lib.def"
    case PLAN_NLIB: break;
    }
    return need;
}

#define KEEPS_scratch(name)
#define KEEPS_none(name)
#define KEEPS_kept(name) need = cpu_##name##_kept(par, threads)

size_t cpu_lib_kept(PlanLib lib, const void *par, int threads) {
    size_t need = 0;
    switch (lib) {
#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    case PLAN_LIB_##E: {                                                       \
        KEEPS_##scratch(name);                                                 \
        break;                                                                 \
    }
#include "runtime/program/lib.def"
    case PLAN_NLIB: break;
    }
    return need;
}
