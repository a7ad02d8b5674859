/* SPDX-License-Identifier: Apache-2.0 */
/* portable.h: modules that --target c writes, compiled by every C compiler
   that is installed for other machines, and run there or by qemu-user. */
#ifndef AMPC_TESTS_SUPPORT_PORTABLE_H
#define AMPC_TESTS_SUPPORT_PORTABLE_H

typedef struct PortableCompiler {
    const char *name, *cc, *run; /* run: a command before the program, or "" */
    const char *packages;        /* of Debian */
} PortableCompiler;

#define PORTABLE_STRICT "-std=c11 -Wall -Wextra -pedantic -Werror"

extern const PortableCompiler portable_compilers[]; /* ends with cc NULL     */

/* Writes models/MODEL.amp with those options as C (once per folder), and the
   output of its x86-64-v2 module in 20 steps. */
typedef struct Portable {
    const char *dir;
    char *wanted;
} Portable;
Portable portable_write(const char *model, const char *options);

/* Compiles it without warnings by that compiler, which is skipped if it is
   missing, and compares the output of 20 steps. */
void portable_check(const Portable *p, const PortableCompiler *c);

/* The output of the host compiled by `cc flags`, run with `args`; train.o in
   the folder is the module. */
char *portable_run(const Portable *p, const PortableCompiler *c,
                   const char *flags, const char *args);

#endif
