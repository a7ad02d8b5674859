/* SPDX-License-Identifier: Apache-2.0 */
/* comm_tcp_test.c: ranks over sockets: sums compared with plain C, and ranks
   that are silent, answer another call or exist twice. Such ranks are
   simulated here, frame by frame; the others are separate processes. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/program/dtype.h"
#include "runtime/api/session.h"
#include "tests/harness.h"

/* ---- ranks --------------------------------------------------------------- */

static int port;

static struct sockaddr_in address(int at) {
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)at),
                                .sin_addr = {htonl(INADDR_LOOPBACK)}};
}

/* A port on which no process listens. */
static void choose_port(void) {
    struct sockaddr_in a = address(0);
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(fd >= 0 && bind(fd, (void *)&a, sizeof a) == 0);
    REQUIRE(getsockname(fd, (void *)&a, &size) == 0);
    port = ntohs(a.sin_port);
    close(fd);
}

typedef const char *
RankFn(ampc_comm *c); /* NULL, or a description of the error */

/* Runs a rank that has connected to the others: returns 0, or 1 with its
   message in a file. */
static int run_rank(int rank, int world, double deadline, RankFn *fn) {
    char text[16], err[400] = "", name[32];
    ampc_comm *c = NULL;
    const char *wrong = err;
    snprintf(text, sizeof text, "%d", rank);
    setenv("RANK", text, 1);
    snprintf(text, sizeof text, "%d", world);
    setenv("WORLD_SIZE", text, 1);
    snprintf(text, sizeof text, "%d", port);
    setenv("MASTER_PORT", text, 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    if (comm_tcp.open(deadline, &c, err, sizeof err) == AMPC_OK) wrong = fn(c);
    if (!wrong) return 0;
    snprintf(name, sizeof name, "rank%d", rank);
    test_write_file(test_tmp(name), wrong, strlen(wrong));
    return 1;
}

static int taken = -1; /* a socket bound to the port, which belongs to no
                          rank */

static pid_t start_rank(int rank, int world, double deadline, RankFn *fn) {
    pid_t child = fork();
    if (child == 0) {
        if (taken >= 0) close(taken);
        _exit(run_rank(rank, world, deadline, fn));
    }
    return child;
}

static void check_rank(pid_t child, int rank, const char *says) {
    char name[32];
    int status;
    snprintf(name, sizeof name, "rank%d", rank);
    REQUIRE(waitpid(child, &status, 0) == child);
    char *text = test_read_file(test_tmp(name), NULL);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == (says != NULL),
              "rank %d: status %#x, %s", rank, (unsigned)status,
              text ? text : "");
    if (says) CHECK_HAS(text ? text : "", says);
    free(text);
    unlink(test_tmp(name));
}

/* ---- sums ---------------------------------------------------------------- */

enum { WORLD = 3, COUNT = 301 };

static float number(int rank, int i) {
    return (float)((rank + 1) * 37 + i * 11 % 101) / 64;
}

/* 16-bit sums are rounded once, whatever the ranks between. */
static const char *sums(ampc_comm *c) {
    float wide[COUNT];
    uint16_t half[COUNT];
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < COUNT; i++) {
            wide[i] = number(c->rank, i + turn);
            half[i] = f32_to_bf16(number(c->rank, i + turn));
        }
        if (c->allreduce(c->ctx, wide, COUNT, AMPC_DTYPE_F32) ||
            c->allreduce(c->ctx, half, COUNT, AMPC_DTYPE_BF16))
            return c->error(c->ctx);
        for (int i = 0; i < COUNT; i++) {
            float want = 0, rounded = 0;
            for (int r = 0; r < WORLD; r++) {
                want += number(r, i + turn);
                rounded += bf16_to_f32(f32_to_bf16(number(r, i + turn)));
            }
            if (wide[i] != want) return "a sum in fp32";
            if (half[i] != f32_to_bf16(rounded)) return "a sum in bf16";
        }
    }
    return NULL;
}

/* From every rank in turn, in parts of unequal length. */
static const char *shares(ampc_comm *c) {
    static const uint64_t at[WORLD + 1] = {0, 7, 7, COUNT};
    float part[COUNT];
    for (int root = 0; root < WORLD; root++) {
        for (int i = 0; i < COUNT; i++)
            part[i] = c->rank == root ? number(root, i) : -1;
        if (c->broadcast(c->ctx, part, sizeof part, root) || c->barrier(c->ctx))
            return c->error(c->ctx);
        for (int i = 0; i < COUNT; i++)
            if (part[i] != number(root, i)) return "what was handed out";
    }
    for (int i = 0; i < COUNT; i++) part[i] = number(c->rank, i);
    if (c->scatter(c->ctx, part, at, AMPC_DTYPE_F32)) return c->error(c->ctx);
    for (uint64_t i = at[c->rank]; i < at[c->rank + 1]; i++) {
        float want = 0;
        for (int r = 0; r < WORLD; r++) want += number(r, (int)i);
        if (part[i] != want) return "a part of a sum";
    }
    return NULL;
}

static atomic_int *came; /* at barriers, over all ranks */

/* No rank leaves a barrier before all have arrived, whichever is last. */
static const char *meets(ampc_comm *c) {
    for (int turn = 1; turn <= 3 * WORLD; turn++) {
        struct timespec late = {.tv_nsec = (turn + c->rank) % WORLD * 5000000};
        nanosleep(&late, NULL);
        atomic_fetch_add(came, 1);
        if (c->barrier(c->ctx)) return c->error(c->ctx);
        if (atomic_load(came) < turn * WORLD) return "a barrier was left early";
    }
    return NULL;
}

static void all_ranks(RankFn *fn) {
    pid_t child[WORLD];
    choose_port();
    for (int r = 0; r < WORLD; r++) child[r] = start_rank(r, WORLD, 20, fn);
    for (int r = 0; r < WORLD; r++) check_rank(child[r], r, NULL);
}

TEST_CASE(comm_tcp, sums_are_those_of_plain_c) { all_ranks(sums); }
TEST_CASE(comm_tcp, all_get_what_one_has) { all_ranks(shares); }

TEST_CASE(comm_tcp, barriers_wait_for_all) {
    came = mmap(NULL, sizeof *came, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(came != MAP_FAILED);
    all_ranks(meets);
    munmap(came, sizeof *came);
}

/* ---- a rank played here -------------------------------------------------- */

typedef struct Frame { /* in the form that comm_tcp.c sends */
    uint32_t kind, number;
    uint64_t bytes;
} Frame;
enum { HELLO = 0x72706d61, SUM, WELCOME = SUM + 3 };

/* Connects when rank 0 listens. */
static int connect_to(void) {
    struct sockaddr_in a = address(port);
    for (int i = 0; i < 400; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (void *)&a, sizeof a) == 0) return fd;
        close(fd);
        usleep(20000);
    }
    FAIL("rank 0 does not listen");
}

/* True if the other side answers with n bytes, and does not hang up. */
static bool hears(int fd, void *to, size_t n) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 8000) == 1 && recv(fd, to, n, MSG_WAITALL) == (ssize_t)n;
}

static bool greet(int fd, int rank, int world) {
    Frame f = {HELLO, (uint32_t)rank, (uint64_t)world}, back = {0, 0, 0};
    CHECK(send(fd, &f, sizeof f, MSG_NOSIGNAL) == (ssize_t)sizeof f);
    f.kind = WELCOME;
    return hears(fd, &back, sizeof back) && memcmp(&f, &back, sizeof f) == 0;
}

static const char *one_sum(ampc_comm *c) {
    float x = 1;
    if (c->allreduce(c->ctx, &x, 1, AMPC_DTYPE_F32)) return c->error(c->ctx);
    return x == 3 ? NULL : "another sum";
}

/* Checks rank 0's message for a frame that arrives before a sum of one
   number, and before one of 2. */
static void answered_with(Frame f, const char *says) {
    float two = 2;
    choose_port();
    pid_t child = start_rank(0, 2, 5, one_sum);
    int fd = connect_to();
    CHECK(greet(fd, 1, 2));
    send(fd, &f, sizeof f, MSG_NOSIGNAL);
    send(fd, &two, sizeof two, MSG_NOSIGNAL);
    check_rank(child, 0, says);
    close(fd);
}

TEST_CASE(comm_tcp, answers_are_to_what_was_asked) {
    static const char other[] = "rank 1 made another call than rank 0";
    answered_with((Frame){SUM, 1, 4}, NULL);
    answered_with((Frame){SUM, 2, 4}, other);
    answered_with((Frame){SUM, 0, 4}, other);
    answered_with((Frame){SUM + 1, 1, 4}, other);
    answered_with((Frame){SUM, 1, 8}, other);
}

/* Rank 0 tells all others which rank is silent, and they name it. */
TEST_CASE(comm_tcp, all_name_the_silent_one) {
    static const char silent[] = "rank 2 did not answer within 3 s";
    choose_port();
    pid_t zero = start_rank(0, 3, 3, one_sum);
    int fd = connect_to();
    CHECK(greet(fd, 2, 3));
    pid_t one = start_rank(1, 3, 3, one_sum);
    check_rank(zero, 0, silent);
    check_rank(one, 1, silent);
    close(fd);
}

/* A process whose rank is taken is sent away, and so is one without a rank. */
TEST_CASE(comm_tcp, every_rank_is_there_once) {
    static const int wrong[] = {1, 0, 3, 4};
    choose_port();
    pid_t zero = start_rank(0, 3, 20, one_sum);
    int fd = connect_to();
    CHECK(greet(fd, 1, 3));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int other = connect_to();
        CHECK_MSG(!greet(other, wrong[i], 3), "rank %d", wrong[i]);
        close(other);
    }
    int stranger = connect_to();
    CHECK(!greet(stranger, 2, 4));
    close(stranger);
    close(fd); /* rank 1 is gone, which rank 0 reports when all are there */
    fd = connect_to();
    CHECK(greet(fd, 2, 3));
    check_rank(zero, 0, "rank 1 is gone");
    close(fd);
}

static void take_port(void) {
    choose_port();
    struct sockaddr_in a = address(port);
    taken = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(taken, (void *)&a, sizeof a) == 0);
}

static void free_port(void) {
    close(taken);
    taken = -1;
}

/* A connection to an unused port of the same host may get this port as its
   own side's: the program then connects to itself. */
TEST_CASE(comm_tcp, an_echo_is_not_rank_0) {
    int calls = 0;
    take_port();
    REQUIRE(listen(taken, 8) == 0);
    pid_t one = start_rank(1, 2, 2, one_sum);
    for (struct pollfd p = {.fd = taken, .events = POLLIN};
         poll(&p, 1, 3000) == 1; calls++) {
        char text[sizeof(Frame)];
        int fd = accept(taken, NULL, NULL);
        if (hears(fd, text, sizeof text))
            send(fd, text, sizeof text, MSG_NOSIGNAL);
        CHECK(!hears(fd, text, 1)); /* nothing more */
        close(fd);
    }
    CHECK(calls > 1);
    check_rank(one, 1, "rank 0 does not answer at 127.0.0.1:");
    free_port();
}

/* Rank 0 waits for the port while such a connection, or another program, holds
   it. */
TEST_CASE(comm_tcp, a_port_that_is_taken) {
    take_port();
    pid_t zero = start_rank(0, 2, 20, one_sum);
    usleep(500000);
    free_port();
    int fd = connect_to();
    CHECK(greet(fd, 1, 2));
    close(fd);
    check_rank(zero, 0, "rank 1 is gone");

    take_port();
    double begin = comm_seconds();
    zero = start_rank(0, 2, 2, one_sum);
    check_rank(zero, 0, "Address already in use");
    CHECK(comm_seconds() - begin < 4);
    free_port();
}

/* ---- what launchers say -------------------------------------------------- */

TEST_CASE(comm, the_local_rank_is_what_a_launcher_says) {
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK",
                                        "MPI_LOCALRANKID", "SLURM_LOCALID",
                                        "LOCAL_RANK"};
    static const struct {
        const char *text;
        int rank; /* -1: not set, so that the next name counts */
    } rows[] = {{"0", 0},   {"3", 3},          {"2147483647", INT32_MAX},
                {"", -1},   {"-1", -1},        {"x", -1},
                {"3x", -1}, {"2147483648", -1}};
    enum { NAMES = sizeof names / sizeof *names };
    for (int i = 0; i < NAMES; i++) unsetenv(names[i]);
    CHECK_EQ_INT(comm_local_rank(), 0);
    for (int i = NAMES; i-- > 0;) { /* earlier names take precedence */
        int next = comm_local_rank();
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
            setenv(names[i], rows[k].text, 1);
            CHECK_EQ_INT(comm_local_rank(),
                         rows[k].rank < 0 ? next : rows[k].rank);
        }
        setenv(names[i], (char[]){(char)('1' + i), 0}, 1);
        CHECK_EQ_INT(comm_local_rank(), 1 + i);
    }
    for (int i = 0; i < NAMES; i++) unsetenv(names[i]);
}

TEST_CASE(comm, options_of_a_communicator) {
    static const struct {
        ampc_comm_options o;
        const char *why;
    } rows[] = {
        {{.size = 0}, "ampc_comm_options.size is not set"},
        {{.size = sizeof(ampc_comm_options)}, "no engine is named"},
        {{.size = sizeof(ampc_comm_options), .engine = "tcp", .deadline = -1},
         "deadline: seconds"},
        {{.size = sizeof(ampc_comm_options), .engine = "tcp", .deadline = 2e9},
         "deadline: seconds"},
        {{.size = sizeof(ampc_comm_options), .engine = "udp"},
         "unknown engine 'udp': mpi, nccl or tcp"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ampc_comm *c = (void *)&rows;
        char err[200] = "";
        CHECK_EQ_INT(comm_open(&rows[i].o, &c, err, sizeof err),
                     AMPC_ERR_ARGUMENT);
        CHECK_STR(err, rows[i].why);
        CHECK(c == NULL);
        CHECK_EQ_INT(comm_open(&rows[i].o, &c, NULL, 0), AMPC_ERR_ARGUMENT);
        CHECK_EQ_INT(comm_open(&rows[i].o, &c, err, 5), AMPC_ERR_ARGUMENT);
        CHECK_EQ_INT(strlen(err), 4);
    }
    char err[200];
    ampc_comm_options o = {.size = sizeof o, .engine = "tcp"};
    CHECK_EQ_INT(comm_open(&o, NULL, err, sizeof err), AMPC_ERR_ARGUMENT);
    CHECK_STR(err, "out is NULL");
}

static int none(void *ctx, void *data, size_t n, int32_t x) {
    (void)ctx, (void)data, (void)n, (void)x;
    return 0;
}
static int barrier(void *ctx) { return ctx != NULL; }
static int none_on(void *ctx, uint64_t data, size_t n, int32_t x, void *s) {
    (void)ctx, (void)data, (void)n, (void)x, (void)s;
    return 0;
}
static int group(void *ctx, int32_t begin) { return ctx && begin; }
static int waiting(void *ctx, double seconds) { return ctx && seconds > 0; }

/* Functions that a host's table must have, and those that sums in a GPU's
   memory need. */
TEST_CASE(comm, tables_of_a_host) {
    const ampc_comm whole = {.size = sizeof whole,
                             .world = 65536,
                             .rank = 65535,
                             .allreduce = none,
                             .broadcast = none,
                             .barrier = barrier,
                             .allreduce_on = none_on,
                             .broadcast_on = none_on,
                             .group = group,
                             .waiting = waiting};
    ampc_comm c = whole;
    CHECK(comm_is_whole(&c) && comm_sums_on_device(&c));
    CHECK(!comm_sums_on_device(NULL));
#define WITHOUT(test, change)                                                  \
    do {                                                                       \
        c = whole;                                                             \
        change;                                                                \
        CHECK(!test(&c));                                                      \
    } while (0)
    WITHOUT(comm_is_whole, c.allreduce = NULL);
    WITHOUT(comm_is_whole, c.broadcast = NULL);
    WITHOUT(comm_is_whole, c.barrier = NULL);
    WITHOUT(comm_is_whole, c.size = offsetof(ampc_comm, barrier));
    WITHOUT(comm_is_whole, c.world = 65537);
    WITHOUT(comm_is_whole, c.world = c.rank = 0);
    WITHOUT(comm_is_whole, c.rank = -1);
    WITHOUT(comm_is_whole, c.rank = c.world);
    WITHOUT(comm_is_whole, c.local = -1);
    WITHOUT(comm_sums_on_device, c.allreduce_on = NULL);
    WITHOUT(comm_sums_on_device, c.broadcast_on = NULL);
    WITHOUT(comm_sums_on_device, c.group = NULL);
    WITHOUT(comm_sums_on_device, c.waiting = NULL);
    WITHOUT(comm_sums_on_device, c.size = offsetof(ampc_comm, waiting));
}

/* The launcher's variables suffice. */
TEST_CASE(comm, what_a_launcher_must_say) {
    static const struct {
        const char *address, *rank, *world;
        bool enough;
    } says[] = {
        {"127.0.0.1", "0", "1", true}, {"host", "3", "4", true},
        {"", "0", "1", false},         {NULL, "0", "1", false},
        {"host", NULL, "4", false},    {"host", "-1", "4", false},
        {"host", "0", NULL, false},    {"host", "0", "0", false},
        {"host", "x", "4", false},     {"host", "0", "", false},
    };
    for (size_t i = 0; i < sizeof says / sizeof *says; i++) {
        const char *const name[] = {"MASTER_ADDR", "RANK", "WORLD_SIZE"};
        const char *const value[] = {says[i].address, says[i].rank,
                                     says[i].world};
        for (int k = 0; k < 3; k++)
            if (value[k])
                setenv(name[k], value[k], 1);
            else
                unsetenv(name[k]);
        CHECK_MSG(comm_tcp_possible() == says[i].enough, "row %d", (int)i);
    }
    unsetenv("MASTER_ADDR");
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
}
