/* SPDX-License-Identifier: Apache-2.0 */
/* feed_size.c: see feed_size.h. */
#define _POSIX_C_SOURCE 200809L
#include "frontend/data/feed_size.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/json.h"
#include "runtime/program/dtype.h"

typedef int64_t Shape[AMPC_RANK_LIMIT];

/* An input at all sizes. */
typedef struct SizedInput {
    Shape *at;                 /* by size */
    Shape given;               /* of the batch */
    bool pads;                 /* there is a value of --pad: */
    _Alignas(8) char value[8]; /* an element */
    char *cut;                 /* room for a batch; NULL: not yet needed */
} SizedInput;

struct FeedSizes {
    int n;          /* sizes, in ascending order of bytes */
    char **program; /* by size */
    size_t *bytes;  /* of all inputs; by size */
    SizedInput *input;
    uint32_t ninput;
};

/* ---- open ---------------------------------------------------------------- */

/* Member `key` of the module's info, or of its options. */
static bool info_member(const ampc_api *api, bool options, const char *key,
                        JsonSpan *v) {
    ampc_module_info m = {.size = sizeof m};
    JsonSpan info;
    return api->describe(api->module, &m) == AMPC_OK && m.info &&
           json_parse(m.info, strlen(m.info), &info) &&
           (!options || json_get(info, "options", &info)) &&
           json_get(info, key, v);
}

static void read_pad(const ampc_api *api, const ampc_tensor_info *t,
                     SizedInput *to) {
    JsonSpan pads, v;
    double x;
    if (!info_member(api, true, "pad", &pads) || !json_get(pads, t->name, &v) ||
        !json_double(v, &x))
        return;
    to->pads = true;
    number_put((uint32_t)t->dtype, x, to->value);
}

/* Adds a program in front of the larger ones. */
static Status add_feed_size(Diag *d, const ampc_api *api, FeedSizes *s,
                            const char *program, uint32_t first) {
    size_t all = 0;
    int at = s->n;
    char *name = strdup(program);
    if (!name) return fail(d, (Loc){0}, "out of memory");
    s->program[s->n++] = name;
    for (uint32_t i = 0; i < s->ninput; i++) {
        ampc_tensor_info t = {.size = sizeof t};
        if (api->input(api->module, name, first + i, &t) != AMPC_OK)
            return fail(d, (Loc){0}, "this module has no program '%s'", name);
        all += t.bytes;
    }
    for (; at > 0 && s->bytes[at - 1] > all; at--) {
        s->bytes[at] = s->bytes[at - 1];
        s->program[at] = s->program[at - 1];
        for (uint32_t i = 0; i < s->ninput; i++)
            memcpy(s->input[i].at[at], s->input[i].at[at - 1], sizeof(Shape));
    }
    s->bytes[at] = all;
    s->program[at] = name;
    for (uint32_t i = 0; i < s->ninput; i++) {
        ampc_tensor_info t = {.size = sizeof t};
        api->input(api->module, name, first + i, &t);
        memcpy(s->input[i].at[at], t.shape, sizeof(Shape));
    }
    return OK;
}

/* Adds NAME@SIZE. */
static Status add_other(Diag *d, const ampc_api *api, FeedSet *fs,
                        JsonSpan size, uint32_t first) {
    StrBuf name = {0};
    char *text = malloc(size.n + 1);
    Status st = text && json_text(size, text, size.n + 1) > 0
                    ? OK
                    : fail(d, (Loc){0}, "the module's sizes cannot be read");
    sb_printf(&name, "%s@%s", fs->program, st == OK ? text : "");
    if (st == OK) st = add_feed_size(d, api, fs->sizes, name.data, first);
    sb_free(&name);
    free(text);
    return st;
}

Status feed_sizes_open(Diag *d, const ampc_api *api, FeedSet *fs,
                       uint32_t first, uint32_t n) {
    JsonSpan sizes, key, v;
    size_t all = 1;
    if (!info_member(api, false, "sizes", &sizes)) return OK;
    for (JsonIter it = json_iter(sizes); json_next(&it, &key, &v);) all++;
    FeedSizes *s = fs->sizes = calloc(1, sizeof *s);
    if (s) s->program = calloc(all, sizeof *s->program);
    if (s) s->bytes = calloc(all, sizeof *s->bytes);
    if (s) s->input = calloc(n + 1, sizeof *s->input);
    bool room = s && s->program && s->bytes && s->input;
    if (room) s->ninput = n;
    for (uint32_t i = 0; i < n && room; i++) {
        ampc_tensor_info t = {.size = sizeof t};
        s->input[i].at = calloc(all, sizeof(Shape));
        room = s->input[i].at != NULL;
        if (api->input(api->module, fs->program, first + i, &t) == AMPC_OK)
            read_pad(api, &t, &s->input[i]);
    }
    if (!room) return fail(d, (Loc){0}, "out of memory");
    TRY(add_feed_size(d, api, s, fs->program, first));
    for (JsonIter it = json_iter(sizes); json_next(&it, &key, &v);)
        TRY(add_other(d, api, fs, v, first));
    return OK;
}

void feed_sizes_free(FeedSet *fs) {
    FeedSizes *s = fs->sizes;
    for (uint32_t i = 0; s && i < s->ninput; i++) {
        free(s->input[i].at);
        free(s->input[i].cut);
    }
    for (int k = 0; s && k < s->n; k++) free(s->program[k]);
    if (s) {
        free(s->program);
        free(s->bytes);
        free(s->input);
    }
    free(s);
    fs->sizes = NULL;
}

/* ---- shapes -------------------------------------------------------------- */

/* The first axis that may have several sizes: the axis of samples has one. */
static int first_axis(const Feed *f) { return f->per > 0; }

static bool is_sized(const FeedSizes *s, const SizedInput *in, int axis) {
    for (int k = 1; k < s->n; k++)
        if (in->at[k][axis] != in->at[0][axis]) return true;
    return false;
}

/* True if a sample of the file has a size of the module. */
static bool is_one_of_sizes(const FeedSizes *s, const SizedInput *in,
                            const Array *a) {
    for (int k = 0; k < s->n; k++) {
        bool same = true;
        for (int i = 1; i < a->rank; i++) same &= a->dim[i] == in->at[k][i];
        if (same) return true;
    }
    return false;
}

void feed_sizes_shrink(const FeedSet *fs, Feed *f) {
    const FeedSizes *s = fs->sizes;
    ampc_tensor_info t = f->want;
    const SizedInput *in = s ? &s->input[f - fs->feed] : NULL;
    if (!s || f->a.windows || f->a.rank != t.rank) return;
    if (!in->pads && !is_one_of_sizes(s, in, &f->a)) return;
    for (int i = 1; i < t.rank; i++) {
        if (f->a.dim[i] == t.shape[i]) continue;
        if (f->a.dim[i] > t.shape[i] || f->a.dim[i] < 1 || !is_sized(s, in, i))
            return;
        t.bytes = t.bytes / (size_t)t.shape[i] * (size_t)f->a.dim[i];
        t.shape[i] = f->a.dim[i];
    }
    f->want = t;
}

const char *feed_sizes_hint(const FeedSet *fs, const Feed *f) {
    const FeedSizes *s = fs->sizes;
    const SizedInput *in = s ? &s->input[f - fs->feed] : NULL;
    bool sized = false, over = false, same = in && f->a.rank == f->want.rank;
    for (int i = 1; same && i < f->a.rank; i++) {
        sized |= is_sized(s, in, i);
        over |= f->a.dim[i] > f->want.shape[i] && is_sized(s, in, i);
    }
    if (!sized) return "";
    if (over) return "; a larger size of --dim, or shorter samples, would fit";
    return in->pads ? "" : "; other sizes need a value of --pad";
}

int feed_sizes_count(const FeedSet *fs) { return fs->sizes ? fs->sizes->n : 1; }

/* The smallest size with room for these shapes, an array by input. */
static int smallest(const FeedSet *fs, Shape *need) {
    const FeedSizes *s = fs->sizes;
    for (int k = 0; k < s->n; k++) {
        bool room = true;
        for (int i = 0; i < fs->n; i++)
            for (int a = first_axis(&fs->feed[i]); a < fs->feed[i].want.rank;
                 a++)
                room &= need[i][a] <= s->input[i].at[k][a];
        if (room) return k;
    }
    return s->n - 1;
}

const char *feed_program(const FeedSet *fs) {
    Shape need[RUN_MAX_LIST];
    if (!fs->sizes || fs->n > RUN_MAX_LIST) return fs->program;
    for (int i = 0; i < fs->n; i++)
        memcpy(need[i], fs->feed[i].want.shape, sizeof(Shape));
    return fs->sizes->program[smallest(fs, need)];
}

/* ---- a batch ------------------------------------------------------------- */

/* Lengths of all axes behind which n samples have nothing but the value. */
static void find_used(const Feed *f, const SizedInput *in, int64_t n,
                      Shape used) {
    const ampc_tensor_info *t = &f->want;
    size_t each = dtype_bytes((uint32_t)t->dtype);
    int last = t->rank - 1;
    int64_t wide = t->shape[last], rows = n * f->per / wide, k;
    for (int a = 1; a < t->rank; a++) used[a] = 1;
    for (int64_t r = 0; r < rows; r++) {
        const char *row = f->to + (size_t)(r * wide) * each;
        for (k = wide; k > 0; k--)
            if (memcmp(row + (size_t)(k - 1) * each, in->value, each)) break;
        if (k == 0) continue;
        if (k > used[last]) used[last] = k;
        int64_t rest = r;
        for (int a = last - 1; a > 0; a--) {
            int64_t at = rest % t->shape[a] + 1;
            rest /= t->shape[a];
            if (at > used[a]) used[a] = at;
        }
    }
}

static void find_all_used(const FeedSet *fs, int64_t n, Shape *used) {
    for (int i = 0; i < fs->n; i++) {
        const Feed *f = &fs->feed[i];
        const SizedInput *in = &fs->sizes->input[i];
        memcpy(used[i], f->want.shape, sizeof(Shape));
        if (!fs->whole && in->pads && f->per > 0 && f->want.rank > 1)
            find_used(f, in, n, used[i]);
    }
}

int feed_sizes_of(const FeedSet *fs, int64_t n) {
    Shape used[RUN_MAX_LIST];
    if (!fs->sizes || fs->n > RUN_MAX_LIST) return 0;
    find_all_used(fs, n, used);
    return smallest(fs, used);
}

static void cut_one(const FeedSet *fs, int i, int size) {
    const Feed *f = &fs->feed[i];
    SizedInput *s = &fs->sizes->input[i];
    ampc_input *in = &fs->in[i];
    const int64_t *shape = f->want.shape;
    size_t each = dtype_bytes((uint32_t)f->want.dtype), bytes = each;
    bool same = true;
    memcpy(s->given, shape, sizeof(Shape));
    for (int a = first_axis(f); a < f->want.rank; a++) {
        if (s->at[size][a] < shape[a]) s->given[a] = s->at[size][a];
        same &= s->given[a] == shape[a];
    }
    for (int a = 0; a < f->want.rank; a++) bytes *= (size_t)s->given[a];
    in->rank = f->want.rank;
    in->shape = s->given;
    if (same) return;
    if (!s->cut) s->cut = malloc(f->want.bytes);
    if (!s->cut) { /* the whole batch serves as well */
        memcpy(s->given, shape, sizeof(Shape));
        return;
    }
    corner_copy(s->cut, s->given, f->to, shape, (uint32_t)f->want.rank, each);
    in->data = s->cut;
    in->bytes = bytes;
}

void feed_sizes_cut(FeedSet *fs, int64_t n) {
    int size = feed_sizes_of(fs, n);
    for (int i = 0; i < fs->n && fs->sizes; i++) cut_one(fs, i, size);
}

void feed_sizes_keep(FeedSet *fs, int i, int64_t n) {
    int64_t *rows = &fs->sizes->input[i].given[0];
    *rows = *rows / fs->batch * n;
}
