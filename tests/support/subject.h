/* SPDX-License-Identifier: Apache-2.0 */
/* subject.h: a graph whose groups are lowered to kernels, printed as C,
   compiled, run, and compared with the interpreter.

   Every graph of a batch goes into one C file.  Kernels run all units at
   once; one unit at a time from the last to the first; and compiled for a
   higher ISA level if the machine has it, without fused multiply-adds
   (km_fma): the bytes must agree. */
#ifndef AMPC_TESTS_SUPPORT_SUBJECT_H
#define AMPC_TESTS_SUPPORT_SUBJECT_H

#include "codegen/codegen.h"
#include "codegen/kernel/kir.h"
#include "ir/eval/evaluate.h"
#include "ir/ir.h"

typedef struct Subject {
    const char *text;
    double ulps;  /* allowed ulps of the result's dtype; 0 = equal bits */
    double scale; /* magnitude of the sums' terms: smaller results are
                     measured relative to it */
    Arena *a;
    Graph *g;
    KernelSet *ks;
    KernelTexts *texts;
    LoweredStep *steps;
    int nstep;
    EvalTensor **in; /* inputs and variables, by value id */
    void **data;     /* data of roots, by value id */
} Subject;

/* The text's graph, lowered, with random inputs. */
void subject_begin(Subject *s);
void subject_end(Subject *s);
/* Runs its kernels in that library, printed as graph number `graph`; split:
   one unit at a time. */
void subject_run(Subject *s, void *lib, int graph, bool split);

/* Restores an input's or variable's numbers. */
void subject_load(Subject *s, ValueId v);

/* One stream of random numbers, with a start that a case sets. */
void random_start(uint64_t state);
uint32_t random_bits(void);

/* Compiles texts of kernels as a library. */
void *compile_source(const char *text, size_t n, const char *flags);
void check_batch(Subject *s, int n, const char *flags);
#define CHECK_GRAPHS(s, flags)                                                 \
    check_batch(s, (int)(sizeof(s) / sizeof *(s)), flags)

#endif
