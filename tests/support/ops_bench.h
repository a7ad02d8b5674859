/* SPDX-License-Identifier: Apache-2.0 */
/* ops_bench.h: every graph of tests/ops, in every dtype, with its gradients, as
   disjoint parts of one program "predict", and random data for it, so that one
   compilation tests hundreds of graphs.  The files: see ops_test.c.          */
#ifndef AMPC_TESTS_SUPPORT_OPS_BENCH_H
#define AMPC_TESTS_SUPPORT_OPS_BENCH_H

#include "ir/eval/evaluate.h"
#include "ir/fn/fn.h"
#include "ir/ir.h"
#include "tests/support/compiled.h"

typedef struct OpsRange {
    char name[64];
    double lo, hi;
} OpsRange;

typedef struct OpsBench {
    Arena *a;
    Module *m;
    Graph *all;           /* program "predict" */
    VEC(OpsRange) ranges; /* ranges of its inputs, in order */
    bool seen[NUM_OPS], differentiated[NUM_OPS];
    bool *fn_seen, *fn_differentiated; /* [fn_std_count()], as in std.amp */
    int instances;
    const char *without; /* no instances of this dtype; NULL: of all */
    bool in_turn;        /* each graph in one dtype */
} OpsBench;

typedef struct OpsData {
    ampc_input *in;
    ampc_output *out;
    int nin, nout;
} OpsData;

/* A file's text in that dtype, or in the first dtype that the file lists;
   the caller frees it. */
char *ops_with_dtype(const char *text, const char *dtype);
OpsBench ops_bench_new(void);
OpsBench ops_bench_without(const char *dtype);
/* Each graph in one of its dtypes, the next graph in the next one. */
OpsBench ops_bench_in_turn(void);
/* The glob in AMPC_OPS limits the files, for someone who adds an op
   (--test_env=AMPC_OPS='soft '); NULL: all. */
const char *ops_bench_only(void); /* arena_free(b.a) ends it */
/* The program's text, in b's arena. */
const char *ops_text(const OpsBench *b);
/* Random inputs, also bound in the evaluator (may be NULL), and room for the
   outputs. */
OpsData ops_data_new(OpsBench *b, Evaluator *e);
/* Runs "predict" and reads all outputs into d. */
void ops_run(const Compiled *c, ampc_session *s, OpsData *d);
/* Runs it in a new session with this number of threads. */
void ops_run_with(const Compiled *c, OpsData *d, int threads);
/* The interpreter's outputs, which passes over the graph must not change. */
const EvalTensor **ops_wanted(const OpsBench *b, const Evaluator *e);
void ops_compare(const OpsBench *b, const EvalTensor **want, const OpsData *d);
/* All outputs' bytes one after the other, for free(). */
char *ops_all_bytes(const OpsData *d, size_t *n);
void ops_check_same_bits(const OpsData *d, const char *want, const char *how);
/* The bytes of `all`'s outputs that d has, one after the other, for free(). */
char *ops_bytes_of(const OpsData *all, const OpsData *d);

#endif
