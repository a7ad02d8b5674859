/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_lib.c: library steps as instances of the templates in runtime/cuda.

   Each step becomes a struct of literals and one or two kernels:
     struct L3 { ... };
     extern "C" __global__ void l3(...) { conv_fwd<L3>(...); }
   Struct, parameters and the template's name follow from the routine's row in
   lib.def; the members added here (tiles, slices, grids) depend on shapes and
   dtypes only.                                                              */
#include "codegen/cuda/cuda_lib.h"
#include "codegen/embed.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- what units include -------------------------------------------------- */

void print_cuda_head(StrBuf *sb) {
    static const char *const files[] = {
        "kmath.h",   "fold.cuh",        "device.cuh",    "ptx.cuh",
        "conv.cuh",  "conv_window.cuh", "conv_sums.cuh", "gemm.cuh",
        "pool.cuh",  "index.cuh",       "sort.cuh",      "attend.cuh",
        "flash.cuh", "flash_grad.cuh",  "quantized.cuh", "boxes.cuh",
        "turn.cuh",  "blocks.cuh"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        sb_printf(sb, "#include \"%s\"\n", files[i]);
}

/* Adds the files of runtime/cuda, kmath*.h, blocks.h and quantized.h that
   `text` includes, and their own includes. */
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
                           !strncmp(f->name, "runtime/cpu/kmath", 17) ||
                           !strcmp(f->name, "runtime/program/blocks.h") ||
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

CudaHeaders cuda_headers(Arena *a, const char *text) {
    CudaHeaders h = {0};
    add_includes(a, text, &h);
    return h;
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
    cl_begin(p, NULL, 0);
    cl_put_number(p, "near", near);
    cl_kernel_each(p, false, results / near);
    cl_put_body(p, "", "", "");
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

/* Percentage of the peak of mma.sync, which is 613 TFLOP/s on an H100.  A step
   of flash.cuh issues 5 to 8 other instructions for each tensor-core
   instruction (counted in SASS for sm_90), and overlaps them as well as
   FlashAttention-2. FlashAttention-3's paper gives for FlashAttention-2 with
   64 features and 1,024 tokens 306 TFLOP/s forward and 238 backward; causal
   attention reaches 0.74 times as much (reported for 128 features). 1.05
   times as much is expected here, since the panels have no bank conflicts. */
static double flash_rate(bool grad, bool causal) {
    return grad ? causal ? 30.2 : 40.8 : causal ? 39.2 : 52.5;
}

/* True if flash.cuh supports the case, in blocks of those numbers. */
static bool runs_flash(const LibAttend *c, bool grad, int64_t blocks) {
    const int64_t most = 1 << 30;
    return dtype_is_low((DType)c->q_dtype) && c->k_dtype == c->q_dtype &&
           c->v_dtype == c->q_dtype && (!grad || c->y_dtype == c->q_dtype) &&
           c->d <= FLASH_MOST && c->e <= FLASH_MOST && c->t < most &&
           c->u < most && blocks < most;
}

/* A thread for each row, or tensor cores; those have more operands. */
static void put_attend(LibPrint *p, const LibAttend *c, bool flash,
                       int64_t rows, int64_t blocks, const char *more,
                       const char *last) {
    const bool grad = p->s->lib == PLAN_LIB_ATTEND_GRAD;
    if (flash) cl_put_number(p, "plain", is_plain(c));
    if (flash)
        cl_kernel(p, false, FLASH_THREADS, blocks);
    else
        cl_kernel_each(p, false, rows);
    cl_put_body(p, flash ? "_flash" : "", more, last);
    p->out->work.rate = flash ? flash_rate(grad, c->causal) : 1;
    p->out->weight = flash ? 20 : 3;
}

static bool is_narrow(const LibAttend *c) {
    return c->d <= FLASH_NARROW && c->e <= FLASH_NARROW;
}

static void print_attend(LibPrint *p, const LibAttend *c) {
    /* a warp takes twice the rows if registers suffice */
    int64_t tall = is_narrow(c) && is_plain(c) ? 2 : 1, rows = c->batch * c->t;
    int64_t blocks = c->batch * up_div(c->t, FLASH_WARPS * 16 * tall);
    if (rows == 0) return;
    cl_begin(p, NULL, 0);
    cl_put_number(p, "tall", tall);
    put_attend(p, c, runs_flash(c, false, blocks), rows, blocks, "", "");
}

/* Bytes of lines of 16-bit values (Panel of flash.cuh). */
static int64_t panel_bytes(int64_t lines, int64_t columns) {
    return lines * (2 * columns + 16);
}

/* FlashGrad::Shared of flash_grad.cuh; own: keys of a warp, queries of a step.
 */
static int64_t grad_bytes(const LibAttend *c, int64_t own) {
    int64_t d = up_div(c->d, 16) * 16, e = up_div(c->e, 16) * 16;
    int64_t keys = FLASH_WARPS * own;
    int64_t step = panel_bytes(own, d) + panel_bytes(own, e) +
                   3 * own * (int64_t)sizeof(float);
    return (c->trans_b ? panel_bytes(keys, d) : panel_bytes(d, keys)) +
           panel_bytes(keys, e) + panel_bytes(keys, own) + 2 * step;
}

/* FlashGrad::all_sums. */
static int64_t column_bytes(const LibAttend *c) {
    int64_t d = up_div(c->d, 16) * 16, e = up_div(c->e, 16) * 16;
    return (8 * FLASH_THREADS + FLASH_WARPS * (d + e)) * (int64_t)sizeof(float);
}

/* Blocks that share the keys of each of `matrices` (flash_grad.cuh): one,
   unless those are too few, or their sums of dq, `bytes` each, too large. */
static int64_t grad_slices(int64_t matrices, int64_t blocks, int64_t bytes) {
    int64_t n = matrices > 0 ? up_div(GPU_BLOCKS, matrices) : 1;
    if (bytes > 0 && n > GRAD_SUMS_MAX / bytes) n = GRAD_SUMS_MAX / bytes;
    if (n > blocks) n = blocks;
    return n > 0 ? n : 1;
}

/* Sums of columns of a packed gradient by a kernel behind it. */
static void put_attend_columns(LibPrint *p, const LibAttend *c) {
    cl_kernel_each(p, true,
                   c->q_heads ? c->batch / c->q_heads * c->q_width * c->d : 0);
    cl_put_operands(p, "");
    sb_printf(p->sb, "    attend_grad_columns<L%d>(dq, sums);\n}\n", p->number);
}

static void print_attend_grad(LibPrint *p, const LibAttend *c) {
    int64_t matrices = c->group ? c->batch / c->group : 0; /* of keys */
    /* a mask and dropout take the registers of a second 16 keys */
    bool asked = c->packed == 2; /* for sums of columns */
    int64_t beside = asked ? column_bytes(c) : 0;
    bool second =
        is_narrow(c) && (is_plain(c) || !c->drop) &&
        grad_bytes(c, FLASH_GRAD_NARROW) + beside <= p->s->block_shared;
    int64_t own = second ? FLASH_GRAD_NARROW : FLASH_GRAD_WIDE;
    int64_t blocks = up_div(c->u, FLASH_WARPS * own), steps = up_div(c->t, own);
    int64_t rows = c->batch * c->t + matrices * c->u;
    int64_t sums = c->batch * steps * FLASH_GRAD_SUMS * FLASH_THREADS *
                   (int64_t)sizeof(float);
    int64_t slices = asked ? 1 : grad_slices(matrices, blocks, sums);
    bool flash = runs_flash(c, true, slices * c->batch * steps);
    bool grows = flash && blocks > 1 && sums > 0;
    bool adds = asked && flash && c->group == 1 && c->trans_b;
    if (rows == 0) return;
    cl_begin(p, NULL, 0);
    cl_put_number(p, "tall", 1);
    cl_put_number(p, "slices", slices);
    cl_put_number(p, "own", own);
    cl_put_number(p, "adds", adds);
    cl_put_number(p, "shared", grad_bytes(c, own));
    put_attend(p, c, flash, rows, matrices * slices,
               grows ? ", float *partial" : "",
               grows   ? ", partial"
               : flash ? ", nullptr"
                       : "");
    if (flash) p->out->first.shared = (uint32_t)grad_bytes(c, own);
    if (adds) p->out->first.shared += (uint32_t)beside;
    if (asked && !adds) put_attend_columns(p, c);
    if (!grows) return;
    p->out->scratch = (uint64_t)(slices * sums);
    /* Sums are written and read again for all blocks of keys, or for all but
       the last; half of the blocks have keys of a causal query. */
    double times = (double)(slices > 1 ? 2 * blocks : 2 * (blocks - 1));
    if (c->causal) times = slices > 1 ? (double)blocks + 1 : times / 2;
    p->out->work.bytes = (double)sums * times;
    if (slices == 1) return;
    cl_kernel(p, true, FLASH_THREADS, c->batch * steps);
    cl_put_operands(p, ", float *partial");
    sb_printf(p->sb, "    attend_grad_flash_sum<L%d>(dq, partial);\n}\n",
              p->number);
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
    cl_begin(p,
             (Shape[]){{c->src_dtype, {c->outer, c->nidx, c->inner}, 3, NULL},
                       {c->idx_dtype, {c->nidx}, 1, NULL},
                       {c->out_dtype, {c->outer, c->rows, c->inner}, 3, NULL}},
             3);
    cl_put_number(p, "range", range);
    cl_put_number(p, "line", line);
    cl_put_number(p, "near", near);
    sb_printf(p->sb,
              "    static constexpr int threads = %d;\n"
              "    static constexpr bool idx_signed = %s;\n",
              threads,
              dtype_info[c->idx_dtype].kind == DK_U ? "false" : "true");
    p->out->scratch = (uint64_t)(2 * c->nidx + c->rows + 1) * sizeof(int32_t);
    p->out->weight = 6;
    cl_kernel(p, false, threads, up_div(c->rows, range));
    cl_put_operands(p, ", int *scratch");
    sb_printf(p->sb, "    scatter_invert<L%d>(idx, scratch);\n}\n", p->number);
    cl_kernel_each(p, true, c->outer * c->rows * line);
    cl_put_operands(p, ", int *scratch");
    sb_printf(p->sb, "    scatter_sum<L%d>(src, out, scratch);\n}\n",
              p->number);
}

static void print_argmax(LibPrint *p, const LibArgmax *c) {
    bool warp = c->inner == 1 && c->axis >= ARGMAX_WARP;
    if (c->outer * c->inner == 0 || c->axis <= 0) return;
    cl_begin(p, &(Shape){c->dtype, {c->outer, c->axis, c->inner}, 3, NULL}, 1);
    cl_kernel_each(p, false, c->outer * c->inner * (warp ? ARGMAX_WARP : 1));
    cl_put_body(p, warp ? "_warp" : "", "", "");
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
    cl_put_number(p, "parts", parts);
    cl_kernel(p, false, SORT_THREADS, c->rows * parts);
    cl_put_operands(p, ", int *scratch");
    sb_printf(p->sb, "    argsort_parts<L%d>(x, scratch);\n}\n", p->number);
    cl_kernel_each(p, true, c->rows * parts * most);
    cl_put_operands(p, ", int *scratch");
    sb_printf(p->sb, "    argsort_merge<L%d>(out, scratch);\n}\n", p->number);
}

static void print_argsort(LibPrint *p, const LibArgsort *c) {
    if (c->rows * c->k == 0) return;
    cl_begin(p, &(Shape){c->dtype, {c->rows, c->n}, 2, NULL}, 1);
    if (c->n <= SORT_SHORT) {
        cl_kernel_each(p, false, c->rows * c->n);
        cl_put_body(p, "", "", "");
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
    cl_kernel(p, false, SORT_THREADS, blocks);
    cl_put_body(p, "_long", ", int *scratch", ", scratch");
}

static void print_suppress(LibPrint *p, const LibSuppress *c) {
    if (c->rows * c->n == 0) return;
    cl_begin(p, &(Shape){c->dtype, {c->rows, c->n, 4}, 3, NULL}, 1);
    cl_kernel(p, false, SUPPRESS_THREADS,
              c->rows < GPU_BLOCKS ? c->rows : GPU_BLOCKS);
    cl_put_body(p, "", "", "");
    p->out->weight = 16;
}

/* ---- all ----------------------------------------------------------------- */

/* One thread computes each result. */
static void print_each(LibPrint *p, int64_t results) {
    if (results == 0) return;
    cl_begin(p, NULL, 0);
    cl_kernel_each(p, false, results);
    cl_put_body(p, "", "", "");
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

void print_cuda_lib(const LoweredStep *s, int number, bool guarded, StrBuf *sb,
                    CudaLib *out) {
    LibPrint print = {sb, s, lib_info(s->lib), number, out, guarded};
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
