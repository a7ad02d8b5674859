/* kernels.h: the hand-written CPU routines, one table per ISA level.

   Every routine is compiled once per level (gcc -march=x86-64-v2, -v3, -v4)
   from the same C sources with a level prefix, and reached through AmpcCpuLib.
   Rules for all:
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

#include "runtime/plan.h"

typedef enum AmpcIsa {
    AMPC_ISA_V2 = 2, /* SSE4.2                                              */
    AMPC_ISA_V3 = 3, /* AVX2, FMA, F16C                                     */
    AMPC_ISA_V4 = 4  /* AVX-512 F, BW, CD, DQ, VL                           */
} AmpcIsa;

/* ---- thread pool (pool.c) ------------------------------------------------ */

typedef struct AmpcPool AmpcPool;

/* Runs fn(ctx, lo, hi, worker) over [0, n) in chunks that are multiples of
   `grain` (except the last); 0 <= worker < pool_threads(p).  Returns when all
   is done.  The calling thread takes part. p may be NULL: runs inline.     */
typedef void PoolFn(void *ctx, int64_t lo, int64_t hi, int worker);
void pool_run(AmpcPool *p, int64_t n, int64_t grain, PoolFn *fn, void *ctx);
int pool_threads(const AmpcPool *p);

/* threads = 0: one per CPU that affinity and the cgroup quota allow.
   NULL when out of memory or threads.                                      */
AmpcPool *pool_create(int threads);
void pool_destroy(AmpcPool *p);

/* ---- epilogue ------------------------------------------------------------ */

/* What happens to a finished fp32 tile.  fn == NULL: store as `dtype` into
   `out`, laid out as the routine's result says.                            */
typedef struct CpuEpilogue {
    PlanEpilogueFn *fn;
    void *const *buf;
    const int64_t *par;
} CpuEpilogue;

/* ---- matrix product ------------------------------------------------------ */

/* C[b, m, n] = sum_k A[b, m, k] * B[b, k, n]
   A element (b,m,k) lies at a[a_batch(b) + m*a_rs + k*a_cs] elements, likewise
   B; one of the two strides is 1 in practice, any are legal.  Batch offsets:
   b is decomposed over batch_dim[] (row-major), a_batch = sum idx_i *
   a_bs[i] (stride 0 broadcasts).  Without an epilogue C is row-major
   contiguous [batch, m, n] of dtype c_dtype.
   F64 operands (both): computed and stored as F64, epilogue must be NULL.  */
typedef struct CpuGemm {
    int64_t m, n, k;
    int64_t nbatch_dim;
    int64_t batch_dim[AMPC_MAX_RANK];
    int64_t a_bs[AMPC_MAX_RANK], b_bs[AMPC_MAX_RANK];
    int64_t a_rs, a_cs, b_rs, b_cs;
    int64_t a_dtype, b_dtype, c_dtype;
} CpuGemm;

/* ---- convolution --------------------------------------------------------- */

/* X[n, c, in...], W[k, c/group, kernel...], Y[n, k, out...], spatial rank
   1..3 (shorter shapes have leading ones).  pads are begin pads; end pads are
   implied by `out`.  Correlation, as ONNX Conv.                            */
typedef struct CpuConv {
    int64_t n, c, k, group;
    int64_t in[3], out[3], kernel[3];
    int64_t stride[3], dilation[3], pad[3];
    int64_t x_dtype, w_dtype, y_dtype; /* of X or dX, W or dW, Y or dY      */
} CpuConv;

/* ---- pooling ------------------------------------------------------------- */

/* X[n*c planes, in...] -> Y[planes, out...].  MaxPool: NaN wins, first on
   ties; idx (I32) = flat position in the input plane, -1 for an empty window.
   AvgPool divides by the window size clipped to the padded input
   (count_include_pad) or to the input.                                     */
typedef struct CpuPool {
    int64_t planes;
    int64_t in[3], out[3], kernel[3];
    int64_t stride[3], dilation[3], pad[3], pad_end[3];
    int64_t count_include_pad;
    int64_t dtype; /* of X, Y, dX and dY                                    */
} CpuPool;

/* ---- scatter-add, argmax, copy ------------------------------------------- */

/* out[o, t, i] = sum over s with idx[s] == t of src[o, s, i], zeros elsewhere;
   summed in fp32 in order of s.  Negative indices count from `rows`; indices
   out of range are ignored.  The gradient of Gather.                       */
typedef struct CpuScatterAdd {
    int64_t outer, rows, nidx, inner;
    int64_t src_dtype, idx_dtype, out_dtype;
} CpuScatterAdd;

/* out[o, i] (I64) = position of the largest x[o, a, i] over a; first on ties */
typedef struct CpuArgmax {
    int64_t outer, axis, inner;
    int64_t dtype;
} CpuArgmax;

/* The step's par[] is the struct itself, field by field as int64_t, so that a
   plan stays plain data.  refs in this order:
     GEMM           a, b, c            (c PLAN_NONE with an epilogue)
     CONV_FWD       x, w, y            (y PLAN_NONE with an epilogue)
     CONV_DGRAD     dy, w, dx
     CONV_WGRAD     x, dy, dw
     MAXPOOL        x, y, idx          (idx may be PLAN_NONE)
     MAXPOOL_GRAD   dy, idx, dx
     AVGPOOL        x, y
     AVGPOOL_GRAD   dy, dx
     SCATTER_ADD    src, idx, out
     ARGMAX         x, out
     COPY           src, dst           (par: bytes)                         */
typedef struct AmpcCpuLib {
    int isa;
    void (*gemm)(AmpcPool *, const CpuGemm *, const void *a, const void *b,
                 void *c, const CpuEpilogue *, void *scratch);
    void (*conv_fwd)(AmpcPool *, const CpuConv *, const void *x, const void *w,
                     void *y, const CpuEpilogue *, void *scratch);
    void (*conv_dgrad)(AmpcPool *, const CpuConv *, const void *dy,
                       const void *w, void *dx, void *scratch);
    void (*conv_wgrad)(AmpcPool *, const CpuConv *, const void *x,
                       const void *dy, void *dw, void *scratch);
    void (*maxpool)(AmpcPool *, const CpuPool *, const void *x, void *y,
                    int32_t *idx);
    void (*maxpool_grad)(AmpcPool *, const CpuPool *, const void *dy,
                         const int32_t *idx, void *dx);
    void (*avgpool)(AmpcPool *, const CpuPool *, const void *x, void *y);
    void (*avgpool_grad)(AmpcPool *, const CpuPool *, const void *dy, void *dx);
    void (*scatter_add)(AmpcPool *, const CpuScatterAdd *, const void *src,
                        const void *idx, void *out, void *scratch);
    void (*argmax)(AmpcPool *, const CpuArgmax *, const void *x, int64_t *out);
} AmpcCpuLib;

extern const AmpcCpuLib ampc_cpu_v2, ampc_cpu_v3, ampc_cpu_v4;

/* Scratch bytes for that many workers, enough for every ISA level. */
size_t cpu_gemm_scratch(const CpuGemm *, int threads);
size_t cpu_conv_fwd_scratch(const CpuConv *, int threads);
size_t cpu_conv_dgrad_scratch(const CpuConv *, int threads);
size_t cpu_conv_wgrad_scratch(const CpuConv *, int threads);
size_t cpu_scatter_add_scratch(const CpuScatterAdd *, int threads);

/* Highest level this machine can run; AMPC_ISA=v2|v3|v4 lowers it (tests). */
int cpu_isa_level(void);

#endif
