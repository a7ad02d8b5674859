/* SPDX-License-Identifier: Apache-2.0 */
/* portable.h: modules that --target c writes, compiled by every C compiler that
   is there for other machines, and run there or by qemu-user.               */
#ifndef AMPC_TESTS_SUPPORT_PORTABLE_H
#define AMPC_TESTS_SUPPORT_PORTABLE_H

typedef struct PortableCompiler {
    const char *name, *cc, *run; /* run: a command before the program, or "" */
    const char *packages;        /* of Debian */
} PortableCompiler;

#define PORTABLE_STRICT "-std=c11 -Wall -Wextra -pedantic -Werror"

extern const PortableCompiler portable_compilers[]; /* ends with cc NULL     */

/* Writes models/MODEL.amp with those options as C (once a folder), and what the
   x86-64-v2 module of it prints in 20 steps. */
typedef struct Portable {
    const char *dir;
    char *wanted;
} Portable;
Portable portable_write(const char *model, const char *options);

/* Compiles it without a warning by that compiler, which is skipped where it is
   missing, and compares what 20 steps print. */
void portable_check(const Portable *p, const PortableCompiler *c);

/* What the host compiled by `cc flags` prints, run with `args`; train.o in the
   folder is the module. */
char *portable_run(const Portable *p, const PortableCompiler *c,
                   const char *flags, const char *args);

#endif
