/* SPDX-License-Identifier: Apache-2.0 */
/* simulate.h: the simulated GPU of tests/sim for a test.  Bazel builds its
   libraries, or this file does if they are not beside the test. */
#ifndef AMPC_TESTS_SUPPORT_SIMULATE_H
#define AMPC_TESTS_SUPPORT_SIMULATE_H

#include "tests/harness.h"
#include "tests/sim/sim.h"

/* The control functions, from libcuda_sim.so. */
typedef struct Sim {
    const char *path;     /* path of libcuda_sim.so, for AMPC_LIBCUDA */
    const char *cublaslt; /* path of libcublaslt_sim.so, for AMPC_LIBCUBLASLT */
    const char *nccl;     /* path of libnccl_sim.so, for AMPC_LIBNCCL */
    void *handle;
#define SIM_FUNCTIONS(X)                                                       \
    X(reset)                                                                   \
    X(fail)                                                                    \
    X(stats)                                                                   \
    X(calls)                                                                   \
    X(leaks) X(errors) X(twin_open) X(twin_close) X(run) X(seed) X(at_capture)
#define SIM_MEMBER(name) __typeof__(&sim_##name) name;
    SIM_FUNCTIONS(SIM_MEMBER)
#undef SIM_MEMBER
} Sim;

/* Loads it once per process; a failure ends the test case. */
const Sim *sim(void);

/* A copy of libcuda_sim.so that lacks one symbol; its path, valid until the
   next call. */
const char *sim_without(const char *symbol);

/* Runs fn in a separate process and returns its standard error (the caller
   frees it): faults and sanitizers may end the process. */
char *sim_last_words(void (*fn)(void *), void *arg);

/* Compiles DIR/unit<i>.cu into DIR/unit<i>.so for every i from 0, with the
   sanitizers of the test binary; headers are searched in DIR, runtime/cuda
   and runtime/cpu. Returns the number of units; an error ends the test case. */
int sim_build_twins(const char *dir);
/* From here on without optimisation: for many kernels on few numbers, where g++
   takes nearly all of the time. */
void sim_twins_compile_fast(void);
/* Builds one text in the same way, in a new folder (the caller frees its
   name). */
char *sim_build_text(const char *text);

#endif
