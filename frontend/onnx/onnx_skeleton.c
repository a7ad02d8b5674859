/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_skeleton.c: an ONNX file without the tensors that a module stores as
   variables: `ampc export` needs the rest. It is copied field by field in
   wire format, so that unknown fields of the file stay. */
#include <string.h>

#include "frontend/frontend.h"

enum {
    MODEL_GRAPH = 7,
    GRAPH_NODE = 1,
    GRAPH_INITIALIZER = 5,
    NODE_INPUT = 1,
    NODE_OUTPUT = 2,
    NODE_OP = 4,
    NODE_ATTRIBUTE = 5,
    ATTRIBUTE_TENSOR = 5,
    TENSOR_NAME = 8,
    BYTES = 2
};

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

/* Reads the field at *p and advances *p. */
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

/* State while tensors are removed; m: the module that has them as variables. */
typedef struct Strip {
    const Module *m;
    Str name; /* name of a node's result, for a tensor in its attribute; NULL:
                 the tensor's own */
} Strip;

typedef bool StripFn(const Strip *s, const uint8_t *p, const uint8_t *end,
                     StrBuf *out);

/* Fields of a message that are messages to strip, terminated by NULL. */
typedef struct Part {
    uint64_t number;
    StripFn *strip;
} Part;

static bool put_stripped(const Strip *s, const Field *f, StripFn *strip,
                         StrBuf *out) {
    StrBuf inner = {0};
    bool ok = strip(s, f->body, f->end, &inner);
    put_varint(out, f->number << 3 | BYTES);
    put_varint(out, inner.len);
    sb_putn(out, inner.data ? inner.data : "", inner.len);
    sb_free(&inner);
    return ok;
}

static bool strip_parts(const Strip *s, const uint8_t *p, const uint8_t *end,
                        const Part *part, StrBuf *out) {
    Field f;
    while (p < end) {
        const Part *q = part;
        if (!read_field(&p, end, &f)) return false;
        while (q->strip && (q->number != f.number || f.wire != BYTES)) q++;
        if (!q->strip)
            sb_putn(out, (const char *)f.start, (size_t)(f.end - f.start));
        else if (!put_stripped(s, &f, q->strip, out))
            return false;
    }
    return true;
}

/* The last string in this field number, NULL: none; false: the bytes are not
   a message. */
static bool find_name(const uint8_t *p, const uint8_t *end, uint64_t number,
                      Str *name) {
    Field f;
    *name = NULL;
    while (p < end) {
        if (!read_field(&p, end, &f)) return false;
        if (f.number == number && f.wire == BYTES)
            *name = intern_n((const char *)f.body, (size_t)(f.end - f.body));
    }
    return true;
}

static bool strip_tensor(const Strip *s, const uint8_t *p, const uint8_t *end,
                         StrBuf *out) {
    Field f;
    Str name;
    if (!find_name(p, end, TENSOR_NAME, &name)) return false;
    if (s->name) name = s->name;
    bool stored = name && module_find_var(s->m, name) >= 0;
    while (p < end) {
        read_field(&p, end, &f);
        bool data = f.number < 128 &&
                    memchr(tensor_data, (int)f.number, sizeof tensor_data);
        if (!stored || !data)
            sb_putn(out, (const char *)f.start, (size_t)(f.end - f.start));
    }
    return true;
}

static bool strip_attribute(const Strip *s, const uint8_t *p,
                            const uint8_t *end, StrBuf *out) {
    static const Part parts[] = {{ATTRIBUTE_TENSOR, strip_tensor}, {0}};
    return strip_parts(s, p, end, parts, out);
}

/* A Constant whose result is a variable (onnx_weights_in_nodes). */
static bool strip_node(const Strip *s, const uint8_t *p, const uint8_t *end,
                       StrBuf *out) {
    static const Part parts[] = {{NODE_ATTRIBUTE, strip_attribute}, {0}};
    Strip of = {s->m, NULL};
    if (!find_name(p, end, NODE_OUTPUT, &of.name)) return false;
    if (!of.name || module_find_var(s->m, of.name) < 0) {
        sb_putn(out, (const char *)p, (size_t)(end - p));
        return true;
    }
    return strip_parts(&of, p, end, parts, out);
}

/* A graph's initializers by name; of two with one name the first. */
typedef struct Initializers {
    Arena *arena; /* NULL: not read yet */
    StrMap by_name;
    VEC(Field) list;
} Initializers;

/* Reads up to the first byte outside of a field, which strip_graph refuses. */
static void read_initializers(Initializers *all, const uint8_t *p,
                              const uint8_t *end) {
    Field t;
    Str name;
    all->arena = arena_new();
    while (p < end && read_field(&p, end, &t)) {
        if (t.number != GRAPH_INITIALIZER || t.wire != BYTES ||
            !find_name(t.body, t.end, TENSOR_NAME, &name) || !name ||
            str_map_get(&all->by_name, name) >= 0)
            continue;
        str_map_put(all->arena, &all->by_name, name, all->list.len);
        vec_push(all->arena, &all->list, t);
    }
}

/* The name of the variable that TorchScript wrote as an Identity of an equal
   tensor, *from (split_identities in onnx_names.c); NULL: the node is
   another. */
static Str copied_variable(const Strip *s, const Field *node, Str *from) {
    Str op, to;
    if (!find_name(node->body, node->end, NODE_OP, &op) || !op ||
        strcmp(op, "Identity") ||
        !find_name(node->body, node->end, NODE_OUTPUT, &to) || !to ||
        module_find_var(s->m, to) < 0 ||
        !find_name(node->body, node->end, NODE_INPUT, from) || !*from)
        return NULL;
    return to;
}

/* That variable has values of its own now: a tensor takes the node's place.
   Of two names in a message the last one counts. */
static bool put_variable(const Strip *s, const Field *t, Str name,
                         StrBuf *out) {
    StrBuf tensor = {0};
    size_t n = strlen(name);
    bool ok = strip_tensor(&(Strip){s->m, name}, t->body, t->end, &tensor);
    put_varint(&tensor, TENSOR_NAME << 3 | BYTES);
    put_varint(&tensor, n);
    sb_putn(&tensor, name, n);
    put_varint(out, GRAPH_INITIALIZER << 3 | BYTES);
    put_varint(out, tensor.len);
    sb_putn(out, tensor.data, tensor.len);
    sb_free(&tensor);
    return ok;
}

/* Writes a field of the graph at `graph`. */
static bool strip_field(const Strip *s, const Field *f, const uint8_t *graph,
                        const uint8_t *end, Initializers *all, StrBuf *out) {
    static const Part parts[] = {
        {GRAPH_NODE, strip_node}, {GRAPH_INITIALIZER, strip_tensor}, {0}};
    Str from, copied = f->number == GRAPH_NODE && f->wire == BYTES
                           ? copied_variable(s, f, &from)
                           : NULL;
    if (copied && !all->arena) read_initializers(all, graph, end);
    int at = copied ? str_map_get(&all->by_name, from) : -1;
    return at >= 0 ? put_variable(s, &all->list.data[at], copied, out)
                   : strip_parts(s, f->start, f->end, parts, out);
}

static bool strip_graph(const Strip *s, const uint8_t *p, const uint8_t *end,
                        StrBuf *out) {
    const uint8_t *graph = p;
    Initializers all = {0};
    bool ok = true;
    Field f;
    while (ok && p < end)
        ok = read_field(&p, end, &f) &&
             strip_field(s, &f, graph, end, &all, out);
    if (all.arena) arena_free(all.arena);
    return ok;
}

bool onnx_skeleton(const Module *m, const void *model, size_t n, StrBuf *out) {
    static const Part parts[] = {{MODEL_GRAPH, strip_graph}, {0}};
    const uint8_t *p = model;
    return strip_parts(&(Strip){m, NULL}, p, p + n, parts, out);
}
