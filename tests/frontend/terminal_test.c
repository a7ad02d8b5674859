/* SPDX-License-Identifier: Apache-2.0 */
/* terminal_test.c: the display of `ampc run` in a terminal of 100, 80 and 50
   columns: interprets the bytes that it writes like a terminal. */
#define _GNU_SOURCE
#include "tests/harness.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "frontend/run/run_cmd.h"
#include "ir/base/terminal.h"
#include "tests/support/tiny_module.h"

/* ---- a terminal ---------------------------------------------------------- */

enum { ROWS = 400, CELLS = 200 };

/* Rows since the start; no row scrolls away. */
typedef struct Screen {
    int columns, row, column, rows;
    char cell[ROWS][CELLS + 1]; /* '#': a character outside ASCII */
    int bars, erased;           /* number of bars drawn; of rows erased below
                                   the cursor */
    bool wrapped;               /* a row with a bar continued in the next row */
    bool coloured;
} Screen;

static void erase_below(Screen *s) {
    memset(s->cell[s->row] + s->column, 0, (size_t)(CELLS - s->column));
    for (int r = s->row + 1; r < ROWS; r++) memset(s->cell[r], 0, CELLS);
    s->erased++;
}

static void next_row(Screen *s) {
    REQUIRE(s->row + 1 < ROWS);
    s->row++;
    if (s->row >= s->rows) s->rows = s->row + 1;
}

static void put_cell(Screen *s, char c) {
    if (s->column == s->columns) {
        s->wrapped |= strstr(s->cell[s->row], " [") != NULL;
        next_row(s);
        s->column = 0;
    }
    s->cell[s->row][s->column++] = c;
    if (c == '[') s->bars++;
}

/* Reads an escape sequence from p on; returns its last byte. */
static const char *escape(Screen *s, const char *p) {
    const char *end = p + 2;
    REQUIRE(p[1] == '[');
    while ((*end >= '0' && *end <= '9') || *end == ';') end++;
    if (*end == 'J')
        erase_below(s);
    else if (*end == 'm')
        s->coloured = true;
    else
        FAIL("an escape sequence that ends in '%c'", *end);
    return end;
}

static void show(Screen *s, const char *text) {
    s->rows = 1;
    for (const char *p = text; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (c == '\r')
            s->column = 0;
        else if (c == '\n')
            next_row(s); /* the driver has inserted a CR before it */
        else if (c == 033)
            p = escape(s, p);
        else if (c < 0x80)
            put_cell(s, *p);
        else if (c >= 0xc0)
            put_cell(s, '#');
    }
}

static int rows_with(const Screen *s, const char *text) {
    int n = 0;
    for (int r = 0; r < s->rows; r++) n += strstr(s->cell[r], text) != NULL;
    return n;
}

/* ---- a run in it --------------------------------------------------------- */

static void write_data(int n) {
    float x[400 * TINY_IN], t[400 * TINY_OUT];
    for (int i = 0; i * TINY_BATCH < n; i++)
        tiny_batch(i, x + i * TINY_BATCH * TINY_IN,
                   t + i * TINY_BATCH * TINY_OUT);
    for (int k = 0; k < 2; k++) {
        StrBuf sb = {0};
        int width = k ? TINY_OUT : TINY_IN;
        npy_header(&sb, AMPC_DTYPE_F32, 2, (int64_t[]){n, width});
        sb_putn(&sb, (const char *)(k ? t : x),
                (size_t)(n * width) * sizeof *x);
        REQUIRE(
            test_write_file(test_tmp(k ? "t.npy" : "x.npy"), sb.data, sb.len));
        sb_free(&sb);
    }
}

static int run_words(const char *words) {
    char *argv[64] = {"run", "tiny.so"}, *copy = strdup(words), *save = NULL;
    int argc = 2;
    ampc_api a = *tiny_api();
    a.module = tiny_handle(&tiny_module);
    for (char *w = strtok_r(copy, " ", &save); w;
         w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    REQUIRE(chdir(test_tmpdir()) == 0);
    return run_cmd(argc, argv, &a);
}

static void set_columns(int terminal, int columns) {
    struct winsize w = {.ws_row = 24, .ws_col = (unsigned short)columns};
    REQUIRE(ioctl(terminal, TIOCSWINSZ, &w) == 0);
}

/* Runs the program with standard output and error on the terminal and
   returns the screen. After `at` bytes of output the window gets `later`
   columns, unless `later` is 0. */
static Screen *run_shown(const char *words, int columns, size_t at, int later) {
    static char text[1 << 21];
    static Screen s;
    int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), status;
    REQUIRE(terminal >= 0 && !grantpt(terminal) && !unlockpt(terminal));
    int side = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    REQUIRE(side >= 0);
    set_columns(terminal, columns);
    fflush(NULL);
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        dup2(side, STDOUT_FILENO);
        dup2(side, STDERR_FILENO);
        int rc = run_words(words);
        fflush(NULL);
        _exit(rc);
    }
    close(side);
    size_t n = 0;
    for (ssize_t k; n + 1 < sizeof text &&
                    (k = read(terminal, text + n, sizeof text - 1 - n)) > 0;) {
        n += (size_t)k;
        if (later && n >= at) set_columns(terminal, later);
        if (later && n >= at) later = 0;
    }
    text[n] = 0;
    close(terminal);
    REQUIRE(waitpid(pid, &status, 0) == pid);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s:\n%s", words,
              text);
    s = (Screen){.columns = columns};
    show(&s, text);
    return &s;
}

#define FEEDS                                                                  \
    "--feed x=x.npy --feed target=t.npy --eval-feed x=x.npy "                  \
    "--eval-feed target=t.npy "

static void no_colour(void) { setenv("NO_COLOR", "1", 1); }

/* Every width: bars fit, none is left over, every epoch has its line. */
TEST_CASE(terminal, a_run_of_744_steps_is_at_most_30_rows) {
    static const int widths[] = {100, 80, 50};
    write_data(248);
    unsetenv("NO_COLOR");
    setenv("TERM", "xterm", 1);
    for (int i = 0; i < 3; i++) {
        Screen *s = run_shown(FEEDS "--epochs 12", widths[i], 0, 0);
        CHECK_MSG(s->rows - 1 <= 30, "%d columns: %d rows", widths[i],
                  s->rows - 1);
        CHECK(s->bars >= 1 && !s->wrapped && s->coloured);
        CHECK_EQ_INT(rows_with(s, " ["), 0);
        CHECK_EQ_INT(rows_with(s, "{\""), 0);
        CHECK_EQ_INT(rows_with(s, "/12  "), 12);
        CHECK_EQ_INT(rows_with(s, "epoch 12/12  "), 1);
        CHECK_EQ_INT(rows_with(s, "  validation "), 12);
        CHECK(rows_with(s, "  best") >= 1);
        CHECK_EQ_INT(rows_with(s, "trained 744 steps in "), 1);
    }
}

/* Steps of a few microseconds, so that several bars are drawn. */
TEST_CASE(terminal, a_bar_is_drawn_over_itself) {
    write_data(8);
    setenv("TERM", "xterm", 1);
    no_colour();
    Screen *s = run_shown(FEEDS "--steps 100000", 80, 0, 0);
    CHECK(s->bars >= 2 && s->erased > s->bars && !s->wrapped);
    CHECK(!s->coloured);
    CHECK_EQ_INT(rows_with(s, " ["), 0);
    CHECK_MSG(s->rows - 1 <= 30, "%d rows", s->rows - 1);
    CHECK_EQ_INT(rows_with(s, "epoch 50000/50000  "), 1);
}

/* A window becomes narrower: earlier bars then take several rows, and are
   still erased. */
TEST_CASE(terminal, a_window_that_becomes_narrower) {
    write_data(8);
    setenv("TERM", "xterm", 1);
    no_colour();
    Screen *s = run_shown(FEEDS "--steps 100000", 120, 1, 50);
    CHECK(s->bars >= 2 && !s->wrapped);
    CHECK_EQ_INT(rows_with(s, " ["), 0);
}

TEST_CASE(terminal, quiet_is_quiet_and_keeps_the_summary) {
    write_data(248);
    setenv("TERM", "xterm", 1);
    no_colour();
    Screen *s = run_shown(FEEDS "--epochs 2 --quiet", 80, 0, 0);
    CHECK(s->bars == 0 && s->erased == 0);
    CHECK(!strncmp(s->cell[0], "trained 124 steps in ", 21));
    CHECK_EQ_INT(rows_with(s, "epoch "), 1); /* lowest loss after epoch 2 */
    CHECK_EQ_INT(rows_with(s, "{\""), 0);
}

TEST_CASE(terminal, a_terminal_that_cannot_erase_gets_lines) {
    write_data(248);
    setenv("TERM", "dumb", 1);
    Screen *s = run_shown(FEEDS "--epochs 2", 80, 0, 0);
    CHECK(s->bars == 0 && s->erased == 0 && !s->coloured);
    CHECK_EQ_INT(rows_with(s, "epoch 2/2  "), 1);
    setenv("TERM", "xterm", 1);
}

/* ---- where log lines go -------------------------------------------------- */

static int lines_in(const char *path) {
    char *text = test_read_file(path, NULL);
    int n = 0;
    for (char *p = text; p && *p; p++) n += *p == '\n';
    free(text);
    return n;
}

TEST_CASE(terminal, the_log_goes_to_devices_and_pipes) {
    write_data(40);
    no_colour();
    Screen *s = run_shown(FEEDS "--epochs 1 --log /dev/null", 80, 0, 0);
    CHECK_EQ_INT(rows_with(s, "{\""), 0);
    s = run_shown(FEEDS "--epochs 1 --log /dev/stdout", 200, 0, 0);
    CHECK_EQ_INT(rows_with(s, "{\""), 11);
    s = run_shown(FEEDS "--epochs 1 --log /dev/fd/1", 200, 0, 0);
    CHECK_EQ_INT(rows_with(s, "{\""), 11);
    REQUIRE(mkfifo(test_tmp("fifo"), 0600) == 0);
    pid_t reader = fork();
    if (reader == 0) {
        execlp("sh", "sh", "-c", "cat \"$0\" > \"$1\"", test_tmp("fifo"),
               test_tmp("read"), (char *)NULL);
        _exit(127);
    }
    run_shown(FEEDS "--epochs 1 --log fifo", 80, 0, 0);
    REQUIRE(waitpid(reader, NULL, 0) == reader);
    CHECK_EQ_INT(lines_in(test_tmp("read")), 11);
}

/* ---- units --------------------------------------------------------------- */

TEST_CASE(terminal, numbers_have_units_that_people_read) {
    static const struct {
        double x;
        const char *count, *seconds;
    } rows[] = {
        {0, "0", "0 us"},
        {0.0000032, "3.2e-06", "3.2 us"},
        {0.0021, "0.0021", "2.1 ms"},
        {0.99949, "0.999", "999 ms"},
        {4.421, "4.42", "4.42 s"},
        {59.94, "59.9", "59.9 s"},
        {99.9, "99.9", "1 min 40 s"},
        {725, "725", "12 min 5 s"},
        {3599.6, "3,600", "60 min 0 s"},
        {13330.4, "13,330", "3 h 42 min"},
        {1234567, "1,234,567", "342 h 56 min"},
    };
    char text[UNIT_TEXT];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        CHECK_STR(unit_count(text, rows[i].x), rows[i].count);
        CHECK_STR(unit_seconds(text, rows[i].x), rows[i].seconds);
    }
}
