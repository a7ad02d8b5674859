/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c: the thread pool behind pool_run.

   One job at a time, cut into chunks.  Each thread has a share of them, in a
   row, and draws from it first, then from other shares.  It mostly finds in
   its own cache the samples that it wrote in the job before; without this,
   two threads on cores without a common cache can be slower than one.
   `state` says which job is open and how many workers are inside it:
     bits 0..15   workers inside
     bit  16      open: workers may enter
     bits 17..63  job number
   The caller draws chunks too; when none are left it closes the job and waits
   only for the workers inside, so a worker that is still asleep costs nothing.
   A worker without a job spins briefly (a training step hands over dozens of
   times per millisecond), then sleeps on a futex.

   A pool serves one calling thread at a time; fn must not call pool_run.    */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/cpu/kernels.h"

#include "runtime/base/glibc.h" /* last */

enum { POOL_SPIN_WORK = 6000, POOL_SPIN_WAIT = 4000, POOL_MAX = 1024 };

#define POOL_OPEN   ((uint64_t)1 << 16)
#define POOL_INSIDE (POOL_OPEN - 1)
#define POOL_JOB    ((uint64_t)1 << 17)

typedef struct PoolWorker {
    AmpcPool *pool;
    int index;
    /* Bits 17..63: a job; bits 0..15: how many chunks of the share are drawn
       in it. In later jobs none are drawn. */
    _Alignas(64) _Atomic uint64_t drawn;
} PoolWorker;

struct AmpcPool {
    /* The job: the caller writes it while the state is closed. */
    PoolFn *fn;
    void *ctx;
    int64_t n, chunk, chunks;
    _Alignas(64) _Atomic uint64_t state;
    _Alignas(64) _Atomic uint32_t bell; /* changes when there is a new job */
    _Atomic uint32_t sleepers;
    _Atomic uint32_t caller_waits;
    _Atomic int stop;
    int threads;
    int started;
    pthread_t *thread;
    PoolWorker *worker;
};

static void pool_futex(_Atomic uint32_t *word, int op, uint32_t value) {
    syscall(SYS_futex, (void *)word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL,
            0);
}

static void pool_pause(void) {
#if defined __x86_64__
    __builtin_ia32_pause();
#else
    __asm__ volatile("yield");
#endif
}

/* The next chunk of a worker's share in job `job`; -1 if there is none. */
static int64_t pool_next(AmpcPool *p, int owner, uint64_t job) {
    int64_t from = ceil_div(p->chunks * owner, p->threads);
    int64_t count = ceil_div(p->chunks * (owner + 1), p->threads) - from;
    _Atomic uint64_t *drawn = &p->worker[owner].drawn;
    uint64_t d = atomic_load_explicit(drawn, memory_order_relaxed), i;
    do {
        i = d / POOL_JOB == job ? d & POOL_INSIDE : 0;
        if ((int64_t)i >= count) return -1;
    } while (!atomic_compare_exchange_weak_explicit(
        drawn, &d, job * POOL_JOB + i + 1, memory_order_relaxed,
        memory_order_relaxed));
    return from + (int64_t)i;
}

/* For a thread inside job `job`, so that the job's fields stay. */
static void pool_draw(AmpcPool *p, int worker, uint64_t job) {
    for (int k = 0; k < p->threads; k++) {
        if (k && !(atomic_load(&p->state) & POOL_OPEN)) return; /* all drawn */
        int owner = (worker + k) % p->threads;
        for (int64_t i; (i = pool_next(p, owner, job)) >= 0;) {
            int64_t lo = i * p->chunk;
            int64_t hi = p->n - lo < p->chunk ? p->n : lo + p->chunk;
            p->fn(p->ctx, lo, hi, worker);
        }
    }
}

/* Enters the open job unless its number is `seen`; returns its number. */
static int pool_enter(AmpcPool *p, uint64_t *seen) {
    uint64_t s = atomic_load_explicit(&p->state, memory_order_acquire);
    while ((s & POOL_OPEN) && s / POOL_JOB != *seen) {
        if (atomic_compare_exchange_weak(&p->state, &s, s + 1)) {
            *seen = s / POOL_JOB;
            return 1;
        }
    }
    return 0;
}

static void pool_leave(AmpcPool *p) {
    uint64_t s = atomic_fetch_sub(&p->state, 1) - 1;
    if ((s & (POOL_INSIDE | POOL_OPEN)) == 0 && atomic_load(&p->caller_waits)) {
        atomic_store(&p->caller_waits, 0);
        pool_futex(&p->caller_waits, FUTEX_WAKE, 1);
    }
}

static void pool_sleep(AmpcPool *p, uint32_t bell) {
    atomic_fetch_add(&p->sleepers, 1);
    if (atomic_load(&p->bell) == bell) pool_futex(&p->bell, FUTEX_WAIT, bell);
    atomic_fetch_sub(&p->sleepers, 1);
}

static void *pool_main(void *arg) {
    PoolWorker *w = arg;
    AmpcPool *p = w->pool;
    uint64_t seen = 0;
    int spin = 0;
    while (!atomic_load_explicit(&p->stop, memory_order_acquire)) {
        uint32_t bell = atomic_load(&p->bell);
        if (pool_enter(p, &seen)) {
            pool_draw(p, w->index, seen);
            pool_leave(p);
            spin = 0;
        } else if (++spin < POOL_SPIN_WORK) {
            pool_pause();
        } else if (!atomic_load(&p->stop)) {
            pool_sleep(p, bell);
            spin = 0;
        }
    }
    return NULL;
}

static void pool_ring(AmpcPool *p) {
    atomic_fetch_add(&p->bell, 1);
    if (atomic_load(&p->sleepers)) pool_futex(&p->bell, FUTEX_WAKE, INT_MAX);
}

/* Closes the job and waits until the workers inside have left. */
static void pool_finish(AmpcPool *p) {
    uint64_t s = atomic_fetch_and(&p->state, ~POOL_OPEN) & ~POOL_OPEN;
    for (int spin = 0; s & POOL_INSIDE; spin++) {
        if (spin < POOL_SPIN_WAIT) {
            pool_pause();
        } else {
            atomic_store(&p->caller_waits, 1);
            if (atomic_load(&p->state) & POOL_INSIDE)
                pool_futex(&p->caller_waits, FUTEX_WAIT, 1);
        }
        s = atomic_load_explicit(&p->state, memory_order_acquire);
    }
    atomic_store_explicit(&p->caller_waits, 0, memory_order_relaxed);
}

int pool_threads(const AmpcPool *p) { return p ? p->threads : 1; }

/* Returns the chunk size for n items: about four chunks per thread, so that
   one delayed thread matters little; more chunks if otherwise one thread
   would get one chunk more than the others. */
static int64_t pool_chunk(int64_t n, int threads) {
    int64_t most = ceil_div(n, 4 * threads), best = most, busiest = INT64_MAX;
    for (int64_t per = most; per > 0 && per >= most / 2; per--) {
        int64_t work = ceil_div(ceil_div(n, per), threads) * per;
        if (work >= busiest) continue;
        busiest = work;
        best = per;
    }
    return best;
}

void pool_run(AmpcPool *p, int64_t n, int64_t grain, PoolFn *fn, void *ctx) {
    if (n <= 0) return;
    if (grain < 1) grain = 1;
    if (!p || p->threads == 1 || n <= grain) {
        fn(ctx, 0, n, 0);
        return;
    }
    CONTRACT(!(atomic_load(&p->state) & (POOL_OPEN | POOL_INSIDE)));
    p->fn = fn;
    p->ctx = ctx;
    p->n = n;
    p->chunk = grain * pool_chunk(ceil_div(n, grain), p->threads);
    CONTRACT(p->chunk > 0 && p->chunk % grain == 0);
    p->chunks = ceil_div(n, p->chunk);
    CONTRACT(ceil_div(p->chunks, p->threads) < (int64_t)POOL_INSIDE);
    uint64_t s = atomic_load_explicit(&p->state, memory_order_relaxed);
    s = (s + POOL_JOB) | POOL_OPEN;
    atomic_store(&p->state, s);
    pool_ring(p);
    pool_draw(p, 0, s / POOL_JOB);
    pool_finish(p);
}

/* ---- how many threads ---------------------------------------------------- */

/* Number of CPUs that a cgroup quota in one of the usual places allows; 0 =
   no limit. */
static int pool_quota_file(const char *path, int v2, double period) {
    char text[64] = {0};
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    size_t got = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    if (got == 0) return 0;
    char *end;
    double quota = strtod(text, &end); /* cpu.max holds "max" if unlimited */
    if (end == text || quota <= 0) return 0;
    if (v2) period = strtod(end, NULL);
    if (period <= 0) return 0;
    int cpus = (int)(quota / period + 0.999);
    return cpus < 1 ? 1 : cpus;
}

static int pool_quota(void) {
    int cpus = pool_quota_file("/sys/fs/cgroup/cpu.max", 1, 0);
    if (cpus) return cpus;
    return pool_quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", 0, 100000);
}

static int pool_default_threads(void) {
    cpu_set_t set;
    int cpus = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        cpus = CPU_COUNT(&set);
    else
        cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
    int quota = pool_quota();
    if (quota && quota < cpus) cpus = quota;
    return cpus < 1 ? 1 : cpus;
}

/* ---- create and destroy -------------------------------------------------- */

static int pool_start(AmpcPool *p) {
    /* Signals belong to the host's threads, except the synchronous ones
       (SIGSEGV, ..): if a worker blocked these, they would end the process
       without calling the host's handler. */
    static const int own[] = {SIGILL, SIGBUS, SIGFPE, SIGSEGV};
    sigset_t most, old;
    sigfillset(&most);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&most, own[i]);
    pthread_sigmask(SIG_SETMASK, &most, &old);
    int rc = 0;
    for (int i = 1; i < p->threads && rc == 0; i++) {
        p->worker[i].pool = p;
        p->worker[i].index = i;
        rc = pthread_create(&p->thread[i], NULL, pool_main, &p->worker[i]);
        if (rc == 0) p->started = i;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

AmpcPool *pool_create(int threads) {
    if (threads <= 0) threads = pool_default_threads();
    if (threads > POOL_MAX) threads = POOL_MAX;
    AmpcPool *p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
    if (!p) return NULL;
    memset(p, 0, sizeof *p);
    p->threads = threads;
    p->thread = calloc((size_t)threads, sizeof *p->thread);
    p->worker = aligned_alloc(64, (size_t)threads * sizeof *p->worker);
    if (p->worker) memset(p->worker, 0, (size_t)threads * sizeof *p->worker);
    if (!p->thread || !p->worker || pool_start(p) != 0) {
        pool_destroy(p);
        return NULL;
    }
    return p;
}

void pool_destroy(AmpcPool *p) {
    if (!p) return;
    atomic_store(&p->stop, 1);
    pool_ring(p);
    for (int i = 1; i <= p->started; i++) pthread_join(p->thread[i], NULL);
    free(p->thread);
    free(p->worker);
    free(p);
}
