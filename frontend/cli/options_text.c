/* SPDX-License-Identifier: Apache-2.0 */
/* options_text.c: compile options from and to text.  One row an option; specs
   of the form name,key=value,... share one reader. */
#include "frontend/cli/options_text.h"
#include "ir/base/near.h"
#include "ir/fn/optimizer.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ------------------------------------------------------------- */

/* The value of an option, read piece by piece. */
typedef struct Spec {
    const char *option; /* for messages */
    bool nested;        /* the option is a key of --objective */
    Loc loc;            /* location in the text that sets it */
    Diag *d;
    Arena *arena;
    char *text; /* rest of the value, cut at commas; NULL: at the end */
} Spec;

PRINTF_LIKE(2, 3)
static Status usage(const Spec *s, const char *fmt, ...) {
    StrBuf why = {0};
    va_list ap;
    va_start(ap, fmt);
    sb_vprintf(&why, fmt, ap);
    va_end(ap);
    fail(s->d, s->loc, "%s: %s", s->option, why.data);
    sb_free(&why);
    return s->loc.file ? ERR_USER : ERR_USAGE;
}

/* Next comma-separated piece, or NULL. */
static char *spec_next(Spec *s) {
    if (!s->text) return NULL;
    char *piece = s->text, *comma = strchr(piece, ',');
    if (comma) *comma = 0;
    s->text = comma ? comma + 1 : NULL;
    return piece;
}

/* strtod and strtoll skip spaces and know words; a number starts as one. */
static bool starts_number(const char *text) {
    return *text && strchr("0123456789+-.", *text);
}

static Status read_number(const Spec *s, const char *text, double *out) {
    char *end = NULL;
    errno = 0;
    *out = !strcmp(text, "inf") ? INFINITY : strtod(text, &end);
    if (!end) return OK;
    if (!starts_number(text) || *end || isnan(*out))
        return usage(s, "'%s' is not a number", text);
    if (errno == ERANGE || isinf(*out))
        return usage(s, "'%s' is outside the range of numbers", text);
    return OK;
}

static Status read_integer(const Spec *s, const char *text, int64_t lo,
                           int64_t hi, int64_t *out) {
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (!starts_number(text) || end == text || *end)
        return usage(s, "'%s' is not an integer", text);
    if (errno == ERANGE || v < lo || v > hi)
        return usage(s, "%s is not in %lld .. %lld", text, (long long)lo,
                     (long long)hi);
    *out = v;
    return OK;
}

/* Numbers end up as f32, so none is larger or, if not 0, smaller. */
#define MOST  1e38
#define LEAST 1e-37
#define COUNT 1e15 /* integers that are exact as double */

typedef struct SpecKey {
    const char *name;
    double *real;
    int64_t *integer;
    bool *flag;
    double lo, hi;    /* legal values */
    bool open;        /* hi is not one of them */
    bool whole;       /* an integer */
    Reals *list;      /* separated by slashes */
    double *share;    /* "5%" goes there */
    const char *word; /* may stand for a number, and is what was said */
    bool *said;
} SpecKey;

static Status spec_assign(const Spec *s, const SpecKey *k, char *value) {
    double v;
    char *more = k->list ? strchr(value, '/') : NULL;
    if (more) *more = 0;
    if (k->said && (*k->said = !strcmp(value, k->word))) return OK;
    size_t n = strlen(value);
    bool share = k->share && n > 1 && value[n - 1] == '%';
    if (share) value[n - 1] = 0;
    TRY(read_number(s, value, &v));
    if (share && v > 0 && v < 100) {
        *k->share = v / 100;
        return OK;
    }
    if (share) return usage(s, "%s=%s%% is not in (0, 100)", k->name, value);
    if (v < k->lo || v > k->hi || (k->open && v == k->hi))
        return usage(s, "%s=%s is not in [%g, %g%c", k->name, value, k->lo,
                     k->hi, k->open ? ')' : ']');
    if (k->list) vec_push(s->arena, k->list, v);
    if (more) return spec_assign(s, k, more + 1);
    if ((k->integer || k->whole) && v != floor(v))
        return usage(s, "%s=%s is not an integer", k->name, value);
    if (k->real) *k->real = v;
    if (k->integer) *k->integer = (int64_t)v;
    if (k->flag) *k->flag = v != 0;
    return OK;
}

static Status unknown_key(const Spec *s, const SpecKey *keys,
                          const char *piece) {
    StrBuf all = {0};
    sb_puts(&all, keys->name ? "; its keys are " : "; it has no keys");
    for (const SpecKey *k = keys; k->name; k++)
        sb_printf(&all, "%s%s", k > keys ? ", " : "", k->name);
    Status st = usage(s, "unknown key '%s'%s", piece, all.data);
    sb_free(&all);
    return st;
}

/* The rest of a spec: key=value pieces; a bare flag key means 1. */
static Status spec_keys(Spec *s, const SpecKey *keys) {
    for (char *piece; (piece = spec_next(s));) {
        char flag[] = "1", *eq = strchr(piece, '=');
        if (eq) *eq = 0;
        const SpecKey *k = keys;
        while (k->name && strcmp(k->name, piece)) k++;
        if (!k->name) return unknown_key(s, keys, piece);
        if (!eq && !k->flag) return usage(s, "key '%s' needs a value", piece);
        TRY(spec_assign(s, k, eq ? eq + 1 : flag));
    }
    return OK;
}

static int find_word(const char *const *words, const char *w) {
    for (int i = 0; words[i]; i++)
        if (!strcmp(words[i], w)) return i;
    return -1;
}

/* The number of the word, which is one of these. */
static Status pick(const Spec *s, const char *const *words, const char *word,
                   int *out) {
    StrBuf all = {0};
    *out = find_word(words, word);
    if (*out >= 0) return OK;
    for (int i = 0; words[i]; i++)
        sb_printf(&all, "%s%s", i ? ", " : "", words[i]);
    if (strchr(word, '=')) sb_puts(&all, "; keys follow it: WORD,KEY=VALUE");
    char text[NEAR_TEXT];
    Near near = near_to(word);
    for (int i = 0; words[i]; i++) near_offer(&near, words[i]);
    Status st = usage(s, "'%s' is not one of %s%s", word, all.data,
                      near_text(&near, text));
    sb_free(&all);
    return st;
}

/* ---- one setter an option ------------------------------------------------ */

typedef Status Setter(Options *o, Spec *s);

/* The command line's entries of a list take the place of the model's. */
static void over_model(int *len, int *of_model) {
    if (*of_model) *len = 0;
    *of_model = 0;
}

/* The objective that the option belongs to: the only one, or the one that
   --objective is reading. */
static Status objective(Options *o, const Spec *s, Objective **j) {
    *j = &o->objectives.data[o->objectives.len - 1];
    o->only_given |= !s->nested;
    if (!s->nested && *(*j)->name)
        return usage(s, "must be a key of each --objective if any is given");
    return OK;
}

static const char *const precision_words[] = {"fp32", "bf16", "fp16", NULL};

static Status set_precision(Options *o, Spec *s) {
    static const char *const levels[] = {"O0", "O1", "O2", "O3", NULL};
    const SpecKey none[] = {{0}},
                  half[] = {
                      {"keep_batchnorm", .flag = &o->keep_batchnorm, .hi = 1},
                      {"master_weights", .flag = &o->master_weights, .hi = 1},
                      {0}};
    char *word = spec_next(s), *colon = strchr(word, ':');
    int plain = find_word(precision_words, word), level;
    o->half_model = o->keep_batchnorm = o->master_weights = false;
    if (plain >= 0) {
        o->precision = (Precision)plain;
        return spec_keys(s, none);
    }
    if (colon) *colon = 0;
    level = find_word(levels, word);
    if (level < 0 || (colon && (!level || strcmp(colon + 1, "bf16"))))
        return usage(s,
                     "'%s%s%s' is not one of fp32, bf16, fp16, O0, O1, O2, O3, "
                     "O1:bf16, O2:bf16, O3:bf16",
                     word, colon ? ":" : "", colon ? colon + 1 : "");
    o->precision = !level ? PREC_FP32 : colon ? PREC_BF16 : PREC_FP16;
    o->half_model = level >= 2;
    o->keep_batchnorm = o->master_weights = level == 2;
    return spec_keys(s, o->half_model ? half : none);
}

static Status set_remat(Options *o, Spec *s) {
    static const char *const words[] = {"auto", "none", NULL};
    int i = find_word(words, s->text);
    o->remat = i < 0 ? REMAT_BYTES : (Remat)i;
    if (i >= 0) return OK;
    if (!strchr("0123456789", s->text[0]) || !s->text[0])
        return usage(s, "'%s' is not one of auto, none, BYTES", s->text);
    return read_integer(s, s->text, 1, INT64_MAX, &o->remat_bytes);
}

static Status set_logit_rows(Options *o, Spec *s) {
    static const char *const words[] = {"all", "auto", NULL};
    int i = find_word(words, s->text);
    o->logit_rows = -i;
    if (i >= 0) return OK;
    if (!strchr("0123456789", s->text[0]) || !s->text[0])
        return usage(s, "'%s' is not one of auto, all, N", s->text);
    return read_integer(s, s->text, 1, INT64_MAX, &o->logit_rows);
}

static Status set_placement(Options *o, Spec *s) {
    static const char *const words[] = {"exact", "pytorch", NULL};
    const SpecKey none[] = {{0}},
                  exact[] = {{"residuals", .real = &o->residuals,
                              .hi = INFINITY, .word = "fp16",
                              .said = &o->fp16_residuals},
                             {"head", .flag = &o->wide_head, .hi = 1},
                             {0}};
    int i;
    TRY(pick(s, words, spec_next(s), &i));
    o->placement = (Placement)i;
    o->residuals = INFINITY;
    o->fp16_residuals = o->wide_head = i == PLACE_EXACT;
    return spec_keys(s, i == PLACE_EXACT ? exact : none);
}

const char *const loss_words[] = {"auto", "none", "host", NULL};

/* The name of a loss on the command line. */
static const char *loss_word(const LossSpec *l) {
    return l->kind == LOSS_FN ? l->fn->loss : loss_words[l->kind];
}

static Status find_loss(Options *o, Spec *s, LossSpec *l) {
    const char **words = NEW_ARRAY(o->arena, const char *, fn_std_count() + 4);
    char *word = spec_next(s);
    int n = 0, i;
    for (int k = 0; loss_words[k]; k++) words[n++] = loss_words[k];
    for (int k = 0; k < fn_std_count(); k++)
        if (fn_std_at(k)->loss) words[n++] = fn_std_at(k)->loss;
    TRY(pick(s, words, word, &i));
    *l = loss_default(i < LOSS_FN ? (LossKind)i : LOSS_FN);
    if (l->kind == LOSS_FN) l->fn = fn_loss(word);
    return OK;
}

/* Operands in front of `target` are outputs of the model. */
static int loss_outputs(const LossSpec *l) {
    if (l->kind != LOSS_FN) return 1;
    int target = fn_loss_target(l->fn);
    return target < 0 ? l->fn->info.in_min : target;
}

/* OUTPUT, or OUTPUT,OUTPUT.. of a loss that takes several. */
static Status read_outputs(Options *o, const Spec *s, LossSpec *l, char *text) {
    int n = loss_outputs(l);
    for (char *comma; text; text = comma) {
        comma = n > 1 ? strchr(text, ',') : NULL;
        if (comma) *comma++ = 0;
        vec_push(o->arena, &l->outputs, intern(text));
    }
    if (l->outputs.len && l->outputs.len != n)
        return usage(s, "%s takes %d outputs, not %d: %s:OUTPUT,OUTPUT..",
                     loss_word(l), n, l->outputs.len, loss_word(l));
    return OK;
}

static SpecKey loss_spec_key(const FnAttr *a, double *real) {
    bool axis = a->kind == FA_AXIS, flag = a->kind == FA_BOOL;
    return (SpecKey){a->name, .real = real, .lo = axis ? -MAX_RANK : a->lo,
                     .hi = axis   ? MAX_RANK - 1
                           : flag ? 1
                                  : a->hi,
                     .whole = a->kind != FA_FLOAT};
}

/* The value of a key that is not given; NaN: there is none. A single loss
   ignores -100, as PyTorch's. In a sum only what is said is ignored: else the
   mean over samples that evaluation reports would be no sum of such means. */
static double unsaid(Options *o, const LossSpec *l, const FnAttr *a,
                     bool single) {
    char msg[MSG_TEXT];
    Attr x;
    if (!strcmp(a->name, "ignore_index")) return single ? -100 : NAN;
    if (a->kind == FA_AXIS || !a->dflt) return NAN;
    Graph *g = graph_new(module_new(o->arena, ""), "defaults");
    Status st = fn_default(l->fn, g, NULL, 0, a, &x, msg);
    ASSERT(st == OK && "the default of a key is a number");
    return a->kind == FA_FLOAT ? x.u.f : (double)x.u.i;
}

static Status read_loss_keys(Options *o, Spec *s, LossSpec *l, bool single) {
    SpecKey keys[MAX_OP_ATTRS + 2] = {{0}};
    double value[MAX_OP_ATTRS];
    const FnAttr *attr[MAX_OP_ATTRS];
    Reals weights = {0};
    int n = 0;
    for (int i = 0; l->fn && i < l->fn->attrs.len; i++) {
        const FnAttr *a = &l->fn->attrs.data[i];
        if (a->kind == FA_STR) continue; /* reduction */
        attr[n] = a;
        value[n] = unsaid(o, l, a, single);
        keys[n] = loss_spec_key(a, &value[n]);
        n++;
    }
    for (int i = 0; l->fn && i < l->fn->operands.len; i++)
        if (!strcmp(l->fn->operands.data[i].name, "weight"))
            keys[n] = (SpecKey){"class_weights", .list = &weights, .hi = MOST};
    TRY(spec_keys(s, keys));
    l->class_weights = weights;
    for (int i = 0; i < n; i++) {
        LossKey k = {attr[i], value[i]};
        if (!isnan(value[i])) vec_push(o->arena, &l->keys, k);
    }
    return OK;
}

/* [FACTOR*]LOSS[,KEY=VALUE..][:OUTPUT] */
static Status read_loss(Options *o, Spec *s, LossSpec *l, bool single) {
    char *star = strchr(s->text, '*'), *colon;
    double factor = 1;
    if (star && starts_number(s->text)) {
        *star = 0;
        TRY(read_number(s, s->text, &factor));
        if (!(fabs(factor) >= LEAST && fabs(factor) <= MOST))
            return usage(s, "the factor %s is not in [%g, %g]", s->text, LEAST,
                         MOST);
        s->text = star + 1;
    }
    colon = strchr(s->text, ':');
    if (colon) *colon = 0;
    TRY(find_loss(o, s, l));
    l->factor = factor;
    TRY(read_outputs(o, s, l, colon ? colon + 1 : NULL));
    return read_loss_keys(o, s, l, single);
}

/* The text begins with a term of a sum: a loss, or a factor and a loss. */
static bool starts_term(const char *text) {
    const char *star = strchr(text, '*');
    if (star && starts_number(text)) text = star + 1;
    text += strspn(text, " ");
    size_t n = strcspn(text, ",: +");
    return fn_loss(intern_n(text, n)) != NULL;
}

/* The text behind the next plus sign in front of a term, which is cut off;
   NULL: there is none.  Names of outputs may hold plus signs, too. */
static char *next_term(char *text) {
    char *plus = text;
    while ((plus = strchr(plus, '+'))) {
        char *next = plus + 1 + strspn(plus + 1, " ");
        bool blanks = plus > text && plus[-1] == ' ' && plus[1] == ' ';
        if (blanks || starts_term(next)) {
            while (plus > text && plus[-1] == ' ') plus--;
            *plus = 0;
            return next;
        }
        plus++;
    }
    return NULL;
}

static Status set_loss(Options *o, Spec *s) {
    Objective *j;
    TRY(objective(o, s, &j));
    if (!s->nested && o->loss_given)
        return usage(s, "was given already; a sum is --loss \"A:OUTPUT + "
                        "0.5*B:OUTPUT\"; several losses in one module are "
                        "--objective NAME,loss=L,params=GLOB,..");
    o->loss_given = true;
    j->added.len = 0;
    bool sum = false;
    for (char *term = s->text, *next; term; term = next, sum = true) {
        LossSpec l;
        next = next_term(term);
        s->text = term;
        TRY(read_loss(o, s, &l, !sum && !next));
        bool alone = l.kind == LOSS_NONE || l.kind == LOSS_HOST;
        if (alone && (sum || next || l.factor != 1))
            return usage(s, "%s cannot be a term of a sum", loss_word(&l));
        if (sum)
            vec_push(o->arena, &j->added, l);
        else
            j->loss = l;
    }
    return OK;
}

/* FILE.amp: the optimizer that the file defines. */
static Status read_optimizer(Options *o, Spec *s, const char *path,
                             const Fn **out) {
    const char *slash = s->loc.file ? strrchr(s->loc.file, '/') : NULL;
    size_t n;
    if (slash &&
        *path != '/') /* files that a model names lie beside the model */
        path = arena_printf(o->arena, "%.*s/%s", (int)(slash - s->loc.file),
                            s->loc.file, path);
    char *text = read_file(s->d, path, &n);
    if (!text) return ERR_USER;
    const char *kept = arena_dup(o->arena, text, n + 1);
    free(text);
    return optimizer_read(module_new(o->arena, ""), s->d, path, kept, n, out);
}

/* One of the library's, or a file's. */
static Status find_optimizer(Options *o, Spec *s, const Fn **out) {
    const char **words = NEW_ARRAY(o->arena, const char *, fn_std_count() + 1);
    char *word = spec_next(s);
    size_t n = strlen(word);
    int i = 0;
    if (n > 4 && !strcmp(word + n - 4, ".amp"))
        return read_optimizer(o, s, word, out);
    for (const Fn *f = NULL; (f = optimizer_next(f));)
        words[i++] = f->info.text;
    TRY(pick(s, words, word, &i));
    *out = optimizer_find(NULL, word);
    return OK;
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

static Status set_optimizer(Options *o, Spec *s) {
    const Fn *fn;
    TRY(find_optimizer(o, s, &fn));
    Objective *j;
    TRY(objective(o, s, &j));
    OptimizerSpec *p = &j->optimizer;
    *p = optimizer_default(o->arena, fn);
    SpecKey keys[MAX_OP_ATTRS + 2] = {{0}};
    bool flag[MAX_OP_ATTRS];
    char msg[MSG_TEXT];
    keys[0] = spec_key(&fn->optimizer->lr, &p->lr, NULL);
    for (int i = 0; i < p->keys.len; i++) {
        OptimizerKey *k = &p->keys.data[i];
        flag[i] = k->value != 0;
        keys[i + 1] = spec_key(k->key, &k->value, &flag[i]);
    }
    TRY(spec_keys(s, keys));
    for (int i = 0; i < p->keys.len; i++)
        if (keys[i + 1].flag) p->keys.data[i].value = flag[i];
    if (optimizer_check(p, o->arena, msg)) return usage(s, "%s", msg);
    return OK;
}

static Status set_param_group(Options *o, Spec *s) {
    ParamGroup g = {intern(spec_next(s)), NAN, NAN};
    Objective *j;
    TRY(objective(o, s, &j));
    const SpecKey keys[] = {
        {"lr_scale", .real = &g.lr_scale, .hi = MOST},
        {"weight_decay", .real = &g.weight_decay, .hi = MOST},
        {0}};
    TRY(spec_keys(s, keys));
    if (isnan(g.lr_scale) && isnan(g.weight_decay))
        return usage(s, "'%s' needs lr_scale= or weight_decay=", g.glob);
    vec_push(o->arena, &j->param_groups, g);
    return OK;
}

static Status find_schedule(const Spec *s, const char *word,
                            const ScheduleRow **out) {
    const char *words[32];
    int n = 0, i;
    for (const ScheduleRow *r = schedule_rows; r->word; r++)
        words[n++] = r->word;
    words[n] = NULL;
    TRY(pick(s, words, word, &i));
    *out = &schedule_rows[i];
    return OK;
}

/* A share of total=, in percent: rounded up, as transformers' warmup_ratio. */
static Status resolve_share(const Spec *s, const char *name, double total,
                            double share, double *to) {
    if (isnan(share)) return OK;
    if (total == 0 || isnan(total))
        return usage(s, "%s=%g%% needs total=", name, share * 100);
    *to = ceil(total * share - 1e-9);
    return OK;
}

static Status set_schedule(Options *o, Spec *s) {
    const ScheduleRow *row;
    TRY(find_schedule(s, spec_next(s), &row));
    Objective *j;
    TRY(objective(o, s, &j));
    ScheduleSpec *c = &j->schedule;
    *c = schedule_default(row);
    SpecKey keys[SCHEDULE_KEYS + 1] = {{0}};
    double share[SCHEDULE_KEYS];
    for (int i = 0; i < row->n; i++) {
        ScheduleKey key = row->keys[i].key;
        const ScheduleKeyRow *k = &schedule_keys[key];
        share[key] = NAN;
        keys[i] = (SpecKey){k->name, .real = &c->key[key], .lo = k->least,
                            .hi = k->most, .whole = k->whole};
        if (key == KEY_WARMUP || key == KEY_EVERY) keys[i].share = &share[key];
    }
    TRY(spec_keys(s, keys));
    for (int i = 0; i < row->n; i++) {
        ScheduleKey key = row->keys[i].key;
        TRY(resolve_share(s, schedule_keys[key].name, c->key[KEY_TOTAL],
                          share[key], &c->key[key]));
        if (isnan(c->key[key]))
            return usage(s, "%s needs %s=", row->word, schedule_keys[key].name);
    }
    if (c->key[KEY_TOTAL] != 0 && c->key[KEY_TOTAL] <= c->key[KEY_WARMUP])
        return usage(s, "total= must exceed warmup=");
    return OK;
}

static Status set_scale(Options *o, Spec *s) {
    ScaleSpec *c = &o->scale;
    *c = scale_default(SCALE_DYNAMIC);
    SpecKey init = {"init", .real = &c->init, .lo = 1e-30, .hi = 1e30};
    if (!strncmp(s->text, "static=", 7)) {
        c->kind = SCALE_STATIC;
        init.name = "static";
        return spec_assign(s, &init, s->text + 7);
    }
    const char *word = spec_next(s);
    bool none = !strcmp(word, "none");
    if (!none && strcmp(word, "dynamic"))
        return usage(s, "'%s' is not one of dynamic, static=K, none", word);
    if (none) c->kind = SCALE_NONE;
    const SpecKey no_keys[] = {{0}};
    const SpecKey keys[] = {
        init,
        {"growth", .real = &c->growth, .lo = 1.0000001, .hi = 1e9},
        {"backoff", .real = &c->backoff, .lo = 1e-9, .hi = 0.9999999},
        {"interval", .integer = &c->interval, .lo = 1, .hi = 1e9},
        {"min", .real = &c->min, .hi = 1e30},
        {"max", .real = &c->max, .lo = 1e-30, .hi = INFINITY},
        {"hysteresis", .integer = &c->hysteresis, .lo = 1, .hi = 1e9},
        {0}};
    TRY(spec_keys(s, none ? no_keys : keys));
    if (c->max < c->min) return usage(s, "max= is below min=");
    if (c->init < c->min || c->init > c->max)
        return usage(s, "init=%g is not in [%g, %g], which min= and max= set",
                     c->init, c->min, c->max);
    return OK;
}

static Status read_limit(const Spec *s, double *out) {
    TRY(read_number(s, s->text, out));
    if (*out >= LEAST && *out <= MOST) return OK;
    return usage(s, "%s is not in [%g, %g]", s->text, LEAST, MOST);
}

static Status set_max_loss_error(Options *o, Spec *s) {
    return read_limit(s, &o->max_error[ERROR_LOSS]);
}

static Status set_max_gradient_error(Options *o, Spec *s) {
    return read_limit(s, &o->max_error[ERROR_GRADIENT]);
}

static Status set_top_k(Options *o, Spec *s) {
    return read_integer(s, s->text, 2, INT32_MAX, &o->top_k);
}

static Status set_clip_norm(Options *o, Spec *s) {
    Objective *j;
    TRY(objective(o, s, &j));
    return read_limit(s, &j->clip_norm);
}

static Status set_clip_value(Options *o, Spec *s) {
    Objective *j;
    TRY(objective(o, s, &j));
    return read_limit(s, &j->clip_value);
}

#define TRANSFORM "gradient_"

static const char *transform_word(const Fn *f) {
    size_t n = strlen(TRANSFORM);
    return strncmp(f->info.text, TRANSFORM, n) ? NULL : f->info.text + n;
}

static Status find_transform(Options *o, Spec *s, const Fn **out) {
    const char **words = NEW_ARRAY(o->arena, const char *, fn_std_count() + 1);
    int n = 0, i;
    for (int k = 0; k < fn_std_count(); k++)
        if (transform_word(fn_std_at(k)))
            words[n++] = transform_word(fn_std_at(k));
    TRY(pick(s, words, spec_next(s), &i));
    *out = fn_std(arena_printf(o->arena, TRANSFORM "%s", words[i]));
    return OK;
}

static Status add_gradient(Options *o, Spec *s) {
    const Fn *fn;
    Objective *j;
    TRY(find_transform(o, s, &fn));
    TRY(objective(o, s, &j));
    TransformSpec t = transform_default(o->arena, fn);
    SpecKey keys[MAX_OP_ATTRS + 1] = {{0}};
    for (int i = 0; i < t.keys.len; i++) {
        keys[i] = spec_key(t.keys.data[i].key, &t.keys.data[i].value, NULL);
        keys[i].lo = LEAST;
        keys[i].hi = MOST;
    }
    TRY(spec_keys(s, keys));
    vec_push(o->arena, &j->transforms, t);
    return OK;
}

static Status average_buffers(const Spec *s, const char *word, bool *out) {
    static const char *const words[] = {"copy", "average", NULL};
    int i;
    TRY(pick(s, words, word, &i));
    *out = i == 1;
    return OK;
}

/* Reads the keys of an average; `keys` ends with one that has no name. */
static Status set_average(Options *o, Spec *s, const char *fn,
                          const SpecKey *keys) {
    AverageSpec a = {.fn = fn};
    StrBuf rest = {0};
    Status st = OK;
    if (o->average.fn && o->average.fn != fn)
        return usage(s, "a module has one average: --ema or --swa");
    for (char *piece; st == OK && (piece = spec_next(s));) {
        if (!strncmp(piece, "buffers=", 8))
            st = average_buffers(s, piece + 8, &a.buffers);
        else
            sb_printf(&rest, "%s%s", rest.len ? "," : "", piece);
    }
    s->text = rest.len ? rest.data : NULL;
    if (st == OK) st = spec_keys(s, keys);
    sb_free(&rest);
    s->text = NULL;
    for (int i = 0; keys[i].name; i++) {
        a.keys[i].name = keys[i].name;
        a.keys[i].value = *keys[i].real;
    }
    o->average = a;
    return st;
}

static Status set_ema(Options *o, Spec *s) {
    double decay, warmup = 0, power = 2.0 / 3, every = 1, after = 0;
    const SpecKey keys[] = {
        {"decay", .real = &decay, .hi = 1, .open = true},
        {"warmup", .real = &warmup, .hi = COUNT},
        {"power", .real = &power, .lo = LEAST, .hi = 1e3},
        {"every", .real = &every, .lo = 1, .hi = COUNT, .whole = true},
        {"after", .real = &after, .hi = COUNT, .whole = true},
        {0}};
    const char *text = spec_next(s);
    TRY(read_number(s, text, &decay));
    if (!(decay >= 0 && decay < 1))
        return usage(s, "the decay %s is not in [0, 1)", text);
    return set_average(o, s, "average_ema", keys);
}

static Status set_swa(Options *o, Spec *s) {
    double start = NAN, every = 1;
    const SpecKey keys[] = {
        {"start", .real = &start, .lo = 1, .hi = COUNT, .whole = true},
        {"every", .real = &every, .lo = 1, .hi = COUNT, .whole = true},
        {0}};
    TRY(set_average(o, s, "average_swa", keys));
    return isnan(start) ? usage(s, "start=STEP is missing: the first step "
                                   "that counts")
                        : OK;
}

static Status set_params(Options *o, Spec *s) {
    Objective *j;
    TRY(objective(o, s, &j));
    vec_push(o->arena, &j->params, intern(spec_next(s)));
    return s->text ? usage(s, "params: unknown key '%s'", s->text) : OK;
}

/* The keys of --objective; a key's value extends to the next key. */
static const struct ObjectiveKey {
    const char *name;
    Setter *set;
} objective_keys[] = {{"loss", set_loss},
                      {"params", set_params},
                      {"optimizer", set_optimizer},
                      {"param_group", set_param_group},
                      {"lr_schedule", set_schedule},
                      {"clip_norm", set_clip_norm},
                      {"clip_value", set_clip_value},
                      {"gradient", add_gradient}};

static const struct ObjectiveKey *objective_key(const char *text) {
    for (size_t i = 0; i < sizeof objective_keys / sizeof *objective_keys;
         i++) {
        size_t n = strlen(objective_keys[i].name);
        if (!strncmp(text, objective_keys[i].name, n) && text[n] == '=')
            return &objective_keys[i];
    }
    return NULL;
}

/* The first takes the place of the only objective that there is without. */
static Status start_objective(Options *o, const Spec *s, const char *name) {
    Options fresh;
    size_t ok = strspn(name, "abcdefghijklmnopqrstuvwxyz_-."
                             "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");
    if (!*name || name[ok])
        return usage(s, "'%s': a name is letters, digits, '_', '-' and '.'",
                     name);
    if (o->only_given)
        return usage(s, "cannot be combined with options for a single "
                        "objective; make them keys of each --objective");
    if (options_objective(o, intern(name)))
        return usage(s, "'%s' was given already", name);
    options_init(&fresh, o->arena);
    Objective j = fresh.objectives.data[0];
    j.name = intern(name);
    if (!*o->objectives.data[0].name) o->objectives.len = 0;
    vec_push(o->arena, &o->objectives, j);
    return OK;
}

/* NAME,loss=L,params=GLOB,optimizer=O,lr=..: pieces between keys are the
   key's own. */
static Status set_objective(Options *o, Spec *s) {
    TRY(start_objective(o, s, spec_next(s)));
    bool loss = false;
    while (s->text) {
        const struct ObjectiveKey *k = objective_key(s->text);
        if (!k)
            return usage(
                s,
                "unexpected '%.*s': no key (loss, params, optimizer, "
                "param_group, lr_schedule, clip_norm, clip_value) before it",
                (int)strcspn(s->text, ","), s->text);
        Spec part = {s->option, true,     s->loc,
                     s->d,      s->arena, s->text + strlen(k->name) + 1};
        do s->text = strchr(s->text, ',');
        while (s->text && !objective_key(++s->text));
        if (s->text) s->text[-1] = 0;
        loss |= k->set == set_loss;
        TRY(k->set(o, &part));
    }
    return loss ? OK : usage(s, "wants loss=");
}

/* Micro-batches are counted in an f32. */
static Status set_accumulate(Options *o, Spec *s) {
    const SpecKey keys[] = {
        {"mean_of_means", .flag = &o->equal_batches, .hi = 1}, {0}};
    o->equal_batches = false;
    TRY(read_integer(s, spec_next(s), 1, 1 << 24, &o->accumulate));
    return spec_keys(s, keys);
}

static Status set_comm_bucket(Options *o, Spec *s) {
    return read_integer(s, s->text, 1, INT64_MAX, &o->comm_bucket);
}

static Status set_comm_dtype(Options *o, Spec *s) {
    int i;
    TRY(pick(s, precision_words, s->text, &i));
    o->comm_dtype = precision_dtype[i];
    return OK;
}

static Status set_seed(Options *o, Spec *s) {
    return read_integer(s, s->text, 0, INT64_MAX, &o->seed);
}

static Status set_shuffle(Options *o, Spec *s) {
    int64_t seed;
    TRY(read_integer(s, s->text, 0, INT64_MAX, &seed));
    o->shuffle = (uint64_t)seed;
    return OK;
}

/* NAME=N or INPUT:AXIS=N, split at the last '=' and the last ':'. */
static Status set_dim(Options *o, Spec *s) {
    char *name = s->text, *eq = strrchr(name, '=');
    if (!eq) return usage(s, "'%s' is not NAME=N", name);
    DimBind b = {NULL, -1, 0};
    TRY(read_integer(s, eq + 1, 1, INT64_MAX, &b.value));
    *eq = 0;
    char *colon = strrchr(name, ':');
    if (colon) {
        int64_t axis;
        *colon = 0;
        TRY(read_integer(s, colon + 1, 0, MAX_RANK - 1, &axis));
        b.axis = (int)axis;
    }
    if (!*name)
        return usage(s, "a name is missing before '%s'", colon ? ":" : "=");
    b.name = intern(name);
    for (int i = 0; i < o->model_dims; i++) {
        DimBind *old = &o->dims.data[i];
        if (old->name != b.name || old->axis != b.axis) continue;
        old->value = b.value;
        return OK;
    }
    vec_push(o->arena, &o->dims, b);
    return OK;
}

/* N,N..: how large batches are that the module evaluates and predicts, too. */
static Status set_batch_sizes(Options *o, Spec *s) {
    over_model(&o->batch_sizes.len, &o->model_batches);
    for (char *piece; (piece = spec_next(s));) {
        int64_t n;
        bool known = false;
        TRY(read_integer(s, piece, 1, INT32_MAX, &n));
        for (int i = 0; i < o->batch_sizes.len; i++)
            known |= o->batch_sizes.data[i] == n;
        if (!known) vec_push(o->arena, &o->batch_sizes, n);
    }
    return OK;
}

static Status set_head(Options *o, Spec *s) {
    char *name = s->text, *eq = strrchr(name, '=');
    DimBind b = {NULL, -1, 0};
    if (!eq || eq == name) return usage(s, "'%s' is not OUTPUT=N", name);
    TRY(read_integer(s, eq + 1, 1, INT32_MAX, &b.value));
    *eq = 0;
    b.name = intern(name);
    vec_push(o->arena, &o->heads, b);
    return OK;
}

static Status set_train(Options *o, Spec *s) {
    GlobRule r = {intern(s->text), true};
    vec_push(o->arena, &o->train_rules, r);
    return OK;
}

static Status set_freeze(Options *o, Spec *s) {
    GlobRule r = {intern(s->text), false};
    vec_push(o->arena, &o->train_rules, r);
    return OK;
}

static Status set_batchnorm(Options *o, Spec *s) {
    static const char *const words[] = {"train:population", "train:unbiased",
                                        "train", NULL};
    const char *v = s->text;
    over_model(&o->batchnorm_frozen.len, &o->model_frozen);
    if (!strncmp(v, "frozen", 6) && (!v[6] || v[6] == ':')) {
        vec_push(o->arena, &o->batchnorm_frozen, intern(v[6] ? v + 7 : "*"));
        return OK;
    }
    int i = find_word(words, v);
    if (i < 0)
        return usage(s,
                     "'%s' is not one of train, train:unbiased, "
                     "train:population, frozen[:GLOB]",
                     v);
    o->batchnorm_train = o->batchnorm_said = true;
    o->batchnorm_unbiased = i == 2 ? -1 : i;
    return OK;
}

static Status set_dropout(Options *o, Spec *s) {
    static const char *const words[] = {"off", "on", NULL};
    int i;
    TRY(pick(s, words, s->text, &i));
    o->dropout = i == 1;
    return OK;
}

/* "sm_90" or "ptx" after "cuda:"; which of them there are is NVRTC's to say
   (codegen/cuda/cuda_target.c). */
static bool is_cuda_arch(const char *s) {
    if (!strcmp(s, "ptx")) return true;
    size_t digits = strncmp(s, "sm_", 3) ? 0 : strspn(s + 3, "0123456789");
    return (digits == 2 || digits == 3) && !s[3 + digits];
}

static void add_cuda_target(Options *o, const char *arch) {
    Target t = {.cuda = true, .arch = intern(arch)};
    vec_push(o->arena, &o->targets, t);
}

/* Adds the targets that `word` names: one level, or for `cpu` all, lowest
   first. */
static bool add_cpu_targets(Options *o, const char *word) {
    static const struct {
        const char *word;
        int isa;
        bool source;
    } levels[] = {
#define ISA(E, number, name, prefix, arch, vectors, flags)                     \
    {"cpu:" name, number, false},
#define ISA_SOURCE(E, number, name, prefix, vectors) {name, number, true},
#include "runtime/cpu/isa.def"
    };
    int before = o->targets.len;
    for (size_t i = sizeof levels / sizeof *levels; i-- > 0;)
        if ((!strcmp(word, "cpu") && !levels[i].source) ||
            !strcmp(word, levels[i].word))
            vec_push(o->arena, &o->targets, (Target){.isa = levels[i].isa});
    return o->targets.len > before;
}

static Status set_target(Options *o, Spec *s) {
    static const char levels[] =
#define ISA(E, number, name, prefix, arch, vectors, flags) "cpu:" name ", "
#define ISA_SOURCE(E, number, name, prefix, vectors)       name ", "
#include "runtime/cpu/isa.def"
        ;
    over_model(&o->targets.len, &o->model_targets);
    for (char *piece; (piece = spec_next(s));) {
        if (add_cpu_targets(o, piece)) {
            continue;
        } else if (!strcmp(piece, "cuda")) {
            add_cuda_target(o, "sm_90");
            add_cuda_target(o, "sm_80");
            add_cuda_target(o, "ptx");
        } else if (!strncmp(piece, "cuda:", 5) && is_cuda_arch(piece + 5)) {
            add_cuda_target(o, piece + 5);
        } else {
            return usage(s,
                         "this build makes code for cpu, %scuda, cuda:sm_NN "
                         "and cuda:ptx, not for '%s'",
                         levels, piece);
        }
    }
    return OK;
}

static Status set_weights(Options *o, Spec *s) {
    static const char *const words[] = {"embed", "sidecar", NULL};
    int i;
    TRY(pick(s, words, s->text, &i));
    o->sidecar_weights = i == 1;
    return OK;
}

static Status set_symbol(Options *o, Spec *s) {
    const char *v = s->text;
    size_t ok = strspn(v, "abcdefghijklmnopqrstuvwxyz_"
                          "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");
    if (!*v || v[ok] || (*v >= '0' && *v <= '9'))
        return usage(s, "'%s' is not a C identifier", v);
    o->symbol = intern(v);
    return OK;
}

/* ---- the table ----------------------------------------------------------- */

typedef enum RowKind { SETTER, ADDER, FLAG, PATH, PATHS } RowKind;

/* Meaning of a row's third column, by the row's kind. */
#define WHAT_SETTER(function) function, 0
#define WHAT_ADDER(function)  function, 0
#define WHAT_FLAG(field)      NULL, offsetof(Options, field)
#define WHAT_PATH(field)      NULL, offsetof(Options, field)
#define WHAT_PATHS(field)     NULL, offsetof(Options, field)

static const struct OptionRow {
    const char *name;
    RowKind kind; /* an ADDER may stand in a block more than once */
    Setter *set;
    size_t field; /* FLAG: a bool, set true.  PATH: a Str, the value as it is;
                     PATHS: a list of them */
    enum { SAME, FREE } resume; /* options.def */
} option_rows[] = {
#define COMPILE(flag, kind, what, resume, value, preset, text)                 \
    {flag, kind, WHAT_##kind(what), resume},
#include "frontend/cli/options.def"
};

_Static_assert(sizeof option_rows / sizeof *option_rows <= 64, "Options.lines");

/* Names of options in other trainers, and the option to use here. */
static const struct {
    const char *word, *here;
} elsewhere[] = {
    {"--amp", "--precision fp32|bf16|fp16"},
    {"--batch-size", "--dim NAME=N"},
    {"--bf16", "--precision bf16"},
    {"--device", "--target; ampc run has --device"},
    {"--epochs", "ampc run OUT.so --epochs N"},
    {"--feed", "ampc run OUT.so --feed NAME=FILE"},
    {"--fp16", "--precision fp16"},
    {"--learning-rate", "--optimizer O,lr=X"},
    {"--lr", "--optimizer O,lr=X; ampc run has --lr"},
    {"--momentum", "--optimizer sgd,momentum=X"},
    {"--output", "-o OUT.so"},
    {"--steps", "ampc run OUT.so --steps N"},
    {"--weight-decay", "--optimizer O,weight_decay=X"},
};

static Status unknown_option(const Spec *s) {
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (!strcmp(elsewhere[i].word, s->option))
            return usage(s, "unknown option; use %s", elsewhere[i].here);
    char text[NEAR_TEXT];
    Near near = near_to(s->option);
    for (size_t i = 0; i < sizeof option_rows / sizeof *option_rows; i++)
        near_offer(&near, option_rows[i].name);
    return usage(s, "unknown option%s (see ampc --help)",
                 near_text(&near, text));
}

static Status add_path(Options *o, const Spec *s, Strs *to, const char *value) {
    const char *eq = strchr(value, '=');
    if (s->loc.file) return usage(s, "is an option of the command line");
    if (!eq || eq == value || !eq[1])
        return usage(s, "'%s' is not NAME=FILE", value);
    vec_push(o->arena, to, intern(value));
    return OK;
}

static Status apply_option(Options *o, Spec *s, const char *value,
                           bool *used_value) {
    const struct OptionRow *r = option_rows, *end = r;
    for (end += sizeof option_rows / sizeof *r; r < end; r++)
        if (!strcmp(r->name, s->option)) break;
    if (r == end) return unknown_option(s);
    *used_value = r->kind != FLAG;
    if (*used_value && !value) return usage(s, "needs a value");
    uint64_t row = UINT64_C(1) << (r - option_rows);
    if (s->loc.file && r->kind != ADDER && (o->lines & row))
        return usage(s, "is given twice");
    if (s->loc.file) o->lines |= row;
    switch (r->kind) {
    case FLAG: *(bool *)((char *)o + r->field) = true; return OK;
    case PATH:
        if (!*value) return usage(s, "a path is missing");
        if (s->loc.file) return usage(s, "is an option of the command line");
        *(Str *)((char *)o + r->field) = intern(value);
        return OK;
    case PATHS: return add_path(o, s, (Strs *)((char *)o + r->field), value);
    case SETTER:
    case ADDER: break;
    }
    s->text = arena_dup(o->arena, value, strlen(value) + 1);
    return r->set(o, s);
}

static Status set_option(Options *o, Spec *s, const char *value,
                         bool *used_value) {
    TRY(apply_option(o, s, value, used_value));
    vec_push(o->arena, &o->said, intern(s->option));
    vec_push(o->arena, &o->said, intern(*used_value ? value : ""));
    return OK;
}

Status options_set(Options *o, Diag *d, const char *name, const char *value,
                   bool *used_value) {
    Spec s = {name, false, {0}, d, o->arena, NULL};
    return set_option(o, &s, value, used_value);
}

/* Removes blanks at both ends and after commas, and quotes around the whole
   text. */
static char *trim_value(char *v) {
    char *to, *from;
    v += strspn(v, " \t");
    size_t n = strlen(v);
    if (n >= 2 && v[0] == '"' && v[n - 1] == '"') {
        v[n - 1] = 0;
        return v + 1;
    }
    for (to = from = v; *from;) {
        *to++ = *from++;
        if (to[-1] == ',') from += strspn(from, " \t");
    }
    *to = 0;
    return v;
}

Status options_set_line(Options *o, Diag *d, const Setting *line) {
    char *text = arena_dup(o->arena, line->text, strlen(line->text) + 1);
    size_t n = strcspn(text, " \t=");
    char *value = text + n + strspn(text + n, " \t"), *name;
    bool given = *value == '=', used;
    if (given) value++;
    text[n] = 0;
    for (char *p = text; *p; p++)
        if (*p == '_') *p = '-';
    name = arena_printf(o->arena, "--%s", text);
    Spec s = {name, false, line->loc, d, o->arena, NULL};
    if (!given && *value) return usage(&s, "'=' expected after the name");
    TRY(set_option(o, &s, given ? trim_value(value) : NULL, &used));
    return used || !given ? OK : usage(&s, "takes no value");
}

void options_second_source(Options *o) {
    for (int i = 0; i < 2; i++) vec_push(o->arena, &o->said, intern(""));
    o->loss_given = o->only_given = false;
    o->model_dims = o->dims.len;
    o->model_frozen = o->batchnorm_frozen.len;
    o->model_targets = o->targets.len;
    o->model_batches = o->batch_sizes.len;
}

/* ---- said again ---------------------------------------------------------- */

static bool names_file(const char *option) {
    for (size_t i = 0; i < sizeof option_rows / sizeof *option_rows; i++)
        if (!strcmp(option_rows[i].name, option))
            return option_rows[i].kind == PATH || option_rows[i].kind == PATHS;
    return false;
}

/* Without names of files, which change no bit of a module. */
void options_words(const Options *o, StrBuf *sb) {
    for (int i = 0; i + 1 < o->said.len; i += 2)
        for (int k = 0; k < 2 && !names_file(o->said.data[i]); k++)
            sb_putn(sb, o->said.data[i + k], strlen(o->said.data[i + k]) + 1);
}

/* All values of row r; false: it was not given.  Of a file its contents count.
 */
static bool said_of(const Options *o, const struct OptionRow *r,
                    StrBuf *value) {
    bool given = false;
    for (int i = 0; i + 1 < o->said.len; i += 2) {
        if (strcmp(o->said.data[i], r->name) != 0) continue;
        if (r->kind != ADDER) value->len = 0;
        if (r->kind == ADDER && given) sb_puts(value, "; ");
        sb_puts(value, o->said.data[i + 1]);
        given = true;
    }
    if (!given || r->kind != PATH) return given;
    Diag ignored = {0};
    size_t n;
    char *text = read_file(&ignored, value->data, &n);
    value->len = 0;
    sb_printf(value, "%016llx",
              (unsigned long long)(text ? hash_bytes(1, text, n) : 0));
    free(text);
    sb_free(&ignored.text);
    return true;
}

void options_said(const Options *o, uint64_t model, StrBuf *sb) {
    sb_printf(sb, "{\"the model\":\"%016llx\"", (unsigned long long)model);
    for (size_t i = 0; i < sizeof option_rows / sizeof *option_rows; i++) {
        StrBuf value = {0};
        if (option_rows[i].resume == SAME &&
            said_of(o, &option_rows[i], &value)) {
            sb_printf(sb, ",\"%s\":\"", option_rows[i].name);
            sb_put_json(sb, value.len ? value.data : "");
            sb_puts(sb, "\"");
        }
        sb_free(&value);
    }
    sb_puts(sb, "}");
}

Status options_again(Options *o, Diag *d, const char *words, size_t n) {
    for (const char *p = words, *end = words + n; p < end;) {
        const char *name = p, *value = p + strlen(p) + 1;
        bool used;
        p = value + (value < end ? strlen(value) + 1 : 0);
        if (!*name)
            options_second_source(o);
        else if (!names_file(name))
            TRY(options_set(o, d, name, value < end ? value : NULL, &used));
    }
    return OK;
}

/* ---- for the module's info ----------------------------------------------- */

/* "cross_entropy + 0.5*mse", with outputs: "cross_entropy of a + 0.5*mse of b"
 */
static void put_losses(const Objective *j, bool outputs, StrBuf *sb) {
    for (int i = 0; i <= j->added.len; i++) {
        const LossSpec *l = i ? &j->added.data[i - 1] : &j->loss;
        if (i) sb_puts(sb, " + ");
        if (l->factor != 1) sb_printf(sb, "%g*", l->factor);
        sb_puts(sb, loss_word(l));
        for (int k = 0; outputs && k < l->outputs.len; k++) {
            sb_puts(sb, k ? ", " : " of ");
            sb_put_escaped(sb, l->outputs.data[k]);
        }
    }
}

static const char *average_word(const AverageSpec *a) {
    return a->fn + strlen("average_");
}

static void json_objective(const Objective *j, StrBuf *sb) {
    const OptimizerSpec *p = &j->optimizer;
    sb_puts(sb, "\"loss\":\"");
    put_losses(j, false, sb);
    sb_puts(sb, "\",\"optimizer\":");
    sb_printf(sb, "{\"name\":\"%s\",\"lr\":%.9g", p->fn->info.text, p->lr);
    for (int i = 0; i < p->keys.len; i++) {
        const OptimizerKey *k = &p->keys.data[i];
        sb_printf(sb, ",\"%s\":", k->key->name);
        if (k->key->kind == FA_BOOL)
            sb_puts(sb, k->value != 0 ? "true" : "false");
        else
            sb_printf(sb, "%.9g", k->value);
    }
    sb_puts(sb, "}");
    sb_printf(sb, ",\"lr_schedule\":\"%s\",\"clip_norm\":%.9g",
              j->schedule.row->word, j->clip_norm);
    sb_printf(sb, ",\"clip_value\":%.9g", j->clip_value);
}

static const char *scale_text(const Options *o) {
    return !options_has_scaler(o)          ? "none"
           : o->scale.kind == SCALE_STATIC ? "static"
                                           : "dynamic";
}

void options_json(const Options *o, StrBuf *sb) {
    const Objective *j = o->objectives.data;
    sb_printf(sb, "{\"precision\":\"%s\",", precision_words[o->precision]);
    if (!*j->name) json_objective(j, sb);
    for (int i = 0; *j->name && i < o->objectives.len; i++) {
        sb_printf(sb, "%s{\"name\":\"%s\",", i ? "," : "\"objectives\":[",
                  j[i].name);
        json_objective(&j[i], sb);
        sb_puts(sb, i + 1 < o->objectives.len ? "}" : "}]");
    }
    if (o->equal_batches) sb_puts(sb, ",\"equal_batches\":1");
    sb_printf(sb, ",\"accumulate\":%lld,\"loss_scale\":\"%s\",\"seed\":%lld",
              (long long)o->accumulate, scale_text(o), (long long)o->seed);
    for (int i = 0; i < o->batch_sizes.len; i++)
        sb_printf(sb, "%s%lld", i ? "," : ",\"batch_sizes\":[",
                  (long long)o->batch_sizes.data[i]);
    if (o->batch_sizes.len) sb_puts(sb, "]");
    if (o->average.fn)
        sb_printf(sb, ",\"average\":\"%s\"", average_word(&o->average));
    for (int i = 0; i < o->fresh.len; i++) {
        sb_puts(sb, i ? ",\"" : ",\"fresh\":[\"");
        sb_put_json(sb, o->fresh.data[i]);
        sb_puts(sb, i + 1 < o->fresh.len ? "\"" : "\"]");
    }
    sb_printf(sb, ",\"shard_optimizer\":%d,\"top_k\":%lld}", o->shard_optimizer,
              (long long)o->top_k);
}

static void objective_lines(const Options *o, const Objective *j, StrBuf *sb) {
    if (*j->name) sb_printf(sb, "objective   %s\n", j->name);
    sb_puts(sb, "loss        ");
    put_losses(j, true, sb);
    if (options_train(o)) {
        sb_printf(sb, "\noptimizer   %s, lr %g %s", j->optimizer.fn->info.text,
                  j->optimizer.lr, j->schedule.row->word);
        if (j->clip_norm > 0) sb_printf(sb, ", clip-norm %g", j->clip_norm);
        if (j->clip_value > 0) sb_printf(sb, ", clip-value %g", j->clip_value);
        for (int i = 0; i < j->transforms.len; i++)
            sb_printf(sb, ", gradient %s",
                      transform_word(j->transforms.data[i].fn));
        if (o->accumulate > 1)
            sb_printf(sb, ", %lld micro-batches a step%s",
                      (long long)o->accumulate,
                      o->equal_batches ? " (the mean of their means)" : "");
    }
    sb_puts(sb, "\n");
}

void options_lines(const Options *o, StrBuf *sb) {
    for (int i = 0; i < o->objectives.len; i++)
        objective_lines(o, &o->objectives.data[i], sb);
    for (int i = 0; i < o->batch_sizes.len; i++)
        sb_printf(sb, "%s%lld%s", i ? ", " : "batch sizes ",
                  (long long)o->batch_sizes.data[i],
                  i + 1 < o->batch_sizes.len ? "" : " (eval, predict)\n");
    if (o->average.fn) {
        sb_printf(sb, "average     %s", average_word(&o->average));
        for (int i = 0; i < AVERAGE_KEYS && o->average.keys[i].name; i++)
            sb_printf(sb, "%s %s %g", i ? "," : "", o->average.keys[i].name,
                      o->average.keys[i].value);
        sb_puts(sb, o->average.buffers ? ", buffers averaged\n" : "\n");
    }
    sb_printf(sb, "precision   %s, loss scale %s\n",
              precision_words[o->precision], scale_text(o));
}
