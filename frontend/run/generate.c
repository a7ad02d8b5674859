/* SPDX-License-Identifier: Apache-2.0 */
/* generate.c: see generate.h.

   The module predicts for all positions of a window of T tokens.  The prompt is
   at the beginning of the window, followed by token 0, and the logits at the
   text's last position give the next token. The model must be causal, which is
   tested once. A text that is longer than the
   window loses its beginning.  Keys and values are not kept: each token
   computes the whole window again.

   A module of `ampc export --module --decode` reads one token and its position
   instead, keeps keys and values, and says how many positions it has. */
#define _POSIX_C_SOURCE 200809L
#include "frontend/run/generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "frontend/data/feed.h"
#include "frontend/data/vocabulary.h"
#include "runtime/program/draw.h"

enum { INPUTS = 8 };

/* Inputs besides the tokens, with the names that exporters of language
   models give them. */
typedef enum Role {
    ROLE_TOKENS,
    ROLE_MASK,
    ROLE_PLACES,
    ROLE_POSITION /* of a module that keeps keys and values */
} Role;

typedef struct Generate {
    Arena *a;
    Diag *d;
    const ampc_api *api;
    ampc_session *s;
    Sampling how;
    ampc_module_info info;
    int nin;
    ampc_tensor_info input[INPUTS], output;
    Role role[INPUTS];
    char *data[INPUTS];   /* of one sample */
    int64_t window, size; /* positions; tokens of the vocabulary */
    bool keeps;           /* keys and values: reads one position at a time */
    int64_t seen;         /* tokens that it has read */
    int64_t most;         /* positions that it has */
    char *raw;            /* logits of one sample, in the module's dtype */
    double *logits;       /* of one position */
    int64_t *order;
} Generate;

/* ---- the model ----------------------------------------------------------- */

static Role role_of(const char *name) {
    return !strcmp(name, "attention_mask") ? ROLE_MASK
           : !strcmp(name, "position_ids") ? ROLE_PLACES
           : !strcmp(name, "position")     ? ROLE_POSITION
                                           : ROLE_TOKENS;
}

static Status generate_unfit(const Generate *g, const char *name,
                             const char *why) {
    StrBuf quoted = {0};
    sb_put_escaped(&quoted, name);
    fail(g->d, (Loc){0}, "--generate: '%s' %s", quoted.data, why);
    sb_free(&quoted);
    return ERR_USER;
}

static bool is_generate_float(const ampc_tensor_info *t) {
    return t->dtype >= AMPC_DTYPE_F16;
}

static Status find_inputs(Generate *g) {
    int tokens = 0;
    for (;; g->nin++) {
        ampc_tensor_info t = {.size = sizeof t};
        if (g->api->input(g->api->module, "predict", (uint32_t)g->nin, &t) !=
            AMPC_OK)
            break;
        Role role = role_of(t.name);
        g->role[g->nin] = role;
        g->input[g->nin] = t;
        if (role == ROLE_POSITION && t.dtype == AMPC_DTYPE_I64 && !t.rank) {
            g->keeps = true;
            g->data[g->nin] = arena_alloc(g->a, t.bytes);
            continue;
        }
        if (g->nin == INPUTS || t.rank != 2 || t.shape[1] < 1 ||
            t.shape[0] != g->info.batch || is_generate_float(&t))
            return generate_unfit(
                g, t.name,
                "is not an input of a language model: integers "
                "[batch, window], attention_mask or position_ids");
        if (role == ROLE_TOKENS && tokens++)
            return generate_unfit(g, t.name,
                                  "is a second input of integers: which of "
                                  "them the tokens are is not known");
        if (g->nin && t.shape[1] != g->window)
            return generate_unfit(g, t.name,
                                  "has another window than the others");
        g->window = t.shape[1];
        g->data[g->nin] = arena_alloc(g->a, t.bytes / (size_t)t.shape[0] + 1);
    }
    return tokens ? OK
                  : fail(g->d, (Loc){0},
                         "--generate: the model has no input of tokens: "
                         "integers [batch, window]");
}

static bool are_logits(const Generate *g, const ampc_tensor_info *t) {
    return t->rank == 3 && is_generate_float(t) &&
           t->shape[0] == g->info.batch && t->shape[1] == g->window &&
           t->shape[2] > 0 && strncmp(t->name, "ampc.", 5) != 0;
}

static Status generate_find_output(Generate *g) {
    const char *want = g->how.output;
    int found = 0;
    ampc_tensor_info t = {.size = sizeof t};
    for (uint32_t i = 0;
         g->api->output(g->api->module, "predict", i, &t) == AMPC_OK; i++) {
        if (!are_logits(g, &t) || (want && strcmp(want, t.name))) continue;
        found++;
        g->output = t;
    }
    if (found != 1)
        return fail(g->d, (Loc){0},
                    "--generate: the model has %s output of logits [batch, "
                    "window, tokens]%s",
                    found ? "more than one" : "no",
                    found ? "; --sample output=NAME says which" : "");
    g->size = g->output.shape[2];
    g->raw = arena_alloc(g->a, g->output.bytes / (size_t)g->info.batch + 1);
    g->logits = NEW_ARRAY(g->a, double, g->size);
    g->order = NEW_ARRAY(g->a, int64_t, g->size);
    return OK;
}

/* ---- a prediction -------------------------------------------------------- */

static void put_generate_number(const ampc_tensor_info *t, char *data,
                                int64_t i, int64_t v) {
    size_t n = t->bytes / (t->rank ? (size_t)(t->shape[0] * t->shape[1]) : 1);
    memcpy(data + (size_t)i * n, &v, n); /* little-endian */
}

/* What a role's input has at place i of the window, which begins at position
   `first` with the n tokens from `text` on, then `fill`. */
static int64_t number_at(Role role, int64_t first, int64_t i,
                         const int64_t *text, int64_t n, int64_t fill) {
    switch (role) {
    case ROLE_PLACES:
    case ROLE_POSITION: return first + i;
    case ROLE_MASK: return i < n;
    case ROLE_TOKENS: break;
    }
    return i < n ? text[i] : fill;
}

/* The n tokens from `text` on, then `fill`; the logits at the last of the n
   tokens. */
static Status predict(Generate *g, int64_t first, const int64_t *text,
                      int64_t n, int64_t fill) {
    ampc_input in[INPUTS];
    size_t rows = (size_t)g->info.batch, bytes = g->output.bytes / rows;
    for (int k = 0; k < g->nin; k++) {
        const ampc_tensor_info *t = &g->input[k];
        size_t size = t->rank ? t->bytes / rows : t->bytes;
        for (int64_t i = 0; i < (t->rank ? g->window : 1); i++)
            put_generate_number(t, g->data[k], i,
                                number_at(g->role[k], first, i, text, n, fill));
        in[k] = ampc_in(t->name, g->data[k], size, (ampc_dtype)t->dtype);
    }
    ampc_output out[] = {
        ampc_out(g->output.name, g->raw, bytes, (ampc_dtype)g->output.dtype),
        ampc_out("window", &g->most, sizeof g->most, AMPC_DTYPE_I64)};
    if (g->api->predict(g->s, in, (size_t)g->nin, 1, out, 1 + g->keeps) !=
        AMPC_OK)
        return fail(g->d, (Loc){0}, "--generate: %s", g->api->error(g->s));
    numbers_of(g->output.dtype, g->raw, (n - 1) * g->size, g->size, g->logits);
    for (int64_t i = 0; i < g->size; i++)
        if (!isfinite(g->logits[i]))
            return fail(g->d, (Loc){0},
                        "--generate: the logit of token %lld is not finite",
                        (long long)i);
    return OK;
}

/* True if tokens after the text change the prediction. */
static Status check_causal(Generate *g, const int64_t *text, int64_t n) {
    double most = 0, off = 0;
    if (n == g->window) return OK;
    TRY(predict(g, 0, text, n, g->size - 1));
    double *other = NEW_ARRAY(g->a, double, g->size);
    memcpy(other, g->logits, (size_t)g->size * sizeof *other);
    TRY(predict(g, 0, text, n, 0));
    for (int64_t i = 0; i < g->size; i++) {
        most = fmax(most, fabs(g->logits[i]));
        off = fmax(off, fabs(g->logits[i] - other[i]));
    }
    return off <= 1e-3 * most
               ? OK
               : fail(g->d, (Loc){0},
                      "--generate: the model is not causal: what stands "
                      "behind position %lld changes its logits there",
                      (long long)n - 1);
}

/* The logits behind the text. */
static Status predict_next(Generate *g, const Tokens *text) {
    int64_t n = text->at.len < g->window ? text->at.len : g->window;
    if (!g->keeps) return predict(g, 0, text->at.data + text->at.len - n, n, 0);
    for (; g->seen < text->at.len; g->seen++)
        TRY(predict(g, g->seen, text->at.data + g->seen, 1, 0));
    return OK;
}

/* A module that keeps keys and values has a place for each token but the
   last. */
static Status check_room(Generate *g, const Tokens *text) {
    int64_t n = text->at.len;
    TRY(predict(g, 0, text->at.data, 1, 0));
    if (n + g->how.tokens - 1 <= g->most) return OK;
    if (n > g->most)
        return fail(g->d, (Loc){0},
                    "--generate: the prompt has %lld tokens, the module keeps "
                    "%lld",
                    (long long)n, (long long)g->most);
    return fail(g->d, (Loc){0},
                "--generate: the module keeps %lld tokens: behind this prompt "
                "--sample tokens=%lld is the most",
                (long long)g->most, (long long)(g->most - n + 1));
}

/* ---- the text ------------------------------------------------------------ */

/* A terminal gets no control characters except line ends and tabs. */
static Status write_text(const Generate *g, FILE *out, StrBuf *sb) {
    bool terminal = isatty(fileno(out));
    for (size_t i = 0; i < sb->len && terminal; i++) {
        unsigned char c = (unsigned char)sb->data[i];
        if ((c < 32 && c != '\n' && c != '\t') || c == 127) sb->data[i] = '?';
    }
    bool ok = fwrite(sb->data, 1, sb->len, out) == sb->len && !fflush(out);
    sb->len = 0;
    return ok ? OK : fail(g->d, (Loc){0}, "standard output: not written");
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void generate_tell(const Generate *g, double s, StrBuf *told) {
    ampc_program_info p = {.size = sizeof p};
    bool one = g->info.batch == 1 ||
               g->api->program(g->api->module, "predict@1", &p) == AMPC_OK;
    sb_printf(told, "generated %lld tokens in %.3g s, %.3g ms each: ",
              (long long)g->how.tokens, s, 1e3 * s / (double)g->how.tokens);
    if (g->keeps)
        sb_puts(told, "keys and values of earlier positions are kept");
    else
        sb_printf(told,
                  "each computes all %lld positions again, as no keys and "
                  "values are kept",
                  (long long)g->window);
    if (!one)
        sb_printf(told, ", and a batch of %lld (compile with --batch-sizes 1)",
                  (long long)g->info.batch);
    if (!g->keeps)
        sb_puts(told, "; ampc export --module --decode makes a module that "
                      "keeps them");
}

static Status generate_write_all(Generate *g, const Vocabulary *v, Tokens *text,
                                 FILE *out, StrBuf *told) {
    StrBuf sb = {0};
    uint64_t seed = (uint64_t)(g->how.seed < 0 ? g->info.seed : g->how.seed);
    int64_t n = text->at.len;
    for (int64_t i = 0; i < n; i++) vocabulary_decode(v, text->at.data[i], &sb);
    Status st = g->keeps ? check_room(g, text)
                         : check_causal(g, text->at.data,
                                        n < g->window ? n : g->window);
    if (st == OK) st = write_text(g, out, &sb);
    double begin = seconds();
    for (int64_t i = 0; i < g->how.tokens && st == OK; i++) {
        st = predict_next(g, text);
        if (st != OK) break;
        int64_t next =
            sampling_pick(&g->how, g->logits, g->size,
                          draw_uniform01(seed, (uint64_t)i), g->order);
        vec_push(text->a, &text->at, next);
        vocabulary_decode(v, next, &sb);
        st = write_text(g, out, &sb);
    }
    if (st == OK) {
        sb_puts(&sb, "\n");
        st = write_text(g, out, &sb);
        generate_tell(g, seconds() - begin, told);
    }
    sb_free(&sb);
    return st;
}

static Status generate_run(Generate *g, const char *prompt,
                           const char *vocabulary, FILE *out, StrBuf *told) {
    Vocabulary v;
    Tokens text = {.a = g->a};
    g->api->describe(g->api->module, &g->info);
    TRY(find_inputs(g));
    TRY(generate_find_output(g));
    TRY(vocabulary_open(g->a, g->d, vocabulary, g->size, &v));
    TRY(vocabulary_encode(&v, g->d, NULL, prompt, &text));
    if (!text.at.len)
        return fail(g->d, (Loc){0},
                    "--generate: the prompt is empty: a text begins with one "
                    "token at least");
    return generate_write_all(g, &v, &text, out, told);
}

Status generate(Diag *d, const ampc_api *api, ampc_session *s,
                const char *prompt, const char *vocabulary, const char *sample,
                FILE *out, StrBuf *told) {
    Generate g = {.a = arena_new(),
                  .d = d,
                  .api = api,
                  .s = s,
                  .info = {.size = sizeof g.info}};
    Status st = sampling_read(g.a, d, sample, &g.how);
    if (st == OK) st = generate_run(&g, prompt, vocabulary, out, told);
    arena_free(g.a);
    return st;
}
