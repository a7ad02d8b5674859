/* SPDX-License-Identifier: Apache-2.0 */
/* failures.c: ranks that differ or fail. */
#define _GNU_SOURCE
#include "tests/whole/ranks/ranks_run.h"

#include <arpa/inet.h>
#include <math.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/api/session.h"

/* ---- one verdict --------------------------------------------------------- */

/* Compiled once. */
static const Compiled *small(void) {
    static Compiled c;
    if (!c.api) c = compile_for("mlp.dyn.onnx", SMALL, 1);
    return &c;
}

static void spoil_with_inf(int rank, int step, Batch *b) {
    if (rank == 2 && step == 1)
        ((float *)(uintptr_t)b->in[0].data)[3] = INFINITY;
}

TEST_CASE(ranks, what_one_skips_all_skip) {
    const Compiled *c = small();
    Run *r = run_new(c);
    r->spoil = spoil_with_inf;
    r->steps = 4;
    run(r, 3);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ_INT(r->status[i], AMPC_OK);
        CHECK_EQ_INT(r->metrics[i][0].applied, 1);
        CHECK_EQ_INT(r->metrics[i][1].applied, 0);
        CHECK_EQ_INT(r->metrics[i][3].skipped, 1);
        CHECK(memcmp(r->state[i], r->state[0], r->bytes[i]) == 0);
    }
    run_free(r);
}

static void spoil_labels(int rank, int step, Batch *b) {
    if (rank == 1 && step == 2) ((int64_t *)(uintptr_t)b->in[1].data)[0] = 77;
}

TEST_CASE(ranks, bad_data_of_one_end_all) {
    const Compiled *c = small();
    Run *r = run_new(c);
    r->spoil = spoil_labels;
    run(r, 3);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ_INT(r->status[i], AMPC_ERR_DATA);
        CHECK_HAS(r->error[i], i == 1 ? "77" : "rank 1");
        CHECK(memcmp(r->state[i], r->state[0], r->bytes[i]) == 0);
    }
    run_free(r);
}

static void spoil_two(int rank, int step, Batch *b) {
    spoil_labels(1, rank ? step : 0, b);
}

TEST_CASE(ranks, bad_data_of_two_name_the_first) {
    Run *r = run_new(small());
    r->spoil = spoil_two;
    run(r, 3);
    CHECK_EQ_INT(r->status[0], AMPC_ERR_DATA);
    CHECK_HAS(r->error[0], "rank 1");
    run_free(r);
}

TEST_CASE(ranks, another_module_is_named) {
    const Compiled *c = small();
    Compiled other = compile_for("mlp.dyn.onnx", SMALL, 2);
    Compiled options = compile_for("mlp.dyn.onnx", SMALL "--seed 5", 1);
    Compiled *others[] = {&other, &options};
    const char *const why[] = {"rank 2 has another graph than rank 0",
                               "rank 2 has a module of other compile options"};
    for (int k = 0; k < 2; k++) {
        Run *r = run_new(c);
        r->of[2] = others[k];
        run(r, 6);
        for (int i = 0; i < 6; i++) {
            CHECK_EQ_INT(r->status[i], AMPC_ERR_COMM);
            CHECK_HAS(r->error[i], why[k]);
        }
        run_free(r);
        compiled_close(others[k]);
    }
}

/* Any one of its allocations fails, except the session's own. */
TEST_CASE(ranks, one_that_cannot_open_is_named) {
    const Compiled *c = small();
    Run *all = run_new(c);
    all->steps = 1;
    run_ok(all, 6);
    CHECK(all->asked[4].calls > 3);
    for (int k = 2; k <= all->asked[4].calls; k++) {
        Run *r = run_new(c);
        r->starved = 4;
        r->refused = k;
        run(r, 6);
        for (int i = 0; i < 6; i++) {
            bool is = i == r->starved;
            CHECK_MSG(r->status[i] == (is ? AMPC_ERR_MEMORY : AMPC_ERR_COMM),
                      "allocation %d: status %d", k, r->status[i]);
            CHECK_HAS(r->error[i], is ? "out of memory"
                                      : "rank 4 could not open its session");
            CHECK_EQ_INT(r->asked[i].held, 0);
        }
        run_free(r);
    }
    run_free(all);
}

/* A communicator that fails makes every rank fail, and no step is applied
   partly. */
static void engine_fails(size_t table, const char *why) {
    const Compiled *c = small();
    Run *before = run_new(c), *r = run_new(c);
    before->steps = 3;
    run(before, 2);
    r->fail_in = 5; /* open, three steps, this one */
    r->table = table;
    run(r, 2);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_INT(r->status[i], AMPC_ERR_COMM);
        CHECK_HAS(r->error[i], why);
        CHECK_EQ_INT(r->metrics[i][2].step, 3);
        CHECK_EQ_INT(r->metrics[i][3].updated, 0);
        CHECK(memcmp(r->state[i], before->state[0], r->bytes[i]) == 0);
    }
    run_free(before);
    run_free(r);
}

TEST_CASE(ranks, an_engine_that_fails) {
    engine_fails(0, "the cable was pulled");
    engine_fails(offsetof(ampc_comm, error), "the communicator failed");
}

/* Any of a step's sums, during backward or after it, even if later ones
   succeed. */
TEST_CASE(ranks, one_sum_that_fails) {
    Compiled c = compile_for("mlp.dyn.onnx", SMALL "--comm-bucket 1", 1);
    Run *one = run_new(&c), *two = run_new(&c);
    one->steps = 1;
    two->steps = 2;
    run_ok(one, 2);
    run_ok(two, 2);
    CHECK(two->ranks.beside > 2);
    for (int k = one->ranks.calls + 1; k <= two->ranks.calls; k++) {
        Run *r = run_new(&c);
        r->steps = 2;
        r->fail_in = k;
        r->once = true;
        run(r, 2);
        for (int i = 0; i < 2; i++) {
            CHECK_MSG(r->status[i] == AMPC_ERR_COMM, "call %d: status %d", k,
                      r->status[i]);
            CHECK(memcmp(r->state[i], one->state[0], r->bytes[i]) == 0);
        }
        run_free(r);
    }
    run_free(one);
    run_free(two);
    compiled_close(&c);
}

/* A single process may save there. */
TEST_CASE(ranks, a_checkpoint_between_micro_steps) {
    Compiled c = compile_for("mlp.dyn.onnx", SMALL, 2);
    const char *path = test_tmp("between.ckpt");
    ampc_session *s = open_threads(&c, 1);
    Batch b = batch_new(c.api, 0, 1);
    ampc_metrics m = step_ok(&c, s, b.in, b.n);
    CHECK_EQ_INT(m.updated, 0);
    REQUIRE(c.api->save(s, path) == AMPC_OK);
    c.api->close(s);
    batch_free(&b);
    Run *r = run_new(&c);
    r->load[0] = r->load[1] = path;
    run(r, 2);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_INT(r->status[i], AMPC_ERR_FORMAT);
        CHECK_HAS(r->error[i], "between micro-steps");
    }
    run_free(r);
    compiled_close(&c);
}

/* A required function is missing, or a rank is not below the number of
   ranks. */
TEST_CASE(ranks, half_a_communicator) {
    const Compiled *c = small();
    Ranks ranks;
    ampc_comm comm;
    ampc_options o = {.size = sizeof o, .comm = &comm};
    ampc_session *s;
    char err[256];
    ranks_open(&ranks, 2);
    for (int i = 0; i < 9; i++) {
        comm = ranks.comm[1];
        if (i == 0) cut(&comm, 0);
        if (i == 1) cut(&comm, offsetof(ampc_comm, barrier));
        if (i == 2) cut(&comm, offsetof(ampc_comm, error) - 1);
        if (i == 3) comm.allreduce = NULL;
        if (i == 4) comm.broadcast = NULL;
        if (i == 5) comm.barrier = NULL;
        if (i == 6) comm.rank = 2;
        if (i == 7) comm.world = 0;
        if (i == 8) comm.local = -1;
        CHECK_EQ_INT(c->api->open(c->api->module, &o, &s, err, sizeof err),
                     AMPC_ERR_ARGUMENT);
        CHECK_HAS(err, "comm: its size, a function, the rank");
    }
    ranks_close(&ranks);
}

TEST_CASE(ranks, no_such_engine) {
    const Compiled *c = small();
    ampc_comm_options engine = {.size = sizeof engine, .engine = "pigeons"};
    ampc_comm *made;
    char err[256];
    CHECK_EQ_INT(c->api->comm_open(&engine, &made, err, sizeof err),
                 AMPC_ERR_ARGUMENT);
    CHECK_HAS(err, "unknown engine");
    CHECK(made == NULL);
    c->api->comm_close(NULL);
}

/* A port that accepts connections but never reads, so that a call waits for
   minutes. */
TEST_CASE(ranks, nobody_answers) {
    const Compiled *c = small();
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0), waiting[4];
    REQUIRE(bind(fd, (void *)&at, sizeof at) == 0 && listen(fd, 0) == 0 &&
            getsockname(fd, (void *)&at, &size) == 0);
    for (int i = 0; i < 4; i++) {
        waiting[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connect(waiting[i], (void *)&at, sizeof at);
    }
    char port[16], err[300];
    snprintf(port, sizeof port, "%d", ntohs(at.sin_port));
    const char *const set[][2] = {{"MASTER_ADDR", "127.0.0.1"},
                                  {"MASTER_PORT", port},
                                  {"RANK", "1"},
                                  {"WORLD_SIZE", "2"}};
    for (int i = 0; i < 4; i++) setenv(set[i][0], set[i][1], 1);
    ampc_comm_options engine = {
        .size = sizeof engine, .engine = "nccl", .deadline = 1};
    ampc_comm *made = NULL;
    double begin = comm_seconds();
    CHECK_EQ_INT(c->api->comm_open(&engine, &made, err, sizeof err),
                 AMPC_ERR_COMM);
    CHECK_MSG(comm_seconds() - begin < 4, "%g s", comm_seconds() - begin);
    CHECK_HAS(err, "rank 0 does not answer at 127.0.0.1:");
    for (int i = 0; i < 4; i++) unsetenv(set[i][0]);
    for (int i = 0; i < 4; i++) close(waiting[i]);
    close(fd);
}

/* Variables of launchers contain a number or are ignored. */
TEST_CASE(ranks, variables_that_say_no_number) {
    static const struct {
        const char *rank, *world, *port, *why;
    } cases[] = {
        {"x", "2", "29999", "must be the rank and the number"},
        {"1x", "2", "29999", "must be the rank and the number"},
        {"", "2", "29999", "must be the rank and the number"},
        {"4294967296", "2", "29999", "must be the rank and the number"},
        {"1", "-2", "29999", "must be the rank and the number"},
        {"1", "2", "29999x", "$MASTER_PORT is not a port"},
        {"1", "2", "65536", "$MASTER_PORT is not a port"},
    };
    const Compiled *c = small();
    ampc_comm_options engine = {
        .size = sizeof engine, .engine = "tcp", .deadline = 1};
    ampc_comm *made;
    char err[300];
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("RANK", cases[i].rank, 1);
        setenv("WORLD_SIZE", cases[i].world, 1);
        setenv("MASTER_PORT", cases[i].port, 1);
        CHECK(c->api->comm_open(&engine, &made, err, sizeof err) != AMPC_OK);
        CHECK_HAS(err, cases[i].why);
    }
    unsetenv("MASTER_ADDR");
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    unsetenv("MASTER_PORT");
}

/* Ranks that send what rank 0 sends; sums of four. */
typedef struct Alike {
    double said[16];
    size_t each; /* count of numbers from a rank; 0: rank 0 has not sent */
} Alike;

static int as_rank_0(void *ctx, void *data, size_t count, int32_t dtype) {
    Alike *a = ctx;
    if (dtype != AMPC_DTYPE_F64) return 0;
    if (!a->each) {
        a->each = count / 4;
        memcpy(a->said, data, a->each * sizeof *a->said);
    }
    for (size_t i = 0; i < count; i++)
        ((double *)data)[i] = a->said[i % a->each];
    return 0;
}

static int sent(void *ctx, void *data, size_t bytes, int32_t root) {
    (void)ctx, (void)data, (void)bytes, (void)root;
    return 0;
}

static int met(void *ctx) {
    (void)ctx;
    return 0;
}

/* Micro-steps of all ranks are counted in 31 bits. */
TEST_CASE(ranks, micro_steps_of_all_have_a_bound) {
    Compiled c = compile_text("graph forward(%x: f32[2,3]) {\n"
                              "  param %w: f32[3,2] = 1\n"
                              "  %y = matmul %x, %w\n  return %y\n}\n",
                              "--loss mse --accumulate 16777216");
    for (int world = 127; world <= 128; world++) {
        char err[300] = "";
        ampc_session *s = NULL;
        Alike alike = {.each = 0};
        ampc_comm comm = {.size = sizeof comm,
                          .world = world,
                          .ctx = &alike,
                          .allreduce = as_rank_0,
                          .broadcast = sent,
                          .barrier = met};
        ampc_options o = {.size = sizeof o, .device = "cpu", .comm = &comm};
        ampc_status st = c.api->open(c.api->module, &o, &s, err, sizeof err);
        CHECK_MSG(st == (world < 128 ? AMPC_OK : AMPC_ERR_UNSUPPORTED), "%s",
                  err);
        if (s) c.api->close(s);
        if (st) CHECK_HAS(err, "too many micro-steps of all ranks");
    }
    compiled_close(&c);
}

/* ---- checkpoints --------------------------------------------------------- */

/* Four ranks, then two that make twice as many micro-steps, from a file that
   only rank 0 can read: the same samples in the same order. */
TEST_CASE(ranks, other_ranks_resume) {
    const Compiled *one = small();
    const char *saved = test_tmp("ranks.ckpt");
    Run *first = run_new(one), *then = run_new(one), *all = run_new(one);
    first->steps = 6;
    first->save = saved;
    run(first, 4);
    then->load[0] = saved;
    for (int i = 1; i < 4; i++) then->load[i] = "nowhere";
    then->from = 6 * 4;
    then->steps = 5;
    run(then, 4);
    all->steps = 11;
    run(all, 4);
    for (int i = 0; i < 4; i++) {
        CHECK_MSG(then->status[i] == AMPC_OK, "%s", then->error[i]);
        CHECK(memcmp(then->state[i], all->state[0], all->bytes[i]) == 0);
    }
    Run *missing = run_new(one);
    for (int i = 0; i < 2; i++) missing->load[i] = "nowhere";
    run(missing, 2);
    CHECK_EQ_INT(missing->status[0], AMPC_ERR_FILE);
    CHECK_EQ_INT(missing->status[1], AMPC_ERR_COMM);
    Run *runs[] = {first, then, all, missing};
    for (int i = 0; i < 4; i++) run_free(runs[i]);
}
