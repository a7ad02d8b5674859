/* SPDX-License-Identifier: Apache-2.0 */
/* run.c: one run of a program.

   Inputs are copied from the caller's buffers to a pinned slot (unless they
   were written there, gpu_stage), by the copy stream to a slot on the device,
   and then to the address that kernels read. Events keep the order with the
   steps: while one step runs, the next batch is being copied, and the caller
   may reuse its buffers at once. Inputs in the device's memory go to that place
   at once.

   The first run of a program is eager: it touches every kernel.  The second is
   captured into a graph, which it and all later ones launch.  If ranks sum
   on the device, the last micro-step and the update are one run (ranks.c).
   At the end of a program the scalars that the API reports are copied to
   pinned memory. */
#include <pthread.h>
#include <string.h>

#include "runtime/base/try.h"
#include "runtime/cuda/gpu.h"

#include "runtime/base/glibc.h" /* last */

/* ---- inputs -------------------------------------------------------------- */

/* Bytes of an input, and the distance to the next input. */
static uint64_t input_bytes(const ampc_session *s, int program, uint32_t i) {
    const PlanTensor *t = &s->m->tensors[s->m->programs[program].in0 + i];
    uint64_t bytes = 0;
    dense_bytes(t->dtype, t->rank, t->dim, &bytes);
    return bytes;
}

ampc_status gpu_stage(ampc_session *s, int program, uint32_t input,
                      void **data) {
    GpuDevice *d = gpu_of(s);
    char *to = d->host_slot[d->next_slot];
    for (uint32_t i = 0; i < input; i++)
        to += gpu_round(input_bytes(s, program, i));
    *data = to;
    return gpu_wait(s, d->uploaded[d->next_slot], "upload of inputs");
}

/* True if a copy to that slot would overwrite data that the host wrote there
   for other inputs. */
static bool is_taken(const ampc_session *s, int program, unsigned slot,
                     const void *const *in) {
    const GpuDevice *d = gpu_of(s);
    uintptr_t from = (uintptr_t)d->host_slot[slot], to = from;
    for (uint32_t i = 0; i < s->m->programs[program].nin; i++) {
        uintptr_t at = (uintptr_t)in[i];
        if (at != to && at >= from && at - from < d->slot_bytes) return true;
        to += gpu_round(input_bytes(s, program, i));
    }
    return false;
}

static ampc_status stage_inputs(ampc_session *s, int program, unsigned slot,
                                const void *const *in) {
    GpuDevice *d = gpu_of(s);
    char *to = d->host_slot[slot];
    TRY(gpu_wait(s, d->uploaded[slot], "upload of inputs"));
    for (uint32_t i = 0; i < s->m->programs[program].nin; i++) {
        uint64_t bytes = input_bytes(s, program, i);
        if (bytes && in[i] != to && !s->in.device[i]) memcpy(to, in[i], bytes);
        to += gpu_round(bytes);
    }
    return AMPC_OK;
}

/* Neighbouring inputs that all lie in the host's memory. */
typedef struct InputRange {
    uint64_t at, bytes;
} InputRange;

/* The next one from input *i on, which moves behind it; of no bytes: there is
   none. *at: where input *i lies. */
static InputRange next_range(const ampc_session *s, int program, uint32_t *i,
                             uint64_t *at) {
    InputRange r = {*at, 0};
    for (; *i < s->m->programs[program].nin; ++*i) {
        if (s->in.device[*i] && r.bytes) break;
        *at += gpu_round(input_bytes(s, program, *i));
        if (s->in.device[*i])
            r.at = *at;
        else
            r.bytes = *at - r.at;
    }
    return r;
}

/* From the host's memory, by the copy stream and a slot on the device. */
static ampc_status upload_slot(ampc_session *s, int program,
                               const void *const *in) {
    GpuDevice *d = gpu_of(s);
    unsigned slot = d->next_slot;
    if (is_taken(s, program, slot, in)) slot = (slot + 1) % GPU_SLOTS;
    TRY(stage_inputs(s, program, slot, in));
    d->next_slot = (slot + 1) % GPU_SLOTS;
    GPU(d->cu.StreamWaitEvent(d->copy, d->freed[slot], 0), "cuStreamWaitEvent");
    uint32_t i = 0;
    uint64_t at = 0;
    for (InputRange r; r = next_range(s, program, &i, &at), r.bytes;)
        GPU(d->cu.MemcpyHtoDAsync(d->slot[slot] + r.at,
                                  d->host_slot[slot] + r.at, r.bytes, d->copy),
            "upload of inputs");
    GPU(d->cu.EventRecord(d->uploaded[slot], d->copy), "cuEventRecord");
    GPU(d->cu.StreamWaitEvent(d->stream, d->uploaded[slot], 0),
        "cuStreamWaitEvent");
    i = 0, at = 0;
    for (InputRange r; r = next_range(s, program, &i, &at), r.bytes;)
        GPU(d->cu.MemcpyDtoDAsync(d->input + r.at, d->slot[slot] + r.at,
                                  r.bytes, d->stream),
            "copy of inputs");
    GPU(d->cu.EventRecord(d->freed[slot], d->stream), "cuEventRecord");
    return AMPC_OK;
}

/* From arrays of the host's in the device's memory. */
static ampc_status take_inputs(ampc_session *s, int program,
                               const void *const *in) {
    GpuDevice *d = gpu_of(s);
    CUdeviceptr to = d->input;
    TRY(gpu_join_host(s));
    for (uint32_t i = 0; i < s->m->programs[program].nin; i++) {
        uint64_t bytes = input_bytes(s, program, i);
        if (bytes && s->in.device[i])
            GPU(d->cu.MemcpyDtoDAsync(to, (uintptr_t)in[i], bytes, d->stream),
                "copy of inputs");
        to += gpu_round(bytes);
    }
    return gpu_leave_host(s);
}

static ampc_status upload(ampc_session *s, int program, const void *const *in) {
    const PlanProgram *p = &s->m->programs[program];
    uint32_t given = 0;
    if (gpu_of(s)->programs[program].input_bytes == 0) return AMPC_OK;
    for (uint32_t i = 0; i < p->nin; i++) {
        if (!s->in.device[i] || !input_bytes(s, program, i)) continue;
        TRY(gpu_owns(s, s->m->tensors[p->in0 + i].name, in[i]));
        given++;
    }
    if (given < p->nin) TRY(upload_slot(s, program, in));
    if (given) TRY(take_inputs(s, program, in));
    return AMPC_OK;
}

/* ---- scalars ------------------------------------------------------------- */

typedef struct Scalar {
    CUdeviceptr at;
    uint32_t bytes;
    Watch watch;
} Scalar;

static size_t list_scalars(const ampc_session *s, int program,
                           Scalar list[WATCH_COUNT]) {
    size_t n = 0;
    for (int w = 0; w < WATCH_COUNT; w++) {
        PlanRef ref;
        uint32_t dtype;
        if (!session_watch(s, program, (Watch)w, &ref, &dtype)) continue;
        Scalar x = {gpu_address(s, program, ref), (uint32_t)dtype_bytes(dtype),
                    (Watch)w};
        size_t i = n++;
        for (; i > 0 && list[i - 1].at > x.at; i--) list[i] = list[i - 1];
        list[i] = x;
    }
    return n;
}

static bool reports(const ampc_session *s, int program) {
    static const ProgramId ids[] = {PROG_TRAIN, PROG_MICRO, PROG_UPDATE};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        if (sizes_has(s, ids[i], program)) return true;
    return false;
}

/* Scalars less than a gap apart are copied together. */
void watch_bind(ampc_session *s, int program) {
    enum { GAP = 1024 };
    GpuDevice *d = gpu_of(s);
    GpuProgram *p = &d->programs[program];
    Scalar list[WATCH_COUNT];
    uint32_t used = 0;
    for (int w = 0; w < WATCH_COUNT; w++) p->where[w] = GPU_NOWHERE;
    if (!reports(s, program)) return;
    p->scalars = d->scalars + (size_t)program * GPU_SCALARS;
    size_t n = list_scalars(s, program, list);
    for (size_t i = 0; i < n; i++) {
        GpuRange *r = &p->range[p->nrange - (p->nrange > 0)];
        if (!p->nrange || list[i].at - r->from > r->bytes + GAP) {
            if (p->nrange) used += (r->bytes + 7) & ~7u;
            r = &p->range[p->nrange++];
            *r = (GpuRange){list[i].at, 0, used};
        }
        uint32_t offset = (uint32_t)(list[i].at - r->from);
        if (r->bytes < offset + list[i].bytes)
            r->bytes = offset + list[i].bytes;
        p->where[list[i].watch] = r->at + offset;
    }
}

static ampc_status gather(ampc_session *s, const GpuProgram *p) {
    GpuDevice *d = gpu_of(s);
    for (uint32_t i = 0; i < p->nrange; i++)
        GPU(d->cu.MemcpyDtoHAsync(p->scalars + p->range[i].at, p->range[i].from,
                                  p->range[i].bytes, d->work),
            "copy of metrics");
    if (s->ranks.on_device && p == &d->programs[s->program[PROG_UPDATE]])
        GPU(d->cu.MemcpyDtoHAsync(d->host_bad, d->bad, gpu_ranks_bytes(s),
                                  d->work),
            "copy of metrics");
    return AMPC_OK;
}

ampc_status gpu_watched(ampc_session *s, int program,
                        uint64_t value[WATCH_COUNT]) {
    GpuDevice *d = gpu_of(s);
    const GpuProgram *p = &d->programs[program];
    memset(value, 0, WATCH_COUNT * sizeof *value);
    TRY(gpu_wait(s, d->done, "end of a program"));
    for (int w = 0; w < WATCH_COUNT; w++) {
        PlanRef ref;
        uint32_t dtype;
        if (p->where[w] != GPU_NOWHERE &&
            session_watch(s, program, (Watch)w, &ref, &dtype))
            memcpy(&value[w], p->scalars + p->where[w], dtype_bytes(dtype));
    }
    if (s->ranks.on_device && program == s->program[PROG_UPDATE])
        value[WATCH_BAD_DATA] = (uint64_t)comm_bad(s, d->host_bad);
    return AMPC_OK;
}

ampc_status gpu_sync(ampc_session *s) {
    return gpu_wait_stream(s, gpu_of(s)->stream, "cuStreamSynchronize");
}

/* ---- profiles ------------------------------------------------------------ */

/* Steps follow each other without the host and are timed on the GPU: mark i
   precedes step i. */
static ampc_status mark(ampc_session *s, uint32_t i) {
    GpuDevice *d = gpu_of(s);
    if (!s->profile) return AMPC_OK;
    if (!d->marks[i]) GPU(d->cu.EventCreate(&d->marks[i], 0), "cuEventCreate");
    GPU(d->cu.EventRecord(d->marks[i], d->work), "cuEventRecord");
    return AMPC_OK;
}

/* The host's clock gives the end. */
static ampc_status tell_profile(ampc_session *s, int program) {
    GpuDevice *d = gpu_of(s);
    const PlanRun *r = &s->plan->runs[program];
    const char *name = s->m->programs[program].name;
    float ms = 0;
    TRY(mark(s, r->nstep));
    TRY(gpu_wait(s, d->marks[r->nstep], "end of a program"));
    GPU(d->cu.EventElapsedTime(&ms, d->marks[0], d->marks[r->nstep]),
        "cuEventElapsedTime");
    uint64_t zero = now_ns() - (uint64_t)((double)ms * 1e6), from = zero;
    for (uint32_t i = 0; i < r->nstep; i++) {
        const char *step = s->plan->steps[r->step0 + i].name;
        GPU(d->cu.EventElapsedTime(&ms, d->marks[0], d->marks[i + 1]),
            "cuEventElapsedTime");
        uint64_t to = zero + (uint64_t)((double)ms * 1e6);
        if (d->programs[program].steps[i].replaced) continue;
        s->profile(s->profile_ctx, name, step ? step : "", from, to);
        from = to;
    }
    return AMPC_OK;
}

/* ---- one step ------------------------------------------------------------ */

static ampc_status launch(ampc_session *s, const GpuLaunch *l,
                          const char *name) {
    GpuDevice *d = gpu_of(s);
    if (!l->fn) return AMPC_OK;
    CUresult e = d->cu.LaunchKernel(l->fn, l->blocks, 1, 1, l->threads, 1, 1,
                                    l->shared, d->work, l->params, NULL);
    return e ? gpu_fail(s, e, "cuLaunchKernel", name) : AMPC_OK;
}

static ampc_status multiply(ampc_session *s, const GpuStep *t) {
    GpuDevice *d = gpu_of(s);
    const GpuProduct *p = t->product;
    if (p->by == BY_OWN) return launch(s, &t->first, t->name);
    if (p->desc) {
        int e = product_launch(d, p, &p->algo, d->work);
        if (e) return lt_fail(s, e, "cublasLtMatmul", t->name);
        if (p->by == BY_LIBRARY) return AMPC_OK;
        return launch(s, &t->second, t->name);
    }
    if (p->zeros == 0) return AMPC_OK;
    CUresult e = d->cu.MemsetD8Async(p->out, 0, p->zeros, d->work);
    return e ? gpu_fail(s, e, "cuMemsetD8Async", t->name) : AMPC_OK;
}

static ampc_status copy(ampc_session *s, const GpuStep *t) {
    GpuDevice *d = gpu_of(s);
    if (t->bytes == 0 || t->from == t->to) return AMPC_OK;
    CUresult e = d->cu.MemcpyDtoDAsync(t->to, t->from, t->bytes, d->work);
    return e ? gpu_fail(s, e, "cuMemcpyDtoDAsync", t->name) : AMPC_OK;
}

ampc_status gpu_step(ampc_session *s, int program, uint32_t step) {
    const GpuStep *t = &gpu_of(s)->programs[program].steps[step];
    TRY(mark(s, step));
    if (t->replaced) return AMPC_OK;
    if (t->kind == PLAN_SUM) /* else before update */
        return s->ranks.whole ? gpu_sum_bucket(s, t->bucket) : AMPC_OK;
    if (t->kind == PLAN_SUM_NOW) return gpu_sum_now(s, t);
    if (t->kind == PLAN_COPY) return copy(s, t);
    if (t->kind == PLAN_PRODUCT || t->kind == PLAN_GELU) return multiply(s, t);
    TRY(launch(s, &t->first, t->name));
    return launch(s, &t->second, t->name);
}

/* ---- captures and the library -------------------------------------------- */

/* From 13.3 on cuBLASLt finds no algorithm while any thread of the process
   captures a stream. Captures may run at the same time; a thread that
   requests algorithms waits for all of them. Sessions of another module
   cannot be synchronised. */
static pthread_rwlock_t captures = PTHREAD_RWLOCK_INITIALIZER;

void gpu_hold_captures(void) { pthread_rwlock_wrlock(&captures); }
void gpu_release_captures(void) { pthread_rwlock_unlock(&captures); }

/* ---- one program --------------------------------------------------------- */

/* Out of memory: nothing has run, and the next run may try again. */
static ampc_status instantiate(ampc_session *s, GpuProgram *p, CUgraph graph) {
    GpuDevice *d = gpu_of(s);
    CUgraphExec exec = NULL;
    CUresult e = d->cu.GraphInstantiate(&exec, graph, 0);
    if (e == CUDA_OUT_OF_MEMORY)
        return session_fail(s, AMPC_ERR_MEMORY,
                            "out of memory on GPU '%s' for the graph of a step",
                            d->name);
    if (e != CUDA_OK) return gpu_fail(s, e, "cuGraphInstantiate", NULL);
    p->exec = exec;
    return AMPC_OK;
}

static ampc_status begin_capture(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    pthread_rwlock_rdlock(&captures);
    CUresult e =
        d->cu.StreamBeginCapture(d->capture, CUDA_CAPTURE_THREAD_LOCAL);
    if (e != CUDA_OK) {
        pthread_rwlock_unlock(&captures);
        return gpu_fail(s, e, "cuStreamBeginCapture", NULL);
    }
    d->work = d->capture;
    d->mode = GPU_CAPTURE;
    return AMPC_OK;
}

/* The capture is ended in any case; a graph is built only if it succeeded.
   An open capture would even forbid freeing memory. */
static ampc_status end_capture(ampc_session *s, GpuProgram *p,
                               ampc_status status) {
    GpuDevice *d = gpu_of(s);
    CUgraph graph = NULL;
    CUresult e = d->cu.StreamEndCapture(d->capture, &graph);
    d->work = d->stream;
    if (e != CUDA_OK && !graph) d->cu.StreamEndCapture(d->capture, &graph);
    pthread_rwlock_unlock(&captures);
    if (status == AMPC_OK && e != CUDA_OK)
        status = gpu_fail(s, e, "cuStreamEndCapture", NULL);
    if (status == AMPC_OK) status = instantiate(s, p, graph);
    if (graph) d->cu.GraphDestroy(graph);
    return status;
}

/* The part of a step that is one run. */
static bool in_whole(const ampc_session *s, int program) {
    return s->ranks.whole && (program == s->program[PROG_MICRO] ||
                              program == s->program[PROG_UPDATE]);
}

/* The program that owns the graph of a run: for a whole step, update. */
static GpuProgram *run_of(const ampc_session *s, int program) {
    int p = in_whole(s, program) ? s->program[PROG_UPDATE] : program;
    return &gpu_of(s)->programs[p];
}

/* `first` behind all steps of the program: none is walked. */
static ampc_status begin_update(ampc_session *s, GpuProgram *p, uint32_t nstep,
                                uint32_t *first) {
    GpuDevice *d = gpu_of(s);
    *first = d->mode == GPU_REPLAY ? nstep : 0;
    if (d->mode == GPU_REPLAY) return AMPC_OK;
    ampc_status status = gpu_sum_rest(s);
    if (status == AMPC_OK || d->mode != GPU_CAPTURE) return status;
    return end_capture(s, p, status);
}

ampc_status gpu_begin(ampc_session *s, int program, const void *const *in,
                      uint32_t *first) {
    GpuDevice *d = gpu_of(s);
    GpuProgram *p = run_of(s, program);
    uint32_t nstep = s->plan->runs[program].nstep;
    bool update = s->ranks.on_device && program == s->program[PROG_UPDATE];
    if (update && s->ranks.whole) return begin_update(s, p, nstep, first);
    TRY(upload(s, program, in));
    d->work = d->stream;
    d->mode = GPU_EAGER;
    if (update) return gpu_sum_rest(s);
    if (s->profile || !d->graphs || !p->ran || p->sums ||
        d->programs[program].sums)
        return AMPC_OK;
    if (p->exec) {
        d->mode = GPU_REPLAY;
        *first = nstep;
        return AMPC_OK;
    }
    return begin_capture(s);
}

ampc_status gpu_end(ampc_session *s, int program, ampc_status status) {
    GpuDevice *d = gpu_of(s);
    GpuProgram *p = run_of(s, program);
    if (status == AMPC_OK && in_whole(s, program) &&
        program == s->program[PROG_MICRO]) /* the update follows */
        return s->profile ? tell_profile(s, program) : AMPC_OK;
    bool walked = d->mode != GPU_REPLAY;
    if (status == AMPC_OK && walked && s->ranks.on_device &&
        program == s->program[PROG_UPDATE])
        status = gpu_hand_out(s);
    if (status == AMPC_OK && walked) status = gather(s, p);
    if (status == AMPC_OK && s->profile) status = tell_profile(s, program);
    if (d->mode == GPU_CAPTURE) status = end_capture(s, p, status);
    if (status != AMPC_OK) return status;
    if (d->mode != GPU_EAGER)
        GPU(d->cu.GraphLaunch(p->exec, d->stream), "cuGraphLaunch");
    GPU(d->cu.EventRecord(d->done, d->stream), "cuEventRecord");
    p->ran = true;
    return AMPC_OK;
}
