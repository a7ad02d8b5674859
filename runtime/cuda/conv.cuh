/* SPDX-License-Identifier: Apache-2.0 */
/* conv.cuh: convolution and its gradients as implicit matrix products, in the
   plan's layout X[n, c, in...], W[k, c/group, kernel...], Y[n, k, out...].

     forward  rows = k/group    columns = n * out        steps = c/group * taps
     dgrad    rows = c/group    columns = n * in phase   steps = k/group * taps
     wgrad    rows = k/group    columns = c/group * taps steps = n * out

   P: the parameters of LibConv; X, W, Y: the types of X
   or dX, W or dW, Y or dY; Tile; wgrad: splits.                             */
#ifndef AMPC_CONV_CUH
#define AMPC_CONV_CUH

#include "conv_places.cuh"

/* ---- forward ------------------------------------------------------------- */

/* Results of one channel, planes of PLANE in each of `images`.  If planes
   are not multiples of 8 bytes, `near` results are stored one by one, but
   their address is computed once; the last ones may belong to the next
   image, `next` after the end of the plane. */
template <class T, long long PLANE, long long IMAGES> struct Planes {
    static constexpr int packs = near_of<T>(PLANE);
    static constexpr bool apart = 16 / sizeof(T) >
                                  2 * packs &&PLANE * sizeof(T) >= 16;
    static constexpr int near = apart ? near_of<T>(PLANE * IMAGES) : packs;
    template <int N>
    static __device__ void store(T *to, Index<PLANE> at, long long next,
                                 const Pack<N, float> &acc) {
        if constexpr (PLANE % N == 0) {
            pack_store(to, narrow<T>(acc));
        } else {
            T *const behind = to + next;
            UNROLL
            for (int i = 0; i < N; i++)
                (at + i < PLANE ? to : behind)[i] = narrow<T>(acc.v[i]);
        }
    }
};

template <class P> struct StoreConv {
    typedef typename P::Y Y;
    typedef Planes<Y, Conv<P>::y_size, Conv<P>::n> Run;
    static constexpr int near = Run::near;
    Y *y;
    template <int N>
    __device__ void operator()(const Pack<N, float> &acc, long long image,
                               long long channel, long long at) const {
        long long line = image * Conv<P>::k + channel;
        Run::store(y + (line * Conv<P>::y_size + at),
                   (Index<Conv<P>::y_size>)at,
                   (long long)(Conv<P>::k - 1) * Conv<P>::y_size, acc);
    }
};

template <class P> struct ConvColumns : ConvX<P> {
    typedef typename ConvX<P>::I I;
    static constexpr bool along_k = false;
    __device__ auto row(I i) const { return this->output(i); }
    __device__ auto col(I k) const { return this->tap(k); }
};

/* A tensor of planes by (image, position) and channel. */
template <class E, class Int, long long CHANNELS, long long SIZE>
struct ConvPositions {
    typedef E Element;
    typedef Int I;
    static constexpr bool along_k = false, table = false;
    static constexpr int near = 1;
    const Element *x; /* at the group's first channel */
    __device__ I row(I i) const {
        return i / (I)SIZE * (I)(CHANNELS * SIZE) + i % (I)SIZE;
    }
    __device__ I col(I c) const { return c * (I)SIZE; }
    __device__ Element load(I r, I c, bool ok) const {
        return load_if(x + (r + c), ok);
    }
};

/* X by (image, output) and (channel, tap). */
template <class P, bool POINTS> struct ConvInput {
    typedef ConvColumns<P> Type;
};
template <class P> struct ConvInput<P, true> {
    typedef ConvPositions<typename P::X, typename Conv<P>::I, P::c,
                          Conv<P>::x_size>
        Type;
};

template <class P, class Out> struct ConvOut {
    typedef typename Conv<P>::I I;
    static constexpr int near = Out::near;
    const Out &out;
    I channel; /* the group's first */
    __device__ void operator()(I m, I n, const Pack<near, float> &acc) const {
        out(acc, n / Conv<P>::y_size, channel + m, n % Conv<P>::y_size);
    }
    /* of conv_sums.cuh */
    static __device__ float rounded(float x) { return Out::rounded(x); }
    __device__ void keep(I m, I strip, float sum, float squares) const {
        out.keep(channel + m, strip, sum, squares);
    }
};

template <class P, class Out>
__device__ void conv_fwd(const typename P::X *x, const typename P::W *w,
                         const Out &out) {
    typedef Conv<P> G;
    typedef typename G::I I;
    typedef typename P::Tile T;
    constexpr I cols = G::n * G::y_size, depth = G::cg * G::taps;
    constexpr unsigned mt = up_div(G::kg, T::m), nt = up_div(cols, T::n);
    unsigned tile = blockIdx.x % (mt * nt);
    I g = G::group > 1 ? blockIdx.x / (mt * nt) : 0;
    typedef Matrix<typename P::W, I, depth, 1, near_of<typename P::W>(depth)>
        Weights;
    Weights a = {w + g * G::kg * depth};
    typename ConvInput<P, G::points>::Type b;
    b.x = x + g * G::cg * G::x_size;
    Part<I, G::kg % T::m == 0, cols % T::n == 0, depth % T::k == 0> part = {
        (I)(tile % mt) * T::m, G::kg, (I)(tile / mt) * T::n, cols, 0, depth};
    T::run(a, b, ConvOut<P, Out>{out, g * G::kg}, part);
}

/* Few channels per group: a thread computes Out::near results. */
template <class P, class Out>
__device__ void conv_fwd_direct(const typename P::X *x, const typename P::W *w,
                                const Out &out) {
    typedef Conv<P> G;
    typedef typename G::I I;
    constexpr I depth = G::cg * G::taps;
    constexpr int near = G::y_size % Out::near ? 1 : Out::near;
    I i = flat_index<I>() * near;
    if (i >= G::n * G::k * G::y_size) return;
    I at = i % G::y_size, channel = i / G::y_size % G::k;
    I image = i / G::y_size / G::k;
    ConvX<P> in = {x + channel / G::kg * (G::cg * G::x_size)};
    typename ConvX<P>::Place spot[near];
    Pack<near, float> sum = {};
    UNROLL
    for (int u = 0; u < near; u++)
        spot[u] = in.output(image * G::y_size + at + u);
    UNROLL_2
    for (I k = 0; k < depth; k++) {
        float factor = widen(w[channel * depth + k]);
        auto tap = in.tap(k);
        UNROLL
        for (int u = 0; u < near; u++)
            sum.v[u] =
                fmaf(factor, widen(in.load(spot[u], tap, true)), sum.v[u]);
    }
    out(sum, image, channel, at);
}

/* ---- gradient by the input ----------------------------------------------- */

/* The results of one phase, i % stride equal in each dimension: a convolution
   of stride 1 of dY.  Dimension d of a phase: */
template <class D, class I> struct ConvPhase {
    I phase, tap, base; /* result j and tap number t read j + base - t * step */
    I taps;
    __device__ explicit ConvPhase(I r) : phase(r) {
        tap = 0;
        while (tap < D::period && (r + D::pad - tap * D::dilation) % D::stride)
            tap++;
        if (tap == D::period) tap = D::kernel; /* none */
        base = (r + D::pad - tap * D::dilation) / D::stride;
        taps = tap < D::kernel ? (D::kernel - 1 - tap) / D::period + 1 : 0;
    }
    /* The number of taps to sum. If a phase has at most two taps: the number
       that this phase has. */
    __device__ I steps() const {
        return taps > 0 && D::ntap > 2 ? D::ntap : taps;
    }
    /* Divides a step k whose last factor is the tap: returns the tap's
       number and leaves the quotient in k. */
    __device__ I split(I &k) const {
        if constexpr (D::ntap == 1) {
            return 0;
        } else if constexpr (D::ntap == 2) {
            I two = taps > 1, t = k & two;
            k >>= two;
            return t;
        } else {
            I t = k % D::ntap;
            k /= D::ntap;
            return t;
        }
    }
    __device__ I tap_at(I t) const { return tap + t * D::period; }
    /* -t * step, or an offset before any output if tap t does not exist. */
    __device__ I behind(I t) const {
        return tap_at(t) < D::kernel ? -t * D::step : -D::past;
    }
    /* Bit t: tap number t of a result meets no output; `first`: the output of
       tap number 0. */
    __device__ unsigned missing(I first) const {
        unsigned bits = 0;
        UNROLL
        for (int t = 0; t < (int)D::ntap; t++)
            bits |= (unsigned)!D::written(first + behind(t)) << t;
        return bits;
    }
};

template <class P> struct ConvPhases {
    typedef Conv<P> G;
    typedef typename G::I I;
    typedef typename G::D0 D0;
    typedef typename G::D1 D1;
    typedef typename G::D2 D2;
    /* Windows of a single element leave all other inputs zero: the block
       that computes the one element also stores the zeros around it. */
    static constexpr bool points = P::kernel0 * P::kernel1 * P::kernel2 == 1 &&
                                   P::pad0 + P::pad1 + P::pad2 == 0;
    static constexpr I count =
        points ? 1 : D0::stride * D1::stride * D2::stride;
    static constexpr I cols = G::n * D0::count * D1::count * D2::count;
    static constexpr I most = G::kg * D0::ntap * D1::ntap * D2::ntap;
    ConvPhase<D0, I> p0;
    ConvPhase<D1, I> p1;
    ConvPhase<D2, I> p2;
    __device__ explicit ConvPhases(I i)
        : p0(i / D2::stride / D1::stride), p1(i / D2::stride % D1::stride),
          p2(i % D2::stride) {}
    __device__ I depth() const {
        return G::kg * p0.steps() * p1.steps() * p2.steps();
    }
    /* The tap numbers of a step, and its channel. */
    __device__ Spot<I> step(I k) const {
        Spot<I> s;
        s.x = p2.split(k);
        s.y = p1.split(k);
        s.z = p0.split(k);
        s.base = k;
        return s;
    }
};

/* W[k, c, tap] with rows c. */
template <class P> struct ConvBackW {
    typedef Conv<P> G;
    typedef typename G::I I;
    typedef ConvPhases<P> Ph;
    typedef typename P::W Element;
    static constexpr bool along_k = true, table = false;
    static constexpr int near = 1;
    const Element *w; /* at the group's first k */
    const Ph &ph;

    __device__ I row(I c) const { return c * G::taps; }
    __device__ Spot<I> col(I k) const {
        Spot<I> s = ph.step(k);
        s.base *= G::cg * G::taps;
        s.z = ph.p0.tap_at(s.z);
        s.y = ph.p1.tap_at(s.y);
        s.x = ph.p2.tap_at(s.x);
        s.base += spot_offset<I>(s, G::D1::kernel, G::D2::kernel);
        return s;
    }
    __device__ Element load(I row, Spot<I> s, bool ok) const {
        ok &= (s.z < G::D0::kernel) & (s.y < G::D1::kernel) &
              (s.x < G::D2::kernel);
        return ok ? w[row + s.base] : Element();
    }
};

/* dY by (image, j) and (k, tap number). */
template <class P> struct ConvBackY {
    typedef Conv<P> G;
    typedef typename G::I I;
    typedef typename G::D0 D0;
    typedef typename G::D1 D1;
    typedef typename G::D2 D2;
    typedef ConvPhases<P> Ph;
    typedef typename P::Y Element;
    static constexpr int n0 = D0::ntap, n1 = D1::ntap, n2 = D2::ntap;
    static constexpr bool bits = D0::ntap + D1::ntap + D2::ntap <= 32;
    typedef typename PlaceOf<I, bits>::Type Place;
    static constexpr bool along_k = false, table = true;
    static constexpr int near = 1;
    const Element *y; /* at the group's first k */
    const Ph &ph;

    __device__ Place place(I image, I z, I y0, I x) const {
        Spot<I> s = {0, z + ph.p0.base, y0 + ph.p1.base, x + ph.p2.base};
        s.base =
            image * (G::k * G::y_size) + spot_offset<I>(s, D1::out, D2::out);
        if constexpr (bits)
            return {s.base, join_bits(ph.p0.missing(s.z), ph.p1.missing(s.y),
                                      ph.p2.missing(s.x), n0, n1)};
        else
            return s;
    }
    __device__ Place row(I i) const {
        Spot<I> s = spot_of<I>(i, D0::count, D1::count, D2::count);
        return place(s.base, s.z, s.y, s.x);
    }
    __device__ Place col(I k) const {
        Spot<I> s = ph.step(k);
        Spot<I> far = {0, s.z * D0::step, s.y * D1::step, s.x * D2::step};
        I z = s.z, y0 = s.y, x = s.x;
        s.base *= G::y_size;
        s.base -= spot_offset<I>(far, D1::out, D2::out);
        s.z = ph.p0.behind(s.z);
        s.y = ph.p1.behind(s.y);
        s.x = ph.p2.behind(s.x);
        if constexpr (bits)
            return {s.base, join_bits(1u << z, 1u << y0, 1u << x, n0, n1)};
        else
            return s;
    }
    __device__ Element load(Place a, Place b, bool ok) const {
        if constexpr (bits)
            ok &= !(a.places & b.places);
        else
            ok &= D0::written(a.z + b.z) & D1::written(a.y + b.y) &
                  D2::written(a.x + b.x);
        return load_if(y + (a.base + b.base), ok);
    }
};

/* Stores results. With several phases, neighbours on a line are `stride`
   apart; for windows of one element, results are stored together with the
   zeros between them. */
template <class P> struct ConvBackOut {
    typedef Conv<P> G;
    typedef ConvPhases<P> Ph;
    typedef typename G::I I;
    typedef typename G::D0 D0;
    typedef typename G::D1 D1;
    typedef typename G::D2 D2;
    typedef typename P::X X;
    typedef Planes<X, G::x_size, G::n> Run;
    static constexpr bool one = D0::stride * D1::stride * D2::stride == 1;
    static constexpr int wide = near_of<X>(D2::in); /* at once, with zeros */
    static constexpr bool spreads = Ph::points && wide % D2::stride == 0;
    static constexpr int near = one          ? Run::near
                                : spreads    ? wide / (int)D2::stride
                                : Ph::points ? 1
                                             : near_of<X>(D2::count);
    X *x; /* at the group's first channel */
    const Ph &ph;
    __device__ void operator()(I m, I n, const Pack<near, float> &acc) const {
        if constexpr (one) {
            I at = n % G::x_size, line = n / G::x_size * G::c + m;
            Run::store(x + (line * G::x_size + at), at,
                       (long long)(G::c - 1) * G::x_size, acc);
        } else {
            Spot<I> s = spot_of<I>(n, D0::count, D1::count, D2::count);
            I z = s.z * D0::stride + ph.p0.phase;
            I y = s.y * D1::stride + ph.p1.phase;
            I at = s.x * D2::stride + ph.p2.phase;
            X *plane = x + (s.base * G::c + m) * G::x_size;
            if constexpr (Ph::points)
                cell(plane, z, y, at, acc);
            else
                phase(plane, z, y, at, acc);
        }
    }
    __device__ void phase(X *plane, I z, I y, I at,
                          const Pack<near, float> &acc) const {
        if (z >= D0::in || y >= D1::in) return;
        X *to = plane + ((z * D1::in + y) * D2::in + at);
        UNROLL
        for (int i = 0; i < near; i++)
            if (at + i * D2::stride < D2::in)
                to[i * D2::stride] = narrow<X>(acc.v[i]);
    }
    __device__ void cell(X *plane, I z0, I y0, I at,
                         const Pack<near, float> &acc) const {
        UNROLL
        for (I z = z0; z < z0 + D0::stride; z++) UNROLL
        for (I y = y0; y < y0 + D1::stride; y++) {
            if (z >= D0::in || y >= D1::in) continue;
            X *to = plane + ((z * D1::in + y) * D2::in + at);
            bool here = z == z0 && y == y0;
            if constexpr (spreads) {
                Pack<wide, X> v = {};
                UNROLL
                for (int i = 0; i < near && here; i++)
                    v.v[i * D2::stride] = narrow<X>(acc.v[i]);
                pack_store(to, v);
            } else {
                UNROLL
                for (int i = 0; i < D2::stride; i++)
                    if (at + i < D2::in)
                        to[i] = i == 0 && here ? narrow<X>(acc.v[0]) : X();
            }
        }
    }
};

/* to(c, phases): the functor for a group whose first channel is c. */
template <class P, class To>
__device__ void conv_dgrad_tile(const typename P::Y *dy, const typename P::W *w,
                                To to) {
    typedef Conv<P> G;
    typedef typename G::I I;
    typedef ConvPhases<P> Ph;
    typedef typename P::Tile T;
    constexpr unsigned mt = up_div(G::cg, T::m), nt = up_div(Ph::cols, T::n);
    unsigned tile = blockIdx.x % (mt * nt), rest = blockIdx.x / (mt * nt);
    Ph ph((I)(rest % (unsigned)Ph::count));
    I g = G::group > 1 ? rest / (unsigned)Ph::count : 0;
    const typename P::W *wg = w + g * G::kg * (G::cg * G::taps);
    const typename P::Y *yg = dy + g * G::kg * G::y_size;
    auto out = to(g * G::cg, ph);
    constexpr bool whole =
        G::kg % T::k == 0 || (Ph::count == 1 && Ph::most % T::k == 0);
    Part<I, G::cg % T::m == 0, Ph::cols % T::n == 0, whole> part = {
        (I)(tile % mt) * T::m,
        G::cg,
        (I)(tile / mt) * T::n,
        Ph::cols,
        0,
        ph.depth()};
    if constexpr (G::points)
        T::run(Matrix<typename P::W, I, 1, G::cg>{wg},
               ConvPositions<typename P::Y, I, P::k, G::y_size>{yg}, out, part);
    else
        T::run(ConvBackW<P>{wg, ph}, ConvBackY<P>{yg, ph}, out, part);
}

/* Places of the group's results. */
template <class P> struct ToBack {
    typedef typename Conv<P>::I I;
    typename P::X *dx;
    __device__ ConvBackOut<P> operator()(I c, const ConvPhases<P> &ph) const {
        return {dx + c * Conv<P>::x_size, ph};
    }
};

template <class P>
__device__ void conv_dgrad(const typename P::Y *dy, const typename P::W *w,
                           typename P::X *dx) {
    conv_dgrad_tile<P>(dy, w, ToBack<P>{dx});
}

/* Few channels per group: a thread computes adjacent results. */
template <class P>
__device__ void conv_dgrad_direct(const typename P::Y *dy,
                                  const typename P::W *w, typename P::X *dx) {
    typedef Conv<P> G;
    typedef typename G::I I;
    typedef ConvPhases<P> Ph;
    typedef ConvBackOut<P> Out;
    constexpr bool packs = Out::one && !Out::Run::apart;
    constexpr int near = packs ? Out::near : 1;
    I i = flat_index<I>() * near;
    if (i >= G::n * G::c * G::x_size) return;
    Spot<I> s =
        spot_of<I>(i, some(G::D0::in), some(G::D1::in), some(G::D2::in));
    I g = s.base % G::c / G::cg, c = s.base % G::cg, image = s.base / G::c;
    Ph ph((s.z % G::D0::stride * G::D1::stride + s.y % G::D1::stride) *
              G::D2::stride +
          s.x % G::D2::stride);
    ConvBackW<P> a = {w + g * G::kg * (G::cg * G::taps), ph};
    ConvBackY<P> b = {dy + g * G::kg * G::y_size, ph};
    typename ConvBackY<P>::Place to[near];
    Pack<near, float> sum = {};
    UNROLL
    for (int u = 0; u < near; u++) {
        s = spot_of<I>(i + u, some(G::D0::in), some(G::D1::in),
                       some(G::D2::in));
        to[u] = b.place(image, s.z / G::D0::stride, s.y / G::D1::stride,
                        s.x / G::D2::stride);
    }
    UNROLL_2
    for (I k = 0; k < ph.depth(); k++) {
        float factor = widen(a.load(a.row(c), a.col(k), true));
        auto tap = b.col(k);
        UNROLL
        for (int u = 0; u < near; u++)
            sum.v[u] = fmaf(factor, widen(b.load(to[u], tap, true)), sum.v[u]);
    }
    pack_store(dx + i, narrow<typename P::X>(sum));
}

/* ---- gradient by the weights --------------------------------------------- */

template <class P> struct ConvTaps : ConvX<P, false> {
    typedef typename ConvX<P, false>::I I;
    static constexpr bool along_k = true;
    __device__ auto row(I i) const { return this->tap(i); }
    __device__ auto col(I k) const { return this->output(k); }
};

/* dY, or X for windows of one element, by channel and (image, position). */
template <class E, class Int, long long CHANNELS, long long SIZE>
struct ConvPlanes {
    typedef E Element;
    typedef Int I;
    static constexpr bool along_k = true, table = false;
    static constexpr int near = near_of<E>(SIZE);
    const Element *x; /* at the group's first channel */
    __device__ I row(I c) const { return c * (I)SIZE; }
    __device__ I col(I i) const {
        return i / (I)SIZE * (I)(CHANNELS * SIZE) + i % (I)SIZE;
    }
    __device__ const Element *place(I r, I c) const { return x + (r + c); }
    __device__ Element load(I r, I c, bool ok) const {
        return ok ? x[r + c] : Element();
    }
};

template <class P>
using ConvY =
    ConvPlanes<typename P::Y, typename Conv<P>::I, P::k, Conv<P>::y_size>;

/* X by (channel, tap) and (image, output). */
template <class P, bool POINTS> struct ConvColumnsOf {
    typedef ConvTaps<P> Type;
};
template <class P> struct ConvColumnsOf<P, true> {
    typedef ConvPlanes<typename P::X, typename Conv<P>::I, P::c,
                       Conv<P>::x_size>
        Type;
};

/* Steps of one slice; a multiple of the tile's. */
template <class P> constexpr long long wgrad_slice() {
    return up_div(up_div(P::n * Conv<P>::ys, P::splits), P::Tile::k) *
           P::Tile::k;
}

/* Without slices dw is written, otherwise partial[slice][element of dw]. */
template <class P>
__device__ void conv_wgrad(const typename P::X *x, const typename P::Y *dy,
                           typename P::W *dw, float *partial) {
    typedef Conv<P> G;
    typedef typename G::I I;
    typedef typename P::Tile T;
    constexpr I cols = G::cg * G::taps, depth = P::n * Conv<P>::ys;
    constexpr I slice = wgrad_slice<P>();
    constexpr unsigned mt = up_div(G::kg, T::m), nt = up_div(cols, T::n);
    unsigned tile = blockIdx.x % (mt * nt), rest = blockIdx.x / (mt * nt);
    I g = rest % (unsigned)G::group, s = rest / (unsigned)G::group;
    I end = (s + 1) * slice;
    ConvY<P> a = {dy + g * G::kg * G::y_size};
    typename ConvColumnsOf<P, P::points>::Type b;
    b.x = x + g * G::cg * G::x_size;
    Part<I, G::kg % T::m == 0, cols % T::n == 0, depth % T::k == 0> part = {
        (I)(tile % mt) * T::m,    G::kg, (I)(tile / mt) * T::n, cols, s * slice,
        end < depth ? end : depth};
    long long to = (long long)g * (G::kg * cols);
    if constexpr (P::splits == 1)
        T::run(a, b, StoreRows<typename P::W, I, cols>{dw + to}, part);
    else
        T::run(a, b,
               StoreRows<float, I, cols>{partial +
                                         (long long)s * (G::k * cols) + to},
               part);
}

/* Adds the slices in order. */
template <class P>
__device__ void conv_wgrad_sum(typename P::W *dw, const float *partial) {
    typedef Conv<P> G;
    constexpr long long size = (long long)G::k * G::cg * G::taps;
    constexpr int N = P::sum_near;
    long long i = flat_index<long long>() * N;
    if (i >= size) return;
    Pack<N, float> sum = {};
    for (int s = 0; s < P::splits; s++) {
        Pack<N, float> part = pack_load<N>(partial + s * size + i);
        UNROLL
        for (int u = 0; u < N; u++) sum.v[u] += part.v[u];
    }
    pack_store(dw + i, narrow<typename P::W>(sum));
}

/* Few channels per group: one block computes each element of dw. */
template <class P>
__device__ void conv_wgrad_direct(const typename P::X *x,
                                  const typename P::Y *dy, typename P::W *dw) {
    typedef Conv<P> G;
    typedef typename G::I I;
    constexpr I cols = G::cg * G::taps, depth = P::n * Conv<P>::ys;
    __shared__ float sums[DIRECT_THREADS];
    I k = blockIdx.x / (unsigned)cols, col = blockIdx.x % (unsigned)cols;
    ConvY<P> a = {dy};
    ConvX<P, false> b = {x + k / G::kg * (G::cg * G::x_size)};
    auto tap = b.tap(col);
    int t = (int)threadIdx.x;
    float sum = 0;
    for (I i = t; i < depth; i += DIRECT_THREADS)
        sum = fmaf(widen(a.load(a.row(k), a.col(i), true)),
                   widen(b.load(b.output(i), tap, true)), sum);
    sums[t] = sum;
    for (int half = DIRECT_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (t < half) sums[t] += sums[t + half];
    }
    if (t == 0) dw[blockIdx.x] = narrow<typename P::W>(sums[0]);
}

#endif
