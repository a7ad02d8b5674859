/* SPDX-License-Identifier: Apache-2.0 */
/* text.h: the text form of modules and graphs: printer and parser. */
#ifndef AMPC_IR_TEXT_TEXT_H
#define AMPC_IR_TEXT_TEXT_H

#include "ir/fn/dims.h"
#include "ir/ir.h"

void print_module(const Module *m, StrBuf *sb);
void print_graph(const Graph *g, StrBuf *sb);
/* Its line. */
void print_node(const Graph *g, const Node *n, StrBuf *sb);
/* Parses a text of graphs. Caret diagnostics. Types missing in the text are
   inferred; given ones are checked. */
Status parse_module(Arena *a, Diag *d, const char *file, const char *text,
                    size_t n, Module **out);

/* Parses a text with symbols, such as B in f32[B,4], that opt binds. */
Status parse_model(Arena *a, Diag *d, const char *file, const char *text,
                   size_t n, const TextOptions *opt, Module **out);
/* Reads only settings, policy and onnx blocks of a text into a module
   without graphs. A text with mistakes gives no blocks; parse_model reports
   the mistakes. */
void text_blocks(Arena *a, const char *file, const char *text, size_t n,
                 Module **out);

#endif
