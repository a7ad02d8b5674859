/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_emit.h: a program as an ONNX file (onnx_emit.c).

   onnx_emit_parts.c   tensors, attributes, nodes, names of values
   onnx_emit_forms.c   how ONNX writes each op
   onnx_emit.c         which nodes are needed; the file */
#ifndef AMPC_FRONTEND_ONNX_EMIT_H
#define AMPC_FRONTEND_ONNX_EMIT_H

#include "frontend/onnx/onnx.h"

typedef struct Emit {
    Arena *a;
    Diag *d;
    const Graph *g;
    VEC(Onnx__NodeProto *) nodes;
    VEC(Onnx__TensorProto *) tensors;
    VEC(Onnx__ValueInfoProto *) infos;
    StrMap values, labels; /* names that values and nodes use */
    StrMap lists;          /* integer lists of put_ints: index in `tensors` */
    Str *as;       /* name of a value in each dtype; NULL: not written yet */
    const Node *n; /* node being written */
    Str result;    /* name of its result */
    Str *outputs;  /* name of each output */
    bool *has_var; /* per variable: already in the file */
    bool *needed;  /* per value: a user's output depends on it */
    OnnxWeightFn *weight; /* NULL: initial values */
    void *ctx;
    Status weights; /* its last status */
} Emit;

/* How ONNX writes an op. */
typedef struct Form Form;
struct Form {
    OpCode op;
    const char *names, *attrs;
    Status (*put)(Emit *e, const Form *f);
};

/* ---- onnx_emit_parts.c --------------------------------------------------- */

Status emit_fail(const Emit *e, const char *what);
/* The name, made unique by a number. */
Str emit_fresh(Emit *e, StrMap *used, Str name);
Onnx__ValueInfoProto *emit_value_info(Emit *e, Str name, const Type *t);
Str emit_tensor(Emit *e, Str name, const Type *t, const void *data);
/* A list that ONNX takes as an operand; equal lists share one. */
Str emit_ints(Emit *e, const int64_t *v, int n);
Str emit_number(Emit *e, DType d, double v);
void emit_int(Emit *e, Onnx__NodeProto *p, const char *name, int64_t v);
void emit_word(Emit *e, Onnx__NodeProto *p, const char *name, const char *v);
void emit_list(Emit *e, Onnx__NodeProto *p, const char *name, const int64_t *v,
               int n);
void emit_copy_attr(Emit *e, Onnx__NodeProto *p, const char *name,
                    const Attr *a);
/* Copies the named attributes of the node, "axis keepdims". */
void emit_copy_attrs(Emit *e, Onnx__NodeProto *p, const char *names);
/* Writes a node; if it computes the result of a user's node, it takes that
   node's name. */
Onnx__NodeProto *emit_node(Emit *e, const char *op, const Str *in, int nin,
                           Str out);
Str *emit_called(const Emit *e, ValueId v, DType d);
/* Declares `to` as a value of type t, but with dtype d. */
Str emit_cast_to(Emit *e, Str from, const Type *t, DType d, Str to);
Str emit_as_stored(Emit *e, ValueId id);
/* Casts of one value to the same dtype share a node. */
Str emit_as_dtype(Emit *e, ValueId id, DType d);
/* The common dtype of the operands from `first` on: at least fp32. */
DType emit_meet(const Emit *e, int first);
/* Converts the result from dtype d, in which the node computes it, to its
   stored dtype. */
Str emit_made(Emit *e, DType d);
Status emit_stored(Emit *e, Str name, DType d);
/* Writes a chain of nodes, "Sqrt Reciprocal": the last node computes the
   result, of dtype d; the first node reads `in` and has the named
   attributes. */
Status emit_chain(Emit *e, const char *ops, const char *attrs, const Str *in,
                  int nin, DType d);

/* ---- onnx_emit_forms.c --------------------------------------------------- */

/* False: ONNX has no form of the op. */
bool emit_find_form(OpCode op, Form *f);

#endif
