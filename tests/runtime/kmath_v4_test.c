/* SPDX-License-Identifier: Apache-2.0 */
/* kmath_v4_test.c: kmath_test.c for kernels with AVX-512. */
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void need_v4(void) {
    if (__builtin_cpu_supports("x86-64-v4")) return;
    puts("no x86-64-v4 here: nothing is tested");
    exit(0);
}

#pragma GCC target("arch=x86-64-v4")
#include "tests/runtime/kmath_test.c"
