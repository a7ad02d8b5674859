/* SPDX-License-Identifier: Apache-2.0 */
/* portable_slow_test.c: modules of --target c on every machine, by every
   compiler: the bits of the x86-64-v2 module.                               */
#include "tests/harness.h"
#include "tests/support/portable.h"

static const Portable *mlp(void) {
    static Portable p;
    if (!p.dir) p = portable_write("mlp", "--dim B=8 --dim H=32");
    return &p;
}

static const Portable *cnn(void) {
    static Portable p;
    if (!p.dir) p = portable_write("cnn", "--dim B=4 --dim W=8");
    return &p;
}

static const Portable *gpt(void) {
    static Portable p;
    if (!p.dir)
        p = portable_write("gpt", "--dim B=2 --dim T=16 --dim VOCAB=64 --dim "
                                  "D=32 --dim HEADS=2 --dim L=2");
    return &p;
}

/* Weights, moments, gradients, the step's memory, samples, stack: 256 KB. */
static const Portable *small(void) {
    static Portable p;
    if (!p.dir)
        p = portable_write("mlp", "--dim B=8 --dim H=8 --precision fp32");
    return &p;
}

TEST_CASE(portable, mlp_on_cortex_m4_with_256_kb) {
    portable_check(small(), &portable_compilers[ON_CORTEX_M4]);
}

#define ON(machine, i)                                                         \
    TEST_CASE(portable, mlp_##machine) {                                       \
        portable_check(mlp(), &portable_compilers[i]);                         \
    }                                                                          \
    TEST_CASE(portable, cnn_##machine) {                                       \
        portable_check(cnn(), &portable_compilers[i]);                         \
    }                                                                          \
    TEST_CASE(portable, gpt_##machine) {                                       \
        portable_check(gpt(), &portable_compilers[i]);                         \
    }
ON(by_gcc, BY_GCC)
ON(by_clang, BY_CLANG)
ON(by_tcc, BY_TCC)
ON(by_gcc_in_plain_c, BY_GCC_IN_PLAIN_C)
ON(with_musl, WITH_MUSL)
ON(on_i386, ON_I386)
ON(on_arm64, ON_ARM64)
ON(on_armv7, ON_ARMV7)
ON(on_riscv64, ON_RISCV64)
ON(on_wasm32, ON_WASM32)
ON(on_windows, ON_WINDOWS)
