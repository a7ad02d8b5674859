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

#include "codegen/cuda/cuda.h"
#include "runtime/program/lib.h"
#include "tests/support/cpu_levels.h"
#include "tests/support/simulate.h"

/* ---- graphs -------------------------------------------------------------- */

#define POINT(in, nodes)                                                       \
    "graph g(" in ") { group point { " nodes " } return %y }"
#define ROW(in, nodes, out)                                                    \
    "graph g(" in ") { group row { " nodes " } return " out " }"
#define ANCHOR(in, nodes, out)                                                 \
    "graph g(" in ") { group anchor { " nodes " } return " out " }"

static const char *const graphs[] = {
    /* flat: whole vectors, remainders, one element, widths, scalars */
    POINT("%a: f32[4096], %b: f32[4096]", "%y = add %a, %b"),
    POINT("%a: f32[1027], %b: f32[1027]", "%y = sub %a, %b"),
    POINT("%a: f32[1025], %b: f32[1025]", "%y = mul %a, %b"),
    POINT("%a: bf16[2,1031], %b: bf16[2,1031]", "%y = max %a, %b"),
    POINT("%a: f16[15]", "%y = neg %a"),
    POINT("%a: u8[70]", "%y = add %a, %a"),
    POINT("%a: f64[513], %b: f32[513]", "%c = mul %b, %b %y = sub %a, %c"),
    POINT("%a: i64[1000], %b: bool[1000]", "%y = where %b, %a, %a"),
    POINT("%a: f32[1003], %s: f32[], %b: bf16[1003]",
          "%c = mul %a, %s %y = add %c, %b : bf16[1003]"),
    POINT("%a: f32[300]", "%i = iota {axis=0} : f32[300] %y = add %a, %i"),
    POINT("%a: f32[300]", "%y = slice %a {starts=[5], sizes=[290], steps=[1]}"),
    POINT("%a: f32[300]", "%y = slice %a {starts=[8], sizes=[290], steps=[1]}"),
    POINT("%a: f32[300]", "%y = pad %a {pads=[3,6], value=2}"),
    /* an element each */
    POINT("%a: f32[33,70]", "%y = transpose %a {perm=[1,0]}"),
    POINT("%a: bf16[2,3,4,5], %b: bf16[3,1,5]", "%y = mul %a, %b"),
    POINT("%a: f32[30,20], %b: f32[30,7]", "%y = concat %a, %b {axis=1}"),
    POINT("%a: f32[9,8], %i: i64[5]", "%y = gather %a, %i {axis=0}"),
    POINT("%a: f32[4,5]", "%y = pad %a {pads=[1,2,3,0], mode=\"reflect\"}"),
    POINT("%a: f32[], %b: f32[]", "%y = add %a, %b"),
    /* neighbours along the innermost dimension, aligned and not */
    POINT("%a: bf16[3,4,8,16], %b: bf16[4,1,16]", "%y = mul %a, %b"),
    POINT("%a: f32[6,24]",
          "%y = slice %a {starts=[1,8], sizes=[4,16], steps=[1,1]}"),
    POINT("%a: f32[6,24]",
          "%y = slice %a {starts=[1,3], sizes=[4,16], steps=[1,1]}"),
    POINT("%a: f32[5,12]", "%y = pad %a {pads=[0,0,0,4]}"),
    POINT("%a: bf16[2,3,16], %b: f32[2,1,1]",
          "%c = mul %a, %b : f32[2,3,16] %y = sub %c, %a : bf16[2,3,16]"),
    POINT("%a: f32[0,4]", "%y = neg %a"),
    /* a row by lanes */
    ROW("%a: f32[9,1]", "%y = reduce_sum %a {axes=[1]}", "%y"),
    ROW("%a: f32[7,3]", "%y = reduce_sum %a {axes=[1]}", "%y"),
    ROW("%a: bf16[100,10]", "%y = reduce_max %a {axes=[1]}", "%y"),
    ROW("%a: f32[33,32]", "%y = reduce_min %a {axes=[1]}", "%y"),
    ROW("%a: i64[5,40]",
        "%y = reduce_sum %a {axes=[1]} "
        "%m = reduce_max %a {axes=[1]}",
        "%y, %m"),
    ROW("%a: f64[3,1000]", "%y = reduce_sum %a {axes=[1]}", "%y"),
    ROW("%a: f32[4,3,5,6]", "%y = reduce_sum %a {axes=[1,3]}", "%y"),
    ROW("%a: f32[17,50], %r: f32[17,1]",
        "%m = reduce_max %a {axes=[1]} %d = sub %a, %m "
        "%s = reduce_sum %d {axes=[1]} %t = add %s, %r %y = mul %d, %t",
        "%y, %s, %d, %t"),
    /* values of the row held for later sweeps: vectors, remainders, two
       column dimensions, teams without a row */
    ROW("%a: bf16[5,64], %b: f32[64]",
        "%c = add %a, %b : f32[5,64] %m = reduce_max %c {axes=[1]} "
        "%d = sub %c, %m %s = reduce_sum %d {axes=[1]} "
        "%y = mul %d, %s : bf16[5,64]",
        "%y, %s"),
    ROW("%a: f32[9,720], %r: f32[9,1]",
        "%m = reduce_max %a {axes=[1]} %d = sub %a, %m "
        "%s = reduce_sum %d {axes=[1]} %t = add %s, %r %y = add %d, %t",
        "%y, %s"),
    ROW("%a: f32[2,2056]",
        "%m = reduce_max %a {axes=[1]} %d = sub %a, %m "
        "%s = reduce_sum %d {axes=[1]} %y = add %d, %s",
        "%y"),
    ROW("%a: f32[2,6,5,8]",
        "%m = reduce_max %a {axes=[1,3]} %d = sub %a, %m "
        "%s = reduce_sum %d {axes=[1,3]} %y = mul %d, %s",
        "%y, %s"),
    /* by a block */
    ROW("%a: f32[3,1025]", "%y = reduce_sum %a {axes=[1]}", "%y"),
    ROW("%a: bf16[2,5000]",
        "%m = reduce_max %a {axes=[1]} %d = sub %a, %m "
        "%s = reduce_sum %d {axes=[1]} : f32[2,1] %y = add %s, %d : "
        "f32[2,5000]",
        "%y, %s"),
    ROW("%a: f32[70,80]", "%y = reduce_sum %a {axes=[0,1]}", "%y"),
    /* rows that stay in shared memory: vectors, cut rows stored with zeros
       after them, element by element; and one that is too long */
    ROW("%a: bf16[2,16400], %b: bf16[2,16400]",
        "%m = reduce_max %a {axes=[1]} %d = sub %a, %m : f32[2,16400] "
        "%e = add %d, %b : f32[2,16400] %s = reduce_sum %e {axes=[1]} "
        "%y = sub %e, %s : f32[2,16400]",
        "%y"),
    ROW("%a: bf16[70,2,300]",
        "%m = reduce_max %a {axes=[0,2]} %d = sub %a, %m : f32[70,2,300] "
        "%y = reduce_sum %d {axes=[0,2]}",
        "%y, %m"),
    ROW("%a: bf16[2,16408]",
        "%c = slice %a {starts=[0,0], sizes=[2,16403], steps=[1,1]} "
        "%m = reduce_max %c {axes=[1]} %d = sub %c, %m : bf16[2,16403] "
        "%y = pad %d {pads=[0,0,0,5]}",
        "%y, %m"),
    ROW("%a: f32[2,16401]",
        "%m = reduce_max %a {axes=[1]} %d = sub %a, %m "
        "%y = pad %d {pads=[0,0,0,2]}",
        "%y"),
    ROW("%a: f32[1,30000]", "%m = reduce_max %a {axes=[1]} %y = sub %a, %m",
        "%y"),
    ROW("%a: bf16[6,40]",
        "%c = slice %a {starts=[0,0], sizes=[6,33], steps=[1,1]} "
        "%m = reduce_max %c {axes=[1]} %d = sub %c, %m : bf16[6,33] "
        "%y = pad %d {pads=[0,0,0,7]}",
        "%y"),
    /* neighbouring rows */
    ROW("%a: f32[40,35]", "%y = reduce_sum %a {axes=[0]}", "%y"),
    ROW("%a: bf16[600,64]", "%y = reduce_max %a {axes=[0]}", "%y"),
    ROW("%a: f64[6,9]", "%y = reduce_min %a {axes=[0]}", "%y"),
    ROW("%a: i32[3,40,33]", "%y = reduce_sum %a {axes=[1]}", "%y"),
    ROW("%a: f32[2,30,70]",
        "%m = reduce_max %a {axes=[1]} %d = sub %a, %m "
        "%s = reduce_sum %d {axes=[1]} %y = mul %d, %s",
        "%y, %s"),
    /* sums over the rows beside other work on each row: vectors and
       remainders, two row dimensions, several rows of a warp, rows of a
       block, few rows, and more rows than there are blocks */
    ROW("%a: bf16[4,70,64], %g: f32[64]",
        "%c = mul %a, %g : f32[4,70,64] %m = reduce_sum %c {axes=[2]} "
        "%y = sub %c, %m %s = reduce_sum %a {axes=[0,1]} : f32[1,1,64] "
        "%u = reduce_sum %y {axes=[0,1]}",
        "%y, %s, %u, %m"),
    ROW("%a: f32[37,5]",
        "%s = reduce_sum %a {axes=[0]} %m = reduce_max %a {axes=[1]} "
        "%y = sub %a, %m",
        "%y, %s"),
    ROW("%a: f32[30,1501], %b: f32[30,1501]",
        "%m = reduce_max %a {axes=[1]} %d = sub %b, %m "
        "%y = reduce_sum %d {axes=[0]} %s = reduce_sum %b {axes=[0]}",
        "%y, %s, %m"),
    ROW("%a: bf16[3,4100]",
        "%m = reduce_max %a {axes=[1]} %y = sub %a, %m "
        "%s = reduce_sum %y {axes=[0]} : bf16[1,4100]",
        "%y, %s"),
    ROW("%a: f32[5001,3]",
        "%m = reduce_max %a {axes=[1]} %y = sub %a, %m "
        "%s = reduce_sum %y {axes=[0]}",
        "%y, %s"),
    ROW("%a: f32[6,50,12], %r: f32[50,12]",
        "%c = mul %a, %r %m = reduce_min %c {axes=[2]} "
        "%d = add %c, %m %y = reduce_sum %d {axes=[0,1]}",
        "%y, %m"),
    /* nothing to fold, nothing at all */
    ROW("%a: f32[3,0]",
        "%y = reduce_sum %a {axes=[1]} "
        "%m = reduce_max %a {axes=[1]}",
        "%y, %m"),
    ROW("%a: f32[0,30]", "%y = reduce_sum %a {axes=[1]}", "%y"),
    /* epilogues */
    ANCHOR("%a: f32[5,7], %w: f32[7,30], %b: f32[30]",
           "%z = matmul %a, %w %c = add %z, %b %y = relu %c", "%y, %c"),
    ANCHOR("%a: bf16[2,3,4,6], %w: bf16[6,20], %r: f32[3,1,20]",
           "%z = matmul %a, %w : f32[2,3,4,20] %y = add %z, %r", "%y"),
    ANCHOR("%a: f32[3,4,6], %w: f32[3,6,5], %r: f32[3,1,1]",
           "%z = matmul %a, %w %y = mul %z, %r", "%y"),
    ANCHOR("%a: f32[2,4,5,6], %w: f32[3,4,1,1], %q: f32[5,1], "
           "%r: f32[2,1,1,6]",
           "%z = conv %a, %w %c = add %z, %q %y = mul %c, %r", "%y"),
    /* neighbours along a row, with every second pair unaligned */
    POINT("%a: f32[6,26]",
          "%y = slice %a {starts=[0,8], sizes=[4,16], steps=[1,1]}"),
    /* neighbours that exist only partly, or whose index is read */
    POINT("%a: bf16[4,2,16], %b: bf16[4,3,16]",
          "%c = neg %a %y = concat %c, %b {axis=1}"),
    POINT("%a: f32[4,8]", "%y = pad %a {pads=[1,0,2,0], value=2}"),
    POINT("%a: f32[9,6], %i: i64[2,5]", "%y = gather %a, %i {axis=0}"),
    POINT("%a: bf16[3,9,8], %i: i64[5]", "%y = gather %a, %i {axis=1}"),
    /* neighbouring rows, several of them per lane: 16 bytes of 2, 4 and 8,
       two folds and the operations after them, stores, an absent part, a
       part read element by element */
    ROW("%a: bf16[66,3,1024]",
        "%y = reduce_sum %a {axes=[1]} : bf16[66,1,1024]", "%y"),
    ROW("%a: bf16[132,2,512], %b: f32[132,2,1]",
        "%c = mul %a, %b : bf16[132,2,512] %m = reduce_max %a {axes=[1]} : "
        "f32[132,1,512] "
        "%s = reduce_sum %c {axes=[1]} : f32[132,1,512] "
        "%y = mul %s, %m : f32[132,1,512]",
        "%y, %c, %m"),
    ROW("%a: f32[88,2,384]",
        "%c = pad %a {pads=[0,1,0,0,0,0], value=2} "
        "%y = reduce_sum %c {axes=[1]}",
        "%y"),
    ROW("%a: f64[132,2,128]", "%y = reduce_min %a {axes=[1]}", "%y"),
    ROW("%a: f32[132,2,256], %b: f32[132,2,256], %t: f32[132,256,2]",
        "%u = transpose %t {perm=[0,2,1]} %c = add %a, %b %d = mul %c, %u "
        "%y = reduce_sum %d {axes=[1]}",
        "%y"),
    /* neighbouring rows with row values, read before and after the folds */
    ROW("%a: bf16[264,3,256], %g: f32[256], %h: bf16[264,1,256]",
        "%n = neg %g %d = mul %a, %n : f32[264,3,256] "
        "%e = add %d, %h : f32[264,3,256] %b = cast %e : bf16[264,3,256] "
        "%s = reduce_sum %e {axes=[1]} : f32[264,1,256] "
        "%t = mul %s, %n : f32[264,1,256] %y = add %t, %h : f32[264,1,256]",
        "%y, %b"),
    ROW("%a: f32[264,2,128], %g: f32[264,1,128]",
        "%i = iota {axis=2} : i64[264,1,128] %j = cast %i : f32[264,1,128] "
        "%e = max %a, %j : f32[264,2,128] "
        "%s = reduce_max %e {axes=[1]} : f32[264,1,128] "
        "%y = add %s, %g : f32[264,1,128]",
        "%y"),
    /* transposed operands, or operands under a guard, are read element by
       element
     */
    ROW("%a: f32[264,2,128], %g: f32[264,128,1]",
        "%t = transpose %g {perm=[0,2,1]} %e = add %a, %t "
        "%y = reduce_max %e {axes=[1]}",
        "%y"),
    ROW("%a: f32[264,2,128], %g: f32[264,1,124]",
        "%t = pad %g {pads=[0,0,4,0,0,0]} %e = add %a, %t "
        "%y = reduce_max %e {axes=[1]}",
        "%y"),
    ROW("%a: bf16[301,70], %b: f32[1,70]",
        "%s = reduce_sum %a {axes=[0]} : f32[1,70] "
        "%m = reduce_max %a {axes=[0]} : f32[1,70] %t = mul %s, %b : f32[1,70] "
        "%y = add %t, %m : f32[1,70]",
        "%y"),
    /* short rows: a vector for each of few lanes, an incomplete one at the
       end */
    ROW("%a: bf16[70,64], %b: bf16[70,64]",
        "%p = mul %a, %b : f32[70,64] "
        "%y = reduce_sum %p {axes=[1]} : f32[70,1]",
        "%y"),
    ROW("%a: bf16[37,5,40]",
        "%m = reduce_max %a {axes=[2]} : f32[37,5,1] "
        "%y = sub %a, %m : bf16[37,5,40]",
        "%y"),
    ROW("%a: bf16[300,8]", "%y = reduce_sum %a {axes=[1]} : f32[300,1]", "%y"),
    ROW("%a: f32[33,100]", "%m = reduce_mean %a {axes=[1]} %y = sub %a, %m",
        "%y"),
    ROW("%a: f32[700,24]",
        "%m = reduce_sum %a {axes=[1]} %y = mul %a, %m : f32[700,24] "
        "%s = reduce_sum %a {axes=[0]}",
        "%y, %s"),
    /* columns are compared in 32 bits with 64-bit numbers */
    ROW("%a: f32[40,70], %k: i64[40,1], %t: bool[40,1]",
        "%i = iota {axis=1} : i64[40,70] %c = cast %t : f32[40,1] "
        "%g = mul %c, 4294967296 %h = cast %g : i64[40,1] "
        "%w = add %h, %k %e = equal %w, %i "
        "%f = where %e, %a, 0 %y = reduce_sum %f {axes=[1]}",
        "%y"),
    ROW("%a: bf16[2,33008], %k: i64[2,1]",
        "%c = slice %a {starts=[0,0], sizes=[2,33003], steps=[1,1]} "
        "%i = iota {axis=1} : i64[2,33003] %e = equal %i, %k "
        "%m = reduce_max %c {axes=[1]} %d = sub %c, %m : bf16[2,33003] "
        "%f = where %e, %d, 0 : bf16[2,33003] "
        "%y = pad %f {pads=[0,0,0,5]}",
        "%y"),
    /* short rows, several of a warp */
    ROW("%a: bf16[8451,49], %g: f32[49]",
        "%m = reduce_max %a {axes=[1]} %d = sub %a, %m : f32[8451,49] "
        "%e = mul %d, %g : f32[8451,49] %s = reduce_sum %e {axes=[1]} "
        "%y = sub %e, %s",
        "%y, %s"),
};

enum { NGRAPHS = sizeof graphs / sizeof *graphs };

/* ---- one graph ----------------------------------------------------------- */

typedef struct Subject {
    const char *text;
    Graph *g;
    LoweredStep step;
    EvalTensor **in; /* by value */
    void **data;     /* by value: a block of exactly its size, from malloc */
} Subject;

typedef struct Suite {
    Arena *a;
    KernelSet *ks;
    Subject s[NGRAPHS];
    int n;
} Suite;

static uint32_t random_bits(void) {
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

static void *block_new(size_t n) {
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

static void subject_load(Subject *s, Arena *a) {
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

/* For its text only. */
static Suite suite_lowered(const char *const *text, int n) {
    Suite x = {.a = arena_new()};
    x.ks = kernel_set_new(x.a, TARGET_CUDA);
    for (int i = 0; i < n; i++) suite_add(&x, text[i]);
    return x;
}

static Suite suite_new(const char *const *text, int n) {
    Suite x = suite_lowered(text, n);
    for (int i = 0; i < n; i++) subject_values(&x.s[i], x.a);
    return x;
}

static void suite_free(Suite *x) {
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

static StrBuf suite_text(const Suite *x) {
    StrBuf sb = {0};
    print_cuda_head(&sb);
    for (int e = 0; e < 2; e++)
        for (int i = 0; i < kernel_set_count(x->ks, e); i++) {
            const Kernel *k = kernel_set_get(x->ks, e, i);
            if (e) {
                put_functor_kernel(k, &sb);
                continue;
            }
            if (k->form != KF_FOLD) print_cuda_kernel(k, &sb);
            if (!cuda_scratch(k)) print_cuda_many(k, &sb);
        }
    return sb;
}

static SimTwin *twin_of_text(StrBuf sb) {
    char path[600], err[300];
    char *dir = sim_build_text(sb.data);
    snprintf(path, sizeof path, "%s/unit0.so", dir);
    SimTwin *t = sim()->twin_open(path, err, sizeof err);
    if (!t) FAIL("%s", err);
    free(dir);
    sb_free(&sb);
    return t;
}

static SimTwin *twin_of(const Suite *x) { return twin_of_text(suite_text(x)); }

/* ---- running ------------------------------------------------------------- */

typedef struct Args {
    void *value[40], *slot[40];
    int64_t number;
    int n;
} Args;

static void add_arg(Args *p, void *value) {
    p->value[p->n] = value;
    p->slot[p->n] = &p->value[p->n];
    p->n++;
}

static void add_refs(const Subject *s, Args *p, const ValueId *refs, int n) {
    for (int i = 0; i < n; i++)
        add_arg(p, refs[i].i ? s->data[view_root(s->g, refs[i]).i] : NULL);
}

static void launch(const Subject *s, SimTwin *t, char kind, const Kernel *k,
                   const char *suffix, CudaShape shape, Args *p) {
    char name[40];
    snprintf(name, sizeof name, "%c%d%s", kind, k->index, suffix);
    if (!shape.blocks) return;
    if (sim()->run(t, name, (unsigned)shape.blocks, (unsigned)shape.threads,
                   shape.shared, p->slot))
        FAIL("%s\n%s", sim()->errors(), s->text);
}

/* Row of the table; returns the first block of the next row. */
static uint64_t put_row(const Subject *s, uint64_t *row, uint64_t first) {
    CudaShape shape = cuda_shape(s->step.kernel);
    int64_t n = s->step.pars[0];
    row[0] = first;
    row[1] = (uint64_t)s->step.pars[s->step.kernel->form == KF_FOLD];
    for (int i = 0; i < s->step.nref; i++)
        row[2 + i] = (uint64_t)(uintptr_t)s->data[s->step.refs[i].i];
    return first + (uint64_t)(shape.blocks ? shape.blocks
                                           : (n - 1) / shape.per_block + 1);
}

/* Runs n steps of one kernel in one launch. */
static void run_many(const Subject *s, int n, SimTwin *t) {
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
    launch(s, t, 'k', s->step.kernel, "_many", shape, &p);
    free(table);
}

static void run_kernel(const Subject *s, SimTwin *t) {
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
    launch(s, t, 'k', k, "", shape, &p);
    if (bytes) launch(s, t, 'k', k, "_2", cuda_finish_shape(k), &p);
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
        ampc_cpu_V2.gemm(AMPC_ISA_V2, NULL, (LibGemm *)pars, a, b, raw, &none,
                         scratch, NULL);
    else
        ampc_cpu_V2.conv_fwd(AMPC_ISA_V2, NULL, (LibConv *)pars, a, b, raw,
                             &none, scratch, NULL);
    add_arg(&p, raw);
    add_refs(s, &p, st->ep_refs, st->nep_ref);
    int64_t elements = kernel_rows(st->epilogue) * kernel_cols(st->epilogue);
    CudaShape shape = {.threads = 256, .blocks = elements / 256 + 1};
    launch(s, t, 'f', st->epilogue, "", shape, &p);
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

/* Compares the outputs, then overwrites them. */
static void check_outputs(Subject *s, Arena *a, const Evaluator *e) {
    for (int i = 0; i < s->g->outputs.len; i++) {
        ValueId v = s->g->outputs.data[i].value;
        const Tensor *want =
            eval_to_tensor(a, eval_get(e, v), value_get(s->g, v)->type);
        if (!CHECK_MEM(want->data, s->data[v.i], value_bytes(s, v)))
            FAIL("in\n%s", s->text);
        memset(s->data[v.i], 0x55, value_bytes(s, v));
    }
}

static Evaluator *interpret(Subject *s, Arena *a) {
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
    Suite x = suite_new(graphs, NGRAPHS);
    SimTwin *t = twin_of(&x);
    for (int i = 0; i < x.n; i++) {
        Subject *s = &x.s[i];
        Evaluator *e = interpret(s, x.a);
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
    Evaluator *e = interpret(s, x.a);
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
    check_in_place(graphs[1], 0);
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

/* ---- many tensors -------------------------------------------------------- */

/* Checks that the texts from `from` on share the last one's kernel in one
   launch. */
static void check_many(const char *const *text, int n, int from) {
    Suite x = suite_new(text, n);
    SimTwin *t = twin_of(&x);
    for (int i = from; i < n; i++) {
        REQUIRE(x.s[i].step.kernel == x.s[n - 1].step.kernel);
        subject_load(&x.s[i], x.a);
    }
    run_many(&x.s[from], n - from, t);
    for (int i = from; i < n; i++)
        check_outputs(&x.s[i], x.a, interpret(&x.s[i], x.a));
    sim()->twin_close(t);
    suite_free(&x);
}

TEST_CASE(print_cuda, one_launch_updates_many_tensors) {
    static const int sizes[] = {1, 1024, 3, 5000, 0, 2049, 4};
    enum { N = sizeof sizes / sizeof *sizes };
    const char *text[N];
    Arena *a = arena_new();
    for (int i = 0; i < N; i++)
        text[i] = arena_printf(a,
                               "graph g(%%a: f32[%d], %%s: f32[]) { group "
                               "point { %%y = mul %%a, %%s } return %%y }",
                               sizes[i]);
    check_many(text, N, 1); /* one element: no dims */
    arena_free(a);
}

/* Rows of any number and length, also rows whose vectors would not be aligned,
   with operands of one row and operands that all rows read. */
TEST_CASE(print_cuda, one_launch_folds_rows_of_any_length) {
    static const int sizes[][2] = {{1, 3},    {264, 256}, {1, 1024}, {5, 257},
                                   {1, 8000}, {2, 4100},  {1, 2},    {3, 513}};
    static const char *const bodies[] = {
        "graph g(%%a: %s[%d,%d], %%s: %s[]) { group row { %%b = mul %%a, %%s "
        "%%y = reduce_sumsq %%b {axes=[1], keepdims=1} } return %%y }",
        "graph g(%%a: %s[%d,%d], %%s: %s[]) { group row { %%b = neg %%a "
        "%%m = reduce_max %%a {axes=[1], keepdims=1} "
        "%%n = reduce_max %%b {axes=[1], keepdims=1} "
        "%%y = add %%m, %%s } return %%y, %%n }"};
    static const char *const dtypes[] = {"f32", "bf16", "f64", "i32"};
    enum { N = sizeof sizes / sizeof *sizes };
    const char *text[N];
    Arena *a = arena_new();
    for (int b = 0; b < 2; b++)
        for (int d = 0; d < 4; d++) {
            for (int i = 0; i < N; i++)
                text[i] = arena_printf(a, bodies[b], dtypes[d], sizes[i][0],
                                       sizes[i][1], dtypes[d]);
            check_many(text, N, 0);
        }
    arena_free(a);
}

/* ---- behind the last block ----------------------------------------------- */

enum { TENSORS = 5 };

/* Sums of squares of rows, and then sums of these: all in one launch, except
   tensor 3, which has only the former. */
typedef struct Behind {
    Suite x; /* subjects 2i and 2i + 1 */
    SimTwin *t;
    uint64_t *table;
    uint32_t *counters;
} Behind;

static Behind behind_new(Arena *a) {
    static const int sizes[TENSORS][2] = {
        {264, 256}, {2, 1000}, {7, 301}, {5, 400}, {128, 260}};
    const char *text[2 * TENSORS];
    Behind b = {.counters = block_new(TENSORS * sizeof *b.counters)};
    for (int i = 0; i < TENSORS; i++) {
        text[2 * i] = arena_printf(
            a,
            ROW("%%a: f32[%d,%d]",
                "%%y = reduce_sumsq %%a {axes=[1]} : f64[%d,1]", "%%y"),
            sizes[i][0], sizes[i][1], sizes[i][0]);
        text[2 * i + 1] = arena_printf(
            a, ROW("%%a: f64[%d,1]", "%%y = reduce_sum %%a {axes=[0]}", "%%y"),
            sizes[i][0]);
    }
    b.x = suite_new(text, 2 * TENSORS);
    StrBuf sb = suite_text(&b.x);
    print_cuda_many_after(b.x.s[0].step.kernel, b.x.s[1].step.kernel, &sb);
    b.t = twin_of_text(sb);
    return b;
}

static void *ref_of(const Subject *s, int i) {
    return s->data[s->step.refs[i].i];
}

static void run_behind(Behind *b) {
    int n = b->x.s[0].step.nref, m = b->x.s[1].step.nref, width = 4 + n + m;
    uint64_t blocks = 0, *table = block_new((size_t)(TENSORS * width) * 8);
    unsigned count = TENSORS;
    Args p = {0};
    for (int i = 0; i < TENSORS; i++) {
        uint64_t *row = table + width * i;
        uint64_t next = put_row(&b->x.s[2 * i], row, blocks);
        for (int j = 0; j < m; j++) {
            bool read = b->x.s[1].step.kernel->bufs.data[j].written == false;
            void *at = read ? ref_of(&b->x.s[2 * i], n - 1)
                            : ref_of(&b->x.s[2 * i + 1], j);
            row[2 + n + j] = i == 3 ? 0 : (uint64_t)(uintptr_t)at;
        }
        row[2 + n + m] = next - blocks;
        row[3 + n + m] = (uint64_t)(uintptr_t)&b->counters[i];
        blocks = next;
    }
    add_arg(&p, table);
    p.slot[p.n++] = &count;
    CudaShape shape = cuda_shape(b->x.s[0].step.kernel);
    shape.blocks = (int64_t)blocks;
    char suffix[20];
    snprintf(suffix, sizeof suffix, "_%d_many", b->x.s[1].step.kernel->index);
    launch(&b->x.s[0], b->t, 'k', b->x.s[0].step.kernel, suffix, shape, &p);
    free(table);
}

/* Whatever the order of the blocks, every run gives the bits of two separate
   launches. */
TEST_CASE(print_cuda, the_last_block_folds_what_all_have_made) {
    Arena *a = arena_new();
    Behind b = behind_new(a);
    double want[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
        Subject *s = &b.x.s[2 * i], *after = s + 1;
        REQUIRE(s->step.kernel == b.x.s[0].step.kernel &&
                after->step.kernel == b.x.s[1].step.kernel);
        const Type *t = value_type(s->g, s->step.refs[0]);
        for (int64_t k = 0; k < type_count(t); k++)
            ((float *)ref_of(s, 0))[k] = (float)random_bits() / 3e8f;
        run_kernel(s, b.t);
        memcpy(ref_of(after, 0), ref_of(s, 1),
               (size_t)s->step.pars[0] * sizeof(double));
        run_kernel(after, b.t);
        want[i] = *(double *)ref_of(after, 1);
        CHECK(want[i] > 0);
    }
    memset(b.counters, 0, TENSORS * sizeof *b.counters);
    for (int time = 0; time < 8; time++) {
        sim()->seed((uint64_t)time + 1);
        for (int i = 0; i < 2 * TENSORS; i++) {
            const Subject *s = &b.x.s[i];
            memset(ref_of(s, 1), 0x7f,
                   (size_t)type_bytes(value_type(s->g, s->step.refs[1])));
        }
        run_behind(&b);
        for (int i = 0; i < TENSORS; i++) {
            double got = *(double *)ref_of(&b.x.s[2 * i + 1], 1);
            CHECK_MSG((got == want[i]) == (i != 3), "%d: %a, not %a", i, got,
                      want[i]);
            CHECK_EQ_INT(b.counters[i], 0);
        }
    }
    sim()->twin_close(b.t);
    free(b.counters);
    suite_free(&b.x);
    arena_free(a);
}

/* A fold gets a kernel of its own if its text uses its address, its rows or
   its columns in another way. */
TEST_CASE(print_cuda, folds_that_are_no_rows_in_memory_keep_their_form) {
    static const char *const others[] = {
        ROW("%a: f32[256,300]", "%y = reduce_sum %a {axes=[0]}", "%y"),
        ROW("%a: f32[4,300]", "%m = reduce_max %a {axes=[1]} %y = sub %a, %m",
            "%y"),
        ROW("%a: f32[4,300], %r: f32[1,300]",
            "%d = sub %a, %r %y = reduce_max %d {axes=[1]}", "%y"),
        ROW("%a: f32[4,600]",
            "%c = slice %a {starts=[0,300], sizes=[4,300], steps=[1,1]} "
            "%y = reduce_max %c {axes=[1]}",
            "%y"),
        ROW("%a: f32[265,300]", "%y = reduce_sum %a {axes=[1]}", "%y"),
        ROW("%a: f32[4,255]", "%y = reduce_sum %a {axes=[1]}", "%y")};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        Suite x = suite_lowered(&others[i], 1);
        CHECK_MSG(x.s[0].step.kernel->form != KF_FOLD, "%s", others[i]);
        suite_free(&x);
    }
}

TEST_CASE(print_cuda, one_launch_of_equal_shapes_in_every_form) {
    static const char *const forms[] = {
        POINT("%a: f32[33,70]", "%y = transpose %a {perm=[1,0]}"),
        POINT("%a: f32[], %b: f32[]", "%y = add %a, %b"),
        ROW("%a: bf16[100,10]", "%y = reduce_max %a {axes=[1]}", "%y"),
        ROW("%a: f32[17,50], %r: f32[17,1]",
            "%m = reduce_max %a {axes=[1]} %d = sub %a, %m "
            "%s = reduce_sum %d {axes=[1]} %t = add %s, %r %y = mul %d, %t",
            "%y, %s, %t"),
        ROW("%a: f32[3,1025]", "%y = reduce_sum %a {axes=[1]}", "%y"),
        ROW("%a: i32[3,40,33]", "%y = reduce_sum %a {axes=[1]}", "%y")};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const char *text[] = {forms[i], forms[i], forms[i]};
        check_many(text, 3, 0);
    }
}

/* ---- NVRTC --------------------------------------------------------------- */

TEST_CASE(print_cuda, nvrtc_compiles_without_warnings_or_spills) {
    static const char *const archs[] = {"sm_80"};
    Suite x = suite_lowered(graphs, NGRAPHS);
    Diag d = {0};
    CudaBuild out = {0};
    NvrtcFacts f;
    if (!nvrtc_facts(x.a, &f)) SKIP("no NVRTC: %s", f.why);
    StrBuf sb = suite_text(&x);
    CudaUnit unit = {sb.data, sb.len};
    Status st = nvrtc_build(&d, x.a, NULL, &unit, 1, archs, 1, &out);
    CHECK_MSG(st == OK && d.text.len == 0, "%s", d.text.data);
    CHECK(out.usage.len >= kernel_set_count(x.ks, false));
    for (int i = 0; i < out.usage.len; i++) {
        const CudaUsage *u = &out.usage.data[i];
        CHECK_MSG(u->spill_stores + u->spill_loads + u->stack == 0, "%s spills",
                  u->kernel);
    }
    sb_free(&sb);
    sb_free(&d.text);
    suite_free(&x);
}

/* ---- properties of the text ---------------------------------------------- */

typedef struct Printed {
    Suite x;
    CudaShape shape;
    StrBuf sb;
} Printed;

static Printed printed(const char *text) {
    Printed p = {.x = suite_lowered(&text, 1)};
    const Kernel *k = p.x.s[0].step.kernel;
    p.shape = cuda_shape(k);
    (k->form == KF_FOLD ? print_cuda_many : print_cuda_kernel)(k, &p.sb);
    return p;
}

static void check_shape(const char *text, int threads, int64_t blocks,
                        int64_t per_block, const char *needle) {
    Printed p = printed(text);
    CHECK_EQ_INT(p.shape.threads, threads);
    CHECK_EQ_INT(p.shape.blocks, blocks);
    CHECK_EQ_INT(p.shape.per_block, per_block);
    CHECK_HAS(p.sb.data, needle);
    CHECK(strstr(p.sb.data, "__restrict__") == NULL);
    sb_free(&p.sb);
    suite_free(&p.x);
}

TEST_CASE(print_cuda, shapes) {
    /* 16 bytes of the widest operand */
    check_shape(POINT("%a: f32[99]", "%y = neg %a"), 256, 0, 1024, "k0_at<4>(");
    check_shape(POINT("%a: bf16[99]", "%y = neg %a"), 256, 0, 2048,
                "k0_at<8>(");
    check_shape(POINT("%a: f64[99]", "%y = neg %a"), 256, 0, 512, "k0_at<2>(");
    /* an unaligned operand is read element by element */
    check_shape(graphs[10], 256, 0, 1024, "b0[i0 + 5]");
    check_shape(graphs[11], 256, 0, 1024, "pack_load<N>(b0 + e + 8)");
    check_shape(graphs[12], 256, 0, 1024, " ? b0[i0 - 3] : 0");
    /* one element per thread, 64-bit indices where needed */
    check_shape(POINT("%a: f32[9,70]", "%y = transpose %a {perm=[1,0]}"), 256,
                3, 0, "const unsigned e = ");
    check_shape(POINT("%a: u8[50000,50000]", "%y = transpose %a {perm=[1,0]}"),
                256, 9765625, 0, "const uint64_t e = ");
    check_shape(POINT("%a: f32[0,4], %b: f32[4]", "%y = mul %a, %b"), 256, 1, 0,
                "(void)b0;");
    /* teams of lanes, of a block, of several warps */
    check_shape(ROW("%a: f32[100,10]", "%y = reduce_sum %a {axes=[1]}", "%y"),
                256, 4, 0, "fold_lanes<8>");
    check_shape(ROW("%a: f32[300,1000]", "%y = reduce_sum %a {axes=[1]}", "%y"),
                256, 38, 0, "fold_lanes<32>");
    /* short rows share a warp, if enough rows remain for all warps */
    check_shape(ROW("%a: bf16[8447,49]", "%y = reduce_sum %a {axes=[1]}", "%y"),
                256, 1056, 0, "fold_lanes<32>");
    check_shape(ROW("%a: bf16[8448,49]", "%y = reduce_sum %a {axes=[1]}", "%y"),
                256, 264, 0, "fold_lanes<8>");
    check_shape(ROW("%a: f32[300,2000]", "%y = reduce_sum %a {axes=[1]}", "%y"),
                256, 300, 0, "fold_block<256>");
    check_shape(ROW("%a: f32[300,9000]", "%y = reduce_sum %a {axes=[1]}", "%y"),
                512, 300, 0, "fold_block<512>");
    check_shape(ROW("%a: f32[2,2000]", "%y = reduce_sum %a {axes=[1]}", "%y"),
                512, 0, 1, "if (n % 4 == 0) {\n        k0_row<4>(b0, b1, n);");
    check_shape(ROW("%a: bf16[2,40000]",
                    "%m = reduce_max %a {axes=[1]} %y = sub %a, %m", "%y"),
                1024, 2, 0, "pack_load<8>(s1 + c)");
    check_shape(ROW("%a: f32[50,40]", "%y = reduce_sum %a {axes=[0]}", "%y"),
                256, 2, 0, "v2 = fold_slices<8>");
    /* few blocks have more threads, with 8 numbers each */
    check_shape(ROW("%a: f32[256,64]", "%y = reduce_sum %a {axes=[0]}", "%y"),
                1024, 2, 0, "v2 = fold_slices<32>");
    /* vectors if they leave as many blocks as a large GPU needs */
    check_shape(
        ROW("%a: bf16[66,3,1024]", "%y = reduce_sum %a {axes=[1]}", "%y"), 128,
        264, 0, "pack_load<8>(b0 + ");
    check_shape(
        ROW("%a: bf16[65,3,1024]", "%y = reduce_sum %a {axes=[1]}", "%y"), 128,
        520, 0, "pack_load<4>(b0 + ");
    check_shape(
        ROW("%a: bf16[999,3,80]", "%y = reduce_sum %a {axes=[1]}", "%y"), 128,
        2997, 0, "v2 = fold_slices<4>");
}

/* A row is loaded at once as long as that takes few registers: two 16-bit
   numbers share a register if vectors read them. */
TEST_CASE(print_cuda, rows_are_read_ahead) {
    static const char *const texts[] = {
        ROW("%a: bf16[9,768], %b: bf16[9,768], %c: bf16[9,768], "
            "%f: bf16[9,768], %g: bf16[9,768]",
            "%d = add %a, %b %e = add %d, %c : f32[9,768] "
            "%h = add %e, %f : f32[9,768] %i = add %h, %g : f32[9,768] "
            "%m = reduce_max %i {axes=[1]} %y = sub %i, %m : bf16[9,768]",
            "%y"),
        ROW("%a: bf16[9,767], %b: bf16[9,767], %c: bf16[9,767]",
            "%d = add %a, %b %e = add %d, %c : f32[9,767] "
            "%m = reduce_max %e {axes=[1]} %y = sub %e, %m : bf16[9,767]",
            "%y"),
        ROW("%a: f32[9,768], %b: f32[9,768], %c: f32[9,768]",
            "%d = add %a, %b %e = add %d, %c "
            "%m = reduce_max %e {axes=[1]} %y = sub %e, %m",
            "%y")};
    for (int i = 0; i < 3; i++) {
        Printed p = printed(texts[i]);
        CHECK_MSG((strstr(p.sb.data, " q1[") != NULL) == (i == 0), "%s",
                  texts[i]);
        sb_free(&p.sb);
        suite_free(&p.x);
    }
}

/* Each kernel's IR is in the comment above it. */
TEST_CASE(print_cuda, comments_tell_the_group) {
    check_shape(graphs[0], 256, 0, 1024,
                "/* %y = add %a, %b : f32[4096]\n"
                "   block columns by 1024, thread columns < 1024 by 4, "
                "unrolled columns < 4 */");
}

/* ---- what cuBLASLt takes ------------------------------------------------- */

/* 24 rows of 40 by 40 columns of 16, dense, in batches. */
static LibGemm dense(int64_t batches) {
    return (LibGemm){.m = 24,
                     .n = 16,
                     .k = 40,
                     .nbatch_dim = 1,
                     .batch_dim = {batches},
                     .a_bs = {24 * 40},
                     .b_bs = {40 * 16},
                     .a_rs = 40,
                     .a_cs = 1,
                     .b_rs = 16,
                     .b_cs = 1,
                     .a_dtype = DT_BF16,
                     .b_dtype = DT_BF16,
                     .c_dtype = DT_F32};
}

static void check_taken(LibGemm p, bool want, const char *what) {
    Arena *a = arena_new();
    LoweredStep s = {.kind = PLAN_LIB,
                     .lib = PLAN_LIB_GEMM,
                     .pars = (int64_t *)(void *)&p,
                     .npar = sizeof p / sizeof(int64_t)};
    LoweredStep out = s;
    CHECK_MSG(cuda_product(a, &s, &out) == want, "%s", what);
    if (want) CHECK(out.kind == PLAN_PRODUCT);
    arena_free(a);
}

/* Limits from cuBLASLt's manual: sizes and leading dimensions have 32 bits;
   a matrix is stored by rows or by columns, with a leading dimension of at
   least its length; a grid has 65,535 blocks along its third axis. */
TEST_CASE(cuda_products, what_cublaslt_takes) {
    check_taken(dense(1), true, "dense");
    check_taken(dense(65535), true, "as many as a grid has");
    check_taken(dense(65536), false, "one more");
    check_taken(dense(0), false, "none");
    LibGemm p = dense(3);
    p.a_rs = 1, p.a_cs = 24, p.b_rs = 1, p.b_cs = 40;
    check_taken(p, true, "by columns");
    p.a_cs = 23;
    check_taken(p, false, "columns that overlap");
    p = dense(3);
    p.a_rs = 48, p.b_rs = 17;
    check_taken(p, true, "rows with gaps");
    p.b_rs = 15;
    check_taken(p, false, "rows that overlap");
    p = dense(3);
    p.b_rs = 32, p.b_cs = 2;
    check_taken(p, false, "every second column");
    p = dense(3);
    p.m = p.a_cs = INT32_MAX, p.a_rs = 1;
    check_taken(p, true, "as many rows as fit 32 bits");
    p.m = p.a_cs = (int64_t)INT32_MAX + 1;
    check_taken(p, false, "one row more");
    p = dense(3);
    p.nbatch_dim = 2;
    check_taken(p, false, "batches in two dims");
    p = dense(3);
    p.b_dtype = DT_F16;
    check_taken(p, false, "two kinds of 16 bits");
    p = dense(3);
    p.c_dtype = DT_F16;
    check_taken(p, false, "another kind of 16 bits out");
    p.a_dtype = p.b_dtype = p.c_dtype = DT_F64;
    check_taken(p, true, "f64");
    p.c_dtype = DT_F32;
    check_taken(p, false, "f64 rounded");
}
