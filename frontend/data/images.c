/* SPDX-License-Identifier: Apache-2.0 */
/* images.c: a folder of pictures as an array: see images.h.  Opening a
   folder decodes all pictures into memory or a nameless file. */
#define _GNU_SOURCE
#include "frontend/data/images.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frontend/data/foreign.h"
#include "runtime/files/infile.h"
#include "runtime/program/dtype.h"

enum { KEPT = 16 << 20, MOST_FILE = 256 << 20 };

/* Names in a folder, sorted by byte values. */
typedef struct NameList {
    struct dirent **at;
    int n;
} NameList;

static int is_shown(const struct dirent *e) { return e->d_name[0] != '.'; }

static int by_bytes(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static Status list(Diag *d, const char *folder, NameList *to) {
    to->n = scandir(folder, &to->at, is_shown, by_bytes);
    if (to->n >= 0) return OK;
    to->n = 0;
    return fail(d, (Loc){.file = intern(folder)}, "%s", strerror(errno));
}

static void list_free(NameList *l) {
    for (int i = 0; i < l->n; i++) free(l->at[i]);
    free(l->at);
    *l = (NameList){NULL, 0};
}

static bool is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* ---- the samples --------------------------------------------------------- */

/* The state of reading a folder: the form of a sample, and where the next
   one is stored. */
typedef struct Folder {
    Diag *d;
    const char *path;
    const Classes *known; /* NULL: the folder's own */
    bool labels, plain;   /* plain: the folder has no classes */
    bool last;            /* channels are the last axis */
    int channels;
    int64_t width, height;
    Array *a;
    int64_t room; /* bytes allocated for a->memory */
} Folder;

static Status bad_picture(const Folder *f, const char *path, const char *why) {
    return fail(f->d, (Loc){.file = intern(path)}, "%s", why);
}

/* The message for a file that is not a picture, or for a kind that is not
   decoded. */
static Status no_picture(const Source *s, const char *file, size_t n) {
    StrBuf text = {0};
    const char *instead = infile_instead(file, n);
    if (instead)
        sb_puts(&text, instead);
    else if (!foreign_tell((const unsigned char *)file, n, s->path, &text))
        sb_puts(&text, "neither PNG nor JPEG");
    source_bad(s, "%s", text.data);
    sb_free(&text);
    return ERR_USER;
}

static Status read_whole(Diag *d, const char *path, char **out, size_t *n) {
    Source s = {.d = d, .path = path, .fd = -1};
    Status st = source_open(&s);
    *out = NULL;
    if (st == OK && (s.packed || s.size > MOST_FILE))
        st = source_bad(&s, "neither PNG nor JPEG");
    if (st == OK && !(*out = malloc((size_t)s.size + 1)))
        st = source_bad(&s, "out of memory");
    if (st == OK) st = source_get(&s, *out, (size_t)s.size, 0);
    if (st == OK && !picture_is((unsigned char *)*out, (size_t)s.size))
        st = no_picture(&s, *out, (size_t)s.size);
    *n = (size_t)s.size;
    source_close(&s);
    return st;
}

/* Appends bytes; moves to a file if there are more than KEPT. */
static Status append(Folder *f, const void *data, size_t n) {
    Array *a = f->a;
    Source s = {.d = f->d, .path = f->path};
    if (a->fd < 0 && a->bytes + n > KEPT) {
        a->fd = source_copy();
        if (a->fd < 0 || !source_put(a->fd, a->memory, a->bytes, 0))
            return source_copy_failed(&s);
        free(a->memory);
        a->memory = NULL;
    }
    if (a->fd >= 0) {
        if (!source_put(a->fd, data, n, a->bytes))
            return source_copy_failed(&s);
    } else {
        if ((int64_t)(a->bytes + n) > f->room) {
            f->room = 2 * (int64_t)(a->bytes + n);
            char *more = realloc(a->memory, (size_t)f->room);
            if (!more) return source_bad(&s, "out of memory");
            a->memory = more;
        }
        memcpy(a->memory + a->bytes, data, n);
    }
    a->bytes += n;
    return OK;
}

/* Channel by channel, the order of [C,H,W]. */
static unsigned char *planes(const unsigned char *p, int64_t pixels, int c) {
    unsigned char *out = malloc((size_t)(pixels * c));
    for (int64_t i = 0; out && i < pixels; i++)
        for (int k = 0; k < c; k++) out[k * pixels + i] = p[i * c + k];
    return out;
}

static Status add_picture(Folder *f, const char *path) {
    char why[100], *file;
    size_t n;
    Picture p = {.pixels = NULL};
    Status st = read_whole(f->d, path, &file, &n);
    if (st == OK &&
        !picture_decode((unsigned char *)file, n, f->channels, &p, why))
        st = bad_picture(f, path, why);
    free(file);
    TRY(st);
    int64_t pixels = f->width * f->height;
    unsigned char *sized = picture_resize(&p, f->width, f->height), *out;
    free(p.pixels);
    out = sized && !f->last ? planes(sized, pixels, f->channels) : sized;
    if (out != sized) free(sized);
    st = out ? append(f, out, (size_t)(pixels * f->channels))
             : bad_picture(f, path, "out of memory");
    free(out);
    return st;
}

static Status images_add_sample(Folder *f, const char *path, int64_t class) {
    if (is_folder(path))
        return fail(f->d, (Loc){.file = intern(path)},
                    "a folder among pictures: classes are FOLDER/CLASS/FILE");
    TRY(f->labels ? append(f, &class, sizeof class) : add_picture(f, path));
    f->a->dim[0]++;
    return OK;
}

static Status add_class(Folder *f, const char *path, int64_t class) {
    NameList files;
    TRY(list(f->d, path, &files));
    Status st = OK;
    for (int i = 0; i < files.n && st == OK; i++) {
        StrBuf name = {0};
        sb_printf(&name, "%s/%s", path, files.at[i]->d_name);
        st = images_add_sample(f, name.data, class);
        sb_free(&name);
    }
    list_free(&files);
    return st;
}

/* The number of a folder of pictures as a class. */
static Status folder_class(const Folder *f, const char *path, const char *name,
                           int64_t *class) {
    if (!f->labels) return OK;
    *class = classes_find(&f->a->classes, name);
    if (*class >= 0) return OK;
    StrBuf sb = {0};
    classes_unknown(&f->a->classes, &sb);
    fail(f->d, (Loc){.file = intern(path)}, "%s", sb.data);
    sb_free(&sb);
    return ERR_USER;
}

/* The classes: those that are known, or the folders. */
static Status take_classes(Folder *f, const NameList *names) {
    const char **of = calloc((size_t)names->n + 1, sizeof *of);
    const Classes *known = f->known;
    for (int i = 0; of && i < names->n; i++) of[i] = names->at[i]->d_name;
    bool ok = of && classes_make(&f->a->classes,
                                 known ? (const char *const *)known->name : of,
                                 known ? known->n : names->n);
    free(of);
    return ok ? OK : bad_picture(f, f->path, "out of memory");
}

static Status add_all(Folder *f) {
    NameList names;
    TRY(list(f->d, f->path, &names));
    Status st = f->labels ? take_classes(f, &names) : OK;
    int64_t class = 0;
    for (int i = 0; i < names.n && st == OK; i++) {
        StrBuf name = {0};
        sb_printf(&name, "%s/%s", f->path, names.at[i]->d_name);
        bool folder = is_folder(name.data);
        if (i == 0) f->plain = !folder;
        if (folder != !f->plain)
            st = fail(f->d, (Loc){.file = intern(name.data)},
                      "beside %s: a folder holds pictures, or folders of "
                      "classes alone",
                      f->plain ? "pictures" : "folders of classes");
        else if (f->plain)
            st = images_add_sample(f, name.data, 0);
        else
            st = folder_class(f, name.data, names.at[i]->d_name, &class);
        if (st == OK && folder) st = add_class(f, name.data, class);
        sb_free(&name);
    }
    list_free(&names);
    if (st == OK && f->labels && f->plain)
        return fail(f->d, (Loc){.file = intern(f->path)},
                    "has no folders of classes (FOLDER/CLASS/FILE), which "
                    "would be the labels");
    return st;
}

/* ---- what the input takes ------------------------------------------------ */

bool takes_labels(const ampc_tensor_info *want) {
    bool numbers = !is_float_dtype((uint32_t)want->dtype);
    return want->rank <= 2 && (numbers || !strncmp(want->name, "target", 6));
}

static bool are_channels(int64_t n) { return n == 1 || n == 3; }

static bool takes_pictures(const ampc_tensor_info *want) {
    return want->rank == 4 &&
           (are_channels(want->shape[1]) || are_channels(want->shape[3]));
}

static Status plan(Folder *f, const ampc_tensor_info *want) {
    Array *a = f->a;
    f->labels = takes_labels(want);
    a->dtype = f->labels ? AMPC_DTYPE_I64 : AMPC_DTYPE_U8;
    a->rank = 1;
    if (f->labels) return OK;
    f->last = want->rank == 4 && !are_channels(want->shape[1]);
    if (!takes_pictures(want))
        return fail(f->d, (Loc){.file = intern(f->path)},
                    "a folder of pictures feeds inputs of the shape "
                    "[batch, channels, height, width], with 1 or 3 channels, "
                    "and class numbers; '%s' is neither",
                    want->name);
    f->channels = (int)want->shape[f->last ? 3 : 1];
    f->height = want->shape[f->last ? 1 : 2];
    f->width = want->shape[f->last ? 2 : 3];
    if (f->width < 1 || f->height < 1 || f->width > 1 << 16 ||
        f->height > 1 << 16)
        return fail(f->d, (Loc){.file = intern(f->path)},
                    "pictures of that size are not made");
    a->rank = 4;
    memcpy(a->dim + 1, want->shape + 1, 3 * sizeof *a->dim);
    return OK;
}

static Status images_end(Folder *f, Status st) {
    Array *a = f->a;
    a->count = (int64_t)(a->bytes / dtype_bytes((uint32_t)a->dtype));
    if (st == OK && !a->memory && a->fd < 0 && !(a->memory = malloc(1)))
        st = bad_picture(f, f->path, "out of memory");
    if (st != OK) array_close(a);
    return st;
}

Status images_open(Diag *d, const char *folder, const ampc_tensor_info *want,
                   const Classes *known, Array *a) {
    Folder f = {.d = d, .path = folder, .known = known, .a = a};
    *a = (Array){.fd = -1};
    Status st = plan(&f, want);
    if (st == OK) st = add_all(&f);
    return images_end(&f, st);
}

/* The pictures of a list. */
static Status add_named(Folder *f, const CsvWords *names) {
    const char *slash = strrchr(f->path, '/');
    int beside = slash ? (int)(slash + 1 - f->path) : 0;
    Status st = OK;
    for (int i = 0; i < names->at.len && st == OK; i++) {
        StrBuf path = {0};
        const char *name = names->at.data[i];
        sb_printf(&path, "%.*s%s", *name == '/' ? 0 : beside, f->path, name);
        st = images_add_sample(f, path.data, 0);
        sb_free(&path);
    }
    if (st != OK)
        fail_note(f->d, (Loc){.file = intern(f->path)},
                  "names it, relative to its own folder");
    return st;
}

Status images_of_table(Diag *d, const char *table, const char *column,
                       const ampc_tensor_info *want, Array *a, bool *found) {
    CsvWords names = {.a = arena_new()};
    Folder f = {.d = d, .path = table, .a = a};
    *found = column && takes_pictures(want) &&
             (has_end(table, ".csv") || has_end(table, ".tsv"));
    *a = (Array){.fd = -1};
    Status st = *found ? csv_words(d, table, column, &names, found) : OK;
    if (st == OK && *found) st = plan(&f, want);
    if (st == OK && *found) st = images_end(&f, add_named(&f, &names));
    arena_free(names.a);
    return st;
}

/* ---- for people ---------------------------------------------------------- */

enum { LOOKED_AT = 64 }; /* number of pictures whose sizes are examined */

typedef struct Sizes {
    int64_t least[2], most[2]; /* width and height */
    int n, looked;
} Sizes;

static Status images_look(Diag *d, const char *path, Sizes *z) {
    char why[100], *file;
    size_t n;
    Picture p = {.pixels = NULL};
    if (z->n++ % 16 || z->looked == LOOKED_AT) return OK;
    Status st = read_whole(d, path, &file, &n);
    if (st == OK && !picture_decode((unsigned char *)file, n, 3, &p, why))
        st = fail(d, (Loc){.file = intern(path)}, "%s", why);
    free(file);
    free(p.pixels);
    TRY(st);
    int64_t size[] = {p.width, p.height};
    for (int i = 0; i < 2; i++) {
        if (!z->looked || size[i] < z->least[i]) z->least[i] = size[i];
        if (!z->looked || size[i] > z->most[i]) z->most[i] = size[i];
    }
    z->looked++;
    return OK;
}

static Status look_in(Diag *d, const char *folder, Sizes *z) {
    NameList files;
    TRY(list(d, folder, &files));
    Status st = OK;
    for (int i = 0; i < files.n && st == OK; i++) {
        StrBuf name = {0};
        sb_printf(&name, "%s/%s", folder, files.at[i]->d_name);
        st = images_look(d, name.data, z);
        sb_free(&name);
    }
    list_free(&files);
    return st;
}

/* The classes, as numbered by images_open. */
static Status tell_classes(Diag *d, const char *folder, const NameList *names,
                           Sizes *z, StrBuf *sb) {
    StrBuf path = {0};
    Status st = OK;
    for (int i = 0; i < names->n && st == OK; i++) {
        int before = z->n;
        path.len = 0;
        sb_printf(&path, "%s/%s", folder, names->at[i]->d_name);
        st = look_in(d, path.data, z);
        if (!sb_put_next(sb, i)) continue;
        sb_printf(sb, "%d ", i);
        sb_put_escaped(sb, names->at[i]->d_name);
        sb_printf(sb, " (%d)", z->n - before);
    }
    sb_put_more(sb, names->n);
    sb_free(&path);
    return st;
}

Status images_tell(Diag *d, const char *folder, StrBuf *sb) {
    Sizes z = {.n = 0};
    StrBuf classes = {0}, first = {0};
    NameList names;
    TRY(list(d, folder, &names));
    if (names.n) sb_printf(&first, "%s/%s", folder, names.at[0]->d_name);
    bool labels = first.len && is_folder(first.data);
    Status st = labels ? tell_classes(d, folder, &names, &z, &classes)
                       : look_in(d, folder, &z);
    if (st == OK) {
        sb_printf(sb, "  %d pictures", z.n);
        if (z.looked)
            sb_printf(sb, ", %lldx%lld", (long long)z.least[0],
                      (long long)z.least[1]);
        if (z.least[0] != z.most[0] || z.least[1] != z.most[1])
            sb_printf(sb, " to %lldx%lld", (long long)z.most[0],
                      (long long)z.most[1]);
        if (labels) sb_printf(sb, "; %d classes: %s", names.n, classes.data);
        sb_puts(sb, labels ? "\n" : ", without classes\n");
    }
    sb_free(&first);
    sb_free(&classes);
    list_free(&names);
    return st;
}
