/* SPDX-License-Identifier: Apache-2.0 */
/* pool.cuh: MaxPool, AveragePool and their gradients. A thread computes one
   result, or `near` adjacent ones on a line, which are stored together.

   Gradients gather: a thread visits the windows that contain its input, in
   ascending order, so that sums have one order and need no atomics.
   P: the parameters of LibPool; near; T: type of X and Y.                   */
#ifndef AMPC_POOL_CUH
#define AMPC_POOL_CUH

#include "device.cuh"

/* One spatial dimension. */
template <class I, long long IN, long long OUT, long long KERNEL,
          long long STRIDE, long long DILATION, long long PAD,
          long long PAD_END, bool COUNT_PAD>
struct PoolDim {
    static constexpr I in = IN, out = OUT, kernel = KERNEL, dilation = DILATION,
                       stride = STRIDE, pad = PAD;

    /* First window element of output o at or after input `from`. */
    static __device__ I first(I o, I from) {
        I low = o * stride - pad;
        return low >= from ? 0 : (from - low + dilation - 1) / dilation;
    }
    static __device__ I at(I o, I t) { return o * stride + t * dilation - pad; }
    /* Number of elements that output o averages. */
    static __device__ I count(I o) {
        I t0 = first(o, COUNT_PAD ? -pad : 0);
        I t1 = first(o, COUNT_PAD ? in + (I)PAD_END : in);
        t1 = t1 < kernel ? t1 : kernel;
        return t1 > t0 ? t1 - t0 : 0;
    }
    /* Outputs [low, high) whose windows may contain input i; holds()
       decides. */
    static __device__ I low(I i) {
        I reach = i + pad - (kernel - 1) * dilation;
        return reach <= 0 ? 0 : (reach + stride - 1) / stride;
    }
    static __device__ I high(I i) {
        I o = (i + pad) / stride + 1;
        return o < out ? o : out;
    }
    static __device__ bool holds(I o, I i) {
        return (i + pad - o * stride) % dilation == 0;
    }
    /* No input is in more windows. */
    static constexpr I most = up_div((KERNEL - 1) * DILATION + 1, STRIDE);
    /* Number of input i among the elements of output o's window; i must be
       in the window. */
    static __device__ I tap(I o, I i) {
        return (i + pad - o * stride) / dilation;
    }
    /* Outputs whose window contains one of n consecutive inputs; the first
       input is a multiple of n, and n is 1 or STRIDE. There are meet(n) such
       outputs, from `i / stride + nearest` on. */
    static constexpr int reach = (int)((KERNEL - 1) * DILATION);
    static constexpr int nearest =
        (int)(PAD >= reach ? up_div(PAD - reach, STRIDE)
                           : -((reach - PAD) / STRIDE));
    static constexpr int meet(int n) {
        return (int)((n - 1 + PAD) / STRIDE) - nearest + 1;
    }
    /* Number of the u-th input among the elements of the j-th of these
       outputs' windows; -1 if it is not in the window. */
    static constexpr int tap_of(int j, int u) {
        int from = u + (int)PAD - (nearest + j) * (int)STRIDE;
        return from < 0 || from > reach || from % (int)DILATION
                   ? -1
                   : from / (int)DILATION;
    }
};

template <class P> struct Pool {
    static constexpr long long xs = P::in0 * P::in1 * P::in2;
    static constexpr long long ys = P::out0 * P::out1 * P::out2;
    typedef Index<P::planes * largest(xs, ys)> I;
    static constexpr I x_size = some(xs), y_size = some(ys);
    static constexpr I x_all = P::planes * xs, y_all = P::planes * ys;
    static constexpr bool pads = P::count_include_pad != 0;
    typedef PoolDim<I, P::in0, P::out0, P::kernel0, P::stride0, P::dilation0,
                    P::pad0, P::pad_end0, pads>
        D0;
    typedef PoolDim<I, P::in1, P::out1, P::kernel1, P::stride1, P::dilation1,
                    P::pad1, P::pad_end1, pads>
        D1;
    typedef PoolDim<I, P::in2, P::out2, P::kernel2, P::stride2, P::dilation2,
                    P::pad2, P::pad_end2, pads>
        D2;

    /* Number of elements of a line in the windows of n adjacent outputs. */
    static constexpr int span(int n) {
        return (n - 1) * (int)P::stride2 + D2::reach + 1;
    }

    /* Calls visit(start of a line of the input plane, number of the window's
       first element on it) for the lines that the window of output o reads. */
    template <class Visit> static __device__ void rows(I o, Visit visit) {
        I oy = o / D2::out % D1::out, oz = o / D2::out / D1::out;
        UNROLL_4
        for (I tz = 0; tz < D0::kernel; tz++) {
            if (!below(D0::at(oz, tz), D0::in)) continue;
            UNROLL_4
            for (I ty = 0; ty < D1::kernel; ty++)
                if (below(D1::at(oy, ty), D1::in))
                    visit((D0::at(oz, tz) * D1::in + D1::at(oy, ty)) * D2::in,
                          (tz * D1::kernel + ty) * D2::kernel);
        }
    }

    /* Calls visit(position in the input plane, number of the window element)
       for the window of output o. */
    template <class Visit> static __device__ void window(I o, Visit visit) {
        I ox = o % D2::out;
        rows(o, [&](I row, I tap) {
            UNROLL_4
            for (I tx = 0; tx < D2::kernel; tx++)
                if (below(D2::at(ox, tx), D2::in))
                    visit(row + D2::at(ox, tx), tap + tx);
        });
    }

    /* Calls visit(start of a line of the output plane, number of the first
       window element on a line) for the lines whose windows contain line i of
       the input.
     */
    template <class Visit>
    static __device__ void rows_around(I i, Visit visit) {
        I y = i / D2::in % D1::in, z = i / D2::in / D1::in;
        UNROLL_4
        for (I jz = 0; jz < D0::most; jz++) {
            I oz = D0::low(z) + jz;
            if (oz >= D0::high(z) || !D0::holds(oz, z)) continue;
            UNROLL_4
            for (I jy = 0; jy < D1::most; jy++) {
                I oy = D1::low(y) + jy;
                if (oy < D1::high(y) && D1::holds(oy, y))
                    visit((oz * D1::out + oy) * D2::out,
                          (D0::tap(oz, z) * D1::kernel + D1::tap(oy, y)) *
                              D2::kernel);
            }
        }
    }

    /* Calls visit(output, number of the window element) for the windows that
       contain position i of the plane. */
    template <class Visit> static __device__ void windows(I i, Visit visit) {
        I x = i % D2::in;
        rows_around(i, [&](I row, I tap) {
            UNROLL_4
            for (I jx = 0; jx < D2::most; jx++) {
                I ox = D2::low(x) + jx;
                if (ox < D2::high(x) && D2::holds(ox, x))
                    visit(row + ox, tap + D2::tap(ox, x));
            }
        });
    }

    /* The elements of a line that the windows of N outputs from ox on read;
       outside: the value of elements beyond the line. */
    template <int N, class T, class C>
    static __device__ void read_line(const T *line, I ox, C outside,
                                     C (&to)[span(N)]) {
        constexpr int packs = D2::in % N == 0 ? (int)D2::stride : 0;
        I from = ox * D2::stride;
        UNROLL
        for (int i = 0; i < packs; i++) {
            bool there = from + i * N < D2::in;
            Pack<N, T> p = {};
            if (there) p = pack_load<N>(line + from + i * N);
            UNROLL
            for (int e = 0; e < N; e++)
                if ((int)D2::pad + i * N + e < span(N))
                    to[(int)D2::pad + i * N + e] =
                        there ? widen(p.v[e]) : outside;
        }
        UNROLL
        for (int s = 0; s < span(N); s++) {
            if (s >= (int)D2::pad && s < (int)D2::pad + packs * N) continue;
            I at = from + s - D2::pad;
            to[s] = below(at, D2::in) ? widen(line[at]) : outside;
        }
    }

    /* Calls visit(values of a line, number of its first window element) for
       the lines that the windows of N outputs from o on share. */
    template <int N, class T, class C, class Visit>
    static __device__ void lines(const T *plane, I o, C outside, Visit visit) {
        rows(o, [&](I row, I tap) {
            C value[span(N)];
            read_line<N>(plane + row, o % D2::out, outside, value);
            visit(value, tap);
        });
    }
    /* Position in that line of element t in the u-th output's window. */
    static constexpr int place(int u, int t) {
        return u * (int)D2::stride + t * (int)D2::dilation;
    }

    /* Calls visit(output, number of the first element of its window's line,
       j) for the windows that contain one of N positions from i on
       (PoolDim::meet). */
    template <int N, class Visit>
    static __device__ void around(I i, Visit visit) {
        I x = i % D2::in;
        rows_around(i, [&](I row, I tap) {
            UNROLL
            for (int j = 0; j < D2::meet(N); j++) {
                I ox = x / D2::stride + D2::nearest + j;
                if (below(ox, D2::out)) visit(row + ox, tap, j);
            }
        });
    }

    static __device__ I count(I o) {
        return D0::count(o / D2::out / D1::out) *
               D1::count(o / D2::out % D1::out) * D2::count(o % D2::out);
    }
    /* The first element of a window; -1: the window is empty. */
    static __device__ I first(I o) {
        I x = o % D2::out, y = o / D2::out % D1::out, z = o / D2::out / D1::out;
        I tx = D2::first(x, 0), ty = D1::first(y, 0), tz = D0::first(z, 0);
        bool has = tx < D2::kernel && D2::at(x, tx) < D2::in &&
                   ty < D1::kernel && D1::at(y, ty) < D1::in &&
                   tz < D0::kernel && D0::at(z, tz) < D0::in;
        return has ? (tz * D1::kernel + ty) * D2::kernel + tx : -1;
    }
};

/* Result of an empty window. */
template <class C> __device__ inline C pool_lowest() { return 0; }
template <> __device__ inline float pool_lowest() { return -INFINITY; }
template <> __device__ inline double pool_lowest() { return -(double)INFINITY; }

/* NaN wins; among equal values the first one's number is returned; -1 if the
   window is empty. */
template <class P>
__device__ void maxpool(const typename P::T *x, typename P::T *y,
                        typename P::Idx *idx) {
    typedef Pool<P> G;
    typedef typename G::I I;
    typedef Compute<typename P::T> C;
    constexpr int N = P::near;
    I i = flat_index<I>() * N;
    if (i >= G::y_all) return;
    const typename P::T *plane = x + i / G::y_size * G::x_size;
    Pack<N, C> best;
    Pack<N, I> which;
    UNROLL
    for (int u = 0; u < N; u++) best.v[u] = pool_lowest<C>(), which.v[u] = -1;
    const auto take = [&](int u, C v, I tap) {
        if (v <= best.v[u] || best.v[u] != best.v[u]) return;
        best.v[u] = v;
        which.v[u] = tap;
    };
    if constexpr (N == 1)
        G::window(i % G::y_size,
                  [&](I at, I tap) { take(0, widen(plane[at]), tap); });
    else
        G::template lines<N>(plane, i % G::y_size, pool_lowest<C>(),
                             [&](const auto &value, I tap) {
                                 UNROLL
                                 for (int t = 0; t < G::D2::kernel; t++) UNROLL
                                 for (int u = 0; u < N; u++)
                                     take(u, value[G::place(u, t)], tap + t);
                             });
    pack_store(y + i, narrow<typename P::T>(best));
    if (!idx) return;
    UNROLL
    for (int u = 0; u < N; u++) /* nothing in the window is above -inf */
        if (which.v[u] < 0) which.v[u] = G::first(i % G::y_size + u);
    pack_store(idx + i, narrow<typename P::Idx>(which));
}

template <class P>
__device__ void maxpool_grad(const typename P::T *dy,
                             const typename P::Idx *idx, typename P::T *dx) {
    typedef Pool<P> G;
    typedef typename G::I I;
    typedef Compute<typename P::T> C;
    constexpr int N = P::near;
    I i = flat_index<I>() * N;
    if (i >= G::x_all) return;
    I own = i % G::x_size, from = i / G::x_size * G::y_size;
    Pack<N, C> sum = {};
    if constexpr (N == 1)
        G::windows(own, [&](I o, I tap) {
            if ((I)idx[from + o] == tap) sum.v[0] += widen(dy[from + o]);
        });
    else
        G::template around<N>(own, [&](I o, I tap, int j) {
            I at = (I)idx[from + o] - tap;
            C v = widen(dy[from + o]);
            UNROLL
            for (int u = 0; u < N; u++) {
                int t = G::D2::tap_of(j, u);
                if (t >= 0 && at == t) sum.v[u] += v;
            }
        });
    pack_store(dx + i, narrow<typename P::T>(sum));
}

template <class P>
__device__ void avgpool(const typename P::T *x, typename P::T *y) {
    typedef Pool<P> G;
    typedef typename G::I I;
    typedef Compute<typename P::T> C;
    constexpr int N = P::near;
    I i = flat_index<I>() * N;
    if (i >= G::y_all) return;
    const typename P::T *plane = x + i / G::y_size * G::x_size;
    Pack<N, C> sum = {};
    if constexpr (N == 1)
        G::window(i % G::y_size,
                  [&](I at, I) { sum.v[0] += widen(plane[at]); });
    else
        G::template lines<N>(plane, i % G::y_size, (C)0,
                             [&](const auto &value, I) {
                                 UNROLL
                                 for (int t = 0; t < G::D2::kernel; t++) UNROLL
                                 for (int u = 0; u < N; u++)
                                     sum.v[u] += value[G::place(u, t)];
                             });
    UNROLL
    for (int u = 0; u < N; u++) {
        C n = (C)G::count(i % G::y_size + u);
        sum.v[u] = n > 0 ? sum.v[u] / n : (C)0;
    }
    pack_store(y + i, narrow<typename P::T>(sum));
}

template <class P>
__device__ void avgpool_grad(const typename P::T *dy, typename P::T *dx) {
    typedef Pool<P> G;
    typedef typename G::I I;
    typedef Compute<typename P::T> C;
    constexpr int N = P::near;
    I i = flat_index<I>() * N;
    if (i >= G::x_all) return;
    I own = i % G::x_size, from = i / G::x_size * G::y_size;
    Pack<N, C> sum = {};
    const auto share = [&](I o) {
        C n = (C)G::count(o);
        return n > 0 ? widen(dy[from + o]) / n : (C)0;
    };
    if constexpr (N == 1)
        G::windows(own, [&](I o, I) { sum.v[0] += share(o); });
    else
        G::template around<N>(own, [&](I o, I, int j) {
            C v = share(o);
            UNROLL
            for (int u = 0; u < N; u++)
                if (G::D2::tap_of(j, u) >= 0) sum.v[u] += v;
        });
    pack_store(dx + i, narrow<typename P::T>(sum));
}

#endif
