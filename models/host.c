/* SPDX-License-Identifier: Apache-2.0 */
/* host.c: trains a digit classifier that ampc compiled, on MNIST's IDX files.
     cc -O2 -Iout/include models/host.c -o host -ldl; ./host train.so DATA 8 */
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "ampc.h"

#define DIE(why) (fprintf(stderr, "%s\n", why), exit(1))
enum { PIXELS = 28 * 28, MAX_BYTES = 16 + 60000 * PIXELS };

static unsigned char *load(const char *dir, const char *name, long *n) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s-ubyte", dir, name);
    FILE *f = fopen(path, "rb");
    unsigned char *p = malloc(MAX_BYTES);
    if (!f || !p || fread(p, 1, MAX_BYTES, f) < 16) DIE(path);
    fclose(f);
    *n = p[5] << 16 | p[6] << 8 | p[7];
    return p + (p[3] == 3 ? 16 : 8); /* behind the header: images or labels */
}

static void fill(const unsigned char *images, const unsigned char *labels,
                 const long *pick, long n, float *x, int64_t *y) {
    for (long i = 0; i < n; i++) {
        y[i] = labels[pick[i]];
        for (long p = 0; p < PIXELS; p++)
            *x++ = images[pick[i] * PIXELS + p] / 255.0f;
    }
}

int main(int argc, char **argv) {
    char err[256] = "usage: host train.so DATA_DIR EPOCHS";
    const ampc_api *api = argc < 4 ? NULL : ampc_load(argv[1], NULL, err, 256);
    ampc_session *s;
    if (!api || api->open(api->module, NULL, &s, err, sizeof err)) DIE(err);
    ampc_module_info info = {.size = sizeof info};
    api->describe(api->module, &info);
    long n, ntest, b = (long)info.batch;
    unsigned char *images = load(argv[2], "train-images-idx3", &n);
    unsigned char *labels = load(argv[2], "train-labels-idx1", &n);
    unsigned char *timages = load(argv[2], "t10k-images-idx3", &ntest);
    unsigned char *tlabels = load(argv[2], "t10k-labels-idx1", &ntest);
    long row[n + ntest]; /* of the training set; then of the test set */
    for (long i = 0; i < n + ntest; i++) row[i] = i < n ? i : i - n;
    float x[b * PIXELS];
    int64_t y[b];
    ampc_input in[] = {ampc_in("input", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("target", y, sizeof y, AMPC_DTYPE_I64)};
    for (int epoch = 1; epoch <= atoi(argv[3]); epoch++) {
        const char *bar = "##############################";
        struct timespec t0, t1;
        double loss = 0, steps = 0;
        for (long i = 0, j, t; i < n; i++) /* shuffle */
            j = i + rand() % (n - i), t = row[i], row[i] = row[j], row[j] = t;
        timespec_get(&t0, TIME_UTC);
        for (long i = 0; i + b <= n; i += b) {
            ampc_metrics m = {.size = sizeof m};
            fill(images, labels, row + i, b, x, y);
            if (api->step(s, in, 2, &m)) DIE(api->error(s));
            loss += m.loss, steps++;
            if (isatty(2))
                fprintf(stderr, "\repoch %2d [%-30.*s] loss %.4f ", epoch,
                        (int)(30 * (i + b) / n), bar, loss / steps);
        }
        timespec_get(&t1, TIME_UTC);
        ampc_eval e = {.size = sizeof e};
        for (long i = 0; i < ntest; i += b) {
            long valid = ntest - i < b ? ntest - i : b;
            fill(timages, tlabels, row + n + i, valid, x, y);
            if (api->evaluate(s, in, 2, valid, &e)) DIE(api->error(s));
        }
        double ms =
            (t1.tv_sec - t0.tv_sec) * 1e3 + (t1.tv_nsec - t0.tv_nsec) * 1e-6;
        fprintf(stderr, "\r");
        printf("epoch %2d  loss %.4f  test accuracy %.4f  %.2f ms/step\n",
               epoch, loss / steps, e.correct / e.count, ms / steps);
    }
    api->close(s);
}
