/* SPDX-License-Identifier: Apache-2.0 */
/* labels.c: metrics of a model with several outputs. */
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

static void check_label_metrics(const char *words, const char *first,
                                const char *second) {
    char *out;
    int rc = test_command(&out, "cd '%s' && '%s' %s", test_tmpdir(),
                          test_ampc(), words);
    CHECK_MSG(rc == 0 && strstr(out, first) && strstr(out, second),
              "ampc %s: status %d, neither %s nor %s in\n%s", words, rc, first,
              second, out);
    free(out);
}

/* Each metric compares its output with the labels of that output. */
TEST_CASE(cli, metrics_take_the_labels_of_their_output) {
    static const char text[] =
        "graph forward(%x: f32[2,1]) {\n"
        "  param %v: f32[1] = 1, %w: f32[1] = 2\n"
        "  %y = mul %x, %v : f32[2,1]\n  %z = mul %x, %w : f32[2,1]\n"
        "  return %y, %z\n}\n";
    REQUIRE(test_write_file(test_tmp("both.amp"), text, strlen(text)) &&
            test_write_file(test_tmp("x.csv"), "1\n2\n1\n2\n", 8) &&
            test_write_file(test_tmp("y.csv"), "0\n0\n0\n0\n", 8) &&
            test_write_file(test_tmp("z.csv"), "3\n5\n3\n5\n", 8));
    check_label_metrics(
        "both.amp -o both.so --target cpu:x86-64-v2 --precision fp32 "
        "--objective a,loss=mse:y,params=v,optimizer=sgd,lr=0 "
        "--objective b,loss=mse:z,params=w,optimizer=sgd,lr=0",
        "", "");
    check_label_metrics(
        "run both.so --eval --feed x=x.csv --feed target:y=y.csv "
        "--feed target:z=z.csv --metric rmse:y --metric rmse:z",
        "\"rmse:y\":1.58113", "\"rmse:z\":1}"); /* sqrt(2.5) */
    check_label_metrics(
        "run both.so --eval --feed x=x.csv --feed target:y=y.csv "
        "--feed target:z=z.csv --metric rmse:y,target=target:z",
        "\"rmse:y\":2.54950", ""); /* sqrt(6.5) */
}
