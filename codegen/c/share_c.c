/* SPDX-License-Identifier: Apache-2.0 */
/* share_c.c: kernels whose texts differ only in sizes are one function.

   Sizes that differ are data, k<number>_size and e<number>_size, in the plan.
   So are numbers such as a weight decay, which people change between two runs:
   the C compiler then has the same text before and after.

   Kernels with little work and equal bits at all levels are a text of their
   own, which is compiled once.                                              */
#include "codegen/c/print_c.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A text with sizes between marks: \1, a kind, the number, \2. */
typedef struct Body {
    const Kernel *k;
    bool small;
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
    Body b = {.k = k,
              .small = kernel_is_small(k),
              .text = arena_dup(a, sb.data, sb.len + 1)};
    sb_free(&sb);
    b.hash = (uint64_t)(k->form == KF_EPILOGUE) + 2 * (uint64_t)b.small;
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

/* True for a number that needs more than SHORT bits, such as a weight decay of
   0.01.  Others (0.5, 2, 784) stay in the text, where compilers use them. */
static bool is_data(const char *size) {
    enum { SHORT = 12 };
    int exponent;
    if (*size != 'f' && *size != 'd') return false;
    double m = ldexp(frexp(strtod(size + 1, NULL), &exponent), SHORT);
    return m != rint(m);
}

static int *parameters(Arena *a, const Bodies *all, const Body *first) {
    int *par = NEW_ARRAY(a, int, first->sizes.len + 1), count = 0;
    for (int i = 0; i < first->sizes.len; i++) {
        bool data = is_data(first->sizes.data[i]) ||
                    (first->shared && varies(all, first, i));
        par[i] = data ? count : -1;
        for (int j = 0; j < i && par[i] == count; j++)
            if (par[j] >= 0 && same_size(all, first, i, j)) par[i] = par[j];
        count += par[i] == count;
    }
    return par;
}

/* ---- texts --------------------------------------------------------------- */

static Bodies read_bodies(Arena *a, const KernelSet *ks) {
    Bodies all = {0};
    for (int e = 0; e < 2; e++)
        for (int i = 0; i < kernel_set_count(ks, e); i++)
            vec_push(a, &all, read_body(a, kernel_set_get(ks, e, i)));
    for (Body *b = all.data; b < all.data + all.len; b++) {
        for (Body *c = all.data; c < b && !b->first; c++)
            if (c->first == c && same_text(b, c))
                b->first = c, b->shared = c->shared = true;
        if (!b->first) b->first = b;
    }
    for (Body *b = all.data; b < all.data + all.len; b++)
        if (b->first == b) b->par = parameters(a, &all, b);
    return all;
}

static char letter(const Body *b) {
    return b->k->form == KF_EPILOGUE ? 'e' : 'k';
}

static bool has_data(const Body *b) {
    for (int i = 0; i < b->sizes.len; i++)
        if (b->first->par[i] >= 0) return true;
    return false;
}

static void put_c_head(StrBuf *sb, const Body *b, const char *prefix,
                       const char *more, const char *last) {
    sb_printf(sb, "void %s%c%d%s(void *const *buf, ", prefix, letter(b),
              b->k->index, more);
    sb_printf(sb,
              b->k->form == KF_EPILOGUE
                  ? "const float *acc, int64_t ld,\n    int64_t batch, int64_t "
                    "row, int64_t col, int64_t rows,\n    int64_t cols%s)\n{\n"
                  : "const int64_t *par, int64_t lo,\n    int64_t hi%s)\n{\n",
              last);
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

/* n<number> for each size that is data; `from` names their table. */
static void put_sizes(StrBuf *sb, const Body *b, const char *from) {
    int n = 0;
    for (int i = 0; i < b->sizes.len; i++) {
        char kind = b->sizes.data[i][0];
        if (b->first->par[i] != n) continue;
        sb_printf(sb, "    const %s n%d = %s[%d].%c;\n",
                  kind == 'i'   ? "int64_t"
                  : kind == 'u' ? "uint32_t"
                  : kind == 'f' ? "float"
                                : "double",
                  n, from, n, kind);
        n++;
    }
}

/* The function that all kernels of the text call: <name>_of. */
static void put_shared(StrBuf *sb, const Body *b, const char *prefix) {
    sb_puts(sb, "KM_SHARED ");
    put_c_head(sb, b, prefix, "_of", ", const km_size *size");
    if (!has_data(b)) sb_puts(sb, "    (void)size;\n"); /* equal kernels */
    put_sizes(sb, b, "size");
    put_c_text(sb, b, b->par);
}

static void put_declared(StrBuf *sb, const char *table) {
    sb_printf(sb,
              "extern __attribute__((visibility(\"hidden\"))) const km_size "
              "%s[];\n",
              table);
}

static void put_kernel(StrBuf *sb, const Body *b, const char *prefix,
                       const char *table) {
    if (b->shared && b->first == b) put_shared(sb, b, prefix);
    sb_put_kernel_comment(sb, b->k);
    if (has_data(b)) put_declared(sb, table);
    put_c_head(sb, b, prefix, "", "");
    if (!b->shared) {
        put_sizes(sb, b, table);
        put_c_text(sb, b, b->par);
        return;
    }
    sb_printf(sb, "    %s%c%d_of(buf, %s, %s);\n}\n\n", prefix, letter(b),
              b->first->k->index,
              b->k->form == KF_EPILOGUE ? "acc, ld, batch, row, col, rows, cols"
                                        : "par, lo, hi",
              has_data(b) ? table : "0");
}

static const char *table_of(Arena *a, const Body *b, const char *tables) {
    return arena_printf(a, "%s%c%d_size", tables, letter(b), b->k->index);
}

void print_c_kernels(const KernelSet *ks, StrBuf *sb, const char *prefix,
                     const char *tables, KernelTexts which) {
    Arena *a = arena_new();
    Bodies all = read_bodies(a, ks);
    sb_printf(sb, "#define KM_KERNELS\n%s#include \"kmath.h\"\n\n",
              which == KERNELS_SMALL ? "#define KM_SMALL\n" : "");
    for (const Body *b = all.data; b < all.data + all.len; b++)
        if (which == KERNELS_ALL || b->small == (which == KERNELS_SMALL))
            put_kernel(sb, b, prefix, table_of(a, b, tables));
    arena_free(a);
}

void print_c_sizes(const KernelSet *ks, StrBuf *sb, const char *tables) {
    Arena *a = arena_new();
    Bodies all = read_bodies(a, ks);
    sb_puts(sb, "\n#include \"kmath.h\"\n\n");
    for (const Body *b = all.data; b < all.data + all.len; b++) {
        int n = 0;
        if (!has_data(b)) continue;
        const char *table = table_of(a, b, tables);
        put_declared(sb, table);
        sb_printf(sb, "const km_size %s[] = {", table);
        for (int i = 0; i < b->sizes.len; i++)
            if (b->first->par[i] == n)
                sb_printf(sb, "%s{.%c = %s}", n++ ? ", " : "",
                          b->sizes.data[i][0], b->sizes.data[i] + 1);
        sb_puts(sb, "};\n");
    }
    arena_free(a);
}
