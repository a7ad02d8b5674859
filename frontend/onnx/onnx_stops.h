/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_stops.h: declarations that the files onnx_stops*.c share. */
#ifndef AMPC_FRONTEND_ONNX_STOPS_H
#define AMPC_FRONTEND_ONNX_STOPS_H

#include "frontend/onnx/onnx.h"

/* Name of an operand or a node in PyTorch's graph. */
typedef struct Fx {
    Str all;  /* the text; NULL: none */
    Str name; /* without '%' */
} Fx;

typedef enum Block { NO_BLOCK, NO_GRAD, AUTOCAST, UNKNOWN } Block;

/* The kind of copies that the exporter dropped: copies of values, or of
   detached values. */
typedef enum Copied { PASSES, STOPS, EITHER } Copied;

/* A line of Python that says detach(), and what its nodes read. */
typedef struct Line {
    int says;   /* how often the line says detach() */
    int named;  /* detach() nodes that its nodes name */
    int copies; /* dropped copies that its nodes name */
    int merged; /* other nodes that they name and the file lacks */
    int times;  /* upper bound of how often the line ran */
    Copied copied;
} Line;

/* Nodes at which the gradient may have to stop. */
typedef struct Doubt {
    Str first; /* the name of the first one */
    int count;
} Doubt;

typedef struct Stops {
    Ox *ox;
    int names, nodes; /* nodes of the file; nodes of stops follow them */
    Fx *fx;           /* by node */
    Str *block;       /* by node: the block that contains it; NULL: none */
    bool *trained;    /* by name: a function of parameters */
    StrMap known;     /* nodes in PyTorch's graph by name */
    StrMap arguments; /* name of an initializer or an input to its line of
                         the signature */
    StrMap stopped;   /* a value's name to the node of its stop */
    StrMap kinds;     /* a block's name to its Block */
    StrMap read;      /* names read by nodes in PyTorch's graph */
    StrMap inputs;    /* names of inputs and initializers in that graph */
    StrMap lines;     /* a trace that says detach(), to its Line */
    StrMap counted;   /* names that a line has counted already */
    StrMap placed;    /* lines of PyTorch's graph that got their stops */
    StrMap odd;       /* such a line to the number of values that its nodes
                         read and it does not name */
    VEC(Line) list;
    Doubt copies;      /* reads a copy, perhaps of a detached value */
    Doubt views;       /* reads a view, perhaps of an autograd.Function */
    Doubt unknown;     /* reads a block of unknown kind */
    Doubt merged;      /* reads a node that an equal node replaced */
    Doubt unplaced;    /* reads a detached value through an unknown operand */
    Doubt in_place;    /* its line says detach_(), which leaves no node */
    Doubt overwritten; /* reads what no_grad() wrote to a computed value */
} Stops;

enum { MOST = 64 }; /* index among a node's operands */

/* What a node reads in PyTorch's graph, besides its operands. */
typedef struct Reads {
    Str args[MOST];
    int nargs;
    int outer[MOST]; /* operands computed by other lines than the node's */
    Str call[MOST];  /* their names in PyTorch's graph; NULL: not in args */
    int nouter, odd; /* odd: operands without such a name */
} Reads;

/* ---- onnx_stops_read.c ---------------------------------------------------
 */

/* "" if the node has none. */
Str stops_trace(const OxNode *n);
/* True for a name that numbers results of one op, as detach, detach_1,
   detach_. */
bool stops_is_of(Str name, const char *op);
bool stops_is_copy(Str name);
Block stops_kind(const Stops *s, Str block);
void stops_read_nodes(Stops *s);
void stops_read_lines(Stops *s);
/* Goes through the nodes in the file's order; PyTorch sorts them. */
void stops_find_trained(Stops *s);
bool stops_trains(const Stops *s, Str name);
/* The node that made it; NULL: the file has no such node. */
const OxNode *stops_maker(const Stops *s, Str name);
/* The operand's name in PyTorch's graph, or in the file if its node does not
   tell; NULL: it is a constant, or a result of the same line as the node. */
Str stops_called(const Stops *s, int node, Str operand);
void stops_read_node(const Stops *s, int node, Reads *r);
/* Fills s->odd. */
void stops_count_odd(Stops *s);
/* True if operand i of r->outer is one of the `lost` arguments, for which
   is[..] is true. */
bool stops_reads_lost(const Reads *r, int i, const bool *is, int lost);

/* ---- onnx_stops_merged.c -------------------------------------------------
 */

/* Makes the node read operand k through a node that stops the gradient. */
void stops_put(Stops *s, int node, int k);
void stops_doubt(Doubt *d, const OxNode *n);
/* f(h) and f(h.detach()) are equal, and the exporter keeps one of them.
   leave_block() knows which one if it is in a block. */
void stops_find_merged(Stops *s, int node);
/* Copies whose node is gone, on lines without detach(): t =
   h.detach().clone() and t = h.clone() look alike, and so do a view to the
   value's own shape and the result of a function that only has a backward(). */
void stops_find_copies(Stops *s, int node);

#endif
