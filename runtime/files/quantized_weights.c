/* SPDX-License-Identifier: Apache-2.0 */
/* quantized_weights.c: variables that hold codes of a frozen weight, and
   those that hold the scales (--frozen-dtype). */
#include <stdio.h>
#include <string.h>

#include "runtime/api/session.h"
#include "runtime/base/try.h"
#include "runtime/files/checkpoint.h"
#include "runtime/program/quantized.h"

enum {
#define FAMILY(id, prefix) FAMILY_##id,
#include "runtime/program/names.def"
};

static const char *const families[] = {
#define FAMILY(id, prefix) prefix,
#include "runtime/program/names.def"
};

static const char *prefix_of(int code) { return families[FAMILY_INT8 + code]; }

int scales_of(const AmpcModule *m, const PlanVar *v, int *code) {
    char name[1100];
    int i = -1;
    if (v->kind != PLAN_FROZEN || (v->dtype != AMPC_I8 && v->dtype != AMPC_U8))
        return -1;
    for (*code = 0; *code < QUANTIZED_CODES && i < 0; ++*code) {
        snprintf(name, sizeof name, "%s%s", prefix_of(*code), v->name);
        i = find_var(m, name);
    }
    --*code;
    return i;
}

int weight_of_scales(const AmpcModule *m, const PlanVar *v) {
    int i = -1;
    for (int code = 0; code < QUANTIZED_CODES && i < 0; code++) {
        size_t n = strlen(prefix_of(code));
        if (!strncmp(v->name, prefix_of(code), n)) i = find_var(m, v->name + n);
    }
    return i;
}

PlanVar widened_weight(const PlanVar *v, int code) {
    PlanVar w = *v;
    w.dtype = AMPC_F32;
    if (code != QUANTIZED_INT8) w.dim[w.rank - 1] *= 2;
    return w;
}

ampc_status quantize_tensor(StFile *f, const StTensor *t, int code, void *q,
                            float *scale) {
    _Alignas(8) char part[QUANTIZED_BLOCK * 8];
    float x[QUANTIZED_BLOCK];
    size_t each = dtype_bytes(t->dtype);
    uint64_t n = (t->end - t->begin) / each;
    for (uint64_t i = 0; i < n; i += QUANTIZED_BLOCK) {
        int some = n - i < QUANTIZED_BLOCK ? (int)(n - i) : QUANTIZED_BLOCK;
        TRY(st_read(f, t, i * each, (uint64_t)some * each, part));
        for (int k = 0; k < some; k++)
            x[k] = (float)float_at(t->dtype, part + (size_t)k * each);
        quantized_put(code, x, (int64_t)i, some, q, scale);
    }
    return AMPC_OK;
}
