/* SPDX-License-Identifier: Apache-2.0 */
/* stream.c: operations of streams: kernels, copies, fills, callbacks,
   events. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/module.h"

/* ---- order --------------------------------------------------------------- */

CUresult stream_of(CUstream s, CUstream *out) {
    CUcontext c = context_current();
    *out = s;
    if (!c) return CUDA_INVALID_CONTEXT;
    if (s) {
        if (!object_is(OBJ_STREAM, s)) return CUDA_INVALID_HANDLE;
        return s->o.context == c ? CUDA_OK : CUDA_INVALID_CONTEXT;
    }
    *out = c->legacy;
    return CUDA_OK;
}

static bool same_context(const Object *o, CUcontext c) {
    return o->kind == OBJ_STREAM && o->context == c;
}

/* Collects the work for which new work in s must wait. The legacy stream and
   blocking streams wait for each other. */
static bool collect(CUstream s, WorkList *l) {
    CUcontext c = s->o.context;
    bool ok = list_add(l, s->tail);
    if (s == c->legacy) {
        for (Object *o = object_first(); o; o = o->next)
            if (same_context(o, c) && ((CUstream)o)->blocking)
                ok = ok && list_add(l, ((CUstream)o)->tail);
    } else if (s->blocking) {
        ok = ok && list_add(l, c->legacy->tail);
    }
    return ok;
}

static void set_tail(CUstream s, Work *w) {
    work_drop(s->tail);
    s->tail = work_keep(w);
}

/* Queues a job after all work that s waits for, and after `extra`; borrowed. */
static Work *append(CUstream s, Job *j, Work *extra) {
    WorkList l = {NULL, 0, 0};
    Work *w = NULL;
    if (collect(s, &l) && list_add(&l, extra))
        w = work_add(s->o.context, j, &l);
    if (w) set_tail(s, w);
    list_free(&l);
    return w;
}

/* Work in the legacy stream would wait for a capturing stream. */
static bool implicit(CUstream s) {
    if (s != s->o.context->legacy) return false;
    for (Object *o = object_first(); o; o = o->next) {
        CUstream t = (CUstream)o;
        if (!same_context(o, s->o.context) || !t->blocking || !t->capture)
            continue;
        capture_invalidate(t->capture);
        return true;
    }
    return false;
}

CUresult stream_add(CUstream s, Job *j) {
    if (!j) return CUDA_OUT_OF_MEMORY;
    if (s->capture) return capture_add(s, j);
    CUresult rc = implicit(s)          ? CUDA_CAPTURE_IMPLICIT
                  : append(s, j, NULL) ? CUDA_OK
                                       : CUDA_OUT_OF_MEMORY;
    job_drop(j);
    return rc;
}

CUresult sim_enqueue(CUstream s, const char *name, int (*fn)(void *ctx),
                     void *ctx, void (*release)(void *ctx)) {
    sim_lock();
    CUstream t;
    CUresult rc = stream_of(s, &t);
    if (!rc) rc = t->o.context->sticky;
    Job *j = job_new(name, fn, ctx, release);
    if (rc)
        job_drop(j);
    else
        rc = stream_add(t, j);
    sim_unlock();
    return rc;
}

/* ---- kernels ------------------------------------------------------------- */

typedef struct KernelJob {
    SimLaunch launch;
    CUmodule module;
    int number; /* of the module */
    void **params;
    char *values;
} KernelJob;

/* A graph may have outlived its module. */
static int run_kernel(void *data) {
    const KernelJob *k = data;
    if (object_is(OBJ_MODULE, k->module) && k->module->o.number == k->number)
        return sim_launch(&k->launch);
    sim_violation("launch of a kernel whose module was unloaded");
    return CUDA_ILLEGAL_ADDRESS;
}

static void free_kernel(void *data) {
    KernelJob *k = data;
    if (!k) return;
    free(k->params);
    free(k->values);
    free(k);
}

enum { SLOT = 16 }; /* parameters are aligned to this */

static size_t slot(const SimKernel *k, unsigned i) {
    return (k->param_size[i] + SLOT - 1) / SLOT * SLOT;
}

/* Parameters are copied when the call is made. */
static bool copy_params(KernelJob *j, const SimKernel *k, void **params) {
    size_t bytes = 0;
    for (unsigned i = 0; i < k->nparam; i++) bytes += slot(k, i);
    j->values = aligned_alloc(SLOT, bytes + SLOT);
    j->params = calloc(k->nparam + 1, sizeof *j->params);
    if (!j->values || !j->params) return false;
    char *at = j->values;
    for (unsigned i = 0; i < k->nparam; i++, at += slot(k, i - 1)) {
        memcpy(at, params[i], k->param_size[i]);
        j->params[i] = at;
    }
    return true;
}

static CUresult check_shape(CUfunction f, SimDim g, SimDim b, unsigned shared) {
    uint64_t threads = (uint64_t)b.x * b.y * b.z;
    if (!g.x || !g.y || !g.z || !threads || threads > SIM_MAX_THREADS ||
        b.x > 1024 || b.y > 1024 || b.z > 64 || g.x > 0x7fffffff ||
        g.y > 65535 || g.z > 65535)
        return CUDA_INVALID_VALUE;
    if (f->max_threads && threads > f->max_threads)
        return CUDA_LAUNCH_OUT_OF_RESOURCES;
    if (f->tile) /* the driver chooses threads and memory */
        return threads == 1 && !shared ? CUDA_OK : CUDA_INVALID_VALUE;
    return shared > f->dynamic_limit ||
                   (f->dynamic_limit <= SIM_STATIC_SHARED &&
                    shared + f->shared > SIM_STATIC_SHARED)
               ? CUDA_INVALID_VALUE
               : CUDA_OK;
}

static CUresult check_launch(CUfunction f, SimDim g, SimDim b, unsigned shared,
                             void **params, void **extra) {
    if (!function_is(f)) {
        sim_violation("launch of a function whose module is not loaded");
        return CUDA_INVALID_HANDLE;
    }
    CUresult rc = check_shape(f, g, b, shared);
    if (rc)
        sim_violation("%s: grid %u x %u x %u, block %u x %u x %u (bound %u), "
                      "shared %u + %u",
                      f->name, g.x, g.y, g.z, b.x, b.y, b.z, f->max_threads,
                      f->shared, shared);
    if (rc) return rc;
    bool missing = extra || (f->nparam && !params);
    for (unsigned i = 0; !missing && i < f->nparam; i++) missing = !params[i];
    if (missing) sim_violation("%s: a parameter is NULL", f->name);
    return missing ? CUDA_INVALID_VALUE : CUDA_OK;
}

CUresult stream_launch(CUfunction f, SimDim g, SimDim b, unsigned shared,
                       CUstream s, void **params, void **extra) {
    CUresult rc = check_launch(f, g, b, shared, params, extra);
    if (rc) return rc;
    KernelJob *j = calloc(1, sizeof *j);
    if (!j || !copy_params(j, f->kernel, params)) {
        free_kernel(j);
        return CUDA_OUT_OF_MEMORY;
    }
    j->launch =
        (SimLaunch){f->module->twin, f->kernel, g, b, shared, j->params};
    j->module = f->module;
    j->number = f->module->o.number;
    return stream_add(s, job_new(f->name, run_kernel, j, free_kernel));
}

/* ---- copies and fills ---------------------------------------------------- */

typedef struct CopyJob {
    CUdeviceptr to, from; /* 0: the host's side */
    void *host;
    char *staged; /* a copy of pageable memory, made when the call is made */
    size_t bytes;
    unsigned char value;
} CopyJob;

static void free_copy(void *data) {
    CopyJob *c = data;
    if (c) free(c->staged);
    free(c);
}

static int side(CUdeviceptr p, const CopyJob *c, void **out) {
    *out = p ? (void *)(uintptr_t)p : c->staged ? c->staged : c->host;
    if (!p || sim_device_range(p, c->bytes)) return 0;
    sim_violation("copy of %zu bytes at %#llx, which are not allocated any "
                  "more",
                  c->bytes, (unsigned long long)p);
    return CUDA_ILLEGAL_ADDRESS;
}

/* True if fewer than half of the first words differ. */
static bool is_dull(const void *p, size_t bytes) {
    enum { WORDS = 64 };
    uint16_t word[WORDS];
    size_t n = bytes / sizeof *word, differ = 0;
    if (n > WORDS) n = WORDS;
    memcpy(word, p, n * sizeof *word);
    for (size_t i = 0; i < n; i++) {
        size_t j = 0;
        while (j < i && word[j] != word[i]) j++;
        differ += j == i;
    }
    return differ < n / 2;
}

void sim_reads(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    sim_counts.products++;
    sim_counts.cold += sim_counts.written >= SIM_L2_BYTES;
    sim_counts.dull += is_dull(a, a_bytes) || is_dull(b, b_bytes);
    sim_counts.written = 0;
}

static int run_copy(void *data) {
    CopyJob *c = data;
    void *to, *from;
    sim_counts.copies++;
    if (side(c->to, c, &to) || side(c->from, c, &from))
        return CUDA_ILLEGAL_ADDRESS;
    memmove(to, from, c->bytes);
    if (c->to) sim_counts.written += c->bytes;
    return 0;
}

static int run_fill(void *data) {
    CopyJob *c = data;
    void *to;
    sim_counts.sets++;
    if (side(c->to, c, &to)) return CUDA_ILLEGAL_ADDRESS;
    memset(to, c->value, c->bytes);
    return 0;
}

static bool in_device(CUdeviceptr p, size_t bytes, const char *what) {
    if (!p || sim_device_range(p, bytes)) return true;
    sim_violation("%s: %zu bytes at %#llx are not in one allocation", what,
                  bytes, (unsigned long long)p);
    return false;
}

/* Pageable memory is staged on its way to the device, and waited for on its
   way back. */
CUresult stream_copy(CUstream s, CUdeviceptr to, CUdeviceptr from, void *host,
                     size_t bytes) {
    bool pageable = host && !pinned_has(host, bytes);
    if (!bytes) return CUDA_OK;
    if (!in_device(to, bytes, "copy to") ||
        !in_device(from, bytes, "copy from"))
        return CUDA_INVALID_VALUE;
    if (pageable && s->capture) {
        capture_invalidate(s->capture);
        return CUDA_STREAM_CAPTURE_UNSUPPORTED;
    }
    CopyJob *c = malloc(sizeof *c);
    if (!c) return CUDA_OUT_OF_MEMORY;
    *c = (CopyJob){to, from, host, NULL, bytes, 0};
    if (pageable && to) {
        c->staged = malloc(bytes);
        if (c->staged) memcpy(c->staged, host, bytes);
    }
    CUresult rc = stream_add(s, job_new("copy", run_copy, c, free_copy));
    return rc || !pageable || to ? rc : work_wait(s->o.context, s->tail);
}

CUresult stream_fill(CUstream s, CUdeviceptr to, unsigned char value,
                     size_t bytes) {
    if (!bytes) return CUDA_OK;
    if (!to || !in_device(to, bytes, "fill")) return CUDA_INVALID_VALUE;
    CopyJob *c = malloc(sizeof *c);
    if (!c) return CUDA_OUT_OF_MEMORY;
    *c = (CopyJob){to, 0, NULL, NULL, bytes, value};
    return stream_add(s, job_new("fill", run_fill, c, free_copy));
}

/* ---- events -------------------------------------------------------------- */

CUresult stream_record(CUevent e, CUstream s) {
    if (s->capture) return capture_record(e, s);
    if (implicit(s)) return CUDA_CAPTURE_IMPLICIT;
    Work *w = append(s, NULL, NULL);
    if (!w) return CUDA_OUT_OF_MEMORY;
    work_drop(e->last);
    e->last = work_keep(w);
    e->capture = NULL;
    return CUDA_OK;
}

CUresult stream_wait(CUstream s, CUevent e) {
    if (s->capture || e->capture) return capture_wait(s, e);
    if (!e->last || e->last->done) return CUDA_OK;
    return append(s, NULL, e->last) ? CUDA_OK : CUDA_OUT_OF_MEMORY;
}

/* ---- graphs -------------------------------------------------------------- */

static bool add_nodes(CUgraphExec x, CUstream s, Work *begin, Work **w,
                      WorkList *all) {
    for (int i = 0; i < x->n; i++) {
        WorkList l = {NULL, 0, 0};
        const NodeSet *a = &x->node[i].after;
        bool ok = list_add(&l, begin);
        for (int k = 0; ok && k < a->n; k++) ok = list_add(&l, w[a->at[k]]);
        w[i] = ok ? work_add(s->o.context, x->node[i].job, &l) : NULL;
        list_free(&l);
        if (!w[i] || !list_add(all, w[i])) return false;
    }
    return true;
}

/* A marker before the nodes, the nodes, a marker after all of them. */
CUresult stream_graph(CUgraphExec x, CUstream s) {
    WorkList all = {NULL, 0, 0};
    Work **w = calloc((size_t)x->n + 1, sizeof *w);
    Work *begin = w ? append(s, NULL, x->last) : NULL;
    Work *end = NULL;
    if (begin && list_add(&all, begin) && add_nodes(x, s, begin, w, &all))
        end = work_add(s->o.context, NULL, &all);
    if (end) {
        set_tail(s, end);
        work_drop(x->last);
        x->last = work_keep(end);
        sim_counts.graph_launches++;
    }
    list_free(&all);
    free(w);
    return end ? CUDA_OK : CUDA_OUT_OF_MEMORY;
}

/* ---- ends ---------------------------------------------------------------- */

/* Work queued in it continues. */
void stream_drop(CUstream s) {
    if (s->capture) {
        sim_violation("a stream that is capturing was destroyed");
        capture_invalidate(s->capture);
    }
    work_drop(s->tail);
    free(s->front.at);
    object_free(s);
}

void event_drop(CUevent e) {
    work_drop(e->last);
    free(e->front.at);
    object_free(e);
}
