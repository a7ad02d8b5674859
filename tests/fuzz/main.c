/* SPDX-License-Identifier: Apache-2.0 */
/* main.c: fuzz FOLDER SECONDS [TARGET]: each target in turn, or one, with
   figures: numbers of executed and of valid inputs, and seconds of processor
   time; a finding's input is written to FOLDER. fuzz --replay FILE TARGET
   [TIMES]: one input, in this process; repeated for a profile.
   Run it in the repository's root. $AMPC_FUZZ_SEED is the random seed. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/base/base.h"
#include "tests/fuzz/fuzz.h"

static int usage(void) {
    fputs("usage: fuzz FOLDER SECONDS [TARGET]\n"
          "       fuzz --replay FILE TARGET [TIMES]\n",
          stderr);
    for (int i = 0; i < fuzz_target_count; i++)
        fprintf(stderr, "  %-12s %s\n", fuzz_targets[i].name,
                fuzz_targets[i].reads);
    return ERR_USAGE;
}

static int replay(const FuzzTarget *t, const char *path, int times) {
    Diag d = {0};
    size_t n;
    char *bytes = read_file(&d, path, &n);
    if (!bytes) {
        fputs(d.text.data, stderr);
        return ERR_USER;
    }
    fuzz_replay(t, (const uint8_t *)bytes, n, times);
    free(bytes);
    return OK;
}

static bool run(const FuzzTarget *t, const char *folder, double seconds) {
    const char *seed = getenv("AMPC_FUZZ_SEED");
    FuzzResult r = fuzz_run(t, seconds, 0, seed ? strtoull(seed, NULL, 0) : 1,
                            ".", folder);
    printf("%-10s %10" PRIu64 " %10" PRIu64 " %7.0f %9.0f %6" PRIu64
           " %6" PRIu64 " %7" PRIu64 " %9" PRIu64 "   %s %s\n",
           t->name, r.runs, r.taken, r.cpu,
           (double)r.runs / (r.cpu > 0 ? r.cpu : r.seconds), r.seeds, r.kept,
           r.reached, r.exhausted, r.finding[0] ? r.finding : "nothing",
           r.file);
    fflush(stdout);
    return !r.finding[0];
}

static const FuzzTarget *find(const char *name) {
    for (int i = 0; i < fuzz_target_count; i++)
        if (!strcmp(fuzz_targets[i].name, name)) return &fuzz_targets[i];
    return NULL;
}

int main(int argc, char **argv) {
    const FuzzTarget *only = argc > 3 ? find(argv[3]) : NULL;
    double seconds = argc > 2 ? atof(argv[2]) : 0;
    if (argc < 3 || argc > 5 || (argc > 3 && !only)) return usage();
    if (!strcmp(argv[1], "--replay"))
        return only ? replay(only, argv[2], argc > 4 ? atoi(argv[4]) : 1)
                    : usage();
    if (seconds <= 0 || argc > 4) return usage();
    printf("%-10s %10s %10s %7s %9s %6s %6s %7s %9s   %s\n", "target",
           "executions", "taken", "cpu s", "per cpu s", "seeds", "kept",
           "reached", "no memory", "found");
    bool ok = true;
    for (int i = 0; i < fuzz_target_count; i++)
        if (!only || only == &fuzz_targets[i])
            ok &= run(&fuzz_targets[i], argv[1], seconds);
    return ok ? OK : ERR_USER;
}
