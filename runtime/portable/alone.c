/* SPDX-License-Identifier: Apache-2.0 */
/* alone.c: replaces ranks/ for a session with a single process. MPI, sockets
   and shared optimizer state are not a part of what `ampc --target c`
   writes. A host that passes a communicator gets an error when it opens a
   session; the functions below that need one are never called. */
#include <stdio.h>

#include "runtime/api/session.h"

static const char alone[] =
    "a module made by --target c trains alone, without ranks";

ampc_status comm_open(const ampc_comm_options *options, ampc_comm **out,
                      char *err, size_t err_size) {
    (void)options;
    if (out) *out = NULL;
    if (err && err_size) snprintf(err, err_size, "%s", alone);
    return AMPC_ERR_UNSUPPORTED;
}

void comm_close(ampc_comm *comm) { (void)comm; }

bool comm_is_whole(const ampc_comm *c) { return c != NULL; }

bool comm_sums_on_device(const ampc_comm *c) {
    (void)c;
    return false;
}

ampc_status shards_open(ampc_session *s) {
    if (!s->opt.comm) return AMPC_OK;
    return session_fail(s, AMPC_ERR_UNSUPPORTED, "%s", alone);
}

ampc_status comm_join(ampc_session *s, ampc_status status) {
    (void)s;
    return status == AMPC_OK ? AMPC_ERR_UNSUPPORTED : status;
}

/* ---- never reached: no session has a communicator ------------------------ */

static ampc_status no_ranks(ampc_session *s) {
    return session_fail(s, AMPC_ERR_INTERNAL, "%s", alone);
}

ampc_status comm_share(ampc_session *s, ampc_status status) {
    return status == AMPC_OK ? no_ranks(s) : status;
}

ampc_status comm_agree(ampc_session *s, ampc_status status, const char *what) {
    (void)what;
    return status == AMPC_OK ? no_ranks(s) : status;
}

ampc_status comm_random(ampc_session *s, int64_t micro_steps) {
    (void)micro_steps;
    return no_ranks(s);
}

ampc_status comm_updated(ampc_session *s) { return no_ranks(s); }

int64_t comm_bad(ampc_session *s, const int64_t *each) {
    (void)s;
    (void)each;
    return 0;
}

ampc_status comm_sum_now(ampc_session *s, void *data, const LibCopy *what,
                         bool largest) {
    (void)data;
    (void)what;
    (void)largest;
    return no_ranks(s);
}

ampc_status comm_reduce(ampc_session *s) { return no_ranks(s); }
ampc_status sums_finish(ampc_session *s) { return no_ranks(s); }

/* ---- nothing to sum, nothing spread -------------------------------------- */

void sums_close(ampc_session *s) { (void)s; }
void sums_begin(ampc_session *s) { (void)s; }
void sums_ready(ampc_session *s) { (void)s; }

ampc_status sums_wait(ampc_session *s) {
    (void)s;
    return AMPC_OK;
}

void shards_close(ampc_session *s) { (void)s; }

void shard_elements(const ampc_session *s, const PlanStep *t, uint32_t tensor,
                    int rank, int64_t *lo, int64_t *hi) {
    (void)rank;
    *lo = 0;
    *hi = s->plan->pars[t->par0 + tensor];
}

bool shard_is(const ampc_session *s, uint32_t var) {
    (void)s;
    (void)var;
    return false;
}

void shard_range(const ampc_session *s, uint32_t var, uint64_t *lo,
                 uint64_t *hi) {
    *lo = 0;
    *hi = s->m->vars[var].bytes;
}

char *shard_whole(const ampc_session *s, PlanRef r) {
    (void)s;
    (void)r;
    return NULL;
}

ampc_status shard_put(ampc_session *s, PlanRef to, const void *from,
                      uint64_t n) {
    return s->backend->put(s, to, from, n);
}

ampc_status shards_allgather(ampc_session *s) {
    (void)s;
    return AMPC_OK;
}

ampc_status shards_refresh(ampc_session *s) {
    (void)s;
    return AMPC_OK;
}

ampc_status shards_gather(ampc_session *s, ampc_status status, bool saving) {
    (void)s;
    (void)saving;
    return status;
}

bool shards_gathered(const ampc_session *s) {
    (void)s;
    return true;
}

ampc_status shards_part(ampc_session *s, ampc_status status) {
    (void)s;
    return status;
}
