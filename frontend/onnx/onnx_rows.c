/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_rows.c: the rows of onnx_ops.def, onnx_contrib.def, onnx_ml.def and
   onnx_ampc.def: facts about ops. Only onnx_nodes.c knows which function builds
   an op. */
#include "frontend/onnx/onnx.h"

#define ROW(nm, imin, imax, omin, omax, at, ndiff, wt, h)                      \
    .domain = DOMAIN, .name = #nm, .in_min = imin, .in_max = imax,             \
    .out_min = omin, .out_max = omax, .attrs = at, .nd = ndiff, .weight = wt,  \
    .handler = OX_##h
#define ONNX(nm, imin, imax, omin, omax, at, ndiff, wt, h, c)                  \
    {ROW(nm, imin, imax, omin, omax, at, ndiff, wt, h), .core = OP_##c},
#define ONNX_FN(nm, imin, imax, omin, omax, at, ndiff, wt, h, f, m)            \
    {ROW(nm, imin, imax, omin, omax, at, ndiff, wt, h), .core = OP_CALL,       \
     .fn = f, .map = m},
static const OxOp table[] = {
#define DOMAIN ""
#include "frontend/onnx/onnx_ops.def"
#undef DOMAIN
#define DOMAIN "com.microsoft"
#include "frontend/onnx/onnx_contrib.def"
#undef DOMAIN
#define DOMAIN "ai.onnx.ml"
#include "frontend/onnx/onnx_ml.def"
#undef DOMAIN
#define DOMAIN OX_AMPC_DOMAIN
#include "frontend/onnx/onnx_ampc.def"
#undef DOMAIN
};
#undef ROW
#undef ONNX
#undef ONNX_FN

const OxOp *ox_row(int i) {
    int n = (int)(sizeof table / sizeof *table);
    return i >= 0 && i < n ? &table[i] : NULL;
}

const OxOp *ox_op_in(Str domain, const char *name) {
    static StrMap rows; /* allocated for the life of the process */
    static Arena *a;
    if (!rows.cap) {
        a = arena_new();
        for (int i = 0; ox_row(i); i++)
            str_map_put(a, &rows,
                        internf("%s::%s", table[i].domain, table[i].name), i);
    }
    return ox_row(str_map_get(&rows, internf("%s::%s", domain, name)));
}

const OxOp *ox_op_find(const char *name) { return ox_op_in("", name); }
