/* SPDX-License-Identifier: Apache-2.0 */
/* eight_history.c: see eight.h.
   Before:  %c = cast clip(%x * %i, ..) : f8e4m3
   After:   state %h: f32[16] of the weight        %i = 448 / reduce_max(%h)
            %c = cast clip(%x * %i, -448, 448) : f8e4m3
            %r = reduce_max(abs %x)                of rows, beside %c
            %h = concat(reduce_max(%r), %h[0:15]) !update, if the step counts
   Numbers larger than in the last steps are clipped, and the next scale
   knows them. Nothing is known before the first step: then activations have
   scale 1, and gradients one for numbers up to 1/16, since e5m2 reaches from
   there to 2^-36. */
#include "passes/common/eight.h"

static double first_size(DType d) {
    return d == DT_F8E5M2 ? 0x1p-4 : dtype_info[d].most;
}

/* Tensors of one weight are numbered in the order of their products, which is
   the same in training and in evaluation. */
static ValueId history_var(const EightHistory *h, int weight, DType d) {
    static const int64_t size = EIGHT_HISTORY;
    Module *m = h->g->module;
    const char *of = d == DT_F8E5M2 ? "f8.amax.grad" : "f8.amax";
    Str base = family_name(FAMILY_OPT, m->vars.data[weight].name);
    int n = 1;
    for (int i = 0; i < h->tensors.len; i++)
        n += h->tensors.data[i].weight == weight &&
             h->tensors.data[i].dtype == d;
    Str name =
        n == 1 ? internf("%s/%s", base, of) : internf("%s/%s.%d", base, of, n);
    return graph_var(h->g, module_var(m, VAR_STATE, name,
                                      type_make(DT_F32, 1, &size), NULL, 0));
}

ValueId eight_largest(Builder *b, ValueId v, int from) {
    int64_t axes[MAX_RANK];
    int n = 0;
    for (int i = from; i < value_type(b->g, v)->rank; i++) axes[n++] = i;
    return n ? b_reduce(b, OP_REDUCE_MAX, v, axes, n, true, DT_F32) : v;
}

/* The first of the axes that a row has. */
static int row_axis(const Type *t) {
    enum { ROW = 128 };
    int64_t columns = 1;
    int from = t->rank;
    while (from > 1 && columns < ROW) columns *= t->dim[--from];
    return from;
}

ValueId eight_rows(Builder *b, ValueId v) {
    return eight_largest(b, b1(b, OP_ABS, v, DT_F32),
                         row_axis(value_type(b->g, v)));
}

ValueId eight_history(EightHistory *h, Builder *b, ValueId v, int weight,
                      DType d) {
    EightTensor t = {weight, d, history_var(h, weight, d), NO_VALUE};
    ValueId zero = b_scalar(b, DT_F32, 0);
    t.rows = eight_rows(b, v);
    vec_push(h->a, &h->tensors, t);
    ValueId size = b_reshape(b, eight_largest(b, t.var, 0), 0, NULL);
    ValueId known = b2(b, OP_GREATER, size, zero, DT_DEFAULT);
    return b_where(b, known, size, b_scalar(b, DT_F32, first_size(d)));
}

void eight_history_skip(EightHistory *h, int weight, DType d) {
    vec_push(h->a, &h->tensors, (EightTensor){weight, d, NO_VALUE, NO_VALUE});
}

/* The largest numbers of all ranks in the place of this one's, which are
 * f32[1].
 */
static void agree_on(Builder *b, ValueId *now, int n) {
    Attr axis = attr_i(AK_axis, 0);
    if (n == 0) return;
    ValueId all =
        n == 1 ? now[0] : build(b, OP_CONCAT, now, n, &axis, 1, DT_F32, NULL);
    all = b1(b, OP_RANK_MAX, all, DT_F32);
    for (int64_t i = 0; i < n; i++) {
        int64_t one = 1;
        Attr part[] = {attr_v(AK_starts, &i, 1), attr_v(AK_steps, &one, 1),
                       attr_v(AK_sizes, &one, 1)};
        now[i] =
            n == 1 ? all : build(b, OP_SLICE, &all, 1, part, 3, DT_F32, NULL);
    }
}

void eight_history_write(EightHistory *h) {
    Graph *g = h->g;
    bool train = g->program == PROGRAM_TRAIN;
    Builder b = {.g = g, .flags = NODE_UPDATE};
    int64_t start = 0, each = 1, kept = EIGHT_HISTORY - 1, one = 1;
    Attr part[] = {attr_v(AK_starts, &start, 1), attr_v(AK_steps, &each, 1),
                   attr_v(AK_sizes, &kept, 1)};
    Attr axis = attr_i(AK_axis, 0);
    if (!train && g->program != PROGRAM_MICRO) return;
    ValueId applied = graph_output(g, own_output(OUT_APPLIED, g->objective));
    ValueId *now = NEW_ARRAY(h->a, ValueId, h->tensors.len + 1);
    int n = 0;
    for (int i = 0; i < h->tensors.len; i++) {
        EightTensor t = h->tensors.data[i];
        if (!is_value(t.var)) continue;
        now[n] = b_reshape(&b, eight_largest(&b, t.rows, 0), 1, &one);
        n++;
    }
    if (!train) agree_on(&b, now, n); /* ranks run micro */
    n = 0;
    for (int i = 0; i < h->tensors.len; i++) {
        EightTensor t = h->tensors.data[i];
        if (!is_value(t.var)) continue;
        ValueId in[2] = {now[n++]};
        ValueId ok =
            b1(&b, OP_ISFINITE, b_reshape(&b, in[0], 0, NULL), DT_DEFAULT);
        if (train) ok = b2(&b, OP_AND, ok, applied, DT_DEFAULT);
        in[1] = build(&b, OP_SLICE, &t.var, 1, part, 3, DT_DEFAULT, NULL);
        ValueId next = build(&b, OP_CONCAT, in, 2, &axis, 1, DT_DEFAULT, NULL);
        next = b_where(&b, ok, next, t.var);
        value_get(g, next)->why = "a scale";
        graph_write(g, t.var, next);
    }
}
