/* SPDX-License-Identifier: Apache-2.0 */
/* gates.c: conv_dgrad_sums, whose operands depend on each other. */
#include <string.h>

#include "ir/ir.h"
#include "ir/text/text.h"
#include "tests/harness.h"

/* Inputs beside the inputs of all rows, the operands from the gate on, and a
   part of the message; NULL: the node is right. */
static const char *const gated[][3] = {
    {"%x: f16[2,3,8], %a: bf16[2,3,8]", "%x, _, _, %a", NULL},
    {"%x: f16[2,3,8]", "_, %m, %m", NULL},
    {"%x: f16[2,3,8]", "_", "wants a gate, or a gain and a shift"},
    {"%x: f16[2,3,8]", "_, %m, _", "wants a gate, or a gain and a shift"},
    {"%x: f16[2,3,8]", "%x, %m, %m", "wants a gate, or a gain and a shift"},
    {"%x: f32[2,3,8]", "_, %m, %m", "operand 2 is f32[2,3,8], want 16 bits"},
    {"%x: f16[2,3,8], %a: bf16[2,3,7]", "%x, _, _, %a",
     "operand 8 is bf16[2,3,7], want 16 bits of the result's shape"},
    {"%x: f16[2,3,8], %v: f32[1,2,1]", "_, %v, %m",
     "operand 6 is f32[1,2,1], want f32[1,3,1]"},
    {"%x: f16[2,3,8], %v: f16[1,3,1]", "_, %m, %v",
     "operand 7 is f16[1,3,1], want f32[1,3,1]"}};

TEST_CASE(type_rules, gates_of_gradients) {
    for (size_t i = 0; i < sizeof gated / sizeof *gated; i++) {
        const char *const *row = gated[i];
        Arena *a = arena_new();
        Diag d = {0};
        Module *m;
        char *text = arena_printf(
            a,
            "graph g(%%g: bf16[2,5,6], %%w: bf16[5,3,3], %%m: f32[1,3,1], %s) "
            "{\n%%y, %%s, %%p = conv_dgrad_sums %%g, %%w, %%x, %%m, %%m, %s "
            "{shape=[2,3,8]}\nreturn\n}",
            row[0], row[1]);
        Status s = parse_module(a, &d, "row", text, strlen(text), &m);
        CHECK_MSG((s == OK) == !row[2], "%s", text);
        if (row[2] && s != OK) CHECK_HAS(d.text.data, row[2]);
        sb_free(&d.text);
        arena_free(a);
    }
}
