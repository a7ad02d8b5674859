/* image_isa.c: padded fp32 copies of images, split into stride phases. */
#include "runtime/cpu/image.h"

/* One buffer row: buffer[v] = src[from + v * step + first] where that lies in
   [0, in), else 0.  All rows of a plane are alike, so the lane masks of the
   first vectors are kept.                                                   */
enum { IMAGE_MASKS = 16 };

typedef struct ImageRow {
    int64_t width, in, step;
    int64_t first;  /* source position of v = 0, may be negative            */
    int64_t lo, hi; /* the v with a source                                  */
    uint16_t mask[IMAGE_MASKS];
} ImageRow;

/* The lanes of the vector at v that have a source. */
INLINE uint32_t image_mask(const ImageRow *r, int64_t v)
{
    int64_t skip = max64(r->lo - v, 0), end = min64(r->hi - v, VL);
    if (end <= skip) return 0;
    return (0xffffffffu >> (32 - end)) & (~0u << skip);
}

static ImageRow image_row(int64_t in, int64_t width, int64_t step,
                          int64_t first)
{
    ImageRow r = {width, in, step, first, 0, 0, {0}};
    r.lo = r.first >= 0 ? 0 : ceil_div(-r.first, r.step);
    r.hi = r.first >= r.in ? 0 : ceil_div(r.in - r.first, r.step);
    r.hi = min64(r.hi, width);
    r.lo = min64(r.lo, r.hi);
    for (int64_t i = 0; i < IMAGE_MASKS && i * VL < width; i++)
        r.mask[i] = (uint16_t)image_mask(&r, i * VL);
    return r;
}

INLINE void image_zero(float *dst, int64_t n)
{
    int64_t i = 0;
    for (; i + VL <= n; i += VL) vstore(dst + i, vset(0.0f));
    if (i < n) vstore_n(dst, AMPC_F32, i, vset(0.0f), n - i);
}

#if AMPC_ISA_LEVEL == 4
/* Whole vectors with masked lanes; the last may pass the row's end. */
INLINE void image_copy(float *dst, const void *src, int dtype, int64_t from,
                       const ImageRow *r)
{
    from += r->first;
    if (r->width <= IMAGE_MASKS * VL) {
        const uint16_t *mask = r->mask;
        for (int64_t v = 0; v < r->width; v += VL)
            vstore(dst + v, vload_mask(src, dtype, from + v, *mask++));
        return;
    }
    for (int64_t v = 0; v < r->width; v += VL)
        vstore(dst + v, vload_mask(src, dtype, from + v, image_mask(r, v)));
}
#else
INLINE void image_copy(float *dst, const void *src, int dtype, int64_t from,
                       const ImageRow *r)
{
    image_zero(dst, r->lo);
    widen_as(dst + r->lo, src, dtype, from + r->first + r->lo, r->hi - r->lo);
    image_zero(dst + r->hi, r->width - r->hi);
}
#endif

INLINE void image_stride(float *dst, const void *src, int dtype, int64_t from,
                         int64_t step, int64_t n)
{
    for (int64_t v = 0; v < n; v++)
        dst[v] = load1(src, dtype, from + v * step);
}

INLINE void image_line(float *dst, const void *src, int dtype, int64_t from,
                       const ImageRow *r)
{
    if (r->step == 1) {
        image_copy(dst, src, dtype, from, r);
        return;
    }
    image_zero(dst, r->lo);
    from += r->first + r->lo * r->step;
    if (r->step == 2) /* a constant: becomes shuffles */
        image_stride(dst + r->lo, src, dtype, from, 2, r->hi - r->lo);
    else
        image_stride(dst + r->lo, src, dtype, from, r->step, r->hi - r->lo);
    image_zero(dst + r->hi, r->width - r->hi);
}

/* All slots and rows of one channel and one depth. */
INLINE void image_plane(const ConvPlan *p, float *dst, const void *src,
                        int dtype, int64_t from, int inside, int64_t row0,
                        int64_t rows)
{
    const ConvDim *h = &p->dim[1], *w = &p->dim[2];
    for (int64_t sh = 0; sh < h->slots; sh++) {
        for (int64_t sw = 0; sw < w->slots; sw++, dst += p->plane) {
            ImageRow r = image_row(w->in, p->vw, w->step,
                                   conv_phase(w, sw) - w->pad);
            int64_t y = row0 * h->step + conv_phase(h, sh) - h->pad;
            float *to = dst;
            for (int64_t v = 0; v < rows; v++, y += h->step, to += p->vw) {
                if (!inside || y < 0 || y >= h->in)
                    image_zero(to, p->vw);
                else
                    image_line(to, src, dtype, from + y * w->in, &r);
            }
            image_zero(to, (p->vh - rows) * p->vw);
        }
    }
}

INLINE void image_load_as(const ConvPlan *p, float *dst, const void *src,
                          int dtype, int64_t from, int64_t channels,
                          int64_t depth, int64_t row0, int64_t rows)
{
    const ConvDim *d = &p->dim[0], *h = &p->dim[1], *w = &p->dim[2];
    int64_t size = h->in * w->in;
    for (int64_t c = 0; c < channels; c++, from += d->in * size) {
        for (int64_t s = 0; s < d->slots; s++) {
            for (int64_t v = 0; v < p->vd; v++) {
                int64_t z = (depth + v) * d->step + conv_phase(d, s) - d->pad;
                int inside = z >= 0 && z < d->in;
                image_plane(p, dst, src, dtype, from + z * size, inside, row0,
                            rows);
                dst += h->slots * w->slots * p->plane;
            }
        }
    }
    image_zero(dst, BLOCK_LANES);
}

void ISA(image_load)(const ConvPlan *p, float *dst, const void *src, int dtype,
                     int64_t from, int64_t channels, int64_t depth,
                     int64_t row0, int64_t rows)
{
    rows = min64(rows + p->dim[1].reach, p->vh);
    if (dtype == AMPC_F32)
        image_load_as(p, dst, src, AMPC_F32, from, channels, depth, row0, rows);
    else if (dtype == AMPC_BF16)
        image_load_as(p, dst, src, AMPC_BF16, from, channels, depth, row0,
                      rows);
    else
        image_load_as(p, dst, src, AMPC_F16, from, channels, depth, row0, rows);
}

INLINE void image_pad_as(float *dst, int64_t width, const void *src, int dtype,
                         int64_t from, int64_t n, int64_t rows)
{
    ImageRow r = image_row(n, width, 1, 0);
    for (int64_t i = 0; i < rows; i++)
        image_copy(dst + i * width, src, dtype, from + i * n, &r);
}

void ISA(image_pad)(float *dst, int64_t width, const void *src, int dtype,
                    int64_t from, int64_t n, int64_t rows)
{
    if (dtype == AMPC_F32)
        image_pad_as(dst, width, src, AMPC_F32, from, n, rows);
    else if (dtype == AMPC_BF16)
        image_pad_as(dst, width, src, AMPC_BF16, from, n, rows);
    else
        image_pad_as(dst, width, src, AMPC_F16, from, n, rows);
}
