/* SPDX-License-Identifier: Apache-2.0 */
/* pooled.c: a convolution and the pool of its result. */
#include <string.h>

#include "tests/harness.h"
#include "tests/runtime/cpu_conv/cpu_conv.h"
#include "tests/support/cpu_cases.h"

/* buf: the result, its number of elements per image and per plane: stores
   twice the sum. */
static void store_twice(void *const *buf, const void *table, const float *acc,
                        int64_t ld, int64_t batch, int64_t row, int64_t col,
                        int64_t rows, int64_t cols) {
    (void)table;
    float *out = buf[0];
    int64_t image = *(int64_t *)buf[1], plane = *(int64_t *)buf[2];
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            out[batch * image + (row + i) * plane + col + j] =
                2 * acc[i * ld + j];
}

/* Checks that convolution and pool together give the same bits as one after
   the other, with and without storing the convolution's result and with an
   epilogue, for any number of threads. */
static void conv_check_pooled(const ConvCase *k, const LibPool *p, int max) {
    LibConv c = k->c;
    int64_t out = p->planes * conv_volume(p->out), image = c.k * k->ys,
            plane = k->ys;
    for (int twice = 0; twice < 2; twice++)
        for (int level = 2; level <= top_level(); level++) {
            const AmpcCpuLib *lib = lib_of(level);
            float *y = array(AMPC_F32, k->ny), *all = array(AMPC_F32, k->ny);
            float *want = array(AMPC_F32, out), *got = array(AMPC_F32, out);
            int8_t *tap = block((size_t)out), *taps = block((size_t)out);
            void *ep_buf[3] = {y, &image, &plane};
            CpuEpilogue ep = {twice ? store_twice : NULL, NULL, ep_buf, NULL};
            void *scratch = scratch_of(cpu_conv_fwd_scratch(&c, 1));
            lib->conv_fwd(lib->isa, pools[0], &c, k->x, k->w, y, &ep, scratch,
                          NULL);
            if (max)
                lib->maxpool(pools[0], p, y, want, tap);
            else
                lib->avgpool(pools[0], p, y, want);
            block_free(scratch);
            for (int i = 0; i < 6; i++) {
                size_t need = cpu_conv_fwd_scratch(&c, thread_counts[i / 2]) +
                              cpu_pool_scratch(&c, p, thread_counts[i / 2]);
                void *place = i % 2 ? all : NULL;
                void *buf[3] = {place, got, taps};
                CpuPool pool = {max ? PLAN_LIB_MAXPOOL : PLAN_LIB_AVGPOOL, p,
                                buf, twice && !place ? ep_buf : NULL, 3};
                ep_buf[0] = place;
                ep.pool = &pool;
                scratch = scratch_of(need);
                memset(got, 0x55, (size_t)out * 4);
                lib->conv_fwd(lib->isa, pools[i / 2], &c, k->x, k->w, place,
                              &ep, scratch, NULL);
                CHECK(!memcmp(got, want, (size_t)out * 4));
                CHECK(!max || !memcmp(tap, taps, (size_t)out));
                CHECK(!place || !memcmp(all, y, (size_t)k->ny * 4));
                scratch_check(scratch, need);
            }
            void *blocks[] = {y, all, want, got, tap, taps};
            for (int i = 0; i < 6; i++) block_free(blocks[i]);
        }
}

TEST_CASE(conv, pools_behind) {
    static const ConvRow rows[] = {
        {11, 1, 9, 1, {28, 28}, {3, 3}, 1, 1},   /* one channel               */
        {13, 16, 40, 1, {14, 14}, {3, 3}, 1, 1}, /* tiles of 2x2              */
        {29, 20, 33, 1, {15, 15}, {3, 3}, 2, 1}, /* staged                    */
        {2, 6, 10, 2, {9, 70}, {1, 1}, 1, 0},
    };
    rng = 30;
    pools_open();
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
        ConvCase k = {.c = conv_of_row(&rows[i / 2])};
        LibPool p = {.planes = k.c.n * k.c.k,
                     .in = {1, k.c.out[1], k.c.out[2]},
                     .out = {1, k.c.out[1] / 2, (k.c.out[2] - 1) / 2},
                     .kernel = {1, 2, 3},
                     .stride = {1, 2, 2},
                     .dilation = {1, 1, 1},
                     .dtype = AMPC_F32,
                     .idx_dtype = AMPC_I8};
        k.c.x_dtype = k.c.w_dtype = k.c.y_dtype = AMPC_F32;
        conv_fill(&k);
        conv_check_pooled(&k, &p, i % 2);
        conv_free(&k);
    }
    pools_close();
}

/* Threads that get no images of their own need no memory. */
TEST_CASE(conv, one_image_pools_in_the_memory_of_one_thread) {
    LibConv c = conv_of_row(&(ConvRow){1, 64, 64, 1, {56, 56}, {3, 3}, 1, 1});
    LibPool p = {.planes = 64,
                 .in = {1, 56, 56},
                 .out = {1, 28, 28},
                 .kernel = {1, 2, 2},
                 .stride = {1, 2, 2},
                 .dilation = {1, 1, 1},
                 .dtype = AMPC_F32,
                 .idx_dtype = AMPC_I8};
    c.x_dtype = c.w_dtype = c.y_dtype = AMPC_F32;
    CHECK(cpu_pool_scratch(&c, &p, 64) == cpu_pool_scratch(&c, &p, 1));
    c.n = 128;
    p.planes = c.n * c.k;
    CHECK(cpu_pool_scratch(&c, &p, 64) > cpu_pool_scratch(&c, &p, 1));
    CHECK(cpu_pool_scratch(&c, &p, 65) >= cpu_pool_scratch(&c, &p, 64));
}
