/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_test.c: every target on its seeds and kept cases, then on some
   changed copies: always the same ones, so that a failure is repeatable. */
#include "tests/fuzz/fuzz.h"

#include "tests/harness.h"

static void run(void *arg) {
    const FuzzTarget *t = arg;
    uint64_t runs = (uint64_t)t->runs * (test_slow() ? 20 : 1);
    FuzzResult r = fuzz_run(t, 0, runs, 1, test_data_path("."), test_tmpdir());
    CHECK(r.seeds > 0);
    CHECK_MSG(!r.finding[0], "%s: %s", r.finding, r.file);
}

static void cases(void) {
    for (int i = 0; i < fuzz_target_count; i++)
        harness_register("fuzz", fuzz_targets[i].name, run,
                         (void *)&fuzz_targets[i]);
}
TEST_REGISTRAR(cases);
