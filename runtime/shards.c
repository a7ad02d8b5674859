/* shards.c: optimizer state that is spread over ranks (--shard-optimizer).

   The kernels that update parameters and their state work on units of elements,
   each for itself (PlanStep.split).  Rank r of N runs the r-th of N parts of
   every such tensor's units and has that part of the state alone; the
   parameters, which all ranks have, are handed out afterwards.  Gradients are
   sums of all ranks, so that norm, skip and scale are decided as without.
   A checkpoint is whole: while one is written or read, rank 0 has all of the
   state, in the host's memory. */
#include <string.h>

#include "runtime/backend.h"

/* Of a variable that is spread: the tensor that updates it. */
typedef struct Spread {
    uint32_t step;   /* of the plan, + 1; 0: all ranks have all of it */
    uint32_t tensor; /* of PLAN_MANY, else 0 */
    uint64_t at;     /* in the whole, bytes */
} Spread;

struct Shards {
    Spread *of;  /* by variable */
    char *whole; /* rank 0's, during a save or a load */
    size_t bytes, whole_bytes;
    bool gathered; /* rank 0 has all */
    bool filled;   /* .. from a file: its own part goes back */
};

/* ---- who has what -------------------------------------------------------- */

static uint32_t tensors_of(const PlanStep *t) {
    return t->kind == PLAN_MANY ? t->npar : 1;
}

void shard_elements(const ampc_session *s, const PlanStep *t, uint32_t tensor,
                    int rank, int64_t *lo, int64_t *hi) {
    int64_t n = s->plan->pars[t->par0 + tensor], split = t->split;
    int64_t units = n / split + (n % split > 0);
    int world = s->shards ? s->opt.comm->world : 1;
    int64_t from = units * (s->shards ? rank : 0) / world;
    int64_t to = units * (s->shards ? rank + 1 : 1) / world;
    *lo = from < units ? from * split : n;
    *hi = to < units ? to * split : n;
}

static void part_of(const ampc_session *s, uint32_t var, int rank, uint64_t *lo,
                    uint64_t *hi) {
    const Spread *x = &s->shards->of[var];
    uint64_t each = dtype_bytes(s->m->vars[var].dtype);
    int64_t from, to;
    shard_elements(s, &s->plan->steps[x->step - 1], x->tensor, rank, &from,
                   &to);
    *lo = (uint64_t)from * each;
    *hi = (uint64_t)to * each;
}

bool shards_gathered(const ampc_session *s) {
    return s->shards && s->shards->gathered;
}

bool shard_is(const ampc_session *s, uint32_t var) {
    return s->shards && s->shards->of[var].step;
}

void shard_range(const ampc_session *s, uint32_t var, uint64_t *lo,
                 uint64_t *hi) {
    *lo = 0;
    *hi = s->m->vars[var].bytes;
    if (shard_is(s, var) && !(s->shards->gathered && s->shards->whole))
        part_of(s, var, s->opt.comm->rank, lo, hi);
}

char *shard_whole(const ampc_session *s, PlanRef r) {
    return shards_gathered(s) && s->shards->whole && r.space == PLAN_VAR &&
                   shard_is(s, r.index)
               ? s->shards->whole + s->shards->of[r.index].at + r.offset
               : NULL;
}

/* ---- open and close ------------------------------------------------------ */

/* Whether r, of tensor i of step t, is a variable that is spread. */
static bool is_state(const ampc_session *s, const PlanStep *t, uint32_t i,
                     const PlanRef *r) {
    if (r->space != PLAN_VAR) return false;
    const PlanVar *v = &s->m->vars[r->index];
    return v->kind == PLAN_STATE && v->rank && v->init < 0 && !v->fill &&
           v->bytes / dtype_bytes(v->dtype) ==
               (uint64_t)s->plan->pars[t->par0 + i];
}

ampc_status shards_open(ampc_session *s) {
    if (!s->opt.comm || s->opt.comm->world < 2 ||
        !info_int(s->m, "shard_optimizer", 0))
        return AMPC_OK;
    size_t bytes = sizeof(struct Shards) + s->m->nvar * sizeof(Spread);
    struct Shards *x = mem_alloc(s, bytes);
    if (!x) return session_fail(s, AMPC_ERR_MEMORY, "out of memory");
    memset(x, 0, bytes);
    x->bytes = bytes;
    x->of = (Spread *)(x + 1);
    for (uint32_t i = 0; i < s->plan->nstep; i++) {
        const PlanStep *t = &s->plan->steps[i];
        uint32_t each = t->nref / tensors_of(t);
        for (uint32_t k = 0; k < t->nref && t->split; k++) {
            const PlanRef *r = &s->plan->refs[t->ref0 + k];
            if (!is_state(s, t, k / each, r) || x->of[r->index].step) continue;
            x->of[r->index] = (Spread){i + 1, k / each, x->whole_bytes};
            x->whole_bytes += s->m->vars[r->index].bytes;
        }
    }
    x->whole_bytes++; /* never nothing */
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

/* A parameter that ref k of step t is the first of its tensor to name. */
static bool names_parameter(const ampc_session *s, const PlanStep *t,
                            uint32_t k) {
    const PlanRef *r = &s->plan->refs[t->ref0];
    uint32_t each = t->nref / tensors_of(t);
    for (uint32_t j = k - k % each; j < k; j++)
        if (r[j].space == PLAN_VAR && r[j].index == r[k].index) return false;
    return r[k].space == PLAN_VAR && s->m->vars[r[k].index].kind == PLAN_PARAM;
}

bool shard_next(const ampc_session *s, int rank, ShardPart *p) {
    const PlanRun *run = &s->plan->runs[s->program[PROG_UPDATE]];
    for (; p->step < run->nstep; p->step++, p->ref = 0) {
        const PlanStep *t = &s->plan->steps[run->step0 + p->step];
        uint32_t each = t->split ? t->nref / tensors_of(t) : 0;
        while (p->ref < t->nref && t->split) {
            uint32_t k = p->ref++;
            int64_t lo, hi;
            if (!names_parameter(s, t, k)) continue;
            shard_elements(s, t, k / each, rank, &lo, &hi);
            p->at = s->plan->refs[t->ref0 + k];
            p->at.offset = (uint64_t)lo * sizeof(float);
            p->bytes = (uint64_t)(hi - lo) * sizeof(float);
            return true;
        }
    }
    return false;
}

typedef enum Move { MOVE_NOTHING, MOVE_OUT, MOVE_IN } Move;

/* The part of rank `rank` of all parameters, to a block or from it; *bytes:
   what it takes there.                                                      */
static ampc_status move_part(ampc_session *s, int rank, Move move, char *block,
                             size_t *bytes) {
    ampc_status status = AMPC_OK;
    *bytes = 0;
    for (ShardPart p = {0}; shard_next(s, rank, &p); *bytes += p.bytes) {
        if (status == AMPC_OK && move == MOVE_OUT)
            status = s->backend->get(s, p.at, block + *bytes, p.bytes);
        if (status == AMPC_OK && move == MOVE_IN)
            status = s->backend->put(s, p.at, block + *bytes, p.bytes);
    }
    return status;
}

/* On devices it is done with program update (gpu_hand_out). */
ampc_status shards_hand_out(ampc_session *s) {
    ampc_status status = AMPC_OK;
    size_t room, bytes;
    if (!s->shards) return AMPC_OK;
    s->stale = true; /* 16-bit copies of what others updated */
    if (s->on_device) return AMPC_OK;
    char *block = (char *)sums_scratch(s, &room); /* as large as gradients */
    for (int r = 0; r < s->opt.comm->world && status == AMPC_OK; r++) {
        bool mine = r == s->opt.comm->rank;
        status = move_part(s, r, mine ? MOVE_OUT : MOVE_NOTHING, block, &bytes);
        if (status == AMPC_OK)
            status = comm_hand_out(s, block, bytes, r, "parameters");
        if (status == AMPC_OK && !mine)
            status = move_part(s, r, MOVE_IN, block, &bytes);
    }
    return status;
}

/* ---- checkpoints --------------------------------------------------------- */

/* Rank 0's own part, to the whole or from it. */
static ampc_status move_own(ampc_session *s, Move move) {
    struct Shards *x = s->shards;
    ampc_status status = AMPC_OK;
    for (uint32_t i = 0; i < s->m->nvar && status == AMPC_OK; i++) {
        uint64_t lo, hi;
        if (!x->of[i].step) continue;
        part_of(s, i, 0, &lo, &hi);
        char *at = x->whole + x->of[i].at + lo;
        status = move == MOVE_OUT
                     ? s->backend->get(s, var_ref(i, lo), at, hi - lo)
                     : s->backend->put(s, var_ref(i, lo), at, hi - lo);
    }
    return status;
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

ampc_status shards_gather(ampc_session *s, ampc_status status, bool fill) {
    struct Shards *x = s->shards;
    if (!x) return status;
    if (status == AMPC_OK && s->opt.comm->rank == 0) {
        x->whole = mem_alloc(s, x->whole_bytes);
        status = x->whole
                     ? move_own(s, MOVE_OUT)
                     : session_fail(s, AMPC_ERR_MEMORY,
                                    "out of memory for the state of all ranks");
    }
    status = comm_agree(s, status, "cannot save or load");
    if (status != AMPC_OK) return status;
    x->gathered = true;
    x->filled = !fill;
    for (uint32_t i = 0; i < s->m->nvar && fill; i++)
        for (int r = 1; r < s->opt.comm->world && status == AMPC_OK; r++)
            if (x->of[i].step) status = collect(s, i, r);
    return status;
}

ampc_status shards_part(ampc_session *s, ampc_status status) {
    struct Shards *x = s->shards;
    if (!x) return status;
    bool back = x->gathered && x->whole && x->filled;
    x->gathered = false;
    ampc_status put = back ? move_own(s, MOVE_IN) : AMPC_OK;
    mem_free(s, x->whole, x->whole_bytes);
    x->whole = NULL;
    return status == AMPC_OK ? put : status;
}
