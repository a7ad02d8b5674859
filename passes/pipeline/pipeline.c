/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline.c: the pipeline, in order, and the runner that does every pass's
   chores: verify, time, dump, name the pass in a bug report. */
#include "passes/passes.h"
#include "passes/device/target.h"

#include <string.h>
#include <time.h>

#include "ir/fn/fn.h"
#include "ir/base/files.h"
#include "ir/base/terminal.h"
#include "ir/text/text.h"

const PassRow pipeline[] = {
    {"simplify", pass_simplify, PASS_COMMON, STAGE_TYPED,
     "fold constants, drop no-ops"},
    {"adapt", pass_adapt, PASS_COMMON, STAGE_TYPED,
     "adapters for --lora and --ia3; how frozen weights are stored"},
    {"loss", pass_loss, PASS_COMMON, STAGE_TYPED, "the scalar loss of --loss"},
    {"programs", pass_programs, PASS_COMMON, STAGE_TYPED,
     "one graph per program"},
    {"grad", pass_grad, PASS_COMMON, STAGE_TYPED,
     "gradients that the model asks for"},
    {"checks", pass_checks, PASS_COMMON, STAGE_TYPED,
     "check class and row indices in the inputs"},
    {"samples", pass_samples, PASS_COMMON, STAGE_TYPED,
     "shares of micro-batches; mask samples that only fill a batch"},
    {"simplify", pass_simplify, PASS_COMMON, STAGE_TYPED,
     "simplify the inference forms"},
    {"cse", pass_cse, PASS_COMMON, STAGE_TYPED,
     "one node for equal computations"},
    {"dce", pass_dce, PASS_COMMON, STAGE_TYPED, "drop dead nodes"},
    {"policy", pass_policy, PASS_COMMON, STAGE_TYPED,
     "classes of --amp-policy"},
    {"factors", pass_factors, PASS_COMMON, STAGE_TYPED,
     "fp32 products that GPUs may compute from TF32 or bf16"},
    {"rules", pass_rules, PASS_COMMON, STAGE_CAST,
     "types as --placement pytorch and O2, O3 have them"},
    {"autocast", pass_autocast, PASS_COMMON, STAGE_CAST,
     "products read 16 bits"},
    {"ranges", pass_ranges, PASS_COMMON, STAGE_CAST,
     "warn of constants that 16 bits change"},
    {"perturb", pass_perturb, PASS_COMMON, STAGE_CAST,
     "the loss where a wrapper such as sam wants its gradient"},
    {"autodiff", pass_autodiff, PASS_COMMON, STAGE_DIFF,
     "append the backward graph"},
    {"probes", pass_probes, PASS_COMMON, STAGE_DIFF,
     "add programs that examine a step"},
    {"optimizer", pass_optimizer, PASS_COMMON, STAGE_STEP,
     "unscale, check, clip, update, scale; 16-bit copies"},
    {"simplify", pass_simplify, PASS_COMMON, STAGE_STEP,
     "cancel casts between forward, backward and update"},
    {"cse", pass_cse, PASS_COMMON, STAGE_STEP,
     "share nodes that gradients repeat"},
    {"dce", pass_dce, PASS_COMMON, STAGE_STEP, "drop unused gradients"},
    {"inline", pass_inline, PASS_COMMON, STAGE_INLINED,
     "calls to their bodies"},
    {"canon", pass_canon, PASS_COMMON, STAGE_PRIMITIVE,
     "primitives in the forms that fuse"},
    {"dce", pass_dce, PASS_COMMON, STAGE_PRIMITIVE, "drop replaced nodes"},
    {"lift", pass_lift, PASS_COMMON, STAGE_PRIMITIVE,
     "f32 again, but for operands of products"},
    {"simplify", pass_simplify, PASS_COMMON, STAGE_PRIMITIVE,
     "drop no-ops between primitives"},
    {"join", pass_join, PASS_COMMON, STAGE_PRIMITIVE,
     "join products that are added up"},
    {"cse", pass_cse, PASS_COMMON, STAGE_PRIMITIVE,
     "share parts of several composites"},
    {"dce", pass_dce, PASS_COMMON, STAGE_PRIMITIVE, "drop shared duplicates"},
    {"place", pass_place, PASS_COMMON, STAGE_PRIMITIVE,
     "16 bits where they save traffic"},
    {"eight", pass_eight, PASS_COMMON, STAGE_PRIMITIVE,
     "products of layers read 8 bits, for --precision f8"},
    {"remat", pass_remat, PASS_COMMON, STAGE_PRIMITIVE,
     "choose values that backward recomputes"},
    {"keep", pass_keep, PASS_COMMON, STAGE_PRIMITIVE,
     "codes of 8 bits for backward, for --keep f8"},
    {"locate", pass_locate, PASS_COMMON, STAGE_PRIMITIVE,
     "find values that are not finite, for --debug-nonfinite"},
    {"underflow", pass_underflow, PASS_COMMON, STAGE_PRIMITIVE,
     "count elements that fp16 flushes to zero, for --count-underflow"},
    {"buckets", pass_buckets, PASS_COMMON, STAGE_PRIMITIVE,
     "group gradients that ranks sum together"},
    {"stream", pass_stream, PASS_TARGET, STAGE_PRIMITIVE,
     "losses of wide products, some rows at a time"},
    {"attend", pass_attend, PASS_TARGET, STAGE_PRIMITIVE,
     "attention as one node"},
    {"heads", pass_heads, PASS_TARGET, STAGE_PRIMITIVE,
     "attention reads and writes heads beside rows"},
    {"quantize", pass_quantize, PASS_TARGET, STAGE_PRIMITIVE,
     "products and norms read quantized weights as they are stored"},
    {"masters", pass_masters, PASS_TARGET, STAGE_PRIMITIVE,
     "CPU: products round fp32 weights and keep no 16-bit copies"},
    {"eights", pass_eights, PASS_TARGET, STAGE_PRIMITIVE,
     "products read numbers of 8 bits as stored, if all its GPUs multiply "
     "them"},
    {"sums", pass_sums, PASS_TARGET, STAGE_PRIMITIVE,
     "GPUs: convolutions and their gradients add up results for batch norms"},
    {"reduce", pass_reduce, PASS_TARGET, STAGE_PRIMITIVE,
     "reductions in stages"},
    {"align", pass_align, PASS_TARGET, STAGE_PRIMITIVE,
     "long rows of products begin at 16 bytes"},
    {"simplify", pass_simplify, PASS_TARGET, STAGE_PRIMITIVE,
     "drop no-ops between primitives"},
    {"cse", pass_cse, PASS_TARGET, STAGE_PRIMITIVE,
     "share parts of several composites"},
    {"dce", pass_dce, PASS_TARGET, STAGE_PRIMITIVE, "drop unused results"},
    {"inline", pass_inline, PASS_TARGET, STAGE_PRIMITIVE,
     "inline the remaining calls"},
    {"fuse", pass_fuse, PASS_TARGET, STAGE_FUSED, "group nodes into kernels"},
    {"schedule", pass_schedule, PASS_TARGET, STAGE_FUSED, "order the groups"},
    {"memplan", pass_memplan, PASS_TARGET, STAGE_PLANNED,
     "place values in one arena"},
};
const int pipeline_length = sizeof pipeline / sizeof *pipeline;

const char *const pass_side_text[] = {"common", "target"};

/* ---- why this order ------------------------------------------------------ */

static const struct {
    const char *before, *after, *because;
} reasons[] = {
    {"adapt", "programs", "dropout before an adapter has an inference form"},
    {"loss", "programs", "every program that trains or evaluates has the loss"},
    {"programs", "grad", "inference forms have gradients of their own"},
    {"grad", "rules", "gradients that the model asks for have types, too"},
    {"programs", "checks", "every program checks its own inputs"},
    {"checks", "samples", "it finds the inputs that targets come from"},
    {"samples", "autodiff", "what is masked gets no gradient"},
    {"samples", "perturb", "what is masked moves no parameter"},
    {"grad", "perturb", "gradients of the model are computed there, too"},
    {"autocast", "perturb",
     "it finds the last products; both passes have the same types"},
    {"rules", "perturb", "both forward passes have the same types"},
    {"perturb", "autodiff", "it differentiates the second forward pass"},
    {"samples", "optimizer", "it sums up the shares"},
    {"checks", "inline", "it knows the ops that read classes and rows"},
    {"checks", "optimizer", "bad data skip the step"},
    {"policy", "rules", "it follows the classes"},
    {"rules", "autocast", "values that have their types keep them"},
    {"programs", "policy", "a rule holds in every program"},
    {"programs", "autocast", "inference forms have other operands"},
    {"simplify", "autocast", "no-ops would be given casts"},
    {"cse", "autocast", "values computed twice would be cast twice"},
    {"dce", "autocast", "dead readers would decide dtypes"},
    {"autocast", "autodiff", "the gradient of a cast is the cast back"},
    {"autocast", "ranges", "it decides which values are 16 bits"},
    {"autodiff", "optimizer", "it consumes the gradients"},
    {"autodiff", "probes", "they examine the gradients"},
    {"probes", "optimizer", "gradients are outputs until then"},
    {"optimizer", "inline", "whole ops keep their class and short gradients"},
    {"place", "remat", "recomputed values must round as before"},
    {"place", "eight", "it chooses which products read bf16"},
    {"eight", "remat", "codes of 8 bits are what forward stores"},
    {"remat", "buckets", "it puts nodes into backward"},
    {"remat", "keep", "it chooses what forward stores"},
    {"keep", "buckets", "it puts nodes into backward"},
    {"keep", "attend", "attention reads codes, too"},
    {"place", "locate", "it examines stored values"},
    {"place", "underflow", "it examines stored values"},
    {"place", "buckets", "backward is in the order that it will have"},
    {"inline", "canon", "bodies are made of primitives in any form"},
    {"inline", "lift", "bodies round for their products, too"},
    {"lift", "join", "products leave sums unrounded there"},
    {"lift", "place", "it chooses for values that are f32"},
    {"place", "attend", "it leaves no scores to choose a type for"},
    {"join", "stream", "it would put the sums over chunks together again"},
    {"place", "stream", "chunks round as the whole would"},
    {"stream", "reduce", "it knows losses by their reductions"},
    {"stream", "align", "it cuts products, not slices of them"},
    {"stream", "quantize", "it cuts products of widened weights, too"},
    {"eight", "eights", "it makes the codes"},
    {"eights", "reduce", "it knows codes by their casts"},
    {"quantize", "align", "it pads rows of weights that are widened"},
    {"quantize", "reduce", "norms of codes are reductions"},
    {"attend", "heads", "it makes attention one node"},
    {"heads", "reduce", "it moves operands of sums"},
    {"place", "sums", "it chooses types of results"},
    {"sums", "reduce", "it knows a mean by its reduction"},
    {"attend", "reduce", "it knows a softmax by its reductions"},
    {"place", "reduce", "what a device does to a graph changes no type"},
    {"canon", "reduce", "it splits reductions that keep their dimensions"},
    {"canon", "fuse", "groups are made of primitives in one form"},
    {"reduce", "fuse", "a stage is a kernel"},
    {"align", "fuse", "pads and slices become parts of kernels"},
    {"dce", "fuse", "a dead node would be computed"},
    {"fuse", "schedule", "order is between groups"},
    {"schedule", "memplan", "lifetimes need an order"},
};

static int row_named(const PassRow *rows, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (!strcmp(rows[i].name, name)) return i;
    return n;
}

bool pipeline_defect(const PassRow *rows, int n, StrBuf *why) {
    for (int i = 1; i < n; i++) /* stages and sides never go backwards */
        if (rows[i].stage < rows[i - 1].stage ||
            rows[i].side < rows[i - 1].side) {
            sb_printf(why, "%s (%s) comes after %s (%s)", rows[i].name,
                      stage_text[rows[i].stage], rows[i - 1].name,
                      stage_text[rows[i - 1].stage]);
            return true;
        }
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        int before = row_named(rows, n, reasons[i].before);
        int after = row_named(rows, n, reasons[i].after);
        if (before < after || after == n) continue;
        sb_printf(why, "%s must run before %s: %s", reasons[i].before,
                  reasons[i].after, reasons[i].because);
        return true;
    }
    return false;
}

/* ---- the runner ---------------------------------------------------------- */

typedef struct Runner {
    Module *m;
    Diag *d;
    const Options *opt;
    bool keep;
    bool named; /* the user chose the rows */
    const PassRow *pass;
    uint64_t hash; /* hash of the text after the last pass */
} Runner;

static void dump_on_bug(void *ctx, FILE *out) {
    const Runner *r = ctx;
    StrBuf sb = {0};
    print_module(r->m, &sb);
    fprintf(out, "in pass %s\n%s", r->pass ? r->pass->name : "?",
            sb.data ? sb.data : "");
    sb_free(&sb);
}

static Status write_dump(const Runner *r, const char *name, const StrBuf *text,
                         bool unchanged) {
    const char *dir = r->opt->dump_ir;
    StrBuf path = {0}, all = {0};
    TRY(file_folder(r->d, dir, r->opt->guard, "--dump-ir"));
    sb_printf(&path, "%s/%02d-%s.amp", dir, r->m->passes, name);
    sb_puts(&all, unchanged ? "# (unchanged)\n" : "");
    sb_putn(&all, text->data, text->len);
    Status s = file_text(r->d, path.data, all.data, all.len, r->opt->guard,
                         "--dump-ir");
    sb_free(&all);
    sb_free(&path);
    return s;
}

/* Writes the module's text after a pass (NULL: before the first) to the dump
   directory and, after the pass's last run, to m->texts. */
static Status record(Runner *r, double ms) {
    const char *name = r->pass ? r->pass->name : "import";
    bool keep = r->keep;
    for (const PassRow *p = r->pass; p && ++p < pipeline + pipeline_length;)
        keep &= r->named || strcmp(p->name, name) != 0;
    Module *m = r->m;
    Status s = OK;
    StrBuf text = {0};
    if (!r->opt->dump_ir && !r->opt->time_passes && !keep) return OK;
    print_module(m, &text);
    uint64_t hash = hash_bytes(0, text.data, text.len);
    bool unchanged = r->pass && hash == r->hash;
    r->hash = hash;
    if (r->opt->dump_ir) s = write_dump(r, name, &text, unchanged);
    if (r->opt->time_passes && r->pass) {
        int nodes = 0, values = 0;
        for (int i = 0; i < m->graphs.len; i++) {
            nodes += m->graphs.data[i]->order.len;
            values += m->graphs.data[i]->values.len - 1;
        }
        fprintf(stderr, "%2d %-10s %9.3f ms %8d nodes %8d values%s\n",
                m->passes, name, ms, nodes, values,
                unchanged ? " (unchanged)" : "");
    }
    if (keep) {
        char *copy = arena_dup(m->arena, text.data, text.len + 1);
        StageText t = {intern(name), copy, text.len};
        vec_push(m->arena, &m->texts, t);
    }
    sb_free(&text);
    return s;
}

static double now_ms(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* Why a graph read from a text cannot be the input of that pass; NULL. */
static const char *unfit(const Graph *g, const PassRow *p, Stage has) {
    if (p->stage < STAGE_FUSED && g->groups.len)
        return "it is in groups already";
    if (p->side == PASS_TARGET &&
        (g->target == TARGET_ANY) !=
            (g->module->graphs.data[0]->target == TARGET_ANY))
        return "only some graphs are a target's";
    for (int i = 0; i < g->order.len && p->stage >= STAGE_CAST; i++)
        if (node_at(g, i)->op == OP_GRAD)
            return "it asks for gradients, which pass 'grad' adds";
    if (p->stage < STAGE_FUSED || has >= STAGE_FUSED) return NULL;
    Arena *scratch = arena_new();
    const int *uses = graph_use_counts(g, scratch);
    const char *why = NULL;
    for (int i = 0; i < g->order.len && !why; i++) {
        const Node *n = node_at(g, i);
        int used = 0;
        for (int k = 0; k < n->nout; k++) used += uses[n->out[k].i];
        if (!used) why = "it has dead nodes, which pass 'dce' drops";
        if (n->fn && n->fn->whole)
            why = "it calls a whole function, which pass 'inline' replaces";
    }
    arena_free(scratch);
    return why;
}

/* A module read from text may be at any stage: checks that pass `row` can
   read it. Rows of the pipeline always meet this. */
static Status check_input(const Runner *r, int row) {
    Module *m = r->m;
    const PassRow *p = &pipeline[row];
    Stage needs = row ? pipeline[row - 1].stage : STAGE_TYPED;
    for (int i = 0; i < m->graphs.len; i++) {
        const Graph *g = m->graphs.data[i];
        const char *why = unfit(g, p, needs);
        if (!why) continue;
        fail(r->d, (Loc){.file = m->file}, "pass '%s' cannot read graph %s: %s",
             p->name, g->name, why);
        return r->named ? ERR_USAGE : ERR_USER;
    }
    if (m->stage >= (int)needs) return OK;
    m->given = (int)needs;
    if (verify_module(m, needs, r->d) != OK) {
        int maker = 0;
        while (pipeline[maker].stage < needs) maker++;
        fail(r->d, (Loc){.file = m->file},
             "pass '%s' reads IR of stage %s, which pass '%s' makes", p->name,
             stage_text[needs], pipeline[maker].name);
        return r->named ? ERR_USAGE : ERR_USER;
    }
    m->stage = (int)needs;
    return OK;
}

/* Verifies after every row; in large modules only at the end of a stage,
   where everything is verified in any case. */
static void verify(const Runner *r, bool stage_ends) {
    enum { LARGE = 1 << 16 };
    Diag bugs = {0};
    int nodes = 0;
    for (int i = 0; i < r->m->graphs.len && nodes < LARGE; i++)
        nodes += r->m->graphs.data[i]->order.len;
    if (nodes >= LARGE && !stage_ends) return;
    if (verify_module(r->m, (Stage)r->m->stage, &bugs) == OK) return;
    fputs(bugs.text.data, stderr);
    ASSERT(!"the IR is wrong after a pass");
}

static Status run_row(Runner *r, int row, bool stage_ends) {
    Module *m = r->m;
    TRY(check_input(r, row));
    r->pass = &pipeline[row];
    doing(r->pass->purpose);
    if (r->pass->side == PASS_TARGET) target_split(m, r->opt);
    PassCtx cx = {arena_new(), r->d, r->opt};
    double start = now_ms();
    Status s = r->pass->fn(m, &cx);
    double ms = now_ms() - start;
    arena_free(cx.scratch);
    if (s != OK) return s;
    if ((int)r->pass->stage > m->stage) m->stage = (int)r->pass->stage;
    m->passes = row + 1;
    verify(r, stage_ends);
    return record(r, ms);
}

static Status run_rows(Runner *r, const int *rows, int n) {
    StrBuf why = {0};
    if (pipeline_defect(pipeline, pipeline_length, &why)) {
        fprintf(stderr, "%s\n", why.data);
        ASSERT(!"the pipeline is out of order");
    }
    Status s = OK;
    assert_set_hook(dump_on_bug, r);
    if (r->m->passes == 0) s = record(r, 0);
    for (int i = 0; i < n && s == OK; i++)
        s = run_row(r, rows[i],
                    i + 1 == n ||
                        pipeline[rows[i]].stage < pipeline[rows[i + 1]].stage);
    assert_set_hook(NULL, NULL);
    return s;
}

Status run_pipeline(Module *m, Diag *d, const Options *opt, Stage last,
                    bool keep) {
    Runner r = {.m = m, .d = d, .opt = opt, .keep = keep};
    int rows[sizeof pipeline / sizeof *pipeline], n = 0;
    for (int i = m->passes; i < pipeline_length; i++)
        if (pipeline[i].stage <= last) rows[n++] = i;
    return run_rows(&r, rows, n);
}

Status run_until(Module *m, Diag *d, const Options *opt, const char *next,
                 bool keep) {
    Runner r = {.m = m, .d = d, .opt = opt, .keep = keep};
    int rows[sizeof pipeline / sizeof *pipeline], n = 0;
    int end = row_named(pipeline, pipeline_length, next);
    for (int i = m->passes; i < end; i++) rows[n++] = i;
    return run_rows(&r, rows, n);
}

Status run_common(Module *m, Diag *d, const Options *opt, bool keep) {
    Runner r = {.m = m, .d = d, .opt = opt, .keep = keep};
    int rows[sizeof pipeline / sizeof *pipeline], n = 0;
    for (int i = m->passes; pipeline[i].side == PASS_COMMON; i++) rows[n++] = i;
    return run_rows(&r, rows, n);
}

Status run_between(Module *m, Diag *d, const Options *opt, const char *first,
                   const char *last) {
    Runner r = {.m = m, .d = d, .opt = opt};
    int rows[sizeof pipeline / sizeof *pipeline], n = 0;
    int from = row_named(pipeline, pipeline_length, first);
    int to = row_named(pipeline, pipeline_length, last);
    ASSERT(from <= to && to < pipeline_length);
    m->passes = from;
    for (int i = from; i <= to; i++) rows[n++] = i;
    return run_rows(&r, rows, n);
}

/* The first row from `from` on with that name; -1 */
static int find_row(const char *name, size_t n, int from) {
    for (int i = from; i < pipeline_length; i++)
        if (strlen(pipeline[i].name) == n &&
            !strncmp(pipeline[i].name, name, n))
            return i;
    return -1;
}

Status run_passes(Module *m, Diag *d, const Options *opt, const char *names,
                  bool keep) {
    Runner r = {.m = m, .d = d, .opt = opt, .keep = keep, .named = true};
    int rows[sizeof pipeline / sizeof *pipeline], n = 0;
    for (const char *p = names; *p;) {
        int len = (int)strcspn(p, ","), last = n ? rows[n - 1] : -1;
        int row = find_row(p, (size_t)len, last + 1);
        if (row < 0) {
            bool known = find_row(p, (size_t)len, 0) >= 0;
            fail(d, (Loc){0},
                 known ? "--pass: '%.*s' does not run after '%s'"
                       : "--pass: no pass named '%.*s'%s",
                 len, p, known ? pipeline[last].name : "");
            fail(d, (Loc){0}, "ampc --list-passes prints the passes in order");
            return ERR_USAGE;
        }
        rows[n++] = row;
        p += len + (p[len] == ',');
    }
    return run_rows(&r, rows, n);
}
