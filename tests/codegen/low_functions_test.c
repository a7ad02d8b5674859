/* SPDX-License-Identifier: Apache-2.0 */
/* low_functions_test.c: which functions of a kernel are computed for 16 bits
   alone (LOW of ops.def). */
#include "codegen/kernel/schedule.h"
#include "ir/text/text.h"
#include "passes/device/fold.h"
#include "tests/harness.h"

#include <string.h>

/* Functions of `code` in the kernel of a group, and those among them that give
   16 bits alone. */
static void check_low(TargetKind target, const char *lines, OpCode code,
                      int want, int low) {
    Arena *a = arena_new();
    StrBuf sb = {0};
    Diag d = {0};
    Module *m;
    LoweredStep *s;
    int n = 0, found = 0;
    sb_printf(&sb,
              "graph g(%%x: f32[64,300], %%c: bool[64,300]) {\n"
              "  group %s\n  return %%y\n}\n",
              lines);
    if (parse_module(a, &d, "t.amp", sb.data, sb.len, &m) != OK ||
        verify_module(m, STAGE_FUSED, &d) != OK ||
        lower_graph(m->graphs.data[0],
                    kernel_set_new(a, target, GPU_BLOCK_SHARED), &d, &s) != OK)
        FAIL("%s", d.text.data);
    const Kernel *k = s->kernel;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        n += in->op == K_OP && in->code == code;
        found += in->low;
    }
    CHECK_MSG(n == want && found == low, "%d of %d:\n%s", found, n, sb.data);
    sb_free(&d.text);
    sb_free(&sb);
    arena_free(a);
}

TEST_CASE(low_functions, of_a_kernel) {
    const TargetKind gpu = TARGET_CUDA;
    static const char plain[] =
        "point { %e = exp %x\n %y = cast %e : bf16[64,300] }";
    check_low(gpu, plain, OP_EXP, 1, 1);
    check_low(TARGET_CPU, plain, OP_EXP, 1, 0);
    check_low(gpu, "point { %y = exp %x }", OP_EXP, 1, 0);
    check_low(gpu, "point { %e = gelu %x\n %y = cast %e : f16[64,300] }",
              OP_GELU, 1, 1);
    /* as in a cross entropy */
    check_low(gpu,
              "point { %e = exp %x\n %o = where %c, 1.0, 0.0\n"
              " %d = sub %e, %o\n %n = neg %d\n %m = mul %n, %x\n"
              " %w = where %c, %m, 0.0\n %y = cast %w : bf16[64,300] }",
              OP_EXP, 1, 1);
    check_low(gpu,
              "point { %e = gelu %x\n %d = sub %e, 1.0\n"
              " %y = cast %d : bf16[64,300] }",
              OP_GELU, 1, 0);
    /* differences, and readers that need all bits */
    check_low(gpu,
              "point { %e = exp %x\n %d = sub %e, %x\n"
              " %y = cast %d : bf16[64,300] }",
              OP_EXP, 1, 0);
    check_low(gpu,
              "point { %e = exp %x\n %d = sub 1.0, %e\n"
              " %y = cast %d : bf16[64,300] }",
              OP_EXP, 1, 0);
    check_low(gpu,
              "point { %e = exp %x\n %d = sub %e, 0.5\n"
              " %y = cast %d : bf16[64,300] }",
              OP_EXP, 1, 0);
    check_low(gpu,
              "point { %e = exp %x\n %o = where %c, 1.0, 0.5\n"
              " %d = sub %e, %o\n %y = cast %d : bf16[64,300] }",
              OP_EXP, 1, 0);
    check_low(gpu,
              "point { %e = exp %x\n %l = log %e\n"
              " %y = cast %l : bf16[64,300] }",
              OP_EXP, 1, 0);
    check_low(gpu,
              "point { %e = exp %x\n %m = mul %e, %x\n %d = sub %m, 1.0\n"
              " %y = cast %d : bf16[64,300] }",
              OP_EXP, 1, 0);
    check_low(gpu,
              "row { %e = exp %x\n %s = reduce_sum %e {axes=[1], keepdims=1}\n"
              " %d = div %e, %s\n %y = cast %d : bf16[64,300] }",
              OP_EXP, 1, 0);
}

#define BELOW(of, less, sum)                                                   \
    "row { %m = reduce_max %x {axes=[1], keepdims=1}\n"                        \
    " %n = reduce_min %x {axes=[1], keepdims=1}\n"                             \
    " %v = neg %x\n %d = sub " of ", " less "\n %e = exp %d\n"                 \
    " %f = mul %e, %v\n"                                                       \
    " %s = reduce_sum " sum " {axes=[1], keepdims=1}\n"                        \
    " %l = log %s\n %y = add %n, %l }"

/* A sum of exp of numbers below the largest one, as in a logarithm of such
   a sum, and other sums. */
TEST_CASE(low_functions, of_sums) {
    const TargetKind gpu = TARGET_CUDA;
    check_low(gpu, BELOW("%x", "%m", "%e"), OP_EXP, 1, 1);
    check_low(TARGET_CPU, BELOW("%x", "%m", "%e"), OP_EXP, 1, 0);
    check_low(gpu, BELOW("%x", "%n", "%e"), OP_EXP, 1, 0);
    check_low(gpu, BELOW("%v", "%m", "%e"), OP_EXP, 1, 0);
    check_low(gpu, BELOW("%m", "%x", "%e"), OP_EXP, 1, 0);
    check_low(gpu, BELOW("%x", "%m", "%f"), OP_EXP, 1, 0);
    check_low(gpu,
              "row { %m = reduce_max %x {axes=[1], keepdims=1}\n"
              " %d = sub %x, %m\n %e = exp %d\n"
              " %s = reduce_sum %e {axes=[1], keepdims=1}\n %y = div %e, %s }",
              OP_EXP, 1, 0);
}

/* A reader that needs all bits decides, wherever it stands among the others. */
TEST_CASE(low_functions, of_several_readers) {
    const TargetKind gpu = TARGET_CUDA;
    check_low(gpu,
              "point { %e = exp %x\n %l = log %e\n"
              " %b = cast %l : bf16[64,300]\n %f = cast %e : bf16[64,300]\n"
              " %y = add %b, %f : bf16[64,300] }",
              OP_EXP, 1, 0);
    check_low(gpu,
              "point { %e = exp %x\n %f = cast %e : bf16[64,300]\n"
              " %l = log %e\n %b = cast %l : bf16[64,300]\n"
              " %y = add %f, %b : bf16[64,300] }",
              OP_EXP, 1, 0);
    check_low(gpu,
              "point { %e = exp %x\n %l = less %e, %x\n"
              " %w = where %l, %e, 0.0\n %y = cast %w : bf16[64,300] }",
              OP_EXP, 1, 0);
    /* errors of factors add up */
    check_low(gpu,
              "point { %e = gelu %x\n %s = mul %e, %e\n"
              " %y = cast %s : f16[64,300] }",
              OP_GELU, 1, 0);
    check_low(gpu,
              "point { %e = gelu %x\n %m = mul %e, %x\n %n = neg %m\n"
              " %s = mul %n, %e\n %y = cast %s : f16[64,300] }",
              OP_GELU, 1, 0);
    check_low(gpu,
              "point { %e = gelu %x\n %s = mul %e, %x\n"
              " %y = cast %s : f16[64,300] }",
              OP_GELU, 1, 1);
}
