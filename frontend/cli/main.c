/* SPDX-License-Identifier: Apache-2.0 */
/* main.c: the command line.  Each command is a file cmd_*.c.               */
#include <errno.h>
#include <malloc.h>
#include <string.h>

#include "frontend/cli/cmd.h"
#include "ir/base/leave.h"
#include "runtime/ampc.h"

static int list_passes(void) {
    for (const PassRow *p = pipeline; p < pipeline + pipeline_length; p++)
        printf("%-10s %-10s %-7s %s\n", p->name, stage_text[p->stage],
               pass_side_text[p->side], p->purpose);
    return 0;
}

static int print_help(void) {
    fputs(help_ampc, stdout);
    fputs(help_options, stdout);
    return 0;
}

static int print_version(void) {
    puts("ampc " AMPC_VERSION);
    return 0;
}

static bool asks_for_help(int argc, char **argv) {
    for (int i = 2; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return true;
    return false;
}

static int run(int argc, char **argv) {
    static const struct {
        const char *name;
        Command *run;
        const char *help;
    } commands[] = {{"run", cmd_run, help_run},
                    {"inspect", cmd_inspect, help_inspect},
                    {"check", cmd_check, help_check},
                    {"opt", cmd_opt, help_opt},
                    {"export", cmd_export, help_export},
                    {"audit", cmd_audit, help_audit},
                    {"fmt", cmd_fmt, help_fmt},
                    {"--list-ops", cmd_list_ops, help_ampc},
                    {"--list-optimizers", cmd_list_optimizers, help_ampc}};
    static const struct {
        const char *name;
        int (*run)(void);
    } flags[] = {{"--help", print_help},
                 {"-h", print_help},
                 {"--version", print_version},
                 {"--list-passes", list_passes}};
    if (argc < 2) {
        fputs(help_ampc, stderr);
        fputs(help_options, stderr);
        return ERR_USAGE;
    }
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (!strcmp(argv[1], flags[i].name)) return flags[i].run();
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(argv[1], commands[i].name) != 0) continue;
        if (!asks_for_help(argc, argv))
            return commands[i].run(argc - 1, argv + 1);
        if (commands[i].help == help_ampc) return print_help();
        fputs(commands[i].help, stdout);
        return 0;
    }
    return asks_for_help(argc, argv) ? print_help() : cmd_compile(argc, argv);
}

/* What could not be written counts, whatever the command thought. */
int main(int argc, char **argv) {
    enum { KEPT = 1 << 30 };
    leave_install();
    /* memory that one pass gives back is the next one's: of large models the
       system takes longer to clear pages than a pass to fill them */
    mallopt(M_MMAP_THRESHOLD, KEPT);
    mallopt(M_TRIM_THRESHOLD, KEPT);
    int status = run(argc, argv);
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    if (status == OK)
        fprintf(stderr, "ampc: error: standard output: %s\n",
                errno ? strerror(errno) : "not all of it could be written");
    return status ? status : ERR_USER;
}
