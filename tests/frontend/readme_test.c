/* SPDX-License-Identifier: Apache-2.0 */
/* readme_test.c: the README's tables are what the tool prints, and its tour
   runs as it is written.                                                    */
#define _XOPEN_SOURCE 700
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"

static char *readme(void) {
    char *text = test_read_file(test_data_path("README.md"), NULL);
    REQUIRE(text);
    return text;
}

TEST_CASE(readme, lists_the_passes_as_the_tool_does) {
    char *table, *text = readme();
    CHECK_EQ_INT(test_command(&table, "'%s' --list-passes", test_ampc()), 0);
    CHECK_HAS(text, table);
    free(table);
    free(text);
}

/* An IDX file of bytes; the first axis has n entries. */
static void put_idx(const char *name, int rank, int n, int most) {
    static unsigned char file[200 * 784 + 16];
    size_t bytes = (size_t)n * (rank == 3 ? 784 : 1);
    unsigned char head[16] = {0, 0, 8, (unsigned char)rank};
    head[7] = (unsigned char)n;
    head[11] = head[15] = 28;
    memcpy(file, head, 4 + 4 * (size_t)rank);
    for (size_t i = 0; i < bytes; i++)
        file[4 + 4 * (size_t)rank + i] =
            (unsigned char)(i * 2654435761u >> 16) % (unsigned)most;
    REQUIRE(
        test_write_file(test_tmp(name), file, 4 + 4 * (size_t)rank + bytes));
}

/* The indented lines behind the heading. */
static void put_tour(const char *name) {
    char *text = readme(), *from = strstr(text, "\nCompile, train, look"), *end;
    REQUIRE(from);
    from = strstr(from, "\n    ");
    end = strstr(from, "\n\nThe same from C");
    REQUIRE(from && end);
    REQUIRE(test_write_file(test_tmp(name), from, (size_t)(end - from) + 1));
    free(text);
}

/* In a folder like a clone after script/demo, with other digits. */
TEST_CASE(readme, the_tour_runs) {
    char *out,
        *models = realpath(test_data_path("models/mnist_cnn.onnx"), NULL);
    REQUIRE(models);
    *strrchr(models, '/') = '\0';
    require_nvrtc();
    int rc = test_command(&out,
                          "cd '%s' && mkdir -p out/bin out/demo/digits && "
                          "ln -s '%s' models && ln -s '%s' out/bin/ampc",
                          test_tmpdir(), models, test_ampc());
    REQUIRE(rc == 0);
    free(out);
    free(models);
    put_idx("out/demo/digits/train-images-idx3-ubyte", 3, 128, 256);
    put_idx("out/demo/digits/train-labels-idx1-ubyte", 1, 128, 10);
    put_idx("out/demo/digits/t10k-images-idx3-ubyte", 3, 70, 256);
    put_idx("out/demo/digits/t10k-labels-idx1-ubyte", 1, 70, 10);
    put_tour("tour.sh");
    rc = test_command(&out, "cd '%s' && sh -e tour.sh", test_tmpdir());
    CHECK_MSG(rc == 0, "status %d\n%s", rc, out);
    CHECK_HAS(out, "samples/s");
    CHECK_HAS(out, "__global__");
    free(out);
}
