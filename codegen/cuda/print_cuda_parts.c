/* SPDX-License-Identifier: Apache-2.0 */
/* print_cuda_parts.c: what all files print_cuda*.c call: launch shapes,
   parameters, heads, functions that fold. */
#include "codegen/cuda/print_cuda.h"

#include <stdio.h>
#include <string.h>

/* ---- launch shapes ------------------------------------------------------- */

CudaShape cuda_shape(const Kernel *k) {
    const KLoop *block = kernel_loop(k, LOOP_BLOCK, LOOP_ANY);
    const KLoop *thread = kernel_loop(k, LOOP_THREAD, LOOP_ANY);
    const KLoop *lanes = kernel_loop(k, LOOP_LANES, LOOP_ANY);
    int64_t threads = thread ? loop_steps(thread) : 1;
    if (lanes) threads *= lanes->step;
    if (kernel_any_length(k))
        return (CudaShape){(int)threads, 0, block->step, 0};
    int64_t blocks = kernel_units(k, 0);
    int64_t sums = 4 * cuda_sum_columns(k) * kernel_column_sums(k);
    if (sums) sums *= threads / lanes->step;
    sums += cuda_tiles_bytes(k);
    return (CudaShape){(int)threads, blocks ? blocks : 1, 0,
                       (uint32_t)(cuda_shared(k, 0) + sums)};
}

CudaShape cuda_finish_shape(const Kernel *k) {
    enum { WARP = 32, SLICES = 32 }; /* true: the launch has few blocks */
    int64_t blocks = kernel_column_sums(k) * ((kernel_cols(k) - 1) / WARP + 1);
    return (CudaShape){SLICES * WARP, blocks, 0, 0};
}

uint64_t cuda_scratch(const Kernel *k) {
    if (!kernel_column_sums(k)) return 0;
    return (uint64_t)(4 * cuda_shape(k).blocks * kernel_column_sums(k) *
                      kernel_cols(k));
}

/* ---- dims ---------------------------------------------------------------- */

void cp_mark_used(const KInst *in, bool *used) {
    for (int d = 0; d < MAX_RANK; d++) used[d] |= in->at.k[d] != 0;
}

bool cp_any_used(const KPrint *p, const int *dim, int n) {
    for (int j = 0; j < n; j++)
        if (p->used[dim[j]]) return true;
    return false;
}

const char *cp_unsigned(const KPrint *p) {
    return p->wide ? "uint64_t" : "unsigned";
}

/* ---- parameters and heads ------------------------------------------------ */

void print_cuda_guard(bool guarded, StrBuf *sb) {
    if (guarded)
        sb_puts(sb, ",\n    const unsigned char *when, unsigned unless)\n{\n"
                    "    if (when && (*when != 0) == unless) return;\n");
    else
        sb_puts(sb, ")\n{\n");
}

void cp_item(CudaList *l, const char *fmt, ...) {
    char item[96];
    size_t at = l->sb->len;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(item, sizeof item, fmt, ap);
    va_end(ap);
    if (l->begun) sb_puts(l->sb, ",");
    while (at > 0 && l->sb->data[at - 1] != '\n') at--;
    if (l->sb->len - at + strlen(item) > 76)
        sb_printf(l->sb, "\n%*s", l->indent, "");
    else if (l->begun)
        sb_puts(l->sb, " ");
    sb_puts(l->sb, item);
    l->begun = true;
}

const char *cp_type(const Kernel *k, int b) {
    return dtype_info[k->bufs.data[b].dtype].c;
}

void cp_buffers(const Kernel *k, CudaList *l) {
    for (int b = 0; b < k->bufs.len; b++)
        cp_item(l, "%s%s *%sb%d", k->bufs.data[b].written ? "" : "const ",
                cp_type(k, b), k->bufs.data[b].apart ? "__restrict__ " : "", b);
}

CudaList cp_head(KPrint *p, const char *suffix, int threads) {
    sb_printf(p->sb,
              "extern \"C\" __global__ void __launch_bounds__(%d)\nk%d%s(",
              threads, p->k->index, suffix);
    return (CudaList){.sb = p->sb, .indent = 4};
}

CudaList cp_device(KPrint *p, const char *name) {
    CudaList l = {.sb = p->sb, .indent = 4};
    sb_printf(p->sb, "static __device__ __forceinline__ void\nk%d%s(",
              p->k->index, name);
    cp_buffers(p->k, &l);
    return l;
}

void cp_fold_function(KPrint *p, int id) {
    const KInst *r = kinst_at(p->k, id);
    const char *type = ktype_c[r->compute];
    OpFold kind = r->compute == KT_F32 ? op_info[r->code].fold : FOLD_NONE;
    kp_text(p, "const auto f%d = [](%s a, %s b) -> %s { return ", id, type,
            type, type);
    if (kind == FOLD_MAX || kind == FOLD_MIN)
        sb_puts(p->sb, kind == FOLD_MAX ? "larger(a, b)" : "smaller(a, b)");
    else
        sb_put_fold(p->sb, r->code, r->compute, "a", "b");
    sb_puts(p->sb, "; };\n");
}
