/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_bisect_side.c: see cmd_bisect.h.

   After each step of a program the runtime reports the step's name and lets
   us read the arena; the IR after pass memplan says which values the step's
   group has stored, and where. */
#include "frontend/cli/cmd_bisect.h"
#include "ir/text/text.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ------------------------------------------------------------- */

static Status read_plan(Side *x) {
    char *text;
    size_t n;
    const PlanSection *section = sections_find(&x->file, "ir:memplan");
    if (!section)
        return fail(&x->s->diag, (Loc){.file = x->file.path},
                    "it keeps no IR of pass memplan");
    TRY(sections_read(x->s->arena, &x->s->diag, &x->file, section, &text, &n));
    return parse_module(x->s->arena, &x->s->diag, x->file.path, text, n, &x->m);
}

static Status open_run(Side *x) {
    Run *r = &x->run;
    TRY(run_open_code(r));
    TRY(run_session(r));
    if (r->comm)
        return fail(&r->diag, (Loc){0}, "ampc bisect is for one process");
    if (!r->info.trains)
        return fail(&r->diag, (Loc){.file = x->opt.module},
                    "compiled without a loss: it has no steps");
    if (r->api->size < offsetof(ampc_api, peek) + sizeof r->api->peek)
        return fail(
            &r->diag, (Loc){.file = x->opt.module},
            "compiled by an older version of ampc, without api->peek: compile "
            "the model again");
    return OK;
}

Status side_open(Side *x, Session *s, const RunOptions *o, const char *module) {
    x->s = s;
    x->opt = *o;
    x->opt.module = module;
    x->run.opt = &x->opt;
    x->run.world = 1;
    TRY(sections_open(s->arena, &s->diag, module, &x->file));
    x->opened = true;
    TRY(read_plan(x));
    Status st = open_run(x);
    if (x->run.diag.text.data) sb_puts(&s->diag.text, x->run.diag.text.data);
    return st;
}

Status side_feed(Side *x) {
    ProgramKind p = x->run.info.accumulate == 1 ? PROGRAM_TRAIN : PROGRAM_MICRO;
    return feeds_open(&x->s->diag, x->s->opt.guard, x->run.api,
                      program_name(p, intern(run_objective(&x->run, 0))),
                      &x->opt.feed, &x->feed);
}

void side_close(Side *x) {
    for (int i = 0; i < x->seen.len; i++)
        for (int v = 0; v < x->seen.data[i].g->values.len; v++)
            free(x->seen.data[i].bytes[v]);
    for (int i = 0; i < x->before.len; i++) free(x->before.data[i].bytes);
    feeds_free(&x->feed);
    if (x->run.s) x->run.api->close(x->run.s);
    if (x->run.lib) dlclose(x->run.lib);
    sb_free(&x->run.diag.text);
    if (x->opened) sections_close(&x->file);
}

/* ---- variables ----------------------------------------------------------- */

Status side_now(Side *x, const Before *v, void *to) {
    ampc_output out =
        ampc_out(v->info.name, to, v->info.bytes, (ampc_dtype)v->info.dtype);
    if (x->run.api->read_variable(x->run.s, v->info.name, &out) == AMPC_OK)
        return OK;
    return fail(&x->s->diag, (Loc){.file = x->opt.module}, "%s",
                x->run.api->error(x->run.s));
}

static Status list_variables(Side *x) {
    const ampc_api *api = x->run.api;
    ampc_variable_info v = {.size = sizeof v};
    for (uint32_t i = 0; api->variable(api->module, i, &v) == AMPC_OK; i++) {
        Before b = {v, malloc(v.bytes + 1), MARK_NONE};
        if (!b.bytes) return fail(&x->s->diag, (Loc){0}, "out of memory");
        vec_push(x->s->arena, &x->before, b);
    }
    return OK;
}

Status side_keep(Side *x) {
    if (!x->before.len) TRY(list_variables(x));
    for (int i = 0; i < x->before.len; i++)
        TRY(side_now(x, &x->before.data[i], x->before.data[i].bytes));
    return OK;
}

Before *side_before(const Side *x, const char *name) {
    for (int i = 0; i < x->before.len; i++)
        if (!strcmp(x->before.data[i].info.name, name))
            return &x->before.data[i];
    return NULL;
}

double side_scale(const Side *x) {
    const Before *v = side_before(x, own_var_text(OWN_SCALE));
    float scale = 1;
    if (v && v->info.dtype == AMPC_DTYPE_F32)
        memcpy(&scale, v->bytes, sizeof scale);
    return (double)scale;
}

/* ---- a step -------------------------------------------------------------- */

Seen *side_program(const Side *x, const char *name) {
    for (int i = 0; i < x->seen.len; i++)
        if (!strcmp(x->seen.data[i].g->name, name)) return &x->seen.data[i];
    return NULL;
}

/* NULL: the module has no such program. */
static Seen *program_named(Side *x, const char *name) {
    Seen *p = side_program(x, name);
    const Graph *g = p ? NULL : module_graph_on(x->m, name, TARGET_CPU);
    if (p || !g) return p;
    Seen fresh = {g, NEW_ARRAY(x->s->arena, void *, g->values.len),
                  NEW_ARRAY(x->s->arena, Mark, g->values.len),
                  NEW_ARRAY(x->s->arena, Mark, g->values.len)};
    vec_push(x->s->arena, &x->seen, fresh);
    return &x->seen.data[x->seen.len - 1];
}

/* Constants, and results written to a variable, are not in the arena. */
static Status take_side_value(Side *x, Seen *p, ValueId v) {
    const Value *val = value_get(p->g, v);
    size_t bytes = (size_t)type_bytes(type_get(val->type));
    if (val->offset < 0 || val->home >= 0) return OK;
    if (!p->bytes[v.i]) p->bytes[v.i] = malloc(bytes + 1);
    if (!p->bytes[v.i]) return fail(&x->s->diag, (Loc){0}, "out of memory");
    if (x->run.api->peek(x->run.s, (uint64_t)val->offset, p->bytes[v.i],
                         bytes) == AMPC_OK)
        return OK;
    return fail(&x->s->diag, (Loc){.file = x->opt.module}, "%s",
                x->run.api->error(x->run.s));
}

static void side_look(void *ctx, const char *program, const char *step,
                      uint64_t begin, uint64_t end) {
    Side *x = ctx;
    (void)begin;
    (void)end;
    Seen *p = x->failed == OK ? program_named(x, program) : NULL;
    ValueId of = p ? graph_find_value(p->g, step) : NO_VALUE;
    if (!of.i || value_get(p->g, of)->kind != VK_RESULT) return;
    int group = node_get(p->g, value_get(p->g, of)->def)->group;
    for (int i = 0; i < p->g->order.len && group >= 0; i++) {
        const Node *n = node_at(p->g, i);
        for (int k = 0; k < n->nout && n->group == group; k++)
            if (x->failed == OK && n->out[k].i)
                x->failed = take_side_value(x, p, n->out[k]);
    }
}

static Status side_fill(Side *x, int64_t first) {
    int64_t batch = x->feed.batch > 0 ? x->feed.batch : 1;
    int64_t at = first % x->feed.samples, left = x->feed.samples - at;
    return feeds_fill(&x->s->diag, &x->feed, NULL, at,
                      left < batch ? left : batch);
}

Status side_step(Side *x, int64_t first) {
    Run *r = &x->run;
    int64_t batch = x->feed.batch > 0 ? x->feed.batch : 1;
    TRY(side_keep(x));
    for (int i = 0; i < x->seen.len; i++)
        for (int v = 0; v < x->seen.data[i].g->values.len; v++)
            x->seen.data[i].mark[v] = MARK_NONE;
    r->api->profile(r->s, side_look, x);
    ampc_status status = AMPC_OK;
    x->metrics = (ampc_metrics){.size = sizeof x->metrics};
    for (int64_t i = 0; i < r->info.accumulate && status == AMPC_OK; i++) {
        TRY(side_fill(x, first + i * batch));
        status = r->api->step(r->s, x->feed.in, (size_t)x->feed.n, &x->metrics);
    }
    r->api->profile(r->s, NULL, NULL);
    TRY(x->failed);
    if (status == AMPC_OK || status == AMPC_ERR_DIVERGED) return OK;
    return fail(&x->s->diag, (Loc){.file = x->opt.module}, "%s",
                r->api->error(r->s));
}
