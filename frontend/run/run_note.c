/* SPDX-License-Identifier: Apache-2.0 */
/* run_note.c: lines on standard error, and the time. */
#define _POSIX_C_SOURCE 200809L
#include "frontend/run/run_cmd.h"

#include <time.h>

#include "ir/base/terminal.h"

double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void bar_clear(RunLog *log) {
    if (log->bar) fputs(TERMINAL_ERASE, stderr);
    log->bar = false;
}

void log_note(Run *r, const char *fmt, ...) {
    va_list ap;
    StrBuf sb = {0};
    if (r->log.quiet) return;
    bar_clear(&r->log);
    va_start(ap, fmt);
    sb_put_message(&sb, fmt, ap);
    va_end(ap);
    fputs(sb.data, stderr);
    sb_free(&sb);
}
