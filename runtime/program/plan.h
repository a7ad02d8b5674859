/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h: the compiled training step as plain data.

   `ampc` emits one AmpcModule (constant tables, no pointers into the host)
   per train.so: the same programs once for each kind of target, over the same
   variables.  The runtime (run.c) is one loop over a target's steps.  A plan
   never contains code: kernels are named by index, library routines by PlanLib.
   Nothing here depends on the compiler's own headers. */
#ifndef AMPC_PLAN_H
#define AMPC_PLAN_H

#include <inttypes.h>

#include "runtime/program/draw.h"
#include "runtime/program/dtype.h"

#define AMPC_PLAN_VERSION 21

/* ---- where bytes live ---------------------------------------------------- */

typedef enum PlanSpace {
    PLAN_NONE = 0, /* an absent operand; its address is NULL */
    PLAN_ARENA,    /* offset in the session's one arena; index = number of
                      the value stored there at that time, 0 = unknown: in a
                      run, equal numbers of a program mean equal bytes */
    PLAN_VAR,      /* index = PlanVar; memory that outlives a step */
    PLAN_INPUT     /* index = input of the running program                  */
} PlanSpace;

typedef struct PlanRef {
    uint32_t space;
    uint32_t index;
    uint64_t offset; /* bytes */
} PlanRef;

typedef struct PlanTensor {
    const char *name; /* as in the model; may contain odd bytes, but no NUL */
    uint32_t dtype;   /* AmpcDtype                                          */
    uint32_t rank;
    int64_t dim[AMPC_MAX_RANK];
    int64_t sample_rows; /* as in ampc_tensor_info */
} PlanTensor;

typedef enum PlanVarKind {
    PLAN_PARAM,  /* trained; fp32 masters */
    PLAN_FROZEN, /* an initializer that does not train; in the checkpoint   */
    PLAN_BUFFER, /* running statistics; in the checkpoint                   */
    PLAN_STATE,  /* optimizer and scaler state; checkpointed for resume     */
    PLAN_HYPER,  /* written by the host: learning rate, ...                 */
    PLAN_SHADOW, /* 16-bit copy of a parameter; program "refresh" fills it */
    PLAN_GRAD,   /* gradient accumulator; zero before the first micro-step  */
    PLAN_CONST   /* never written                                           */
} PlanVarKind;

typedef struct PlanVar {
    const char *name;
    uint32_t kind; /* PlanVarKind                                           */
    uint32_t dtype;
    uint32_t rank;
    uint32_t stored_dtype; /* dtype of the initializer in the user's model  */
    int64_t dim[AMPC_MAX_RANK];
    uint64_t bytes;
    int64_t init; /* offset in section "weights", or -1: random or `fill` */
    double fill;
    Draw draw;
} PlanVar;

/* ---- steps --------------------------------------------------------------- */

/* A generated kernel computes work units [lo, hi) of [0, units).  Units are
   independent and each is computed in one fixed order, so any split over
   threads gives the same bits.  buf[i] are the step's resolved refs in order,
   par its integer parameters. `table` has sizes and numbers of the kernel,
   whose function others may share. */
typedef void PlanKernelFn(void *const *buf, const void *table,
                          const int64_t *par, int64_t lo, int64_t hi);

typedef struct PlanKernel {
    PlanKernelFn *fn;
    const void *table; /* NULL: not read */
} PlanKernel;

/* A generated epilogue receives a finished tile of fp32 accumulators of a
   matrix product or convolution and stores it:
     acc[r * ld + c] belongs to element (batch, row + r, col + c),
     0 <= r < rows, 0 <= c < cols.
   For a convolution: batch = image, row = output channel (over all groups),
   col = flat spatial position.  buf is the epilogue's own. */
typedef void PlanEpilogueFn(void *const *buf, const void *table,
                            const float *acc, int64_t ld, int64_t batch,
                            int64_t row, int64_t col, int64_t rows,
                            int64_t cols);

typedef struct PlanEpilogue {
    PlanEpilogueFn *fn;
    const void *table;
} PlanEpilogue;

typedef enum PlanStepKind {
    /* on a CPU */
    PLAN_KERNEL, /* fn = index of a generated kernel                        */
    PLAN_LIB,    /* fn = PlanLib; `second`: PlanLib + 1 of a pool of CONV_FWD's
                    result; the pool's refs and pars follow CONV_FWD's own.
                    If the pool's input is PLAN_NONE, nothing else reads it
                    and it is not stored: then the epilogue's ref for it, or
                    the result if there is no epilogue, is PLAN_NONE */
    /* on a GPU */
    PLAN_LAUNCH,  /* fn = PlanCuda.kernels: kernel(refs.., [n], [scratch]),
                     then, if `second`, that one with the same parameters: n,
                     which is par 0, only where `blocks` is 0, scratch where
                     the step asks for it; PLAN_NONE refs are NULL */
    PLAN_MANY,    /* npar tensors in one launch of kernel fn:
                     kernel(table, npar), where row i of the table, all u64, is
                     {first block of tensor i, par i, its refs..} */
    PLAN_ROWS,    /* npar / 2 tensors, of par 2i rows of par 2i + 1 columns, in
                     one launch of kernel fn(table, npar / 2), a block a row;
                     row i of the table: {first block of tensor i, columns, its
                     refs..}, and, if `second`, {rows, address of a u32 that is
                     0 when the launch begins and when it is over}: the last
                     block of a tensor whose last refs are not PLAN_NONE does
                     something more */
    PLAN_PRODUCT, /* fn = PlanProduct, by cuBLASLt: refs a, b, result and the
                     operands that fn names; par: LibGemm and, if they are not
                     AMPC_FACTORS_F32, the AmpcFactors.  Where it refuses,
                     by `second`: kernel(a, b, result, scale or NULL, what is
                     added or NULL, the scales of blocks or NULL, m, n, k,
                     batch, a_bs, b_bs, a_rs, a_cs, b_rs, b_cs, fn); or where it
                     refuses fn alone, the product and then `epilogue`, a kernel
                     with the same parameters, on its result */
    PLAN_TILE,    /* PlanCuda.tiles[fn](refs..) does the work of the next
                     par 0 steps, which are then left out. Where the driver
                     has no such kernel this step is left out; PLAN_NONE refs
                     are NULL */
    PLAN_GELU,    /* fn = PlanGelu: a product by cuBLASLt and what follows it.
                     refs a, b, result, GELU's operand, bias or PLAN_NONE; par:
                     LibGemm, the number of steps behind it that go with it, and
                     of those behind them, which they replace. GPUs older than
                     PLAN_GELU_SINCE, or without an algorithm, leave out this
                     step and those that go with it, others the replaced ones
                   */
    PLAN_COPY,    /* copies ref 0 to ref 1 by the driver; par: LibCopy */
    /* on any */
    PLAN_SUM, /* the refs, f32 gradients that are final, are summed over ranks;
                 par 0: the AmpcDtype that is sent, to which kernel fn rounds on
                 a GPU (from, to, n), and back from `second`; par 1 + i: if not
                 0 and ranks share the update of ref i, each rank needs only its
                 part, a multiple of this many elements, and zeros elsewhere */
    PLAN_SUM_NOW /* sums ref 0 and the bytes after it over ranks before the next
                    step; par: LibCopy; second = 1: takes the largest, of f32 */
} PlanStepKind;

/* Library routines: rows of lib.def, which defines refs and par of each. */
typedef enum PlanLib {
#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    PLAN_LIB_##E,
#include "runtime/program/lib.def"
    PLAN_NLIB
} PlanLib;

/* Epilogue that cuBLASLt applies to a product before storing it. */
typedef enum PlanProduct {
    PLAN_PRODUCT_PLAIN,
    PLAN_PRODUCT_BIAS,  /* + ref 3, one value per column, of the result's dtype
                         */
    PLAN_PRODUCT_SCALE, /* * ref 3, an f32 on the device                    */
    PLAN_PRODUCT_ADD,   /* + ref 3, which has the result's layout and may
                           share its memory */
    /* of numbers of 8 bits alone: * ref 3, and then as above + ref 4 */
    PLAN_PRODUCT_SCALE_BIAS,
    PLAN_PRODUCT_SCALE_ADD,
    /* .. and whose blocks have scales, of A ref 3, of B ref 4 (blocks.h), and
       then as above + ref 5 */
    PLAN_PRODUCT_BLOCKS,
    PLAN_PRODUCT_BLOCKS_BIAS,
    PLAN_PRODUCT_BLOCKS_ADD
} PlanProduct;

typedef enum PlanGelu {
    PLAN_GELU_OF,   /* GELU, in the form of tanh, of the product with its bias,
                       which ref 3 gets unless it is PLAN_NONE */
    PLAN_GELU_SLOPE /* the product times GELU's slope at ref 3; no bias */
} PlanGelu;
/* A compute capability times 10: on older GPUs llm.c found it slower. */
enum { PLAN_GELU_SINCE = 90, PLAN_GELU_REFS = 5, PLAN_GELU_PARS = 2 };

static inline bool product_scales(uint32_t fn) {
    return fn == PLAN_PRODUCT_SCALE || fn == PLAN_PRODUCT_SCALE_BIAS ||
           fn == PLAN_PRODUCT_SCALE_ADD;
}

static inline bool product_blocks(uint32_t fn) {
    return fn >= PLAN_PRODUCT_BLOCKS;
}

/* The ref, apart from the first three, that is added; -1: none. */
static inline int product_adds(uint32_t fn) {
    if (fn == PLAN_PRODUCT_PLAIN || fn == PLAN_PRODUCT_SCALE ||
        fn == PLAN_PRODUCT_BLOCKS)
        return -1;
    return product_blocks(fn) ? 2 : product_scales(fn);
}

/* Refs apart from the first three. */
static inline uint32_t product_more(uint32_t fn) {
    return (uint32_t)(product_scales(fn) + 2 * product_blocks(fn) +
                      (product_adds(fn) >= 0));
}

typedef struct PlanStep {
    uint32_t kind;
    uint32_t fn;
    uint32_t epilogue;   /* PLAN_LIB: index of a generated one + 1;
                            PLAN_PRODUCT: a kernel's + 1; 0 = none */
    uint32_t second;     /* PLAN_LAUNCH, PLAN_PRODUCT: index of a kernel + 1;
                            PLAN_LIB, PLAN_ROWS: see there; 0 = none */
    uint32_t ref0, nref; /* range of PlanTarget.refs */
    uint32_t ep_nref;    /* after them: the epilogue's own refs */
    uint32_t par0, npar; /* range of PlanTarget.pars */
    int32_t when;        /* PLAN_KERNEL, PLAN_LIB, PLAN_LAUNCH, PLAN_ROWS: > 0:
                            the step runs only if refs[when - 1], one truth
                            value, is true; < 0: only if refs[-when - 1] is
                            false. Elsewhere its results hold anything. 0: it
                            always runs */
    int64_t units; /* PLAN_KERNEL: independent work units                */
    int64_t grain; /* PLAN_KERNEL: units that are worth a hand-over to a
                      thread */
    /* PLAN_KERNEL, PLAN_LAUNCH, PLAN_MANY: not 0: the step updates
       parameters and their optimizer state, par i elements each, this many
       elements per unit; ranks may share the units. Refs are variables with
       that many elements, or scalars. */
    int64_t split;
    uint64_t scratch; /* PLAN_LAUNCH: bytes of scratch memory while the step
                         runs */
    const char *name; /* IR value it computes; for profiles and messages    */
} PlanStep;

/* The index in PlanTarget.refs of what a step with `when` depends on. */
static inline uint32_t plan_condition(const PlanStep *t) {
    return (t->when < 0 ? 0 - (uint32_t)t->when : (uint32_t)t->when) - 1;
}

/* Number of tensors in a launch with a table of them; 0: no table. */
static inline uint32_t plan_tensors(const PlanStep *t) {
    return t->kind == PLAN_MANY   ? t->npar
           : t->kind == PLAN_ROWS ? t->npar / 2
                                  : 0;
}

/* A program as the host sees it, the same on every target. */
typedef struct PlanProgram {
    const char *name;  /* train, micro, update, eval, predict, refresh       */
    uint32_t in0, nin; /* range of AmpcModule.tensors: inputs */
    uint32_t out0, nout; /* range of AmpcModule.tensors: outputs */
} PlanProgram;

/* A program for one target. */
typedef struct PlanRun {
    uint32_t step0, nstep; /* range of PlanTarget.steps */
    uint32_t out0;         /* PlanTarget.refs: addresses of its outputs */
    uint32_t masters; /* not 0: it reads and writes fp32 weights alone, so that
                         16-bit copies are not needed before it and are
                         outdated after it (pass masters) */
    uint64_t arena;   /* bytes                                         */
    double flops;     /* FLOPs of its matrix products and convolutions */
    uint32_t nfixed;  /* steps that it begins with, on a CPU: they depend on
                         variables alone, and nothing in the run writes over
                         what the other steps read of theirs */
} PlanRun;

/* All programs for one target. */
typedef struct PlanTarget {
    uint32_t nstep, nref, npar;
    const PlanRun *runs; /* one per entry of AmpcModule.programs */
    const PlanStep *steps;
    const PlanRef *refs;
    const int64_t *pars;
} PlanTarget;

/* One set of generated kernels, compiled for one ISA level. */
typedef struct PlanIsa {
    uint32_t level; /* AmpcIsa, see cpu/kernels.h                           */
    const PlanKernel *kernels;
    const PlanEpilogue *epilogues;
    const struct AmpcCpuLib *lib;
} PlanIsa;

/* ---- code for GPUs ------------------------------------------------------- */

/* A kernel of the module's CUDA code: `name` in section "cuda:ARCH:UNIT".
   One-dimensional blocks and grids.                                         */
typedef struct PlanCudaKernel {
    const char *name;
    uint32_t unit;
    uint32_t threads; /* per block                                          */
    uint32_t shared;  /* bytes of dynamic shared memory                     */
    uint32_t guarded; /* not 0: the last two parameters are the address of
                         PlanStep.when's truth value, NULL if there is none, and
                         u32 1 if the kernel does nothing where it is true, 0
                         if it does nothing where it is false */
    int64_t blocks;   /* 0: n / per_block rounded up                        */
    int64_t per_block;
} PlanCudaKernel;

/* A kernel of section "tile:ARCH": CUDA Tile chooses its threads. */
typedef struct PlanTile {
    const char *name;
    int64_t blocks;
} PlanTile;

struct AmpcBackend; /* runtime/program/backend.h */

typedef struct PlanCuda {
    const PlanTarget *plan;
    uint32_t nkernel, nunit, narch;
    const PlanCudaKernel *kernels;
    /* "sm_90", "sm_80", ..., last "compute_80" (PTX, NUL-terminated)       */
    const char *const *archs;
    int32_t toolkit;                   /* version of NVRTC: 12080 = 12.8 */
    const struct AmpcBackend *backend; /* keeps its code in the module      */
    uint32_t ntile, ntile_arch;
    const PlanTile *tiles;
    const char *const *tile_archs; /* "sm_100", "sm_90" */
} PlanCuda;

typedef struct AmpcModule {
    uint32_t version; /* AMPC_PLAN_VERSION                                  */
    const char *model;
    const char *info; /* JSON: options, precision, producer, class axis ... */
    uint64_t graph_hash;
    uint64_t id; /* hash of tables and weights; also in the file's tail */
    uint32_t nprogram, nvar, ntensor, nisa;
    const PlanProgram *programs;
    const PlanVar *vars;
    const PlanTensor *tensors;
    const PlanTarget *cpu; /* NULL: no CPU code */
    const PlanIsa *isas;   /* best first                                    */
    const PlanCuda *cuda;  /* NULL: no CUDA code                            */
    const struct AmpcSizes *sizes; /* NULL: all programs have the same sizes */
} AmpcModule;

/* ---- the file's tail ----------------------------------------------------- */

/* After the ELF image follow sections that are read by offset and never loaded:
   "weights" (initial values, each 64-byte aligned), "model" (the user's file
   without the tensors that are in "weights"), "ir:STAGE" (text),
   "cuda:ARCH:UNIT" (cubin, or PTX for compute_XX; plain), "tile:ARCH" (cubin),
   "report".  Texts are
   packed in one zstd frame, because the texts of neighbouring stages differ
   little, the section "packed".  The last 32 bytes of the file are a PlanTail,
   the directory lies directly before it.  All
   little-endian. */
#define AMPC_TAIL_MAGIC UINT64_C(0x324c494154504d41) /* "AMPTAIL2" */

typedef struct PlanSection {
    char name[32];
    uint64_t offset; /* from the start of the file, or of the unpacked texts */
    uint64_t bytes;
    uint32_t packed; /* 1: in section "packed"                              */
    uint32_t crc;    /* CRC-32 of the bytes, unpacked                       */
} PlanSection;

typedef struct PlanTail {
    uint64_t directory; /* offset of the first PlanSection                  */
    uint64_t nsection;
    uint64_t id; /* AmpcModule.id: tells whether the file is the one that was
                    loaded */
    uint64_t magic;
} PlanTail;

/* Section "sidecar": the file of weights that belongs to the module OUT.so:
   OUT.weights.safetensors, or the same name with PLAN_WAITING (its crc) where a
   compilation ended between the module and that name.                       */
#define PLAN_WAITING ".%08" PRIx32
typedef struct PlanSidecar {
    uint64_t bytes;
    uint32_t crc; /* of the whole file */
    uint32_t reserved;
} PlanSidecar;

#endif
