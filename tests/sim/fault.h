/* SPDX-License-Identifier: Apache-2.0 */
/* fault.h: shared memory and signals while a kernel runs. */
#ifndef AMPC_TESTS_SIM_FAULT_H
#define AMPC_TESTS_SIM_FAULT_H

#include <stddef.h>

enum { FAULT_ADDRESS, FAULT_ARITHMETIC };

/* From here to fault_end a bad access or a division by zero makes the thread
   continue in landing(), on a separate stack. The static shared memory of
   the unit is inaccessible at first and opened page by page when it is
   touched, so that a block pays only for the memory that its kernel uses. */
void fault_begin(char *shared, char *shared_end, void (*landing)(void));
void fault_end(void);
char *fault_stack(size_t *size); /* of landing */
const void *fault_address(void);
int fault_signal(void);

/* Dynamic shared memory: a separate object of exactly that size. */
char *fault_dynamic(size_t bytes);
/* Fills all shared memory in use with NaN bytes. */
void fault_fill_shared(void);

#endif
