/* SPDX-License-Identifier: Apache-2.0 */
/* driver.c: the entry points of libcuda, with the names of driver.def.

   Each one first checks a table of its requirements: a requested failure,
   then initialisation, a current context without a fault, and no capture
   that forbids it. The functions do_X do the rest. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/module.h"

enum { INIT = 1, CONTEXT = 2, SAFE = 4 /* not while capturing */ };
enum { MAX_STACK = 16 };

static bool initialised;
static unsigned generation; /* number of sim_reset calls: stacks of other
                               threads become invalid */
static CUcontext primary[16];
static __thread struct {
    CUcontext c[MAX_STACK];
    int number[MAX_STACK]; /* number of the object: addresses are reused */
    int n;
    unsigned generation;
} stack;

static void refresh_stack(void) {
    if (stack.generation != generation) stack.n = 0;
    stack.generation = generation;
}

CUcontext context_current(void) {
    refresh_stack();
    CUcontext c = stack.n ? stack.c[stack.n - 1] : NULL;
    if (!c || !object_is(OBJ_CONTEXT, c) ||
        c->o.number != stack.number[stack.n - 1])
        return NULL;
    return c;
}

void driver_forget(void) {
    initialised = false;
    generation++;
}

int sim_capability(void) { return sim_config.cc; }

int sim_current_device(void) {
    sim_lock();
    CUcontext c = context_current();
    int d = c ? c->device : -1;
    sim_unlock();
    return d;
}

static CUresult enter(const char *entry, int needs) {
    sim_lock();
    CUresult rc = call_enter(entry);
    if (rc) return rc;
    if (needs & (INIT | CONTEXT) && !initialised) return CUDA_NOT_INITIALIZED;
    CUcontext c = context_current();
    if (needs & CONTEXT && !c) {
        sim_violation("%s without a current context", entry);
        return CUDA_INVALID_CONTEXT;
    }
    return needs & SAFE ? capture_forbids() : CUDA_OK;
}

/* A faulted context: destruction still counts as done for the list of leaks. */
static CUresult sticky(void) {
    CUcontext c = context_current();
    return c ? c->sticky : CUDA_OK;
}

#define ENTRY(member, symbol, needs, params, args)                             \
    static CUresult do_##member params;                                        \
    CUresult drv_##member params {                                             \
        CUresult rc = enter(symbol, needs);                                    \
        if (!rc && (needs)&CONTEXT) rc = sticky();                             \
        if (!rc) rc = do_##member args;                                        \
        sim_unlock();                                                          \
        return rc == SIM_LEFT_OUT ? CUDA_OK : rc;                              \
    }                                                                          \
    static CUresult do_##member params
/* Runs in a faulted context, too, and returns the fault. */
#define ENTRY_END(member, symbol, needs, params, args)                         \
    static CUresult do_##member params;                                        \
    CUresult drv_##member params {                                             \
        CUresult rc = enter(symbol, needs);                                    \
        if (!rc) rc = do_##member args;                                        \
        if (!rc) rc = sticky();                                                \
        sim_unlock();                                                          \
        return rc == SIM_LEFT_OUT ? CUDA_OK : rc;                              \
    }                                                                          \
    static CUresult do_##member params

/* ---- the driver, devices ------------------------------------------------- */

ENTRY(Init, "cuInit", 0, (unsigned flags), (flags)) {
    if (flags) return CUDA_INVALID_VALUE;
    if (!sim_config.devices) return CUDA_NO_DEVICE;
    initialised = true;
    return CUDA_OK;
}

ENTRY(DriverGetVersion, "cuDriverGetVersion", 0, (int *version), (version)) {
    *version = sim_config.driver;
    return CUDA_OK;
}

ENTRY(DeviceGetCount, "cuDeviceGetCount", INIT, (int *n), (n)) {
    *n = sim_config.devices;
    return CUDA_OK;
}

static bool device_is(CUdevice d) { return d >= 0 && d < sim_config.devices; }

ENTRY(DeviceGet, "cuDeviceGet", INIT, (CUdevice * d, int ordinal),
      (d, ordinal)) {
    if (!device_is(ordinal)) return CUDA_INVALID_DEVICE;
    *d = ordinal;
    return CUDA_OK;
}

ENTRY(DeviceGetName, "cuDeviceGetName", INIT,
      (char *name, int size, CUdevice d), (name, size, d)) {
    if (!device_is(d)) return CUDA_INVALID_DEVICE;
    snprintf(name, (size_t)size, "Simulated GPU %d.%d", sim_config.cc / 10,
             sim_config.cc % 10);
    return CUDA_OK;
}

ENTRY(DeviceGetAttribute, "cuDeviceGetAttribute", INIT,
      (int *value, int attribute, CUdevice d), (value, attribute, d)) {
    if (!device_is(d)) return CUDA_INVALID_DEVICE;
    switch (attribute) {
    case CUDA_ATTR_MAX_THREADS_PER_BLOCK: *value = SIM_MAX_THREADS; break;
    case CUDA_ATTR_MULTIPROCESSOR_COUNT: *value = sim_config.sms; break;
    case CUDA_ATTR_L2_CACHE_SIZE: *value = SIM_L2_BYTES; break;
    case CUDA_ATTR_COMPUTE_MAJOR: *value = sim_config.cc / 10; break;
    case CUDA_ATTR_COMPUTE_MINOR: *value = sim_config.cc % 10; break;
    case CUDA_ATTR_MAX_SHARED_OPTIN: *value = (int)shared_optin(); break;
    default:
        sim_violation("attribute %d is not simulated", attribute);
        return CUDA_INVALID_VALUE;
    }
    return CUDA_OK;
}

/* ---- contexts ------------------------------------------------------------ */

static CUcontext new_primary(CUdevice d) {
    CUcontext c = object_new(OBJ_CONTEXT, sizeof *c);
    if (!c) return NULL;
    c->device = d;
    c->legacy = calloc(1, sizeof *c->legacy);
    if (!c->legacy) {
        object_free(c);
        return NULL;
    }
    c->legacy->o.context = c;
    return primary[d] = c;
}

ENTRY(PrimaryCtxRetain, "cuDevicePrimaryCtxRetain", INIT,
      (CUcontext * c, CUdevice d), (c, d)) {
    if (!device_is(d)) return CUDA_INVALID_DEVICE;
    *c = primary[d] ? primary[d] : new_primary(d);
    if (!*c) return CUDA_OUT_OF_MEMORY;
    (*c)->retained++;
    return CUDA_OK;
}

static void drop(Object *o) {
    switch (o->kind) {
    case OBJ_MODULE: module_drop((CUmodule)o); break;
    case OBJ_STREAM: stream_drop((CUstream)o); break;
    case OBJ_EVENT: event_drop((CUevent)o); break;
    case OBJ_GRAPH: graph_drop((CUgraph)o); break;
    case OBJ_EXEC: exec_drop((CUgraphExec)o); break;
    default: object_free(o);
    }
}

void context_drop(CUcontext c) {
    for (Object *o = object_first(), *next; o; o = next) {
        next = o->next;
        if (o->context == c && o->kind != OBJ_CONTEXT) drop(o);
    }
    work_drop(c->legacy->tail);
    free(c->legacy);
    primary[c->device] = NULL;
    object_free(c);
}

ENTRY(PrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", INIT, (CUdevice d),
      (d)) {
    if (!device_is(d)) return CUDA_INVALID_DEVICE;
    CUcontext c = primary[d];
    if (!c || !c->retained) return CUDA_INVALID_CONTEXT;
    if (--c->retained) return CUDA_OK;
    work_wait(c, NULL);
    for (Object *o = object_first(); o; o = o->next)
        if (o->context == c && o->kind != OBJ_CONTEXT)
            leak("%s #%d when its context was released\n", object_name[o->kind],
                 o->number);
    context_drop(c);
    return CUDA_OK;
}

ENTRY(CtxPushCurrent, "cuCtxPushCurrent_v2", INIT, (CUcontext c), (c)) {
    if (!object_is(OBJ_CONTEXT, c)) return CUDA_INVALID_CONTEXT;
    refresh_stack();
    if (stack.n == MAX_STACK) {
        sim_violation("contexts are pushed and not popped");
        return CUDA_INVALID_VALUE;
    }
    stack.number[stack.n] = c->o.number;
    stack.c[stack.n++] = c;
    return CUDA_OK;
}

ENTRY(CtxPopCurrent, "cuCtxPopCurrent_v2", INIT, (CUcontext * c), (c)) {
    refresh_stack();
    if (!stack.n) return CUDA_INVALID_CONTEXT;
    CUcontext top = stack.c[--stack.n];
    if (c) *c = top;
    return CUDA_OK;
}

/* ---- memory -------------------------------------------------------------- */

ENTRY(MemGetInfo, "cuMemGetInfo_v2", CONTEXT,
      (size_t * free_bytes, size_t *total), (free_bytes, total)) {
    *total = sim_config.memory;
    *free_bytes = sim_config.memory - sim_counts.allocated;
    return CUDA_OK;
}

ENTRY(MemAlloc, "cuMemAlloc_v2", CONTEXT | SAFE,
      (CUdeviceptr * p, size_t bytes), (p, bytes)) {
    return memory_alloc(bytes, p);
}

/* Freeing waits for all work, like a real driver. */
ENTRY_END(MemFree, "cuMemFree_v2", CONTEXT | SAFE, (CUdeviceptr p), (p)) {
    work_wait(NULL, NULL);
    return p ? memory_free(p) : CUDA_OK;
}

ENTRY(PointerGetAttribute, "cuPointerGetAttribute", CONTEXT,
      (void *value, int attribute, CUdeviceptr p), (value, attribute, p)) {
    if (attribute != CUDA_POINTER_DEVICE_ORDINAL) {
        sim_violation("pointer attribute %d is not simulated", attribute);
        return CUDA_INVALID_VALUE;
    }
    if (!memory_is(p)) return CUDA_INVALID_VALUE;
    *(int *)value = context_current()->device;
    return CUDA_OK;
}

ENTRY(MemHostAlloc, "cuMemHostAlloc", CONTEXT | SAFE,
      (void **p, size_t bytes, unsigned flags), (p, bytes, flags)) {
    (void)flags;
    return bytes ? pinned_alloc(bytes, p) : CUDA_INVALID_VALUE;
}

ENTRY_END(MemFreeHost, "cuMemFreeHost", CONTEXT | SAFE, (void *p), (p)) {
    work_wait(NULL, NULL);
    return pinned_free(p);
}

ENTRY(MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", CONTEXT,
      (CUdeviceptr to, const void *from, size_t bytes, CUstream s),
      (to, from, bytes, s)) {
    CUresult rc = stream_of(s, &s);
    if (rc) return rc;
    if (!to || !from) return bytes ? CUDA_INVALID_VALUE : CUDA_OK;
    return stream_copy(s, to, 0, (void *)(uintptr_t)from, bytes);
}

ENTRY(MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", CONTEXT,
      (void *to, CUdeviceptr from, size_t bytes, CUstream s),
      (to, from, bytes, s)) {
    CUresult rc = stream_of(s, &s);
    if (rc) return rc;
    if (!to || !from) return bytes ? CUDA_INVALID_VALUE : CUDA_OK;
    return stream_copy(s, 0, from, to, bytes);
}

ENTRY(MemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", CONTEXT,
      (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s),
      (to, from, bytes, s)) {
    CUresult rc = stream_of(s, &s);
    if (rc) return rc;
    if (!to || !from) return bytes ? CUDA_INVALID_VALUE : CUDA_OK;
    return stream_copy(s, to, from, NULL, bytes);
}

ENTRY(MemsetD8Async, "cuMemsetD8Async", CONTEXT,
      (CUdeviceptr to, unsigned char value, size_t bytes, CUstream s),
      (to, value, bytes, s)) {
    CUresult rc = stream_of(s, &s);
    return rc ? rc : stream_fill(s, to, value, bytes);
}

/* ---- modules and launches ------------------------------------------------ */

ENTRY(ModuleLoadDataEx, "cuModuleLoadDataEx", CONTEXT | SAFE,
      (CUmodule * m, const void *image, unsigned nopt, int *options,
       void **values),
      (m, image, nopt, options, values)) {
    CUresult rc = module_load(m, image);
    for (unsigned i = 0; rc && i + 1 < nopt; i++)
        if (options[i] == CUDA_JIT_ERROR_LOG &&
            options[i + 1] == CUDA_JIT_ERROR_LOG_BYTES)
            snprintf(values[i], (size_t)(uintptr_t)values[i + 1],
                     "simulated compiler: error %d", rc);
    return rc;
}

ENTRY_END(ModuleUnload, "cuModuleUnload", CONTEXT | SAFE, (CUmodule m), (m)) {
    if (!object_is(OBJ_MODULE, m)) return CUDA_INVALID_HANDLE;
    work_wait(NULL, NULL);
    module_drop(m);
    return CUDA_OK;
}

ENTRY(ModuleGetFunction, "cuModuleGetFunction", CONTEXT,
      (CUfunction * f, CUmodule m, const char *name), (f, m, name)) {
    if (!object_is(OBJ_MODULE, m)) return CUDA_INVALID_HANDLE;
    for (int i = 0; i < m->nfn; i++)
        if (!strcmp(m->fn[i].name, name)) {
            *f = &m->fn[i];
            return CUDA_OK;
        }
    return CUDA_NOT_FOUND;
}

ENTRY(FuncSetAttribute, "cuFuncSetAttribute", CONTEXT,
      (CUfunction f, int attribute, int value), (f, attribute, value)) {
    if (!function_is(f)) return CUDA_INVALID_HANDLE;
    if (attribute != CUDA_FUNC_MAX_DYNAMIC_SHARED || value < 0 ||
        (unsigned)value + f->shared > shared_optin())
        return CUDA_INVALID_VALUE;
    f->dynamic_limit = (unsigned)value;
    return CUDA_OK;
}

ENTRY(LaunchKernel, "cuLaunchKernel", CONTEXT,
      (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
       unsigned by, unsigned bz, unsigned shared, CUstream s, void **params,
       void **extra),
      (f, gx, gy, gz, bx, by, bz, shared, s, params, extra)) {
    CUresult rc = stream_of(s, &s);
    if (rc) return rc;
    return stream_launch(f, (SimDim){gx, gy, gz}, (SimDim){bx, by, bz}, shared,
                         s, params, extra);
}

/* ---- streams ------------------------------------------------------------- */

ENTRY(StreamCreate, "cuStreamCreate", CONTEXT, (CUstream * s, unsigned flags),
      (s, flags)) {
    if (flags > CUDA_STREAM_NON_BLOCKING) return CUDA_INVALID_VALUE;
    *s = object_new(OBJ_STREAM, sizeof **s);
    if (!*s) return CUDA_OUT_OF_MEMORY;
    (*s)->blocking = !(flags & CUDA_STREAM_NON_BLOCKING);
    return CUDA_OK;
}

ENTRY_END(StreamDestroy, "cuStreamDestroy_v2", CONTEXT, (CUstream s), (s)) {
    if (!object_is(OBJ_STREAM, s)) return CUDA_INVALID_HANDLE;
    stream_drop(s);
    return CUDA_OK;
}

ENTRY(StreamSynchronize, "cuStreamSynchronize", CONTEXT | SAFE, (CUstream s),
      (s)) {
    CUresult rc = stream_of(s, &s);
    if (rc) return rc;
    if (s->capture) {
        capture_invalidate(s->capture);
        return CUDA_STREAM_CAPTURE_UNSUPPORTED;
    }
    return s->tail ? work_wait(s->o.context, s->tail) : CUDA_OK;
}

ENTRY(StreamWaitEvent, "cuStreamWaitEvent", CONTEXT,
      (CUstream s, CUevent e, unsigned flags), (s, e, flags)) {
    CUresult rc = stream_of(s, &s);
    if (rc) return rc;
    if (!object_is(OBJ_EVENT, e)) return CUDA_INVALID_HANDLE;
    return flags ? CUDA_INVALID_VALUE : stream_wait(s, e);
}

ENTRY(StreamIsCapturing, "cuStreamIsCapturing", CONTEXT,
      (CUstream s, int *status), (s, status)) {
    CUresult rc = stream_of(s, &s);
    if (!rc) *status = capture_status(s);
    return rc;
}

static void (*at_capture)(void *ctx);
static void *at_capture_ctx;

void sim_at_capture(void (*fn)(void *ctx), void *ctx) {
    sim_lock();
    at_capture = fn;
    at_capture_ctx = ctx;
    sim_unlock();
}

CUresult drv_StreamBeginCapture(CUstream s, int mode) {
    CUresult rc = enter("cuStreamBeginCapture_v2", CONTEXT);
    if (!rc) rc = sticky();
    if (!rc) rc = stream_of(s, &s);
    if (!rc) rc = capture_begin(s, mode);
    void (*then)(void *) = rc ? NULL : at_capture;
    if (then) at_capture = NULL;
    sim_unlock();
    if (then) then(at_capture_ctx);
    return rc == SIM_LEFT_OUT ? CUDA_OK : rc;
}

static CUresult end_capture(CUstream s, CUgraph *g) {
    CUresult rc = stream_of(s, &s);
    *g = NULL;
    return rc ? rc : capture_end(s, g);
}

/* The capture ends even if this call is made to fail. */
CUresult drv_StreamEndCapture(CUstream s, CUgraph *g) {
    CUresult asked = enter("cuStreamEndCapture", CONTEXT);
    CUresult rc = asked == SIM_LEFT_OUT ? CUDA_OK : end_capture(s, g);
    if (asked == SIM_LEFT_OUT) asked = CUDA_OK;
    if (asked && *g) graph_drop(*g);
    if (asked) *g = NULL;
    if (!rc) rc = sticky();
    sim_unlock();
    return asked ? asked : rc;
}

/* ---- events -------------------------------------------------------------- */

ENTRY(EventCreate, "cuEventCreate", CONTEXT, (CUevent * e, unsigned flags),
      (e, flags)) {
    *e = object_new(OBJ_EVENT, sizeof **e);
    if (!*e) return CUDA_OUT_OF_MEMORY;
    (*e)->timing = !(flags & CUDA_EVENT_DISABLE_TIMING);
    return CUDA_OK;
}

ENTRY(EventRecord, "cuEventRecord", CONTEXT, (CUevent e, CUstream s), (e, s)) {
    CUresult rc = stream_of(s, &s);
    if (rc) return rc;
    return object_is(OBJ_EVENT, e) ? stream_record(e, s) : CUDA_INVALID_HANDLE;
}

static CUresult captured(CUevent e) {
    if (!object_is(OBJ_EVENT, e)) return CUDA_INVALID_HANDLE;
    if (!e->capture) return capture_forbids();
    capture_invalidate(e->capture);
    return CUDA_CAPTURED_EVENT;
}

ENTRY(EventSynchronize, "cuEventSynchronize", CONTEXT, (CUevent e), (e)) {
    CUresult rc = captured(e);
    if (rc || !e->last) return rc;
    return work_wait(e->o.context, e->last);
}

/* Makes progress, so that a caller that polls gets an answer. */
ENTRY(EventQuery, "cuEventQuery", CONTEXT, (CUevent e), (e)) {
    CUresult rc = captured(e);
    if (rc || !e->last || e->last->done) return rc;
    work_some();
    if (!e->last->done) return CUDA_NOT_READY;
    return e->o.context->sticky;
}

ENTRY(EventElapsedTime, "cuEventElapsedTime", CONTEXT,
      (float *ms, CUevent a, CUevent b), (ms, a, b)) {
    if (!object_is(OBJ_EVENT, a) || !object_is(OBJ_EVENT, b) || !a->timing ||
        !b->timing || !a->last || !b->last)
        return CUDA_INVALID_HANDLE;
    if (!a->last->done || !b->last->done) return CUDA_NOT_READY;
    *ms = (float)(b->last->time - a->last->time);
    return CUDA_OK;
}

ENTRY_END(EventDestroy, "cuEventDestroy_v2", CONTEXT, (CUevent e), (e)) {
    if (!object_is(OBJ_EVENT, e)) return CUDA_INVALID_HANDLE;
    event_drop(e);
    return CUDA_OK;
}

/* ---- graphs -------------------------------------------------------------- */

ENTRY(GraphInstantiate, "cuGraphInstantiateWithFlags", CONTEXT,
      (CUgraphExec * x, CUgraph g, unsigned long long flags), (x, g, flags)) {
    if (!object_is(OBJ_GRAPH, g)) return CUDA_INVALID_HANDLE;
    return flags ? CUDA_INVALID_VALUE : graph_instantiate(g, x);
}

ENTRY(GraphLaunch, "cuGraphLaunch", CONTEXT, (CUgraphExec x, CUstream s),
      (x, s)) {
    CUresult rc = stream_of(s, &s);
    if (rc) return rc;
    if (!object_is(OBJ_EXEC, x)) return CUDA_INVALID_HANDLE;
    if (s->capture) {
        capture_invalidate(s->capture);
        return CUDA_STREAM_CAPTURE_UNSUPPORTED;
    }
    return stream_graph(x, s);
}

ENTRY_END(GraphExecDestroy, "cuGraphExecDestroy", CONTEXT, (CUgraphExec x),
          (x)) {
    if (!object_is(OBJ_EXEC, x)) return CUDA_INVALID_HANDLE;
    exec_drop(x);
    return CUDA_OK;
}

ENTRY_END(GraphDestroy, "cuGraphDestroy", CONTEXT, (CUgraph g), (g)) {
    if (!object_is(OBJ_GRAPH, g)) return CUDA_INVALID_HANDLE;
    graph_drop(g);
    return CUDA_OK;
}

/* Every row of driver.def must exist: a missing one fails to link. */
const void *const sim_entries[] = {
#define CU(member, symbol, params) (const void *)(uintptr_t)&drv_##member,
#include "runtime/cuda/driver.def"
#undef CU
};
