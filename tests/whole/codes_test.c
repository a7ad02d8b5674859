/* SPDX-License-Identifier: Apache-2.0 */
/* codes_test.c: weights in codes (--frozen-dtype), of sizes that end within a
   block: each number read back is within the bound that its own block of 64
   gives, whether the codes were made by a load or by a write. Blocks differ in
   magnitude by powers of ten, so that a scale of another block, or numbers left
   over from it, are far outside. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/support/compiled.h"

enum { ROWS = 37, COLS = 29, COUNT = ROWS * COLS, BLOCK = 64 };

/* Sample r of the identity picks row r of the weights. */
static const char model[] = "graph forward(%x: f32[37,37]) {\n"
                            "  param %w: f32[37,29] = normal(1, 0.05)\n"
                            "  param %b: f32[29] = 0\n"
                            "  %h = matmul %x, %w\n"
                            "  %y = add %h, %b\n  return %y\n}\n";

#define OPTIONS "--loss mse --precision fp32 --optimizer sgd,lr=0.1 "

typedef struct Code {
    const char *name;
    double step; /* half of the widest gap between levels, of the largest 1 */
} Code;

/* int8: 127 levels on each side; int4: 7; nf4: the widest gap of its table is
   from -1 to -0.696. Products may widen to bf16. */
static const Code codes[] = {
    {"int8", 0.5 / 127}, {"int4", 0.5 / 7}, {"nf4", 0.304 / 2}};

static float wanted[COUNT];

/* The last block is the smallest. */
static void draw_weights(void) {
    uint32_t state = 5;
    for (int i = 0; i < COUNT; i++) {
        state = state * 1664525 + 1013904223;
        double x = (double)(state >> 8) / 8388608.0 - 1;
        int block = i / BLOCK;
        wanted[i] =
            (float)(x * pow(10, block == COUNT / BLOCK ? -4 : block % 4 - 2));
    }
}

static double largest_of_block(int i) {
    double most = 0;
    for (int k = i / BLOCK * BLOCK; k < COUNT && k / BLOCK == i / BLOCK; k++)
        most = fmax(most, fabs((double)wanted[k]));
    return most;
}

static void check_read(const Compiled *c, ampc_session *s, const Code *code,
                       const char *made) {
    static float x[ROWS * ROWS], y[COUNT];
    ampc_input in = ampc_in("x", x, sizeof x, AMPC_DTYPE_F32);
    ampc_output out = ampc_out("y", y, sizeof y, AMPC_DTYPE_F32);
    memset(x, 0, sizeof x);
    for (int r = 0; r < ROWS; r++) x[r * ROWS + r] = 1;
    if (c->api->predict(s, &in, 1, ROWS, &out, 1))
        FAIL("predict: %s", c->api->error(s));
    for (int i = 0, bad = 0; i < COUNT && bad < 3; i++) {
        double most = largest_of_block(i);
        double allowed = most * (code->step * 1.001 + 0x1p-8);
        double apart = fabs((double)y[i] - (double)wanted[i]);
        bad += !CHECK_MSG(apart <= allowed,
                          "%s, %s: element %d of block %d is %g, was %g; %g "
                          "apart, %g allowed",
                          code->name, made, i % BLOCK, i / BLOCK, (double)y[i],
                          (double)wanted[i], apart, allowed);
    }
}

static void check_code(const Code *code) {
    char options[200];
    const char *path = test_tmp("codes.safetensors");
    Compiled plain = compile_text(model, OPTIONS);
    ampc_session *s = open_threads(&plain, 1);
    write_var(&plain, s, "w", wanted, sizeof wanted, AMPC_DTYPE_F32);
    REQUIRE(plain.api->save_weights(s, path) == AMPC_OK);
    plain.api->close(s);
    compiled_close(&plain);

    snprintf(options, sizeof options,
             OPTIONS "--lora w,rank=1 --frozen-dtype %s", code->name);
    Compiled c = compile_text(model, options);
    for (int load = 0; load < 2; load++) {
        s = open_threads(&c, 2);
        if (load) {
            ampc_weights from = {
                .size = sizeof from, .paths = &path, .npath = 1, .partial = 1};
            if (c.api->load_weights(s, &from))
                FAIL("load: %s", c.api->error(s));
        } else {
            write_var(&c, s, "w", wanted, sizeof wanted, AMPC_DTYPE_F32);
        }
        check_read(&c, s, code, load ? "loaded" : "written");
        c.api->close(s);
    }
    compiled_close(&c);
}

TEST_CASE(codes, are_within_the_bounds_of_their_block) {
    draw_weights();
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        check_code(&codes[i]);
}
