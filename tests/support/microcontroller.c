/* SPDX-License-Identifier: Apache-2.0 */
/* microcontroller.c: starts a host on a Cortex-M4 without an operating system,
   and what its C library (newlib) asks for; text and arguments go through
   semihosting, which QEMU and debuggers answer.  Not part of the tests' own
   programs: portable.c compiles it. */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>

int main(int argc, char **argv);
_Noreturn void reset(void);
_Noreturn void _exit(int status);

extern char data_from[], data_begin[], data_end[];
extern char bss_begin[], bss_end[], heap_begin[], heap_end[];
void stack_end(void); /* an address: the first word of the table below */

enum { WRITE_CHARACTER = 3, COMMAND_LINE = 0x15, EXIT_EXTENDED = 0x20 };

static int semihosting(int what, const void *with) {
    register int r0 __asm__("r0") = what;
    register const void *r1 __asm__("r1") = with;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

void _exit(int status) {
    const uint32_t why[2] = {0x20026 /* the program's end */, (uint32_t)status};
    for (;;) semihosting(EXIT_EXTENDED, why);
}

int _write(int file, const char *from, int n) {
    (void)file;
    for (int i = 0; i < n; i++) semihosting(WRITE_CHARACTER, from + i);
    return n;
}

void *_sbrk(ptrdiff_t more) {
    static char *end = heap_begin;
    if (more > heap_end - end) return errno = ENOMEM, (void *)-1;
    end += more;
    return end - more;
}

int _close(int file) { return (void)file, -1; }
int _isatty(int file) { return (void)file, 0; }
int _fstat(int file, struct stat *to) {
    (void)file;
    to->st_mode = S_IFCHR;
    return 0;
}
int _lseek(int file, int to, int from) { return (void)file, (void)to, from; }
int _read(int file, char *to, int n) { return (void)file, (void)to, n - n; }
int _kill(int id, int signal) { return (void)id, (void)signal, -1; }
int _getpid(void) { return 1; }

static _Noreturn void begin(void) {
    static char line[80];
    char *argv[8] = {line};
    int argc = 0;
    struct {
        char *to;
        uint32_t bytes;
    } command = {line, sizeof line};
    for (ptrdiff_t i = 0; i < data_end - data_begin; i++)
        data_begin[i] = data_from[i];
    for (char *p = bss_begin; p < bss_end; p++) *p = 0;
    if (semihosting(COMMAND_LINE, &command)) _exit(125);
    for (char *p = line; *p && argc < 8; argc++) {
        argv[argc] = p;
        while (*p && *p != ' ') p++;
        while (*p == ' ') *p++ = 0;
    }
    exit(main(argc, argv));
}

/* Register CPACR: access to the processor's floats. */
_Noreturn void reset(void) {
    *(volatile uint32_t *)0xe000ed88 |= 0xfu << 20;
    __asm__ volatile("dsb\n\tisb");
    begin();
}

static _Noreturn void fault(void) { _exit(124); }

__attribute__((section(".vectors"),
               used)) static void (*const vectors[16])(void) = {
    stack_end, reset, fault, fault, fault, fault, fault};
