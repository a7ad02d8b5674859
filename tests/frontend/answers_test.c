/* SPDX-License-Identifier: Apache-2.0 */
/* answers_test.c: what `ampc` tells in several places is the same everywhere:
   reports and `ampc inspect`, the log and the page of a run. Numbers that
   commands refuse are refused below their bound and taken at it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/support/small_model.h"

/* Output of a command in the test's folder, where $AMPC is; for free(). */
static char *says(int status, const char *command) {
    char *out;
    int rc = test_command(
        &out, "cd '%s' && export AMPC='%s' AMPC_LIBNVRTC=none && %s",
        test_tmpdir(), test_ampc(), command);
    CHECK_MSG(rc == status, "%s: status %d, not %d\n%s", command, rc, status,
              out);
    return out;
}

static void make_files(void) {
    REQUIRE(
        test_write_file(test_tmp("m.amp"), small_model, strlen(small_model)));
    REQUIRE(test_write_file(test_tmp("d.csv"), small_data, strlen(small_data)));
    free(says(0, "for f in html json txt; do $AMPC m.amp -o m.so --target "
                 "cpu:x86-64-v2 --report r.$f || exit; done"));
}

static char *read_text(const char *name) {
    char *text = test_read_file(test_tmp(name), NULL);
    if (!text) FAIL("%s: not there", name);
    return text;
}

/* ---- reports ------------------------------------------------------------- */

/* What inspect says of a question, of a module or its model, is in the report
   in this form, behind `head` and the question. */
static void check_answer(const char *question, const char *of, const char *form,
                         const char *head, const char *report) {
    char command[200], want[100];
    snprintf(command, sizeof command, "$AMPC inspect %s --%s %s", of, question,
             form);
    snprintf(want, sizeof want, head, question);
    char *answer = says(0, command), *text = read_text(report);
    const char *at = strstr(text, want);
    size_t n = strlen(answer);
    while (n && answer[n - 1] == '\n') n--;
    CHECK_MSG(n > 20 && at && !strncmp(at + strlen(want), answer, n),
              "%s: %s says\n%s\nnot as behind %s in %s", command, of, answer,
              want, report);
    free(answer);
    free(text);
}

TEST_CASE(answers, reports_are_what_inspect_says) {
    static const char *const questions[] = {"params", "nodes", "casts",
                                            "kernels", "memory"};
    make_files();
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++)
        for (int k = 0; k < 2; k++) {
            const char *of = k ? "m.amp --target cpu:x86-64-v2" : "m.so";
            check_answer(questions[i], of, "", "\n%s\n", "r.txt");
            check_answer(questions[i], of, "--json", "\"%s\":", "r.json");
            check_answer(questions[i], of, "--json", "\"%s\":", "r.html");
        }
}

/* ---- the page of a run --------------------------------------------------- */

/* The numbers behind a word in each line of a log that has it. */
static int log_numbers(const char *log, const char *word, double *x, int most) {
    int n = 0;
    for (const char *p = log; n < most && (p = strstr(p, word)); n++)
        x[n] = strtod(p += strlen(word), NULL);
    return n;
}

/* The steps of the lines of a log that have the word. */
static void steps_of(const char *log, const char *word, double *step,
                     int most) {
    const char *p = log;
    for (int n = 0; n < most && (p = strstr(p, word)); n++, p++) {
        const char *at = p;
        while (at > log && strncmp(at, "\"step\":", 7) != 0) at--;
        step[n] = strtod(at + 7, NULL);
    }
}

/* The numbers in brackets behind p, up to the next ']'. */
static int list_numbers(const char *p, double *x, int most) {
    int n = 0;
    for (char *end; *p != ']' && n < most; p = *end == ',' ? end + 1 : end) {
        x[n++] = strtod(p, &end);
        REQUIRE(end != p);
    }
    return n;
}

/* A curve of the page has the steps and numbers of the log. */
static void check_curve(const char *page, const char *tag, const char *log,
                        const char *word, int steps) {
    char want[60];
    double x[20], y[20], at[20], step[20];
    snprintf(want, sizeof want, "{\"tag\":\"%s\",\"steps\":[", tag);
    const char *curve = strstr(page, want);
    if (!CHECK_MSG(curve != NULL, "%d steps: no curve %s", steps, tag)) return;
    int n = log_numbers(log, word, x, 20);
    int m = list_numbers(curve + strlen(want), at, 20);
    const char *means = strstr(curve, "\"means\":[");
    REQUIRE(means != NULL);
    int k = list_numbers(means + strlen("\"means\":["), y, 20);
    if (!CHECK_MSG(n == m && n == k,
                   "%d steps: %s: %d numbers in the log, %d steps and %d "
                   "numbers on the page",
                   steps, tag, n, m, k))
        return;
    steps_of(log, word, step, 20);
    for (int i = 0; i < n; i++)
        CHECK_MSG(at[i] == step[i],
                  "%d steps: %s: number %d is of step %g, on the page of %g",
                  steps, tag, i, step[i], at[i]);
    for (int i = 0; i < n; i++)
        CHECK_MSG(fabs(x[i] - y[i]) <= 1e-6 * fabs(x[i]),
                  "%d steps: %s: number %d is %g in the log, %g on the page",
                  steps, tag, i, x[i], y[i]);
}

TEST_CASE(answers, curves_are_those_of_the_log) {
    static const int steps[] = {1, 2, 3, 7, 8};
    make_files();
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        char command[300];
        snprintf(command, sizeof command,
                 "rm -f l.jsonl && $AMPC run m.so " SMALL_FEED
                 "--eval-feed x=d.csv:0-2 --eval-feed target=d.csv:t "
                 "--steps %d --log l.jsonl --report p.html",
                 steps[i]);
        free(says(0, command));
        char *log = read_text("l.jsonl"), *page = read_text("p.html");
        check_curve(page, "train/loss", log, "\"loss\":", steps[i]);
        check_curve(page, "train/grad_norm", log, "\"grad_norm\":", steps[i]);
        check_curve(page, "eval/loss", log, "\"eval_loss\":", steps[i]);
        check_curve(page, "eval/accuracy", log, "\"accuracy\":", steps[i]);
        CHECK_MSG(!strstr(page, "\"steps\":[]"), "%d steps: an empty curve",
                  steps[i]);
        free(log);
        free(page);
    }
}

/* A log goes to standard error when that is its file, and only there. */
TEST_CASE(answers, logs_go_where_they_are_sent) {
    make_files();
    for (int k = 1; k < 3; k++) {
        char command[300];
        snprintf(command, sizeof command,
                 "$AMPC run m.so " SMALL_FEED "--steps 2 --quiet --log /dev/%s "
                 ">1.txt 2>2.txt && ls",
                 k == 1 ? "stdout" : "stderr");
        free(says(0, command));
        char *out = read_text("1.txt"), *err = read_text("2.txt");
        CHECK_MSG(!strstr(out, "\"loss\":") == (k == 2), "%s", out);
        CHECK_MSG(!strstr(err, "\"loss\":") == (k == 1), "%s", err);
        free(out);
        free(err);
    }
}

/* The run waits for a process that reads the pipe. */
TEST_CASE(answers, pipes_get_the_whole_log) {
    make_files();
    free(says(0, "mkfifo pipe && { (sleep 1; cat pipe >got) & } && "
                 "$AMPC run m.so " SMALL_FEED "--steps 5 --log pipe && wait"));
    char *got = read_text("got");
    double x[20];
    int n = log_numbers(got, "\"loss\":", x, 20);
    CHECK_MSG(n == 5, "%d of 5 steps in the pipe:\n%s", n, got);
    free(got);
}

/* ---- bounds -------------------------------------------------------------- */

typedef struct Bound {
    const char *command, *option, *below, *at;
} Bound;

static void check_bound(const Bound *b) {
    char command[300];
    snprintf(command, sizeof command, "%s %s %s", b->command, b->option,
             b->below);
    char *out = says(2, command);
    CHECK_MSG(strstr(out, b->option), "%s: %s", command, out);
    free(out);
    snprintf(command, sizeof command, "%s %s %s", b->command, b->option, b->at);
    free(says(0, command));
}

TEST_CASE(answers, bounds_of_numbers) {
#define RUN  "$AMPC run m.so " SMALL_FEED "--quiet --log l "
#define EVAL "--eval-feed x=d.csv:0-2 --eval-feed target=d.csv:t "
    static const Bound bounds[] = {
        {RUN, "--steps", "-1", "0"},
        {RUN, "--epochs", "-1", "0"},
        {RUN "--steps 1", "--threads", "-1", "0"},
        {RUN "--steps 1", "--spikes", "-1", "0"},
        {RUN "--steps 1", "--lr", "-1", "0"},
        {RUN "--steps 1", "--deadline", "0", "1"},
        {RUN "--steps 1", "--update-ratios", "0", "1"},
        {RUN "--steps 2", "--max-skipped", "-2", "-1"},
        {RUN "--steps 1 --save s", "--save-every", "0", "1"},
        {RUN "--steps 1 --save s --save-every 1", "--keep", "0", "1"},
        {RUN EVAL, "--patience", "0", "1"},
        {RUN "--steps 1", "--augment", "x=crop:0", "x=normalize:0/1"},
        {RUN "--steps 1", "--augment", "x=normalize:0/0", "x=normalize:0/1"},
        {"$AMPC bisect m.so m.so " SMALL_FEED, "--steps", "0", "1"},
        {"$AMPC bisect m.so m.so " SMALL_FEED "--steps 1", "--tolerance", "-1",
         "0"},
        {"$AMPC audit m.so " SMALL_FEED, "--batches", "0", "1"},
        {"$AMPC inspect m.amp", "--scaling", "1", "2"},
        {"$AMPC inspect m.amp --scaling 2", "--step-ms", "0", "1"},
    };
    make_files();
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        check_bound(&bounds[i]);
}

/* ---- adapters ------------------------------------------------------------ */

typedef struct Adapter {
    const char *option, *trains, *json;
} Adapter;

/* x has 3 columns, fc1 5 rows and fc2 3 rows: what an adapter trains is counted
   from that. */
TEST_CASE(answers, adapters_are_told) {
    static const Adapter adapters[] = {
        {"--lora '*fc1*,rank=2'", "trains 2 tensors (16 elements)",
         "\"fc1\":{\"rank\":2,\"alpha\":8,\"dora\":0,"},
        {"--lora '*fc1*,rank=2,alpha=6,dora'", "trains 3 tensors (21 elements)",
         "\"fc1\":{\"rank\":2,\"alpha\":6,\"dora\":1,"},
        {"--lora '*fc1*,rank=1,bias=lora_only'",
         "trains 3 tensors (13 elements)", "\"fc1\":{\"rank\":1,"},
        {"--lora '*fc1*,rank=2,bias=all'", "trains 4 tensors (24 elements)",
         "\"fc1\":{\"rank\":2,"},
        {"--ia3 '*fc1*'", "trains 1 tensor (5 elements)",
         "param  fc1.ia3_l  f32[5,1]"},
        {"--ia3 '*fc1*,feedforward'", "trains 1 tensor (3 elements)",
         "param  fc1.ia3_l  f32[1,3]"},
    };
    make_files();
    for (size_t i = 0; i < sizeof adapters / sizeof *adapters; i++) {
        const Adapter *a = &adapters[i];
        char command[300];
        snprintf(command, sizeof command,
                 "$AMPC m.amp -o a.so --target cpu:x86-64-v2 %s && "
                 "{ $AMPC inspect a.so --params; grep -a -o '\"lora\":{.*' "
                 "a.so; true; }",
                 a->option);
        char *out = says(0, command);
        CHECK_MSG(strstr(out, a->trains) && strstr(out, a->json),
                  "%s: not %s and %s:\n%s", a->option, a->trains, a->json, out);
        free(out);
    }
}

/* The configuration beside a file of adapters is read, however the file is
   named. */
TEST_CASE(answers, paths_may_be_short_or_whole) {
    static const char *const places[][3] = {
        {".", "", "A/adapter_model.safetensors"},
        {".", "", "./A/adapter_model.safetensors"},
        {".", "", "\"$PWD\"/A/adapter_model.safetensors"},
        {"A", "../", "adapter_model.safetensors"},
        {"A", "../", "./adapter_model.safetensors"},
    };
    make_files();
    free(says(0, "$AMPC m.amp -o a.so --target cpu:x86-64-v2 "
                 "--lora '*fc1*,rank=2' && $AMPC run a.so " SMALL_FEED
                 "--save a.ckpt --log l && $AMPC export a.so --adapter --load "
                 "a.ckpt -o A"));
    for (int wrong = 0; wrong < 2; wrong++) {
        if (wrong)
            free(says(0, "sed -i 's/\"lora_alpha\": *8/\"lora_alpha\": 9/' "
                         "A/adapter_config.json"));
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            const char *up = places[i][1];
            char command[400];
            snprintf(command, sizeof command,
                     "cd %s && $AMPC run %sa.so --feed x=%sd.csv:0-2 --feed "
                     "target=%sd.csv:t --eval --load %s",
                     places[i][0], up, up, up, places[i][2]);
            char *out = says(wrong, command);
            CHECK_MSG(!strstr(out, "alpha=9") == !wrong, "%s: %s", command,
                      out);
            free(out);
        }
    }
}

/* ---- the rest ------------------------------------------------------------ */

/* Lines are left out below a thousandth of the time alone. */
TEST_CASE(answers, the_roofline_tells_of_nearly_all_time) {
    char command[400];
    snprintf(command, sizeof command,
             "$AMPC inspect '%s/vit.amp' --dim B=4 --dim L=3 --target "
             "cuda:sm_90 --roofline 2>/dev/null",
             test_data_path("models"));
    char *out = says(0, command);
    double sum = 0;
    int lines = 0;
    char *line = strtok(out, "\n"), *at;
    while (line && !strstr(line, "  share")) line = strtok(NULL, "\n");
    for (; (line = strtok(NULL, "\n")) && (at = strchr(line, '%')); lines++) {
        while (at > line && at[-1] != ' ') at--;
        sum += strtod(at, NULL);
    }
    CHECK_MSG(lines > 40 && sum > 97 && sum < 101,
              "vit: %d lines with %g %% of the time", lines, sum);
    free(out);
}

/* The time of each launch and of the step on a CPU follow from the two peaks
   that are told with them. */
static const char follows[] =
    "import json\n"
    "r, = json.load(open('f.json'))\n"
    "def near(a, b, slack):\n"
    "    assert abs(a - b) <= slack + 1e-3 * abs(b), (a, b)\n"
    "sums = dict.fromkeys(('ms', 'floor', 'mma', 'bytes', 'launches'), 0)\n"
    "for s in r['steps']:\n"
    "    t = s['cpu']\n"
    "    floor = 1e6 * max(s['mma'] / r['flops'], s['bytes'] / "
    "r['bandwidth'])\n"
    "    near(t['us'] * t['roof'], floor, 1e-3 + 1e-4 * t['us'])\n"
    "    for key, v in (('ms', t['us'] / 1e3), ('floor', floor / 1e3),\n"
    "                   ('mma', s['mma']), ('bytes', s['bytes']),\n"
    "                   ('launches', 1)): sums[key] += v * s['launches']\n"
    "for key in ('mma', 'bytes', 'launches'): near(r[key], sums[key], 0)\n"
    "near(r['cpu_ms'], sums['ms'], 1e-2)\n"
    "near(r['cpu_floor_ms'], sums['floor'], 1e-2)\n"
    "near(r['cpu_mfu'] * r['cpu_ms'] * r['flops'], 1e3 * r['mma'],\n"
    "     0.06 * r['mma'])\n"
    "print(len(r['steps']), 'steps')\n";

TEST_CASE(answers, the_roofline_follows_from_its_peaks) {
    REQUIRE(test_write_file(test_tmp("f.py"), follows, strlen(follows)));
    char command[400];
    snprintf(command, sizeof command,
             "$AMPC inspect '%s/cnn.amp' --dim B=3 --target cpu:x86-64-v3 "
             "--roofline --json >f.json && python3 f.py",
             test_data_path("models"));
    char *out = says(0, command);
    CHECK_HAS(out, " steps");
    free(out);
}

/* Training has one batch size, whichever of several is named first. */
TEST_CASE(answers, one_batch_trains) {
    static const char *const sizes[] = {"4|8", "8|4", "4|5|4"};
    make_files();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char command[200];
        snprintf(command, sizeof command,
                 "$AMPC m.amp -o n.so --target cpu:x86-64-v2 --dim 'B=%s'",
                 sizes[i]);
        char *out = says(1, command);
        CHECK_HAS(out, "--batch-sizes gives more of them");
        free(out);
    }
}

/* The number behind `words`. */
static void number_behind(const char *text, const char *words, char *to,
                          size_t size) {
    const char *at = strstr(text, words);
    if (!at) FAIL("no '%s' in\n%s", words, text);
    at += strlen(words);
    at += strspn(at, " ");
    snprintf(to, size, "%.*s", (int)strcspn(at, " ,\n"), at);
}

/* A module compiled with audit's policy lines has the figures that audit
   promises, for the weights that it was given. */
TEST_CASE(answers, policy_lines_do_what_audit_says) {
    static const char *const loads[] = {"", "--load s1", "--load s5"};
    make_files();
    free(says(0, "for n in 1 5; do $AMPC run m.so " SMALL_FEED
                 "--steps $n --save s$n --log l || exit; done"));
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
        char command[300], loss[2][40], gradient[2][40];
        snprintf(command, sizeof command,
                 "$AMPC audit m.so " SMALL_FEED "%s --policy p.txt", loads[i]);
        char *said = says(0, command);
        number_behind(said, "measured with them: loss", loss[0], 40);
        const char *measured = strstr(said, "measured with them");
        number_behind(measured, "gradient", gradient[0], 40);
        snprintf(command, sizeof command,
                 "$AMPC m.amp -o k.so --target cpu:x86-64-v2 --amp-policy "
                 "p.txt && $AMPC audit k.so " SMALL_FEED "%s",
                 loads[i]);
        char *is = says(0, command);
        number_behind(is, "\nloss", loss[1], 40);
        number_behind(is, "\ngradient", gradient[1], 40);
        CHECK_MSG(
            !strcmp(loss[0], loss[1]) && !strcmp(gradient[0], gradient[1]),
            "audit %s promises loss %s and gradient %s; compiled with its "
            "lines: %s and %s",
            loads[i], loss[0], gradient[0], loss[1], gradient[1]);
        free(said);
        free(is);
    }
}
