/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_lib.c: library steps as instances of the templates in runtime/cuda.

   Each step becomes a struct of literals and one or two kernels:
     struct L3 { ... };
     extern "C" __global__ void l3(...) { conv_fwd<L3>(...); }
   Struct, parameters and the template's name follow from the routine's row in
   lib.def; the members added here (tiles, slices, grids) depend on shapes and
   dtypes only.                                                              */
#include "codegen/cuda/cuda.h"
#include "codegen/kernel/schedule.h"
#include "codegen/module/embed.h"
#include "runtime/program/lib.h"
#include "runtime/cuda/tile.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum {
    GPU_BLOCKS = 264,    /* blocks that keep a large GPU busy               */
    DIRECT_CHANNELS = 4, /* per group: too few for a tile */
    FMA_RATE = 50, /* percent of the peak that multiply-adds of a tile reach */
    SLICE_STEPS = 512, /* least steps of a slice of a weight gradient     */
    SCRATCH_MAX = 64 << 20
};

typedef struct LibPrint {
    StrBuf *sb;
    const LoweredStep *s;
    const LibInfo *lib;
    int number;
    CudaLib *out;
} LibPrint;

static int64_t up_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* ---- what units include -------------------------------------------------- */

void print_cuda_head(StrBuf *sb) {
    static const char *const files[] = {
        "kmath.h",  "fold.cuh",   "device.cuh", "ptx.cuh",
        "conv.cuh", "gemm.cuh",   "pool.cuh",   "index.cuh",
        "sort.cuh", "attend.cuh", "flash.cuh",  "quantized.cuh"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        sb_printf(sb, "#include \"%s\"\n", files[i]);
}

/* Adds the files of runtime/cuda, kmath.h and quantized.h that `text` includes,
   and their own includes. */
static void add_includes(Arena *a, const char *text, CudaHeaders *to) {
    static const char include[] = "#include \"";
    for (const char *p = text; (p = strstr(p, include));) {
        p += sizeof include - 1;
        size_t n = strcspn(p, "\"\n");
        for (size_t i = 0; i < embed_nfile; i++) {
            const EmbedFile *f = &embed_files[i];
            const char *base = strrchr(f->name, '/') + 1;
            bool wanted = strlen(base) == n && !strncmp(base, p, n) &&
                          (!strncmp(f->name, "runtime/cuda/", 13) ||
                           !strcmp(f->name, "runtime/cpu/kmath.h") ||
                           !strcmp(f->name, "runtime/program/quantized.h"));
            for (int k = 0; k < to->len; k++)
                wanted &= to->data[k].text != f->data;
            if (!wanted) continue;
            CudaHeader x = {base, f->data, f->size};
            vec_push(a, to, x);
            add_includes(a, f->data, to);
        }
    }
}

CudaHeaders cuda_headers(Arena *a) {
    CudaHeaders h = {0};
    StrBuf head = {0};
    print_cuda_head(&head);
    add_includes(a, head.data ? head.data : "", &h);
    sb_free(&head);
    return h;
}

/* ---- the struct ---------------------------------------------------------- */

static void put_number(LibPrint *p, const char *name, int64_t value) {
    sb_printf(p->sb, "    static constexpr long long %s = %" PRId64 ";\n", name,
              value);
}

/* All parameters but those for each dim of a tensor. */
static void put_params(LibPrint *p) {
    const int64_t *par = p->s->pars;
    for (uint32_t i = 0; i < p->lib->nfield; i++) {
        const LibField *f = &p->lib->fields[i];
        if (f->type)
            sb_printf(p->sb, "    typedef %s %s;\n", dtype_info[*par].cuda,
                      f->type);
        if (!f->type && f->n == 1) put_number(p, f->name, *par);
        if (f->n == 3)
            sb_printf(p->sb,
                      "    static constexpr long long %s0 = %" PRId64
                      ", %s1 = %" PRId64 ", %s2 = %" PRId64 ";\n",
                      f->name, par[0], f->name, par[1], f->name, par[2]);
        par += f->n;
    }
}

/* An operand, as the comment shows it; a plane has three more dims. */
typedef struct Shape {
    int64_t dtype, dim[3];
    int n;
    const int64_t *plane;
} Shape;

/* Begins the struct under a comment that mentions shapes only, so that steps
   of equal text share kernels. The caller adds further members. */
static void begin(LibPrint *p, const Shape *shape, int n) {
    sb_printf(p->sb, "/* %s", p->lib->name);
    for (const Shape *s = shape; s < shape + n; s++) {
        sb_printf(p->sb, "%c%s[", s == shape ? ' ' : ',',
                  dtype_info[s->dtype].text);
        for (int i = 0; i < s->n; i++)
            sb_printf(p->sb, "%s%" PRId64, i ? "," : "", s->dim[i]);
        for (int i = 0; s->plane && i < 3; i++)
            if (i == 2 || s->plane[i] != 1 || (i == 1 && s->plane[0] != 1))
                sb_printf(p->sb, ",%" PRId64, s->plane[i]);
        sb_puts(p->sb, "]");
    }
    sb_printf(p->sb, " */\nstruct L%d {\n", p->number);
    put_params(p);
}

/* ---- the kernels --------------------------------------------------------- */

/* Prints threads and blocks of l<number> (second: l<number>_2), and its head
   up to the parameters; limits registers so that `resident` blocks fit. */
static void kernel_for(LibPrint *p, bool second, int threads, int resident,
                       int64_t blocks) {
    CudaShape *l = second ? &p->out->second : &p->out->first;
    l->threads = threads;
    l->blocks = blocks;
    sb_printf(
        p->sb,
        "%sextern \"C\" __global__ void __launch_bounds__(%d, %d)\nl%d%s(",
        second ? "\n" : "};\n\n", threads, resident, p->number,
        second ? "_2" : "");
}

static void kernel(LibPrint *p, bool second, int threads, int64_t blocks) {
    kernel_for(p, second, threads, 1, blocks);
}

/* One thread computes each of n results. */
static void kernel_each(LibPrint *p, bool second, int64_t n) {
    kernel(p, second, EACH_THREADS, up_div(n, EACH_THREADS));
}

/* Parameters: the step's refs and, for a RESULT with an epilogue, the
   epilogue's buffers; then `more`. A routine's result never shares bytes with
   its operands (memplan); operands of its epilogue may. */
static void put_operands(LibPrint *p, const char *more) {
    const char *comma = "";
    for (uint32_t i = 0; i < p->lib->noperand; i++, comma = ", ") {
        const LibOperand *o = &p->lib->operands[i];
        sb_puts(p->sb, comma);
        if (o->role == LIB_ROLE_RESULT && p->s->epilogue) {
            sb_puts(p->sb, "void *");
            if (p->s->epilogue->bufs.len > 0) sb_puts(p->sb, ", ");
            print_cuda_params(p->s->epilogue, p->sb);
            continue;
        }
        bool writes = lib_writes(p->lib, (int)i);
        sb_printf(p->sb, "%s%s *%s%s", writes ? "" : "const ",
                  dtype_info[p->s->pars[o->dtype_at]].cuda,
                  writes ? "" : "__restrict__ ", o->name);
    }
    sb_printf(p->sb, "%s)\n{\n", more);
}

/* The kernel's parameters and its body: a call of the template name<suffix>
   with the operands and `last`.  For a RESULT the call passes the functor that
   stores an element: one of runtime/cuda, or the epilogue's. */
static void put_body(LibPrint *p, const char *suffix, const char *more,
                     const char *last) {
    const Kernel *e = p->s->epilogue;
    put_operands(p, more);
    sb_printf(p->sb, "    %s%s<L%d>(", p->lib->name, suffix, p->number);
    for (uint32_t i = 0; i < p->lib->noperand; i++) {
        const LibOperand *o = &p->lib->operands[i];
        sb_puts(p->sb, i ? ", " : "");
        if (o->role != LIB_ROLE_RESULT) {
            sb_puts(p->sb, o->name);
        } else if (e) {
            sb_printf(p->sb, "E%d", kernel_index(e));
            print_cuda_initializer(e, p->sb);
        } else {
            bool product = p->s->lib == PLAN_LIB_GEMM ||
                           p->s->lib == PLAN_LIB_GEMM_QUANTIZED;
            sb_printf(p->sb, "%s<L%d>{%s}", product ? "StoreGemm" : "StoreConv",
                      p->number, o->name);
        }
    }
    sb_printf(p->sb, "%s);\n}\n", last);
}

/* ---- tiles --------------------------------------------------------------- */

typedef struct TileShape {
    int m, n;         /* of a block                                         */
    int sub_m, sub_n; /* tile of a warp (mma) or of a thread (fma) */
    int threads, resident; /* tile of a block; least number of blocks per
                              multiprocessor */
} TileShape;

typedef struct TilePick {
    bool mma;
    const TileShape *shape;
    int64_t tiles; /* number of tiles of one product */
} TilePick;

/* A second block of 128 x 128 costs no spills (SASS of sm_90), one of 256 x 128
   would. */
static const TileShape mma_shapes[] = {{32, 128, 16, 32, 256, 1},
                                       {64, 64, 32, 16, 256, 1},
                                       {128, 128, 64, 32, 256, 2},
                                       {256, 128, 64, 64, 256, 1}};
static const TileShape fma_shapes[] = {
    {32, 128, 4, 4, 256, 1}, {64, 64, 4, 4, 256, 1}, {128, 128, 8, 8, 256, 1}};

static TilePick tile_pick(int64_t a, int64_t b, int64_t m, int64_t n,
                          int64_t products) {
    TilePick t = {.mma = a == b && dtype_is_low((DType)a)};
    const TileShape *shapes = t.mma ? mma_shapes : fma_shapes;
    for (int size = t.mma ? 3 : 2;; size = size > 2 ? 2 : m > 32) {
        t.shape = &shapes[size];
        t.tiles = up_div(m, t.shape->m) * up_div(n, t.shape->n);
        bool fills = m >= t.shape->m && n >= t.shape->n &&
                     t.tiles * products >= GPU_BLOCKS / 2;
        if (size < 2 || (a != DT_F64 && fills)) return t;
    }
}

/* How an operand reaches shared memory (struct Pairs of tile.cuh). */
typedef enum Staging {
    STAGE_VECTORS, /* vectors of several elements */
    STAGE_ROWS,    /* single elements, adjacent along rows, addresses from a
                      table */
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
                       [STAGE_ROWS] = {1 + 1 + 0.5, 95},
                       [STAGE_STEPS] = {1 + 0.5 + 0.5, 100},
                       [STAGE_SINGLES] = {1 + 0.5, 26}};

/* The operands of a tile. */
typedef struct TileOperands {
    Staging a, b;
} TileOperands;

/* Results that a thread stores at once, and its instructions for each of them
   (counted in SASS). */
typedef struct StoreRun {
    int near;
    bool apart; /* single elements: only their address is computed once */
    double insts;
} StoreRun;

static int near_of(int64_t dtype, int64_t line) {
    int n = 16 / dtype_info[dtype].bytes;
    while (line % n) n /= 2;
    return n;
}

/* The store of the epilogue's functor, or that of device.cuh for lines of
   `line`.
 */
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
    double warps = s->threads / 32., steps = ceil((double)depth / TILE_K_MMA);
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
    const char *of = t->mma            ? dtype_info[dtype].cuda
                     : dtype == DT_F64 ? "double"
                                       : "float";
    sb_printf(p->sb, "    typedef %s<%s, %d, %d, %d, %d> Tile;\n",
              t->mma ? "MmaTile" : "FmaTile", of, s->m, s->n, s->sub_m,
              s->sub_n);
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

static void print_gemm(LibPrint *p, const LibGemm *g) {
    int64_t batch = 1;
    for (int64_t i = 0; i < g->nbatch_dim; i++) batch *= g->batch_dim[i];
    if (g->m * g->n * batch == 0) return;
    TilePick t = tile_pick(g->a_dtype, g->b_dtype, g->m, g->n, batch);
    begin(p,
          (Shape[]){{g->a_dtype, {batch, g->m, g->k}, 3, NULL},
                    {g->b_dtype, {batch, g->k, g->n}, 3, NULL}},
          2);
    int64_t a_near = near_in(g, g->a_dtype, g->a_cs, g->a_rs, g->a_bs);
    int64_t b_near = near_in(g, g->b_dtype, g->b_rs, g->b_cs, g->b_bs);
    TileOperands in = {a_near > 1 ? STAGE_VECTORS : STAGE_SINGLES,
                       b_near > 1 ? STAGE_VECTORS : STAGE_SINGLES};
    put_tile(p, &t, g->a_dtype, in, run_of(p, g->c_dtype, g->n), g->k,
             t.tiles * batch);
    put_number(p, "a_near", a_near);
    put_number(p, "b_near", b_near);
    put_batch(p, g, "a_at", g->a_bs);
    put_batch(p, g, "b_at", g->b_bs);
    kernel_for(p, false, t.shape->threads, t.shape->resident, t.tiles * batch);
    put_body(p, "", "", "");
}

static void print_gemm_quantized(LibPrint *p, const LibGemmQuantized *g) {
    if (g->m * g->n == 0) return;
    TilePick t = tile_pick(g->a_dtype, g->a_dtype, g->m, g->n, 1);
    begin(p,
          (Shape[]){{g->a_dtype, {g->m, g->k}, 2, NULL},
                    {g->q_dtype, {g->k, g->n}, 2, NULL}},
          2);
    int64_t near = near_of(g->a_dtype, g->k ? g->k : 1);
    TileOperands in = {near > 1 ? STAGE_VECTORS : STAGE_SINGLES, STAGE_SINGLES};
    put_tile(p, &t, g->a_dtype, in, run_of(p, g->c_dtype, g->n), g->k, t.tiles);
    put_number(p, "a_near", near);
    kernel_for(p, false, t.shape->threads, t.shape->resident, t.tiles);
    put_body(p, "", "", "");
}

void print_cuda_product(const LibGemm *p, PlanProduct how, int number,
                        StrBuf *sb, CudaLib *out) {
    static const char shape[] =
        "long long m, long long n, long long k,\n    long long batch, long "
        "long "
        "a_bs, long long b_bs, long long a_rs, long long a_cs,\n    long long "
        "b_rs, long long b_cs)\n{\n    const ProductShape s = {m, n, k, batch, "
        "a_bs, b_bs, a_rs, a_cs, b_rs, b_cs};\n";
    const char *acc = p->a_dtype == DT_F64 ? "double" : "float";
    const char *c = dtype_info[p->c_dtype].cuda,
               *a = dtype_info[p->a_dtype].cuda;
    const char *more = how == PLAN_PRODUCT_SCALE ? "float" : c;
    LibPrint lp = {sb, NULL, NULL, number, out};
    *out = (CudaLib){.weight = 8};
    sb_printf(sb,
              "/* any product of %s that cuBLASLt refuses */\nstruct L%d {\n"
              "    typedef %s A;\n    typedef %s C;\n    typedef %s More;\n"
              "    typedef %s Acc;\n    static constexpr int how = %d;\n",
              a, number, a, c, more, acc, (int)how);
    for (int second = 0; second < 2; second++) {
        if (second && (how == PLAN_PRODUCT_PLAIN || how == PLAN_PRODUCT_ADD ||
                       p->c_dtype != DT_F32))
            break;
        kernel(&lp, second, EACH_THREADS, GPU_BLOCKS);
        sb_printf(sb,
                  "const %s *__restrict__ a, const %s *__restrict__ b, %s *c, "
                  "const %s *more,\n    %s"
                  "    %s<L%d>(%sc, more, s);\n}\n",
                  a, a, c, more, shape,
                  second ? "product_after" : "product_any", number,
                  second ? "" : "a, b, ");
    }
}

/* ---- convolution --------------------------------------------------------- */

/* X, W and Y. */
static void begin_conv(LibPrint *p, const LibConv *c) {
    begin(p,
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
    TilePick t = tile_pick(x, c->w_dtype, m, n, products);
    bool direct = m <= DIRECT_CHANNELS;
    if (results == 0) return;
    begin_conv(p, c);
    if (!direct) put_tile(p, &t, x, in, r, depth, t.tiles * products);
    if (direct)
        kernel_each(p, false, r.apart ? results : results / r.near);
    else
        kernel_for(p, false, t.shape->threads, t.shape->resident,
                   t.tiles * products);
    put_body(p, direct ? "_direct" : "", "", "");
}

static void print_conv_fwd(LibPrint *p, const LibConv *c) {
    int64_t line = lib_volume(c->out), cols = c->n * line;
    int64_t depth = c->c / c->group * lib_volume(c->kernel);
    bool near = near_of(c->w_dtype, depth) > 1;
    put_conv(p, c, c->x_dtype, c->k / c->group, cols, c->group, c->k * cols,
             (TileOperands){near ? STAGE_VECTORS : STAGE_SINGLES, STAGE_ROWS},
             run_of_planes(p, c->y_dtype, line, c->n), depth);
}

static void print_conv_dgrad(LibPrint *p, const LibConv *c) {
    int64_t cols = c->n, line = lib_volume(c->in);
    int64_t phases = lib_volume(c->stride); /* 1: results are adjacent */
    int64_t depth = c->k / c->group * lib_volume(c->kernel) / phases;
    StoreRun r = run_of_phase(c->x_dtype, c->in[2], c->stride[2]);
    for (int i = 0; i < 3; i++) cols *= up_div(c->in[i], c->stride[i]);
    if (phases == 1) {
        r = run_of_planes(p, c->x_dtype, line, c->n);
    } else if (lib_volume(c->kernel) == 1 && !c->pad[0] && !c->pad[1] &&
               !c->pad[2]) { /* one phase, which also stores the zeros of the
                                others */
        r = run_of_cells(c->x_dtype, c->in[2], c->stride);
        depth *= phases;
        phases = 1;
    }
    put_conv(p, c, c->y_dtype, c->c / c->group, cols, c->group * phases,
             c->c * c->n * line, (TileOperands){STAGE_SINGLES, STAGE_ROWS}, r,
             depth);
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

static void print_conv_wgrad(LibPrint *p, const LibConv *c) {
    int64_t kg = c->k / c->group, cg = c->c / c->group;
    int64_t cols = cg * lib_volume(c->kernel), size = c->k * cols;
    bool points = cuda_conv_points(c);
    if (size == 0) return;
    /* number of slices of the sum: each long enough for a block, all within
       scratch */
    int64_t times = c->n * lib_volume(c->out) / SLICE_STEPS;
    if (times > SCRATCH_MAX / (size * 4)) times = SCRATCH_MAX / (size * 4);
    if (times < 1) times = 1;
    TilePick t = tile_pick(c->x_dtype, c->y_dtype, kg, cols, c->group * times);
    begin_conv(p, c);
    if (kg <= DIRECT_CHANNELS && cg <= DIRECT_CHANNELS) {
        kernel(p, false, DIRECT_THREADS, size);
        put_body(p, "_direct", "", "");
        return;
    }
    int64_t blocks = t.tiles * c->group, splits = fill_gpu(blocks, times);
    const char *more = splits > 1 ? ", float *partial" : "";
    int64_t line = lib_volume(c->out);
    TileOperands in = {near_of(c->y_dtype, line) > 1 ? STAGE_VECTORS
                                                     : STAGE_SINGLES,
                       !points                         ? STAGE_STEPS
                       : near_of(c->x_dtype, line) > 1 ? STAGE_VECTORS
                                                       : STAGE_SINGLES};
    put_tile(p, &t, c->x_dtype, in,
             run_of(p, splits > 1 ? DT_F32 : c->w_dtype, cols),
             c->n * line / splits, blocks * splits);
    put_number(p, "splits", splits);
    put_number(p, "points", points);
    int near = near_of(DT_F32, size); /* sums of slices per thread */
    while (near > 1 && size / near < GPU_BLOCKS * EACH_THREADS) near /= 2;
    put_number(p, "sum_near", near);
    kernel_for(p, false, t.shape->threads, t.shape->resident, blocks * splits);
    put_body(p, "", more, splits > 1 ? ", partial" : ", nullptr");
    if (splits == 1) return;
    p->out->scratch = (uint64_t)(splits * size) * sizeof(float);
    kernel_each(p, true, size / near);
    put_operands(p, more);
    sb_printf(p->sb, "    conv_wgrad_sum<L%d>(dw, partial);\n}\n", p->number);
}

/* ---- pooling ------------------------------------------------------------- */

/* A thread computes `near` neighbouring results of a line: as many as 16
   bytes hold, but fewer if windows are so wide that the text would become
   long. The gradient takes whole strides, so that all threads visit the same
   windows. */
static void put_pool(LibPrint *p, const LibPool *c, const int64_t *plane,
                     int64_t stride) {
    enum { MOST_TAPS = 32 };
    int64_t results = c->planes * lib_volume(plane);
    int near = 16 / dtype_info[c->dtype].bytes;
    if (results == 0) return;
    while (near > 1 && (plane[2] % near || near * c->kernel[2] > MOST_TAPS))
        near /= 2;
    if (near % stride) near = 1;
    begin(p, NULL, 0);
    put_number(p, "near", near);
    kernel_each(p, false, results / near);
    put_body(p, "", "", "");
    p->out->weight = 3;
}

static void print_maxpool(LibPrint *p, const LibPool *c) {
    put_pool(p, c, c->out, 1);
}

static void print_maxpool_grad(LibPrint *p, const LibPool *c) {
    put_pool(p, c, c->in, c->stride[2]);
}

static void print_avgpool(LibPrint *p, const LibPool *c) {
    put_pool(p, c, c->out, 1);
}

static void print_avgpool_grad(LibPrint *p, const LibPool *c) {
    put_pool(p, c, c->in, c->stride[2]);
}

/* ---- attention ----------------------------------------------------------- */

/* Scores are matrix products in their own order (flash.cuh). */
static bool is_plain(const LibAttend *c) {
    return c->mask_mod == 0 && lib_float(c->scale) > 0;
}

/* Percentage of the peak of mma.sync, which is 613 TFLOP/s on an H100. A step
   of flash.cuh issues 6 to 8 other instructions for each tensor-core
   instruction (counted in SASS for sm_90), and overlaps them as well as
   FlashAttention-2. FlashAttention-3's paper gives for FlashAttention-2 with
   64 features and 1,024 tokens 306 TFLOP/s forward and 238 backward; causal
   attention reaches 0.74 times as much (reported for 128 features). 1.05
   times as much is expected here, since the panels have no bank conflicts.
   The FLOPs count all matrix products that run: backward runs seven,
   FlashAttention-2 five. */
static double flash_rate(bool grad, bool causal) {
    return grad ? causal ? 30.2 : 40.8 : causal ? 39.2 : 52.5;
}

/* A thread for each row, or tensor cores if flash.cuh supports the case. */
static void put_attend(LibPrint *p, const LibAttend *c, bool grad, int64_t rows,
                       int64_t tall, int64_t flash_blocks) {
    const int64_t most = 1 << 30;
    bool flash = dtype_is_low((DType)c->q_dtype) && c->k_dtype == c->q_dtype &&
                 c->v_dtype == c->q_dtype &&
                 (!grad || c->y_dtype == c->q_dtype) && c->d <= FLASH_MOST &&
                 c->e <= FLASH_MOST && c->t < most && c->u < most &&
                 flash_blocks < most;
    if (rows == 0) return;
    begin(p, NULL, 0);
    if (flash) {
        put_number(p, "tall", tall);
        put_number(p, "plain", is_plain(c));
        kernel(p, false, FLASH_THREADS, flash_blocks);
    } else {
        kernel_each(p, false, rows);
    }
    put_body(p, flash ? "_flash" : "", "", "");
    p->out->work.rate = flash ? flash_rate(grad, c->causal) : 1;
    p->out->weight = flash ? 20 : 3;
}

static void print_attend(LibPrint *p, const LibAttend *c) {
    /* a warp takes twice the rows if registers suffice */
    int64_t tall =
        c->d <= FLASH_NARROW && c->e <= FLASH_NARROW && is_plain(c) ? 2 : 1;
    put_attend(p, c, false, c->batch * c->t, tall,
               c->batch * up_div(c->t, FLASH_WARPS * 16 * tall));
}

static void print_attend_grad(LibPrint *p, const LibAttend *c) {
    int64_t keys = c->group ? c->batch / c->group : 0; /* matrices of them */
    put_attend(p, c, true, c->batch * c->t + keys * c->u, 1,
               c->batch * up_div(c->t, FLASH_GRAD_ROWS) +
                   keys * up_div(c->u, FLASH_GRAD_ROWS));
}

/* ---- scatter-add, argmax ------------------------------------------------- */

static void print_scatter_add(LibPrint *p, const LibScatterAdd *c) {
    if (c->outer * c->rows * c->inner == 0) return;
    int64_t range = up_div(c->rows, SCATTER_BLOCKS), line = 1;
    int threads = c->nidx > 4 * SCATTER_THREADS_LONG ? SCATTER_THREADS_LONG
                                                     : SCATTER_THREADS;
    int bytes[] = {dtype_info[c->src_dtype].bytes,
                   dtype_info[c->out_dtype].bytes};
    int64_t near = 16 / (bytes[0] < bytes[1] ? bytes[0] : bytes[1]);
    while (c->inner % near) near /= 2;
    while (line * near < c->inner && line < SCATTER_LINE) line *= 2;
    begin(p,
          (Shape[]){{c->src_dtype, {c->outer, c->nidx, c->inner}, 3, NULL},
                    {c->idx_dtype, {c->nidx}, 1, NULL},
                    {c->out_dtype, {c->outer, c->rows, c->inner}, 3, NULL}},
          3);
    put_number(p, "range", range);
    put_number(p, "line", line);
    put_number(p, "near", near);
    sb_printf(p->sb,
              "    static constexpr int threads = %d;\n"
              "    static constexpr bool idx_signed = %s;\n",
              threads,
              dtype_info[c->idx_dtype].kind == DK_U ? "false" : "true");
    p->out->scratch = (uint64_t)(2 * c->nidx + c->rows + 1) * sizeof(int32_t);
    p->out->weight = 6;
    kernel(p, false, threads, up_div(c->rows, range));
    put_operands(p, ", int *scratch");
    sb_printf(p->sb, "    scatter_invert<L%d>(idx, scratch);\n}\n", p->number);
    kernel_each(p, true, c->outer * c->rows * line);
    put_operands(p, ", int *scratch");
    sb_printf(p->sb, "    scatter_sum<L%d>(src, out, scratch);\n}\n",
              p->number);
}

static void print_argmax(LibPrint *p, const LibArgmax *c) {
    bool warp = c->inner == 1 && c->axis >= ARGMAX_WARP;
    if (c->outer * c->inner == 0 || c->axis <= 0) return;
    begin(p, &(Shape){c->dtype, {c->outer, c->axis, c->inner}, 3, NULL}, 1);
    kernel_each(p, false, c->outer * c->inner * (warp ? ARGMAX_WARP : 1));
    put_body(p, warp ? "_warp" : "", "", "");
    p->out->weight = 2;
}

/* SortParts (sort.cuh). */
static void print_argsort_parts(LibPrint *p, const LibArgsort *c,
                                int64_t parts) {
    enum { POSITION = sizeof(int32_t), KEY = sizeof(int64_t) }; /* at most */
    int64_t size = up_div(c->n, parts), most = c->k < size ? c->k : size;
    p->out->scratch =
        (uint64_t)(c->rows * parts *
                   (most * (KEY + POSITION) + 2 * size * POSITION));
    put_number(p, "parts", parts);
    kernel(p, false, SORT_THREADS, c->rows * parts);
    put_operands(p, ", int *scratch");
    sb_printf(p->sb, "    argsort_parts<L%d>(x, scratch);\n}\n", p->number);
    kernel_each(p, true, c->rows * parts * most);
    put_operands(p, ", int *scratch");
    sb_printf(p->sb, "    argsort_merge<L%d>(out, scratch);\n}\n", p->number);
}

static void print_argsort(LibPrint *p, const LibArgsort *c) {
    if (c->rows * c->k == 0) return;
    begin(p, &(Shape){c->dtype, {c->rows, c->n}, 2, NULL}, 1);
    if (c->n <= SORT_SHORT) {
        kernel_each(p, false, c->rows * c->n);
        put_body(p, "", "", "");
        return;
    }
    int64_t blocks = c->rows < GPU_BLOCKS ? c->rows : GPU_BLOCKS;
    int64_t parts = GPU_BLOCKS / c->rows;
    if (parts > c->n / SORT_PART) parts = c->n / SORT_PART;
    p->out->weight = 16;
    if (parts > 1) {
        print_argsort_parts(p, c, parts);
        return;
    }
    p->out->scratch = (uint64_t)(blocks * 2 * c->n) * sizeof(int32_t);
    kernel(p, false, SORT_THREADS, blocks);
    put_body(p, "_long", ", int *scratch", ", scratch");
}

/* ---- all ----------------------------------------------------------------- */

/* One thread computes each result; there is no choice. */
static void print_each(LibPrint *p, int64_t results) {
    if (results == 0) return;
    begin(p, NULL, 0);
    kernel_each(p, false, results);
    put_body(p, "", "", "");
    p->out->weight = 3;
}

void print_cuda_sum(DType sent, int number, StrBuf *sb, CudaLib *out) {
    const CudaShape each = {.threads = EACH_THREADS,
                            .per_block = EACH_THREADS * CONVERT_NEAR};
    *out = (CudaLib){.first = each, .second = each, .weight = 1};
    for (int back = 0; back < 2; back++) {
        const char *from = dtype_info[back ? sent : DT_F32].cuda;
        const char *to = dtype_info[back ? DT_F32 : sent].cuda;
        sb_printf(sb,
                  "/* gradients, %s %s */\nextern \"C\" __global__ void "
                  "__launch_bounds__(%d)\nl%d%s(const %s *from, %s *to, long "
                  "long n)\n{\n    convert(from, to, n);\n}\n",
                  back ? "from" : "to", dtype_info[sent].text, EACH_THREADS,
                  number, back ? "_2" : "", from, to);
    }
}

#define PRINT_each(name, threads)    print_each(&print, threads)
#define PRINT_kernel(name, threads)  print_##name(&print, p)
#define PRINT_product(name, threads) print_##name(&print, p)
#define PRINT_copy(name, threads)    ASSERT(p && !"the driver copies")

void print_cuda_lib(const LoweredStep *s, int number, StrBuf *sb,
                    CudaLib *out) {
    LibPrint print = {sb, s, lib_info(s->lib), number, out};
    memset(out, 0, sizeof *out);
    out->weight = 4;
    switch (s->lib) {
#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    case PLAN_LIB_##E: {                                                       \
        const S *p = (const void *)s->pars;                                    \
        PRINT_##cuda(name, threads);                                           \
        break;                                                                 \
    }
#include "runtime/program/lib.def"
    case PLAN_NLIB: ASSERT(!"a routine"); break;
    }
}

CudaRoute cuda_lib_route(PlanLib lib) {
    static const CudaRoute route[] = {
#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    CUDA_ROUTE_##cuda,
#include "runtime/program/lib.def"
    };
    return route[lib];
}
