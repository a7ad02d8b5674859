/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_unfold.h: declarations that the files onnx_unfold*.c share. */
#ifndef AMPC_FRONTEND_ONNX_UNFOLD_H
#define AMPC_FRONTEND_ONNX_UNFOLD_H

#include "frontend/onnx/onnx.h"

/* Form in which the exporter kept a parameter. */
typedef enum Form {
    FORM_NONE,
    FORM_ITSELF,     /* equal tensors became one */
    FORM_TRANSPOSED, /* a transposed matrix */
    FORM_VECTOR,     /* a vector with axes of length 1 around it */
    FORM_ROWS,       /* rows of a matrix, perhaps the same along leading axes */
    FORM_SAMPLES,    /* the same elements again and again along axis 0 */
    FORM_VIEW,       /* the same elements in another shape */
    FORM_PART        /* some of them */
} Form;

enum { MOST = 128 }; /* part of a node's parameters */

/* Things folded together with a parameter, harmless ones first. */
typedef enum Beside {
    BESIDE_NOTHING,
    BESIDE_CODE,  /* the exporter's own constants */
    BESIDE_RANGE, /* positions 0, 1, .. */
    BESIDE_MOVES, /* what picks or repeats elements, and sums of positions */
    BESIDE_OTHERS /* user's nodes that may change it */
} Beside;

/* An operand of a node: an initializer. */
typedef struct Slot {
    Onnx__NodeProto *node;
    size_t k;
    int init; /* the graph's initializers before any change */
} Slot;

typedef struct Unfold {
    Ox *ox; /* for messages, and for tensors stored beside the file */
    Arena *a;
    Onnx__GraphProto *g;
    StrMap arguments; /* "p_fc_weight" to a line of the signature */
    StrMap targets;   /* "fc.weight" to its line: parameters and buffers */
    StrMap defined;   /* names in PyTorch's graph: of nodes, and of inputs */
    StrMap inits;     /* names of initializers, by index; after those of the
                         file, those of `tensors` */
    int ninits;       /* of the file */
    Str *folded;      /* by initializer: folded_from, or NULL */
    int *source;      /* by initializer: its only parameter, or -1 */
    Beside *with;     /* by initializer: the worst kind of thing folded with
                         it */
    VEC(Onnx__TensorProto *) tensors; /* to add */
    VEC(Onnx__ValueInfoProto *) infos;
    VEC(Onnx__NodeProto *) nodes; /* nodes placed before the file's */
    VEC(Onnx__NodeProto *) dropouts;
    VEC(size_t) behind; /* by dropout: the node of the file before it */
    StrMap made;        /* results of added nodes */
    VEC(Slot) reads;    /* entries for constants made of one parameter */
    int *last;          /* by initializer: its last entry; -1: none */
    VEC(int)
    before;         /* by entry: the previous entry of the same
                       initializer */
    size_t copied;  /* bytes of added tensors */
    bool rewritten; /* another tool fused nodes, which lost their records */
    int changes;
} Unfold;

/* Names that TorchScript's exporter gives matrices that it transposed. */
#define TIED_NAME "onnx::MatMul_"
/* Gives back ties with a table of embeddings, in files without a record
   (onnx_unfold_tie.c). */
Status unfold_ties(Unfold *u);
/* Linear models of ai.onnx.ml become Gemm (onnx_unfold_linear.c). */
Status unfold_linear(Arena *a, const uint8_t **bytes, size_t *n);
/* The op that a line of PyTorch's graph calls, as "aten.linear.default](..";
   "": none. */
const char *unfold_op(Str text);
/* Lines of the signature that the text's arguments name, in order, at most
   MOST; returns their number. */
int unfold_arguments(const Unfold *u, Str text, int *at);

/* The node's attribute of that name. */
int64_t unfold_integer(const Onnx__NodeProto *n, const char *name,
                       int64_t otherwise);
char *unfold_copy(const Unfold *u, Str s);
/* A node that was part of `of` in PyTorch's graph; the caller fills its
   operands and results, and inserts it. */
Onnx__NodeProto *unfold_node(Unfold *u, const char *op,
                             const Onnx__NodeProto *of, int nin, int nout);
/* The name of a new constant: a vector of integers. */
char *unfold_integers(Unfold *u, Str name, const int64_t *x, size_t n);
/* The parameter of line `at` of the signature: the file's own, or a new one
   from the initializer that holds it. */
Status unfold_parameter(Unfold *u, int at, const Onnx__TensorProto *from,
                        Form form);
/* The same, made from `data`, `bytes` long, of shape dim[0..rank). */
Status unfold_values(Unfold *u, int at, const Onnx__TensorProto *from,
                     uint8_t *data, size_t bytes, const int64_t *dim,
                     size_t rank);
/* Makes the operand read the parameter of line `at`. */
Status unfold_operand(Unfold *u, const Slot *s, int at, Form form);
/* Makes a constant of FORM_ROWS or FORM_SAMPLES, which all readers name, the
   result of a node that reads the parameter; leaves it if rows are equal: one
   row may stand in several places. */
Status unfold_shared(Unfold *u, int init, int at, Form form);
/* The same for a vector that stands in the operand `times` times. */
Status unfold_repeated(Unfold *u, const Slot *s, int at, int64_t times);
/* The same for the parameters of node i, which has no record, from the
   module that reads its result. */
Status unfold_scope(Unfold *u, size_t i);
/* Gives the layer back its bias of zeros, which the exporter dropped. */
Status unfold_bias(Unfold *u, Onnx__NodeProto *n);
/* Nodes first .. end - 1 came from one PyTorch node: if it was attention
 * with dropout, restores the dropout. */
void unfold_dropout(Unfold *u, size_t first, size_t end);
/* Nodes first .. end - 1 of one PyTorch node: a recurrent layer gets its
   parameters back. */
Status unfold_rnn(Unfold *u, size_t first, size_t end, Str text);
/* Nodes first .. end - 1 of one PyTorch node: if they read a constant of the
   model's code that was merged with an equal parameter, they get a constant
   again. */
Status unfold_code(Unfold *u, size_t first, size_t end, Str text);
/* Inserts everything added into the graph. */
void unfold_write(Unfold *u);

#endif
