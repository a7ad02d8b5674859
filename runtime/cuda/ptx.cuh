/* SPDX-License-Identifier: Apache-2.0 */
/* ptx.cuh: all inline assembly, one function per instruction.

   Kernels never contain asm, so that a simulator can define AMPC_PTX_CUH and
   these functions itself.  Unless noted, all lanes of a warp call them
   together. With g = lane / 4, t = lane % 4 and two 16-bit values per register,
   the lower index in the low half:
     A  16 x 16  a[0] (g, 2t..)  a[1] (g + 8, 2t..)
                 a[2] (g, 2t + 8..)  a[3] (g + 8, 2t + 8..)
     B  16 x 8   b[0] (k 2t.., column g)  b[1] (k 2t + 8.., column g)
     D  16 x 8   d[0], d[1] (g, 2t), (g, 2t + 1)
                 d[2], d[3] (g + 8, 2t), (g + 8, 2t + 1)                      */
#ifndef AMPC_PTX_CUH
#define AMPC_PTX_CUH

/* GPUs of compute capability 7.5: fp16 products of half the depth, no bf16, no
   TF32 (emit_plan.c refuses those), no copies that run on their own. */
#if __CUDA_ARCH__ < 800
#define AMPC_TURING
#endif

/* D += A B in fp32, operands bf16. */
static __device__ __forceinline__ void
ampc_mma_bf16_16816(float d[4], const unsigned a[4], const unsigned b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]),
                   "r"(b[1]));
}

/* The first or second half of the depth: A's a[0] and a[1], or a[2] and
   a[3]. */
static __device__ __forceinline__ void
ampc_mma_f16_1688(float d[4], const unsigned a[2], unsigned b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b));
}

/* mma for f16 operands. */
static __device__ __forceinline__ void
ampc_mma_f16_16816(float d[4], const unsigned a[4], const unsigned b[2]) {
#ifdef AMPC_TURING
    ampc_mma_f16_1688(d, a, b[0]);
    ampc_mma_f16_1688(d, a + 2, b[1]);
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]),
                   "r"(b[1]));
#endif
}

/* D += A B in fp32, operands TF32, one in each register, 16 x 8 and 8 x 8:
     A  a[0] (g, t)  a[1] (g + 8, t)  a[2] (g, t + 4)  a[3] (g + 8, t + 4)
     B  b[0] (k t, column g)  b[1] (k t + 4, column g)
   The instruction ignores the 13 bits below TF32's. */
static __device__ __forceinline__ void
ampc_mma_tf32_1688(float d[4], const unsigned a[4], const unsigned b[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]),
                   "r"(b[1]));
}

/* x as TF32: rounded to 11 significant bits, ties away from zero. Each lane
   calls it by itself. */
static __device__ __forceinline__ unsigned ampc_tf32(float x) {
    unsigned y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

/* Four bytes of a (0 .. 3) and b (4 .. 7), as the nibbles of `which` number
   them, the lowest first. Each lane calls it by itself. */
static __device__ __forceinline__ unsigned ampc_bytes(unsigned a, unsigned b,
                                                      unsigned which) {
    unsigned y;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(which));
    return y;
}

/* The larger magnitudes of two pairs of 16-bit values, NaN if one is; the signs
   mean nothing. Each lane calls it by itself. */
static __device__ __forceinline__ unsigned ampc_larger_bf16x2(unsigned a,
                                                              unsigned b) {
    unsigned y;
#if __CUDA_ARCH__ >= 860
    asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
#else
    a &= 0x7fff7fffu, b &= 0x7fff7fffu;
    y = a >> 16 > b >> 16 ? a & 0xffff0000u : b & 0xffff0000u;
    y |= (a & 0xffffu) > (b & 0xffffu) ? a & 0xffffu : b & 0xffffu;
#endif
    return y;
}
static __device__ __forceinline__ unsigned ampc_larger_f16x2(unsigned a,
                                                             unsigned b) {
#if __CUDA_ARCH__ >= 860
    unsigned y;
    asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
#else
    return ampc_larger_bf16x2(a, b);
#endif
}

/* Products of two pairs of bf16, if they are bf16. Each lane calls it by
   itself. */
static __device__ __forceinline__ unsigned ampc_times_bf16x2(unsigned a,
                                                             unsigned b) {
#if __CUDA_ARCH__ >= 900
    unsigned y;
    asm("mul.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
#else
    const float low = __uint_as_float(a << 16) * __uint_as_float(b << 16);
    const float high =
        __uint_as_float(a & 0xffff0000u) * __uint_as_float(b & 0xffff0000u);
    return __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xffff0000u);
#endif
}

#if __CUDA_ARCH__ >= 890
/* Numbers up to the largest code, rounded to e4m3, the first in the lowest
   byte. Each lane calls it by itself. */
static __device__ __forceinline__ unsigned ampc_e4m3x4(float a, float b,
                                                       float c, float d) {
    unsigned y;
    asm("{\n"
        ".reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n"
        "}"
        : "=r"(y)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return y;
}
#endif

/* Four 8 x 8 matrices of 16-bit values from shared memory.  Lane l passes the
   16-byte aligned address of row l % 8 of matrix l / 8; r[i] becomes elements
   2t, 2t + 1 of row g of matrix i.                                          */
static __device__ __forceinline__ void ampc_ldmatrix_x4(unsigned r[4],
                                                        const void *row) {
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 "
                 "{%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* Like ldmatrix_x4, with each matrix transposed: elements 2t, 2t + 1 of
   column g. */
static __device__ __forceinline__ void ampc_ldmatrix_x4_trans(unsigned r[4],
                                                              const void *row) {
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 "
                 "{%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* Copies 16 bytes from global to shared memory, both aligned to 16 bytes, or
   zeros unless `in`; they are there after this thread has waited. Each lane
   calls it by itself. */
static __device__ __forceinline__ void
ampc_cp_async_16(void *to, const void *from, bool in) {
#ifdef AMPC_TURING
    *(uint4 *)to = in ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
#else
    unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at),
                 "l"(from), "r"(in ? 16 : 0)
                 : "memory");
#endif
}

/* Waits for all copies of this thread. Each lane calls it by itself. */
static __device__ __forceinline__ void ampc_cp_async_wait() {
#ifndef AMPC_TURING
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/* The two bytes at the address, or 0 without an access unless `in`; nothing
   may write the memory meanwhile. Each lane calls it by itself. */
static __device__ __forceinline__ unsigned short ampc_load_16(const void *from,
                                                              bool in) {
    unsigned short v;
    asm("{\n"
        ".reg .pred in;\n"
        "setp.ne.u32 in, %2, 0;\n"
        "mov.u16 %0, 0;\n"
        "@in ld.global.nc.u16 %0, [%1];\n"
        "}"
        : "=h"(v)
        : "l"(from), "r"((unsigned)in));
    return v;
}

/* Stores x as element `at`, unless `to` is null: a branch would double the loop
   around it, one for each answer. */
static __device__ __forceinline__ void ampc_store_f32(float *to, long long at,
                                                      float x) {
    asm volatile("{\n"
                 ".reg .pred there;\n"
                 "setp.ne.u32 there, %2, 0;\n"
                 "@there st.global.f32 [%0], %1;\n"
                 "}"
                 :
                 : "l"(to + at), "f"(x), "r"((unsigned)(to != nullptr))
                 : "memory");
}

/* 2^x with an error of up to 2 units in the last place; subnormal results
 * become 0. Each lane calls it by itself. */
static __device__ __forceinline__ float ampc_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
