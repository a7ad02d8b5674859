/* SPDX-License-Identifier: Apache-2.0 */
/* emit_source.c: a PLANNED module as C text (--target c): the plan, its
   kernels, the initial values, and the runtime's sources for it
   (//runtime:portable), all in one file, so that a host compiles it with one
   command.

   The sources' own headers are copied in where they are included first.
   Macros of a source are undefined at its end, since another source may
   define the same name. */
#define _GNU_SOURCE
#include "codegen/codegen.h"
#include "codegen/embed.h"
#include "codegen/emit.h"
#include "ir/base/files.h"

#include <ctype.h>
#include <string.h>

typedef struct Text {
    StrBuf *sb;
    Arena *a;
    bool *seen; /* headers, by their number in embed_files */
} Text;

static size_t find_file(const char *name, size_t n) {
    for (size_t i = 0; i < embed_nfile; i++)
        if (strlen(embed_files[i].name) == n &&
            !memcmp(embed_files[i].name, name, n))
            return i;
    ASSERT(!"a file of the runtime is embedded");
    return 0;
}

/* The text after the directive's words, if the line is that directive; NULL
   if it is another line. */
static const char *directive(const char *line, const char *words) {
    while (*line == ' ') line++;
    if (*line++ != '#') return NULL;
    while (*line == ' ') line++;
    size_t n = strlen(words);
    return strncmp(line, words, n) ? NULL : line + n;
}

static void put_file(Text *t, const char *name, size_t n);

/* Tables (.def) are read anew each time, headers once. */
static void put_source(Text *t, const EmbedFile *f) {
    for (const char *p = f->data, *next; *p; p = next) {
        size_t n = strcspn(p, "\n");
        next = p + n + (p[n] == '\n');
        const char *name = directive(p, "include ");
        const char *feature = directive(p, "define _");
        if (name && !strncmp(name, "AMPC_SIMD", 9)) {
            name = "\"runtime/cpu/simd_generic.h\"";
        } else if (feature && has_suffix(f->name, ".c") &&
                   memmem(feature, (size_t)(p + n - feature), "_SOURCE", 7)) {
            continue; /* portable.h has included what the system provides */
        }
        if (name && *name == '"')
            put_file(t, name + 1, strcspn(name + 1, "\""));
        else
            sb_putn(t->sb, p, (size_t)(next - p));
    }
}

static void put_file(Text *t, const char *name, size_t n) {
    char path[64];
    if (!memchr(name, '/', n)) { /* beside kmath.h */
        n = (size_t)snprintf(path, sizeof path, "runtime/cpu/%.*s", (int)n,
                             name);
        name = path;
    }
    size_t i = find_file(name, n);
    bool header = has_suffix(embed_files[i].name, ".h");
    if (header && t->seen[i]) return;
    t->seen[i] = true;
    put_source(t, &embed_files[i]);
}

static void put_named(Text *t, const char *name) {
    sb_printf(t->sb, "\n/* ==== %s */\n", name);
    put_file(t, name, strlen(name));
}

/* Prints #undef of each macro that the source itself defines. */
static void end_macros(Text *t, const EmbedFile *f) {
    for (const char *p = f->data; *p; p += strcspn(p, "\n"), p += *p == '\n') {
        const char *name = directive(p, "define ");
        int n = 0;
        if (name && *name == '_') continue; /* includes the system's headers */
        while (name && (isalnum((unsigned char)name[n]) || name[n] == '_')) n++;
        if (n) sb_printf(t->sb, "#undef %.*s\n", n, name);
    }
}

static void put_runtime(Text *t) {
    for (size_t i = 0; i < embed_nfile; i++) {
        const EmbedFile *f = &embed_files[i];
        if (!has_suffix(f->name, ".c") ||
            !embedded_lists("runtime/portable.txt", f->name))
            continue;
        bool files = !strncmp(f->name, "runtime/files/", 14) &&
                     !has_suffix(f->name, "/weights.c");
        if (files) sb_puts(t->sb, "\n#ifndef AMPC_NO_FILES");
        put_named(t, f->name);
        end_macros(t, f);
        if (files) sb_puts(t->sb, "#endif\n");
    }
}

/* ---- what the module is -------------------------------------------------- */

static void put_initial(StrBuf *sb, Arena *a, const PlanSource *src) {
    size_t n = (size_t)src->weight_bytes;
    const unsigned char *all = weights_all(a, src);
    sb_printf(sb,
              "\n/* ==== initial values */\n"
              "#if SIZE_MAX < %zu\n"
              "#error \"the initial values do not fit this machine\"\n"
              "#endif\n"
              "extern const uint64_t ampc_initial_bytes;\n"
              "const uint64_t ampc_initial_bytes = %zu;\n"
              "extern const unsigned char ampc_initial[];\n"
              "_Alignas(64) const unsigned char ampc_initial[%zu] =",
              n, n, n + 1);
    for (size_t i = 0; i < n || i == 0; i++) {
        if (i % 64 == 0) sb_puts(sb, i ? "\"\n    \"" : "\n    \"");
        if (i < n && all[i] >= ' ' && all[i] <= '~' && !strchr("\"\\?", all[i]))
            sb_putn(sb, (const char *)&all[i], 1);
        else if (i < n)
            sb_printf(sb, "\\%03o", all[i]);
    }
    sb_puts(sb, "\";\n");
}

/* kmath.h chooses gcc's optimisations for what follows. */
static void put_kernels(Text *t, const PlanSource *src, const IsaLevel *l) {
    StrBuf own = {0};
    print_c_kernels(src->kernels, &own, l->prefix,
                    (KernelPart){KERNELS_ALL, 0, 1});
    const char *kernels = own.data ? strstr(own.data, "\"kmath.h\"\n") : NULL;
    sb_puts(t->sb, "\n/* ==== kernels */\n"
                   "#if !defined __clang__\n#pragma GCC push_options\n#endif\n"
                   "#define KM_KERNELS\n");
    put_named(t, "runtime/cpu/kmath.h");
    put_named(t, "runtime/portable/alias.h");
    if (kernels) sb_puts(t->sb, kernels + strlen("\"kmath.h\"\n"));
    put_named(t, "runtime/portable/unalias.h");
    sb_puts(t->sb, "#if !defined __clang__\n#pragma GCC pop_options\n#endif\n");
    sb_free(&own);
}

static Status put_entry(StrBuf *sb, const Options *opt, Diag *d) {
    if (text_has_word(sb->data, opt->symbol))
        return fail(d, (Loc){0}, SYMBOL_TAKEN, opt->symbol);
    sb_printf(sb,
              "\n/* ==== the module */\n"
              "const ampc_api *%s(uint32_t abi_version);\n"
              "const ampc_api *%s(uint32_t abi_version) {\n"
              "    return ampc_module_api(&ampc_plan, abi_version);\n}\n",
              opt->symbol, opt->symbol);
    return OK;
}

static void put_source_text(Text *t, const PlanSource *src, const IsaLevel *l) {
    StrBuf *sb = t->sb;
    EmbedFile plan = {"plan", src->text.data, src->text.len};
    sb_puts(sb, "/* A training module in C, written by ampc --target c.  One "
                "compiler command:\n"
                "     cc -std=c11 -O2 -c train.c\n"
                "   Link with -lm.  train.h declares its one function. */\n");
    put_named(t, "runtime/portable/portable.h");
    put_kernels(t, src, l);
    sb_puts(sb, "\n/* ==== plan */\n");
    put_source(t, &plan);
    put_initial(sb, t->a, src);
    put_runtime(t);
}

/* ---- what goes with it --------------------------------------------------- */

bool emit_is_source(const Options *opt) { return isa_source(opt) != NULL; }

Status emit_source_check(const Options *opt, Diag *d, const char *path) {
    static const char *const others[] = {".so", ".o", ".a"};
    const Loc no = {0};
    if (opt->targets.len > 1)
        return fail(d, no,
                    "--target c stands alone: compile once more for the "
                    "other targets");
    if (opt->sidecar_weights)
        return fail(d, no,
                    "--weights sidecar does not go with --target c: "
                    "initial values are in the text");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (has_suffix(path, others[i]))
            return fail(d, no,
                        "-o %s: --target c writes a folder (-o DIR) or one "
                        "file (-o FILE.c)",
                        path);
    return has_suffix(path, ".c") ? file_writes(d, opt->guard, path, "-o") : OK;
}

/* ---- files --------------------------------------------------------------- */

static Status put_folder(const Options *opt, Diag *d, Arena *a,
                         const char *path, const StrBuf *text) {
    const EmbedFile *api =
        &embed_files[find_file("runtime/ampc.h", strlen("runtime/ampc.h"))];
    const char *header =
        arena_printf(a,
                     "/* The module of train.c: pass AMPC_ABI_VERSION. */\n"
                     "#ifndef AMPC_TRAIN_%s\n#define AMPC_TRAIN_%s\n\n"
                     "#define AMPC_NO_LOADER\n#include \"ampc.h\"\n\n"
                     "const ampc_api *%s(uint32_t abi_version);\n\n#endif\n",
                     opt->symbol, opt->symbol, opt->symbol);
    FileGuard *g = opt->guard;
    TRY(file_folder(d, path, g, "-o"));
    TRY(file_text(d, arena_printf(a, "%s/ampc.h", path), api->data, api->size,
                  g, "-o"));
    TRY(file_text(d, arena_printf(a, "%s/train.h", path), header,
                  strlen(header), g, "-o"));
    return file_text(d, arena_printf(a, "%s/train.c", path), text->data,
                     text->len, g, "-o");
}

Status emit_source(const Options *opt, Diag *d, Arena *a, const char *path,
                   const PlanSource *src) {
    StrBuf sb = {0};
    Text t = {&sb, a, NEW_ARRAY(a, bool, (int)embed_nfile)};
    put_source_text(&t, src, isa_source(opt));
    Status s = put_entry(&sb, opt, d);
    if (s == OK)
        s = has_suffix(path, ".c")
                ? file_text(d, path, sb.data, sb.len, NULL, NULL)
                : put_folder(opt, d, a, path, &sb);
    sb_free(&sb);
    return s;
}
