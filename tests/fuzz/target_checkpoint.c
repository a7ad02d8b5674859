/* SPDX-License-Identifier: Apache-2.0 */
/* target_checkpoint.c: checkpoints of a tiny module: a refused file changes
   nothing; an accepted one can be saved again and is then identical. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "tests/fuzz/fuzz.h"
#include "tests/support/tiny_module.h"

enum { STATE = 4096 };

/* A file from another program: a header of 72 bytes, one matrix. */
static const char plain_file[] =
    "\x48\0\0\0\0\0\0\0{\"module.w\":{\"dtype\":\"BF16\",\"shape\":[3,2],"
    "\"data_offsets\":[0,12]}}       0123456789ab";

/* Writes all values of a checkpoint, one after the other. */
static size_t state_of(const ampc_api *api, ampc_session *s, char out[STATE]) {
    ampc_variable_info v = {.size = sizeof v};
    size_t n = 0;
    for (uint32_t i = 0; api->variable(api->module, i, &v) == AMPC_OK; i++) {
        if (v.kind > AMPC_KIND_HYPER) continue;
        ampc_output to =
            ampc_out(v.name, out + n, v.bytes, (ampc_dtype)v.dtype);
        if (api->read_variable(s, v.name, &to) == AMPC_OK) n += v.bytes;
        fuzz_check(n < STATE / 2, "STATE is too small");
    }
    const char *cursor = api->get_cursor(s);
    return n + (size_t)snprintf(out + n, STATE - n, "%s", cursor ? cursor : "");
}

static ampc_session *open_session(const AmpcModule *m) {
    ampc_session *s;
    char err[200] = "";
    ampc_options o = {.size = sizeof o, .device = "cpu", .threads = 1};
    ampc_status st = tiny_api()->open(tiny_handle(m), &o, &s, err, sizeof err);
    fuzz_check(st == AMPC_OK, "open: %s", err);
    return s;
}

static void step(ampc_session *s) {
    float x[TINY_BATCH * TINY_IN], target[TINY_BATCH * TINY_OUT];
    ampc_metrics m = {.size = sizeof m};
    tiny_batch(0, x, target);
    ampc_input in[] = {
        ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
        ampc_in("target", target, sizeof target, AMPC_DTYPE_F32)};
    ampc_status st = tiny_api()->step(s, in, 2, &m);
    fuzz_check(st == AMPC_OK, "a step: %s", tiny_api()->error(s));
}

/* Loads parts that an index may name, with other names for their tensors. */
static ampc_status load_parts(ampc_session *s, const char *path) {
    static const char *const renames[] = {"module.=", "v=w"};
    ampc_weights from = {.size = sizeof from,
                         .paths = &path,
                         .npath = 1,
                         .renames = renames,
                         .nrename = 2,
                         .partial = 1};
    return tiny_api()->load_weights(s, &from);
}

static ampc_status load_way(ampc_session *s, int way, const char *path) {
    const ampc_api *api = tiny_api();
    return way == 0   ? api->load(s, path)
           : way == 1 ? api->resume(s, path)
                      : load_parts(s, path);
}

void checkpoint_run(const uint8_t *p, size_t n) {
    static ampc_session *s, *other;
    static char before[STATE], after[STATE];
    const ampc_api *api = tiny_api();
    if (!s) fuzz_file("part", plain_file, sizeof plain_file - 1);
    const char *path = fuzz_file("checkpoint", p, n);
    if (!s) s = open_session(&tiny_module);
    bool taken = false;
    size_t size = 0;
    for (int way = 0; way < 3; way++) {
        if (!size) size = state_of(api, s, before);
        ampc_status st = load_way(s, way, path);
        fuzz_check(st == AMPC_OK || api->error(s)[0], "no message");
        size_t now = state_of(api, s, after);
        if (st != AMPC_OK) {
            fuzz_check(size == now && !memcmp(before, after, size),
                       "a refused file changed something");
            continue;
        }
        taken = true;
        char saved[300];
        snprintf(saved, sizeof saved, "%s.saved", path);
        fuzz_check(api->save(s, saved) == AMPC_OK, "save: %s", api->error(s));
        if (!other) other = open_session(&tiny_module);
        fuzz_check(api->resume(other, saved) == AMPC_OK, "resume: %s",
                   api->error(other));
        size = state_of(api, other, before);
        fuzz_check(size == now && !memcmp(before, after, size),
                   "what was loaded is not what is saved");
        step(s);
        size = 0; /* another state */
    }
    if (taken) fuzz_taken();
}

/* ---- checksums ----------------------------------------------------------- */

/* The eight digits after "ampc.crc32": the CRC-32 of the file with these
   digits as 0. */
void checkpoint_fix(uint8_t *p, size_t n) {
    static const char key[] = "\"ampc.crc32\":\"";
    size_t k = sizeof key - 1;
    for (size_t i = 0; i + k + 8 <= n; i++) {
        char digits[9];
        if (memcmp(p + i, key, k) != 0) continue;
        memset(p + i + k, '0', 8);
        snprintf(digits, sizeof digits, "%08lx", crc32_z(0, p, n));
        memcpy(p + i + k, digits, 8);
        if (n < 8) return;
    }
}

/* ---- seeds --------------------------------------------------------------- */

static void seed_session(ampc_session *s) {
    char path[300];
    snprintf(path, sizeof path, "%s.seed", fuzz_file("checkpoint", "", 0));
    fuzz_check(tiny_api()->save(s, path) == AMPC_OK, "save: %s",
               tiny_api()->error(s));
    FILE *f = fopen(path, "rb");
    static char text[FUZZ_MOST];
    fuzz_check(f != NULL, "%s", path);
    fuzz_seed(text, fread(text, 1, sizeof text, f));
    fclose(f);
}

void checkpoint_seeds(void) {
    static const char index[] = "{\"metadata\":{},\"weight_map\":"
                                "{\"w\":\"part\",\"b\":\"part\"}}";
    ampc_session *s = open_session(&tiny_module);
    seed_session(s);
    step(s);
    tiny_api()->set_cursor(s, "{\"epoch\":1}");
    seed_session(s);
    tiny_api()->close(s);
    s = open_session(&tiny_other);
    seed_session(s);
    tiny_api()->close(s);
    fuzz_seed(plain_file, sizeof plain_file - 1);
    fuzz_seed(index, sizeof index - 1);
}

const char *const *checkpoint_words(void) {
    static const char *const words[] = {
#define VARIABLE(id, text, kind, dtype, n, each, section, least, most)         \
    "\"" text "\":", text,
#include "runtime/program/names.def"
        "\"weight_map\":",
        "\"part\"",
        "\"F16\"",
        "\"F64\"",
        "module.w",
        "\"dtype\":",
        "\"shape\":",
        "\"data_offsets\":",
        "\"__metadata__\":",
        "\"ampc\":",
        "\\\"version\\\":2",
        "\\\"micro\\\":1",
        "\\\"counts\\\":",
        "\\\"scaler\\\":",
        "\\\"cursor\\\":",
        "\\\"graph_hash\\\":",
        "\"F32\"",
        "\"BF16\"",
        "\"I64\"",
        "\"nan\"",
        "\\\"inf\\\"",
        "1e999",
        "-1",
        "null",
        "true",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\\u0000",
        "\\ud800",
        " ",
        NULL};
    return words;
}
