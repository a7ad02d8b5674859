/* SPDX-License-Identifier: Apache-2.0 */
/* notiles.c: functions that routines call only under HAS_TILES; a compiler
   that does not optimise keeps the calls. It replaces cpu/amx_isa.c. */
#include "runtime/cpu/amx.h"

void amx_begin(void) {}

void amx_end(void) {}

void amx_product(int64_t units, int64_t rows, int w, const float *a,
                 int64_t a_step, const float *b, int64_t b_step, float *c,
                 int64_t ldc, int add) {
    (void)units, (void)rows, (void)w, (void)a, (void)a_step, (void)b;
    (void)b_step, (void)c, (void)ldc, (void)add;
}

void amx_pack_a(float *dst, const PackSrc *src, int64_t k0, int64_t k,
                int64_t k_all, int64_t m, int64_t real) {
    (void)dst, (void)src, (void)k0, (void)k, (void)k_all, (void)m, (void)real;
}
