/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_cases.h: random operands in guarded memory, pools and a recording
   epilogue for the tests of the CPU routines. */
#ifndef AMPC_TESTS_SUPPORT_CPU_CASES_H
#define AMPC_TESTS_SUPPORT_CPU_CASES_H

#include "tests/support/cpu_levels.h"

extern uint64_t rng; /* the state of rnd */
uint32_t rnd(void);
int64_t rnd_in(int64_t lo, int64_t hi);
double rnd_value(void);
/* A floating-point dtype; only bf16 while only_bf16 is set. */
int64_t rnd_float(void);
extern int only_bf16;

size_t size_of(int64_t dtype);
/* Relative rounding error of a result of this dtype. */
double unit(int64_t dtype);
double array_get(const void *p, int64_t dtype, int64_t i);
void array_set(void *p, int64_t dtype, int64_t i, double x);
/* Bytes of ones (for floats: NaN) that nothing has written, directly before
   an inaccessible page; only block_free frees them. */
void *block(size_t bytes);
void block_free(void *p);
/* A block of exactly n elements. */
void *array(int64_t dtype, int64_t n);
double *zeros(int64_t n);
/* Checks that each element is close to the expected one, within floor_ and
   the rounding of dtype. */
void array_close(const char *what, const void *got, int64_t dtype,
                 const double *want, double floor_, int64_t n);

/* Above 4: v4 without vdpbf16ps, on machines that have it, and v4+amx, with
   the machine's tiles or an emulator's. */
int top_level(void);
const AmpcCpuLib *lib_of(int level);

/* Scratch memory of exactly that size, full of NaN. */
void *scratch_of(size_t bytes);
/* Checks that nothing after p's bytes was written; frees p. */
void scratch_check(void *p, size_t bytes);

extern const int thread_counts[3];
extern AmpcPool *pools[3];
void pools_open(void);
void pools_close(void);

/* out[batch][row][col] = acc; counts how often each was written. */
typedef struct Record {
    float *out;
    unsigned char *count;
    int64_t rows, cols;
    int inside;
} Record;

void record(void *const *buf, const void *table, const float *acc, int64_t ld,
            int64_t batch, int64_t row, int64_t col, int64_t rows,
            int64_t cols);
void record_check(const Record *r, int64_t n);

#endif
