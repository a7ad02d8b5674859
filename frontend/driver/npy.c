/* npy.c: see npy.h.  Files are taken as hostile: every length is checked
   against what was read before memory is touched.                           */
#define _POSIX_C_SOURCE 200809L
#include "frontend/driver/npy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

typedef struct DtypeName {
    const char *name, *npy; /* npy without byte order; NULL: none           */
    size_t bytes;
    int idx; /* type byte of IDX; 0: none                                   */
} DtypeName;

static const DtypeName dtypes[] = {
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
enum { DTYPE_COUNT = sizeof dtypes / sizeof *dtypes };

size_t array_elem_bytes(int dtype) {
    return dtype >= 0 && dtype < DTYPE_COUNT ? dtypes[dtype].bytes : 0;
}

const char *array_dtype_name(int dtype) {
    return dtype >= 0 && dtype < DTYPE_COUNT ? dtypes[dtype].name : "?";
}

static Status bad(Diag *d, const char *path, const char *what) {
    return fail(d, (Loc){.file = path}, "%s", what);
}

/* ---- bytes of a file ----------------------------------------------------- */

static char *read_gzip(const char *path, size_t *n) {
    gzFile f = gzopen(path, "rb");
    size_t cap = 1 << 20, used = 0;
    char *p = f ? malloc(cap) : NULL;
    int got = 0;
    while (p &&
           (got = gzread(
                f, p + used,
                (unsigned)(cap - used > 1 << 28 ? 1 << 28 : cap - used))) > 0) {
        used += (size_t)got;
        if (used < cap) continue;
        char *more = realloc(p, cap *= 2);
        if (!more) free(p);
        p = more;
    }
    if (f && gzclose_r(f) != Z_OK) got = -1; /* a short file shows here */
    if (p && got < 0) {
        free(p);
        p = NULL;
        errno = EILSEQ;
    }
    *n = used;
    return p;
}

static char *read_any(Diag *d, const char *path, size_t *n) {
    unsigned char magic[2] = {0};
    FILE *f = fopen(path, "rb");
    size_t got = f ? fread(magic, 1, 2, f) : 0;
    if (f) fclose(f);
    bool gzip = got == 2 && magic[0] == 0x1f && magic[1] == 0x8b;
    char *p = NULL;
    if (f) p = gzip ? read_gzip(path, n) : read_file(path, n);
    if (!p)
        fail(d, (Loc){.file = path}, "%s",
             errno == EILSEQ ? "damaged or truncated gzip file"
                             : strerror(errno));
    return p;
}

/* ---- shape and byte order ------------------------------------------------ */

/* Fills count and bytes; false on overflow. */
static bool array_size(Array *a) {
    int64_t n = 1, bytes;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i] < 0 || !mul_ok(n, a->dim[i], &n)) return false;
    if (!mul_ok(n, (int64_t)dtypes[a->dtype].bytes, &bytes)) return false;
    a->count = n;
    a->bytes = (size_t)bytes;
    return true;
}

static void swap_bytes(Array *a) {
    size_t size = dtypes[a->dtype].bytes;
    for (char *p = a->data; p < a->data + a->bytes; p += size)
        for (size_t i = 0; i < size / 2; i++) {
            char c = p[i];
            p[i] = p[size - 1 - i];
            p[size - 1 - i] = c;
        }
}

/* First index fastest, to last index fastest. */
static bool from_fortran(Array *a) {
    size_t size = dtypes[a->dtype].bytes;
    int64_t at[AMPC_RANK_LIMIT] = {0};
    char *out = malloc(a->bytes ? a->bytes : 1);
    if (!out) return false;
    for (int64_t k = 0; k < a->count; k++) {
        int64_t to = 0;
        for (int i = 0; i < a->rank; i++) to = to * a->dim[i] + at[i];
        memcpy(out + (size_t)to * size, a->data + (size_t)k * size, size);
        for (int i = 0; i < a->rank && ++at[i] == a->dim[i]; i++) at[i] = 0;
    }
    free(a->memory);
    a->memory = a->data = out;
    return true;
}

/* ---- .npy ---------------------------------------------------------------- */

/* A cursor over the header, which is a Python dictionary. */
typedef struct Npy {
    const char *p, *end;
} Npy;

static bool npy_token(Npy *t, const char *w) {
    while (t->p < t->end && (*t->p == ' ' || *t->p == '\n')) t->p++;
    size_t n = strlen(w);
    if ((size_t)(t->end - t->p) < n || memcmp(t->p, w, n) != 0) return false;
    t->p += n;
    return true;
}

static bool npy_string(Npy *t, char *out, size_t cap) {
    char quote = npy_token(t, "'") ? '\'' : npy_token(t, "\"") ? '"' : 0;
    size_t n = 0;
    if (!quote) return false;
    while (t->p < t->end && *t->p != quote && n + 1 < cap) out[n++] = *t->p++;
    out[n] = 0;
    return t->p < t->end && *t->p++ == quote;
}

static bool npy_int(Npy *t, int64_t *out) {
    int64_t n = 0;
    npy_token(t, "");
    const char *from = t->p;
    for (; t->p < t->end && *t->p >= '0' && *t->p <= '9'; t->p++)
        if (!mul_ok(n, 10, &n) || !add_ok(n, *t->p - '0', &n)) return false;
    *out = n;
    return t->p > from;
}

static bool npy_shape(Npy *t, Array *a) {
    if (!npy_token(t, "(")) return false;
    a->rank = 0;
    while (!npy_token(t, ")")) {
        if (a->rank == AMPC_RANK_LIMIT || !npy_int(t, &a->dim[a->rank++]))
            return false;
        if (npy_token(t, ",")) continue;
        if (!npy_token(t, ")")) return false;
        break;
    }
    return true;
}

static bool npy_dtype(const char *descr, Array *a, bool *big) {
    *big = descr[0] == '>';
    if (!descr[0] || !strchr("<>|=", descr[0])) return false;
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (strcmp(dtypes[i].npy, descr + 1) != 0) continue;
        a->dtype = (ampc_dtype)i;
        return true;
    }
    return false;
}

typedef struct NpyHead {
    char descr[32];
    bool fortran, seen[3];
} NpyHead;

static bool npy_member(Npy *t, NpyHead *h, Array *a) {
    char key[32];
    if (!npy_string(t, key, sizeof key) || !npy_token(t, ":")) return false;
    if (!strcmp(key, "descr")) {
        h->seen[0] = true;
        return npy_string(t, h->descr, sizeof h->descr);
    }
    if (!strcmp(key, "fortran_order")) {
        h->seen[1] = true;
        h->fortran = npy_token(t, "True");
        return h->fortran || npy_token(t, "False");
    }
    if (strcmp(key, "shape") != 0) return false;
    h->seen[2] = true;
    return npy_shape(t, a);
}

static bool npy_dict(Npy *t, NpyHead *h, Array *a) {
    if (!npy_token(t, "{")) return false;
    while (!npy_token(t, "}")) {
        if (!npy_member(t, h, a)) return false;
        if (npy_token(t, ",")) continue;
        if (!npy_token(t, "}")) return false;
        break;
    }
    return h->seen[0] && h->seen[1] && h->seen[2];
}

static Status npy_parse(Diag *d, const char *path, Array *a, size_t n) {
    const unsigned char *p = (const unsigned char *)a->memory;
    NpyHead h = {{0}, false, {false, false, false}};
    size_t head = n > 10 && p[6] == 1 ? 10 : 12, len;
    bool big;
    if (n < 12 || p[6] < 1 || p[6] > 3)
        return bad(d, path, "damaged .npy file: its version");
    len = p[8] | (size_t)p[9] << 8;
    if (head == 12) len |= (size_t)p[10] << 16 | (size_t)p[11] << 24;
    if (len > n - head) return bad(d, path, "truncated .npy file");
    Npy t = {a->memory + head, a->memory + head + len};
    if (!npy_dict(&t, &h, a))
        return bad(d, path, "damaged .npy header, or an array with fields");
    if (!npy_dtype(h.descr, a, &big))
        return fail(d, (Loc){.file = path}, "dtype '%s' cannot be read",
                    h.descr);
    if (!array_size(a) || a->bytes > n - head - len)
        return bad(d, path, "truncated .npy file");
    if (a->bytes < n - head - len)
        return bad(d, path, "damaged .npy file: more data than its shape");
    a->data = a->memory + head + len;
    if (big) swap_bytes(a);
    if (h.fortran && a->rank > 1 && !from_fortran(a))
        return bad(d, path, "out of memory");
    return OK;
}

void npy_header(StrBuf *buf, int dtype, int rank, const int64_t *dim) {
    char shape[256] = "";
    size_t n = 0;
    for (int i = 0; i < rank; i++)
        n += (size_t)snprintf(shape + n, sizeof shape - n, "%lld,%s",
                              (long long)dim[i], i + 1 < rank ? " " : "");
    if (rank > 1) shape[n - 1] = 0;
    StrBuf dict = {0};
    sb_printf(&dict,
              "{'descr': '%c%s', 'fortran_order': False, 'shape': (%s), }",
              dtypes[dtype].bytes == 1 ? '|' : '<', dtypes[dtype].npy, shape);
    while ((dict.len + 11) % 64) sb_puts(&dict, " ");
    sb_puts(&dict, "\n");
    char head[10] = {'\x93',
                     'N',
                     'U',
                     'M',
                     'P',
                     'Y',
                     1,
                     0,
                     (char)(dict.len & 0xff),
                     (char)(dict.len >> 8)};
    sb_putn(buf, head, sizeof head);
    sb_putn(buf, dict.data, dict.len);
    sb_free(&dict);
}

/* ---- IDX ----------------------------------------------------------------- */

static Status idx_parse(Diag *d, const char *path, Array *a, size_t n) {
    const unsigned char *p = (const unsigned char *)a->memory;
    size_t head = 4 + 4 * (size_t)p[3];
    int dtype = 0;
    while (dtype < DTYPE_COUNT && dtypes[dtype].idx != p[2]) dtype++;
    if (p[3] > AMPC_RANK_LIMIT) return bad(d, path, "IDX file: its rank");
    if (n < head) return bad(d, path, "truncated IDX file");
    a->dtype = (ampc_dtype)dtype;
    a->rank = p[3];
    for (int i = 0; i < a->rank; i++) {
        const unsigned char *q = p + 4 + 4 * i;
        a->dim[i] = (int64_t)q[0] << 24 | q[1] << 16 | q[2] << 8 | q[3];
    }
    if (!array_size(a) || a->bytes > n - head)
        return bad(d, path, "truncated IDX file");
    if (a->bytes < n - head)
        return bad(d, path, "damaged IDX file: more data than its shape");
    a->data = a->memory + head;
    swap_bytes(a);
    return OK;
}

static bool is_idx(const char *p, size_t n) {
    if (n < 4 || p[0] || p[1] || !p[2]) return false;
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (dtypes[i].idx == p[2]) return true;
    return false;
}

/* ---- all ----------------------------------------------------------------- */

Status array_read(Diag *d, const char *path, Array *a) {
    size_t n = 0;
    *a = (Array){.memory = read_any(d, path, &n)};
    if (!a->memory) return ERR_USER;
    Status st;
    if (n >= 8 && memcmp(a->memory, "\x93NUMPY", 6) == 0)
        st = npy_parse(d, path, a, n);
    else if (is_idx(a->memory, n))
        st = idx_parse(d, path, a, n);
    else
        st = bad(d, path, "neither a .npy nor an IDX file");
    if (st == OK && (uintptr_t)a->data % dtypes[a->dtype].bytes)
        a->data = memmove(a->memory, a->data, a->bytes); /* odd header */
    if (st != OK) array_free(a);
    return st;
}

void array_free(Array *a) {
    free(a->memory);
    *a = (Array){.memory = NULL};
}
