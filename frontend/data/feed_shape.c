/* SPDX-License-Identifier: Apache-2.0 */
/* feed_shape.c: compares the layout of an array with an input's, and converts
   the array; see feed_shape.h. */
#include "frontend/data/feed_shape.h"

#include <string.h>

#include "runtime/program/dtype.h"

/* ---- the same elements in the same order --------------------------------- */

/* The number of remaining axes, not counting axes of length 1. */
typedef struct Axes {
    const int64_t *dim;
    int n, group; /* axes in the product */
    int64_t product;
} Axes;

static bool next_axis(Axes *a) {
    while (a->n > 0 && *a->dim == 1) {
        a->dim++;
        a->n--;
    }
    if (a->n == 0) return false;
    a->product *= *a->dim++;
    a->n--;
    a->group++;
    return true;
}

static bool start_group(Axes *a) {
    a->product = 1;
    a->group = 0;
    return next_axis(a);
}

bool shapes_agree(const int64_t *dim, int rank, const int64_t *other,
                  int other_rank) {
    Axes a = {.dim = dim, .n = rank}, b = {.dim = other, .n = other_rank};
    for (;;) {
        bool more = start_group(&a);
        if (start_group(&b) != more) return false;
        if (!more) return true;
        while (a.product != b.product)
            if (!next_axis(a.product < b.product ? &a : &b)) return false;
        if (a.group > 1 && b.group > 1) return false;
    }
}

/* ---- the samples of a file ----------------------------------------------- */

bool fed_lies_right(const Fed *f) {
    int64_t want[AMPC_RANK_LIMIT + 1];
    const ampc_tensor_info *t = f->want;
    if (f->classes)
        return shapes_agree(f->a->dim + 1, f->a->rank - 1, t->shape + 2,
                            t->rank - 2);
    if (f->a->windows || f->samples == 0) return true;
    if (f->per == 0)
        return shapes_agree(f->a->dim, f->a->rank, t->shape, t->rank);
    int64_t each = 1; /* elements of a row */
    for (int i = 1; i < t->rank; i++) each *= t->shape[i];
    memcpy(want + 1, t->shape, (size_t)t->rank * sizeof *want);
    want[0] = f->samples;
    want[1] = f->per / each; /* rows of a sample */
    return shapes_agree(f->a->dim, f->a->rank, want, t->rank + 1);
}

void fed_hint(const Fed *f, StrBuf *sb) {
    char hint[160];
    sb_puts(sb,
            axes_hint(hint, (uint32_t)f->a->rank, f->a->dim,
                      (uint32_t)f->want->rank, f->want->shape, f->per != 0));
}

/* ---- what is done to it -------------------------------------------------- */

static const char *conversion(const Fed *f) {
    uint32_t from = f->a->dtype, to = (uint32_t)f->want->dtype;
    if (f->classes) return "class numbers as probabilities: 1 of the class";
    if (from == to || !is_float_dtype(to)) return NULL; /* every value fits */
    if (from == AMPC_DTYPE_U8) return "divided by 255";
    if (from == AMPC_DTYPE_BOOL) return "as 0 and 1";
    if (!is_float_dtype(from)) return "as";
    bool wider = dtype_bytes((uint32_t)from) > dtype_bytes((uint32_t)to);
    bool other = dtype_bytes((uint32_t)from) == dtype_bytes((uint32_t)to);
    return (wider || other) && !f->a->text ? "rounded to" : NULL;
}

static void shape_put_dims(StrBuf *sb, const int64_t *dim, int rank) {
    for (int i = 0; i < rank; i++)
        sb_printf(sb, "%s%lld", i ? "x" : "", (long long)dim[i]);
}

/* The shape without axes of length 1 and the axis of samples. */
static bool shape_same_axes(const Fed *f) {
    int i = 1, k = 1, rank = f->a->rank;
    const int64_t *dim = f->a->dim, *want = f->want->shape;
    for (; i < rank || k < f->want->rank; i++, k++) {
        while (i < rank && dim[i] == 1) i++;
        while (k < f->want->rank && want[k] == 1) k++;
        if ((i < rank) != (k < f->want->rank)) return false;
        if (i < rank && dim[i] != want[k]) return false;
    }
    return true;
}

/* "target: 2 classes: 0 ant, 1 bee" */
static void fed_classes(const Fed *f, StrBuf *sb) {
    const Classes *c = &f->a->classes;
    if (!c->name) return;
    sb_put_escaped(sb, f->want->name);
    sb_printf(sb, ": %d %s: ", c->n, c->n == 1 ? "class" : "classes");
    classes_tell(c, sb);
    sb_puts(sb, "\n");
}

void fed_tells(const Fed *f, StrBuf *sb) {
    fed_classes(f, sb);
    const char *how = conversion(f);
    bool shaped =
        f->per && !f->a->windows && !f->classes && !shape_same_axes(f);
    size_t start = sb->len;
    if (!how && !shaped) return;
    sb_put_escaped(sb, f->want->name);
    sb_printf(sb, ": %s ", dtype_info[f->a->dtype].text);
    shape_put_dims(sb, f->a->dim, f->a->rank);
    if (how) sb_printf(sb, ", %s", how);
    if (how && (!strcmp(how, "as") || !strcmp(how, "rounded to")))
        sb_printf(sb, " %s", dtype_info[f->want->dtype].text);
    if (shaped) {
        sb_printf(sb, ", as %lld", (long long)f->samples);
        int64_t each = 1;
        for (int i = 1; i < f->want->rank; i++) each *= f->want->shape[i];
        if (f->per != each) sb_printf(sb, "x%lld", (long long)(f->per / each));
        for (int i = 1; i < f->want->rank; i++)
            sb_printf(sb, "x%lld", (long long)f->want->shape[i]);
    }
    if (sb->len > start) sb_puts(sb, "\n");
}
