/* SPDX-License-Identifier: Apache-2.0 */
/* matrix.c: every order of axes, in every grouping of neighbours, of every
   dtype, in each kind of file, for an input, a target of numbers and one of
   probabilities: either refused with a reason, or the elements in their order,
   with a line where they are changed.  What is expected is listed here by the
   shapes alone.                                                             */
#include "tests/frontend/feed/files.h"

#include <stdio.h>
#include <string.h>

#include "runtime/program/dtype.h"

enum { BATCH = 4, SAMPLES = 8, EACH = 24, COUNT = SAMPLES * EACH, AXES = 4 };

static struct {
    const char *name;
    int dtype, rank;
    int64_t dim[AXES];
} wanted;

static ampc_status of_module(const ampc_module_t *m, ampc_module_info *info) {
    (void)m;
    info->batch = BATCH;
    return AMPC_OK;
}

static ampc_status of_program(const ampc_module_t *m, const char *program,
                              ampc_program_info *info) {
    (void)m;
    (void)program;
    info->ninput = 1;
    return AMPC_OK;
}

static ampc_status of_input(const ampc_module_t *m, const char *program,
                            uint32_t i, ampc_tensor_info *t) {
    (void)m;
    (void)program;
    if (i) return AMPC_ERR_UNSUPPORTED;
    t->name = wanted.name;
    t->dtype = wanted.dtype;
    t->rank = wanted.rank;
    t->bytes = dtype_bytes((uint32_t)wanted.dtype);
    for (int k = 0; k < wanted.rank; k++)
        t->bytes *= (size_t)(t->shape[k] = wanted.dim[k]);
    return AMPC_OK;
}

static const ampc_api api = {
    .describe = of_module, .program = of_program, .input = of_input};

/* ---- kinds of files ------------------------------------------------------ */

typedef struct Layout {
    int dtype, rank;
    int64_t dim[AXES + 1];
    int count;
} Layout;

/* Element i: small enough for every dtype. */
static double number(int i) { return i % 120; }

/* Element i in the bytes of the dtype, the lowest first. */
static void put_element(StrBuf *sb, int dtype, int i, bool high_first) {
    char bytes[8] = {0};
    uint64_t v = (uint64_t)number(i);
    int size = (int)dtype_bytes((uint32_t)dtype);
    if (is_float_dtype((uint32_t)dtype))
        float_put((uint32_t)dtype, number(i), bytes);
    else
        memcpy(bytes, &v, (size_t)size);
    for (int k = 0; k < size; k++)
        sb_putn(sb, bytes + (high_first ? size - 1 - k : k), 1);
}

static void put_elements(StrBuf *sb, const Layout *s, bool high_first) {
    for (int i = 0; i < s->count; i++) put_element(sb, s->dtype, i, high_first);
}

static bool as_npy(const Layout *s, StrBuf *sb) {
    npy_header(sb, s->dtype, s->rank, s->dim);
    put_elements(sb, s, false);
    return true;
}

static bool as_safetensors(const Layout *s, StrBuf *sb) {
    static const char *const names[] = {
        [AMPC_DTYPE_U8] = "U8",     [AMPC_DTYPE_I8] = "I8",
        [AMPC_DTYPE_I16] = "I16",   [AMPC_DTYPE_I32] = "I32",
        [AMPC_DTYPE_I64] = "I64",   [AMPC_DTYPE_F16] = "F16",
        [AMPC_DTYPE_BF16] = "BF16", [AMPC_DTYPE_F32] = "F32",
        [AMPC_DTYPE_F64] = "F64"};
    StrBuf head = {0};
    int bytes = s->count * (int)dtype_bytes((uint32_t)s->dtype);
    sb_printf(&head, "{\"v\":{\"dtype\":\"%s\",\"shape\":[", names[s->dtype]);
    for (int i = 0; i < s->rank; i++)
        sb_printf(&head, "%s%d", i ? "," : "", (int)s->dim[i]);
    sb_printf(&head, "],\"data_offsets\":[0,%d]}}", bytes);
    put_number(sb, head.len, 8);
    sb_putn(sb, head.data, head.len);
    put_elements(sb, s, false);
    sb_free(&head);
    return true;
}

static bool as_idx(const Layout *s, StrBuf *sb) {
    static const char codes[] = {
        [AMPC_DTYPE_U8] = 8,   [AMPC_DTYPE_I8] = 9,   [AMPC_DTYPE_I16] = 11,
        [AMPC_DTYPE_I32] = 12, [AMPC_DTYPE_F32] = 13, [AMPC_DTYPE_F64] = 14};
    if (s->dtype >= (int)sizeof codes || !codes[s->dtype]) return false;
    sb_putn(sb, (char[]){0, 0, codes[s->dtype], (char)s->rank}, 4);
    for (int i = 0; i < s->rank; i++)
        sb_putn(sb, (char[]){0, 0, 0, (char)s->dim[i]}, 4);
    put_elements(sb, s, true);
    return true;
}

/* Text has no dtype and two axes. */
static bool as_csv(const Layout *s, StrBuf *sb) {
    if (s->dtype != AMPC_DTYPE_F32 || s->rank != 2) return false;
    for (int i = 0; i < s->count; i++)
        sb_printf(sb, "%g%c", number(i), (i + 1) % s->dim[1] ? ',' : '\n');
    return true;
}

static const struct {
    const char *name;
    bool (*make)(const Layout *, StrBuf *); /* false: the file does not exist */
} kinds[] = {{"v.npy", as_npy},
             {"v.safetensors", as_safetensors},
             {"v-idx", as_idx},
             {"v.csv", as_csv}};

/* ---- what is right ------------------------------------------------------- */

/* The sample's axes alone, or neighbours of them as one. */
static bool is_right(const Layout *s) {
    static const int64_t right[][AXES] = {
        {SAMPLES, 2, 3, 4}, {SAMPLES, 6, 4}, {SAMPLES, 2, 12}, {SAMPLES, 24}};
    int64_t dim[AXES + 1] = {0};
    int n = 0;
    for (int i = 0; i < s->rank; i++)
        if (s->dim[i] != 1) dim[n++] = s->dim[i];
    for (int k = 0; k < 4; k++)
        if (!memcmp(dim, right[k], sizeof right[k]) && n <= AXES) return true;
    return false;
}

static double converted(int from, double x) {
    return from == AMPC_DTYPE_U8 ? x / 255 : x;
}

static bool changes(int from, bool csv) {
    return !csv && from != AMPC_DTYPE_F32 && from != AMPC_DTYPE_F16 &&
           from != AMPC_DTYPE_BF16;
}

static void check_taken(FeedSet *fs, const Layout *s, const char *name) {
    StrBuf says = {0};
    Diag d = {0};
    Fed fed = feed_facts(&fs->feed[0], fs->samples);
    fed_tells(&fed, &says);
    bool csv = strstr(name, "csv") != NULL;
    bool same = s->rank == AXES;
    CHECK_MSG((says.len > 0) == (changes(s->dtype, csv) || !same),
              "%s of %s, %d axes: says '%s'", name, dtype_info[s->dtype].text,
              s->rank, says.len ? says.data : "");
    CHECK_EQ_INT(fs->samples, SAMPLES);
    REQUIRE(feeds_fill(&d, fs, NULL, BATCH, BATCH) == OK);
    const float *got = fs->in[0].data;
    for (int i = 0; i < BATCH * EACH; i++) {
        double want = converted(s->dtype, number(BATCH * EACH + i));
        if (!CHECK_MSG(got[i] == (float)want,
                       "%s of %s: element %d: %g, not "
                       "%g",
                       name, dtype_info[s->dtype].text, i, (double)got[i],
                       want))
            break;
    }
    sb_free(&says);
}

static void check_layout(const Layout *s) {
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        StrBuf sb = {0};
        if (kinds[k].make(s, &sb)) {
            char spec[700];
            RunList specs = {.n = 1, .at = {spec}};
            Diag d = {0};
            FeedSet fs;
            REQUIRE(test_write_file(test_tmp(kinds[k].name), sb.data, sb.len));
            snprintf(spec, sizeof spec, "v=%s", test_tmp(kinds[k].name));
            Status st = feeds_open(&d, NULL, &api, "train", &specs, &fs);
            CHECK_MSG((st == OK) == is_right(s), "%s of %s: %s", kinds[k].name,
                      dtype_info[s->dtype].text,
                      st == OK ? "taken" : d.text.data);
            if (st == OK) check_taken(&fs, s, kinds[k].name);
            if (st != OK) CHECK_HAS(d.text.data, "differ");
            feeds_free(&fs);
            sb_free(&d.text);
        }
        sb_free(&sb);
    }
}

/* ---- all of them --------------------------------------------------------- */

static const int dtypes[] = {AMPC_DTYPE_U8,  AMPC_DTYPE_I8,  AMPC_DTYPE_I16,
                             AMPC_DTYPE_I32, AMPC_DTYPE_I64, AMPC_DTYPE_BF16,
                             AMPC_DTYPE_F16, AMPC_DTYPE_F32, AMPC_DTYPE_F64};

/* The axes in that order; bit i of `cuts` ends a group behind axis i. */
static Layout grouped(int dtype, const int64_t *axes, int cuts) {
    Layout s = {.dtype = dtype, .rank = 1, .dim = {axes[0]}, .count = COUNT};
    for (int i = 1; i < AXES; i++) {
        if (cuts >> (i - 1) & 1) s.dim[s.rank++] = 1;
        s.dim[s.rank - 1] *= axes[i];
    }
    return s;
}

/* A wrong order is refused before the dtype matters: two of them will do. */
static void check_order(const int64_t *axes, bool right) {
    for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++) {
        if (!right && dtypes[t] != AMPC_DTYPE_U8 && dtypes[t] != AMPC_DTYPE_F32)
            continue;
        for (int cuts = 0; cuts < 1 << (AXES - 1); cuts++) {
            Layout s = grouped(dtypes[t], axes, cuts);
            check_layout(&s);
        }
    }
}

TEST_CASE(feed_matrix, of_orders_groups_dtypes_and_files) {
    static const int64_t axes[AXES] = {SAMPLES, 2, 3, 4};
    wanted.name = "v";
    wanted.dtype = AMPC_DTYPE_F32;
    wanted.rank = AXES;
    memcpy(wanted.dim, (int64_t[]){BATCH, 2, 3, 4}, sizeof wanted.dim);
    for (int code = 0; code < 256; code++) {
        int64_t order[AXES];
        int used = 0;
        for (int i = 0; i < AXES; i++) {
            int k = code >> 2 * i & 3;
            used |= 1 << k;
            order[i] = axes[k];
        }
        if (used == 15) /* 24 orders */
            check_order(order, !memcmp(order, axes, sizeof axes));
    }
}

/* ---- class numbers ------------------------------------------------------- */

enum { CLASSES = 12 };

static void check_classes(FeedSet *fs) {
    Diag d = {0};
    REQUIRE(feeds_fill(&d, fs, NULL, BATCH, BATCH) == OK);
    for (int i = 0; i < BATCH; i++) {
        int c = BATCH + i;
        if (wanted.rank == 1) {
            CHECK_EQ_INT(((const int64_t *)fs->in[0].data)[i], c);
            continue;
        }
        const float *row = (const float *)fs->in[0].data + i * CLASSES;
        for (int k = 0; k < CLASSES; k++) CHECK((row[k] != 0) == (k == c));
        CHECK(row[c] == 1);
    }
}

static void check_numbers(const Layout *s, int kind, bool right) {
    char spec[700];
    RunList specs = {.n = 1, .at = {spec}};
    StrBuf sb = {0};
    Diag d = {0};
    FeedSet fs;
    if (kinds[kind].make(s, &sb)) {
        const char *path = test_tmp(kinds[kind].name);
        REQUIRE(test_write_file(path, sb.data, sb.len));
        snprintf(spec, sizeof spec, "%s=%s", wanted.name, path);
        Status st = feeds_open(&d, NULL, &api, "train", &specs, &fs);
        CHECK_MSG((st == OK) == right,
                  "%s of %s, %lldx%lld for %s[%d axes]: %s", kinds[kind].name,
                  dtype_info[s->dtype].text, (long long)s->dim[0],
                  (long long)s->dim[1], dtype_info[wanted.dtype].text,
                  wanted.rank, st == OK ? "taken" : d.text.data);
        if (st == OK) check_classes(&fs);
        feeds_free(&fs);
        sb_free(&d.text);
    }
    sb_free(&sb);
}

/* Whole numbers in one column, whatever their width; as probabilities where a
   target has a row of them, and for no other input. */
TEST_CASE(feed_matrix, of_class_numbers) {
    static const struct {
        int rank;
        int64_t dim[2];
        bool right;
    } rows[] = {{1, {SAMPLES, 1}, true},
                {2, {SAMPLES, 1}, true},
                {2, {1, SAMPLES}, false},
                {2, {2, 4}, false},
                {2, {SAMPLES, 3}, false}};
    static const char *const names[] = {"v", "target", "v"};
    for (int form = 0; form < 3; form++)
        for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++)
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
                const int64_t *dim = rows[r].dim;
                Layout s = {.dtype = dtypes[t],
                            .rank = rows[r].rank,
                            .dim = {dim[0], dim[1]},
                            .count = (int)(dim[0] * dim[1])};
                bool whole = !is_float_dtype((uint32_t)s.dtype);
                wanted.name = names[form];
                wanted.dtype = form ? AMPC_DTYPE_F32 : AMPC_DTYPE_I64;
                wanted.rank = 1 + (form > 0);
                wanted.dim[0] = BATCH;
                wanted.dim[1] = CLASSES;
                for (int kind = 0; kind < 3; kind++) /* no text */
                    check_numbers(&s, kind, rows[r].right && whole && form < 2);
            }
}
