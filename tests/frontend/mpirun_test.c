/* SPDX-License-Identifier: Apache-2.0 */
/* mpirun_test.c: `ampc run` under the launchers of Open MPI and MPICH, and
   with only torchrun's variables, with ranks on one machine. They must give
   the bits of one process that accumulates; and all must end when one dies,
   hangs or differs. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/support/samples.h"
#include "tests/tolerance.h"

enum { SAMPLES = 103, BATCH = 2 };

typedef struct Launcher {
    const char *name, *options;
} Launcher;

static const Launcher openmpi = {"mpirun.openmpi",
                                 "--allow-run-as-root --oversubscribe"};
static const Launcher mpich = {"mpirun.mpich", ""};

/* The variables set by torchrun, or by srun. */
static const Launcher *variables(bool srun) {
    static Launcher l[2] = {{.options = ""}, {.options = "--srun"}};
    if (!l[srun].name)
        l[srun].name = test_data_path("tests/support/start_ranks");
    return &l[srun];
}

/* In a rank's shell. */
#define RANK "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$RANK}}"

/* ---- helpers ------------------------------------------------------------- */

static void need(const Launcher *l) {
    if (test_command(NULL, "command -v %s", l->name))
        SKIP("no %s (Debian: openmpi-bin, mpich)", l->name);
}

static Compiled compile_at(const char *path, const char *options,
                           int accumulate) {
    char all[400];
    snprintf(all, sizeof all,
             "--dim batch=%d --accumulate %d --target cpu:x86-64-v2 %s", BATCH,
             accumulate, options);
    return compile_file(path, all);
}

static Compiled compile_model(const char *model, const char *options,
                              int accumulate) {
    char path[100];
    snprintf(path, sizeof path, "tests/onnx/%s", model);
    return compile_at(test_data_path(path), options, accumulate);
}

#define FEEDS                                                                  \
    "--device cpu --feed x=x.all.npy --feed y=y.all.npy --threads 1 --quiet "
#define EVALS "--eval-feed x=x.all.npy --eval-feed y=y.all.npy "

/* Runs `command` in the test's folder, with $AMPC, and returns its output.
   MPI does not free all of its memory. */
static int shell(char **out, const char *command) {
    return test_command(out,
                        "cd '%s' && export AMPC='%s' TMPDIR=/tmp "
                        "ASAN_OPTIONS=detect_leaks=0 && %s",
                        test_tmpdir(), test_ampc(), command);
}

static void shell_ok(const char *command) {
    char *out;
    int rc = shell(&out, command);
    CHECK_MSG(rc == 0, "%s: status %d\n%s", command, rc, out);
    free(out);
}

/* Runs in each of n ranks: sh -c 'BEFORE exec $AMPC run WORDS'. */
static int launch(const Launcher *l, int n, const char *before,
                  const char *words, char **out) {
    char command[5000];
    snprintf(
        command, sizeof command,
        "timeout -k 5 300 %s %s -n %d sh -c '%s exec $AMPC run %s' </dev/null",
        l->name, l->options, n, before, words);
    return shell(out, command);
}

static void launch_ok(const Launcher *l, int n, const char *words) {
    char *out;
    int rc = launch(l, n, "", words, &out);
    CHECK_MSG(rc == 0, "%s -n %d: status %d\n%s", l->name, n, rc, out);
    free(out);
}

/* ---- as one process ------------------------------------------------------ */

/* Log lines without their times, and the weights. */
#define TRAIN "--steps 20 --shuffle " FEEDS EVALS "--eval "

static void same_as_one(const Launcher *l, const Compiled *one, int n,
                        const Compiled *alone) {
    char words[2000];
    snprintf(words, sizeof words,
             "$AMPC run %s " TRAIN "--log a.log --save-weights a.st",
             alone->path);
    shell_ok(words);
    snprintf(words, sizeof words,
             "%s " TRAIN "--log r.log --save-weights r.st --profile r.json %s",
             one->path, strcmp(l->options, "--srun") ? "" : "--comm tcp");
    launch_ok(l, n, words);
    shell_ok("for f in a r; do sed 's/,\"ms\":[^}]*//' $f.log > $f.lines; "
             "done; diff a.lines r.lines && cmp a.st r.st && "
             "test $(wc -l < a.lines) -gt 20 && grep -q \"sum over ranks\" "
             "r.json");
}

typedef struct Trained {
    const char *model, *options;
    Compiled of[5]; /* one module for each value of --accumulate; compiled
                       once */
} Trained;

#define FP16 "--precision fp16 " OVERFLOWS
#define MLP  "--precision fp32 " FOR_MLP

static Trained mlp = {.model = "mlp.dyn.onnx", .options = FP16 FOR_MLP};
/* Running statistics come from rank 0, which sees only a part of the
   batches. */
static Trained cnn = {.model = "cnn.dyn.onnx",
                      .options = FP16 FOR_CNN "--batchnorm frozen"};
static Trained gpt = {.model = "gpt.dyn.onnx", .options = FP16 FOR_GPT};

static const Compiled *trained(Trained *t, int accumulate) {
    Compiled *c = &t->of[accumulate];
    if (!c->api) *c = compile_model(t->model, t->options, accumulate);
    return c;
}

static void ranks_as_one(const Launcher *l, Trained *t) {
    need(l);
    samples_write(trained(t, 1), "all", 0, SAMPLES);
    for (int n = 2; n <= 4; n += 2) {
        same_as_one(l, trained(t, 1), n, trained(t, n));
        shell_ok("grep -q '\"skipped\":[1-9]' r.log && "
                 "test $(grep -o '\"lr\":[^,}]*' r.log | uniq | wc -l) -gt 3");
    }
}

TEST_CASE(mpirun, mlp_openmpi) { ranks_as_one(&openmpi, &mlp); }
TEST_CASE(mpirun, mlp_mpich) { ranks_as_one(&mpich, &mlp); }
TEST_CASE(mpirun, mlp_tcp) { ranks_as_one(variables(false), &mlp); }
TEST_CASE(mpirun, mlp_srun_tcp) { ranks_as_one(variables(true), &mlp); }
TEST_CASE(mpirun, cnn_tcp) { ranks_as_one(variables(false), &cnn); }
TEST_CASE(mpirun, gpt_mpich) { ranks_as_one(&mpich, &gpt); }

/* Compiled once. */
static const Compiled *small(int accumulate) {
    static Trained t = {.model = "mlp.dyn.onnx", .options = MLP};
    return trained(&t, accumulate);
}

TEST_CASE(mpirun, what_one_skips_all_skip) {
    need(&openmpi);
    samples_write_inf(small(1), SAMPLES, 3 * BATCH);
    same_as_one(&openmpi, small(1), 2, small(2));
    shell_ok("grep -q '\"skipped\":[1-9]' r.log");
}

/* Rank 0 writes the outputs for all samples. */
TEST_CASE(mpirun, outputs_as_one_process) {
    need(&openmpi);
    const Compiled *c = small(1);
    char words[1000];
    samples_write(c, "all", 0, SAMPLES);
    for (int eval = 0; eval < 2; eval++) {
        const char *how = eval ? "--eval" : "";
        snprintf(words, sizeof words, "$AMPC run %s " FEEDS "%s --fetch f1",
                 c->path, how);
        shell_ok(words);
        snprintf(words, sizeof words, "%s " FEEDS "%s --fetch f3", c->path,
                 how);
        launch_ok(&openmpi, 3, words);
        shell_ok("diff -r f1 f3 && test $(ls f3 | wc -l) = 2 && rm -r f1 f3");
    }
}

/* ---- sizes --------------------------------------------------------------- */

/* Sums, broadcasts and gathers with fewer numbers than ranks, and with
 * several pieces. */
static void sizes(const Launcher *l, const char *lib, const char *engine) {
    need(l);
    for (int n = 1; n <= 3; n++) {
        char *out, command[1500], want[40];
        snprintf(command, sizeof command,
                 "AMPC_LIBMPI='%s' timeout -k 5 300 %s %s -n %d %s %s", lib,
                 l->name, l->options, n,
                 test_data_path("tests/support/exchange"), engine);
        snprintf(want, sizeof want, "%d ranks, 9 sizes", n);
        CHECK_EQ_INT(shell(&out, command), 0);
        CHECK_HAS(out, want);
        free(out);
    }
}

/* The program has initialised MPI, and uses it afterwards. */
TEST_CASE(mpirun, sizes_of_a_program_with_mpi_openmpi) {
    sizes(&openmpi, "", "mpi libmpi.so.40");
}
TEST_CASE(mpirun, sizes_of_a_program_with_mpi_mpich) {
    sizes(&mpich, "", "mpi libmpich.so.12");
}

TEST_CASE(mpirun, sizes_openmpi) { sizes(&openmpi, "", "mpi"); }
TEST_CASE(mpirun, sizes_mpich) { sizes(&mpich, "", "mpi"); }
TEST_CASE(mpirun, sizes_tcp) { sizes(variables(false), "none", "tcp"); }
TEST_CASE(mpirun, sizes_of_the_abi) {
    sizes(&openmpi, test_data_path("tests/support/libmpi_abi.so"), "mpi");
}

/* ---- optimizer state in parts -------------------------------------------- */

/* Gives the same bits and the same checkpoint as without shards. */
TEST_CASE(mpirun, adam_in_parts) {
    need(&openmpi);
    static const char *const options[] = {"", "--shard-optimizer"};
    for (int i = 0; i < 2; i++) {
        char words[1000], all[200];
        snprintf(all, sizeof all,
                 "--precision bf16 --clip-norm 0.3 --optimizer adamw,lr=0.01 "
                 "--target cpu:x86-64-v2 %s",
                 options[i]);
        Compiled c = compile_file(samples_wide(), all);
        samples_write(&c, "all", 0, SAMPLES);
        snprintf(words, sizeof words, "%s " TRAIN "--log %d.log --save %d.save",
                 c.path, i, i);
        launch_ok(&openmpi, 3, words);
        snprintf(words, sizeof words, /* all parameters are exchanged in 16
                                         bits */
                 "$AMPC inspect %s --scaling 2 --json | grep -q "
                 "'\"in_parts\":%d,.*\"waited_for\":%d,\"handed_out\":%d,'",
                 c.path, i * 4 * SAMPLES_WIDE_SUM, i, i * 2 * SAMPLES_WIDE);
        shell_ok(words);
        compiled_close(&c);
    }
    shell_ok("for i in 0 1; do sed 's/,\"ms\":[^}]*//' $i.log > $i.lines; "
             "done; diff 0.lines 1.lines && cmp 0.save 1.save && "
             "test $(wc -l < 0.lines) -gt 20");
}

/* ---- resuming ------------------------------------------------------------ */

static double number_behind(const char *text, const char *key) {
    const char *p = text ? strstr(text, key) : NULL;
    return p ? strtod(p + strlen(key), NULL) : -1;
}

/* Three steps with four ranks, then one with two, on the following samples. */
TEST_CASE(mpirun, two_ranks_resume_what_four_saved) {
    need(&openmpi);
    const Compiled *c = small(1);
    char words[2000], *log, *eval;
    samples_write(c, "all", 0, SAMPLES);
    samples_write(c, "next", 3 * 4 * BATCH, 2 * BATCH);
    snprintf(words, sizeof words, "%s " FEEDS "--steps 3 --save c", c->path);
    launch_ok(&openmpi, 4, words);
    snprintf(words, sizeof words,
             "$AMPC run %s --feed x=x.next.npy --feed y=y.next.npy --load c "
             "--quiet --eval",
             c->path);
    CHECK_EQ_INT(shell(&eval, words), 0);
    snprintf(words, sizeof words, "%s " FEEDS "--steps 4 --resume --save c",
             c->path);
    CHECK_EQ_INT(launch(&openmpi, 2, "", words, &log), 0);
    CHECK_HAS(log, "{\"step\":4,");
    CHECK_REL(number_behind(log, "\"loss\":"),
              number_behind(eval, "\"eval_loss\":"), TOL_RANKS);
    free(log);
    free(eval);
}

/* ---- what goes wrong ----------------------------------------------------- */

/* Runs two ranks, one or both of them faulty: all end, and one is named. The
   earlier checkpoint is intact. */
static void ends(const Launcher *l, const char *before, const char *words,
                 const char *why) {
    char *out;
    time_t begin = time(NULL);
    int rc = launch(l, 2, before, words, &out);
    CHECK_MSG(rc != 0 && rc != 124, "status %d", rc);
    CHECK(time(NULL) - begin < 60);
    CHECK_HAS(out, why);
    free(out);
}

/* When the checkpoint exists, rank 1 sends itself this signal; checks the
   message. */
static void ends_after(const Launcher *l, const char *signal, const char *why) {
    char before[200], words[2000];
    const Compiled *c = small(1);
    need(l);
    samples_write(c, "all", 0, SAMPLES);
    snprintf(before, sizeof before,
             "test " RANK " = 1 && "
             "(for i in $(seq 600); do test -s s && break; sleep 0.1; done; "
             "kill -%s $$) &",
             signal);
    snprintf(words, sizeof words,
             "%s " FEEDS "--steps 100000000 --log l --save-every 10 --save s "
             "--deadline 3",
             c->path);
    shell_ok("rm -f s s.prev");
    ends(l, before, words, why);
    snprintf(words, sizeof words,
             "$AMPC run %s " FEEDS "--steps 1 --resume --save s", c->path);
    shell_ok(words);
}

/* The launchers of MPI end the other ranks and say so themselves. */
TEST_CASE(mpirun, a_rank_dies_openmpi) {
    ends_after(&openmpi, "KILL", "process rank 1");
}

TEST_CASE(mpirun, a_rank_dies_mpich) {
    ends_after(&mpich, "KILL", "EXIT CODE: 9");
}

TEST_CASE(mpirun, a_rank_dies_tcp) {
    ends_after(variables(false), "KILL", "rank 1 is gone");
}

#define SILENT "rank 1 did not answer within 3 s"

TEST_CASE(mpirun, a_rank_hangs_openmpi) {
    ends_after(&openmpi, "STOP", SILENT);
}

TEST_CASE(mpirun, a_rank_hangs_mpich) { ends_after(&mpich, "STOP", SILENT); }

TEST_CASE(mpirun, a_rank_hangs_tcp) {
    ends_after(variables(false), "STOP", SILENT);
}

TEST_CASE(mpirun, bad_data_of_one_rank) {
    need(&openmpi);
    const Compiled *c = small(1);
    char words[1000];
    samples_write_bad(c);
    snprintf(words, sizeof words, "%s " FEEDS, c->path);
    ends(&openmpi, "", words, "rank 1"); /* the message of the rank itself, or
                                            the other rank's message about it */
}

/* Rank 1 has another module, other options or other data. */
static void differ(const Launcher *l) {
    static Compiled seed, weight;
    const Compiled *c = small(1);
    need(l);
    if (!seed.api) seed = compile_model("mlp.dyn.onnx", MLP "--seed 5", 1);
    if (!weight.api) weight = compile_at(samples_other_mlp(), MLP, 1);
    const struct {
        const char *path, *why;
    } others[] = {
        {small(2)->path, "rank 1 has another graph than rank 0"},
        {seed.path, "rank 1 has a module of other compile options than rank 0"},
        {weight.path, "rank 1 has another module than rank 0"},
    };
    char words[2000];
    samples_write(c, "all", 0, SAMPLES);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(words, sizeof words, "test " RANK " = 0 && M=%s || M=%s;",
                 c->path, others[i].path);
        ends(l, words, "$M " FEEDS, others[i].why);
    }
    snprintf(words, sizeof words, "%s " FEEDS "--steps " RANK, c->path);
    ends(l, "", words, "rank 1 was started with another --steps than rank 0");
    snprintf(words, sizeof words,
             "%s --device cpu --feed x=x.all.npy --feed y=y.$F.npy "
             "--deadline 5",
             c->path);
    ends(l, "test " RANK " = 0 && F=all || F=none;", words, "rank 1: ");
}

TEST_CASE(mpirun, ranks_that_differ_openmpi) { differ(&openmpi); }
TEST_CASE(mpirun, ranks_that_differ_mpich) { differ(&mpich); }
TEST_CASE(mpirun, ranks_that_differ_tcp) { differ(variables(false)); }

TEST_CASE(mpirun, no_mpi_for_the_ranks_that_were_started) {
    const Compiled *c = small(1);
    char words[600], *out;
    snprintf(words, sizeof words,
             "AMPC_LIBMPI=none RANK=0 WORLD_SIZE=2 $AMPC run %s", c->path);
    CHECK_EQ_INT(shell(&out, words), 1);
    CHECK_HAS(out, "$WORLD_SIZE is 2");
    CHECK_HAS(out, "$AMPC_LIBMPI is \"none\"");
    free(out);
}
