/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.c: runs of several ranks. */
#define _GNU_SOURCE
#include "tests/frontend/run_cmd/ran.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/program/dtype.h"
#include "runtime/api/session.h"

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
        {"2", "2", "127.0.0.1", "", "$RANK is '2', of $WORLD_SIZE = 2 proc"},
        {"2", "-1", "127.0.0.1", "", "$RANK is '-1', of $WORLD_SIZE = 2"},
        {"2", "", "127.0.0.1", "", "$RANK is '', of $WORLD_SIZE = 2"},
        {NULL, "0", NULL, "", NULL},
        {NULL, "0", "127.0.0.1", "", "$WORLD_SIZE does not say of how many"},
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
    setenv("WORLD_SIZE", "2", 1);
    setenv("RANK", "1", 1);
    setenv("LOCAL_RANK", "x", 1); /* its GPU */
    bad(&tiny_module, FEEDS, 1, "$LOCAL_RANK is 'x': no number of a process");
    unsetenv("LOCAL_RANK");
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    setenv("PMI_RANK", "1", 1);
    bad(&tiny_module, FEEDS, 1, "$PMI_SIZE does not say of how many");
    unsetenv("PMI_RANK");
    setenv("MV2_COMM_WORLD_RANK", "1", 1);
    bad(&tiny_module, FEEDS, 1, "$MV2_COMM_WORLD_SIZE does not say of how");
    unsetenv("MV2_COMM_WORLD_RANK");
}

/* Simulates rank 1 of two: it sends what rank 0 sent in the run before, or
   the same as rank 0 now, until the run has nothing more to compare. */
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

/* A launcher that does not start MPI sets both the address of rank 0 and
   this rank's number. */
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

/* No launcher's variables are set: MPI is asked, since a rank that trains
   alone would silently train another model. */
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
