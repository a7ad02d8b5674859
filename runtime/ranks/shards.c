/* SPDX-License-Identifier: Apache-2.0 */
/* shards.c: optimizer state divided among ranks (--shard-optimizer).

   The kernels that update parameters and their state work on independent units
   of elements (PlanStep.split). Rank r of N updates the r-th of N parts of
   every such tensor and stores only that part of the state. The same holds for
   parameters that programs only read in 16 bits: after an update the ranks
   exchange the 16-bit copies, half of the bytes. All other parameters are
   complete on all ranks, which exchange the updated parts. For a large
   gradient a rank has the sum of its part (whole rows) and zeros elsewhere;
   squares are added along rows and then over ranks, so norm, skipping and
   scale are the same as without shards. A checkpoint is complete: while one
   is written or read, rank 0 has all data in host memory. */
#include <string.h>

#include "runtime/api/session.h"
#include "runtime/base/contract.h"

/* How a variable is divided: the step and tensor that update it. */
typedef struct Spread {
    uint32_t step;   /* step of the plan + 1; 0: every rank has all of it */
    uint32_t tensor; /* number of the tensor in PLAN_MANY, else 0 */
    int64_t unit;    /* of elements */
    uint64_t at;     /* in the whole, bytes */
} Spread;

struct Shards {
    Spread *of;   /* per variable */
    Spread *sum;  /* per variable: gradients whose sums are split among ranks */
    uint64_t *at; /* per rank: start of the part that it sends, in a block
                     with all parts; then the end */
    char *whole;  /* rank 0's complete data, during a save or a load */
    size_t bytes, whole_bytes;
    bool gathered; /* rank 0 has all */
    bool saving;   /* .. to write it; else its own part is copied back */
    bool refresh;  /* true: programs also read copies of the exchanged
                      parameters */
};

/* ---- who has what -------------------------------------------------------- */

static uint32_t tensors_of(const PlanStep *t) {
    uint32_t n = plan_tensors(t);
    return n ? n : 1;
}

static uint32_t tensor_of(const PlanStep *t, uint32_t ref) {
    CONTRACT(ref < t->nref);
    return ref / (t->nref / tensors_of(t));
}

static const PlanRef *tensor_refs(const ampc_session *s, const PlanStep *t,
                                  uint32_t tensor, uint32_t *n) {
    *n = t->nref / tensors_of(t);
    return &s->plan->refs[t->ref0 + tensor * *n];
}

/* The tensor's first divided variable of that kind, or NULL. */
static const Spread *spread_of(const ampc_session *s, const PlanStep *t,
                               uint32_t tensor, PlanVarKind kind) {
    uint32_t n;
    const PlanRef *r = tensor_refs(s, t, tensor, &n);
    for (uint32_t k = 0; k < n; k++)
        if (r[k].space == PLAN_VAR && shard_is(s, r[k].index) &&
            s->m->vars[r[k].index].kind == kind)
            return &s->ranks.shards->of[r[k].index];
    return NULL;
}

void shard_elements(const ampc_session *s, const PlanStep *t, uint32_t tensor,
                    int rank, int64_t *lo, int64_t *hi) {
    const Spread *x = spread_of(s, t, tensor, PLAN_PARAM);
    if (!x) x = spread_of(s, t, tensor, PLAN_STATE);
    int64_t n = s->plan->pars[t->par0 + tensor];
    int64_t unit = x ? x->unit : t->split;
    CONTRACT(n >= 0 && unit > 0);
    int64_t units = n / unit + (n % unit > 0);
    int world = x ? s->opt.comm->world : 1;
    int64_t from = units * (x ? rank : 0) / world;
    int64_t to = units * (x ? rank + 1 : 1) / world;
    *lo = from < units ? from * unit : n;
    *hi = to < units ? to * unit : n;
    CONTRACT(0 <= *lo && *lo <= *hi && *hi <= n);
}

/* Byte range of variable `var` on a rank; x: how it is divided. */
static void shards_bytes_of(const ampc_session *s, const Spread *x,
                            uint32_t var, int rank, uint64_t *lo,
                            uint64_t *hi) {
    uint64_t each = dtype_bytes(s->m->vars[var].dtype);
    int64_t from, to;
    shard_elements(s, &s->plan->steps[x->step - 1], x->tensor, rank, &from,
                   &to);
    *lo = (uint64_t)from * each;
    *hi = (uint64_t)to * each;
}

static void shards_part_of(const ampc_session *s, uint32_t var, int rank,
                           uint64_t *lo, uint64_t *hi) {
    shards_bytes_of(s, &s->ranks.shards->of[var], var, rank, lo, hi);
}

bool shard_sum(const ampc_session *s, uint32_t var, int rank, uint64_t *lo,
               uint64_t *hi) {
    if (!s->ranks.shards || !s->ranks.shards->sum[var].step) return false;
    shards_bytes_of(s, &s->ranks.shards->sum[var], var, rank, lo, hi);
    return true;
}

ampc_status shard_put(ampc_session *s, PlanRef to, const void *from,
                      uint64_t n) {
    uint64_t lo, hi, at = to.offset;
    shard_range(s, to.index, &lo, &hi);
    if (lo < at) lo = at;
    if (hi > at + n) hi = at + n;
    to.offset = lo;
    return lo < hi
               ? s->backend->put(s, to, (const char *)from + (lo - at), hi - lo)
               : AMPC_OK;
}

bool shards_gathered(const ampc_session *s) {
    return s->ranks.shards && s->ranks.shards->gathered;
}

bool shard_is(const ampc_session *s, uint32_t var) {
    return s->ranks.shards && s->ranks.shards->of[var].step;
}

void shard_range(const ampc_session *s, uint32_t var, uint64_t *lo,
                 uint64_t *hi) {
    *lo = 0;
    *hi = s->m->vars[var].bytes;
    if (shard_is(s, var) &&
        !(s->ranks.shards->gathered && s->ranks.shards->whole))
        shards_part_of(s, var, s->opt.comm->rank, lo, hi);
}

char *shard_whole(const ampc_session *s, PlanRef r) {
    return shards_gathered(s) && s->ranks.shards->whole &&
                   r.space == PLAN_VAR && shard_is(s, r.index)
               ? s->ranks.shards->whole + s->ranks.shards->of[r.index].at +
                     r.offset
               : NULL;
}

/* ---- open and close ------------------------------------------------------ */

/* True if ref k of step t is a variable that the step has in parts. */
static bool in_parts(const ampc_session *s, const PlanStep *t, uint32_t k) {
    const PlanRef *r = &s->plan->refs[t->ref0 + k];
    if (!t->split || k >= t->nref || r->space != PLAN_VAR || r->offset)
        return false;
    const PlanVar *v = &s->m->vars[r->index];
    return v->rank && v->bytes / dtype_bytes(v->dtype) ==
                          (uint64_t)s->plan->pars[t->par0 + tensor_of(t, k)];
}

/* State and parameters that steps have in parts. */
static void find_spread(ampc_session *s) {
    for (uint32_t i = 0; i < s->plan->nstep; i++) {
        const PlanStep *t = &s->plan->steps[i];
        for (uint32_t k = 0; k < t->nref; k++) {
            if (!in_parts(s, t, k)) continue;
            uint32_t var = s->plan->refs[t->ref0 + k].index;
            uint32_t kind = s->m->vars[var].kind;
            Spread *x = &s->ranks.shards->of[var];
            if (!x->step && (kind == PLAN_STATE || kind == PLAN_PARAM))
                *x = (Spread){i + 1, tensor_of(t, k), t->split, 0};
        }
    }
}

static bool may_be_handed(const PlanVar *v) {
    return v->kind == PLAN_PARAM || v->kind == PLAN_STATE;
}

static void keep_whole(ampc_session *s, const PlanRef *r) {
    if (r->space == PLAN_VAR && may_be_handed(&s->m->vars[r->index]))
        s->ranks.shards->of[r->index].step = 0;
}

/* Parameters that a program reads in full precision, averages that
   evaluation reads, and results must be complete on all ranks: they are not
   divided. With several ranks, program train (a whole step) never runs. */
static void drop_read(ampc_session *s, uint32_t program) {
    const PlanTarget *p = s->plan;
    const PlanRun *run = &p->runs[program];
    if (program_is(&s->m->programs[program], PROG_TRAIN)) return;
    for (uint32_t i = 0; i < run->nstep; i++) {
        const PlanStep *t = &p->steps[run->step0 + i];
        for (uint32_t k = 0; k < t->nref + t->ep_nref; k++) {
            const PlanRef *r = &p->refs[t->ref0 + k];
            if (r->space != PLAN_VAR || !shard_is(s, r->index)) continue;
            if (!in_parts(s, t, k)) keep_whole(s, r);
        }
    }
    for (uint32_t k = 0; k < s->m->programs[program].nout; k++)
        keep_whole(s, &p->refs[run->out0 + k]);
}

/* True if program refresh copies parameters that are exchanged. */
static bool copies_whole(const ampc_session *s) {
    int refresh = s->program[PROG_REFRESH];
    const PlanRun *run = &s->plan->runs[refresh < 0 ? 0 : refresh];
    for (uint32_t i = 0; i < run->nstep && refresh >= 0; i++) {
        const PlanStep *t = &s->plan->steps[run->step0 + i];
        for (uint32_t k = 0; k < t->nref; k++) {
            const PlanRef *r = &s->plan->refs[t->ref0 + k];
            if (r->space == PLAN_VAR && !shard_is(s, r->index) &&
                s->m->vars[r->index].kind == PLAN_PARAM)
                return true;
        }
    }
    return false;
}

/* Reads the units of gradients that are summed in parts, and applies them to
   everything that their updates change. */
static ampc_status find_sums(ampc_session *s) {
    const PlanTarget *p = s->plan;
    Spread *sum = s->ranks.shards->sum;
    for (uint32_t i = 0; i < p->nstep; i++) {
        const PlanStep *t = &p->steps[i];
        for (uint32_t k = 0; k < t->nref && t->kind == PLAN_SUM; k++)
            sum[p->refs[t->ref0 + k].index].unit = p->pars[t->par0 + 1 + k];
    }
    for (uint32_t i = 0; i < p->nstep; i++) {
        const PlanStep *t = &p->steps[i];
        for (uint32_t k = 0; k < t->nref; k++) {
            uint32_t grad = p->refs[t->ref0 + k].index, n;
            if (!in_parts(s, t, k) || !sum[grad].unit) continue;
            const PlanRef *r = tensor_refs(s, t, tensor_of(t, k), &n);
            for (uint32_t j = 0; j < n; j++) {
                if (r[j].space != PLAN_VAR ||
                    !may_be_handed(&s->m->vars[r[j].index]))
                    continue;
                if (shard_is(s, r[j].index))
                    s->ranks.shards->of[r[j].index].unit = sum[grad].unit;
                sum[grad].step = i + 1;
                sum[grad].tensor = tensor_of(t, k);
            }
        }
    }
    for (uint32_t i = 0; i < s->m->nvar; i++)
        if (sum[i].unit && !sum[i].step)
            return session_fail(s, AMPC_ERR_INTERNAL,
                                "the module's plan is damaged at '%.200s'",
                                s->m->vars[i].name);
    return AMPC_OK;
}

ampc_status shards_open(ampc_session *s) {
    if (!s->opt.comm || s->opt.comm->world < 2 ||
        !info_int(s->m, "shard_optimizer", 0))
        return AMPC_OK;
    size_t bytes = sizeof(struct Shards) + 2 * s->m->nvar * sizeof(Spread) +
                   ((size_t)s->opt.comm->world + 1) * sizeof(uint64_t);
    struct Shards *x = mem_alloc(s, bytes);
    if (!x) return session_fail(s, AMPC_ERR_MEMORY, "out of memory");
    memset(x, 0, bytes);
    x->bytes = bytes;
    x->of = (Spread *)(x + 1);
    x->sum = x->of + s->m->nvar;
    x->at = (uint64_t *)(x->sum + s->m->nvar);
    s->ranks.shards = x;
    find_spread(s);
    for (uint32_t i = 0; i < s->m->nprogram; i++) drop_read(s, i);
    x->refresh = copies_whole(s);
    for (uint32_t i = 0; i < s->m->nvar; i++) {
        x->of[i].at = x->whole_bytes;
        if (x->of[i].step) x->whole_bytes += s->m->vars[i].bytes;
    }
    x->whole_bytes++; /* never nothing */
    return find_sums(s);
}

void shards_close(ampc_session *s) {
    struct Shards *x = s->ranks.shards;
    if (!x) return;
    mem_free(s, x->whole, x->whole_bytes);
    mem_free(s, x, x->bytes);
    s->ranks.shards = NULL;
}

/* ---- what others updated ------------------------------------------------- */

/* True if ref k of step t is exchanged, and is the first ref of its tensor
   to name that variable. */
static bool is_handed_out(const ampc_session *s, const PlanStep *t,
                          uint32_t k) {
    uint32_t tensor = tensor_of(t, k), n;
    const PlanRef *first = tensor_refs(s, t, tensor, &n);
    const PlanRef *r = &s->plan->refs[t->ref0 + k];
    if (r->space != PLAN_VAR) return false;
    PlanVarKind kind = s->m->vars[r->index].kind;
    bool param = spread_of(s, t, tensor, PLAN_PARAM) != NULL;
    bool shared = param || spread_of(s, t, tensor, PLAN_STATE);
    bool average =
        kind == PLAN_STATE && in_parts(s, t, k) && !shard_is(s, r->index);
    if (!average && kind != (param ? PLAN_SHADOW : PLAN_PARAM)) return false;
    for (; first < r; first++)
        if (first->space == PLAN_VAR && first->index == r->index) return false;
    return shared;
}

bool shard_next(const ampc_session *s, ProgramId id, int rank, ShardPart *p) {
    const PlanRun *run = &s->plan->runs[s->program[id]];
    for (; p->step < run->nstep; p->step++, p->ref = 0) {
        const PlanStep *t = &s->plan->steps[run->step0 + p->step];
        while (p->ref < t->nref && t->split) {
            uint32_t k = p->ref++;
            int64_t lo, hi;
            if (!is_handed_out(s, t, k)) continue;
            shard_elements(s, t, tensor_of(t, k), rank, &lo, &hi);
            p->at = s->plan->refs[t->ref0 + k];
            uint64_t each = dtype_bytes(s->m->vars[p->at.index].dtype);
            p->at.offset = (uint64_t)lo * each;
            p->bytes = (uint64_t)(hi - lo) * each;
            return true;
        }
    }
    return false;
}

typedef enum Move { MOVE_NOTHING, MOVE_OUT, MOVE_IN } Move;

/* Copies the part that a rank sends to a block, or from it: of averages, or
   of all other variables. *bytes: its size there. */
static ampc_status move_part(ampc_session *s, ProgramId id, bool averages,
                             int rank, Move move, char *block, size_t *bytes) {
    ampc_status status = AMPC_OK;
    *bytes = 0;
    for (ShardPart p = {0}; shard_next(s, id, rank, &p);) {
        if ((s->m->vars[p.at.index].kind == PLAN_STATE) != averages) continue;
        if (status == AMPC_OK && move == MOVE_OUT)
            status = s->backend->get(s, p.at, block + *bytes, p.bytes);
        if (status == AMPC_OK && move == MOVE_IN)
            status = s->backend->put(s, p.at, block + *bytes, p.bytes);
        *bytes += p.bytes;
    }
    return status;
}

static ampc_status hand_out_some(ampc_session *s, ProgramId id, bool averages) {
    uint64_t *at = s->ranks.shards->at;
    int me = s->opt.comm->rank, world = s->opt.comm->world;
    size_t bytes, room;
    char *block = (char *)sums_scratch(s, &room); /* as large as the
                                                     gradients */
    for (int r = 0; r < world; r++) {
        move_part(s, id, averages, r, MOVE_NOTHING, block, &bytes);
        at[r + 1] = at[r] + bytes;
    }
    CONTRACT(at[world] <= room);
    if (averages && at[world] == 0) return AMPC_OK;
    ampc_status status =
        move_part(s, id, averages, me, MOVE_OUT, block + at[me], &bytes);
    if (status == AMPC_OK) status = comm_gather(s, block, at, "parameters");
    for (int r = 0; r < world && status == AMPC_OK; r++)
        if (r != me)
            status =
                move_part(s, id, averages, r, MOVE_IN, block + at[r], &bytes);
    return status;
}

static ampc_status hand_out(ampc_session *s, ProgramId id) {
    ampc_status status = hand_out_some(s, id, false);
    return status == AMPC_OK ? hand_out_some(s, id, true) : status;
}

/* On devices program update does it (gpu_hand_out). */
ampc_status shards_allgather(ampc_session *s) {
    if (!s->ranks.shards) return AMPC_OK;
    s->stale |= s->ranks.shards->refresh;
    return s->ranks.on_device ? AMPC_OK : hand_out(s, PROG_UPDATE);
}

ampc_status shards_refresh(ampc_session *s) {
    if (!s->ranks.shards || s->program[PROG_REFRESH] < 0) return AMPC_OK;
    ampc_status status = session_refresh(s);
    status = comm_agree(s, status, "cannot copy parameters");
    return status == AMPC_OK ? hand_out(s, PROG_REFRESH) : status;
}

/* ---- checkpoints --------------------------------------------------------- */

/* Copies rank 0's own part to the whole, or from it. */
static ampc_status move_own(ampc_session *s, Move move) {
    struct Shards *x = s->ranks.shards;
    ampc_status status = AMPC_OK;
    for (uint32_t i = 0; i < s->m->nvar && status == AMPC_OK; i++) {
        uint64_t lo, hi;
        if (!x->of[i].step) continue;
        shards_part_of(s, i, 0, &lo, &hi);
        char *at = x->whole + x->of[i].at + lo;
        status = move == MOVE_OUT
                     ? s->backend->get(s, var_ref(i, lo), at, hi - lo)
                     : s->backend->put(s, var_ref(i, lo), at, hi - lo);
    }
    return status;
}

/* Sends rank r's part of a variable to rank 0. */
static ampc_status collect(ampc_session *s, uint32_t var, int r) {
    ampc_status status = AMPC_OK;
    uint64_t lo, hi;
    size_t room;
    void *block = sums_scratch(s, &room);
    shards_part_of(s, var, r, &lo, &hi);
    for (uint64_t n; lo < hi && status == AMPC_OK; lo += n) {
        PlanRef ref = var_ref(var, lo);
        n = hi - lo < room ? hi - lo : room;
        if (r == s->opt.comm->rank) status = s->backend->get(s, ref, block, n);
        if (status == AMPC_OK)
            status = comm_broadcast(s, block, n, r, "checkpoint");
        if (status == AMPC_OK && s->ranks.shards->whole)
            status = s->backend->put(s, ref, block, n);
    }
    return status;
}

ampc_status shards_gather(ampc_session *s, ampc_status status, bool saving) {
    struct Shards *x = s->ranks.shards;
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
    x->saving = saving;
    for (uint32_t i = 0; i < s->m->nvar; i++)
        for (int r = 1; r < s->opt.comm->world && status == AMPC_OK; r++)
            if (x->of[i].step) status = collect(s, i, r);
    return status;
}

ampc_status shards_part(ampc_session *s, ampc_status status) {
    struct Shards *x = s->ranks.shards;
    if (!x) return status;
    bool back = x->gathered && x->whole && !x->saving;
    x->gathered = false;
    ampc_status put = back ? move_own(s, MOVE_IN) : AMPC_OK;
    mem_free(s, x->whole, x->whole_bytes);
    x->whole = NULL;
    return status == AMPC_OK ? put : status;
}
