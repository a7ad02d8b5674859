/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_external.c: tensors stored beside the model.  `location` is hostile
   input: the file is opened one component at a time below the model's
   folder, never through a symlink, and must be a regular file. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sha1.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frontend/onnx/onnx.h"
#include "ir/base/files.h"
#include "runtime/files/infile.h"

typedef struct External {
    const char *location, *checksum;
    int64_t offset, length; /* length -1: not given */
} External;

/* Decimal digits only. */
static bool external_number(const char *s, int64_t *out) {
    int64_t v = 0;
    if (!*s) return false;
    for (; *s; s++)
        if (*s < '0' || *s > '9' || !mul_ok(v, 10, &v) ||
            !add_ok(v, *s - '0', &v))
            return false;
    *out = v;
    return true;
}

static Status parse(Ox *ox, const Onnx__TensorProto *t, const char *name,
                    External *e) {
    *e = (External){.length = -1};
    for (size_t i = 0; i < t->n_external_data; i++) {
        const char *k = t->external_data[i]->key;
        const char *v = t->external_data[i]->value;
        if (!k || !v) continue;
        bool ok = true;
        if (!strcmp(k, "location"))
            e->location = v;
        else if (!strcmp(k, "checksum"))
            e->checksum = v;
        else if (!strcmp(k, "offset"))
            ok = external_number(v, &e->offset);
        else if (!strcmp(k, "length"))
            ok = external_number(v, &e->length);
        if (!ok)
            return ox_fail(ox, "tensor '%s': external %s '%s' is not a number",
                           ox_quote(ox, name), k, ox_quote(ox, v));
    }
    if (!e->location)
        return ox_fail(ox, "tensor '%s' is external but has no location",
                       ox_quote(ox, name));
    return OK;
}

/* The path must be relative, below the folder, of plain components only. */
static const char *objection(const char *loc) {
    if (!*loc) return "is empty";
    if (*loc == '/') return "is absolute";
    if (strchr(loc, '\\')) return "has a backslash";
    for (const char *s = loc;;) {
        size_t len = strcspn(s, "/");
        if (len == 0) return "has an empty component";
        if (len == 2 && s[0] == '.' && s[1] == '.') return "leaves the folder";
        if (len > 255) return "has a component that is too long";
        if (!s[len]) return NULL;
        s += len + 1;
    }
}

/* -1: errno. */
static int open_below(const char *dir, const char *loc) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char part[256];
    while (fd >= 0) {
        size_t len = strcspn(loc, "/");
        bool last = !loc[len];
        memcpy(part, loc, len);
        part[len] = 0;
        int flags = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
        int next = openat(fd, part, flags | (last ? 0 : O_DIRECTORY));
        int err = errno;
        close(fd);
        errno = err;
        fd = next;
        if (last) break;
        loc += len + 1;
    }
    return fd;
}

static bool checksum_ok(int fd, const char *want) {
    SHA1_CTX h;
    char buf[1 << 16], text[SHA1_DIGEST_STRING_LENGTH];
    SHA1Init(&h);
    for (int64_t at = 0;;) {
        int64_t r = infile_read(fd, buf, sizeof buf, (uint64_t)at);
        if (r < 0) return false;
        if (r == 0) break;
        SHA1Update(&h, (const uint8_t *)buf, (size_t)r);
        at += r;
    }
    return !strcasecmp(SHA1End(&h, text), want);
}

static Status read_file_part(Ox *ox, int fd, const char *name,
                             const External *e, int64_t bytes, void **out) {
    struct stat st;
    int64_t end;
    const char *loc = ox_quote(ox, e->location);
    name = ox_quote(ox, name);
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        return ox_fail(ox, "tensor '%s': '%s' is not a regular file", name,
                       loc);
    const char *instead = infile_instead_of(fd);
    if (instead)
        return ox_fail(ox, "tensor '%s': '%s' is %s", name, loc, instead);
    if (e->length >= 0 && e->length != bytes)
        return ox_fail(ox,
                       "tensor '%s' needs %" PRId64 " bytes, but '%s' "
                       "gives length %" PRId64,
                       name, bytes, loc, e->length);
    if (!add_ok(e->offset, bytes, &end) || end > st.st_size)
        return ox_fail(ox,
                       "tensor '%s': offset %" PRId64 " + %" PRId64
                       " bytes is past the end of '%s' (%" PRId64 " bytes)",
                       name, e->offset, bytes, loc, (int64_t)st.st_size);
    Str key = internf("%s %s", e->location, e->checksum ? e->checksum : "");
    if (e->checksum && key != ox->verified && !checksum_ok(fd, e->checksum))
        return ox_fail(ox, "tensor '%s': the checksum of '%s' does not match",
                       name, loc);
    ox->verified = key;
    *out = arena_alloc(ox->a, (size_t)bytes + 1);
    if (!infile_whole(fd, *out, (uint64_t)bytes, (uint64_t)e->offset))
        return ox_fail(ox, "tensor '%s': reading '%s' failed", name, loc);
    return OK;
}

Status ox_external(Ox *ox, const Onnx__TensorProto *t, const char *name,
                   int64_t bytes, void **out) {
    External e;
    TRY(parse(ox, t, name, &e));
    const char *why = objection(e.location);
    if (why)
        return ox_fail(ox, "tensor '%s': external location '%s' %s",
                       ox_quote(ox, name), ox_quote(ox, e.location), why);
    int fd = open_below(ox->dir, e.location);
    if (fd < 0)
        return ox_fail(ox, "tensor '%s': cannot open external data '%s': %s",
                       ox_quote(ox, name), ox_quote(ox, e.location),
                       errno == ELOOP || errno == ENOTDIR ? "not a plain file"
                                                          : strerror(errno));
    Str path = internf("%s/%s", ox->dir, e.location);
    Status s = file_reads(ox->d, ox->opt->guard, path, "the model's data");
    if (s == OK) s = read_file_part(ox, fd, name, &e, bytes, out);
    close(fd);
    return s;
}
