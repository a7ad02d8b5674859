/* SPDX-License-Identifier: Apache-2.0 */
/* run_ranks.c: `ampc run` as one of many ranks: which one, the same command and
   data on all, sums over them.

   A rank that cannot go on reports why and ends with a nonzero status without
   notifying the others. Launchers then end the other ranks; if a launcher does
   not, they notice within --deadline. */
#define _POSIX_C_SOURCE 200809L
#include "frontend/run/run_cmd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- which one ----------------------------------------------------------- */

/* Variables in which launchers say how many they have started. */
static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                    "SLURM_STEP_NUM_TASKS", "WORLD_SIZE"};

static int started(const char **variable) {
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *text = getenv(sizes[i]);
        int n = text ? atoi(text) : 0;
        *variable = sizes[i];
        if (n > 1) return n;
    }
    return 1;
}

/* Launchers that start no MPI say where rank 0 is. */
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
    int world = started(&variable);
    if (world == 1) return OK;
    if (r->api->comm_open(&o, &r->comm, err, sizeof err) != AMPC_OK)
        return fail(&r->diag, (Loc){0}, "$%s is %d: %s", variable, world, err);
    r->rank = r->comm->rank;
    r->world = r->comm->world;
    if (r->world == world) return OK;
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

static Status compare(Run *r, const Fact *facts, size_t n) {
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
        {"--shuffle", o->shuffle},
        {"--eval", o->eval},
        {"--fetch", o->fetch != NULL},
        {"--resume", o->resume},
        {"--load", o->load.n},
        {"--lr", isnan(o->lr) ? INFINITY : o->lr}};
    return r->comm ? compare(r, facts, sizeof facts / sizeof *facts) : OK;
}
