/* SPDX-License-Identifier: Apache-2.0 */
/* chain.c: see chain.h */
#include "tests/support/chain.h"

#include "tests/support/wire.h"

enum { BATCH = 4, FLOAT = 1, OPSET = 17 };

/* ---- ONNX ---------------------------------------------------------------- */

static void put_node(StrBuf *graph, const char *op, const char *a,
                     const char *b, const char *out) {
    StrBuf node = {0};
    wire_text(&node, 1, a);
    if (b) wire_text(&node, 1, b);
    wire_text(&node, 2, out);
    wire_text(&node, 3, out);
    wire_text(&node, 4, op);
    wire_message(graph, 1, &node);
}

/* Values between -1/8 and 1/8 that differ from layer to layer. */
static void put_weight(StrBuf *graph, const char *name, int rows, int cols,
                       uint32_t seed) {
    StrBuf tensor = {0}, raw = {0};
    if (rows) wire_number(&tensor, 1, (uint64_t)rows);
    wire_number(&tensor, 1, (uint64_t)cols);
    wire_number(&tensor, 2, FLOAT);
    wire_text(&tensor, 8, name);
    for (int i = 0; i < (rows ? rows : 1) * cols; i++) {
        seed = seed * 1664525 + 1013904223;
        float f = (float)(seed >> 8) / 67108864 - 0.125f;
        sb_putn(&raw, (const char *)&f, sizeof f);
    }
    wire_message(&tensor, 9, &raw);
    wire_message(graph, 5, &tensor);
}

static void put_value_info(StrBuf *graph, int field, const char *name,
                           int width) {
    StrBuf info = {0}, type = {0}, tensor = {0}, shape = {0}, dim = {0};
    wire_number(&dim, 1, BATCH);
    wire_message(&shape, 1, &dim);
    wire_number(&dim, 1, (uint64_t)width);
    wire_message(&shape, 1, &dim);
    wire_number(&tensor, 1, FLOAT);
    wire_message(&tensor, 2, &shape);
    wire_message(&type, 1, &tensor);
    wire_text(&info, 1, name);
    wire_message(&info, 2, &type);
    wire_message(graph, field, &info);
}

void chain_onnx(StrBuf *sb, int layers, int width) {
    StrBuf graph = {0}, opset = {0};
    char x[32] = "x", w[32], b[32], h[32], z[32];
    for (int i = 0; i < layers; i++) {
        snprintf(w, sizeof w, "w%d", i);
        snprintf(b, sizeof b, "b%d", i);
        snprintf(h, sizeof h, "h%d", i);
        snprintf(z, sizeof z, "z%d", i);
        put_weight(&graph, w, width, width, 2 * (uint32_t)i);
        put_weight(&graph, b, 0, width, 2 * (uint32_t)i + 1);
        put_node(&graph, "MatMul", x, w, h);
        put_node(&graph, "Add", h, b, z);
        snprintf(x, sizeof x, "x%d", i);
        put_node(&graph, "Tanh", z, NULL, x);
    }
    wire_text(&graph, 2, "chain");
    put_value_info(&graph, 11, "x", width);
    put_value_info(&graph, 12, x, width);
    wire_number(sb, 1, 8);
    wire_message(sb, 7, &graph);
    wire_number(&opset, 2, OPSET);
    wire_message(sb, 8, &opset);
}

/* ---- text ---------------------------------------------------------------- */

void chain_amp(StrBuf *sb, int layers, int width) {
    sb_printf(sb, "graph forward(%%x: f32[%d,%d]) {\n", BATCH, width);
    for (int i = 0; i < layers; i++)
        sb_printf(sb,
                  "  param %%w%d: f32[%d,%d] = normal(%d, 0.1)\n"
                  "  param %%b%d: f32[%d] = 0\n",
                  i, width, width, i, i, width);
    for (int i = 0; i < layers; i++) {
        char x[32] = "x";
        if (i) snprintf(x, sizeof x, "x%d", i - 1);
        sb_printf(sb,
                  "  %%h%d = matmul %%%s, %%w%d\n"
                  "  %%z%d = add %%h%d, %%b%d\n"
                  "  %%x%d = tanh %%z%d\n",
                  i, x, i, i, i, i, i, i);
    }
    sb_printf(sb, "  return %%x%d\n}\n", layers - 1);
}
