/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c: pool_run in plain C.  It replaces cpu/pool.c.

   Without AMPC_THREADS the caller does all work. With it, POSIX threads draw
   chunks of one job at a time; results do not depend on their number. */
#include "runtime/cpu/kernels.h"

#ifndef AMPC_THREADS

struct AmpcPool {
    int threads;
};

static struct AmpcPool caller = {1};

int pool_threads(const AmpcPool *p) {
    (void)p;
    return 1;
}

void pool_run(AmpcPool *p, int64_t n, int64_t grain, PoolFn *fn, void *ctx) {
    (void)p;
    (void)grain;
    if (n > 0) fn(ctx, 0, n, 0);
}

AmpcPool *pool_create(int threads) {
    (void)threads;
    return &caller;
}

void pool_destroy(AmpcPool *p) { (void)p; }

#else
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { POOL_MAX = 64 };

struct AmpcPool {
    pthread_mutex_t lock;
    pthread_cond_t news, done;
    PoolFn *fn;
    void *ctx;
    int64_t n, chunk, next;
    uint32_t job;
    int inside, stop, threads, started;
    pthread_t thread[POOL_MAX];
};

typedef struct PoolChunk {
    int64_t lo, hi;
} PoolChunk;

int pool_threads(const AmpcPool *p) { return p ? p->threads : 1; }

/* Draws chunks until the job is done; the lock is held before and after. */
static void pool_draw(AmpcPool *p, int worker) {
    p->inside++;
    while (p->next < p->n) {
        PoolChunk c = {p->next, min64(p->next + p->chunk, p->n)};
        p->next = c.hi;
        pthread_mutex_unlock(&p->lock);
        p->fn(p->ctx, c.lo, c.hi, worker);
        pthread_mutex_lock(&p->lock);
    }
    if (--p->inside == 0) pthread_cond_signal(&p->done);
}

static void *pool_main(void *arg) {
    AmpcPool *p = arg;
    pthread_mutex_lock(&p->lock);
    int worker = ++p->started;
    for (uint32_t seen = 0; !p->stop;) {
        if (seen == p->job) {
            pthread_cond_wait(&p->news, &p->lock);
            continue;
        }
        seen = p->job;
        pool_draw(p, worker);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

void pool_run(AmpcPool *p, int64_t n, int64_t grain, PoolFn *fn, void *ctx) {
    if (n <= 0) return;
    grain = max64(grain, 1);
    if (!p || p->threads == 1 || n <= grain) {
        fn(ctx, 0, n, 0);
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->fn = fn;
    p->ctx = ctx;
    p->n = n;
    p->chunk = grain * ceil_div(ceil_div(n, grain), 4 * p->threads);
    p->next = 0;
    p->job++;
    pthread_cond_broadcast(&p->news);
    pool_draw(p, 0);
    while (p->inside) pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

AmpcPool *pool_create(int threads) {
    if (threads <= 0) threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    AmpcPool *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->news, NULL);
    pthread_cond_init(&p->done, NULL);
    p->threads = 1;
    while (p->threads < min64(threads, POOL_MAX) &&
           !pthread_create(&p->thread[p->threads], NULL, pool_main, p))
        p->threads++;
    return p;
}

void pool_destroy(AmpcPool *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stop = 1;
    pthread_cond_broadcast(&p->news);
    pthread_mutex_unlock(&p->lock);
    for (int i = 1; i < p->threads; i++) pthread_join(p->thread[i], NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->news);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
#endif
