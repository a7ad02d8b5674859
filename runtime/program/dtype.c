/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.c: see dtype.h. */
#include "runtime/base/contract.h"
#include "runtime/program/dtype.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const DTypeInfo dtype_info[AMPC_NDTYPE] = {
#define DTYPE(E, name, C, ...)                                                 \
    [AMPC_##E] = {.text = name,                                                \
                  .macro = #E,                                                 \
                  .c = #C,                                                     \
                  .cuda = #C,                                                  \
                  .bytes = sizeof(C),                                          \
                  __VA_ARGS__},
#define LOW(E, name, C, ...)                                                   \
    [AMPC_##E] = {.text = #name,                                               \
                  .macro = #E,                                                 \
                  .c = #C,                                                     \
                  .cuda = #name,                                               \
                  .bytes = sizeof(C),                                          \
                  .low = true,                                                 \
                  __VA_ARGS__},
#include "runtime/program/dtypes.def"
};

size_t dtype_bytes(uint32_t dtype) {
    return dtype < AMPC_NDTYPE ? (size_t)dtype_info[dtype].bytes : 0;
}

const char *dtype_name(uint32_t dtype) {
    return dtype < AMPC_NDTYPE ? dtype_info[dtype].text : "?";
}

bool dense_bytes(uint32_t dtype, uint32_t rank, const int64_t *dim,
                 uint64_t *bytes) {
    uint64_t n = dtype_bytes(dtype);
    if (n == 0 || rank > AMPC_MAX_RANK) return false;
    for (uint32_t i = 0; i < rank; i++) {
        if (dim[i] < 0 || (dim[i] && n > (uint64_t)(INT64_MAX / dim[i])))
            return false;
        n *= (uint64_t)dim[i];
    }
    *bytes = n;
    return true;
}

const char *shape_text(char buf[160], uint32_t dtype, uint32_t rank,
                       const int64_t *dim) {
    int n = snprintf(buf, 160, "%s[", dtype_name(dtype));
    for (uint32_t i = 0; i < rank && i < AMPC_MAX_RANK && n < 130; i++)
        n += snprintf(buf + n, 160 - (size_t)n, "%s%lld", i ? "," : "",
                      (long long)dim[i]);
    snprintf(buf + n, 160 - (size_t)n, "]");
    return buf;
}

/* An order of `rank` axes of which n are already chosen. */
typedef struct Order {
    uint32_t axis[AMPC_MAX_RANK], n;
    bool used[AMPC_MAX_RANK];
} Order;

static void choose(Order *o, uint32_t axis) {
    CONTRACT(axis < AMPC_MAX_RANK && !o->used[axis] && o->n < AMPC_MAX_RANK);
    o->used[axis] = true;
    o->axis[o->n++] = axis;
}

/* The first axis is the samples' unless no other order fits. */
static bool choose_size(Order *o, uint32_t rank, const int64_t *have,
                        int64_t size, bool samples) {
    for (uint32_t i = samples; i < rank + samples; i++) {
        uint32_t k = i < rank ? i : 0;
        if (o->used[k] || have[k] != size) continue;
        choose(o, k);
        return true;
    }
    return false;
}

/* The axes of `want` one by one. */
static bool order_by_size(Order *o, uint32_t rank, const int64_t *have,
                          uint32_t want_rank, const int64_t *want,
                          bool samples) {
    uint32_t first = 0;
    *o = (Order){.n = samples}; /* axis[0] is chosen last */
    for (uint32_t i = samples; i < want_rank; i++)
        if (want[i] != 1 && !choose_size(o, rank, have, want[i], samples))
            return false;
    while (first < rank && (o->used[first] || have[first] == 1)) first++;
    for (uint32_t k = 0; first == rank && k < rank; k++)
        if (!o->used[k]) first = k;
    if (samples && first == rank) return false;
    if (samples) o->used[o->axis[0] = first] = true;
    for (uint32_t k = 0; k < rank; k++) {
        if (o->used[k]) continue;
        if (have[k] != 1) return false;
        choose(o, k);
    }
    return true;
}

static int64_t elements_of(uint32_t rank, const int64_t *dim, uint32_t but,
                           uint32_t *axes) {
    int64_t n = 1;
    *axes = 0;
    for (uint32_t i = 0; i < rank; i++) {
        if (i == but || dim[i] == 1) continue;
        (*axes)++;
        if (dim[i] < 0 || (dim[i] && n > INT64_MAX / dim[i])) return -1;
        n *= dim[i];
    }
    return n;
}

/* The axis of samples first; the remaining axes are merged on one side. */
static bool order_by_samples(Order *o, uint32_t rank, const int64_t *have,
                             uint32_t want_rank, const int64_t *want) {
    uint32_t axes, want_axes;
    int64_t n = elements_of(want_rank, want, 0, &want_axes);
    for (uint32_t k = 1; k < rank; k++) {
        if (n < 0 || elements_of(rank, have, k, &axes) != n) continue;
        if (axes > 1 && want_axes > 1) continue;
        *o = (Order){.n = 0};
        choose(o, k);
        for (uint32_t i = 0; i < rank; i++)
            if (i != k) choose(o, i);
        return true;
    }
    return false;
}

const char *axes_hint(char buf[160], uint32_t rank, const int64_t *have,
                      uint32_t want_rank, const int64_t *want, bool samples) {
    Order o;
    bool moved = false;
    if (rank > AMPC_MAX_RANK || want_rank > AMPC_MAX_RANK ||
        want_rank < samples)
        return "";
    if (!order_by_size(&o, rank, have, want_rank, want, samples) &&
        !(samples && order_by_samples(&o, rank, have, want_rank, want)))
        return "";
    int n = snprintf(buf, 160, "; its axes in the order (");
    for (uint32_t i = 0; i < rank; i++) {
        moved |= o.axis[i] != i;
        n += snprintf(buf + n, 160 - (size_t)n, "%s%" PRIu32, i ? ", " : "",
                      o.axis[i]);
    }
    snprintf(buf + n, 160 - (size_t)n, ") would fit");
    return moved ? buf : "";
}

bool is_float_dtype(uint32_t dtype) {
    return dtype < AMPC_NDTYPE && dtype_info[dtype].kind == DK_F;
}

double float_at(uint32_t dtype, const void *p) {
    switch (dtype) {
#define LOW(E, name, C, ...)                                                   \
    case AMPC_##E:                                                             \
        return name##_to_f32(*(const C *)p);
#include "runtime/program/dtypes.def"
    case AMPC_F32: return *(const float *)p;
    default: return *(const double *)p;
    }
}

bool float_put(uint32_t dtype, double x, void *p) {
    switch (dtype) {
#define LOW(E, name, C, ...)                                                   \
    case AMPC_##E:                                                             \
        *(C *)p = f32_to_##name((float)x);                                     \
        break;
#include "runtime/program/dtypes.def"
    case AMPC_F32: *(float *)p = (float)x; break;
    default: *(double *)p = x; break;
    }
    return isfinite(float_at(dtype, p)) || !isfinite(x);
}

void number_put(uint32_t dtype, double x, void *p) {
    switch (dtype) {
    case AMPC_BOOL: *(uint8_t *)p = x != 0; break;
    case AMPC_U64: *(uint64_t *)p = (uint64_t)x; break;
    case AMPC_U32: *(uint32_t *)p = (uint32_t)x; break;
    case AMPC_U16: *(uint16_t *)p = (uint16_t)x; break;
    case AMPC_U8: *(uint8_t *)p = (uint8_t)x; break;
    case AMPC_I64: *(int64_t *)p = (int64_t)x; break;
    case AMPC_I32: *(int32_t *)p = (int32_t)x; break;
    case AMPC_I16: *(int16_t *)p = (int16_t)x; break;
    case AMPC_I8: *(int8_t *)p = (int8_t)x; break;
    default: float_put(dtype, x, p); break;
    }
}

void corner_copy(char *to, const int64_t *to_dim, const char *from,
                 const int64_t *from_dim, uint32_t rank, size_t each) {
    size_t out = each, in = each;
    if (rank == 0) {
        memcpy(to, from, each);
        return;
    }
    int64_t n = to_dim[0] < from_dim[0] ? to_dim[0] : from_dim[0];
    for (uint32_t i = 1; i < rank; i++) {
        out *= (size_t)to_dim[i];
        in *= (size_t)from_dim[i];
    }
    if (out == in) {
        memcpy(to, from, in * (size_t)n);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        corner_copy(to + (size_t)i * out, to_dim + 1, from + (size_t)i * in,
                    from_dim + 1, rank - 1, each);
}
