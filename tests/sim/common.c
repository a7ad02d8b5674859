/* SPDX-License-Identifier: Apache-2.0 */
/* common.c: the lock, random numbers and the list of violations. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/engine.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static __thread int depth; /* callbacks call back */
static uint64_t state = 1;
static char errors[16384];
SimStats sim_counts;

void sim_lock(void) {
    if (!depth++) pthread_mutex_lock(&mutex);
}

void sim_unlock(void) {
    if (!--depth) pthread_mutex_unlock(&mutex);
}

void sim_random_seed(uint64_t seed) { state = seed; }

/* splitmix64 */
uint64_t sim_random(void) {
    uint64_t z = state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint64_t sim_random_below(uint64_t n) {
    uint64_t r = sim_random();
    return n >> 32 ? r % n : (r >> 32) * n >> 32;
}

void sim_seed(uint64_t seed) {
    sim_lock();
    sim_random_seed(seed);
    sim_unlock();
}

void sim_violation_va(const char *fmt, va_list ap) {
    size_t n = strlen(errors);
    if (n + 512 > sizeof errors) return;
    vsnprintf(errors + n, 510, fmt, ap);
    strcat(errors, "\n");
}

void sim_violation(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    sim_violation_va(fmt, ap);
    va_end(ap);
}

void sim_errors_clear(void) { errors[0] = 0; }
const char *sim_errors(void) { return errors; }
