/* SPDX-License-Identifier: Apache-2.0 */
/* optimizers.h: for optimizers_test.c and the files of folder optimizers. */
#ifndef AMPC_TESTS_WHOLE_OPTIMIZERS_OPTIMIZERS_H
#define AMPC_TESTS_WHOLE_OPTIMIZERS_OPTIMIZERS_H

#include "ir/fn/optimizer.h"
#include "tests/support/compiled.h"
#include "tests/tolerance.h"

enum { NPARAM = 3, MAX_N = 20, STEPS = 20 };

/* A case of the file: its line, and the following lines of numbers. */
typedef struct Case {
    char name[64], letters[STEPS + 1], options[300];
    const char *numbers;
    bool average; /* the numbers are averages */
} Case;

typedef struct Feed {
    float x[NPARAM][MAX_N];
    ampc_input in[NPARAM];
} Feed;

extern const char *const param_names[NPARAM];
extern const int param_sizes[NPARAM];
extern const char param_model[];
void param_feed(Feed *f, int i, bool overflows);
ampc_session *param_begin(const Compiled *c);
void param_steps(const Compiled *c, ampc_session *s, const Case *x, int from,
                 int to);
void param_resume(const Compiled *c, ampc_session *whole, const Case *x);
const char *optimizer_file(const char *name, const char *text);
void optimizer_refused(const char *optimizer, const char *options,
                       const char *message);

#endif
