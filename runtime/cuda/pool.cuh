/* pool.cuh: MaxPool, AveragePool and their gradients, one thread per result.

   Gradients gather: a thread visits the windows that hold its input, in
   ascending order, so that sums have one order and need no atomics.
   P: the parameters of LibPool; T: type of X and Y.                         */
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

    /* First window element of output o at or behind input `from`. */
    static __device__ I first(I o, I from) {
        I low = o * stride - pad;
        return low >= from ? 0 : (from - low + dilation - 1) / dilation;
    }
    static __device__ I at(I o, I t) { return o * stride + t * dilation - pad; }
    /* Elements that output o averages. */
    static __device__ I count(I o) {
        I t0 = first(o, COUNT_PAD ? -pad : 0);
        I t1 = first(o, COUNT_PAD ? in + (I)PAD_END : in);
        t1 = t1 < kernel ? t1 : kernel;
        return t1 > t0 ? t1 - t0 : 0;
    }
    /* Outputs [low, high) whose windows may hold input i; holds() decides. */
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
    /* No input is held by more windows. */
    static constexpr I most = up_div((KERNEL - 1) * DILATION + 1, STRIDE);
    /* Which element of o's window input i is, where it holds i. */
    static __device__ I tap(I o, I i) {
        return (i + pad - o * stride) / dilation;
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

    /* visit(position in the input plane, number of the window element) over the
       window of output o. */
    template <class Visit> static __device__ void window(I o, Visit visit) {
        I ox = o % D2::out, oy = o / D2::out % D1::out,
          oz = o / D2::out / D1::out;
        UNROLL_4
        for (I tz = 0; tz < D0::kernel; tz++) {
            if (!below(D0::at(oz, tz), D0::in)) continue;
            UNROLL_4
            for (I ty = 0; ty < D1::kernel; ty++) {
                if (!below(D1::at(oy, ty), D1::in)) continue;
                I row = (D0::at(oz, tz) * D1::in + D1::at(oy, ty)) * D2::in;
                UNROLL_4
                for (I tx = 0; tx < D2::kernel; tx++)
                    if (below(D2::at(ox, tx), D2::in))
                        visit(row + D2::at(ox, tx),
                              (tz * D1::kernel + ty) * D2::kernel + tx);
            }
        }
    }

    /* visit(output, number of the window element) over the windows that hold
       position i of the plane. */
    template <class Visit> static __device__ void windows(I i, Visit visit) {
        I x = i % D2::in, y = i / D2::in % D1::in, z = i / D2::in / D1::in;
        UNROLL_4
        for (I jz = 0; jz < D0::most; jz++) {
            I oz = D0::low(z) + jz;
            if (oz >= D0::high(z) || !D0::holds(oz, z)) continue;
            UNROLL_4
            for (I jy = 0; jy < D1::most; jy++) {
                I oy = D1::low(y) + jy;
                if (oy >= D1::high(y) || !D1::holds(oy, y)) continue;
                UNROLL_4
                for (I jx = 0; jx < D2::most; jx++) {
                    I ox = D2::low(x) + jx;
                    if (ox < D2::high(x) && D2::holds(ox, x))
                        visit((oz * D1::out + oy) * D2::out + ox,
                              (D0::tap(oz, z) * D1::kernel + D1::tap(oy, y)) *
                                      D2::kernel +
                                  D2::tap(ox, x));
                }
            }
        }
    }

    static __device__ I count(I o) {
        return D0::count(o / D2::out / D1::out) *
               D1::count(o / D2::out % D1::out) * D2::count(o % D2::out);
    }
};

/* What an empty window gives. */
template <class C> __device__ inline C pool_lowest() { return 0; }
template <> __device__ inline float pool_lowest() { return -INFINITY; }
template <> __device__ inline double pool_lowest() { return -(double)INFINITY; }

/* NaN wins, the first of equals is named; -1 where the window is empty. */
template <class P>
__device__ void maxpool(const typename P::T *x, typename P::T *y,
                        typename P::Idx *idx) {
    typedef Pool<P> G;
    typedef typename G::I I;
    typedef Compute<typename P::T> C;
    I i = flat_index<I>();
    if (i >= G::y_all) return;
    const typename P::T *plane = x + i / G::y_size * G::x_size;
    C best = pool_lowest<C>();
    I which = -1;
    G::window(i % G::y_size, [&](I at, I tap) {
        C v = widen(plane[at]);
        if (which < 0 || v > best || (v != v && best == best)) {
            best = v;
            which = tap;
        }
    });
    y[i] = narrow<typename P::T>(best);
    if (idx) idx[i] = (typename P::Idx)which;
}

template <class P>
__device__ void maxpool_grad(const typename P::T *dy,
                             const typename P::Idx *idx, typename P::T *dx) {
    typedef Pool<P> G;
    typedef typename G::I I;
    I i = flat_index<I>();
    if (i >= G::x_all) return;
    I own = i % G::x_size, from = i / G::x_size * G::y_size;
    Compute<typename P::T> sum = 0;
    G::windows(own, [&](I o, I tap) {
        if ((I)idx[from + o] == tap) sum += widen(dy[from + o]);
    });
    dx[i] = narrow<typename P::T>(sum);
}

template <class P>
__device__ void avgpool(const typename P::T *x, typename P::T *y) {
    typedef Pool<P> G;
    typedef typename G::I I;
    typedef Compute<typename P::T> C;
    I i = flat_index<I>();
    if (i >= G::y_all) return;
    const typename P::T *plane = x + i / G::y_size * G::x_size;
    C sum = 0, n = (C)G::count(i % G::y_size);
    G::window(i % G::y_size, [&](I at, I) { sum += widen(plane[at]); });
    y[i] = narrow<typename P::T>(n > 0 ? sum / n : (C)0);
}

template <class P>
__device__ void avgpool_grad(const typename P::T *dy, typename P::T *dx) {
    typedef Pool<P> G;
    typedef typename G::I I;
    typedef Compute<typename P::T> C;
    I i = flat_index<I>();
    if (i >= G::x_all) return;
    I from = i / G::x_size * G::y_size;
    C sum = 0;
    G::windows(i % G::x_size, [&](I o, I) {
        C n = (C)G::count(o);
        if (n > 0) sum += widen(dy[from + o]) / n;
    });
    dx[i] = narrow<typename P::T>(sum);
}

#endif
