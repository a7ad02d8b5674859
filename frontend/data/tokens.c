/* SPDX-License-Identifier: Apache-2.0 */
/* tokens.c: texts as token numbers. .bin: u16 or u32 (FILE.bin:u32) without a
   header, as nanoGPT writes them, or after the header of llm.c. .txt: the bytes
   themselves (also FILE:u8 of a .bin file). Samples are windows of as many
   tokens as the input takes; FILE.bin:+1 (FILE.bin:u32+1) starts each window
   one token later, as the target of next-token prediction. */
#include <string.h>

#include "frontend/data/array.h"

enum { LLMC_HEADER = 1024, LLMC_U16 = 20240520, LLMC_U32 = 20240801 };

static Status take_part(const Source *s, const char *part, ArrayHead *h,
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

static Status tokens_find(Source *s, const ArrayPick *pick, ArrayHead *h) {
    int32_t magic = 0;
    int shift;
    if (s->packed) return source_bad(s, "gzipped tokens are not read");
    size_t n = strlen(s->path);
    bool text = n > 4 && !strcmp(s->path + n - 4, ".txt");
    h->dtype = text ? AMPC_DTYPE_U8 : AMPC_DTYPE_U16;
    if (!text && h->head_bytes >= LLMC_HEADER) memcpy(&magic, h->head, 4);
    if (magic == LLMC_U16 || magic == LLMC_U32) {
        h->data = LLMC_HEADER;
        if (magic == LLMC_U32) h->dtype = AMPC_DTYPE_U32;
    }
    TRY(take_part(s, pick->part, h, &shift));
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
