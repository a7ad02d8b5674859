/* SPDX-License-Identifier: Apache-2.0 */
/* run_devices.c: `ampc run --devices 0,1`: one command trains on several GPUs
   of this machine.  Each GPU has a process, started here as a launcher such as
   torchrun would start it: ranks find each other over TCP and sum by NCCL
   (run_ranks.c).  A rank executes this program anew with --device cuda:N, since
   the command runs beside threads that a fork does not have.

   This process waits.  If a rank fails, the others are ended: they would wait
   for it until --deadline. */
#define _GNU_SOURCE
#include "frontend/run/run_cmd.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { DEVICES_MOST = 64 };

typedef struct Devices {
    int n, of[DEVICES_MOST];
} Devices;

static Status devices_usage(Diag *d, const char *text, const char *why) {
    fail(d, (Loc){0}, "--devices %s: %s", text, why);
    return ERR_USAGE;
}

static Status devices_read(Diag *d, const char *text, Devices *to) {
    const char *p = text;
    to->n = 0;
    do {
        char *end;
        long number = strtol(p, &end, 10);
        if (*p < '0' || *p > '9' || number >= DEVICES_MOST ||
            (*end && *end != ','))
            return devices_usage(d, text, "numbers of GPUs are wanted, as 0,1");
        for (int i = 0; i < to->n; i++)
            if (to->of[i] == number)
                return devices_usage(d, text, "a GPU is named twice");
        to->of[to->n++] = (int)number;
        p = *end ? end + 1 : NULL;
    } while (p);
    return OK;
}

Status devices_check(const RunOptions *o, Diag *d) {
    Devices list;
    if (!o->devices) return OK;
    TRY(devices_read(d, o->devices, &list));
    if (o->device)
        return devices_usage(d, o->devices, "give --device or --devices");
    if (o->comm && strcmp(o->comm, "mpi") == 0)
        return devices_usage(d, o->devices,
                             "its processes know nothing of --comm mpi");
    return OK;
}

/* A port of this machine that nobody has; 0: none. Rank 0 takes it a moment
   later. */
static int free_port(void) {
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && !bind(fd, (struct sockaddr *)&at, size) &&
              !getsockname(fd, (struct sockaddr *)&at, &size);
    if (fd >= 0) close(fd);
    return ok ? ntohs(at.sin_port) : 0;
}

/* Executes the command as one rank; returns if that fails. */
static void become_rank(int argc, char **argv, const Devices *list, int rank,
                        int port) {
    static char device[20], program[] = "ampc", option[] = "--device";
    char **words = calloc((size_t)argc + 4, sizeof *words);
    int n = 0;
    if (!words) return;
    ranks_put(rank, list->n, list->of[rank], port);
    snprintf(device, sizeof device, "cuda:%d", list->of[rank]);
    words[n++] = program;
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--devices"))
            words[n++] = argv[i];
        else
            i++; /* its value */
    words[n++] = option;
    words[n++] = device;
    execv("/proc/self/exe", words);
}

/* ---- while they train ---------------------------------------------------- */

static pid_t rank_pid[DEVICES_MOST];
static int rank_count;

/* To those that have not been waited for. */
static void tell_ranks(int signal) {
    for (int i = 0; i < rank_count; i++)
        if (rank_pid[i] > 0) kill(rank_pid[i], signal);
}

static Status status_of(int how) {
    return WIFSIGNALED(how) ? (Status)(128 + WTERMSIG(how))
                            : (Status)WEXITSTATUS(how);
}

/* Returns the status of the first rank that failed.  The others are asked to
   end, and once more, which ends them at once, since a step that waits for the
   failed rank does not end. */
static Status wait_for_ranks(void) {
    enum { PATIENCE = 20 }; /* tenths of a second */
    Status first = OK;
    int asked = 0;
    for (int left = rank_count; left > 0;) {
        int how;
        pid_t pid = waitpid(-1, &how, first == OK ? 0 : WNOHANG);
        if (pid < 0 && errno != EINTR) break;
        if (pid == 0) {
            nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
            if (++asked % PATIENCE == 0) tell_ranks(SIGTERM);
        }
        if (pid <= 0) continue;
        for (int i = 0; i < rank_count; i++)
            if (rank_pid[i] == pid) rank_pid[i] = 0, left--;
        if (status_of(how) == OK || first != OK) continue;
        first = status_of(how);
        tell_ranks(SIGTERM);
    }
    return first;
}

Status devices_run(const RunOptions *o, Diag *d, int argc, char **argv) {
    Devices list;
    TRY(devices_read(d, o->devices, &list));
    const char *launched = ranks_launched();
    if (launched) {
        fail(d, (Loc){0},
             "--devices %s: $%s says that a launcher has started this process "
             "as one of several: leave out --devices or the launcher",
             o->devices, launched);
        return ERR_USAGE;
    }
    int port = free_port();
    if (!port)
        return fail(d, (Loc){0}, "--devices %s: no port of 127.0.0.1: %s",
                    o->devices, strerror(errno));
    fflush(NULL);
    pid_t parent = getpid();
    for (int rank = 0; rank < list.n; rank++) {
        pid_t pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGTERM);
            if (getppid() == parent) become_rank(argc, argv, &list, rank, port);
            _exit(ERR_USER);
        }
        if (pid < 0) {
            fail(d, (Loc){0}, "--devices %s: fork: %s", o->devices,
                 strerror(errno));
            tell_ranks(SIGKILL);
            wait_for_ranks();
            return ERR_USER;
        }
        rank_pid[rank_count++] = pid;
    }
    /* A terminal sends SIGINT to the ranks, too. */
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, tell_ranks);
    if (signal(SIGHUP, tell_ranks) == SIG_IGN) signal(SIGHUP, SIG_IGN);
    return wait_for_ranks();
}
