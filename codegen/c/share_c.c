/* SPDX-License-Identifier: Apache-2.0 */
/* share_c.c: kernels whose texts differ only in sizes are one function. */
#include "codegen/c/print_c.h"

#include <string.h>

/* A text with sizes between marks: \1, a kind, the number, \2. */
typedef struct Body {
    const Kernel *k;
    const char *text;
    VEC(const char *) sizes;  /* each with its kind */
    uint64_t hash;            /* hash of the text without the sizes */
    const struct Body *first; /* first kernel with that text */
    bool shared;              /* other kernels have that text, too */
    const int *par; /* in the first: for each size its parameter, n<number>; -1:
                       printed as a constant */
} Body;

typedef VEC(Body) Bodies;

/* The text after the size that begins at s. */
static const char *after_size(const char *s) { return strchr(s, 2) + 1; }

static Body read_body(Arena *a, const Kernel *k) {
    StrBuf sb = {0};
    pc_body(k, &sb);
    Body b = {.k = k, .text = arena_dup(a, sb.data, sb.len + 1)};
    sb_free(&sb);
    b.hash = (uint64_t)(k->form == KF_EPILOGUE);
    for (const char *s = b.text; *s;) {
        size_t n = strcspn(s, "\1");
        b.hash = hash_bytes(b.hash, s, n);
        if (!*(s += n)) break;
        const char *end = after_size(s);
        char *size = arena_printf(a, "%.*s", (int)(end - s - 2), s + 1);
        b.hash = hash_bytes(b.hash, size, 1);
        vec_push(a, &b.sizes, size);
        s = end;
    }
    return b;
}

static bool same_text(const Body *x, const Body *y) {
    const char *s = x->text, *t = y->text;
    if (x->hash != y->hash || x->sizes.len != y->sizes.len) return false;
    for (;;) {
        size_t n = strcspn(s, "\1");
        if (strncmp(s, t, n + (s[n] ? 2 : 1))) return false;
        if (!s[n]) return true;
        s = after_size(s + n), t = after_size(t + n);
    }
}

/* True if sizes i and j are equal in every body with that text. */
static bool same_size(const Bodies *all, const Body *first, int i, int j) {
    for (const Body *b = first; b < all->data + all->len; b++)
        if (b->first == first && strcmp(b->sizes.data[i], b->sizes.data[j]))
            return false;
    return true;
}

/* True if size i differs among the bodies with that text. */
static bool varies(const Bodies *all, const Body *first, int i) {
    for (const Body *b = first; b < all->data + all->len; b++)
        if (b->first == first && strcmp(b->sizes.data[i], first->sizes.data[i]))
            return true;
    return false;
}

static int *parameters(Arena *a, const Bodies *all, const Body *first) {
    int *par = NEW_ARRAY(a, int, first->sizes.len + 1), count = 0;
    for (int i = 0; i < first->sizes.len; i++) {
        par[i] = first->shared && varies(all, first, i) ? count : -1;
        for (int j = 0; j < i && par[i] == count; j++)
            if (par[j] >= 0 && same_size(all, first, i, j)) par[i] = par[j];
        count += par[i] == count;
    }
    return par;
}

static void put_c_head(StrBuf *sb, const Kernel *k, const char *prefix,
                       const char *more, const char *last) {
    if (k->form == KF_EPILOGUE)
        sb_printf(sb,
                  "void %se%d%s(void *const *buf, const float *acc, int64_t ld,"
                  "\n    int64_t batch, int64_t row, int64_t col, int64_t rows,"
                  "\n    int64_t cols%s)\n{\n",
                  prefix, k->index, more, last);
    else
        sb_printf(sb,
                  "void %sk%d%s(void *const *buf, const int64_t *par, int64_t "
                  "lo,\n    int64_t hi%s)\n{\n",
                  prefix, k->index, more, last);
}

static void put_c_text(StrBuf *sb, const Body *b, const int *par) {
    const char *s = b->text;
    for (int i = 0; i < b->sizes.len; i++) {
        size_t n = strcspn(s, "\1");
        sb_putn(sb, s, n);
        if (par[i] < 0)
            sb_puts(sb, b->sizes.data[i] + 1);
        else
            sb_printf(sb, "n%d", par[i]);
        s = after_size(s + n);
    }
    sb_puts(sb, s);
}

/* The function that all kernels of the text call: <name>_of. */
static void put_shared(StrBuf *sb, const Body *b, const char *prefix) {
    int n = 0;
    sb_puts(sb, "KM_SHARED ");
    put_c_head(sb, b->k, prefix, "_of", ", const km_size *size");
    for (int i = 0; i < b->sizes.len; i++) {
        char kind = b->sizes.data[i][0];
        if (b->par[i] != n) continue;
        sb_printf(sb, "    const %s n%d = size[%d].%c;\n",
                  kind == 'i'   ? "int64_t"
                  : kind == 'u' ? "uint32_t"
                  : kind == 'f' ? "float"
                                : "double",
                  n, n, kind);
        n++;
    }
    if (!n) sb_puts(sb, "    (void)size;\n"); /* equal kernels */
    put_c_text(sb, b, b->par);
}

static void put_kernel(StrBuf *sb, const Body *b, const char *prefix) {
    const Kernel *k = b->k;
    const int *par = b->first->par;
    int n = 0;
    if (b->shared && b->first == b) put_shared(sb, b, prefix);
    sb_put_kernel_comment(sb, k);
    put_c_head(sb, k, prefix, "", "");
    if (!b->shared) {
        put_c_text(sb, b, par);
        return;
    }
    sb_puts(sb, "    static const km_size size[] = {");
    for (int i = 0; i < b->sizes.len; i++)
        if (par[i] == n)
            sb_printf(sb, "%s{.%c = %s}", n++ ? ", " : "", b->sizes.data[i][0],
                      b->sizes.data[i] + 1);
    sb_printf(sb, n ? "};\n" : "{0}};\n");
    sb_printf(sb,
              k->form == KF_EPILOGUE
                  ? "    %se%d_of(buf, acc, ld, batch, row, col, rows, cols, "
                    "size);\n}\n\n"
                  : "    %sk%d_of(buf, par, lo, hi, size);\n}\n\n",
              prefix, b->first->k->index);
}

void print_c_kernels(const KernelSet *ks, StrBuf *sb, const char *prefix,
                     bool scalars) {
    Arena *a = arena_new();
    Bodies all = {0};
    for (int e = 0; e < 2; e++)
        for (int i = 0; i < kernel_set_count(ks, e); i++) {
            const Kernel *k = kernel_set_get(ks, e, i);
            if (scalars || !kernel_is_scalar(k))
                vec_push(a, &all, read_body(a, k));
        }
    for (Body *b = all.data; b < all.data + all.len; b++) {
        for (Body *c = all.data; c < b && !b->first; c++)
            if (c->first == c && same_text(b, c))
                b->first = c, b->shared = c->shared = true;
        if (!b->first) b->first = b;
    }
    sb_puts(sb, "#define KM_KERNELS\n#include \"kmath.h\"\n\n");
    for (Body *b = all.data; b < all.data + all.len; b++)
        if (b->first == b) b->par = parameters(a, &all, b);
    for (const Body *b = all.data; b < all.data + all.len; b++)
        put_kernel(sb, b, prefix);
    arena_free(a);
}
