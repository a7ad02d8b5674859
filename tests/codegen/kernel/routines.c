/* SPDX-License-Identifier: Apache-2.0 */
/* routines.c: calls of routines and their epilogues. */
#include "runtime/cpu/kernels.h"
#include "tests/codegen/kernel/kernel.h"
#include "tests/harness.h"
#include "tests/support/subject.h"

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
