/* SPDX-License-Identifier: Apache-2.0 */
/* foreign_host.c MODULE THREADS predict|train: feeds a module the bytes of
   standard input, all inputs of the program in order, step by step, and writes
   to standard output what it gives: the outputs, or loss and norm of gradients
   of each step as fp64.  It runs where the test does not (foreign.h). */
#include "ampc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ampc_input *in;
static ampc_output *out;

static int stop(const char *why) {
    fprintf(stderr, "%s\n", why);
    return 1;
}

/* 0: all inputs are there; else the end, or memory that is short. */
static int take(const ampc_api *api, const char *program, uint32_t n) {
    if (!in) in = calloc(n, sizeof *in);
    if (!in) return 1;
    for (uint32_t i = 0; i < n; i++) {
        ampc_tensor_info t = {.size = sizeof t};
        if (api->input(api->module, program, i, &t)) return 1;
        void *data = in[i].data ? (void *)in[i].data : malloc(t.bytes + 8);
        if (!data || fread(data, 1, t.bytes, stdin) != t.bytes) return 1;
        in[i] = ampc_in(t.name, data, t.bytes, t.dtype);
    }
    return 0;
}

static int predict(const ampc_api *api, ampc_session *s) {
    ampc_program_info p = {.size = sizeof p};
    ampc_module_info info = {.size = sizeof info};
    api->program(api->module, "predict", &p);
    api->describe(api->module, &info);
    out = calloc(p.noutput, sizeof *out);
    if (!out || take(api, "predict", p.ninput)) return stop("input is missing");
    for (uint32_t i = 0; i < p.noutput; i++) {
        ampc_tensor_info t = {.size = sizeof t};
        api->output(api->module, "predict", i, &t);
        out[i] = ampc_out(t.name, calloc(1, t.bytes + 8), t.bytes, t.dtype);
    }
    if (api->predict(s, in, p.ninput, info.batch, out, p.noutput))
        return stop(api->error(s));
    for (uint32_t i = 0; i < p.noutput; i++)
        if (strncmp(out[i].name, "ampc.", 5) != 0) /* no metrics */
            fwrite(out[i].data, 1, out[i].bytes, stdout);
    return 0;
}

static int train(const ampc_api *api, ampc_session *s) {
    ampc_program_info p = {.size = sizeof p};
    api->program(api->module, "train", &p);
    while (!take(api, "train", p.ninput)) {
        ampc_metrics m = {.size = sizeof m};
        if (api->step(s, in, p.ninput, &m)) return stop(api->error(s));
        fwrite(&m.loss, sizeof m.loss, 1, stdout);
        fwrite(&m.grad_norm, sizeof m.grad_norm, 1, stdout);
    }
    return 0;
}

int main(int argc, char **argv) {
    char err[300] = "usage: foreign_host MODULE THREADS predict|train";
    ampc_options o = {.size = sizeof o};
    ampc_session *s;
    if (argc != 4) return stop(err);
    o.threads = atoi(argv[2]);
    const ampc_api *api = ampc_load(argv[1], NULL, err, sizeof err);
    if (!api || api->open(api->module, &o, &s, err, sizeof err))
        return stop(err);
    int rc = !strcmp(argv[3], "train") ? train(api, s) : predict(api, s);
    api->close(s);
    return rc;
}
