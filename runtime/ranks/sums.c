/* SPDX-License-Identifier: Apache-2.0 */
/* sums.c: gradients summed over ranks, bucket by bucket (PLAN_SUM).

   Program micro has a step at the point of backward where the gradients of a
   bucket are complete. In the last micro-step of an update our own thread sums
   that bucket while the program continues, if the communicator may be called
   from a thread; the last bucket is summed with the loss and the counters, just
   before program update. A block holds first the parts whose sums only one rank
   needs (shards.c), rank by rank, then those that all ranks need. Sums stay in
   a block until all are complete, so that a step whose communication fails
   changes nothing. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "runtime/api/session.h"
#include "runtime/base/contract.h"
#include "runtime/base/try.h"

#include "runtime/base/glibc.h" /* last */

enum { LEAST_BLOCK = 1 << 16 };

struct Sums {
    float *block, *tail;
    size_t bytes, ntail; /* size of the block; the tail is at its end */
    bool tried, threaded, stop, failed;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t news;
    uint32_t ready, summed; /* buckets of this step */
    size_t at;              /* offset of the next bucket in the block */
    uint64_t *cut;          /* per rank: offset of its elements; then the end */
    uint64_t begin, end;    /* times of the last sum, for profiles */
};

/* ---- buckets ------------------------------------------------------------- */

/* The k-th bucket of the session's objective; NULL after the last. */
static const PlanStep *bucket_step(const ampc_session *s, uint32_t k) {
    int micro = s->program[PROG_MICRO];
    if (micro < 0) return NULL;
    const PlanRun *r = &s->plan->runs[micro];
    for (uint32_t i = 0; i < r->nstep; i++) {
        const PlanStep *t = &s->plan->steps[r->step0 + i];
        if (t->kind == PLAN_SUM && k-- == 0) return t;
    }
    return NULL;
}

/* Bytes of gradient i whose sum only rank r needs; r = world: bytes that all
   ranks need. Returns 0 if there are none. */
static uint64_t needed(const ampc_session *s, const PlanStep *t, uint32_t i,
                       int r, PlanRef *at) {
    *at = s->plan->refs[t->ref0 + i];
    uint64_t lo = 0, hi = s->m->vars[at->index].bytes;
    bool all = r == s->opt.comm->world;
    if (shard_sum(s, at->index, all ? 0 : r, &lo, &hi) == all) return 0;
    at->offset = lo;
    return hi - lo;
}

/* Number of elements of a bucket; sets the ranks' offsets: the first
   cut[world] elements are parts. */
static size_t bucket_cut(const ampc_session *s, const PlanStep *t) {
    int world = s->opt.comm->world;
    uint64_t *cut = s->ranks.sums->cut, bytes = 0;
    PlanRef at;
    for (int r = 0; r <= world; r++) {
        cut[r] = bytes / sizeof(float);
        for (uint32_t i = 0; i < t->nref; i++) bytes += needed(s, t, i, r, &at);
    }
    return bytes / sizeof(float);
}

/* Copies a bucket's gradients to the block, or back, with zeros for the
   parts of other ranks. */
static ampc_status bucket_move(ampc_session *s, const PlanStep *t, float *block,
                               bool back) {
    const ampc_comm *c = s->opt.comm;
    ampc_status status = AMPC_OK;
    for (int r = 0; r <= c->world; r++)
        for (uint32_t i = 0; i < t->nref && status == AMPC_OK; i++) {
            PlanRef at;
            uint64_t bytes = needed(s, t, i, r, &at);
            if (!bytes) continue;
            if (back && r != c->rank && r != c->world) memset(block, 0, bytes);
            status = back ? s->backend->put(s, at, block, bytes)
                          : s->backend->get(s, at, block, bytes);
            block += bytes / sizeof *block;
        }
    return status;
}

/* Sums n elements of the block in the bucket's dtype; the first are parts
   according to s->ranks.sums->cut. Returns nonzero on failure. */
static int sum_block(const ampc_session *s, uint32_t dtype, float *block,
                     size_t n) {
    const ampc_comm *c = s->opt.comm;
    const uint64_t *cut = s->ranks.sums->cut;
    size_t parts = cut[c->world];
    bool half = dtype != AMPC_F32;
    float *rest = block + parts;
    if (half) comm_narrow(block, parts, (int32_t)dtype);
    if (half) comm_narrow(rest, n - parts, (int32_t)dtype);
    if (parts && comm_scatter(c, block, cut, (int32_t)dtype)) return 1;
    if (n > parts && c->allreduce(c->ctx, rest, n - parts, (int32_t)dtype))
        return 1;
    if (half) comm_widen(block, parts, (int32_t)dtype);
    if (half) comm_widen(rest, n - parts, (int32_t)dtype);
    return 0;
}

/* ---- beside backward ----------------------------------------------------- */

/* Not 0: the sum has failed. Only on the CPU, whose get just copies. */
static int sum_next(ampc_session *s) {
    struct Sums *x = s->ranks.sums;
    const PlanStep *t = bucket_step(s, x->summed);
    CONTRACT(t); /* sums_ready counts those that there are */
    size_t n = bucket_cut(s, t);
    uint32_t dtype = (uint32_t)s->plan->pars[t->par0];
    float *block = x->block + x->at;
    x->at += n;
    CONTRACT(x->at * sizeof *block <= x->bytes);
    x->begin = now_ns();
    int failed = bucket_move(s, t, block, false) != AMPC_OK ||
                 sum_block(s, dtype, block, n);
    x->end = now_ns();
    return failed;
}

static void *sums_main(void *arg) {
    ampc_session *s = arg;
    struct Sums *x = s->ranks.sums;
    pthread_mutex_lock(&x->lock);
    while (!x->stop) {
        if (x->summed == x->ready || x->failed) {
            pthread_cond_wait(&x->news, &x->lock);
            continue;
        }
        pthread_mutex_unlock(&x->lock);
        int failed = sum_next(s);
        pthread_mutex_lock(&x->lock);
        x->failed = failed != 0;
        x->summed++;
        pthread_cond_broadcast(&x->news);
    }
    pthread_mutex_unlock(&x->lock);
    return NULL;
}

/* Signals belong to the host's threads. */
static void start_thread(ampc_session *s) {
    struct Sums *x = s->ranks.sums;
    sigset_t all, before;
    x->tried = true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    x->threaded = pthread_create(&x->thread, NULL, sums_main, s) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void sums_begin(ampc_session *s) {
    if (!s->ranks.sums) return;
    s->ranks.sums->ready = s->ranks.sums->summed = 0;
    s->ranks.sums->at = 0;
}

void sums_ready(ampc_session *s) {
    struct Sums *x = s->ranks.sums;
    if (!x || !s->opt.comm->any_thread || s->micro + 1 < s->accumulate ||
        !bucket_step(s, x->ready + 1))
        return;
    if (!x->tried) start_thread(s);
    if (!x->threaded) return;
    pthread_mutex_lock(&x->lock);
    x->ready++;
    pthread_cond_broadcast(&x->news);
    pthread_mutex_unlock(&x->lock);
}

ampc_status sums_wait(ampc_session *s) {
    struct Sums *x = s->ranks.sums;
    if (!x || !x->threaded) return AMPC_OK;
    pthread_mutex_lock(&x->lock);
    while (x->summed < x->ready && !x->failed)
        pthread_cond_wait(&x->news, &x->lock);
    bool failed = x->failed;
    pthread_mutex_unlock(&x->lock);
    return failed ? comm_failed(s, "gradients") : AMPC_OK;
}

/* ---- before program update ----------------------------------------------- */

/* Sums the remaining buckets; the last one together with the tail, which is
   f32. */
static ampc_status sum_rest(ampc_session *s) {
    struct Sums *x = s->ranks.sums;
    const ampc_comm *c = s->opt.comm;
    const PlanStep *t, *next = bucket_step(s, x->summed);
    size_t with = 0;
    while ((t = next)) {
        size_t n = bucket_cut(s, t);
        uint32_t dtype = (uint32_t)s->plan->pars[t->par0];
        float *block = x->block + x->at;
        TRY(bucket_move(s, t, block, false));
        next = bucket_step(s, ++x->summed);
        with = !next && dtype == AMPC_F32 ? x->ntail : 0;
        memcpy(block + n, x->tail, with * sizeof *block);
        if (sum_block(s, dtype, block, n + with))
            return comm_failed(s, "gradients");
        x->at += n;
    }
    memcpy(x->tail, x->block + x->at, with * sizeof *x->tail);
    if (!with && c->allreduce(c->ctx, x->tail, x->ntail, AMPC_DTYPE_F32))
        return comm_failed(s, "gradients");
    return AMPC_OK;
}

ampc_status sums_finish(ampc_session *s) {
    struct Sums *x = s->ranks.sums;
    const PlanStep *t;
    float *block = x->block;
    uint64_t begin = now_ns();
    if (s->profile && x->summed)
        s->profile(s->profile_ctx, "micro", "sum over ranks", x->begin, x->end);
    ampc_status status = sum_rest(s);
    if (s->profile && status == AMPC_OK)
        s->profile(s->profile_ctx, "update", "sum over ranks", begin, now_ns());
    for (uint32_t k = 0; status == AMPC_OK && (t = bucket_step(s, k)); k++) {
        status = bucket_move(s, t, block, true);
        block += bucket_cut(s, t);
    }
    return status;
}

/* ---- open and close ------------------------------------------------------ */

float *sums_tail(const ampc_session *s) { return s->ranks.sums->tail; }

float *sums_scratch(const ampc_session *s, size_t *bytes) {
    *bytes = s->ranks.sums->bytes - s->ranks.sums->ntail * sizeof(float);
    return s->ranks.sums->block;
}

ampc_status sums_open(ampc_session *s) {
    size_t tail = 2 + (size_t)s->opt.comm->world;
    uint64_t bytes = 2 * tail * sizeof(float);
    for (uint32_t i = 0; i < s->m->nvar; i++)
        if (s->m->vars[i].kind == PLAN_GRAD) bytes += s->m->vars[i].bytes;
    if (bytes < LEAST_BLOCK) bytes = LEAST_BLOCK;
    struct Sums *x = mem_alloc(s, sizeof *x + tail * sizeof *x->cut);
    if (x) *x = (struct Sums){.block = mem_alloc(s, bytes), .ntail = tail};
    if (x) x->cut = (uint64_t *)(x + 1);
    if (!x || !x->block) {
        mem_free(s, x, sizeof *x + tail * sizeof *x->cut);
        return session_fail(s, AMPC_ERR_MEMORY,
                            "out of memory: %llu bytes to exchange gradients",
                            (unsigned long long)bytes);
    }
    x->bytes = bytes;
    x->tail = x->block + bytes / sizeof *x->block - tail;
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->news, NULL);
    s->ranks.sums = x;
    return AMPC_OK;
}

void sums_close(ampc_session *s) {
    struct Sums *x = s->ranks.sums;
    if (!x) return;
    if (x->threaded && s->pid == getpid()) { /* threads do not survive a fork */
        pthread_mutex_lock(&x->lock);
        x->stop = true;
        pthread_cond_broadcast(&x->news);
        pthread_mutex_unlock(&x->lock);
        pthread_join(x->thread, NULL);
    }
    mem_free(s, x->block, x->bytes);
    mem_free(s, x, sizeof *x + x->ntail * sizeof *x->cut);
}
