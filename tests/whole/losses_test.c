/* SPDX-License-Identifier: Apache-2.0 */
/* losses_test.c: loss and first gradient of many losses and heads in 16 bits
   are at most as far from fp64 as those of torch.autocast
   (models/precision/losses.py made the models, the gradients in fp64 and
   autocast's distances). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/support/drawn.h"
#include "tests/tolerance.h"

enum { FEW_DRAWS = 5, MOST_DRAWS = 20, MOST_LOSSES = 256 };
/* of the one step: so large that small gradients are seen beside weights */
static const double rate = 0x1p16;

typedef struct Draw {
    double loss, far[2][2]; /* autocast's: bf16 and fp16; loss and gradient */
} Draw;

typedef struct Row {
    char name[40];
    int draws; /* more than FEW_DRAWS, for a model that selects elements */
    Draw draw[MOST_DRAWS];
} Row;

/* Losses with few repetitions of which one exceeds TOL_AUTOCAST_DRAW. Both
   round the operands of the same products, and that gives nearly all of the
   distance; autocast's other roundings cancel some of it in this repetition
   and add to it in others. */
static const struct {
    const char *name;
    double most;
} chances[] = {
    {"squashed_gaussian", 1.6},
    {"soft_rank", 1.6},
    {"warp", 1.55},
    {"transport", 1.4},
    {"von_mises", 1.4},
    {"six_d", 1.25},
    {"affine_flow", 1.2},
    {"running_spread", 1.45},
    {"fourier_features", 1.25},
    {"hyperboloid", 1.15},
    {"normalised_laplacian", 1.95},
};

/* Losses whose numbers come near the limits of fp16's range or exceed them, and
   one that needs a rule of its own in bf16. */
static const char *const in_both[] = {"ctc_by_hand",
                                      "crf",
                                      "giou",
                                      "ciou",
                                      "least_mask",
                                      "corners_l1",
                                      "masked_attention",
                                      "kumaraswamy",
                                      "weibull",
                                      "ssim_by_pools"};

static Row rows[MOST_LOSSES];
static int nrows;

/* ---- one step ------------------------------------------------------------ */

static size_t feed(const Compiled *c, int draw, ampc_input *in) {
    ampc_tensor_info t = {.size = sizeof t};
    uint32_t n = 0;
    for (; !c->api->input(c->api->module, "train", n, &t); n++) {
        bool whole = t.dtype == AMPC_DTYPE_I64;
        REQUIRE(n < 8);
        in[n] = ampc_in(
            t.name,
            drawn_numbers(t.name, draw, t.bytes / (whole ? 8 : 4), whole),
            t.bytes, (ampc_dtype)t.dtype);
    }
    return n;
}

/* The squares of the gradient's error and of the gradient. */
static void add_error(const Row *row, int draw, const char *name,
                      const float *before, const float *after, size_t n,
                      const Trace *gradients, double *error, double *whole) {
    char key[200];
    snprintf(key, sizeof key, "%s.%d.%s", row->name, draw, name);
    const TraceTensor *t = trace_find(gradients, key);
    REQUIRE(t && t->bytes == 4 * n);
    for (size_t i = 0; i < n; i++) {
        float want;
        memcpy(&want, t->data + 4 * i, 4);
        double got = ((double)before[i] - (double)after[i]) / rate;
        *error += (got - (double)want) * (got - (double)want);
        *whole += (double)want * (double)want;
    }
}

static void distances(const Compiled *c, const Row *row, int draw,
                      const Trace *gradients, double *far) {
    enum { MOST = 16 };
    ampc_session *s = open_threads(c, 1);
    ampc_module_info info = {.size = sizeof info};
    ampc_variable_info v[MOST];
    ampc_input in[8];
    float *before[MOST];
    ampc_metrics m;
    double error = 0, whole = 0;
    int n = 0, tries = 0;
    REQUIRE(!c->api->describe(c->api->module, &info));
    for (uint32_t i = 0; i < info.nvariable; i++) {
        REQUIRE(n < MOST);
        v[n] = (ampc_variable_info){.size = sizeof *v};
        REQUIRE(!c->api->variable(c->api->module, i, &v[n]));
        if (v[n].kind != AMPC_KIND_PARAMETER) continue;
        before[n] = drawn_numbers(v[n].name, draw, v[n].bytes / 4, false);
        write_var(c, s, v[n].name, before[n], v[n].bytes, AMPC_DTYPE_F32);
        n++;
    }
    size_t nin = feed(c, draw, in);
    do m = step_ok(c, s, in, nin);
    while (!m.applied && tries++ < 30); /* until the loss scale fits */
    for (int i = 0; i < n; i++) {
        float *after = malloc(v[i].bytes);
        REQUIRE(after);
        read_var(c, s, v[i].name, after, v[i].bytes, AMPC_DTYPE_F32);
        add_error(row, draw, v[i].name, before[i], after, v[i].bytes / 4,
                  gradients, &error, &whole);
        free(after), free(before[i]);
    }
    for (size_t i = 0; i < nin; i++) free((void *)(uintptr_t)in[i].data);
    far[0] = fabs(m.loss - row->draw[draw].loss) / fabs(row->draw[draw].loss);
    far[1] = sqrt(error / whole);
    c->api->close(s);
}

/* ---- beside autocast ----------------------------------------------------- */

static double most_in_a_draw(const Row *row) {
    /* a rounding of autocast's, or of ours, changes which element is the
       largest */
    if (row->draws > FEW_DRAWS) return INFINITY;
    for (size_t i = 0; i < sizeof chances / sizeof *chances; i++)
        if (!strcmp(chances[i].name, row->name)) return chances[i].most;
    return TOL_AUTOCAST_DRAW;
}

/* Compiling takes nearly all of the time.  One of five losses is compiled in
   fp16, the next in bf16, whose placement has the same rules except those for
   fp16's range, and three in neither; the losses of in_both, in both. All
   losses are compiled in both with script/test --slow. */
static bool tries(const Row *row, bool fp16) {
    for (size_t i = 0; i < sizeof in_both / sizeof *in_both; i++)
        if (!strcmp(in_both[i], row->name)) return true;
    return test_slow() || (row - rows) % 5 == (fp16 ? 0 : 1);
}

static void run(void *arg) {
    static const struct {
        const char *name;
        double floor; /* four roundings */
    } precisions[] = {{"bf16", 4 * 0x1p-9}, {"fp16", 4 * 0x1p-12}};
    static const char *const what[] = {"loss", "gradient"};
    const Row *row = arg;
    char path[200], options[200];
    Trace gradients =
        trace_read(test_data_path("tests/losses/gradients.safetensors"));
    snprintf(path, sizeof path, "tests/losses/%s.amp", row->name);
    for (int p = 0; p < 2; p++) {
        double log_ratio[2] = {0};
        if (!tries(row, p == 1)) continue;
        snprintf(options, sizeof options,
                 "--precision %s --optimizer sgd,lr=%g --target "
                 "cpu:x86-64-v2",
                 precisions[p].name, rate);
        Compiled c = compile_file(test_data_path(path), options);
        for (int d = 0; d < row->draws; d++) {
            double far[2];
            distances(&c, row, d, &gradients, far);
            for (int k = 0; k < 2; k++) {
                double theirs =
                    fmax(row->draw[d].far[p][k], precisions[p].floor);
                log_ratio[k] += log(fmax(far[k], 1e-12) / theirs);
                CHECK_MSG(far[k] <= most_in_a_draw(row) * theirs,
                          "%s, draw %d: %s %.3g from fp64, autocast's %.3g",
                          precisions[p].name, d, what[k], far[k],
                          row->draw[d].far[p][k]);
            }
        }
        for (int k = 0; k < 2; k++)
            CHECK_MSG(log_ratio[k] <= row->draws * log(TOL_AUTOCAST),
                      "%s: %s %.3f times as far as autocast",
                      precisions[p].name, what[k],
                      exp(log_ratio[k] / row->draws));
        compiled_close(&c);
    }
    trace_free(&gradients);
}

static void add_cases(void) {
    char *all = test_read_file(test_data_path("tests/losses/losses.csv"), NULL);
    if (!all) return;
    for (char *line = strtok(all, "\n"); line; line = strtok(NULL, "\n")) {
        Draw x;
        char name[40];
        int d;
        if (sscanf(line, "%39[^,],%d,%lf,%lf,%lf,%lf,%lf", name, &d, &x.loss,
                   &x.far[0][0], &x.far[0][1], &x.far[1][0], &x.far[1][1]) != 7)
            continue; /* the header */
        Row *row = &rows[nrows ? nrows - 1 : 0];
        if (strcmp(row->name, name)) {
            row = &rows[nrows++];
            strcpy(row->name, name);
            harness_register("losses", row->name, run, row);
        }
        row->draws = d + 1;
        row->draw[d] = x;
    }
    free(all);
}
TEST_REGISTRAR(add_cases);

TEST_CASE(losses, there_are_at_least_40) { CHECK(nrows >= 40); }

/* ---- PyTorch's samples of its ops (models/precision/opinfo16.py) --------- */

/* A sample without distances has a reason that opinfo16.py knows. */
static bool has_reason(const char *line) {
    static const char *const reasons[] = {"no gradient", "no peer", "no file",
                                          "refused",     "other",   "no step",
                                          "no time",     "crashed"};
    const char *comma = strrchr(line, ',');
    for (size_t i = 0; comma && i < sizeof reasons / sizeof *reasons; i++)
        if (!strcmp(comma + 1, reasons[i])) return true;
    return false;
}

/* A row of opinfo16.csv: root mean squares over five draws, [0] of the loss and
   [1] of the gradient. Those of 20 draws of the sample's own numbers, the
   geometric means of their ratios, and the distances if operands of products
   alone are rounded are there if `more`. */
typedef struct Sample {
    char name[100], precision[8];
    double theirs[2], ours[2], ratio[2], theirs_20[2], ours_20[2], operands[2];
    bool more;
} Sample;

static bool read_sample(const char *line, Sample *s) {
    int n = sscanf(line,
                   "%99[^,],%7[^,],%lf,%lf,%lf,%lf,%lf,%lf,%lf,%lf,%lf,%lf,%lf,"
                   "%lf",
                   s->name, s->precision, &s->theirs[0], &s->ours[0],
                   &s->theirs[1], &s->ours[1], &s->ratio[0], &s->ratio[1],
                   &s->theirs_20[0], &s->ours_20[0], &s->theirs_20[1],
                   &s->ours_20[1], &s->operands[0], &s->operands[1]);
    CHECK_MSG(n < 3 || n == 6 || n == 14, "%s", line);
    s->more = n == 14;
    return n >= 6;
}

/* True if loss k or gradient k is beyond twice autocast's distance and the
   floor in five draws. Such a sample must be within it in 20 draws. */
static bool is_beyond(const Sample *s, int k) {
    double floor = strcmp(s->precision, "bf16") ? 4 * 0x1p-12 : 4 * 0x1p-9;
    bool beyond = s->ours[k] > fmax(2 * s->theirs[k], floor);
    if (beyond || s->more)
        CHECK_MSG(s->more && s->ratio[k] <= TOL_AUTOCAST &&
                      s->ours_20[k] <= fmax(2 * s->theirs_20[k], floor),
                  "%s, %s: %g, autocast's %g; of 20 draws %g, autocast's %g",
                  s->name, s->precision, s->ours[k], s->theirs[k],
                  s->ours_20[k], s->theirs_20[k]);
    return beyond;
}

TEST_CASE(losses, samples_of_ops_are_within_the_limit) {
    char *all =
        test_read_file(test_data_path("tests/losses/opinfo16.csv"), NULL);
    int found = 0, beyond = 0, operands = 0;
    REQUIRE(all != NULL);
    for (char *line = strtok(all, "\n"); line; line = strtok(NULL, "\n")) {
        Sample s;
        if (!read_sample(line, &s)) {
            CHECK_MSG(has_reason(line) || !strncmp(line, "sample,", 7), "%s",
                      line);
            continue;
        }
        for (int k = 0; k < 2; k++) {
            if (!is_beyond(&s, k)) continue;
            beyond++;
            operands += fabs(s.ours[k] / s.operands[k] - 1) < 0.01;
        }
        found++;
    }
    CHECK_MSG(found >= 2000, "%d rows", found);
    CHECK_MSG(beyond * 200 <= found, "%d of %d rows", beyond, found);
    CHECK_MSG(operands * 2 >= beyond, "%d of %d", operands, beyond);
    free(all);
}
