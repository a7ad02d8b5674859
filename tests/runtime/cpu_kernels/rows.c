/* SPDX-License-Identifier: Apache-2.0 */
/* rows.c: scatter-add, argmax, cumulative sums, argsort and boxes beside plain
 * loops.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <string.h>

#include "runtime/cpu/kmath.h"
#include "tests/harness.h"
#include "tests/support/cpu_cases.h"

/* ---- scatter-add, argmax ------------------------------------------------- */

/* Indices of each integer type, around both ends of the range. */
static const struct IndexType {
    int64_t dtype, least, most;
    size_t bytes;
} index_types[] = {
    {AMPC_I64, INT32_MIN, INT32_MAX, 8}, {AMPC_I32, INT32_MIN, INT32_MAX, 4},
    {AMPC_U64, 0, INT32_MAX, 8},         {AMPC_U32, 0, UINT32_MAX, 4},
    {AMPC_I16, INT16_MIN, INT16_MAX, 2}, {AMPC_U16, 0, UINT16_MAX, 2},
    {AMPC_I8, INT8_MIN, INT8_MAX, 1},    {AMPC_U8, 0, UINT8_MAX, 1}};

enum { INDEX_TYPES = sizeof index_types / sizeof *index_types };

static void scatter_case(int which) {
    LibScatterAdd s = {rnd_in(1, 3),   rnd_in(1, 50), rnd_in(0, 200),
                       rnd_in(1, 300), rnd_float(),   AMPC_I64,
                       rnd_float()};
    if (rnd() % 2)
        s.inner = rnd_in(1, 16); /* about as many as a vector, or
                                    fewer */
    if (rnd() % 5 == 0) s.src_dtype = s.out_dtype = AMPC_F64;
    const struct IndexType *type = &index_types[which];
    s.idx_dtype = type->dtype;
    int64_t nsrc = s.outer * s.nidx * s.inner;
    int64_t nout = s.outer * s.rows * s.inner;
    void *src = array(s.src_dtype, nsrc);
    void *idx = block((size_t)s.nidx * 8);
    double *want = zeros(nout);
    for (int64_t i = 0; i < s.nidx; i++) {
        int64_t t = rnd_in(-s.rows - 1, s.rows); /* out of range at both ends */
        if (rnd() % 8 == 0) t = rnd() % 2 ? type->least : type->most;
        t = t < type->least ? type->least : t > type->most ? type->most : t;
        memcpy((char *)idx + (size_t)i * type->bytes, &t, type->bytes);
        if (t < 0) t += s.rows;
        if (t < 0 || t >= s.rows) continue;
        for (int64_t o = 0; o < s.outer; o++)
            for (int64_t j = 0; j < s.inner; j++)
                want[(o * s.rows + t) * s.inner + j] +=
                    array_get(src, s.src_dtype, (o * s.nidx + i) * s.inner + j);
    }
    int top = top_level();
    for (int level = 2; level <= top; level++)
        for (int t = 0; t < 3; t++) {
            size_t need = cpu_scatter_add_scratch(&s, thread_counts[t]);
            void *out = array(s.out_dtype, nout), *scratch = scratch_of(need);
            lib_of(level)->scatter_add(pools[t], &s, src, idx, out, scratch);
            array_close("scatter_add", out, s.out_dtype, want, 1e-4, nout);
            scratch_check(scratch, need);
            block_free(out);
        }
    block_free(src);
    block_free(idx);
    block_free(want);
}

TEST_CASE(scatter_add, random_shapes) {
    rng = 41;
    pools_open();
    for (int i = 0; i < 12 * INDEX_TYPES; i++) scatter_case(i % INDEX_TYPES);
    pools_close();
}

static void argmax_case(void) {
    static const int64_t types[] = {AMPC_F32, AMPC_BF16, AMPC_F16, AMPC_F64};
    LibArgmax a = {rnd_in(1, 30), rnd_in(1, 40), rnd_in(1, 5), types[rnd() % 4],
                   AMPC_I64};
    int64_t n = a.outer * a.inner;
    void *x = array(a.dtype, n * a.axis);
    for (int64_t i = 0; i < n * a.axis; i++)
        array_set(x, a.dtype, i, (double)rnd_in(-4, 4)); /* many ties */
    int64_t *want = block((size_t)n * 8), *got = block((size_t)n * 8);
    for (int64_t i = 0; i < n; i++) {
        int64_t from = i / a.inner * a.axis * a.inner + i % a.inner;
        want[i] = 0;
        for (int64_t k = 1; k < a.axis; k++)
            if (array_get(x, a.dtype, from + k * a.inner) >
                array_get(x, a.dtype, from + want[i] * a.inner))
                want[i] = k;
    }
    int top = top_level();
    for (int level = 2; level <= top; level++)
        for (int t = 0; t < 3; t++) {
            lib_of(level)->argmax(pools[t], &a, x, got);
            CHECK(memcmp(want, got, (size_t)n * 8) == 0);
        }
    block_free(x);
    block_free(want);
    block_free(got);
}

TEST_CASE(argmax, first_of_the_largest) {
    rng = 51;
    pools_open();
    for (int i = 0; i < 60; i++) argmax_case();
    pools_close();
}

/* ---- cumulative sums ----------------------------------------------------- */

static void cumsum_case(void) {
    LibCumsum c = {.outer = rnd_in(1, 4),
                   .axis = rnd_in(1, 300),
                   .inner = rnd() % 2 ? rnd_in(1, 9) : rnd_in(1, 600),
                   .exclusive = rnd() % 2,
                   .reverse = rnd() % 2,
                   .dtype = rnd_float(),
                   .out_dtype = rnd_float()};
    int64_t n = c.outer * c.axis * c.inner;
    void *x = array(c.dtype, n), *y = array(c.out_dtype, n);
    double *want = zeros(n);
    for (int64_t o = 0; o < c.outer; o++)
        for (int64_t i = 0; i < c.inner; i++) {
            double sum = 0;
            for (int64_t k = 0; k < c.axis; k++) {
                int64_t a = c.reverse ? c.axis - 1 - k : k;
                int64_t at = (o * c.axis + a) * c.inner + i;
                want[at] = sum;
                sum += array_get(x, c.dtype, at);
                if (!c.exclusive) want[at] = sum;
            }
        }
    int top = top_level();
    for (int level = 2; level <= top; level++)
        for (int t = 0; t < 3; t++) {
            lib_of(level)->cumsum(pools[t], &c, x, y);
            array_close("cumsum", y, c.out_dtype, want, 1e-3, n);
        }
    block_free(x);
    block_free(y);
    block_free(want);
}

TEST_CASE(cumsum, random_shapes) {
    rng = 59;
    pools_open();
    for (int i = 0; i < 60; i++) cumsum_case();
    pools_close();
}

/* ---- argsort ------------------------------------------------------------- */

/* True if element i of a row is sorted before element j. */
static int comes_before(const LibArgsort *a, const void *x, int64_t row,
                        int64_t i, int64_t j) {
    double p = array_get(x, a->dtype, row + i);
    double q = array_get(x, a->dtype, row + j);
    if (isnan(p) != isnan(q)) return isnan(p) == !!a->descending;
    if (isnan(p) || p == q) return i < j;
    return (p > q) == !!a->descending;
}

/* Each position occurs once, before all later ones and all that are left
   out, including the last. */
static void argsort_check(const LibArgsort *a, const void *x,
                          const int32_t *got) {
    char *seen = block((size_t)a->n);
    for (int64_t r = 0; r < a->rows; r++, got += a->k) {
        int64_t row = r * a->n, wrong = 0;
        memset(seen, 0, (size_t)a->n);
        for (int64_t i = 0; i < a->k; i++) {
            REQUIRE(got[i] >= 0 && got[i] < a->n && !seen[got[i]]);
            seen[got[i]] = 1;
            wrong += i && !comes_before(a, x, row, got[i - 1], got[i]);
        }
        for (int64_t i = 0; i < a->n; i++)
            wrong += !seen[i] && !comes_before(a, x, row, got[a->k - 1], i);
        if (!CHECK_MSG(wrong == 0, "row %lld of %lld, first %lld, dtype %lld",
                       (long long)r, (long long)a->n, (long long)a->k,
                       (long long)a->dtype))
            break;
    }
    block_free(seen);
}

/* Ties, zeros of both signs, NaN; sorted, or in any order. */
static void argsort_fill(const LibArgsort *a, void *x) {
    static const double odd[] = {-0.0, NAN, -NAN, INFINITY, -INFINITY};
    int i8 = a->dtype == AMPC_I8, whole = i8 || a->dtype == AMPC_I32;
    int64_t most = i8 ? 127 : rnd() % 2 ? 9 : 1 << 20, way = rnd_in(-2, 1);
    for (int64_t i = 0; i < a->rows * a->n; i++) {
        double v = (double)rnd_in(-most, most);
        if (way > -1 && !i8) v = (double)(way ? i : -i);
        if (!whole && rnd() % 50 == 0) v = odd[rnd() % 5];
        array_set(x, a->dtype, i, v);
    }
}

static void argsort_case(int64_t rows, int64_t n, int64_t k) {
    static const int64_t types[] = {AMPC_F32, AMPC_BF16, AMPC_F16, AMPC_F64,
                                    AMPC_F32, AMPC_I32,  AMPC_I8,  AMPC_F32};
    LibArgsort a = {rows, n, k, rnd() % 2, types[rnd() % 8], AMPC_I32};
    size_t bytes = (size_t)(rows * k) * 4;
    void *x = array(a.dtype, rows * n);
    int32_t *got = block(bytes), *first = block(bytes);
    int top = top_level();
    argsort_fill(&a, x);
    for (int level = 2; level <= top; level++)
        for (int t = 0; t < 3; t++) {
            size_t need = cpu_argsort_scratch(&a, thread_counts[t]);
            void *scratch = scratch_of(need);
            lib_of(level)->argsort(pools[t], &a, x, got, scratch);
            scratch_check(scratch, need);
            if (level == 2 && t == 0) {
                argsort_check(&a, x, got);
                memcpy(first, got, bytes);
            }
            CHECK_MSG(memcmp(first, got, bytes) == 0,
                      "%lld of %lld, level %d, pool %d", (long long)k,
                      (long long)n, level, t);
        }
    block_free(x);
    block_free(got);
    block_free(first);
}

TEST_CASE(argsort, random_shapes) {
    rng = 53;
    pools_open();
    for (int i = 0; i < 120; i++) {
        int64_t n = rnd_in(1, i % 3 ? 100 : 2000);
        argsort_case(rnd_in(1, 9), n, rnd() % 3 ? rnd_in(1, n) : 1 + n / 20);
    }
    for (int i = 0; i < 12; i++) {
        int64_t n = rnd_in(1 << 15, 1 << 16);
        argsort_case(rnd_in(1, 2), n, i % 3 ? rnd_in(1, n / 50) : n);
    }
    pools_close();
}

/* ---- boxes --------------------------------------------------------------- */

/* Area that two boxes share over the area of both; 0 if one is empty. */
static double shared_area(const float *a, const float *b) {
    double both = 1, sides[2] = {1, 1};
    for (int k = 0; k < 2; k++) {
        double low = fmax((double)a[k], (double)b[k]);
        double high = fmin((double)a[k + 2], (double)b[k + 2]);
        if (high <= low) return 0;
        both *= high - low;
        sides[0] *= (double)a[k + 2] - (double)a[k];
        sides[1] *= (double)b[k + 2] - (double)b[k];
    }
    return both / (sides[0] + sides[1] - both);
}

/* Corners on a grid, so that areas are exact, and limits that no ratio of them
   equals. */
static void suppress_case(int64_t rows, int64_t n, int64_t k, float over) {
    LibSuppress s = {rows, n, k, AMPC_F32, AMPC_BOOL, AMPC_F32, AMPC_BOOL};
    size_t bytes = (size_t)(rows * n);
    float *box = array(AMPC_F32, rows * n * 4);
    uint8_t *left = block(bytes), *want = block(bytes), *got = block(bytes);
    for (int64_t i = 0; i < rows * n; i++) {
        left[i] = rnd() % 4 > 0;
        for (int c = 0; c < 2; c++) {
            box[4 * i + c] = (float)rnd_in(0, 40);
            box[4 * i + c + 2] = box[4 * i + c] + (float)rnd_in(0, 12);
        }
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = r * n, found = 0; i < (r + 1) * n; i++) {
            want[i] = left[i] && found < k;
            for (int64_t j = r * n; j < i; j++)
                want[i] &= !want[j] || shared_area(box + 4 * i, box + 4 * j) <=
                                           (double)over;
            found += want[i];
        }
    int top = top_level();
    for (int level = 2; level <= top; level++)
        for (int t = 0; t < 3; t++) {
            size_t need = cpu_suppress_scratch(&s, thread_counts[t]);
            void *scratch = scratch_of(need);
            lib_of(level)->suppress(pools[t], &s, box, left, &over, got,
                                    scratch);
            scratch_check(scratch, need);
            CHECK_MSG(memcmp(want, got, bytes) == 0,
                      "%lld of %lld, level %d, pool %d", (long long)k,
                      (long long)n, level, t);
        }
    block_free(box);
    block_free(left);
    block_free(want);
    block_free(got);
}

TEST_CASE(suppress, random_boxes) {
    static const float overs[] = {0, 0.2501f, 0.5001f, 0.9999f};
    rng = 61;
    pools_open();
    for (int i = 0; i < 40; i++) {
        int64_t n = rnd_in(1, i % 4 ? 60 : 900);
        suppress_case(rnd_in(1, 9), n, i % 3 ? n : rnd_in(0, n), overs[i % 4]);
    }
    pools_close();
}
