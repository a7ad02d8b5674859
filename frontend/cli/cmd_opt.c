/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_opt.c: ampc opt (passes, text to text) and ampc fmt.                 */
#include "frontend/cli/cmd.h"
#include "ir/base/files.h"
#include "ir/fn/fn.h"
#include "ir/text/text.h"

static void print_to_stdout(const Module *m) {
    StrBuf sb = {0};
    print_module(m, &sb);
    fwrite(sb.data, 1, sb.len, stdout);
    sb_free(&sb);
}

int cmd_opt(int argc, char **argv) {
    Session s;
    const char *file = NULL;
    Module *m = NULL;
    session_init(&s);
    s.passes = true;
    Status st = session_args(&s, argc, argv, "opt", &file);
    if (st == OK && !s.own.passes) {
        fail(&s.diag, (Loc){0},
             "--pass NAME[,NAME...] is missing "
             "(see ampc --list-passes)");
        st = ERR_USAGE;
    }
    if (st == OK) st = load_model(&s, file, &m);
    if (st == OK) st = run_passes(m, &s.diag, &s.opt, s.own.passes, false);
    if (st == OK) print_to_stdout(m);
    return session_end(&s, st);
}

/* Drops layers, which are already expanded where they are called. */
static void drop_layers(Module *m) {
    int kept = 0;
    for (int i = 0; i < m->fns.len; i++)
        if (!m->fns.data[i]->layer) m->fns.data[kept++] = m->fns.data[i];
    m->fns.len = kept;
}

int cmd_fmt(int argc, char **argv) {
    Session s;
    const char *file = NULL;
    Module *m = NULL;
    StrBuf sb = {0};
    session_init(&s);
    s.passes = true;
    Status st = session_args(&s, argc, argv, "fmt", &file);
    if (st == OK && s.own.expand) {
        st = load_model(&s, file, &m);
        if (st == OK) drop_layers(m);
        if (st == OK) print_to_stdout(m);
        return session_end(&s, st);
    }
    if (st == OK && s.compile_option) {
        fail(&s.diag, (Loc){0}, "%s needs --expand", s.compile_option);
        st = ERR_USAGE;
    }
    if (st == OK && !has_suffix(file, ".amp")) {
        fail(&s.diag, (Loc){.file = intern(file)},
             "only a text, .amp, has a layout; --expand prints a model as IR");
        st = ERR_USAGE;
    }
    if (st == OK && !(s.file = read_file(&s.diag, file, &s.model_bytes)))
        st = ERR_USER;
    if (st == OK) st = amp_format(&s.diag, file, s.file, s.model_bytes, &sb);
    if (st == OK) fwrite(sb.data ? sb.data : "", 1, sb.len, stdout);
    sb_free(&sb);
    return session_end(&s, st);
}
