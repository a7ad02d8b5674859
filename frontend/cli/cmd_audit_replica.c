/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_audit_replica.c: see cmd_audit.h.                                     */
#define _GNU_SOURCE
#include "frontend/cli/cmd_audit.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "codegen/codegen.h"
#include "codegen/emit.h"
#include "frontend/cli/kept.h"
#include "frontend/cli/options_text.h"
#include "frontend/report/report.h"
#include "ir/base/files.h"
#include "runtime/cpu/kernels.h"

/* ---- the module's IR ----------------------------------------------------- */

static bool runs_here(const IsaLevel *l) {
    return l->flags && isa_is_here(l->arch) && l->isa <= cpu_isa_level();
}

/* The best level that this machine can run and for which the module has
   kernels. */
static void only_this_cpu(Options *o) {
    const IsaLevel *l = isa_levels;
    while (!runs_here(l)) l++;
    o->targets.len = 0;
    vec_push(o->arena, &o->targets, (Target){.isa = l->isa});
}

/* The pass after which every rounding is in the IR. */
static const char *last_pass(const Options *o) {
    return o->keep_f8 ? "keep" : "place";
}

/* last: NULL for that pass. */
static Status with_lines(Session *s, const SectionFile *f,
                         const Settings *lines, const char *last, Module **m) {
    Options o;
    TRY(kept_options(s, f, &o));
    only_this_cpu(&o);
    TRY(kept_ir(s, f, "policy", m));
    (*m)->policy = *lines;
    return run_between(*m, &s->diag, &o, "policy", last ? last : last_pass(&o));
}

Status audit_module(Session *s, const SectionFile *f, const Settings *lines,
                    Module **m) {
    Options o;
    if (lines) return with_lines(s, f, lines, NULL, m);
    TRY(kept_options(s, f, &o));
    if (o.f8_products)
        return fail(&s->diag, (Loc){.file = f->path},
                    "ampc audit does not measure what --precision f8 rounds: "
                    "audit the same model in bf16, or compare the losses");
    return kept_ir(s, f, last_pass(&o), m);
}

Status audit_budget(Session *s, const SectionFile *f, bool *budget) {
    Options o;
    TRY(kept_options(s, f, &o));
    *budget = options_budget(&o);
    return OK;
}

Status audit_bytes(Session *s, const SectionFile *f, const Settings *lines,
                   int64_t *bytes) {
    Module *m;
    TRY(with_lines(s, f, lines, "memplan", &m));
    *bytes = report_bytes(m);
    return OK;
}

/* ---- compiled ------------------------------------------------------------ */

static Status compile_at(Session *s, Module *m, const char *first,
                         const Replica *r) {
    StrBuf info = {0};
    Options o;
    options_init(&o, s->arena);
    o.guard = s->opt.guard;
    o.cache = s->opt.cache;
    o.no_fuse = r->unfused;
    o.quick = true;
    only_this_cpu(&o);
    options_json(&o, &info);
    EmitInput in = {
        .path = r->opt.module, .model_path = m->file, .options = info.data};
    Status st = run_between(m, &s->diag, &o, first, "memplan");
    if (st == OK) st = emit_so(m, &o, &s->diag, &in);
    sb_free(&info);
    return st;
}

/* A name that nobody can guess, in the folder for temporary files. */
static const char *temporary_name(Session *s) {
    uint64_t any[2] = {(uint64_t)getpid(), 0};
    if (getrandom(any, sizeof any, 0) != sizeof any)
        any[1] = now_seconds() * 1e6;
    return arena_printf(s->arena, "%s/ampc-audit-%016llx%016llx.so",
                        temporary_place(), (unsigned long long)any[0],
                        (unsigned long long)any[1]);
}

/* The file is deleted as soon as the module is loaded. */
static Status load_code(Session *s, Module *m, const char *first, Replica *r) {
    r->opt.module = temporary_name(s);
    TRY(compile_at(s, m, first, r));
    Status st = run_open_code(&r->run);
    unlink(r->opt.module);
    return st;
}

Status replica_grads(Session *s, Replica *r) {
    const ampc_api *api = r->run.api;
    ampc_tensor_info t = {.size = sizeof t};
    bool loss = false;
    for (uint32_t i = 0; api->output(api->module, "predict", i, &t) == AMPC_OK;
         i++) {
        loss |= !strcmp(t.name, "loss");
        if (strncmp(t.name, "grad/", 5)) continue;
        ReplicaGrad g = {intern(t.name + 5), r->count,
                         (int64_t)(t.bytes / sizeof(float))};
        vec_push(s->arena, &r->grads, g);
        r->count += g.count;
    }
    if (loss && r->grads.len) return OK;
    return fail(&s->diag, (Loc){0},
                "the module's step has no loss or no gradient to compare");
}

Status replica_load(Session *s, Module *m, const char *first, int64_t threads,
                    Replica *r) {
    r->run.world = 1;
    run_options_init(&r->opt);
    r->opt.device = "cpu";
    r->opt.threads = threads;
    r->opt.quiet = true;
    r->run.opt = &r->opt;
    Status st = load_code(s, m, first, r);
    if (st == OK) st = run_session(&r->run);
    if (r->run.diag.text.data) sb_puts(&s->diag.text, r->run.diag.text.data);
    return st;
}

Status replica_open(Session *s, Module *m, Str objective, int64_t threads,
                    Replica *r) {
    *r = (Replica){0};
    TRY(twin_make(m, &s->diag, objective, &r->sites));
    TRY(replica_load(s, m, "attend", threads, r));
    return replica_grads(s, r);
}

void replica_close(Replica *r) {
    if (r->run.s) r->run.api->close(r->run.s);
    if (r->run.lib) dlclose(r->run.lib);
    sb_free(&r->run.diag.text);
}

/* ---- run ----------------------------------------------------------------- */

static Status api_fail(Session *s, const Run *r, const char *what) {
    return fail(&s->diag, (Loc){0}, "%s: %s", what, r->api->error(r->s));
}

Status replica_weights(Session *s, Replica *r, Run *from) {
    const ampc_api *api = r->run.api;
    ampc_variable_info v = {.size = sizeof v};
    for (uint32_t i = 0; api->variable(api->module, i, &v) == AMPC_OK; i++) {
        if (v.kind > AMPC_KIND_STATE) continue;
        void *data = malloc(v.bytes + 1);
        if (!data) return fail(&s->diag, (Loc){0}, "out of memory");
        ampc_output out = ampc_out(v.name, data, v.bytes, (ampc_dtype)v.dtype);
        ampc_input in = ampc_in(v.name, data, v.bytes, (ampc_dtype)v.dtype);
        Status st = OK;
        if (from->api->read_variable(from->s, v.name, &out) != AMPC_OK)
            st = api_fail(s, from, v.name);
        else if (api->write_variable(r->run.s, v.name, &in) != AMPC_OK)
            st = api_fail(s, &r->run, v.name);
        free(data);
        TRY(st);
    }
    return OK;
}

Status replica_grad(Session *s, const Replica *r, const ReplicaGrad *g,
                    float *grad) {
    const char *name = arena_printf(s->arena, "grad/%s", g->name);
    ampc_output out = ampc_out(
        name, grad + g->at, (size_t)g->count * sizeof(float), AMPC_DTYPE_F32);
    return r->run.api->read_output(r->run.s, name, &out) == AMPC_OK
               ? OK
               : api_fail(s, &r->run, name);
}

Status replica_step(Session *s, Replica *r, const FeedSet *feed, const bool *on,
                    double *loss, float *grad) {
    const ampc_api *api = r->run.api;
    float value;
    int n = r->sites.len;
    if (!r->in) {
        r->in = NEW_ARRAY(s->arena, ampc_input, feed->n + n + 1);
        r->on = NEW_ARRAY(s->arena, char, n + 1);
    }
    memcpy(r->in, feed->in, (size_t)feed->n * sizeof *r->in);
    for (int i = 0; i < n; i++) {
        r->on[i] = !on || on[i];
        r->in[feed->n + i] =
            ampc_in(r->sites.data[i].input, &r->on[i], 1, AMPC_DTYPE_BOOL);
    }
    int64_t valid = r->run.info.batch ? r->run.info.batch : 1;
    if (api->predict(r->run.s, r->in, (size_t)(feed->n + n), valid, NULL, 0) !=
        AMPC_OK)
        return api_fail(s, &r->run, "the step");
    ampc_output out = ampc_out("loss", &value, sizeof value, AMPC_DTYPE_F32);
    if (api->read_output(r->run.s, "loss", &out) != AMPC_OK)
        return api_fail(s, &r->run, "the loss");
    *loss = (double)value;
    for (int i = 0; i < r->grads.len; i++)
        TRY(replica_grad(s, r, &r->grads.data[i], grad));
    return OK;
}
