/* SPDX-License-Identifier: Apache-2.0 */
/* files.c: see files.h. */
#define _POSIX_C_SOURCE 200809L
#include "ir/base/files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

Status file_failed(Diag *d, const char *path, const OutFile *o) {
    return fail(d, (Loc){.file = intern(path)}, "%s", o->why);
}

Status file_reads(Diag *d, FileGuard *g, const char *path, const char *role) {
    char why[160];
    if (!path || file_guard_input(g, path, role, why)) return OK;
    return fail(d, (Loc){.file = intern(path)}, "%s", why);
}

Status file_writes(Diag *d, FileGuard *g, const char *path, const char *role) {
    char why[160];
    if (!path || file_guard_claim(g, path, role, why)) return OK;
    return fail(d, (Loc){.file = intern(path)}, "%s", why);
}

const char *temporary_place(void) {
    const char *given = getenv("TMPDIR");
    return given && *given ? given : "/tmp";
}

bool has_suffix(const char *name, const char *suffix) {
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && !strcmp(name + n - m, suffix);
}

Str file_beside(const char *other, const char *name) {
    const char *slash = strrchr(other, '/');
    if (!slash || *name == '/') return intern(name);
    return internf("%.*s%s", (int)(slash + 1 - other), other, name);
}

Status file_folder(Diag *d, const char *path, FileGuard *guard,
                   const char *role) {
    struct stat st;
    if (mkdir(path, 0777) == 0) {
        file_guard_made(guard, path, role);
        return OK;
    }
    const char *why = !*path            ? "the name of a folder is missing"
                      : errno == EEXIST ? "exists and is not a folder"
                                        : strerror(errno);
    if (errno == EEXIST && stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return OK;
    file_guard_undo(guard, role);
    return fail(d, (Loc){.file = intern(path)}, "%s", why);
}

Status file_text(Diag *d, const char *path, const void *text, size_t n,
                 FileGuard *guard, const char *role) {
    OutFile o;
    bool ok = outfile_open(&o, path, 0666, guard, role);
    o.loose = true;
    ok = ok && outfile_write(&o, text, n) && outfile_commit(&o);
    outfile_abort(&o);
    if (ok) {
        file_guard_made(guard, path, role);
        return OK;
    }
    file_guard_undo(guard, role);
    return file_failed(d, path, &o);
}
