/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_lib_launch.c: the struct of a hand-written kernel, and its launches. */
#include "codegen/cuda/cuda_lib.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

void cl_put_number(LibPrint *p, const char *name, int64_t value) {
    sb_printf(p->sb, "    static constexpr long long %s = %" PRId64 ";\n", name,
              value);
}

/* All parameters but those for each dim of a tensor. */
static void put_params(LibPrint *p) {
    const int64_t *par = p->s->pars;
    for (uint32_t i = 0; i < p->lib->nfield; i++) {
        const LibField *f = &p->lib->fields[i];
        if (f->type)
            sb_printf(p->sb, "    typedef %s %s;\n", dtype_info[*par].cuda,
                      f->type);
        if (!f->type && f->n == 1) cl_put_number(p, f->name, *par);
        if (f->n == 3)
            sb_printf(p->sb,
                      "    static constexpr long long %s0 = %" PRId64
                      ", %s1 = %" PRId64 ", %s2 = %" PRId64 ";\n",
                      f->name, par[0], f->name, par[1], f->name, par[2]);
        par += f->n;
    }
}
void cl_begin(LibPrint *p, const Shape *shape, int n) {
    sb_printf(p->sb, "/* %s", p->lib->name);
    for (const Shape *s = shape; s < shape + n; s++) {
        sb_printf(p->sb, "%c%s[", s == shape ? ' ' : ',',
                  dtype_info[s->dtype].text);
        for (int i = 0; i < s->n; i++)
            sb_printf(p->sb, "%s%" PRId64, i ? "," : "", s->dim[i]);
        for (int i = 0; s->plane && i < 3; i++)
            if (i == 2 || s->plane[i] != 1 || (i == 1 && s->plane[0] != 1))
                sb_printf(p->sb, ",%" PRId64, s->plane[i]);
        sb_puts(p->sb, "]");
    }
    sb_printf(p->sb, " */\nstruct L%d {\n", p->number);
    put_params(p);
}

/* ---- the kernels --------------------------------------------------------- */

void cl_kernel_for(LibPrint *p, bool second, int threads, int resident,
                   int64_t blocks) {
    CudaShape *l = second ? &p->out->second : &p->out->first;
    l->threads = threads;
    l->blocks = blocks;
    sb_printf(
        p->sb,
        "%sextern \"C\" __global__ void __launch_bounds__(%d, %d)\nl%d%s(",
        second ? "\n" : "};\n\n", threads, resident, p->number,
        second ? "_2" : "");
}

void cl_kernel(LibPrint *p, bool second, int threads, int64_t blocks) {
    cl_kernel_for(p, second, threads, 1, blocks);
}

void cl_kernel_each(LibPrint *p, bool second, int64_t n) {
    cl_kernel(p, second, EACH_THREADS, up_div(n, EACH_THREADS));
}

void cl_put_operands(LibPrint *p, const char *more) {
    const char *comma = "";
    for (uint32_t i = 0; i < p->lib->noperand; i++, comma = ", ") {
        const LibOperand *o = &p->lib->operands[i];
        sb_puts(p->sb, comma);
        if (o->role == LIB_ROLE_RESULT && p->s->epilogue) {
            sb_puts(p->sb, "void *");
            if (p->s->epilogue->bufs.len > 0) sb_puts(p->sb, ", ");
            print_cuda_params(p->s->epilogue, p->sb);
            continue;
        }
        bool writes = lib_writes(p->lib, (int)i);
        sb_printf(p->sb, "%s%s *%s%s", writes ? "" : "const ",
                  dtype_info[p->s->pars[o->dtype_at]].cuda,
                  writes ? "" : "__restrict__ ", o->name);
    }
    sb_puts(p->sb, more);
    print_cuda_guard(p->guarded, p->sb);
}

void cl_put_body(LibPrint *p, const char *suffix, const char *more,
                 const char *last) {
    const Kernel *e = p->s->epilogue;
    cl_put_operands(p, more);
    sb_printf(p->sb, "    %s%s<L%d>(", p->lib->name, suffix, p->number);
    for (uint32_t i = 0; i < p->lib->noperand; i++) {
        const LibOperand *o = &p->lib->operands[i];
        sb_puts(p->sb, i ? ", " : "");
        if (o->role != LIB_ROLE_RESULT) {
            sb_puts(p->sb, o->name);
        } else if (e) {
            sb_printf(p->sb, "E%d", kernel_index(e));
            print_cuda_initializer(e, p->sb);
        } else {
            bool product = p->s->lib == PLAN_LIB_GEMM ||
                           p->s->lib == PLAN_LIB_GEMM_QUANTIZED;
            sb_printf(p->sb, "%s<L%d>{%s}", product ? "StoreGemm" : "StoreConv",
                      p->number, o->name);
        }
    }
    sb_printf(p->sb, "%s);\n}\n", last);
}
