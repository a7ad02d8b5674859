/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_taken.c: bodies that count only where data says: a branch of an If, a
   turn of a Loop.
   Before:  y = If(c, then: Sqrt(x), else: Neg(x))
   After:   y = where(c, sqrt(read_if(x, c)), -read_if(x, not c))

   All of them are computed. Selection drops the numbers of those that do not
   count, and read_if their gradients, which would be 0 times infinity
   otherwise. */
#include <string.h>

#include "frontend/onnx/onnx.h"

/* Constants, conditions and what does not train need no protection. */
static bool is_safe(const Ox *ox, ValueId v) {
    const Value *val = value_get(ox->g, v);
    if (val->kind == VK_VAR) return value_var(ox->g, v)->kind != VAR_PARAM;
    return val->kind == VK_CONST || ox_type(ox, v).dtype == DT_BOOL;
}

static Status read_if(Ox *ox, ValueId v, ValueId taken, ValueId *y) {
    *y = v;
    if (!is_value(v) || is_safe(ox, v)) return OK;
    return ox_call(ox, "read_if", (ValueId[]){v, taken}, 2, NULL, 0, 1, y);
}

Status ox_read_if_taken(Ox *ox, ValueId v, ValueId *y) {
    *y = v;
    return is_value(ox->taken) ? read_if(ox, v, ox->taken, y) : OK;
}

Status ox_shield(Ox *ox, ValueId taken, const Str *name, int n, OxShield *s) {
    *s = (OxShield){.taken = taken, .outer = ox->taken, .name = name};
    if (!is_value(taken)) return OK;
    if (is_value(s->outer))
        TRY(ox2(ox, OP_AND, s->outer, taken, &ox->taken));
    else
        ox->taken = taken;
    s->n = n;
    s->meant = NEW_ARRAY(ox->scratch, OxName, n + 1);
    s->nwrites = ox->g->writes.len;
    if (s->nwrites)
        s->writes = arena_dup(ox->scratch, ox->g->writes.data,
                              (size_t)s->nwrites * sizeof *s->writes);
    for (int i = 0; i < n; i++) {
        OxName *x = *name[i] ? ox_name_of(ox, name[i]) : NULL;
        if (!x) continue;
        s->meant[i] = *x;
        TRY(read_if(ox, x->value, taken, &x->value));
        ValueId *seq = NEW_ARRAY(ox->a, ValueId, x->nseq + 1);
        for (int k = 0; k < x->nseq; k++)
            TRY(read_if(ox, x->seq[k], taken, &seq[k]));
        if (x->seq) x->seq = seq;
    }
    return OK;
}

/* The value that the buffer would get without the body. */
static ValueId written_before(const OxShield *s, ValueId buffer) {
    for (int i = 0; i < s->nwrites; i++)
        if (same_value(s->writes[i].var, buffer)) return s->writes[i].value;
    return buffer;
}

Status ox_unshield(Ox *ox, const OxShield *s) {
    ox->taken = s->outer;
    for (int i = s->n; i-- > 0;) {
        if (!s->meant[i].name) continue;
        OxName *x = ox_name_of(ox, s->name[i]);
        x->value = s->meant[i].value;
        x->seq = s->meant[i].seq;
    }
    for (int i = 0; i < ox->g->writes.len && is_value(s->taken); i++) {
        Write *w = &ox->g->writes.data[i];
        ValueId old = written_before(s, w->var);
        if (!same_value(w->value, old))
            TRY(ox3(ox, OP_WHERE, s->taken, w->value, old, &w->value));
    }
    return OK;
}

const char *ox_type_text(const Ox *ox, ValueId v) {
    StrBuf sb = {0};
    sb_put_type(&sb, value_get(ox->g, v)->type);
    const char *text = arena_printf(ox->a, "%s", sb.data);
    sb_free(&sb);
    return text;
}

Status ox_condition(Ox *ox, ValueId v, ValueId *y) {
    if (!is_value(v)) return ox_fail(ox, "its condition is a sequence");
    Type t = ox_type(ox, v);
    if (type_count(&t) != 1 || dtype_is_float(t.dtype))
        return ox_fail(ox, "its condition is %s, not one truth value",
                       ox_type_text(ox, v));
    TRY(ox_reshape(ox, v, 0, NULL, y));
    return ox_cast(ox, *y, DT_BOOL, false, y);
}

/* Two results of one element each, such as bool[] and bool[1], get the same
   number of axes: both broadcast alike. */
static Status as_many_axes(Ox *ox, ValueId *p, ValueId *q) {
    Type x = ox_type(ox, *p), z = ox_type(ox, *q);
    if (type_count(&x) != 1 || type_count(&z) != 1 || x.rank == z.rank)
        return OK;
    return x.rank < z.rank ? ox_reshape(ox, *p, z.rank, z.dim, p)
                           : ox_reshape(ox, *q, x.rank, x.dim, q);
}

Status ox_select(Ox *ox, ValueId taken, Str then, Str otherwise, ValueId *y) {
    const OxName *a = ox_name_of(ox, then), *b = ox_name_of(ox, otherwise);
    if (!is_value(a->value) || !is_value(b->value))
        return ox_fail(ox, "it depends on data, and a result is a sequence");
    if (a->pick || b->pick)
        return ox_fail(ox, "it depends on data, and so does the number of rows "
                           "of a result: reduce them first");
    ValueId p = a->value, q = b->value;
    TRY(as_many_axes(ox, &p, &q));
    Type x = ox_type(ox, p), z = ox_type(ox, q);
    if (!shape_equal(&x, &z) || x.dtype != z.dtype)
        return ox_fail(ox,
                       "it depends on data, and a result is %s or %s: both "
                       "must have one type%s",
                       ox_type_text(ox, a->value), ox_type_text(ox, b->value),
                       ox_set_remedy(ox, taken));
    *y = p;
    if (same_value(p, q)) return OK;
    return ox3(ox, OP_WHERE, taken, p, q, y);
}
