/* SPDX-License-Identifier: Apache-2.0 */
/* emit_tables.c: the tables of a module as C text (emit_plan.h). */
#include "codegen/cost/cost.h"
#include "codegen/module/emit_plan.h"
#include "runtime/program/lib.h"

#include <math.h>
#include <string.h>

/* ---- text ---------------------------------------------------------------- */

/* A C string literal. It is not closed and reopened after an octal escape,
   since three digits end the escape. */
static void put_string(StrBuf *sb, const char *s) {
    sb_puts(sb, "\"");
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\' || c == '?' || c < 32 || c > 126)
            sb_printf(sb, "\\%03o", c);
        else
            sb_putn(sb, s, 1);
    }
    sb_puts(sb, "\"");
}

static void put_dims(StrBuf *sb, int rank, const int64_t *dim) {
    sb_puts(sb, "{");
    for (int i = 0; i < rank; i++)
        sb_printf(sb, "%s%lld", i ? ", " : "", (long long)dim[i]);
    sb_puts(sb, rank ? "}" : "0}");
}

/* ---- what all targets share ---------------------------------------------- */

static void put_tables_number(StrBuf *sb, double x) {
    if (isnan(x))
        sb_puts(sb, "__builtin_nan(\"\")");
    else if (isinf(x))
        sb_printf(sb, "%s__builtin_inf()", x < 0 ? "-" : "");
    else
        sb_printf(sb, "%.17g", x);
}

static void put_vars(StrBuf *sb, const Emit *e) {
    static const char *const kind[] = {
        "PLAN_PARAM", "PLAN_FROZEN", "PLAN_BUFFER", "PLAN_STATE",
        "PLAN_HYPER", "PLAN_SHADOW", "PLAN_GRAD"};
    sb_puts(sb, "\nstatic const PlanVar vars[] = {\n");
    for (int i = 0; i < e->vars.len; i++) {
        const EmitVar *x = &e->vars.data[i];
        const Var *v = x->var;
        const Type *t = type_get(v ? v->type : x->data->type);
        double fill = v ? v->fill : 0;
        sb_puts(sb, "    {");
        put_string(sb, v ? v->name : arena_printf(e->a, "ampc.const.%d", i));
        sb_printf(sb, ", %s, %d, %d, %d, ", v ? kind[v->kind] : "PLAN_CONST",
                  t->dtype, t->rank, v ? v->stored_dtype : t->dtype);
        put_dims(sb, t->rank, t->dim);
        sb_printf(sb, ", %lld, %lld, ", (long long)type_bytes(t),
                  (long long)x->init);
        put_tables_number(sb, fill);
        if (v && v->draw.kind) {
            sb_printf(sb, ", {%u, %lluu, ", v->draw.kind,
                      (unsigned long long)v->draw.seed);
            put_tables_number(sb, v->draw.a);
            sb_puts(sb, ", ");
            put_tables_number(sb, v->draw.b);
            sb_puts(sb, "}");
        } else if (isa_source(e->opt)) { /* -Wextra wants every field */
            sb_puts(sb, ", {0, 0, 0, 0}");
        }
        sb_printf(sb, "}, /* %d */\n", i);
    }
    sb_puts(sb, "    {0}};\n");
}

/* Inputs and outputs, and the ranges of them that belong to a program. */
static void put_programs(StrBuf *sb, const Emit *e) {
    sb_puts(sb, "\nstatic const PlanTensor tensors[] = {\n");
    for (int i = 0; i < e->tensors.len; i++) {
        const PlanTensor *t = &e->tensors.data[i];
        sb_puts(sb, "    {");
        put_string(sb, t->name);
        sb_printf(sb, ", %u, %u, ", t->dtype, t->rank);
        put_dims(sb, (int)t->rank, t->dim);
        sb_printf(sb, ", %lld},\n", (long long)t->sample_rows);
    }
    sb_puts(sb, "    {0}};\n\nstatic const PlanProgram programs[] = {\n");
    for (int i = 0; i < e->programs.len; i++) {
        const EmitProgram *x = &e->programs.data[i];
        sb_puts(sb, "    {");
        put_string(sb, x->name);
        sb_printf(sb, ", %d, %d, %d, %d},\n", x->in0, x->nin, x->out0, x->nout);
    }
    sb_puts(sb, "    {0}};\n");
}

/* ---- what a target has of its own ---------------------------------------- */

static void put_refs(StrBuf *sb, const EmitTarget *t) {
    const char *name = target_text[t->kind];
    sb_printf(sb, "\nstatic const PlanRef %s_refs[] = {\n", name);
    for (int i = 0; i < t->refs.len; i++) {
        const PlanRef *r = &t->refs.data[i];
        sb_puts(sb, i % 6 ? " " : "    ");
        switch (r->space) {
        case PLAN_ARENA:
            sb_printf(sb, "ARENA(%u, %llu)", r->index,
                      (unsigned long long)r->offset);
            break;
        case PLAN_VAR: sb_printf(sb, "VAR(%u)", r->index); break;
        case PLAN_INPUT: sb_printf(sb, "INPUT(%u)", r->index); break;
        default: sb_puts(sb, "NONE"); break;
        }
        sb_puts(sb, i % 6 == 5 ? ",\n" : ",");
    }
    sb_printf(sb, "    NONE};\n\nstatic const int64_t %s_pars[] = {\n", name);
    for (int i = 0; i < t->pars.len; i++)
        sb_printf(sb, "%s%lldLL,%s", i % 12 ? " " : "    ",
                  (long long)t->pars.data[i], i % 12 == 11 ? "\n" : "");
    sb_puts(sb, "    0};\n");
}

/* FLOPs of a program. */
static double run_flops(const Emit *e, const EmitRun *r) {
    double flops = 0;
    for (int i = 0; i < e->out->steps.len; i++)
        if (e->out->steps.data[i].g == r->g)
            flops += cost_flops(&e->out->steps.data[i]);
    return flops;
}

static void put_target(StrBuf *sb, const Emit *e, const EmitTarget *t) {
    static const char *const kind[] = {
        [PLAN_KERNEL] = "KERNEL",  [PLAN_LIB] = "LIB",
        [PLAN_LAUNCH] = "LAUNCH",  [PLAN_MANY] = "MANY",
        [PLAN_ROWS] = "ROWS",      [PLAN_PRODUCT] = "PRODUCT",
        [PLAN_TILE] = "TILE",      [PLAN_GELU] = "GELU",
        [PLAN_COPY] = "COPY",      [PLAN_SUM] = "SUM",
        [PLAN_SUM_NOW] = "SUM_NOW"};
    const char *name = target_text[t->kind];
    put_refs(sb, t);
    sb_printf(sb,
              "\n/* kind, fn, epilogue, second, refs, epilogue's, pars, when, "
              "units,\n   grain, split, scratch, name */\n"
              "static const PlanStep %s_steps[] = {\n",
              name);
    for (int p = 0, i = 0; p < t->runs.len; p++) {
        const EmitRun *x = &t->runs.data[p];
        sb_printf(sb, "    /* program %s */\n", x->g->name);
        for (; i < x->step0 + x->nstep; i++) {
            const PlanStep *s = &t->steps.data[i];
            sb_printf(sb, "    {PLAN_%s, ", kind[s->kind]);
            if (s->kind == PLAN_LIB)
                sb_puts(sb, lib_info(s->fn)->plan_name);
            else
                sb_printf(sb, "%u", s->fn);
            sb_printf(sb,
                      ", %u, %u, %u, %u, %u, %u, %u, %d, %lld, %lld, %lld, "
                      "%llu, ",
                      s->epilogue, s->second, s->ref0, s->nref, s->ep_nref,
                      s->par0, s->npar, s->when, (long long)s->units,
                      (long long)s->grain, (long long)s->split,
                      (unsigned long long)s->scratch);
            put_string(sb, s->name);
            sb_puts(sb, "},\n");
        }
    }
    sb_printf(sb, "    {0}};\n\nstatic const PlanRun %s_runs[] = {\n", name);
    for (int p = 0; p < t->runs.len; p++) {
        const EmitRun *x = &t->runs.data[p];
        sb_printf(sb, "    {%d, %d, %d, %d, %lld, %.17g, %d},\n", x->step0,
                  x->nstep, x->out0, x->g->rounds_weights, (long long)x->arena,
                  run_flops(e, x), x->nfixed);
    }
    sb_printf(sb,
              "    {0}};\n\nstatic const PlanTarget %s_plan = {\n"
              "    %d, %d, %d, %s_runs, %s_steps, %s_refs, %s_pars};\n",
              name, t->steps.len, t->refs.len, t->pars.len, name, name, name,
              name);
}

/* ---- kernels of each level ----------------------------------------------- */

static void put_functions(StrBuf *sb, const Emit *e, const IsaLevel *l) {
    static const char *const type[] = {"PlanKernel", "PlanEpilogue"};
    static const char *const what[] = {"kernels", "epilogues"};
    const KernelTexts *all = e->out->kernels;
    StrBuf table[2] = {{0}};
    sb_puts(sb, "\n");
    for (int i = 0; i < all->list.len; i++) {
        const KernelText *t = &all->list.data[i];
        const char *prefix = (t->small ? isa_least(e->opt) : l)->prefix;
        bool ep = i >= all->kernels;
        StrBuf *to = &table[ep];
        if (t->first == t) {
            sb_printf(sb, "%sFn %s", type[ep], prefix);
            sb_put_kernel_name(sb, t);
            sb_puts(sb, ";\n");
        }
        sb_printf(to, "    {%s", prefix);
        sb_put_kernel_name(to, t);
        sb_puts(to, ", ");
        sb_put_kernel_table(to, t);
        sb_puts(to, "},\n");
    }
    for (int ep = 0; ep < 2; ep++) {
        sb_printf(sb, "static const %s %s%s[] = {\n%s    {0}};\n", type[ep],
                  l->prefix, what[ep], table[ep].data ? table[ep].data : "");
        sb_free(&table[ep]);
    }
}

/* Lists the routines that steps of that level name; the linker leaves other
   routines out. */
static void put_routines(StrBuf *sb, StrBuf *table, const Emit *e,
                         const IsaLevel *l) {
    bool named[PLAN_NLIB] = {false};
    const EmitTarget *t = &e->target[TARGET_CPU];
    for (int i = 0; i < t->steps.len; i++)
        if (t->steps.data[i].kind == PLAN_LIB)
            named[t->steps.data[i].fn] = true;
    sb_printf(table, "&(const AmpcCpuLib){.isa = %d", l->isa);
    for (uint32_t i = 0; i < PLAN_NLIB; i++) {
        if (!named[i]) continue;
        const char *name = lib_info(i)->name;
        sb_printf(sb, "extern LIB_ROUTINE(%s) ampc_%s%s;\n", name, l->prefix,
                  name);
        sb_printf(table, ",\n     .%s = ampc_%s%s", name, l->prefix, name);
    }
    sb_puts(table, "}");
}

/* Prints the tables of all levels; returns the number of rows. */
static int put_levels(StrBuf *sb, const Emit *e) {
    StrBuf rows = {0};
    int nisa = 0;
    for (const IsaLevel *l = isa_levels; l->isa; l++) {
        if (isa_compiled(e->opt, l)) put_functions(sb, e, l);
        if (!isa_wanted(e->opt, l)) continue;
        nisa++;
        sb_printf(&rows, "    {%d, %skernels, %sepilogues, ", l->isa, l->prefix,
                  l->prefix);
        put_routines(sb, &rows, e, l);
        sb_puts(&rows, "},\n");
    }
    sb_printf(sb, "\nstatic const PlanIsa isas[] = {\n%s    {0}};\n",
              nisa ? rows.data : "");
    sb_free(&rows);
    return nisa;
}

/* ---- facts about the module ---------------------------------------------- */

static int64_t batch_size(const Module *m) {
    for (int i = 0; i < m->graphs.len; i++) {
        const Graph *g = m->graphs.data[i];
        for (int k = 0; k < g->inputs.len; k++) {
            const Type *t = value_type(g, g->inputs.data[k]);
            if (t->rank > 0) return t->dim[0];
        }
    }
    return 0;
}

static const char *base_name(const char *path) {
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash ? slash + 1 : path ? path : "";
}

/* What the files of adapters do not contain: alpha and rank; and the weight
   whose norms a magnitude begins with. */
static void put_lora(const Module *m, StrBuf *js) {
    int n = 0;
    for (int i = 0; i < m->adapters.len; i++) {
        const Adapter *a = &m->adapters.data[i];
        if (a->factor) continue;
        sb_puts(js, n++ ? "," : ",\"lora\":{");
        sb_put_json_string(js, a->module);
        sb_printf(js, ":{\"rank\":%lld,\"alpha\":%.17g,\"dora\":%d,",
                  (long long)a->rank, a->alpha, a->magnitude != NULL);
        sb_put_json_field(js, "weight", a->weight);
        sb_puts(js, "}");
    }
    if (n) sb_puts(js, "}");
}

/* Sizes of --dim other than the module's own. */
static void put_sizes(const Module *m, StrBuf *js) {
    int n = 0;
    for (int i = 0; i < m->graphs.len; i++) {
        const Graph *g = m->graphs.data[i];
        if (g->program != PROGRAM_PREDICT || !size_has_dims(g->size) ||
            size_batch(g->size) || g->target != m->graphs.data[0]->target)
            continue;
        sb_printf(js, "%s\"%s\"", n++ ? "," : ",\"sizes\":[", g->size);
    }
    if (n) sb_puts(js, "]");
}

static void put_info(StrBuf *sb, const Emit *e, const EmitInput *in) {
    const Module *m = e->m;
    StrBuf js = {0};
    sb_puts(&js, "{");
    sb_put_json_field(&js, "model", base_name(in->model_path));
    sb_puts(&js, ",");
    sb_put_json_field(&js, "graph", m->name);
    sb_puts(&js, ",");
    sb_put_json_field(&js, "producer", m->producer);
    sb_printf(&js, ",\"class_axis\":%d,\"batch\":%lld,\"accumulate\":%lld",
              m->class_axis, (long long)batch_size(m),
              (long long)e->opt->accumulate);
    sb_printf(&js, ",\"masks\":%d", m->masks);
    put_sizes(m, &js);
    sb_printf(&js, ",\"precision\":\"%s\",\"has_scaler\":%d",
              options_precision(e->opt), options_has_scaler(e->opt));
    sb_printf(&js, ",\"sidecar_weights\":%d", e->opt->sidecar_weights);
    CudaArchs archs = cuda_archs(e->opt, e->a);
    sb_puts(&js, ",\"cuda\":[");
    for (int i = 0; i < archs.len; i++)
        sb_printf(&js, "%s\"%s\"", i ? "," : "", archs.data[i]);
    sb_puts(&js, "]");
    if (e->opt->no_cuda) sb_printf(&js, ",\"no_cuda\":\"%s\"", e->opt->no_cuda);
    sb_printf(&js, ",\"options\":%s", in->options ? in->options : "{}");
    if (in->said) sb_printf(&js, ",\"said\":%s", in->said);
    put_lora(m, &js);
    sb_puts(&js, "}");
    put_string(sb, js.data);
    sb_free(&js);
}

/* Whether there are programs for other sizes. */
static bool has_sizes(const Module *m) {
    for (int i = 0; i < m->graphs.len; i++)
        if (*m->graphs.data[i]->size) return true;
    return false;
}

static void put_module(StrBuf *sb, const Emit *e, const EmitInput *in, int nisa,
                       bool cuda) {
    if (has_sizes(e->m))
        sb_puts(sb, "\nextern const struct AmpcSizes ampc_sizes;\n");
    sb_puts(sb, "\nconst AmpcModule ampc_plan = {\n    AMPC_PLAN_VERSION,\n"
                "    ");
    put_string(sb, base_name(in->model_path));
    sb_puts(sb, ",\n    ");
    put_info(sb, e, in);
    e->out->id = hash_bytes(1, sb->data, sb->len);
    for (int i = 0; i < e->out->weights.len; i++)
        e->out->id = hash_bytes(e->out->id, e->out->weights.data[i].data,
                                (size_t)e->out->weights.data[i].bytes);
    sb_printf(sb, ",\n    0x%llxu, 0x%llxu,\n", (unsigned long long)e->m->hash,
              (unsigned long long)e->out->id);
    sb_printf(sb, "    %d, %d, %d, %d,\n", e->programs.len, e->vars.len,
              e->tensors.len, nisa);
    sb_printf(sb, "    programs, vars, tensors, %s, isas, %s, %s};\n",
              nisa ? "&cpu_plan" : "0", cuda ? "&cuda" : "0",
              has_sizes(e->m) ? "&ampc_sizes" : "0");
    sb_puts(sb, "\nstruct ampc_api;\n"
                "const struct ampc_api *ampc_module_api(const AmpcModule *, "
                "uint32_t);\n");
    if (isa_source(e->opt)) return; /* emit_source.c prints its entry */
    sb_printf(sb,
              "__attribute__((visibility(\"default\"))) const struct ampc_api "
              "*\nampc_entry(uint32_t abi_version) __asm__(\"%s\");\n"
              "const struct ampc_api *ampc_entry(uint32_t abi_version) {\n"
              "    return ampc_module_api(&ampc_plan, abi_version);\n}\n",
              e->opt->symbol);
}

void put_plan(StrBuf *sb, Emit *e, const EmitInput *in) {
    sb_puts(
        sb,
        "/* The compiled programs as tables; see runtime/program/plan.h. */\n"
        "#include \"runtime/cpu/kernels.h\"\n\n"
        "#define NONE         {PLAN_NONE, 0, 0}\n"
        "#define ARENA(i, at) {PLAN_ARENA, i, at}\n"
        "#define VAR(i)       {PLAN_VAR, i, 0}\n"
        "#define INPUT(i)     {PLAN_INPUT, i, 0}\n");
    put_vars(sb, e);
    put_programs(sb, e);
    for (int i = 0; i < NUM_TARGETS; i++)
        if (e->target[i].runs.len) put_target(sb, e, &e->target[i]);
    if (e->out->kernels) print_c_sizes(e->out->kernels, sb, "");
    int nisa = put_levels(sb, e);
    bool cuda = e->out->cuda && e->out->cuda->archs.len;
    NvrtcFacts f;
    if (cuda) {
        nvrtc_facts(e->a, &f);
        put_cuda_tables(sb, e->out->cuda, f.toolkit);
    }
    put_module(sb, e, in, nisa, cuda);
}
