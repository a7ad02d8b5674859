/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_found_test.c: NonMaxSuppression, Unique and TfIdfVectorizer on data, and
   outputs with as many rows as data says. The interpreter evaluates what they
   become; the oracles are loops over boxes and elements in C. */
#include <math.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/support/onnx_util.h"

enum { BATCHES = 2, CLASSES = 3, BOXES = 12, CASES = 60, ELEMENTS = 20 };

static uint64_t state;

static double below(int n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)((state >> 33) % (uint64_t)n);
}

/* The model's outputs, where its inputs are the given numbers in order. */
typedef struct Ran {
    Arena *a;
    const Graph *g;
    Evaluator *e;
} Ran;

static void run(Made *m, const double *const *in, Ran *r) {
    Diag d = {0};
    m->opt.objectives.data[0].loss.kind = LOSS_NONE;
    Module *mod = made_import(m);
    REQUIRE(CHECK_MSG(mod != NULL, "%s", made_message(m)));
    r->a = arena_new();
    r->g = module_graph(mod, "forward");
    r->e = eval_new(r->g, r->a, EVAL_EXACT);
    for (int i = 0; i < r->g->inputs.len; i++) {
        ValueId v = r->g->inputs.data[i];
        EvalTensor *t = eval_tensor_new(r->a, value_get(r->g, v)->type);
        int64_t n = type_count(value_type(r->g, v));
        for (int64_t k = 0; k < n; k++)
            if (t->f)
                t->f[k] = in[i][k];
            else
                t->i[k] = (int64_t)in[i][k];
        eval_bind(r->e, v, t);
    }
    REQUIRE(CHECK_MSG(eval_run(r->e, &d) == OK, "%s", d.text.data));
}

static const EvalTensor *output(const Ran *r, const char *name) {
    for (int i = 0; i < r->g->outputs.len; i++)
        if (!strcmp(r->g->outputs.data[i].name, name))
            return eval_get(r->e, r->g->outputs.data[i].value);
    REQUIRE(CHECK_MSG(false, "no output %s", name));
    return NULL;
}

/* ---- boxes --------------------------------------------------------------- */

typedef struct Scene {
    double box[BATCHES * BOXES * 4], score[BATCHES * CLASSES * BOXES];
    double most, overlap, least;
} Scene;

/* Coordinates on a coarse grid meet, and scores are equal, often. */
static void make_scene(Scene *s, int i) {
    for (int k = 0; k < BATCHES * BOXES * 4; k++)
        s->box[k] = i % 3 == 2 ? s->box[k % 4] : below(9) / 8;
    for (int k = 0; k < BATCHES * CLASSES * BOXES; k++)
        s->score[k] = below(6) / 4;
    s->most = below(4) == 3 ? BOXES : below(5);
    s->overlap = below(5) / 4;
    s->least = below(5) == 4 ? 2 : below(4) / 4;
}

/* Lower and upper end along x and y. */
static void corners(const double *b, bool centred, double lo[2], double hi[2]) {
    for (int k = 0; k < 2; k++) {
        lo[k] = centred ? b[k] - b[k + 2] / 2 : fmin(b[k], b[k + 2]);
        hi[k] = centred ? b[k] + b[k + 2] / 2 : fmax(b[k], b[k + 2]);
    }
}

static bool overlaps(const double *p, const double *q, bool centred,
                     double most) {
    double lo[2][2], hi[2][2], common = 1, area[2] = {1, 1};
    corners(p, centred, lo[0], hi[0]);
    corners(q, centred, lo[1], hi[1]);
    for (int k = 0; k < 2; k++) {
        double length = fmin(hi[0][k], hi[1][k]) - fmax(lo[0][k], lo[1][k]);
        if (length <= 0) return false;
        common *= length;
        for (int i = 0; i < 2; i++) area[i] *= hi[i][k] - lo[i][k];
    }
    if (area[0] <= 0 || area[1] <= 0) return false;
    return common / (area[0] + area[1] - common) > most;
}

/* The rows that are chosen; returns their number. */
static int choose(const Scene *s, bool centred, int64_t (*row)[3]) {
    int n = 0;
    for (int p = 0; p < BATCHES * CLASSES; p++) {
        const double *box = s->box + (size_t)(p / CLASSES) * BOXES * 4;
        const double *score = s->score + (size_t)p * BOXES;
        bool gone[BOXES] = {0};
        for (int k = 0; k < BOXES && k < (int)s->most; k++) {
            int best = -1;
            for (int i = 0; i < BOXES; i++)
                if (!gone[i] && score[i] > s->least &&
                    (best < 0 || score[i] > score[best]))
                    best = i;
            if (best < 0) break;
            for (int i = 0; i < BOXES; i++)
                gone[i] |= i == best ||
                           overlaps(box + (size_t)i * 4, box + (size_t)best * 4,
                                    centred, s->overlap);
            int64_t found[] = {p / CLASSES, p % CLASSES, best};
            memcpy(row[n++], found, sizeof found);
        }
    }
    return n;
}

static void check_boxes(const Scene *s, bool centred, const Ran *r) {
    static int64_t want[BATCHES * CLASSES * BOXES][3];
    int n = choose(s, centred, want);
    const EvalTensor *y = output(r, "y");
    CHECK_EQ_INT(output(r, "y.rows")->i[0], n);
    for (int64_t i = 0; i < type_get(y->type)->dim[0] * 3; i++)
        CHECK_EQ_INT(y->i[i], i < 3 * n ? want[i / 3][i % 3] : 0);
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += s->box[(want[i][0] * BOXES + want[i][2]) * 4 + 1];
    CHECK(fabs(output(r, "sum")->f[0] - sum) < 1e-9);
}

/* Greedy choice, and the sum of a coordinate of the boxes that it chose. */
static void made_choice(Made *m, bool centred) {
    made_start(m, 17);
    made_input(m, "boxes", DT_F32, "2,12,4");
    made_input(m, "scores", DT_F32, "2,3,12");
    made_input(m, "most", DT_I64, "1");
    made_input(m, "overlap", DT_F32, "1");
    made_input(m, "least", DT_F32, "1");
    Onnx__NodeProto *n = made_node(m, "NonMaxSuppression",
                                   "boxes,scores,most,overlap,least", "y");
    if (centred) made_int(m, n, "center_point_box", 1);
    made_i64(m, "parts", 2, (int64_t[]){0, 2});
    n = made_node(m, "Gather", "y,parts", "at");
    made_int(m, n, "axis", 1);
    made_node(m, "GatherND", "boxes,at", "chosen");
    made_i64(m, "second", 1, (int64_t[]){1});
    n = made_node(m, "Gather", "chosen,second", "ordinates");
    made_int(m, n, "axis", 1);
    n = made_node(m, "ReduceSum", "ordinates", "sum");
    made_int(m, n, "keepdims", 0);
    made_output(m, "y");
    made_output(m, "sum");
}

TEST_CASE(onnx_found, boxes_that_a_greedy_choice_takes) {
    Scene s = {0};
    for (int i = 0; i < CASES; i++) {
        Made m;
        Ran r;
        make_scene(&s, i);
        made_choice(&m, i % 2);
        run(&m,
            (const double *const[]){s.box, s.score, &s.most, &s.overlap,
                                    &s.least},
            &r);
        check_boxes(&s, i % 2, &r);
        arena_free(r.a);
        made_end(&m);
    }
}

TEST_CASE(onnx_found, no_box_is_wanted) {
    Made m;
    made_start(&m, 17);
    made_input(&m, "boxes", DT_F32, "1,4,4");
    made_input(&m, "scores", DT_F32, "1,1,4");
    made_node(&m, "NonMaxSuppression", "boxes,scores", "y");
    made_output(&m, "y");
    m.opt.objectives.data[0].loss.kind = LOSS_NONE;
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    const Graph *g = module_graph(mod, "forward");
    CHECK_EQ_INT(value_type(g, g->outputs.data[0].value)->dim[0], 0);
    made_end(&m);
}

/* As many as a detector has, in pairs of equal boxes; scores in any order. */
TEST_CASE(onnx_found, thousands_of_boxes) {
    enum { MANY = 5000, STEP = 1237 }; /* without a common factor */
    static double box[MANY][4], score[MANY];
    double most = MANY;
    Made m;
    Ran r;
    for (int i = 0; i < MANY; i++) {
        memcpy(box[i], (double[]){i / 2, 0, i / 2 + 1, 1}, sizeof box[i]);
        score[i] = (i * STEP % MANY + 1) / (double)MANY;
    }
    made_start(&m, 17);
    made_input(&m, "boxes", DT_F32, "1,5000,4");
    made_input(&m, "scores", DT_F32, "1,1,5000");
    made_input(&m, "most", DT_I64, "1");
    made_node(&m, "NonMaxSuppression", "boxes,scores,most", "y");
    made_output(&m, "y");
    run(&m, (const double *const[]){box[0], score, &most}, &r);
    const int64_t *y = output(&r, "y")->i;
    CHECK_EQ_INT(output(&r, "y.rows")->i[0], MANY / 2);
    for (int k = 0; k < MANY / 2; k++) {
        int64_t i = y[3 * k + 2];
        CHECK(score[i] > score[i ^ 1]);
        CHECK(k == 0 || score[i] < score[y[3 * k - 1]]);
    }
    arena_free(r.a);
    made_end(&m);
}

/* ---- grams of tokens ----------------------------------------------------- */

/* Tokens 1 1 3 1: 1 three times, 3 once, "1 1" once, "3 3" never. */
TEST_CASE(onnx_found, grams_are_counted_and_weighted) {
    static const struct {
        const char *mode;
        double want[4];
    } rows[] = {{"TF", {1, 3, 0, 1}},
                {"IDF", {2, 0.5, 0, 3}},
                {"TFIDF", {2, 1.5, 0, 3}}};
    const double x[] = {1, 1, 3, 1};
    float weights[] = {0.5, 2, 3, 5};
    for (int i = 0; i < 3; i++) {
        Made m;
        Ran r;
        made_start(&m, 17);
        made_input(&m, "x", DT_I64, "4");
        Onnx__NodeProto *n = made_node(&m, "TfIdfVectorizer", "x", "y");
        made_str(&m, n, "mode", rows[i].mode);
        made_int(&m, n, "max_gram_length", 2);
        made_int(&m, n, "min_gram_length", 1);
        made_int(&m, n, "max_skip_count", 0);
        made_ints(&m, n, "ngram_counts", 2, (int64_t[]){0, 2});
        made_ints(&m, n, "ngram_indexes", 4, (int64_t[]){1, 0, 3, 2});
        made_ints(&m, n, "pool_int64s", 6, (int64_t[]){1, 3, 1, 1, 3, 3});
        Onnx__AttributeProto *w = made_attr(
            &m, n, "weights", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOATS);
        w->floats = weights;
        w->n_floats = 4;
        made_output(&m, "y");
        run(&m, (const double *const[]){x}, &r);
        for (int k = 0; k < 4; k++)
            CHECK_MSG(output(&r, "y")->f[k] == rows[i].want[k], "%s %d: %g",
                      rows[i].mode, k, output(&r, "y")->f[k]);
        arena_free(r.a);
        made_end(&m);
    }
}

TEST_CASE(onnx_found, grams_that_do_not_fit_are_refused) {
    static const struct {
        int64_t starts[2];
        int columns, skips;
        const char *why;
    } rows[] = {{{0, 3}, 3, 0, "from token 3 to 6"},
                {{0, 7}, 3, 0, "from token 0 to 7"},
                {{2, 0}, 3, 0, "from token 2 to 0"},
                {{0, 2}, 2, 0, "more grams than ngram_indexes has"},
                {{0, 2}, 3, -1, "max_skip_count is -1, wants 0 to 1000"},
                {{0, 2}, 3, 1001, "max_skip_count is 1001, wants 0 to 1000"}};
    for (int i = 0; i < 6; i++) {
        Made m;
        made_start(&m, 17);
        made_input(&m, "x", DT_I64, "4");
        Onnx__NodeProto *n = made_node(&m, "TfIdfVectorizer", "x", "y");
        made_int(&m, n, "max_gram_length", 2);
        made_int(&m, n, "max_skip_count", rows[i].skips);
        made_ints(&m, n, "ngram_counts", 2, rows[i].starts);
        made_ints(&m, n, "ngram_indexes", rows[i].columns,
                  (int64_t[]){1, 0, 3});
        made_ints(&m, n, "pool_int64s", 6, (int64_t[]){1, 3, 1, 1, 3, 3});
        made_output(&m, "y");
        m.opt.objectives.data[0].loss.kind = LOSS_NONE;
        CHECK(made_import(&m) == NULL);
        CHECK_HAS(made_message(&m), rows[i].why);
        made_end(&m);
    }
}

/* ---- different elements -------------------------------------------------- */

static void check_unique(const double *x, bool sorted, const Ran *r) {
    const double *y = output(r, "y")->f;
    const int64_t *first = output(r, "first")->i, *kind = output(r, "kind")->i,
                  *count = output(r, "count")->i;
    int64_t n = output(r, "y.rows")->i[0], all = 0;
    CHECK_EQ_INT(output(r, "first.rows")->i[0], n);
    CHECK_EQ_INT(output(r, "count.rows")->i[0], n);
    for (int64_t k = 0; k < n; k++) {
        CHECK(y[k] == x[first[k]] && kind[first[k]] == k);
        CHECK(k == 0 || (sorted ? y[k] > y[k - 1] : first[k] > first[k - 1]));
        for (int64_t i = 0; i < first[k]; i++) CHECK(x[i] != y[k]);
        all += count[k];
    }
    CHECK_EQ_INT(all, ELEMENTS);
    for (int i = 0; i < ELEMENTS; i++) CHECK(y[kind[i]] == x[i]);
    for (int64_t k = n; k < ELEMENTS; k++) CHECK(y[k] == 0 && count[k] == 0);
}

TEST_CASE(onnx_found, different_elements_in_both_orders) {
    double x[ELEMENTS];
    for (int i = 0; i < CASES; i++) {
        Made m;
        Ran r;
        for (int k = 0; k < ELEMENTS; k++) x[k] = below(i % 9 + 1) - 3;
        made_start(&m, 17);
        made_input(&m, "x", DT_F32, "4,5");
        Onnx__NodeProto *n = made_node(&m, "Unique", "x", "y,first,kind,count");
        made_int(&m, n, "sorted", i % 2);
        made_output(&m, "y");
        made_output(&m, "first");
        made_output(&m, "kind");
        made_output(&m, "count");
        run(&m, (const double *const[]){x}, &r);
        check_unique(x, i % 2, &r);
        arena_free(r.a);
        made_end(&m);
    }
}
