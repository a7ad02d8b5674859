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

#include "ir/base/files.h"
#include "runtime/files/infile.h"

enum { PART = 1 << 20, IN = 64 << 10 };

/* A gzip file, or a raw deflate stream inside a zip file. */
struct SourcePacked {
    z_stream z;
    bool gzip, ended;
    uint64_t at;       /* stored bytes that were read */
    uint64_t raw;      /* zip: the unpacked size */
    uint32_t crc, sum; /* zip: of all bytes, of those that were unpacked */
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

static Status source_damaged(const Source *s) {
    return source_bad(s, "damaged or truncated %s file",
                      s->packed->gzip ? "gzip" : "zip");
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

/* Gives inflate the next stored bytes, if there are more. */
static Status refill(const Source *s) {
    SourcePacked *k = s->packed;
    size_t got = 0;
    if (k->z.avail_in) return OK;
    TRY(take_plain(s, (char *)k->in, IN, k->at, &got));
    k->at += got;
    k->z.next_in = k->in;
    k->z.avail_in = (unsigned)got;
    return OK;
}

/* A gzip file has one member or several, with zeros between and behind them.
   zlib's own reader takes a damaged member for the end of the file. */
static Status next_member(const Source *s) {
    SourcePacked *k = s->packed;
    TRY(refill(s));
    while (k->z.avail_in && !*k->z.next_in) {
        k->z.next_in++;
        k->z.avail_in--;
        TRY(refill(s));
    }
    k->ended = !k->z.avail_in;
    if (k->ended) return OK;
    if (*k->z.next_in != 0x1f)
        return source_bad(s, "damaged gzip file: other bytes behind its end");
    return inflateReset(&k->z) == Z_OK ? OK : source_damaged(s);
}

static Status check_zip(const Source *s, const char *part, size_t n,
                        bool ended) {
    SourcePacked *k = s->packed;
    k->sum = (uint32_t)crc32_z(k->sum, (const unsigned char *)part, n);
    k->ended = ended;
    if (k->z.total_out > k->raw ||
        (ended && (k->z.total_out < k->raw || k->sum != k->crc)))
        return source_bad(s, "damaged zip file: a checksum or a size");
    return OK;
}

static Status take_packed(const Source *s, char *p, size_t n, size_t *got) {
    SourcePacked *k = s->packed;
    while (*got < n && !k->ended) {
        TRY(refill(s));
        size_t part = n - *got < PART ? n - *got : PART;
        k->z.next_out = (unsigned char *)p + *got;
        k->z.avail_out = (unsigned)part;
        int e = inflate(&k->z, Z_NO_FLUSH);
        if (e == Z_MEM_ERROR) return source_bad(s, "out of memory");
        if (e != Z_OK && e != Z_STREAM_END) return source_damaged(s);
        part -= k->z.avail_out;
        if (!k->gzip)
            TRY(check_zip(s, p + *got, part, e == Z_STREAM_END));
        else if (e == Z_STREAM_END)
            TRY(next_member(s));
        *got += part;
    }
    return OK;
}

Status source_take(const Source *s, void *out, size_t n, uint64_t at,
                   size_t *got) {
    *got = 0;
    return s->packed ? take_packed(s, out, n, got)
                     : take_plain(s, out, n, at, got);
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

static Status open_packed(Source *s, int window, SourcePacked head) {
    s->packed = malloc(sizeof *s->packed);
    if (s->packed) *s->packed = head;
    if (s->packed && inflateInit2(&s->packed->z, window) == Z_OK) return OK;
    free(s->packed);
    s->packed = NULL;
    return source_bad(s, "out of memory");
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
    return open_packed(s, MAX_WBITS + 16, (SourcePacked){.gzip = true});
}

Status source_begin(const Source *s, void *out, size_t n, size_t *got) {
    TRY(source_take(s, out, n, 0, got));
    const char *instead = infile_instead(out, *got);
    if (!instead) return OK;
    if (instead != infile_page || !has_suffix(s->path, ".txt"))
        return source_bad(s, "%s", instead);
    warn(s->d, (Loc){.file = intern(s->path)}, "%s; it is read as a text",
         instead);
    return OK;
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
    return open_packed(s, -MAX_WBITS, (SourcePacked){.raw = raw, .crc = crc});
}

void source_close(Source *s) {
    if (s->packed) inflateEnd(&s->packed->z);
    free(s->packed);
    if (s->fd >= 0) close(s->fd);
}

/* ---- a copy on disk ------------------------------------------------------ */

int source_copy(void) {
    const char *dir = temporary_place();
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
