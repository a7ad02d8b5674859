/* SPDX-License-Identifier: Apache-2.0 */
/* reductions.c: kernels of reductions, softmax and norms. */
#include "tests/codegen/kernel/kernel.h"
#include "tests/harness.h"
#include "tests/support/subject.h"

/* ---- reductions ---------------------------------------------------------- */

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
        {.text = ROW("%x: bf16[4,9,10]",
                     "%y = reduce_mean %x {axes=[0,2]} : f32[1,9,1]", "%y"),
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
        {.text = ROW("%x: f16[13,50]", "%y = reduce_max %x {axes=[0]}", "%y")},
        {.text = ROW("%x: i32[64,3]",
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
        {.text = ROW("%x: f32[9,50], %z: f32[12,50]",
                     "%c = concat %x, %z {axis=0} "
                     "%y = reduce_max %c {axes=[0]}",
                     "%y")},
        {.text = ROW("%x: f32[2,900]",
                     "%y = reduce_sumsq %x {axes=[0,1]} : f64[1,1]", "%y"),
         .ulps = 32,
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
        /* rows that end in zeros: one, and as many as fill a unit */
        {.text = ROW("%x: f32[5,31]",
                     "%m = reduce_max %x {axes=[1]} %d = sub %x, %m "
                     "%y = pad %d {pads=[0,0,0,1]}",
                     "%y")},
        {.text = ROW("%x: f32[9,41]",
                     "%m = reduce_max %x {axes=[1]} %d = sub %x, %m "
                     "%y = pad %d {pads=[0,0,0,7]}",
                     "%d, %y")},
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
