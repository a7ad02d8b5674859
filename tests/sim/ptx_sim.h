/* SPDX-License-Identifier: Apache-2.0 */
/* ptx_sim.h: the functions of runtime/cuda/ptx.cuh for the simulator.

   The tensor-core product is a warp collective: lanes store their registers,
   and the last lane computes all outputs. Map of m16n8k16, g = lane / 4, t =
   lane % 4, two 16-bit values per register, the lower index in the low half:
     A0 (row g, k 2t)  A1 (g + 8, 2t)  A2 (g, 2t + 8)  A3 (g + 8, 2t + 8)
     B0 (k 2t, col g)  B1 (2t + 8, g)
     C0, C1 (row g, col 2t, 2t + 1)    C2, C3 (row g + 8)                    */
#ifndef AMPC_PTX_CUH
#define AMPC_PTX_CUH

struct SimMma {
    float *d;
    const uint32_t *a, *b;
};

SIM_INLINE float sim_bf16(uint32_t half) { return sim_bits<float>(half << 16); }

SIM_INLINE float sim_f16(uint32_t half) {
    float f = sim_bits<float>((half & 0x7fffu) << 13) * 0x1p112f;
    if ((half & 0x7c00u) == 0x7c00u) f = half & 0x3ffu ? NAN : INFINITY;
    return half & 0x8000u ? -f : f;
}

/* What tensor cores read of a register. */
SIM_INLINE float sim_tf32(uint32_t bits) {
    return sim_bits<float>(bits & ~UINT32_C(0x1fff));
}

typedef float SimRow __attribute__((vector_size(32))); /* 8 columns */

/* 16 x 8 sums of K products, each in order of k. */
template <int K>
__attribute__((no_sanitize("address", "undefined"))) static inline void
sim_product(SimRow *d, const float (*a)[K], const SimRow *b) {
    for (int i = 0; i < 16; i++) {
        SimRow sum = {};
        for (int k = 0; k < K; k++) sum += a[i][k] * b[k];
        d[i] = sum;
    }
}

SIM_INLINE void sim_add_product(void **request, const SimRow *d) {
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            ((const SimMma *)request[lane])->d[i] +=
                d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
}

template <typename ToFloat>
SIM_INLINE void sim_mma(void **request, ToFloat to_float) {
    float a[16][16];
    SimRow b[16], d[16];
    for (int lane = 0; lane < 32; lane++) {
        const SimMma *m = (const SimMma *)request[lane];
        int g = lane / 4, t = lane % 4;
        for (int r = 0; r < 4; r++)
            for (int h = 0; h < 2; h++)
                a[g + r % 2 * 8][2 * t + r / 2 * 8 + h] =
                    to_float(m->a[r] >> 16 * h & 0xffffu);
        for (int r = 0; r < 2; r++)
            for (int h = 0; h < 2; h++)
                b[2 * t + r * 8 + h][g] = to_float(m->b[r] >> 16 * h & 0xffffu);
    }
    sim_product(d, a, b);
    sim_add_product(request, d);
}

/* m16n8k8, one value per register:
     A0 (row g, k t)  A1 (g + 8, t)  A2 (g, t + 4)  A3 (g + 8, t + 4)
     B0 (k t, col g)  B1 (t + 4, g)                                          */
SIM_OUT void sim_do_mma_tf32(void **request, uint32_t) {
    float a[16][8];
    SimRow b[8], d[16];
    for (int lane = 0; lane < 32; lane++) {
        const SimMma *m = (const SimMma *)request[lane];
        int g = lane / 4, t = lane % 4;
        for (int r = 0; r < 4; r++)
            a[g + r % 2 * 8][t + r / 2 * 4] = sim_tf32(m->a[r]);
        for (int r = 0; r < 2; r++) b[t + r * 4][g] = sim_tf32(m->b[r]);
    }
    sim_product(d, a, b);
    sim_add_product(request, d);
}

/* m16n8k8, A0 and A1, B0. */
SIM_OUT void sim_do_mma_half(void **request, uint32_t) {
    float a[16][8];
    SimRow b[8], d[16];
    for (int lane = 0; lane < 32; lane++) {
        const SimMma *m = (const SimMma *)request[lane];
        int g = lane / 4, t = lane % 4;
        for (int h = 0; h < 2; h++) {
            a[g][2 * t + h] = sim_f16(m->a[0] >> 16 * h & 0xffffu);
            a[g + 8][2 * t + h] = sim_f16(m->a[1] >> 16 * h & 0xffffu);
            b[2 * t + h][g] = sim_f16(m->b[0] >> 16 * h & 0xffffu);
        }
    }
    sim_product(d, a, b);
    sim_add_product(request, d);
}

SIM_OUT void sim_do_mma_bf16(void **request, uint32_t) {
    sim_mma(request, [](uint32_t h) { return sim_bf16(h); });
}
SIM_OUT void sim_do_mma_f16(void **request, uint32_t) {
    sim_mma(request, [](uint32_t h) { return sim_f16(h); });
}

/* d += a b */
SIM_INLINE void ampc_mma_bf16_16816(float *d, const uint32_t *a,
                                    const uint32_t *b) {
    SimMma m = {d, a, b};
    sim_engine->warp(0xffffffffu, "mma.bf16", sim_do_mma_bf16, &m);
}
SIM_INLINE void ampc_mma_f16_16816(float *d, const uint32_t *a,
                                   const uint32_t *b) {
    SimMma m = {d, a, b};
    sim_engine->warp(0xffffffffu, "mma.f16", sim_do_mma_f16, &m);
}

SIM_INLINE void ampc_mma_f16_1688(float *d, const uint32_t *a, uint32_t b) {
    SimMma m = {d, a, &b};
    sim_engine->warp(0xffffffffu, "mma.f16.half", sim_do_mma_half, &m);
}

SIM_INLINE void ampc_mma_tf32_1688(float *d, const uint32_t *a,
                                   const uint32_t *b) {
    SimMma m = {d, a, b};
    sim_engine->warp(0xffffffffu, "mma.tf32", sim_do_mma_tf32, &m);
}

/* Nearest, ties away from zero; the lower bits are zeros. */
SIM_INLINE uint32_t ampc_tf32(float x) {
    uint32_t bits = sim_bits<uint32_t>(x);
    bool finite = (bits & 0x7f800000u) != 0x7f800000u;
    return (finite ? bits + 0x1000u : bits) & ~UINT32_C(0x1fff);
}

SIM_INLINE uint32_t ampc_bytes(uint32_t a, uint32_t b, uint32_t which) {
    uint64_t all = (uint64_t)b << 32 | a;
    uint32_t y = 0;
    for (int i = 0; i < 4; i++)
        y |= (uint32_t)(all >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
    return y;
}

SIM_INLINE uint32_t ampc_larger_bf16x2(uint32_t a, uint32_t b) {
    uint32_t y = 0;
    for (int i = 0; i < 32; i += 16) {
        uint32_t x = a >> i & 0x7fff, z = b >> i & 0x7fff;
        y |= (x > z ? x : z) << i;
    }
    return y;
}
SIM_INLINE uint32_t ampc_larger_f16x2(uint32_t a, uint32_t b) {
    return ampc_larger_bf16x2(a, b);
}

SIM_INLINE uint32_t ampc_times_bf16x2(uint32_t a, uint32_t b) {
    uint32_t y = 0;
    for (int i = 0; i < 32; i += 16) {
        float x = sim_bf16(a >> i & 0xffff) * sim_bf16(b >> i & 0xffff);
        y |= sim_bits<uint32_t>(x) >> 16 << i;
    }
    return y;
}

struct SimMatrix {
    uint32_t *r;
    const void *row;
};

SIM_INLINE void sim_shared_row(const void *p) {
    sim_aligned(p, 16);
    const char *c = (const char *)p, *d = (const char *)sim_now.dynamic;
    if ((c < __bss_start || c > _end - 16) &&
        (c < d || c + 16 > d + sim_now.dynamic_size))
        sim_engine->fault(700, "%p is not in shared memory", p);
}

typedef uint16_t SimMatrices[4][8][8];

SIM_INLINE void sim_matrices(void **request, SimMatrices &to) {
    for (int lane = 0; lane < 32; lane++) {
        const SimMatrix *m = (const SimMatrix *)request[lane];
        sim_shared_row(m->row);
        memcpy(to[lane / 8][lane % 8], m->row, 16);
    }
}

SIM_OUT void sim_do_ldmatrix(void **request, uint32_t) {
    SimMatrices x;
    sim_matrices(request, x);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            memcpy(&((SimMatrix *)request[lane])->r[i],
                   &x[i][lane / 4][lane % 4 * 2], 4);
}

SIM_OUT void sim_do_ldmatrix_trans(void **request, uint32_t) {
    SimMatrices x;
    sim_matrices(request, x);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            ((SimMatrix *)request[lane])->r[i] =
                x[i][lane % 4 * 2][lane / 4] |
                (uint32_t)x[i][lane % 4 * 2 + 1][lane / 4] << 16;
}

/* Four 8 x 8 matrices: lane l passes row l % 8 of matrix l / 8 and receives
   elements 2t, 2t + 1 of row g of each. */
SIM_INLINE void ampc_ldmatrix_x4(uint32_t *r, const void *row) {
    SimMatrix m = {r, row};
    sim_engine->warp(0xffffffffu, "ldmatrix", sim_do_ldmatrix, &m);
}
SIM_INLINE void ampc_ldmatrix_x4_trans(uint32_t *r, const void *row) {
    SimMatrix m = {r, row};
    sim_engine->warp(0xffffffffu, "ldmatrix", sim_do_ldmatrix_trans, &m);
}

/* A thread's copies in progress: they are done as late as allowed, when it
   waits, or when there are too many. */
struct SimAsync {
    uint64_t block;
    int n;
    struct {
        void *to;
        const void *from;
    } copy[64];
};

static SimAsync *sim_async SIM_DATA = nullptr;

__attribute__((destructor)) static void sim_async_free() { free(sim_async); }

SIM_INLINE SimAsync *sim_async_here() {
    if (!sim_async) sim_async = (SimAsync *)calloc(1024, sizeof *sim_async);
    const SimDim &b = sim_now.block, &t = sim_now.thread,
                 &d = sim_now.block_dim;
    SimAsync *a = &sim_async[(t.z * d.y + t.y) * d.x + t.x];
    uint64_t block = (uint64_t)b.z << 48 ^ (uint64_t)b.y << 32 ^ b.x;
    if (a->block != block) a->n = 0; /* a copy of a thread that did not wait */
    a->block = block;
    return a;
}

SIM_OUT void ampc_cp_async_wait() {
    SimAsync *a = sim_async_here();
    static const char zeros[16] = {};
    for (int i = 0; i < a->n; i++)
        memcpy(a->copy[i].to, a->copy[i].from ? a->copy[i].from : zeros, 16);
    a->n = 0;
}

SIM_OUT void ampc_cp_async_16(void *to, const void *from, bool in) {
    sim_shared_row(to);
    sim_aligned(from, 16);
    SimAsync *a = sim_async_here();
    if (a->n == sizeof a->copy / sizeof *a->copy) ampc_cp_async_wait();
    a->copy[a->n].to = to;
    a->copy[a->n++].from = in ? from : nullptr;
}

SIM_INLINE unsigned short ampc_load_16(const void *from, bool in) {
    if (in) sim_aligned(from, 2);
    return in ? *(const unsigned short *)from : 0;
}

SIM_INLINE void ampc_store_f32(float *to, long long at, float x) {
    if (to) to[at] = x;
}

SIM_INLINE float ampc_exp2(float x) {
    float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}

#endif
