/* SPDX-License-Identifier: Apache-2.0 */
/* near_loss.c: dtypes of values near the loss, and what torch.autocast has in
 * fp32. */
#include <stdio.h>
#include <string.h>

#include "passes/common/traffic.h"
#include "passes/device/flow.h"
#include "tests/harness.h"
#include "tests/passes/place/place.h"
#include "tests/support/passed.h"

/* ---- near the loss ------------------------------------------------------- */

/* In a deep network a value may be f32 only if it is small beside the
   network's largest values, however little it adds. */
TEST_CASE(place, what_is_spared_is_small) {
    static const int widths[] = {7, 8, 9, 20};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        enum { LAYERS = 100 };
        Arena *a = arena_new();
        StrBuf sb = {0};
        sb_printf(&sb,
                  "graph forward(%%h0: f32[512,64]) {\n"
                  "  param %%w: f32[64,64] = normal(1, 0.1), %%v: f32[64,%d] = "
                  "normal(2, 0.1)\n",
                  widths[i]);
        for (int k = 0; k < LAYERS; k++)
            sb_printf(&sb,
                      "  %%p%d = matmul %%h%d, %%w\n  %%h%d = tanh %%p%d\n", k,
                      k, k + 1, k);
        sb_printf(&sb,
                  "  %%z = matmul %%h%d, %%v : f32[512,%d]\n"
                  "  %%t = tanh %%z : f32[512,%d]\n  %%d = gelu %%t : "
                  "f32[512,%d]\n  %%q = mul %%d, %%d\n"
                  "  %%l = reduce_sum %%q {axes=[0,1], keepdims=0}\n"
                  "  return l=%%l\n}\n",
                  LAYERS, widths[i], widths[i], widths[i]);
        Module *m = place_planned(a, sb.data, "bf16", "auto");
        const Graph *g = module_graph_on(m, "train", TARGET_CPU);
        ValueId d = graph_find_value(g, "d");
        REQUIRE(d.i);
        CHECK_MSG(value_dtype(g, d) == (8 * widths[i] > 64 ? DT_BF16 : DT_F32),
                  "%d of 64 columns: %s", widths[i], value_get(g, d)->why);
        sb_free(&sb);
        arena_free(a);
    }
}

/* Logits are as large as all other values together: their loss reads 16
   bits, and so do the products that read their gradient. */
TEST_CASE(place, logits_of_many_classes_are_16_bits) {
    enum { LOGITS = 256 * 1024 };
    static const char model[] =
        "graph forward(%x: f32[256,64], %t: i64[256]) {\n"
        "  param %w: f32[64,64] = normal(1, 0.1)\n"
        "  param %v: f32[64,1024] = normal(2, 0.1)\n"
        "  %h = matmul %x, %w\n  %g = tanh %h\n  %z = matmul %g, %v\n"
        "  %l, %e = softmax_cross_entropy %z, %t {axis=1}\n"
        "  return l=%l\n}\n";
    Arena *a = arena_new();
    Module *m = planned_with(a, model, "auto", "bf16", "auto", "exact");
    for (TargetKind t = TARGET_CPU; t < NUM_TARGETS; t++) {
        Graph *g = module_graph_on(m, "train", t);
        const Flow *f = flow_new(g, a);
        int64_t bytes = 0;
        for (int i = 0; i < g->order.len; i++) {
            const Node *n = node_get(g, g->order.data[i]);
            for (int k = 0; k < n->nout; k++)
                if (f->def[n->out[k].i] >= 0 && f->stored[n->out[k].i] &&
                    value_count(g, n->out[k]) == LOGITS)
                    bytes += type_bytes(value_type(g, n->out[k]));
        }
        CHECK_EQ_INT(bytes, 2 * 2 * LOGITS); /* the logits and their gradient */
    }
    arena_free(a);
}

/* A few elements nearest the loss stay f32, unless the user requests 16 bits.
 */
/* Whatever their number, but not if a product computes from them. */
TEST_CASE(place, logs_of_a_softmax_are_f32_in_front_of_a_loss) {
    static const char *const ends[] = {
        "  %e = exp %p\n  %f = sub 1, %e\n  %q = mul %f, %f\n"
        "  %m = mul %q, %p\n"
        "  %l = reduce_mean %m {axes=[0,1], keepdims=0}\n  return l=%l\n}\n",
        "  %y = matmul %p, %v {trans_b=1}\n  return y=%y\n}\n"};
    for (int i = 0; i < 2; i++) {
        Arena *a = arena_new();
        StrBuf sb = {0};
        sb_printf(&sb,
                  "graph forward(%%x: f32[64,64]) {\n"
                  "  param %%w: f32[64,64] = normal(1, 0.1)\n"
                  "  param %%v: f32[64,64] = normal(2, 0.1)\n"
                  "  %%h = matmul %%x, %%w\n  %%r = relu %%h\n"
                  "  %%z = matmul %%r, %%v\n"
                  "  %%lp = log_softmax %%z {axis=1}\n"
                  "  %%p = %s\n%s",
                  i ? "tanh %lp"
                    : "slice %lp {sizes=[64,1], starts=[0,3], "
                      "steps=[1,1]}",
                  ends[i]);
        Module *m = place_planned(a, sb.data, "bf16", "none");
        for (TargetKind t = TARGET_CPU; t < NUM_TARGETS; t++) {
            const Graph *g = module_graph_on(m, "train", t);
            int logs = 0;
            for (int k = 0; k < g->order.len; k++) {
                const Node *n = node_get(g, g->order.data[k]);
                const Value *v = value_get(g, n->out[0]);
                bool after = strchr("pfqm", *v->name) && !v->name[1];
                logs += v->why && strstr(v->why, "log of a softmax");
                if (!i && !n->flags && (after || !strcmp(v->name, "lp")))
                    CHECK_MSG(type_get(v->type)->dtype == DT_F32, "%s",
                              v->name);
            }
            CHECK_MSG(i ? !logs : logs >= 2, "%d: %d", i, logs);
        }
        sb_free(&sb);
        arena_free(a);
    }
}

TEST_CASE(place, the_user_says_what_is_spared) {
    static const char *const says[] = {"", " !any"};
    for (int i = 0; i < 2; i++) {
        Arena *a = arena_new();
        char text[800];
        snprintf(text, sizeof text,
                 "graph forward(%%x: f32[4096,256], %%c: f32[4096,4]) {\n"
                 "  param %%w: f32[256,1024] = normal(1, 0.1)\n"
                 "  param %%v: f32[1024,4] = normal(2, 0.1)\n"
                 "  %%h = matmul %%x, %%w\n  %%a = tanh %%h\n"
                 "  %%z = matmul %%a, %%v : f32[4096,4]\n"
                 "  %%t = tanh %%z : f32[4096,4]\n"
                 "  %%d = sub %%t, %%c : f32[4096,4]%s\n  %%q = mul %%d, %%d\n"
                 "  %%l = reduce_sum %%q {axes=[0,1], keepdims=0}\n"
                 "  return l=%%l\n}\n",
                 says[i]);
        Module *m = place_planned(a, text, "bf16", "auto");
        const Graph *g = module_graph_on(m, "train", TARGET_CPU);
        ValueId d = graph_find_value(g, "d");
        REQUIRE(d.i);
        CHECK_MSG(value_dtype(g, d) == (i ? DT_BF16 : DT_F32), "%s: %s",
                  says[i], value_get(g, d)->why);
        arena_free(a);
    }
}

/* Products fuse with nothing here: each reads its operands from memory and
   writes its result to memory. */
TEST_CASE(place, traffic_of_products) {
    static const char text[] = "graph predict(%x: f32[16,16]) {\n"
                               "  %a = matmul %x, %x\n  %b = matmul %a, %a\n"
                               "  %c = matmul %b, %b\n"
                               "  %d = matmul %a, %c !backward\n"
                               "  %e = matmul %d, %d !backward\n"
                               "  %u = matmul %e, %b !update\n"
                               "  %f = transpose %c {perm=[1,0]}\n"
                               "  return c=%c, u=%u\n}\n";
    static const struct {
        const char *name;
        Traffic traffic;
    } want[] = {{"a", {true, 2, true}},  {"b", {true, 2, false}},
                {"c", {true, 2, true}},  {"d", {true, 1, false}},
                {"e", {true, 1, false}}, {"f", {false, 0, false}}};
    Arena *a = arena_new();
    Options o = options_of(a, no_flags);
    Diag d = {0};
    Module *m = parsed(a, text);
    PassCtx cx = {a, &d, &o};
    passed(a, m, "dce", no_flags);
    const Graph *g = m->graphs.data[0];
    Traffic *t = NEW_ARRAY(a, Traffic, g->values.len);
    traffic_join(g, t, g->values.len, &cx);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        Traffic got = t[graph_find_value(g, want[i].name).i];
        CHECK_MSG(got.stored == want[i].traffic.stored &&
                      got.reads == want[i].traffic.reads &&
                      got.saved == want[i].traffic.saved,
                  "%%%s: stored %d, reads %d, saved %d", want[i].name,
                  got.stored, got.reads, got.saved);
    }
    arena_free(a);
}

/* Neither %v nor %r needs a buffer, so that rounding before or after the
   relu costs no bytes: readers of %v keep its digits. A sum after the relu
   is after %v, too: rounding %v instead of %r gains nothing. */
TEST_CASE(place, rounds_behind_what_others_read) {
    static const struct {
        const char *reader;
        DType r;
    } cases[] = {{"sub %v, %c", DT_BF16},
                 {"exp %v", DT_BF16},
                 {"div %v, %c", DT_BF16},
                 {"mul %v, %c", DT_BF16},
                 {"add %r, %c", DT_F32}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        char text[600];
        snprintf(text, sizeof text,
                 "graph forward(%%x: f32[256,256], %%c: f32[256,256]) {\n"
                 "  param %%w: f32[256,64] = normal(1, 0.1)\n"
                 "  %%v = tanh %%x !any\n  %%r = relu %%v !any\n"
                 "  %%y = matmul %%r, %%w\n  %%d = %s !any\n"
                 "  %%l = reduce_sum %%d {axes=[1], keepdims=1}\n"
                 "  return y=%%y, l=%%l\n}\n",
                 cases[i].reader);
        Module *m = parsed(a, text);
        staged(a, m, STAGE_PRIMITIVE,
               FLAGS("--precision", "bf16", "--loss", "none"));
        const Graph *g = m->graphs.data[0];
        CHECK_MSG(value_dtype(g, graph_find_value(g, "v")) == DT_F32, "%s",
                  cases[i].reader);
        CHECK_MSG(value_dtype(g, graph_find_value(g, "r")) == cases[i].r, "%s",
                  cases[i].reader);
        arena_free(a);
    }
}

/* ---- what torch.autocast has in fp32 --------------------------------------
 */

static const char a_product[] =
    "graph forward(%x: f32[256,64], %z: f32[256,64], %i: i64[256]) {\n"
    "  param %w: f32[64,64] = normal(1, 0.1), %k: f32[64,64] = normal(2, 0.1)\n"
    "  param %b: f32[64] = 0, %m: f32[256,64] = normal(3, 1)\n"
    "  %p = matmul %x, %w : f32[256,64]\n";

/* %v, which is stored, from products and fp32, with readers that end in the
   product %y or in the loss. */
TEST_CASE(place, what_autocast_has_in_fp32_is_rounded_where_nothing_grows) {
    static const struct {
        const char *v, *readers, *last;
        bool high;
    } cases[] = {
        /* products read it, and ops that pass the error on unchanged */
        {"mul %p, %z", "  %s = tanh %v\n", "%s", false},
        {"mul %p, %z", "  %s = mul %v, %p\n", "%s", false},
        {"add %p, %b", "  %s = sub 1, %v\n", "%s", false},
        {"tanh %p", "  %s = exp %v\n", "%s", false},
        /* its error grows */
        {"mul %p, %z", "  %s = sub %v, %z\n", "%s", true},
        {"mul %p, %z", "  %s = sub 1, %v\n", "%s", true},
        {"mul %p, %z", "  %s = exp %v\n", "%s", true},
        {"mul %p, %z", "  %a = abs %v\n  %s = sqrt %a\n", "%s", true},
        {"mul %p, %z", "  %s = div %z, %v\n", "%s", true},
        {"mul %p, %z", "  %s = max %v, %z\n", "%s", true},
        {"mul %p, %z", "  %s = softmax %v {axis=1}\n", "%s", true},
        {"add %p, %m", "  %s = softmax %v {axis=1}\n", "%s", true},
        {"add %p, %b", "  %s = floor %v\n", "%s", true},
        /* autocast on GPUs has these functions of 16 bits in fp32 */
        {"softplus %p", "  %s = sub %v, 1\n", "%s", true},
        {"softplus %p", "  %s = log %v\n", "%s", true},
        {"exp %p", "  %s = log %v\n", "%s", true},
        {"softplus %p", "  %s = tanh %v\n", NULL, true},
        {"softplus %p", "  %s = tanh %v\n", "%s", false},
        {"tanh %p", "  %s = sub %v, 1\n", "%s", false},
        /* the loss is computed from it */
        {"mul %p, %z", "  %s = tanh %v\n", NULL, true},
        {"gather %z, %i {axis=0}", "  %s = mul %v, %p\n", NULL, true},
        {"add %p, %b", "  %s = tanh %v\n", NULL, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        StrBuf sb = {0};
        sb_printf(&sb, "%s  %%v = %s\n%s", a_product, cases[i].v,
                  cases[i].readers);
        if (cases[i].last)
            sb_printf(&sb, "  %%y = matmul %s, %%k\n", cases[i].last);
        sb_printf(&sb, "  %%e = mul %%v, %%v\n  %%r = matmul %%e, %%k\n");
        sb_printf(&sb, "  return y=%s, r=%%r\n}\n",
                  cases[i].last ? "%y" : "%s");
        Module *m = parsed(a, sb.data);
        staged(a, m, STAGE_PRIMITIVE,
               FLAGS("--precision", "bf16", "--loss", "none"));
        const Graph *g = m->graphs.data[0];
        ValueId v = graph_find_value(g, "v");
        REQUIRE(v.i);
        CHECK_MSG((value_dtype(g, v) == DT_F32) == cases[i].high,
                  "%s, read by %s: %s, %s", cases[i].v, cases[i].readers,
                  dtype_info[value_dtype(g, v)].text, value_get(g, v)->why);
        sb_free(&sb);
        arena_free(a);
    }
}

/* Autocast has a determinant in fp32, and in its recursion results of products
   cancel: they are not stored in 16 bits, either. */
TEST_CASE(place, what_a_determinant_computes_is_f32) {
    static const char text[] = "graph forward(%x: f32[512]) {\n"
                               "  param %m: f32[512,8,8] = normal(1, 1)\n"
                               "  %d = det %m : f32[512]\n"
                               "  %y = mul %d, %x\n"
                               "  return y=%y\n}\n";
    static const char *const low[] = {"bf16", "fp16"};
    for (int i = 0; i < 2; i++) {
        Arena *a = arena_new();
        Module *m = parsed(a, text);
        int products = 0;
        staged(a, m, STAGE_PRIMITIVE,
               FLAGS("--precision", low[i], "--loss", "none"));
        const Graph *g = m->graphs.data[0];
        for (int k = 0; k < g->order.len; k++) {
            const Node *n = node_at(g, k);
            products += n->op == OP_MATMUL;
            CHECK_MSG(!dtype_is_low(value_dtype(g, n->out[0])), "%s: %s",
                      low[i], value_get(g, n->out[0])->name);
        }
        CHECK(products == 7);
        arena_free(a);
    }
}

/* ---- positions ----------------------------------------------------------- */

/* v and the values that it is computed from element by element are f32. */
static void check_position(const Graph *g, ValueId v, bool *seen,
                           const char *chain) {
    const Node *n = v.i ? place_maker(g, v) : NULL;
    if (!n || seen[v.i] || !dtype_is_float(value_dtype(g, v))) return;
    seen[v.i] = true;
    CHECK_MSG(!dtype_is_low(value_dtype(g, v)), "%s: %s", chain,
              value_get(g, v)->name);
    OpKind kind = node_kind(n);
    if (kind != KIND_ELEM && kind != KIND_VIEW && kind != KIND_MOVE) return;
    for (int k = 0; k < n->nin; k++) check_position(g, n->in[k], seen, chain);
}

/* Number of positions in g, all f32. */
static int check_positions(const Graph *g, Arena *a, const char *chain) {
    bool *seen = NEW_ARRAY(a, bool, g->values.len);
    int found = 0;
    for (int k = 0; k < g->order.len; k++) {
        const Node *n = node_at(g, k);
        bool whole = n->op == OP_CAST &&
                     dtype_is_float(value_dtype(g, n->in[0])) &&
                     dtype_is_int(value_dtype(g, n->out[0]));
        if (n->flags || !(whole || n->op == OP_FLOOR)) continue;
        check_position(g, n->in[0], seen, chain);
        found++;
    }
    return found;
}

/* An index, a bin or a cell of a grid is a number that floor or a cast to
   integers takes: rounded to 16 bits it is another one.  %v and %u are large,
   are computed from a product, and other products read them: without the rule
   they have 16 bits. */
TEST_CASE(place, positions_from_products_are_f32) {
    static const char *const chains[] = {
        "  %v = add %p, %b\n  %s = floor %v\n",
        "  %v = add %p, %b\n  %u = mul %v, 8\n  %s = floor %u\n",
        "  %v = add %p, %b\n  %c = cast %v : i64[256,64]\n"
        "  %s = cast %c : f32[256,64]\n",
        "  %v = sigmoid %p\n  %u = mul %v, 31\n"
        "  %r = reshape %u {shape=[64,256]}\n  %f = floor %r\n"
        "  %s = reshape %f {shape=[256,64]}\n",
    };
    static const char *const low[] = {"bf16", "fp16"};
    for (size_t i = 0; i < 2 * sizeof chains / sizeof *chains; i++) {
        const char *chain = chains[i / 2];
        Arena *a = arena_new();
        StrBuf sb = {0};
        sb_printf(&sb,
                  "%s%s  %%y = matmul %%s, %%k\n  %%e = mul %%v, %%v\n"
                  "  %%q = matmul %%e, %%k\n  return y=%%y, q=%%q\n}\n",
                  a_product, chain);
        Module *m = parsed(a, sb.data);
        staged(a, m, STAGE_PRIMITIVE,
               FLAGS("--precision", low[i % 2], "--loss", "none"));
        CHECK(check_positions(m->graphs.data[0], a, chain) > 0);
        sb_free(&sb);
        arena_free(a);
    }
}
