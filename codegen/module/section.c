/* section.c: see section.h. */
#define _POSIX_C_SOURCE 200809L
#include "codegen/module/section.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { ALIGN = 64, MAX_SECTIONS = 4096 };

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

void section_begin(SectionWriter *w, const char *name) {
    PlanSection s = {.crc = (uint32_t)crc32(0, NULL, 0)};
    ASSERT(strlen(name) < sizeof s.name);
    strcpy(s.name, name);
    put_zeros(w, (ALIGN - w->at % ALIGN) % ALIGN);
    s.offset = w->at;
    vec_push(w->arena, &w->dir, s);
}

static PlanSection *current(SectionWriter *w) {
    return &w->dir.data[w->dir.len - 1];
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
    if (!s->zlib) s->raw = s->bytes;
}

/* Texts of the IR are most of what is packed: a tenth larger than at zlib's
   default, in half the time. */
enum { SECTION_LEVEL = 4 };

void section_add_zlib(SectionWriter *w, const char *name, const void *data,
                      size_t n) {
    uLongf packed = compressBound((uLong)n);
    Arena *a = arena_new(); /* the packed bytes are needed here only */
    Bytef *buf = arena_alloc(a, packed);
    int rc = compress2(buf, &packed, data ? data : (const Bytef *)"", (uLong)n,
                       SECTION_LEVEL);
    if (rc == Z_MEM_ERROR) out_of_memory();
    ASSERT(rc == Z_OK);
    section_begin(w, name);
    current(w)->zlib = 1;
    current(w)->raw = n;
    section_put(w, buf, packed);
    section_end(w);
    arena_free(a);
}

bool section_finish(SectionWriter *w, uint64_t id) {
    PlanTail tail = {.id = id, .magic = AMPC_TAIL_MAGIC};
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

static bool read_at(FILE *f, uint64_t offset, void *buf, size_t n) {
    return fseeko(f, (off_t)offset, SEEK_SET) == 0 && fread(buf, 1, n, f) == n;
}

static Status read_directory(Arena *a, Diag *d, uint64_t size, SectionFile *f) {
    PlanTail t;
    if (size < sizeof t || !read_at(f->file, size - sizeof t, &t, sizeof t) ||
        t.magic != AMPC_TAIL_MAGIC)
        return bad_module(d, f->path, "not a module made by ampc");
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
        if (s->offset > t.directory || s->bytes > t.directory - s->offset ||
            (!s->zlib && s->raw != s->bytes))
            return bad_module(d, f->path, "damaged module: its directory");
    }
    return OK;
}

Status sections_open(Arena *a, Diag *d, const char *path, SectionFile *f) {
    struct stat st;
    /* O_NONBLOCK: a named pipe must not hang us */
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
                   : bad_module(d, path, "not a module made by ampc");
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

Status sections_read(Arena *a, Diag *d, const SectionFile *f,
                     const PlanSection *s, char **data, size_t *n) {
    /* zlib packs at most 1032 to 1: a larger claim is a lie */
    if (s->zlib && s->raw / 1040 > s->bytes + 64)
        return bad_module(d, f->path, "damaged module: a section's size");
    char *stored = arena_alloc(a, (size_t)s->bytes + 1);
    *data = stored;
    *n = (size_t)s->raw;
    if (!read_at(f->file, s->offset, stored, (size_t)s->bytes))
        return bad_module(d, f->path, "damaged module: it is too short");
    if (crc32_z(crc32(0, NULL, 0), (const Bytef *)stored, s->bytes) != s->crc)
        return bad_module(d, f->path, "damaged module: a section's checksum");
    if (!s->zlib) return OK;
    uLongf raw = (uLongf)s->raw;
    *data = arena_alloc(a, (size_t)s->raw + 1);
    if (uncompress((Bytef *)*data, &raw, (const Bytef *)stored,
                   (uLong)s->bytes) != Z_OK ||
        raw != s->raw)
        return bad_module(d, f->path, "damaged module: a packed section");
    return OK;
}
