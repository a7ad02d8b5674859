/* SPDX-License-Identifier: Apache-2.0 */
/* compact.c: see compact.h. */
#include "passes/common/compact.h"

#include "passes/rewrite.h"

#include <float.h>
#include <math.h>

/* Smaller tensors stay fp32: norms and biases are few bytes. */
#define LEAST_ELEMENTS 4096
#define BLOCK          128 /* elements that share a scale */
/* Streams of random numbers that no model uses, one for each variable that an
   update reads. A weight and its state share theirs: each is right on average
   by itself. */
#define FIRST_SALT ((int64_t)1 << 30)
/* Places in a longer line leave too few bits for the line's random number. */
#define LONGEST_LINE 65536

bool compact_draws(const Options *o) {
    return o->state_dtype != DT_F32 || o->masters == MASTERS_NONE;
}

static bool is_large(const Type *t) {
    return t->dtype != DT_F64 && type_count(t) >= LEAST_ELEMENTS;
}

Status compact_params(Module *m, const Options *o, Diag *d, Arena *scratch) {
    bool *narrow = NEW_ARRAY(scratch, bool, m->vars.len + 1);
    if (o->gradient_dtype != DT_F32 &&
        (o->half_model || o->precision != PREC_BF16)) {
        fail(d, (Loc){0}, "--gradient-dtype bf16 is for --precision bf16");
        return ERR_USAGE;
    }
    if (o->masters == MASTERS_F32) return OK;
    if (o->half_model || o->precision != PREC_BF16 || o->shard_optimizer) {
        fail(d, (Loc){0}, "--masters is for --precision bf16%s",
             o->shard_optimizer ? " without --shard-optimizer" : "");
        return ERR_USAGE;
    }
    for (int i = 0; i < m->vars.len; i++) {
        const Type *t = type_get(m->vars.data[i].type);
        narrow[i] = m->vars.data[i].kind == VAR_PARAM && t->dtype == DT_F32 &&
                    t->rank >= 2 && is_large(t);
    }
    vars_narrow(m, narrow, DT_BF16, scratch);
    return OK;
}

/* ---- stochastic rounding ------------------------------------------------- */

/* x rounded to d, as f32. */
static ValueId low_of(Builder *b, ValueId x, DType d) {
    Attr kept = attr_i(AK_user, 1); /* a rounding that no pass removes */
    return b_cast(b, build(b, OP_CAST, &x, 1, &kept, 1, d, NULL), DT_F32);
}

static ValueId call(Builder *b, const char *fn, const ValueId *in, int nin,
                    const Attr *attrs, int nattr) {
    NodeId id = build_call(b, fn_std(fn), in, nin, attrs, nattr, 1, NULL);
    return node_get(b->g, id)->out[0];
}

ValueId compact_random(Builder *b) {
    Graph *g = b->g;
    int64_t start = 0, each = 1, size = 1;
    Attr part[] = {attr_v(AK_starts, &start, 1), attr_v(AK_steps, &each, 1),
                   attr_v(AK_sizes, &size, 1)};
    Attr axis = attr_i(AK_axis, 0);
    ValueId rng = graph_own_var(g, OWN_RNG, 0), in[2];
    in[0] = build(b, OP_SLICE, &rng, 1, part, 3, DT_DEFAULT, NULL);
    in[1] = b_reshape(b, graph_own_var(g, OWN_STEP, 0), 1, &size);
    return build(b, OP_CONCAT, in, 2, &axis, 1, DT_DEFAULT, NULL);
}

/* A random number for each element of x, one of Philox for each line along the
   last axis: one of its own would cost ten rounds of Philox. */
static ValueId random_numbers(Builder *b, ValueId x, const CompactVar *c) {
    Type t = *value_type(b->g, x);
    int last = t.rank - 1;
    Attr stream = attr_i(AK_salt, FIRST_SALT + c->of),
         axis = attr_i(AK_axis, last);
    ValueId rng = compact_random(b), in[2];
    in[1] = build_gen(b, OP_IOTA, NULL, 0, &axis, 1,
                      type_make(DT_F32, t.rank, t.dim), NULL);
    bool lines = t.dim[last] <= LONGEST_LINE;
    if (lines) t.dim[last] = 1;
    in[0] = build_gen(b, OP_RAND_UNIFORM, &rng, 1, &stream, 1,
                      type_make(DT_F32, t.rank, t.dim), NULL);
    return lines ? call(b, "spread_random", in, 2, NULL, 0) : in[0];
}

/* x, rounded stochastically to bf16 or an 8-bit float: as f32. In 8 bits only 0
   becomes 0, so that the root of a mean of squares does not vanish below a
   gradient. */
static ValueId rounded(Builder *b, ValueId x, DType d, const CompactVar *c) {
    const DTypeInfo *row = &dtype_info[d];
    bool f8 = row->stored;
    Attr format[] = {attr_named_f("least", row->least),
                     attr_named_f("step", ldexp(row->least, 1 - row->mantissa)),
                     attr_named_f("part", ldexp(1.25, -row->mantissa))};
    ValueId near = low_of(b, x, d);
    ValueId in[] = {x, near, NO_VALUE, random_numbers(b, x, c)};
    ValueId beside = f8 ? call(b, "beside_f8", in, 2, format, 3)
                        : call(b, "beside_bf16", in, 2, NULL, 0);
    in[2] = low_of(b, beside, d);
    ValueId away = call(b, "rounds_away", in, 4, NULL, 0);
    in[3] = b_where(b, away, in[2], near);
    return f8 ? call(b, "not_zero", in, 4, NULL, 0) : in[3];
}

/* The product that computes v, apart from views and casts; NULL: v is a sum, or
   no product of 16 bits. */
static const Node *its_product(const Graph *g, ValueId v) {
    const Node *n;
    while ((n = value_maker(g, v)) && !n->fn &&
           (n->op == OP_CAST || n->op == OP_TRANSPOSE ||
            node_kind(n) == KIND_VIEW))
        v = n->in[0];
    bool low = n && !n->fn && op_info[n->op].amp == AMP_LOW &&
               n->flags & NODE_BACKWARD;
    for (int k = 0; low && k < 2; k++)
        low = dtype_is_low(value_dtype(g, n->in[k]));
    return low ? n : NULL;
}

ValueId compact_gradient(Builder *b, const Options *o, ValueId grad) {
    const Node *n = its_product(b->g, grad);
    if (o->gradient_dtype == DT_F32 || !n || !is_large(value_type(b->g, grad)))
        return grad;
    Attr kept = attr_i(AK_user, 1); /* a rounding that no pass removes */
    Builder at = {.g = b->g, .flags = NODE_BACKWARD, .loc = n->loc};
    return build(&at, OP_CAST, &grad, 1, &kept, 1, o->gradient_dtype, NULL);
}

/* ---- shapes -------------------------------------------------------------- */

ValueId compact_view(Builder *b, ValueId x, TypeId t) {
    const Type *to = type_get(t);
    return shape_equal(value_type(b->g, x), to)
               ? x
               : b_reshape(b, x, to->rank, to->dim);
}

static bool has_codes(const Options *o, const Type *t) {
    bool codes = dtype_info[o->state_dtype].bytes == 1;
    return codes && t->dtype == DT_F32 && is_large(t) &&
           type_count(t) % BLOCK == 0;
}

static TypeId blocks_of(const Type *t, int64_t each) {
    int64_t dim[] = {type_count(t) / BLOCK, each};
    return type_make(DT_F32, 2, dim);
}

TypeId compact_blocks(const Options *o, TypeId whole) {
    const Type *t = type_get(whole);
    return has_codes(o, t) ? blocks_of(t, BLOCK) : whole;
}

/* x, in any shape and type, becomes the variable's value if ok. */
static ValueId stored(Builder *b, ValueId var, ValueId x, ValueId ok) {
    Graph *g = b->g;
    DType d = value_dtype(g, var);
    TypeId shape = value_get(g, x)->type;
    ValueId old = b_cast(b, compact_view(b, var, shape), DT_F32);
    Attr bounds[] = {attr_f(AK_min, -127), attr_f(AK_max, 127)};
    x = b_where(b, ok, x, old);
    if (!dtype_is_float(d)) /* tells kernels that the cast fits */
        x = build(b, OP_CLIP, &x, 1, bounds, 2, DT_F32, NULL);
    x = b_cast(b, x, d);
    graph_write(g, var, compact_view(b, x, value_get(g, var)->type));
    return x;
}

/* ---- parameters ---------------------------------------------------------- */

static ValueId state_var(Graph *g, const Var *v, Str name, TypeId type,
                         double initial) {
    Str full = internf("%s/%s", family_name(FAMILY_OPT, v->name), name);
    return graph_var(
        g, module_var(g->module, VAR_STATE, full, type, NULL, initial));
}

ValueId compact_read_param(Builder *b, const Options *o, ValueId p, TypeId as,
                           CompactVar *c) {
    const Var v = *value_var(b->g, p);
    ValueId x = b_cast(b, compact_view(b, p, as), DT_F32);
    bool low = dtype_is_low(type_get(v.type)->dtype);
    *c = (CompactVar){.var = p,
                      .of = value_get(b->g, p)->var,
                      .as = as,
                      .compact = low && o->masters != MASTERS_F32};
    if (o->masters != MASTERS_KAHAN || !low) return x;
    c->more = state_var(b->g, &v, intern("remainder"), v.type, 0);
    return b2(b, OP_ADD, x, b_cast(b, compact_view(b, c->more, as), DT_F32),
              DT_F32);
}

ValueId compact_write_param(Builder *b, const CompactVar *c, ValueId x,
                            ValueId ok) {
    Graph *g = b->g;
    TypeId whole = value_get(g, c->var)->type;
    if (!c->compact) { /* fp32, or 16 bits by --precision O2, O3 */
        x = compact_view(b, x, whole);
        graph_write(g, c->var, b_cast(b, x, value_dtype(g, c->var)));
        return x;
    }
    ValueId y = c->more.i ? low_of(b, x, DT_BF16) : rounded(b, x, DT_BF16, c);
    if (c->more.i) stored(b, c->more, b2(b, OP_SUB, x, y, DT_F32), ok);
    y = stored(b, c->var, y, ok);
    return b_cast(b, compact_view(b, y, whole), DT_F32);
}

/* ---- state --------------------------------------------------------------- */

/* A block that begins as x has the largest code and x for its scale. */
static ValueId read_codes(Builder *b, const Options *o, const Var *v,
                          const OptimizerState *state, TypeId type,
                          CompactVar *c) {
    bool f8 = dtype_info[o->state_dtype].stored;
    double x = state->initial,
           most = f8 ? dtype_info[o->state_dtype].most : 127;
    Attr end = attr_named_f("most", most);
    const Type *t = type_get(type), *lines = type_get(blocks_of(t, 1));
    ValueId in[2];
    c->var =
        state_var(b->g, v, state->name, type_with_dtype(type, o->state_dtype),
                  x > 0   ? most
                  : x < 0 ? -most
                          : 0);
    c->scale = state_var(b->g, v, internf("%s.scale", state->name),
                         type_make(DT_F32, 1, lines->dim), fabs(x));
    in[0] = b_cast(b, compact_view(b, c->var, blocks_of(t, BLOCK)), DT_F32);
    in[1] = b_reshape(b, c->scale, 2, lines->dim);
    return f8 ? call(b, "from_f8", in, 2, &end, 1)
              : call(b, "from_int8", in, 2, NULL, 0);
}

ValueId compact_read_state(Builder *b, const Options *o, const Var *v,
                           const OptimizerState *state, TypeId type, TypeId as,
                           CompactVar *c) {
    const Type *t = type_get(type);
    bool compact =
        o->state_dtype != DT_F32 && t->dtype == DT_F32 && is_large(t);
    *c = (CompactVar){.of = module_find_var(b->g->module, v->name),
                      .as = as,
                      .compact = compact};
    if (has_codes(o, t))
        return compact_view(b, read_codes(b, o, v, state, type, c), as);
    if (compact) type = type_with_dtype(type, DT_BF16);
    c->var = state_var(b->g, v, state->name, type, state->initial);
    ValueId x = compact_view(b, c->var, as);
    return compact ? b_cast(b, x, DT_F32) : x;
}

static void write_codes(Builder *b, const CompactVar *c, ValueId x,
                        ValueId ok) {
    DType d = value_dtype(b->g, c->var);
    const int64_t line[] = {1};
    x = compact_view(b, x, blocks_of(value_type(b->g, x), BLOCK));
    Attr finite[] = {attr_f(AK_min, 0), attr_f(AK_max, (double)FLT_MAX)};
    ValueId most = b_reduce(b, OP_REDUCE_MAX, b1(b, OP_ABS, x, DT_F32), line, 1,
                            true, DT_F32);
    most = build(b, OP_CLIP, &most, 1, finite, 2, DT_F32, NULL);
    ValueId in[] = {x, call(b, "block_inverse", &most, 1, NULL, 0), NO_VALUE,
                    NO_VALUE};
    ValueId code;
    if (d == DT_I8) {
        in[2] = random_numbers(b, x, c);
        code = call(b, "to_int8", in, 3, NULL, 0);
    } else {
        Attr end = attr_named_f("most", dtype_info[d].most);
        code = rounded(b, call(b, "to_f8", in, 2, &end, 1), d, c);
    }
    stored(b, c->var, code, ok);
    stored(b, c->scale, most, ok);
}

void compact_write_state(Builder *b, const CompactVar *c, ValueId x,
                         ValueId ok) {
    Graph *g = b->g;
    DType d = value_dtype(g, c->var);
    if (c->scale.i)
        write_codes(b, c, x, ok);
    else if (c->compact)
        stored(b, c->var, rounded(b, x, d, c), ok);
    else
        graph_write(
            g, c->var,
            compact_view(b, b_cast(b, x, d), value_get(g, c->var)->type));
}
