/* SPDX-License-Identifier: Apache-2.0 */
/* products.c: reductions, products, convolutions and pools. */
#include <math.h>

#include "tests/harness.h"
#include "tests/ir/eval/eval.h"

/* ---- reductions ---------------------------------------------------------- */

TEST_CASE(eval, reductions) {
#define REDUCED(op, ...)                                                       \
    EXPECT("g() {\nconst %x: f32[2,3] = [1, -2, 3, 4, 5, -6]\n"                \
           "%y = " op "\nreturn %y",                                           \
           __VA_ARGS__)
    REDUCED("reduce_sum %x {axes=[1]}", 2, 3);
    REDUCED("reduce_sum %x {axes=[0], keepdims=0}", 5, 3, -3);
    REDUCED("reduce_mean %x {axes=[0,1], keepdims=0}", 5.0 / 6);
    REDUCED("reduce_sumsq %x {axes=[1]}", 14, 77);
    REDUCED("reduce_prod %x {axes=[1]}", -6, -120);
    REDUCED("reduce_max %x {axes=[0]}", 4, 5, 3);
    REDUCED("reduce_min %x {axes=[1]}", -2, -6);
    REDUCED("argmax %x {axis=1, keepdims=0}", 2, 1);
    EXPECT("g() {\nconst %x: f32[3] = [1, nan, 3]\n"
           "%a = reduce_max %x {axes=[0]}\n%b = reduce_min %x {axes=[0]}\n"
           "%c = argmax %x {axis=0}\nreturn %a, %b, %c",
           NAN, NAN, 1);
    EXPECT("g() {\nconst %x: f32[2,3] = [1, nan, nan, nan, 2, nan]\n"
           "%a = argmax %x {axis=1, keepdims=0}\n"
           "%b = argmax %x {axis=0, keepdims=0}\nreturn %a, %b",
           1, 0, 1, 0, 0);
    EXPECT("g() {\nconst %x: i32[4] = [5, 2, 5, 1]\n"
           "%a = reduce_prod %x {axes=[0]}\n%b = argmax %x {axis=0}\n"
           "%c = reduce_max %x {axes=[0]}\nreturn %a, %b, %c",
           50, 0, 5);
}

/* ---- products and convolutions ------------------------------------------- */

TEST_CASE(eval, matmul) {
    EXPECT("g(%a: f64[2,1,2,3], %b: f64[3,3,2]) {\n%y = matmul %a, %b\n"
           "return %y",
           0.25, -1.9375, -1.3125, 1.375, 0.875, -1.3125, -1.6875, 1, -1.9375,
           0.6875, 1.375, 1.3125, -1.5, 1.25, -1.6875, 1.125, -1.5, 1.25,
           -1.3125, 1.5, 1.25, 1.25, 1.125, 1.1875);
    EXPECT("g(%a: f64[3,2], %b: f64[2,3]) {\n"
           "%y = matmul %a, %b {trans_a=1, trans_b=1}\nreturn %y",
           0.0625, 0.4375, 1.125, 0.875);
}

static double filled(int input, int i) {
    return (double)((7 * i + 3 * input) % 11 - 5) / 4;
}

/* Scales of two blocks of a line lie side by side in their tile, line 32's
   behind line 0's. */
TEST_CASE(eval, matmul_with_scales_of_blocks) {
    double want[80] = {0};
    for (int i = 0; i < 40; i++)
        for (int j = 0; j < 2; j++)
            for (int k = 0; k < 64; k++)
                want[i * 2 + j] +=
                    filled(0, i * 64 + k) * filled(1, j * 64 + k) *
                    filled(2, i % 32 * 16 + i / 32 * 4 + k / 32) *
                    filled(3, j * 16 + k / 32);
    expect_at(__FILE__, __LINE__, EVAL_EXACT,
              "g(%a: f8e4m3[40,64], %b: f8e4m3[2,64], %s: e8m0[512], "
              "%t: e8m0[512]) on cuda {\n"
              "%y = matmul %a, %b, %s, %t {trans_b=1} : f32[40,2]\nreturn %y",
              80, want);
}

#define CONV2D "{strides=[2,1], pads=[1,1,2,0], dilations=[1,2], group=2}"

TEST_CASE(eval, conv) {
    EXPECT("g(%x: f64[1,2,5,4], %w: f64[4,1,3,2]) {\n"
           "%y = conv %x, %w " CONV2D "\nreturn %y",
           -0.375, 0.3125, -1.5625, -1.5, 1.5625, 1, -1.375, 1.125, 1.5625,
           -0.25, 0.5625, -2.0625, -1.25, 0.6875, 1.75, -1.625, 0.625, 1.6875,
           -1.5, -2.0625, 1.4375, 1.5625, -2.8125, 2.625, -0.0625, -1.875,
           -0.875, 1.4375, -1, -1, -1.875, -1.4375, 1.5, 0.4375, -2.25, -0.625);
    EXPECT("g(%x: f64[2,2,6], %w: f64[3,2,3]) {\n"
           "%y = conv %x, %w {strides=[2], pads=[1,1]}\nreturn %y",
           -0.4375, -1.5625, -1.3125, -0.5625, -2.0625, -1.3125, -0.6875,
           -1.1875, 4.1875, 0.5, 3.375, -1.875, 1, 3.125, -1.625, 1.5, -1.25,
           -1.375);
    EXPECT("g(%x: f64[1,1,2,3,2], %w: f64[1,1,2,2,2]) {\n"
           "%y = conv %x, %w\nreturn %y",
           2.75, 0.75);
}

TEST_CASE(eval, conv_gradients) {
    EXPECT("g(%x: f64[1,2,5,4], %w: f64[4,1,3,2], %dy: f64[1,4,3,3]) {\n"
           "%dx = conv_dgrad %dy, %w {shape=[1,2,5,4], strides=[2,1], "
           "pads=[1,1,2,0], dilations=[1,2], group=2}\nreturn %dx",
           -0.5, 0.625, -1, -1.0625, -0.625, 0.4375, -1.125, 0.8125, -0.5,
           1.125, -0.5, -0.5625, -0.625, 0.0625, -1.5, 0.4375, -0.5, 1.625, 0,
           -0.0625, -0.0625, 1.0625, 0.375, -1.125, 0.0625, 3, -0.625, -1.5625,
           0.4375, 0.5, 0, -0.125, -0.3125, -1.5625, -0.6875, 1.8125, 0.9375,
           0.625, -0.375, -0.5);
    EXPECT("g(%x: f64[1,2,5,4], %w: f64[4,1,3,2], %dy: f64[1,4,3,3]) {\n"
           "%dw = conv_wgrad %x, %dy {shape=[4,1,3,2], strides=[2,1], "
           "pads=[1,1,2,0], dilations=[1,2], group=2}\nreturn %dw",
           -1.6875, -2.3125, 4.4375, 0.3125, -1.8125, -2, 0.75, 2.9375, -3.25,
           -2.125, 0.625, 3.25, 0.1875, 1.4375, 0.5, -2.125, 0, -2.125, 0.75,
           -1.625, -1.0625, 2.5625, -2.875, 0.3125);
}

/* ---- pools --------------------------------------------------------------- */

TEST_CASE(eval, max_pool) {
    EXPECT("g(%x: f64[1,2,5,5]) {\n%y, %i = max_pool %x {kernel_shape=[3,3], "
           "strides=[2,2], pads=[1,1,1,1], sizes=[3,3]}\n"
           "%p = pool_positions %i {shape=[1,2,5,5], kernel_shape=[3,3], "
           "strides=[2,2], pads=[1,1,1,1]}\nreturn %y, %p",
           1, 1.25, 1.25, 1, 1, 1.25, 0.75, 1, 0.5, 1.25, 1, 1, 1.25, 1.25, 1,
           0.5, 1.25, 0.25, 6, 3, 3, 6, 6, 14, 20, 17, 23, 25, 28, 28, 36, 36,
           39, 45, 47, 48);
    EXPECT("g(%x: f64[1,1,5,5]) {\n%y, %i = max_pool %x {kernel_shape=[2,2], "
           "strides=[2,2], dilations=[2,2], sizes=[2,2]}\n"
           "%p = pool_positions %i {shape=[1,1,5,5], kernel_shape=[2,2], "
           "strides=[2,2], dilations=[2,2]}\nreturn %y, %p",
           0.5, 1.25, 0.75, 1.25, 12, 14, 20, 14);
    /* ceil mode */
    EXPECT("g(%x: f64[1,1,5,5]) {\n%y, %i = max_pool %x {kernel_shape=[2,2], "
           "strides=[2,2], sizes=[3,3]}\n"
           "%p = pool_positions %i {shape=[1,1,5,5], kernel_shape=[2,2], "
           "strides=[2,2]}\nreturn %y, %p",
           1, 1.25, 0.75, 0.25, 1, 1.25, 0.75, 0.5, -0.5, 6, 3, 9, 15, 17, 14,
           20, 23, 24);
    /* the first maximum wins, and NaN above all */
    EXPECT("g() {\nconst %x: f32[1,1,4] = [2, 2, 5, nan]\n"
           "%y, %i = max_pool %x {kernel_shape=[2], strides=[2], sizes=[2]}\n"
           "return %y, %i",
           2, NAN, 0, 1);
}

TEST_CASE(eval, max_pool_grad) {
    EXPECT("g() {\nconst %dy: f32[1,2,2] = [1, 2, 4, 8]\n"
           "const %i: i8[1,2,2] = [1, 0, -1, 0]\n"
           "%dx = max_pool_grad %dy, %i {shape=[1,2,3], kernel_shape=[2], "
           "strides=[1], sizes=[2]}\nreturn %dx",
           0, 3, 0, 0, 8, 0);
}

TEST_CASE(eval, avg_pool) {
#define AVG(shape, rest, ...)                                                  \
    EXPECT("g(%x: f64[1," shape "]) {\n%y = avg_pool %x {" rest "}\n"          \
           "return %y",                                                        \
           __VA_ARGS__)
    AVG("2,5,5",
        "kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1], "
        "sizes=[3,3], count_include_pad=1",
        -0.0555555555556, 0.138888888889, 0.138888888889, -0.194444444444,
        -0.111111111111, -0.0555555555556, 0, -0.0833333333333, -0.111111111111,
        0.138888888889, -0.0277777777778, 0.0277777777778, -0.0555555555556,
        -0.0555555555556, -0.222222222222, -0.111111111111, 0.0555555555556,
        -0.222222222222);
    AVG("2,5,5",
        "kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1], "
        "sizes=[3,3]",
        -0.125, 0.208333333333, 0.3125, -0.291666666667, -0.111111111111,
        -0.0833333333333, 0, -0.125, -0.25, 0.3125, -0.0416666666667, 0.0625,
        -0.0833333333333, -0.0555555555556, -0.333333333333, -0.25,
        0.0833333333333, -0.5);
    AVG("1,5,5",
        "kernel_shape=[2,2], strides=[2,2], pads=[1,1,1,1], "
        "sizes=[3,3], count_include_pad=1",
        -0.3125, 0, 0.375, -0.25, 0.0625, 0.125, 0.25, -0.3125, -0.25);
    /* a window that extends beyond the padded input counts only what it
       covers */
    EXPECT("g() {\nconst %x: f32[1,1,3] = [1, 2, 6]\n%y = avg_pool %x "
           "{kernel_shape=[2], strides=[2], sizes=[2], count_include_pad=1}\n"
           "return %y",
           1.5, 6);
    EXPECT("g() {\nconst %dy: f32[1,1,2] = [4, 6]\n%dx = avg_pool_grad %dy "
           "{shape=[1,1,3], kernel_shape=[2], strides=[2], sizes=[2]}\n"
           "return %dx",
           2, 2, 6);
}
