/* SPDX-License-Identifier: Apache-2.0 */
/* run_hyper.c: learning rates and schedules that the user changes (--lr,
   --hyper) or that evaluations lower (--reduce-on-plateau). */
#include "frontend/run/run_cmd.h"
#include "ir/base/near.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- --hyper KEY=VALUE --------------------------------------------------- */

static Status bad_value(Run *r, const char *given) {
    fail(&r->diag, (Loc){0},
         "--hyper '%s': a value is a number, a share of all steps (5%%) or a "
         "number of epochs (2epochs)",
         given);
    return ERR_USAGE;
}

/* A number of steps rounds up, as transformers' warmup_ratio. */
static Status read_value(Run *r, const char *given, const char *text,
                         const RunLength *length, double *out) {
    char *end;
    errno = 0;
    double x = strtod(text, &end);
    if (end == text || errno || !isfinite(x)) return bad_value(r, given);
    bool share = !strcmp(end, "%");
    bool epochs = !strcmp(end, "epochs") || !strcmp(end, "epoch");
    if (*end && !share && !epochs) return bad_value(r, given);
    *out = share    ? ceil(x / 100 * (double)length->all - 1e-9) + 0.0
           : epochs ? ceil(x * (double)length->epoch - 1e-9) + 0.0
                    : x;
    return OK;
}

/* The reason why the module does not have `key`. */
static void put_unknown(const Run *r, const char *key, StrBuf *sb) {
    char text[NEAR_TEXT];
    Near near = near_to(key);
    ampc_variable_info v = {.size = sizeof v};
    for (uint32_t i = 0; r->api->variable(r->api->module, i, &v) == AMPC_OK;
         i++)
        if (v.kind == AMPC_KIND_HYPER)
            near_offer(&near, v.name + strlen("ampc."));
    sb_printf(sb, "%s%s", r->api->error(r->s), near_text(&near, text));
}

/* Sets the key in each objective that has it. */
static Status set_all(Run *r, const char *key, double value, const char *what) {
    StrBuf why = {0};
    bool any = false;
    double old;
    for (uint32_t i = 0; run_objective(r, i); i++) {
        if (run_choose(r, i) != OK) break;
        bool known = r->api->get_hyper(r->s, key, &old) == AMPC_OK;
        if (known && r->api->set_hyper(r->s, key, value) == AMPC_OK)
            any = true;
        else if (known && !why.len)
            sb_puts(&why, r->api->error(r->s));
        else if (!why.len)
            put_unknown(r, key, &why);
    }
    if (!any) fail(&r->diag, (Loc){0}, "%s: %s", what, why.data);
    sb_free(&why);
    return any ? run_choose(r, 0) : ERR_USER;
}

Status hyper_apply(Run *r, RunLength length) {
    const RunOptions *o = r->opt;
    for (int i = 0; i < o->hyper.n; i++) {
        const char *given = o->hyper.at[i], *eq = strchr(given, '=');
        char key[64];
        double value;
        if ((size_t)(eq - given) >= sizeof key) return bad_value(r, given);
        snprintf(key, sizeof key, "%.*s", (int)(eq - given), given);
        TRY(read_value(r, given, eq + 1, &length, &value));
        TRY(set_all(r, key, value, "--hyper"));
        if (strpbrk(eq + 1, "%p")) log_note(r, "%s is %g", key, value);
    }
    return OK;
}

/* ---- --reduce-on-plateau ------------------------------------------------- */

/* PyTorch's ReduceLROnPlateau: mode "min", a relative threshold, no cooldown.
 */
typedef struct Plateau {
    double factor, patience, threshold, min_lr;
} Plateau;

static Status read_plateau(Diag *d, const char *text, Plateau *p) {
    *p = (Plateau){0.1, 10, 1e-4, 0};
    const struct {
        const char *name;
        double *to, most;
    } keys[] = {{"factor=", &p->factor, 0.999999},
                {"patience=", &p->patience, 1e9},
                {"threshold=", &p->threshold, 0.999999},
                {"min_lr=", &p->min_lr, 1e30}};
    for (const char *at = text; *at;) {
        size_t k = 0, n = 0;
        char *end = NULL;
        for (; k < 4; k++)
            if (!strncmp(at, keys[k].name, n = strlen(keys[k].name))) break;
        if (k < 4) *keys[k].to = strtod(at + n, &end);
        if (k == 4 || end == at + n || (*end && *end != ',') ||
            !(*keys[k].to >= 0 && *keys[k].to <= keys[k].most)) {
            fail(d, (Loc){0},
                 "--reduce-on-plateau: '%s' is not factor=0.1,patience=10,"
                 "threshold=0.0001,min_lr=0",
                 text);
            return ERR_USAGE;
        }
        at = end + (*end == ',');
    }
    return OK;
}

Status plateau_check(Diag *d, const char *text) {
    Plateau p;
    return text ? read_plateau(d, text, &p) : OK;
}

Status plateau_step(Run *r, double loss) {
    Plateau p;
    RunCursor *at = &r->at;
    if (!r->opt->plateau) return OK;
    TRY(read_plateau(&r->diag, r->opt->plateau, &p));
    if (loss < at->plateau_best * (1 - p.threshold)) {
        at->plateau_best = loss;
        at->plateau_bad = 0;
    } else {
        at->plateau_bad++;
    }
    if ((double)at->plateau_bad <= p.patience) return OK;
    at->plateau_bad = 0;
    for (uint32_t i = 0; run_objective(r, i); i++) {
        double lr, lower;
        TRY(run_choose(r, i));
        if (r->api->get_hyper(r->s, "lr", &lr) != AMPC_OK)
            return run_api_fail(r, "--reduce-on-plateau");
        lower = fmax(lr * p.factor, p.min_lr);
        if (!(lr - lower > 1e-8)) continue;
        if (r->api->set_hyper(r->s, "lr", lower) != AMPC_OK)
            return run_api_fail(r, "--reduce-on-plateau");
        log_note(r, "epoch %lld: the evaluation loss has not fallen: lr is %g",
                 (long long)at->epoch, lower);
    }
    return run_choose(r, 0);
}
