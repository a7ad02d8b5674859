/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_data.c: ampc data [INPUT=]FILE... [OUT.so|MODEL].

   The reader of `ampc run` opens the file for an input and says what the
   file is for it. A model that is not compiled answers as its module would:
   through the calls of ampc.h that the reader makes. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/cli/cmd.h"
#include "frontend/data/describe.h"
#include "frontend/run/run_cmd.h"
#include "ir/base/files.h"

/* ---- a model as a module ------------------------------------------------- */

/* The inputs of evaluation; without a loss, of prediction. */
static const Graph *asked;

static ampc_status asked_input(const ampc_module_t *m, const char *program,
                               uint32_t index, ampc_tensor_info *t) {
    (void)m, (void)program;
    if (index >= (uint32_t)asked->inputs.len) return AMPC_ERR_ARGUMENT;
    const Value *v = value_get(asked, asked->inputs.data[index]);
    const Type *type = type_get(v->type);
    t->name = v->name;
    t->dtype = type->dtype;
    t->rank = type->rank;
    memcpy(t->shape, type->dim, (size_t)type->rank * sizeof *t->shape);
    t->bytes = (size_t)type_bytes(type);
    return AMPC_OK;
}

static ampc_status asked_program(const ampc_module_t *m, const char *program,
                                 ampc_program_info *p) {
    (void)m, (void)program;
    p->ninput = (uint32_t)asked->inputs.len;
    return AMPC_OK;
}

static ampc_status asked_describe(const ampc_module_t *m, ampc_module_info *i) {
    (void)m;
    i->batch = graph_samples(asked);
    return AMPC_OK;
}

static Status open_model(Session *s, const char *path, ampc_api *api) {
    Module *m;
    TRY(load_model(s, path, &m));
    TRY(run_until(m, &s->diag, &s->opt, "grad", false));
    asked = module_graph(m, "eval");
    if (!asked) asked = module_graph(m, "predict");
    if (!asked)
        return fail(&s->diag, (Loc){.file = intern(path)},
                    "the model has neither a loss to evaluate nor anything to "
                    "predict");
    *api = (ampc_api){.size = sizeof *api,
                      .input = asked_input,
                      .program = asked_program,
                      .describe = asked_describe};
    return OK;
}

/* ---- files and inputs ---------------------------------------------------- */

/* What the files are used for. */
typedef struct For {
    Session *s;
    const ampc_api *api;
    const char *program;
} For;

static bool input_at(const For *f, uint32_t i, ampc_tensor_info *t) {
    *t = (ampc_tensor_info){.size = sizeof *t};
    return f->api->input(f->api->module, f->program, i, t) == AMPC_OK;
}

static void put_fits(const FeedSet *fs, StrBuf *sb) {
    const Feed *f = &fs->feed[0];
    StrBuf how = {0};
    Fed fed = feed_facts(f, fs->samples);
    fed_tells(&fed, &how);
    if (f->per == 0) {
        sb_puts(sb, "fits, the same values for every batch");
    } else {
        int64_t rest = fs->samples % fs->batch;
        sb_printf(sb, "fits: %lld samples, %lld %s of %lld",
                  (long long)fs->samples, (long long)(fs->samples / fs->batch),
                  fs->samples / fs->batch == 1 ? "batch" : "batches",
                  (long long)fs->batch);
        if (rest) sb_printf(sb, " and one of %lld", (long long)rest);
    }
    /* the text after the input's name */
    const char *rest = how.data ? strstr(how.data, ": ") : NULL;
    sb_printf(sb, "%s%s", rest ? "; " : "", rest ? rest + 2 : "\n");
    sb_free(&how);
}

static const char *name_of(const ArrayPart *p) {
    return p->label ? p->label : p->part;
}

static bool part_fits(const For *f, uint32_t i, const char *file,
                      const char *part) {
    Diag d = {0};
    FeedSet fs;
    const char *both = internf("%s:%s", file, part);
    Status st = feed_try(&d, f->s->opt.guard, f->api, f->program, i, both, &fs);
    feeds_free(&fs);
    sb_free(&d.text);
    return st == OK;
}

/* Neighbouring columns of a table, as many as a sample has elements. */
static bool put_columns(const For *f, uint32_t i, const ampc_tensor_info *t,
                        const char *file, const ArrayParts *all, StrBuf *sb) {
    int64_t each = 1, n = all->list.len;
    for (int k = 1; k < t->rank; k++) each *= t->shape[k];
    if (!all->columns || each < 2) return false;
    for (int64_t from = 0; from + each <= n; from++) {
        Str part = internf("%s-%s", name_of(&all->list.data[from]),
                           name_of(&all->list.data[from + each - 1]));
        if (!part_fits(f, i, file, part)) continue;
        sb_printf(sb, "by %lld columns, such as ", (long long)each);
        sb_put_escaped(sb, part);
        return true;
    }
    return false;
}

/* What parts of a file, or named columns, feed an input that the file as a
   whole does not. */
static bool data_put_parts(const For *f, uint32_t i, const ampc_tensor_info *t,
                           const char *file, StrBuf *sb) {
    enum { MOST = 32 };
    ArrayParts all = {.arena = arena_new()};
    Diag d = {0};
    char *path = strdup(file);
    int found = 0;
    if (path && !file_part(path) && array_parts(&d, path, &all) == OK &&
        all.list.len > 1 && all.list.len <= MOST &&
        (!all.columns || all.list.data[0].label)) {
        for (int k = 0; k < all.list.len; k++) {
            Str part = name_of(&all.list.data[k]);
            if (!part_fits(f, i, file, part)) continue;
            sb_puts(sb, found++ ? ", " : "by part: ");
            sb_put_escaped(sb, part);
        }
        if (!found) found = put_columns(f, i, t, file, &all, sb);
    }
    if (found) sb_puts(sb, "\n");
    free(path);
    sb_free(&d.text);
    arena_free(all.arena);
    return found;
}

/* Describes one file for one input; *fits: whether it can be fed. */
static void try_input(const For *f, uint32_t i, const ampc_tensor_info *t,
                      const char *file, bool *fits, StrBuf *sb) {
    Diag d = {0};
    FeedSet fs;
    Status st = feed_try(&d, f->s->opt.guard, f->api, f->program, i, file, &fs);
    sb_puts(sb, "  for ");
    sb_put_escaped(sb, t->name);
    sb_printf(sb, " %s[", dtype_info[t->dtype].text);
    for (int k = 0; k < t->rank; k++)
        sb_printf(sb, "%s%lld", k ? "," : "", (long long)t->shape[k]);
    sb_puts(sb, "]: ");
    if (st == OK) {
        put_fits(&fs, sb);
        *fits = true;
    } else if (data_put_parts(f, i, t, file, sb)) {
        *fits = true;
    } else {
        const char *why = strstr(d.text.data, "error: ");
        sb_printf(sb, "no: %s", why ? why + strlen("error: ") : d.text.data);
    }
    feeds_free(&fs);
    sb_free(&d.text);
}

/* The file of INPUT=FILE, or the whole text; *input: -1 for all inputs. */
static const char *data_split(const For *f, const char *text, int64_t *input) {
    ampc_tensor_info t;
    *input = -1;
    for (uint32_t i = 0; f->api && input_at(f, i, &t); i++) {
        size_t n = strlen(t.name);
        if (strncmp(text, t.name, n) || text[n] != '=') continue;
        *input = i;
        return text + n + 1;
    }
    return text;
}

static Status tell(const For *f, const char *text, StrBuf *sb) {
    int64_t only;
    ampc_tensor_info t;
    bool fits = false;
    const char *file = data_split(f, text, &only);
    TRY(data_tell(&f->s->diag, file, sb));
    if (!f->api) return OK;
    for (uint32_t i = 0; input_at(f, i, &t); i++)
        if (only < 0 || only == i) try_input(f, i, &t, file, &fits, sb);
    if (fits) return OK;
    return only < 0 ? fail(&f->s->diag, (Loc){.file = intern(file)},
                           "fits no input of the model")
                    : fail(&f->s->diag, (Loc){.file = intern(file)},
                           "does not fit input '%.*s'", (int)(file - text - 1),
                           text);
}

static Status data_tell_all(const For *f, int n) {
    Status all = OK;
    for (int i = 0; i < n; i++) {
        StrBuf sb = {0};
        Status st = tell(f, f->s->files.data[i], &sb);
        if (sb.data) fputs(sb.data, stdout);
        sb_free(&sb);
        if (st != OK) all = st;
    }
    return all;
}

/* ---- the command --------------------------------------------------------- */

static Status data(Session *s, const char *last) {
    RunOptions o = {.module = last};
    Run r = {.opt = &o};
    For f = {.s = s, .program = "eval"};
    ampc_api api;
    int n = s->files.len;
    bool module = has_suffix(last, ".so");
    bool model = has_suffix(last, ".onnx") || has_suffix(last, ".amp");
    Status st = OK;
    if (module) {
        st = run_open_code(&r);
        f.api = r.api;
        ampc_module_info info = {.size = sizeof info};
        if (st == OK) r.api->describe(r.api->module, &info);
        if (st == OK && !info.evaluates) f.program = "predict";
    } else if (model) {
        st = open_model(s, last, &api);
        f.api = &api;
    } else if (s->compile_option) {
        fail(&s->diag, (Loc){0},
             "%s is for a model, which stands behind the files",
             s->compile_option);
        st = ERR_USAGE;
    }
    if (module || model) n--;
    if (st == OK && n == 0) {
        fail(&s->diag, (Loc){0},
             "ampc data: a data file is missing in front "
             "of the model");
        st = ERR_USAGE;
    }
    if (st == OK) st = data_tell_all(&f, n);
    if (r.diag.text.data) sb_puts(&s->diag.text, r.diag.text.data);
    sb_free(&r.diag.text);
    if (r.lib) dlclose(r.lib);
    return st;
}

int cmd_data(int argc, char **argv) {
    Session s;
    const char *last = NULL;
    session_init(&s);
    s.several = true;
    Status st = session_args(&s, argc, argv, "data", &last);
    if (st == OK) st = data(&s, last);
    return session_end(&s, st);
}
