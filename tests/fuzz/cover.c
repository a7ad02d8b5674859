/* SPDX-License-Identifier: Apache-2.0 */
/* cover.c: the functions that gcc's -fsanitize-coverage=trace-pc,trace-cmp
   calls, at every block and comparison: they take half of all time. So it is
   built without sanitizers, and numbers are recorded in one of NOTED
   executions. */
#include "tests/fuzz/fuzz.h"

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_cmp1(uint8_t a, uint8_t b);
void __sanitizer_cov_trace_cmp2(uint16_t a, uint16_t b);
void __sanitizer_cov_trace_cmp4(uint32_t a, uint32_t b);
void __sanitizer_cov_trace_cmp8(uint64_t a, uint64_t b);
void __sanitizer_cov_trace_const_cmp1(uint8_t a, uint8_t b);
void __sanitizer_cov_trace_const_cmp2(uint16_t a, uint16_t b);
void __sanitizer_cov_trace_const_cmp4(uint32_t a, uint32_t b);
void __sanitizer_cov_trace_const_cmp8(uint64_t a, uint64_t b);
void __sanitizer_cov_trace_cmpf(float a, float b);
void __sanitizer_cov_trace_cmpd(double a, double b);
void __sanitizer_cov_trace_switch(uint64_t v, uint64_t *cases);

/* ---- places -------------------------------------------------------------- */

/* An edge is the hash of two blocks' addresses, as in AFL. */
static uint64_t counts[COVER_PLACES / 8]; /* a byte a place */
static uintptr_t before;
static uint64_t blocks;
static bool on;

void __sanitizer_cov_trace_pc(void) {
    if (!on) return;
    uintptr_t pc = (uintptr_t)__builtin_return_address(0);
    uint8_t *place =
        (uint8_t *)counts + ((uint32_t)((pc ^ before) * 0x9e3779b1u) >> 16);
    before = pc >> 1;
    blocks++;
    *place = (uint8_t)(*place + (*place != 255)); /* without a branch */
}

/* ---- numbers ------------------------------------------------------------- */

enum { PAIRS = 512, NOTED = 8 };
static uint64_t pair[PAIRS][2];
static uint32_t npair, executions;
static bool noting;

static void compared(uint64_t a, uint64_t b) {
    if (!noting || a == b) return;
    pair[npair % PAIRS][0] = a;
    pair[npair++ % PAIRS][1] = b;
}

void __sanitizer_cov_trace_cmp1(uint8_t a, uint8_t b) { compared(a, b); }
void __sanitizer_cov_trace_cmp2(uint16_t a, uint16_t b) { compared(a, b); }
void __sanitizer_cov_trace_cmp4(uint32_t a, uint32_t b) { compared(a, b); }
void __sanitizer_cov_trace_cmp8(uint64_t a, uint64_t b) { compared(a, b); }
void __sanitizer_cov_trace_const_cmp1(uint8_t a, uint8_t b) { compared(a, b); }
void __sanitizer_cov_trace_const_cmp2(uint16_t a, uint16_t b) {
    compared(a, b);
}
void __sanitizer_cov_trace_const_cmp4(uint32_t a, uint32_t b) {
    compared(a, b);
}
void __sanitizer_cov_trace_const_cmp8(uint64_t a, uint64_t b) {
    compared(a, b);
}
void __sanitizer_cov_trace_cmpf(float a, float b) { (void)a, (void)b; }
void __sanitizer_cov_trace_cmpd(double a, double b) { (void)a, (void)b; }

/* cases: their number, their bits, their values */
void __sanitizer_cov_trace_switch(uint64_t v, uint64_t *cases) {
    if (noting && cases[0]) compared(v, cases[2 + fuzz_below(cases[0])]);
}

bool cover_compared(uint64_t *a, uint64_t *b) {
    uint32_t n = npair < PAIRS ? npair : PAIRS;
    if (!n) return false;
    uint32_t i = (uint32_t)fuzz_below(n), side = fuzz_random() & 1;
    *a = pair[i][side];
    *b = pair[i][!side];
    return true;
}

/* ---- one execution ------------------------------------------------------- */

void cover_start(void) {
    noting = executions++ % NOTED == 0;
    if (noting) npair = 0;
    before = blocks = 0;
    on = true;
}

/* True if `seen` lacks that count; counts are equal if the powers of two
   below them are. */
static bool is_new(uint8_t c, uint8_t *seen, uint64_t *reached) {
    uint8_t bit = (uint8_t)(1 << (31 - __builtin_clz(c)));
    if (*seen & bit) return false;
    *reached += !*seen;
    *seen |= bit;
    return true;
}

bool cover_end(uint8_t *seen, uint64_t *reached, uint64_t *work) {
    bool news = false;
    on = noting = false;
    *work = blocks;
    for (size_t i = 0; i < COVER_PLACES / 8; i++) {
        if (!counts[i]) continue;
        const uint8_t *count = (const uint8_t *)&counts[i];
        for (size_t k = 0; k < 8; k++)
            news |= count[k] && is_new(count[k], &seen[8 * i + k], reached);
        counts[i] = 0;
    }
    return news;
}
