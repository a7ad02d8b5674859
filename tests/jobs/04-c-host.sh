# SPDX-License-Identifier: Apache-2.0
# A C program that trains, evaluates any number of samples, saves and resumes.
ampc "$MODELS/mlp.onnx" -o m.so --dim batch=8 --loss cross_entropy
cat > host.c <<'C'
#include <ampc.h>
#include <stdio.h>

static float x[8 * 784];
static int64_t t[8] = {1, 2, 3};

int main(void) {
    char err[256];
    ampc_session *s;
    const ampc_api *api = ampc_load("./m.so", NULL, err, sizeof err);
    if (!api || api->open(api->module, NULL, &s, err, sizeof err))
        return puts(err), 1;
    ampc_input in[] = {ampc_in("input", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("target", t, sizeof t, AMPC_DTYPE_I64)};
    ampc_metrics m = {.size = sizeof m};
    for (int i = 0; i < 3; i++)
        if (api->step(s, in, 2, &m)) return puts(api->error(s)), 1;
    ampc_input few[] = {ampc_in("input", x, 3 * 784 * 4, AMPC_DTYPE_F32),
                        ampc_in("target", t, 3 * 8, AMPC_DTYPE_I64)};
    ampc_eval e = {.size = sizeof e};
    if (api->evaluate(s, few, 2, 3, &e) || e.samples != 3)
        return puts(api->error(s)), 1;
    if (api->set_cursor(s, "{\"epoch\":1}") || api->save(s, "c.safetensors"))
        return puts(api->error(s)), 1;
    if (api->step(s, in, 2, &m)) return puts(api->error(s)), 1;
    double unbroken = m.loss;
    if (api->resume(s, "c.safetensors") || api->step(s, in, 2, &m))
        return puts(api->error(s)), 1;
    printf("step %d, cursor %s\n", (int)m.step, api->get_cursor(s));
    api->close(s);
    return m.loss != unbroken;
}
C
cc -Wall host.c -o host $(pkg-config --cflags --libs ampc)
./host
