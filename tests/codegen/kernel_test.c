/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_test.c: kernels of every kind of group compute the interpreter's
   results (subject.h). */
#include <string.h>

#include "codegen/kernel/kir.h"
#include "tests/codegen/kernel/kernel.h"
#include "tests/harness.h"
#include "tests/support/subject.h"

/* ---- point-wise ---------------------------------------------------------- */

TEST_CASE(kernel, point) {
    Subject s[] = {
        {.text = "graph g(%a: f32[1000], %b: f32[1000]) { group point {"
                 "%c = add %a, %b %d = mul %c, %a } return %d }"},
        {.text = "graph g(%a: f32[5,7], %b: f32[7], %c: f32[5,1]) {"
                 "group point { %d = sub %a, %b %e = div %d, %c"
                 " %f = max %e, %a } return %d, %f }"},
        {.text = "graph g(%a: bf16[33,17], %b: bf16[33,17]) { group point {"
                 "%c = add %a, %b %d = mul %c, %b %e = relu %d "
                 "%f = sqrt %e } return %e, %f }"},
        {.text = "graph g(%a: f16[33,17], %b: f32[17]) { group point {"
                 "%c = mul %a, %b %d = cast %c : f16[33,17] "
                 "%e = neg %d } return %c, %e }"},
        {.text = "graph g(%a: f64[9], %b: f32[9]) { group point {"
                 "%c = mul %a, %b %d = cast %c : bf16[9] } return %c, %d }"},
        {.text = "graph g(%a: f32[], %b: f32[]) { group point {"
                 "%c = add %a, %b %d = less %a, %b "
                 "%e = where %d, %a, %c } return %e, %d }"},
        {.text = "graph g(%a: f32[3,1], %b: f32[3,1]) { group point {"
                 "%c = add %a, %b } return %c }"},
        {.text = "graph g(%a: f32[0,4]) { group point {"
                 "%c = neg %a } return %c }"},
        {.text = "graph g(%a: f32[2,3,4,5], %b: f32[3,1,5], %c: f32[2,1,4,1])"
                 " { group point { %d = add %a, %b %e = mul %d, %c }"
                 " return %e }"},
        {.text = "graph g(%a: f32[3,9000], %b: f32[9000]) { group point {"
                 "%d = add %a, %b } return %d }"},
    };
    CHECK_GRAPHS(s, "");
}

/* Every element-wise op with float operands, in every float dtype.  The op's
   rule sets `free`; transcendental functions may differ by a few units in
   the last place of fp32. */
static int elem_graph(char *text, size_t n, OpCode op, const char *dtype,
                      const char *attrs) {
    const OpInfo *info = &op_info[op];
    const char *operands = info->in_min == 1   ? "%a"
                           : info->in_min == 2 ? "%a, %b"
                                               : "%m, %a, %b";
    return snprintf(text, n,
                    "graph g(%%a: %s[3,67], %%b: %s[67], %%m: bool[3,67]) { "
                    "group point { %%c = %s %s %s } return %%c }",
                    dtype, dtype, info->text, operands, attrs);
}

static bool takes_bools(OpCode op) {
    return strcmp(op_info[op].type_text, "logic") == 0;
}

static bool takes_ints(OpCode op) {
    const char *t = op_info[op].type_text;
    return strcmp(t, "unary_f") != 0 && strcmp(t, "test_f") != 0;
}

static bool takes_floats(OpCode op) {
    return strcmp(op_info[op].type_text, "binary_i") != 0;
}

static double elem_ulps(OpCode op, const char *dtype) {
    if (op_info[op].cost >= COST_LONG)
        return strcmp(dtype, "f32") == 0   ? 4
               : strcmp(dtype, "f64") == 0 ? 32
                                           : 1;
    /* a constant, or two roundings, in f32 */
    return op == OP_LEAKY_RELU || op == OP_RSQRT;
}

static const char *elem_attrs(OpCode op) {
    return op == OP_CLIP         ? "{max=1.5, min=-0.5}"
           : op == OP_LEAKY_RELU ? "{alpha=0.1}"
                                 : "";
}

static int elem_subjects(Subject *s, char (*text)[256]) {
    static const char *const dtypes[] = {"f32", "bf16", "f16", "f64",
                                         "i32", "i64",  "u8",  "bool"};
    int n = 0;
    for (int op = 0; op < NUM_OPS; op++) {
        if (op_info[op].kind != KIND_ELEM || op == OP_CAST) continue;
        for (int d = 0; d < 8; d++) {
            bool ints = d >= 4 && d < 7;
            if (takes_bools(op) != (d == 7)) continue;
            if (ints && !takes_ints(op)) continue;
            if (d < 4 && !takes_floats(op)) continue;
            /* the interpreter refuses zero divisors; powers become large */
            if (ints && (op == OP_DIV || op == OP_MOD || op == OP_POW))
                continue;
            elem_graph(text[n], sizeof text[n], op, dtypes[d], elem_attrs(op));
            s[n].text = text[n];
            s[n].ulps = elem_ulps(op, dtypes[d]);
            /* 1 + tanh cancels; the op takes a root of it */
            s[n].scale = op == OP_GELU_TANH || op == OP_GELU_SLOPE ? 0.5 : 0;
            n++;
        }
    }
    return n;
}

TEST_CASE(kernel, every_elementwise_op) {
    static Subject s[NUM_OPS * 4];
    static char text[NUM_OPS * 4][256];
    check_batch(s, elem_subjects(s, text), "-O1");
}

/* ---- casts --------------------------------------------------------------- */

TEST_CASE(kernel, casts) {
    static Subject s[NUM_DTYPES * NUM_DTYPES + 1];
    static char text[NUM_DTYPES * NUM_DTYPES][256];
    int n = 0;
    for (int a = 0; a < NUM_DTYPES; a++)
        for (int b = 0; b < NUM_DTYPES; b++, n++) {
            snprintf(text[n], sizeof text[n],
                     "graph g(%%a: %s[37]) { group point { "
                     "%%b = cast %%a : %s[37] %%c = cast %%b : f64[37] } "
                     "return %%b, %%c }",
                     dtype_info[a].text, dtype_info[b].text);
            s[n].text = text[n];
        }
    s[n++].text = "graph g(%a: f32[37]) { const %c: f32[] = 0.1 group point { "
                  "%b = cast %c : bf16[] %d = cast %c : f16[] "
                  "%e = cast %b : f32[] %f = cast %d : f32[] "
                  "%g = mul %a, %e %h = mul %a, %f } return %g, %h }";
    check_batch(s, n, "-O1");
}

/* ---- generators ---------------------------------------------------------- */

TEST_CASE(kernel, generators) {
    Subject s[] = {
        {.text = "graph g(%a: f32[4,5]) { group point {"
                 "%f = full {value=2.5} : f32[4,5] %c = add %a, %f }"
                 " return %c }"},
        {.text = "graph g(%a: i64[4,5]) { group point {"
                 "%f = iota {axis=1} : i64[4,5] %e = equal %a, %f "
                 "%h = iota {axis=0} : f32[4,5] } return %e, %h }"},
        {.text = "graph g(%r: i64[2]) { group point {"
                 "%u = rand_uniform %r {salt=7} : f32[6,7] } return %u }"},
        {.text = "graph g(%r: i64[2], %x: bf16[6,7]) { group point {"
                 "%u = rand_uniform %r {salt=-9} : f32[7,6] "
                 "%v = transpose %u {perm=[1,0]} "
                 "%p = full {value=0.5} : f32[] %m = less %v, %p "
                 "%c = cast %m : bf16[6,7] %y = mul %x, %c } return %y }"},
    };
    CHECK_GRAPHS(s, "");
}

/* ---- data movement ------------------------------------------------------- */

TEST_CASE(kernel, moves) {
    Subject s[] = {
        MOVE("%x: f32[5,6]", "%y = transpose %x {perm=[1,0]}"),
        MOVE("%x: bf16[2,3,4,5]", "%y = transpose %x {perm=[0,2,1,3]}"),
        MOVE("%x: i8[2,3,4]", "%y = transpose %x {perm=[2,0,1]}"),
        MOVE("%x: f16[3,1]", "%y = expand %x {shape=[2,3,4]}"),
        MOVE("%x: f32[9,8]",
             "%y = slice %x {starts=[1,6], sizes=[3,3], steps=[2,-2]}"),
        MOVE("%x: f32[3,3]",
             "%y = slice_grad %x {shape=[9,8], starts=[1,6], steps=[2,-2]}"),
        MOVE("%x: bf16[3,4]",
             "%y = slice_grad %x {shape=[9,8], starts=[1,2], steps=[1,1]}"),
        MOVE("%x: f32[4,5]", "%y = pad %x {pads=[1,2,3,0], value=1.5}"),
        MOVE("%x: bool[4,5]", "%y = pad %x {pads=[1,2,3,0], mode=\"edge\"}"),
        MOVE("%x: f32[4,5]", "%y = pad %x {pads=[1,2,3,0], mode=\"reflect\"}"),
        MOVE("%x: f64[4,5]", "%y = pad %x {pads=[1,2,3,4], mode=\"wrap\"}"),
        MOVE("%x: f32[2,3], %z: bf16[2,5], %w: f32[2,1]",
             "%y = concat %x, %z, %w {axis=1}"),
        MOVE("%x: f32[2,3], %z: f32[4,3]", "%y = concat %x, %z {axis=0}"),
        /* parts of one type: an element's part is found by its number */
        MOVE("%x: f32[2,3], %z: f32[2,3], %w: f32[2,3]",
             "%y = concat %x, %z, %w {axis=0}"),
        MOVE("%x: bf16[3,1,150], %z: bf16[3,1,150]",
             "%c = concat %x, %z, %x {axis=1} %y = neg %c"),
        MOVE("%x: f16[2,40], %z: f16[2,40], %w: f16[40,4]",
             "%c = concat %x, %z {axis=0} %t = transpose %w {perm=[1,0]} "
             "%y = add %c, %t"),
        MOVE("%x: f32[5,2], %z: i32[7]",
             "%c = concat %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, "
             "%x, %x, %x, %x {axis=1} %y = gather %c, %z {axis=1}"),
        MOVE("%x: bf16[3,9], %z: bf16[3,9]",
             "%c = concat %x, %x, %z, %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, "
             "%x, %x, %z {axis=1} %y = pad %c {pads=[1,2,0,3], value=2}"),
        MOVE("%x: bf16[3,9], %z: bf16[3,9]",
             "%c = concat %x, %x, %z, %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, "
             "%x, %x, %z {axis=1} %y = neg %c"),
        MOVE("%x: f32[2,3], %z: f32[2,3]",
             "%c = concat %x, %z {axis=0} "
             "%y = slice %c {starts=[2,0], sizes=[2,3], steps=[1,1]}"),
        MOVE("%x: f32[0,3], %z: f32[0,3]", "%y = concat %x, %z {axis=0}"),
        MOVE("%x: f32[2,9]",
             "%a = slice %x {starts=[0,0], sizes=[2,3], steps=[1,1]} "
             "%b = slice %x {starts=[0,3], sizes=[2,3], steps=[1,1]} "
             "%c = slice %x {starts=[0,6], sizes=[2,3], steps=[1,1]} "
             "%d = mul %a, %b %y = sub %d, %c"),
        MOVE("%x: f32[10,4], %i: i64[3,2]", "%y = gather %x, %i {axis=0}"),
        MOVE("%x: bf16[3,10,4], %i: i32[5]", "%y = gather %x, %i {axis=1}"),
        MOVE("%x: f32[3,10], %i: i64[]", "%y = gather %x, %i {axis=1}"),
        MOVE("%x: f32[2,5,6]", "%y = trilu %x {upper=1, k=1}"),
        MOVE("%x: f32[2,5,6]", "%y = trilu %x {upper=0, k=-2}"),
        MOVE("%x: f32[4,6], %z: f32[6,4]",
             "%n = neg %x %t = transpose %n {perm=[1,0]} "
             "%p = pad %t {pads=[0,1,1,0], value=3} %q = mul %p, %p "
             "%u = slice %q {starts=[1,0], sizes=[6,4], steps=[1,1]} "
             "%y = add %u, %z"),
        MOVE("%x: f32[4,6], %z: f32[2,6], %i: i64[7]",
             "%c = concat %x, %z {axis=0} %g = gather %c, %i {axis=0} "
             "%e = gather %g, %i {axis=1} %y = trilu %e {upper=1}"),
        MOVE("%x: f32[6,1,5], %i: i64[2,2]",
             "%a = abs %x %b = gather %a, %i {axis=2} "
             "%y = expand %b {shape=[6,3,2,2]}"),
        MOVE("%x: f32[3,4], %i: i64[5], %j: i64[2]",
             "%a = gather %x, %i {axis=0} %y = gather %a, %j {axis=1}"),
        MOVE("%x: f32[0,4], %z: f32[2,4]", "%y = concat %x, %z {axis=0}"),
        /* tiles, the last ones incomplete */
        MOVE("%x: f32[150,2,20], %z: f32[2,20,150]",
             "%t = transpose %x {perm=[1,2,0]} %y = add %t, %z"),
        MOVE("%x: f16[131,17], %z: bf16[17,131]",
             "%t = transpose %x {perm=[1,0]} %c = cast %z : f16[17,131] "
             "%y = mul %t, %c"),
        MOVE("%x: f32[90,9], %z: f32[60,9]",
             "%c = concat %x, %z {axis=0} %y = transpose %c {perm=[1,0]}"),
    };
    CHECK_GRAPHS(s, "");
}

/* ---- sets of kernels ----------------------------------------------------- */

/* 300 kernels of one form, whatever there is of the other; the second time all
   are found. */
TEST_CASE(kernel_set, holds_any_number_of_either_form) {
    enum { N = 300 };
    static const KForm forms[] = {KF_FLAT, KF_EPILOGUE};
    for (int form = 0; form < 2; form++) {
        Arena *a = arena_new();
        KernelSet *ks = kernel_set_new(a, TARGET_CPU, 0);
        const Kernel *first[N];
        for (int again = 0; again < 2; again++)
            for (int i = 0; i < N; i++) {
                Kernel k = {.form = forms[form], .vec = -1};
                KInst number = {.i = i};
                vec_push(a, &k.insts, (KInst){.i = 0});
                vec_push(a, &k.insts, number);
                const Kernel *got = kernel_set_add(ks, &k);
                if (!again) first[i] = got;
                CHECK(got == first[i]);
                CHECK_EQ_INT(kernel_index(got), i);
            }
        CHECK_EQ_INT(kernel_set_count(ks, form), N);
        CHECK_EQ_INT(kernel_set_count(ks, !form), 0);
        arena_free(a);
    }
}
