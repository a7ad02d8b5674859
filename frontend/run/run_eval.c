/* SPDX-License-Identifier: Apache-2.0 */
/* run_eval.c: evaluation and prediction over fed files. */
#include "frontend/run/run_cmd.h"

#include <stdlib.h>

#include "ir/base/leave.h"

static int64_t valid_rows(const FeedSet *fs, int64_t first) {
    int64_t left = fs->samples - first;
    return left < fs->batch ? left : fs->batch;
}

/* Adds the sums of one batch. */
typedef struct EvalPart {
    double loss_num, loss_den, correct, count, inexact, top_k, correct_top;
} EvalPart;

static Status evaluate_batch(Run *r, FeedSet *fs, int64_t first, EvalPart *p) {
    ampc_eval e = {.size = sizeof e};
    int64_t n = valid_rows(fs, first);
    feeds_stage(fs, r->api, r->s);
    TRY(feeds_fill(&r->diag, fs, NULL, first, n));
    ampc_status status = r->api->evaluate(r->s, fs->in, (size_t)fs->n, n, &e);
    if (status != AMPC_OK)
        return run_batch_fail(r, (RunBatch){fs, NULL, first}, status,
                              "evaluate");
    *p = (EvalPart){e.loss_num, e.loss_den, e.correct,    e.count,
                    !e.exact,   e.top_k,    e.correct_top};
    return OK;
}

/* Ranks evaluate batches in turn. If outputs are written, rank 0 runs all
   batches, and the others run as many. Sums are added in the order of
   batches, so that they do not depend on the number of ranks. */
static Status evaluate_parts(Run *r, FeedSet *fs, bool all, bool measured,
                             Fetch *f, EvalPart *part, size_t n) {
    for (size_t i = 0; i < n; i++) {
        int64_t first = (int64_t)i * fs->batch;
        /* ranks that take turns cannot agree to stop here */
        r->stopped |=
            r->at.due && run_may_stop(r) && r->world == 1 && leave_requested();
        if (r->stopped) return OK;
        if (!all && (int64_t)i % r->world != r->rank) continue;
        TRY(evaluate_batch(r, fs, first, &part[i]));
        if (measured) TRY(metrics_batch(r, first, valid_rows(fs, first)));
        if (f) TRY(fetch_batch(r, f, valid_rows(fs, first)));
    }
    if (all) return OK;
    return ranks_sum(r, &part->loss_num, n * (sizeof *part / sizeof(double)),
                     "evaluate");
}

static Status evaluate_all(Run *r, FeedSet *fs, bool all, bool measured,
                           Fetch *f, ampc_eval *sums) {
    size_t n = (size_t)((fs->samples + fs->batch - 1) / fs->batch);
    EvalPart *part = calloc(n, sizeof *part);
    if (!part) return fail(&r->diag, (Loc){0}, "out of memory");
    if (measured) metrics_clear(r);
    Status st = evaluate_parts(r, fs, all, measured, f, part, n);
    if (st == OK && measured && !r->stopped) st = metrics_end(r, !all);
    sums->exact = 1;
    sums->samples = fs->samples;
    for (size_t i = 0; i < n; i++) {
        sums->loss_num += part[i].loss_num;
        sums->loss_den += part[i].loss_den;
        sums->correct += part[i].correct;
        sums->count += part[i].count;
        sums->correct_top += part[i].correct_top;
        sums->top_k = (int32_t)part[i].top_k;
        if (part[i].inexact != 0) sums->exact = 0;
    }
    free(part);
    if (st == OK && !sums->exact && !r->stopped)
        log_note(r, "the model computes its own mean loss: the last, partial "
                    "batch is left out");
    return st;
}

/* Metrics are measured once, with the first objective. */
static Status evaluate_objective(Run *r, bool fetch, bool measured,
                                 ampc_eval *sums) {
    TRY(evaluate_all(r, &r->eval, fetch, measured, fetch ? r->fetch : NULL,
                     sums));
    return fetch ? fetch_close(r) : OK;
}

Status run_evaluate(Run *r, int64_t epoch, ampc_eval *first) {
    if (r->eval.batch <= 0) return fail(&r->diag, (Loc){0}, "no batch axis");
    for (uint32_t i = 0; run_objective(r, i); i++) {
        ampc_eval e = {.size = sizeof e};
        bool fetch = i == 0 && epoch < 0 && r->opt->fetch;
        TRY(run_choose(r, i));
        TRY(evaluate_objective(r, fetch, i == 0, &e));
        if (r->stopped) break;
        log_eval(r, i, epoch, &e);
        if (i == 0) *first = e;
    }
    return run_choose(r, 0);
}

static Status predict_all(Run *r, FeedSet *fs, Fetch *f) {
    int64_t batch = fs->batch > 0 ? fs->batch : 1; /* 0: no input has one */
    for (int64_t i = 0; i < fs->samples; i += batch) {
        int64_t n = valid_rows(fs, i);
        feeds_stage(fs, r->api, r->s);
        TRY(feeds_fill(&r->diag, fs, NULL, i, n));
        ampc_status status =
            r->api->predict(r->s, fs->in, (size_t)fs->n, n, NULL, 0);
        if (status != AMPC_OK)
            return run_batch_fail(r, (RunBatch){fs, NULL, i}, status,
                                  "predict");
        if (f) TRY(fetch_batch(r, f, n));
    }
    return OK;
}

Status run_predict(Run *r, FeedSet *fs) {
    TRY(predict_all(r, fs, r->fetch));
    return fetch_close(r);
}
