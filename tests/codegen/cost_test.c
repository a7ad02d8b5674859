/* SPDX-License-Identifier: Apache-2.0 */
/* cost_test.c: the work of steps, counted by hand, and their predicted times.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/cost/cost.h"
#include "codegen/cost/roofline.h"
#include "frontend/cli/options_text.h"
#include "ir/text/text.h"
#include "passes/passes.h"
#include "tests/codegen/cost/cost.h"
#include "tests/harness.h"

void cost_set(Costs *c, const char *name, const char *value) {
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
    cost_set(c, "--loss", loss);
    cost_set(c, "--precision", precision);
    cost_set(c, "--target", target);
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

void cost_count(Costs *c, const char *text, const char *target) {
    cost_trained(c, text, target, "none", "fp32");
}

void cost_end(Costs *c) {
    sb_free(&c->src.text);
    sb_free(&c->text);
    sb_free(&c->d.text);
    arena_free(c->a);
}

StepCost cost_step(const Costs *c, const char *how, int skip) {
    StepCost s;
    for (const char *at = c->text.data; cost_next(&at, &s);)
        if (!strcmp(s.how, how) && skip-- == 0) return s;
    FAIL("no %s in:\n%s", how, c->text.data);
    return s;
}

TEST_CASE(cost, products_are_counted_by_hand) {
    Costs c;
    cost_count(&c,
               "graph forward(%x: f32[5,64,32]) {\n  param %w: f32[32,48]\n"
               "  %z = matmul %x, %w\n  return %z\n}\n",
               "cuda:sm_90");
    StepCost s = cost_step(&c, "cublaslt", 0);
    CHECK_STR(s.name, "z");
    CHECK(s.mma == 2.0 * 5 * 64 * 32 * 48);
    CHECK(s.bytes == 4.0 * (5 * 64 * 32 + 32 * 48 + 5 * 64 * 48));
    CHECK(s.bits == 32 && !s.odd);
    CHECK(s.rows * s.products == 5 * 64 && s.cols == 48 && s.depth == 32);
    cost_end(&c);
    cost_count(&c,
               "graph forward(%x: f32[64,32]) {\n  param %w: f32[32,49]\n"
               "  %z = matmul %x, %w\n  return %z\n}\n",
               "cuda:sm_90");
    CHECK(cost_step(&c, "cublaslt", 0).odd == 1); /* rows at odd addresses */
    cost_end(&c);
}

TEST_CASE(cost, convolutions_are_counted_by_hand) {
    static const char text[] =
        "graph forward(%x: f32[2,6,9,7]) {\n  param %w: f32[8,3,3,3]\n"
        "  %y = conv %x, %w {dilations=[1,1], group=2, pads=[1,1,1,1], "
        "strides=[2,2]}\n  return %y\n}\n";
    static const char *const targets[] = {"cpu", "cuda:sm_90"};
    for (int i = 0; i < 2; i++) {
        Costs c;
        cost_count(&c, text, targets[i]);
        StepCost s = cost_step(&c, "conv_fwd", 0);
        CHECK(s.mma == 2.0 * (2 * 8 * 5 * 4) * (3 * 3 * 3));
        CHECK(s.bytes == 4.0 * (2 * 6 * 63 + 8 * 27 + 2 * 8 * 20));
        cost_end(&c);
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
        cost_count(&c, text, "cuda:sm_90");
        StepCost s = cost_step(&c, "cublaslt", 0);
        CHECK_MSG((s.odd == 1) == (4 * places % 16 != 0), "%d: %g", places,
                  (double)s.odd);
        cost_end(&c);
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
        cost_count(&c, text, "cuda:sm_90");
        StepCost s = cost_step(&c, "maxpool", 0);
        CHECK_MSG(s.blocks == ceil(rows[i].threads / s.threads) &&
                      s.insts == s.blocks * s.threads * rows[i].insts,
                  "%d: %g blocks, %g instructions", rows[i].width,
                  (double)s.blocks, (double)s.insts);
        cost_end(&c);
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
            cost_count(&c, text, "cuda:sm_90");
            StepCost s = cost_step(&c, "conv_fwd", 0);
            each[few][i] = s.insts / s.mma;
            CHECK(s.bits == 16 && s.launches == 2); /* weights are turned */
            cost_end(&c);
        }
    CHECK(each[0][1] > each[0][0] && each[1][1] > each[1][0]);
    CHECK(each[0][0] > each[1][0]);
    CHECK(each[0][1] / each[0][0] > each[1][1] / each[1][0]);
}

/* Rows of 4096 numbers stay in registers, so that both sweeps read them once.
 */
TEST_CASE(cost, kernels_count_each_buffer_once) {
    Costs c;
    cost_count(
        &c,
        "graph forward(%x: f32[1024,4096]) {\n"
        "  %s = reduce_sum %x {axes=[1], keepdims=1}\n  %z = sub %x, %s\n"
        "  return %z\n}\n",
        "cuda:sm_90");
    StepCost s = cost_step(&c, "kernel", 0);
    CHECK(s.bytes == 4.0 * 2 * 1024 * 4096);
    CHECK(s.reads == 4.0 * 1024 * 4096);
    CHECK(s.l2 == 4.0 * 2 * 1024 * 4096);
    CHECK(s.blocks == 1024 && s.threads == 512);
    cost_end(&c);
    cost_count(
        &c,
        "graph forward(%x: f32[1048576]) {\n  %z = relu %x\n  return %z\n}\n",
        "cuda:sm_90");
    s = cost_step(&c, "kernel", 0);
    CHECK(s.bytes == 4.0 * 2 * 1048576 && s.l2 == s.bytes);
    CHECK(s.in_flight == 16 && s.blocks == 1024);
    cost_end(&c);
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
        cost_count(&c, text, targets[cuda]);
        StepCost s = cost_step(&c, "attend", 0);
        double one = (causal ? 1. : 2.) * HEADS * T * U;
        CHECK(s.mma == one * (D + E));
        CHECK(s.bytes == 4.0 * HEADS * (T * D + D * U + U * E + T * E + T * 2));
        s = cost_step(&c, "attend_grad", 0);
        CHECK(s.mma == one * (3 * D + 2 * E));
        cost_end(&c);
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
        cost_count(&c, text, "cuda:sm_90");
        StepCost s = cost_step(&c, "attend", 0);
        StepCost t = cost_step(&c, "attend_grad", 0);
        double part = causal ? 260. / 350 : 1;
        double forward = 1e-12 * s.mma / roofline_seconds(&s, NULL);
        double backward = 1e-12 * t.mma / roofline_seconds(&t, NULL);
        CHECK_MSG(fabs(forward / (321 * part) - 1) < 0.03, "%g", forward);
        CHECK_MSG(fabs(backward / (242 * part) - 1) < 0.03, "%g", backward);
        cost_end(&c);
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
        cost_count(&c, text, "cuda:sm_90");
        StepCost s = cost_step(&c, "attend_grad", 0);
        double queries = (double)h * t, sums = 64 * 4 * shape[i].written;
        CHECK_EQ_INT((int)s.blocks, shape[i].blocks);
        CHECK_MSG(s.bytes == queries * (7 * 64 * 2 + 3 * 4 + sums), "%g of %g",
                  s.bytes, queries);
        cost_end(&c);
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
                cost_count(&c, text, "cuda:sm_90");
                StepCost s = cost_step(&c, "gemm", 0);
                double all = 3.0 * b * n * n;
                while (at < 2 && all / kinds[k].tiles[at] < SMS) at++;
                CHECK_MSG(s.blocks == all / kinds[k].tiles[at],
                          "%s, %d of %d: %g blocks", kinds[k].dtype, b, n,
                          s.blocks);
                cost_end(&c);
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
            cost_count(&c, text, targets[t]);
            for (const char *at = c.text.data; cost_next(&at, &s);)
                bytes += s.bytes;
            double rows = bytes - (double)cases[i].operands * ALL;
            CHECK_MSG(rows >= 0 && rows < ALL / 8, "%s: %.0f in\n%s",
                      targets[t], bytes, text);
            cost_end(&c);
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
        int64_t cost_end = at + type_bytes(value_type(g, v));
        if (at < from) from = at;
        if (cost_end > to) to = cost_end;
    }
    CHECK(to - from > 4 * (10 + 100 + 3));
    CHECK(cost_step(&c, "sum_now", 0).bytes == (double)(to - from));
    cost_end(&c);
}

/* ---- prices -------------------------------------------------------------- */

double cost_number_after(const char *text, const char *key) {
    const char *at = strstr(text, key);
    if (!at) FAIL("no %s in %s", key, text);
    return strtod(at + strlen(key), NULL);
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
        cost_end(&c);
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
