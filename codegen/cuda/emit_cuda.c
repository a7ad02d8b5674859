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
    const CudaStepIn *in;
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

static Item *kernel_item(EmitCuda *e, const Kernel *k) {
    for (int i = 0; i < e->items.len; i++)
        if (e->items.data[i].kernel == k) return &e->items.data[i];
    Item x = {.kernel = k, .weight = 1 + k->insts.len / 32.0};
    vec_push(e->a, &e->items, x);
    return &e->items.data[e->items.len - 1];
}

static int launch_one(EmitCuda *e, Item *x) {
    const char *name = arena_printf(e->a, "k%d", kernel_index(x->kernel));
    if (!x->first) x->first = add_kernel(e, name, 0, cuda_shape(x->kernel));
    return x->first;
}

static int launch_many(EmitCuda *e, Item *x) {
    const char *name = arena_printf(e->a, "k%d_many", kernel_index(x->kernel));
    if (!x->many) {
        x->many = add_kernel(e, name, 0, cuda_shape(x->kernel));
        x->weight *= 2;
    }
    return x->many;
}

static char *lib_text(Arena *a, const LoweredStep *s, int number,
                      CudaLib *out) {
    StrBuf sb = {0};
    *out = (CudaLib){0};
    print_cuda_lib(s, number, &sb, out);
    char *text = arena_dup(a, sb.data ? sb.data : "", sb.len + 1);
    sb_free(&sb);
    return text;
}

static int add_launch(EmitCuda *e, const char *name, const CudaLaunch *l) {
    if (!l->threads) return 0;
    ASSERT(l->blocks > 0);
    return add_kernel(e, name, l->shared,
                      (CudaShape){.threads = l->threads, .blocks = l->blocks});
}

static Item *lib_item(EmitCuda *e, const LoweredStep *s) {
    CudaLib lib;
    const char *key = lib_text(e->a, s, 0, &lib);
    for (int i = 0; i < e->items.len; i++)
        if (e->items.data[i].key && !strcmp(e->items.data[i].key, key))
            return &e->items.data[i];
    Item x = {.key = key,
              .step = s,
              .number = e->nlib++,
              .weight = lib.weight,
              .scratch = lib.scratch};
    x.first = add_launch(e, arena_printf(e->a, "l%d", x.number), &lib.first);
    x.second =
        add_launch(e, arena_printf(e->a, "l%d_2", x.number), &lib.second);
    vec_push(e->a, &e->items, x);
    return &e->items.data[e->items.len - 1];
}

/* ---- steps --------------------------------------------------------------- */

/* Steps that the schedule put into one launch are of one flat kernel. */
static void kernel_steps(EmitCuda *e, int i, int count) {
    const LoweredStep *s = e->in[i].s;
    PlanCudaStep *to = &e->out->steps.data[i];
    for (int k = 1; k < count; k++)
        ASSERT(s->kernel->form == KF_FLAT &&
               e->in[i + k].s->kernel == s->kernel);
    if (s->units == 0) return;
    Item *x = kernel_item(e, s->kernel);
    to->op = count > 1 ? PLAN_CUDA_MANY : PLAN_CUDA_LAUNCH;
    to->kernel = (uint32_t)(count > 1 ? launch_many(e, x) : launch_one(e, x));
    to->count = count > 1 ? (uint32_t)count : 0;
}

static void lib_step(EmitCuda *e, const LoweredStep *s, PlanCudaStep *to) {
    const Item *x = lib_item(e, s);
    *to = (PlanCudaStep){.op = x->first ? PLAN_CUDA_LAUNCH : PLAN_CUDA_NONE,
                         .kernel = (uint32_t)x->first,
                         .kernel2 = (uint32_t)x->second,
                         .scratch = x->scratch};
}

/* Fusion gave cuBLASLt's products only epilogues that it can do; all others
   are kernels of our own. */
static void gemm_step(EmitCuda *e, const CudaStepIn *in, PlanCudaStep *to) {
    int operand = 0, out = 0;
    PlanCudaFused fused = PLAN_FUSED_NONE;
    if (in->s->epilogue) fused = cuda_gemm_fused(in, &operand, &out);
    if (!cuda_gemm_fits(in->s) ||
        (in->s->epilogue && fused == PLAN_FUSED_NONE)) {
        lib_step(e, in->s, to);
        return;
    }
    to->op = PLAN_CUDA_GEMM;
    to->fused = fused;
    if (fused == PLAN_FUSED_NONE) return;
    to->operand = (uint32_t)operand;
    to->out = (uint32_t)out;
    to->out_dtype = in->s->epilogue->bufs.data[out].dtype;
}

/* Nothing to compute: every result is empty. */
static bool is_empty(const CudaStepIn *in) {
    const Kernel *k = in->s->epilogue;
    const LibInfo *lib = lib_info(in->s->lib);
    for (int i = 0; !k && i < in->s->nref; i++)
        if (lib_writes(lib, i) && in->ref_bytes[i]) return false;
    if (!k) return true;
    for (int i = 0; i < k->bufs.len; i++)
        if (k->bufs.data[i].written && in->ep_bytes[i]) return false;
    return true;
}

static void library_step(EmitCuda *e, const CudaStepIn *in, PlanCudaStep *to) {
    if (is_empty(in)) return;
    switch (cuda_lib_route(in->s->lib)) {
    case CUDA_ROUTE_copy: to->op = PLAN_CUDA_COPY; break;
    case CUDA_ROUTE_product: gemm_step(e, in, to); break;
    case CUDA_ROUTE_each:
    case CUDA_ROUTE_kernel: lib_step(e, in->s, to); break;
    }
}

static void add_steps(EmitCuda *e, int nstep) {
    for (int i = 0, n; i < nstep; i += n) {
        n = 1;
        while (i + n < nstep && e->in[i + n].beside) n++;
        if (e->in[i].s->kind == PLAN_LIB)
            library_step(e, &e->in[i], &e->out->steps.data[i]);
        else
            kernel_steps(e, i, n);
    }
}

/* ---- units --------------------------------------------------------------- */

enum { FEW_ITEMS = 8, UNIT_WEIGHT = 50 };

static int unit_count(const EmitCuda *e, double weight) {
    int n = (int)(weight / UNIT_WEIGHT + 1);
    if (n < 2 && e->items.len > FEW_ITEMS) n = 2;
    return n < e->items.len ? n : e->items.len;
}

/* Every unit has an item: a unit ends where its share of the weight does, or
   where the items behind it are needed for the units behind it. */
static int choose_units(EmitCuda *e) {
    double weight = 0, done = 0;
    int unit = 0, in_unit = 0;
    for (int i = 0; i < e->items.len; i++) weight += e->items.data[i].weight;
    int n = unit_count(e, weight);
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

static void print_functors(const EmitCuda *e, uint32_t unit, StrBuf *sb) {
    for (int i = 0; i < e->items.len; i++) {
        const Item *x = &e->items.data[i];
        const Kernel *k = x->step ? x->step->epilogue : NULL;
        bool again = false;
        if (x->unit != unit || !k) continue;
        for (int j = 0; j < i && !again; j++)
            again = e->items.data[j].unit == unit && e->items.data[j].step &&
                    e->items.data[j].step->epilogue == k;
        if (!again) print_cuda_functor(k, sb);
    }
}

static void print_item(const EmitCuda *e, const Item *x, StrBuf *sb) {
    CudaLib lib;
    if (!x->kernel) {
        sb_puts(sb, lib_text(e->a, x->step, x->number, &lib));
        return;
    }
    print_cuda_kernel(x->kernel, sb);
    if (x->many) print_cuda_many(x->kernel, sb);
}

static void add_unit(EmitCuda *e, uint32_t unit) {
    StrBuf sb = {0};
    print_cuda_head(&sb);
    print_functors(e, unit, &sb);
    for (int i = 0; i < e->items.len; i++)
        if (e->items.data[i].unit == unit)
            print_item(e, &e->items.data[i], &sb);
    CudaUnit u = {arena_dup(e->a, sb.data ? sb.data : "", sb.len + 1), sb.len};
    vec_push(e->a, &e->out->units, u);
    sb_free(&sb);
}

static void set_unit(EmitCuda *e, int kernel, uint32_t unit) {
    if (kernel) e->out->kernels.data[kernel - 1].unit = unit;
}

static void add_units(EmitCuda *e) {
    int n = choose_units(e);
    for (int i = 0; i < e->items.len; i++) {
        const Item *x = &e->items.data[i];
        set_unit(e, x->first, x->unit);
        set_unit(e, x->second, x->unit);
        set_unit(e, x->many, x->unit);
    }
    for (int u = 0; u < n; u++) add_unit(e, (uint32_t)u);
}

/* ---- all ----------------------------------------------------------------- */

void emit_cuda(Arena *a, const CudaStepIn *steps, int nstep, CudaSource *out) {
    EmitCuda e = {.a = a, .in = steps, .out = out};
    for (int i = 0; i < nstep; i++)
        vec_push(a, &out->steps, (PlanCudaStep){.op = PLAN_CUDA_NONE});
    add_steps(&e, nstep);
    add_units(&e);
}
