/* SPDX-License-Identifier: Apache-2.0 */
/* compiled.h: models compiled by the `ampc` binary and used through ampc.h,
   like a user does; and the tensors of a safetensors file, read
   independently. */
#ifndef AMPC_TESTS_SUPPORT_COMPILED_H
#define AMPC_TESTS_SUPPORT_COMPILED_H

#include "runtime/ampc.h"
#include "tests/harness.h"

typedef struct Compiled {
    char path[512];     /* of the module */
    char cuda_dir[512]; /* compile_file_cuda: folder of the emitted CUDA text */
    void *handle;
    const ampc_api *api;
} Compiled;

/* Compiles a file (absolute path) with those options into the test's folder;
   a failure ends the test case with ampc's messages.  Without --target, only
   for this machine's CPU level. --quick saves a sixth to a third of a test's
   processor time and changes no bit (ops_test); "optimised": without it. */
Compiled compile_file(const char *model, const char *options);
Compiled compile_file_optimised(const char *model, const char *options);
#define ALL_LEVELS "--target cpu " /* code for every CPU level */
/* The same for the targets that ampc chooses. */
Compiled compile_defaults(const char *model, const char *options);
/* Compiles IR text in the same way. */
Compiled compile_text(const char *text, const char *options);
Compiled compile_text_optimised(const char *text, const char *options);
/* `from` with a dtype in place of each $T. */
void text_in_dtype(char *text, size_t size, const char *from,
                   const char *dtype);
/* With GPU code for `archs`, "cuda:sm_80,cuda:ptx" (NULL: the default ones),
   and code for one CPU level; without NVRTC the test case is skipped. */
Compiled compile_file_cuda(const char *model, const char *options,
                           const char *archs);
Compiled compile_text_cuda(const char *text, const char *options,
                           const char *archs);
/* PTX alone, for the simulator: ptxas would take three quarters of NVRTC's
   time. Kernels of changed graphs are compiled to cubins (changed_test.c). */
#define GPU_PTX "cuda:ptx"
/* This, and no code for a CPU. */
Compiled compile_file_gpu(const char *model, const char *options);
Compiled compile_text_gpu(const char *text, const char *options);
Compiled compile_file_gpu_optimised(const char *model, const char *options);
void require_nvrtc(void); /* else the test case is skipped */
/* The session will take its memory from guarded.h. */
void compiled_guarded(const Compiled *c, ampc_options *o);
/* With such memory. */
ampc_session *open_threads(const Compiled *c, int threads);
/* Sessions with such memory must be closed, and must have freed their memory.
 */
void compiled_close(Compiled *c);

/* Shorthands that end the test case with the session's message. */
ampc_metrics step_ok(const Compiled *c, ampc_session *s, const ampc_input *in,
                     size_t nin);
void read_var(const Compiled *c, ampc_session *s, const char *name, void *data,
              size_t bytes, ampc_dtype dtype);
void write_var(const Compiled *c, ampc_session *s, const char *name,
               const void *data, size_t bytes, ampc_dtype dtype);

/* Every variable of the kinds in `kinds` (a bit per ampc_kind), one after
   the other, except scalars of the scaler and counters (ampc. without a
   parameter): for comparing whole states. For free(). */
void *read_all(const Compiled *c, ampc_session *s, unsigned kinds,
               size_t *bytes);

/* ---- safetensors --------------------------------------------------------- */

typedef struct TraceTensor {
    char name[160];
    ampc_dtype dtype;
    int rank;
    long dim[8];
    const char *data; /* may be unaligned */
    size_t bytes;
} TraceTensor;

typedef struct Trace {
    char *file;
    TraceTensor *t;
    int n;
} Trace;
Trace trace_read(const char *path); /* a failure ends the test case */
void trace_free(Trace *t);
const TraceTensor *trace_find(const Trace *t, const char *name);
double trace_f64(const TraceTensor *t, long i); /* element of an F64 tensor */

#endif
