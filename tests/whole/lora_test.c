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
#include "tests/whole/lora/lora.h"

const char lora_model[] =
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

ampc_session *lora_begin(const Compiled *c) {
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

double lora_step(const Compiled *c, ampc_session *s, int i) {
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
        strncmp(x->name, "conv", 4) ? lora_model : convolutions, options);
    ampc_session *s = lora_begin(&c);
    REQUIRE(numbers_of(x, "\nlosses -", want) == STEPS);
    for (int i = 0; i < STEPS; i++) loss[i] = (float)lora_step(&c, s, i);
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

/* With dropout before the adapters, steps differ from those without from the
   second on, since B begins as 0. A run that a checkpoint cuts in two ends
   with the same bits. */
TEST_CASE(lora, dropout_and_checkpoints) {
    Compiled with =
                 compile_text(lora_model, "--lora fc,dropout=0.5" LORA_SMALL),
             none = compile_text(lora_model, "--lora fc" LORA_SMALL);
    ampc_session *s = lora_begin(&with), *t = lora_begin(&none);
    CHECK(lora_step(&with, s, 0) == lora_step(&none, t, 0));
    lora_step(&with, s, 1), lora_step(&none, t, 1);
    CHECK(lora_step(&with, s, 2) != lora_step(&none, t, 2));
    none.api->close(t);
    REQUIRE(with.api->save(s, test_tmp("half.ckpt")) == AMPC_OK);
    t = open_threads(&with, 1);
    REQUIRE(with.api->resume(t, test_tmp("half.ckpt")) == AMPC_OK);
    lora_step(&with, s, 3), lora_step(&with, t, 3);
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
void lora_ampc(int status, const char *says, const char *words) {
    char *out;
    int rc = test_command(&out, "cd '%s' && '%s' %s", test_tmpdir(),
                          test_ampc(), words);
    CHECK_MSG(rc == status, "ampc %s: status %d\n%s", words, rc, out);
    CHECK_HAS(out, says);
    free(out);
}

/* A layer named by --train trains itself, without an adapter. */
TEST_CASE(lora, a_head_trains_itself) {
    REQUIRE(
        test_write_file(test_tmp("head.amp"), lora_model, strlen(lora_model)));
    lora_ampc(0, "'head.weight' trains itself",
              "check head.amp --lora '*' --train head" LORA_SMALL);
    lora_ampc(0, "param  head.weight ",
              "check head.amp --lora '*' --train head" LORA_SMALL);
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
        lora_ampc(2, bad[i].says, words);
    }
    lora_ampc(0, "without an adapter: 'table' is read by gather",
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
        snprintf(words, sizeof words, "check conv.amp %s" LORA_SMALL,
                 bad[i][0]);
        lora_ampc(2, bad[i][1], words);
    }
}
