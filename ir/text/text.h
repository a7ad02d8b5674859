/* SPDX-License-Identifier: Apache-2.0 */
/* text.h: the text form of modules and graphs: printer and parser. */
#ifndef AMPC_IR_TEXT_TEXT_H
#define AMPC_IR_TEXT_TEXT_H

#include "ir/ir.h"

void print_module(const Module *m, StrBuf *sb);
void print_graph(const Graph *g, StrBuf *sb);
/* Its line. */
void print_node(const Graph *g, const Node *n, StrBuf *sb);
/* Parses a text of graphs. Caret diagnostics. Types missing in the text are
   inferred; given ones are checked. */
Status parse_module(Arena *a, Diag *d, const char *file, const char *text,
                    size_t n, Module **out);

/* A dimension that the command line sets before a text is read. */
typedef struct DimBind {
    Str name; /* a symbol, or an input's name when axis >= 0 */
    int axis; /* -1: name is a symbol */
    int64_t value;
} DimBind;

/* All sizes of a dimension that --dim gives several, in ascending order. */
typedef struct DimSizes {
    Str name; /* as in DimBind, whose value is the last size */
    int axis;
    VEC(int64_t) sizes;
} DimSizes;

typedef struct TextOptions {
    const DimBind *dims;
    int ndims;
    int64_t seed; /* seed for initial values and dropout */
    /* First dimension of the first input: batch overrides dims, batch_else
       is used if dims do not name it; 0: not given. */
    int64_t batch, batch_else;
    /* Imports an ONNX file for inputs of types in[0..n), for `def .. =
       onnx("FILE")`; NULL: files cannot be imported. */
    Status (*layer)(void *ctx, Str file, const TypeId *in, int n, Module **out);
    void *ctx;
} TextOptions;

/* Parses a text with symbols, such as B in f32[B,4], that opt binds. */
Status parse_model(Arena *a, Diag *d, const char *file, const char *text,
                   size_t n, const TextOptions *opt, Module **out);
/* Reads only settings, policy and onnx blocks of a text into a module
   without graphs. A text with mistakes gives no blocks; parse_model reports
   the mistakes. */
void text_blocks(Arena *a, const char *file, const char *text, size_t n,
                 Module **out);

#endif
