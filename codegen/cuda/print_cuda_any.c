/* SPDX-License-Identifier: Apache-2.0 */
/* print_cuda_any.c: kernels of any length, which is a parameter: forms flat and
   fold (print_cuda.h).                                                      */
#include "codegen/cuda/print_cuda.h"

#include <stdio.h>

/* ---- form flat ----------------------------------------------------------- */

/* Prints "k<i><name>(buffers..", without the further arguments. */
static CudaList begin_call(KPrint *p, const char *name, int n) {
    CudaList l = {.sb = p->sb, .indent = 4 * (p->depth + 1)};
    kp_text(p, "k%d%s", p->k->index, name);
    if (n) sb_printf(p->sb, "<%d>", n);
    sb_puts(p->sb, "(");
    for (int b = 0; b < p->k->bufs.len; b++) cp_item(&l, "b%d", b);
    return l;
}

/* Prints k<i><name><n>(buffers.., last); */
static void put_call(KPrint *p, const char *name, int n, const char *last) {
    CudaList l = begin_call(p, name, n);
    cp_item(&l, "%s", last);
    sb_puts(p->sb, ");\n");
}

static void put_at(KPrint *p, int n) {
    const Kernel *k = p->k;
    bool index = false; /* the index is mentioned */
    char place[32];
    sb_puts(p->sb, "template <int N>\n");
    CudaList l = cp_device(p, "_at");
    cp_item(&l, "int64_t e");
    sb_puts(p->sb, ")\n{\n");
    kp_row_insts(p, 0);
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        index |= in->at.k[0] && !cuda_packed(k, in, n);
        if (!cuda_packed(k, in, n)) continue;
        if (in->op == K_STORE) {
            kp_line(p, "Pack<N, %s> p%d;", cp_type(k, in->buf), id);
            continue;
        }
        kp_text(p, "const Pack<N, %s> p%d = pack_load<N>(b%d + e",
                cp_type(k, in->buf), id, in->buf);
        if (in->at.c) sb_printf(p->sb, " + " I64, in->at.c);
        sb_puts(p->sb, ");\n");
    }
    kp_line(p, "UNROLL");
    kp_enter(p, "for (int j = 0; j < N; j++)");
    if (index) kp_line(p, "const int64_t i0 = e + j;");
    for (int store = 0; store < 2; store++)
        for (int id = 1; id < k->insts.len; id++) {
            const KInst *in = kinst_at(k, id);
            const char *at = cuda_packed(k, in, n) ? place : NULL;
            snprintf(place, sizeof place, "p%d.v[j]", id);
            if (store && in->op == K_STORE) kp_store(p, id, at);
            if (!store && in->op != K_STORE && in->full) kp_inst(p, id, at);
        }
    kp_leave(p);
    for (int id = 1; id < k->insts.len; id++)
        if (kinst_at(k, id)->op == K_STORE &&
            cuda_packed(k, kinst_at(k, id), n))
            kp_line(p, "pack_store(b%d + e, p%d);", kinst_at(k, id)->buf, id);
    sb_puts(p->sb, "}\n\n");
}

void cp_flat_block(KPrint *p) {
    int n = (int)kernel_loop(p->k, LOOP_UNROLLED, LOOP_ANY)->extent;
    int threads = cuda_shape(p->k).threads;
    p->depth = 1;
    put_at(p, n);
    CudaList block = cp_device(p, "_block");
    cp_item(&block, "int64_t n");
    cp_item(&block, "int64_t block");
    sb_puts(p->sb, ")\n{\n");
    kp_line(p, "const int64_t e = (block * %d + threadIdx.x) * %d;", threads,
            n);
    kp_enter(p, "if (e + %d <= n)", n);
    put_call(p, "_at", n, "e");
    kp_leave(p);
    if (n > 1) {
        kp_line(p, "const int64_t tail = n %% %d;", n);
        kp_enter(p, "if (n / %d == block && threadIdx.x < tail)", threads * n);
        put_call(p, "_at", 1, "n - tail + threadIdx.x");
        kp_leave(p);
    }
    sb_puts(p->sb, "}\n\n");
}

void cp_flat(KPrint *p, bool guarded) {
    p->depth = 1;
    CudaList head = cp_head(p, "", cuda_shape(p->k).threads);
    cp_buffers(p->k, &head);
    cp_item(&head, "long long n");
    print_cuda_guard(guarded, p->sb);
    CudaList call = begin_call(p, "_block", 0);
    cp_item(&call, "n");
    cp_item(&call, "blockIdx.x");
    sb_puts(p->sb, ");\n}\n\n");
}

/* ---- form fold ----------------------------------------------------------- */

/* The vectors of a thread are folded to v<id>. */
static void put_row_vectors(KPrint *p, const KSweep *s, int n, int threads) {
    const Kernel *k = p->k;
    bool *need = kernel_need(k, s, NULL, p->arena);
    char place[32];
    kp_enter(p, "for (unsigned c = threadIdx.x * N; c < n; c += %d * N)",
             threads);
    for (int id = 1; id < k->insts.len; id++)
        if (need[id] && cuda_packed(k, kinst_at(k, id), n))
            kp_line(p, "const Pack<N, %s> p%d = pack_load<N>(b%d + c);",
                    cp_type(k, kinst_at(k, id)->buf), id, kinst_at(k, id)->buf);
    kp_line(p, "UNROLL");
    kp_enter(p, "for (int u = 0; u < N; u++)");
    for (int id = 1; id < k->insts.len; id++) {
        snprintf(place, sizeof place, "p%d.v[u]", id);
        if (need[id])
            kp_inst(p, id, cuda_packed(k, kinst_at(k, id), n) ? place : NULL);
    }
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        kp_text(p, "v%d = f%d(v%d, ", id, id, id);
        sb_put_operand(p->sb, k, kinst_at(k, id)->in[0]);
        sb_puts(p->sb, ");\n");
    }
    kp_leave(p);
    kp_leave(p);
}

static void put_any_row(KPrint *p) {
    const KSweep *s = p->sweeps.data;
    int n = cuda_pack(p->k), threads = cuda_shape(p->k).threads;
    sb_puts(p->sb, "template <int N>\n");
    CudaList l = cp_device(p, "_row");
    cp_item(&l, "unsigned n");
    sb_puts(p->sb, ")\n{\n");
    p->depth = 1;
    kp_row_insts(p, 0);
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        const KInst *r = kinst_at(p->k, id);
        cp_fold_function(p, id);
        kp_line(p, "%s v%d = %s;", ktype_c[r->compute], id,
                fold_start(r->code, r->compute));
    }
    put_row_vectors(p, s, n, threads);
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        kp_line(p, "v%d = fold_block<%d>(v%d, f%d);", id, threads, id, id);
    }
    kp_line(p, "if (threadIdx.x != 0) return;");
    for (int depth = 1; depth <= kp_last_depth(p); depth++)
        kp_row_insts(p, depth);
    kp_stores(p, false);
    sb_puts(p->sb, "}\n\n");
}

/* Row r of the tensor whose operands' addresses are at `ref`; the row has n
   columns. */
static void put_rows(KPrint *p) {
    static const char *const walk[] = {
        [WALK_NOT] = "", [WALK_ONE] = " + r", [WALK_ROW] = " + r * n"};
    const Kernel *k = p->k;
    int n = cuda_pack(k);
    sb_printf(p->sb,
              "static __device__ __forceinline__ void\n"
              "k%d_rows(const unsigned long long *ref, unsigned n, unsigned "
              "long long r)\n{\n",
              k->index);
    p->depth = 1;
    for (int b = 0; b < k->bufs.len; b++) {
        const KBuf *x = &k->bufs.data[b];
        const char *read = x->written ? "" : "const ";
        kp_line(p, "%s%s *const b%d = global_at<%s%s>(ref[%d])%s;", read,
                cp_type(k, b), b, read, cp_type(k, b), b, walk[x->walk]);
    }
    bool moves = false;
    for (int b = 0; b < k->bufs.len; b++)
        moves |= k->bufs.data[b].walk != WALK_NOT;
    if (!moves) kp_line(p, "(void)r;");
    if (n > 1) {
        kp_enter(p, "if (n %% %d == 0)", n);
        put_call(p, "_row", n, "n");
        kp_line(p, "return;");
        kp_leave(p);
    }
    put_call(p, "_row", 1, "n");
    sb_puts(p->sb, "}\n\n");
}

void cp_fold(KPrint *p) {
    put_any_row(p);
    put_rows(p);
}
