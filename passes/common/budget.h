/* SPDX-License-Identifier: Apache-2.0 */
/* budget.h: the fewest bytes whose error stays within a limit.

   Variables are low or high (mincut.h).  A term costs bytes and adds to errors;
   the sum of each error is limited. For a price of each error the cheapest
   assignment of bytes + price * error is a minimum cut and exact. The prices
   are found by bisection.  An assignment that keeps the limits may take more
   bytes than the best one, because not every assignment is the cheapest of some
   price: the difference is at most `bytes - bound`.        */
#ifndef AMPC_PASSES_COMMON_BUDGET_H
#define AMPC_PASSES_COMMON_BUDGET_H

#include "passes/options.h"

typedef enum TermKind {
    TERM_LOW,      /* if x is low */
    TERM_HIGH,     /* if x is high */
    TERM_LOW_HIGH, /* if x is low and y is high */
    TERM_IMPLIES,  /* if x is low, y must be low: no cost */
    TERM_IS_LOW,   /* x must be low, .. */
    TERM_IS_HIGH   /* .. or high */
} TermKind;

typedef struct Term {
    TermKind kind;
    int x, y;
    int64_t bytes, saved; /* bytes of a step; bytes kept for backward, which
                             decide between equal costs */
    double error[NUM_ERRORS];
} Term;

typedef struct Choice {
    int variables;
    VEC(Term) terms;
    double limit[NUM_ERRORS]; /* infinity: none */
} Choice;

typedef struct Chosen {
    bool *low;
    int64_t bytes;
    double error[NUM_ERRORS], price[NUM_ERRORS]; /* bytes per unit of error */
    double bound; /* no assignment within the limits takes fewer bytes */
    int cuts;     /* that were solved */
} Chosen;

void choice_add(Choice *c, Arena *a, Term t);
/* The cheapest assignment of bytes + price * error. */
Chosen choice_at(const Choice *c, const double *price, Arena *a);
/* The assignment with the fewest bytes found within the limits; false: no
   assignment keeps them, and *best has the least error. */
bool choice_within(const Choice *c, Arena *a, Chosen *best);

/* ---- what was measured --------------------------------------------------- */

/* The predicted root mean square times this number must be within the limit.
   A loss is one number with a nearly normal error, which exceeds three times
   its root mean square once in 370 cases; the error of a gradient is the
   norm of many numbers and hardly varies. */
extern const double error_margin[NUM_ERRORS];

/* Squares of the relative errors that rounding one value, or one operand of
   a product, adds; means over the repetitions. */
typedef struct ErrorOf {
    uint64_t key;
    double square[NUM_ERRORS];
    int64_t count; /* elements; the measured batch may be smaller */
} ErrorOf;

typedef struct Errors {
    VEC(ErrorOf) of;         /* sorted by key */
    double fp32[NUM_ERRORS]; /* relative error of the step in fp32 */
    /* Runs an objective's step with the roundings of these keys: root mean
       squares of the relative errors. */
    int repetitions; /* of the last simulate() */
    int64_t part;    /* batch size of the measurement; 0: the model's own */
    Status (*simulate)(void *ctx, Str objective, const uint64_t *on, int n,
                       double *error);
    void *ctx;
    double price[NUM_ERRORS],
        kinks; /* results for the last program that trains */
    /* the first program that trains */
    bool placed;
    double predicted[NUM_ERRORS]; /* relative, root mean square */
    int64_t bytes;
    double bound;
    int wide, products; /* number of fp32 products, of all products */
} Errors;

void errors_sort(Errors *e);
/* NULL: not measured. */
const ErrorOf *errors_find(const Errors *e, uint64_t key);

/* Keys that identify values by their computation: equal in all programs of a
   module and in the same model for another batch. */
uint64_t *value_keys(const Graph *g, Str objective, Arena *a);
/* The key for an operand of a matrix product. */
uint64_t operand_key(uint64_t product, int operand);
/* The key for a value by its name and op: for programs without gradients. */
uint64_t name_key(const Graph *g, Str objective, ValueId v);

#endif
