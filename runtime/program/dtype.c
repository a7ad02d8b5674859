/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.c: see dtype.h. */
#include "runtime/program/dtype.h"

#include <math.h>
#include <stdio.h>

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
    for (uint32_t i = 0; i < rank; i++)
        if (dim[i] < 0 || __builtin_mul_overflow(n, (uint64_t)dim[i], &n) ||
            n > INT64_MAX)
            return false;
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

const char *axes_hint(char buf[160], uint32_t rank, const int64_t *have,
                      const int64_t *want) {
    bool used[AMPC_MAX_RANK] = {0}, moved = false;
    int n = snprintf(buf, 160, "; its axes in the order (");
    for (uint32_t i = 0; i < rank; i++) {
        uint32_t k = 0;
        while (k < rank && (used[k] || have[k] != want[i])) k++;
        if (k == rank) return "";
        used[k] = true;
        moved |= k != i;
        n += snprintf(buf + n, 160 - (size_t)n, "%s%u", i ? ", " : "", k);
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
