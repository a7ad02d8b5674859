/* print_cuda_flat.c: kernels of form flat as CUDA C++.

   One thread computes N neighbours, 16 bytes of the widest operand:
     k<i>_at<N>  the computation; loads and stores are vectors
     k<i>_block  one block's share: the last n % N elements, k<i>_at<1>, go to
                 as many threads of the last block
     k<i>        one tensor
     k<i>_many   a table of tensors (PLAN_MANY)                              */
#include "codegen/cuda/print_cuda.h"

#include <stdio.h>

/* "static .. k<i><name>(buffers..": up to further parameters. */
static List begin_device(KPrint *p, const char *name) {
    List l = {.sb = p->sb, .indent = 4};
    sb_printf(p->sb, "static __device__ __forceinline__ void\nk%d%s(",
              p->k->index, name);
    cu_params(p->k, &l);
    return l;
}

/* "k<i><name>(buffers..": up to further arguments. */
static List begin_call(KPrint *p, const char *name, int n) {
    List l = {.sb = p->sb, .indent = 4 * (p->depth + 1)};
    kp_text(p, "k%d%s", p->k->index, name);
    if (n) sb_printf(p->sb, "<%d>", n);
    sb_puts(p->sb, "(");
    for (int b = 0; b < p->k->bufs.len; b++) cu_item(&l, "b%d", b);
    return l;
}

/* ---- the computation ----------------------------------------------------- */

static void put_at(KPrint *p, int n) {
    const Kernel *k = p->k;
    bool index = false; /* it is mentioned */
    char place[32];
    sb_puts(p->sb, "template <int N>\n");
    List l = begin_device(p, "_at");
    cu_item(&l, "int64_t e");
    sb_puts(p->sb, ")\n{\n");
    kp_row_insts(p, 0);
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        index |= in->at.k[0] && !cuda_packed(in, n);
        if (!cuda_packed(in, n)) continue;
        if (in->op == K_STORE) {
            kp_line(p, "Pack<N, %s> p%d;", cu_buffer_type(k, in->buf), id);
            continue;
        }
        kp_text(p, "const Pack<N, %s> p%d = pack_load<N>(b%d + e",
                cu_buffer_type(k, in->buf), id, in->buf);
        if (in->at.c) sb_printf(p->sb, " + " I64, in->at.c);
        sb_puts(p->sb, ");\n");
    }
    kp_line(p, "UNROLL");
    kp_enter(p, "for (int j = 0; j < N; j++)");
    if (index) kp_line(p, "const int64_t i0 = e + j;");
    for (int store = 0; store < 2; store++)
        for (int id = 1; id < k->insts.len; id++) {
            const KInst *in = kinst_at(k, id);
            const char *at = cuda_packed(in, n) ? place : NULL;
            snprintf(place, sizeof place, "p%d.v[j]", id);
            if (store && in->op == K_STORE) kp_store(p, id, at);
            if (!store && in->op != K_STORE && in->full) kp_inst(p, id, at);
        }
    kp_leave(p);
    for (int id = 1; id < k->insts.len; id++)
        if (kinst_at(k, id)->op == K_STORE && cuda_packed(kinst_at(k, id), n))
            kp_line(p, "pack_store(b%d + e, p%d);", kinst_at(k, id)->buf, id);
    sb_puts(p->sb, "}\n\n");
}

/* ---- kernels ------------------------------------------------------------- */

static void put_at_call(KPrint *p, int n, const char *e) {
    List l = begin_call(p, "_at", n);
    cu_item(&l, "%s", e);
    sb_puts(p->sb, ");\n");
}

void cu_put_flat(KPrint *p) {
    int n = (int)kernel_loop(p->k, LOOP_UNROLLED, LOOP_ANY)->extent;
    int threads = cuda_shape(p->k).threads;
    p->depth = 1;
    put_at(p, n);
    List block = begin_device(p, "_block");
    cu_item(&block, "int64_t n");
    cu_item(&block, "int64_t block");
    sb_puts(p->sb, ")\n{\n");
    kp_line(p, "const int64_t e = (block * %d + threadIdx.x) * %d;", threads,
            n);
    kp_enter(p, "if (e + %d <= n)", n);
    put_at_call(p, n, "e");
    kp_leave(p);
    if (n > 1) {
        kp_line(p, "const int64_t tail = n %% %d;", n);
        kp_enter(p, "if (n / %d == block && threadIdx.x < tail)", threads * n);
        put_at_call(p, 1, "n - tail + threadIdx.x");
        kp_leave(p);
    }
    sb_puts(p->sb, "}\n\n");
    List head = cu_head(p, "");
    cu_params(p->k, &head);
    cu_item(&head, "long long n");
    sb_puts(p->sb, ")\n{\n");
    List call = begin_call(p, "_block", 0);
    cu_item(&call, "n");
    cu_item(&call, "blockIdx.x");
    sb_puts(p->sb, ");\n}\n\n");
}

void print_cuda_many(const Kernel *k, StrBuf *sb) {
    KPrint p = cu_begin(k, sb);
    List l = {.sb = sb, .indent = 8};
    ASSERT(k->form == KF_FLAT);
    cu_head(&p, "_many");
    sb_printf(sb,
              "const unsigned long long *table, unsigned count)\n{\n"
              "    const unsigned long long *row = many_row(table, count, "
              "%d);\n    k%d_block(",
              2 + k->bufs.len, k->index);
    for (int b = 0; b < k->bufs.len; b++)
        cu_item(&l, "(%s%s *)row[%d]", k->bufs.data[b].written ? "" : "const ",
                cu_buffer_type(k, b), 2 + b);
    cu_item(&l, "(int64_t)row[1]");
    cu_item(&l, "(int64_t)(blockIdx.x - row[0])");
    sb_puts(sb, ");\n}\n\n");
    kp_end(&p);
}
