/* SPDX-License-Identifier: Apache-2.0 */
/* emit_weights.c: initial values to section "weights" or to a safetensors file
   beside the module (emit.h).                                               */
#define _POSIX_C_SOURCE 200809L
#include "codegen/emit.h"

#include <ctype.h>
#include <string.h>
#include <zlib.h>

const Tensor *weights_initial(Arena *a, const Var *v) {
    if (!v->init) return NULL;
    const Type *have = type_get(v->init->type), *want = type_get(v->type);
    ASSERT(type_count(have) == type_count(want));
    if (have->dtype == want->dtype) return v->init;
    Tensor *t = tensor_new(a, v->type);
    for (int64_t i = 0; i < type_count(want); i++) {
        if (dtype_is_float(have->dtype) || dtype_is_float(want->dtype))
            tensor_set(t, i, tensor_get(v->init, i));
        else
            tensor_set_int(t, i, tensor_get_int(v->init, i));
    }
    return t;
}

/* True for variables of the model, false for variables of training. */
static bool is_stored_weight(const Var *v) {
    return v->init && (v->kind == VAR_PARAM || v->kind == VAR_FROZEN ||
                       v->kind == VAR_BUFFER);
}

bool weights_in_sidecar(const Options *opt, const Var *v) {
    return opt->sidecar_weights && is_stored_weight(v);
}

unsigned char *weights_all(Arena *a, const PlanSource *src) {
    unsigned char *all = arena_alloc(a, (size_t)src->weight_bytes + 1);
    for (int i = 0; i < src->weights.len; i++) {
        const WeightPiece *p = &src->weights.data[i];
        memcpy(all + p->offset, p->data, (size_t)p->bytes);
    }
    return all;
}

void weights_section(SectionWriter *w, const PlanSource *src) {
    section_begin(w, "weights");
    for (int i = 0; i < src->weights.len; i++) {
        const WeightPiece *p = &src->weights.data[i];
        section_pad(w, (uint64_t)p->offset);
        section_put(w, p->data, (size_t)p->bytes);
    }
    section_pad(w, (uint64_t)src->weight_bytes);
    section_end(w);
    if (src->index.len)
        section_add_text(w, "weights.json", src->index.data, src->index.len);
}

/* ---- safetensors --------------------------------------------------------- */

char *weights_sidecar_path(Arena *a, const char *module) {
    size_t n = strlen(module);
    if (n > 3 && !strcmp(module + n - 3, ".so")) n -= 3;
    return arena_printf(a, "%.*s.weights.safetensors", (int)n, module);
}

void weights_entry(StrBuf *sb, const Var *v, int64_t at) {
    const Type *t = type_get(v->type);
    sb_puts(sb, sb->len > 1 ? "," : "{");
    bool reserved =
        !strcmp(v->name, "__metadata__"); /* as in st_name_in_file */
    sb_put_json_string(sb, reserved ? "ampc.__metadata__" : v->name);
    sb_puts(sb, ":{\"dtype\":\"");
    for (const char *c = dtype_info[t->dtype].text; *c; c++)
        sb_printf(sb, "%c", toupper((unsigned char)*c));
    sb_puts(sb, "\",\"shape\":[");
    for (int i = 0; i < t->rank; i++)
        sb_printf(sb, "%s%lld", i ? "," : "", (long long)t->dim[i]);
    sb_printf(sb, "],\"data_offsets\":[%lld,%lld]}", (long long)at,
              (long long)(at + type_bytes(t)));
}

static bool put_weights(FILE *f, PlanSidecar *out, const void *data, size_t n) {
    out->bytes += n;
    out->crc = (uint32_t)crc32_z(out->crc, data, n);
    return fwrite(data, 1, n, f) == n;
}

bool weights_sidecar(FILE *f, const Module *m, Arena *a, PlanSidecar *out) {
    StrBuf head = {0};
    int64_t at = 0;
    for (int i = 0; i < m->vars.len; i++) {
        const Var *v = &m->vars.data[i];
        if (!is_stored_weight(v)) continue;
        weights_entry(&head, v, at);
        at += type_bytes(type_get(v->type));
    }
    sb_puts(&head, head.len ? "}" : "{}");
    while (head.len % 8) sb_puts(&head, " ");
    uint64_t n = head.len;
    *out = (PlanSidecar){.crc = (uint32_t)crc32(0, NULL, 0)};
    bool ok = put_weights(f, out, &n, 8) && put_weights(f, out, head.data, n);
    sb_free(&head);
    for (int i = 0; i < m->vars.len && ok; i++) {
        const Var *v = &m->vars.data[i];
        if (!is_stored_weight(v)) continue;
        size_t bytes = (size_t)type_bytes(type_get(v->type));
        ok = put_weights(f, out, weights_initial(a, v)->data, bytes);
    }
    return ok;
}
