/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_placed_test.c: rows put where a mask selects, in the form in which
   torch.onnx.export writes x[mask] = rows, and in others. Every mask of five
   elements; the oracle is a loop over them. */
#include <string.h>

#include "ir/fn/fn.h"
#include "tests/harness.h"
#include "tests/support/onnx_util.h"

enum { N = 5, D = 2, MASKS = 1 << N };

static bool has(int mask, int k) { return mask >> k & 1; }

static double x_of(int i, int k) { return 10 * i + k + 1; }

static double row_of(int i, int k) { return -100 - 10 * i - k; }

typedef struct Ran {
    double y[N * D];
    int64_t excess; /* the first check's; 0: there is none */
} Ran;

/* A number of rows goes through no float on its way to the check. */
static void check_whole(const Graph *g, ValueId v) {
    const Value *val = value_get(g, v);
    if (val->kind != VK_RESULT) return;
    const Node *n = node_get(g, val->def);
    CHECK(n->op != OP_CAST || !dtype_is_float(value_type(g, n->in[0])->dtype));
    for (int k = 0; k < n->nin; k++)
        if (is_value(n->in[k])) check_whole(g, n->in[k]);
}

/* Inputs are x[5,2], masks of five or ten elements, and rows. */
static void bind(const Graph *g, Evaluator *e, Arena *a, ValueId v, int mask) {
    EvalTensor *t = eval_tensor_new(a, value_get(g, v)->type);
    const char *name = value_get(g, v)->name;
    int64_t n = type_count(value_type(g, v));
    for (int k = 0; k < n; k++) {
        int i = k / D;
        if (t->f)
            t->f[k] = !strcmp(name, "x") ? x_of(i, k % D) : row_of(i, k % D);
        else
            t->i[k] = !strcmp(name, "other") ? !has(mask, k) : has(mask, k);
    }
    eval_bind(e, v, t);
}

static Ran run(Made *m, int mask) {
    Ran r = {0};
    m->opt.objectives.data[0].loss.kind = LOSS_NONE;
    Module *mod = made_import(m);
    REQUIRE(CHECK_MSG(mod != NULL, "%s", made_message(m)));
    Graph *g = module_graph(mod, "forward");
    Evaluator *e = eval_new(g, m->a, EVAL_EXACT);
    for (int i = 0; i < g->inputs.len; i++)
        bind(g, e, m->a, g->inputs.data[i], mask);
    REQUIRE(eval_run(e, &m->d) == OK);
    const EvalTensor *y = eval_get(e, g->outputs.data[0].value);
    memcpy(r.y, y->f, sizeof r.y);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (!is_call(n, "as_many")) continue;
        r.excess = eval_get(e, n->in[1])->i[0];
        check_whole(g, n->in[1]);
    }
    return r;
}

static void start(Made *m) {
    made_start(m, 18);
    made_input(m, "x", DT_F32, "5,2");
    made_input(m, "mask", DT_BOOL, "5");
    made_i64(m, "flat", 1, (int64_t[]){-1});
    made_i64(m, "last", 1, (int64_t[]){1});
    made_i64(m, "d", 1, (int64_t[]){D});
}

static void transpose(Made *m, const char *x, const char *y) {
    Onnx__NodeProto *n = made_node(m, "Transpose", x, y);
    made_ints(m, n, "perm", 2, (int64_t[]){1, 0});
}

/* at: the positions of x's elements in the rows that the mask selects. */
static void elements_of_mask(Made *m) {
    made_node(m, "Unsqueeze", "mask,last", "column");
    made_node(m, "Shape", "x", "shape");
    made_node(m, "Expand", "column,shape", "wide");
    made_node(m, "NonZero", "wide", "found");
    transpose(m, "found", "at");
}

/* x[mask] = rows, of torch.onnx.export. */
static Onnx__NodeProto *put(Made *m, const char *rows) {
    char expand[64];
    snprintf(expand, sizeof expand, "%s,selected", rows);
    elements_of_mask(m);
    made_node(m, "Reshape", "mask,flat", "line");
    Onnx__NodeProto *cast = made_node(m, "Cast", "line", "ones");
    made_int(m, cast, "to", 7);
    made_int(m, made_node(m, "ReduceSum", "ones", "number"), "keepdims", 1);
    made_int(m, made_node(m, "Concat", "number,d", "selected"), "axis", 0);
    made_node(m, "Expand", expand, "many");
    made_node(m, "Reshape", "many,flat", "elements");
    Onnx__NodeProto *n = made_node(m, "ScatterND", "x,at,elements", "y");
    made_output(m, "y");
    return n;
}

/* The positions that the mask selects, and a shape with their number. */
static void find_positions(Made *m) {
    made_i64(m, "zero", 1, (int64_t[]){0})->n_dims = 0;
    made_node(m, "NonZero", "mask", "places");
    transpose(m, "places", "found");
    made_int(m, made_node(m, "Gather", "found,zero", "positions"), "axis", 1);
    made_node(m, "Shape", "positions", "number");
    made_int(m, made_node(m, "Concat", "number,d", "selected"), "axis", 0);
}

/* x[mask.nonzero()[:, 0]] = rows. */
static Onnx__NodeProto *put_at_positions(Made *m, const char *rows) {
    char expand[64];
    snprintf(expand, sizeof expand, "%s,selected", rows);
    find_positions(m);
    made_node(m, "Expand", expand, "many");
    made_node(m, "Unsqueeze", "positions,last", "at");
    Onnx__NodeProto *n = made_node(m, "ScatterND", "x,at,many", "y");
    made_output(m, "y");
    return n;
}

/* Rows `first`, .. of x where the mask selects, the others as they are. */
static void check_rows(const Ran *r, int mask,
                       double (*want)(int i, int row, int k)) {
    for (int i = 0, row = 0; i < N; row += has(mask, i), i++)
        for (int k = 0; k < D; k++)
            CHECK_MSG(r->y[i * D + k] ==
                          (has(mask, i) ? want(i, row, k) : x_of(i, k)),
                      "mask %d, row %d: %g", mask, i, r->y[i * D + k]);
}

static int selected(int mask) {
    int n = 0;
    for (int i = 0; i < N; i++) n += has(mask, i);
    return n;
}

static double own_row(int i, int row, int k) {
    (void)i;
    return row_of(row, k);
}

static double one_row(int i, int row, int k) {
    (void)i, (void)row;
    return row_of(0, k);
}

static double doubled(int i, int row, int k) {
    (void)row;
    return 2 * x_of(i, k);
}

static void check_numbers(Onnx__NodeProto *(*form)(Made *, const char *)) {
    static const char *const dims[] = {"0,2", "1,2", "2,2", "3,2",
                                       "4,2", "5,2", "2",   "1"};
    for (int rows = 0; rows < 8; rows++)
        for (int mask = 0; mask < MASKS; mask++) {
            Made m;
            bool any = rows == 1 || rows > 5;
            start(&m);
            made_input(&m, "rows", DT_F32, dims[rows]);
            form(&m, "rows");
            Ran r = run(&m, mask);
            CHECK_EQ_INT(r.excess, any ? 0 : selected(mask) - rows);
            if (rows == 7)
                for (int i = 0; i < N * D; i++)
                    CHECK(r.y[i] == (has(mask, i / D) ? row_of(0, 0)
                                                      : x_of(i / D, i % D)));
            else if (r.excess == 0)
                check_rows(&r, mask, any ? one_row : own_row);
            made_end(&m);
        }
}

TEST_CASE(onnx_placed, rows_by_their_number) {
    check_numbers(put);
    check_numbers(put_at_positions);
}

static double sum_of_three(int i, int row, int k) {
    (void)i, (void)row;
    return row_of(0, k) + row_of(1, k) + row_of(2, k);
}

/* Expand of rows with an axis more than its shape has. */
TEST_CASE(onnx_placed, rows_behind_another_axis) {
    for (int mask = 0; mask < MASKS; mask++) {
        Made m;
        start(&m);
        made_input(&m, "rows", DT_F32, "3,1,2");
        find_positions(&m);
        made_i64(&m, "first", 1, (int64_t[]){0});
        made_node(&m, "Expand", "rows,selected", "planes");
        made_int(&m, made_node(&m, "ReduceSum", "planes,first", "many"),
                 "keepdims", 0);
        made_node(&m, "Unsqueeze", "positions,last", "at");
        made_node(&m, "ScatterND", "x,at,many", "y");
        made_output(&m, "y");
        Ran r = run(&m, mask);
        CHECK_EQ_INT(r.excess, 0);
        check_rows(&r, mask, sum_of_three);
        made_end(&m);
    }
}

TEST_CASE(onnx_placed, numbers_in_a_shape_with_rows) {
    static const char *const at[] = {"selected,zero", "selected,last"};
    for (int i = 0; i < 2; i++)
        for (int mask = 0; mask < MASKS; mask++) {
            Made m;
            start(&m);
            find_positions(&m);
            made_node(&m, "Gather", at[i], "one");
            made_int(&m, made_node(&m, "Cast", "one", "factor"), "to", 1);
            made_node(&m, "Mul", "x,factor", "y");
            made_output(&m, "y");
            Ran r = run(&m, mask);
            for (int k = 0; k < N * D; k++)
                CHECK(r.y[k] == x_of(k / D, k % D) * (i ? D : selected(mask)));
            made_end(&m);
        }
}

TEST_CASE(onnx_placed, rows_that_the_mask_selected) {
    for (int mask = 0; mask < MASKS; mask++) {
        Made m;
        start(&m);
        made_node(&m, "NonZero", "mask", "places");
        transpose(&m, "places", "rows_at");
        made_node(&m, "GatherND", "x,rows_at", "own");
        made_node(&m, "Add", "own,own", "twice");
        put(&m, "twice");
        Ran r = run(&m, mask);
        CHECK_EQ_INT(r.excess, 0);
        check_rows(&r, mask, doubled);
        made_end(&m);
    }
}

/* Row `row` that the mask does not select. */
static int unselected(int mask, int row) {
    int i = 0;
    while (i < N && (has(mask, i) || row-- > 0)) i++;
    return i;
}

TEST_CASE(onnx_placed, rows_that_another_mask_selected) {
    for (int mask = 0; mask < MASKS; mask++) {
        Made m;
        start(&m);
        made_input(&m, "other", DT_BOOL, "5");
        made_node(&m, "NonZero", "other", "places");
        transpose(&m, "places", "rows_at");
        made_node(&m, "GatherND", "x,rows_at", "own");
        put(&m, "own");
        Ran r = run(&m, mask);
        CHECK_EQ_INT(r.excess, 2 * selected(mask) - N);
        for (int i = 0, row = 0; i < N; i++) {
            if (!has(mask, i)) continue;
            int from = unselected(mask, row++);
            for (int k = 0; k < D && from < N; k++)
                CHECK(r.y[i * D + k] == x_of(from, k));
        }
        made_end(&m);
    }
}

/* masked_scatter() of torch, or another cut of the elements; "n": of as many
   as the mask selects. */
static void put_cut(Made *m, const char *cut) {
    made_input(m, "rows", DT_F32, "3,2");
    made_i64(m, "zero", 1, (int64_t[]){0});
    made_i64(m, "four", 1, (int64_t[]){4});
    elements_of_mask(m);
    made_node(m, "Reshape", "rows,flat", "elements");
    made_node(m, "Shape", "at", "shape_at");
    made_int(m, made_node(m, "Gather", "shape_at,zero", "n"), "axis", 0);
    made_node(m, "Slice", cut, "as_many");
    made_node(m, "ScatterND", "x,at,as_many", "y");
    made_output(m, "y");
}

TEST_CASE(onnx_placed, as_many_elements_as_the_mask_selects) {
    for (int mask = 0; mask < MASKS; mask++) {
        Made m;
        start(&m);
        put_cut(&m, "elements,zero,n,zero");
        Ran r = run(&m, mask);
        int more = D * (selected(mask) - 3);
        CHECK_EQ_INT(r.excess, more > 0 ? more : 0);
        if (more <= 0) check_rows(&r, mask, own_row);
        made_end(&m);
    }
}

TEST_CASE(onnx_placed, a_cut_of_known_length) {
    for (int mask = 0; mask < MASKS; mask++) {
        Made m;
        start(&m);
        put_cut(&m, "elements,zero,four,zero");
        Ran r = run(&m, mask);
        CHECK_EQ_INT(r.excess, D * selected(mask) - 4);
        if (r.excess == 0) check_rows(&r, mask, own_row);
        made_end(&m);
    }
}

TEST_CASE(onnx_placed, cuts_of_another_length_are_refused) {
    static const char *const cuts[] = {"elements,last,n,zero",
                                       "elements,zero,n_other,zero",
                                       "elements,zero,n,zero,d"};
    for (int i = 0; i < 3; i++) {
        Made m;
        start(&m);
        made_input(&m, "other", DT_BOOL, "5");
        made_node(&m, "NonZero", "other", "places");
        made_node(&m, "Shape", "places", "shape_of_places");
        made_node(&m, "Gather", "shape_of_places,last", "n_other");
        put_cut(&m, cuts[i]);
        m.opt.objectives.data[0].loss.kind = LOSS_NONE;
        CHECK(made_import(&m) == NULL);
        CHECK_HAS(made_message(&m), "are cut to another number");
        made_end(&m);
    }
}

/* out.index_add(0, where(mask)[0], rows) and its like, to one row further. */
TEST_CASE(onnx_placed, reductions_at_indices_of_a_mask) {
    static const struct {
        const char *how;
        double want[2]; /* from 3 and 2, and from 3 where nothing is selected */
    } rows[] = {{"none", {2, 3}},
                {"add", {5, 3}},
                {"mul", {6, 3}},
                {"max", {3, 3}},
                {"min", {2, 3}}};
    for (int i = 0; i < 5; i++)
        for (int mask = 0; mask < MASKS; mask++) {
            Made m;
            start(&m);
            made_i64(&m, "five", 1, (int64_t[]){N});
            made_f32(&m, "three", "1", 3);
            made_f32(&m, "two", "1", 2);
            made_f32(&m, "none", "1", 0);
            made_i64(&m, "size", 1, (int64_t[]){2 * N});
            made_node(&m, "Expand", "three,size", "base");
            made_node(&m, "NonZero", "mask", "places");
            made_node(&m, "Mul", "places,one", "other_places");
            made_i64(&m, "one", 1, (int64_t[]){1});
            made_node(&m, "Add", "other_places,five", "moved");
            transpose(&m, "moved", "at");
            made_node(&m, "Reshape", "places,flat", "line");
            made_int(&m, made_node(&m, "Cast", "line", "floats"), "to", 1);
            made_node(&m, "Mul", "floats,none", "zeros");
            made_node(&m, "Add", "zeros,two", "twos");
            Onnx__NodeProto *n =
                made_node(&m, "ScatterND", "base,at,twos", "y");
            made_str(&m, n, "reduction", rows[i].how);
            made_output(&m, "y");
            Ran r = run(&m, mask);
            for (int k = 0; k < 2 * N; k++)
                CHECK_MSG(r.y[k] == rows[i].want[k < N || !has(mask, k - N)],
                          "%s, mask %d, row %d: %g", rows[i].how, mask, k,
                          r.y[k]);
            made_end(&m);
        }
}

TEST_CASE(onnx_placed, rows_elsewhere_are_refused) {
    Made m;
    start(&m);
    made_i64(&m, "at", 1, (int64_t[]){1});
    made_node(&m, "NonZero", "mask", "places");
    transpose(&m, "places", "rows_at");
    made_node(&m, "GatherND", "x,rows_at", "own");
    made_node(&m, "Unsqueeze", "at,last", "indices");
    made_node(&m, "ScatterND", "x,indices,own", "y");
    made_output(&m, "y");
    m.opt.objectives.data[0].loss.kind = LOSS_NONE;
    CHECK(made_import(&m) == NULL);
    CHECK_HAS(made_message(&m), "puts them where no mask selects");
    made_end(&m);
}
