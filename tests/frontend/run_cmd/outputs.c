/* SPDX-License-Identifier: Apache-2.0 */
/* outputs.c: what a run prints and writes: summary, page, checkpoints,
   events for TensorBoard. */
#define _GNU_SOURCE
#include "tests/frontend/run_cmd/ran.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/api/session.h"

/* ---- what a run says and keeps ------------------------------------------- */

TEST_CASE(run, ends_with_a_summary) {
    write_data(40);
    Ran r = run_module(&tiny_module,
                       FEEDS "--epochs 2 --save @sum.ck --eval-feed x=@x.npy "
                             "--eval-feed target=@t.npy --log @sum.log");
    CHECK_EQ_INT(r.status, 0);
    CHECK_HAS(r.err, "\ntrained 20 steps in ");
    CHECK_HAS(r.err, " samples/s): loss ");
    CHECK_HAS(r.err, "\nevaluation: loss ");
    CHECK_HAS(r.err, " after epoch 2\nwrote ");
    CHECK_HAS(r.err, "sum.ck, ");
    ran_free(&r);
    r = run_module(&tiny_module, FEEDS "--eval --quiet");
    CHECK(!strncmp(r.err, "evaluation: loss ", 17));
    CHECK_EQ_INT(count_lines(r.err), 1);
    ran_free(&r);
}

/* Behind `name`:[ of the page's curve of training losses. */
static const char *numbers_behind(const char *page, const char *name) {
    const char *at = strstr(page, "{\"tag\":\"train/loss\"");
    REQUIRE(at && (at = strstr(at, name)));
    return at + strlen(name);
}

/* A run longer than a curve has points: each point is a mean of several
   steps, and no step is missing. */
TEST_CASE(run, a_page_of_curves) {
    write_data(40);
    char *log = good(&tiny_module,
                     FEEDS "--steps 3001 --report @page.html "
                           "--eval-feed x=@x.npy --eval-feed target=@t.npy");
    size_t n = 0;
    char *page = test_read_file(test_tmp("page.html"), &n), *end;
    REQUIRE(page);
    CHECK_HAS(page, "\"text\":\"trained 3,001 steps in ");
    CHECK_HAS(page, "{\"tag\":\"eval/loss\"");
    CHECK_HAS(page, "</html>");
    CHECK(!strstr(page, "http") && !strstr(page, "src=") &&
          !strstr(page, "nan"));
    const char *step = numbers_behind(page, "\"steps\":[");
    const char *mean = numbers_behind(page, "\"means\":[");
    const char *line = log;
    for (int i = 0; i < 3001 / 4; i++) {
        double sum = 0;
        for (int k = 0; k < 4; line = strchr(line, '\n') + 1)
            if (!strncmp(line, "{\"step\"", 7)) {
                sum += field(line, 0, "loss");
                k++;
            }
        CHECK_EQ_INT(strtol(step, &end, 10), 4 * i + 4);
        step = end + (*end == ',');
        CHECK_NEAR(strtod(mean, &end), sum / 4, 1e-6 * sum);
        mean = end + (*end == ',');
    }
    CHECK(*step == ']' && *mean == ']');
    free(log);
    free(page);
    bad(&tiny_module, FEEDS "--report @x.npy", 1,
        "--report would overwrite --feed");
    bad(&tiny_module, FEEDS "--report @no/such/page", 1, "No such file");
}

/* With a learning rate of 0 no evaluation is better than the first. */
TEST_CASE(run, patience_ends_it) {
    write_data(40);
    Ran r = run_module(&tiny_module,
                       FEEDS "--epochs 9 --lr 0 --patience 2 --save @pat "
                             "--eval-feed x=@x.npy --eval-feed target=@t.npy");
    CHECK_EQ_INT(r.status, 0);
    CHECK_EQ_INT(count_lines(r.out), 33); /* three epochs, each evaluated */
    CHECK_HAS(r.err, "not fallen for 2 epochs: stopped after epoch 3");
    ran_free(&r);
    bad(&tiny_module, FEEDS "--patience 2", 2, "--eval-feed");
    bad(&tiny_module, FEEDS "--patience 0 --eval-feed x=y", 2, "is not a");
}

static bool there(const char *name) {
    return access(test_tmp(name), F_OK) == 0;
}

TEST_CASE(run, keeps_the_last_checkpoints) {
    write_data(40);
    REQUIRE(test_write_file(test_tmp("kp.step-x"), "mine", 4));
    REQUIRE(test_write_file(test_tmp("kp.step-99"), "later", 5));
    free(good(&tiny_module,
              FEEDS "--steps 10 --save @kp --save-every 2 --keep 2"));
    CHECK(there("kp") && there("kp.step-8") && there("kp.step-10"));
    CHECK(!there("kp.step-2") && !there("kp.step-4") && !there("kp.step-6"));
    CHECK(there("kp.step-x") && there("kp.step-99"));
    same_files("kp", "kp.step-10");
    free(good(&tiny_module, FEEDS "--steps 4 --save @kp --save-every 2"));
    free(good(&tiny_module, FEEDS "--load @kp.step-8 --steps 0"));
    bad(&tiny_module, FEEDS "--save @kp --keep 2", 2, "--save-every");
    write_data(40);
    REQUIRE(link(test_tmp("x.npy"), test_tmp("kq.step-2")) == 0);
    bad(&tiny_module, FEEDS "--steps 4 --save @kq --save-every 2 --keep 2", 1,
        "--keep would overwrite --feed");
}

/* The end of a run alone makes no NAME.step-STEP. */
TEST_CASE(run, saves_by_the_clock) {
    glob_t found;
    write_data(40);
    free(good(&tiny_module, FEEDS "--steps 150000 --log "
                                  "/dev/null --save @ks --save-every 1s "
                                  "--keep 1"));
    CHECK_EQ_INT(glob(test_tmp("ks.step-*"), 0, NULL, &found), 0);
    CHECK_EQ_INT(found.gl_pathc, 1);
    globfree(&found);
}

/* A file system with one name per file, such as FAT: link() fails. */
TEST_CASE(run, keeps_copies_where_there_are_no_links) {
    write_data(40);
    no_links = true;
    free(good(&tiny_module,
              FEEDS "--steps 10 --save @kc --save-every 2 --keep 2"));
    no_links = false;
    CHECK(there("kc.step-8") && there("kc.step-10") && !there("kc.step-6"));
    same_files("kc", "kc.step-10");
    CHECK_EQ_INT(test_temporaries(), 0);
}

/* Before the first step, not after the last. */
TEST_CASE(run, outputs_are_opened_before_the_work) {
    static const char *const options[] = {"--save @none/a",
                                          "--save-weights @none/a",
                                          "--report @none/a",
                                          "--tensorboard @none/a/b",
                                          "--profile @none/a",
                                          "--log @none/a",
                                          "--fetch @none/sub/a",
                                          "--eval --fetch @none/sub/a",
                                          EVAL_FEEDS "--save-best @none/a"};
    write_data(40);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        char words[400];
        snprintf(words, sizeof words, FEEDS "--steps 3 %s", options[i]);
        Ran r = run_module(&tiny_module, words);
        CHECK_EQ_INT(r.status, 1);
        CHECK_HAS(r.err, "No such file");
        CHECK_STR(r.out, "");
        ran_free(&r);
    }
    REQUIRE(mkdir(test_tmp("folder"), 0777) == 0);
    REQUIRE(mkdir(test_tmp("folder/y%2Fout.npy"), 0777) == 0);
    Ran r = run_module(&tiny_module, FEEDS "--steps 3 --fetch @folder");
    CHECK_EQ_INT(r.status, 1);
    CHECK_STR(r.out, "");
    ran_free(&r);
    rmdir(test_tmp("folder/y%2Fout.npy"));
    rmdir(test_tmp("folder"));
}

static ampc_status (*saves)(ampc_session *s, const char *path);
static const char *full; /* the disk of this file is full .. */
static int left;         /* .. after that many */

static ampc_status saves_few(ampc_session *s, const char *path) {
    bool fails = !strcmp(path, test_tmp(full)) && left-- <= 0;
    return saves(s, fails ? test_tmp("no/such") : path);
}

/* Only a checkpoint that --resume would read is spoken of. */
TEST_CASE(run, tells_of_the_checkpoint_that_is_still_there) {
    static const struct {
        const char *full;
        int left, told;
    } rows[] = {{"sc", 0, false},
                {"sc", 1, true},
                {"sb", 0, false},
                {"sb", 1, false},
                {"sc", 2, true}};
    ampc_api api = api_for(&tiny_module);
    saves = api.save;
    api.save = saves_few;
    write_data(40);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        full = rows[i].full;
        left = rows[i].left;
        unlink(test_tmp("sc"));
        unlink(test_tmp("sc.prev"));
        Ran r = run_api(&api, FEEDS EVAL_FEEDS
                        "--epochs 3 --save @sc --save-every 10 "
                        "--save-best @sb");
        CHECK_EQ_INT(r.status, 1);
        CHECK_HAS(r.err, "No such file");
        CHECK_MSG(!strstr(r.err, "earlier save is still there") ==
                      !rows[i].told,
                  "%s after %d: %s", full, rows[i].left, r.err);
        ran_free(&r);
    }
}

/* ---- TensorBoard --------------------------------------------------------- */

static uint32_t crc32c(const unsigned char *p, size_t n) {
    uint32_t crc = ~0u;
    while (n--) {
        crc ^= *p++;
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static uint32_t masked(const unsigned char *p, size_t n) {
    uint32_t crc = crc32c(p, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* The value of `tag` in an event that contains it, by its bytes. */
static bool event_value(const unsigned char *p, size_t n, const char *tag,
                        float *x) {
    size_t k = strlen(tag);
    unsigned char *at = memmem(p, n, tag, k);
    if (!at || at[-1] != k || at[-2] != 0x0a || at[k] != 0x15) return false;
    memcpy(x, at + k + 1, 4);
    return true;
}

/* Reads it by the format's description, not with our writer: framing,
   checksums (RFC 3720's test vector), the first message, every loss of the
   log. */
TEST_CASE(run, tensorboard_events) {
    CHECK_EQ_INT(crc32c((const unsigned char *)"123456789", 9), 0xe3069283u);
    write_data(40);
    char *out = good(&tiny_module,
                     FEEDS "--epochs 1 --tensorboard @tb "
                           "--eval-feed x=@x.npy --eval-feed target=@t.npy");
    char *names, *save = NULL;
    REQUIRE(test_command(&names, "ls '%s'", test_tmp("tb")) == 0);
    char *name = strtok_r(names, "\n", &save);
    REQUIRE(name && !strtok_r(NULL, "\n", &save));
    CHECK(strncmp(name, "events.out.tfevents.", 20) == 0);
    StrBuf path = {0};
    sb_printf(&path, "tb/%s", name);
    size_t n = 0;
    unsigned char *file =
                      (unsigned char *)test_read_file(test_tmp(path.data), &n),
                  *p = file;
    REQUIRE(file);
    int events = 0;
    bool evaluated = false;
    for (uint64_t bytes; p < file + n; p += 12 + bytes + 4, events++) {
        uint32_t sum;
        float x;
        memcpy(&bytes, p, 8);
        memcpy(&sum, p + 8, 4);
        CHECK_EQ_INT(sum, masked(p, 8));
        REQUIRE(bytes < (uint64_t)(file + n - p) - 15);
        memcpy(&sum, p + 12 + bytes, 4);
        CHECK_EQ_INT(sum, masked(p + 12, bytes));
        if (events == 0)
            CHECK(memmem(p + 12, bytes, "brain.Event:2", 13) != NULL);
        if (event_value(p + 12, bytes, "train/loss", &x)) {
            CHECK_EQ_INT(p[12 + 9], 0x10); /* field 2: the step */
            CHECK_EQ_INT(p[12 + 10], events);
            CHECK(x == (float)field(out, events - 1, "loss"));
        }
        if (event_value(p + 12, bytes, "eval/loss", &x)) {
            evaluated = true;
            CHECK(x == (float)field(out, events - 1, "eval_loss"));
        }
    }
    CHECK(evaluated);
    CHECK_EQ_INT(events, 12); /* the version, 10 steps, one evaluation */
    free(file);
    free(names);
    free(out);
    sb_free(&path);
}
