/* SPDX-License-Identifier: Apache-2.0 */
/* cifar.c: the binary files of CIFAR-10 and CIFAR-100: records of one or two
   class numbers and a picture, 3x32x32 bytes.  An input of integers takes the
   class numbers, any other input the pictures; FILE:images, FILE:labels, and
   for CIFAR-100 FILE:coarse and FILE:fine (labels) select one. Several files
   joined into one (cat data_batch_ .bin > train.bin) are read as one. */
#include <stdlib.h>
#include <string.h>

#include "frontend/data/array.h"

enum { PIXELS = 3 * 32 * 32, RECORDS = 64 };

typedef struct Form {
    int labels, classes[2]; /* bytes before a picture; each is below this */
} Form;

static const Form forms[] = {{1, {10}}, {2, {20, 100}}};

/* A file's first records have labels in range and some bright pixels; token
   numbers and texts do not have both at these positions. */
static bool cifar_fits(const Form *f, const unsigned char *p, size_t n) {
    size_t record = (size_t)f->labels + PIXELS;
    bool bright = false;
    if (n < record || (n < ARRAY_HEAD && n % record)) return false;
    for (size_t at = 0; at + record <= n; at += record) {
        for (int i = 0; i < f->labels; i++)
            if (p[at + (size_t)i] >= f->classes[i]) return false;
        for (size_t i = (size_t)f->labels; i < record; i++)
            bright |= p[at + i] >= 128;
    }
    return bright;
}

static const Form *cifar_form_of(const unsigned char *p, size_t n) {
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (cifar_fits(&forms[i], p, n)) return &forms[i];
    return NULL;
}

static bool is_cifar(const unsigned char *p, size_t n) {
    return cifar_form_of(p, n) != NULL;
}

/* The bytes of a record that make up the part. */
typedef struct Cut {
    size_t from, n, record;
} Cut;

static Status cifar_choose(const Source *s, const Form *f,
                           const ArrayPick *pick, Cut *c) {
    const char *part = pick->part;
    size_t labels = (size_t)f->labels;
    if (!part) part = pick->integers ? "labels" : "images";
    c->record = labels + PIXELS;
    c->n = 1;
    c->from = labels - 1;
    if (!strcmp(part, "images")) {
        c->from = labels;
        c->n = PIXELS;
    } else if (labels == 2 && !strcmp(part, "coarse")) {
        c->from = 0;
    } else if (strcmp(part, "labels") &&
               (labels == 1 || strcmp(part, "fine"))) {
        return source_bad(s,
                          "no part '%s' (FILE:PART chooses); the file has "
                          "images, labels%s",
                          part, labels == 2 ? " (fine), coarse" : "");
    }
    return OK;
}

/* Copies that part of each record, one after the other. */
static Status copy(Source *s, const ArrayHead *h, const Cut *c, int64_t *n) {
    unsigned char *in = malloc(RECORDS * c->record), *out = in;
    uint64_t at = 0, written = 0;
    size_t got = in ? 1 : 0;
    Status st = in ? OK : source_bad(s, "out of memory");
    /* the first bytes of a packed file have been read already */
    size_t kept = s->packed ? h->head_bytes : 0;
    for (size_t fresh; st == OK && got; at += got) {
        size_t want = RECORDS * c->record, known = 0;
        if (at < kept) {
            known = kept - at < want ? kept - at : want;
            memcpy(in, h->head + at, known);
        }
        st = source_take(s, in + known, want - known, at + known, &fresh);
        got = known + fresh;
        if (st == OK && got % c->record)
            st = source_bad(s, "truncated: a record of %zu bytes is not whole",
                            c->record);
        size_t records = got / c->record;
        for (size_t i = 0; i < records && st == OK; i++)
            memmove(out + i * c->n, in + i * c->record + c->from, c->n);
        if (st == OK && !source_put(h->copy, out, records * c->n, written))
            st = source_copy_failed(s);
        written += records * c->n;
    }
    *n = (int64_t)(written / c->n);
    free(in);
    return st;
}

static Status cifar_find(Source *s, const ArrayPick *pick, ArrayHead *h) {
    Cut c;
    TRY(cifar_choose(s, cifar_form_of(h->head, h->head_bytes), pick, &c));
    h->copy = source_copy();
    if (h->copy < 0) return source_copy_failed(s);
    h->dtype = AMPC_DTYPE_U8;
    h->rank = c.n == PIXELS ? 4 : 1;
    h->dim[1] = 3;
    h->dim[2] = h->dim[3] = 32;
    h->found = true;
    return copy(s, h, &c, &h->dim[0]);
}

static Status cifar_parts(Source *s, const ArrayHead *h, ArrayParts *to) {
    const Form *f = cifar_form_of(h->head, h->head_bytes);
    (void)s;
    vec_push(to->arena, &to->list, (ArrayPart){"images", NULL});
    vec_push(to->arena, &to->list, (ArrayPart){"labels", NULL});
    if (f->labels == 2)
        vec_push(to->arena, &to->list, (ArrayPart){"coarse", NULL});
    return OK;
}

const ArrayFormat cifar_format = {
    .name = "CIFAR", .is = is_cifar, .find = cifar_find, .parts = cifar_parts};
