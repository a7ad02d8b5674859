/* SPDX-License-Identifier: Apache-2.0 */
/* onnx.h: inside the ONNX frontend.

   onnx_message.c has errors and warnings, onnx_lookup.c the meaning of a name,
   onnx_rows.c the facts about ops.  Stages, in the order of import_onnx
   (onnx.c):
     onnx_model.c   bytes to messages; header checks; functions inlined into a
                    flat list of OxNode
     onnx_names.c   the meaning of every name; live nodes in topological order;
                    operand counts and attributes against onnx_ops.def
     onnx_tensor.c, onnx_external.c   TensorProto to Tensor
     onnx_spoiled.c exports that lost parameters
     onnx_signature.c  the exporter's description of the program
     onnx_torch.c   what nodes were in PyTorch's graph
     onnx_dtypes.c  element types that do not fit each other
     onnx_stops*.c  detach() and no_grad() that no node says (onnx_stops.h)
     onnx_epsilon.c  epsilons that the exporter dropped
     onnx_mutation.c  buffers that the forward writes
     onnx_use.c     how initializers are used
     onnx_train.c   which of them train: the table of rules
     onnx_kinks.c   what gradients are at kinks and ties, by the file's producer
     onnx_io.c      inputs, values of their symbolic dimensions, outputs
     onnx_nodes.c   nodes in order, by the handlers of onnx_handlers.def
     onnx_build.c   functions with which handlers build nodes
     onnx_call.c    rows that are one op or function, by their attribute maps
     onnx_fold.c    constant folding
     onnx_math.c, onnx_shape.c, onnx_index.c, onnx_nd.c, onnx_known.c,
     onnx_nn.c, onnx_random.c, onnx_quant.c, onnx_recurrent.c, onnx_resize.c,
     onnx_norm.c, onnx_reduce.c, onnx_loss.c, onnx_einsum.c, onnx_sequence.c
                    handlers of the ops whose form in ONNX differs from ours
     onnx_picked.c  rows that a mask selects
     onnx_flow.c    If, Loop, Scan: their bodies become nodes
     onnx_taken.c   .. of branches and turns that count only where data says */
#ifndef AMPC_FRONTEND_ONNX_ONNX_H
#define AMPC_FRONTEND_ONNX_ONNX_H

#include "frontend/frontend.h"
#include "ir/eval/evaluate.h"
#include "onnx.pb-c.h"

enum {
    OX_MIN_OPSET = 1,
    OX_MAX_OPSET = 28,
    OX_AMPC_OPSET = 1, /* rows of domain OX_AMPC_DOMAIN: onnx_ampc.def */
    OX_MIN_IR = 3,
    OX_MAX_IR = 14,
    OX_MAX_NODES = 1 << 20, /* after inlining                        */
    OX_MAX_CALLS = 64,      /* depth of functions calling functions  */
};
#define OX_AMPC_DOMAIN     "ampc"
#define OX_MAX_ELEMENTS    ((int64_t)1 << 33) /* limit for any value */
#define OX_MAX_FOLD        ((int64_t)1 << 22) /* limit for one fold, with operands */
#define OX_MAX_COSTLY_FOLD ((int64_t)4096)
#define OX_FOLD_BUDGET     ((int64_t)1 << 26) /* limit for all folds together */

typedef struct Ox Ox;
typedef struct OxNode OxNode;

/* The function that builds the nodes of an op: onnx_handlers.def. */
/* Builds the node being imported. */
typedef Status OxBuild(Ox *ox);
typedef enum OxHandler {
#define HANDLER(x) OX_##x,
#include "frontend/onnx/onnx_handlers.def"
#undef HANDLER
} OxHandler;

/* One row of onnx_ops.def, onnx_contrib.def or onnx_ampc.def. */
typedef struct OxOp {
    const char *domain, *name;
    int in_min, in_max, out_min, out_max;
    const char *attrs;
    unsigned nd;     /* operands through which no gradient flows            */
    unsigned weight; /* operands for which an unmarked initializer trains */
    OxHandler handler;
    OpCode core;
    const char *fn;  /* or an op or function by name, and .. */
    const char *map; /* .. how its attributes follow from ONNX's, see
                        onnx_call.c */
} OxOp;

typedef struct OxAttr {
    Str name;
    const Onnx__AttributeProto *p; /* the value; its own name in IR is
                                      irrelevant */
} OxAttr;

struct OxNode {
    const Onnx__NodeProto *proto;
    const OxOp *op; /* NULL: unknown */
    Str name;       /* or its first output */
    Str type, domain;
    int version; /* imported opset of its domain */
    Str *in, *out;
    int nin, nout;
    OxAttr *attr;
    int nattr;
    int captured; /* number of operands at the end of `in` that are captured by
                     subgraphs */
    const struct OxScope *scope; /* scope of names in subgraphs */
};

/* An initializer: source of its data, and its role. */
typedef struct OxInit {
    Str name;
    const Onnx__TensorProto *proto;
    Str mark;         /* InputSpec.kind of the metadata, or NULL */
    Str folded;       /* folded_from of the metadata, or NULL */
    bool live, alias; /* alias: an Identity's output */
    const Tensor *data;
    bool is_var;
    VarKind kind;
    Str why;
    Str written; /* name of the value that the forward writes to it in
                    training, or NULL */
    const OxNode *normalises; /* input data normalised: (x - mean) / std */
    const OxNode *statistic;  /* part of a written-out normalisation */
} OxInit;

/* A line of the exported program's signature. */
typedef struct OxSigned {
    Str argument, kind, target; /* target: "" where it has none */
} OxSigned;

typedef enum OxNameKind { OX_INPUT, OX_INIT, OX_RESULT } OxNameKind;

/* part of a power iteration that begins at a vector written by the forward */
typedef enum OxPower { OX_NO_POWER, OX_PRODUCT, OX_UNIT } OxPower;

typedef struct OxName {
    Str name;
    OxNameKind kind;
    int index;  /* index of the input, initializer or node */
    int result; /* OX_RESULT: which */
    int uses;   /* number of uses by live nodes and graph outputs */
    ValueId value;
    bool reaches;  /* an output depends on it through differentiable
                      operands */
    bool detached; /* .. and through a detach() */
    bool drawn;    /* computed only from random zeros and ones, and constants */
    const OxNode *role; /* the node that uses it as a weight */
    Str weight;         /* beside this bias (onnx_numbered.c), or NULL */
    const OxNode *statistics_of; /* BatchNormalization */
    Str drops; /* name of a dropout's result outside training, or NULL */
    OxPower power;
    bool stops;         /* a result that the forward writes to a buffer */
    const ValueId *seq; /* it is a sequence: its elements */
    int nseq;
    int pick, pick_axis; /* its rows are those of ox->picks[pick - 1] */
    int sized, sized_at; /* it has the number of those rows as an element */
    bool sized_alone;    /* .. and nothing else */
} OxName;

/* Rows that a mask selects (onnx_picked.c). */
typedef struct OxPick {
    ValueId key;     /* the mask, without views */
    ValueId valid;   /* bool[n]: whether a row counts */
    ValueId count;   /* f32[]: how many do */
    int64_t n;       /* number of elements of the mask */
    int64_t repeats; /* .. in which each of `key` stands that often in a row */
} OxPick;

typedef struct OxFold {
    Node node;
    ValueId *out; /* the constants that replace the node */
} OxFold;

/* onnx_fold.c: constants and folds by content. */
typedef struct OxFolds {
    StrMap consts, index; /* index: in `list` */
    VEC(OxFold) list;
    int64_t elements; /* of all folds so far */
} OxFolds;

/* The gradients at kinks of the framework that wrote the file, where they
   differ from std.amp's, which are those of PyTorch's newest version. */
typedef struct OxKinks {
    bool clamp_passes;   /* clamp: the full gradient at a bound; else none at
                            a constant bound */
    bool clamp_shares;   /* .. half of it */
    bool abs_is_above;   /* |x| and leaky ReLU have at 0 the slope of the
                            positive side */
    bool max_is_element; /* reductions over one axis, if the file does not
                            say: the first maximum gets the whole gradient */
} OxKinks;

struct Ox {
    Arena *a;       /* the module's */
    Arena *scratch; /* lives until the import ends */
    Diag *d;
    const Options *opt;
    const Onnx__ModelProto *model;
    const Onnx__GraphProto *graph;
    Str file;
    Str dir;      /* folder of external data */
    Str verified; /* location and checksum of the last match */
    bool has_signature, is_torch, is_paddle;
    bool is_layer; /* a text gives its operands */
    OxKinks kinks;
    bool *frozen_used; /* for each glob of opt->batchnorm_frozen */

    /* onnx_model.c, onnx_names.c: the file in one list of nodes, and names */
    StrMap functions; /* domain, name and overload to index */
    int calls;
    struct {
        Str type, domain;
        const struct OxScope *scope;
        const Str *types; /* NULL: before the first node */
    } typed; /* Loc.types of the previous node, and its type and scope */
    VEC(OxSigned) signature;
    VEC(OxNode) nodes;
    VEC(OxInit) inits;
    VEC(OxName) names;
    StrMap by_name;
    StrMap outputs; /* the graph's variables, by index */
    VEC(int) order; /* live nodes */

    /* onnx_nodes.c and handlers: the graph */
    Module *m;
    Graph *g;
    Builder b;
    const OxNode *node; /* being imported */
    ValueId taken; /* bool[]: whether the body being built counts; NO_VALUE: it
                      does */
    uint32_t first_node, first_value; /* of its handler */
    OxFolds folds;
    VEC(OxPick) picks;
    int dropouts, dropouts_enabled;
    Str enabled;      /* name of the first of the latter */
    bool mixed_modes; /* some BatchNormalization nodes train in the file */
};

/* ---- messages ------------------------------------------------------------ */

/* A message about the node being imported: "Conv (opset 20): ...", and the
   source line that the exporter recorded. Returns ERR_USER. */
Status ox_fail(Ox *ox, const char *fmt, ...) PRINTF_LIKE(2, 3);
Status ox_fail_node(Ox *ox, const OxNode *n, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
Status ox_fail_model(Ox *ox, const char *fmt, ...) PRINTF_LIKE(2, 3);
void ox_warn(Ox *ox, const OxNode *n, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* A message with the op, its version and the line of Python. */
void ox_warn_node(Ox *ox, const OxNode *n, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
void ox_warn_model(Ox *ox, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* The text escaped and shortened. */
const char *ox_quote(Ox *ox, const char *s);
/* The line of Python that exports the model for training, with the names of its
   inputs and any batch. */
Str ox_training_recipe(Ox *ox);
/* A name in the file; "" if it is absent. */
Str ox_text(const char *s);

/* ---- stages -------------------------------------------------------------- */

/* True for an op of the standard domain; of any domain. */
const OxOp *ox_op_find(const char *name);
const OxOp *ox_op_in(Str domain, const char *name);
Status ox_check_model(Ox *ox);
Status ox_flatten(Ox *ox);
/* The location of everything that the node becomes. */
Loc ox_loc(Ox *ox, const OxNode *n);
/* The name inside the importer of a value that a subgraph of `owner` reads
   from outside. */
Str ox_scoped(const OxNode *owner, const char *name);
/* Appends the nodes of a subgraph of `owner` to ox->nodes. in, inits: names
   that replace those of its inputs and initializers; out: receives the names
   of its outputs. */
Status ox_flatten_body(Ox *ox, const OxNode *owner, const Onnx__GraphProto *g,
                       const Str *in, int nin, const Str *inits, Str *out);
Status ox_resolve_names(Ox *ox);
/* "" for the standard domain, which a file may also call "ai.onnx". */
Str ox_domain(const char *s);
Str onnx_domain(const Onnx__NodeProto *n);
/* True for an op of the standard domain. */
bool onnx_is_op(const Onnx__NodeProto *n, const char *op);
/* True for a floating-point tensor with more than one element. */
bool onnx_may_be_weight(const Onnx__TensorProto *t);
/* True if the file has no initializer that could train: its Constant nodes
   hold the weights (paddle2onnx, Spox) and are read as initializers. */
bool onnx_weights_in_nodes(const Onnx__GraphProto *g);
/* The tensor of such a node, named after its result; NULL: none. */
Onnx__TensorProto *onnx_node_weight(const Onnx__NodeProto *n);
Status ox_define_results(Ox *ox, int first_node);
/* A new name for a value. */
Status ox_define_value(Ox *ox, ValueId v, Str *name);
Status ox_sort(Ox *ox);
/* The nodes from `first` on that these outputs depend on, in order. */
int *ox_needed(Ox *ox, int first, const Str *out, int nout, int *n);
Status ox_check_nodes(Ox *ox, const int *order, int n);
/* given: types of a layer's operands; NULL: as in the file. */
Status ox_make_inputs(Ox *ox, const TypeId *given, int ngiven);
Status ox_make_outputs(Ox *ox);
/* onnx_set.c: what --set says of the input; NULL: nothing. */
const InputValue *ox_set_of(const Ox *ox, Str name);
/* Refuses --set with a name that no input has. */
Status ox_check_set(Ox *ox);
/* The constant in place of an input of that type. */
Status ox_set_value(Ox *ox, const InputValue *x, TypeId type, ValueId *out);
/* The end of a message that v must be known: "; .. compile with --set N=N" if
   v is computed from few elements of inputs, else "". */
const char *ox_set_remedy(Ox *ox, ValueId v);
Status ox_make_nodes(Ox *ox, const int *order, int n);
void ox_read_signature(Ox *ox);
void ox_find_kinks(Ox *ox);
void ox_find_modes(Ox *ox);
void ox_find_drops(Ox *ox);
/* The result of the node with OxName.drops, as it is in training only. */
Status ox_drop(Ox *ox, int result);
/* The buffer that is operand k of a BatchNormalization, directly or tiled
   (InstanceNorm's running statistics are tiled for each sample). */
Str ox_statistics(const Ox *ox, const OxNode *n, int k);
/* True if the framework's reduction over one axis passes the gradient to one
   of several equal elements; false: they share it, as in std.amp. */
bool ox_picks_element(const Ox *ox, DType d, int naxes);
/* True if the entry has that kind and a target. */
bool ox_signed_as(const OxSigned *x, const char *kind);
/* The folder that holds the model's external data. */
Str ox_directory(const char *path);
Status ox_check_spoiled(Ox *ox);
/* Checks live nodes in order. */
Status ox_check_dtypes(Ox *ox);
void ox_find_mutations(Ox *ox);
Status ox_write_mutations(Ox *ox);
/* Fills OxName.reaches and .role, OxInit.normalises and .statistic. */
void ox_find_uses(Ox *ox);
/* True for Add, Sub, Mul and Div: each operand may be a weight. */
bool ox_elementwise(const OxNode *n);
/* An operand is one of OxOp's nd or weight; bit 30 is of all from 30 on. */
bool ox_among(unsigned mask, int operand);
Status ox_decide(Ox *ox);
/* A note to the user about a file in which all gradients pass. */
Str ox_keeps_no_stops(const Ox *ox);
/* Inserts nodes for the gradient stops that the file lost (onnx_stops.c). */
void ox_restore_stops(Ox *ox);
/* Warns if an exporter that drops stops has probably dropped one. */
void ox_warn_steps(Ox *ox);
/* Warns if the exporter dropped additions of epsilons (onnx_epsilon.c). */
void ox_warn_epsilons(Ox *ox);
/* The module in which the node is computed: the second-last of name_scopes =
   ['', 't', 't.cross_attn', 'linear_2']; NULL: the file does not say. */
Str ox_torch_module(const Onnx__NodeProto *n);
/* onnx_torch.c: the node as a line of PyTorch's graph; "": the file does not
   say. */
Str ox_torch_text(const Onnx__NodeProto *n);
/* The next %name of such a line, without '%'; NULL after the last one. */
Str ox_torch_next_name(const char **s);
/* True if such a line has the value among its arguments. */
bool ox_torch_reads(Str text, Str name);
bool ox_torch_in_name(char c);
/* True if the name is an op's, possibly numbered: permute, permute_1. */
bool ox_torch_counts(Str name, const char *op);
/* The text of the node's line in PyTorch's graph from the target on, if the
   exporter wrote one and it is a `target`; else NULL. */
Str ox_torch_node(const OxNode *n, const char *target);
/* The argument at that position, as printed; NULL: the node lacks it. */
Str ox_torch_argument(const OxNode *n, int index);
/* The same for a `target`, if the argument is a number. */
double ox_torch_number(const OxNode *n, const char *target, int index,
                       double otherwise);
/* onnx_loss.c: builds the node if it is the last part of a PyTorch function
   that must be built as a whole. */
Status ox_torch_whole(Ox *ox, bool *done);
/* Builds the node with its handler if a mask selects rows in it, or if it
   reads such rows. */
Status ox_make_picked(Ox *ox, OxBuild *run, bool *done);
/* Result i is `rows`; `valid`, bool[n] with the true ones first, says which
   rows along the axis count. */
Status ox_out_rows(Ox *ox, int i, ValueId rows, ValueId valid, int axis);
/* onnx_nd.c: a scatter in whose place the model has a sum. */
bool ox_lost_sum(Ox *ox);
/* onnx_found.c: Unique where the operand is not known. */
Status onnx_unique_of_data(Ox *ox);
/* The value of an output; where it has such rows, those that count first,
   zeros behind them, and their number, else NO_VALUE. */
Status ox_put_rows(Ox *ox, Str output, ValueId *y, ValueId *n);
/* onnx_taken.c: while a body is built that counts only where `taken` (bool[];
   NO_VALUE: everywhere), these names have values that are safe to read. */
typedef struct OxShield {
    ValueId taken, outer; /* outer: Ox.taken before */
    const Str *name;
    OxName *meant; /* the names before */
    int n;
    Write *writes; /* to buffers, before */
    int nwrites;
} OxShield;
Status ox_shield(Ox *ox, ValueId taken, const Str *name, int n, OxShield *s);
/* The names have their values again; buffers that the body writes keep theirs
   where it does not count. */
Status ox_unshield(Ox *ox, const OxShield *s);
/* "f32[2,3]", for messages. */
const char *ox_type_text(const Ox *ox, ValueId v);
/* v, where the body being built counts: no gradient comes from elsewhere, and
   integers are 0 there. */
Status ox_read_if_taken(Ox *ox, ValueId v, ValueId *y);
/* The operand as bool[], or a message that it is not one condition. */
Status ox_condition(Ox *ox, ValueId v, ValueId *y);
/* `then` where `taken`, else `otherwise`: names of results of bodies. */
Status ox_select(Ox *ox, ValueId taken, Str then, Str otherwise, ValueId *y);
/* An Identity for x.detach() (dynamo) or stop_gradient (jax2onnx). */
bool ox_detaches(const Ox *ox, const OxNode *n);
/* True if no gradient flows through that result: the node detaches, or
   OxName.stops. */
bool ox_stops(const Ox *ox, const OxNode *n, int result);
Str ox_metadata(Onnx__StringStringEntryProto *const *p, size_t n,
                const char *key);
/* ampc.torch.export wrote the file: it has each module's mode, and which
   parameters train. */
bool ox_by_ampc(const Ox *ox);
/* The tool that rewrote the exporter's file and dropped its metadata; NULL:
   no such tool is visible. */
Str ox_rewritten_by(const Ox *ox);
/* True if an exporter of PyTorch wrote the file, also before ONNX Runtime's
   optimiser, which puts its own name there. */
bool ox_by_torch(const Onnx__ModelProto *m);

/* The tensor's elements, rounded to dtype d. */
const Tensor *ox_as(Arena *a, const Tensor *t, DType d);
/* A tensor's data in host memory; `name` for messages. */
Status ox_tensor(Ox *ox, const Onnx__TensorProto *t, const char *name,
                 const Tensor **out);
/* A tensor of INT4 or UINT4, two in a byte, the low half first, as i8 or u8.
   Such initializers are operands of quantisation alone, which
   ox_check_nibbles makes sure of. */
bool ox_is_nibbles(const Onnx__TensorProto *t);
Status ox_nibbles(Ox *ox, const Onnx__TensorProto *t, const char *name,
                  const Tensor **out);
Status ox_check_nibbles(Ox *ox, const OxNode *n);
/* Reads [offset, offset+length) of a file inside ox->dir (onnx_external.c). */
Status ox_external(Ox *ox, const Onnx__TensorProto *t, const char *name,
                   int64_t bytes, void **out);
/* A checked shape becomes a type: rank, signs, total size. */
Status ox_type_make(Ox *ox, const char *what, DType dtype, int rank,
                    const int64_t *dim, TypeId *out);
Status ox_dtype(Ox *ox, int code, const char *what, DType *out);

/* Writes a message as a file, unless it exceeds the format's limit
   (onnx_export.c). */
Status ox_write(Diag *d, const char *path, const Onnx__ModelProto *m,
                OutFile *out);

/* ---- for handlers: the node's operands and attributes -------------------- */

ValueId ox_in(const Ox *ox, int i);   /* NO_VALUE if it is absent */
bool ox_has_out(const Ox *ox, int i); /* it is named, and something live uses
                                         it */
Type ox_type(const Ox *ox, ValueId v);
OxName *ox_name_of(const Ox *ox, Str name);
/* The node whose result has the name, or NULL; the same of that type. */
const OxNode *ox_made_by(const Ox *ox, Str name);
const OxNode *ox_maker(const Ox *ox, Str name, const char *type);
/* onnx_lifted.c: the next operand in whose place the node's record has another
   constant, which the file lacks; {0} to begin. */
typedef struct OxMerged {
    int operand;
    Str name; /* of the constant */
    const char *rest;
} OxMerged;
bool ox_next_merged(const Ox *ox, const OxNode *n, OxMerged *at);
bool ox_lacks_constants(const Ox *ox);
/* True if the program's parameters are its constants: no node reads one under
   its own name, and there are as many constants. Running statistics, which are
   parameters of Keras too, cannot be told from offsets. */
bool ox_lifts_variables(const Ox *ox);
/* The constant, a variable of Keras, if the exporter made x by moving its
   elements or changing their sign; else NULL. */
Str ox_viewed_variable(const Ox *ox, const OxInit *x);
/* True if the file has neither the constant nor what was computed from it. */
bool ox_lost_constant(const Ox *ox, const OxSigned *p);
/* onnx_numbered.c: true for a file of Keras on PyTorch. */
bool ox_all_numbered(const Ox *ox);
/* Notes the weight beside each bias. */
void ox_numbered_biases(Ox *ox);
/* The weight of the product to which `add` adds the bias; NULL: it is none. */
Str ox_numbered_weight(const Ox *ox, const OxNode *add, Str bias);
/* True if the tensor is the slope of a PReLU, negated: slope relu(-x). */
bool ox_numbered_slope(const Ox *ox, const OxNode *mul, Str slope);
/* True if the tensor multiplies a computed norm or is added to one. */
bool ox_numbered_gain(const Ox *ox, const OxNode *reader, Str gain);
/* True if an Identity makes a separate variable of an initializer; else it
   reads the right one afterwards. */
bool ox_numbered_apart(Ox *ox, OxNode *identity);
int ox_uses(const Ox *ox, Str name); /* uses in live nodes and graph outputs */
const Onnx__AttributeProto *ox_attr(const Ox *ox, const char *name);
int64_t ox_int(const Ox *ox, const char *name, int64_t dflt);
/* True if ox_int can return the float. */
bool ox_is_whole(float x);
double ox_float(const Ox *ox, const char *name, double dflt);
Str ox_str(const Ox *ox, const char *name, const char *dflt);
int ox_ints(const Ox *ox, const char *name, const int64_t **v); /* -1: none */

/* The node of this op whose result is v, else NULL. */
const Node *ox_def(const Ox *ox, ValueId v, OpCode op);
/* Data known at compile time, else NULL: constants, and frozen initializers
   (for operands that act as attributes). */
const Tensor *ox_data(const Ox *ox, ValueId v);
/* Integer operand as a list; an error names the operand when it is not known
   at compile time.  Absent operand: *n = -1. */
Status ox_const_ints(Ox *ox, int operand, const char *what, const int64_t **v,
                     int *n);
/* The message that the operand, for example its "axes", is not known. */
Status ox_fail_unknown(Ox *ox, int operand, const char *what);
/* One-element operand as a number; false when absent or unknown. */
bool ox_const_scalar(const Ox *ox, ValueId v, double *out);
Status ox_axis(Ox *ox, int64_t axis, int rank, int *out);
/* Axes from the attribute or operand 1, normalised, sorted, distinct.
 *n = -1: not given. */
Status ox_axes(Ox *ox, bool from_input, int rank, int64_t *axes, int *n);

/* ---- rows that name an op or a function (onnx_call.c) -------------------- */

Callee ox_callee(const OxOp *op);
/* An entry of a row's map, see onnx_call.c. */
typedef struct OxMapEntry {
    Str from, to; /* to NULL: dropped; from NULL: `value` */
    Str value;
    int before;  /* opset; 0: any */
    int operand; /* 0: none */
} OxMapEntry;
/* Reads one entry and returns the text after it. */
const char *ox_map_entry(const char *s, OxMapEntry *e);
/* The value for attribute `ours` of the op or function. */
OxMapEntry ox_map_to(const OxOp *op, Str ours);
/* The node's attributes, translated by its row's map; room for MAX_OP_ATTRS. */
Status ox_mapped(Ox *ox, Attr *out, int *n);
/* The defect of a row: an unknown op or function, or an attribute that it
   lacks. */
bool ox_row_defect(const OxOp *op, StrBuf *why);
const OxOp *ox_row(int i); /* NULL after the last */

/* ---- for handlers: building ---------------------------------------------- */

/* Binds result i of the node, and names the value after it. */
Status ox_out(Ox *ox, int i, ValueId v);
Status ox_out_sequence(Ox *ox, int i, const ValueId *v, int n);
/* Result i becomes the value of `name`, also if that is a sequence. */
Status ox_out_name(Ox *ox, int i, Str name);
/* Builds one node, and folds it at once if every operand is constant. */
Status ox_op(Ox *ox, OpCode op, const ValueId *in, int nin, const Attr *attrs,
             int nattr, ValueId *out);
Status ox_call(Ox *ox, const char *fn, const ValueId *in, int nin,
               const Attr *attrs, int nattr, int nout, ValueId *out);
/* types, names: NULL as a whole or for a result: they are derived. */
Status ox_make(Ox *ox, Callee callee, const ValueId *in, int nin,
               const Attr *attrs, int nattr, int nout, const TypeId *types,
               const char *const *names, ValueId *out);
Status ox_opn(Ox *ox, OpCode op, const ValueId *in, int nin, const Attr *attrs,
              int nattr, int nout, const TypeId *types, ValueId *out);
Status ox1(Ox *ox, OpCode op, ValueId x, ValueId *out);
Status ox2(Ox *ox, OpCode op, ValueId x, ValueId y, ValueId *out);
Status ox3(Ox *ox, OpCode op, ValueId x, ValueId y, ValueId z, ValueId *out);
/* Builds y = x OP k; k is a constant of x's dtype. */
Status ox2k(Ox *ox, OpCode op, ValueId x, double k, ValueId *out);
Status ox_cast(Ox *ox, ValueId x, DType d, bool user, ValueId *out);
Status ox_reshape(Ox *ox, ValueId x, int rank, const int64_t *dim,
                  ValueId *out);
Status ox_transpose(Ox *ox, ValueId x, const int64_t *perm, ValueId *out);
Status ox_expand(Ox *ox, ValueId x, int rank, const int64_t *dim, ValueId *out);
Status ox_reduce(Ox *ox, OpCode op, ValueId x, const int64_t *axes, int n,
                 bool keepdims, ValueId *out);
Status ox_slice(Ox *ox, ValueId x, const int64_t *starts, const int64_t *sizes,
                const int64_t *steps, ValueId *out);
Status ox_split(Ox *ox, ValueId x, int axis, const int64_t *sizes, int n,
                ValueId *out);
/* Sizes of the parts of an axis of length `total`. */
Status ox_check_sizes(Ox *ox, const int64_t *v, int n, int64_t total);
/* fresh: joins along a new axis. */
Status ox_concat(Ox *ox, const ValueId *v, int n, int axis, bool fresh,
                 ValueId *out);
ValueId ox_make_const(Ox *ox, const char *name, const Tensor *t);
bool ox_foldable(const Ox *ox, NodeId id);
/* Removes the node from the order; its results *out are constants. */
Status ox_fold(Ox *ox, NodeId id, ValueId *out);
Status ox_const(Ox *ox, const Tensor *t, ValueId *out);
Status ox_const_i64(Ox *ox, const int64_t *v, int rank, int64_t n,
                    ValueId *out);
ValueId ox_scalar(Ox *ox, DType d, double v);
/* onnx_levels.c: the floats that were rounded to integers v, through which the
   gradient passes; NO_VALUE: v has none. */
Status ox_levels(Ox *ox, ValueId v, ValueId *y);
/* v as fp32, if it is integers: where they have levels, those. */
Status ox_numbers(Ox *ox, ValueId v, ValueId *y);
/* Integers with these levels. */
Status ox_whole(Ox *ox, ValueId numbers, DType d, ValueId *y);
/* Attributes low and high: the range of d. Returns 2. */
int ox_range(DType d, Attr attr[2]);
/* Negative positions count from the end of axes of length d. */
Status ox_wrap_negative(Ox *ox, ValueId *i, ValueId d);

#define HANDLER(x) Status onnx_##x(Ox *ox);
#include "frontend/onnx/onnx_handlers.def"
#undef HANDLER

#endif
