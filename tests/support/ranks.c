/* ranks.c: see ranks.h. */
#define _GNU_SOURCE
#include "tests/support/ranks.h"

#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

/* One of the threads that met counts the call. */
static int met(Ranks *r) {
    if (pthread_barrier_wait(&r->meet) == PTHREAD_BARRIER_SERIAL_THREAD)
        r->calls++;
    pthread_barrier_wait(&r->meet);
    return r->fail_in > 0 && r->calls >= r->fail_in;
}

static void add_all(Ranks *r, size_t count, bool wide) {
    for (size_t i = 0; i < count; i++) {
        double sum = 0;
        for (int k = 0; k < r->world; k++)
            if (wide)
                sum = k ? sum + ((double *)r->data[k])[i]
                        : ((double *)r->data[k])[i];
            else
                sum = k ? (float)sum + ((float *)r->data[k])[i]
                        : ((float *)r->data[k])[i];
        r->sum[i] = sum;
    }
}

static int allreduce(void *ctx, void *data, size_t count, int32_t dtype) {
    struct RankOf *of = ctx;
    Ranks *r = of->all;
    bool wide = dtype == AMPC_DTYPE_F64;
    r->data[of->rank] = data;
    if (met(r)) return 1;
    if (of->rank == 0) {
        r->sum = malloc(count * sizeof *r->sum + 1);
        add_all(r, count, wide);
    }
    pthread_barrier_wait(&r->meet);
    for (size_t i = 0; i < count; i++)
        if (wide)
            ((double *)data)[i] = r->sum[i];
        else
            ((float *)data)[i] = (float)r->sum[i];
    pthread_barrier_wait(&r->meet);
    if (of->rank == 0) free(r->sum);
    return 0;
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
                                 .ctx = &r->of[i],
                                 .allreduce = allreduce,
                                 .broadcast = broadcast,
                                 .barrier = barrier,
                                 .error = error};
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
    pthread_t thread[RANKS_MOST];
    Started s[RANKS_MOST];
    for (int i = 0; i < r->world; i++) {
        s[i] = (Started){fn, ctx, i};
        REQUIRE(pthread_create(&thread[i], NULL, start, &s[i]) == 0);
    }
    for (int i = 0; i < r->world; i++) pthread_join(thread[i], NULL);
}
