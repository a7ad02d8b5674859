/* main.c: fuzz FOLDER SECONDS [TARGET]: each target in turn, or one, and
           figures; a finding's input is left in FOLDER.
           fuzz --replay FILE TARGET: one input, in this process.
   In the repository's root.  $AMPC_FUZZ_SEED is the random seed.            */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/graph/base.h"
#include "tests/fuzz/fuzz.h"

static int usage(void) {
    fputs("usage: fuzz FOLDER SECONDS [TARGET] | fuzz --replay FILE TARGET\n",
          stderr);
    for (int i = 0; i < fuzz_target_count; i++)
        fprintf(stderr, "  %-12s %s\n", fuzz_targets[i].name,
                fuzz_targets[i].reads);
    return ERR_USAGE;
}

static int replay(const FuzzTarget *t, const char *path) {
    Diag d = {0};
    size_t n;
    char *bytes = read_file(&d, path, &n);
    if (!bytes) {
        fputs(d.text.data, stderr);
        return ERR_USER;
    }
    fuzz_replay(t, (const uint8_t *)bytes, n);
    free(bytes);
    return OK;
}

static bool run(const FuzzTarget *t, const char *folder, double seconds) {
    const char *seed = getenv("AMPC_FUZZ_SEED");
    FuzzResult r = fuzz_run(t, seconds, 0, seed ? strtoull(seed, NULL, 0) : 1,
                            ".", folder);
    printf("%-11s %12" PRIu64 " %8.0f %10.0f %7" PRIu64 " %7" PRIu64
           " %8" PRIu64 " %9" PRIu64 "   %s %s\n",
           t->name, r.runs, r.seconds, (double)r.runs / r.seconds, r.seeds,
           r.kept, r.reached, r.exhausted, r.finding[0] ? r.finding : "nothing",
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
    if (argc < 3 || argc > 4 || (argc > 3 && !only)) return usage();
    if (!strcmp(argv[1], "--replay"))
        return only ? replay(only, argv[2]) : usage();
    if (seconds <= 0) return usage();
    printf("%-11s %12s %8s %10s %7s %7s %8s %9s   %s\n", "target", "executions",
           "seconds", "per second", "seeds", "kept", "reached", "no memory",
           "found");
    bool ok = true;
    for (int i = 0; i < fuzz_target_count; i++)
        if (!only || only == &fuzz_targets[i])
            ok &= run(&fuzz_targets[i], argv[1], seconds);
    return ok ? OK : ERR_USER;
}
