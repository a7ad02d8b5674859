/* SPDX-License-Identifier: Apache-2.0 */
/* op_switch_test.c: ops.def has all facts about ops: no file switches over
   ops or has a table by op. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <string.h>

#include "tests/harness.h"

static int count_lines(const char *pattern, bool show) {
    char line[1000], command[300];
    int n = 0;
    snprintf(command, sizeof command,
             "grep -REn --include='*.[ch]' '%s' ir passes codegen frontend",
             pattern);
    FILE *f = popen(command, "r");
    REQUIRE(f != NULL);
    for (; fgets(line, sizeof line, f); n++)
        if (show) FAIL("say it in ir/op/ops.def: %s", line);
    pclose(f);
    return n;
}

TEST_CASE(op_switch, no_switch_over_ops) {
    CHECK(count_lines("OP_ADD", false) > 0); /* the source tree was found */
    CHECK_EQ_INT(count_lines("case OP_[A-Z]|\\[OP_[A-Z0-9_]+\\] *=", true), 0);
}
