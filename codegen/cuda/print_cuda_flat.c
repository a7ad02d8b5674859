/* print_cuda_flat.c: kernels of form flat as CUDA C++.

   One thread computes N neighbours, 16 bytes of the widest operand:
     k<i>_at<N>  the computation; loads and stores are vectors
     k<i>_block  one block's share: the last n % N elements, k<i>_at<1>, go to
                 as many threads of the last block
     k<i>        one tensor
     k<i>_many   a table of tensors (PLAN_CUDA_MANY)                         */
#include "codegen/cuda/print_cuda.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- the computation ----------------------------------------------------- */

static void put_packs(KPrint *p, int n) {
    const Kernel *k = p->k;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        if (!cuda_packed(in, n)) continue;
        if (in->op == K_STORE) {
            kp_line(p, "Pack<N, %s> p%d;", cu_buffer_type(k, in->buf), id);
            continue;
        }
        sb_printf(p->sb, "    const Pack<N, %s> p%d = pack_load<N>(b%d + e",
                  cu_buffer_type(k, in->buf), id, in->buf);
        if (in->at.c) sb_printf(p->sb, " + %" PRId64, in->at.c);
        sb_puts(p->sb, ");\n");
    }
}

static bool flat_mentions_index(const Kernel *k, int n) {
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        if (in->at.k[0] && !cuda_packed(in, n)) return true;
    }
    return false;
}

static void put_flat_element(KPrint *p, int n) {
    char place[32];
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        snprintf(place, sizeof place, "p%d.v[j]", id);
        if (!in->full || in->op == K_STORE) continue;
        kp_inst(p, id, cuda_packed(in, n) ? place : NULL);
    }
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        snprintf(place, sizeof place, "p%d.v[j]", id);
        if (in->op != K_STORE) continue;
        kp_text(p, "%s", "");
        sb_put_store(p->sb, p->k, in, cuda_packed(in, n) ? place : NULL);
    }
}

static void put_flat_at(KPrint *p, int n) {
    List l = {.sb = p->sb, .indent = 4};
    sb_printf(p->sb,
              "template <int N>\nstatic __device__ __forceinline__ void"
              "\nk%d_at(",
              p->k->index);
    cu_params(p->k, &l);
    cu_item(&l, "int64_t e");
    sb_puts(p->sb, ")\n{\n");
    p->depth = 1;
    kp_row_insts(p, 0);
    put_packs(p, n);
    kp_line(p, "UNROLL");
    kp_enter(p, "for (int j = 0; j < N; j++)");
    if (flat_mentions_index(p->k, n)) kp_line(p, "const int64_t i0 = e + j;");
    put_flat_element(p, n);
    kp_leave(p);
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (in->op == K_STORE && cuda_packed(in, n))
            kp_line(p, "pack_store(b%d + e, p%d);", in->buf, id);
    }
    sb_puts(p->sb, "}\n\n");
}

/* ---- kernels ------------------------------------------------------------- */

static void put_at_call(KPrint *p, int n, const char *e) {
    List l = {.sb = p->sb, .indent = 4 * (p->depth + 1)};
    kp_text(p, "k%d_at<%d>(", p->k->index, n);
    cu_names(p->k, &l);
    cu_item(&l, "%s", e);
    sb_puts(p->sb, ");\n");
}

static void put_flat_block(KPrint *p, int n) {
    List l = {.sb = p->sb, .indent = 4};
    sb_printf(p->sb, "static __device__ __forceinline__ void\nk%d_block(",
              p->k->index);
    cu_params(p->k, &l);
    cu_item(&l, "int64_t n");
    cu_item(&l, "int64_t block");
    sb_puts(p->sb, ")\n{\n");
    p->depth = 1;
    kp_line(p, "const int64_t e = (block * %d + threadIdx.x) * %d;",
            cuda_shape(p->k).threads, n);
    kp_enter(p, "if (e + %d <= n)", n);
    put_at_call(p, n, "e");
    kp_leave(p);
    if (n > 1) {
        kp_line(p, "const int64_t tail = n %% %d;", n);
        kp_enter(p, "if (n / %d == block && threadIdx.x < tail)",
                 cuda_shape(p->k).threads * n);
        put_at_call(p, 1, "n - tail + threadIdx.x");
        kp_leave(p);
    }
    sb_puts(p->sb, "}\n\n");
}

void cu_put_flat(KPrint *p) {
    char name[32];
    List head = {.sb = p->sb, .indent = 4}, call = head;
    int n = (int)kernel_loop(p->k, LOOP_UNROLLED, LOOP_ANY)->extent;
    put_flat_at(p, n);
    put_flat_block(p, n);
    snprintf(name, sizeof name, "k%d", p->k->index);
    cu_head(p, name);
    cu_params(p->k, &head);
    cu_item(&head, "long long n");
    sb_printf(p->sb, ")\n{\n    k%d_block(", p->k->index);
    call.indent = 8;
    cu_names(p->k, &call);
    cu_item(&call, "n");
    cu_item(&call, "blockIdx.x");
    sb_puts(p->sb, ");\n}\n\n");
}

void print_cuda_many(const Kernel *k, StrBuf *sb) {
    KPrint p = cu_begin(k, sb);
    char name[32];
    List l = {.sb = sb, .indent = 8};
    ASSERT(k->form == KF_FLAT);
    snprintf(name, sizeof name, "k%d_many", k->index);
    cu_head(&p, name);
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
