/* SPDX-License-Identifier: Apache-2.0 */
/* eval_int.c: the table's expressions over integers.  They compute in 128 bits,
   so that nothing overflows before the result wraps to its dtype.           */
#include "ir/eval/eval_impl.h"

__extension__ typedef __int128 Wide;

static Wide i_div(Wide a, Wide b, const char **err) {
    if (b == 0) {
        *err = "integer division by zero";
        return 0;
    }
    return a / b;
}

/* The remainder has the divisor's sign. */
static Wide i_mod(Wide a, Wide b, const char **err) {
    if (b == 0) {
        *err = "integer remainder of division by zero";
        return 0;
    }
    Wide r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static Wide i_pow(Wide a, Wide b, const char **err) {
    if (b < 0) {
        if (a == 0) *err = "0 raised to a negative power";
        return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    }
    uint64_t r = 1, base = (uint64_t)a; /* wraps like the dtype */
    for (; b > 0; b /= 2, base *= base)
        if (b % 2) r *= base;
    return (int64_t)r;
}

/* Type rules keep integers away from these. */
static Wide float_only(void) {
    ASSERT(!"float op on integers");
    return 0;
}

/* Evaluates rows by their own functions. */
#define FN(NAME, f64, integer, ulps)                                           \
    static Wide NAME(Wide x) {                                                 \
        (void)x;                                                               \
        return integer;                                                        \
    }
#include "ir/op/ops.def"

#define ISNAN(x)      0
#define ISINF(x)      0
#define ISFINITE(x)   1
#define DIV(x, y)     i_div(x, y, err)
#define MOD(x, y)     i_mod(x, y, err)
#define POW(x, y)     i_pow(x, y, err)
#define BIT_AND(x, y) ((x) & (y))

typedef Wide ElemI(Wide a, Wide b, Wide c, Wide P0, Wide P1, const char **err);

#define OP(E, text, imin, imax, omin, omax, attrs, type, cls, torch, grad,     \
           kind, cost, eval, lower, expr)                                      \
    EXPR_##kind(static Wide i_##E(Wide a, Wide b, Wide c, Wide P0, Wide P1,    \
                                  const char **err) {                          \
        (void)a, (void)b, (void)c, (void)P0, (void)P1, (void)err;              \
        return expr;                                                           \
    })
#include "ir/op/ops.def"

static ElemI *const elem_i[NUM_OPS] = {
#define OP(E, text, imin, imax, omin, omax, attrs, type, cls, torch, grad,     \
           kind, cost, eval, lower, expr)                                      \
    EXPR_##kind([OP_##E] = i_##E, )
#include "ir/op/ops.def"
};

int64_t eval_expr_i(OpCode op, const EvalInts *in, const char **err) {
    return (int64_t)elem_i[op](in->a, in->b, in->c, in->P0, in->P1, err);
}
