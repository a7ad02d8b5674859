/* SPDX-License-Identifier: Apache-2.0 */
/* emit_object.c: a module as an object file or an archive, for programs that
   are linked with it instead of loading a library.

   Everything that is linked into train.so becomes one relocatable object in
   which one symbol stays global, so that a program can hold several. Such a
   module is not a file that could have sections at its end: initial values
   are a part of the object, read by runtime/portable/sections.c as for
   --target c. It has no GPU code and no sections for `ampc inspect`. */
#define _POSIX_C_SOURCE 200809L
#include <ctype.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "codegen/embed.h"
#include "codegen/emit.h"
#include "ir/base/files.h"

#define CC_RELOCATABLE                                                         \
    "-r -nostdlib -o whole.o %s sections.o initial.o %s "                      \
    "-Wl,--build-id=none -Wl,--gc-sections -Wl,-u,%s"

bool emit_is_object(const char *path) {
    return has_suffix(path, ".o") || has_suffix(path, ".a");
}

/* A C program that links with the module declares the function and calls it. */

static bool c_can_declare(const char *name) {
    static const char *const taken[] = {
        "auto",     "break",    "case",   "char",     "const",   "continue",
        "default",  "do",       "double", "else",     "enum",    "extern",
        "float",    "for",      "goto",   "if",       "inline",  "int",
        "long",     "register", "return", "restrict", "short",   "signed",
        "sizeof",   "static",   "struct", "switch",   "typedef", "union",
        "unsigned", "void",     "while",  "volatile", "main"};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (!strcmp(name, taken[i])) return false;
    return name[0] != '_' ||
           (name[1] != '_' && !isupper((unsigned char)name[1]));
}

/* libm's handle finds what libc exports, too. */
static bool c_library_has(const char *name) {
    void *libraries = dlopen("libm.so.6", RTLD_LAZY);
    if (!libraries) libraries = dlopen(NULL, RTLD_LAZY); /* another C library */
    bool found = libraries && dlsym(libraries, name);
    if (libraries) dlclose(libraries);
    return found;
}

static Status check_linked_symbol(const char *name, Diag *d) {
    if (!c_can_declare(name))
        return fail(d, (Loc){0},
                    "--symbol %s: a C program cannot call a function of that "
                    "name, which C keeps for itself; choose another name",
                    name);
    if (c_library_has(name))
        return fail(d, (Loc){0},
                    "--symbol %s: the C library has a function of that name; "
                    "choose another name",
                    name);
    return OK;
}

/* Names of files that no output of ampc can be, in any case; ".O" and ".A" do
   not name objects. */
static Status check_no_foreign(const char *path, Diag *d) {
    static const char *const foreign[] = {
        ".dll", ".lib", ".obj", ".pyd",  ".exe", ".dylib", ".wasm",
        ".js",  ".h",   ".hpp", ".onnx", ".o",   ".a"};
    const char *dot = strrchr(path, '.');
    for (size_t i = 0; dot && i < sizeof foreign / sizeof *foreign; i++)
        if (!strcasecmp(dot, foreign[i]) && !emit_is_object(path))
            return fail(d, (Loc){0},
                        "-o %s: ampc writes libraries (-o OUT.so) and objects "
                        "(-o OUT.o, OUT.a) for Linux; for another system let "
                        "its C compiler compile what --target c -o DIR writes",
                        path);
    return OK;
}

Status emit_object_check(const Options *opt, Diag *d, const char *path) {
    if (emit_is_object(path) || emit_is_source(opt))
        TRY(check_linked_symbol(opt->symbol, d));
    TRY(check_no_foreign(path, d));
    if (has_suffix(path, ".c") && !emit_is_source(opt))
        return fail(d, (Loc){0},
                    "-o %s: a module is a library (-o OUT.so) or an object "
                    "(-o OUT.o, OUT.a); --target c writes C",
                    path);
    if (emit_is_object(path) && opt->sidecar_weights)
        return fail(d, (Loc){0},
                    "--weights sidecar does not go with -o %s: initial values "
                    "are in the object",
                    path);
    return OK;
}

static const char *in_dir(Arena *a, const char *dir, const char *name) {
    return arena_printf(a, "%s/%s", dir, name);
}

static Status put_sources(Diag *d, Arena *a, const char *dir,
                          const PlanSource *src) {
    static const char reader[] = "runtime/portable/sections.c";
    const char *text = arena_printf(
        a,
        ".section .rodata\n.globl ampc_initial, ampc_initial_bytes\n"
        ".hidden ampc_initial, ampc_initial_bytes\n.balign 64\n"
        "ampc_initial: .incbin \"initial.bin\"\n.byte 0\n.balign 8\n"
        "ampc_initial_bytes: .quad %lld\n"
        ".section .note.GNU-stack,\"\",%%progbits\n",
        (long long)src->weight_bytes);
    const EmbedFile *f = embedded(reader);
    TRY(file_text(d, in_dir(a, dir, "sections.c"), f->data, f->size, NULL,
                  NULL));
    TRY(file_text(d, in_dir(a, dir, "initial.bin"),
                  (const char *)weights_all(a, src), (size_t)src->weight_bytes,
                  NULL, NULL));
    return file_text(d, in_dir(a, dir, "initial.s"), text, strlen(text), NULL,
                     NULL);
}

static Status run_one(Diag *d, Arena *a, const char *dir, CcJob job) {
    cc_start(a, NULL, dir, &job, 1);
    return cc_wait(d, a, NULL, dir, &job, 1);
}

/* Whoever links the program chooses the C library: "dlopen@GLIBC_2.2.5"
   (runtime/base/glibc.h) becomes dlopen, which static C libraries have, too.
   Writes file "renames" from the output of nm. */
static Status put_renames(Diag *d, Arena *a, const char *dir,
                          const char *arch) {
    StrBuf renames = {0};
    size_t n;
    char *save;
    TRY(run_one(d, a, dir,
                (CcJob){.program = "nm",
                        .arch = arch,
                        .words = "-u whole.o",
                        .log = "undefined"}));
    char *text = read_file(d, in_dir(a, dir, "undefined"), &n);
    if (!text) return ERR_USER;
    for (char *w = strtok_r(text, " \n", &save); w;
         w = strtok_r(NULL, " \n", &save))
        if (strchr(w, '@'))
            sb_printf(&renames, "%s %.*s\n", w, (int)strcspn(w, "@"), w);
    Status s =
        file_text(d, in_dir(a, dir, "renames"),
                  renames.data ? renames.data : "", renames.len, NULL, NULL);
    sb_free(&renames);
    free(text);
    return s;
}

Status emit_object(const Options *opt, Diag *d, Arena *a, const char *dir,
                   const char *path, const PlanSource *src, const char *objects,
                   const char **made) {
    const char *symbol = opt->symbol, *arch = isa_arch(opt);
    CcJob parts[] = {{.arch = arch,
                      .words = CC_PLAN " sections.c -o sections.o",
                      .log = "sections.log"},
                     {.arch = arch,
                      .words = "-c initial.s -o initial.o",
                      .log = "initial.log"}};
    TRY(put_sources(d, a, dir, src));
    cc_start(a, NULL, dir, parts, 2);
    TRY(cc_wait(d, a, NULL, dir, parts, 2));
    TRY(run_one(d, a, dir,
                (CcJob){.arch = arch,
                        .words = arena_printf(a, CC_RELOCATABLE, objects,
                                              emit_runtime_name(opt), symbol),
                        .log = "link.log"}));
    TRY(put_renames(d, a, dir, arch));
    *made = arena_printf(a, "%s.o", symbol);
    TRY(run_one(d, a, dir,
                (CcJob){.program = "objcopy",
                        .arch = arch,
                        .words = arena_printf(
                            a,
                            "--strip-unneeded --remove-section .comment "
                            "--redefine-syms renames --keep-global-symbol %s "
                            "whole.o %s",
                            symbol, *made),
                        .log = "objcopy.log"}));
    if (has_suffix(path, ".o")) return OK;
    const char *object = *made;
    *made = "linked.a";
    return run_one(d, a, dir,
                   (CcJob){.program = "ar",
                           .arch = arch,
                           .words = arena_printf(a, "rcsD linked.a %s", object),
                           .log = "ar.log"});
}
