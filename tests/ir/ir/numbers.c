/* SPDX-License-Identifier: Apache-2.0 */
/* numbers.c: 16-bit floats, tensors, types and the table of ops. */
#include <math.h>
#include <string.h>

#include "ir/ir.h"
#include "tests/harness.h"
#include "tests/ir/ir/fixture.h"

/* ---- 16-bit floats ------------------------------------------------------- */

TEST_CASE(halves, every_pattern_reads_back) {
    for (int i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        double f = f16_to_double(h), b = bf16_to_double(h);
        if (isnan(f))
            CHECK(isnan(f16_to_double(double_to_f16(f))));
        else
            CHECK_EQ_INT(double_to_f16(f), h);
        if (isnan(b))
            CHECK(isnan(bf16_to_double(double_to_bf16(b))));
        else
            CHECK_EQ_INT(double_to_bf16(b), h);
    }
}

/* Between two neighbours: below the middle rounds down, above it up, and the
   middle to even. */
static void check_rounding(double (*decode)(uint16_t),
                           uint16_t (*encode)(double), uint16_t inf) {
    for (uint16_t h = 0; h + 1 < inf; h++) {
        double lo = decode(h), hi = decode(h + 1), mid = (lo + hi) / 2;
        bool ok = encode(mid) == (h & 1 ? h + 1 : h) &&
                  encode(nextafter(mid, lo)) == h &&
                  encode(nextafter(mid, hi)) == h + 1 &&
                  encode(-mid) == (0x8000 | (h & 1 ? h + 1 : h));
        if (!CHECK_MSG(ok, "between %g and %g", lo, hi)) return;
    }
}

TEST_CASE(halves, round_to_nearest_even) {
    check_rounding(f16_to_double, double_to_f16, 0x7c00);
    check_rounding(bf16_to_double, double_to_bf16, 0x7f80);
}

TEST_CASE(halves, limits) {
    CHECK_EQ_INT(double_to_f16(65504), 0x7bff);
    CHECK_EQ_INT(double_to_f16(65519.99), 0x7bff);
    CHECK_EQ_INT(double_to_f16(65520), 0x7c00);
    CHECK_EQ_INT(double_to_f16(-1e300), 0xfc00);
    CHECK_EQ_INT(double_to_f16(0x1p-25), 0);
    CHECK_EQ_INT(double_to_f16(0x1.0000001p-25), 1);
    CHECK_EQ_INT(double_to_bf16((double)3.40282347e38f), 0x7f80);
    CHECK_EQ_INT(double_to_bf16(1), 0x3f80);
}

TEST_CASE(tensors, elements_in_every_dtype) {
    Arena *a = arena_new();
    int64_t dim[] = {3};
    for (int d = 0; d < NUM_DTYPES; d++) {
        Tensor *t = tensor_new(a, type_make((DType)d, 1, dim));
        double least = d == DT_E8M0 ? 0x1p-127 : 0;
        CHECK_NEAR(tensor_get(t, 1), least, 0);
        tensor_set(t, 1, 1);
        tensor_set_int(t, 2, 1);
        CHECK_NEAR(tensor_get(t, 0), least, 0);
        CHECK_NEAR(tensor_get(t, 1), 1, 0);
        CHECK_EQ_INT(tensor_get_int(t, 2), 1);
    }
    arena_free(a);
}

/* ---- types --------------------------------------------------------------- */

TypeId ir_make(DType d, int rank, int64_t a, int64_t b, int64_t c) {
    int64_t dim[] = {a, b, c};
    return type_make(d, rank, dim);
}

TEST_CASE(tensors, one_element_becomes_all) {
    Arena *a = arena_new();
    for (int d = 0; d < NUM_DTYPES; d++)
        for (int64_t n = 0; n < 20; n++) {
            Tensor *t = tensor_new(a, type_make((DType)d, 1, &n));
            if (n) tensor_set(t, 0, 1);
            tensor_repeat(t);
            for (int64_t i = 0; i < n; i++) CHECK(tensor_get(t, i) == 1);
        }
    arena_free(a);
}

/* The declared distribution of a variable contains every drawn value, and is
   checked. */
TEST_CASE(tensors, bounds_of_what_is_drawn) {
    static const Draw draws[] = {{DRAW_NORMAL, 1, 0.5, 0},
                                 {DRAW_NORMAL, 2, -3, 0},
                                 {DRAW_UNIFORM, 3, -2, 0.25},
                                 {DRAW_UNIFORM, 4, 0.5, 3}};
    const int64_t n = 1 << 20;
    for (size_t i = 0; i < sizeof draws / sizeof *draws; i++) {
        double most = 0, bound = draw_bound(&draws[i]);
        for (int64_t k = 0; k < n; k++)
            most =
                fmax(most, fabs(draw_at(&draws[i], DRAW_FLOAT, (uint64_t)k)));
        CHECK_MSG(most <= bound && bound < 1.5 * most, "%d: %g of %g", (int)i,
                  most, bound);
    }
}

TEST_CASE(types, equal_types_share_an_id) {
    TypeId a = ir_make(DT_F32, 2, 3, 4, 0);
    const Type *p = type_get(a);
    CHECK_EQ_INT(ir_make(DT_F32, 2, 3, 4, 9).i, a.i);
    CHECK(ir_make(DT_F32, 3, 3, 4, 0).i != a.i);
    CHECK(ir_make(DT_F64, 2, 3, 4, 0).i != a.i);
    for (int i = 0; i < 2000; i++) ir_make(DT_I8, 1, i + 100, 0, 0);
    CHECK(type_get(a) == p); /* the table grew, but the type did not move */
    CHECK_EQ_INT(ir_make(DT_F32, 2, 3, 4, 0).i, a.i);
    CHECK_EQ_INT(type_with_dtype(a, DT_BF16).i, ir_make(DT_BF16, 2, 3, 4, 0).i);
}

TEST_CASE(types, impossible_shapes_have_no_id) {
    CHECK_EQ_INT(ir_make(DT_F32, 1, -1, 0, 0).i, 0);
    CHECK_EQ_INT(ir_make(DT_F32, 2, INT64_MAX, 2, 0).i, 0);
    CHECK_EQ_INT(ir_make(DT_F32, 1, INT64_MAX, 0, 0).i, 0);
    CHECK_EQ_INT(ir_make(DT_F32, 3, 1LL << 40, 0, 1LL << 40).i, 0);
    CHECK_EQ_INT(type_make(DT_F32, MAX_RANK + 1, (int64_t[9]){0}).i, 0);
    CHECK(ir_make(DT_U8, 1, MAX_ELEMENTS, 0, 0).i != 0);
    CHECK_EQ_INT(ir_make(DT_U8, 1, MAX_ELEMENTS + 1, 0, 0).i, 0);
    CHECK(ir_make(DT_U8, 2, 1LL << 30, 1LL << 10, 0).i != 0);
    CHECK_EQ_INT(ir_make(DT_U8, 2, 1LL << 30, 1LL << 11, 0).i, 0);
    CHECK(ir_make(DT_F32, 3, 1LL << 39, 0, 2).i != 0);
    CHECK_EQ_INT(type_count(type_get(ir_make(DT_F32, 3, 7, 0, 2))), 0);
    CHECK_EQ_INT(type_bytes(type_get(type_scalar(DT_F64))), 8);
}

TEST_CASE(types, strides) {
    static const int64_t cases[][6] = {{4, 3, 2, 6, 2, 1}, {4, 1, 2, 2, 2, 1},
                                       {4, 3, 1, 3, 1, 1}, {1, 1, 1, 1, 1, 1},
                                       {4, 0, 2, 2, 2, 1}, {0, 3, 2, 6, 2, 1},
                                       {4, 3, 0, 3, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t stride[MAX_RANK];
        shape_strides(type_get(type_make(DT_F32, 3, cases[i])), stride);
        for (int k = 0; k < 3; k++) CHECK_EQ_INT(stride[k], cases[i][3 + k]);
    }
}

TEST_CASE(types, broadcasting) {
    static const struct {
        int ra, rb;
        int64_t a[3], b[3];
        int rank; /* -1: mismatch */
        int64_t out[3];
    } cases[] = {
        {2, 1, {4, 3}, {3}, 2, {4, 3}},
        {2, 2, {4, 1}, {1, 3}, 2, {4, 3}},
        {0, 2, {0}, {2, 3}, 2, {2, 3}},
        {1, 1, {2}, {3}, -1, {0}},
        {3, 1, {2, 3, 1}, {5}, 3, {2, 3, 5}},
        {1, 1, {0}, {1}, 1, {0}},
        {1, 1, {0}, {2}, -1, {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Type a = {.rank = cases[i].ra}, b = {.rank = cases[i].rb};
        Type out = {.dtype = DT_I8};
        memcpy(a.dim, cases[i].a, sizeof cases[i].a);
        memcpy(b.dim, cases[i].b, sizeof cases[i].b);
        bool ok = shape_broadcast(&a, &b, &out);
        CHECK_EQ_INT(ok, cases[i].rank >= 0);
        if (!ok) continue;
        CHECK_EQ_INT(out.rank, cases[i].rank);
        CHECK_MEM(out.dim, cases[i].out, sizeof cases[i].out);
        CHECK_EQ_INT(out.dtype, DT_I8);
    }
}

TEST_CASE(types, promotion) {
    CHECK_EQ_INT(dtype_promote(DT_F16, DT_BF16), DT_F32);
    CHECK_EQ_INT(dtype_promote(DT_BF16, DT_BF16), DT_BF16);
    CHECK_EQ_INT(dtype_promote(DT_F32, DT_BF16), DT_F32);
    CHECK_EQ_INT(dtype_promote(DT_F32, DT_F64), DT_F64);
    CHECK_EQ_INT(dtype_promote(DT_I32, DT_I64), DT_I64);
    CHECK_EQ_INT(dtype_promote(DT_I64, DT_F16), DT_F16);
    for (int a = 0; a < NUM_DTYPES; a++)
        for (int b = 0; b < NUM_DTYPES; b++)
            CHECK_EQ_INT(dtype_promote((DType)a, (DType)b),
                         dtype_promote((DType)b, (DType)a));
}

TEST_CASE(types, text_of_dtypes) {
    DType d;
    for (int i = 0; i < NUM_DTYPES; i++) {
        CHECK(dtype_from_text(dtype_info[i].text, strlen(dtype_info[i].text),
                              &d) &&
              (int)d == i);
        CHECK(dtype_from_onnx(dtype_info[i].onnx, &d) && (int)d == i);
    }
    CHECK(!dtype_from_text("f3", 2, &d));
    CHECK(!dtype_from_onnx(99, &d));
}

/* ---- the op table -------------------------------------------------------- */

TEST_CASE(ops, rows_are_sound) {
    for (int i = 0; i < NUM_OPS; i++) {
        const OpInfo *op = &op_info[i];
        OpCode back;
        CHECK(op_from_text(op->text, strlen(op->text), &back) &&
              (int)back == i);
        CHECK_MSG(op->type != NULL, "%s has no type rule", op->text);
        CHECK(op->out_min >= 1);
        CHECK(op->in_max < 0 || op->in_min <= op->in_max);
        CHECK(op->out_max < 0 || op->out_min <= op->out_max);
        CHECK_MSG(op->kind != KIND_ELEM || strcmp(op->expr, "0") != 0,
                  "%s has no expression", op->text);
        CHECK_MSG(op->kind != KIND_ELEM || op->out_max == 1, "%s", op->text);
        for (int a = 0; a < op->nattr; a++) CHECK(op->attrs[a] < NUM_ATTRS);
    }
}
