/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.c: sums over ranks inside programs.

   If the communicator works on the GPU's memory, its calls are enqueued on a
   separate stream, which forks from the stream of the steps when a bucket of
   gradients is ready and joins it before program update. The last micro-step of
   an update, the sums and program update are then one run, and one CUDA
   graph.  The counts of bad data are sent along: each rank counts its own, and
   afterwards one array has all counts.

   Otherwise sums go through the host's memory: PLAN_SUM by sums.c, before
   program update, PLAN_SUM_NOW here.                                        */
#define _GNU_SOURCE
#include <time.h>

#include "runtime/base/try.h"
#include "runtime/cuda/gpu.h"

/* ---- waiting ------------------------------------------------------------- */

static ampc_status broken(ampc_session *s, const char *what) {
    return gpu_of(s)->broken = comm_failed(s, what);
}

ampc_status gpu_wait(ampc_session *s, CUevent e, const char *what) {
    GpuDevice *d = gpu_of(s);
    const ampc_comm *c = s->opt.comm;
    double begin = comm_seconds(), waited = 0;
    CUresult rc = CUDA_NOT_READY;
    if (!s->ranks.on_device) GPU(d->cu.EventSynchronize(e), what);
    while (s->ranks.on_device && (rc = d->cu.EventQuery(e)) == CUDA_NOT_READY) {
        if (c->waiting(c->ctx, waited)) return broken(s, what);
        if (waited > 1e-3)
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        waited = comm_seconds() - begin;
    }
    return s->ranks.on_device && rc ? gpu_fail(s, rc, what, NULL) : AMPC_OK;
}

ampc_status gpu_wait_stream(ampc_session *s, CUstream stream,
                            const char *what) {
    GpuDevice *d = gpu_of(s);
    if (!s->ranks.on_device) {
        GPU(d->cu.StreamSynchronize(stream), what);
        return AMPC_OK;
    }
    GPU(d->cu.EventRecord(d->waited, stream), what);
    return gpu_wait(s, d->waited, what);
}

/* ---- on the device ------------------------------------------------------- */

static ampc_status fork_off(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    GPU(d->cu.EventRecord(d->forked, d->work), "cuEventRecord");
    GPU(d->cu.StreamWaitEvent(d->ranks, d->forked, 0), "cuStreamWaitEvent");
    return AMPC_OK;
}

static ampc_status ranks_join(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    GPU(d->cu.EventRecord(d->joined, d->ranks), "cuEventRecord");
    GPU(d->cu.StreamWaitEvent(d->work, d->joined, 0), "cuStreamWaitEvent");
    return AMPC_OK;
}

static int add_up(ampc_session *s, CUdeviceptr data, uint64_t bytes,
                  ampc_dtype dtype) {
    const ampc_comm *c = s->opt.comm;
    return c->allreduce_on(c->ctx, data, bytes / dtype_bytes((uint32_t)dtype),
                           dtype, gpu_of(s)->ranks);
}

/* Gradients that are adjacent in memory, including gaps, or a single
   gradient that is summed in parts. */
typedef struct Span {
    uint32_t ref; /* to look at next */
    CUdeviceptr from;
    uint64_t bytes;
    bool in_parts;
} Span;

static bool next_span(const ampc_session *s, const PlanStep *t, Span *x) {
    const PlanRef *r = &s->plan->refs[t->ref0];
    if (x->ref == t->nref) return false;
    x->from = gpu_address(s, 0, r[x->ref]);
    x->bytes = 0;
    for (x->in_parts = false; x->ref < t->nref && !x->in_parts; x->ref++) {
        uint32_t var = r[x->ref].index;
        uint64_t lo, hi;
        CUdeviceptr at = gpu_address(s, 0, r[x->ref]);
        bool parts = shard_sum(s, var, 0, &lo, &hi);
        if (x->bytes && (parts || at != gpu_round(x->from + x->bytes))) break;
        x->bytes = at + s->m->vars[var].bytes - x->from;
        x->in_parts = parts;
    }
    return true;
}

/* A span that is stored at `at` in that dtype. */
static int add_span(ampc_session *s, const PlanStep *t, const Span *x,
                    CUdeviceptr at, ampc_dtype dtype) {
    const ampc_comm *c = s->opt.comm;
    uint64_t each = dtype_bytes((uint32_t)dtype), lo, hi;
    int failed = 0;
    if (!x->in_parts) return add_up(s, at, x->bytes / 4 * each, dtype);
    for (int r = 0; r < c->world && !failed; r++) {
        shard_sum(s, s->plan->refs[t->ref0 + x->ref - 1].index, r, &lo, &hi);
        if (lo < hi)
            failed = comm_reduce_on(c, at + lo / 4 * each, (hi - lo) / 4, dtype,
                                    r, gpu_of(s)->ranks);
    }
    return failed;
}

/* Zeroes the parts of other ranks, for values that are summed in parts. */
static ampc_status clear_others(ampc_session *s, const PlanStep *t) {
    GpuDevice *d = gpu_of(s);
    for (Span x = {0}; next_span(s, t, &x);) {
        uint32_t var = s->plan->refs[t->ref0 + x.ref - 1].index;
        uint64_t lo, hi;
        if (!shard_sum(s, var, s->opt.comm->rank, &lo, &hi)) continue;
        if (lo)
            GPU(d->cu.MemsetD8Async(x.from, 0, lo, d->ranks),
                "cuMemsetD8Async");
        if (hi < x.bytes)
            GPU(d->cu.MemsetD8Async(x.from + hi, 0, x.bytes - hi, d->ranks),
                "cuMemsetD8Async");
    }
    return AMPC_OK;
}

static ampc_status add_bucket(ampc_session *s, const PlanStep *t) {
    const ampc_comm *c = s->opt.comm;
    int failed = c->group(c->ctx, 1);
    for (Span x = {0}; !failed && next_span(s, t, &x);)
        failed = add_span(s, t, &x, x.from, AMPC_DTYPE_F32);
    if (failed || c->group(c->ctx, 0)) return broken(s, "gradients");
    return AMPC_OK;
}

/* Runs a kernel over n elements from one address to another, outside of the
   steps. */
static ampc_status ranks_convert(ampc_session *s, uint32_t kernel,
                                 CUdeviceptr from, CUdeviceptr to, int64_t n) {
    GpuDevice *d = gpu_of(s);
    const PlanCudaKernel *k = &s->m->cuda->kernels[kernel];
    int64_t blocks = gpu_blocks(k, n);
    void *params[] = {&from, &to, &n};
    if (blocks > INT32_MAX)
        return session_fail(s, AMPC_ERR_UNSUPPORTED,
                            "--comm-dtype: %lld gradients side by side",
                            (long long)n);
    if (blocks)
        GPU(d->cu.LaunchKernel(d->kernels[kernel], (unsigned)blocks, 1, 1,
                               k->threads, 1, 1, k->shared, d->ranks, params,
                               NULL),
            "cuLaunchKernel");
    return AMPC_OK;
}

/* Sums in 16 bits. */
static ampc_status add_rounded(ampc_session *s, const PlanStep *t,
                               ampc_dtype sent) {
    const ampc_comm *c = s->opt.comm;
    CUdeviceptr at = gpu_of(s)->sent;
    ampc_status status = AMPC_OK;
    for (Span x = {0}; status == AMPC_OK && next_span(s, t, &x);
         at += gpu_round(x.bytes) / 2)
        status = ranks_convert(s, t->fn, x.from, at, (int64_t)(x.bytes / 4));
    if (status != AMPC_OK) return status;
    int failed = c->group(c->ctx, 1);
    at = gpu_of(s)->sent;
    for (Span x = {0}; !failed && next_span(s, t, &x);
         at += gpu_round(x.bytes) / 2)
        failed = add_span(s, t, &x, at, sent);
    if (failed || c->group(c->ctx, 0)) return broken(s, "gradients");
    at = gpu_of(s)->sent;
    for (Span x = {0}; status == AMPC_OK && next_span(s, t, &x);
         at += gpu_round(x.bytes) / 2)
        status =
            ranks_convert(s, t->second - 1, at, x.from, (int64_t)(x.bytes / 4));
    return status;
}

static ampc_dtype sent_as(const ampc_session *s, const PlanStep *t) {
    return (ampc_dtype)s->plan->pars[t->par0];
}

ampc_status gpu_sum_bucket(ampc_session *s, const PlanStep *t) {
    TRY(fork_off(s));
    ampc_status status = sent_as(s, t) == AMPC_DTYPE_F32
                             ? add_bucket(s, t)
                             : add_rounded(s, t, sent_as(s, t));
    return status == AMPC_OK ? clear_others(s, t) : status;
}

uint64_t gpu_sent_bytes(const ampc_session *s) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < s->plan->nstep && s->ranks.on_device; i++) {
        const PlanStep *t = &s->plan->steps[i];
        uint64_t bytes = 0;
        if (t->kind != PLAN_SUM || sent_as(s, t) == AMPC_DTYPE_F32) continue;
        for (uint32_t k = 0; k < t->nref; k++)
            bytes +=
                gpu_round(s->m->vars[s->plan->refs[t->ref0 + k].index].bytes);
        if (bytes / 2 > most) most = bytes / 2;
    }
    return most;
}

/* All ranks take rank 0's running statistics. */
static int share_buffers(ampc_session *s) {
    const ampc_comm *c = s->opt.comm;
    GpuDevice *d = gpu_of(s);
    int failed = 0;
    for (uint32_t i = 0; i < s->m->nvar && !failed; i++)
        if (s->m->vars[i].kind == PLAN_BUFFER)
            failed = c->broadcast_on(c->ctx, d->var[i], s->m->vars[i].bytes, 0,
                                     d->ranks);
    return failed;
}

/* Exchanges all ranks' loss and shares, and their counts of bad data. */
static ampc_status sum_tail(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    const ampc_comm *c = s->opt.comm;
    int loss = s->known[VAR_LOSS_SUM], bad = s->known[VAR_BAD_DATA];
    int shares = s->known[VAR_SHARES];
    uint64_t bytes = gpu_ranks_bytes(s),
             own = (uint64_t)c->rank * sizeof(int64_t);
    GPU(d->cu.MemsetD8Async(d->bad, 0, bytes, d->ranks), "cuMemsetD8Async");
    if (bad >= 0)
        GPU(d->cu.MemcpyDtoDAsync(d->bad + own, d->var[bad], sizeof(int64_t),
                                  d->ranks),
            "cuMemcpyDtoDAsync");
    if (c->group(c->ctx, 1) || add_up(s, d->bad, bytes, AMPC_DTYPE_I64) ||
        (loss >= 0 && add_up(s, d->var[loss], sizeof(float), AMPC_DTYPE_F32)) ||
        (shares >= 0 &&
         add_up(s, d->var[shares], sizeof(float), AMPC_DTYPE_F32)) ||
        share_buffers(s) || c->group(c->ctx, 0))
        return broken(s, "loss");
    return AMPC_OK;
}

ampc_status gpu_sum_rest(ampc_session *s) {
    const PlanRun *r = &s->plan->runs[s->program[PROG_MICRO]];
    for (uint32_t i = 0; i < r->nstep && !s->ranks.whole; i++)
        if (s->plan->steps[r->step0 + i].kind == PLAN_SUM)
            TRY(gpu_sum_bucket(s, &s->plan->steps[r->step0 + i]));
    TRY(fork_off(s));
    TRY(sum_tail(s));
    return ranks_join(s);
}

/* After program update: sends each rank's updated parts to all ranks. */
ampc_status gpu_hand_out(ampc_session *s) {
    enum { MOST = 1024 }; /* calls in a group */
    const ampc_comm *c = s->opt.comm;
    GpuDevice *d = gpu_of(s);
    int n = 0;
    if (!s->ranks.shards) return AMPC_OK;
    TRY(fork_off(s));
    int failed = c->group(c->ctx, 1);
    for (int r = 0; r < c->world && !failed; r++)
        for (ShardPart p = {0}; !failed && shard_next(s, PROG_UPDATE, r, &p);) {
            if (!p.bytes) continue;
            if (++n % MOST == 0)
                failed = c->group(c->ctx, 0) || c->group(c->ctx, 1);
            failed =
                failed || c->broadcast_on(c->ctx, gpu_address(s, s->last, p.at),
                                          p.bytes, r, d->ranks);
        }
    if (failed || c->group(c->ctx, 0)) return broken(s, "parameters");
    return ranks_join(s);
}

/* ---- now ----------------------------------------------------------------- */

static ampc_status through_host(ampc_session *s, const GpuStep *t) {
    GpuDevice *d = gpu_of(s);
    uint64_t bytes = (uint64_t)t->sum->bytes;
    for (uint64_t at = 0, n; at < bytes; at += n) {
        LibCopy part = *t->sum;
        n = bytes - at < GPU_BOUNCE ? bytes - at : GPU_BOUNCE;
        part.bytes = (int64_t)n;
        GPU(d->cu.MemcpyDtoHAsync(d->bounce, t->from + at, n, d->work),
            "copy to the host");
        TRY(gpu_wait_stream(s, d->work, "copy to the host"));
        TRY(comm_sum_now(s, d->bounce, &part, t->largest));
        GPU(d->cu.MemcpyHtoDAsync(t->from + at, d->bounce, n, d->work),
            "copy to the device");
        TRY(gpu_wait_stream(s, d->work, "copy to the device"));
    }
    return AMPC_OK;
}

ampc_status gpu_sum_now(ampc_session *s, const GpuStep *t) {
    if (!s->opt.comm) return AMPC_OK;
    if (!s->ranks.on_device || t->largest) return through_host(s, t);
    TRY(fork_off(s));
    if (add_up(s, t->from, (uint64_t)t->sum->bytes, (ampc_dtype)t->sum->dtype))
        return broken(s, "statistics");
    return ranks_join(s);
}

/* ---- open ---------------------------------------------------------------- */

uint64_t gpu_ranks_bytes(const ampc_session *s) {
    return s->ranks.on_device ? (uint64_t)s->opt.comm->world * sizeof(int64_t)
                              : 0;
}

ampc_status gpu_ranks_open(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    const ampc_comm *c = s->opt.comm;
    if (!s->ranks.on_device) return AMPC_OK;
    if (s->ordinal != c->local)
        return session_fail(s, AMPC_ERR_UNSUPPORTED,
                            "the communicator is one of GPU %d, not %d",
                            c->local, s->ordinal);
    GPU(d->cu.StreamCreate(&d->ranks, CUDA_STREAM_NON_BLOCKING),
        "cuStreamCreate");
    return AMPC_OK;
}
