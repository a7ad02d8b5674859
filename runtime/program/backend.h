/* SPDX-License-Identifier: Apache-2.0 */
/* backend.h: the functions that a device provides.

   Only a backend knows where the bytes of variables, activations and inputs
   are; all other files name them by PlanRef. A function that fails leaves a
   message in the session.  The backends are cpu/backend.c and, for NVIDIA
   GPUs, cuda/backend.c. */
#ifndef AMPC_BACKEND_H
#define AMPC_BACKEND_H

#define AMPC_NO_LOADER
#include "runtime/ampc.h"
#include "runtime/program/plan.h"

/* Scalars that the API reports after a program: outputs by name, then
   variables.                                                                */
typedef enum Watch {
    WATCH_LOSS,
    WATCH_GRAD_NORM,
    WATCH_SCALE,
    WATCH_LR,
    WATCH_APPLIED,
    WATCH_STEP,
    WATCH_TRIED,
    WATCH_SKIPPED,
    WATCH_BAD_FORWARD,
    WATCH_BAD_DATA,
    WATCH_SKIP_STREAK,
    WATCH_COUNT
} Watch;

typedef struct AmpcBackend {
    /* Allocates all memory except for gradients, and everything else that a
       run needs. After a failure, close frees the rest. */
    ampc_status (*open)(ampc_session *s);
    /* Accepts a half-built device, and a forked child's copy of one. */
    void (*close)(ampc_session *s);
    /* Called around every call of the API; leave only after a successful
       enter. */
    ampc_status (*enter)(ampc_session *s);
    void (*leave)(ampc_session *s);

    /* Copies from a variable or from an output of the last program run, and
       to a variable. The host may reuse its buffer when they return. */
    ampc_status (*get)(ampc_session *s, PlanRef from, void *to, uint64_t bytes);
    ampc_status (*put)(ampc_session *s, PlanRef to, const void *from,
                       uint64_t bytes);
    ampc_status (*zero)(ampc_session *s, PlanRef to, uint64_t bytes);
    /* As get, to an array in the device's memory. NULL: the host's memory is
       the device's, and arrays in a device are refused. */
    ampc_status (*give)(ampc_session *s, PlanRef from, void *to,
                        uint64_t bytes);

    /* Allocates the gradients' memory, filled with zeros. */
    ampc_status (*need_grads)(ampc_session *s);
    ampc_status (*zero_grads)(ampc_session *s);

    /* Allocates everything that the next run of a program needs. */
    ampc_status (*prepare)(ampc_session *s, int program);
    /* The inputs that s->in.device marks lie in the device's memory.
       A run is begin, step for each of the program's steps from *first on,
       which begin sets unless it is 0, then end, which gets the status of the
       run and returns it. */
    ampc_status (*begin)(ampc_session *s, int program, const void *const *in,
                         uint32_t *first);
    ampc_status (*step)(ampc_session *s, int program, uint32_t step);
    ampc_status (*end)(ampc_session *s, int program, ampc_status status);
    /* Sets *data to the place where the next run of the program expects that
       input; NULL: any address. The function itself may be NULL: any address
       for all inputs. */
    ampc_status (*stage)(ampc_session *s, int program, uint32_t input,
                         void **data);
    /* Waits until all work that was begun is done. */
    ampc_status (*sync)(ampc_session *s);
    /* Fetches the scalars that session_watch names, from the program's last
       run; 0 if one does not exist. Waits for the device. */
    ampc_status (*watched)(ampc_session *s, int program,
                           uint64_t value[WATCH_COUNT]);
    const char *kind;                           /* like ampc_device_info */
    const char *(*name)(const ampc_session *s); /* NULL: it has none */
    /* Sets gradients, activations, total and host. */
    void (*memory)(const ampc_session *s, ampc_memory_info *out);
    /* Writes one line for the log. */
    void (*describe)(const ampc_session *s, char *text, size_t size);
    bool async; /* true: a run may return before it is done; if the session
                   has a profile, end reports the steps to it */
} AmpcBackend;

extern const AmpcBackend cpu_backend;
extern const AmpcBackend ampc_cuda_backend; /* only CUDA plans refer to it */
/* Address of a variable on the CPU; NULL: a gradient that is not allocated
   yet. */
void *cpu_var(const ampc_session *s, uint32_t var);

#endif
