/* SPDX-License-Identifier: Apache-2.0 */
/* options_optimizer.c: options of optimizers: schedules, clipping, averages. */
#include "frontend/cli/options_spec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ir/fn/optimizer.h"
#include "ir/fn/schedule.h"

/* The text of a module's own copy of the file, or of the file. */
static Status file_of(Options *o, Spec *s, const char *word,
                      const char **text) {
    const char *slash = s->loc.file ? strrchr(s->loc.file, '/') : NULL;
    const char *path = word;
    size_t n;
    for (int i = o->texts.len - 1; i >= 0; i--)
        if (!strcmp(o->texts.data[i].name, word)) {
            *text = o->texts.data[i].text;
            return OK;
        }
    if (slash && *path != '/') /* files that a model names are looked up beside
                                  the model */
        path = arena_printf(o->arena, "%.*s/%s", (int)(slash - s->loc.file),
                            s->loc.file, path);
    char *read = read_file(s->d, path, &n);
    if (!read) return ERR_USER;
    *text = arena_dup(o->arena, read, n + 1);
    free(read);
    if (strlen(*text) != n)
        return spec_error(s, "%s is binary: byte %zu is 0", path,
                          strlen(*text));
    vec_push(o->arena, &o->texts, (OptionFile){intern(word), *text});
    return OK;
}

static bool is_file(const char *word) {
    size_t n = strlen(word);
    return n > 4 && !strcmp(word + n - 4, ".amp");
}

static Status read_optimizer(Options *o, Spec *s, const char *word,
                             const Fn **out) {
    const char *text;
    TRY(file_of(o, s, word, &text));
    return optimizer_read(module_new(o->arena, ""), s->d, word, text,
                          strlen(text), out);
}

static Status check_role(Spec *s, const char *word, const Fn *f, bool wrapper) {
    if (wrapper == (f->optimizer->role != ROLE_OPTIMIZER)) return OK;
    return spec_error(s, "%s is a%s; give it to %s", word,
                      wrapper ? "n optimizer" : " wrapper",
                      optimizer_option(f));
}

/* An optimizer of the library, or one from a file; or a wrapper. */
static Status find_optimizer(Options *o, Spec *s, bool wrapper,
                             const Fn **out) {
    const char **words = NEW_ARRAY(o->arena, const char *, fn_std_count() + 2);
    char *word = spec_next(s);
    int i = 0;
    if (is_file(word)) {
        TRY(read_optimizer(o, s, word, out));
        return check_role(s, word, *out, wrapper);
    }
    if ((*out = optimizer_find(NULL, word)))
        return check_role(s, word, *out, wrapper);
    for (int role = 0; role < NUM_ROLES; role++)
        for (const Fn *f = NULL; (f = optimizer_next(f, role));)
            if (wrapper == (role != ROLE_OPTIMIZER)) words[i++] = f->info.text;
    words[i] = "FILE.amp";
    return spec_pick(s, words, word, &i); /* says which there are */
}

static SpecKey spec_key(const FnAttr *a, double *real, bool *flag) {
    SpecKey k = {a->name, .lo = a->lo, .hi = a->hi, .open = a->open};
    if (a->kind == FA_BOOL) {
        k.hi = 1;
        k.flag = flag;
    } else {
        k.real = real;
        k.whole = a->kind == FA_INT;
    }
    return k;
}

/* The keys behind the name of an optimizer or wrapper. */
static Status optimizer_keys(Options *o, Spec *s, OptimizerSpec *p) {
    const FnAttr *lr = &p->fn->optimizer->lr;
    SpecKey keys[MAX_OP_ATTRS + 2] = {{0}}, *rest = keys;
    bool flag[MAX_OP_ATTRS];
    char msg[MSG_TEXT];
    if (lr->name) *rest++ = spec_key(lr, &p->lr, NULL);
    for (int i = 0; i < p->keys.len; i++) {
        OptimizerKey *k = &p->keys.data[i];
        flag[i] = k->value != 0;
        rest[i] = spec_key(k->key, &k->value, &flag[i]);
    }
    TRY(spec_keys(s, keys));
    for (int i = 0; i < p->keys.len; i++)
        if (rest[i].flag) p->keys.data[i].value = flag[i];
    if (optimizer_check(p, o->arena, msg)) return spec_error(s, "%s", msg);
    return OK;
}

Status set_optimizer(Options *o, Spec *s) {
    const Fn *fn;
    Objective *j;
    TRY(find_optimizer(o, s, false, &fn));
    TRY(spec_objective(o, s, &j));
    j->optimizer = optimizer_default(o->arena, fn);
    return optimizer_keys(o, s, &j->optimizer);
}

Status add_wrapper(Options *o, Spec *s) {
    const Fn *fn;
    Objective *j;
    TRY(find_optimizer(o, s, true, &fn));
    TRY(spec_objective(o, s, &j));
    OptimizerSpec p = optimizer_default(o->arena, fn);
    TRY(optimizer_keys(o, s, &p));
    for (int i = 0; i < j->wrappers.len; i++) {
        const Fn *other = j->wrappers.data[i].fn;
        if (other->optimizer->role == WRAPPER_BEFORE &&
            fn->optimizer->role == WRAPPER_BEFORE)
            return spec_error(s,
                              "%s and %s both choose where the gradient is "
                              "computed; leave one of them out",
                              other->info.text, fn->info.text);
    }
    if (j->wrappers.len == MAX_WRAPPERS)
        return spec_error(s, "more than %d wrappers", MAX_WRAPPERS);
    vec_push(o->arena, &j->wrappers, p);
    return OK;
}

Status set_param_group(Options *o, Spec *s) {
    ParamGroup g = {intern(spec_next(s)), NAN, NAN};
    Objective *j;
    TRY(spec_objective(o, s, &j));
    const SpecKey keys[] = {
        {"lr_scale", .real = &g.lr_scale, .hi = MOST},
        {"weight_decay", .real = &g.weight_decay, .hi = MOST},
        {0}};
    TRY(spec_keys(s, keys));
    if (isnan(g.lr_scale) && isnan(g.weight_decay))
        return spec_error(s, "'%s' needs lr_scale= or weight_decay=", g.glob);
    vec_push(o->arena, &j->param_groups, g);
    return OK;
}

/* A schedule from a file. */
static Status read_schedule(Options *o, Spec *s, const char *word,
                            ScheduleSpec *c) {
    Module *m = module_new(o->arena, "");
    const char *text;
    const Fn *f;
    char msg[MSG_TEXT], keys[200] = "";
    TRY(file_of(o, s, word, &text));
    TRY(schedule_read(m, s->d, word, text, strlen(text), &f));
    Str other = schedule_own(o->arena, m, c);
    for (int i = 0; i < SCHEDULE_KEYS; i++) {
        size_t n = strlen(keys);
        snprintf(keys + n, sizeof keys - n, "%s%s", i ? ", " : "",
                 schedule_keys[i].name);
    }
    if (other)
        return fail(s->d, (Loc){.file = intern(word), .line = f->line},
                    "operand '%s' of '%s' is not one of %s; other keys stand "
                    "behind a semicolon, with defaults",
                    other, f->info.text, keys);
    if (schedule_check(c, o->arena, msg))
        return fail(s->d, (Loc){.file = intern(word), .line = f->line}, "%s",
                    msg);
    return OK;
}

static Status find_schedule(Options *o, Spec *s, const char *word,
                            ScheduleSpec *out) {
    const char *words[32];
    int n = 0, i;
    if (is_file(word)) return read_schedule(o, s, word, out);
    for (const ScheduleRow *r = schedule_rows; r->word; r++)
        words[n++] = r->word;
    words[n++] = "FILE.amp";
    words[n] = NULL;
    if (strstr(word, "plateau"))
        return spec_error(s,
                          "'%s' follows the evaluation: ampc run "
                          "--reduce-on-plateau factor=0.1,patience=10",
                          word);
    TRY(spec_pick(s, words, word, &i));
    *out = schedule_default(&schedule_rows[i]);
    return OK;
}

/* The compiler knows steps alone. */
static Status check_epochs(const Spec *s) {
    const char *at = s->text ? strstr(s->text, "epoch") : NULL;
    if (!at) return OK;
    while (at > s->text && at[-1] != ',') at--;
    return spec_error(s,
                      "'%.*s': how many steps an epoch has is known with the "
                      "data: ampc run --hyper %.*s",
                      (int)strcspn(at, ","), at, (int)strcspn(at, ","), at);
}

/* A percentage of total=, rounded up as in transformers' warmup_ratio. */
static Status resolve_share(const Spec *s, const char *name, double total,
                            double share, double *to) {
    if (isnan(share)) return OK;
    if (total == 0 || isnan(total))
        return spec_error(s, "%s=%g%% needs total=", name, share * 100);
    *to = ceil(total * share - 1e-9);
    return OK;
}

Status set_schedule(Options *o, Spec *s) {
    ScheduleSpec own, *c;
    TRY(find_schedule(o, s, spec_next(s), &own));
    Objective *j;
    TRY(spec_objective(o, s, &j));
    c = &j->schedule;
    *c = own;
    const ScheduleRow *row = c->row;
    SpecKey keys[SCHEDULE_KEYS + MAX_OP_ATTRS + 1] = {{0}};
    double share[SCHEDULE_KEYS];
    for (int i = 0; i < row->n; i++) {
        ScheduleKey key = row->keys[i].key;
        const ScheduleKeyRow *k = &schedule_keys[key];
        share[key] = NAN;
        OwnRange range = own_var_range(k->variable);
        keys[i] = (SpecKey){k->name, .real = &c->key[key], .lo = range.least,
                            .hi = range.most, .whole = range.whole};
        if (key == KEY_WARMUP || key == KEY_EVERY) keys[i].share = &share[key];
    }
    for (int i = 0; i < c->fixed.len; i++) {
        OptimizerKey *k = &c->fixed.data[i];
        keys[row->n + i] = spec_key(k->key, &k->value, NULL);
        keys[row->n + i].lo = -MOST;
        keys[row->n + i].hi = MOST;
    }
    TRY(check_epochs(s));
    TRY(spec_keys(s, keys));
    for (int i = 0; i < row->n; i++) {
        ScheduleKey key = row->keys[i].key;
        TRY(resolve_share(s, schedule_keys[key].name, c->key[KEY_TOTAL],
                          share[key], &c->key[key]));
        if (isnan(c->key[key]))
            return spec_error(
                s, "%s needs %s=%s", row->word, schedule_keys[key].name,
                key == KEY_TOTAL ? ", the number of the optimizer's steps; "
                                   "ampc run --hyper total=100% makes it "
                                   "that of the run"
                                 : "");
        if (key == KEY_TOTAL && c->key[key] <= c->key[KEY_WARMUP])
            return spec_error(s, "total= must exceed 0 and warmup=");
    }
    return OK;
}

Status set_clip_norm(Options *o, Spec *s) {
    Objective *j;
    TRY(spec_objective(o, s, &j));
    return spec_limit(s, &j->clip_norm);
}

Status set_clip_value(Options *o, Spec *s) {
    Objective *j;
    TRY(spec_objective(o, s, &j));
    return spec_limit(s, &j->clip_value);
}

#define TRANSFORM "gradient_"

const char *transform_word(const Fn *f) {
    size_t n = strlen(TRANSFORM);
    return strncmp(f->info.text, TRANSFORM, n) ? NULL : f->info.text + n;
}

static Status find_transform(Options *o, Spec *s, const Fn **out) {
    const char **words = NEW_ARRAY(o->arena, const char *, fn_std_count() + 1);
    int n = 0, i;
    for (int k = 0; k < fn_std_count(); k++)
        if (transform_word(fn_std_at(k)))
            words[n++] = transform_word(fn_std_at(k));
    TRY(spec_pick(s, words, spec_next(s), &i));
    *out = fn_std(arena_printf(o->arena, TRANSFORM "%s", words[i]));
    return OK;
}

Status add_gradient(Options *o, Spec *s) {
    const Fn *fn;
    Objective *j;
    TRY(find_transform(o, s, &fn));
    TRY(spec_objective(o, s, &j));
    TransformSpec t = transform_default(o->arena, fn);
    SpecKey keys[MAX_OP_ATTRS + 1] = {{0}};
    for (int i = 0; i < t.keys.len; i++)
        keys[i] = spec_key(t.keys.data[i].key, &t.keys.data[i].value, NULL);
    TRY(spec_keys(s, keys));
    vec_push(o->arena, &j->transforms, t);
    return OK;
}

static const char *const buffer_words[] = {"copy", "average", NULL};

/* Reads the keys of an average; *buffers, of buffer_words, is its last key. */
static Status set_average(Options *o, Spec *s, const char *fn,
                          const SpecKey *keys, const int *buffers) {
    AverageSpec a = {.fn = fn};
    if (o->average.fn && o->average.fn != fn)
        return spec_error(s, "a module has one average: --ema or --swa");
    TRY(spec_keys(s, keys));
    a.buffers = *buffers == 1;
    for (int i = 0; keys[i].real; i++) {
        a.keys[i].name = keys[i].name;
        a.keys[i].value = *keys[i].real;
    }
    o->average = a;
    return OK;
}

Status set_ema(Options *o, Spec *s) {
    int buffers = 0;
    double decay, warmup = 0, power = 2.0 / 3, every = 1, after = 0;
    const SpecKey keys[] = {
        {"decay", .real = &decay, .hi = 1, .open = true},
        {"warmup", .real = &warmup, .hi = COUNT},
        {"power", .real = &power, .lo = LEAST, .hi = 1e3},
        {"every", .real = &every, .lo = 1, .hi = COUNT, .whole = true},
        {"after", .real = &after, .hi = COUNT, .whole = true},
        {"buffers", .words = buffer_words, .choice = &buffers},
        {0}};
    const char *text = spec_next(s);
    TRY(spec_number(s, "", text, &decay));
    if (!(decay >= 0 && decay < 1))
        return spec_error(s, "the decay %s is not in [0, 1)", text);
    return set_average(o, s, "average_ema", keys, &buffers);
}

Status set_swa(Options *o, Spec *s) {
    int buffers = 0;
    double start = NAN, every = 1;
    const SpecKey keys[] = {
        {"start", .real = &start, .lo = 1, .hi = COUNT, .whole = true},
        {"every", .real = &every, .lo = 1, .hi = COUNT, .whole = true},
        {"buffers", .words = buffer_words, .choice = &buffers},
        {0}};
    TRY(set_average(o, s, "average_swa", keys, &buffers));
    return isnan(start) ? spec_error(s, "start=STEP is missing: the first step "
                                        "that counts")
                        : OK;
}
