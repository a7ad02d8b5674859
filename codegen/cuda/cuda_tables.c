/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_tables.c: GPU steps as the tables of plan.c, and as the notes that
   `ampc inspect --kernels` shows (cuda.h).                                  */
#include "codegen/cuda/cuda.h"

#include <string.h>

/* ---- plan.c -------------------------------------------------------------- */

void put_cuda_tables(StrBuf *sb, const CudaSource *c, int toolkit) {
    sb_puts(sb, "\n/* name, unit, threads, shared, blocks, per_block */\n"
                "static const PlanCudaKernel cuda_kernels[] = {\n");
    for (int i = 0; i < c->kernels.len; i++) {
        const PlanCudaKernel *k = &c->kernels.data[i];
        sb_printf(sb, "    {\"%s\", %u, %u, %u, %lld, %lld},\n", k->name,
                  k->unit, k->threads, k->shared, (long long)k->blocks,
                  (long long)k->per_block);
    }
    sb_puts(sb, "    {0}};\n\nstatic const char *const cuda_archs[] = {");
    for (int i = 0; i < c->archs.len; i++)
        sb_printf(sb, "\"%s\", ", c->archs.data[i]);
    sb_printf(sb,
              "0};\n\nextern const struct AmpcBackend ampc_cuda_backend;\n"
              "static const PlanCuda cuda = {\n"
              "    &cuda_plan, %d, %d, %d, cuda_kernels, cuda_archs,\n"
              "    %d, &ampc_cuda_backend};\n",
              c->kernels.len, c->units.len, c->archs.len, toolkit);
}

/* ---- notes --------------------------------------------------------------- */

/* Prints the compiler's resource usage of a kernel, by architecture. */
static void put_usage(StrBuf *sb, bool json, const CudaSource *c,
                      const char *kernel) {
    int shown = 0;
    for (int i = 0; i < c->archs.len; i++)
        for (int j = 0; j < c->build.usage.len; j++) {
            const CudaUsage *u = &c->build.usage.data[j];
            if (strcmp(u->kernel, kernel) || strcmp(u->arch, c->archs.data[i]))
                continue;
            if (json)
                sb_printf(sb,
                          "%s\"%s\":{\"registers\":%d,\"spill_stores\":%d,"
                          "\"spill_loads\":%d,\"shared\":%d,\"stack\":%d}",
                          shown++ ? "," : "", u->arch, u->registers,
                          u->spill_stores, u->spill_loads, u->shared, u->stack);
            else
                sb_printf(sb, "; %s: %d registers, %d bytes spilled, %d shared",
                          u->arch, u->registers, u->spill_stores, u->shared);
            break;
        }
}

/* The blocks of a launch of many tensors depend on all of them. */
static void put_kernel(StrBuf *sb, bool json, const CudaSource *c, uint32_t fn,
                       const EmitGroup *g) {
    const PlanCudaKernel *k = &c->kernels.data[fn];
    bool many = plan_tensors(&g->step) > 0;
    long long n = g->s->npar ? g->s->pars[0] : 0;
    long long blocks = k->blocks ? k->blocks : (n - 1) / k->per_block + 1;
    if (json) {
        sb_printf(sb, "{\"name\":\"%s\",\"unit\":%u,\"threads\":%u", k->name,
                  k->unit, k->threads);
        if (!many) sb_printf(sb, ",\"blocks\":%lld", blocks);
        sb_printf(sb, ",\"dynamic_shared\":%u,\"usage\":{", k->shared);
    } else if (many) {
        sb_printf(sb, "%s: blocks of %u", k->name, k->threads);
    } else {
        sb_printf(sb, "%s: %lld x %u threads", k->name, blocks, k->threads);
    }
    put_usage(sb, json, c, k->name);
    if (json) sb_puts(sb, "}}");
}

/* Of a product by cuBLASLt that reads fp32. */
static AmpcFactors product_factors(const EmitGroup *g) {
    bool exact = g->step.npar == lib_info(PLAN_LIB_GEMM)->npar;
    return exact ? AMPC_FACTORS_F32 : g->s->factors;
}

void put_cuda_note(StrBuf *sb, bool json, const CudaSource *c,
                   const EmitGroup *g) {
    static const char *const op[] = {[PLAN_LAUNCH] = "launch",
                                     [PLAN_MANY] = "many",
                                     [PLAN_ROWS] = "rows",
                                     [PLAN_PRODUCT] = "gemm",
                                     [PLAN_COPY] = "copy"};
    static const char *const product[] = {"none", "bias", "scale", "add"};
    const PlanStep *s = &g->step;
    bool runs = !g->idle && !g->part;
    uint32_t tensors = plan_tensors(s);
    bool rounds = runs && s->kind == PLAN_PRODUCT && product_factors(g);
    const char *factors = rounds ? factors_text[product_factors(g)] : NULL;
    if (json) {
        sb_printf(sb, "{\"op\":\"%s\"",
                  g->idle   ? "none"
                  : g->part ? "part"
                            : op[s->kind]);
        if (runs && tensors) sb_printf(sb, ",\"count\":%u", tensors);
        if (runs && s->kind == PLAN_PRODUCT)
            sb_printf(sb, ",\"fused\":\"%s\"", product[s->fn]);
        if (rounds) sb_printf(sb, ",\"factors\":\"%s\"", factors);
        sb_printf(sb, ",\"scratch\":%llu,\"kernels\":[",
                  (unsigned long long)(runs ? s->scratch : 0));
    } else if (!runs) {
        sb_puts(sb, g->part ? "in the launch before" : "nothing");
    } else if (tensors) {
        sb_printf(sb, "%u steps in ", tensors);
    } else if (s->kind == PLAN_PRODUCT) {
        sb_puts(sb, "cuBLASLt");
        if (rounds) sb_printf(sb, " of %s", factors);
        if (s->fn == PLAN_PRODUCT_ADD)
            sb_puts(sb, ", added to what is there");
        else if (s->fn)
            sb_printf(sb, " with %s", product[s->fn]);
    } else if (s->kind == PLAN_COPY) {
        sb_puts(sb, "copy");
    }
    if (runs && (s->kind == PLAN_LAUNCH || tensors)) {
        put_kernel(sb, json, c, s->fn, g);
        if (s->second && s->kind == PLAN_LAUNCH) {
            sb_puts(sb, json ? "," : " | ");
            put_kernel(sb, json, c, s->second - 1, g);
        }
    }
    if (json) sb_puts(sb, "]}");
}
