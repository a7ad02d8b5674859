/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_unfold.h: declarations that the files onnx_unfold*.c share. */
#ifndef AMPC_FRONTEND_ONNX_UNFOLD_H
#define AMPC_FRONTEND_ONNX_UNFOLD_H

#include "frontend/onnx/onnx.h"

/* Form in which the exporter kept a parameter. */
typedef enum Form {
    FORM_NONE,
    FORM_ITSELF,     /* equal tensors became one */
    FORM_TRANSPOSED, /* a matrix, its axes exchanged */
    FORM_VECTOR,     /* a vector with axes of 1 around it */
    FORM_ROWS,       /* rows of a matrix, with axes of 1 in front */
    FORM_VIEW,       /* its elements in another shape */
    FORM_PART        /* some of them */
} Form;

enum { MOST = 128 }; /* of a node's parameters */

/* Things folded together with a parameter, harmless ones first. */
typedef enum Beside {
    BESIDE_NOTHING,
    BESIDE_CODE,  /* the exporter's own constants */
    BESIDE_RANGE, /* positions 0, 1, .. */
    BESIDE_OTHERS /* nodes of the user's that may change it */
} Beside;

/* An operand of a node: an initializer. */
typedef struct Slot {
    Onnx__NodeProto *node;
    size_t k;
    int init; /* of the graph's initializers, as they came */
} Slot;

typedef struct Unfold {
    Ox *ox; /* for messages, and tensors beside the file */
    Arena *a;
    Onnx__GraphProto *g;
    StrMap arguments; /* "p_fc_weight" to a line of the signature */
    StrMap targets;   /* "fc.weight", likewise: parameters and buffers */
    StrMap defined;   /* names in PyTorch's graph: of nodes, and of inputs */
    StrMap inits;     /* names of initializers, by index; behind those of the
                         file, of `tensors` */
    int ninits;       /* of the file */
    Str *folded;      /* by initializer: folded_from, or NULL */
    int *source;      /* by initializer: its only parameter, or -1 */
    Beside *with;     /* by initializer: the worst thing folded with it */
    VEC(Onnx__TensorProto *) tensors; /* to add */
    VEC(Onnx__ValueInfoProto *) infos;
    VEC(Onnx__NodeProto *) nodes; /* in front of the file's */
    VEC(Onnx__NodeProto *) dropouts;
    VEC(size_t) behind; /* by dropout: the node of the file before it */
    StrMap made;        /* results of added nodes */
    VEC(Slot) reads;    /* of constants made of one parameter */
    int *last;          /* by initializer: its last entry there; -1: none */
    VEC(int) before;    /* by entry: the one before of the same initializer */
    size_t copied;      /* bytes of added tensors */
    int changes;
} Unfold;

/* The op that a line of PyTorch's graph calls, as "aten.linear.default](..";
   "": none. */
const char *unfold_op(Str text);
/* Lines of the signature that the text's arguments name, in order, at most
   MOST; their number. */
int unfold_arguments(const Unfold *u, Str text, int *at);

char *unfold_copy(const Unfold *u, Str s);
/* A node that was part of `of` in PyTorch's graph; the caller fills its
   operands and results, and puts it where it belongs. */
Onnx__NodeProto *unfold_node(Unfold *u, const char *op,
                             const Onnx__NodeProto *of, int nin, int nout);
/* The name of a new constant: integers, a vector. */
char *unfold_integers(Unfold *u, Str name, const int64_t *x, size_t n);
/* The parameter of line `at` of the signature, unless the file has it, from
   the initializer that holds it. */
Status unfold_parameter(Unfold *u, int at, const Onnx__TensorProto *from,
                        Form form);
/* The same from `data`, `bytes` long, of shape dim[0..rank). */
Status unfold_values(Unfold *u, int at, const Onnx__TensorProto *from,
                     uint8_t *data, size_t bytes, const int64_t *dim,
                     size_t rank);
/* The operand reads the parameter of line `at`. */
Status unfold_operand(Unfold *u, const Slot *s, int at, Form form);
/* The same for the parameters of node i, which tells nothing, from the module
   in which its result is read. */
Status unfold_scope(Unfold *u, size_t i);
/* Gives the layer its bias of zeros, which the exporter dropped. */
Status unfold_bias(Unfold *u, Onnx__NodeProto *n);
/* Nodes first .. end - 1 came from one node of PyTorch: if it was attention
 * with dropout, restores the dropout. */
void unfold_dropout(Unfold *u, size_t first, size_t end);
/* Nodes first .. end - 1 likewise: a recurrent layer gets its parameters. */
Status unfold_rnn(Unfold *u, size_t first, size_t end, Str text);
/* Nodes first .. end - 1 likewise: where they read a constant of the model's
   code that a parameter of equal value stands for, they get one again. */
Status unfold_code(Unfold *u, size_t first, size_t end, Str text);
/* Puts what was added into the graph. */
void unfold_write(Unfold *u);

#endif
