/* safetensors.c: see safetensors.h. */
#define _GNU_SOURCE
#include "runtime/backend.h"
#include "runtime/outfile.h"
#include "runtime/safetensors.h"
#include "runtime/sections.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_MAX = 100 << 20, PART = 256 << 10 };

static const char *const st_dtypes[AMPC_NDTYPE] = {
    "BOOL", "U8",  "I8",  "U16",  "I16", "U32", "I32",
    "U64",  "I64", "F16", "BF16", "F32", "F64"};

/* ---- text that grows ----------------------------------------------------- */

static bool text_room(Text *t, size_t more) {
    if (t->failed) return false;
    if (t->cap - t->n > more) return true;
    size_t cap = t->cap ? t->cap * 2 : 4096;
    while (cap - t->n <= more) cap *= 2;
    char *p = mem_alloc(t->s, cap);
    if (!p) {
        t->failed = true;
        return false;
    }
    if (t->p) memcpy(p, t->p, t->n + 1);
    mem_free(t->s, t->p, t->cap);
    t->p = p;
    t->cap = cap;
    return true;
}

void text_put(Text *t, const char *p, size_t n) {
    if (!text_room(t, n)) return;
    memcpy(t->p + t->n, p, n);
    t->n += n;
    t->p[t->n] = 0;
}

void text_printf(Text *t, const char *fmt, ...) {
    char buf[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(buf, sizeof buf, fmt, ap);
    va_end(ap);
    if (n > 0) text_put(t, buf, (size_t)n < sizeof buf ? (size_t)n : 511);
}

void text_quoted(Text *t, const char *p) {
    text_put(t, "\"", 1);
    for (; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (c == '"' || c == '\\')
            text_printf(t, "\\%c", c);
        else if (c < 0x20)
            text_printf(t, "\\u%04x", c);
        else
            text_put(t, p, 1);
    }
    text_put(t, "\"", 1);
}

void text_free(Text *t) {
    mem_free(t->s, t->p, t->cap);
    t->p = NULL;
    t->n = t->cap = 0;
}

const char *st_name(const char *name) {
    return strcmp(name, "__metadata__") == 0 ? "ampc.__metadata__" : name;
}

/* ---- reading ------------------------------------------------------------- */

static ampc_status st_bad(ampc_session *s, StFile *f, const char *what) {
    f->torn = true;
    return session_fail(s, AMPC_ERR_FORMAT, "%s: %s", f->path, what);
}

static ampc_status st_errno(ampc_session *s, const char *path) {
    return session_fail(s, AMPC_ERR_FILE, "%s: %s", path, strerror(errno));
}

static ampc_status st_pread(ampc_session *s, StFile *f, void *out, uint64_t n,
                            uint64_t at) {
    char *p = out;
    while (n) {
        ssize_t got = pread(f->fd, p, n < (1 << 30) ? n : 1 << 30, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return st_errno(s, f->path);
        if (got == 0) return st_bad(s, f, "truncated");
        p += got;
        n -= (uint64_t)got;
        at += (uint64_t)got;
    }
    return AMPC_OK;
}

static bool st_shape(JsonSpan v, StTensor *t) {
    JsonSpan key, item;
    if (!json_is_array(v)) return false;
    t->rank = 0;
    for (JsonIter it = json_iter(v); json_next(&it, &key, &item);) {
        if (t->rank == AMPC_MAX_RANK || !json_int(item, &t->dim[t->rank]))
            return false;
        t->rank++;
    }
    return true;
}

static bool st_offsets(JsonSpan v, StTensor *t) {
    JsonSpan key, item;
    int64_t at[2] = {0, 0};
    int n = 0;
    if (!json_is_array(v)) return false;
    for (JsonIter it = json_iter(v); json_next(&it, &key, &item); n++)
        if (n == 2 || !json_int(item, &at[n])) return false;
    t->begin = (uint64_t)at[0];
    t->end = (uint64_t)at[1];
    return n == 2 && at[0] >= 0 && at[1] >= at[0];
}

static bool st_entry(JsonSpan name, JsonSpan v, StTensor *t) {
    JsonSpan dtype, shape, offsets;
    uint64_t bytes;
    t->name = name;
    if (!json_get(v, "dtype", &dtype) || !json_get(v, "shape", &shape) ||
        !json_get(v, "data_offsets", &offsets))
        return false;
    t->dtype = 0;
    while (t->dtype < AMPC_NDTYPE && !json_equals(dtype, st_dtypes[t->dtype]))
        t->dtype++;
    return t->dtype < AMPC_NDTYPE && st_shape(shape, t) &&
           st_offsets(offsets, t) &&
           dense_bytes(t->dtype, t->rank, t->dim, &bytes) &&
           bytes == t->end - t->begin;
}

static ampc_status st_bad_entry(ampc_session *s, StFile *f, JsonSpan key) {
    f->torn = true;
    return session_fail(s, AMPC_ERR_FORMAT, "%s: malformed entry %.*s", f->path,
                        (int)(key.n < 100 ? key.n : 100), key.p);
}

static int st_by_begin(const void *a, const void *b) {
    const StTensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static ampc_status st_header(ampc_session *s, StFile *f) {
    JsonSpan root, key, v;
    size_t n = 0;
    if (!json_parse(f->header, f->header_bytes, &root) || !json_is_object(root))
        return st_bad(s, f, "the header is not JSON");
    for (JsonIter it = json_iter(root); json_next(&it, &key, &v);) n++;
    f->tensors = mem_alloc(s, n * sizeof *f->tensors);
    if (!f->tensors)
        return session_fail(s, AMPC_ERR_MEMORY, "%s: out of memory", f->path);
    f->ntensor = n; /* st_close frees by it; counted anew below */
    size_t used = 0;
    for (JsonIter it = json_iter(root); json_next(&it, &key, &v);) {
        if (json_equals(key, "__metadata__") && json_is_object(v))
            f->metadata = v;
        else if (!st_entry(key, v, &f->tensors[used++]))
            return st_bad_entry(s, f, key);
    }
    memset(f->tensors + used, 0, (n - used) * sizeof *f->tensors);
    qsort(f->tensors, used, sizeof *f->tensors, st_by_begin);
    uint64_t at = 0;
    for (size_t i = 0; i < used; at = f->tensors[i++].end)
        if (f->tensors[i].begin != at)
            return st_bad(s, f, "tensors overlap or leave gaps");
    if (at != f->size - f->data)
        return st_bad(s, f,
                      at > f->size - f->data ? "truncated"
                                             : "more data than tensors");
    return AMPC_OK;
}

static ampc_status st_read_header(ampc_session *s, StFile *f) {
    uint64_t n = 0;
    struct stat st;
    if (fstat(f->fd, &st) != 0) return st_errno(s, f->path);
    if (!S_ISREG(st.st_mode))
        return session_fail(s, AMPC_ERR_FORMAT, "%s: not a regular file",
                            f->path);
    f->size = (uint64_t)st.st_size;
    if (f->size < 10) return st_bad(s, f, "not a safetensors file");
    ampc_status status = st_pread(s, f, &n, 8, 0);
    if (status != AMPC_OK) return status;
    if (n < 2 || n > HEADER_MAX) return st_bad(s, f, "not a safetensors file");
    if (n > f->size - 8)
        return st_bad(s, f, "truncated, or not a safetensors file");
    f->data = 8 + n;
    f->header = mem_alloc(s, n);
    if (!f->header)
        return session_fail(s, AMPC_ERR_MEMORY, "%s: out of memory", f->path);
    f->header_bytes = n;
    status = st_pread(s, f, f->header, n, 8);
    return status == AMPC_OK ? st_header(s, f) : status;
}

ampc_status st_open(ampc_session *s, const char *path, StFile *f) {
    *f = (StFile){.path = path};
    /* O_NONBLOCK: a named pipe must not hang us. */
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    f->torn = f->fd < 0 && errno == ENOENT;
    if (f->fd < 0) return st_errno(s, path);
    ampc_status status = st_read_header(s, f);
    if (status != AMPC_OK) st_close(s, f);
    return status;
}

void st_close(ampc_session *s, StFile *f) {
    if (f->fd >= 0) close(f->fd);
    mem_free(s, f->header, f->header_bytes);
    mem_free(s, f->tensors, f->ntensor * sizeof *f->tensors);
    *f = (StFile){.fd = -1, .torn = f->torn};
}

/* ---- checksum ------------------------------------------------------------ */

enum { CRC_DIGITS = 8 };
#define CRC_KEY "ampc.crc32"

/* A CRC and room for what it is taken of. */
typedef struct Summed {
    Crc crc;
    char part[PART];
} Summed;

/* Of the whole file; its own digits, at `digits`, count as zeros (0: none). */
static ampc_status st_sum(ampc_session *s, StFile *f, Summed *sum,
                          uint64_t digits, uint32_t *crc) {
    *crc = 0;
    for (uint64_t at = 0; at < f->size; at += PART) {
        uint64_t n = f->size - at < PART ? f->size - at : PART;
        ampc_status status = st_pread(s, f, sum->part, n, at);
        if (status != AMPC_OK) return status;
        for (uint64_t i = digits; digits && i < digits + CRC_DIGITS; i++)
            if (i >= at && i < at + n) sum->part[i - at] = '0';
        *crc = crc_add(&sum->crc, *crc, (uint8_t *)sum->part, n);
    }
    return AMPC_OK;
}

ampc_status st_verify(ampc_session *s, StFile *f, bool *there) {
    JsonSpan v;
    char want[CRC_DIGITS + 1], got[CRC_DIGITS + 1];
    uint32_t crc;
    *there = f->metadata.n && json_get(f->metadata, CRC_KEY, &v);
    if (!*there) return AMPC_OK;
    if (v.n != CRC_DIGITS + 2 || json_text(v, want, sizeof want) != CRC_DIGITS)
        return st_bad(s, f, "damaged: its checksum is malformed");
    Summed *sum = mem_alloc(s, sizeof *sum);
    if (!sum)
        return session_fail(s, AMPC_ERR_MEMORY, "%s: out of memory", f->path);
    crc_init(&sum->crc);
    uint64_t digits = 8 + (uint64_t)(v.p + 1 - f->header);
    ampc_status status = st_sum(s, f, sum, digits, &crc);
    mem_free(s, sum, sizeof *sum);
    if (status != AMPC_OK) return status;
    snprintf(got, sizeof got, "%08x", (unsigned)crc);
    if (strcmp(got, want) == 0) return AMPC_OK;
    return st_bad(s, f, "damaged: its checksum is wrong");
}

ampc_status st_match(ampc_session *s, StFile *f, uint64_t bytes, uint32_t crc) {
    uint32_t got = 0;
    Summed *sum = mem_alloc(s, sizeof *sum);
    if (!sum)
        return session_fail(s, AMPC_ERR_MEMORY, "%s: out of memory", f->path);
    crc_init(&sum->crc);
    ampc_status status = st_sum(s, f, sum, 0, &got);
    mem_free(s, sum, sizeof *sum);
    if (status != AMPC_OK) return status;
    if (f->size == bytes && got == crc) return AMPC_OK;
    return st_bad(s, f,
                  "these are not the weights that the module was "
                  "compiled with");
}

const StTensor *st_find(const StFile *f, const char *name) {
    const StTensor *found = NULL;
    for (size_t i = 0; i < f->ntensor; i++) {
        if (!f->tensors[i].name.n ||
            !json_equals(f->tensors[i].name, st_name(name)))
            continue;
        if (found) return NULL; /* twice: which one would be meant? */
        found = &f->tensors[i];
    }
    return found;
}

ampc_status st_read(ampc_session *s, StFile *f, const StTensor *t, void *out) {
    return st_pread(s, f, out, t->end - t->begin, f->data + t->begin);
}

ampc_status st_read_var(ampc_session *s, StFile *f, const StTensor *t,
                        uint32_t var) {
    ampc_status status = AMPC_OK;
    uint64_t bytes = t->end - t->begin;
    char *part = mem_alloc(s, PART);
    if (!part)
        return session_fail(s, AMPC_ERR_MEMORY, "%s: out of memory", f->path);
    for (uint64_t at = 0; at < bytes && status == AMPC_OK; at += PART) {
        uint64_t n = bytes - at < PART ? bytes - at : PART;
        status = st_pread(s, f, part, n, f->data + t->begin + at);
        if (status == AMPC_OK)
            status = s->backend->put(s, var_ref(var, at), part, n);
    }
    mem_free(s, part, PART);
    return status;
}

/* ---- writing ------------------------------------------------------------- */

static void st_put_header(Text *t, const StItem *items, size_t n,
                          const char *metadata) {
    unsigned long long at = 0;
    text_printf(t, "{\"__metadata__\":{\"" CRC_KEY "\":\"%0*d\",\"ampc\":",
                CRC_DIGITS, 0);
    text_quoted(t, metadata);
    text_printf(t, "}");
    for (size_t i = 0; i < n; i++) {
        text_printf(t, ",");
        text_quoted(t, st_name(items[i].name));
        text_printf(t, ":{\"dtype\":\"%s\",\"shape\":[",
                    st_dtypes[items[i].dtype]);
        for (uint32_t k = 0; k < items[i].rank; k++)
            text_printf(t, "%s%lld", k ? "," : "", (long long)items[i].dim[k]);
        text_printf(t, "],\"data_offsets\":[%llu,%llu]}", at,
                    at + (unsigned long long)items[i].bytes);
        at += items[i].bytes;
    }
    text_printf(t, "}");
    while (t->n % 8 && !t->failed) text_put(t, " ", 1);
}

/* A file being written, and its CRC so far. */
typedef struct StOut {
    ampc_session *s;
    const char *path;
    Summed *sum;
    uint32_t crc;
    OutFile file;
} StOut;

static ampc_status out_failed(StOut *o) {
    return session_fail(o->s, AMPC_ERR_FILE, "%s: %s", o->path, o->file.why);
}

static ampc_status out_put(StOut *o, const void *data, uint64_t n) {
    if (!outfile_write(&o->file, data, n)) return out_failed(o);
    o->crc = crc_add(&o->sum->crc, o->crc, data, n);
    return AMPC_OK;
}

static ampc_status out_item(StOut *o, const StItem *item) {
    for (uint64_t at = 0; at < item->bytes; at += PART) {
        uint64_t n = item->bytes - at < PART ? item->bytes - at : PART;
        ampc_status status =
            o->s->backend->get(o->s, var_ref(item->var, at), o->sum->part, n);
        if (status == AMPC_OK) status = out_put(o, o->sum->part, n);
        if (status != AMPC_OK) return status;
    }
    return AMPC_OK;
}

/* The checksum is known last and stands first. */
static ampc_status out_digits(StOut *o, const Text *header) {
    char digits[CRC_DIGITS + 1];
    const char *key = strstr(header->p, CRC_KEY);
    size_t at = 8 + (size_t)(key - header->p) + sizeof CRC_KEY + 2;
    snprintf(digits, sizeof digits, "%08x", (unsigned)o->crc);
    return outfile_patch(&o->file, digits, CRC_DIGITS, at) ? AMPC_OK
                                                           : out_failed(o);
}

static ampc_status out_file(StOut *o, const Text *header, const StItem *items,
                            size_t n) {
    uint64_t bytes = header->n;
    crc_init(&o->sum->crc);
    if (!outfile_open(&o->file, o->path, 0666, NULL, NULL))
        return out_failed(o);
    o->file.keep = ST_PREVIOUS;
    ampc_status status = out_put(o, &bytes, 8);
    if (status == AMPC_OK) status = out_put(o, header->p, header->n);
    for (size_t i = 0; i < n && status == AMPC_OK; i++)
        status = out_item(o, &items[i]);
    if (status == AMPC_OK) status = out_digits(o, header);
    if (status == AMPC_OK && !outfile_commit(&o->file)) status = out_failed(o);
    return status;
}

ampc_status st_write(ampc_session *s, const char *path, const StItem *items,
                     size_t nitem, const char *metadata) {
    Text header = {.s = s};
    StOut o = {.s = s, .path = path, .sum = mem_alloc(s, sizeof *o.sum)};
    ampc_status status;
    st_put_header(&header, items, nitem, metadata);
    if (!o.sum || header.failed)
        status = session_fail(s, AMPC_ERR_MEMORY, "%s: out of memory", path);
    else
        status = out_file(&o, &header, items, nitem);
    outfile_abort(&o.file);
    text_free(&header);
    mem_free(s, o.sum, sizeof *o.sum);
    return status;
}
