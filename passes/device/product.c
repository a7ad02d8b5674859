/* SPDX-License-Identifier: Apache-2.0 */
/* product.c: see product.h.

   An operation is fused only if every rounding stays: nothing may be rounded
   between the product and the next operations, so the product itself is fp32.
   The library's relu is left alone: its result for NaN is not documented, and a
   NaN
   must not go unseen.                                                    */
#include "passes/device/product.h"

/* ---- sizes --------------------------------------------------------------- */

static int64_t batch_stride(const Type *t, int rank, int d, int64_t each) {
    int64_t s = each;
    int own = d - (rank - t->rank);
    if (own < 0 || t->dim[own] == 1) return 0;
    for (int e = own + 1; e < t->rank - 2; e++) s *= t->dim[e];
    return s;
}

void product_shape(const Node *n, LibGemm *p, const Type *const *t) {
    const Type *x = t[0], *w = t[1], *y = t[2];
    bool ta = attr_int(n, AK_trans_a) != 0;
    bool tb = attr_int(n, AK_trans_b) != 0;
    p->m = y->dim[y->rank - 2];
    p->n = y->dim[y->rank - 1];
    p->k = x->dim[x->rank - (ta ? 2 : 1)];
    p->a_rs = ta ? 1 : p->k;
    p->a_cs = ta ? p->m : 1;
    p->b_rs = tb ? 1 : p->n;
    p->b_cs = tb ? p->k : 1;
    for (int d = 0; d < y->rank - 2; d++) {
        int64_t size = y->dim[d], j = p->nbatch_dim - 1;
        int64_t as = batch_stride(x, y->rank, d, p->m * p->k);
        int64_t bs = batch_stride(w, y->rank, d, p->k * p->n);
        if (size == 1) continue;
        if (j >= 0 && p->a_bs[j] == as * size && p->b_bs[j] == bs * size) {
            p->batch_dim[j] *= size; /* merged with the dim before */
        } else {
            j = p->nbatch_dim++;
            p->batch_dim[j] = size;
        }
        p->a_bs[j] = as;
        p->b_bs[j] = bs;
    }
    /* if the rows of A follow each other over the batch and B is the same,
       the batch is one product: [b,t,k] x [k,n] has b t rows */
    for (int64_t j; (j = p->nbatch_dim - 1) >= 0; p->nbatch_dim--) {
        if (p->b_bs[j] != 0 || p->a_bs[j] != p->m * p->a_rs) break;
        p->m *= p->batch_dim[j];
        p->batch_dim[j] = p->a_bs[j] = 0;
    }
}

/* True if, in a rows x cols matrix, rows or columns are contiguous and do
   not overlap. */
static bool plain_matrix(int64_t rows, int64_t cols, int64_t rs, int64_t cs) {
    return (cs == 1 && rs >= cols) || (rs == 1 && cs >= rows);
}

bool product_fits_types(int64_t a, int64_t b, int64_t out) {
    if (a == DT_F64) return b == DT_F64 && out == DT_F64;
    if (lib_is_eight(a))
        return lib_is_eight(b) && (a == DT_F8E4M3 || b == DT_F8E4M3) &&
               (out == DT_F32 || dtype_is_low(out));
    if (a != b || (a != DT_F32 && !dtype_is_low(a))) return false;
    return out == a || out == DT_F32;
}

/* Rows of codes begin at 16 bytes, and sums have their elements side by side.
 */
static bool eights_lie_well(const LibGemm *p) {
    return p->a_cs == 1 && p->b_rs == 1 && p->m % 16 == 0 && p->n % 16 == 0 &&
           p->k % 16 == 0;
}

static bool fits_int(int64_t n) { return n > 0 && n <= INT32_MAX; }

/* The limit of a grid's third dim; more are refused (INVALID_VALUE). */
static bool fits_batch(int64_t n) { return n > 0 && n <= 65535; }

bool product_fits(const LibGemm *p) {
    return fits_int(p->m) && fits_int(p->n) && fits_int(p->k) &&
           p->nbatch_dim <= 1 &&
           (!p->nbatch_dim || fits_batch(p->batch_dim[0])) &&
           product_fits_types(p->a_dtype, p->b_dtype, p->c_dtype) &&
           (!lib_is_eight(p->a_dtype) || eights_lie_well(p)) &&
           plain_matrix(p->m, p->k, p->a_rs, p->a_cs) &&
           plain_matrix(p->k, p->n, p->b_rs, p->b_cs);
}

bool product_is_library(const Graph *g, const Node *n) {
    if (n->op != OP_MATMUL) return false;
    const Type *t[] = {value_type(g, n->in[0]), value_type(g, n->in[1]),
                       value_type(g, n->out[0])};
    LibGemm p = {
        .a_dtype = t[0]->dtype, .b_dtype = t[1]->dtype, .c_dtype = t[2]->dtype};
    product_shape(n, &p, t);
    return product_fits(&p);
}

/* ---- what follows -------------------------------------------------------- */

/* The operand beside v of n, a sum or product of two. */
static ValueId operand_beside(const Node *n, ValueId v) {
    return same_value(n->in[0], v) ? n->in[1] : n->in[0];
}

/* How n adds to y, the product's result with or without its scale; out: the
   stored dtype. */
static PlanProduct product_sum(const Graph *g, ValueId y, const Node *n,
                               ValueId with, bool eights, DType out) {
    const Type *t = value_type(g, with), *x = value_type(g, y);
    int64_t columns = x->dim[x->rank - 1];
    bool line = columns > 1 && t->rank > 0 && type_count(t) == columns &&
                t->dim[t->rank - 1] == columns;
    if (n->op != OP_ADD || t->dtype != out) return PLAN_PRODUCT_PLAIN;
    if (shape_equal(t, x)) return PLAN_PRODUCT_ADD;
    /* the library's bias has 16 bits if factors have 8 */
    return line && (!eights || out != DT_F32) ? PLAN_PRODUCT_BIAS
                                              : PLAN_PRODUCT_PLAIN;
}

static bool product_scaled(const Graph *g, const Node *n, ValueId with) {
    const Type *t = value_type(g, with);
    return n->op == OP_MUL && t->dtype == DT_F32 && type_count(t) == 1 &&
           !value_is_immediate(g, with);
}

ProductEnd product_end(const Graph *g, const Node *product, const NodeId *after,
                       int n) {
    ProductEnd none = {.how = PLAN_PRODUCT_PLAIN}, end = none;
    ValueId y = product->out[0];
    if (n < 1 || n > PRODUCT_MOST_AFTER) return none;
    DType in = value_dtype(g, product->in[0]),
          out = value_dtype(g, node_get(g, after[n - 1])->out[0]);
    bool eights = lib_is_eight(in), blocks = product->nin > 2;
    if (!product_fits_types(in, value_dtype(g, product->in[1]), out) ||
        (n > 1 && (!eights || blocks)))
        return none;
    for (int i = 0; i < n; i++) {
        const Node *x = node_get(g, after[i]);
        if ((x->op != OP_ADD && x->op != OP_MUL) ||
            same_value(x->in[0], x->in[1]) || value_dtype(g, y) != DT_F32)
            return none;
        ValueId with = operand_beside(x, y);
        PlanProduct sum = product_sum(g, y, x, with, eights, out);
        if (i == 0 && !blocks && product_scaled(g, x, with) &&
            (out == DT_F32 || eights)) {
            end.how = PLAN_PRODUCT_SCALE;
            end.scale = view_root(g, with);
        } else if (i == n - 1 && sum != PLAN_PRODUCT_PLAIN) {
            bool bias = sum == PLAN_PRODUCT_BIAS;
            end.how = n == 1 ? sum
                      : bias ? PLAN_PRODUCT_SCALE_BIAS
                             : PLAN_PRODUCT_SCALE_ADD;
            end.add = view_root(g, with);
        } else {
            return none;
        }
        y = x->out[0];
    }
    return end;
}
