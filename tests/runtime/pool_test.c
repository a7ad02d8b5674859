/* SPDX-License-Identifier: Apache-2.0 */
/* pool_test.c: the thread pool: every index once, whole grains, memory
   passed in both directions; shares that stay; several pools at once. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/cpu/kernels.h"
#include "tests/harness.h"

typedef struct Touch {
    unsigned char *seen;
    int threads, grain_ok;
    _Atomic int calls;
    int64_t n, grain;
} Touch;

static void touch(void *ctx, int64_t lo, int64_t hi, int worker) {
    Touch *t = ctx;
    int64_t grain = t->grain < 1 ? 1 : t->grain;
    t->calls++;
    if (worker < 0 || worker >= t->threads) t->grain_ok = 0;
    if (lo % grain || (hi % grain && hi != t->n)) t->grain_ok = 0;
    for (int64_t i = lo; i < hi; i++) t->seen[i]++;
}

TEST_CASE(pool, every_index_once_and_chunks_respect_the_grain) {
    static const int threads[3] = {1, 2, 5};
    AmpcPool *pools[3];
    uint64_t rng = 3;
    int none = 0;
    for (int i = 0; i < 3; i++) REQUIRE(pools[i] = pool_create(threads[i]));
    for (int round = 0; round < 3000; round++) {
        int i = round % 3;
        rng = rng * 6364136223846793005u + 1442695040888963407u;
        Touch t = {.n = (int64_t)(rng >> 33) % 301,
                   .grain = (int64_t)(rng >> 21) % 43 - 2};
        t.seen = calloc((size_t)t.n + 1, 1);
        t.threads = pool_threads(pools[i]);
        t.grain_ok = 1;
        t.calls = 0;
        pool_run(pools[i], t.n, t.grain, touch, &t);
        CHECK(t.grain_ok);
        CHECK((atomic_load(&t.calls) > 0) == (t.n > 0));
        none += t.n == 0;
        for (int64_t j = 0; j < t.n; j++)
            if (!CHECK_EQ_INT(t.seen[j], 1)) break;
        free(t.seen);
    }
    CHECK(none > 0);
    for (int i = 0; i < 3; i++) pool_destroy(pools[i]);
}

/* The longest chunk, and the number of chunks. */
typedef struct Cut {
    _Atomic int64_t longest, chunks;
} Cut;

static void measure(void *ctx, int64_t lo, int64_t hi, int worker) {
    Cut *c = ctx;
    int64_t longest = c->longest;
    (void)worker;
    while (hi - lo > longest &&
           !atomic_compare_exchange_weak(&c->longest, &longest, hi - lo)) {
    }
    c->chunks++;
}

typedef struct Meeting {
    _Atomic int threads; /* that have begun */
    int64_t first[4];    /* per thread: its first index */
    int begun[4];
} Meeting;

static void meet(void *ctx, int64_t lo, int64_t hi, int worker) {
    Meeting *m = ctx;
    (void)hi;
    if (m->begun[worker]) return;
    m->begun[worker] = 1;
    m->first[worker] = lo;
    for (atomic_fetch_add(&m->threads, 1); atomic_load(&m->threads) < 4;)
        sched_yield();
}

/* A thread then reads its own writes of the job before. */
TEST_CASE(pool, a_thread_begins_with_the_same_share_each_time) {
    AmpcPool *p = pool_create(4);
    REQUIRE(p != NULL);
    for (int round = 0; round < 50; round++) {
        Meeting m = {0};
        int64_t n = 64 << round % 3;
        pool_run(p, n, 1, meet, &m);
        for (int w = 0; w < 4; w++) CHECK_EQ_INT(m.first[w], w * n / 4);
    }
    pool_destroy(p);
}

/* Equally fast threads get nearly equal shares, in few chunks. */
TEST_CASE(pool, shares_are_even) {
    for (int threads = 2; threads <= 5; threads += 3) {
        AmpcPool *p = pool_create(threads);
        REQUIRE(p);
        for (int64_t n = 2; n < 500; n++) {
            Cut c = {0, 0};
            pool_run(p, n, 1, measure, &c);
            int64_t rounds = (c.chunks + threads - 1) / threads;
            int64_t share = (n + threads - 1) / threads;
            CHECK_MSG(rounds * c.longest <= share + share / 11,
                      "%lld of %lld: %lld", (long long)(rounds * c.longest),
                      (long long)n, (long long)share);
            CHECK(c.chunks <= 11 * threads);
        }
        pool_destroy(p);
    }
}

/* A job reads data that the caller wrote before and writes data that the caller
   reads after, without any other synchronisation; workers are in every state:
   drawing, spinning, asleep. This is mainly for the thread sanitizer. */
typedef struct Relay {
    int64_t from[256], to[256];
} Relay;

static void relay(void *ctx, int64_t lo, int64_t hi, int worker) {
    Relay *r = ctx;
    (void)worker;
    for (int64_t i = lo; i < hi; i++) r->to[i] = r->from[i] + i;
}

static void *relay_caller(void *threads) {
    AmpcPool *p = pool_create(*(int *)threads);
    Relay r = {{0}, {0}};
    int64_t wrong = 0;
    if (!p) return NULL;
    for (int round = 0; round < 400; round++) {
        struct timespec pause = {0, 300000};
        if (round % 50 == 0) nanosleep(&pause, NULL); /* workers fall asleep */
        for (int i = 0; i < 256; i++) r.from[i] = round * 1000 + i;
        pool_run(p, 256, 1 + round % 7, relay, &r);
        for (int i = 0; i < 256; i++) wrong += r.to[i] != round * 1000 + 2 * i;
    }
    pool_destroy(p);
    return wrong ? NULL : threads;
}

TEST_CASE(pool, hands_memory_over_and_pools_do_not_meet) {
    pthread_t t[4];
    int threads[4] = {2, 3, 5, 8};
    void *ok;
    for (int i = 0; i < 4; i++)
        REQUIRE(!pthread_create(&t[i], NULL, relay_caller, &threads[i]));
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], &ok);
        CHECK(ok == &threads[i]);
    }
}

TEST_CASE(pool, default_size_and_no_pool) {
    AmpcPool *p = pool_create(0);
    if (!CHECK(p != NULL)) return;
    CHECK(pool_threads(p) >= 1);
    pool_destroy(p);
    CHECK_EQ_INT(pool_threads(NULL), 1);
    Touch t = {.n = 9, .grain = 2, .threads = 1, .grain_ok = 1};
    t.seen = calloc(9, 1);
    pool_run(NULL, 9, 2, touch, &t);
    for (int i = 0; i < 9; i++) CHECK_EQ_INT(t.seen[i], 1);
    free(t.seen);
    pool_destroy(NULL);
}

/* The signals that each thread blocks, and the number of threads. */
typedef struct Masks {
    sigset_t of[8];
    int seen[8];
} Masks;

static void look(void *ctx, int64_t lo, int64_t hi, int worker) {
    Masks *m = ctx;
    struct timespec nap = {0, 2000000};
    (void)lo, (void)hi;
    pthread_sigmask(SIG_BLOCK, NULL, &m->of[worker]);
    m->seen[worker] = 1;
    nanosleep(&nap, NULL); /* the other threads should get some, too */
}

/* Signals belong to the host, but a fault belongs to its own thread: if
   blocked, it would end the process without the host's handler. */
TEST_CASE(pool, workers_block_all_signals_but_faults) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    static const int others[] = {SIGINT, SIGTERM, SIGALRM, SIGUSR1, SIGCHLD};
    Masks m = {.seen = {0}};
    AmpcPool *p = pool_create(4);
    REQUIRE(p != NULL);
    for (int i = 0; i < 20; i++) pool_run(p, 64, 1, look, &m);
    CHECK(m.seen[1] || m.seen[2] || m.seen[3]);
    for (int w = 1; w < 4; w++) {
        for (int i = 0; i < 4 && m.seen[w]; i++)
            CHECK(!sigismember(&m.of[w], faults[i]));
        for (int i = 0; i < 5 && m.seen[w]; i++)
            CHECK(sigismember(&m.of[w], others[i]));
    }
    pool_destroy(p);
}

#ifdef __SANITIZE_ADDRESS__
static void nested(void *ctx, int64_t lo, int64_t hi, int worker) {
    (void)lo, (void)hi, (void)worker;
    pool_run(ctx, 8, 1, nested, ctx);
}

/* contract.h, which is empty in a build without the sanitizers. */
TEST_CASE(pool, a_broken_contract_ends_the_process) {
    int status;
    pid_t child = fork();
    if (!child) {
        AmpcPool *p = pool_create(2);
        pool_run(p, 8, 1, nested, p);
        _exit(0);
    }
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
}
#endif
