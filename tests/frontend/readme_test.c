/* SPDX-License-Identifier: Apache-2.0 */
/* readme_test.c: tables of the documentation equal the tool's output;
   tests/docs/docs_test.py checks the rest. */
#include <stdlib.h>

#include "tests/harness.h"

TEST_CASE(readme, lists_the_passes_as_the_tool_does) {
    char *table, *text = test_read_file(
                     test_data_path("docs/internals/architecture.md"), NULL);
    REQUIRE(text);
    CHECK_EQ_INT(test_command(&table, "'%s' --list-passes", test_ampc()), 0);
    CHECK_HAS(text, table);
    free(table);
    free(text);
}
