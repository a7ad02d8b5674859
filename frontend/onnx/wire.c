/* SPDX-License-Identifier: Apache-2.0 */
/* wire.c: see wire.h. */
#include "frontend/onnx/wire.h"

#include <string.h>

typedef struct Walk {
    const uint8_t *base;
    size_t memory, limit; /* bytes that unpacking would allocate; their limit */
    WireError *err;
} Walk;

static bool stop(Walk *w, const uint8_t *at, const char *what) {
    w->err->offset = (size_t)(at - w->base);
    w->err->what = what;
    return false;
}

static const uint8_t *varint(const uint8_t *p, const uint8_t *end,
                             uint64_t *v) {
    *v = 0;
    for (int shift = 0; shift < 70 && p < end; shift += 7) {
        uint8_t b = *p++;
        if (shift < 64) *v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) return p;
    }
    return NULL;
}

static bool wire_walk(Walk *w, const ProtobufCMessageDescriptor *d,
                      const uint8_t *p, const uint8_t *end, int depth);

/* Checks the content of one length-delimited field. */
static bool content(Walk *w, const ProtobufCFieldDescriptor *f,
                    const uint8_t *p, const uint8_t *end, int depth) {
    switch (f ? f->type : PROTOBUF_C_TYPE_BYTES) {
    case PROTOBUF_C_TYPE_MESSAGE:
        return wire_walk(w, f->descriptor, p, end, depth + 1);
    case PROTOBUF_C_TYPE_STRING:
        if (memchr(p, 0, (size_t)(end - p)))
            return stop(w, p, "a name holds a zero byte");
        break;
    default: break;
    }
    w->memory += (size_t)(end - p) + sizeof(void *) * 2;
    return true;
}

static bool delimited(Walk *w, const ProtobufCFieldDescriptor *f,
                      const uint8_t **p, const uint8_t *end, int depth) {
    uint64_t len;
    const uint8_t *q = varint(*p, end, &len);
    if (!q) return stop(w, *p, "truncated");
    if (len > (uint64_t)(end - q)) return stop(w, q, "truncated");
    if (len > INT32_MAX) return stop(w, q, "a field of more than 2 GiB");
    *p = q + len;
    return content(w, f, q, *p, depth);
}

static bool field(Walk *w, const ProtobufCFieldDescriptor *f, int wire_type,
                  const uint8_t **p, const uint8_t *end, int depth) {
    uint64_t skip;
    bool is_block = f && (f->type == PROTOBUF_C_TYPE_MESSAGE ||
                          f->type == PROTOBUF_C_TYPE_STRING ||
                          f->type == PROTOBUF_C_TYPE_BYTES);
    if (is_block && wire_type != 2) return stop(w, *p, "a field of wrong type");
    const uint8_t *at = *p;
    switch (wire_type) {
    case 0: *p = varint(at, end, &skip); break;
    case 1: *p = end - at < 8 ? NULL : at + 8; break;
    case 2: return delimited(w, f, p, end, depth);
    case 5: *p = end - at < 4 ? NULL : at + 4; break;
    default: return stop(w, at, "not a protobuf field");
    }
    w->memory += 16;
    return *p ? true : stop(w, at, "truncated");
}

static bool wire_walk(Walk *w, const ProtobufCMessageDescriptor *d,
                      const uint8_t *p, const uint8_t *end, int depth) {
    if (depth > WIRE_MAX_DEPTH)
        return stop(w, p, "nested deeper than 64 messages");
    w->memory += d->sizeof_message + sizeof(void *);
    uint64_t seen = 0; /* fields that may occur once: protobuf-c would merge
                          repeated messages */
    while (p < end) {
        const uint8_t *at = p;
        uint64_t key;
        p = varint(p, end, &key);
        if (!p) return stop(w, at, "truncated");
        if (key >> 3 == 0 || key >> 3 > 0x1fffffff)
            return stop(w, at, "not a protobuf field");
        const ProtobufCFieldDescriptor *f =
            protobuf_c_message_descriptor_get_field(d, (unsigned)(key >> 3));
        if (f && f->type == PROTOBUF_C_TYPE_MESSAGE &&
            f->label != PROTOBUF_C_LABEL_REPEATED) {
            uint64_t bit = 1ull << ((f - d->fields) & 63);
            if (seen & bit) return stop(w, at, "a field is given twice");
            seen |= bit;
        }
        if (!field(w, f, (int)(key & 7), &p, end, depth)) return false;
        if (w->memory > w->limit)
            return stop(w, at, "far too many parts for its size");
    }
    return true;
}

static void *arena_take(void *a, size_t n) { return arena_alloc(a, n); }

static void arena_keep(void *a, void *p) {
    (void)a;
    (void)p;
}

ProtobufCMessage *wire_unpack(Arena *a, const ProtobufCMessageDescriptor *d,
                              const uint8_t *p, size_t n, WireError *e) {
    ProtobufCAllocator memory = {arena_take, arena_keep, a};
    Walk w = {.base = p, .limit = ((size_t)64 << 20) + 16 * n, .err = e};
    *e = (WireError){0};
    if (!wire_walk(&w, d, p, p + n, 1)) return NULL;
    return protobuf_c_message_unpack(d, &memory, n, p);
}

bool wire_holds(const uint8_t *p, size_t n, const char *text) {
    size_t m = strlen(text);
    const uint8_t *end = p + n;
    while (n >= m && (p = memchr(p, text[0], (size_t)(end - p)))) {
        if ((size_t)(end - p) < m) return false;
        if (!memcmp(p, text, m)) return true;
        p++;
    }
    return false;
}
