/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_facts_test.c: properties of GPUs that small models rarely test, on
   the simulated GPU compared with the CPU: row values stored over data that
   other threads still read, more reductions than shared memory can hold, one
   value written to several variables. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/program/plan.h"
#include "tests/support/cuda_gpu.h"
#include "tests/support/factor.h"

/* The last operand of both readers of %a is last used in the kernel of %r,
   which overwrites it: thread 0 must not store it before all have read. */
static const char in_place[] =
    "graph forward(%x: f32[48,1500], %v: f32[48,3], %u: f32[3,1]) {\n"
    "  %a = matmul %v, %u : f32[48,1]\n"
    "  %s = reduce_sum %x {axes=[1], keepdims=1} : f32[48,1]\n"
    "  %b = mul %s, %a : f32[48,1]\n"
    "  %y = mul %x, %b : f32[48,1500]\n"
    "  %z = mul %y, %s : f32[48,1500]\n"
    "  %r = add %s, %a : f32[48,1]\n"
    "  return z=%z, r=%r\n"
    "}\n";

static void check_predict(const char *text, const char *options) {
    Compiled c = compile_text_cuda(text, options, "cuda:sm_80");
    DcRandom *feed = dc_random_new(c.api, "predict", 1, 5);
    size_t nin;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        DcReport r;
        if (seed == 1)
            gpu_for(&c, seed);
        else
            gpu_reset(&c, seed);
        const ampc_input *in = dc_random_feed(feed, (int)seed, &nin);
        CHECK_MSG(dc_predict(c.api, "cpu", "cuda", in, nin, &r), "seed %d: %s",
                  (int)seed, r.text);
        gpu_clean("predict");
    }
    dc_random_free(feed);
    compiled_close(&c);
}

TEST_CASE(cuda_facts, a_row_is_stored_when_all_have_read_it) {
    check_predict(in_place, "--precision fp32 --loss none");
}

/* It would take more than 48 KB if every sum had sixteen slices. */
TEST_CASE(cuda_facts, many_sums_share_the_memory_of_a_block) {
    enum { SUMS = 14 };
    char text[4000];
    int n = snprintf(text, sizeof text,
                     "graph forward(%%x: f64[600,64]) {\n"
                     "  %%r0 = reduce_sum %%x {axes=[0]} : f64[1,64]\n");
    for (int i = 1; i < SUMS; i++)
        n += snprintf(text + n, sizeof text - (size_t)n,
                      "  %%y%d = mul %%x, %%r%d : f64[600,64]\n"
                      "  %%s%d = max %%y%d, 0.%d:f64 : f64[600,64]\n"
                      "  %%r%d = reduce_sum %%s%d {axes=[0]} : f64[1,64]\n",
                      i, 0, i, i, i + 10, i, i);
    n += snprintf(text + n, sizeof text - (size_t)n, "  return r0=%%r0");
    for (int i = 1; i < SUMS; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, ", r%d=%%r%d", i, i);
    snprintf(text + n, sizeof text - (size_t)n, "\n}\n");
    check_predict(text, "--precision fp32 --loss none");
}

/* Square matrices: only the axis shows the direction of the bias. cuBLASLt
   adds the first product's bias itself, not the second's. */
/* Rows whose columns are also summed hold these sums in shared memory: for
   13,000 columns 52 KB, slightly more than a block's default limit. */
TEST_CASE(cuda_facts, sums_of_columns_ask_for_their_memory) {
    static const char text[] =
        "graph forward(%x: f32[256,13000]) {\n"
        "  %m = reduce_max %x {axes=[1], keepdims=1} : f32[256,1]\n"
        "  %c = reduce_sum %x {axes=[0], keepdims=1} : f32[1,13000]\n"
        "  return m=%m, c=%c\n}\n";
    static const char options[] = "--precision fp32 --loss none";
    Compiled c = compile_text_cuda(text, options, "cuda:sm_80");
    const PlanCuda *p = ((const AmpcModule *)c.api->module)->cuda;
    bool some = false;
    for (uint32_t i = 0; i < p->nkernel; i++)
        some |=
            p->kernels[i].shared > 48 << 10 && p->kernels[i].shared <= 64 << 10;
    CHECK(some);
    compiled_close(&c);
    check_predict(text, options);
}

TEST_CASE(cuda_facts, a_bias_of_columns_and_one_of_rows) {
    check_predict("graph forward(%x: f32[24,24], %w: f32[24,24], %c: f32[24], "
                  "%r: f32[24,1]) {\n"
                  "  %a = matmul %x, %w : f32[24,24]\n"
                  "  %ac = add %a, %c : f32[24,24]\n"
                  "  %b = matmul %w, %x : f32[24,24]\n"
                  "  %br = add %b, %r : f32[24,24]\n"
                  "  return ac=%ac, br=%br\n}\n",
                  "--precision fp32 --loss none");
    CHECK_EQ_INT(sim()->calls("cublasLtMatmul"), 2);
}

/* Convolutions that are matrix products: several images, different numbers of
   channels.
 */
TEST_CASE(cuda_facts, points_of_several_images) {
    check_predict("graph forward(%x: f32[3,5,4,4], %k: f32[7,5,1,1]) {\n"
                  "  %y = conv %x, %k {dilations=[1,1], group=1, "
                  "pads=[0,0,0,0], strides=[1,1]} : f32[3,7,4,4]\n"
                  "  return %y\n}\n",
                  "--precision fp32 --loss none");
}

/* The same where cuBLASLt would find rows at odd addresses: a kernel of our
   own, alone and with an epilogue, in tiles that images, channels and steps do
   not fill. */
TEST_CASE(cuda_facts, points_of_odd_planes) {
    static const char *const after[] = {
        "  return %y\n}\n", "  %z = add %y, %b : f32[3,72,7,7]\n"
                            "  %r = relu %z : f32[3,72,7,7]\n  return %r\n}\n"};
    for (size_t i = 0; i < sizeof after / sizeof *after; i++) {
        char text[400];
        snprintf(text, sizeof text,
                 "graph forward(%%x: f32[3,40,7,7], %%k: f32[72,40,1,1], "
                 "%%b: f32[72,1,1]) {\n"
                 "  %%y = conv %%x, %%k {dilations=[1,1], group=1, "
                 "pads=[0,0,0,0], strides=[1,1]} : f32[3,72,7,7]\n%s",
                 after[i]);
        check_predict(text, "--precision bf16 --loss none");
        CHECK_EQ_INT(sim()->calls("cublasLtMatmul"), 0);
    }
}

/* Statistics of planes, merged over images. */
TEST_CASE(cuda_facts, statistics_of_long_channels) {
    check_predict("graph forward(%x: f32[9,3,64,40], %s: f32[3], %b: f32[3], "
                  "%m: f32[3], %v: f32[3]) {\n"
                  "  %y, %n, %w = batch_norm %x, %s, %b, %m, %v {training=1, "
                  "epsilon=1e-05} : f32[9,3,64,40], f32[3], f32[3]\n"
                  "  return %y, %n, %w\n}\n",
                  "--precision fp32 --loss none");
}

/* Rows and columns that align.c lengthens, seen through a view. */
TEST_CASE(cuda_facts, both_sides_of_a_product_are_odd) {
    check_predict("graph forward(%x: f32[8,1030], %z: f32[8,1027]) {\n"
                  "  %g = matmul %x, %z {trans_a=1} : f32[1030,1027]\n"
                  "  %y = reshape %g {shape=[103,10,1027]}\n"
                  "  return %y\n}\n",
                  "--precision bf16 --loss none");
}

/* A bias whose columns align.c pads. */
TEST_CASE(cuda_facts, a_bias_of_odd_columns) {
    check_predict("graph forward(%x: f32[8,64], %w: f32[1027,64], "
                  "%c: f32[1027]) {\n"
                  "  %a = matmul %x, %w {trans_b=1} : f32[8,1027]\n"
                  "  %y = add %c, %a : f32[8,1027]\n"
                  "  return %y\n}\n",
                  "--precision bf16 --loss none");
}

TEST_CASE(cuda_facts, one_value_goes_to_several_variables) {
    Compiled c = compile_text_cuda(
        "graph forward(%x: f32[8,4]) {\n"
        "  param %w: f32[4] = 0.5\n"
        "  buffer %m: f32[4] = 0, %n: f32[4] = 1\n"
        "  %y = mul %x, %w : f32[8,4]\n"
        "  %s = reduce_sum %y {axes=[0], keepdims=0} : f32[4]\n"
        "  %half = mul %m, 0.5 : f32[4]\n"
        "  %m2 = add %half, %s : f32[4]\n"
        "  %yn = mul %y, %n : f32[8,4]\n"
        "  %l = reduce_mean %yn {axes=[0,1], keepdims=0} : f32[]\n"
        "  write %m = %m2\n  write %n = %m2\n  return %l\n}\n",
        "--precision fp32 --optimizer sgd,lr=0.5", "cuda:sm_80");
    DcRandom *feed = dc_random_new(c.api, "train", 1, 6);
    DcTraining t = {.steps = 5,
                    .tolerance = dc_training_tolerance("fp32"),
                    .feed = dc_random_feed,
                    .feed_ctx = feed};
    DcReport r;
    gpu_for(&c, 1);
    CHECK_MSG(dc_train(c.api, "cpu", "cuda", &t, &r), "%s", r.text);
    gpu_clean("training");
    dc_random_free(feed);
    compiled_close(&c);
}

/* The number of stored values of that type, and the arena offsets of the
   first `most` of them. */
static int stored_at(const char *plan, const char *type, char at[][32],
                     int most) {
    int n = 0;
    for (const char *p = plan; (p = strstr(p, type)); p++) {
        const char *place = p + strlen(type);
        if (strncmp(place, " @", 2) != 0) continue;
        if (n < most) sscanf(place + 2, "%31[0-9]", at[n]);
        n++;
    }
    return n;
}

/* The loss and the logits' gradient, of a product with a bias, are one
   kernel that reads logits and overwrites them with the gradient, each
   padded by align.c; some labels are ignored. */
TEST_CASE(cuda_facts, a_loss_and_its_gradient_are_one_kernel_in_place) {
    Compiled c = compile_text_cuda(
        "graph forward(%x: f32[256,16]) {\n"
        "  param %w: f32[1027,16] = 0.5\n"
        "  param %b: f32[1027] = 0.25\n"
        "  %a = matmul %x, %w {trans_b=1} : f32[256,1027]\n"
        "  %y = add %a, %b : f32[256,1027]\n"
        "  return %y\n}\n",
        "--precision bf16 --loss cross_entropy,ignore_index=3 "
        "--optimizer sgd,lr=0.5",
        "cuda:sm_80");
    char *text = NULL, at[2][32] = {"", ""};
    if (test_command(&text, "'%s' inspect '%s' --ir memplan", test_ampc(),
                     c.path))
        FAIL("%s", text);
    char *train = NULL;
    for (char *p = text; (p = strstr(p, "graph train(")); p++) {
        const char *cuda = strstr(p, " on cuda");
        if (cuda && cuda < strchr(p, '\n')) train = p;
    }
    REQUIRE(train != NULL);
    *strstr(train, "\n}\n") = 0;
    CHECK_EQ_INT(stored_at(train, "bf16[256,1032]", at, 2), 2);
    CHECK_STR(at[0], at[1]);
    CHECK_EQ_INT(stored_at(train, "[256,1027]", at, 0), 0);
    free(text);
    DcRandom *feed = dc_random_bounded(c.api, "train", 4, "target=5", 7);
    DcTraining t = {.steps = 3,
                    .forced = true,
                    .feed = dc_random_feed,
                    .feed_ctx = feed,
                    .tolerance = dc_training_tolerance("bf16")};
    DcReport r;
    gpu_for(&c, 1);
    CHECK_MSG(dc_train(c.api, "cpu", "cuda", &t, &r), "%s", r.text);
    gpu_clean("train");
    dc_random_free(feed);
    compiled_close(&c);
}

/* Rows of gradients are folded, and the last of their blocks folds the
   results, in any order of the blocks; the measuring trials, which write to
   all memory, come before. */
TEST_CASE(cuda_facts, the_norm_of_all_gradients) {
    enum { STEPS = 4 };
    Compiled c = compile_text_cuda(
        "graph forward(%x: f32[16,300]) {\n"
        "  param %w: f32[300,128] = 0.01, %b: f32[128] = 0\n"
        "  param %v: f32[128,96] = 0.02, %u: f32[96,3] = 0.5\n"
        "  %h = matmul %x, %w\n  %i = add %h, %b\n  %r = relu %i\n"
        "  %j = matmul %r, %v\n  %k = tanh %j\n  %z = matmul %k, %u\n"
        "  return %z\n}\n",
        "--precision fp32 --loss cross_entropy --clip-norm 0.5 "
        "--optimizer sgd,lr=0.1",
        "cuda:sm_80");
    float norm[STEPS] = {0};
    for (uint64_t seed = 1; seed <= 6; seed++) {
        char dir[600];
        if (seed == 1)
            gpu_for(&c, seed);
        else
            gpu_reset(&c, seed);
        snprintf(dir, sizeof dir, "%s/tuned%d", test_tmpdir(), (int)seed);
        setenv("AMPC_CACHE_DIR", dir, 1);
        if (seed == 6) setenv("AMPC_TUNE", "1", 1);
        DcTraining t = {.steps = STEPS,
                        .tolerance = dc_training_tolerance("fp32"),
                        .feed = dc_random_feed,
                        .feed_ctx = dc_random_new(c.api, "train", 3, 5)};
        DcReport r;
        CHECK_MSG(dc_train(c.api, "cpu", "cuda", &t, &r), "seed %d: %s",
                  (int)seed, r.text);
        gpu_clean("train");
        ampc_session *s = gpu_open(&c);
        for (int i = 0; i < STEPS; i++) {
            size_t nin;
            const ampc_input *in = dc_random_feed(t.feed_ctx, i, &nin);
            ampc_metrics m = {.size = sizeof m};
            CHECK_EQ_INT(c.api->step(s, in, nin, &m), AMPC_OK);
            if (seed == 1) norm[i] = (float)m.grad_norm;
            CHECK(m.grad_norm > 0);
            CHECK_MSG(seed == 6 || norm[i] == (float)m.grad_norm,
                      "seed %d: %a, not %a", (int)seed, m.grad_norm, norm[i]);
        }
        c.api->close(s);
        dc_random_free(t.feed_ctx);
    }
    unsetenv("AMPC_TUNE");
    setenv("AMPC_CACHE_DIR", test_tmpdir(), 1);
    compiled_close(&c);
}

/* ---- every image --------------------------------------------------------- */

/* Runs check on GPUs that use the module's cubins and on two that use only
   its PTX; one of these has a CUDA 12.0 driver. */
static void on_every_image(const Compiled *c, void check(const Compiled *c)) {
    static const struct {
        int cc, driver;
        bool ptx_only;
        const char *blas;
    } rows[] = {{80, 0, false, "130100"},
                {90, 0, false, "130100"},
                {90, 12000, true, "120805"},
                {120, 0, false, "130100"}};
    gpu_for(c, 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        SimConfig config = {.seed = i + 1,
                            .cc = rows[i].cc,
                            .driver = rows[i].driver,
                            .ptx_only = rows[i].ptx_only,
                            .twins = c->cuda_dir};
        sim()->reset(&config);
        setenv("AMPC_SIM_BLAS_VERSION", rows[i].blas, 1);
        check(c);
        gpu_clean("image");
    }
    unsetenv("AMPC_SIM_BLAS_VERSION");
}

static const char every_image[] = "cuda:sm_80,cuda:sm_90,cuda:ptx";

static void predicts_as_the_cpu(const Compiled *c) {
    DcRandom *feed = dc_random_new(c->api, "predict", 3, 7);
    DcReport r;
    size_t nin;
    const ampc_input *in = dc_random_feed(feed, 0, &nin);
    CHECK_MSG(dc_predict(c->api, "cpu", "cuda", in, nin, &r), "%s", r.text);
    dc_random_free(feed);
}

/* Few rows, or few columns, with odd numbers of elements: cut into pieces,
   folded by one launch or several. */
TEST_CASE(cuda_facts, few_rows_are_split_on_every_image) {
    Compiled c = compile_text_cuda(
        "graph forward(%x: f32[3,70001], %y: f32[20011,5], %z: "
        "f32[5,3,10007], %u: f32[1,46621]) {\n"
        "  %a = reduce_sum %x {axes=[1], keepdims=1} : f32[3,1]\n"
        "  %b = reduce_max %y {axes=[0], keepdims=1} : f32[1,5]\n"
        "  %c = reduce_mean %y {axes=[0], keepdims=1} : f32[1,5]\n"
        "  %d = reduce_sumsq %z {axes=[0,2], keepdims=1} : f32[1,3,1]\n"
        "  %e = reduce_mean %z {axes=[0,1,2], keepdims=1} : f32[1,1,1]\n"
        "  %f = reduce_min %u {axes=[0,1], keepdims=1} : f32[1,1]\n"
        "  %g = sub %x, %a : f32[3,70001]\n"
        "  %h = reduce_sumsq %g {axes=[0,1], keepdims=1} : f32[1,1]\n"
        "  return a=%a, b=%b, c=%c, d=%d, e=%e, f=%f, h=%h\n}\n",
        "--precision fp32 --loss none", every_image);
    on_every_image(&c, predicts_as_the_cpu);
    compiled_close(&c);
}

static void trains_as_the_cpu(const Compiled *c) {
    DcTraining t = {.steps = 2,
                    .forced = true,
                    .tolerance = dc_training_tolerance("bf16"),
                    .feed = dc_random_feed,
                    .feed_ctx = dc_random_new(c->api, "train", 1027, 7)};
    DcReport r;
    CHECK_MSG(dc_train(c->api, "cpu", "cuda", &t, &r), "%s", r.text);
    CHECK(r.compared > 15);
    dc_random_free(t.feed_ctx);
}

/* 197 tokens, as in a ViT, and 1027 classes: rows of scores and logits are
   aligned to 2 bytes, padded or not. */
TEST_CASE(cuda_facts, odd_tokens_and_classes_on_every_image) {
    static const char head[] = "{shape=[2,197,2,16]} : f32[2,197,2,16]\n";
    char text[2000];
    snprintf(text, sizeof text,
             "graph forward(%%x: f32[2,197,32]) {\n"
             "  param %%wq: f32[32,32] = normal(0, 0.3)\n"
             "  param %%wk: f32[32,32] = normal(0, 0.3)\n"
             "  param %%wv: f32[32,32] = normal(0, 0.3)\n"
             "  param %%wo: f32[32,1027] = normal(0, 0.3), %%b: f32[1027] = 0\n"
             "  %%q0 = matmul %%x, %%wq\n  %%k0 = matmul %%x, %%wk\n"
             "  %%v0 = matmul %%x, %%wv\n"
             "  %%q1 = reshape %%q0 %s  %%k1 = reshape %%k0 %s"
             "  %%v1 = reshape %%v0 %s"
             "  %%q = transpose %%q1 {perm=[0,2,1,3]}\n"
             "  %%k = transpose %%k1 {perm=[0,2,1,3]}\n"
             "  %%v = transpose %%v1 {perm=[0,2,1,3]}\n"
             "  %%y = attention %%q, %%k, %%v : f32[2,2,197,16]\n"
             "  %%t = transpose %%y {perm=[0,2,1,3]}\n"
             "  %%h = reshape %%t {shape=[394,32]}\n"
             "  %%z0 = matmul %%h, %%wo\n  %%z = add %%z0, %%b\n"
             "  return %%z\n}\n",
             head, head, head);
    Compiled c = compile_text_cuda(
        text, "--precision bf16 --loss cross_entropy --optimizer sgd,lr=0.1",
        every_image);
    on_every_image(&c, trains_as_the_cpu);
    compiled_close(&c);
}

/* ---- --matmul-precision -------------------------------------------------- */

enum { ROWS = 8, INNER = 40, COLS = 16, IMAGES = ROWS * 8 * 5 * 5 };

typedef struct Products {
    float x[ROWS * INNER], image[IMAGES], w[INNER * COLS];
    float h[ROWS * COLS], exact[ROWS * COLS], image_out[IMAGES];
} Products;

/* The same weight twice: one product that a policy line keeps. */
static const char products_text[] =
    "graph forward(%x: f32[8,40], %i: f32[8,8,5,5]) {\n"
    "  param %w: f32[40,16] = normal(0, 1), %k: f32[8,8,3,3] = normal(0, 1)\n"
    "  %h = matmul %x, %w : f32[8,16]\n"
    "  %exact = matmul %x, %w : f32[8,16] !full\n"
    "  %o = conv %i, %k {pads=[1,1,1,1]} : f32[8,8,5,5]\n"
    "  return h=%h, exact=%exact, o=%o\n"
    "}\n";

static void predict_products(const Compiled *c, const char *device,
                             Products *p) {
    char err[600];
    ampc_options o = {.size = sizeof o, .device = device};
    ampc_session *s;
    ampc_input in[] = {ampc_in("x", p->x, sizeof p->x, AMPC_DTYPE_F32),
                       ampc_in("i", p->image, sizeof p->image, AMPC_DTYPE_F32)};
    ampc_output out[] = {
        ampc_out("h", p->h, sizeof p->h, AMPC_DTYPE_F32),
        ampc_out("exact", p->exact, sizeof p->exact, AMPC_DTYPE_F32),
        ampc_out("o", p->image_out, sizeof p->image_out, AMPC_DTYPE_F32)};
    for (int i = 0; i < ROWS * INNER; i++)
        p->x[i] = (float)sin(0.37 * i) * 1.7f;
    for (int i = 0; i < IMAGES; i++) p->image[i] = (float)cos(0.91 * i);
    if (c->api->open(c->api->module, &o, &s, err, sizeof err))
        FAIL("open: %s", err);
    read_var(c, s, "w", p->w, sizeof p->w, AMPC_DTYPE_F32);
    REQUIRE(!c->api->predict(s, in, 2, ROWS, out, 3));
    c->api->close(s);
}

/* Element e of the product of rounded factors, and the sum of magnitudes. */
static double product_of(const Products *p, AmpcFactors f, int e,
                         double *size) {
    double sum = *size = 0;
    for (int k = 0; k < INNER; k++) {
        double term = factor_of(f, (double)p->x[e / COLS * INNER + k]) *
                      factor_of(f, (double)p->w[k * COLS + e % COLS]);
        sum += term;
        *size += fabs(term);
    }
    return sum;
}

static void check_products(const Products *p, AmpcFactors f) {
    const double sums = INNER * 0x1p-24;
    for (int e = 0; e < ROWS * COLS; e++) {
        double size, h = product_of(p, f, e, &size);
        CHECK_NEAR(p->h[e], h, sums * size);
        double exact = product_of(p, AMPC_FACTORS_F32, e, &size);
        CHECK_NEAR(p->exact[e], exact, sums * size);
    }
}

/* Relative to the largest result of the convolution. */
static double conv_differs(const Products *p, const Products *q) {
    double most = 0, differs = 0;
    for (int i = 0; i < IMAGES; i++) {
        double a = (double)p->image_out[i], b = (double)q->image_out[i];
        most = fmax(most, fabs(a));
        differs = fmax(differs, fabs(a - b));
    }
    return differs / most;
}

TEST_CASE(cuda_facts, matmul_precision_rounds_on_gpus_alone) {
    static const struct {
        const char *word;
        AmpcFactors factors;
        double least, most; /* differences of the convolution */
    } rows[] = {{"highest", AMPC_FACTORS_F32, 0, 1e-6},
                {"high", AMPC_FACTORS_TF32, 1e-5, 0x1p-10},
                {"medium", AMPC_FACTORS_BF16, 1e-4, 0x1p-7}};
    for (int i = 0; i < 3; i++) {
        static Products cpu, gpu;
        char options[100];
        snprintf(options, sizeof options,
                 "--loss none --precision fp32 --matmul-precision %s",
                 rows[i].word);
        Compiled c = compile_text_cuda(products_text, options, "cuda:sm_80");
        gpu_for(&c, 1);
        predict_products(&c, "cpu", &cpu);
        check_products(&cpu, AMPC_FACTORS_F32);
        predict_products(&c, "cuda", &gpu);
        check_products(&gpu, rows[i].factors);
        double differs = conv_differs(&cpu, &gpu);
        CHECK_MSG(differs >= rows[i].least && differs <= rows[i].most, "%s: %g",
                  rows[i].word, differs);
        gpu_clean(rows[i].word);
        compiled_close(&c);
    }
}
