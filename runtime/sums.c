/* sums.c: gradients summed over ranks, bucket by bucket (PLAN_SUM).

   Program micro says where in backward the gradients of a bucket are done.  In
   the last micro-step of an update a thread of ours then sums that bucket while
   the program goes on, if the communicator may be called from it; the last
   bucket goes with the loss and the counters, when program update is due.
   Sums lie in a block until all are there, so that a step whose communication
   fails has changed nothing.                                                */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "runtime/backend.h"

enum { LEAST_BLOCK = 1 << 16 };

struct Sums {
    float *block, *tail;
    size_t bytes, ntail; /* of the block, in which the tail lies last */
    bool tried, threaded, stop, failed;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t news;
    uint32_t ready, summed; /* buckets of this step */
    size_t at;              /* where in the block the next begins */
    uint64_t begin, end;    /* of the last sum, for profiles */
};

/* ---- buckets ------------------------------------------------------------- */

/* The k-th of the session's objective; NULL: there are no more. */
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

static size_t bucket_count(const ampc_session *s, const PlanStep *t) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < t->nref; i++)
        bytes += s->m->vars[s->plan->refs[t->ref0 + i].index].bytes;
    return bytes / sizeof(float);
}

/* Its gradients to the block, or back. */
static ampc_status bucket_move(ampc_session *s, const PlanStep *t, float *block,
                               bool back) {
    const AmpcBackend *b = s->backend;
    ampc_status status = AMPC_OK;
    for (uint32_t i = 0; i < t->nref && status == AMPC_OK; i++) {
        PlanRef r = s->plan->refs[t->ref0 + i];
        uint64_t bytes = s->m->vars[r.index].bytes;
        status = back ? b->put(s, r, block, bytes) : b->get(s, r, block, bytes);
        block += bytes / sizeof *block;
    }
    return status;
}

/* n numbers of the block, in the dtype of the bucket; not 0: it failed. */
static int sum_block(const ampc_comm *c, uint32_t dtype, float *block,
                     size_t n) {
    if (dtype == AMPC_F32)
        return c->allreduce(c->ctx, block, n, AMPC_DTYPE_F32);
    comm_narrow(block, n, (int32_t)dtype);
    int failed = c->allreduce(c->ctx, block, n, (int32_t)dtype);
    comm_widen(block, n, (int32_t)dtype);
    return failed;
}

/* ---- beside backward ----------------------------------------------------- */

/* Not 0: it failed.  On the CPU alone, whose get only copies. */
static int sum_next(ampc_session *s) {
    struct Sums *x = s->sums;
    const PlanStep *t = bucket_step(s, x->summed);
    size_t n = bucket_count(s, t);
    uint32_t dtype = (uint32_t)s->plan->pars[t->par0];
    float *block = x->block + x->at;
    x->at += n;
    x->begin = now_ns();
    int failed = bucket_move(s, t, block, false) != AMPC_OK ||
                 sum_block(s->opt.comm, dtype, block, n);
    x->end = now_ns();
    return failed;
}

static void *sums_main(void *arg) {
    ampc_session *s = arg;
    struct Sums *x = s->sums;
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

/* Signals are the host's. */
static void start_thread(ampc_session *s) {
    struct Sums *x = s->sums;
    sigset_t all, before;
    x->tried = true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    x->threaded = pthread_create(&x->thread, NULL, sums_main, s) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void sums_begin(ampc_session *s) {
    if (!s->sums) return;
    s->sums->ready = s->sums->summed = 0;
    s->sums->at = 0;
}

void sums_ready(ampc_session *s) {
    struct Sums *x = s->sums;
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
    struct Sums *x = s->sums;
    if (!x || !x->threaded) return AMPC_OK;
    pthread_mutex_lock(&x->lock);
    while (x->summed < x->ready && !x->failed)
        pthread_cond_wait(&x->news, &x->lock);
    bool failed = x->failed;
    pthread_mutex_unlock(&x->lock);
    return failed ? comm_failed(s, "gradients") : AMPC_OK;
}

/* ---- before program update ----------------------------------------------- */

/* Those that were not yet summed; the last with the tail, which is f32. */
static ampc_status sum_rest(ampc_session *s) {
    struct Sums *x = s->sums;
    const ampc_comm *c = s->opt.comm;
    const PlanStep *t, *next = bucket_step(s, x->summed);
    size_t with = 0;
    while ((t = next)) {
        size_t n = bucket_count(s, t);
        uint32_t dtype = (uint32_t)s->plan->pars[t->par0];
        float *block = x->block + x->at;
        ampc_status status = bucket_move(s, t, block, false);
        if (status != AMPC_OK) return status;
        next = bucket_step(s, ++x->summed);
        with = !next && dtype == AMPC_F32 ? x->ntail : 0;
        memcpy(block + n, x->tail, with * sizeof *block);
        if (sum_block(c, dtype, block, n + with))
            return comm_failed(s, "gradients");
        x->at += n;
    }
    memcpy(x->tail, x->block + x->at, with * sizeof *x->tail);
    if (!with && c->allreduce(c->ctx, x->tail, x->ntail, AMPC_DTYPE_F32))
        return comm_failed(s, "gradients");
    return AMPC_OK;
}

ampc_status sums_finish(ampc_session *s) {
    struct Sums *x = s->sums;
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
        block += bucket_count(s, t);
    }
    return status;
}

/* ---- open and close ------------------------------------------------------ */

float *sums_tail(const ampc_session *s) { return s->sums->tail; }

float *sums_scratch(const ampc_session *s, size_t *bytes) {
    *bytes = s->sums->bytes - s->sums->ntail * sizeof(float);
    return s->sums->block;
}

ampc_status sums_open(ampc_session *s) {
    size_t tail = 1 + (size_t)s->opt.comm->world;
    uint64_t bytes = 2 * tail * sizeof(float);
    for (uint32_t i = 0; i < s->m->nvar; i++)
        if (s->m->vars[i].kind == PLAN_GRAD) bytes += s->m->vars[i].bytes;
    if (bytes < LEAST_BLOCK) bytes = LEAST_BLOCK;
    struct Sums *x = mem_alloc(s, sizeof *x);
    if (x) *x = (struct Sums){.block = mem_alloc(s, bytes), .ntail = tail};
    if (!x || !x->block) {
        mem_free(s, x, sizeof *x);
        return session_fail(s, AMPC_ERR_MEMORY,
                            "out of memory: %llu bytes to exchange gradients",
                            (unsigned long long)bytes);
    }
    x->bytes = bytes;
    x->tail = x->block + bytes / sizeof *x->block - tail;
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->news, NULL);
    s->sums = x;
    return AMPC_OK;
}

void sums_close(ampc_session *s) {
    struct Sums *x = s->sums;
    if (!x) return;
    if (x->threaded && s->pid == getpid()) { /* none survives a fork */
        pthread_mutex_lock(&x->lock);
        x->stop = true;
        pthread_cond_broadcast(&x->news);
        pthread_mutex_unlock(&x->lock);
        pthread_join(x->thread, NULL);
    }
    mem_free(s, x->block, x->bytes);
    mem_free(s, x, sizeof *x);
}
