/* SPDX-License-Identifier: Apache-2.0 */
/* tiles.h: AMX on machines without it, instruction by instruction.

   tiles_emulate makes SIGILL of a tile instruction do what the Intel SDM says
   of it, in whatever code of the process it stands: what ships in a module is
   tested as it is.  Each thread has its own tiles. Machines that have the
   instructions execute them. The library libamx.so does the same for a
   program into which it is preloaded; AMPC_ISA=v4-amx then uses them. */
#ifndef AMPC_TESTS_SUPPORT_TILES_H
#define AMPC_TESTS_SUPPORT_TILES_H

#include <stdint.h>

void tiles_emulate(void);

/* Number of instructions emulated in this process. It is 0 if the machine
   has tiles and the kernel lets this process use them. */
int64_t tiles_count(void);
int tiles_are_the_machines(void);

/* c[m][n] += sum over pairs k of a[m][k] * b[k][n] (TDPBF16PS): 16 rows and
   columns of fp32, 16 pairs of bf16, the even one in the low half.           */
void tiles_dot(float c[16][16], const uint32_t a[16][16],
               const uint32_t b[16][16]);

#endif
