/* SPDX-License-Identifier: Apache-2.0 */
/* levels.h: the CPU levels that a module has code for. */
#ifndef AMPC_CODEGEN_LEVELS_H
#define AMPC_CODEGEN_LEVELS_H

#include "passes/options.h"

/* One CPU level that the module has code for: a row of isa.def. */
typedef struct IsaLevel {
    int isa;             /* Target.isa and AmpcIsa                            */
    const char *name;    /* behind `cpu:`                                     */
    const char *prefix;  /* prefix of its kernels' names */
    const char *arch;    /* "x86_64"; NULL: any machine's */
    const char *vectors; /* the header with its vectors */
    const char *flags;   /* for the compiler, beside the common ones; NULL:
                            the kernels of the row with that prefix are used */
    bool source;         /* ISA_SOURCE: the module is written as C */
} IsaLevel;
extern const IsaLevel isa_levels[]; /* best first; ends with isa 0           */
/* Whether the options request that level; whether its kernels are compiled,
   for itself or for another level; the lowest of the latter. */
bool isa_wanted(const Options *opt, const IsaLevel *l);
bool isa_compiled(const Options *opt, const IsaLevel *l);
const IsaLevel *isa_least(const Options *opt);
/* The kind of processor that the module is for. */
const char *isa_arch(const Options *opt);
/* Whether `ampc` itself runs on such a processor. */
bool isa_is_here(const char *arch);
/* Refuses a module for several kinds of processors. */
Status isa_check(const Options *opt, Diag *d);
/* The level of a module that is written as C; NULL: the module is not
   written as C. */
const IsaLevel *isa_source(const Options *opt);

#endif
