/* kernel_test.c: groups, lowered to kernels, printed as C, compiled, run, and
   compared with the interpreter.

   Every graph of a test case goes into one C file.  Kernels run all units at
   once, one unit at a time from the last to the first, and compiled for a
   higher ISA level where the machine has it: the bytes must agree.          */
#define _POSIX_C_SOURCE 200809L
#include "codegen/codegen.h"
#include "codegen/kernel/kir.h"
#include "ir/ir.h"
#include "runtime/cpu/kernels.h"
#include "tests/harness.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one graph ----------------------------------------------------------- */

typedef struct Subject {
    const char *text;
    double ulps;  /* of the result's dtype; 0 = equal bits */
    double scale; /* of the terms of sums: units of results below count as if
                     they were this large */
    Arena *a;
    Graph *g;
    KernelSet *ks;
    LoweredStep *steps;
    int nstep;
    EvalTensor **in; /* by value id: inputs and variables */
    void **data;     /* by value id of roots */
} Subject;

static uint64_t random_state = 1;

static uint32_t random_bits(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

static double random_number(DType d) {
    double u = random_bits() / 0x1p31;
    if (d == DT_BOOL) return u < 0.5;
    if (dtype_info[d].kind == DK_U) return floor(u * 12);
    if (dtype_is_int(d)) return floor(u * 24) - 12;
    return round_to_dtype(6 * u - 3, d);
}

static void *buffer_new(const Type *t) {
    size_t n = (size_t)type_bytes(t);
    char *p = malloc(n ? n : 1); /* exact: sanitizers see overruns */
    memset(p, 0x7f, n ? n : 1);
    return p;
}

static void fill_input(Subject *s, ValueId v) {
    const Type *t = value_type(s->g, v);
    int64_t n = type_count(t);
    EvalTensor *e = eval_tensor_new(s->a, value_get(s->g, v)->type);
    for (int64_t i = 0; i < n; i++)
        if (e->f)
            e->f[i] = random_number(t->dtype);
        else
            e->i[i] = (int64_t)random_number(t->dtype);
    s->in[v.i] = e;
}

static void load_input(Subject *s, ValueId v) {
    TypeId t = value_get(s->g, v)->type;
    const Tensor *x = eval_to_tensor(s->a, s->in[v.i], t);
    memcpy(s->data[v.i], x->data, (size_t)type_bytes(type_get(t)));
}

static void subject_begin(Subject *s) {
    Diag d = {0};
    Module *m = NULL;
    s->a = arena_new();
    Status st =
        parse_module(s->a, &d, "test.amp", s->text, strlen(s->text), &m);
    if (!CHECK_MSG(st == OK, "%s\n%s", d.text.data, s->text)) harness_leave();
    s->g = m->graphs.data[0];
    st = verify_graph(s->g, STAGE_FUSED, &d);
    if (!CHECK_MSG(st == OK, "%s\n%s", d.text.data, s->text)) harness_leave();
    s->ks = kernel_set_new(s->a, TARGET_CPU);
    s->nstep = s->g->groups.len;
    REQUIRE(lower_graph(s->g, s->ks, &d, &s->steps) == OK);
    s->in = NEW_ARRAY(s->a, EvalTensor *, s->g->values.len);
    s->data = NEW_ARRAY(s->a, void *, s->g->values.len);
    for (uint32_t i = 1; i < (uint32_t)s->g->values.len; i++) {
        ValueId v = {i};
        const Value *val = value_get(s->g, v);
        s->data[i] = buffer_new(type_get(val->type));
        if (val->kind == VK_INPUT) fill_input(s, v);
        if (val->kind == VK_CONST)
            memcpy(s->data[i], val->data->data,
                   (size_t)type_bytes(type_get(val->type)));
    }
}

static void subject_end(Subject *s) {
    for (int i = 1; i < s->g->values.len; i++) free(s->data[i]);
    arena_free(s->a);
}

/* ---- running ------------------------------------------------------------- */

static void **resolve(Subject *s, const ValueId *refs, int n) {
    void **p = NEW_ARRAY(s->a, void *, n + 1);
    for (int i = 0; i < n; i++) p[i] = refs[i].i ? s->data[refs[i].i] : NULL;
    return p;
}

static void *symbol(void *lib, int graph, bool epilogue, const Kernel *k) {
    char name[64];
    snprintf(name, sizeof name, "g%d_%c%d", graph, epilogue ? 'e' : 'k',
             kernel_index(k));
    void *f = dlsym(lib, name);
    if (!CHECK_MSG(f != NULL, "no function %s", name)) harness_leave();
    return f;
}

static void run_kernel(Subject *s, const LoweredStep *st, void *fn,
                       bool split) {
    PlanKernelFn *f;
    void **buf = resolve(s, st->refs, st->nref);
    memcpy(&f, &fn, sizeof f);
    if (!split) {
        f(buf, st->pars, 0, st->units);
        return;
    }
    for (int64_t u = st->units - 1; u >= 0; u--) f(buf, st->pars, u, u + 1);
}

static void run_lib(Subject *s, const LoweredStep *st, void *fn) {
    enum { SCRATCH = 1 << 26 };
    CpuEpilogue ep = {.buf = resolve(s, st->ep_refs, st->nep_ref)};
    CpuLibCall c = {.par = st->pars,
                    .buf = resolve(s, st->refs, st->nref),
                    .epilogue = &ep};
    REQUIRE(st->npar == (int)lib_info(st->lib)->npar);
    REQUIRE(cpu_lib_scratch(st->lib, st->pars, 1) <= SCRATCH);
    if (fn) memcpy(&ep.fn, &fn, sizeof ep.fn);
    REQUIRE(posix_memalign(&c.scratch, 64, SCRATCH) == 0);
    cpu_lib_run(&ampc_cpu_v2, st->lib, &c);
    free(c.scratch);
}

static void run_all(Subject *s, void *lib, int graph, bool split) {
    for (int i = 0; i < s->nstep; i++) {
        const LoweredStep *st = &s->steps[i];
        if (st->kind == PLAN_KERNEL)
            run_kernel(s, st, symbol(lib, graph, false, st->kernel), split);
        else
            run_lib(s, st,
                    st->epilogue ? symbol(lib, graph, true, st->epilogue)
                                 : NULL);
    }
}

/* ---- comparing ----------------------------------------------------------- */

static double ulp_of(double v, DType d) {
    int e;
    if (!dtype_is_float(d)) return 1;
    frexp(v, &e);
    int least = d == DT_F16 ? -13 : d == DT_F64 ? -1021 : -125;
    return ldexp(1, (e < least ? least : e) - dtype_info[d].mantissa);
}

static bool close_enough(const Subject *s, double want, double got, DType d) {
    if (want != want || got != got) return want != want && got != got;
    if (want == got) return true;
    double m = fmax(s->scale, fmax(fabs(want), fabs(got)));
    return fabs(want - got) <= s->ulps * ulp_of(m, d);
}

static double element(const EvalTensor *t, int64_t i) {
    return t->f ? t->f[i] : (double)t->i[i];
}

static void compare_output(Subject *s, ValueId v, const EvalTensor *want) {
    const Type *t = value_type(s->g, v);
    Tensor got = {value_get(s->g, v)->type, s->data[view_root(s->g, v).i]};
    const EvalTensor *e = eval_from_tensor(s->a, &got);
    int64_t n = type_count(t);
    for (int64_t i = 0; i < n; i++) {
        double a = element(want, i), b = element(e, i);
        if (!CHECK_MSG(close_enough(s, a, b, t->dtype),
                       "%%%s[%lld]: want %.9g, got %.9g (%.2f ulps) in\n%s",
                       value_get(s->g, v)->name, (long long)i, a, b,
                       fabs(a - b) / ulp_of(fmax(fabs(a), fabs(b)), t->dtype),
                       s->text))
            return;
    }
}

/* The bytes of all outputs, which are then spoilt. */
static void **take_outputs(Subject *s) {
    void **r = NEW_ARRAY(s->a, void *, s->g->outputs.len);
    for (int i = 0; i < s->g->outputs.len; i++) {
        ValueId v = s->g->outputs.data[i].value;
        size_t n = (size_t)type_bytes(value_type(s->g, v));
        r[i] = arena_alloc(s->a, n + 1);
        memcpy(r[i], s->data[view_root(s->g, v).i], n);
        memset(s->data[view_root(s->g, v).i], 0x55, n);
    }
    return r;
}

static void same_outputs(Subject *s, void **first, void *lib, int graph,
                         bool split) {
    run_all(s, lib, graph, split);
    void **now = take_outputs(s);
    for (int i = 0; i < s->g->outputs.len; i++) {
        size_t n =
            (size_t)type_bytes(value_type(s->g, s->g->outputs.data[i].value));
        if (!CHECK_MEM(first[i], now[i], n)) FAIL("in\n%s", s->text);
    }
}

/* `other` is compiled for another ISA level, or NULL. */
static void check_subject(Subject *s, void *lib, void *other, int graph) {
    Diag d = {0};
    Evaluator *e = eval_new(s->g, s->a, EVAL_STORAGE);
    for (int i = 1; i < s->g->values.len; i++)
        if (s->in[i]) {
            eval_bind(e, (ValueId){(uint32_t)i}, s->in[i]);
            load_input(s, (ValueId){(uint32_t)i});
        }
    if (!CHECK_MSG(eval_run(e, &d) == OK, "%s\n%s", d.text.data, s->text))
        return;
    run_all(s, lib, graph, false);
    for (int i = 0; i < s->g->outputs.len; i++) {
        ValueId v = s->g->outputs.data[i].value;
        compare_output(s, v, eval_get(e, v));
    }
    void **first = take_outputs(s);
    same_outputs(s, first, lib, graph, true);
    if (other) same_outputs(s, first, other, graph, false);
}

/* ---- a batch of graphs --------------------------------------------------- */

/* Under sanitizers the generated code is checked too. */
#ifdef __SANITIZE_ADDRESS__
#define SANITIZE                                                               \
    " -fsanitize=address,undefined -fno-sanitize-recover=undefined "
enum { LEVELS = 0 };
#else
#define SANITIZE " "
enum { LEVELS = 1 }; /* compare the bits of two ISA levels */
#endif

static void *compile_source(const char *text, size_t n, const char *flags) {
    char c[512], so[512], *out;
    static int serial;
    const char *header = test_data_path("runtime/cpu/kmath.h");
    snprintf(c, sizeof c, "%s/k%d.c", test_tmpdir(), serial);
    snprintf(so, sizeof so, "%s/k%d.so", test_tmpdir(), serial++);
    REQUIRE(test_write_file(c, text, n));
    int rc = test_command(&out,
                          "cc " KERNEL_CFLAGS SANITIZE "%s -w -fPIC -shared "
                          "-I$(dirname %s) -o %s %s -lm",
                          flags, header, so, c);
    if (!CHECK_MSG(rc == 0, "%s", out)) harness_leave();
    free(out);
    void *lib = dlopen(so, RTLD_NOW);
    if (!CHECK_MSG(lib != NULL, "%s", dlerror())) harness_leave();
    return lib;
}

static void check_batch(Subject *s, int n, const char *flags) {
    StrBuf sb = {0};
    random_state = 1; /* the same data whichever cases run */
    for (int i = 0; i < n; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "g%d_", i);
        subject_begin(&s[i]);
        print_c_kernels(s[i].ks, &sb, prefix, true);
    }
    void *lib = compile_source(sb.data, sb.len, flags), *other = NULL;
    if (LEVELS && __builtin_cpu_supports("avx2") &&
        __builtin_cpu_supports("fma"))
        other = compile_source(sb.data, sb.len, "-march=x86-64-v3");
    sb_free(&sb);
    for (int i = 0; i < n; i++) {
        check_subject(&s[i], lib, other, i);
        subject_end(&s[i]);
    }
    dlclose(lib);
    if (other) dlclose(other);
}

#define CHECK_GRAPHS(s, flags)                                                 \
    check_batch(s, (int)(sizeof(s) / sizeof *(s)), flags)

/* ---- point-wise ---------------------------------------------------------- */

TEST_CASE(kernel, point) {
    Subject s[] = {
        {.text = "graph g(%a: f32[1000], %b: f32[1000]) { group point {"
                 "%c = add %a, %b %d = mul %c, %a } return %d }"},
        {.text = "graph g(%a: f32[5,7], %b: f32[7], %c: f32[5,1]) {"
                 "group point { %d = sub %a, %b %e = div %d, %c"
                 " %f = max %e, %a } return %d, %f }"},
        {.text = "graph g(%a: bf16[33,17], %b: bf16[33,17]) { group point {"
                 "%c = add %a, %b %d = mul %c, %b %e = relu %d "
                 "%f = sqrt %e } return %e, %f }"},
        {.text = "graph g(%a: f16[33,17], %b: f32[17]) { group point {"
                 "%c = mul %a, %b %d = cast %c : f16[33,17] "
                 "%e = neg %d } return %c, %e }"},
        {.text = "graph g(%a: f64[9], %b: f32[9]) { group point {"
                 "%c = mul %a, %b %d = cast %c : bf16[9] } return %c, %d }"},
        {.text = "graph g(%a: f32[], %b: f32[]) { group point {"
                 "%c = add %a, %b %d = less %a, %b "
                 "%e = where %d, %a, %c } return %e, %d }"},
        {.text = "graph g(%a: f32[3,1], %b: f32[3,1]) { group point {"
                 "%c = add %a, %b } return %c }"},
        {.text = "graph g(%a: f32[0,4]) { group point {"
                 "%c = neg %a } return %c }"},
        {.text = "graph g(%a: f32[2,3,4,5], %b: f32[3,1,5], %c: f32[2,1,4,1])"
                 " { group point { %d = add %a, %b %e = mul %d, %c }"
                 " return %e }"},
        {.text = "graph g(%a: f32[3,9000], %b: f32[9000]) { group point {"
                 "%d = add %a, %b } return %d }"},
    };
    CHECK_GRAPHS(s, "");
}

/* Every element-wise op with float operands, in every float dtype.  `free`
   is filled by the op's rule; transcendental functions may differ by a few
   units of fp32. */
static int elem_graph(char *text, size_t n, OpCode op, const char *dtype,
                      const char *attrs) {
    const OpInfo *info = &op_info[op];
    const char *operands = info->in_min == 1   ? "%a"
                           : info->in_min == 2 ? "%a, %b"
                                               : "%m, %a, %b";
    return snprintf(text, n,
                    "graph g(%%a: %s[3,67], %%b: %s[67], %%m: bool[3,67]) { "
                    "group point { %%c = %s %s %s } return %%c }",
                    dtype, dtype, info->text, operands, attrs);
}

static bool takes_bools(OpCode op) {
    return strcmp(op_info[op].type_text, "logic") == 0;
}

static bool takes_ints(OpCode op) {
    const char *t = op_info[op].type_text;
    return strcmp(t, "unary_f") != 0 && strcmp(t, "test_f") != 0;
}

static bool takes_floats(OpCode op) {
    return strcmp(op_info[op].type_text, "binary_i") != 0;
}

static double elem_ulps(OpCode op, const char *dtype) {
    if (op_info[op].cost >= COST_LONG)
        return strcmp(dtype, "f32") == 0   ? 4
               : strcmp(dtype, "f64") == 0 ? 32
                                           : 1;
    /* a constant, or two roundings, in f32 */
    return op == OP_LEAKY_RELU || op == OP_RSQRT;
}

static const char *elem_attrs(OpCode op) {
    return op == OP_CLIP         ? "{max=1.5, min=-0.5}"
           : op == OP_LEAKY_RELU ? "{alpha=0.1}"
                                 : "";
}

static int elem_subjects(Subject *s, char (*text)[256]) {
    static const char *const dtypes[] = {"f32", "bf16", "f16", "f64",
                                         "i32", "i64",  "u8",  "bool"};
    int n = 0;
    for (int op = 0; op < NUM_OPS; op++) {
        if (op_info[op].kind != KIND_ELEM || op == OP_CAST) continue;
        for (int d = 0; d < 8; d++) {
            bool ints = d >= 4 && d < 7;
            if (takes_bools(op) != (d == 7)) continue;
            if (ints && !takes_ints(op)) continue;
            if (d < 4 && !takes_floats(op)) continue;
            /* the interpreter refuses zero divisors; powers get large */
            if (ints && (op == OP_DIV || op == OP_MOD || op == OP_POW))
                continue;
            elem_graph(text[n], sizeof text[n], op, dtypes[d], elem_attrs(op));
            s[n].text = text[n];
            s[n].ulps = elem_ulps(op, dtypes[d]);
            s[n].scale = op == OP_GELU_TANH ? 0.5 : 0; /* 1 + tanh cancels */
            n++;
        }
    }
    return n;
}

TEST_CASE(kernel, every_elementwise_op) {
    static Subject s[NUM_OPS * 4];
    static char text[NUM_OPS * 4][256];
    check_batch(s, elem_subjects(s, text), "-O1");
}

/* ---- casts --------------------------------------------------------------- */

TEST_CASE(kernel, casts) {
    static Subject s[NUM_DTYPES * NUM_DTYPES + 1];
    static char text[NUM_DTYPES * NUM_DTYPES][256];
    int n = 0;
    for (int a = 0; a < NUM_DTYPES; a++)
        for (int b = 0; b < NUM_DTYPES; b++, n++) {
            snprintf(text[n], sizeof text[n],
                     "graph g(%%a: %s[37]) { group point { "
                     "%%b = cast %%a : %s[37] %%c = cast %%b : f64[37] } "
                     "return %%b, %%c }",
                     dtype_info[a].text, dtype_info[b].text);
            s[n].text = text[n];
        }
    s[n++].text = "graph g(%a: f32[37]) { const %c: f32[] = 0.1 group point { "
                  "%b = cast %c : bf16[] %d = cast %c : f16[] "
                  "%e = cast %b : f32[] %f = cast %d : f32[] "
                  "%g = mul %a, %e %h = mul %a, %f } return %g, %h }";
    check_batch(s, n, "-O1");
}

/* ---- generators ---------------------------------------------------------- */

TEST_CASE(kernel, generators) {
    Subject s[] = {
        {.text = "graph g(%a: f32[4,5]) { group point {"
                 "%f = full {value=2.5} : f32[4,5] %c = add %a, %f }"
                 " return %c }"},
        {.text = "graph g(%a: i64[4,5]) { group point {"
                 "%f = iota {axis=1} : i64[4,5] %e = equal %a, %f "
                 "%h = iota {axis=0} : f32[4,5] } return %e, %h }"},
        {.text = "graph g(%r: i64[2]) { group point {"
                 "%u = rand_uniform %r {salt=7} : f32[6,7] } return %u }"},
        {.text = "graph g(%r: i64[2], %x: bf16[6,7]) { group point {"
                 "%u = rand_uniform %r {salt=-9} : f32[7,6] "
                 "%v = transpose %u {perm=[1,0]} "
                 "%p = full {value=0.5} : f32[] %m = less %v, %p "
                 "%c = cast %m : bf16[6,7] %y = mul %x, %c } return %y }"},
    };
    CHECK_GRAPHS(s, "");
}

/* ---- data movement ------------------------------------------------------- */

#define MOVE(in, nodes)                                                        \
    { .text = "graph g(" in ") { group point { " nodes " } return %y }" }

TEST_CASE(kernel, moves) {
    Subject s[] = {
        MOVE("%x: f32[5,6]", "%y = transpose %x {perm=[1,0]}"),
        MOVE("%x: bf16[2,3,4,5]", "%y = transpose %x {perm=[0,2,1,3]}"),
        MOVE("%x: i8[2,3,4]", "%y = transpose %x {perm=[2,0,1]}"),
        MOVE("%x: f16[3,1]", "%y = expand %x {shape=[2,3,4]}"),
        MOVE("%x: f32[9,8]",
             "%y = slice %x {starts=[1,6], sizes=[3,3], steps=[2,-2]}"),
        MOVE("%x: f32[3,3]",
             "%y = slice_grad %x {shape=[9,8], starts=[1,6], steps=[2,-2]}"),
        MOVE("%x: bf16[3,4]",
             "%y = slice_grad %x {shape=[9,8], starts=[1,2], steps=[1,1]}"),
        MOVE("%x: f32[4,5]", "%y = pad %x {pads=[1,2,3,0], value=1.5}"),
        MOVE("%x: bool[4,5]", "%y = pad %x {pads=[1,2,3,0], mode=\"edge\"}"),
        MOVE("%x: f32[4,5]", "%y = pad %x {pads=[1,2,3,0], mode=\"reflect\"}"),
        MOVE("%x: f64[4,5]", "%y = pad %x {pads=[1,2,3,4], mode=\"wrap\"}"),
        MOVE("%x: f32[2,3], %z: bf16[2,5], %w: f32[2,1]",
             "%y = concat %x, %z, %w {axis=1}"),
        MOVE("%x: f32[2,3], %z: f32[4,3]", "%y = concat %x, %z {axis=0}"),
        /* parts of one type: found by number */
        MOVE("%x: f32[2,3], %z: f32[2,3], %w: f32[2,3]",
             "%y = concat %x, %z, %w {axis=0}"),
        MOVE("%x: bf16[3,1,150], %z: bf16[3,1,150]",
             "%c = concat %x, %z, %x {axis=1} %y = neg %c"),
        MOVE("%x: f16[2,40], %z: f16[2,40], %w: f16[40,4]",
             "%c = concat %x, %z {axis=0} %t = transpose %w {perm=[1,0]} "
             "%y = add %c, %t"),
        MOVE("%x: f32[5,2], %z: i32[7]",
             "%c = concat %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, "
             "%x, %x, %x, %x {axis=1} %y = gather %c, %z {axis=1}"),
        MOVE("%x: bf16[3,9], %z: bf16[3,9]",
             "%c = concat %x, %x, %z, %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, "
             "%x, %x, %z {axis=1} %y = pad %c {pads=[1,2,0,3], value=2}"),
        MOVE("%x: bf16[3,9], %z: bf16[3,9]",
             "%c = concat %x, %x, %z, %x, %x, %x, %x, %x, %x, %x, %x, %x, %x, "
             "%x, %x, %z {axis=1} %y = neg %c"),
        MOVE("%x: f32[2,3], %z: f32[2,3]",
             "%c = concat %x, %z {axis=0} "
             "%y = slice %c {starts=[2,0], sizes=[2,3], steps=[1,1]}"),
        MOVE("%x: f32[0,3], %z: f32[0,3]", "%y = concat %x, %z {axis=0}"),
        MOVE("%x: f32[2,9]",
             "%a = slice %x {starts=[0,0], sizes=[2,3], steps=[1,1]} "
             "%b = slice %x {starts=[0,3], sizes=[2,3], steps=[1,1]} "
             "%c = slice %x {starts=[0,6], sizes=[2,3], steps=[1,1]} "
             "%d = mul %a, %b %y = sub %d, %c"),
        MOVE("%x: f32[10,4], %i: i64[3,2]", "%y = gather %x, %i {axis=0}"),
        MOVE("%x: bf16[3,10,4], %i: i32[5]", "%y = gather %x, %i {axis=1}"),
        MOVE("%x: f32[3,10], %i: i64[]", "%y = gather %x, %i {axis=1}"),
        MOVE("%x: f32[2,5,6]", "%y = trilu %x {upper=1, k=1}"),
        MOVE("%x: f32[2,5,6]", "%y = trilu %x {upper=0, k=-2}"),
        MOVE("%x: f32[4,6], %z: f32[6,4]",
             "%n = neg %x %t = transpose %n {perm=[1,0]} "
             "%p = pad %t {pads=[0,1,1,0], value=3} %q = mul %p, %p "
             "%u = slice %q {starts=[1,0], sizes=[6,4], steps=[1,1]} "
             "%y = add %u, %z"),
        MOVE("%x: f32[4,6], %z: f32[2,6], %i: i64[7]",
             "%c = concat %x, %z {axis=0} %g = gather %c, %i {axis=0} "
             "%e = gather %g, %i {axis=1} %y = trilu %e {upper=1}"),
        MOVE("%x: f32[6,1,5], %i: i64[2,2]",
             "%a = abs %x %b = gather %a, %i {axis=2} "
             "%y = expand %b {shape=[6,3,2,2]}"),
        MOVE("%x: f32[3,4], %i: i64[5], %j: i64[2]",
             "%a = gather %x, %i {axis=0} %y = gather %a, %j {axis=1}"),
        MOVE("%x: f32[0,4], %z: f32[2,4]", "%y = concat %x, %z {axis=0}"),
        /* tiles, of which the last ones are not full */
        MOVE("%x: f32[150,2,20], %z: f32[2,20,150]",
             "%t = transpose %x {perm=[1,2,0]} %y = add %t, %z"),
        MOVE("%x: f16[131,17], %z: bf16[17,131]",
             "%t = transpose %x {perm=[1,0]} %c = cast %z : f16[17,131] "
             "%y = mul %t, %c"),
        MOVE("%x: f32[90,9], %z: f32[60,9]",
             "%c = concat %x, %z {axis=0} %y = transpose %c {perm=[1,0]}"),
    };
    CHECK_GRAPHS(s, "");
}

/* ---- reductions ---------------------------------------------------------- */

#define ROW(in, nodes, out)                                                    \
    "graph g(" in ") { group row { " nodes " } return " out " }"

TEST_CASE(kernel, reductions) {
    Subject s[] = {
        {.text = ROW("%x: f32[7,1000]", "%y = reduce_sum %x {axes=[1]}", "%y"),
         .ulps = 4,
         .scale = 128},
        {.text = ROW("%x: f32[1000,70]", "%y = reduce_sum %x {axes=[0]}", "%y"),
         .ulps = 8,
         .scale = 512},
        {.text =
             ROW("%x: bf16[5,6,7]", "%y = reduce_mean %x {axes=[0,2]}", "%y"),
         .ulps = 1},
        {.text = ROW("%x: bf16[5,6,7]",
                     "%y = reduce_mean %x {axes=[0,2]} : f32[1,6,1]", "%y"),
         .ulps = 8,
         .scale = 32},
        {.text =
             ROW("%x: f32[3,4,5]", "%y = reduce_max %x {axes=[0,1,2]}", "%y")},
        {.text = ROW("%x: f32[40,35]", "%y = reduce_min %x {axes=[0]}", "%y")},
        {.text = ROW("%x: f16[40,35]", "%y = reduce_max %x {axes=[0]}", "%y")},
        {.text = ROW("%x: i32[40,35]",
                     "%y = reduce_sum %x {axes=[0]} "
                     "%z = reduce_max %x {axes=[0]}",
                     "%y, %z")},
        {.text = ROW("%x: i64[4,35]",
                     "%y = reduce_prod %x {axes=[1]} "
                     "%z = reduce_mean %x {axes=[1]}",
                     "%y, %z")},
        {.text = ROW("%x: f32[20,35], %z: f32[20,35]",
                     "%c = concat %x, %z {axis=0} "
                     "%y = reduce_max %c {axes=[1]}",
                     "%y")},
        {.text = ROW("%x: f32[20,35], %z: f32[20,35]",
                     "%c = concat %x, %z {axis=0} "
                     "%y = reduce_max %c {axes=[0]}",
                     "%y")},
        {.text = ROW("%x: f32[2,900]",
                     "%y = reduce_sumsq %x {axes=[0,1]} : f64[1,1]", "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = ROW("%x: f64[20,30]", "%y = reduce_sum %x {axes=[1]}", "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = ROW("%x: f32[0,30]",
                     "%y = reduce_sum %x {axes=[0]} "
                     "%z = reduce_max %x {axes=[0]}",
                     "%y, %z")},
        {.text = ROW("%x: f32[3,0]", "%y = reduce_prod %x {axes=[1]}", "%y")},
        {.text = ROW("%x: f32[5,1]", "%y = reduce_sum %x {axes=[1]}", "%y")},
        {.text = ROW("%x: f32[1,5]", "%y = reduce_sum %x {axes=[0]}", "%y")},
        /* operands that do not vary along the columns */
        {.text = ROW("%x: f32[5,1], %z: f32[5,9]",
                     "%e = mul %x, %z "
                     "%q = expand %x {shape=[5,9]} "
                     "%y = reduce_sum %q {axes=[1]} "
                     "%w = reduce_max %e {axes=[1]}",
                     "%y, %w"),
         .ulps = 2},
        {.text =
             ROW("%x: f32[4,3,5,6]", "%y = reduce_sum %x {axes=[1,3]}", "%y"),
         .ulps = 8,
         .scale = 32},
        {.text =
             ROW("%x: f32[4,200,5]", "%y = reduce_sum %x {axes=[0,1]}", "%y"),
         .ulps = 8,
         .scale = 512},
        /* rows of a table, each folded where it lies */
        {.text = ROW("%x: f32[5,4,8]",
                     "%e = pad %x {pads=[0,2,0,0,3,0], mode=\"edge\"} "
                     "%y = reduce_sum %e {axes=[1,2]}",
                     "%y"),
         .ulps = 8,
         .scale = 128},
        /* fewer neighbours than a vector; a mask that they share */
        {.text = ROW("%x: f32[6,40,8], %m: bool[6,40,1], %v: f32[6,40,8]",
                     "%w = where %m, %v, %x %e = exp %w "
                     "%y = reduce_sum %e {axes=[1]}",
                     "%e, %y"),
         .ulps = 8,
         .scale = 128},
    };
    CHECK_GRAPHS(s, "");
}

TEST_CASE(kernel, softmax_and_norms) {
    Subject s[] = {
        {.text = ROW("%x: f32[5,1000]",
                     "%m = reduce_max %x {axes=[1]} %d = sub %x, %m "
                     "%e = exp %d %s = reduce_sum %e {axes=[1]} "
                     "%y = div %e, %s",
                     "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = ROW("%x: bf16[5,5000]",
                     "%c = cast %x : f32[5,5000] "
                     "%m = reduce_max %c {axes=[1]} %d = sub %c, %m "
                     "%e = exp %d %s = reduce_sum %e {axes=[1]} "
                     "%y = div %e, %s : bf16[5,5000]",
                     "%y"),
         .ulps = 1},
        {.text = ROW("%x: f32[33,50]",
                     "%m = reduce_max %x {axes=[0]} %d = sub %x, %m "
                     "%e = exp %d %s = reduce_sum %e {axes=[0]} "
                     "%y = div %e, %s",
                     "%y"),
         .ulps = 8,
         .scale = 32},
        /* over the channels of an image */
        {.text = ROW("%x: f32[2,3,70]",
                     "%m = reduce_max %x {axes=[1]} %d = sub %x, %m "
                     "%e = exp %d %s = reduce_sum %e {axes=[1]} "
                     "%y = div %e, %s",
                     "%y, %s"),
         .ulps = 8,
         .scale = 32},
        /* layer norm, with its statistics */
        {.text = ROW("%x: f32[6,300], %g: f32[300], %b: f32[300]",
                     "%m = reduce_mean %x {axes=[1]} %d = sub %x, %m "
                     "%q = mul %d, %d %v = reduce_mean %q {axes=[1]} "
                     "%e = full {value=1e-5} : f32[] %w = add %v, %e "
                     "%r = rsqrt %w %n = mul %d, %r %o = mul %n, %g "
                     "%y = add %o, %b",
                     "%y, %m, %r"),
         .ulps = 8,
         .scale = 64},
        /* batch norm: rows are channels, columns n and pixels */
        {.text = ROW("%x: bf16[4,3,50], %g: f32[3,1], %b: f32[3,1]",
                     "%c = cast %x : f32[4,3,50] "
                     "%m = reduce_mean %c {axes=[0,2]} %d = sub %c, %m "
                     "%q = mul %d, %d %v = reduce_mean %q {axes=[0,2]} "
                     "%e = full {value=1e-5} : f32[] %w = add %v, %e "
                     "%r = rsqrt %w %n = mul %d, %r %o = mul %n, %g "
                     "%y = add %o, %b : bf16[4,3,50]",
                     "%y, %m"),
         .ulps = 8,
         .scale = 32},
        /* gradients of scale and shift, one pass, and a masked sum */
        {.text = ROW("%dy: f32[300,70], %n: f32[300,70], %k: f32[1,70]",
                     "%p = mul %dy, %n %a = reduce_sum %p {axes=[0]} "
                     "%b = reduce_sum %dy {axes=[0]} %s = mul %k, %a "
                     "%y = mul %dy, %s",
                     "%y, %a, %b, %s"),
         .ulps = 8,
         .scale = 1024},
        /* cross-entropy: one-hot by index */
        {.text = ROW("%x: f32[9,10], %t: i64[9,1]",
                     "%m = reduce_max %x {axes=[1]} %d = sub %x, %m "
                     "%e = exp %d %s = reduce_sum %e {axes=[1]} "
                     "%l = log %s %z = sub %d, %l "
                     "%i = iota {axis=1} : i64[9,10] %h = equal %i, %t "
                     "%o = full {value=0} : f32[] %w = where %h, %z, %o "
                     "%y = reduce_sum %w {axes=[1]}",
                     "%y, %m"),
         .ulps = 8,
         .scale = 32},
    };
    CHECK_GRAPHS(s, "-O3");
}

/* ---- library calls and epilogues ----------------------------------------- */

#define ANCHOR(in, nodes, out)                                                 \
    "graph g(" in ") { group anchor { " nodes " } return " out " }"
#define LIB(in, node, out)                                                     \
    "graph g(" in ") { group lib { " node " } return " out " }"

TEST_CASE(kernel, matrix_products) {
    Subject s[] = {
        {.text =
             ANCHOR("%x: f32[5,7], %w: f32[7,9]", "%y = matmul %x, %w", "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = ANCHOR("%x: f32[7,5], %w: f32[9,7]",
                        "%y = matmul %x, %w {trans_a=1, trans_b=1}", "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = ANCHOR("%x: f32[5,7], %w: f32[7,30], %b: f32[30]",
                        "%z = matmul %x, %w %a = add %z, %b %y = relu %a",
                        "%y, %a"),
         .ulps = 8,
         .scale = 32},
        {.text = ANCHOR("%x: bf16[2,3,4,16], %w: bf16[16,20], %b: bf16[20], "
                        "%r: f32[3,1,20]",
                        "%z = matmul %x, %w %a = add %z, %b "
                        "%t = tanh %a %y = add %t, %r",
                        "%z, %y"),
         .ulps = 8,
         .scale = 64},
        {.text = ANCHOR("%x: f32[2,3,4,6], %w: f32[2,1,6,5], %r: f32[3,4,1]",
                        "%z = matmul %x, %w %y = mul %z, %r", "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = ANCHOR("%x: f32[3,6,4], %w: f32[6,5], %r: f32[3,4,5]",
                        "%z = matmul %x, %w {trans_a=1} %y = add %z, %r", "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = ANCHOR("%x: f32[6,1], %w: f32[1,5]",
                        "%z = matmul %x, %w "
                        "%y = neg %z",
                        "%y")},
        {.text =
             ANCHOR("%x: f64[6,8], %w: f64[8,5]", "%y = matmul %x, %w", "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = ANCHOR("%x: f16[6,8], %w: f16[8,5]",
                        "%y = matmul %x, %w : f32[6,5]", "%y"),
         .ulps = 8,
         .scale = 32},
    };
    CHECK_GRAPHS(s, "");
}

/* Parts of unequal sizes along the rows: each computes its own alone, in loads
   of every kind, in what is folded and kept, within pads, backwards. */
TEST_CASE(kernel, parts_of_rows) {
    Subject s[] = {
        MOVE("%x: f32[3,2,40], %z: f32[3,5,40], %w: f32[3,1,40]",
             "%a = abs %x %b = neg %w %c = concat %a, %z, %b, %x {axis=1} "
             "%y = mul %c, %c"),
        MOVE("%x: bf16[2,150], %z: f16[5,150], %k: f32[7,1]",
             "%c = concat %x, %z {axis=0} : f16[7,150] "
             "%d = mul %c, %k : f16[7,150] %y = neg %d"),
        MOVE("%x: bf16[3,4,300], %z: bf16[3,3,300], %w: f32[3,1,300]",
             "%c = concat %z, %x, %z {axis=1} : bf16[3,10,300] "
             "%s = slice %c {starts=[0,9,0], sizes=[3,9,300], steps=[1,-1,1]} "
             "%y = mul %s, %w : bf16[3,9,300]"),
        MOVE("%x: f32[4,1,30], %z: f32[4,4,30]",
             "%c = concat %x, %z {axis=1} %y = pad %c {pads=[0,2,1,0,3,2], "
             "value=1.5}"),
        MOVE("%x: f32[2,30], %z: f32[3,20], %w: f32[3,10]",
             "%c = concat %z, %w {axis=1} %y = concat %x, %c {axis=0}"),
        {.text = ROW("%x: f32[2,300], %z: f32[5,300], %k: f32[5,1]",
                     "%e = exp %x %f = mul %z, %k %c = concat %e, %f {axis=0} "
                     "%s = reduce_sum %c {axes=[1]} %m = reduce_max %c "
                     "{axes=[1]} %d = div %c, %s",
                     "%s, %m, %d"),
         .ulps = 8,
         .scale = 128},
        {.text = ROW("%x: f16[20,3,35], %z: f16[20,5,35]",
                     "%c = concat %x, %z {axis=1} "
                     "%y = reduce_sumsq %c {axes=[0,2]} : f32[1,8,1]",
                     "%y"),
         .ulps = 8,
         .scale = 512},
    };
    CHECK_GRAPHS(s, "");
}

/* fp16 is widened and narrowed in pieces: walked one by one, across, at a
   stride, behind guards, rounded for others than the store, too. */
TEST_CASE(kernel, pieces_of_fp16) {
    Subject s[] = {
        {.text = "graph g(%a: f16[7,300], %b: f16[300,1], %c: f16[1,300]) {"
                 "group point { %d = transpose %b {perm=[1,0]} "
                 "%e = mul %a, %d %f = add %e, %c : f16[7,300] "
                 "%m = less_equal %f, %c } return %f, %m }"},
        {.text = "graph g(%x: f16[5,40], %z: f16[5,90]) { group point {"
                 "%c = concat %x, %z {axis=1} %y = neg %c : f16[5,130] }"
                 " return %y }"},
        {.text = ROW("%x: f16[5,1100], %k: f32[5,1]",
                     "%p = mul %x, %k : f16[5,1100] "
                     "%s = reduce_sum %p {axes=[1]} : f32[5,1] "
                     "%y = div %p, %s : f16[5,1100]",
                     "%y, %s"),
         .ulps = 8,
         .scale = 1024},
        {.text = ROW("%x: f16[300,70], %k: f16[1,70]",
                     "%p = mul %x, %k : f32[300,70] "
                     "%s = reduce_sum %p {axes=[0]} "
                     "%y = sub %p, %s : f16[300,70]",
                     "%y, %s"),
         .ulps = 8,
         .scale = 1024},
        {.text = ANCHOR("%x: f16[9,8], %w: f16[8,150], %b: f16[150]",
                        "%z = matmul %x, %w : f32[9,150] "
                        "%a = add %z, %b : f16[9,150] %y = relu %a",
                        "%y, %a"),
         .ulps = 8,
         .scale = 32},
    };
    CHECK_GRAPHS(s, "");
}

/* bf16, too, where places need no order: not beside fp32, numbers of elements
   and what is kept for a later sweep. */
TEST_CASE(kernel, pieces_of_bf16) {
    Subject s[] = {
        {.text = "graph g(%a: bf16[7,300], %b: bf16[7,1], %c: bf16[1,300]) {"
                 "group point { %e = mul %a, %b : bf16[7,300] "
                 "%f = add %e, %c : bf16[7,300] } return %f, %e }"},
        {.text = "graph g(%x: bf16[1537]) { group point { %y = neg %x } "
                 "return %y }"},
        {.text = "graph g(%x: bf16[5,300]) { group point {"
                 "%y = neg %x %z = relu %x } return %y, %z }"},
        {.text = "graph g(%x: bf16[2,1,210]) { group point {"
                 "%y = expand %x {shape=[2,3,210]} } return %y }"},
        {.text = "graph g(%a: bf16[7,300], %b: f32[7,300]) { group point {"
                 "%c = mul %a, %b : bf16[7,300] %m = less_equal %a, %c }"
                 " return %c, %m }"},
        {.text = "graph g(%x: bf16[5,140], %z: bf16[5,190]) { group point {"
                 "%c = concat %x, %z {axis=1} %y = neg %c : bf16[5,330] }"
                 " return %y }"},
        {.text = "graph g(%x: bf16[3,600]) { group point {"
                 "%i = iota {axis=1} : i64[3,600] %j = cast %i : f32[3,600] "
                 "%y = mul %x, %j : bf16[3,600] } return %y }"},
        {.text = ROW("%x: bf16[5,1100], %k: f32[5,1]",
                     "%p = mul %x, %k : bf16[5,1100] "
                     "%s = reduce_sum %p {axes=[1]} : f32[5,1] "
                     "%y = div %p, %s : bf16[5,1100]",
                     "%y, %s"),
         .ulps = 8,
         .scale = 1024},
        {.text = ROW("%x: bf16[5,700]",
                     "%e = exp %x : f32[5,700] "
                     "%s = reduce_sum %e {axes=[1]} : f32[5,1] "
                     "%y = div %e, %s : bf16[5,700]",
                     "%y"),
         .ulps = 8,
         .scale = 1024},
        {.text = ROW("%x: bf16[300,170]",
                     "%s = reduce_sum %x {axes=[0]} : f32[1,170] "
                     "%y = sub %x, %s : bf16[300,170]",
                     "%y, %s"),
         .ulps = 8,
         .scale = 1024},
    };
    CHECK_GRAPHS(s, "");
}

TEST_CASE(kernel, convolutions) {
    Subject s[] = {
        {.text = ANCHOR("%x: f32[2,3,8,8], %w: f32[4,3,3,3], %b: f32[4,1,1]",
                        "%z = conv %x, %w {pads=[1,1,1,1]} "
                        "%a = add %z, %b %y = relu %a",
                        "%y"),
         .ulps = 8,
         .scale = 64},
        {.text = ANCHOR("%x: f32[2,4,9], %w: f32[6,2,3], %r: f32[2,6,1], "
                        "%q: f32[5]",
                        "%z = conv %x, %w {strides=[2], pads=[1,1], group=2} "
                        "%a = mul %z, %r %y = add %a, %q",
                        "%z, %y"),
         .ulps = 8,
         .scale = 64},
        {.text =
             ANCHOR("%x: f32[2,3,5,6], %w: f32[4,3,1,1], %q: f32[5,1], "
                    "%r: f32[2,1,1,6]",
                    "%z = conv %x, %w %a = add %z, %q %y = mul %a, %r", "%y"),
         .ulps = 8,
         .scale = 64},
        {.text = LIB("%d: f32[2,4,4,4], %w: f32[4,3,3,3]",
                     "%y = conv_dgrad %d, %w {shape=[2,3,8,8], strides=[2,2], "
                     "pads=[1,1,1,1]}",
                     "%y"),
         .ulps = 8,
         .scale = 64},
        {.text = LIB("%x: f32[2,3,8,8], %d: f32[2,4,8,8]",
                     "%y = conv_wgrad %x, %d {shape=[4,3,3,3], "
                     "pads=[1,1,1,1]}",
                     "%y"),
         .ulps = 8,
         .scale = 64},
    };
    CHECK_GRAPHS(s, "");
}

TEST_CASE(kernel, library) {
    Subject s[] = {
        {.text = LIB("%x: f32[2,3,9,8]",
                     "%y, %i = max_pool %x {kernel_shape=[3,2], strides=[2,2],"
                     " pads=[1,0,0,1], sizes=[4,4]}",
                     "%y, %i")},
        {.text = LIB("%x: bf16[2,3,9]",
                     "%y = avg_pool %x {kernel_shape=[3], strides=[2],"
                     " pads=[1,1], sizes=[5]}",
                     "%y"),
         .ulps = 1},
        {.text = LIB("%x: f32[2,3,8]",
                     "%y = avg_pool %x {kernel_shape=[3], strides=[2],"
                     " pads=[0,1], sizes=[4], count_include_pad=1}",
                     "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = LIB("%x: f32[2,3,5]",
                     "%y = avg_pool_grad %x {shape=[2,3,9], kernel_shape=[3],"
                     " strides=[2], pads=[1,1], sizes=[5],"
                     " count_include_pad=1}",
                     "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = LIB("%x: f32[3,2,4], %i: i64[3,2]",
                     "%y = scatter_add %x, %i {axis=0, shape=[10,4]}", "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = LIB("%x: f32[3,5,4]", "%y = argmax %x {axis=1}", "%y")},
        {.text = LIB("%x: f32[8,7]",
                     "%y = pad_grad %x {shape=[4,5], "
                     "pads=[1,2,3,0], mode=\"constant\"}",
                     "%y")},
        {.text = LIB("%x: f32[8,7]",
                     "%y = pad_grad %x {shape=[4,5], "
                     "pads=[1,2,3,0], mode=\"edge\"}",
                     "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = LIB("%x: f32[8,7]",
                     "%y = pad_grad %x {shape=[4,5], "
                     "pads=[1,2,3,0], mode=\"reflect\"}",
                     "%y"),
         .ulps = 8,
         .scale = 32},
        {.text = LIB("%x: f64[8,11]",
                     "%y = pad_grad %x {shape=[4,5], "
                     "pads=[1,2,3,4], mode=\"wrap\"}",
                     "%y"),
         .ulps = 8,
         .scale = 32},
    };
    CHECK_GRAPHS(s, "");
}

/* ---- random graphs ------------------------------------------------------- */

static int pick(int n) { return (int)(random_bits() % (uint32_t)n); }

/* Rank-2 values of a random graph, all of the shape rows x cols or (transposed
   = 1) cols x rows. */
typedef struct RandomGraph {
    StrBuf sb;
    int n, shape[64];
} RandomGraph;

static int pick_shaped(const RandomGraph *r, int shape) {
    for (;;) { /* mostly recent values, so that most nodes live */
        int v = pick(4) ? r->n - 1 - pick(r->n < 6 ? r->n : 6) : pick(r->n);
        if (r->shape[v] == shape) return v;
    }
}

static void random_node(RandomGraph *r) {
    static const char *const unary[] = {"neg",  "abs",   "relu",
                                        "sign", "floor", "round"};
    static const char *const binary[] = {"add", "sub", "mul", "max", "min"};
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    int shape = pick(2), a = pick_shaped(r, shape), b = pick_shaped(r, shape);
    const char *dims = shape ? "23,6" : "6,23";
    int c = r->n;
    switch (pick(9)) {
    case 0:
        sb_printf(&r->sb, "%%v%d = transpose %%v%d {perm=[1,0]} ", c, a);
        shape = !shape;
        break;
    case 1:
        sb_printf(&r->sb, "%%v%d = cast %%v%d : %s[%s] ", c, a, dtypes[pick(3)],
                  dims);
        break;
    case 2: sb_printf(&r->sb, "%%v%d = %s %%v%d ", c, unary[pick(6)], a); break;
    case 3: /* a window, moved by one row */
        sb_printf(&r->sb,
                  "%%s%d = slice %%v%d {starts=[1,0], sizes=[%s], "
                  "steps=[1,1]} %%v%d = pad %%s%d {pads=[0,0,1,0], "
                  "value=0.5} ",
                  c, a, shape ? "22,6" : "5,23", c, c);
        break;
    case 4: /* turned round */
        sb_printf(&r->sb,
                  "%%s%d = slice %%v%d {starts=[0,0], sizes=[%s], "
                  "steps=[1,1]} %%t%d = slice %%v%d {starts=[0,%s], "
                  "sizes=[%s], steps=[1,1]} "
                  "%%v%d = concat %%t%d, %%s%d {axis=1} ",
                  c, a, shape ? "23,2" : "6,9", c, a, shape ? "2" : "9",
                  shape ? "23,4" : "6,14", c, c, c);
        break;
    default:
        sb_printf(&r->sb, "%%v%d = %s %%v%d, %%v%d ", c, binary[pick(5)], a, b);
    }
    r->shape[r->n++] = shape;
}

static const char *random_graph(Arena *a) {
    RandomGraph r = {.n = 4, .shape = {0, 1, 0, 1}};
    StrBuf text = {0};
    int nodes = 4 + pick(24);
    for (int i = 0; i < nodes; i++) random_node(&r);
    sb_printf(&text, "graph g(%%v0: f32[6,23], %%v1: bf16[23,6], "
                     "%%v2: f16[6,23]"
                     ", %%v3: f32[23,6]) { group point { ");
    sb_putn(&text, r.sb.data, r.sb.len);
    int y = r.n - 1;
    sb_printf(&text, "%%z = add %%v%d, %%v%d } return %%z }", y,
              pick_shaped(&r, r.shape[y]));
    const char *s = arena_printf(a, "%s", text.data);
    sb_free(&r.sb);
    sb_free(&text);
    return s;
}

TEST_CASE(kernel, random_graphs) {
    enum { N = 60 };
    static Subject s[N];
    Arena *a = arena_new();
    random_state = 2;
    for (int i = 0; i < N; i++) s[i] = (Subject){.text = random_graph(a)};
    check_batch(s, N, "");
    arena_free(a);
}

/* ---- random reductions --------------------------------------------------- */

/* Two levels of reductions over the same axes.  All numbers are whole ones
   below 2^24, so that sums are exact in any order. */
static const char *random_rows(Arena *a) {
    static const int dims[] = {5, 1, 20, 70};
    static const char *const folds[] = {"sum", "max", "min"};
    static const char *const ops[] = {"add", "sub", "max", "min"};
    static const char *const axes[] = {"0",   "1",   "2",    "0,1",
                                       "0,2", "1,2", "0,1,2"};
    int d[3] = {dims[pick(4)], dims[pick(4)], dims[pick(3)]};
    bool large = d[0] * d[1] * d[2] > 1500; /* sums of sums would be too */
    const char *ax = axes[pick(7)], *dt = pick(2) ? "f32" : "bf16";
    return arena_printf(
        a,
        "graph g(%%x: %s[%d,%d,%d], %%z: f32[%d,%d,%d], %%w: f32[%d]) {"
        " group row { %%a = round %%x %%b = round %%z %%v = round %%w "
        "%%c = %s %%a, %%v : f32[%d,%d,%d] "
        "%%r = reduce_%s %%c {axes=[%s]} %%q = reduce_%s %%b {axes=[%s]} "
        "%%n = neg %%r %%e = %s %%n, %%b %%f = %s %%e, %%q "
        "%%s = reduce_%s %%f {axes=[%s]} %%y = %s %%s, %%f %%t = add %%s, %%q }"
        " return %s }",
        dt, d[0], d[1], d[2], d[0], d[1], d[2], d[2], ops[pick(4)], d[0], d[1],
        d[2], folds[pick(3)], ax, folds[pick(3)], ax, ops[pick(4)],
        ops[pick(4)], folds[large ? 1 : pick(3)], ax, ops[pick(4)],
        pick(3) == 0   ? "%y, %s, %t"
        : pick(2) == 0 ? "%y, %c"
                       : "%t, %f, %r");
}

TEST_CASE(kernel, random_reductions) {
    enum { N = 50 };
    static Subject s[N];
    Arena *a = arena_new();
    random_state = 3;
    for (int i = 0; i < N; i++) s[i] = (Subject){.text = random_rows(a)};
    check_batch(s, N, "");
    arena_free(a);
}

/* ---- properties of the text ---------------------------------------------- */

static Subject lowered(const char *text) {
    Subject s = {.text = text};
    subject_begin(&s);
    return s;
}

/* Equal updates of tensors of different sizes are one kernel. */
TEST_CASE(kernel, flat_kernels_are_shared) {
    Subject s = lowered(
        "graph g(%a: f32[10], %b: f32[3,4], %s: f32[], %c: f32[7]) {"
        " group point { %x = mul %a, %s } group point { %y = mul %b, %s }"
        " group point { %z = mul %c, %c } return %x, %y, %z }");
    CHECK_EQ_INT(kernel_set_count(s.ks, false), 2);
    CHECK(s.steps[0].kernel == s.steps[1].kernel);
    CHECK_EQ_INT(s.steps[0].npar, 1);
    CHECK_EQ_INT(s.steps[1].pars[0], 12);
    CHECK_EQ_INT(kernel_set_count(s.ks, true), 0);
    subject_end(&s);
}

/* A hand-over to another thread costs as much as some thousand elements of
   cheap work; a large tensor keeps many threads busy. */
TEST_CASE(kernel, work_is_handed_over_in_sizes_that_pay) {
    Subject s =
        lowered("graph g(%a: f32[4194304], %b: f32[4096,1024], %c: f32[300]) {"
                " group point { %x = mul %a, %a }"
                " group row { %s = reduce_sum %b {axes=[1]} %y = mul %b, %s }"
                " group point { %z = mul %c, %c } return %x, %y, %z }");
    for (int i = 0; i < 2; i++) {
        int64_t parts = s.steps[i].units / s.steps[i].grain;
        CHECK_MSG(parts >= 16 && parts <= 1024, "step %d: %lld parts", i,
                  (long long)parts);
    }
    CHECK(s.steps[2].units <= s.steps[2].grain);
    subject_end(&s);
}

/* Concatenation and padding along the inner dim leave no condition inside a
   loop. */
TEST_CASE(kernel, guards_cut_the_loop) {
    Subject s = lowered("graph g(%a: f32[5,30], %b: f32[5,40],"
                        " %x: f32[4,3,60], %y: f32[4,5,60]) {"
                        " group point { %c = concat %a, %b {axis=1} }"
                        " group point { %p = pad %a {pads=[0,2,0,3], value=1} }"
                        " group point { %q = concat %x, %y {axis=1} }"
                        " return %c, %p, %q }");
    StrBuf sb = {0};
    print_c_kernels(s.ks, &sb, "", true);
    CHECK(strstr(sb.data, "?") == NULL);
    CHECK_HAS(sb.data, "i1 = 30; i1 < 70;");
    CHECK_HAS(sb.data, "i1 = 2; i1 < 32;");
    CHECK_HAS(sb.data, "if (i1 < 3) {");
    sb_free(&sb);
    subject_end(&s);
}

/* What differs in sizes and constants only is one function. */
TEST_CASE(kernel, one_text_is_compiled_once) {
    Subject s[] = {
        {.text = "graph g(%a: f32[6,70], %b: f32[9,300], %c: f32[5,11]) {"
                 " group row { %m = reduce_mean %a {axes=[1]}"
                 " %x = sub %a, %m }"
                 " group row { %n = reduce_mean %b {axes=[1]}"
                 " %y = sub %b, %n }"
                 " group row { %o = reduce_mean %c {axes=[1]}"
                 " %z = sub %c, %o } return %x, %y, %z }",
         .ulps = 4,
         .scale = 1},
        {.text = "graph g(%a: f32[4,10,50], %b: f32[10,1],"
                 " %c: f32[5,12,60], %d: f32[12,1]) {"
                 " const %p: f32[] = 2.5 const %q: f32[] = 3"
                 " group point { %x0 = mul %a, %b %x = add %x0, %p }"
                 " group point { %y0 = mul %c, %d %y = add %y0, %q }"
                 " return %x, %y }"},
        {.text = "graph g(%a: f32[8,40,50], %b: f32[9,44,60]) {"
                 " group row { %x = reduce_sum %a {axes=[0,2]} }"
                 " group row { %y = reduce_sum %b {axes=[0,2]} }"
                 " group row { %u = reduce_max %a {axes=[1]} }"
                 " group row { %v = reduce_max %b {axes=[1]} }"
                 " return %x, %y, %u, %v }",
         .ulps = 16,
         .scale = 50},
    };
    static const int functions[] = {2, 1, 2}, kernels[] = {3, 2, 4};
    for (int i = 0; i < (int)(sizeof s / sizeof *s); i++) {
        StrBuf sb = {0};
        Subject one = lowered(s[i].text);
        int loops = 0, heads = 0;
        print_c_kernels(one.ks, &sb, "", true);
        for (const char *t = sb.data; (t = strstr(t, "\nvoid ")); t++) heads++;
        for (const char *t = sb.data; (t = strstr(t, "b0 = buf[0];")); t++)
            loops++;
        CHECK_EQ_INT(loops, functions[i]);
        CHECK_EQ_INT(heads, kernels[i]);
        CHECK(!strpbrk(sb.data, "\1\2"));
        sb_free(&sb);
        subject_end(&one);
    }
    CHECK_GRAPHS(s, "-Wall -Werror -Wno-unused");
}

/* Rank-0 constants are no buffers. */
TEST_CASE(kernel, scalar_constants_are_immediates) {
    Subject s = lowered("graph g(%a: f32[10]) { const %c: f32[] = 2.5 "
                        "group point { %x = mul %a, %c } return %x }");
    CHECK_EQ_INT(s.steps[0].nref, 2);
    subject_end(&s);
}

/* No name of the model can end a comment or spoil the source. */
TEST_CASE(kernel, hostile_names) {
    Subject s[] = {
        {.text = "graph g(%\"*/ #error no\\n\": f32[3]) { group point {"
                 "%\"a*/int main(){}//\" = neg %\"*/ #error no\\n\" }"
                 " return %\"a*/int main(){}//\" }"},
        {.text = "graph g(%\"?"
                 "?/\\x0d\\n\": f32[3]) { group point {"
                 "%\"\\\\\" = neg %\"?"
                 "?/\\x0d\\n\" }"
                 " return %\"\\\\\" }"},
    };
    CHECK_GRAPHS(s, "-Wall -Werror -Wno-unused");
}

/* An output may lie over an input that is read at its own index only. */
TEST_CASE(kernel, in_place) {
    Subject s = lowered(ROW("%x: f32[6,70]",
                            "%m = reduce_max %x {axes=[1]} %d = sub %x, %m "
                            "%t = reduce_sum %d {axes=[1]} %y = mul %d, %t",
                            "%y"));
    StrBuf sb = {0};
    print_c_kernels(s.ks, &sb, "g0_", true);
    void *lib = compile_source(sb.data, sb.len, "");
    sb_free(&sb);
    const LoweredStep *st = &s.steps[0];
    size_t n = 6 * 70 * sizeof(float);
    float *want = s.data[st->refs[1].i], *x = s.data[st->refs[0].i];
    load_input(&s, st->refs[0]);
    run_all(&s, lib, 0, false);
    float *apart = memcpy(malloc(n), want, n);
    s.data[st->refs[1].i] = x;
    run_all(&s, lib, 0, false);
    CHECK_MEM(apart, x, n);
    s.data[st->refs[1].i] = want;
    free(apart);
    dlclose(lib);
    subject_end(&s);
}
