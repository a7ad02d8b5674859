/* SPDX-License-Identifier: Apache-2.0 */
/* run_ranks.c: `ampc run` as one of many ranks: finds the rank's number, checks
   that all have the same command and data, and sums over ranks.

   A rank that cannot go on reports why and ends with a nonzero status without
   notifying the others. Launchers then end the other ranks; if a launcher does
   not, they notice within --deadline. */
#define _POSIX_C_SOURCE 200809L
#include "frontend/run/run_cmd.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- which one ----------------------------------------------------------- */

/* Variables in which launchers say how many they have started, and which of
   them, and of those on this machine, this one is. */
static const struct Launcher {
    const char *size, *rank, *local;
} launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"},
    {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK"},
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"},
    {"WORLD_SIZE", "RANK", "LOCAL_RANK"}};
enum { NLAUNCHER = sizeof launchers / sizeof *launchers, RANKS_MOST = 65536 };

/* A number up to RANKS_MOST; -1 for other texts. */
static int read_count(const char *text) {
    char *end;
    if (*text < '0' || *text > '9') return -1;
    errno = 0;
    long n = strtol(text, &end, 10);
    return *end || errno || n > RANKS_MOST ? -1 : (int)n;
}

const char *ranks_launched(void) {
    for (int i = 0; i < NLAUNCHER; i++) {
        const char *size = getenv(launchers[i].size);
        if (size && read_count(size) != 1) return launchers[i].size;
    }
    return NULL;
}

void ranks_put(int rank, int world, int local, int port) {
    char text[20];
    for (int i = 0; i < NLAUNCHER; i++) {
        unsetenv(launchers[i].size);
        unsetenv(launchers[i].rank);
        unsetenv(launchers[i].local);
    }
    const struct {
        const char *name;
        int value;
    } rows[] = {{"WORLD_SIZE", world},
                {"RANK", rank},
                {"LOCAL_RANK", local},
                {"MASTER_PORT", port}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(text, sizeof text, "%d", rows[i].value);
        setenv(rows[i].name, text, 1);
    }
    setenv("MASTER_ADDR", "127.0.0.1", 1);
}

/* The number of processes that one launcher has started; 0: no launcher. A
   process of many that does not know their number must not train alone. */
static Status read_launcher(Run *r, const struct Launcher *l, int *world) {
    const char *size = getenv(l->size), *text = getenv(l->rank);
    bool shared = strcmp(l->rank, "RANK") == 0; /* other launchers use these
                                                   names, too */
    int rank = text ? read_count(text) : 0;
    bool one = shared ? !text || !getenv("MASTER_ADDR") : rank == 0;
    *world = 0;
    if (!size && one) return OK;
    if (!size)
        return fail(&r->diag, (Loc){0},
                    "$%s is '%s', but $%s does not say of how many processes",
                    l->rank, text, l->size);
    *world = read_count(size);
    if (*world < 1)
        return fail(&r->diag, (Loc){0},
                    "$%s is '%s': no number of processes from 1 to %d", l->size,
                    size, RANKS_MOST);
    const char *local = *world > 1 ? getenv(l->local) : NULL;
    if (local && read_count(local) < 0) /* several would share a GPU */
        return fail(&r->diag, (Loc){0}, "$%s is '%s': no number of a process",
                    l->local, local);
    if (rank >= 0 && rank < *world) return OK;
    return fail(&r->diag, (Loc){0}, "$%s is '%s', of $%s = %d process%s",
                l->rank, text, l->size, *world, *world > 1 ? "es" : "");
}

/* * world: 0 if MPI decides. */
static Status started(Run *r, int *world, const char **variable) {
    bool said = false;
    *world = 1;
    for (int i = 0; i < NLAUNCHER && *world == 1; i++) {
        int n;
        TRY(read_launcher(r, &launchers[i], &n));
        said |= n > 0;
        *variable = launchers[i].size;
        if (n > 1) *world = n;
    }
    if (said || !r->opt->comm) return OK;
    if (!strcmp(r->opt->comm, "mpi")) { /* MPI itself knows */
        *world = 0;
        *variable = NULL;
        return OK;
    }
    return fail(&r->diag, (Loc){0},
                "--comm %s: no launcher says how many processes there are "
                "($WORLD_SIZE and $RANK, or those of mpirun and srun)",
                r->opt->comm);
}

/* Launchers that do not start MPI give the address of rank 0. */
static const char *choose_engine(const RunOptions *o) {
    bool cpu = o->device && strcmp(o->device, "cpu") == 0;
    if (o->comm) return o->comm;
    if (!getenv("MASTER_ADDR") || !getenv("RANK")) return "mpi";
    return cpu ? "tcp" : "nccl";
}

Status ranks_open(Run *r) {
    const char *variable;
    char err[600];
    ampc_comm_options o = {.size = sizeof o,
                           .engine = choose_engine(r->opt),
                           .deadline = (double)r->opt->deadline};
    int world;
    TRY(started(r, &world, &variable));
    if (world == 1) return OK;
    if (r->api->comm_open(&o, &r->comm, err, sizeof err) != AMPC_OK) {
        if (!world)
            return fail(&r->diag, (Loc){0},
                        "--comm mpi: no launcher says how many processes there "
                        "are (mpirun, srun), and MPI cannot: %s",
                        err);
        return fail(&r->diag, (Loc){0}, "$%s is %d: %s", variable, world, err);
    }
    if (!world && r->comm->world == 1) {
        log_note(r, "--comm mpi: MPI has one process, which trains alone");
        r->api->comm_close(r->comm);
        r->comm = NULL;
        return OK;
    }
    r->rank = r->comm->rank;
    r->world = r->comm->world;
    if (!world || r->world == world) return OK;
    return fail(&r->diag, (Loc){0},
                "$%s is %d, but there are %d: use the launcher of the same MPI "
                "library (mpirun, srun; $AMPC_LIBMPI selects another library)",
                variable, world, r->world);
}

static Status comm_fail(Run *r, const char *what) {
    return fail(&r->diag, (Loc){0}, "%s: %s", what,
                r->comm->error(r->comm->ctx));
}

Status ranks_close(Run *r, Status st) {
    if (!r->comm) return st;
    if (st == OK && r->comm->barrier(r->comm->ctx))
        st = comm_fail(r, "the end");
    if (st == OK) r->api->comm_close(r->comm);
    return st;
}

/* ---- sums ---------------------------------------------------------------- */

Status ranks_sum(Run *r, double *x, size_t n, const char *what) {
    if (!r->comm || r->comm->allreduce(r->comm->ctx, x, n, AMPC_DTYPE_F64) == 0)
        return OK;
    return comm_fail(r, what);
}

/* ---- the same everywhere ------------------------------------------------- */

typedef struct Fact {
    const char *what;
    double value;
} Fact;

static Status ranks_compare(Run *r, const Fact *facts, size_t n) {
    double *all = calloc(n * (size_t)r->world, sizeof *all);
    if (!all) return fail(&r->diag, (Loc){0}, "out of memory");
    for (size_t i = 0; i < n; i++)
        all[(size_t)r->rank * n + i] = facts[i].value;
    Status st = ranks_sum(r, all, n * (size_t)r->world, "the beginning");
    for (int k = 1; k < r->world && st == OK; k++)
        for (size_t i = 0; i < n && st == OK; i++)
            if (all[(size_t)k * n + i] != all[i])
                st = fail(&r->diag, (Loc){0},
                          "rank %d was started with another %s than rank 0", k,
                          facts[i].what);
    free(all);
    return st;
}

Status ranks_agree(Run *r) {
    const RunOptions *o = r->opt;
    const Fact facts[] = {
        {"number of samples in --feed", (double)r->train.samples},
        {"number of samples to evaluate", (double)r->eval.samples},
        {"--steps", (double)o->steps},
        {"--epochs", (double)o->epochs},
        {"--patience", (double)o->patience},
        {"--max-skipped", (double)o->max_skipped},
        {"set of names of classes", run_classes_hash(r)},
        {"--metric", o->metric.n},
        {"--augment", o->augment.n},
        {"--shuffle", o->shuffle},
        {"--eval", o->eval},
        {"--fetch", o->fetch != NULL},
        {"--resume", o->resume},
        {"--load", o->load.n},
        {"--lr", isnan(o->lr) ? INFINITY : o->lr}};
    return r->comm ? ranks_compare(r, facts, sizeof facts / sizeof *facts) : OK;
}
