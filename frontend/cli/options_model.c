/* SPDX-License-Identifier: Apache-2.0 */
/* options_model.c: options of the model, its ranks and the module. */
#include "frontend/cli/options_spec.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cuda/arch.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

Status set_top_k(Options *o, Spec *s) {
    return spec_integer(s, s->text, 2, INT32_MAX, &o->top_k);
}

/* Micro-batches are counted in an f32 number. */
Status set_accumulate(Options *o, Spec *s) {
    const SpecKey keys[] = {
        {"mean_of_means", .flag = &o->equal_batches, .hi = 1}, {0}};
    o->equal_batches = false;
    TRY(spec_integer(s, spec_next(s), 1, 1 << 24, &o->accumulate));
    return spec_keys(s, keys);
}

Status set_comm_bucket(Options *o, Spec *s) {
    return spec_integer(s, s->text, 1, INT64_MAX, &o->comm_bucket);
}

Status set_comm_dtype(Options *o, Spec *s) {
    int i;
    TRY(spec_pick(s, precision_words, s->text, &i));
    o->comm_dtype = precision_dtype[i];
    return OK;
}

Status set_seed(Options *o, Spec *s) {
    return spec_integer(s, s->text, 0, INT64_MAX, &o->seed);
}

Status set_shuffle(Options *o, Spec *s) {
    int64_t seed;
    TRY(spec_integer(s, s->text, 0, INT64_MAX, &seed));
    o->shuffle = (uint64_t)seed;
    return OK;
}

/* N|N..: in ascending order, without repetitions. */
static Status read_sizes(Options *o, Spec *s, char *text, DimSizes *to) {
    for (char *next; text; text = next) {
        int64_t n;
        int at = 0;
        if ((next = strchr(text, '|'))) *next++ = 0;
        bool alone = !next && !to->sizes.len; /* 0: of an ONNX file's past */
        TRY(spec_integer(s, text, alone ? 0 : 1, INT64_MAX, &n));
        while (at < to->sizes.len && to->sizes.data[at] < n) at++;
        if (at < to->sizes.len && to->sizes.data[at] == n) continue;
        vec_push(o->arena, &to->sizes, n);
        for (int i = to->sizes.len - 1; i > at; i--)
            to->sizes.data[i] = to->sizes.data[i - 1];
        to->sizes.data[at] = n;
    }
    return OK;
}

/* Replaces all sizes of the dimension. */
static void put_sizes(Options *o, DimSizes d) {
    int kept = 0;
    for (int i = 0; i < o->dim_sizes.len; i++) {
        const DimSizes *old = &o->dim_sizes.data[i];
        if (old->name != d.name || old->axis != d.axis)
            o->dim_sizes.data[kept++] = *old;
    }
    o->dim_sizes.len = kept;
    if (d.sizes.len > 1) vec_push(o->arena, &o->dim_sizes, d);
}

/* NAME=N or INPUT:AXIS=N, split at the last '=' and the last ':'. Of several
   sizes the largest is the model's own. */
Status set_dim(Options *o, Spec *s) {
    char *name = s->text, *eq = strrchr(name, '=');
    if (!eq) return spec_error(s, "'%s' is not NAME=N", name);
    DimSizes d = {.axis = -1};
    TRY(read_sizes(o, s, eq + 1, &d));
    *eq = 0;
    char *colon = strrchr(name, ':');
    if (colon) {
        int64_t axis;
        *colon = 0;
        TRY(spec_integer(s, colon + 1, 0, MAX_RANK - 1, &axis));
        d.axis = (int)axis;
    }
    if (!*name)
        return spec_error(s, "a name is missing before '%s'",
                          colon ? ":" : "=");
    d.name = intern(name);
    put_sizes(o, d);
    DimBind b = {d.name, d.axis, d.sizes.data[d.sizes.len - 1]};
    for (int i = 0; i < o->model_dims; i++) {
        DimBind *old = &o->dims.data[i];
        if (old->name != b.name || old->axis != b.axis) continue;
        old->value = b.value;
        return OK;
    }
    vec_push(o->arena, &o->dims, b);
    return OK;
}

/* INPUT=V,INPUT=V..; the last value of an input counts. */
Status set_pad(Options *o, Spec *s) {
    for (char *piece; (piece = spec_next(s));) {
        char *eq = strrchr(piece, '=');
        Pad p = {0};
        int at = 0;
        if (!eq || eq == piece)
            return spec_error(s, "'%s' is not INPUT=VALUE", piece);
        *eq = 0;
        p.input = intern(piece);
        TRY(spec_number(s, piece, eq + 1, &p.value));
        if (isinf(p.value))
            return spec_error(s, "%s=inf is not a finite number", piece);
        while (at < o->pads.len && o->pads.data[at].input != p.input) at++;
        if (at < o->pads.len)
            o->pads.data[at] = p;
        else
            vec_push(o->arena, &o->pads, p);
    }
    return OK;
}

/* N,N..: further batch sizes for evaluation and prediction. */
Status set_batch_sizes(Options *o, Spec *s) {
    over_model(&o->batch_sizes.len, &o->model_batches);
    for (char *piece; (piece = spec_next(s));) {
        int64_t n;
        bool known = false;
        TRY(spec_integer(s, piece, 1, INT32_MAX, &n));
        for (int i = 0; i < o->batch_sizes.len; i++)
            known |= o->batch_sizes.data[i] == n;
        if (!known) vec_push(o->arena, &o->batch_sizes, n);
    }
    return OK;
}

Status set_head(Options *o, Spec *s) {
    char *name = s->text, *eq = strrchr(name, '=');
    DimBind b = {NULL, -1, 0};
    if (!eq || eq == name) return spec_error(s, "'%s' is not OUTPUT=N", name);
    TRY(spec_integer(s, eq + 1, 1, INT32_MAX, &b.value));
    *eq = 0;
    b.name = intern(name);
    vec_push(o->arena, &o->heads, b);
    return OK;
}

Status set_train(Options *o, Spec *s) {
    GlobRule r = {intern(s->text), true};
    vec_push(o->arena, &o->train_rules, r);
    return OK;
}

Status set_freeze(Options *o, Spec *s) {
    GlobRule r = {intern(s->text), false};
    vec_push(o->arena, &o->train_rules, r);
    return OK;
}

Status set_max_trips(Options *o, Spec *s) {
    TripBound b = {0};
    char *is = strrchr(s->text, '=');
    if (is) b.glob = intern_n(s->text, (size_t)(is - s->text));
    if (is == s->text)
        return spec_error(s, "the name of the loop before '=' is missing");
    TRY(spec_integer(s, is ? is + 1 : s->text, 1, MOST_TRIPS, &b.most));
    vec_push(o->arena, &o->max_trips, b);
    return OK;
}

static Status read_set_number(const Spec *s, const char *text, SetNumber *x) {
    char *end;
    TRY(spec_number(s, "", text, &x->real));
    errno = 0;
    x->whole = strtoll(text, &end, 10);
    x->is_whole = !*end && !errno; /* else a double is exact below 2^53 */
    if (x->is_whole || fabs(x->real) > 0x1p53) return OK;
    x->whole = (int64_t)x->real;
    x->is_whole = x->real == (double)x->whole;
    return OK;
}

Status set_input(Options *o, Spec *s) {
    InputValue x = {0};
    char *is = strrchr(s->text, '=');
    if (!is || is == s->text)
        return spec_error(s, "'%s' is not INPUT=NUMBER", s->text);
    x.name = intern_n(s->text, (size_t)(is - s->text));
    s->text = is + 1;
    for (char *piece; (piece = spec_next(s));) {
        SetNumber n;
        TRY(read_set_number(s, piece, &n));
        vec_push(o->arena, &x.numbers, n);
    }
    vec_push(o->arena, &o->set_inputs, x);
    return OK;
}

Status set_batchnorm(Options *o, Spec *s) {
    enum { POPULATION, UNBIASED, MOMENTUM, CUMULATIVE, PLAIN };
    static const char *const words[] = {
        "train:population", "train:unbiased", "train:momentum",
        "train:cumulative", "train",          NULL};
    const char *v = s->text;
    over_model(&o->batchnorm_frozen.len, &o->model_frozen);
    if (!strncmp(v, "frozen", 6) && (!v[6] || v[6] == ':')) {
        vec_push(o->arena, &o->batchnorm_frozen, intern(v[6] ? v + 7 : "*"));
        return OK;
    }
    int i = spec_word(words, v);
    if (i < 0)
        return spec_error(s,
                          "'%s' is not one of train, train:unbiased, "
                          "train:population, train:momentum, "
                          "train:cumulative, frozen[:GLOB]",
                          v);
    o->batchnorm_train = true;
    if (i == MOMENTUM || i == CUMULATIVE) {
        o->batchnorm_cumulative = i == CUMULATIVE;
        return OK;
    }
    o->batchnorm_said = true;
    o->batchnorm_unbiased = i == PLAIN ? -1 : i;
    return OK;
}

Status set_dropout(Options *o, Spec *s) {
    return spec_switch(s, "off", "on", &o->dropout);
}

/* "sm_90" or "ptx" after "cuda:"; NVRTC decides which architectures exist
   (codegen/cuda/cuda_target.c). */
static bool is_cuda_arch(const char *s) {
    if (!strcmp(s, "ptx")) return true;
    size_t digits = strncmp(s, "sm_", 3) ? 0 : strspn(s + 3, "0123456789");
    return (digits == 2 || digits == 3) && !s[3 + digits];
}

static void add_cuda_target(Options *o, const char *arch) {
    Target t = {.cuda = true, .arch = intern(arch)};
    vec_push(o->arena, &o->targets, t);
}

typedef struct LevelWord {
    const char *word, *arch, *prefix;
    int isa;
} LevelWord;

static const LevelWord level_words[] = {
#define ISA(E, number, name, prefix, arch, vectors, flags)                     \
    {"cpu:" name, arch, prefix, number},
#define ISA_SOURCE(E, number, name, prefix, vectors) {name, "", "", number},
#include "runtime/cpu/isa.def"
};
enum { LEVEL_WORDS = sizeof level_words / sizeof *level_words };

/* True for the level at which a session runs here, and for those that have
   the same kernels: which of these is faster can change from run to run. */
static bool is_native(const LevelWord *l) {
    int isa = cpu_isa_level(), i = 0;
    while (i < LEVEL_WORDS - 1 && level_words[i].isa != isa) i++;
    return !strcmp(l->prefix, level_words[i].prefix);
}

/* Adds the targets that `word` names: one level, or for `cpu` all of the
   processors that `ampc` runs on, lowest first. */
static bool add_cpu_targets(Options *o, const char *word) {
    int before = o->targets.len;
    bool all = !strcmp(word, "cpu"), native = !strcmp(word, "cpu:native");
    for (const LevelWord *l = level_words + LEVEL_WORDS; l-- > level_words;)
        if ((all && !strcmp(l->arch, AMPC_ARCH)) || (native && is_native(l)) ||
            !strcmp(word, l->word))
            vec_push(o->arena, &o->targets, (Target){.isa = l->isa});
    return o->targets.len > before;
}

/* For cpu:armv8.2-a+fp16: cpu:armv8-a, the best level of such processors that
   needs no extension which the word lacks. NULL: none. */
static const char *nearest_level(const char *word) {
    for (int i = 0; i < LEVEL_WORDS; i++) {
        const char *level = level_words[i].word, *needs = strchr(level, '+');
        size_t kind = strcspn(level, "0123456789") + 1;
        if (!strncmp(word, level, kind) && (!needs || strstr(word, needs)))
            return level;
    }
    return NULL;
}

Status set_target(Options *o, Spec *s) {
    static const char levels[] =
#define ISA(E, number, name, prefix, arch, vectors, flags) "cpu:" name ", "
#define ISA_SOURCE(E, number, name, prefix, vectors)       name ", "
#include "runtime/cpu/isa.def"
        ;
    over_model(&o->targets.len, &o->model_targets);
    for (char *piece; (piece = spec_next(s));) {
        if (!strcmp(piece, "cpu:native") && cpu_isa_unknown())
            return spec_error(s, "AMPC_ISA=%.40s is unknown: " CPU_ISA_WORDS,
                              cpu_isa_unknown());
        if (add_cpu_targets(o, piece)) {
            continue;
        } else if (!strcmp(piece, "cuda")) {
            for (int i = 0; gpu_usual(i); i++) add_cuda_target(o, gpu_usual(i));
        } else if (!strncmp(piece, "cuda:", 5) && is_cuda_arch(piece + 5)) {
            add_cuda_target(o, piece + 5);
        } else if (nearest_level(piece)) {
            return spec_error(s, "unknown level '%s'; the nearest is %s", piece,
                              nearest_level(piece));
        } else {
            return spec_error(
                s,
                "this build makes code for cpu, cpu:native, %scuda, cuda:sm_NN "
                "and cuda:ptx, not for '%s' (c is C11 for every machine)",
                levels, piece);
        }
    }
    return OK;
}

const char *const lora_biases[] = {"none", "lora_only", "all", NULL};

static Status add_adapter(Options *o, const Spec *s, AdapterSpec a) {
    vec_push(o->arena, &o->adapters, a);
    return *a.glob ? OK : spec_error(s, "the names of weights are missing");
}

Status add_lora(Options *o, Spec *s) {
    AdapterSpec l = {.option = s->option,
                     .glob = intern(spec_next(s)),
                     .rank = 8,
                     .alpha = 8};
    int bias = LORA_BIAS_NONE;
    const SpecKey keys[] = {
        {"rank", .integer = &l.rank, .lo = 1, .hi = 65536},
        {"alpha", .real = &l.alpha, .lo = LEAST, .hi = MOST},
        {"dropout", .real = &l.dropout, .hi = 1, .open = true},
        {"bias", .words = lora_biases, .choice = &bias},
        {"dora", .flag = &l.dora, .hi = 1},
        {0}};
    TRY(spec_keys(s, keys));
    l.bias = (LoraBias)bias;
    return add_adapter(o, s, l);
}

Status add_ia3(Options *o, Spec *s) {
    AdapterSpec a = {
        .option = s->option, .glob = intern(spec_next(s)), .ia3 = true};
    const SpecKey keys[] = {{"feedforward", .flag = &a.feedforward, .hi = 1},
                            {0}};
    TRY(spec_keys(s, keys));
    return add_adapter(o, s, a);
}

const char *const frozen_dtypes[] = {"bf16", "int8", "int4", "nf4", NULL};

Status set_frozen_dtype(Options *o, Spec *s) {
    int i;
    TRY(spec_pick(s, frozen_dtypes, s->text, &i));
    o->frozen_dtype = (FrozenDtype)(FROZEN_BF16 + i);
    return OK;
}

Status set_weights(Options *o, Spec *s) {
    return spec_switch(s, "embed", "sidecar", &o->sidecar_weights);
}

Status set_symbol(Options *o, Spec *s) {
    const char *v = s->text;
    size_t ok = strspn(v, "abcdefghijklmnopqrstuvwxyz_"
                          "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");
    if (!*v || v[ok] || (*v >= '0' && *v <= '9'))
        return spec_error(s, "'%s' is not a C identifier", v);
    o->symbol = intern(v);
    return OK;
}
