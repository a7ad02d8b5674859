/* SPDX-License-Identifier: Apache-2.0 */
/* recipes_test.c: the recipes in models/recipes, compared with PyTorch over
   five steps (recipes.txt, which models/recipes/record.py recorded in f64). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/tolerance.h"

enum { STEPS = 5, MAX_IN = 6, LINES = 80 };

typedef struct Case {
    char name[64], options[200];
    const char *lines; /* behind its own */
} Case;

static unsigned sum_of(const char *name) {
    unsigned n = 0;
    while (*name) n += (unsigned char)*name++;
    return n;
}

static uint64_t draw(uint64_t *state) {
    for (int k = 0; k < 3; k++)
        *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 40;
}

/* In [-1, 1) */
static float drawn(uint64_t *state) {
    return (float)((double)draw(state) / (1 << 23) - 1);
}

/* Sum of the sizes of the named weights of the model. */
static void fill_weights(const Compiled *c, ampc_session *s) {
    ampc_variable_info v = {.size = sizeof v};
    for (uint32_t i = 0; c->api->variable(c->api->module, i, &v) == AMPC_OK;
         i++) {
        size_t n = v.bytes / sizeof(float);
        if (v.kind != AMPC_KIND_PARAMETER && v.kind != AMPC_KIND_FROZEN)
            continue;
        REQUIRE(v.dtype == AMPC_DTYPE_F32);
        float *p = malloc(v.bytes);
        uint64_t state = 7 + sum_of(v.name);
        for (size_t k = 0; k < n; k++) p[k] = drawn(&state) / 4;
        write_var(c, s, v.name, p, v.bytes, AMPC_DTYPE_F32);
        free(p);
    }
}

/* The line that begins with the text; NULL: the case has none. */
static const char *line_of(const Case *x, const char *head) {
    const char *end = strstr(x->lines, "\ncase "), *p = strstr(x->lines, head);
    return p && (!end || p < end) ? p + strlen(head) : NULL;
}

static void fill_input(const Case *x, const ampc_tensor_info *t, int step,
                       void *to) {
    char head[100];
    uint64_t state = 77 + 131 * (uint64_t)step + sum_of(t->name);
    bool whole = t->dtype == AMPC_DTYPE_I64;
    snprintf(head, sizeof head, "\nbelow %s ", t->name);
    const char *below = line_of(x, head);
    REQUIRE(below || !whole);
    uint64_t bound = below ? strtoul(below, NULL, 10) : 0;
    for (size_t i = 0; i < t->bytes / (whole ? 8 : 4); i++)
        if (whole)
            ((int64_t *)to)[i] = (int64_t)(draw(&state) % bound);
        else if (below)
            ((float *)to)[i] = (float)(draw(&state) % bound);
        else
            ((float *)to)[i] = drawn(&state);
}

static double step(const Case *x, const Compiled *c, ampc_session *s, int i,
                   const char *objective) {
    char program[40];
    ampc_input in[MAX_IN];
    void *data[MAX_IN];
    ampc_tensor_info t = {.size = sizeof t};
    size_t n = 0;
    snprintf(program, sizeof program, "train%s%.20s", *objective ? ":" : "",
             objective);
    REQUIRE(c->api->objective(s, objective) == AMPC_OK);
    for (; c->api->input(c->api->module, program, (uint32_t)n, &t) == AMPC_OK;
         n++) {
        REQUIRE(n < MAX_IN);
        data[n] = malloc(t.bytes);
        fill_input(x, &t, i, data[n]);
        in[n] = ampc_in(t.name, data[n], t.bytes, (ampc_dtype)t.dtype);
    }
    double loss = step_ok(c, s, in, n).loss;
    while (n-- > 0) free(data[n]);
    return loss;
}

static void file_of(const Case *x, char file[120]) {
    snprintf(file, 120, "models/recipes/%.63s.amp", x->name);
}

static void run(void *arg) {
    const Case *x = arg;
    char options[300], file[120];
    snprintf(options, sizeof options,
             "%s --precision fp32 --target cpu:x86-64-v2", x->options);
    file_of(x, file);
    Compiled c = compile_file(test_data_path(file), options);
    ampc_session *s = open_threads(&c, 1);
    const char *p = line_of(x, "\nlosses");
    REQUIRE(p);
    fill_weights(&c, s);
    const char *part;
    for (uint32_t i = 0, k = 0; i < STEPS; i += !part) {
        char *end;
        part = c.api->objective_name(c.api->module, k);
        k = part ? k + 1 : 0;
        if (!part) continue;
        double want = strtod(p, &end), got = step(x, &c, s, (int)i, part);
        REQUIRE(end > p);
        p = end;
        CHECK_MSG(fabs(got - want) <= TOL_RECIPE * fmax(1, fabs(want)),
                  "%s: loss %u is %.9g, not %.9g", x->name, i, got, want);
    }
    c.api->close(s);
    compiled_close(&c);
}

enum { MAX_CASES = 40 };
static Case cases[MAX_CASES];
static int ncases;

static void read_cases(void) {
    size_t size;
    const char *p =
        test_read_file(test_data_path("tests/models/recipes.txt"), &size);
    while (ncases < MAX_CASES && (p = strstr(p, "\ncase "))) {
        Case *x = &cases[ncases++];
        REQUIRE(sscanf(p, "\ncase %63s %199[^\n]", x->name, x->options) == 2);
        p += 6;
        x->lines = strchr(p, '\n');
        harness_register("recipes", x->name, run, x);
    }
    REQUIRE(ncases > 0 && ncases < MAX_CASES);
}
TEST_REGISTRAR(read_cases);

/* Recipes are short, as docs/guide/recipes.md promises. */
TEST_CASE(recipes, have_at_most_80_lines) {
    for (int i = 0; i < ncases; i++) {
        char file[120];
        size_t n, lines = 0;
        file_of(&cases[i], file);
        char *text = test_read_file(test_data_path(file), &n);
        REQUIRE(text);
        for (size_t k = 0; k < n; k++) lines += text[k] == '\n';
        CHECK_MSG(lines <= LINES, "%s has %zu lines", file, lines);
        free(text);
    }
}
