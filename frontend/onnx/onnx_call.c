/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_call.c: ONNX ops that are one op or function of ours.  An attribute maps
   to the one of the same name, unless the row's map has an entry for it.
   Entries are separated by blanks:
     a>b     attribute a is called b
     @1>b    operand 1 (integers known at compile time) becomes attribute b; it
             and the operands after it are not passed
     -a      attribute a is ignored, because it has no effect here
     b=3     b is 3, a number or a word
     b=3<21  .. before opset 21
   The default of an attribute that is not given is the function's;
   `consumed_inputs` of the first opsets is always ignored.                  */
#include <stdlib.h>
#include <string.h>

#include "frontend/onnx/onnx.h"
#include "ir/fn/fn.h"

const char *ox_map_entry(const char *s, OxMapEntry *e) {
    size_t n = strcspn(s, " ");
    const char *arrow = memchr(s, '>', n), *is = memchr(s, '=', n);
    const char *less = is ? memchr(is, '<', n - (size_t)(is - s)) : NULL;
    *e = (OxMapEntry){0};
    if (*s == '-') {
        e->from = intern_n(s + 1, n - 1);
    } else if (*s == '@' && arrow) {
        e->operand = atoi(s + 1);
        e->to = intern_n(arrow + 1, n - 1 - (size_t)(arrow - s));
    } else if (arrow && !is) {
        e->from = intern_n(s, (size_t)(arrow - s));
        e->to = intern_n(arrow + 1, n - 1 - (size_t)(arrow - s));
    } else if (is) {
        const char *end = less ? less : s + n;
        e->to = intern_n(s, (size_t)(is - s));
        e->value = intern_n(is + 1, (size_t)(end - is) - 1);
        e->before = less ? atoi(less + 1) : 0;
    }
    return s + n + strspn(s + n, " ");
}

/* Our name of an attribute; NULL: it is ignored. */
static Str our_name(const OxOp *op, Str name) {
    OxMapEntry e;
    if (!strcmp(name, "consumed_inputs")) return NULL;
    for (const char *s = op->map; *s;) {
        s = ox_map_entry(s, &e);
        if (e.from == name) return e.to;
    }
    return name;
}

OxMapEntry ox_map_to(const OxOp *op, Str ours) {
    OxMapEntry e;
    for (const char *s = op->map; s && *s;) {
        s = ox_map_entry(s, &e);
        if (e.to && !strcmp(e.to, ours)) return e;
    }
    return (OxMapEntry){.from = ours, .to = ours};
}

Callee ox_callee(const OxOp *op) {
    Callee c = {OP_CALL, NULL};
    if (!op->fn)
        c.op = op->core;
    else if (!(c.fn = fn_std(op->fn)))
        op_from_text(op->fn, strlen(op->fn), &c.op);
    return c;
}

static bool find_key(const OpInfo *info, Str name, AttrKey *key) {
    for (int i = 0; i < info->nattr; i++) {
        *key = info->attrs[i];
        if (!strcmp(attr_get(*key)->text, name)) return true;
    }
    return false;
}

static Attr attr_from(Ox *ox, Str from, AttrKey key) {
    const int64_t *v;
    int n;
    switch (attr_get(key)->kind) {
    case ATTR_INT: return attr_i(key, ox_int(ox, from, 0));
    case ATTR_FLOAT: return attr_f(key, ox_float(ox, from, 0));
    case ATTR_STR: return attr_s(key, ox_str(ox, from, ""));
    case ATTR_INTS: break;
    }
    n = ox_ints(ox, from, &v);
    return attr_v(key, v, n);
}

static Attr attr_of_text(Str text, AttrKey key) {
    switch (attr_get(key)->kind) {
    case ATTR_INT: return attr_i(key, atoi(text));
    case ATTR_FLOAT: return attr_f(key, strtod(text, NULL));
    default: return attr_s(key, text);
    }
}

/* k < 0: the operand is absent, and the default applies. */
static Status attr_of_operand(Ox *ox, const OxMapEntry *e, AttrKey key,
                              Attr *out, int *n) {
    const int64_t *v;
    int k;
    TRY(ox_const_ints(ox, e->operand, e->to, &v, &k));
    if (k < 0) return OK;
    bool list = attr_get(key)->kind == ATTR_INTS;
    if (!list && k != 1)
        return ox_fail(ox, "%s has %d elements, needs one", e->to, k);
    int64_t one = list ? 0 : v[0] < -INT32_MAX ? -INT32_MAX : v[0];
    if (one > INT32_MAX) one = INT32_MAX;
    out[(*n)++] = list ? attr_v(key, v, k) : attr_i(key, one);
    return OK;
}

Status ox_mapped(Ox *ox, Attr *out, int *n) {
    const OxNode *node = ox->node;
    const OpInfo *info = callee_info(ox_callee(node->op));
    OxMapEntry e;
    AttrKey key;
    *n = 0;
    for (int i = 0; i < node->nattr; i++) {
        Str name = our_name(node->op, node->attr[i].name);
        if (name && find_key(info, name, &key))
            out[(*n)++] = attr_from(ox, node->attr[i].name, key);
    }
    for (const char *s = node->op->map; *s;) {
        s = ox_map_entry(s, &e);
        if (!e.to || !find_key(info, e.to, &key)) continue;
        if (e.operand) TRY(attr_of_operand(ox, &e, key, out, n));
        if (!e.value || (e.before && node->version >= e.before)) continue;
        for (int i = 0; i < *n; i++)
            if (out[i].key == key) return ox_fail(ox, "%s is newer", e.to);
        out[(*n)++] = attr_of_text(e.value, key);
    }
    return OK;
}

Status onnx_call(Ox *ox) {
    enum { MOST = 14 };
    ValueId in[MOST], out[MOST];
    Attr attrs[MAX_OP_ATTRS];
    Callee callee = ox_callee(ox->node->op);
    const char *at = strchr(ox->node->op->map, '@');
    int nout = callee_info(callee)->out_min, n, nin = ox->node->nin;
    if (at && atoi(at + 1) < nin) nin = atoi(at + 1); /* operands of ours */
    for (int i = 0; i < nin; i++) in[i] = ox_in(ox, i);
    for (int i = 0; i < ox->node->nout; i++)
        if (ox_has_out(ox, i) && nout <= i) nout = i + 1;
    TRY(ox_mapped(ox, attrs, &n));
    TRY(ox_make(ox, callee, in, nin, attrs, n, nout, NULL, NULL, out));
    for (int i = 0; i < nout; i++) TRY(ox_out(ox, i, out[i]));
    return OK;
}

/* ---- rows that are wrong ------------------------------------------------- */

static bool lacks(const OxOp *op, Str name, StrBuf *why) {
    AttrKey key;
    if (!name || find_key(callee_info(ox_callee(op)), name, &key)) return false;
    sb_printf(why, "%s: %s has no attribute '%s'", op->name, op->fn, name);
    return true;
}

bool ox_row_defect(const OxOp *op, StrBuf *why) {
    OxMapEntry e;
    if (!op->fn) return false;
    Callee c = ox_callee(op);
    if (!c.fn && c.op == OP_CALL) {
        sb_printf(why, "%s: unknown op or function '%s'", op->name, op->fn);
        return true;
    }
    for (const char *s = op->attrs; *s;) {
        size_t n = strcspn(s, ":");
        if (lacks(op, our_name(op, intern_n(s, n)), why)) return true;
        s += n + 2;
        s += strspn(s, " ");
    }
    for (const char *s = op->map; *s;) {
        s = ox_map_entry(s, &e);
        if (!e.from && !e.to) {
            sb_printf(why, "%s: its map cannot be read", op->name);
            return true;
        }
        if (lacks(op, e.to, why)) return true;
    }
    return false;
}
