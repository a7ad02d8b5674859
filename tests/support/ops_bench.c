/* SPDX-License-Identifier: Apache-2.0 */
/* ops_bench.c: the graphs of tests/ops as one program (ops_bench.h). */
#define _GNU_SOURCE
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/text/text.h"
#include "passes/passes.h"
#include "tests/support/device_check.h"
#include "tests/support/ops_bench.h"
#include "tests/support/parts.h"

typedef struct OpsFile {
    char dtypes[128];
    OpsRange range[16];
    int nrange;
    bool nograd;
} OpsFile;

/* ---- reading the files --------------------------------------------------- */

static OpsFile read_header(const char *text) {
    OpsFile f = {.dtypes = "f32 bf16 f16 f64"};
    for (; *text == '#'; text += strcspn(text, "\n") + 1) {
        OpsRange r;
        if (sscanf(text, "# dtypes %127[^\n]", f.dtypes) == 1) continue;
        if (!strncmp(text, "# nograd", 8)) f.nograd = true;
        if (sscanf(text, "# input %63s %lf %lf", r.name, &r.lo, &r.hi) == 3) {
            REQUIRE(f.nrange < 16);
            f.range[f.nrange++] = r;
        }
    }
    return f;
}

char *ops_with_dtype(const char *text, const char *dtype) {
    OpsFile f = read_header(text);
    StrBuf sb = {0};
    if (!strstr(f.dtypes, dtype)) {
        f.dtypes[strcspn(f.dtypes, " ")] = 0;
        dtype = f.dtypes;
    }
    for (; *text; text++) {
        bool mark = text[0] == '$' && text[1] == 'T';
        if (mark)
            sb_puts(&sb, dtype);
        else
            sb_putn(&sb, text, 1);
        text += mark;
    }
    return sb.data;
}

/* ---- making one big program ---------------------------------------------- */

static OpsRange range_of(const OpsFile *f, Str name) {
    for (int i = 0; i < f->nrange; i++)
        if (!strcmp(f->range[i].name, name)) return f->range[i];
    return (OpsRange){"", -2, 2};
}

/* The function of a call, and the functions that its body calls. */
static void mark_fn(const Graph *g, const Node *n, bool *seen) {
    const Type *types[MAX_FN_OPERANDS];
    if (!n->fn) return;
    for (int i = 0; i < fn_std_count(); i++)
        if (fn_std_at(i) == n->fn) seen[i] = true;
    for (int i = 0; i < n->nin; i++)
        types[i] = is_value(n->in[i]) ? value_type(g, n->in[i]) : NULL;
    const Graph *body = fn_instance(n, types)->g;
    for (int i = 0; i < body->order.len; i++)
        mark_fn(body, node_get(body, body->order.data[i]), seen);
}

static void graft(OpsBench *b, const OpsFile *f, const Graph *g,
                  const char *prefix) {
    Held held = {0};
    parts_add(b->all, g, prefix, &held);
    REQUIRE(!held.len); /* graphs are small */
    for (int i = 0; i < g->inputs.len; i++)
        vec_push(b->a, &b->ranges,
                 range_of(f, value_get(g, g->inputs.data[i])->name));
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        b->seen[n->op] = true;
        mark_fn(g, n, b->fn_seen);
    }
}

/* ---- gradients ----------------------------------------------------------- */

/* Replaces the outputs by the gradients of float inputs; false: none. */
static bool to_gradients(OpsBench *bench, Graph *g) {
    int forward = g->order.len;
    Diag d = {0};
    if (parts_to_gradients(g, &d) != OK)
        FAIL("autodiff of %s: %s", g->name, d.text.data);
    for (int i = 0; i < forward && g->outputs.len; i++) {
        const Node *x = node_get(g, g->order.data[i]);
        bench->differentiated[x->op] = true;
        mark_fn(g, x, bench->fn_differentiated);
    }
    return g->outputs.len > 0;
}

static void drop_dead(OpsBench *b, Module *m) {
    PassCtx cx = {b->a, NULL, NULL};
    REQUIRE(pass_dce(m, &cx) == OK);
}

/* turn, of that many: of the dtype among the file's. */
static void add_instance(OpsBench *b, const OpsFile *f, const char *name,
                         const char *text, const char *dtype, int turn,
                         int turns) {
    char prefix[128];
    for (int grad = 0; grad <= !f->nograd; grad++) {
        Diag d = {0};
        Module *m;
        if (parse_module(b->a, &d, name, text, strlen(text), &m) != OK)
            FAIL("%s", d.text.data);
        for (int i = 0; i < m->graphs.len; i++) {
            Graph *g = m->graphs.data[i];
            if (b->in_turn && (i + grad) % turns != turn) continue;
            snprintf(prefix, sizeof prefix, "%s.%s.%s.%s", name, g->name, dtype,
                     grad ? "g." : "");
            if (grad && !to_gradients(b, g)) continue;
            drop_dead(b, m);
            graft(b, f, g, prefix);
            b->instances++;
        }
    }
}

const char *ops_bench_only(void) { return getenv("AMPC_OPS"); }

static void add_file(const char *path, const char *name, void *arg) {
    OpsBench *b = arg;
    size_t n;
    if (ops_bench_only() && fnmatch(ops_bench_only(), name, 0)) return;
    char *text = test_read_file(path, &n);
    OpsFile f = read_header(text);
    int turns = 1;
    for (const char *p = f.dtypes; (p = strchr(p, ' ')); p++) turns++;
    /* files begin with different dtypes */
    int turn = (int)(hash_bytes(0, name, strlen(name)) % (uint64_t)turns);
    for (char *d = strtok(f.dtypes, " "); d;
         d = strtok(NULL, " "), turn = (turn + 1) % turns) {
        if (b->without && !strcmp(d, b->without)) continue;
        char *instance = ops_with_dtype(text, d);
        add_instance(b, &f, name, instance, d, turn, turns);
        free(instance);
    }
    free(text);
}

static OpsBench bench_of(OpsBench b) {
    b.a = arena_new();
    b.fn_seen = NEW_ARRAY(b.a, bool, fn_std_count());
    b.fn_differentiated = NEW_ARRAY(b.a, bool, fn_std_count());
    b.m = module_new(b.a, "ops");
    b.all = graph_new(b.m, "predict");
    test_each_file("tests/ops", ".amp", add_file, &b);
    return b;
}

OpsBench ops_bench_new(void) { return bench_of((OpsBench){0}); }

OpsBench ops_bench_without(const char *dtype) {
    return bench_of((OpsBench){.without = dtype});
}

OpsBench ops_bench_in_turn(void) {
    return bench_of((OpsBench){.in_turn = true});
}

const char *ops_text(const OpsBench *b) {
    StrBuf text = {0};
    print_module(b->m, &text);
    const char *r = arena_printf(b->a, "%s", text.data);
    sb_free(&text);
    return r;
}

/* ---- running ------------------------------------------------------------- */

typedef struct Data {
    ampc_input *in;
    ampc_output *out;
    void **mem;
    int nin, nout;
} Data;

static double uniform(uint64_t *s) {
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (double)(*s >> 11) / 9007199254740992.0;
}

static Tensor *random_tensor(Arena *a, TypeId type, const OpsRange *r,
                             uint64_t *seed) {
    Tensor *t = tensor_new(a, type);
    const Type *ty = type_get(type);
    for (int64_t i = 0; i < type_count(ty); i++) {
        double v = r->lo + (r->hi - r->lo) * uniform(seed);
        if (ty->dtype == DT_BOOL)
            tensor_set_int(t, i, v > 0);
        else if (dtype_is_float(ty->dtype))
            tensor_set(t, i, v);
        else
            tensor_set_int(t, i, (int64_t)floor(v));
    }
    return t;
}

/* An input's numbers follow from its name: a further case leaves those of the
   others as they are. */
OpsData ops_data_new(OpsBench *b, Evaluator *e) {
    enum { SEED = 12345 };
    Graph *g = b->all;
    OpsData d = {NEW_ARRAY(b->a, ampc_input, g->inputs.len),
                 NEW_ARRAY(b->a, ampc_output, g->outputs.len), g->inputs.len,
                 g->outputs.len};
    for (int i = 0; i < d.nin; i++) {
        const Value *v = value_get(g, g->inputs.data[i]);
        uint64_t seed = hash_bytes(SEED, v->name, strlen(v->name));
        Tensor *t = random_tensor(b->a, v->type, &b->ranges.data[i], &seed);
        if (e) eval_bind(e, g->inputs.data[i], eval_from_tensor(b->a, t));
        d.in[i] =
            ampc_in(v->name, t->data, (size_t)type_bytes(type_get(v->type)),
                    (ampc_dtype)type_get(v->type)->dtype);
    }
    for (int i = 0; i < d.nout; i++) {
        const Output *o = &g->outputs.data[i];
        size_t bytes = (size_t)type_bytes(value_type(g, o->value));
        d.out[i] = ampc_out(o->name, arena_alloc(b->a, bytes + 8), bytes,
                            (ampc_dtype)value_dtype(g, o->value));
    }
    return d;
}

void ops_run(const Compiled *c, ampc_session *s, OpsData *d) {
    for (int i = 0; i < d->nout; i++)
        memset(d->out[i].data, 0, d->out[i].bytes);
    ampc_program_info p = {.size = sizeof p};
    REQUIRE(!c->api->program(c->api->module, "predict", &p));
    ampc_module_info info = {.size = sizeof info};
    REQUIRE(!c->api->describe(c->api->module, &info));
    if (c->api->predict(s, d->in, (size_t)d->nin, info.batch, d->out,
                        (size_t)d->nout))
        FAIL("predict: %s", c->api->error(s));
}

void ops_run_with(const Compiled *c, OpsData *d, int threads) {
    ampc_session *s = open_threads(c, threads);
    ops_run(c, s, d);
    c->api->close(s);
}

static void compare(const OpsBench *b, const EvalTensor *want, const OpsData *d,
                    int i) {
    const Output *o = &b->all->outputs.data[i];
    Type t = *value_type(b->all, o->value);
    Tensor got = {value_get(b->all, o->value)->type, d->out[i].data};
    double worst = 0, scale = 0;
    int64_t at = -1;
    for (int64_t k = 0; k < type_count(&t); k++) {
        bool fl = dtype_is_float(t.dtype);
        double w = fl ? want->f[k] : (double)want->i[k];
        double g = fl ? tensor_get(&got, k) : (double)tensor_get_int(&got, k);
        if (isfinite(w)) scale = fmax(scale, fabs(w));
        if (w == g || (isnan(w) && isnan(g))) continue;
        double off = fabs(w - g);
        if (at < 0 || !(off <= worst)) worst = off, at = k;
    }
    CHECK_MSG(
        at < 0 ||
            worst <= dc_output_tolerance((ampc_dtype)t.dtype) * scale + 1e-30,
        "%s[%lld]: off by %g of %g", o->name, (long long)at, worst, scale);
}

const EvalTensor **ops_wanted(const OpsBench *b, const Evaluator *e) {
    const Graph *g = b->all;
    const EvalTensor **w = NEW_ARRAY(b->a, const EvalTensor *, g->outputs.len);
    for (int i = 0; i < g->outputs.len; i++)
        w[i] = eval_get(e, g->outputs.data[i].value);
    return w;
}

void ops_compare(const OpsBench *b, const EvalTensor **want, const OpsData *d) {
    for (int i = 0; i < d->nout; i++) compare(b, want[i], d, i);
}

char *ops_all_bytes(const OpsData *d, size_t *n) {
    char *p = NULL;
    *n = 0;
    for (int i = 0; i < d->nout; i++) {
        p = realloc(p, *n + d->out[i].bytes + 1);
        memcpy(p + *n, d->out[i].data, d->out[i].bytes);
        *n += d->out[i].bytes;
    }
    return p;
}

void ops_check_same_bits(const OpsData *d, const char *want, const char *how) {
    for (int i = 0; i < d->nout; i++) {
        CHECK_MSG(!memcmp(d->out[i].data, want, d->out[i].bytes),
                  "%s changes bits of %s", how, d->out[i].name);
        want += d->out[i].bytes;
    }
}

char *ops_bytes_of(const OpsData *all, const OpsData *d) {
    char *p = NULL;
    size_t n = 0;
    for (int i = 0, at = 0; i < d->nout; i++) {
        const ampc_output *o = &d->out[i];
        while (at < all->nout && strcmp(all->out[at].name, o->name)) at++;
        REQUIRE(at < all->nout && all->out[at].bytes == o->bytes);
        p = realloc(p, n + o->bytes + 1);
        memcpy(p + n, all->out[at].data, o->bytes);
        n += o->bytes;
    }
    return p;
}
