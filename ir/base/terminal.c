/* SPDX-License-Identifier: Apache-2.0 */
/* terminal.c: see terminal.h. */
#define _DEFAULT_SOURCE
#include "ir/base/terminal.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

bool terminal_redraws(int fd) {
    const char *term = getenv("TERM");
    return isatty(fd) && !(term && !strcmp(term, "dumb"));
}

bool terminal_colours(int fd) {
    const char *none = getenv("NO_COLOR");
    return terminal_redraws(fd) && !(none && *none);
}

int terminal_columns(int fd) {
    struct winsize w;
    return ioctl(fd, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
}

/* ---- units --------------------------------------------------------------- */

static char *grouped(char *text, double x) {
    char digits[UNIT_TEXT];
    int n = snprintf(digits, sizeof digits, "%.0f", x), k = 0;
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0) text[k++] = ',';
        text[k++] = digits[i];
    }
    text[k] = 0;
    return text;
}

char *unit_count(char *text, double x) {
    if (x >= 99.95 && x < 1e18) return grouped(text, x);
    snprintf(text, UNIT_TEXT, "%.3g", x);
    return text;
}

char *unit_seconds(char *text, double s) {
    static const struct {
        double below, unit;
        const char *name;
    } small[] = {{0.9995e-3, 1e-6, "us"}, {0.9995, 1e-3, "ms"}, {60, 1, "s"}};
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        double n = s / small[i].unit;
        if (!(s < small[i].below)) continue;
        snprintf(text, UNIT_TEXT, n >= 99.95 ? "%.0f %s" : "%.3g %s", n,
                 small[i].name);
        return text;
    }
    double whole = s < 1e12 ? floor(s + 0.5) : 1e12;
    if (s < 3600)
        snprintf(text, UNIT_TEXT, "%.0f min %.0f s", floor(whole / 60),
                 fmod(whole, 60));
    else
        snprintf(text, UNIT_TEXT, "%.0f h %.0f min", floor(whole / 3600),
                 floor(fmod(whole, 3600) / 60));
    return text;
}

/* ---- work that takes a while --------------------------------------------- */

static _Atomic(const char *) now;

void doing(const char *what) { atomic_store(&now, what); }

const char *doing_now(void) { return atomic_load(&now); }
