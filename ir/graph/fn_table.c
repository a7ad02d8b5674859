/* SPDX-License-Identifier: Apache-2.0 */
/* fn_table.c: see fn_table.h. */
#include "ir/graph/fn_table.h"

#include <string.h>

static VEC(Fn *) library, layers;
static bool begun;

void fn_table_begin(void) { begun = true; }

void fn_table_add(Fn *f) {
    if (f->layer)
        vec_push(f->arena, &layers, f);
    else
        vec_push(f->arena, &library, f);
}

int fn_table_count(void) { return library.len; }

const Fn *fn_table_at(int i) { return library.data[i]; }

static bool has_name(const Fn *f, const char *s, size_t n) {
    const char *t = f->info.text; /* nearly always another first letter */
    return n && *t == *s && strncmp(t, s, n) == 0 && !t[n];
}

const Fn *fn_table_find(const Module *m, const char *name, size_t n) {
    ASSERT(begun && "fn_library_read() has been called");
    for (int i = 0; m && i < m->fns.len; i++)
        if (has_name(m->fns.data[i], name, n)) return m->fns.data[i];
    for (int i = 0; i < library.len; i++)
        if (has_name(library.data[i], name, n)) return library.data[i];
    for (int i = 0; i < library.len; i++) {
        const char *loss = library.data[i]->loss;
        if (loss && strncmp(loss, name, n) == 0 && !loss[n])
            return library.data[i];
    }
    for (int i = 0; i < layers.len; i++)
        if (has_name(layers.data[i], name, n)) return layers.data[i];
    return NULL;
}

bool fn_table_has(const Module *m, const char *name, size_t n) {
    return begun && fn_table_find(m, name, n);
}
