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

/* n fibers with guard pages below their stacks, once; false: no memory. */
bool fibers_make(Fiber *f, int n);
/* (Re)starts a fiber at entry, which never returns. */
void fiber_start(Fiber *f, int index, void (*entry)(void));
/* Saves the state in *from, continues with *to. The caller's own stack is a
   Fiber, too, of which only sp is used. */
void fiber_switch(Fiber *from, Fiber *to);
/* First thing in an entry function. */
void fiber_entered(void);
/* Goes on, on that stack, which no fiber owns: after a signal. */
void fiber_adopt(char *stack, size_t size);
/* Whether the address lies in the guard of a stack. */
bool fiber_guards(const Fiber *f, int n, const void *p);

#endif
