/* SPDX-License-Identifier: Apache-2.0 */
/* load_names.c: which tensor of the files is which variable, and what to say
   about tensors and variables that are left. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "runtime/base/try.h"
#include "runtime/files/load.h"

void load_names_add(LoadNames *l, const char *name) {
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

bool load_wants(const Load *l, const PlanVar *v) {
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
        if (!own_name(name) && !is_batch_count(name))
            load_names_add(&l->left, name);
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

bool load_quantizes(const Load *l, int i) {
    return i >= 0 && l->sources[i].t &&
           is_float_dtype(l->sources[i].t->dtype) &&
           !is_float_dtype(l->s->m->vars[i].dtype);
}

bool load_begins(const Load *l, uint32_t i) {
    static const char end[] = ".lora_magnitude_vector";
    const PlanVar *v = &l->s->m->vars[i];
    const char *json = l->s->m->info;
    char module[1024], weight[1024];
    JsonSpan info, lora, of, text;
    size_t n = strlen(v->name), k = sizeof end - 1;
    if (l->resume || l->sources[i].t || n <= k || n - k >= sizeof module ||
        strcmp(v->name + n - k, end) != 0)
        return false;
    memcpy(module, v->name, n - k);
    module[n - k] = 0;
    if (!json || !json_parse(json, strlen(json), &info) ||
        !json_get(info, "lora", &lora) || !json_get(lora, module, &of) ||
        !json_get(of, "weight", &text) ||
        json_text(text, weight, sizeof weight) < 0)
        return false;
    int w = find_var(l->s->m, weight);
    return w >= 0 && l->sources[w].t;
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

void load_report(Load *l) {
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

ampc_status load_resolve(Load *l) {
    size_t bytes = l->s->m->nvar * sizeof *l->sources;
    l->sources = mem_alloc(l->s, bytes);
    if (!l->sources) return load_memory(l);
    memset(l->sources, 0, bytes);
    TRY(resolve_averages(l));
    for (size_t i = 0; i < l->nfile; i++) {
        const StFile *f = &l->files[i]->st;
        for (size_t k = 0; k < f->ntensor; k++) {
            if (!f->tensors[k].name.n) continue;
            TRY(resolve_one(l, l->files[i], &f->tensors[k]));
        }
    }
    TRY(check_renames(l));
    for (uint32_t i = 0; i < l->s->m->nvar; i++) {
        l->want += load_needs(l, i);
        if (load_lacks(l, i))
            load_names_add(&l->missing, l->s->m->vars[i].name);
    }
    return check_missing(l);
}
