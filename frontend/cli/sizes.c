/* SPDX-License-Identifier: Apache-2.0 */
/* sizes.c: one model for several sizes of its inputs: --batch-sizes, --dim
   NAME=N|N, and --pad, which fills inputs up to a size. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#include "frontend/cli/cmd.h"

/* The batch size of the model; 0: no input has one. */
static int64_t batch_of(const Graph *g) {
    for (int i = 0; i < g->inputs.len; i++) {
        const Type *t = value_type(g, g->inputs.data[i]);
        if (t->rank) return t->dim[0];
    }
    return 0;
}

Module *load_batch(Session *s, const char *path, int64_t n) {
    Module *m;
    Diag d = {0};
    int64_t batch = s->opt.batch;
    s->opt.batch = n;
    Status st = import_model(s, &d, path, &m);
    s->opt.batch = batch;
    sb_free(&d.text);
    return st == OK ? m : NULL;
}

/* ---- one size ------------------------------------------------------------ */

static void set_dim_size(Options *o, const DimSizes *d, int64_t n) {
    for (int i = 0; i < o->dims.len; i++) {
        DimBind *b = &o->dims.data[i];
        if (b->name == d->name && b->axis == d->axis) b->value = n;
    }
}

/* Adds the model for sizes that s->opt has to the model for its own sizes,
   whose batch is `own`. Drops its warnings, which the model's own import gave
   already. */
static Status add_size(Session *s, const char *path, Str size, int64_t own,
                       Module *m) {
    Module *other;
    Diag d = {0};
    Loc at = {.file = intern(path)};
    const char *option = size_has_dims(size) ? "--dim" : "--batch-sizes";
    Status st = import_model(s, &d, path, &other);
    if (st != OK) sb_puts(&s->diag.text, d.text.data);
    sb_free(&d.text);
    if (st != OK && size_has_dims(size))
        fail_note(&s->diag, at, "this is for --dim %s", size);
    TRY(st);
    Graph *g = module_graph(other, FORWARD);
    if (!size_batch(size) && batch_of(g) != own)
        return fail(&s->diag, at,
                    "--dim %s: training has one batch size; --batch-sizes "
                    "gives more of them to evaluation and prediction",
                    size);
    const Var *v = graph_move(g, m, name_at_size(intern(FORWARD), size));
    if (!v) return OK;
    return fail(&s->diag, at, "%s %s: '%s' is of another shape there%s", option,
                size, v->name,
                size_has_dims(size) ? ": give it the shape of the largest "
                                      "size, and let the model cut it (slice)"
                                    : "");
}

/* ---- all sizes ----------------------------------------------------------- */

/* Combination k of the sizes of --dim, the last one of all being the model's
   own: sets s->opt's dimensions, and returns it behind a batch size. */
static Str choose_dims(Session *s, int k, int64_t batch) {
    Options *o = &s->opt;
    Str size = intern(batch ? internf("%" PRId64, batch) : "");
    bool own = true;
    for (int i = o->dim_sizes.len - 1, rest = k; i >= 0; i--) {
        const DimSizes *d = &o->dim_sizes.data[i];
        int at = rest % d->sizes.len;
        set_dim_size(o, d, d->sizes.data[at]);
        own &= at == d->sizes.len - 1;
        rest /= d->sizes.len;
    }
    for (int i = 0; i < o->dim_sizes.len && !own; i++)
        for (int j = 0; j < o->dims.len; j++) {
            const DimSizes *d = &o->dim_sizes.data[i];
            const DimBind *b = &o->dims.data[j];
            if (b->name != d->name || b->axis != d->axis) continue;
            Str name =
                b->axis < 0 ? b->name : internf("%s:%d", b->name, b->axis);
            size = size_with_dim(size, name, b->value);
            break;
        }
    return size;
}

static Status add_batches(Session *s, const char *path, int k, int64_t own,
                          Module *m) {
    for (int i = 0; i < s->opt.batch_sizes.len; i++) {
        int64_t n = s->opt.batch_sizes.data[i];
        if (n == own) continue;
        s->opt.batch = n;
        Status st = add_size(s, path, choose_dims(s, k, n), own, m);
        s->opt.batch = 0;
        TRY(st);
    }
    return OK;
}

Status import_sizes(Session *s, const char *path, Module **m) {
    enum { MOST = 64 };
    const Options *o = &s->opt;
    int64_t all = 1;
    TRY(import_model(s, &s->diag, path, m));
    if (!o->batch_sizes.len && !o->dim_sizes.len) return OK;
    const char *option = o->dim_sizes.len ? "--dim" : "--batch-sizes";
    const Graph *g = module_graph(*m, FORWARD);
    if (!g)
        return fail(&s->diag, (Loc){.file = intern(path)},
                    "%s: no graph of the file is a model, called '%s'", option,
                    FORWARD);
    for (int i = 0; i < o->dim_sizes.len && all <= MOST; i++)
        all *= o->dim_sizes.data[i].sizes.len;
    if (all > MOST)
        return fail(&s->diag, (Loc){0},
                    "--dim: the sizes have more than %d combinations, and each "
                    "needs programs of its own: give fewer",
                    MOST);
    int64_t own = batch_of(g);
    int last = (int)all - 1;
    TRY(add_batches(s, path, last, own, *m));
    for (int k = 0; k < last; k++) {
        TRY(add_size(s, path, choose_dims(s, k, 0), own, *m));
        TRY(add_batches(s, path, k, own, *m));
    }
    choose_dims(s, last, 0);
    return OK;
}

/* ---- values that fill ---------------------------------------------------- */

static const Type *input_type(const Graph *g, Str name) {
    for (int i = 0; i < g->inputs.len; i++)
        if (value_get(g, g->inputs.data[i])->name == name)
            return value_type(g, g->inputs.data[i]);
    return NULL;
}

/* The input in the programs of the own sizes; *sized: its shape differs in
   others. */
static const Type *find_input(const Module *m, Str name, bool *sized) {
    const Type *own = NULL;
    *sized = false;
    for (int i = 0; i < m->graphs.len; i++) {
        const Graph *g = m->graphs.data[i];
        const Type *t = input_type(g, name);
        if (t && !own) own = t;
        *sized |= t && size_has_dims(g->size) && !size_batch(g->size) &&
                  !shape_equal(t, own);
    }
    return own;
}

void pads_of_inputs(Session *s, const Module *m) {
    int kept = 0;
    bool sized;
    for (int i = 0; i < s->opt.pads.len; i++)
        if (find_input(m, s->opt.pads.data[i].input, &sized))
            s->opt.pads.data[kept++] = s->opt.pads.data[i];
    s->opt.pads.len = kept;
}

static bool can_hold(DType d, double x) {
    const DTypeInfo *i = &dtype_info[d];
    if (i->kind == DK_B) return x == 0 || x == 1;
    if (i->kind == DK_F) return fabs(x) <= i->most;
    int bits = 8 * i->bytes - (i->kind == DK_I);
    return x == floor(x) && x < ldexp(1, bits) &&
           x >= (i->kind == DK_I ? -ldexp(1, bits) : 0);
}

Status check_pads(Session *s, const Module *m) {
    Diag *d = &s->diag;
    for (int i = 0; i < s->opt.pads.len; i++) {
        const Pad *p = &s->opt.pads.data[i];
        bool sized;
        const Type *t = find_input(m, p->input, &sized);
        if (!t || !sized)
            return fail(d, (Loc){.file = m->file}, "--pad %s: %s", p->input,
                        t ? "the input has one size; --dim NAME=N|N gives it "
                            "several"
                          : "the model has no such input");
        if (!can_hold(t->dtype, p->value))
            return fail(d, (Loc){.file = m->file}, "--pad %s=%g: %s has no %g",
                        p->input, p->value, dtype_info[t->dtype].text,
                        p->value);
    }
    return OK;
}
