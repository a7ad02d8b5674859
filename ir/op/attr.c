/* SPDX-License-Identifier: Apache-2.0 */
/* attr.c: the keys of attributes, and the attributes of nodes. */
#include <math.h>
#include <string.h>

#include "ir/op/node.h"

/* ---- keys ---------------------------------------------------------------- */

#define DEFAULT_INT(v)   .number = (v)
#define DEFAULT_FLAG(v)  .number = (v), .flag = true
#define DEFAULT_FLOAT(v) .number = (v)
#define DEFAULT_STR(v)   .string = (v)
#define DEFAULT_INTS(v)  .number = 0

static const AttrInfo attr_rows[NUM_ATTRS] = {
#define ATTR(name, kind, dflt)                                                 \
    [AK_##name] = {#name, ATTR_##kind, DEFAULT_##kind(dflt)},
#include "ir/op/ops.def"
};

static VEC(AttrInfo) attr_made; /* key NUM_ATTRS + i */

const AttrInfo *attr_get(AttrKey k) {
    return k < NUM_ATTRS ? &attr_rows[k] : &attr_made.data[k - NUM_ATTRS];
}

AttrKey attr_key(const char *name, AttrKind kind) {
    static Arena *arena; /* allocated for the life of the process */
    int n = NUM_ATTRS + attr_made.len;
    for (int k = 0; k < n; k++)
        if (attr_get((AttrKey)k)->kind == kind &&
            strcmp(attr_get((AttrKey)k)->text, name) == 0)
            return (AttrKey)k;
    if (!arena) arena = arena_new();
    vec_push(arena, &attr_made,
             (AttrInfo){.text = intern(name), .kind = kind, .string = ""});
    return (AttrKey)n;
}

bool info_takes(const OpInfo *info, AttrKey k) {
    for (int i = 0; i < info->nattr; i++)
        if (info->attrs[i] == k) return true;
    return false;
}

/* ---- of a node ----------------------------------------------------------- */

const Attr *attr_find(const Node *n, AttrKey k) {
    for (int i = 0; i < n->nattr; i++)
        if (n->attrs[i].key == k) return &n->attrs[i];
    return NULL;
}

int64_t attr_int(const Node *n, AttrKey k) {
    const Attr *a = attr_find(n, k);
    return a ? a->u.i : (int64_t)attr_get(k)->number;
}

double attr_float(const Node *n, AttrKey k) {
    const Attr *a = attr_find(n, k);
    return a ? a->u.f : attr_get(k)->number;
}

Str attr_str(const Node *n, AttrKey k) {
    const Attr *a = attr_find(n, k);
    return a ? a->u.s : intern(attr_get(k)->string);
}

int attr_ints(const Node *n, AttrKey k, const int64_t **v) {
    const Attr *a = attr_find(n, k);
    *v = a ? a->u.ints.v : NULL;
    return a ? a->u.ints.n : 0;
}
