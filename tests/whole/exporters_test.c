/* SPDX-License-Identifier: Apache-2.0 */
/* exporters_test.c: files of each exporter, trained for 5 steps beside what
   the framework's own model became (models/exporters.py, which says what a
   line of tests/exporters/NAME.txt means).                                  */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/compiled.h"
#include "tests/tolerance.h"

enum { MOST = 4 };

typedef struct Case {
    char path[512], name[128], options[256]; /* path: of the model */
    ampc_input in[MOST];
    int nin;
} Case;

/* The next word of a line. */
static const char *word(char **rest) {
    const char *w = strtok_r(NULL, " ", rest);
    if (!w) FAIL("a line is too short");
    return w;
}

static int numbers(char **rest, double *v, int most) {
    int n = 0;
    for (const char *w; n < most && (w = strtok_r(NULL, " ", rest));)
        v[n++] = atof(w);
    return n;
}

enum { NUMBERS = 4096 };

/* NAME DTYPE DIMS VALUES.. */
static void read_input(Case *c, char **rest) {
    double *v = malloc(NUMBERS * sizeof *v);
    char *name = strdup(word(rest));
    bool ints = strcmp(word(rest), "i64") == 0;
    (void)word(rest);
    int n = numbers(rest, v, NUMBERS);
    size_t bytes = (size_t)n * (ints ? sizeof(int64_t) : sizeof(float));
    void *data = malloc(bytes);
    for (int i = 0; i < n; i++) {
        if (ints) ((int64_t *)data)[i] = (int64_t)v[i];
        if (!ints) ((float *)data)[i] = (float)v[i];
    }
    REQUIRE(c->nin < MOST);
    c->in[c->nin++] =
        ampc_in(name, data, bytes, ints ? AMPC_DTYPE_I64 : AMPC_DTYPE_F32);
    free(v);
}

static void forget(Case *c) {
    for (int i = 0; i < c->nin; i++) {
        free((void *)(uintptr_t)c->in[i].name);
        free((void *)(uintptr_t)c->in[i].data);
    }
    c->nin = 0;
}

static void check_refused(const Case *c, const char *why) {
    char *text = NULL;
    int rc = test_command(&text, "'%s' check '%s' %s", test_ampc(), c->path,
                          c->options);
    CHECK_MSG(rc != 0, "it is taken");
    CHECK_MSG(strstr(text, why) != NULL, "%s", text);
    free(text);
}

static void check_losses(const Case *c, const Compiled *m, ampc_session *s,
                         char **rest) {
    double want[16];
    int n = numbers(rest, want, 16);
    for (int i = 0; i < n; i++) {
        double got = step_ok(m, s, c->in, (size_t)c->nin).loss;
        CHECK_MSG(fabs(got - want[i]) <= TOL_EXPORTERS * (1 + fabs(want[i])),
                  "step %d: loss %.9g, not %.9g", i, got, want[i]);
    }
}

/* The kind of a variable; -1: there is none of that name. */
static int kind_of(const Compiled *m, const char *name) {
    ampc_module_info info = {.size = sizeof info};
    REQUIRE(!m->api->describe(m->api->module, &info));
    for (uint32_t i = 0; i < info.nvariable; i++) {
        ampc_variable_info v = {.size = sizeof v};
        REQUIRE(!m->api->variable(m->api->module, i, &v));
        if (!strcmp(v.name, name)) return v.kind;
    }
    return -1;
}

/* A statistic that nothing updates may be frozen. */
static void check_values(const Compiled *m, ampc_session *s, int kind,
                         char **rest) {
    static double want[NUMBERS];
    static float got[NUMBERS];
    const char *name = word(rest);
    int n = numbers(rest, want, NUMBERS), found = kind_of(m, name);
    bool frozen = kind == AMPC_KIND_BUFFER && found == AMPC_KIND_FROZEN;
    if (!CHECK_MSG(found == kind || frozen, "'%s' is of kind %d", name, found))
        return;
    read_var(m, s, name, got, (size_t)n * sizeof *got, AMPC_DTYPE_F32);
    for (int i = 0; i < n; i++)
        if (!CHECK_MSG(fabs((double)got[i] - want[i]) <=
                           TOL_EXPORTERS * (1 + fabs(want[i])),
                       "%s[%d] is %.9g, not %.9g", name, i, (double)got[i],
                       want[i]))
            return;
}

static void run_line(Case *c, Compiled *m, ampc_session **s, char *line) {
    char *rest = NULL;
    const char *what = strtok_r(line, " ", &rest);
    if (!strcmp(what, "options")) {
        snprintf(c->options, sizeof c->options,
                 "--precision fp32 --target cpu:x86-64-v2 "
                 "--optimizer sgd,lr=0.1 %s",
                 rest);
    } else if (!strcmp(what, "refused")) {
        check_refused(c, rest);
    } else if (!strcmp(what, "input")) {
        read_input(c, &rest);
    } else if (!strcmp(what, "loss")) {
        *m = compile_file(c->path, c->options);
        *s = open_threads(m, 1);
        check_losses(c, m, *s, &rest);
    } else if (!strcmp(what, "param")) {
        check_values(m, *s, AMPC_KIND_PARAMETER, &rest);
    } else if (!strcmp(what, "buffer")) {
        check_values(m, *s, AMPC_KIND_BUFFER, &rest);
    } else if (!strcmp(what, "still")) {
        const char *name = word(&rest);
        CHECK_MSG(kind_of(m, name) != AMPC_KIND_PARAMETER, "'%s' trains", name);
    } else {
        FAIL("'%s' is no line of a case", what);
    }
}

static void run_case(void *arg) {
    Case *c = arg;
    Compiled m = {.handle = NULL};
    ampc_session *s = NULL;
    char path[600], *save = NULL;
    size_t size;
    snprintf(path, sizeof path, "%.*s.txt", (int)(strlen(c->path) - 5),
             c->path);
    char *text = test_read_file(path, &size);
    for (char *line = strtok_r(text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save))
        run_line(c, &m, &s, line);
    if (s) m.api->close(s);
    if (s) compiled_close(&m);
    forget(c);
    free(text);
}

/* PyTorch's unoptimised file of a model whose optimised or TorchScript file is
   there too: --slow takes both, the harder one is enough. */
static bool is_thinned(const char *path, const char *name) {
    static const char raw[] = "torch-2.11-raw-train-";
    static const char *const harder[] = {"default", "script"};
    char other[640];
    bool thin = false;
    if (test_slow() || strncmp(name, raw, strlen(raw)) != 0) return false;
    for (int i = 0; i < 2; i++) {
        snprintf(other, sizeof other, "%.*storch-2.11-%s-train-%s",
                 (int)(strlen(path) - strlen(name)), path, harder[i],
                 name + strlen(raw));
        thin |= access(other, R_OK) == 0;
    }
    return thin;
}

static void add_case(const char *path, const char *name, void *arg) {
    (void)arg;
    static Case cases[512]; /* as long as the process: the harness keeps c */
    static int count;
    if (is_thinned(path, name)) return;
    REQUIRE(count < 512);
    Case *c = &cases[count++];
    snprintf(c->name, sizeof c->name, "%.*s", (int)strlen(name) - 4, name);
    snprintf(c->path, sizeof c->path, "%.*s.onnx", (int)(strlen(path) - 4),
             path);
    harness_register("exporters", c->name, run_case, c);
}

static void register_cases(void) {
    test_each_file("tests/exporters", ".txt", add_case, NULL);
}
TEST_REGISTRAR(register_cases);
