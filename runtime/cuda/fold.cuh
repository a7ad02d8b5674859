/* SPDX-License-Identifier: Apache-2.0 */
/* fold.cuh: building blocks of generated kernels, in addition to kmath.h:
   vectors of neighbouring elements, folds over threads in an order that depends
   on the number of threads alone, and the table of a launch for many tensors.

   Folds are collective: all threads of the block call them together, each with
   its own value and the same operation f(a, b), and get the same result.     */
#ifndef AMPC_FOLD_CUH
#define AMPC_FOLD_CUH

#ifdef __CUDACC_RTC__
#define UNROLL _Pragma("unroll")
#define CHECK_ALIGNED(p, n)
extern __shared__ __align__(32) unsigned char block_shared[];
#define BLOCK_SHARED(name) unsigned char *const name = block_shared
#else /* on the host: the simulator's equivalents */
#define UNROLL
#define CHECK_ALIGNED(p, n)                                                    \
    if ((uintptr_t)(p) % (n)) __trap()
#define BLOCK_SHARED(name) SIM_DYNAMIC_SHARED(unsigned char, name)
#pragma GCC diagnostic ignored "-Wtautological-compare" /* x != x */
#endif

/* ---- vectors ------------------------------------------------------------- */

/* N neighbours, at an address that is a multiple of their size. */
template <int N, typename T> struct alignas(N * sizeof(T)) Pack { T v[N]; };

template <int N, typename T>
static __device__ __forceinline__ Pack<N, T> pack_load(const T *p) {
    CHECK_ALIGNED(p, N * sizeof(T));
    return *reinterpret_cast<const Pack<N, T> *>(p);
}

/* Stores to memory of the block. */
template <int N, typename T>
static __device__ __forceinline__ void pack_keep(T *p, const Pack<N, T> &x) {
    CHECK_ALIGNED(p, N * sizeof(T));
    *reinterpret_cast<Pack<N, T> *>(p) = x;
}

/* An address known to be in global memory. */
template <typename T>
static __device__ __forceinline__ T *global_at(unsigned long long address) {
#ifdef __CUDACC_RTC__
    return (T *)__cvta_global_to_generic(address);
#else
    return (T *)address;
#endif
}

/* Stores to global memory in one instruction: if the address is a sum, the
   compiler does not see that neighbours are adjacent, and would store them
   one by one. */
template <int N, typename T>
static __device__ __forceinline__ void pack_store(T *p, const Pack<N, T> &x) {
#ifdef __CUDACC_RTC__
    unsigned long long at = __cvta_generic_to_global(p);
    asm("" : "+l"(at));
    p = global_at<T>(at);
#endif
    pack_keep(p, x);
}

/* ---- elements ------------------------------------------------------------ */

/* NaN if either operand is NaN; for two zeros either one (a CPU), or the
   larger or smaller one (a GPU). */
static __device__ __forceinline__ float larger(float a, float b) {
#ifdef KM_GPU_8
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
#else
    return a != a ? a : b > a || b != b ? b : a;
#endif
}

static __device__ __forceinline__ float smaller(float a, float b) {
#ifdef KM_GPU_8
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
#else
    return a != a ? a : b < a || b != b ? b : a;
#endif
}

/* The 32-bit column number equal to v; -1, which is not a column, if there
   is none. */
static __device__ __forceinline__ int column_of(int64_t v) {
    return v >= 0 && v == (int)v ? (int)v : -1;
}

/* ---- folds --------------------------------------------------------------- */

/* Folds over LANES neighbouring lanes, a power of two up to 32. */
template <int LANES, typename T, typename F>
static __device__ __forceinline__ T fold_lanes(T v, F f) {
    UNROLL
    for (int w = LANES / 2; w > 0; w /= 2)
        v = f(v, __shfl_xor_sync(0xffffffffu, v, w));
    return LANES == 1 ? v : __shfl_sync(0xffffffffu, v, 0, LANES);
}

/* Over the block. */
template <int THREADS, typename T, typename F>
static __device__ __forceinline__ T fold_block(T v, F f) {
    __shared__ T part[THREADS / 32];
    v = fold_lanes<32>(v, f);
    __syncthreads(); /* results of an earlier call may still be read */
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[0];
    UNROLL
    for (int w = 1; w < THREADS / 32; w++) v = f(v, part[w]);
    return v;
}

/* Folds over the SLICES warps of the block, for each lane. */
template <int SLICES, typename T, typename F>
static __device__ __forceinline__ T fold_slices(T v, F f) {
    __shared__ T part[SLICES][32];
    const int lane = threadIdx.x % 32;
    __syncthreads();
    part[threadIdx.x / 32][lane] = v;
    __syncthreads();
    v = part[0][lane];
    UNROLL
    for (int s = 1; s < SLICES; s++) v = f(v, part[s][lane]);
    return v;
}

/* True in the last of `blocks` blocks to arrive: only it may read the results
   of the other blocks. Resets the counter to 0. */
static __device__ __forceinline__ bool last_block(unsigned *counter,
                                                  unsigned blocks) {
    __shared__ unsigned before;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) before = atomicInc(counter, blocks - 1);
    __syncthreads();
    __threadfence();
    return before == blocks - 1;
}

/* ---- many tensors -------------------------------------------------------- */

/* The table row that this block computes; rows hold the number of their
   first block. */
static __device__ __forceinline__ const unsigned long long *
many_row(const unsigned long long *table, unsigned count, unsigned width) {
    unsigned low = 0, high = count;
    while (high - low > 1) {
        const unsigned mid = low + (high - low) / 2;
        if (table[(unsigned long long)mid * width] <= blockIdx.x)
            low = mid;
        else
            high = mid;
    }
    return table + (unsigned long long)low * width;
}

#endif
