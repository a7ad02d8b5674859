/* SPDX-License-Identifier: Apache-2.0 */
/* emit_gelu.c: pairs of steps that cuBLASLt does at once (PLAN_GELU): a
   product, and GELU or its slope. Both stay in the plan, for older GPUs and for
   libraries without an algorithm. */
#include "codegen/module/emit_plan.h"
#include "passes/device/fold.h"
#include "runtime/program/lib.h"

/* Sets PLAN_GELU's refs. */
static bool gelu_refs(const LoweredStep *product, const ProductGelu *x,
                      bool kept, ValueId *refs) {
    bool bias = product->fn == PLAN_PRODUCT_BIAS;
    if (x->slope && kept) return false; /* the product is read as it is */
    refs[0] = product->refs[0];
    refs[1] = product->refs[1];
    refs[2] = x->out;
    refs[3] = x->slope || kept ? x->at : NO_VALUE;
    refs[4] = bias ? product->refs[3] : NO_VALUE;
    return true;
}

/* In memory just what cuBLASLt, or the sum behind it, computes, too. */
static bool stores_as_much(const LoweredStep *s, const ProductGelu *x) {
    int stored = 0;
    for (int i = 0; i < s->kernel->bufs.len; i++) {
        if (!s->kernel->bufs.data[i].written) continue;
        if (!same_value(s->refs[i], x->out) && !same_value(s->refs[i], x->sums))
            return false;
        stored++;
    }
    return stored == 1 + is_value(x->sums);
}

/* The last step that was added runs where cuBLASLt has GELU. */
static void mark_since(Emit *e) {
    e->out->steps.data[e->out->steps.len - 1].since = PLAN_GELU_SINCE;
}

bool emit_gelu(Emit *e, const Graph *g, const LoweredStep *steps, int i) {
    const LoweredStep *s = &steps[i];
    const ProductGelu *x = s->gelu;
    const bool written[PLAN_GELU_REFS] = {false, false, true, x && !x->slope};
    ValueId refs[PLAN_GELU_REFS];
    LoweredStep product = *s;
    if (!x || !gpu_reaches(e->opt, PLAN_GELU_SINCE) ||
        !emit_is_alone(g, steps, i) || !emit_is_alone(g, steps, i + 1) ||
        !stores_as_much(&steps[i + 1], x) || !cuda_product(e->a, s, &product) ||
        !gelu_refs(&product, x,
                   emit_is_kept(g, steps, i, view_root(g, x->product)), refs) ||
        !emit_lies_apart(e, g, refs, written, PLAN_GELU_REFS))
        return false;
    int64_t pars[sizeof(LibGemm) / sizeof(int64_t) + PLAN_GELU_PARS];
    ASSERT(product.npar == sizeof(LibGemm) / sizeof(int64_t));
    memcpy(pars, product.pars, sizeof(LibGemm));
    pars[product.npar] = s->sums != NULL;
    pars[product.npar + 1] = 2;
    LoweredStep both = {.kind = PLAN_GELU,
                        .fn = x->slope ? PLAN_GELU_SLOPE : PLAN_GELU_OF,
                        .refs = arena_dup(e->a, refs, sizeof refs),
                        .nref = PLAN_GELU_REFS,
                        .pars = arena_dup(e->a, pars, sizeof pars),
                        .npar = product.npar + PLAN_GELU_PARS,
                        .name = s->name};
    emit_step(e, g, s, 2, &both);
    e->out->steps.data[e->out->steps.len - 1].both =
        arena_dup(e->a, &both, sizeof both);
    mark_since(e);
    if (!s->sums) return true;
    emit_groups(e, g, s->sums, 1);
    mark_since(e);
    return true;
}
