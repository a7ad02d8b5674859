/* SPDX-License-Identifier: Apache-2.0 */
/* rule.h: type rules of ops, and what calls of functions follow. */
#ifndef AMPC_IR_OP_RULE_H
#define AMPC_IR_OP_RULE_H

#include "ir/op/node.h"

/* A type rule fills out[] (defaults) given operands and attributes.  When
   `given` dtypes are present, verify and build check the rule's freedom of
   dtypes through `free_dtype`: set it for each result that may have any
   float type instead of the default. */
typedef struct TypeCtx {
    const Node *n; /* op, counts and attributes; its values may not exist yet */
    const Type **ins;   /* [nin], NULL: absent operand                        */
    Type *out;          /* [nout] */
    bool *free_dtype;   /* [nout] */
    const Type *given;  /* [nout] or NULL: declared types (generators and
                           casts need them) */
    char msg[MSG_TEXT]; /* why it is wrong */
} TypeCtx;

/* ---- op_type.c, op_type_nn.c --------------------------------------------- */

/* Fills cx->msg. */
Status type_error(TypeCtx *cx, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Result i; floats may be declared in another float dtype. */
Status type_result(TypeCtx *cx, int i, const Type *t);
typedef enum TypeWant { WANT_FLOAT, WANT_INT, WANT_NUMBER, WANT_BOOL } TypeWant;
Status type_want(TypeCtx *cx, TypeWant what, int operand);
/* Requires attribute `key` with n integers. */
Status type_want_ints(TypeCtx *cx, AttrKey key, int n, const int64_t **v);
/* Attribute `shape` as a shape with x's dtype. */
Status type_want_shape(TypeCtx *cx, DType d, Type *out);

/* ---- calls --------------------------------------------------------------- */

/* The expansion of a call for operands of given types: a graph whose inputs
   are the present operands. Built once for equal types and attributes. */
typedef struct FnInstance {
    Status status;
    const char *msg;
    struct Graph *g;
    const ValueId *in, *out; /* nin, nout; 0: absent */
} FnInstance;

/* What only the body of a function decides. The rooms below ir/fn know a
   function by its data (struct Fn) and ask its body through OpInfo.call. */
typedef struct CallRules {
    TypeRule *types;
    /* Brings n->attrs into normal form, in g's arena: without defaults, axes
       non-negative and written out. */
    Status (*attrs)(struct Graph *g, Node *n, char *msg);
    const FnInstance *(*instance)(const Node *call, const Type *const *in);
} CallRules;

#endif
