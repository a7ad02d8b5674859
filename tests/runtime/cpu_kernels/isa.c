/* SPDX-License-Identifier: Apache-2.0 */
/* isa.c: which level and which routines a CPU gets. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cpu/block.h"
#include "runtime/cpu/isa.h"
#include "runtime/cpu/kmath.h"
#include "tests/harness.h"
#include "tests/support/cpu_cases.h"

/* The answer of a new process under this AMPC_ISA. */
static int dot_under(const char *isa) {
    setenv("AMPC_ISA", isa, 1);
    cpu_bf16_dot_force(-1);
    return cpu_bf16_dot();
}

/* The flags with which runtime/BUILD compiles a level's routines; NULL: it
   does not name the level. */
#define ISA_HERE
#define ISA(E, number, name, prefix, arch, vectors, flags)                     \
    extern const char ampc_v##number##_flags[] __attribute__((weak));          \
    extern const char ampc_v##number##_vectors[] __attribute__((weak));
#include "runtime/cpu/isa.def"

TEST_CASE(isa, runtime_build_has_the_rows_of_isa_def) {
    static const struct {
        const char *name, *flags, *built, *vectors, *built_vectors, *prefix;
        int number;
    } rows[] = {
#define ISA_HERE
#define ISA(E, number, name, prefix, arch, vectors, flags)                     \
    {name,   flags, ampc_v##number##_flags, vectors, ampc_v##number##_vectors, \
     prefix, number},
#include "runtime/cpu/isa.def"
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char named[40]; /* by which the symbols above are found */
        snprintf(named, sizeof named, "v%d_", rows[i].number);
        CHECK_MSG(!rows[i].flags || !strcmp(rows[i].prefix, named),
                  "%s: its prefix in isa.def is '%s', not '%s'", rows[i].name,
                  rows[i].prefix, named);
        const char *built = rows[i].built ? rows[i].built : "nothing";
        const char *flags = rows[i].flags ? rows[i].flags : "nothing";
        CHECK_MSG(!strcmp(built, flags), "%s: isa.def has %s, runtime/BUILD %s",
                  rows[i].name, flags, built);
        CHECK_MSG(!strstr(flags, "-march=x86-64-v"),
                  "%s: gcc 9 does not know %s", rows[i].name, flags);
        built = rows[i].built_vectors ? rows[i].built_vectors : "nothing";
        const char *vectors = rows[i].vectors ? rows[i].vectors : "nothing";
        CHECK_MSG(!strcmp(built, vectors),
                  "%s: isa.def has %s, runtime/BUILD %s", rows[i].name, vectors,
                  built);
    }
}

/* ---- what kernels call --------------------------------------------------- */

#define ISA_HERE
#define ISA(E, number, name, prefix, arch, vectors, flags)                     \
    extern float ampc_v##number##_FOLD_SUM_F32(float, const float *, int64_t)  \
        __attribute__((weak));                                                 \
    extern void ampc_v##number##_NARROW_BF16(uint16_t *, const float *,        \
                                             int64_t) __attribute__((weak));   \
    extern void ampc_v##number##_NARROW_F8E4M3(uint8_t *, const float *,       \
                                               int64_t) __attribute__((weak));
#include "runtime/cpu/isa.def"

/* The routines of kmath_isa.c have the bits of the functions that the text of
   --target c contains, NaN and any length included. */
TEST_CASE(isa, kernels_call_routines_of_equal_bits) {
    static const struct {
        int number;
        float (*fold)(float, const float *, int64_t);
        void (*bf16)(uint16_t *, const float *, int64_t);
        void (*f8)(uint8_t *, const float *, int64_t);
    } rows[] = {
#define ISA_HERE
#define ISA(E, number, name, prefix, arch, vectors, flags)                     \
    {number, ampc_v##number##_FOLD_SUM_F32, ampc_v##number##_NARROW_BF16,      \
     ampc_v##number##_NARROW_F8E4M3},
#include "runtime/cpu/isa.def"
    };
    enum { MOST = 70 };
    float x[MOST];
    int compared = 0;
    for (int i = 0; i < MOST; i++) x[i] = (float)rnd_value();
    x[37] = NAN;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!rows[i].fold || rows[i].number > cpu_isa_level()) continue;
        for (int n = 0; n <= MOST; n++, compared++) {
            uint16_t h[MOST] = {0}, h0[MOST] = {0};
            uint8_t b[MOST] = {0}, b0[MOST] = {0};
            float sum = rows[i].fold(0.5f, x, n < 37 ? n : 37);
            CHECK_EQ_INT(km_bits(sum),
                         km_bits(FOLD_SUM_F32(0.5f, x, n < 37 ? n : 37)));
            rows[i].bf16(h, x, n), NARROW_BF16(h0, x, n);
            CHECK(!memcmp(h, h0, sizeof h));
            rows[i].f8(b, x, n), NARROW_F8E4M3(b0, x, n);
            CHECK(!memcmp(b, b0, sizeof b));
        }
    }
    CHECK(compared > 0);
}

/* ---- the choice of a level ----------------------------------------------- */

/* The word takes the level, whatever is fast. */
TEST_CASE(isa, every_level_has_a_word) {
    static const struct {
        const char *name;
        int number;
    } rows[] = {
#define ISA_HERE
#define ISA(E, number, name, prefix, arch, vectors, flags) {name, number},
#include "runtime/cpu/isa.def"
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const CpuIsaWord *w = cpu_isa_words;
        while (w->name[0] && (w->level != rows[i].number || w->how[0])) w++;
        CHECK_MSG(w->name[0], "cpu_isa_words has no word for %s", rows[i].name);
    }
}

/* Code must ask for a level's features (simd.h), never for its number: other
   machines do not have these numbers. */
TEST_CASE(isa, no_routine_compares_levels) {
    char line[1000];
    int n = 0;
    FILE *p =
        popen("grep -nE '(ISA_LEVEL *[=!<>]|[=!<>] *ISA_LEVEL|"
              "__(AVX|SSE|x86_64)|^#include AMPC_SIMD)' runtime/cpu/*_isa.c "
              "runtime/cpu/*.h",
              "r");
    REQUIRE(p != NULL);
    for (; fgets(line, sizeof line, p); n++)
        CHECK_MSG(strstr(line, "#include AMPC_SIMD") ||
                      strstr(line, "runtime/cpu/kmath"),
                  "ask for a HAS_ or SIMD_ of the level instead: %s", line);
    pclose(p);
    CHECK(n > 0);
}

TEST_CASE(isa, bf16_dot_products_are_chosen_and_forced) {
    char *old = getenv("AMPC_ISA"), *kept = old ? strdup(old) : NULL;
    cpu_bf16_dot_force(1);
    int has = cpu_bf16_dot(); /* the machine, whatever is fast */
    CHECK_EQ_INT(dot_under("v4-fma"), 0);
    CHECK_EQ_INT(dot_under("v4-dot"), has);
    int measured = dot_under("v4");
    CHECK(measured <= has);
    for (int i = 0; i < 20; i++) CHECK_EQ_INT(dot_under("v4"), measured);
    setenv("AMPC_ISA", "v4-fma", 1);
    CHECK_EQ_INT(cpu_bf16_dot(), measured); /* kept for the process */
    if (kept)
        setenv("AMPC_ISA", kept, 1);
    else
        unsetenv("AMPC_ISA");
    free(kept);
    cpu_bf16_dot_force(-1);
}

TEST_CASE(isa, the_environment_only_lowers_the_level) {
    char *old = getenv("AMPC_ISA"), *kept = old ? strdup(old) : NULL;
    unsetenv("AMPC_ISA");
    int top = cpu_isa_level();
    CHECK(top >= AMPC_ISA_V2 && top <= AMPC_ISA_AMX);
    int least = top < AMPC_ISA_V4 ? top : AMPC_ISA_V4;
    setenv("AMPC_ISA", "v2", 1);
    CHECK_EQ_INT(cpu_isa_level(), AMPC_ISA_V2);
    setenv("AMPC_ISA", "v4", 1);
    CHECK_EQ_INT(cpu_isa_level(), least);
    static const char *const unknown[] = {"fast", "v3-dot", "v4-fast", "v5",
                                          "V3",   "v3 ",    "2",       "v22"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        setenv("AMPC_ISA", unknown[i], 1);
        CHECK_STR(cpu_isa_unknown(), unknown[i]);
    }
    setenv("AMPC_ISA", "", 1);
    CHECK(!cpu_isa_unknown());
    for (const CpuIsaWord *w = cpu_isa_words; w->name[0]; w++) {
        setenv("AMPC_ISA", w->name, 1);
        CHECK(!cpu_isa_unknown());
        CHECK_MSG(strstr(CPU_ISA_WORDS, w->name), "CPU_ISA_WORDS lacks %s",
                  w->name);
    }
    if (kept)
        setenv("AMPC_ISA", kept, 1);
    else
        unsetenv("AMPC_ISA");
    free(kept);
}
