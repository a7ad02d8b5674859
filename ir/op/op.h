/* SPDX-License-Identifier: Apache-2.0 */
/* op.h: the op table as data, attributes, and the two rule interfaces.     */
#ifndef AMPC_IR_OP_OP_H
#define AMPC_IR_OP_OP_H

#include "ir/op/type.h"

typedef enum OpCode {
#define OP(E, text, imin, imax, omin, omax, attrs, type, cls, torch, grad,     \
           kind, cost, eval, lower, expr)                                      \
    OP_##E,
#include "ir/op/ops.def"
    NUM_OPS
} OpCode;

typedef enum AmpClass {
    AMP_LOW,
    AMP_FULL,
    AMP_FULLOUT,
    AMP_WIDEST,
    AMP_FOLLOW,
    AMP_ANY,
    AMP_NONE
} AmpClass;
extern const char *const amp_class_text[AMP_NONE + 1]; /* "low", "full", ... */

extern const char *const factors_text[AMPC_NFACTORS]; /* "fp32", "tf32", ... */

/* The rule of torch.autocast for an op: column torch of ops.def. */
typedef enum TorchRule {
    TORCH_LOW,
    TORCH_WIDE,
    TORCH_RESULT,
    TORCH_PROMOTE,
    TORCH_FIRST
} TorchRule;
extern const char *const torch_rule_text[TORCH_FIRST + 1]; /* "low", ... */

typedef enum OpKind {
    KIND_ELEM,
    KIND_GEN,
    KIND_VIEW,
    KIND_MOVE,
    KIND_REDUCE,
    KIND_ANCHOR,
    KIND_LIB,
    KIND_COMPOSITE
} OpKind;

/* Cost per element; each is several times the previous one. */
typedef enum OpCost { COST_CHEAP, COST_DIVIDE, COST_LONG, COST_SLOW } OpCost;

/* How a reduction combines the values of its expression. */
typedef enum OpFold {
    FOLD_NONE,
    FOLD_SUM,
    FOLD_PROD,
    FOLD_MAX,
    FOLD_MIN
} OpFold;

/* ---- attributes ---------------------------------------------------------- */

/* Attribute keys; keys for attributes of functions follow the keys of the table
   (attr_key). */
typedef enum AttrKey {
#define ATTR(name, kind, dflt) AK_##name,
#include "ir/op/ops.def"
    NUM_ATTRS
} AttrKey;

typedef enum AttrKind {
    ATTR_INT,
    ATTR_FLOAT,
    ATTR_INTS,
    ATTR_STR,
    ATTR_FLAG = ATTR_INT
} AttrKind;

typedef struct AttrInfo {
    const char *text;
    AttrKind kind;
    bool flag;          /* an INT that is 0 or 1                            */
    double number;      /* default of an INT or FLOAT                       */
    const char *string; /* of a STR                                         */
} AttrInfo;
const AttrInfo *attr_get(AttrKey k);
/* The key for a name and kind; it is created if new. */
AttrKey attr_key(const char *name, AttrKind kind);

typedef struct Attr {
    AttrKey key;
    union {
        int64_t i;
        double f;
        Str s;
        struct {
            const int64_t *v;
            int n;
        } ints;
    } u;
} Attr;

/* Convenience makers for attribute lists in C code. */
static inline Attr attr_i(AttrKey k, int64_t v) {
    Attr a = {.key = k, .u = {.i = v}};
    return a;
}
static inline Attr attr_f(AttrKey k, double v) {
    Attr a = {.key = k, .u = {.f = v}};
    return a;
}
static inline Attr attr_s(AttrKey k, const char *v) {
    Attr a = {.key = k, .u = {.s = intern(v)}};
    return a;
}
/* An attribute of a function, by name. */
static inline Attr attr_named_i(const char *name, int64_t v) {
    return attr_i(attr_key(name, ATTR_INT), v);
}
static inline Attr attr_named_f(const char *name, double v) {
    return attr_f(attr_key(name, ATTR_FLOAT), v);
}
static inline Attr attr_v(AttrKey k, const int64_t *v, int n) {
    Attr a = {.key = k, .u = {.ints = {v, n}}};
    return a;
}

/* ---- the table ----------------------------------------------------------- */

enum { MAX_OP_ATTRS = 16 };

struct TypeCtx;
struct Fn;

/* What a node calls: an op, or with OP_CALL a function (ir/fn/fn.h). */
typedef struct Callee {
    OpCode op;
    const struct Fn *fn;
} Callee;
typedef Status TypeRule(struct TypeCtx *cx);
#define OP(E, text, imin, imax, omin, omax, attrs, type, cls, torch, grad,     \
           kind, cost, eval, lower, expr)                                      \
    TypeRule ty_##type; /* op_type.c, op_type_nn.c */
#include "ir/op/ops.def"

typedef struct OpInfo {
    const char *text;
    int in_min, in_max, out_min, out_max;
    AttrKey attrs[MAX_OP_ATTRS]; /* in table order */
    int nattr;
    AmpClass amp;
    TorchRule torch;
    OpKind kind;
    OpCost cost;
    OpFold fold; /* REDUCE                                                  */
    const char *type_text, *grad_text; /* rule names, for --list-ops */
    const char *expr;                  /* text of the expression */
    TypeRule *type;
    const struct CallRules *call; /* of a function; NULL: an op (rule.h) */
} OpInfo;
extern const OpInfo op_info[NUM_OPS];
typedef enum OpSelects { SELECTS_NONE, SELECTS_SAME, SELECTS_SIGN } OpSelects;
extern const OpSelects op_selects[NUM_OPS];
/* Rows LEAVES_OUT of ops.def. */
typedef enum OpLeaves {
    LEAVES_NONE,
    LEAVES_ELEMENTS = 1,
    LEAVES_PARTS = 2
} OpLeaves;
extern const OpLeaves op_leaves_out[NUM_OPS];
extern const bool op_steep[NUM_OPS];
/* Rows LOW of ops.def. */
typedef struct OpLow {
    double insts; /* 0: no such function */
    bool near_one;
} OpLow;
extern const OpLow op_low[NUM_OPS];
/* Rows CODED of ops.def. */
typedef enum OpCoded {
    CODED_SMOOTH,
    CODED_JUMPS,
    CODED_SIGN,
    CODED_KEEPS,
    CODED_LOSES
} OpCoded;
extern const OpCoded op_coded[NUM_OPS];

/* Rows NUMERIC of ops.def; zero for ops of other kinds than ELEM. */
typedef struct OpNumeric {
    double insts;               /* 0: the number follows from its cost */
    bool grows;                 /* relative errors may */
    const char *stores, *reads; /* why the result, or the operand, is not
                                   stored in a 16-bit type; NULL: it may be */
    bool leaves_short_range;
    bool folds;
} OpNumeric;
extern const OpNumeric op_numeric[NUM_OPS];

/* Rows BOUND of ops.def. */
typedef enum OpBound {
    BOUND_ANYTHING,
    BOUND_UNIT,
    BOUND_SIGNED,
    BOUND_FIRST,
    BOUND_ALL,
    BOUND_CHOICE,
    BOUND_EXP,
    BOUND_POSITIVE,
    BOUND_CLIP,
    BOUND_NEGATIVE,
    BOUND_MAGNITUDE,
    BOUND_INVERSE,
    BOUND_ROOT,
    BOUND_INVERSE_ROOT,
    BOUND_SUM_OF_ALL,
    BOUND_SUM,
    BOUND_DIFFERENCE,
    BOUND_PRODUCT,
    BOUND_QUOTIENT,
    BOUND_LEAST,
    BOUND_MOST
} OpBound;
extern const OpBound op_bound[NUM_OPS];

/* Rows GROWTH of ops.def. */
typedef enum OpGrowth {
    GROWTH_MORE,
    GROWTH_NONE,
    GROWTH_SAME,
    GROWTH_SUM,
    GROWTH_QUOTIENT,
    GROWTH_ROOT,
    GROWTH_CHOICE,
    GROWTH_SIGN
} OpGrowth;
extern const OpGrowth op_growth[NUM_OPS];
const OpInfo *callee_info(Callee c);
static inline Callee callee_op(OpCode op) {
    Callee c = {op, NULL};
    return c;
}
/* Ranks exchange the numbers of such a node. */
static inline bool op_of_ranks(OpCode op) {
    return op == OP_RANK_SUM || op == OP_RANK_MAX;
}
bool op_from_text(const char *s, size_t n, OpCode *out);
bool info_takes(const OpInfo *info, AttrKey k);

/* Attention's mask for operands q and v (as matrices): matrix b of the
   scores uses matrix b / div % mod of the mask. false: the shapes do not
   fit. */
bool attend_mask(const Type *q, const Type *v, const Type *mask, int64_t *div,
                 int64_t *mod);

#endif
