/* SPDX-License-Identifier: Apache-2.0 */
/* emit_runtime.c: the runtime for another kind of processor than that of
   `ampc`, whose archive is inside `ampc`.

   The sources are inside, too (embed.h).  They are compiled by the compiler
   that compiles the kernels, as many at once as there are processors; the cache
   keeps the objects, so that only the first module waits.  The linker drops
   what a module does not use, as it takes from an archive only what one uses.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "codegen/emit.h"
#include "ir/base/files.h"
#include "ir/base/terminal.h"

#define OBJECT_FLAGS " -ffunction-sections -fdata-sections "

typedef VEC(CcJob) Jobs;

const EmbedFile *embedded(const char *name) {
    for (size_t i = 0; i < embed_nfile; i++)
        if (!strcmp(embed_files[i].name, name)) return &embed_files[i];
    ASSERT(!"a file of the runtime is embedded");
    return NULL;
}

bool embedded_lists(const char *name, const char *line) {
    size_t n = strlen(line);
    for (const char *p = embedded(name)->data; (p = strstr(p, line)); p += n)
        if (p[n] == '\n' && (p == embedded(name)->data || p[-1] == '\n'))
            return true;
    return false;
}

/* "runtime/cpu/gemm_isa.c" of level v8_ to "v8_gemm_isa"; names differ. */
static void add_job(Arena *a, Jobs *jobs, const char *arch, const char *source,
                    const char *prefix, const char *flags) {
    const char *base = strrchr(source, '/') + 1, *room = base - 2;
    while (room[-1] != '/') room--;
    char *name = arena_printf(a, "%s%.*s_%.*s", prefix, (int)(base - 1 - room),
                              room, (int)strlen(base) - 2, base);
    CcJob j = {.arch = arch,
               .source = source,
               .object = arena_printf(a, "%s.o", name),
               .log = arena_printf(a, "%s.log", name)};
    j.words = arena_printf(a, "%s" OBJECT_FLAGS CC_COMMON " %s -o %s", flags,
                           source, j.object);
    vec_push(a, jobs, j);
}

/* Line i of flags.txt (//runtime:flags). */
static const char *flags_line(Arena *a, int i) {
    const char *p = embedded("runtime/flags.txt")->data;
    for (; i > 0; i--) p = strchr(p, '\n') + 1;
    return arena_printf(a, "%.*s", (int)strcspn(p, "\n"), p);
}

static void add_levels(const Options *opt, Arena *a, Jobs *jobs,
                       const char *source) {
    for (const IsaLevel *l = isa_levels; l->isa; l++)
        if (isa_compiled(opt, l))
            add_job(a, jobs, l->arch, source, l->prefix,
                    arena_printf(a, "%s %s -DAMPC_SIMD=\"%s\"",
                                 flags_line(a, 1), l->flags, l->vectors));
}

static Jobs jobs_of(const Options *opt, Arena *a, bool relocatable) {
    Jobs jobs = {0};
    for (size_t i = 0; i < embed_nfile; i++) {
        const char *name = embed_files[i].name;
        if (!has_suffix(name, ".c") || !strncmp(name, "runtime/portable/", 17))
            continue;
        if (relocatable && !strcmp(name, "runtime/files/sections.c")) continue;
        if (has_suffix(name, "_isa.c"))
            add_levels(opt, a, &jobs, name);
        else
            add_job(a, &jobs, isa_arch(opt), name, "", flags_line(a, 0));
    }
    return jobs;
}

static Status put_sources(Diag *d, Arena *a, const char *dir) {
    for (size_t i = 0; i < embed_nfile; i++) {
        const EmbedFile *f = &embed_files[i];
        char *path = arena_printf(a, "%s/%s", dir, f->name);
        char *slash = strrchr(path, '/');
        *slash = 0;
        TRY(file_folder(d, path, NULL, NULL));
        *slash = '/';
        TRY(file_text(d, path, f->data, f->size, NULL, NULL));
    }
    return OK;
}

const char *emit_runtime_name(const Options *opt) {
    return isa_is_here(isa_arch(opt)) ? "runtime.a" : "@runtime.list";
}

Status emit_runtime(const Options *opt, Diag *d, Arena *a, const char *cache,
                    const char *dir, bool relocatable) {
    Jobs jobs = jobs_of(opt, a, relocatable);
    StrBuf list = {0};
    long most = sysconf(_SC_NPROCESSORS_ONLN);
    doing("compiling the runtime");
    TRY(put_sources(d, a, dir));
    for (int i = 0, n; i < jobs.len; i += n) {
        n = jobs.len - i < most ? jobs.len - i : most < 1 ? 1 : (int)most;
        cc_start(a, cache, dir, &jobs.data[i], n);
        TRY(cc_wait(d, a, cache, dir, &jobs.data[i], n));
    }
    for (int i = 0; i < jobs.len; i++)
        sb_printf(&list, "%s\n", jobs.data[i].object);
    Status s = file_text(d, arena_printf(a, "%s/runtime.list", dir), list.data,
                         list.len, NULL, NULL);
    sb_free(&list);
    return s;
}
