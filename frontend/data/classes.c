/* SPDX-License-Identifier: Apache-2.0 */
/* classes.c: see classes.h. */
#define _POSIX_C_SOURCE 200809L
#include "frontend/data/classes.h"

#include <stdlib.h>
#include <string.h>

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

bool classes_make(Classes *c, const char *const *names, int n) {
    *c = (Classes){.name = calloc((size_t)n + 1, sizeof *c->name)};
    const char **sorted = calloc((size_t)n + 1, sizeof *sorted);
    bool ok = c->name && sorted;
    if (ok && n) {
        memcpy(sorted, names, (size_t)n * sizeof *sorted);
        qsort(sorted, (size_t)n, sizeof *sorted, by_name);
    }
    for (int i = 0; ok && i < n; i++) {
        if (i && !strcmp(sorted[i], sorted[i - 1])) continue;
        c->name[c->n] = strdup(sorted[i]);
        ok = c->name[c->n] != NULL;
        c->n += ok;
    }
    free(sorted);
    if (!ok) classes_free(c);
    return ok;
}

void classes_free(Classes *c) {
    for (int i = 0; i < c->n; i++) free(c->name[i]);
    free(c->name);
    *c = (Classes){NULL, 0};
}

const Classes *classes_known(const KnownClasses *k, const char *input) {
    for (int i = 0; i < k->n; i++)
        if (!strcmp(k->of[i].input, input)) return &k->of[i].classes;
    return NULL;
}

int64_t classes_find(const Classes *c, const char *name) {
    char **at = bsearch(&name, c->name, (size_t)c->n, sizeof *at, by_name);
    return at ? at - c->name : -1;
}

void classes_tell(const Classes *c, StrBuf *sb) {
    for (int i = 0; i < c->n && sb_put_next(sb, i); i++) {
        sb_printf(sb, "%d ", i);
        sb_put_escaped(sb, c->name[i]);
    }
    sb_put_more(sb, c->n);
}

void classes_unknown(const Classes *c, StrBuf *sb) {
    sb_printf(sb, "is not one of the %d classes that train: ", c->n);
    for (int i = 0; i < c->n && sb_put_next(sb, i); i++)
        sb_put_escaped(sb, c->name[i]);
    sb_put_more(sb, c->n);
}
