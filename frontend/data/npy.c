/* SPDX-License-Identifier: Apache-2.0 */
/* npy.c: NumPy's .npy: a magic word, a version, the header's length, the header
   as the text of a Python dictionary, the elements.                         */
#include "frontend/data/array.h"

#include <string.h>

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

static bool npy_shape(Npy *t, ArrayHead *a) {
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

typedef struct NpyHead {
    char descr[32];
    bool fortran, seen[3];
} NpyHead;

static bool npy_member(Npy *t, NpyHead *h, ArrayHead *a) {
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

static bool npy_dict(Npy *t, NpyHead *h, ArrayHead *a) {
    if (!npy_token(t, "{")) return false;
    while (!npy_token(t, "}")) {
        if (!npy_member(t, h, a)) return false;
        if (npy_token(t, ",")) continue;
        if (!npy_token(t, "}")) return false;
        break;
    }
    return h->seen[0] && h->seen[1] && h->seen[2];
}

static bool npy_refuse(ArrayHead *h, const char *what, const char *arg) {
    snprintf(h->why, sizeof h->why, "%s%s", what, arg);
    return false;
}

static bool npy_dtype(const char *descr, ArrayHead *h) {
    h->big = descr[0] == '>';
    if (!descr[0] || !strchr("<>|=", descr[0])) return false;
    for (int i = 0; i < AMPC_NDTYPE; i++) {
        const char *npy = dtype_info[i].npy;
        if (!npy || strcmp(npy, descr + 1) != 0) continue;
        h->dtype = (ampc_dtype)i;
        return true;
    }
    return false;
}

static bool is_npy(const unsigned char *p, size_t n) {
    return n >= 8 && memcmp(p, "\x93NUMPY", 6) == 0;
}

static bool npy_parse(const unsigned char *p, size_t n, ArrayHead *h) {
    NpyHead npy = {{0}, false, {false, false, false}};
    if (n < 12 || p[6] < 1 || p[6] > 3)
        return npy_refuse(h, "damaged .npy file: its version", "");
    size_t at = p[6] == 1 ? 10 : 12, len = p[8] | (size_t)p[9] << 8;
    if (at == 12) len |= (size_t)p[10] << 16 | (size_t)p[11] << 24;
    if (len > n - at)
        return npy_refuse(h,
                          n == ARRAY_HEAD ? "the .npy header is too long"
                                          : "truncated .npy file",
                          "");
    Npy t = {(const char *)p + at, (const char *)p + at + len};
    if (!npy_dict(&t, &npy, h))
        return npy_refuse(h, "damaged .npy header, or an array with fields",
                          "");
    h->data = at + len;
    h->columns = npy.fortran && h->rank > 1;
    if (npy_dtype(npy.descr, h)) return true;
    return npy_refuse(h, "dtype cannot be read: ", npy.descr);
}

const ArrayFormat npy_format = {
    .name = ".npy", .is = is_npy, .parse = npy_parse};

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
              dtype_bytes((uint32_t)dtype) == 1 ? '|' : '<',
              dtype_info[dtype].npy, shape);
    while ((dict.len + 11) % 64) sb_puts(&dict, " ");
    sb_puts(&dict, "\n");
    sb_putn(buf, "\x93NUMPY\1\0", 8);
    sb_putn(buf, (char[]){(char)(dict.len & 0xff), (char)(dict.len >> 8)}, 2);
    sb_putn(buf, dict.data, dict.len);
    sb_free(&dict);
}
