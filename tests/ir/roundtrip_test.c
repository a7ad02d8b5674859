/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the text form: printed text reads back and prints the same bytes,
   for random graphs with everything in them; hostile text is refused or
   gives a graph that verifies; messages point at the mistake. */
#include "ir/ir.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/harness.h"

/* ---- random modules ------------------------------------------------------ */

typedef struct Rng {
    uint64_t s;
} Rng;

static uint64_t draw(Rng *r) {
    r->s ^= r->s << 13;
    r->s ^= r->s >> 7;
    r->s ^= r->s << 17;
    return r->s * 0x2545f4914f6cdd1du;
}

static int below(Rng *r, int n) { return (int)(draw(r) >> 33) % n; }

static const char *const odd_names[] = {
    "x",         "layer/0.w:0", "a b",      "quo\"te", "back\\slash",
    "new\nline", "\x01",        "\xff\xfe", "é",       "%",
    "-",         "x.relu",      "a:b",      "9",       "nan",
    "_",         "#",           "y.2",      "param",   "end:",
};

static const char *random_name(Rng *r) {
    enum { N = sizeof odd_names / sizeof *odd_names };
    return odd_names[below(r, N)];
}

static const DType floats[] = {DT_F16, DT_BF16, DT_F32, DT_F64};

static double random_number(Rng *r) {
    static const double odd[] = {
        0,           -0.0,  1,   (double)INFINITY, -(double)INFINITY,
        (double)NAN, 1e-45, 1e38};
    if (below(r, 4) == 0) return odd[below(r, 8)];
    if (below(r, 3) == 0) return (double)(draw(r) >> (11 + below(r, 53)));
    return ldexp((double)(int64_t)draw(r), below(r, 100) - 110);
}

static TypeId random_type(Rng *r, DType d) {
    int64_t dim[4];
    int rank = below(r, 4);
    for (int i = 0; i < rank; i++) dim[i] = below(r, 8) ? 1 + below(r, 4) : 0;
    return type_make(d, rank, dim);
}

static Tensor *random_tensor(Rng *r, Arena *a, TypeId t) {
    Tensor *x = tensor_new(a, t);
    int64_t n = type_count(type_get(t));
    bool splat = below(r, 3) == 0;
    double v = random_number(r);
    for (int64_t i = 0; i < n; i++)
        if (dtype_is_float(type_get(t)->dtype))
            tensor_set(x, i, splat ? v : random_number(r));
        else
            tensor_set_int(x, i, splat ? 7 : (int64_t)draw(r));
    return x;
}

static DType random_dtype(Rng *r) { return (DType)below(r, NUM_DTYPES); }

static void add_leaves(Rng *r, Graph *g) {
    for (int i = below(r, 3) + 1; i > 0; i--)
        graph_input(g, random_name(r), random_type(r, random_dtype(r)));
    for (int i = below(r, 5); i > 0; i--) {
        TypeId t = random_type(r, random_dtype(r));
        graph_const(g, random_name(r), random_tensor(r, g->arena, t));
    }
    int64_t big[] = {70, 70};
    if (below(r, 4) == 0)
        graph_const(g, "big",
                    random_tensor(r, g->arena, type_make(DT_F32, 2, big)));
    for (int i = below(r, 4); i > 0; i--)
        graph_scalar(g, floats[below(r, 4)], random_number(r));
}

static void add_vars(Rng *r, Module *m) {
    for (int i = 1 + below(r, 6); i > 0; i--) {
        TypeId t = random_type(r, random_dtype(r));
        const char *name = internf("%s%d", random_name(r), i);
        bool data = below(r, 2);
        double fill = below(r, 2) ? random_number(r) : 0;
        DType d = type_get(t)->dtype;
        if (d == DT_U64) fill = fabs(fill);
        if (dtype_is_int(d) && !(fabs(fill) < (d == DT_U64 ? 0x1p64 : 0x1p63)))
            fill = 0; /* the type has no such number */
        int v = module_var(m, (VarKind)below(r, 7), name, t,
                           data ? random_tensor(r, m->arena, t) : NULL, fill);
        Var *x = &m->vars.data[v];
        if (below(r, 4) == 0) x->lr_scale = 0.1;
        if (below(r, 4) == 0) x->weight_decay = 0;
        if (below(r, 4) == 0) x->stored_dtype = DT_F16;
        if (below(r, 4) == 0) x->why = intern("reads \"it\"\n");
    }
}

static ValueId random_value(Rng *r, const Graph *g) {
    return (ValueId){1 + (uint32_t)below(r, g->values.len - 1)};
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
    b->flags = (uint32_t)below(r, 4);
    switch (below(r, 6)) {
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
        build_checked(b, &d, callee_op(binary[below(r, 9)]), in, 2, NULL, 0, 1,
                      NULL, below(r, 2) ? names : NULL, &made);
        break;
    default: {
        OpCode op = unary[below(r, 8)];
        const Attr *a = op == OP_CLIP         ? clip
                        : op == OP_LEAKY_RELU ? alpha
                                              : NULL;
        build_checked(b, &d, callee_op(op), in, 1, a, a == clip ? 2 : a != NULL,
                      1, NULL, below(r, 2) ? names : NULL, &made);
    }
    }
    sb_free(&d.text);
}

/* Groups, offsets and homes of any kind: the text form does not check them. */
static void add_plan(Rng *r, Graph *g) {
    int at = 0;
    g->arena_bytes = below(r, 2) * 4096;
    while (at < g->order.len) {
        int n = 1 + below(r, 3), group = -1;
        if (below(r, 3)) {
            vec_push(g->arena, &g->groups,
                     (Group){.kind = (GroupKind)below(r, 4)});
            group = g->groups.len - 1;
        }
        for (; n > 0 && at < g->order.len; n--, at++)
            node_get(g, g->order.data[at])->group = group;
    }
    for (int i = 1; i < g->values.len; i++) {
        Value *v = &g->values.data[i];
        if (!v->name) continue;
        if (below(r, 3) == 0) v->offset = below(r, 1000);
        if (below(r, 5) == 0 && v->kind == VK_RESULT) {
            int home = below(r, g->module->vars.len);
            if (is_value(graph_find_var(g, home))) v->home = home;
        }
    }
}

static void add_effects(Rng *r, Graph *g) {
    for (int i = below(r, 4); i > 0; i--) {
        ValueId v = random_value(r, g);
        Str own = value_get(g, v)->name;
        Str name = own && below(r, 2) ? own : internf("out%d", i);
        bool twice = false;
        for (int k = 0; k < g->outputs.len; k++)
            twice |= g->outputs.data[k].name == name;
        if (!twice) vec_push(g->arena, &g->outputs, (Output){name, v});
    }
    for (int var = 0; var < g->module->vars.len; var++) {
        ValueId w = graph_find_var(g, var), v = random_value(r, g);
        if (is_value(w) && value_get(g, w)->type.i == value_get(g, v)->type.i)
            vec_push(g->arena, &g->writes, (Write){.var = w, .value = v});
    }
}

static Module *random_module(Rng *r, Arena *a) {
    Module *m = module_new(a, below(r, 2) ? random_name(r) : "");
    if (below(r, 2)) m->producer = intern("pytorch");
    if (below(r, 2)) m->class_axis = below(r, 3);
    add_vars(r, m);
    for (int i = 1 + below(r, 3); i > 0; i--) {
        Graph *g = graph_new(m, internf("%s%d", random_name(r), i));
        Builder b = {.g = g};
        add_leaves(r, g);
        for (int n = below(r, 30); n > 0; n--) {
            if (below(r, 5) == 0) graph_var(g, below(r, m->vars.len));
            add_node(r, &b);
        }
        add_effects(r, g);
        if (below(r, 2)) add_plan(r, g);
    }
    return m;
}

/* ---- round trip ---------------------------------------------------------- */

static char *printed(const Module *m) {
    StrBuf sb = {0};
    sb_puts(&sb, "");
    print_module(m, &sb);
    return sb.data;
}

static void check_module(const Module *m, uint64_t seed) {
    Diag d = {0};
    Module *back = NULL;
    char *once = printed(m);
    Status s = verify_module(m, STAGE_TYPED, &d);
    if (s == OK)
        s = parse_module(m->arena, &d, "printed", once, strlen(once), &back);
    if (!CHECK_MSG(s == OK, "seed %llu: %s\n%s", (unsigned long long)seed,
                   d.text.data, once)) {
        sb_free(&d.text);
        free(once);
        return;
    }
    char *twice = printed(back);
    CHECK_STR(once, twice);
    CHECK_EQ_INT(back->graphs.len, m->graphs.len);
    for (int i = 0; i < m->graphs.len && i < back->graphs.len; i++)
        CHECK(graph_hash(m->graphs.data[i]) ==
              graph_hash(back->graphs.data[i]));
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
        vec_push(a, &g->outputs, (Output){intern("c"), c});
        char *text = printed(m);
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

static const char sample[] =
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
    Status s = parse_module(a, &d, "s", sample, strlen(sample), &m);
    if (CHECK_MSG(s == OK, "%s", d.text.data)) {
        char *text = printed(m);
        CHECK_STR(text, sample);
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

/* ---- messages ------------------------------------------------------------ */

static void check_message(const char *text, const char *want) {
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    Status s = parse_module(a, &d, "f", text, strlen(text), &m);
    if (CHECK_MSG(s != OK, "accepted: %s", text)) CHECK_HAS(d.text.data, want);
    sb_free(&d.text);
    arena_free(a);
}

TEST_CASE(parse, carets_point_at_the_mistake) {
    check_message("graph g(%x: f32[2]) {\n\t%\"é\" = relu %y\n}\n",
                  "f:2:14: error: '%y' is not defined here\n"
                  "   %\"é\" = relu %y\n"
                  "               ^\n");
    check_message("graph g(%x: f32[2,3]) { %y = matmul %x, %x }",
                  "f:1:30: error: matmul: f32[2,3] and f32[2,3]: inner");
    check_message("graph g(",
                  "f:1:9: error: a name such as %x expected, found end "
                  "of file\n"
                  "  graph g(\n"
                  "          ^\n");
}

static void put_times(StrBuf *sb, const char *s, int n) {
    while (n-- > 0) sb_puts(sb, s);
}

/* A long line shows 60 bytes before the mistake and 40 after it; a character
   cut at the front is shown whole, one cut at the end is left out. */
TEST_CASE(parse, long_lines_are_cut_around_the_mistake) {
    static const char *const letters[] = {"a", "\xc3\xa9"};
    for (int w = 1; w <= 2; w++)
        for (int before = 20; before < 80; before++)
            for (int after = 10; after < 50; after++) {
                StrBuf text = {0}, want = {0};
                const char *c = letters[w - 1];
                sb_puts(&text, "graph g() {\n%\"");
                put_times(&text, c, before);
                sb_puts(&text, "\" = ^");
                put_times(&text, c, after);
                sb_puts(&text, "\n}\n");
                /* 4 bytes before ^ are not letters */
                int most = (56 + w - 1) / w, shown = before;
                bool whole = w * before + 6 <= 60;
                if (before > most) shown = most;
                sb_puts(&want, whole                  ? "\n  %\""
                               : w * before + 5 == 60 ? "\n  \""
                                                      : "\n  ");
                put_times(&want, c, shown);
                sb_puts(&want, "\" = ^");
                put_times(&want, c, after < 39 / w ? after : 39 / w);
                sb_puts(&want, "\n  ");
                put_times(&want, " ",
                          shown + 4 + (whole ? 2 : w * before + 5 == 60));
                sb_puts(&want, "^\n");
                check_message(text.data, want.data);
                sb_free(&text);
                sb_free(&want);
            }
}

/* A byte-order mark does not count as a column. */
TEST_CASE(parse, a_mark_may_stand_in_front) {
#define MARK "\xef\xbb\xbf"
    check_message(MARK "graph g() { ^ }", "f:1:13: error: unexpected");
    check_message(MARK, "f:1:1: error: the file has no model");
    check_message("\xef\xbb", "unexpected character");
    check_message("\xef\xbb\xbe", "unexpected character");
    check_message(MARK "model m(x: f32[2]) {\n  return y = z\n}\n",
                  "f:2:14: error: 'z' has no value here");
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    static const char text[] = MARK "graph g(%x: f32[2]) { return %x }";
    CHECK(parse_module(a, &d, "f", text, sizeof text - 1, &m) == OK);
    sb_free(&d.text);
    arena_free(a);
}

/* Two graphs of a file may make the same statements about one variable. */
TEST_CASE(parse, variables_of_two_graphs_begin_alike) {
    static const struct {
        const char *first, *second;
        bool alike;
    } rows[] = {
        {"", "", true},
        {" = 1", " = 1", true},
        {" = 1", "", true},
        {"", " = 1", false},
        {" = [1, 2]", " = [1, 2]", true},
        {" = [1, 2]", "", true},
        {" = [1, 2]", " = [1, 3]", false},
        {" = [1, 2]", " = [3, 2]", false},
        {" = [1, 2]", " = 1", false},
        {" = 1", " = [1, 2]", false},
        {" = normal(1, 1)", " = normal(1, 1)", true},
        {" = normal(1, 1)", " = normal(2, 1)", false},
        {" = normal(1, 1)", " = normal(1, 2)", false},
        {" = normal(1, 1)", " = uniform(1, 0, 1)", false},
        {" = normal(1, 1)", " = 0", false},
        {" = uniform(1, 0, 1)", " = uniform(1, 0, 2)", false},
        {" = uniform(1, 0, 1)", " = uniform(1, 0.5, 1)", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Arena *a = arena_new();
        Diag d = {0};
        Module *m;
        char *text = arena_printf(a,
                                  "graph g() { state %%s: f32[2]%s }\n"
                                  "graph h() { state %%s: f32[2]%s }\n",
                                  rows[i].first, rows[i].second);
        Status s = parse_module(a, &d, "f", text, strlen(text), &m);
        CHECK_MSG((s == OK) == rows[i].alike, "%s%s", text,
                  s == OK ? "accepted" : d.text.data);
        if (s != OK) CHECK_HAS(d.text.data, "'%s' begins otherwise in another");
        sb_free(&d.text);
        arena_free(a);
    }
}

/* A module has a header line for each of its facts. */
TEST_CASE(roundtrip, headers) {
    static const char *const heads[] = {
        "", "module m\n\n", "module \"\" {class_axis=0}\n\n",
        "module \"\" {producer=\"p\"}\n\n",
        "module m {class_axis=7, producer=\"p 1\"}\n\n"};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        Arena *a = arena_new();
        Diag d = {0};
        Module *m;
        char *text = arena_printf(a,
                                  "%sgraph g(%%x: f32[2]) {\n"
                                  "  return %%x\n}\n",
                                  heads[i]);
        if (CHECK_MSG(parse_module(a, &d, "s", text, strlen(text), &m) == OK,
                      "%s", d.text.data)) {
            char *back = printed(m);
            CHECK_STR(back, text);
            free(back);
        }
        sb_free(&d.text);
        arena_free(a);
    }
}

/* Texts that print differently; the printed texts read back as themselves. */
TEST_CASE(roundtrip, other_ways_to_write_it) {
    static const char *const rows[][2] = {
        {"graph g(%\"\\x4a\\x4F\\x6B\": f32[2]) {\n  return %JOk\n}\n",
         "graph g(%JOk: f32[2]) {\n  return %JOk\n}\n"},
        {"graph g(%\"\\xaF\\xfA\": f32[2]) {\n  return y=%\"\\xaf\\xfa\"\n}\n",
         "graph g(%\"\\xaf\\xfa\": f32[2]) {\n  return y=%\"\\xaf\\xfa\"\n}\n"},
        {"graph g(%x: f32[2]) { %y = exp %x !checkpoint=1\n return %y }",
         "graph g(%x: f32[2]) {\n  %y = exp %x : f32[2] !checkpoint=1\n"
         "  return %y\n}\n"},
        {"graph g(%x: f32[2]) { %y = exp %x !chunk=3\n return %y }",
         "graph g(%x: f32[2]) {\n  %y = exp %x : f32[2] !chunk=3\n"
         "  return %y\n}\n"},
        {"graph g(%x: f32[2]) { %y = exp %x !checkpoint=2147483646\n"
         " return %y }",
         "graph g(%x: f32[2]) {\n"
         "  %y = exp %x : f32[2] !checkpoint=2147483646\n  return %y\n}\n"},
        {"dim B = 4\ngraph g(%x: f32[B,2]) { return %x }",
         "graph g(%x: f32[4,2]) {\n  return %x\n}\n"},
        {"def f(x) -> y { y = exp(x) }\n"
         "graph g(%x: f32[2]) { %y = relu %x  return %y }",
         "def f(x) -> y { y = exp(x) }\n\n"
         "graph g(%x: f32[2]) {\n  %y = relu %x : f32[2]\n  return %y\n}\n"},
        {"graph g(%x: f32[2]) { %a = add %x, .5 %b = add %a, -.5\n"
         "%c = add %b, +2 %d = add %c, -inf %e = add %d, nan return %e }",
         "graph g(%x: f32[2]) {\n  %a = add %x, 0.5 : f32[2]\n"
         "  %b = add %a, -0.5 : f32[2]\n  %c = add %b, 2 : f32[2]\n"
         "  %d = add %c, -inf : f32[2]\n  %e = add %d, nan : f32[2]\n"
         "  return %e\n}\n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int k = 0; k < 2; k++) { /* also the printed form */
            Arena *a = arena_new();
            Diag d = {0};
            Module *m;
            const char *text = rows[i][k];
            if (parse_module(a, &d, "s", text, strlen(text), &m) != OK)
                FAIL("%s\n%s", text, d.text.data);
            char *back = printed(m);
            CHECK_STR(back, rows[i][1]);
            free(back);
            arena_free(a);
        }
}

/* Blocks belong to the module or to its only graph. */
TEST_CASE(parse, blocks_are_of_a_model) {
#define G "graph g(%x: f32[2]) { return %x }\n"
    static const char *const good[] = {"module m\n" G "train m { lr=1 }\n",
                                       "module m\n" G "train g { lr=1 }\n",
                                       G "policy g { op Add low }\n",
                                       "train g { lr=1 }\n" G};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        Arena *a = arena_new();
        Diag d = {0};
        Module *m;
        CHECK_MSG(parse_module(a, &d, "f", good[i], strlen(good[i]), &m) == OK,
                  "%s", good[i]);
        sb_free(&d.text);
        arena_free(a);
    }
    check_message("module m\n" G "train h { lr=1 }\n",
                  "f:3:7: error: the file has no model 'h'");
    check_message("module m\n" G "graph h() { }\ntrain h { lr=1 }\n",
                  "f:4:7: error: the file has no model 'h'");
}

TEST_CASE(parse, mistakes) {
    static const char *const cases[][2] = {
        {"foo", "'graph', 'model', 'def', 'dim', 'train' or "},
        {"graph", "the graph's name expected, found end of file"},
        {"graph g(%x f32[2]) {}", "':' expected, found 'f32'"},
        {"graph g(%x: f31[2]) {}", "a type such as f32[2,3] expected"},
        {"graph g(%x: f32) {}", "'[' expected"},
        {"graph g(%x: f32[1,1,1,1,1,1,1,1,1]) {}", "more than 8 dimensions"},
        {"graph g(%x: f32[99999999999999999999]) {}", "too large"},
        {"graph g(%x: f32[2], %x: f32[2]) {}", "'%x' is already defined"},
        {"graph g() {} graph g() {}", "of this name exists already"},
        {"graph g() { %y = frob 1 }", "an operator expected, found 'frob'"},
        {"graph g() { %y = exp 1 {foo=1} }", "has no attribute 'foo'"},
        {"graph g() { %y = clip 1 {min=\"a\"} }", "a number expected"},
        {"graph g() { %y = clip 1 {min=0x1p3} }", "a number expected"},
        {"graph g() { %y = trilu 1 {k=1.5} }", "an integer expected"},
        {"graph g() { %y = trilu 1 {k=1, k=2} }", "given twice"},
        {"graph g(%x: f32[2,2]) { %y = trilu %x {k=9223372036854775808} }",
         "1:42: error: the integer is too large"},
        {"graph g(%x: f32[2,2]) { %y = trilu %x {k=-9223372036854775809} }",
         "the integer is too large"},
        {"graph g() { %y = exp 1 : f32[], f32[] }", "2 types for 1 results"},
        {"graph g() { %y = exp 1 !forward }", "!checkpoint=N"},
        {"graph g() { %y = exp 1:f99 }", "unknown dtype 'f99'"},
        {"graph g() { %y = abs 300:u8 }", "300 is outside u8"},
        {"graph g() { %y = abs -1:u64 }", "outside u64"},
        {"graph g() { %y, %y = split 1 }", "outside rank 0"},
        {"graph g(%x: f32[2]) { %y, %y = split %x {sizes=[1,1]} }",
         "'%y' is already defined"},
        {"graph g() { const %c: f32[2] = [1] }", "1 elements, the type has 2"},
        {"graph g() { const %c: f32[2] = [1, 2, 3] }", "more than 2 elements"},
        {"graph g() { const %c: i32[2] = [1, 2.5] }", "an integer expected"},
        {"graph g() { const %c: i8[1] = [128] }", "128 is outside i8"},
        {"graph g() { const %c: f32[999999999999] = 1 }", "too large for text"},
        {"graph g() { const %c: i32[2] = normal(1, 1) }", "floating point"},
        {"graph g() { const %c: i8[33554433] = uniform(1, 0, 2) "
         "const %d: i8[33554432] = uniform(2, 0, 2) }",
         "1:80: error: the constants hold 67108865 numbers that are not "
         "written out, at most 67108864: a frozen variable is filled when the "
         "module is opened"},
        {"graph g() { const %c: f16[67108865] = nan }", "67108865 numbers"},
        {"graph g() { const %c: f32[2] = data(12) }", "a hash 0x.. expected"},
        {"graph g() { %y = exp 1 !checkpoint=0 }",
         "1:36: error: checkpoints are counted from 1"},
        {"graph g() { %y = exp 1 !checkpoint=2147483647 }",
         "checkpoints are counted from 1"},
        {"graph g() { %y = exp 1 !chunk=0 }",
         "1:31: error: chunks are counted from 1"},
        {"graph g() { const %c: f32[2] = data(0x12345678901234567) }",
         "not a 64-bit hash"},
        {"graph g() { const %c: f32[2] = data(0xfg) }", "not a 64-bit hash"},
        {"graph g() { const %c: f32[2] }", "'=' expected"},
        {"graph g() { param %w: f32[2] {foo=1} }", "lr_scale, stored"},
        {"graph g(%x: f32[]) { write %x = 1 }", "only variables are written"},
        {"graph g(%x: f32[]) { param %w: f32[] write %w = %x bucket 0 }",
         "buckets are counted from 1"},
        {"graph g(%x: f32[]) { param %w: f32[] write %w = %x bucket 1 }",
         "%w is summed over ranks, but no f32 gradient"},
        {"graph g(%x: bf16[]) { param %w: f32[] grad %ampc.grad/w: bf16[] "
         "write %ampc.grad/w = %x bucket 1 }",
         "%ampc.grad/w is summed over ranks, but no f32 gradient"},
        {"graph g() { state %s: i32[] write %s = 1 }", "the variable is i32[]"},
        {"graph g() { state %s: f32[] write %s = 1 write %s = 2 }",
         "%s is written twice"},
        {"graph g() { return 1 }", "the output needs a name"},
        {"graph g() { return a=1, a=2 }",
         "1:27: error: an output 'a' exists already"},
        {"graph g() { return a=_ }", "a value expected"},
        {"graph g() { return a=1", "'}' expected, found end of file"},
        {"graph g() { group big { } }", "point, row, anchor or lib"},
        {"graph g() { group row { return } }", "a name such as %x expected"},
        {"graph g() { %y = exp 1 : f32[] @-4 }", "negative offset"},
        {"graph g() { %y = exp 1 : f32[] @%q }", "unknown variable"},
        {"graph g() { param %w: f32[] } graph h() { state %w: f32[] }",
         "'%w' is a param of type f32[] in another graph"},
        {"graph g() { param %w: f32[] = 1 } graph h() { param %w: f32[] = 2 }",
         "begins otherwise"},
        {"module m {class_axis=9}", "an axis is 0 to 7"},
        {"module m {class_axis=8}", "an axis is 0 to 7"},
        {"module m {class_axis=-1}", "an axis is 0 to 7"},
        {"graph g() { %\"abc }", "does not end on its line"},
        {"graph g() { %\"\\x00\" = exp 1 }", "escapes are"},
        {"graph g() { %\"\\x4G\" = exp 1 }", "escapes are"},
        {"graph g() { %\"\\x4g\" = exp 1 }", "escapes are"},
        {"graph g() { %\"\\x@1\" = exp 1 }", "escapes are"},
        {"graph g() { %\"\\x`1\" = exp 1 }", "escapes are"},
        {"graph g() { %\"\\x/1\" = exp 1 }", "escapes are"},
        {"graph g() { %\"\\x:1\" = exp 1 }", "escapes are"},
        {"graph g() { %\"\\y41\" = exp 1 }", "escapes are"},
        {"graph g() { ^\x7f\t- }", "graph g() { ^  - }\n"},
        {"graph g() { %\"\" = exp 1 }", "a name is missing"},
        {"graph g() { ^ }", "unexpected character"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_message(cases[i][0], cases[i][1]);
}

/* A variable's name in another graph may be used in this one. */
TEST_CASE(parse, names_belong_to_their_graph) {
    static const char text[] = "graph a() {\n  param %w: f32[2]\n"
                               "  return %w\n}\n\n"
                               "graph b(%x: f32[2]) {\n"
                               "  %w = exp %x : f32[2]\n  return %w\n}\n";
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    REQUIRE(parse_module(a, &d, "t", text, strlen(text), &m) == OK);
    char *out = printed(m);
    CHECK_STR(out, text);
    free(out);
    arena_free(a);
}

/* ---- hostile text -------------------------------------------------------- */

/* Either refused with a message, or read as a module that verifies. */
static void check_hostile(const char *text, size_t n) {
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    if (parse_module(a, &d, "h", text, n, &m) == OK) {
        Status s = verify_module(m, STAGE_TYPED, &d);
        CHECK_MSG(s == OK, "%s\n%.*s", d.text.data, (int)n, text);
    } else {
        CHECK(d.errors > 0 && d.text.len > 0);
    }
    sb_free(&d.text);
    arena_free(a);
}

/* It took seconds when each number counted the columns to the end of the
   file. */
TEST_CASE(parse, many_numbers_take_no_time) {
    enum { LINES = 20000 };
    StrBuf sb = {0};
    sb_puts(&sb, "graph forward(%x: f32[2]) {\n  %a0 = add %x, 0.5\n");
    for (int i = 1; i < LINES; i++)
        sb_printf(&sb, "  %%a%d = add %%a%d, 0.5\n", i, i - 1);
    sb_printf(&sb, "  return %%a%d\n}\n", LINES - 1);
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    clock_t start = clock();
    CHECK(parse_module(a, &d, "m.amp", sb.data, sb.len, &m) == OK);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    CHECK_MSG(seconds < 3, "%.1f s", seconds);
    sb_free(&sb);
    arena_free(a);
}

TEST_CASE(hostile, truncated_anywhere) {
    for (size_t n = 0; n <= strlen(sample); n++) {
        char *copy = malloc(n + 1); /* exactly sized, for the address
                                       sanitizer */
        memcpy(copy, sample, n);
        check_hostile(copy, n);
        free(copy);
    }
}

static const char *const splices[] = {
    "%x",
    "%w1",
    "f32[",
    "]",
    "}",
    "{",
    "group row {",
    "return ",
    "write %rng",
    "99999999999999999999",
    "-1",
    "0",
    ":i64",
    "\"",
    "%\"",
    "\\x",
    "\0",
    "\n",
    "#",
    "= normal(1, 1)",
    "split ",
    "concat ",
    "nan",
    "_",
    ",",
    "@",
    "!",
    "axis=-9223372036854775808",
    "9223372036854775807",
    "param ",
    "const ",
};

TEST_CASE(hostile, bytes_changed_and_pieces_put_in) {
    enum { PIECES = sizeof splices / sizeof *splices };
    Rng r = {99};
    for (int i = 0; i < 6000; i++) {
        size_t n = strlen(sample);
        char *text = malloc(n * 2);
        memcpy(text, sample, n);
        for (int k = 1 + below(&r, 4); k > 0; k--) {
            size_t at = (size_t)below(&r, (int)n);
            const char *piece = splices[below(&r, PIECES)];
            size_t len = strlen(piece);
            switch (below(&r, 4)) {
            case 0: text[at] = (char)draw(&r); break;
            case 1:
                text[at] =
                    sample[(size_t)below(&r, (int)n) % (sizeof sample - 1)];
                break;
            case 2:
                memmove(text + at + len, text + at, n - at);
                memcpy(text + at, piece, len);
                n += len;
                break;
            default: { /* a line repeated elsewhere */
                size_t from = (size_t)below(&r, (int)sizeof sample - 81);
                memmove(text + at + 80, text + at, n - at);
                memcpy(text + at, sample + from, 80);
                n += 80;
            }
            }
        }
        check_hostile(text, n);
        free(text);
    }
}

TEST_CASE(hostile, random_bytes) {
    Rng r = {5};
    for (int i = 0; i < 2000; i++) {
        char text[64];
        size_t n = (size_t)below(&r, 64);
        for (size_t k = 0; k < n; k++) text[k] = (char)draw(&r);
        check_hostile(text, n);
    }
}

TEST_CASE(parse, exponents_of_numbers_that_are_returned) {
    static const char text[] = "graph g() { return a=1E-3:f64, b=25e+1:f64, "
                               "c=-2E+2:f32, d=5e-1:f32 }";
    static const double want[] = {1e-3, 250, -200, 0.5};
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    if (parse_module(a, &d, "m.amp", text, sizeof text - 1, &m) != OK)
        FAIL("%s", d.text.data);
    const Graph *g = m->graphs.data[0];
    for (int i = 0; i < 4; i++) {
        const Value *v = value_get(g, g->outputs.data[i].value);
        REQUIRE(v->kind == VK_CONST);
        CHECK_NEAR(tensor_get(v->data, 0), want[i], 0);
        CHECK_EQ_INT(type_get(v->type)->dtype, i < 2 ? DT_F64 : DT_F32);
    }
    arena_free(a);
}
