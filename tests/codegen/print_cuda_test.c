/* SPDX-License-Identifier: Apache-2.0 */
/* print_cuda_test.c: kernels of every form as CUDA text.

   The graphs of one table are lowered into one set of kernels, so that one
   unit holds them all.  On the simulated GPU their results must be the
   interpreter's to the bit: all values are small whole numbers, whose sums are
   exact in any order.  NVRTC, where there is one, must compile the unit
   without warnings or spills.                                               */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "passes/device/fold.h"
#include "codegen/cuda/cuda.h"
#include "ir/text/text.h"
#include "runtime/program/lib.h"
#include "tests/codegen/print_cuda/print_cuda.h"
#include "tests/support/simulate.h"

/* ---- one graph ----------------------------------------------------------- */

uint32_t random_bits(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static int64_t small_number(DType d) {
    int64_t i = random_bits() % 8;
    if (d == DT_BOOL) return i & 1;
    return dtype_info[d].kind == DK_U ? i : i - 4;
}

static EvalTensor *random_input(Arena *a, TypeId id) {
    const Type *t = type_get(id);
    EvalTensor *e = eval_tensor_new(a, id);
    for (int64_t i = 0, n = type_count(t); i < n; i++) {
        int64_t x = small_number(t->dtype);
        if (e->f)
            e->f[i] = (double)x;
        else
            e->i[i] = x;
    }
    return e;
}

void *block_new(size_t n) {
    void *p;
    REQUIRE(posix_memalign(&p, 256, n ? n : 1) == 0);
    memset(p, 0x7f, n);
    return p;
}

static void subject_values(Subject *s, Arena *a) {
    s->in = NEW_ARRAY(a, EvalTensor *, s->g->values.len);
    s->data = NEW_ARRAY(a, void *, s->g->values.len);
    for (int i = 1; i < s->g->values.len; i++) {
        const Value *v = &s->g->values.data[i];
        s->data[i] = block_new((size_t)type_bytes(type_get(v->type)));
        if (v->kind == VK_INPUT) s->in[i] = random_input(a, v->type);
    }
}

void subject_load(Subject *s, Arena *a) {
    for (int i = 1; i < s->g->values.len; i++) {
        TypeId t = s->g->values.data[i].type;
        if (!s->in[i]) continue;
        const Tensor *x = eval_to_tensor(a, s->in[i], t);
        memcpy(s->data[i], x->data, (size_t)type_bytes(type_get(t)));
    }
}

static void suite_add(Suite *x, const char *text) {
    Subject *s = &x->s[x->n++];
    Diag d = {0};
    Module *m = NULL;
    LoweredStep *steps;
    s->text = text;
    if (parse_module(x->a, &d, "test.amp", text, strlen(text), &m) != OK ||
        verify_graph(m->graphs.data[0], STAGE_FUSED, &d) != OK ||
        lower_graph(m->graphs.data[0], x->ks, &d, &steps) != OK)
        FAIL("%s\n%s", d.text.data, text);
    s->step = steps[0];
    s->g = m->graphs.data[0];
}

Suite suite_lowered(const char *const *text, int n) {
    Suite x = {.a = arena_new()};
    x.ks = kernel_set_new(x.a, TARGET_CUDA, GPU_BLOCK_SHARED);
    for (int i = 0; i < n; i++) suite_add(&x, text[i]);
    return x;
}

Suite suite_new(const char *const *text, int n) {
    Suite x = suite_lowered(text, n);
    for (int i = 0; i < n; i++) subject_values(&x.s[i], x.a);
    return x;
}

void suite_free(Suite *x) {
    for (int i = 0; i < x->n; i++)
        for (int j = 1; x->s[i].data && j < x->s[i].g->values.len; j++)
            free(x->s[i].data[j]);
    arena_free(x->a);
}

/* ---- text ---------------------------------------------------------------- */

/* f<i>: the functor, called for all elements of the dense product `raw`. */
static void put_functor_kernel(const Kernel *k, StrBuf *sb) {
    int64_t rows = kernel_rows(k), cols = 1;
    int64_t tile = k->tile_rows ? k->tile_rows : rows;
    for (int d = 0; d < k->ndim; d++)
        if (k->dim[d].col) cols *= k->dim[d].extent;
    print_cuda_functor(k, sb);
    sb_printf(sb, "extern \"C\" __global__ void f%d(const float *raw, ",
              k->index);
    print_cuda_params(k, sb);
    sb_printf(sb,
              ")\n{\n    const long long e = (blockIdx.x * 256ll + "
              "threadIdx.x) * E%d::near;\n    const long long u = e / %lld;\n"
              "    const E%d store = ",
              k->index, (long long)cols, k->index);
    print_cuda_initializer(k, sb);
    sb_printf(
        sb,
        ";\n    if (e < %lld)\n        store(pack_load<E%d::near>(raw + e), "
        "u / %lld, u %% %lld, e %% %lld);\n}\n\n",
        (long long)(rows * cols), k->index, (long long)tile, (long long)tile,
        (long long)cols);
}

StrBuf suite_text(const Suite *x) {
    StrBuf sb = {0};
    print_cuda_head(&sb);
    for (int e = 0; e < 2; e++)
        for (int i = 0; i < kernel_set_count(x->ks, e); i++) {
            const Kernel *k = kernel_set_get(x->ks, e, i);
            if (e) {
                put_functor_kernel(k, &sb);
                continue;
            }
            if (k->form != KF_FOLD) print_cuda_kernel(k, false, &sb);
            if (!cuda_scratch(k)) print_cuda_many(k, false, &sb);
        }
    return sb;
}

SimTwin *twin_of_text(StrBuf sb) {
    char path[600], err[300];
    char *dir = sim_build_text(sb.data);
    snprintf(path, sizeof path, "%s/unit0.so", dir);
    SimTwin *t = sim()->twin_open(path, err, sizeof err);
    if (!t) FAIL("%s", err);
    free(dir);
    sb_free(&sb);
    return t;
}

SimTwin *twin_of(const Suite *x) { return twin_of_text(suite_text(x)); }

/* ---- running ------------------------------------------------------------- */

void add_arg(Args *p, void *value) {
    p->value[p->n] = value;
    p->slot[p->n] = &p->value[p->n];
    p->n++;
}

static void add_refs(const Subject *s, Args *p, const ValueId *refs, int n) {
    for (int i = 0; i < n; i++)
        add_arg(p, refs[i].i ? s->data[view_root(s->g, refs[i]).i] : NULL);
}

void cuda_launch(const Subject *s, SimTwin *t, char kind, const Kernel *k,
                 const char *suffix, CudaShape shape, Args *p) {
    char name[40];
    snprintf(name, sizeof name, "%c%d%s", kind, k->index, suffix);
    if (!shape.blocks) return;
    if (sim()->run(t, name, (unsigned)shape.blocks, (unsigned)shape.threads,
                   shape.shared, p->slot))
        FAIL("%s\n%s", sim()->errors(), s->text);
}

uint64_t put_row(const Subject *s, uint64_t *row, uint64_t first) {
    CudaShape shape = cuda_shape(s->step.kernel);
    int64_t n = s->step.pars[0];
    row[0] = first;
    row[1] = (uint64_t)s->step.pars[s->step.kernel->form == KF_FOLD];
    for (int i = 0; i < s->step.nref; i++)
        row[2 + i] = (uint64_t)(uintptr_t)s->data[s->step.refs[i].i];
    return first + (uint64_t)(shape.blocks ? shape.blocks
                                           : (n - 1) / shape.per_block + 1);
}

void run_many(const Subject *s, int n, SimTwin *t) {
    int width = 2 + s->step.nref;
    uint64_t blocks = 0, *table = block_new((size_t)(n * width) * 8);
    unsigned count = (unsigned)n;
    Args p = {0};
    for (int i = 0; i < n; i++)
        blocks = put_row(&s[i], table + width * i, blocks);
    add_arg(&p, table);
    p.slot[p.n++] = &count;
    CudaShape shape = cuda_shape(s->step.kernel);
    shape.blocks = (int64_t)blocks;
    cuda_launch(s, t, 'k', s->step.kernel, "_many", shape, &p);
    free(table);
}

void run_kernel(const Subject *s, SimTwin *t) {
    const Kernel *k = s->step.kernel;
    CudaShape shape = cuda_shape(k);
    uint64_t bytes = cuda_scratch(k);
    if (k->form == KF_FOLD) {
        run_many(s, 1, t);
        return;
    }
    void *sums = block_new(bytes);
    Args p = {0};
    add_refs(s, &p, s->step.refs, s->step.nref);
    if (k->form == KF_FLAT) {
        p.number = s->step.pars[0];
        p.slot[p.n++] = &p.number;
        shape.blocks = (p.number + shape.per_block - 1) / shape.per_block;
    }
    if (bytes) add_arg(&p, sums);
    cuda_launch(s, t, 'k', k, "", shape, &p);
    if (bytes) cuda_launch(s, t, 'k', k, "_2", cuda_finish_shape(k), &p);
    free(sums);
}

/* The CPU computes the product in fp32, then the epilogue. */
static void run_epilogue(const Subject *s, SimTwin *t) {
    const LoweredStep *st = &s->step;
    Args p = {0};
    int64_t pars[64];
    char *raw = block_new(1 << 16), *scratch = block_new(1 << 24);
    memcpy(pars, st->pars, (size_t)st->npar * sizeof *pars);
    pars[st->npar - 1] = AMPC_F32;
    void *a = s->data[st->refs[0].i], *b = s->data[st->refs[1].i];
    CpuEpilogue none = {0};
    if (st->lib == PLAN_LIB_GEMM)
        ampc_v2_level.gemm(AMPC_ISA_V2, NULL, (LibGemm *)pars, a, b, raw, &none,
                           scratch, NULL);
    else
        ampc_v2_level.conv_fwd(AMPC_ISA_V2, NULL, (LibConv *)pars, a, b, raw,
                               &none, scratch, NULL);
    add_arg(&p, raw);
    add_refs(s, &p, st->ep_refs, st->nep_ref);
    int64_t elements = kernel_rows(st->epilogue) * kernel_cols(st->epilogue);
    CudaShape shape = {.threads = 256, .blocks = elements / 256 + 1};
    cuda_launch(s, t, 'f', st->epilogue, "", shape, &p);
    free(raw);
    free(scratch);
}

static void run_step(const Subject *s, SimTwin *t) {
    if (s->step.kind == PLAN_KERNEL)
        run_kernel(s, t);
    else
        run_epilogue(s, t);
}

static size_t value_bytes(const Subject *s, ValueId v) {
    return (size_t)type_bytes(value_type(s->g, v));
}

/* Codes of NaN differ in its sign, which says nothing. */
static void drop_signs_of_nan(unsigned char *code, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (code[i] == 0xff) code[i] = 0x7f;
}

void check_outputs(Subject *s, Arena *a, const Evaluator *e) {
    for (int i = 0; i < s->g->outputs.len; i++) {
        ValueId v = s->g->outputs.data[i].value;
        const Tensor *want =
            eval_to_tensor(a, eval_get(e, v), value_get(s->g, v)->type);
        if (value_dtype(s->g, v) == DT_F8E4M3) {
            drop_signs_of_nan(want->data, value_bytes(s, v));
            drop_signs_of_nan(s->data[v.i], value_bytes(s, v));
        }
        if (!CHECK_MEM(want->data, s->data[v.i], value_bytes(s, v)))
            FAIL("in\n%s", s->text);
        memset(s->data[v.i], 0x55, value_bytes(s, v));
    }
}

Evaluator *cuda_interpret(Subject *s, Arena *a) {
    Diag d = {0};
    Evaluator *e = eval_new(s->g, a, EVAL_STORAGE);
    for (int i = 1; i < s->g->values.len; i++)
        if (s->in[i]) eval_bind(e, (ValueId){(uint32_t)i}, s->in[i]);
    if (eval_run(e, &d) != OK) FAIL("%s\n%s", d.text.data, s->text);
    return e;
}

/* A block for each warp's width of columns, and none without columns. */
static void check_finish(const Kernel *k) {
    if (!k || !cuda_scratch(k)) return;
    int64_t sums = kernel_column_sums(k), blocks = cuda_finish_shape(k).blocks;
    CHECK_MSG(32 * blocks >= sums * kernel_cols(k) &&
                  32 * (blocks - sums) < sums * kernel_cols(k),
              "%d blocks finish %d sums of %d columns", (int)blocks, (int)sums,
              (int)kernel_cols(k));
}

TEST_CASE(print_cuda, kernels_compute_what_the_interpreter_does) {
    Suite x = suite_new(cuda_graphs, cuda_ngraphs);
    SimTwin *t = twin_of(&x);
    for (int i = 0; i < x.n; i++) {
        Subject *s = &x.s[i];
        Evaluator *e = cuda_interpret(s, x.a);
        check_finish(s->step.kernel);
        for (unsigned seed = 0; seed < 3; seed++) {
            sim()->seed(seed);
            subject_load(s, x.a);
            run_step(s, t);
            check_outputs(s, x.a, e);
        }
    }
    sim()->twin_close(t);
    suite_free(&x);
}

/* ---- outputs over inputs ------------------------------------------------- */

/* The output overwrites input `in`. */
static void check_in_place(const char *text, int in) {
    Suite x = suite_new(&text, 1);
    Subject *s = &x.s[0];
    SimTwin *t = twin_of(&x);
    Evaluator *e = cuda_interpret(s, x.a);
    ValueId y = s->g->outputs.data[0].value, a = s->g->inputs.data[in];
    void *own = s->data[y.i];
    s->data[y.i] = s->data[a.i];
    for (unsigned seed = 0; seed < 4; seed++) {
        sim()->seed(seed);
        subject_load(s, x.a);
        run_step(s, t);
        check_outputs(s, x.a, e);
    }
    s->data[y.i] = own;
    sim()->twin_close(t);
    suite_free(&x);
}

TEST_CASE(print_cuda, outputs_may_lie_over_inputs) {
    check_in_place(cuda_graphs[1], 0);
    check_in_place(POINT("%a: f32[7,9], %b: f32[9]", "%y = sub %a, %b"), 0);
    check_in_place(ROW("%a: f32[9,70]",
                       "%m = reduce_max %a {axes=[1]} "
                       "%y = sub %a, %m",
                       "%y"),
                   0);
    check_in_place(ROW("%a: f32[2,30,40]",
                       "%m = reduce_max %a {axes=[1]} "
                       "%y = sub %a, %m",
                       "%y"),
                   0);
    check_in_place(ROW("%a: bf16[2,16408]",
                       "%c = slice %a {starts=[0,0], sizes=[2,16403], "
                       "steps=[1,1]} %m = reduce_max %c {axes=[1]} "
                       "%d = sub %c, %m : bf16[2,16403] "
                       "%y = pad %d {pads=[0,0,0,5]}",
                       "%y"),
                   0);
    /* a row's result over a row's input that other threads read */
    check_in_place(ROW("%a: f32[9,70], %r: f32[9,1]",
                       "%d = sub %a, %r "
                       "%y = reduce_sum %d {axes=[1]}",
                       "%y"),
                   1);
    check_in_place(ROW("%a: f32[2,2000], %r: f32[2,1]",
                       "%d = sub %a, %r "
                       "%y = reduce_sum %d {axes=[1]}",
                       "%y"),
                   1);
    check_in_place(ROW("%a: f32[40,33], %r: f32[1,33]",
                       "%d = sub %a, %r "
                       "%y = reduce_sum %d {axes=[0]}",
                       "%y"),
                   1);
}
