/* SPDX-License-Identifier: Apache-2.0 */
/* bodies.c: operators with graphs as attributes. */
#include "tests/frontend/onnx_bounds/rows.h"

#define SUMS "body={s,x|Add(s,x)>t;Identity(t)>u|t,u}"
#define SCAN "Scan(a,b)>z,y num_scan_inputs=1 " SUMS

TEST_CASE(onnx_bounds, bodies) {
    static const Row rows[] = {
        {11, "f32[2] f32[3,2]", SCAN, "=f32[3,2] 100 102 202 205 306 310"},
        {11, "f32[2] f32[3,2]", "Scan(a,b)>y,z num_scan_inputs=1 " SUMS,
         "=f32[2] 306 310"},
        {11, "f32[2] f32[3,2]", SCAN " scan_input_directions=[1]",
         "=f32[3,2] 104 106 206 209 306 310"},
        {11, "f32[2] f32[3,2]", SCAN " scan_output_directions=[1]",
         "=f32[3,2] 306 310 202 205 100 102"},
        {11, "f32[2] f32[2,2]", SCAN " scan_output_directions=[1]",
         "=f32[2,2] 202 205 100 102"},
        {11, "f32[2] f32[4,2]", SCAN " scan_output_directions=[1]",
         "=f32[4,2] 412 417 306 310 202 205 100 102"},
        {11, "f32[2] f32[3,2]", SCAN " scan_output_axes=[1]",
         "=f32[2,3] 100 202 306 102 205 310"},
        {11, "f32[2] f32[3,2]", SCAN " scan_output_axes=[-1]",
         "=f32[2,3] 100 202 306 102 205 310"},
        {11, "f32[2] f32[3,2]", SCAN " scan_output_axes=[2]", "axis 2 is out"},
        {11, "f32[2] f32[2,3]", SCAN " scan_input_axes=[1]",
         "=f32[3,2] 100 104 201 208 303 313"},
        {11, "f32[2] f32[2,3]", SCAN " scan_input_axes=[2]", "axis 2 is out"},
        {11, "f32[2] f32[3,2] f32[3,2]",
         "Scan(a,b,c)>z,y num_scan_inputs=2 scan_input_directions=[1] "
         "body={s,x,w|Add(s,x)>t;Sub(x,w)>u|t,u}",
         "scan_input_directions is too short"},
        {11, "f32[2] f32[3,2] f32[3,2]",
         "Scan(a,b,c)>z,y num_scan_inputs=2 scan_input_directions=[0,1] "
         "body={s,x,w|Add(s,x)>t;Sub(x,w)>u|t,u}",
         "=f32[3,2] -104 -104 -100 -100 -96 -96"},
        {11, "f32[2] f32[3,2] f32[2,2]",
         "Scan(a,b,c)>z,y num_scan_inputs=2 "
         "body={s,x,w|Add(s,x)>t;Sub(x,w)>u|t,u}",
         "its operands differ in length"},
        {11, "f32[2] f32[0,2]", SCAN, "0 turns"},
        {11, "f32[1] f32[4097,1]", SCAN, "4097 turns"},
        {8, "f32[2] f32[3,2]", SCAN, "Scan before opset 9"},
        {11, "f32[2] f32[3,2]", "Scan(a,b)>z,y num_scan_inputs=0 " SUMS,
         "num_scan_inputs is 0"},
        {11, "f32[3,2]", "Scan(a)>y num_scan_inputs=1 body={x|Neg(x)>t|t}",
         "=f32[3,2] -0 -1 -2 -3 -4 -5"},
        {11, "f32[2] f32[3,2]", "Scan(a,b)>z,y num_scan_inputs=3 " SUMS,
         "num_scan_inputs is 3"},
        {11, "f32[2] f32[3,2]", "Scan(a,b)>y num_scan_inputs=1 " SUMS,
         "its body gives 2 results"},
        {11, "f32[2] f32[3,2]",
         "Scan(a,b)>z,y num_scan_inputs=1 body={s|Neg(s)>t;Abs(s)>u|t,u}",
         "its body takes 1 operands, is given 2"},
        {11, "i64:3 f32[2]",
         "Loop(a,,b)>y body={i,go,s|Add(s,s)>t;Identity(go)>on|on,t}",
         "=f32[2] 800 808"},
        {11, "i64:0 f32[2]",
         "Loop(a,,b)>y body={i,go,s|Add(s,s)>t;Identity(go)>on|on,t}",
         "=f32[2] 100 101"},
        {11, "i64:3 f32[2] i64:0",
         "Equal(a,c)>k;Loop(a,k,b)>y "
         "body={i,go,s|Add(s,s)>t;Identity(go)>on|on,t}",
         "=f32[2] 100 101"},
        {11, "i64:3 f32[2] i64:0",
         "Equal(a,a)>k;Loop(a,k,b)>y "
         "body={i,go,s|Add(s,s)>t;Identity(go)>on|on,t}",
         "=f32[2] 800 808"},
        {11, "i64:3 f32[2]",
         "Loop(a,,b)>z,y body={i,go,s|Add(s,s)>t;Identity(go)>on;"
         "Identity(i)>u|on,t,u}",
         "=i64[3] 0 1 2"},
        {11, "i64:0 f32[2]",
         "Loop(a,,b)>z,y body={i,go,s|Add(s,s)>t;Identity(go)>on;"
         "Identity(i)>u|on,t,u}",
         "its body does not run once"},
        {11, "i64:9 f32[2] i64:1",
         "Loop(a,,b)>z,y body={i,go,s|Add(s,s)>t;Less(i,c)>on;"
         "Identity(i)>u|on,t,u}",
         "=i64[2] 0 1"},
        {11, "f32[2] i64:2",
         "Loop(,,a)>y body={i,go,s|Add(s,s)>t;Less(i,b)>on|on,t}",
         "=f32[2] 0 8"},
        {11, "f32[2]",
         "Loop(,,a)>y body={i,go,s|Identity(s)>t;Identity(go)>on|on,t}",
         "more than 4096 iterations"},
        {11, "i64:4096 f32[2]",
         "Loop(a,,b)>y body={i,go,s|Identity(s)>t;Identity(go)>on|on,t}",
         "=f32[2] 100 101"},
        {11, "i64:4097 f32[2]",
         "Loop(a,,b)>y body={i,go,s|Identity(s)>t;Identity(go)>on|on,t}",
         "more than 4096 iterations"},
        {11, "i64:3 f32[2]", "Loop(a,,b)>y body={i,go,s|Identity(go)>on|on}",
         "its body gives 1 results"},
        {11, "i64:3 f32[2]", "Loop(a,,b)>y body={i,go|Identity(go)>on|on,go}",
         "its body takes 2 operands, is given 3"},
        {11, "i64:1 f32[2]",
         "Equal(a,a)>k; If(k)>y then_branch={|Neg(b)>t|t} "
         "else_branch={|Abs(b)>t|t}",
         "=f32[2] -100 -101"},
        {11, "i64:1 f32[2]",
         "Less(a,a)>k; If(k)>y then_branch={|Neg(b)>t|t} "
         "else_branch={|Abs(b)>t|t}",
         "=f32[2] 100 101"},
        {11, "i64:1 f32[2]",
         "Equal(a,a)>k; If(k)>y then_branch={|Neg(b)>t|t,t} "
         "else_branch={|Abs(b)>t|t}",
         "a branch gives 2 results"},
        /* operands from outside a body are computed first, whatever the
           order */
        {11, "i64:1 f32[2]",
         "Equal(a,a)>k; If(k)>y then_branch={||z} else_branch={||z}; Neg(b)>z",
         "=f32[2] -100 -101"},
        {11, "i64:1 f32[2]",
         "Equal(a,a)>k; If(k)>x,y then_branch={||w,z} else_branch={||w,z}; "
         "Neg(b)>z; Abs(b)>w",
         "=f32[2] -100 -101"},
        {11, "i64:1 f32[2]",
         "Equal(a,a)>k; If(k)>y then_branch={|Add(z,b)>t|t} "
         "else_branch={|Abs(b)>t|t}; Neg(b)>z",
         "=f32[2] 0 0"},
        {11, "i64:1 f32[2]",
         "Equal(a,a)>k; If(k)>y then_branch={||q} else_branch={||b}", "'q'"},
        {11, "i64:1 f32[2]",
         "Equal(a,a)>k; If(k)>y then_branch={|Neg(q)>t|t} else_branch={||b}",
         "'q'"},
        {11, "i64[1] f32[2]",
         "Equal(a,a)>k; If(k)>y then_branch={||b} else_branch={||b}",
         "=f32[2] 100 101"},
        {11, "i64:9 f32[2] i64[]",
         "Loop(a,,b)>y body={i,go,s|Add(s,s)>t;Less(i,c)>on|on,t}",
         "=f32[2] 51200 51712"},
        {11, "i64:2 f32[2]",
         "Loop(a,,b)>y,z body={i,go,s|Identity(go)>on;SequenceConstruct(s)>q|"
         "on,s,q}",
         "a scan output is a sequence"},
        {11, "i64:1 f32[2]", "Equal(a,a)>k; If(k)>y then_branch={|Neg(b)>t|t}",
         "=f32[2] -100 -101"},
        {11, "i64:1 f32[2]", "Less(a,a)>k; If(k)>y then_branch={|Neg(b)>t|t}",
         "attribute 'else_branch' is missing"}};
    CHECK_ROWS(rows);
}
