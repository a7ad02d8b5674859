/* SPDX-License-Identifier: Apache-2.0 */
/* kmath_v3_test.c: kmath_test.c for kernels with AVX2 and F16C. */
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void need_v3(void) {
    if (__builtin_cpu_supports("x86-64-v3")) return;
    puts("no x86-64-v3 here: nothing is tested");
    exit(0);
}

#pragma GCC target("arch=x86-64-v3")
#include "tests/runtime/kmath_test.c"
