/* SPDX-License-Identifier: Apache-2.0 */
/* run_adapter.c: adapter_config.json of PEFT beside a file of adapters.
   PEFT scales B A by lora_alpha / r, or by lora_alpha / sqrt(r) with
   use_rslora. The file of tensors contains none of these, and the module has
   the scale of --lora. */
#include "frontend/run/run_cmd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frontend/data/source.h"
#include "runtime/base/json.h"

enum { MOST_CONFIG = 1 << 20 }; /* bytes */

typedef struct Config {
    Run *r;
    Source source;
    char *text;
    JsonSpan all;
} Config;

static Status config_bad(const Config *c, const char *key) {
    return source_bad(&c->source, "its '%s' is not a number > 0", key);
}

static bool is_true(JsonSpan v) { return v.n == 4 && !memcmp(v.p, "true", 4); }

/* A pattern is a module's name, or its end after a dot; with ^ it is the
   whole name. */
static bool names(const char *pattern, const char *module) {
    if (*pattern == '^') return !strcmp(pattern + 1, module);
    size_t n = strlen(module), k = strlen(pattern);
    return k <= n && !strcmp(module + n - k, pattern) &&
           (k == n || module[n - k - 1] == '.');
}

/* The value for a module: that of the first pattern that matches, or the
   common value. */
static Status adapter_number_of(const Config *c, const char *key,
                                const char *patterns, const char *module,
                                double *out) {
    JsonSpan all, name, v;
    char pattern[1024];
    if (!json_get(c->all, key, &v) || !json_double(v, out) || !(*out > 0))
        return config_bad(c, key);
    if (!json_get(c->all, patterns, &all) || !json_is_object(all)) return OK;
    for (JsonIter it = json_iter(all); json_next(&it, &name, &v);) {
        if (json_text(name, pattern, sizeof pattern) < 0 ||
            strpbrk(pattern + (*pattern == '^'), "*+?[](){}|\\^$"))
            return source_bad(&c->source,
                              "its '%s' has a regular expression; names of "
                              "modules are read",
                              patterns);
        if (!names(pattern, module)) continue;
        return json_double(v, out) && *out > 0 ? OK : config_bad(c, patterns);
    }
    return OK;
}

/* mine: {"rank":R,"alpha":A}. */
static Status check_module(const Config *c, const char *module, JsonSpan mine) {
    double rank = 0, alpha = 0, r, a;
    JsonSpan v;
    if (!json_get(mine, "rank", &v) || !json_double(v, &rank) ||
        !json_get(mine, "alpha", &v) || !json_double(v, &alpha))
        return fail(&c->r->diag, (Loc){.file = c->r->opt->module},
                    "damaged module: the adapters that it names");
    TRY(adapter_number_of(c, "r", "rank_pattern", module, &r));
    TRY(adapter_number_of(c, "lora_alpha", "alpha_pattern", module, &a));
    if (json_get(c->all, "use_rslora", &v) && is_true(v)) a *= sqrt(r);
    bool dora = json_get(mine, "dora", &v) && v.n == 1 && *v.p == '1',
         theirs = json_get(c->all, "use_dora", &v) && is_true(v);
    if (dora != theirs)
        return source_bad(&c->source,
                          "the adapter of '%s' is trained %s DoRA, and this "
                          "module has it %s: compile with --lora "
                          "'%s,rank=%g,alpha=%.9g%s'",
                          module, theirs ? "with" : "without",
                          dora ? "with" : "without", module, rank, a,
                          theirs ? ",dora" : "");
    if (r != rank) return OK; /* the shapes differ, which loading reports */
    if (fabs(a - alpha) <= 1e-6 * fabs(a)) return OK;
    return source_bad(&c->source,
                      "the adapter of '%s' is trained with alpha=%g, and this "
                      "module has alpha=%g: compile with --lora "
                      "'%s,rank=%g,alpha=%.9g'",
                      module, a, alpha, module, rank, a);
}

static Status check_modules(Config *c, JsonSpan lora) {
    size_t n = (size_t)c->source.size;
    JsonSpan key, mine;
    char module[1024];
    TRY(source_get(&c->source, c->text, n, 0));
    if (!json_parse(c->text, n, &c->all) || !json_is_object(c->all))
        return source_bad(&c->source, "not a JSON object");
    for (JsonIter it = json_iter(lora); json_next(&it, &key, &mine);)
        if (json_text(key, module, sizeof module) >= 0)
            TRY(check_module(c, module, mine));
    return OK;
}

static Status check_config(Run *r, const char *path, JsonSpan lora) {
    Config c = {.r = r, .source = {.d = &r->diag, .path = path, .fd = -1}};
    Status st = source_open(&c.source);
    if (st == OK && (c.source.packed || c.source.size > MOST_CONFIG))
        st = source_bad(&c.source, "longer than a configuration is");
    if (st == OK && !(c.text = malloc((size_t)c.source.size + 1)))
        st = source_bad(&c.source, "out of memory");
    if (st == OK) st = check_modules(&c, lora);
    free(c.text);
    source_close(&c.source);
    return st;
}

Status run_check_adapters(Run *r) {
    static const char file[] = "adapter_model.safetensors";
    const char *info = r->info.info;
    JsonSpan all, lora;
    if (!info || !json_parse(info, strlen(info), &all) ||
        !json_get(all, "lora", &lora))
        return OK;
    for (int i = 0; i < r->opt->load.n; i++) {
        const char *path = r->opt->load.at[i], *slash = strrchr(path, '/');
        if (strcmp(slash ? slash + 1 : path, file) != 0) continue;
        Str config = file_beside(path, "adapter_config.json");
        if (access(config, F_OK) == 0) TRY(check_config(r, config, lora));
    }
    return OK;
}
