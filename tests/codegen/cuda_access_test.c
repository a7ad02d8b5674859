/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_access_test.c: the width of reads and writes in the PTX from NVRTC,
   for every form and every routine: 16 bytes wherever the shape allows it.
   Rows with narrower accesses give the reason. */
#include <string.h>

#include "passes/device/fold.h"
#include "codegen/cuda/cuda.h"
#include "ir/text/text.h"
#include "tests/harness.h"
#include "tests/support/cuda_cases.h"

typedef struct Widths {
    int loads[17],
        stores[17]; /* number of instructions, by the bytes that each moves */
} Widths;

/* The bytes of "ld.global.nc.v4.u32", from the text after its first dot. */
static int width_of(const char *type) {
    int n = 1, bits = 0, end = (int)strcspn(type, " \t");
    for (const char *p = type; p < type + end; p += strcspn(p, ". \t") + 1) {
        if (*p == 'v') n = p[1] - '0';
        if (strchr("usfb", *p) && p[1] >= '0' && p[1] <= '9')
            sscanf(p + 1, "%d", &bits);
        if (p[strcspn(p, ". \t")] != '.') break;
    }
    return n * bits / 8;
}

/* Counts for all entries, or for entries with that name. */
static Widths widths_of(const char *ptx, const char *name) {
    Widths w = {{0}, {0}};
    bool here = false;
    for (const char *p = ptx; *p;
         p += strcspn(p, "\n") + (p[strcspn(p, "\n")] != 0)) {
        p += strspn(p, "\t ");
        if (*p == '@') p += strcspn(p, "\n\t "), p += strspn(p, "\t ");
        if (!strncmp(p, ".visible .entry ", 16))
            here = !strncmp(p + 16, name, strlen(name)) &&
                   p[16 + strlen(name)] == '(';
        if (!here) continue;
        if (!strncmp(p, "ld.global.", 10)) w.loads[width_of(p + 10)]++;
        if (!strncmp(p, "st.global.", 10)) w.stores[width_of(p + 10)]++;
        if (!strncmp(p, "cp.async.cg.", 12)) w.loads[16]++;
        /* the count is complete */
        CHECK_MSG(strncmp(p, "ld.u", 4) && strncmp(p, "ld.v", 4) &&
                      strncmp(p, "st.u", 4) && strncmp(p, "st.v", 4),
                  "%s: %.40s", name, p);
    }
    return w;
}

/* "16 4": all widths that occur, descending. */
static char *listed(const int of[17], char text[32]) {
    char *at = text;
    *at = 0;
    for (int n = 16; n > 0; n--)
        if (of[n]) at += sprintf(at, "%s%d", at > text ? " " : "", n);
    return text;
}

typedef struct Unit {
    Arena *a;
    StrBuf text;
} Unit;

static Unit unit_new(void) {
    Unit u = {.a = arena_new()};
    NvrtcFacts f;
    if (!nvrtc_facts(u.a, &f)) SKIP("%s", f.why);
    print_cuda_head(&u.text);
    return u;
}

static const char *unit_ptx_for(Unit *u, const char *gpu) {
    const char *const arch[] = {gpu};
    Diag d = {0};
    CudaBuild b = {0};
    CudaUnit unit = {u->text.data, u->text.len};
    if (nvrtc_build(&d, u->a, NULL, false, &unit, 1, arch, 1, &b) != OK)
        FAIL("%s", d.text.data);
    return b.image[0].data;
}

static const char *unit_ptx(Unit *u) { return unit_ptx_for(u, "compute_80"); }

static void unit_free(Unit *u) {
    sb_free(&u->text);
    arena_free(u->a);
}

static void check_widths(const char *ptx, const char *kernel, const char *what,
                         const char *loads, const char *stores) {
    char text[32];
    Widths w = widths_of(ptx, kernel);
    CHECK_MSG(!strcmp(listed(w.loads, text), loads), "%s reads %s, not %s",
              what, text, loads);
    CHECK_MSG(!strcmp(listed(w.stores, text), stores), "%s writes %s, not %s",
              what, text, stores);
}

/* ---- forms --------------------------------------------------------------- */

#define POINT(in, nodes) POINTS(in, nodes, "%y")
#define POINTS(in, nodes, out)                                                 \
    "graph g(" in ") { group point { " nodes " } return " out " }"
#define ROW(in, nodes, out)                                                    \
    "graph g(" in ") { group row { " nodes " } return " out " }"

/* 16 for the widest operand, less for others with equally many elements;
   flat: also one element at a time for the last n % N */
static const struct {
    const char *what, *graph, *loads, *stores;
} forms[] = {
    {"flat, f32", POINT("%a: f32[4096], %b: f32[4096]", "%y = add %a, %b"),
     "16 4", "16 4"},
    {"flat, bf16", POINT("%a: bf16[4096], %b: bf16[4096]", "%y = max %a, %b"),
     "16 2", "16 2"},
    {"flat, of two widths", /* 8 for bf16: 32 bytes of f32 are two accesses
                               of 16 */
     POINT("%a: f32[4096], %b: bf16[4096]", "%y = add %a, %b : bf16[4096]"),
     "16 4 2", "16 2"},
    {"AdamW with a copy of 16 bits, 8 of a thread",
     POINTS("%w: f32[4096], %g: f32[4096], %m: f32[4096], %v: f32[4096], "
            "%t: f32[]",
            "%ma = mul %m, 0.9 %mb = mul %g, 0.1 %mn = add %ma, %mb "
            "%va = mul %v, 0.99 %gg = mul %g, %g %vb = mul %gg, 0.01 "
            "%vn = add %va, %vb %q = sqrt %vn %r = div %q, %t "
            "%e = add %r, 0.00001 %s = div %mn, %e %l = mul %s, 0.001 "
            "%y = sub %w, %l %c = cast %y : bf16[4096]",
            "%y, %mn, %vn, %c"),
     "16 4", "16 4 2"},
    {"a broadcast",
     POINT("%a: bf16[3,4,8,16], %b: bf16[4,1,16]", "%y = mul %a, %b"), "16",
     "16"},
    {"a gather",
     POINT("%a: f32[9,8], %i: i64[6,1]", "%y = gather %a, %i {axis=0}"), "16 8",
     "16"}, /* 8: an index */
    {"a row of a warp",
     ROW("%a: bf16[64,768], %g: f32[768]",
         "%m = reduce_mean %a {axes=[1]} : f32[64,1] "
         "%d = sub %a, %m : f32[64,768] %y = mul %d, %g : bf16[64,768]",
         "%y"),
     "16", "16"},
    {"a short row", /* 8 lanes */
     ROW("%a: bf16[8192,64], %b: bf16[8192,64]",
         "%p = mul %a, %b : f32[8192,64] "
         "%y = reduce_sum %p {axes=[1]} : f32[8192,1]",
         "%y"),
     "16", "4"}, /* one number of a row */
    {"a row of a block, a vector for each thread but some",
     ROW("%a: bf16[300,2000]", "%m = reduce_max %a {axes=[1]} : f32[300,1]",
         "%m"),
     "16", "4"},
    {"a row of a block",
     ROW("%a: bf16[64,50256]",
         "%m = reduce_max %a {axes=[1]} : f32[64,1] "
         "%y = sub %a, %m : bf16[64,50256]",
         "%y"),
     "16", "16"},
    {"a row of two dims",
     ROW("%a: bf16[32,64,3136]",
         "%y = reduce_sum %a {axes=[0,2]} : f32[1,64,1]", "%y"),
     "16", "4"}, /* one number of a row */
    {"a row and sums of columns",
     ROW("%a: bf16[4096,768], %b: bf16[4096,768]",
         "%p = mul %a, %b : f32[4096,768] "
         "%m = reduce_mean %p {axes=[1]} : f32[4096,1] "
         "%y = sub %p, %m : bf16[4096,768] "
         "%s = reduce_sum %p {axes=[0]} : f32[1,768]",
         "%y, %s"),
     "16", "16 4"}, /* 4: sums of a block; a warp writes 128 bytes */
    {"neighbouring rows",
     ROW("%a: bf16[264,3,1024]",
         "%y = reduce_sum %a {axes=[1]} : bf16[264,1,1024]", "%y"),
     "16", "2"}, /* a warp's sums are stored row by row */
    {"neighbouring rows with values of their own",
     ROW("%a: bf16[264,3,1024], %g: f32[1024]",
         "%d = mul %a, %g : bf16[264,3,1024] "
         "%y = reduce_sum %d {axes=[1]} : f32[264,1,1024]",
         "%y, %d"),
     "16", "16 4"},
    {"codes in both layouts",
     "graph g(%a: bf16[96,1024]) on cuda { group row { "
     "%m = reduce_max %a {axes=[1]} : f32[96,1] "
     "%c = cast %a : f8e4m3[96,1024] "
     "%t = transpose %c {perm=[1,0]} : f8e4m3[1024,96] } return %m, %c, %t }",
     "16", "16 4"},
};

static const Kernel *put_graph(Unit *u, const char *graph) {
    Diag d = {0};
    Module *m = NULL;
    LoweredStep *steps;
    KernelSet *ks = kernel_set_new(u->a, TARGET_CUDA, GPU_BLOCK_SHARED);
    if (parse_module(u->a, &d, "test.amp", graph, strlen(graph), &m) != OK ||
        lower_graph(m->graphs.data[0], ks, &d, &steps) != OK)
        FAIL("%s", d.text.data);
    print_cuda_kernel(steps[0].kernel, false, &u->text);
    return steps[0].kernel;
}

static void form_check(int i) {
    Unit u = unit_new();
    const Kernel *k = put_graph(&u, forms[i].graph);
    const char *ptx = unit_ptx(&u);
    check_widths(ptx, "k0", forms[i].what, forms[i].loads, forms[i].stores);
    if (kernel_column_sums(k))
        check_widths(ptx, "k0_2", forms[i].what, "4", "4");
    unit_free(&u);
}

TEST_CASE(cuda_access, forms) {
    for (int i = 0; i < (int)(sizeof forms / sizeof *forms); i++) form_check(i);
}

static int times_in(const char *text, const char *what) {
    int n = 0;
    while ((text = strstr(text, what))) n++, text++;
    return n;
}

/* GPUs from 8.9 on round to 8 bits, and read 8 bits, by one instruction. */
TEST_CASE(cuda_access, codes_are_rounded_by_one_instruction) {
    static const struct {
        const char *gpu;
        bool one;
    } gpus[] = {{"compute_80", false}, {"compute_89", true}};
    for (int i = 0; i < 2; i++) {
        Unit u = unit_new();
        put_graph(&u, ROW("%a: f32[1024,3], %b: f8e4m3[1024,3]",
                          "%w = cast %b : f32[1024,3] %d = mul %a, %w "
                          "%y = cast %d : f8e4m3[1024,3] "
                          "%r = reduce_max %a {axes=[1]} : f32[1024,1]",
                          "%y, %r"));
        const char *ptx = unit_ptx_for(&u, gpus[i].gpu);
        int rounds = times_in(ptx, "cvt.rn.satfinite.e4m3x2.f32"),
            widens = times_in(ptx, "cvt.rn.f16x2.e4m3x2");
        CHECK_MSG((rounds > 0) == gpus[i].one && rounds == widens,
                  "%s: %d round, %d widen", gpus[i].gpu, rounds, widens);
        unit_free(&u);
    }
}

/* ---- routines ------------------------------------------------------------ */

#define CONV(lib_, side, channels, x, w, y)                                    \
    {                                                                          \
        .lib = PLAN_LIB_##lib_, .p.conv = {                                    \
            .n = 16,                                                           \
            .c = channels,                                                     \
            .k = channels,                                                     \
            .group = 1,                                                        \
            .in = {1, side, side},                                             \
            .out = {1, side, side},                                            \
            .kernel = {1, 3, 3},                                               \
            .stride = {1, 1, 1},                                               \
            .dilation = {1, 1, 1},                                             \
            .pad = {0, 1, 1},                                                  \
            .x_dtype = AMPC_##x,                                               \
            .w_dtype = AMPC_##w,                                               \
            .y_dtype = AMPC_##y                                                \
        }                                                                      \
    }
#define POOL(lib_)                                                             \
    {                                                                          \
        .lib = PLAN_LIB_##lib_, .p.pool = {                                    \
            .planes = 64,                                                      \
            .in = {1, 112, 112},                                               \
            .out = {1, 56, 56},                                                \
            .kernel = {1, 2, 2},                                               \
            .stride = {1, 2, 2},                                               \
            .dilation = {1, 1, 1},                                             \
            .dtype = AMPC_BF16,                                                \
            .idx_dtype = AMPC_I8                                               \
        }                                                                      \
    }
#define ATTENTION(lib_, y)                                                     \
    {                                                                          \
        .lib = PLAN_LIB_##lib_, .p.attend = {                                  \
            .batch = 4,                                                        \
            .group = 1,                                                        \
            .t = 256,                                                          \
            .u = 256,                                                          \
            .d = 64,                                                           \
            .e = 64,                                                           \
            ATTEND_APART,                                                      \
            .causal = 1,                                                       \
            .trans_b = 1,                                                      \
            .scale = 0x3e000000,                                               \
            .keep = 0x3f800000,                                                \
            .mask_div = 1,                                                     \
            .mask_dtype = AMPC_F32,                                            \
            .rng_dtype = AMPC_I64,                                             \
            .q_dtype = AMPC_BF16,                                              \
            .k_dtype = AMPC_BF16,                                              \
            .v_dtype = AMPC_BF16,                                              \
            .y_dtype = AMPC_##y,                                               \
            .lse_dtype = AMPC_F32,                                             \
            .sums_dtype = AMPC_F32,                                            \
            .delta_dtype = AMPC_F32,                                           \
            .dq_dtype = AMPC_BF16,                                             \
            .dk_dtype = AMPC_BF16,                                             \
            .dv_dtype = AMPC_BF16                                              \
        }                                                                      \
    }

static const struct {
    const char *what;
    CudaCase c;
    const char *loads, *stores, *loads_2, *stores_2; /* of l0, of l0_2 */
} routines[] = {
    {"a product of bf16",
     {.lib = PLAN_LIB_GEMM,
      .p.gemm = {.m = 256,
                 .n = 256,
                 .k = 64,
                 .a_rs = 64,
                 .a_cs = 1,
                 .b_rs = 1,
                 .b_cs = 64,
                 .a_dtype = AMPC_BF16,
                 .b_dtype = AMPC_BF16,
                 .c_dtype = AMPC_BF16}},
     "16",
     "16",
     NULL,
     NULL},
    /* weights; X is read one element at a time: each tap shifts a line by
       one */
    {"a convolution", CONV(CONV_FWD, 56, 8, BF16, BF16, BF16), "8 2", "16",
     NULL, NULL},
    {"its gradient by X", CONV(CONV_DGRAD, 56, 8, BF16, BF16, BF16), "2", "16",
     NULL, NULL},
    {"its gradient by W", CONV(CONV_WGRAD, 56, 8, BF16, F32, BF16), "8 2", "16",
     "4", "4"},
    /* weights are turned; X is read one element at a time, but once */
    {"windows", CONV(CONV_FWD, 56, 128, BF16, BF16, BF16), "2", "16", "16 2",
     "16"},
    {"their gradient by X", CONV(CONV_DGRAD, 56, 128, BF16, BF16, BF16), "2",
     "16", "16 2", "16"},
    /* two results of a row of dY; sums of an element, which lie apart */
    {"their gradient by W", CONV(CONV_WGRAD, 56, 64, BF16, F32, BF16), "4 2",
     "4", "4", "4"},
    /* 7 x 7: only each eighth plane begins at a multiple of 16 bytes */
    {"windows of odd planes", CONV(CONV_FWD, 7, 128, BF16, BF16, BF16), "2",
     "16", "16 2", "2"},
    {"a pool", POOL(MAXPOOL), "16", "16 8", NULL, NULL}, /* 8: i8 */
    {"an average", POOL(AVGPOOL), "16", "16", NULL, NULL},
    /* half as many windows as results, one by one in the order of summation */
    {"a pool's gradient", POOL(MAXPOOL_GRAD), "2 1", "16", NULL, NULL},
    {"an average's gradient", POOL(AVGPOOL_GRAD), "2", "16", NULL, NULL},
    {"scatter-add",
     {.lib = PLAN_LIB_SCATTER_ADD,
      .p.scatter = {1, 50257, 4096, 768, AMPC_BF16, AMPC_I64, AMPC_BF16}},
     "16 8 4",
     "4",
     "16 4",
     "16"},
    {"scatter-add of halves into wholes",
     {.lib = PLAN_LIB_SCATTER_ADD,
      .p.scatter = {1, 50257, 4096, 768, AMPC_BF16, AMPC_I64, AMPC_F32}},
     "16 8 4",
     "4",
     "16 4",
     "16"},
    /* 4: two numbers per row, delta */
    {"attention", ATTENTION(ATTEND, BF16), "16", "16 4", NULL, NULL},
    {"attention's gradient", ATTENTION(ATTEND_GRAD, BF16), "16 4", "16", "16",
     "16"},
    /* searches compare one element at a time */
    {"argmax",
     {.lib = PLAN_LIB_ARGMAX, .p.argmax = {64, 1000, 1, AMPC_BF16, AMPC_I64}},
     "2",
     "8",
     NULL,
     NULL},
    {"argsort",
     {.lib = PLAN_LIB_ARGSORT,
      .p.argsort = {.rows = 64,
                    .n = 128,
                    .k = 5,
                    .dtype = AMPC_BF16,
                    .out_dtype = AMPC_I32}},
     "2",
     "4",
     NULL,
     NULL},
};

TEST_CASE(cuda_access, routines) {
    for (int i = 0; i < (int)(sizeof routines / sizeof *routines); i++) {
        Unit u = unit_new();
        CudaLib lib;
        LoweredStep s = cuda_case_step(&routines[i].c);
        print_cuda_lib(&s, 0, false, &u.text, &lib);
        const char *ptx = unit_ptx(&u);
        check_widths(ptx, "l0", routines[i].what, routines[i].loads,
                     routines[i].stores);
        CHECK_EQ_INT(lib.second.threads > 0, routines[i].loads_2 != NULL);
        if (routines[i].loads_2)
            check_widths(ptx, "l0_2", routines[i].what, routines[i].loads_2,
                         routines[i].stores_2);
        unit_free(&u);
    }
}

/* A whole vector of gradients, and the remainder. */
TEST_CASE(cuda_access, gradients_as_they_are_sent) {
    Unit u = unit_new();
    CudaLib lib;
    print_cuda_sum(DT_BF16, 0, &u.text, &lib);
    const char *ptx = unit_ptx(&u);
    check_widths(ptx, "l0", "sent", "16 4", "16 2");
    check_widths(ptx, "l0_2", "taken", "16 2", "16 4");
    unit_free(&u);
}

/* ---- the GPU's own functions --------------------------------------------- */

/* One switch, KM_PORTABLE: without it roundings are one instruction, and exp
   and tanh use ex2.approx. */
TEST_CASE(cuda_access, one_switch_for_the_own_functions_of_gpus) {
    static const char text[] =
        "extern \"C\" __global__ void k(const float *a, uint16_t *b) {\n"
        "    b[threadIdx.x] = F32_TO_BF16(EXP_F32(TANH_F32(a[threadIdx.x])));\n"
        "}\n";
    static const char *const own[] = {"cvt.rn.bf16.f32", "ex2.approx.ftz.f32",
                                      "rcp.approx.ftz.f32"};
    for (int portable = 0; portable < 2; portable++) {
        Unit u = unit_new();
        if (portable) {
            sb_free(&u.text);
            u.text = (StrBuf){0};
            sb_puts(&u.text, "#define KM_PORTABLE\n");
            print_cuda_head(&u.text);
        }
        sb_puts(&u.text, text);
        const char *ptx = unit_ptx(&u);
        for (int i = 0; i < 3; i++)
            CHECK_MSG((strstr(ptx, own[i]) == NULL) == portable, "%s: %d",
                      own[i], portable);
        unit_free(&u);
    }
}
