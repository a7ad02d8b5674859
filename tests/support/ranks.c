/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.c: see ranks.h. */
#define _GNU_SOURCE
#include "tests/support/ranks.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/program/dtype.h"
#include "runtime/program/plan.h"
#include "tests/harness.h"

/* One of the threads at the barrier counts the call. */
static int met(Ranks *r) {
    if (pthread_barrier_wait(&r->meet) == PTHREAD_BARRIER_SERIAL_THREAD)
        r->calls++;
    pthread_barrier_wait(&r->meet);
    return r->fail_in > 0 &&
           (r->once ? r->calls == r->fail_in : r->calls >= r->fail_in);
}

/* Added in double, or in float if the numbers are narrower, in order of
   ranks. */
static void add_all(Ranks *r, size_t count, uint32_t dtype) {
    size_t each = dtype_bytes(dtype);
    for (size_t i = 0; i < count; i++) {
        double sum = 0;
        for (int k = 0; k < r->world; k++) {
            double x = float_at(dtype, (char *)r->data[k] + i * each);
            sum = k == 0 ? x : sum + x;
            if (dtype != AMPC_F64) sum = (float)sum;
        }
        float_put(dtype, sum, (char *)r->sum + i * each);
    }
}

static int allreduce(void *ctx, void *data, size_t count, int32_t dtype) {
    struct RankOf *of = ctx;
    Ranks *r = of->all;
    r->data[of->rank] = data;
    if (met(r)) return 1;
    if (of->rank == 0) {
        r->beside += !pthread_equal(r->thread[0], pthread_self());
        r->sum = malloc(count * sizeof(double) + 1);
        add_all(r, count, (uint32_t)dtype);
    }
    pthread_barrier_wait(&r->meet);
    memcpy(data, r->sum, count * dtype_bytes((uint32_t)dtype));
    pthread_barrier_wait(&r->meet);
    if (of->rank == 0) free(r->sum);
    return 0;
}

/* No rank reads the others' numbers. */
static int scatter(void *ctx, void *data, const uint64_t *at, int32_t dtype) {
    struct RankOf *of = ctx;
    size_t each = dtype_bytes((uint32_t)dtype), n = at[of->all->world];
    int failed = allreduce(ctx, data, n, dtype);
    if (of->rank == 0) of->all->cut = at[1];
    memset(data, 0xff, at[of->rank] * each);
    memset((char *)data + at[of->rank + 1] * each, 0xff,
           (n - at[of->rank + 1]) * each);
    return failed;
}

static int broadcast(void *ctx, void *data, size_t bytes, int32_t root) {
    struct RankOf *of = ctx;
    Ranks *r = of->all;
    r->data[of->rank] = data;
    if (met(r)) return 1;
    if (of->rank != root) memcpy(data, r->data[root], bytes);
    pthread_barrier_wait(&r->meet);
    return 0;
}

static int barrier(void *ctx) { return met(((struct RankOf *)ctx)->all); }

static const char *error(void *ctx) {
    (void)ctx;
    return "the cable was pulled";
}

void ranks_open(Ranks *r, int world) {
    *r = (Ranks){.world = world};
    REQUIRE(world <= RANKS_MOST);
    pthread_barrier_init(&r->meet, NULL, (unsigned)world);
    for (int i = 0; i < world; i++) {
        r->of[i] = (struct RankOf){r, i};
        r->comm[i] = (ampc_comm){.size = sizeof r->comm[i],
                                 .rank = i,
                                 .world = world,
                                 .any_thread = 1,
                                 .ctx = &r->of[i],
                                 .allreduce = allreduce,
                                 .broadcast = broadcast,
                                 .barrier = barrier,
                                 .error = error,
                                 .scatter = scatter};
    }
}

void ranks_close(Ranks *r) { pthread_barrier_destroy(&r->meet); }

typedef struct Started {
    void (*fn)(void *, int);
    void *ctx;
    int rank;
} Started;

static void *start(void *arg) {
    const Started *s = arg;
    s->fn(s->ctx, s->rank);
    return NULL;
}

void ranks_run(Ranks *r, void (*fn)(void *ctx, int rank), void *ctx) {
    Started s[RANKS_MOST];
    for (int i = 0; i < r->world; i++) {
        s[i] = (Started){fn, ctx, i};
        REQUIRE(pthread_create(&r->thread[i], NULL, start, &s[i]) == 0);
    }
    for (int i = 0; i < r->world; i++) pthread_join(r->thread[i], NULL);
}
