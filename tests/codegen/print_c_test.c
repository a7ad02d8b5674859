/* SPDX-License-Identifier: Apache-2.0 */
/* print_c_test.c: kernels share C text, are cut where that is faster, and
   are safe for any names in a model. */
#define _POSIX_C_SOURCE 200809L
#include "runtime/cpu/kernels.h"
#include "tests/harness.h"
#include "tests/support/subject.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- properties of the text ---------------------------------------------- */

static const KernelPart whole = {KERNELS_ALL, 0, 1};

static Subject lowered(const char *text) {
    Subject s = {.text = text};
    subject_begin(&s);
    return s;
}

/* Equal updates of tensors of different sizes are one kernel. */
TEST_CASE(print_c, flat_kernels_are_shared) {
    Subject s = lowered(
        "graph g(%a: f32[10], %b: f32[3,4], %s: f32[], %c: f32[7]) {"
        " group point { %x = mul %a, %s } group point { %y = mul %b, %s }"
        " group point { %z = mul %c, %c } return %x, %y, %z }");
    CHECK_EQ_INT(kernel_set_count(s.ks, false), 2);
    CHECK(s.steps[0].kernel == s.steps[1].kernel);
    CHECK_EQ_INT(s.steps[0].npar, 1);
    CHECK_EQ_INT(s.steps[1].pars[0], 12);
    CHECK_EQ_INT(kernel_set_count(s.ks, true), 0);
    subject_end(&s);
}

/* A hand-over to another thread costs as much as some thousand elements of
   cheap work; a large tensor keeps many threads busy. */
TEST_CASE(print_c, work_is_handed_over_in_sizes_that_pay) {
    Subject s =
        lowered("graph g(%a: f32[4194304], %b: f32[4096,1024], %c: f32[300]) {"
                " group point { %x = mul %a, %a }"
                " group row { %s = reduce_sum %b {axes=[1]} %y = mul %b, %s }"
                " group point { %z = mul %c, %c } return %x, %y, %z }");
    for (int i = 0; i < 2; i++) {
        int64_t parts = s.steps[i].units / s.steps[i].grain;
        CHECK_MSG(parts >= 16 && parts <= 1024, "step %d: %lld parts", i,
                  (long long)parts);
    }
    CHECK(s.steps[2].units <= s.steps[2].grain);
    subject_end(&s);
}

/* Concatenation and padding along the inner dim leave no condition inside a
   loop. */
TEST_CASE(print_c, guards_cut_the_loop) {
    Subject s = lowered("graph g(%a: f32[5,30], %b: f32[5,40],"
                        " %x: f32[4,3,60], %y: f32[4,5,60]) {"
                        " group point { %c = concat %a, %b {axis=1} }"
                        " group point { %p = pad %a {pads=[0,2,0,3], value=1} }"
                        " group point { %q = concat %x, %y {axis=1} }"
                        " return %c, %p, %q }");
    StrBuf sb = {0};
    print_c_kernels(s.texts, &sb, "", whole);
    CHECK(strstr(sb.data, "?") == NULL);
    CHECK_HAS(sb.data, "i1 = 30; i1 < 70;");
    CHECK_HAS(sb.data, "i1 = 2; i1 < 32;");
    CHECK_HAS(sb.data, "if (i1 < 3) {");
    sb_free(&sb);
    subject_end(&s);
}

/* Kernels that differ in sizes and constants only share one function. */
TEST_CASE(print_c, one_text_is_compiled_once) {
    Subject s[] = {
        {.text = "graph g(%a: f32[60,70], %b: f32[9,300], %c: f32[500,11]) {"
                 " group row { %m = reduce_mean %a {axes=[1]}"
                 " %x = sub %a, %m }"
                 " group row { %n = reduce_mean %b {axes=[1]}"
                 " %y = sub %b, %n }"
                 " group row { %o = reduce_mean %c {axes=[1]}"
                 " %z = sub %c, %o } return %x, %y, %z }",
         .ulps = 4,
         .scale = 1},
        {.text = "graph g(%a: f32[4,10,50], %b: f32[10,1],"
                 " %c: f32[5,12,60], %d: f32[12,1]) {"
                 " const %p: f32[] = 2.3 const %q: f32[] = 3.1"
                 " group point { %x0 = mul %a, %b %x = add %x0, %p }"
                 " group point { %y0 = mul %c, %d %y = add %y0, %q }"
                 " return %x, %y }"},
        {.text = "graph g(%a: f32[8,40,50], %b: f32[9,44,60]) {"
                 " group row { %x = reduce_sum %a {axes=[0,2]} }"
                 " group row { %y = reduce_sum %b {axes=[0,2]} }"
                 " group row { %u = reduce_max %a {axes=[1]} }"
                 " group row { %v = reduce_max %b {axes=[1]} }"
                 " return %x, %y, %u, %v }",
         .ulps = 16,
         .scale = 50},
    };
    static const int functions[] = {2, 1, 2};
    for (int i = 0; i < (int)(sizeof s / sizeof *s); i++) {
        StrBuf sb = {0};
        Subject one = lowered(s[i].text);
        CHECK_EQ_INT(print_c_kernels(one.texts, &sb, "", whole), functions[i]);
        CHECK(!strpbrk(sb.data, "\1\2"));
        sb_free(&sb);
        subject_end(&one);
    }
    CHECK_GRAPHS(s, "-Wall -Werror -Wno-unused");
}

/* What the C compiler reads of a kernel, and the part in which it does, stay
   when an edit changes widths, a number of the optimizer, or adds a kernel. */
TEST_CASE(print_c, an_edit_keeps_the_texts_of_other_kernels) {
    Subject was = lowered("graph g(%a: f32[60,70], %b: f32[6000]) {"
                          " const %p: f32[] = 0.9"
                          " group row { %m = reduce_mean %a {axes=[1]}"
                          " %x = sub %a, %m }"
                          " group point { %s = mul %b, %p %y = neg %s }"
                          " return %x, %y }");
    Subject now = lowered("graph g(%a: f32[90,102], %b: f32[9000]) {"
                          " const %p: f32[] = 0.7"
                          " group point { %e = exp %a }"
                          " group row { %m = reduce_mean %e {axes=[1]}"
                          " %x = sub %e, %m }"
                          " group point { %s = mul %b, %p %y = neg %s }"
                          " return %x, %y }");
    enum { PARTS = 3 };
    int seen = 0;
    for (int part = 0; part < PARTS; part++)
        for (int i = 0; i < was.texts->list.len; i++) {
            KernelPart p = {KERNELS_ALL, part, PARTS};
            StrBuf before = {0}, after = {0}, name = {0};
            print_c_kernels(was.texts, &before, "", p);
            print_c_kernels(now.texts, &after, "", p);
            sb_put_kernel_name(&name, &was.texts->list.data[i]);
            bool here = strstr(before.data, name.data) != NULL;
            CHECK_EQ_INT(strstr(after.data, name.data) != NULL, here);
            seen += here;
            sb_free(&before);
            sb_free(&after);
            sb_free(&name);
        }
    CHECK_EQ_INT(seen, 2);
    subject_end(&was);
    subject_end(&now);
}

/* Levels share small kernels, except those whose last bits depend on the
   level. */
TEST_CASE(print_c, small_kernels_have_no_exponentials) {
    Subject s = lowered("graph g(%a: f32[9], %b: f32[7,9]) {"
                        " group point { %x = mul %b, %a }"
                        " group row { %e = exp %b"
                        " %s = reduce_sum %e {axes=[1]} }"
                        " group point { %g = gelu %b %y = mul %g, %a }"
                        " return %x, %s, %y }");
    StrBuf large = {0}, small = {0}, name = {0};
    print_c_kernels(s.texts, &large, "", (KernelPart){KERNELS_LARGE, 0, 1});
    print_c_kernels(s.texts, &small, "", (KernelPart){KERNELS_SMALL, 0, 1});
    CHECK_HAS(large.data, "EXP_F32");
    CHECK_HAS(large.data, "GELU_F32");
    CHECK(!strstr(small.data, "_F32("));
    CHECK_EQ_INT(s.texts->list.data[0].small, true);
    sb_put_kernel_name(&name, s.texts->list.data);
    CHECK_HAS(small.data, name.data);
    CHECK(!strstr(large.data, name.data));
    sb_free(&name);
    sb_free(&large);
    sb_free(&small);
    subject_end(&s);
}

/* Rank-0 constants are not buffers. */
TEST_CASE(print_c, scalar_constants_are_immediates) {
    Subject s = lowered("graph g(%a: f32[10]) { const %c: f32[] = 2.5 "
                        "group point { %x = mul %a, %c } return %x }");
    CHECK_EQ_INT(s.steps[0].nref, 2);
    subject_end(&s);
}

/* Number of occurrences of a word in the text of the graph's kernels. */
static int count_of(const char *graph, const char *word) {
    Subject s = lowered(graph);
    StrBuf sb = {0};
    int n = 0;
    print_c_kernels(s.texts, &sb, "", whole);
    for (const char *p = sb.data; (p = strstr(p, word)); p++) n++;
    sb_free(&sb);
    subject_end(&s);
    return n;
}

/* Tiles prefetch rows that are far apart in memory, the operand and both
   results, but not data that all rows share, nor data with one element per
   row. On a machine with AVX2 a bf16 GPT takes 1.05 times as long without
   prefetching. */
TEST_CASE(print_c, rows_of_tiles_are_fetched_ahead) {
    const char *tile = "graph g(%x: f32[64,7], %w: f32[7,30], %b: f32[30],"
                       " %r: f32[64,1], %s: bf16[64,30]) { group anchor {"
                       " %z = matmul %x, %w %a = add %z, %b %c = add %a, %r"
                       " %t = add %c, %s %y = cast %t : bf16[64,30] }"
                       " return %t, %y }";
    const char *point = "graph g(%a: f32[64,30], %b: f32[30]) { group point {"
                        " %x = mul %a, %b } return %x }";
    CHECK_EQ_INT(count_of(tile, "__builtin_prefetch"), 3);
    CHECK_EQ_INT(count_of(tile, " * i0 + j + n"), 3);
    CHECK_EQ_INT(count_of(tile, "j += 32"), 2);
    CHECK_EQ_INT(count_of(tile, "j += 16"), 1);
    CHECK_EQ_INT(count_of(point, "__builtin_prefetch"), 0);
}

/* gcc keeps a sum in registers beside a row in memory only if the row is
   reached through a separate pointer: otherwise norms of rows in 16 bits
   take 1.3 to 1.5 times as long. */
TEST_CASE(print_c, kept_rows_are_reached_by_pointers_of_their_own) {
    const char *norm = "graph g(%x: f16[64,128]) { group row {"
                       " %m = reduce_mean %x {axes=[1]} : f32[64,1]"
                       " %d = sub %x, %m : f32[64,128] %q = mul %d, %d"
                       " %v = reduce_mean %q {axes=[1]}"
                       " %y = mul %d, %v : f32[64,128] } return %y }";
    CHECK_EQ_INT(count_of(norm, "[128], *restrict const s"), 1);
}

/* Sums of columns prefetch, too, if there are many rows: without prefetching
   they take twice as long. */
TEST_CASE(print_c, rows_of_sums_are_fetched_ahead) {
    const char *many = "graph g(%x: f32[512,40], %b: f32[1,40]) { group row {"
                       " %y = mul %x, %b %s = reduce_sum %y {axes=[0]} }"
                       " return %s }";
    const char *several = "graph g(%x: f32[3,512,40]) { group row {"
                          " %s = reduce_sum %x {axes=[0,1]} } return %s }";
    const char *few = "graph g(%x: f32[63,40]) { group row {"
                      " %s = reduce_sum %x {axes=[0]} } return %s }";
    CHECK_EQ_INT(count_of(many, "__builtin_prefetch"), 1);
    CHECK_EQ_INT(count_of(many, " * i0 + (c0 + j) + n"), 1);
    CHECK_EQ_INT(count_of(several, "__builtin_prefetch"), 1);
    CHECK_EQ_INT(count_of(several, "(c0 + j) + n"), 1);
    CHECK_EQ_INT(count_of(few, "__builtin_prefetch"), 0);
}

/* A comparison with a constant needs no rounding; a store does. */
TEST_CASE(print_c, compared_values_are_not_rounded) {
    const char *sign = "graph g(%a: f32[40], %g: bf16[40]) { group point {"
                       " %x = cast %a : bf16[40] %m = less_equal %x, 0"
                       " %y = where %m, 0, %g } return %y }";
    const char *both = "graph g(%a: f32[40], %b: f32[40]) { group point {"
                       " %x = cast %a : bf16[40] %y = cast %b : bf16[40]"
                       " %m = less_equal %x, %y } return %m }";
    CHECK_EQ_INT(count_of(sign, "ROUND_BF16"), 0);
    CHECK_EQ_INT(count_of(both, "ROUND_BF16"), 2);
    static const char *const numbers[] = {"-100", "-1", "-0.3", "0.3", "100"};
    for (int i = 0; i < 5; i++)
        for (int half = 0; half < 2; half++) {
            char text[400];
            snprintf(text, sizeof text,
                     "graph g(%%a: f32[40]) { group point {"
                     " %%x = cast %%a : %s[40] %%m = less %%x, %s"
                     " %%n = greater_equal %%x, %s } return %%m, %%n }",
                     half ? "f16" : "bf16", numbers[i], numbers[i]);
            CHECK_EQ_INT(count_of(text, half ? "ROUND_F16" : "ROUND_BF16"), 0);
        }
}

/* A value that is rounded only for its store is rounded after each piece of
   the loop. */
TEST_CASE(print_c, stores_of_bf16_are_late) {
    const char *cast = "graph g(%a: f32[4000]) { group point {"
                       " %x = cast %a : bf16[4000] } return %x }";
    const char *again = "graph g(%a: f32[4000]) { group point {"
                        " %x = cast %a : bf16[4000] %y = neg %x : f32[4000] }"
                        " return %x, %y }";
    const char *tiny = "graph g(%a: f32[4000,20]) { group row {"
                       " %m = reduce_max %a {axes=[1], keepdims=1}"
                       " %x = sub %a, %m : bf16[4000,20] } return %x }";
    CHECK_EQ_INT(count_of(cast, "PUT_BF16("), 1);
    CHECK_EQ_INT(count_of(cast, "ROUND_BF16"), 0);
    CHECK_EQ_INT(count_of(again, "PUT_BF16("), 0);
    CHECK_EQ_INT(count_of(tiny, "PUT_BF16("), 0);
}

/* A row that is read again is kept as fp32. */
TEST_CASE(print_c, rows_of_16_bits_are_widened_once) {
    const char *rows = "graph g(%a: bf16[30,200]) { group row {"
                       " %m = reduce_max %a {axes=[1], keepdims=1}"
                       " %d = sub %a, %m %s = reduce_sum %d {axes=[1],"
                       " keepdims=1} %y = mul %d, %s } return %y }";
    const char *half = "graph g(%a: f16[30,200]) { group row {"
                       " %m = reduce_max %a {axes=[1], keepdims=1}"
                       " %y = sub %a, %m } return %y }";
    const char *longer = "graph g(%a: bf16[30,5000]) { group row {"
                         " %m = reduce_max %a {axes=[1], keepdims=1}"
                         " %y = sub %a, %m } return %y }";
    CHECK_EQ_INT(count_of(rows, "BF16_TO_F32("), 1);
    CHECK_EQ_INT(count_of(half, "WIDEN_F16("), 1);
    CHECK(count_of(longer, "WIDEN_BF16(") + count_of(longer, "BF16_TO_F32(") >
          1);
}

/* No name in the model can end a comment or break the source. */
TEST_CASE(print_c, hostile_names) {
    Subject s[] = {
        {.text = "graph g(%\"*/ #error no\\n\": f32[3]) { group point {"
                 "%\"a*/int main(){}//\" = neg %\"*/ #error no\\n\" }"
                 " return %\"a*/int main(){}//\" }"},
        {.text = "graph g(%\"?"
                 "?/\\x0d\\n\": f32[3]) { group point {"
                 "%\"\\\\\" = neg %\"?"
                 "?/\\x0d\\n\" }"
                 " return %\"\\\\\" }"},
    };
    CHECK_GRAPHS(s, "-Wall -Werror -Wno-unused");
}

/* An output may overwrite an input that is read only at the same index. */
TEST_CASE(print_c, in_place) {
    Subject s = lowered("graph g(%x: f32[6,70]) { group row { %m = reduce_max "
                        "%x {axes=[1]} %d = sub %x, %m %t = reduce_sum %d "
                        "{axes=[1]} %y = mul %d, %t } return %y }");
    StrBuf sb = {0};
    print_c_kernels(s.texts, &sb, "g0_", whole);
    print_c_sizes(s.texts, &sb, "g0_");
    void *lib = compile_source(sb.data, sb.len, "");
    sb_free(&sb);
    const LoweredStep *st = &s.steps[0];
    size_t n = 6 * 70 * sizeof(float);
    float *want = s.data[st->refs[1].i], *x = s.data[st->refs[0].i];
    subject_load(&s, st->refs[0]);
    subject_run(&s, lib, 0, false);
    float *apart = memcpy(malloc(n), want, n);
    s.data[st->refs[1].i] = x;
    subject_run(&s, lib, 0, false);
    CHECK_MEM(apart, x, n);
    s.data[st->refs[1].i] = want;
    free(apart);
    dlclose(lib);
    subject_end(&s);
}
