/* SPDX-License-Identifier: Apache-2.0 */
/* lora_test.c: adapters (--lora) compared with PEFT's in PyTorch over 10
   steps (tests/optimizers/lora.txt, which make_lora.py there recorded in
   f64), the weights that stay frozen, their dtype, their files, and their
   dropout. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/tolerance.h"

enum { STEPS = 10, MAX_N = 64 };

static const char model[] =
    "def Rows(x; units: int) -> y {\n" /* weight [in, out] */
    "  n = dim(x, -1)\n"
    "  param weight: f32[n,units] = zeros\n"
    "  param bias: f32[units] = zeros\n"
    "  y = matmul(x, weight) + bias\n"
    "}\n"
    "model net(x: f32[4,6]) {\n"
    "  h = tanh(Linear(x, units=8, scope=\"fc\"))\n"
    "  h = tanh(Rows(h, units=5, scope=\"proj\"))\n"
    "  return y = Linear(h, units=3, scope=\"head\")\n"
    "}\n";

static const char convolutions[] =
    "model net(x: f32[4,6]) {\n"
    "  h = reshape(x, shape=[1, 1, 6, 4])\n"
    "  h = tanh(Conv2d(h, channels=5, size=3, stride=2, pad=1, "
    "scope=\"one\"))\n"
    "  h = tanh(Conv2d(h, channels=4, size=1, scope=\"two\"))\n"
    "  h = reshape(h, shape=[4, 6])\n"
    "  return y = Linear(h, units=3, scope=\"last\")\n"
    "}\n";

static const struct Given {
    const char *name;
    int n;
} given[] = {{"fc.weight", 48},        {"fc.bias", 8},
             {"proj.weight", 40},      {"proj.bias", 5},
             {"head.weight", 15},      {"head.bias", 3},
             {"fc.lora_A.weight", 0},  {"proj.lora_A.weight", 0},
             {"fc.ia3_l", 0},          {"proj.ia3_l", 0},
             {"one.weight", 0},        {"one.bias", 0},
             {"two.weight", 0},        {"two.bias", 0},
             {"one.lora_A.weight", 0}, {"two.lora_A.weight", 0},
             {"last.weight", 0},       {"last.bias", 0},
             {"one.ia3_l", 0},         {"two.ia3_l", 0}};

typedef struct Case {
    char name[64], options[300];
    const char *numbers;
} Case;

/* 0: there is none. */
static size_t elements(const Compiled *c, const char *name) {
    ampc_variable_info t = {.size = sizeof t};
    for (uint32_t i = 0; c->api->variable(c->api->module, i, &t) == AMPC_OK;
         i++)
        if (!strcmp(t.name, name)) return t.bytes / 4;
    return 0;
}

static ampc_session *begin(const Compiled *c) {
    ampc_session *s = open_threads(c, 1);
    for (int k = 0; k < (int)(sizeof given / sizeof *given); k++) {
        float p[MAX_N];
        size_t n = elements(c, given[k].name);
        if (!n) continue;
        if (given[k].n) n = (size_t)given[k].n; /* of codes, too */
        for (size_t i = 0; i < n; i++)
            p[i] = (float)((int)(37 * i + 11 + 5 * (size_t)k) % 64 - 32) / 64;
        write_var(c, s, given[k].name, p, n * sizeof *p, AMPC_DTYPE_F32);
    }
    return s;
}

static double step(const Compiled *c, ampc_session *s, int i) {
    static float x[24 + 12];
    uint64_t state = 77 + (uint64_t)i;
    for (int j = 0; j < 24 + 12; j++) {
        for (int n = 0; n < 3; n++)
            state = state * 6364136223846793005u + 1442695040888963407u;
        x[j] = (float)((double)(state >> 40) / (1 << 23) - 1);
    }
    ampc_input in[] = {
        ampc_in("x", x, 24 * sizeof *x, AMPC_DTYPE_F32),
        ampc_in("target", x + 24, 12 * sizeof *x, AMPC_DTYPE_F32)};
    return step_ok(c, s, in, 2).loss;
}

/* ---- beside PEFT --------------------------------------------------------- */

/* The numbers of line "KEY NAME NUMBER ..". */
static int numbers_of(const Case *x, const char *head, double *to) {
    const char *end = strstr(x->numbers, "\ncase "),
               *p = strstr(x->numbers, head);
    int n = 0;
    REQUIRE(p && (!end || p < end));
    p += strlen(head);
    while (*p == ' ' && n < MAX_N) {
        char *next;
        to[n++] = strtod(p, &next);
        REQUIRE(next > p);
        p = next;
    }
    return n;
}

static void check_near(const Case *x, const char *what, const float *got,
                       const double *want, int n) {
    double largest = 0;
    for (int i = 0; i < n; i++) largest = fmax(largest, fabs(want[i]));
    for (int i = 0; i < n; i++)
        CHECK_MSG(fabs((double)got[i] - want[i]) <= TOL_LORA * largest,
                  "%s: %s[%d] is %.9g, not %.9g", x->name, what, i,
                  (double)got[i], want[i]);
}

/* Every parameter that trains is one of PEFT's, and has its values. */
static void check_trained(const Compiled *c, ampc_session *s, const Case *x) {
    ampc_variable_info t = {.size = sizeof t};
    for (uint32_t i = 0; c->api->variable(c->api->module, i, &t) == AMPC_OK;
         i++) {
        char head[100];
        double want[MAX_N];
        float got[MAX_N];
        if (t.kind != AMPC_KIND_PARAMETER) continue;
        snprintf(head, sizeof head, "\nat %s", t.name);
        int n = numbers_of(x, head, want);
        REQUIRE(t.bytes == (size_t)n * sizeof *got);
        read_var(c, s, t.name, got, t.bytes, AMPC_DTYPE_F32);
        check_near(x, t.name, got, want, n);
    }
}

static void run(void *arg) {
    const Case *x = arg;
    char options[500];
    double want[MAX_N];
    float loss[STEPS];
    snprintf(options, sizeof options,
             "%s --loss mse --precision fp32 --optimizer adamw,lr=0.05 "
             "--target cpu:x86-64-v2",
             x->options);
    Compiled c = compile_text(
        strncmp(x->name, "conv", 4) ? model : convolutions, options);
    ampc_session *s = begin(&c);
    REQUIRE(numbers_of(x, "\nlosses -", want) == STEPS);
    for (int i = 0; i < STEPS; i++) loss[i] = (float)step(&c, s, i);
    check_near(x, "loss", loss, want, STEPS);
    check_trained(&c, s, x);
    c.api->close(s);
    compiled_close(&c);
}

enum { MAX_CASES = 20 };
static Case cases[MAX_CASES];

static void read_cases(void) {
    size_t size;
    int n = 0;
    const char *p =
        test_read_file(test_data_path("tests/optimizers/lora.txt"), &size);
    while (n < MAX_CASES && (p = strstr(p, "\ncase "))) {
        Case *x = &cases[n++];
        REQUIRE(sscanf(p, "\ncase %63s %299[^\n]", x->name, x->options) == 2);
        p += 6;
        x->numbers = strchr(p, '\n');
        harness_register("lora", x->name, run, x);
    }
    REQUIRE(n > 0 && n < MAX_CASES);
}
TEST_REGISTRAR(read_cases);

/* ---- the rest ------------------------------------------------------------ */

/* A frozen weight is in the module once, in the 16 bits of the precision; it
   is not an operand of an update, and small parameters stay fp32. */
TEST_CASE(lora, frozen_weights_are_kept_once) {
    static const char text[] =
        "model net(x: f32[4,64]) {\n"
        "  return y = Linear(x, units=64, scope=\"fc\")\n}\n";
    Compiled c = compile_text(text, "--lora fc,rank=2 --loss mse --target "
                                    "cpu:x86-64-v2");
    ampc_variable_info t = {.size = sizeof t};
    int frozen = 0;
    for (uint32_t i = 0; c.api->variable(c.api->module, i, &t) == AMPC_OK;
         i++) {
        CHECK_MSG(!strstr(t.name, "fc.weight") || !strcmp(t.name, "fc.weight"),
                  "%s is another copy", t.name);
        if (strcmp(t.name, "fc.weight") && strcmp(t.name, "fc.bias")) continue;
        CHECK_EQ_INT(t.kind, AMPC_KIND_FROZEN);
        CHECK_EQ_INT(t.dtype, strcmp(t.name, "fc.bias") ? AMPC_DTYPE_BF16
                                                        : AMPC_DTYPE_F32);
        frozen++;
    }
    CHECK_EQ_INT(frozen, 2);
    compiled_close(&c);
}

#define SMALL " --loss mse --precision fp32 --target cpu:x86-64-v2"

/* With dropout before the adapters, steps differ from those without from the
   second on, since B begins as 0. A run that a checkpoint cuts in two ends
   with the same bits. */
TEST_CASE(lora, dropout_and_checkpoints) {
    Compiled with = compile_text(model, "--lora fc,dropout=0.5" SMALL),
             none = compile_text(model, "--lora fc" SMALL);
    ampc_session *s = begin(&with), *t = begin(&none);
    CHECK(step(&with, s, 0) == step(&none, t, 0));
    step(&with, s, 1), step(&none, t, 1);
    CHECK(step(&with, s, 2) != step(&none, t, 2));
    none.api->close(t);
    REQUIRE(with.api->save(s, test_tmp("half.ckpt")) == AMPC_OK);
    t = open_threads(&with, 1);
    REQUIRE(with.api->resume(t, test_tmp("half.ckpt")) == AMPC_OK);
    step(&with, s, 3), step(&with, t, 3);
    size_t n[2];
    void *a = read_all(&with, s, ~0u, &n[0]),
         *b = read_all(&with, t, ~0u, &n[1]);
    CHECK(n[0] == n[1] && n[0] > 0 && !memcmp(a, b, n[0]));
    free(a);
    free(b);
    with.api->close(s);
    with.api->close(t);
    compiled_close(&with);
    compiled_close(&none);
}

/* Runs `ampc WORDS` in the test's folder. */
static void check_ampc(int status, const char *says, const char *words) {
    char *out;
    int rc = test_command(&out, "cd '%s' && '%s' %s", test_tmpdir(),
                          test_ampc(), words);
    CHECK_MSG(rc == status, "ampc %s: status %d\n%s", words, rc, out);
    CHECK_HAS(out, says);
    free(out);
}

/* PEFT's two files; the tensors load again by PEFT's names. */
TEST_CASE(lora, adapters_alone_as_peft_has_them) {
    char words[1400];
    float want[16], got[16];
    size_t n;
    Compiled c = compile_text(model, "--lora fc,rank=2,alpha=4 --lora "
                                     "proj,rank=3,alpha=4 --train head" SMALL);
    ampc_session *s = begin(&c);
    for (int i = 0; i < 3; i++) step(&c, s, i);
    REQUIRE(c.api->save(s, test_tmp("trained")) == AMPC_OK);
    read_var(&c, s, "fc.lora_B.weight", want, sizeof want, AMPC_DTYPE_F32);
    c.api->close(s);
    snprintf(words, sizeof words,
             "export '%s' --load trained --adapter -o adapter", c.path);
    check_ampc(0, "", words);
    char *config = test_read_file(test_tmp("adapter/adapter_config.json"), &n);
    REQUIRE(config);
    CHECK_HAS(config, "\"r\": 2,");
    CHECK_HAS(config, "\"rank_pattern\": {\"^proj\": 3}");
    CHECK_HAS(config, "\"modules_to_save\": [\"head\"]");
    CHECK_HAS(config, "\"target_modules\": [\"fc\", \"proj\"]");
    CHECK_HAS(config, "\"bias\": \"none\"");
    free(config);
    const char *file = test_tmp("adapter/adapter_model.safetensors");
    Trace t = trace_read(file);
    for (int i = 0; i < t.n; i++) /* nothing frozen */
        CHECK(!strstr(t.t[i].name, ".fc.weight") &&
              !strstr(t.t[i].name, ".bias") ==
                  !strstr(t.t[i].name, "head.bias"));
    CHECK(trace_find(&t, "base_model.model.fc.lora_A.weight"));
    CHECK(trace_find(&t, "base_model.model.head.bias"));
    trace_free(&t);
    snprintf(words, sizeof words,
             "export '%s' --load adapter/adapter_model.safetensors -o w.onnx",
             c.path);
    check_ampc(1, "a file of adapters alone: ampc run MODULE", words);
    s = open_threads(&c, 1);
    ampc_weights from = {
        .size = sizeof from, .paths = &file, .npath = 1, .partial = 1};
    if (c.api->load_weights(s, &from)) FAIL("load: %s", c.api->error(s));
    read_var(&c, s, "fc.lora_B.weight", got, sizeof got, AMPC_DTYPE_F32);
    CHECK_MEM(got, want, sizeof want);
    c.api->close(s);
    compiled_close(&c);
}

/* With dora, magnitudes are in both files, and begin again beside weights that
   are loaded without them. */
TEST_CASE(lora, magnitudes_in_files) {
    char words[1400];
    float want[8], got[8];
    size_t n;
    Compiled c = compile_text(model, "--lora '*,rank=2,dora'" SMALL);
    ampc_session *s = begin(&c);
    for (int i = 0; i < 3; i++) step(&c, s, i);
    REQUIRE(c.api->save(s, test_tmp("trained")) == AMPC_OK);
    read_var(&c, s, "fc.lora_magnitude_vector", want, sizeof want,
             AMPC_DTYPE_F32);
    snprintf(words, sizeof words,
             "export '%s' --load trained --adapter -o adapter", c.path);
    check_ampc(0, "", words);
    char *config = test_read_file(test_tmp("adapter/adapter_config.json"), &n);
    REQUIRE(config);
    CHECK_HAS(config, "\"use_dora\": true");
    free(config);
    const char *file = test_tmp("adapter/adapter_model.safetensors"),
               *base = test_tmp("base.safetensors");
    Trace t = trace_read(file);
    CHECK(trace_find(&t, "base_model.model.fc.lora_magnitude_vector"));
    trace_free(&t);
    ampc_weights from = {
        .size = sizeof from, .paths = &file, .npath = 1, .partial = 1};
    ampc_session *u = open_threads(&c, 1);
    if (c.api->load_weights(u, &from)) FAIL("load: %s", c.api->error(u));
    read_var(&c, u, "fc.lora_magnitude_vector", got, sizeof got,
             AMPC_DTYPE_F32);
    CHECK_MEM(got, want, sizeof want);
    c.api->close(u);
    c.api->close(s);
    Compiled plain = compile_text(model, SMALL);
    s = begin(&plain);
    REQUIRE(plain.api->save_weights(s, base) == AMPC_OK);
    plain.api->close(s);
    compiled_close(&plain);
    u = open_threads(&c, 1);
    step(&c, u, 0);
    from.paths = &base;
    if (c.api->load_weights(u, &from)) FAIL("load: %s", c.api->error(u));
    REQUIRE(c.api->save(u, test_tmp("again")) == AMPC_OK);
    read_var(&c, u, "fc.lora_magnitude_vector", got, sizeof got,
             AMPC_DTYPE_F32);
    for (int i = 0; i < 8; i++) { /* the norms of the weights in begin() */
        double sum = 0;
        for (int k = 6 * i; k < 6 * i + 6; k++)
            sum += pow(((37 * k + 11) % 64 - 32) / 64.0, 2);
        CHECK_REL(got[i], sqrt(sum), TOL_LORA);
    }
    c.api->close(u);
    compiled_close(&c);
}

/* PEFT has one use_dora for all layers. */
TEST_CASE(lora, magnitudes_of_some_layers) {
    char words[1400];
    Compiled c =
        compile_text(model, "--lora fc,rank=2 --lora proj,rank=2,dora" SMALL);
    ampc_session *s = begin(&c);
    REQUIRE(c.api->save(s, test_tmp("trained")) == AMPC_OK);
    c.api->close(s);
    snprintf(words, sizeof words,
             "export '%s' --load trained --adapter -o adapter", c.path);
    check_ampc(
        1, "one kind of adapter; 'fc' has LoRA and 'proj' has LoRA with dora",
        words);
    snprintf(words, sizeof words, "export '%s' --load trained -o w.onnx",
             c.path);
    check_ampc(0, "", words);
    compiled_close(&c);
}

/* x.npy: 4 samples. */
static void write_zeros(void) {
    char file[128 + 24 * 4] = "\x93NUMPY\x01\x00\x76\x00"
                              "{'descr': '<f4', 'fortran_order': False, "
                              "'shape': (4, 6)}";
    size_t head = 10 + strlen(file + 10);
    memset(file + head, ' ', 127 - head);
    file[127] = '\n';
    REQUIRE(test_write_file(test_tmp("x.npy"), file, sizeof file));
}

/* adapter_config.json has the scale that the tensor file lacks: it is
   compared with the module's, whoever wrote the file. */
TEST_CASE(lora, another_scale_than_beside_the_file) {
    static const struct {
        int status;
        const char *config, *says;
    } rows[] = {
        {0, "{\"r\":2,\"lora_alpha\":4}", "2 of 8 weights loaded"},
        {1, "{\"r\":2,\"lora_alpha\":8}", "'fc,rank=2,alpha=8'"},
        {1, "{\"r\":2,\"lora_alpha\":4,\"use_rslora\":true}",
         "trained with alpha=5.65685, and this module has alpha=4"},
        {1, "{\"r\":2,\"lora_alpha\":4,\"alpha_pattern\":{\"^fc\":1}}",
         "'fc,rank=2,alpha=1'"},
        {0,
         "{\"r\":9,\"rank_pattern\":{\"fc\":2},\"lora_alpha\":1,"
         "\"alpha_pattern\":{\"c\":1,\"^b.fc\":1,\"fc\":4}}",
         "2 of 8 weights loaded"},
        {1, "{\"r\":2,\"lora_alpha\":4,\"alpha_pattern\":{\"f.*\":4}}",
         "'alpha_pattern' has a regular expression"},
        {1, "{\"r\":2,\"lora_alpha\":4,\"use_dora\":true}",
         "with DoRA, and this module has it without: compile with --lora "
         "'fc,rank=2,alpha=4,dora'"},
        {1, "{\"r\":2,\"lora_alpha\":\"4\"}", "'lora_alpha' is not a number"},
        {1, "{\"r\":1e400,\"lora_alpha\":4}", "'r' is not a number"},
        {1, "[", "not a JSON object"},
    };
    char words[1400];
    Compiled c = compile_text(model, "--lora fc,rank=2,alpha=4" SMALL);
    ampc_session *s = begin(&c);
    REQUIRE(c.api->save(s, test_tmp("trained")) == AMPC_OK);
    c.api->close(s);
    snprintf(words, sizeof words,
             "export '%s' --load trained --adapter -o adapter", c.path);
    check_ampc(0, "", words);
    snprintf(words, sizeof words,
             "run '%s' --feed x=x.npy --load "
             "adapter/adapter_model.safetensors --fetch y",
             c.path);
    write_zeros();
    check_ampc(0, "2 of 8 weights loaded", words);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        REQUIRE(test_write_file(test_tmp("adapter/adapter_config.json"),
                                rows[i].config, strlen(rows[i].config)));
        check_ampc(rows[i].status, rows[i].says, words);
    }
    snprintf(words, sizeof words,
             "export '%s' --load trained --adapter --module -o b", c.path);
    check_ampc(2, "--adapter and --module", words);
    compiled_close(&c);
}

/* A layer named by --train trains itself, without an adapter. */
TEST_CASE(lora, a_head_trains_itself) {
    REQUIRE(test_write_file(test_tmp("head.amp"), model, strlen(model)));
    check_ampc(0, "'head.weight' trains itself",
               "check head.amp --lora '*' --train head" SMALL);
    check_ampc(0, "param  head.weight ",
               "check head.amp --lora '*' --train head" SMALL);
}

TEST_CASE(lora, refusals) {
    static const char text[] =
        "model net(x: i64[4]) {\n"
        "  param table: f32[10,8] = normal(0.1)\n"
        "  return y = Linear(gather(table, x, axis=0), units=8, "
        "scope=\"fc\")\n}\n";
    static const struct {
        const char *options, *says;
    } bad[] = {
        {"--lora table", "'table' is read by gather"},
        {"--lora nowhere", "matches no parameter of the model"},
        {"--lora fc.bias", "matches no weight that matrix products or"},
        {"--lora fc --train fc", "'fc.weight' trains itself"},
        {"--lora 'f*' --lora fc",
         "is left with no weight by the options after"},
        {"--lora fc --ia3 fc", "--lora 'fc' is left with no weight"},
        {"--ia3 table", "--ia3 'table' matches no weight"},
        {"--ia3 fc,rank=2", "its keys are feedforward"},
        {"--lora fc,bais=all", "its keys are rank, alpha, dropout, bias"},
        {"--lora fc,rank=0", "--lora: rank=0 is not in"},
        {"--lora fc,bias=some", "not one of none, lora_only, all"},
        {"--lora ''", "the names of weights are missing"},
    };
    REQUIRE(test_write_file(test_tmp("net.amp"), text, strlen(text)));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char words[300];
        snprintf(words, sizeof words, "check net.amp --loss mse %s",
                 bad[i].options);
        check_ampc(2, bad[i].says, words);
    }
    check_ampc(0, "without an adapter: 'table' is read by gather",
               "check net.amp --loss mse --target cpu:x86-64-v2 --lora '*'");
}

TEST_CASE(lora, convolutions_without_an_adapter) {
    static const char text[] =
        "model net(x: f32[1,4,6,6]) {\n"
        "  h = Conv2d(x, channels=4, size=3, groups=2, scope=\"two\")\n"
        "  h = tanh(Conv2d(h, channels=4, size=3, scope=\"one\"))\n"
        "  return y = reshape(h, shape=[4,4])\n}\n";
    static const char *const bad[][2] = {
        {"--lora two", "'two.weight' is a convolution's with groups"},
        {"--lora two,dora", "'two.weight' is a convolution's with groups"},
        {"--ia3 two,feedforward",
         "'two.weight' is a convolution's with groups"}};
    REQUIRE(test_write_file(test_tmp("conv.amp"), text, strlen(text)));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char words[200];
        snprintf(words, sizeof words, "check conv.amp %s" SMALL, bad[i][0]);
        check_ampc(2, bad[i][1], words);
    }
}

/* ---- frozen weights in codes --------------------------------------------- */

static const char coded_model[] =
    "model net(x: i64[8]) {\n"
    "  param table: f32[100,64] = normal(0.5)\n"
    "  h = tanh(Linear(gather(table, x, axis=0), units=96, scope=\"fc\"))\n"
    "  return y = Linear(h, units=48, scope=\"head\")\n"
    "}\n";

static const struct {
    const char *name;
    int n;
} coded[] = {{"table", 6400}, {"fc.weight", 6144}, {"head.weight", 4608}};

enum { NCODED = 3, MOST_CODED = 6400, MOST_SCALES = 100 };

/* The weight for which codes in blocks of 64 stand, by the definition: the
   nearest level, relative to the largest magnitude. */
static void round_coded(const char *dtype, float *x, int n) {
    static const float nf4[16] = {
        -1.0f,        -0.6961928f,  -0.52507305f, -0.3949175f,
        -0.28444138f, -0.18477343f, -0.09105004f, 0.0f,
        0.0795803f,   0.1609302f,   0.2461123f,   0.33791524f,
        0.44070983f,  0.562617f,    0.72295684f,  1.0f};
    bool nf = !strcmp(dtype, "nf4");
    int end = strcmp(dtype, "int8") ? 7 : 127;
    for (int b = 0; b < n; b += 64) {
        float most = 0;
        for (int i = b; i < b + 64; i++) most = fmaxf(most, fabsf(x[i]));
        float scale = nf ? most : most / (float)end;
        for (int i = b; i < b + 64; i++) {
            float r = x[i] / scale, best = 0;
            for (int k = 0; nf && k < 16; k++)
                if (k == 0 || fabsf(nf4[k] - r) < fabsf(best - r))
                    best = nf4[k];
            x[i] = (nf ? best : nearbyintf(r)) * scale;
        }
    }
}

static double coded_step(const Compiled *c, ampc_session *s, int i) {
    int64_t x[8];
    static float target[8 * 48];
    for (int k = 0; k < 8; k++) x[k] = (7 * i + 13 * k) % 100;
    for (int k = 0; k < 8 * 48; k++)
        target[k] = (float)((i + 5 * k) % 17 - 8) / 8;
    ampc_input in[] = {
        ampc_in("x", x, sizeof x, AMPC_DTYPE_I64),
        ampc_in("target", target, sizeof target, AMPC_DTYPE_F32)};
    return step_ok(c, s, in, 2).loss;
}

#define CODED(adapter)                                                         \
    "--lora " adapter " --loss mse --precision fp32 --optimizer "              \
    "adamw,lr=0.02 --target cpu:x86-64-v2"
#define CODED_OPTIONS CODED("fc,rank=4")

/* All codes and scales. */
static void *read_codes(const Compiled *c, ampc_session *s, size_t *n) {
    return read_all(c, s, 1u << AMPC_KIND_FROZEN, n);
}

/* Gives a session without codes the numbers that codes stand for. */
static void write_rounded(const Compiled *plain, ampc_session *t,
                          const char *dtype) {
    static float w[MOST_CODED];
    for (int i = 0; i < NCODED; i++) {
        size_t bytes = (size_t)coded[i].n * sizeof *w;
        read_var(plain, t, coded[i].name, w, bytes, AMPC_DTYPE_F32);
        round_coded(dtype, w, coded[i].n);
        write_var(plain, t, coded[i].name, w, bytes, AMPC_DTYPE_F32);
    }
}

static void check_same_losses(const Compiled *c, ampc_session *s,
                              const Compiled *plain, ampc_session *t,
                              const char *dtype) {
    for (int i = 0; i < STEPS; i++) {
        double got = coded_step(c, s, i), want = coded_step(plain, t, i);
        CHECK_MSG(fabs(got - want) <= TOL_LORA * want,
                  "%s, step %d: loss %.9g, not %.9g", dtype, i, got, want);
    }
}

/* Weights rounded when the model is compiled, when a file is loaded, and by
   the definition are the same; they train as the rounded weights do. */
static void run_coded(const char *dtype) {
    char options[300];
    size_t n[2];
    const char *file = test_tmp("whole.safetensors");
    Compiled plain = compile_text(coded_model, CODED_OPTIONS);
    snprintf(options, sizeof options, CODED_OPTIONS " --frozen-dtype %s",
             dtype);
    Compiled c = compile_text(coded_model, options);
    ampc_session *s = open_threads(&c, 2), *t = open_threads(&plain, 1);
    REQUIRE(plain.api->save_weights(t, file) == AMPC_OK);
    void *first = read_codes(&c, s, &n[0]);
    ampc_weights from = {.size = sizeof from, .paths = &file, .npath = 1};
    if (c.api->load_weights(s, &from)) FAIL("load: %s", c.api->error(s));
    void *then = read_codes(&c, s, &n[1]);
    CHECK(n[0] == n[1] && n[0] < 4 * MOST_CODED && !memcmp(first, then, n[0]));
    write_rounded(&plain, t, dtype);
    check_same_losses(&c, s, &plain, t, dtype);
    free(first);
    free(then);
    c.api->close(s);
    plain.api->close(t);
    compiled_close(&c);
    compiled_close(&plain);
}

TEST_CASE(lora, int8_weights_train_as_their_values) { run_coded("int8"); }
TEST_CASE(lora, int4_weights_train_as_their_values) { run_coded("int4"); }
TEST_CASE(lora, nf4_weights_train_as_their_values) { run_coded("nf4"); }

/* Magnitudes begin as the norms of the rounded weights. No program of the model
   widens a weight whole. */
static void run_magnitudes(const char *dtype) {
    char options[300], words[500];
    snprintf(options, sizeof options, CODED("fc,dora") " --frozen-dtype %s",
             dtype);
    Compiled plain = compile_text(coded_model, CODED("fc,dora"));
    Compiled c = compile_text(coded_model, options);
    ampc_session *s = open_threads(&c, 2), *t = open_threads(&plain, 1);
    write_rounded(&plain, t, dtype);
    check_same_losses(&c, s, &plain, t, dtype);
    c.api->close(s);
    plain.api->close(t);
    compiled_close(&c);
    compiled_close(&plain);
    REQUIRE(test_write_file(test_tmp("coded.amp"), coded_model,
                            strlen(coded_model)));
    snprintf(words, sizeof words,
             "inspect coded.amp %s --ir memplan > ir && grep -q "
             "matmul_quantized.*fc.weight ir && ! grep -q "
             "'widen_quantized %%fc.weight' ir && echo none",
             options);
    check_ampc(0, "none", words);
}

TEST_CASE(lora, magnitudes_beside_int8) { run_magnitudes("int8"); }
TEST_CASE(lora, magnitudes_beside_int4) { run_magnitudes("int4"); }
TEST_CASE(lora, magnitudes_beside_nf4) { run_magnitudes("nf4"); }

/* A checkpoint contains codes and scales: it resumes, and loads as weights. */
TEST_CASE(lora, codes_in_checkpoints) {
    size_t n[2];
    const char *file = test_tmp("coded.ckpt");
    Compiled c = compile_text(coded_model, CODED_OPTIONS " --frozen-dtype nf4");
    ampc_session *s = open_threads(&c, 1), *t = open_threads(&c, 1);
    coded_step(&c, s, 0);
    REQUIRE(c.api->save(s, file) == AMPC_OK);
    REQUIRE(c.api->resume(t, file) == AMPC_OK);
    CHECK(coded_step(&c, s, 1) == coded_step(&c, t, 1));
    c.api->close(t);
    t = open_threads(&c, 1);
    ampc_weights from = {.size = sizeof from, .paths = &file, .npath = 1};
    if (c.api->load_weights(t, &from)) FAIL("load: %s", c.api->error(t));
    void *a = read_codes(&c, s, &n[0]), *b = read_codes(&c, t, &n[1]);
    CHECK(n[0] == n[1] && !memcmp(a, b, n[0]));
    free(a);
    free(b);
    c.api->close(s);
    c.api->close(t);
    compiled_close(&c);
}

/* --save-weights and exports have the numbers that codes stand for; a file of
   them loads as the same codes. */
static void run_widened(const char *dtype) {
    char options[300], words[700];
    static float want[MOST_CODED];
    size_t n[2];
    const char *file = test_tmp("wide.safetensors");
    snprintf(options, sizeof options, CODED_OPTIONS " --frozen-dtype %s",
             dtype);
    Compiled plain = compile_text(coded_model, CODED_OPTIONS);
    Compiled c = compile_text(coded_model, options);
    ampc_session *s = open_threads(&c, 1), *t = open_threads(&plain, 1);
    coded_step(&c, s, 0);
    REQUIRE(c.api->save_weights(s, file) == AMPC_OK);
    Trace w = trace_read(file);
    for (int i = 0; i < NCODED; i++) {
        size_t bytes = (size_t)coded[i].n * sizeof *want;
        read_var(&plain, t, coded[i].name, want, bytes, AMPC_DTYPE_F32);
        round_coded(dtype, want, coded[i].n);
        const TraceTensor *x = trace_find(&w, coded[i].name);
        REQUIRE(x && x->rank == 2 && x->dim[0] * x->dim[1] == coded[i].n);
        for (int k = 0; k < coded[i].n; k++) {
            float got;
            memcpy(&got, x->data + (size_t)k * sizeof got, sizeof got);
            CHECK_REL(got, want[k], TOL_LORA);
        }
    }
    for (int i = 0; i < w.n; i++) CHECK(!strstr(w.t[i].name, "ampc."));
    trace_free(&w);
    void *a = read_codes(&c, s, &n[0]);
    c.api->close(s);
    s = open_threads(&c, 1);
    REQUIRE(c.api->load(s, file) == AMPC_OK);
    void *b = read_codes(&c, s, &n[1]);
    CHECK(n[0] == n[1] && !memcmp(a, b, n[0]));
    free(a);
    free(b);
    snprintf(words, sizeof words,
             "export '%s' --load wide.safetensors -o wide.onnx", c.path);
    check_ampc(0, "", words);
    c.api->close(s);
    plain.api->close(t);
    compiled_close(&c);
    compiled_close(&plain);
}

TEST_CASE(lora, int8_weights_leave_as_numbers) { run_widened("int8"); }
TEST_CASE(lora, nf4_weights_leave_as_numbers) { run_widened("nf4"); }

/* Weights that other ops read have no codes, as a note says. */
TEST_CASE(lora, what_has_no_codes) {
    static const char text[] =
        "model net(x: f32[4,64]) {\n"
        "  param w: f32[64,64] = normal(0.1)\n"
        "  return y = matmul(x, exp(w)) + Linear(x, units=64, scope=\"fc\")\n"
        "}\n";
    REQUIRE(test_write_file(test_tmp("exp.amp"), text, strlen(text)));
    check_ampc(0, "not stored in codes: 'w' is read by exp",
               "check exp.amp --lora fc --frozen-dtype int8" SMALL);
    check_ampc(0, "frozen fc.weight  i8[64,64]  --lora; int8 codes",
               "check exp.amp --lora fc --frozen-dtype int8" SMALL);
    check_ampc(2, "not one of bf16, int8, int4, nf4",
               "check exp.amp --frozen-dtype int3" SMALL);
    check_ampc(0, "frozen fc.weight  bf16[64,64]",
               "check exp.amp --freeze fc --frozen-dtype bf16" SMALL);
}
