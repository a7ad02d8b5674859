/* SPDX-License-Identifier: Apache-2.0 */
/* fiber.c: see fiber.h.  Under ASan each switch is announced, so that stack
   frames of fibers are checked like others. */
#define _GNU_SOURCE
#include "tests/sim/fiber.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

enum { STACK = 256 << 10, GUARD = 4096 };

__asm__(".text\n"
        ".p2align 4\n"
        ".globl sim_switch_stack\n"
        ".hidden sim_switch_stack\n"
        ".type sim_switch_stack,@function\n"
        "sim_switch_stack:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size sim_switch_stack, . - sim_switch_stack\n");
void sim_switch_stack(void **save, void *sp);

bool fibers_make(Fiber *f, int n) {
    size_t each = STACK + GUARD;
    char *p = mmap(NULL, each * (size_t)n, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    for (int i = 0; i < n; i++, p += each) {
        mprotect(p, GUARD, PROT_NONE);
        f[i].stack = p + GUARD;
        f[i].size = STACK;
    }
    return true;
}

/* The tops of the stacks have different offsets within their pages: equal
   ones would share a few cache sets. */
void fiber_start(Fiber *f, int index, void (*entry)(void)) {
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(f->stack, f->size);
#endif
    uintptr_t top = (uintptr_t)f->stack + f->size - (size_t)(index % 61) * 64;
    void **sp = (void **)(top & ~(uintptr_t)63);
    *--sp = NULL; /* return address of entry: keeps the stack aligned */
    *--sp = (void *)(uintptr_t)entry;
    for (int i = 0; i < 6; i++) *--sp = NULL;
    f->sp = sp;
    f->fake = NULL;
}

#ifdef __SANITIZE_ADDRESS__
static Fiber *arriving;

static void find_stack(Fiber *f) {
    pthread_attr_t a;
    void *stack = NULL;
    if (pthread_getattr_np(pthread_self(), &a)) return;
    pthread_attr_getstack(&a, &stack, &f->size);
    pthread_attr_destroy(&a);
    f->stack = stack;
}

void fiber_entered(void) {
    __sanitizer_finish_switch_fiber(arriving->fake, NULL, NULL);
}

void fiber_adopt(char *stack, size_t size) {
    void *fake;
    __sanitizer_start_switch_fiber(&fake, stack, size);
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
}

void fiber_switch(Fiber *from, Fiber *to) {
    if (!from->stack) find_stack(from);
    arriving = to;
    __sanitizer_start_switch_fiber(&from->fake, to->stack, to->size);
    sim_switch_stack(&from->sp, to->sp);
    __sanitizer_finish_switch_fiber(arriving->fake, NULL, NULL);
}
#else
void fiber_entered(void) {}

void fiber_adopt(char *stack, size_t size) { (void)stack, (void)size; }

void fiber_switch(Fiber *from, Fiber *to) {
    sim_switch_stack(&from->sp, to->sp);
}
#endif

bool fiber_guards(const Fiber *f, int n, const void *p) {
    for (int i = 0; i < n; i++) {
        const char *top = f[i].stack;
        if ((const char *)p >= top - GUARD && (const char *)p < top)
            return true;
    }
    return false;
}
