/* SPDX-License-Identifier: Apache-2.0 */
/* emit_cuda.c: groups as steps of a GPU, and their kernels as units (cuda.h).

   Item   one kernel of the generated text: k<i>, with k<i>_many beside it
          where several groups share a launch, or l<i> with l<i>_2.
   Unit   items that follow each other; units weigh about the same, so that
          they compile in parallel.                                          */
#include "codegen/cuda/cuda.h"
#include "codegen/kernel/schedule.h"
#include "runtime/program/lib.h"

#include <math.h>
#include <string.h>

struct CudaItem {
    const Kernel *kernel; /* k; NULL: l                                      */
    const Kernel *after;  /* k: has print_cuda_many_after */
    const char *key;      /* l: the text that it has as number 0 */
    const LoweredStep *step; /* l: the first of its steps */
    const LibGemm *product;  /* l: printed by print_cuda_product */
    const DType *sent;       /* l: printed by print_cuda_sum */
    bool epilogue;           /* l: of the product, alone */
    int number;              /* l<number>                                    */
    double weight;
    CudaWork work;
    uint64_t scratch;
    bool guarded;                 /* one of its steps is */
    uint32_t first, second, many; /* PlanCudaKernel + 1; 0: none             */
    uint32_t unit;
    bool *over; /* k: cuda_overlap of each buffer */
};
typedef struct CudaItem Item;

/* ---- items --------------------------------------------------------------- */

static uint32_t add_kernel(Arena *a, CudaSource *c, const char *name,
                           CudaShape s) {
    PlanCudaKernel k = {.name = name,
                        .threads = (uint32_t)s.threads,
                        .shared = s.shared,
                        .blocks = s.blocks,
                        .per_block = s.per_block};
    if (!s.threads) return 0;
    vec_push(a, &c->kernels, k);
    return (uint32_t)c->kernels.len;
}

/* Compile cost by the number of elements that the text computes: loops that
   hold values are unrolled. */
static double kernel_weight(const Kernel *k) {
    const KLoop *lanes = kernel_loop(k, LOOP_LANES, LOOP_ANY);
    double times = cuda_pack(k), step = lanes ? (double)lanes->step * times : 1;
    bool holds = false;
    for (int i = 1; i < k->insts.len; i++)
        holds |= kinst_at(k, i)->keep == KEEP_ROW;
    if (holds && lanes) times *= ceil((double)kernel_cols(k) / step);
    return 1 + k->insts.len * times / 32;
}

static Item *item_of_kernel(Arena *a, CudaSource *c, const Kernel *k,
                            const Kernel *after) {
    int at = 0;
    while (at < c->items.len &&
           (c->items.data[at].kernel != k || c->items.data[at].after != after))
        at++;
    if (at == c->items.len) {
        Item x = {.kernel = k,
                  .after = after,
                  .weight =
                      kernel_weight(k) + (after ? kernel_weight(after) : 0),
                  .over = NEW_ARRAY(a, bool, k->bufs.len)};
        vec_push(a, &c->items, x);
    }
    return &c->items.data[at];
}

static char *lib_text(Arena *a, const Item *x, int number, CudaLib *out) {
    StrBuf sb = {0};
    if (x->product)
        print_cuda_product(x->product, x->epilogue, number, &sb, out);
    else if (x->sent)
        print_cuda_sum(*x->sent, number, &sb, out);
    else
        print_cuda_lib(x->step, number, x->guarded, &sb, out);
    char *text = arena_dup(a, sb.data ? sb.data : "", sb.len + 1);
    sb_free(&sb);
    return text;
}

/* Finds or adds the item with the text of x; x's step, product or dtype is
   set. */
static Item *item_of_lib(Arena *a, CudaSource *c, Item x) {
    CudaLib lib;
    int nlib = 0;
    x.key = lib_text(a, &x, 0, &lib);
    ASSERT(!x.step || lib.first.shared <= x.step->block_shared);
    for (int i = 0; i < c->items.len; i++) {
        Item *y = &c->items.data[i];
        if (y->key && !strcmp(y->key, x.key)) return y;
        nlib += y->key != NULL;
    }
    const char *name = arena_printf(a, "l%d", nlib);
    x.number = nlib;
    x.weight = lib.weight;
    x.work = lib.work;
    x.scratch = lib.scratch;
    x.first = add_kernel(a, c, name, lib.first);
    x.second = add_kernel(a, c, arena_printf(a, "%s_2", name), lib.second);
    vec_push(a, &c->items, x);
    return &c->items.data[c->items.len - 1];
}

/* ---- steps --------------------------------------------------------------- */

/* Groups that share a launch have one kernel. */
static void launch_kernel(Arena *a, CudaSource *c, const LoweredStep *s, int n,
                          LoweredStep *out) {
    const Kernel *after = NULL;
    for (int i = 0; i < n; i++)
        if (s[i].behind) after = s[i].behind->kernel;
    Item *x = item_of_kernel(a, c, s->kernel, after);
    bool fold = s->kernel->form == KF_FOLD, many = n > 1 || fold;
    uint32_t *launch = many ? &x->many : &x->first;
    x->guarded |= is_value(s->guard.when);
    if (!*launch) {
        const char *name = after ? arena_printf(a, "k%d_%d_many",
                                                s->kernel->index, after->index)
                                 : arena_printf(a, "k%d%s", s->kernel->index,
                                                many ? "_many" : "");
        *launch = add_kernel(a, c, name, cuda_shape(s->kernel));
        if (many) x->weight *= 2;
        if (cuda_scratch(s->kernel))
            x->second = add_kernel(a, c, arena_printf(a, "%s_2", name),
                                   cuda_finish_shape(s->kernel));
    }
    out->kind = fold ? PLAN_ROWS : many ? PLAN_MANY : PLAN_LAUNCH;
    out->fn = *launch - 1;
    out->second = fold ? after != NULL : x->second;
    out->scratch = cuda_scratch(s->kernel);
    ASSERT(n == 1 || fold || !out->second);
    if (n == 1) return;
    int each = fold ? s->npar : 1;
    out->npar = n * each;
    out->pars = NEW_ARRAY(a, int64_t, out->npar);
    for (int i = 0; i < n; i++) {
        ASSERT(s[i].kernel == s->kernel);
        memcpy(out->pars + i * each, s[i].pars,
               (size_t)each * sizeof *out->pars);
    }
}

/* cuBLASLt leaves nothing out, our own kernels do. Where factors are rounded,
   tensor cores compute fp32 products in less than half of our kernels' time:
   then all of them run, as do products whose blocks have scales. */
static bool own_product(const LoweredStep *s) {
    return is_value(s->guard.when) && s->factors == AMPC_FACTORS_F32 &&
           !is_value(s->blocks[0]);
}

bool cuda_step(Arena *a, CudaSource *c, const LoweredStep *s, int n,
               LoweredStep *out) {
    VEC(ValueId) refs = {0};
    LoweredStep images;
    *out = *s;
    if (s->empty || (s->kernel && s->units == 0)) return false;
    CudaRoute route = s->kernel ? CUDA_ROUTE_kernel : cuda_lib_route(s->lib);
    bool own = own_product(s);
    if (!s->kernel && !own && cuda_conv_product(a, s, &images)) {
        *out = *(s = &images);
        route = CUDA_ROUTE_product;
    }
    if (route == CUDA_ROUTE_copy) {
        out->kind = PLAN_COPY;
        return true;
    }
    out->fn = out->nep_ref = 0;
    if (route == CUDA_ROUTE_product && !own && cuda_product(a, s, out)) {
        const LibGemm *p = (const void *)out->pars;
        out->second = item_of_lib(a, c, (Item){.product = p})->first;
        out->after = 0;
        if (cuda_product_parts(p, (PlanProduct)out->fn))
            out->after =
                item_of_lib(a, c, (Item){.product = p, .epilogue = true})
                    ->first;
        return true;
    }
    int behind = 0; /* operands of the `after` step */
    for (int i = 0; i < n; i++)
        if (s[i].behind) behind = s[i].behind->nref;
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < s[i].nref; k++) vec_push(a, &refs, s[i].refs[k]);
        for (int k = 0; k < s[i].nep_ref; k++)
            vec_push(a, &refs, s[i].ep_refs[k]);
        for (int k = 0; k < behind; k++)
            vec_push(a, &refs, s[i].behind ? s[i].behind->refs[k] : NO_VALUE);
    }
    out->refs = refs.data;
    out->nref = refs.len;
    if (s->kernel) {
        launch_kernel(a, c, s, n, out);
        return true;
    }
    Item *x = item_of_lib(a, c, (Item){.step = s});
    x->guarded |= is_value(s->guard.when);
    out->kind = PLAN_LAUNCH;
    out->fn = x->first - 1;
    out->second = x->second;
    out->scratch = x->scratch;
    out->npar = 0; /* constants in the kernel's text */
    return x->first;
}

void cuda_sum(Arena *a, CudaSource *c, DType sent, LoweredStep *out) {
    const Item *x =
        item_of_lib(a, c, (Item){.sent = arena_dup(a, &sent, sizeof sent)});
    out->fn = x->first - 1;
    out->second = x->second;
}

void cuda_overlap(CudaSource *c, const Kernel *k, int b) {
    for (int i = 0; i < c->items.len; i++)
        if (c->items.data[i].kernel == k) c->items.data[i].over[b] = true;
}

CudaWork cuda_work(const CudaSource *c, uint32_t fn) {
    for (int i = 0; i < c->items.len; i++)
        if (c->items.data[i].first == fn + 1) return c->items.data[i].work;
    return (CudaWork){0};
}

/* ---- units --------------------------------------------------------------- */

/* A unit of that weight compiles in about a second; starting NVRTC takes a
   thirtieth of a second. */
enum { FEW_ITEMS = 8, UNIT_WEIGHT = 150 };

/* Every unit has an item. A unit ends at its share of the weight, or earlier
   if the remaining items are needed for the remaining units. */
static int choose_units(CudaSource *c) {
    double weight = 0, done = 0;
    int unit = 0, in_unit = 0;
    for (int i = 0; i < c->items.len; i++) weight += c->items.data[i].weight;
    int n = (int)(weight / UNIT_WEIGHT + 1);
    if (n < 2 && c->items.len > FEW_ITEMS) n = 2;
    if (n > c->items.len) n = c->items.len;
    for (int i = 0; i < c->items.len; i++) {
        double half = c->items.data[i].weight / 2;
        bool full = done + half > weight * (unit + 1) / n;
        bool must = c->items.len - i == n - 1 - unit;
        if (in_unit && unit + 1 < n && (full || must)) {
            unit++;
            in_unit = 0;
        }
        c->items.data[i].unit = (uint32_t)unit;
        done += 2 * half;
        in_unit++;
    }
    return n;
}

static void add_unit(Arena *a, CudaSource *c, uint32_t unit) {
    StrBuf sb = {0};
    CudaLib lib;
    print_cuda_head(&sb);
    for (int i = 0, j; i < c->items.len; i++) { /* each functor once */
        const Item *x = &c->items.data[i];
        if (x->unit != unit || !x->step || !x->step->epilogue) continue;
        for (j = 0; j < i; j++) {
            const Item *y = &c->items.data[j];
            if (y->unit == unit && y->step &&
                y->step->epilogue == x->step->epilogue)
                break;
        }
        if (j == i) print_cuda_functor(x->step->epilogue, &sb);
    }
    for (int i = 0; i < c->items.len; i++) {
        const Item *x = &c->items.data[i];
        const uint32_t kernels[] = {x->first, x->second, x->many};
        if (x->unit != unit) continue;
        for (int k = 0; k < 3; k++)
            if (kernels[k]) {
                c->kernels.data[kernels[k] - 1].unit = unit;
                c->kernels.data[kernels[k] - 1].guarded = x->guarded;
            }
        if (!x->kernel) sb_puts(&sb, lib_text(a, x, x->number, &lib));
        if (x->kernel && x->first)
            print_cuda_kernel(x->kernel, x->guarded, &sb);
        else if (x->kernel && x->kernel->form == KF_FLAT)
            print_cuda_block(x->kernel, &sb);
        if (x->many && x->after)
            print_cuda_many_after(x->kernel, x->after, x->guarded, &sb);
        else if (x->many)
            print_cuda_many(x->kernel, x->guarded, &sb);
    }
    CudaUnit u = {arena_dup(a, sb.data, sb.len + 1), sb.len};
    vec_push(a, &c->units, u);
    sb_free(&sb);
}

void cuda_units(Arena *a, CudaSource *c) {
    for (int i = 0; i < c->items.len; i++) {
        const Item *x = &c->items.data[i];
        for (int b = 0; x->kernel && b < x->kernel->bufs.len; b++)
            x->kernel->bufs.data[b].apart = !x->over[b];
    }
    int n = choose_units(c);
    for (int u = 0; u < n; u++) add_unit(a, c, (uint32_t)u);
}
