/* cuda_tables.c: GPU steps as the tables of plan.c, and as the notes that
   `ampc inspect --kernels` shows (cuda.h).                                  */
#include "codegen/cuda/cuda.h"

#include <string.h>

static const struct {
    const char *plan, *note;
} op_text[] = {{"PLAN_CUDA_NONE", "none"},
               {"PLAN_CUDA_LAUNCH", "launch"},
               {"PLAN_CUDA_MANY", "many"},
               {"PLAN_CUDA_GEMM", "gemm"},
               {"PLAN_CUDA_COPY", "copy"}};
static const char *const fused_text[] = {"none", "bias", "scale"};

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
    sb_puts(sb, "    {0}};\n\n/* op, kernel, kernel2, count, fused, operand, "
                "out, out_dtype, scratch */\n"
                "static const PlanCudaStep cuda_launches[] = {\n");
    for (int i = 0; i < c->steps.len; i++) {
        const PlanCudaStep *s = &c->steps.data[i];
        sb_printf(sb, "    {%s, %u, %u, %u, %u, %u, %u, %u, %llu},\n",
                  op_text[s->op].plan, s->kernel, s->kernel2, s->count,
                  s->fused, s->operand, s->out, s->out_dtype,
                  (unsigned long long)s->scratch);
    }
    sb_puts(sb, "    {0}};\n\nstatic const char *const cuda_archs[] = {");
    for (int i = 0; i < c->archs.len; i++)
        sb_printf(sb, "\"%s\", ", c->archs.data[i]);
    sb_printf(sb,
              "0};\n\nextern const struct AmpcBackend ampc_cuda_backend;\n"
              "static const PlanCuda cuda = {\n"
              "    &cuda_plan, %d, %d, %d, cuda_kernels, cuda_launches,\n"
              "    cuda_archs, %d,\n"
              "    &ampc_cuda_backend};\n",
              c->kernels.len, c->units.len, c->archs.len, toolkit);
}

/* ---- notes --------------------------------------------------------------- */

/* What the compiler tells of a kernel, by architecture. */
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

/* The blocks of a launch of many steps depend on all of them. */
static void put_kernel(StrBuf *sb, bool json, const CudaSource *c, int number,
                       int64_t n, bool many) {
    const PlanCudaKernel *k = &c->kernels.data[number - 1];
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

/* Both kernels of a step. */
static void put_both(StrBuf *sb, bool json, const CudaSource *c,
                     const PlanCudaStep *s, int64_t n) {
    if (s->kernel)
        put_kernel(sb, json, c, (int)s->kernel, n, s->op == PLAN_CUDA_MANY);
    if (!s->kernel2) return;
    sb_puts(sb, json ? "," : " | ");
    put_kernel(sb, json, c, (int)s->kernel2, n, false);
}

static bool is_part(const CudaSource *c, int step) {
    if (c->steps.data[step].op != PLAN_CUDA_NONE) return false;
    for (int i = step - 1; i >= 0; i--)
        if (c->steps.data[i].op != PLAN_CUDA_NONE)
            return i + (int)c->steps.data[i].count > step;
    return false;
}

void put_cuda_note(StrBuf *sb, bool json, const CudaSource *c, int step,
                   int64_t n) {
    const PlanCudaStep *s = &c->steps.data[step];
    if (json) {
        sb_printf(sb, "{\"op\":\"%s\"",
                  is_part(c, step) ? "part" : op_text[s->op].note);
        if (s->op == PLAN_CUDA_MANY) sb_printf(sb, ",\"count\":%u", s->count);
        if (s->op == PLAN_CUDA_GEMM)
            sb_printf(sb, ",\"fused\":\"%s\"", fused_text[s->fused]);
        sb_printf(sb, ",\"scratch\":%llu,\"kernels\":[",
                  (unsigned long long)s->scratch);
        put_both(sb, json, c, s, n);
        sb_puts(sb, "]}");
        return;
    }
    switch ((PlanCudaOp)s->op) {
    case PLAN_CUDA_NONE:
        sb_puts(sb, is_part(c, step) ? "in the launch before" : "nothing");
        return;
    case PLAN_CUDA_LAUNCH: break;
    case PLAN_CUDA_MANY: sb_printf(sb, "%u steps in ", s->count); break;
    case PLAN_CUDA_GEMM:
        sb_puts(sb, "cuBLASLt");
        if (s->fused) sb_printf(sb, " with %s", fused_text[s->fused]);
        break;
    case PLAN_CUDA_COPY: sb_puts(sb, "copy"); break;
    }
    put_both(sb, json, c, s, n);
}
