/* SPDX-License-Identifier: Apache-2.0 */
/* mistakes.c: users' data and weights, and their mistakes. */
#define _GNU_SOURCE
#include "tests/frontend/run_cmd/ran.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/program/dtype.h"
#include "runtime/api/session.h"

/* ---- data ---------------------------------------------------------------- */

/* Samples of text, tokens and arrays. */
TEST_CASE(run, data_from_text_and_tokens) {
    StrBuf text = {0};
    uint16_t tokens[9];
    float x[8 * TINY_IN];
    int64_t t[8];
    sb_puts(&text, "a,b,c,class\n");
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < TINY_IN; k++)
            x[i * TINY_IN + k] = (float)(i * k) / 8;
        tokens[i] = (uint16_t)(t[i] = i % 2);
        sb_printf(&text, "0,%g,%g,%d\n", i / 8.0, i / 4.0, i % 2);
    }
    tokens[8] = 0;
    REQUIRE(test_write_file(test_tmp("d.csv"), text.data, text.len));
    REQUIRE(test_write_file(test_tmp("d.bin"), tokens, sizeof tokens));
    sb_free(&text);
    write_npy("dx.npy", AMPC_DTYPE_F32, 2, (int64_t[]){8, TINY_IN}, x);
    write_npy("dt.npy", AMPC_DTYPE_I64, 1, (int64_t[]){8}, t);
    char *want =
        good(&tiny_labels, "--feed x=@dx.npy --feed target=@dt.npy --epochs 3");
    char *csv =
        good(&tiny_labels, "--feed x=@d.csv:0-2 --feed target=@d.csv:class "
                           "--epochs 3");
    char *bin = good(&tiny_labels,
                     "--feed x=@d.csv:a,b,c --feed target=@d.bin --epochs 3");
    for (int i = 0; i < 6; i++) {
        CHECK(field(want, i, "loss") == field(csv, i, "loss"));
        CHECK(field(want, i, "loss") == field(bin, i, "loss"));
    }
    free(want);
    free(csv);
    free(bin);
    bad(&tiny_labels, "--feed x=@d.csv --feed target=@d.csv:class", 1,
        "element counts differ");
    bad(&tiny_labels, "--feed x=@none:1 --feed target=@d.csv:class", 1,
        "No such file");
    bad(&tiny_labels,
        "--feed x=@d.csv:0-2 --feed target=@d.csv:class "
        "--save @d.csv",
        1, "--save would overwrite --feed");
}

/* ---- weights ------------------------------------------------------------- */

/* A file with the single tensor `name`, f32[2], of another program. */
static void write_tensor(const char *file, const char *name) {
    char text[200] = {0};
    uint64_t n = (uint64_t)snprintf(text + 8, 150,
                                    "{\"%s\":{\"dtype\":\"F32\",\"shape\":[2],"
                                    "\"data_offsets\":[0,8]}}",
                                    name);
    memcpy(text, &n, 8);
    REQUIRE(test_write_file(test_tmp(file), text, 16 + n));
}

TEST_CASE(run, loads_and_saves_weights_of_others) {
    write_data(8);
    write_tensor("bias", "net.b");
    write_tensor("head", "fc.b");
    bad(&tiny_module, FEEDS "--load @bias", 1, "'net.b'; here: 'w', 'b'");
    bad(&tiny_module, FEEDS "--load @bias", 1,
        "; --load-map 'net.=' would find 1");
    bad(&tiny_module, FEEDS "--load @head", 1, "; --load-map 'fc.=' would");
    Ran r = run_module(&tiny_module,
                       FEEDS "--load @bias --load @head --load-map net.= "
                             "--steps 0 --quiet --save-weights @mine");
    CHECK_EQ_INT(r.status, 0);
    CHECK_HAS(r.err, "1 of 3 weights loaded; 2 missing, left as they were: "
                     "'w', 'running \"mean\"'; 1 tensors are not in this "
                     "module: 'fc.b'");
    ran_free(&r);
    r = run_module(&tiny_module, FEEDS "--load @mine --steps 0");
    CHECK_EQ_INT(r.status, 0);
    CHECK(!strstr(r.err, "missing"));
    ran_free(&r);
    bad(&tiny_module, FEEDS "--load-map a=b", 2, "--load");
    bad(&tiny_module, FEEDS "--load @mine --load-map a", 2, "OLD=NEW");
    bad(&tiny_module, FEEDS "--load @mine --load-map a=b", 1, "renaming 'a=b'");
    bad(&tiny_module, FEEDS "--load @mine --save-weights @mine", 1,
        "--save-weights would overwrite --load");
    bad(&tiny_module, FEEDS "--save-weights @no/such/x", 1, "No such file");
}

/* ---- mistakes ------------------------------------------------------------ */

/* Options that are refused, with their messages; and similar options that
   are accepted. */
TEST_CASE(run, usage_errors) {
    static const struct {
        const char *refused, *why, *taken;
    } rows[] = {
        {"--frobnicate", "unknown option '--frobnicate'", ""},
        {"--steps", "a value is missing after '--steps'", "--steps 0"},
        {"--steps x", "--steps: 'x' is not a whole number >= 0", "--steps 1"},
        {"--steps -1", "--steps: '-1' is not a whole number >= 0", "--steps 0"},
        {"--steps 1x", "--steps: '1x' is not a whole number >= 0", "--steps 1"},
        {"--steps 9223372036854775808", "is not a whole number >= 0",
         "--steps 2"},
        {"--epochs -1", "--epochs: '-1' is not a whole number >= 0",
         "--epochs 0"},
        {"--steps 0 --epochs 0", "give --steps or --epochs, not both", ""},
        {"--threads -1", "--threads: '-1' is not a whole number >= 0",
         "--threads 0"},
        {"--threads 1025", "at most 1024: '--threads'", "--threads 1024"},
        {"--max-skipped -2", "'-2' is not a whole number >= -1",
         "--max-skipped -1"},
        {"--max-skipped 2147483648", "too many: '--max-skipped'",
         "--max-skipped 2147483647"},
        {"--deadline 0", "'0' is not a whole number >= 1", "--deadline 1"},
        {"--deadline 1000000001", "too long: '--deadline'",
         "--deadline 1000000000"},
        {"--lr big", "--lr: 'big' is not a number", "--lr 1e-3"},
        {"--lr inf", "--lr: 'inf' is not a number", "--lr 0"},
        {"--lr nan", "--lr: 'nan' is not a number", "--lr 0"},
        {"--lr -1e-9", "--lr: '-1e-9' is not a number >= 0", "--lr 1e-9"},
        {"--resume", "--resume needs the checkpoint to go on from: '--save'",
         ""},
        {"--resume --save @none --load @none",
         "cannot be combined with '--load'", ""},
        {"--load-map a=b", "renames the tensors of '--load'", ""},
        {"--load @none --load-map ab", "--load-map: OLD=NEW is needed", ""},
        {"--save-every 1", "--save-every needs a file: '--save'",
         "--save @s --save-every 1"},
        {"--save @s --save-every 0", "'0' is not a whole number >= 1",
         "--save @s --save-every 1"},
        {"--save @s --save-every 0m", "'0' is not a whole number >= 1",
         "--save @s --save-every 1m"},
        {"--save @s --save-every m", "'' is not a whole number >= 1",
         "--save @s --save-every 2h"},
        {"--save @s --keep 1", "checkpoints to keep: '--save-every'",
         "--save @s --save-every 1 --keep 1"},
        {"--save @s --save-every 1 --keep 0", "'0' is not a whole number >= 1",
         ""},
        {"--patience 1", "--patience needs data to evaluate: '--eval-feed'",
         EVAL_FEEDS "--patience 1"},
        {EVAL_FEEDS "--patience 0", "'0' is not a whole number >= 1", ""},
        {"--save-best @b", "--save-best needs data to evaluate: '--eval-feed'",
         EVAL_FEEDS "--save-best @b"},
        {"--feed x", "--feed: NAME=FILE is needed, not 'x'", ""},
        {"--eval-feed x", "--eval-feed: NAME=FILE is needed, not 'x'", ""},
        {"--comm foo", "mpi, nccl or tcp, not 'foo'", ""},
        {"--eval --shuffle", "so this has no effect: '--shuffle'",
         "--eval --epochs 1 --shuffle"},
        {"--fetch @f --save @s --save-every 1", "no effect: '--save-every'",
         "--fetch @f --steps 1 --save @s --save-every 1"},
        {"--eval " EVAL_FEEDS "--patience 1", "no effect: '--patience'", ""},
        {"--eval " EVAL_FEEDS "--save-best @b", "no effect: '--save-best'", ""},
        {"--fetch @f " EVAL_FEEDS, "no effect: '--eval-feed'",
         "--fetch @f --eval " EVAL_FEEDS},
        {"a b", "unexpected argument", ""},
    };
    write_data(8);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char words[400];
        snprintf(words, sizeof words, FEEDS "%s", rows[i].refused);
        bad(&tiny_module, words, 2, rows[i].why);
        snprintf(words, sizeof words, FEEDS "%s", rows[i].taken);
        free(good(&tiny_module, words));
    }
}

TEST_CASE(run, data_errors) {
    write_data(8);
    bad(&tiny_module, "--feed x=@x.npy", 1, "input 'target' is not fed");
    bad(&tiny_module, FEEDS "--feed z=@x.npy", 1, "inputs: x, target");
    bad(&tiny_module, FEEDS "--feed x=@x.npy", 1, "fed twice");
    bad(&tiny_module, "--feed x=@none --feed target=@t.npy", 1, "No such file");
    bad(&tiny_module, "--feed x=@t.npy --feed target=@t.npy", 1,
        "f32[8,2] does not fit input 'x' f32[4,3]: element counts differ");
    bad(&tiny_module, "--feed x=@t.npy --feed target=@x.npy", 1,
        "f32[8,2] does not fit input 'x' f32[4,3]");
    double w[24] = {0};
    w[22] = 1e39;
    write_npy("w.npy", AMPC_DTYPE_F64, 2, (int64_t[]){8, 3}, w);
    bad(&tiny_module, "--feed x=@w.npy --feed target=@t.npy", 1,
        "sample 7: the value 1e+39 does not fit input 'x', f32");
    write_npy("w.npy", AMPC_DTYPE_F32, 2, (int64_t[]){7, 3}, w);
    bad(&tiny_module, "--feed x=@w.npy --feed target=@t.npy", 1,
        "8 samples; the other inputs have 7");
    write_npy("w.npy", AMPC_DTYPE_F32, 2, (int64_t[]){0, 3}, w);
    write_npy("v.npy", AMPC_DTYPE_F32, 2, (int64_t[]){0, 2}, w);
    bad(&tiny_module, "--feed x=@w.npy --feed target=@v.npy", 1, "0 samples");
    /* the place is the empty file, whose long path may be shortened */
    bad(&tiny_module, "--feed x=@w.npy --feed target=@t.npy", 1,
        ": error: the file has 0 samples");
    bad(&tiny_module, "--feed x=@x.npy --feed target=@v.npy", 1,
        ": error: the file has 0 samples");
    write_data(3);
    bad(&tiny_module, FEEDS, 1, "3 samples: one optimizer step needs 4");
    int64_t big[4] = {0, 1, INT64_MAX, 0};
    uint64_t huge[4] = {0, 1, UINT64_MAX, 0};
    write_data(4);
    write_npy("l.npy", AMPC_DTYPE_I64, 1, (int64_t[]){4}, big);
    bad(&tiny_module, "--feed x=@x.npy --feed target=@l.npy", 1, "target");
    write_npy("l.npy", AMPC_DTYPE_U64, 1, (int64_t[]){4}, huge);
    bad(&tiny_labels, "--feed x=@x.npy --feed target=@l.npy", 1,
        "sample 2: the value 18446744073709551615 does not fit");
}

/* Files with the same values in every width. */
TEST_CASE(run, floating_numbers_of_other_widths) {
    enum { N = 8 * TINY_IN };
    float x[N];
    double wide[N];
    uint16_t half[N], brain[N];
    int8_t small[N];
    const struct {
        int dtype;
        const void *data;
    } forms[] = {{AMPC_DTYPE_F64, wide},
                 {AMPC_DTYPE_F16, half},
                 {AMPC_DTYPE_BF16, brain},
                 {AMPC_DTYPE_I8, small}};
    for (int i = 0; i < N; i++) {
        wide[i] = x[i] = small[i] = (int8_t)(5 * i - 60);
        half[i] = f32_to_f16(x[i]);
        brain[i] = f32_to_bf16(x[i]);
    }
    write_data(8);
    write_npy("f.npy", AMPC_DTYPE_F32, 2, (int64_t[]){8, TINY_IN}, x);
    free(good(&tiny_module, "--feed x=@f.npy --fetch @as32"));
    for (int k = 0; k < 4; k++) {
        write_npy("w.npy", forms[k].dtype, 2, (int64_t[]){8, TINY_IN},
                  forms[k].data);
        free(good(&tiny_module, "--feed x=@w.npy --fetch @other"));
        same_files("as32/y%2Fout.npy", "other/y%2Fout.npy");
    }
}

/* An axis of 2^62 empty samples must not become 0 samples of another size. */
TEST_CASE(run, shapes_that_wrap) {
    static const int64_t shapes[][2] = {
        {INT64_C(1) << 62, 0}, {0, INT64_C(1) << 62}, {INT64_MAX, 0}};
    for (int i = 0; i < 3; i++) {
        StrBuf sb = {0};
        npy_header(&sb, AMPC_DTYPE_F32, 2, shapes[i]);
        REQUIRE(test_write_file(test_tmp("wrap.npy"), sb.data, sb.len));
        sb_free(&sb);
        bad(&tiny_module, "--feed x=@wrap.npy --fetch @wrapped", 1,
            i == 1 ? "0 samples" : "does not fit input 'x'");
        CHECK(access(test_tmp("wrapped"), F_OK) != 0);
    }
}

/* Reading and writing the same file would destroy its data. */
TEST_CASE(run, no_file_is_read_and_written) {
    write_data(8);
    free(good(&tiny_module, FEEDS "--save @kept"));
    bad(&tiny_module, FEEDS "--save @x.npy", 1,
        "--save would overwrite --feed");
    bad(&tiny_module, FEEDS "--log @t.npy", 1, "--log would overwrite --feed");
    bad(&tiny_module, FEEDS "--load @kept --save @kept", 1,
        "--save would overwrite --load");
    free(good(&tiny_module, FEEDS "--save @kept --resume"));
    CHECK(access(test_tmp("kept.prev"), F_OK) == 0);
    bad(&tiny_module, FEEDS "--load @kept.prev --save @kept", 1,
        "--save would overwrite --load");
    bad(&tiny_module, FEEDS "--log @same --profile @same", 1,
        "--profile would overwrite --log");
    bad(&tiny_module, FEEDS "--save @same --log @./same", 1,
        "--log would overwrite --save");
    REQUIRE(mkdir(test_tmp("out"), 0755) == 0);
    REQUIRE(link(test_tmp("x.npy"), test_tmp("out/y%2Fout.npy")) == 0);
    bad(&tiny_module, "--feed x=@x.npy --fetch @out", 1,
        "--fetch would overwrite --feed");
    free(good(&tiny_module, FEEDS "--save @kept --resume"));
}

TEST_CASE(run, what_is_no_file_is_not_written) {
    struct stat st;
    write_data(8);
    REQUIRE(mkfifo(test_tmp("pipe"), 0600) == 0);
    REQUIRE(symlink("/dev/null", test_tmp("sink")) == 0);
    alarm(60);
    bad(&tiny_module, FEEDS "--save @pipe", 1, "not a regular file");
    bad(&tiny_module, FEEDS "--profile @pipe", 1, "not a regular file");
    bad(&tiny_module, FEEDS "--save @sink", 1, "symbolic link");
    free(good(&tiny_module, FEEDS "--log @sink")); /* a device accepts lines */
    bad(&tiny_module, FEEDS "--fetch @pipe", 1, "not a folder");
    alarm(0);
    CHECK(lstat(test_tmp("pipe"), &st) == 0 && S_ISFIFO(st.st_mode));
    CHECK(lstat(test_tmp("sink"), &st) == 0 && S_ISLNK(st.st_mode));
}

TEST_CASE(run, names_that_older_versions_used_are_the_users) {
    static const char *const names[] = {"ck.tmp", "pr.json.tmp",
                                        "fo/y%2Fout.npy.tmp"};
    write_data(8);
    REQUIRE(mkdir(test_tmp("fo"), 0755) == 0);
    for (int i = 0; i < 3; i++)
        REQUIRE(test_write_file(test_tmp(names[i]), "mine", 4));
    free(good(&tiny_module,
              FEEDS "--save @ck --profile @pr.json --fetch @fo --eval"));
    for (int i = 0; i < 3; i++) {
        char *text = test_read_file(test_tmp(names[i]), NULL);
        CHECK_STR(text ? text : "(gone)", "mine");
        free(text);
    }
}

TEST_CASE(run, other_errors_leave_no_output) {
    write_data(8);
    bad(&tiny_module, FEEDS "--device cuda", 1, "CPU only");
    bad(&tiny_module, FEEDS "--load @none", 1, "No such file");
    bad(&tiny_module, FEEDS "--resume --save @none", 1, "No such file");
    CHECK(access(test_tmp("none"), F_OK) != 0);
    bad(&tiny_module, FEEDS "--log @no/such/log", 1, "No such file");
    bad(&tiny_module, FEEDS "--profile @p.json --save @no/such", 1, "No such");
    CHECK(access(test_tmp("p.json"), F_OK) != 0);
    bad(&tiny_module, FEEDS "--load @x.npy", 1, "safetensors");
}

TEST_CASE(run, not_a_module) {
    char *argv[] = {"run", NULL, "--feed", "x=y"};
    write_data(4);
    argv[1] = (char *)test_tmp("x.npy");
    CHECK_EQ_INT(run_cmd(4, argv, NULL), 1);
    argv[1] = "/lib/x86_64-linux-gnu/libc.so.6";
    CHECK_EQ_INT(run_cmd(4, argv, NULL), 1);
    argv[1] = "/nonexistent.so";
    CHECK_EQ_INT(run_cmd(4, argv, NULL), 1);
}
