/* SPDX-License-Identifier: Apache-2.0 */
/* lib.c: lib.def as data.  It is a part of the runtime and of the compiler. */
#include "runtime/program/lib.h"

#include <stddef.h>

#define COUNT(a) (uint32_t)(sizeof(a) / sizeof *(a))

#define NUMBER(f)       {#f, NULL, 1},
#define SPATIAL(f)      {#f, NULL, 3},
#define RANKS(f)        {#f, NULL, AMPC_MAX_RANK},
#define DTYPE(f, T)     {#f, #T, 1},
#define PARAMS(S, list) static const LibField fields_##S[] = {list};
#include "runtime/program/lib.def"

const LibInfo *lib_info(uint32_t lib) {
    switch (lib) {
#define OPERAND(role, x, f, set)                                               \
    {#x, LIB_ROLE_##role, LIB_##set, offsetof(P, f) / sizeof(int64_t)},
#define LIB(E, text, S, list, shape, scratch, tiles, cuda, threads)            \
    case PLAN_LIB_##E: {                                                       \
        typedef S P;                                                           \
        static const LibOperand operands[] = {list};                           \
        static const LibInfo info = {.name = #text,                            \
                                     .plan_name = "PLAN_LIB_" #E,              \
                                     .npar = sizeof(S) / sizeof(int64_t),      \
                                     .noperand = COUNT(operands),              \
                                     .nfield = COUNT(fields_##S),              \
                                     .operands = operands,                     \
                                     .fields = fields_##S};                    \
        return &info;                                                          \
    }
#include "runtime/program/lib.def"
#undef OPERAND
    default: return NULL;
    }
}
