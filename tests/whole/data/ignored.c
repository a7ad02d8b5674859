/* SPDX-License-Identifier: Apache-2.0 */
/* ignored.c: labels that do not count, beside what is not finite. */
#include <math.h>

#include "tests/support/compiled.h"

enum { ROWS = 4, CLASSES = 3 };

/* A step on finite numbers, or with NaN in row 1. */
static ampc_status ignoring_step(const Compiled *c, ampc_session *s,
                                 const int64_t label[ROWS], bool nan,
                                 ampc_metrics *m) {
    float x[ROWS * CLASSES];
    for (int i = 0; i < ROWS * CLASSES; i++) x[i] = (float)(5 * i % 7) / 4;
    if (nan) x[CLASSES + 1] = NAN;
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("t", label, ROWS * 8, AMPC_DTYPE_I64)};
    *m = (ampc_metrics){.size = sizeof *m};
    return c->api->step(s, in, 2, m);
}

/* Each loss ignores its own number; to the other one it is a bad label. */
TEST_CASE(data, two_losses_ignore_numbers_of_their_own) {
    static const struct {
        int64_t label[ROWS];
        bool bad;
    } rows[] = {{{0, 1, 2, 0}, false},
                {{0, 1, -1, 0}, true},
                {{0, 1, -2, 0}, true},
                {{0, 3, 2, 0}, true},
                {{2, 1, 2, 0}, false}};
    Compiled c = compile_text(
        "model m(x: f32[4,3], t: i64[4]) {\n"
        "  param w: f32[3] = ones\n  y = x * w\n"
        "  return loss = softmax_cross_entropy(y, t, ignore_index=-1) + "
        "softmax_cross_entropy(y * 2, t, ignore_index=-2)\n}\n",
        "--precision fp32 --target cpu:x86-64-v2");
    ampc_session *s = open_threads(&c, 1);
    ampc_metrics m;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ampc_status status = ignoring_step(&c, s, rows[i].label, false, &m);
        CHECK_MSG(status == (rows[i].bad ? AMPC_ERR_DATA : AMPC_OK),
                  "labels %d: status %d", (int)i, status);
    }
    c.api->close(s);
    compiled_close(&c);
}

/* Only a batch without labels has the loss 0; NaN in the data stays NaN, and
   counts as a bad forward pass. */
TEST_CASE(data, nan_is_no_batch_without_labels) {
    static const int64_t some[] = {0, -1, 2, 1}, none[] = {-1, -1, -1, -1};
    Compiled c = compile_text(
        "model m(x: f32[4,3], t: i64[4]) {\n"
        "  param w: f32[3] = ones\n  y = x * w\n"
        "  h = reduce_sum(y, axes=[0], keepdims=1)\n"
        "  return loss = softmax_cross_entropy(y + h, t, ignore_index=-1)\n}\n",
        "--precision fp32 --target cpu:x86-64-v2");
    ampc_session *s = open_threads(&c, 1);
    ampc_metrics m;
    CHECK_EQ_INT(ignoring_step(&c, s, some, false, &m), AMPC_OK);
    CHECK(m.applied && m.loss > 0);
    CHECK_EQ_INT(ignoring_step(&c, s, none, false, &m), AMPC_OK);
    CHECK(!m.applied && m.loss == 0 && m.bad_forward == 0);
    CHECK_EQ_INT(ignoring_step(&c, s, some, true, &m), AMPC_OK);
    CHECK_MSG(!m.applied && isnan(m.loss) && m.bad_forward == 1,
              "applied %d, loss %g, %d bad forward passes", m.applied, m.loss,
              (int)m.bad_forward);
    c.api->close(s);
    compiled_close(&c);
}
