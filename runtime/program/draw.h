/* SPDX-License-Identifier: Apache-2.0 */
/* draw.h: random initial values, made where they are needed: a module keeps the
   recipe, not the numbers.

     normal(SEED, STD)      sum of 12 uniforms minus 6, times STD
     uniform(SEED, LO, HI)  LO + u (HI - LO)

   u of element i (row-major), draw k is splitmix64 of SEED and 12 i + k, 53
   bits: exact arithmetic, the same numbers on every machine.  Floating types
   of at most 32 bits round through fp32 to their own; integers round down.  */
#ifndef AMPC_DRAW_H
#define AMPC_DRAW_H

#include <math.h>
#include <stdint.h>

typedef enum DrawKind { DRAW_NONE, DRAW_NORMAL, DRAW_UNIFORM } DrawKind;

typedef struct Draw {
    uint32_t kind; /* DrawKind                                              */
    uint64_t seed;
    double a, b; /* STD, 0; LO, HI                                          */
} Draw;

/* splitmix64 */
static inline uint64_t draw_next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline double draw_uniform01(uint64_t seed, uint64_t i) {
    uint64_t at = seed * 0xd1342543de82ef95u + i * 0x9e3779b97f4a7c15u;
    return (double)(draw_next(&at) >> 11) * 0x1p-53;
}

/* Element i of integers, of floats of at most 32 bits, or of wider floats. */
typedef enum DrawType { DRAW_INTEGER, DRAW_FLOAT, DRAW_DOUBLE } DrawType;

static inline double draw_at(const Draw *d, DrawType type, uint64_t i) {
    double v = -6;
    if (d->kind == DRAW_UNIFORM) {
        v = d->a + (d->b - d->a) * draw_uniform01(d->seed, 12 * i);
    } else {
        for (uint64_t k = 0; k < 12; k++)
            v += draw_uniform01(d->seed, 12 * i + k);
        v *= d->a;
    }
    return type == DRAW_INTEGER ? floor(v)
           : type == DRAW_FLOAT ? (double)(float)v
                                : v;
}

#endif
