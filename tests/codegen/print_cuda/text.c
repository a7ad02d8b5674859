/* SPDX-License-Identifier: Apache-2.0 */
/* text.c: properties of the printed text, NVRTC's messages, and products for
   cuBLASLt. */
#define _POSIX_C_SOURCE 200809L
#include <string.h>

#include "codegen/cuda/cuda.h"
#include "tests/codegen/print_cuda/print_cuda.h"

/* ---- NVRTC --------------------------------------------------------------- */

TEST_CASE(print_cuda, nvrtc_compiles_without_warnings_or_spills) {
    static const char *const archs[] = {"sm_80"};
    Suite x = suite_lowered(cuda_graphs, cuda_ngraphs);
    Diag d = {0};
    CudaBuild out = {0};
    NvrtcFacts f;
    if (!nvrtc_facts(x.a, &f)) SKIP("no NVRTC: %s", f.why);
    StrBuf sb = suite_text(&x);
    CudaUnit unit = {sb.data, sb.len};
    Status st = nvrtc_build(&d, x.a, NULL, false, &unit, 1, archs, 1, &out);
    CHECK_MSG(st == OK && d.text.len == 0, "%s", d.text.data);
    CHECK(out.usage.len >= kernel_set_count(x.ks, false));
    for (int i = 0; i < out.usage.len; i++) {
        const CudaUsage *u = &out.usage.data[i];
        CHECK_MSG(u->spill_stores + u->spill_loads + u->stack == 0, "%s spills",
                  u->kernel);
    }
    sb_free(&sb);
    sb_free(&d.text);
    suite_free(&x);
}

/* ---- properties of the text ---------------------------------------------- */

typedef struct Printed {
    Suite x;
    CudaShape shape;
    StrBuf sb;
} Printed;

static Printed printed(const char *text) {
    Printed p = {.x = suite_lowered(&text, 1)};
    const Kernel *k = p.x.s[0].step.kernel;
    p.shape = cuda_shape(k);
    (k->form == KF_FOLD ? print_cuda_many : print_cuda_kernel)(k, false, &p.sb);
    return p;
}

static void check_shape(const char *text, int threads, int64_t blocks,
                        int64_t per_block, const char *needle) {
    Printed p = printed(text);
    CHECK_EQ_INT(p.shape.threads, threads);
    CHECK_EQ_INT(p.shape.blocks, blocks);
    CHECK_EQ_INT(p.shape.per_block, per_block);
    CHECK_HAS(p.sb.data, needle);
    CHECK(strstr(p.sb.data, "__restrict__") == NULL);
    sb_free(&p.sb);
    suite_free(&p.x);
}

TEST_CASE(print_cuda, shapes) {
    /* 16 bytes of the widest operand */
    check_shape(POINT("%a: f32[99]", "%y = neg %a"), 256, 0, 1024, "k0_at<4>(");
    check_shape(POINT("%a: bf16[99]", "%y = neg %a"), 256, 0, 2048,
                "k0_at<8>(");
    check_shape(POINT("%a: f64[99]", "%y = neg %a"), 256, 0, 512, "k0_at<2>(");
    /* an unaligned operand is read element by element */
    check_shape(cuda_graphs[10], 256, 0, 1024, "b0[i0 + 5]");
    check_shape(cuda_graphs[11], 256, 0, 1024, "pack_load<N>(b0 + e + 8)");
    check_shape(cuda_graphs[12], 256, 0, 1024, " ? b0[i0 - 3] : 0");
    /* one element per thread, 64-bit indices where needed */
    check_shape(POINT("%a: f32[9,70]", "%y = transpose %a {perm=[1,0]}"), 256,
                3, 0, "const unsigned e = ");
    check_shape(POINT("%a: f16[50000,50000]", "%y = transpose %a {perm=[1,0]}"),
                256, 9765625, 0, "const uint64_t e = ");
    /* bytes through shared memory, unless rows begin at odd addresses */
    check_shape(POINT("%a: u8[96,80]", "%y = transpose %a {perm=[1,0]}"), 256,
                4, 0, "turn_bytes<80, 96, 80>(b0, b1, blockIdx.x);");
    check_shape(POINT("%a: u8[96,72]", "%y = transpose %a {perm=[1,0]}"), 256,
                27, 0, "const unsigned e = ");
    /* codes in both layouts: 64 rows of as many columns as the block's threads
       take; whole rows, 32 at a time if they fit */
    check_shape(TURNED("point", "%a: bf16[80,96]", "[1,0]", "f8e4m3[96,80]",
                       "%c = cast %a : f8e4m3[80,96]", ", %c"),
                256, 4, 0, "turn_tile<64, 64, 80, 256>(");
    check_shape(TURNED("row", "%a: bf16[96,768]", "[1,0]", "f8e4m3[768,96]",
                       "%r = reduce_max %a {axes=[1]} "
                       "%c = cast %a : f8e4m3[96,768]",
                       ", %r"),
                256, 3, 0, "turn_tile<32, 768, 96, 256>(");
    check_shape(TURNED("row", "%a: bf16[96,4096]", "[1,0]", "f8e4m3[4096,96]",
                       "%r = reduce_max %a {axes=[1]} "
                       "%c = cast %a : f8e4m3[96,4096]",
                       ", %r"),
                512, 6, 0, "turn_tile<16, 4096, 96, 512>(");
    /* blocks: 64 rows of 128 columns, to multiples of 128; 32 whole rows */
    check_shape(BLOCKS("point", "%x: bf16[160,160]", "160", "", "[160,160]",
                       "[2048]", "[160,160]", "[2048]", ""),
                256, 8, 0,
                "blocks_tile<BlocksOf<bf16, 64, 128, 160, 160, 15>, 256>(");
    check_shape(BLOCKS("row", "%a: bf16[256,768]", "768",
                       "%n = reduce_max %a {axes=[1]} : f32[256,1] "
                       "%x = mul %a, %n : bf16[256,768]",
                       "[256,768]", "[6144]", "[768,256]", "[6144]", ""),
                256, 8, 0,
                "blocks_tile<BlocksOf<bf16, 32, 768, 256, 768, 15>, 256>(");
    check_shape(POINT("%a: f32[0,4], %b: f32[4]", "%y = mul %a, %b"), 256, 1, 0,
                "(void)b0;");
    /* teams of lanes, of a block, of several warps */
    check_shape(ROW("%a: f32[100,10]", "%y = reduce_sum %a {axes=[1]}", "%y"),
                256, 4, 0, "fold_lanes<8>");
    check_shape(ROW("%a: f32[300,1000]", "%y = reduce_sum %a {axes=[1]}", "%y"),
                256, 38, 0, "fold_lanes<32>");
    /* short rows share a warp, if enough rows remain for all warps */
    check_shape(ROW("%a: bf16[8447,49]", "%y = reduce_sum %a {axes=[1]}", "%y"),
                256, 1056, 0, "fold_lanes<32>");
    check_shape(ROW("%a: bf16[8448,49]", "%y = reduce_sum %a {axes=[1]}", "%y"),
                256, 264, 0, "fold_lanes<8>");
    check_shape(ROW("%a: f32[300,2000]", "%y = reduce_sum %a {axes=[1]}", "%y"),
                256, 300, 0, "fold_block<256>");
    check_shape(ROW("%a: f32[300,9000]", "%y = reduce_sum %a {axes=[1]}", "%y"),
                512, 300, 0, "fold_block<512>");
    check_shape(ROW("%a: f32[2,2000]", "%y = reduce_sum %a {axes=[1]}", "%y"),
                512, 0, 1, "if (n % 4 == 0) {\n        k0_row<4>(b0, b1, n);");
    check_shape(ROW("%a: bf16[2,40000]",
                    "%m = reduce_max %a {axes=[1]} %y = sub %a, %m", "%y"),
                1024, 2, 0, "pack_load<8>(s1 + c)");
    check_shape(ROW("%a: f32[50,40]", "%y = reduce_sum %a {axes=[0]}", "%y"),
                256, 2, 0, "v2 = fold_slices<8>");
    /* few blocks have more threads, with 8 numbers each */
    check_shape(ROW("%a: f32[256,64]", "%y = reduce_sum %a {axes=[0]}", "%y"),
                1024, 2, 0, "v2 = fold_slices<32>");
    /* vectors if they leave as many blocks as a large GPU needs */
    check_shape(
        ROW("%a: bf16[66,3,1024]", "%y = reduce_sum %a {axes=[1]}", "%y"), 128,
        264, 0, "pack_load<8>(b0 + ");
    check_shape(
        ROW("%a: bf16[65,3,1024]", "%y = reduce_sum %a {axes=[1]}", "%y"), 128,
        520, 0, "pack_load<4>(b0 + ");
    check_shape(
        ROW("%a: bf16[999,3,80]", "%y = reduce_sum %a {axes=[1]}", "%y"), 128,
        2997, 0, "v2 = fold_slices<4>");
}

/* A row is loaded at once as long as that takes few registers: two 16-bit
   numbers share a register if vectors read them. */
TEST_CASE(print_cuda, rows_are_read_ahead) {
    static const char *const texts[] = {
        ROW("%a: bf16[9,768], %b: bf16[9,768], %c: bf16[9,768], "
            "%f: bf16[9,768], %g: bf16[9,768]",
            "%d = add %a, %b %e = add %d, %c : f32[9,768] "
            "%h = add %e, %f : f32[9,768] %i = add %h, %g : f32[9,768] "
            "%m = reduce_max %i {axes=[1]} %y = sub %i, %m : bf16[9,768]",
            "%y"),
        ROW("%a: bf16[9,767], %b: bf16[9,767], %c: bf16[9,767]",
            "%d = add %a, %b %e = add %d, %c : f32[9,767] "
            "%m = reduce_max %e {axes=[1]} %y = sub %e, %m : bf16[9,767]",
            "%y"),
        ROW("%a: f32[9,768], %b: f32[9,768], %c: f32[9,768]",
            "%d = add %a, %b %e = add %d, %c "
            "%m = reduce_max %e {axes=[1]} %y = sub %e, %m",
            "%y")};
    for (int i = 0; i < 3; i++) {
        Printed p = printed(texts[i]);
        CHECK_MSG((strstr(p.sb.data, " q1[") != NULL) == (i == 0), "%s",
                  texts[i]);
        sb_free(&p.sb);
        suite_free(&p.x);
    }
}

/* Each kernel's IR is in the comment above it. */
TEST_CASE(print_cuda, comments_tell_the_group) {
    check_shape(cuda_graphs[0], 256, 0, 1024,
                "/* %y = add %a, %b : f32[4096]\n"
                "   block columns by 1024, thread columns < 1024 by 4, "
                "unrolled columns < 4 */");
}

/* ---- what cuBLASLt takes ------------------------------------------------- */

/* 24 rows of 40 by 40 columns of 16, dense, in batches. */
static LibGemm dense(int64_t batches) {
    return (LibGemm){.m = 24,
                     .n = 16,
                     .k = 40,
                     .nbatch_dim = 1,
                     .batch_dim = {batches},
                     .a_bs = {24 * 40},
                     .b_bs = {40 * 16},
                     .a_rs = 40,
                     .a_cs = 1,
                     .b_rs = 16,
                     .b_cs = 1,
                     .a_dtype = DT_BF16,
                     .b_dtype = DT_BF16,
                     .c_dtype = DT_F32};
}

static void check_taken(LibGemm p, bool want, const char *what) {
    Arena *a = arena_new();
    ValueId refs[3] = {{1}, {2}, {3}};
    LoweredStep s = {.kind = PLAN_LIB,
                     .lib = PLAN_LIB_GEMM,
                     .refs = refs,
                     .nref = 3,
                     .pars = (int64_t *)(void *)&p,
                     .npar = sizeof p / sizeof(int64_t)};
    LoweredStep out = s;
    CHECK_MSG(cuda_product(a, &s, &out) == want, "%s", what);
    if (want) CHECK(out.kind == PLAN_PRODUCT);
    arena_free(a);
}

/* Limits from cuBLASLt's manual: sizes and leading dimensions have 32 bits;
   a matrix is stored by rows or by columns, with a leading dimension of at
   least its length; a grid has 65,535 blocks along its third axis. */
TEST_CASE(cuda_products, what_cublaslt_takes) {
    check_taken(dense(1), true, "dense");
    check_taken(dense(65535), true, "as many as a grid has");
    check_taken(dense(65536), false, "one more");
    check_taken(dense(0), false, "none");
    LibGemm p = dense(3);
    p.a_rs = 1, p.a_cs = 24, p.b_rs = 1, p.b_cs = 40;
    check_taken(p, true, "by columns");
    p.a_cs = 23;
    check_taken(p, false, "columns that overlap");
    p = dense(3);
    p.a_rs = 48, p.b_rs = 17;
    check_taken(p, true, "rows with gaps");
    p.b_rs = 15;
    check_taken(p, false, "rows that overlap");
    p = dense(3);
    p.b_rs = 32, p.b_cs = 2;
    check_taken(p, false, "every second column");
    p = dense(3);
    p.m = p.a_cs = INT32_MAX, p.a_rs = 1;
    check_taken(p, true, "as many rows as fit 32 bits");
    p.m = p.a_cs = (int64_t)INT32_MAX + 1;
    check_taken(p, false, "one row more");
    p = dense(3);
    p.nbatch_dim = 2;
    check_taken(p, false, "batches in two dims");
    p = dense(3);
    p.b_dtype = DT_F16;
    check_taken(p, false, "two kinds of 16 bits");
    p = dense(3);
    p.c_dtype = DT_F16;
    check_taken(p, false, "another kind of 16 bits out");
    p.a_dtype = p.b_dtype = p.c_dtype = DT_F64;
    check_taken(p, true, "f64");
    p.c_dtype = DT_F32;
    check_taken(p, false, "f64 rounded");
}
