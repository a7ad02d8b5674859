/* SPDX-License-Identifier: Apache-2.0 */
/* threads.c: ranks, threads, fork and the environment. */
#define _GNU_SOURCE
#include "tests/support/tiny_session.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/ranks.h"

/* ---- ranks ----------------------------------------------------------------
 */

typedef struct Met {
    Ranks ranks;
    const AmpcModule *of[2];
    ampc_status status[2];
    char err[2][200];
} Met;

static void meet(void *ctx, int rank) {
    Met *t = ctx;
    ampc_options o = {.size = sizeof o, .comm = &t->ranks.comm[rank]};
    ampc_session *s = NULL;
    o.threads = 1;
    t->status[rank] = tiny_api()->open(tiny_handle(t->of[rank]), &o, &s,
                                       t->err[rank], sizeof t->err[rank]);
    tiny_api()->close(s);
}

/* Both ranks say how their modules differ; "": they are equal. */
static void meets(const AmpcModule *other, const char *why) {
    Met t = {.of = {&tiny_module, other}};
    ranks_open(&t.ranks, 2);
    ranks_run(&t.ranks, meet, &t);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_INT(t.status[i], *why ? AMPC_ERR_COMM : AMPC_OK);
        CHECK_STR(t.err[i], why);
    }
    ranks_close(&t.ranks);
}

TEST_CASE(runtime, ranks_compare_every_bit_of_their_modules) {
    AmpcModule m = tiny_module;
    meets(&m, "");
    for (int bit = 0; bit < 64; bit++) {
        m = tiny_module;
        m.graph_hash ^= UINT64_C(1) << bit;
        meets(&m, "rank 1 has another graph than rank 0");
        m = tiny_module;
        m.id ^= UINT64_C(1) << bit;
        meets(&m, "rank 1 has another module than rank 0");
    }
    char *info = strdup(tiny_module.info);
    for (size_t n = strlen(info), i = 0; i < n; i += n / 7) {
        m = tiny_module;
        m.info = info;
        info[i] ^= 1;
        meets(&m, "rank 1 has a module of other compile options than rank 0");
        info[i] ^= 1;
    }
    free(info);
}

/* ---- threads, fork, environment ------------------------------------------ */

static void *train_alone(void *out) {
    ampc_session *s = open_module(&tiny_module, 2);
    train(s, 0, 100);
    read_w(s, out);
    tiny_api()->close(s);
    return NULL;
}

TEST_CASE(runtime, sessions_run_in_parallel) {
    float w[4][6];
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        REQUIRE(pthread_create(&t[i], NULL, train_alone, w[i]) == 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    for (int i = 1; i < 4; i++) CHECK_MEM(w[0], w[i], sizeof w[0]);
}

TEST_CASE(runtime, a_second_thread_is_told_busy) {
    ampc_session *s = open_module(&tiny_module, 1);
    Batch b;
    atomic_store(&s->busy, 1); /* as if another thread were inside */
    CHECK_EQ_INT(tiny_api()->step(s, batch(&b, 0), 2, NULL), AMPC_ERR_BUSY);
    atomic_store(&s->busy, 0);
    CHECK_EQ_INT(tiny_api()->step(s, batch(&b, 0), 2, NULL), AMPC_OK);
    tiny_api()->close(s);
}

TEST_CASE(runtime, sessions_survive_fork) {
    ampc_session *s = open_module(&tiny_module, 3);
    float parent[6], child[6];
    int fd[2], status = -1;
    train(s, 0, 20);
    REQUIRE(pipe(fd) == 0);
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        alarm(20);
        train(s, 20, 20);
        read_w(s, child);
        tiny_api()->close(s);
        _exit(write(fd[1], child, sizeof child) != sizeof child);
    }
    CHECK_EQ_INT(read(fd[0], child, sizeof child), sizeof child);
    waitpid(pid, &status, 0);
    CHECK_EQ_INT(status, 0);
    train(s, 20, 20);
    read_w(s, parent);
    CHECK_MEM(parent, child, sizeof parent);
    close(fd[0]);
    close(fd[1]);
    tiny_api()->close(s);
}

static int count_threads(void) {
    char *out = NULL;
    test_command(&out, "ls /proc/%d/task | wc -l", (int)getpid());
    int n = atoi(out);
    free(out);
    return n;
}

TEST_CASE(runtime, threads_live_as_long_as_sessions) {
    int before = count_threads();
    ampc_session *s = open_module(&tiny_module, 4);
    CHECK_EQ_INT(count_threads(), before + 3);
    tiny_api()->close(s);
    CHECK_EQ_INT(count_threads(), before);
}

TEST_CASE(runtime, header_is_c99_and_cpp) {
    char src[600], *out = NULL;
    snprintf(src, sizeof src, "%s/header.c", test_tmpdir());
    static const char text[] =
        "#include \"runtime/ampc.h\"\n"
        "int main(void) {\n"
        "    ampc_input in = ampc_in(\"x\", NULL, 0, AMPC_DTYPE_F32);\n"
        "    return ampc_load(\"/none.so\", NULL, NULL, 0) || in.rank > 0;\n"
        "}\n";
    REQUIRE(test_write_file(src, text, sizeof text - 1));
    const char *flags = "-Wall -Wextra -Wpedantic -Werror -Wshadow -o";
    const char *root = test_data_path("runtime");
    if (test_command(&out, "cc -std=c99 -I%s/.. %s %s.out %s -ldl && %s.out",
                     root, flags, src, src, src) != 0)
        FAIL("%s", out);
    free(out);
    if (test_command(&out, "c++ -xc++ -std=c++11 -I%s/.. %s %s.out %s -ldl",
                     root, flags, src, src) != 0)
        FAIL("%s", out);
    free(out);
}

static int steps_seen;
static void profile_step(void *ctx, const char *program, const char *step,
                         uint64_t begin, uint64_t end) {
    const char *names[] = {"y", "loss", "w.grad", "update", "w.bf16"};
    if (strcmp(program, "refresh") == 0) return;
    CHECK(ctx == names || end >= begin);
    CHECK_STR(step, names[steps_seen++ % 5]);
}

TEST_CASE(runtime, profiles) {
    ampc_session *s = open_module(&tiny_module, 1);
    steps_seen = 0;
    tiny_api()->profile(s, profile_step, NULL);
    train(s, 0, 2);
    CHECK_EQ_INT(steps_seen, 10);
    tiny_api()->profile(s, NULL, NULL);
    train(s, 0, 2);
    CHECK_EQ_INT(steps_seen, 10);
    tiny_api()->close(s);
}
