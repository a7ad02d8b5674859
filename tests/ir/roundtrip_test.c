/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the text form: printed text reads back and prints the same bytes,
   for random graphs with everything in them; hostile text is refused or
   gives a graph that verifies; messages point at the mistake. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ir/ir.h"
#include "ir/text/text.h"
#include "tests/harness.h"
#include "tests/ir/roundtrip/roundtrip.h"

/* ---- random modules ------------------------------------------------------ */

uint64_t roundtrip_draw(Rng *r) {
    r->s ^= r->s << 13;
    r->s ^= r->s >> 7;
    r->s ^= r->s << 17;
    return r->s * 0x2545f4914f6cdd1du;
}

int roundtrip_below(Rng *r, int n) {
    return (int)(roundtrip_draw(r) >> 33) % n;
}

static const char *const odd_names[] = {
    "x",         "layer/0.w:0", "a b",      "quo\"te", "back\\slash",
    "new\nline", "\x01",        "\xff\xfe", "é",       "%",
    "-",         "x.relu",      "a:b",      "9",       "nan",
    "_",         "#",           "y.2",      "param",   "end:",
};

static const char *random_name(Rng *r) {
    enum { N = sizeof odd_names / sizeof *odd_names };
    return odd_names[roundtrip_below(r, N)];
}

static const DType floats[] = {DT_F16, DT_BF16, DT_F32, DT_F64};

static double random_number(Rng *r) {
    static const double odd[] = {
        0,           -0.0,  1,   (double)INFINITY, -(double)INFINITY,
        (double)NAN, 1e-45, 1e38};
    if (roundtrip_below(r, 4) == 0) return odd[roundtrip_below(r, 8)];
    if (roundtrip_below(r, 3) == 0)
        return (double)(roundtrip_draw(r) >> (11 + roundtrip_below(r, 53)));
    return ldexp((double)(int64_t)roundtrip_draw(r),
                 roundtrip_below(r, 100) - 110);
}

static TypeId random_type(Rng *r, DType d) {
    int64_t dim[4];
    int rank = roundtrip_below(r, 4);
    for (int i = 0; i < rank; i++)
        dim[i] = roundtrip_below(r, 8) ? 1 + roundtrip_below(r, 4) : 0;
    return type_make(d, rank, dim);
}

static Tensor *random_tensor(Rng *r, Arena *a, TypeId t) {
    Tensor *x = tensor_new(a, t);
    int64_t n = type_count(type_get(t));
    bool splat = roundtrip_below(r, 3) == 0;
    double v = random_number(r);
    for (int64_t i = 0; i < n; i++)
        if (dtype_is_float(type_get(t)->dtype))
            tensor_set(x, i, splat ? v : random_number(r));
        else
            tensor_set_int(x, i, splat ? 7 : (int64_t)roundtrip_draw(r));
    return x;
}

static DType random_dtype(Rng *r) {
    return (DType)roundtrip_below(r, NUM_DTYPES);
}

static void add_leaves(Rng *r, Graph *g) {
    for (int i = roundtrip_below(r, 3) + 1; i > 0; i--)
        graph_input(g, random_name(r), random_type(r, random_dtype(r)));
    for (int i = roundtrip_below(r, 5); i > 0; i--) {
        TypeId t = random_type(r, random_dtype(r));
        graph_const(g, random_name(r), random_tensor(r, g->arena, t));
    }
    int64_t big[] = {70, 70};
    if (roundtrip_below(r, 4) == 0)
        graph_const(g, "big",
                    random_tensor(r, g->arena, type_make(DT_F32, 2, big)));
    for (int i = roundtrip_below(r, 4); i > 0; i--)
        graph_scalar(g, floats[roundtrip_below(r, 4)], random_number(r));
}

static void add_vars(Rng *r, Module *m) {
    for (int i = 1 + roundtrip_below(r, 6); i > 0; i--) {
        TypeId t = random_type(r, random_dtype(r));
        const char *name = internf("%s%d", random_name(r), i);
        bool data = roundtrip_below(r, 2);
        double fill = roundtrip_below(r, 2) ? random_number(r) : 0;
        DType d = type_get(t)->dtype;
        if (d == DT_U64) fill = fabs(fill);
        if (dtype_is_int(d) && !(fabs(fill) < (d == DT_U64 ? 0x1p64 : 0x1p63)))
            fill = 0; /* the type has no such number */
        int v = module_var(m, (VarKind)roundtrip_below(r, 7), name, t,
                           data ? random_tensor(r, m->arena, t) : NULL, fill);
        Var *x = &m->vars.data[v];
        if (roundtrip_below(r, 4) == 0) x->lr_scale = 0.1;
        if (roundtrip_below(r, 4) == 0) x->weight_decay = 0;
        if (roundtrip_below(r, 4) == 0) x->stored_dtype = DT_F16;
        if (roundtrip_below(r, 4) == 0) x->why = intern("reads \"it\"\n");
    }
}

static ValueId random_value(Rng *r, const Graph *g) {
    return (ValueId){1 + (uint32_t)roundtrip_below(r, g->values.len - 1)};
}

/* Makes one node that fits the values drawn, or none. */
static void add_node(Rng *r, Builder *b) {
    static const OpCode unary[] = {OP_NEG, OP_EXP,   OP_RELU, OP_GELU,
                                   OP_NOT, OP_ISNAN, OP_CLIP, OP_LEAKY_RELU};
    static const OpCode binary[] = {OP_ADD,    OP_MUL,    OP_POW,
                                    OP_LESS,   OP_EQUAL,  OP_AND,
                                    OP_MATMUL, OP_GATHER, OP_CONCAT};
    Graph *g = b->g;
    ValueId in[] = {random_value(r, g), random_value(r, g)};
    const Type *t = value_type(g, in[0]);
    int64_t axes[] = {0}, sizes[] = {1, t->rank ? t->dim[0] - 1 : 0};
    Attr reduce[] = {attr_v(AK_axes, axes, 1), attr_i(AK_keepdims, 0)};
    Attr split[] = {attr_v(AK_sizes, sizes, 2)};
    Attr clip[] = {attr_f(AK_min, random_number(r)), attr_f(AK_max, 1e-5)};
    Attr alpha[] = {attr_f(AK_alpha, random_number(r))};
    const char *names[] = {random_name(r), random_name(r)};
    TypeId type = {0};
    NodeId made;
    Diag d = {0};
    b->flags = (uint32_t)roundtrip_below(r, 4);
    switch (roundtrip_below(r, 6)) {
    case 0:
        type = type_with_dtype(value_get(g, in[0])->type, random_dtype(r));
        build_checked(b, &d, callee_op(OP_CAST), in, 1, NULL, 0, 1, &type,
                      names, &made);
        break;
    case 1:
        build_checked(b, &d, callee_op(OP_REDUCE_SUM), in, 1, reduce, 2, 1,
                      NULL, NULL, &made);
        break;
    case 2:
        build_checked(b, &d, callee_op(OP_SPLIT), in, 1, split, 1, 2, NULL,
                      names, &made);
        break;
    case 3:
        build_checked(b, &d, callee_op(binary[roundtrip_below(r, 9)]), in, 2,
                      NULL, 0, 1, NULL, roundtrip_below(r, 2) ? names : NULL,
                      &made);
        break;
    default: {
        OpCode op = unary[roundtrip_below(r, 8)];
        const Attr *a = op == OP_CLIP         ? clip
                        : op == OP_LEAKY_RELU ? alpha
                                              : NULL;
        build_checked(b, &d, callee_op(op), in, 1, a, a == clip ? 2 : a != NULL,
                      1, NULL, roundtrip_below(r, 2) ? names : NULL, &made);
    }
    }
    sb_free(&d.text);
}

/* Everything that a text says of a node behind its types. */
static void add_marks(Rng *r, Node *n) {
    static const uint32_t flags[] = {NODE_BACKWARD, NODE_UPDATE, NODE_AGAIN};
    for (int i = 0; i < 3; i++)
        if (roundtrip_below(r, 4) == 0) n->flags ^= flags[i];
    n->loc.amp = (unsigned char)roundtrip_below(r, AMP_NONE + 1);
    n->loc.factors = (unsigned char)roundtrip_below(r, AMPC_NFACTORS);
    n->loc.region = roundtrip_below(r, 2) * (1 + roundtrip_below(r, 9));
    n->loc.chunk = roundtrip_below(r, 2) * (1 + roundtrip_below(r, 9));
    n->loc.named = roundtrip_below(r, 2) ? intern(random_name(r)) : NULL;
}

/* Groups, offsets and homes of any kind: the text form does not check them. */
static void add_plan(Rng *r, Graph *g) {
    int at = 0;
    g->arena_bytes = roundtrip_below(r, 2) * 4096;
    while (at < g->order.len) {
        int n = 1 + roundtrip_below(r, 3), group = -1;
        if (roundtrip_below(r, 3)) {
            vec_push(g->arena, &g->groups,
                     (Group){.kind = (GroupKind)roundtrip_below(r, 4)});
            group = g->groups.len - 1;
        }
        for (; n > 0 && at < g->order.len; n--, at++)
            node_get(g, g->order.data[at])->group = group;
    }
    for (int i = 1; i < g->values.len; i++) {
        Value *v = &g->values.data[i];
        if (!v->name) continue;
        if (roundtrip_below(r, 3) == 0) v->offset = roundtrip_below(r, 1000);
        if (roundtrip_below(r, 5) == 0 && v->kind == VK_RESULT) {
            int home = roundtrip_below(r, g->module->vars.len);
            if (is_value(graph_find_var(g, home))) v->home = home;
        }
    }
}

static void add_effects(Rng *r, Graph *g) {
    for (int i = roundtrip_below(r, 4); i > 0; i--) {
        ValueId v = random_value(r, g);
        Str own = value_get(g, v)->name;
        Str name = own && roundtrip_below(r, 2) ? own : internf("out%d", i);
        bool twice = false;
        for (int k = 0; k < g->outputs.len; k++)
            twice |= g->outputs.data[k].name == name;
        if (!twice)
            vec_push(g->arena, &g->outputs, (Output){.name = name, .value = v});
    }
    for (int var = 0; var < g->module->vars.len; var++) {
        ValueId w = graph_find_var(g, var), v = random_value(r, g);
        if (is_value(w) && value_get(g, w)->type.i == value_get(g, v)->type.i)
            vec_push(g->arena, &g->writes, (Write){.var = w, .value = v});
    }
}

static Module *random_module(Rng *r, Arena *a) {
    Module *m = module_new(a, roundtrip_below(r, 2) ? random_name(r) : "");
    if (roundtrip_below(r, 2)) m->producer = intern("pytorch");
    if (roundtrip_below(r, 2)) m->class_axis = roundtrip_below(r, 3);
    add_vars(r, m);
    for (int i = 1 + roundtrip_below(r, 3); i > 0; i--) {
        Graph *g = graph_new(m, internf("%s%d", random_name(r), i));
        Builder b = {.g = g};
        add_leaves(r, g);
        for (int n = roundtrip_below(r, 30); n > 0; n--) {
            if (roundtrip_below(r, 5) == 0)
                graph_var(g, roundtrip_below(r, m->vars.len));
            add_node(r, &b);
        }
        for (int k = 0; k < g->order.len; k++)
            add_marks(r, node_get(g, g->order.data[k]));
        add_effects(r, g);
        if (roundtrip_below(r, 2)) add_plan(r, g);
    }
    return m;
}

/* ---- round trip ---------------------------------------------------------- */

char *roundtrip_printed(const Module *m) {
    StrBuf sb = {0};
    sb_puts(&sb, "");
    print_module(m, &sb);
    return sb.data;
}

static void check_marks(const Graph *g, const Graph *back) {
    enum { MARKS = NODE_BACKWARD | NODE_UPDATE | NODE_AGAIN };
    REQUIRE(g->order.len == back->order.len);
    for (int i = 0; i < g->order.len; i++) {
        const Node *x = node_get(g, g->order.data[i]);
        const Node *y = node_get(back, back->order.data[i]);
        CHECK_EQ_INT(x->flags & MARKS, y->flags & MARKS);
        CHECK_EQ_INT(x->loc.amp, y->loc.amp);
        CHECK_EQ_INT(x->loc.factors, y->loc.factors);
        CHECK_EQ_INT(x->loc.region, y->loc.region);
        CHECK_EQ_INT(x->loc.chunk, y->loc.chunk);
        CHECK(x->loc.named == y->loc.named);
    }
}

static void check_module(const Module *m, uint64_t seed) {
    Diag d = {0};
    Module *back = NULL;
    char *once = roundtrip_printed(m);
    Status s = verify_module(m, STAGE_TYPED, &d);
    if (s == OK)
        s = parse_module(m->arena, &d, "printed", once, strlen(once), &back);
    if (!CHECK_MSG(s == OK, "seed %llu: %s\n%s", (unsigned long long)seed,
                   d.text.data, once)) {
        sb_free(&d.text);
        free(once);
        return;
    }
    char *twice = roundtrip_printed(back);
    CHECK_STR(once, twice);
    CHECK_EQ_INT(back->graphs.len, m->graphs.len);
    for (int i = 0; i < m->graphs.len && i < back->graphs.len; i++) {
        CHECK(graph_hash(m->graphs.data[i]) ==
              graph_hash(back->graphs.data[i]));
        check_marks(m->graphs.data[i], back->graphs.data[i]);
    }
    free(once);
    free(twice);
}

TEST_CASE(roundtrip, random_modules) {
    for (uint64_t seed = 1; seed <= 1000; seed++) {
        Rng r = {seed * 0x9e3779b97f4a7c15u};
        Arena *a = arena_new();
        check_module(random_module(&r, a), seed);
        arena_free(a);
    }
}

/* Data are preserved, not only text. */
TEST_CASE(roundtrip, constants_keep_their_bits) {
    Rng r = {42};
    for (int i = 0; i < 200; i++) {
        Arena *a = arena_new();
        Diag d = {0};
        Module *m = module_new(a, "m"), *back;
        Graph *g = graph_new(m, "g");
        TypeId t = random_type(&r, random_dtype(&r));
        ValueId c = graph_const(g, "c", random_tensor(&r, a, t));
        vec_push(a, &g->outputs, (Output){.name = intern("c"), .value = c});
        char *text = roundtrip_printed(m);
        REQUIRE(parse_module(a, &d, "t", text, strlen(text), &back) == OK);
        Graph *h = back->graphs.data[0];
        const Tensor *x = value_get(g, c)->data;
        const Tensor *y = value_get(h, graph_find_value(h, "c"))->data;
        for (int64_t k = 0; k < type_count(type_get(t)); k++) {
            double u = tensor_get(x, k), v = tensor_get(y, k);
            CHECK(isnan(u) ? isnan(v) : memcmp(&u, &v, sizeof u) == 0);
            CHECK_EQ_INT(tensor_get_int(x, k), tensor_get_int(y, k));
        }
        free(text);
        arena_free(a);
    }
}

const char roundtrip_sample[] =
    "module \"my model\" {class_axis=1, producer=\"pytorch\"}\n"
    "\n"
    "graph train(%x: f32[64,32], %t: i32[64]) arena 1024 {\n"
    "  param %w1: f32[32,16] = normal(1, 0.02), %b: f32[2] = [1.5, -0.25]\n"
    "  param %w2: f32[16,10] {lr_scale=0.1, stored=f16}\n"
    "  buffer %rm: f32[16], %rv: f32[16] = 1\n"
    "  state %rng: i64[2] = [1, 9007199254740993]\n"
    "  const %m: f32[2,2] = [1, 2, 3, nan]\n"
    "  const %big: f32[70,70] = uniform(3, -1, 1)\n"
    "  const %\"odd \\x01 \\\"name\": bool[3] = [1, 0, 1]\n"
    "  %h = matmul %x, %w1 : bf16[64,16] @64\n"
    "  %n, %mean, %var = batch_norm %h, %rm, %rv, %rm, %rv {training=1} : "
    "bf16[64,16], f32[16], f32[16]\n"
    "  %r = relu %n : bf16[64,16] !backward\n"
    "  %d = mul %r, 0.5 : f32[64,16]\n"
    "  %d2 = mul %d, 0.001:bf16 : f32[64,16]\n"
    "  %i = add %rng, 3:i64 : i64[2] @%rng !update\n"
    "  %f = full {value=-inf} : f32[2]\n"
    "  %f2 = add %f, %b : f32[2]\n"
    "  %z = matmul %d2, %w2 : f32[64,10]\n"
    "  %loss, %lse = softmax_cross_entropy %z, %t {axis=1} : f32[], f32[64]\n"
    "  group row {\n"
    "    %mm = mul %m, nan : f32[2,2]\n"
    "    %bb = add %big, inf : f32[70,70] @1024\n"
    "  }\n"
    "  %o = not %\"odd \\x01 \\\"name\" : bool[3]\n"
    "  write %rng = %i\n"
    "  return %loss, logits=%z, \"9\"=%o, k=0.5, a=%bb, b=%f2\n"
    "}\n"
    "\n"
    "graph \"second one\"() {\n"
    "  hyper %lr: f32[] = 0.001\n"
    "  return %lr\n"
    "}\n"
    "\n"
    "graph sums(%x: f32[2], %u: f32[32,16], %v: f32[16,10]) {\n"
    "  grad %ampc.grad/b: f32[2], %ampc.grad/w1: f32[32,16]\n"
    "  grad %ampc.grad/w2: f32[16,10]\n"
    "  write %ampc.grad/b = %x bucket 1\n"
    "  write %ampc.grad/w1 = %u bucket 2\n"
    "  write %ampc.grad/w2 = %v\n"
    "  return %x\n"
    "}\n";

TEST_CASE(roundtrip, canonical_text_is_kept) {
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    Status s = parse_module(a, &d, "s", roundtrip_sample,
                            strlen(roundtrip_sample), &m);
    if (CHECK_MSG(s == OK, "%s", d.text.data)) {
        char *text = roundtrip_printed(m);
        CHECK_STR(text, roundtrip_sample);
        free(text);
    }
    sb_free(&d.text);
    arena_free(a);
}

/* ---- generated data ------------------------------------------------------ */

TEST_CASE(parse, generated_data) {
    static const char text[] = "graph g() {\n"
                               "param %n: f32[100000] = normal(7, 2)\n"
                               "param %u: f32[100000] = uniform(7, -3, 1)\n"
                               "state %i: i32[1000] = uniform(1, 0, 10)\n"
                               "return }";
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    REQUIRE(parse_module(a, &d, "t", text, strlen(text), &m) == OK);
    double sum = 0, sq = 0, lo = 9, hi = -9;
    const Tensor *t[3];
    for (int i = 0; i < 3; i++) t[i] = var_initial(a, &m->vars.data[i]);
    for (int i = 0; i < 100000; i++) {
        double n = tensor_get(t[0], i);
        double u = tensor_get(t[1], i);
        sum += n;
        sq += n * n;
        lo = fmin(lo, u);
        hi = fmax(hi, u);
    }
    CHECK_NEAR(sum / 1e5, 0, 0.02);
    CHECK_NEAR(sqrt(sq / 1e5), 2, 0.02);
    CHECK_NEAR(lo, -3, 0.001);
    CHECK_NEAR(hi, 1, 0.001);
    static const char hashed[] = "graph g() { "
                                 "const %f: f32[4000] = data(0x1)\n"
                                 "const %b: i32[4000] = data(0x2)\nreturn }";
    Module *h;
    REQUIRE(parse_module(a, &d, "t", hashed, strlen(hashed), &h) == OK);
    int ones = 0;
    lo = 9, hi = -9;
    for (int i = 0; i < 4000; i++) {
        const Graph *g = h->graphs.data[0];
        double f = tensor_get(value_get(g, graph_find_value(g, "f"))->data, i);
        double b = tensor_get(value_get(g, graph_find_value(g, "b"))->data, i);
        lo = fmin(lo, f);
        hi = fmax(hi, f);
        CHECK(b == 0 || b == 1);
        ones += b == 1;
    }
    CHECK_NEAR(lo, -1, 0.01);
    CHECK_NEAR(hi, 1, 0.01);
    CHECK_NEAR(ones, 2000, 200);
    int seen[10] = {0};
    for (int i = 0; i < 1000; i++) {
        int64_t v = tensor_get_int(t[2], i);
        if (CHECK(v >= 0 && v < 10)) seen[v]++;
    }
    for (int i = 0; i < 10; i++) CHECK(seen[i] > 50);
    /* the numbers belong to the text form: they never change */
    CHECK_NEAR(tensor_get(t[1], 0), (double)0.325769484f, 0);
    arena_free(a);
}
