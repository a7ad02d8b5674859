/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_values_test.c: the ONNX backend tests through only the importer and
   the interpreter (tests/whole/onnx_nodes_test.c compiles them): in seconds,
   for those who change the importer. */
#include <stdlib.h>

#include "tests/harness.h"
#include "tests/support/onnx_case.h"

typedef struct Folder {
    const char *set, *name, *dir;
} Folder;

static void check_case(void *arg) {
    const Folder *f = arg;
    OnnxCase c = {.a = arena_new(), .dir = f->dir};
    const char *bad = onnx_case_run(&c);
    if (bad) FAIL("%s", bad);
    onnx_case_free(&c);
}

static Arena *registered; /* lives as long as the process */

static void register_folder(const char *set, const char *root) {
    Arena *a = registered;
    int n;
    const char *const *names = onnx_case_names(a, root, "node", &n);
    for (int i = 0; i < n; i++) {
        Folder f = {set, names[i], arena_printf(a, "%s/%s", root, names[i])};
        if (!onnx_case_counts(set, names[i], f.dir)) continue;
        harness_register(set, names[i], check_case, arena_dup(a, &f, sizeof f));
    }
}

static void register_all(void) {
    const char *made = getenv("AMPC_ONNX_NODES");
    registered = arena_new();
    if (made) register_folder("onnx_1_23", made);
    register_folder("onnx_1_12", "/usr/share/libonnx-testdata/data");
    /* written by tests/onnx/make_contrib.py */
    register_folder("microsoft", test_data_path("tests/onnx/contrib"));
    /* written by models/exporters/classical.py */
    register_folder("sklearn", test_data_path("tests/onnx/classical"));
}
TEST_REGISTRAR(register_all);

TEST_CASE(onnx_values, the_generated_tests_are_there) {
    if (!getenv("AMPC_ONNX_NODES")) SKIP("AMPC_ONNX_NODES is not set");
}
