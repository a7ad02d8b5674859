/* SPDX-License-Identifier: Apache-2.0 */
/* leave.c: see leave.h.

   All threads block the signals that end a program, and one thread waits for
   them. It may do what a signal handler must not: wait for a lock, or walk a
   folder. It holds the lock, so that no other thread creates files meanwhile.
 */
#define _GNU_SOURCE
#include "ir/base/leave.h"
#include "ir/base/terminal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/files/outfile.h"

enum { MAX_GROUPS = 64, MAX_FILES = 1024, PATIENCE = 10 /* seconds */ };

static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
enum { SIGNALS = sizeof signals / sizeof *signals };

typedef struct Half {
    int folder;
    char tmp[32];
} Half;

static pthread_mutex_t lock;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char made[4096]; /* the folder, or empty */
static long groups[MAX_GROUPS];
static Half halves[MAX_FILES];
static int ngroup, nhalf;

static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;
static char said[1024]; /* when a signal asks */
static bool asks;
static atomic_int requested;

/* Recursive: an assertion may fail while the lock is held. */
static void make_lock(void) {
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &a);
    pthread_mutexattr_destroy(&a);
}

void leave_hold(void) {
    pthread_once(&once, make_lock);
    pthread_mutex_lock(&lock);
}

void leave_release(void) { pthread_mutex_unlock(&lock); }

/* ---- what there is ------------------------------------------------------- */

/* Allocates nothing: there may be no memory left. */
static void remove_all(int at, const char *name) {
    _Alignas(struct dirent64) char part[2048];
    ssize_t n;
    if (unlinkat(at, name, 0) == 0) return;
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return;
    while ((n = getdents64(fd, part, sizeof part)) > 0)
        for (ssize_t i = 0; i < n;) {
            struct dirent64 *e = (void *)(part + i);
            if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
                remove_all(fd, e->d_name);
            i += e->d_reclen;
        }
    close(fd);
    unlinkat(at, name, AT_REMOVEDIR);
}

bool leave_make_folder(char *pattern) {
    size_t n = strlen(pattern);
    if (n >= sizeof made) {
        errno = ENAMETOOLONG;
        return false;
    }
    leave_hold();
    bool ok = mkdtemp(pattern) != NULL;
    if (ok) memcpy(made, pattern, n + 1);
    leave_release();
    return ok;
}

void leave_remove_folder(void) {
    leave_hold();
    if (*made) remove_all(AT_FDCWD, made);
    *made = 0;
    leave_release();
}

void leave_group(long pgid, bool there) {
    leave_hold();
    for (int i = 0; i < ngroup && !there; i++)
        if (groups[i] == pgid) groups[i] = groups[--ngroup];
    if (there && ngroup < MAX_GROUPS) groups[ngroup++] = pgid;
    leave_release();
}

static void hear_of_file(int folder, const char *tmp, bool there) {
    leave_hold();
    for (int i = 0; i < nhalf && !there; i++)
        if (halves[i].folder == folder && !strcmp(halves[i].tmp, tmp))
            halves[i] = halves[--nhalf];
    if (there && nhalf < MAX_FILES) {
        halves[nhalf].folder = folder;
        snprintf(halves[nhalf++].tmp, sizeof halves->tmp, "%s", tmp);
    }
    leave_release();
}

/* ---- taking it back ------------------------------------------------------ */

/* A killed compiler may create one more file before it ends. */
static void take_back(void) {
    struct timespec pause = {0, 10000000};
    for (int i = 0; i < ngroup; i++) kill(-(pid_t)groups[i], SIGKILL);
    for (int i = 0; i < nhalf; i++)
        unlinkat(halves[i].folder, halves[i].tmp, 0);
    for (int i = 0; *made && i < 200; i++) {
        remove_all(AT_FDCWD, made);
        if (access(made, F_OK) != 0) break;
        nanosleep(&pause, NULL);
    }
    ngroup = nhalf = 0;
}

static void at_exit(void) {
    leave_hold();
    take_back();
    leave_release();
}

static void end_by(int sig, const sigset_t *set) {
    signal(sig, SIG_DFL);
    kill(getpid(), sig);
    pthread_sigmask(SIG_UNBLOCK, set, NULL);
}

/* The line comes before the request: the program may end at once. */
static void request(int sig) {
    const char *begin = terminal_redraws(STDERR_FILENO) ? TERMINAL_ERASE : "";
    if (*said && !atomic_load(&requested))
        dprintf(STDERR_FILENO, "%s%s\n", begin, said);
    atomic_store(&requested, sig);
}

/* True if the signal only asked the program to end. SIGHUP counts neither as
   the first signal nor as the second: a terminal that closes and its shell both
   send it, and systemd sends it with SIGTERM. */
static bool take_request(int sig) {
    pthread_mutex_lock(&asking);
    int before = atomic_load(&requested);
    bool again = before && sig == SIGHUP,
         takes =
             sig != SIGQUIT && asks && (again || !before || before == SIGHUP);
    if (takes && !again) request(sig);
    pthread_mutex_unlock(&asking);
    return takes;
}

void leave_on_request(const char *line) {
    pthread_mutex_lock(&asking);
    asks = line != NULL;
    if (line) snprintf(said, sizeof said, "%s", line);
    pthread_mutex_unlock(&asking);
}

int leave_requested(void) { return atomic_load(&requested); }

void leave_as_requested(void) {
    sigset_t set;
    int sig = leave_requested();
    if (!sig) return;
    sigemptyset(&set);
    sigaddset(&set, sig);
    at_exit();
    end_by(sig, &set);
    for (;;)
        pause(); /* the watching thread may have taken the signal, and
                    ends the process */
}

/* Waits for a signal; returns 0 if it cannot. Of signals that came together the
   kernel hands out SIGHUP first, which says less than the others. */
static int next_signal(const sigset_t *set) {
    sigset_t others = *set;
    int sig;
    if (sigwait(set, &sig) != 0) return 0;
    if (sig != SIGHUP) return sig;
    sigdelset(&others, SIGHUP);
    int other = sigtimedwait(&others, NULL, &(struct timespec){0});
    return other > 0 ? other : sig;
}

static void *watch(void *arg) {
    const sigset_t *set = arg;
    struct timespec until;
    int sig;
    do
        if (!(sig = next_signal(set))) return NULL;
    while (take_request(sig));
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE;
    pthread_mutex_timedlock(&lock, &until);
    take_back();
    end_by(sig, set);
    return NULL;
}

void leave_install(void) {
    static sigset_t set;
    struct sigaction old;
    pthread_t thread;
    pthread_once(&once, make_lock);
    signal(SIGXFSZ, SIG_IGN); /* exceeding a limit on file sizes is an error */
    outfile_set_hook(hear_of_file);
    atexit(at_exit);
    sigemptyset(&set); /* signals that were ignored at start stay ignored */
    for (int i = 0; i < SIGNALS; i++)
        if (sigaction(signals[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaddset(&set, signals[i]);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (pthread_create(&thread, NULL, watch, &set) == 0)
        pthread_detach(thread);
    else
        pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}
