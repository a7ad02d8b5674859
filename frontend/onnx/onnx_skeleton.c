/* onnx_skeleton.c: an ONNX file without the tensors that a module stores as
   variables: what `ampc export` needs beside them.  Copied field by field as
   the wire has it, so that whatever else is in the file stays.              */
#include <string.h>

#include "frontend/frontend.h"

enum { MODEL_GRAPH = 7, GRAPH_INITIALIZER = 5, TENSOR_NAME = 8, BYTES = 2 };

/* Payload of a TensorProto: the typed lists, raw_data, external_data and its
   data_location. */
static const char tensor_data[] = {4, 5, 6, 7, 9, 10, 11, 13, 14};

typedef struct Field {
    uint64_t number, wire;
    const uint8_t *start, *body, *end; /* with its tag; BYTES: its content */
} Field;

static bool read_varint(const uint8_t **p, const uint8_t *end, uint64_t *v) {
    *v = 0;
    for (int shift = 0; shift < 64 && *p < end; shift += 7) {
        uint8_t byte = *(*p)++;
        *v |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return true;
    }
    return false;
}

/* The field at *p, which moves behind it. */
static bool read_field(const uint8_t **p, const uint8_t *end, Field *f) {
    uint64_t tag, n;
    f->start = *p;
    if (!read_varint(p, end, &tag)) return false;
    f->number = tag >> 3;
    f->wire = tag & 7;
    f->body = *p;
    switch (f->wire) {
    case 0:
        if (!read_varint(p, end, &n)) return false;
        n = 0;
        break;
    case 1: n = 8; break;
    case BYTES:
        if (!read_varint(p, end, &n)) return false;
        f->body = *p;
        break;
    case 5: n = 4; break;
    default: return false;
    }
    if (n > (uint64_t)(end - *p)) return false;
    f->end = *p += n;
    return true;
}

static void put_varint(StrBuf *sb, uint64_t v) {
    for (; v >= 128; v >>= 7) sb_putn(sb, (char[]){(char)(v | 128)}, 1);
    sb_putn(sb, (char[]){(char)v}, 1);
}

typedef bool StripFn(const Module *m, const uint8_t *p, const uint8_t *end,
                     StrBuf *out);

static bool put_stripped(const Module *m, const Field *f, StripFn *strip,
                         StrBuf *out) {
    StrBuf inner = {0};
    bool ok = strip(m, f->body, f->end, &inner);
    put_varint(out, f->number << 3 | BYTES);
    put_varint(out, inner.len);
    sb_putn(out, inner.data ? inner.data : "", inner.len);
    sb_free(&inner);
    return ok;
}

static bool strip_tensor(const Module *m, const uint8_t *p, const uint8_t *end,
                         StrBuf *out) {
    bool stored = false;
    Field f;
    for (const uint8_t *q = p; q < end;) {
        if (!read_field(&q, end, &f)) return false;
        if (f.number != TENSOR_NAME || f.wire != BYTES) continue;
        Str name = intern_n((const char *)f.body, (size_t)(f.end - f.body));
        stored = module_find_var(m, name) >= 0;
    }
    while (p < end) {
        read_field(&p, end, &f);
        bool data = f.number < 128 &&
                    memchr(tensor_data, (int)f.number, sizeof tensor_data);
        if (!stored || !data)
            sb_putn(out, (const char *)f.start, (size_t)(f.end - f.start));
    }
    return true;
}

static bool strip_fields(const Module *m, const uint8_t *p, const uint8_t *end,
                         uint64_t number, StripFn *strip, StrBuf *out) {
    Field f;
    while (p < end) {
        if (!read_field(&p, end, &f)) return false;
        if (f.number != number || f.wire != BYTES)
            sb_putn(out, (const char *)f.start, (size_t)(f.end - f.start));
        else if (!put_stripped(m, &f, strip, out))
            return false;
    }
    return true;
}

static bool strip_graph(const Module *m, const uint8_t *p, const uint8_t *end,
                        StrBuf *out) {
    return strip_fields(m, p, end, GRAPH_INITIALIZER, strip_tensor, out);
}

bool onnx_skeleton(const Module *m, const void *model, size_t n, StrBuf *out) {
    const uint8_t *p = model;
    return strip_fields(m, p, p + n, MODEL_GRAPH, strip_graph, out);
}
