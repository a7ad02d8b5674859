/* SPDX-License-Identifier: Apache-2.0 */
/* prices.c: predicted times of launches and their totals. */
#include <math.h>
#include <string.h>

#include "codegen/cost/roofline.h"
#include "tests/codegen/cost/cost.h"
#include "tests/harness.h"

/* A number from the JSON of a step with these fields. */
static double priced(Arena *a, const char *fields, const char *key) {
    StrBuf sb = {0};
    char line[400];
    snprintf(line, sizeof line, "cuda\ttrain\t%s\tx\n", fields);
    roofline_put(a, line, true, &sb);
    double x = cost_number_after(sb.data, key);
    sb_free(&sb);
    return x;
}

/* Milliseconds on an H100. */
static double h100_ms(Arena *a, const char *fields) {
    return priced(a, fields, "\"H100_ms\":");
}

/* TFLOP/s on an H100 of a product of cuBLASLt. */
static double product_speed(Arena *a, double rows, double cols, double depth,
                            int bits, int odd) {
    char fields[300];
    double mma = 2 * rows * cols * depth;
    snprintf(fields, sizeof fields,
             "cublaslt\t%.12g\t%d\t0\t1\t0\t1\t0\t0\t0\t0\t0\t0\t0\t%g\t%g\t"
             "%g\t1\t%d\t0\t0",
             mma, bits, rows, cols, depth, odd);
    return 1e-9 * mma / h100_ms(a, fields);
}

/* Products of GPT-2 and ResNet-50, with published figures: short sums and
   few tiles are slower than a cube, and unaligned rows are far slower. */
TEST_CASE(cost, products_have_speeds_by_shape) {
    static const struct {
        double rows, cols, depth;
        int bits, odd;
        double least, most;
    } rows[] = {{8192, 8192, 8192, 16, 0, 660, 700},
                {65536, 2304, 768, 16, 0, 590, 640},
                {65536, 768, 3072, 16, 0, 620, 670},
                {768, 768, 65536, 16, 0, 590, 650},
                {64, 256, 65536, 16, 0, 150, 500},
                {1024, 1024, 768, 16, 0, 200, 450},
                {65536, 2304, 768, 16, 1, 150, 165},
                {65536, 2304, 768, 32, 0, 40, 47},
                {65536, 2304, 768, 32, 1, 28, 34}};
    Arena *a = arena_new();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double speed = product_speed(a, rows[i].rows, rows[i].cols,
                                     rows[i].depth, rows[i].bits, rows[i].odd);
        CHECK_MSG(speed >= rows[i].least && speed <= rows[i].most,
                  "row %zu: %g TFLOP/s", i, speed);
        double turned = product_speed(a, rows[i].cols, rows[i].rows,
                                      rows[i].depth, rows[i].bits, rows[i].odd);
        CHECK_MSG(fabs(turned / speed - 1) < 1e-6, "row %zu: %g turned", i,
                  turned);
    }
    arena_free(a);
}

/* Every machine's range contains its likely time and begins above its floor. */
TEST_CASE(cost, ranges_hold_what_is_likely) {
    static const char *const machines[] = {"H100", "H200", "A100",     "B200",
                                           "L40S", "A10",  "RTX 4090", "L4"};
    static const char *const steps[] = {
        "kernel\t0\t0\t0\t8e9\t4e9\t8e9\t1e10\t976563\t256\t20\t0\t16\t"
        "1" COST_REST,
        "cublaslt\t1.0995e12\t16\t0\t4.03e8\t0\t4."
        "03e8\t0\t0\t0\t0\t0\t0\t1\t8192"
        "\t8192\t8192\t1\t0\t0\t0",
        "attend\t1e12\t16\t40\t4e8\t0\t4e8\t0\t6144\t128\t221\t0\t0\t"
        "1" COST_REST,
        "conv_fwd\t6e10\t16\t0\t1e8\t0\t1e8\t1e9\t1568\t256\t148\t21000\t0\t1"
        "\t0\t0\t0\t0\t0\t0\t1.2e8"};
    Arena *a = arena_new();
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        for (size_t m = 0; m < sizeof machines / sizeof *machines; m++) {
            static const char *const parts[] = {"floor", "least", NULL, "most"};
            double at[4];
            for (int k = 0; k < 4; k++) {
                char key[60];
                snprintf(key, sizeof key, "\"%s_%s%sms\":", machines[m],
                         parts[k] ? parts[k] : "", parts[k] ? "_" : "");
                at[k] = priced(a, steps[i], key);
            }
            CHECK_MSG(at[0] > 0 && at[0] < at[1] && at[1] < at[2] &&
                          at[2] < at[3] && at[3] < 4 * at[2],
                      "step %zu on %s: %g, %g, %g, %g", i, machines[m], at[0],
                      at[1], at[2], at[3]);
        }
    arena_free(a);
}

/* Steps with a PLAN_GELU run on GPUs from 9.0 on, those in their place on older
   ones. */
TEST_CASE(cost, steps_are_priced_where_they_run) {
    char fields[200];
    Arena *a = arena_new();
    for (int since = -90; since <= 90; since += 180) {
        snprintf(fields, sizeof fields,
                 "gelu\t1.0995e12\t16\t0\t4e8\t0\t4e8\t1e9\t0\t0\t0\t0\t0\t1"
                 "\t8192\t8192\t8192\t1\t0\t%d\t0",
                 since);
        CHECK((priced(a, fields, "\"H100_ms\":") > 0) == (since > 0));
        CHECK((priced(a, fields, "\"B200_ms\":") > 0) == (since > 0));
        CHECK((priced(a, fields, "\"A100_ms\":") > 0) == (since < 0));
        CHECK((priced(a, fields, "\"L4_ms\":") > 0) == (since < 0));
    }
    arena_free(a);
}

/* The library's instructions behind a product are added to its time. */
TEST_CASE(cost, gelu_is_added_to_its_product) {
    static const char form[] =
        "%s\t1.0995e12\t16\t0\t4e8\t0\t4e8\t%g\t0\t0\t0\t0\t0\t1"
        "\t8192\t8192\t8192\t1\t0\t0\t0";
    char plain[200], with[200];
    Arena *a = arena_new();
    snprintf(plain, sizeof plain, form, "cublaslt", 0.0);
    snprintf(with, sizeof with, form, "gelu", 1e10);
    /* 0.6 of 128 instructions a clock on 132 multiprocessors at 1.755 GHz */
    CHECK(fabs(h100_ms(a, with) - h100_ms(a, plain) - 0.562) < 0.01);
    arena_free(a);
}

/* Shared memory limits tiles; a second block on a multiprocessor hides the
   barriers of the first. */
TEST_CASE(cost, occupancy_hides_barriers) {
    static const char form[] =
        "conv_fwd\t6e10\t16\t0\t1e8\t0\t1e8\t1e6\t1584\t256\t%d\t21000\t0\t1"
        "\t0\t0\t0\t0\t0\t0\t1.15830e8";
    Arena *a = arena_new();
    double ms[3];
    static const int registers[] = {148, 128, 80};
    for (int i = 0; i < 3; i++) {
        char fields[200];
        snprintf(fields, sizeof fields, form, registers[i]);
        ms[i] = h100_ms(a, fields);
    }
    /* 1 ms at one wavefront per clock and multiprocessor, plus a launch */
    CHECK_MSG(fabs(ms[0] - 0.5 / 0.66 - 0.0011) < 2e-3, "%g", ms[0]);
    CHECK_MSG(fabs(ms[1] - 0.5 / 0.85 - 0.0011) < 2e-3, "%g", ms[1]);
    CHECK_MSG(fabs(ms[2] - 0.5 / 0.90 - 0.0011) < 2e-3, "%g", ms[2]);
    arena_free(a);
}

/* Measured on an H100: a copy of 3.0 TB/s, a product of 8192 cubed at 798
   TFLOP/s in bf16. */
TEST_CASE(cost, prices_are_near_what_was_measured) {
    Arena *a = arena_new();
    double copy = h100_ms(a, "kernel\t0\t0\t0\t8e9\t4e9\t8e9\t1e10\t976563\t"
                             "256\t20\t0\t16\t1" COST_REST);
    double product = h100_ms(a, "cublaslt\t1.0995e12\t16\t0\t4.03e8\t0\t"
                                "4.03e8\t0\t0\t0\t0\t0\t0\t1" COST_REST);
    CHECK_MSG(fabs(copy / (8e9 / 3.0e12 * 1e3) - 1) < 0.2, "%g", copy);
    CHECK_MSG(fabs(product / (1.0995e12 / 798e12 * 1e3) - 1) < 0.2, "%g",
              product);
    /* few bytes in flight, few blocks: slower */
    CHECK(h100_ms(a, "kernel\t0\t0\t0\t8e9\t4e9\t8e9\t1e10\t976563\t256\t20\t"
                     "0\t1\t1" COST_REST) > 2 * copy);
    CHECK(h100_ms(a, "kernel\t0\t0\t0\t8e9\t4e9\t8e9\t1e10\t24\t256\t20\t"
                     "0\t16\t1" COST_REST) > 5 * copy);
    arena_free(a);
}

static double insts_of(const char *op, const char *type) {
    Costs c;
    char text[200];
    snprintf(text, sizeof text,
             "graph forward(%%x: %s[1024,64]) {\n  %%y = %s %%x\n"
             "  return %%y\n}\n",
             type, op);
    cost_count(&c, text, "cuda:sm_90");
    double n = cost_step(&c, "kernel", 0).insts / (1024 * 64);
    cost_end(&c);
    return n;
}

/* A double takes two registers, and functions of it longer polynomials. */
TEST_CASE(cost, functions_of_doubles_take_at_least_twice_as_long) {
    static const char *const ops[] = {"exp", "sigmoid", "tanh"};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        double narrow = insts_of(ops[i], "f32") - insts_of("neg", "f32");
        double wide = insts_of(ops[i], "f64") - insts_of("neg", "f64");
        CHECK_MSG(narrow > 3 && wide >= 2 * narrow, "%s: %g, %g in f64", ops[i],
                  narrow, wide);
    }
}

/* Each case is limited by one formula of roofline.h, on an H100: 132 SMs of
   1.755 GHz, 3.35 TB/s, 67 TFLOP/s in fp32, 680 ns; and 1.1 us per launch. */
TEST_CASE(cost, each_bound_has_its_formula) {
    static const struct {
        const char *how;
        double mma, bits, rate, bytes, reads, l2, insts, blocks, threads,
            registers, shared, in_flight, launches, ms;
    } rows[] = {
        /* memory, cache, launches */
        {"copy", 0, 0, 0, 3.35e9, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1.2898},
        {"copy", 0, 0, 0, 0, 0, 5.5e9, 0, 0, 0, 0, 0, 0, 1, 1.0011},
        {"copy", 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 500, 0.55},
        {"copy", 0, 0, 0, 3.35e9, 0, 0, 0, 0, 0, 0, 0, 0, 250, 1.5637},
        /* products of the library in TF32, fp32 and f64 */
        {"cublaslt", 321.4e9, 19, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1.0011},
        {"cublaslt", 46.9e9, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1.0011},
        {"cublaslt", 46.9e9, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2.0011},
        /* our own products in whole waves, at half the rate, and with one
           extra block */
        {"product", 67e9, 32, 100, 0, 0, 0, 0, 132, 256, 0, 0, 0, 1, 1.0011},
        {"product", 67e9, 32, 50, 0, 0, 0, 0, 132, 256, 0, 0, 0, 1, 2.0011},
        {"product", 67e9, 32, 100, 0, 0, 0, 0, 133, 256, 0, 0, 0, 1,
         1.0011 + 131.0 / 133},
        /* waiting: 8 blocks of 256 on an SM; fewer because of registers,
           shared memory, threads, their limit, or a small grid; two reads in
           flight */
        {"kernel", 0, 0, 0, 0, 270.336e6, 0, 0, 9999, 256, 0, 0, 1, 1, 0.6811},
        {"kernel", 0, 0, 0, 0, 270.336e6, 0, 0, 9999, 256, 64, 0, 1, 1, 1.3611},
        {"kernel", 0, 0, 0, 0, 270.336e6, 0, 0, 9999, 256, 0, 116736, 1, 1,
         2.7211},
        {"kernel", 0, 0, 0, 0, 270.336e6, 0, 0, 9999, 64, 0, 0, 1, 1, 0.6811},
        {"kernel", 0, 0, 0, 0, 270.336e6, 0, 0, 9999, 32, 0, 0, 1, 1, 1.3611},
        {"kernel", 0, 0, 0, 0, 270.336e6, 0, 0, 528, 256, 0, 0, 1, 1, 1.3611},
        {"kernel", 0, 0, 0, 0, 270.336e6, 0, 0, 9999, 256, 0, 0, 2, 1, 0.3411},
        /* instructions: on busy SMs, and with a sixteenth of the warps that
           hide each other's latency */
        {"kernel", 0, 0, 0, 0, 0, 0, 17.7915e9, 9999, 256, 0, 0, 0, 1, 1.0011},
        {"kernel", 0, 0, 0, 0, 0, 0, 17.7915e9, 33, 128, 0, 0, 0, 1, 16.0011},
    };
    Arena *a = arena_new();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char fields[300];
        snprintf(fields, sizeof fields,
                 "%s\t%g\t%g\t%g\t%g\t%.9g\t%g\t%.9g\t%g\t%g\t%g\t%g\t%g\t"
                 "%g" COST_REST,
                 rows[i].how, rows[i].mma, rows[i].bits, rows[i].rate,
                 rows[i].bytes, rows[i].reads, rows[i].l2, rows[i].insts,
                 rows[i].blocks, rows[i].threads, rows[i].registers,
                 rows[i].shared, rows[i].in_flight, rows[i].launches);
        double ms = h100_ms(a, fields);
        CHECK_MSG(fabs(ms - rows[i].ms) < 2e-3 * rows[i].ms, "row %zu: %g ms",
                  i, ms);
    }
    arena_free(a);
}

/* ---- totals -------------------------------------------------------------- */

TEST_CASE(cost, every_launch_is_in_the_total) {
    static const char fields[] = "kernel\t0\t0\t0\t1e9\t5e8\t1e9\t0\t9999\t"
                                 "256\t20\t0\t16\t1" COST_REST "\tx\n";
    StrBuf cost_count = {0}, sb = {0};
    Arena *a = arena_new();
    for (int i = 0; i < 3; i++)
        sb_printf(&cost_count, "cuda\ttrain\t%s", fields);
    sb_printf(&cost_count, "cuda\tpredict\t%s",
              fields); /* is another program */
    roofline_put(a, cost_count.data, false, &sb);
    CHECK_MSG(strstr(sb.data, "\n    3 ") != NULL, "%s", sb.data);
    CHECK_MSG(strstr(sb.data, "\n3 launches, 0.00 TFLOP, 3.0 GB: ") != NULL,
              "%s", sb.data);
    sb.len = 0;
    roofline_put(a, cost_count.data, true, &sb);
    double each = cost_number_after(sb.data, "\"H100\":{\"us\":");
    CHECK(fabs(cost_number_after(sb.data, "\"H100_ms\":") - 3e-3 * each) <
          2e-3);
    CHECK(cost_number_after(sb.data, "\"H200_ms\":") <
          cost_number_after(sb.data, "\"H100_ms\":"));
    sb.len = 0;
    roofline_put(
        a, /* 989 TFLOP/s at 0.7 times the peak, and a launch of 1.1 us */
        "cuda\ttrain\tcublaslt\t989e12\t16\t0\t0\t0\t0\t0\t0\t0\t"
        "0\t0\t0\t1" COST_REST "\tx\n",
        true, &sb);
    CHECK(fabs(cost_number_after(sb.data, "\"H100_mfu\":") - 0.7) < 1e-3);
    sb_free(&cost_count);
    sb_free(&sb);
    arena_free(a);
}

/* Three launches of 1 ms limited by bytes and one by FLOPs; the range and
   the floor of their sum; the assumptions and their sources. */
TEST_CASE(cost, a_line_tells_of_equal_launches) {
    static const char moves[] =
        "cuda\ttrain\tcopy\t0\t0\t0\t2.5996e9\t0\t0\t0\t"
        "0\t0\t0\t0\t0\t1" COST_REST "\tx\n";
    static const char product[] =
        "cuda\ttrain\tcublaslt\t692.3e9\t16\t0\t0\t0\t"
        "0\t0\t0\t0\t0\t0\t0\t1" COST_REST "\ty\n";
    StrBuf cost_count = {0}, sb = {0};
    Arena *a = arena_new();
    sb_printf(&cost_count, "%s%s%s%s", moves, product, moves, moves);
    roofline_put(a, cost_count.data, false, &sb);
    CHECK_HAS(sb.data,
              "    3    1001.1     914    1126   75.0%    77.5  memory  "
              "   2599.6      0.0 ");
    CHECK_HAS(sb.data,
              "    1    1001.1     893    1149   25.0%    69.9  tensor  "
              "      0.0    692.3 ");
    CHECK_HAS(sb.data, "4 launches, 0.69 TFLOP, 7.8 GB: 4.0 ms on H100\n");
    CHECK_HAS(sb.data,
              "  H100       4.0 ms (3.6 to 4.5), floor 3.5, MFU 17%\n");
    CHECK_HAS(sb.data,
              "the memory's bandwidth: 2.3, 2.6 and 2.85 of 3.35 TB/s");
    sb_free(&cost_count);
    sb_free(&sb);
    arena_free(a);
}

/* Modules with several objectives and modules that only predict, on both
   devices. */
TEST_CASE(cost, every_program_that_trains_or_else_predicts) {
    static const char row[] = "kernel\t0\t0\t0\t1e9\t5e8\t1e9\t0\t9999\t"
                              "256\t20\t0\t16\t1" COST_REST "\tx\n";
    static const struct {
        const char *programs[5], *shown[3];
    } cases[] = {
        {{"cuda\ttrain:d", "cuda\ttrain:g", "cuda\tpredict"},
         {"train:d on cuda", "train:g on cuda"}},
        {{"cuda\tpredict", "cuda\trefresh", "cpu\tpredict"},
         {"predict on cuda", "predict on cpu"}},
        {{"cuda\tpredict", "cuda\ttrain", "cuda\teval", "cpu\ttrain"},
         {"train on cuda", "train on cpu"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        StrBuf cost_count = {0}, sb = {0};
        for (const char *const *p = cases[i].programs; *p; p++)
            sb_printf(&cost_count, "%s\t%s", *p, row);
        roofline_put(a, cost_count.data, false, &sb);
        int lines = 0;
        for (const char *p = sb.data; (p = strstr(p, ", predicted for")); p++)
            lines++;
        CHECK_EQ_INT(lines, 2);
        for (const char *const *p = cases[i].shown; *p; p++)
            CHECK_MSG(strstr(sb.data, *p) != NULL, "no %s: %s", *p, sb.data);
        sb_free(&cost_count);
        sb_free(&sb);
        arena_free(a);
    }
}
