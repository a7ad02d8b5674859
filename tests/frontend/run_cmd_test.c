/* SPDX-License-Identifier: Apache-2.0 */
/* run_cmd_test.c: training and resuming with `ampc run`; run_cmd/ has the other
   subjects. */
#define _GNU_SOURCE
#include "tests/frontend/run_cmd/ran.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/program/dtype.h"
#include "runtime/base/json.h"
#include "runtime/api/session.h"

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
    CHECK_EQ_INT(count_lines(out), 13); /* 10 per epoch: continues in the
                                           next one */
    CHECK(field(out, 10, "lr") == 0.05);
    free(out);
}

TEST_CASE(run, changes_keys_of_the_schedule) {
    write_data(40);
    char *out = good(&tiny_module, FEEDS "--steps 3 --hyper lr=0.025");
    CHECK(field(out, 2, "lr") == 0.025);
    free(out);
    out = good(&tiny_module, FEEDS "--steps 1 --hyper lr=1epochs");
    CHECK(field(out, 0, "lr") == 40 / TINY_BATCH);
    free(out);
    out = good(&tiny_module, FEEDS "--steps 3 --hyper lr=50%"); /* rounds up */
    CHECK(field(out, 0, "lr") == 2);
    free(out);
    bad(&tiny_module, FEEDS "--hyper warmup=5%", 1, "the module has: lr");
    bad(&tiny_module, FEEDS "--hyper lr=5x", 2, "'lr=5x': a value is");
    bad(&tiny_module, FEEDS "--hyper lr=-1", 1,
        "cannot be -1; it is a number from 0 to 1e+38\n");
    bad(&tiny_module, FEEDS "--hyper lr", 2, "KEY=VALUE is needed");
    bad(&tiny_module, FEEDS "--hyper lr=1 --eval", 2, "no effect: '--hyper'");
}

/* Compared with ReduceLROnPlateau, written here, over the losses in the log;
   the run is interrupted and resumed in the middle. */
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
                                  "min_lr=0.04 %s",
                 runs[k]);
        char *out = good(&tiny_module, words);
        for (int e = 0; e < 6; e++) { /* two steps and an evaluation each */
            CHECK_REL(field(out, 3 * e, "lr"), lr, 1e-6);
            double loss = field(out, 3 * e + 2, "eval_loss");
            bad_epochs = loss < best * 0.7 ? 0 : bad_epochs + 1;
            if (!bad_epochs) best = loss;
            if (bad_epochs <= 1) continue;
            lowered += lr > 0.04;
            lr = fmax(lr * 0.5, 0.04);
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

/* Four digits of a number, as in the summary. */
static void check_told(double told, double is, const char *what,
                       const char *words) {
    CHECK_MSG(fabs(told - is) <= 6e-4 * fabs(is) + 1e-12, "%s: %s %g, not %g",
              words, what, told, is);
}

/* The seconds in "4.42 s", "23.8 ms" or "3.2 us". */
static double told_seconds(const char *text) {
    char *unit;
    double x = strtod(text, &unit);
    return !strncmp(unit, " us", 3)   ? x / 1e6
           : !strncmp(unit, " ms", 3) ? x / 1e3
           : !strncmp(unit, " s", 2)  ? x
                                      : NAN;
}

/* A number with commas. */
static double told_count(const char *text) {
    double x = 0;
    if (text[strspn(text, "0123456789,")] == '.') return strtod(text, NULL);
    for (; *text == ',' || (*text >= '0' && *text <= '9'); text++)
        if (*text != ',') x = 10 * x + (*text - '0');
    return x;
}

/* The summary compared with the log: steps, times, samples, losses. */
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
                   "trained %d %*s in %19[^(](%19[^,], %19s samples/s): "
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

/* Steps of the profile do not overlap; their total is below the run's time. */
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

/* The position in the data is kept only if the data have equally many
   samples. */
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

/* A note says that the random choices differ from before. */
TEST_CASE(run, resumes_with_another_augmentation) {
    static const char note[] = "--augment differs from the checkpoint's";
    write_data(42);
    free(good(&tiny_module, FEEDS "--save @drawn --steps 3 --augment "
                                  "x=normalize:0.5/2"));
    Ran r = run_module(&tiny_module, FEEDS "--save @drawn --resume --steps 4 "
                                           "--augment x=normalize:0.5/2");
    CHECK_EQ_INT(r.status, 0);
    CHECK(!strstr(r.err, note));
    ran_free(&r);
    r = run_module(&tiny_module, FEEDS "--save @drawn --resume --steps 5");
    CHECK_EQ_INT(r.status, 0);
    CHECK_HAS(r.err, note);
    ran_free(&r);
}

/* A truncated checkpoint: the run continues from the previous one, and says
   so. */
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

/* The newest complete checkpoint of those kept, if neither CKPT nor
   CKPT.prev is complete. */
TEST_CASE(run, resumes_from_the_newest_kept_checkpoint_that_is_whole) {
#define KEEPING FEEDS "--save @kr --save-every 2 --keep 3 "
    static const char *const names[] = {"kr.step-6", "kr", "kr.prev"};
    write_data(42);
    free(good(&tiny_module, KEEPING "--steps 6"));
    for (int i = 0; i < 3; i++) /* two names of one file share its bytes */
        if (unlink(test_tmp(names[i])) == 0)
            REQUIRE(test_write_file(test_tmp(names[i]), "torn", 4));
    REQUIRE(access(test_tmp("kr.step-4"), F_OK) == 0);
    bad(&tiny_module, FEEDS "--save @kr --resume --steps 2", 1, "kr: ");
    Ran r = run_module(&tiny_module, KEEPING "--resume --steps 2");
    CHECK_EQ_INT(r.status, 0);
    CHECK_HAS(r.err, "kr.step-4");
    CHECK_EQ_INT(field(r.out, 0, "step"), 5);
    ran_free(&r);
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

/* Batches with copies of one sample would hide it: with a learning rate of 0
   the losses of an epoch have the same sum in any order. */
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
