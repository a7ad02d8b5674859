/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_test.c: the loops of kernels by target, one line per kernel. */
#include "passes/device/fold.h"
#include "codegen/kernel/schedule.h"
#include "ir/text/text.h"
#include "tests/harness.h"

#include <stdio.h>
#include <string.h>

/* The kernel of a graph with one group. */
static const LoweredStep *step_of(Arena *a, const char *text,
                                  TargetKind target) {
    Diag d = {0};
    Module *m;
    LoweredStep *s;
    if (parse_module(a, &d, "t.amp", text, strlen(text), &m) != OK ||
        verify_module(m, STAGE_FUSED, &d) != OK ||
        lower_graph(m->graphs.data[0],
                    kernel_set_new(a, target, GPU_BLOCK_SHARED), &d, &s) != OK)
        FAIL("%s", d.text.data);
    sb_free(&d.text);
    return s;
}

static const Kernel *kernel_of(Arena *a, const char *text, TargetKind target) {
    const LoweredStep *s = step_of(a, text, target);
    return s->epilogue ? s->epilogue : s->kernel;
}

static void check_loops(const char *text, TargetKind target, const char *want) {
    Arena *a = arena_new();
    FactList loops = fact_series(false, ",", ", ");
    StrBuf sb = {0};
    kernel_loops(kernel_of(a, text, target), &loops);
    fact_list_put(&loops, &sb);
    CHECK_STR(sb.data, want);
    sb_free(&sb);
    arena_free(a);
}

static void check_both(const char *text, const char *cpu, const char *cuda) {
    check_loops(text, TARGET_CPU, cpu);
    check_loops(text, TARGET_CUDA, cuda);
}

/* A thread has a vector of 16 bytes; less if the text would become long. */
TEST_CASE(schedule, flat) {
    check_both("graph g(%x: bf16[64,100]) {\n"
               "  group point { %y = neg %x }\n"
               "  return %y\n}\n",
               "thread columns by 1024, vector i0",
               "block columns by 2048, thread columns < 2048 by 8, "
               "unrolled columns < 8");
    /* 16 bytes of the narrowest operand, at most 32 of the widest */
    check_loops("graph g(%x: bf16[64,100]) {\n"
                "  group point { %y = cast %x : f32[64,100] }\n"
                "  return %y\n}\n",
                TARGET_CUDA,
                "block columns by 2048, thread columns < 2048 by 8, "
                "unrolled columns < 8");
    check_loops("graph g(%x: bf16[64,100]) {\n"
                "  group point { %y = cast %x : f64[64,100] }\n"
                "  return %y\n}\n",
                TARGET_CUDA,
                "block columns by 1024, thread columns < 1024 by 4, "
                "unrolled columns < 4");
    check_both("graph g(%x: f32[64,100]) {\n"
               "  group point { %y = sin %x }\n"
               "  return %y\n}\n",
               "thread columns by 1024, vector i0",
               "block columns by 256, thread columns < 256, "
               "unrolled columns < 1");
}

TEST_CASE(schedule, columns) {
    check_both("graph g(%x: f32[64,100], %b: f32[100]) {\n"
               "  group point { %y = add %x, %b }\n"
               "  return %y\n}\n",
               "thread rows < 64, vector i1 < 100",
               "block elements < 6400 by 1024, thread elements < 1024 by 4, "
               "unrolled i1 < 4");
    check_both("graph g(%x: f32[2,9000], %b: f32[9000]) {\n"
               "  group point { %y = add %x, %b }\n"
               "  return %y\n}\n",
               "thread rows < 2, thread i1 < 9000 by 4096, vector i1 < 9000",
               "block elements < 18000 by 1024, thread elements < 1024 by 4, "
               "unrolled i1 < 4");
}

/* On a CPU in tiles, so that each cache line is read once although 300 other
   lines come between. */
TEST_CASE(schedule, turned) {
    check_both("graph g(%x: f32[300,40]) {\n"
               "  group point {\n"
               "    %t = transpose %x {perm=[1,0]} : f32[40,300]\n"
               "    %y = exp %t }\n"
               "  return %y\n}\n",
               "thread rows < 1, thread i0 < 40 by 16, thread i1 < 300 by 128, "
               "serial i0 < 40, vector i1 < 300",
               "block elements < 12000 by 256, thread elements < 256");
    /* rows are short: their lines are still in the cache for the next row */
    check_loops("graph g(%x: f32[100,40]) {\n"
                "  group point {\n"
                "    %t = transpose %x {perm=[1,0]} : f32[40,100]\n"
                "    %y = exp %t }\n"
                "  return %y\n}\n",
                TARGET_CPU, "thread rows < 40, vector i1 < 100");
}

TEST_CASE(schedule, reductions_along_rows) {
    check_both("graph g(%x: f32[400,300]) {\n"
               "  group row { %y = reduce_sum %x {axes=[1], keepdims=1} }\n"
               "  return %y\n}\n",
               "thread rows < 400, lanes i1 < 300 by 1024, vector i1 < 300",
               "block rows < 400 by 8, thread rows < 8, "
               "lanes columns < 300 by 32, unrolled i1 < 4");
    check_both("graph g(%x: f32[400,5000]) {\n"
               "  group row { %y = reduce_sum %x {axes=[1], keepdims=1} }\n"
               "  return %y\n}\n",
               "thread rows < 400, lanes i1 < 5000 by 1024, vector i1 < 5000",
               "block rows < 400, lanes columns < 5000 by 512, "
               "unrolled i1 < 4");
}

/* Neighbouring rows together; long sums in runs of 128. */
TEST_CASE(schedule, reductions_along_columns) {
    check_both("graph g(%x: f32[300,64]) {\n"
               "  group row { %y = reduce_sum %x {axes=[0], keepdims=1} }\n"
               "  return %y\n}\n",
               "thread rows < 1, thread i1 < 64 by 16, lanes i0 < 300 by 128, "
               "serial i0 < 300, vector i1 < 16",
               "block rows < 1, block i1 < 64 by 32, thread i1 < 32, "
               "lanes columns < 300 by 32");
    check_loops("graph g(%x: f32[300,8]) {\n"
                "  group row { %y = reduce_sum %x {axes=[0], keepdims=1} }\n"
                "  return %y\n}\n",
                TARGET_CPU,
                "thread rows < 1, thread i1 < 8 by 8, lanes i0 < 300 by 128, "
                "serial i0 < 300, vector i1 < 8");
    check_loops("graph g(%x: bf16[264,300,256]) {\n"
                "  group row { %y = reduce_sum %x {axes=[1], keepdims=1} }\n"
                "  return %y\n}\n",
                TARGET_CUDA,
                "block rows < 264, block i2 < 256 by 256, "
                "thread i2 < 256 by 8, lanes columns < 300 by 8, "
                "unrolled i2 < 8");
}

/* .. but not if neighbouring rows are far apart in memory: these are 600
   elements long. */
TEST_CASE(schedule, rows_without_neighbours) {
    check_loops("graph g(%x: f32[64,300,2], %a: f32[300,2], %b: f32[300,2]) {\n"
                "  group row {\n"
                "    %m = mul %x, %a   %n = mul %m, %b\n"
                "    %y = reduce_sum %n {axes=[1], keepdims=1} }\n"
                "  return %y\n}\n",
                TARGET_CPU,
                "thread rows < 128, lanes i1 < 300 by 1024, vector i1 < 300");
}

/* On a GPU a tile passes on as many neighbours as fit 16 bytes and divide
   the row's length. */
TEST_CASE(schedule, epilogues) {
    check_both("graph g(%x: f32[8,16], %w: f32[16,32], %b: f32[32]) {\n"
               "  group anchor { %h = matmul %x, %w   %y = add %h, %b }\n"
               "  return %y\n}\n",
               "serial rows < 8, vector i1 < 32", "unrolled i1 < 4");
    check_loops("graph g(%x: bf16[2,8,12,16], %w: bf16[8,8,3,3], "
                "%b: bf16[2,8,12,16]) {\n"
                "  group anchor { %h = conv %x, %w {dilations=[1,1], group=1, "
                "pads=[1,1,1,1], strides=[1,1]}   %y = add %h, %b }\n"
                "  return %y\n}\n",
                TARGET_CUDA, "unrolled i1 < 8");
    check_loops("graph g(%x: f32[8,16], %w: f32[16,30], %b: f32[30]) {\n"
                "  group anchor { %h = matmul %x, %w   %y = add %h, %b }\n"
                "  return %y\n}\n",
                TARGET_CUDA, "unrolled i1 < 2");
}

/* ---- threads ------------------------------------------------------------- */

/* A thread's task moves about the same number of bytes in every form: 12 us
   at some GB/s. */
TEST_CASE(schedule, tasks_are_worth_a_hand_over) {
    static const struct {
        const char *what, *text;
        double bytes;
    } cases[] = {
        {"flat",
         "graph g(%x: f32[4096,1024]) {\n  group point { %y = neg %x }\n"
         "  return %y\n}\n",
         8. * 4096 * 1024},
        {"cols",
         "graph g(%x: f32[4096,1024], %b: f32[1024]) {\n"
         "  group point { %y = add %x, %b }\n  return %y\n}\n",
         8. * 4096 * 1024},
        {"long cols",
         "graph g(%x: f32[8,524288], %b: f32[524288]) {\n"
         "  group point { %y = add %x, %b }\n  return %y\n}\n",
         8. * 8 * 524288},
        {"tiles of dim 0",
         "graph g(%x: f32[4096,1024]) {\n  group point {\n"
         "    %t = transpose %x {perm=[1,0]} : f32[1024,4096]\n"
         "    %y = neg %t }\n  return %y\n}\n",
         8. * 4096 * 1024},
        {"tiles of dim 1",
         "graph g(%x: f32[16,1024,256]) {\n  group point {\n"
         "    %t = transpose %x {perm=[0,2,1]} : f32[16,256,1024]\n"
         "    %y = neg %t }\n  return %y\n}\n",
         8. * 4096 * 1024},
        {"folds along rows",
         "graph g(%x: f32[8192,512]) {\n  group row {\n"
         "    %y = reduce_sum %x {axes=[1], keepdims=1} }\n  return %y\n}\n",
         4. * 4096 * 1024},
        {"folds along columns",
         "graph g(%x: f32[64,64,1024]) {\n  group row {\n"
         "    %y = reduce_sum %x {axes=[1], keepdims=1} }\n  return %y\n}\n",
         4. * 4096 * 1024},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        const LoweredStep *s = step_of(a, cases[i].text, TARGET_CPU);
        double each = cases[i].bytes / (double)s->units * (double)s->grain;
        CHECK_MSG(each > 32 << 10 && each < 128 << 10, "%s: %g bytes",
                  cases[i].what, each);
        arena_free(a);
    }
}

/* Blocks of neighbouring rows are whole vectors at any level, and with
   enough rows several threads get some. */
TEST_CASE(schedule, rows_for_many_threads) {
    for (int rows = 8; rows <= 4096; rows += rows < 40 ? 1 : rows / 8) {
        Arena *a = arena_new();
        char text[200];
        snprintf(text, sizeof text,
                 "graph g(%%x: f32[300,%d]) {\n  group row {\n"
                 "    %%y = reduce_sum %%x {axes=[0], keepdims=1} }\n"
                 "  return %%y\n}\n",
                 rows);
        const LoweredStep *s = step_of(a, text, TARGET_CPU);
        int64_t block = kernel_loop(s->kernel, LOOP_VECTOR, 1)->extent;
        CHECK_MSG(rows < 16 ? block == rows : block % 16 == 0, "%d: %d", rows,
                  (int)block);
        int least = rows >= 256 ? 8 : rows >= 64 ? 3 : 1;
        CHECK_MSG(s->units >= least, "%d rows: %d units", rows, (int)s->units);
        CHECK_EQ_INT(s->units, (rows + block - 1) / block);
        arena_free(a);
    }
}

/* Expensive values are kept for the row, on the stack, unless there are too
   many columns or values. */
TEST_CASE(schedule, kept_values_fit_the_stack) {
    enum { STACK = 64 << 10 };
    for (int cols = 4096; cols <= 4097; cols++)
        for (int n = 1; n <= 8; n++) {
            Arena *a = arena_new();
            StrBuf sb = {0};
            int kept = 0;
            sb_printf(&sb,
                      "graph g(%%x: f32[64,%d]) {\n  group row {\n"
                      "    %%m0 = mul %%x, %%x\n",
                      cols);
            for (int i = 0; i < n; i++)
                sb_printf(&sb,
                          "    %%k%d = mul %%x, %d\n    %%e%d = exp %%k%d\n"
                          "    %%m%d = add %%m%d, %%e%d\n",
                          i, i + 2, i, i, i + 1, i, i);
            sb_printf(&sb,
                      "    %%s = reduce_sum %%m%d {axes=[1], keepdims=1}\n"
                      "    %%d0 = div %%x, %%s\n",
                      n);
            for (int i = 0; i < n; i++)
                sb_printf(&sb, "    %%d%d = mul %%d%d, %%e%d\n", i + 1, i, i);
            sb_printf(&sb, "  }\n  return %%d%d\n}\n", n);
            const Kernel *k = kernel_of(a, sb.data, TARGET_CPU);
            for (int id = 1; id < k->insts.len; id++)
                kept += kinst_at(k, id)->keep == KEEP_ROW;
            CHECK_MSG(kept * 4 * cols <= STACK, "%d of %d", kept, n);
            CHECK_EQ_INT(kept > 0, cols == 4096);
            CHECK(cols > 4096 || n > 4 || kept == n);
            sb_free(&sb);
            arena_free(a);
        }
}

/* ---- shared memory ------------------------------------------------------- */

enum {
    BLOCK_SHARED = 99 << 10
}; /* shared memory of sm_86, the smallest of all */

/* A row that several sweeps read stays in shared memory if both folds fit
   beside it: 8 bytes for each of up to 32 warps. */
TEST_CASE(schedule, rows_leave_room_for_folds) {
    int inside = 0, outside = 0;
    for (int cols = 50000; cols <= 51000; cols += 40) {
        Arena *a = arena_new();
        char text[400];
        snprintf(text, sizeof text,
                 "graph g(%%x: bf16[300,%d]) {\n  group row {\n"
                 "    %%m = reduce_max %%x {axes=[1], keepdims=1}\n"
                 "    %%d = sub %%x, %%m\n    %%e = exp %%d\n"
                 "    %%s = reduce_sum %%e {axes=[1], keepdims=1}\n"
                 "    %%y = div %%e, %%s\n  }\n  return %%y\n}\n",
                 cols);
        int64_t bytes = cuda_shared(kernel_of(a, text, TARGET_CUDA), 0);
        CHECK_MSG(bytes == 0 || bytes + 2 * 32 * 8 <= BLOCK_SHARED,
                  "%d columns", cols);
        inside += bytes >= 2 * cols;
        outside += bytes == 0;
        arena_free(a);
    }
    CHECK(inside && outside);
}

/* Each team of a block has its own sums of columns. */
TEST_CASE(schedule, teams_have_room_for_their_sums) {
    enum { COLS = 1024 };
    for (int sums = 1; sums <= 6; sums++) {
        Arena *a = arena_new();
        StrBuf sb = {0};
        sb_printf(&sb,
                  "graph g(%%x: f32[6000,%d]) {\n  group row {\n"
                  "    %%s = reduce_sum %%x {axes=[1], keepdims=1}\n"
                  "    %%m0 = mul %%x, %%s\n",
                  COLS);
        for (int i = 0; i < sums; i++)
            sb_printf(&sb,
                      "    %%c%d = reduce_sum %%m%d {axes=[0], keepdims=1}\n"
                      "    %%m%d = mul %%m%d, %%s\n",
                      i, i, i + 1, i);
        sb_printf(&sb, "  }\n  return %%m%d", sums);
        for (int i = 0; i < sums; i++) sb_printf(&sb, ", %%c%d", i);
        sb_puts(&sb, "\n}\n");
        const Kernel *k = kernel_of(a, sb.data, TARGET_CUDA);
        CHECK_EQ_INT(kernel_column_sums(k), sums);
        int64_t teams = kernel_loop(k, LOOP_THREAD, LOOP_ROWS)->extent;
        CHECK(teams * sums * 4 * COLS <= BLOCK_SHARED);
        CHECK(teams == 8 || 2 * teams * sums * 4 * COLS > 96 << 10);
        sb_free(&sb);
        arena_free(a);
    }
}

/* ---- blocks of a GPU ----------------------------------------------------- */

enum { GPU_WARP = 32, GPU_MOST = 1024, GPU_VECTOR = 16, GPU_SMS = 132 };

/* How a kernel is divided over a grid. */
typedef struct GpuShape {
    int64_t blocks, threads; /* of a block                                   */
    int64_t lanes,
        row;  /* threads that share a row; elements of the row per thread */
    int pack; /* neighbours per thread */
} GpuShape;

static GpuShape gpu_shape(const Kernel *k) {
    GpuShape g = {1, 1, 1, 1, 1};
    int64_t cols = 1;
    for (const KLoop *l = k->loop; l < k->loop + k->nloop; l++) {
        int64_t times = l->extent ? (l->extent + l->step - 1) / l->step
                                  : INT32_MAX; /* as many as it takes */
        if (l->kind == LOOP_BLOCK) g.blocks *= times;
        if (l->kind == LOOP_THREAD) g.threads *= times;
        if (l->kind == LOOP_UNROLLED) g.pack *= (int)l->extent;
        if (l->kind == LOOP_LANES) g.lanes = l->step, cols = l->extent;
    }
    g.threads *= g.lanes;
    g.row = (cols + g.lanes - 1) / g.lanes;
    return g;
}

static GpuShape gpu_shape_of(const char *text) {
    Arena *a = arena_new();
    GpuShape g = gpu_shape(kernel_of(a, text, TARGET_CUDA));
    arena_free(a);
    return g;
}

/* Whole warps, a legal number of threads per block, every element covered,
   and at most two vectors of any operand per thread. */
static void check_gpu_shape(const GpuShape *g, int64_t elements, int widest,
                            const char *what) {
    CHECK_MSG(g->threads % GPU_WARP == 0 && g->threads <= GPU_MOST,
              "%s: %lld threads", what, (long long)g->threads);
    CHECK_MSG(g->blocks * g->threads * g->pack * g->row >= elements,
              "%s: too few threads", what);
    CHECK_MSG(g->pack * widest <= 2 * GPU_VECTOR, "%s: %d neighbours", what,
              g->pack);
}

/* Softmax of rows x cols numbers. */
static GpuShape softmax_shape(int rows, int cols, const char *dtype) {
    char text[600];
    snprintf(text, sizeof text,
             "graph g(%%x: %s[%d,%d]) {\n  group row {\n"
             "    %%m = reduce_max %%x {axes=[1], keepdims=1}\n"
             "    %%d = sub %%x, %%m\n    %%e = exp %%d\n"
             "    %%s = reduce_sum %%e {axes=[1], keepdims=1}\n"
             "    %%y = div %%e, %%s\n  }\n  return %%y\n}\n",
             dtype, rows, cols);
    return gpu_shape_of(text);
}

/* Up to 1,024 columns a row belongs to one warp or less: its folds need no
   barrier. Lanes are idle only if no lane has two vectors; a block is full
   if there are enough rows; the machine is full as long as there is work to
   share. */
TEST_CASE(schedule, rows_fill_warps_blocks_and_the_machine) {
    static const int columns[] = {
        1,    2,    7,    8,    12,   31,   32,   33,   48,   64,
        100,  127,  128,  250,  256,  384,  511,  512,  768,  999,
        1000, 1023, 1024, 1025, 2048, 4095, 4096, 6000, 16384};
    static const int rows[] = {1, 3, 32, 200, 2000, 70000};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        for (size_t j = 0; j < sizeof rows / sizeof *rows; j++)
            for (int half = 0; half < 2; half++) {
                int cols = columns[i], size = half ? 2 : 4;
                GpuShape g =
                    softmax_shape(rows[j], cols, half ? "bf16" : "f32");
                char what[80];
                snprintf(what, sizeof what, "%d x %d, %d bytes", rows[j], cols,
                         size);
                check_gpu_shape(&g, (int64_t)rows[j] * cols, 4, what);
                CHECK_MSG((g.lanes <= GPU_WARP) == (cols <= 1024),
                          "%s: %lld lanes", what, (long long)g.lanes);
                CHECK_MSG(g.lanes == 1 || g.lanes * g.pack < 2 * cols,
                          "%s: idle lanes", what);
                CHECK_MSG(g.pack == 1 || cols % g.pack == 0 ||
                              g.lanes * g.pack >= GPU_WARP,
                          "%s: cut vectors", what);
                int64_t all = (int64_t)rows[j] * g.lanes;
                if (cols <= 1024 && all >= 256)
                    CHECK_MSG(g.threads == 256, "%s: %lld threads", what,
                              (long long)g.threads);
                /* rows are shared among more threads if threads would be
                   fewer than the SMs can hold; with about eight numbers each
                   if they would be more */
                int64_t vectors = cols % g.pack ? cols : cols / g.pack;
                int64_t could = vectors < GPU_WARP ? vectors : GPU_WARP;
                if (cols <= 1024 && all < 2 * GPU_SMS * 256)
                    CHECK_MSG(2 * g.lanes > could, "%s: %lld of %lld lanes",
                              what, (long long)g.lanes, (long long)could);
                else if (cols <= 1024)
                    CHECK_MSG(g.lanes == 1 || g.lanes == GPU_WARP ||
                                  (g.row >= 4 && g.row <= 9),
                              "%s: %lld numbers", what, (long long)g.row);
            }
}

/* The most neighbours, a power of two, that fit 16 bytes of the narrowest
   and 32 of the widest operand, that leave a quarter of a thread's 255
   registers for vectors, and for which long functions are repeated at most
   24 times. */
static int most_neighbours(int narrowest, int widest, int bytes,
                           int functions) {
    int n = GPU_VECTOR / narrowest;
    while (n > 1 && (n * widest > 2 * GPU_VECTOR || n * bytes > 4 * 64 ||
                     n * functions > 24))
        n /= 2;
    return n;
}

/* A chain over `operands` tensors of dtype x and one of y, `functions` long. */
static void chain_text(StrBuf *sb, const char *x, const char *y, int operands,
                       int functions, const char *shape, const char *more) {
    sb_printf(sb, "graph g(%%x0: %s[%s]", y, shape);
    for (int i = 1; i <= operands; i++)
        sb_printf(sb, ", %%x%d: %s[%s]", i, x, shape);
    sb_printf(sb, "%s) {\n  group point {\n    %%v0 = cast %%x0 : f32[%s]\n",
              more, shape);
    int v = 0;
    for (int i = 1; i <= operands; i++, v++)
        sb_printf(sb,
                  "    %%w%d = cast %%x%d : f32[%s]\n"
                  "    %%v%d = add %%v%d, %%w%d\n",
                  i, i, shape, v + 1, v, i);
    for (int i = 0; i < functions; i++, v++)
        sb_printf(sb, "    %%v%d = exp %%v%d\n", v + 1, v);
    if (*more) {
        sb_printf(sb, "    %%v%d = add %%v%d, %%b\n", v + 1, v);
        v++;
    }
    sb_printf(sb, "  }\n  return %%v%d\n}\n", v);
}

TEST_CASE(schedule, neighbours_of_a_thread) {
    static const struct {
        const char *name;
        int bytes;
    } dtypes[] = {{"i8", 1}, {"bf16", 2}, {"f32", 4}, {"f64", 8}};
    int seen = 0; /* bits: the possible numbers of neighbours */
    for (int x = 0; x < 4; x++)
        for (int y = 0; y < 4; y++)
            for (int operands = 1; operands <= 17; operands += 4)
                for (int functions = 0; functions <= 24; functions += 3) {
                    StrBuf sb = {0};
                    int a = dtypes[x].bytes, b = dtypes[y].bytes;
                    int narrowest = a < b ? a : b, widest = a > b ? a : b;
                    chain_text(&sb, dtypes[x].name, dtypes[y].name, operands,
                               functions, "8000", "");
                    GpuShape g = gpu_shape_of(sb.data);
                    int want = most_neighbours(narrowest < 4 ? narrowest : 4,
                                               widest > 4 ? widest : 4,
                                               operands * a + b + 4, functions);
                    check_gpu_shape(&g, 8000, widest, sb.data);
                    CHECK_MSG(g.pack == want, "%d, not %d:\n%s", g.pack, want,
                              sb.data);
                    CHECK_EQ_INT(g.threads, 256);
                    seen |= g.pack;
                    sb_free(&sb);
                }
    CHECK_EQ_INT(seen, 1 | 2 | 4 | 8);
}

/* With a row of numbers, vectors end where the row ends. */
TEST_CASE(schedule, neighbours_end_with_their_row) {
    for (int cols = 2; cols <= 40; cols++) {
        StrBuf sb = {0};
        char shape[40], more[40];
        snprintf(shape, sizeof shape, "64,%d", cols);
        snprintf(more, sizeof more, ", %%b: f32[%d]", cols);
        chain_text(&sb, "f32", "f32", 1, 0, shape, more);
        GpuShape g = gpu_shape_of(sb.data);
        CHECK_MSG(g.pack == (cols % 4 ? cols % 2 ? 1 : 2 : 4), "%d columns: %d",
                  cols, g.pack);
        check_gpu_shape(&g, 64 * cols, 4, sb.data);
        sb_free(&sb);
    }
}

/* Gradients of a norm: a block sums whole rounds of its teams, and the grid
   has at most the blocks that run at once; their sums are added afterwards. */
TEST_CASE(schedule, sums_of_columns_fill_the_machine_once) {
    for (int rows = 2; rows < 20000; rows += rows < 40 ? 1 : 1 + rows / 40) {
        char text[400];
        snprintf(text, sizeof text,
                 "graph g(%%x: f32[%d,256]) {\n  group row {\n"
                 "    %%s = reduce_sum %%x {axes=[1], keepdims=1}\n"
                 "    %%m0 = mul %%x, %%s\n"
                 "    %%c = reduce_sum %%m0 {axes=[0], keepdims=1}\n"
                 "    %%m1 = mul %%m0, %%s\n"
                 "  }\n  return %%m1, %%c\n}\n",
                 rows);
        Arena *a = arena_new();
        const Kernel *k = kernel_of(a, text, TARGET_CUDA);
        const KLoop *block = kernel_loop(k, LOOP_BLOCK, LOOP_ROWS);
        const KLoop *team = kernel_loop(k, LOOP_SERIAL, LOOP_ROWS);
        GpuShape g = gpu_shape(k);
        CHECK_MSG(g.blocks <= 2 * GPU_SMS, "%d rows: %lld blocks", rows,
                  (long long)g.blocks);
        CHECK_MSG(block->step % team->step == 0 && block->step > team->step,
                  "%d rows: %lld each of %lld", rows, (long long)block->step,
                  (long long)team->step);
        CHECK_MSG(rows < 4 * GPU_SMS * team->step || g.blocks > GPU_SMS,
                  "%d rows: %lld blocks", rows, (long long)g.blocks);
        arena_free(a);
    }
}

/* A sum along the columns of a transposed matrix is one along its rows:
   neighbours are adjacent in memory. */
TEST_CASE(schedule, sums_of_what_is_turned) {
    static const char lying[] = "graph g(%x: f32[512,4096]) {\n  group row {\n"
                                "    %y = reduce_sum %x {axes=[0]} }\n"
                                "  return %y\n}\n";
    static const char turned[] =
        "graph g(%x: f32[512,4096]) {\n  group row {\n"
        "    %t = transpose %x {perm=[1,0]} : f32[4096,512]\n"
        "    %y = reduce_sum %t {axes=[1]} }\n"
        "  return %y\n}\n";
    for (int target = 0; target < 2; target++) {
        Arena *a = arena_new();
        const Kernel *k = kernel_of(a, lying, (TargetKind)target);
        const Kernel *t = kernel_of(a, turned, (TargetKind)target);
        CHECK_EQ_INT(k->form, KF_ROWS);
        CHECK_EQ_INT(t->form, KF_ROWS);
        CHECK_EQ_INT(t->nloop, k->nloop);
        for (int i = 0; i < k->nloop; i++) {
            CHECK_EQ_INT(t->loop[i].kind, k->loop[i].kind);
            CHECK_EQ_INT(t->loop[i].step, k->loop[i].step);
        }
        arena_free(a);
    }
}
