/* bind.c: plan steps to launches.  Every address is known once memory is there
   (inputs have a place of their own), so all programs are bound at open and a
   run only walks.

   Host tables lie in one block: pointers to parameters and their values are
   counted first.                                                            */
#include <string.h>

#include "runtime/cuda/gpu.h"

static const PlanCudaStep *cuda_step(const AmpcModule *m, uint32_t step) {
    return &m->cuda->steps[step];
}

static const PlanStep *plan_step(const AmpcModule *m, uint32_t step) {
    return &m->cuda->plan->steps[step];
}

/* ---- is it sound? -------------------------------------------------------- */

static bool kernel_ok(const PlanCuda *c, uint32_t number) {
    if (number == 0) return true;
    if (number > c->nkernel) return false;
    const PlanCudaKernel *k = &c->kernels[number - 1];
    return k->name && k->unit < c->nunit && k->threads >= 1 &&
           k->threads <= 1024 && k->blocks >= 0 && k->blocks <= INT32_MAX &&
           (k->blocks > 0 || k->per_block > 0);
}

/* Whether a kernel takes its element count from the step. */
static bool takes_count(const PlanCuda *c, uint32_t number) {
    return number && c->kernels[number - 1].blocks == 0;
}

static bool many_ok(const AmpcModule *m, uint32_t step, uint32_t end) {
    const PlanCudaStep *c = cuda_step(m, step);
    const PlanStep *t = plan_step(m, step);
    if (c->count < 1 || c->count > end - step || c->kernel == 0) return false;
    for (uint32_t i = step; i < step + c->count; i++)
        if (plan_step(m, i)->npar < 1 || plan_step(m, i)->nref != t->nref ||
            (i > step && cuda_step(m, i)->op != PLAN_CUDA_NONE))
            return false;
    return takes_count(m->cuda, c->kernel);
}

static bool product_ok(const AmpcModule *m, uint32_t step) {
    const PlanCudaStep *c = cuda_step(m, step);
    const PlanStep *t = plan_step(m, step);
    if (t->kind != PLAN_LIB || t->fn != PLAN_LIB_GEMM) return false;
    if (c->fused > PLAN_FUSED_SCALE || c->kernel) return false;
    return !c->fused || (c->operand < t->ep_nref && c->out < t->ep_nref &&
                         dtype_bytes(c->out_dtype));
}

static const LibCopy *copy_of(const AmpcModule *m, const PlanStep *t) {
    return (const void *)(m->cuda->plan->pars + t->par0);
}

static bool step_ok(const AmpcModule *m, uint32_t step, uint32_t end) {
    const PlanCudaStep *c = cuda_step(m, step);
    const PlanStep *t = plan_step(m, step);
    if (!kernel_ok(m->cuda, c->kernel) || !kernel_ok(m->cuda, c->kernel2))
        return false;
    switch (c->op) {
    case PLAN_CUDA_NONE: return true;
    case PLAN_CUDA_LAUNCH:
        return c->kernel &&
               (t->npar >= 1 || !(takes_count(m->cuda, c->kernel) ||
                                  takes_count(m->cuda, c->kernel2)));
    case PLAN_CUDA_MANY: return many_ok(m, step, end);
    case PLAN_CUDA_GEMM: return product_ok(m, step);
    case PLAN_CUDA_COPY:
        return t->kind == PLAN_LIB && t->fn == PLAN_LIB_COPY &&
               copy_of(m, t)->bytes >= 0;
    default: return false;
    }
}

const char *gpu_plan_defect(const AmpcModule *m) {
    for (uint32_t i = 0; i < m->nprogram; i++) {
        const PlanRun *r = &m->cuda->plan->runs[i];
        for (uint32_t j = r->step0; j < r->step0 + r->nstep; j++)
            if (!step_ok(m, j, r->step0 + r->nstep))
                return plan_step(m, j)->name ? plan_step(m, j)->name : "a step";
    }
    return NULL;
}

bool gpu_has_products(const AmpcModule *m) {
    for (uint32_t i = 0; i < m->cuda->plan->nstep; i++)
        if (cuda_step(m, i)->op == PLAN_CUDA_GEMM) return true;
    return false;
}

/* ---- tables -------------------------------------------------------------- */

/* Parameters of a launch at most: refs, ep_refs, count, scratch. */
static size_t most_params(const PlanStep *t) {
    return (size_t)t->nref + t->ep_nref + 2;
}

static uint64_t row_words(const PlanStep *t) { return 2 + (uint64_t)t->nref; }

typedef struct Counts {
    size_t steps, params, products;
    uint64_t rows; /* words */
    uint64_t scratch;
} Counts;

static void count_step(const AmpcModule *m, uint32_t step, Counts *n) {
    const PlanCudaStep *c = cuda_step(m, step);
    const PlanStep *t = plan_step(m, step);
    n->steps++;
    n->params += most_params(t);
    n->products += c->op == PLAN_CUDA_GEMM;
    if (c->op == PLAN_CUDA_MANY) n->rows += c->count * row_words(t);
    if (c->scratch > n->scratch) n->scratch = c->scratch;
}

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

/* Cuts the next piece from the block. */
static void *cut(char **p, size_t n, size_t size) {
    void *piece = *p;
    *p += n * size;
    return piece;
}

/* Pieces are in order of alignment, largest first; params stay behind. */
ampc_status bind_tables(ampc_session *s) {
    const AmpcModule *m = s->m;
    GpuDevice *d = gpu_of(s);
    Counts n = {0};
    for (uint32_t i = 0; i < s->plan->nstep; i++) count_step(m, i, &n);
    d->tables_bytes =
        m->nprogram * sizeof(GpuProgram) + n.steps * sizeof(GpuStep) +
        n.products * sizeof(GpuProduct) + m->nvar * sizeof(CUdeviceptr) +
        m->cuda->nunit * sizeof(CUmodule) +
        m->cuda->nkernel * sizeof(CUfunction) +
        n.params * (sizeof(void *) + sizeof(uint64_t));
    d->tables = mem_alloc(s, d->tables_bytes);
    if (!d->tables) return session_fail(s, AMPC_ERR_MEMORY, "out of memory");
    memset(d->tables, 0, d->tables_bytes);
    char *p = d->tables;
    d->programs = cut(&p, m->nprogram, sizeof(GpuProgram));
    GpuStep *steps = cut(&p, n.steps, sizeof(GpuStep));
    d->products = cut(&p, n.products, sizeof(GpuProduct));
    d->var = cut(&p, m->nvar, sizeof(CUdeviceptr));
    d->units = cut(&p, m->cuda->nunit, sizeof(CUmodule));
    d->kernels = cut(&p, m->cuda->nkernel, sizeof(CUfunction));
    d->params = cut(&p, n.params, sizeof(void *));
    d->values = cut(&p, n.params, sizeof(uint64_t));
    for (uint32_t i = 0; i < m->nprogram; i++) {
        d->programs[i].steps = steps;
        d->programs[i].input_bytes = inputs_bytes(m, &m->programs[i]);
        steps += s->plan->runs[i].nstep;
    }
    d->nproduct = (uint32_t)n.products;
    d->row_bytes = n.rows * sizeof(uint64_t);
    d->scratch_bytes = n.scratch;
    return AMPC_OK;
}

/* ---- one launch ---------------------------------------------------------- */

typedef struct Binder {
    ampc_session *s;
    GpuDevice *d;
    int program;
    uint32_t step;
    const PlanStep *t;
    const PlanCudaStep *c;
    uint64_t *row; /* the next row of PLAN_CUDA_MANY, on the host */
    CUdeviceptr row_at;
} Binder;

static void push(GpuDevice *d, uint64_t value) {
    *d->values = value;
    *d->params++ = d->values++;
}

static void push_refs(Binder *b, uint32_t first, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        push(b->d, gpu_address(b->s, b->program, b->s->plan->refs[first + i]));
}

static ampc_status launch_shape(Binder *b, uint32_t number, int64_t count,
                                GpuLaunch *l) {
    const PlanCudaKernel *k = &b->s->m->cuda->kernels[number - 1];
    int64_t blocks = k->blocks;
    if (blocks == 0) blocks = count / k->per_block + (count % k->per_block > 0);
    if (blocks < 0 || blocks > INT32_MAX)
        return session_fail(b->s, AMPC_ERR_UNSUPPORTED,
                            "step '%.200s': %lld blocks are too many for a GPU",
                            b->t->name, (long long)blocks);
    l->fn = blocks ? b->d->kernels[number - 1] : NULL;
    l->blocks = (unsigned)blocks;
    l->threads = k->threads;
    l->shared = k->shared;
    return AMPC_OK;
}

/* kernel(refs.., ep_refs.., [n], [scratch]) */
static ampc_status bind_launch(Binder *b, GpuStep *out) {
    const PlanCuda *c = b->s->m->cuda;
    int64_t n = b->t->npar ? b->s->plan->pars[b->t->par0] : 0;
    out->first.params = out->second.params = b->d->params;
    push_refs(b, b->t->ref0, b->t->nref);
    push_refs(b, b->t->ep_ref0, b->t->ep_nref);
    if (takes_count(c, b->c->kernel) || takes_count(c, b->c->kernel2))
        push(b->d, (uint64_t)n);
    if (b->c->scratch) push(b->d, b->d->scratch);
    ampc_status status = launch_shape(b, b->c->kernel, n, &out->first);
    if (status == AMPC_OK && b->c->kernel2)
        status = launch_shape(b, b->c->kernel2, n, &out->second);
    return status;
}

/* kernel(table, count); the rows go to the device later, all at once. */
static ampc_status bind_many(Binder *b, GpuStep *out) {
    const PlanTarget *plan = b->s->plan;
    const PlanCudaKernel *k = &b->s->m->cuda->kernels[b->c->kernel - 1];
    int64_t blocks = 0;
    out->first.params = b->d->params;
    push(b->d, b->row_at);
    push(b->d, b->c->count);
    for (uint32_t i = 0; i < b->c->count; i++) {
        const PlanStep *t = &plan->steps[b->step + i];
        int64_t n = plan->pars[t->par0];
        *b->row++ = (uint64_t)blocks;
        *b->row++ = (uint64_t)n;
        for (uint32_t j = 0; j < t->nref; j++)
            *b->row++ = gpu_address(b->s, b->program, plan->refs[t->ref0 + j]);
        b->row_at += row_words(t) * sizeof(uint64_t);
        blocks += n / k->per_block + (n % k->per_block > 0);
        if (n < 0 || blocks > INT32_MAX) blocks = (int64_t)INT32_MAX + 1;
    }
    ampc_status status = launch_shape(b, b->c->kernel, 0, &out->first);
    if (status != AMPC_OK) return status;
    if (blocks > INT32_MAX)
        return session_fail(b->s, AMPC_ERR_UNSUPPORTED,
                            "step '%.200s': too many blocks for a GPU",
                            b->t->name);
    out->first.fn = blocks ? b->d->kernels[b->c->kernel - 1] : NULL;
    out->first.blocks = (unsigned)blocks;
    return AMPC_OK;
}

typedef struct Scratchpad { /* host memory that open gives back */
    ProductKey *keys;
    const char **names;
    uint64_t *rows;
    size_t nproduct;
} Scratchpad;

static ampc_status bind_product(Binder *b, GpuStep *out, Scratchpad *p) {
    size_t i = p->nproduct++;
    out->product = &b->d->products[i];
    p->names[i] = out->name;
    return product_bind(b->s, b->program, b->step, out->product, &p->keys[i]);
}

static void bind_copy(Binder *b, GpuStep *out) {
    const PlanTarget *plan = b->s->plan;
    out->from = gpu_address(b->s, b->program, plan->refs[b->t->ref0]);
    out->to = gpu_address(b->s, b->program, plan->refs[b->t->ref0 + 1]);
    out->bytes = (uint64_t)copy_of(b->s->m, b->t)->bytes;
}

/* ---- all programs -------------------------------------------------------- */

static ampc_status bind_step(Binder *b, GpuStep *out, Scratchpad *p) {
    out->op = b->c->op;
    out->name = b->t->name ? b->t->name : "";
    switch (b->c->op) {
    case PLAN_CUDA_LAUNCH: return bind_launch(b, out);
    case PLAN_CUDA_MANY: return bind_many(b, out);
    case PLAN_CUDA_GEMM: return bind_product(b, out, p);
    case PLAN_CUDA_COPY: bind_copy(b, out); return AMPC_OK;
    default: return AMPC_OK;
    }
}

static ampc_status bind_programs(ampc_session *s, Scratchpad *pad) {
    const AmpcModule *m = s->m;
    GpuDevice *d = gpu_of(s);
    Binder b = {.s = s, .d = d, .row = pad->rows, .row_at = d->rows};
    for (uint32_t i = 0; i < m->nprogram; i++) {
        b.program = (int)i;
        for (uint32_t j = 0; j < s->plan->runs[i].nstep; j++) {
            b.step = s->plan->runs[i].step0 + j;
            b.t = &s->plan->steps[b.step];
            b.c = cuda_step(m, b.step);
            ampc_status status = bind_step(&b, &d->programs[i].steps[j], pad);
            if (status != AMPC_OK) return status;
        }
        watch_bind(s, (int)i);
    }
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
    ampc_status status = bind_programs(s, &pad);
    if (status == AMPC_OK && d->nproduct)
        status = tune_all(s, pad.keys, pad.names);
    if (status == AMPC_OK)
        status = gpu_write(s, d->rows, pad.rows, d->row_bytes);
    mem_free(s, block, bytes);
    return status;
}
