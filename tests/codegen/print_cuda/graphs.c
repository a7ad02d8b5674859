/* SPDX-License-Identifier: Apache-2.0 */
/* graphs.c: the graphs whose kernels are compared. */
#define _POSIX_C_SOURCE 200809L
#include "tests/codegen/print_cuda/print_cuda.h"

const char *const cuda_graphs[] = {
    /* flat: whole vectors, remainders, one element, widths, scalars */
    POINT("%a: f32[4096], %b: f32[4096]", "%y = add %a, %b"),
    POINT("%a: f32[1027], %b: f32[1027]", "%y = sub %a, %b"),
    POINT("%a: f32[1025], %b: f32[1025]", "%y = mul %a, %b"),
    POINT("%a: bf16[2,1031], %b: bf16[2,1031]", "%y = max %a, %b"),
    POINT("%a: f16[15]", "%y = neg %a"),
    POINT("%a: u8[70]", "%y = add %a, %a"),
    POINT("%a: f64[513], %b: f32[513]", "%c = mul %b, %b %y = sub %a, %c"),
    POINT("%a: i64[1000], %b: bool[1000]", "%y = where %b, %a, %a"),
    POINT("%a: f32[1003], %s: f32[], %b: bf16[1003]",
          "%c = mul %a, %s %y = add %c, %b : bf16[1003]"),
    POINT("%a: f32[300]", "%i = iota {axis=0} : f32[300] %y = add %a, %i"),
    POINT("%a: f32[297]", "%y = slice %a {starts=[5], sizes=[287], steps=[1]}"),
    POINT("%a: f32[311]", "%y = slice %a {starts=[8], sizes=[302], steps=[1]}"),
    POINT("%a: f32[259]", "%y = pad %a {pads=[3,6], value=2}"),
    /* an element each */
    POINT("%a: f32[33,70]", "%y = transpose %a {perm=[1,0]}"),
    POINT("%a: bf16[2,3,4,5], %b: bf16[3,1,5]", "%y = mul %a, %b"),
    POINT("%a: f32[30,20], %b: f32[30,7]", "%y = concat %a, %b {axis=1}"),
    POINT("%a: f32[9,8], %i: i64[5]", "%y = gather %a, %i {axis=0}"),
    POINT("%a: f32[4,5]", "%y = pad %a {pads=[1,2,3,0], mode=\"reflect\"}"),
    POINT("%a: f32[], %b: f32[]", "%y = add %a, %b"),
    /* neighbours along the innermost dimension, aligned and not */
    POINT("%a: bf16[3,4,8,16], %b: bf16[4,1,16]", "%y = mul %a, %b"),
    POINT("%a: f32[6,24]",
          "%y = slice %a {starts=[1,8], sizes=[4,16], steps=[1,1]}"),
    POINT("%a: f32[5,28]",
          "%y = slice %a {starts=[1,3], sizes=[3,20], steps=[1,1]}"),
    POINT("%a: f32[5,12]", "%y = pad %a {pads=[0,0,0,4]}"),
    POINT("%a: bf16[2,3,16], %b: f32[2,1,1]",
          "%c = mul %a, %b : f32[2,3,16] %y = sub %c, %a : bf16[2,3,16]"),
    POINT("%a: f32[0,4]", "%y = neg %a"),
    /* a row by lanes */
    ROW("%a: f32[9,1]", "%y = reduce_sum %a {axes=[1]}", "%y"),
    ROW("%a: f32[7,3]", "%y = reduce_sum %a {axes=[1]}", "%y"),
    ROW("%a: bf16[100,10]", "%y = reduce_max %a {axes=[1]}", "%y"),
    ROW("%a: f32[33,32]", "%y = reduce_min %a {axes=[1]}", "%y"),
    ROW("%a: i64[5,40]",
        "%y = reduce_sum %a {axes=[1]} "
        "%m = reduce_max %a {axes=[1]}",
        "%y, %m"),
    ROW("%a: f64[3,1000]", "%y = reduce_sum %a {axes=[1]}", "%y"),
    ROW("%a: f32[4,3,5,6]", "%y = reduce_sum %a {axes=[1,3]}", "%y"),
    ROW("%a: f32[17,50], %r: f32[17,1]",
        "%m = reduce_max %a {axes=[1]} %d = sub %a, %m "
        "%s = reduce_sum %d {axes=[1]} %t = add %s, %r %y = mul %d, %t",
        "%y, %s, %d, %t"),
    /* values of the row held for later sweeps: vectors, remainders, two
       column dimensions, teams without a row */
    ROW("%a: bf16[5,64], %b: f32[64]",
        "%c = add %a, %b : f32[5,64] %m = reduce_max %c {axes=[1]} "
        "%d = sub %c, %m %s = reduce_sum %d {axes=[1]} "
        "%y = mul %d, %s : bf16[5,64]",
        "%y, %s"),
    ROW("%a: f32[9,720], %r: f32[9,1]",
        "%m = reduce_max %a {axes=[1]} %d = sub %a, %m "
        "%s = reduce_sum %d {axes=[1]} %t = add %s, %r %y = add %d, %t",
        "%y, %s"),
    ROW("%a: f32[2,2056]",
        "%m = reduce_max %a {axes=[1]} %d = sub %a, %m "
        "%s = reduce_sum %d {axes=[1]} %y = add %d, %s",
        "%y"),
    ROW("%a: f32[2,6,5,8]",
        "%m = reduce_max %a {axes=[1,3]} %d = sub %a, %m "
        "%s = reduce_sum %d {axes=[1,3]} %y = mul %d, %s",
        "%y, %s"),
    /* by a block */
    ROW("%a: f32[3,1025]", "%y = reduce_sum %a {axes=[1]}", "%y"),
    ROW("%a: bf16[2,5000]",
        "%m = reduce_max %a {axes=[1]} %d = sub %a, %m "
        "%s = reduce_sum %d {axes=[1]} : f32[2,1] %y = add %s, %d : "
        "f32[2,5000]",
        "%y, %s"),
    ROW("%a: f32[70,80]", "%y = reduce_sum %a {axes=[0,1]}", "%y"),
    /* rows that stay in shared memory: vectors, cut rows stored with zeros
       after them, element by element; and one that is too long */
    ROW("%a: bf16[2,16400], %b: bf16[2,16400]",
        "%m = reduce_max %a {axes=[1]} %d = sub %a, %m : f32[2,16400] "
        "%e = add %d, %b : f32[2,16400] %s = reduce_sum %e {axes=[1]} "
        "%y = sub %e, %s : f32[2,16400]",
        "%y"),
    ROW("%a: bf16[70,2,300]",
        "%m = reduce_max %a {axes=[0,2]} %d = sub %a, %m : f32[70,2,300] "
        "%y = reduce_sum %d {axes=[0,2]}",
        "%y, %m"),
    ROW("%a: bf16[2,16408]",
        "%c = slice %a {starts=[0,0], sizes=[2,16403], steps=[1,1]} "
        "%m = reduce_max %c {axes=[1]} %d = sub %c, %m : bf16[2,16403] "
        "%y = pad %d {pads=[0,0,0,5]}",
        "%y, %m"),
    ROW("%a: f32[2,16401]",
        "%m = reduce_max %a {axes=[1]} %d = sub %a, %m "
        "%y = pad %d {pads=[0,0,0,2]}",
        "%y"),
    ROW("%a: f32[1,30000]", "%m = reduce_max %a {axes=[1]} %y = sub %a, %m",
        "%y"),
    /* one column of a row is something else, if the row has it: among the first
       four, or around the end, where the last vector is cut */
    ROW("%a: bf16[9,16400], %t: i64[9,1]",
        "%i = iota {axis=1} : i64[9,16400] %q = equal %i, %t "
        "%m = reduce_max %a {axes=[1]} : f32[9,1] "
        "%d = sub %a, %m : f32[9,16400] %w = where %q, %d, 0 : f32[9,16400] "
        "%s = reduce_sum %w {axes=[1]} : f32[9,1] "
        "%z = reduce_sum %d {axes=[1]} : f32[9,1] "
        "%o = where %q, 1, 0 : f32[9,16400] %e = sub %d, %o "
        "%y = mul %e, %m : bf16[9,16400]",
        "%y, %s, %z"),
    ROW("%a: bf16[9,16408], %t: i64[9,1]",
        "%c = slice %a {starts=[0,0], sizes=[9,16403], steps=[1,1]} "
        "%f = cast %t : f32[9,1] %g = add %f, 16402.0 "
        "%u = cast %g : i64[9,1] %i = iota {axis=1} : i64[9,16403] "
        "%q = equal %u, %i %m = reduce_max %c {axes=[1]} : f32[9,1] "
        "%d = sub %c, %m : f32[9,16403] %w = where %q, %d, 0 : f32[9,16403] "
        "%s = reduce_sum %w {axes=[1]} : f32[9,1] "
        "%o = where %q, 1, %d : bf16[9,16403] %y = pad %o {pads=[0,0,0,5]}",
        "%y, %s"),
    ROW("%a: bf16[6,40]",
        "%c = slice %a {starts=[0,0], sizes=[6,33], steps=[1,1]} "
        "%m = reduce_max %c {axes=[1]} %d = sub %c, %m : bf16[6,33] "
        "%y = pad %d {pads=[0,0,0,7]}",
        "%y"),
    /* neighbouring rows */
    ROW("%a: f32[40,35]", "%y = reduce_sum %a {axes=[0]}", "%y"),
    ROW("%a: bf16[600,64]", "%y = reduce_max %a {axes=[0]}", "%y"),
    ROW("%a: f64[6,9]", "%y = reduce_min %a {axes=[0]}", "%y"),
    ROW("%a: i32[3,40,33]", "%y = reduce_sum %a {axes=[1]}", "%y"),
    ROW("%a: f32[2,30,70]",
        "%m = reduce_max %a {axes=[1]} %d = sub %a, %m "
        "%s = reduce_sum %d {axes=[1]} %y = mul %d, %s",
        "%y, %s"),
    /* sums over the rows beside other work on each row: vectors and
       remainders, two row dimensions, several rows of a warp, rows of a
       block, few rows, and more rows than there are blocks */
    ROW("%a: bf16[4,70,64], %g: f32[64]",
        "%c = mul %a, %g : f32[4,70,64] %m = reduce_sum %c {axes=[2]} "
        "%y = sub %c, %m %s = reduce_sum %a {axes=[0,1]} : f32[1,1,64] "
        "%u = reduce_sum %y {axes=[0,1]}",
        "%y, %s, %u, %m"),
    ROW("%a: f32[37,5]",
        "%s = reduce_sum %a {axes=[0]} %m = reduce_max %a {axes=[1]} "
        "%y = sub %a, %m",
        "%y, %s"),
    ROW("%a: f32[30,1501], %b: f32[30,1501]",
        "%m = reduce_max %a {axes=[1]} %d = sub %b, %m "
        "%y = reduce_sum %d {axes=[0]} %s = reduce_sum %b {axes=[0]}",
        "%y, %s, %m"),
    ROW("%a: bf16[3,4100]",
        "%m = reduce_max %a {axes=[1]} %y = sub %a, %m "
        "%s = reduce_sum %y {axes=[0]} : bf16[1,4100]",
        "%y, %s"),
    ROW("%a: f32[5001,3]",
        "%m = reduce_max %a {axes=[1]} %y = sub %a, %m "
        "%s = reduce_sum %y {axes=[0]}",
        "%y, %s"),
    ROW("%a: f32[6,50,12], %r: f32[50,12]",
        "%c = mul %a, %r %m = reduce_min %c {axes=[2]} "
        "%d = add %c, %m %y = reduce_sum %d {axes=[0,1]}",
        "%y, %m"),
    /* nothing to fold, nothing at all */
    ROW("%a: f32[3,0]",
        "%y = reduce_sum %a {axes=[1]} "
        "%m = reduce_max %a {axes=[1]}",
        "%y, %m"),
    ROW("%a: f32[0,30]", "%y = reduce_sum %a {axes=[1]}", "%y"),
    /* epilogues */
    ANCHOR("%a: f32[5,7], %w: f32[7,30], %b: f32[30]",
           "%z = matmul %a, %w %c = add %z, %b %y = relu %c", "%y, %c"),
    ANCHOR("%a: bf16[2,3,4,6], %w: bf16[6,20], %r: f32[3,1,20]",
           "%z = matmul %a, %w : f32[2,3,4,20] %y = add %z, %r", "%y"),
    ANCHOR("%a: f32[3,4,6], %w: f32[3,6,5], %r: f32[3,1,1]",
           "%z = matmul %a, %w %y = mul %z, %r", "%y"),
    ANCHOR("%a: f32[2,4,5,6], %w: f32[3,4,1,1], %q: f32[5,1], "
           "%r: f32[2,1,1,6]",
           "%z = conv %a, %w %c = add %z, %q %y = mul %c, %r", "%y"),
    /* neighbours along a row, with every second pair unaligned */
    POINT("%a: f32[6,26]",
          "%y = slice %a {starts=[0,8], sizes=[4,16], steps=[1,1]}"),
    /* neighbours that exist only partly, or whose index is read */
    POINT("%a: bf16[4,2,16], %b: bf16[4,3,16]",
          "%c = neg %a %y = concat %c, %b {axis=1}"),
    POINT("%a: f32[4,8]", "%y = pad %a {pads=[1,0,2,0], value=2}"),
    POINT("%a: f32[9,6], %i: i64[2,5]", "%y = gather %a, %i {axis=0}"),
    POINT("%a: bf16[3,9,8], %i: i64[5]", "%y = gather %a, %i {axis=1}"),
    /* neighbouring rows, several of them per lane: 16 bytes of 2, 4 and 8,
       two folds and the operations after them, stores, an absent part, a
       part read element by element */
    ROW("%a: bf16[66,3,1024]",
        "%y = reduce_sum %a {axes=[1]} : bf16[66,1,1024]", "%y"),
    ROW("%a: bf16[132,2,512], %b: f32[132,2,1]",
        "%c = mul %a, %b : bf16[132,2,512] %m = reduce_max %a {axes=[1]} : "
        "f32[132,1,512] "
        "%s = reduce_sum %c {axes=[1]} : f32[132,1,512] "
        "%y = mul %s, %m : f32[132,1,512]",
        "%y, %c, %m"),
    ROW("%a: f32[88,2,384]",
        "%c = pad %a {pads=[0,1,0,0,0,0], value=2} "
        "%y = reduce_sum %c {axes=[1]}",
        "%y"),
    ROW("%a: f64[132,2,128]", "%y = reduce_min %a {axes=[1]}", "%y"),
    ROW("%a: f32[132,2,256], %b: f32[132,2,256], %t: f32[132,256,2]",
        "%u = transpose %t {perm=[0,2,1]} %c = add %a, %b %d = mul %c, %u "
        "%y = reduce_sum %d {axes=[1]}",
        "%y"),
    /* neighbouring rows with row values, read before and after the folds */
    ROW("%a: bf16[264,3,256], %g: f32[256], %h: bf16[264,1,256]",
        "%n = neg %g %d = mul %a, %n : f32[264,3,256] "
        "%e = add %d, %h : f32[264,3,256] %b = cast %e : bf16[264,3,256] "
        "%s = reduce_sum %e {axes=[1]} : f32[264,1,256] "
        "%t = mul %s, %n : f32[264,1,256] %y = add %t, %h : f32[264,1,256]",
        "%y, %b"),
    ROW("%a: f32[264,2,128], %g: f32[264,1,128]",
        "%i = iota {axis=2} : i64[264,1,128] %j = cast %i : f32[264,1,128] "
        "%e = max %a, %j : f32[264,2,128] "
        "%s = reduce_max %e {axes=[1]} : f32[264,1,128] "
        "%y = add %s, %g : f32[264,1,128]",
        "%y"),
    /* transposed operands, or operands under a guard, are read element by
       element
     */
    ROW("%a: f32[272,3,128], %g: f32[272,128,1]",
        "%t = transpose %g {perm=[0,2,1]} %e = add %a, %t "
        "%y = reduce_max %e {axes=[1]}",
        "%y"),
    ROW("%a: f32[280,2,132], %g: f32[280,1,128]",
        "%t = pad %g {pads=[0,0,4,0,0,0]} %e = add %a, %t "
        "%y = reduce_max %e {axes=[1]}",
        "%y"),
    ROW("%a: bf16[301,70], %b: f32[1,70]",
        "%s = reduce_sum %a {axes=[0]} : f32[1,70] "
        "%m = reduce_max %a {axes=[0]} : f32[1,70] %t = mul %s, %b : f32[1,70] "
        "%y = add %t, %m : f32[1,70]",
        "%y"),
    /* short rows: a vector for each of few lanes, an incomplete one at the
       end */
    ROW("%a: bf16[70,64], %b: bf16[70,64]",
        "%p = mul %a, %b : f32[70,64] "
        "%y = reduce_sum %p {axes=[1]} : f32[70,1]",
        "%y"),
    ROW("%a: bf16[37,5,40]",
        "%m = reduce_max %a {axes=[2]} : f32[37,5,1] "
        "%y = sub %a, %m : bf16[37,5,40]",
        "%y"),
    ROW("%a: bf16[300,8]", "%y = reduce_sum %a {axes=[1]} : f32[300,1]", "%y"),
    ROW("%a: f32[33,100]", "%m = reduce_mean %a {axes=[1]} %y = sub %a, %m",
        "%y"),
    ROW("%a: f32[700,24]",
        "%m = reduce_sum %a {axes=[1]} %y = mul %a, %m : f32[700,24] "
        "%s = reduce_sum %a {axes=[0]}",
        "%y, %s"),
    /* columns are compared in 32 bits with 64-bit numbers */
    ROW("%a: f32[40,70], %k: i64[40,1], %t: bool[40,1]",
        "%i = iota {axis=1} : i64[40,70] %c = cast %t : f32[40,1] "
        "%g = mul %c, 4294967296 %h = cast %g : i64[40,1] "
        "%w = add %h, %k %e = equal %w, %i "
        "%f = where %e, %a, 0 %y = reduce_sum %f {axes=[1]}",
        "%y"),
    ROW("%a: bf16[2,33008], %k: i64[2,1]",
        "%c = slice %a {starts=[0,0], sizes=[2,33003], steps=[1,1]} "
        "%i = iota {axis=1} : i64[2,33003] %e = equal %i, %k "
        "%m = reduce_max %c {axes=[1]} %d = sub %c, %m : bf16[2,33003] "
        "%f = where %e, %d, 0 : bf16[2,33003] "
        "%y = pad %f {pads=[0,0,0,5]}",
        "%y"),
    /* short rows, several of a warp */
    ROW("%a: bf16[8451,49], %g: f32[49]",
        "%m = reduce_max %a {axes=[1]} %d = sub %a, %m : f32[8451,49] "
        "%e = mul %d, %g : f32[8451,49] %s = reduce_sum %e {axes=[1]} "
        "%y = sub %e, %s",
        "%y, %s"),
    /* codes in both layouts: tiles with edges, with and without the plain
       codes; rows of a warp, of a block, with sums of columns, of several
       axes, and of which only sixteen are at hand */
    TURNED("point", "%a: f32[80,48], %b: f32[48]", "[1,0]", "f8e4m3[48,80]",
           "%m = mul %a, %b : f32[80,48] %c = cast %m : f8e4m3[80,48]", ", %c"),
    TURNED("point", "%a: bf16[5,16,208]", "[2,0,1]", "f8e5m2[208,5,16]",
           "%c = cast %a : f8e5m2[5,16,208]", ""),
    TURNED("point", "%a: bf16[96,6,8]", "[1,2,0]", "f8e4m3[6,8,96]",
           "%c = cast %a : f8e4m3[96,6,8]", ", %c"),
    TURNED("point", "%a: f64[16,32]", "[1,0]", "f8e4m3[32,16]",
           "%s = neg %a : f64[16,32] %c = cast %s : f8e4m3[16,32]", ", %c"),
    TURNED("row", "%a: bf16[96,64]", "[1,0]", "f8e4m3[64,96]",
           "%r = reduce_max %a {axes=[1]} : f32[96,1] "
           "%c = cast %a : f8e4m3[96,64]",
           ", %c, %r"),
    TURNED("row", "%a: f32[3,16,1040]", "[2,0,1]", "f8e4m3[1040,3,16]",
           "%r = reduce_sum %a {axes=[2]} : f32[3,16,1] "
           "%m = mul %a, %r : f32[3,16,1040] %c = cast %m : f8e4m3[3,16,1040]",
           ", %r"),
    TURNED("row", "%a: f32[608,80]", "[1,0]", "f8e5m2[80,608]",
           "%r = reduce_sum %a {axes=[1]} : f32[608,1] "
           "%m = mul %a, %r : f32[608,80] %s = reduce_sum %m {axes=[0]} "
           "%c = cast %a : f8e5m2[608,80]",
           ", %c, %s"),
    TURNED("row", "%a: bf16[48,6,8], %b: bf16[1,6,1]", "[1,2,0]",
           "f8e4m3[6,8,48]",
           "%m = mul %a, %b : f32[48,6,8] "
           "%r = reduce_max %m {axes=[1,2]} : f32[48,1,1] "
           "%c = cast %m : f8e4m3[48,6,8]",
           ", %c, %r"),
    TURNED("row", "%a: bf16[32,4096]", "[1,0]", "f8e4m3[4096,32]",
           "%r = reduce_max %a {axes=[1]} : f32[32,1] "
           "%c = cast %a : f8e4m3[32,4096]",
           ", %c"),
    /* blocks: tiles that end early, whole ones, rows of several axes, f32; one
       of the four alone; whole rows, of a norm, with sums of columns */
    BLOCKS("point", "%x: bf16[96,160]", "160", "", "[96,160]", "[1024]",
           "[160,96]", "[1024]", ""),
    BLOCKS("point", "%a: f16[2,64,4,32], %b: f16[2,64,4,32]", "128",
           "%x = mul %a, %b : f16[2,64,4,32] "
           "%u = block_sums %x {columns=128} : f32[4,128]",
           "[128,128]", "[512]", "[128,128]", "[512]", ", %x, %u"),
    BLOCKS("point", "%x: f32[288,32]", "32", "", "[288,32]", "[1536]",
           "[32,288]", "[1536]", ""),
    /* blocks of zeros, of the least and largest numbers, with infinities and
       NaN, with a largest number of 448 and just above; along rows, columns */
    BLOCKS("point", "%a: f32[64,64], %b: f32[64,1]", "64",
           EXTREMES("[64,1]") "%x = mul %a, %f : f32[64,64]", "[64,64]",
           "[512]", "[64,64]", "[512]", ""),
    BLOCKS("point", "%a: bf16[64,64], %b: f32[64,1]", "64",
           EXTREMES("[64,1]") "%x = mul %a, %f : bf16[64,64]", "[64,64]",
           "[512]", "[64,64]", "[512]", ""),
    BLOCKS("point", "%a: f32[64,64], %b: f32[1,64]", "64",
           EXTREMES("[1,64]") "%x = mul %a, %f : f32[64,64]", "[64,64]",
           "[512]", "[64,64]", "[512]", ""),
    BLOCKS("point", "%a: bf16[64,64], %b: f32[1,64]", "64",
           EXTREMES("[1,64]") "%x = mul %a, %f : bf16[64,64]", "[64,64]",
           "[512]", "[64,64]", "[512]", ""),
    POINT_ON_CUDA("%x: bf16[64,96]",
                  "%y = block_codes %x {columns=96, down=1} : f8e4m3[96,64]",
                  "%y"),
    POINT_ON_CUDA("%x: bf16[96,64]",
                  "%y = block_sums %x {columns=64} : f32[3,64]", "%y"),
    POINT_ON_CUDA("%x: bf16[32,160], %z: bf16[32,160]",
                  "%y = block_codes %x {columns=160} : f8e4m3[32,160] "
                  "%w = block_codes %x {columns=160} : f8e4m3[32,160] "
                  "%n = neg %z : bf16[32,160] "
                  "%v = block_codes %n {columns=160} : f8e4m3[32,160]",
                  "%y, %w, %v"),
    POINT_ON_CUDA("%x: bf16[160,32]",
                  "%y = block_scales %x {columns=32} : e8m0[1024]", "%y"),
    BLOCKS("row", "%a: bf16[2,128,256]", "256",
           "%n = reduce_max %a {axes=[2]} : f32[2,128,1] "
           "%x = mul %a, %n : bf16[2,128,256]",
           "[256,256]", "[2048]", "[256,256]", "[2048]", ", %n"),
    BLOCKS("row", "%a: f32[384,128]", "128",
           "%n = reduce_sum %a {axes=[1]} : f32[384,1] "
           "%x = sub %a, %n : f16[384,128] "
           "%u = reduce_sum %x {axes=[0]} : f32[1,128]",
           "[384,128]", "[1536]", "[128,384]", "[1536]", ", %x, %u"),
};

const int cuda_ngraphs = sizeof cuda_graphs / sizeof *cuda_graphs;
