/* SPDX-License-Identifier: Apache-2.0 */
/* conv_window.cuh: convolutions of stride 1 whose windows have several places.

   A block keeps the inputs of all its windows in shared memory, some channels
   at a time, and multiplies them by the weights of one place after the other:
   an input is loaded once, not once for each place. The gradient by the input
   is such a convolution of dY by weights turned around.

   A plane with its padding is a line of places, and so are the planes of all
   images, one after the other: the window at `p` of that line has its inputs at
   p + (z * lines + y) * line + x.  Inputs of neighbouring results are
   neighbours but for the padding between lines, so that a block needs one
   part of that line of places, of bounded length.

   Weights are stored before as the tensor cores take them (ptx.cuh, matrix A):
   16 bytes of each lane, for each 16 rows and 16 steps.

   P: the parameters of LibConv; Tile; `channels`, a multiple of 16, of the
   inputs that are kept at once; `places`, of the line.                     */
#ifndef AMPC_CONV_WINDOW_CUH
#define AMPC_CONV_WINDOW_CUH

#include "conv.cuh"

/* One spatial dimension; BACK: of the gradient. */
template <class D, bool BACK> struct WindowDim {
    static constexpr auto in = BACK ? D::out : D::in;
    static constexpr auto out = BACK ? D::in : D::out;
    static constexpr auto far = (D::kernel - 1) * D::dilation;
    static constexpr auto pad = BACK ? far - D::pad : D::pad;
    static constexpr auto line = out + far; /* with padding */
};

template <class P, bool BACK> struct WindowPlaces {
    typedef Conv<P> G;
    typedef typename G::I I;
    typedef WindowDim<typename G::D0, BACK> D0;
    typedef WindowDim<typename G::D1, BACK> D1;
    typedef WindowDim<typename G::D2, BACK> D2;
    static constexpr I in_size = BACK ? G::y_size : G::x_size;
    static constexpr I out_size = BACK ? G::x_size : G::y_size;
    static constexpr I cols = G::n * out_size;
    static constexpr I depth = BACK ? G::kg : G::cg; /* of a group */
    /* Words of a place: an odd number of 16 bytes, so that ldmatrix meets all
       banks. */
    static constexpr int pitch = P::channels / 2 + 4;

    /* The place of the first input of result i. */
    static __device__ I place(I i) {
        Spot<I> s = spot_of<I>(i, D0::out, D1::out, D2::out);
        return ((s.base * D0::line + s.z) * D1::line + s.y) * D2::line + s.x;
    }
    /* The offset in channel 0 of the input at a place, -1: padding. */
    static __device__ I input(I place) {
        Spot<I> s = spot_of<I>(place, D0::line, D1::line, D2::line);
        s.z -= D0::pad, s.y -= D1::pad, s.x -= D2::pad;
        bool in = below(s.z, D0::in) & below(s.y, D1::in) & below(s.x, D2::in) &
                  (s.base < G::n);
        I channels = BACK ? G::k : G::c;
        return in ? s.base * channels * in_size +
                        spot_offset<I>(s, D1::in, D2::in)
                  : -1;
    }
};

template <class P, bool BACK> struct Window : WindowPlaces<P, BACK> {
    typedef WindowPlaces<P, BACK> Base;
    typedef typename Base::G G;
    typedef typename Base::I I;
    typedef typename P::Tile T;
    static constexpr I rows = BACK ? G::cg : G::kg; /* of a group */
    static constexpr unsigned mt = up_div(rows, T::m);
    static constexpr unsigned nt = up_div(Base::cols, T::n);
    static constexpr int halves = P::channels / 16;
    static constexpr int parts = up_div(Base::depth, P::channels);
    static constexpr int steps = parts * (int)G::taps * halves;
    static constexpr int panels = mt * T::m / 16; /* 16 rows each, in a group */

    static __device__ typename P::W weight(const typename P::W *w, I g, I row,
                                           I c, I tap) {
        I k = BACK ? c : row, in = BACK ? row : c;
        I at = BACK ? G::taps - 1 - tap : tap;
        return w[((g * G::kg + k) * G::cg + in) * G::taps + at];
    }
};

/* turned[group][panel][part][tap][half][lane]: one thread each. */
template <class P, bool BACK>
__device__ void conv_turn(const typename P::W *w, Words<4> *turned) {
    typedef Window<P, BACK> W;
    typedef typename W::I I;
    I i = flat_index<I>();
    if (i >= (I)P::group * W::panels * W::steps * 32) return;
    I lane = i % 32, step = i / 32 % W::steps, panel = i / 32 / W::steps;
    I half = step % W::halves, tap = step / W::halves % W::G::taps;
    I part = step / W::halves / W::G::taps, g = panel / W::panels;
    I row = panel % W::panels * 16 + lane / 4;
    I c = part * P::channels + half * 16 + lane % 4 * 2;
    Words<4> v;
    UNROLL
    for (int u = 0; u < 4; u++) {
        unsigned bits[2];
        UNROLL
        for (int e = 0; e < 2; e++) {
            I r = row + u % 2 * 8, in = c + u / 2 * 8 + e;
            bits[e] = r < W::rows && in < W::depth
                          ? W::weight(w, g, r, in, tap).bits
                          : 0;
        }
        v.v[u] = bits[0] | bits[1] << 16;
    }
    turned[i] = v;
}

/* Eight channels, from the one at `from` on, of a place. */
template <class E>
__device__ Words<4> window_channels(const E *from, long long apart, int count) {
    Words<4> v;
    UNROLL
    for (int w = 0; w < 4; w++) {
        unsigned low = ampc_load_16(from + 2 * w * apart, 2 * w < count);
        unsigned high =
            ampc_load_16(from + (2 * w + 1) * apart, 2 * w + 1 < count);
        v.v[w] = low | high << 16;
    }
    return v;
}

/* Stores the channels from `c` on of all places of `patch`: group[from[i]] is
   channel 0 of this thread's place i.  `depth` channels exist. */
template <class P, bool BACK, int THREADS, class In, class I, int SPOTS>
__device__ void window_stage(unsigned *patch, const In *group,
                             const I (&from)[SPOTS], int c) {
    typedef WindowPlaces<P, BACK> W;
    UNROLL
    for (int i = 0; i < SPOTS; i++) {
        int at = (int)threadIdx.x + i * THREADS;
        if (at >= P::places) break;
        UNROLL
        for (int q = 0; q < P::channels; q += 8) {
            int count = from[i] < 0 ? 0 : (int)W::depth - c - q;
            if (W::depth % 8 == 0 && count > 8) count = 8;
            *reinterpret_cast<Words<4> *>(patch + at * W::pitch + q / 2) =
                window_channels(group + (from[i] + (c + q) * W::in_size),
                                W::in_size, count);
        }
    }
}

/* Words from a place to the input of a window's place (z, y, x). */
template <class P, bool BACK>
__device__ int window_offset(int z, int y, int x) {
    typedef WindowPlaces<P, BACK> W;
    typedef typename W::G G;
    int line =
        z * (int)(G::D0::dilation * W::D1::line) + y * (int)G::D1::dilation;
    return (line * (int)W::D2::line + x * (int)G::D2::dilation) * W::pitch;
}

template <class P, bool BACK, class In, class Out>
__device__ void window_run(const In *in, const Words<4> *turned,
                           const Out &out) {
    typedef Window<P, BACK> W;
    typedef typename W::I I;
    typedef typename P::Tile T;
    constexpr int spots = up_div(P::places, T::threads);
    constexpr int nt = T::nt, mt = T::mt;
    union Shared {
        unsigned patch[P::places * W::pitch];
        typename T::Slice slice;
    };
    alignas(16) __shared__ Shared s;
    int lane = (int)threadIdx.x % 32;
    unsigned tile = blockIdx.x % (W::mt * W::nt);
    I g = P::group > 1 ? blockIdx.x / (W::mt * W::nt) : 0;
    Part<I, W::rows % T::m == 0, W::cols % T::n == 0> part = {
        (I)(tile % W::mt) * T::m,
        W::rows,
        (I)(tile / W::mt) * T::n,
        W::cols,
        0,
        0};
    I first = W::place(part.n0), from[spots];
    const In *group = in + g * W::depth * W::in_size;
    UNROLL
    for (int i = 0; i < spots; i++)
        from[i] = W::input(first + (int)threadIdx.x + i * T::threads);
    const unsigned *row[nt / 2];
    UNROLL
    for (int j = 0; j < nt / 2; j++) {
        I n = part.n0 + T::warp_col() + j * 16 + lane / 16 * 8 + lane % 8;
        if (!part.whole_n && n >= W::cols) n = W::cols - 1;
        row[j] = s.patch + (W::place(n) - first) * W::pitch + lane / 8 % 2 * 4;
    }
    const Words<4> *a =
        turned +
        ((g * W::panels + (part.m0 + T::warp_row()) / 16) * W::steps * 32 +
         lane);
    Words<4> next[mt];
    float acc[mt][nt][4] = {};
    UNROLL
    for (int i = 0; i < mt; i++) next[i] = a[i * W::steps * 32];
    int step = 0;
    UNROLL_1
    for (int c = 0; c < W::depth; c += P::channels) {
        __syncthreads();
        window_stage<P, BACK, T::threads>(s.patch, group, from, c);
        __syncthreads();
        UNROLL_1
        for (int z = 0; z < (int)W::G::D0::kernel; z++) UNROLL_1
        for (int y = 0; y < (int)W::G::D1::kernel; y++) UNROLL_1
        for (int x = 0; x < (int)W::G::D2::kernel; x++) {
            int at = window_offset<P, BACK>(z, y, x);
            UNROLL
            for (int h = 0; h < W::halves; h++) {
                Words<4> now[mt];
                UNROLL
                for (int i = 0; i < mt; i++) now[i] = next[i];
                if (++step < W::steps) a += 32;
                UNROLL
                for (int i = 0; i < mt; i++) next[i] = a[i * W::steps * 32];
                UNROLL
                for (int j = 0; j < nt; j += 2) {
                    unsigned b[4];
                    ampc_ldmatrix_x4(b, row[j / 2] + at + 8 * h);
                    UNROLL
                    for (int i = 0; i < mt; i++) {
                        mma(typename T::Operand(), acc[i][j], now[i].v, b);
                        mma(typename T::Operand(), acc[i][j + 1], now[i].v,
                            b + 2);
                    }
                }
            }
        }
    }
    T::store(out, part, acc, s.slice);
}

template <class P, class Out>
__device__ void conv_fwd_window(const typename P::X *x, const typename P::W *,
                                const Out &out, const Words<4> *turned) {
    typedef Conv<P> G;
    typedef typename G::I I;
    unsigned tiles = Window<P, false>::mt * Window<P, false>::nt;
    I g = P::group > 1 ? blockIdx.x / tiles : 0;
    window_run<P, false>(x, turned, ConvOut<P, Out>{out, g * G::kg});
}

template <class P, class To>
__device__ void conv_dgrad_window_tile(const typename P::Y *dy,
                                       const Words<4> *turned, To to) {
    typedef Conv<P> G;
    typedef typename G::I I;
    unsigned tiles = Window<P, true>::mt * Window<P, true>::nt;
    I g = P::group > 1 ? blockIdx.x / tiles : 0;
    ConvPhases<P> ph(0);
    window_run<P, true>(dy, turned, to(g * G::cg, ph));
}

template <class P>
__device__ void conv_dgrad_window(const typename P::Y *dy,
                                  const typename P::W *, typename P::X *dx,
                                  const Words<4> *turned) {
    conv_dgrad_window_tile<P>(dy, turned, ToBack<P>{dx});
}

/* ---- gradient by the weights --------------------------------------------- */

/* A block sums for WINDOW_ROWS channels of dY and P::channels of X, all places
   of a window, over a slice of the results, P::sums of them at a time: a row
   of dY and the inputs of its windows are loaded once. */
template <class P> struct WindowSums : WindowPlaces<P, false> {
    typedef WindowPlaces<P, false> Base;
    typedef typename Base::G G;
    typedef typename Base::I I;
    static constexpr int rows = WINDOW_ROWS, taps = G::taps;
    static constexpr int warps_n = P::channels / 8;
    static constexpr int threads = WINDOW_THREADS;
    static constexpr unsigned mt = up_div(G::kg, rows);
    static constexpr unsigned nt = up_div(G::cg, P::channels);
    static constexpr I slice =
        up_div(up_div(Base::cols, P::splits), P::sums) * P::sums;
    static constexpr int pitch_y = P::sums / 2 + 4;
    struct Shared {
        unsigned patch[P::places * Base::pitch];
        unsigned y[rows * pitch_y];
        int at[P::sums]; /* words to a result's first input */
    };
    static __device__ int offset(int t) {
        constexpr int k1 = (int)G::D1::kernel, k2 = (int)G::D2::kernel;
        return window_offset<P, false>(t / k2 / k1, t / k2 % k1, t % k2);
    }
    static_assert(rows / 32 * warps_n * 32 == threads && P::sums % 16 == 0 &&
                      taps <= 9,
                  "fits");
};

/* Stores a part of dY: a thread takes two results of every `step`-th row. */
template <class P>
__device__ void window_stage_y(unsigned *to, const typename P::Y *y, int row0,
                               typename Conv<P>::I n0,
                               typename Conv<P>::I end) {
    typedef WindowSums<P> W;
    typedef typename W::I I;
    constexpr int pairs = P::sums / 2, step = W::threads / pairs;
    static_assert(W::threads % pairs == 0, "whole rows");
    constexpr bool together = W::out_size % 2 == 0;
    int pair = (int)threadIdx.x % pairs;
    I n = n0 + 2 * pair;
    const typename P::Y *from[2];
    UNROLL
    for (int e = 0; e < 2; e++)
        from[e] = y + ((n + e) / W::out_size * (W::G::k * W::out_size) +
                       (n + e) % W::out_size);
    UNROLL_8
    for (int i = 0; i < W::rows / step; i++) {
        int r = (int)threadIdx.x / pairs + i * step;
        bool in = row0 + r < W::G::kg;
        I at = (row0 + r) * W::out_size;
        unsigned v = 0;
        if constexpr (together) {
            if (in & (n < end))
                v = *reinterpret_cast<const unsigned *>(from[0] + at);
        } else {
            unsigned low = ampc_load_16(from[0] + at, in & (n < end));
            unsigned high = ampc_load_16(from[1] + at, in & (n + 1 < end));
            v = low | high << 16;
        }
        to[r * W::pitch_y + pair] = v;
    }
}

/* Without slices dw is written, otherwise partial[slice][element of dw]. */
template <class P>
__device__ void conv_wgrad_window(const typename P::X *x,
                                  const typename P::Y *dy, typename P::W *dw,
                                  float *partial) {
    typedef WindowSums<P> W;
    typedef typename W::I I;
    typedef typename W::G G;
    constexpr int spots = up_div(P::places, W::threads), taps = W::taps;
    BLOCK_SHARED(bytes);
    typename W::Shared &s = *reinterpret_cast<typename W::Shared *>(bytes);
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    unsigned tile = blockIdx.x % (W::mt * W::nt);
    unsigned rest = blockIdx.x / (W::mt * W::nt);
    I g = rest % (unsigned)P::group, slice = rest / (unsigned)P::group;
    int m0 = (int)(tile % W::mt) * W::rows;
    int c0 = (int)(tile / W::mt) * P::channels;
    const typename P::X *xg = x + g * W::depth * W::in_size;
    const typename P::Y *yg = dy + g * G::kg * W::out_size;
    int row = warp / W::warps_n * 32, col = warp % W::warps_n * 8;
    I end = (slice + 1) * W::slice;
    if (end > W::cols) end = W::cols;
    float acc[taps][2][4] = {};
    UNROLL_1
    for (I n0 = slice * W::slice; n0 < end; n0 += P::sums) {
        I first = W::place(n0), from[spots];
        UNROLL
        for (int i = 0; i < spots; i++)
            from[i] = W::input(first + (int)threadIdx.x + i * W::threads);
        __syncthreads();
        for (int i = (int)threadIdx.x; i < P::sums; i += W::threads) {
            I n = n0 + i < W::cols ? n0 + i : W::cols - 1;
            s.at[i] = (int)(W::place(n) - first) * W::pitch;
        }
        window_stage<P, false, W::threads>(s.patch, xg, from, c0);
        window_stage_y<P>(s.y, yg, m0, n0, end);
        __syncthreads();
        UNROLL_1
        for (int q = 0; q < P::sums; q += 16) {
            const unsigned *b0 = s.patch + s.at[q + lane % 16] + col / 2;
            unsigned a[2][4], b[4];
            UNROLL
            for (int i = 0; i < 2; i++)
                ampc_ldmatrix_x4(a[i],
                                 s.y + (row + i * 16 + lane % 16) * W::pitch_y +
                                     q / 2 + lane / 16 * 4);
            UNROLL
            for (int t = 0; t < taps; t += 2) { /* two places of the window */
                bool last = t + 1 == taps;
                int two = lane / 16 && !last ? W::offset(t + 1) : W::offset(t);
                ampc_ldmatrix_x4_trans(b, b0 + two);
                UNROLL
                for (int i = 0; i < 2; i++) {
                    mma(typename P::X(), acc[t][i], a[i], b);
                    if (!last) mma(typename P::X(), acc[t + 1][i], a[i], b + 2);
                }
            }
        }
    }
    UNROLL
    for (int i = 0; i < 2; i++) UNROLL
    for (int e = 0; e < 4; e++) {
        I k = m0 + row + i * 16 + lane / 4 + e / 2 * 8;
        I c = c0 + col + lane % 4 * 2 + e % 2;
        long long at = ((long long)(g * G::kg + k) * G::cg + c) * taps;
        if (k >= G::kg || c >= G::cg) continue;
        UNROLL
        for (int t = 0; t < taps; t++) {
            if constexpr (P::splits == 1)
                dw[at + t] = narrow<typename P::W>(acc[t][i][e]);
            else
                partial[slice * (long long)(G::k * G::cg * taps) + at + t] =
                    acc[t][i][e];
        }
    }
}

#endif
