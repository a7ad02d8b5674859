/* SPDX-License-Identifier: Apache-2.0 */
/* simd_plain.h: vectors as arrays of lanes, in C11 without extensions, for
   compilers other than gcc and clang (AMPC_PLAIN): the functions of
   simd_vectors.h and those of simd.h, with the bits of simd_generic.h. */
#ifndef AMPC_CPU_SIMD_PLAIN_H
#define AMPC_CPU_SIMD_PLAIN_H

typedef struct vf {
    float lane[VL];
} vf;
typedef struct vi {
    int32_t lane[VL];
} vi;
typedef struct vu {
    uint32_t lane[VL];
} vu;

#define LANES for (int i = 0; i < VL; i++)
#define SAME_BITS(name, to, from)                                              \
    INLINE to name(from v) {                                                   \
        to r;                                                                  \
        memcpy(&r, &v, sizeof r);                                              \
        return r;                                                              \
    }
SAME_BITS(vu_as_f, vf, vu)
SAME_BITS(vi_as_f, vf, vi)
SAME_BITS(vf_as_u, vu, vf)
SAME_BITS(vf_as_i, vi, vf)

#define FUNCTION_OF(name, result, type, x)                                     \
    INLINE result name(type a, type b) {                                       \
        result r;                                                              \
        LANES r.lane[i] = x;                                                   \
        return r;                                                              \
    }
#define A     a.lane[i]
#define B     b.lane[i]
#define IF(x) ((x) ? 0xffffffffu : 0u)

/* ---- memory -------------------------------------------------------------- */

/* to: void where a vector may be stored as other numbers. */
#define MEMORY_OF(type, number, to, load, store, set)                          \
    INLINE type load(const number *p) {                                        \
        type v;                                                                \
        memcpy(&v, p, sizeof v);                                               \
        return v;                                                              \
    }                                                                          \
    INLINE void store(to *p, type v) { memcpy(p, &v, sizeof v); }              \
    INLINE type set(number x) {                                                \
        type v;                                                                \
        LANES v.lane[i] = x;                                                   \
        return v;                                                              \
    }
MEMORY_OF(vf, float, void, vload, vstore, vset)
MEMORY_OF(vi, int32_t, int32_t, vi_load, vi_store, vi_set)
MEMORY_OF(vu, uint32_t, uint32_t, vu_load, vu_store, vu_set)

/* ---- fp32 ---------------------------------------------------------------- */

#define LANE(v, i) (v).lane[i]

FUNCTION_OF(vadd, vf, vf, A + B)
FUNCTION_OF(vsub, vf, vf, A - B)
FUNCTION_OF(vmul, vf, vf, A *B)
FUNCTION_OF(vdiv, vf, vf, A / B)
FUNCTION_OF(vabove, vi, vf, A > B ? -1 : 0)
FUNCTION_OF(vgreater, vf, vf, (A != A) | (A > B) ? A : B)

INLINE vf vneg(vf v) {
    LANES v.lane[i] = -v.lane[i];
    return v;
}

INLINE vf vfma(vf a, vf b, vf c) {
    LANES c.lane[i] = c.lane[i] + a.lane[i] * b.lane[i];
    return c;
}

INLINE vf vselect(vi take, vf a, vf b) {
    LANES b.lane[i] = take.lane[i] ? a.lane[i] : b.lane[i];
    return b;
}

INLINE vf vkeep(vi take, vf v) { return vselect(take, v, vset(0.0f)); }

INLINE float vsum(vf v) {
    return (v.lane[0] + v.lane[2]) + (v.lane[1] + v.lane[3]);
}

/* ---- integers ------------------------------------------------------------ */

FUNCTION_OF(vi_equal, vi, vi, A == B ? -1 : 0)

INLINE vi vload_i8(const int8_t *p, int64_t n) {
    vi v = {0};
    for (int64_t i = 0; i < n && i < VL; i++) v.lane[i] = p[i];
    return v;
}

INLINE void vstore_i8(void *p, vi v) {
    LANES((int8_t *)p)[i] = (int8_t)v.lane[i];
}

FUNCTION_OF(vu_and, vu, vu, A &B)
FUNCTION_OF(vu_or, vu, vu, A | B)
FUNCTION_OF(vu_sub, vu, vu, A - B)
FUNCTION_OF(vu_less, vu, vu, IF(A < B))
FUNCTION_OF(vu_most, vu, vu, IF(A <= B))
FUNCTION_OF(vu_equal, vu, vu, IF(A == B))

INLINE vu vu_left(vu v, int n) {
    LANES v.lane[i] <<= n;
    return v;
}

INLINE vu vu_right(vu v, int n) {
    LANES v.lane[i] >>= n;
    return v;
}

/* ---- 16 bits: half.h, lane by lane --------------------------------------- */

INLINE vu vload_u16(const uint16_t *p) {
    vu v;
    LANES v.lane[i] = p[i];
    return v;
}

INLINE void vstore_u16(uint16_t *p, vu v) { LANES p[i] = (uint16_t)v.lane[i]; }

INLINE vf vload_f16(const uint16_t *p) {
    vf v;
    LANES v.lane[i] = f16_to_f32(p[i]);
    return v;
}

INLINE void vstore_f16(uint16_t *p, vf v) {
    LANES p[i] = f32_to_f16(v.lane[i]);
}

INLINE vu vround_bf16(vf v) {
    vu r;
    LANES r.lane[i] = (uint32_t)f32_to_bf16(v.lane[i]) << 16;
    return r;
}

/* ---- lanes of two vectors ------------------------------------------------ */

#undef A
#undef B
#define A a.lane
#define B b.lane
#define LANES_OF(name, w, x, y, z)                                             \
    INLINE vf name(vf a, vf b) {                                               \
        vf r = {{w, x, y, z}};                                                 \
        return r;                                                              \
    }
LANES_OF(veven, A[0], A[2], B[0], B[2])
LANES_OF(vodd, A[1], A[3], B[1], B[3])
LANES_OF(vzip_low, A[0], B[0], A[1], B[1])
LANES_OF(vzip_high, A[2], B[2], A[3], B[3])

/* Takes v, of number `tap`, where it is greater, or the first NaN. */
INLINE void vtake(vf v, vi tap, vf *m, vi *w) {
    LANES {
        if (m->lane[i] != m->lane[i] || v.lane[i] <= m->lane[i]) continue;
        m->lane[i] = v.lane[i];
        w->lane[i] = tap.lane[i];
    }
}

#undef A
#undef B
#undef IF
#undef LANES
#undef LANES_OF
#undef MEMORY_OF
#undef FUNCTION_OF
#undef SAME_BITS

#endif
