/* SPDX-License-Identifier: Apache-2.0 */
/* init.h: initial values of variables and constants. */
#ifndef AMPC_IR_GRAPH_INIT_H
#define AMPC_IR_GRAPH_INIT_H

#include "ir/ir.h"

typedef struct Init {
    Tensor *tensor; /* NULL: draw, or fill */
    double fill;
    Draw draw;
    Str text; /* for init_text; may be NULL */
} Init;

typedef enum Generator { GEN_NORMAL, GEN_UNIFORM, GEN_DATA } Generator;
/* "normal", .., and how many numbers follow the seed. */
extern const char *const generator_text[GEN_DATA + 1];
extern const int generator_numbers[GEN_DATA + 1];
/* `normal(seed, range[0])` and so on (data_text.c). */
void init_draw(Generator gen, uint64_t seed, const double *range, Init *init);

#endif
