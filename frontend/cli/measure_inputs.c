/* SPDX-License-Identifier: Apache-2.0 */
/* measure_inputs.c: the inputs and weights of the measured steps: from
   files, or random numbers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/cli/measure.h"
#include "runtime/program/draw.h"

/* ---- numbers ------------------------------------------------------------- */

/* 24 bits in [0, 1) */
static double measure_uniform(uint64_t *seed) {
    return (double)(draw_next(seed) >> 40) / 0x1p24;
}

static double measure_normal(uint64_t *seed) {
    double u = 1 - measure_uniform(seed), v = measure_uniform(seed);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

static uint64_t seed_of(const char *name, int draw) {
    return hash_bytes((uint64_t)draw + 1, name, strlen(name));
}

/* Finds the range of a class or row index from the model's check, an output
   ampc.check/K/LEAST/MOST/INPUT. */
void measure_ranges(Measure *x, const Graph *g) {
    for (int i = 0; i < g->outputs.len; i++) {
        const char *name = g->outputs.data[i].name;
        long long least, most;
        int k, n = 0;
        if (sscanf(name, "ampc.check/%d/%lld/%lld/%n", &k, &least, &most, &n) !=
                3 ||
            !n)
            continue;
        Range r = {intern(name + n), least > 0 ? least : 0, most};
        vec_push(x->s->arena, &x->ranges, r);
    }
}

static Range range_of(const Measure *x, const char *input) {
    Range r = {NULL, 0, 1};
    for (int i = 0; i < x->ranges.len; i++)
        if (!strcmp(x->ranges.data[i].input, input)) r = x->ranges.data[i];
    return r;
}

/* f32 is by far the commonest and needs no call. */
static void put_measure_number(Tensor *t, DType d, double v) {
    if (d == DT_F32) {
        float f = (float)v;
        memcpy(t->data, &f, sizeof f);
    } else if (dtype_is_float(d)) {
        tensor_set(t, 0, v);
    } else {
        tensor_set_int(t, 0, (int64_t)v);
    }
}

static void fill_signs(const ampc_tensor_info *t, float *to, int draw) {
    size_t n = t->bytes / sizeof *to;
    uint64_t seed = seed_of(t->name, draw);
    for (size_t i = 0; i < n; i += 64) {
        uint64_t bits = draw_next(&seed);
        for (size_t k = 0; k < 64 && i + k < n; k++)
            to[i + k] = bits >> k & 1 ? 1 : -1;
    }
}

static void fill_input(const Measure *x, const ampc_tensor_info *t, char *to,
                       int draw) {
    DType d = (DType)t->dtype;
    uint64_t seed = seed_of(t->name, draw);
    Range r = range_of(x, t->name);
    size_t size = (size_t)dtype_info[d].bytes;
    Tensor one = {type_scalar(d), to};
    for (size_t i = 0; i < t->bytes / size; i++) {
        double v = measure_uniform(&seed);
        if (!dtype_is_float(d))
            v = floor((double)r.least + v * ((double)(r.most - r.least) + 1));
        else if (x->floats == FLOATS_NORMAL)
            v = measure_normal(&seed);
        one.data = to + i * size;
        put_measure_number(&one, d, v);
    }
}

static bool is_random_weight(const Var *v) {
    return v->draw.kind && (v->kind == VAR_PARAM || v->kind == VAR_FROZEN);
}

Status measure_room(Measure *x) {
    size_t most = 1;
    for (int i = 0; i < x->m->vars.len; i++) {
        const Var *v = &x->m->vars.data[i];
        size_t bytes = (size_t)type_bytes(type_get(v->type));
        if (is_random_weight(v) && bytes > most) most = bytes;
    }
    x->weight = malloc(most);
    return x->weight ? OK : measure_no_memory(x, most);
}

/* Random initial weights are drawn anew in each repetition but the first, which
   has the module's own. */
static Status draw_weights(Measure *x, int draw) {
    const Run *r = &x->r.run;
    for (int i = 0; i < x->m->vars.len && x->weights != draw; i++) {
        Var v = x->m->vars.data[i];
        if (!is_random_weight(&v)) continue;
        v.draw.seed += (uint64_t)draw * 0x9e3779b97f4a7c15u;
        tensor_draw(&(Tensor){v.type, x->weight}, &v.draw);
        const Type *type = type_get(v.type);
        ampc_input in = ampc_in(v.name, x->weight, (size_t)type_bytes(type),
                                (ampc_dtype)type->dtype);
        if (r->api->write_variable(r->s, v.name, &in) != AMPC_OK)
            return measure_fail(x, v.name);
    }
    x->weights = draw;
    return OK;
}

/* ---- inputs -------------------------------------------------------------- */

/* Only the model's own inputs, for the reader of data. */
static const ampc_api *whole;

static ampc_status model_input(const ampc_module_t *m, const char *program,
                               uint32_t index, ampc_tensor_info *info) {
    ampc_status st = whole->input(m, program, index, info);
    return st == AMPC_OK && measure_is_own(info->name) ? AMPC_ERR_ARGUMENT : st;
}

static ampc_status model_program(const ampc_module_t *m, const char *program,
                                 ampc_program_info *info) {
    ampc_tensor_info t = {.size = sizeof t};
    ampc_status st = whole->program(m, program, info);
    for (uint32_t i = 0; st == AMPC_OK && i < info->ninput; i++)
        if (model_input(m, program, i, &t) != AMPC_OK) info->ninput = i;
    return st;
}

static bool has_input(const Measure *x, const char *spec) {
    const ampc_api *api = x->r.run.api;
    ampc_tensor_info t = {.size = sizeof t};
    for (uint32_t i = 0; api->input(api->module, "predict", i, &t) == AMPC_OK;
         i++) {
        size_t n = strlen(t.name);
        if (!strncmp(t.name, spec, n) && spec[n] == '=') return true;
    }
    return false;
}

Status measure_open_data(Measure *x) {
    const Options *o = &x->s->opt;
    RunList specs = {.option = "--calibrate"};
    ampc_api api = *x->r.run.api;
    bool one = o->objectives.len == 1; /* otherwise other inputs may read it */
    if (!o->calibrate.len) return OK;
    for (int i = 0; i < o->calibrate.len; i++) {
        if (!one && !has_input(x, o->calibrate.data[i])) continue;
        if (specs.n == RUN_MAX_LIST)
            return fail(&x->s->diag, (Loc){0},
                        "--calibrate: more than %d inputs", RUN_MAX_LIST);
        specs.at[specs.n++] = o->calibrate.data[i];
    }
    whole = x->r.run.api;
    api.input = model_input;
    api.program = model_program;
    return feeds_open(&x->s->diag, o->guard, &api, "predict", &specs, &x->feed);
}

Status measure_open_inputs(Measure *x, Program *p) {
    const ampc_api *api = x->r.run.api;
    ampc_tensor_info t = {.size = sizeof t};
    while (api->input(api->module, p->name, (uint32_t)p->nin, &t) == AMPC_OK)
        p->nin++;
    p->in = NEW_ARRAY(x->s->arena, ampc_input, p->nin + 1);
    p->own = NEW_ARRAY(x->s->arena, char *, p->nin + 1);
    for (int i = 0; i < p->nin; i++) {
        api->input(api->module, p->name, (uint32_t)i, &t);
        p->nmodel += !measure_is_own(t.name);
        if (!measure_is_own(t.name) && x->feed.n) continue;
        p->own[i] = calloc(t.bytes + 1, 1);
        if (!p->own[i]) return measure_no_memory(x, t.bytes);
        p->in[i] = ampc_in(t.name, p->own[i], t.bytes, (ampc_dtype)t.dtype);
    }
    return OK;
}

static int batches_of(const Measure *x) {
    int64_t size = x->feed.batch > 0 ? x->feed.batch : 1;
    int64_t n = (x->feed.samples + size - 1) / size;
    return n < MOST_DRAWS ? (int)n : MOST_DRAWS;
}

static bool random_weights(const Module *m) {
    for (int i = 0; i < m->vars.len; i++)
        if (m->vars.data[i].kind == VAR_PARAM && m->vars.data[i].draw.kind)
            return true;
    return false;
}

/* A small program can run more repetitions. A batch is repeated only with
   other weights. */
int measure_all_draws(const Measure *x) {
    const double work = 4e9; /* multiply-adds and other operations of all
                                sites */
    const ampc_api *api = x->r.run.api;
    ampc_program_info p = {.size = sizeof p};
    int n = MOST_DRAWS;
    if (api->program(api->module, x->slopes.name, &p) == AMPC_OK && p.flops > 0)
        n = (int)fmax(fmin(work / p.flops, MOST_DRAWS), LEAST_DRAWS);
    if (x->feed.n && !random_weights(x->m) && batches_of(x) < n)
        n = batches_of(x);
    return n;
}

Status measure_fill_inputs(Measure *x, Program *p, int draw) {
    const ampc_api *api = x->r.run.api;
    ampc_tensor_info t = {.size = sizeof t};
    TRY(draw_weights(x, draw));
    if (x->feed.n) {
        int64_t size = x->feed.batch > 0 ? x->feed.batch : 1;
        int64_t first = draw % batches_of(x) * size;
        int64_t n = x->feed.samples - first;
        TRY(feeds_fill(&x->s->diag, &x->feed, NULL, first,
                       n < size ? n : size));
        memcpy(p->in, x->feed.in, (size_t)x->feed.n * sizeof *p->in);
    }
    for (int i = 0; i < p->nin; i++) {
        if (!p->own[i]) continue;
        api->input(api->module, p->name, (uint32_t)i, &t);
        if (!measure_is_own(t.name))
            fill_input(x, &t, p->own[i], draw);
        else if (p == &x->slopes)
            fill_signs(&t, (float *)p->own[i], draw);
    }
    return OK;
}
