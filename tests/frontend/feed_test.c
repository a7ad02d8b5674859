/* SPDX-License-Identifier: Apache-2.0 */
/* feed_test.c: data files read by `ampc run`: layouts, damage, and false
   sizes. The data that are read are compared with the data written by hand
   here. */
#define _GNU_SOURCE
#include "tests/frontend/feed/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/program/dtype.h"

/* ---- inputs without the batch -------------------------------------------- */

static ampc_status graph_module(const ampc_module_t *m,
                                ampc_module_info *info) {
    (void)m;
    info->batch = 4;
    return AMPC_OK;
}

static ampc_status graph_program(const ampc_module_t *m, const char *program,
                                 ampc_program_info *info) {
    (void)m;
    (void)program;
    info->ninput = 2;
    return AMPC_OK;
}

/* nodes f32[4], edges i64[2,3] */
static ampc_status graph_inputs(const ampc_module_t *m, const char *program,
                                uint32_t i, ampc_tensor_info *t) {
    static const int64_t shapes[][2] = {{4}, {2, 3}};
    (void)m;
    (void)program;
    if (i > 1) return AMPC_ERR_UNSUPPORTED;
    t->name = i ? "edges" : "nodes";
    t->dtype = i ? AMPC_DTYPE_I64 : AMPC_DTYPE_F32;
    t->rank = i ? 2 : 1;
    memcpy(t->shape, shapes[i], sizeof shapes[i]);
    t->bytes = i ? 48 : 16;
    return AMPC_OK;
}

TEST_CASE(feed, an_input_without_the_batch_is_given_whole) {
    static const ampc_api api = {.describe = graph_module,
                                 .program = graph_program,
                                 .input = graph_inputs};
    float nodes[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    int64_t edges[8] = {0, 1, 2, 1, 2, 3, 0, 0};
    Diag d = {0};
    FeedSet fs;
    RunList specs = {.n = 2};
    char at[2][700];
    for (int i = 0; i < 2; i++) {
        snprintf(at[i], sizeof at[i], "%s=%s", i ? "edges" : "nodes",
                 test_tmp(i ? "edges.npy" : "nodes.npy"));
        specs.at[i] = at[i];
    }
    write_npy("nodes.npy", AMPC_DTYPE_F32, 1, (int64_t[]){8}, nodes);
    write_npy("edges.npy", AMPC_DTYPE_I64, 2, (int64_t[]){2, 3}, edges);
    REQUIRE(feeds_open(&d, NULL, &api, "train", &specs, &fs) == OK);
    CHECK_EQ_INT(fs.samples, 8);
    for (int i = 0; i < 2; i++) {
        REQUIRE(feeds_fill(&d, &fs, NULL, 4 * i, 4) == OK);
        CHECK_MEM(fs.in[0].data, nodes + 4 * i, 16);
        CHECK_MEM(fs.in[1].data, edges, 48);
    }
    feeds_free(&fs);
    write_npy("edges.npy", AMPC_DTYPE_I64, 2, (int64_t[]){2, 4}, edges);
    CHECK_EQ_INT(feeds_open(&d, NULL, &api, "train", &specs, &fs), ERR_USER);
    CHECK_HAS(d.text.data, "i64[2,4] does not fit input 'edges' i64[2,3]");
    feeds_free(&fs);
    sb_free(&d.text);
}

/* ---- widths -------------------------------------------------------------- */

/* The dtype of the only input of a module whose batch is 4. */
static int taken_dtype;
static int64_t taken_shape[3] = {4, 1, 1};

static ampc_status one_input(const ampc_module_t *m, const char *program,
                             ampc_program_info *info) {
    (void)m;
    (void)program;
    info->ninput = 1;
    return AMPC_OK;
}

static ampc_status taken_input(const ampc_module_t *m, const char *program,
                               uint32_t i, ampc_tensor_info *t) {
    (void)m;
    (void)program;
    if (i) return AMPC_ERR_UNSUPPORTED;
    t->name = "v";
    t->dtype = taken_dtype;
    t->rank = 3;
    t->bytes = dtype_bytes((uint32_t)taken_dtype);
    for (int k = 0; k < 3; k++)
        t->bytes *= (size_t)(t->shape[k] = taken_shape[k]);
    return AMPC_OK;
}

static const ampc_api one_api = {
    .describe = graph_module, .program = one_input, .input = taken_input};

__extension__ typedef __int128 Wide;

/* Numbers that are the first or the last of some type, or just outside. */
static const Wide edges_of_types[] = {0,          1,         127,
                                      128,        255,       256,
                                      32767,      32768,     65535,
                                      65536,      INT32_MAX, 1LL << 31,
                                      UINT32_MAX, 1LL << 32, -1,
                                      -128,       -129,      -32768,
                                      -32769,     INT32_MIN, -(1LL << 31) - 1,
                                      INT64_MAX,  INT64_MIN, UINT64_MAX};

static bool holds(int dtype, Wide v) {
    int bits = 8 * (int)dtype_bytes((uint32_t)dtype);
    bool sign = dtype_info[dtype].npy[0] == 'i';
    Wide most = ((Wide)1 << (bits - sign)) - 1;
    return v <= most && v >= (sign ? -most - 1 : 0);
}

/* Integers of every width for inputs of every other width: converted
   exactly, or refused with the sample and the number that do not fit. */
TEST_CASE(feed, integers_of_every_width) {
    enum { COUNT = 8204, BAD = 8195 }; /* after the part that is examined */
    char spec[700];
    RunList specs = {.n = 1, .at = {spec}};
    char *file = calloc(COUNT, 8);
    snprintf(spec, sizeof spec, "v=%s", test_tmp("v.npy"));
    for (int from = AMPC_DTYPE_U8; from <= AMPC_DTYPE_I64; from++)
        for (size_t k = 0; k < sizeof edges_of_types / sizeof *edges_of_types;
             k++) {
            Wide v = edges_of_types[k];
            size_t size = dtype_bytes((uint32_t)from);
            if (!holds(from, v)) continue;
            uint64_t bits = (uint64_t)v;
            memset(file, 0, COUNT * 8);
            memcpy(file + BAD * size, &bits, size);
            write_npy("v.npy", from, 1, (int64_t[]){COUNT}, file);
            for (int to = AMPC_DTYPE_U8; to <= AMPC_DTYPE_I64; to++) {
                Diag d = {0};
                FeedSet fs;
                char want[32] = {0}, said[100];
                taken_dtype = to;
                Status st =
                    feeds_open(&d, NULL, &one_api, "train", &specs, &fs);
                if (holds(to, v)) {
                    REQUIRE(st == OK);
                    memcpy(want + (BAD % 4) * dtype_bytes((uint32_t)to), &bits,
                           dtype_bytes((uint32_t)to));
                    REQUIRE(feeds_fill(&d, &fs, NULL, BAD / 4 * 4, 4) == OK);
                    CHECK_MEM(fs.in[0].data, want,
                              4 * dtype_bytes((uint32_t)to));
                } else {
                    CHECK_EQ_INT(st, ERR_USER);
                    snprintf(said, sizeof said,
                             v < 0 ? "sample %d: the value %lld does not fit "
                                     "input 'v', %s"
                                   : "sample %d: the value %llu does not fit "
                                     "input 'v', %s",
                             BAD, (unsigned long long)v, dtype_info[to].text);
                    CHECK_HAS(d.text.data, said);
                }
                feeds_free(&fs);
                sb_free(&d.text);
            }
        }
    free(file);
}

/* Integers other than bytes are plain numbers; so are truth values. */
TEST_CASE(feed, integers_for_floating_inputs) {
    char spec[700];
    RunList specs = {.n = 1, .at = {spec}};
    snprintf(spec, sizeof spec, "v=%s", test_tmp("v.npy"));
    for (int from = AMPC_DTYPE_BOOL; from <= AMPC_DTYPE_I64; from++) {
        char file[32] = {0};
        size_t size = dtype_bytes((uint32_t)from);
        bool bits = from == AMPC_DTYPE_BOOL, sign = from % 2 == 0 && !bits;
        if (from == AMPC_DTYPE_U8) continue;
        memset(file, sign ? 255 : 0, size);
        for (int i = 1; i < 4; i++)
            memcpy(file + (size_t)i * size, (uint8_t[]){bits ? i == 2 : i * 9},
                   1);
        write_npy("v.npy", from, 1, (int64_t[]){4}, file);
        for (int to = AMPC_DTYPE_F32; to <= AMPC_DTYPE_F64; to++) {
            Diag d = {0};
            FeedSet fs;
            taken_dtype = to;
            REQUIRE(feeds_open(&d, NULL, &one_api, "train", &specs, &fs) == OK);
            REQUIRE(feeds_fill(&d, &fs, NULL, 0, 4) == OK);
            for (int i = 0; i < 4; i++) {
                double want = bits ? i == 2 : i ? i * 9 : sign ? -1 : 0;
                double x = to == AMPC_DTYPE_F64
                               ? ((const double *)fs.in[0].data)[i]
                               : ((const float *)fs.in[0].data)[i];
                CHECK_MSG(x == want, "%s: %g, not %g", dtype_info[from].text, x,
                          want);
            }
            feeds_free(&fs);
        }
        /* but numbers are not truth values, and fractions are not integers */
        Diag d = {0};
        FeedSet fs;
        taken_dtype = AMPC_DTYPE_BOOL;
        CHECK_EQ_INT(feeds_open(&d, NULL, &one_api, "train", &specs, &fs),
                     bits ? OK : ERR_USER);
        feeds_free(&fs);
        sb_free(&d.text);
    }
    write_npy("v.npy", AMPC_DTYPE_F32, 1, (int64_t[]){4}, (float[4]){0});
    Diag d = {0};
    FeedSet fs;
    taken_dtype = AMPC_DTYPE_I64;
    CHECK_EQ_INT(feeds_open(&d, NULL, &one_api, "train", &specs, &fs),
                 ERR_USER);
    CHECK_HAS(d.text.data, "another kind of values");
    feeds_free(&fs);
    sb_free(&d.text);
}

/* Unsigned bytes are images, 0 to 1; signed bytes are numbers. */
TEST_CASE(feed, bytes_for_floating_inputs) {
    static const int dtypes[] = {AMPC_DTYPE_F16, AMPC_DTYPE_BF16,
                                 AMPC_DTYPE_F32, AMPC_DTYPE_F64};
    char spec[700];
    RunList specs = {.n = 1, .at = {spec}};
    unsigned char bytes[4] = {0, 51, 255, 128};
    snprintf(spec, sizeof spec, "v=%s", test_tmp("v.npy"));
    for (int sign = 0; sign < 2; sign++)
        for (int i = 0; i < 4; i++) {
            Diag d = {0};
            FeedSet fs;
            write_npy("v.npy", sign ? AMPC_DTYPE_I8 : AMPC_DTYPE_U8, 1,
                      (int64_t[]){4}, bytes);
            taken_dtype = dtypes[i];
            REQUIRE(feeds_open(&d, NULL, &one_api, "train", &specs, &fs) == OK);
            REQUIRE(feeds_fill(&d, &fs, NULL, 0, 4) == OK);
            const uint16_t *half = fs.in[0].data;
            for (int k = 0; k < 4; k++) {
                double want =
                    sign ? (double)(int8_t)bytes[k] : bytes[k] / 255.0;
                double got = i == 3 ? ((const double *)fs.in[0].data)[k]
                             : i == 2
                                 ? (double)((const float *)fs.in[0].data)[k]
                             : i == 1 ? (double)bf16_to_f32(half[k])
                                      : (double)f16_to_f32(half[k]);
                CHECK_NEAR(got, want, i == 3 ? 0 : i == 2 ? 3e-8 : 4e-3);
            }
            feeds_free(&fs);
        }
}

/* The number of samples in a file for an input, by both shapes; -1: the
   shapes do not match. A sample may have several rows of the input's first
   axis. */
TEST_CASE(feed, samples_are_counted_by_shape) {
    static const struct {
        int64_t input[3];
        int rank;
        int64_t file[4], samples;
    } rows[] = {
        {{4, 1, 1}, 1, {12}, 12},     {{4, 1, 1}, 2, {12, 1}, 12},
        {{4, 1, 1}, 2, {6, 2}, -1},   {{4, 2, 3}, 3, {8, 2, 3}, 8},
        {{4, 2, 3}, 2, {8, 6}, 8},    {{4, 2, 3}, 2, {8, 3}, -1},
        {{4, 2, 3}, 1, {48}, -1},     {{8, 3, 1}, 2, {16, 3}, 8},
        {{8, 3, 1}, 2, {8, 6}, 8},    {{8, 3, 1}, 3, {8, 2, 3}, 8},
        {{8, 3, 1}, 2, {15, 3}, -1},  {{12, 1, 1}, 1, {24}, 8},
        {{12, 1, 1}, 2, {8, 3}, 8},   {{12, 1, 1}, 2, {4, 6}, -1},
        {{4, 1, 1}, 0, {0}, -1},      {{6, 1, 1}, 1, {6}, 0},
        {{6, 1, 1}, 1, {12}, -1},     {{6, 1, 1}, 2, {2, 3}, 0},
        {{4, 0, 3}, 3, {4, 0, 3}, 0}, {{4, 0, 3}, 3, {8, 0, 3}, 8},
        {{4, 0, 3}, 2, {4, 0}, -1},   {{4, 0, 3}, 3, {4, 3, 0}, -1},
    };
    char spec[700];
    RunList specs = {.n = 1, .at = {spec}};
    float data[64], got[64];
    for (int i = 0; i < 64; i++) data[i] = (float)i;
    snprintf(spec, sizeof spec, "v=%s", test_tmp("v.npy"));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Diag d = {0};
        FeedSet fs;
        taken_dtype = AMPC_DTYPE_F32;
        memcpy(taken_shape, rows[i].input, sizeof taken_shape);
        write_npy("v.npy", AMPC_DTYPE_F32, rows[i].rank, rows[i].file, data);
        Status st = feeds_open(&d, NULL, &one_api, "train", &specs, &fs);
        int64_t n = rows[i].input[0] * rows[i].input[1] * rows[i].input[2];
        if (rows[i].samples < 0) {
            CHECK_MSG(st == ERR_USER, "row %zu is taken", i);
            CHECK_HAS(d.text.data, "element counts differ");
        } else if (rows[i].samples == 0) { /* the whole array is one batch */
            CHECK_MSG(st == OK && fs.samples == fs.batch, "row %zu: %lld", i,
                      (long long)fs.samples);
        } else {
            CHECK_MSG(st == OK && fs.samples == rows[i].samples,
                      "row %zu: %lld samples", i, (long long)fs.samples);
            for (int64_t k = 0; k < n; k++) got[k] = (float)(n + k);
            REQUIRE(feeds_fill(&d, &fs, NULL, 4, 4) == OK);
            CHECK_MEM(fs.in[0].data, got, (size_t)n * 4);
        }
        feeds_free(&fs);
        sb_free(&d.text);
    }
    memcpy(taken_shape, (int64_t[]){4, 1, 1}, sizeof taken_shape);
}

/* ---- the order of axes --------------------------------------------------- */

TEST_CASE(feed, another_order_of_axes_is_refused) {
    static const struct {
        int64_t input[3];
        int rank;
        int64_t file[5];
        const char *why; /* NULL: it is taken */
    } rows[] = {
        {{4, 2, 3}, 3, {4, 2, 3}, NULL},
        {{4, 2, 3}, 2, {4, 6}, NULL},
        {{4, 2, 3}, 4, {4, 1, 2, 3}, NULL},
        {{4, 2, 3}, 5, {4, 1, 2, 1, 3}, NULL},
        {{4, 6, 1}, 3, {4, 2, 3}, NULL},
        {{4, 6, 1}, 2, {4, 6}, NULL},
        {{4, 1, 6}, 2, {4, 6}, NULL},
        {{8, 3, 1}, 3, {4, 2, 3}, NULL},
        {{8, 3, 1}, 2, {8, 3}, NULL},
        {{4, 2, 3}, 3, {4, 3, 2}, "its axes in the order (0, 2, 1) would fit"},
        {{4, 2, 3}, 3, {2, 3, 4}, "its axes in the order (2, 0, 1) would fit"},
        {{4, 2, 3}, 4, {4, 3, 1, 2}, "the order (0, 3, 1, 2) would fit"},
        {{4, 2, 3}, 2, {6, 9}, "the order (1, 0) would fit"},
        {{4, 6, 1}, 3, {2, 3, 9}, "the order (2, 0, 1) would fit"},
        {{4, 1, 6}, 4, {6, 1, 9, 1}, "the order (2, 0, 1, 3) would fit"},
        {{4, 1, 1}, 2, {1, 9}, "the order (1, 0) would fit"},
        {{4, 2, 3}, 3, {3, 9, 3}, "element counts differ"},
        {{4, 4, 6}, 3, {4, 6, 4}, "its axes in the order (0, 2, 1) would fit"},
        {{4, 4, 6}, 3, {4, 2, 12}, "shapes differ"},
        {{8, 3, 1}, 3, {4, 3, 2}, "shapes differ"},
    };
    char spec[700];
    RunList specs = {.n = 1, .at = {spec}};
    float data[128] = {0};
    snprintf(spec, sizeof spec, "v=%s", test_tmp("v.npy"));
    taken_dtype = AMPC_DTYPE_F32;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Diag d = {0};
        FeedSet fs;
        memcpy(taken_shape, rows[i].input, sizeof taken_shape);
        write_npy("v.npy", AMPC_DTYPE_F32, rows[i].rank, rows[i].file, data);
        Status st = feeds_open(&d, NULL, &one_api, "train", &specs, &fs);
        CHECK_MSG((st == OK) == !rows[i].why, "row %zu", i);
        if (rows[i].why && st != OK) CHECK_HAS(d.text.data, rows[i].why);
        feeds_free(&fs);
        sb_free(&d.text);
    }
    memcpy(taken_shape, (int64_t[]){4, 1, 1}, sizeof taken_shape);
}

/* One line for each converted array. */
TEST_CASE(feed, what_is_done_to_data_is_told) {
    static const struct {
        int64_t input[3];
        int dtype, rank;
        int64_t file[4];
        const char *line;
    } rows[] = {
        {{4, 2, 3}, AMPC_DTYPE_F32, 3, {8, 2, 3}, ""},
        {{4, 2, 3}, AMPC_DTYPE_F16, 4, {8, 1, 2, 3}, ""},
        {{4, 2, 3},
         AMPC_DTYPE_U8,
         3,
         {8, 2, 3},
         "v: u8 8x2x3, divided by 255\n"},
        {{4, 2, 3},
         AMPC_DTYPE_F64,
         2,
         {8, 6},
         "v: f64 8x6, rounded to f32, as 8x2x3\n"},
        {{4, 2, 3}, AMPC_DTYPE_F32, 2, {8, 6}, "v: f32 8x6, as 8x2x3\n"},
        {{4, 6, 1}, AMPC_DTYPE_I16, 2, {8, 6}, "v: i16 8x6, as f32\n"},
        {{4, 6, 1}, AMPC_DTYPE_BOOL, 2, {8, 6}, "v: bool 8x6, as 0 and 1\n"},
    };
    char spec[700], data[512] = {0};
    RunList specs = {.n = 1, .at = {spec}};
    snprintf(spec, sizeof spec, "v=%s", test_tmp("v.npy"));
    taken_dtype = AMPC_DTYPE_F32;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Diag d = {0};
        FeedSet fs;
        StrBuf sb = {0};
        memcpy(taken_shape, rows[i].input, sizeof taken_shape);
        write_npy("v.npy", rows[i].dtype, rows[i].rank, rows[i].file, data);
        REQUIRE(feeds_open(&d, NULL, &one_api, "train", &specs, &fs) == OK);
        Fed fed = feed_facts(&fs.feed[0], fs.samples);
        fed_tells(&fed, &sb);
        CHECK_STR(sb.len ? sb.data : "", rows[i].line);
        sb_free(&sb);
        feeds_free(&fs);
    }
    memcpy(taken_shape, (int64_t[]){4, 1, 1}, sizeof taken_shape);
}
