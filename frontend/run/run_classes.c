/* SPDX-License-Identifier: Apache-2.0 */
/* run_classes.c: the names of classes in checkpoints. The cursor has the names
   that class numbers stood for in training, in the order of the numbers:
     "classes":{"target":["ant","bee"]}
   A later run numbers the words and the folders of its labels alike. */
#include "frontend/run/run_cmd.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/json.h"
#include "runtime/files/safetensors.h"

/* ---- writing ------------------------------------------------------------- */

static bool all_utf8(const Classes *c) {
    for (int i = 0; i < c->n; i++)
        if (!json_is_utf8(c->name[i], strlen(c->name[i]))) return false;
    return true;
}

static void put_class_names(const Classes *c, StrBuf *sb) {
    for (int i = 0; i < c->n; i++) {
        sb_puts(sb, i ? "," : "[");
        sb_put_json_string(sb, c->name[i]);
    }
    sb_puts(sb, "]");
}

/* Objectives may read the same input. */
static bool put_class_before(const StrBuf *sb, const char *key) {
    return sb->data && strstr(sb->data, key);
}

static void put_set(const FeedSet *set, StrBuf *sb) {
    for (int i = 0; i < set->n; i++) {
        const Feed *f = &set->feed[i];
        if (!f->a.classes.n || !all_utf8(&f->a.classes)) continue;
        StrBuf key = {0};
        sb_put_json_string(&key, f->want.name);
        sb_puts(&key, ":");
        if (!put_class_before(sb, key.data)) {
            if (sb->len) sb_puts(sb, ",");
            sb_puts(sb, key.data);
            put_class_names(&f->a.classes, sb);
        }
        sb_free(&key);
    }
}

void run_classes_put(const Run *r, StrBuf *sb) {
    StrBuf all = {0};
    put_set(&r->train, &all);
    for (uint32_t i = 0; i < r->nother; i++) put_set(&r->others[i], &all);
    if (all.len) sb_printf(sb, ",\"classes\":{%s}", all.data);
    sb_free(&all);
}

double run_classes_hash(const Run *r) {
    const FeedSet *sets[] = {&r->train, &r->eval};
    uint64_t hash = 0;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < sets[k]->n; i++) {
            const Classes *c = &sets[k]->feed[i].a.classes;
            for (int j = 0; j < c->n; j++)
                hash = hash_bytes(hash, c->name[j], strlen(c->name[j]) + 1);
        }
    return (double)(hash >> 12); /* exact */
}

/* ---- reading ------------------------------------------------------------- */

static Status damaged(Run *r, const char *path) {
    return fail(&r->diag, (Loc){.file = path}, "damaged: its names of classes");
}

/* The names of one input, which the file has in order. */
static Status take_names(Run *r, const char *path, JsonSpan list,
                         InputClasses *to) {
    JsonSpan key, v;
    int n = 0;
    if (!json_is_array(list)) return damaged(r, path);
    for (JsonIter it = json_iter(list); json_next(&it, &key, &v);) n++;
    const char **names = calloc((size_t)n + 1, sizeof *names);
    char *text = malloc(list.n + 1), *end = text;
    Status st = names && text ? OK : fail(&r->diag, (Loc){0}, "out of memory");
    n = 0;
    for (JsonIter it = json_iter(list); st == OK && json_next(&it, &key, &v);) {
        int64_t len = json_text(v, end, v.n + 1);
        if (len < 0) {
            st = damaged(r, path);
            break;
        }
        names[n++] = end;
        end += len + 1;
    }
    if (st == OK && !classes_make(&to->classes, names, n))
        st = fail(&r->diag, (Loc){0}, "out of memory");
    for (int i = 0; i < n && st == OK; i++)
        if (i >= to->classes.n || strcmp(to->classes.name[i], names[i]) != 0)
            st = damaged(r, path);
    free(names);
    free(text);
    return st;
}

static Status take_input(Run *r, const char *path, JsonSpan name,
                         JsonSpan list) {
    InputClasses *more =
        realloc(r->classes.of, sizeof *more * (size_t)(r->classes.n + 1));
    if (!more) return fail(&r->diag, (Loc){0}, "out of memory");
    r->classes.of = more;
    InputClasses *one = &more[r->classes.n++];
    *one = (InputClasses){.input = malloc(name.n + 1)};
    if (!one->input) return fail(&r->diag, (Loc){0}, "out of memory");
    if (json_text(name, one->input, name.n + 1) < 0) return damaged(r, path);
    return take_names(r, path, list, one);
}

/* text: __metadata__.ampc of a checkpoint. */
static Status take_all(Run *r, const char *path, const char *text, size_t n) {
    JsonSpan meta, cursor, all, name, list;
    Status st = OK;
    if (!json_parse(text, n, &meta) || !json_get(meta, "cursor", &cursor) ||
        !json_get(cursor, "classes", &all))
        return OK;
    for (JsonIter it = json_iter(all);
         st == OK && json_next(&it, &name, &list);)
        st = take_input(r, path, name, list);
    return st;
}

/* *opened: false if the file cannot be read, which loading it reports. */
static Status take_file(Run *r, const char *path, bool *opened) {
    StFile f;
    JsonSpan v;
    *opened = st_open(&safetensors_memory, path, &f) == AMPC_OK;
    if (!*opened) return OK;
    Status st = OK;
    if (f.metadata.n && json_get(f.metadata, "ampc", &v)) {
        char *text = malloc(v.n + 1);
        int64_t n = text ? json_text(v, text, v.n + 1) : -1;
        if (n >= 0) st = take_all(r, path, text, (size_t)n);
        free(text);
    }
    st_close(&f);
    return st;
}

Status run_classes_read(Run *r, bool trains) {
    const RunOptions *o = r->opt;
    bool opened = true;
    if (o->resume) {
        TRY(take_file(r, o->save, &opened));
        Str prev = internf("%s.prev", o->save);
        if (!opened) TRY(take_file(r, prev, &opened));
    }
    /* what trains decides by its own data what the numbers mean */
    for (int i = 0; i < o->load.n && !trains; i++)
        TRY(take_file(r, o->load.at[i], &opened));
    return OK;
}

void run_classes_free(Run *r) {
    for (int i = 0; i < r->classes.n; i++) {
        free(r->classes.of[i].input);
        classes_free(&r->classes.of[i].classes);
    }
    free(r->classes.of);
    r->classes = (KnownClasses){NULL, 0};
}

void run_classes_tell(const Run *r, StrBuf *sb) {
    const RunOptions *o = r->opt;
    if (r->train.n || !(o->load.n || o->resume)) return;
    for (int i = 0; i < r->eval.n; i++) {
        const Feed *f = &r->eval.feed[i];
        if (!f->a.classes.n || classes_known(&r->classes, f->want.name))
            continue;
        sb_put_escaped(sb, f->want.name);
        sb_puts(sb, ": ");
        sb_put_escaped(sb, o->resume ? o->save : o->load.at[0]);
        sb_puts(sb,
                " has no names of classes (a checkpoint of --save has them): "
                "these are numbered by their own names, which is right if the "
                "same names trained\n");
    }
}
