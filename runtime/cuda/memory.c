/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c: the device's memory: one allocation on the device and one pinned on
   the host, made at open; and one for micro-steps only, made before the first
   of them.

   On the device, each piece on a 256-byte boundary: scalars, other
   variables, activations, inputs of the running program, slots for the
   inputs of the next ones, scratch, cuBLASLt's workspace, tables, counters.
   A separate block has gradients and, if the programs that read or write
   them need more, their activations. Scalars are adjacent, so that one copy
   transfers all those that the API reports. */
#include <stdio.h>
#include <string.h>

#include "runtime/base/try.h"
#include "runtime/cuda/gpu.h"

/* ---- layout -------------------------------------------------------------- */

static uint64_t add(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

uint64_t gpu_round(uint64_t bytes) {
    return add(bytes, GPU_ALIGN - 1) / GPU_ALIGN * GPU_ALIGN;
}

/* The offset of the next piece. */
static uint64_t lay(uint64_t *total, uint64_t bytes) {
    uint64_t at = *total;
    *total = bytes > INT64_MAX ? UINT64_MAX : add(at, gpu_round(bytes));
    return at;
}

typedef enum VarGroup { GROUP_SCALAR, GROUP_ARRAY, GROUP_GRAD } VarGroup;

static VarGroup var_group(const PlanVar *v) {
    if (v->kind == PLAN_GRAD) return GROUP_GRAD;
    return v->rank == 0 ? GROUP_SCALAR : GROUP_ARRAY;
}

/* Variables shared by ranks get memory for this rank's part only; the
   address is moved back by the part's offset. */
static void lay_vars(const ampc_session *s, GpuDevice *d, VarGroup group,
                     uint64_t *total) {
    for (uint32_t i = 0; i < s->m->nvar; i++) {
        uint64_t lo, hi;
        if (var_group(&s->m->vars[i]) != group) continue;
        shard_range(s, i, &lo, &hi);
        d->var[i] = lay(total, hi - lo) - lo;
    }
}

/* Assigns offsets to all memory, from 0 on. */
static uint64_t lay_all(const ampc_session *s, GpuDevice *d) {
    const AmpcModule *m = s->m;
    uint64_t total = 0, apart = 0, arena = 0, late = 0;
    bool needed = false;
    for (uint32_t i = 0; i < m->nprogram; i++) {
        const GpuProgram *p = &d->programs[i];
        uint64_t *most = p->late ? &late : &arena;
        needed |= p->late;
        if (m->cuda->plan->runs[i].arena > *most)
            *most = m->cuda->plan->runs[i].arena;
        if (p->input_bytes > d->slot_bytes) d->slot_bytes = p->input_bytes;
    }
    lay_vars(s, d, GROUP_SCALAR, &total);
    lay_vars(s, d, GROUP_ARRAY, &total);
    lay_vars(s, d, GROUP_GRAD, &apart);
    if (needed && !apart) lay(&apart, 1); /* programs wait for the block */
    d->grads_bytes = apart;
    d->late_arena = lay(&apart, late > arena ? late : 0);
    d->late_bytes = apart;
    d->arena = lay(&total, arena);
    d->input = lay(&total, d->slot_bytes);
    for (int i = 0; i < GPU_SLOTS; i++) d->slot[i] = lay(&total, d->slot_bytes);
    d->scratch = lay(&total, d->scratch_bytes);
    d->workspace = lay(&total, d->workspace_bytes);
    d->zero = lay(&total, sizeof(double));
    d->rows = lay(&total, d->row_bytes);
    d->counters = lay(&total, d->counter_bytes);
    d->bad = lay(&total, gpu_ranks_bytes(s));
    d->sent = lay(&total, gpu_sent_bytes(s));
    return total;
}

static void move_all(const AmpcModule *m, GpuDevice *d) {
    CUdeviceptr *const pieces[] = {&d->arena,     &d->input,   &d->slot[0],
                                   &d->slot[1],   &d->scratch, &d->zero,
                                   &d->workspace, &d->rows,    &d->bad,
                                   &d->sent,      &d->counters};
    for (uint32_t i = 0; i < m->nvar; i++)
        if (var_group(&m->vars[i]) != GROUP_GRAD) d->var[i] += d->memory;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        *pieces[i] += d->memory;
}

/* ---- allocation ---------------------------------------------------------- */

/* Bytes that --state-dtype int8 saves: of 4 bytes of each element stay one and
   its share of a scale, of optimizer state that is large enough for codes. */
static uint64_t state_saving(const ampc_session *s) {
    enum { LEAST = 4096, EACH = 128 };
    uint64_t saved = 0;
    for (uint32_t i = 0; i < s->m->nvar; i++) {
        const PlanVar *v = &s->m->vars[i];
        uint64_t lo, hi;
        shard_range(s, i, &lo, &hi);
        if (v->kind == PLAN_STATE && v->dtype == AMPC_F32 &&
            v->bytes >= 4 * LEAST && v->bytes / 4 % EACH == 0)
            saved += (hi - lo) / 4 * 3 - (hi - lo) / EACH;
    }
    return saved;
}

/* "" or the largest batch whose activations are `fewer` of `arena` bytes. */
static void put_batch(const ampc_session *s, uint64_t fewer, uint64_t arena,
                      char *text, size_t size) {
    double part = (double)(arena - fewer) / (double)arena;
    long long most = (long long)((double)s->batch * part);
    *text = 0;
    if (most > 0)
        snprintf(text, size,
                 " or a batch of at most %lld instead of %lld (--dim)", most,
                 (long long)s->batch);
}

/* Options with which the session lacks no bytes, if `arena` of what it needs
   are activations; `lacks` > 0. */
static void put_remedy(const ampc_session *s, uint64_t lacks, uint64_t arena,
                       char *text, size_t size) {
    unsigned long long saved = state_saving(s), all = arena;
    char state[80] = "", batch[100];
    if (saved)
        snprintf(state, sizeof state, "--state-dtype int8, which saves %llu",
                 saved);
    if (arena > lacks) {
        put_batch(s, lacks, arena, batch, sizeof batch);
        snprintf(text, size,
                 "; %llu of them are activations: compile with --remat %llu%s"
                 "%s%s",
                 all, all - lacks, batch, saved >= lacks ? " or " : "",
                 saved >= lacks ? state : "");
    } else if (saved >= lacks) {
        snprintf(text, size, "; compile with %s", state);
    } else if (saved + arena > lacks) {
        snprintf(text, size,
                 "; %llu of them are activations: compile with --remat %llu "
                 "and %s",
                 all, all - (lacks - saved), state);
    } else {
        snprintf(text, size,
                 "; %llu of them are activations: --remat%s is not enough; a "
                 "smaller model or batch (--dim) or --shard-optimizer is "
                 "needed",
                 all, saved ? " with --state-dtype int8" : "");
    }
}

static ampc_status no_memory(ampc_session *s, CUresult e, const char *call,
                             uint64_t bytes, uint64_t arena, const char *what) {
    GpuDevice *d = gpu_of(s);
    size_t free_bytes = 0, all = 0;
    char remedy[300] = "";
    if (e != CUDA_OUT_OF_MEMORY) return gpu_fail(s, e, call, NULL);
    d->cu.MemGetInfo(&free_bytes, &all);
    if (arena && bytes > free_bytes)
        put_remedy(s, bytes - free_bytes, arena, remedy, sizeof remedy);
    return session_fail(s, AMPC_ERR_MEMORY,
                        "out of memory on GPU '%s': %llu bytes of %s memory "
                        "are needed; %zu of the GPU's %zu are free%s",
                        d->name, (unsigned long long)bytes, what, free_bytes,
                        all, remedy);
}

static ampc_status alloc_device(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    d->bytes = lay_all(s, d);
    uint64_t arena = d->input - d->arena; /* lie side by side */
    if (d->bytes > INT64_MAX)
        return no_memory(s, CUDA_OUT_OF_MEMORY, "", d->bytes, 0, "device");
    CUresult e = d->cu.MemAlloc(&d->memory, d->bytes);
    if (e != CUDA_OK)
        return no_memory(s, e, "cuMemAlloc", d->bytes, arena, "device");
    move_all(s->m, d);
    return AMPC_OK;
}

static ampc_status alloc_pinned(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    uint64_t total = 0;
    uint64_t slot[GPU_SLOTS];
    for (int i = 0; i < GPU_SLOTS; i++) slot[i] = lay(&total, d->slot_bytes);
    uint64_t small = lay(&total, GPU_SMALL * GPU_SMALL_BYTES);
    uint64_t bounce = lay(&total, GPU_BOUNCE);
    uint64_t scalars = lay(&total, (uint64_t)s->m->nprogram * GPU_SCALARS);
    uint64_t bad = lay(&total, gpu_ranks_bytes(s));
    void *p = NULL;
    CUresult e = d->cu.MemHostAlloc(&p, total, 0);
    if (e != CUDA_OK)
        return no_memory(s, e, "cuMemHostAlloc", total, 0, "pinned host");
    d->pinned = p;
    d->pinned_bytes = total;
    memset(p, 0, total);
    for (int i = 0; i < GPU_SLOTS; i++) d->host_slot[i] = d->pinned + slot[i];
    d->small = d->pinned + small;
    d->bounce = d->pinned + bounce;
    d->scalars = d->pinned + scalars;
    d->host_bad = (int64_t *)(void *)(d->pinned + bad);
    return AMPC_OK;
}

ampc_status memory_alloc(ampc_session *s) {
    ampc_status status = alloc_device(s);
    return status == AMPC_OK ? alloc_pinned(s) : status;
}

ampc_status memory_alloc_late(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    if (!d->late_bytes) return AMPC_OK;
    if (d->late_bytes > INT64_MAX)
        return no_memory(s, CUDA_OUT_OF_MEMORY, "", d->late_bytes, 0, "device");
    CUresult e = d->cu.MemAlloc(&d->late, d->late_bytes);
    if (e != CUDA_OK)
        return no_memory(s, e, "cuMemAlloc", d->late_bytes, 0, "device");
    for (uint32_t i = 0; i < s->m->nvar; i++)
        if (var_group(&s->m->vars[i]) == GROUP_GRAD) d->var[i] += d->late;
    d->late_arena =
        d->late_bytes > d->grads_bytes ? d->late_arena + d->late : d->arena;
    return AMPC_OK;
}

void memory_free(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    if (d->late) d->cu.MemFree(d->late);
    if (d->memory) d->cu.MemFree(d->memory);
    if (d->pinned) d->cu.MemFreeHost(d->pinned);
    d->memory = d->late = 0;
    d->pinned = NULL;
}

/* ---- addresses ----------------------------------------------------------- */

/* Inputs of a program are adjacent. */
static uint64_t input_offset(const AmpcModule *m, int program, uint32_t input) {
    uint64_t at = 0, bytes = 0;
    const PlanProgram *p = &m->programs[program];
    for (uint32_t i = 0; i < input; i++) {
        const PlanTensor *t = &m->tensors[p->in0 + i];
        dense_bytes(t->dtype, t->rank, t->dim, &bytes);
        at += gpu_round(bytes);
    }
    return at;
}

CUdeviceptr gpu_address(const ampc_session *s, int program, PlanRef r) {
    const GpuDevice *d = gpu_of(s);
    switch (r.space) {
    case PLAN_ARENA:
        return (d->programs[program].late ? d->late_arena : d->arena) +
               r.offset;
    case PLAN_VAR:
        if (!d->late && s->m->vars[r.index].kind == PLAN_GRAD) return 0;
        return d->var[r.index] + r.offset;
    case PLAN_INPUT:
        return d->input + input_offset(s->m, program, r.index) + r.offset;
    default: return 0;
    }
}

/* ---- copies -------------------------------------------------------------- */

ampc_status gpu_get(ampc_session *s, PlanRef from, void *to, uint64_t bytes) {
    GpuDevice *d = gpu_of(s);
    const char *whole = shard_whole(s, from);
    CUdeviceptr p = gpu_address(s, s->last, from);
    if (whole && bytes) memcpy(to, whole, bytes);
    if (whole) return AMPC_OK;
    if (!p) memset(to, 0, bytes); /* a gradient before the first micro-step */
    for (uint64_t at = 0; p && at < bytes; at += GPU_BOUNCE) {
        uint64_t n = bytes - at < GPU_BOUNCE ? bytes - at : GPU_BOUNCE;
        GPU(d->cu.MemcpyDtoHAsync(d->bounce, p + at, n, d->stream),
            "copy to the host");
        TRY(gpu_wait_stream(s, d->stream, "copy to the host"));
        memcpy((char *)to + at, d->bounce, n);
    }
    return AMPC_OK;
}

ampc_status gpu_owns(ampc_session *s, const char *what, const void *array) {
    GpuDevice *d = gpu_of(s);
    int ordinal;
    CUresult e = d->cu.PointerGetAttribute(
        &ordinal, CUDA_POINTER_DEVICE_ORDINAL, (uintptr_t)array);
    if (e == CUDA_OK && ordinal == d->device) return AMPC_OK;
    if (e != CUDA_OK && e != CUDA_INVALID_VALUE)
        return gpu_fail(s, e, "cuPointerGetAttribute", NULL);
    return session_fail(s, AMPC_ERR_ARGUMENT,
                        e ? "'%.200s' points to no memory of GPU '%s'"
                          : "'%.200s' lies in the memory of another GPU than "
                            "'%s', which the session runs on",
                        what, d->name);
}

ampc_status gpu_join_host(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    if (s->opt.stream) return AMPC_OK; /* it is ours */
    GPU(d->cu.EventRecord(d->given, NULL), "cuEventRecord");
    GPU(d->cu.StreamWaitEvent(d->stream, d->given, 0), "cuStreamWaitEvent");
    return AMPC_OK;
}

ampc_status gpu_leave_host(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    if (s->opt.stream) return AMPC_OK;
    GPU(d->cu.EventRecord(d->taken, d->stream), "cuEventRecord");
    GPU(d->cu.StreamWaitEvent(NULL, d->taken, 0), "cuStreamWaitEvent");
    return AMPC_OK;
}

ampc_status gpu_give(ampc_session *s, PlanRef from, void *to, uint64_t bytes) {
    GpuDevice *d = gpu_of(s);
    const char *whole = shard_whole(s, from);
    CUdeviceptr p = gpu_address(s, s->last, from), out = (uintptr_t)to;
    if (!bytes) return AMPC_OK;
    ampc_status status = gpu_owns(s, "output", to);
    if (status == AMPC_OK) status = gpu_join_host(s);
    if (status != AMPC_OK) return status;
    if (whole)
        status = gpu_write(s, out, whole, bytes);
    else if (p)
        GPU(d->cu.MemcpyDtoDAsync(out, p, bytes, d->stream),
            "copy in the device");
    else /* a gradient before any micro-step */
        GPU(d->cu.MemsetD8Async(out, 0, bytes, d->stream), "cuMemsetD8Async");
    return status == AMPC_OK ? gpu_leave_host(s) : status;
}

/* Waits only for the earlier copy that used the same part of the ring. */
static ampc_status write_small(ampc_session *s, CUdeviceptr to,
                               const void *from, uint64_t bytes) {
    GpuDevice *d = gpu_of(s);
    unsigned i = d->next_small++ % GPU_SMALL;
    char *host = d->small + i * GPU_SMALL_BYTES;
    TRY(gpu_wait(s, d->written[i], "copy to the device"));
    memcpy(host, from, bytes);
    GPU(d->cu.MemcpyHtoDAsync(to, host, bytes, d->stream),
        "copy to the device");
    GPU(d->cu.EventRecord(d->written[i], d->stream), "copy to the device");
    return AMPC_OK;
}

ampc_status gpu_write(ampc_session *s, CUdeviceptr to, const void *from,
                      uint64_t bytes) {
    GpuDevice *d = gpu_of(s);
    if (bytes == 0) return AMPC_OK;
    if (bytes <= GPU_SMALL_BYTES) return write_small(s, to, from, bytes);
    for (uint64_t at = 0; at < bytes; at += GPU_BOUNCE) {
        uint64_t n = bytes - at < GPU_BOUNCE ? bytes - at : GPU_BOUNCE;
        memcpy(d->bounce, (const char *)from + at, n);
        GPU(d->cu.MemcpyHtoDAsync(to + at, d->bounce, n, d->stream),
            "copy to the device");
        TRY(gpu_wait_stream(s, d->stream, "copy to the device"));
    }
    return AMPC_OK;
}

ampc_status gpu_put(ampc_session *s, PlanRef to, const void *from,
                    uint64_t bytes) {
    char *whole = shard_whole(s, to);
    if (!whole) return gpu_write(s, gpu_address(s, s->last, to), from, bytes);
    if (bytes) memcpy(whole, from, bytes);
    return AMPC_OK;
}

ampc_status gpu_zero(ampc_session *s, PlanRef to, uint64_t bytes) {
    GpuDevice *d = gpu_of(s);
    char *whole = shard_whole(s, to);
    if (whole)
        memset(whole, 0, bytes);
    else if (bytes)
        GPU(d->cu.MemsetD8Async(gpu_address(s, s->last, to), 0, bytes,
                                d->stream),
            "cuMemsetD8Async");
    return AMPC_OK;
}

ampc_status gpu_zero_grads(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    if (d->late)
        GPU(d->cu.MemsetD8Async(d->late, 0, d->grads_bytes, d->stream),
            "cuMemsetD8Async");
    return AMPC_OK;
}
