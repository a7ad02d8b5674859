/* SPDX-License-Identifier: Apache-2.0 */
/* image_isa.c: padded copies of images, split into stride phases. */
#include "runtime/cpu/image.h"

#include <string.h>

/* One buffer row: buffer[v] = src[from + v * step + first] where that lies in
   [0, in), else 0.  All rows of a plane have equal masks, so the lane masks
   of the first vectors are kept. */
enum { IMAGE_MASKS = 16 };

typedef struct ImageRow {
    int64_t width, in, step;
    int64_t first;  /* source position of v = 0; may be negative */
    int64_t lo, hi; /* the v with a source                                  */
    uint32_t mask[IMAGE_MASKS];
} ImageRow;

/* Source of the elements. second: distance to the other channel of a pair; 0
   if elements are not pairs. */
typedef struct ImageSrc {
    const void *p;
    int64_t from, second;
} ImageSrc;

INLINE int64_t image_lanes(int kind) { return kind == IMAGE_RAW ? 2 * VL : VL; }

INLINE void *image_at(int kind, void *dst, int64_t i) {
    return (char *)dst + i * (kind == IMAGE_RAW ? 2 : 4);
}

/* The lanes of the vector at v that have a source element. */
INLINE uint32_t image_mask(const ImageRow *r, int64_t v, int64_t lanes) {
    int64_t skip = max64(r->lo - v, 0), end = min64(r->hi - v, lanes);
    if (end <= skip) return 0;
    return (0xffffffffu >> (32 - end)) & (~0u << skip);
}

static ImageRow image_row(int64_t in, int64_t width, int64_t step,
                          int64_t first, int64_t lanes) {
    ImageRow r = {width, in, step, first, 0, 0, {0}};
    r.lo = r.first >= 0 ? 0 : ceil_div(-r.first, r.step);
    r.hi = r.first >= r.in ? 0 : ceil_div(r.in - r.first, r.step);
    r.hi = min64(r.hi, width);
    r.lo = min64(r.lo, r.hi);
    for (int64_t i = 0; i < IMAGE_MASKS && i * lanes < width; i++)
        r.mask[i] = image_mask(&r, i * lanes, lanes);
    return r;
}

INLINE void image_zero(int kind, void *dst, int64_t n) {
    float *to = dst;
    int64_t i = 0;
    if (kind == IMAGE_RAW) {
        memset(dst, 0, (size_t)n * 2);
        return;
    }
    for (; i + VL <= n; i += VL) vstore(to + i, vset(0.0f));
    if (i < n) vstore_n(to, AMPC_F32, i, vset(0.0f), n - i);
}

/* Rows are short and are read as several streams, which hardware prefetchers
   follow badly; the next elements are a little further on in memory. */
enum { IMAGE_AHEAD = 2048 };

INLINE void image_prefetch(const void *p) {
    __builtin_prefetch((const char *)p + IMAGE_AHEAD, 0, 3);
}

#if HAS_MASK
INLINE void image_vector(int kind, void *dst, int dtype, const ImageSrc *s,
                         int64_t i, uint32_t mask) {
    const uint16_t *h = (const uint16_t *)s->p + i;
    image_prefetch(at(s->p, dtype, i));
    if (kind == IMAGE_F32) {
        vstore(dst, vload_mask(s->p, dtype, i, mask));
    } else if (kind == IMAGE_RAW) {
        vstore(dst, vload_pairs_mask(h, mask));
    } else {
        image_prefetch(h + s->second);
        vu odd = vload_u16_mask(h + s->second, s->second ? mask : 0);
        vstore(dst, vweave_u16(vload_u16_mask(h, mask), odd));
    }
}

/* Whole vectors with masked lanes; the last vector may extend beyond the
   row's end. */
INLINE void image_copy(int kind, void *dst, int dtype, const ImageSrc *s,
                       int64_t from, const ImageRow *r) {
    int64_t lanes = image_lanes(kind);
    from += r->first;
    if (r->width <= IMAGE_MASKS * lanes) {
        const uint32_t *mask = r->mask;
        for (int64_t v = 0; v < r->width; v += lanes)
            image_vector(kind, image_at(kind, dst, v), dtype, s, from + v,
                         *mask++);
        return;
    }
    for (int64_t v = 0; v < r->width; v += lanes)
        image_vector(kind, image_at(kind, dst, v), dtype, s, from + v,
                     image_mask(r, v, lanes));
}
#else
INLINE void image_weave(uint32_t *to, const uint16_t *even, int64_t second,
                        int64_t n) {
    const uint16_t *odd = even + second;
    int64_t v = 0;
    for (; second && v + VL <= n; v += VL)
        vstore((float *)(void *)to + v,
               vweave_u16(vload_u16(even + v), vload_u16(odd + v)));
    for (; v < n; v++) to[v] = even[v] | (second ? (uint32_t)odd[v] << 16 : 0u);
}

INLINE void image_copy(int kind, void *dst, int dtype, const ImageSrc *s,
                       int64_t from, const ImageRow *r) {
    void *to = image_at(kind, dst, r->lo);
    int64_t n = r->hi - r->lo;
    from += r->first + r->lo;
    image_zero(kind, dst, r->lo);
    if (kind == IMAGE_F32)
        widen_as(to, s->p, dtype, from, n);
    else if (kind == IMAGE_RAW)
        memcpy(to, at(s->p, dtype, from), (size_t)n * 2);
    else
        image_weave(to, at(s->p, dtype, from), s->second, n);
    image_zero(kind, image_at(kind, dst, r->hi), r->width - r->hi);
}
#endif

INLINE void image_stride(int kind, void *dst, int dtype, const ImageSrc *s,
                         int64_t from, int64_t step, int64_t n) {
    const uint16_t *h = (const uint16_t *)s->p + from;
    if (kind == IMAGE_F32)
        for (int64_t v = 0; v < n; v++)
            ((float *)dst)[v] = load1(s->p, dtype, from + v * step);
    else if (kind == IMAGE_RAW)
        for (int64_t v = 0; v < n; v++) ((uint16_t *)dst)[v] = h[v * step];
    else if (s->second)
        for (int64_t v = 0; v < n; v++)
            ((uint32_t *)dst)[v] =
                h[v * step] | (uint32_t)h[v * step + s->second] << 16;
    else
        for (int64_t v = 0; v < n; v++) ((uint32_t *)dst)[v] = h[v * step];
}

INLINE void image_line(int kind, void *dst, int dtype, const ImageSrc *s,
                       int64_t from, const ImageRow *r) {
    if (r->step == 1) {
        image_copy(kind, dst, dtype, s, from, r);
        return;
    }
    void *to = image_at(kind, dst, r->lo);
    image_zero(kind, dst, r->lo);
    from += r->first + r->lo * r->step;
    if (r->step == 2) /* a constant, so that the vector is made by shuffles */
        image_stride(kind, to, dtype, s, from, 2, r->hi - r->lo);
    else
        image_stride(kind, to, dtype, s, from, r->step, r->hi - r->lo);
    image_zero(kind, image_at(kind, dst, r->hi), r->width - r->hi);
}

/* Copies all slots and rows of one buffer channel and one depth. */
INLINE void image_plane(const ConvPlan *p, int kind, void *dst, int dtype,
                        const ImageSrc *s, int inside, int64_t row0,
                        int64_t rows) {
    const ConvDim *h = &p->dim[1], *w = &p->dim[2];
    int64_t planes = h->slots * w->slots;
    for (int64_t i = 0; i < planes; i++) {
        ImageRow r =
            image_row(w->in, p->vw, w->step,
                      conv_phase(w, i % w->slots) - w->pad, image_lanes(kind));
        int64_t y = row0 * h->step + conv_phase(h, i / w->slots) - h->pad;
        for (int64_t v = 0; v < rows; v++, y += h->step) {
            void *to = image_at(kind, dst, i * p->plane + v * p->vw);
            if (!inside || y < 0 || y >= h->in)
                image_zero(kind, to, p->vw);
            else
                image_line(kind, to, dtype, s, s->from + y * w->in, &r);
        }
        image_zero(kind, image_at(kind, dst, i * p->plane + rows * p->vw),
                   (p->vh - rows) * p->vw);
    }
}

INLINE void image_load_as(const ConvPlan *p, int kind, void *dst,
                          const void *src, int dtype, int64_t from,
                          int64_t channels, int64_t depth, int64_t row0,
                          int64_t rows) {
    const ConvDim *d = &p->dim[0], *h = &p->dim[1], *w = &p->dim[2];
    int64_t size = h->in * w->in, all = d->in * size;
    int64_t step = kind == IMAGE_PAIRS ? 2 : 1;
    for (int64_t c = 0; c < channels; c += step) {
        for (int64_t i = 0; i < d->slots * p->vd; i++) {
            int64_t z = (depth + i % p->vd) * d->step +
                        conv_phase(d, i / p->vd) - d->pad;
            ImageSrc s = {src, from + c * all + z * size, 0};
            if (kind == IMAGE_PAIRS && c + 1 < channels) s.second = all;
            image_plane(p, kind, dst, dtype, &s, z >= 0 && z < d->in, row0,
                        rows);
            dst = image_at(kind, dst, h->slots * w->slots * p->plane);
        }
    }
    image_zero(IMAGE_F32, dst, BLOCK_LANES);
}

void ISA(image_load)(const ConvPlan *p, int kind, void *dst, const void *src,
                     int dtype, int64_t from, int64_t channels, int64_t depth,
                     int64_t row0, int64_t rows) {
    rows = min64(rows + p->dim[1].reach, p->vh);
#if HAS_DOT
    if (kind == IMAGE_PAIRS) {
        image_load_as(p, IMAGE_PAIRS, dst, src, AMPC_BF16, from, channels,
                      depth, row0, rows);
        return;
    }
    if (kind == IMAGE_RAW) {
        image_load_as(p, IMAGE_RAW, dst, src, AMPC_BF16, from, channels, depth,
                      row0, rows);
        return;
    }
#endif
    (void)kind;
    if (dtype == AMPC_F32)
        image_load_as(p, IMAGE_F32, dst, src, AMPC_F32, from, channels, depth,
                      row0, rows);
    else if (dtype == AMPC_BF16)
        image_load_as(p, IMAGE_F32, dst, src, AMPC_BF16, from, channels, depth,
                      row0, rows);
    else
        image_load_as(p, IMAGE_F32, dst, src, AMPC_F16, from, channels, depth,
                      row0, rows);
}

INLINE void image_pad_as(int kind, void *dst, int64_t width, const void *src,
                         int dtype, int64_t from, int64_t n, int64_t rows) {
    ImageRow r = image_row(n, width, 1, 0, image_lanes(kind));
    ImageSrc s = {src, 0, 0};
    for (int64_t i = 0; i < rows; i++)
        image_copy(kind, image_at(kind, dst, i * width), dtype, &s,
                   from + i * n, &r);
}

void ISA(image_pad)(int kind, void *dst, int64_t width, const void *src,
                    int dtype, int64_t from, int64_t n, int64_t rows) {
#if HAS_DOT
    if (kind == IMAGE_RAW) {
        image_pad_as(IMAGE_RAW, dst, width, src, AMPC_BF16, from, n, rows);
        return;
    }
#endif
    (void)kind;
    if (dtype == AMPC_F32)
        image_pad_as(IMAGE_F32, dst, width, src, AMPC_F32, from, n, rows);
    else if (dtype == AMPC_BF16)
        image_pad_as(IMAGE_F32, dst, width, src, AMPC_BF16, from, n, rows);
    else
        image_pad_as(IMAGE_F32, dst, width, src, AMPC_F16, from, n, rows);
}
