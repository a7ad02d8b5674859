/* emit_cc.c: runs the system's C compiler ($CC, default cc), several at once
   (emit.h).  The environment variable may hold options: CC="gcc -m64".      */
#define _GNU_SOURCE
#include "codegen/module/emit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { MAX_WORDS = 256, LOG_SHOWN = 4000 };

static void split_words(Arena *a, const char *text, char **argv, int *argc) {
    while (*text) {
        size_t skip = strspn(text, " "), n = strcspn(text + skip, " ");
        if (n && *argc < MAX_WORDS)
            argv[(*argc)++] = arena_printf(a, "%.*s", (int)n, text + skip);
        text += skip + n;
    }
}

static const char *compiler(void) {
    const char *cc = getenv("CC");
    return cc && cc[strspn(cc, " ")] ? cc : "cc";
}

/* 0 or an errno. */
static int spawn(Arena *a, const char *dir, CcJob *job) {
    char *argv[MAX_WORDS + 1] = {0};
    int argc = 0;
    posix_spawn_file_actions_t fa;
    split_words(a, compiler(), argv, &argc);
    split_words(a, job->words, argv, &argc);
    int rc = posix_spawn_file_actions_init(&fa);
    if (rc) return rc;
    rc = posix_spawn_file_actions_addchdir_np(&fa, dir);
    if (!rc)
        rc = posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
    if (!rc)
        rc = posix_spawn_file_actions_addopen(
            &fa, 1, job->log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (!rc) rc = posix_spawn_file_actions_adddup2(&fa, 1, 2);
    pid_t pid = -1;
    if (!rc) rc = posix_spawnp(&pid, argv[0], &fa, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&fa);
    job->pid = rc ? 0 : pid;
    return rc;
}

static void await_job(CcJob *job) {
    int status = 0;
    if (!job->pid) return;
    while (waitpid((pid_t)job->pid, &status, 0) < 0)
        if (errno != EINTR) {
            job->status = 1;
            return;
        }
    job->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static Status no_compiler(Diag *d, int rc) {
    if (rc == ENOENT)
        return fail(d, (Loc){0},
                    "no C compiler: '%s' is not there; install gcc or clang "
                    "(Debian: apt-get install gcc libc6-dev) or set CC",
                    compiler());
    return fail(d, (Loc){0}, "the C compiler '%s' does not start: %s",
                compiler(), strerror(rc));
}

static Status job_failed(Diag *d, Arena *a, const char *dir, const CcJob *job) {
    size_t n = 0;
    char *text = read_file(arena_printf(a, "%s/%s", dir, job->log), &n);
    if (text && n > LOG_SHOWN) text[LOG_SHOWN] = 0;
    Status s = fail(d, (Loc){0}, "the C compiler failed: %s %s\n%s", compiler(),
                    job->words, text ? text : "");
    free(text);
    return s;
}

void cc_start(Arena *a, const char *dir, CcJob *jobs, int n) {
    for (int i = 0; i < n; i++)
        if ((jobs[i].error = spawn(a, dir, &jobs[i]))) return;
}

Status cc_wait(Diag *d, Arena *a, const char *dir, CcJob *jobs, int n) {
    for (int i = 0; i < n; i++) await_job(&jobs[i]);
    for (int i = 0; i < n; i++) {
        if (jobs[i].error) return no_compiler(d, jobs[i].error);
        if (jobs[i].status == 127) return no_compiler(d, ENOENT);
        if (jobs[i].status) return job_failed(d, a, dir, &jobs[i]);
    }
    return OK;
}
