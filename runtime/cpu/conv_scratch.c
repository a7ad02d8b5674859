/* SPDX-License-Identifier: Apache-2.0 */
/* conv_scratch.c: scratch memory of the convolutions, for each method:
   conv.h, chlast.h and wino.h. */
#include "runtime/cpu/wino.h"

enum {
    CONV_POOLED =
        1 << 16, /* floats that a thread computes before they are pooled */
    CONV_GROUP = 1 << 22, /* most bytes of a thread that computes alone */
    CONV_EVEN = 8,        /* such a thread has at most 9/8 of an even share */
    CONV_KEPT = 1024 /* results per channel: above this, packing the weights
                        takes a few percent */
};

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

size_t cpu_conv_wgrad_scratch(const LibConv *c, int threads) {
    size_t most = 0;
    /* It must also suffice for a smaller pool, and for every kind of tiles. */
    for (int n = 1; n == 1 || n <= threads; n++)
        for (int kind = TILE_WIDENED; kind <= TILE_AMX; kind++) {
            ChlastPlan last;
            WinoPlan wino;
            if (chlast_wgrad_plan(c, kind, n, &last))
                most = larger(most, chlast_bytes(&last, n));
            if (wino_wgrad_plan(c, kind, &wino))
                most = larger(most, wino_bytes(&wino, n));
        }
    if (most) return most;
    WgradPlan w;
    conv_wgrad_plan(c, &w);
    return w.off + w.partial +
           (size_t)(threads < 1 ? 1 : threads) * (w.x + w.dy + w.acc);
}

/* ---- scratch of the forward convolution and of dgrad --------------------- */

static size_t conv_scratch(const LibConv *c, int dgrad, int threads) {
    LibGemm g;
    int product = conv_product(c, dgrad, &g);
    size_t most = product ? cpu_gemm_scratch(&g, threads) : 0;
    /* It must also suffice for a smaller pool, and for every kind of tiles. */
    for (int n = 1; n == 1 || n <= threads; n++)
        for (int kind = TILE_WIDENED; kind <= TILE_AMX; kind++) {
            ConvPlan p;
            conv_plan(c, dgrad, kind != TILE_WIDENED, n, &p);
            size_t need = p.packed + p.off + (size_t)n * (p.src + p.acc);
            ChlastPlan last;
            WinoPlan wino;
            if (wino_plan(c, dgrad, kind, n, &wino))
                need = wino_bytes(&wino, n);
            else if (chlast_plan(c, dgrad, kind, n, &last))
                need = chlast_bytes(&last, n);
            if (need > most) most = need;
        }
    return most;
}

size_t cpu_conv_fwd_scratch(const LibConv *c, int threads) {
    return conv_scratch(c, 0, threads);
}

size_t cpu_conv_sums_scratch(const LibConvSums *c, int threads) {
    return conv_scratch(conv_of_sums(c), 0, threads);
}

/* The largest size over all kinds of tiles. */
size_t conv_packed(const LibConv *c, int threads) {
    size_t most = 0;
    for (int kind = TILE_WIDENED; kind <= TILE_AMX; kind++) {
        ConvPlan p;
        ChlastPlan last;
        conv_plan(c, 0, kind != TILE_WIDENED, threads, &p);
        size_t need = p.packed;
        WinoPlan wino;
        if (wino_plan(c, 0, kind, threads, &wino))
            need = wino.other;
        else if (chlast_plan(c, 0, kind, threads, &last))
            need = last.other;
        most = larger(most, need);
    }
    return most;
}

size_t cpu_conv_fwd_kept(const LibConv *c, int threads) {
    LibGemm g;
    if (conv_product(c, 0, &g)) return 0;
    if (c->n * c->out[0] * c->out[1] * c->out[2] > CONV_KEPT) return 0;
    return conv_packed(c, threads);
}

size_t cpu_conv_dgrad_scratch(const LibConv *c, int threads) {
    return conv_scratch(c, 1, threads);
}

size_t cpu_conv_dgrad_sums_scratch(const LibConvDgradSums *c, int threads) {
    return conv_dgrad_sums_wide(c) +
           conv_scratch(conv_of_dgrad_sums(c), 1, threads);
}

/* ---- fused pooling ------------------------------------------------------- */

int64_t conv_pool_images(const LibConv *c, const LibPool *p, int threads) {
    int64_t least = threads > 1 ? 2 * threads : 1;
    int64_t image = c->k * lib_volume(p->in);
    CONTRACT(threads > 0);
    int64_t images = image > 0 ? CONV_POOLED * threads / image : c->n;
    if (images < least) images = least;
    return images < c->n ? images : c->n;
}

size_t conv_pool_bytes(const LibConv *c, const LibPool *p, int threads) {
    int64_t n = conv_pool_images(c, p, threads) * c->k * lib_volume(p->in);
    return (size_t)round_up(n, BLOCK_LANES) * sizeof(float);
}

size_t conv_group_bytes(const LibConv *c, const LibPool *p) {
    return conv_pool_bytes(c, p, 1) + cpu_conv_fwd_scratch(c, 1);
}

int64_t conv_pool_group(const LibConv *c, const LibPool *p, int threads) {
    if (threads < 2 || c->n < threads || conv_group_bytes(c, p) > CONV_GROUP)
        return 0;
    int64_t most = conv_pool_images(c, p, 1), least = INT64_MAX, best = 0;
    for (int64_t n = most; 2 * n > most; n--) {
        int64_t busiest = ceil_div(ceil_div(c->n, n), threads) * n;
        if (busiest >= least) continue;
        least = busiest;
        best = n;
    }
    return least * threads * CONV_EVEN <= c->n * (CONV_EVEN + 1) ? best : 0;
}

/* A call may have fewer threads. */
size_t cpu_pool_scratch(const LibConv *c, const LibPool *p, int threads) {
    size_t most = conv_pool_bytes(c, p, threads), each = conv_group_bytes(c, p);
    for (int n = threads; n > 1; n--)
        if (conv_pool_group(c, p, n))
            return larger(most, conv_packed(c, 1) + (size_t)n * each);
    return most;
}
