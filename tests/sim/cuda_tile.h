/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_tile.h: the part of CUDA Tile C++ that our kernels use, for the host.

   A block is one thread. Accesses outside of a matrix and addresses that break
   what the kernel assumes end the launch; sums are added in order. */
#ifndef AMPC_TESTS_SIM_CUDA_TILE_H
#define AMPC_TESTS_SIM_CUDA_TILE_H

#define __tile__
#define __tile_global__

/* ---- types of 16 bits ---------------------------------------------------- */

struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(int zero) : bits(0) { (void)zero; }
};

struct __half {
    _Float16 x;
    __half() = default;
    __half(int zero) : x(0) { (void)zero; }
};

SIM_INLINE float sim_number(float x) { return x; }
SIM_INLINE float sim_number(__half x) { return (float)x.x; }
SIM_INLINE float sim_number(__nv_bfloat16 x) {
    return sim_bits<float>((uint32_t)x.bits << 16);
}

template <class To> To sim_element(float x);
template <> inline float sim_element<float>(float x) { return x; }
template <> inline __half sim_element<__half>(float x) {
    __half y;
    y.x = (_Float16)x;
    return y;
}
/* To nearest, ties to even; NaN stays one. */
template <> inline __nv_bfloat16 sim_element<__nv_bfloat16>(float x) {
    uint32_t u = sim_bits<uint32_t>(x);
    __nv_bfloat16 y;
    y.bits = x != x ? 0x7fc0 : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
    return y;
}

namespace cuda {
namespace tiles {

/* ---- shapes and storage -------------------------------------------------- */

template <int... D> struct shape {};
template <class I, I... D> struct extents {};

/* A matrix; a number is one of 1 x 1. */
template <class E, class S> class tile;
template <class E, int R, int C> class tile<E, shape<R, C>> {
  public:
    typedef E element;
    static constexpr int rows = R, columns = C;
    static_assert((R & (R - 1)) == 0 && (C & (C - 1)) == 0, "powers of two");
    tile() : v((E *)malloc(sizeof(E) * R * C)) {}
    tile(const tile &o) : tile() { *this = o; }
    tile &operator=(const tile &o) {
        memmove((void *)v, (const void *)o.v, sizeof(E) * R * C);
        return *this;
    }
    ~tile() { free(v); }
    E &at(int r, int c) { return v[r * C + c]; }
    const E &at(int r, int c) const { return v[r * C + c]; }

  private:
    E *v;
};

template <class T> struct is_tile : std::false_type {};
template <class E, class S> struct is_tile<tile<E, S>> : std::true_type {};

template <class T, bool = is_tile<T>::value> struct Operand {
    typedef T element;
    static constexpr int rows = 1, columns = 1;
    static T get(const T &x, int, int) { return x; }
};
template <class T> struct Operand<T, true> {
    typedef typename T::element element;
    static constexpr int rows = T::rows, columns = T::columns;
    static element get(const T &x, int r, int c) {
        return x.at(rows == 1 ? 0 : r, columns == 1 ? 0 : c);
    }
};

template <int... N> constexpr int most() {
    int most = 1;
    ((most = N > most ? N : most), ...);
    return most;
}

/* f of each element; operands of one row or column are repeated. */
template <class E, class F, class... T> auto each(F f, const T &...x) {
    constexpr int R = most<Operand<T>::rows...>();
    constexpr int C = most<Operand<T>::columns...>();
    static_assert(
        ((Operand<T>::rows == 1 || Operand<T>::rows == R) && ...) &&
            ((Operand<T>::columns == 1 || Operand<T>::columns == C) && ...),
        "shapes");
    tile<E, shape<R, C>> y;
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) y.at(r, c) = f(Operand<T>::get(x, r, c)...);
    return y;
}

/* ---- elements ------------------------------------------------------------ */

template <class A, class B>
using AnyTile = std::enable_if_t<is_tile<A>::value || is_tile<B>::value, int>;

#define SIM_TILE_OP(op, E)                                                     \
    template <class A, class B, AnyTile<A, B> = 0>                             \
    auto operator op(const A &a, const B &b) {                                 \
        static_assert(std::is_same_v<typename Operand<A>::element, float> &&   \
                          std::is_same_v<typename Operand<B>::element, float>, \
                      "fp32");                                                 \
        return each<E>([](float x, float y) { return x op y; }, a, b);         \
    }
SIM_TILE_OP(+, float)
SIM_TILE_OP(-, float)
SIM_TILE_OP(*, float)
SIM_TILE_OP(/, float)
SIM_TILE_OP(<, bool)
SIM_TILE_OP(>, bool)

template <class S> auto operator-(const tile<float, S> &a) {
    return each<float>([](float x) { return -x; }, a);
}

#define SIM_TILE_FN(name, f)                                                   \
    template <class S> auto name(const tile<float, S> &a) {                    \
        return each<float>([](float x) { return f(x); }, a);                   \
    }
SIM_TILE_FN(abs, fabsf)
SIM_TILE_FN(exp, expf)
SIM_TILE_FN(sqrt, sqrtf)
SIM_TILE_FN(tanh, tanhf)

template <class A, class B, class C>
auto fma(const A &a, const B &b, const C &c) {
    return each<float>([](float x, float y, float z) { return fmaf(x, y, z); },
                       a, b, c);
}

template <class M, class A, class B>
auto select(const M &m, const A &a, const B &b) {
    static_assert(std::is_same_v<typename M::element, bool>, "a mask");
    return each<float>([](bool t, float x, float y) { return t ? x : y; }, m, a,
                       b);
}

template <class To, class T> auto element_cast(const T &a) {
    return each<To>(
        [](typename T::element x) { return sim_element<To>(sim_number(x)); },
        a);
}

/* ---- whole tiles --------------------------------------------------------- */

template <class T> T full(typename T::element x) {
    T y;
    for (int r = 0; r < T::rows; r++)
        for (int c = 0; c < T::columns; c++) y.at(r, c) = x;
    return y;
}
template <class T> T zeros() { return full<T>(0); }

template <class E, int R, int C> auto transpose(const tile<E, shape<R, C>> &a) {
    tile<E, shape<C, R>> y;
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) y.at(c, r) = a.at(r, c);
    return y;
}

template <class E, int R, int K, int C>
auto mma(const tile<E, shape<R, K>> &a, const tile<E, shape<K, C>> &b,
         const tile<float, shape<R, C>> &sum) {
    static_assert(R >= 32 && C >= 32 && K >= 16, "no tensor cores");
    tile<float, shape<R, C>> y = sum;
    for (int r = 0; r < R; r++)
        for (int k = 0; k < K; k++) {
            float x = sim_number(a.at(r, k));
            for (int c = 0; c < C; c++)
                y.at(r, c) += x * sim_number(b.at(k, c));
        }
    return y;
}

/* ---- memory -------------------------------------------------------------- */

template <int N, class E> E *assume_aligned(E *p) {
    if ((uintptr_t)p % N)
        sim_engine->fault(716, "%p is not at a multiple of %d", (void *)p, N);
    return p;
}

template <class E> auto load(E *p) {
    tile<std::remove_const_t<E>, shape<1, 1>> y;
    y.at(0, 0) = *p;
    return y;
}

template <class E, class X> struct tensor_span;
template <class E, unsigned M, unsigned N>
struct tensor_span<E, extents<unsigned, M, N>> {
    E *p;
    tensor_span(E *at, extents<unsigned, M, N>) : p(at) {}
};
template <class E, unsigned M, unsigned N>
tensor_span(E *, extents<unsigned, M, N>)
    -> tensor_span<E, extents<unsigned, M, N>>;

enum class view_padding { zero };

template <class Span, class S> struct partition_view;
template <class E, unsigned M, unsigned N, int R, int C>
struct partition_view<tensor_span<E, extents<unsigned, M, N>>, shape<R, C>> {
    typedef tensor_span<E, extents<unsigned, M, N>> Span;
    typedef tile<std::remove_const_t<E>, shape<R, C>> Tile;
    E *p;
    partition_view(Span s, shape<R, C>) : p(s.p) {}

    /* The address of an element, NULL beyond the matrix. */
    E *place(int row, int column, int r, int c, bool masked) const {
        long i = (long)row * R + r, j = (long)column * C + c;
        bool in = i >= 0 && j >= 0 && i < (long)M && j < (long)N;
        if (!in && !masked)
            sim_engine->fault(700, "element %ld, %ld of %u x %u", i, j, M, N);
        return in ? p + i * (long)N + j : nullptr;
    }
    Tile get(int row, int column, bool masked) const {
        Tile y = zeros<Tile>();
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++)
                if (E *at = place(row, column, r, c, masked)) y.at(r, c) = *at;
        return y;
    }
    void put(const Tile &x, int row, int column, bool masked) const {
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++)
                if (E *at = place(row, column, r, c, masked)) *at = x.at(r, c);
    }
    Tile load(int row, int column) const { return get(row, column, false); }
    template <view_padding> Tile load_masked(int row, int column) const {
        return get(row, column, true);
    }
    void store(const Tile &x, int row, int column) const {
        put(x, row, column, false);
    }
    void store_masked(const Tile &x, int row, int column) const {
        put(x, row, column, true);
    }
};
template <class Span, class S>
partition_view(Span, S) -> partition_view<Span, S>;

/* ---- blocks -------------------------------------------------------------- */

SIM_INLINE SimDim bid() { return sim_now.block; }

struct Counter {
    int i;
    int operator*() const { return i; }
    bool operator!=(const Counter &o) const { return i < o.i; }
    Counter &operator++() {
        i++;
        return *this;
    }
};
struct Range {
    int from, to;
    Counter begin() const { return {from}; }
    Counter end() const { return {to}; }
};
SIM_INLINE Range irange(int from, int to) { return {from, to}; }

} // namespace tiles
} // namespace cuda

#endif
