/* SPDX-License-Identifier: Apache-2.0 */
/* again.c: see again.h. */
#include "passes/again.h"

#include "passes/codes.h"
#include "passes/rewrite.h"

static ValueId again_repeated(const ValueId *original, ValueId v) {
    return original[v.i].i ? original[v.i] : v;
}

/* The forward node that n repeats, of whose operands the originals are known;
   NULL: none. */
static const Node *repeated_node(const Graph *g, const UserIndex *users,
                                 const ValueId *original, const Node *n) {
    if (!n->nin || n->nout != 1) return NULL;
    Users u = users_of(users, again_repeated(original, n->in[0]));
    for (; u.at < u.end; u.at++) {
        const Node *x = node_get(g, *u.at);
        bool same = !x->flags && node_same_work(x, n);
        for (int i = 0; i < n->nin && same; i++)
            same = same_value(x->in[i], again_repeated(original, n->in[i]));
        if (same) return x;
    }
    return NULL;
}

ValueId *again_originals(const Graph *g, Arena *a, bool codes) {
    UserIndex users = graph_users(g, a);
    ValueId *original = NEW_ARRAY(a, ValueId, g->values.len);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (!(n->flags & NODE_AGAIN)) continue;
        ValueId *of = &original[n->out[0].i];
        if (codes) *of = codes_source(g, n->out[0]);
        if (of->i) continue;
        const Node *x = repeated_node(g, &users, original, n);
        if (x) *of = x->out[0];
    }
    return original;
}
