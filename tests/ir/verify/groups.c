/* SPDX-License-Identifier: Apache-2.0 */
/* groups.c: groups and the memory plan, as text. */
#include <stdio.h>
#include <string.h>

#include "ir/ir.h"
#include "ir/text/text.h"
#include "tests/harness.h"
#include "tests/ir/verify/verify.h"

/* ---- groups and the memory plan, as text --------------------------------- */

typedef struct Row {
    Stage stage;
    const char *head, *body;
    const char *want; /* NULL: passes */
} Row;

#define X "%x: f32[8,4]"

static const Row rows[] = {
    {STAGE_FUSED, X, "group point { %a = relu %x %b = exp %a } return %b",
     NULL},
    {STAGE_FUSED, X, "%a = relu %x return %a", "%a = relu: is in no group"},
    {STAGE_FUSED, X,
     "group point { %a = relu %x } %v = reshape %a {shape=[32]} "
     "group point { %b = exp %v } return %b",
     NULL},
    {STAGE_FUSED, X, "group point { %v = reshape %x {shape=[32]} } return %v",
     "a view is in no group"},
    {STAGE_FUSED, X, "group point { %a = softmax %x } return %a",
     "is inlined by now"},
    {STAGE_FUSED, X, "group point { } return", "group 0 is empty"},
    /* point */
    {STAGE_FUSED, X,
     "group point { %i = iota {axis=0} : f32[8,4] %a = add %x, %i "
     "%t = transpose %a {perm=[1,0]} } return %t",
     NULL},
    {STAGE_FUSED, X,
     "group point { %a = relu %x %t = transpose %a {perm=[1,0]} } "
     "return %a, %t",
     "f32[4,8] leaves a point group, so does f32[8,4]"},
    {STAGE_FUSED, X, "group point { %r = reduce_sum %x {axes=[1]} } return %r",
     "does not belong in a point group"},
    {STAGE_FUSED, X ", %t: bool[]",
     "group point { %c = not %t %a = relu %x } group point if %c { %b = exp %x "
     "} return %a, %b",
     "f32[8,4] leaves a point group, so does bool[]"},
    /* row */
    {STAGE_FUSED, X,
     "group row { %e = exp %x %s = reduce_sum %e {axes=[1]} %y = div %e, %s } "
     "return %y, %s",
     NULL},
    {STAGE_FUSED, X, "group row { %e = exp %x } return %e",
     "without a reduction"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1], keepdims=0} } return %s",
     "keep their dimensions"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} "
     "%r = reduce_max %x {axes=[0]} } return %s, %r",
     "along one set of axes"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} "
     "%r = reduce_max %s {axes=[1]} } return %s, %r",
     "folds one shape, f32[8,4]"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} "
     "%e = expand %s {shape=[8,4]} %y = sub %x, %e } return %y",
     "moves what a reduction of its group makes"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} "
     "%y = add %s, 1 %f = full {value=1} : f32[4] } return %y, %f",
     "f32[4] leaves a row group of f32[8,4]"},
    {STAGE_FUSED, X,
     "group row { %m = matmul %x, %x {trans_b=1} "
     "%s = reduce_sum %m {axes=[1]} } return %s",
     "does not belong in a row group"},
    /* anchor */
    {STAGE_FUSED, X ", %b: f32[8]",
     "group anchor { %m = matmul %x, %x {trans_b=1} %a = add %m, %b } "
     "return %m, %a",
     NULL},
    {STAGE_FUSED, X, "group anchor { %a = relu %x } return %a",
     "without an anchor"},
    {STAGE_FUSED, X,
     "group anchor { %m = matmul %x, %x {trans_b=1} %n = matmul %m, %x } "
     "return %n",
     "a second anchor"},
    {STAGE_FUSED, X,
     "group anchor { %m = matmul %x, %x {trans_b=1} "
     "%t = transpose %m {perm=[1,0]} } return %t",
     "does not belong in an anchor group"},
    {STAGE_FUSED, X ", %b: f32[3,8,8]",
     "group anchor { %m = matmul %x, %x {trans_b=1} %a = add %m, %b } "
     "return %a",
     "f32[3,8,8] in an anchor group of f32[8,8]"},
    {STAGE_FUSED, "%x: f32[1,2,4,4], %w: f32[2,2,1,1]",
     "group anchor { %c = conv %x, %w %p, %i = max_pool %c "
     "{kernel_shape=[2,2], strides=[2,2], sizes=[2,2]} } return %c, %p",
     NULL},
    {STAGE_FUSED, "%x: f32[1,2,4,4], %w: f32[2,2,1,1]",
     "group anchor { %c = conv %x, %w %p, %i = max_pool %x "
     "{kernel_shape=[2,2], strides=[2,2], sizes=[2,2]} } return %c, %p",
     "does not belong in an anchor group"},
    {STAGE_FUSED, "%x: f32[1,2,4,4], %w: f32[2,2,1,1]",
     "group anchor { %c = conv %x, %w %p, %i = max_pool %c "
     "{kernel_shape=[2,2], strides=[2,2], sizes=[2,2]} %r = relu %c } "
     "return %r, %p",
     "does not belong in an anchor group"},
    {STAGE_FUSED, "%x: f32[1,2,4,4], %w: f32[1,2,4,4]",
     "group anchor { %c = matmul %x, %w %p, %i = max_pool %c "
     "{kernel_shape=[2,2], strides=[2,2], sizes=[2,2]} } return %c, %p",
     "does not belong in an anchor group"},
    /* lib */
    {STAGE_FUSED, X, "group lib { %a = argmax %x {axis=1} } return %a", NULL},
    {STAGE_FUSED, X,
     "group lib { %a = argmax %x {axis=1} %b = argmax %x {axis=0} } "
     "return %a, %b",
     "a lib group is one library op"},
    {STAGE_FUSED, X, "group lib { %a = relu %x } return %a",
     "a lib group is one library op"},
    /* one launch */
    {STAGE_FUSED, X,
     "group point { %a = relu %x } group point beside { %b = exp %x } "
     "return %a, %b",
     NULL},
    {STAGE_FUSED, X,
     "group point { %a = relu %x } group point beside { %b = exp %a } "
     "return %b",
     "reads what its own launch makes"},
    {STAGE_FUSED, X,
     "group point { %a = relu %x } %v = reshape %a {shape=[32]} "
     "group point beside { %b = exp %v } return %b",
     "reads what its own launch makes"},
    {STAGE_FUSED, X,
     "group lib { %a = argmax %x {axis=1} } "
     "group point beside { %b = exp %x } return %a, %b",
     "only point or row groups share a launch"},
    {STAGE_FUSED, X, "group point beside { %b = exp %x } return %b",
     "only point or row groups share a launch"},
    {STAGE_FUSED, X,
     "group row { %a = reduce_sum %x {axes=[1], keepdims=1} } "
     "group row beside { %b = reduce_max %x {axes=[1], keepdims=1} } "
     "group row after { %c = reduce_sum %a {axes=[0], keepdims=1} } "
     "return %b, %c",
     NULL},
    {STAGE_FUSED, X,
     "group row { %a = reduce_sum %x {axes=[1], keepdims=1} } "
     "group row after { %c = reduce_sum %x {axes=[0], keepdims=1} } "
     "return %a, %c",
     "a group of a launch has one after it at most"},
    {STAGE_FUSED, X,
     "group row { %a = reduce_sum %x {axes=[1], keepdims=1} } "
     "group row after { %b = reduce_sum %a {axes=[0], keepdims=1} } "
     "group row after { %c = reduce_max %a {axes=[0], keepdims=1} } "
     "return %b, %c",
     "a group of a launch has one after it at most"},
    {STAGE_FUSED, X,
     "group row { %a = reduce_sum %x {axes=[1], keepdims=1} } "
     "group row beside { %b = reduce_max %x {axes=[1], keepdims=1} } "
     "group row after { %d = add %a, %b "
     "%c = reduce_sum %d {axes=[0], keepdims=1} } return %c",
     "reads what its own launch makes"},
    {STAGE_FUSED, X,
     "group row { %a = reduce_sum %x {axes=[1], keepdims=1} } "
     "group row after { %b = reduce_sum %a {axes=[0], keepdims=1} } "
     "group row after { %c = reduce_sum %b {axes=[1], keepdims=1} } "
     "return %c",
     "reads what its own launch makes"},
    {STAGE_FUSED, X,
     "group row { %a = reduce_sum %x {axes=[1], keepdims=1} } "
     "group row after { %b = reduce_sum %a {axes=[0], keepdims=1} } "
     "group row beside { %c = reduce_max %x {axes=[1], keepdims=1} } "
     "return %b, %c",
     "a group after others must be the last of its launch"},
    {STAGE_FUSED, X,
     "group point { %a = relu %x } group point after { %b = exp %a } return %b",
     "only point or row groups share a launch"},
    /* memory: f32[8,4] is 128 bytes */
    {STAGE_PLANNED, X, "group point { %a = relu %x } return %a",
     "leaves its group and has no place"},
    {STAGE_PLANNED, X, "group point { %a = relu %x : f32[8,4] @256 } return %a",
     "ends at byte 384 of an arena of 256"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } "
     "group point { %b = exp %a : f32[8,4] @128 } return %b",
     NULL},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } "
     "group point { %b = exp %a : f32[8,4] @64 } return %b",
     "%a and %b live at the same time and overlap"},
    /* in place: the operand is read only at the same index */
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } "
     "group point { %b = exp %a : f32[8,4] @0 } return %b",
     NULL},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } "
     "group point { %t = transpose %a {perm=[1,0]} : f32[4,8] @0 } return %t",
     "%a and %t live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } "
     "group point { %b = exp %a : f32[8,4] @0 } "
     "group point { %c = add %a, %b : f32[8,4] @128 } return %c",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : bf16[8,4] @0 } "
     "group point { %b = exp %a : f32[8,4] @0 } return %b",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } "
     "%v = reshape %a {shape=[32]} "
     "group point { %b = exp %x : f32[8,4] @0 } "
     "group point { %c = exp %v : f32[32] @128 } return %b, %c",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } "
     "group point { %b = exp %a : f32[8,4] @128 } "
     "group point { %c = exp %b : f32[8,4] @0 } return %c",
     NULL},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 %b = exp %x : f32[8,4] @0 } "
     "return %a, %b",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, X,
     "group lib { %a = argmax %x {axis=1} : i64[8,1] @0 } "
     "group lib { %b = argmax %x {axis=1} : i64[8,1] @0 } return %a, %b",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } "
     "group point { %b = exp %a : f32[8,4] @128 } "
     "group point beside { %c = exp %x : f32[8,4] @0 } return %b, %c",
     "%a and %c live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } "
     "group point { %b = exp %a : f32[8,4] @128 } "
     "group point beside { %c = exp %a : f32[8,4] @0 } return %b, %c",
     "%a and %c live at the same time"},
    {STAGE_PLANNED, X, /* other blocks still read %a */
     "group row { %a = reduce_sum %x {axes=[1], keepdims=1} : f32[8,1] @0 } "
     "group row beside { %b = reduce_max %x {axes=[1], keepdims=1} : f32[8,1] "
     "@64 } "
     "group row after { %c = reduce_sum %a {axes=[0], keepdims=1} : f32[1,1] "
     "@64 } return %b, %c",
     "%b and %c live at the same time"},
    /* homes */
    {STAGE_PLANNED, X,
     "state %s: f32[8,4] "
     "group point { %m = add %s, %x : f32[8,4] @0 } "
     "group point beside { %n = add %s, %x : f32[8,4] @%s } write %s = %n "
     "return %m",
     "%s is read at other places than written"},
    {STAGE_PLANNED, X,
     "state %s: f32[8,4] "
     "group point { %n = add %s, %x : f32[8,4] @%s } write %s = %n return",
     NULL},
    {STAGE_PLANNED, X,
     "state %s: f32[8,4] "
     "group point { %n = add %s, %x : f32[8,4] @%s } return %n",
     "its home is not written with it"},
    {STAGE_PLANNED, X,
     "state %s: f32[8,4] "
     "group point { %n = relu %x : f32[8,4] @%s } "
     "group point { %o = relu %s : f32[8,4] @0 } write %s = %n return %o",
     "%s is still read after it is overwritten"},
    {STAGE_PLANNED, X,
     "state %s: f32[8,4] "
     "group point { %n = relu %x : f32[8,4] @%s } write %s = %n "
     "return old=%s",
     "%s is still read after it is overwritten"},
    {STAGE_PLANNED, "",
     "state %s: f32[4,4] "
     "group point { %n = transpose %s {perm=[1,0]} : f32[4,4] @%s } "
     "write %s = %n return",
     "read at other places than written"},
    {STAGE_PLANNED, X,
     "state %s: f32[32] "
     "group point { %n = relu %x : f32[8,4] @%s } "
     "%v = reshape %n {shape=[32]} write %s = %v return",
     NULL},
    {STAGE_PLANNED, X,
     "state %s: bf16[8,4] "
     "group point { %n = relu %x : f32[8,4] @%s } "
     "%v = reshape %n {shape=[32]} return %v",
     "its home is not written with it"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1], keepdims=1} "
     "%c = reduce_sum %x {axes=[0], keepdims=1} } return %s, %c",
     NULL},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1], keepdims=1} "
     "%c = reduce_sum %x {axes=[0], keepdims=1} %d = neg %c } return %s, %d",
     "reads a sum over the rows of its group"},
    {STAGE_FUSED, "%x: f32[4,4]",
     "group anchor { %h = neg %x %y = matmul %h, %x } return %y",
     "reads what its own group makes"},
    {STAGE_FUSED, X,
     "group point { %a = relu %x } group point beside { %b = relu %a } "
     "return %a, %b",
     "reads what its own launch makes"},
    {STAGE_FUSED, X,
     "group point { %a = relu %x } group point beside { %b = neg %x } "
     "group point beside { %c = relu %b } return %a, %c",
     "reads what its own launch makes"},
    {STAGE_FUSED, X,
     "group point { %a = relu %x } %v = reshape %a {shape=[32]} "
     "group point beside { %b = relu %v } return %b",
     "reads what its own launch makes"},
    /* launches */
    {STAGE_FUSED, X,
     "group row { %a = reduce_sum %x {axes=[1]} } group row beside { %b = "
     "reduce_max %x {axes=[1]} } return %a, %b",
     NULL},
    {STAGE_FUSED, X,
     "group row { %a = reduce_sum %x {axes=[1]} } group point beside { %b "
     "= exp %x } return %a, %b",
     "only point or row groups share a launch"},
    {STAGE_FUSED, X,
     "group point { %b = exp %x } group row beside { %a = reduce_sum %x "
     "{axes=[1]} } return %a, %b",
     "only point or row groups share a launch"},
    {STAGE_FUSED, X,
     "group lib { %a = argmax %x {axis=1} } group lib beside { %b = "
     "argmax %x {axis=0} } return %a, %b",
     "only point or row groups share a launch"},
    {STAGE_FUSED, X,
     "group point { %a = relu %x } group point { %b = exp %x } group "
     "point beside { %c = exp %a } return %b, %c",
     NULL},
    {STAGE_FUSED, X,
     "group point { %a = relu %x } group point beside { %b = exp %x } "
     "group point { %c = exp %a } return %b, %c",
     NULL},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %p = pad %x "
     "{pads=[0,0,0,8], value=0} } return %s, %p",
     NULL},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %p = pad %x "
     "{pads=[0,0,0,1]} } return %s, %p",
     NULL},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %p = pad %x "
     "{pads=[0,0,0,9], value=0} } return %s, %p",
     "f32[8,13] leaves a row group of f32[8,4]"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %p = pad %x "
     "{pads=[0,0,0,4], value=1} } return %s, %p",
     "f32[8,8] leaves a row group of f32[8,4]"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %p = pad %x "
     "{pads=[0,0,0,3], mode=\"edge\"} } return %s, %p",
     "f32[8,7] leaves a row group of f32[8,4]"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %p = pad %x "
     "{pads=[0,1,0,3]} } return %s, %p",
     "f32[8,8] leaves a row group of f32[8,4]"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %p = pad %x "
     "{pads=[1,0,0,4]} } return %s, %p",
     "f32[9,8] leaves a row group of f32[8,4]"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %p = pad %x "
     "{pads=[0,0,1,4]} } return %s, %p",
     "f32[9,8] leaves a row group of f32[8,4]"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[0]} %p = pad %x "
     "{pads=[0,0,0,4]} } return %s, %p",
     "f32[8,8] leaves a row group of f32[8,4]"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[0,1]} %p = pad %x "
     "{pads=[0,0,0,4]} } return %s, %p",
     "f32[8,8] leaves a row group of f32[8,4]"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %p = pad %s "
     "{pads=[0,0,0,4]} } return %s, %p",
     "moves what a reduction of its group makes"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %d = div %x, %s %p = pad "
     "%d {pads=[0,0,0,4]} } return %p",
     NULL},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %d = div %x, %s %p = pad "
     "%d {pads=[0,0,0,4]} %q = neg %p } return %q",
     "moves what a reduction of its group makes"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %c = reduce_sum %x "
     "{axes=[0]} %t = reduce_max %x {axes=[1]} %y = add %s, %t } return "
     "%y, %c",
     NULL},
    {STAGE_FUSED, X,
     "group row { %c = reduce_sum %x {axes=[0]} %s = reduce_sum %x "
     "{axes=[1]} } return %s, %c",
     NULL},
    {STAGE_FUSED, X,
     "group row { %c = reduce_max %x {axes=[0]} %s = reduce_max %x "
     "{axes=[1]} } return %s, %c",
     "along one set of axes"},
    {STAGE_FUSED, "%x: i32[8,4]",
     "group row { %c = reduce_sum %x {axes=[0]} %s = reduce_sum %x {axes=[1]} "
     "} return %s, %c",
     "along one set of axes"},
    {STAGE_FUSED, "%x: f64[8,4]",
     "group row { %c = reduce_sum %x {axes=[0]} %s = reduce_sum %x "
     "{axes=[1]} } return %s, %c",
     "along one set of axes"},
    {STAGE_FUSED, "%x: f32[2,8,4]",
     "group row { %s = reduce_sum %x {axes=[2]} %c = reduce_sum %x "
     "{axes=[1]} } return %s, %c",
     "along one set of axes"},
    {STAGE_FUSED, "%x: f32[2,8,4]",
     "group row { %s = reduce_sum %x {axes=[2]} %c = reduce_sum %x "
     "{axes=[0,1]} } return %s, %c",
     NULL},
    {STAGE_FUSED, "%x: f32[1,8,4]",
     "group row { %s = reduce_sum %x {axes=[2]} %c = reduce_sum %x "
     "{axes=[1]} } return %s, %c",
     NULL},
    {STAGE_FUSED, "%x: f32[2,8,4]",
     "group row { %s = reduce_sum %x {axes=[1,2]} %c = reduce_sum %x "
     "{axes=[0]} } return %s, %c",
     NULL},
    {STAGE_FUSED, "%x: f32[2,8,4]",
     "group row { %s = reduce_sum %x {axes=[1]} %c = reduce_sum %x "
     "{axes=[0,2]} } return %s, %c",
     "along one set of axes"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %e = exp %s %i = iota "
     "{axis=0} : f32[4,4] } return %e, %i",
     "f32[4,4] leaves a row group of f32[8,4]"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %e = exp %s %i = iota "
     "{axis=0} : f32[4,4] } return %e",
     NULL},
    {STAGE_PLANNED, X, "group point { %a = relu %x : f32[8,4] @128 } return %a",
     NULL},
    {STAGE_PLANNED, X, "group point { %a = relu %x : f32[8,4] @129 } return %a",
     "ends at byte 257 of an arena of 256"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } group point { %b = exp "
     "%a : f32[8,4] @127 } return %b",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @128 } group point { %b = exp "
     "%a : f32[8,4] @0 } return %b",
     NULL},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } group point { %b = exp "
     "%a : f32[8,4] @128 } group point { %c = exp %a : f32[8,4] @0 } "
     "return %b, %c",
     NULL},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } group point { %c = exp "
     "%a : f32[8,4] @0 } group point { %b = exp %x : f32[8,4] @0 } return "
     "%b, %c",
     "live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } group point { %b = exp "
     "%x : f32[8,4] @0 } return %a, %b",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } group lib { %b = cumsum "
     "%a {axis=1} : f32[8,4] @0 } return %b",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, "%x: f32[4,4]",
     "group point { %a = relu %x : f32[4,4] @0 } group anchor { %b = "
     "matmul %a, %x : f32[4,4] @0 } return %b",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, "%x: f32[4,4]",
     "group point { %a = relu %x : f32[4,4] @0 } group anchor { %m = "
     "matmul %x, %x %b = add %m, %a : f32[4,4] @0 } return %b",
     NULL},
    {STAGE_PLANNED, "%x: f32[4,4]",
     "group point { %a = relu %x : f32[4,4] @0 } group anchor { %m = "
     "matmul %a, %x %b = add %m, %a : f32[4,4] @0 } return %b",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } group row { %s = "
     "reduce_sum %a {axes=[1]} %b = div %a, %s : f32[8,4] @0 } return %b",
     NULL},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } group row { %s = "
     "reduce_sum %x {axes=[1]} %t = slice %a {starts=[0,0], sizes=[8,4], "
     "steps=[1,1]} %b = div %t, %s : f32[8,4] @0 } return %b",
     NULL},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } group row { %s = "
     "reduce_sum %x {axes=[1]} %t = slice %a {starts=[7,0], sizes=[8,4], "
     "steps=[-1,1]} %b = div %t, %s : f32[8,4] @0 } return %b",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } group point { %t = slice "
     "%a {starts=[0,0], sizes=[8,4], steps=[1,1]} %b = exp %t : f32[8,4] "
     "@0 } return %b",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } %v = reshape %a "
     "{shape=[4,8]} group point { %b = exp %v : f32[4,8] @0 } return %b",
     NULL},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 %b = exp %x : f32[8,4] "
     "@128 } group point { %c = add %a, %b : f32[8,4] @0 } group point { "
     "%d = add %c, %b : f32[8,4] @128 } return %d",
     NULL},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : bf16[8,4] @0 %b = exp %x : bf16[8,4] "
     "@64 } group point { %c = add %a, %b : f32[8,4] @0 } return %c",
     "live at the same time"},
    {STAGE_PLANNED, "%x: f32[8,4], %y: f32[2,8,4]",
     "group point { %a = relu %x : f32[8,4] @0 } group point { %b = add "
     "%a, %y : bf16[2,8,4] @0 } return %b",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, X,
     "state %s: f32[8,4] state %t: f32[8,4] group point { %n = relu %x : "
     "f32[8,4] @%s } write %t = %n return",
     "its home is not written with it"},
    {STAGE_PLANNED, X,
     "state %s: f32[8,4] group point { %n = relu %x : f32[8,4] @%s } "
     "group point { %o = exp %x : f32[8,4] @0 } write %s = %o return %n",
     "its home is not written with it"},
    {STAGE_PLANNED, X,
     "state %s: f32[8,4] group point { %o = relu %s : f32[8,4] @0 } group "
     "point { %n = relu %x : f32[8,4] @%s } write %s = %n return %o",
     NULL},
    {STAGE_PLANNED, X,
     "state %s: f32[8,4] group lib { %n = cumsum %s {axis=1} : f32[8,4] "
     "@%s } write %s = %n return",
     "read at other places than written"},
    {STAGE_PLANNED, X,
     "state %s: f32[8,4] group row { %r = reduce_sum %s {axes=[1]} %n = "
     "div %s, %r : f32[8,4] @%s } write %s = %n return",
     NULL},
    {STAGE_PLANNED, X,
     "state %s: f32[8,4] group row { %r = reduce_sum %x {axes=[1]} : "
     "f32[8,1] @0 } group row beside { %q = reduce_sum %s {axes=[1]} %n = "
     "div %s, %q : f32[8,4] @%s } write %s = %n return %r",
     NULL},
};

static void check_row(const Row *r) {
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    char *text =
        arena_printf(a, "graph g(%s) arena 256 {\n%s\n}", r->head, r->body);
    if (CHECK_MSG(parse_module(a, &d, "t", text, strlen(text), &m) == OK, "%s",
                  d.text.data)) {
        Status s = verify_module(m, r->stage, &d);
        CHECK_MSG((s == OK) == (r->want == NULL), "%s\n%s", r->body,
                  d.text.data ? d.text.data : "accepted");
        if (s != OK && r->want) CHECK_HAS(d.text.data, r->want);
    }
    sb_free(&d.text);
    arena_free(a);
}

TEST_CASE(verify, groups_and_memory) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) check_row(&rows[i]);
}

/* A number beyond the last one of its kind is refused. */
TEST_CASE(verify, numbers_end) {
    Fixture f = verify_load(verify_base);
    verify_node(&f, "b")->op = NUM_OPS;
    verify_refused(&f, "op ");
    f = verify_load(verify_base);
    verify_node(&f, "b")->in[0] = (ValueId){(uint32_t)f.g->values.len};
    verify_refused(&f, "operand 0");
    f = verify_load(verify_base);
    verify_node(&f, "b")->out[0] = (ValueId){(uint32_t)f.g->values.len};
    verify_refused(&f, "result 0");
    f = verify_load(verify_base);
    f.g->order.data[1] = (NodeId){(uint32_t)f.g->nodes.len};
    verify_refused(&f, "in order does not exist");
    f = verify_load(verify_base);
    f.g->order.data[1] = (NodeId){0};
    verify_refused(&f, "in order does not exist");
    f = verify_load(verify_base);
    f.g->outputs.data[0].value = (ValueId){(uint32_t)f.g->values.len};
    verify_refused(&f, "");
}

TEST_CASE(verify, torn_group) {
    Fixture f = verify_load("graph g(%x: f32[4]) {\n"
                            "group point { %a = relu %x }\n"
                            "group point { %b = relu %a }\n"
                            "group point { %c = relu %b }\nreturn %c }");
    verify_node(&f, "c")->group = 0;
    CHECK(verify_graph(f.g, STAGE_FUSED, &f.d) != OK);
    CHECK_HAS(f.d.text.data, "%c = relu: group 0 is torn apart");
    verify_node(&f, "c")->group = 9;
    CHECK(verify_graph(f.g, STAGE_FUSED, &f.d) != OK);
    CHECK_HAS(f.d.text.data, "in group 9 of 3");
    verify_drop(&f);
}
