/* cmd_opt.c: ampc opt (passes, text to text) and ampc fmt.                 */
#include "frontend/driver/cmd.h"

static void print_to_stdout(const Module *m) {
    StrBuf sb = {0};
    print_module(m, &sb);
    fwrite(sb.data, 1, sb.len, stdout);
    sb_free(&sb);
}

int cmd_opt(int argc, char **argv) {
    Session s;
    const char *file = NULL, *passes = NULL;
    const OwnOption own[] = {{"--pass", &passes, NULL}, {0}};
    Module *m = NULL;
    session_init(&s);
    s.passes = true;
    Status st = session_args(&s, argc, argv, own, &file);
    if (st == OK && !passes) {
        fail(&s.diag, (Loc){0},
             "--pass NAME[,NAME...] is missing "
             "(see ampc --list-passes)");
        st = ERR_USAGE;
    }
    if (st == OK) st = load_model(&s, file, &m);
    if (st == OK) st = run_passes(m, &s.diag, &s.opt, passes, false);
    if (st == OK) print_to_stdout(m);
    return session_end(&s, st);
}

int cmd_fmt(int argc, char **argv) {
    Session s;
    const char *file = NULL;
    Module *m = NULL;
    session_init(&s);
    s.passes = true;
    Status st = session_args(&s, argc, argv, NULL, &file);
    if (st == OK) st = load_model(&s, file, &m);
    if (st == OK) print_to_stdout(m);
    return session_end(&s, st);
}
