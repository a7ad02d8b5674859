/* SPDX-License-Identifier: Apache-2.0 */
/* ir.h: modules, graphs, values, nodes; the builder.

   A Module is one model: variables (parameters, buffers, state) and one Graph
   per program (first only "forward"; later train, micro, update, eval, predict,
   refresh), and from a certain pass on one per program and target. A Graph is
   SSA: every value has one definition; nodes stand in g->order, definitions
   before uses.  Effects are the graph's `writes`: when the program ends, var
   takes the value; every read in the program sees the old value.

   Pools only grow.  A pass builds new nodes with the builder, redirects uses,
   and leaves dead nodes to dce; nodes not in g->order do not exist.         */
#ifndef AMPC_IR_IR_H
#define AMPC_IR_IR_H

#include "ir/graph/names.h"
#include "ir/op/node.h"
#include "runtime/program/draw.h"

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
void tensor_repeat(const Tensor *t); /* element 0 is repeated for all
                                        elements */
void tensor_set_int(const Tensor *t, int64_t i, int64_t v);
/* Random numbers, rounded to the type (runtime/program/draw.h). */
void tensor_draw(const Tensor *t, const Draw *d);
Tensor *tensor_drawn(Arena *a, TypeId t, const Draw *d);
/* An upper bound of such random numbers. */
double draw_bound(const Draw *d);
#define LOW(E, text, C, ...)                                                   \
    double text##_to_double(C code);                                           \
    C double_to_##text(double v);
#include "runtime/program/dtypes.def"
/* The nearest number that a floating type can represent. */
double dtype_nearest(DType d, double v);

typedef enum VarKind {
    VAR_PARAM,  /* trains; f32 master                                       */
    VAR_FROZEN, /* initializer that does not train                          */
    VAR_BUFFER, /* running statistics, written by train                     */
    VAR_STATE,  /* optimizer, scaler, RNG state                             */
    VAR_HYPER,  /* scalar that the host may set between steps */
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
    Draw draw;          /* distribution of random initial values, instead of
                           `fill` */
    DType stored_dtype; /* dtype of the initializer in the user's file */
    double lr_scale, weight_decay; /* per-parameter; weight_decay NaN = the
                                      optimizer's                            */
    Str init_text; /* "normal(1, 0.02)" of the .amp file, or NULL; code that
                      replaces `init` must clear it */
    Str why;       /* why it trains or does not, for inspect --params */
} Var;
/* Var.why begins with it if the file does not say whether it trains. */
#define GUESS "by guess: "
/* The initial value as a tensor (random numbers are drawn); NULL if `fill`
   gives it. */
const Tensor *var_initial(Arena *a, const Var *v);

typedef enum ValueKind { VK_INPUT, VK_VAR, VK_CONST, VK_RESULT } ValueKind;

typedef struct Value {
    Str name; /* without %; NULL for anonymous scalar constants             */
    TypeId type;
    ValueKind kind;
    int var;            /* VK_VAR: index into module vars                  */
    int home;           /* PLANNED: index of the variable in whose memory it
                           is computed (an in-place write), else -1 */
    const Tensor *data; /* VK_CONST                                        */
    Str init_text;      /* VK_CONST: like Var.init_text */
    NodeId def;         /* VK_RESULT                                       */
    int result;         /* VK_RESULT: which                                */
    bool held;          /* an op grad differentiates with respect to it */
    const char *why;    /* PRIMITIVE: the reason why it is f32; NULL: unknown */
    float adds[2];      /* PRIMITIVE: how much its rounding adds to the
                           relative errors of loss and gradient, if there is
                           a budget */
    int64_t offset;     /* PLANNED: arena byte offset, else -1             */
} Value;

enum { ARENA_ALIGN = 256 }; /* alignment of offsets, as cuBLASLt assumes */

typedef enum GroupKind {
    GROUP_POINT,  /* element-wise + moves + generators over one domain      */
    GROUP_ROW,    /* with reductions: rows x reduced columns                */
    GROUP_ANCHOR, /* one ANCHOR node + element-wise epilogue, + a pool      */
    GROUP_LIB     /* one LIB node                                           */
} GroupKind;
extern const char *const group_kind_text[];

/* Where something runs: only if the truth value `when` is true (`unless`:
   false); NO_VALUE: always. */
typedef struct Guard {
    ValueId when;
    bool unless;
} Guard;

typedef struct Group {
    GroupKind kind;
    Guard guard; /* elsewhere its results may hold anything */
    bool beside; /* POINT, ROW: runs in the previous group's launch, with the
                    same computation on other operands */
    bool after;  /* ROW, beside: runs after another group of that launch, on
                    its results */
} Group;

typedef struct Output {
    Str name;
    ValueId value;
    int64_t sample_rows; /* after pass samples; see ampc_tensor_info */
} Output;

typedef struct Write {
    ValueId var, value;
    int bucket; /* for a gradient: number of the bucket in which it is summed
                   over ranks; 0: not summed */
} Write;

/* The target for which a graph is compiled, once types and casts are
   decided. */
typedef enum TargetKind {
    TARGET_ANY, /* not split yet: the graph serves all targets */
    TARGET_CPU,
    TARGET_CUDA,
    NUM_TARGETS
} TargetKind;
extern const char *const target_text[]; /* "any", "cpu", "cuda"             */

typedef struct Graph {
    struct Module *module;
    Arena *arena; /* == module->arena */
    Str name;
    ProgramKind program; /* follows from the name; so does the objective */
    Str objective;
    Str size; /* of NAME@SIZE (--batch-sizes, --dim NAME=N|N); "": the model's
                 own sizes */
    TargetKind target;
    VEC(Value) values; /* [0] is the null value */
    VEC(Node) nodes;   /* [0] is the null node */
    VEC(NodeId) order;
    VEC(ValueId) inputs;
    VEC(Output) outputs;
    VEC(Write) writes;
    VEC(Group) groups;
    VEC(const char *)
    attention; /* for each attention, after pass attend: why it is not fused;
                  NULL: it is one node */
    bool rounds_weights; /* it reads no 16-bit copies (pass masters) */
    int64_t rows_at_once, rows_all; /* number of chunks of a loss that pass
                                       stream cut, else 0 */
    int64_t arena_bytes;            /* PLANNED */
    int nfixed; /* PLANNED: groups that it begins with whose results stay from
                   run to run (memplan.c); not in a text */
    struct NameMap *names; /* unique names of this graph */
} Graph;

/* A floating tensor of the model's file that is not a variable; for reports. */
typedef struct Literal {
    Str name;
    TypeId type;
    Str why;
    bool reaches; /* true: a gradient would reach it */
} Literal;

/* The text of a module after a pass, kept for `ampc inspect --ir`. */
typedef struct StageText {
    Str pass;
    const char *text;
    size_t size;
} StageText;

/* Matrix products of x with a frozen weight add alpha / rank (x a^T) b^T, or
   have their inputs or outputs multiplied by a vector. */
typedef struct Adapter {
    Str module, weight; /* "fc", fc.weight */
    Str a, b;           /* parameters [rank, in] and [out, rank], or NULL */
    Str magnitude;      /* DoRA's parameter [out], else NULL */
    Str factor;         /* IA3's parameter [out,1] or [1,in], else NULL */
    int axes;           /* of a convolution's kernel, whose parameters are
                           [1,out,1,..] and [1,in,1,..]; 0: of a matrix */
    Str bias;           /* the bias that factors multiply, too, or NULL */
    bool feedforward;   /* factors of inputs */
    int64_t rank;
    double alpha, dropout;
    bool columns; /* true: the weight is [in, out], else [out, in] */
} Adapter;

/* A line from a block of the model's text. */
typedef struct Setting {
    Str text;
    Loc loc;
} Setting;
typedef VEC(Setting) Settings;

typedef struct Module {
    Arena *arena;
    Str name;
    Str file; /* the file of the module */
    VEC(Graph *) graphs;
    VEC(Var) vars;
    struct NameMap *names;      /* names of the variables */
    VEC(const struct Fn *) fns; /* functions that the model's file defines */
    Settings settings, policy;  /* blocks `train` and `policy` of the file */
    Str onnx; /* file that the model is imported from; NULL: none */
    /* facts of the frontend that passes and the runtime's info need */
    Str producer; /* "pytorch", ... or NULL */
    VEC(Literal) literals;
    VEC(Adapter) adapters; /* of pass adapt */
    Str keeps;             /* for people: what files of that producer lose;
                              or NULL */
    int class_axis;        /* class axis of the classification loss; -1: none */
    bool masks;            /* samples that only fill up a batch can be masked */
    uint64_t hash; /* set by the optimizer pass: hash of all programs and
                      their options, the same for all targets */
    DType low; /* 16-bit dtype of autocast; NUM_DTYPES: autocast has not run */
    Str rule;  /* NULL: the minimum cut chose them NULL: the minimum cut did */
    /* the pass runner's */
    int stage;  /* Stage reached so far */
    int given;  /* Stage of a module read from text; the compiler does not
                   guarantee the promises up to it */
    int passes; /* number of pipeline rows already run */
    VEC(StageText) texts;
} Module;

Module *module_new(Arena *a, const char *name);
Graph *graph_new(Module *m, const char *name); /* appends it to the module */
/* Adds a graph that belongs to no module, or was removed from this one. */
void graph_append(Module *m, Graph *g, const char *name);
Graph *module_graph(const Module *m, const char *name); /* NULL if absent */
/* The program for one target, once the module is split. */
Graph *module_graph_on(const Module *m, const char *name, TargetKind t);
/* Deep copy (values, nodes, order) without a target; shares variables and
   tensor data. */
Graph *graph_clone(const Graph *g, const char *name);
/* The same under the same name, in a copy of the module without other
   graphs, allocated from a. */
Graph *graph_clone_aside(const Graph *g, Module *aside, Arena *a);
void module_remove_graph(Module *m, const char *name);
/* Moves graph g of another module with the same arena to m under that name.
   g then reads m's variables of the same names. Returns NULL, or the first
   variable that m lacks or has with another type or kind; in that case the
   module is unchanged. */
const Var *graph_move(Graph *g, Module *m, const char *name);
/* True for the model's graph, FORWARD, and its copies for other sizes. */
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
/* The i-th node of the order. */
static inline Node *node_at(const Graph *g, int i) {
    return node_get(g, g->order.data[i]);
}
/* NULL: v is not a node's result, or is 0. Address of the i-th value that
   leaves the program: first outputs, then writes; */
static inline const Node *value_maker(const Graph *g, ValueId v) {
    const Value *x = v.i ? value_get(g, v) : NULL;
    return x && x->kind == VK_RESULT ? node_get(g, x->def) : NULL;
}
static inline const Type *value_type(const Graph *g, ValueId v) {
    return type_get(value_get(g, v)->type);
}
/* NULL after the last one. NULL after the last. */
static inline ValueId *graph_root(const Graph *g, int i) {
    if (i < g->outputs.len) return &g->outputs.data[i].value;
    i -= g->outputs.len;
    return i < g->writes.len ? &g->writes.data[i].value : NULL;
}
static inline DType value_dtype(const Graph *g, ValueId v) {
    return value_type(g, v)->dtype;
}
/* Number of elements. */
static inline int64_t value_count(const Graph *g, ValueId v) {
    return type_count(value_type(g, v));
}
static inline Var *value_var(const Graph *g, ValueId v) {
    return &g->module->vars.data[value_get(g, v)->var];
}
/* Pointers from value_get and node_get are invalid after the next value or
   node is built. */

/* ---- equal nodes ------------------------------------------------------- */

/* Equal op, operands, attributes and result types; equal nodes hash equally. */
bool node_same(const Graph *g, const Node *a, const Node *b);
uint64_t node_hash(const Graph *g, const Node *n);
/* Equal op and attributes; operands may differ. */
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
/* True if v is a constant that is written into code and has no buffer. */
bool value_is_immediate(const Graph *g, ValueId v);
/* The value whose buffer v shares through VIEW nodes (v itself otherwise). */
ValueId view_root(const Graph *g, ValueId v);
/* Index of the variable that equals v up to reshapes and constant factors;
   -1: none. */
int var_scaled(const Graph *g, ValueId v);
/* If n is a rank_sum over sums of squares of a variable's rows: the
   variable, and *row: elements per row; else -1. */
int node_sums_squares(const Graph *g, const Node *n, int64_t *row);
/* Elements of the smallest part of a gradient that a rank may have: whole
   rows, and a multiple of the elements that GPUs load at once. */
int64_t rank_unit(int64_t row);
/* True if a gradient of n elements, summed by rows of `row` elements, is
   divided among ranks: it has enough rows. */
bool rank_parts(int64_t n, int64_t row);
/* True if n only cuts off the ends of rows: the elements that it returns
   keep their offsets within each row. */
bool node_cuts_rows(const Graph *g, const Node *n);
/* True if n appends a few zeros to the rows of its operand, and `reduce`
   folds these rows: the kernel that computes the rows may store n's result
   instead. */
bool node_pads_rows(const Graph *g, const Node *reduce, const Node *n);
/* True if n makes codes, scales or sums of blocks. */
bool node_makes_blocks(const Node *n);
/* If n transposes a matrix of numbers of 8 bits, whose sides are multiples of
   16, or makes blocks of its operand: how many axes the matrix's rows are, the
   others are its columns; else 0. */
int node_tiles(const Graph *g, const Node *n);
/* True if n does so with numbers whose rows `reduce` folds. */
bool node_tiles_rows(const Graph *g, const Node *reduce, const Node *n);
/* True if the kernel of n's group has n's operand in tiles of shared memory and
   makes n's result of them. */
bool node_by_tile(const Graph *g, const Node *n);
/* True if a kernel with n, whose tiles have several axes of columns, has
   `count` elements as one matrix: n reads numbers, and tensors as large. */
bool node_reads_alike(const Graph *g, const Node *n, bool by_tile,
                      int64_t count);
/* True if n sums over all axes before those along which `reduce` folds the
   same rows: the kernel that has the rows may compute the sum, too. */
bool node_sums_columns(const Graph *g, const Node *reduce, const Node *n);
/* True if n is a pool that may end an anchor group. */
bool node_pools(const Node *n);
/* New variable in the module (name must be new) or the existing one. */
int module_var(Module *m, VarKind k, const char *name, TypeId t,
               const Tensor *init, double fill);
int module_find_var(const Module *m, const char *name); /* -1 */
/* The compiler's own variables (names.h); an existing one keeps its fill. */
int module_own_var(Module *m, OwnVar v, Str objective, double fill);
/* The compiler's variable for the graph's objective, as a value. */
ValueId graph_own_var(Graph *g, OwnVar v, double fill);
const char *own_var_text(OwnVar v);
/* The legal values of a scalar. */
typedef struct OwnRange {
    double least, most;
    bool whole;
} OwnRange;
OwnRange own_var_range(OwnVar v);
int module_find_own_var(const Module *m, OwnVar v, Str objective); /* -1 */
/* State that evaluation reads in the place of its variable, complete on all
   ranks: the average of --ema and --swa, when averages are asked for, or what
   an optimizer calls `evaluated`. */
Str average_name(Str variable);
bool is_average(Str name);
bool is_evaluated(Str name);
/* The family of the name; *parameter: the parameter of which the variable is
   a copy, the gradient or the state; -1: none. */
Family family_of(const Module *m, Str name, int *parameter);
/* The family of copies in a 16-bit type. */
Family shadow_family(DType d);
/* The variable of which a VAR_SHADOW is a copy; -1: it is none. */
int shadow_source(const Module *m, const Var *shadow);
/* What is wrong with a variable that has one of the compiler's names; NULL:
   nothing. */
const char *own_var_defect(const Module *m, const Var *v);
/* The output's value; 0 if absent. */
ValueId graph_output(const Graph *g, const char *name);
/* The number of samples in a batch: the first axis of the first input with
   axes; 0 if there is none. */
int64_t graph_samples(const Graph *g);
void graph_add_output(Graph *g, Str name, ValueId v);
/* Removes the output; its value; 0 if absent. */
ValueId graph_take_output(Graph *g, const char *name);
/* The value that reads the variable in this graph (one per graph). */
ValueId graph_var(Graph *g, int var);
/* The variable takes that value when the program ends. */
void graph_write(Graph *g, ValueId var, ValueId value);
ValueId graph_find_var(const Graph *g, int var); /* 0 if not read here */
ValueId graph_find_value(const Graph *g, const char *name); /* 0 if absent */
Str graph_unique_name(Graph *g, Str base); /* reserved at once */
/* `name` must come from graph_unique_name, or two values swap their names. */
void graph_rename(Graph *g, ValueId v, Str name);

/* ---- the builder --------------------------------------------------------- */

/* Appends nodes to g->order (or, with `before`, collects them in a list that
   the pass splices).  Results get the default type of the op's type rule
   unless `dtype` requests another legal one. On a type error: ASSERT (passes
   and rules build only legal nodes; frontends use build_checked). */
typedef struct Builder {
    Graph *g;
    const char *suffix; /* names: first operand's name + suffix, or NULL    */
    uint32_t flags;     /* of every node built */
    Loc loc;            /* of every node built */
} Builder;

#define DT_DEFAULT NUM_DTYPES

/* One result. `name` NULL: derived from op and operands. */
ValueId build(Builder *b, OpCode op, const ValueId *in, int nin,
              const Attr *attrs, int nattr, DType dtype, const char *name);
/* Makes several results; dtypes may be NULL. */
NodeId build_multi(Builder *b, OpCode op, const ValueId *in, int nin,
                   const Attr *attrs, int nattr, int nout, const DType *dtypes,
                   const char *const *names);
/* For generators, whose type is given. */
ValueId build_gen(Builder *b, OpCode op, const ValueId *in, int nin,
                  const Attr *attrs, int nattr, TypeId type, const char *name);
/* For frontends: mistakes become a Diag message at b->loc. */
Status build_checked(Builder *b, Diag *d, Callee callee, const ValueId *in,
                     int nin, const Attr *attrs, int nattr, int nout,
                     const TypeId *types /* NULL or 0: by rule */,
                     const char *const *names, NodeId *out);

/* Builds a copy of node `id` that reads in[0..nin); types are the same, and
   names are derived from the original's. */
NodeId build_again(Builder *b, NodeId id, const ValueId *in);

/* A call of a function; dtypes may be NULL. */
NodeId build_call(Builder *b, const struct Fn *fn, const ValueId *in, int nin,
                  const Attr *attrs, int nattr, int nout, const DType *dtypes);

/* Shorthands (dtype DT_DEFAULT: the rule's dtype). */
ValueId b1(Builder *b, OpCode op, ValueId x, DType dtype);
ValueId b2(Builder *b, OpCode op, ValueId x, ValueId y, DType dtype);
ValueId b_where(Builder *b, ValueId c, ValueId yes, ValueId no);
ValueId b_scalar(Builder *b, DType d, double v);
ValueId b_cast(Builder *b, ValueId x, DType d); /* x itself if it has dtype d
                                                   already */
ValueId b_reshape(Builder *b, ValueId x, int rank, const int64_t *dim);
ValueId b_reduce(Builder *b, OpCode op, ValueId x, const int64_t *axes, int n,
                 bool keepdims, DType dtype);
ValueId b_transpose(Builder *b, ValueId x, const int64_t *perm);
ValueId b_matmul(Builder *b, ValueId x, ValueId y, bool ta, bool tb, DType d);
ValueId b_full(Builder *b, TypeId t, double v);
/* x with 0 where `closed` is true; x itself if `closed` is missing or has
   another shape. */
ValueId b_close(Builder *b, ValueId closed, ValueId x);
/* x summed to the shape of `like`: reverses broadcasting. */
ValueId b_sum_to(Builder *b, ValueId x, ValueId like, DType dtype);
/* Dtype of the gradient of v: fp32 if v is a cast that the compiler made
   from an fp32 value (its gradient is then not rounded), else the dtype of
   v. */
DType grad_dtype(const Graph *g, ValueId v);

/* ---- rewriting ----------------------------------------------------------- */

/* use count per value id over order, outputs and writes; arena-allocated in
   `scratch`, indexed by ValueId.i */
int *graph_use_counts(const Graph *g, Arena *scratch);
/* position of each node in order (by NodeId.i), -1 if not in it */
int *graph_positions(const Graph *g, Arena *scratch);

/* The nodes that read a value, as [at, end): in order; a node appears once
   per operand that reads it. */
typedef struct Users {
    const NodeId *at, *end;
} Users;
typedef struct UserIndex {
    int *first; /* per value: index into `node` */
    NodeId *node;
} UserIndex;
/* Index for the present values and order; arena-allocated in `scratch`. */
UserIndex graph_users(const Graph *g, Arena *scratch);
static inline Users users_of(const UserIndex *x, ValueId v) {
    Users u = {x->node + x->first[v.i], x->node + x->first[v.i + 1]};
    return u;
}
/* True if the op's type rule allows that dtype for the result. */
bool node_may_store(const Graph *g, const Node *n, int result, DType d);
/* Makes the node of v store dtype d instead of its own. Returns false unless
   the node is at `start` or later in the order, no other of these nodes (all
   newer than node `first`) reads v, and its op permits it. A node that only
   moves elements passes the request on to its operand. */
bool node_store(Graph *g, uint32_t first, int start, ValueId v, DType d);
/* Drops nodes that no root needs, among those from `start` on in the order,
   which are all newer than node `first`. */
void graph_drop_unneeded(Graph *g, uint32_t first, int start,
                         const ValueId *root, int n);
/* Equal for equal text. Depends on everything that affects the program's
   results, and on nothing of this process. */
uint64_t graph_hash(const Graph *g);

/* ---- verifier ------------------------------------------------------------ */

typedef enum Stage {
    STAGE_TYPED,   /* SSA, types legal                                       */
    STAGE_CAST,    /* + LOW ops read the dtypes that autocast chose */
    STAGE_DIFF,    /* + backward present                                     */
    STAGE_STEP,    /* + optimizer                                            */
    STAGE_INLINED, /* only calls of whole functions are left */
    STAGE_PRIMITIVE, /* no SPLIT, reductions keep their dimensions         */
    STAGE_FUSED,     /* every node in exactly one group (VIEW and GEN: none or
                        one), groups contiguous in order */
    STAGE_PLANNED /* + offsets, no live overlap                             */
} Stage;
extern const char *const stage_text[];
Status verify_graph(const Graph *g, Stage s, Diag *d);
Status verify_module(const Module *m, Stage s, Diag *d);

#endif
