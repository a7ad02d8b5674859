/* SPDX-License-Identifier: Apache-2.0 */
/* compact.c: see compact.h. */
#include "passes/common/compact.h"

#include "passes/rewrite.h"

/* Smaller tensors stay fp32: norms and biases are few bytes. */
#define LEAST_ELEMENTS 4096
/* Streams of random numbers that no model uses. A weight and its state share
   them: each is right on average by itself. */
#define FIRST_SALT ((int64_t)1 << 30)

bool compact_draws(const Options *o) {
    return o->state_dtype != DT_F32 || o->masters == MASTERS_NONE;
}

static bool is_large(const Type *t) {
    return t->dtype != DT_F64 && type_count(t) >= LEAST_ELEMENTS;
}

Status compact_params(Module *m, const Options *o, Diag *d, Arena *scratch) {
    bool *narrow = NEW_ARRAY(scratch, bool, m->vars.len + 1);
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

static ValueId bf16_of(Builder *b, ValueId x) {
    Attr kept = attr_i(AK_user, 1); /* a rounding that stays */
    return build(b, OP_CAST, &x, 1, &kept, 1, DT_BF16, NULL);
}

static ValueId call(Builder *b, const char *fn, const ValueId *in, int nin,
                    const Attr *attrs, int nattr) {
    NodeId id = build_call(b, fn_std(fn), in, nin, attrs, nattr, 1, NULL);
    return node_get(b->g, id)->out[0];
}

/* Random numbers for the lines of x along its last axis, or for the columns.
   Their sums without the integer part are uniform for each element, and cost
   one addition where a number of its own would cost ten rounds of Philox. */
static ValueId random_part(Builder *b, ValueId x, bool columns) {
    Type t = *value_type(b->g, x);
    Attr stream = attr_i(AK_salt, FIRST_SALT + columns);
    ValueId rng = graph_own_var(b->g, OWN_RNG, 0);
    for (int i = 0; i < t.rank; i++)
        if ((i == t.rank - 1) != columns) t.dim[i] = 1;
    return build_gen(b, OP_RAND_UNIFORM, &rng, 1, &stream, 1,
                     type_make(DT_F32, t.rank, t.dim), NULL);
}

/* x as bf16, rounded stochastically. */
static ValueId rounded(Builder *b, ValueId x) {
    ValueId near = bf16_of(b, x), other;
    ValueId in[] = {x, b_cast(b, near, DT_F32), NO_VALUE,
                    random_part(b, x, false), random_part(b, x, true)};
    other = bf16_of(b, call(b, "beside_bf16", in, 2, NULL, 0));
    in[2] = b_cast(b, other, DT_F32);
    return b_where(b, call(b, "rounds_away", in, 5, NULL, 0), other, near);
}

static ValueId stored(Builder *b, ValueId var, ValueId x, ValueId ok) {
    ValueId y = b_where(b, ok, b_cast(b, x, value_dtype(b->g, var)), var);
    graph_write(b->g, var, y);
    return y;
}

/* ---- parameters ---------------------------------------------------------- */

static ValueId state_var(Graph *g, const Var *v, Str name, TypeId type,
                         double initial) {
    Str full = internf("%s/%s", family_name(FAMILY_OPT, v->name), name);
    return graph_var(
        g, module_var(g->module, VAR_STATE, full, type, NULL, initial));
}

ValueId compact_read_param(Builder *b, const Options *o, ValueId p,
                           CompactVar *c) {
    const Var v = *value_var(b->g, p);
    ValueId x = b_cast(b, p, DT_F32);
    bool low = dtype_is_low(type_get(v.type)->dtype);
    *c = (CompactVar){.var = p, .compact = low && o->masters != MASTERS_F32};
    if (o->masters != MASTERS_KAHAN || !low) return x;
    c->more = state_var(b->g, &v, intern("remainder"), v.type, 0);
    return b2(b, OP_ADD, x, b_cast(b, c->more, DT_F32), DT_F32);
}

ValueId compact_write_param(Builder *b, const CompactVar *c, ValueId x,
                            ValueId ok) {
    Graph *g = b->g;
    if (!c->compact) { /* fp32, or 16 bits by --precision O2, O3 */
        graph_write(g, c->var, b_cast(b, x, value_dtype(g, c->var)));
        return x;
    }
    ValueId y = c->more.i ? bf16_of(b, x) : rounded(b, x);
    if (c->more.i) {
        ValueId left = b2(b, OP_SUB, x, b_cast(b, y, DT_F32), DT_F32);
        stored(b, c->more, left, ok);
    }
    return b_cast(b, stored(b, c->var, y, ok), DT_F32);
}

/* ---- state --------------------------------------------------------------- */

ValueId compact_read_state(Builder *b, const Options *o, const Var *v,
                           const OptimizerState *state, TypeId type,
                           CompactVar *c) {
    const Type *t = type_get(type);
    bool compact =
        o->state_dtype != DT_F32 && t->dtype == DT_F32 && is_large(t);
    if (compact) type = type_with_dtype(type, o->state_dtype);
    *c = (CompactVar){.var =
                          state_var(b->g, v, state->name, type, state->initial),
                      .compact = compact};
    return compact ? b_cast(b, c->var, DT_F32) : c->var;
}

void compact_write_state(Builder *b, const CompactVar *c, ValueId x,
                         ValueId ok) {
    if (c->compact)
        stored(b, c->var, rounded(b, x), ok);
    else
        graph_write(b->g, c->var, b_cast(b, x, value_dtype(b->g, c->var)));
}
