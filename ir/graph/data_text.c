/* SPDX-License-Identifier: Apache-2.0 */
/* data_text.c: the elements of a tensor, and initial values, as text. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ir/graph/init.h"
#include "ir/graph/ir_impl.h"

/* ---- data ---------------------------------------------------------------- */

/* Shortest text that rounds back to the same number in a 16-bit type. */
static void put_low(StrBuf *sb, DType d, double v) {
    char text[32];
    if (!isfinite(v)) {
        sb_put_double(sb, v, true);
        return;
    }
    bool whole = fabs(v) < 1e5 && v == floor(v);
    for (int digits = whole ? 5 : 1; digits <= 6; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (dtype_nearest(d, strtod(text, NULL)) == dtype_nearest(d, v)) break;
    }
    sb_puts(sb, text);
}

void put_element(StrBuf *sb, const Tensor *t, int64_t i) {
    DType d = type_get(t->type)->dtype;
    if (dtype_is_low(d))
        put_low(sb, d, tensor_get(t, i));
    else if (dtype_is_float(d))
        sb_put_double(sb, tensor_get(t, i), d != DT_F64);
    else if (d == DT_U64)
        sb_printf(sb, "%llu", (unsigned long long)tensor_get_int(t, i));
    else
        sb_printf(sb, "%lld", (long long)tensor_get_int(t, i));
}

bool data_all_equal(const Tensor *t, int64_t n) {
    size_t size = (size_t)dtype_info[type_get(t->type)->dtype].bytes;
    for (int64_t i = 1; i < n; i++)
        if (memcmp(t->data, (char *)t->data + (size_t)i * size, size) != 0 &&
            !(isnan(tensor_get(t, 0)) && isnan(tensor_get(t, i))))
            return false;
    return true;
}

void put_data(StrBuf *sb, const Tensor *t) {
    const Type *type = type_get(t->type);
    int64_t n = type_count(type);
    if (n && (type->rank == 0 || (n > 1 && data_all_equal(t, n)))) {
        put_element(sb, t, 0);
    } else if (n > DATA_SHOWN) {
        uint64_t h = hash_bytes(0, t->data, (size_t)type_bytes(type));
        sb_printf(sb, "data(0x%llx)", (unsigned long long)h);
    } else {
        sb_puts(sb, "[");
        for (int64_t i = 0; i < n; i++) {
            if (i) sb_puts(sb, ", ");
            put_element(sb, t, i);
        }
        sb_puts(sb, "]");
    }
}

/* ---- generated data ------------------------------------------------------ */

const char *const generator_text[] = {"normal", "uniform", "data"};
const int generator_numbers[] = {1, 2, 0};

void init_draw(Generator gen, uint64_t seed, const double *range, Init *init) {
    StrBuf text = {0};
    init->draw = (Draw){gen == GEN_NORMAL ? DRAW_NORMAL : DRAW_UNIFORM, seed,
                        range[0], range[1]};
    sb_printf(&text, gen == GEN_DATA ? "%s(0x%llx" : "%s(%lld",
              generator_text[gen], (long long)seed);
    for (int i = 0; i < generator_numbers[gen]; i++) {
        sb_puts(&text, ", ");
        sb_put_double(&text, range[i], false);
    }
    sb_puts(&text, ")");
    init->text = intern_n(text.data, text.len);
    sb_free(&text);
}
