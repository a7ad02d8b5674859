/* SPDX-License-Identifier: Apache-2.0 */
/* sim.h: the simulated GPU (docs/internals/gpu.md), as tests and the cuBLASLt
   look-alike use it.

   libcuda_sim.so     the driver: exports the symbols of
                      runtime/cuda/driver.def and everything below but the
                      "building" part.  AMPC_LIBCUDA names it to the runtime.
   libcublaslt_sim.so cuBLASLt, linked with libcuda_sim.so
   libnccl_sim.so     NCCL, likewise: its ranks are processes
   twin libraries     emitted CUDA text compiled for the host behind
                      device_sim.h; AMPC_SIM_TWINS names their folder, where
                      the driver looks kernels up by name

   Kernels run block by block with one fiber per thread, in random order by
   seed.  Work on a stream runs only when something waits for it.
   Device memory is accessible only while simulated work runs.  Everything is
   under one lock; callers need none.                                        */
#ifndef AMPC_TESTS_SIM_H
#define AMPC_TESTS_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/cuda/driver.h"

#ifdef __cplusplus
extern "C" {
#endif
#define SIM_API __attribute__((visibility("default")))

/* ---- control ------------------------------------------------------------- */

/* Resets the driver to its state after loading, with those settings; objects
   that are still alive are dropped. NULL: defaults (zeroes mean the default as
   well). cuInit must
   follow.  Without sim_reset the environment sets the same: AMPC_SIM_SEED,
   AMPC_SIM_CC (90), AMPC_SIM_MEMORY, AMPC_SIM_DRIVER (13000), AMPC_SIM_SMS,
   AMPC_SIM_DEVICES, AMPC_SIM_PTX_ONLY, AMPC_SIM_TWINS, and for programs that
   know nothing of the simulator AMPC_SIM_FAIL (ENTRY:NTH:CODE[:sticky], see
   sim_fail), AMPC_SIM_REFUSE (what cuBLASLt has no algorithm for: "epilogues",
   "gelu" among them, or all "products") and AMPC_SIM_REPORT, a file that
   counts, errors and leaks are appended to when the library is unloaded. */
typedef struct SimConfig {
    uint64_t seed;
    int cc;            /* 80, 90, ...: compute capability times 10            */
    int driver;        /* 13000                                               */
    int sms;           /* streaming multiprocessors                           */
    int devices;       /* -1: none                                            */
    size_t memory;     /* bytes of device memory; default 4 GiB               */
    bool ptx_only;     /* cubins are refused with 209                         */
    const char *twins; /* folder of twin libraries                          */
} SimConfig;
SIM_API void sim_reset(const SimConfig *c);

/* The nth (1 = next) call of that entry point ("cuMemAlloc_v2",
   "cublasLtMatmul") returns `code` without doing anything. sticky: the context
   is broken, too, so that later calls return the code; calls that free or
   destroy still do their work. SIM_LEFT_OUT: it reports success and does
   nothing, as if the caller had
   forgotten it.                                                             */
enum { SIM_LEFT_OUT = -1 };
SIM_API void sim_fail(const char *entry, int nth, int code, bool sticky);

/* fn(ctx) is called once, directly after the next capture has begun. */
SIM_API void sim_at_capture(void (*fn)(void *ctx), void *ctx);

typedef struct SimStats {
    uint64_t launches; /* number of kernels run, including those of graphs */
    uint64_t graph_launches;
    uint64_t copies, sets;
    /* Numbers of products; of cold ones, before which copies wrote as much
       as the L2 cache holds; and of dull ones, whose operands have few
       different numbers. */
    uint64_t products, cold, dull;
    uint64_t written; /* bytes copied on the device since the last product */
    uint64_t switches, barriers, collectives;
    size_t allocated, peak; /* bytes of device memory                      */
} SimStats;
SIM_API void sim_stats(SimStats *s);
SIM_API uint64_t sim_calls(const char *entry); /* since sim_reset          */

/* Objects that are alive and should not be after a clean end, one line each; ""
   if none. Valid until the next call. */
SIM_API const char *sim_leaks(void);
/* Violations since sim_reset: faults of kernels (with kernel, block,
   thread), misuse of the API. "" when none. */
SIM_API const char *sim_errors(void);

/* ---- kernels without a driver -------------------------------------------- */

typedef struct SimTwin SimTwin;
/* A twin library; NULL with a message in err. */
SIM_API SimTwin *sim_twin_open(const char *path, char *err, size_t size);
SIM_API void sim_twin_close(SimTwin *t);
/* Runs one kernel on host memory, for example on malloc buffers of exactly the
   plan's sizes under ASan. params as for cuLaunchKernel. Returns 0, or a
   CUresult; sim_errors has the reason. */
SIM_API int sim_run(SimTwin *t, const char *kernel, unsigned blocks,
                    unsigned threads, unsigned shared, void **params);
SIM_API void
sim_seed(uint64_t seed); /* seed for the order of threads and blocks */

/* ---- for the cuBLASLt look-alike ----------------------------------------- */

/* Counts a call of an entry point; returns the code of a requested failure,
   else 0. */
SIM_API int sim_entered(const char *entry);
/* Records a violation, which sim_errors returns. */
SIM_API void sim_violation(const char *fmt, ...)
    __attribute__((format(printf, 1, 2)));
/* Queues fn(ctx) on a stream like a kernel; if the stream is capturing, it is
   captured into the graph and runs at each replay. release(ctx) (may be NULL)
   is called once when the work, or the graph, is gone. fn returns a CUresult;
   other than 0 is a sticky error. Inside fn device memory is
   accessible through plain pointers.  fn may return SIM_AGAIN, to be called
   again later.  The result is a CUresult.                                   */
enum { SIM_AGAIN = -2 };
SIM_API CUresult sim_enqueue(CUstream s, const char *name, int (*fn)(void *ctx),
                             void *ctx, void (*release)(void *ctx));
/* A product reads those operands now: updates SimStats.cold and .dull. */
SIM_API void sim_reads(const void *a, size_t a_bytes, const void *b,
                       size_t b_bytes);
/* The number of the capture to which a stream belongs; 0: none. unsafe: for
   a call that a capture of this thread forbids; returns 0 or 900. */
SIM_API uintptr_t sim_capture(CUstream s);
SIM_API CUresult sim_unsafe(void);
/* True if any thread captures a stream. */
SIM_API bool sim_captures(void);
/* True if all bytes are in one live allocation of the device. */
SIM_API bool sim_device_range(CUdeviceptr p, size_t bytes);
/* Ordinal of the calling thread's current device, -1 without context. */
SIM_API int sim_current_device(void);
/* The compute capability times 10. */
SIM_API int sim_capability(void);
SIM_API uint64_t sim_random(void); /* a random number from the seed's stream */

#ifdef __cplusplus
}
#endif
#endif
