/* SPDX-License-Identifier: Apache-2.0 */
/* portable.h: modules that --target c writes, compiled by every C compiler
   that is installed for other machines, and run there or by qemu-user. */
#ifndef AMPC_TESTS_SUPPORT_PORTABLE_H
#define AMPC_TESTS_SUPPORT_PORTABLE_H

typedef struct PortableCompiler {
    const char *name, *cc, *link; /* link: flags that only linking takes */
    const char *run;              /* a command before the program, or "" */
    const char *args;             /* an option before its arguments, or "" */
    const char *packages;         /* of Debian */
} PortableCompiler;

#define PORTABLE_STRICT "-std=c11 -Wall -Wextra -pedantic -Werror"

/* The rows of portable_compilers. */
typedef enum PortableMachine {
    BY_GCC,
    BY_CLANG,
    BY_TCC,            /* no vectors, attributes or atomics */
    BY_GCC_IN_PLAIN_C, /* the text that tcc reads */
    WITH_MUSL,
    ON_I386,
    ON_ARM64,
    ON_ARMV7,
    ON_RISCV64,
    ON_WASM32,
    ON_WINDOWS,   /* under wine */
    ON_CORTEX_M4, /* no operating system, 256 KB of RAM in all */
} PortableMachine;

extern const PortableCompiler portable_compilers[];

/* What the host prints when it saves a module without files. */
#define PORTABLE_SAVES_NOTHING                                                 \
    "save: the module was compiled with AMPC_NO_FILES: read and write its "    \
    "variables (read_variable, write_variable)\n"

/* Skips the case unless that compiler links a program and its runner is
   there. */
void portable_needs(const PortableCompiler *c);

/* Writes models/MODEL.amp with those options as C (once per folder), and the
   output of its x86-64-v2 module in 20 steps. */
typedef struct Portable {
    const char *model, *dir;
    char *wanted;
} Portable;
Portable portable_write(const char *model, const char *options);

/* Compiles it without warnings by that compiler, and compares the output of
   20 steps; skipped as portable_needs says.  Prints a row of the table in
   docs/guide/deploy.md: machine, size of the program, the host's own memory
   where it gives that, milliseconds a step. */
void portable_check(const Portable *p, const PortableCompiler *c);

/* The output of the host compiled by `cc flags`, run with `args`; train.o in
   the folder is the module. */
char *portable_run(const Portable *p, const PortableCompiler *c,
                   const char *flags, const char *args);

/* Cuts off the line of what a host with -DOWN_MEMORY used; the bytes, or 0. */
unsigned long portable_memory(char *out);

#endif
