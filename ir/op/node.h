/* SPDX-License-Identifier: Apache-2.0 */
/* node.h: a node, an op or a function applied to operands, and its attributes.
   Its values are a graph's (ir.h). */
#ifndef AMPC_IR_OP_NODE_H
#define AMPC_IR_OP_NODE_H

#include "ir/op/op.h"

typedef struct ValueId {
    uint32_t i;
} ValueId; /* 0 = none / absent operand */
typedef struct NodeId {
    uint32_t i;
} NodeId; /* 0 = none */
#define NO_VALUE ((ValueId){0})
#define NO_NODE  ((NodeId){0})
static inline bool is_value(ValueId v) { return v.i != 0; }
static inline bool same_value(ValueId a, ValueId b) { return a.i == b.i; }

enum {
    NODE_BACKWARD = 1, /* made by autodiff                                  */
    NODE_UPDATE = 2,   /* created by the optimizer pass */
    NODE_AGAIN = 4     /* recomputes a forward value in the backward pass */
};

typedef struct Node {
    OpCode op;
    int nin, nout, nattr;
    ValueId *in, *out;
    const Attr *attrs;   /* sorted by name                                  */
    const struct Fn *fn; /* OP_CALL: the function, else NULL                */
    uint32_t flags;
    int group; /* FUSED: index into g->groups, else -1                      */
    Loc loc;   /* node of the source model                                  */
} Node;

/* The table row of n's op, or the equivalent facts (name, counts, class,
   attributes) of the function that n calls. */
const OpInfo *node_info(const Node *n);
static inline OpKind node_kind(const Node *n) { return op_info[n->op].kind; }
/* Autocast class: the user's choice, else the class of the op or function. */
AmpClass node_class(const Node *n);
/* True for products without a gradient, such as conv_sums: passes make them of
   operands of 16 bits, and of f32 where the op says so. */
bool node_made_low(const Node *n);
/* True if the user chose a class whose results are fp32. */
bool node_wide_by_policy(const Node *n);
static inline Callee node_callee(const Node *n) {
    Callee c = {n->op, n->fn};
    return c;
}

/* ---- attributes of a node ------------------------------------------------ */

const Attr *attr_find(const Node *n, AttrKey k); /* NULL if absent */
/* The attribute's value, or the table's default. */
int64_t attr_int(const Node *n, AttrKey k);
double attr_float(const Node *n, AttrKey k);
Str attr_str(const Node *n, AttrKey k);
/* Returns the number of entries, 0 if absent; *v points into the node. */
int attr_ints(const Node *n, AttrKey k, const int64_t **v);

/* Operand `at` of an attention (0..2: q, k, v) as a batch of matrices
   `type`, [.., heads, rows, features].  Row i of matrix b is line
   (b / heads * rows + i) * width + first + b % heads of it; where heads do not
   lie beside rows, heads and width are 1. */
typedef struct AttendPart {
    Type type;
    int64_t heads, width, first;
} AttendPart;
AttendPart attend_part(const Node *n, int at, const Type *t);

#endif
