/* SPDX-License-Identifier: Apache-2.0 */
/* progress.c: see progress.h.  A thread writes the row, since the main
   thread waits for compilers. */
#define _POSIX_C_SOURCE 200809L
#include "frontend/cli/progress.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "ir/base/terminal.h"

static pthread_t thread;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static bool running, ends;

static void put_progress(double seconds) {
    const char *what = doing_now();
    char text[UNIT_TEXT];
    int room = terminal_columns(STDERR_FILENO) - 1;
    if (!what || room < 20) return;
    snprintf(text, sizeof text, "%.0f s", seconds);
    dprintf(STDERR_FILENO, "\r%.*s, %s\033[J\r", room - UNIT_TEXT, what, text);
}

static void *watch(void *arg) {
    struct timespec until;
    const int first = 500000000, pause = 200000000;
    (void)arg;
    clock_gettime(CLOCK_REALTIME, &until);
    pthread_mutex_lock(&lock);
    for (double seconds = 0; !ends;) {
        long wait = seconds == 0 ? first : pause;
        until.tv_nsec += wait;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        int rc = 0;
        while (!ends && rc != ETIMEDOUT)
            rc = pthread_cond_timedwait(&ended, &lock, &until);
        seconds += (double)wait / 1e9;
        if (!ends) put_progress(seconds);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

void progress_begin(void) {
    sigset_t all, before;
    if (!terminal_redraws(STDERR_FILENO)) return;
    doing("reading the model");
    ends = false;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    running = pthread_create(&thread, NULL, watch, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void progress_end(void) {
    if (!running) return;
    pthread_mutex_lock(&lock);
    ends = true;
    pthread_cond_signal(&ended);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    running = false;
    fputs(TERMINAL_ERASE, stderr);
}
