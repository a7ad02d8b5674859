/* SPDX-License-Identifier: Apache-2.0 */
/* fault.h: shared memory and signals while a kernel runs. */
#ifndef AMPC_TESTS_SIM_FAULT_H
#define AMPC_TESTS_SIM_FAULT_H

#include <stddef.h>

enum { FAULT_ADDRESS, FAULT_ARITHMETIC };

/* From here to fault_end a bad access or a division by zero makes the thread
   go on in landing(), on a stack of its own.  The static shared memory of the
   unit is closed, and opened page by page as it is touched, so that a block
   pays only for what its kernel uses.                                       */
void fault_begin(char *shared, char *shared_end, void (*landing)(void));
void fault_end(void);
char *fault_stack(size_t *size); /* of landing */
const void *fault_address(void);
int fault_signal(void);

/* Dynamic shared memory: an object of its own, of exactly that size. */
char *fault_dynamic(size_t bytes);
/* NaN bytes in all shared memory in use. */
void fault_fill_shared(void);

#endif
