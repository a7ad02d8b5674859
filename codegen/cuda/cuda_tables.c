/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_tables.c: GPU steps as the tables of plan.c, and as the notes that
   `ampc inspect --kernels` shows (cuda.h).                                  */
#include "codegen/cuda/cuda.h"

#include <string.h>

/* ---- plan.c -------------------------------------------------------------- */

void put_cuda_tables(StrBuf *sb, const CudaSource *c, int toolkit) {
    sb_puts(sb,
            "\n/* name, unit, threads, shared, guarded, blocks, per_block */\n"
            "static const PlanCudaKernel cuda_kernels[] = {\n");
    for (int i = 0; i < c->kernels.len; i++) {
        const PlanCudaKernel *k = &c->kernels.data[i];
        sb_printf(sb, "    {\"%s\", %u, %u, %u, %u, %lld, %lld},\n", k->name,
                  k->unit, k->threads, k->shared, k->guarded,
                  (long long)k->blocks, (long long)k->per_block);
    }
    sb_puts(sb, "    {0}};\n\nstatic const char *const cuda_archs[] = {");
    for (int i = 0; i < c->archs.len; i++)
        sb_printf(sb, "\"%s\", ", c->archs.data[i]);
    sb_puts(sb, "0};\n\nstatic const PlanTile cuda_tiles[] = {\n");
    for (int i = 0; i < c->tiles.len; i++)
        sb_printf(sb, "    {\"%s\", %lld},\n", c->tiles.data[i].name,
                  (long long)c->tiles.data[i].blocks);
    sb_puts(sb, "    {0}};\n\nstatic const char *const tile_archs[] = {");
    for (int i = 0; i < c->tile_archs.len; i++)
        sb_printf(sb, "\"%s\", ", c->tile_archs.data[i]);
    sb_printf(sb,
              "0};\n\nextern const struct AmpcBackend ampc_cuda_backend;\n"
              "static const PlanCuda cuda = {\n"
              "    &cuda_plan, %d, %d, %d, cuda_kernels, cuda_archs,\n"
              "    %d, &ampc_cuda_backend, %d, %d, cuda_tiles, tile_archs};\n",
              c->kernels.len, c->units.len, c->archs.len, toolkit, c->tiles.len,
              c->tiles.len ? c->tile_archs.len : 0);
}

/* ---- notes --------------------------------------------------------------- */

/* The compiler's resource usage of a kernel, by architecture. */
static void add_usage(Facts *f, const CudaSource *c, const char *kernel) {
    Facts all = {.json = f->json};
    for (int i = 0; i < c->archs.len; i++)
        for (int j = 0; j < c->build.usage.len; j++) {
            const CudaUsage *u = &c->build.usage.data[j];
            Facts of = {.json = f->json};
            if (strcmp(u->kernel, kernel) || strcmp(u->arch, c->archs.data[i]))
                continue;
            fact_words(&of, "arch", "%s", u->arch);
            fact_int(&of, "registers", u->registers, NULL);
            fact_int(&of, "spill_stores", u->spill_stores, NULL);
            fact_int(&of, "spill_loads", u->spill_loads, NULL);
            fact_int(&of, "shared", u->shared, NULL);
            fact_int(&of, "stack", u->stack, NULL);
            fact_part(&all, u->arch, &of,
                      "; {arch}: {registers} registers, {spill_stores} bytes "
                      "spilled, {shared} shared");
            break;
        }
    fact_part(f, "usage", &all, NULL);
}

/* The blocks of a launch of many tensors depend on all of them. */
static void add_kernel(FactList *kernels, const CudaSource *c, uint32_t fn,
                       const EmitGroup *g) {
    const PlanCudaKernel *k = &c->kernels.data[fn];
    bool many = plan_tensors(&g->step) > 0;
    long long n = g->s->npar ? g->s->pars[0] : 0;
    long long blocks = k->blocks ? k->blocks : (n - 1) / k->per_block + 1;
    Facts f = {.json = kernels->json};
    fact_word(&f, "name", k->name, NULL);
    fact_int(&f, "unit", k->unit, NULL);
    fact_int(&f, "threads", k->threads, NULL);
    if (!many) fact_int(&f, "blocks", blocks, NULL);
    fact_int(&f, "dynamic_shared", k->shared, NULL);
    add_usage(&f, c, k->name);
    facts_put(&f,
              many ? "{name}: blocks of {threads}{usage}"
                   : "{name}: {blocks} x {threads} threads{usage}",
              fact_next(kernels));
}

/* Of a product by cuBLASLt that reads fp32. */
static AmpcFactors product_factors(const EmitGroup *g) {
    bool exact = g->step.npar == lib_info(PLAN_LIB_GEMM)->npar;
    return exact ? AMPC_FACTORS_F32 : g->s->factors;
}

/* The epilogue that cuBLASLt computes, and how factors are rounded. */
static void add_product(Facts *f, const EmitGroup *g) {
    static const char *const product[] = {"none",
                                          "bias",
                                          "scale",
                                          "add",
                                          "scale and bias",
                                          "scale, added",
                                          "scales of blocks",
                                          "scales of blocks and bias",
                                          "scales of blocks, added"};
    uint32_t fn = g->step.fn;
    const char *words = fn == PLAN_PRODUCT_ADD ? ", added to what is there"
                        : fn == PLAN_PRODUCT_SCALE_ADD
                            ? " with scale, added to what is there"
                        : fn == PLAN_PRODUCT_BLOCKS_ADD
                            ? " with scales of blocks, added to what is there"
                        : fn ? " with %s"
                             : "";
    AmpcFactors factors = product_factors(g);
    fact_form(f, "fused", "\"%s\"", words, product[fn]);
    if (factors) fact_word(f, "factors", factors_text[factors], " of %s");
}

/* The Tile kernel that replaces the step where the driver has CUDA Tile, and
   its instructions that multiply. */
static void add_tile(Facts *f, const CudaSource *c, uint32_t tile) {
    const char *name = c->tiles.data[tile].name;
    StrBuf how = {0};
    sb_puts(&how, name);
    for (int i = 0; i < c->tile_uses.len; i++) {
        const TileUse *u = &c->tile_uses.data[i];
        if (!strcmp(u->kernel, name))
            sb_printf(&how, ", %s: %s", u->arch, u->instruction);
    }
    fact_form(f, "tile", "\"%s\"", "CUDA Tile %s; else ", how.data);
    sb_free(&how);
}

static const char *step_line(const EmitGroup *g) {
    if (g->idle) return "nothing";
    if (g->part) return "in the launch before";
    if (plan_tensors(&g->step)) return "{count} steps in {kernels}";
    if (g->step.kind == PLAN_PRODUCT)
        return "{tile}{gelu}cuBLASLt{factors}{fused}";
    return g->step.kind == PLAN_COPY ? "copy" : "{tile}{gelu}{kernels}";
}

void fact_cuda(Facts *f, const char *key, const CudaSource *c,
               const EmitGroup *g) {
    static const char *const op[] = {[PLAN_LAUNCH] = "launch",
                                     [PLAN_MANY] = "many",
                                     [PLAN_ROWS] = "rows",
                                     [PLAN_PRODUCT] = "gemm",
                                     [PLAN_COPY] = "copy"};
    const PlanStep *s = &g->step;
    bool runs = !g->idle && !g->part;
    uint32_t tensors = runs ? plan_tensors(s) : 0;
    Facts step = {.json = f->json};
    FactList kernels = fact_series(f->json, ",", " | ");
    fact_word(&step, "op",
              g->idle   ? "none"
              : g->part ? "part"
                        : op[s->kind],
              NULL);
    if (tensors) fact_int(&step, "count", tensors, NULL);
    if (runs && s->kind == PLAN_PRODUCT) add_product(&step, g);
    if (g->tile) add_tile(&step, c, g->tile - 1);
    if (g->gelu)
        fact_form(&step, "gelu", "\"%s\"",
                  "from compute capability 9.0 on %s; else ",
                  "cuBLASLt with GELU");
    fact_int(&step, "scratch", runs ? (long long)s->scratch : 0, NULL);
    if (runs && (s->kind == PLAN_LAUNCH || tensors)) {
        add_kernel(&kernels, c, s->fn, g);
        if (s->second && s->kind == PLAN_LAUNCH)
            add_kernel(&kernels, c, s->second - 1, g);
    }
    fact_list(&step, "kernels", &kernels);
    fact_part(f, key, &step, step_line(g));
}
