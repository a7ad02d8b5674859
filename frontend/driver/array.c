/* array.c: see array.h. */
#define _GNU_SOURCE
#include "frontend/driver/array.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

/* Arrays up to KEPT bytes stay in memory; others pass through PART bytes. */
enum { KEPT = 16 << 20, PART = 1 << 20 };

const ArrayType array_types[ARRAY_TYPES] = {
    [AMPC_DTYPE_BOOL] = {"bool", "b1", 1, 0},
    [AMPC_DTYPE_U8] = {"u8", "u1", 1, 0x08},
    [AMPC_DTYPE_I8] = {"i8", "i1", 1, 0x09},
    [AMPC_DTYPE_U16] = {"u16", "u2", 2, 0},
    [AMPC_DTYPE_I16] = {"i16", "i2", 2, 0x0b},
    [AMPC_DTYPE_U32] = {"u32", "u4", 4, 0},
    [AMPC_DTYPE_I32] = {"i32", "i4", 4, 0x0c},
    [AMPC_DTYPE_U64] = {"u64", "u8", 8, 0},
    [AMPC_DTYPE_I64] = {"i64", "i8", 8, 0},
    [AMPC_DTYPE_F16] = {"f16", "f2", 2, 0},
    [AMPC_DTYPE_BF16] = {"bf16", "V2", 2, 0},
    [AMPC_DTYPE_F32] = {"f32", "f4", 4, 0x0d},
    [AMPC_DTYPE_F64] = {"f64", "f8", 8, 0x0e},
};

static const ArrayFormat *const formats[] = {&npy_format, &idx_format};
enum { FORMATS = sizeof formats / sizeof *formats };

/* ---- bytes of a file ----------------------------------------------------- */

/* A file from its beginning, unpacked if it is packed. */
typedef struct Source {
    Diag *d;
    const char *path;
    int fd;
    uint64_t size; /* of the file as it is */
    gzFile gz;     /* NULL: plain */
} Source;

static Status bad(const Source *s, const char *what) {
    return fail(s->d, (Loc){.file = s->path}, "%s", what);
}

static Status source_errno(const Source *s) { return bad(s, strerror(errno)); }

static Status gz_failed(const Source *s) {
    int e = Z_OK;
    gzerror(s->gz, &e);
    if (e == Z_MEM_ERROR) return bad(s, "out of memory");
    if (e == Z_ERRNO) return source_errno(s);
    return bad(s, "damaged or truncated gzip file");
}

/* The file may end before; *got tells. */
static Status take(const Source *s, void *out, size_t n, uint64_t at,
                   size_t *got) {
    char *p = out;
    *got = 0;
    while (*got < n) {
        size_t part = n - *got < PART ? n - *got : PART;
        ssize_t k = s->gz ? gzread(s->gz, p + *got, (unsigned)part)
                          : pread(s->fd, p + *got, part, (off_t)(at + *got));
        if (k < 0 && !s->gz && errno == EINTR) continue;
        if (k < 0) return s->gz ? gz_failed(s) : source_errno(s);
        if (k == 0) break;
        *got += (size_t)k;
    }
    int e = Z_OK;
    if (s->gz && *got < n) gzerror(s->gz, &e); /* cut off: reads end, too */
    return e == Z_OK || e == Z_STREAM_END ? OK : gz_failed(s);
}

static Status source_open(Source *s) {
    struct stat st;
    unsigned char magic[2] = {0};
    size_t got;
    /* O_NONBLOCK: a named pipe must not hang us */
    s->fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (s->fd < 0 || fstat(s->fd, &st) != 0) return source_errno(s);
    if (S_ISDIR(st.st_mode)) return bad(s, "is a folder");
    if (!S_ISREG(st.st_mode)) return bad(s, "is no regular file");
    s->size = (uint64_t)st.st_size;
    TRY(take(s, magic, sizeof magic, 0, &got));
    if (got < 2 || magic[0] != 0x1f || magic[1] != 0x8b) return OK;
    int fd = fcntl(s->fd, F_DUPFD_CLOEXEC, 0);
    s->gz = fd < 0 ? NULL : gzdopen(fd, "rb");
    if (s->gz) return OK;
    if (fd >= 0) close(fd);
    return bad(s, fd < 0 ? strerror(errno) : "out of memory");
}

static void source_close(Source *s) {
    if (s->gz) gzclose_r(s->gz);
    if (s->fd >= 0) close(s->fd);
}

/* ---- shape and order ----------------------------------------------------- */

/* Count and bytes; false when they cannot be. */
static bool array_size(Array *a) {
    int64_t n = 1, bytes;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i] < 0 || !mul_ok(n, a->dim[i], &n)) return false;
    if (!mul_ok(n, (int64_t)array_types[a->dtype].bytes, &bytes)) return false;
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

/* Nobody else can open it, and it goes with the process. */
static int nameless_file(void) {
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

static bool put(int fd, const char *p, size_t n, uint64_t at) {
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

static Status copy_failed(const Source *s) {
    return fail(s->d, (Loc){.file = s->path}, "its copy in $TMPDIR: %s",
                strerror(errno));
}

/* Replaces what the array lies in. */
static void adopt(Array *a, int fd) {
    if (a->fd >= 0) close(a->fd);
    a->fd = fd;
    a->at = 0;
}

/* ---- unpacking ----------------------------------------------------------- */

/* The rest of a packed file, which must be exactly the array. */
static Status unpack(const Source *s, const char *head, size_t nhead,
                     Array *a) {
    char *part = a->memory ? NULL : malloc(PART);
    int fd = a->memory ? -1 : nameless_file();
    size_t done = nhead < a->bytes ? nhead : a->bytes, got = 0;
    Status st = OK;
    if (!a->memory && !part) st = bad(s, "out of memory");
    if (!a->memory && fd < 0) st = copy_failed(s);
    if (st == OK && a->memory) memcpy(a->memory, head, done);
    if (st == OK && !a->memory && !put(fd, head, done, 0)) st = copy_failed(s);
    while (st == OK && done < a->bytes) {
        size_t n = a->bytes - done < PART ? a->bytes - done : PART;
        char *to = a->memory ? a->memory + done : part;
        st = take(s, to, n, 0, &got);
        if (st == OK && got < n) st = bad(s, "truncated: less than its shape");
        if (st == OK && !a->memory && !put(fd, part, n, done))
            st = copy_failed(s);
        done += n;
    }
    free(part);
    if (fd >= 0) adopt(a, fd);
    return st;
}

/* Nothing may follow, and the checksum at the end must be right. */
static Status check_end(const Source *s, size_t extra) {
    char more;
    size_t got = 0;
    if (!extra) TRY(take(s, &more, 1, 0, &got));
    return extra + got ? bad(s, "damaged: more data than its shape") : OK;
}

/* ---- column order -------------------------------------------------------- */

/* Rows [lo, hi) of the first axis, dense, from data in column order. */
static Status get_columns(Diag *d, const char *path, const Array *a, int64_t lo,
                          int64_t hi, char *line, char *out) {
    size_t size = array_types[a->dtype].bytes;
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

/* To row order: in memory, or as many rows at a time as KEPT bytes hold. */
static Status from_columns(const Source *s, Array *a) {
    size_t size = array_types[a->dtype].bytes;
    if (a->count == 0) return OK;
    int64_t rows = a->dim[0], per = a->count / rows;
    int64_t step = (int64_t)KEPT / (int64_t)size / per;
    if (a->memory) step = rows;
    if (step < 1) step = 1;
    char *line = malloc((size_t)step * size);
    char *block = malloc((size_t)(step * per) * size);
    int fd = a->memory ? -1 : nameless_file();
    Status st = line && block ? OK : bad(s, "out of memory");
    if (st == OK && !a->memory && fd < 0) st = copy_failed(s);
    for (int64_t lo = 0; lo < rows && st == OK; lo += step) {
        int64_t hi = rows - lo < step ? rows : lo + step;
        st = get_columns(s->d, s->path, a, lo, hi, line, block);
        if (st == OK && !a->memory &&
            !put(fd, block, (size_t)((hi - lo) * per) * size,
                 (uint64_t)(lo * per) * size))
            st = copy_failed(s);
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

static Status parse_head(const Source *s, const unsigned char *p, size_t n,
                         ArrayHead *h, Array *a) {
    const ArrayFormat *format = NULL;
    for (int i = 0; i < FORMATS && !format; i++)
        if (formats[i]->is(p, n)) format = formats[i];
    if (!format) return bad(s, "neither a .npy nor an IDX file");
    if (!format->parse(p, n, h)) return bad(s, h->why);
    a->dtype = h->dtype;
    a->rank = h->rank;
    memcpy(a->dim, h->dim, sizeof a->dim);
    a->at = h->data;
    a->swap = h->big;
    /* gzip packs at most 1032 to 1: a larger claim is a lie */
    uint64_t most = s->gz ? s->size * 1040 + 1024 : s->size;
    if (!array_size(a) || h->data > most || a->bytes > most - h->data)
        return bad(s, "truncated: less than its shape");
    if (!s->gz && a->bytes < s->size - h->data)
        return bad(s, "damaged: more data than its shape");
    return OK;
}

static Status load(Source *s, unsigned char *head, Array *a) {
    ArrayHead h = {.data = 0};
    size_t n, got;
    TRY(source_open(s));
    TRY(take(s, head, ARRAY_HEAD, 0, &n));
    TRY(parse_head(s, head, n, &h, a));
    if (a->bytes <= KEPT && !(a->memory = malloc(a->bytes ? a->bytes : 1)))
        return bad(s, "out of memory");
    if (s->gz) {
        size_t rest = n - h.data, extra = rest > a->bytes ? rest - a->bytes : 0;
        TRY(unpack(s, (char *)head + h.data, rest, a));
        TRY(check_end(s, extra));
    } else if (a->memory) {
        TRY(take(s, a->memory, a->bytes, a->at, &got));
        if (got < a->bytes) return bad(s, "became shorter");
    } else {
        a->fd = s->fd;
        s->fd = -1;
    }
    if (a->memory && a->swap) {
        swap_bytes(a->memory, a->bytes, array_types[a->dtype].bytes);
        a->swap = false;
    }
    return h.columns ? from_columns(s, a) : OK;
}

Status array_open(Diag *d, const char *path, Array *a) {
    Source s = {.d = d, .path = path, .fd = -1};
    unsigned char *head = malloc(ARRAY_HEAD);
    *a = (Array){.fd = -1};
    Status st = head ? load(&s, head, a) : bad(&s, "out of memory");
    free(head);
    source_close(&s);
    if (st != OK) array_close(a);
    return st;
}

Status array_get(Diag *d, const char *path, const Array *a, int64_t first,
                 int64_t n, void *out) {
    size_t size = array_types[a->dtype].bytes, bytes = (size_t)n * size, got;
    uint64_t at = (uint64_t)first * size;
    ASSERT(first >= 0 && n >= 0 && first <= a->count && n <= a->count - first);
    if (a->memory) {
        memcpy(out, a->memory + at, bytes);
        return OK;
    }
    Source s = {.d = d, .path = path, .fd = a->fd};
    TRY(take(&s, out, bytes, a->at + at, &got));
    if (got < bytes) return bad(&s, "became shorter");
    if (a->swap) swap_bytes(out, bytes, size);
    return OK;
}

void array_close(Array *a) {
    free(a->memory);
    if (a->fd >= 0) close(a->fd);
    *a = (Array){.fd = -1};
}
