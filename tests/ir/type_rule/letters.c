/* SPDX-License-Identifier: Apache-2.0 */
/* letters.c: dimensions that are one. */
#include <stdio.h>
#include <string.h>

#include "ir/ir.h"
#include "ir/text/text.h"
#include "tests/harness.h"

/* $a, $b, ...: dimensions.  Equal letters stand for equal dimensions: if a
   single occurrence is greater by 1, the node is refused. */
static const char *const bound[][2] = {
    {"%x: f32[$a,$b], %z: f32[$a,$b]", "%y = mul %x, %z"},
    {"%m: bool[$a], %x: f32[$a], %z: f32[$a]", "%y = where %m, %x, %z"},
    {"%x: f32[$a,$b]", "%y = relu %x : f32[$a,$b]"},
    {"%x: f32[$a,$b,2]", "%y = reshape %x {shape=[2,$b,$a]}"},
    {"%x: f32[$a,$b,2], %z: f32[$a,$b,3]", "%y = concat %x, %z {axis=2}"},
    {"%x: f32[$a,$b,2], %z: f32[$a,$b,2], %v: f32[$a,$b,7]",
     "%y = concat %x, %z, %v {axis=2}"},
    {"%x: f32[$a,5]", "%y, %z = split %x {axis=1, sizes=[3,2]} : "
                      "f32[$a,3], f32[$a,2]"},
    {"%u: f32[$a,$i,2], %i: i32[$i]",
     "%y = scatter_add %u, %i {axis=1, shape=[$a,9,2]}"},
    {"%x: f32[$b,$m,$k], %z: f32[$b,$k,$n]", "%y = matmul %x, %z"},
    {"%x: f32[$b,$k,$m], %z: f32[$b,$n,$k]",
     "%y = matmul %x, %z {trans_a=1, trans_b=1}"},
    {"%q: f32[$b,$c,3,$t,$d], %k: f32[$b,$c,3,$d,$s], %v: f32[$b,$c,3,$s,$e]",
     "%y, %l = attend %q, %k, %v"},
    {"%q: f32[$b,8,$t,$d], %k: f32[$b,$h,$s,$d], %v: f32[$b,$h,$s,$e], "
     "%m: f32[$b,8,$t,$s]",
     "%y, %l = attend %q, %k, %v, %m {trans_b=1}"},
    {"%q: f32[$b,$t,$d], %k: f32[$b,$d,$s], %v: f32[$b,$s,$e], "
     "%y: f32[$b,$t,$e], %l: f32[$b,$t,2], %d: f32[$b,$t,1]",
     "%a, %c, %e = attend_grad %q, %k, %v, %y, %l, %d"},
    {"%x: f32[$n,$c,9,9], %w: f32[$k,$c,3,3]",
     "%y = conv %x, %w : f32[$n,$k,7,7]"},
    {"%g: f32[$n,$k,6], %w: f32[$k,$c,3]",
     "%y = conv_dgrad %g, %w {shape=[$n,$c,8]}"},
    {"%x: f32[$n,$c,8], %g: f32[$n,$k,6]",
     "%y = conv_wgrad %x, %g {shape=[$k,$c,3]}"},
    {"%g: f32[$n,$c,4], %i: i8[$n,$c,4]",
     "%y = max_pool_grad %g, %i "
     "{shape=[$n,$c,8], kernel_shape=[2], strides=[2], sizes=[4]}"},
    {"%g: f32[$n,$c,8]",
     "%y = avg_pool_grad %g "
     "{shape=[$n,$c,8], kernel_shape=[3], pads=[1,1], sizes=[8]}"},
    {"%x: f32[$a,$b,$c], %s: f32[$b,$c], %o: f32[$b,$c]",
     "%y, %m, %r = layer_norm %x, %s, %o {axis=1}"},
    {"%x: f32[$n,$c,$l], %s: f32[$c], %o: f32[$c], %m: f32[$c], %v: f32[$c]",
     "%y = batch_norm %x, %s, %o, %m, %v"},
    {"%x: f32[$n,$c,$l], %t: i64[$n,$l], %w: f32[$c]",
     "%l, %e = softmax_cross_entropy %x, %t, %w"},
    {"%x: f32[$n,$c], %t: i64[$n], %w: f32[$c]", "%l = nll_loss %x, %t, %w"},
};

/* Appends text with the dimensions filled in; the one at `wrong` is greater
   by 1. */
static void put_bound(StrBuf *sb, const char *text, const char *wrong) {
    for (const char *s = text; *s; s++)
        if (*s == '$') {
            sb_printf(sb, "%d", 2 + (s[1] - 'a') % 5 + (s == wrong));
            s++;
        } else {
            sb_printf(sb, "%c", *s);
        }
}

static bool accepts(const char *const row[2], const char *wrong, StrBuf *sb) {
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    sb->len = 0;
    sb_puts(sb, "graph g(");
    put_bound(sb, row[0], wrong);
    sb_puts(sb, ") {\n");
    put_bound(sb, row[1], wrong);
    sb_puts(sb, "\nreturn\n}\n");
    bool ok = parse_module(a, &d, "row", sb->data, sb->len, &m) == OK;
    sb_free(&d.text);
    arena_free(a);
    return ok;
}

TEST_CASE(type_rules, dimensions_of_one_letter_are_the_same) {
    StrBuf sb = {0};
    for (size_t i = 0; i < sizeof bound / sizeof *bound; i++) {
        bool ok = accepts(bound[i], NULL, &sb);
        CHECK_MSG(ok, "refused: %s", sb.data);
        for (int part = 0; part < 2; part++)
            for (const char *s = bound[i][part]; (s = strchr(s, '$')); s++) {
                int times = 0;
                for (int k = 0; k < 2; k++)
                    for (const char *t = bound[i][k]; (t = strchr(t, '$')); t++)
                        times += t[1] == s[1];
                ok = times > 1 && accepts(bound[i], s, &sb);
                CHECK_MSG(!ok, "accepted: %s", sb.data);
            }
    }
    sb_free(&sb);
}
