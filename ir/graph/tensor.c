/* SPDX-License-Identifier: Apache-2.0 */
/* tensor.c: elements of host tensors in their storage dtypes.

   The low formats with a sign differ in a few numbers, so one encoder and one
   decoder serve them; a double is rounded once. */
#include "ir/ir.h"

#include <math.h>
#include <string.h>

typedef struct LowFormat {
    int bits;
    int stored;    /* stored mantissa bits */
    int min_exp;   /* exponent of the smallest normal number */
    unsigned over; /* code of what overflows: infinity, else NaN */
    unsigned nan;
} LowFormat;
static const LowFormat low_f16 = {16, 10, -14, 0x7c00, 0x7e00},
                       low_bf16 = {16, 7, -126, 0x7f80, 0x7fc0},
                       low_f8e4m3 = {8, 3, -6, 0x7f, 0x7f},
                       low_f8e5m2 = {8, 2, -14, 0x7c, 0x7f};

static unsigned encode(LowFormat h, double v) {
    unsigned sign = signbit(v) ? 1u << (h.bits - 1) : 0;
    double a = fabs(v);
    if (isnan(v)) return sign | h.nan;
    if (isinf(v)) return sign | h.over;
    int e = a > 0 ? ilogb(a) : h.min_exp;
    if (e < h.min_exp) e = h.min_exp;
    if (e > 127) return sign | h.over; /* so that the code fits an int64_t */
    /* a / quantum has stored + 1 bits before the point: rint rounds to even,
       and a carry into the next exponent is correct */
    int64_t m = (int64_t)rint(ldexp(a, h.stored - e));
    int64_t code = ((int64_t)(e - h.min_exp) << h.stored) + m;
    return sign | (code >= h.over ? h.over : (unsigned)code);
}

static double decode(LowFormat h, unsigned code) {
    unsigned sign = 1u << (h.bits - 1), mag = code & (sign - 1);
    int e = (int)(mag >> h.stored), m = (int)(mag & ((1u << h.stored) - 1));
    double v;
    if (mag >= h.over)
        v = mag > h.over || h.over == h.nan ? (double)NAN : (double)INFINITY;
    else if (e == 0)
        v = ldexp(m, h.min_exp - h.stored);
    else
        v = ldexp(m + (1 << h.stored), e - 1 + h.min_exp - h.stored);
    return code & sign ? -v : v;
}

#define CODEC(text, C)                                                         \
    double text##_to_double(C h) { return decode(low_##text, h); }             \
    C double_to_##text(double v) { return (C)encode(low_##text, v); }
CODEC(f16, uint16_t)
CODEC(bf16, uint16_t)
CODEC(f8e4m3, uint8_t)
CODEC(f8e5m2, uint8_t)

double e8m0_to_double(uint8_t h) {
    return h == 255 ? (double)NAN : ldexp(1, h - 127);
}

/* See runtime/program/half.h. */
uint8_t double_to_e8m0(double v) {
    int e;
    if (!isfinite(v)) return 255;
    if (fabs(v) < 0x1p-126) return fabs(v) > 0x1p-127;
    double m = frexp(fabs(v), &e); /* v = 2 m 2^(e - 1), 2 m >= 1 */
    e += m >= 0.75;
    return e - 1 > 127 ? 255 : (uint8_t)(e - 1 + 127);
}

Tensor *tensor_new(Arena *a, TypeId t) {
    Tensor *x = NEW(a, Tensor);
    x->type = t;
    x->data = arena_alloc(a, (size_t)type_bytes(type_get(t)));
    return x;
}

void tensor_repeat(const Tensor *t) {
    size_t n = (size_t)type_bytes(type_get(t->type)), done;
    uint8_t *to = t->data;
    if (!n) return;
    done = (size_t)dtype_info[type_get(t->type)->dtype].bytes;
    for (size_t more; done < n; done += more) {
        more = done < n - done ? done : n - done;
        memcpy(to + done, to, more);
    }
}

/* f32 is by far the commonest and needs no call. */
void tensor_draw(const Tensor *t, const Draw *d) {
    DType dtype = type_get(t->type)->dtype;
    DrawType as = !dtype_is_float(dtype) ? DRAW_INTEGER
                  : dtype == DT_F64      ? DRAW_DOUBLE
                                         : DRAW_FLOAT;
    int64_t n = type_count(type_get(t->type));
    float *f = dtype == DT_F32 ? t->data : NULL;
    for (int64_t i = 0; i < n; i++) {
        double v = draw_at(d, as, (uint64_t)i);
        if (f)
            f[i] = (float)v;
        else
            tensor_set(t, i, v);
    }
}

Tensor *tensor_drawn(Arena *a, TypeId type, const Draw *d) {
    Tensor *t = tensor_new(a, type);
    tensor_draw(t, d);
    return t;
}

const Tensor *var_initial(Arena *a, const Var *v) {
    return v->draw.kind ? tensor_drawn(a, v->type, &v->draw) : v->init;
}

double draw_bound(const Draw *d) {
    return d->kind == DRAW_NORMAL ? 6 * fabs(d->a)
                                  : fmax(fabs(d->a), fabs(d->b));
}

double dtype_nearest(DType d, double v) {
    switch (d) {
    case DT_F32: return (double)(float)v;
#define LOW(E, text, C, ...)                                                   \
    case DT_##E:                                                               \
        return text##_to_double(double_to_##text(v));
#include "runtime/program/dtypes.def"
    default: return v;
    }
}

double tensor_get(const Tensor *t, int64_t i) {
    switch (type_get(t->type)->dtype) {
#define LOW(E, text, C, ...)                                                   \
    case DT_##E:                                                               \
        return text##_to_double(((const C *)t->data)[i]);
#include "runtime/program/dtypes.def"
    case DT_F32: return ((const float *)t->data)[i];
    case DT_F64: return ((const double *)t->data)[i];
    case DT_U64: return (double)((const uint64_t *)t->data)[i];
    default: return (double)tensor_get_int(t, i);
    }
}

/* The nearest value that the dtype can represent; NaN gives 0. */
static int64_t to_int(double v) {
    if (isnan(v)) return 0;
    if (v >= 0x1p63) return INT64_MAX;
    if (v <= -0x1p63) return INT64_MIN;
    return (int64_t)v;
}

int64_t tensor_get_int(const Tensor *t, int64_t i) {
    switch (type_get(t->type)->dtype) {
    case DT_BOOL:
    case DT_U8: return ((const uint8_t *)t->data)[i];
    case DT_I8: return ((const int8_t *)t->data)[i];
    case DT_U16: return ((const uint16_t *)t->data)[i];
    case DT_I16: return ((const int16_t *)t->data)[i];
    case DT_U32: return ((const uint32_t *)t->data)[i];
    case DT_I32: return ((const int32_t *)t->data)[i];
    case DT_U64: return (int64_t)((const uint64_t *)t->data)[i];
    case DT_I64: return ((const int64_t *)t->data)[i];
    default: return to_int(tensor_get(t, i));
    }
}

void tensor_set(const Tensor *t, int64_t i, double v) {
    switch (type_get(t->type)->dtype) {
#define LOW(E, text, C, ...)                                                   \
    case DT_##E:                                                               \
        ((C *)t->data)[i] = double_to_##text(v);                               \
        break;
#include "runtime/program/dtypes.def"
    case DT_F32: ((float *)t->data)[i] = (float)v; break;
    case DT_F64: ((double *)t->data)[i] = v; break;
    case DT_BOOL: ((uint8_t *)t->data)[i] = v != 0; break;
    case DT_U64:
        if (v >= 0x1p63 && v < 0x1p64) {
            ((uint64_t *)t->data)[i] = (uint64_t)v;
            break;
        }
        /* fall through */
    default: tensor_set_int(t, i, to_int(v)); break;
    }
}

void tensor_set_int(const Tensor *t, int64_t i, int64_t v) {
    switch (type_get(t->type)->dtype) {
    case DT_BOOL: ((uint8_t *)t->data)[i] = v != 0; break;
    case DT_U8: ((uint8_t *)t->data)[i] = (uint8_t)v; break;
    case DT_I8: ((int8_t *)t->data)[i] = (int8_t)v; break;
    case DT_U16: ((uint16_t *)t->data)[i] = (uint16_t)v; break;
    case DT_I16: ((int16_t *)t->data)[i] = (int16_t)v; break;
    case DT_U32: ((uint32_t *)t->data)[i] = (uint32_t)v; break;
    case DT_I32: ((int32_t *)t->data)[i] = (int32_t)v; break;
    case DT_U64: ((uint64_t *)t->data)[i] = (uint64_t)v; break;
    case DT_I64: ((int64_t *)t->data)[i] = v; break;
    default: tensor_set(t, i, (double)v); break;
    }
}
