/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_test.c: kernels of every kind of group compute the interpreter's
   results (subject.h). */
#include "runtime/cpu/kernels.h"
#include "tests/harness.h"
#include "tests/support/subject.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

#define MOVE(in, nodes)                                                        \
    { .text = "graph g(" in ") { group point { " nodes " } return %y }" }

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

/* ---- reductions ---------------------------------------------------------- */

#define ROW(in, nodes, out)                                                    \
    "graph g(" in ") { group row { " nodes " } return " out " }"

TEST_CASE(kernel, reductions) {
    Subject s[] = {
        {.text = ROW("%x: f32[7,1000]", "%y = reduce_sum %x {axes=[1]}", "%y"),
         .ulps = 4,
         .scale = 128},
        {.text = ROW("%x: f32[1000,70]", "%y = reduce_sum %x {axes=[0]}", "%y"),
         .ulps = 8,
         .scale = 512},
        {.text =
             ROW("%x: bf16[5,6,7]", "%y = reduce_mean %x {axes=[0,2]}", "%y"),
         .ulps = 1},
        {.text = ROW("%x: bf16[5,6,7]",
                     "%y = reduce_mean %x {axes=[0,2]} : f32[1,6,1]", "%y"),
         .ulps = 8,
         .scale = 32},
        /* a kernel rounds its own sum before it reads it */
        {.text = ROW("%x: bf16[5,300]",
                     "%r = reduce_sum %x {axes=[1]} : bf16[5,1] "
                     "%y = sub %x, %r : f32[5,300]",
                     "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = ROW("%x: bf16[300,6]",
                     "%r = reduce_mean %x {axes=[0]} : bf16[1,6] "
                     "%y = mul %r, 3 : f32[1,6]",
                     "%y"),
         .ulps = 8,
         .scale = 4},
        {.text =
             ROW("%x: f32[3,4,5]", "%y = reduce_max %x {axes=[0,1,2]}", "%y")},
        {.text = ROW("%x: f32[40,35]", "%y = reduce_min %x {axes=[0]}", "%y")},
        {.text = ROW("%x: f16[40,35]", "%y = reduce_max %x {axes=[0]}", "%y")},
        {.text = ROW("%x: i32[40,35]",
                     "%y = reduce_sum %x {axes=[0]} "
                     "%z = reduce_max %x {axes=[0]}",
                     "%y, %z")},
        {.text = ROW("%x: i64[4,35]",
                     "%y = reduce_prod %x {axes=[1]} "
                     "%z = reduce_mean %x {axes=[1]}",
                     "%y, %z")},
        {.text = ROW("%x: f32[20,35], %z: f32[20,35]",
                     "%c = concat %x, %z {axis=0} "
                     "%y = reduce_max %c {axes=[1]}",
                     "%y")},
        {.text = ROW("%x: f32[20,35], %z: f32[20,35]",
                     "%c = concat %x, %z {axis=0} "
                     "%y = reduce_max %c {axes=[0]}",
                     "%y")},
        {.text = ROW("%x: f32[2,900]",
                     "%y = reduce_sumsq %x {axes=[0,1]} : f64[1,1]", "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = ROW("%x: f64[20,30]", "%y = reduce_sum %x {axes=[1]}", "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = ROW("%x: f32[0,30]",
                     "%y = reduce_sum %x {axes=[0]} "
                     "%z = reduce_max %x {axes=[0]}",
                     "%y, %z")},
        {.text = ROW("%x: f32[3,0]", "%y = reduce_prod %x {axes=[1]}", "%y")},
        {.text = ROW("%x: f32[5,1]", "%y = reduce_sum %x {axes=[1]}", "%y")},
        {.text = ROW("%x: f32[1,5]", "%y = reduce_sum %x {axes=[0]}", "%y")},
        /* operands that do not vary along the columns */
        {.text = ROW("%x: f32[5,1], %z: f32[5,9]",
                     "%e = mul %x, %z "
                     "%q = expand %x {shape=[5,9]} "
                     "%y = reduce_sum %q {axes=[1]} "
                     "%w = reduce_max %e {axes=[1]}",
                     "%y, %w"),
         .ulps = 2},
        {.text =
             ROW("%x: f32[4,3,5,6]", "%y = reduce_sum %x {axes=[1,3]}", "%y"),
         .ulps = 8,
         .scale = 32},
        {.text =
             ROW("%x: f32[4,200,5]", "%y = reduce_sum %x {axes=[0,1]}", "%y"),
         .ulps = 8,
         .scale = 512},
        /* rows of a table, each folded in place */
        {.text = ROW("%x: f32[5,4,8]",
                     "%e = pad %x {pads=[0,2,0,0,3,0], mode=\"edge\"} "
                     "%y = reduce_sum %e {axes=[1,2]}",
                     "%y"),
         .ulps = 8,
         .scale = 128},
        /* fewer neighbours than a vector; a shared mask */
        {.text = ROW("%x: f32[6,40,8], %m: bool[6,40,1], %v: f32[6,40,8]",
                     "%w = where %m, %v, %x %e = exp %w "
                     "%y = reduce_sum %e {axes=[1]}",
                     "%e, %y"),
         .ulps = 8,
         .scale = 128},
    };
    CHECK_GRAPHS(s, "");
}

TEST_CASE(kernel, softmax_and_norms) {
    Subject s[] = {
        {.text = ROW("%x: f32[5,1000]",
                     "%m = reduce_max %x {axes=[1]} %d = sub %x, %m "
                     "%e = exp %d %s = reduce_sum %e {axes=[1]} "
                     "%y = div %e, %s",
                     "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = ROW("%x: bf16[5,5000]",
                     "%c = cast %x : f32[5,5000] "
                     "%m = reduce_max %c {axes=[1]} %d = sub %c, %m "
                     "%e = exp %d %s = reduce_sum %e {axes=[1]} "
                     "%y = div %e, %s : bf16[5,5000]",
                     "%y"),
         .ulps = 1},
        {.text = ROW("%x: f32[33,50]",
                     "%m = reduce_max %x {axes=[0]} %d = sub %x, %m "
                     "%e = exp %d %s = reduce_sum %e {axes=[0]} "
                     "%y = div %e, %s",
                     "%y"),
         .ulps = 8,
         .scale = 32},
        /* equally many loads in both directions: columns with many
           transposed loads */
        {.text = ROW("%x: f32[20,200], %t: f32[200,20]",
                     "%u = transpose %t {perm=[1,0]} %a = add %x, %u "
                     "%m = reduce_max %a {axes=[1]} %d = sub %a, %m "
                     "%e = exp %d %s = reduce_sum %e {axes=[1]} "
                     "%y = div %e, %s",
                     "%y"),
         .ulps = 8,
         .scale = 32},
        /* over the channels of an image */
        {.text = ROW("%x: f32[2,3,70]",
                     "%m = reduce_max %x {axes=[1]} %d = sub %x, %m "
                     "%e = exp %d %s = reduce_sum %e {axes=[1]} "
                     "%y = div %e, %s",
                     "%y, %s"),
         .ulps = 8,
         .scale = 32},
        /* layer norm, with its statistics */
        {.text = ROW("%x: f32[6,300], %g: f32[300], %b: f32[300]",
                     "%m = reduce_mean %x {axes=[1]} %d = sub %x, %m "
                     "%q = mul %d, %d %v = reduce_mean %q {axes=[1]} "
                     "%e = full {value=1e-5} : f32[] %w = add %v, %e "
                     "%r = rsqrt %w %n = mul %d, %r %o = mul %n, %g "
                     "%y = add %o, %b",
                     "%y, %m, %r"),
         .ulps = 8,
         .scale = 64},
        /* batch norm: rows are channels, columns are samples and pixels */
        {.text = ROW("%x: bf16[4,3,50], %g: f32[3,1], %b: f32[3,1]",
                     "%c = cast %x : f32[4,3,50] "
                     "%m = reduce_mean %c {axes=[0,2]} %d = sub %c, %m "
                     "%q = mul %d, %d %v = reduce_mean %q {axes=[0,2]} "
                     "%e = full {value=1e-5} : f32[] %w = add %v, %e "
                     "%r = rsqrt %w %n = mul %d, %r %o = mul %n, %g "
                     "%y = add %o, %b : bf16[4,3,50]",
                     "%y, %m"),
         .ulps = 8,
         .scale = 32},
        /* gradients of scale and shift, one pass, and a masked sum */
        {.text = ROW("%dy: f32[300,70], %n: f32[300,70], %k: f32[1,70]",
                     "%p = mul %dy, %n %a = reduce_sum %p {axes=[0]} "
                     "%b = reduce_sum %dy {axes=[0]} %s = mul %k, %a "
                     "%y = mul %dy, %s",
                     "%y, %a, %b, %s"),
         .ulps = 8,
         .scale = 1024},
        /* cross-entropy: one-hot from indices */
        {.text = ROW("%x: f32[9,10], %t: i64[9,1]",
                     "%m = reduce_max %x {axes=[1]} %d = sub %x, %m "
                     "%e = exp %d %s = reduce_sum %e {axes=[1]} "
                     "%l = log %s %z = sub %d, %l "
                     "%i = iota {axis=1} : i64[9,10] %h = equal %i, %t "
                     "%o = full {value=0} : f32[] %w = where %h, %z, %o "
                     "%y = reduce_sum %w {axes=[1]}",
                     "%y, %m"),
         .ulps = 8,
         .scale = 32},
    };
    CHECK_GRAPHS(s, "-O3");
}

/* ---- library calls and epilogues ----------------------------------------- */

#define ANCHOR(in, nodes, out)                                                 \
    "graph g(" in ") { group anchor { " nodes " } return " out " }"
#define LIB(in, node, out)                                                     \
    "graph g(" in ") { group lib { " node " } return " out " }"

TEST_CASE(kernel, matrix_products) {
    Subject s[] = {
        {.text =
             ANCHOR("%x: f32[5,7], %w: f32[7,9]", "%y = matmul %x, %w", "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = ANCHOR("%x: f32[7,5], %w: f32[9,7]",
                        "%y = matmul %x, %w {trans_a=1, trans_b=1}", "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = ANCHOR("%x: f32[5,7], %w: f32[7,30], %b: f32[30]",
                        "%z = matmul %x, %w %a = add %z, %b %y = relu %a",
                        "%y, %a"),
         .ulps = 8,
         .scale = 32},
        {.text = ANCHOR("%x: bf16[2,3,4,16], %w: bf16[16,20], %b: bf16[20], "
                        "%r: f32[3,1,20]",
                        "%z = matmul %x, %w %a = add %z, %b "
                        "%t = tanh %a %y = add %t, %r",
                        "%z, %y"),
         .ulps = 8,
         .scale = 64},
        {.text = ANCHOR("%x: f32[2,3,4,6], %w: f32[2,1,6,5], %r: f32[3,4,1]",
                        "%z = matmul %x, %w %y = mul %z, %r", "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = ANCHOR("%x: f32[3,6,4], %w: f32[6,5], %r: f32[3,4,5]",
                        "%z = matmul %x, %w {trans_a=1} %y = add %z, %r", "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = ANCHOR("%x: f32[6,1], %w: f32[1,5]",
                        "%z = matmul %x, %w "
                        "%y = neg %z",
                        "%y")},
        {.text =
             ANCHOR("%x: f64[6,8], %w: f64[8,5]", "%y = matmul %x, %w", "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = ANCHOR("%x: f16[6,8], %w: f16[8,5]",
                        "%y = matmul %x, %w : f32[6,5]", "%y"),
         .ulps = 8,
         .scale = 32},
    };
    CHECK_GRAPHS(s, "");
}

/* Parts of unequal sizes along the rows: each computes only its own part,
   with loads of every kind, in folds and kept values, within pads,
   backwards. */
TEST_CASE(kernel, parts_of_rows) {
    Subject s[] = {
        MOVE("%x: f32[3,2,40], %z: f32[3,5,40], %w: f32[3,1,40]",
             "%a = abs %x %b = neg %w %c = concat %a, %z, %b, %x {axis=1} "
             "%y = mul %c, %c"),
        MOVE("%x: bf16[2,150], %z: f16[5,150], %k: f32[7,1]",
             "%c = concat %x, %z {axis=0} : f16[7,150] "
             "%d = mul %c, %k : f16[7,150] %y = neg %d"),
        MOVE("%x: bf16[3,4,300], %z: bf16[3,3,300], %w: f32[3,1,300]",
             "%c = concat %z, %x, %z {axis=1} : bf16[3,10,300] "
             "%s = slice %c {starts=[0,9,0], sizes=[3,9,300], steps=[1,-1,1]} "
             "%y = mul %s, %w : bf16[3,9,300]"),
        MOVE("%x: f32[4,1,30], %z: f32[4,4,30]",
             "%c = concat %x, %z {axis=1} %y = pad %c {pads=[0,2,1,0,3,2], "
             "value=1.5}"),
        MOVE("%x: f32[2,30], %z: f32[3,20], %w: f32[3,10]",
             "%c = concat %z, %w {axis=1} %y = concat %x, %c {axis=0}"),
        {.text = ROW("%x: f32[2,300], %z: f32[5,300], %k: f32[5,1]",
                     "%e = exp %x %f = mul %z, %k %c = concat %e, %f {axis=0} "
                     "%s = reduce_sum %c {axes=[1]} %m = reduce_max %c "
                     "{axes=[1]} %d = div %c, %s",
                     "%s, %m, %d"),
         .ulps = 8,
         .scale = 128},
        {.text = ROW("%x: f16[20,3,35], %z: f16[20,5,35]",
                     "%c = concat %x, %z {axis=1} "
                     "%y = reduce_sumsq %c {axes=[0,2]} : f32[1,8,1]",
                     "%y"),
         .ulps = 8,
         .scale = 512},
    };
    CHECK_GRAPHS(s, "");
}

/* fp16 is converted in pieces: read one by one, transposed, with a stride,
   under guards, and if it is rounded for something other than the store. */
TEST_CASE(kernel, pieces_of_fp16) {
    Subject s[] = {
        {.text = "graph g(%a: f16[7,300], %b: f16[300,1], %c: f16[1,300]) {"
                 "group point { %d = transpose %b {perm=[1,0]} "
                 "%e = mul %a, %d %f = add %e, %c : f16[7,300] "
                 "%m = less_equal %f, %c } return %f, %m }"},
        {.text = "graph g(%x: f16[5,40], %z: f16[5,90]) { group point {"
                 "%c = concat %x, %z {axis=1} %y = neg %c : f16[5,130] }"
                 " return %y }"},
        {.text = ROW("%x: f16[5,1100], %k: f32[5,1]",
                     "%p = mul %x, %k : f16[5,1100] "
                     "%s = reduce_sum %p {axes=[1]} : f32[5,1] "
                     "%y = div %p, %s : f16[5,1100]",
                     "%y, %s"),
         .ulps = 8,
         .scale = 1024},
        {.text = ROW("%x: f16[300,70], %k: f16[1,70]",
                     "%p = mul %x, %k : f32[300,70] "
                     "%s = reduce_sum %p {axes=[0]} "
                     "%y = sub %p, %s : f16[300,70]",
                     "%y, %s"),
         .ulps = 8,
         .scale = 1024},
        {.text = ANCHOR("%x: f16[9,8], %w: f16[8,150], %b: f16[150]",
                        "%z = matmul %x, %w : f32[9,150] "
                        "%a = add %z, %b : f16[9,150] %y = relu %a",
                        "%y, %a"),
         .ulps = 8,
         .scale = 32},
    };
    CHECK_GRAPHS(s, "");
}

/* bf16, too, if positions need no order: not beside fp32, element numbers or
   values kept for a later sweep. */
TEST_CASE(kernel, pieces_of_bf16) {
    Subject s[] = {
        {.text = "graph g(%a: bf16[7,300], %b: bf16[7,1], %c: bf16[1,300]) {"
                 "group point { %e = mul %a, %b : bf16[7,300] "
                 "%f = add %e, %c : bf16[7,300] } return %f, %e }"},
        {.text = "graph g(%x: bf16[1537]) { group point { %y = neg %x } "
                 "return %y }"},
        {.text = "graph g(%x: bf16[5,300]) { group point {"
                 "%y = neg %x %z = relu %x } return %y, %z }"},
        {.text = "graph g(%x: bf16[2,1,210]) { group point {"
                 "%y = expand %x {shape=[2,3,210]} } return %y }"},
        {.text = "graph g(%a: bf16[7,300], %b: f32[7,300]) { group point {"
                 "%c = mul %a, %b : bf16[7,300] %m = less_equal %a, %c }"
                 " return %c, %m }"},
        {.text = "graph g(%x: bf16[5,140], %z: bf16[5,190]) { group point {"
                 "%c = concat %x, %z {axis=1} %y = neg %c : bf16[5,330] }"
                 " return %y }"},
        {.text = "graph g(%x: bf16[3,600]) { group point {"
                 "%i = iota {axis=1} : i64[3,600] %j = cast %i : f32[3,600] "
                 "%y = mul %x, %j : bf16[3,600] } return %y }"},
        {.text = ROW("%x: bf16[5,1100], %k: f32[5,1]",
                     "%p = mul %x, %k : bf16[5,1100] "
                     "%s = reduce_sum %p {axes=[1]} : f32[5,1] "
                     "%y = div %p, %s : bf16[5,1100]",
                     "%y, %s"),
         .ulps = 8,
         .scale = 1024},
        {.text = ROW("%x: bf16[5,700]",
                     "%e = exp %x : f32[5,700] "
                     "%s = reduce_sum %e {axes=[1]} : f32[5,1] "
                     "%y = div %e, %s : bf16[5,700]",
                     "%y"),
         .ulps = 8,
         .scale = 1024},
        {.text = ROW("%x: bf16[300,170]",
                     "%s = reduce_sum %x {axes=[0]} : f32[1,170] "
                     "%y = sub %x, %s : bf16[300,170]",
                     "%y, %s"),
         .ulps = 8,
         .scale = 1024},
    };
    CHECK_GRAPHS(s, "");
}

/* Sums are added in blocks of 16 columns, with and without stores beside
   them, in one or several pieces of columns, with a remainder. */
TEST_CASE(kernel, sums_in_blocks) {
    static const int length[] = {32, 33, 47, 196, 784, 1039, 2048, 2060};
    static const char *const dtype[] = {"f32", "f16", "bf16"};
    Subject s[8 * 3 * 2];
    char text[8 * 3 * 2][300];
    for (int i = 0; i < 8 * 3; i++) {
        int n = length[i / 3];
        const char *d = dtype[i % 3];
        char *sum = text[2 * i], *squares = text[2 * i + 1];
        snprintf(sum, sizeof *text,
                 ROW("%%a: %s[3,2,%d], %%b: %s[3,2,%d], %%k: f32[1,2,1]",
                     "%%d = sub %%a, %%k : f32[3,2,%d] "
                     "%%p = mul %%d, %%b : %s[3,2,%d] "
                     "%%s = reduce_sum %%p {axes=[0,2]} : f32[1,2,1]",
                     "%%p, %%s"),
                 d, n, d, n, n, d, n);
        s[2 * i] = (Subject){.text = sum, .ulps = 8, .scale = 4096};
        snprintf(squares, sizeof *text,
                 ROW("%%a: %s[3,2,%d], %%k: f32[1,2,1]",
                     "%%d = sub %%a, %%k : f32[3,2,%d] "
                     "%%q = reduce_sumsq %%d {axes=[0,2]} : f64[1,2,1]",
                     "%%q"),
                 d, n, n);
        /* the interpreter adds them in sequence, with 3 n roundings */
        s[2 * i + 1] = (Subject){.text = squares, .ulps = 3 * n};
    }
    CHECK_GRAPHS(s, "");
}

TEST_CASE(kernel, convolutions) {
    Subject s[] = {
        {.text = ANCHOR("%x: f32[2,3,8,8], %w: f32[4,3,3,3], %b: f32[4,1,1]",
                        "%z = conv %x, %w {pads=[1,1,1,1]} "
                        "%a = add %z, %b %y = relu %a",
                        "%y"),
         .ulps = 8,
         .scale = 64},
        {.text = ANCHOR("%x: f32[2,4,9], %w: f32[6,2,3], %r: f32[2,6,1], "
                        "%q: f32[5]",
                        "%z = conv %x, %w {strides=[2], pads=[1,1], group=2} "
                        "%a = mul %z, %r %y = add %a, %q",
                        "%z, %y"),
         .ulps = 8,
         .scale = 64},
        {.text =
             ANCHOR("%x: f32[2,3,5,6], %w: f32[4,3,1,1], %q: f32[5,1], "
                    "%r: f32[2,1,1,6]",
                    "%z = conv %x, %w %a = add %z, %q %y = mul %a, %r", "%y"),
         .ulps = 8,
         .scale = 64},
        {.text = LIB("%d: f32[2,4,4,4], %w: f32[4,3,3,3]",
                     "%y = conv_dgrad %d, %w {shape=[2,3,8,8], strides=[2,2], "
                     "pads=[1,1,1,1]}",
                     "%y"),
         .ulps = 8,
         .scale = 64},
        {.text = LIB("%x: f32[2,3,8,8], %d: f32[2,4,8,8]",
                     "%y = conv_wgrad %x, %d {shape=[4,3,3,3], "
                     "pads=[1,1,1,1]}",
                     "%y"),
         .ulps = 8,
         .scale = 64},
    };
    CHECK_GRAPHS(s, "");
}

/* Pools of a convolution's result: alone, after an epilogue, also stored;
   overlapping windows and pads, more images than are computed at a time. */
TEST_CASE(kernel, pools_behind_convolutions) {
    Subject s[] = {
        {.text = ANCHOR("%x: f32[2,3,8,8], %w: f32[4,3,3,3]",
                        "%z = conv %x, %w {pads=[1,1,1,1]} "
                        "%y, %i = max_pool %z {kernel_shape=[2,2], "
                        "strides=[2,2], sizes=[4,4]}",
                        "%y"),
         .ulps = 8,
         .scale = 64},
        {.text = ANCHOR("%x: f32[2,3,8,8], %w: f32[4,3,3,3]",
                        "%z = conv %x, %w {pads=[1,1,1,1]} "
                        "%y, %i = max_pool %z {kernel_shape=[2,2], "
                        "strides=[2,2], sizes=[4,4]}",
                        "%y, %z"),
         .ulps = 8,
         .scale = 64},
        {.text = ANCHOR("%x: f32[2,3,8,8], %w: f32[4,3,3,3], %b: f32[4,1,1]",
                        "%z = conv %x, %w {pads=[1,1,1,1]} "
                        "%a = add %z, %b %r = relu %a "
                        "%y, %i = max_pool %r {kernel_shape=[3,3], "
                        "strides=[2,2], pads=[1,1,0,0], sizes=[4,4]}",
                        "%y, %i, %a"),
         .ulps = 8,
         .scale = 64},
        {.text = ANCHOR("%x: f32[37,3,40,40], %w: f32[4,3,1,1], "
                        "%q: f32[37,4,40,40]",
                        "%z = conv %x, %w %a = mul %z, %q "
                        "%y = avg_pool %a {kernel_shape=[40,40], "
                        "strides=[1,1], sizes=[1,1]}",
                        "%a, %y"),
         .ulps = 8,
         .scale = 64},
        {.text = ANCHOR("%x: f32[5,4,90], %w: f32[300,4,3]",
                        "%z = conv %x, %w %a = neg %z : bf16[5,300,88] "
                        "%y = avg_pool %a {kernel_shape=[4], strides=[3], "
                        "pads=[2,2], sizes=[30]}",
                        "%y"),
         .ulps = 8,
         .scale = 64},
        {.text = ANCHOR("%x: f32[2,2,3,5,5], %w: f32[3,2,2,2,2]",
                        "%z = conv %x, %w "
                        "%y = avg_pool %z {kernel_shape=[2,2,2], "
                        "strides=[1,1,1], sizes=[1,3,3]}",
                        "%z, %y"),
         .ulps = 8,
         .scale = 64},
    };
    CHECK_GRAPHS(s, "");
}

TEST_CASE(kernel, routines) {
    Subject s[] = {
        {.text = LIB("%x: f32[2,3,9,8]",
                     "%y, %i = max_pool %x {kernel_shape=[3,2], strides=[2,2],"
                     " pads=[1,0,0,1], sizes=[4,4]}",
                     "%y, %i")},
        {.text = LIB("%x: bf16[2,3,9]",
                     "%y = avg_pool %x {kernel_shape=[3], strides=[2],"
                     " pads=[1,1], sizes=[5]}",
                     "%y"),
         .ulps = 1},
        {.text = LIB("%x: f32[2,3,8]",
                     "%y = avg_pool %x {kernel_shape=[3], strides=[2],"
                     " pads=[0,1], sizes=[4], count_include_pad=1}",
                     "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = LIB("%x: f32[2,3,5]",
                     "%y = avg_pool_grad %x {shape=[2,3,9], kernel_shape=[3],"
                     " strides=[2], pads=[1,1], sizes=[5],"
                     " count_include_pad=1}",
                     "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = LIB("%x: f32[3,2,4], %i: i64[3,2]",
                     "%y = scatter_add %x, %i {axis=0, shape=[10,4]}", "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = LIB("%x: f32[3,5,4]", "%y = argmax %x {axis=1}", "%y")},
        {.text = LIB("%x: f32[8,7]",
                     "%y = pad_grad %x {shape=[4,5], "
                     "pads=[1,2,3,0], mode=\"constant\"}",
                     "%y")},
        {.text = LIB("%x: f32[8,7]",
                     "%y = pad_grad %x {shape=[4,5], "
                     "pads=[1,2,3,0], mode=\"edge\"}",
                     "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = LIB("%x: f32[8,7]",
                     "%y = pad_grad %x {shape=[4,5], "
                     "pads=[1,2,3,0], mode=\"reflect\"}",
                     "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = LIB("%x: f64[8,11]",
                     "%y = pad_grad %x {shape=[4,5], "
                     "pads=[1,2,3,4], mode=\"wrap\"}",
                     "%y"),
         .ulps = 8,
         .scale = 32},
    };
    CHECK_GRAPHS(s, "");
}
