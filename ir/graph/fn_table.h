/* SPDX-License-Identifier: Apache-2.0 */
/* fn_table.h: the functions of the library that have been read so far: those
   that a definition may call.  library.c reads the library, whose texts are
   definitions too, and finds functions for everybody but the reader.        */
#ifndef AMPC_IR_GRAPH_FN_TABLE_H
#define AMPC_IR_GRAPH_FN_TABLE_H

#include "ir/ir.h"
#include "ir/op/function.h"

/* The library is being read, or has been. */
void fn_table_begin(void);
/* Layers are found by name alone. */
void fn_table_add(Fn *f);
int fn_table_count(void);
const Fn *fn_table_at(int i);
/* True if a function that has been read has the name: whoever makes a model's
   nodes reads the library first. */
bool fn_table_has(const Module *m, const char *name, size_t n);
/* As fn_find; the library must have been read. */
const Fn *fn_table_find(const Module *m, const char *name, size_t n);

#endif
