/* SPDX-License-Identifier: Apache-2.0 */
/* type.c: the table of interned types; shapes.                             */
#include "ir/op/type.h"

#include <stdlib.h>
#include <string.h>

bool dtype_from_text(const char *s, size_t n, DType *out) {
    for (int d = 0; d < NUM_DTYPES; d++) {
        const char *t = dtype_info[d].text;
        if (strlen(t) != n || memcmp(t, s, n) != 0) continue;
        *out = (DType)d;
        return true;
    }
    return false;
}

bool dtype_holds(DType d, int64_t v) {
    bool is_signed = dtype_info[d].kind == DK_I;
    int bits = d == DT_BOOL ? 1 : 8 * dtype_info[d].bytes - is_signed;
    int64_t top = v < 0 ? -(v + 1) : v;
    return (v >= 0 || is_signed) && (bits >= 63 || !(top >> bits));
}

bool dtype_from_onnx(int code, DType *out) {
    for (int d = 0; d < NUM_DTYPES; d++) {
        if (dtype_info[d].onnx != code) continue;
        *out = (DType)d;
        return true;
    }
    return false;
}

bool dtype_widens(DType from, DType to) {
    const DTypeInfo *x = &dtype_info[from], *y = &dtype_info[to];
    return x->mantissa <= y->mantissa && x->most <= y->most &&
           x->least >= y->least;
}

DType dtype_compute(DType a, DType b) {
    return a == DT_F64 || b == DT_F64 ? DT_F64 : DT_F32;
}

/* A float wins over an integer, an integer over bool. */
DType dtype_promote(DType a, DType b) {
    if (a == b) return a;
    if (dtype_is_low(a) && dtype_is_low(b))
        return dtype_widens(a, b) ? b : dtype_widens(b, a) ? a : DT_F32;
    if (dtype_info[a].kind == DK_F && dtype_info[b].kind != DK_F) return a;
    if (dtype_info[b].kind == DK_F && dtype_info[a].kind != DK_F) return b;
    if (dtype_info[a].bytes == dtype_info[b].bytes) return a > b ? a : b;
    return dtype_info[a].bytes > dtype_info[b].bytes ? a : b;
}

/* ---- interning ----------------------------------------------------------- */

/* Pages are never moved, so pointers to types stay valid. */
enum { PAGE = 256 };
static struct {
    Type **page;
    uint32_t *slot;  /* hash table: type index or 0 */
    size_t len, cap; /* the count includes type 0, which means "no type" */
} types;

static Type *type_at(uint32_t i) { return &types.page[i / PAGE][i % PAGE]; }

static void *must(void *p) {
    if (!p) out_of_memory();
    return p;
}

static bool type_equal(const Type *a, const Type *b) {
    return a->dtype == b->dtype && shape_equal(a, b);
}

static uint64_t type_hash(const Type *t) {
    uint64_t h = hash_bytes((uint64_t)t->dtype, t->dim, sizeof t->dim);
    return h ^ (uint64_t)t->rank * 0x9e3779b97f4a7c15u;
}

static void types_grow(void) {
    size_t cap = types.cap ? types.cap * 2 : 512;
    free(types.slot);
    types.slot = must(calloc(cap, sizeof *types.slot));
    types.cap = cap;
    for (uint32_t i = 1; i < types.len; i++) {
        size_t j = type_hash(type_at(i)) & (cap - 1);
        while (types.slot[j]) j = (j + 1) & (cap - 1);
        types.slot[j] = i;
    }
}

static uint32_t type_append(const Type *t) {
    if (types.len == 0) types.len = 1;
    if (types.len % PAGE == 0 || !types.page) {
        size_t n = types.len / PAGE + 1;
        types.page = must(realloc(types.page, n * sizeof *types.page));
        types.page[n - 1] = must(calloc(PAGE, sizeof(Type)));
    }
    *type_at((uint32_t)types.len) = *t;
    return (uint32_t)types.len++;
}

static TypeId type_intern(const Type *t) {
    if (types.len * 2 >= types.cap) types_grow();
    size_t i = type_hash(t) & (types.cap - 1);
    for (; types.slot[i]; i = (i + 1) & (types.cap - 1))
        if (type_equal(type_at(types.slot[i]), t))
            return (TypeId){types.slot[i]};
    types.slot[i] = type_append(t);
    return (TypeId){types.slot[i]};
}

/* Empty dimensions count as 1, so that strides fit too. */
TypeId type_make(DType dtype, int rank, const int64_t *dim) {
    Type t = {.dtype = dtype, .rank = rank};
    int64_t n = 1;
    bool fits = rank >= 0 && rank <= MAX_RANK;
    for (int i = 0; fits && i < rank; i++) {
        t.dim[i] = dim[i];
        fits = dim[i] >= 0 && (!dim[i] || mul_ok(n, dim[i], &n));
    }
    return fits && n <= MAX_ELEMENTS ? type_intern(&t) : (TypeId){0};
}

TypeId type_scalar(DType dtype) { return type_make(dtype, 0, NULL); }

TypeId type_with_dtype(TypeId id, DType dtype) {
    Type t = *type_get(id);
    t.dtype = dtype;
    return type_intern(&t);
}

const Type *type_get(TypeId t) {
    ASSERT(t.i && t.i < types.len);
    return type_at(t.i);
}

/* ---- shapes -------------------------------------------------------------- */

int64_t type_count(const Type *t) {
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->dim[i];
    return n;
}

int64_t type_bytes(const Type *t) {
    return type_count(t) * dtype_info[t->dtype].bytes;
}

bool shape_equal(const Type *a, const Type *b) {
    if (a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return true;
}

bool shape_broadcast(const Type *a, const Type *b, Type *out) {
    int rank = a->rank > b->rank ? a->rank : b->rank;
    Type t = {.dtype = out->dtype, .rank = rank};
    for (int i = 0; i < t.rank; i++) {
        int ia = i - (t.rank - a->rank), ib = i - (t.rank - b->rank);
        int64_t da = ia < 0 ? 1 : a->dim[ia], db = ib < 0 ? 1 : b->dim[ib];
        if (da != db && da != 1 && db != 1) return false;
        t.dim[i] = da == 1 ? db : da;
    }
    *out = t;
    return true;
}

void shape_strides(const Type *t, int64_t *stride) {
    int64_t n = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        stride[i] = n;
        n *= t->dim[i] ? t->dim[i] : 1;
    }
}

int axis_norm(int64_t axis, int rank) {
    if (axis < -rank || axis >= rank) return -1;
    return (int)(axis < 0 ? axis + rank : axis);
}

const char *type_text(const Type *t, char *buf) {
    int n = 0;
    if (!t) return "absent";
    n += snprintf(buf, TYPE_TEXT, "%s[", dtype_info[t->dtype].text);
    for (int i = 0; i < t->rank; i++)
        n += snprintf(buf + n, (size_t)(TYPE_TEXT - n), "%s%lld", i ? "," : "",
                      (long long)t->dim[i]);
    snprintf(buf + n, (size_t)(TYPE_TEXT - n), "]");
    return buf;
}

void sb_put_type(StrBuf *sb, TypeId id) {
    const Type *t = type_get(id);
    sb_printf(sb, "%s[", dtype_info[t->dtype].text);
    for (int i = 0; i < t->rank; i++)
        sb_printf(sb, "%s%lld", i ? "," : "", (long long)t->dim[i]);
    sb_puts(sb, "]");
}
