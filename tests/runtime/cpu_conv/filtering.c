/* SPDX-License-Identifier: Apache-2.0 */
/* filtering.c: convolutions in tiles of 2x2 and of 4x4 results (Winograd). */
#include <math.h>
#include <string.h>

#include "runtime/cpu/wino.h"
#include "tests/harness.h"
#include "tests/runtime/cpu_conv/cpu_conv.h"
#include "tests/support/cpu_cases.h"
#include "tests/tolerance.h"

/* Tiles of 2x2 results: odd heights and widths, pads beyond the kernel,
   channels that do not fill a vector, images staged in turns, wide rows. */
static const ConvRow filtered[] = {
    {7, 17, 19, 1, {9, 8}, {3, 3}, 1, 1},
    {3, 33, 16, 1, {13, 15}, {3, 3}, 1, 0},
    {3, 16, 50, 1, {12, 11}, {3, 3}, 1, 2},
    {70, 40, 21, 1, {8, 8}, {3, 3}, 1, 1},
    {1, 20, 30, 1, {3, 300}, {3, 3}, 1, 1},
};

TEST_CASE(conv, minimal_filtering) {
    rng = 27;
    for (size_t i = 0; i < sizeof filtered / sizeof *filtered; i++) {
        LibConv c = conv_of_row(&filtered[i]);
        WinoPlan p;
        CHECK(wino_plan(&c, 0, TILE_WIDENED, 1, &p));
        CHECK(wino_plan(&c, 1, TILE_WIDENED, 1, &p));
        CHECK(wino_wgrad_plan(&c, TILE_WIDENED, &p));
        CHECK(!wino_plan(&c, 0, TILE_PAIRS, 1, &p));
        conv_check_row(&filtered[i]);
    }
}

/* Tiles of 4x4 results in 16 bits: heights and widths that do not fill them,
   and the rest as above; a sum of dW over several turns, and one by slices. */
static const ConvRow filtered_4[] = {
    {11, 17, 19, 1, {7, 7}, {3, 3}, 1, 1},
    {3, 33, 16, 1, {15, 18}, {3, 3}, 1, 0},
    {4, 16, 50, 1, {14, 11}, {3, 3}, 1, 2},
    {70, 40, 21, 1, {8, 8}, {3, 3}, 1, 1},
    {1, 20, 30, 1, {4, 300}, {3, 3}, 1, 1},
    {9, 100, 70, 1, {8, 15}, {3, 3}, 1, 1},
};

TEST_CASE(conv, minimal_filtering_in_16_bits) {
    rng = 31;
    for (size_t i = 0; i < sizeof filtered_4 / sizeof *filtered_4; i++) {
        LibConv c = conv_of_row(&filtered_4[i]);
        WinoPlan p;
        c.x_dtype = c.w_dtype = c.y_dtype = AMPC_BF16;
        for (int kind = TILE_WIDENED; kind <= TILE_AMX; kind++) {
            int here = kind != TILE_AMX;
            CHECK_EQ_INT(wino_plan(&c, 0, kind, 1, &p) ? p.edge : 0, 4 * here);
            CHECK_EQ_INT(wino_plan(&c, 1, kind, 2, &p) ? p.edge : 0, 4 * here);
            CHECK_EQ_INT(wino_wgrad_plan(&c, kind, &p) ? p.edge : 0, 4 * here);
        }
        for (only_bf16 = 0; only_bf16 < 2; only_bf16++)
            conv_check_row(&filtered_4[i]);
        only_bf16 = 0;
    }
    /* many channels, where the sums of dW are too large to read again */
    LibConv many =
        conv_of_row(&(ConvRow){9, 256, 256, 1, {14, 14}, {3, 3}, 1, 1});
    WinoPlan p;
    many.x_dtype = many.w_dtype = many.y_dtype = AMPC_F16;
    CHECK(wino_plan(&many, 0, TILE_WIDENED, 1, &p) && p.edge == 4);
    CHECK(wino_wgrad_plan(&many, TILE_WIDENED, &p) && p.edge == 2);
}

static double conv_worst(const float *got, const double *want,
                         const double *mag, int64_t n) {
    double worst = 0;
    for (int64_t i = 0; i < n; i++)
        worst = fmax(worst, fabs(got[i] - want[i]) / mag[i]);
    return worst;
}

TEST_CASE(conv, minimal_filtering_is_as_exact_as_taps) {
    static const ConvRow few = {1, 64, 32, 1, {16, 16}, {3, 3}, 1, 1};
    static const ConvRow many = {2, 64, 32, 1, {16, 16}, {3, 3}, 1, 1};
    double worst[2];
    rng = 28;
    pools_open();
    for (int filters = 0; filters < 2; filters++) {
        ConvCase k = {.c = conv_of_row(filters ? &many : &few)};
        WinoPlan p;
        k.c.x_dtype = k.c.w_dtype = k.c.y_dtype = AMPC_F32;
        CHECK_EQ_INT(wino_plan(&k.c, 0, TILE_WIDENED, 1, &p), filters);
        conv_fill(&k);
        const double *want[] = {k.y, k.dx, k.dw};
        const double *mag[] = {k.y_mag, k.dx_mag, k.dw_mag};
        const int64_t n[] = {k.ny, k.nx, k.nw};
        worst[filters] = 0;
        for (int which = 0; which < 3; which++) {
            float *out = array(AMPC_F32, n[which]);
            conv_call(&k, lib_of(top_level() < 4 ? top_level() : 4), which, 0,
                      out);
            worst[filters] =
                fmax(worst[filters],
                     conv_worst(out, want[which], mag[which], n[which]));
            block_free(out);
        }
        conv_free(&k);
    }
    pools_close();
    CHECK(worst[1] <= TOL_FILTERED);
    CHECK(worst[1] <= worst[0]);
}

/* Both factors have 16 bits, the result 32, so that only sums err. */
TEST_CASE(conv, minimal_filtering_in_16_bits_is_near_double) {
    static const ConvRow row = {4, 64, 32, 1, {16, 16}, {3, 3}, 1, 1};
    double worst = 0;
    rng = 32;
    pools_open();
    for (int which = 0; which < 3; which++) {
        ConvCase k = {.c = conv_of_row(&row)};
        WinoPlan p;
        int64_t *const result[] = {&k.c.y_dtype, &k.c.x_dtype, &k.c.w_dtype};
        k.c.x_dtype = k.c.w_dtype = k.c.y_dtype = AMPC_F16;
        *result[which] = AMPC_F32;
        CHECK(which == 2 ? wino_wgrad_plan(&k.c, TILE_WIDENED, &p)
                         : wino_plan(&k.c, which, TILE_WIDENED, 1, &p));
        CHECK_EQ_INT(p.edge, 4);
        conv_fill(&k);
        const double *want[] = {k.y, k.dx, k.dw};
        const double *mag[] = {k.y_mag, k.dx_mag, k.dw_mag};
        const int64_t n[] = {k.ny, k.nx, k.nw};
        float *out = array(AMPC_F32, n[which]);
        for (int level = 2; level <= top_level(); level++) {
            conv_call(&k, lib_of(level), which, 0, out);
            worst =
                fmax(worst, conv_worst(out, want[which], mag[which], n[which]));
        }
        block_free(out);
        conv_free(&k);
    }
    pools_close();
    CHECK_MSG(worst <= TOL_FILTERED_4, "%g", worst);
}

/* A result does not depend on elements that it does not read, even in the
   same tile of 2x2; in a tile of 4x4 it may be NaN. */
static void filtering_keeps_infinities_apart(int edge) {
    static const ConvRow row = {5, 16, 16, 1, {11, 11}, {3, 3}, 1, 1};
    ConvCase k = {.c = conv_of_row(&row)};
    WinoPlan p;
    int dtype = edge == 4 ? AMPC_F16 : AMPC_F32;
    rng = 29;
    pools_open();
    k.c.x_dtype = k.c.w_dtype = dtype;
    k.c.y_dtype = AMPC_F32;
    CHECK(wino_plan(&k.c, 0, TILE_WIDENED, 1, &p));
    CHECK_EQ_INT(p.edge, edge);
    conv_fill(&k);
    float *clean = array(AMPC_F32, k.ny), *y = array(AMPC_F32, k.ny);
    for (int level = 2; level <= top_level(); level++) {
        conv_call(&k, lib_of(level), 0, 0, clean);
        for (int64_t at = 0; at < k.xs; at += 7) {
            double was = array_get(k.x, dtype, at);
            array_set(k.x, dtype, at, at % 2 ? INFINITY : NAN);
            conv_call(&k, lib_of(level), 0, 0, y);
            array_set(k.x, dtype, at, was);
            for (int64_t i = 0; i < k.ny; i++) {
                int64_t o = i % k.ys, v[] = {o / 11, o % 11};
                int64_t x[] = {at % k.ys / 11, at % k.ys % 11};
                int reads = i / (16 * k.ys) == at / (16 * k.ys), near = reads;
                for (int d = 0; d < 2; d++) {
                    int64_t first = v[d] - v[d] % edge;
                    reads &= v[d] - x[d] >= -1 && v[d] - x[d] <= 1;
                    near &= x[d] >= first - 1 && x[d] <= first + edge;
                }
                int same = memcmp(&y[i], &clean[i], sizeof *y) == 0;
                if (!CHECK_MSG(reads               ? !isfinite(y[i])
                               : near && edge == 4 ? same || isnan(y[i])
                                                   : same,
                               "level %d: x[%d] in y[%d]", level, (int)at,
                               (int)i))
                    break;
            }
        }
    }
    block_free(clean);
    block_free(y);
    conv_free(&k);
    pools_close();
}

TEST_CASE(conv, minimal_filtering_keeps_infinities_apart) {
    filtering_keeps_infinities_apart(2);
    filtering_keeps_infinities_apart(4);
}
