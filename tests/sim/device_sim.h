/* SPDX-License-Identifier: Apache-2.0 */
/* device_sim.h: compiles emitted CUDA text as C++17 for the host.

   Read before the text, which a twin wraps in an unnamed namespace, so that
   statics of templates belong to this library alone:

     #include "device_sim.h"
     namespace {
     #include "unit0.cu"
     }
     SIM_TWIN(SIM_KERNEL(k0, 256) SIM_KERNEL(k1, 0))

   Every thread is a fiber of engine.c; whatever waits for other threads calls
   the engine.  A __shared__ array is a static object, and the library's .bss
   contains only those: the engine fills it with NaN bytes before each block.
   (A separate section would be clearer, but gcc ignores it for statics of
   templates.) So units have no __device__ variables, and the twin is linked
   with -nostartfiles. */
#ifndef AMPC_TESTS_SIM_DEVICE_H
#define AMPC_TESTS_SIM_DEVICE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <type_traits>
#include <utility>

#include "twin.h"

#define SIM_INLINE static inline __attribute__((always_inline, unused))
#define SIM_OUT    static __attribute__((noinline, unused))

#define SIM_DATA __attribute__((section(".data")))
static const SimEngine *sim_engine SIM_DATA = nullptr;
static SimNow sim_now SIM_DATA = {};

/* ---- spelling ------------------------------------------------------------ */

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __shared__   static __attribute__((unused))
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__    __attribute__((noinline))
#define __align__(n)    alignas(n)
#define threadIdx       (sim_now.thread)
#define blockIdx        (sim_now.block)
#define blockDim        (sim_now.block_dim)
#define gridDim         (sim_now.grid_dim)
#define warpSize        32
/* extern __shared__ cannot be written on the host: the text says
   SIM_DYNAMIC_SHARED(type, name) through a macro. */
#define SIM_DYNAMIC_SHARED(type, name) type *name = (type *)sim_now.dynamic
typedef struct dim3 {
    unsigned x, y, z;
} dim3;

/* ---- vectors ------------------------------------------------------------- */

/* Copies check the alignment that the device requires. */
SIM_INLINE void sim_aligned(const void *p, size_t n) {
    uintptr_t a = (uintptr_t)p;
    __asm__("" : "+r"(a)); /* the type already guarantees the check's result */
    if (__builtin_expect(a & (n - 1), 0))
        sim_engine->fault(716, "%zu-byte access at %p", n, p);
}

#define SIM_VECTOR_COPY(name)                                                  \
    name() = default;                                                          \
    name(const name &o) {                                                      \
        sim_aligned(&o, sizeof o);                                             \
        memcpy((void *)this, (const void *)&o, sizeof o);                      \
    }                                                                          \
    name &operator=(const name &o) {                                           \
        sim_aligned(&o, sizeof o);                                             \
        sim_aligned(this, sizeof o);                                           \
        memmove((void *)this, (const void *)&o, sizeof o);                     \
        return *this;                                                          \
    }

#define SIM_VECTOR2(t, name)                                                   \
    struct alignas(2 * sizeof(t)) name {                                       \
        t x, y;                                                                \
        SIM_VECTOR_COPY(name)                                                  \
        name(t a, t b) : x(a), y(b) {}                                         \
    };                                                                         \
    SIM_INLINE name make_##name(t a, t b) { return name(a, b); }
#define SIM_VECTOR4(t, name)                                                   \
    struct alignas(4 * sizeof(t) < 16 ? 4 * sizeof(t) : 16) name {             \
        t x, y, z, w;                                                          \
        SIM_VECTOR_COPY(name)                                                  \
        name(t a, t b, t c, t d) : x(a), y(b), z(c), w(d) {}                   \
    };                                                                         \
    SIM_INLINE name make_##name(t a, t b, t c, t d) { return name(a, b, c, d); }

#define SIM_VECTORS(t, name) SIM_VECTOR2(t, name##2) SIM_VECTOR4(t, name##4)
SIM_VECTORS(signed char, char)
SIM_VECTORS(unsigned char, uchar)
SIM_VECTORS(short, short)
SIM_VECTORS(unsigned short, ushort)
SIM_VECTORS(int, int)
SIM_VECTORS(unsigned, uint)
SIM_VECTORS(float, float)
SIM_VECTOR2(long long, longlong2)
SIM_VECTOR2(unsigned long long, ulonglong2)
SIM_VECTOR2(double, double2)

/* ---- scalar intrinsics --------------------------------------------------- */

#define SIM_MINMAX(t)                                                          \
    SIM_INLINE t min(t a, t b) { return b < a ? b : a; }                       \
    SIM_INLINE t max(t a, t b) { return a < b ? b : a; }
SIM_MINMAX(int)
SIM_MINMAX(unsigned)
SIM_MINMAX(long)
SIM_MINMAX(unsigned long)
SIM_MINMAX(long long)
SIM_MINMAX(unsigned long long)
SIM_INLINE float min(float a, float b) { return fminf(a, b); }
SIM_INLINE float max(float a, float b) { return fmaxf(a, b); }
SIM_INLINE double min(double a, double b) { return fmin(a, b); }
SIM_INLINE double max(double a, double b) { return fmax(a, b); }

template <typename To, typename From> SIM_INLINE To sim_bits(From v) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To r;
    memcpy(&r, &v, sizeof r);
    return r;
}

SIM_INLINE int __float_as_int(float v) { return sim_bits<int>(v); }
SIM_INLINE unsigned __float_as_uint(float v) { return sim_bits<unsigned>(v); }
SIM_INLINE float __int_as_float(int v) { return sim_bits<float>(v); }
SIM_INLINE float __uint_as_float(unsigned v) { return sim_bits<float>(v); }
SIM_INLINE long long __double_as_longlong(double v) {
    return sim_bits<long long>(v);
}
SIM_INLINE double __longlong_as_double(long long v) {
    return sim_bits<double>(v);
}

SIM_INLINE float __fadd_rn(float a, float b) { return a + b; }
SIM_INLINE float __fsub_rn(float a, float b) { return a - b; }
SIM_INLINE float __fmul_rn(float a, float b) { return a * b; }
SIM_INLINE float __fdiv_rn(float a, float b) { return a / b; }
SIM_INLINE float __fsqrt_rn(float a) { return sqrtf(a); }
SIM_INLINE float __frcp_rn(float a) { return 1.0f / a; }
SIM_INLINE float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
SIM_INLINE double __dadd_rn(double a, double b) { return a + b; }
SIM_INLINE double __dmul_rn(double a, double b) { return a * b; }
SIM_INLINE double __fma_rn(double a, double b, double c) {
    return fma(a, b, c);
}
SIM_INLINE float rsqrtf(float a) { return 1.0f / sqrtf(a); }
SIM_INLINE double rsqrt(double a) { return 1.0 / sqrt(a); }
SIM_INLINE float __saturatef(float a) {
    return !(a > 0) ? 0.0f : a > 1 ? 1.0f : a;
}
SIM_INLINE int __float2int_rn(float a) { return (int)rintf(a); }
SIM_INLINE int __float2int_rz(float a) { return (int)a; }

SIM_INLINE int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
SIM_INLINE int __clzll(long long v) {
    return v ? __builtin_clzll((unsigned long long)v) : 64;
}
SIM_INLINE int __popc(unsigned v) { return __builtin_popcount(v); }
SIM_INLINE int __popcll(unsigned long long v) {
    return __builtin_popcountll(v);
}
SIM_INLINE int __ffs(int v) { return __builtin_ffs(v); }
SIM_INLINE unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((uint64_t)a * b >> 32);
}
SIM_INLINE int __mulhi(int a, int b) { return (int)((int64_t)a * b >> 32); }
SIM_INLINE unsigned long long __umul64hi(unsigned long long a,
                                         unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

/* Cache hints are plain accesses. */
#define SIM_LOAD(name)                                                         \
    template <typename T> SIM_INLINE T name(const T *p) { return *p; }
#define SIM_STORE(name)                                                        \
    template <typename T> SIM_INLINE void name(T *p, T v) { *p = v; }
SIM_LOAD(__ldg)
SIM_LOAD(__ldcs)
SIM_LOAD(__ldcg)
SIM_LOAD(__ldca)
SIM_LOAD(__ldlu)
SIM_STORE(__stcs)
SIM_STORE(__stcg)
SIM_STORE(__stwb)
SIM_INLINE void __threadfence() {}
SIM_INLINE void __threadfence_block() {}
[[noreturn]] SIM_INLINE void __trap() { sim_engine->fault(719, "__trap"); }

/* ---- atomics: one thread runs at a time ---------------------------------- */

#define SIM_ATOMIC(name, result)                                               \
    template <typename T>                                                      \
    SIM_INLINE T name(T *p, typename std::common_type<T>::type v) {            \
        sim_aligned(p, sizeof(T));                                             \
        T old = *p;                                                            \
        *p = (T)(result);                                                      \
        return old;                                                            \
    }
SIM_ATOMIC(atomicAdd, old + v)
SIM_ATOMIC(atomicSub, old - v)
SIM_ATOMIC(atomicMax, old < v ? v : old)
SIM_ATOMIC(atomicMin, v < old ? v : old)
SIM_ATOMIC(atomicOr, old | v)
SIM_ATOMIC(atomicAnd, old &v)
SIM_ATOMIC(atomicXor, old ^ v)
SIM_ATOMIC(atomicExch, v)
SIM_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
template <typename T>
SIM_INLINE T atomicCAS(T *p, typename std::common_type<T>::type want,
                       typename std::common_type<T>::type v) {
    sim_aligned(p, sizeof(T));
    T old = *p;
    if (old == want) *p = v;
    return old;
}

/* ---- barriers and warp collectives --------------------------------------- */

SIM_INLINE void __syncthreads(const char *file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
    sim_engine->barrier(file, line);
}
SIM_INLINE void __syncwarp(uint32_t mask = 0xffffffffu) {
    sim_engine->warp(mask, "__syncwarp", nullptr, nullptr);
}
SIM_INLINE uint32_t __activemask() { return sim_engine->active(); }

struct SimShuffle {
    uint64_t in, out;
    int arg, width;
};

/* Each lane reads from(lane); outside of its segment it keeps its own value. */
template <typename From>
SIM_INLINE void sim_shuffle(void **request, uint32_t mask, const char *name,
                            From from) {
    for (int lane = 0; lane < 32; lane++) {
        if (!(mask >> lane & 1)) continue;
        SimShuffle *s = (SimShuffle *)request[lane];
        int base = lane & -s->width, to = from(lane, base, s->arg, s->width);
        if (to < base || to >= base + s->width) to = lane;
        if (!(mask >> to & 1))
            sim_engine->fault(719,
                              "%s: lane %d reads lane %d, which is not "
                              "in mask %08x",
                              name, lane, to, mask);
        s->out = ((SimShuffle *)request[to])->in;
    }
}

#define SIM_SHUFFLE(name, expr)                                                \
    SIM_OUT void sim_do##name(void **request, uint32_t mask) {                 \
        sim_shuffle(request, mask, #name,                                      \
                    [](int lane, int base, int arg, int width) {               \
                        (void)lane, (void)base, (void)width;                   \
                        return expr;                                           \
                    });                                                        \
    }                                                                          \
    template <typename T>                                                      \
    SIM_INLINE T name(uint32_t mask, T v, int arg, int width = 32) {           \
        static_assert(sizeof(T) == 4 || sizeof(T) == 8, "4 or 8 bytes");       \
        SimShuffle s = {0, 0, arg, width};                                     \
        memcpy(&s.in, &v, sizeof v);                                           \
        sim_engine->warp(mask, #name, sim_do##name, &s);                       \
        memcpy((void *)&v, &s.out, sizeof v);                                  \
        return v;                                                              \
    }
SIM_SHUFFLE(__shfl_sync, base + (arg & (width - 1)))
SIM_SHUFFLE(__shfl_up_sync, lane - arg)
SIM_SHUFFLE(__shfl_down_sync, lane + arg)
SIM_SHUFFLE(__shfl_xor_sync, lane ^ arg)

struct SimVote {
    uint32_t in, out;
};

SIM_OUT void sim_do_vote(void **request, uint32_t mask) {
    uint32_t all = 0;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) all |= (uint32_t) !!((SimVote *)request[i])->in << i;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) ((SimVote *)request[i])->out = all;
}
SIM_INLINE uint32_t __ballot_sync(uint32_t mask, int v) {
    SimVote s = {v != 0, 0};
    sim_engine->warp(mask, "vote", sim_do_vote, &s);
    return s.out;
}
SIM_INLINE int __any_sync(uint32_t mask, int v) {
    return __ballot_sync(mask, v) != 0;
}
SIM_INLINE int __all_sync(uint32_t mask, int v) {
    return __ballot_sync(mask, v) == mask;
}

/* Makes .bss start at a page boundary, the first one after __bss_start. */
static char sim_page[64] __attribute__((aligned(4096), used));
extern "C" __attribute__((visibility("hidden"))) char __bss_start[], _end[];

#include "ptx_sim.h"

/* ---- registration -------------------------------------------------------- */

template <auto F> struct SimCall;
template <typename... A, void (*F)(A...)> struct SimCall<F> {
    static constexpr unsigned count = sizeof...(A);
    static constexpr unsigned size[sizeof...(A) + 1] = {sizeof(A)..., 0};
    template <size_t... I>
    static void spread(void **p, std::index_sequence<I...>) {
        (void)p;
        F(*(A *)p[I]...);
    }
    static void call(void **p) {
        spread(p, std::make_index_sequence<sizeof...(A)>());
    }
};

#define SIM_KERNEL(name, threads)                                              \
    {#name, SimCall<name>::call, SimCall<name>::count, SimCall<name>::size,    \
     threads},
#define SIM_TWIN(...)                                                          \
    static const SimKernel sim_kernels[] = {__VA_ARGS__};                      \
    extern "C" {                                                               \
    __attribute__((visibility("default"))) SimTwinTable sim_twin_table = {     \
        SIM_TWIN_VERSION,                                                      \
        &sim_engine,                                                           \
        &sim_now,                                                              \
        __bss_start,                                                           \
        _end,                                                                  \
        sim_kernels,                                                           \
        (int)(sizeof sim_kernels / sizeof *sim_kernels)};                      \
    }

#endif
