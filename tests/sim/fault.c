/* SPDX-License-Identifier: Apache-2.0 */
/* fault.c: see fault.h. */
#define _GNU_SOURCE
#include "tests/sim/fault.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { PAGE = 4096, MAX_PAGES = 4096, ALT = 64 << 10 };

static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE};
enum { NSIGNAL = sizeof signals / sizeof *signals };
static struct sigaction before[NSIGNAL];
static struct {
    char *begin, *end; /* whole pages, inaccessible at first */
    int used[MAX_PAGES], nused;
    char *dynamic;
    size_t dynamic_size;
} shared;
static void (*land)(void);
static const void *address;
static int kind;
static _Alignas(16) char emergency[256 << 10];

/* ASan's red zones are between the arrays: library functions must not write
   here. */
__attribute__((no_sanitize("address"))) static void fill(char *p, size_t n) {
    __asm__ volatile("rep stosb" : "+D"(p), "+c"(n) : "a"(0xff) : "memory");
}

static bool open_shared(char *p) {
    if (p < shared.begin || p >= shared.end) return false;
    char *page = (char *)((uintptr_t)p & ~(uintptr_t)(PAGE - 1));
    mprotect(page, PAGE, PROT_READ | PROT_WRITE);
    fill(page, PAGE);
    shared.used[shared.nused++] = (int)((page - shared.begin) / PAGE);
    return true;
}

static void handler(int sig, siginfo_t *info, void *context) {
    ucontext_t *uc = context;
    if (sig == SIGSEGV && open_shared(info->si_addr)) return;
    address = info->si_addr;
    kind = sig == SIGFPE ? FAULT_ARITHMETIC : FAULT_ADDRESS;
    uc->uc_mcontext.gregs[REG_RSP] =
        (greg_t)(uintptr_t)(emergency + sizeof emergency - 64 - 8);
    uc->uc_mcontext.gregs[REG_RIP] = (greg_t)(uintptr_t)land;
}

/* The handler cannot run on a stack that has overflowed. */
static void need_alternate_stack(void) {
    stack_t s;
    static __thread char *mine;
    if (mine || (!sigaltstack(NULL, &s) && !(s.ss_flags & SS_DISABLE))) return;
    mine = malloc(ALT);
    if (!mine) return;
    s = (stack_t){.ss_sp = mine, .ss_size = ALT};
    sigaltstack(&s, NULL);
}

static char *page_up(char *p) { return p + (-(uintptr_t)p & (PAGE - 1)); }

void fault_begin(char *begin, char *end, void (*landing)(void)) {
    struct sigaction a = {0};
    a.sa_sigaction = handler;
    a.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&a.sa_mask);
    need_alternate_stack();
    for (int i = 0; i < NSIGNAL; i++) sigaction(signals[i], &a, &before[i]);
    land = landing;
    shared.begin = page_up(begin);
    shared.end = page_up(end);
    shared.nused = 0;
    mprotect(shared.begin, (size_t)(shared.end - shared.begin), PROT_NONE);
}

void fault_end(void) {
    mprotect(shared.begin, (size_t)(shared.end - shared.begin),
             PROT_READ | PROT_WRITE);
    free(shared.dynamic);
    shared.dynamic = NULL;
    shared.dynamic_size = 0;
    for (int i = 0; i < NSIGNAL; i++) sigaction(signals[i], &before[i], NULL);
}

char *fault_stack(size_t *size) {
    *size = sizeof emergency;
    return emergency;
}

const void *fault_address(void) { return address; }
int fault_signal(void) { return kind; }

char *fault_dynamic(size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, 128, bytes)) return NULL;
    shared.dynamic = p;
    shared.dynamic_size = bytes;
    return p;
}

void fault_fill_shared(void) {
    for (int i = 0; i < shared.nused; i++)
        fill(shared.begin + (size_t)shared.used[i] * PAGE, PAGE);
    if (shared.dynamic) fill(shared.dynamic, shared.dynamic_size);
}
