/* SPDX-License-Identifier: Apache-2.0 */
/* comm_tcp.c: communication between ranks over TCP, through rank 0.

   It needs only the variables that launchers set: MASTER_ADDR, MASTER_PORT,
   RANK, WORLD_SIZE. An engine that only connects GPUs uses it so that ranks
   find each other and learn which rank is missing. A few ranks on CPUs need
   nothing else; rank 0's link then carries all traffic.

   Every message is a frame with the kind and number of the call and the number
   of bytes that follow. A rank that receives another frame, none in time, or
   the end of the connection fails; rank 0 then tells the others why, before
   they wait long. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/api/session.h"

enum { WORLD_MOST = 65536, HELLO_SECONDS = 5, WHY = 300 };

typedef enum FrameKind {
    FRAME_HELLO = 0x72706d61, /* "ampr" */
    FRAME_SUM,
    FRAME_SHARE,
    FRAME_FAILED, /* why follows */
    FRAME_WELCOME /* sent by rank 0; it differs from HELLO, so that an echo
                     of HELLO is not taken for a welcome */
} FrameKind;

typedef struct Frame {
    uint32_t kind, number; /* number of the call; HELLO, WELCOME: the rank's
                              number */
    uint64_t bytes;        /* HELLO, WELCOME: number of ranks */
} Frame;

typedef struct Tcp {
    CommHead head;
    ampc_comm comm;
    int *peer; /* per rank: rank 0 has connections to all, other ranks only
                  to rank 0; -1: none */
    uint32_t number;
    bool broken;
    char why[WHY];
} Tcp;

/* ---- bytes --------------------------------------------------------------- */

/* Waits for a socket; 0: it is ready, else errno. */
static int ready(int fd, short events, double until) {
    for (;;) {
        double left = until - comm_seconds();
        struct pollfd p = {.fd = fd, .events = events};
        if (left <= 0) return ETIMEDOUT;
        int n = poll(&p, 1, left > 1 ? 1000 : (int)(left * 1e3) + 1);
        if (n > 0) return 0;
        if (n < 0 && errno != EINTR) return errno;
    }
}

/* Sends or receives all n bytes. Returns 0, ETIMEDOUT, EPIPE (the other side
   is gone) or another errno. */
static int move(int fd, void *data, size_t n, bool out, double until) {
    for (char *p = data, *end = p + n; p < end;) {
        int e = ready(fd, out ? POLLOUT : POLLIN, until);
        if (e) return e;
        ssize_t done = out ? send(fd, p, (size_t)(end - p), MSG_NOSIGNAL)
                           : recv(fd, p, (size_t)(end - p), 0);
        if (done > 0)
            p += done;
        else if (done == 0 || errno == ECONNRESET)
            return EPIPE;
        else if (errno != EINTR && errno != EAGAIN)
            return errno;
    }
    return 0;
}

/* ---- frames -------------------------------------------------------------- */

static double limit(const Tcp *t) { return comm_seconds() + t->head.deadline; }

/* Ends communication; rank 0 sends its reason to all ranks, which report it. */
static int broken(Tcp *t) {
    Frame f = {FRAME_FAILED, 0, sizeof t->why};
    t->broken = true;
    for (int r = 1; r < t->comm.world && t->comm.rank == 0; r++)
        if (move(t->peer[r], &f, sizeof f, true, comm_seconds() + 1) == 0)
            move(t->peer[r], t->why, sizeof t->why, true, comm_seconds() + 1);
    return 1;
}

static int lost(Tcp *t, int rank, int e) {
    if (e == ETIMEDOUT)
        snprintf(t->why, sizeof t->why, "rank %d did not answer within %g s",
                 rank, t->head.deadline);
    else
        snprintf(t->why, sizeof t->why, "rank %d is gone%s%s", rank,
                 e == EPIPE ? "" : ": ", e == EPIPE ? "" : strerror(e));
    return broken(t);
}

static int put_tcp(Tcp *t, int rank, FrameKind kind, void *data, size_t n) {
    Frame f = {kind, t->number, n};
    double until = limit(t);
    int e = move(t->peer[rank], &f, sizeof f, true, until);
    if (!e) e = move(t->peer[rank], data, n, true, until);
    return e ? lost(t, rank, e) : 0;
}

/* Other ranks wait longer than rank 0, which then tells them which rank did
   not answer. */
static int get(Tcp *t, int rank, FrameKind kind, void *data, size_t n) {
    Frame f;
    double until = limit(t) + (t->comm.rank ? 2 : 0);
    int e = move(t->peer[rank], &f, sizeof f, false, until);
    if (e) return lost(t, rank, e);
    if (f.kind == FRAME_FAILED && f.bytes == sizeof t->why) {
        e = move(t->peer[rank], t->why, sizeof t->why, false, until);
        t->why[sizeof t->why - 1] = 0;
        t->broken = true;
        return e ? lost(t, rank, e) : 1;
    }
    if (f.kind != (uint32_t)kind || f.number != t->number || f.bytes != n) {
        snprintf(t->why, sizeof t->why,
                 "rank %d made another call than rank %d", rank, t->comm.rank);
        return broken(t);
    }
    e = move(t->peer[rank], data, n, false, until);
    return e ? lost(t, rank, e) : 0;
}

/* ---- the table ----------------------------------------------------------- */

/* Rank 0 adds the elements of all ranks, in the order of ranks; 16-bit
   floats are added in fp32 and rounded once. */
static int collect(Tcp *t, void *data, size_t n, int32_t dtype, size_t bytes) {
    bool half = dtype_bytes((uint32_t)dtype) == sizeof(uint16_t);
    char *room = malloc((half ? 3 : 1) * bytes + 1);
    char *sum = half ? room : data, *part = half ? room + 2 * bytes : room;
    int failed = room == NULL;
    if (failed) {
        snprintf(t->why, sizeof t->why, "rank 0: out of memory");
        return broken(t);
    }
    if (half) comm_widen(memcpy(sum, data, bytes), n, dtype);
    for (int r = 1; r < t->comm.world && !failed; r++) {
        failed = get(t, r, FRAME_SUM, part, bytes);
        if (!failed) comm_add(sum, part, n, dtype);
    }
    if (half) {
        comm_narrow(sum, n, dtype);
        memcpy(data, sum, bytes);
    }
    free(room);
    return failed;
}

static int tcp_allreduce(void *ctx, void *data, size_t n, int32_t dtype) {
    Tcp *t = ctx;
    size_t bytes = n * dtype_bytes((uint32_t)dtype);
    int failed = t->broken;
    if (failed) return 1;
    t->number++;
    if (t->comm.rank)
        return put_tcp(t, 0, FRAME_SUM, data, bytes) ||
               get(t, 0, FRAME_SUM, data, bytes);
    failed = collect(t, data, n, dtype, bytes);
    for (int r = 1; r < t->comm.world && !failed; r++)
        failed = put_tcp(t, r, FRAME_SUM, data, bytes);
    return failed;
}

static int tcp_scatter(void *ctx, void *data, const uint64_t *at,
                       int32_t dtype) {
    Tcp *t = ctx;
    size_t each = dtype_bytes((uint32_t)dtype);
    int me = t->comm.rank, world = t->comm.world, failed = t->broken;
    char *p = data;
    if (failed) return 1;
    t->number++;
    if (me)
        return put_tcp(t, 0, FRAME_SUM, data, at[world] * each) ||
               get(t, 0, FRAME_SUM, p + at[me] * each,
                   (at[me + 1] - at[me]) * each);
    failed = collect(t, data, at[world], dtype, at[world] * each);
    for (int r = 1; r < world && !failed; r++)
        failed = put_tcp(t, r, FRAME_SUM, p + at[r] * each,
                         (at[r + 1] - at[r]) * each);
    return failed;
}

static int tcp_barrier(void *ctx) {
    float none;
    return tcp_allreduce(ctx, &none, 0, AMPC_DTYPE_F32);
}

static int tcp_broadcast(void *ctx, void *data, size_t bytes, int32_t root) {
    Tcp *t = ctx;
    int me = t->comm.rank, failed = t->broken;
    if (failed) return 1;
    t->number++;
    if (me && me == root) return put_tcp(t, 0, FRAME_SHARE, data, bytes);
    if (me) return get(t, 0, FRAME_SHARE, data, bytes);
    if (root) failed = get(t, root, FRAME_SHARE, data, bytes);
    for (int r = 1; r < t->comm.world && !failed; r++)
        if (r != root) failed = put_tcp(t, r, FRAME_SHARE, data, bytes);
    return failed;
}

static const char *tcp_error(void *ctx) { return ((Tcp *)ctx)->why; }

/* ---- meeting ------------------------------------------------------------- */

/* The first variable that is set counts, and gives -1 if it is not a number:
   a rank that used another launcher's variable would train alone. */
static int find_number(const char *const *names, size_t n) {
    while (n > 1 && !secure_getenv(*names)) {
        names++;
        n--;
    }
    return comm_number(names, 1, -1);
}

static int find_rank(void) {
    static const char *const names[] = {"RANK", "SLURM_PROCID",
                                        "OMPI_COMM_WORLD_RANK", "PMI_RANK"};
    return find_number(names, sizeof names / sizeof *names);
}

static int find_world(void) {
    static const char *const names[] = {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS",
                                        "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    return find_number(names, sizeof names / sizeof *names);
}

bool comm_tcp_possible(void) {
    const char *address = secure_getenv("MASTER_ADDR");
    return address && *address && find_rank() >= 0 && find_world() > 0;
}

/* torchrun itself listens on the port that it passes on. */
static int find_port(void) {
    static const char *const name = "MASTER_PORT";
    const char *agent = secure_getenv("TORCHELASTIC_USE_AGENT_STORE");
    int port = comm_number(&name, 1, 0);
    if (port < 0 || port > 65534) return 0;
    return port + (agent && strcmp(agent, "True") == 0);
}

static void prepare(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, O_NONBLOCK);
}

/* 0 or errno. */
static int serve(int fd, const struct addrinfo *a) {
    int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    return bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, 1024) ? errno : 0;
}

/* Connects with a deadline: if the host drops packets, connect() alone would
   wait for minutes. */
static int tcp_call(int fd, const struct addrinfo *a, double until) {
    int e = 0;
    socklen_t size = sizeof e;
    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) return 0;
    if (errno != EINPROGRESS) return errno;
    e = ready(fd, POLLOUT, until);
    if (e || getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &size) == 0) return e;
    return errno;
}

/* One of the addresses of a name, bound, or connected before that time (0:
   bound); -1 with errno. */
static int open_socket(const char *host, int port, double until) {
    bool listens = until == 0;
    struct addrinfo want = {.ai_socktype = SOCK_STREAM,
                            .ai_flags = listens ? AI_PASSIVE : 0};
    struct addrinfo *found;
    char service[16];
    int fd = -1, e = 0;
    snprintf(service, sizeof service, "%d", port);
    if (getaddrinfo(host, service, &want, &found)) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    for (struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
        e = fd < 0 ? errno : 0;
        if (fd < 0) continue;
        prepare(fd);
        e = listens ? serve(fd, a) : tcp_call(fd, a, until);
        if (!e) continue;
        close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    errno = e;
    return fd;
}

/* Accepts a connection if it comes from one of our ranks, else closes it. */
static void let_in(Tcp *t, int fd) {
    Frame f;
    double until = comm_seconds() + HELLO_SECONDS;
    prepare(fd);
    bool ours = move(fd, &f, sizeof f, false, until) == 0 &&
                f.kind == FRAME_HELLO && f.number > 0 &&
                f.number < (uint32_t)t->comm.world &&
                f.bytes == (uint64_t)t->comm.world && t->peer[f.number] < 0;
    f.kind = FRAME_WELCOME;
    if (ours && move(fd, &f, sizeof f, true, until) == 0)
        t->peer[f.number] = fd;
    else
        close(fd);
}

static int missing(const Tcp *t) {
    for (int r = 1; r < t->comm.world; r++)
        if (t->peer[r] < 0) return r;
    return 0;
}

/* Retries for a moment: the port may still be in use by another connection. */
static int open_port(const char *host, int port, double until) {
    double soon = comm_seconds() + HELLO_SECONDS;
    for (;;) {
        int fd = open_socket(host, port, 0);
        double now = comm_seconds();
        if (fd >= 0 || errno != EADDRINUSE || now > soon || now > until)
            return fd;
        usleep(50000);
    }
}

/* Rank 0: returns false with the reason in why. */
static bool tcp_gather(Tcp *t, const char *host, int port) {
    double until = limit(t);
    bool local =
        strncmp(host, "127.", 4) == 0 || strcmp(host, "localhost") == 0;
    int fd = open_port(local ? host : NULL, port, until), r;
    if (fd < 0) {
        snprintf(t->why, sizeof t->why, "port %d: %s", port, strerror(errno));
        return false;
    }
    while ((r = missing(t)) && ready(fd, POLLIN, until) == 0) {
        int other = accept(fd, NULL, NULL);
        if (other >= 0) let_in(t, other);
    }
    close(fd);
    if (r)
        snprintf(t->why, sizeof t->why, "rank %d did not connect within %g s",
                 r, t->head.deadline);
    return !r;
}

/* The other ranks retry until rank 0 listens. */
static bool join(Tcp *t, const char *host, int port) {
    const Frame hello = {FRAME_HELLO, (uint32_t)t->comm.rank,
                         (uint64_t)t->comm.world},
                welcome = {FRAME_WELCOME, hello.number, hello.bytes};
    Frame f;
    double until = limit(t);
    for (double now; (now = comm_seconds()) < until;) {
        double soon = now + HELLO_SECONDS;
        int fd = open_socket(host, port, soon < until ? soon : until);
        f = hello;
        if (fd >= 0 && !move(fd, &f, sizeof f, true, until) &&
            !move(fd, &f, sizeof f, false, until) &&
            memcmp(&f, &welcome, sizeof f) == 0) {
            t->peer[0] = fd;
            return true;
        }
        if (fd >= 0) close(fd);
        usleep(50000);
    }
    snprintf(t->why, sizeof t->why, "rank 0 does not answer at %.200s:%d", host,
             port);
    return false;
}

/* ---- open and close ------------------------------------------------------ */

static void tcp_free(Tcp *t) {
    for (int r = 0; t->peer && r < t->comm.world; r++)
        if (t->peer[r] >= 0) close(t->peer[r]);
    free(t->peer);
    free(t);
}

static void tcp_close(ampc_comm *comm) { tcp_free(comm->ctx); }

static bool meet(Tcp *t) {
    const char *host = secure_getenv("MASTER_ADDR");
    int port = find_port();
    size_t n = (size_t)t->comm.world;
    t->peer = malloc(n * sizeof *t->peer);
    if (!t->peer) snprintf(t->why, sizeof t->why, "out of memory");
    for (size_t r = 0; t->peer && r < n; r++) t->peer[r] = -1;
    if (!t->peer) return false;
    if (!port) {
        snprintf(t->why, sizeof t->why, "$MASTER_PORT is not a port");
        return false;
    }
    return t->comm.rank ? join(t, host, port) : tcp_gather(t, host, port);
}

static ampc_status tcp_open(double deadline, ampc_comm **out, char *err,
                            size_t err_size) {
    Tcp *t = calloc(1, sizeof *t);
    int rank = find_rank(), world = find_world();
    const char *why = "out of memory";
    if (t && (rank < 0 || world < 1 || rank >= world || world > WORLD_MOST)) {
        why = "$RANK and $WORLD_SIZE must be the rank and the number of ranks";
    } else if (t && !secure_getenv("MASTER_ADDR")) {
        why = "$MASTER_ADDR must be the address of rank 0";
    } else if (t) {
        t->head = (CommHead){&comm_tcp, deadline};
        t->comm = (ampc_comm){.size = sizeof t->comm,
                              .rank = rank,
                              .world = world,
                              .local = comm_local_rank(),
                              .any_thread = 1,
                              .ctx = t,
                              .allreduce = tcp_allreduce,
                              .broadcast = tcp_broadcast,
                              .barrier = tcp_barrier,
                              .error = tcp_error,
                              .scatter = tcp_scatter};
        why = meet(t) ? NULL : t->why;
    }
    if (!why) {
        *out = &t->comm;
        return AMPC_OK;
    }
    if (err && err_size) snprintf(err, err_size, "%s", why);
    if (t) tcp_free(t);
    return AMPC_ERR_COMM;
}

const CommEngine comm_tcp = {"tcp", tcp_open, tcp_close};
