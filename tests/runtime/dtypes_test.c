/* SPDX-License-Identifier: Apache-2.0 */
/* dtypes_test.c: every row of runtime/program/dtypes.def has all columns,
   the languages that cannot read the table agree with it, and no file asks
   which of the two 16-bit types a type is. A row that was added only to the
   table makes each of these tests name the missing place. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/ampc.h"
#include "runtime/cuda/driver.h"
#include "runtime/program/dtype.h"
#include "tests/harness.h"

enum { TEXT = 1 << 20, LIST = 4000 };

static char *text_of(const char *path) {
    char *text = malloc(TEXT);
    FILE *f = fopen(path, "rb");
    REQUIRE(text && f != NULL);
    size_t n = fread(text, 1, TEXT - 1, f);
    REQUIRE(n < TEXT - 1);
    text[n] = 0;
    fclose(f);
    return text;
}

__attribute__((format(printf, 2, 3))) static void add(char *list,
                                                      const char *fmt, ...) {
    size_t n = strlen(list);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(list + n, LIST - n, fmt, ap);
    va_end(ap);
}

/* ---- columns ------------------------------------------------------------- */

static void missing_columns(const DTypeInfo *d, char *list) {
    bool is_float = d->kind == DK_F;
    const struct {
        const char *name;
        bool there;
    } columns[] = {{"text", d->text != NULL},
                   {"macro", d->macro != NULL},
                   {"c", d->c != NULL},
                   {"cuda", d->cuda != NULL},
                   {"bytes", d->bytes > 0},
                   {"mantissa", d->mantissa > 0},
                   {"most", d->most > 0 || !is_float},
                   {"least", d->least > 0 || !is_float},
                   {"onnx", d->onnx > 0},
                   {"safetensors", d->safetensors != NULL},
                   {"npy", d->npy != NULL || d->stored},
                   {"numpy", d->numpy != NULL},
                   {"buffer", d->buffer != NULL},
                   {"cublaslt", d->cublaslt != 0 || !is_float},
                   {"nccl", d->nccl > 0 || d->stored || !is_float}};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        if (!columns[i].there) add(list, "%s ", columns[i].name);
}

TEST_CASE(dtypes, every_row_has_all_columns) {
    for (uint32_t d = 0; d < AMPC_NDTYPE; d++) {
        char list[LIST] = "";
        missing_columns(&dtype_info[d], list);
        CHECK_MSG(!*list, "row %u of dtypes.def lacks: %s", d, list);
        const DTypeInfo *of = &dtype_info[dtype_info[d].compute];
        CHECK_MSG(of->kind == dtype_info[d].kind || of->kind == DK_I,
                  "%s is computed in %s", dtype_info[d].text, of->text);
        CHECK(!dtype_info[d].low || dtype_info[d].compute == AMPC_F32);
    }
    char list[LIST] = "";
    missing_columns(&(DTypeInfo){.text = "f8", .kind = DK_F, .onnx = 17}, list);
    CHECK_STR(list, "macro c cuda bytes mantissa most least safetensors npy "
                    "numpy buffer cublaslt nccl ");
}

TEST_CASE(dtypes, no_name_stands_in_two_rows) {
    for (uint32_t a = 0; a < AMPC_NDTYPE; a++)
        for (uint32_t b = 0; b < a; b++) {
            const DTypeInfo *x = &dtype_info[a], *y = &dtype_info[b];
            CHECK(strcmp(x->text, y->text) && x->onnx != y->onnx &&
                  strcmp(x->safetensors, y->safetensors));
            CHECK(!x->npy || !y->npy || strcmp(x->npy, y->npy));
            CHECK(!x->cublaslt || x->cublaslt != y->cublaslt);
            CHECK(!x->nccl || x->nccl != y->nccl);
            CHECK(!x->idx || x->idx != y->idx);
        }
}

TEST_CASE(dtypes, codes_of_libraries) {
    const struct {
        AmpcDtype dtype;
        int cublaslt, nccl;
    } rows[] = {{AMPC_F16, LT_R_16F, NCCL_FLOAT16},
                {AMPC_BF16, LT_R_16BF, NCCL_BFLOAT16},
                {AMPC_F32, LT_R_32F, NCCL_FLOAT32},
                {AMPC_F64, LT_R_64F, NCCL_FLOAT64},
                {AMPC_I64, -1, NCCL_INT64},
                {AMPC_BOOL, -1, -1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        CHECK_EQ_INT(dtype_info[rows[i].dtype].cublaslt - 1, rows[i].cublaslt);
        CHECK_EQ_INT(dtype_info[rows[i].dtype].nccl - 1, rows[i].nccl);
    }
}

/* ---- functions of low types ---------------------------------------------- */

/* The places that a 16-bit type needs besides its row; %s is its macro or
   its text. `macros`: what may stand there instead. */
static const struct {
    const char *file, *macro, *text, *macros;
} functions[] = {
    {"runtime/ampc.h", "AMPC_DTYPE_%s ", NULL, NULL},
    {"runtime/program/half.h", NULL, " %s_to_f32(", NULL},
    {"runtime/program/half.h", NULL, " f32_to_%s(", NULL},
    {"ir/graph/tensor.c", NULL, " %s_to_double(", "CODEC(%s, "},
    {"ir/graph/tensor.c", NULL, " double_to_%s(", "CODEC(%s, "},
    {"runtime/cpu/kmath_narrow.h", " %s_TO_F32(", NULL, NULL},
    {"runtime/cpu/kmath_narrow.h", " F32_TO_%s(", NULL, NULL},
    {"runtime/cpu/kmath_narrow.h", " ROUND_%s(", NULL, NULL},
    {"runtime/cpu/kmath_narrow.h", " EXACT_%s(", NULL, NULL},
    {"runtime/cpu/kmath_calls.h", "KM_CALL_WIDEN(%s, ", NULL, NULL},
    {"runtime/cpu/kmath_calls.h", "KM_CALL_NARROW(%s, ", NULL, NULL},
    {"runtime/cuda/device.cuh", NULL, "struct %s {", NULL},
    {"runtime/cuda/device.cuh", NULL, "widen(%s ", NULL},
    {"runtime/cuda/device.cuh", NULL, "Narrow<%s>", NULL}};

static void missing_functions(const char *macro, const char *text, char *list) {
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        const char *of = functions[i].macro ? macro : text;
        char name[80], macros[80], *file = text_of(functions[i].file);
        snprintf(name, sizeof name,
                 functions[i].macro ? functions[i].macro : functions[i].text,
                 of);
        snprintf(macros, sizeof macros,
                 functions[i].macros ? functions[i].macros : name, of);
        if (!strstr(file, name) && !strstr(file, macros))
            add(list, "%s:%s\n", functions[i].file, name);
        free(file);
    }
}

TEST_CASE(dtypes, low_types_have_their_functions) {
    char list[LIST] = "";
    for (uint32_t d = 0; d < AMPC_NDTYPE; d++)
        if (dtype_info[d].low)
            missing_functions(dtype_info[d].macro, dtype_info[d].text, list);
    CHECK_STR(list, "");
    missing_functions("F8", "f8", list);
    int n = 0;
    for (const char *p = list; *p; p++) n += *p == '\n';
    CHECK_EQ_INT(n, (int)(sizeof functions / sizeof *functions));
}

/* ---- other languages ----------------------------------------------------- */

TEST_CASE(dtypes, python_has_the_table) {
    char *file = text_of("runtime/python/ampc/_c.py"),
         *at = strstr(file, "DTYPES = [");
    REQUIRE(at != NULL);
    char *end = strchr(at, ']');
    REQUIRE(end != NULL);
    *end = 0;
    for (uint32_t d = 0; d < AMPC_NDTYPE; d++) {
        char row[80];
        snprintf(row, sizeof row, "(\"%s\", \"%s\", \"%s\")",
                 dtype_info[d].text, dtype_info[d].buffer, dtype_info[d].numpy);
        char *here = strstr(at, row);
        CHECK_MSG(here != NULL, "DTYPES of _c.py lacks %s in its place", row);
        if (here) at = here;
    }
    free(file);
}

/* The code of DLPack of a type with a name of its own. */
TEST_CASE(dtypes, python_has_dlpacks_codes) {
    char *file = text_of("runtime/python/ampc/_arrays.py"),
         *at = strstr(file, "_CODES = {");
    REQUIRE(at != NULL);
    char *end = strchr(at, '}');
    REQUIRE(end != NULL);
    *end = 0;
    for (uint32_t d = 0; d < AMPC_NDTYPE; d++) {
        char name[80];
        snprintf(name, sizeof name, "\"%s\": ", dtype_info[d].text);
        CHECK_MSG(!dtype_info[d].stored || strstr(at, name),
                  "_CODES of _arrays.py lacks %s", name);
    }
    free(file);
}

TEST_CASE(dtypes, javascript_has_the_table) {
    static const int sizes[] = {1, 1, 2, 2, 4, 4, 8, 8, 4, 8};
    static const char *const arrays[] = {
        "Uint8Array",   "Int8Array",   "Uint16Array",    "Int16Array",
        "Uint32Array",  "Int32Array",  "BigUint64Array", "BigInt64Array",
        "Float32Array", "Float64Array"};
    char *file = text_of("runtime/js/ampc.js"),
         *at = strstr(file, "const DTYPES = ");
    REQUIRE(at != NULL);
    char *end = strchr(at, ')');
    REQUIRE(end != NULL);
    *end = 0;
    for (uint32_t d = 0; d < AMPC_NDTYPE; d++) {
        char name[80], array[20] = "nothing";
        int bytes = 0;
        snprintf(name, sizeof name, " %s: ", dtype_info[d].text);
        char *here = strstr(at, name);
        CHECK_MSG(here != NULL, "DTYPES of ampc.js lacks%sin its place", name);
        if (!here) continue;
        sscanf(here + strlen(name), "%19[A-Za-z0-9]", array);
        for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
            if (!strcmp(array, arrays[i])) bytes = sizes[i];
        CHECK_MSG(bytes == dtype_info[d].bytes, "ampc.js:%sis of %s", name,
                  array);
        at = here;
    }
    free(file);
}

TEST_CASE(dtypes, options_name_the_types_of_state) {
    char *file = text_of("frontend/cli/options.def"),
         *at = strstr(file, "COMPILE(\"--state-dtype\"");
    REQUIRE(at != NULL);
    char *end = strchr(at, '\n');
    REQUIRE(end != NULL);
    *end = 0;
    for (uint32_t d = 0; d < AMPC_NDTYPE; d++)
        CHECK_MSG(!dtype_info[d].state || strstr(at, dtype_info[d].state),
                  "options.def, --state-dtype: %s is missing in: %s",
                  dtype_info[d].state, at);
    free(file);
}

TEST_CASE(dtypes, cpp_has_every_type_of_the_language) {
    char *file = text_of("runtime/cpp/ampc.hpp");
    for (uint32_t d = 0; d < AMPC_NDTYPE; d++) {
        char name[80];
        snprintf(name, sizeof name, "value = AMPC_DTYPE_%s;",
                 dtype_info[d].macro);
        CHECK_MSG(dtype_info[d].low || strstr(file, name),
                  "ampc.hpp lacks dtype<>: %s", name);
    }
    free(file);
}

/* impl Element for u8 { const DTYPE: i32 = 1; } */
TEST_CASE(dtypes, rust_has_the_numbers) {
    char *file = text_of("runtime/rust/ampc.rs");
    int n = 0;
    for (const char *p = file; (p = strstr(p, "impl Element for ")); n++) {
        char name[20];
        int number;
        REQUIRE(sscanf(p, "impl Element for %19s { const DTYPE: i32 = %d", name,
                       &number) == 2);
        CHECK_STR(dtype_name((uint32_t)number), name);
        p++;
    }
    CHECK(n >= 5);
    free(file);
}

/* case uint8: return C.AMPC_DTYPE_U8 */
TEST_CASE(dtypes, go_has_the_types) {
    char *file = text_of("runtime/go/ampc.go");
    int n = 0;
    for (const char *p = file; (p = strstr(p, "return C.AMPC_DTYPE_")); n++) {
        char macro[20] = "", name[20] = "float64"; /* the last row has no
                                                      case */
        const char *line = p;
        while (line > file && line[-1] != '\n') line--;
        if (line > file) line--;
        while (line > file && line[-1] != '\n') line--;
        sscanf(line, " case %19[a-z0-9]", name);
        REQUIRE(sscanf(p, "return C.AMPC_DTYPE_%19[A-Z0-9]", macro) == 1);
        uint32_t d = 0;
        while (d < AMPC_NDTYPE && strcmp(dtype_info[d].macro, macro)) d++;
        REQUIRE(d < AMPC_NDTYPE);
        CHECK_STR(name, dtype_info[d].numpy);
        p++;
    }
    CHECK(n >= 5);
    free(file);
}

/* ---- casts to 8 bits ----------------------------------------------------- */

/* f8.txt: fp32 numbers and the codes that libraries give (models/record/f8.py).
 */
enum { LIBRARIES = 6 };
static const char *const f8_head = "type fp32 torch-2.11.0 torch-2.15.0 "
                                   "ml_dtypes onnx-saturate onnx "
                                   "cuda-satfinite\n";

static uint8_t code_of(uint32_t d, float x) {
    uint8_t code;
    float_put(d, (double)x, &code);
    return code;
}

static float within(uint32_t d, float x) {
    float most = (float)dtype_info[d].most;
    return x > most ? most : x < -most ? -most : x;
}

/* The least power of two that is not below |x|. */
static uint8_t power_above(float x) {
    int e;
    float m = frexpf(fabsf(x), &e);
    if (isnan(x)) return 255;
    e -= m == 0.5f;
    return e < -127 || x == 0    ? 0
           : isinf(x) || e > 127 ? 254
                                 : (uint8_t)(e + 127);
}

/* What each column of f8.txt should have, said by our casts. */
static uint8_t as_library(int column, uint32_t d, float x) {
    bool signs = d != AMPC_E8M0;
    switch (column) {
    case 1: return code_of(d, d == AMPC_F8E4M3 ? within(d, x) : x);
    case 2: return signs || x > 0 ? code_of(d, x) : 255;
    case 3: return code_of(d, signs || !isinf(x) ? within(d, x) : x);
    case 5: return signs ? code_of(d, within(d, x)) : power_above(x);
    default: return code_of(d, x);
    }
}

TEST_CASE(dtypes, casts_to_8_bits_are_those_of_libraries) {
    char line[200], text[20];
    FILE *f = fopen("tests/runtime/f8.txt", "r");
    REQUIRE(f && fgets(line, sizeof line, f));
    CHECK_STR(line, f8_head);
    int n = 0, wrong = 0;
    for (; fgets(line, sizeof line, f) && wrong < 10; n++) {
        uint32_t bits, c[LIBRARIES], d = 0;
        REQUIRE(sscanf(line, "%19s %x %x %x %x %x %x %x", text, &bits, c, c + 1,
                       c + 2, c + 3, c + 4, c + 5) == 8);
        while (d < AMPC_NDTYPE && strcmp(dtype_info[d].text, text)) d++;
        REQUIRE(d < AMPC_NDTYPE);
        for (int i = 0; i < LIBRARIES; i++) {
            uint8_t want = (uint8_t)c[i],
                    got = as_library(i, d, half_float(bits));
            bool nan = isnan(float_at(d, &want)) && isnan(float_at(d, &got));
            wrong += !CHECK_MSG(got == want || (i > 1 && nan),
                                "%s of %a, column %d: %02x, not %02x", text,
                                (double)half_float(bits), i, got, want);
        }
    }
    fclose(f);
    CHECK(n > 6000);
}

/* ---- questions ----------------------------------------------------------- */

/* Files that choose between 16-bit types by name. Routines of runtime/cpu
   may: lib.def says which types each accepts, so that another type never
   gets there. */
static const char *const may_ask[] = {"runtime/cpu/"};

static bool asks(const char *line) {
    static const char *const questions[] = {
        "== DT_F16",   "== DT_BF16",   "!= DT_F16",     "!= DT_BF16",
        "case DT_F16", "case DT_BF16", "== AMPC_F16",   "== AMPC_BF16",
        "!= AMPC_F16", "!= AMPC_BF16", "case AMPC_F16", "case AMPC_BF16"};
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++)
        if (strstr(line, questions[i])) return true;
    return false;
}

TEST_CASE(dtypes, no_file_asks_which_low_type) {
    char line[1000];
    FILE *p = popen("grep -RnE --include='*.[ch]' '(DT|AMPC)_B?F16' "
                    "ir passes codegen frontend runtime",
                    "r");
    REQUIRE(p != NULL);
    int n = 0;
    for (; fgets(line, sizeof line, p); n++) {
        bool may = false;
        for (size_t i = 0; i < sizeof may_ask / sizeof *may_ask; i++)
            may |= !strncmp(line, may_ask[i], strlen(may_ask[i]));
        CHECK_MSG(may || !asks(line), "ask the row of the type instead: %s",
                  line);
    }
    pclose(p);
    CHECK(n > 20);
    CHECK(asks("    return d == DT_F16 ? a : b;") && asks("case AMPC_BF16:"));
}
