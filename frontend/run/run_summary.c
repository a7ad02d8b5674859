/* SPDX-License-Identifier: Apache-2.0 */
/* run_summary.c: the summary of a run. */
#include "frontend/run/run_cmd.h"

#include <math.h>

#include "ir/base/terminal.h"

/* glibc prints the sign of a NaN. */
static double without_nan_sign(double x) { return isnan(x) ? fabs(x) : x; }

static void put_trained(const Run *r, StrBuf *sb) {
    const RunLog *log = &r->log;
    double seconds = log->trained > 0 ? log->trained : 1e-9;
    double steps = (double)log->steps, samples = (double)log->samples;
    char whole[UNIT_TEXT], each[UNIT_TEXT], rate[UNIT_TEXT], n[UNIT_TEXT];
    sb_printf(sb,
              "trained %s step%s in %s (%s each, %s samples/s): "
              "loss %.4g -> %.4g",
              unit_count(n, steps), log->steps == 1 ? "" : "s",
              unit_seconds(whole, log->trained),
              unit_seconds(each, seconds / steps),
              unit_count(rate, samples / seconds),
              without_nan_sign(log->first_loss), without_nan_sign(log->loss));
    if (log->skipped) sb_printf(sb, ", %lld skipped", (long long)log->skipped);
    sb_puts(sb, "\n");
}

static void put_evaluated(const Run *r, StrBuf *sb) {
    const RunLog *log = &r->log;
    const RunOptions *o = r->opt;
    sb_printf(sb, "evaluation: loss %.4g", without_nan_sign(log->eval_loss));
    if (isfinite(log->accuracy))
        sb_printf(sb, ", accuracy %.4f", log->accuracy);
    if (log->top_k)
        sb_printf(sb, ", of the best %d %.4f", log->top_k, log->accuracy_top);
    for (int i = 0; metric_label(r, i); i++)
        if (!metric_told(r, i))
            sb_printf(sb, ", %s %.4g", metric_label(r, i), metric_last(r, i));
    bool higher;
    metrics_best(r, 0, &higher);
    if (log->best_epoch)
        sb_printf(sb, "; %s %.4g after epoch %lld",
                  o->best_by ? internf("best %s", o->best_by) : "lowest loss",
                  higher ? -r->at.best : r->at.best,
                  (long long)log->best_epoch);
    sb_puts(sb, "\n");
}

static void put_file(StrBuf *sb, const char *path) {
    if (path) sb_printf(sb, "%s%s", sb->len ? ", " : "", path);
}

void log_summary_text(Run *r, bool logged, StrBuf *sb) {
    const RunOptions *o = r->opt;
    StrBuf files = {0};
    if (r->log.steps) put_trained(r, sb);
    profile_text(r, sb);
    if (r->log.evaluated) put_evaluated(r, sb);
    put_file(&files, o->save);
    put_file(&files, r->log.best_epoch ? o->save_best : NULL);
    put_file(&files, o->save_weights);
    put_file(&files, o->fetch);
    if (logged && !r->log.streamed) put_file(&files, o->log);
    put_file(&files, logged ? o->profile : NULL);
    put_file(&files, logged ? r->log.events_path : NULL);
    put_file(&files, logged ? o->report : NULL);
    if (files.len) sb_printf(sb, "wrote %s\n", files.data);
    sb_free(&files);
}
