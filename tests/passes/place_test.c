/* place_test.c: what pass place promises, looked at in planned graphs of a
   transformer block that trains.                                            */
#include <string.h>

#include "frontend/driver/options_text.h"
#include "passes/passes.h"
#include "passes/target/flow.h"
#include "tests/harness.h"

static const char block[] =
    "graph forward(%x: f32[8,32,64], %m: bool[8,1,1,32]) {\n"
    "  param %wq: f32[64,64] = normal(1, 0.1), %wk: f32[64,64] = normal(2, "
    "0.1)\n"
    "  param %wv: f32[64,64] = normal(3, 0.1), %wo: f32[64,64] = normal(4, "
    "0.1)\n"
    "  param %up: f32[64,256] = normal(5, 0.1)\n"
    "  param %down: f32[256,64] = normal(6, 0.1), %b: f32[256] = 0\n"
    "  param %s: f32[64] = 1, %c: f32[64] = 0\n"
    "  %n, %mean, %rstd = layer_norm %x, %s, %c\n"
    "  %q = matmul %n, %wq\n  %k = matmul %n, %wk\n  %v = matmul %n, %wv\n"
    "  %q3 = reshape %q {shape=[8,32,4,16]}\n"
    "  %k3 = reshape %k {shape=[8,32,4,16]}\n"
    "  %v3 = reshape %v {shape=[8,32,4,16]}\n"
    "  %qh = transpose %q3 {perm=[0,2,1,3]}\n"
    "  %kh = transpose %k3 {perm=[0,2,1,3]}\n"
    "  %vh = transpose %v3 {perm=[0,2,1,3]}\n"
    "  %scores = matmul %qh, %kh {trans_b=1}\n"
    "  %far = where %m, 0, -inf : f32[8,1,1,32]\n"
    "  %masked = add %scores, %far\n"
    "  %p = softmax %masked {axis=3}\n"
    "  %nan = isnan %p\n  %safe = where %nan, 0, %p : f32[8,4,32,32]\n"
    "  %a = matmul %safe, %vh\n"
    "  %a3 = transpose %a {perm=[0,2,1,3]}\n"
    "  %a2 = reshape %a3 {shape=[8,32,64]}\n"
    "  %o = matmul %a2, %wo\n  %r = add %x, %o\n"
    "  %t, %mean2, %rstd2 = layer_norm %r, %s, %c\n"
    "  %h = matmul %t, %up\n  %hb = add %h, %b\n  %g = gelu %hb\n"
    "  %d = matmul %g, %down\n  %y = add %r, %d\n"
    "  return y=%y\n}\n";

static Module *planned(Arena *a, const char *model, const char *precision) {
    static const char *const set[][2] = {{"--loss", "mse"},
                                         {"--target", "cpu,cuda:sm_90"}};
    Options o;
    Diag d = {0};
    Module *m;
    bool used;
    options_init(&o, a);
    for (size_t i = 0; i < sizeof set / sizeof *set; i++)
        REQUIRE(options_set(&o, &d, set[i][0], set[i][1], &used) == OK);
    REQUIRE(options_set(&o, &d, "--precision", precision, &used) == OK);
    o.debug_nonfinite = true;
    o.count_underflow = !strcmp(precision, "fp16");
    if (parse_module(a, &d, "block.amp", model, strlen(model), &m) != OK ||
        run_pipeline(m, &d, &o, STAGE_PLANNED, false) != OK)
        FAIL("%s", d.text.data);
    return m;
}

/* ---- casts --------------------------------------------------------------- */

static const Node *maker(const Graph *g, ValueId v) {
    const Value *val = value_get(g, v);
    return val->kind == VK_RESULT ? node_get(g, val->def) : NULL;
}

static bool rounds(const Graph *g, const Node *n) {
    return n->op == OP_CAST && value_dtype(g, n->in[0]) == DT_F32 &&
           dtype_is_16(value_dtype(g, n->out[0]));
}

static void check_casts(const Graph *g) {
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        if (!rounds(g, n)) continue;
        const Node *from = maker(g, n->in[0]);
        CHECK_MSG(!from || from->op != OP_CAST || from->flags, "%s: cast of %s",
                  g->name, value_get(g, n->in[0])->name);
        for (int k = 0; k < i; k++) {
            const Node *other = node_get(g, g->order.data[k]);
            CHECK_MSG(!rounds(g, other) || !same_value(other->in[0], n->in[0]),
                      "%s: %s is cast twice", g->name,
                      value_get(g, n->in[0])->name);
        }
    }
}

/* ---- bytes --------------------------------------------------------------- */

static bool is_kept(const Graph *g, ValueId v) {
    for (int i = 0; i < g->outputs.len; i++)
        if (same_value(g->outputs.data[i].value, v)) return true;
    for (int i = 0; i < g->writes.len; i++)
        if (same_value(g->writes.data[i].value, v)) return true;
    return false;
}

/* A gradient of a parameter, for the host, or %r, the residual stream. */
static bool is_wide_by_contract(const Graph *g, ValueId v) {
    if (!strcmp(value_get(g, v)->name, "r")) return true;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        for (int k = 0; k < n->nin; k++)
            if (same_value(n->in[k], v) && n->flags & NODE_UPDATE) return true;
    }
    return is_kept(g, v);
}

/* Part of the bytes that 16 bits would halve, of all that forward and backward
   write. */
static double share_above(Graph *g, Arena *a) {
    const Flow *f = flow_new(g, a);
    int64_t above = 0, all = 0;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        ValueId v = n->out[0];
        if (n->flags & NODE_UPDATE || f->def[v.i] < 0 || !f->stored[v.i])
            continue;
        all += flow_bytes(f, v);
        if (value_dtype(g, v) == DT_F32 && !is_wide_by_contract(g, v))
            above += flow_bytes(f, v) / 2;
    }
    return (double)above / (double)all;
}

TEST_CASE(place, stores_at_most_1_percent_more_than_the_minimum) {
    Arena *a = arena_new();
    Module *m = planned(a, block, "bf16");
    /* cuBLASLt adds no f32 bias to a 16-bit result: %h is stored on the GPU. */
    double above = share_above(module_graph_on(m, "train", TARGET_CPU), a);
    CHECK_MSG(above <= 0.01, "%.3f", above);
    for (TargetKind t = TARGET_CPU; t < NUM_TARGETS; t++)
        check_casts(module_graph_on(m, "train", t));
    arena_free(a);
}

/* The programs that look into a step have its types. */
TEST_CASE(place, probes_store_what_the_step_stores) {
    Arena *a = arena_new();
    Module *m = planned(a, block, "fp16");
    const Graph *g = module_graph_on(m, "train", TARGET_CPU);
    static const char *const probes[] = {"locate", "underflow"};
    for (int p = 0; p < 2; p++) {
        const Graph *with = module_graph_on(m, probes[p], TARGET_CPU);
        int same = 0;
        for (int i = 0; i < g->order.len; i++) {
            const Node *n = node_get(g, g->order.data[i]);
            ValueId v = n->out[0];
            const char *name = value_get(g, v)->name;
            ValueId w = graph_find_value(with, name);
            if (n->flags & NODE_UPDATE || !w.i) continue;
            CHECK_MSG(value_dtype(g, v) == value_dtype(with, w), "%s: %s",
                      probes[p], name);
            same++;
        }
        CHECK_MSG(same > 100, "%s: %d values", probes[p], same);
    }
    arena_free(a);
}

/* ---- roundings ----------------------------------------------------------- */

static bool reaches_memory(const Module *m, const char *name, Arena *a) {
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        ValueId v = graph_find_value(g, name);
        if (g->program != PROGRAM_TRAIN || !v.i) continue;
        const Flow *f = flow_new(g, a);
        ValueId r = f->root[v.i];
        if (f->def[r.i] < 0 || f->stored[r.i]) return true;
    }
    return false;
}

static bool feeds_product(const Graph *g, ValueId v) {
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        for (int k = 0; k < n->nin; k++)
            if (same_value(n->in[k], v) && op_info[n->op].amp == AMP_LOW)
                return true;
    }
    return false;
}

TEST_CASE(place, rounds_nothing_in_registers) {
    static const char *const precisions[] = {"bf16", "fp16"};
    for (int p = 0; p < 2; p++) {
        Arena *a = arena_new();
        Module *m = planned(a, block, precisions[p]);
        const Graph *g = module_graph_on(m, "train", TARGET_CPU);
        for (int i = 0; i < g->order.len; i++) {
            const Node *n = node_get(g, g->order.data[i]);
            ValueId v = n->out[0];
            if (n->flags & NODE_UPDATE || !dtype_is_16(value_dtype(g, v)) ||
                feeds_product(g, v))
                continue;
            const char *name = value_get(g, v)->name;
            CHECK_MSG(reaches_memory(m, name, a), "%s: %s is rounded",
                      precisions[p], name);
        }
        arena_free(a);
    }
}

/* ---- regions ------------------------------------------------------------- */

static const char region[] =
    "graph forward(%x: f32[32,64]) {\n"
    "  param %w: f32[64,64] = normal(1, 0.1), %v: f32[64,64] = normal(2, 0.1)\n"
    "  param %u: f32[64,64] = normal(3, 0.1)\n"
    "  %h = matmul %x, %w\n  %g = gelu %h\n"
    "  autocast off {\n"
    "    %p = softmax %g {axis=1}\n    %q = matmul %p, %v\n"
    "    %r = tanh %q\n"
    "  }\n"
    "  %y = matmul %r, %u\n  return y=%y\n}\n";

static void check_wide(const Graph *g, const Node *n, ValueId v) {
    if (v.i && dtype_is_float(value_dtype(g, v)))
        CHECK_MSG(value_dtype(g, v) == DT_F32, "%s: %s of %s", g->name,
                  value_get(g, v)->name, op_info[n->op].text);
}

TEST_CASE(place, regions_are_f32_forward_and_backward) {
    Arena *a = arena_new();
    Module *m = planned(a, region, "bf16");
    for (TargetKind t = TARGET_CPU; t < NUM_TARGETS; t++) {
        const Graph *g = module_graph_on(m, "train", t);
        int products[2] = {0}, low = 0;
        for (int i = 0; i < g->order.len; i++) {
            const Node *n = node_get(g, g->order.data[i]);
            bool product = op_info[n->op].amp == AMP_LOW;
            low += product && dtype_is_16(value_dtype(g, n->in[0]));
            if (!n->loc.amp) continue;
            products[(n->flags & NODE_BACKWARD) != 0] += product;
            for (int k = 0; k < n->nin; k++) check_wide(g, n, n->in[k]);
            check_wide(g, n, n->out[0]);
        }
        CHECK_EQ_INT(products[0], 1);
        CHECK_EQ_INT(products[1], 2);
        CHECK_EQ_INT(low, 5); /* two forward, of %w one and of %u two */
    }
    arena_free(a);
}
