/* SPDX-License-Identifier: Apache-2.0 */
/* first_step.c: milliseconds from dlopen to the end of the first training step,
   inputs zero.   first_step MODULE                                          */
#include <stdlib.h>
#include <time.h>

#include "runtime/ampc.h"

static double now_ms(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

int main(int argc, char **argv) {
    char err[256] = "usage: first_step MODULE";
    ampc_session *s;
    ampc_input in[16];
    double start = now_ms();
    const ampc_api *api = argc < 2 ? NULL : ampc_load(argv[1], NULL, err, 256);
    if (!api || api->open(api->module, NULL, &s, err, sizeof err)) {
        fprintf(stderr, "%s\n", err);
        return 1;
    }
    ampc_program_info p = {.size = sizeof p};
    api->program(api->module, "train", &p);
    for (uint32_t i = 0; i < p.ninput && i < 16; i++) {
        ampc_tensor_info t = {.size = sizeof t};
        api->input(api->module, "train", i, &t);
        in[i] = ampc_in(t.name, calloc(1, t.bytes + 1), t.bytes,
                        (ampc_dtype)t.dtype);
    }
    ampc_metrics m = {.size = sizeof m};
    if (api->step(s, in, p.ninput, &m)) {
        fprintf(stderr, "%s\n", api->error(s));
        return 1;
    }
    printf("%.1f\n", now_ms() - start);
    api->close(s);
    return 0;
}
