/* SPDX-License-Identifier: Apache-2.0 */
/* source.c: see source.h. */
#define _GNU_SOURCE
#include "frontend/data/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "runtime/files/infile.h"

enum { PART = 1 << 20, IN = 64 << 10 };

/* Either a whole file of gzip, or a raw deflate stream inside one. */
struct SourcePacked {
    gzFile gz;
    z_stream z;
    uint64_t at, raw; /* stored bytes consumed; unpacked size */
    uint32_t crc, sum;
    bool ended;
    unsigned char in[IN];
};

/* ---- messages ------------------------------------------------------------ */

Status source_bad(const Source *s, const char *fmt, ...) {
    StrBuf text = {0};
    va_list ap;
    va_start(ap, fmt);
    sb_vprintf(&text, fmt, ap);
    va_end(ap);
    fail(s->d, (Loc){.file = s->path}, "%s", text.data);
    sb_free(&text);
    return ERR_USER;
}

static Status source_errno(const Source *s) {
    return source_bad(s, "%s", strerror(errno));
}

static Status gz_failed(const Source *s) {
    int e = Z_OK;
    gzerror(s->packed->gz, &e);
    if (e == Z_MEM_ERROR) return source_bad(s, "out of memory");
    if (e == Z_ERRNO) return source_errno(s);
    return source_bad(s, "damaged or truncated gzip file");
}

/* ---- reading ------------------------------------------------------------- */

static Status take_plain(const Source *s, char *p, size_t n, uint64_t at,
                         size_t *got) {
    if (at > s->size) at = s->size;
    if (n > s->size - at) n = (size_t)(s->size - at);
    int64_t k = infile_read(s->fd, p + *got, n - *got, s->base + at + *got);
    if (k < 0) return source_errno(s);
    *got += (size_t)k;
    return OK;
}

static Status take_gzip(const Source *s, char *p, size_t n, size_t *got) {
    int e = Z_OK;
    while (*got < n) {
        size_t part = n - *got < PART ? n - *got : PART;
        int k = gzread(s->packed->gz, p + *got, (unsigned)part);
        if (k < 0) return gz_failed(s);
        if (k == 0) break;
        *got += (size_t)k;
    }
    if (*got < n)
        gzerror(s->packed->gz, &e); /* the file is truncated:
                                       reading past its end returns
                                       no bytes */
    return e == Z_OK || e == Z_STREAM_END ? OK : gz_failed(s);
}

/* Gives inflate the next stored bytes. */
static Status refill(const Source *s) {
    SourcePacked *k = s->packed;
    size_t got = 0;
    if (k->z.avail_in) return OK;
    TRY(take_plain(s, (char *)k->in, IN, k->at, &got));
    if (got == 0) return source_bad(s, "damaged or truncated zip file");
    k->at += got;
    k->z.next_in = k->in;
    k->z.avail_in = (unsigned)got;
    return OK;
}

static Status take_deflated(const Source *s, char *p, size_t n, size_t *got) {
    SourcePacked *k = s->packed;
    while (*got < n && !k->ended) {
        TRY(refill(s));
        size_t part = n - *got < PART ? n - *got : PART;
        k->z.next_out = (unsigned char *)p + *got;
        k->z.avail_out = (unsigned)part;
        int e = inflate(&k->z, Z_NO_FLUSH);
        if (e != Z_OK && e != Z_STREAM_END)
            return source_bad(s, "damaged or truncated zip file");
        size_t made = part - k->z.avail_out;
        k->sum = (uint32_t)crc32_z(k->sum, (unsigned char *)p + *got, made);
        *got += made;
        k->ended = e == Z_STREAM_END;
        if (k->z.total_out > k->raw ||
            (k->ended && (k->z.total_out < k->raw || k->sum != k->crc)))
            return source_bad(s, "damaged zip file: a checksum or a size");
    }
    return OK;
}

Status source_take(const Source *s, void *out, size_t n, uint64_t at,
                   size_t *got) {
    *got = 0;
    if (!s->packed) return take_plain(s, out, n, at, got);
    return s->packed->gz ? take_gzip(s, out, n, got)
                         : take_deflated(s, out, n, got);
}

Status source_get(const Source *s, void *out, size_t n, uint64_t at) {
    size_t got;
    TRY(source_take(s, out, n, at, &got));
    return got == n ? OK : source_bad(s, "truncated");
}

/* zlib compresses at most 1032 to 1: a larger size is a lie. */
uint64_t source_most(const Source *s) {
    return s->packed ? s->size * 1040 + 1024 : s->size;
}

/* ---- opening ------------------------------------------------------------- */

static Status open_gzip(Source *s) {
    int fd = fcntl(s->fd, F_DUPFD_CLOEXEC, 0);
    s->packed = fd < 0 ? NULL : calloc(1, sizeof *s->packed);
    if (s->packed && (s->packed->gz = gzdopen(fd, "rb"))) return OK;
    if (fd >= 0) close(fd);
    free(s->packed);
    s->packed = NULL;
    return source_bad(s, "%s", fd < 0 ? strerror(errno) : "out of memory");
}

Status source_open(Source *s) {
    struct stat st;
    unsigned char magic[2] = {0};
    size_t got;
    /* O_NONBLOCK: opening a named pipe must not block */
    s->fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (s->fd < 0 || fstat(s->fd, &st) != 0) return source_errno(s);
    if (S_ISDIR(st.st_mode)) return source_bad(s, "is a folder");
    if (!S_ISREG(st.st_mode)) return source_bad(s, "is not a regular file");
    s->size = (uint64_t)st.st_size;
    TRY(source_take(s, magic, sizeof magic, 0, &got));
    if (got < 2 || magic[0] != 0x1f || magic[1] != 0x8b) return OK;
    return open_gzip(s);
}

Status source_part(Source *s, uint64_t base, uint64_t size) {
    if (s->packed) return source_bad(s, "gzip around such a file is not read");
    if (base > s->size || size > s->size - base)
        return source_bad(s, "truncated: a part of it lies beyond its end");
    s->base += base;
    s->size = size;
    return OK;
}

Status source_deflated(Source *s, uint64_t base, uint64_t size, uint64_t raw,
                       uint32_t crc) {
    TRY(source_part(s, base, size));
    s->packed = calloc(1, sizeof *s->packed);
    if (s->packed && inflateInit2(&s->packed->z, -MAX_WBITS) == Z_OK) {
        s->packed->raw = raw;
        s->packed->crc = crc;
        return OK;
    }
    free(s->packed);
    s->packed = NULL;
    return source_bad(s, "out of memory");
}

void source_close(Source *s) {
    if (s->packed && s->packed->gz) gzclose_r(s->packed->gz);
    if (s->packed && !s->packed->gz) inflateEnd(&s->packed->z);
    free(s->packed);
    if (s->fd >= 0) close(s->fd);
}

/* ---- a copy on disk ------------------------------------------------------ */

int source_copy(void) {
    const char *dir = getenv("TMPDIR");
    if (!dir || !*dir) dir = "/tmp";
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600);
    if (fd >= 0) return fd;
    StrBuf name = {0};
    sb_printf(&name, "%s/ampc-XXXXXX", dir);
    fd = mkostemp(name.data, O_CLOEXEC);
    if (fd >= 0) unlink(name.data);
    sb_free(&name);
    return fd;
}

bool source_put(int fd, const void *data, size_t n, uint64_t at) {
    const char *p = data;
    while (n) {
        ssize_t k = pwrite(fd, p, n, (off_t)at);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return false;
        p += k;
        n -= (size_t)k;
        at += (uint64_t)k;
    }
    return true;
}

Status source_copy_failed(const Source *s) {
    return source_bad(s, "its copy in $TMPDIR: %s", strerror(errno));
}
