/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_lib_tiles.c: matrix products and convolutions by tiles. */
#include "codegen/cuda/cuda_lib.h"
#include "runtime/program/strip.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- tiles --------------------------------------------------------------- */

typedef struct TilePick {
    const char *mma; /* type of the factors of tensor cores; NULL: none */
    bool converts;   /* these are rounded fp32 operands */
    const TileShape *shape;
    int64_t tiles; /* number of tiles of one product */
} TilePick;

/* A second block of 128 x 128 costs no spills (SASS of sm_90), one of 256 x 128
   would. */
static const TileShape mma_shapes[] = {{32, 128, 16, 32, 256, 1},
                                       {64, 64, 32, 16, 256, 1},
                                       {128, 128, 64, 32, 256, 2},
                                       {256, 128, 64, 64, 256, 1}};
/* Tiles of whole strips. */
static const TileShape sums_shapes[] = {{32, 128, 16, 32, 256, 1},
                                        {64, 128, 32, 32, 256, 1},
                                        {128, 128, 64, 32, 256, 2},
                                        {256, 128, 64, 64, 256, 1}};
static const TileShape fma_shapes[] = {
    {32, 128, 4, 4, 256, 1}, {64, 64, 4, 4, 256, 1}, {128, 128, 8, 8, 256, 1}};

static const char *const factor_type[AMPC_NFACTORS] = {
    [AMPC_FACTORS_TF32] = "tf32", [AMPC_FACTORS_BF16] = "bf16"};

static TilePick tile_pick(const LibPrint *p, int64_t a, int64_t b, int64_t m,
                          int64_t n, int64_t products) {
    TilePick t = {.converts = a == DT_F32 && p->s->factors};
    if (a == b && dtype_is_low((DType)a)) t.mma = dtype_info[a].cuda;
    if (a == b && t.converts) t.mma = factor_type[p->s->factors];
    const TileShape *shapes = cl_sums(p) ? sums_shapes
                              : t.mma    ? mma_shapes
                                         : fma_shapes;
    for (int size = t.mma ? 3 : 2;; size = size > 2 ? 2 : m > 32) {
        t.shape = &shapes[size];
        t.tiles = up_div(m, t.shape->m) * up_div(n, t.shape->n);
        bool fills = m >= t.shape->m && n >= t.shape->n &&
                     t.tiles * products >= GPU_BLOCKS / 2;
        if (size < 2 || (a != DT_F64 && fills)) return t;
    }
}

/* How an operand reaches shared memory (struct Factors of tile.cuh). */
typedef enum Staging {
    STAGE_VECTORS, /* vectors of several elements */
    STAGE_ROWS,    /* single elements, adjacent along rows, addresses from a
                      table */
    STAGE_LINES,   /* single elements, adjacent along rows, steps at a stride */
    STAGE_STEPS,   /* single elements, adjacent along k, addresses from a
                      table */
    STAGE_SINGLES, /* single elements, adjacent along k */
    NSTAGING
} Staging;

/* For a step of 32 columns of k: wavefronts of loads, of look-ups and of stores
   for each row of the tile, and instructions of a thread that takes 8 elements
   (counted in SASS of sm_90). */
static const struct {
    double wavefronts, insts;
} staging[NSTAGING] = {[STAGE_VECTORS] = {0.5 + 0.5, 5},
                       [STAGE_ROWS] = {1 + 0.5 + 0.5, 78},
                       [STAGE_LINES] = {1 + 0.5, 24},
                       [STAGE_STEPS] = {1 + 0.5 + 0.5, 100},
                       [STAGE_SINGLES] = {1 + 0.5, 26}};

/* The operands of a tile. */
typedef struct TileOperands {
    Staging a, b;
} TileOperands;

static int near_of(int64_t dtype, int64_t line) {
    int n = 16 / dtype_info[dtype].bytes;
    while (line % n) n /= 2;
    return n;
}

/* The store of the epilogue's functor, or device.cuh's for lines of `line`. */
static StoreRun run_of(const LibPrint *p, int64_t dtype, int64_t line) {
    const Kernel *e = p->s->epilogue;
    int near = e ? cuda_pack(e) : near_of(dtype, line);
    return (StoreRun){near, false, e ? 45. / near + 7 : 27. / near + 1};
}

/* The number of adjacent elements of planes stored together, as in struct
   Planes of conv.cuh. */
static StoreRun run_of_planes(const LibPrint *p, int64_t dtype, int64_t plane,
                              int64_t images) {
    StoreRun r = run_of(p, dtype, plane);
    int bytes = dtype_info[dtype].bytes;
    if (p->s->epilogue || 16 / bytes <= 2 * r.near || plane * bytes < 16)
        return r;
    int near = near_of(dtype, plane * images);
    return (StoreRun){near, true, 27. / near + 7};
}

/* Results that are every stride-th element of lines with `line` elements, in
   one phase. */
static StoreRun run_of_phase(int64_t dtype, int64_t line, int64_t stride) {
    int near = near_of(dtype, up_div(line, stride));
    return (StoreRun){near, true, 46. / near + 3};
}

/* A cell of stride[0] x stride[1] x stride[2] elements of which only the
   first is not zero; several cells of a line are stored at once. */
static StoreRun run_of_cells(int64_t dtype, int64_t line,
                             const int64_t *stride) {
    int near = near_of(dtype, line);
    double stores = (double)(stride[0] * stride[1]), places = (double)stride[2];
    if (near % stride[2] == 0)
        near /= (int)stride[2], places = 1;
    else
        near = 1;
    return (StoreRun){near, true, (30 + 12 * stores * places) / near};
}

/* The work of `blocks` tiles of sums of `depth` products on tensor cores.
   In each step a warp reads its rows and columns with ldmatrix, four
   wavefronts each; 21 instructions keep the loop going (counted in SASS). */
static CudaWork tile_work(const TilePick *t, TileOperands in, StoreRun r,
                          int64_t depth, int64_t blocks) {
    const TileShape *s = t->shape;
    bool tf32 = t->mma == factor_type[AMPC_FACTORS_TF32];
    double warps = s->threads / 32.;
    double steps = ceil((double)depth / (tf32 ? TILE_K_MMA / 2 : TILE_K_MMA));
    double loads = 2 * (s->sub_m / 16 + s->sub_n / 16);
    double products = 2. * (s->sub_m / 16) * (s->sub_n / 8);
    double each = TILE_K_MMA / 8 * 1. / s->threads; /* per 8 elements of a
                                                       row */
    double wavefronts = warps * 4 * loads + s->m * staging[in.a].wavefronts +
                        s->n * staging[in.b].wavefronts;
    double insts = 21 + loads + products + each * s->m * staging[in.a].insts +
                   each * s->n * staging[in.b].insts;
    double results = (double)blocks * s->m * s->n;
    return (CudaWork){.wavefronts = (double)blocks * steps * wavefronts,
                      .insts = (double)blocks * steps * s->threads * insts +
                               results * r.insts};
}

void cl_put_tile(LibPrint *p, const char *tile, const char *of,
                 const TileShape *s) {
    sb_printf(p->sb, "    typedef %s<%s, %d, %d, %d, %d> Tile;\n", tile, of,
              s->m, s->n, s->sub_m, s->sub_n);
}

/* Prints the tile type for factors with that dtype; each result of `blocks`
   tiles is a sum of `depth` products. */
static void put_tile(LibPrint *p, const TilePick *t, int64_t dtype,
                     TileOperands in, StoreRun r, int64_t depth,
                     int64_t blocks) {
    const TileShape *s = t->shape;
    if (t->mma)
        p->out->work = tile_work(t, in, r, depth, blocks);
    else
        p->out->work.rate =
            FMA_RATE * fmin(1, sqrt(s->m * s->n / (128. * 128)));
    const char *of = t->mma ? t->mma : dtype == DT_F64 ? "double" : "float";
    cl_put_tile(p, t->mma ? "MmaTile" : "FmaTile", of, s);
    p->out->weight = t->mma ? 20 : 14;
}

/* ---- matrix product ------------------------------------------------------ */

/* Element offset of batch b: one term for each batch dim that changes it. */
static void put_batch(LibPrint *p, const LibGemm *g, const char *name,
                      const int64_t *stride) {
    int64_t inner = 1;
    sb_printf(p->sb,
              "    static __device__ long long %s(long long b)\n"
              "    {\n        return ",
              name);
    for (int64_t i = g->nbatch_dim - 1; i >= 0; i--) {
        if (stride[i])
            sb_printf(p->sb, "b / %" PRId64 " %% %" PRId64 " * %" PRId64 " + ",
                      inner, g->batch_dim[i], stride[i]);
        inner *= g->batch_dim[i];
    }
    sb_puts(p->sb, "b * 0;\n    }\n");
}

/* Elements along k that fill 16 bytes, where k is a multiple of their
   number; 1 if elements are not adjacent. */
static int64_t near_in(const LibGemm *g, int64_t dtype, int64_t along_k,
                       int64_t other, const int64_t *batch) {
    int64_t n = along_k == 1 ? near_of(dtype, g->k ? g->k : 1) : 1;
    for (int64_t i = 0; i < g->nbatch_dim; i++)
        while (batch[i] % n) n /= 2;
    while (other % n) n /= 2;
    return n;
}

void print_gemm(LibPrint *p, const LibGemm *g) {
    int64_t batch = 1;
    for (int64_t i = 0; i < g->nbatch_dim; i++) batch *= g->batch_dim[i];
    if (g->m * g->n * batch == 0) return;
    TilePick t = tile_pick(p, g->a_dtype, g->b_dtype, g->m, g->n, batch);
    cl_begin(p,
             (Shape[]){{g->a_dtype, {batch, g->m, g->k}, 3, NULL},
                       {g->b_dtype, {batch, g->k, g->n}, 3, NULL}},
             2);
    int64_t a_near = near_in(g, g->a_dtype, g->a_cs, g->a_rs, g->a_bs);
    int64_t b_near = near_in(g, g->b_dtype, g->b_rs, g->b_cs, g->b_bs);
    TileOperands in = {a_near > 1 ? STAGE_VECTORS : STAGE_SINGLES,
                       b_near > 1 ? STAGE_VECTORS : STAGE_SINGLES};
    put_tile(p, &t, g->a_dtype, in, run_of(p, g->c_dtype, g->n), g->k,
             t.tiles * batch);
    cl_put_number(p, "a_near", a_near);
    cl_put_number(p, "b_near", b_near);
    put_batch(p, g, "a_at", g->a_bs);
    put_batch(p, g, "b_at", g->b_bs);
    cl_kernel_for(p, false, t.shape->threads, t.shape->resident,
                  t.tiles * batch);
    cl_put_body(p, "", "", "");
}

void print_gemm_quantized(LibPrint *p, const LibGemmQuantized *g) {
    if (g->m * g->n == 0) return;
    TilePick t = tile_pick(p, g->a_dtype, g->a_dtype, g->m, g->n, 1);
    cl_begin(p,
             (Shape[]){{g->a_dtype, {g->m, g->k}, 2, NULL},
                       {g->q_dtype, {g->k, g->n}, 2, NULL}},
             2);
    int64_t near = near_of(g->a_dtype, g->k ? g->k : 1);
    TileOperands in = {near > 1 ? STAGE_VECTORS : STAGE_SINGLES, STAGE_SINGLES};
    put_tile(p, &t, g->a_dtype, in, run_of(p, g->c_dtype, g->n), g->k, t.tiles);
    cl_put_number(p, "a_near", near);
    cl_kernel_for(p, false, t.shape->threads, t.shape->resident, t.tiles);
    cl_put_body(p, "", "", "");
}

bool cuda_product_parts(const LibGemm *p, PlanProduct how) {
    return p->c_dtype == DT_F32 &&
           (how == PLAN_PRODUCT_BIAS || how == PLAN_PRODUCT_SCALE);
}

void print_cuda_product(const LibGemm *p, bool epilogue, int number, StrBuf *sb,
                        CudaLib *out) {
    const char *acc = p->a_dtype == DT_F64 ? "double" : "float";
    const char *a = dtype_info[p->a_dtype].cuda;
    const char *b = dtype_info[p->b_dtype].cuda;
    const char *c = dtype_info[p->c_dtype].cuda;
    LibPrint lp = {sb, NULL, NULL, number, out, false};
    *out = (CudaLib){.weight = epilogue ? 1 : 8};
    sb_printf(sb,
              "/* %s of %s that cuBLASLt refuses */\nstruct L%d {\n"
              "    typedef %s A;\n    typedef %s B;\n    typedef %s C;\n"
              "    typedef %s Acc;\n",
              epilogue ? "the epilogue of a product" : "any product", a, number,
              a, b, c, acc);
    cl_kernel(&lp, false, EACH_THREADS, GPU_BLOCKS);
    sb_printf(
        sb,
        "const %s *__restrict__ a, const %s *__restrict__ b, %s *c, "
        "const float *scale,\n    const void *more, const e8m0 *a_scales, "
        "const e8m0 *b_scales, long long m,\n    long long n, long long k, "
        "long long batch, long long a_bs, long long b_bs,\n    long long "
        "a_rs, long long a_cs, long long b_rs, long long b_cs, long long "
        "how)\n{\n    const ProductShape s = {m, n, k, batch, a_bs, b_bs, "
        "a_rs, a_cs, b_rs, b_cs};\n    %s<L%d>(%sc, s, {how, scale, "
        "more});\n}\n",
        a, b, c, epilogue ? "product_after" : "product_any", number,
        epilogue ? "" : "{a, a_scales}, {b, b_scales}, ");
}

/* ---- convolution --------------------------------------------------------- */

void cl_begin_conv(LibPrint *p, const LibConv *c) {
    cl_begin(p,
             (Shape[]){{c->x_dtype, {c->n, c->c}, 2, c->in},
                       {c->w_dtype, {c->k, c->c / c->group}, 2, c->kernel},
                       {c->y_dtype, {c->n, c->k}, 2, c->out}},
             3);
}

/* Prints products of m x n for operands x and w; where a group has few
   channels, one thread computes each vector of the results. */
static void put_conv(LibPrint *p, const LibConv *c, DType x, int64_t m,
                     int64_t n, int64_t products, int64_t results,
                     TileOperands in, StoreRun r, int64_t depth) {
    TilePick t = tile_pick(p, x, c->w_dtype, m, n, products);
    bool direct = m <= CONV_FEW_CHANNELS && !cl_sums(p);
    if (results == 0) return;
    cl_begin_conv(p, c);
    if (!direct) put_tile(p, &t, x, in, r, depth, t.tiles * products);
    if (direct)
        cl_kernel_each(p, false, r.apart ? results : results / r.near);
    else
        cl_kernel_for(p, false, t.shape->threads, t.shape->resident,
                      t.tiles * products);
    cl_put_body(p, direct ? "_direct" : "", "", "");
}

void print_conv_fwd(LibPrint *p, const LibConv *c) {
    int64_t line = lib_volume(c->out), cols = c->n * line;
    StoreRun r = run_of_planes(p, c->y_dtype, line, c->n);
    if (cl_sums(p)) r.insts += SUM_INSTS;
    if (cl_put_window(p, c, false, r)) return;
    int64_t depth = c->c / c->group * lib_volume(c->kernel);
    TileOperands in = {near_of(c->w_dtype, depth) > 1 ? STAGE_VECTORS
                                                      : STAGE_SINGLES,
                       cuda_conv_points(c) ? STAGE_LINES : STAGE_ROWS};
    put_conv(p, c, c->x_dtype, c->k / c->group, cols, c->group, c->k * cols, in,
             r, depth);
}

void print_conv_sums(LibPrint *p, const LibConvSums *c) {
    print_conv_fwd(p, conv_of_sums(c));
}

void print_conv_dgrad(LibPrint *p, const LibConv *c) {
    int64_t cols = c->n, line = lib_volume(c->in);
    int64_t phases = lib_volume(c->stride); /* 1: results are adjacent */
    int64_t depth = c->k / c->group * lib_volume(c->kernel) / phases;
    StoreRun r = run_of_phase(c->x_dtype, c->in[2], c->stride[2]);
    for (int i = 0; i < 3; i++) cols *= up_div(c->in[i], c->stride[i]);
    if (phases == 1) {
        r = run_of_planes(p, c->x_dtype, line, c->n);
        if (cl_put_window(p, c, true, r)) return;
    } else if (lib_volume(c->kernel) == 1 && !c->pad[0] && !c->pad[1] &&
               !c->pad[2]) { /* one phase, which also stores the zeros of the
                                others */
        r = run_of_cells(c->x_dtype, c->in[2], c->stride);
        depth *= phases;
        phases = 1;
    }
    TileOperands in = {STAGE_SINGLES, STAGE_ROWS};
    if (cuda_conv_points(c)) in = (TileOperands){STAGE_LINES, STAGE_LINES};
    put_conv(p, c, c->y_dtype, c->c / c->group, cols, c->group * phases,
             c->c * c->n * line, in, r, depth);
}

void print_conv_dgrad_sums(LibPrint *p, const LibConvDgradSums *sums) {
    const LibConv *c = conv_of_dgrad_sums(sums);
    int64_t line = lib_volume(c->in);
    int64_t depth = c->k / c->group * lib_volume(c->kernel);
    int near = near_of(c->x_dtype, line);
    StoreRun r = {near, false, 90. / near + 12}; /* gates and sums, too */
    if (cl_put_window(p, c, true, r)) return;
    TileOperands in = {STAGE_SINGLES, STAGE_ROWS};
    if (cuda_conv_points(c)) in = (TileOperands){STAGE_LINES, STAGE_LINES};
    put_conv(p, c, c->y_dtype, c->c / c->group, c->n * line, c->group,
             c->c * c->n * line, in, r, depth);
}

/* Number of rounds in which the blocks run (one to four blocks per
   multiprocessor), chosen so that multiprocessors have about equal work. */
static int64_t fill_gpu(int64_t blocks, int64_t times) {
    int64_t best = 1;
    double most = 0;
    for (int64_t n = 1; n <= times && n * blocks <= 2 * GPU_BLOCKS; n++) {
        double waves = (double)(n * blocks) / (GPU_BLOCKS / 2.);
        double full = waves / ceil(waves);
        if (waves < 1.5) full /= 2; /* a single block waits for its loads */
        if (full <= most + 0.02) continue;
        best = n;
        most = full;
    }
    return best;
}

static void put_wgrad_tile(LibPrint *p, const LibConv *c, const TilePick *t,
                           int64_t blocks, int64_t splits) {
    int64_t line = lib_volume(c->out);
    int64_t cols = c->c / c->group * lib_volume(c->kernel);
    bool points = cuda_conv_points(c);
    TileOperands in = {near_of(c->y_dtype, line) > 1 ? STAGE_VECTORS
                                                     : STAGE_SINGLES,
                       !points                         ? STAGE_STEPS
                       : near_of(c->x_dtype, line) > 1 ? STAGE_VECTORS
                                                       : STAGE_SINGLES};
    put_tile(p, t, c->x_dtype, in,
             run_of(p, splits > 1 ? DT_F32 : c->w_dtype, cols),
             c->n * line / splits, blocks * splits);
}

/* Clocks of a multiprocessor for the work: its wavefronts, or its instructions;
   it issues 0.6 * 128 lanes a clock (rates.def). */
static double work_clocks(CudaWork w) {
    return fmax(w.wavefronts, w.insts / (0.6 * 128));
}

/* Prints into `to` and `out` how tiles, or windows, compute the gradient in
   `splits` slices. */
static void put_wgrad(const LibPrint *p, const LibConv *c, const TilePick *t,
                      int64_t windows, int64_t splits, StrBuf *to,
                      CudaLib *out) {
    LibPrint q = *p;
    q.sb = to;
    q.out = out;
    if (windows)
        cl_put_window_sums(&q, c, windows * c->group * splits, splits);
    else
        put_wgrad_tile(&q, c, t, t->tiles * c->group, splits);
}

/* Tiles of conv_window.cuh if that takes fewer clocks than t, else 0. */
static int64_t wgrad_windows(const LibPrint *p, const LibConv *c,
                             const TilePick *t, int64_t times) {
    int64_t windows = cl_window_sums(p, c);
    StrBuf text = {0};
    CudaLib by_window = {0}, by_tile = {0};
    if (!windows) return 0;
    put_wgrad(p, c, t, windows, fill_gpu(windows * c->group, times), &text,
              &by_window);
    put_wgrad(p, c, t, 0, fill_gpu(t->tiles * c->group, times), &text,
              &by_tile);
    sb_free(&text);
    return work_clocks(by_window.work) < work_clocks(by_tile.work) ? windows
                                                                   : 0;
}

void print_conv_wgrad(LibPrint *p, const LibConv *c) {
    int64_t kg = c->k / c->group, cg = c->c / c->group;
    int64_t cols = cg * lib_volume(c->kernel), size = c->k * cols;
    bool points = cuda_conv_points(c);
    if (size == 0) return;
    /* number of slices of the sum: each long enough for a block, all within
       scratch */
    int64_t times = c->n * lib_volume(c->out) / SLICE_STEPS;
    if (times > SCRATCH_MAX / (size * 4)) times = SCRATCH_MAX / (size * 4);
    if (times < 1) times = 1;
    TilePick t =
        tile_pick(p, c->x_dtype, c->y_dtype, kg, cols, c->group * times);
    cl_begin_conv(p, c);
    if (kg <= CONV_FEW_CHANNELS && cg <= CONV_FEW_CHANNELS) {
        cl_kernel(p, false, DIRECT_THREADS, size);
        cl_put_body(p, "_direct", "", "");
        return;
    }
    int64_t windows = wgrad_windows(p, c, &t, times);
    int64_t blocks = (windows ? windows : t.tiles) * c->group;
    int64_t splits = fill_gpu(blocks, times);
    const char *more = splits > 1 ? ", float *partial" : "";
    put_wgrad(p, c, &t, windows, splits, p->sb, p->out);
    cl_put_number(p, "splits", splits);
    cl_put_number(p, "points", points);
    int near = near_of(DT_F32, size); /* sums of slices per thread */
    while (near > 1 && size / near < GPU_BLOCKS * EACH_THREADS) near /= 2;
    cl_put_number(p, "sum_near", near);
    cl_kernel_for(p, false, windows ? WINDOW_THREADS : t.shape->threads,
                  windows ? 2 : t.shape->resident, blocks * splits);
    cl_put_body(p, windows ? "_window" : "", more,
                splits > 1 ? ", partial" : ", nullptr");
    if (splits == 1) return;
    p->out->scratch = (uint64_t)(splits * size) * sizeof(float);
    cl_kernel_each(p, true, size / near);
    cl_put_operands(p, more);
    sb_printf(p->sb, "    conv_wgrad_sum<L%d>(dw, partial);\n}\n", p->number);
}
