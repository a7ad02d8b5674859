/* shards.c: optimizer state that is spread over ranks (--shard-optimizer).

   The kernels that update parameters and their state work on units of elements,
   each for itself (PlanStep.split).  Rank r of N runs the r-th of N parts of
   every such kernel's units and has that part of the state alone; the
   parameters, which all ranks have, are handed out afterwards.  Gradients are
   sums of all ranks, so that norm, skip and scale are decided as without.
   A checkpoint is whole: while one is written or read, rank 0 has all of the
   state.                                                                    */
#include <string.h>

#include "runtime/backend.h"

struct Shards {
    uint32_t *step; /* by variable: of the plan, + 1; 0: all ranks have it   */
    void **own;     /* by variable: where its part is, while there is a whole */
    char *whole;    /* rank 0's, during a save or a load */
    size_t bytes, whole_bytes;
    bool gathered; /* rank 0 has all */
};

/* ---- who has what -------------------------------------------------------- */

void shard_units(const ampc_session *s, const PlanStep *t, int rank,
                 int64_t *lo, int64_t *hi) {
    const ampc_comm *c = s->opt.comm;
    *lo = s->shards ? t->units * rank / c->world : 0;
    *hi = s->shards ? t->units * (rank + 1) / c->world : t->units;
}

/* Of the elements that step t updates. */
static void elements(const ampc_session *s, const PlanStep *t, int rank,
                     uint64_t *lo, uint64_t *hi) {
    int64_t from, to, n = s->plan->pars[t->par0];
    shard_units(s, t, rank, &from, &to);
    *lo = (uint64_t)(from * t->split < n ? from * t->split : n);
    *hi = (uint64_t)(to * t->split < n ? to * t->split : n);
}

static void part_of(const ampc_session *s, uint32_t var, int rank, uint64_t *lo,
                    uint64_t *hi) {
    size_t each = dtype_bytes(s->m->vars[var].dtype);
    elements(s, &s->plan->steps[s->shards->step[var] - 1], rank, lo, hi);
    *lo *= each;
    *hi *= each;
}

bool shards_gathered(const ampc_session *s) {
    return s->shards && s->shards->gathered;
}

bool shard_is(const ampc_session *s, uint32_t var) {
    return s->shards && s->shards->step[var];
}

void shard_range(const ampc_session *s, uint32_t var, uint64_t *lo,
                 uint64_t *hi) {
    *lo = 0;
    *hi = s->m->vars[var].bytes;
    if (shard_is(s, var) && !(s->shards->gathered && s->shards->whole))
        part_of(s, var, s->opt.comm->rank, lo, hi);
}

/* ---- open and close ------------------------------------------------------ */

ampc_status shards_open(ampc_session *s) {
    if (!s->opt.comm || s->opt.comm->world < 2 ||
        !info_int(s->m, "shard_optimizer", 0))
        return AMPC_OK;
    if (s->plan != s->m->cpu)
        return session_fail(s, AMPC_ERR_UNSUPPORTED,
                            "--shard-optimizer: there is no such update on a "
                            "GPU yet");
    size_t bytes = sizeof(struct Shards) +
                   s->m->nvar * (sizeof(void *) + sizeof(uint32_t));
    struct Shards *x = mem_alloc(s, bytes);
    if (!x) return session_fail(s, AMPC_ERR_MEMORY, "out of memory");
    memset(x, 0, bytes);
    x->bytes = bytes;
    x->own = (void **)(x + 1);
    x->step = (uint32_t *)(x->own + s->m->nvar);
    for (uint32_t i = 0; i < s->plan->nstep; i++) {
        const PlanStep *t = &s->plan->steps[i];
        for (uint32_t k = 0; k < t->nref && t->split; k++) {
            const PlanRef *r = &s->plan->refs[t->ref0 + k];
            if (r->space != PLAN_VAR) continue;
            const PlanVar *v = &s->m->vars[r->index];
            uint64_t n = v->bytes / dtype_bytes(v->dtype);
            if (v->kind == PLAN_STATE && v->rank && v->init < 0 && !v->fill &&
                n == (uint64_t)s->plan->pars[t->par0])
                x->step[r->index] = i + 1;
        }
    }
    s->shards = x;
    return AMPC_OK;
}

void shards_close(ampc_session *s) {
    struct Shards *x = s->shards;
    if (!x) return;
    mem_free(s, x->whole, x->whole_bytes);
    mem_free(s, x, x->bytes);
    s->shards = NULL;
}

/* ---- parameters after an update ------------------------------------------ */

typedef enum Move { MOVE_NOTHING, MOVE_OUT, MOVE_IN } Move;

/* A parameter that ref k of step t is the first to name. */
static bool names_parameter(const ampc_session *s, const PlanStep *t,
                            uint32_t k) {
    const PlanRef *r = &s->plan->refs[t->ref0];
    for (uint32_t j = 0; j < k; j++)
        if (r[j].space == PLAN_VAR && r[j].index == r[k].index) return false;
    return r[k].space == PLAN_VAR && s->m->vars[r[k].index].kind == PLAN_PARAM;
}

/* The part of rank `rank` of all parameters, to a block or from it; *bytes:
   what it takes there.                                                      */
static ampc_status move_part(ampc_session *s, int rank, Move move, char *block,
                             size_t *bytes) {
    const PlanRun *run = &s->plan->runs[s->program[PROG_UPDATE]];
    ampc_status status = AMPC_OK;
    *bytes = 0;
    for (uint32_t i = 0; i < run->nstep; i++) {
        const PlanStep *t = &s->plan->steps[run->step0 + i];
        for (uint32_t k = 0; k < t->nref && t->split; k++) {
            PlanRef r = s->plan->refs[t->ref0 + k];
            uint64_t lo, hi;
            if (!names_parameter(s, t, k)) continue;
            elements(s, t, rank, &lo, &hi);
            r.offset = lo * sizeof(float);
            size_t n = (hi - lo) * sizeof(float);
            if (status == AMPC_OK && move == MOVE_OUT)
                status = s->backend->get(s, r, block + *bytes, n);
            if (status == AMPC_OK && move == MOVE_IN)
                status = s->backend->put(s, r, block + *bytes, n);
            *bytes += n;
        }
    }
    return status;
}

ampc_status shards_hand_out(ampc_session *s) {
    ampc_status status = AMPC_OK;
    size_t room, bytes;
    if (!s->shards) return AMPC_OK;
    char *block = (char *)sums_scratch(s, &room); /* as large as gradients */
    for (int r = 0; r < s->opt.comm->world && status == AMPC_OK; r++) {
        bool mine = r == s->opt.comm->rank;
        status = move_part(s, r, mine ? MOVE_OUT : MOVE_NOTHING, block, &bytes);
        if (status == AMPC_OK)
            status = comm_hand_out(s, block, bytes, r, "parameters");
        if (status == AMPC_OK && !mine)
            status = move_part(s, r, MOVE_IN, block, &bytes);
    }
    s->stale = true; /* 16-bit copies of what others updated */
    return status;
}

/* ---- checkpoints --------------------------------------------------------- */

/* Rank 0's own part and the whole trade places. */
static void enter_whole(ampc_session *s) {
    struct Shards *x = s->shards;
    char *whole = x->whole;
    for (uint32_t i = 0; i < s->m->nvar; i++) {
        void **slot = cpu_var_slot(s, i);
        uint64_t lo, hi;
        if (!x->step[i]) continue;
        part_of(s, i, 0, &lo, &hi);
        memcpy(whole + lo, (char *)*slot + lo, hi - lo);
        x->own[i] = *slot;
        *slot = whole;
        whole += s->m->vars[i].bytes;
    }
}

static void leave_whole(ampc_session *s) {
    struct Shards *x = s->shards;
    for (uint32_t i = 0; i < s->m->nvar; i++) {
        void **slot = cpu_var_slot(s, i);
        uint64_t lo, hi;
        if (!x->step[i]) continue;
        part_of(s, i, 0, &lo, &hi);
        memcpy((char *)x->own[i] + lo, (char *)*slot + lo, hi - lo);
        *slot = x->own[i];
    }
}

/* Rank r's part of a variable to rank 0. */
static ampc_status collect(ampc_session *s, uint32_t var, int r) {
    ampc_status status = AMPC_OK;
    uint64_t lo, hi;
    size_t room;
    void *block = sums_scratch(s, &room);
    part_of(s, var, r, &lo, &hi);
    for (uint64_t n; lo < hi && status == AMPC_OK; lo += n) {
        PlanRef ref = var_ref(var, lo);
        n = hi - lo < room ? hi - lo : room;
        if (r == s->opt.comm->rank) status = s->backend->get(s, ref, block, n);
        if (status == AMPC_OK)
            status = comm_hand_out(s, block, n, r, "checkpoint");
        if (status == AMPC_OK && s->shards->whole)
            status = s->backend->put(s, ref, block, n);
    }
    return status;
}

ampc_status shards_gather(ampc_session *s, bool fill) {
    struct Shards *x = s->shards;
    ampc_status status = AMPC_OK;
    uint64_t bytes = 1;
    if (!x) return AMPC_OK;
    for (uint32_t i = 0; i < s->m->nvar; i++)
        if (x->step[i]) bytes += s->m->vars[i].bytes;
    if (s->opt.comm->rank == 0) {
        x->whole_bytes = bytes;
        x->whole = mem_alloc(s, bytes);
        if (!x->whole)
            status = session_fail(s, AMPC_ERR_MEMORY,
                                  "out of memory for the state of all ranks");
    }
    status = comm_agree(s, status, "has no memory for the state of all");
    if (status != AMPC_OK) return status;
    x->gathered = true;
    if (x->whole) enter_whole(s);
    for (uint32_t i = 0; i < s->m->nvar && fill; i++)
        for (int r = 1; r < s->opt.comm->world && status == AMPC_OK; r++)
            if (x->step[i]) status = collect(s, i, r);
    return status;
}

void shards_part(ampc_session *s) {
    struct Shards *x = s->shards;
    if (!x) return;
    if (x->gathered && x->whole) leave_whole(s);
    mem_free(s, x->whole, x->whole_bytes);
    x->whole = NULL;
    x->gathered = false;
}
