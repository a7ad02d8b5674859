/* options.c: compile options from text.  One row an option; specs of the form
   name,key=value,... share one reader.                                     */
#include "passes/options.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void options_init(Options *o, Arena *a) {
    *o = (Options){.arena = a};
    o->precision = PREC_BF16;
    o->loss = (LossSpec){
        .kind = LOSS_AUTO, .axis = INT_MIN, .ignore_index = -100, .delta = 1};
    o->optimizer = (OptimizerSpec){.kind = OPT_ADAMW,
                                   .lr = 1e-3,
                                   .beta1 = 0.9,
                                   .beta2 = 0.999,
                                   .eps = 1e-8,
                                   .weight_decay = 1e-2};
    o->accumulate = 1;
    o->scale = (ScaleSpec){.init = 65536,
                           .growth = 2,
                           .backoff = 0.5,
                           .interval = 2000,
                           .min = 1,
                           .max = 16777216,
                           .hysteresis = 1};
    o->batchnorm_train = true;
    o->batchnorm_unbiased = -1;
    o->dropout = true;
    o->symbol = intern("ampc_module");
}

bool options_has_scaler(const Options *o) {
    if (o->scale.kind == SCALE_DEFAULT) return o->precision == PREC_FP16;
    return o->scale.kind != SCALE_NONE;
}

/* ---- reading specs ------------------------------------------------------- */

typedef struct Spec {
    const char *option; /* for messages */
    Diag *d;
    char *cursor; /* rest of the text, cut at commas */
} Spec;

static Status usage(Diag *d, const char *option, const char *fmt,
                    const char *what) {
    char why[300];
    snprintf(why, sizeof why, fmt, what);
    fail(d, (Loc){0}, "%s: %s", option, why);
    return ERR_USAGE;
}

/* Next comma-separated piece, or NULL. */
static char *spec_next(Spec *s) {
    if (!s->cursor) return NULL;
    char *piece = s->cursor, *comma = strchr(piece, ',');
    if (comma) *comma = 0;
    s->cursor = comma ? comma + 1 : NULL;
    return piece;
}

static Status read_number(const Spec *s, const char *text, double *out) {
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end)
        return usage(s->d, s->option, "'%s' is not a number", text);
    *out = v;
    return OK;
}

static Status read_integer(Diag *d, const char *option, const char *text,
                           int64_t lo, int64_t *out) {
    char *end;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || v < lo)
        return usage(d, option, "'%s' is not a number that is large enough",
                     text);
    *out = v;
    return OK;
}

typedef struct SpecKey {
    const char *name;
    double *real;
    int64_t *integer;
    bool *flag;
    double lo, hi; /* legal values, inclusive */
} SpecKey;

static Status spec_assign(const Spec *s, const SpecKey *k, const char *value) {
    double v;
    TRY(read_number(s, value, &v));
    if (!(v >= k->lo && v <= k->hi))
        return usage(s->d, s->option, "%s is out of range", k->name);
    if (k->integer && v != floor(v))
        return usage(s->d, s->option, "%s must be an integer", k->name);
    if (k->real) *k->real = v;
    if (k->integer) *k->integer = (int64_t)v;
    if (k->flag) *k->flag = v != 0;
    return OK;
}

/* The rest of a spec: key=value pieces; a bare flag key means 1. */
static Status spec_keys(Spec *s, const SpecKey *keys) {
    for (char *piece; (piece = spec_next(s));) {
        char *eq = strchr(piece, '=');
        if (eq) *eq = 0;
        const SpecKey *k = keys;
        while (k->name && strcmp(k->name, piece)) k++;
        if (!k->name) return usage(s->d, s->option, "unknown key '%s'", piece);
        if (!eq && !k->flag)
            return usage(s->d, s->option, "key '%s' wants a value", piece);
        TRY(spec_assign(s, k, eq ? eq + 1 : "1"));
    }
    return OK;
}

static int find_word(const char *const *words, const char *w) {
    for (int i = 0; words[i]; i++)
        if (!strcmp(words[i], w)) return i;
    return -1;
}

/* ---- one setter an option -------------------------------------------------
 */

typedef Status Setter(Options *o, Diag *d, const char *name, char *value);

static const char *const precision_words[] = {"fp32", "bf16", "fp16", NULL};

static Status set_precision(Options *o, Diag *d, const char *n, char *v) {
    static const char *const levels[] = {"O0", "O1", "O1:bf16", NULL};
    static const Precision of_level[] = {PREC_FP32, PREC_FP16, PREC_BF16};
    int i = find_word(precision_words, v);
    if (i >= 0) {
        o->precision = (Precision)i;
        return OK;
    }
    i = find_word(levels, v);
    if (i < 0)
        return usage(d, n, "'%s' is none of fp32, bf16, fp16, O0, O1, O1:bf16",
                     v);
    o->precision = of_level[i];
    return OK;
}

static const char *const loss_words[] = {
    "auto", "none",  "cross_entropy",   "nll", "mse",
    "l1",   "huber", "bce_with_logits", NULL};

static Status set_loss(Options *o, Diag *d, const char *n, char *v) {
    LossSpec *l = &o->loss;
    char *colon = strchr(v, ':');
    if (colon) {
        *colon = 0;
        l->output = intern(colon + 1);
    }
    Spec s = {n, d, v};
    const char *word = spec_next(&s);
    int i = find_word(loss_words, word);
    if (i < 0) return usage(d, n, "unknown loss '%s'", word);
    l->kind = (LossKind)i;
    double axis = NAN, none = 0;
    SpecKey keys[] = {
        {"axis", &axis, NULL, NULL, -8, 7},
        {"ignore_index", NULL, &l->ignore_index, NULL, -1e15, 1e15},
        {"label_smoothing", &l->label_smoothing, NULL, NULL, 0, 1},
        {"delta", &l->delta, NULL, NULL, 1e-12, 1e12},
        {NULL, &none, NULL, NULL, 0, 0}};
    TRY(spec_keys(&s, keys));
    if (!isnan(axis)) l->axis = (int)axis;
    return OK;
}

static const char *const optimizer_words[] = {"sgd", "adam", "adamw", NULL};

static Status set_optimizer(Options *o, Diag *d, const char *n, char *v) {
    Spec s = {n, d, v};
    const char *word = spec_next(&s);
    int i = find_word(optimizer_words, word);
    if (i < 0) return usage(d, n, "'%s' is none of sgd, adam, adamw", word);
    OptimizerSpec *p = &o->optimizer;
    *p = (OptimizerSpec){.kind = (OptimizerKind)i,
                         .lr = 1e-3,
                         .beta1 = 0.9,
                         .beta2 = 0.999,
                         .eps = 1e-8,
                         .weight_decay = i == OPT_ADAMW ? 1e-2 : 0};
    const SpecKey sgd[] = {
        {"lr", &p->lr, NULL, NULL, 0, 1e9},
        {"momentum", &p->momentum, NULL, NULL, 0, 1},
        {"weight_decay", &p->weight_decay, NULL, NULL, 0, 1e9},
        {"nesterov", NULL, NULL, &p->nesterov, 0, 1},
        {0}};
    const SpecKey adam[] = {
        {"lr", &p->lr, NULL, NULL, 0, 1e9},
        {"beta1", &p->beta1, NULL, NULL, 0, 1},
        {"beta2", &p->beta2, NULL, NULL, 0, 1},
        {"eps", &p->eps, NULL, NULL, 0, 1e9},
        {"weight_decay", &p->weight_decay, NULL, NULL, 0, 1e9},
        {0}};
    TRY(spec_keys(&s, p->kind == OPT_SGD ? sgd : adam));
    if (p->nesterov && p->momentum == 0)
        return usage(d, n, "%s", "nesterov wants a momentum");
    return OK;
}

static Status set_param_group(Options *o, Diag *d, const char *n, char *v) {
    Spec s = {n, d, v};
    ParamGroup g = {intern(spec_next(&s)), NAN, NAN};
    const SpecKey keys[] = {
        {"lr_scale", &g.lr_scale, NULL, NULL, 0, 1e9},
        {"weight_decay", &g.weight_decay, NULL, NULL, 0, 1e9},
        {0}};
    TRY(spec_keys(&s, keys));
    vec_push(o->arena, &o->param_groups, g);
    return OK;
}

static const char *const schedule_words[] = {"constant", "cosine", "linear",
                                             "step", NULL};

static Status set_schedule(Options *o, Diag *d, const char *n, char *v) {
    Spec s = {n, d, v};
    const char *word = spec_next(&s);
    int i = find_word(schedule_words, word);
    if (i < 0)
        return usage(d, n, "'%s' is none of constant, cosine, linear, step",
                     word);
    o->schedule = (ScheduleSpec){.kind = (ScheduleKind)i, .gamma = 0.1};
    ScheduleSpec *c = &o->schedule;
    const SpecKey keys[] = {{"warmup", NULL, &c->warmup, NULL, 0, 1e15},
                            {"total", NULL, &c->total, NULL, 1, 1e15},
                            {"every", NULL, &c->every, NULL, 1, 1e15},
                            {"min", &c->min, NULL, NULL, 0, 1e9},
                            {"gamma", &c->gamma, NULL, NULL, 0, 1e9},
                            {0}};
    TRY(spec_keys(&s, keys));
    bool decays = c->kind == SCHED_COSINE || c->kind == SCHED_LINEAR;
    if (decays && c->total <= c->warmup)
        return usage(d, n, "%s", "total= must be given and exceed warmup=");
    if (c->kind == SCHED_STEP && !c->every)
        return usage(d, n, "%s", "step wants every=");
    return OK;
}

static Status set_scale(Options *o, Diag *d, const char *n, char *v) {
    ScaleSpec *c = &o->scale;
    if (!strncmp(v, "static=", 7)) {
        Spec s = {n, d, v};
        c->kind = SCALE_STATIC;
        TRY(read_number(&s, v + 7, &c->init));
        return c->init > 0 && isfinite(c->init)
                   ? OK
                   : usage(d, n, "'%s' must be positive", v);
    }
    Spec s = {n, d, v};
    const char *word = spec_next(&s);
    if (!strcmp(word, "none")) {
        c->kind = SCALE_NONE;
        return OK;
    }
    if (strcmp(word, "dynamic"))
        return usage(d, n, "'%s' is none of dynamic, static=K, none", word);
    c->kind = SCALE_DYNAMIC;
    const SpecKey keys[] = {
        {"init", &c->init, NULL, NULL, 1e-30, 1e30},
        {"growth", &c->growth, NULL, NULL, 1.0000001, 1e9},
        {"backoff", &c->backoff, NULL, NULL, 1e-9, 0.9999999},
        {"interval", NULL, &c->interval, NULL, 1, 1e9},
        {"min", &c->min, NULL, NULL, 0, 1e30},
        {"max", &c->max, NULL, NULL, 1e-30, INFINITY},
        {"hysteresis", NULL, &c->hysteresis, NULL, 1, 1e9},
        {0}};
    return spec_keys(&s, keys);
}

static Status set_clip_norm(Options *o, Diag *d, const char *n, char *v) {
    Spec s = {n, d, v};
    TRY(read_number(&s, v, &o->clip_norm));
    return o->clip_norm > 0 ? OK : usage(d, n, "'%s' must be positive", v);
}

static Status set_clip_value(Options *o, Diag *d, const char *n, char *v) {
    Spec s = {n, d, v};
    TRY(read_number(&s, v, &o->clip_value));
    return o->clip_value > 0 ? OK : usage(d, n, "'%s' must be positive", v);
}

static Status set_accumulate(Options *o, Diag *d, const char *n, char *v) {
    return read_integer(d, n, v, 1, &o->accumulate);
}

static Status set_seed(Options *o, Diag *d, const char *n, char *v) {
    return read_integer(d, n, v, 0, &o->seed);
}

static Status set_shuffle(Options *o, Diag *d, const char *n, char *v) {
    int64_t seed;
    TRY(read_integer(d, n, v, 0, &seed));
    o->shuffle = (uint64_t)seed;
    return OK;
}

/* NAME=N or INPUT:AXIS=N, split at the last '=' and the last ':'. */
static Status set_dim(Options *o, Diag *d, const char *n, char *v) {
    char *eq = strrchr(v, '=');
    if (!eq) return usage(d, n, "'%s' is not NAME=N", v);
    DimBind b = {NULL, -1, 0};
    TRY(read_integer(d, n, eq + 1, 1, &b.value));
    *eq = 0;
    char *colon = strrchr(v, ':');
    if (colon) {
        int64_t axis;
        *colon = 0;
        TRY(read_integer(d, n, colon + 1, 0, &axis));
        if (axis >= MAX_RANK) return usage(d, n, "axis of '%s' too large", v);
        b.axis = (int)axis;
    }
    b.name = intern(v);
    vec_push(o->arena, &o->dims, b);
    return OK;
}

static Status add_glob(Options *o, const char *glob, bool train) {
    GlobRule r = {intern(glob), train};
    vec_push(o->arena, &o->train_rules, r);
    return OK;
}

static Status set_train(Options *o, Diag *d, const char *n, char *v) {
    (void)d, (void)n;
    return add_glob(o, v, true);
}

static Status set_freeze(Options *o, Diag *d, const char *n, char *v) {
    (void)d, (void)n;
    return add_glob(o, v, false);
}

static Status set_batchnorm(Options *o, Diag *d, const char *n, char *v) {
    if (!strncmp(v, "frozen", 6) && (!v[6] || v[6] == ':')) {
        vec_push(o->arena, &o->batchnorm_frozen, intern(v[6] ? v + 7 : "*"));
        return OK;
    }
    static const char *const words[] = {"train:population", "train:unbiased",
                                        "train", NULL};
    int i = find_word(words, v);
    if (i < 0)
        return usage(d, n,
                     "'%s' is none of train, train:unbiased, "
                     "train:population, frozen[:GLOB]",
                     v);
    o->batchnorm_train = true;
    o->batchnorm_unbiased = i == 2 ? -1 : i;
    return OK;
}

static Status set_dropout(Options *o, Diag *d, const char *n, char *v) {
    if (strcmp(v, "on") && strcmp(v, "off"))
        return usage(d, n, "'%s' is neither on nor off", v);
    o->dropout = !strcmp(v, "on");
    return OK;
}

/* "sm_90" or "ptx" after "cuda:"; which of them there are is NVRTC's to say
   (codegen/cuda_target.c). */
static bool is_cuda_arch(const char *s) {
    if (!strcmp(s, "ptx")) return true;
    size_t digits = strncmp(s, "sm_", 3) ? 0 : strspn(s + 3, "0123456789");
    return (digits == 2 || digits == 3) && !s[3 + digits];
}

static void add_cuda_target(Options *o, const char *arch) {
    Target t = {.cuda = true, .arch = intern(arch)};
    vec_push(o->arena, &o->targets, t);
}

static Status set_target(Options *o, Diag *d, const char *n, char *v) {
    static const char *const words[] = {"cpu:x86-64-v2", "cpu:x86-64-v3",
                                        "cpu:x86-64-v4", NULL};
    Spec s = {n, d, v};
    for (char *piece; (piece = spec_next(&s));) {
        int i = find_word(words, piece);
        if (!strcmp(piece, "cpu")) {
            for (int isa = 2; isa <= 4; isa++)
                vec_push(o->arena, &o->targets, (Target){.isa = isa});
        } else if (i >= 0) {
            vec_push(o->arena, &o->targets, (Target){.isa = i + 2});
        } else if (!strcmp(piece, "cuda")) {
            add_cuda_target(o, "sm_90");
            add_cuda_target(o, "sm_80");
            add_cuda_target(o, "ptx");
        } else if (!strncmp(piece, "cuda:", 5) && is_cuda_arch(piece + 5)) {
            add_cuda_target(o, piece + 5);
        } else {
            return usage(d, n,
                         "this build makes code for cpu, cpu:x86-64-v2, "
                         "cpu:x86-64-v3, cpu:x86-64-v4, cuda, cuda:sm_NN and "
                         "cuda:ptx, not for '%s'",
                         piece);
        }
    }
    return OK;
}

static Status set_weights(Options *o, Diag *d, const char *n, char *v) {
    if (strcmp(v, "embed") && strcmp(v, "sidecar"))
        return usage(d, n, "'%s' is neither embed nor sidecar", v);
    o->sidecar_weights = !strcmp(v, "sidecar");
    return OK;
}

static Status set_symbol(Options *o, Diag *d, const char *n, char *v) {
    size_t ok = strspn(v, "abcdefghijklmnopqrstuvwxyz_"
                          "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");
    if (!*v || v[ok] || (*v >= '0' && *v <= '9'))
        return usage(d, n, "'%s' is not a C identifier", v);
    o->symbol = intern(v);
    return OK;
}

static Status set_accept_folded(Options *o, Diag *d, const char *n, char *v) {
    (void)d, (void)n, (void)v;
    o->accept_folded = true;
    return OK;
}

static Status set_time_passes(Options *o, Diag *d, const char *n, char *v) {
    (void)d, (void)n, (void)v;
    o->time_passes = true;
    return OK;
}

static Status set_no_fuse(Options *o, Diag *d, const char *n, char *v) {
    (void)d, (void)n, (void)v;
    o->no_fuse = true;
    return OK;
}

#define PATH_SETTER(field)                                                     \
    static Status set_##field(Options *o, Diag *d, const char *n, char *v) {   \
        (void)d, (void)n;                                                      \
        o->field = intern(v);                                                  \
        return OK;                                                             \
    }
PATH_SETTER(dump_ir)
PATH_SETTER(emit_c)
PATH_SETTER(emit_cuda)
PATH_SETTER(report)

static const struct OptionRow {
    const char *name;
    bool has_value;
    Setter *set;
} option_rows[] = {
    {"--precision", true, set_precision},
    {"--loss", true, set_loss},
    {"--optimizer", true, set_optimizer},
    {"--param-group", true, set_param_group},
    {"--lr-schedule", true, set_schedule},
    {"--clip-norm", true, set_clip_norm},
    {"--clip-value", true, set_clip_value},
    {"--accumulate", true, set_accumulate},
    {"--loss-scale", true, set_scale},
    {"--dim", true, set_dim},
    {"--train", true, set_train},
    {"--freeze", true, set_freeze},
    {"--batchnorm", true, set_batchnorm},
    {"--dropout", true, set_dropout},
    {"--accept-folded", false, set_accept_folded},
    {"--target", true, set_target},
    {"--weights", true, set_weights},
    {"--dump-ir", true, set_dump_ir},
    {"--emit-c", true, set_emit_c},
    {"--emit-cuda", true, set_emit_cuda},
    {"--report", true, set_report},
    {"--symbol", true, set_symbol},
    {"--seed", true, set_seed},
    {"--time-passes", false, set_time_passes},
    {"--no-fuse", false, set_no_fuse},
    {"--shuffle", true, set_shuffle},
};

Status options_set(Options *o, Diag *d, const char *name, const char *value,
                   bool *used_value) {
    size_t n = sizeof option_rows / sizeof *option_rows;
    for (size_t i = 0; i < n; i++) {
        const struct OptionRow *r = &option_rows[i];
        if (strcmp(r->name, name)) continue;
        *used_value = r->has_value;
        if (r->has_value && !value)
            return usage(d, name, "%s", "wants a value");
        char *copy =
            r->has_value ? arena_dup(o->arena, value, strlen(value) + 1) : NULL;
        return r->set(o, d, name, copy);
    }
    return usage(d, name, "%s", "unknown option (see ampc --help)");
}

/* ---- for the module's info ------------------------------------------------
 */

static void json_optimizer(const OptimizerSpec *p, StrBuf *sb) {
    sb_printf(sb, "{\"name\":\"%s\",\"lr\":%.9g,\"weight_decay\":%.9g",
              optimizer_words[p->kind], p->lr, p->weight_decay);
    if (p->kind == OPT_SGD)
        sb_printf(sb, ",\"momentum\":%.9g,\"nesterov\":%s}", p->momentum,
                  p->nesterov ? "true" : "false");
    else
        sb_printf(sb, ",\"beta1\":%.9g,\"beta2\":%.9g,\"eps\":%.9g}", p->beta1,
                  p->beta2, p->eps);
}

void options_json(const Options *o, StrBuf *sb) {
    sb_printf(sb, "{\"precision\":\"%s\",\"loss\":\"%s\",\"optimizer\":",
              precision_words[o->precision], loss_words[o->loss.kind]);
    json_optimizer(&o->optimizer, sb);
    sb_printf(sb, ",\"lr_schedule\":\"%s\",\"clip_norm\":%.9g",
              schedule_words[o->schedule.kind], o->clip_norm);
    sb_printf(sb, ",\"clip_value\":%.9g,\"accumulate\":%lld", o->clip_value,
              (long long)o->accumulate);
    sb_printf(sb, ",\"loss_scale\":\"%s\",\"seed\":%lld}",
              !options_has_scaler(o)          ? "none"
              : o->scale.kind == SCALE_STATIC ? "static"
                                              : "dynamic",
              (long long)o->seed);
}
