/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_write.c: variables of a session to a file; see checkpoint.h. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/api/session.h"
#include "runtime/base/try.h"
#include "runtime/files/checkpoint.h"
#include "runtime/base/crc.h"
#include "runtime/base/utf8.h"
#include "runtime/files/outfile.h"
#include "runtime/program/quantized.h"

enum { PART = 256 << 10 };

/* ---- text that grows ----------------------------------------------------- */

static bool text_room(Text *t, size_t more) {
    if (t->failed) return false;
    if (t->cap - t->n > more) return true;
    size_t cap = t->cap ? t->cap * 2 : 4096;
    while (cap - t->n <= more) cap *= 2;
    char *p = mem_alloc(t->s, cap);
    if (!p) {
        t->failed = true;
        return false;
    }
    if (t->p) memcpy(p, t->p, t->n + 1);
    mem_free(t->s, t->p, t->cap);
    t->p = p;
    t->cap = cap;
    return true;
}

void text_put(Text *t, const char *p, size_t n) {
    if (!text_room(t, n)) return;
    memcpy(t->p + t->n, p, n);
    t->n += n;
    t->p[t->n] = 0;
}

void text_printf(Text *t, const char *fmt, ...) {
    char buf[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(buf, sizeof buf, fmt, ap);
    va_end(ap);
    if (n > 0) text_put(t, buf, (size_t)n < sizeof buf ? (size_t)n : 511);
}

/* An invalid UTF-8 byte becomes the character of that number (Latin-1): a
   header must be UTF-8 whatever names contain. */
static size_t put_character(Text *t, const char *p, const char *end) {
    size_t n = utf8_length(p, end);
    if (n == 0) text_printf(t, "\\u%04x", (unsigned char)*p);
    text_put(t, p, n);
    return n ? n : 1;
}

void text_quoted(Text *t, const char *p) {
    const char *end = p + strlen(p);
    text_put(t, "\"", 1);
    while (p < end) {
        if (*p == '"' || *p == '\\') text_put(t, "\\", 1);
        if ((unsigned char)*p < 0x20)
            text_printf(t, "\\u%04x", (unsigned char)*p++);
        else
            p += put_character(t, p, end);
    }
    text_put(t, "\"", 1);
}

void text_json(Text *t, const char *json) {
    const char *end = json + strlen(json);
    while (json < end) json += put_character(t, json, end);
}

void text_free(Text *t) {
    mem_free(t->s, t->p, t->cap);
    t->p = NULL;
    t->n = t->cap = 0;
}

/* ---- writing ------------------------------------------------------------- */

static void st_put_header(Text *t, const StItem *items, size_t n,
                          const StOutput *out) {
    unsigned long long at = 0;
    text_printf(t, "{\"__metadata__\":{\"" ST_CRC_KEY "\":\"%0*d\",\"%s\":",
                ST_CRC_DIGITS, 0, out->key);
    text_quoted(t, out->metadata);
    text_printf(t, "}");
    for (size_t i = 0; i < n; i++) {
        text_printf(t, ",");
        text_quoted(t, st_name_in_file(items[i].name));
        text_printf(t, ":{\"dtype\":\"%s\",\"shape\":[",
                    dtype_info[items[i].dtype].safetensors);
        for (uint32_t k = 0; k < items[i].rank; k++)
            text_printf(t, "%s%lld", k ? "," : "", (long long)items[i].dim[k]);
        text_printf(t, "],\"data_offsets\":[%llu,%llu]}", at,
                    at + (unsigned long long)items[i].bytes);
        at += items[i].bytes;
    }
    text_printf(t, "}");
    while (t->n % 8 && !t->failed) text_put(t, " ", 1);
}

/* Room for what a CRC is taken of, and for codes that become it. */
typedef struct SummedWrite {
    _Alignas(8) char part[PART];
    char codes[PART / 4];
    float scales[PART / 4 / QUANTIZED_BLOCK];
} SummedWrite;

/* A file being written, and its CRC so far. */
typedef struct StOut {
    ampc_session *s;
    const char *path;
    SummedWrite *sum;
    uint32_t crc;
    OutFile file;
} StOut;

static ampc_status out_failed(StOut *o) {
    return session_fail(o->s, AMPC_ERR_FILE, "%s: %s", o->path, o->file.why);
}

static ampc_status out_put(StOut *o, const void *data, uint64_t n) {
    if (!outfile_write(&o->file, data, n)) return out_failed(o);
    o->crc = crc_add(o->crc, data, n);
    return AMPC_OK;
}

static ampc_status get(StOut *o, uint32_t var, uint64_t at, void *to,
                       uint64_t n) {
    return o->s->backend->get(o->s, var_ref(var, at), to, n);
}

/* n bytes of f32 at `at`, both of whole blocks but at the end. */
static ampc_status get_wide(StOut *o, const StItem *item, uint64_t at,
                            uint64_t n) {
    SummedWrite *w = o->sum;
    uint64_t first = at / 4, some = n / 4;
    uint64_t in_byte = item->code == QUANTIZED_INT8 ? 1 : 2;
    uint64_t blocks = (uint64_t)quantized_blocks((int64_t)some);
    ampc_status status = get(o, item->var, first / in_byte, w->codes,
                             (some + in_byte - 1) / in_byte);
    if (status == AMPC_OK)
        status = get(o, (uint32_t)item->scales, first / QUANTIZED_BLOCK * 4,
                     w->scales, blocks * 4);
    for (uint64_t i = 0; i < some && status == AMPC_OK; i++) {
        float x = quantized_level(item->code, w->codes, (int64_t)i) *
                  w->scales[i / QUANTIZED_BLOCK];
        memcpy(w->part + i * 4, &x, 4);
    }
    return status;
}

static ampc_status out_item(StOut *o, const StItem *item) {
    for (uint64_t at = 0; at < item->bytes; at += PART) {
        uint64_t n = item->bytes - at < PART ? item->bytes - at : PART;
        TRY(item->scales < 0 ? get(o, item->var, at, o->sum->part, n)
                             : get_wide(o, item, at, n));
        TRY(out_put(o, o->sum->part, n));
    }
    return AMPC_OK;
}

/* The checksum is known last, but its place is at the beginning. */
static ampc_status out_digits(StOut *o, const Text *header) {
    char digits[ST_CRC_DIGITS + 1];
    const char *key = strstr(header->p, ST_CRC_KEY);
    size_t at = 8 + (size_t)(key - header->p) + sizeof ST_CRC_KEY + 2;
    snprintf(digits, sizeof digits, "%08x", (unsigned)o->crc);
    return outfile_patch(&o->file, digits, ST_CRC_DIGITS, at) ? AMPC_OK
                                                              : out_failed(o);
}

static ampc_status out_file(StOut *o, const Text *header, const StItem *items,
                            size_t n, const char *keep) {
    uint64_t bytes = header->n;
    if (!outfile_open(&o->file, o->path, 0666, NULL, NULL))
        return out_failed(o);
    o->file.keep = keep;
    TRY(out_put(o, &bytes, 8));
    TRY(out_put(o, header->p, header->n));
    for (size_t i = 0; i < n; i++) TRY(out_item(o, &items[i]));
    TRY(out_digits(o, header));
    return outfile_commit(&o->file) ? AMPC_OK : out_failed(o);
}

ampc_status st_write(ampc_session *s, const char *path, const StItem *items,
                     size_t nitem, const StOutput *out) {
    Text header = {.s = s};
    StOut o = {.s = s, .path = path, .sum = mem_alloc(s, sizeof *o.sum)};
    ampc_status status;
    st_put_header(&header, items, nitem, out);
    if (!o.sum || header.failed)
        status = session_fail(s, AMPC_ERR_MEMORY, "%s: out of memory", path);
    else
        status = out_file(&o, &header, items, nitem, out->keep);
    outfile_abort(&o.file);
    text_free(&header);
    mem_free(s, o.sum, sizeof *o.sum);
    return status;
}
