/* SPDX-License-Identifier: Apache-2.0 */
/* main.c: the command line.  Each command is a file cmd_*.c.               */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <string.h>

#include "frontend/cli/cmd.h"
#include "frontend/cli/manual.h"
#include "ir/base/near.h"
#include "ir/base/leave.h"
#include "runtime/ampc.h"

static int list_passes(void) {
    for (const PassRow *p = pipeline; p < pipeline + pipeline_length; p++)
        printf("%-10s %-10s %-7s %s\n", p->name, stage_text[p->stage],
               pass_side_text[p->side], p->purpose);
    return 0;
}

static int output_failed(int why) {
    fprintf(stderr, "ampc: error: standard output: %s\n",
            why ? strerror(why) : "not all of it could be written");
    return ERR_USER;
}

static int no_command(const char *name, const char *what) {
    char text[NEAR_TEXT];
    Near near = near_to(name);
    for (const CommandText *c = command_texts + 1; c->name; c++)
        near_offer(&near, c->name);
    fprintf(stderr, "error: '%s' is %s%s (see ampc --help)\n", name, what,
            near_text(&near, text));
    return ERR_USAGE;
}

/* The help of a command; NULL: of the compiler. */
static int print_help(const char *command) {
    const CommandText *c = command_texts;
    StrBuf sb = {0};
    while (c->name && command && strcmp(c->name, command) != 0) c++;
    if (!c->name) return no_command(command, "not a command");
    manual_help(c, &sb);
    errno = 0;
    bool written = fputs(sb.data, stdout) >= 0 && fflush(stdout) == 0;
    sb_free(&sb);
    return written ? 0 : output_failed(errno);
}

static int print_own_help(void) { return print_help(NULL); }

static int print_version(void) {
    puts("ampc " AMPC_VERSION);
    return 0;
}

static int cmd_help(int argc, char **argv) {
    return print_help(argc > 1 ? argv[1] : NULL);
}

static int cmd_version(int argc, char **argv) {
    (void)argc, (void)argv;
    return print_version();
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
    } commands[] = {
#define COMMAND(name, function, synopsis, summary, text) {name, function},
#include "frontend/cli/commands.def"
        {"--list-ops", cmd_list_ops},
        {"--list-optimizers", cmd_list_optimizers}};
    static const struct {
        const char *name;
        int (*run)(void);
    } flags[] = {{"--help", print_own_help},
                 {"-h", print_own_help},
                 {"--version", print_version},
                 {"--list-passes", list_passes}};
    if (argc < 2) {
        fputs("usage: ampc MODEL -o OUT.so [OPTION...], ampc COMMAND ... (see "
              "ampc --help)\n",
              stderr);
        return ERR_USAGE;
    }
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (!strcmp(argv[1], flags[i].name)) return flags[i].run();
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(argv[1], commands[i].name) != 0) continue;
        if (!asks_for_help(argc, argv))
            return commands[i].run(argc - 1, argv + 1);
        return print_help(argv[1]);
    }
    if (asks_for_help(argc, argv)) return print_help(NULL);
    /* a model's name has a suffix, or a folder in front */
    if (strpbrk(argv[1], "./") || argv[1][0] == '-')
        return cmd_compile(argc, argv);
    return no_command(argv[1], "neither a command nor a model (.onnx, .amp)");
}

typedef struct Call {
    int argc;
    char **argv;
    int status;
} Call;

static void *run_call(void *of) {
    Call *c = of;
    c->status = run(c->argc, c->argv);
    return NULL;
}

/* The compiler walks deep models on a stack of its own, so that `ulimit -s`
   does not limit them.  glibc would give the thread a heap of its own, which
   takes some tenths more memory for a large model.  Returns 0 or an errno. */
static int run_on_own_stack(Call *c) {
    enum { STACK = 64 << 20 };
    pthread_attr_t own;
    pthread_t thread;
    int why = pthread_attr_init(&own);
    if (why) return why;
    mallopt(M_ARENA_MAX, 1);
    why = pthread_attr_setstacksize(&own, STACK);
    if (!why) why = pthread_create(&thread, &own, run_call, c);
    pthread_attr_destroy(&own);
    return why ? why : pthread_join(thread, NULL);
}

/* If output could not be written, the status is an error even if the command
   succeeded. */
int main(int argc, char **argv) {
    Call call = {argc, argv, ERR_USER};
    leave_install();
    int why = run_on_own_stack(&call), status = call.status;
    if (why)
        fprintf(stderr, "ampc: error: no memory for the stack: %s\n",
                strerror(why));
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    return status ? status : output_failed(errno);
}
