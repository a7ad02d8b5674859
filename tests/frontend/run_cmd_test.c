/* SPDX-License-Identifier: Apache-2.0 */
/* run_cmd_test.c: `ampc run` on the hand-written plan of tiny_module.c, through
   its command line; files that it reads and writes.                         */
#define _GNU_SOURCE
#include "tests/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "frontend/run/run_cmd.h"
#include "runtime/program/dtype.h"
#include "runtime/base/json.h"
#include "runtime/api/session.h"
#include "tests/support/tiny_module.h"

/* ---- helpers ------------------------------------------------------------- */

/* Instead of the library's, as a file system without links answers. */
static bool no_links;

int link(const char *from, const char *to) {
    if (!no_links) return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
    errno = EPERM;
    return -1;
}

static void write_npy(const char *name, int dtype, int rank, const int64_t *dim,
                      const void *data) {
    StrBuf sb = {0};
    size_t n = dtype_bytes((uint32_t)dtype);
    for (int i = 0; i < rank; i++) n *= (size_t)dim[i];
    npy_header(&sb, dtype, rank, dim);
    CHECK_EQ_INT(sb.len % 64, 0);
    sb_putn(&sb, data, n);
    REQUIRE(test_write_file(test_tmp(name), sb.data, sb.len));
    sb_free(&sb);
}

/* n samples of x and target as x.npy and t.npy. */
static void write_data(int n) {
    float x[400 * TINY_IN], t[400 * TINY_OUT];
    for (int i = 0; i * TINY_BATCH < n; i++)
        tiny_batch(i, x + i * TINY_BATCH * TINY_IN,
                   t + i * TINY_BATCH * TINY_OUT);
    write_npy("x.npy", AMPC_DTYPE_F32, 2, (int64_t[]){n, TINY_IN}, x);
    write_npy("t.npy", AMPC_DTYPE_F32, 2, (int64_t[]){n, TINY_OUT}, t);
}

static ampc_api api_for(const AmpcModule *m) {
    ampc_api a = *tiny_api();
    a.module = tiny_handle(m);
    return a;
}

/* Runs "run tiny.so WORDS..."; words beginning with '@' name files of the
   test's folder, FEED=@NAME too.  Standard output and error are kept.       */
typedef struct Ran {
    int status;
    char *out, *err;
} Ran;

static char *expand(const char *word) {
    const char *at = strchr(word, '@');
    char *p = NULL;
    int n =
        at ? asprintf(&p, "%.*s%s", (int)(at - word), word, test_tmp(at + 1))
           : asprintf(&p, "%s", word);
    return n < 0 ? NULL : p;
}

static FILE *redirect(FILE *f, const char *path, int *saved) {
    fflush(f);
    *saved = dup(fileno(f));
    FILE *to = fopen(path, "w");
    REQUIRE(to && *saved >= 0);
    dup2(fileno(to), fileno(f));
    return to;
}

static void restore(FILE *f, FILE *to, int saved) {
    fflush(f);
    dup2(saved, fileno(f));
    close(saved);
    fclose(to);
}

/* Nothing is told a person twice. */
static void check_lines_differ(const char *text) {
    for (const char *a = text, *b; *a; a += strcspn(a, "\n") + 1) {
        size_t n = strcspn(a, "\n") + 1;
        if (a[n - 1] != '\n') break;
        for (b = a + n; n > 1 && b; b = strchr(b, '\n'), b += b != NULL)
            CHECK_MSG(strncmp(a, b, n), "twice: %.*s", (int)n, a);
    }
}

static Ran run_api(const ampc_api *a, const char *words) {
    char *argv[64] = {"run", "tiny.so"}, *copy = strdup(words), *save = NULL;
    int argc = 2, out, err;
    for (char *w = strtok_r(copy, " ", &save); w;
         w = strtok_r(NULL, " ", &save))
        argv[argc++] = expand(w);
    FILE *fo = redirect(stdout, test_tmp("stdout"), &out);
    FILE *fe = redirect(stderr, test_tmp("stderr"), &err);
    Ran r = {.status = run_cmd(argc, argv, a)};
    restore(stdout, fo, out);
    restore(stderr, fe, err);
    r.out = test_read_file(test_tmp("stdout"), NULL);
    r.err = test_read_file(test_tmp("stderr"), NULL);
    check_lines_differ(r.err);
    for (int i = 2; i < argc; i++) free(argv[i]);
    free(copy);
    return r;
}

static Ran run_module(const AmpcModule *m, const char *words) {
    ampc_api a = api_for(m);
    return run_api(&a, words);
}

static void ran_free(Ran *r) {
    free(r->out);
    free(r->err);
}

/* Standard output of a run that must succeed; for free(). */
static char *good(const AmpcModule *m, const char *words) {
    Ran r = run_module(m, words);
    CHECK_MSG(r.status == 0, "%s\n%s", words, r.err);
    free(r.err);
    return r.out;
}

static void bad(const AmpcModule *m, const char *words, int status,
                const char *why) {
    Ran r = run_module(m, words);
    CHECK_EQ_INT(r.status, status);
    CHECK_HAS(r.err, why);
    ran_free(&r);
}

static int count_lines(const char *text) {
    int n = 0;
    for (; *text; text++) n += *text == '\n';
    return n;
}

/* Line i of a log as a number. */
static double field(const char *log, int line, const char *key) {
    JsonSpan v, f;
    double x = NAN;
    while (line-- && (log = strchr(log, '\n'))) log++;
    if (!CHECK(log && *log)) return NAN;
    if (CHECK(json_parse(log, strcspn(log, "\n"), &v)) &&
        CHECK_MSG(json_get(v, key, &f), "%s in %.200s", key, log))
        json_double(f, &x);
    return x;
}

#define FEEDS      "--feed x=@x.npy --feed target=@t.npy "
#define EVAL_FEEDS "--eval-feed x=@x.npy --eval-feed target=@t.npy "

/* ---- training ------------------------------------------------------------ */

TEST_CASE(run, trains_and_logs) {
    write_data(40);
    char *out = good(&tiny_module, FEEDS "--epochs 20");
    CHECK_EQ_INT(count_lines(out), 200);
    CHECK_EQ_INT(field(out, 0, "step"), 1);
    CHECK_EQ_INT(field(out, 199, "step"), 200);
    CHECK(field(out, 199, "loss") < 0.05 * field(out, 0, "loss"));
    CHECK(field(out, 0, "grad_norm") > 0 && field(out, 0, "ms") >= 0);
    CHECK_EQ_INT(field(out, 7, "scale"), 1024);
    CHECK_EQ_INT(field(out, 7, "skipped"), 0);
    CHECK_HAS(out, "\"lr\":0.1,");
    free(out);
    out = good(&tiny_module, FEEDS); /* one epoch; the last 0 samples */
    CHECK_EQ_INT(count_lines(out), 10);
    free(out);
    write_data(42);
    out = good(&tiny_module, FEEDS "--steps 13 --lr 0.05");
    CHECK_EQ_INT(count_lines(out), 13); /* 10 per epoch: wrapped */
    CHECK(field(out, 10, "lr") == 0.05);
    free(out);
}

TEST_CASE(run, changes_keys_of_the_schedule) {
    write_data(40);
    char *out = good(&tiny_module, FEEDS "--steps 3 --hyper lr=0.025");
    CHECK(field(out, 2, "lr") == 0.025);
    free(out);
    bad(&tiny_module, FEEDS "--hyper warmup=5%", 1, "the module has: lr");
    bad(&tiny_module, FEEDS "--hyper lr=5x", 2, "'lr=5x': a value is");
    bad(&tiny_module, FEEDS "--hyper lr", 2, "KEY=VALUE is needed");
    bad(&tiny_module, FEEDS "--hyper lr=1 --eval", 2, "no effect: '--hyper'");
}

/* Beside ReduceLROnPlateau, written here, over the losses in the log; the run
   is broken off and goes on in the middle. */
TEST_CASE(run, lowers_lr_where_the_loss_does_not_fall) {
    static const char *const runs[] = {"--epochs 6 --save @plateau.ck",
                                       "--epochs 12 --save @plateau.ck "
                                       "--resume"};
    double lr = 0.1, best = INFINITY;
    int bad_epochs = 0, lowered = 0;
    write_data(8);
    for (int k = 0; k < 2; k++) {
        char words[300];
        snprintf(words, sizeof words,
                 FEEDS EVAL_FEEDS "--reduce-on-plateau "
                                  "factor=0.5,patience=1,threshold=0.3,"
                                  "min_lr=0.02 %s",
                 runs[k]);
        char *out = good(&tiny_module, words);
        for (int e = 0; e < 6; e++) { /* two steps and an evaluation each */
            CHECK_REL(field(out, 3 * e, "lr"), lr, 1e-6);
            double loss = field(out, 3 * e + 2, "eval_loss");
            bad_epochs = loss < best * 0.7 ? 0 : bad_epochs + 1;
            if (!bad_epochs) best = loss;
            if (bad_epochs <= 1) continue;
            lowered += lr > 0.02;
            lr = fmax(lr * 0.5, 0.02);
            bad_epochs = 0;
        }
        free(out);
    }
    CHECK(lowered >= 2);
    bad(&tiny_module, FEEDS "--reduce-on-plateau factor=0.5", 2, "--eval-feed");
    bad(&tiny_module, FEEDS EVAL_FEEDS "--reduce-on-plateau factor=2", 2,
        "'factor=2' is not factor=0.1,");
}

TEST_CASE(run, accumulates) {
    write_data(40);
    char *out = good(&tiny_accumulating, FEEDS "--epochs 2");
    CHECK_EQ_INT(count_lines(out), 10);
    CHECK_EQ_INT(field(out, 9, "step"), 10);
    free(out);
    out = good(&tiny_accumulating, FEEDS "--steps 2 --lr 1e-30");
    char *each = good(&tiny_module, FEEDS "--steps 4 --lr 1e-30");
    for (int i = 0; i < 2; i++) {
        double mean =
            (field(each, 2 * i, "loss") + field(each, 2 * i + 1, "loss")) / 2;
        CHECK(fabs(field(out, i, "loss") - mean) < 1e-6 * mean);
    }
    free(out);
    free(each);
}

TEST_CASE(run, non_finite_is_null) {
    float x[12], t[8];
    tiny_batch(0, x, t);
    x[0] = INFINITY;
    write_npy("xi.npy", AMPC_DTYPE_F32, 2, (int64_t[]){4, 3}, x);
    write_data(4);
    char *out = good(&tiny_module, "--feed x=@xi.npy --feed target=@t.npy "
                                   "--steps 2");
    CHECK_HAS(out, "{\"step\":2,\"loss\":null,\"grad_norm\":null,\"scale\":512,"
                   "\"skipped\":2,");
    free(out);
}

TEST_CASE(run, log_file_and_profile) {
    write_data(8);
    char *out = good(&tiny_module, FEEDS "--epochs 1 --log @log.jsonl "
                                         "--profile @trace.json --quiet");
    CHECK_STR(out, "");
    free(out);
    char *log = test_read_file(test_tmp("log.jsonl"), NULL);
    CHECK_EQ_INT(count_lines(log), 2);
    free(log);
    size_t n = 0;
    char *trace = test_read_file(test_tmp("trace.json"), &n);
    JsonSpan v, events;
    REQUIRE(trace && json_parse(trace, n, &v));
    CHECK(json_get(v, "traceEvents", &events) && json_is_array(events));
    CHECK_HAS(trace, "\"name\":\"w.grad\",\"cat\":\"train\",\"ph\":\"X\"");
    free(trace);
}

/* Four digits of a number, as the summary has them. */
static void check_told(double told, double is, const char *what,
                       const char *words) {
    CHECK_MSG(fabs(told - is) <= 6e-4 * fabs(is) + 1e-12, "%s: %s %g, not %g",
              words, what, told, is);
}

/* The seconds of "4.42 s", "23.8 ms" or "3.2 us". */
static double told_seconds(const char *text) {
    char *unit;
    double x = strtod(text, &unit);
    return !strncmp(unit, " us", 3)   ? x / 1e6
           : !strncmp(unit, " ms", 3) ? x / 1e3
           : !strncmp(unit, " s", 2)  ? x
                                      : NAN;
}

/* A number with commas in it. */
static double told_count(const char *text) {
    double x = 0;
    if (text[strspn(text, "0123456789,")] == '.') return strtod(text, NULL);
    for (; *text == ',' || (*text >= '0' && *text <= '9'); text++)
        if (*text != ',') x = 10 * x + (*text - '0');
    return x;
}

/* The summary beside the log: steps, times, samples, losses. */
static void check_summary(const AmpcModule *m, const char *words) {
    Ran r = run_module(m, words);
    CHECK_MSG(r.status == 0, "%s\n%s", words, r.err);
    int steps = 0, evals = 0, last = -1, eval = -1, lines = count_lines(r.out);
    double seconds = -1, ms = -1, rate = -1, from = -1, to = -1, loss, skipped;
    for (int i = 0; i < lines; i++) {
        const char *at = r.out;
        for (int k = i; k--;) at = strchr(at, '\n') + 1;
        bool is_step = !strncmp(at, "{\"step\":", 8);
        steps += is_step;
        evals += !is_step;
        *(is_step ? &last : &eval) = i;
    }
    const char *at = strstr(r.err, "trained ");
    int told = -1;
    char took[3][20];
    REQUIRE(at && last >= 0 &&
            sscanf(at,
                   "trained %d steps in %19[^(](%19[^,], %19s samples/s): "
                   "loss %lf -> %lf",
                   &told, took[0], took[1], took[2], &from, &to) == 6);
    seconds = told_seconds(took[0]);
    ms = 1e3 * told_seconds(took[1]);
    rate = told_count(took[2]);
    CHECK_EQ_INT(told, steps);
    CHECK_MSG(fabs(ms * steps / 1e3 - seconds) <= 0.02 * seconds,
              "%s: %d steps of %g ms in %g s", words, steps, ms, seconds);
    double samples = steps * TINY_BATCH * (m == &tiny_accumulating ? 2 : 1);
    CHECK_MSG(fabs(rate * seconds - samples) <= 0.02 * samples,
              "%s: %g samples/s in %g s are not %g", words, rate, seconds,
              samples);
    check_told(from, field(r.out, 0, "loss"), "first loss", words);
    check_told(to, field(r.out, last, "loss"), "last loss", words);
    skipped = field(r.out, last, "skipped");
    CHECK((strstr(at, " skipped\n") != NULL) == (skipped > 0));
    at = strstr(r.err, "\nevaluation: loss ");
    if (CHECK((at != NULL) == (evals > 0)) && at) {
        REQUIRE(sscanf(at, "\nevaluation: loss %lf", &loss) == 1);
        check_told(loss, field(r.out, eval, "eval_loss"), "evaluation", words);
    }
    ran_free(&r);
}

TEST_CASE(run, the_summary_tells_what_the_log_does) {
    write_data(40);
    check_summary(&tiny_module, FEEDS "--steps 1");
    check_summary(&tiny_module, FEEDS "--steps 300");
    check_summary(&tiny_module, FEEDS "--epochs 7 " EVAL_FEEDS);
    check_summary(&tiny_accumulating, FEEDS "--steps 150");
    check_summary(&tiny_accumulating, FEEDS "--epochs 3 " EVAL_FEEDS);
}

/* Steps of the profile follow one another; all of them fit into the run. */
TEST_CASE(run, the_profile_adds_up) {
    write_data(40);
    char *log = good(&tiny_module, FEEDS "--epochs 5 --profile @adds.json");
    size_t n = 0;
    char *trace = test_read_file(test_tmp("adds.json"), &n);
    JsonSpan v, events, key, e, f;
    REQUIRE(trace && json_parse(trace, n, &v) &&
            json_get(v, "traceEvents", &events));
    double end = 0, all = 0, ran = 0;
    int count = 0, updates = 0;
    for (JsonIter it = json_iter(events); json_next(&it, &key, &e);) {
        double ts, dur;
        if (!json_get(e, "ph", &f) || !json_equals(f, "X")) continue;
        REQUIRE(json_get(e, "ts", &f) && json_double(f, &ts) &&
                json_get(e, "dur", &f) && json_double(f, &dur));
        CHECK_MSG(ts >= end - 0.002 && dur >= 0 && (count || ts == 0),
                  "event %d: at %g for %g us, the one before ended at %g",
                  count, ts, dur, end);
        updates += json_get(e, "name", &f) && json_equals(f, "w.grad");
        end = ts + dur;
        all += dur;
        count++;
    }
    for (int i = 0; i < count_lines(log); i++) ran += field(log, i, "ms");
    CHECK_EQ_INT(updates, count_lines(log));
    CHECK_MSG(all <= 1e3 * ran + 1, "%g us of events in %g ms", all, ran);
    free(trace);
    free(log);
}

/* ---- resuming ------------------------------------------------------------ */

static void same_files(const char *a, const char *b) {
    size_t na = 0, nb = 0;
    char *x = test_read_file(test_tmp(a), &na);
    char *y = test_read_file(test_tmp(b), &nb);
    REQUIRE(x && y);
    if (CHECK_EQ_INT(na, nb)) CHECK_MEM(x, y, na);
    free(x);
    free(y);
}

static void resume_case(const AmpcModule *m, const char *first,
                        const char *second, const char *whole) {
    char words[400];
    unlink(test_tmp("a"));
    snprintf(words, sizeof words, FEEDS "--shuffle --save @a %s", whole);
    free(good(m, words));
    snprintf(words, sizeof words, FEEDS "--shuffle --save @b %s", first);
    free(good(m, words));
    snprintf(words, sizeof words, FEEDS "--shuffle --save @b --resume %s",
             second);
    free(good(m, words));
    same_files("a", "b");
}

TEST_CASE(run, resumes_bit_for_bit) {
    write_data(42);
    resume_case(&tiny_module, "--steps 7", "--steps 25", "--steps 25");
    resume_case(&tiny_module, "--steps 7", "--steps 7", "--steps 14");
    resume_case(&tiny_module, "--steps 13", "--epochs 3", "--epochs 3");
    resume_case(&tiny_module, "--epochs 1", "--epochs 2", "--epochs 2");
    resume_case(&tiny_accumulating, "--steps 4", "--steps 12", "--steps 12");
}

/* The place in the data is kept only where the data are as many. */
TEST_CASE(run, resumes_with_other_data) {
    write_data(42); /* 10 steps an epoch */
    free(good(&tiny_module, FEEDS "--save @moved --steps 13"));
    write_data(20); /* 5 steps */
    Ran r = run_module(&tiny_module, FEEDS "--save @moved --resume --epochs 2");
    CHECK_EQ_INT(r.status, 0);
    CHECK_HAS(r.err, "the checkpoint was made with 42 samples, not 20: "
                     "starting at the beginning of epoch 2");
    CHECK_EQ_INT(count_lines(r.out), 5);
    CHECK_EQ_INT(field(r.out, 0, "step"), 14);
    ran_free(&r);
    ampc_session *s = NULL;
    REQUIRE(tiny_api()->open(tiny_handle(&tiny_module), NULL, &s, NULL, 0) ==
            AMPC_OK);
    CHECK_EQ_INT(tiny_api()->save(s, test_tmp("placeless")), AMPC_OK);
    tiny_api()->close(s);
    r = run_module(&tiny_module, FEEDS "--save @placeless --resume --steps 1");
    CHECK_EQ_INT(r.status, 0);
    CHECK_HAS(r.err, "the checkpoint has no position in the data: starting at "
                     "the first sample");
    ran_free(&r);
}

/* A checkpoint cut off: the run goes on from the one before, and says so. */
TEST_CASE(run, resumes_from_the_checkpoint_before_a_torn_one) {
    write_data(42);
    for (int quiet = 0; quiet < 2; quiet++) {
        unlink(test_tmp("torn"));
        free(good(&tiny_module, FEEDS "--save @torn --steps 6 --save-every 3"));
        REQUIRE(truncate(test_tmp("torn"), 300) == 0);
        Ran r =
            run_module(&tiny_module,
                       quiet ? FEEDS "--save @torn --resume --steps 4 --quiet"
                             : FEEDS "--save @torn --resume --steps 4");
        CHECK_EQ_INT(r.status, 0);
        CHECK_HAS(r.err, "truncated");
        CHECK_HAS(r.err, "torn.prev");
        CHECK_EQ_INT(field(r.out, 0, "step"), 4);
        ran_free(&r);
    }
}

TEST_CASE(run, shuffle_changes_order_only) {
    write_data(40);
    char *a = good(&tiny_module, FEEDS "--steps 10");
    char *b = good(&tiny_module, FEEDS "--steps 10 --shuffle");
    char *c = good(&tiny_module, FEEDS "--steps 10 --shuffle");
    CHECK(field(a, 3, "loss") != field(b, 3, "loss"));
    for (int i = 0; i < 10; i++)
        CHECK(field(b, i, "loss") == field(c, i, "loss"));
    free(a);
    free(b);
    free(c);
}

/* Batches of one sample's copies would hide it: with a learning rate of 0 the
   losses of an epoch sum to the same, in whatever order.                    */
TEST_CASE(run, every_epoch_has_every_sample_in_another_order) {
    double sum[3] = {0};
    int same = 0;
    write_data(40);
    char *plain = good(&tiny_module, FEEDS "--epochs 1 --lr 0");
    char *two = good(&tiny_module, FEEDS "--epochs 2 --lr 0 --shuffle");
    for (int i = 0; i < 10; i++) {
        sum[0] += field(plain, i, "loss");
        sum[1] += field(two, i, "loss");
        sum[2] += field(two, 10 + i, "loss");
        same += field(two, i, "loss") == field(two, 10 + i, "loss");
    }
    CHECK_REL(sum[0], sum[1], 1e-5);
    CHECK_REL(sum[0], sum[2], 1e-5);
    CHECK(same < 3);
    free(plain);
    free(two);
}

/* ---- evaluating and predicting ------------------------------------------- */

TEST_CASE(run, evaluates_every_sample) {
    char *out;
    write_data(41);
    free(good(&tiny_module, FEEDS "--epochs 30 --save @c"));
    out = good(&tiny_module, FEEDS "--eval --load @c");
    CHECK_EQ_INT(count_lines(out), 1);
    CHECK_EQ_INT(field(out, 0, "samples"), 41);
    double loss = field(out, 0, "eval_loss");
    CHECK(loss > 0 && loss < 0.05);
    CHECK_HAS(out, "\"accuracy\":null");
    free(out);
    /* computed here from the predictions */
    free(good(&tiny_module, "--feed x=@x.npy --load @c --fetch @d"));
    Diag d = {0};
    Array y, t;
    REQUIRE(array_open(&d, test_tmp("d/y%2Fout.npy"), NULL, &y) == OK);
    REQUIRE(array_open(&d, test_tmp("t.npy"), NULL, &t) == OK);
    CHECK(y.rank == 2 && y.dim[0] == 41 && y.dim[1] == 2);
    double sum = 0;
    for (int i = 0; i < 82; i++)
        sum += pow(((float *)y.memory)[i] - ((float *)t.memory)[i], 2);
    CHECK_REL(loss, sum / 82, 1e-5);
    free(good(&tiny_module, FEEDS "--load @c --eval --fetch @e"));
    same_files("d/y%2Fout.npy", "e/y%2Fout.npy");
    array_close(&y);
    array_close(&t);
}

/* At the end of each epoch, and of a run that ends within one. */
TEST_CASE(run, evaluates_as_the_epoch_it_is_in) {
    static const int lines[] = {
        10, 21, 25}; /* line numbers: of 23 steps and of the other lines */
    write_data(40);
    char *out = good(&tiny_module, FEEDS EVAL_FEEDS "--steps 23");
    CHECK_EQ_INT(count_lines(out), 26);
    for (int i = 0; i < 3; i++)
        CHECK_EQ_INT(field(out, lines[i], "epoch"), i + 1);
    free(out);
    out = good(&tiny_module, FEEDS EVAL_FEEDS "--steps 20");
    CHECK_EQ_INT(count_lines(out), 22);
    CHECK_EQ_INT(field(out, 21, "epoch"), 2);
    free(out);
}

TEST_CASE(run, keeps_the_best) {
    write_data(40);
    char *out = good(&tiny_module,
                     FEEDS "--eval-feed x=@x.npy --eval-feed target=@t.npy "
                           "--epochs 3 --save-best @best --save @last");
    CHECK_EQ_INT(count_lines(out), 33);
    CHECK_EQ_INT(field(out, 10, "epoch"), 1);
    double first = field(out, 10, "eval_loss");
    CHECK(field(out, 32, "eval_loss") < first);
    free(out);
    same_files("best", "last");
    /* a learning rate that diverges: the first epoch stays the best */
    out = good(&tiny_module,
               FEEDS "--eval-feed x=@x.npy --eval-feed target=@t.npy "
                     "--epochs 4 --save-best @worse --save @last --lr 9");
    free(out);
    size_t na = 0, nb = 0;
    char *x = test_read_file(test_tmp("worse"), &na);
    char *y = test_read_file(test_tmp("last"), &nb);
    CHECK(na != nb || memcmp(x, y, na) != 0);
    free(x);
    free(y);
}

/* The first number of that key. */
static double number(const char *text, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(text, quoted);
    return at ? strtod(at + strlen(quoted), NULL) : NAN;
}

TEST_CASE(run, measures_metrics) {
    write_data(42); /* the last batch is padded */
    char *out = good(&tiny_module, FEEDS "--eval --metric rmse");
    double loss = field(out, 0, "eval_loss");
    CHECK_NEAR(number(out, "rmse"), sqrt(loss), 1e-6 * sqrt(loss));
    free(out);
    bad(&tiny_module, FEEDS "--metric rmse", 2, "--eval-feed or --eval");
    bad(&tiny_module, FEEDS "--eval --metric rmse:z", 1,
        "the model lacks this output; the model's outputs: y");
    bad(&tiny_module, FEEDS "--eval --metric rmse,target=z", 1,
        "no input is called 'z'; those of an evaluation: x, target");
    bad(&tiny_module, FEEDS "--eval --metric rmse --metric rmse", 1,
        "is given twice");
}

TEST_CASE(run, augments_and_resumes_with_the_same_bits) {
    write_data(42);
    char *out = good(&tiny_module, FEEDS "--shuffle --epochs 3 --save @whole "
                                         "--augment x=mixup:0.4");
    free(out);
    for (int i = 0; i < 2; i++) /* the first ends within an epoch */
        free(good(&tiny_module,
                  i ? FEEDS "--shuffle --epochs 3 --save @parts --resume "
                            "--augment x=mixup:0.4"
                    : FEEDS "--shuffle --steps 14 --save @parts "
                            "--augment x=mixup:0.4"));
    same_files("whole", "parts");
    free(good(&tiny_module, FEEDS "--shuffle --epochs 3 --save @plain"));
    size_t na, nb;
    char *a = test_read_file(test_tmp("whole"), &na);
    char *b = test_read_file(test_tmp("plain"), &nb);
    CHECK(na != nb || memcmp(a, b, na));
    free(a);
    free(b);
}

TEST_CASE(run, normalizes_what_it_evaluates_too) {
    float x[8 * TINY_IN], t[8 * TINY_OUT];
    write_data(8);
    for (int i = 0; i < 2; i++)
        tiny_batch(i, x + i * TINY_BATCH * TINY_IN,
                   t + i * TINY_BATCH * TINY_OUT);
    for (int i = 0; i < 8 * TINY_IN; i++) x[i] = (x[i] - 0.25f) / 2;
    write_npy("n.npy", AMPC_DTYPE_F32, 2, (int64_t[]){8, TINY_IN}, x);
    char *a = good(&tiny_module, "--feed x=@n.npy --feed target=@t.npy --eval");
    Ran r = run_module(&tiny_module, FEEDS "--eval --augment "
                                           "x=normalize:0.25/2,mixup:1");
    CHECK_STR(r.out, a);
    CHECK_HAS(r.err, "normalize also in evaluation and prediction");
    ran_free(&r);
    free(a);
    bad(&tiny_module, FEEDS "--augment x=flipp", 2, "did you mean 'flip'?");
    bad(&tiny_module, FEEDS "--augment z=flip", 1, "has no such input");
    bad(&tiny_module, FEEDS "--augment x=flip", 1, "no rows and columns");
    bad(&tiny_labels, FEEDS "--augment x=mixup:1", 1, "does not fit");
}

TEST_CASE(run, keeps_the_best_by_a_metric) {
    write_data(40);
    /* diverges: the loss is best in the first epoch, and rmse with it */
    char *out = good(&tiny_module,
                     FEEDS EVAL_FEEDS "--epochs 4 --lr 9 --metric rmse "
                                      "--best-by rmse --patience 2 --save @c");
    CHECK_EQ_INT(count_lines(out), 33); /* 3 epochs */
    free(out);
    Ran r = run_module(&tiny_module,
                       FEEDS EVAL_FEEDS "--epochs 4 --save @c --resume");
    CHECK_EQ_INT(r.status, 0);
    CHECK_HAS(r.err, "--best-by differs from the checkpoint's");
    ran_free(&r);
    bad(&tiny_module, FEEDS EVAL_FEEDS "--metric rmse --best-by f1", 2,
        "names none of the --metric options");
}

TEST_CASE(run, accuracy_from_idx_and_gzip) {
    unsigned char idx[16 + 9 * 3] = {0, 0, 8, 3, 0, 0, 0, 9,
                                     0, 0, 0, 1, 0, 0, 0, 3};
    unsigned char labels[8 + 9] = {0, 0, 8, 1, 0, 0, 0, 9};
    for (int i = 0; i < 9; i++) {
        labels[8 + i] = (unsigned char)(i % 2);
        for (int k = 0; k < 3; k++)
            idx[16 + 3 * i + k] = (unsigned char)(i % 2 ? 255 : 10 * k);
    }
    REQUIRE(test_write_file(test_tmp("img"), idx, sizeof idx));
    gzFile f = gzopen(test_tmp("lab.gz"), "wb");
    gzwrite(f, labels, sizeof labels);
    gzclose(f);
    char *out = good(&tiny_labels,
                     "--feed x=@img --feed target=@lab.gz --epochs 200 --eval "
                     "--metric top1");
    int last = count_lines(out) - 1;
    CHECK_EQ_INT(last, 400);
    CHECK(field(out, last, "accuracy") == 1);
    CHECK(number(out, "top1") == 1);
    CHECK_EQ_INT(field(out, last, "samples"), 9);
    free(out);
}

/* ---- what a run says and keeps ------------------------------------------- */

TEST_CASE(run, ends_with_a_summary) {
    write_data(40);
    Ran r = run_module(&tiny_module,
                       FEEDS "--epochs 2 --save @sum.ck --eval-feed x=@x.npy "
                             "--eval-feed target=@t.npy --log @sum.log");
    CHECK_EQ_INT(r.status, 0);
    CHECK_HAS(r.err, "\ntrained 20 steps in ");
    CHECK_HAS(r.err, " samples/s): loss ");
    CHECK_HAS(r.err, "\nevaluation: loss ");
    CHECK_HAS(r.err, " after epoch 2\nwrote ");
    CHECK_HAS(r.err, "sum.ck, ");
    ran_free(&r);
    r = run_module(&tiny_module, FEEDS "--eval --quiet");
    CHECK(!strncmp(r.err, "evaluation: loss ", 17));
    CHECK_EQ_INT(count_lines(r.err), 1);
    ran_free(&r);
}

/* The point that a curve has for these losses, so far from its first step to
   its last: the page's numbers read back. */
static void check_point(const char *page, const char *point, double part,
                        double want) {
    double x, y, left, width, top, height, hi, lo;
    int used = 0;
    const char *frame = strstr(page, "train/loss</h2>");
    REQUIRE(frame && (frame = strstr(frame, "<rect ")));
    REQUIRE(sscanf(frame,
                   "<rect x=\"%lf\" y=\"%lf\" width=\"%lf\" height=\"%lf\"",
                   &left, &top, &width, &height) == 4);
    REQUIRE((frame = strstr(frame, "<text ")) &&
            sscanf(frame, "<text x=\"%*f\" y=\"%*f\">%lf</text>%n", &hi,
                   &used) == 1);
    REQUIRE(sscanf(frame + used, " <text x=\"%*f\" y=\"%*f\">%lf<", &lo) == 1);
    REQUIRE(sscanf(point, "%lf,%lf", &x, &y) == 2);
    CHECK_NEAR(hi - (y - top) / height * (hi - lo), want, (hi - lo) / 500);
    CHECK_NEAR(x, left + part * width, 0.06); /* as the page has it: 0.1 */
}

/* A run longer than a curve has points: means of several steps, all of them. */
TEST_CASE(run, a_page_of_curves) {
    write_data(40);
    char *log = good(&tiny_module,
                     FEEDS "--steps 3001 --report @page.html "
                           "--eval-feed x=@x.npy --eval-feed target=@t.npy");
    size_t n = 0;
    char *page = test_read_file(test_tmp("page.html"), &n);
    REQUIRE(page);
    CHECK_HAS(page, "<pre>trained 3,001 steps in ");
    CHECK_HAS(page, "<h2>train/loss</h2>");
    CHECK_HAS(page, "<h2>eval/loss</h2>");
    CHECK_HAS(page, ">step 4</text>"); /* the last of the first four */
    CHECK_HAS(page, ">3000</text>");
    CHECK_HAS(page, "</html>");
    CHECK(!strstr(page, "http") && !strstr(page, "src=") &&
          !strstr(page, "nan"));
    char *curve = strstr(strstr(page, "train/loss"), "points=\"");
    REQUIRE(curve);
    curve += 8;
    const char *line = log;
    for (int i = 0; i < 3001 / 4; i++) {
        double sum = 0;
        for (int k = 0; k < 4; line = strchr(line, '\n') + 1)
            if (!strncmp(line, "{\"step\"", 7)) {
                sum += field(line, 0, "loss");
                k++;
            }
        check_point(page, curve, i / 749.0, sum / 4);
        curve += strcspn(curve, " \"");
        curve += *curve == ' ';
    }
    CHECK(*curve == '"');
    free(log);
    free(page);
    bad(&tiny_module, FEEDS "--report @x.npy", 1,
        "--report would overwrite --feed");
    bad(&tiny_module, FEEDS "--report @no/such/page", 1, "No such file");
}

/* A learning rate of 0: no evaluation is better than the first. */
TEST_CASE(run, patience_ends_it) {
    write_data(40);
    Ran r = run_module(&tiny_module,
                       FEEDS "--epochs 9 --lr 0 --patience 2 --save @pat "
                             "--eval-feed x=@x.npy --eval-feed target=@t.npy");
    CHECK_EQ_INT(r.status, 0);
    CHECK_EQ_INT(count_lines(r.out), 33); /* three epochs, each evaluated */
    CHECK_HAS(r.err, "not fallen for 2 epochs: stopped after epoch 3");
    ran_free(&r);
    bad(&tiny_module, FEEDS "--patience 2", 2, "--eval-feed");
    bad(&tiny_module, FEEDS "--patience 0 --eval-feed x=y", 2, "is not a");
}

static bool there(const char *name) {
    return access(test_tmp(name), F_OK) == 0;
}

TEST_CASE(run, keeps_the_last_checkpoints) {
    write_data(40);
    REQUIRE(test_write_file(test_tmp("kp.step-x"), "mine", 4));
    REQUIRE(test_write_file(test_tmp("kp.step-99"), "later", 5));
    free(good(&tiny_module,
              FEEDS "--steps 10 --save @kp --save-every 2 --keep 2"));
    CHECK(there("kp") && there("kp.step-8") && there("kp.step-10"));
    CHECK(!there("kp.step-2") && !there("kp.step-4") && !there("kp.step-6"));
    CHECK(there("kp.step-x") && there("kp.step-99"));
    same_files("kp", "kp.step-10");
    free(good(&tiny_module, FEEDS "--steps 4 --save @kp --save-every 2"));
    free(good(&tiny_module, FEEDS "--load @kp.step-8 --steps 0"));
    bad(&tiny_module, FEEDS "--save @kp --keep 2", 2, "--save-every");
    write_data(40);
    REQUIRE(link(test_tmp("x.npy"), test_tmp("kq.step-2")) == 0);
    bad(&tiny_module, FEEDS "--steps 4 --save @kq --save-every 2 --keep 2", 1,
        "--keep would overwrite --feed");
}

/* A file system with one name for a file, such as FAT: link() fails. */
TEST_CASE(run, keeps_copies_where_there_are_no_links) {
    write_data(40);
    no_links = true;
    free(good(&tiny_module,
              FEEDS "--steps 10 --save @kc --save-every 2 --keep 2"));
    no_links = false;
    CHECK(there("kc.step-8") && there("kc.step-10") && !there("kc.step-6"));
    same_files("kc", "kc.step-10");
    CHECK_EQ_INT(test_temporaries(), 0);
}

/* Before the first step, not after the last. */
TEST_CASE(run, outputs_are_opened_before_the_work) {
    static const char *const options[] = {"--save @none/a",
                                          "--save-weights @none/a",
                                          "--report @none/a",
                                          "--tensorboard @none/a/b",
                                          "--profile @none/a",
                                          "--log @none/a",
                                          "--fetch @none/sub/a",
                                          "--eval --fetch @none/sub/a",
                                          EVAL_FEEDS "--save-best @none/a"};
    write_data(40);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        char words[400];
        snprintf(words, sizeof words, FEEDS "--steps 3 %s", options[i]);
        Ran r = run_module(&tiny_module, words);
        CHECK_EQ_INT(r.status, 1);
        CHECK_HAS(r.err, "No such file");
        CHECK_STR(r.out, "");
        ran_free(&r);
    }
    REQUIRE(mkdir(test_tmp("folder"), 0777) == 0);
    REQUIRE(mkdir(test_tmp("folder/y%2Fout.npy"), 0777) == 0);
    Ran r = run_module(&tiny_module, FEEDS "--steps 3 --fetch @folder");
    CHECK_EQ_INT(r.status, 1);
    CHECK_STR(r.out, "");
    ran_free(&r);
    rmdir(test_tmp("folder/y%2Fout.npy"));
    rmdir(test_tmp("folder"));
}

/* ---- ranks --------------------------------------------------------------- */

/* A process that is one of many must not train alone. */
TEST_CASE(run, ranks_whose_number_nobody_knows) {
    static const struct {
        const char *size, *rank, *address, *words, *why; /* NULL: it trains */
    } rows[] = {
        {NULL, NULL, NULL, "", NULL},
        {"1", "0", "127.0.0.1", "--comm tcp", NULL},
        {NULL, "7", NULL, "", NULL}, /* anybody's */
        {"two", "1", "127.0.0.1", "--comm tcp", "$WORLD_SIZE is 'two'"},
        {"1e1", "1", "127.0.0.1", "--comm tcp", "no number of processes"},
        {"-1", "1", "127.0.0.1", "--comm tcp", "no number of processes"},
        {"0", "1", "127.0.0.1", "--comm tcp", "no number of processes"},
        {"", "1", "127.0.0.1", "--comm tcp", "no number of processes"},
        {" 2", "1", "127.0.0.1", "--comm tcp", "no number of processes"},
        {"4294967297", "1", "127.0.0.1", "--comm tcp", "no number of"},
        {"4294967297", "1", "127.0.0.1", "", "no number of processes"},
        {"two", NULL, NULL, "", "no number of processes"},
        {"1", "1", "127.0.0.1", "", "$RANK is '1', of $WORLD_SIZE = 1"},
        {"1", "x", "127.0.0.1", "", "$RANK is 'x', of $WORLD_SIZE = 1"},
        {NULL, "1", "127.0.0.1", "", "$WORLD_SIZE does not say of how many"},
        {NULL, "x", "127.0.0.1", "", "$WORLD_SIZE does not say of how many"},
        {NULL, NULL, NULL, "--comm tcp", "no launcher says how many"},
        {NULL, NULL, NULL, "--comm nccl", "no launcher says how many"},
    };
    write_data(40);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char words[400];
        if (rows[i].size) setenv("WORLD_SIZE", rows[i].size, 1);
        if (rows[i].rank) setenv("RANK", rows[i].rank, 1);
        if (rows[i].address) setenv("MASTER_ADDR", rows[i].address, 1);
        snprintf(words, sizeof words, FEEDS "%s", rows[i].words);
        if (rows[i].why)
            bad(&tiny_module, words, 1, rows[i].why);
        else
            free(good(&tiny_module, words));
        unsetenv("WORLD_SIZE");
        unsetenv("RANK");
        unsetenv("MASTER_ADDR");
    }
    setenv("PMI_RANK", "1", 1);
    bad(&tiny_module, FEEDS, 1, "$PMI_SIZE does not say of how many");
    unsetenv("PMI_RANK");
}

/* Rank 1 of two is played: it has what rank 0 had in the run before, or the
   same as rank 0 now, until the run has nothing more to compare. */
enum { FACTS = 64 };
static struct Played {
    double before[FACTS];
    size_t n, at;
    bool again;
    char engine[8]; /* that was asked for */
} played;

static int played_sum(void *ctx, void *data, size_t count, int32_t dtype) {
    double *x = data;
    size_t own = count / 2;
    (void)ctx;
    if (dtype != AMPC_DTYPE_F64 || count % 2 || played.at + own > FACTS)
        return 1;
    for (size_t i = 0; i < own; i++) {
        if (x[own + i] != 0) return 1;
        x[own + i] = played.again ? played.before[played.at + i] : x[i];
    }
    if (!played.again) memcpy(played.before + played.at, x, own * sizeof *x);
    played.at += own;
    return 0;
}

static int played_share(void *ctx, void *data, size_t bytes, int32_t root) {
    (void)ctx, (void)data, (void)bytes;
    return root != 0;
}

static int played_barrier(void *ctx) {
    (void)ctx;
    return 0;
}

static const char *played_error(void *ctx) {
    (void)ctx;
    return "there was no more to compare";
}

static ampc_status played_open(const ampc_comm_options *o, ampc_comm **out,
                               char *err, size_t size) {
    static ampc_comm c = {.size = sizeof c,
                          .world = 2,
                          .allreduce = played_sum,
                          .broadcast = played_share,
                          .barrier = played_barrier,
                          .error = played_error};
    snprintf(played.engine, sizeof played.engine, "%s", o->engine);
    (void)err, (void)size;
    *out = &c;
    return AMPC_OK;
}

static void played_close(ampc_comm *c) { (void)c; }

static Ran run_played(const char *words, bool again) {
    ampc_api a = api_for(&tiny_module);
    a.comm_open = played_open;
    a.comm_close = played_close;
    played.again = again;
    played.at = 0;
    setenv("WORLD_SIZE", "2", 1);
    Ran r = run_api(&a, words);
    unsetenv("WORLD_SIZE");
    return r;
}

/* Every option that must be equal on all ranks; the options compared before are
   equal. */
TEST_CASE(run, ranks_that_differ_say_in_what) {
    static const struct {
        const char *one, *other, *what;
    } rows[] = {
        {FEEDS, "--feed x=@x44.npy --feed target=@t44.npy ",
         "number of samples in --feed"},
        {FEEDS EVAL_FEEDS,
         FEEDS "--eval-feed x=@x44.npy --eval-feed target=@t44.npy",
         "number of samples to evaluate"},
        {FEEDS "--steps 3", FEEDS "--steps 4", "--steps"},
        {FEEDS "--steps 3", FEEDS, "--steps"},
        {FEEDS "--epochs 3", FEEDS "--epochs 4", "--epochs"},
        {FEEDS EVAL_FEEDS "--patience 3", FEEDS EVAL_FEEDS "--patience 4",
         "--patience"},
        {FEEDS EVAL_FEEDS, FEEDS EVAL_FEEDS "--patience 1", "--patience"},
        {FEEDS "--max-skipped 3", FEEDS "--max-skipped 4", "--max-skipped"},
        {FEEDS, FEEDS "--shuffle", "--shuffle"},
        {FEEDS EVAL_FEEDS "--steps 1", FEEDS EVAL_FEEDS "--steps 1 --eval",
         "--eval"},
        {FEEDS "--steps 1", FEEDS "--steps 1 --fetch @rank.d", "--fetch"},
        {FEEDS "--save @rank.st", FEEDS "--save @rank.st --resume", "--resume"},
        {FEEDS, FEEDS "--load @rank.st", "--load"},
        {FEEDS "--load @rank.st", FEEDS "--load @rank.st --load @rank.2",
         "--load"},
        {FEEDS, FEEDS "--lr 0.5", "--lr"},
        {FEEDS "--lr 0.25", FEEDS "--lr 0.5", "--lr"}};
    char why[200];
    write_data(44);
    REQUIRE(!rename(test_tmp("x.npy"), test_tmp("x44.npy")) &&
            !rename(test_tmp("t.npy"), test_tmp("t44.npy")));
    write_data(40);
    free(good(&tiny_module, FEEDS "--steps 1 --save @rank.st"));
    free(good(&tiny_module, FEEDS "--steps 1 --save @rank.2"));
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
        const char *first = i % 2 ? rows[i / 2].other : rows[i / 2].one;
        const char *second = i % 2 ? rows[i / 2].one : rows[i / 2].other;
        Ran r = run_played(first, false);
        CHECK(!strstr(r.err, "was started with another"));
        ran_free(&r);
        r = run_played(second, true);
        CHECK_EQ_INT(r.status, 1);
        snprintf(why, sizeof why,
                 "rank 1 was started with another %s than rank 0",
                 rows[i / 2].what);
        CHECK_HAS(r.err, why);
        ran_free(&r);
    }
}

/* ---- TensorBoard --------------------------------------------------------- */

static uint32_t crc32c(const unsigned char *p, size_t n) {
    uint32_t crc = ~0u;
    while (n--) {
        crc ^= *p++;
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static uint32_t masked(const unsigned char *p, size_t n) {
    uint32_t crc = crc32c(p, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* The value of `tag` in an event that holds it, by its bytes. */
static bool event_value(const unsigned char *p, size_t n, const char *tag,
                        float *x) {
    size_t k = strlen(tag);
    unsigned char *at = memmem(p, n, tag, k);
    if (!at || at[-1] != k || at[-2] != 0x0a || at[k] != 0x15) return false;
    memcpy(x, at + k + 1, 4);
    return true;
}

/* Read with the format's description, not with our writer: framing, checksums
   (RFC 3720's test vector), the first message, every loss of the log. */
TEST_CASE(run, tensorboard_events) {
    CHECK_EQ_INT(crc32c((const unsigned char *)"123456789", 9), 0xe3069283u);
    write_data(40);
    char *out = good(&tiny_module,
                     FEEDS "--epochs 1 --tensorboard @tb "
                           "--eval-feed x=@x.npy --eval-feed target=@t.npy");
    char *names, *save = NULL;
    REQUIRE(test_command(&names, "ls '%s'", test_tmp("tb")) == 0);
    char *name = strtok_r(names, "\n", &save);
    REQUIRE(name && !strtok_r(NULL, "\n", &save));
    CHECK(strncmp(name, "events.out.tfevents.", 20) == 0);
    StrBuf path = {0};
    sb_printf(&path, "tb/%s", name);
    size_t n = 0;
    unsigned char *file =
                      (unsigned char *)test_read_file(test_tmp(path.data), &n),
                  *p = file;
    REQUIRE(file);
    int events = 0;
    bool evaluated = false;
    for (uint64_t bytes; p < file + n; p += 12 + bytes + 4, events++) {
        uint32_t sum;
        float x;
        memcpy(&bytes, p, 8);
        memcpy(&sum, p + 8, 4);
        CHECK_EQ_INT(sum, masked(p, 8));
        REQUIRE(bytes < (uint64_t)(file + n - p) - 15);
        memcpy(&sum, p + 12 + bytes, 4);
        CHECK_EQ_INT(sum, masked(p + 12, bytes));
        if (events == 0)
            CHECK(memmem(p + 12, bytes, "brain.Event:2", 13) != NULL);
        if (event_value(p + 12, bytes, "train/loss", &x)) {
            CHECK_EQ_INT(p[12 + 9], 0x10); /* field 2: the step */
            CHECK_EQ_INT(p[12 + 10], events);
            CHECK(x == (float)field(out, events - 1, "loss"));
        }
        if (event_value(p + 12, bytes, "eval/loss", &x)) {
            evaluated = true;
            CHECK(x == (float)field(out, events - 1, "eval_loss"));
        }
    }
    CHECK(evaluated);
    CHECK_EQ_INT(events, 12); /* the version, 10 steps, an evaluation */
    free(file);
    free(names);
    free(out);
    sb_free(&path);
}

/* ---- data ---------------------------------------------------------------- */

/* The same samples, read from text, tokens and arrays. */
TEST_CASE(run, data_from_text_and_tokens) {
    StrBuf text = {0};
    uint16_t tokens[9];
    float x[8 * TINY_IN];
    int64_t t[8];
    sb_puts(&text, "a,b,c,class\n");
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < TINY_IN; k++)
            x[i * TINY_IN + k] = (float)(i * k) / 8;
        tokens[i] = (uint16_t)(t[i] = i % 2);
        sb_printf(&text, "0,%g,%g,%d\n", i / 8.0, i / 4.0, i % 2);
    }
    tokens[8] = 0;
    REQUIRE(test_write_file(test_tmp("d.csv"), text.data, text.len));
    REQUIRE(test_write_file(test_tmp("d.bin"), tokens, sizeof tokens));
    sb_free(&text);
    write_npy("dx.npy", AMPC_DTYPE_F32, 2, (int64_t[]){8, TINY_IN}, x);
    write_npy("dt.npy", AMPC_DTYPE_I64, 1, (int64_t[]){8}, t);
    char *want =
        good(&tiny_labels, "--feed x=@dx.npy --feed target=@dt.npy --epochs 3");
    char *csv =
        good(&tiny_labels, "--feed x=@d.csv:0-2 --feed target=@d.csv:class "
                           "--epochs 3");
    char *bin = good(&tiny_labels,
                     "--feed x=@d.csv:a,b,c --feed target=@d.bin --epochs 3");
    for (int i = 0; i < 6; i++) {
        CHECK(field(want, i, "loss") == field(csv, i, "loss"));
        CHECK(field(want, i, "loss") == field(bin, i, "loss"));
    }
    free(want);
    free(csv);
    free(bin);
    bad(&tiny_labels, "--feed x=@d.csv --feed target=@d.csv:class", 1,
        "element counts differ");
    bad(&tiny_labels, "--feed x=@none:1 --feed target=@d.csv:class", 1,
        "No such file");
    bad(&tiny_labels,
        "--feed x=@d.csv:0-2 --feed target=@d.csv:class "
        "--save @d.csv",
        1, "--save would overwrite --feed");
}

/* ---- weights ------------------------------------------------------------- */

/* The one tensor `name`, f32[2], of another program. */
static void write_tensor(const char *file, const char *name) {
    char text[200] = {0};
    uint64_t n = (uint64_t)snprintf(text + 8, 150,
                                    "{\"%s\":{\"dtype\":\"F32\",\"shape\":[2],"
                                    "\"data_offsets\":[0,8]}}",
                                    name);
    memcpy(text, &n, 8);
    REQUIRE(test_write_file(test_tmp(file), text, 16 + n));
}

TEST_CASE(run, loads_and_saves_weights_of_others) {
    write_data(8);
    write_tensor("bias", "net.b");
    write_tensor("head", "fc.b");
    bad(&tiny_module, FEEDS "--load @bias", 1, "'net.b'; here: 'w', 'b'");
    bad(&tiny_module, FEEDS "--load @bias", 1,
        "; --load-map 'net.=' would find 1");
    bad(&tiny_module, FEEDS "--load @head", 1, "; --load-map 'fc.=' would");
    Ran r = run_module(&tiny_module,
                       FEEDS "--load @bias --load @head --load-map net.= "
                             "--steps 0 --quiet --save-weights @mine");
    CHECK_EQ_INT(r.status, 0);
    CHECK_HAS(r.err, "1 of 3 weights loaded; 2 missing, left as they were: "
                     "'w', 'running \"mean\"'; 1 tensors are not in this "
                     "module: 'fc.b'");
    ran_free(&r);
    r = run_module(&tiny_module, FEEDS "--load @mine --steps 0");
    CHECK_EQ_INT(r.status, 0);
    CHECK(!strstr(r.err, "missing"));
    ran_free(&r);
    bad(&tiny_module, FEEDS "--load-map a=b", 2, "--load");
    bad(&tiny_module, FEEDS "--load @mine --load-map a", 2, "OLD=NEW");
    bad(&tiny_module, FEEDS "--load @mine --load-map a=b", 1, "renaming 'a=b'");
    bad(&tiny_module, FEEDS "--load @mine --save-weights @mine", 1,
        "--save-weights would overwrite --load");
    bad(&tiny_module, FEEDS "--save-weights @no/such/x", 1, "No such file");
}

/* ---- mistakes ------------------------------------------------------------ */

/* Options that are refused, with their messages, and options that are accepted
   beside them. */
TEST_CASE(run, usage_errors) {
    static const struct {
        const char *refused, *why, *taken;
    } rows[] = {
        {"--frobnicate", "unknown option '--frobnicate'", ""},
        {"--steps", "a value is missing after '--steps'", "--steps 0"},
        {"--steps x", "--steps: 'x' is not a whole number >= 0", "--steps 1"},
        {"--steps -1", "--steps: '-1' is not a whole number >= 0", "--steps 0"},
        {"--steps 1x", "--steps: '1x' is not a whole number >= 0", "--steps 1"},
        {"--steps 9223372036854775808", "is not a whole number >= 0",
         "--steps 2"},
        {"--epochs -1", "--epochs: '-1' is not a whole number >= 0",
         "--epochs 0"},
        {"--steps 0 --epochs 0", "give --steps or --epochs, not both", ""},
        {"--threads -1", "--threads: '-1' is not a whole number >= 0",
         "--threads 0"},
        {"--threads 1025", "at most 1024: '--threads'", "--threads 1024"},
        {"--max-skipped -2", "'-2' is not a whole number >= -1",
         "--max-skipped -1"},
        {"--max-skipped 2147483648", "too many: '--max-skipped'",
         "--max-skipped 2147483647"},
        {"--deadline 0", "'0' is not a whole number >= 1", "--deadline 1"},
        {"--deadline 1000000001", "too long: '--deadline'",
         "--deadline 1000000000"},
        {"--lr big", "--lr: 'big' is not a number", "--lr 1e-3"},
        {"--lr inf", "--lr: 'inf' is not a number", "--lr 0"},
        {"--lr nan", "--lr: 'nan' is not a number", "--lr 0"},
        {"--lr -1e-9", "--lr: '-1e-9' is not a number >= 0", "--lr 1e-9"},
        {"--resume", "resume from is missing: '--save'", ""},
        {"--resume --save @none --load @none",
         "cannot be combined with '--load'", ""},
        {"--load-map a=b", "renames the tensors of '--load'", ""},
        {"--load @none --load-map ab", "--load-map: OLD=NEW is needed", ""},
        {"--save-every 1", "--save-every needs a file: '--save'",
         "--save @s --save-every 1"},
        {"--save @s --save-every 0", "'0' is not a whole number >= 1",
         "--save @s --save-every 1"},
        {"--save @s --keep 1", "checkpoints to keep: '--save-every'",
         "--save @s --save-every 1 --keep 1"},
        {"--save @s --save-every 1 --keep 0", "'0' is not a whole number >= 1",
         ""},
        {"--patience 1", "--patience needs data to evaluate: '--eval-feed'",
         EVAL_FEEDS "--patience 1"},
        {EVAL_FEEDS "--patience 0", "'0' is not a whole number >= 1", ""},
        {"--save-best @b", "--save-best needs data to evaluate: '--eval-feed'",
         EVAL_FEEDS "--save-best @b"},
        {"--feed x", "--feed: NAME=FILE is needed, not 'x'", ""},
        {"--eval-feed x", "--eval-feed: NAME=FILE is needed, not 'x'", ""},
        {"--comm foo", "mpi, nccl or tcp, not 'foo'", "--comm mpi"},
        {"--eval --shuffle", "so this has no effect: '--shuffle'",
         "--eval --epochs 1 --shuffle"},
        {"--fetch @f --save @s --save-every 1", "no effect: '--save-every'",
         "--fetch @f --steps 1 --save @s --save-every 1"},
        {"--eval " EVAL_FEEDS "--patience 1", "no effect: '--patience'", ""},
        {"--eval " EVAL_FEEDS "--save-best @b", "no effect: '--save-best'", ""},
        {"--fetch @f " EVAL_FEEDS, "no effect: '--eval-feed'",
         "--fetch @f --eval " EVAL_FEEDS},
        {"a b", "unexpected argument", ""},
    };
    write_data(8);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char words[400];
        snprintf(words, sizeof words, FEEDS "%s", rows[i].refused);
        bad(&tiny_module, words, 2, rows[i].why);
        snprintf(words, sizeof words, FEEDS "%s", rows[i].taken);
        free(good(&tiny_module, words));
    }
}

TEST_CASE(run, data_errors) {
    write_data(8);
    bad(&tiny_module, "--feed x=@x.npy", 1, "input 'target' is not fed");
    bad(&tiny_module, FEEDS "--feed z=@x.npy", 1, "inputs: x, target");
    bad(&tiny_module, FEEDS "--feed x=@x.npy", 1, "fed twice");
    bad(&tiny_module, "--feed x=@none --feed target=@t.npy", 1, "No such file");
    bad(&tiny_module, "--feed x=@t.npy --feed target=@t.npy", 1,
        "f32[8,2] does not fit input 'x' f32[4,3]: element counts differ");
    bad(&tiny_module, "--feed x=@t.npy --feed target=@x.npy", 1,
        "f32[8,2] does not fit input 'x' f32[4,3]");
    double w[24] = {0};
    w[22] = 1e39;
    write_npy("w.npy", AMPC_DTYPE_F64, 2, (int64_t[]){8, 3}, w);
    bad(&tiny_module, "--feed x=@w.npy --feed target=@t.npy", 1,
        "sample 7: the value 1e+39 does not fit input 'x', f32");
    write_npy("w.npy", AMPC_DTYPE_F32, 2, (int64_t[]){7, 3}, w);
    bad(&tiny_module, "--feed x=@w.npy --feed target=@t.npy", 1,
        "8 samples; the other inputs have 7");
    write_npy("w.npy", AMPC_DTYPE_F32, 2, (int64_t[]){0, 3}, w);
    write_npy("v.npy", AMPC_DTYPE_F32, 2, (int64_t[]){0, 2}, w);
    bad(&tiny_module, "--feed x=@w.npy --feed target=@v.npy", 1, "0 samples");
    /* the place is the empty file, whose long path may be cut */
    bad(&tiny_module, "--feed x=@w.npy --feed target=@t.npy", 1,
        ": error: the file has 0 samples");
    bad(&tiny_module, "--feed x=@x.npy --feed target=@v.npy", 1,
        ": error: the file has 0 samples");
    write_data(3);
    bad(&tiny_module, FEEDS, 1, "3 samples: one optimizer step needs 4");
    int64_t big[4] = {0, 1, INT64_MAX, 0};
    uint64_t huge[4] = {0, 1, UINT64_MAX, 0};
    write_data(4);
    write_npy("l.npy", AMPC_DTYPE_I64, 1, (int64_t[]){4}, big);
    bad(&tiny_module, "--feed x=@x.npy --feed target=@l.npy", 1, "target");
    write_npy("l.npy", AMPC_DTYPE_U64, 1, (int64_t[]){4}, huge);
    bad(&tiny_labels, "--feed x=@x.npy --feed target=@l.npy", 1,
        "sample 2: the value 18446744073709551615 does not fit");
}

/* Files with the same values in every width. */
TEST_CASE(run, floating_numbers_of_other_widths) {
    enum { N = 8 * TINY_IN };
    float x[N];
    double wide[N];
    uint16_t half[N], brain[N];
    int8_t small[N];
    const struct {
        int dtype;
        const void *data;
    } forms[] = {{AMPC_DTYPE_F64, wide},
                 {AMPC_DTYPE_F16, half},
                 {AMPC_DTYPE_BF16, brain},
                 {AMPC_DTYPE_I8, small}};
    for (int i = 0; i < N; i++) {
        wide[i] = x[i] = small[i] = (int8_t)(5 * i - 60);
        half[i] = f32_to_f16(x[i]);
        brain[i] = f32_to_bf16(x[i]);
    }
    write_data(8);
    write_npy("f.npy", AMPC_DTYPE_F32, 2, (int64_t[]){8, TINY_IN}, x);
    free(good(&tiny_module, "--feed x=@f.npy --fetch @as32"));
    for (int k = 0; k < 4; k++) {
        write_npy("w.npy", forms[k].dtype, 2, (int64_t[]){8, TINY_IN},
                  forms[k].data);
        free(good(&tiny_module, "--feed x=@w.npy --fetch @other"));
        same_files("as32/y%2Fout.npy", "other/y%2Fout.npy");
    }
}

/* An axis of 2^62 samples of nothing must not become 0 samples of something. */
TEST_CASE(run, shapes_that_wrap) {
    static const int64_t shapes[][2] = {
        {INT64_C(1) << 62, 0}, {0, INT64_C(1) << 62}, {INT64_MAX, 0}};
    for (int i = 0; i < 3; i++) {
        StrBuf sb = {0};
        npy_header(&sb, AMPC_DTYPE_F32, 2, shapes[i]);
        REQUIRE(test_write_file(test_tmp("wrap.npy"), sb.data, sb.len));
        sb_free(&sb);
        bad(&tiny_module, "--feed x=@wrap.npy --fetch @wrapped", 1,
            i == 1 ? "0 samples" : "does not fit input 'x'");
        CHECK(access(test_tmp("wrapped"), F_OK) != 0);
    }
}

/* Reading and writing one file would destroy its data. */
TEST_CASE(run, no_file_is_read_and_written) {
    write_data(8);
    free(good(&tiny_module, FEEDS "--save @kept"));
    bad(&tiny_module, FEEDS "--save @x.npy", 1,
        "--save would overwrite --feed");
    bad(&tiny_module, FEEDS "--log @t.npy", 1, "--log would overwrite --feed");
    bad(&tiny_module, FEEDS "--load @kept --save @kept", 1,
        "--save would overwrite --load");
    free(good(&tiny_module, FEEDS "--save @kept --resume"));
    CHECK(access(test_tmp("kept.prev"), F_OK) == 0);
    bad(&tiny_module, FEEDS "--load @kept.prev --save @kept", 1,
        "--save would overwrite --load");
    bad(&tiny_module, FEEDS "--log @same --profile @same", 1,
        "--profile would overwrite --log");
    bad(&tiny_module, FEEDS "--save @same --log @./same", 1,
        "--log would overwrite --save");
    REQUIRE(mkdir(test_tmp("out"), 0755) == 0);
    REQUIRE(link(test_tmp("x.npy"), test_tmp("out/y%2Fout.npy")) == 0);
    bad(&tiny_module, "--feed x=@x.npy --fetch @out", 1,
        "--fetch would overwrite --feed");
    free(good(&tiny_module, FEEDS "--save @kept --resume"));
}

TEST_CASE(run, what_is_no_file_is_not_written) {
    struct stat st;
    write_data(8);
    REQUIRE(mkfifo(test_tmp("pipe"), 0600) == 0);
    REQUIRE(symlink("/dev/null", test_tmp("sink")) == 0);
    alarm(60);
    bad(&tiny_module, FEEDS "--save @pipe", 1, "not a regular file");
    bad(&tiny_module, FEEDS "--profile @pipe", 1, "not a regular file");
    bad(&tiny_module, FEEDS "--save @sink", 1, "symbolic link");
    free(good(&tiny_module, FEEDS "--log @sink")); /* a device takes lines */
    bad(&tiny_module, FEEDS "--fetch @pipe", 1, "not a folder");
    alarm(0);
    CHECK(lstat(test_tmp("pipe"), &st) == 0 && S_ISFIFO(st.st_mode));
    CHECK(lstat(test_tmp("sink"), &st) == 0 && S_ISLNK(st.st_mode));
}

TEST_CASE(run, names_that_older_versions_used_are_the_users) {
    static const char *const names[] = {"ck.tmp", "pr.json.tmp",
                                        "fo/y%2Fout.npy.tmp"};
    write_data(8);
    REQUIRE(mkdir(test_tmp("fo"), 0755) == 0);
    for (int i = 0; i < 3; i++)
        REQUIRE(test_write_file(test_tmp(names[i]), "mine", 4));
    free(good(&tiny_module,
              FEEDS "--save @ck --profile @pr.json --fetch @fo --eval"));
    for (int i = 0; i < 3; i++) {
        char *text = test_read_file(test_tmp(names[i]), NULL);
        CHECK_STR(text ? text : "(gone)", "mine");
        free(text);
    }
}

TEST_CASE(run, other_errors_leave_no_output) {
    write_data(8);
    bad(&tiny_module, FEEDS "--device cuda", 1, "CPU only");
    bad(&tiny_module, FEEDS "--load @none", 1, "No such file");
    bad(&tiny_module, FEEDS "--resume --save @none", 1, "No such file");
    CHECK(access(test_tmp("none"), F_OK) != 0);
    bad(&tiny_module, FEEDS "--log @no/such/log", 1, "No such file");
    bad(&tiny_module, FEEDS "--profile @p.json --save @no/such", 1, "No such");
    CHECK(access(test_tmp("p.json"), F_OK) != 0);
    bad(&tiny_module, FEEDS "--load @x.npy", 1, "safetensors");
}

TEST_CASE(run, not_a_module) {
    char *argv[] = {"run", NULL, "--feed", "x=y"};
    write_data(4);
    argv[1] = (char *)test_tmp("x.npy");
    CHECK_EQ_INT(run_cmd(4, argv, NULL), 1);
    argv[1] = "/lib/x86_64-linux-gnu/libc.so.6";
    CHECK_EQ_INT(run_cmd(4, argv, NULL), 1);
    argv[1] = "/nonexistent.so";
    CHECK_EQ_INT(run_cmd(4, argv, NULL), 1);
}

/* A launcher that starts no MPI says both where rank 0 is and who this is. */
TEST_CASE(run, who_adds_for_the_ranks) {
    static const struct {
        const char *address, *rank, *words, *engine;
    } rows[] = {
        {NULL, NULL, FEEDS, "mpi"},
        {"127.0.0.1", NULL, FEEDS, "mpi"},
        {NULL, "0", FEEDS, "mpi"},
        {"127.0.0.1", "0", FEEDS, "nccl"},
        {"127.0.0.1", "0", FEEDS "--device auto", "nccl"},
        {"127.0.0.1", "0", FEEDS "--device cpu", "tcp"},
        {NULL, NULL, FEEDS "--device cpu", "mpi"},
        {"127.0.0.1", "0", FEEDS "--comm mpi", "mpi"},
        {NULL, NULL, FEEDS "--comm tcp", "tcp"},
    };
    write_data(40);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].address) setenv("MASTER_ADDR", rows[i].address, 1);
        if (rows[i].rank) setenv("RANK", rows[i].rank, 1);
        *played.engine = 0;
        Ran r = run_played(rows[i].words, false);
        unsetenv("MASTER_ADDR");
        unsetenv("RANK");
        CHECK_STR(played.engine, rows[i].engine);
        ran_free(&r);
    }
}

static ampc_status refused_open(const ampc_comm_options *o, ampc_comm **out,
                                char *err, size_t size) {
    (void)o;
    *out = NULL;
    snprintf(err, size, "no library");
    return AMPC_ERR_COMM;
}

/* No launcher says that it has started this process: MPI is asked, since a rank
   that trains alone would train another model, without a word. */
TEST_CASE(run, mpi_is_asked_how_many_there_are) {
    ampc_api a = api_for(&tiny_module);
    a.comm_open = played_open;
    a.comm_close = played_close;
    played.again = false;
    played.at = 0;
    *played.engine = 0;
    write_data(40);
    Ran r = run_api(&a, FEEDS "--comm mpi");
    CHECK_STR(played.engine, "mpi");
    ran_free(&r);
    a.comm_open = refused_open;
    r = run_api(&a, FEEDS "--comm mpi");
    CHECK_EQ_INT(r.status, 1);
    CHECK_HAS(r.err, "--comm mpi: no launcher says how many processes there "
                     "are (mpirun, srun), and MPI cannot: no library");
    ran_free(&r);
    r = run_api(&a, FEEDS);
    CHECK_EQ_INT(r.status, 0);
    ran_free(&r);
}
