/* SPDX-License-Identifier: Apache-2.0 */
/* bind.c: turns plan steps into launches. All addresses are known once memory
   is allocated (inputs have fixed addresses), so all programs are bound at
   open, those of micro-steps when gradients get memory, and a run only executes
   the list.

   Host tables share one block; a first pass counts the pointers to parameters
   and their values. */
#include <string.h>

#include "runtime/base/try.h"
#include "runtime/cuda/gpu.h"

/* ---- is it sound? -------------------------------------------------------- */

/* True if a kernel gets its number of elements from the step. */
static bool takes_count(const PlanCuda *c, uint32_t kernel) {
    return c->kernels[kernel].blocks == 0;
}

/* Kernel and parameters of a launch. */
static bool kernel_ok(const PlanCuda *c, uint32_t kernel, const PlanStep *t) {
    if (kernel >= c->nkernel) return false;
    const PlanCudaKernel *k = &c->kernels[kernel];
    return k->name && k->unit < c->nunit && k->threads >= 1 &&
           k->threads <= 1024 && k->blocks >= 0 && k->blocks <= INT32_MAX &&
           (k->blocks > 0 || (k->per_block > 0 && t->npar > 0));
}

/* A kernel that is launched without a condition. */
static bool always_ok(const PlanCuda *c, uint32_t kernel, const PlanStep *t) {
    return kernel_ok(c, kernel, t) && !c->kernels[kernel].guarded;
}

/* A step is left out by its kernels. */
static bool asks_ok(const PlanCuda *c, const PlanStep *t) {
    return !t->when || c->kernels[t->fn].guarded;
}

static const LibCopy *copy_of(const PlanTarget *p, const PlanStep *t) {
    return (const void *)(p->pars + t->par0);
}

/* Checks that plan_defect leaves out. */
static bool step_ok(const PlanCuda *c, const PlanStep *t) {
    switch (t->kind) {
    case PLAN_LAUNCH:
        return kernel_ok(c, t->fn, t) && asks_ok(c, t) &&
               (!t->second || (kernel_ok(c, t->second - 1, t) &&
                               !c->kernels[t->second - 1].guarded ==
                                   !c->kernels[t->fn].guarded));
    case PLAN_MANY:
        return kernel_ok(c, t->fn, t) && t->npar > 0 && t->nref % t->npar == 0;
    case PLAN_ROWS:
        return kernel_ok(c, t->fn, t) && takes_count(c, t->fn) &&
               asks_ok(c, t) && t->second <= 1;
    case PLAN_TILE:
        return t->fn < c->ntile && c->tiles[t->fn].name &&
               c->tiles[t->fn].blocks > 0 &&
               c->tiles[t->fn].blocks <= INT32_MAX;
    case PLAN_COPY: return copy_of(c->plan, t)->bytes >= 0;
    case PLAN_SUM:
        return c->plan->pars[t->par0] == AMPC_F32 ||
               (always_ok(c, t->fn, t) && takes_count(c, t->fn) && t->second &&
                always_ok(c, t->second - 1, t) &&
                takes_count(c, t->second - 1));
    case PLAN_PRODUCT:
        return (!t->second || always_ok(c, t->second - 1, t)) &&
               (!t->epilogue || always_ok(c, t->epilogue - 1, t));
    default: return true;
    }
}

const char *gpu_plan_defect(const AmpcModule *m) {
    const PlanTarget *p = m->cuda->plan;
    for (uint32_t i = 0; i < p->nstep; i++)
        if (!step_ok(m->cuda, &p->steps[i]))
            return p->steps[i].name ? p->steps[i].name : "a step";
    return NULL;
}

bool gpu_has_products(const AmpcModule *m) {
    for (uint32_t i = 0; i < m->cuda->plan->nstep; i++)
        if (m->cuda->plan->steps[i].kind == PLAN_PRODUCT) return true;
    return false;
}

/* ---- tables -------------------------------------------------------------- */

typedef struct Counts {
    size_t params, products;
    uint64_t rows; /* words */
    uint64_t counters;
    uint64_t scratch;
} Counts;

enum { PRODUCT_NUMBERS = 11, PRODUCT_REFS = 7 };

static uint64_t inputs_bytes(const AmpcModule *m, const PlanProgram *p) {
    uint64_t total = 0, bytes = 0;
    for (uint32_t i = 0; i < p->nin; i++) {
        const PlanTensor *t = &m->tensors[p->in0 + i];
        dense_bytes(t->dtype, t->rank, t->dim, &bytes);
        bytes = gpu_round(bytes);
        total = bytes > INT64_MAX - total ? INT64_MAX : total + bytes;
    }
    return total;
}

/* Takes the next piece from the block. */
static void *cut(char **p, size_t n, size_t size) {
    void *piece = *p;
    *p += n * size;
    return piece;
}

/* True if the program reads or writes gradients that are kept between
   programs. */
static bool is_late(const ampc_session *s, const PlanRun *r) {
    for (uint32_t i = 0; i < r->nstep; i++) {
        const PlanStep *t = &s->plan->steps[r->step0 + i];
        for (uint32_t k = 0; k < t->nref; k++) {
            const PlanRef *x = &s->plan->refs[t->ref0 + k];
            if (x->space == PLAN_VAR && s->m->vars[x->index].kind == PLAN_GRAD)
                return true;
        }
    }
    return false;
}

/* Counts the blocks of the launch's tensors. */
static bool counts_blocks(const PlanStep *t) {
    return t->kind == PLAN_ROWS && t->second;
}

/* The number of words in a step's table. */
static uint64_t table_words(const PlanStep *t) {
    uint64_t n = plan_tensors(t);
    return n ? t->nref + (counts_blocks(t) ? 4 : 2) * n : 0;
}

/* Pieces are ordered by alignment, largest first; params come last. */
ampc_status bind_tables(ampc_session *s) {
    const AmpcModule *m = s->m;
    GpuDevice *d = gpu_of(s);
    Counts n = {0};
    for (uint32_t i = 0; i < s->plan->nstep; i++) {
        const PlanStep *t = &s->plan->steps[i];
        n.params += (size_t)t->nref + 4; /* count, scratch, condition */
        if (t->kind == PLAN_PRODUCT) n.params += PRODUCT_REFS + PRODUCT_NUMBERS;
        n.products += t->kind == PLAN_PRODUCT || t->kind == PLAN_GELU;
        n.rows += table_words(t);
        if (counts_blocks(t) && n.counters < plan_tensors(t))
            n.counters = plan_tensors(t);
        if (t->scratch > n.scratch) n.scratch = t->scratch;
    }
    for (uint32_t i = 0; i < m->nprogram; i++)
        if (d->nmark <= s->plan->runs[i].nstep)
            d->nmark = s->plan->runs[i].nstep + 1;
    d->tables_bytes =
        m->nprogram * sizeof(GpuProgram) + s->plan->nstep * sizeof(GpuStep) +
        n.products * sizeof(GpuProduct) + m->nvar * sizeof(CUdeviceptr) +
        m->cuda->nunit * sizeof(CUmodule) +
        (m->cuda->nkernel + m->cuda->ntile) * sizeof(CUfunction) +
        d->nmark * sizeof(CUevent) +
        n.params * (sizeof(void *) + sizeof(uint64_t));
    d->tables = mem_alloc(s, d->tables_bytes);
    if (!d->tables) return session_fail(s, AMPC_ERR_MEMORY, "out of memory");
    memset(d->tables, 0, d->tables_bytes);
    char *p = d->tables;
    d->programs = cut(&p, m->nprogram, sizeof(GpuProgram));
    GpuStep *steps = cut(&p, s->plan->nstep, sizeof(GpuStep));
    d->products = cut(&p, n.products, sizeof(GpuProduct));
    d->var = cut(&p, m->nvar, sizeof(CUdeviceptr));
    d->units = cut(&p, m->cuda->nunit, sizeof(CUmodule));
    d->kernels = cut(&p, m->cuda->nkernel, sizeof(CUfunction));
    d->tiles = cut(&p, m->cuda->ntile, sizeof(CUfunction));
    d->marks = cut(&p, d->nmark, sizeof(CUevent));
    d->params = cut(&p, n.params, sizeof(void *));
    d->values = cut(&p, n.params, sizeof(uint64_t));
    for (uint32_t i = 0; i < m->nprogram; i++) {
        d->programs[i].steps = steps;
        d->programs[i].late = is_late(s, &s->plan->runs[i]);
        d->programs[i].input_bytes = inputs_bytes(m, &m->programs[i]);
        steps += s->plan->runs[i].nstep;
    }
    d->nproduct = (uint32_t)n.products;
    d->row_bytes = n.rows * sizeof(uint64_t);
    d->scratch_bytes = n.scratch;
    d->counter_bytes = n.counters * sizeof(uint32_t);
    return AMPC_OK;
}

/* ---- one launch ---------------------------------------------------------- */

typedef struct Binder {
    ampc_session *s;
    GpuDevice *d;
    int program;
    const PlanStep *t;
    uint64_t *row; /* the next row of a table in host memory */
    CUdeviceptr row_at;
} Binder;

static void push(GpuDevice *d, uint64_t value) {
    *d->values = value;
    *d->params++ = d->values++;
}

static CUdeviceptr plan_ref_at(const Binder *b, uint32_t i) {
    return gpu_address(b->s, b->program, b->s->plan->refs[i]);
}

static CUdeviceptr ref_at(const Binder *b, uint32_t i) {
    return plan_ref_at(b, b->t->ref0 + i);
}

/* The last two parameters of a guarded kernel (PlanCudaKernel.guarded). */
static void push_condition(Binder *b) {
    const PlanStep *t = b->t;
    if (!b->s->m->cuda->kernels[t->fn].guarded) return;
    push(b->d, t->when ? plan_ref_at(b, plan_condition(t)) : 0);
    push(b->d, t->when < 0);
}

/* This rank's share of tensor i of the step: returns the number of elements
   and sets *from to the first (0 unless ranks share the tensor). */
static int64_t own_count(const Binder *b, uint32_t i, int64_t *from) {
    const PlanStep *t = b->t;
    int64_t lo = 0, hi = t->npar ? b->s->plan->pars[t->par0 + i] : 0;
    if (t->split) shard_elements(b->s, t, i, session_rank(b->s), &lo, &hi);
    *from = lo;
    return hi - lo;
}

/* Address of the share in operand i; a single number is not divided. */
static CUdeviceptr own_at(const Binder *b, uint32_t i, int64_t from) {
    const PlanRef *r = &b->s->plan->refs[b->t->ref0 + i];
    CUdeviceptr at = ref_at(b, i);
    if (!from || r->space != PLAN_VAR) return at;
    const PlanVar *v = &b->s->m->vars[r->index];
    uint64_t each = dtype_bytes(v->dtype);
    return v->bytes > each ? at + (uint64_t)from * each : at;
}

static ampc_status launch_shape(Binder *b, uint32_t kernel, int64_t blocks,
                                GpuLaunch *l) {
    const PlanCudaKernel *k = &b->s->m->cuda->kernels[kernel];
    if (blocks < 0 || blocks > INT32_MAX)
        return session_fail(b->s, AMPC_ERR_UNSUPPORTED,
                            "step '%.200s': %lld blocks are too many for a GPU",
                            b->t->name, (long long)blocks);
    *l = (GpuLaunch){.fn = blocks ? b->d->kernels[kernel] : NULL,
                     .blocks = (unsigned)blocks,
                     .threads = k->threads,
                     .shared = k->shared,
                     .params = l->params};
    return AMPC_OK;
}

static ampc_status bind_launch(Binder *b, GpuStep *out) {
    const PlanCuda *c = b->s->m->cuda;
    const PlanStep *t = b->t;
    int64_t from, n = own_count(b, 0, &from);
    out->first.params = out->second.params = b->d->params;
    for (uint32_t i = 0; i < t->nref; i++) push(b->d, own_at(b, i, from));
    if (takes_count(c, t->fn) || (t->second && takes_count(c, t->second - 1)))
        push(b->d, (uint64_t)n);
    if (t->scratch) push(b->d, b->d->scratch);
    push_condition(b);
    ampc_status status =
        launch_shape(b, t->fn, gpu_blocks(&c->kernels[t->fn], n), &out->first);
    if (status != AMPC_OK || !t->second) return status;
    return launch_shape(b, t->second - 1,
                        gpu_blocks(&c->kernels[t->second - 1], n),
                        &out->second);
}

/* The rows are copied to the device later, all at once. */
static ampc_status bind_table(Binder *b, GpuStep *out) {
    const PlanStep *t = b->t;
    const PlanCudaKernel *k = &b->s->m->cuda->kernels[t->fn];
    const int64_t *par = b->s->plan->pars + t->par0;
    uint32_t tensors = plan_tensors(t), each = t->nref / tensors;
    int64_t blocks = 0;
    out->first.params = b->d->params;
    push(b->d, b->row_at);
    push(b->d, tensors);
    push_condition(b);
    for (uint32_t i = 0; i < tensors; i++) {
        int64_t from = 0, n, own;
        if (t->kind == PLAN_ROWS)
            own = par[2 * i], n = par[2 * i + 1];
        else
            own = n = own_count(b, i, &from);
        *b->row++ = (uint64_t)blocks;
        *b->row++ = (uint64_t)n;
        for (uint32_t j = 0; j < each; j++)
            *b->row++ = own_at(b, i * each + j, from);
        if (counts_blocks(t)) {
            *b->row++ = (uint64_t)own;
            *b->row++ = b->d->counters + i * sizeof(uint32_t);
        }
        blocks += gpu_blocks(k, own);
        if (n < 0 || own < 0 || blocks > INT32_MAX)
            blocks = (int64_t)INT32_MAX + 1;
    }
    b->row_at += table_words(t) * sizeof(uint64_t);
    return launch_shape(b, t->fn, blocks, &out->first);
}

/* Used if cuBLASLt refuses the product: see PLAN_PRODUCT. */
static ampc_status bind_own(Binder *b, GpuStep *out) {
    const PlanStep *t = b->t;
    const LibGemm *g = (const void *)(b->s->plan->pars + t->par0);
    const int64_t numbers[PRODUCT_NUMBERS] = {
        g->m,       g->n,       g->k,    g->nbatch_dim ? g->batch_dim[0] : 1,
        g->a_bs[0], g->b_bs[0], g->a_rs, g->a_cs,
        g->b_rs,    g->b_cs,    t->fn};
    const PlanCudaKernel *k = b->s->m->cuda->kernels;
    ampc_status status = AMPC_OK;
    out->first.params = out->second.params = b->d->params;
    int add = product_adds(t->fn);
    for (uint32_t i = 0; i < 3; i++) push(b->d, ref_at(b, i));
    push(b->d, product_scales(t->fn) ? ref_at(b, 3) : 0);
    push(b->d, add >= 0 ? ref_at(b, 3 + (uint32_t)add) : 0);
    for (uint32_t i = 0; i < 2; i++)
        push(b->d, product_blocks(t->fn) ? ref_at(b, 3 + i) : 0);
    for (int i = 0; i < PRODUCT_NUMBERS; i++) push(b->d, (uint64_t)numbers[i]);
    if (t->second)
        status = launch_shape(b, t->second - 1, k[t->second - 1].blocks,
                              &out->first);
    if (t->epilogue && status == AMPC_OK)
        status = launch_shape(b, t->epilogue - 1, k[t->epilogue - 1].blocks,
                              &out->second);
    return status;
}

static void bind_tile(Binder *b, GpuStep *out) {
    const PlanStep *t = b->t;
    if (!b->d->tile_arch) return;
    out->first =
        (GpuLaunch){.fn = b->d->tiles[t->fn],
                    .blocks = (unsigned)b->s->m->cuda->tiles[t->fn].blocks,
                    .threads = 1,
                    .params = b->d->params};
    for (uint32_t i = 0; i < t->nref; i++) push(b->d, ref_at(b, i));
}

typedef struct Scratchpad { /* host memory that open frees */
    ProductKey *keys;
    const char **names;
    uint64_t *rows;
    size_t nproduct;
} Scratchpad;

/* ---- all programs -------------------------------------------------------- */

static ampc_status bind_step(Binder *b, GpuStep *out, Scratchpad *p) {
    const PlanStep *t = b->t;
    *out = (GpuStep){.kind = t->kind, .name = t->name ? t->name : ""};
    switch (t->kind) {
    case PLAN_LAUNCH: return bind_launch(b, out);
    case PLAN_MANY:
    case PLAN_ROWS: return bind_table(b, out);
    case PLAN_TILE: bind_tile(b, out); return AMPC_OK;
    case PLAN_PRODUCT:
        out->product = &b->d->products[b->d->nbound + p->nproduct];
        p->names[p->nproduct] = out->name;
        TRY(bind_own(b, out));
        return product_bind(b->s, b->program, t, out->product,
                            &p->keys[p->nproduct++]);
    case PLAN_GELU:
        out->product = &b->d->products[b->d->nbound + p->nproduct];
        p->names[p->nproduct] = out->name;
        return product_bind_gelu(b->s, b->program, t, out->product,
                                 &p->keys[p->nproduct++]);
    case PLAN_SUM: out->bucket = t; return AMPC_OK;
    case PLAN_SUM_NOW:
        out->from = ref_at(b, 0);
        out->sum = copy_of(b->s->plan, t);
        out->largest = t->second != 0;
        b->d->programs[b->program].sums |=
            b->s->opt.comm && (!b->s->ranks.on_device || out->largest);
        return AMPC_OK;
    default: /* PLAN_COPY */
        out->from = ref_at(b, 0);
        out->to = ref_at(b, 1);
        out->bytes = (uint64_t)copy_of(b->s->plan, t)->bytes;
        return AMPC_OK;
    }
}

static ampc_status bind_program(Binder *b, Scratchpad *pad) {
    const PlanRun *r = &b->s->plan->runs[b->program];
    for (uint32_t j = 0; j < r->nstep; j++) {
        GpuStep *out = &b->d->programs[b->program].steps[j];
        b->t = &b->s->plan->steps[r->step0 + j];
        TRY(bind_step(b, out, pad));
    }
    return AMPC_OK;
}

/* Leaves out steps that others replace, once algorithms are chosen. */
static void leave_out(const ampc_session *s, int program) {
    const PlanRun *r = &s->plan->runs[program];
    uint32_t from = 0, to = 0; /* steps that are left out */
    for (uint32_t j = 0; j < r->nstep; j++) {
        const PlanStep *t = &s->plan->steps[r->step0 + j];
        GpuStep *out = &gpu_of(s)->programs[program].steps[j];
        const int64_t *end = s->plan->pars + t->par0 + t->npar;
        out->replaced = j >= from && j < to;
        if (t->kind == PLAN_TILE && out->first.fn) {
            from = j + 1;
            to = from + (uint32_t)end[-1];
        } else if (t->kind == PLAN_GELU) {
            out->replaced = out->product->by == BY_NOTHING;
            from = j + 1 + (out->replaced ? 0 : (uint32_t)end[-2]);
            to = from + (uint32_t)end[out->replaced ? -2 : -1];
        }
    }
}

/* * rows: bytes of the tables made so far. */
static ampc_status bind_programs(ampc_session *s, Scratchpad *pad,
                                 uint64_t *rows) {
    GpuDevice *d = gpu_of(s);
    Binder b = {
        .s = s, .d = d, .row = pad->rows, .row_at = d->rows + d->rows_bound};
    for (uint32_t i = 0; i < s->m->nprogram; i++) {
        b.program = (int)i;
        if (d->programs[i].bound || (d->programs[i].late && !d->late)) continue;
        d->programs[i].bound = true;
        TRY(bind_program(&b, pad));
        watch_bind(s, (int)i);
    }
    *rows = (uint64_t)(b.row - pad->rows) * sizeof *b.row;
    return AMPC_OK;
}

ampc_status bind_all(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    size_t bytes =
        d->nproduct * (sizeof(ProductKey) + sizeof(char *)) + d->row_bytes;
    char *block = mem_alloc(s, bytes), *p = block;
    if (!block) return session_fail(s, AMPC_ERR_MEMORY, "out of memory");
    memset(block, 0, bytes);
    Scratchpad pad = {.nproduct = 0};
    pad.keys = cut(&p, d->nproduct, sizeof(ProductKey));
    pad.names = cut(&p, d->nproduct, sizeof(char *));
    pad.rows = cut(&p, d->row_bytes, 1);
    uint64_t rows = 0;
    gpu_hold_captures();
    ampc_status status = bind_programs(s, &pad, &rows);
    if (status == AMPC_OK && pad.nproduct)
        status = tune_all(s, d->products + d->nbound, pad.nproduct, pad.keys,
                          pad.names);
    gpu_release_captures();
    for (uint32_t i = 0; i < s->m->nprogram && status == AMPC_OK; i++)
        if (d->programs[i].bound) leave_out(s, (int)i);
    if (status == AMPC_OK)
        status = gpu_write(s, d->rows + d->rows_bound, pad.rows, rows);
    d->nbound += pad.nproduct;
    d->rows_bound += rows;
    mem_free(s, block, bytes);
    return status;
}
