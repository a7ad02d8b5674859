/* SPDX-License-Identifier: Apache-2.0 */
/* augment_test.c: --augment compared with a simple description of it: each
   result is one of the pictures that a flip and a window can give. */
#include "tests/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/data/augment.h"

enum { BATCH = 4, C = 2, H = 3, W = 5, PER = C * H * W, MANY = 400 };

typedef struct Set {
    FeedSet fs;
    Feed feed[2];
    float x[BATCH * PER], labels[BATCH * 3];
    Diag diag;
    RunList specs;
} Set;

/* A picture x f32[B,2,3,5] and labels target f32[B,3]. */
static Status open_set(Set *s, bool training, const char *spec) {
    *s = (Set){.specs = {.at = {spec}, .n = 1}};
    s->feed[0] = (Feed){.want = {.name = "x",
                                 .dtype = AMPC_DTYPE_F32,
                                 .rank = 4,
                                 .shape = {BATCH, C, H, W},
                                 .bytes = sizeof s->x},
                        .per = PER,
                        .to = (char *)s->x};
    s->feed[1] = (Feed){.want = {.name = "target",
                                 .dtype = AMPC_DTYPE_F32,
                                 .rank = 2,
                                 .shape = {BATCH, 3},
                                 .bytes = sizeof s->labels},
                        .per = 3,
                        .to = (char *)s->labels};
    s->fs = (FeedSet){.feed = s->feed, .n = 2, .batch = BATCH};
    return augment_open(&s->diag, &s->specs, NULL, training, 7, &s->fs);
}

static void close_set(Set *s) {
    augment_free(&s->fs);
    sb_free(&s->diag.text);
}

/* Every element of a sample is a different number; labels are one-hot. */
static void fill(Set *s) {
    for (int i = 0; i < BATCH * PER; i++) s->x[i] = (float)(1 + i);
    for (int i = 0; i < BATCH * 3; i++) s->labels[i] = i % 3 == i / 3 % 3;
}

/* ---- flips and crops ----------------------------------------------------- */

static float pixel(int sample, int c, int y, int x) {
    if (y < 0 || y >= H || x < 0 || x >= W) return 0;
    return (float)(1 + ((sample * C + c) * H + y) * W + x);
}

/* True if row `row` is sample `row`, flipped and moved that way. */
static bool is_moved(const Set *s, int row, bool flipped, int dy, int dx) {
    for (int c = 0; c < C; c++)
        for (int y = 0; y < H; y++)
            for (int x = 0; x < W; x++) {
                int from = x + dx;
                if (flipped && from >= 0 && from < W) from = W - 1 - from;
                if (s->x[((row * C + c) * H + y) * W + x] !=
                    pixel(row, c, y + dy, from))
                    return false;
            }
    return true;
}

/* Counts each of the 2 * 9 pictures of 400 epochs. */
static void count_moves(const char *spec, int count[2][3][3]) {
    Set s;
    CHECK(open_set(&s, true, spec) == OK);
    memset(count, 0, 18 * sizeof(int));
    for (s.fs.epoch = 0; s.fs.epoch < MANY; s.fs.epoch++) {
        int found = 0;
        fill(&s);
        augment_rows(&s.fs, NULL, 0, BATCH);
        for (int k = 0; k < 18; k++) {
            bool is = is_moved(&s, 1, k / 9, k / 3 % 3 - 1, k % 3 - 1);
            found += is;
            count[k / 9][k / 3 % 3][k % 3] += is;
        }
        CHECK_EQ_INT(found, 1);
    }
    close_set(&s);
}

TEST_CASE(augment, flips_half_and_moves_everywhere) {
    int n[2][3][3];
    count_moves("x=flip,crop:1", n);
    for (int k = 0; k < 18; k++) /* 22 expected, with a standard deviation of
                                    4.6 */
        CHECK_MSG(n[k / 9][k / 3 % 3][k % 3] > 3, "%d", k);
    count_moves("x=flip", n);
    CHECK_EQ_INT(n[0][1][1] + n[1][1][1], MANY);
    CHECK(n[1][1][1] > 150 && n[1][1][1] < 250);
    count_moves("x=flip:0", n);
    CHECK_EQ_INT(n[0][1][1], MANY);
    count_moves("x=crop:1", n);
    for (int k = 0; k < 9; k++) CHECK(n[0][k / 3][k % 3] > 10);
}

TEST_CASE(augment, draws_by_epoch_and_sample_alone) {
    static const int64_t order[] = {3, 2, 1, 0};
    Set a, b;
    int other = 0;
    REQUIRE(open_set(&a, true, "x=flip,crop:2") == OK &&
            open_set(&b, true, "x=flip,crop:2") == OK);
    for (int epoch = 0; epoch < 20; epoch++) {
        float kept[BATCH * PER];
        a.fs.epoch = b.fs.epoch = epoch;
        fill(&a);
        fill(&b);
        for (int i = 0; i < BATCH; i++) /* b has the samples in reverse order */
            memcpy(b.x + (BATCH - 1 - i) * PER, a.x + i * PER, 4 * PER);
        augment_rows(&a.fs, NULL, 0, BATCH);
        augment_rows(&b.fs, order, 0, 2);
        augment_rows(&b.fs, order, 0, 0);
        for (int i = 2; i < BATCH; i++)
            CHECK_MEM(b.x + (BATCH - 1 - i) * PER, a.x + i * PER, 4 * PER);
        memcpy(kept, a.x, sizeof kept);
        a.fs.epoch++;
        fill(&a);
        augment_rows(&a.fs, NULL, 0, BATCH);
        other += memcmp(kept, a.x, sizeof kept) != 0;
    }
    CHECK(other > 15);
    close_set(&a);
    close_set(&b);
}

/* ---- numbers ------------------------------------------------------------- */

TEST_CASE(augment, normalizes_by_channel_and_leaves_evaluation_alone) {
    Set s;
    for (int training = 0; training < 2; training++) {
        const char *spec = training ? "x=normalize:1:40/2:4"
                                    : "x=flip:1,crop:2,normalize:1:40/2:4";
        REQUIRE(open_set(&s, training, spec) == OK);
        fill(&s);
        augment_rows(&s.fs, NULL, 0, BATCH);
        for (int i = 0; i < BATCH * PER; i++) {
            int c = i / (H * W) % C;
            CHECK_NEAR(s.x[i], (1 + i - (c ? 40 : 1)) / (c ? 4.0 : 2.0), 0);
        }
        close_set(&s);
    }
}

TEST_CASE(augment, mixes_labels_as_pictures) {
    Set s;
    double sum = 0, squares = 0;
    int mixed = 0;
    REQUIRE(open_set(&s, true, "x=mixup:1") == OK);
    for (s.fs.epoch = 0; s.fs.epoch < MANY; s.fs.epoch++) {
        fill(&s);
        augment_rows(&s.fs, NULL, 0, BATCH);
        /* only sample 1 has label 1: the label is its share */
        double share = s.labels[3 + 1], other = 1 - share;
        CHECK_NEAR(s.labels[3] + s.labels[4] + s.labels[5], 1, 1e-6);
        double from = (s.x[PER] - share * pixel(1, 0, 0, 0)) / other;
        if (other < 0.05) continue;
        double k = (from - 1) / PER;
        CHECK_NEAR(k, nearbyint(k), 1e-3);
        sum += share;
        squares += share * share;
        mixed++;
    }
    close_set(&s);
    CHECK(mixed > MANY / 2); /* a quarter is mixed with itself */
    /* uniform between 0 and 0.95: mean 0.475, mean of squares 0.301 */
    CHECK_NEAR(sum / mixed, 0.475, 0.05);
    CHECK_NEAR(squares / mixed, 0.301, 0.05);
}

/* ---- refusals ------------------------------------------------------------ */

static void refused(const char *spec, const char *why) {
    Set s;
    CHECK(open_set(&s, true, spec) != OK);
    CHECK_HAS(s.diag.text.data, why);
    close_set(&s);
}

TEST_CASE(augment, refuses_what_does_not_fit) {
    refused("x=flop", "unknown step 'flop'");
    refused("x=crop", "the form is crop:PIXELS");
    refused("x=crop:1.5", "the form is crop:PIXELS");
    refused("x=flip:2", "the form is flip or flip:SHARE");
    refused("x=normalize:1", "the form is normalize:MEAN/STD");
    refused("x=normalize:1/0", "the form is normalize:MEAN/STD");
    refused("x=normalize:1:2:3/1:1:1", "another number of channels");
    char many[300] = "x=normalize:"; /* 64 channels, and one without a number */
    for (int i = 0; i < 64; i++) strcat(many, "1:");
    strcat(many, "/1");
    for (int i = 1; i < 64; i++) strcat(many, ":1");
    refused(many, "the form is normalize:MEAN/STD");
    refused("target=flip", "no rows and columns");
    refused("target=mixup:1", "no labels are mixed with it");
    refused("y=flip", "the module has no such input");
    refused("x=", "unknown step ''");
}
