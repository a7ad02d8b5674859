/* SPDX-License-Identifier: Apache-2.0 */
/* many.c: one launch for many tensors, and folds of the last block. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "codegen/cuda/cuda.h"
#include "tests/codegen/print_cuda/print_cuda.h"
#include "tests/support/simulate.h"

/* ---- many tensors -------------------------------------------------------- */

/* Checks that the texts from `from` on share the last one's kernel in one
   launch. */
static void check_many(const char *const *text, int n, int from) {
    Suite x = suite_new(text, n);
    SimTwin *t = twin_of(&x);
    for (int i = from; i < n; i++) {
        REQUIRE(x.s[i].step.kernel == x.s[n - 1].step.kernel);
        subject_load(&x.s[i], x.a);
    }
    run_many(&x.s[from], n - from, t);
    for (int i = from; i < n; i++)
        check_outputs(&x.s[i], x.a, cuda_interpret(&x.s[i], x.a));
    sim()->twin_close(t);
    suite_free(&x);
}

TEST_CASE(print_cuda, one_launch_updates_many_tensors) {
    static const int sizes[] = {1, 1024, 3, 5000, 0, 2049, 4};
    enum { N = sizeof sizes / sizeof *sizes };
    const char *text[N];
    Arena *a = arena_new();
    for (int i = 0; i < N; i++)
        text[i] = arena_printf(a,
                               "graph g(%%a: f32[%d], %%s: f32[]) { group "
                               "point { %%y = mul %%a, %%s } return %%y }",
                               sizes[i]);
    check_many(text, N, 1); /* one element: no dims */
    arena_free(a);
}

/* Rows of any number and length, also rows whose vectors would not be aligned,
   with operands of one row and operands that all rows read. */
TEST_CASE(print_cuda, one_launch_folds_rows_of_any_length) {
    static const int sizes[][2] = {{1, 3},    {264, 256}, {1, 1024}, {5, 257},
                                   {1, 8000}, {2, 4100},  {1, 2},    {3, 513}};
    static const char *const bodies[] = {
        "graph g(%%a: %s[%d,%d], %%s: %s[]) { group row { %%b = mul %%a, %%s "
        "%%y = reduce_sumsq %%b {axes=[1], keepdims=1} } return %%y }",
        "graph g(%%a: %s[%d,%d], %%s: %s[]) { group row { %%b = neg %%a "
        "%%m = reduce_max %%a {axes=[1], keepdims=1} "
        "%%n = reduce_max %%b {axes=[1], keepdims=1} "
        "%%y = add %%m, %%s } return %%y, %%n }"};
    static const char *const dtypes[] = {"f32", "bf16", "f64", "i32"};
    enum { N = sizeof sizes / sizeof *sizes };
    const char *text[N];
    Arena *a = arena_new();
    for (int b = 0; b < 2; b++)
        for (int d = 0; d < 4; d++) {
            for (int i = 0; i < N; i++)
                text[i] = arena_printf(a, bodies[b], dtypes[d], sizes[i][0],
                                       sizes[i][1], dtypes[d]);
            check_many(text, N, 0);
        }
    arena_free(a);
}

/* ---- behind the last block ----------------------------------------------- */

enum { TENSORS = 5 };

/* Sums of squares of rows, and then sums of these: all in one launch, except
   tensor 3, which has only the former. */
typedef struct Behind {
    Suite x; /* subjects 2i and 2i + 1 */
    SimTwin *t;
    uint64_t *table;
    uint32_t *counters;
} Behind;

static Behind behind_new(Arena *a) {
    static const int sizes[TENSORS][2] = {
        {264, 256}, {2, 1000}, {7, 301}, {5, 400}, {128, 260}};
    const char *text[2 * TENSORS];
    Behind b = {.counters = block_new(TENSORS * sizeof *b.counters)};
    for (int i = 0; i < TENSORS; i++) {
        text[2 * i] = arena_printf(
            a,
            ROW("%%a: f32[%d,%d]",
                "%%y = reduce_sumsq %%a {axes=[1]} : f64[%d,1]", "%%y"),
            sizes[i][0], sizes[i][1], sizes[i][0]);
        text[2 * i + 1] = arena_printf(
            a, ROW("%%a: f64[%d,1]", "%%y = reduce_sum %%a {axes=[0]}", "%%y"),
            sizes[i][0]);
    }
    b.x = suite_new(text, 2 * TENSORS);
    StrBuf sb = suite_text(&b.x);
    print_cuda_many_after(b.x.s[0].step.kernel, b.x.s[1].step.kernel, false,
                          &sb);
    b.t = twin_of_text(sb);
    return b;
}

static void *ref_of(const Subject *s, int i) {
    return s->data[s->step.refs[i].i];
}

static void run_behind(Behind *b) {
    int n = b->x.s[0].step.nref, m = b->x.s[1].step.nref, width = 4 + n + m;
    uint64_t blocks = 0, *table = block_new((size_t)(TENSORS * width) * 8);
    unsigned count = TENSORS;
    Args p = {0};
    for (int i = 0; i < TENSORS; i++) {
        uint64_t *row = table + width * i;
        uint64_t next = put_row(&b->x.s[2 * i], row, blocks);
        for (int j = 0; j < m; j++) {
            bool read = b->x.s[1].step.kernel->bufs.data[j].written == false;
            void *at = read ? ref_of(&b->x.s[2 * i], n - 1)
                            : ref_of(&b->x.s[2 * i + 1], j);
            row[2 + n + j] = i == 3 ? 0 : (uint64_t)(uintptr_t)at;
        }
        row[2 + n + m] = next - blocks;
        row[3 + n + m] = (uint64_t)(uintptr_t)&b->counters[i];
        blocks = next;
    }
    add_arg(&p, table);
    p.slot[p.n++] = &count;
    CudaShape shape = cuda_shape(b->x.s[0].step.kernel);
    shape.blocks = (int64_t)blocks;
    char suffix[20];
    snprintf(suffix, sizeof suffix, "_%d_many", b->x.s[1].step.kernel->index);
    cuda_launch(&b->x.s[0], b->t, 'k', b->x.s[0].step.kernel, suffix, shape,
                &p);
    free(table);
}

/* Whatever the order of the blocks, every run gives the bits of two separate
   launches. */
TEST_CASE(print_cuda, the_last_block_folds_what_all_have_made) {
    Arena *a = arena_new();
    Behind b = behind_new(a);
    double want[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
        Subject *s = &b.x.s[2 * i], *after = s + 1;
        REQUIRE(s->step.kernel == b.x.s[0].step.kernel &&
                after->step.kernel == b.x.s[1].step.kernel);
        const Type *t = value_type(s->g, s->step.refs[0]);
        for (int64_t k = 0; k < type_count(t); k++)
            ((float *)ref_of(s, 0))[k] = (float)random_bits() / 3e8f;
        run_kernel(s, b.t);
        memcpy(ref_of(after, 0), ref_of(s, 1),
               (size_t)s->step.pars[0] * sizeof(double));
        run_kernel(after, b.t);
        want[i] = *(double *)ref_of(after, 1);
        CHECK(want[i] > 0);
    }
    memset(b.counters, 0, TENSORS * sizeof *b.counters);
    for (int time = 0; time < 8; time++) {
        sim()->seed((uint64_t)time + 1);
        for (int i = 0; i < 2 * TENSORS; i++) {
            const Subject *s = &b.x.s[i];
            memset(ref_of(s, 1), 0x7f,
                   (size_t)type_bytes(value_type(s->g, s->step.refs[1])));
        }
        run_behind(&b);
        for (int i = 0; i < TENSORS; i++) {
            double got = *(double *)ref_of(&b.x.s[2 * i + 1], 1);
            CHECK_MSG((got == want[i]) == (i != 3), "%d: %a, not %a", i, got,
                      want[i]);
            CHECK_EQ_INT(b.counters[i], 0);
        }
    }
    sim()->twin_close(b.t);
    free(b.counters);
    suite_free(&b.x);
    arena_free(a);
}

/* A fold gets a kernel of its own if its text uses its address, its rows or
   its columns in another way. */
TEST_CASE(print_cuda, folds_that_are_no_rows_in_memory_keep_their_form) {
    static const char *const others[] = {
        ROW("%a: f32[256,300]", "%y = reduce_sum %a {axes=[0]}", "%y"),
        ROW("%a: f32[4,300]", "%m = reduce_max %a {axes=[1]} %y = sub %a, %m",
            "%y"),
        ROW("%a: f32[4,300], %r: f32[1,300]",
            "%d = sub %a, %r %y = reduce_max %d {axes=[1]}", "%y"),
        ROW("%a: f32[4,600]",
            "%c = slice %a {starts=[0,300], sizes=[4,300], steps=[1,1]} "
            "%y = reduce_max %c {axes=[1]}",
            "%y"),
        ROW("%a: f32[265,300]", "%y = reduce_sum %a {axes=[1]}", "%y"),
        ROW("%a: f32[4,255]", "%y = reduce_sum %a {axes=[1]}", "%y")};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        Suite x = suite_lowered(&others[i], 1);
        CHECK_MSG(x.s[0].step.kernel->form != KF_FOLD, "%s", others[i]);
        suite_free(&x);
    }
}

TEST_CASE(print_cuda, one_launch_of_equal_shapes_in_every_form) {
    static const char *const forms[] = {
        POINT("%a: f32[33,70]", "%y = transpose %a {perm=[1,0]}"),
        POINT("%a: f32[], %b: f32[]", "%y = add %a, %b"),
        ROW("%a: bf16[100,10]", "%y = reduce_max %a {axes=[1]}", "%y"),
        ROW("%a: f32[17,50], %r: f32[17,1]",
            "%m = reduce_max %a {axes=[1]} %d = sub %a, %m "
            "%s = reduce_sum %d {axes=[1]} %t = add %s, %r %y = mul %d, %t",
            "%y, %s, %t"),
        ROW("%a: f32[3,1025]", "%y = reduce_sum %a {axes=[1]}", "%y"),
        ROW("%a: i32[3,40,33]", "%y = reduce_sum %a {axes=[1]}", "%y")};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const char *text[] = {forms[i], forms[i], forms[i]};
        check_many(text, 3, 0);
    }
}
