/* SPDX-License-Identifier: Apache-2.0 */
/* cost_test.c: the work of steps, counted by hand, and their predicted times.
 */
#include "codegen/cost/cost.h"
#include "frontend/cli/options_text.h"
#include "codegen/cost/roofline.h"
#include "codegen/cost/scaling.h"
#include "passes/passes.h"
#include "tests/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Costs {
    Arena *a;
    Diag d;
    Options opt;
    PlanSource src;
    StrBuf text;
} Costs;

static void set(Costs *c, const char *name, const char *value) {
    bool used;
    if (options_set(&c->opt, &c->d, name, value, &used) != OK)
        FAIL("%s", c->d.text.data);
}

/* passes: NULL: all. */
static void cost_after(Costs *c, const char *text, const char *target,
                       const char *loss, const char *precision,
                       const char *passes) {
    EmitInput in = {.path = "m.so", .model_path = "m.amp"};
    Module *m;
    *c = (Costs){.a = arena_new()};
    options_init(&c->opt, c->a);
    set(c, "--loss", loss);
    set(c, "--precision", precision);
    set(c, "--target", target);
    if (parse_module(c->a, &c->d, "m.amp", text, strlen(text), &m) != OK ||
        (passes
             ? run_passes(m, &c->d, &c->opt, passes, false)
             : run_pipeline(m, &c->d, &c->opt, STAGE_PLANNED, false)) != OK ||
        emit_plan(m, &c->opt, &c->d, &in, c->a, &c->src) != OK)
        FAIL("%s", c->d.text.data);
    cost_put(&c->src, &c->text);
}

static void cost_trained(Costs *c, const char *text, const char *target,
                         const char *loss, const char *precision) {
    cost_after(c, text, target, loss, precision, NULL);
}

static void cost(Costs *c, const char *text, const char *target) {
    cost_trained(c, text, target, "none", "fp32");
}

static void end(Costs *c) {
    sb_free(&c->src.text);
    sb_free(&c->text);
    sb_free(&c->d.text);
    arena_free(c->a);
}

static StepCost step_named(const Costs *c, const char *how, int skip) {
    StepCost s;
    for (const char *at = c->text.data; cost_next(&at, &s);)
        if (!strcmp(s.how, how) && skip-- == 0) return s;
    FAIL("no %s in:\n%s", how, c->text.data);
    return s;
}

TEST_CASE(cost, products_are_counted_by_hand) {
    Costs c;
    cost(&c,
         "graph forward(%x: f32[5,64,32]) {\n  param %w: f32[32,48]\n"
         "  %z = matmul %x, %w\n  return %z\n}\n",
         "cuda:sm_90");
    StepCost s = step_named(&c, "cublaslt", 0);
    CHECK_STR(s.name, "z");
    CHECK(s.mma == 2.0 * 5 * 64 * 32 * 48);
    CHECK(s.bytes == 4.0 * (5 * 64 * 32 + 32 * 48 + 5 * 64 * 48));
    CHECK(s.bits == 32 && !s.odd);
    CHECK(s.rows * s.products == 5 * 64 && s.cols == 48 && s.depth == 32);
    end(&c);
    cost(&c,
         "graph forward(%x: f32[64,32]) {\n  param %w: f32[32,49]\n"
         "  %z = matmul %x, %w\n  return %z\n}\n",
         "cuda:sm_90");
    CHECK(step_named(&c, "cublaslt", 0).odd == 1); /* rows at odd addresses */
    end(&c);
}

TEST_CASE(cost, convolutions_are_counted_by_hand) {
    static const char text[] =
        "graph forward(%x: f32[2,6,9,7]) {\n  param %w: f32[8,3,3,3]\n"
        "  %y = conv %x, %w {dilations=[1,1], group=2, pads=[1,1,1,1], "
        "strides=[2,2]}\n  return %y\n}\n";
    static const char *const targets[] = {"cpu", "cuda:sm_90"};
    for (int i = 0; i < 2; i++) {
        Costs c;
        cost(&c, text, targets[i]);
        StepCost s = step_named(&c, "conv_fwd", 0);
        CHECK(s.mma == 2.0 * (2 * 8 * 5 * 4) * (3 * 3 * 3));
        CHECK(s.bytes == 4.0 * (2 * 6 * 63 + 8 * 27 + 2 * 8 * 20));
        end(&c);
    }
}

/* Convolutions computed as matrix products: rows of whole vectors are as
   fast. */
TEST_CASE(cost, planes_at_odd_addresses_are_slow) {
    for (int places = 1; places <= 16; places++) {
        Costs c;
        char text[300];
        snprintf(text, sizeof text,
                 "graph forward(%%x: f32[2,16,1,%d]) {\n"
                 "  param %%w: f32[16,16,1,1]\n"
                 "  %%y = conv %%x, %%w\n  return %%y\n}\n",
                 places);
        cost(&c, text, "cuda:sm_90");
        StepCost s = step_named(&c, "cublaslt", 0);
        CHECK_MSG((s.odd == 1) == (4 * places % 16 != 0), "%d: %g", places,
                  (double)s.odd);
        end(&c);
    }
}

/* Neighbouring results of a pool on a line of whole vectors read their windows
   together.
 */
TEST_CASE(cost, neighbours_of_a_pool_share_what_they_read) {
    static const struct {
        int width;
        double threads, insts; /* of a thread */
    } rows[] = {{64, 2 * 32 * 32 / 8, 40 + 8 * 10 * 9},
                {62, 2 * 32 * 31, 40 + 16 * 9}};
    for (int i = 0; i < 2; i++) {
        Costs c;
        char text[300];
        snprintf(text, sizeof text,
                 "graph forward(%%x: bf16[1,2,64,%d]) {\n"
                 "  %%y, %%i = max_pool %%x {kernel_shape=[3,3], "
                 "strides=[2,2], pads=[1,1,1,1], dilations=[1,1], "
                 "sizes=[32,%d]}\n  return %%y\n}\n",
                 rows[i].width, rows[i].width / 2);
        cost(&c, text, "cuda:sm_90");
        StepCost s = step_named(&c, "maxpool", 0);
        CHECK_MSG(s.blocks == ceil(rows[i].threads / s.threads) &&
                      s.insts == s.blocks * s.threads * rows[i].insts,
                  "%d: %g blocks, %g instructions", rows[i].width,
                  (double)s.blocks, (double)s.insts);
        end(&c);
    }
}

/* Operations between a tile's sums and the stores take time, the more of the
   total the fewer products a sum has. */
TEST_CASE(cost, epilogues_take_time) {
    static const char *const after[] = {"", "  %y = gelu %z\n"};
    static const int channels[] = {16, 256};
    double each[2][2]; /* instructions per FLOP */
    for (int few = 0; few < 2; few++)
        for (int i = 0; i < 2; i++) {
            Costs c;
            char text[400];
            snprintf(text, sizeof text,
                     "graph forward(%%x: bf16[8,%d,32,32]) {\n"
                     "  param %%w: bf16[64,%d,3,3]\n  %%z = conv %%x, %%w "
                     "{pads=[1,1,1,1]}\n%s  return %%%c\n}\n",
                     channels[few], channels[few], after[i], i ? 'y' : 'z');
            cost(&c, text, "cuda:sm_90");
            StepCost s = step_named(&c, "conv_fwd", 0);
            each[few][i] = s.insts / s.mma;
            CHECK(s.bits == 16 && s.launches == 1);
            end(&c);
        }
    CHECK(each[0][1] > each[0][0] && each[1][1] > each[1][0]);
    CHECK(each[0][0] > each[1][0]);
    CHECK(each[0][1] / each[0][0] > each[1][1] / each[1][0]);
}

/* Rows of 4096 numbers stay in registers, so that both sweeps read them once.
 */
TEST_CASE(cost, kernels_count_each_buffer_once) {
    Costs c;
    cost(&c,
         "graph forward(%x: f32[1024,4096]) {\n"
         "  %s = reduce_sum %x {axes=[1], keepdims=1}\n  %z = sub %x, %s\n"
         "  return %z\n}\n",
         "cuda:sm_90");
    StepCost s = step_named(&c, "kernel", 0);
    CHECK(s.bytes == 4.0 * 2 * 1024 * 4096);
    CHECK(s.reads == 4.0 * 1024 * 4096);
    CHECK(s.l2 == 4.0 * 2 * 1024 * 4096);
    CHECK(s.blocks == 1024 && s.threads == 512);
    end(&c);
    cost(&c,
         "graph forward(%x: f32[1048576]) {\n  %z = relu %x\n  return %z\n}\n",
         "cuda:sm_90");
    s = step_named(&c, "kernel", 0);
    CHECK(s.bytes == 4.0 * 2 * 1048576 && s.l2 == s.bytes);
    CHECK(s.in_flight == 16 && s.blocks == 1024);
    end(&c);
}

/* Attention of 6 heads, 50 queries of 8 elements on 70 keys and values of 4:
   two products, half of each if it is causal; the gradient has three and two
   products. */
TEST_CASE(cost, attention_is_counted_by_hand) {
    enum { HEADS = 6, T = 50, U = 70, D = 8, E = 4 };
    static const char *const targets[] = {"cpu", "cuda:sm_90"};
    for (int i = 0; i < 4; i++) {
        bool cuda = i & 1, causal = i & 2;
        Costs c;
        char text[700];
        snprintf(text, sizeof text,
                 "graph forward(%%q: f32[6,50,8], %%k: f32[6,8,70], "
                 "%%v: f32[6,70,4], %%g: f32[6,50,4], %%d: f32[6,50,1]) {\n"
                 "  %%y, %%l = attend %%q, %%k, %%v {causal=%d}\n"
                 "  %%a, %%b, %%c = attend_grad %%q, %%k, %%v, %%g, %%l, %%d "
                 "{causal=%d}\n  return %%y, %%a, %%b, %%c\n}\n",
                 causal, causal);
        cost(&c, text, targets[cuda]);
        StepCost s = step_named(&c, "attend", 0);
        double one = (causal ? 1. : 2.) * HEADS * T * U;
        CHECK(s.mma == one * (D + E));
        CHECK(s.bytes == 4.0 * HEADS * (T * D + D * U + U * E + T * E + T * 2));
        s = step_named(&c, "attend_grad", 0);
        CHECK(s.mma == one * (3 * D + 2 * E));
        end(&c);
    }
}

/* With 64 features and 1,024 tokens on an H100, FlashAttention-2 is
   published (in FlashAttention-3's paper) at 306 TFLOP/s forward and 238
   backward. Causal: as with 128 features, 260 of 350. 1.05 times these are
   predicted; the gradient's 768 blocks are 5.8 for each of 132
   multiprocessors, which take the time of 6. */
TEST_CASE(cost, attention_is_as_fast_as_published) {
    for (int causal = 0; causal < 2; causal++) {
        Costs c;
        char text[900];
        snprintf(text, sizeof text,
                 "graph forward(%%q: bf16[768,1024,64], %%k: "
                 "bf16[768,64,1024], %%v: bf16[768,1024,64], %%g: "
                 "bf16[768,1024,64], %%d: f32[768,1024,1]) {\n"
                 "  %%y, %%l = attend %%q, %%k, %%v {causal=%d}\n"
                 "  %%a, %%b, %%c = attend_grad %%q, %%k, %%v, %%g, %%l, %%d "
                 "{causal=%d}\n  return %%y, %%a, %%b, %%c\n}\n",
                 causal, causal);
        cost(&c, text, "cuda:sm_90");
        StepCost s = step_named(&c, "attend", 0);
        StepCost t = step_named(&c, "attend_grad", 0);
        double part = causal ? 260. / 350 : 1;
        double forward = 1e-12 * s.mma / roofline_seconds(&s, NULL);
        double backward = 1e-12 * t.mma / roofline_seconds(&t, NULL);
        CHECK_MSG(fabs(forward / (321 * part) - 1) < 0.03, "%g", forward);
        CHECK_MSG(fabs(backward / (242 * part) - 1) < 0.03, "%g", backward);
        end(&c);
    }
}

/* Blocks of the gradient: a head each, if there are 264 heads or more; else
   several that share a head's keys, 128 each, while their sums of dq, fp32,
   take at most 2 GiB. */
TEST_CASE(cost, heads_are_shared_by_blocks) {
    static const struct {
        int heads, t, blocks; /* of 64 features                              */
        double written;       /* all sums of dq that blocks of keys write or
                                 read, in units of one for each query        */
    } shape[] = {{300, 256, 300, 2}, {90, 512, 270, 8}, {8, 65536, 128, 1024}};
    for (int i = 0; i < 3; i++) {
        Costs c;
        char text[900];
        int h = shape[i].heads, t = shape[i].t;
        snprintf(text, sizeof text,
                 "graph forward(%%q: bf16[%d,%d,64], %%k: bf16[%d,64,%d], "
                 "%%v: bf16[%d,%d,64], %%g: bf16[%d,%d,64], %%d: "
                 "f32[%d,%d,1]) {\n  %%y, %%l = attend %%q, %%k, %%v\n"
                 "  %%a, %%b, %%c = attend_grad %%q, %%k, %%v, %%g, %%l, %%d\n"
                 "  return %%y, %%a, %%b, %%c\n}\n",
                 h, t, h, t, h, t, h, t, h, t);
        cost(&c, text, "cuda:sm_90");
        StepCost s = step_named(&c, "attend_grad", 0);
        double queries = (double)h * t, sums = 64 * 4 * shape[i].written;
        CHECK_EQ_INT((int)s.blocks, shape[i].blocks);
        CHECK_MSG(s.bytes == queries * (7 * 64 * 2 + 3 * 4 + sums), "%g of %g",
                  s.bytes, queries);
        end(&c);
    }
}

/* Products that cuBLASLt does not compute, with two separate batch dims: the
   largest tiles that leave a block for each multiprocessor. */
TEST_CASE(cost, tiles_leave_enough_blocks) {
    enum { SMS = 132, SMALLEST = 64 * 64 };
    static const int batches[] = {2, 4, 16, 64, 256};
    static const int sides[] = {256, 512, 1024, 2048};
    static const struct {
        const char *dtype;
        int tiles[3];
    } kinds[] = {{"bf16", {256 * 128, 128 * 128, SMALLEST}},
                 {"f32", {128 * 128, SMALLEST, SMALLEST}}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t i = 0; i < sizeof batches / sizeof *batches; i++)
            for (size_t j = 0; j < sizeof sides / sizeof *sides; j++) {
                Costs c;
                char text[300];
                int b = batches[i], n = sides[j], at = 0;
                snprintf(text, sizeof text,
                         "graph forward(%%x: %s[3,1,%d,64], "
                         "%%y: %s[3,%d,64,%d]) {\n"
                         "  %%z = matmul %%x, %%y : f32[3,%d,%d,%d]\n"
                         "  return %%z\n}\n",
                         kinds[k].dtype, n, kinds[k].dtype, b, n, b, n, n);
                cost(&c, text, "cuda:sm_90");
                StepCost s = step_named(&c, "gemm", 0);
                double all = 3.0 * b * n * n;
                while (at < 2 && all / kinds[k].tiles[at] < SMS) at++;
                CHECK_MSG(s.blocks == all / kinds[k].tiles[at],
                          "%s, %d of %d: %g blocks", kinds[k].dtype, b, n,
                          s.blocks);
                end(&c);
            }
}

/* Whichever sweep reads it first, also if a fold reads it from memory. */
TEST_CASE(cost, every_operand_of_a_row_counts) {
    enum { ROWS = 64, COLS = 300, ALL = 4 * ROWS * COLS };
    static const struct {
        const char *body;
        int operands; /* bytes of steps of kind ALL, including results */
    } cases[] = {
        {"%z = reduce_sum %x {axes=[1], keepdims=1}", 1},
        {"%s = reduce_sum %x {axes=[1], keepdims=1}\n  %z = sub %y, %s", 3},
        {"%s = reduce_sum %x {axes=[1], keepdims=1}\n  %d = sub %y, %s\n"
         "  %z = reduce_sumsq %d {axes=[1], keepdims=1}",
         2},
        {"%e = exp %x\n  %s = reduce_sum %e {axes=[1], keepdims=1}\n"
         "  %d = mul %y, %s\n  %z = reduce_max %d {axes=[1], keepdims=1}",
         2},
        {"%s = reduce_sum %x {axes=[0], keepdims=1}\n  %d = sub %y, %s\n"
         "  %z = reduce_sumsq %d {axes=[0], keepdims=1}",
         2},
    };
    static const char *const targets[] = {"cpu", "cuda:sm_90"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int t = 0; t < 2; t++) {
            Costs c;
            StepCost s;
            double bytes = 0;
            char text[400];
            snprintf(text, sizeof text,
                     "graph forward(%%x: f32[%d,%d], %%y: f32[%d,%d]) {\n"
                     "  %s\n  return %%z\n}\n",
                     ROWS, COLS, ROWS, COLS, cases[i].body);
            cost(&c, text, targets[t]);
            for (const char *at = c.text.data; cost_next(&at, &s);)
                bytes += s.bytes;
            double rows = bytes - (double)cases[i].operands * ALL;
            CHECK_MSG(rows >= 0 && rows < ALL / 8, "%s: %.0f in\n%s",
                      targets[t], bytes, text);
            end(&c);
        }
}

/* One piece extends from the first summed buffer to the end of the last,
   including gaps for alignment. */
TEST_CASE(cost, sums_over_ranks_are_one_piece) {
    static const char *const names[] = {"a", "b", "c"};
    Costs c;
    int64_t from = INT64_MAX, to = 0;
    cost_after(
        &c,
        "graph update(%x: f32[10], %y: f32[100], %z: f32[3]) {\n"
        "  %u = tanh %x\n  %a = rank_sum %u\n"
        "  %v = tanh %y\n  %b = rank_sum %v\n"
        "  %w = tanh %z\n  %c = rank_sum %w\n"
        "  %p = reduce_sum %a {axes=[0]}\n  %q = reduce_sum %b {axes=[0]}\n"
        "  %r = reduce_sum %c {axes=[0]}\n  return %p, %q, %r, %u, %v, %w\n"
        "}\n",
        "cpu", "none", "fp32",
        "inline,canon,reduce,cse,dce,fuse,schedule,memplan");
    const Graph *g = c.src.steps.data[0].g;
    for (int i = 0; i < 3; i++) {
        ValueId v = graph_find_value(g, names[i]);
        int64_t at = value_get(g, v)->offset;
        int64_t end = at + type_bytes(value_type(g, v));
        if (at < from) from = at;
        if (end > to) to = end;
    }
    CHECK(to - from > 4 * (10 + 100 + 3));
    CHECK(step_named(&c, "sum_now", 0).bytes == (double)(to - from));
    end(&c);
}

/* ---- prices -------------------------------------------------------------- */

static double number_after(const char *text, const char *key) {
    const char *at = strstr(text, key);
    if (!at) FAIL("no %s in %s", key, text);
    return strtod(at + strlen(key), NULL);
}

/* Fields after `launches` for a step that is neither a product nor a tile. */
#define REST "\t0\t0\t0\t0\t0\t0"

/* A number from the JSON of a step with these fields. */
static double priced(Arena *a, const char *fields, const char *key) {
    StrBuf sb = {0};
    char line[400];
    snprintf(line, sizeof line, "cuda\ttrain\t%s\tx\n", fields);
    roofline_put(a, line, true, &sb);
    double x = number_after(sb.data, key);
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
             "%g\t1\t%d\t0",
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
        "kernel\t0\t0\t0\t8e9\t4e9\t8e9\t1e10\t976563\t256\t20\t0\t16\t1" REST,
        "cublaslt\t1.0995e12\t16\t0\t4.03e8\t0\t4."
        "03e8\t0\t0\t0\t0\t0\t0\t1\t8192"
        "\t8192\t8192\t1\t0\t0",
        "attend\t1e12\t16\t40\t4e8\t0\t4e8\t0\t6144\t128\t221\t0\t0\t1" REST,
        "conv_fwd\t6e10\t16\t0\t1e8\t0\t1e8\t1e9\t1568\t256\t148\t21000\t0\t1"
        "\t0\t0\t0\t0\t0\t1.2e8"};
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

/* Shared memory limits tiles; a second block on a multiprocessor hides the
   barriers of the first. */
TEST_CASE(cost, occupancy_hides_barriers) {
    static const char form[] =
        "conv_fwd\t6e10\t16\t0\t1e8\t0\t1e8\t1e6\t1584\t256\t%d\t21000\t0\t1"
        "\t0\t0\t0\t0\t0\t1.15830e8";
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
                             "256\t20\t0\t16\t1" REST);
    double product = h100_ms(a, "cublaslt\t1.0995e12\t16\t0\t4.03e8\t0\t"
                                "4.03e8\t0\t0\t0\t0\t0\t0\t1" REST);
    CHECK_MSG(fabs(copy / (8e9 / 3.0e12 * 1e3) - 1) < 0.2, "%g", copy);
    CHECK_MSG(fabs(product / (1.0995e12 / 798e12 * 1e3) - 1) < 0.2, "%g",
              product);
    /* few bytes in flight, few blocks: slower */
    CHECK(h100_ms(a, "kernel\t0\t0\t0\t8e9\t4e9\t8e9\t1e10\t976563\t256\t20\t"
                     "0\t1\t1" REST) > 2 * copy);
    CHECK(h100_ms(a, "kernel\t0\t0\t0\t8e9\t4e9\t8e9\t1e10\t24\t256\t20\t"
                     "0\t16\t1" REST) > 5 * copy);
    arena_free(a);
}

static double insts_of(const char *op, const char *type) {
    Costs c;
    char text[200];
    snprintf(text, sizeof text,
             "graph forward(%%x: %s[1024,64]) {\n  %%y = %s %%x\n"
             "  return %%y\n}\n",
             type, op);
    cost(&c, text, "cuda:sm_90");
    double n = step_named(&c, "kernel", 0).insts / (1024 * 64);
    end(&c);
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
                 "%g" REST,
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

/* ---- scaling ------------------------------------------------------------- */

/* Milliseconds with `world` ranks. */
static double scaled_ms(const char *cost, const char *world, const char *link,
                        double *efficiency) {
    Diag d = {0};
    StrBuf sb = {0};
    char key[60];
    Scaling how = {.world = world, .link = link, .step_ms = "10", .json = true};
    REQUIRE(scaling_put(&d, cost, &how, &sb) == OK);
    snprintf(key, sizeof key, "\"world\":%s,", world);
    const char *at = strstr(sb.data, key);
    REQUIRE(at != NULL);
    double ms = number_after(at, "\"ms\":");
    *efficiency = number_after(at, "\"efficiency\":");
    sb_free(&sb);
    return ms;
}

/* Two steps of 4 ms and an update of 2: the sum of a 4 MB bucket that is
   ready after the first step is hidden by the second; that of a bucket at
   the end is not. */
TEST_CASE(cost, buckets_hide_behind_backward) {
    static const char head[] = "target\tprogram\n";
#define ROW(program, how, mma, bytes)                                          \
    "cuda\t" program "\t" how "\t" mma "\t16\t0\t" bytes                       \
    "\t0\t0\t0\t0\t0\t0\t0\t0\t1" REST "\tx\n"
#define HALF ROW("micro", "cublaslt", "4e12", "1e6")
#define SUM  ROW("micro", "sum", "0", "4e6")
#define LAST ROW("update", "cublaslt", "2e12", "1e6")
    char early[900], late[900];
    double e, alone;
    snprintf(early, sizeof early, "%s%s", head, HALF SUM HALF LAST);
    snprintf(late, sizeof late, "%s%s", head, HALF HALF SUM LAST);
    alone = scaled_ms(early, "2", "1,1000", &e);
    CHECK(fabs(alone - 10) < 0.02 && fabs(e - 1) < 0.002);
    /* 2 * 100 us and 4 MB at 1 GB/s: 4.2 ms, 4 of them hidden */
    CHECK(fabs(scaled_ms(early, "2", "100,1", &e) - 10.2) < 0.02);
    CHECK(fabs(scaled_ms(late, "2", "100,1", &e) - 14.2) < 0.02);
    CHECK(fabs(e - 10 / 14.2) < 0.001);
    /* 8 ranks in a ring: 14 * (100 us + 0.5 ms); as a tree: 6 * 100 us + 8 ms
     */
    CHECK(fabs(scaled_ms(late, "8", "100,1", &e) - 18.4) < 0.02);
    CHECK(fabs(scaled_ms(late, "8", "1000,1", &e) - (10 + 14)) < 0.02);
}

/* A step of 4 ms, a shared update of 1 ms and an unshared one of 5 ms; at
   the end each rank sends its part of 8 MB to all others. */
TEST_CASE(cost, shards_are_handed_out) {
    static const char cost[] =
        "target\tprogram\n" ROW("micro", "cublaslt", "4e12", "1e6")
            ROW("micro", "sum", "0", "4e6")
                ROW("update", "cublaslt", "1e12", "1e6")
                    ROW("update", "hand_out", "0", "8e6")
                        ROW("update", "cublaslt", "5e12", "1e6")
                            ROW("refresh", "hand_out", "0", "8e6");
    double e;
    /* 4, 2 * (100 us + 2 MB at 1 GB/s), 0.5 + 5, 100 us + 4 MB */
    CHECK(fabs(scaled_ms(cost, "2", "100,1", &e) - 17.8) < 0.02);
    /* 14 * (100 us + 0.5 ms) or 6 * 100 us + 8 ms, 1 / 8 + 5, 7 * 1.1 ms */
    CHECK(fabs(scaled_ms(cost, "8", "100,1", &e) - 25.225) < 0.02);
}

/* Ranks exchange the rounded copy of a weight that products read rounded,
   and the parameter itself if it is read unrounded: 64 x 32 elements and 32. */
TEST_CASE(cost, what_is_handed_out_is_counted_by_hand) {
    static const char *const precisions[] = {"fp32", "bf16"};
    static const double want[2][2] = {{4 * 64 * 32, 4 * 32},
                                      {2 * 64 * 32, 4 * 32}};
    for (int i = 0; i < 2; i++) {
        Costs c = {.a = arena_new()};
        EmitInput in = {.path = "m.so", .model_path = "m.amp"};
        Module *m;
        static const char text[] =
            "graph forward(%x: f32[16,64]) {\n  param %w: f32[64,32]\n"
            "  param %b: f32[32]\n  %h = matmul %x, %w\n  %y = add %h, %b\n"
            "  return %y\n}\n";
        options_init(&c.opt, c.a);
        set(&c, "--loss", "mse");
        set(&c, "--precision", precisions[i]);
        set(&c, "--target", "cuda:sm_90");
        set(&c, "--optimizer", "adamw");
        set(&c, "--shard-optimizer", "");
        if (parse_module(c.a, &c.d, "m.amp", text, strlen(text), &m) != OK ||
            run_pipeline(m, &c.d, &c.opt, STAGE_PLANNED, false) != OK ||
            emit_plan(m, &c.opt, &c.d, &in, c.a, &c.src) != OK)
            FAIL("%s", c.d.text.data);
        cost_put(&c.src, &c.text);
        double all = 0;
        StepCost s;
        for (const char *at = c.text.data; cost_next(&at, &s);)
            if (!strcmp(s.how, "hand_out") && !strcmp(s.program, "update"))
                all += s.bytes;
        CHECK_MSG(all == want[i][0] + want[i][1], "%g in\n%s", all,
                  c.text.data);
        end(&c);
    }
}

/* ---- totals -------------------------------------------------------------- */

TEST_CASE(cost, every_launch_is_in_the_total) {
    static const char fields[] = "kernel\t0\t0\t0\t1e9\t5e8\t1e9\t0\t9999\t"
                                 "256\t20\t0\t16\t1" REST "\tx\n";
    StrBuf cost = {0}, sb = {0};
    Arena *a = arena_new();
    for (int i = 0; i < 3; i++) sb_printf(&cost, "cuda\ttrain\t%s", fields);
    sb_printf(&cost, "cuda\tpredict\t%s", fields); /* is another program */
    roofline_put(a, cost.data, false, &sb);
    CHECK_MSG(strstr(sb.data, "\n    3 ") != NULL, "%s", sb.data);
    CHECK_MSG(strstr(sb.data, "\n3 launches, 0.00 TFLOP, 3.0 GB: ") != NULL,
              "%s", sb.data);
    sb.len = 0;
    roofline_put(a, cost.data, true, &sb);
    double each = number_after(sb.data, "\"H100\":{\"us\":");
    CHECK(fabs(number_after(sb.data, "\"H100_ms\":") - 3e-3 * each) < 2e-3);
    CHECK(number_after(sb.data, "\"H200_ms\":") <
          number_after(sb.data, "\"H100_ms\":"));
    sb.len = 0;
    roofline_put(
        a, /* 989 TFLOP/s at 0.7 times the peak, and a launch of 1.1 us */
        "cuda\ttrain\tcublaslt\t989e12\t16\t0\t0\t0\t0\t0\t0\t0\t"
        "0\t0\t0\t1" REST "\tx\n",
        true, &sb);
    CHECK(fabs(number_after(sb.data, "\"H100_mfu\":") - 0.7) < 1e-3);
    sb_free(&cost);
    sb_free(&sb);
    arena_free(a);
}

/* Three launches of 1 ms limited by bytes and one by FLOPs; the range and
   the floor of their sum; the assumptions and their sources. */
TEST_CASE(cost, a_line_tells_of_equal_launches) {
    static const char moves[] =
        "cuda\ttrain\tcopy\t0\t0\t0\t2.5996e9\t0\t0\t0\t"
        "0\t0\t0\t0\t0\t1" REST "\tx\n";
    static const char product[] =
        "cuda\ttrain\tcublaslt\t692.3e9\t16\t0\t0\t0\t"
        "0\t0\t0\t0\t0\t0\t0\t1" REST "\ty\n";
    StrBuf cost = {0}, sb = {0};
    Arena *a = arena_new();
    sb_printf(&cost, "%s%s%s%s", moves, product, moves, moves);
    roofline_put(a, cost.data, false, &sb);
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
    sb_free(&cost);
    sb_free(&sb);
    arena_free(a);
}

/* Modules with several objectives and modules that only predict, on both
   devices. */
TEST_CASE(cost, every_program_that_trains_or_else_predicts) {
    static const char row[] = "kernel\t0\t0\t0\t1e9\t5e8\t1e9\t0\t9999\t"
                              "256\t20\t0\t16\t1" REST "\tx\n";
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
        StrBuf cost = {0}, sb = {0};
        for (const char *const *p = cases[i].programs; *p; p++)
            sb_printf(&cost, "%s\t%s", *p, row);
        roofline_put(a, cost.data, false, &sb);
        int lines = 0;
        for (const char *p = sb.data; (p = strstr(p, ", predicted for")); p++)
            lines++;
        CHECK_EQ_INT(lines, 2);
        for (const char *const *p = cases[i].shown; *p; p++)
            CHECK_MSG(strstr(sb.data, *p) != NULL, "no %s: %s", *p, sb.data);
        sb_free(&cost);
        sb_free(&sb);
        arena_free(a);
    }
}

/* Sums of squares of tensors with equally many elements share a kernel,
   whatever their shapes, also if the loss scale is divided out first. */
TEST_CASE(cost, norms_share_launches) {
    static const char text[] =
        "graph forward(%x: f32[8,256]) {\n"
        "  param %a: f32[256,1024] = 0.1, %b: f32[1024,256] = 0.1\n"
        "  param %c: f32[256,1024] = 0.1, %d: f32[1024,256] = 0.1\n"
        "  param %k: f32[32,256,3,3] = 0.1, %l: f32[256,32,3,3] = 0.1\n"
        "  param %e: f32[1024] = 0, %f: f32[1024] = 0, %g: f32[1024] = 0\n"
        "  %p = matmul %x, %a\n  %pe = add %p, %e\n  %pf = tanh %pe\n"
        "  %pg = mul %pf, %f\n  %q = matmul %pg, %b\n"
        "  %r = matmul %q, %c\n  %rg = add %r, %g\n  %s = matmul %rg, %d\n"
        "  %i = reshape %s {shape=[8,256,1,1]}\n"
        "  %o = conv %i, %k {pads=[1,1,1,1]}\n"
        "  %z = conv %o, %l {pads=[1,1,1,1]}\n  return %z\n}\n";
    static const char *const precisions[] = {"fp32", "fp16"};
    for (int p = 0; p < 2; p++) {
        Costs c;
        StepCost s;
        int launches = 0;
        cost_trained(&c, text, "cuda:sm_90", "mse", precisions[p]);
        for (const char *at = c.text.data; cost_next(&at, &s);)
            if (!strcmp(s.program, "train") && strstr(s.name, "sumsq"))
                launches += (int)s.launches;
        /* weights of products and of convolutions, each in two stages */
        CHECK_MSG(launches >= 1 && launches <= 4, "%s: %d launches",
                  precisions[p], launches);
        end(&c);
    }
}

TEST_CASE(cost, half_a_line_is_no_step) {
    StepCost s;
    const char *at = "cuda\ttrain\tkernel\t1\t2";
    CHECK(!cost_next(&at, &s));
    at = "";
    CHECK(!cost_next(&at, &s));
}

TEST_CASE(cost, peaks_of_this_machine) {
    CpuPeaks p = cpu_peaks();
    CHECK(p.threads >= 1 && p.flops > 1e8 && p.bytes > 1e8);
}
