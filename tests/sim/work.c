/* SPDX-License-Identifier: Apache-2.0 */
/* work.c: queued work, which runs late and in random order. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <time.h>

#include "tests/sim/state.h"

static WorkList ready; /* owned */
static int pending;    /* not done, ready or not */

Job *job_new(const char *name, int (*run)(void *data), void *data,
             void (*release)(void *data)) {
    Job *j = calloc(1, sizeof *j);
    if (j)
        *j = (Job){1, name, run, release, data};
    else if (release)
        release(data);
    return j;
}

void job_drop(Job *j) {
    if (!j || --j->refs) return;
    if (j->release) j->release(j->data);
    free(j);
}

/* ---- lists --------------------------------------------------------------- */

static bool push(Work ***w, int *n, int *room, Work *item) {
    if (*n == *room) {
        int more = *room ? 2 * *room : 4;
        Work **p = realloc(*w, (size_t)more * sizeof *p);
        if (!p) return false;
        *w = p;
        *room = more;
    }
    (*w)[(*n)++] = item;
    return true;
}

bool list_add(WorkList *l, Work *w) {
    return !w || w->done || push(&l->w, &l->n, &l->room, w);
}

void list_free(WorkList *l) {
    free(l->w);
    *l = (WorkList){NULL, 0, 0};
}

Work *work_keep(Work *w) {
    if (w) w->refs++;
    return w;
}

void work_drop(Work *w) {
    if (!w || --w->refs) return;
    job_drop(w->job);
    free(w->next);
    free(w);
}

/* ---- queueing and running ------------------------------------------------ */

Work *work_add(CUcontext c, Job *j, const WorkList *after) {
    Work *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    w->refs = 1; /* of the queue */
    w->context = c;
    w->job = j;
    if (j) j->refs++;
    for (int i = 0; after && i < after->n; i++) {
        Work *o = after->w[i];
        if (o->done || !push(&o->next, &o->nnext, &o->room, w)) continue;
        w->waits++;
    }
    pending++;
    if (!w->waits) push(&ready.w, &ready.n, &ready.room, w);
    return w;
}

static double milliseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void finish(Work *w) {
    w->done = true;
    w->time = milliseconds();
    pending--;
    for (int i = 0; i < w->nnext; i++) {
        Work *o = w->next[i];
        if (!--o->waits) push(&ready.w, &ready.n, &ready.room, o);
    }
    w->nnext = 0;
    work_drop(w);
}

static void run_one(void) {
    int i = (int)sim_random_below((uint64_t)ready.n);
    Work *w = ready.w[i];
    ready.w[i] = ready.w[--ready.n];
    CUcontext c = w->context;
    int rc = w->job && !c->sticky ? w->job->run(w->job->data) : 0;
    if (rc == SIM_AGAIN) {
        push(&ready.w, &ready.n, &ready.room, w);
        nanosleep(&(struct timespec){.tv_nsec = 10000}, NULL);
        return;
    }
    if (rc) c->sticky = rc;
    finish(w);
}

CUresult work_wait(CUcontext c, Work *w) {
    memory_open(true);
    while (ready.n && (!w || !w->done)) run_one();
    memory_open(false);
    return c ? c->sticky : CUDA_OK;
}

void work_some(void) {
    memory_open(true);
    if (ready.n) run_one();
    memory_open(false);
}

/* Drops ready work, and the work that waits for it, without running it.
 */
void work_forget(void) {
    while (ready.n) {
        Work *w = ready.w[--ready.n];
        finish(w);
    }
}
