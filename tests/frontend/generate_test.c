/* SPDX-License-Identifier: Apache-2.0 */
/* generate_test.c: text from language models.  Random choices are compared
   with their probabilities, and texts with models whose next token is known. */
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/run/sample.h"
#include "runtime/ampc.h"
#include "tests/harness.h"
#include "tests/tolerance.h"

/* ---- draws --------------------------------------------------------------- */

enum { N = 6, DRAWS = 60000 };

static const double logits[N] = {0.5, -1, 2, 2, -3, 1};

static Sampling sampling(const char *text) {
    Arena *a = arena_new();
    Diag d = {0};
    Sampling s;
    if (sampling_read(a, &d, text, &s) != OK) FAIL("%s", d.text.data);
    arena_free(a);
    return s;
}

/* The share of u in [0, 1) that selects each token equals its probability. */
static void check_shares(const char *text, double temperature,
                         const bool kept[N]) {
    Sampling s = sampling(text);
    double sum = 0;
    int count[N] = {0};
    for (int i = 0; i < N; i++) sum += kept[i] * exp(logits[i] / temperature);
    for (int k = 0; k < DRAWS; k++) {
        int64_t order[N];
        count[sampling_pick(&s, logits, N, (k + 0.5) / DRAWS, order)]++;
    }
    for (int i = 0; i < N; i++)
        CHECK_NEAR(count[i] / (double)DRAWS,
                   kept[i] * exp(logits[i] / temperature) / sum, 1e-4);
}

TEST_CASE(sample, draws_have_their_probabilities) {
    static const bool all[N] = {1, 1, 1, 1, 1, 1},
                      three[N] = {0, 0, 1, 1, 0, 1}, two[N] = {0, 0, 1, 1};
    check_shares("temperature=1", 1, all);
    check_shares("temperature=0.5", 0.5, all);
    check_shares("top_k=3", 1, three);
    check_shares("top_k=100,temperature=2", 2, all);
    check_shares("top_p=0.75", 1, two); /* 0.378 + 0.378 */
    check_shares("top_p=0.76", 1, three);
    check_shares("top_k=3,top_p=0.8", 1, two); /* 0.42 for the three together */
}

TEST_CASE(sample, temperature_0_takes_the_first_of_the_largest) {
    Sampling s = sampling("temperature=0,top_k=2");
    int64_t order[N];
    for (int k = 0; k < 10; k++)
        CHECK_EQ_INT(sampling_pick(&s, logits, N, k / 10.0, order), 2);
}

static void refused(const char *text, const char *why) {
    Arena *a = arena_new();
    Diag d = {0};
    Sampling s;
    CHECK_EQ_INT(sampling_read(a, &d, text, &s), ERR_USAGE);
    CHECK_HAS(d.text.data, why);
    sb_free(&d.text);
    arena_free(a);
}

TEST_CASE(sample, mistakes_are_named) {
    refused("temprature=1", "did you mean 'temperature'?");
    refused("top_k=0", "'top_k' takes a whole number from 1 to 1e+09, not '0'");
    refused("top_k=1.5", "whole number");
    refused("top_p=nan", "'top_p' takes a number");
    refused("tokens", "'tokens' has no value");
}

/* ---- models -------------------------------------------------------------- */

/* The next token is the number of ones so far, modulo V, whatever follows in
   the window: logits are minus the squared distance from it. */
static const char causal[] =
    "dim B = 2, T = 8, V = 128\n"
    "model m(tokens: i64[B,T]) {\n"
    "  n = cast(tokens, f32) + 1\n"
    "  d = expand(reshape(n, shape=[B,T,1]), shape=[B,T,V]) -\n"
    "      iota(axis=2, shape=[B,T,V], dtype=f32)\n"
    "  return logits = -(d * d)\n"
    "}\n";

static const char cyclic[] = /* not causal: adds the last token's number */
    "dim B = 1, T = 8, V = 128\n"
    "model m(tokens: i64[B,T]) {\n"
    "  n = cast(tokens, f32) + 1\n"
    "  n = n + slice(n, starts=[0,7], sizes=[B,1], steps=[1,1])\n"
    "  d = expand(reshape(n, shape=[B,T,1]), shape=[B,T,V]) -\n"
    "      iota(axis=2, shape=[B,T,V], dtype=f32)\n"
    "  return logits = -(d * d)\n"
    "}\n";

/* Input names of exporters; position and mask are used, too. */
static const char exported[] =
    "dim B = 1, T = 8, V = 300\n"
    "model m(input_ids: i64[B,T], attention_mask: i64[B,T],\n"
    "        position_ids: i64[B,T]) {\n"
    "  n = cast(input_ids + position_ids * attention_mask, f32)\n"
    "  d = expand(reshape(n, shape=[B,T,1]), shape=[B,T,V]) -\n"
    "      iota(axis=2, shape=[B,T,V], dtype=f32)\n"
    "  return logits = -(d * d)\n"
    "}\n";

static void check_says(int status, const char *text, const char *words,
                       const char *says) {
    char *out;
    REQUIRE(test_write_file(test_tmp("m.amp"), text, strlen(text)));
    int rc = test_command(
        &out,
        "cd '%s' && AMPC_LIBNVRTC=none '%s' m.amp -o m.so --loss none "
        "--precision fp32 --target cpu:x86-64-v2 2>&1 && "
        "'%s' run m.so --device cpu %s 2>&1",
        test_tmpdir(), test_ampc(), test_ampc(), words);
    CHECK_MSG(rc == status, "run %s: status %d\n%s", words, rc, out);
    CHECK_HAS(out, says);
    free(out);
}

TEST_CASE(generate, a_causal_model_goes_on) {
    check_says(0, causal, "--generate 012 --sample temperature=0,tokens=12",
               "0123456789:;<=>\n");
    check_says(0, causal, "--generate 012 --sample tokens=3",
               "each computes all 8 positions again, as no keys and values are "
               "kept, and a batch of 2 (compile with --batch-sizes 1)");
    check_says(1, causal, "--generate \"a$(printf '\\351')\"",
               "the model has no token for '");
    check_says(1, causal, "--generate ''", "the prompt is empty");
    check_says(2, causal, "--sample tokens=3",
               "--sample says how to generate: '--generate'");
    check_says(2, causal, "--generate 012 --feed x=y.csv",
               "--generate alone reads no data: '--feed'");
}

/* 100, then 100 + position, until the window moves. */
TEST_CASE(generate, inputs_of_exporters_are_known) {
    check_says(0, exported,
               "--generate 100,100 --sample temperature=0,tokens=4",
               "100 100 101 103 106 110 \n");
    check_says(1, exported, "--generate hello", "the prompt is token numbers");
}

TEST_CASE(generate, a_vocabulary_names_tokens) {
    char words[128 * 8] = "", *end = words;
    for (int i = 0; i < 128; i++)
        end += sprintf(end, i == 5 ? "\\n\n" : i == 4 ? "ab\n" : "<%d>\n", i);
    REQUIRE(test_write_file(test_tmp("v"), words, (size_t)(end - words)));
    check_says(0, causal,
               "--generate '<2><3>' --sample "
               "temperature=0,tokens=3 --vocabulary v",
               "<2><3>ab\n<6>\n");
    check_says(1, causal, "--generate '<2>x' --vocabulary v",
               "no token of the vocabulary begins 'x'");
    check_says(1, exported, "--generate '<2>' --vocabulary v",
               "has 128 tokens, a line each; the model has 300");
}

TEST_CASE(generate, what_is_not_causal_is_refused) {
    check_says(1, cyclic, "--generate abc",
               "the model is not causal: what stands behind position 2");
}

/* ---- keys and values kept ------------------------------------------------ */

#define HEAD                                                                   \
    "dim B = 2, T = 24, D = 16, V = 128\n"                                     \
    "def body(x) -> y { y = x + Linear(gelu(Linear(LayerNorm(x), units=32)), " \
    "units=16, scope=\"out\") }\n"

/* A table of positions, fused projections and the layer of the library. */
static const char with_table[] =
    HEAD "model m(tokens: i64[B,T]) {\n"
         "  param places: f32[T,D] = normal(1)\n"
         "  x = Embedding(tokens, size=V, width=D, std=1) + places\n"
         "  x = body(x + Attention(LayerNorm(x, scope=\"n\"), heads=4, "
         "causal=true), scope=\"a\")\n"
         "  x = body(x + Attention(x, heads=2, causal=true, scope=\"c\"), "
         "scope=\"b\")\n"
         "  return logits = Linear(x, units=V, scope=\"head\")\n"
         "}\n";

/* Angles by position, heads that share keys, a window of keys. */
static const char rotary[] = HEAD
    "model m(tokens: i64[B,T]) {\n"
    "  x = Embedding(tokens, size=V, width=D, std=1)\n"
    "  t = iota(shape=[1,T,2], axis=1, dtype=f32)\n"
    "  c = cos(t * 0.3)\n"
    "  s = sin(t * 0.3)\n"
    "  q = rotary_embedding(Linear(x, units=D, scope=\"q\"), c, s, "
    "heads=4)\n"
    "  k = rotary_embedding(Linear(x, units=8, scope=\"k\"), c, s, "
    "heads=2)\n"
    "  v = Linear(x, units=8, scope=\"v\")\n"
    "  x = body(x + attention(q, k, v, q_heads=4, kv_heads=2, causal=true, "
    "left=6))\n"
    "  return logits = Linear(x, units=V, scope=\"head\")\n"
    "}\n";

/* Scores written out, samples and positions in one axis, and the inputs that
   exporters write. */
static const char written_out[] =
    HEAD "model m(input_ids: i64[B,T], attention_mask: i64[B,T],\n"
         "        position_ids: i64[B,T]) {\n"
         "  param places: f32[T,D] = normal(1)\n"
         "  x = Embedding(input_ids, size=V, width=D, std=1) +\n"
         "      gather(places, position_ids, axis=0)\n"
         "  q, k, v = split(Linear(x, units=3 * D, scope=\"qkv\"), axis=2, "
         "sizes=[D,D,D])\n"
         "  i = iota(shape=[T,T], axis=0, dtype=i32)\n"
         "  j = iota(shape=[T,T], axis=1, dtype=i32)\n"
         "  hide = (1 - cast(attention_mask, f32)) * -10000\n"
         "  s = matmul(q, transpose(k, perm=[0,2,1])) * 0.25\n"
         "  s = s + where(j <= i, 0, -10000) + reshape(hide, shape=[B,1,T])\n"
         "  x = x + matmul(softmax(s, axis=2), v)\n"
         "  flat = body(reshape(x, shape=[B * T, D]))\n"
         "  y = Linear(flat, units=V, scope=\"head\")\n"
         "  return logits = reshape(y, shape=[B,T,V])\n"
         "}\n";

static char *in_folder(const char *words, int status) {
    char *out;
    int rc = test_command(&out, "cd '%s' && export AMPC_LIBNVRTC=none && %s",
                          test_tmpdir(), words);
    CHECK_MSG(rc == status, "%s: status %d\n%s", words, rc, out);
    return out;
}

static void compile_decoder(const char *text, const char *options, int status,
                            const char *says) {
    char words[9000];
    REQUIRE(test_write_file(test_tmp("m.amp"), text, strlen(text)));
    snprintf(words, sizeof words,
             "'%s' m.amp -o m.so --loss none --target cpu:x86-64-v2 %s 2>&1 && "
             "'%s' export m.so --module --decode -o step.so 2>&1",
             test_ampc(), options, test_ampc());
    char *out = in_folder(words, status);
    CHECK_HAS(out, says);
    free(out);
}

static char *generated(const char *module, const char *sample) {
    char words[4600];
    snprintf(words, sizeof words,
             "'%s' run %s --device cpu --generate 'a model' --sample %s "
             "2> told; rc=$?; cat told; exit $rc",
             test_ampc(), module, sample);
    return in_folder(words, 0);
}

/* The first line, without what follows of the times. */
static char *text_of(char *told) {
    told[strcspn(told, "\n")] = 0;
    return told;
}

static void check_same_text(const char *text, const char *options) {
    compile_decoder(text, options, 0, "");
    for (int seed = 1; seed < 3; seed++) {
        char sample[80];
        snprintf(sample, sizeof sample, "tokens=17,seed=%d", seed);
        char *whole = generated("m.so", sample);
        char *kept = generated("step.so", sample);
        CHECK_HAS(whole, "ampc export --module --decode makes a module");
        CHECK_HAS(kept, "keys and values of earlier positions are kept");
        CHECK_STR(text_of(kept), text_of(whole));
        free(whole);
        free(kept);
    }
}

TEST_CASE(decode, the_text_is_that_of_the_whole_window) {
    check_same_text(with_table, "--precision fp32");
    check_same_text(rotary, "--precision fp32 --batch-sizes 1");
    check_same_text(written_out, "--precision fp32");
}

enum { T = 24, V = 128 };

static ampc_session *opened(const char *name, const ampc_api **api,
                            void **lib) {
    char err[300];
    ampc_session *s = NULL;
    ampc_options o = {.size = sizeof o, .device = "cpu", .threads = 1};
    *api = ampc_load(test_tmp(name), lib, err, sizeof err);
    if (!*api || (*api)->open((*api)->module, &o, &s, err, sizeof err))
        FAIL("%s: %s", name, err);
    return s;
}

/* The logits [2,n,V] of n tokens, the same in both samples; at: the position of
   the first, for a module that keeps the earlier ones. */
static void logits_of(const ampc_api *api, ampc_session *s,
                      const int64_t *tokens, size_t n, const int64_t *at,
                      float *out) {
    int64_t both[2 * T];
    memcpy(both, tokens, n * sizeof *tokens);
    memcpy(both + n, tokens, n * sizeof *tokens);
    ampc_input in[] = {
        ampc_in("tokens", both, 2 * n * sizeof *both, AMPC_DTYPE_I64),
        ampc_in("position", at, sizeof *at, AMPC_DTYPE_I64)};
    ampc_output got = {.size = sizeof got,
                       .name = "logits",
                       .data = out,
                       .bytes = 2 * n * V * sizeof *out,
                       .dtype = AMPC_DTYPE_F32};
    if (api->predict(s, in, at ? 2 : 1, 2, &got, 1)) FAIL("%s", api->error(s));
}

static void check_near_the_whole_window(const char *text) {
    static float whole[2 * T * V], kept[2 * V];
    const ampc_api *api[2];
    void *lib[2];
    int64_t tokens[T];
    double largest = 0, worst = 0;
    compile_decoder(text, "--precision bf16", 0, "");
    ampc_session *all = opened("m.so", &api[0], &lib[0]);
    ampc_session *one = opened("step.so", &api[1], &lib[1]);
    for (int i = 0; i < T; i++) tokens[i] = (i * 37 + 11) % V;
    logits_of(api[0], all, tokens, T, NULL, whole);
    for (int64_t i = 0; i < T; i++) {
        logits_of(api[1], one, tokens + i, 1, &i, kept);
        for (int v = 0; v < V; v++) {
            double want = whole[i * V + v];
            largest = fmax(largest, fabs(want));
            worst = fmax(worst, fabs(kept[v] - want));
        }
    }
    CHECK_MSG(worst <= TOL_DECODE_BF16 * largest, "%g of %g", worst, largest);
    api[0]->close(all);
    api[1]->close(one);
    for (int i = 0; i < 2; i++) dlclose(lib[i]);
}

TEST_CASE(decode, bf16_is_near_the_whole_window) {
#ifdef __SANITIZE_ADDRESS__
    SKIP("instrumented modules load into instrumented programs only");
#endif
    check_near_the_whole_window(with_table);
    check_near_the_whole_window(rotary);
}

TEST_CASE(decode, positions_are_limited) {
    compile_decoder(with_table, "--precision bf16", 0, "");
    char words[4200];
    snprintf(words, sizeof words,
             "'%s' run step.so --generate 'a model' --sample tokens=19 2>&1",
             test_ampc());
    char *out = in_folder(words, 1);
    CHECK_HAS(out, "the module keeps 24 tokens: behind this prompt --sample "
                   "tokens=18 is the most");
    free(out);
    free(generated("step.so", "tokens=18"));
}

TEST_CASE(decode, what_reads_later_positions_is_refused) {
    char text[2048];
    compile_decoder(cyclic, "", 1, "combines positions of the text");
    snprintf(text, sizeof text, "%s", with_table);
    memcpy(strstr(text, "causal=true"), "bias=true  ", 11);
    compile_decoder(text, "", 1, "reads later positions: neither causal nor");
    compile_decoder("model m(x: f32[2,3]) { return y = relu(x) }\n", "", 1,
                    "the model has no input of tokens");
}
