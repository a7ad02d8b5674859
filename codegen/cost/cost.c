/* SPDX-License-Identifier: Apache-2.0 */
/* cost.c: see cost.h.

   Instructions are counted in SASS of sm_90 (NVRTC 12.8): rounding to bf16 is
   2, a division 14, tanh and the like about 30, a Philox number 60; an index of
   a nest costs a multiply-high and three more for each dim but the first, twice
   that with 64 bits; a thread's place in a tensor 20, a fold over the threads
   of a row 30, over those of a block 60.  models/bench/gpu_instructions.py
   holds these numbers beside the machine code. */
#include "codegen/cost/cost.h"
#include "codegen/cuda/cuda.h"
#include "codegen/kernel/schedule.h"
#include "runtime/cuda/tile.h"
#include "runtime/program/blocks.h"
#include "runtime/program/lib.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WARP = 32,
    SECTOR = 32,
    CACHED = 24 << 20,
    THREADS = 132 * 2048,
    CORES = 64
};

static double value_size(const Graph *g, ValueId v) {
    return is_value(v) ? (double)type_bytes(value_type(g, v)) : 0;
}

/* ---- generated kernels --------------------------------------------------- */

static double inst_weight(const Kernel *k, const KInst *in) {
    static const double op[] = {[COST_CHEAP] = 1,
                                [COST_DIVIDE] = 14,
                                [COST_LONG] = 30,
                                [COST_SLOW] = 100};
    switch (in->op) {
    case K_OP:
        if (in->low) return op_low[in->code].insts;
        if (in->type == KT_F32 && op_numeric[in->code].insts > 0)
            return op_numeric[in->code].insts;
        return op[op_info[in->code].cost] * (1 + (in->type == KT_F64));
    case K_ROUND: return 2;
    case K_PHILOX: return 60;
    case K_REDUCE: return kinst_at(k, in->in[0])->op != K_CONST;
    case K_CVT: return 1;
    default: return 0;
    }
}

typedef struct Shape {
    const Graph *g;
    const LoweredStep *step;
    const Kernel *k;
    const Kernel *most;      /* .. as it is for columns but `one` */
    int one;                 /* kernel_one_column */
    double extent[MAX_RANK]; /* the extents of the step, if it has any */
    double rows, elements;
    int dims;      /* dims into which an element's index is divided */
    int fast;      /* dim along which neighbouring threads are neighbours */
    int pack;      /* adjacent elements that one thread computes */
    double lanes;  /* threads of a row                                        */
    double walked; /* rows at one time                                       */
    double fetched; /* bytes of a row that a thread requests before it waits */
    bool wide;
    bool turned; /* a transposition through shared memory */
} Shape;

static Shape shape_of(const Graph *g, const LoweredStep *step, const Kernel *k,
                      Arena *a) {
    bool fold = k->form == KF_FOLD;
    bool cuda = g->target == TARGET_CUDA;
    const KLoop *l = cuda ? kernel_loop(k, LOOP_LANES, LOOP_ANY) : NULL;
    Shape s = {g,
               step,
               k,
               .rows = fold ? (double)step->pars[0] : (double)kernel_rows(k),
               .elements = fold ? (double)step->pars[0] : 1,
               .fast = k->vec,
               .pack = cuda_pack(k),
               .lanes = l ? (double)l->step : 1,
               .turned = cuda && cuda_turned(k)};
    if (s.turned) s.pack = TURN_NEAR;
    if (fold && step->pars[1] % s.pack) s.pack = 1; /* k<i>_row<1> */
    s.most = k;
    s.one = cuda ? kernel_one_column(k) : 0;
    if (s.one) s.most = kernel_other_columns(a, k, s.one);
    s.walked = cuda ? THREADS / s.lanes : CORES;
    for (int d = 0; d < k->ndim; d++) {
        s.extent[d] = (double)(kernel_any_length(k) ? step->pars[fold]
                                                    : k->dim[d].extent);
        s.elements *= s.extent[d];
        s.dims += k->dim[d].col || !kernel_reduces(k);
    }
    for (int id = 1; id < k->insts.len; id++)
        if (cuda && cuda_fetched(k, id))
            s.fetched +=
                dtype_info[k->bufs.data[kinst_at(k, id)->buf].dtype].bytes *
                (double)kernel_cols(k) / s.lanes;
    s.wide = s.elements > INT32_MAX - 65536;
    return s;
}

/* Elements of the buffer that a load or store touches. Under a guard (a pad,
   a part of a concat) at most the elements of the buffer. */
static double footprint(const Shape *s, const KInst *in) {
    bool walks = s->k->bufs.data[in->buf].walk != WALK_NOT; /* form fold */
    double n = walks ? s->rows : 1;
    for (int d = 0; d < s->k->ndim; d++)
        if (in->at.k[d] || in->at.inst) n *= s->extent[d];
    if (!in->guard) return n;
    const Type *t = value_type(s->g, s->step->refs[in->buf]);
    return n < (double)type_count(t) ? n : (double)type_count(t);
}

static bool packed_in(const Shape *s, const KInst *in) {
    return s->pack > 1 && cuda_packed(s->k, in, s->pack);
}

/* Bytes through the cache for `times` evaluations of an access. */
static double sectors(const Shape *s, const KInst *in, double times) {
    if (in->guard && times > footprint(s, in)) times = footprint(s, in);
    double size = dtype_info[s->k->bufs.data[in->buf].dtype].bytes;
    int64_t step = s->fast >= 0 ? llabs((long long)in->at.k[s->fast]) : 0;
    if (s->turned || in->tile) step = 1;
    double each = size * (double)step;
    if (in->tile && cuda_tile_lines(s->k) < SECTOR)
        each = 2 * size; /* stores half of each sector */
    if (in->at.inst || each > SECTOR) each = SECTOR;
    if (!step && !in->at.inst) each = size / 32;
    return times * (each < size && step ? size : each);
}

/* Adds codes, scales and sums of blocks: instructions by SASS of sm_100; scales
   leave lane by lane, a word of a row's and a byte of a column's in a sector
   each. */
static void add_blocks(const Shape *s, const KInst *in, StepCost *c) {
    static const struct {
        double insts, bytes, sectors; /* of a number */
    } of[] = {[TILE_CODES] = {4.2, 1, 1},
              [TILE_SCALES] = {0.5, 1. / BLOCK_SIZE, 1. / 8},
              [TILE_CODES_DOWN] = {3.2, 1, 1},
              [TILE_SCALES_DOWN] = {0.7, 1. / BLOCK_SIZE, 1},
              [TILE_SUMS] = {2.2, 4. / BLOCK_SIZE, 4. / BLOCK_SIZE}};
    c->insts += s->elements * of[in->tile].insts;
    c->bytes += s->elements * of[in->tile].bytes;
    c->l2 += s->elements * of[in->tile].sectors;
}

/* Adds one sweep over the columns: its memory, cache and issue costs. met:
   by instruction, computed by an earlier sweep. */
static void add_sweep(const Shape *s, const KSweeps *all, const KSweep *w,
                      bool *met, Arena *a, StepCost *c) {
    const Kernel *k = s->k;
    double part = s->walked < s->rows ? s->walked / s->rows : 1;
    const bool *held = kernel_held(k, all, w, a);
    bool *need = kernel_need(k, w, held, a), stores = w->roots.len > w->nfold;
    double each = 2, loads = 0; /* instructions, bytes of one element */
    double before = c->reads;
    if (s->dims > 1) each += 4.0 * (s->dims - 1) * (1 + s->wide) / s->pack;
    if (need[s->one]) each += 3.0 / s->pack;
    for (int j = 0; j < w->roots.len; j++) {
        const KInst *root = kinst_at(k, w->roots.data[j]);
        need[w->roots.data[j]] = true;
        if (root->keep == KEEP_BUFFER) need[root->in[0]] = true;
    }
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        bool load = in->op == K_LOAD, store = in->op == K_STORE;
        if (!need[id] || (held && held[id])) continue;
        bool again = met[id];
        met[id] = true;
        each += inst_weight(s->most, kinst_at(s->most, id)) /
                (s->pack > 1 && cuda_uniform(k, in) ? s->pack : 1);
        if (in->op == K_ADD_UP) each += 1 + 4.0 / s->pack;
        if (!load && !store) continue;
        if (kinst_blocks(in)) {
            each += 2.0 / s->pack + 1.0 / 2;
            continue;
        }
        if (again && in->keep == KEEP_SHARED) {
            each += packed_in(s, in) ? 1.0 / s->pack + 1 : 2;
            continue;
        }
        double size = dtype_info[k->bufs.data[in->buf].dtype].bytes;
        double bytes = footprint(s, in) * size;
        each += s->turned || in->tile ? 2
                : packed_in(s, in)    ? 2.0 / s->pack + 1
                                      : 4 + 2 * s->wide;
        c->l2 += sectors(s, in, s->elements);
        if (load && s->fetched == 0) loads += size * s->pack;
        /* if rows in progress fit the cache, data of earlier sweeps are
           still there */
        if (!store && again && bytes * part <= CACHED) continue;
        c->bytes += bytes;
        if (load) c->reads += bytes;
    }
    /* loads do not pass stores; without stores the compiler unrolls by four */
    if (!stores && k->form != KF_FLAT && (s->pack == 1 || k->form == KF_ROWS))
        loads *= 4;
    if (s->fetched > 0) loads = s->fetched;
    double read = c->reads - before;
    if (loads > 0 && read > 0) {
        double waits = c->in_flight > 0 ? before / c->in_flight : 0;
        c->in_flight = c->reads / (waits + read / loads);
    }
    c->insts += each * s->elements;
}

static void add_part(const Graph *g, const LoweredStep *step, const Kernel *k,
                     Arena *a, StepCost *c) {
    Shape s = shape_of(g, step, k, a);
    KSweeps sweeps = kernel_sweeps(k, a);
    bool *met = NEW_ARRAY(a, bool, k->insts.len);
    double row = 0;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        if (in->full || in->op == K_REDUCE) continue;
        row += inst_weight(k, in);
        if (in->op != K_LOAD && in->op != K_STORE) continue;
        double size = dtype_info[k->bufs.data[in->buf].dtype].bytes;
        c->bytes += footprint(&s, in) * size;
        c->l2 += footprint(&s, in) * size;
    }
    for (int i = 0; i < sweeps.len; i++)
        add_sweep(&s, &sweeps, &sweeps.data[i], met, a, c);
    for (int id = 1; id < k->insts.len; id++)
        if (kinst_blocks(kinst_at(k, id))) add_blocks(&s, kinst_at(k, id), c);
    if (k->form == KF_FLAT)
        c->insts += 20 * s.elements / s.pack;
    else
        c->insts += (row + (s.lanes > WARP ? 60 : 30)) * s.rows * s.lanes;
}

static void add_kernel(const Graph *g, const LoweredStep *step, StepCost *c) {
    Arena *a = arena_new();
    const Kernel *k = step->kernel;
    double sums = 2 * (double)cuda_scratch(k); /* written, read */
    c->bytes += sums;
    c->l2 += sums;
    if (g->target == TARGET_CPU) {
        KParts parts = kernel_row_parts(a, k);
        for (const KPart *x = parts.data; x < parts.data + parts.len; x++) {
            Kernel part = *x->k;
            if (parts.len > 1) part.dim[parts.dim].extent = x->to - x->from;
            add_part(g, step, &part, a, c);
        }
    } else {
        add_part(g, step, k, a, c);
    }
    arena_free(a);
}

/* ---- library routines ---------------------------------------------------- */

/* Tensor cores read 16 bytes at a time: rows that do not begin at multiples
   of 16 take another kernel. */
static void add_gemm(const LibGemm *p, bool library, StepCost *c) {
    int64_t ld[] = {p->a_cs == 1 ? p->a_rs : p->a_cs,
                    p->b_cs == 1 ? p->b_rs : p->b_cs, p->n};
    int64_t dtype[] = {p->a_dtype, p->b_dtype, p->c_dtype};
    double products = 1;
    for (int i = 0; i < p->nbatch_dim; i++) products *= (double)p->batch_dim[i];
    c->mma = 2 * (double)(p->m * p->n) * (double)p->k * products;
    if (!library) return;
    c->rows = (double)p->m;
    c->cols = (double)p->n;
    c->depth = (double)p->k;
    c->products = products;
    for (int i = 0; i < 3; i++)
        c->odd += ld[i] * dtype_info[dtype[i]].bytes % 16 != 0 && c->odd < 1;
}

/* Two matrix products forward; three backward, which also repeats the two.
   Causal attention: half of the scores. */
static void add_attend(const LibAttend *p, bool grad, StepCost *c) {
    double features = (double)(grad ? 3 * p->d + 2 * p->e : p->d + p->e);
    c->mma = (p->causal ? 1 : 2) * (double)p->batch * (double)(p->t * p->u) *
             features;
}

/* The library multiplies the planes of each image. */
static void add_conv(const LibConv *p, bool library, bool back, StepCost *c) {
    int64_t positions = lib_volume(p->out);
    c->mma = 2 * (double)(p->n * p->k) * (double)(p->c / p->group) *
             (double)(positions * lib_volume(p->kernel));
    if (!library) return;
    c->rows = (double)(back ? p->c : p->k);
    c->cols = (double)positions;
    c->depth = (double)(back ? p->k : p->c);
    c->products = (double)p->n;
    c->odd = positions * dtype_info[p->x_dtype].bytes % 16 != 0;
}

/* Adds threads with that many instructions each; together they read and
   write all data. */
static void add_visits(StepCost *c, double insts) {
    c->insts = c->blocks * c->threads * insts;
    c->reads = c->bytes / 2;
    c->in_flight = 16;
}

/* A thread computes one result or some neighbours. It visits the elements of
   a window, or the windows of an element. Neighbours read them together
   (counted in SASS of 3 x 3 at stride 2). */
static void add_pool(const LibPool *p, bool grad, StepCost *c) {
    double visits = (double)(p->planes * lib_volume(grad ? p->in : p->out));
    visits = c->threads ? ceil(visits / (c->blocks * c->threads)) : 1;
    double each = visits < 2 ? 16 : grad ? 6 : 10;
    for (int i = 0; i < 3; i++)
        visits *= grad ? ceil((double)p->kernel[i] / (double)p->stride[i])
                       : (double)p->kernel[i];
    add_visits(c, 40 + each * visits);
}

/* The part of operand i that the routine reads or writes: attention's heads. */
static double part_read(const LoweredStep *s, int i) {
    const LibAttend *p = (const void *)s->pars;
    if ((s->lib != PLAN_LIB_ATTEND && s->lib != PLAN_LIB_ATTEND_GRAD) || i > 2)
        return 1;
    const int64_t heads[] = {p->q_heads, p->kv_heads, p->kv_heads};
    const int64_t width[] = {p->q_width, p->k_width, p->v_width};
    return (double)heads[i] / (double)width[i];
}

/* of fp32 operands; TF32 has a sign, 8 bits of the exponent, 10 of the
   mantissa */
static const int factor_bits[AMPC_NFACTORS] = {[AMPC_FACTORS_F32] = 32,
                                               [AMPC_FACTORS_TF32] = 19,
                                               [AMPC_FACTORS_BF16] = 16};

static void add_routine(const Graph *g, const LoweredStep *s, bool library,
                        StepCost *c) {
    const LibInfo *lib = lib_info(s->lib);
    const void *par = s->pars;
    for (int i = 0; i < s->nref; i++)
        c->bytes += value_size(g, s->refs[i]) * part_read(s, i);
    for (int i = 0; i < s->nep_ref; i++)
        c->bytes += value_size(g, s->ep_refs[i]);
    switch (s->lib) {
    case PLAN_LIB_GEMM: add_gemm(par, library, c); break;
    case PLAN_LIB_GEMM_QUANTIZED: {
        const LibGemmQuantized *p = par;
        c->mma = 2 * (double)(p->m * p->n) * (double)p->k;
        break;
    }
    case PLAN_LIB_CONV_FWD:
    case PLAN_LIB_CONV_SUMS: /* begins as LibConv */
    case PLAN_LIB_CONV_DGRAD_SUMS:
    case PLAN_LIB_CONV_DGRAD:
    case PLAN_LIB_CONV_WGRAD:
        add_conv(par, library, s->lib == PLAN_LIB_CONV_DGRAD, c);
        break;
    case PLAN_LIB_ATTEND:
    case PLAN_LIB_ATTEND_GRAD:
        add_attend(par, s->lib == PLAN_LIB_ATTEND_GRAD, c);
        break;
    case PLAN_LIB_MAXPOOL:
    case PLAN_LIB_AVGPOOL: add_pool(par, false, c); break;
    case PLAN_LIB_MAXPOOL_GRAD:
    case PLAN_LIB_AVGPOOL_GRAD: add_pool(par, true, c); break;
    case PLAN_LIB_COPY: c->bytes = 2 * (double)((const LibCopy *)par)->bytes;
    /* fall through */
    default: add_visits(c, 60);
    }
    for (int i = 0; i < 2 && c->mma > 0; i++) { /* factors */
        int64_t dtype = s->pars[lib->operands[i].dtype_at];
        int bits = 8 * dtype_info[dtype].bytes;
        if (dtype == DT_F32) bits = factor_bits[s->factors];
        if (bits > c->bits) c->bits = bits;
    }
    c->l2 = c->bytes;
}

/* ---- steps --------------------------------------------------------------- */

static void add_launch(const CudaSource *cuda, const EmitStep *e, StepCost *c) {
    CudaWork work = cuda_work(cuda, e->step.fn);
    uint32_t main = work.second ? e->step.second - 1 : e->step.fn;
    const PlanCudaKernel *k = &cuda->kernels.data[main];
    for (int i = 0; i < e->n; i++) {
        int64_t n = e->s[i].npar ? e->s[i].pars[0] : 0;
        c->blocks +=
            (double)(k->blocks ? k->blocks : (n - 1) / k->per_block + 1);
    }
    c->launches = e->step.second && e->step.kind == PLAN_LAUNCH ? 2 : 1;
    c->threads = k->threads;
    c->shared = k->shared;
    c->rate = work.rate;
    c->insts = work.insts;
    c->wavefronts = work.wavefronts;
    c->bytes = work.bytes;
    for (int i = 0; i < cuda->build.usage.len; i++) {
        const CudaUsage *u = &cuda->build.usage.data[i];
        if (strcmp(u->kernel, k->name) || strcmp(u->arch, cuda->archs.data[0]))
            continue;
        c->registers = u->registers;
        c->shared += u->shared;
    }
}

/* Adds bytes of gradients that are sent. in_parts: counts only gradients of
   which each rank needs a part of the sum. */
static void add_sum(const EmitStep *e, bool in_parts, StepCost *c) {
    for (int i = 0; i < e->s->nref; i++)
        if ((e->s->pars[1 + i] != 0) == in_parts)
            c->bytes += value_size(e->g, e->s->refs[i]);
    c->bytes *= dtype_info[e->s->pars[0]].bytes / 4.0;
}

/* The variable that a reference names, or -1. */
static int var_of(const Graph *g, ValueId ref) {
    if (!is_value(ref)) return -1;
    const Value *x = value_get(g, view_root(g, ref));
    return x->kind == VK_VAR ? x->var : x->kind == VK_RESULT ? x->home : -1;
}

/* Per variable: whether steps read it that ranks do not share, so that each
   rank has all elements (drop_read in runtime/ranks/shards.c). */
static const bool *whole_vars(const PlanSource *src, TargetKind target,
                              Arena *a) {
    bool *whole = NULL;
    for (int i = 0; i < src->steps.len; i++) {
        const EmitStep *e = &src->steps.data[i];
        if (!whole) whole = NEW_ARRAY(a, bool, e->g->module->vars.len + 1);
        if (e->g->target != target || e->g->program == PROGRAM_TRAIN ||
            e->step.split)
            continue;
        for (int k = 0; k < e->n; k++) {
            const LoweredStep *s = &e->s[k];
            for (int j = 0; j < s->nref; j++)
                whole[1 + var_of(e->g, s->refs[j])] = true;
            for (int j = 0; j < s->nep_ref; j++)
                whole[1 + var_of(e->g, s->ep_refs[j])] = true;
        }
    }
    return whole;
}

/* Bytes that ranks exchange after a shared update of a tensor: the 16-bit
   copies of its parameter, or the parameter itself. */
static double handed_out(const Graph *g, const LoweredStep *s,
                         const bool *whole) {
    VarKind kind = VAR_SHADOW;
    double bytes = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < s->nref; i++) {
            int v = var_of(g, s->refs[i]), k = 0;
            const Var *var = v < 0 ? NULL : &g->module->vars.data[v];
            while (k < i && var_of(g, s->refs[k]) != v) k++;
            if (!var || k < i) continue;
            if (pass && var->kind == kind)
                bytes += (double)type_bytes(type_get(var->type));
            if (var->kind == VAR_PARAM && whole[1 + v]) kind = VAR_PARAM;
        }
    return bytes;
}

static void put_row(const EmitStep *e, const char *how, StepCost *c,
                    StrBuf *sb) {
    c->since = e->since;
    sb_printf(sb, "%s\t%s\t%s", target_text[e->g->target], e->g->name, how);
#define FIELD(f) sb_printf(sb, "\t%.12g", c->f);
    COST_FIELDS(FIELD)
#undef FIELD
    sb_puts(sb, "\t");
    for (const char *p = e->step.name; *p && p < e->step.name + 63; p++)
        sb_printf(sb, "%c", (unsigned char)*p < ' ' ? '?' : *p);
    sb_puts(sb, "\n");
}

/* Instructions of the library behind a product: an estimate by CUTLASS's
   functions of that form, whose tanh is one instruction that counts as four;
   rounding and storing what GELU reads, or loading it. */
static double gelu_insts(const EmitStep *e) {
    enum { GELU = 12, SLOPE = 20 };
    double n = (double)type_count(value_type(e->g, e->both->refs[2]));
    return n * (e->both->fn == PLAN_GELU_SLOPE ? SLOPE : GELU);
}

/* A product and the kernel behind it, each operand and result once. */
static void put_both(const EmitStep *e, StrBuf *sb) {
    StepCost c = {.launches = 1}, kernel = {0};
    bool gelu = e->step.kind == PLAN_GELU;
    add_routine(e->g, &e->s[0], true, &c);
    add_kernel(e->g, &e->s[1], &kernel);
    c.insts = gelu ? gelu_insts(e) : kernel.insts;
    c.bytes = 0;
    for (int i = 0; i < e->both->nref; i++)
        c.bytes += value_size(e->g, e->both->refs[i]);
    c.l2 = c.bytes;
    put_row(e, gelu ? "gelu" : "tile", &c, sb);
}

static void put_step(const PlanSource *src, const EmitStep *e,
                     const bool *whole, StrBuf *sb) {
    bool gpu = e->g->target == TARGET_CUDA;
    bool product = gpu && e->step.kind == PLAN_PRODUCT;
    StepCost c = {.launches = 1}, out = c;
    bool many = plan_tensors(&e->step) > 0;
    if (gpu && (e->step.kind == PLAN_LAUNCH || many))
        add_launch(src->cuda, e, &c);
    bool sum = e->step.kind == PLAN_SUM, now = e->step.kind == PLAN_SUM_NOW;
    if (sum) add_sum(e, true, &out);
    if (out.bytes > 0) put_row(e, "scatter", &out, sb);
    if (sum) add_sum(e, false, &c);
    if (now) c.bytes = (double)((const LibCopy *)e->s->pars)->bytes;
    for (int i = 0; i < e->n && !sum && !now; i++)
        if (e->s[i].kernel) {
            add_kernel(e->g, &e->s[i], &c);
            if (e->s[i].behind) add_kernel(e->g, e->s[i].behind, &c);
        } else
            add_routine(e->g, &e->s[i], product, &c);
    const char *how = sum                ? "sum"
                      : now              ? "sum_now"
                      : many && e->n > 1 ? "many"
                      : e->s->kernel     ? "kernel"
                      : product          ? "cublaslt"
                                         : lib_info(e->s->lib)->name;
    put_row(e, how, &c, sb);
    for (int i = 0; i < e->n && e->step.split; i++)
        out.bytes += handed_out(e->g, &e->s[i], whole);
    if (e->step.split) put_row(e, "hand_out", &out, sb);
}

double cost_flops(const EmitStep *e) {
    StepCost c = {0};
    bool sum = e->step.kind == PLAN_SUM || e->step.kind == PLAN_SUM_NOW;
    if (!sum && !e->both && !e->s->kernel) add_routine(e->g, e->s, false, &c);
    return c.mma;
}

void cost_put(const PlanSource *src, StrBuf *sb) {
    Arena *a = arena_new();
    const bool *whole[NUM_TARGETS];
    for (int t = 0; t < NUM_TARGETS; t++)
        whole[t] = whole_vars(src, (TargetKind)t, a);
    sb_puts(sb, "target\tprogram\thow");
#define FIELD(f) sb_puts(sb, "\t" #f);
    COST_FIELDS(FIELD)
#undef FIELD
    sb_puts(sb, "\tname\n");
    for (int i = 0; i < src->steps.len; i++) {
        const EmitStep *e = &src->steps.data[i];
        if (e->both)
            put_both(e, sb);
        else if (!e->tile)
            put_step(src, e, whole[e->g->target], sb);
    }
    arena_free(a);
}

/* ---- reading ------------------------------------------------------------- */

/* One field up to a tab or the line's end; false: there is none. */
static bool next_field(const char **at, char *out, size_t size) {
    size_t n = strcspn(*at, "\t\n");
    if (n >= size) return false;
    memcpy(out, *at, n);
    out[n] = 0;
    *at += n + ((*at)[n] == '\t');
    return true;
}

bool cost_next(const char **at, StepCost *out) {
    char number[32];
    memset(out, 0, sizeof *out);
    if (!strncmp(*at, "target\t", 7)) *at += strcspn(*at, "\n") + 1;
    if (!**at || !next_field(at, out->target, sizeof out->target) ||
        !next_field(at, out->program, sizeof out->program) ||
        !next_field(at, out->how, sizeof out->how))
        return false;
#define FIELD(f)                                                               \
    if (!next_field(at, number, sizeof number) || !*number) return false;      \
    out->f = strtod(number, NULL);
    COST_FIELDS(FIELD)
#undef FIELD
    if (!next_field(at, out->name, sizeof out->name)) return false;
    *at += **at == '\n';
    return true;
}
