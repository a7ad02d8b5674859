/* SPDX-License-Identifier: Apache-2.0 */
/* moves_test.c: ops that move elements, with no attribute at its default.

   Permutations that are not involutions, slices at odd offsets, backwards
   and to the very start, negative indices along axes other than 0, operands
   that are already transposed, sums of products, grouped heads; non-default
   epsilons and axes. The expected results are computed here by plain loops
   over the input. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/support/onnx_util.h"

static const char model[] =
    "graph forward(%x: f32[3,4,5], %i: i64[2,3], %p: f32[2,4,3],\n"
    "              %q: f32[2,5,4], %r: f32[2,5,3], %h: f32[2,3,12]) {\n"
    "  param %g: f32[5] = 0.75, %b: f32[5] = 0.25\n"
    "  buffer %mean: f32[4] = 0.125, %var: f32[4] = 0.5\n"
    "  param %s: f32[4] = 1.5, %t: f32[4] = -0.5\n"
    "  %turn = transpose %x {perm=[1,2,0]} : f32[4,5,3]\n"
    "  %turn2 = transpose %turn {perm=[1,2,0]} : f32[5,3,4]\n"
    "  %wide = mul %turn2, 2 : f32[5,3,4]\n"
    "  %turn3 = transpose %wide {perm=[2,0,1]} : f32[4,5,3]\n"
    "  %mixed = transpose %turn {perm=[0,2,1]} : f32[4,3,5]\n"
    "  %odd = slice %x {starts=[2,1,3], sizes=[3,2,2], steps=[-1,2,-2]}\n"
    "  %back = slice %x {starts=[0,3,4], sizes=[3,4,5], steps=[1,-1,-1]}\n"
    "  %rows = gather %x, %i {axis=1} : f32[3,2,3,5]\n"
    "  %cols = gather %x, %i {axis=2} : f32[3,4,2,3]\n"
    "  %one, %rest = split %x {axis=1, sizes=[1,3]}\n"
    "  %joined = concat %rest, %one, %rest {axis=1} : f32[3,7,5]\n"
    "  %pt = transpose %p {perm=[0,2,1]} : f32[2,3,4]\n"
    "  %rt = transpose %r {perm=[0,2,1]} : f32[2,3,5]\n"
    "  %pq = matmul %pt, %q {trans_b=1} : f32[2,3,5]\n"
    "  %pr = matmul %pt, %rt {trans_a=1} : f32[2,4,5]\n"
    "  %p4 = reshape %pt {shape=[2,1,3,4]} : f32[2,1,3,4]\n"
    "  %q4 = reshape %q {shape=[1,2,5,4]} : f32[1,2,5,4]\n"
    "  %pq4 = matmul %p4, %q4 {trans_b=1} : f32[2,2,3,5]\n"
    "  %key = slice %h {starts=[1,1,4], sizes=[1,2,8], steps=[1,1,1]}\n"
    "  %heads = reshape %key {shape=[1,2,4,2]} : f32[1,2,4,2]\n"
    "  %less = sub %x, 1 : f32[3,4,5]\n"
    "  %low = trilu %x {upper=0, k=-1} : f32[3,4,5]\n"
    "  %high = trilu %x {upper=1, k=2} : f32[3,4,5]\n"
    "  %ln, %m, %rs = layer_norm %x, %g, %b {axis=2, epsilon=0.5}\n"
    "  %bn = batch_norm %x, %s, %t, %mean, %var {training=0, epsilon=0.7}\n"
    "  %soft = softmax %x {axis=1} : f32[3,4,5]\n"
    "  %hs = reshape %h {shape=[6,12]} : f32[6,12]\n"
    "  %h0, %h1, %h2, %h3, %h4, %h5 = split %hs {axis=0,\n"
    "      sizes=[1,1,1,1,1,1]}\n"
    "  %h1t = reshape %h1 {shape=[12,1]} : f32[12,1]\n"
    "  %h2t = reshape %h2 {shape=[12,1]} : f32[12,1]\n"
    "  %a0 = matmul %h0, %h3 {trans_a=1} : f32[12,12]\n"
    "  %a1 = matmul %h1t, %h4 : f32[12,12]\n"
    "  %a2 = matmul %h2t, %h5 : f32[12,12]\n"
    "  %a3 = matmul %h3, %h5 {trans_a=1} : f32[12,12]\n"
    "  %h00 = slice %hs {starts=[0,0], sizes=[1,1], steps=[1,1]}\n"
    "  %row = matmul %h00, %h5 : f32[1,12]\n"
    "  %a01 = add %a0, %a1 : f32[12,12]\n"
    "  %ar = add %a01, %row : f32[12,12]\n"
    "  %a012 = add %a2, %ar : f32[12,12]\n"
    "  %outer = add %a012, %a3 : f32[12,12]\n"
    "  %less12 = reshape %less {shape=[12,5]} : f32[12,5]\n"
    "  %half = reshape %less12 {shape=[5,12]} : f16[5,12]\n"
    "  %flat = reshape %half {shape=[60]} : f32[60]\n"
    "  return outer=%outer, flat=%flat,\n"
    "         turn=%turn, turn2=%turn2, turn3=%turn3, mixed=%mixed, odd=%odd,\n"
    "         back=%back, rows=%rows, cols=%cols, joined=%joined, pq=%pq,\n"
    "         pr=%pr, pq4=%pq4, heads=%heads, less=%less, low=%low,\n"
    "         high=%high, ln=%ln, bn=%bn, soft=%soft\n"
    "}\n";

typedef struct Data {
    float x[3][4][5], p[2][4][3], q[2][5][4], r[2][5][3], h[2][3][12];
    int64_t i[2][3];
} Data;

static Data d;

static void fill(void *p, size_t bytes, uint64_t seed) {
    float *x = p;
    for (size_t i = 0; i < bytes / sizeof *x; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)((double)(seed >> 40) / (1 << 23) - 1);
    }
}

static void data_fill(void) {
    static const int64_t ids[] = {-4, 3, -1, 0, -2, 1};
    fill(d.x, sizeof d.x, 1);
    fill(d.p, sizeof d.p, 2);
    fill(d.q, sizeof d.q, 3);
    fill(d.r, sizeof d.r, 4);
    fill(d.h, sizeof d.h, 5);
    memcpy(d.i, ids, sizeof ids);
}

/* ---- element [i, j, k, l] of each output --------------------------------- */

typedef double Element(const int *at);

static double x_at(int i, int j, int k) { return (double)d.x[i][j][k]; }

static double turn(const int *at) { return x_at(at[2], at[0], at[1]); }
static double turn2(const int *at) { return x_at(at[1], at[2], at[0]); }
/* [i,j,k] of turn3 is [j,k,i] of 2 turn2. */
static double turn3(const int *at) { return 2 * x_at(at[2], at[0], at[1]); }
static double mixed(const int *at) { return x_at(at[1], at[0], at[2]); }
static double odd(const int *at) {
    return x_at(2 - at[0], 1 + 2 * at[1], 3 - 2 * at[2]);
}
static double back(const int *at) { return x_at(at[0], 3 - at[1], 4 - at[2]); }
static int index_of(int i, int j, int n) {
    int64_t v = d.i[i][j];
    return (int)(v < 0 ? v + n : v);
}
static double rows(const int *at) {
    return x_at(at[0], index_of(at[1], at[2], 4), at[3]);
}
static double cols(const int *at) {
    return x_at(at[0], at[1], index_of(at[2], at[3], 5));
}
static double joined(const int *at) {
    static const int from[] = {1, 2, 3, 0, 1, 2, 3};
    return x_at(at[0], from[at[1]], at[2]);
}
static double pq(const int *at) {
    double sum = 0;
    for (int k = 0; k < 4; k++)
        sum += (double)d.p[at[0]][k][at[1]] * (double)d.q[at[0]][at[2]][k];
    return sum;
}
static double pr(const int *at) {
    double sum = 0;
    for (int k = 0; k < 3; k++)
        sum += (double)d.p[at[0]][at[1]][k] * (double)d.r[at[0]][at[2]][k];
    return sum;
}
/* each of one batch with each of the other */
static double pq4(const int *at) {
    double sum = 0;
    for (int k = 0; k < 4; k++)
        sum += (double)d.p[at[0]][k][at[2]] * (double)d.q[at[1]][at[3]][k];
    return sum;
}
static double heads(const int *at) {
    return (double)d.h[1][1 + at[1]][4 + 2 * at[2] + at[3]];
}
static double outer(const int *at) {
    double sum = (double)d.h[0][0][0] * (double)d.h[1][2][at[1]];
    for (int i = 0; i < 3; i++)
        sum += (double)d.h[0][i][at[0]] * (double)d.h[1][i][at[1]];
    return sum + (double)d.h[1][0][at[0]] * (double)d.h[1][2][at[1]];
}
static double less(const int *at) { return x_at(at[0], at[1], at[2]) - 1; }
static double flat(const int *at) { /* through 11 binary digits */
    double x = x_at(at[0] / 20, at[0] / 5 % 4, at[0] % 5) - 1;
    int exponent;
    frexp(x, &exponent);
    return ldexp(nearbyint(ldexp(x, 11 - exponent)), exponent - 11);
}
static double low(const int *at) {
    return at[2] <= at[1] - 1 ? x_at(at[0], at[1], at[2]) : 0;
}
static double high(const int *at) {
    return at[2] >= at[1] + 2 ? x_at(at[0], at[1], at[2]) : 0;
}
static double ln(const int *at) {
    double mean = 0, var = 0;
    for (int k = 0; k < 5; k++) mean += x_at(at[0], at[1], k) / 5;
    for (int k = 0; k < 5; k++) var += pow(x_at(at[0], at[1], k) - mean, 2) / 5;
    double z = (x_at(at[0], at[1], at[2]) - mean) / sqrt(var + 0.5);
    return 0.75 * z + 0.25;
}
static double bn(const int *at) {
    return 1.5 * (x_at(at[0], at[1], at[2]) - 0.125) / sqrt(0.5 + 0.7) - 0.5;
}
static double soft(const int *at) {
    double sum = 0;
    for (int j = 0; j < 4; j++) sum += exp(x_at(at[0], j, at[2]));
    return exp(x_at(at[0], at[1], at[2])) / sum;
}

static const struct {
    const char *name;
    Element *element;
    int dim[4];
} outputs[] = {
    {"turn", turn, {4, 5, 3, 1}},     {"turn2", turn2, {5, 3, 4, 1}},
    {"turn3", turn3, {4, 5, 3, 1}},   {"mixed", mixed, {4, 3, 5, 1}},
    {"odd", odd, {3, 2, 2, 1}},       {"back", back, {3, 4, 5, 1}},
    {"rows", rows, {3, 2, 3, 5}},     {"cols", cols, {3, 4, 2, 3}},
    {"joined", joined, {3, 7, 5, 1}}, {"pq", pq, {2, 3, 5, 1}},
    {"pr", pr, {2, 4, 5, 1}},         {"pq4", pq4, {2, 2, 3, 5}},
    {"heads", heads, {1, 2, 4, 2}},   {"less", less, {3, 4, 5, 1}},
    {"low", low, {3, 4, 5, 1}},       {"high", high, {3, 4, 5, 1}},
    {"ln", ln, {3, 4, 5, 1}},         {"bn", bn, {3, 4, 5, 1}},
    {"soft", soft, {3, 4, 5, 1}},     {"outer", outer, {12, 12, 1, 1}},
    {"flat", flat, {60, 1, 1, 1}},
};

static void check_output(const char *name, Element *element, const int *dim,
                         const float *got) {
    int at[4];
    for (at[0] = 0; at[0] < dim[0]; at[0]++)
        for (at[1] = 0; at[1] < dim[1]; at[1]++)
            for (at[2] = 0; at[2] < dim[2]; at[2]++)
                for (at[3] = 0; at[3] < dim[3]; at[3]++, got++)
                    if (!CHECK_MSG(fabs((double)*got - element(at)) < 1e-6,
                                   "%s[%d,%d,%d,%d] is %g, not %g", name, at[0],
                                   at[1], at[2], at[3], (double)*got,
                                   element(at)))
                        return;
}

TEST_CASE(moves, elements_come_from_where_they_should) {
    Compiled c = compile_text(model, "--precision fp32 --loss none "
                                     "--target cpu:x86-64-v2");
    ampc_session *s = open_threads(&c, 1);
    data_fill();
    ampc_input in[] = {ampc_in("x", d.x, sizeof d.x, AMPC_DTYPE_F32),
                       ampc_in("i", d.i, sizeof d.i, AMPC_DTYPE_I64),
                       ampc_in("p", d.p, sizeof d.p, AMPC_DTYPE_F32),
                       ampc_in("q", d.q, sizeof d.q, AMPC_DTYPE_F32),
                       ampc_in("r", d.r, sizeof d.r, AMPC_DTYPE_F32),
                       ampc_in("h", d.h, sizeof d.h, AMPC_DTYPE_F32)};
    ampc_module_info info = {.size = sizeof info};
    REQUIRE(!c.api->describe(c.api->module, &info));
    if (c.api->predict(s, in, 6, info.batch, NULL, 0))
        FAIL("%s", c.api->error(s));
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        float got[200];
        ampc_output out = ampc_out(NULL, got, sizeof got, AMPC_DTYPE_F32);
        if (c.api->read_output(s, outputs[i].name, &out))
            FAIL("%s", c.api->error(s));
        check_output(outputs[i].name, outputs[i].element, outputs[i].dim, got);
    }
    c.api->close(s);
    compiled_close(&c);
}

/* ---- grouped queries ----------------------------------------------------- */

enum { LENGTH = 3, HEADS = 6, KEYS = 2, SIZE = 2 };
static float Q[LENGTH][HEADS][SIZE], K[LENGTH][KEYS][SIZE],
    V[LENGTH][KEYS][SIZE];

/* Query heads 0..2 read key head 0, heads 3..5 key head 1; `seen` keys are
   visible. */
static double attended(int t, int head, int e, double scale, int seen) {
    int key = head / (HEADS / KEYS);
    double sum = 0, y = 0;
    for (int j = 0; j < seen; j++) {
        double score = 0;
        for (int k = 0; k < SIZE; k++)
            score += (double)Q[t][head][k] * (double)K[j][key][k];
        double w = exp(scale * score);
        sum += w;
        y += w * (double)V[j][key][e];
    }
    return y / sum;
}

/* scale 0: the default; a mask for `seen` keys hides the others. */
static void grouped(double scale, int seen) {
    Made m;
    size_t n;
    float y[LENGTH][HEADS][SIZE], mask[LENGTH][2] = {{0}};
    double factor = scale > 0 ? scale : 1 / sqrt(SIZE);
    made_start(&m, 23);
    made_input(&m, "Q", DT_F32, "1,3,12");
    made_input(&m, "K", DT_F32, "1,3,4");
    made_input(&m, "V", DT_F32, "1,3,4");
    if (seen < LENGTH) made_input(&m, "M", DT_F32, "3,2");
    Onnx__NodeProto *a =
        made_node(&m, "Attention", seen < LENGTH ? "Q,K,V,M" : "Q,K,V", "Y");
    made_int(&m, a, "q_num_heads", HEADS);
    made_int(&m, a, "kv_num_heads", KEYS);
    if (scale > 0) made_float(&m, a, "scale", (float)scale);
    made_output(&m, "Y");
    uint8_t *bytes = model_pack(&m.model, &n);
    const char *path = test_tmp("grouped.onnx");
    REQUIRE(test_write_file(path, bytes, n));
    free(bytes);
    made_end(&m);
    Compiled c = compile_file(path, "--precision fp32 --loss none "
                                    "--target cpu:x86-64-v2");
    ampc_session *s = open_threads(&c, 1);
    fill(Q, sizeof Q, 7);
    fill(K, sizeof K, 8);
    fill(V, sizeof V, 9);
    ampc_input in[] = {ampc_in("Q", Q, sizeof Q, AMPC_DTYPE_F32),
                       ampc_in("K", K, sizeof K, AMPC_DTYPE_F32),
                       ampc_in("V", V, sizeof V, AMPC_DTYPE_F32),
                       ampc_in("M", mask, sizeof mask, AMPC_DTYPE_F32)};
    ampc_output out = ampc_out(NULL, y, sizeof y, AMPC_DTYPE_F32);
    if (c.api->predict(s, in, seen < LENGTH ? 4 : 3, 1, &out, 1))
        FAIL("%s", c.api->error(s));
    for (int t = 0; t < LENGTH; t++)
        for (int h = 0; h < HEADS; h++)
            for (int e = 0; e < SIZE; e++)
                CHECK_NEAR(y[t][h][e], attended(t, h, e, factor, seen), 1e-6);
    c.api->close(s);
    compiled_close(&c);
}

TEST_CASE(moves, grouped_queries_share_their_neighbours_keys) {
    grouped(0.5, LENGTH);
}
TEST_CASE(moves, scores_are_scaled_by_the_size_of_a_head) {
    grouped(0, LENGTH);
}
TEST_CASE(moves, a_narrow_mask_hides_what_it_lacks) { grouped(0, 2); }

/* ---- rows known at compile time ------------------------------------------ */

/* Rows of [4,4], along either axis: every run of rows, negative indices and
   runs across the end, forwards and backwards, and each row alone. */
TEST_CASE(moves, known_rows_are_taken_from_where_they_count) {
    enum { SIDE = 4, MOST = 3, CASES = 2 * 2 * SIDE * 2 * MOST };
    struct Rows {
        int axis, n, row[MOST];
    } rows[CASES];
    int n = 0;
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    fputs("graph forward(%x: f32[4,4]) {\n", f);
    for (int axis = 0; axis < 2; axis++)
        for (int first = -SIDE; first < SIDE; first++)
            for (int step = -1; step <= 1; step += 2)
                for (int len = 1; len <= MOST; len++) {
                    int last = first + step * (len - 1);
                    if (last < -SIDE || last >= SIDE) continue;
                    struct Rows *r = &rows[n];
                    *r = (struct Rows){axis, len, {0}};
                    fprintf(f, "  const %%i%d: i64[%d] = [", n, len);
                    for (int k = 0; k < len; k++)
                        fprintf(f, "%s%d", k ? ", " : "",
                                r->row[k] = first + step * k);
                    fprintf(f, "]\n  %%y%d = gather %%x, %%i%d {axis=%d}\n", n,
                            n, axis);
                    n++;
                }
    fputs("  return ", f);
    for (int i = 0; i < n; i++) fprintf(f, "%sy%d=%%y%d", i ? ", " : "", i, i);
    fputs("\n}\n", f);
    fclose(f);
    Compiled c = compile_text(text, "--precision fp32 --loss none "
                                    "--target cpu:x86-64-v2");
    ampc_session *s = open_threads(&c, 1);
    float x[SIDE][SIDE];
    fill(x, sizeof x, 5);
    ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
    if (c.api->predict(s, &in, 1, SIDE, NULL, 0)) FAIL("%s", c.api->error(s));
    for (int i = 0; i < n; i++) {
        const struct Rows *r = &rows[i];
        float got[MOST * SIDE];
        char name[16];
        ampc_output out =
            ampc_out(NULL, got, (size_t)r->n * SIDE * 4, AMPC_DTYPE_F32);
        snprintf(name, sizeof name, "y%d", i);
        if (c.api->read_output(s, name, &out)) FAIL("%s", c.api->error(s));
        for (int k = 0; k < r->n; k++)
            for (int j = 0; j < SIDE; j++) {
                int row = (r->row[k] + SIDE) % SIDE;
                float want = r->axis ? x[j][row] : x[row][j];
                float have = r->axis ? got[j * r->n + k] : got[k * SIDE + j];
                CHECK_MSG(have == want, "axis %d, row %d of %d from %d",
                          r->axis, k, r->n, r->row[0]);
            }
    }
    c.api->close(s);
    compiled_close(&c);
    free(text);
}

/* ---- where comparisons choose -------------------------------------------- */

TEST_CASE(moves, comparisons_choose) {
    enum { N = 3 };
    Compiled c = compile_text(
        "model m(x: f32[3], y: f32[3]) {\n"
        "  return eq = where(x == y, 1.0, 0.0), ne = where(x != y, 1.0, 0.0),\n"
        "    lt = where(x < y, 1.0, 0.0), le = where(x <= y, 1.0, 0.0),\n"
        "    gt = where(x > y, 1.0, 0.0), ge = where(x >= y, 1.0, 0.0)\n}\n",
        "--precision fp32 --loss none --target cpu:x86-64-v2");
    static const struct {
        const char *name;
        float want[N]; /* results for less, equal and greater */
    } rows[] = {{"eq", {0, 1, 0}}, {"ne", {1, 0, 1}}, {"lt", {1, 0, 0}},
                {"le", {1, 1, 0}}, {"gt", {0, 0, 1}}, {"ge", {0, 1, 1}}};
    ampc_session *s = open_threads(&c, 1);
    float x[N] = {1, 2, 3}, y[N] = {2, 2, 2};
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("y", y, sizeof y, AMPC_DTYPE_F32)};
    if (c.api->predict(s, in, 2, N, NULL, 0)) FAIL("%s", c.api->error(s));
    for (int i = 0; i < 6; i++) {
        float got[N];
        ampc_output out = ampc_out(NULL, got, sizeof got, AMPC_DTYPE_F32);
        if (c.api->read_output(s, rows[i].name, &out))
            FAIL("%s", c.api->error(s));
        for (int k = 0; k < N; k++)
            CHECK_MSG(got[k] == rows[i].want[k], "%s of %g and %g",
                      rows[i].name, (double)x[k], (double)y[k]);
    }
    c.api->close(s);
    compiled_close(&c);
}
