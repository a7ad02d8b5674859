/* cuda_tables.c: GPU steps as the tables of plan.c, and as the notes that
   `ampc inspect --kernels` shows (cuda.h).                                  */
#include "codegen/cuda/cuda.h"

#include <string.h>

static const char *const op_text[] = {"none", "launch", "many", "gemm", "copy"};
static const char *const fused_text[] = {"none", "bias", "scale"};

/* ---- plan.c -------------------------------------------------------------- */

static void put_kernels(StrBuf *sb, const CudaSource *c) {
    sb_puts(sb, "\n/* name, unit, threads, shared, blocks, per_block */\n"
                "static const PlanCudaKernel cuda_kernels[] = {\n");
    for (int i = 0; i < c->kernels.len; i++) {
        const PlanCudaKernel *k = &c->kernels.data[i];
        sb_printf(sb, "    {\"%s\", %u, %u, %u, %lld, %lld},\n", k->name,
                  k->unit, k->threads, k->shared, (long long)k->blocks,
                  (long long)k->per_block);
    }
    sb_puts(sb, "    {0}};\n");
}

static void put_steps(StrBuf *sb, const CudaSource *c) {
    static const char *const op[] = {"PLAN_CUDA_NONE", "PLAN_CUDA_LAUNCH",
                                     "PLAN_CUDA_MANY", "PLAN_CUDA_GEMM",
                                     "PLAN_CUDA_COPY"};
    sb_puts(sb, "\n/* op, kernel, kernel2, count, fused, operand, out, "
                "out_dtype, scratch */\n"
                "static const PlanCudaStep cuda_launches[] = {\n");
    for (int i = 0; i < c->steps.len; i++) {
        const PlanCudaStep *s = &c->steps.data[i];
        sb_printf(sb, "    {%s, %u, %u, %u, %u, %u, %u, %u, %llu},\n",
                  op[s->op], s->kernel, s->kernel2, s->count, s->fused,
                  s->operand, s->out, s->out_dtype,
                  (unsigned long long)s->scratch);
    }
    sb_puts(sb, "    {0}};\n");
}

void put_cuda_tables(StrBuf *sb, const CudaSource *c, int toolkit) {
    put_kernels(sb, c);
    put_steps(sb, c);
    sb_puts(sb, "\nstatic const char *const cuda_archs[] = {");
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

static const CudaUsage *usage_of(const CudaSource *c, const char *kernel,
                                 const char *arch) {
    for (int i = 0; i < c->build.usage.len; i++) {
        const CudaUsage *u = &c->build.usage.data[i];
        if (!strcmp(u->kernel, kernel) && !strcmp(u->arch, arch)) return u;
    }
    return NULL;
}

static void put_usage(StrBuf *sb, bool json, const CudaUsage *u, bool first) {
    if (json)
        sb_printf(sb,
                  "%s\"%s\":{\"registers\":%d,\"spill_stores\":%d,"
                  "\"spill_loads\":%d,\"shared\":%d,\"stack\":%d}",
                  first ? "" : ",", u->arch, u->registers, u->spill_stores,
                  u->spill_loads, u->shared, u->stack);
    else
        sb_printf(sb, "; %s: %d registers, %d bytes spilled, %d shared",
                  u->arch, u->registers, u->spill_stores, u->shared);
}

static int64_t blocks_of(const PlanCudaKernel *k, int64_t n) {
    return k->blocks ? k->blocks : (n - 1) / k->per_block + 1;
}

/* The blocks of a launch of many steps depend on all of them. */
static void put_kernel(StrBuf *sb, bool json, const CudaSource *c, int number,
                       int64_t n, bool many) {
    const PlanCudaKernel *k = &c->kernels.data[number - 1];
    long long blocks = (long long)blocks_of(k, n);
    int shown = 0;
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
    for (int i = 0; i < c->archs.len; i++) {
        const CudaUsage *u = usage_of(c, k->name, c->archs.data[i]);
        if (u) put_usage(sb, json, u, !shown++);
    }
    if (json) sb_puts(sb, "}}");
}

static bool is_part(const CudaSource *c, int step) {
    if (c->steps.data[step].op != PLAN_CUDA_NONE) return false;
    for (int i = step - 1; i >= 0; i--)
        if (c->steps.data[i].op != PLAN_CUDA_NONE)
            return i + (int)c->steps.data[i].count > step;
    return false;
}

static void put_json(StrBuf *sb, const CudaSource *c, int step, int64_t n) {
    const PlanCudaStep *s = &c->steps.data[step];
    sb_printf(sb, "{\"op\":\"%s\"", is_part(c, step) ? "part" : op_text[s->op]);
    if (s->op == PLAN_CUDA_MANY) sb_printf(sb, ",\"count\":%u", s->count);
    if (s->op == PLAN_CUDA_GEMM)
        sb_printf(sb, ",\"fused\":\"%s\"", fused_text[s->fused]);
    sb_printf(sb, ",\"scratch\":%llu,\"kernels\":[",
              (unsigned long long)s->scratch);
    if (s->kernel)
        put_kernel(sb, true, c, (int)s->kernel, n, s->op == PLAN_CUDA_MANY);
    if (s->kernel2) {
        sb_puts(sb, ",");
        put_kernel(sb, true, c, (int)s->kernel2, n, false);
    }
    sb_puts(sb, "]}");
}

static void put_text(StrBuf *sb, const CudaSource *c, int step, int64_t n) {
    const PlanCudaStep *s = &c->steps.data[step];
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
    if (s->kernel)
        put_kernel(sb, false, c, (int)s->kernel, n, s->op == PLAN_CUDA_MANY);
    if (!s->kernel2) return;
    sb_puts(sb, " | ");
    put_kernel(sb, false, c, (int)s->kernel2, n, false);
}

void put_cuda_note(StrBuf *sb, bool json, const CudaSource *c, int step,
                   int64_t n) {
    if (json)
        put_json(sb, c, step, n);
    else
        put_text(sb, c, step, n);
}
