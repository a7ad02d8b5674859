/* SPDX-License-Identifier: Apache-2.0 */
/* help.c: what --help, `ampc inspect` and messages say of options. */
#include <stdlib.h>
#include <string.h>

#include "frontend/cli/options_text.h"
#include "tests/frontend/options/options.h"
#include "tests/harness.h"

/* `ampc inspect` prints both; --dim is given twice. */
TEST_CASE(options, are_told) {
    static const struct {
        const char *set[6][2];
        const char *lines, *json;
    } rows[] = {
        {{{NULL}},
         "loss        auto\n"
         "optimizer   adamw, lr 0.001 constant\n"
         "precision   bf16, loss scale none\n",
         NULL},
        {{{"--batch-sizes", "1,64"}, {"--precision", "fp16"}},
         "loss        auto\n"
         "optimizer   adamw, lr 0.001 constant\n"
         "batch sizes 1, 64 (eval, predict)\n"
         "precision   fp16, loss scale dynamic\n",
         "\"batch_sizes\":[1,64],"},
        {{{"--dim", "T=4|8"}, {"--dim", "x:1=2|1"}, {"--pad", "x=0,t=-100"}},
         "loss        auto\n"
         "optimizer   adamw, lr 0.001 constant\n"
         "sizes       T 4, 8\n"
         "            x:1 1, 2\n"
         "precision   bf16, loss scale none\n",
         "\"dims\":{\"T\":[4,8],\"x:1\":[1,2]},\"pad\":{\"x\":0,\"t\":-100},"},
        {{{"--batch-sizes", "7"}, {"--loss", "none"}},
         "loss        none\n"
         "batch sizes 7 (eval, predict)\n"
         "precision   bf16, loss scale none\n",
         "\"batch_sizes\":[7],"},
        {{{"--loss", "mse:y\x1b"},
          {"--clip-norm", "2"},
          {"--clip-value", "0.5"},
          {"--accumulate", "4"},
          {"--loss-scale", "static=8"}},
         "loss        mse of y\\x1b\n"
         "optimizer   adamw, lr 0.001 constant, clip-norm 2, clip-value 0.5, "
         "4 micro-batches a step\n"
         "precision   bf16, loss scale static\n",
         "\"accumulate\":4,\"loss_scale\":\"static\""},
        {{{"--accumulate", "1"}, {"--top-k", "5"}, {"--seed", "3"}},
         "loss        auto\n"
         "optimizer   adamw, lr 0.001 constant\n"
         "precision   bf16, loss scale none\n",
         "\"seed\":3,\"shard_optimizer\":0,\"top_k\":5}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Arena *a = arena_new();
        Diag d = {0};
        Options o;
        StrBuf lines = {0}, json = {0};
        bool used;
        options_init(&o, a);
        for (int k = 0; k < 6 && rows[i].set[k][0]; k++)
            if (options_set(&o, &d, rows[i].set[k][0], rows[i].set[k][1],
                            &used) != OK)
                FAIL("%s", d.text.data);
        options_lines(&o, &lines);
        CHECK_STR(lines.data, rows[i].lines);
        options_json(&o, &json);
        if (rows[i].json) CHECK_HAS(json.data, rows[i].json);
        CHECK(rows[i].json || !strstr(json.data, "batch_sizes"));
        sb_free(&lines);
        sb_free(&json);
        sb_free(&d.text);
        arena_free(a);
    }
}

#define NAME "abcdefghijklmnopqrstuvwxyz_0123456789"

static bool has_word(const char *text, const char *word, size_t n) {
    for (const char *s = text; *s; s++)
        if (!strncmp(s, word, n) && !(s[n] && strchr(NAME, s[n])) &&
            (s == text || !strchr(NAME, s[-1])))
            return true;
    return false;
}

/* The other has every "key=" of the first; "k=v" stands for any. */
static void check_keys(const char *of, const char *in, const char *missing) {
    for (const char *s = of; (s = strchr(s, '=')); s++) {
        const char *from = s;
        while (from > of && strchr(NAME, from[-1])) from--;
        size_t n = (size_t)(s - from);
        CHECK_MSG(n < 2 || has_word(in, from, n), "%.*s= %s", (int)n, from,
                  missing);
    }
}

TEST_CASE(options, help_names_each_key) {
    char *help;
    StrBuf known = {0};
    REQUIRE(test_command(&help, "'%s' --help", test_ampc()) == 0);
    for (int i = 0; i < options_nsetting; i++)
        if (options_settings[i].value &&
            strcmp(options_settings[i].option, "--dim") != 0 &&
            strcmp(options_settings[i].option, "--optimizer") != 0 &&
            strcmp(options_settings[i].option, "--replace-head") != 0)
            sb_printf(&known, "%s\n", options_settings[i].value);
    check_keys(known.data, help, "is not in --help");
    check_keys(help, known.data, "is in --help only");
    sb_free(&known);
    free(help);
}

/* Appends the fields that the option's value sets, as text. */
static void dump_set(const char *option, const char *value, StrBuf *sb) {
    Arena *a = arena_new();
    Diag d = {0};
    Options o;
    bool used;
    options_init(&o, a);
    Status s = options_set(&o, &d, option, value, &used);
    CHECK_MSG(s == OK, "%s %s: %s", option, value, s == OK ? "" : d.text.data);
    options_dump(&o, sb);
    sb_free(&d.text);
    arena_free(a);
}

/* The help's text without the line breaks after commas. */
static void unwrap(char *text) {
    char *to = text;
    for (const char *from = text; *from;) {
        *to++ = *from++;
        if (to[-1] == ',' && *from == '\n') from += strspn(from, "\n ");
    }
    *to = 0;
}

/* Checks each "key=number" after "word," in the help. */
static int check_defaults(const char *help, const char *option,
                          const char *word, const char *needed) {
    char head[40];
    int n = 0;
    snprintf(head, sizeof head, " %s,", word);
    const char *at = strstr(help, head);
    for (at = at ? at + strlen(head) : ""; *at && !strchr(" ;.\n", *at);) {
        size_t size = strcspn(at, ",; \n"), key = strcspn(at, "=");
        if (key < size && strchr("-0123456789", at[key + 1])) {
            StrBuf plain = {0}, given = {0}, want = {0}, got = {0};
            sb_printf(&plain, "%s%s", word, needed);
            sb_printf(&given, "%s,%.*s", plain.data, (int)size, at);
            dump_set(option, plain.data, &want);
            dump_set(option, given.data, &got);
            CHECK_STR(got.data, want.data);
            n++;
            sb_free(&plain);
            sb_free(&given);
            sb_free(&want);
            sb_free(&got);
        }
        at += size + (at[size] == ',');
    }
    return n;
}

TEST_CASE(options, help_tells_the_defaults_of_keys) {
    static const struct {
        const char *option, *word, *needed;
        int keys;
    } rows[] = {{"--loss", "cross_entropy", "", 2},
                {"--loss", "nll", "", 1},
                {"--loss", "huber", "", 1},
                {"--loss-scale", "dynamic", "", 7},
                {"--lr-schedule", "cosine", ",total=9", 1},
                {"--lr-schedule", "linear", ",total=9", 1},
                {"--lr-schedule", "step", ",every=3", 1}};
    char *help;
    REQUIRE(test_command(&help, "'%s' --help", test_ampc()) == 0);
    unwrap(help);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int n =
            check_defaults(help, rows[i].option, rows[i].word, rows[i].needed);
        CHECK_MSG(n >= rows[i].keys, "%s %s: %d defaults in the help",
                  rows[i].option, rows[i].word, n);
    }
    free(help);
}

/* Options of other trainers get a message with the option to use here. */
TEST_CASE(options, words_from_elsewhere_are_known) {
    static const char *const rows[][2] = {{"--amp", "--precision"},
                                          {"--batch-size", "--dim NAME=N"},
                                          {"--bf16", "--precision bf16"},
                                          {"--device", "ampc run has --device"},
                                          {"--epochs", "ampc run"},
                                          {"--feed", "ampc run"},
                                          {"--fp16", "--precision fp16"},
                                          {"--learning-rate", "lr=X"},
                                          {"--lr", "ampc run has --lr"},
                                          {"--momentum", "momentum=X"},
                                          {"--output", "-o OUT.so"},
                                          {"--steps", "--steps N"},
                                          {"--weight-decay", "weight_decay=X"},
                                          {"--nothing", "see ampc --help"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Diag d = {0};
        CHECK_EQ_INT(options_try(rows[i][0], "1", &d), ERR_USAGE);
        CHECK_HAS(d.text.data, rows[i][1]);
        sb_free(&d.text);
    }
}
