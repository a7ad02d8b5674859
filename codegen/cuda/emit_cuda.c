/* emit_cuda.c: the steps of all programs as GPU work, and their kernels as
   units (cuda.h).

   Item   one kernel of the generated text: k<i>, with k<i>_many beside it
          where several steps share a launch, or l<i> with l<i>_2.
   Unit   items that follow each other; units weigh about the same, so that
          they compile in parallel.                                          */
#include "codegen/cuda/cuda.h"
#include "runtime/lib.h"

#include <string.h>

typedef struct Item {
    const Kernel *kernel; /* k; NULL: l                                      */
    const char *key;      /* l: its text as number 0                         */
    const LoweredStep *step; /* l: first of its steps                        */
    int number;              /* l<number>                                    */
    double weight;
    uint64_t scratch;
    int first, second, many; /* PlanCudaKernel + 1; 0: none                  */
    uint32_t unit;
} Item;

typedef struct EmitCuda {
    Arena *a;
    const LoweredStep *in;
    CudaSource *out;
    VEC(Item) items;
    int nlib;
} EmitCuda;

/* ---- items --------------------------------------------------------------- */

static int add_kernel(EmitCuda *e, const char *name, uint32_t shared,
                      CudaShape s) {
    PlanCudaKernel k = {.name = name,
                        .threads = (uint32_t)s.threads,
                        .shared = shared,
                        .blocks = s.blocks,
                        .per_block = s.per_block};
    vec_push(e->a, &e->out->kernels, k);
    return e->out->kernels.len;
}

static char *lib_text(Arena *a, const LoweredStep *s, int number,
                      CudaLib *out) {
    StrBuf sb = {0};
    print_cuda_lib(s, number, &sb, out);
    char *text = arena_dup(a, sb.data ? sb.data : "", sb.len + 1);
    sb_free(&sb);
    return text;
}

/* ---- steps --------------------------------------------------------------- */

/* Steps that the schedule put into one launch are of one flat kernel. */
static void kernel_steps(EmitCuda *e, int i, int count) {
    const LoweredStep *s = &e->in[i];
    PlanCudaStep *to = &e->out->steps.data[i];
    bool many = count > 1;
    int at = 0;
    for (int k = 1; k < count; k++)
        ASSERT(s->kernel->form == KF_FLAT && e->in[i + k].kernel == s->kernel);
    if (s->units == 0) return;
    while (at < e->items.len && e->items.data[at].kernel != s->kernel) at++;
    if (at == e->items.len) {
        Item x = {.kernel = s->kernel,
                  .weight = 1 + s->kernel->insts.len / 32.0};
        vec_push(e->a, &e->items, x);
    }
    Item *x = &e->items.data[at];
    int *launch = many ? &x->many : &x->first;
    if (!*launch) {
        const char *name =
            arena_printf(e->a, "k%d%s", s->kernel->index, many ? "_many" : "");
        *launch = add_kernel(e, name, 0, cuda_shape(s->kernel));
        if (many) x->weight *= 2;
    }
    to->op = many ? PLAN_CUDA_MANY : PLAN_CUDA_LAUNCH;
    to->kernel = (uint32_t)*launch;
    to->count = many ? (uint32_t)count : 0;
}

static int add_launch(EmitCuda *e, const char *name, const CudaLaunch *l) {
    if (!l->threads) return 0;
    ASSERT(l->blocks > 0);
    return add_kernel(e, name, l->shared,
                      (CudaShape){.threads = l->threads, .blocks = l->blocks});
}

static void lib_step(EmitCuda *e, const LoweredStep *s, PlanCudaStep *to) {
    CudaLib lib;
    const char *key = lib_text(e->a, s, 0, &lib);
    int at = 0;
    while (at < e->items.len &&
           !(e->items.data[at].key && !strcmp(e->items.data[at].key, key)))
        at++;
    if (at == e->items.len) {
        Item x = {.key = key,
                  .step = s,
                  .number = e->nlib++,
                  .weight = lib.weight,
                  .scratch = lib.scratch};
        const char *name = arena_printf(e->a, "l%d", x.number);
        x.first = add_launch(e, name, &lib.first);
        x.second = add_launch(e, arena_printf(e->a, "%s_2", name), &lib.second);
        vec_push(e->a, &e->items, x);
    }
    const Item *x = &e->items.data[at];
    *to = (PlanCudaStep){.op = x->first ? PLAN_CUDA_LAUNCH : PLAN_CUDA_NONE,
                         .kernel = (uint32_t)x->first,
                         .kernel2 = (uint32_t)x->second,
                         .scratch = x->scratch};
}

/* Fusion gave cuBLASLt's products only epilogues that it can do; all others
   are kernels of our own. */
static void library_step(EmitCuda *e, const LoweredStep *s, PlanCudaStep *to) {
    int operand = 0, out = 0;
    PlanCudaFused fused = PLAN_FUSED_NONE;
    CudaRoute route = cuda_lib_route(s->lib);
    bool product = route == CUDA_ROUTE_product && cuda_gemm_fits(s);
    if (s->empty) return;
    if (route == CUDA_ROUTE_copy) {
        to->op = PLAN_CUDA_COPY;
        return;
    }
    if (product && s->epilogue) fused = cuda_gemm_fused(s, &operand, &out);
    if (!product || (s->epilogue && fused == PLAN_FUSED_NONE)) {
        lib_step(e, s, to);
        return;
    }
    to->op = PLAN_CUDA_GEMM;
    to->fused = fused;
    if (fused == PLAN_FUSED_NONE) return;
    to->operand = (uint32_t)operand;
    to->out = (uint32_t)out;
    to->out_dtype = s->epilogue->bufs.data[out].dtype;
}

/* ---- units --------------------------------------------------------------- */

enum { FEW_ITEMS = 8, UNIT_WEIGHT = 50 };

/* Every unit has an item: a unit ends where its share of the weight does, or
   where the items behind it are needed for the units behind it. */
static int choose_units(EmitCuda *e) {
    double weight = 0, done = 0;
    int unit = 0, in_unit = 0;
    for (int i = 0; i < e->items.len; i++) weight += e->items.data[i].weight;
    int n = (int)(weight / UNIT_WEIGHT + 1);
    if (n < 2 && e->items.len > FEW_ITEMS) n = 2;
    if (n > e->items.len) n = e->items.len;
    for (int i = 0; i < e->items.len; i++) {
        double half = e->items.data[i].weight / 2;
        bool full = done + half > weight * (unit + 1) / n;
        bool must = e->items.len - i == n - 1 - unit;
        if (in_unit && unit + 1 < n && (full || must)) {
            unit++;
            in_unit = 0;
        }
        e->items.data[i].unit = (uint32_t)unit;
        done += 2 * half;
        in_unit++;
    }
    return n;
}

static void add_unit(EmitCuda *e, uint32_t unit) {
    StrBuf sb = {0};
    CudaLib lib;
    print_cuda_head(&sb);
    for (int i = 0, j; i < e->items.len; i++) { /* each functor once */
        const Item *x = &e->items.data[i];
        if (x->unit != unit || !x->step || !x->step->epilogue) continue;
        for (j = 0; j < i; j++) {
            const Item *y = &e->items.data[j];
            if (y->unit == unit && y->step &&
                y->step->epilogue == x->step->epilogue)
                break;
        }
        if (j == i) print_cuda_functor(x->step->epilogue, &sb);
    }
    for (int i = 0; i < e->items.len; i++) {
        const Item *x = &e->items.data[i];
        const int kernels[] = {x->first, x->second, x->many};
        if (x->unit != unit) continue;
        for (int k = 0; k < 3; k++)
            if (kernels[k]) e->out->kernels.data[kernels[k] - 1].unit = unit;
        if (x->kernel)
            print_cuda_kernel(x->kernel, &sb);
        else
            sb_puts(&sb, lib_text(e->a, x->step, x->number, &lib));
        if (x->many) print_cuda_many(x->kernel, &sb);
    }
    CudaUnit u = {arena_dup(e->a, sb.data, sb.len + 1), sb.len};
    vec_push(e->a, &e->out->units, u);
    sb_free(&sb);
}

/* ---- all ----------------------------------------------------------------- */

void emit_cuda(Arena *a, const LoweredStep *steps, int nstep, CudaSource *out) {
    EmitCuda e = {.a = a, .in = steps, .out = out};
    for (int i = 0; i < nstep; i++)
        vec_push(a, &out->steps, (PlanCudaStep){.op = PLAN_CUDA_NONE});
    for (int i = 0, n; i < nstep; i += n) {
        n = 1;
        while (i + n < nstep && steps[i + n].beside) n++;
        if (steps[i].kind == PLAN_LIB)
            library_step(&e, &steps[i], &out->steps.data[i]);
        else
            kernel_steps(&e, i, n);
    }
    int n = choose_units(&e);
    for (int u = 0; u < n; u++) add_unit(&e, (uint32_t)u);
}
