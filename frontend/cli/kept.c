/* SPDX-License-Identifier: Apache-2.0 */
/* kept.c: see kept.h. */
#include "frontend/cli/kept.h"

#include "frontend/cli/options_text.h"
#include "ir/text/text.h"

Status kept_ir(Session *s, const SectionFile *f, const char *pass, Module **m) {
    char *text, *name = arena_printf(s->arena, "ir:%s", pass);
    size_t n;
    const PlanSection *section = sections_find(f, name);
    if (!section)
        return fail(&s->diag, (Loc){.file = f->path},
                    "it keeps no IR of pass %s: ampc export --module wrote "
                    "it, or another version of ampc has compiled it",
                    pass);
    TRY(sections_read(s->arena, &s->diag, f, section, &text, &n));
    TRY(parse_module(s->arena, &s->diag, f->path, text, n, m));
    (*m)->file = intern(f->path);
    return OK;
}

/* The text of a graph declares its variables. */
Status kept_programs(Session *s, const ProgramKind *kinds, int n, Module **m) {
    Module *all = *m;
    int kept = 0;
    for (int i = 0; i < all->graphs.len; i++) {
        Graph *g = all->graphs.data[i];
        bool keep = false;
        for (int k = 0; k < n; k++) keep |= g->program == kinds[k];
        if (keep) all->graphs.data[kept++] = g;
    }
    all->graphs.len = kept;
    StrBuf sb = {0};
    print_module(all, &sb);
    char *text = arena_printf(s->arena, "%s", sb.data);
    size_t bytes = sb.len;
    sb_free(&sb);
    TRY(parse_module(s->arena, &s->diag, all->file, text, bytes, m));
    (*m)->file = all->file;
    return OK;
}

Status kept_options(Session *s, const SectionFile *f, Options *o) {
    char *words;
    size_t n;
    struct FileGuard *guard = s->opt.guard;
    const PlanSection *section = sections_find(f, "options");
    options_init(o, s->arena);
    o->guard = guard;
    if (!section)
        return fail(&s->diag, (Loc){.file = f->path},
                    "it does not keep its options: another version of ampc has "
                    "compiled it");
    TRY(sections_read(s->arena, &s->diag, f, section, &words, &n));
    return options_again(o, &s->diag, words, n);
}
