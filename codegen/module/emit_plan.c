/* SPDX-License-Identifier: Apache-2.0 */
/* emit_plan.c: the programs of a planned module as tables (emit.h).

   Every graph becomes a program of its target, and its groups become the steps.
   A write whose value was not computed in the variable itself becomes a copy at
   the program's
   end.                                                                      */
#define _GNU_SOURCE
#include "codegen/module/emit_plan.h"
#include "codegen/embed.h"
#include "passes/device/fold.h"
#include "runtime/program/lib.h"

#include <ctype.h>
#include <string.h>

static int64_t align64(int64_t n) { return (n + 63) & ~INT64_C(63); }

/* ---- variables ----------------------------------------------------------- */

static int64_t add_weight(Emit *e, const Tensor *t) {
    PlanSource *o = e->out;
    int64_t bytes = type_bytes(type_get(t->type));
    WeightPiece p = {t->data, bytes, align64(o->weight_bytes)};
    vec_push(e->a, &o->weights, p);
    o->weight_bytes = p.offset + bytes;
    return p.offset;
}

static void add_variables(Emit *e) {
    e->var_number = NEW_ARRAY(e->a, int, e->m->vars.len + 1);
    for (int i = 0; i < e->m->vars.len; i++) {
        const Var *v = &e->m->vars.data[i];
        bool there = v->kind != VAR_SHADOW && v->kind != VAR_GRAD;
        for (int k = 0; k < e->m->graphs.len && !there; k++)
            there = is_value(graph_find_var(e->m->graphs.data[k], i));
        e->var_number[i] = -1;
        if (!there) continue;
        EmitVar x = {.var = v, .init = -1};
        if (v->kind != VAR_GRAD) x.data = weights_initial(e->a, v);
        if (x.data && !weights_in_sidecar(e->opt, v)) {
            x.init = add_weight(e, x.data);
            weights_entry(&e->out->index, v, x.init);
        }
        e->var_number[i] = e->vars.len;
        vec_push(e->a, &e->vars, x);
    }
    if (e->out->index.len) sb_puts(&e->out->index, "}");
}

/* Equal constants of all programs share one PlanVar. */
static int add_constant(Emit *e, const Tensor *t) {
    size_t bytes = (size_t)type_bytes(type_get(t->type));
    uint64_t h = hash_bytes(t->type.i, t->data, bytes);
    for (int i = 0; i < e->vars.len; i++) {
        const EmitVar *x = &e->vars.data[i];
        if (!x->var && x->hash == h && x->data->type.i == t->type.i &&
            !memcmp(x->data->data, t->data, bytes))
            return i;
    }
    EmitVar x = {.data = t, .hash = h, .init = add_weight(e, t)};
    vec_push(e->a, &e->vars, x);
    return e->vars.len - 1;
}

/* ---- where values are ---------------------------------------------------- */

PlanRef emit_ref(Emit *e, const Graph *g, ValueId v) {
    if (!is_value(v)) return (PlanRef){.space = PLAN_NONE};
    ValueId root = view_root(g, v);
    const Value *x = value_get(g, root);
    int var = x->kind == VK_VAR ? x->var : x->home;
    if (x->kind == VK_INPUT)
        for (int i = 0; i < g->inputs.len; i++)
            if (same_value(g->inputs.data[i], root))
                return (PlanRef){PLAN_INPUT, (uint32_t)i, 0};
    if (x->kind == VK_CONST) {
        int *number = &e->const_number[root.i];
        if (*number < 0) *number = add_constant(e, x->data);
        return (PlanRef){PLAN_VAR, (uint32_t)*number, 0};
    }
    ASSERT(x->kind == VK_VAR || x->kind == VK_RESULT);
    if (x->kind == VK_VAR || var >= 0)
        return (PlanRef){PLAN_VAR, (uint32_t)e->var_number[var], 0};
    if (x->offset >= 0)
        return (PlanRef){PLAN_ARENA, root.i, (uint64_t)x->offset};
    ASSERT(node_kind(node_get(g, x->def)) == KIND_LIB);
    return (PlanRef){.space = PLAN_NONE};
}

static int add_refs(Emit *e, const Graph *g, const ValueId *v, int n) {
    EmitTarget *t = &e->target[g->target];
    int at = t->refs.len;
    for (int i = 0; i < n; i++) vec_push(e->a, &t->refs, emit_ref(e, g, v[i]));
    return at;
}

/* Values in the arena have different offsets: the index of a PlanRef is the
   value's number. */
static bool same_storage(PlanRef a, PlanRef b) {
    return a.space == b.space && a.space != PLAN_NONE &&
           (a.space == PLAN_ARENA || a.index == b.index);
}

bool emit_lie_over(const Graph *g, ValueId v, PlanRef a, ValueId w, PlanRef b) {
    uint64_t n = (uint64_t)type_bytes(value_type(g, v));
    uint64_t m = (uint64_t)type_bytes(value_type(g, w));
    return same_storage(a, b) && a.offset < b.offset + m &&
           b.offset < a.offset + n;
}

/* Sets which operands of a GPU's kernel share bytes with others in that
   launch. */
static void find_overlaps(Emit *e, const Graph *g, const LoweredStep *s) {
    for (int i = 0; i < s->nref; i++)
        for (int j = 0; j < i; j++) {
            const KBuf *buf = s->kernel->bufs.data;
            if ((!buf[i].written && !buf[j].written) ||
                !emit_lie_over(g, s->refs[i], emit_ref(e, g, s->refs[i]),
                               s->refs[j], emit_ref(e, g, s->refs[j])))
                continue;
            cuda_overlap(e->out->cuda, s->kernel, i);
            cuda_overlap(e->out->cuda, s->kernel, j);
        }
}

/* PlanStep.split of a step that ranks may share: in program update a step that
   writes optimizer state, in refresh one that copies parameters, not one that
   writes a parameter. A step of
   few elements is not worth a kernel of its own or a cut: every rank
   computes all of it. */
static Status split_of(Emit *e, const Graph *g, const LoweredStep *s,
                       int64_t *split) {
    bool update = g->program == PROGRAM_UPDATE;
    bool state = g->program == PROGRAM_REFRESH, whole = s->unit == 0;
    int64_t most = 1; /* elements of a result */
    *split = 0;
    if (!e->opt->shard_optimizer || !(update || state)) return OK;
    for (int i = 0; i < s->nref; i++) {
        const Value *x = value_get(g, view_root(g, s->refs[i]));
        if (x->kind != VK_RESULT) continue;
        const Var *v = x->home >= 0 ? &e->m->vars.data[x->home] : NULL;
        state |= v && family_has(FAMILY_OPT, v->name) && !is_average(v->name) &&
                 !is_evaluated(v->name);
        if (v && v->kind == VAR_PARAM && g->program == PROGRAM_REFRESH)
            return OK;
        int64_t n = type_count(type_get(x->type));
        whole |= !v && n > 1;
        if (n > most) most = n;
    }
    if (!state || (whole && (!update || !rank_parts(most, 1)))) return OK;
    *split = s->unit;
    return whole ? fail(e->d, (Loc){.file = e->m->file},
                        "--shard-optimizer: the update of '%s' is several "
                        "kernels (--no-fuse)",
                        s->name)
                 : OK;
}

/* Checks n groups that share a launch. */
static Status splits_of(Emit *e, const Graph *g, const LoweredStep *s, int n,
                        int64_t *split) {
    TRY(split_of(e, g, s, split));
    for (int i = 1; i < n; i++) {
        int64_t other;
        TRY(split_of(e, g, &s[i], &other));
        ASSERT(other == *split);
    }
    return OK;
}

const PlanStep *emit_step(Emit *e, const Graph *g, const LoweredStep *s, int n,
                          const LoweredStep *x) {
    EmitTarget *t = &e->target[g->target];
    const Kernel *k = s->kernel ? s->kernel : s->epilogue;
    PlanStep p = {.kind = x->kind,
                  .fn = x->fn,
                  .second = x->second,
                  .ref0 = (uint32_t)add_refs(e, g, x->refs, x->nref),
                  .nref = (uint32_t)x->nref,
                  .ep_nref = (uint32_t)x->nep_ref,
                  .par0 = (uint32_t)t->pars.len,
                  .npar = (uint32_t)x->npar,
                  .units = x->units,
                  .grain = x->grain,
                  .scratch = x->scratch,
                  .name = x->name ? x->name : ""};
    if (x->kind == PLAN_LIB && k) p.epilogue = (uint32_t)kernel_index(k) + 1;
    if (x->kind == PLAN_PRODUCT) p.epilogue = x->after;
    add_refs(e, g, x->ep_refs, x->nep_ref);
    bool asks = x->kind != PLAN_PRODUCT && x->kind != PLAN_COPY;
    if (asks && is_value(s->guard.when))
        p.when = 1 + (int32_t)add_refs(e, g, &s->guard.when, 1);
    if (s->guard.unless) p.when = -p.when;
    for (int i = 0; i < x->npar; i++) vec_push(e->a, &t->pars, x->pars[i]);
    vec_push(e->a, &t->steps, p);
    EmitStep done = {.g = g,
                     .s = arena_dup(e->a, s, (size_t)n * sizeof *s),
                     .n = n,
                     .step = p};
    vec_push(e->a, &e->out->steps, done);
    return &t->steps.data[t->steps.len - 1];
}

const PlanStep *emit_groups(Emit *e, const Graph *g, const LoweredStep *s,
                            int n) {
    EmitTarget *t = &e->target[g->target];
    const Kernel *k = s->kernel ? s->kernel : s->epilogue;
    LoweredStep x = *s;
    bool over_ranks = s->kind == PLAN_SUM || s->kind == PLAN_SUM_NOW;
    x.fn = s->kernel ? (uint32_t)kernel_index(k) : s->lib;
    if (t->kind == TARGET_CUDA && !over_ranks &&
        !cuda_step(e->a, e->out->cuda, s, n, &x))
        return NULL;
    for (int i = 0; t->kind == TARGET_CUDA && s->kernel && i < n; i++)
        find_overlaps(e, g, &s[i]);
    if (t->kind == TARGET_CUDA && s->kind == PLAN_SUM && *s->pars != DT_F32)
        cuda_sum(e->a, e->out->cuda, (DType)*s->pars, &x);
    return emit_step(e, g, s, n, &x);
}

/* ---- programs ------------------------------------------------------------ */

static void add_tensor(Emit *e, const Graph *g, Str name, ValueId v,
                       int64_t sample_rows) {
    const Type *t = value_type(g, v);
    PlanTensor x = {.name = name,
                    .dtype = t->dtype,
                    .rank = (uint32_t)t->rank,
                    .sample_rows = sample_rows};
    memcpy(x.dim, t->dim, sizeof x.dim);
    vec_push(e->a, &e->tensors, x);
}

static void add_tensors(Emit *e, const Graph *g) {
    int64_t batch = graph_samples(g);
    for (int k = 0; k < g->inputs.len; k++) {
        ValueId v = g->inputs.data[k];
        const Type *t = value_type(g, v);
        bool samples = t->rank && batch > 0 && t->dim[0] == batch;
        add_tensor(e, g, value_get(g, v)->name, v, samples);
    }
    for (int k = 0; k < g->outputs.len; k++) {
        const Output *o = &g->outputs.data[k];
        add_tensor(e, g, o->name, o->value, o->sample_rows);
    }
}

/* A step that copies the bytes of `from`; false: nothing to copy. */
static bool add_copy(Emit *e, const Graph *g, ValueId from, ValueId to,
                     Str name) {
    ValueId refs[] = {from, to};
    const Type *t = value_type(g, from);
    LibCopy par = {.bytes = type_bytes(t), .dtype = t->dtype};
    LoweredStep s = {.kind = PLAN_LIB,
                     .lib = PLAN_LIB_COPY,
                     .refs = arena_dup(e->a, refs, sizeof refs),
                     .nref = 2,
                     .pars = arena_dup(e->a, &par, sizeof par),
                     .npar = sizeof par / sizeof(int64_t),
                     .name = name};
    return par.bytes > 0 && emit_groups(e, g, &s, 1);
}

/* An output that is also an input gets bytes after the planned arena: the
   host's array may be freed when the output is read. */
static void add_output(Emit *e, const Graph *g, EmitRun *r, ValueId v,
                       PlanRef *ref) {
    EmitTarget *t = &e->target[g->target];
    *ref = emit_ref(e, g, v);
    if (ref->space != PLAN_INPUT) return;
    *ref = (PlanRef){.space = PLAN_ARENA, .offset = (uint64_t)r->arena};
    r->arena += align64(type_bytes(value_type(g, v)));
    if (!add_copy(e, g, v, v, value_get(g, v)->name)) return;
    t->refs.data[t->steps.data[t->steps.len - 1].ref0 + 1] = *ref;
}

/* The group that writes the variable in place; ngroup if none does, which
   means the end of the program. */
static int written_by(const Graph *g, const Write *w) {
    const Value *root = value_get(g, view_root(g, w->value));
    bool there =
        root->kind == VK_RESULT && root->home == value_get(g, w->var)->var;
    return there ? node_get(g, root->def)->group : g->groups.len;
}

typedef struct Bucket {
    VEC(ValueId) vars;
    int ready; /* the last group that writes one of them */
} Bucket;

typedef struct Buckets {
    Bucket *data; /* indexed by number, from 1 on */
    int len, cap;
    const int64_t *units; /* units_of */
} Buckets;

/* Per variable: if each rank needs only a part of a gradient and has zeros
   elsewhere, the parts are multiples of this number of elements; 0: ranks
   need all of it. */
static const int64_t *units_of(const Emit *e, TargetKind target) {
    int64_t *units = NEW_ARRAY(e->a, int64_t, e->m->vars.len), row;
    for (int i = 0; i < e->m->graphs.len; i++) {
        const Graph *g = e->m->graphs.data[i];
        if (g->target != target || g->program != PROGRAM_UPDATE) continue;
        for (int k = 0; k < g->order.len; k++) {
            int var = node_sums_squares(g, node_at(g, k), &row);
            if (var >= 0) units[var] = rank_unit(row);
        }
    }
    return units;
}

/* The variables that ranks add, by bucket. */
static Buckets buckets_of(Emit *e, const Graph *g) {
    Buckets all = {0};
    for (int i = 0; i < g->writes.len; i++) {
        const Write *w = &g->writes.data[i];
        int group = written_by(g, w);
        while (all.len < w->bucket) vec_push(e->a, &all, (Bucket){0});
        if (!w->bucket) continue;
        Bucket *b = &all.data[w->bucket - 1];
        vec_push(e->a, &b->vars, w->var);
        if (b->ready < group) b->ready = group;
    }
    if (all.len) all.units = units_of(e, g->target);
    return all;
}

/* Appends sums over ranks for buckets from *next on, one after the other,
   while groups before `end` write the whole bucket. */
static void add_sums(Emit *e, const Graph *g, const Buckets *all, int end,
                     int *next) {
    for (; *next < all->len && all->data[*next].ready < end; ++*next) {
        const Bucket *b = &all->data[*next];
        int64_t *pars = NEW_ARRAY(e->a, int64_t, 1 + b->vars.len);
        pars[0] = e->opt->comm_dtype;
        for (int i = 0; i < b->vars.len; i++)
            pars[1 + i] = all->units[value_get(g, b->vars.data[i])->var];
        LoweredStep s = {.kind = PLAN_SUM,
                         .refs = b->vars.data,
                         .nref = b->vars.len,
                         .pars = pars,
                         .npar = 1 + b->vars.len,
                         .name = internf("bucket %d", *next + 1)};
        emit_groups(e, g, &s, 1);
    }
}

/* ---- sums that are waited for -------------------------------------------- */

/* True if a step reads or writes values that are still to be summed. */
static bool needs_sum(Emit *e, const Graph *g, const LoweredStep *sum,
                      const LoweredStep *s) {
    if (!sum->nref) return false;
    PlanRef at = emit_ref(e, g, sum->refs[0]);
    uint64_t end = at.offset + (uint64_t)sum->pars[0];
    for (int i = 0; i < s->nref + s->nep_ref; i++) {
        PlanRef r =
            emit_ref(e, g, i < s->nref ? s->refs[i] : s->ep_refs[i - s->nref]);
        if (same_storage(r, at) && r.offset >= at.offset && r.offset < end)
            return true;
    }
    return false;
}

static void end_sum(Emit *e, const Graph *g, LoweredStep *sum) {
    if (sum->nref) emit_groups(e, g, sum, 1);
    *sum = (LoweredStep){0};
}

/* A copy's result as a reference, with the copies before it. */
static void add_to_sum(Emit *e, const Graph *g, const LoweredStep *copy,
                       LoweredStep *sum) {
    LibCopy *all = (void *)sum->pars;
    const LibCopy *more = (const void *)copy->pars;
    PlanRef r = emit_ref(e, g, copy->refs[1]);
    if (sum->nref) {
        PlanRef at = emit_ref(e, g, sum->refs[0]);
        int64_t gap = (int64_t)(r.offset - at.offset) - all->bytes;
        if (r.space == PLAN_ARENA && at.space == r.space && gap >= 0 &&
            gap < ARENA_ALIGN && all->dtype == more->dtype &&
            sum->largest == copy->largest) {
            all->bytes += gap + more->bytes;
            return;
        }
        end_sum(e, g, sum);
    }
    *sum = *copy;
    sum->kind = PLAN_SUM_NOW;
    sum->second = copy->largest;
    sum->refs = copy->refs + 1;
    sum->nref = 1;
    sum->pars = arena_dup(e->a, more, sizeof *more);
}

/* ---- a program ----------------------------------------------------------- */

/* The step among n whose results the step `after` folds; NULL if none
   matches. */
static LoweredStep *maker_of(const Graph *g, LoweredStep *s, int n,
                             const LoweredStep *after) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < s[i].nref; j++)
            for (int k = 0; k < after->nref; k++)
                if (s[i].kernel->bufs.data[j].written &&
                    same_value(view_root(g, s[i].refs[j]),
                               view_root(g, after->refs[k])))
                    return s[i].npar == 2 && s[i].pars[0] == after->pars[1]
                               ? &s[i]
                               : NULL;
    return NULL;
}

/* Number of groups from `next` on that the launch of n steps runs after them
   with one kernel. */
static int set_behind(const Graph *g, LoweredStep *s, int n, int next) {
    int count = 0;
    for (; next < g->groups.len && g->groups.data[next].after; next++) {
        LoweredStep *after = &s[n + count];
        bool folds = s->kernel && s->kernel->form == KF_FOLD && after->kernel &&
                     after->kernel->form == KF_FOLD && after->pars[0] == 1 &&
                     after->kernel == s[n].kernel;
        LoweredStep *maker = folds ? maker_of(g, s, n, after) : NULL;
        if (!maker || maker->behind) break;
        maker->behind = after;
        count++;
    }
    return count;
}

static Status add_run(Emit *e, const Graph *g) {
    EmitTarget *t = &e->target[g->target];
    EmitRun r = {
        .g = g, .step0 = t->steps.len, .arena = align64(g->arena_bytes)};
    PlanRef *out = NEW_ARRAY(e->a, PlanRef, g->outputs.len + 1);
    LoweredStep *steps;
    TRY(lower_graph(g, t->kernels, e->d, &steps));
    e->const_number = NEW_ARRAY(e->a, int, g->values.len);
    memset(e->const_number, -1, (size_t)g->values.len * sizeof(int));
    Buckets buckets = buckets_of(e, g);
    int bucket = 0;
    uint32_t behind_tile = 0; /* the kernel that replaces the next step, too */
    int gelu = 0; /* groups from here on that a PLAN_GELU replaces */
    LoweredStep sum = {0};
    for (int i = 0, n, all; i < g->groups.len; i += all) {
        if (i == g->nfixed) r.nfixed = t->steps.len - r.step0;
        for (n = 1; i + n < g->groups.len && g->groups.data[i + n].beside &&
                    !g->groups.data[i + n].after &&
                    steps[i + n].kernel == steps[i].kernel;)
            n++;
        all = n + set_behind(g, &steps[i], n, i + n);
        int64_t split;
        TRY(splits_of(e, g, &steps[i], n, &split));
        for (int k = 0; k < all; k++)
            if (needs_sum(e, g, &sum, &steps[i + k])) end_sum(e, g, &sum);
        uint32_t tile = behind_tile;
        behind_tile = 0;
        bool alone = all == 1 && i + 1 < g->groups.len &&
                     !needs_sum(e, g, &sum, &steps[i + 1]);
        if (!tile && alone) behind_tile = tile = emit_tile(e, g, steps, i);
        if (gelu) gelu--;
        if (!tile && !gelu && alone && emit_gelu(e, g, steps, i)) gelu = 2;
        const PlanStep *s = emit_groups(e, g, &steps[i], n);
        EmitStep *last = s ? &e->out->steps.data[e->out->steps.len - 1] : NULL;
        if (s && tile) last->tile = tile;
        if (s && gelu) last->since = -PLAN_GELU_SINCE;
        if (s && split) {
            t->steps.data[t->steps.len - 1].split = split;
            last->step.split = split;
        }
        for (int k = 0; k < all; k++) {
            EmitGroup x = {.target = g->target,
                           .s = &steps[i + k],
                           .idle = !s,
                           .part = k > 0,
                           .tile = tile,
                           .gelu = gelu > 0};
            if (s) x.step = *s;
            vec_push(e->a, &e->out->groups, x);
        }
        if (s && steps[i].summed) add_to_sum(e, g, &steps[i], &sum);
        add_sums(e, g, &buckets, i + all, &bucket);
    }
    end_sum(e, g, &sum);
    /* values that are not computed in place; fuse.c ensures that no source
       is a variable that this program writes */
    for (int i = 0; i < g->writes.len; i++) {
        const Write *w = &g->writes.data[i];
        const Value *root = value_get(g, view_root(g, w->value));
        if (written_by(g, w) < g->groups.len ||
            (root->kind == VK_VAR && root->var == value_get(g, w->var)->var))
            continue;
        add_copy(e, g, w->value, w->var, value_var(g, w->var)->name);
    }
    add_sums(e, g, &buckets, g->groups.len + 1, &bucket);
    for (int i = 0; i < g->outputs.len; i++)
        add_output(e, g, &r, g->outputs.data[i].value, &out[i]);
    r.nstep = t->steps.len - r.step0;
    r.out0 = t->refs.len;
    for (int i = 0; i < g->outputs.len; i++) {
        add_refs(e, g, &g->outputs.data[i].value, 1);
        t->refs.data[r.out0 + i] = out[i];
    }
    vec_push(e->a, &t->runs, r);
    return OK;
}

/* The programs of every target come in the same order. If a target refuses
   something, the error is reported at once, since the next target would only
   repeat it. */
static Status add_programs(Emit *e) {
    TargetKind first = e->m->graphs.data[0]->target;
    Status status = OK;
    for (int i = 0; i < e->m->graphs.len; i++) {
        const Graph *g = e->m->graphs.data[i];
        EmitTarget *t = &e->target[g->target];
        ASSERT(g->target != TARGET_ANY);
        if (!t->kernels) {
            TRY(status);
            t->kernels =
                kernel_set_new(e->a, g->target, gpu_block_shared(e->opt));
            if (t->kind == TARGET_CUDA) {
                e->out->cuda = NEW(e->a, CudaSource);
                e->out->cuda->tile_archs = cuda_tile_archs(e->opt, e->a);
            }
        }
        if (g->target == first) {
            EmitProgram p = {g->name, e->tensors.len, g->inputs.len,
                             e->tensors.len + g->inputs.len, g->outputs.len};
            add_tensors(e, g);
            vec_push(e->a, &e->programs, p);
        } else {
            ASSERT(e->programs.data[t->runs.len].name == g->name);
        }
        if (add_run(e, g) != OK) status = ERR_USER;
    }
    return status;
}

/* ---- all ----------------------------------------------------------------- */

static bool is_inner(char c) { return isalnum((unsigned char)c) || c == '_'; }

bool text_has_word(const char *text, const char *name) {
    size_t n = strlen(name);
    for (const char *p = text; (p = strstr(p, name)); p += n)
        if (p > text && !is_inner(p[-1]) && p[-1] != '"' && !is_inner(p[n]))
            return true;
    return false;
}

/* The exported symbol must differ from the tables', the runtime's and the C
   library's symbols. */
static Status check_symbol(const Emit *e) {
    static const char *const starting[] = {"_init", "_fini"};
    const char *name = e->opt->symbol;
    StrBuf whole = {0};
    sb_printf(&whole, "%c%s%c", 0, name, 0);
    bool taken =
        memmem(embed_runtime_a, embed_runtime_a_size, whole.data, whole.len) ||
        text_has_word(e->out->text.data, name);
    sb_free(&whole);
    for (int i = 0; i < 2; i++) taken |= !strcmp(name, starting[i]);
    if (!taken) return OK;
    return fail(e->d, (Loc){0}, SYMBOL_TAKEN, name);
}

Status emit_plan(Module *m, const Options *opt, Diag *d, const EmitInput *in,
                 Arena *a, PlanSource *out) {
    Emit e = {.m = m, .opt = opt, .d = d, .a = a, .out = out};
    for (int i = 0; i < NUM_TARGETS; i++) e.target[i].kind = (TargetKind)i;
    TRY(emit_check_products(m, opt, d));
    add_variables(&e);
    TRY(add_programs(&e));
    emit_tile_warn(&e);
    if (e.target[TARGET_CPU].kernels)
        out->kernels = kernel_texts(a, e.target[TARGET_CPU].kernels);
    if (out->cuda) {
        out->cuda->archs = cuda_archs(opt, a);
        cuda_units(a, out->cuda);
        cuda_tile_unit(a, out->cuda);
    }
    put_plan(&out->text, &e, in);
    return check_symbol(&e);
}
