/* SPDX-License-Identifier: Apache-2.0 */
/* backend.c: programs on an NVIDIA GPU.  Opens the device, loads the module's
   code, lays out memory, binds all programs; close releases everything that a
   half-built device has. See gpu.h for what the other files do.

   The primary context is shared with the host's own CUDA code; it is current
   only while a call of the API runs.  Environment: AMPC_CUDA_GRAPH=0 runs every
   step eagerly.                                                             */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/try.h"
#include "runtime/cuda/gpu.h"

/* ---- the device ---------------------------------------------------------- */

static ampc_status absent(ampc_session *s, CUresult e, const char *what) {
    char text[200];
    return session_fail(s, AMPC_ERR_UNSUPPORTED, "no usable GPU: %s: %s", what,
                        gpu_error_text(gpu_of(s), e, text));
}

static ampc_status find_device(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    int n = 0;
    CUresult e = d->cu.Init(0);
    /* a driver that does not start gives a reason: its version differs from
       the kernel module's, or a fabric is not up */
    s->gpu_is_there = e != CUDA_NO_DEVICE && e != CUDA_STUB_LIBRARY;
    if (e != CUDA_OK) return absent(s, e, "cuInit");
    e = d->cu.DeviceGetCount(&n);
    if (e != CUDA_OK) return absent(s, e, "cuDeviceGetCount");
    s->gpu_is_there = n > 0;
    if (s->ordinal >= n)
        return session_fail(s, AMPC_ERR_UNSUPPORTED,
                            "no GPU %d: the driver shows %d", s->ordinal, n);
    e = d->cu.DeviceGet(&d->device, s->ordinal);
    if (e != CUDA_OK) return absent(s, e, "cuDeviceGet");
    GPU(d->cu.DeviceGetName(d->name, sizeof d->name, d->device),
        "cuDeviceGetName");
    const struct {
        int attribute, *value;
    } facts[] = {{CUDA_ATTR_COMPUTE_MAJOR, &d->major},
                 {CUDA_ATTR_COMPUTE_MINOR, &d->minor},
                 {CUDA_ATTR_MULTIPROCESSOR_COUNT, &d->sms}};
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        GPU(d->cu.DeviceGetAttribute(facts[i].value, facts[i].attribute,
                                     d->device),
            "cuDeviceGetAttribute");
    return AMPC_OK;
}

static ampc_status load_libraries(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    char why[400];
    if (!cuda_find(&d->cu, why, sizeof why)) {
        s->gpu_is_there = d->cu.lib != NULL; /* the driver is too old */
        return session_fail(s, AMPC_ERR_UNSUPPORTED, "%s", why);
    }
    TRY(find_device(s));
    if (gpu_has_products(s->m)) TRY(lt_load(s, &d->cu, &d->lt));
    return AMPC_OK;
}

/* ---- what lives in its context ------------------------------------------- */

enum { EVENTS = 2 * GPU_SLOTS + GPU_SMALL + 6 };

static void list_events(GpuDevice *d, CUevent *to[EVENTS]) {
    int n = 0;
    for (int i = 0; i < GPU_SLOTS; i++) to[n++] = &d->uploaded[i];
    for (int i = 0; i < GPU_SLOTS; i++) to[n++] = &d->freed[i];
    for (int i = 0; i < GPU_SMALL; i++) to[n++] = &d->written[i];
    to[n++] = &d->done;
    to[n++] = &d->forked;
    to[n++] = &d->joined;
    to[n++] = &d->waited;
    to[n++] = &d->given;
    to[n++] = &d->taken;
}

static ampc_status make_streams(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    CUevent *events[EVENTS];
    list_events(d, events);
    d->stream = s->opt.stream;
    if (!d->stream) {
        GPU(d->cu.StreamCreate(&d->own, CUDA_STREAM_NON_BLOCKING),
            "cuStreamCreate");
        d->stream = d->own;
    }
    GPU(d->cu.StreamCreate(&d->copy, CUDA_STREAM_NON_BLOCKING),
        "cuStreamCreate");
    GPU(d->cu.StreamCreate(&d->capture, CUDA_STREAM_NON_BLOCKING),
        "cuStreamCreate");
    for (int i = 0; i < EVENTS; i++)
        GPU(d->cu.EventCreate(events[i], CUDA_EVENT_DISABLE_TIMING),
            "cuEventCreate");
    return AMPC_OK;
}

static ampc_status make_handle(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    if (d->nproduct == 0) return AMPC_OK;
    d->workspace_bytes = (uint64_t)(d->major >= 9 ? 32 : 4) << 20;
    int e = d->lt.Create(&d->handle);
    return e ? lt_fail(s, e, "cublasLtCreate", NULL) : AMPC_OK;
}

static ampc_status gpu_need_grads(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    if (d->late || !d->late_bytes) return AMPC_OK;
    TRY(memory_alloc_late(s));
    ampc_status status = gpu_zero_grads(s);
    if (status == AMPC_OK) status = bind_all(s);
    if (status != AMPC_OK)
        d->broken = status; /* programs are only partly
                               bound */
    return status;
}

static ampc_status first_values(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    GPU(d->cu.MemsetD8Async(d->zero, 0, sizeof(double), d->stream),
        "cuMemsetD8Async");
    ampc_status status = bind_all(s); /* may fill memory */
    if (status == AMPC_OK && d->counter_bytes)
        GPU(d->cu.MemsetD8Async(d->counters, 0, d->counter_bytes, d->stream),
            "cuMemsetD8Async");
    if (status == AMPC_OK) status = gpu_zero_grads(s);
    return status == AMPC_OK ? gpu_sync(s) : status;
}

static ampc_status build(ampc_session *s) {
    TRY(image_load(s));
    TRY(make_streams(s));
    TRY(gpu_ranks_open(s));
    TRY(make_handle(s));
    TRY(memory_alloc(s));
    /* measuring fills all memory, so it must not run later */
    if (s->opt.comm || s->accumulate > 1 || tune_measures())
        TRY(memory_alloc_late(s));
    return first_values(s);
}

/* ---- open, close --------------------------------------------------------- */

static void gpu_leave(ampc_session *s) {
    CUcontext c;
    gpu_of(s)->cu.CtxPopCurrent(&c);
}

static ampc_status open_context(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    CUcontext c = NULL;
    GPU(d->cu.PrimaryCtxRetain(&c, d->device), "cuDevicePrimaryCtxRetain");
    d->context = c;
    GPU(d->cu.CtxPushCurrent(d->context), "cuCtxPushCurrent");
    ampc_status status = build(s);
    gpu_leave(s);
    d->ready = status == AMPC_OK;
    return status;
}

static ampc_status gpu_open(ampc_session *s) {
    const char *graphs = secure_getenv("AMPC_CUDA_GRAPH");
    GpuDevice *d = s->device = mem_alloc(s, sizeof *d);
    if (!d) return session_fail(s, AMPC_ERR_MEMORY, "out of memory");
    memset(d, 0, sizeof *d);
    d->graphs = !(graphs && strcmp(graphs, "0") == 0);
    const char *defect = gpu_plan_defect(s->m);
    if (defect)
        return session_fail(s, AMPC_ERR_INTERNAL,
                            "the module's CUDA plan is damaged at '%.200s'",
                            defect);
    TRY(load_libraries(s));
    TRY(bind_tables(s));
    return open_context(s);
}

static void close_streams(GpuDevice *d) {
    CUstream streams[] = {d->own, d->copy, d->capture, d->ranks};
    CUevent *events[EVENTS];
    list_events(d, events);
    for (int i = 0; i < EVENTS; i++)
        if (*events[i]) d->cu.EventDestroy(*events[i]);
    for (uint32_t i = 0; d->marks && i < d->nmark; i++)
        if (d->marks[i]) d->cu.EventDestroy(d->marks[i]);
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
        if (streams[i]) d->cu.StreamDestroy(streams[i]);
}

/* No work may use the memory when it is released. */
static void close_context(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    bool current = d->cu.CtxPushCurrent(d->context) == CUDA_OK;
    if (d->copy) d->cu.StreamSynchronize(d->copy);
    if (d->ranks) d->cu.StreamSynchronize(d->ranks);
    if (d->stream) d->cu.StreamSynchronize(d->stream);
    for (uint32_t i = 0; i < s->m->nprogram; i++)
        if (d->programs[i].exec) d->cu.GraphExecDestroy(d->programs[i].exec);
    for (uint32_t i = 0; i < d->nproduct; i++)
        product_free(&d->lt, &d->products[i]);
    if (d->handle) d->lt.Destroy(d->handle);
    close_streams(d);
    memory_free(s);
    image_unload(s);
    if (current) gpu_leave(s);
    d->cu.PrimaryCtxRelease(d->device);
}

static void gpu_close(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    if (!d) return;
    /* A forked child must not touch the driver. */
    if (s->pid == getpid()) {
        if (d->context) close_context(s);
        library_unload(d->lt.lib);
        library_unload(d->cu.lib);
    }
    mem_free(s, d->tables, d->tables_bytes);
    mem_free(s, d, sizeof *d);
    s->device = NULL;
}

/* ---- around calls -------------------------------------------------------- */

static ampc_status stream_free(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    int status = 0;
    if (!s->opt.stream) return AMPC_OK;
    GPU(d->cu.StreamIsCapturing(d->stream, &status), "the host's stream");
    if (status != CUDA_CAPTURE_ACTIVE) return AMPC_OK;
    return session_fail(s, AMPC_ERR_ARGUMENT,
                        "the host's stream is being captured");
}

static ampc_status gpu_enter(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    if (s->pid != getpid())
        return session_fail(s, AMPC_ERR_DEVICE,
                            "a GPU cannot be used in a forked process: open "
                            "another session before, or exec");
    if (d->broken) return d->broken; /* the message is set already */
    GPU(d->cu.CtxPushCurrent(d->context), "cuCtxPushCurrent");
    ampc_status status = stream_free(s);
    if (status != AMPC_OK) gpu_leave(s);
    return status;
}

/* Open has done the rest. */
static ampc_status gpu_prepare(ampc_session *s, int program) {
    return gpu_of(s)->programs[program].late ? gpu_need_grads(s) : AMPC_OK;
}

static const char *gpu_name(const ampc_session *s) { return gpu_of(s)->name; }

static void gpu_memory(const ampc_session *s, ampc_memory_info *out) {
    const GpuDevice *d = gpu_of(s);
    out->activations = d->input - d->arena; /* lie side by side */
    out->total = d->bytes;
    out->host = d->pinned_bytes;
    if (!d->late) return;
    out->total += d->late_bytes;
    out->gradients = d->grads_bytes;
    out->activations += d->late_bytes - d->grads_bytes;
}

static void gpu_describe(const ampc_session *s, char *text, size_t size) {
    const GpuDevice *d = gpu_of(s);
    snprintf(
        text, size, "GPU '%s', code for %s%s, %llu MB of its memory", d->name,
        d->arch ? d->arch : "none", d->tile_arch ? " with CUDA Tile" : "",
        (unsigned long long)((d->bytes + (d->late ? d->late_bytes : 0)) >> 20));
}

const AmpcBackend ampc_cuda_backend = {
    .open = gpu_open,
    .close = gpu_close,
    .enter = gpu_enter,
    .leave = gpu_leave,
    .get = gpu_get,
    .put = gpu_put,
    .zero = gpu_zero,
    .give = gpu_give,
    .need_grads = gpu_need_grads,
    .zero_grads = gpu_zero_grads,
    .prepare = gpu_prepare,
    .begin = gpu_begin,
    .step = gpu_step,
    .end = gpu_end,
    .stage = gpu_stage,
    .sync = gpu_sync,
    .watched = gpu_watched,
    .kind = "cuda",
    .memory = gpu_memory,
    .name = gpu_name,
    .describe = gpu_describe,
    .async = true,
};
