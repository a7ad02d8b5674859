/* SPDX-License-Identifier: Apache-2.0 */
/* describe.c: see describe.h.  Files are opened as a feed opens them. */
#define _POSIX_C_SOURCE 200809L
#include "frontend/data/describe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "frontend/data/feed.h"
#include "frontend/data/foreign.h"
#include "frontend/data/images.h"

enum {
    PART = 8192,    /* elements at a time */
    CLASSES = 1000, /* no more are counted */
    PARTS = 100,    /* arrays of a file that are described */
    COLUMNS = 32,   /* a table with more columns is described as one array */
    SHOWN_CLASSES = 20
};

/* ---- values -------------------------------------------------------------- */

typedef struct Values {
    double least, most, sum;
    int64_t finite, nans, infinite;
    bool classes; /* whole numbers from 0 to CLASSES - 1 */
    int64_t count[CLASSES];
} Values;

static void add_value(Values *v, double x) {
    if (!isfinite(x)) {
        *(isnan(x) ? &v->nans : &v->infinite) += 1;
        v->classes = false;
        return;
    }
    if (!v->finite || x < v->least) v->least = x;
    if (!v->finite || x > v->most) v->most = x;
    v->finite++;
    v->sum += x;
    v->classes = v->classes && x >= 0 && x < CLASSES;
    if (v->classes) v->count[(int)x]++;
}

static Status describe_look(Diag *d, const char *path, const Array *a,
                            Values *v) {
    char raw[PART * 8];
    double x[PART];
    int dtype = (int)a->dtype;
    *v = (Values){.classes = !is_float_dtype((uint32_t)dtype)};
    for (int64_t at = 0; at < a->count; at += PART) {
        int64_t n = a->count - at < PART ? a->count - at : PART;
        TRY(array_get(d, path, a, at, n, raw));
        numbers_of(dtype, raw, 0, n, x);
        for (int64_t i = 0; i < n; i++) add_value(v, x[i]);
    }
    return OK;
}

static void put_counts(const Values *v, const char *of, StrBuf *sb) {
    int kinds = 0, most = (int)v->most;
    for (int i = 0; i <= most; i++) kinds += v->count[i] > 0;
    if (kinds == most + 1)
        sb_printf(sb, "; %d %s", kinds, of);
    else
        sb_printf(sb, "; %d %s below %d", kinds, of, most + 1);
    if (most >= SHOWN_CLASSES) return;
    sb_puts(sb, ":");
    for (int i = 0; i <= most; i++)
        sb_printf(sb, " %lld", (long long)v->count[i]);
}

static void put_describe_values(const Array *a, const Values *v, StrBuf *sb) {
    bool column = a->rank == 1 || (a->rank == 2 && a->dim[1] == 1);
    if (v->finite)
        sb_printf(sb, ", %.6g to %.6g, mean %.4g", v->least, v->most,
                  v->sum / (double)v->finite);
    if (v->nans) sb_printf(sb, ", %lld NaN", (long long)v->nans);
    if (v->infinite) sb_printf(sb, ", %lld infinite", (long long)v->infinite);
    if (!v->finite) return;
    if (a->windows && v->classes)
        put_counts(v, "tokens", sb);
    else if (a->windows)
        sb_printf(sb, "; a vocabulary of %.0f or more", v->most + 1);
    else if (column && v->classes && a->count > v->most)
        put_counts(v, "classes", sb);
}

/* ---- words --------------------------------------------------------------- */

/* "40 words, 2 classes: 0 ant (25), 1 bee (15)"; names of files all differ. */
static void put_class_words(const Array *a, const Values *v, StrBuf *sb) {
    const Classes *c = &a->classes;
    bool differ = c->n == a->count && c->n > 1;
    sb_printf(sb, "%lld words, ", (long long)a->count);
    if (differ)
        sb_puts(sb, "all different: ");
    else
        sb_printf(sb, "%d %s: ", c->n, c->n == 1 ? "class" : "classes");
    for (int i = 0; i < c->n && sb_put_next(sb, i); i++) {
        if (!differ) sb_printf(sb, "%d ", i);
        sb_put_escaped(sb, c->name[i]);
        if (!differ && i < CLASSES)
            sb_printf(sb, " (%lld)", (long long)v->count[i]);
    }
    sb_put_more(sb, c->n);
}

/* ---- arrays -------------------------------------------------------------- */

/* Text is read as integers if possible, as for an input of integers. */
static Status open_array(Diag *d, const char *path, const char *part,
                         Array *a) {
    Diag whole = {0};
    ArrayPick pick = {
        .part = part, .input = "", .integers = true, .labels = true};
    Status st = array_open(&whole, path, &pick, a);
    pick.integers = false;
    if (st != OK) st = array_open(d, path, &pick, a);
    sb_free(&whole.text);
    return st;
}

/* " 2 age: ", or shorter if there is no name. */
static void put_describe_name(const ArrayPart *p, StrBuf *sb) {
    sb_puts(sb, "  ");
    if (p->part) sb_put_escaped(sb, p->part);
    if (p->label) sb_puts(sb, " ");
    if (p->label) sb_put_escaped(sb, p->label);
    if (p->part) sb_puts(sb, ": ");
}

static void put_describe_numbers(const Array *a, const Values *v, StrBuf *sb) {
    sb_printf(sb, "%s ", dtype_info[a->dtype].text);
    for (int i = 0; i < a->rank; i++)
        sb_printf(sb, "%s%lld", i ? "x" : "", (long long)a->dim[i]);
    put_describe_values(a, v, sb);
}

static Status tell_array(Diag *d, const char *path, const ArrayPart *p,
                         bool *windows, StrBuf *sb) {
    Array a;
    Values *v = malloc(sizeof *v);
    if (!v) return fail(d, (Loc){.file = intern(path)}, "out of memory");
    Diag unnamed = {0};
    Status st = open_array(p->label ? &unnamed : d, path, p->part, &a);
    if (st != OK && p->label) /* words are chosen by their name */
        st = open_array(d, path, p->label, &a);
    sb_free(&unnamed.text);
    if (st == OK) {
        st = describe_look(d, path, &a, v);
        *windows = a.windows;
        put_describe_name(p, sb);
        if (a.classes.name)
            put_class_words(&a, v, sb);
        else
            put_describe_numbers(&a, v, sb);
        sb_puts(sb, "\n");
        array_close(&a);
    }
    free(v);
    return st;
}

/* A part that cannot be read is described with the reason. */
static void tell_part(const char *path, const ArrayPart *p, StrBuf *sb) {
    Diag d = {0};
    bool windows;
    if (tell_array(&d, path, p, &windows, sb) != OK) {
        const char *why = strstr(d.text.data, "error: ");
        put_describe_name(p, sb);
        sb_puts(sb, why ? why + strlen("error: ") : d.text.data);
    }
    sb_free(&d.text);
}

static void tell_parts(const char *file, const ArrayParts *all, StrBuf *sb) {
    int n = all->list.len;
    for (int i = 0; i < n && i < PARTS; i++)
        tell_part(file, &all->list.data[i], sb);
    if (n > PARTS) sb_printf(sb, "  and %d others\n", n - PARTS);
    sb_printf(sb, "  fed by part: --feed INPUT=%s:", name_to_copy(file));
    const ArrayPart *first = &all->list.data[0];
    sb_put_escaped(sb, first->label ? first->label : first->part);
    sb_puts(sb, "\n");
}

static Status tell_whole(Diag *d, const char *file, const char *path,
                         const char *part, StrBuf *sb) {
    bool windows;
    TRY(tell_array(d, path, &(ArrayPart){part, NULL}, &windows, sb));
    if (!windows || (part && strchr(part, '+'))) return OK;
    const char *name = name_to_copy(file);
    sb_printf(sb,
              "  fed as windows of the input's length: --feed INPUT=%s "
              "--feed target=%s%s+1\n",
              name, name, part ? "" : ":");
    return OK;
}

static Status tell_file(Diag *d, const char *file, const char *path,
                        const char *part, StrBuf *sb) {
    ArrayParts all = {.arena = arena_new()};
    Status st = array_parts(d, path, &all);
    if (st == OK) {
        bool named = all.list.len && all.list.data[0].label;
        bool whole = part || all.list.len < (named ? 1 : 2) ||
                     (all.columns && all.list.len > COLUMNS);
        sb_put_path(sb, file);
        sb_printf(sb, ": %s\n", all.format);
        if (whole)
            st = tell_whole(d, file, path, part, sb);
        else
            tell_parts(file, &all, sb);
    }
    arena_free(all.arena);
    return st;
}

Status data_tell(Diag *d, const char *file, StrBuf *sb) {
    struct stat st;
    char *path = strdup(file);
    if (!path) return fail(d, (Loc){0}, "out of memory");
    const char *part = file_part(path);
    Status status;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        sb_put_path(sb, file);
        sb_puts(sb, ": a folder of pictures\n");
        status = images_tell(d, path, sb);
    } else {
        status = tell_file(d, file, path, part, sb);
    }
    free(path);
    return status;
}
