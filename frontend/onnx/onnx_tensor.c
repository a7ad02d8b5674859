/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_tensor.c: TensorProto to Tensor.  The content is in exactly one
   place: raw_data (little-endian), the typed field of the dtype, or a file
   beside the model. */
#include <inttypes.h>
#include <string.h>

#include "frontend/onnx/onnx.h"

static const char *const onnx_dtypes[] = {
    "UNDEFINED",      "FLOAT",        "UINT8",          "INT8",
    "UINT16",         "INT16",        "INT32",          "INT64",
    "STRING",         "BOOL",         "FLOAT16",        "DOUBLE",
    "UINT32",         "UINT64",       "COMPLEX64",      "COMPLEX128",
    "BFLOAT16",       "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2",
    "FLOAT8E5M2FNUZ", "UINT4",        "INT4",           "FLOAT4E2M1",
    "FLOAT8E8M0",     "UINT2",        "INT2",           "FLOAT6E2M3",
    "FLOAT6E3M2"};

Status ox_dtype(Ox *ox, int code, const char *what, DType *out) {
    if (dtype_from_onnx(code, out)) return OK;
    int n = (int)(sizeof onnx_dtypes / sizeof *onnx_dtypes);
    if (code >= 0 && code < n)
        return ox_fail(ox, "%s: element type %s is not supported",
                       ox_quote(ox, what), onnx_dtypes[code]);
    return ox_fail(ox, "%s: unknown element type %d", ox_quote(ox, what), code);
}

Status ox_type_make(Ox *ox, const char *what, DType dtype, int rank,
                    const int64_t *dim, TypeId *out) {
    int64_t count = 1;
    if (rank > MAX_RANK)
        return ox_fail(ox, "%s has rank %d; at most %d", ox_quote(ox, what),
                       rank, MAX_RANK);
    for (int i = 0; i < rank; i++)
        if (dim[i] < 0)
            return ox_fail(ox, "%s: dimension %d is %" PRId64,
                           ox_quote(ox, what), i, dim[i]);
    for (int i = 0; i < rank; i++)
        if (!mul_ok(count, dim[i] ? dim[i] : 1, &count) ||
            count > OX_MAX_ELEMENTS)
            return ox_fail(ox, "%s has more than %" PRId64 " elements",
                           ox_quote(ox, what), OX_MAX_ELEMENTS);
    *out = type_make(dtype, rank, dim);
    return OK;
}

/* ---- typed fields -------------------------------------------------------- */

/* The number of entries in the typed field of a dtype; the other fields must
   be empty. */
static size_t typed_count(const Onnx__TensorProto *t, DType d, size_t *others) {
    size_t f = t->n_float_data, g = t->n_double_data, i = t->n_int32_data,
           l = t->n_int64_data, u = t->n_uint64_data;
    *others = f + g + i + l + u + t->n_string_data;
    size_t own = 0;
    switch (d) {
    case DT_F32: own = f; break;
    case DT_F64: own = g; break;
    case DT_I64: own = l; break;
    case DT_U32:
    case DT_U64: own = u; break;
    default: own = i; break;
    }
    *others -= own;
    return own;
}

static bool int32_fits(DType d, int32_t v) {
    switch (d) {
    case DT_BOOL: return v == 0 || v == 1;
    case DT_U8: return v >= 0 && v <= UINT8_MAX;
    case DT_I8: return v >= INT8_MIN && v <= INT8_MAX;
    case DT_I16: return v >= INT16_MIN && v <= INT16_MAX;
    case DT_U16: return v >= 0 && v <= UINT16_MAX;
    default:
        return !dtype_is_low(d) ||
               (v >= 0 && !((int64_t)v >> 8 * dtype_info[d].bytes));
    }
}

/* int32_data holds every small dtype, one element an entry; 16-bit floats as
   their bit pattern. */
static Status from_int32(Ox *ox, const Onnx__TensorProto *t, DType d,
                         const char *name, void *out) {
    for (size_t i = 0; i < t->n_int32_data; i++) {
        int32_t v = t->int32_data[i];
        if (!int32_fits(d, v))
            return ox_fail(ox,
                           "tensor '%s': entry %zu, %d, is out of range "
                           "for %s",
                           ox_quote(ox, name), i, v, dtype_info[d].text);
        switch (dtype_info[d].bytes) {
        case 1: ((uint8_t *)out)[i] = (uint8_t)v; break;
        case 2: ((uint16_t *)out)[i] = (uint16_t)v; break;
        default: ((int32_t *)out)[i] = v; break;
        }
    }
    return OK;
}

static Status from_typed(Ox *ox, const Onnx__TensorProto *t, DType d,
                         const char *name, void *out) {
    switch (d) {
    case DT_F32:
        memcpy(out, t->float_data, t->n_float_data * sizeof(float));
        return OK;
    case DT_F64:
        memcpy(out, t->double_data, t->n_double_data * sizeof(double));
        return OK;
    case DT_I64:
        memcpy(out, t->int64_data, t->n_int64_data * sizeof(int64_t));
        return OK;
    case DT_U64:
        memcpy(out, t->uint64_data, t->n_uint64_data * sizeof(uint64_t));
        return OK;
    case DT_U32:
        for (size_t i = 0; i < t->n_uint64_data; i++) {
            if (t->uint64_data[i] > UINT32_MAX)
                return ox_fail(ox,
                               "tensor '%s': entry %zu is out of range for "
                               "u32",
                               ox_quote(ox, name), i);
            ((uint32_t *)out)[i] = (uint32_t)t->uint64_data[i];
        }
        return OK;
    default: return from_int32(ox, t, d, name, out);
    }
}

/* ---- content ------------------------------------------------------------- */

static Status check_bools(Ox *ox, const char *name, const uint8_t *p,
                          int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (p[i] > 1)
            return ox_fail(ox,
                           "tensor '%s': element %" PRId64 " of a bool "
                           "tensor is %d",
                           ox_quote(ox, name), i, p[i]);
    return OK;
}

static Status wrong_size(Ox *ox, const char *name, TypeId type, size_t have,
                         size_t want, const char *unit) {
    StrBuf sb = {0};
    sb_put_type(&sb, type);
    Status s = ox_fail(ox,
                       "tensor '%s' is %s and needs %zu %s, but the file "
                       "has %zu",
                       ox_quote(ox, name), sb.data, want, unit, have);
    sb_free(&sb);
    return s;
}

static Status inline_data(Ox *ox, const Onnx__TensorProto *t, const char *name,
                          Tensor *out) {
    const Type *type = type_get(out->type);
    size_t count = (size_t)type_count(type), others;
    size_t bytes = (size_t)type_bytes(type);
    size_t own = typed_count(t, type->dtype, &others);
    if (others || (own && t->has_raw_data && t->raw_data.len))
        return ox_fail(ox,
                       "tensor '%s' has data in more than one field, or in the "
                       "field of another element type",
                       ox_quote(ox, name));
    if (own) {
        if (own != count)
            return wrong_size(ox, name, out->type, own, count, "entries");
        out->data = arena_alloc(ox->a, bytes);
        return from_typed(ox, t, type->dtype, name, out->data);
    }
    if (!t->has_raw_data && count)
        return ox_fail(ox, "tensor '%s' has no data", ox_quote(ox, name));
    size_t have = t->has_raw_data ? t->raw_data.len : 0;
    if (have != bytes)
        return wrong_size(ox, name, out->type, have, bytes, "bytes");
    out->data = have ? arena_dup(ox->a, t->raw_data.data, bytes)
                     : arena_alloc(ox->a, 1);
    return OK;
}

static bool has_inline(const Onnx__TensorProto *t) {
    return t->n_float_data || t->n_double_data || t->n_int32_data ||
           t->n_int64_data || t->n_uint64_data || t->n_string_data ||
           (t->has_raw_data && t->raw_data.len);
}

Status ox_tensor(Ox *ox, const Onnx__TensorProto *t, const char *name,
                 const Tensor **out) {
    DType d;
    Tensor *r = NEW(ox->a, Tensor);
    TRY(ox_dtype(ox, t->data_type, name, &d));
    if (t->segment)
        return ox_fail(ox,
                       "tensor '%s' is stored in segments, which is "
                       "obsolete",
                       ox_quote(ox, name));
    if (t->n_dims > MAX_RANK)
        return ox_fail(ox, "tensor '%s' has rank %zu; at most %d",
                       ox_quote(ox, name), t->n_dims, MAX_RANK);
    TRY(ox_type_make(ox, name, d, (int)t->n_dims, t->dims, &r->type));
    if (t->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL) {
        if (has_inline(t))
            return ox_fail(ox, "tensor '%s' has both external and inline data",
                           ox_quote(ox, name));
        TRY(ox_external(ox, t, name, type_bytes(type_get(r->type)), &r->data));
    } else {
        TRY(inline_data(ox, t, name, r));
    }
    if (d == DT_BOOL)
        TRY(check_bools(ox, name, r->data, type_count(type_get(r->type))));
    *out = r;
    return OK;
}

/* ---- integers of four bits ----------------------------------------------- */

bool ox_is_nibbles(const Onnx__TensorProto *t) {
    return t->data_type == ONNX__TENSOR_PROTO__DATA_TYPE__UINT4 ||
           t->data_type == ONNX__TENSOR_PROTO__DATA_TYPE__INT4;
}

Status ox_nibbles(Ox *ox, const Onnx__TensorProto *t, const char *name,
                  const Tensor **out) {
    bool sign = t->data_type == ONNX__TENSOR_PROTO__DATA_TYPE__INT4;
    Onnx__TensorProto pairs = *t;
    const Tensor *packed;
    Tensor *r = NEW(ox->a, Tensor);
    TRY(ox_type_make(ox, name, sign ? DT_I8 : DT_U8, (int)t->n_dims, t->dims,
                     &r->type));
    int64_t count = type_count(type_get(r->type)), half = (count + 1) / 2;
    pairs.data_type = ONNX__TENSOR_PROTO__DATA_TYPE__UINT8;
    pairs.n_dims = 1;
    pairs.dims = &half;
    TRY(ox_tensor(ox, &pairs, name, &packed));
    uint8_t *to = r->data = arena_alloc(ox->a, (size_t)count + 1);
    for (int64_t i = 0; i < count; i++) {
        uint8_t v = ((const uint8_t *)packed->data)[i / 2];
        v = i % 2 ? v >> 4 : v & 15;
        to[i] = sign && v > 7 ? (uint8_t)(v - 16) : v;
    }
    *out = r;
    return OK;
}

Status ox_check_nibbles(Ox *ox, const OxNode *n) {
    for (int i = 0; i < n->nin; i++) {
        const OxName *x = ox_name_of(ox, n->in[i]);
        if (!x || x->kind != OX_INIT ||
            !ox_is_nibbles(ox->inits.data[x->index].proto) ||
            n->op->handler == OX_dequantize ||
            (n->op->handler == OX_quantize && i == 2))
            continue;
        return ox_fail_node(ox, n,
                            "operand '%s' has integers of four bits, which "
                            "DequantizeLinear and QuantizeLinear alone read",
                            ox_quote(ox, n->in[i]));
    }
    return OK;
}
