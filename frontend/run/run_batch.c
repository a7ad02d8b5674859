/* SPDX-License-Identifier: Apache-2.0 */
/* run_batch.c: a batch that a module refuses or that makes it diverge: the
   message names the file and the sample. */
#include "frontend/run/run_cmd.h"

#include <string.h>

/* The file that fed an input with samples, and the file with element
   `index`; NULL if there is none. */
static const Feed *find_sample(const RunBatch *b, const char *input,
                               int64_t index, int64_t *sample) {
    for (int i = 0; i < b->fs->n; i++) {
        const Feed *f = &b->fs->feed[i];
        if (strcmp(f->want.name, input) != 0 || f->per <= 0) continue;
        int64_t at = b->first + index / f->per;
        *sample = b->order ? b->order[at] : at;
        return f;
    }
    return NULL;
}

static Status bad_data_fail(Run *r, const RunBatch *batch, const char *what) {
    ampc_bad_data b = {.size = sizeof b};
    int64_t sample;
    StrBuf why = {0};
    sb_puts(&why, r->api->error(r->s));
    bool told = r->api->bad_data(r->s, &b) == AMPC_OK && *b.input;
    const Feed *f = told ? find_sample(batch, b.input, b.index, &sample) : NULL;
    if (!f) /* another rank's sample, a loop, a mask */
        fail(&r->diag, (Loc){0}, "%s: %s", what, why.data);
    sb_free(&why);
    if (f)
        fail(&r->diag, (Loc){.file = intern(f->file)},
             "sample %lld (from 0) has %lld; input '%s' takes %lld to "
             "%lld",
             (long long)sample, (long long)b.value, b.input, (long long)b.least,
             (long long)b.most);
    return ERR_USER;
}

static Status diverged_fail(Run *r, const RunBatch *batch, const char *what) {
    ampc_nonfinite x = {.size = sizeof x};
    int64_t sample;
    Status st = run_api_fail(r, what);
    if (r->api->nonfinite(r->s, &x) != AMPC_OK || x.origin != AMPC_ORIGIN_INPUT)
        return st;
    const Feed *f = find_sample(batch, x.name, x.index, &sample);
    if (!f) return st;
    return fail(&r->diag, (Loc){.file = intern(f->file)},
                "sample %lld (from 0) has %g", (long long)sample, x.value);
}

Status run_batch_fail(Run *r, RunBatch b, ampc_status status,
                      const char *what) {
    if (status == AMPC_ERR_DATA) return bad_data_fail(r, &b, what);
    if (status == AMPC_ERR_DIVERGED) return diverged_fail(r, &b, what);
    return run_api_fail(r, what);
}
