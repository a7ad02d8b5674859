/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_text.c: TfIdfVectorizer of integers. Tokens do not train; their
   counts are data for the rest of the model. */
#include <inttypes.h>
#include <string.h>

#include "frontend/onnx/onnx.h"

enum { MOST_SKIPS = 1000 }; /* each is a term of the counts */

/* The grams of the node, single tokens first. */
typedef struct Grams {
    const int64_t *token, *start, *column;
    int ntoken, nlength, ngram;
    const float *weight; /* one for each gram; NULL: none */
    int64_t width;       /* columns of the result */
} Grams;

static Status const_ints(Ox *ox, const int64_t *v, int rank, const int64_t *dim,
                         ValueId *out) {
    int64_t n = 1;
    for (int i = 0; i < rank; i++) n *= dim[i];
    TRY(ox_const_i64(ox, v, 1, n, out));
    return ox_reshape(ox, *out, rank, dim, out);
}

static Status read_grams(Ox *ox, Grams *g) {
    enum { MOST = 1 << 24 };
    const Onnx__AttributeProto *w = ox_attr(ox, "weights");
    *g = (Grams){.weight = w ? w->floats : NULL};
    g->ntoken = ox_ints(ox, "pool_int64s", &g->token);
    g->nlength = ox_ints(ox, "ngram_counts", &g->start);
    g->ngram = ox_ints(ox, "ngram_indexes", &g->column);
    if (g->ntoken < 0)
        return ox_fail(ox, "strings are not supported: give integers and "
                           "pool_int64s");
    if (g->nlength < 1 || g->ngram < 1)
        return ox_fail(ox, "ngram_counts and ngram_indexes are needed");
    if (w && (int)w->n_floats != g->ngram)
        return ox_fail(ox, "%zu weights of %d grams", w->n_floats, g->ngram);
    for (int i = 0; i < g->ngram; i++) {
        if (g->column[i] < 0 || g->column[i] >= MOST)
            return ox_fail(ox, "a gram of index %" PRId64 ", wants 0 to %d",
                           g->column[i], MOST - 1);
        if (g->column[i] >= g->width) g->width = g->column[i] + 1;
    }
    return OK;
}

/* How many grams of n tokens there are. */
static Status gram_count(Ox *ox, const Grams *g, int n, int64_t *count) {
    int64_t from = g->start[n - 1];
    int64_t to = n < g->nlength ? g->start[n] : g->ntoken;
    if (from < 0 || to < from || to > g->ntoken || (to - from) % n)
        return ox_fail(ox,
                       "ngram_counts: grams of %d from token %" PRId64
                       " to %" PRId64 " of %d",
                       n, from, to, g->ntoken);
    *count = (to - from) / n;
    return OK;
}

/* y[b, w]: counts of the grams of n tokens in their columns; `first` is the
   number of the first one. */
static Status put_counts(Ox *ox, const Grams *g, ValueId x, int n,
                         int64_t first, int64_t count, ValueId *y) {
    const int64_t shape[] = {count, n};
    const int64_t dim[] = {ox_type(ox, x).dim[0], g->width};
    int64_t skips = n > 1 ? ox_int(ox, "max_skip_count", 0) : 0;
    const char *mode = ox_str(ox, "mode", "TF");
    Attr attr[] = {attr_named_i("skips", skips)};
    Attr put[] = {attr_i(AK_axis, 1), attr_v(AK_shape, dim, 2)};
    ValueId in[] = {x, NO_VALUE}, found, column;
    TRY(const_ints(ox, g->token + g->start[n - 1], 2, shape, &in[1]));
    TRY(ox_call(ox, "gram_counts", in, 2, attr, 1, 1, &found));
    if (!strcmp(mode, "IDF")) {
        TRY(ox2k(ox, OP_GREATER, found, 0, &found));
        TRY(ox_cast(ox, found, DT_F32, false, &found));
    }
    if (strcmp(mode, "TF") && g->weight) {
        Tensor *w = NEW(ox->a, Tensor);
        w->type = type_make(DT_F32, 1, &count);
        w->data = arena_dup(ox->a, g->weight + first, (size_t)count * 4);
        TRY(ox_const(ox, w, &column));
        TRY(ox2(ox, OP_MUL, found, column, &found));
    }
    TRY(ox_const_i64(ox, g->column + first, 1, count, &column));
    return ox_op(ox, OP_SCATTER_ADD, (ValueId[]){found, column}, 2, put, 2, y);
}

static Status read_tokens(Ox *ox, ValueId *x, bool *line) {
    Type t = ox_type(ox, ox_in(ox, 0));
    *line = t.rank == 1;
    int64_t dim[] = {*line ? 1 : t.dim[0], t.dim[t.rank > 1]};
    if (!dtype_is_int(t.dtype) || t.rank < 1 || t.rank > 2)
        return ox_fail(ox, "its tokens are integers [n] or [batch,n]");
    TRY(ox_cast(ox, ox_in(ox, 0), DT_I64, false, x));
    return ox_reshape(ox, *x, 2, dim, x);
}

Status onnx_tfidf(Ox *ox) {
    Grams g;
    ValueId x, y = NO_VALUE, more;
    bool line;
    int64_t first = 0, count = 0;
    int64_t low = ox_int(ox, "min_gram_length", 1);
    int64_t high = ox_int(ox, "max_gram_length", 1);
    const char *mode = ox_str(ox, "mode", "TF");
    if (strcmp(mode, "TF") && strcmp(mode, "IDF") && strcmp(mode, "TFIDF"))
        return ox_fail(ox, "mode '%s' is unknown", mode);
    int64_t skips = ox_int(ox, "max_skip_count", 0);
    if (skips < 0 || skips > MOST_SKIPS)
        return ox_fail(ox, "max_skip_count is %" PRId64 ", wants 0 to %d",
                       skips, MOST_SKIPS);
    TRY(read_tokens(ox, &x, &line));
    TRY(read_grams(ox, &g));
    for (int n = 1; n <= g.nlength; n++, first += count) {
        TRY(gram_count(ox, &g, n, &count));
        if (first + count > g.ngram)
            return ox_fail(ox, "more grams than ngram_indexes has");
        if (n < low || n > high || count == 0) continue;
        TRY(put_counts(ox, &g, x, n, first, count, &more));
        if (is_value(y)) TRY(ox2(ox, OP_ADD, y, more, &more));
        y = more;
    }
    if (!is_value(y)) return ox_fail(ox, "has no grams to count");
    if (line) TRY(ox_reshape(ox, y, 1, &g.width, &y));
    return ox_out(ox, 0, y);
}
