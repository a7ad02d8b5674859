/* readme_test.c: the README's tables are what the tool prints. */
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

TEST_CASE(readme, lists_the_passes_as_the_tool_does) {
    char *table, *readme = test_read_file(test_data_path("README.md"), NULL);
    REQUIRE(readme != NULL);
    CHECK_EQ_INT(test_command(&table, "'%s' --list-passes", test_ampc()), 0);
    CHECK_HAS(readme, table);
    free(table);
    free(readme);
}
