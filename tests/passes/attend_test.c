/* SPDX-License-Identifier: Apache-2.0 */
/* attend_test.c: attention as one node computes the same as its parts. */
#include <string.h>

#include "tests/harness.h"
#include "tests/support/passed.h"

/* The values of `text` before and after pass attend; the number of
   attentions found, and of gradients. */
static int attended(const char *text) {
    Arena *a = arena_new();
    int found = 0;
    Module *m = parsed(a, text);
    if (strstr(text, " grad ")) passed(a, m, "grad", no_flags);
    const Graph *g = m->graphs.data[0];
    Results before = results(a, g, EVAL_EXACT);
    passed(a, m, "inline,canon,simplify,cse,dce,attend,dce", no_flags);
    Results after = results(a, g, EVAL_EXACT);
    expect_equal(&before, &after, 1e-6, text);
    for (int i = 0; i < g->order.len; i++)
        found += node_get(g, g->order.data[i])->op == OP_ATTEND ||
                 node_get(g, g->order.data[i])->op == OP_ATTEND_GRAD;
    arena_free(a);
    return found;
}

typedef struct Sizes {
    int heads, rows, deep, wide;
} Sizes;

/* "graph eval(" with %q, %k and %v; each case has other sizes. */
static Sizes put_operands(StrBuf *sb, int i, int keys) {
    Sizes z = {1 + (i + 1) % 3, 2 + (i + 1) % 4, 3 + (i + 1) % 5, 5 + i % 4};
    sb_printf(sb,
              "graph eval(%%q: f32[%d,%d,%d], %%k: f32[%d,%d,%d], %%v: "
              "f32[%d,%d,%d]",
              z.heads, z.rows, z.deep, z.heads, z.deep, keys, z.heads, keys,
              z.wide);
    return z;
}

/* Masks of four queries and keys: with few keys only causal masks are taken. */
TEST_CASE(attend, masks_hide_what_they_hid) {
    static const struct {
        bool triangle;
        const char *values;
    } masks[] = {
        {1, "0, -inf, -inf, -inf, 0, 0, -inf, -inf, 0, 0, 0, -inf, 0, 0, 0, 0"},
        {0, "0, -inf, -inf, -inf, 0, 0, 0, -inf, 0, 0, 0, -inf, 0, 0, 0, 0"},
        {0, "0, -inf, -inf, -inf, 0, 0, -inf, 1, 0, 0, 0, -inf, 0, 0, 0, 0"},
        {0, "0, -inf, -inf, -inf, 0, -inf, -inf, -inf, 0, 0, 0, -inf, 0, 0, 0, "
            "0"},
        {1, "0, 0, -inf, -inf, 0, 0, 0, -inf, 0, 0, 0, 0, 0, 0, 0, 0"},
        {0, "0, 0, -inf, -inf, 0, 0, 0, -inf, 0, 0, 0, 0, 0, 0, 0, 0.5"}};
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        StrBuf sb = {0};
        sb_printf(&sb,
                  "graph eval(%%q: f32[2,4,3], %%k: f32[2,3,4], %%v: "
                  "f32[2,4,5]) {\n  const %%m: f32[4,4] = [%s]\n"
                  "  %%s = matmul %%q, %%k\n  %%a = add %%s, %%m\n"
                  "  %%p = softmax %%a\n  %%y = matmul %%p, %%v\n"
                  "  return %%y\n}\n",
                  masks[i].values);
        CHECK_EQ_INT(attended(sb.data), masks[i].triangle);
        sb_free(&sb);
    }
}

/* The same mask written with positions, columns %j and rows %i; %i1 and %j1
   are `more` larger. where: the operand that is selected where the order
   holds, or where it does not. */
static void check_order(const char *dtype, const char *more, const char *order,
                        const char *where, bool taken) {
    StrBuf sb = {0};
    sb_printf(&sb,
              "graph eval(%%q: f32[2,4,3], %%k: f32[2,3,4], %%v: f32[2,4,5]) "
              "{\n  const %%low: f32[] = -inf\n"
              "  %%i = iota {axis=0} : %s[4,1]\n"
              "  %%j = iota {axis=1} : %s[1,4]\n"
              "  %%i1 = add %%i, %s\n  %%j1 = add %%j, %s\n"
              "  %%s = matmul %%q, %%k\n  %%c = %s\n"
              "  %%a = where %%c, %s\n  %%p = softmax %%a\n"
              "  %%y = matmul %%p, %%v\n  return %%y\n}\n",
              dtype, dtype, more, more, order, where);
    CHECK_MSG(attended(sb.data) == taken, "%s + %s: %s", dtype, more, order);
    sb_free(&sb);
}

/* Masks that are true for visible keys, then masks that are true for hidden
   ones. */
TEST_CASE(attend, orders_hide_what_they_hid) {
    enum { SEEN = 7 };
    static const char *const orders[] = {
        "less_equal %j, %i",     "less %j, %i1",       "greater_equal %i, %j",
        "greater %i1, %j",       "less_equal %j, %i1", "less_equal %j1, %i1",
        "greater_equal %i1, %j", "greater %j, %i",     "greater_equal %j, %i1",
        "less %i, %j",           "less_equal %i1, %j", "greater %j, %i1",
        "greater_equal %j1, %i1"};
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++)
        check_order("i32", "1:i32", orders[i],
                    i < SEEN ? "%s, %low" : "%low, %s", true);
}

/* Positions beside the integers from 0 on: between them, beyond all keys, too
   large to be exact. Whether they are fused or not, the masks hide the same
   keys. */
TEST_CASE(attend, orders_of_any_places_hide_what_they_hid) {
    check_order("f32", "0.5", "less %j, %i1", "%s, %low", false);
    check_order("f32", "0.5", "less_equal %j, %i1", "%s, %low", false);
    check_order("f32", "-0.5", "greater_equal %i, %j1", "%s, %low", false);
    check_order("f32", "-0.5", "greater %i, %j1", "%s, %low", false);
    check_order("f32", "1e30", "less_equal %j1, %i1", "%s, %low", false);
    check_order("f32", "nan", "less_equal %j, %i1", "%s, %low", false);
    check_order("i32", "100:i32", "less_equal %j, %i1", "%s, %low", true);
    check_order("i64", "1000000000:i64", "less %j, %i1", "%s, %low", true);
    check_order("i64", "4611686018427387904:i64", "less_equal %j, %i1",
                "%s, %low", false);
    check_order("i8", "127:i8", "less_equal %j, %i1", "%s, %low", false);
}

/* Operations on scores %s between their product and the softmax of %a, some
   of which the routine cannot compute; values and gradients do not change. */
TEST_CASE(attend, scores_are_what_they_were) {
    static const struct {
        bool taken;
        const char *lines;
    } rows[] = {
        {1, "%a = mul %s, 0.3"},
        {1, "%a = div %s, 3"},
        {1, "%t = div %s, 3\n  %a = mul 2, %t"},
        {0, "%a = div 3, %s"},
        {1, "%a = add %s, 0.5"}, /* a mask for all */
        {1, "%a = add %s, %m"},
        {1, "%t = mul %s, 0.3\n  %a = add %m, %t"},
        {0, "%t = add %s, %m\n  %a = mul %t, 0.3"},
        {0, "%t = add %s, %m\n  %a = add %t, %n"},
        {1, "%a = add %s, %n"},
        {1, "%a = add %s, %keys"},
        {0, "%a = add %s, %twice"},
        {1, "%a = where %seen, %s, %low"},
        {1, "%a = where %seen, %low, %s"},
        {0, "%a = where %seen, %s, -1e31"},
        {0, "%a = where %seen, %s, -5"},
        {0, "%a = where %seen, %s, %s2"},
        {0, "%t = where %seen, %s, %low\n  %a = add %t, %m"},
        {0, "%t = add %s, %m\n  %a = where %seen, %t, %low"},
        {0, "%t = where %seen, %s, %low\n  %a = where %few, %t, %low"},
        {1, "%t = mul %s, 0.3\n  %a = where %seen, %t, %low"},
        {0, "%t = where %seen, %s, %low\n  %a = mul %t, 0.3"},
        {1, "%t = where %order, %s, %low\n  %a = mul %t, 0.3"},
        {1, "%t = where %order, %s, %low\n  %a = add %t, %m"},
        {1, "%t = where %order, %s, -1e31\n  %a = mul %t, 3"},
        {0, "%t = where %order, %s, -1e31\n  %a = add %t, %m"},
        {0, "%t = where %order, %low, %s\n  %a = add %t, %m"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int grads = 0; grads < 2; grads++) {
            StrBuf sb = {0};
            sb_printf(
                &sb,
                "graph eval(%%q: f32[2,2,3,4], %%k: f32[2,2,4,96], %%v: "
                "f32[2,2,96,5], %%m: f32[3,96], %%n: f32[2,1,1,96], %%keys: "
                "f32[96], %%twice: f32[1,1,2,3,96], %%s2: f32[2,2,3,96]) {\n"
                "  const %%low: f32[] = -inf\n"
                "  %%i = iota {axis=0} : i32[3,1]\n"
                "  %%j = iota {axis=1} : i32[1,96]\n"
                "  %%order = less_equal %%j, %%i\n"
                "  %%seen = greater %%m, 0.3\n  %%few = greater %%n, 0.3\n"
                "  %%s = matmul %%q, %%k\n  %s\n"
                "  %%p = softmax %%a\n  %%y = matmul %%p, %%v\n",
                rows[i].lines);
            if (grads)
                sb_puts(&sb, "  %c = sin %y\n  %gq, %gk, %gv = grad %c, %q, "
                             "%k, %v\n  return %gq, %gk, %gv\n}\n");
            else
                sb_puts(&sb, "  return %y\n}\n");
            CHECK_MSG(attended(sb.data) == rows[i].taken * (1 + grads), "%s",
                      sb.data);
            sb_free(&sb);
        }
}

/* Operands with fewer or more elements than the scores: dropout shared by
   heads or queries, and repetitions of all scores. */
TEST_CASE(attend, scores_are_not_repeated) {
    static const struct {
        bool taken;
        const char *lines;
    } rows[] = {
        {1, "%u = rand_uniform %r : f32[2,2,3,96]\n  %a = mul %s, 1"},
        {0, "%u = rand_uniform %r : f32[2,1,3,96]\n  %a = mul %s, 1"},
        {0, "%u = rand_uniform %r : f32[1,2,3,96]\n  %a = mul %s, 1"},
        {0, "%u = rand_uniform %r : f32[3,96]\n  %a = mul %s, 1"},
        {0, "%u = rand_uniform %r : f32[2,2,1,96]\n  %a = mul %s, 1"},
        {0, "%u = rand_uniform %r : f32[2,2,3,1]\n  %a = mul %s, 1"},
        {0, "%u = rand_uniform %r : f32[3,2,2,3,96]\n  %a = mul %s, 1"},
        {0, "%u = rand_uniform %r : f32[2,2,3,96]\n  %a = mul %s, %many"},
        {0, "%u = rand_uniform %r : f32[2,2,3,96]\n  %a = div %s, %many"},
        {0, "%u = rand_uniform %r : f32[2,2,3,96]\n  %a = add %s, %many"},
        {0, "%u = rand_uniform %r : f32[2,2,3,96]\n"
            "  %i = iota {axis=3} : i32[3,1,1,3,1]\n"
            "  %j = iota {axis=4} : i32[1,1,1,1,96]\n"
            "  %order = less_equal %j, %i\n  %a = where %order, %s, %low"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int drops = 0; drops < 2; drops++) {
            StrBuf sb = {0};
            sb_printf(&sb,
                      "graph eval(%%q: f32[2,2,3,4], %%k: f32[2,2,4,96], %%v: "
                      "f32[2,2,96,5], %%r: i64[2]) {\n"
                      "  const %%low: f32[] = -inf\n"
                      "  const %%many: f32[3,1,1,1,1] = 0.5\n"
                      "  %%s = matmul %%q, %%k\n  %s\n"
                      "  %%p = softmax %%a\n"
                      "  %%c = greater_equal %%u, 0.5\n"
                      "  %%w = where %%c, 2, 0\n  %%d = mul %%p, %%w\n"
                      "  %%y = matmul %s, %%v\n  return %%y\n}\n",
                      rows[i].lines, drops ? "%d" : "%p");
            bool ignored = i > 0 && i < 7 && !drops;
            CHECK_MSG(attended(sb.data) == (rows[i].taken || ignored), "%s",
                      sb.data);
            sb_free(&sb);
        }
}

/* A mask that is a product gets the scores' gradient, too: the products of
   the mask's own gradient do not belong to the routine. */
TEST_CASE(attend, products_of_a_mask_are_its_own) {
    static const char *const asked[] = {
        "%q", "%q2", "%q2, %v", "%q2, %k, %v", "%k2, %k, %v", "%k2, %q, %v"};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        StrBuf sb = {0};
        sb_puts(&sb,
                "graph eval(%q: f32[2,2,96,4], %k: f32[2,2,4,96], %v: "
                "f32[2,2,96,5], %q2: f32[2,2,96,4], %k2: f32[2,2,4,96]) {\n"
                "  %s = matmul %q, %k\n  %t = matmul %q2, %k2\n"
                "  %a = add %s, %t\n  %p = softmax %a\n"
                "  %y = matmul %p, %v\n  %c = sin %y\n  ");
        int n = 1;
        for (const char *s = asked[i]; *s; s++) n += *s == ',';
        for (int k = 0; k < n; k++) sb_printf(&sb, "%s%%g%d", k ? ", " : "", k);
        sb_printf(&sb, " = grad %%c, %s\n  return ", asked[i]);
        for (int k = 0; k < n; k++) sb_printf(&sb, "%s%%g%d", k ? ", " : "", k);
        sb_puts(&sb, "\n}\n");
        CHECK_MSG(attended(sb.data) == 2 * !strchr(asked[i], '2'), "%s",
                  asked[i]);
        sb_free(&sb);
    }
}

TEST_CASE(attend, few_keys_stay_in_parts) {
    static const struct {
        int keys, found[3]; /* alone, trained, beside backward */
    } of[] = {
        {63, {0, 0, 0}}, {64, {1, 0, 0}}, {95, {1, 0, 0}}, {96, {1, 2, 1}}};
    static const char *const end[] = {
        "  return %y\n",
        "  %c = sin %y\n  %gq, %gk, %gv = grad %c, %q, %k, %v\n"
        "  return %c, %gq, %gk, %gv\n",
        "  %c = sin %v !backward\n  return %y, %c\n"};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        for (int k = 0; k < 3; k++) {
            StrBuf sb = {0};
            put_operands(&sb, k, of[i].keys);
            sb_printf(&sb,
                      ") {\n  %%s = matmul %%q, %%k\n"
                      "  %%p = softmax %%s\n  %%y = matmul %%p, %%v\n%s}\n",
                      end[k]);
            CHECK_EQ_INT(attended(sb.data), of[i].found[k]);
            sb_free(&sb);
        }
}

/* Backward may read a moved copy of the kept result, if the copy is moved back
   with its rows intact. */
TEST_CASE(attend, results_may_be_moved) {
    static const char *const perms[] = {"0,1,2,3", "0,2,1,3", "1,0,2,3",
                                        "2,0,1,3", "3,1,0,2"};
    for (size_t i = 0; i < sizeof perms / sizeof *perms; i++) {
        StrBuf sb = {0};
        sb_printf(&sb,
                  "graph eval(%%q: f32[2,3,4,6], %%k: f32[2,3,6,96], %%v: "
                  "f32[2,3,96,5]) {\n"
                  "  %%s = matmul %%q, %%k\n  %%p = softmax %%s\n"
                  "  %%y = matmul %%p, %%v\n"
                  "  %%z = transpose %%y {perm=[%s]}\n  %%c = sin %%z\n"
                  "  %%gq, %%gk, %%gv = grad %%c, %%q, %%k, %%v\n"
                  "  return %%c, %%gq, %%gk, %%gv\n}\n",
                  perms[i]);
        CHECK_MSG(attended(sb.data) == 2, "%s", perms[i]);
        sb_free(&sb);
    }
}

/* Fusing would then only repeat work. %o: PyTorch's exported form, 0 where
   all keys are hidden. */
TEST_CASE(attend, probabilities_that_others_read_stay) {
    static const char *const results_of[] = {"%y",       "%o",     "%y, %p",
                                             "%y, %s",   "%o, %p", "%o, %s",
                                             "%o, %nan", "%o, %w"};
    for (int i = 0; i < 8; i++) {
        StrBuf sb = {0};
        put_operands(&sb, i, 96);
        sb_printf(&sb,
                  ") {\n  %%s = matmul %%q, %%k\n"
                  "  %%p = softmax %%s\n  %%y = matmul %%p, %%v\n"
                  "  %%nan = isnan %%p\n  %%w = where %%nan, 0, %%p\n"
                  "  %%o = matmul %%w, %%v\n  return %s\n}\n",
                  results_of[i]);
        CHECK_MSG(attended(sb.data) == (i < 2), "%s", results_of[i]);
        sb_free(&sb);
    }
}

/* where(isnan(%q), 0, %p), %p: all keys of row 1 are hidden. What is NaN there
   must be the softmax of the scores; the gradient of a softmax that is NaN is
   NaN. */
TEST_CASE(attend, rows_are_zeros_where_their_softmax_is_nan) {
    static const struct {
        const char *nan, *p;
        int taken, with_grads;
    } rows[] = {{"%plain", "%zeros", 1, 2}, {"%plain", "%plain", 1, 0},
                {"%other", "%plain", 0, 0}, {"%other", "%zeros", 0, 0},
                {"%o", "%plain", 0, 0},     {"%o", "%zeros", 0, 0},
                {"%zeros", "%plain", 0, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int grads = 0; grads < 2; grads++) {
            StrBuf sb = {0};
            sb_printf(&sb,
                      "graph eval(%%q: f32[2,2,3,4], %%k: f32[2,2,4,96], %%v: "
                      "f32[2,2,96,5], %%m: f32[3,96], %%o: f32[2,2,3,96]) {\n"
                      "  const %%low: f32[] = -inf\n"
                      "  const %%seen: bool[3,1] = [1, 0, 1]\n"
                      "  %%mask = where %%seen, %%m, %%low\n"
                      "  %%s = matmul %%q, %%k\n  %%a = add %%s, %%mask\n"
                      "  %%plain = softmax %%a\n  %%other = softmax %%o\n"
                      "  %%zeros = masked_softmax %%a\n"
                      "  %%nan = isnan %s\n  %%p = where %%nan, 0, %s\n"
                      "  %%y = matmul %%p, %%v\n",
                      rows[i].nan, rows[i].p);
            if (grads)
                sb_puts(&sb, "  %c = sin %y\n  %gq, %gk, %gv = grad %c, %q, "
                             "%k, %v\n  return %c, %gq, %gk, %gv\n}\n");
            else
                sb_puts(&sb, "  return %y\n}\n");
            CHECK_MSG(attended(sb.data) ==
                          (grads ? rows[i].with_grads : rows[i].taken),
                      "%s", sb.data);
            sb_free(&sb);
        }
}

/* A gradient that is 0 where something else is NaN is another one. */
TEST_CASE(attend, a_gradient_is_zero_where_its_softmax_was_nan) {
    static const char *const nan[] = {"%plain", "%o", "%other"};
    for (int i = 0; i < 3; i++) {
        StrBuf sb = {0};
        Sizes z = put_operands(&sb, i, 96);
        sb_printf(&sb,
                  ", %%dy: f32[%d,%d,%d], %%o: f32[%d,%d,96]) {\n"
                  "  %%s = matmul %%q, %%k\n  %%plain = softmax %%s\n"
                  "  %%other = softmax %%o\n  %%p = masked_softmax %%s\n"
                  "  %%y = matmul %%p, %%v\n  %%nan = isnan %s\n"
                  "  %%dw = matmul %%dy, %%v {trans_b=1}\n"
                  "  %%dp = where %%nan, 0, %%dw\n"
                  "  %%w = mul %%dp, %%p\n"
                  "  %%t = reduce_sum %%w {axes=[2], keepdims=1}\n"
                  "  %%d = sub %%dp, %%t\n  %%ds = mul %%p, %%d\n"
                  "  %%dq = matmul %%ds, %%k {trans_b=1}\n"
                  "  return %%y, %%dq\n}\n",
                  z.heads, z.rows, z.wide, z.heads, z.rows, nan[i]);
        CHECK_MSG(attended(sb.data) == 2 * !i, "%s", nan[i]);
        sb_free(&sb);
    }
}

/* A softmax written out, and the same times a constant. */
TEST_CASE(attend, rows_that_add_up_to_1_are_recognised) {
    for (int number = 1; number < 3; number++) {
        StrBuf sb = {0};
        put_operands(&sb, number, 97);
        sb_printf(&sb,
                  ") {\n  %%s = matmul %%q, %%k\n"
                  "  %%t = reduce_max %%s {axes=[2], keepdims=1}\n"
                  "  %%d = sub %%s, %%t\n  %%e = exp %%d\n"
                  "  %%sum = reduce_sum %%e {axes=[2], keepdims=1}\n"
                  "  %%by = div %d, %%sum\n  %%p = mul %%e, %%by\n"
                  "  %%y = matmul %%p, %%v\n  return %%y\n}\n",
                  number);
        CHECK_MSG(attended(sb.data) == (number == 1), "%s", sb.data);
        sb_free(&sb);
    }
}

/* A softmax that gives zeros where everything is hidden, and a copy with
   another number or another value in one place, which is a different
   function. */
TEST_CASE(attend, only_what_hides_rows_is_recognised) {
    static const char *const numbers[][8] = {
        {"-inf", "t", "t", "0", "sum", "0", "sum", "1"},
        {"-5", "t", "t", "0", "sum", "0", "sum", "1"},
        {"-inf", "o", "t", "0", "sum", "0", "sum", "1"},
        {"-inf", "t", "o", "0", "sum", "0", "sum", "1"},
        {"-inf", "t", "t", "1", "sum", "0", "sum", "1"},
        {"-inf", "t", "t", "0", "o", "0", "sum", "1"},
        {"-inf", "t", "t", "0", "sum", "0.5", "sum", "1"},
        {"-inf", "t", "t", "0", "sum", "0", "o", "1"},
        {"-inf", "t", "t", "0", "sum", "0", "sum", "2"}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const char *const *n = numbers[i];
        StrBuf sb = {0};
        Sizes z = put_operands(&sb, (int)i, 96 + (int)i);
        sb_printf(&sb,
                  ", %%o: f32[%d,%d,1]) {\n"
                  "  const %%low: f32[] = %s\n"
                  "  %%s = matmul %%q, %%k\n"
                  "  %%t = reduce_max %%s {axes=[2], keepdims=1}\n"
                  "  %%seen = greater %%%s, %%low\n"
                  "  %%top = where %%seen, %%%s, %s\n"
                  "  %%d = sub %%s, %%top\n  %%e = exp %%d\n"
                  "  %%sum = reduce_sum %%e {axes=[2], keepdims=1}\n"
                  "  %%some = greater %%%s, %s\n"
                  "  %%by = where %%some, %%%s, %s\n"
                  "  %%p = div %%e, %%by\n  %%y = matmul %%p, %%v\n"
                  "  return %%y\n}\n",
                  z.heads, z.rows, n[0], n[1], n[2], n[3], n[4], n[5], n[6],
                  n[7]);
        CHECK_MSG(attended(sb.data) == (i == 0), "%s", sb.data);
        sb_free(&sb);
    }
}

/* ---- heads beside rows --------------------------------------------------- */

enum { ROWS = 5, WIDE = 4 };

/* %<to> = %<from> times factor, heads before rows. */
static void put_scaled(StrBuf *sb, const char *to, const char *from, int i,
                       const char *factor, int heads, bool turned) {
    sb_printf(sb, "  %%%s%d = mul %%%s%d, %s : bf16[2,%d,%d,%d]\n", to, i, from,
              i, factor, heads, turned ? WIDE : ROWS, turned ? ROWS : WIDE);
}

/* %m<i>: heads of %x<source>, before rows, times factor. */
static void put_part(StrBuf *sb, int i, int source, int first, int heads,
                     bool turned, const char *factor) {
    sb_printf(sb,
              "  %%s%d = slice %%x%d {sizes=[2,%d,%d,%d], starts=[0,0,%d,0], "
              "steps=[1,1,1,1]} : f32[2,%d,%d,%d]\n"
              "  %%t%d = transpose %%s%d {perm=[%s]}\n",
              i, source, ROWS, heads, WIDE, first, ROWS, heads, WIDE, i, i,
              turned ? "0,2,3,1" : "0,2,1,3");
    put_scaled(sb, "m", "t", i, factor, heads, turned);
}

/* Attention with heads beside rows, and its gradient, give the same values
   and copy nothing, wherever the heads are. */
TEST_CASE(heads, are_read_where_they_lie) {
    for (int i = 0; i < 32; i++) {
        bool one = i & 1, turned = i & 2, group = i & 4, moved = i & 8;
        int keys = group ? 1 : 2, found = 0, copies = 0;
        int first[] = {moved ? 2 * keys : 0, moved ? keys : 2,
                       moved ? 0 : 2 + keys};
        const char *factor = i & 16 ? "0.5" : "2";
        const char *mask = turned ? "" : "causal=1, ";
        StrBuf sb = {0};
        sb_printf(&sb, "graph train(%%x0: bf16[2,%d,%d,%d]", ROWS, 2 + 2 * keys,
                  WIDE);
        for (int k = 1; k < 3 && !one; k++)
            sb_printf(&sb, ", %%x%d: bf16[2,%d,%d,%d]", k, ROWS, 2 + 2 * keys,
                      WIDE);
        sb_printf(&sb, ", %%g: bf16[2,%d,2,%d]) on cuda {\n", ROWS, WIDE);
        put_part(&sb, 0, 0, first[0], 2, false, factor);
        put_part(&sb, 1, one ? 0 : 1, first[1], keys, turned, factor);
        put_part(&sb, 2, one ? 0 : 2, first[2], keys, false, "1");
        sb_printf(
            &sb,
            "  %%y, %%l = attend %%m0, %%m1, %%m2 {%strans_b=%d}\n"
            "  %%z = transpose %%y {perm=[0,2,1,3]}\n"
            "  %%dy = transpose %%g {perm=[0,2,1,3]}\n"
            "  %%p = mul %%dy, %%y : f32[2,2,%d,%d]\n"
            "  %%d = reduce_sum %%p {axes=[3], keepdims=1}\n"
            "  %%g0, %%g1, %%g2 = attend_grad %%m0, %%m1, %%m2, %%dy, %%l, "
            "%%d {%strans_b=%d}\n",
            mask, !turned, ROWS, WIDE, mask, !turned);
        for (int k = 0; k < 3; k++) {
            put_scaled(&sb, "f", "g", k, k == 2 ? "1" : factor, k ? keys : 2,
                       k == 1 && turned);
            sb_printf(&sb, "  %%r%d = transpose %%f%d {perm=[%s]}\n", k, k,
                      k == 1 && turned ? "0,3,1,2" : "0,2,1,3");
        }
        sb_printf(&sb, "  %%all = concat %s {axis=2}\n  return %%z, %%all\n}\n",
                  moved ? "%r2, %r1, %r0" : "%r0, %r1, %r2");
        Arena *a = arena_new();
        Module *m = parsed(a, sb.data);
        const Graph *g = m->graphs.data[0];
        passed(a, m, "simplify,dce", for_gpus);
        Results before = results(a, g, EVAL_EXACT);
        passed(a, m, "heads,simplify,cse,dce", for_gpus);
        Results after = results(a, g, EVAL_EXACT);
        expect_equal(&before, &after, 1e-6, sb.data);
        for (int k = 0; k < g->order.len; k++) {
            const Node *n = node_at(g, k);
            found += (n->op == OP_ATTEND || n->op == OP_ATTEND_GRAD) &&
                     attr_find(n, AK_heads) != NULL;
            copies += n->op == OP_TRANSPOSE || n->op == OP_SLICE;
            if (n->op == OP_ATTEND_GRAD) CHECK_EQ_INT(n->nout, one ? 1 : 3);
        }
        CHECK_MSG(found == 2 && copies == 0, "%d, %d copies: %s", found, copies,
                  sb.data);
        arena_free(a);
        sb_free(&sb);
    }
}

/* Operands that are rounded from fp32 are read as they are rounded, wherever
   their heads lie. */
TEST_CASE(heads, are_not_read_in_another_dtype) {
    static const char *const order[] = {
        "  %%s%d = mul %%x%d, %s : bf16[2,5,2,4]\n"
        "  %%m%d = transpose %%s%d {perm=[0,2,1,3]}\n",
        "  %%s%d = transpose %%x%d {perm=[0,2,1,3]}\n"
        "  %%m%d = mul %%s%d, %s : bf16[2,2,5,4]\n",
        "  %%s%d = transpose %%x%d {perm=[0,2,1,3]} : bf16[2,2,5,4]\n"
        "  %%m%d = mul %%s%d, %s : bf16[2,2,5,4]\n"};
    for (int i = 0; i < 3; i++) {
        StrBuf sb = {0};
        sb_puts(&sb, "graph predict(%x0: f32[2,5,2,4], %x1: f32[2,5,2,4], "
                     "%x2: f32[2,5,2,4]) on cuda {\n");
        for (int k = 0; k < 3; k++) {
            const char *factor = k == 2 ? "1" : "2";
            if (i)
                sb_printf(&sb, order[i], k, k, k, k, factor);
            else
                sb_printf(&sb, order[i], k, k, factor, k, k);
        }
        sb_puts(&sb, "  %y, %l = attend %m0, %m1, %m2 {trans_b=1}\n"
                     "  %z = transpose %y {perm=[0,2,1,3]}\n  return %z\n}\n");
        Arena *a = arena_new();
        Module *m = parsed(a, sb.data);
        const Graph *g = m->graphs.data[0];
        Results before = results(a, g, EVAL_EXACT);
        passed(a, m, "heads,simplify,cse,dce", for_gpus);
        Results after = results(a, g, EVAL_EXACT);
        expect_equal(&before, &after, 1e-6, sb.data);
        for (int k = 0; k < g->order.len; k++) {
            const Node *n = node_at(g, k);
            for (int j = 0; j < 3 && n->op == OP_ATTEND; j++)
                CHECK_MSG(value_dtype(g, n->in[j]) == DT_BF16, "%d of %s", j,
                          sb.data);
        }
        arena_free(a);
        sb_free(&sb);
    }
}
