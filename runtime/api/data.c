/* SPDX-License-Identifier: Apache-2.0 */
/* data.c: class and row indices in the inputs that are out of range, loops
   that want more trips than the module has room for, and rows that are not as
   many as a mask selects.

   Every program returns, per check of the compiler (passes/common/checks.c),
   ampc.check/NUMBER/LEAST/MOST/INPUT, the position in the input of the first
   such number or -1, and ampc.checked/NUMBER/LEAST/MOST/INPUT, that number.
   For a loop the first name is ampc.trips/NUMBER/0/MOST/LOOP, for rows it is
   ampc.selected/NUMBER/0/0/NODE.
   Programs that train count bad batches in ampc.bad_data and keep the
   details of the last one, since a device may be several steps ahead when
   the host reads them. */
#include <stdlib.h>
#include <string.h>

#include "runtime/api/session.h"
#include "runtime/base/try.h"

/* The text behind the prefix, or NULL. */
static const char *behind(const char *name, const char *prefix) {
    size_t n = strlen(prefix);
    return strncmp(name, prefix, n) ? NULL : name + n;
}

typedef enum Checked { OF_INPUT, OF_LOOP, OF_MASK } Checked;

/* A check, from the name of its output. */
static bool check_read(const char *name, ampc_bad_data *b, Checked *what) {
    static const char *const prefixes[] = {
        [OF_INPUT] = "ampc.check/",
        [OF_LOOP] = "ampc.trips/",
        [OF_MASK] = "ampc.selected/",
    };
    const char *rest = NULL;
    char *end;
    for (int k = OF_INPUT; k <= OF_MASK && !rest; k++) {
        rest = behind(name, prefixes[k]);
        *what = (Checked)k;
    }
    if (!rest) return false;
    strtoll(rest, &end, 10); /* its number */
    if (*end != '/') return false;
    b->least = strtoll(end + 1, &end, 10);
    if (*end != '/') return false;
    b->most = strtoll(end + 1, &end, 10);
    b->input = end + 1;
    return *end == '/';
}

static ampc_status data_fail(ampc_session *s, const ampc_bad_data *b,
                             Checked what) {
    s->bad = *b;
    if (what == OF_MASK)
        return session_fail(s, AMPC_ERR_DATA,
                            "node '%.200s' puts rows where a mask selects, and "
                            "the mask selects %lld rows %s than there are",
                            b->input, llabs((long long)b->value),
                            b->value > 0 ? "more" : "fewer");
    if (what == OF_LOOP)
        return session_fail(s, AMPC_ERR_DATA,
                            "loop '%.200s' makes more than %lld trips, the "
                            "most that the module was compiled for: compile it "
                            "with a larger --max-trips",
                            b->input, (long long)b->most);
    return session_fail(
        s, AMPC_ERR_DATA,
        "input '%.200s': %lld at position %lld is outside %lld..%lld", b->input,
        (long long)b->value, (long long)b->index, (long long)b->least,
        (long long)b->most);
}

/* ---- training ------------------------------------------------------------ */

static ampc_status kept(ampc_session *s, KnownVar which, int64_t *out) {
    int v = s->known[which];
    *out = -1;
    if (v < 0 || s->m->vars[v].bytes != sizeof *out) return AMPC_OK;
    return s->backend->get(s, var_ref((uint32_t)v, 0), out, sizeof *out);
}

/* Check k of the training programs. */
static bool check_at(const ampc_session *s, int64_t k, ampc_bad_data *b,
                     Checked *what) {
    int program = s->program[PROG_TRAIN] >= 0 ? s->program[PROG_TRAIN]
                                              : s->program[PROG_MICRO];
    if (program < 0) return false;
    const PlanProgram *p = &s->m->programs[program];
    for (uint32_t i = 0; i < p->nout; i++)
        if (check_read(s->m->tensors[p->out0 + i].name, b, what) && k-- == 0)
            return true;
    return false;
}

ampc_status data_trained(ampc_session *s, int64_t count) {
    ampc_bad_data b = {.size = sizeof b, .count = count};
    Checked what = OF_INPUT;
    int64_t k;
    if (count <= s->bad.count) return AMPC_OK;
    if (s->ranks.bad_rank >= 0) {
        s->bad = b;
        return session_fail(s, AMPC_ERR_DATA,
                            "rank %d got a class or row index that is out of "
                            "range, a loop of too many trips, or another "
                            "number of rows than a mask selects; its own "
                            "message names it",
                            s->ranks.bad_rank);
    }
    TRY(kept(s, VAR_BAD_CHECK, &k));
    TRY(kept(s, VAR_BAD_AT, &b.index));
    TRY(kept(s, VAR_BAD_VALUE, &b.value));
    if (!check_at(s, k, &b, &what)) b.input = "";
    return data_fail(s, &b, what);
}

/* ---- evaluation and prediction ------------------------------------------- */

/* True if the position belongs to the first `valid` samples of the batch; it
   is converted to the position in the call's input. */
static bool counts(const ampc_session *s, const PlanProgram *p,
                   ampc_bad_data *b, int64_t valid) {
    for (uint32_t i = 0; i < p->nin; i++) {
        const PlanTensor *t = &s->m->tensors[p->in0 + i];
        if (strcmp(t->name, b->input) != 0) continue;
        int64_t n = 1;
        for (uint32_t k = 0; k < t->rank; k++) n *= t->dim[k];
        if (t->rank == 0 || s->batch <= 0 || n % s->batch) return true;
        bool is = b->index / (n / s->batch) < valid;
        b->index += s->first * (n / s->batch);
        return is;
    }
    return true;
}

ampc_status data_ran(ampc_session *s, int64_t valid) {
    const PlanProgram *p = &s->m->programs[s->last];
    for (uint32_t i = 0; i + 1 < p->nout; i++) {
        const PlanTensor *t = &s->m->tensors[p->out0 + i];
        ampc_bad_data b = {.size = sizeof b, .count = s->bad.count};
        Checked what;
        if (!check_read(t->name, &b, &what)) continue;
        TRY(s->backend->get(s, output_ref(s, s->last, (int)i), &b.index, 8));
        if (b.index < 0 || (what == OF_INPUT && !counts(s, p, &b, valid)))
            continue;
        ampc_status status =
            s->backend->get(s, output_ref(s, s->last, (int)i + 1), &b.value, 8);
        return status == AMPC_OK ? data_fail(s, &b, what) : status;
    }
    return AMPC_OK;
}
