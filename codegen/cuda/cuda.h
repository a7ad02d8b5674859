/* SPDX-License-Identifier: Apache-2.0 */
/* cuda.h: declarations shared by the files that emit CUDA.

   print_cuda*.c   kernel IR as CUDA C++ (print_cuda.h)
   cuda_lib.c      library steps as instances of the kernels in runtime/cuda;
                   the headers that units include
   cuda_gemm.c     which products and epilogues cuBLASLt can compute
   emit_cuda.c     groups to steps of the GPU's list; kernels to units
                   (translation units of equal weight)
   cuda_tables.c   launches as tables for the runtime and notes for people
   cuda_target.c   the architectures asked for
   nvrtc.c         units to cubins and PTX, by NVRTC through dlopen
   print_tile.c    a product and the kernel after it as one CUDA Tile kernel
   tile_tools.c    the files of a CUDA toolkit that compile it

   A unit is text that starts with #include of the headers below runtime/cuda
   and kmath.h, passed to NVRTC in memory: no CUDA header is needed.          */
#ifndef AMPC_CODEGEN_CUDA_CUDA_H
#define AMPC_CODEGEN_CUDA_CUDA_H

#include "codegen/kernel/kir.h"
#include "codegen/emit.h"
#include "runtime/program/lib.h"

/* ---- print_cuda*.c ------------------------------------------------------- */

/* How a kernel is launched; blocks 0: par[0] / per_block rounded up. */
typedef struct CudaShape {
    int threads;
    int64_t blocks, per_block;
    uint32_t shared; /* bytes of dynamic shared memory */
} CudaShape;
CudaShape cuda_shape(const Kernel *k);
/* Launch shape of k<i>_2, which follows a kernel that sums columns; bytes of
   scratch between the two, 0 without k<i>_2. */
CudaShape cuda_finish_shape(const Kernel *k);
uint64_t cuda_scratch(const Kernel *k);

/* extern "C" __global__ k<index>(buffers.., [long long n], [float *sums]), any
   form but epilogue and fold, and, if it sums columns, k<index>_2 with the same
   parameters. A comment above the kernel shows its IR. guarded: here and below,
   kernels have two more parameters (PlanCudaKernel). */
void print_cuda_kernel(const Kernel *k, bool guarded, StrBuf *sb);
/* k<index>_block of a kernel of form flat, if k<index> is not printed. */
void print_cuda_block(const Kernel *k, StrBuf *sb);
/* extern "C" __global__ k<index>_many(const unsigned long long *table,
   unsigned count): PLAN_MANY, of form fold PLAN_ROWS.  Form flat: comes
   after print_cuda_kernel or print_cuda_block. */
void print_cuda_many(const Kernel *k, bool guarded, StrBuf *sb);
/* k<i>_<j>_many(table, count): PLAN_ROWS of k, and after each tensor that
   has one a row of `after`; both have form fold. */
void print_cuda_many_after(const Kernel *k, const Kernel *after, bool guarded,
                           StrBuf *sb);
/* An epilogue as a functor for hand-written kernels:
     struct E<index> { buffers..;
       __device__ void operator()(float acc, long long batch, long long row,
                                  long long col) const; };
   batch, row and col as in PlanEpilogueFn.                                  */
void print_cuda_functor(const Kernel *k, StrBuf *sb);
/* Ends the parameters of a kernel and begins its body. */
void print_cuda_guard(bool guarded, StrBuf *sb);
/* Comma-separated parameter list of the buffers: "const float *b0, ..". */
void print_cuda_params(const Kernel *k, StrBuf *sb);
/* Initializer of the functor from those parameters: "{b0, ..}". */
void print_cuda_initializer(const Kernel *k, StrBuf *sb);

/* ---- cuda_lib.c ---------------------------------------------------------- */

/* StepCost's rate, insts and wavefronts of a hand-written kernel (cost.h);
   bytes of scratch that it writes and reads; whether l<number>_2 does that work
   and l<number> prepares it. */
typedef struct CudaWork {
    double rate, insts, wavefronts, bytes;
    bool second;
} CudaWork;

typedef struct CudaLib {
    CudaShape first, second; /* threads of l<number> and l<number>_2; 0: no
                                such kernel */
    uint64_t scratch;        /* bytes */
    double weight;           /* cost of compiling it: 1 = a point-wise kernel */
    CudaWork work;
} CudaLib;

/* A library step as kernels of its own: extern "C" __global__ l<number>(refs..,
   ep_refs.., [scratch]) and, if `second` has threads, l<number>_2 of the same
   parameters.  Takes any route but copy (emit_cuda.c decides which products
   cuBLASLt computes). */
void print_cuda_lib(const LoweredStep *s, int number, bool guarded, StrBuf *sb,
                    CudaLib *out);
/* l<number> computes any product with those dtypes that was planned for
   cuBLASLt, with its epilogue; or the epilogue alone, for a product of cuBLASLt
   (product.c).  The last parameter tells which epilogue. */
void print_cuda_product(const LibGemm *p, bool epilogue, int number, StrBuf *sb,
                        CudaLib *out);
/* True if cuBLASLt may compute the product without its epilogue: nothing is
   rounded between the two. */
bool cuda_product_parts(const LibGemm *p, PlanProduct how);
/* l<number>(const float *from, T *to, long long n): converts fp32 gradients to
   the dtype that is sent; l<number>_2 converts them back. */
void print_cuda_sum(DType sent, int number, StrBuf *sb, CudaLib *out);
/* How a routine runs on a GPU: column `cuda` of lib.def. */
typedef enum CudaRoute {
    CUDA_ROUTE_each,
    CUDA_ROUTE_kernel,
    CUDA_ROUTE_product,
    CUDA_ROUTE_copy
} CudaRoute;
CudaRoute cuda_lib_route(PlanLib lib);
/* #include lines that units start with. */
void print_cuda_head(StrBuf *sb);

/* ---- nvrtc.c ------------------------------------------------------------- */

typedef struct CudaUnit {
    const char *text;
    size_t size;
} CudaUnit;

/* Registers and memory of one kernel, from the compiler's log. */
typedef struct CudaUsage {
    const char *kernel;
    const char *arch;
    int registers, spill_stores, spill_loads, shared, stack;
} CudaUsage;

typedef struct CudaImage {
    char *data; /* cubin, or PTX with its NUL */
    size_t size;
} CudaImage;

typedef struct CudaBuild {
    CudaImage *image; /* [arch * nunit + unit] */
    VEC(CudaUsage) usage;
    int toolkit; /* 12080 = 12.8 */
} CudaBuild;

typedef struct NvrtcFacts {
    const char *why; /* libraries that were tried, if none was loaded */
    int toolkit;     /* 12080 = 12.8                                        */
    VEC(int) archs;  /* NN of every sm_NN it compiles for, from 75 on       */
} NvrtcFacts;
/* Whether NVRTC can be loaded: $AMPC_LIBNVRTC (a path; "none": never), else
   the usual names and folders. */
bool nvrtc_facts(Arena *a, NvrtcFacts *out);
/* "compute_80": PTX instead of a cubin. */
bool cuda_arch_is_ptx(const char *arch);
/* Compiles every unit for every arch, on as many threads as there are CPUs.
   Results are read from and stored in `cache` (cache/compile_cache.h; may be
   NULL). `quick`: without most optimisations. A compile error is a bug of ours:
   status 3 with the log. */
Status nvrtc_build(Diag *d, Arena *a, const char *cache, bool quick,
                   const CudaUnit *unit, int nunit, const char *const *arch,
                   int narch, CudaBuild *out);

typedef struct CudaHeader {
    const char *name; /* as units include it */
    const char *text; /* NUL-terminated */
    size_t size;
} CudaHeader;

typedef struct CudaHeaders {
    CudaHeader *data;
    int len, cap;
} CudaHeaders;
/* All of our files that a unit includes, directly or indirectly. */
CudaHeaders cuda_headers(Arena *a, const char *text);

/* Tile IR of a text for `ampc` to pass to tileiras, by the NVRTC of that file,
   13.3 or later. The IR is the same for all architectures. */
Status nvrtc_tile_ir(Diag *d, Arena *a, const char *file, const CudaUnit *unit,
                     CudaImage *out);

/* ---- cuda_target.c ------------------------------------------------------- */

/* Architectures of the targets, newest first, PTX last: "sm_90", "sm_80",
   ..., "compute_80". */
typedef struct CudaArchs {
    const char **data;
    int len, cap;
} CudaArchs;
CudaArchs cuda_archs(const Options *opt, Arena *a);
/* The targets of CUDA Tile kernels; none without --tile. */
CudaArchs cuda_tile_archs(const Options *opt, Arena *a);

/* ---- emit_cuda.c --------------------------------------------------------- */

/* tileiras' remark about a product in a Tile kernel. */
typedef struct TileUse {
    const char *arch, *kernel, *instruction;
} TileUse;

typedef struct CudaSource {
    VEC(PlanCudaKernel) kernels;
    VEC(struct CudaItem) items;
    VEC(CudaUnit) units;
    CudaArchs archs; /* none: text only */
    CudaBuild build; /* emit_so.c, while the C compiler runs */
    /* CUDA Tile: kernels, their text, and an image for each of tile_archs */
    VEC(PlanTile) tiles;
    VEC(const char *) tile_keys, tile_bodies; /* a key: the text as t0 */
    CudaArchs tile_archs;
    CudaUnit tile_unit;
    CudaImage *tile_images;
    VEC(TileUse) tile_uses;
} CudaSource;

/* Sets *out to the step that does the work of `s`, of the n - 1 steps after
   it, and of their `behind` steps: kind, fn, second, scratch, refs and pars
   for a GPU. false: the step has no work. */
bool cuda_step(Arena *a, CudaSource *c, const LoweredStep *s, int n,
               LoweredStep *out);
/* fn and second of a PLAN_SUM that sends that 16-bit dtype. */
void cuda_sum(Arena *a, CudaSource *c, DType sent, LoweredStep *out);
/* True if in one of the kernel's launches buffer b shares bytes with another
   buffer and one of the two is written. */
void cuda_overlap(CudaSource *c, const Kernel *k, int b);
/* Called when all steps are known. */
void cuda_units(Arena *a, CudaSource *c);
/* The work of a hand-written kernel; nothing for other kernels. */
CudaWork cuda_work(const CudaSource *c, uint32_t fn);

/* ---- print_tile.c -------------------------------------------------------- */

enum { TILE_REFS = 20 };
/* A PLAN_TILE that does the work of a product and of the kernel behind it. */
typedef struct TileStep {
    const LibGemm *product;
    uint32_t how;
    const Kernel *kernel;
    int rows;       /* of a block, at most */
    int buf;        /* the kernel's buffer of the product's result, .. */
    ValueId result; /* .. which other steps read, too, if kept */
    bool kept;
    int nref;
    ValueId refs[TILE_REFS];
    bool written[TILE_REFS];
} TileStep;
/* Sets all but `buf`, `kept` and the kernel's refs; false: no Tile kernel does
   the work of s[0] and s[1]. */
bool cuda_tile_fits(Arena *a, const CudaSource *c, const LoweredStep *s,
                    TileStep *out);
void cuda_tile_refs(const LoweredStep *s, TileStep *t);
/* PlanCuda.tiles of a kernel for it. */
uint32_t cuda_tile_add(Arena *a, CudaSource *c, const TileStep *t);
/* Called when all steps are known. */
void cuda_tile_unit(Arena *a, CudaSource *c);

/* ---- tile_tools.c -------------------------------------------------------- */

enum { TOOL_NVRTC, TOOL_TILEIRAS, TOOL_PTXAS, TOOL_NVVM, NTOOLS };
typedef struct TileTools {
    const char *home, *file[NTOOLS]; /* absolute */
} TileTools;
/* Refuses a folder that lacks one of them. */
Status tile_tools(Diag *d, Arena *a, const char *dir, TileTools *t);

/* ---- cuda_gemm.c --------------------------------------------------------- */

/* Sets *out if cuBLASLt computes exactly this product with its epilogue;
   else returns false. */
bool cuda_product(Arena *a, const LoweredStep *s, LoweredStep *out);

/* True if windows have one element and cover all inputs: 1 x 1 kernels at
   stride 1. */
bool cuda_conv_points(const LibConv *c);
/* Turns s, a 1 x 1 convolution or its gradient by X, into a matrix product
   for each image by cuBLASLt; false: s is another step. */
bool cuda_conv_product(Arena *a, const LoweredStep *s, LoweredStep *out);

/* ---- cuda_tables.c ------------------------------------------------------- */

/* PlanCuda `cuda` for plan.c. */
void put_cuda_tables(StrBuf *sb, const CudaSource *c, int toolkit);
/* Adds the launches or the product of a group's step. */
void fact_cuda(Facts *f, const char *key, const CudaSource *c,
               const EmitGroup *g);

#endif
