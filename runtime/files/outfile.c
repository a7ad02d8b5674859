/* SPDX-License-Identifier: Apache-2.0 */
/* outfile.c: see outfile.h. */
#define _GNU_SOURCE
#include "runtime/files/outfile.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/glibc.h" /* last */

enum { NAME_TRIES = 100 };

static OutFileHook *hook;

void outfile_set_hook(OutFileHook *fn) { hook = fn; }

/* ---- failures ------------------------------------------------------------ */

static bool failed(OutFile *o) {
    snprintf(o->why, sizeof o->why, "%s", strerror(errno));
    return false;
}

static bool refused(OutFile *o, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(o->why, sizeof o->why, fmt, ap);
    va_end(ap);
    errno = 0;
    return false;
}

static bool too_long(OutFile *o) {
    errno = ENAMETOOLONG;
    return failed(o);
}

/* ---- paths --------------------------------------------------------------- */

/* FOLDER/NAME: opens the folder and keeps the name. */
static bool open_folder(OutFile *o, const char *path) {
    char folder[4096];
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    size_t n = slash ? (size_t)(slash - path) : 0;
    if (slash == path) n = 1;
    if (!*path) return refused(o, "the path is empty");
    if (!*name || !strcmp(name, ".") || !strcmp(name, ".."))
        return refused(o, "is a folder");
    if (n >= sizeof folder || strlen(name) >= sizeof o->name)
        return too_long(o);
    memcpy(folder, slash ? path : ".", slash ? n : 1);
    folder[slash ? n : 1] = 0;
    strcpy(o->name, name);
    o->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return o->folder >= 0 || failed(o);
}

static void close_all(OutFile *o) {
    if (o->stream)
        fclose(o->stream);
    else if (o->fd >= 0)
        close(o->fd);
    if (o->folder >= 0) close(o->folder);
    o->stream = NULL;
    o->open = false;
}

/* ---- the files of one command -------------------------------------------- */

typedef struct Known {
    const char *role;
    bool output;
    dev_t dev, folder_dev;
    ino_t ino, folder_ino; /* 0: none */
    char name[256];
} Known;

/* A file or folder that file_guard_undo removes. */
typedef struct Made {
    struct Made *before;
    const char *role;
    char path[];
} Made;

struct FileGuard {
    Known *known;
    size_t n, cap;
    Made *made; /* the last */
};

FileGuard *file_guard_new(void) { return calloc(1, sizeof(FileGuard)); }

void file_guard_free(FileGuard *g) {
    if (!g) return;
    for (Made *m = g->made, *before; m; m = before) {
        before = m->before;
        free(m);
    }
    free(g->known);
    free(g);
}

/* Without memory the folder is not recorded and stays: that is not worth a
   failure. */
void file_guard_made(FileGuard *g, const char *path, const char *role) {
    size_t n = strlen(path) + 1;
    Made *m = g ? malloc(sizeof *m + n) : NULL;
    if (!m) return;
    m->before = g->made;
    m->role = role;
    memcpy(m->path, path, n);
    g->made = m;
}

void file_guard_undo(FileGuard *g, const char *role) {
    Made **at = g ? &g->made : NULL;
    while (at && *at) {
        Made *m = *at;
        if (strcmp(m->role, role) != 0) {
            at = &m->before;
            continue;
        }
        remove(m->path);
        *at = m->before;
        free(m);
    }
}

static bool outfile_same(const Known *a, const Known *b) {
    if (a->ino && a->ino == b->ino && a->dev == b->dev) return true;
    return a->folder_ino && a->folder_ino == b->folder_ino &&
           a->folder_dev == b->folder_dev && strcmp(a->name, b->name) == 0;
}

/* Many inputs may be the same file; an output must differ from all others. */
static bool outfile_add(FileGuard *g, const Known *k, char why[160]) {
    for (size_t i = 0; i < g->n; i++) {
        const Known *other = &g->known[i];
        if (!outfile_same(other, k)) continue;
        if (!other->output && !k->output) return true;
        snprintf(why, 160, "%s would overwrite %s",
                 k->output ? k->role : other->role,
                 k->output ? other->role : k->role);
        return false;
    }
    if (g->n == g->cap) {
        size_t cap = g->cap ? 2 * g->cap : 16;
        Known *more = realloc(g->known, cap * sizeof *more);
        if (!more) {
            snprintf(why, 160, "%s", strerror(ENOMEM));
            return false;
        }
        g->known = more;
        g->cap = cap;
    }
    g->known[g->n++] = *k;
    return true;
}

bool file_guard_input(FileGuard *g, const char *path, const char *role,
                      char why[160]) {
    struct stat st, folder;
    OutFile o = {.open = true, .folder = -1, .fd = -1};
    if (!g || fstatat(AT_FDCWD, path, &st, 0) != 0) return true;
    Known k = {.role = role, .dev = st.st_dev, .ino = st.st_ino};
    if (open_folder(&o, path) && fstat(o.folder, &folder) == 0) {
        k.folder_dev = folder.st_dev;
        k.folder_ino = folder.st_ino;
        memcpy(k.name, o.name, sizeof k.name);
    }
    close_all(&o);
    return outfile_add(g, &k, why);
}

/* file: the existing file at the path, or NULL. */
static bool claim(OutFile *o, FileGuard *g, const char *role,
                  const struct stat *file) {
    struct stat st;
    if (!g) return true;
    if (fstat(o->folder, &st) != 0) return failed(o);
    Known k = {.role = role,
               .output = true,
               .folder_dev = st.st_dev,
               .folder_ino = st.st_ino};
    memcpy(k.name, o->name, sizeof k.name);
    if (file) {
        k.dev = file->st_dev;
        k.ino = file->st_ino;
    }
    errno = 0;
    return outfile_add(g, &k, o->why);
}

/* ---- open ---------------------------------------------------------------- */

static bool look(OutFile *o, struct stat *st, bool *there) {
    *there = fstatat(o->folder, o->name, st, AT_SYMLINK_NOFOLLOW) == 0;
    if (!*there) return errno == ENOENT || failed(o);
    if (S_ISDIR(st->st_mode)) return refused(o, "is a folder");
    if (S_ISLNK(st->st_mode))
        return refused(o, "is a symbolic link: name the file itself");
    if (!S_ISREG(st->st_mode))
        return refused(o, "exists and is not a regular file");
    return true;
}

static bool outfile_begin(OutFile *o, const char *path, FileGuard *g,
                          const char *role) {
    struct stat st;
    bool there;
    *o = (OutFile){.open = true, .folder = -1, .fd = -1};
    return open_folder(o, path) && look(o, &st, &there) &&
           claim(o, g, role, there ? &st : NULL);
}

bool file_guard_claim(FileGuard *g, const char *path, const char *role,
                      char why[160]) {
    OutFile o;
    bool ok = outfile_begin(&o, path, g, role) &&
              (o.in_place || faccessat(o.folder, ".", W_OK, AT_EACCESS) == 0 ||
               failed(&o));
    if (!ok) memcpy(why, o.why, sizeof o.why);
    outfile_abort(&o);
    return ok;
}

/* Without random numbers: of the time, the process, and the thread, on whose
   stack `o` lies. */
static void random_name(OutFile *o) {
    uint64_t x = 0;
    if (getrandom(&x, sizeof x, GRND_NONBLOCK) != (ssize_t)sizeof x) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        x = ((uint64_t)t.tv_nsec + (uintptr_t)o) * 0x9e3779b97f4a7c15u ^
            (uint64_t)t.tv_sec ^ (uint64_t)getpid() << 32;
    }
    snprintf(o->tmp, sizeof o->tmp, ".ampc-%016llx", (unsigned long long)x);
}

static void set_named(OutFile *o, bool named) {
    o->named = named;
    if (hook) hook(o->folder, o->tmp, named);
}

/* Distinguishes a living writer's file from one that a killed writer left. */
static bool lock(int fd) {
    return flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

static bool open_named(OutFile *o, mode_t mode) {
    for (int i = 0; i < NAME_TRIES; i++) {
        random_name(o);
        o->fd =
            openat(o->folder, o->tmp,
                   O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (o->fd < 0 && errno != EEXIST) break;
        if (o->fd < 0) continue;
        set_named(o, true);
        if (lock(o->fd)) return true;
        set_named(o, false); /* another writer takes it for a leftover */
        close(o->fd);
        o->fd = -1;
    }
    return failed(o);
}

/* Fails without side effects if the kernel or the file system cannot create
   a file without a name or cannot name it later. */
static bool open_nameless(OutFile *o, mode_t mode) {
    if (access("/proc/self/fd", X_OK) != 0) return false;
    o->fd = openat(o->folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, mode);
    return o->fd >= 0 && lock(o->fd);
}

static bool is_temporary(const char *name) {
    return strncmp(name, ".ampc-", 6) == 0 && strlen(name) == 22 &&
           strspn(name + 6, "0123456789abcdef") == 16;
}

/* Removes temporary files that killed writers left in the folder: those
   without a lock. If locks do not work, all of them stay. */
static void sweep(const OutFile *o) {
    int at = openat(o->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = at < 0 ? NULL : fdopendir(at);
    if (!dir && at >= 0) close(at);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        struct stat st;
        if (!is_temporary(e->d_name)) continue;
        int fd = openat(o->folder, e->d_name,
                        O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0) continue;
        if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
            flock(fd, LOCK_EX | LOCK_NB) == 0)
            unlinkat(o->folder, e->d_name, 0);
        close(fd);
    }
    if (dir) closedir(dir);
}

bool outfile_open(OutFile *o, const char *path, mode_t mode, FileGuard *guard,
                  const char *role) {
    if (!outfile_begin(o, path, guard, role)) return false;
    sweep(o);
    return open_nameless(o, mode) || open_named(o, mode);
}

bool outfile_append(OutFile *o, const char *path, bool goes_on,
                    FileGuard *guard, const char *role) {
    struct stat st;
    if (!outfile_begin(o, path, guard, role)) return false;
    o->in_place = true;
    o->fd = openat(o->folder, o->name,
                   O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK |
                       O_CLOEXEC,
                   0666);
    if (o->fd < 0 || fstat(o->fd, &st) != 0) return failed(o);
    if (!S_ISREG(st.st_mode))
        return refused(o, "exists and is not a regular file");
    if (!lock(o->fd)) return refused(o, "another process is writing it");
    return goes_on || ftruncate(o->fd, 0) == 0 || failed(o);
}

/* ---- write --------------------------------------------------------------- */

/* Blocks SIGXFSZ in this thread, and consumes one that was raised meanwhile. */
typedef struct Quiet {
    sigset_t set, old, pending;
} Quiet;

static void quiet_begin(Quiet *q) {
    sigemptyset(&q->set);
    sigaddset(&q->set, SIGXFSZ);
    sigpending(&q->pending);
    pthread_sigmask(SIG_BLOCK, &q->set, &q->old);
}

static void quiet_end(const Quiet *q) {
    struct timespec none = {0, 0};
    int keep = errno;
    if (!sigismember(&q->pending, SIGXFSZ))
        while (sigtimedwait(&q->set, NULL, &none) < 0 && errno == EINTR) {
        }
    pthread_sigmask(SIG_SETMASK, &q->old, NULL);
    errno = keep;
}

static bool write_all(int fd, const void *data, uint64_t n) {
    const char *p = data;
    while (n) {
        ssize_t put = write(fd, p, n < (1 << 30) ? n : 1 << 30);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return false;
        p += put;
        n -= (uint64_t)put;
    }
    return true;
}

bool outfile_write(OutFile *o, const void *data, uint64_t n) {
    Quiet q;
    quiet_begin(&q);
    bool ok = write_all(o->fd, data, n);
    quiet_end(&q);
    return ok || failed(o);
}

bool outfile_patch(OutFile *o, const void *data, size_t n, uint64_t at) {
    ssize_t put;
    do put = pwrite(o->fd, data, n, (off_t)at);
    while (put < 0 && errno == EINTR);
    if (put >= 0 && (size_t)put < n) errno = EIO;
    return put == (ssize_t)n || failed(o);
}

FILE *outfile_stream(OutFile *o) {
    if (!o->stream) o->stream = fdopen(o->fd, "w");
    if (!o->stream) failed(o);
    return o->stream;
}

/* ---- end ----------------------------------------------------------------- */

static bool flush_stream(OutFile *o) {
    if (!o->stream) return true;
    errno = 0;
    if (fflush(o->stream) == 0 && !ferror(o->stream)) return true;
    return errno ? failed(o) : refused(o, "not all of it could be written");
}

/* Some file systems cannot sync. */
static bool synced(OutFile *o, int fd) {
    return o->loose || fsync(fd) == 0 || errno == EINVAL || failed(o);
}

static bool give_name(OutFile *o) {
    char self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", o->fd);
    for (int i = 0; i < NAME_TRIES; i++) {
        random_name(o);
        if (linkat(AT_FDCWD, self, o->folder, o->tmp, AT_SYMLINK_FOLLOW) == 0) {
            set_named(o, true);
            return true;
        }
        if (errno != EEXIST) break;
    }
    return failed(o);
}

bool outfile_ready(OutFile *o) {
    return flush_stream(o) && synced(o, o->fd) &&
           (o->named || o->in_place || give_name(o));
}

/* The new file has the name and the old one the temporary name; or the
   reverse. */
static bool exchange(const OutFile *o) {
    return renameat2(o->folder, o->tmp, o->folder, o->name, RENAME_EXCHANGE) ==
           0;
}

/* The new file gets the path, the old one the path with suffix `keep`. If the
   system cannot exchange two names, there is a moment without a file at the
   path. The old file is locked while it has a temporary name, or another
   writer would remove it as a leftover. If two writers exchange at once that
   may fail, and only the old file is lost. */
static bool rename_keeping(OutFile *o) {
    struct stat st;
    char old[sizeof o->name];
    int n = snprintf(old, sizeof old, "%s%s", o->name, o->keep);
    if ((size_t)n >= sizeof old) return too_long(o);
    if (fstatat(o->folder, old, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        !S_ISREG(st.st_mode))
        return refused(o, "%.100s exists and is not a regular file", old);
    int held = openat(o->folder, o->name,
                      O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (held >= 0) flock(held, LOCK_SH | LOCK_NB);
    bool exchanged = exchange(o);
    const char *first = exchanged ? o->tmp : o->name;
    bool ok = renameat(o->folder, first, o->folder, old) == 0 ||
              (exchanged && errno == ENOENT) || failed(o);
    if (!ok && exchanged) exchange(o); /* all is as it was */
    if (held >= 0) close(held);
    if (!ok || exchanged) return ok;
    return renameat(o->folder, o->tmp, o->folder, o->name) == 0 || failed(o);
}

static bool take_path(OutFile *o) {
    struct stat st;
    bool there;
    if (!look(o, &st, &there)) return false;
    if (there && o->keep) return rename_keeping(o);
    return renameat(o->folder, o->tmp, o->folder, o->name) == 0 || failed(o);
}

bool outfile_suffix(OutFile *o, const char *suffix) {
    size_t n = strlen(o->name), m = strlen(suffix);
    if (n + m >= sizeof o->name) return too_long(o);
    memcpy(o->name + n, suffix, m + 1);
    return true;
}

bool outfile_commit(OutFile *o) {
    if (!o->named && !outfile_ready(o)) return false;
    if (!o->in_place) {
        if (!take_path(o)) return false;
        set_named(o, false);
    }
    if (!synced(o, o->folder)) return false;
    close_all(o);
    return true;
}

void outfile_abort(OutFile *o) {
    if (!o->open) return;
    if (o->named) {
        unlinkat(o->folder, o->tmp, 0);
        set_named(o, false);
    }
    close_all(o);
}
