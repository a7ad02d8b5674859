/* SPDX-License-Identifier: Apache-2.0 */
/* comm_mpi.c: communication between ranks by MPI.

   Open MPI, MPICH and the ABI of MPI 5 are found at run time.  Their handles
   differ: pointers to objects of the library, or numbers.  x86-64 passes either
   in a register, and zeroed slots of 64 bits hold either, so one type serves
   both; only the constants exist twice.

   Sums are added in the order of ranks, so that they depend neither on the
   library nor on timing. The elements are cut into one segment per rank; each
   rank gets the others' parts of its segment, adds, and sends the sum to all.
   Each message is waited for separately and with a deadline, so that an error
   names the rank that did not answer. MPI gets only buffers of our own: after a
   failure they stay allocated, since MPI may still write to them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/api/session.h"

#include "runtime/base/glibc.h" /* last */

typedef intptr_t Handle;

typedef struct MpiApi {
    int (*Initialized)(int *flag);
    int (*Query_thread)(int *level);
    int (*Init_thread)(int *argc, char ***argv, int wanted, int *got);
    int (*Finalize)(void);
    int (*Comm_dup)(Handle comm, Handle *copy);
    int (*Comm_free)(Handle *comm);
    int (*Comm_rank)(Handle comm, int *rank);
    int (*Comm_size)(Handle comm, int *size);
    int (*Comm_set_errhandler)(Handle comm, Handle handler);
    int (*Isend)(const void *data, int n, Handle type, int to, int tag,
                 Handle comm, Handle *request);
    int (*Irecv)(void *data, int n, Handle type, int from, int tag, Handle comm,
                 Handle *request);
    int (*Test)(Handle *request, int *done, void *status);
    Handle world, byte, errors_return;
    void *status_ignore;
    int serialized; /* the constant MPI_THREAD_SERIALIZED */
} MpiApi;

/* The n messages of a rank; the first `done` have completed. */
typedef struct Messages {
    Handle *request;
    int n, done;
} Messages;

typedef enum Way { GET, SEND, WAYS } Way;

/* Over TCP Open MPI moves messages from its eager limit of 64 KB on one way at
   a time: 2 MB each way at once through 150 Mbit/s took 212 ms, in short
   messages 107. */
enum { PIECE = 4 << 20, SHORT = 32 << 10, TAG = 0x7fff };

typedef struct Mpi {
    CommHead head;
    ampc_comm comm;
    MpiApi mpi;
    Handle world;
    bool ours, broken; /* MPI was initialised here; a call has failed */
    int tag;
    Messages *messages[WAYS]; /* one a rank */
    Handle *requests;         /* of all */
    char *out, *in, *sum;     /* PIECE bytes each; sum: the added elements */
    char why[300];
} Mpi;

/* ---- finding ------------------------------------------------------------- */

static bool find_symbols(void *lib, MpiApi *a, const char **missing) {
    const struct {
        const char *name;
        void *slot;
    } symbols[] = {
        {"MPI_Initialized", &a->Initialized},
        {"MPI_Query_thread", &a->Query_thread},
        {"MPI_Init_thread", &a->Init_thread},
        {"MPI_Finalize", &a->Finalize},
        {"MPI_Comm_dup", &a->Comm_dup},
        {"MPI_Comm_free", &a->Comm_free},
        {"MPI_Comm_rank", &a->Comm_rank},
        {"MPI_Comm_size", &a->Comm_size},
        {"MPI_Comm_set_errhandler", &a->Comm_set_errhandler},
        {"MPI_Isend", &a->Isend},
        {"MPI_Irecv", &a->Irecv},
        {"MPI_Test", &a->Test},
    };
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *p = dlsym(lib, *missing = symbols[i].name);
        if (!p) return false;
        memcpy(symbols[i].slot, &p, sizeof p);
    }
    return true;
}

/* MPI 5 has a standard ABI, in libraries with that name. */
static bool is_abi(void *lib) {
    struct link_map *map = NULL;
    if (dlinfo(lib, RTLD_DI_LINKMAP, &map) || !map) return false;
    const char *name = strrchr(map->l_name, '/');
    return strstr(name ? name : map->l_name, "mpi_abi") != NULL;
}

/* Open MPI's mpi.h names objects, MPICH's and the ABI have numbers. */
static void find_constants(void *lib, MpiApi *a) {
    a->serialized = is_abi(lib) ? 2048 : 2;
    if (is_abi(lib)) {
        a->world = 0x101;
        a->byte = 0x247;
        a->errors_return = 0x142;
        a->status_ignore = NULL;
        return;
    }
    void *world = dlsym(lib, "ompi_mpi_comm_world");
    a->world = world ? (Handle)world : 0x44000000;
    a->byte = world ? (Handle)dlsym(lib, "ompi_mpi_byte") : 0x4c00010d;
    a->errors_return =
        world ? (Handle)dlsym(lib, "ompi_mpi_errors_return") : 0x54000001;
    a->status_ignore = world ? NULL : (void *)1;
}

/* The library that the process has loaded, else the launcher's, else any. */
static void *find_library(char *why, size_t size) {
    static const char *const names[] = {"libmpi.so.40", "libmpich.so.12",
                                        "libmpi.so.12", "libmpi_abi.so.0"};
    enum { N = sizeof names / sizeof *names };
    const char *given = secure_getenv("AMPC_LIBMPI");
    size_t first =
        secure_getenv("PMI_RANK") && !secure_getenv("OMPI_COMM_WORLD_RANK");
    int flags = RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE;
    void *lib = NULL;
    if (given && strcmp(given, "none") == 0) {
        snprintf(why, size, "$AMPC_LIBMPI is \"none\"");
        return NULL;
    }
    if (given && *given) {
        lib = dlopen(given, flags);
    } else {
        for (size_t i = 0; i < N && !lib; i++)
            lib = dlopen(names[i], flags | RTLD_NOLOAD);
        for (size_t i = 0; i < N && !lib; i++)
            lib = dlopen(names[(first + i) % N], flags);
    }
    if (!lib)
        snprintf(why, size,
                 "no MPI (libmpi.so.40 of Open MPI, libmpich.so.12, "
                 "libmpi_abi.so.0; name its "
                 "file by $AMPC_LIBMPI): %s",
                 dlerror());
    return lib;
}

/* ---- messages ------------------------------------------------------------ */

static int fail_mpi(Mpi *m, Way way, int rank) {
    m->broken = true;
    snprintf(m->why, sizeof m->why, "MPI: %s rank %d failed",
             way == GET ? "receiving from" : "sending to", rank);
    return 1;
}

/* There may be fewer processors than ranks: a rank that waits long lets
   others work. */
static void wait_a_little(double since) {
    if (comm_seconds() - since < 1e-3)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

/* Tests the messages; a rank's messages complete in order. */
static int test_all(Mpi *m, Way way, int *late) {
    *late = -1;
    for (int r = 0; r < m->comm.world; r++) {
        Messages *x = &m->messages[way][r];
        for (int done = 1; x->done < x->n && done; x->done += done)
            if (m->mpi.Test(&x->request[x->done], &done, m->mpi.status_ignore))
                return fail_mpi(m, way, r);
        if (x->done < x->n && *late < 0) *late = r;
    }
    return 0;
}

/* Waits until all messages are sent and received. */
static int wait_all(Mpi *m) {
    double begin = comm_seconds();
    for (;;) {
        int get, send;
        if (test_all(m, GET, &get) || test_all(m, SEND, &send)) return 1;
        if (get < 0 && send < 0) return 0;
        if (comm_seconds() - begin > m->head.deadline) {
            m->broken = true;
            snprintf(m->why, sizeof m->why,
                     "rank %d did not answer within %g s",
                     get >= 0 ? get : send, m->head.deadline);
            return 1;
        }
        wait_a_little(begin);
    }
}

/* Sends or receives a rank's bytes in messages of at most `most`, or one
   empty message. */
static int begin(Mpi *m, Way way, int rank, char *data, size_t bytes,
                 size_t most) {
    Messages *x = &m->messages[way][rank];
    x->n = x->done = 0;
    do {
        int n = (int)(bytes < most ? bytes : most);
        Handle *request = &x->request[x->n++];
        *request = 0;
        if (way == SEND ? m->mpi.Isend(data, n, m->mpi.byte, rank, m->tag,
                                       m->world, request)
                        : m->mpi.Irecv(data, n, m->mpi.byte, rank, m->tag,
                                       m->world, request))
            return fail_mpi(m, way, rank);
        data += n;
        bytes -= (size_t)n;
    } while (bytes);
    return 0;
}

/* ---- sums ---------------------------------------------------------------- */

/* First element of rank r's segment of n elements. */
static size_t segment(const Mpi *m, size_t n, int r) {
    return n * (size_t)r / (size_t)m->comm.world;
}

/* Collects in m->in the other ranks' elements of this rank's segment;
   m->out: all n elements. */
static int exchange_parts(Mpi *m, size_t n, size_t each) {
    int me = m->comm.rank;
    size_t own = (segment(m, n, me + 1) - segment(m, n, me)) * each;
    m->tag = (m->tag + 1) & TAG;
    for (int r = 0; r < m->comm.world; r++)
        if (r != me && begin(m, GET, r, m->in + (size_t)r * own, own, SHORT))
            return 1;
    for (int r = 0; r < m->comm.world; r++) {
        size_t at = segment(m, n, r) * each;
        size_t bytes = segment(m, n, r + 1) * each - at;
        if (r == me)
            memcpy(m->in + (size_t)me * own, m->out + at, own);
        else if (begin(m, SEND, r, m->out + at, bytes, SHORT))
            return 1;
    }
    return wait_all(m);
}

static int exchange_sums(Mpi *m, size_t n, size_t each) {
    int me = m->comm.rank;
    size_t at = segment(m, n, me) * each;
    size_t own = segment(m, n, me + 1) * each - at;
    m->tag = (m->tag + 1) & TAG;
    for (int r = 0; r < m->comm.world; r++) {
        size_t to = segment(m, n, r) * each;
        if (r != me && begin(m, GET, r, m->out + to,
                             segment(m, n, r + 1) * each - to, SHORT))
            return 1;
    }
    for (int r = 0; r < m->comm.world; r++)
        if (r != me && begin(m, SEND, r, m->sum, own, SHORT)) return 1;
    memcpy(m->out + at, m->sum, own);
    return wait_all(m);
}

/* Adds the ranks' n elements of this rank's segment into m->sum, in the
   order of ranks; the parts are `stride` bytes apart. 16-bit floats are
   added in fp32 and rounded once. */
static void add_parts(Mpi *m, size_t n, int32_t dtype, size_t stride) {
    bool half = dtype_bytes((uint32_t)dtype) == sizeof(uint16_t);
    memcpy(m->sum, m->in, n * dtype_bytes((uint32_t)dtype));
    if (half) comm_widen(m->sum, n, dtype);
    for (int r = 1; r < m->comm.world; r++)
        comm_add(m->sum, m->in + (size_t)r * stride, n, dtype);
    if (half) comm_narrow(m->sum, n, dtype);
}

static int add_piece(Mpi *m, char *data, size_t n, int32_t dtype, size_t each) {
    int me = m->comm.rank;
    size_t own = segment(m, n, me + 1) - segment(m, n, me);
    memcpy(m->out, data, n * each);
    if (exchange_parts(m, n, each)) return 1;
    add_parts(m, own, dtype, own * each);
    if (exchange_sums(m, n, each)) return 1;
    memcpy(data, m->out, n * each);
    return 0;
}

static int mpi_allreduce(void *ctx, void *data, size_t count, int32_t dtype) {
    Mpi *m = ctx;
    size_t each = dtype_bytes((uint32_t)dtype);
    size_t piece = PIECE / each, at = 0;
    if (m->broken) return 1;
    do {
        size_t n = count - at < piece ? count - at : piece;
        if (add_piece(m, (char *)data + at * each, n, dtype, each)) return 1;
        at += n;
    } while (at < count);
    return 0;
}

/* Every rank waits for all others, although no number is summed. */
static int mpi_barrier(void *ctx) {
    char none = 0;
    return mpi_allreduce(ctx, &none, 0, AMPC_DTYPE_F32);
}

static int mpi_broadcast(void *ctx, void *data, size_t bytes, int32_t root) {
    Mpi *m = ctx;
    if (m->broken) return 1;
    for (size_t at = 0, n; at < bytes; at += n) {
        char *p = (char *)data + at;
        n = bytes - at < PIECE ? bytes - at : PIECE;
        m->tag = (m->tag + 1) & TAG;
        if (m->comm.rank == root) memcpy(m->out, p, n);
        for (int r = 0; r < m->comm.world && m->comm.rank == root; r++)
            if (r != root && begin(m, SEND, r, m->out, n, PIECE)) return 1;
        if (m->comm.rank != root && begin(m, GET, root, m->out, n, PIECE))
            return 1;
        if (wait_all(m)) return 1;
        if (m->comm.rank != root) memcpy(p, m->out, n);
    }
    return 0;
}

/* Number of elements or bytes of rank r in the current piece. */
static size_t mpi_part_of(const uint64_t *at, int r, uint64_t from,
                          uint64_t each) {
    uint64_t n = at[r + 1] - at[r];
    n = n > from ? n - from : 0;
    return n < each ? n : each;
}

/* The largest number of elements of any rank. */
static uint64_t most_of(const uint64_t *at, int world) {
    uint64_t most = 0;
    for (int r = 0; r < world; r++)
        if (at[r + 1] - at[r] > most) most = at[r + 1] - at[r];
    return most;
}

/* A piece holds equally many bytes of every rank. */
static int mpi_gather(void *ctx, void *data, const uint64_t *at) {
    Mpi *m = ctx;
    int me = m->comm.rank, world = m->comm.world;
    uint64_t most = most_of(at, world), each = PIECE / (uint64_t)world;
    if (m->broken) return 1;
    for (uint64_t from = 0; from < most; from += each) {
        size_t own = mpi_part_of(at, me, from, each);
        m->tag = (m->tag + 1) & TAG;
        if (own) memcpy(m->out, (char *)data + at[me] + from, own);
        for (int r = 0; r < world; r++)
            if (r != me && begin(m, GET, r, m->in + (uint64_t)r * each,
                                 mpi_part_of(at, r, from, each), SHORT))
                return 1;
        for (int r = 0; r < world; r++)
            if (r != me && begin(m, SEND, r, m->out, own, SHORT)) return 1;
        if (wait_all(m)) return 1;
        for (int r = 0; r < world; r++) {
            size_t n = mpi_part_of(at, r, from, each);
            if (r != me && n)
                memcpy((char *)data + at[r] + from, m->in + (uint64_t)r * each,
                       n);
        }
    }
    return 0;
}

static int mpi_scatter(void *ctx, void *data, const uint64_t *at,
                       int32_t dtype) {
    Mpi *m = ctx;
    int me = m->comm.rank, world = m->comm.world;
    size_t each = dtype_bytes((uint32_t)dtype);
    uint64_t most = most_of(at, world), piece = PIECE / each / (uint64_t)world;
    if (m->broken) return 1;
    for (uint64_t from = 0; from < most; from += piece) {
        size_t own = mpi_part_of(at, me, from, piece);
        m->tag = (m->tag + 1) & TAG;
        for (int r = 0; r < world; r++)
            if (r != me && begin(m, GET, r, m->in + (size_t)r * piece * each,
                                 own * each, SHORT))
                return 1;
        for (int r = 0; r < world; r++) {
            size_t n = mpi_part_of(at, r, from, piece) * each;
            char *to = (r == me ? m->in : m->out) + (size_t)r * piece * each;
            if (n) memcpy(to, (char *)data + (at[r] + from) * each, n);
            if (r != me && begin(m, SEND, r, to, n, SHORT)) return 1;
        }
        if (wait_all(m)) return 1;
        if (!own) continue;
        add_parts(m, own, dtype, piece * each);
        memcpy((char *)data + (at[me] + from) * each, m->sum, own * each);
    }
    return 0;
}

static const char *mpi_error(void *ctx) { return ((Mpi *)ctx)->why; }

/* ---- open and close ------------------------------------------------------ */

static void mpi_free(Mpi *m) {
    for (int way = 0; way < WAYS; way++) free(m->messages[way]);
    free(m->requests);
    free(m->out);
    free(m->in);
    free(m->sum);
    free(m);
}

static void mpi_close(ampc_comm *comm) {
    Mpi *m = comm->ctx;
    if (m->broken)
        return; /* MPI itself would wait for a rank that does not
                   answer */
    m->mpi.Comm_free(&m->world);
    if (m->ours) m->mpi.Finalize();
    mpi_free(m);
}

static const char *mpi_start(Mpi *m) {
    MpiApi *a = &m->mpi;
    int there = 0, got;
    if (a->Initialized(&there)) return "MPI_Initialized failed";
    if (!there && a->Init_thread(NULL, NULL, a->serialized, &got))
        return "MPI_Init_thread failed";
    m->ours = !there;
    if (a->Query_thread(&got)) return "MPI_Query_thread failed";
    m->comm.any_thread = got >= a->serialized;
    if (a->Comm_dup(a->world, &m->world) ||
        a->Comm_set_errhandler(m->world, a->errors_return) ||
        a->Comm_rank(m->world, &m->comm.rank) ||
        a->Comm_size(m->world, &m->comm.world))
        return "MPI_Comm_dup failed";
    size_t n = (size_t)m->comm.world, most = PIECE / SHORT / n + 2;
    bool enough = true;
    m->requests = calloc(WAYS * n * most, sizeof *m->requests);
    for (int way = 0; way < WAYS; way++) {
        Messages *x = m->messages[way] = calloc(n, sizeof *x);
        enough = enough && x && m->requests;
        for (size_t r = 0; r < n && enough; r++)
            x[r].request = m->requests + (WAYS * r + (size_t)way) * most;
    }
    m->out = malloc(PIECE);
    m->in = malloc(PIECE + n * sizeof(double));
    m->sum = malloc(2 * PIECE); /* 16-bit floats widened to fp32 */
    return enough && m->out && m->in && m->sum ? NULL : "out of memory";
}

static ampc_status mpi_open(double deadline, ampc_comm **out, char *err,
                            size_t err_size) {
    char why[300];
    const char *text = "out of memory";
    void *lib = find_library(why, sizeof why);
    Mpi *m = lib ? calloc(1, sizeof *m) : NULL;
    if (!lib) text = why;
    if (m && !find_symbols(lib, &m->mpi, &text)) {
        snprintf(why, sizeof why, "MPI: the library has no %s", text);
        text = why;
    } else if (m) {
        find_constants(lib, &m->mpi);
        text = mpi_start(m);
    }
    if (text) {
        if (m) mpi_free(m);
        if (err && err_size) snprintf(err, err_size, "%s", text);
        return lib ? AMPC_ERR_COMM : AMPC_ERR_UNSUPPORTED;
    }
    m->head = (CommHead){&comm_mpi, deadline};
    m->comm.size = sizeof m->comm;
    m->comm.local = comm_local_rank();
    m->comm.ctx = m;
    m->comm.allreduce = mpi_allreduce;
    m->comm.broadcast = mpi_broadcast;
    m->comm.barrier = mpi_barrier;
    m->comm.error = mpi_error;
    m->comm.gather = mpi_gather;
    m->comm.scatter = mpi_scatter;
    *out = &m->comm;
    return AMPC_OK;
}

const CommEngine comm_mpi = {"mpi", mpi_open, mpi_close};
