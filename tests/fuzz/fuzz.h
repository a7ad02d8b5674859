/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz.h: runs everything that reads bytes on changed inputs.

   A target (a row of fuzz_targets.def) is a function of bytes that must neither
   crash, hang, end the process nor break a rule of its own (fuzz_check).  Seeds
   and kept cases are executed, then changed copies of them without end, in a
   child process, many to a process; what reaches new code is a seed from then
   on, where the build counts that (bazel --config=fuzz), and what takes many
   steps is changed less often.  Without it the order of executions depends on
   nothing but the seed.

   fuzz.c    the loop and its child;  change.c  bytes to other bytes
   cover.c   which code ran, which numbers were compared
   target_*.c  the targets                                                   */
#ifndef AMPC_TESTS_FUZZ_FUZZ_H
#define AMPC_TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FUZZ_MOST = 1 << 16 }; /* bytes of an input */

typedef struct FuzzTarget {
    const char *name, *reads;
    void (*run)(const uint8_t *p, size_t n);
    void (*seeds)(void);               /* calls fuzz_seed, fuzz_seed_files    */
    const char *const *(*words)(void); /* a dictionary, NULL-terminated      */
    /* Changes the input in place; returns the new size, 0: no result. May be
       NULL. */
    size_t (*mutate)(uint8_t *p, size_t n);
    void (*fix)(uint8_t *p, size_t n); /* may be NULL */
    int runs;
} FuzzTarget;

extern const FuzzTarget fuzz_targets[];
extern const int fuzz_target_count;

typedef struct FuzzResult {
    uint64_t runs, taken, seeds, kept, reached, exhausted;
    double seconds, cpu; /* elapsed and processor seconds */
    char finding[512];   /* description of the finding; empty: none */
    char file[512];      /* the input that did it */
} FuzzResult;

/* Ends after `seconds` or `runs` executions (0: no such limit), or with the
   first finding, whose input is written to `folder`, which must exist. Seeds
   are below `root`, the repository's root. */
FuzzResult fuzz_run(const FuzzTarget *t, double seconds, uint64_t runs,
                    uint64_t seed, const char *root, const char *folder);
/* Runs one input `times` times in this process, which may print more. */
void fuzz_replay(const FuzzTarget *t, const uint8_t *p, size_t n, int times);

extern bool fuzz_replaying;

/* ---- the rows' functions ------------------------------------------------- */

#define FUZZ(name, mutate, fix, runs, what)                                    \
    void name##_run(const uint8_t *p, size_t n);                               \
    void name##_seeds(void);                                                   \
    const char *const *name##_words(void);
#include "tests/fuzz/fuzz_targets.def"
#undef FUZZ
size_t onnx_mutate(uint8_t *p, size_t n);
size_t graph_mutate(uint8_t *p, size_t n);
void checkpoint_fix(uint8_t *p, size_t n);
void module_fix(uint8_t *p, size_t n);
void cublaslt_fix(uint8_t *p, size_t n);

/* ---- for targets --------------------------------------------------------- */

void fuzz_seed(const void *p, size_t n);
const char *fuzz_root(void); /* the repository's */
/* Files below a folder of the repository, by the ending of their names. */
void fuzz_seed_files(const char *folder, const char *suffix);
/* Calls `take` with each file, which makes seeds from it; a zero byte
   follows the data. */
void fuzz_each_file(const char *folder, const char *suffix,
                    void (*take)(const void *p, size_t n));
/* A broken rule is a finding. */
void fuzz_check(bool ok, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Counts this execution's input as valid to the end. */
void fuzz_taken(void);
/* Writes the bytes as a file in a folder of this process. */
const char *fuzz_file(const char *name, const void *p, size_t n);
/* The inputs known so far. */
size_t fuzz_inputs(void);
const uint8_t *fuzz_input(size_t i, size_t *n);

uint64_t fuzz_random(void);
size_t fuzz_below(size_t n); /* 0 for n = 0 */
int64_t fuzz_odd_number(void);

/* ---- inside -------------------------------------------------------------- */

/* change.c: some random changes; never longer than FUZZ_MOST. */
size_t fuzz_change(uint8_t *p, size_t n, const char *const *words);

/* cover.c */
void cover_start(void);
/* Ends a count; returns whether `seen` (COVER_PLACES bytes) lacked some of
   it; *work: number of blocks that ran. */
enum { COVER_PLACES = 1 << 16 };
bool cover_end(uint8_t *seen, uint64_t *reached, uint64_t *work);
/* Two numbers that a recent execution compared; false: none known. */
bool cover_compared(uint64_t *a, uint64_t *b);

#endif
