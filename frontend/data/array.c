/* SPDX-License-Identifier: Apache-2.0 */
/* array.c: see array.h. */
#define _POSIX_C_SOURCE 200809L
#include "frontend/data/array.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frontend/data/foreign.h"

/* Arrays up to KEPT bytes stay in memory; others pass through PART bytes. */
enum { KEPT = 16 << 20, PART = 1 << 20 };

/* Formats recognised by content come first: a file name may be misleading. */
static const ArrayFormat *const formats[] = {
    &npy_format,    &npz_format,  &idx_format, &cifar_format, &tensors_format,
    &tokens_format, &text_format, &csv_format, &tsv_format};
enum { FORMATS = sizeof formats / sizeof *formats };

/* ---- shape and order ----------------------------------------------------- */

/* Computes count and bytes; false if they overflow. */
static bool array_size(Array *a) {
    int64_t n = 1, bytes;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i] < 0 || !mul_ok(n, a->dim[i], &n)) return false;
    if (!mul_ok(n, (int64_t)dtype_bytes((uint32_t)a->dtype), &bytes))
        return false;
    a->count = n;
    a->bytes = (size_t)bytes;
    return true;
}

static void swap_bytes(char *data, size_t bytes, size_t size) {
    for (char *p = data; p < data + bytes; p += size)
        for (size_t i = 0; i < size / 2; i++) {
            char c = p[i];
            p[i] = p[size - 1 - i];
            p[size - 1 - i] = c;
        }
}

/* ---- a copy on disk ------------------------------------------------------ */

/* Replaces the file that holds the array's data. */
static void adopt(Array *a, int fd) {
    if (a->fd >= 0) close(a->fd);
    a->fd = fd;
    a->at = 0;
}

/* ---- unpacking ----------------------------------------------------------- */

/* Reads the rest of a packed file, which must contain exactly the array. */
static Status array_unpack(const Source *s, const char *head, size_t nhead,
                           Array *a) {
    char *part = a->memory ? NULL : malloc(PART);
    int fd = a->memory ? -1 : source_copy();
    size_t done = nhead < a->bytes ? nhead : a->bytes, got = 0;
    Status st = OK;
    if (!a->memory && !part) st = source_bad(s, "out of memory");
    if (!a->memory && fd < 0) st = source_copy_failed(s);
    if (st == OK && a->memory) memcpy(a->memory, head, done);
    if (st == OK && !a->memory && !source_put(fd, head, done, 0))
        st = source_copy_failed(s);
    while (st == OK && done < a->bytes) {
        size_t n = a->bytes - done < PART ? a->bytes - done : PART;
        char *to = a->memory ? a->memory + done : part;
        st = source_take(s, to, n, 0, &got);
        if (st == OK && got < n)
            st = source_bad(s, "truncated: less than its shape");
        if (st == OK && !a->memory && !source_put(fd, part, n, done))
            st = source_copy_failed(s);
        done += n;
    }
    free(part);
    if (fd >= 0) adopt(a, fd);
    return st;
}

/* Nothing may follow, and the checksum at the end must match. */
static Status check_end(const Source *s, size_t extra) {
    char more;
    size_t got = 0;
    if (!extra) TRY(source_take(s, &more, 1, 0, &got));
    return extra + got ? source_bad(s, "damaged: more data than its shape")
                       : OK;
}

/* ---- column order -------------------------------------------------------- */

/* Copies rows [lo, hi) of the first axis, without gaps, from data in column
   order. */
static Status get_columns(Diag *d, const char *path, const Array *a, int64_t lo,
                          int64_t hi, char *line, char *out) {
    size_t size = dtype_bytes((uint32_t)a->dtype);
    int64_t rows = a->dim[0], per = a->count / rows;
    int64_t at[AMPC_RANK_LIMIT] = {0};
    for (int64_t k = 0; k < per; k++) {
        TRY(array_get(d, path, a, k * rows + lo, hi - lo, line));
        int64_t to = 0;
        for (int i = 1; i < a->rank; i++) to = to * a->dim[i] + at[i];
        for (int64_t r = 0; r < hi - lo; r++)
            memcpy(out + (size_t)(r * per + to) * size, line + (size_t)r * size,
                   size);
        for (int i = 1; i < a->rank && ++at[i] == a->dim[i]; i++) at[i] = 0;
    }
    return OK;
}

/* Converts to row order: in memory, or as many rows at a time as KEPT bytes
   hold. */
static Status from_columns(const Source *s, Array *a) {
    size_t size = dtype_bytes((uint32_t)a->dtype);
    if (a->count == 0) return OK;
    int64_t rows = a->dim[0], per = a->count / rows;
    int64_t step = (int64_t)KEPT / (int64_t)size / per;
    if (a->memory) step = rows;
    if (step < 1) step = 1;
    char *line = malloc((size_t)step * size);
    char *block = malloc((size_t)(step * per) * size);
    int fd = a->memory ? -1 : source_copy();
    Status st = line && block ? OK : source_bad(s, "out of memory");
    if (st == OK && !a->memory && fd < 0) st = source_copy_failed(s);
    for (int64_t lo = 0; lo < rows && st == OK; lo += step) {
        int64_t hi = rows - lo < step ? rows : lo + step;
        st = get_columns(s->d, s->path, a, lo, hi, line, block);
        if (st == OK && !a->memory &&
            !source_put(fd, block, (size_t)((hi - lo) * per) * size,
                        (uint64_t)(lo * per) * size))
            st = source_copy_failed(s);
    }
    free(line);
    if (a->memory) {
        free(a->memory);
        a->memory = block;
    } else {
        free(block);
        if (fd >= 0) adopt(a, fd);
    }
    a->swap = false;
    return st;
}

/* ---- open ---------------------------------------------------------------- */

bool has_end(const char *path, const char *end) {
    size_t n = strlen(path), k = end ? strlen(end) : 0;
    if (n > 3 && !strcmp(path + n - 3, ".gz")) n -= 3;
    return end && n >= k && !strncmp(path + n - k, end, k);
}

static Status unknown_format(const Source *s, const unsigned char *p,
                             size_t n) {
    StrBuf text = {0};
    if (!n) return source_bad(s, "the file is empty");
    if (!foreign_tell(p, n, s->path, &text)) {
        sb_puts(&text, "has no format that can be read: ");
        for (int i = 0; i < FORMATS; i++)
            sb_printf(&text, "%s%s", i ? ", " : "", formats[i]->name);
    }
    source_bad(s, "%s", text.data);
    sb_free(&text);
    return ERR_USER;
}

static const ArrayFormat *format_of(const char *path, const unsigned char *p,
                                    size_t n) {
    for (int i = 0; i < FORMATS; i++) {
        const ArrayFormat *f = formats[i];
        if (f->is ? f->is(p, n) : has_end(path, f->end)) return f;
    }
    return NULL;
}

/* A gzip file is read in order: bytes already examined are not read again. */
static Status parse_head(Source *s, const ArrayPick *pick, unsigned char *head,
                         size_t *n, ArrayHead *h) {
    TRY(source_begin(s, head, ARRAY_HEAD, n));
    const ArrayFormat *format = format_of(s->path, head, *n);
    if (!format) return unknown_format(s, head, *n);
    if (format->find) {
        h->head = head;
        h->head_bytes = *n;
        TRY(format->find(s, pick, h));
        if (h->found) return OK;
        TRY(source_take(s, head, ARRAY_HEAD, 0, n)); /* of the part */
        format = format_of("", head, *n);
        if (!format || !format->parse)
            return source_bad(s, "its part '%s' is not a .npy array", h->why);
    } else if (pick->part) {
        return source_bad(s, "a %s file has no parts (FILE:PART)",
                          format->name);
    }
    return format->parse(head, *n, h) ? OK : source_bad(s, "%s", h->why);
}

static Status check_size(const Source *s, const ArrayHead *h, Array *a) {
    uint64_t most = source_most(s);
    a->dtype = h->dtype;
    a->rank = h->rank;
    memcpy(a->dim, h->dim, sizeof a->dim);
    a->at = s->base + h->data;
    a->swap = h->big;
    a->windows = h->windows;
    if (!array_size(a) || h->data > most || a->bytes > most - h->data)
        return source_bad(s, "truncated: less than its shape");
    if (!s->packed && !h->windows && a->bytes < s->size - h->data)
        return source_bad(s, "damaged: more data than its shape");
    return OK;
}

/* Numbers of a text are written to a copy, which becomes the array. */
static Status adopt_copy(const Source *s, Array *a) {
    Source copy = {.d = s->d, .path = s->path, .fd = a->fd, .size = a->bytes};
    if (!a->memory) return OK;
    TRY(source_get(&copy, a->memory, a->bytes, 0));
    close(a->fd);
    a->fd = -1;
    return OK;
}

static Status array_load(Source *s, const ArrayPick *pick, unsigned char *head,
                         Array *a) {
    ArrayHead h = {.data = 0, .copy = -1};
    size_t n;
    TRY(source_open(s));
    Status st = parse_head(s, pick, head, &n, &h);
    a->fd = h.copy;
    TRY(st);
    if (a->fd < 0)
        TRY(check_size(s, &h, a));
    else {
        a->dtype = h.dtype;
        a->rank = h.rank;
        memcpy(a->dim, h.dim, sizeof a->dim);
        a->text = h.text;
        a->windows = h.windows;
        a->classes = h.classes;
        ASSERT(array_size(a));
    }
    if (a->bytes <= KEPT && !(a->memory = malloc(a->bytes ? a->bytes : 1)))
        return source_bad(s, "out of memory");
    if (a->fd >= 0) return adopt_copy(s, a);
    if (s->packed) {
        size_t rest = n - h.data, extra = rest > a->bytes ? rest - a->bytes : 0;
        TRY(array_unpack(s, (char *)head + h.data, rest, a));
        TRY(check_end(s, extra));
    } else if (a->memory) {
        size_t got;
        TRY(source_take(s, a->memory, a->bytes, h.data, &got));
        if (got < a->bytes) return source_bad(s, "became shorter");
    } else {
        a->fd = s->fd;
        s->fd = -1;
    }
    if (a->memory && a->swap) {
        swap_bytes(a->memory, a->bytes, dtype_bytes((uint32_t)a->dtype));
        a->swap = false;
    }
    return h.columns ? from_columns(s, a) : OK;
}

Status array_open(Diag *d, const char *path, const ArrayPick *pick, Array *a) {
    static const ArrayPick all = {.input = ""};
    Source s = {.d = d, .path = path, .fd = -1};
    unsigned char *head = malloc(ARRAY_HEAD);
    *a = (Array){.fd = -1};
    Status st = head ? array_load(&s, pick ? pick : &all, head, a)
                     : source_bad(&s, "out of memory");
    free(head);
    source_close(&s);
    if (st != OK) array_close(a);
    return st;
}

static Status parts_of(Source *s, unsigned char *head, ArrayParts *to) {
    ArrayHead h = {.head = head, .copy = -1};
    TRY(source_open(s));
    TRY(source_begin(s, head, ARRAY_HEAD, &h.head_bytes));
    const ArrayFormat *f = format_of(s->path, head, h.head_bytes);
    if (!f) return unknown_format(s, head, h.head_bytes);
    to->format = f->name;
    return f->parts ? f->parts(s, &h, to) : OK;
}

Status array_parts(Diag *d, const char *path, ArrayParts *to) {
    Source s = {.d = d, .path = path, .fd = -1};
    unsigned char *head = malloc(ARRAY_HEAD);
    Status st = head ? parts_of(&s, head, to) : source_bad(&s, "out of memory");
    free(head);
    source_close(&s);
    return st;
}

Status array_get(Diag *d, const char *path, const Array *a, int64_t first,
                 int64_t n, void *out) {
    size_t size = dtype_bytes((uint32_t)a->dtype), bytes = (size_t)n * size,
           got;
    uint64_t at = (uint64_t)first * size;
    ASSERT(first >= 0 && n >= 0 && first <= a->count && n <= a->count - first);
    if (a->memory) {
        memcpy(out, a->memory + at, bytes);
        return OK;
    }
    Source s = {.d = d, .path = path, .fd = a->fd, .size = UINT64_MAX};
    TRY(source_take(&s, out, bytes, a->at + at, &got));
    if (got < bytes) return source_bad(&s, "became shorter");
    if (a->swap) swap_bytes(out, bytes, size);
    return OK;
}

void array_close(Array *a) {
    classes_free(&a->classes);
    free(a->memory);
    if (a->fd >= 0) close(a->fd);
    *a = (Array){.fd = -1};
}
