/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_lookup.c: texts of the file, and the meaning of its names. Every
   stage calls it; it calls no stage. */
#include <string.h>

#include "frontend/onnx/onnx.h"

/* ---- texts --------------------------------------------------------------- */

Str ox_text(const char *s) { return intern(s ? s : ""); }

/* "" and "ai.onnx" name the same domain. */
Str ox_domain(const char *s) {
    Str d = ox_text(s);
    return d == intern("ai.onnx") ? intern("") : d;
}

Str onnx_domain(const Onnx__NodeProto *n) { return ox_domain(n->domain); }

bool onnx_is_op(const Onnx__NodeProto *n, const char *op) {
    return ox_text(n->op_type) == intern(op) && !*ox_domain(n->domain);
}

Str ox_metadata(Onnx__StringStringEntryProto *const *p, size_t n,
                const char *key) {
    for (size_t i = 0; i < n; i++)
        if (p[i]->key && p[i]->value && !strcmp(p[i]->key, key))
            return intern(p[i]->value);
    return NULL;
}

/* ---- names --------------------------------------------------------------- */

OxName *ox_name_of(const Ox *ox, Str name) {
    int i = str_map_get(&ox->by_name, name);
    return i < 0 ? NULL : &ox->names.data[i];
}

const OxNode *ox_made_by(const Ox *ox, Str name) {
    const OxName *x = ox_name_of(ox, name);
    return x && x->kind == OX_RESULT ? &ox->nodes.data[x->index] : NULL;
}

const OxNode *ox_maker(const Ox *ox, Str name, const char *type) {
    const OxNode *n = ox_made_by(ox, name);
    return n && !strcmp(n->type, type) ? n : NULL;
}

int ox_uses(const Ox *ox, Str name) {
    OxName *n = ox_name_of(ox, name);
    return n ? n->uses : 0;
}
