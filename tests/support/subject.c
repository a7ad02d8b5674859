/* SPDX-License-Identifier: Apache-2.0 */
/* subject.c: graphs as C compared with the interpreter (subject.h). */
#define _POSIX_C_SOURCE 200809L
#include "ir/text/text.h"
#include "passes/device/fold.h"
#include "tests/support/subject.h"

#include "tests/support/cpu_levels.h"
#include "tests/harness.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one graph ----------------------------------------------------------- */

static uint64_t random_state = 1;

void random_start(uint64_t state) { random_state = state; }

uint32_t random_bits(void) {
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
    char *p = malloc(n ? n : 1); /* exactly sized: sanitizers see overruns */
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

void subject_load(Subject *s, ValueId v) {
    TypeId t = value_get(s->g, v)->type;
    const Tensor *x = eval_to_tensor(s->a, s->in[v.i], t);
    memcpy(s->data[v.i], x->data, (size_t)type_bytes(type_get(t)));
}

void subject_begin(Subject *s) {
    Diag d = {0};
    Module *m = NULL;
    s->a = arena_new();
    Status st =
        parse_module(s->a, &d, "test.amp", s->text, strlen(s->text), &m);
    if (!CHECK_MSG(st == OK, "%s\n%s", d.text.data, s->text)) harness_leave();
    s->g = m->graphs.data[0];
    st = verify_graph(s->g, STAGE_FUSED, &d);
    if (!CHECK_MSG(st == OK, "%s\n%s", d.text.data, s->text)) harness_leave();
    s->ks = kernel_set_new(s->a, TARGET_CPU, GPU_BLOCK_SHARED);
    s->nstep = s->g->groups.len;
    REQUIRE(lower_graph(s->g, s->ks, &d, &s->steps) == OK);
    s->texts = kernel_texts(s->a, s->ks);
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

void subject_end(Subject *s) {
    for (int i = 1; i < s->g->values.len; i++) free(s->data[i]);
    arena_free(s->a);
}

/* ---- running ------------------------------------------------------------- */

static void **resolve(Subject *s, const ValueId *refs, int n) {
    void **p = NEW_ARRAY(s->a, void *, n + 1);
    for (int i = 0; i < n; i++) p[i] = refs[i].i ? s->data[refs[i].i] : NULL;
    return p;
}

/* A kernel's function, or its table: NULL if it has none. */
static void *symbol(const Subject *s, void *lib, int graph, bool table,
                    bool epilogue, const Kernel *k) {
    StrBuf name = {0};
    const KernelText *t = kernel_text(s->texts, epilogue, kernel_index(k));
    sb_printf(&name, "g%d_", graph);
    (table ? sb_put_kernel_table : sb_put_kernel_name)(&name, t);
    void *f = table && !t->sizes.len ? NULL : dlsym(lib, name.data);
    if (!CHECK_MSG(f || (table && !t->sizes.len), "no symbol %s", name.data))
        harness_leave();
    sb_free(&name);
    return f;
}

static void run_kernel(Subject *s, const LoweredStep *st, void *lib, int graph,
                       bool split) {
    PlanKernelFn *f;
    void **buf = resolve(s, st->refs, st->nref);
    void *fn = symbol(s, lib, graph, false, false, st->kernel);
    void *table = symbol(s, lib, graph, true, false, st->kernel);
    memcpy(&f, &fn, sizeof f);
    if (!split) {
        f(buf, table, st->pars, 0, st->units);
        return;
    }
    for (int64_t u = st->units - 1; u >= 0; u--)
        f(buf, table, st->pars, u, u + 1);
}

static void run_lib(Subject *s, const LoweredStep *st, void *lib, int graph) {
    enum { SCRATCH = 1 << 26 };
    CpuEpilogue ep = {.buf = resolve(s, st->ep_refs, st->nep_ref)};
    CpuLibCall c = {.par = st->pars,
                    .buf = resolve(s, st->refs, st->nref),
                    .epilogue = &ep};
    int64_t npar = lib_info(st->lib)->npar, own = lib_info(st->lib)->noperand;
    CpuPool pool = {.buf = c.buf + own, .count = st->nep_ref};
    REQUIRE(st->npar ==
            npar + (st->second ? (int)lib_info(st->second - 1)->npar : 0));
    REQUIRE(cpu_lib_scratch(st->lib, st->pars, 1) <= SCRATCH / 2);
    if (st->second) {
        pool.lib = (PlanLib)(st->second - 1);
        pool.par = (const void *)(st->pars + npar);
        for (int i = 0; i < st->nep_ref; i++)
            if (!st->ep_refs[i].i) pool.at = (void **)&ep.buf[i];
        ep.pool = &pool;
        REQUIRE(cpu_pool_scratch((const void *)st->pars, pool.par, 1) <=
                SCRATCH / 2);
    }
    if (st->epilogue) {
        void *fn = symbol(s, lib, graph, false, true, st->epilogue);
        memcpy(&ep.fn, &fn, sizeof ep.fn);
        ep.table = symbol(s, lib, graph, true, true, st->epilogue);
    }
    REQUIRE(posix_memalign(&c.scratch, 64, SCRATCH) == 0);
    cpu_lib_run(&ampc_v2_level, st->lib, &c);
    free(c.scratch);
}

void subject_run(Subject *s, void *lib, int graph, bool split) {
    for (int i = 0; i < s->nstep; i++) {
        const LoweredStep *st = &s->steps[i];
        if (st->kind == PLAN_KERNEL)
            run_kernel(s, st, lib, graph, split);
        else
            run_lib(s, st, lib, graph);
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

/* The bytes of all outputs, which are then overwritten. */
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
    subject_run(s, lib, graph, split);
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
            subject_load(s, (ValueId){(uint32_t)i});
        }
    if (!CHECK_MSG(eval_run(e, &d) == OK, "%s\n%s", d.text.data, s->text))
        return;
    subject_run(s, lib, graph, false);
    for (int i = 0; i < s->g->outputs.len; i++) {
        ValueId v = s->g->outputs.data[i].value;
        compare_output(s, v, eval_get(e, v));
    }
    void **first = take_outputs(s);
    same_outputs(s, first, lib, graph, true);
    if (other) same_outputs(s, first, other, graph, false);
}

/* ---- a batch of graphs --------------------------------------------------- */

/* Under sanitizers the generated code is checked, too. */
#ifdef __SANITIZE_ADDRESS__
#define SANITIZE                                                               \
    " -fsanitize=address,undefined -fno-sanitize-recover=undefined "
enum { LEVELS = 0 };
#else
#define SANITIZE " "
enum { LEVELS = 1 }; /* compares the bits of two ISA levels */
#endif

void *compile_source(const char *text, size_t n, const char *flags) {
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

void check_batch(Subject *s, int n, const char *flags) {
    StrBuf sb = {0};
    random_state = 1; /* the same data, whichever cases run */
    for (int i = 0; i < n; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "g%d_", i);
        subject_begin(&s[i]);
        print_c_kernels(s[i].texts, &sb, prefix,
                        (KernelPart){KERNELS_ALL, 0, 1});
        print_c_sizes(s[i].texts, &sb, prefix);
    }
    void *lib = compile_source(sb.data, sb.len, flags), *other = NULL;
    if (LEVELS && __builtin_cpu_supports("avx2") &&
        __builtin_cpu_supports("fma"))
        other = compile_source(sb.data, sb.len, "-march=x86-64-v3 -mno-fma");
    sb_free(&sb);
    for (int i = 0; i < n; i++) {
        check_subject(&s[i], lib, other, i);
        subject_end(&s[i]);
    }
    dlclose(lib);
    if (other) dlclose(other);
}
