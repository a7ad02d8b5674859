/* SPDX-License-Identifier: Apache-2.0 */
/* options.c: every option of `ampc run` sets its field and no other. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "frontend/run/run_cmd.h"
#include "tests/harness.h"

typedef enum Kind {
    OF_FLAG,
    OF_TEXT,
    OF_FILE,
    OF_COUNT,
    OF_PERIOD,
    OF_RATE,
    OF_LIST,
    OF_PAIRS
} Kind;

typedef struct Row {
    const char *flag, *field;
    Kind kind;
    size_t at, size;
    int64_t least;
} Row;

static const Row rows[] = {
#define RUN(flag, kind, field, least, value, preset, text)                     \
    {flag,                                                                     \
     #field,                                                                   \
     OF_##kind,                                                                \
     offsetof(RunOptions, field),                                              \
     sizeof(((RunOptions *)0)->field),                                         \
     least},
#include "frontend/cli/options.def"
};
enum { ROWS = sizeof rows / sizeof *rows };

/* Whether the value is taken; NULL: there is none. */
static bool takes(RunOptions *o, const Row *r, const char *value) {
    char *argv[] = {(char *)r->flag, (char *)value};
    Diag d = {0};
    int used = -1;
    Status s = run_arg(o, &d, argv, value ? 2 : 1, &used);
    if (s == OK) CHECK_EQ_INT(used, r->kind == OF_FLAG ? 1 : 2);
    if (s != OK && CHECK_MSG(d.text.data, "%s: no message", r->flag))
        CHECK_HAS(d.text.data, r->flag);
    sb_free(&d.text);
    return s == OK;
}

/* The number of a value, of the n-th option: each has another one. */
static void value_of(const Row *r, int n, char *to, size_t size) {
    static const char *const form[] = {
        [OF_FLAG] = "%d",  [OF_TEXT] = "w%d",   [OF_FILE] = "f%d",
        [OF_COUNT] = "%d", [OF_PERIOD] = "%dm", [OF_RATE] = "%d",
        [OF_LIST] = "l%d", [OF_PAIRS] = "a=%d"};
    snprintf(to, size, form[r->kind], n);
}

static void check_field(const RunOptions *o, const Row *r, const char *value,
                        int n, int times) {
    const void *field = (const char *)o + r->at;
    const RunList *list = field;
    bool is = false;
    switch (r->kind) {
    case OF_FLAG: is = *(const bool *)field; break;
    case OF_TEXT:
    case OF_FILE: is = *(const char *const *)field == value; break;
    case OF_COUNT: is = *(const int64_t *)field == n; break;
    case OF_RATE: is = *(const double *)field == n; break;
    case OF_PERIOD:
        is = ((const RunPeriod *)field)->seconds == 60 * n &&
             !((const RunPeriod *)field)->steps;
        break;
    case OF_LIST:
    case OF_PAIRS: is = list->n == times && list->at[times - 1] == value; break;
    }
    CHECK_MSG(is, "%s %s does not set %s", r->flag, value, r->field);
}

/* The field has the option's name. A later value replaces an earlier one, or
   stands behind it. */
TEST_CASE(run_options, each_sets_its_field_and_no_other) {
    for (int i = 0; i < ROWS; i++) {
        const Row *r = &rows[i];
        RunOptions none, o;
        char value[2][20], name[60];
        run_options_init(&none);
        run_options_init(&o);
        for (int k = 0; k < 2; k++) {
            value_of(r, 10 + i + 50 * k, value[k], sizeof value[k]);
            CHECK_MSG(takes(&o, r, r->kind == OF_FLAG ? NULL : value[k]),
                      "%s %s is refused", r->flag, value[k]);
            check_field(&o, r, value[k], 10 + i + 50 * k, k + 1);
        }
        CHECK_MSG(!memcmp(&o, &none, r->at) &&
                      !memcmp((char *)&o + r->at + r->size,
                              (char *)&none + r->at + r->size,
                              sizeof o - r->at - r->size),
                  "%s sets more than %s", r->flag, r->field);
        snprintf(name, sizeof name, "%s", r->flag + 2);
        for (char *p = name; *p; p++)
            if (*p == '-') *p = '_';
        CHECK_MSG(!strcmp(name, r->field) || strstr(name, r->field),
                  "%s sets %s", r->flag, r->field);
    }
}

TEST_CASE(run_options, numbers_are_whole_and_in_range) {
    static const char *const no_number[] = {
        "", " ", "x", "1x", "99999999999999999999", "nan", "inf", "1e999"};
    for (int i = 0; i < ROWS; i++) {
        const Row *r = &rows[i];
        RunOptions o;
        char least[30];
        run_options_init(&o);
        bool number =
            r->kind == OF_COUNT || r->kind == OF_RATE || r->kind == OF_PERIOD;
        for (size_t k = 0; number && k < sizeof no_number / sizeof *no_number;
             k++)
            if (r->kind != OF_RATE || k != 4)
                CHECK_MSG(!takes(&o, r, no_number[k]), "%s '%s' is taken",
                          r->flag, no_number[k]);
        for (int k = 0; number && k < 2; k++) {
            snprintf(least, sizeof least, "%lld", (long long)r->least - 1 + k);
            CHECK_MSG(takes(&o, r, least) == (k == 1), "%s %s", r->flag, least);
        }
        if (r->kind != OF_FLAG)
            CHECK_MSG(!takes(&o, r, NULL), "%s without a value", r->flag);
    }
}

TEST_CASE(run_options, periods_have_units) {
    static const struct {
        const char *value;
        int64_t steps;
        double seconds; /* both 0: refused */
    } of[] = {{"1", 1, 0},      {"70", 70, 0}, {"5s", 0, 5},   {"2m", 0, 120},
              {"3h", 0, 10800}, {"0", 0, 0},   {"0s", 0, 0},   {"s", 0, 0},
              {"5d", 0, 0},     {"-1m", 0, 0}, {"1.5h", 0, 0}, {"5 s", 0, 0}};
    for (int i = 0; i < ROWS; i++)
        for (size_t k = 0;
             rows[i].kind == OF_PERIOD && k < sizeof of / sizeof *of; k++) {
            RunOptions o;
            run_options_init(&o);
            const RunPeriod *p = (const void *)((char *)&o + rows[i].at);
            bool taken = takes(&o, &rows[i], of[k].value);
            CHECK_MSG(taken == (of[k].steps || of[k].seconds > 0), "%s %s",
                      rows[i].flag, of[k].value);
            if (taken)
                CHECK_MSG(p->steps == of[k].steps &&
                              p->seconds == of[k].seconds,
                          "%s %s: %lld steps, %g s", rows[i].flag, of[k].value,
                          (long long)p->steps, p->seconds);
        }
}

TEST_CASE(run_options, lists_end) {
    for (int i = 0; i < ROWS; i++) {
        const Row *r = &rows[i];
        RunOptions o;
        if (r->kind != OF_LIST && r->kind != OF_PAIRS) continue;
        run_options_init(&o);
        if (r->kind == OF_PAIRS)
            CHECK_MSG(!takes(&o, r, "a"), "%s a: without =", r->flag);
        for (int k = 0; k <= RUN_MAX_LIST; k++)
            CHECK_MSG(takes(&o, r, "a=b") == (k < RUN_MAX_LIST), "%s: %d",
                      r->flag, k + 1);
    }
}

/* The first text is taken, the second is not. */
TEST_CASE(run_options, keys_of_a_plateau) {
    static const char *const pairs[][2] = {
        {"factor=0", "factor=-1e-9"},
        {"factor=0.999999", "factor=1"},
        {"patience=0", "patience=-1"},
        {"patience=1e9", "patience=1.1e9"},
        {"threshold=0.999999", "threshold=1"},
        {"threshold=0", "threshold=nan"},
        {"min_lr=1e30", "min_lr=1e31"},
        {"min_lr=1e-5", "min_lr="},
        {"factor=0.5,patience=2", "factor=0.5;patience=2"},
        {"factor=0.5", "factor=0.5x"},
        {"patience=2,factor=0.5,min_lr=0,threshold=0", "patience 2"},
        {"", "lr=1"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (int k = 0; k < 2; k++) {
            Diag d = {0};
            CHECK_MSG((plateau_check(&d, pairs[i][k]) == OK) == !k, "'%s': %s",
                      pairs[i][k], d.text.data ? d.text.data : "taken");
            if (k) CHECK_HAS(d.text.data, pairs[i][1]);
            sb_free(&d.text);
        }
}
