/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_load.c: a safetensors file to a session.

   The file is first read into a staging block. When all of it is read and
   checked, it is copied to the session, which can fail only with the device
   itself. Resuming needs a complete checkpoint of the same programs; if the
   file is truncated, damaged or missing, the previous checkpoint is used, and a
   notice says so. Loading takes weights by name, from any files: shards,
   other widths of floating numbers, other prefixes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/api/session.h"
#include "runtime/files/checkpoint.h"
#include "runtime/files/infile.h"

#include "runtime/base/glibc.h" /* last */

/* ---- scalars ------------------------------------------------------------- */

static bool take_float(JsonSpan v, double *out) {
    static const struct {
        const char *text;
        double number;
    } words[] = {{"nan", NAN}, {"inf", INFINITY}, {"-inf", -INFINITY}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        *out = words[i].number;
        if (json_equals(v, words[i].text)) return true;
    }
    return json_double(v, out);
}

static bool take_scalar(JsonSpan v, uint32_t dtype, void *p) {
    double x;
    int64_t n;
    switch (dtype) {
    case AMPC_F32: return take_float(v, &x) && float_put(AMPC_F32, x, p);
    case AMPC_F64: return take_float(v, p);
    case AMPC_I32:
        if (!json_int(v, &n) || n < INT32_MIN || n > INT32_MAX) return false;
        *(int32_t *)p = (int32_t)n;
        return true;
    case AMPC_I64: return json_int(v, p);
    case AMPC_BOOL:
        if (!json_int(v, &n) || n < 0 || n > 1) return false;
        *(uint8_t *)p = (uint8_t)n;
        return true;
    default: return false;
    }
}

static bool take_value(JsonSpan value, const PlanVar *v, char *p) {
    JsonSpan key, item;
    uint64_t at = 0;
    if (v->rank == 0) return take_scalar(value, v->dtype, p);
    if (!json_is_array(value)) return false;
    for (JsonIter it = json_iter(value); json_next(&it, &key, &item);) {
        if (at == v->bytes || !take_scalar(item, v->dtype, p + at))
            return false;
        at += dtype_bytes(v->dtype);
    }
    return at == v->bytes;
}

/* ---- loading ------------------------------------------------------------- */

#define NOT_STAGED UINT64_MAX
enum { RENAMES_MAX = 64, INDEX_MAX = 64 << 20, LOAD_PART = 8 << 10 };

typedef struct LoadFile {
    StFile st;
    char *path; /* own copy */
    size_t path_bytes;
} LoadFile;

/* Source of a variable's value. */
typedef struct LoadSource {
    LoadFile *file;
    const StTensor *t; /* NULL: no file contains it */
    bool average;      /* .. of the variable */
} LoadSource;

/* Names for a message: their number, and the first few. */
typedef struct LoadNames {
    size_t count, n;
    char text[300];
} LoadNames;

/* A load in progress. */
typedef struct Load {
    ampc_session *s;
    const ampc_weights *from;
    LoadFile **files; /* in the order given */
    size_t nfile, room;
    char *text; /* the metadata JSON of a checkpoint, decoded */
    size_t text_bytes;
    JsonSpan meta;
    bool resume, torn;
    bool other; /* resume: another build of the compiler made the checkpoint */
    bool told;  /* and it names its model and options */
    int64_t micro;
    const char *summed; /* ":OBJECTIVE" that the scalars belong to, or NULL */
    uint64_t used;      /* bit per renaming: it has renamed a tensor */
    size_t want;        /* number of tensors that the module has, too */
    LoadNames left, missing;
    LoadNames fresh;     /* number of other shapes, in layers that
                            --replace-head made */
    LoadSource *sources; /* per variable */
    uint64_t *at;        /* per variable: offset in `stage` */
    char *stage;
    size_t stage_bytes;
    char *cursor; /* NULL: leave it */
} Load;

static const char *load_path(const Load *l) { return l->from->paths[0]; }

static ampc_status load_memory(Load *l) {
    return session_fail(l->s, AMPC_ERR_MEMORY, "%s: out of memory",
                        load_path(l));
}

static ampc_status load_foreign(Load *l, const char *why) {
    return session_fail(l->s, AMPC_ERR_FORMAT,
                        "%s: not a checkpoint of ampc: %s", load_path(l), why);
}

/* ---- the files */

static ampc_status st_failed(Load *l, const StFile *f, ampc_status status) {
    l->torn |= f->torn;
    return session_fail(l->s, status, "%s", f->why);
}

static void file_free(Load *l, LoadFile *f) {
    st_close(&f->st);
    mem_free(l->s, f->path, f->path_bytes);
    mem_free(l->s, f, sizeof *f);
}

static bool files_room(Load *l) {
    if (l->nfile < l->room) return true;
    size_t room = l->room ? 2 * l->room : 4;
    LoadFile **files = mem_alloc(l->s, room * sizeof *files);
    if (!files) return false;
    if (l->nfile) memcpy(files, l->files, l->nfile * sizeof *files);
    mem_free(l->s, l->files, l->room * sizeof *files);
    l->files = files;
    l->room = room;
    return true;
}

/* Files written by ampc have a checksum; if it is missing, the file was
   damaged. */
static ampc_status file_verify(Load *l, StFile *f) {
    JsonSpan v;
    bool there;
    ampc_status status = st_verify(f, &there);
    if (status != AMPC_OK) return st_failed(l, f, status);
    if (there || !f->metadata.n || !json_get(f->metadata, "ampc", &v))
        return AMPC_OK;
    l->torn = true;
    return load_foreign(l, "it has no checksum");
}

/* Adds file NAME in the folder of `beside` (which may be empty). *json: the
   file is not a safetensors file but may be an index of several. */
static ampc_status add_file(Load *l, const char *beside, const char *name,
                            bool *json) {
    const char *slash = strrchr(beside, '/');
    size_t dir = slash ? (size_t)(slash + 1 - beside) : 0, n = strlen(name);
    LoadFile *f = files_room(l) ? mem_alloc(l->s, sizeof *f) : NULL;
    if (!f) return load_memory(l);
    *f = (LoadFile){.path_bytes = dir + n + 1, .st.fd = -1};
    f->path = mem_alloc(l->s, f->path_bytes);
    if (!f->path) {
        mem_free(l->s, f, sizeof *f);
        return load_memory(l);
    }
    memcpy(f->path, beside, dir);
    memcpy(f->path + dir, name, n + 1);
    ampc_status status = st_open(&l->s->opt, f->path, &f->st);
    *json = status != AMPC_OK && f->st.json;
    if (status != AMPC_OK) status = st_failed(l, &f->st, status);
    if (status == AMPC_OK) status = file_verify(l, &f->st);
    if (status == AMPC_OK)
        l->files[l->nfile++] = f;
    else
        file_free(l, f);
    return status;
}

static bool opened_for(const Load *l, size_t first, JsonSpan name) {
    for (size_t i = first; i < l->nfile; i++) {
        const char *slash = strrchr(l->files[i]->path, '/');
        if (json_equals(name, slash ? slash + 1 : l->files[i]->path))
            return true;
    }
    return false;
}

/* Files that "weight_map" names, in the folder of the index. */
static ampc_status add_shards(Load *l, const char *path, JsonSpan index) {
    JsonSpan map, key, v;
    char name[256];
    bool json;
    size_t first = l->nfile;
    if (!json_get(index, "weight_map", &map) || !json_is_object(map))
        return session_fail(l->s, AMPC_ERR_FORMAT,
                            "%s: neither a safetensors file nor an index of "
                            "some (no weight_map)",
                            path);
    for (JsonIter it = json_iter(map); json_next(&it, &key, &v);) {
        if (opened_for(l, first, v)) continue;
        if (json_text(v, name, sizeof name) <= 0 || strchr(name, '/'))
            return session_fail(l->s, AMPC_ERR_FORMAT,
                                "%s: its weight_map names no file beside it: "
                                "%.*s",
                                path, (int)(v.n < 100 ? v.n : 100), v.p);
        ampc_status status = add_file(l, path, name, &json);
        if (status != AMPC_OK) return status;
    }
    return AMPC_OK;
}

static ampc_status add_index(Load *l, const char *path) {
    struct stat st;
    JsonSpan index;
    ampc_status status = AMPC_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0 || st.st_size > INDEX_MAX) {
        if (fd >= 0) close(fd);
        return session_fail(l->s, AMPC_ERR_FORMAT, "%s: not a safetensors file",
                            path);
    }
    size_t n = (size_t)st.st_size;
    char *text = mem_alloc(l->s, n);
    if (!text) status = load_memory(l);
    if (text && (!infile_whole(fd, text, n, 0) || !json_parse(text, n, &index)))
        status = session_fail(l->s, AMPC_ERR_FORMAT,
                              "%s: neither a safetensors file nor JSON", path);
    if (status == AMPC_OK) status = add_shards(l, path, index);
    mem_free(l->s, text, n);
    close(fd);
    return status;
}

static ampc_status load_open(Load *l) {
    for (size_t i = 0; i < l->from->npath; i++) {
        const char *path = l->from->paths[i];
        bool json = false;
        if (!path || !*path)
            return session_fail(l->s, AMPC_ERR_ARGUMENT, "no path given");
        ampc_status status = add_file(l, "", path, &json);
        if (json && !l->resume) status = add_index(l, path);
        if (status != AMPC_OK) return status;
    }
    return AMPC_OK;
}

/* ---- a checkpoint's own facts */

/* For one of the two sides: "'sgd,lr=0.1'", or that the option is not given. */
static void put_said(const char *buf, bool given, char *out, size_t size) {
    snprintf(out, size, given ? "'%.200s'" : "not given", buf);
}

/* Names the options that differ between the checkpoint and the module;
   AMPC_OK: none. */
static ampc_status said_differs(Load *l, JsonSpan key, JsonSpan there,
                                JsonSpan here) {
    char name[80], a[300] = "", b[300] = "", was[300], is[300];
    bool in_file = there.n > 0, in_module = here.n > 0;
    if (json_text(key, name, sizeof name) < 0) name[0] = 0;
    if (in_file && json_text(there, a, sizeof a) < 0) a[0] = 0;
    if (in_module && json_text(here, b, sizeof b) < 0) b[0] = 0;
    if (in_file && in_module && there.n == here.n &&
        memcmp(there.p, here.p, here.n) == 0)
        return AMPC_OK;
    if (name[0] != '-')
        return session_fail(l->s, AMPC_ERR_FORMAT,
                            "%s: a checkpoint of another model: the file that "
                            "this module was compiled from has changed; load "
                            "takes weights alone",
                            load_path(l));
    put_said(a, in_file, was, sizeof was);
    put_said(b, in_module, is, sizeof is);
    return session_fail(l->s, AMPC_ERR_FORMAT,
                        "%s: a checkpoint of other options: %s was %s there "
                        "and is %s in this module; load takes weights alone",
                        load_path(l), name, was, is);
}

static ampc_status said_in_both(Load *l, JsonSpan of, JsonSpan other,
                                bool in_file) {
    JsonSpan key, v, w;
    char name[80];
    for (JsonIter it = json_iter(of); json_next(&it, &key, &v);) {
        if (json_text(key, name, sizeof name) < 0) continue;
        if (!json_get(other, name, &w)) w = (JsonSpan){NULL, 0};
        ampc_status status =
            in_file ? said_differs(l, key, v, w) : said_differs(l, key, w, v);
        if (status != AMPC_OK) return status;
    }
    return AMPC_OK;
}

/* The graphs differ: another build of the compiler made the checkpoint, if
   model and options are the same.
   The first checkpoints did not name them; then the variables must be the
   same. */
static ampc_status load_other(Load *l) {
    JsonSpan there, here;
    l->told = json_get(l->meta, "said", &there) && json_is_object(there);
    if (!l->told || !module_said(l->s->m, &here)) return AMPC_OK;
    ampc_status status = said_in_both(l, there, here, true);
    return status == AMPC_OK ? said_in_both(l, here, there, false) : status;
}

static ampc_status load_metadata(Load *l) {
    const StFile *f = &l->files[0]->st;
    JsonSpan v;
    int64_t version;
    char hash[32], mine[32];
    if (!f->metadata.n || !json_get(f->metadata, "ampc", &v) ||
        !json_is_string(v))
        return load_foreign(l, "it has no metadata 'ampc'");
    l->text_bytes = v.n + 1;
    l->text = mem_alloc(l->s, l->text_bytes);
    if (!l->text) return load_memory(l);
    int64_t n = json_text(v, l->text, l->text_bytes);
    if (n < 0 || !json_parse(l->text, (size_t)n, &l->meta) ||
        !json_get(l->meta, "version", &v) || !json_int(v, &version))
        return load_foreign(l, "its metadata is malformed");
    if (version != CHECKPOINT_VERSION)
        return session_fail(l->s, AMPC_ERR_FORMAT,
                            "%s: checkpoint version %lld; this module reads %d",
                            load_path(l), (long long)version,
                            CHECKPOINT_VERSION);
    if (!json_get(l->meta, "graph_hash", &v) ||
        json_text(v, hash, sizeof hash) < 0)
        return load_foreign(l, "its metadata has no graph_hash");
    snprintf(mine, sizeof mine, "%016" PRIx64, l->s->m->graph_hash);
    l->other = strcmp(hash, mine) != 0;
    return l->other ? load_other(l) : AMPC_OK;
}

/* ---- which tensor is which variable */

static void names_add(LoadNames *l, const char *name) {
    size_t room = sizeof l->text - l->n;
    if (l->count++ < 4)
        l->n += (size_t)snprintf(l->text + l->n, room, "%s'%.60s'",
                                 l->n ? ", " : "", name);
    else if (l->count == 5)
        snprintf(l->text + l->n, room, ", ...");
}

/* The tensor's name in this module, after the first renaming that applies. */
static bool meant_name(Load *l, JsonSpan name, char *buf, size_t cap) {
    int64_t n = json_text(name, buf, cap);
    if (n < 0) return false;
    for (size_t i = 0; i < l->from->nrename; i++) {
        const char *from = l->from->renames[i], *to = strchr(from, '=') + 1;
        size_t old = (size_t)(to - 1 - from), new = strlen(to);
        if (strncmp(buf, from, old) != 0) continue;
        if ((size_t)n - old + new >= cap) return false;
        memmove(buf + new, buf + old, (size_t)n - old + 1);
        memcpy(buf, to, new);
        l->used |= UINT64_C(1) << i;
        break;
    }
    return true;
}

/* PyTorch counts batches beside every running mean; no graph reads that
   counter. */
static bool is_batch_count(const char *name) {
    static const char end[] = "num_batches_tracked";
    size_t n = strlen(name), k = sizeof end - 1;
    return n >= k && strcmp(name + n - k, end) == 0;
}

static bool load_wants(const Load *l, const PlanVar *v) {
    return l->resume ? is_saved(v, l->micro) : is_weight(v);
}

/* What evaluation reads are the weights of a checkpoint. */
static void resolve_average(Load *l, LoadFile *f, const StTensor *t,
                            bool asked) {
    char name[1024], of[1024];
    if (!meant_name(l, t->name, name, sizeof name) ||
        !evaluated_for(name, asked, of, sizeof of))
        return;
    int v = find_var(l->s->m, of);
    if (v >= 0 && load_wants(l, &l->s->m->vars[v]))
        l->sources[v] = (LoadSource){f, t, true};
}

static ampc_status resolve_averages(Load *l) {
    bool asked = false;
    ampc_status status = averages_asked(l->s, &asked);
    for (size_t i = 0; i < l->nfile && !l->resume; i++) {
        const StFile *f = &l->files[i]->st;
        for (size_t k = 0; k < f->ntensor; k++)
            if (f->tensors[k].name.n)
                resolve_average(l, l->files[i], &f->tensors[k], asked);
    }
    return status;
}

/* PEFT's adapter files put this prefix before every name. */
static int find_meant(const Load *l, const char *name) {
    static const char peft[] = "base_model.model.";
    int v = find_var(l->s->m, st_name_of_tensor(name));
    if (v >= 0 || strncmp(name, peft, sizeof peft - 1) != 0) return v;
    return find_var(l->s->m, name + sizeof peft - 1);
}

static ampc_status resolve_one(Load *l, LoadFile *f, const StTensor *t) {
    char name[1024];
    bool fits = meant_name(l, t->name, name, sizeof name);
    int v = fits ? find_meant(l, name) : -1;
    if (v < 0) {
        if (!fits) snprintf(name, sizeof name, "?");
        if (l->resume)
            return session_fail(l->s, AMPC_ERR_FORMAT,
                                "%s: its tensor '%.100s' is unknown to this "
                                "module",
                                f->path, name);
        if (!own_name(name) && !is_batch_count(name)) names_add(&l->left, name);
        return AMPC_OK;
    }
    if (!load_wants(l, &l->s->m->vars[v])) return AMPC_OK;
    if (l->sources[v].average) return AMPC_OK;
    if (l->sources[v].t)
        return session_fail(l->s, AMPC_ERR_FORMAT,
                            "%s: a second tensor for '%.200s'; the first is in "
                            "%s",
                            f->path, name, l->sources[v].file->path);
    l->sources[v] = (LoadSource){f, t, false};
    return AMPC_OK;
}

static ampc_status check_renames(Load *l) {
    for (size_t i = 0; i < l->from->nrename; i++)
        if (!(l->used >> i & 1))
            return session_fail(l->s, AMPC_ERR_ARGUMENT,
                                "renaming '%.200s': no tensor of the files has "
                                "a name that begins so",
                                l->from->renames[i]);
    return AMPC_OK;
}

/* True if weight i is rounded to codes while it is loaded: then no file has
   its scales. */
static bool load_quantizes(const Load *l, int i) {
    return i >= 0 && l->sources[i].t &&
           is_float_dtype(l->sources[i].t->dtype) &&
           !is_float_dtype(l->s->m->vars[i].dtype);
}

/* True if a file must have the variable: scales only if the file has their
   codes.
 */
static bool load_needs(const Load *l, uint32_t i) {
    const PlanVar *v = &l->s->m->vars[i];
    int weight = weight_of_scales(l->s->m, v);
    return load_wants(l, v) && !section_of(v) &&
           (weight < 0 || l->resume ||
            (l->sources[weight].t && !load_quantizes(l, weight)));
}

static bool load_lacks(const Load *l, uint32_t i) {
    return load_needs(l, i) && !l->sources[i].t;
}

/* Length of the common end of both names, from a dot or the beginning on. */
static size_t common_end(const char *a, const char *b) {
    size_t n = strlen(a), k = strlen(b), whole = 0;
    for (size_t i = 1; i <= n && i <= k && a[n - i] == b[k - i]; i++)
        if ((i == n || a[n - i - 1] == '.') && (i == k || b[k - i - 1] == '.'))
            whole = i;
    return whole;
}

/* A renaming of prefixes, and the number of missing variables that it would
   find. */
typedef struct Renaming {
    char old[200], new[200];
    size_t found;
} Renaming;

/* The name of tensor k in a file; false for metadata and for names that are
   not text. */
static bool tensor_name(const StFile *f, size_t k, char *name, size_t cap) {
    JsonSpan s = f->tensors[k].name;
    return s.n && json_text(s, name, cap) >= 0;
}

static void count_found(const Load *l, Renaming *r) {
    char name[1024], meant[1300];
    size_t n = strlen(r->old);
    for (size_t i = 0; i < l->nfile; i++)
        for (size_t k = 0; k < l->files[i]->st.ntensor; k++) {
            if (!tensor_name(&l->files[i]->st, k, name, sizeof name) ||
                strncmp(name, r->old, n) != 0)
                continue;
            snprintf(meant, sizeof meant, "%s%s", r->new, name + n);
            int v = find_var(l->s->m, meant);
            r->found += v >= 0 && load_lacks(l, (uint32_t)v);
        }
}

/* A renaming derived from the tensor whose name has the longest common end
   with a missing variable's name. */
static Renaming renaming_for(const Load *l, const char *missing) {
    Renaming r = {.found = 0};
    char name[1024];
    size_t most = 0, n = strlen(missing);
    for (size_t i = 0; i < l->nfile; i++)
        for (size_t k = 0; k < l->files[i]->st.ntensor; k++) {
            if (!tensor_name(&l->files[i]->st, k, name, sizeof name)) continue;
            size_t same = common_end(name, missing), old = strlen(name) - same;
            if (same <= most || old >= sizeof r.old || n - same >= sizeof r.new)
                continue;
            most = same;
            snprintf(r.old, sizeof r.old, "%.*s", (int)old, name);
            snprintf(r.new, sizeof r.new, "%.*s", (int)(n - same), missing);
        }
    if (most) count_found(l, &r);
    return r;
}

/* Suggests the --load-map that would find most missing variables; tries only
   the first ones. "" if there is none, or if the caller already renames. */
static const char *load_hint(const Load *l, char *buf, size_t cap) {
    Renaming best = {.found = 0};
    uint32_t nvar = l->from->nrename ? 0 : l->s->m->nvar;
    for (uint32_t i = 0, tries = 0; i < nvar && tries < 8; i++) {
        if (!load_lacks(l, i)) continue;
        Renaming r = renaming_for(l, l->s->m->vars[i].name);
        if (r.found > best.found) best = r;
        tries++;
    }
    *buf = 0;
    if (best.found)
        snprintf(buf, cap, "; --load-map '%s=%s' would find %zu", best.old,
                 best.new, best.found);
    return buf;
}

/* No tensor matches: most likely the file is another model's, or has other
   prefixes. */
static ampc_status load_strange(Load *l) {
    char hint[500];
    return session_fail(l->s, AMPC_ERR_FORMAT,
                        "%s: none of its names is one of this module.  There: "
                        "%s; here: %s%s",
                        load_path(l), l->left.count ? l->left.text : "none",
                        l->missing.text, load_hint(l, hint, sizeof hint));
}

static ampc_status check_missing(Load *l) {
    const LoadNames *missing = &l->missing;
    if (missing->count && missing->count == l->want) return load_strange(l);
    if (missing->count && !l->from->partial)
        return session_fail(l->s, AMPC_ERR_FORMAT,
                            "%s: %zu of %zu tensors are missing, among them "
                            "%s: saved by another model or with other "
                            "options",
                            load_path(l), missing->count, l->want,
                            missing->text);
    return AMPC_OK;
}

/* Reports that another build made the checkpoint. */
static void report_other(Load *l) {
    JsonSpan v;
    char version[40];
    if (!json_get(l->meta, "made_by", &v) ||
        json_text(v, version, sizeof version) < 0)
        snprintf(version, sizeof version, "before 0.1.0");
    session_notice(l->s, "%.300s: made by another build of ampc (%s)%s",
                   load_path(l), version,
                   l->told ? "; model, options and variables are the same"
                           : ", which did not note model and options; the "
                             "variables are the same");
}

/* Reports on a successful load: missing variables and unused tensors. */
static void load_report(Load *l) {
    if (l->other) report_other(l);
    const LoadNames *left = &l->left, *missing = &l->missing;
    char lost[400] = "", extra[400] = "", hint[500] = "", fresh[400] = "";
    if (missing->count)
        snprintf(lost, sizeof lost, "; %zu missing, left as they were: %s",
                 missing->count, missing->text);
    if (left->count)
        snprintf(extra, sizeof extra,
                 "; %zu tensors are not in this module: "
                 "%s",
                 left->count, left->text);
    if (missing->count && left->count) load_hint(l, hint, sizeof hint);
    if (l->fresh.count)
        snprintf(fresh, sizeof fresh,
                 "; %s: of another shape in the file, as --replace-head made "
                 "%s",
                 l->fresh.text, l->fresh.count > 1 ? "them" : "it");
    if (missing->count || left->count || l->fresh.count)
        session_notice(l->s, "%.300s: %zu of %zu weights loaded%s%s%s%s",
                       load_path(l), l->want - missing->count - l->fresh.count,
                       l->want, fresh, lost, extra, hint);
}

static ampc_status load_resolve(Load *l) {
    size_t bytes = l->s->m->nvar * sizeof *l->sources;
    l->sources = mem_alloc(l->s, bytes);
    if (!l->sources) return load_memory(l);
    memset(l->sources, 0, bytes);
    ampc_status status = resolve_averages(l);
    if (status != AMPC_OK) return status;
    for (size_t i = 0; i < l->nfile; i++) {
        const StFile *f = &l->files[i]->st;
        for (size_t k = 0; k < f->ntensor; k++) {
            if (!f->tensors[k].name.n) continue;
            status = resolve_one(l, l->files[i], &f->tensors[k]);
            if (status != AMPC_OK) return status;
        }
    }
    status = check_renames(l);
    if (status != AMPC_OK) return status;
    for (uint32_t i = 0; i < l->s->m->nvar; i++) {
        l->want += load_needs(l, i);
        if (load_lacks(l, i)) names_add(&l->missing, l->s->m->vars[i].name);
    }
    return check_missing(l);
}

/* ---- where they are staged */

static bool same_shape(const StTensor *t, const PlanVar *v) {
    return t->rank == v->rank &&
           (v->rank == 0 ||
            memcmp(t->dim, v->dim, v->rank * sizeof *v->dim) == 0);
}

/* True if --replace-head made the variable: old files have the layer that it
   replaced. */
static bool is_fresh(const ampc_session *s, const PlanVar *v) {
    JsonSpan info, options, fresh, key, name;
    const char *json = s->m->info;
    if (!json || !json_parse(json, strlen(json), &info) ||
        !json_get(info, "options", &options) ||
        !json_get(options, "fresh", &fresh) || !json_is_array(fresh))
        return false;
    for (JsonIter it = json_iter(fresh); json_next(&it, &key, &name);)
        if (json_equals(name, v->name)) return true;
    return false;
}

/* Floating dtypes may differ in width, except on resume. */
static ampc_status check_tensor(Load *l, const LoadSource *from,
                                const PlanVar *v) {
    char want[160], got[160];
    const StTensor *t = from->t;
    PlanVar wide;
    int code;
    if (!l->resume && is_float_dtype(t->dtype) &&
        scales_of(l->s->m, v, &code) >= 0) {
        wide = widened_weight(v, code);
        v = &wide;
    }
    shape_text(want, v->dtype, v->rank, v->dim);
    if (t->foreign)
        return session_fail(l->s, AMPC_ERR_FORMAT,
                            "%s: '%.200s' is %.*s%.*s there, which is not "
                            "read, and %s in this module",
                            from->file->path, v->name,
                            (int)(t->dtype_text.n - 2), t->dtype_text.p + 1,
                            (int)(t->shape_text.n < 80 ? t->shape_text.n : 80),
                            t->shape_text.p, want);
    bool width =
        t->dtype == v->dtype ||
        (!l->resume && is_float_dtype(t->dtype) && is_float_dtype(v->dtype));
    if (width && same_shape(t, v)) return AMPC_OK;
    shape_text(got, t->dtype, t->rank, t->dim);
    return session_fail(
        l->s, AMPC_ERR_FORMAT,
        "%s: '%.200s' is %s in the file and %s in this module%s",
        from->file->path, v->name, got, want,
        l->from->partial ? " (to leave a tensor out, rename it to an unused "
                           "name: --load-map OLD=NEW)"
                         : "");
}

static ampc_status load_layout(Load *l) {
    const AmpcModule *m = l->s->m;
    uint64_t total = 0;
    l->at = mem_alloc(l->s, m->nvar * sizeof *l->at);
    if (!l->at) return load_memory(l);
    for (uint32_t i = 0; i < m->nvar; i++) {
        const PlanVar *v = &m->vars[i];
        l->at[i] = NOT_STAGED;
        if (!load_wants(l, v)) continue;
        if (!section_of(v) && !load_quantizes(l, weight_of_scales(m, v))) {
            if (!l->sources[i].t) continue;
            if (!l->resume && !same_shape(l->sources[i].t, v) &&
                is_fresh(l->s, v)) {
                names_add(&l->fresh, v->name);
                continue;
            }
            ampc_status status = check_tensor(l, &l->sources[i], v);
            if (status != AMPC_OK) return status;
        }
        l->at[i] = total;
        total += (v->bytes + 63) & ~(uint64_t)63;
    }
    l->stage = mem_alloc(l->s, total);
    l->stage_bytes = total;
    return l->stage ? AMPC_OK : load_memory(l);
}

/* ---- reading into the stage */

static ampc_status stage_scalar(Load *l, uint32_t i) {
    const PlanVar *v = &l->s->m->vars[i];
    const char *section = section_of(v);
    JsonSpan members, value;
    char *to = l->stage + l->at[i];
    bool there = json_get(l->meta, section, &members) &&
                 json_get(members, v->name + 5, &value);
    bool later = is_known(v->name, VAR_SHARES) || is_known(v->name, VAR_VALID);
    if (!there && (later || (l->other && l->told))) { /* that build did not
                                                         have it */
        l->at[i] = NOT_STAGED;
        return AMPC_OK;
    }
    if (!there || !take_value(value, v, to))
        return session_fail(l->s, AMPC_ERR_FORMAT,
                            "%s: its metadata has no valid '%s.%.100s'",
                            load_path(l), section, v->name + 5);
    if (var_in_range(l->s, i, to)) return AMPC_OK;
    return session_fail(l->s, AMPC_ERR_FORMAT,
                        "%s: its '%s.%.100s' = %.*s cannot be", load_path(l),
                        section, v->name + 5,
                        (int)(value.n < 40 ? value.n : 40), value.p);
}

/* Converts elements of one floating dtype to another. */
static ampc_status stage_converted(Load *l, LoadFile *f, const StTensor *t,
                                   const PlanVar *v, char *to) {
    _Alignas(8) char part[LOAD_PART];
    size_t a = dtype_bytes(t->dtype), b = dtype_bytes(v->dtype);
    uint64_t bytes = t->end - t->begin;
    for (uint64_t at = 0; at < bytes; at += LOAD_PART) {
        uint64_t n = bytes - at < LOAD_PART ? bytes - at : LOAD_PART;
        ampc_status status = st_read(&f->st, t, at, n, part);
        if (status != AMPC_OK) return st_failed(l, &f->st, status);
        for (uint64_t i = 0; i < n; i += a, to += b) {
            double x = float_at(t->dtype, part + i);
            if (float_put(v->dtype, x, to)) continue;
            return session_fail(l->s, AMPC_ERR_FORMAT,
                                "%s: %g in '%.200s' is beyond %s", f->path, x,
                                v->name, dtype_name(v->dtype));
        }
    }
    return AMPC_OK;
}

static ampc_status stage_tensor(Load *l, uint32_t i) {
    const PlanVar *v = &l->s->m->vars[i];
    LoadFile *f = l->sources[i].file;
    const StTensor *t = l->sources[i].t;
    char *to = l->stage + l->at[i];
    ampc_status status;
    int code;
    if (!t) return AMPC_OK; /* scales, which follow from their weight */
    if (load_quantizes(l, (int)i)) {
        int scale = scales_of(l->s->m, v, &code);
        status = quantize_tensor(&f->st, t, code, to,
                                 (float *)(void *)(l->stage + l->at[scale]));
    } else if (t->dtype != v->dtype) {
        return stage_converted(l, f, t, v, to);
    } else {
        status = st_read(&f->st, t, 0, v->bytes, to);
    }
    return status == AMPC_OK ? status : st_failed(l, &f->st, status);
}

static ampc_status load_stage(Load *l) {
    for (uint32_t i = 0; i < l->s->m->nvar; i++) {
        if (l->at[i] == NOT_STAGED) continue;
        ampc_status status = section_of(&l->s->m->vars[i]) ? stage_scalar(l, i)
                                                           : stage_tensor(l, i);
        if (status != AMPC_OK) return status;
    }
    return AMPC_OK;
}

static ampc_status load_cursor(Load *l) {
    JsonSpan v;
    if (!json_get(l->meta, "cursor", &v))
        return load_foreign(l, "its metadata has no cursor");
    l->cursor = mem_alloc(l->s, v.n + 1);
    if (!l->cursor) return load_memory(l);
    memcpy(l->cursor, v.p, v.n);
    l->cursor[v.n] = 0;
    return AMPC_OK;
}

/* Checks and stages the data that resuming needs in addition to weights. If
   a later check fails, memory of gradients may stay allocated, which has no
   visible effect. */
static ampc_status load_resume(Load *l) {
    JsonSpan counts, v;
    for (uint32_t i = 0; i < l->s->m->nvar; i++) { /* for each objective */
        const char *name = l->s->m->vars[i].name;
        int64_t micro;
        if (!is_known(name, VAR_MICRO)) continue;
        if (!json_get(l->meta, "counts", &counts) ||
            !json_get(counts, name + 5, &v) || !json_int(v, &micro) ||
            micro < 0 || micro > l->s->accumulate || (micro && l->micro))
            return load_foreign(l, "its count of micro-steps");
        if (!micro) continue;
        l->micro = micro;
        l->summed = strchr(name, ':');
    }
    if (l->micro > 0) {
        ampc_status status = l->s->backend->need_grads(l->s);
        if (status != AMPC_OK) return status;
    }
    return load_cursor(l);
}

/* Builds without ampc.shares gave each micro-batch the same weight. */
static ampc_status apply_shares(Load *l) {
    ampc_session *s = l->s;
    int v = s->known[VAR_SHARES];
    float shares = (float)l->micro;
    if (v < 0 || l->at[v] != NOT_STAGED || s->m->vars[v].bytes != sizeof shares)
        return AMPC_OK;
    return s->backend->put(s, var_ref((uint32_t)v, 0), &shares, sizeof shares);
}

static ampc_status load_apply(Load *l) {
    ampc_session *s = l->s;
    s->stale = true;
    for (uint32_t i = 0; i < s->m->nvar; i++) {
        if (l->at[i] == NOT_STAGED) continue;
        ampc_status status = s->backend->put(
            s, var_ref(i, 0), l->stage + l->at[i], s->m->vars[i].bytes);
        if (status != AMPC_OK) return status;
    }
    if (!l->resume) return AMPC_OK;
    s->micro = l->micro;
    if (l->summed) s->objective = l->summed + 1;
    session_find_known(s);
    int bad = s->known[VAR_BAD_DATA];
    s->bad.count = 0;
    if (bad >= 0 && l->at[bad] != NOT_STAGED)
        s->bad.count = (int64_t)scalar_number(s->m->vars[bad].dtype,
                                              l->stage + l->at[bad]);
    session_take_cursor(s, l->cursor);
    l->cursor = NULL;
    return apply_shares(l);
}

static void load_free(Load *l) {
    for (size_t i = 0; i < l->nfile; i++) file_free(l, l->files[i]);
    mem_free(l->s, l->files, l->room * sizeof *l->files);
    mem_free(l->s, l->text, l->text_bytes);
    mem_free(l->s, l->sources, l->s->m->nvar * sizeof *l->sources);
    mem_free(l->s, l->at, l->s->m->nvar * sizeof *l->at);
    mem_free(l->s, l->stage, l->stage_bytes);
    if (l->cursor) mem_free(l->s, l->cursor, strlen(l->cursor) + 1);
}

static ampc_status load_files(ampc_session *s, const ampc_weights *from,
                              bool resume, bool *torn) {
    Load l = {.s = s, .from = from, .resume = resume};
    Locale locale = locale_enter();
    ampc_status status = load_open(&l);
    if (status == AMPC_OK && resume) status = load_metadata(&l);
    if (status == AMPC_OK && resume) status = load_resume(&l);
    if (status == AMPC_OK) status = load_resolve(&l);
    if (status == AMPC_OK) status = load_layout(&l);
    if (status == AMPC_OK) status = load_stage(&l);
    locale_leave(locale);
    if (status == AMPC_OK) status = load_apply(&l);
    if (status == AMPC_OK) load_report(&l);
    *torn = status != AMPC_OK && l.torn;
    load_free(&l);
    return status;
}

static ampc_status load_one(ampc_session *s, const char *path, bool resume,
                            bool *torn) {
    ampc_weights from = {.size = sizeof from, .paths = &path, .npath = 1};
    return load_files(s, &from, resume, torn);
}

/* PATH is truncated or damaged, as s->error says: tries its predecessor, if
   that is complete. */
static ampc_status resume_previous(ampc_session *s, const char *path,
                                   ampc_status torn) {
    char why[sizeof s->error];
    bool too;
    size_t room = strlen(path) + sizeof ST_PREVIOUS;
    char *previous = mem_alloc(s, room);
    if (!previous)
        return session_fail(s, AMPC_ERR_MEMORY, "%s: out of memory", path);
    snprintf(previous, room, "%s" ST_PREVIOUS, path);
    memcpy(why, s->error, sizeof why);
    ampc_status status = load_one(s, previous, true, &too);
    if (status == AMPC_OK) {
        session_notice(s, "%.500s; resumed from the checkpoint before it, %s",
                       why, previous);
    } else if (status != AMPC_ERR_DEVICE) {
        memcpy(s->error, why, sizeof why);
        status = torn;
    }
    mem_free(s, previous, room);
    return status;
}

ampc_status checkpoint_load(ampc_session *s, const char *path, bool resume) {
    bool torn;
    ampc_status status = load_one(s, path, resume, &torn);
    return torn && resume ? resume_previous(s, path, status) : status;
}

ampc_status checkpoint_load_weights(ampc_session *s, const ampc_weights *from) {
    bool torn;
    if (!from->npath || !from->paths || (from->nrename && !from->renames) ||
        from->nrename > RENAMES_MAX)
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "ampc_weights: no paths, or more than %d renamings",
                            RENAMES_MAX);
    for (size_t i = 0; i < from->nrename; i++)
        if (!from->renames[i] || !strchr(from->renames[i], '='))
            return session_fail(s, AMPC_ERR_ARGUMENT,
                                "renaming '%.200s' is not OLD=NEW",
                                from->renames[i] ? from->renames[i] : "");
    return load_files(s, from, false, &torn);
}

/* Reads a tensor into a variable of the same size. */
static ampc_status read_var(ampc_session *s, StFile *f, const StTensor *t,
                            uint32_t var) {
    char part[LOAD_PART];
    uint64_t bytes = t->end - t->begin;
    for (uint64_t at = 0; at < bytes; at += LOAD_PART) {
        uint64_t n = bytes - at < LOAD_PART ? bytes - at : LOAD_PART;
        ampc_status status = st_read(f, t, at, n, part);
        if (status != AMPC_OK) return session_fail(s, status, "%s", f->why);
        status = shard_put(s, var_ref(var, at), part, n);
        if (status != AMPC_OK) return status;
    }
    return AMPC_OK;
}

/* Loads exactly the file that the module was compiled with; variables that
   are not in it have their constant fill. */
ampc_status checkpoint_sidecar(ampc_session *s, const char *path,
                               const PlanSidecar *want) {
    LoadFile f = {.path = (char *)path};
    ampc_weights from = {.paths = &path, .npath = 1};
    Load l = {.s = s, .from = &from, .resume = true};
    ampc_status status = st_open(&s->opt, path, &f.st);
    if (status == AMPC_OK) status = st_match(&f.st, want->bytes, want->crc);
    if (status != AMPC_OK) status = st_failed(&l, &f.st, status);
    for (uint32_t i = 0; i < s->m->nvar && status == AMPC_OK; i++) {
        const PlanVar *v = &s->m->vars[i];
        const StTensor *t = is_weight(v) ? st_find(&f.st, v->name) : NULL;
        if (!t) continue;
        status = check_tensor(&l, &(LoadSource){&f, t, false}, v);
        if (status == AMPC_OK) status = read_var(s, &f.st, t, i);
    }
    st_close(&f.st);
    return status;
}
