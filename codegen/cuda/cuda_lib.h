/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_lib.h: hand-written kernels (cuda_lib.c).

   cuda_lib_launch.c   the struct of a kernel's constants, and its launches
   cuda_lib_tiles.c    products and convolutions
   cuda_lib_windows.c  convolutions of stride 1
   cuda_lib.c          the others; which routine is printed how */
#ifndef AMPC_CODEGEN_CUDA_CUDA_LIB_H
#define AMPC_CODEGEN_CUDA_CUDA_LIB_H

#include "codegen/cuda/cuda.h"
#include "codegen/kernel/schedule.h"
#include "runtime/cuda/tile.h"
#include "runtime/program/lib.h"

enum {
    GPU_BLOCKS = 264, /* blocks that keep a large GPU busy               */
    FMA_RATE = 50,  /* percent of the peak that multiply-adds of a tile reach */
    SUM_INSTS = 10, /* instructions that add up a result of conv_sums    */
    SLICE_STEPS = 512, /* least steps of a slice of a weight gradient     */
    SCRATCH_MAX = 64 << 20
};

/* Largest number of bytes of the sums of attention's dq, if several blocks
   share the keys of a head. */
static const int64_t GRAD_SUMS_MAX = INT64_C(2) << 30;

typedef struct LibPrint {
    StrBuf *sb;
    const LoweredStep *s;
    const LibInfo *lib;
    int number;
    CudaLib *out;
    bool guarded;
} LibPrint;

/* The routine adds up its results in strips, so that tiles consist of whole
   ones. */
static inline bool cl_sums(const LibPrint *p) {
    return p->s->lib == PLAN_LIB_CONV_SUMS ||
           p->s->lib == PLAN_LIB_CONV_DGRAD_SUMS;
}

static inline int64_t up_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* An operand, as the comment shows it; a plane has three more dims. */
typedef struct Shape {
    int64_t dtype, dim[3];
    int n;
    const int64_t *plane;
} Shape;

/* ---- cuda_lib_launch.c --------------------------------------------------- */

void cl_put_number(LibPrint *p, const char *name, int64_t value);
/* Begins the struct under a comment that mentions shapes only, so that steps
   of equal text share kernels. The caller adds further members. */
void cl_begin(LibPrint *p, const Shape *shape, int n);
/* Prints threads and blocks of l<number> (second: l<number>_2), and its head
   up to the parameters; limits registers so that `resident` blocks fit. */
void cl_kernel_for(LibPrint *p, bool second, int threads, int resident,
                   int64_t blocks);
void cl_kernel(LibPrint *p, bool second, int threads, int64_t blocks);
/* One thread computes each of n results. */
void cl_kernel_each(LibPrint *p, bool second, int64_t n);
/* Parameters: the step's refs and, for a RESULT with an epilogue, the
   epilogue's buffers; then `more`. A routine's result never shares bytes with
   its operands (memplan); operands of its epilogue may. */
void cl_put_operands(LibPrint *p, const char *more);
/* The kernel's parameters and its body: a call of the template name<suffix>
   with the operands and `last`.  For a RESULT the call passes the functor that
   stores an element: one of runtime/cuda, or the epilogue's. */
void cl_put_body(LibPrint *p, const char *suffix, const char *more,
                 const char *last);

typedef struct TileShape {
    int m, n;         /* of a block                                         */
    int sub_m, sub_n; /* tile of a warp (mma) or of a thread (fma) */
    int threads, resident; /* tile of a block; least number of blocks per
                              multiprocessor */
} TileShape;

/* Results that a thread stores at once, and its instructions for each of them
   (counted in SASS). */
typedef struct StoreRun {
    int near;
    bool apart; /* single elements: only their address is computed once */
    double insts;
} StoreRun;

/* ---- cuda_lib_tiles.c ---------------------------------------------------- */

/* Prints the type of a tile for factors of type `of`. */
void cl_put_tile(LibPrint *p, const char *tile, const char *of,
                 const TileShape *s);
/* cl_begin for X, W and Y. */
void cl_begin_conv(LibPrint *p, const LibConv *c);

/* Print the routines of these names (lib.def). */
void print_gemm(LibPrint *p, const LibGemm *g);
void print_gemm_quantized(LibPrint *p, const LibGemmQuantized *g);
void print_conv_fwd(LibPrint *p, const LibConv *c);
void print_conv_sums(LibPrint *p, const LibConvSums *c);
void print_conv_dgrad_sums(LibPrint *p, const LibConvDgradSums *c);
void print_conv_dgrad(LibPrint *p, const LibConv *c);
void print_conv_wgrad(LibPrint *p, const LibConv *c);

/* ---- cuda_lib_windows.c -------------------------------------------------- */

/* Prints the convolution, or its gradient by X; false: another kernel
   computes it. */
bool cl_put_window(LibPrint *p, const LibConv *c, bool back, StoreRun r);
/* Tiles of the gradient by the weights, of a group; 0: another kernel computes
   it. */
int64_t cl_window_sums(const LibPrint *p, const LibConv *c);
/* Puts the constants, memory and work of so many blocks and slices of the
   results. */
void cl_put_window_sums(LibPrint *p, const LibConv *c, int64_t blocks,
                        int64_t slices);

#endif
