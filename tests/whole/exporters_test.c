/* SPDX-License-Identifier: Apache-2.0 */
/* exporters_test.c: files of each exporter, trained for 5 steps and compared
   with the framework's own training (models/exporters/exporters.py explains the
   lines of tests/exporters/NAME.txt). */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/interpreted.h"
#include "tests/tolerance.h"

enum { MOST = 8 };

typedef struct Case {
    char path[512], name[128], options[1024]; /* path: of the model */
    ampc_input in[MOST];
    int nin, samples;
    bool compiles, started; /* true: it is compiled; else interpreted */
    Compiled m;             /* compiled */
    ampc_session *s;
    Interpreted x; /* interpreted */
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
    c->samples = atoi(word(rest));
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

/* ---- what trains: an interpreted file, or a compiled one ----------------- */

static void start(Case *c) {
    if (c->started) return;
    if (c->compiles) {
        c->m = compile_file(c->path, c->options);
        c->s = open_threads(&c->m, 1);
    } else {
        c->x = interpreted_onnx(c->path, c->options, EVAL_STORAGE);
    }
    c->started = true;
}

static double step(Case *c) {
    if (c->compiles) return step_ok(&c->m, c->s, c->in, (size_t)c->nin).loss;
    interpreted_run(&c->x, "train", c->in, c->nin);
    return interpreted_output(&c->x, "ampc.loss");
}

static int kind_in_module(const Compiled *m, const char *name) {
    ampc_module_info info = {.size = sizeof info};
    REQUIRE(!m->api->describe(m->api->module, &info));
    for (uint32_t i = 0; i < info.nvariable; i++) {
        ampc_variable_info v = {.size = sizeof v};
        REQUIRE(!m->api->variable(m->api->module, i, &v));
        if (!strcmp(v.name, name)) return v.kind;
    }
    return -1;
}

/* The kind of a variable; -1: unknown name. */
static int kind_of(const Case *c, const char *name) {
    if (c->compiles) return kind_in_module(&c->m, name);
    const Var *v = interpreted_find(&c->x, name);
    if (!v) return -1;
    return v->kind == VAR_PARAM    ? AMPC_KIND_PARAMETER
           : v->kind == VAR_FROZEN ? AMPC_KIND_FROZEN
           : v->kind == VAR_BUFFER ? AMPC_KIND_BUFFER
                                   : -1;
}

static void read_values(const Case *c, const char *name, float *got, int n) {
    if (c->compiles) {
        read_var(&c->m, c->s, name, got, (size_t)n * sizeof *got,
                 AMPC_DTYPE_F32);
        return;
    }
    const EvalTensor *t = interpreted_var(&c->x, name);
    REQUIRE(t->f && type_count(type_get(t->type)) == n);
    for (int i = 0; i < n; i++) got[i] = (float)t->f[i];
}

/* An output of the untrained model. `got` has room for n numbers. */
static void predict(Case *c, const char *name, float *got, int n) {
    int nin = c->nin; /* the target is the last input */
    if (nin && !strcmp(c->in[nin - 1].name, "target")) nin--;
    if (c->compiles) {
        ampc_output out =
            ampc_out(name, got, (size_t)n * sizeof *got, AMPC_DTYPE_F32);
        CHECK_MSG(
            !c->m.api->predict(c->s, c->in, (size_t)nin, c->samples, &out, 1),
            "%s", c->m.api->error(c->s));
        return;
    }
    interpreted_run(&c->x, "predict", c->in, nin);
    const EvalTensor *t = interpreted_result(&c->x, name);
    REQUIRE(t->f && type_count(type_get(t->type)) == n);
    for (int i = 0; i < n; i++) got[i] = (float)t->f[i];
}

static void end(Case *c) {
    if (c->started && c->compiles) {
        c->m.api->close(c->s);
        compiled_close(&c->m);
    } else if (c->started) {
        interpreted_free(&c->x);
    }
    c->started = false;
}

/* ---- the lines of a case ------------------------------------------------- */

static void check_losses(Case *c, char **rest) {
    double want[16];
    int n = numbers(rest, want, 16);
    for (int i = 0; i < n; i++) {
        double got = step(c);
        CHECK_MSG(fabs(got - want[i]) <= TOL_EXPORTERS * (1 + fabs(want[i])),
                  "step %d: loss %.9g, not %.9g", i, got, want[i]);
    }
}

static void check_near(const char *name, const float *got, const double *want,
                       int n) {
    for (int i = 0; i < n; i++)
        if (!CHECK_MSG(fabs((double)got[i] - want[i]) <=
                           TOL_EXPORTERS * (1 + fabs(want[i])),
                       "%s[%d] is %.9g, not %.9g", name, i, (double)got[i],
                       want[i]))
            return;
}

/* The forward, beside the runtime for which the file was written. */
static void check_output(Case *c, char **rest) {
    static double want[NUMBERS];
    static float got[NUMBERS];
    const char *name = word(rest);
    int n = numbers(rest, want, NUMBERS);
    start(c);
    predict(c, name, got, n);
    check_near(name, got, want, n);
}

/* A statistic without updates may be frozen. */
static void check_values(const Case *c, int kind, char **rest) {
    static double want[NUMBERS];
    static float got[NUMBERS];
    const char *name = word(rest);
    int n = numbers(rest, want, NUMBERS), found = kind_of(c, name);
    bool frozen = kind == AMPC_KIND_BUFFER && found == AMPC_KIND_FROZEN;
    if (!CHECK_MSG(found == kind || frozen, "'%s' is of kind %d", name, found))
        return;
    read_values(c, name, got, n);
    check_near(name, got, want, n);
}

static void run_line(Case *c, char *line) {
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
    } else if (!strcmp(what, "output")) {
        check_output(c, &rest);
    } else if (!strcmp(what, "loss")) {
        start(c);
        check_losses(c, &rest);
    } else if (!strcmp(what, "param")) {
        check_values(c, AMPC_KIND_PARAMETER, &rest);
    } else if (!strcmp(what, "buffer")) {
        check_values(c, AMPC_KIND_BUFFER, &rest);
    } else if (!strcmp(what, "still")) {
        const char *name = word(&rest);
        CHECK_MSG(kind_of(c, name) != AMPC_KIND_PARAMETER, "'%s' trains", name);
    } else {
        FAIL("'%s' is no line of a case", what);
    }
}

static void run_case(void *arg) {
    Case *c = arg;
    char path[600], *save = NULL;
    size_t size;
    snprintf(path, sizeof path, "%.*s.txt", (int)(strlen(c->path) - 5),
             c->path);
    char *text = test_read_file(path, &size);
    for (char *line = strtok_r(text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save))
        run_line(c, line);
    end(c);
    forget(c);
    free(text);
}

enum { MOST_CASES = 1024, COMPILED_OF = 12 };

static void add_case(const char *path, const char *name, bool compiles) {
    static Case cases[MOST_CASES]; /* lives as long as the process: the
                                      harness keeps c */
    static int count;
    REQUIRE(count < MOST_CASES);
    Case *c = &cases[count++];
    c->compiles = compiles;
    snprintf(c->name, sizeof c->name, "%s", name);
    snprintf(c->path, sizeof c->path, "%.*s.onnx", (int)(strlen(path) - 4),
             path);
    harness_register(compiles ? "exporters_compiled" : "exporters", c->name,
                     run_case, c);
}

/* The interpreter reads every file. Compiling takes nearly all of the time, so
   that one file of twelve is compiled, and all with --slow.
 */
static void add_file(const char *path, const char *name, void *arg) {
    int *nfile = arg;
    add_case(path, name, false);
    if (test_slow() || (*nfile)++ % COMPILED_OF == 0)
        add_case(path, name, true);
}

static void register_cases(void) {
    int nfile = 0;
    test_each_file("tests/exporters", ".txt", add_file, &nfile);
}
TEST_REGISTRAR(register_cases);

/* ---- PyTorch's samples of its ops (models/precision/opinfo.py) ----------- */

enum { FEWEST_OPS = 570 };

/* Parts of a row: op, samples, right ones, their largest distances of loss and
   gradient, why others are not. */
TEST_CASE(exporters, samples_of_ops_are_right_or_have_a_reason) {
    char *all =
        test_read_file(test_data_path("tests/exporters/opinfo.csv"), NULL);
    char before[100] = "";
    int ops = 0, right = 0;
    REQUIRE(all != NULL);
    strtok(all, "\n"); /* the header */
    for (char *line; (line = strtok(NULL, "\n"));) {
        char op[100], reason[200] = "";
        int samples, good, end = 0;
        int n = sscanf(line, "%99[^,],%d,%d,%n", op, &samples, &good, &end);
        REQUIRE(n == 3 && end > 0);
        sscanf(line + end, "%*[^,],%*[^,],%199[^\n]", reason);
        CHECK_MSG(strcmp(before, op) < 0, "%s stands behind %s", op, before);
        CHECK_MSG(samples > 0 && good >= 0 && good <= samples, "%s", op);
        CHECK_MSG(good == samples || strchr(line + end, ' '),
                  "%s: no reason for %d of %d samples", op, samples - good,
                  samples);
        CHECK_MSG(good < samples || !*reason, "%s is right: %s", op, reason);
        strcpy(before, op);
        ops++;
        right += good == samples;
    }
    CHECK_MSG(ops >= FEWEST_OPS && right >= 0.95 * ops, "%d of %d ops", right,
              ops);
    free(all);
}
