/* SPDX-License-Identifier: Apache-2.0 */
/* options.c: defaults of the compile options, and facts derived from them. */
#include "passes/options.h"
#include "ir/fn/optimizer.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const DType precision_dtype[] = {
    [PREC_FP32] = DT_F32, [PREC_BF16] = DT_BF16, [PREC_FP16] = DT_F16};

/* ---- optimizers ---------------------------------------------------------- */

static double default_of(const Fn *fn, Graph *g, const FnAttr *key) {
    char msg[MSG_TEXT];
    Attr x;
    Status s = fn_default(fn, g, NULL, 0, key, &x, msg);
    ASSERT(s == OK);
    return key->kind == FA_FLOAT ? x.u.f : (double)x.u.i;
}

OptimizerSpec optimizer_default(Arena *a, const Fn *fn) {
    OptimizerSpec o = {.fn = fn};
    Graph *g = graph_new(module_new(a, ""), "defaults");
    o.lr = 1;
    if (fn->optimizer->lr.name) o.lr = default_of(fn, g, &fn->optimizer->lr);
    for (int i = 0; i < fn->attrs.len; i++) {
        const FnAttr *key = &fn->attrs.data[i];
        OptimizerKey k = {key, default_of(fn, g, key)};
        vec_push(a, &o.keys, k);
    }
    return o;
}

TransformSpec transform_default(Arena *a, const Fn *fn) {
    TransformSpec t = {.fn = fn};
    Graph *g = graph_new(module_new(a, ""), "defaults");
    for (int i = 0; i < fn->attrs.len; i++) {
        const FnAttr *key = &fn->attrs.data[i];
        OptimizerKey k = {key, default_of(fn, g, key)};
        if (strcmp(key->name, "salt")) vec_push(a, &t.keys, k);
    }
    return t;
}

const double *optimizer_key(const OptimizerSpec *o, const char *name) {
    for (int i = 0; i < o->keys.len; i++)
        if (!strcmp(o->keys.data[i].key->name, name))
            return &o->keys.data[i].value;
    return NULL;
}

void optimizer_attrs(const OptimizerSpec *o, const double *weight_decay,
                     Attr *to) {
    for (int i = 0; i < o->keys.len; i++) {
        const OptimizerKey *k = &o->keys.data[i];
        double v = k->value;
        if (weight_decay && !strcmp(k->key->name, "weight_decay"))
            v = *weight_decay;
        to[i] = (Attr){.key = k->key->key};
        if (k->key->kind == FA_FLOAT)
            to[i].u.f = v;
        else
            to[i].u.i = (int64_t)v;
    }
}

Status optimizer_check(const OptimizerSpec *o, Arena *a, char *msg) {
    Graph *g = graph_new(module_new(a, ""), "check");
    Builder b = {.g = g};
    Attr attrs[MAX_OP_ATTRS];
    ValueId in[] = {b_scalar(&b, DT_F64, o->lr), b_scalar(&b, DT_F64, 1)};
    const Type *types[] = {value_type(g, in[0]), value_type(g, in[1])};
    const Fn *once = o->fn->optimizer->once;
    if (!once->results.len) return OK;
    optimizer_attrs(o, NULL, attrs);
    Node n = {.op = OP_CALL,
              .fn = once,
              .in = in,
              .nin = 2,
              .attrs = attrs,
              .nattr = o->keys.len,
              .nout = once->results.len};
    const FnInstance *x = fn_instance(&n, types);
    if (x->status != OK) snprintf(msg, MSG_TEXT, "%s", x->msg);
    return x->status;
}

/* ---- the others ---------------------------------------------------------- */

LossSpec loss_default(LossKind kind) {
    return (LossSpec){.kind = kind, .factor = 1};
}

double loss_key(const LossSpec *l, const char *name, double other) {
    for (int i = 0; i < l->keys.len; i++)
        if (!strcmp(l->keys.data[i].key->name, name))
            return l->keys.data[i].value;
    return other;
}

const ScheduleKeyRow schedule_keys[SCHEDULE_KEYS] = {
#define SCHEDULE_KEY(id, name) {name, OWN_##id},
#include "passes/schedules.def"
};

const ScheduleRow schedule_rows[] = {
#define NEEDED NAN
#define KEY(id, preset)                                                        \
    { KEY_##id, preset }
#define KEYS(...)                                                              \
    sizeof((double[][2]){__VA_ARGS__}) / sizeof(double[2]), { __VA_ARGS__ }
#define SCHEDULE(word, function, ...) {word, function, NULL, KEYS(__VA_ARGS__)},
#include "passes/schedules.def"
    {0}};

Str schedule_own(Arena *a, const Module *m, ScheduleSpec *out) {
    const Fn *f = m->fns.data[m->fns.len - 1];
    Graph *g = graph_new(module_new(a, ""), "defaults");
    ScheduleRow *row = NEW(a, ScheduleRow);
    *row = (ScheduleRow){f->info.text, f->info.text, m, 0, {{0}}};
    for (int i = 2; i < f->operands.len; i++) {
        Str name = f->operands.data[i].name;
        int k = 0;
        while (k < SCHEDULE_KEYS && strcmp(schedule_keys[k].name, name)) k++;
        if (k == SCHEDULE_KEYS || row->n == SCHEDULE_KEYS) return name;
        row->keys[row->n].key = (ScheduleKey)k;
        row->keys[row->n++].preset = k == KEY_WARMUP || k == KEY_MIN ? 0 : NAN;
    }
    *out = schedule_default(row);
    for (int i = 0; i < f->attrs.len; i++) {
        const FnAttr *key = &f->attrs.data[i];
        OptimizerKey k = {key, default_of(f, g, key)};
        vec_push(a, &out->fixed, k);
    }
    return NULL;
}

const Fn *schedule_fn(const ScheduleSpec *s) {
    const Module *own = s->row->own;
    return own ? own->fns.data[own->fns.len - 1] : fn_std(s->row->fn);
}

void schedule_attrs(const ScheduleSpec *s, Attr *to) {
    for (int i = 0; i < s->fixed.len; i++) {
        const OptimizerKey *k = &s->fixed.data[i];
        to[i] = (Attr){.key = k->key->key};
        if (k->key->kind == FA_FLOAT)
            to[i].u.f = k->value;
        else
            to[i].u.i = (int64_t)k->value;
    }
}

Status schedule_check(const ScheduleSpec *s, Arena *a, char *msg) {
    Builder b = {.g = graph_new(module_new(a, ""), "check")};
    Attr attrs[MAX_OP_ATTRS];
    ValueId in[SCHEDULE_KEYS + 2];
    TypeId want = type_scalar(DT_F64);
    NodeId id;
    int n = s->row->n + 2;
    for (int i = 0; i < n; i++) in[i] = b_scalar(&b, DT_F64, 1);
    schedule_attrs(s, attrs);
    return optimizer_call(&b, schedule_fn(s), in, n, attrs, s->fixed.len, &want,
                          &id, msg);
}

ScheduleSpec schedule_default(const ScheduleRow *row) {
    ScheduleSpec s = {.row = row};
    for (int i = 0; i < row->n; i++)
        s.key[row->keys[i].key] = row->keys[i].preset;
    return s;
}

ScaleSpec scale_default(ScaleKind kind) {
    return (ScaleSpec){.kind = kind,
                       .init = 65536,
                       .growth = 2,
                       .backoff = 0.5,
                       .interval = 2000,
                       .min = 0x1p-24,
                       .max = 16777216,
                       .hysteresis = 1};
}

void options_init(Options *o, Arena *a) {
    Objective only = {
        .name = intern(""),
        .loss = loss_default(LOSS_AUTO),
        .optimizer = optimizer_default(a, optimizer_find(NULL, "adamw")),
        .schedule = schedule_default(schedule_rows),
    };
    *o = (Options){.arena = a};
    vec_push(a, &o->objectives, only);
    o->precision = PREC_BF16;
    o->fp16_residuals = true;
    o->residuals = INFINITY;
    o->wide_head = true;
    o->logit_rows = -1;
    o->state_dtype = DT_F32;
    o->gradient_dtype = DT_F32;
    o->accumulate = 1;
    o->comm_bucket = 25 << 20;
    o->comm_dtype = DT_F32;
    o->scale = scale_default(SCALE_DEFAULT);
    o->batchnorm_train = true;
    o->batchnorm_unbiased = o->batchnorm_cumulative = -1;
    o->dropout = true;
    o->symbol = intern("ampc_module");
}

int64_t options_largest_batch(const Options *o) {
    int64_t most = 0;
    for (int i = 0; i < o->batch_sizes.len; i++)
        if (o->batch_sizes.data[i] > most) most = o->batch_sizes.data[i];
    return most;
}

const char *options_precision(const Options *o) {
    static const char *const words[] = {
        [PREC_FP32] = "fp32", [PREC_BF16] = "bf16", [PREC_FP16] = "fp16"};
    return o->f8_products ? "f8" : words[o->precision];
}

bool options_has_scaler(const Options *o) {
    if (o->scale.kind == SCALE_DEFAULT)
        return o->precision == PREC_FP16 &&
               (!o->half_model || o->master_weights);
    return o->scale.kind != SCALE_NONE;
}

const Objective *options_objective(const Options *o, Str name) {
    for (int i = 0; i < o->objectives.len; i++)
        if (o->objectives.data[i].name == name) return &o->objectives.data[i];
    return NULL;
}

bool objective_trains(const Objective *j, const char *parameter) {
    for (int i = 0; i < j->params.len; i++)
        if (glob_layer(j->params.data[i], parameter)) return true;
    return j->params.len == 0;
}

bool options_train(const Options *o) {
    for (int i = 0; i < o->objectives.len; i++)
        if (o->objectives.data[i].loss.kind != LOSS_NONE) return true;
    return false;
}

bool options_budget(const Options *o) {
    return o->precision != PREC_FP32 &&
           (o->max_error[ERROR_LOSS] > 0 || o->max_error[ERROR_GRADIENT] > 0);
}
