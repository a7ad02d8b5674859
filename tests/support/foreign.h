/* SPDX-License-Identifier: Apache-2.0 */
/* foreign.h: modules for AArch64, compiled by a cross compiler and run by
   qemu-user; where either is missing the test case is skipped. */
#ifndef AMPC_TESTS_SUPPORT_FOREIGN_H
#define AMPC_TESTS_SUPPORT_FOREIGN_H

#include <stddef.h>

/* A module for --target `target`, of AArch64; for free(). */
char *foreign_compile(const char *model, const char *target,
                      const char *options);

/* The processor of the runs that follow, as qemu's -cpu names it, and AMPC_ISA;
   NULL: qemu's own, which has bfdot; none. */
void foreign_machine(const char *cpu, const char *isa);

/* What the module answers to those bytes (foreign_host.c), n of them; for
   free().  An error ends the test case. */
char *foreign_run(const char *module, int threads, const char *what,
                  const void *bytes, size_t size, size_t *n);

#endif
