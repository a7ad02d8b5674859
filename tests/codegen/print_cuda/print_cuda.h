/* SPDX-License-Identifier: Apache-2.0 */
/* print_cuda.h: for print_cuda_test.c and the files of folder print_cuda. */
#ifndef AMPC_TESTS_CODEGEN_PRINT_CUDA_PRINT_CUDA_H
#define AMPC_TESTS_CODEGEN_PRINT_CUDA_PRINT_CUDA_H

#include "codegen/cuda/cuda.h"
#include "ir/eval/evaluate.h"
#include "tests/support/cpu_levels.h"
#include "tests/support/simulate.h"

#define POINT(in, nodes)                                                       \
    "graph g(" in ") { group point { " nodes " } return %y }"
#define ROW(in, nodes, out)                                                    \
    "graph g(" in ") { group row { " nodes " } return " out " }"
#define ANCHOR(in, nodes, out)                                                 \
    "graph g(" in ") { group anchor { " nodes " } return " out " }"
#define POINT_ON_CUDA(in, nodes, out)                                          \
    "graph g(" in ") on cuda { group point { " nodes " } return " out " }"
/* Codes %c in both layouts, %y is the transposed one. */
#define TURNED(kind, in, perm, turned, nodes, out)                             \
    "graph g(" in ") on cuda { group " kind " { " nodes                        \
    " %y = transpose %c {perm=" perm "} : " turned " } return %y" out " }"

/* Codes and scales of blocks of %x, with that many columns; `lines` and
   `turned` are the types of the codes, `scales` and `down` those of the scales.
 */
#define BLOCKS(kind, in, columns, nodes, lines, scales, turned, down, out)     \
    "graph g(" in ") on cuda { group " kind " { " nodes                        \
    " %r = block_codes %x {columns=" columns "} : f8e4m3" lines                \
    " %s = block_scales %x {columns=" columns "} : e8m0" scales                \
    " %c = block_codes %x {columns=" columns ", down=1} : f8e4m3" turned       \
    " %t = block_scales %x {columns=" columns ", down=1} : e8m0" down          \
    " } return %r, %s, %c, %t" out " }"

/* %f: 0, among the least and largest numbers, beyond them, NaN, or a factor of
   blocks whose largest number is 448, or 450; by %b, from -4 to 3. */
#define EXTREMES(dim)                                                          \
    "%k = equal %b, -4.0 %l = equal %b, -3.0 %m = equal %b, -2.0 "             \
    "%n = equal %b, -1.0 %o = equal %b, 0.0 %p = equal %b, 1.0 "               \
    "%q = equal %b, 2.0 %g = where %q, 112.5, 1e-39 : f32" dim                 \
    " %h = where %p, 112.0, %g : f32" dim " %i = where %o, nan, %h : f32" dim  \
    " %j = where %n, 3e38, %i : f32" dim " %d = where %m, 8e37, %j : f32" dim  \
    " %e = where %l, 3e-38, %d : f32" dim " %f = where %k, 0.0, %e : f32" dim  \
    " "

extern const char *const cuda_graphs[];

extern const int cuda_ngraphs;

enum { MOST_GRAPHS = 128 };

typedef struct Subject {
    const char *text;
    Graph *g;
    LoweredStep step;
    EvalTensor **in; /* by value */
    void **data;     /* by value: a block of exactly its size, from malloc */
} Subject;

typedef struct Suite {
    Arena *a;
    KernelSet *ks;
    Subject s[MOST_GRAPHS];
    int n;
} Suite;

uint32_t random_bits(void);
void *block_new(size_t n);
void subject_load(Subject *s, Arena *a);

/* For its text only. */
Suite suite_lowered(const char *const *text, int n);

Suite suite_new(const char *const *text, int n);
void suite_free(Suite *x);
StrBuf suite_text(const Suite *x);
SimTwin *twin_of_text(StrBuf sb);
SimTwin *twin_of(const Suite *x);

typedef struct Args {
    void *value[40], *slot[40];
    int64_t number;
    int n;
} Args;

void add_arg(Args *p, void *value);
void cuda_launch(const Subject *s, SimTwin *t, char kind, const Kernel *k,
                 const char *suffix, CudaShape shape, Args *p);

/* Row of the table; returns the first block of the next row. */
uint64_t put_row(const Subject *s, uint64_t *row, uint64_t first);

/* Runs n steps of one kernel in one launch. */
void run_many(const Subject *s, int n, SimTwin *t);

void run_kernel(const Subject *s, SimTwin *t);

/* Compares the outputs, then overwrites them. */
void check_outputs(Subject *s, Arena *a, const Evaluator *e);

Evaluator *cuda_interpret(Subject *s, Arena *a);

#endif
