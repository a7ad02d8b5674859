/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE
#include "tests/support/cpu_cases.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/cpu/block.h"
#include "runtime/program/dtype.h"
#include "tests/harness.h"
#include "tests/support/tiles.h"

/* ---- random numbers, typed arrays ---------------------------------------- */

uint64_t rng = 1;

uint32_t rnd(void) {
    rng = rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(rng >> 33);
}

int64_t rnd_in(int64_t lo, int64_t hi) {
    return lo + (int64_t)(rnd() % (uint32_t)(hi - lo + 1));
}

double rnd_value(void) { return (double)rnd_in(-1000, 1000) / 500.0; }

size_t size_of(int64_t dtype) {
    if (dtype == AMPC_F64 || dtype == AMPC_I64) return 8;
    if (dtype == AMPC_I8) return 1;
    return dtype == AMPC_F16 || dtype == AMPC_BF16 ? 2 : 4;
}

double array_get(const void *p, int64_t dtype, int64_t i) {
    switch (dtype) {
    case AMPC_F64: return ((const double *)p)[i];
    case AMPC_F32: return (double)((const float *)p)[i];
    case AMPC_I32: return ((const int32_t *)p)[i];
    case AMPC_I8: return ((const int8_t *)p)[i];
    case AMPC_BF16: return (double)bf16_to_f32(((const uint16_t *)p)[i]);
    default: return (double)f16_to_f32(((const uint16_t *)p)[i]);
    }
}

void array_set(void *p, int64_t dtype, int64_t i, double x) {
    switch (dtype) {
    case AMPC_F64: ((double *)p)[i] = x; break;
    case AMPC_F32: ((float *)p)[i] = (float)x; break;
    case AMPC_I32: ((int32_t *)p)[i] = (int32_t)x; break;
    case AMPC_I8: ((int8_t *)p)[i] = (int8_t)x; break;
    case AMPC_BF16: ((uint16_t *)p)[i] = f32_to_bf16((float)x); break;
    default: ((uint16_t *)p)[i] = f32_to_f16((float)x); break;
    }
}

/* Blocks in use, and freed memory for reuse by blocks with as many pages. */
static struct {
    char *at, *map; /* at: NULL: not in use */
    size_t mapped;
} blocks[4096];
static int nblock;

void *block(size_t bytes) {
    enum { PAGE = 4096, MOST = sizeof blocks / sizeof *blocks };
    size_t own = (bytes + PAGE - 1) / PAGE * PAGE, all = own + PAGE;
    int i = 0;
    while (i < nblock && (blocks[i].at || blocks[i].mapped != all)) i++;
    if (i == nblock) {
        char *map = mmap(NULL, all, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(map != MAP_FAILED && nblock < MOST);
        REQUIRE(mprotect(map + own, PAGE, PROT_NONE) == 0);
        blocks[nblock].map = map;
        blocks[nblock++].mapped = all;
    }
    blocks[i].at = blocks[i].map + own - bytes;
    memset(blocks[i].at, 0xff, bytes);
    return blocks[i].at;
}

void block_free(void *p) {
    enum { LARGE = 1 << 20 };
    int i = nblock - 1;
    if (!p) return;
    while (i >= 0 && blocks[i].at != p) i--;
    REQUIRE(i >= 0);
    blocks[i].at = NULL;
    if (blocks[i].mapped < LARGE) return;
    munmap(blocks[i].map, blocks[i].mapped);
    blocks[i] = blocks[--nblock];
}

void *array(int64_t dtype, int64_t n) {
    void *p = block((size_t)n * size_of(dtype));
    for (int64_t i = 0; i < n; i++) array_set(p, dtype, i, rnd_value());
    return p;
}

double *zeros(int64_t n) {
    double *p = block((size_t)n * sizeof *p);
    for (int64_t i = 0; i < n; i++) p[i] = 0;
    return p;
}

double unit(int64_t dtype) {
    return dtype == AMPC_F64    ? 0x1p-53
           : dtype == AMPC_F32  ? 0x1p-24
           : dtype == AMPC_BF16 ? 0x1p-8
                                : 0x1p-11;
}

void array_close(const char *what, const void *got, int64_t dtype,
                 const double *want, double floor_, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double tol = unit(dtype) * fabs(want[i]) + floor_;
        double v = array_get(got, dtype, i);
        int same = (isnan(v) && isnan(want[i])) || v == want[i];
        if (!CHECK_MSG(same || fabs(v - want[i]) <= tol, "%s %d: %g want %g",
                       what, (int)i, v, want[i]))
            return;
    }
}

int only_bf16;

int64_t rnd_float(void) {
    static const int64_t types[] = {AMPC_BF16, AMPC_F32, AMPC_F16};
    return types[only_bf16 ? 0 : rnd() % 3];
}

int top_level(void) {
    int level = cpu_isa_level();
    if (level < AMPC_ISA_V4) return level;
    tiles_emulate();
    cpu_bf16_dot_force(1);
    return 5 + cpu_bf16_dot();
}

const AmpcCpuLib *lib_of(int level) {
    int tiles = level > 4 && level == top_level();
    cpu_bf16_dot_force(level != 5 || tiles);
    if (tiles) return cpu_level(AMPC_ISA_AMX);
    return cpu_level(level > AMPC_ISA_V4 ? AMPC_ISA_V4 : level);
}

void *scratch_of(size_t bytes) {
    char *p = block((bytes + 127) / 64 * 64);
    memset(p + bytes, 0x5a, 16);
    return p;
}

void scratch_check(void *p, size_t bytes) {
    for (int i = 0; i < 16; i++)
        if (!CHECK(((unsigned char *)p)[bytes + (size_t)i] == 0x5a)) break;
    block_free(p);
}

const int thread_counts[3] = {1, 2, 5};
AmpcPool *pools[3];

void pools_open(void) {
    for (int i = 0; i < 3; i++) {
        pools[i] = pool_create(thread_counts[i]);
        REQUIRE(pools[i] != NULL);
    }
}

void pools_close(void) {
    for (int i = 0; i < 3; i++) pool_destroy(pools[i]);
}

/* ---- a recording epilogue ------------------------------------------------ */

void record(void *const *buf, const void *table, const float *acc, int64_t ld,
            int64_t batch, int64_t row, int64_t col, int64_t rows,
            int64_t cols) {
    Record *r = buf[0];
    (void)table;
    if (row < 0 || col < 0 || row + rows > r->rows || col + cols > r->cols) {
        r->inside = 0;
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            int64_t at = (batch * r->rows + row + i) * r->cols + col + j;
            r->out[at] = acc[i * ld + j];
            r->count[at]++;
        }
}

void record_check(const Record *r, int64_t n) {
    CHECK(r->inside);
    for (int64_t i = 0; i < n; i++)
        if (!CHECK_EQ_INT(r->count[i], 1)) break;
}
