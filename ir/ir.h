/* SPDX-License-Identifier: Apache-2.0 */
/* ir.h: modules, graphs, values, nodes; the builder.

   A Module is one model: variables (parameters, buffers, state) and one Graph
   per program (first only "forward"; later train, micro, update, eval,
   predict, refresh), which from some pass on is one per program and target.
   A Graph is SSA: every value has one definition; nodes stand in g->order,
   definitions before uses.  Effects are the graph's
   `writes`: when the program ends, var takes the value; every read in the
   program sees the old value.

   Pools only grow.  A pass builds new nodes with the builder, redirects uses,
   and leaves dead nodes to dce; nodes not in g->order do not exist.         */
#ifndef AMPC_IR_IR_H
#define AMPC_IR_IR_H

#include "ir/graph/names.h"
#include "ir/op/op.h"
#include "runtime/draw.h"

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

/* Host data of a tensor, in its own storage dtype, row-major. */
typedef struct Tensor {
    TypeId type;
    void *data;
} Tensor;
/* tensor.c: elements in any dtype; storing rounds to nearest even. */
Tensor *tensor_new(Arena *a, TypeId t); /* zeros */
double tensor_get(const Tensor *t, int64_t i);
int64_t tensor_get_int(const Tensor *t, int64_t i); /* floats: truncated    */
void tensor_set(const Tensor *t, int64_t i, double v);
void tensor_repeat(const Tensor *t); /* element 0 becomes every element */
void tensor_set_int(const Tensor *t, int64_t i, int64_t v);
/* Random numbers, rounded to the type (runtime/draw.h). */
Tensor *tensor_drawn(Arena *a, TypeId t, const Draw *d);
/* No element is larger. */
double draw_bound(const Draw *d);
double f16_to_double(uint16_t h);
double bf16_to_double(uint16_t h);
uint16_t double_to_f16(double v);
uint16_t double_to_bf16(double v);

typedef enum VarKind {
    VAR_PARAM,  /* trains; f32 master                                       */
    VAR_FROZEN, /* initializer that does not train                          */
    VAR_BUFFER, /* running statistics, written by train                     */
    VAR_STATE,  /* optimizer, scaler, RNG state                             */
    VAR_HYPER,  /* scalar the host may set between steps                    */
    VAR_SHADOW, /* 16-bit copy of a parameter, kept by update and refresh   */
    VAR_GRAD    /* gradient accumulator of program micro                    */
} VarKind;
extern const char *const var_kind_text[]; /* "param", "frozen", ... */

typedef struct Var {
    Str name;
    VarKind kind;
    TypeId type;
    const Tensor *init; /* NULL: `fill`                                     */
    double fill;
    Draw draw; /* of a kind: instead of `fill`                               */
    DType stored_dtype; /* of the initializer in the user's file            */
    double lr_scale, weight_decay; /* per-parameter; weight_decay NaN = the
                                      optimizer's                            */
    Str init_text; /* "normal(1, 0.02)" of the .amp file, or NULL; whoever
                      replaces `init` clears it                             */
    Str why; /* why it trains or not, for inspect --params                  */
} Var;
/* Begins Var.why where the file does not tell that it trains. */
#define GUESS "by guess: "
/* What it begins with, its `fill` apart: NULL; random numbers are made. */
const Tensor *var_initial(Arena *a, const Var *v);

typedef enum ValueKind { VK_INPUT, VK_VAR, VK_CONST, VK_RESULT } ValueKind;

typedef struct Value {
    Str name; /* without %; NULL for anonymous scalar constants             */
    TypeId type;
    ValueKind kind;
    int var;            /* VK_VAR: index into module vars                  */
    int home;           /* PLANNED: index of the var it is computed into
                           (an in-place write), else -1                     */
    const Tensor *data; /* VK_CONST                                        */
    Str init_text;      /* VK_CONST: as Var.init_text                      */
    NodeId def;         /* VK_RESULT                                       */
    int result;         /* VK_RESULT: which                                */
    bool held;          /* an op grad differentiates by it                 */
    const char *why;    /* PRIMITIVE: what keeps it f32, NULL: not known    */
    int64_t offset;     /* PLANNED: arena byte offset, else -1             */
} Value;

enum { ARENA_ALIGN = 256 }; /* of offsets: what cuBLASLt assumes */

enum {
    NODE_BACKWARD = 1, /* made by autodiff                                  */
    NODE_UPDATE = 2,   /* made by the optimizer pass                        */
    NODE_AGAIN = 4     /* of backward: what forward computes, too, kept apart
                          from that                                         */
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

typedef enum GroupKind {
    GROUP_POINT,  /* element-wise + moves + generators over one domain      */
    GROUP_ROW,    /* with reductions: rows x reduced columns                */
    GROUP_ANCHOR, /* one ANCHOR node + element-wise epilogue, + a pool      */
    GROUP_LIB     /* one LIB node                                           */
} GroupKind;
extern const char *const group_kind_text[];

typedef struct Group {
    GroupKind kind;
    bool beside; /* POINT, ROW: runs in the launch of the group before, of the
                    same work on other operands                             */
    bool after;  /* ROW, beside: behind that, of what one of its groups makes */
} Group;

typedef struct Output {
    Str name;
    ValueId value;
} Output;

typedef struct Write {
    ValueId var, value;
    int bucket; /* of a gradient: it is then summed over ranks, together with
                   all of that number; 0: it is not                         */
} Write;

/* Whose passes a graph goes through, once types and casts are decided. */
typedef enum TargetKind {
    TARGET_ANY, /* not split yet: the graph is common to all                */
    TARGET_CPU,
    TARGET_CUDA,
    NUM_TARGETS
} TargetKind;
extern const char *const target_text[]; /* "any", "cpu", "cuda"             */

typedef struct Graph {
    struct Module *module;
    Arena *arena; /* == module->arena */
    Str name;
    ProgramKind program; /* by its name, as the objective that it is of      */
    Str objective;
    int64_t batch; /* of --batch-sizes: NAME@batch; 0: the module's own      */
    TargetKind target;
    VEC(Value) values; /* [0] is the null value */
    VEC(Node) nodes;   /* [0] is the null node */
    VEC(NodeId) order;
    VEC(ValueId) inputs;
    VEC(Output) outputs;
    VEC(Write) writes;
    VEC(Group) groups;
    VEC(const char *)
    attention;             /* of each, after pass attend: why it is left
                              in parts; NULL: it is one node           */
    int64_t arena_bytes;   /* PLANNED */
    struct NameMap *names; /* unique names of this graph */
} Graph;

/* A floating tensor of the model's file that is no variable: for people. */
typedef struct Literal {
    Str name;
    TypeId type;
    Str why;
    bool reaches; /* a gradient would reach it */
} Literal;

/* The text of a module after a pass, kept for `ampc inspect --ir`. */
typedef struct StageText {
    Str pass;
    const char *text;
    size_t size;
} StageText;

/* A line of a block of the model's text. */
typedef struct Setting {
    Str text;
    Loc loc;
} Setting;
typedef VEC(Setting) Settings;

typedef struct Module {
    Arena *arena;
    Str name;
    Str file; /* where it came from */
    VEC(Graph *) graphs;
    VEC(Var) vars;
    struct NameMap *names;      /* of the variables */
    VEC(const struct Fn *) fns; /* defined by the model's file              */
    Settings settings, policy;  /* its blocks `train` and `policy`          */
    Str onnx; /* the file that its model is imported from, NULL: none       */
    /* facts from the frontend that passes and the runtime's info need */
    Str producer; /* "pytorch", ... or NULL */
    VEC(Literal) literals;
    int class_axis; /* of the classification loss, -1: none */
    uint64_t hash;  /* the optimizer pass's: of all programs and their options,
                       the same for every target */
    DType low;      /* what autocast lowers to; NUM_DTYPES: it has not run   */
    Str rule;       /* by which types were chosen op by op; NULL: a cut's    */
    /* the pass runner's */
    int stage;  /* Stage reached so far */
    int given;  /* Stage of the text: nothing promised up to it was made here */
    int passes; /* rows of the pipeline behind it */
    VEC(StageText) texts;
} Module;

Module *module_new(Arena *a, const char *name);
Graph *graph_new(Module *m, const char *name); /* appended to the module */
/* A graph that stands in no module, or was removed from this one. */
void graph_append(Module *m, Graph *g, const char *name);
Graph *module_graph(const Module *m, const char *name); /* NULL if absent */
/* The same where the module is split: the program of one target. */
Graph *module_graph_on(const Module *m, const char *name, TargetKind t);
/* Deep copy (values, nodes, order), of no target; shares vars and tensor data.
 */
Graph *graph_clone(const Graph *g, const char *name);
/* The same of the same name, in a copy of the module that holds no other graph
   and allocates from a. */
Graph *graph_clone_aside(const Graph *g, Module *aside, Arena *a);
void module_remove_graph(Module *m, const char *name);
/* Moves graph g of another module, of the same arena, to m under that name: it
   reads the variables that m has under the names of its own.  NULL, or a
   variable that m has not, or of another type or kind; then nothing is done. */
const Var *graph_move(Graph *g, Module *m, const char *name);
/* Whether it is the model, FORWARD, or that for other batches. */
bool graph_is_model(const Graph *g);
Graph *module_program(const Module *m, ProgramKind p, Str objective); /* NULL */

static inline Value *value_get(const Graph *g, ValueId v) {
    ASSERT(v.i && v.i < (uint32_t)g->values.len);
    return &g->values.data[v.i];
}
static inline Node *node_get(const Graph *g, NodeId n) {
    ASSERT(n.i && n.i < (uint32_t)g->nodes.len);
    return &g->nodes.data[n.i];
}
/* The i-th in the order. */
static inline Node *node_at(const Graph *g, int i) {
    return node_get(g, g->order.data[i]);
}
static inline const Type *value_type(const Graph *g, ValueId v) {
    return type_get(value_get(g, v)->type);
}
/* Where the i-th value that leaves the program stands, in its outputs and then
   its writes; NULL behind the last. */
static inline ValueId *graph_root(const Graph *g, int i) {
    if (i < g->outputs.len) return &g->outputs.data[i].value;
    i -= g->outputs.len;
    return i < g->writes.len ? &g->writes.data[i].value : NULL;
}
static inline DType value_dtype(const Graph *g, ValueId v) {
    return value_type(g, v)->dtype;
}
/* Its elements. */
static inline int64_t value_count(const Graph *g, ValueId v) {
    return type_count(value_type(g, v));
}
static inline Var *value_var(const Graph *g, ValueId v) {
    return &g->module->vars.data[value_get(g, v)->var];
}
/* Pointers from value_get/node_get die at the next value or node made. */

/* The row of n's op, or what stands for it of the function that n calls:
   name, counts, class, attributes. */
const OpInfo *node_info(const Node *n);
static inline OpKind node_kind(const Node *n) { return op_info[n->op].kind; }
/* Its autocast class: what its user asked for, else its op's or function's. */
AmpClass node_class(const Node *n);
static inline Callee node_callee(const Node *n) {
    Callee c = {n->op, n->fn};
    return c;
}

/* ---- attributes of a node ------------------------------------------------ */

const Attr *attr_find(const Node *n, AttrKey k); /* NULL if absent */
/* Its value, or else the one that the table has for it. */
int64_t attr_int(const Node *n, AttrKey k);
double attr_float(const Node *n, AttrKey k);
Str attr_str(const Node *n, AttrKey k);
/* Returns the count, 0 if absent; *v points into the node. */
int attr_ints(const Node *n, AttrKey k, const int64_t **v);

/* Equal op, operands, attributes and result types; equal nodes hash equally. */
bool node_same(const Graph *g, const Node *a, const Node *b);
uint64_t node_hash(const Graph *g, const Node *n);
/* Equal op and attributes, whatever the operands are. */
bool node_same_work(const Node *a, const Node *b);
/* P0 and P1 of an ELEM op's expression: its float attributes in table order,
   with their defaults. */
void node_expr_params(const Node *n, double p[2]);

/* ---- making values ------------------------------------------------------- */

/* Names are made unique within the graph by appending .2, .3, ... */
ValueId graph_input(Graph *g, const char *name, TypeId t);
ValueId graph_const(Graph *g, const char *name, const Tensor *t);
/* Rank-0 constant, shared within the graph. */
ValueId graph_scalar(Graph *g, DType d, double v);
ValueId graph_scalar_int(Graph *g, DType d, int64_t v);
/* True if v is a constant whose elements all equal one number. */
bool value_is_splat(const Graph *g, ValueId v, double *out);
/* A constant that stands in the code: it has no buffer. */
bool value_is_immediate(const Graph *g, ValueId v);
/* The value whose buffer v shares through VIEW nodes (v itself otherwise). */
ValueId view_root(const Graph *g, ValueId v);
/* The variable that v is, in any shape and times numbers; -1: it is none. */
int var_scaled(const Graph *g, ValueId v);
/* That whose rows n, a rank_sum, adds the squares of, each of *row elements;
   -1: it adds something else. */
int node_sums_squares(const Graph *g, const Node *n, int64_t *row);
/* Elements of the least part of a gradient that a rank may have: whole rows,
   and as many as GPUs load at once. */
int64_t rank_unit(int64_t row);
/* Whether ranks have parts of a gradient of n elements that is added up by rows
   of so many: there are enough of them. */
bool rank_parts(int64_t n, int64_t row);
/* n is the first of each row of what it reads: they lie where they lay.      */
bool node_cuts_rows(const Graph *g, const Node *n);
/* n puts a few zeros behind the rows of what it reads, which `reduce` would
   fold one by one: a kernel that makes those rows may store n's result instead.
 */
bool node_pads_rows(const Graph *g, const Node *reduce, const Node *n);
/* n sums over all that stands before the axes along which `reduce` folds the
   same rows: a kernel that has the rows may add them up as well.            */
bool node_sums_columns(const Graph *g, const Node *reduce, const Node *n);
/* n is a pool that an anchor group may end with. */
bool node_pools(const Node *n);
/* New variable in the module (name must be new) or the existing one. */
int module_var(Module *m, VarKind k, const char *name, TypeId t,
               const Tensor *init, double fill);
int module_find_var(const Module *m, const char *name); /* -1 */
/* The compiler's own variables (names.h); one that exists keeps its fill. */
int module_own_var(Module *m, OwnVar v, Str objective, double fill);
/* Of the graph's objective, as its value. */
ValueId graph_own_var(Graph *g, OwnVar v, double fill);
const char *own_var_text(OwnVar v);
int module_find_own_var(const Module *m, OwnVar v, Str objective); /* -1 */
/* The parameter (-1: none) whose copy, gradient or state a variable of that
   name is. */
Family family_of(const Module *m, Str name, int *parameter);
/* The variable that a VAR_SHADOW is the copy of; -1. */
int shadow_source(const Module *m, const Var *shadow);
/* What is wrong with a variable that has a name of the compiler's; NULL. */
const char *own_var_defect(const Module *m, const Var *v);
/* The output's value; 0 if absent. */
ValueId graph_output(const Graph *g, const char *name);
void graph_add_output(Graph *g, Str name, ValueId v);
/* The value that reads the variable in this graph (one per graph). */
ValueId graph_var(Graph *g, int var);
/* The variable has that value when the program ends. */
void graph_write(Graph *g, ValueId var, ValueId value);
ValueId graph_find_var(const Graph *g, int var); /* 0 if not read here */
ValueId graph_find_value(const Graph *g, const char *name); /* 0 if absent */
Str graph_unique_name(Graph *g, Str base); /* reserved at once */
/* `name` comes from graph_unique_name, or two values swap theirs. */
void graph_rename(Graph *g, ValueId v, Str name);

/* ---- the builder --------------------------------------------------------- */

/* Appends nodes to g->order (or, with `before`, collects them in a list that
   the pass splices).  Results get the default type of the op's type rule
   unless `dtype` asks for another legal one.  On a type error: ASSERT (passes
   and rules build only legal nodes; frontends use build_checked).          */
typedef struct Builder {
    Graph *g;
    const char *suffix; /* names: first operand's name + suffix, or NULL    */
    uint32_t flags;     /* of every node made                               */
    Loc loc;            /* of every node made                               */
} Builder;

#define DT_DEFAULT NUM_DTYPES

/* One result. `name` NULL: derived from op and operands. */
ValueId build(Builder *b, OpCode op, const ValueId *in, int nin,
              const Attr *attrs, int nattr, DType dtype, const char *name);
/* Several results; dtypes may be NULL. */
NodeId build_multi(Builder *b, OpCode op, const ValueId *in, int nin,
                   const Attr *attrs, int nattr, int nout, const DType *dtypes,
                   const char *const *names);
/* For generators: the type is given. */
ValueId build_gen(Builder *b, OpCode op, const ValueId *in, int nin,
                  const Attr *attrs, int nattr, TypeId type, const char *name);
/* For frontends: mistakes become a Diag message at b->loc. */
Status build_checked(Builder *b, Diag *d, Callee callee, const ValueId *in,
                     int nin, const Attr *attrs, int nattr, int nout,
                     const TypeId *types /* NULL or 0: by rule */,
                     const char *const *names, NodeId *out);

/* A second node like `id`, with its types and the names that follow from its,
   that reads in[0..nin). */
NodeId build_again(Builder *b, NodeId id, const ValueId *in);

/* A call of a function; dtypes may be NULL. */
NodeId build_call(Builder *b, const struct Fn *fn, const ValueId *in, int nin,
                  const Attr *attrs, int nattr, int nout, const DType *dtypes);

/* Shorthands (dtype DT_DEFAULT = rule's). */
ValueId b1(Builder *b, OpCode op, ValueId x, DType dtype);
ValueId b2(Builder *b, OpCode op, ValueId x, ValueId y, DType dtype);
ValueId b_where(Builder *b, ValueId c, ValueId yes, ValueId no);
ValueId b_scalar(Builder *b, DType d, double v);
ValueId b_cast(Builder *b, ValueId x, DType d); /* x itself if already d */
ValueId b_reshape(Builder *b, ValueId x, int rank, const int64_t *dim);
ValueId b_reduce(Builder *b, OpCode op, ValueId x, const int64_t *axes, int n,
                 bool keepdims, DType dtype);
ValueId b_transpose(Builder *b, ValueId x, const int64_t *perm);
ValueId b_matmul(Builder *b, ValueId x, ValueId y, bool ta, bool tb, DType d);
ValueId b_full(Builder *b, TypeId t, double v);
/* x, but 0 where `closed` is true; x itself where there is no `closed`, or one
   of another shape. */
ValueId b_close(Builder *b, ValueId closed, ValueId x);
/* x summed to the shape of `like`: undoes broadcasting. */
ValueId b_sum_to(Builder *b, ValueId x, ValueId like, DType dtype);
/* Dtype of the gradient of v: fp32 where v is a cast that the compiler made of
   an fp32 value, for the gradient of that cast then is unrounded; else v's. */
DType grad_dtype(const Graph *g, ValueId v);

/* ---- rewriting ----------------------------------------------------------- */

/* use count per value id over order, outputs and writes; arena-allocated in
   `scratch`, indexed by ValueId.i */
int *graph_use_counts(const Graph *g, Arena *scratch);
/* position of each node in order (by NodeId.i), -1 if not in it */
int *graph_positions(const Graph *g, Arena *scratch);

/* The nodes that read a value, as [at, end): in order, each as often as it
   reads it. */
typedef struct Users {
    const NodeId *at, *end;
} Users;
typedef struct UserIndex {
    int *first; /* by ValueId.i, in `node` */
    NodeId *node;
} UserIndex;
/* Of the values and the order that there are; arena-allocated in `scratch`. */
UserIndex graph_users(const Graph *g, Arena *scratch);
static inline Users users_of(const UserIndex *x, ValueId v) {
    Users u = {x->node + x->first[v.i], x->node + x->first[v.i + 1]};
    return u;
}
/* Whether the op's type rule leaves the result that dtype. */
bool node_may_store(const Graph *g, const Node *n, int result, DType d);
/* The node of v stores dtype d instead of its own: if it is one of those from
   `start` on in the order, all newer than node `first`, no other of them reads
   v, and its op may; one that only moves elements passes that on. */
bool node_store(Graph *g, uint32_t first, int start, ValueId v, DType d);
/* Of the nodes that stand in the order from `start` on, all of them newer than
   node `first`, those go that no root needs. */
void graph_drop_unneeded(Graph *g, uint32_t first, int start,
                         const ValueId *root, int n);
/* Equal for equal text; follows all that decides what the program computes,
   and nothing of this process. */
uint64_t graph_hash(const Graph *g);

/* ---- type rules ---------------------------------------------------------- */

/* A type rule fills out[] (defaults) given operands and attributes.  When
   `given` dtypes are present the rule's dtype-freedom is checked by
   verify/build through `free_dtype`: set it for each result whose dtype may be
   any float type rather than the default. */
typedef struct TypeCtx {
    const Node *n; /* op, counts and attributes; its values may not be made */
    const Type **ins;   /* [nin], NULL: absent operand                        */
    Type *out;          /* [nout] */
    bool *free_dtype;   /* [nout] */
    const Type *given;  /* [nout] or NULL: declared types (gen, cast need it) */
    char msg[MSG_TEXT]; /* why it is wrong */
} TypeCtx;

/* ---- text ---------------------------------------------------------------- */

void print_module(const Module *m, StrBuf *sb);
void print_graph(const Graph *g, StrBuf *sb);
/* Parses a file of graphs.  Caret diagnostics. Types that the text leaves out
   are inferred; given ones are checked. */
Status parse_module(Arena *a, Diag *d, const char *file, const char *text,
                    size_t n, Module **out);

/* What the command line says before a text is read. */
typedef struct DimBind {
    Str name; /* a symbol, or an input's name when axis >= 0 */
    int axis; /* -1: name is a symbol */
    int64_t value;
} DimBind;

typedef struct TextOptions {
    const DimBind *dims;
    int ndims;
    int64_t seed; /* of initial values and dropout */
    /* Of the first dimension of the first input: what it is whatever dims say;
       what it is if nobody says; 0: nothing. */
    int64_t batch, batch_else;
    /* The model of an ONNX file whose inputs are of types in[0..n), for
       `def .. = onnx("FILE")`; NULL: there are no files. */
    Status (*layer)(void *ctx, Str file, const TypeId *in, int n, Module **out);
    void *ctx;
} TextOptions;

/* The same of a text whose symbols, as B in f32[B,4], are bound by opt. */
Status parse_model(Arena *a, Diag *d, const char *file, const char *text,
                   size_t n, const TextOptions *opt, Module **out);
/* Settings, policy and onnx of a text, in a module of no graphs; of one with
   mistakes, which parse_model tells, nothing. */
void text_blocks(Arena *a, const char *file, const char *text, size_t n,
                 Module **out);

/* ---- verifier ------------------------------------------------------------ */

typedef enum Stage {
    STAGE_TYPED,   /* SSA, types legal                                       */
    STAGE_CAST,    /* + LOW ops read what autocast decided                   */
    STAGE_DIFF,    /* + backward present                                     */
    STAGE_STEP,    /* + optimizer                                            */
    STAGE_INLINED, /* no calls but of whole functions                    */
    STAGE_PRIMITIVE, /* no SPLIT, reductions keep their dimensions         */
    STAGE_FUSED,     /* every node in exactly one group (VIEW and GEN: none or
                        one), groups contiguous in order                        */
    STAGE_PLANNED /* + offsets, no live overlap                             */
} Stage;
extern const char *const stage_text[];
Status verify_graph(const Graph *g, Stage s, Diag *d);
Status verify_module(const Module *m, Stage s, Diag *d);

/* ---- interpreter --------------------------------------------------------- */

/* Evaluates in double (integers in int64).  EVAL_STORAGE rounds every value
   to its declared dtype (what compiled code does); EVAL_EXACT never rounds
   (finite differences). */
typedef enum EvalMode { EVAL_STORAGE, EVAL_EXACT } EvalMode;

typedef struct EvalTensor {
    TypeId type;
    double *f;  /* float dtypes */
    int64_t *i; /* bool and integer dtypes */
} EvalTensor;

typedef struct Evaluator Evaluator;
Evaluator *eval_new(const Graph *g, Arena *a, EvalMode mode);
/* Bind inputs/variables by value id before running; unbound variables take
   their init; unbound inputs are an error. */
void eval_bind(Evaluator *e, ValueId v, const EvalTensor *t);
Status eval_run(Evaluator *e, Diag *d);
const EvalTensor *eval_get(const Evaluator *e, ValueId v);
EvalTensor *eval_from_tensor(Arena *a, const Tensor *t);
Tensor *eval_to_tensor(Arena *a, const EvalTensor *t, TypeId as);
EvalTensor *eval_tensor_new(Arena *a, TypeId t);
/* Folding: evaluates one node whose operands are all given. Fails with a
   message (integer division by zero, ...). */
Status eval_node(const Graph *g, NodeId n, Arena *a, EvalMode mode,
                 const EvalTensor *const *in, EvalTensor **out, char *msg);
/* The expression of an ELEM or REDUCE row without attributes; REDUCE: a is what
   was folded so far, b one element more. */
double eval_expr_f(OpCode op, double a, double b);
double round_to_dtype(double v, DType d);

#endif
