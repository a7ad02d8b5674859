/* SPDX-License-Identifier: Apache-2.0 */
/* tokens.c: texts as token numbers. .bin: u16 or u32 (FILE.bin:u32) without a
   header, as nanoGPT writes them, or after the header of llm.c. .txt: the bytes
   themselves (also FILE:u8 of a .bin file), or the tokens of --vocabulary.
   Samples are windows of as many tokens as the input takes; FILE.bin:+1
   (FILE.bin:u32+1) starts each window one token later, as the target of
   next-token prediction. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frontend/data/array.h"
#include "frontend/data/vocabulary.h"

enum { LLMC_HEADER = 1024, LLMC_U16 = 20240520, LLMC_U32 = 20240801 };

static Status tokens_take_part(const Source *s, const char *part, ArrayHead *h,
                               int *shift) {
    *shift = 0;
    if (!part) return OK;
    bool known = false;
    static const struct {
        const char *name;
        ampc_dtype dtype;
    } types[] = {{"u8", AMPC_DTYPE_U8},
                 {"u16", AMPC_DTYPE_U16},
                 {"u32", AMPC_DTYPE_U32}};
    for (int i = 0; i < 3 && !known; i++) {
        size_t n = strlen(types[i].name);
        if (strncmp(part, types[i].name, n) != 0) continue;
        h->dtype = types[i].dtype;
        part += n;
        known = true;
    }
    if (!strcmp(part, "+1"))
        *shift = 1;
    else if (*part || !known)
        return source_bad(s,
                          "'%s': tokens are taken as u8, u16 or u32, with "
                          "+1 from the second on (FILE.bin:u16+1)",
                          part);
    return OK;
}

/* ---- texts and their vocabulary ------------------------------------------ */

/* Writes the tokens from number `shift` on to a copy. */
static Status put_tokens(const Source *s, const Tokens *t, int shift,
                         ArrayHead *h) {
    enum { PART = 4096 };
    uint32_t part[PART];
    int n = 0;
    uint64_t done = 0;
    h->copy = source_copy();
    if (h->copy < 0) return source_copy_failed(s);
    for (int i = shift; i < t->at.len; i++) {
        part[n++] = (uint32_t)t->at.data[i];
        if (n < PART && i + 1 < t->at.len) continue;
        if (!source_put(h->copy, part, (size_t)n * sizeof *part, done))
            return source_copy_failed(s);
        done += (uint64_t)n * sizeof *part;
        n = 0;
    }
    h->dtype = AMPC_DTYPE_U32;
    h->rank = 1;
    h->dim[0] = t->at.len ? t->at.len - 1 : 0;
    h->windows = h->found = true;
    return OK;
}

static Status split_whole(Arena *a, const Source *s, const ArrayPick *pick,
                          int shift, char *text, ArrayHead *h) {
    Vocabulary v;
    Tokens tokens = {.a = a};
    TRY(source_get(s, text, s->size, 0));
    text[s->size] = 0;
    if (strlen(text) != s->size)
        return source_bad(s, "has a byte 0 at %zu, where a text has none",
                          strlen(text));
    TRY(vocabulary_open(a, s->d, pick->vocabulary, -1, &v));
    TRY(vocabulary_encode(&v, s->d, s->path, text, &tokens));
    return put_tokens(s, &tokens, shift, h);
}

/* A part is +1 at most. */
static Status split_text(const Source *s, const ArrayPick *pick, ArrayHead *h) {
    bool shift = pick->part && !strcmp(pick->part, "+1");
    if (pick->part && !shift)
        return source_bad(s,
                          "'%s': tokens of --vocabulary are taken from the "
                          "first on, or with +1 from the second (FILE.txt:+1)",
                          pick->part);
    Arena *a = arena_new();
    char *text = malloc((size_t)s->size + 1);
    Status st = text ? split_whole(a, s, pick, shift, text, h)
                     : source_bad(s, "out of memory");
    if (st != OK && h->copy >= 0) {
        close(h->copy);
        h->copy = -1;
    }
    free(text);
    arena_free(a);
    return st;
}

/* ---- the file ------------------------------------------------------------ */

static Status tokens_find(Source *s, const ArrayPick *pick, ArrayHead *h) {
    int32_t magic = 0;
    int shift;
    if (s->packed) return source_bad(s, "gzipped tokens are not read");
    size_t n = strlen(s->path);
    bool text = n > 4 && !strcmp(s->path + n - 4, ".txt");
    if (text && pick->vocabulary) return split_text(s, pick, h);
    h->dtype = text ? AMPC_DTYPE_U8 : AMPC_DTYPE_U16;
    if (!text && h->head_bytes >= LLMC_HEADER) memcpy(&magic, h->head, 4);
    if (magic == LLMC_U16 || magic == LLMC_U32) {
        h->data = LLMC_HEADER;
        if (magic == LLMC_U32) h->dtype = AMPC_DTYPE_U32;
    }
    TRY(tokens_take_part(s, pick->part, h, &shift));
    uint64_t size = dtype_bytes((uint32_t)h->dtype), bytes = s->size - h->data;
    if (bytes % size)
        return source_bad(s, "%llu bytes are not a whole number of %s tokens",
                          (unsigned long long)bytes, dtype_info[h->dtype].text);
    h->rank = 1;
    h->dim[0] = bytes ? (int64_t)(bytes / size) - 1 : 0;
    h->data += (size_t)shift * size;
    h->windows = h->found = true;
    return OK;
}

const ArrayFormat tokens_format = {
    .name = "tokens (.bin)", .end = ".bin", .find = tokens_find};
const ArrayFormat text_format = {
    .name = "text (.txt)", .end = ".txt", .find = tokens_find};
