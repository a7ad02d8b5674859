/* SPDX-License-Identifier: Apache-2.0 */
/* section.c: see section.h. */
#define _POSIX_C_SOURCE 200809L
#include "codegen/section.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

enum { ALIGN = 64, MAX_SECTIONS = 4096 };
static const char PACKED[] = "packed";

/* ---- writing ------------------------------------------------------------- */

static void put(SectionWriter *w, const void *data, size_t n) {
    if (n && !w->failed && fwrite(data, 1, n, w->file) != n) w->failed = true;
    w->at += n;
}

static void put_zeros(SectionWriter *w, uint64_t n) {
    static const char zeros[4096];
    for (; n > sizeof zeros; n -= sizeof zeros) put(w, zeros, sizeof zeros);
    put(w, zeros, (size_t)n);
}

static PlanSection *current(SectionWriter *w) {
    return &w->dir.data[w->dir.len - 1];
}

static void add_entry(SectionWriter *w, const char *name, uint64_t offset) {
    PlanSection s = {.offset = offset};
    ASSERT(strlen(name) < sizeof s.name);
    strcpy(s.name, name);
    vec_push(w->arena, &w->dir, s);
}

void section_begin(SectionWriter *w, const char *name) {
    put_zeros(w, (ALIGN - w->at % ALIGN) % ALIGN);
    add_entry(w, name, w->at);
}

void section_put(SectionWriter *w, const void *data, size_t n) {
    PlanSection *s = current(w);
    s->crc = (uint32_t)crc32_z(s->crc, data, n);
    put(w, data, n);
}

void section_pad(SectionWriter *w, uint64_t to) {
    static const char zeros[ALIGN];
    while (w->at - current(w)->offset < to) {
        uint64_t n = to - (w->at - current(w)->offset);
        section_put(w, zeros, n < sizeof zeros ? (size_t)n : sizeof zeros);
    }
}

void section_end(SectionWriter *w) {
    PlanSection *s = current(w);
    s->bytes = w->at - s->offset;
}

void section_add_text(SectionWriter *w, const char *name, const void *data,
                      size_t n) {
    SectionText text = {data ? data : "", n};
    add_entry(w, name, w->packed);
    current(w)->packed = 1;
    current(w)->bytes = n;
    current(w)->crc = (uint32_t)crc32_z(0, text.data, n);
    w->packed += n;
    vec_push(w->arena, &w->texts, text);
}

/* Compresses all texts with one window of up to WINDOW: most of a stage's
   text also stands in the text of the stage before. */
static void put_texts(SectionWriter *w) {
    enum { WINDOW = 27 };
    char buf[1 << 16];
    ZSTD_CCtx *z = ZSTD_createCCtx();
    if (!z) out_of_memory();
    ZSTD_CCtx_setParameter(z, ZSTD_c_enableLongDistanceMatching, 1);
    ZSTD_CCtx_setParameter(z, ZSTD_c_windowLog, WINDOW);
    ZSTD_CCtx_setPledgedSrcSize(z, w->packed);
    section_begin(w, PACKED);
    for (int i = 0; i < w->texts.len; i++) {
        ZSTD_inBuffer in = {w->texts.data[i].data, w->texts.data[i].n, 0};
        bool last = i + 1 == w->texts.len;
        size_t rest = 1;
        while (in.pos < in.size || (last && rest)) {
            ZSTD_outBuffer out = {buf, sizeof buf, 0};
            rest = ZSTD_compressStream2(z, &out, &in,
                                        last ? ZSTD_e_end : ZSTD_e_continue);
            if (ZSTD_getErrorCode(rest) == ZSTD_error_memory_allocation)
                out_of_memory();
            ASSERT(!ZSTD_isError(rest));
            section_put(w, buf, out.pos);
        }
    }
    section_end(w);
    ZSTD_freeCCtx(z);
}

bool section_finish(SectionWriter *w, uint64_t id) {
    PlanTail tail = {.id = id, .magic = AMPC_TAIL_MAGIC};
    if (w->texts.len) put_texts(w);
    put_zeros(w, (ALIGN - w->at % ALIGN) % ALIGN);
    tail.directory = w->at;
    tail.nsection = (uint64_t)w->dir.len;
    put(w, w->dir.data, (size_t)w->dir.len * sizeof *w->dir.data);
    put(w, &tail, sizeof tail);
    return !w->failed;
}

/* ---- reading ------------------------------------------------------------- */

static Status bad_module(Diag *d, const char *path, const char *what) {
    return fail(d, (Loc){.file = intern(path)}, "%s", what);
}

static const char no_module[] =
    "not a module made by ampc; ampc MODEL -o OUT.so makes one";

static bool read_at(FILE *f, uint64_t offset, void *buf, size_t n) {
    return fseeko(f, (off_t)offset, SEEK_SET) == 0 && fread(buf, 1, n, f) == n;
}

static Status read_directory(Arena *a, Diag *d, uint64_t size, SectionFile *f) {
    PlanTail t;
    if (!size) return bad_module(d, f->path, "the file is empty, not a module");
    if (size < sizeof t || !read_at(f->file, size - sizeof t, &t, sizeof t) ||
        t.magic != AMPC_TAIL_MAGIC)
        return bad_module(d, f->path, no_module);
    uint64_t room = size - sizeof t;
    if (t.nsection > MAX_SECTIONS || t.directory > room ||
        t.nsection * sizeof(PlanSection) > room - t.directory)
        return bad_module(d, f->path, "damaged module: its directory");
    f->n = (int)t.nsection;
    f->dir = NEW_ARRAY(a, PlanSection, f->n + 1);
    if (!read_at(f->file, t.directory, f->dir, (size_t)f->n * sizeof *f->dir))
        return bad_module(d, f->path, "damaged module: its directory");
    for (int i = 0; i < f->n; i++) {
        PlanSection *s = &f->dir[i];
        s->name[sizeof s->name - 1] = 0;
        if (!s->packed &&
            (s->offset > t.directory || s->bytes > t.directory - s->offset))
            return bad_module(d, f->path, "damaged module: its directory");
    }
    return OK;
}

Status sections_open(Arena *a, Diag *d, const char *path, SectionFile *f) {
    struct stat st;
    /* O_NONBLOCK: opening a named pipe must not block */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *f = (SectionFile){.path = path, .file = fd < 0 ? NULL : fdopen(fd, "rb")};
    if (!f->file || fstat(fd, &st) != 0) {
        bad_module(d, path, strerror(errno));
        if (fd >= 0 && !f->file) close(fd);
        sections_close(f);
        return ERR_USER;
    }
    Status s = S_ISREG(st.st_mode)
                   ? read_directory(a, d, (uint64_t)st.st_size, f)
                   : bad_module(d, path, no_module);
    if (s != OK) sections_close(f);
    return s;
}

void sections_close(SectionFile *f) {
    if (f->file) fclose(f->file);
    f->file = NULL;
}

const PlanSection *sections_find(const SectionFile *f, const char *name) {
    for (int i = 0; i < f->n; i++)
        if (!strcmp(f->dir[i].name, name)) return &f->dir[i];
    return NULL;
}

/* Unpacks at most `most` bytes of the file into `text` and drops the bytes
   before section s; false if the data are damaged. */
static bool unpack(FILE *file, uint64_t most, const PlanSection *s,
                   ZSTD_DCtx *z, StrBuf *text) {
    char stored[1 << 14], buf[1 << 16];
    uint64_t at = 0, end = s->offset + s->bytes;
    while (at < end) {
        size_t n = most < sizeof stored ? (size_t)most : sizeof stored;
        ZSTD_inBuffer in = {stored, n, 0};
        if (n == 0 || fread(stored, 1, n, file) != n) return false;
        most -= n;
        for (bool full = true; at < end && (in.pos < in.size || full);) {
            ZSTD_outBuffer out = {buf, sizeof buf, 0};
            size_t rc = ZSTD_decompressStream(z, &out, &in);
            if (ZSTD_isError(rc)) return false;
            full = out.pos == out.size;
            uint64_t from = at > s->offset ? at : s->offset;
            at += out.pos;
            uint64_t to = at < end ? at : end;
            if (from < to)
                sb_putn(text, buf + (from - (at - out.pos)),
                        (size_t)(to - from));
            if (rc == 0) break; /* the frame's end */
        }
    }
    return true;
}

static Status read_packed(Arena *a, Diag *d, const SectionFile *f,
                          const PlanSection *s, char **data) {
    const PlanSection *frame = sections_find(f, PACKED);
    StrBuf text = {0};
    if (!frame || frame->packed || s->bytes > UINT64_MAX - s->offset ||
        fseeko(f->file, (off_t)frame->offset, SEEK_SET) != 0)
        return bad_module(d, f->path, "damaged module: its packed texts");
    ZSTD_DCtx *z = ZSTD_createDCtx();
    if (!z) out_of_memory();
    bool good = unpack(f->file, frame->bytes, s, z, &text) &&
                crc32_z(0, (const Bytef *)text.data, text.len) == s->crc;
    ZSTD_freeDCtx(z);
    if (good) {
        *data = arena_alloc(a, text.len + 1);
        memcpy(*data, text.data ? text.data : "", text.len);
    }
    sb_free(&text);
    return good ? OK : bad_module(d, f->path, "damaged module: a packed text");
}

Status sections_read(Arena *a, Diag *d, const SectionFile *f,
                     const PlanSection *s, char **data, size_t *n) {
    *n = (size_t)s->bytes;
    if (s->packed) return read_packed(a, d, f, s, data);
    *data = arena_alloc(a, (size_t)s->bytes + 1);
    if (!read_at(f->file, s->offset, *data, (size_t)s->bytes))
        return bad_module(d, f->path, "damaged module: it is too short");
    if (crc32_z(0, (const Bytef *)*data, s->bytes) != s->crc)
        return bad_module(d, f->path, "damaged module: a section's checksum");
    return OK;
}
