/* SPDX-License-Identifier: Apache-2.0 */
/* share_c.c: kernels as functions in C, one for each text.

   Sizes, and numbers such as a weight decay, are data of the plan, a table for
   each kernel. So kernels that differ in sizes only are one function, and an
   edit of a layer's width leaves the C compiler's input as it was. A function
   has a name, and a part to stand in, that depend on its text alone: those of
   other kernels stay when an edit adds one.

   Kernels with little work and equal bits at all levels are compiled once. */
#include "codegen/c/print_c.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- texts --------------------------------------------------------------- */

/* False for small numbers of few bits (0.5, 2), which compilers use; larger
   ones are often counts, as in a mean. */
static bool is_data(const char *size) {
    enum { SHORT = 12, LARGE = 8 };
    int exponent;
    if (*size != 'f' && *size != 'd') return true;
    double x = strtod(size + 1, NULL);
    double m = ldexp(frexp(x, &exponent), SHORT);
    return fabs(x) >= LARGE || m != rint(m);
}

static int size_number(Arena *a, KernelText *t, const char *size) {
    int n = 0;
    while (n < t->sizes.len && strcmp(t->sizes.data[n], size)) n++;
    if (n == t->sizes.len) vec_push(a, &t->sizes, size);
    return n;
}

/* A size stands in pc_body's text between \1, its kind, and \2. */
static void put_statements(Arena *a, KernelText *t, StrBuf *sb) {
    StrBuf marked = {0};
    pc_body(t->kernel, &marked);
    for (const char *s = marked.data;; s++) {
        size_t n = strcspn(s, "\1");
        sb_putn(sb, s, n);
        if (!*(s += n)) break;
        n = strcspn(++s, "\2");
        const char *size = arena_printf(a, "%.*s", (int)n, s);
        if (is_data(size))
            sb_printf(sb, "n%d", size_number(a, t, size));
        else
            sb_puts(sb, size + 1);
        s += n;
    }
    sb_free(&marked);
}

static void put_sizes(const KernelText *t, StrBuf *sb) {
    sb_puts(sb, t->sizes.len ? "    const km_size *const size = table;\n"
                             : "    (void)table;\n");
    for (int i = 0; i < t->sizes.len; i++) {
        char kind = t->sizes.data[i][0];
        sb_printf(sb, "    const %s n%d = size[%d].%c;\n",
                  kind == 'i'   ? "int64_t"
                  : kind == 'u' ? "uint32_t"
                  : kind == 'f' ? "float"
                                : "double",
                  i, i, kind);
    }
}

static KernelText read_kernel_text(Arena *a, const Kernel *k) {
    KernelText t = {.kernel = k, .small = kernel_is_small(k)};
    StrBuf sb = {0}, statements = {0};
    put_statements(a, &t, &statements);
    put_sizes(&t, &sb);
    sb_puts(&sb, statements.data);
    t.text = arena_printf(a, "%s", sb.data);
    t.hash = hash_bytes((uint64_t)(k->form == KF_EPILOGUE) + 2 * t.small,
                        sb.data, sb.len);
    sb_free(&statements);
    sb_free(&sb);
    return t;
}

KernelTexts *kernel_texts(Arena *a, const KernelSet *ks) {
    KernelTexts *all = NEW(a, KernelTexts);
    all->kernels = kernel_set_count(ks, false);
    for (int e = 0; e < 2; e++)
        for (int i = 0; i < kernel_set_count(ks, e); i++)
            vec_push(a, &all->list,
                     read_kernel_text(a, kernel_set_get(ks, e, i)));
    KernelText *end = all->list.data + all->list.len;
    for (KernelText *t = all->list.data; t < end; t++) {
        for (KernelText *u = all->list.data; u < t && !t->first; u++)
            if (u->first == u && u->hash == t->hash &&
                !strcmp(u->text, t->text))
                t->first = u;
        if (!t->first) t->first = t;
    }
    return all;
}

const KernelText *kernel_text(const KernelTexts *all, bool epilogue, int i) {
    return &all->list.data[epilogue ? all->kernels + i : i];
}

/* ---- functions ----------------------------------------------------------- */

static bool is_epilogue(const KernelText *t) {
    return t->kernel->form == KF_EPILOGUE;
}

static char letter(const KernelText *t) { return is_epilogue(t) ? 'e' : 'k'; }

void sb_put_kernel_name(StrBuf *sb, const KernelText *t) {
    sb_printf(sb, "%c%016" PRIx64, letter(t), t->hash);
}

static void put_kernel_function(StrBuf *sb, const KernelText *t,
                                const char *prefix) {
    sb_printf(sb, "void %s", prefix);
    sb_put_kernel_name(sb, t);
    sb_puts(sb,
            is_epilogue(t)
                ? "(void *const *buf, const void *table,\n    const float "
                  "*acc, int64_t ld, int64_t batch, int64_t row, int64_t "
                  "col,\n    int64_t rows, int64_t cols)\n{\n"
                : "(void *const *buf, const void *table,\n    const int64_t "
                  "*par, int64_t lo, int64_t hi)\n{\n");
    sb_puts(sb, t->text);
}

static bool is_in(const KernelText *t, KernelPart p) {
    return (p.kinds == KERNELS_ALL || t->small == (p.kinds == KERNELS_SMALL)) &&
           t->hash % (uint64_t)p.parts == (uint64_t)p.part;
}

int print_c_kernels(const KernelTexts *all, StrBuf *sb, const char *prefix,
                    KernelPart part) {
    const KernelText *end = all->list.data + all->list.len;
    int n = 0;
    sb_puts(sb, "#define KM_KERNELS\n#include \"kmath.h\"\n\n");
    for (const KernelText *t = all->list.data; t < end; t++) {
        if (t->first != t || !is_in(t, part)) continue;
        for (const KernelText *u = t; u < end; u++)
            if (u->first == t && part.kinds == KERNELS_ALL)
                sb_put_kernel_comment(sb, u->kernel);
        put_kernel_function(sb, t, prefix);
        n++;
    }
    return n;
}

void sb_put_kernel_table(StrBuf *sb, const KernelText *t) {
    if (t->sizes.len)
        sb_printf(sb, "%c%d_size", letter(t), t->kernel->index);
    else
        sb_puts(sb, "0");
}

void print_c_sizes(const KernelTexts *all, StrBuf *sb, const char *prefix) {
    sb_puts(sb, "\n#include \"kmath_size.h\"\n\n");
    for (int k = 0; k < all->list.len; k++) {
        const KernelText *t = &all->list.data[k];
        if (!t->sizes.len) continue;
        sb_printf(sb, "const km_size %s", prefix);
        sb_put_kernel_table(sb, t);
        sb_puts(sb, "[] = {");
        for (int i = 0; i < t->sizes.len; i++)
            sb_printf(sb, "%s{.%c = %s}", i ? ", " : "", t->sizes.data[i][0],
                      t->sizes.data[i] + 1);
        sb_puts(sb, "};\n");
    }
}
