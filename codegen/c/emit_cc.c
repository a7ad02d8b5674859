/* SPDX-License-Identifier: Apache-2.0 */
/* emit_cc.c: runs the system's C compiler ($CC, default cc), several at once
   (emit.h).  The environment variable may hold options: CC="gcc -m64".  For
   another kind of processor, such as aarch64, it runs $CC_aarch64, by default
   aarch64-linux-gnu-gcc, and binutils of that prefix.                       */
#define _GNU_SOURCE
#include "codegen/embed.h"
#include "codegen/emit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ir/base/files.h"
#include "ir/base/leave.h"

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

/* The variable that names the compiler for that kind of processor. */
static const char *compiler_variable(Arena *a, const char *arch) {
    return isa_is_here(arch) ? "CC" : arena_printf(a, "CC_%s", arch);
}

static const char *compiler(Arena *a, const char *arch) {
    const char *cc = getenv(compiler_variable(a, arch));
    if (cc && cc[strspn(cc, " ")]) return cc;
    return isa_is_here(arch) ? "cc" : arena_printf(a, "%s-linux-gnu-gcc", arch);
}

/* The environment without variables that would change the module's bytes;
   temporary files go to the compiler's working folder. */
static char **environment(Arena *a, const CcJob *job) {
    static const char *const without[] = {
        "LD_RUN_PATH=",         "LDEMULATION=",       "TMPDIR=",
        "DEPENDENCIES_OUTPUT=", "GCC_COMPARE_DEBUG=", "SOURCE_DATE_EPOCH=",
        "SUNPRO_DEPENDENCIES="};
    int name = job->variable ? (int)strcspn(job->variable, "=") + 1 : 0;
    int n = 0, kept = 0;
    while (environ[n]) n++;
    char **env = NEW_ARRAY(a, char *, n + 3);
    for (int i = 0; i < n; i++) {
        bool drop = name && !strncmp(environ[i], job->variable, (size_t)name);
        for (size_t k = 0; k < sizeof without / sizeof *without; k++)
            drop |= !strncmp(environ[i], without[k], strlen(without[k]));
        if (!drop) env[kept++] = environ[i];
    }
    if (job->variable) env[kept++] = arena_printf(a, "%s", job->variable);
    env[kept] = "TMPDIR=.";
    return env;
}

/* The files that a program's name may stand for, in the order of PATH; NULL
   ends them. */
static char **program_files(Arena *a, const char *word) {
    const char *dirs = getenv("PATH");
    if (!dirs) dirs = "/bin:/usr/bin";
    char **files = NEW_ARRAY(a, char *, strlen(dirs) + 2);
    int n = 0;
    if (strchr(word, '/')) {
        files[0] = arena_printf(a, "%s", word);
        return files;
    }
    for (; *dirs; dirs += strspn(dirs, ":")) {
        int length = (int)strcspn(dirs, ":");
        if (length) files[n++] = arena_printf(a, "%.*s/%s", length, dirs, word);
        dirs += length;
    }
    return files;
}

/* ---- the child ----------------------------------------------------------- */

/* Made before the child, which allocates nothing: it shares the parent's
   memory, whose other threads may hold any lock, until exec or _exit. */
typedef struct Child {
    const char *dir, *log;
    char **files, **argv, **env;
    int ends[2]; /* a pipe that exec closes; the child writes an errno */
} Child;

static bool open_as(int fd, const char *path, int flags) {
    int opened = open(path, flags, 0600);
    if (opened < 0 || opened == fd) return opened == fd;
    return dup2(opened, fd) == fd && close(opened) == 0;
}

/* Returns an errno if no file starts. */
static int exec_first(const Child *c) {
    int why = ENOENT;
    for (char **file = c->files; *file; file++) {
        execve(*file, c->argv, c->env);
        if (errno == EACCES)
            why = EACCES;
        else if (errno != ENOENT && errno != ENOTDIR)
            return errno;
    }
    return why;
}

/* Starts a process group, so that all of its processes can be stopped; no
   signal is blocked or ignored. */
static _Noreturn void become_compiler(const Child *c) {
    sigset_t none;
    sigemptyset(&none);
    for (int i = 1; i < NSIG; i++) signal(i, SIG_DFL);
    bool ok =
        setpgid(0, 0) == 0 && sigprocmask(SIG_SETMASK, &none, NULL) == 0 &&
        chdir(c->dir) == 0 && open_as(0, "/dev/null", O_RDONLY) &&
        open_as(1, c->log, O_WRONLY | O_CREAT | O_TRUNC) && dup2(1, 2) == 2;
    int why = ok ? exec_first(c) : errno;
    _exit(write(c->ends[1], &why, sizeof why) == sizeof why ? 127 : 126);
}

/* ---- the parent ---------------------------------------------------------- */

/* The end for the child is none of 0, 1 and 2. Returns 0 or an errno. */
static int open_pipe(int ends[2]) {
    int made[2];
    if (pipe2(made, O_CLOEXEC)) return errno;
    ends[0] = made[0];
    ends[1] = fcntl(made[1], F_DUPFD_CLOEXEC, 3);
    int rc = ends[1] < 0 ? errno : 0;
    close(made[1]);
    if (rc) close(ends[0]);
    return rc;
}

/* The child's errno; 0 if it has become the program. */
static int read_errno(int fd) {
    int rc = 0;
    ssize_t n;
    do n = read(fd, &rc, sizeof rc);
    while (n < 0 && errno == EINTR);
    return n == sizeof rc ? rc : 0;
}

/* Returns 0 or an errno. vfork, since fork copies the tables of all pages: of
   200 MB in 3.4 ms, where vfork takes 0.07 (Zen 5). */
static int start_child(const Child *c, pid_t *pid) {
    *pid = vfork();
    if (*pid == 0) become_compiler(c);
    int rc = *pid < 0 ? errno : 0;
    close(c->ends[1]);
    if (!rc) rc = read_errno(c->ends[0]);
    close(c->ends[0]);
    if (rc && *pid > 0)
        while (waitpid(*pid, NULL, 0) < 0 && errno == EINTR) continue;
    return rc;
}

/* True if the job's program is one word, a path. */
static bool is_path(const CcJob *job) {
    return job->program && strchr(job->program, '/');
}

static const char *job_program(Arena *a, const CcJob *job) {
    if (!job->program) return compiler(a, job->arch);
    return isa_is_here(job->arch) || is_path(job)
               ? job->program
               : arena_printf(a, "%s-linux-gnu-%s", job->arch, job->program);
}

/* 0 or an errno. */
static int spawn(Arena *a, const char *dir, CcJob *job) {
    char *argv[MAX_WORDS + 1] = {0};
    int argc = 0;
    pid_t pid;
    const char *program = job_program(a, job);
    if (is_path(job))
        argv[argc++] = arena_printf(a, "%s", program);
    else
        split_words(a, program, argv, &argc);
    split_words(a, job->words, argv, &argc);
    Child c = {
        dir, job->log, program_files(a, argv[0]), argv, environment(a, job),
        {0}};
    int rc = open_pipe(c.ends);
    if (rc) return rc;
    leave_hold();
    rc = start_child(&c, &pid);
    job->pid = rc ? 0 : pid;
    if (job->pid) leave_group(job->pid, true);
    leave_release();
    return rc;
}

static Status no_program(Diag *d, Arena *a, const CcJob *job, int rc) {
    const char *program = job_program(a, job);
    if (rc != ENOENT || is_path(job))
        return fail(d, (Loc){0}, "'%s' does not start: %s", program,
                    strerror(rc));
    if (job->program)
        return fail(d, (Loc){0},
                    "no program '%s': an object or archive needs binutils "
                    "(Debian: apt-get install binutils)",
                    program);
    if (!isa_is_here(job->arch))
        return fail(d, (Loc){0},
                    "no C compiler for %s: '%s' was not found; install one "
                    "(Debian: gcc-aarch64-linux-gnu, gcc-x86-64-linux-gnu) or "
                    "set %s",
                    job->arch, program, compiler_variable(a, job->arch));
    return fail(d, (Loc){0},
                "no C compiler: '%s' was not found; install gcc or clang "
                "(Debian: apt-get install gcc libc6-dev) or set CC",
                program);
}

/* malloc'ed content of a file; NULL if it cannot be read, for any reason. */
static char *read_quietly(Arena *a, const char *dir, const char *name,
                          size_t *n) {
    Diag d = {0};
    char *data = read_file(&d, arena_printf(a, "%s/%s", dir, name), n);
    sb_free(&d.text);
    return data;
}

/* " (..)" under a limit on stacks that may be too small for C compilers. */
static const char *stack_advice(Arena *a) {
    enum { LEAST = 1 << 20 };
    struct rlimit l;
    if (getrlimit(RLIMIT_STACK, &l) != 0 || l.rlim_cur >= LEAST) return "";
    return arena_printf(a,
                        " (the limit on stacks, ulimit -s, is %llu KB; a C "
                        "compiler may need 1024)",
                        (unsigned long long)l.rlim_cur / 1024);
}

enum { BY_SIGNAL = 128 }; /* a job's status */

static Status job_failed(Diag *d, Arena *a, const char *dir, const CcJob *job) {
    size_t n = 0;
    char *text = read_quietly(a, dir, job->log, &n);
    if (text && n > LOG_SHOWN) text[LOG_SHOWN] = 0;
    const char *what = job->program;
    if (!what)
        what =
            arena_printf(a,
                         "the C compiler ($%s names another one; gcc 9, clang "
                         "11 and newer ones will do)",
                         compiler_variable(a, job->arch));
    Status s = fail(d, (Loc){0}, "%s failed%s%s: %s %s\n%s", what,
                    job->status == BY_SIGNAL ? " (a signal ended it)" : "",
                    stack_advice(a), job_program(a, job), job->words,
                    text ? text : "");
    free(text);
    return s;
}

/* True if the file named after -o exists. */
static Status check_written(Diag *d, Arena *a, const char *dir,
                            const CcJob *job) {
    struct stat st;
    const char *at = strstr(job->words, "-o ");
    if (!at) return OK;
    const char *name =
        arena_printf(a, "%.*s", (int)strcspn(at + 3, " "), at + 3);
    if (stat(arena_printf(a, "%s/%s", dir, name), &st) == 0 && st.st_size > 0)
        return OK;
    return fail(d, (Loc){0},
                "the C compiler '%s' reports success, but has written no %s "
                "($%s names another one)",
                compiler(a, job->arch), name, compiler_variable(a, job->arch));
}

/* ---- what was kept ------------------------------------------------------- */

static void key_program(Arena *a, CompileKey *k, const char *word) {
    compile_key_text(k, word);
    for (char **file = program_files(a, word); *file; file++)
        if (access(*file, X_OK) == 0) compile_key_file(k, *file);
}

/* The part of the key that all jobs share: everything that the compiler
   reads. The date of the compiler's driver stands for the headers and
   programs that come with it. */
static CompileKey key_of_compiler(Arena *a, const char *arch) {
    static const char *const read[] = {
        "CPATH",         "C_INCLUDE_PATH", "GCC_EXEC_PREFIX",
        "COMPILER_PATH", "PATH",           "CCC_OVERRIDE_OPTIONS"};
    char *argv[MAX_WORDS + 1];
    int argc = 0;
    CompileKey k = compile_key("object 2");
    split_words(a, compiler(a, arch), argv, &argc);
    for (int i = 0; i < argc; i++) key_program(a, &k, argv[i]);
    for (size_t i = 0; i < sizeof read / sizeof *read; i++) {
        const char *v = getenv(read[i]);
        compile_key_text(&k, v ? v : "");
    }
    for (size_t i = 0; i < embed_nfile; i++) {
        compile_key_text(&k, embed_files[i].name);
        compile_key_add(&k, embed_files[i].data, embed_files[i].size);
    }
    return k;
}

static bool key_of(Arena *a, const char *dir, CompileKey shared, CcJob *job) {
    size_t n;
    char *source = read_quietly(a, dir, job->source, &n);
    if (!source) return false;
    job->key = shared;
    compile_key_text(&job->key, job->words);
    compile_key_add(&job->key, source, n);
    free(source);
    return true;
}

static bool find_object(Arena *a, const char *cache, const char *dir,
                        CcJob *job) {
    size_t n;
    char *data = compile_cache_get(cache, job->key, &n);
    if (!data) return false;
    Diag d = {0};
    bool ok = file_text(&d, arena_printf(a, "%s/%s", dir, job->object), data, n,
                        NULL, NULL) == OK;
    sb_free(&d.text);
    free(data);
    return ok;
}

static void keep_object(Arena *a, const char *cache, const char *dir,
                        const CcJob *job) {
    size_t n;
    char *data = read_quietly(a, dir, job->object, &n);
    if (data) compile_cache_put(cache, job->key, data, n);
    free(data);
}

/* ---- all ----------------------------------------------------------------- */

void cc_start(Arena *a, const char *cache, const char *dir, CcJob *jobs,
              int n) {
    CompileKey shared = {0};
    if (cache) shared = key_of_compiler(a, jobs->arch);
    for (int i = 0; i < n; i++) {
        CcJob *j = &jobs[i];
        if (!cache || !j->source || !key_of(a, dir, shared, j))
            j->source = NULL;
        if (j->source && find_object(a, cache, dir, j)) continue;
        if ((j->error = spawn(a, dir, j))) return;
    }
}

static void wait_for(CcJob *job) {
    int status = 0, rc;
    do rc = waitpid((pid_t)job->pid, &status, 0);
    while (rc < 0 && errno == EINTR);
    leave_group(job->pid, false);
    job->status = rc < 0              ? 1
                  : WIFEXITED(status) ? WEXITSTATUS(status)
                                      : BY_SIGNAL;
}

Status cc_wait(Diag *d, Arena *a, const char *cache, const char *dir,
               CcJob *jobs, int n) {
    for (int i = 0; i < n; i++) {
        if (!jobs[i].pid) continue;
        wait_for(&jobs[i]);
        while (jobs[i].status == BY_SIGNAL && jobs[i].again-- > 0 &&
               !(jobs[i].error = spawn(a, dir, &jobs[i])))
            wait_for(&jobs[i]);
    }
    for (int i = 0; i < n; i++) {
        if (jobs[i].error) return no_program(d, a, &jobs[i], jobs[i].error);
        if (jobs[i].status == 127) return no_program(d, a, &jobs[i], ENOENT);
        if (jobs[i].status) return job_failed(d, a, dir, &jobs[i]);
        if (jobs[i].pid) TRY(check_written(d, a, dir, &jobs[i]));
    }
    for (int i = 0; i < n; i++)
        if (jobs[i].pid && jobs[i].source) keep_object(a, cache, dir, &jobs[i]);
    return OK;
}
