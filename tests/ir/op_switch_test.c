/* op_switch_test.c: what is known of an op stands in ops.def.  Switches over
   ops and tables by op are legal in the places below only. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <string.h>

#include "tests/harness.h"

static struct {
    const char *file, *why;
    bool seen;
} places[] = {
    {"codegen/kernel/kir.c", "which ops select one of their operands", false},
};

static void check_place(const char *line) {
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (!strncmp(line, places[i].file, strlen(places[i].file))) {
            places[i].seen = true;
            return;
        }
    FAIL("say it in ir/op/ops.def: %s", line);
}

TEST_CASE(op_switch, no_switch_over_ops) {
    char line[1000];
    FILE *f = popen("grep -REn --include='*.[ch]' "
                    "'case OP_[A-Z]|\\[OP_[A-Z0-9_]+\\] *=' "
                    "ir passes codegen frontend",
                    "r");
    REQUIRE(f != NULL);
    while (fgets(line, sizeof line, f)) check_place(line);
    pclose(f);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        CHECK_MSG(places[i].seen, "%s has no switch over ops any more: %s",
                  places[i].file, places[i].why);
}
