/* SPDX-License-Identifier: Apache-2.0 */
/* random_test.c: random graphs, so that ops occur in unforeseen groups. Every
   graph is a part of one program "predict":
     - shuffled versions have the same bits; unfused ones may sum in another
       order;
     - the CPU agrees with the interpreter, the simulated GPU with the CPU.  */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/ops_run.h"
#include "tests/support/random_graph.h"
#include "tests/tolerance.h"

enum { GRAPHS = 24, NODES = 24 };

/* ---- making graphs ------------------------------------------------------- */

static void add_input(RandomGraph *p, OpsBench *bench, int graph, int rank,
                      const int64_t *dim) {
    char name[32];
    OpsRange range = {"", -2, 2};
    snprintf(name, sizeof name, "x%d.%d", graph, p->n);
    random_keep(p, graph_input(p->b.g, intern(name),
                               type_make(random_dtype(p), rank, dim)));
    vec_push(bench->a, &bench->ranges, range);
}

static void add_outputs(RandomGraph *p, OpsBench *bench, int graph) {
    int *uses = graph_use_counts(p->b.g, bench->a);
    for (int i = p->nleaf; i < p->n; i++) {
        if (uses[p->v[i].i] && random_below(6)) continue;
        Output o = {.name = internf("g%d.%d", graph, i), .value = p->v[i]};
        vec_push(bench->a, &p->b.g->outputs, o);
    }
}

static void add_graph(OpsBench *bench, int graph, bool low) {
    RandomGraph p = {.b = {.g = bench->all}, .low = low};
    int64_t r = 1 + random_below(12), c = random_below(4)
                                              ? 1 + random_below(40)
                                              : 200 + random_below(1200);
    int64_t b = 1 + random_below(5);
    add_input(&p, bench, graph, 2, (int64_t[]){r, c});
    add_input(&p, bench, graph, 1, (int64_t[]){c});
    add_input(&p, bench, graph, 2, (int64_t[]){r, 1});
    add_input(&p, bench, graph, 3, (int64_t[]){b, r, c});
    p.nleaf = p.n;
    random_nodes(&p, NODES);
    add_outputs(&p, bench, graph);
    bench->instances++;
}

static OpsBench random_bench(uint64_t seed, bool low) {
    OpsBench b = {.a = arena_new()};
    random_seed(seed);
    b.m = module_new(b.a, "random");
    b.all = graph_new(b.m, "predict");
    for (int i = 0; i < GRAPHS; i++) add_graph(&b, i, low);
    return b;
}

/* ---- running ------------------------------------------------------------- */

static double allowed(bool low) {
    return low ? TOL_RANDOM_LOW : TOL_RANDOM_F32;
}

static void compare(const OpsBench *b, const EvalTensor **want,
                    const OpsData *d, bool low) {
    for (int i = 0; i < d->nout; i++) {
        const Output *o = &b->all->outputs.data[i];
        Tensor got = {value_get(b->all, o->value)->type, d->out[i].data};
        double scale = 0, worst = 0;
        int64_t n = type_count(type_get(got.type));
        for (int64_t k = 0; k < n; k++) {
            double w = want[i]->f[k], g = tensor_get(&got, k);
            if (isnan(w) && isnan(g)) continue;
            scale = fmax(scale, fabs(w));
            if (!(fabs(w - g) <= worst)) worst = fabs(w - g);
        }
        CHECK_MSG(worst <= allowed(low) * scale + TOL_RANDOM_FLOOR,
                  "%s: off by %g of %g", o->name, worst, scale);
    }
}

static void check_random(uint64_t seed, bool low) {
    OpsBench b = random_bench(seed, low);
    Diag diag = {0};
    Evaluator *e = eval_new(b.all, b.a, EVAL_STORAGE);
    OpsData d = ops_data_new(&b, e);
    char options[200];
    size_t n;
    if (eval_run(e, &diag) != OK) FAIL("%s", diag.text.data);
    const EvalTensor **want = ops_wanted(&b, e);
    const char *text = ops_text(&b);
    const char *level = "--precision fp32 --target cpu:x86-64-v2";
    Compiled c = compile_text_optimised(text, level);
    ops_run_with(&c, &d, 2);
    compare(&b, want, &d, low);
    char *bits = ops_all_bytes(&d, &n);
    compiled_close(&c);
    snprintf(options, sizeof options, "%s --shuffle 3", level);
    c = compile_text(text, options);
    ops_run_with(&c, &d, 2);
    ops_check_same_bits(&d, bits, "shuffling");
    compiled_close(&c);
    snprintf(options, sizeof options, "%s --no-fuse", level);
    c = compile_text(text, options);
    ops_run_with(&c, &d, 2);
    compare(&b, want, &d, low);
    compiled_close(&c);
    free(bits);
    arena_free(b.a);
}

/* script/test --slow runs more of them. */
static void for_seeds(void (*check)(uint64_t seed, bool low), bool low) {
    for (uint64_t seed = 1; seed <= (test_slow() ? 20 : 1); seed++)
        check(seed, low);
}

TEST_CASE(random_graphs, fp32_on_the_cpu) { for_seeds(check_random, false); }

TEST_CASE(random_graphs, mixed_on_the_cpu) { for_seeds(check_random, true); }

static void check_gpu(uint64_t seed, bool low) {
    OpsBench b = random_bench(seed, low);
    Diag diag = {0};
    Evaluator *e = eval_new(b.all, b.a, EVAL_STORAGE);
    OpsData d = ops_data_new(&b, e);
    if (eval_run(e, &diag) != OK) FAIL("%s", diag.text.data);
    const EvalTensor **want = ops_wanted(&b, e);
    ops_on_gpu(ops_text(&b), GPU_PTX, seed, &d);
    compare(&b, want, &d, low);
    arena_free(b.a);
}

TEST_CASE(random_graphs, fp32_on_the_gpu) { for_seeds(check_gpu, false); }

TEST_CASE(random_graphs, mixed_on_the_gpu) { for_seeds(check_gpu, true); }
