/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_ml.c: ops of domain ai.onnx.ml on tables [rows, features]. Trees are
   frozen: a matrix says on which side of each node a leaf lies, and a row
   reaches the leaf whose true sides it matches (ml_trees in special.amp). */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "frontend/onnx/onnx.h"

static Status features(Ox *ox, ValueId *x) {
    return ox_cast(ox, ox_in(ox, 0), DT_F32, false, x);
}

/* A constant of rank n; data is copied. */
static Status ml_const(Ox *ox, DType d, const void *data, int rank,
                       const int64_t *dim, ValueId *out) {
    Type type = {.dtype = d, .rank = rank};
    memcpy(type.dim, dim, (size_t)rank * sizeof *dim);
    Tensor *t = NEW(ox->a, Tensor);
    t->type = type_make(d, rank, dim);
    t->data = arena_dup(ox->a, data, (size_t)type_bytes(&type));
    return ox_const(ox, t, out);
}

/* An attribute of one float, or of one for each feature. */
static Status for_features(Ox *ox, const char *name, int64_t width,
                           ValueId *out) {
    const Onnx__AttributeProto *p = ox_attr(ox, name);
    int64_t n = p ? (int64_t)p->n_floats : 0;
    if (!p || (n != 1 && n != width))
        return ox_fail(ox, "%s has %" PRId64 " elements, needs 1 or %" PRId64,
                       name, n, width);
    return ml_const(ox, DT_F32, p->floats, 1, &n, out);
}

Status onnx_ml_scaler(Ox *ox) {
    ValueId x, offset, scale;
    TRY(features(ox, &x));
    Type t = ox_type(ox, x);
    int64_t width = t.rank ? t.dim[t.rank - 1] : 1;
    if (ox_attr(ox, "offset")) {
        TRY(for_features(ox, "offset", width, &offset));
        TRY(ox2(ox, OP_SUB, x, offset, &x));
    }
    if (ox_attr(ox, "scale")) {
        TRY(for_features(ox, "scale", width, &scale));
        TRY(ox2(ox, OP_MUL, x, scale, &x));
    }
    return ox_out(ox, 0, x);
}

Status onnx_ml_imputer(Ox *ox) {
    ValueId x = ox_in(ox, 0), missing, with;
    double was = ox_float(ox, "replaced_value_float", 0);
    if (!dtype_is_float(ox_type(ox, x).dtype))
        return ox_fail(ox, "an Imputer of integers is not supported");
    Type t = ox_type(ox, x);
    TRY(for_features(ox, "imputed_value_floats", t.rank ? t.dim[t.rank - 1] : 1,
                     &with));
    if (isnan(was))
        TRY(ox1(ox, OP_ISNAN, x, &missing));
    else
        TRY(ox2k(ox, OP_EQUAL, x, was, &missing));
    TRY(ox3(ox, OP_WHERE, missing, with, x, &x));
    return ox_out(ox, 0, x);
}

Status onnx_ml_call(Ox *ox) {
    ValueId x;
    Attr attr[MAX_OP_ATTRS];
    int n;
    TRY(features(ox, &x));
    TRY(ox_mapped(ox, attr, &n));
    TRY(ox_call(ox, ox->node->op->fn, &x, 1, attr, n, 1, &x));
    return ox_out(ox, 0, x);
}

Status onnx_ml_vectorizer(Ox *ox) {
    enum { MOST = 256 };
    ValueId in[MOST], y;
    int n = ox->node->nin;
    if (n > MOST) return ox_fail(ox, "%d operands, at most %d", n, MOST);
    for (int i = 0; i < n; i++)
        TRY(ox_cast(ox, ox_in(ox, i), DT_F32, false, &in[i]));
    TRY(ox_concat(ox, in, n, 1, false, &y));
    return ox_out(ox, 0, y);
}

/* Columns by number; a vector is one row. */
Status onnx_ml_features(Ox *ox) {
    ValueId x = ox_in(ox, 0), at = ox_in(ox, 1), y;
    Type t = ox_type(ox, x), i = ox_type(ox, at);
    int64_t n = type_count(&i);
    if (!t.rank || !dtype_is_int(i.dtype))
        return ox_fail(ox, "needs features, and their numbers as integers");
    TRY(ox_reshape(ox, at, 1, &n, &at));
    Attr axis = attr_i(AK_axis, t.rank - 1);
    TRY(ox_op(ox, OP_GATHER, (ValueId[]){x, at}, 2, &axis, 1, &y));
    if (t.rank == 1) TRY(ox_reshape(ox, y, 2, (int64_t[]){1, n}, &y));
    return ox_out(ox, 0, y);
}

/* The list of an encoder's numbers, as a constant vector. */
static Status encoder_list(Ox *ox, const char *which, ValueId *out,
                           int64_t *n) {
    const Onnx__AttributeProto *f = ox_attr(ox, internf("%s_floats", which));
    const int64_t *v;
    *n = ox_ints(ox, internf("%s_int64s", which), &v);
    if (*n > 0) return ml_const(ox, DT_I64, v, 1, n, out);
    *n = f ? (int64_t)f->n_floats : 0;
    if (*n > 0) return ml_const(ox, DT_F32, f->floats, 1, n, out);
    return ox_fail(
        ox,
        "%s_int64s and %s_floats are empty: only numbers are encoded "
        "as numbers; encode texts before the model",
        which, which);
}

Status onnx_ml_encoder(Ox *ox) {
    ValueId x = ox_in(ox, 0), keys, values, same, at, y;
    int64_t nkey, nvalue;
    TRY(encoder_list(ox, "keys", &keys, &nkey));
    TRY(encoder_list(ox, "values", &values, &nvalue));
    Type t = ox_type(ox, x);
    DType to = ox_type(ox, values).dtype;
    if (nkey != nvalue)
        return ox_fail(ox, "%" PRId64 " keys and %" PRId64 " values", nkey,
                       nvalue);
    if (t.rank >= MAX_RANK) return ox_fail(ox, "an operand of rank %d", t.rank);
    double other = to == DT_I64 ? (double)ox_int(ox, "default_int64", -1)
                                : ox_float(ox, "default_float", -0.0);
    TRY(ox_cast(ox, x, ox_type(ox, keys).dtype, false, &x));
    t.dim[t.rank] = 1;
    TRY(ox_reshape(ox, x, t.rank + 1, t.dim, &x));
    TRY(ox2(ox, OP_EQUAL, x, keys, &same));
    TRY(ox_cast(ox, same, DT_I32, false, &same));
    Attr first[] = {attr_i(AK_axis, t.rank), attr_named_i("keepdims", 0)};
    TRY(ox_op(ox, OP_ARGMAX, &same, 1, first, 2, &at));
    Attr axis = attr_i(AK_axis, 0);
    TRY(ox_op(ox, OP_GATHER, (ValueId[]){values, at}, 2, &axis, 1, &y));
    int64_t last = t.rank;
    TRY(ox_reduce(ox, OP_REDUCE_MAX, same, &last, 1, false, &same));
    TRY(ox_cast(ox, same, DT_BOOL, false, &same));
    TRY(ox3(ox, OP_WHERE, same, y, ox_scalar(ox, to, other), &y));
    return ox_out(ox, 0, y);
}

/* Scores as post_transform says. */
static Status transformed(Ox *ox, ValueId *y) {
    Str how = ox_str(ox, "post_transform", "NONE");
    if (!strcmp(how, "LOGISTIC")) return ox1(ox, OP_SIGMOID, *y, y);
    if (!strcmp(how, "SOFTMAX"))
        return ox_call(ox, "softmax", y, 1, NULL, 0, 1, y);
    return !strcmp(how, "NONE")
               ? OK
               : ox_fail(ox, "post_transform %s is not supported",
                         ox_quote(ox, how));
}

/* ---- support vectors ----------------------------------------------------- */

/* Attribute `name` as an f32 constant of that shape. */
static Status svm_matrix(Ox *ox, const char *name, int64_t rows, int64_t cols,
                         ValueId *out) {
    const Onnx__AttributeProto *p = ox_attr(ox, name);
    if (!p || rows < 1 || cols < 1 || (int64_t)p->n_floats % rows ||
        (int64_t)p->n_floats / rows != cols)
        return ox_fail(ox,
                       "%s has %zu elements, needs %" PRId64 " of %" PRId64
                       " features",
                       name, p ? p->n_floats : 0, rows, cols);
    return ml_const(ox, DT_F32, p->floats, 2, (int64_t[]){rows, cols}, out);
}

/* Without vectors each feature has a coefficient. */
Status onnx_ml_svm(Ox *ox) {
    const Onnx__AttributeProto *p = ox_attr(ox, "kernel_params"),
                               *rho = ox_attr(ox, "rho");
    ValueId in[3], y;
    TRY(features(ox, &in[0]));
    Type t = ox_type(ox, in[0]);
    int64_t n = ox_int(ox, "n_supports", 0), wide = t.dim[1];
    if (t.rank != 2) return ox_fail(ox, "an operand of rank %d", t.rank);
    if (!rho || rho->n_floats != 1) return ox_fail(ox, "rho is not one number");
    if (p && p->n_floats && p->n_floats != 3)
        return ox_fail(ox, "kernel_params has %zu elements, needs 3",
                       p->n_floats);
    if (n > 0) TRY(svm_matrix(ox, "support_vectors", n, wide, &in[1]));
    TRY(svm_matrix(ox, "coefficients", n > 0 ? n : wide, 1, &in[2]));
    if (n > 0) {
        const float none[3] = {0},
                    *number = p && p->n_floats ? p->floats : none;
        Attr attr[] = {attr_s(attr_key("kernel", ATTR_STR),
                              ox_str(ox, "kernel_type", "LINEAR")),
                       attr_named_f("gamma", number[0]),
                       attr_named_f("coef0", number[1]),
                       attr_named_f("degree", number[2])};
        TRY(ox_call(ox, "ml_kernel", in, 2, attr, 4, 1, &in[0]));
    }
    TRY(ox2(ox, OP_MATMUL, in[0], in[2], &y));
    TRY(ox2k(ox, OP_ADD, y, (double)rho->floats[0], &y));
    if (ox_int(ox, "one_class", 0)) {
        ValueId inside;
        TRY(ox2k(ox, OP_GREATER, y, 0, &inside));
        TRY(ox3(ox, OP_WHERE, inside, ox_scalar(ox, DT_F32, 1),
                ox_scalar(ox, DT_F32, -1), &y));
    }
    TRY(transformed(ox, &y));
    return ox_out(ox, 0, y);
}

/* ---- trees --------------------------------------------------------------- */

enum { MAX_TREE_ELEMENTS = 1 << 25 }; /* of the largest table */

/* The attributes of an ensemble. */
typedef struct Trees {
    int64_t n, targets, trees, width, height;
    const int64_t *tree, *node, *feature, *yes, *no;
    const float *value;
    const Onnx__AttributeProto *mode, *unknown;
    StrMap at;     /* "tree/node": its index */
    Str kind;      /* of all inner nodes */
    bool one;      /* all weights are for one of two classes */
    int *slot;     /* by index: its number among the tree's nodes or leaves */
    int64_t *of;   /* by index: the number of its tree */
    bool *entered; /* by index: a parent leads to it */
} Trees;

static Status tree_ints(Ox *ox, const char *name, int64_t n,
                        const int64_t **v) {
    int have = ox_ints(ox, name, v);
    return have == n ? OK
                     : ox_fail(ox, "%s has %d elements, needs %" PRId64, name,
                               have < 0 ? 0 : have, n);
}

static bool tree_leaf(const Trees *t, int64_t i) {
    const ProtobufCBinaryData *s = &t->mode->strings[i];
    return s->len == 4 && !memcmp(s->data, "LEAF", 4);
}

static int tree_index(const Trees *t, int64_t tree, int64_t node) {
    return str_map_get(&t->at, internf("%" PRId64 "/%" PRId64, tree, node));
}

/* Numbers trees, and the nodes and leaves of each. */
static Status tree_slots(Ox *ox, Trees *t) {
    StrMap number = {0};
    VEC(int) nodes = {0}, leaves = {0};
    for (int64_t i = 0; i < t->n; i++) {
        Str key = internf("%" PRId64, t->tree[i]);
        int k = str_map_get(&number, key);
        if (k < 0) {
            str_map_put(ox->scratch, &number, key, k = nodes.len);
            vec_push(ox->scratch, &nodes, 0);
            vec_push(ox->scratch, &leaves, 0);
        }
        if (tree_index(t, t->tree[i], t->node[i]) >= 0)
            return ox_fail(ox, "tree %" PRId64 " has node %" PRId64 " twice",
                           t->tree[i], t->node[i]);
        str_map_put(ox->scratch, &t->at,
                    internf("%" PRId64 "/%" PRId64, t->tree[i], t->node[i]),
                    (int)i);
        t->of[i] = k;
        t->slot[i] = tree_leaf(t, i) ? leaves.data[k]++ : nodes.data[k]++;
    }
    t->trees = nodes.len;
    for (int k = 0; k < nodes.len; k++) {
        if (nodes.data[k] > t->width) t->width = nodes.data[k];
        if (leaves.data[k] > t->height) t->height = leaves.data[k];
    }
    if (!t->width) t->width = 1; /* trees of a leaf alone */
    if (!t->height) return ox_fail(ox, "its trees have no leaves");
    return t->trees <= MAX_TREE_ELEMENTS / t->width / t->height
               ? OK
               : ox_fail(ox,
                         "%" PRId64 " trees of up to %" PRId64
                         " nodes and %" PRId64 " leaves need more than %d "
                         "elements: train with fewer or smaller trees",
                         t->trees, t->width, t->height, MAX_TREE_ELEMENTS);
}

static Status tree_nodes(Ox *ox, Trees *t) {
    const Onnx__AttributeProto *value = ox_attr(ox, "nodes_values");
    t->mode = ox_attr(ox, "nodes_modes");
    t->n = t->mode ? (int64_t)t->mode->n_strings : 0;
    if (t->n < 1 || !value || (int64_t)value->n_floats != t->n)
        return ox_fail(ox, "nodes_values has %zu elements, needs %" PRId64,
                       value ? value->n_floats : 0, t->n);
    t->value = value->floats;
    TRY(tree_ints(ox, "nodes_treeids", t->n, &t->tree));
    TRY(tree_ints(ox, "nodes_nodeids", t->n, &t->node));
    TRY(tree_ints(ox, "nodes_featureids", t->n, &t->feature));
    TRY(tree_ints(ox, "nodes_truenodeids", t->n, &t->yes));
    TRY(tree_ints(ox, "nodes_falsenodeids", t->n, &t->no));
    t->unknown = ox_attr(ox, "nodes_missing_value_tracks_true");
    t->slot = NEW_ARRAY(ox->scratch, int, t->n);
    t->of = NEW_ARRAY(ox->scratch, int64_t, t->n);
    t->entered = NEW_ARRAY(ox->scratch, bool, t->n);
    for (int64_t i = 0; i < t->n; i++) {
        if (tree_leaf(t, i)) continue;
        Str kind = intern_n((const char *)t->mode->strings[i].data,
                            t->mode->strings[i].len);
        if (t->kind && t->kind != kind)
            return ox_fail(ox,
                           "nodes_modes has %s beside %s: one kind of "
                           "comparison in all nodes is supported",
                           ox_quote(ox, kind), ox_quote(ox, t->kind));
        t->kind = kind;
    }
    if (!t->kind) t->kind = intern("BRANCH_LEQ");
    return tree_slots(ox, t);
}

/* Marks the leaves below node i, whose way from the root has `depth` nodes. */
static Status tree_below(Ox *ox, const Trees *t, int64_t i, int64_t *way,
                         bool *side, int depth, float *path, float *turns) {
    if (tree_leaf(t, i)) {
        int64_t leaf = t->of[i] * t->height + t->slot[i];
        turns[leaf] = 0;
        for (int d = 0; d < depth; d++) {
            int64_t row = t->of[i] * t->width + t->slot[way[d]];
            path[row * t->height + t->slot[i]] = side[d] ? 1 : -1;
            turns[leaf] += side[d] ? 1 : 0;
        }
        return OK;
    }
    if (depth >= 1024) return ox_fail(ox, "a tree of more than 1024 levels");
    way[depth] = i;
    for (int k = 0; k < 2; k++) {
        int64_t next = k ? t->yes[i] : t->no[i];
        int to = tree_index(t, t->tree[i], next);
        if (to < 0 || t->entered[to])
            return ox_fail(ox,
                           "node %" PRId64 " of tree %" PRId64
                           " leads to node %" PRId64 ", which %s",
                           t->node[i], t->tree[i], next,
                           to < 0 ? "is not there" : "has another parent");
        t->entered[to] = true;
        side[depth] = k;
        TRY(tree_below(ox, t, to, way, side, depth + 1, path, turns));
    }
    return OK;
}

/* Fills the leaves' weights, [trees, leaves, targets]. */
static Status tree_weights(Ox *ox, const Trees *t, const char *kind,
                           float *weight) {
    const int64_t *tree, *node, *id;
    const Onnx__AttributeProto *w = ox_attr(ox, internf("%s_weights", kind));
    int64_t n = w ? (int64_t)w->n_floats : 0;
    TRY(tree_ints(ox, internf("%s_treeids", kind), n, &tree));
    TRY(tree_ints(ox, internf("%s_nodeids", kind), n, &node));
    TRY(tree_ints(ox, internf("%s_ids", kind), n, &id));
    for (int64_t k = 0; k < n; k++) {
        int i = tree_index(t, tree[k], node[k]);
        int64_t target = t->one ? 0 : id[k];
        if (i < 0 || !tree_leaf(t, i) || target < 0 || target >= t->targets)
            return ox_fail(ox,
                           "%s_weights: entry %" PRId64 " is for target "
                           "%" PRId64 " of node %" PRId64 " of tree %" PRId64
                           ", needs a leaf and one of %" PRId64 " targets",
                           kind, k, id[k], node[k], tree[k], t->targets);
        weight[(t->of[i] * t->height + t->slot[i]) * t->targets + target] +=
            w->floats[k];
    }
    return OK;
}

/* Sums over the trees, [rows, targets]. */
static Status tree_sums(Ox *ox, Trees *t, const char *kind, ValueId *y) {
    int64_t nodes = t->trees * t->width, leaves = t->trees * t->height;
    if (t->targets > MAX_TREE_ELEMENTS / leaves)
        return ox_fail(ox,
                       "%" PRId64 " leaves for %" PRId64 " targets need "
                       "more than %d elements",
                       leaves, t->targets, MAX_TREE_ELEMENTS);
    int64_t *feature = NEW_ARRAY(ox->scratch, int64_t, nodes), way[1024];
    float *value = NEW_ARRAY(ox->scratch, float, nodes),
          *unknown = NEW_ARRAY(ox->scratch, float, nodes),
          *path = NEW_ARRAY(ox->scratch, float, nodes * t->height),
          *turns = NEW_ARRAY(ox->scratch, float, leaves),
          *weight = NEW_ARRAY(ox->scratch, float, leaves * t->targets);
    bool side[1024];
    ValueId in[7];
    TRY(features(ox, &in[0]));
    Type x = ox_type(ox, in[0]);
    if (x.rank != 2) return ox_fail(ox, "an operand of rank %d", x.rank);
    for (int64_t i = 0; i < leaves; i++) turns[i] = -1; /* no leaf */
    for (int64_t i = 0; i < t->n; i++) {
        if (tree_leaf(t, i)) continue;
        int64_t k = t->of[i] * t->width + t->slot[i];
        if (t->feature[i] < 0 || t->feature[i] >= x.dim[1])
            return ox_fail(ox, "feature %" PRId64 " of %" PRId64, t->feature[i],
                           x.dim[1]);
        feature[k] = t->feature[i];
        value[k] = t->value[i];
        unknown[k] = t->unknown && (int64_t)t->unknown->n_ints == t->n &&
                     t->unknown->ints[i];
    }
    bool *first = NEW_ARRAY(ox->scratch, bool, t->trees);
    for (int64_t i = 0; i < t->n; i++) /* a tree begins with its root */
        if (!first[t->of[i]]) {
            first[t->of[i]] = t->entered[i] = true;
            TRY(tree_below(ox, t, i, way, side, 0, path, turns));
        }
    TRY(tree_weights(ox, t, kind, weight));
    int64_t rows[] = {t->trees, t->width},
            sides[] = {t->trees, t->width, t->height},
            sums[] = {t->trees, t->height, t->targets};
    TRY(ml_const(ox, DT_I64, feature, 2, rows, &in[1]));
    TRY(ml_const(ox, DT_F32, value, 2, rows, &in[2]));
    TRY(ml_const(ox, DT_F32, path, 3, sides, &in[3]));
    TRY(ml_const(ox, DT_F32, turns, 2, (int64_t[]){t->trees, t->height},
                 &in[4]));
    TRY(ml_const(ox, DT_F32, weight, 3, sums, &in[5]));
    TRY(ml_const(ox, DT_F32, unknown, 2, rows, &in[6]));
    Attr mode = attr_s(attr_key("mode", ATTR_STR), t->kind);
    TRY(ox_call(ox, "ml_trees", in, 7, &mode, 1, 1, y));
    Str how = ox_str(ox, "aggregate_function", "SUM");
    if (!strcmp(how, "AVERAGE"))
        TRY(ox2k(ox, OP_MUL, *y, 1.0 / (double)t->trees, y));
    else if (strcmp(how, "SUM"))
        return ox_fail(ox, "aggregate_function %s is not supported",
                       ox_quote(ox, how));
    const Onnx__AttributeProto *base = ox_attr(ox, "base_values");
    if (!base || !base->n_floats) return OK;
    TRY(for_features(ox, "base_values", t->targets, &in[0]));
    return ox2(ox, OP_ADD, *y, in[0], y);
}

/* One score of two classes becomes both: the scores of a forest, whose weights
   are all positive, add up to 1. */
static Status both_classes(Ox *ox, bool positive, ValueId *y) {
    ValueId pair[2] = {NO_VALUE, *y};
    TRY(ox1(ox, OP_NEG, *y, &pair[0]));
    if (positive && strcmp(ox_str(ox, "post_transform", "NONE"), "LOGISTIC"))
        TRY(ox2k(ox, OP_ADD, pair[0], 1, &pair[0]));
    return ox_concat(ox, pair, 2, 1, false, y);
}

/* True if all leaves speak for one class. */
static bool one_class(const Ox *ox, bool *positive) {
    const int64_t *id;
    int n = ox_ints(ox, "class_ids", &id);
    const Onnx__AttributeProto *w = ox_attr(ox, "class_weights");
    *positive = true;
    for (int i = 0; i < n; i++)
        if (id[i] != id[0]) return false;
    for (size_t i = 0; w && i < w->n_floats; i++)
        *positive &= w->floats[i] >= 0;
    return n > 0;
}

static Status put_labels(Ox *ox, ValueId scores, const int64_t *label,
                         int64_t n) {
    ValueId best, y;
    Attr axis = attr_i(AK_axis, 1);
    if (!ox_has_out(ox, 0)) return OK;
    if (!label)
        return ox_fail(ox, "its labels are texts: train on numbers instead, or "
                           "leave the label out of the file's outputs");
    TRY(ml_const(ox, DT_I64, label, 1, &n, &y));
    Attr attr[] = {axis, attr_named_i("keepdims", 0)};
    TRY(ox_op(ox, OP_ARGMAX, &scores, 1, attr, 2, &best));
    axis = attr_i(AK_axis, 0);
    TRY(ox_op(ox, OP_GATHER, (ValueId[]){y, best}, 2, &axis, 1, &y));
    return ox_out(ox, 0, y);
}

Status onnx_ml_trees(Ox *ox) {
    Trees t = {0};
    ValueId y;
    const int64_t *label = NULL;
    bool positive, regresses = ox->node->op->out_max == 1;
    TRY(tree_nodes(ox, &t));
    if (regresses) {
        t.targets = ox_int(ox, "n_targets", 1);
        if (t.targets < 1 || t.targets > INT32_MAX)
            return ox_fail(ox, "n_targets is %" PRId64, t.targets);
        TRY(tree_sums(ox, &t, "target", &y));
        TRY(transformed(ox, &y));
        return ox_out(ox, 0, y);
    }
    const Onnx__AttributeProto *text = ox_attr(ox, "classlabels_strings");
    t.targets = ox_ints(ox, "classlabels_int64s", &label);
    if (t.targets < 1) {
        label = NULL;
        t.targets = text ? (int64_t)text->n_strings : 0;
    }
    int64_t classes = t.targets;
    if (classes < 1) return ox_fail(ox, "it has no classes");
    t.one = classes == 2 && one_class(ox, &positive);
    if (t.one) t.targets = 1;
    TRY(tree_sums(ox, &t, "class", &y));
    if (t.one) TRY(both_classes(ox, positive, &y));
    TRY(put_labels(ox, y, label, classes));
    TRY(transformed(ox, &y));
    return ox_out(ox, 1, y);
}
