/* SPDX-License-Identifier: Apache-2.0 */
/* Tests type rules: the operands that each op accepts, with the types of its
   results, and the operands that it refuses, with the message. */
#include "ir/ir.h"

#include <stdio.h>
#include <string.h>

#include "tests/harness.h"

typedef struct Row {
    const char *inputs; /* of the graph */
    const char *line;   /* one node */
    const char *want;   /* types of the results, or "! part of the message" */
} Row;

static const Row rows[] = {
    /* ---- element-wise
       -------------------------------------------------------- */
    {"%x: f32[4,3]", "%y = neg %x", "f32[4,3]"},
    {"%x: i32[4]", "%y = abs %x", "i32[4]"},
    {"%x: f32[4]", "%y = sign %x", "f32[4]"},
    {"%x: bool[4]", "%y = sign %x", "! wants numbers"},
    {"%x: f32[4]", "%y = relu %x : bf16[4]", "bf16[4]"},
    {"%x: i32[4]", "%y = relu %x : i64[4]", "! is i32[4], not i64"},
    {"%x: f32[4]", "%y = relu %x : f32[5]", "! declared f32[5]"},
    {"%x: i64[4]", "%y = clip %x {min=0, max=1}", "i64[4]"},
    {"%x: f16[2]", "%y = floor %x", "f16[2]"},
    {"%x: f32[2]", "%y = leaky_relu %x {alpha=0.1}", "f32[2]"},
    {"%x: f32[2]", "%y = leaky_relu %x {axis=0}", "! no attribute 'axis'"},
    {"%x: f32[2,3], %w: f32[4,3]", "%y = matmul %x, %w {trans_b=2}",
     "! attribute 'trans_b' is 2, not 0 or 1"},
    {"%x: f32[2]", "%y = cumsum %x {axis=0, reverse=-1}",
     "! attribute 'reverse' is -1, not 0 or 1"},
    {"%x: f32[2]", "%y = gelu_tanh %x", "f32[2]"},
    {"%x: f32[2]", "%y = gelu_tanh %x, %x", "! 2 operands given, takes 1"},
    {"%x: bool[2]", "%y = not %x", "bool[2]"},
    {"%x: u8[2]", "%y = not %x", "! wants bool"},
    {"%x: f32[2]", "%y = isnan %x", "bool[2]"},
    {"%x: f32[2]", "%y = isinf %x", "bool[2]"},
    {"%x: bf16[2]", "%y = isfinite %x", "bool[2]"},
    {"%x: i32[2]", "%y = isfinite %x", "! wants floating point"},
    {"%x: f32[2]", "%y = cast %x : u8[2]", "u8[2]"},
    {"%x: f32[2]", "%y = cast %x", "! needs the type"},
    {"%x: f32[2]", "%y = cast %x : u8[3]", "! declared u8[3]"},
    {"%x: f32[4,1], %z: f32[3]", "%y = add %x, %z", "f32[4,3]"},
    {"%x: f32[4,2], %z: f32[3]", "%y = add %x, %z", "! do not broadcast"},
    {"%x: bf16[4], %z: f16[4]", "%y = sub %x, %z", "f32[4]"},
    {"%x: bf16[4], %z: f32[]", "%y = mul %x, %z : bf16[4]", "bf16[4]"},
    {"%x: i32[4], %z: i64[4]", "%y = mul %x, %z", "i64[4]"},
    {"%x: i32[4], %z: f32[4]", "%y = div %x, %z", "! mix kinds"},
    {"%x: f32[4]", "%y = div %x, _", "! operand 1 is absent"},
    {"%x: i32[4]", "%y = mod %x, 3:i32", "i32[4]"},
    {"%x: f32[4]", "%y = div %x, 3", "f32[4]"},
    {"%x: f32[4]", "%y = div %x, 3: bf16[4]", "bf16[4]"},
    {"%x: f32[4]", "%y = div %x, 3 :bf16[4]", "bf16[4]"},
    {"%x: f32[4]", "%y = div %x, 3:f16 : bf16[4]", "bf16[4]"},
    {"%x: f32[4]", "%y = pow %x, 3", "f32[4]"},
    {"%x: f32[4]", "%y = min %x, 3", "f32[4]"},
    {"%x: f32[4]", "%y = max %x, nan", "f32[4]"},
    {"%x: bool[4]", "%y = max %x, %x", "! wants numbers"},
    {"%x: bool[4]", "%y = equal %x, %x", "bool[4]"},
    {"%x: bool[4]", "%y = less %x, %x", "! wants numbers"},
    {"%x: f32[4]", "%y = greater %x, 0", "bool[4]"},
    {"%x: f32[4]", "%y = less %x, 0", "bool[4]"},
    {"%x: f32[4]", "%y = less_equal %x, 0", "bool[4]"},
    {"%x: i8[4]", "%y = greater_equal %x, 0:i8", "bool[4]"},
    {"%x: bool[4], %z: bool[2,1]", "%y = and %x, %z", "bool[2,4]"},
    {"%x: u8[4], %z: u8[2,1]", "%y = bit_and %x, %z", "u8[2,4]"},
    {"%x: f32[4]", "%y = bit_and %x, %x", "! wants integers"},
    {"%x: bool[4]", "%y = or %x, %x", "bool[4]"},
    {"%x: bool[4]", "%y = xor %x, 1:bool", "bool[4]"},
    {"%c: bool[4,1], %x: f32[3]", "%y = where %c, %x, 0", "f32[4,3]"},
    {"%c: bool[2]", "%y = where %c, %c, %c", "bool[2]"},
    {"%c: u8[2], %x: f32[2]", "%y = where %c, %x, %x", "! wants bool"},
    {"%c: bool[2], %x: f32[3]", "%y = where %c, %x, %x", "! condition"},
    /* ---- generators
       ---------------------------------------------------------- */
    {"", "%y = full {value=1} : i64[3]", "i64[3]"},
    {"", "%y = full : i64[3]", "! attribute 'value'"},
    {"", "%y = full {value=1}", "! needs the type"},
    {"", "%y = iota {axis=-1} : i32[2,3]", "i32[2,3]"},
    {"", "%y = iota {axis=2} : i32[2,3]", "! axis 2 is outside rank 2"},
    {"", "%y = iota : i32[]", "! outside rank 0"},
    {"%r: i64[2]", "%y = rand_uniform %r {salt=1} : f32[5]", "f32[5]"},
    {"%r: i64[2]", "%y = rand_uniform %r : i32[5]", "! floating point"},
    {"%r: i32[2]", "%y = rand_uniform %r : f32[5]", "! wants i64[2]"},
    /* ---- moves
       --------------------------------------------------------------- */
    {"%x: f32[4,3]", "%y = reshape %x {shape=[2,6]}", "f32[2,6]"},
    {"%x: f32[4,3]", "%y = reshape %x {shape=[12,1]} : bf16[12,1]",
     "bf16[12,1]"},
    {"%x: f32[4,3]", "%y = reshape %x {shape=[5]}", "! has 12 elements"},
    {"%x: f32[4,3]", "%y = reshape %x {shape=[-1]}", "! is not a shape"},
    {"%x: f32[4,3]", "%y = reshape %x", "! attribute 'shape'"},
    {"%x: f32[]", "%y = reshape %x {shape=[]}", "f32[]"},
    {"%x: f32[4,3,2]", "%y = transpose %x {perm=[2,0,1]}", "f32[2,4,3]"},
    {"%x: f32[4,3]", "%y = transpose %x {perm=[1,1]}", "! not a permutation"},
    {"%x: f32[4,3]", "%y = transpose %x {perm=[1,64]}", "! not a permutation"},
    {"%x: f32[4,3]", "%y = transpose %x {perm=[0]}", "! has 1 numbers"},
    {"%x: f32[3,1]", "%y = expand %x {shape=[2,3,5]}", "f32[2,3,5]"},
    {"%x: f32[3,2]", "%y = expand %x {shape=[3,1]}", "! does not expand"},
    {"%x: f32[3,2]", "%y = expand %x {shape=[2]}", "! does not expand"},
    {"%x: f32[5,4]", "%y = slice %x {starts=[4,0], sizes=[3,2], steps=[-2,1]}",
     "f32[3,2]"},
    {"%x: f32[5]", "%y = slice %x {starts=[1], sizes=[3], steps=[2]}",
     "! leave 5 elements"},
    {"%x: f32[5]", "%y = slice %x {starts=[0], sizes=[2], steps=[0]}",
     "! leave 5 elements"},
    {"%x: f32[5]", "%y = slice %x {starts=[5], sizes=[0], steps=[1]}",
     "f32[0]"},
    {"%x: f32[5]", "%y = slice %x {starts=[6], sizes=[0], steps=[1]}",
     "! leave 5 elements"},
    {"%x: f32[0,4]",
     "%y = slice %x {starts=[9223372036854775807,0], sizes=[0,4], "
     "steps=[1,1]}",
     "! leave 0 elements"},
    {"%x: f32[5,4]",
     "%y = slice %x {starts=[0,0], sizes=[1,4], steps=[9223372036854775807,1]}",
     "! leave 5 elements"},
    {"%x: f32[5,4]", "%y = slice %x {starts=[0,0], sizes=[1,4], steps=[9,1]}",
     "f32[1,4]"},
    {"%x: f32[5]",
     "%y = slice %x {starts=[1], sizes=[3], steps=[9223372036854775807]}",
     "! leave 5 elements"},
    {"%x: f32[5]", "%y = slice %x {starts=[1], sizes=[-3], steps=[1]}",
     "! not a shape"},
    {"%g: f32[2]", "%y = slice_grad %g {shape=[5], starts=[0], steps=[3]}",
     "f32[5]"},
    {"%g: f32[3]", "%y = slice_grad %g {shape=[5], starts=[0], steps=[3]}",
     "! leave 5 elements"},
    {"%x: i32[2,3]", "%y = pad %x {pads=[0,1,2,0], value=7}", "i32[4,4]"},
    {"%x: f32[2]", "%y = pad %x {pads=[2,0], mode=\"reflect\"}",
     "! pad 2 of 2"},
    {"%x: f32[3]", "%y = pad %x {pads=[2,2], mode=\"reflect\"}", "f32[7]"},
    {"%x: f32[0]", "%y = pad %x {pads=[1,0], mode=\"edge\"}", "! pad 1 of 0"},
    {"%x: f32[3]", "%y = pad %x {pads=[1,1], mode=\"wrap\"}", "f32[5]"},
    {"%x: f32[3]", "%y = pad %x {pads=[1,1], mode=\"mirror\"}", "! mode is"},
    {"%x: f32[3]", "%y = pad %x {pads=[-1,1]}", "! pads -1 and 1"},
    {"%g: f32[5]", "%y = pad_grad %g {shape=[3], pads=[1,1], mode=\"reflect\"}",
     "f32[3]"},
    {"%g: f32[5]", "%y = pad_grad %g {shape=[4], pads=[1,1]}",
     "! padding gives f32[6]"},
    {"%x: bf16[2,3], %z: f32[2,4]", "%y = concat %x, %z {axis=1}", "f32[2,7]"},
    {"%x: f32[2,3], %z: f32[4,3]", "%y = concat %x, %z {axis=1}",
     "! differs outside axis 1"},
    {"%x: f32[2,3], %z: f32[3]", "%y = concat %x, %z {axis=0}", "! in rank"},
    {"%x: f32[2], %z: i32[2]", "%y = concat %x, %z", "! mix kinds"},
    {"", "%y = concat {axis=0}", "! at least 1"},
    {"%x: f32[5,2]", "%a, %b = split %x {axis=0, sizes=[2,3]}",
     "f32[2,2] f32[3,2]"},
    {"%x: f32[5,2]", "%a, %b = split %x {axis=0, sizes=[2,2]}",
     "! add up to 4"},
    {"%x: f32[5,2]", "%a = split %x {axis=0, sizes=[2,3]}",
     "! has 2 numbers, wants 1"},
    {"%x: f32[5,2], %i: i64[3,4]", "%y = gather %x, %i {axis=1}", "f32[5,3,4]"},
    {"%x: f32[5,2], %i: f32[3]", "%y = gather %x, %i", "! wants integers"},
    {"%x: f32[], %i: i64[3]", "%y = gather %x, %i", "! outside rank 0"},
    {"%x: f32[1,1,1,1,1], %i: i64[1,1,1,1,1]", "%y = gather %x, %i",
     "! rank 9"},
    {"%u: f32[5,3], %i: i32[3]",
     "%y = scatter_add %u, %i {axis=1, shape=[5,9]}", "f32[5,9]"},
    {"%u: f32[5,3], %i: i32[4]",
     "%y = scatter_add %u, %i {axis=1, shape=[5,9]}", "! want f32[5,4]"},
    {"%q: bf16[2,5,3], %k: bf16[2,3,7], %v: f32[2,7,4]",
     "%y, %l = attend %q, %k, %v : bf16[2,5,4], bf16[2,5,2]", "! not bf16"},
    {"%q: bf16[2,5,3], %k: bf16[2,3,7], %v: f32[2,7,4]",
     "%y, %l = attend %q, %k, %v", "bf16[2,5,4] f32[2,5,2]"},
    {"%q: f32[2,5,3], %k: f32[2,3,7], %v: f32[2,7,4]",
     "%y, %l = attend %q, %k, %v {trans_b=1}", "! no attention of f32[2,5,3]"},
    {"%k: f32[2,3,4], %v: f32[2,4,3]", "%y, %l = attend 2, %k, %v",
     "! no attention of f32[]"},
    {"%q: f32[2,5,3], %k: f32[1,3,7], %v: f32[2,7,4]",
     "%y, %l = attend %q, %k, %v", "! no attention of f32[2,5,3]"},
    {"%q: f32[2,6,5,3], %k: f32[2,2,7,3], %v: f32[2,2,7,4], %m: f32[2,1,1,7]",
     "%y, %l = attend %q, %k, %v, %m {trans_b=1}", "f32[2,6,5,4] f32[2,6,5,2]"},
    {"%q: f32[2,6,5,3], %k: f32[2,4,7,3], %v: f32[2,4,7,4]",
     "%y, %l = attend %q, %k, %v {trans_b=1}",
     "! no attention of f32[2,6,5,3]"},
    {"%q: f32[2,3,2,5,3], %k: f32[2,3,2,3,7], %v: f32[2,3,2,7,4], "
     "%m: f32[2,1,2,1,7]",
     "%y, %l = attend %q, %k, %v, %m", "! f32[2,1,2,1,7] is not a mask"},
    {"%q: f32[2,5,3], %k: f32[2,3,7], %v: f32[2,7,4], %m: f32[5,8]",
     "%y, %l = attend %q, %k, %v, %m", "! f32[5,8] is not a mask"},
    {"%q: f32[2,5,3], %k: f32[2,3,7], %v: f32[2,7,4]",
     "%y, %l = attend %q, %k, %v {causal=1, offset=8}",
     "! attribute 'offset' is 8, wants -5 to 7"},
    {"%q: f32[2,5,3], %k: f32[2,3,7], %v: f32[2,7,4]",
     "%y, %l = attend %q, %k, %v {causal=1, offset=-6}",
     "! attribute 'offset' is -6, wants -5 to 7"},
    {"%q: f32[2,5,3], %k: f32[2,3,7], %v: f32[2,7,4]",
     "%y, %l = attend %q, %k, %v {causal=1, offset=-5}",
     "f32[2,5,4] f32[2,5,2]"},
    {"%q: f32[2,5,3], %k: f32[2,3,7], %v: f32[2,7,4]",
     "%y, %l = attend %q, %k, %v {ratio=0.5}", "! attribute 'ratio' has 0.5"},
    {"%q: f32[2,5,3], %k: f32[2,3,7], %v: f32[2,7,4], %r: i64[3]",
     "%y, %l = attend %q, %k, %v, _, %r", "! wants i64[2]"},
    {"%q: f16[1,5,3], %k: f32[1,3,7], %v: bf16[1,7,4], %y: f32[1,5,4], "
     "%l: f32[1,5,2], %d: bf16[1,5,1]",
     "%a, %b, %c = attend_grad %q, %k, %v, %y, %l, %d",
     "f16[1,5,3] f32[1,3,7] bf16[1,7,4]"},
    {"%q: f32[1,5,3], %k: f32[1,3,7], %v: f32[1,7,4], %y: f32[1,5,4], "
     "%l: f32[1,5,2], %d: f32[1,5]",
     "%a, %b, %c = attend_grad %q, %k, %v, %y, %l, %d",
     "! operand 5 is f32[1,5], wants the shape of f32[1,5,1]"},
    {"%x: f32[5,2]", "%y = trilu %x {upper=1, k=-1}", "f32[5,2]"},
    {"%x: f32[5]", "%y = trilu %x", "! rank 2 or more"},
    /* ---- reductions
       ---------------------------------------------------------- */
    {"%x: f32[4,3,2]", "%y = reduce_sum %x {axes=[-1,0]}", "f32[1,3,1]"},
    {"%x: bf16[4,3,2]", "%y = reduce_mean %x {axes=[1], keepdims=0} : f32[4,2]",
     "f32[4,2]"},
    {"%x: f32[4]", "%y = reduce_sumsq %x {axes=[0], keepdims=0}", "f32[]"},
    {"%x: i64[4]", "%y = reduce_prod %x {axes=[0]}", "i64[1]"},
    {"%x: f32[4]", "%y = reduce_max %x {axes=[0]}", "f32[1]"},
    {"%x: bool[4]", "%y = reduce_min %x {axes=[0]}", "! wants numbers"},
    {"%x: f32[4]", "%y = reduce_min %x {axes=[0]}", "f32[1]"},
    {"%x: f32[4]", "%y = reduce_sum %x", "! attribute 'axes'"},
    {"%x: f32[4]", "%y = reduce_sum %x {axes=[1]}", "! axis 1 is outside"},
    {"%x: f32[4,2]", "%y = reduce_sum %x {axes=[0,-2]}", "! rising"},
    {"%y: f32[4,3], %x: bf16[2], %z: f64[]", "%g, %h = grad %y, %x, %z",
     "bf16[2] f64[]"},
    {"%y: f32[4,3], %x: f32[2], %z: f64[]", "%g = grad %y, %x, %z",
     "! operand but the first: 2, not 1"},
    {"%y: f32[4,3], %x: i32[2]", "%g = grad %y, %x", "! floating point"},
    {"%x: f32[4,3]", "%y = argmax %x {axis=1, keepdims=0}", "i64[4]"},
    {"%x: f32[4,0]", "%y = argmax %x {axis=1}", "! is empty"},
    /* ---- products
       ------------------------------------------------------------ */
    {"%x: bf16[4,3], %w: f32[3,5]", "%y = matmul %x, %w", "f32[4,5]"},
    {"%x: f32[3,4], %w: f32[5,3]", "%y = matmul %x, %w {trans_a=1, trans_b=1}",
     "f32[4,5]"},
    {"%x: f32[7,1,4,3], %w: f32[2,3,5]", "%y = matmul %x, %w", "f32[7,2,4,5]"},
    {"%x: f32[4,3], %w: f32[4,5]", "%y = matmul %x, %w",
     "! dimensions 3 and 4"},
    {"%x: f32[3], %w: f32[3,5]", "%y = matmul %x, %w", "! rank 2 or more"},
    {"%x: f32[2,4,3], %w: f32[3,3,5]", "%y = matmul %x, %w", "! batch"},
    {"%x: i32[4,3], %w: i32[3,5]", "%y = matmul %x, %w", "! floating point"},
    {"%x: f32[2,3,8,9], %w: f32[5,3,3,2]",
     "%y = conv %x, %w {strides=[2,1], pads=[1,0,1,0]}", "f32[2,5,4,8]"},
    {"%x: f32[2,4,8], %w: f32[6,2,3]", "%y = conv %x, %w {group=2}",
     "f32[2,6,6]"},
    {"%x: f32[2,4,8], %w: f32[6,4,3]", "%y = conv %x, %w {group=2}",
     "! 2 groups"},
    {"%x: f32[2,4,8], %w: f32[6,4,3]", "%y = conv %x, %w {group=0}",
     "! 0 groups"},
    {"%x: f32[2,3,8], %w: f32[5,3,9]", "%y = conv %x, %w", "! larger than"},
    {"%x: f32[2,3,8], %w: f32[5,3,3]", "%y = conv %x, %w {dilations=[4]}",
     "! larger than"},
    {"%x: f32[2,3,8], %w: f32[5,3,3]", "%y = conv %x, %w {strides=[0]}",
     "! wants 1 or more"},
    {"%x: f32[2,3], %w: f32[5,3]", "%y = conv %x, %w", "! spatial"},
    {"%x: f32[2,3,8], %w: f32[5,3,3]",
     "%y = conv %x, %w {pads=[9223372036854775807,1]}", "! pads"},
    {"%g: f32[2,5,6], %w: f32[5,3,3]", "%y = conv_dgrad %g, %w {shape=[2,3,8]}",
     "f32[2,3,8]"},
    {"%g: f32[2,5,7], %w: f32[5,3,3]", "%y = conv_dgrad %g, %w {shape=[2,3,8]}",
     "! gives f32[2,5,6]"},
    {"%x: f32[2,3,8], %g: f32[2,5,6]", "%y = conv_wgrad %x, %g {shape=[5,3,3]}",
     "f32[5,3,3]"},
    /* ---- pools
       --------------------------------------------------------------- */
    {"%x: f32[2,3,8,8]",
     "%y, %i = max_pool %x {kernel_shape=[2,2], "
     "strides=[2,2], sizes=[4,4]}",
     "f32[2,3,4,4] i8[2,3,4,4]"},
    {"%x: f32[2,3,12,11]",
     "%y, %i = max_pool %x {kernel_shape=[12,11], sizes=[1,1]}",
     "f32[2,3,1,1] i32[2,3,1,1]"},
    {"%x: f32[2,3,5]",
     "%y, %i = max_pool %x {kernel_shape=[9999999999], sizes=[1]}",
     "! more than 2^31 elements"},
    {"%x: f32[2,3,5]",
     "%y, %i = max_pool %x {kernel_shape=[2], strides=[2], "
     "sizes=[3]} : bf16[2,3,3], i8[2,3,3]",
     "bf16[2,3,3] i8[2,3,3]"},
    {"%x: f32[2,3,5]",
     "%y, %i = max_pool %x {kernel_shape=[2], strides=[2], "
     "sizes=[4]}",
     "! size 4"},
    {"%x: f32[2,3,5]", "%y, %i = max_pool %x {kernel_shape=[2]}", "! 'sizes'"},
    {"%x: f32[2,3,5]", "%y, %i = max_pool %x {sizes=[2]}", "! 'kernel_shape'"},
    {"%x: f32[2,3,5]", "%y = max_pool %x {kernel_shape=[2], sizes=[4]}",
     "! 1 result named, gives 2"},
    {"%g: f32[2,3,4], %i: i8[2,3,4]",
     "%y = max_pool_grad %g, %i "
     "{shape=[2,3,8], kernel_shape=[2], strides=[2], sizes=[4]}",
     "f32[2,3,8]"},
    {"%g: f32[2,3,4], %i: i64[2,3,4]",
     "%y = max_pool_grad %g, %i "
     "{shape=[2,3,8], kernel_shape=[2], strides=[2], sizes=[4]}",
     "! indices are i64"},
    {"%x: f32[2,3,8]",
     "%y = avg_pool %x {kernel_shape=[3], pads=[1,1], "
     "sizes=[8], count_include_pad=1}",
     "f32[2,3,8]"},
    {"%g: f32[2,3,8]",
     "%y = avg_pool_grad %g {shape=[2,3,8], "
     "kernel_shape=[3], pads=[1,1], sizes=[8]}",
     "f32[2,3,8]"},
    {"%g: f32[2,3,7]",
     "%y = avg_pool_grad %g {shape=[2,3,8], "
     "kernel_shape=[3], pads=[1,1], sizes=[8]}",
     "! gives f32[2,3,8]"},
    /* ---- composites
       ---------------------------------------------------------- */
    {"%x: bf16[4,3]", "%y = softmax %x : f32[4,3]", "f32[4,3]"},
    {"%x: f32[4,3]", "%y = softmax %x {axis=2}", "! axis 2 is outside"},
    {"%x: f32[4,3]", "%y = log_softmax %x {axis=-2}", "f32[4,3]"},
    {"%x: bf16[2,4,3], %s: f32[4,3], %b: f32[3]",
     "%y, %m, %r = layer_norm %x, %s, %b {axis=1}",
     "bf16[2,4,3] f32[2,1,1] f32[2,1,1]"},
    {"%x: f32[4,3], %s: f32[3]", "%y, %m, %r = layer_norm %x, %s",
     "f32[4,3] f32[4,1] f32[4,1]"},
    {"%x: f32[4,3], %s: f32[4]", "%y, %m, %r = layer_norm %x, %s",
     "! operand 1 is f32[4]"},
    {"%x: f32[2,3,5], %s: f32[3]",
     "%y, %m, %v = batch_norm %x, %s, %s, %s, %s {training=1}",
     "f32[2,3,5] f32[3] f32[3]"},
    {"%x: f32[2,3,5], %s: f32[3]", "%y = batch_norm %x, %s, %s, %s, %s",
     "f32[2,3,5]"},
    {"%x: f32[2,3,5], %s: f32[3]",
     "%y = batch_norm %x, %s, %s, %s, %s {training=1}", "f32[2,3,5]"},
    {"%x: f32[2,3,5], %s: f32[5]", "%y = batch_norm %x, %s, %s, %s, %s",
     "! operand 1 is f32[5]"},
    {"%x: f32[3], %s: f32[3]", "%y = batch_norm %x, %s, %s, %s, %s",
     "! rank 2 or more"},
    {"%x: bf16[4,3], %t: u8[4], %w: f32[3]",
     "%l, %e = softmax_cross_entropy %x, %t, %w", "f32[] f32[4]"},
    {"%x: f32[4,3,5], %t: i64[4,5]",
     "%l, %e = softmax_cross_entropy %x, %t {reduction=\"none\"}",
     "f32[4,5] f32[4,5]"},
    {"%x: f32[4,3], %t: i64[3]", "%l, %e = softmax_cross_entropy %x, %t",
     "! target is i64[3]"},
    {"%x: f32[4,3], %t: f32[4]", "%l, %e = softmax_cross_entropy %x, %t",
     "! wants integers"},
    {"%x: f32[4,3], %t: i64[4]",
     "%l, %e = softmax_cross_entropy %x, %t {reduction=\"max\"}",
     "! reduction is"},
    {"%x: f32[4,3], %t: i64[4]",
     "%l, %e = softmax_cross_entropy %x, %t {label_smoothing=2}",
     "! outside 0..1"},
    {"%x: f32[4,3], %t: i64[4], %w: f32[4]",
     "%l, %e = softmax_cross_entropy %x, %t, %w", "! one per class: 3"},
    {"%x: f32[4,3], %t: i32[4]", "%l = nll_loss %x, %t {reduction=\"sum\"}",
     "f32[]"},
    {"%x: f32[3], %t: i32[]", "%l = nll_loss %x, %t", "f32[]"},
    {"%x: f16[4,3], %r: i64[2]", "%y = dropout %x, %r {ratio=0.5, salt=3}",
     "f16[4,3]"},
    {"%x: f16[4,3], %r: i64[2]", "%y = dropout %x, %r {ratio=1}",
     "! outside 0..1"},
    {"%x: f16[4,3], %r: i64[3]", "%y = dropout %x, %r", "! wants i64[2]"},
    {"%x: f32[1048576,1048576]", "%y = matmul %x, %x", "f32[1048576,1048576]"},
    {"%x: f32[1099511627776,1], %z: f32[1,1099511627776]", "%y = add %x, %z",
     "! too large"},
    /* ---- the largest legal and the smallest illegal value */
    {"%x: f32[6]", "%y = slice %x {starts=[1], sizes=[3], steps=[2]}",
     "f32[3]"},
    {"%x: f32[6]", "%y = slice %x {starts=[2], sizes=[3], steps=[2]}",
     "! leave 6 elements"},
    {"%x: f32[6]", "%y = slice %x {starts=[4], sizes=[3], steps=[-2]}",
     "f32[3]"},
    {"%x: f32[6]", "%y = slice %x {starts=[3], sizes=[3], steps=[-2]}",
     "! leave 6 elements"},
    {"%x: f32[6]", "%y = slice %x {starts=[5], sizes=[1], steps=[1]}",
     "f32[1]"},
    {"%x: f32[6]", "%y = slice %x {starts=[6], sizes=[1], steps=[1]}",
     "! leave 6 elements"},
    {"%x: f32[6]", "%y = slice %x {starts=[-1], sizes=[1], steps=[1]}",
     "! leave 6 elements"},
    {"%x: f32[2,3]", "%y = reduce_sum %x {axes=[0,1]}", "f32[1,1]"},
    {"%x: f32[2,3]", "%y = reduce_sum %x {axes=[1,1]}", "! rising"},
    {"%x: f32[2,3]", "%y = reduce_sum %x {axes=[2]}", "! outside rank 2"},
    {"%x: f32[4]", "%y = pad %x {pads=[3,3], mode=\"reflect\"}", "f32[10]"},
    {"%x: f32[4]", "%y = pad %x {pads=[4,0], mode=\"reflect\"}",
     "! 4 elements by reflect"},
    {"%x: f32[4]", "%y = pad %x {pads=[0,4], mode=\"reflect\"}",
     "! 4 elements by reflect"},
    {"%x: f32[1]", "%y = pad %x {pads=[7,0], mode=\"edge\"}", "f32[8]"},
    {"%x: f32[0]", "%y = pad %x {pads=[1,0], mode=\"edge\"}",
     "! 0 elements by edge"},
    {"%x: f32[4]", "%y = pad %x {pads=[-1,0], mode=\"constant\"}", "! pads -1"},
    {"%x: f32[4]", "%y = pad %x {pads=[0,-1], mode=\"constant\"}",
     "! pads 0 and -1"},
    {"%x: f32[4]", "%y, %z = split %x {axis=0, sizes=[-1,5]}", "! "},
    {"%x: f32[4]", "%y, %z = split %x {axis=0, sizes=[5,-1]}", "! "},
    {"%x: f32[4]", "%y, %z = split %x {axis=0, sizes=[0,4]}", "f32[0] f32[4]"},
    {"%x: f32[4]", "%y, %z = split %x {axis=0, sizes=[1,4]}", "! "},
    {"%x: f32[5]", "%y = slice %x {starts=[5], sizes=[1], steps=[1]}",
     "! leave 5 elements"},
    {"%x: f32[5]", "%y = slice %x {starts=[5], sizes=[1], steps=[-1]}",
     "! leave 5 elements"},
    {"%x: f32[5]", "%y = slice %x {starts=[4], sizes=[1], steps=[1]}",
     "f32[1]"},
    {"%x: f32[4,2]", "%y = softmax %x {axis=-2}", "f32[4,2]"},
    {"%x: f32[4,2]", "%y = softmax %x {axis=-3}", "! axis"},
    {"%x: f32[4,2]", "%y = softmax %x {axis=2}", "! axis"},
    {"%x: f32[4,2]", "%y = cumsum %x {axis=-3}", "! axis -3 is outside rank 2"},
    {"%r: i64[2,1]", "%y = rand_uniform %r : f32[5]", "! wants i64[2]"},
    {"%r: i64[3]", "%y = rand_uniform %r : f32[5]", "! wants i64[2]"},
    {"%r: i64[]", "%y = rand_uniform %r : f32[5]", "! wants i64[2]"},
    {"%x: f32[1,1,1,1,1], %i: i64[2,1,1,1]", "%y = gather %x, %i {axis=4}",
     "f32[1,1,1,1,2,1,1,1]"},
    {"%x: f32[1,1,1,1,1], %i: i64[2,1,1,1,1]", "%y = gather %x, %i {axis=4}",
     "! at most 8"},
    {"%x: f32[2,3], %i: i64[1]", "%y = gather %x, %i {axis=2}",
     "! outside rank 2"},
    {"%x: f32[2,3]", "%y = transpose %x {perm=[1,1]}", "! not a permutation"},
    {"%x: f32[2,3]", "%y = transpose %x {perm=[1,2]}", "! not a permutation"},
    {"%x: f32[2,5]", "%y, %z = split %x {axis=1, sizes=[5,0]}",
     "f32[2,5] f32[2,0]"},
    {"%x: f32[2,5]", "%y, %z = split %x {axis=1, sizes=[5,1]}",
     "! add up to 6"},
    {"%x: f32[2,5]", "%y, %z = split %x {axis=1, sizes=[4,0]}",
     "! add up to 4"},
    {"%x: f32[1,1,4], %w: f32[1,1,6]", "%y = conv %x, %w {pads=[1,1]}",
     "f32[1,1,1]"},
    {"%x: f32[1,1,4], %w: f32[1,1,7]", "%y = conv %x, %w {pads=[1,1]}",
     "! is larger than input"},
    {"%x: f32[1,1,7], %w: f32[1,1,3]", "%y = conv %x, %w {dilations=[3]}",
     "f32[1,1,1]"},
    {"%x: f32[1,1,6], %w: f32[1,1,3]", "%y = conv %x, %w {dilations=[3]}",
     "! is larger than input"},
    {"%x: f32[1,1,7], %w: f32[1,1,3]", "%y = conv %x, %w {strides=[0]}",
     "! wants 1 or more"},
    {"%x: f32[1,1,2,2,2], %w: f32[1,1,2,2,2]", "%y = conv %x, %w",
     "f32[1,1,1,1,1]"},
    {"%x: f32[1,1,2,2,2,2], %w: f32[1,1,2,2,2,2]", "%y = conv %x, %w",
     "! 1 to 3 spatial"},
    {"%x: f32[1,1], %w: f32[1,1]", "%y = conv %x, %w", "! 1 to 3 spatial"},
    {"%x: f32[1,7,3], %w: f32[4,3,1]", "%y = conv %x, %w {group=2}",
     "! input f32[1,7,3], weight f32[4,3,1], 2 groups"},
    {"%x: f32[1,6,3], %w: f32[5,3,1]", "%y = conv %x, %w {group=2}",
     "! input f32[1,6,3], weight f32[5,3,1], 2 groups"},
    {"%x: f32[1,6,3], %w: f32[4,3,1]", "%y = conv %x, %w {group=-1}",
     "! input f32[1,6,3], weight f32[4,3,1], -1 groups"},
    {"%x: f32[1,6,3], %w: f32[4,3,1]", "%y = conv %x, %w {group=2}",
     "f32[1,4,3]"},
    {"%x: f32[1,6,3], %w: f32[4,2,1]", "%y = conv %x, %w {group=3}",
     "! 3 groups"},
    {"%x: f32[1,6,3], %w: f32[4,6,1]", "%y = conv %x, %w {group=0}",
     "! 0 groups"},
    {"%x: f32[1,1,5]",
     "%y, %i = max_pool %x {kernel_shape=[2], strides=[2], sizes=[3]}",
     "f32[1,1,3] i8[1,1,3]"},
    {"%x: f32[1,1,4]",
     "%y, %i = max_pool %x {kernel_shape=[2], strides=[2], sizes=[3]}",
     "! leave 4 elements"},
    {"%x: f32[4,3], %t: i64[4]",
     "%l, %e = softmax_cross_entropy %x, %t {label_smoothing=1}",
     "f32[] f32[4]"},
    {"%x: f32[4,3], %t: i64[4]",
     "%l, %e = softmax_cross_entropy %x, %t {label_smoothing=1.0001}",
     "! outside 0..1"},
    {"%x: f32[4,3], %t: i64[4]",
     "%l, %e = softmax_cross_entropy %x, %t {label_smoothing=-0.0001}",
     "! outside 0..1"},
    {"%x: f16[4], %r: i64[2]", "%y = dropout %x, %r {ratio=0}", "f16[4]"},
    {"%x: f16[4], %r: i64[2]", "%y = dropout %x, %r {ratio=0.9999}", "f16[4]"},
    {"%x: f16[4], %r: i64[2]", "%y = dropout %x, %r {ratio=-0.0001}",
     "! outside 0..1"},
    {"%x: f32[1,1,4], %w: f32[1,1,1]", "%y = conv %x, %w {pads=[0,-1]}",
     "! 'pads' has a negative number"},
    {"%x: f32[1,1,4], %w: f32[1,1,1,1]", "%y = conv %x, %w",
     "! differ in rank"},
    {"%x: i8[1,1,4]", "%y, %i = max_pool %x {kernel_shape=[2], sizes=[3]}",
     "! wants floating point"},
    {"%x: f32[2,3]",
     "%y = slice_grad %x {shape=[6], starts=[0], steps=[1]} : f32[6]",
     "! has not the rank of"},
    {"%x: f32[2]", "%y = iota {axis=0} : bool[3]", "! wants numbers"},
    {"%x: f32[3]", "%y = trilu %x", "! rank 2 or more"},
    {"%q: i8[3,70], %s: f32[4]", "%y = widen_quantized %q, %s", "f32[3,70]"},
    {"%q: u8[3,35], %s: f32[4]", "%y = widen_quantized %q, %s {code=2}",
     "f32[3,70]"},
    {"%q: u8[3,35], %s: f32[4]", "%y = widen_quantized %q, %s",
     "! codes are u8[3,35], want i8"},
    {"%q: i8[3,70], %s: f32[3]", "%y = widen_quantized %q, %s",
     "! scales are f32[3], want 4"},
    {"%q: i8[3,70], %s: f32[4]", "%y = widen_quantized %q, %s {code=3}",
     "! attribute 'code' is 3"},
    {"%x: bf16[2,5,70], %q: i8[3,70], %s: f32[4]",
     "%y = matmul_quantized %x, %q, %s {trans_b=1}", "bf16[2,5,3]"},
    {"%x: f32[5,6], %q: u8[6,35], %s: f32[7]",
     "%y = matmul_quantized %x, %q, %s {code=1}", "f32[5,70]"},
    {"%x: f32[5,7], %q: i8[3,70], %s: f32[4]",
     "%y = matmul_quantized %x, %q, %s {trans_b=1}",
     "! inner dimensions 7 and 70"},
    {"%x: f32[70], %q: i8[3,70], %s: f32[4]",
     "%y = matmul_quantized %x, %q, %s {trans_b=1}", "! wants rank 2 or more"},
    {"%x: f32[4,3]", "%y = argsort %x {k=2}", "i32[4,2]"},
    {"%x: f32[4,0]", "%y = argsort %x {k=0}", "i32[4,0]"},
    {"%x: f32[4,3]", "%y = argsort %x", "! needs attribute 'k'"},
    {"%x: f32[4,3]", "%y = argsort %x {k=4}", "! k is 4 of the last axis"},
    {"%x: f32[4,3]", "%y = argsort %x {k=-1}", "! k is -1"},
    {"%x: f32[]", "%y = argsort %x {k=0}", "! k is 0"},
    {"%x: f32[2147483648]", "%y = argsort %x {k=1}", "! k is 1"},
    {"%x: f32[3,0]", "%y = argmax %x {axis=1}", "! is empty"},
    {"%x: f32[0,3]", "%y = argmax %x {axis=1}", "i64[0,1]"},
    {"%x: f32[3], %z: f32[3,2]", "%y = matmul %x, %z", "! rank 2 or more"},
};

static bool covered[NUM_OPS];

static void check_types(const Row *r, const Graph *g) {
    StrBuf got = {0};
    const Node *n = node_get(g, g->order.data[0]);
    covered[n->op] = true;
    for (int i = 0; i < n->nout; i++) {
        if (i) sb_puts(&got, " ");
        sb_put_type(&got, value_get(g, n->out[i])->type);
    }
    CHECK_MSG(strcmp(got.data, r->want) == 0, "%s\n gives %s, want %s", r->line,
              got.data, r->want);
    sb_free(&got);
}

static void check_row(const Row *r) {
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    char *text =
        arena_printf(a, "graph g(%s) {\n%s\nreturn\n}", r->inputs, r->line);
    Status s = parse_module(a, &d, "row", text, strlen(text), &m);
    if (r->want[0] == '!') {
        if (CHECK_MSG(s != OK, "%s is accepted", r->line))
            CHECK_HAS(d.text.data, r->want + 2);
    } else if (CHECK_MSG(s == OK, "%s", d.text.data)) {
        check_types(r, m->graphs.data[0]);
    }
    sb_free(&d.text);
    arena_free(a);
}

/* One operand, and a result of the same type: all ops of such a rule. */
static void check_alike(const char *rule, const char *const (*want)[2], int n) {
    for (int op = 0; op < NUM_OPS; op++) {
        char line[80];
        snprintf(line, sizeof line, "%%y = %s %%x", op_info[op].text);
        for (int i = 0; i < n && !strcmp(op_info[op].type_text, rule); i++)
            check_row(&(Row){want[i][0], line, want[i][1]});
    }
}

TEST_CASE(type_rules, every_op_gives_and_refuses) {
    memset(covered, 0, sizeof covered);
    check_alike("unary_f",
                (const char *const[][2]){{"%x: f32[2]", "f32[2]"},
                                         {"%x: f64[2]", "f64[2]"},
                                         {"%x: bf16[4,3]", "bf16[4,3]"},
                                         {"%x: i32[2]", "! floating point"}},
                4);
    check_alike("unary_n",
                (const char *const[][2]){{"%x: f16[2]", "f16[2]"},
                                         {"%x: u8[2,3]", "u8[2,3]"},
                                         {"%x: bool[2]", "! wants numbers"}},
                3);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) check_row(&rows[i]);
    for (int op = 0; op < NUM_OPS; op++)
        CHECK_MSG(covered[op], "no row for %s", op_info[op].text);
}

/* ---- dimensions that are one ----------------------------------------------
 */

/* $a, $b, ...: dimensions.  Equal letters stand for equal dimensions: if a
   single occurrence is greater by 1, the node is refused. */
static const char *const bound[][2] = {
    {"%x: f32[$a,$b], %z: f32[$a,$b]", "%y = mul %x, %z"},
    {"%m: bool[$a], %x: f32[$a], %z: f32[$a]", "%y = where %m, %x, %z"},
    {"%x: f32[$a,$b]", "%y = relu %x : f32[$a,$b]"},
    {"%x: f32[$a,$b,2]", "%y = reshape %x {shape=[2,$b,$a]}"},
    {"%x: f32[$a,$b,2], %z: f32[$a,$b,3]", "%y = concat %x, %z {axis=2}"},
    {"%x: f32[$a,$b,2], %z: f32[$a,$b,2], %v: f32[$a,$b,7]",
     "%y = concat %x, %z, %v {axis=2}"},
    {"%x: f32[$a,5]", "%y, %z = split %x {axis=1, sizes=[3,2]} : "
                      "f32[$a,3], f32[$a,2]"},
    {"%u: f32[$a,$i,2], %i: i32[$i]",
     "%y = scatter_add %u, %i {axis=1, shape=[$a,9,2]}"},
    {"%x: f32[$b,$m,$k], %z: f32[$b,$k,$n]", "%y = matmul %x, %z"},
    {"%x: f32[$b,$k,$m], %z: f32[$b,$n,$k]",
     "%y = matmul %x, %z {trans_a=1, trans_b=1}"},
    {"%q: f32[$b,$c,3,$t,$d], %k: f32[$b,$c,3,$d,$s], %v: f32[$b,$c,3,$s,$e]",
     "%y, %l = attend %q, %k, %v"},
    {"%q: f32[$b,8,$t,$d], %k: f32[$b,$h,$s,$d], %v: f32[$b,$h,$s,$e], "
     "%m: f32[$b,8,$t,$s]",
     "%y, %l = attend %q, %k, %v, %m {trans_b=1}"},
    {"%q: f32[$b,$t,$d], %k: f32[$b,$d,$s], %v: f32[$b,$s,$e], "
     "%y: f32[$b,$t,$e], %l: f32[$b,$t,2], %d: f32[$b,$t,1]",
     "%a, %c, %e = attend_grad %q, %k, %v, %y, %l, %d"},
    {"%x: f32[$n,$c,9,9], %w: f32[$k,$c,3,3]",
     "%y = conv %x, %w : f32[$n,$k,7,7]"},
    {"%g: f32[$n,$k,6], %w: f32[$k,$c,3]",
     "%y = conv_dgrad %g, %w {shape=[$n,$c,8]}"},
    {"%x: f32[$n,$c,8], %g: f32[$n,$k,6]",
     "%y = conv_wgrad %x, %g {shape=[$k,$c,3]}"},
    {"%g: f32[$n,$c,4], %i: i8[$n,$c,4]",
     "%y = max_pool_grad %g, %i "
     "{shape=[$n,$c,8], kernel_shape=[2], strides=[2], sizes=[4]}"},
    {"%g: f32[$n,$c,8]",
     "%y = avg_pool_grad %g "
     "{shape=[$n,$c,8], kernel_shape=[3], pads=[1,1], sizes=[8]}"},
    {"%x: f32[$a,$b,$c], %s: f32[$b,$c], %o: f32[$b,$c]",
     "%y, %m, %r = layer_norm %x, %s, %o {axis=1}"},
    {"%x: f32[$n,$c,$l], %s: f32[$c], %o: f32[$c], %m: f32[$c], %v: f32[$c]",
     "%y = batch_norm %x, %s, %o, %m, %v"},
    {"%x: f32[$n,$c,$l], %t: i64[$n,$l], %w: f32[$c]",
     "%l, %e = softmax_cross_entropy %x, %t, %w"},
    {"%x: f32[$n,$c], %t: i64[$n], %w: f32[$c]", "%l = nll_loss %x, %t, %w"},
};

/* Appends text with the dimensions filled in; the one at `wrong` is greater
   by 1. */
static void put_bound(StrBuf *sb, const char *text, const char *wrong) {
    for (const char *s = text; *s; s++)
        if (*s == '$') {
            sb_printf(sb, "%d", 2 + (s[1] - 'a') % 5 + (s == wrong));
            s++;
        } else {
            sb_printf(sb, "%c", *s);
        }
}

static bool accepts(const char *const row[2], const char *wrong, StrBuf *sb) {
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    sb->len = 0;
    sb_puts(sb, "graph g(");
    put_bound(sb, row[0], wrong);
    sb_puts(sb, ") {\n");
    put_bound(sb, row[1], wrong);
    sb_puts(sb, "\nreturn\n}\n");
    bool ok = parse_module(a, &d, "row", sb->data, sb->len, &m) == OK;
    sb_free(&d.text);
    arena_free(a);
    return ok;
}

TEST_CASE(type_rules, dimensions_of_one_letter_are_the_same) {
    StrBuf sb = {0};
    for (size_t i = 0; i < sizeof bound / sizeof *bound; i++) {
        bool ok = accepts(bound[i], NULL, &sb);
        CHECK_MSG(ok, "refused: %s", sb.data);
        for (int part = 0; part < 2; part++)
            for (const char *s = bound[i][part]; (s = strchr(s, '$')); s++) {
                int times = 0;
                for (int k = 0; k < 2; k++)
                    for (const char *t = bound[i][k]; (t = strchr(t, '$')); t++)
                        times += t[1] == s[1];
                ok = times > 1 && accepts(bound[i], s, &sb);
                CHECK_MSG(!ok, "accepted: %s", sb.data);
            }
    }
    sb_free(&sb);
}
