/* SPDX-License-Identifier: Apache-2.0 */
/* op.c: the op table, expanded.                                            */
#include "ir/op/op.h"

#include <math.h>
#include <string.h>

#define A0             .attrs = {0}, .nattr = 0
#define A1(a)          .attrs = {AK_##a}, .nattr = 1
#define A2(a, b)       .attrs = {AK_##a, AK_##b}, .nattr = 2
#define A3(a, b, c)    .attrs = {AK_##a, AK_##b, AK_##c}, .nattr = 3
#define A4(a, b, c, d) .attrs = {AK_##a, AK_##b, AK_##c, AK_##d}, .nattr = 4
#define A5(a, b, c, d, e)                                                      \
    .attrs = {AK_##a, AK_##b, AK_##c, AK_##d, AK_##e}, .nattr = 5
#define A6(a, b, c, d, e, f)                                                   \
    .attrs = {AK_##a, AK_##b, AK_##c, AK_##d, AK_##e, AK_##f}, .nattr = 6
#define A7(a, b, c, d, e, f, g)                                                \
    .attrs = {AK_##a, AK_##b, AK_##c, AK_##d, AK_##e, AK_##f, AK_##g},         \
    .nattr = 7
#define A8(a, b, c, d, e, f, g, h)                                             \
    .attrs = {AK_##a, AK_##b, AK_##c, AK_##d, AK_##e, AK_##f, AK_##g, AK_##h}, \
    .nattr = 8

#define FOLD_ELEM(lower)      FOLD_NONE
#define FOLD_GEN(lower)       FOLD_NONE
#define FOLD_VIEW(lower)      FOLD_NONE
#define FOLD_MOVE(lower)      FOLD_NONE
#define FOLD_REDUCE(lower)    FOLD_##lower
#define FOLD_ANCHOR(lower)    FOLD_NONE
#define FOLD_LIB(lower)       FOLD_NONE
#define FOLD_COMPOSITE(lower) FOLD_NONE

const char *const amp_class_text[AMP_NONE + 1] = {
    "low", "full", "fullout", "widest", "follow", "any", "none"};

const char *const factors_text[AMPC_NFACTORS] = {"fp32", "tf32", "bf16"};

const char *const torch_rule_text[TORCH_FIRST + 1] = {"low", "wide", "result",
                                                      "promote", "first"};

const OpInfo op_info[NUM_OPS] = {
#define OP(E, t, imin, imax, omin, omax, alist, trule, cls, torch_, grad, knd, \
           cst, eval, lower, ex)                                               \
    [OP_##E] = {.text = t,                                                     \
                .in_min = imin,                                                \
                .in_max = imax,                                                \
                .out_min = omin,                                               \
                .out_max = omax,                                               \
                alist,                                                         \
                .amp = AMP_##cls,                                              \
                .torch = TORCH_##torch_,                                       \
                .kind = KIND_##knd,                                            \
                .cost = COST_##cst,                                            \
                .fold = FOLD_##knd(lower),                                     \
                .type_text = #trule,                                           \
                .grad_text = #grad,                                            \
                .expr = #ex,                                                   \
                .type = ty_##trule},
#include "ir/op/ops.def"
};

const OpBound op_bound[NUM_OPS] = {
#define BOUND(E, how) [OP_##E] = BOUND_##how,
#include "ir/op/ops.def"
};

const OpGrowth op_growth[NUM_OPS] = {
#define GROWTH(E, how) [OP_##E] = GROWTH_##how,
#include "ir/op/ops.def"
};

const OpSelects op_selects[NUM_OPS] = {
#define SELECTS(E, how) [OP_##E] = SELECTS_##how,
#include "ir/op/ops.def"
};

/* ---- numbers ------------------------------------------------------------- */

enum {
#define NUMERIC(E, ...) NUMERIC_##E,
#include "ir/op/ops.def"
    NUM_NUMERIC
};

/* A compiler error "NUMERIC_X undeclared" means: op X of kind ELEM has no
   row NUMERIC in ops.def. */
#define NUMERIC_OF_ELEM(E)                                                     \
    _Static_assert(NUMERIC_##E < NUM_NUMERIC, "ops.def: NUMERIC(" #E ")");
#define NUMERIC_OF_GEN(E)
#define NUMERIC_OF_VIEW(E)
#define NUMERIC_OF_MOVE(E)
#define NUMERIC_OF_REDUCE(E)
#define NUMERIC_OF_ANCHOR(E)
#define NUMERIC_OF_LIB(E)
#define NUMERIC_OF_COMPOSITE(E)
#define OP(E, t, imin, imax, omin, omax, alist, trule, cls, torch_, grad, knd, \
           ...)                                                                \
    NUMERIC_OF_##knd(E)
#include "ir/op/ops.def"

#define BY_COST      0
#define ERROR_SAME   false
#define ERROR_LARGER true
#define STORES_ANY   NULL
#define STORES_F32   "exp or log"
#define READS_ANY    NULL
#define READS_ANGLE  "an angle"
#define READS_LOG    "exp or log"
#define RANGE_STAYS  false
#define RANGE_LEAVES true
#define KNOWN_NEVER  false
#define KNOWN_FOLDS  true

const OpNumeric op_numeric[NUM_OPS] = {
#define NUMERIC(E, insts, error, stores, reads, range, known)                  \
    [OP_##E] = {insts,         ERROR_##error, STORES_##stores,                 \
                READS_##reads, RANGE_##range, KNOWN_##known},
#include "ir/op/ops.def"
};

const OpLeaves op_leaves_out[NUM_OPS] = {
#define LEAVES_OUT(E, what) [OP_##E] = LEAVES_##what,
#include "ir/op/ops.def"
};
#define NEAR_ONE true
#define NEAR_NOT false
const OpLow op_low[NUM_OPS] = {
#define LOW(E, insts, near) [OP_##E] = {insts, NEAR_##near},
#include "ir/op/ops.def"
};
const bool op_steep[NUM_OPS] = {
#define STEEP(E) [OP_##E] = true,
#include "ir/op/ops.def"
};
const OpCoded op_coded[NUM_OPS] = {
#define CODED(E, how) [OP_##E] = CODED_##how,
#include "ir/op/ops.def"
};

bool op_from_text(const char *s, size_t n, OpCode *out) {
    for (int op = 0; op < NUM_OPS; op++) {
        const char *t = op_info[op].text;
        if (*t != *s || strncmp(t, s, n) != 0 || t[n]) continue;
        *out = (OpCode)op;
        return true;
    }
    return false;
}
