/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz.c: see fuzz.h.  Data that must outlive a child are in memory shared
   with its parent: the inputs, the current one, what was reached, the random
   state. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ir/base/base.h"
#include "tests/fuzz/fuzz.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

enum {
    BROKEN = 85,    /* exit status of a child: fuzz_check */
    SANITIZER = 86, /* KiB; then another child continues */
    MOST_INPUTS = 1 << 16,
    POOL = 256 << 20,
    MOST_RESIDENT = 1200 << 10, /* processor time for one input; twice that
                                   in elapsed time */
    MOST_SECONDS = 10 /* number of steps that the input takes, if known */
};

typedef struct Input {
    size_t at, n;  /* in pool */
    uint64_t work; /* number of steps that the input takes, if known */
    bool taken;    /* it was valid */
} Input;

typedef struct Shared {
    FuzzResult r;
    uint64_t random;
    bool done;
    size_t ninput, pooled, next_seed;
    Input input[MOST_INPUTS];
    size_t n; /* the input being executed */
    uint8_t now[FUZZ_MOST];
    uint8_t seen[COVER_PLACES];
    uint8_t pool[POOL];
} Shared;

static Shared *sh;
bool fuzz_replaying;

/* The sanitizers read it before main. Running out of memory is not a
   finding. */
const char *__asan_default_options(void);
const char *__ubsan_default_options(void);
const char *__asan_default_options(void) {
    return "exitcode=86:allocator_may_return_null=1:quarantine_size_mb=16:"
           "max_allocation_size_mb=2048:detect_leaks=1:malloc_context_size=5";
}
const char *__ubsan_default_options(void) {
    return "exitcode=86:print_stacktrace=1";
}

/* ---- random numbers ------------------------------------------------------ */

uint64_t fuzz_random(void) { /* splitmix64 */
    uint64_t z = sh->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

size_t fuzz_below(size_t n) { return n ? (size_t)(fuzz_random() % n) : 0; }

/* ---- inputs -------------------------------------------------------------- */

void fuzz_seed(const void *p, size_t n) {
    if (n > FUZZ_MOST || sh->ninput == MOST_INPUTS || n > POOL - sh->pooled)
        return;
    sh->input[sh->ninput++] = (Input){.at = sh->pooled, .n = n};
    if (n) memcpy(sh->pool + sh->pooled, p, n);
    sh->pooled += n;
}

static bool ends_in(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && strcmp(s + n - m, suffix) == 0;
}

typedef void TakeFile(const void *p, size_t n);

static void one_file(const char *path, TakeFile *take) {
    Diag d = {0};
    size_t n;
    char *text = read_file(&d, path, &n);
    if (text) take(text, n);
    free(text);
    sb_free(&d.text);
}

static void each_file(const char *folder, const char *suffix, TakeFile *take) {
    struct dirent **entry;
    int n = scandir(folder, &entry, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        const char *name = entry[i]->d_name;
        char path[4096];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", folder, name);
        if (name[0] != '.' && stat(path, &st) == 0) {
            if (S_ISDIR(st.st_mode))
                each_file(path, suffix, take);
            else if (ends_in(name, suffix))
                one_file(path, take);
        }
        free(entry[i]);
    }
    if (n >= 0) free(entry);
}

static const char *root_folder;

const char *fuzz_root(void) { return root_folder; }

void fuzz_each_file(const char *folder, const char *suffix, TakeFile *take) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", *folder == '/' ? "" : root_folder,
             folder);
    each_file(path, suffix, take);
}

void fuzz_seed_files(const char *folder, const char *suffix) {
    fuzz_each_file(folder, suffix, fuzz_seed);
}

size_t fuzz_inputs(void) { return sh->ninput; }

const uint8_t *fuzz_input(size_t i, size_t *n) {
    const Input *in = &sh->input[i];
    *n = in->n;
    return sh->pool + in->at;
}

/* ---- for targets --------------------------------------------------------- */

void fuzz_check(bool ok, const char *fmt, ...) {
    va_list ap;
    if (ok) return;
    va_start(ap, fmt);
    fputs("broken rule: ", stderr);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    _exit(BROKEN);
}

void fuzz_taken(void) { sh->r.taken++; }

/* The parent makes the folder and removes it. */
static char work[64];
enum { FILES = 8 };
static struct {
    char path[200];
    int fd; /* 0: none */
} files[FILES];

static void remove_work(void) {
    struct dirent **entry;
    int n = scandir(work, &entry, NULL, NULL);
    for (int i = 0; i < FILES && files[i].fd; i++) {
        close(files[i].fd);
        files[i].fd = 0;
    }
    for (int i = 0; i < n; i++) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", work, entry[i]->d_name);
        unlink(path);
        free(entry[i]);
    }
    if (n >= 0) free(entry);
    rmdir(work);
}

/* Creating and closing files takes longer than many an execution: they stay
   open unless something replaces them. */
const char *fuzz_file(const char *name, const void *p, size_t n) {
    char path[200];
    struct stat st = {0};
    int i = 0;
    snprintf(path, sizeof path, "%s/%s", work, name);
    while (files[i].fd && strcmp(files[i].path, path) != 0)
        if (++i == FILES) abort();
    if (files[i].fd && (fstat(files[i].fd, &st) || !st.st_nlink)) {
        close(files[i].fd);
        files[i].fd = 0;
    }
    if (!files[i].fd) {
        snprintf(files[i].path, sizeof files[i].path, "%s", path);
        files[i].fd =
            open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    }
    if (files[i].fd <= 0 || pwrite(files[i].fd, p, n, 0) != (ssize_t)n ||
        (st.st_size > (off_t)n && ftruncate(files[i].fd, (off_t)n))) {
        perror(path);
        abort();
    }
    return files[i].path;
}

/* ---- one execution ------------------------------------------------------- */

/* A process with more memory need not leak: only the check decides. */
static void check_leaks(void) {
#ifdef __SANITIZE_ADDRESS__
    if (__lsan_do_recoverable_leak_check()) _exit(SANITIZER);
#endif
}

/* Every MOST_SECONDS: checks whether it is still the same input. */
static void too_long(int sig) {
    static uint64_t before = UINT64_MAX;
    if (before == sh->r.runs) {
        signal(sig, SIG_DFL);
        raise(sig);
    }
    before = sh->r.runs;
}

static void limit_time(void) {
    struct timeval each = {.tv_sec = MOST_SECONDS};
    struct itimerval timer = {.it_interval = each, .it_value = each};
    struct sigaction sa = {.sa_handler = too_long, .sa_flags = SA_RESTART};
    sigaction(SIGPROF, &sa, NULL);
    setitimer(ITIMER_PROF, &timer, NULL);
}

static void execute(const FuzzTarget *t) {
    uint8_t *exact = malloc(sh->n ? sh->n : 1); /* so that reads past its end
                                                   are seen */
    if (!exact) abort();
    memcpy(exact, sh->now, sh->n);
    uint64_t blocks, taken = sh->r.taken;
    cover_start();
    t->run(exact, sh->n);
    bool news = cover_end(sh->seen, &sh->r.reached, &blocks);
    free(exact);
    sh->r.runs++;
    size_t place = sh->next_seed - 1; /* of a seed */
    if (place >= sh->r.seeds) {
        if (!news) return;
        place = sh->ninput;
        fuzz_seed(sh->now, sh->n);
        if (sh->ninput == place) return; /* no room */
        sh->r.kept++;
    }
    sh->input[place].work = blocks;
    sh->input[place].taken = sh->r.taken > taken;
}

/* Draws half of the inputs from the most recent ones; slow inputs are drawn
   less often, and refused inputs less often than accepted ones. */
static const Input *choose_input(void) {
    enum { LITTLE = 1 << 16 };
    for (;;) {
        bool late = fuzz_below(2) && sh->ninput > 64;
        size_t back = fuzz_below(late ? 64 : sh->ninput);
        const Input *in = &sh->input[sh->ninput - 1 - back];
        if (!in->taken && fuzz_below(3)) continue;
        if (fuzz_below(1 + in->work / LITTLE) == 0) return in;
    }
}

/* The next input: the seeds first, then changed copies. */
static void choose(const FuzzTarget *t) {
    bool change = sh->next_seed >= sh->r.seeds;
    const Input *in = change ? choose_input() : &sh->input[sh->next_seed];
    sh->next_seed++;
    sh->n = in->n;
    memcpy(sh->now, sh->pool + in->at, in->n);
    if (!change) return;
    size_t n = t->mutate && fuzz_below(8) ? t->mutate(sh->now, sh->n) : 0;
    if (n)
        sh->n = n;
    else
        sh->n = fuzz_change(sh->now, sh->n, t->words());
    if (t->fix && fuzz_below(16)) t->fix(sh->now, sh->n);
}

static double seconds_now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* Processor seconds of this process and of the children that ended. */
static double cpu_now(void) {
    struct rusage u[2];
    double sum = 0;
    getrusage(RUSAGE_SELF, &u[0]);
    getrusage(RUSAGE_CHILDREN, &u[1]);
    for (int i = 0; i < 2; i++)
        sum += (double)(u[i].ru_utime.tv_sec + u[i].ru_stime.tv_sec) +
               1e-6 * (double)(u[i].ru_utime.tv_usec + u[i].ru_stime.tv_usec);
    return sum;
}

static bool too_large(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_maxrss > MOST_RESIDENT;
}

static _Noreturn void child(const FuzzTarget *t, double end, uint64_t runs) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    limit_time();
    for (;;) {
        choose(t);
        execute(t);
        sh->done =
            (runs && sh->r.runs >= runs) || (end > 0 && seconds_now() > end);
        if (sh->done || (sh->r.runs % 256 == 0 && too_large())) break;
    }
    check_leaks();
    _exit(0);
}

/* ---- the parent ---------------------------------------------------------- */

/* Judges how a child ended; false: without a finding. */
static bool judge(int status, char *why, size_t size) {
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code == 0) return false;
    if (code == ERR_USER) { /* out_of_memory */
        sh->r.exhausted++;
        return false;
    }
    if (code == BROKEN)
        snprintf(why, size, "a rule was broken");
    else if (code == SANITIZER)
        snprintf(why, size, "a sanitizer's report");
    else if (code == ERR_BUG)
        snprintf(why, size, "an internal error");
    else if (code >= 0)
        snprintf(why, size, "the process ended with status %d", code);
    else if (WTERMSIG(status) == SIGPROF)
        snprintf(why, size, "more than %d s", MOST_SECONDS);
    else
        snprintf(why, size, "%s", strsignal(WTERMSIG(status)));
    return true;
}

static void keep(const FuzzTarget *t, const char *folder) {
    snprintf(sh->r.file, sizeof sh->r.file, "%s/%s-%016" PRIx64, folder,
             t->name, hash_bytes(0, sh->now, sh->n));
    FILE *f = fopen(sh->r.file, "wb");
    if (!f || fwrite(sh->now, 1, sh->n, f) != sh->n || fclose(f) != 0)
        perror(sh->r.file);
}

static void begin(void) {
    size_t size = sizeof *sh;
    /* every execution writes a file, and disks would be slow */
    const char *tmp = access("/dev/shm", W_OK) ? getenv("TMPDIR") : "/dev/shm";
    sh = mmap(NULL, size, PROT_READ | PROT_WRITE,
              MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (sh == MAP_FAILED) abort();
    snprintf(work, sizeof work, "%.40s/ampc-fuzz-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(work)) abort();
}

static void end(void) {
    remove_work();
    munmap(sh, sizeof *sh);
    sh = NULL;
}

FuzzResult fuzz_run(const FuzzTarget *t, double seconds, uint64_t runs,
                    uint64_t seed, const char *root, const char *folder) {
    char cases[64];
    begin();
    root_folder = root;
    sh->random = seed;
    double start = seconds_now(), cpu = cpu_now();
    t->seeds();
    snprintf(cases, sizeof cases, "tests/fuzz/cases/%s", t->name);
    fuzz_seed_files(cases, "");
    sh->r.seeds = sh->ninput;
    if (!sh->ninput)
        snprintf(sh->r.finding, sizeof sh->r.finding, "no seeds below %s",
                 root);
    while (!sh->done && !sh->r.finding[0]) {
        int status;
        fflush(NULL);
        pid_t pid = fork();
        if (pid < 0) abort();
        if (pid == 0) child(t, seconds > 0 ? start + seconds : 0, runs);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
        }
        if (judge(status, sh->r.finding, sizeof sh->r.finding)) keep(t, folder);
    }
    sh->r.seconds = seconds_now() - start;
    sh->r.cpu = cpu_now() - cpu;
    FuzzResult r = sh->r;
    end();
    return r;
}

void fuzz_replay(const FuzzTarget *t, const uint8_t *p, size_t n, int times) {
    begin();
    fuzz_replaying = true;
    while (times-- > 0) t->run(p, n);
    check_leaks();
    end();
}

/* ---- the table ----------------------------------------------------------- */

#define none_mutate NULL
#define none_fix    NULL
const FuzzTarget fuzz_targets[] = {
#define FUZZ(name, mutate, fix, runs, what)                                    \
    {#name,           what,      name##_run, name##_seeds, name##_words,       \
     mutate##_mutate, fix##_fix, runs},
#include "tests/fuzz/fuzz_targets.def"
#undef FUZZ
};
const int fuzz_target_count = sizeof fuzz_targets / sizeof *fuzz_targets;
