/* SPDX-License-Identifier: Apache-2.0 */
/* run_claim.c: one run at a time writes a checkpoint.

   A run listens at an address without a file, made of the checkpoint's folder
   and name; the system gives it up when the process ends, however it ends. A
   run of another machine, or of another network namespace, is not seen; the
   number of one in another PID namespace is 0. */
#define _GNU_SOURCE
#include "frontend/run/run_cmd.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "ir/base/base.h"

enum { CLAIMS = 5 };
/* Until this process runs again, or ends; 0: none. */
static int claims_held[CLAIMS];

/* False: the folder is not there. */
static bool claim_address(const char *path, struct sockaddr_un *to,
                          socklen_t *length) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    Str folder = slash ? intern_n(path, (size_t)(name - path)) : ".";
    struct stat st;
    if (stat(folder, &st) != 0) return false;
    *to = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(to->sun_path + 1, sizeof to->sun_path - 1,
                     "ampc-save-%llx-%llx-%llx", (unsigned long long)st.st_dev,
                     (unsigned long long)st.st_ino,
                     (unsigned long long)hash_bytes(0, name, strlen(name)));
    *length =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1) + (socklen_t)n;
    return true;
}

/* Whether a process that may write for this user listens there. */
static bool claim_holder(const struct sockaddr_un *at, socklen_t length,
                         long *pid) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct ucred who = {0};
    socklen_t n = sizeof who;
    bool held = fd >= 0 &&
                connect(fd, (const struct sockaddr *)at, length) == 0 &&
                getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 &&
                (who.uid == geteuid() || who.uid == 0 || geteuid() == 0);
    if (fd >= 0) close(fd);
    *pid = (long)who.pid;
    return held;
}

static Status claim_file(Run *r, const char *path, const char *role, int *fd) {
    struct sockaddr_un at;
    socklen_t length;
    if (!path || !claim_address(path, &at, &length)) return OK;
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0) return *fd = 0, OK; /* not every machine has them */
    if (bind(*fd, (const struct sockaddr *)&at, length) == 0)
        return listen(*fd, SOMAXCONN), OK;
    long pid = 0;
    bool held = errno == EADDRINUSE && claim_holder(&at, length, &pid);
    close(*fd);
    *fd = 0;
    if (!held || pid == (long)getpid()) return OK;
    Str who =
        pid ? internf("process %ld", pid) : "a process of another container";
    return fail(&r->diag, (Loc){.file = intern(path)},
                "%s: %s writes this file, too: end it, or choose another name",
                role, who);
}

/* With the previous one, which has a name of its own. */
static Status claim_checkpoint(Run *r, const char *path, const char *role,
                               int fds[2]) {
    if (!path) return OK;
    TRY(claim_file(r, path, role, &fds[0]));
    return claim_file(r, internf("%s.prev", path), role, &fds[1]);
}

Status run_claim(Run *r) {
    const RunOptions *o = r->opt;
    for (int i = 0; i < CLAIMS; i++) {
        if (claims_held[i]) close(claims_held[i]);
        claims_held[i] = 0;
    }
    if (r->rank) return OK;
    int *held = claims_held;
    TRY(claim_checkpoint(r, o->save, "--save", held));
    TRY(claim_checkpoint(r, o->save_best, "--save-best", held + 2));
    return claim_file(r, o->save_weights, "--save-weights", held + 4);
}
