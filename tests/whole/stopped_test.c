/* SPDX-License-Identifier: Apache-2.0 */
/* stopped_test.c: `ampc run` ended by a signal while it reads, in its first
   step, between steps, while it saves and while it evaluates: there is a
   checkpoint, and a run that continues from it ends with the bits of an
   uninterrupted run. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ir/base/base.h"
#include "tests/support/compiled.h"

static const char model[] =
    "dim B = 4, H = 48\n"
    "model m(x: f32[B,6]) {\n"
    "  return logits = Linear(tanh(Linear(x, units=H, scope=\"a\")), "
    "units=3,\n"
    "                         scope=\"b\")\n}\n"
    "train m { loss = cross_entropy; optimizer = adamw, lr=1e-2 }\n";

enum { SAMPLES = 120, STEPS = 30, EPOCHS = 3, EVALUATED = 3000 };

/* ---- data ---------------------------------------------------------------- */

static void write_csv(const char *name, int rows, int columns, int classes) {
    StrBuf sb = {0};
    uint64_t state = 1;
    for (int i = 0; i < rows; i++)
        for (int k = 0; k < columns; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            unsigned n = (unsigned)(state >> 40);
            sb_printf(&sb, classes ? "%u%s" : "0.%u%s",
                      classes ? n % (unsigned)classes : n,
                      k + 1 < columns ? "," : "\n");
        }
    REQUIRE(test_write_file(test_tmp(name), sb.data, sb.len));
    sb_free(&sb);
}

static void write_data(void) {
    write_csv("x.csv", SAMPLES, 6, 0);
    write_csv("t.csv", SAMPLES, 1, 3);
    write_csv("ex.csv", EVALUATED, 6, 0);
    write_csv("et.csv", EVALUATED, 1, 3);
}

/* ---- a run --------------------------------------------------------------- */

/* The largest file that a run may write: stands for a full disk. */
static rlim_t largest = RLIM_INFINITY;

static pid_t start(const Compiled *c, const char *save, bool resume) {
    char words[6][700], log[700], error[700];
    static const char *const feeds[] = {"x=x.csv", "target=t.csv", "x=ex.csv",
                                        "target=et.csv"};
    snprintf(log, sizeof log, "%s.log", test_tmp(save));
    snprintf(error, sizeof error, "%s.err", test_tmp(save));
    for (int i = 0; i < 4; i++) {
        const char *file = strchr(feeds[i], '=') + 1;
        snprintf(words[i], sizeof *words, "%.*s%s", (int)(file - feeds[i]),
                 feeds[i], test_tmp(file));
    }
    snprintf(words[4], sizeof *words, "%s", test_tmp(save));
    pid_t pid = fork();
    if (pid) return pid;
    int fd = open(error, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    dup2(fd, STDERR_FILENO);
    signal(SIGXFSZ, SIG_IGN); /* write() fails instead */
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){largest, largest});
    execl(test_ampc(), "ampc", "run", c->path, "--feed", words[0], "--feed",
          words[1], "--eval-feed", words[2], "--eval-feed", words[3],
          "--device", "cpu", "--threads", "1", "--epochs", "3", "--shuffle",
          "--save-every", "2", "--log", log, "--save", words[4],
          resume ? "--resume" : NULL, (char *)NULL);
    _exit(127);
}

static int finish(pid_t pid) {
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid);
    return status;
}

static char *error_of(const char *save) {
    char name[200];
    snprintf(name, sizeof name, "%s.err", save);
    return test_read_file(test_tmp(name), NULL);
}

static int log_lines(const char *save) {
    char name[200];
    snprintf(name, sizeof name, "%s.log", save);
    char *text = access(test_tmp(name), F_OK) == 0
                     ? test_read_file(test_tmp(name), NULL)
                     : NULL;
    int n = text ? 0 : -1;
    for (const char *p = text; p && *p; p++) n += *p == '\n';
    free(text);
    return n;
}

static void same_file(const char *a, const char *b) {
    size_t n, m;
    char *x = test_read_file(test_tmp(a), &n),
         *y = test_read_file(test_tmp(b), &m);
    CHECK_MSG(x && y && n == m && memcmp(x, y, n) == 0, "%s and %s differ", a,
              b);
    free(x);
    free(y);
}

static void pause_us(long us) {
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

/* True if the process has the file open. */
static bool reads(pid_t pid, const char *file) {
    char folder[64], path[400], to[700];
    bool found = false;
    snprintf(folder, sizeof folder, "/proc/%d/fd", (int)pid);
    DIR *d = opendir(folder);
    for (struct dirent *e; d && !found && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        ssize_t n = readlink(path, to, sizeof to - 1);
        to[n < 0 ? 0 : n] = 0;
        found = strstr(to, file) != NULL;
    }
    if (d) closedir(d);
    return found;
}

/* ---- phases -------------------------------------------------------------- */

typedef enum Phase {
    READING,
    FIRST,
    BETWEEN,
    SAVING,
    EVALUATING,
    PHASES
} Phase;

/* Whether the run has reached that point; lines of the log are written after
   the step or the evaluation. */
static bool has_come(pid_t pid, const char *save, Phase phase, int i) {
    switch (phase) {
    case READING: return reads(pid, "x.csv") || log_lines(save) >= 0;
    case FIRST: return log_lines(save) >= 0;
    case BETWEEN: return log_lines(save) >= 1 + i * 7 % (STEPS - 2);
    case SAVING: return access(test_tmp(save), F_OK) == 0;
    default: return log_lines(save) >= STEPS + i % 2 * (STEPS + 1);
    }
}

static void stop_and_go_on(const Compiled *c, Phase phase, int i) {
    char save[60];
    snprintf(save, sizeof save, "s%d-%d", phase, i);
    pid_t pid = start(c, save, false);
    static const struct {
        int number, next; /* 0: none */
        const char *said;
    } all[] = {{SIGINT, 0, "ended by SIGINT after step"},
               {SIGTERM, SIGHUP, "ended by SIGTERM after step"}, /* systemd */
               {SIGHUP, SIGHUP, "ended by SIGHUP after step"}};
    int sig = all[i % 3].number, status = 0;
    pid_t ended = 0;
    while (!has_come(pid, save, phase, i) &&
           !(ended = waitpid(pid, &status, WNOHANG)))
        pause_us(200);
    pause_us(phase == SAVING || phase == EVALUATING ? i * 397 % 3000 : 0);
    if (!ended) {
        kill(pid, sig);
        if (all[i % 3].next) kill(pid, all[i % 3].next);
        status = finish(pid);
    }
    char *error = error_of(save);
    bool stopped = WIFSIGNALED(status) && WTERMSIG(status) == sig;
    CHECK_MSG(stopped || status == 0, "phase %d: status %#x\n%s", phase,
              (unsigned)status, error);
    if (stopped) {
        CHECK_HAS(error, "the step ends, then");
        CHECK_HAS(error, all[i % 3].said);
    }
    bool goes_on = strstr(error, "the same command with --resume goes on");
    CHECK(goes_on || !stopped || strstr(error, ", the last:"));
    free(error);
    if (goes_on) {
        status = finish(start(c, save, true));
        error = error_of(save);
        CHECK_MSG(status == 0, "phase %d: status %#x\n%s", phase,
                  (unsigned)status, error);
        free(error);
    }
    same_file(save, "whole");
}

static Compiled prepare(const char *options) {
    Compiled c = compile_text(model, options);
    write_data();
    int status = finish(start(&c, "whole", false));
    char *error = error_of("whole");
    CHECK_MSG(status == 0, "status %#x\n%s", (unsigned)status, error);
    free(error);
    CHECK_EQ_INT(log_lines("whole"), EPOCHS * (STEPS + 1));
    return c;
}

TEST_CASE(stopped, goes_on_to_the_same_bits) {
    Compiled c = prepare("--target cpu:x86-64-v2");
    int n = test_slow() ? 50 : 3;
    for (int phase = 0; phase < PHASES; phase++)
        for (int i = 0; i < n; i++) stop_and_go_on(&c, (Phase)phase, i);
    CHECK_EQ_INT(test_temporaries(), 0);
    compiled_close(&c);
}

/* systemd's SIGTERM and SIGHUP, in either order: the run names SIGTERM. */
TEST_CASE(stopped, signals_that_come_together) {
    Compiled c = prepare("--target cpu:x86-64-v2");
    for (int i = 0; i < 2; i++) {
        char save[20];
        snprintf(save, sizeof save, "together%d", i);
        pid_t pid = start(&c, save, false);
        while (log_lines(save) < 1 && !kill(pid, 0)) pause_us(200);
        kill(pid, SIGSTOP);
        CHECK_EQ_INT(waitpid(pid, NULL, WUNTRACED), pid);
        kill(pid, i ? SIGHUP : SIGTERM);
        kill(pid, i ? SIGTERM : SIGHUP);
        kill(pid, SIGCONT);
        int status = finish(pid);
        char *error = error_of(save);
        CHECK_MSG(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "%#x",
                  (unsigned)status);
        CHECK_HAS(error, "the step ends, then");
        CHECK_HAS(error, "ended by SIGTERM after step");
        free(error);
    }
    compiled_close(&c);
}

/* A second signal ends the run at once: the earlier checkpoint stays. */
TEST_CASE(stopped, twice_ends) {
    Compiled c = prepare("--target cpu:x86-64-v2");
    pid_t pid = start(&c, "twice", false);
    while (log_lines("twice") < 5 && !kill(pid, 0)) pause_us(200);
    kill(pid, SIGINT);
    kill(pid, SIGTERM);
    int status = finish(pid);
    CHECK_MSG(WIFSIGNALED(status) || status == 0, "%#x", (unsigned)status);
    CHECK_EQ_INT(test_temporaries(), 0);
    status = finish(start(&c, "twice", true));
    CHECK_EQ_INT(status, 0);
    compiled_close(&c);
}

/* A second run of the same command does not write over the first one's
   checkpoint. */
TEST_CASE(stopped, one_run_writes_a_checkpoint) {
    Compiled c = prepare("--target cpu:x86-64-v2");
    pid_t pid = start(&c, "both", false);
    while (log_lines("both") < 1 && !kill(pid, 0)) pause_us(200);
    kill(pid, SIGSTOP);
    int status = finish(start(&c, "both", true));
    char *error = error_of("both");
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 1, "%#x",
              (unsigned)status);
    char says[80];
    snprintf(says, sizeof says, "--save: process %d writes this file, too",
             (int)pid);
    CHECK_HAS(error, says);
    free(error);
    CHECK(finish(start(&c, "both.prev", false)) != 0);
    error = error_of("both.prev"); /* the first one's previous checkpoint */
    CHECK_HAS(error, says);
    free(error);
    kill(pid, SIGCONT);
    CHECK_EQ_INT(finish(pid), 0);
    same_file("both", "whole");
    CHECK_EQ_INT(finish(start(&c, "both", true)), 0);
    compiled_close(&c);
}

/* The run says why it ends, and that the earlier checkpoint is still there. */
TEST_CASE(stopped, a_full_disk_keeps_the_earlier_checkpoint) {
    /* the checkpoint is larger than the module, which is copied to a file */
    Compiled c = prepare("--target cpu:x86-64-v2 --dim H=16384");
    largest = 1 << 20;
    int status = finish(start(&c, "whole", false));
    largest = RLIM_INFINITY;
    char *error = error_of("whole");
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 1, "%#x\n%s",
              (unsigned)status, error);
    CHECK_HAS(error, "--save: ");
    CHECK_HAS(error, "--resume goes on from it");
    free(error);
    CHECK_EQ_INT(test_temporaries(), 0);
    CHECK_EQ_INT(finish(start(&c, "whole", true)), 0);
    compiled_close(&c);
}
