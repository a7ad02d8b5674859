/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.h: the hand-written CPU routines.

   Every routine is a row of lib.def, compiled once per level of isa.def from
   the same C sources with a level prefix, and reached through AmpcCpuLib.  A
   module has a table per level of the routines that its steps name; the linker
   leaves the others out.  Level v4+amx has v4's routines, which are told to use
   tiles. Rules for all:
   - the arithmetic of an element depends on shapes only, never on the number
     of threads: work is split over outputs, and where a reduction dimension
     is split, the split is a function of the shape, partial sums are added in
     index order;
   - 16-bit operands are widened to fp32 while packing; accumulation is fp32
     (fp64 operands: fp64); conversions round to nearest even and overflow to
     infinity; NaN stays NaN;
   - no allocation: `scratch` (64-byte aligned, one block per session) has the
     size that the matching *_scratch function tells at open;
   - parallel work runs through `pool_run`.                                  */
#ifndef AMPC_CPU_KERNELS_H
#define AMPC_CPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/base/contract.h"
#include "runtime/program/lib.h"

typedef enum AmpcIsa {
#define ISA(E, number, name, prefix, arch, vectors, flags)                     \
    AMPC_ISA_##E = number,
#define ISA_SOURCE(E, number, name, prefix, vectors) AMPC_ISA_##E = number,
#include "runtime/cpu/isa.def"
} AmpcIsa;

static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t ceil_div(int64_t a, int64_t b) {
    CONTRACT(b > 0);
    return (a + b - 1) / b;
}
static inline int64_t round_up(int64_t a, int64_t b) {
    return ceil_div(a, b) * b;
}

/* ---- thread pool (pool.c) ------------------------------------------------ */

typedef struct AmpcPool AmpcPool;

/* Runs fn(ctx, lo, hi, worker) over [0, n) in chunks that are multiples of
   `grain` (except the last); 0 <= worker < pool_threads(p).  Returns when all
   is done.  The calling thread takes part. p may be NULL: runs inline. */
typedef void PoolFn(void *ctx, int64_t lo, int64_t hi, int worker);
void pool_run(AmpcPool *p, int64_t n, int64_t grain, PoolFn *fn, void *ctx);
int pool_threads(const AmpcPool *p);

/* threads = 0: one per CPU that affinity and the cgroup quota allow.
   NULL: out of memory or threads. */
AmpcPool *pool_create(int threads);
void pool_destroy(AmpcPool *p);

/* ---- epilogue ------------------------------------------------------------ */

/* A pooling fused after a convolution: some images are pooled right after
   they are computed, so that pooling reads them from a cache. */
typedef struct CpuPool {
    PlanLib lib; /* MAXPOOL or AVGPOOL                                      */
    const LibPool *par;
    void *const *buf; /* operands of the pooling */
    void **at; /* fn reads the pooled input here: its address is stored in
                  `*at`; NULL: it is the result */
    int count; /* operands of fn */
} CpuPool;

/* Epilogue of a finished fp32 tile. fn == NULL: store the tile as `dtype` in
   `out`, in the layout of the routine's result. */
typedef struct CpuEpilogue {
    PlanEpilogueFn *fn;
    const void *table;
    void *const *buf;
    const CpuPool *pool; /* CONV_FWD; NULL: none                            */
} CpuEpilogue;

/* Bytes for a convolution result that is pooled and not stored elsewhere.
   They precede the convolution's own scratch memory. */
size_t cpu_pool_scratch(const LibConv *c, const LibPool *p, int threads);

/* ---- the routines (lib.def) ---------------------------------------------- */

/* Data that a routine derived from its second operand; valid while `made` is
   set, until that operand changes. */
typedef struct CpuKept {
    void *memory;
    int made;
} CpuKept;

/* C parameters: the level where tiles are used (an AmpcIsa), the pool, the
   parameter struct, operands, for a RESULT its epilogue (NULL or without fn:
   store it), the scratch, and kept data (NULL: none). */
#define LIB_TILES_amx int isa,
#define LIB_TILES_none
#define LIB_C_IN(x)      , const void *x
#define LIB_C_OPT_IN(x)  , const void *x
#define LIB_C_OUT(x)     , void *x
#define LIB_C_OPT_OUT(x) , void *x
#define LIB_C_RESULT(x)  , void *x, const CpuEpilogue *epilogue
#define LIB_C_scratch    , void *scratch
#define LIB_C_kept       , void *scratch, CpuKept *kept
#define LIB_C_none

/* The type of a row's function: extern LIB_ROUTINE(gemm) ampc_v4_gemm; */
#define LIB_ROUTINE(name)           AmpcRoutine_##name
#define OPERAND(role, x, f, dtypes) LIB_C_##role(x)
#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    typedef void LIB_ROUTINE(name)(LIB_TILES_##tiles AmpcPool *,               \
                                   const S *operands LIB_C_##scratch);
#include "runtime/program/lib.def"
#undef OPERAND

typedef struct AmpcCpuLib {
    int isa;
#define LIB(E, name, ...) LIB_ROUTINE(name) * name;
#include "runtime/program/lib.def"
} AmpcCpuLib;

/* Scratch bytes for that many workers, and bytes kept, enough for every ISA
   level. */
#define LIB_NEED_scratch(name, S) size_t cpu_##name##_scratch(const S *, int);
#define LIB_NEED_kept(name, S)                                                 \
    LIB_NEED_scratch(name, S) size_t cpu_##name##_kept(const S *, int);
#define LIB_NEED_none(name, S)
#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    LIB_NEED_##scratch(name, S)
#include "runtime/program/lib.def"
#undef LIB_NEED_kept
#undef LIB_NEED_scratch
#undef LIB_NEED_none

/* dispatch.c: calls any routine by its row. */
typedef struct CpuLibCall {
    AmpcPool *pool;
    const void *par;  /* the row's parameters                               */
    void *const *buf; /* the row's operands                                 */
    const CpuEpilogue *epilogue;
    void *scratch;
    CpuKept *kept; /* may be NULL                                           */
} CpuLibCall;
void cpu_lib_run(const AmpcCpuLib *l, PlanLib lib, const CpuLibCall *c);
size_t cpu_lib_scratch(PlanLib lib, const void *par, int threads);
/* 0: it keeps no data. */
size_t cpu_lib_kept(PlanLib lib, const void *par, int threads);

/* Highest level this machine can run; AMPC_ISA lowers it (tests).  The first
   call that may answer AMPC_ISA_AMX asks the kernel for tiles in this process,
   and measures them.                                                        */
int cpu_isa_level(void);
/* The word in AMPC_ISA, if it is not one of CPU_ISA_WORDS; else NULL. */
const char *cpu_isa_unknown(void);
#if defined __aarch64__
#define CPU_ISA_WORDS "v8 or v8.6"
#else
#define CPU_ISA_WORDS "v2, v3, v4, v4-amx, v4-dot or v4-fma"
#endif
const char *cpu_isa_name(int level); /* "x86-64-v3" */

#endif
