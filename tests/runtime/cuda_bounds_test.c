/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_bounds_test.c: every emitted kernel on buffers of exactly its size.

   The runtime puts all buffers into one allocation, where a kernel that reads
   or writes one element too many hits a neighbour and may go unnoticed. Here
   the kernels of the whole op collection (tests/ops) run one by one on the
   host, with each value in a separate block: a guard after every block must
   survive, and under the address sanitizer reading it is a fault. The
   results must equal the interpreter's, for three orders of threads and
   blocks. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "passes/device/fold.h"
#include "codegen/cuda/cuda.h"
#include "ir/text/text.h"
#include "passes/passes.h"
#include "tests/support/ops_bench.h"
#include "tests/support/simulate.h"

enum {
    GUARD = 64,
    GUARD_BYTE = 0xa5,
    ALIGN = 256,
    NOTHING = 0x7f,
    PER_UNIT = 400
};

/* One plan step as launches. */
typedef struct Item {
    const LoweredStep *s;
    int lib; /* number of l<lib>, -1 for a kernel */
    int unit;
    CudaLib launch;
} Item;

typedef struct Bounds {
    OpsBench b;
    Graph *g;
    KernelSet *ks;
    LoweredStep *steps;
    Item *items;
    int n, nunit;
    StrBuf *unit;
    bool guarded;         /* kernels have the next two parameters, too */
    unsigned char *truth; /* NULL: kernels always run */
    unsigned unless;
    void **data;   /* by ValueId.i of roots: address of its block */
    size_t *bytes; /* by ValueId.i */
    char dir[512];
} Bounds;

/* ---- blocks -------------------------------------------------------------- */

#ifdef __SANITIZE_ADDRESS__
enum { ROOM = 0 }; /* the sanitizer guards every byte */
#else
enum { ROOM = GUARD };
#endif

static void *block_new(size_t bytes) {
    void *p;
    REQUIRE(posix_memalign(&p, ALIGN, bytes + ROOM + !(bytes + ROOM)) == 0);
    memset(p, NOTHING, bytes);
    memset((char *)p + bytes, GUARD_BYTE, ROOM);
    return p;
}

static bool guard_intact(const void *p, size_t bytes) {
    for (int i = 0; i < ROOM; i++)
        if (((const unsigned char *)p)[bytes + (size_t)i] != GUARD_BYTE)
            return false;
    return true;
}

static void make_blocks(Bounds *x) {
    int n = x->g->values.len;
    x->data = NEW_ARRAY(x->b.a, void *, n);
    x->bytes = NEW_ARRAY(x->b.a, size_t, n);
    for (int i = 1; i < n; i++) {
        const Value *v = &x->g->values.data[i];
        x->bytes[i] = (size_t)type_bytes(type_get(v->type));
        x->data[i] = block_new(x->bytes[i]);
        if (v->kind == VK_CONST) memcpy(x->data[i], v->data->data, x->bytes[i]);
    }
}

static void fill_inputs(Bounds *x, const OpsData *d) {
    for (int i = 0; i < d->nin; i++)
        memcpy(x->data[x->g->inputs.data[i].i], d->in[i].data, d->in[i].bytes);
}

/* ---- text ---------------------------------------------------------------- */

static StrBuf *unit_for(Bounds *x, int item, int *unit) {
    *unit = item / PER_UNIT;
    if (x->unit[*unit].len == 0) print_cuda_head(&x->unit[*unit]);
    return &x->unit[*unit];
}

/* A copy, done by the driver. */
static bool is_copy(const Item *t) {
    return t->lib >= 0 && t->s->lib == PLAN_LIB_COPY;
}

/* Kernels are shared: each is printed where it is first used; a functor is
   printed in every unit that uses it. */
static void print_items(Bounds *x) {
    int *where = NEW_ARRAY(x->b.a, int, kernel_set_count(x->ks, false) + 1);
    int *functor = NEW_ARRAY(x->b.a, int, kernel_set_count(x->ks, true) + 1);
    for (int i = 0; i < x->n; i++) {
        Item *t = &x->items[i];
        t->s = &x->steps[i];
        t->lib = t->s->kind == PLAN_LIB ? i : -1;
        if (is_copy(t)) continue;
        StrBuf *sb = unit_for(x, i, &t->unit);
        if (t->lib >= 0) {
            int *at =
                t->s->epilogue ? &functor[kernel_index(t->s->epilogue)] : NULL;
            if (at && *at != t->unit + 1)
                print_cuda_functor(t->s->epilogue, sb);
            if (at) *at = t->unit + 1;
            print_cuda_lib(t->s, i, x->guarded, sb, &t->launch);
            continue;
        }
        int *seen = &where[kernel_index(t->s->kernel)];
        if (*seen) {
            t->unit = *seen - 1;
            continue;
        }
        *seen = t->unit + 1;
        (t->s->kernel->form == KF_FOLD ? print_cuda_many : print_cuda_kernel)(
            t->s->kernel, x->guarded, sb);
    }
}

static void write_units(Bounds *x) {
    static int serial;
    char path[600];
    snprintf(x->dir, sizeof x->dir, "%s/units%d", test_tmpdir(), serial++);
    REQUIRE(test_command(NULL, "mkdir -p %s", x->dir) == 0);
    for (int i = 0; i < x->nunit; i++) {
        snprintf(path, sizeof path, "%s/unit%d.cu", x->dir, i);
        REQUIRE(test_write_file(path, x->unit[i].data, x->unit[i].len));
    }
    REQUIRE(sim_build_twins(x->dir) == x->nunit);
}

/* ---- steps that are left out --------------------------------------------- */

static bool left_out(const Bounds *x) {
    return x->truth && (*x->truth != 0) == x->unless;
}

static bool untouched(const void *p, size_t bytes) {
    for (size_t i = 0; p && i < bytes; i++)
        if (((const unsigned char *)p)[i] != NOTHING) return false;
    return true;
}

static void check_scratch(const Bounds *x, const Item *t, const void *scratch,
                          size_t bytes) {
    CHECK_MSG(!left_out(x) || untouched(scratch, bytes),
              "%s is left out and writes its scratch", t->s->name);
}

/* ---- running ------------------------------------------------------------- */

typedef struct Params {
    void *value[128];
    void *slot[128];
    int64_t n;
    int count;
} Params;

static void add_refs(Bounds *x, Params *p, const ValueId *refs, int n) {
    for (int i = 0; i < n; i++) {
        REQUIRE(p->count < 120);
        ValueId v = refs[i];
        p->value[p->count] = is_value(v) ? x->data[view_root(x->g, v).i] : NULL;
        p->slot[p->count] = &p->value[p->count];
        p->count++;
    }
}

static void add_guard(Bounds *x, Params *p) {
    if (!x->guarded) return;
    p->slot[p->count++] = &x->truth;
    p->slot[p->count++] = &x->unless;
}

static void launch(const Item *t, SimTwin *twin, const char *name,
                   int64_t blocks, int threads, unsigned shared, Params *p) {
    int rc = sim()->run(twin, name, (unsigned)blocks, (unsigned)threads, shared,
                        p->slot);
    if (rc) FAIL("%s (%s): %s", t->s->name, name, sim()->errors());
}

/* A launch for one tensor, from a table with one row. */
static void run_fold(Bounds *x, const Item *t, SimTwin *twin) {
    CudaShape shape = cuda_shape(t->s->kernel);
    uint64_t *table = block_new((size_t)(2 + t->s->nref) * sizeof *table);
    void *at = table;
    unsigned one = 1;
    Params p = {.slot = {&at, &one}, .count = 2};
    char name[32];
    add_guard(x, &p);
    snprintf(name, sizeof name, "k%d_many", kernel_index(t->s->kernel));
    table[0] = 0;
    table[1] = (uint64_t)t->s->pars[1];
    for (int i = 0; i < t->s->nref; i++)
        table[2 + i] =
            (uint64_t)(uintptr_t)x->data[view_root(x->g, t->s->refs[i]).i];
    launch(t, twin, name, t->s->pars[0], shape.threads, shape.shared, &p);
    free(table);
}

static void run_kernel(Bounds *x, const Item *t, SimTwin *twin) {
    CudaShape shape = cuda_shape(t->s->kernel);
    char name[32];
    Params p = {0};
    if (t->s->kernel->form == KF_FOLD) {
        run_fold(x, t, twin);
        return;
    }
    snprintf(name, sizeof name, "k%d", kernel_index(t->s->kernel));
    add_refs(x, &p, t->s->refs, t->s->nref);
    if (shape.blocks == 0) {
        p.n = t->s->pars[0];
        p.slot[p.count++] = &p.n;
        shape.blocks = (p.n + shape.per_block - 1) / shape.per_block;
    }
    uint64_t bytes = cuda_scratch(t->s->kernel);
    void *sums = bytes ? block_new(bytes) : NULL;
    if (sums) {
        p.value[p.count] = sums;
        p.slot[p.count] = &p.value[p.count];
        p.count++;
    }
    add_guard(x, &p);
    if (shape.blocks)
        launch(t, twin, name, shape.blocks, shape.threads, shape.shared, &p);
    if (!sums) return;
    shape = cuda_finish_shape(t->s->kernel);
    strcat(name, "_2");
    launch(t, twin, name, shape.blocks, shape.threads, 0, &p);
    CHECK_MSG(guard_intact(sums, bytes), "%s: past its sums", t->s->name);
    check_scratch(x, t, sums, bytes);
    free(sums);
}

static void run_lib(Bounds *x, const Item *t, SimTwin *twin) {
    char name[32];
    Params p = {0};
    void *scratch = t->launch.scratch ? block_new(t->launch.scratch) : NULL;
    add_refs(x, &p, t->s->refs, t->s->nref);
    add_refs(x, &p, t->s->ep_refs, t->s->nep_ref);
    if (scratch) {
        p.value[p.count] = scratch;
        p.slot[p.count] = &p.value[p.count];
        p.count++;
    }
    add_guard(x, &p);
    const CudaShape *l[] = {&t->launch.first, &t->launch.second};
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, i ? "l%d_2" : "l%d", t->lib);
        if (l[i]->threads)
            launch(t, twin, name, l[i]->blocks, l[i]->threads, l[i]->shared,
                   &p);
    }
    if (scratch)
        CHECK_MSG(guard_intact(scratch, t->launch.scratch),
                  "%s: past its scratch", t->s->name);
    check_scratch(x, t, scratch, t->launch.scratch);
    free(scratch);
}

static void run_copy(Bounds *x, const Item *t) {
    Params p = {0};
    add_refs(x, &p, t->s->refs, t->s->nref);
    memcpy(p.value[1], p.value[0], (size_t)t->s->pars[0]);
}

static void check_guards(Bounds *x, const Item *t) {
    for (int k = 0; k < 2; k++) {
        const ValueId *refs = k ? t->s->ep_refs : t->s->refs;
        int n = k ? t->s->nep_ref : t->s->nref;
        for (int i = 0; i < n; i++) {
            if (!is_value(refs[i])) continue;
            uint32_t root = view_root(x->g, refs[i]).i;
            CHECK_MSG(guard_intact(x->data[root], x->bytes[root]),
                      "%s writes past the end of %s", t->s->name,
                      x->g->values.data[root].name);
        }
    }
}

static void run_items(Bounds *x, SimTwin **twins) {
    for (int i = 0; i < x->n; i++) {
        const Item *t = &x->items[i];
        if (is_copy(t) && left_out(x)) /* the driver copies in any case */
            continue;
        else if (is_copy(t))
            run_copy(x, t);
        else if (t->lib >= 0)
            run_lib(x, t, twins[t->unit]);
        else
            run_kernel(x, t, twins[t->unit]);
        check_guards(x, t);
    }
}

static void take_outputs(Bounds *x, OpsData *d) {
    for (int i = 0; i < d->nout; i++) {
        ValueId v = view_root(x->g, x->g->outputs.data[i].value);
        memcpy(d->out[i].data, x->data[v.i], d->out[i].bytes);
    }
}

/* ---- the test ------------------------------------------------------------ */

static void lower_all(Bounds *x) {
    Diag d = {0};
    Options opt;
    options_init(&opt, x->b.a);
    if (run_passes(x->b.m, &d, &opt,
                   "inline,canon,reduce,simplify,cse,dce,inline,fuse,schedule",
                   false) != OK)
        FAIL("%s", d.text.data);
    x->g = x->b.all;
    x->ks = kernel_set_new(x->b.a, TARGET_CUDA, GPU_BLOCK_SHARED);
    x->n = x->g->groups.len;
    x->items = NEW_ARRAY(x->b.a, Item, x->n);
    x->nunit = (x->n + PER_UNIT - 1) / PER_UNIT;
    x->unit = NEW_ARRAY(x->b.a, StrBuf, x->nunit);
    if (lower_graph(x->g, x->ks, &d, &x->steps) != OK) FAIL("%s", d.text.data);
}

static SimTwin **open_twins(Bounds *x) {
    SimTwin **twins = NEW_ARRAY(x->b.a, SimTwin *, x->nunit);
    char path[600], err[256];
    sim_twins_compile_fast();
    write_units(x);
    for (int i = 0; i < x->nunit; i++) {
        snprintf(path, sizeof path, "%s/unit%d.so", x->dir, i);
        twins[i] = sim()->twin_open(path, err, sizeof err);
        if (!twins[i]) FAIL("%s", err);
    }
    return twins;
}

static void bounds_end(Bounds *x, SimTwin **twins) {
    for (int i = 0; i < x->nunit; i++) sim()->twin_close(twins[i]);
    for (int i = 1; i < x->g->values.len; i++) free(x->data[i]);
    for (int i = 0; i < x->nunit; i++) sb_free(&x->unit[i]);
    arena_free(x->b.a);
}

/* Nothing is written where the truth value leaves a step out. */
static void run_left_out(Bounds *x, SimTwin **twins) {
    unsigned char truth;
    x->truth = &truth;
    for (x->unless = 0; x->unless < 2; x->unless++) {
        truth = (unsigned char)x->unless;
        run_items(x, twins);
        for (int i = 1; i < x->g->values.len; i++)
            if (x->g->values.data[i].kind == VK_RESULT)
                CHECK_MSG(untouched(x->data[i], x->bytes[i]),
                          "%s is left out and written",
                          x->g->values.data[i].name);
    }
    x->truth = NULL;
}

/* The kernels of steps that may be left out: they run without a truth value,
   if it is true, and unless it is true. */
TEST_CASE(cuda_bounds, kernels_of_all_ops_stay_inside_their_buffers) {
    /* kernels of f16 and of bf16 access the same bytes */
    Bounds x = {.b = ops_bench_without("f16"), .guarded = true};
    Diag diag = {0};
    /* the interpreter runs before the passes change the graph */
    Evaluator *e = eval_new(x.b.all, x.b.a, EVAL_STORAGE);
    OpsData d = ops_data_new(&x.b, e);
    if (eval_run(e, &diag) != OK) FAIL("%s", diag.text.data);
    const EvalTensor **want = ops_wanted(&x.b, e);
    lower_all(&x);
    print_items(&x);
    SimTwin **twins = open_twins(&x);
    make_blocks(&x);
    fill_inputs(&x, &d);
    run_left_out(&x, twins);
    for (unsigned seed = 1; seed <= 3; seed++) {
        unsigned char truth = seed == 2;
        sim()->seed(seed);
        x.truth = seed == 1 ? NULL : &truth;
        x.unless = seed == 3;
        fill_inputs(&x, &d);
        run_items(&x, twins);
        take_outputs(&x, &d);
        ops_compare(&x.b, want, &d);
    }
    CHECK_STR(sim()->errors(), "");
    bounds_end(&x, twins);
}

/* ---- large offsets ------------------------------------------------------- */

static void bounds_of_text(Bounds *x, const char *text) {
    Diag d = {0};
    *x = (Bounds){.b = {.a = arena_new()}};
    if (parse_module(x->b.a, &d, "t.amp", text, strlen(text), &x->b.m) != OK)
        FAIL("%s", d.text.data);
    x->b.all = x->b.m->graphs.data[0];
    lower_all(x);
    print_items(x);
}

/* 12 GB; the test touches a few pages of them: offsets need more than 32
   bits, in a kernel over elements and in one over rows. */
TEST_CASE(cuda_bounds, offsets_beyond_32_bits) {
    static const char text[] =
        "graph predict(%x: f32[3,1073741824]) {\n"
        "  %y = slice %x {sizes=[3,4], starts=[0,7], steps=[1,268435456]} : "
        "f32[3,4]\n"
        "  %s = reduce_sum %y {axes=[1], keepdims=1} : f32[3,1]\n"
        "  return y=%y, s=%s\n"
        "}\n";
    enum { ROWS = 3, COLS = 4 };
    const size_t row = (size_t)1 << 30, step = (size_t)1 << 28;
    Bounds x;
    bounds_of_text(&x, text);
    SimTwin **twins = open_twins(&x);
    float *huge = mmap(NULL, ROWS * row * sizeof *huge, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (huge == MAP_FAILED) SKIP("no 12 GB of address space");
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++)
            huge[(size_t)r * row + (size_t)c * step + 7] =
                (float)(10 * r + c + 1);
    x.data = NEW_ARRAY(x.b.a, void *, x.g->values.len);
    for (int i = 1; i < x.g->values.len; i++)
        x.data[i] = i == (int)x.g->inputs.data[0].i ? huge : block_new(64);
    for (int i = 0; i < x.n; i++)
        run_kernel(&x, &x.items[i], twins[x.items[i].unit]);
    const float *y = x.data[view_root(x.g, x.g->outputs.data[0].value).i];
    const float *s = x.data[view_root(x.g, x.g->outputs.data[1].value).i];
    for (int r = 0; r < ROWS; r++) {
        CHECK_NEAR(s[r], 4 * (10 * r) + 10, 0);
        for (int c = 0; c < COLS; c++)
            CHECK_NEAR(y[r * COLS + c], 10 * r + c + 1, 0);
    }
    CHECK_STR(sim()->errors(), "");
    x.data[x.g->inputs.data[0].i] = NULL;
    munmap(huge, ROWS * row * sizeof *huge);
    bounds_end(&x, twins);
}

/* ---- a mistake of that kind ---------------------------------------------- */

/* Turns "e >= N" into "e > N": one thread too many computes. */
static void one_too_many(StrBuf *text) {
    static const char test[] = "if (e >= ";
    char *p = strstr(text->data, test);
    REQUIRE(p);
    memcpy(p, "if (e >  ", sizeof test - 1);
}

/* Runs in a child process, which the sanitizer may end; returns whether the
   guard was hit. */
static bool mistake_is_seen(Bounds *x, SimTwin **twins) {
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        const Item *t = &x->items[0];
        run_kernel(x, t, twins[0]);
        _exit(guard_intact(x->data[view_root(x->g, t->s->refs[0]).i],
                           x->bytes[view_root(x->g, t->s->refs[0]).i]) &&
                      guard_intact(x->data[view_root(x->g, t->s->refs[1]).i],
                                   x->bytes[view_root(x->g, t->s->refs[1]).i])
                  ? 0
                  : 3);
    }
    REQUIRE(waitpid(child, &status, 0) == child);
    return status != 0;
}

TEST_CASE(cuda_bounds, an_index_one_past_the_end_is_seen) {
    static const char text[] = "graph predict(%x: f32[7,9]) {\n"
                               "  %y = transpose %x {perm=[1,0]} : f32[9,7]\n"
                               "  return y=%y\n"
                               "}\n";
    for (int mistake = 0; mistake < 2; mistake++) {
        Bounds x;
        bounds_of_text(&x, text);
        REQUIRE(x.n == 1);
        if (mistake) one_too_many(&x.unit[0]);
        SimTwin **twins = open_twins(&x);
        make_blocks(&x);
        CHECK_EQ_INT(mistake_is_seen(&x, twins), mistake);
        bounds_end(&x, twins);
    }
}
