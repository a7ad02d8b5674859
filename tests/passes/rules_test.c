/* SPDX-License-Identifier: Apache-2.0 */
/* rules_test.c: --placement pytorch, op by op, compared with torch.autocast
   (tests/passes/autocast.txt, which models/record/autocast.py writes). */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/fn/fn.h"
#include "tests/harness.h"
#include "tests/support/passed.h"

/* Operands are 16-bit and 32-bit floats, declared in the model as in PyTorch.
 */
static void write_graph(char *line, char *text, char *dtype) {
    char *save, *word = strtok_r(line, " ", &save);
    char inputs[400] = "", names[100] = "", op[64];
    int n = 0;
    snprintf(dtype, 8, "%s", word);
    snprintf(op, sizeof op, "%s", strtok_r(NULL, " ", &save));
    while (*save != '{') {
        size_t i = strlen(inputs), k = strlen(names);
        word = strtok_r(NULL, " ", &save);
        snprintf(inputs + i, sizeof inputs - i, "%s%%x%d: %s", n ? ", " : "", n,
                 word);
        snprintf(names + k, sizeof names - k, "%s%%x%d", n ? ", " : "", n);
        n++;
    }
    OpCode code;
    bool core = op_from_text(op, strlen(op), &code);
    const OpInfo *info = core ? &op_info[code] : &fn_std(op)->info;
    int k = sprintf(text, "graph forward(%s) {\n  %%y", inputs);
    for (int i = 1; i < info->out_min; i++)
        k += sprintf(text + k, ", %%r%d", i);
    sprintf(text + k, " = %s %s %s\n  return y=%%y\n}\n", op, names,
            strcmp(save, "{}") ? save : "");
}

static Module *by_rule(Arena *a, const char *text) {
    Module *m = parsed(a, text);
    passed(a, m, "rules",
           FLAGS("--precision", "fp16", "--placement", "pytorch"));
    return m;
}

/* The result's dtype; products, and other low ops, read 16 bits. */
static void check_line(char *line) {
    Arena *a = arena_new();
    char text[800], want[8];
    write_graph(line, text, want);
    const Graph *g = by_rule(a, text)->graphs.data[0];
    const Value *y = value_get(g, graph_find_value(g, "y"));
    const Node *n = node_get(g, y->def);
    CHECK_MSG(!strcmp(dtype_info[type_get(y->type)->dtype].text, want),
              "%s, not %s, of\n%s", dtype_info[type_get(y->type)->dtype].text,
              want, text);
    if (n->op == OP_MATMUL || n->op == OP_CONV)
        for (int k = 0; k < n->nin; k++)
            CHECK_MSG(value_dtype(g, n->in[k]) == DT_F16, "%s", text);
    arena_free(a);
}

TEST_CASE(rules, results_are_of_the_dtypes_of_torch_autocast) {
    size_t size;
    int lines = 0;
    char *all = test_read_file("tests/passes/autocast.txt", &size), *save;
    for (char *line = strtok_r(all, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save), lines++)
        check_line(line);
    CHECK(lines > 200);
    free(all);
}

/* torch.autocast computes nn.Linear with its bias and rounds once. It rounds a
   product by itself if the product has another reader, or if the other operand
   is as large. A number does not widen a tensor. */
TEST_CASE(rules, a_bias_belongs_to_a_product_that_it_alone_reads) {
    static const struct {
        const char *nodes;
        DType y, z;
    } rows[] = {{"  %z = add %y, %b\n", DT_F32, DT_F16},
                {"  %z = add %b, %y\n", DT_F32, DT_F16},
                {"  %z = add %y, %b\n  %u = relu %y\n", DT_F16, DT_F32},
                {"  %z = add %y, %all\n", DT_F16, DT_F32},
                {"  %u = relu %y\n  %z = add %u, %b\n", DT_F16, DT_F32},
                {"  %z = mul %y, %one\n", DT_F16, DT_F16},
                {"  %z = mul %y, %b\n", DT_F16, DT_F32},
                {"  %u = cast %y {user=1} : f32[4,6]\n"
                 "  %z = mul %u, %one\n",
                 DT_F16, DT_F32}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Arena *a = arena_new();
        char text[600];
        bool two = strstr(rows[i].nodes, "%u") != NULL;
        snprintf(text, sizeof text,
                 "graph forward(%%x: f32[4,8]) {\n"
                 "  param %%w: f32[8,6], %%b: f32[6], %%all: f32[4,6], "
                 "%%one: f32[1]\n"
                 "  %%y = matmul %%x, %%w\n%s  return z=%%z%s\n}\n",
                 rows[i].nodes, two ? ", u=%u" : "");
        const Graph *g = by_rule(a, text)->graphs.data[0];
        DType y = value_dtype(g, graph_find_value(g, "y")),
              z = value_dtype(g, graph_find_value(g, "z"));
        CHECK_MSG(y == rows[i].y && z == rows[i].z, "%s%%y is %s, %%z %s",
                  rows[i].nodes, dtype_info[y].text, dtype_info[z].text);
        arena_free(a);
    }
}
