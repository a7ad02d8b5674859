/* SPDX-License-Identifier: Apache-2.0 */
/* sections.c: reads the sections after the ELF image of the module's own file.

   The file is read, never mapped: a file that shrinks under a mapping kills the
   host by SIGBUS.  Tail and directory are treated as hostile; a section's CRC
   is checked while it is read, so a damaged module is refused at open.      */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/files/sections.h"

#include "runtime/base/try.h"
#include "runtime/files/infile.h"

#include "runtime/base/glibc.h" /* last */

/* ---- which file are we? -------------------------------------------------- */

/* The path that the kernel maps at `addr`: correct even if the host has
   changed its working folder since dlopen. */
static bool path_from_maps(const void *addr, char *path, size_t size) {
    char line[4352];
    bool found = false;
    FILE *f = fopen("/proc/self/maps", "re");
    if (!f) return false;
    while (!found && fgets(line, sizeof line, f)) {
        uintptr_t lo, hi;
        int at = 0;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %*s %n", &lo,
                   &hi, &at) != 2 ||
            at == 0 || (uintptr_t)addr < lo || (uintptr_t)addr >= hi)
            continue;
        line[strcspn(line, "\n")] = 0;
        found = line[at] == '/' &&
                (size_t)snprintf(path, size, "%s", line + at) < size;
        break;
    }
    fclose(f);
    return found;
}

/* The kernel writes a newline as \012, but a path may also contain these
   four characters. */
static bool decode_newlines(char *path) {
    char *to = path, *from = path;
    while (*from) {
        bool newline = strncmp(from, "\\012", 4) == 0;
        *to++ = newline ? '\n' : *from;
        from += newline ? 4 : 1;
    }
    *to = 0;
    return to != from;
}

/* The suffix that Linux appends if the file was deleted or replaced: removes
   it. */
static bool strip_deleted(char *path) {
    static const char mark[] = " (deleted)";
    size_t n = strlen(path), k = sizeof mark - 1;
    if (n <= k || strcmp(path + n - k, mark) != 0) return false;
    path[n - k] = 0;
    return true;
}

static bool path_from_loader(const AmpcModule *m, char *path, size_t size) {
    Dl_info info;
    return dladdr((const void *)m, &info) && info.dli_fname &&
           (size_t)snprintf(path, size, "%s", info.dli_fname) < size;
}

static bool has_id(int fd, uint64_t id) {
    struct stat st;
    PlanTail tail;
    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
           st.st_size >= (off_t)sizeof tail &&
           infile_whole(fd, &tail, sizeof tail,
                        (uint64_t)st.st_size - sizeof tail) &&
           tail.magic == AMPC_TAIL_MAGIC && tail.id == id;
}

/* Ways to interpret a path, the likeliest first. */
enum { WAY_PLAIN, WAY_NEWLINES, WAY_DELETED, WAY_BOTH, WAY_LOADER, WAYS };

static bool path_in_way(const AmpcModule *m, int way, char *path, size_t size) {
    if (way == WAY_LOADER) return path_from_loader(m, path, size);
    if (!path_from_maps(m, path, size)) return false;
    if (way >= WAY_DELETED && !strip_deleted(path)) return false;
    return way == WAY_PLAIN || way == WAY_DELETED || decode_newlines(path);
}

/* The module's file if one of the ways leads to it, else another file at the
   path; -1: none. */
static int open_self(const AmpcModule *m, char *path, size_t size) {
    int fd = -1, first = -1;
    for (int way = 0; way < WAYS; way++) {
        if (!path_in_way(m, way, path, size)) continue;
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0) continue;
        if (has_id(fd, m->id)) return fd;
        close(fd);
        if (first < 0) first = way;
    }
    if (first >= 0 && path_in_way(m, first, path, size))
        return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    return -1;
}

/* The file stays open while the module is loaded: if it is replaced on disk,
   sessions still begin with the weights that belong to the code. A host that
   closes unknown descriptors may have given our number to another file,
   which must stay open. */
static struct {
    const AmpcModule *m;
    int fd;
    struct stat st;
} held = {.fd = -1};

static bool held_is_ours(void) {
    struct stat now;
    return held.fd >= 0 && fstat(held.fd, &now) == 0 &&
           now.st_dev == held.st.st_dev && now.st_ino == held.st.st_ino;
}

void module_hold(const AmpcModule *m) {
    char path[4200];
    int fd = open_self(m, path, sizeof path);
    if (fd >= 0 && has_id(fd, m->id) && fstat(fd, &held.st) == 0) {
        held.m = m;
        held.fd = fd;
    } else if (fd >= 0) {
        close(fd);
    }
}

__attribute__((destructor)) static void module_drop(void) {
    if (held_is_ours()) close(held.fd);
    held.fd = -1;
}

bool module_path(const AmpcModule *m, char *path, size_t size) {
    int fd = open_self(m, path, size);
    if (fd >= 0) close(fd);
    if (fd >= 0) return true;
    return (path_in_way(m, WAY_DELETED, path, size) ||
            path_in_way(m, WAY_PLAIN, path, size) ||
            path_from_loader(m, path, size));
}

/* ---- reading ------------------------------------------------------------- */

ampc_status section_damaged(SectionFile *f, const char *what) {
    return session_fail(f->s, AMPC_ERR_FORMAT, "%s: damaged module: %s",
                        f->path, what);
}

static ampc_status read_at(SectionFile *f, void *buf, size_t n,
                           uint64_t offset) {
    int64_t got = infile_read(f->fd, buf, n, offset);
    if (got < 0)
        return session_fail(f->s, AMPC_ERR_FILE, "%s: %s", f->path,
                            strerror(errno));
    return (uint64_t)got < n ? section_damaged(f, "it became shorter")
                             : AMPC_OK;
}

bool section_inside(uint64_t offset, uint64_t bytes, uint64_t limit) {
    return offset <= limit && bytes <= limit - offset;
}

static ampc_status read_tail(SectionFile *f, PlanTail *tail) {
    if (f->size < sizeof *tail) return section_damaged(f, "too short");
    TRY(read_at(f, tail, sizeof *tail, f->size - sizeof *tail));
    if (tail->magic != AMPC_TAIL_MAGIC)
        return section_damaged(f, "no tail (truncated?)");
    if (tail->nsection > 4096 ||
        !section_inside(tail->directory, tail->nsection * sizeof(PlanSection),
                        f->size - sizeof *tail))
        return section_damaged(f, "its directory");
    return AMPC_OK;
}

ampc_status section_open(ampc_session *s, SectionFile *f) {
    struct stat st;
    *f = (SectionFile){.s = s, .fd = -1};
    if (!module_path(s->m, f->path, sizeof f->path))
        return session_fail(s, AMPC_ERR_FILE,
                            "the module's own file cannot be found");
    if (held.m == s->m && held_is_ours())
        f->fd = fcntl(held.fd, F_DUPFD_CLOEXEC, 0);
    else
        f->fd = open_self(s->m, f->path, sizeof f->path);
    if (f->fd < 0 || fstat(f->fd, &st) != 0)
        return session_fail(s, AMPC_ERR_FILE, "%s: %s", f->path,
                            strerror(errno));
    f->size = (uint64_t)st.st_size;
    ampc_status status = read_tail(f, &f->tail);
    if (status == AMPC_OK && f->tail.id != s->m->id)
        return session_fail(s, AMPC_ERR_FORMAT,
                            "%s: replaced by another module after this one was "
                            "loaded",
                            f->path);
    return status;
}

void section_close(SectionFile *f) {
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}

ampc_status section_find(SectionFile *f, const char *name, PlanSection *found,
                         bool *there) {
    *there = false;
    for (uint64_t i = 0; i < f->tail.nsection; i++) {
        TRY(read_at(f, found, sizeof *found,
                    f->tail.directory + i * sizeof *found));
        if (strncmp(found->name, name, sizeof found->name) != 0) continue;
        *there = true;
        if (!found->packed &&
            section_inside(found->offset, found->bytes, f->tail.directory))
            return AMPC_OK;
        char what[80];
        snprintf(what, sizeof what, "section '%.32s'", name);
        return section_damaged(f, what);
    }
    return AMPC_OK;
}

typedef struct Chunk {
    uint8_t data[256 << 10];
} Chunk;

static ampc_status read_chunks(SectionFile *f, const PlanSection *sec, Chunk *c,
                               SectionFn *fn, void *ctx) {
    uint32_t crc = 0;
    for (uint64_t at = 0; at < sec->bytes;) {
        uint64_t n = sec->bytes - at;
        if (n > sizeof c->data) n = sizeof c->data;
        TRY(read_at(f, c->data, n, sec->offset + at));
        TRY(fn(ctx, c->data, at, n));
        crc = crc_add(crc, c->data, n);
        at += n;
    }
    if (crc == sec->crc) return AMPC_OK;
    char what[80];
    snprintf(what, sizeof what, "checksum of the %.32s", sec->name);
    return section_damaged(f, what);
}

ampc_status section_read(SectionFile *f, const PlanSection *sec, SectionFn *fn,
                         void *ctx) {
    Chunk *c = mem_alloc(f->s, sizeof *c);
    if (!c) return session_fail(f->s, AMPC_ERR_MEMORY, "out of memory");
    ampc_status status = read_chunks(f, sec, c, fn, ctx);
    mem_free(f->s, c, sizeof *c);
    return status;
}
