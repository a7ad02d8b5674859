/* SPDX-License-Identifier: Apache-2.0 */
/* comm.c: a session as one of many ranks.

   A step of N ranks that make A micro-steps each is the step of one rank that
   makes N A of them: rank r computes those from r A on.  Its gradients
   (sums.c), its sums of losses and shares, and flags for bad data are summed
   over ranks; program update then sees the same bits on every rank and makes
   the same decisions: norm, skip, scale, step. So between steps all ranks hold
   the same variables, except buffers, which rank 0 broadcasts. The random
   counter advances as on a single rank.

   Only ampc_options.comm moves bytes. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/api/session.h"
#include "runtime/base/contract.h"
#include "runtime/base/crc.h"
#include "runtime/base/try.h"
#include "runtime/program/dtype.h"

enum { DEFAULT_DEADLINE = 300 };

/* ---- open and close ------------------------------------------------------ */

static const CommEngine *const engines[] = {&comm_mpi, &comm_nccl, &comm_tcp};
enum { NENGINE = sizeof engines / sizeof *engines };

ampc_status comm_open(const ampc_comm_options *options, ampc_comm **out,
                      char *err, size_t err_size) {
    ampc_comm_options o = {.size = 0};
    const char *why = "ampc_comm_options.size is not set";
    if (err && err_size) err[0] = 0;
    if (out) *out = NULL;
    if (SIZED(options)) {
        memcpy(&o, options,
               options->size < sizeof o ? options->size : sizeof o);
        why = !out                                      ? "out is NULL"
              : !(o.deadline >= 0 && o.deadline <= 1e9) ? "deadline: seconds"
              : !o.engine                               ? "no engine is named"
                                                        : NULL;
    }
    for (size_t i = 0; i < NENGINE && !why; i++)
        if (strcmp(o.engine, engines[i]->name) == 0)
            return engines[i]->open(o.deadline > 0 ? o.deadline
                                                   : DEFAULT_DEADLINE,
                                    out, err, err_size);
    if (err && err_size && why) snprintf(err, err_size, "%s", why);
    if (err && err_size && !why)
        snprintf(err, err_size, "unknown engine '%.100s': mpi, nccl or tcp",
                 o.engine);
    return AMPC_ERR_ARGUMENT;
}

void comm_close(ampc_comm *comm) {
    if (comm) ((const CommHead *)comm->ctx)->engine->close(comm);
}

double comm_seconds(void) { return 1e-9 * (double)now_ns(); }

int comm_number(const char *const *names, size_t n, int dflt) {
    for (size_t i = 0; i < n; i++) {
        const char *text = secure_getenv(names[i]);
        char *end;
        long value = text ? strtol(text, &end, 10) : -1;
        if (value >= 0 && value <= INT32_MAX && *text && !*end)
            return (int)value;
    }
    return dflt;
}

/* As launchers say. */
int comm_local_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK",
                                        "MPI_LOCALRANKID", "SLURM_LOCALID",
                                        "LOCAL_RANK"};
    return comm_number(names, sizeof names / sizeof *names, 0);
}

void comm_add(void *sum, const void *x, size_t n, int32_t dtype) {
    if (dtype == AMPC_DTYPE_F64) {
        double *to = sum;
        for (size_t i = 0; i < n; i++) to[i] += ((const double *)x)[i];
        return;
    }
    float *to = sum;
    CONTRACT(dtype == AMPC_DTYPE_F32 || dtype_bytes((uint32_t)dtype) == 2);
    if (dtype == AMPC_DTYPE_F32)
        for (size_t i = 0; i < n; i++) to[i] += ((const float *)x)[i];
    else
        for (size_t i = 0; i < n; i++)
            to[i] += half_to_f32((uint32_t)dtype, ((const uint16_t *)x)[i]);
}

void comm_narrow(void *data, size_t n, int32_t dtype) {
    const float *in = data;
    uint16_t *out = data;
    for (size_t i = 0; i < n; i++) {
        uint16_t h = half_of_f32((uint32_t)dtype, in[i]);
        memcpy(out + i, &h, sizeof h);
    }
}

void comm_widen(void *data, size_t n, int32_t dtype) {
    const uint16_t *in = data;
    float *out = data;
    for (size_t i = n; i-- > 0;) {
        uint16_t h;
        memcpy(&h, in + i, sizeof h);
        out[i] = half_to_f32((uint32_t)dtype, h);
    }
}

/* ---- the engine ---------------------------------------------------------- */

/* A host's communicator ends with the last field of the interface for which
   it was built. */
#define HAS(c, fn)                                                             \
    ((c)->size >= offsetof(ampc_comm, fn) + sizeof(c)->fn && (c)->fn)

enum { COMM_MOST = 65536 };

bool comm_is_whole(const ampc_comm *c) {
    return HAS(c, allreduce) && HAS(c, broadcast) && HAS(c, barrier) &&
           c->world >= 1 && c->world <= COMM_MOST && c->rank >= 0 &&
           c->rank < c->world && c->local >= 0;
}

bool comm_sums_on_device(const ampc_comm *c) {
    return c && HAS(c, allreduce_on) && HAS(c, broadcast_on) && HAS(c, group) &&
           HAS(c, waiting);
}

ampc_status comm_failed(ampc_session *s, const char *what) {
    const ampc_comm *c = s->opt.comm;
    const char *why = HAS(c, error) ? c->error(c->ctx) : NULL;
    return session_fail(s, AMPC_ERR_COMM, "%s: %.600s", what,
                        why && *why ? why : "the communicator failed");
}

static ampc_status add_up(ampc_session *s, void *data, size_t n,
                          ampc_dtype dtype, const char *what) {
    const ampc_comm *c = s->opt.comm;
    if (c->allreduce(c->ctx, data, n, dtype) == 0) return AMPC_OK;
    return comm_failed(s, what);
}

ampc_status comm_broadcast(ampc_session *s, void *data, size_t bytes, int root,
                           const char *what) {
    const ampc_comm *c = s->opt.comm;
    CONTRACT(root >= 0 && root < c->world);
    if (c->broadcast(c->ctx, data, bytes, root) == 0) return AMPC_OK;
    return comm_failed(s, what);
}

ampc_status comm_gather(ampc_session *s, char *data, const uint64_t *at,
                        const char *what) {
    const ampc_comm *c = s->opt.comm;
    ampc_status status = AMPC_OK;
    for (int r = 0; r < c->world; r++) CONTRACT(at[r] <= at[r + 1]);
    if (HAS(c, gather))
        return c->gather(c->ctx, data, at) ? comm_failed(s, what) : AMPC_OK;
    for (int r = 0; r < c->world && status == AMPC_OK; r++)
        status = comm_broadcast(s, data + at[r], at[r + 1] - at[r], r, what);
    return status;
}

int comm_scatter(const ampc_comm *c, void *data, const uint64_t *at,
                 int32_t dtype) {
    if (HAS(c, scatter)) return c->scatter(c->ctx, data, at, dtype);
    return c->allreduce(c->ctx, data, at[c->world], dtype);
}

int comm_reduce_on(const ampc_comm *c, uint64_t data, size_t count,
                   int32_t dtype, int root, void *stream) {
    if (HAS(c, reduce_on))
        return c->reduce_on(c->ctx, data, count, dtype, root, stream);
    return c->allreduce_on(c->ctx, data, count, dtype, stream);
}

ampc_status comm_agree(ampc_session *s, ampc_status status, const char *what) {
    double all = status;
    ampc_status sum = add_up(s, &all, 1, AMPC_DTYPE_F64, what);
    if (sum != AMPC_OK || status != AMPC_OK) return sum ? sum : status;
    if (all == AMPC_OK) return AMPC_OK;
    return session_fail(s, AMPC_ERR_COMM, "another rank %s", what);
}

/* A communicator has sums alone: each rank's numbers have places of their own
   in one. */
static ampc_status take_largest(ampc_session *s, float *data, size_t n) {
    enum { PLACES = 4096 };
    float place[PLACES];
    size_t world = (size_t)s->opt.comm->world, rank = (size_t)s->opt.comm->rank;
    size_t each = PLACES / world;
    if (each == 0)
        return session_fail(s, AMPC_ERR_UNSUPPORTED,
                            "--f8-scales delayed with more than %d ranks",
                            PLACES);
    for (size_t at = 0; at < n; at += each) {
        size_t some = n - at < each ? n - at : each;
        memset(place, 0, world * some * sizeof *place);
        memcpy(place + rank * some, data + at, some * sizeof *place);
        TRY(add_up(s, place, world * some, AMPC_DTYPE_F32, "scales"));
        for (size_t i = 0; i < world * some; i++) {
            float x = place[i], *to = &data[at + i % some];
            if (i < some || (*to == *to && !(x <= *to))) *to = x;
        }
    }
    return AMPC_OK;
}

ampc_status comm_sum_now(ampc_session *s, void *data, const LibCopy *what,
                         bool largest) {
    if (!s->opt.comm) return AMPC_OK;
    ampc_status status = sums_wait(s); /* one sum at a time */
    size_t each = dtype_bytes((uint32_t)what->dtype);
    if (status != AMPC_OK || !each) return status;
    if (largest) return take_largest(s, data, (size_t)what->bytes / each);
    return add_up(s, data, (size_t)what->bytes / each, (ampc_dtype)what->dtype,
                  "statistics");
}

/* ---- the same module everywhere? ----------------------------------------- */

/* The facts that ranks exchange first, as numbers that a double represents
   exactly. */
typedef enum Fact {
    FACT_STATUS,
    FACT_GRAPH_HIGH,
    FACT_GRAPH_LOW,
    FACT_OPTIONS,
    FACT_ID_HIGH,
    FACT_ID_LOW,
    FACT_COUNT
} Fact;

static void facts_fill(const ampc_session *s, ampc_status status, double *f) {
    const AmpcModule *m = s->m;
    const char *info = m->info ? m->info : "";
    f[FACT_STATUS] = status;
    f[FACT_GRAPH_HIGH] = (double)(m->graph_hash >> 32);
    f[FACT_GRAPH_LOW] = (double)(uint32_t)m->graph_hash;
    f[FACT_OPTIONS] = crc_add(0, (const uint8_t *)info, strlen(info));
    f[FACT_ID_HIGH] = (double)(m->id >> 32);
    f[FACT_ID_LOW] = (double)(uint32_t)m->id;
}

/* The difference between two ranks, or NULL. */
static const char *facts_differ(const double *a, const double *b) {
    static const char *const what[FACT_COUNT] = {
        [FACT_GRAPH_HIGH] = "another graph",
        [FACT_GRAPH_LOW] = "another graph",
        [FACT_OPTIONS] = "a module of other compile options",
        [FACT_ID_HIGH] = "another module",
        [FACT_ID_LOW] = "another module"};
    for (int i = FACT_GRAPH_HIGH; i < FACT_COUNT; i++)
        if (a[i] != b[i]) return what[i];
    return NULL;
}

/* Compares the facts of `n` ranks from `first` on with rank 0's facts. All
   ranks get the same status; a rank that failed keeps its message. */
static ampc_status facts_judge(ampc_session *s, ampc_status status,
                               const double *facts, int first, int n,
                               const double *of_0) {
    for (int i = 0; i < n && status == AMPC_OK; i++) {
        const double *f = facts + i * FACT_COUNT;
        const char *differs = facts_differ(f, of_0);
        if (f[FACT_STATUS] != AMPC_OK)
            status =
                session_fail(s, AMPC_ERR_COMM,
                             "rank %d could not open its session", first + i);
        else if (differs)
            status =
                session_fail(s, AMPC_ERR_COMM, "rank %d has %s than rank 0",
                             first + i, differs);
    }
    return status;
}

static ampc_status bad_open(ampc_session *s) {
    size_t bytes = (size_t)s->opt.comm->world * sizeof *s->ranks.bad_of;
    s->ranks.bad_of = mem_alloc(s, bytes);
    if (!s->ranks.bad_of)
        return session_fail(s, AMPC_ERR_MEMORY, "out of memory");
    memset(s->ranks.bad_of, 0, bytes);
    return AMPC_OK;
}

/* Uses no allocated memory: a rank without memory must say so, too. */
ampc_status comm_join(ampc_session *s, ampc_status status) {
    enum { AT_ONCE = 4 };
    const ampc_comm *c = s->opt.comm;
    double facts[AT_ONCE * FACT_COUNT], of_0[FACT_COUNT];
    if (status == AMPC_OK && s->accumulate > INT32_MAX / c->world)
        status = session_fail(s, AMPC_ERR_UNSUPPORTED,
                              "comm: too many micro-steps of all ranks");
    if (status == AMPC_OK) status = sums_open(s);
    if (status == AMPC_OK && s->ranks.on_device) status = bad_open(s);
    ampc_status own = status;
    for (int r = 0; r < c->world; r += AT_ONCE) {
        int n = c->world - r < AT_ONCE ? c->world - r : AT_ONCE;
        memset(facts, 0, sizeof facts);
        if (c->rank >= r && c->rank < r + n)
            facts_fill(s, own, facts + (c->rank - r) * FACT_COUNT);
        ampc_status sum =
            add_up(s, facts, (size_t)n * FACT_COUNT, AMPC_DTYPE_F64, "comm");
        if (sum != AMPC_OK) return sum;
        if (r == 0) memcpy(of_0, facts, sizeof of_0);
        status = facts_judge(s, status, facts, r, n, of_0);
    }
    return status;
}

/* ---- rank 0's variables to all ------------------------------------------- */

static ampc_status put_comm_number(ampc_session *s, KnownVar which, double x) {
    uint64_t value = 0;
    int v = s->known[which];
    if (v < 0 || !scalar_encode(s->m->vars[v].dtype, x, &value)) return AMPC_OK;
    return s->backend->put(s, var_ref((uint32_t)v, 0), &value,
                           s->m->vars[v].bytes);
}

/* Sends through the block, which is large enough for efficient transfers. */
static ampc_status share_var(ampc_session *s, uint32_t var) {
    const PlanVar *v = &s->m->vars[var];
    bool has = s->opt.comm->rank == 0;
    size_t room;
    float *block = sums_scratch(s, &room);
    for (uint64_t at = 0, n; at < v->bytes; at += n) {
        ampc_status status = AMPC_OK;
        PlanRef ref = var_ref(var, at);
        n = v->bytes - at < room ? v->bytes - at : room;
        if (has) status = s->backend->get(s, ref, block, n);
        if (status == AMPC_OK) status = comm_broadcast(s, block, n, 0, v->name);
        if (status == AMPC_OK && !has) status = shard_put(s, ref, block, n);
        if (status != AMPC_OK) return status;
    }
    return AMPC_OK;
}

/* Broadcasts the variables whose kinds are in the set, a bit per kind. */
static ampc_status share_vars(ampc_session *s, uint32_t kinds) {
    ampc_status status = AMPC_OK;
    for (uint32_t i = 0; i < s->m->nvar && status == AMPC_OK; i++)
        if (kinds >> s->m->vars[i].kind & 1 &&
            (!shard_is(s, i) || shards_gathered(s)))
            status = share_var(s, i);
    return status;
}

static ampc_status share_cursor(ampc_session *s) {
    bool has = s->opt.comm->rank == 0;
    uint64_t bytes = s->cursor ? strlen(s->cursor) + 1 : 0;
    ampc_status status = comm_broadcast(s, &bytes, sizeof bytes, 0, "cursor");
    if (status != AMPC_OK) return status;
    char *text = has ? s->cursor : bytes ? mem_alloc(s, bytes) : NULL;
    if (bytes && !text)
        return session_fail(s, AMPC_ERR_MEMORY, "out of memory");
    if (bytes) status = comm_broadcast(s, text, bytes, 0, "cursor");
    if (has) return status;
    session_take_cursor(s, text);
    return status;
}

ampc_status comm_share(ampc_session *s, ampc_status status) {
    const uint32_t kinds = 1u << PLAN_PARAM | 1u << PLAN_FROZEN |
                           1u << PLAN_BUFFER | 1u << PLAN_STATE |
                           1u << PLAN_HYPER;
    double number;
    status = comm_agree(s, status, "could not load");
    if (status != AMPC_OK) return status;
    s->stale = true;
    status = share_vars(s, kinds);
    if (status == AMPC_OK) status = share_cursor(s);
    double made = 0; /* micro-steps of any objective */
    for (uint32_t i = 0; i < s->m->nvar && status == AMPC_OK; i++) {
        if (!is_known(s->m->vars[i].name, VAR_MICRO)) continue;
        status = var_number(s, (int)i, 0, &number);
        made += number;
    }
    if (status != AMPC_OK) return status;
    if (made != 0)
        return session_fail(s, AMPC_ERR_FORMAT,
                            "the checkpoint was made between micro-steps, by "
                            "one rank alone");
    s->micro = 0;
    status = var_number(s, s->known[VAR_BAD_DATA], 0, &number);
    s->bad.count = s->ranks.bad_agreed = (int64_t)number;
    s->ranks.random = -1;
    if (status != AMPC_OK || !s->ranks.on_device) return status;
    memset(s->ranks.bad_of, 0,
           (size_t)s->opt.comm->world * sizeof *s->ranks.bad_of);
    s->ranks.bad_of[0] =
        s->ranks.bad_agreed; /* the other ranks continue counting from 0 */
    return s->opt.comm->rank ? put_comm_number(s, VAR_BAD_DATA, 0) : AMPC_OK;
}

/* ---- a step -------------------------------------------------------------- */

/* The second element of ampc.rng counts the training forward passes. It is
   read rarely, since a device may be steps ahead. */
ampc_status comm_random(ampc_session *s, int64_t micro_steps) {
    int v = s->known[VAR_RNG];
    if (v < 0 || s->m->vars[v].bytes != 2 * sizeof s->ranks.random)
        return AMPC_OK;
    PlanRef at = var_ref((uint32_t)v, sizeof s->ranks.random);
    ampc_status status = AMPC_OK;
    int64_t count = s->ranks.random;
    if (count < 0) status = s->backend->get(s, at, &count, sizeof count);
    if (status != AMPC_OK) return status;
    s->ranks.random = count;
    count += micro_steps;
    return s->backend->put(s, at, &count, sizeof count);
}

/* Counts bad batches of this step; bad[r]: the number on rank r. */
static ampc_status count_bad(ampc_session *s, const float *bad) {
    const ampc_comm *c = s->opt.comm;
    int64_t total = 0;
    s->ranks.bad_rank = -1;
    for (int r = 0; r < c->world; r++) {
        if (bad[r] > 0 && s->ranks.bad_rank < 0) s->ranks.bad_rank = r;
        total += (int64_t)bad[r];
    }
    if (!total) return AMPC_OK;
    if (bad[c->rank] > 0) s->ranks.bad_rank = -1;
    s->ranks.bad_agreed += total;
    return put_comm_number(s, VAR_BAD_DATA, (double)s->ranks.bad_agreed);
}

int64_t comm_bad(ampc_session *s, const int64_t *each) {
    const ampc_comm *c = s->opt.comm;
    int64_t total = 0;
    s->ranks.bad_rank = -1;
    for (int r = c->world; r-- > 0;) {
        if (each[r] > s->ranks.bad_of[r]) s->ranks.bad_rank = r;
        total += each[r];
    }
    if (each[c->rank] > s->ranks.bad_of[c->rank]) s->ranks.bad_rank = -1;
    memcpy(s->ranks.bad_of, each, (size_t)c->world * sizeof *each);
    return total;
}

ampc_status comm_updated(ampc_session *s) {
    int64_t made = s->accumulate * s->opt.comm->world;
    ampc_status status = comm_random(s, made);
    if (s->ranks.random >= 0) s->ranks.random += made;
    return status;
}

ampc_status comm_reduce(ampc_session *s) {
    const ampc_comm *c = s->opt.comm;
    if (s->ranks.on_device) return AMPC_OK; /* with program update */
    double loss, shares, bad;
    size_t bytes = (2 + (size_t)c->world) * sizeof(float);
    TRY(var_number(s, s->known[VAR_LOSS_SUM], 0, &loss));
    TRY(var_number(s, s->known[VAR_SHARES], 0, &shares));
    TRY(var_number(s, s->known[VAR_BAD_DATA], 0, &bad));
    float *tail = sums_tail(s);
    memset(tail, 0, bytes);
    tail[0] = (float)loss;
    tail[1] = (float)shares;
    tail[2 + c->rank] = (float)(bad - (double)s->ranks.bad_agreed);
    TRY(sums_finish(s));
    TRY(put_comm_number(s, VAR_LOSS_SUM, tail[0]));
    TRY(put_comm_number(s, VAR_SHARES, tail[1]));
    TRY(count_bad(s, tail + 2));
    return share_vars(s, 1u << PLAN_BUFFER);
}
