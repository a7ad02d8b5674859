/* cuda_lib.c: library steps as instances of the templates in runtime/cuda.

   Each step becomes a struct of literals and one or two kernels:
     struct L3 { ... };
     extern "C" __global__ void l3(...) { conv_fwd<L3>(...); }
   Tiles, slices and grids depend on shapes and dtypes only.                  */
#include "codegen/cuda/cuda.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cuda/tile.h"

#include <inttypes.h>
#include <string.h>

enum {
    GPU_BLOCKS = 264,    /* blocks that keep a large GPU busy               */
    DIRECT_CHANNELS = 4, /* per group: fewer than a tile is worth           */
    SLICE_STEPS = 512,   /* least steps of a slice of a weight gradient     */
    SCRATCH_MAX = 64 << 20
};

typedef struct LibPrint {
    StrBuf *sb;
    const LoweredStep *s;
    int number;
    CudaLib *out;
} LibPrint;

static int64_t up_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* As the hand-written kernels name it. */
static const char *type_name(int64_t dtype) {
    if (dtype == DT_F16) return "f16";
    if (dtype == DT_BF16) return "bf16";
    return dtype_info[dtype].c;
}

void print_cuda_head(StrBuf *sb) {
    static const char *const files[] = {"kmath.h",  "fold.cuh", "device.cuh",
                                        "ptx.cuh",  "conv.cuh", "gemm.cuh",
                                        "pool.cuh", "index.cuh"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        sb_printf(sb, "#include \"%s\"\n", files[i]);
}

/* ---- the struct ---------------------------------------------------------- */

static void put_type(LibPrint *p, const char *name, int64_t dtype) {
    sb_printf(p->sb, "    typedef %s %s;\n", type_name(dtype), name);
}

static void put_number(LibPrint *p, const char *name, int64_t value) {
    sb_printf(p->sb, "    static constexpr long long %s = %" PRId64 ";\n", name,
              value);
}

static void put_three(LibPrint *p, const char *name, const int64_t *v) {
    sb_printf(p->sb,
              "    static constexpr long long %s0 = %" PRId64 ", %s1 = %" PRId64
              ", %s2 = %" PRId64 ";\n",
              name, v[0], name, v[1], name, v[2]);
}

/* The comment, in terms of shapes only: steps of equal text share kernels. */
static void begin(LibPrint *p, const char *what) {
    sb_printf(p->sb, "/* %s", what);
}

/* An operand of the comment; planes have three dims more. */
static void put_shape(LibPrint *p, int64_t dtype, const int64_t *dim, int n,
                      const int64_t *plane) {
    sb_printf(p->sb, "%c%s[", p->sb->data[p->sb->len - 1] == ']' ? ',' : ' ',
              dtype_info[dtype].text);
    for (int i = 0; i < n; i++)
        sb_printf(p->sb, "%s%" PRId64, i ? "," : "", dim[i]);
    for (int i = 0; plane && i < 3; i++)
        if (i == 2 || plane[i] != 1 || (i == 1 && plane[0] != 1))
            sb_printf(p->sb, ",%" PRId64, plane[i]);
    sb_puts(p->sb, "]");
}

static void end_comment(LibPrint *p) {
    sb_printf(p->sb, " */\nstruct L%d {\n", p->number);
}

/* ---- the kernels --------------------------------------------------------- */

/* Threads and blocks of l<number> (second: l<number>_2), and its head up to
   the parameters. */
static void kernel(LibPrint *p, bool second, int threads, int64_t blocks) {
    CudaLaunch *l = second ? &p->out->second : &p->out->first;
    l->threads = threads;
    l->blocks = blocks;
    sb_printf(p->sb,
              "%sextern \"C\" __global__ void __launch_bounds__(%d, 1)\nl%d%s(",
              second ? "\n" : "};\n\n", threads, p->number, second ? "_2" : "");
}

/* One thread for each of n results. */
static void kernel_each(LibPrint *p, bool second, int64_t n) {
    kernel(p, second, EACH_THREADS, up_div(n, EACH_THREADS));
}

/* The last parameter, where the result goes: of type `type`, or the
   epilogue's buffers. */
static void put_result(LibPrint *p, const char *type) {
    if (!p->s->epilogue) {
        sb_printf(p->sb, "%s *out)\n{\n", type);
        return;
    }
    sb_puts(p->sb, "void *");
    if (p->s->epilogue->bufs.len > 0) sb_puts(p->sb, ", ");
    print_cuda_params(p->s->epilogue, p->sb);
    sb_puts(p->sb, ")\n{\n");
}

/* What stores an element: a functor of runtime/cuda, or the epilogue's. */
static void put_store(LibPrint *p, const char *plain) {
    const Kernel *e = p->s->epilogue;
    if (!e) {
        sb_printf(p->sb, "%s{out}", plain);
        return;
    }
    sb_printf(p->sb, "E%d", kernel_index(e));
    print_cuda_initializer(e, p->sb);
}

/* ---- tiles --------------------------------------------------------------- */

typedef struct TileShape {
    int m, n;         /* of a block                                         */
    int sub_m, sub_n; /* of a warp (mma) or thread (fma)                    */
    int threads;
} TileShape;

typedef struct TilePick {
    bool mma;
    const TileShape *shape;
    int64_t tiles; /* of one product                                        */
} TilePick;

static const TileShape mma_shapes[] = {
    {32, 128, 16, 32, 256}, {64, 64, 32, 16, 256}, {128, 128, 64, 32, 256}};
static const TileShape fma_shapes[] = {
    {32, 128, 4, 4, 256}, {64, 64, 4, 4, 256}, {128, 128, 8, 8, 256}};

static int64_t tile_count(const TileShape *t, int64_t m, int64_t n) {
    return up_div(m, t->m) * up_div(n, t->n);
}

static TilePick tile_pick(int64_t a, int64_t b, int64_t m, int64_t n,
                          int64_t products) {
    TilePick t = {.mma = a == b && dtype_is_16((DType)a)};
    const TileShape *shapes = t.mma ? mma_shapes : fma_shapes;
    bool large = a != DT_F64 && m >= 128 && n >= 128 &&
                 tile_count(&shapes[2], m, n) * products >= GPU_BLOCKS / 2;
    t.shape = &shapes[large ? 2 : m > 32];
    t.tiles = tile_count(t.shape, m, n);
    return t;
}

static void put_tile(LibPrint *p, const TilePick *t, int64_t dtype) {
    const TileShape *s = t->shape;
    const char *of = t->mma            ? type_name(dtype)
                     : dtype == DT_F64 ? "double"
                                       : "float";
    sb_printf(p->sb, "    typedef %s<%s, %d, %d, %d, %d> Tile;\n",
              t->mma ? "MmaTile" : "FmaTile", of, s->m, s->n, s->sub_m,
              s->sub_n);
    p->out->weight = t->mma ? 20 : 14;
}

/* ---- matrix product ------------------------------------------------------ */

/* Element offset of batch b: one term for each batch dim that matters. */
static void put_batch(LibPrint *p, const CpuGemm *g, const char *name,
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

static void print_gemm(LibPrint *p) {
    CpuGemm g;
    int64_t batch = 1;
    memcpy(&g, p->s->pars, sizeof g);
    for (int64_t i = 0; i < g.nbatch_dim; i++) batch *= g.batch_dim[i];
    if (g.m * g.n * batch == 0) return;
    TilePick t = tile_pick(g.a_dtype, g.b_dtype, g.m, g.n, batch);
    begin(p, "matmul");
    put_shape(p, g.a_dtype, (int64_t[]){batch, g.m, g.k}, 3, NULL);
    put_shape(p, g.b_dtype, (int64_t[]){batch, g.k, g.n}, 3, NULL);
    end_comment(p);
    put_type(p, "A", g.a_dtype);
    put_type(p, "B", g.b_dtype);
    put_tile(p, &t, g.a_dtype);
    put_number(p, "m", g.m);
    put_number(p, "n", g.n);
    put_number(p, "k", g.k);
    put_number(p, "a_rs", g.a_rs);
    put_number(p, "a_cs", g.a_cs);
    put_number(p, "b_rs", g.b_rs);
    put_number(p, "b_cs", g.b_cs);
    put_batch(p, &g, "a_at", g.a_bs);
    put_batch(p, &g, "b_at", g.b_bs);
    kernel(p, false, t.shape->threads, t.tiles * batch);
    sb_printf(p->sb, "const %s *a, const %s *b, ", type_name(g.a_dtype),
              type_name(g.b_dtype));
    put_result(p, type_name(g.c_dtype));
    char plain[64];
    snprintf(plain, sizeof plain, "StoreGemm<L%d, %s>", p->number,
             type_name(g.c_dtype));
    sb_printf(p->sb, "    gemm<L%d>(a, b, ", p->number);
    put_store(p, plain);
    sb_puts(p->sb, ");\n}\n");
}

/* ---- convolution --------------------------------------------------------- */

static int64_t volume(const int64_t *v) { return v[0] * v[1] * v[2]; }

/* X, W and Y. */
static void put_conv(LibPrint *p, const char *what, const CpuConv *c) {
    begin(p, what);
    put_shape(p, c->x_dtype, (int64_t[]){c->n, c->c}, 2, c->in);
    put_shape(p, c->w_dtype, (int64_t[]){c->k, c->c / c->group}, 2, c->kernel);
    put_shape(p, c->y_dtype, (int64_t[]){c->n, c->k}, 2, c->out);
    end_comment(p);
    put_type(p, "X", c->x_dtype);
    put_type(p, "W", c->w_dtype);
    put_type(p, "Y", c->y_dtype);
    put_number(p, "n", c->n);
    put_number(p, "c", c->c);
    put_number(p, "k", c->k);
    put_number(p, "group", c->group);
    put_three(p, "in", c->in);
    put_three(p, "out", c->out);
    put_three(p, "kernel", c->kernel);
    put_three(p, "stride", c->stride);
    put_three(p, "dilation", c->dilation);
    put_three(p, "pad", c->pad);
}

static void print_conv_fwd(LibPrint *p, const CpuConv *c) {
    int64_t kg = c->k / c->group, cols = c->n * volume(c->out);
    bool direct = kg <= DIRECT_CHANNELS;
    TilePick t = tile_pick(c->x_dtype, c->w_dtype, kg, cols, c->group);
    char plain[32];
    if (c->k * cols == 0) return;
    put_conv(p, "conv", c);
    if (!direct) put_tile(p, &t, c->x_dtype);
    if (direct)
        kernel_each(p, false, c->k * cols);
    else
        kernel(p, false, t.shape->threads, t.tiles * c->group);
    sb_printf(p->sb, "const %s *x, const %s *w, ", type_name(c->x_dtype),
              type_name(c->w_dtype));
    put_result(p, type_name(c->y_dtype));
    sb_printf(p->sb, "    conv_fwd%s<L%d>(x, w, ", direct ? "_direct" : "",
              p->number);
    snprintf(plain, sizeof plain, "StoreConv<L%d>", p->number);
    put_store(p, plain);
    sb_puts(p->sb, ");\n}\n");
}

static void print_conv_dgrad(LibPrint *p, const CpuConv *c) {
    int64_t cg = c->c / c->group, cols = c->n, all = c->c * c->n;
    bool direct = cg <= DIRECT_CHANNELS;
    for (int i = 0; i < 3; i++) cols *= up_div(c->in[i], c->stride[i]);
    int64_t products = c->group * volume(c->stride);
    TilePick t = tile_pick(c->y_dtype, c->w_dtype, cg, cols, products);
    if (all * volume(c->in) == 0) return;
    put_conv(p, "conv_dgrad", c);
    if (!direct) put_tile(p, &t, c->y_dtype);
    if (direct)
        kernel_each(p, false, all * volume(c->in));
    else
        kernel(p, false, t.shape->threads, t.tiles * products);
    sb_printf(p->sb,
              "const %s *dy, const %s *w, %s *dx)\n{\n"
              "    conv_dgrad%s<L%d>(dy, w, dx);\n}\n",
              type_name(c->y_dtype), type_name(c->w_dtype),
              type_name(c->x_dtype), direct ? "_direct" : "", p->number);
}

/* Enough slices to fill a GPU, of a length worth a block, within scratch. */
static int64_t wgrad_splits(const CpuConv *c, int64_t blocks) {
    int64_t depth = c->n * volume(c->out);
    int64_t bytes = c->k * (c->c / c->group) * volume(c->kernel) * 4;
    int64_t n = up_div(GPU_BLOCKS, blocks);
    if (n > depth / SLICE_STEPS) n = depth / SLICE_STEPS;
    if (n > SCRATCH_MAX / bytes) n = SCRATCH_MAX / bytes;
    return n > 1 ? n : 1;
}

static void put_wgrad_params(LibPrint *p, const CpuConv *c, const char *x,
                             const char *dy, bool scratch) {
    sb_printf(p->sb, "const %s *%s, const %s *%s, %s *dw%s)\n{\n",
              type_name(c->x_dtype), x, type_name(c->y_dtype), dy,
              type_name(c->w_dtype), scratch ? ", float *partial" : "");
}

static void print_wgrad_direct(LibPrint *p, const CpuConv *c, int64_t size) {
    put_conv(p, "conv_wgrad", c);
    kernel(p, false, DIRECT_THREADS, size);
    put_wgrad_params(p, c, "x", "dy", false);
    sb_printf(p->sb, "    conv_wgrad_direct<L%d>(x, dy, dw);\n}\n", p->number);
}

static void print_conv_wgrad(LibPrint *p, const CpuConv *c) {
    int64_t kg = c->k / c->group, cg = c->c / c->group;
    int64_t cols = cg * volume(c->kernel), size = c->k * cols;
    TilePick t = tile_pick(c->x_dtype, c->y_dtype, kg, cols, c->group);
    if (size == 0) return;
    if (kg <= DIRECT_CHANNELS && cg <= DIRECT_CHANNELS) {
        print_wgrad_direct(p, c, size);
        return;
    }
    int64_t blocks = t.tiles * c->group, splits = wgrad_splits(c, blocks);
    put_conv(p, "conv_wgrad", c);
    put_tile(p, &t, c->x_dtype);
    put_number(p, "splits", splits);
    kernel(p, false, t.shape->threads, blocks * splits);
    put_wgrad_params(p, c, "x", "dy", splits > 1);
    sb_printf(p->sb, "    conv_wgrad<L%d>(x, dy, dw, %s);\n}\n", p->number,
              splits > 1 ? "partial" : "nullptr");
    if (splits == 1) return;
    p->out->scratch = (uint64_t)(splits * size) * sizeof(float);
    kernel_each(p, true, size);
    put_wgrad_params(p, c, "", "", true);
    sb_printf(p->sb, "    conv_wgrad_sum<L%d>(dw, partial);\n}\n", p->number);
}

static void print_conv(LibPrint *p) {
    CpuConv c;
    memcpy(&c, p->s->pars, sizeof c);
    if (p->s->lib == PLAN_LIB_CONV_FWD)
        print_conv_fwd(p, &c);
    else if (p->s->lib == PLAN_LIB_CONV_DGRAD)
        print_conv_dgrad(p, &c);
    else
        print_conv_wgrad(p, &c);
}

/* ---- pooling ------------------------------------------------------------- */

static void print_pool(LibPrint *p) {
    static const struct {
        PlanLib lib;
        const char *name, *params, *args;
        bool back;
    } * k,
        kinds[] = {
            {PLAN_LIB_MAXPOOL, "maxpool", "const %s *x, %s *y, int32_t *idx",
             "x, y, idx", false},
            {PLAN_LIB_MAXPOOL_GRAD, "maxpool_grad",
             "const %s *dy, const int32_t *idx, %s *dx", "dy, idx, dx", true},
            {PLAN_LIB_AVGPOOL, "avgpool", "const %s *x, %s *y", "x, y", false},
            {PLAN_LIB_AVGPOOL_GRAD, "avgpool_grad", "const %s *dy, %s *dx",
             "dy, dx", true}};
    CpuPool c;
    memcpy(&c, p->s->pars, sizeof c);
    for (k = kinds; k->lib != p->s->lib;) k++;
    int64_t results = c.planes * volume(k->back ? c.in : c.out);
    const char *type = type_name(c.dtype);
    if (results == 0) return;
    begin(p, k->name);
    put_shape(p, c.dtype, &c.planes, 1, c.in);
    put_shape(p, c.dtype, &c.planes, 1, c.out);
    end_comment(p);
    put_type(p, "T", c.dtype);
    put_number(p, "planes", c.planes);
    put_three(p, "in", c.in);
    put_three(p, "out", c.out);
    put_three(p, "kernel", c.kernel);
    put_three(p, "stride", c.stride);
    put_three(p, "dilation", c.dilation);
    put_three(p, "pad", c.pad);
    put_three(p, "pad_end", c.pad_end);
    put_number(p, "count_include_pad", c.count_include_pad);
    kernel_each(p, false, results);
    sb_printf(p->sb, k->params, type, type);
    sb_printf(p->sb, ")\n{\n    %s<L%d>(%s);\n}\n", k->name, p->number,
              k->args);
    p->out->weight = 3;
}

/* ---- scatter-add, argmax ------------------------------------------------- */

/* Parameters without a name are not used. */
static void put_scatter_params(LibPrint *p, const CpuScatterAdd *c,
                               const char *src, const char *idx,
                               const char *out) {
    sb_printf(p->sb, "const %s *%s, const %s *%s, %s *%s, int *scratch)\n{\n",
              type_name(c->src_dtype), src, type_name(c->idx_dtype), idx,
              type_name(c->out_dtype), out);
}

static void print_scatter(LibPrint *p) {
    CpuScatterAdd c;
    memcpy(&c, p->s->pars, sizeof c);
    if (c.outer * c.rows * c.inner == 0) return;
    int64_t range = up_div(c.rows, SCATTER_BLOCKS), line = 1;
    int threads = c.nidx > 4 * SCATTER_THREADS_LONG ? SCATTER_THREADS_LONG
                                                    : SCATTER_THREADS;
    while (line < c.inner && line < SCATTER_LINE) line *= 2;
    begin(p, "scatter_add");
    put_shape(p, c.src_dtype, (int64_t[]){c.outer, c.nidx, c.inner}, 3, NULL);
    put_shape(p, c.idx_dtype, &c.nidx, 1, NULL);
    put_shape(p, c.out_dtype, (int64_t[]){c.outer, c.rows, c.inner}, 3, NULL);
    end_comment(p);
    put_type(p, "Src", c.src_dtype);
    put_type(p, "Idx", c.idx_dtype);
    put_type(p, "Out", c.out_dtype);
    put_number(p, "outer", c.outer);
    put_number(p, "rows", c.rows);
    put_number(p, "nidx", c.nidx);
    put_number(p, "inner", c.inner);
    put_number(p, "range", range);
    put_number(p, "line", line);
    sb_printf(p->sb,
              "    static constexpr int threads = %d;\n"
              "    static constexpr bool idx_signed = %s;\n",
              threads, dtype_info[c.idx_dtype].kind == DK_U ? "false" : "true");
    p->out->scratch = (uint64_t)(2 * c.nidx + c.rows + 1) * sizeof(int32_t);
    p->out->weight = 6;
    kernel(p, false, threads, up_div(c.rows, range));
    put_scatter_params(p, &c, "", "idx", "");
    sb_printf(p->sb, "    scatter_invert<L%d>(idx, scratch);\n}\n", p->number);
    kernel_each(p, true, c.outer * c.rows * line);
    put_scatter_params(p, &c, "src", "", "out");
    sb_printf(p->sb, "    scatter_sum<L%d>(src, out, scratch);\n}\n",
              p->number);
}

static void print_argmax(LibPrint *p) {
    CpuArgmax c;
    memcpy(&c, p->s->pars, sizeof c);
    bool warp = c.inner == 1 && c.axis >= ARGMAX_WARP;
    if (c.outer * c.inner == 0 || c.axis <= 0) return;
    begin(p, "argmax");
    put_shape(p, c.dtype, (int64_t[]){c.outer, c.axis, c.inner}, 3, NULL);
    end_comment(p);
    put_type(p, "T", c.dtype);
    put_number(p, "outer", c.outer);
    put_number(p, "axis", c.axis);
    put_number(p, "inner", c.inner);
    kernel_each(p, false, c.outer * c.inner * (warp ? ARGMAX_WARP : 1));
    sb_printf(p->sb,
              "const %s *x, long long *out)\n{\n    argmax%s<L%d>(x, out);\n"
              "}\n",
              type_name(c.dtype), warp ? "_warp" : "", p->number);
    p->out->weight = 2;
}

/* ---- all ----------------------------------------------------------------- */

void print_cuda_lib(const LoweredStep *s, int number, StrBuf *sb,
                    CudaLib *out) {
    LibPrint p = {sb, s, number, out};
    memset(out, 0, sizeof *out);
    out->weight = 4;
    switch (s->lib) {
    case PLAN_LIB_GEMM: print_gemm(&p); break;
    case PLAN_LIB_CONV_FWD:
    case PLAN_LIB_CONV_DGRAD:
    case PLAN_LIB_CONV_WGRAD: print_conv(&p); break;
    case PLAN_LIB_SCATTER_ADD: print_scatter(&p); break;
    case PLAN_LIB_ARGMAX: print_argmax(&p); break;
    case PLAN_LIB_COPY:
    case PLAN_NLIB: ASSERT(0); break;
    default: print_pool(&p);
    }
}
