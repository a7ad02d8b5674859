/* SPDX-License-Identifier: Apache-2.0 */
/* tensors.c: a tensor of a safetensors file: u64 length, JSON header, data. */
#include <stdlib.h>
#include <string.h>

#include "frontend/data/array.h"
#include "runtime/files/safetensors.h"

/* The header is a JSON object; no other format here begins with one. */
static bool is_tensors(const unsigned char *p, size_t n) {
    uint64_t head = 0;
    if (n < 10) return false;
    memcpy(&head, p, 8);
    return head >= 2 && head <= 100 << 20 && p[8] == '{';
}

static void *take_memory(void *ctx, size_t n, size_t align) {
    (void)ctx;
    return aligned_alloc(align, (n + align - 1) / align * align);
}

static void give_memory(void *ctx, void *p, size_t n) {
    (void)ctx;
    (void)n;
    free(p);
}

const ampc_options safetensors_memory = {.size = sizeof safetensors_memory,
                                         .alloc = take_memory,
                                         .free = give_memory};

static Status not_one(const Source *s, const StFile *f, const char *name) {
    StrBuf names = {0};
    char text[100];
    int told = 0;
    for (size_t i = 0; i < f->ntensor; i++)
        if (json_text(f->tensors[i].name, text, sizeof text) >= 0 &&
            sb_put_next(&names, told++))
            sb_printf(&names, "'%s'", text);
    sb_put_more(&names, told);
    source_bad(s, "no tensor '%s' (FILE:TENSOR chooses); the file has %zu: %s",
               name, f->ntensor, names.data ? names.data : "none");
    sb_free(&names);
    return ERR_USER;
}

static Status find_tensor(Source *s, const StFile *f, const ArrayPick *pick,
                          ArrayHead *h) {
    const char *name = pick->part ? pick->part : pick->input;
    const StTensor *t = st_find(f, name);
    if (!t && !pick->part && f->ntensor == 1) t = f->tensors;
    if (!t) return not_one(s, f, name);
    if (t->foreign)
        return source_bad(s, "tensor '%s' is %.*s%.*s, which is not read", name,
                          (int)(t->dtype_text.n - 2), t->dtype_text.p + 1,
                          (int)(t->shape_text.n < 80 ? t->shape_text.n : 80),
                          t->shape_text.p);
    h->dtype = (ampc_dtype)t->dtype;
    h->rank = (int)t->rank;
    memcpy(h->dim, t->dim, sizeof h->dim);
    h->found = true;
    return source_part(s, f->data + t->begin, t->end - t->begin);
}

static Status open_tensors(const Source *s, StFile *f) {
    if (s->packed)
        return source_bad(s, "a gzipped safetensors file is not read");
    if (st_open(&safetensors_memory, s->path, f) == AMPC_OK) return OK;
    return source_bad(s, "damaged safetensors file: %s",
                      strstr(f->why, ": ") + 2);
}

static Status tensors_parts(Source *s, const ArrayHead *h, ArrayParts *to) {
    StFile f;
    char text[1000];
    (void)h;
    TRY(open_tensors(s, &f));
    for (size_t i = 0; i < f.ntensor; i++) {
        if (json_text(f.tensors[i].name, text, sizeof text) < 0) continue;
        const char *part = arena_printf(to->arena, "%s", text);
        vec_push(to->arena, &to->list, (ArrayPart){part, NULL});
    }
    st_close(&f);
    return OK;
}

static Status tensors_find(Source *s, const ArrayPick *pick, ArrayHead *h) {
    StFile f;
    TRY(open_tensors(s, &f));
    Status st = find_tensor(s, &f, pick, h);
    st_close(&f);
    return st;
}

const ArrayFormat tensors_format = {.name = "safetensors",
                                    .is = is_tensors,
                                    .find = tensors_find,
                                    .parts = tensors_parts};
