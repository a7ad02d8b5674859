/* SPDX-License-Identifier: Apache-2.0 */
/* fiber.h: stacks and the switch between them (x86-64). */
#ifndef AMPC_TESTS_SIM_FIBER_H
#define AMPC_TESTS_SIM_FIBER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct Fiber {
    void *sp;
    char *stack; /* lowest usable byte */
    size_t size;
    void *fake; /* ASan's */
} Fiber;

/* Allocates n fibers with guard pages below their stacks, once; false: no
   memory. */
bool fibers_make(Fiber *f, int n);
/* (Re)starts a fiber at entry, which never returns. */
void fiber_start(Fiber *f, int index, void (*entry)(void));
/* Saves the state in `*from` and continues with `*to`. The caller's own
   stack is a Fiber, too, of which only sp is used. */
void fiber_switch(Fiber *from, Fiber *to);
/* Must be called first in an entry function. */
void fiber_entered(void);
/* Continues on that stack, which belongs to no fiber, after a signal. */
void fiber_adopt(char *stack, size_t size);
/* True if the address is in the guard of a stack. */
bool fiber_guards(const Fiber *f, int n, const void *p);

#endif
