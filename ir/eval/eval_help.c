/* SPDX-License-Identifier: Apache-2.0 */
/* eval_help.c: what the functions of several ops need. */
#include "ir/eval/eval_impl.h"

Status eval_fail(EvalCx *cx, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    if (cx->msg) vsnprintf(cx->msg, MSG_TEXT, fmt, ap);
    va_end(ap);
    return ERR_USER;
}

EvalAxis eval_axis(const Type *t, int axis) {
    EvalAxis r = {1, t->rank ? t->dim[axis] : 1, 1};
    for (int d = 0; d < axis; d++) r.outer *= t->dim[d];
    for (int d = axis + 1; d < t->rank; d++) r.inner *= t->dim[d];
    return r;
}

void eval_ints(const Node *n, AttrKey k, int count, int64_t dflt,
               int64_t *out) {
    const int64_t *v;
    int have = attr_ints(n, k, &v);
    for (int d = 0; d < count; d++) out[d] = d < have ? v[d] : dflt;
}
