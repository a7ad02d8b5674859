/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.c: see safetensors.h. */
#define _GNU_SOURCE
#include "runtime/files/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/crc.h"
#include "runtime/base/try.h"
#include "runtime/program/dtype.h"
#include "runtime/files/infile.h"

#include "runtime/base/glibc.h" /* last */

enum { HEADER_MAX = 100 << 20, SUM_PART = 256 << 10, ZIP_MAGIC = 0x04034b50 };

#define RESERVED "__metadata__" /* the only name that the format reserves */

const char *st_name_in_file(const char *name) {
    return strcmp(name, RESERVED) == 0 ? "ampc." RESERVED : name;
}

const char *st_name_of_tensor(const char *name) {
    return strcmp(name, "ampc." RESERVED) == 0 ? RESERVED : name;
}

/* ---- reading ------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static ampc_status
st_fail(StFile *f, ampc_status status, const char *fmt, ...) {
    va_list ap;
    int n = snprintf(f->why, sizeof f->why, "%.500s: ", f->path);
    va_start(ap, fmt);
    vsnprintf(f->why + n, sizeof f->why - (size_t)n, fmt, ap);
    va_end(ap);
    return status;
}

static ampc_status st_bad(StFile *f, const char *what) {
    f->torn = true;
    return st_fail(f, AMPC_ERR_FORMAT, "%s", what);
}

static ampc_status st_errno(StFile *f) {
    return st_fail(f, AMPC_ERR_FILE, "%s", strerror(errno));
}

static ampc_status st_memory(StFile *f) {
    return st_fail(f, AMPC_ERR_MEMORY, "out of memory");
}

static void *st_alloc(const StFile *f, size_t bytes) {
    return f->mem->alloc(f->mem->alloc_ctx, bytes ? bytes : 1, 64);
}

static void st_free(const StFile *f, void *p, size_t bytes) {
    if (p) f->mem->free(f->mem->alloc_ctx, p, bytes ? bytes : 1);
}

static ampc_status st_pread(StFile *f, void *out, uint64_t n, uint64_t at) {
    int64_t got = infile_read(f->fd, out, n, at);
    if (got < 0) return st_errno(f);
    return (uint64_t)got < n ? st_bad(f, "truncated") : AMPC_OK;
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

/* A tensor that the format allows and ampc does not, with another dtype
   (F8_E4M3, F4, C64) or more axes: it is an error only if it is needed. */
static bool st_foreign(JsonSpan dtype, JsonSpan shape, StTensor *t) {
    JsonSpan key, item;
    int64_t n;
    if (!json_is_string(dtype)) return false;
    for (JsonIter it = json_iter(shape); json_next(&it, &key, &item);)
        if (!json_int(item, &n) || n < 0) return false;
    t->foreign = true;
    t->dtype_text = dtype;
    t->shape_text = shape;
    t->dtype = t->rank = 0;
    return true;
}

static bool st_entry(JsonSpan name, JsonSpan v, StTensor *t) {
    JsonSpan dtype, shape, offsets;
    uint64_t bytes;
    *t = (StTensor){.name = name};
    if (!json_get(v, "dtype", &dtype) || !json_get(v, "shape", &shape) ||
        !json_get(v, "data_offsets", &offsets))
        return false;
    while (t->dtype < AMPC_NDTYPE &&
           !json_equals(dtype, dtype_info[t->dtype].safetensors))
        t->dtype++;
    if (!json_is_array(shape) || !st_offsets(offsets, t)) return false;
    if (t->dtype == AMPC_NDTYPE || !st_shape(shape, t))
        return st_foreign(dtype, shape, t);
    return dense_bytes(t->dtype, t->rank, t->dim, &bytes) &&
           bytes == t->end - t->begin;
}

static ampc_status st_bad_entry(StFile *f, JsonSpan key) {
    f->torn = true;
    return st_fail(f, AMPC_ERR_FORMAT, "malformed entry %.*s",
                   (int)(key.n < 100 ? key.n : 100), key.p);
}

static int st_by_begin(const void *a, const void *b) {
    const StTensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static ampc_status st_header(StFile *f) {
    JsonSpan root, key, v;
    size_t n = 0;
    if (!json_parse(f->header, f->header_bytes, &root) || !json_is_object(root))
        return st_bad(f, "the header is not JSON");
    if (!json_is_utf8(f->header, f->header_bytes))
        return st_bad(f, "the header is not UTF-8 text");
    for (JsonIter it = json_iter(root); json_next(&it, &key, &v);) n++;
    f->tensors = st_alloc(f, n * sizeof *f->tensors);
    if (!f->tensors) return st_memory(f);
    f->ntensor = n; /* st_close frees by this number; it is counted again
                       below */
    size_t used = 0;
    for (JsonIter it = json_iter(root); json_next(&it, &key, &v);) {
        if (json_equals(key, "__metadata__") && json_is_object(v))
            f->metadata = v;
        else if (!st_entry(key, v, &f->tensors[used++]))
            return st_bad_entry(f, key);
    }
    memset(f->tensors + used, 0, (n - used) * sizeof *f->tensors);
    qsort(f->tensors, used, sizeof *f->tensors, st_by_begin);
    uint64_t at = 0;
    for (size_t i = 0; i < used; at = f->tensors[i++].end)
        if (f->tensors[i].begin != at)
            return st_bad(f, "tensors overlap or leave gaps");
    if (at != f->size - f->data)
        return st_bad(f, at > f->size - f->data ? "truncated"
                                                : "more data than tensors");
    return AMPC_OK;
}

static ampc_status st_read_header(StFile *f) {
    uint64_t n = 0;
    struct stat st;
    if (fstat(f->fd, &st) != 0) return st_errno(f);
    if (!S_ISREG(st.st_mode))
        return st_fail(f, AMPC_ERR_FORMAT,
                       S_ISDIR(st.st_mode) ? "is a folder"
                                           : "not a regular file");
    f->size = (uint64_t)st.st_size;
    if (!f->size) return st_bad(f, "the file is empty");
    const char *instead = infile_instead_of(f->fd);
    if (instead) return st_fail(f, AMPC_ERR_FORMAT, "%s", instead);
    if (f->size < 10) return st_bad(f, "not a safetensors file");
    TRY(st_pread(f, &n, 8, 0));
    f->json = (n & 0xff) == '{' && n > HEADER_MAX;
    if ((n & 0xffffffff) == ZIP_MAGIC)
        return st_bad(f, "a zip file, as torch.save writes: make it one of "
                         "safetensors with safetensors.torch.save_file("
                         "model.state_dict(), FILE)");
    if (n < 2 || n > HEADER_MAX) return st_bad(f, "not a safetensors file");
    if (n > f->size - 8)
        return st_bad(f, "truncated, or not a safetensors file");
    f->data = 8 + n;
    f->header = st_alloc(f, n);
    if (!f->header) return st_memory(f);
    f->header_bytes = n;
    ampc_status status = st_pread(f, f->header, n, 8);
    return status == AMPC_OK ? st_header(f) : status;
}

ampc_status st_open(const ampc_options *mem, const char *path, StFile *f) {
    *f = (StFile){.path = path, .mem = mem};
    /* O_NONBLOCK: opening a named pipe must not block. */
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    f->torn = f->fd < 0 && errno == ENOENT;
    if (f->fd < 0) return st_errno(f);
    ampc_status status = st_read_header(f);
    if (status != AMPC_OK) st_close(f);
    return status;
}

void st_close(StFile *f) {
    if (f->fd >= 0) close(f->fd);
    st_free(f, f->header, f->header_bytes);
    st_free(f, f->tensors, f->ntensor * sizeof *f->tensors);
    f->fd = -1;
    f->header = NULL;
    f->tensors = NULL;
    f->ntensor = 0;
}

/* ---- checksum ------------------------------------------------------------ */

/* Buffer for computing a CRC. */
typedef struct Summed {
    char part[SUM_PART];
} Summed;

/* CRC of the whole file; its own digits, at `digits`, count as zeros (0: it
   has none). */
static ampc_status st_sum(StFile *f, Summed *sum, uint64_t digits,
                          uint32_t *crc) {
    *crc = 0;
    for (uint64_t at = 0; at < f->size; at += SUM_PART) {
        uint64_t n = f->size - at < SUM_PART ? f->size - at : SUM_PART;
        TRY(st_pread(f, sum->part, n, at));
        for (uint64_t i = digits; digits && i < digits + ST_CRC_DIGITS; i++)
            if (i >= at && i < at + n) sum->part[i - at] = '0';
        *crc = crc_add(*crc, (uint8_t *)sum->part, n);
    }
    return AMPC_OK;
}

ampc_status st_verify(StFile *f, bool *there) {
    JsonSpan v;
    char want[ST_CRC_DIGITS + 1], got[ST_CRC_DIGITS + 1];
    uint32_t crc;
    *there = f->metadata.n && json_get(f->metadata, ST_CRC_KEY, &v);
    if (!*there) return AMPC_OK;
    if (v.n != ST_CRC_DIGITS + 2 ||
        json_text(v, want, sizeof want) != ST_CRC_DIGITS)
        return st_bad(f, "damaged: its checksum is malformed");
    Summed *sum = st_alloc(f, sizeof *sum);
    if (!sum) return st_memory(f);
    uint64_t digits = 8 + (uint64_t)(v.p + 1 - f->header);
    ampc_status status = st_sum(f, sum, digits, &crc);
    st_free(f, sum, sizeof *sum);
    if (status != AMPC_OK) return status;
    snprintf(got, sizeof got, "%08x", (unsigned)crc);
    if (strcmp(got, want) == 0) return AMPC_OK;
    return st_bad(f, "damaged: its checksum is wrong");
}

ampc_status st_match(StFile *f, uint64_t bytes, uint32_t crc) {
    uint32_t got = 0;
    Summed *sum = st_alloc(f, sizeof *sum);
    if (!sum) return st_memory(f);
    ampc_status status = st_sum(f, sum, 0, &got);
    st_free(f, sum, sizeof *sum);
    if (status != AMPC_OK) return status;
    if (f->size == bytes && got == crc) return AMPC_OK;
    return st_bad(f, "these are not the weights that the module was "
                     "compiled with");
}

const StTensor *st_find(const StFile *f, const char *name) {
    const StTensor *found = NULL;
    for (size_t i = 0; i < f->ntensor; i++) {
        if (!f->tensors[i].name.n ||
            !json_equals(f->tensors[i].name, st_name_in_file(name)))
            continue;
        if (found) return NULL; /* twice: the name would be ambiguous */
        found = &f->tensors[i];
    }
    return found;
}

ampc_status st_read(StFile *f, const StTensor *t, uint64_t at, uint64_t n,
                    void *out) {
    if (at > t->end - t->begin || n > t->end - t->begin - at)
        return st_bad(f, "truncated");
    return st_pread(f, out, n, f->data + t->begin + at);
}
