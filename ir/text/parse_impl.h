/* SPDX-License-Identifier: Apache-2.0 */
/* parse_impl.h: shared by parse.c, parse_node.c and parse_data.c. */
#ifndef AMPC_IR_TEXT_PARSE_IMPL_H
#define AMPC_IR_TEXT_PARSE_IMPL_H

#include "ir/fn/model.h"
#include "ir/graph/init.h"
#include "ir/graph/ir_impl.h"

typedef struct Parser {
    Lexer lx;
    Arena *scratch;
    Module *m;
    Graph *g;
    int group;         /* group of the nodes being read; -1: none */
    int regions;       /* how many are open                         */
    int64_t made;      /* number of constants' elements that are not written
                          out */
    Model model;       /* for lines that are not IR */
    VEC(Token) blocks; /* the models whose blocks were read */
} Parser;

/* Parses the part after `=`. A single number is a fill value; is_const makes
   it data. */
Status parse_init(Parser *p, TypeId t, bool is_const, Init *init);
/* An anonymous scalar operand: 0.5, nan, 2:i64. */
Status parse_scalar(Parser *p, ValueId *out);

/* ---- blocks.c ------------------------------------------------------------ */

/* lx is at `train` or `policy`; *name: the model that the block belongs to. */
Status parse_block(Lexer *lx, Module *m, Token *name);
/* A type, and the memory plan's place of the value. */
typedef struct Placed {
    TypeId type;
    int64_t offset;
    int home;
} Placed;

/* ---- parse_node.c -------------------------------------------------------- */

void parse_put_place(Graph *g, ValueId v, const Placed *place);
/* %x: type */
Status parse_declared(Parser *p, Token *at, Placed *out);
Status parse_present(Parser *p, ValueId *out);
Status parse_node(Parser *p);
Status parse_group(Parser *p);

#endif
