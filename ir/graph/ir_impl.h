/* SPDX-License-Identifier: Apache-2.0 */
/* ir_impl.h: declarations shared by the files of ir/. */
#ifndef AMPC_IR_GRAPH_IR_IMPL_H
#define AMPC_IR_GRAPH_IR_IMPL_H

#include "ir/ir.h"

/* ---- ir.c ---------------------------------------------------------------- */

/* Appends a value; v.name must be free (graph_unique_name) or NULL. */
ValueId value_new(Graph *g, Value v);
/* graph_find_value and module_find_var for an interned name. */
ValueId graph_find_name(const Graph *g, Str name);
int module_find_name(const Module *m, Str name);

/* Copies n's operands and results to new memory; results are 0 if n->out is
   NULL. */
void node_own_ids(Arena *a, Node *n);

/* ---- data_text.c --------------------------------------------------------- */

/* One number, or "[1, 2]"; with more than DATA_SHOWN elements that differ,
   "data(0x..)". */
enum { DATA_SHOWN = 4096, INIT_SHOWN = 64 };
void put_data(StrBuf *sb, const Tensor *t);
void put_element(StrBuf *sb, const Tensor *t, int64_t i);
/* True if the first n elements are equal; all NaNs are. */
bool data_all_equal(const Tensor *t, int64_t n);

/* ---- build.c ------------------------------------------------------------- */

/* Checks a node that is not in the graph yet: op or function, operands,
   attributes, counts. given: types of results, or NULL. */

/* n->attrs in normal form, in g's arena. */
Status canonical_attrs(Graph *g, Node *n, const Type *given, char *msg);
/* The last step of all functions that build nodes. given, names: nout
   entries or NULL. */
Status node_make(Builder *b, const Node *want, const Type *given,
                 const char *const *names, NodeId *out, char *msg);
/* With integers in memory of the arena. */
Attr attr_copy(Arena *a, Attr x);
/* Axes in [0, rank), ascending; invalid ones are unchanged. */
void attr_sort_axes(int64_t *v, int n, int rank);

/* ---- same.c -------------------------------------------------------------- */

uint64_t attr_hash(uint64_t h, const Attr *a);
bool attr_same(const Attr *a, const Attr *b);

/* ---- infer.c ------------------------------------------------------------- */

/* Type of a result before inference. rank < 0: the rule gives the shape;
   dtype NUM_DTYPES: the rule gives the dtype. */
static inline Type type_by_rule(void) {
    Type t = {.dtype = NUM_DTYPES, .rank = -1};
    return t;
}
/* Runs the op's rule over partly given types: `given` has nout entries or is
   NULL. out NULL: they are only checked. On failure ERR_USER, and msg
   (MSG_TEXT bytes) says why. */
Status infer_types(const Graph *g, const Node *n, const Type *given,
                   TypeId *out, char *msg);
/* True if n's results have the types that its op's rule allows. */
Status node_check_types(const Graph *g, const Node *n, char *msg);

#endif
