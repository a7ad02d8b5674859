/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_gemm.c: matrix products and convolutions by cuBLASLt, with the
   operations that it applies before it stores the results
   (passes/device/product.h), as steps (cuda.h).
 */
#include "codegen/cuda/cuda.h"
#include "passes/device/fold.h"
#include "runtime/program/lib.h"

#include <string.h>

/* The refs behind a, b and the result that `how` names. */
static void more_refs(const LoweredStep *s, uint32_t how, ValueId *refs) {
    int adds = product_adds(how);
    if (product_scales(how)) refs[0] = s->end.scale;
    for (int i = 0; product_blocks(how) && i < 2; i++) refs[i] = s->blocks[i];
    if (adds >= 0) refs[adds] = s->end.add;
}

/* The epilogue of a product whose blocks have scales. */
static PlanProduct of_blocks(PlanProduct how) {
    return how == PLAN_PRODUCT_BIAS  ? PLAN_PRODUCT_BLOCKS_BIAS
           : how == PLAN_PRODUCT_ADD ? PLAN_PRODUCT_BLOCKS_ADD
                                     : PLAN_PRODUCT_BLOCKS;
}

bool cuda_product(Arena *a, const LoweredStep *s, LoweredStep *out) {
    LibGemm *p = arena_dup(a, s->pars, sizeof *p);
    ASSERT(s->npar * sizeof(int64_t) == sizeof *p);
    if (!product_fits(p)) return false;
    PlanProduct how = PLAN_PRODUCT_PLAIN;
    ValueId refs[6] = {s->refs[0], s->refs[1], s->refs[2]};
    if (s->epilogue) {
        how = s->end.how;
        if (how == PLAN_PRODUCT_PLAIN) return false;
        ASSERT(s->epilogue->bufs.len == 1 + (int)product_more(how));
        const KBuf *buf = s->epilogue->bufs.data;
        int result = 0;
        while (!buf[result].written) result++;
        refs[2] = s->ep_refs[result];
        p->c_dtype = buf[result].dtype;
    }
    if (is_value(s->blocks[0])) how = of_blocks(how);
    more_refs(s, how, refs + 3);
    out->fn = how;
    out->refs = arena_dup(a, refs, sizeof refs);
    out->nref = 3 + (int)product_more(how);
    out->kind = PLAN_PRODUCT;
    out->pars = (int64_t *)(void *)p;
    if (p->a_dtype == DT_F32 && s->factors) {
        out->pars = NEW_ARRAY(a, int64_t, out->npar + 1);
        memcpy(out->pars, p, sizeof *p);
        out->pars[out->npar++] = s->factors;
    }
    return true;
}

bool cuda_conv_points(const LibConv *c) {
    return lib_volume(c->kernel) == 1 && lib_volume(c->stride) == 1 &&
           !c->pad[0] && !c->pad[1] && !c->pad[2] &&
           lib_volume(c->in) == lib_volume(c->out);
}

/* In NCHW an image is a row-major matrix of channels by positions. */
bool cuda_conv_product(Arena *a, const LoweredStep *s, LoweredStep *out) {
    const LibConv *c = (const void *)s->pars;
    bool fwd = s->lib == PLAN_LIB_CONV_FWD;
    if ((!fwd && s->lib != PLAN_LIB_CONV_DGRAD) || s->epilogue ||
        c->group != 1 || !cuda_conv_points(c))
        return false;
    int64_t positions = lib_volume(c->out);
    if (!planes_align(positions, dtype_info[c->w_dtype].bytes)) return false;
    LibGemm p = {.m = fwd ? c->k : c->c,
                 .n = positions,
                 .k = fwd ? c->c : c->k,
                 .nbatch_dim = 1,
                 .batch_dim = {c->n},
                 .b_bs = {(fwd ? c->c : c->k) * positions},
                 .a_rs = fwd ? c->c : 1,
                 .a_cs = fwd ? 1 : c->c,
                 .b_rs = positions,
                 .b_cs = 1,
                 .a_dtype = c->w_dtype,
                 .b_dtype = fwd ? c->x_dtype : c->y_dtype,
                 .c_dtype = fwd ? c->y_dtype : c->x_dtype};
    ValueId refs[] = {s->refs[1], s->refs[0], s->refs[2]};
    *out = *s;
    out->lib = PLAN_LIB_GEMM;
    out->pars = arena_dup(a, &p, sizeof p);
    out->npar = sizeof p / sizeof(int64_t);
    out->refs = arena_dup(a, refs, sizeof refs);
    return product_fits(&p);
}
