/* SPDX-License-Identifier: Apache-2.0 */
/* special.c: segments, pools of other windows, modes, complex numbers; numbers
   of PyTorch, or by hand. */
#include <math.h>
#include <stdio.h>

#include "ir/ir.h"
#include "tests/harness.h"
#include "tests/ir/eval/eval.h"

/* Quantiles far in the tails were wrong below 1e-9, of either sign. */
TEST_CASE(eval, quantiles_of_the_normal_distribution) {
    EXPECT("g() {\nconst %p: f64[7] = [1e-38, 1e-30, 1e-15, 1e-10, 0.0999, "
           "0.1, 0.99]\n%y = ndtri %p : f64[7]\nreturn %y",
           -12.962359334796862, -11.464024688443613, -7.941345326170998,
           -6.361340902404056, -1.2821215797087746, -1.2815515655446004,
           2.3263478740408408);
}

TEST_CASE(eval, logarithms_of_the_normal_distribution) {
    EXPECT("g() {\nconst %x: f64[4] = [-20, 0, 2.1, 6]\n"
           "%y = log_ndtr %x : f64[4]\nreturn %y",
           -203.9171553710973, -0.6931471805599453, -0.018025915557727736,
           -9.865876455243713e-10);
}

TEST_CASE(eval, modes) {
    EXPECT("g() {\nconst %x: f64[2,5] = [3, 1, 2, 1, 3, 2, 2, -1, 0, 2]\n"
           "%y, %i = mode %x : f64[2], i64[2]\nreturn %y, %i",
           1, 2, 3, 4);
    EXPECT("g() {\nconst %x: f64[3,2] = [4, 1, 4, 2, 0, 3]\n"
           "%y, %i = mode %x {axis=0, keepdims=1} : f64[1,2], i64[1,2]\n"
           "return %y, %i",
           4, 1, 1, 0);
}

TEST_CASE(eval, buckets) {
    EXPECT("g() {\nconst %x: f64[2,2] = [0, 1, 1.5, 7]\n"
           "const %s: f64[2] = [1, 2]\n%y = bucketize %x, %s : i64[2,2]\n"
           "%z = bucketize %x, %s {right=1} : i64[2,2]\nreturn %y, %z",
           0, 0, 1, 2, 0, 1, 1, 2);
    EXPECT("g() {\nconst %n: i64[4] = [2, 0, 1, 1]\n"
           "%y = segment_of %n {n=4} : i64[4]\nreturn %y",
           0, 0, 2, 3);
}

#define SEGMENTS(start, how, ...)                                              \
    EXPECT("g() {\nconst %x: f64[4] = [1, 2, 3, -5]\n"                         \
           "const %s: f64[3] = [10, 20, 30]\n"                                 \
           "const %i: i64[4] = [2, 0, 2, 2]\n%y = segment_reduce %x, %i" start \
           " {n=3, reduce=\"" how "\"} : f64[3]\nreturn %y",                   \
           __VA_ARGS__)

TEST_CASE(eval, segments) {
    SEGMENTS("", "sum", 2, 0, -1);
    SEGMENTS(", %s", "sum", 12, 20, 29);
    SEGMENTS(", %s", "mean", 6, 20, 7.25);
    SEGMENTS("", "prod", 2, 1, -15);
    SEGMENTS(", %s", "prod", 20, 20, -450);
    SEGMENTS(", %s", "max", 10, 20, 30);
    SEGMENTS("", "max", 2, -INFINITY, 3);
    SEGMENTS("", "min", 2, INFINITY, -5);
}

TEST_CASE(eval, reduced_indices) {
    static const char start[] =
        "g() {\nconst %x: f64[2,3] = [1, 2, 3, 4, 5, 6]\n"
        "const %s: f64[2,4] = [7, 8, 9, 1, -1, -2, -3, -4]\n"
        "const %i: i64[4] = [2, 0, 2, 2]\n";
    char text[600];
    (void)snprintf(text, sizeof text,
                   "%s%%y = index_reduce %%x, %%i, %%s {axis=1, "
                   "include_self=0, reduce=\"mean\"} : f64[2,3]\nreturn %%y",
                   start);
    EXPECT(text, 8, 2, 17.0 / 3, -2, 5, -8.0 / 3);
    (void)snprintf(text, sizeof text,
                   "%s%%y = index_reduce %%x, %%i, %%s {axis=1, "
                   "reduce=\"max\"} : f64[2,3]\nreturn %%y",
                   start);
    EXPECT(text, 8, 2, 9, 4, 5, 6);
}

/* A plane of 2 x 5: windows of 0 .. 2 and 2 .. 4 along its rows. */
#define PLANE "g() {\nconst %x: f64[1,1,2,5] = [1, 5, 2, 5, 0, 3, 3, 9, 1, 4]\n"

TEST_CASE(eval, pools_of_parts) {
    EXPECT(PLANE "%y = adaptive_avg_pool %x {sizes=[2, 2]} : f64[1,1,2,2]\n"
                 "return %y",
           8.0 / 3, 7.0 / 3, 5, 14.0 / 3);
    EXPECT(PLANE "%y, %i = adaptive_max_pool %x {sizes=[2, 2]} : "
                 "f64[1,1,2,2], i64[1,1,2,2]\nreturn %y, %i",
           5, 5, 9, 9, 1, 3, 7, 7);
    EXPECT(PLANE "const %u: f64[1,1,2] = [0.6, 0]\n"
                 "%y, %i = fractional_max_pool %x, %u {kernel_shape=[1, 2], "
                 "sizes=[2, 3]} : f64[1,1,2,3], i64[1,1,2,3]\nreturn %y, %i",
           5, 5, 5, 3, 9, 4, 1, 3, 3, 5, 7, 9);
}

TEST_CASE(eval, complex_numbers) {
    EXPECT("g() {\nconst %a: f64[1,2,2] = [1, 2, 3, -1]\n"
           "const %b: f64[2,1,2] = [0, 1, 2, 2]\n"
           "%y = complex_matmul %a, %b : f64[1,1,2]\n"
           "const %c: f64[2,2] = [0, 1, 2, 2]\n"
           "%z = complex_mul %a, %c : f64[1,2,2]\nreturn %y, %z",
           6, 5, -2, 1, 8, 4);
}

TEST_CASE(eval, distances_of_pairs) {
    EXPECT("g() {\nconst %x: f64[3,2] = [0, 0, 3, 4, 3, 0]\n"
           "%y = pdist %x : f64[3]\n%z = pdist %x {p=1} : f64[3]\n"
           "return %y, %z",
           5, 3, 4, 7, 3, 4);
}
