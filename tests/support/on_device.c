/* SPDX-License-Identifier: Apache-2.0 */
/* on_device.c: see on_device.h. */
#define _POSIX_C_SOURCE 200809L
#include "tests/support/on_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/simulate.h"

enum { MOST = 32 };

typedef struct Made {
    const char *text;
    char *options, device[8];
    Compiled c;
} Made;

static Made made[MOST];

static Made *find(const char *text, const char *device, const char *options) {
    for (Made *m = made; m < made + MOST; m++)
        if (!m->text || (m->text == text && strcmp(m->device, device) == 0 &&
                         strcmp(m->options, options) == 0))
            return m;
    FAIL("more than %d modules", MOST);
}

const Compiled *compile_on(const char *device, const char *text,
                           const char *base, const char *more) {
    bool gpu = strcmp(device, "cuda") == 0;
    char options[600];
    REQUIRE((size_t)snprintf(options, sizeof options, "%s %s", base, more) <
            sizeof options);
    Made *m = find(text, device, options);
    if (!m->text) {
        m->c =
            gpu ? compile_text_gpu(text, options) : compile_text(text, options);
        sim_twins_compile_fast();
        if (gpu) REQUIRE(sim_build_twins(m->c.cuda_dir) > 0);
        m->options = strdup(options);
        snprintf(m->device, sizeof m->device, "%s", device);
        m->text = text;
    }
    if (!gpu) return &m->c;
    setenv("AMPC_LIBCUDA", sim()->path, 1);
    setenv("AMPC_LIBCUBLASLT", sim()->cublaslt, 1);
    setenv("AMPC_CACHE_DIR", test_tmpdir(), 1);
    sim()->reset(&(SimConfig){.seed = 1, .twins = m->c.cuda_dir});
    return &m->c;
}

ampc_session *open_on(const Compiled *c, const char *device, int max_skipped) {
    ampc_options o = {.size = sizeof o,
                      .device = device,
                      .threads = 2,
                      .max_skipped = max_skipped};
    ampc_session *s;
    compiled_guarded(c, &o);
    char err[400];
    if (c->api->open(c->api->module, &o, &s, err, sizeof err))
        FAIL("open: %s", err);
    return s;
}
