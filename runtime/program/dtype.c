/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.c: see dtype.h. */
#include "runtime/program/dtype.h"

#include <math.h>
#include <stdio.h>

#include "runtime/program/half.h"
#include "runtime/program/plan.h"

size_t dtype_bytes(uint32_t dtype) {
    static const uint8_t bytes[AMPC_NDTYPE] = {1, 1, 1, 2, 2, 4, 4,
                                               8, 8, 2, 2, 4, 8};
    return dtype < AMPC_NDTYPE ? bytes[dtype] : 0;
}

const char *dtype_name(uint32_t dtype) {
    static const char *const names[AMPC_NDTYPE] = {
        "bool", "u8",  "i8",  "u16",  "i16", "u32", "i32",
        "u64",  "i64", "f16", "bf16", "f32", "f64"};
    return dtype < AMPC_NDTYPE ? names[dtype] : "?";
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

bool is_float_dtype(uint32_t dtype) {
    return dtype >= AMPC_F16 && dtype <= AMPC_F64;
}

double float_at(uint32_t dtype, const void *p) {
    switch (dtype) {
    case AMPC_F16: return f16_to_f32(*(const uint16_t *)p);
    case AMPC_BF16: return bf16_to_f32(*(const uint16_t *)p);
    case AMPC_F32: return *(const float *)p;
    default: return *(const double *)p;
    }
}

bool float_put(uint32_t dtype, double x, void *p) {
    switch (dtype) {
    case AMPC_F16: *(uint16_t *)p = f32_to_f16((float)x); break;
    case AMPC_BF16: *(uint16_t *)p = f32_to_bf16((float)x); break;
    case AMPC_F32: *(float *)p = (float)x; break;
    default: *(double *)p = x; break;
    }
    return isfinite(float_at(dtype, p)) || !isfinite(x);
}
