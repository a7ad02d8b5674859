/* SPDX-License-Identifier: Apache-2.0 */
/* run_train.c: training over fed files.

   The position in the data is (epoch, samples of the epoch already used for
   training). Together with the seed it determines the next samples, so that
   a resumed run continues as if it had not stopped, also with another number
   of ranks. In each step all ranks take equally many micro-batches, in turn:
   together the same ones that a single rank would take. */
#include "frontend/run/run_cmd.h"

#include "ir/base/leave.h"

/* ---- one step ------------------------------------------------------------ */

static int64_t steps_for(const Run *r, int64_t samples) {
    int64_t need = run_step_samples(r);
    return need > 0 ? (samples + need - 1) / need : 0;
}

/* The n samples from `first` on; n = 0: the inputs without samples. */
static Status fill_part(Run *r, FeedSet *fs, int64_t first, int64_t n) {
    TRY(feeds_fill(&r->diag, fs, r->order, n ? first : 0, n ? n : 1));
    feeds_keep(fs, n);
    return OK;
}

static Status step_objective(Run *r, uint32_t i, ampc_metrics *m) {
    int64_t n = r->info.accumulate, batch = r->info.batch;
    FeedSet *fs = i ? &r->others[i - 1] : &r->train;
    double begin = now_seconds();
    TRY(run_choose(r, i));
    if (i == 0) TRY(watch_before(r));
    for (int64_t k = 0; k < n; k++) {
        int64_t first = r->at.done + (r->rank * n + k) * batch;
        int64_t left = run_trained_samples(r) - first;
        left = left < 0 ? 0 : left < batch ? left : batch;
        feeds_stage(fs, r->api, r->s);
        fs->epoch = r->at.epoch;
        TRY(fill_part(r, fs, first, left));
        if (k == 0 && i == 0 && left == batch) TRY(run_underflow_look(r));
        ampc_status status = r->api->step(r->s, fs->in, (size_t)fs->n, m);
        if (status != AMPC_OK)
            return run_batch_fail(r, (RunBatch){fs, r->order, first}, status,
                                  "step");
        if (i == 0) TRY(watch_micro(r, k));
    }
    run_print_notice(r);
    log_step(r, i, m, (now_seconds() - begin) * 1e3);
    if (i) return OK;
    int64_t left = run_trained_samples(r) - r->at.done,
            all = run_step_samples(r);
    return watch_after(r, m, left < all ? left : all);
}

bool run_may_stop(const Run *r) { return r->opt->save || r->opt->save_weights; }

/* The request of a signal, agreed among all ranks. */
static Status look_for_stop(Run *r) {
    double asked = leave_requested() != 0;
    if (!run_may_stop(r)) return OK;
    TRY(ranks_sum(r, &asked, 1, "step"));
    r->stopped = asked != 0;
    return OK;
}

static Status end_epoch(Run *r, int64_t epoch) {
    ampc_eval e = {.size = sizeof e};
    if (!r->eval.n || !r->opt->eval_feed.n) return OK;
    r->at.due = true;
    TRY(run_evaluate(r, epoch, &e));
    if (r->stopped) return OK;
    r->at.due = false;
    double loss = e.loss_num / e.loss_den;
    TRY(plateau_step(r, loss));
    r->at.stale++;
    bool higher;
    double score = metrics_best(r, loss, &higher);
    if (!(score < r->at.best)) return OK;
    r->at.best = score;
    r->at.stale = 0;
    r->log.best_epoch = epoch;
    r->log.best_step = r->log.step;
    return r->opt->save_best ? run_save(r, r->opt->save_best) : OK;
}

/* ---- the loop ------------------------------------------------------------ */

/* The step or epoch at which to stop, counted from the start of training. If
   a resumed run is already past it, that many more are trained, unless a
   signal ended the run in its last evaluation. */
static int64_t goal(const Run *r, int64_t asked, int64_t made) {
    if (made < asked) return asked;
    return r->at.due ? made : made + asked;
}

/* Optimizer steps to do in this run. */
static Status plan_steps(Run *r, int64_t *steps) {
    ampc_scaler sc = {.size = sizeof sc};
    int64_t most = run_trained_samples(r), per_epoch = steps_for(r, most);
    if (per_epoch == 0)
        return fail(
            &r->diag, (Loc){0}, "%lld samples: one optimizer step needs %lld",
            (long long)r->train.samples,
            (long long)(r->world > 1 ? run_step_samples(r) : r->info.batch));
    if (r->at.done >= most) {
        r->at.epoch++; /* other ranks made the checkpoint: too few samples
                          are left */
        r->at.done = 0;
    }
    r->api->scaler(r->s, &sc);
    int64_t made = r->opt->resume ? sc.tried : 0;
    if (r->opt->steps >= 0) {
        *steps = goal(r, r->opt->steps, made) - made;
        return OK;
    }
    int64_t epochs = r->opt->epochs >= 0 ? r->opt->epochs : 1;
    if (r->opt->resume) epochs = goal(r, epochs, r->at.epoch);
    *steps = (epochs - r->at.epoch - 1) * per_epoch +
             steps_for(r, most - r->at.done);
    return OK;
}

/* * ends: evaluations have not improved for the time of --patience. */
static Status evaluate_epoch(Run *r, bool *ends) {
    TRY(end_epoch(r, r->at.epoch));
    if (!r->stopped) bar_epoch(r, r->at.epoch);
    *ends = !r->stopped && r->opt->patience && r->at.stale >= r->opt->patience;
    if (*ends)
        log_note(r, "%s has not %s for %lld epochs: stopped after epoch %lld",
                 r->opt->best_by ? r->opt->best_by : "the evaluation loss",
                 r->opt->best_by ? "improved" : "fallen",
                 (long long)r->at.stale, (long long)r->at.epoch);
    return OK;
}

/* Prints which samples do not fill a step. */
static void tell_left(Run *r) {
    long long need = run_step_samples(r), all = r->train.samples;
    long long lost = all - run_trained_samples(r), part = (all - lost) % need;
    if (part)
        log_note(
            r,
            "%lld samples are %lld step%s of %lld, which leaves %lld: the last "
            "step of every epoch trains them",
            all, (all - lost) / need, (all - lost) / need == 1 ? "" : "s", need,
            part);
    if (lost)
        log_note(
            r,
            "%lld samples, the last of every epoch, are not trained%s: a %s "
            "needs %lld, and rows that only fill it cannot be masked, "
            "because samples of this model affect each other (BatchNorm) "
            "or its loss does not add up over samples",
            lost,
            r->opt->shuffle ? ", others each time"
                            : " (--shuffle: others each time)",
            r->world > 1 ? "step" : "batch",
            r->world > 1 ? need : (long long)r->info.batch);
}

/* Prints the notes that a user should read before a long run, once. */
static void tell_plan(Run *r, int64_t steps) {
    int64_t here = steps_for(r, run_trained_samples(r) - r->at.done);
    ampc_scaler sc = {.size = sizeof sc};
    double total, last;
    if (steps >= here) tell_left(r);
    if (r->api->get_hyper(r->s, "total", &total) != AMPC_OK ||
        r->api->get_hyper(r->s, "min", &last) != AMPC_OK ||
        r->api->scaler(r->s, &sc) != AMPC_OK ||
        (double)(sc.step + steps) <= total)
        return;
    log_note(r,
             "the schedule ends after step %.0f (its total=): this run goes to "
             "step %lld, from there on with a learning rate of %g (--hyper "
             "total=100%% ends both together)",
             total, (long long)(sc.step + steps), last);
}

/* The epoch, counted from 1, in which the run is after that many further
   steps. */
static int64_t last_epoch(const Run *r, int64_t steps) {
    int64_t most = run_trained_samples(r), per_epoch = steps_for(r, most);
    int64_t later = steps - steps_for(r, most - r->at.done);
    return r->at.epoch + 1 +
           (later > 0 ? (later + per_epoch - 1) / per_epoch : 0);
}

/* True if --save-every asks for a checkpoint after a step: on all ranks as
   soon as one rank's time is up. */
static Status is_save_due(Run *r, int64_t tried, double *last, bool *due) {
    RunPeriod p = r->opt->save_every;
    *due = p.steps && tried % p.steps == 0;
    if (!(p.seconds > 0)) return OK;
    double over = now_seconds() - *last >= p.seconds;
    TRY(ranks_sum(r, &over, 1, "step"));
    *due = over != 0;
    if (*due) *last = now_seconds();
    return OK;
}

static Status train_loop(Run *r, int64_t steps) {
    ampc_metrics m = {.size = sizeof m};
    int64_t evaluated = -1;
    double saved = now_seconds();
    bool ends = false, due;
    run_order_epoch(r);
    bar_begin(r, steps, r->at.epoch, last_epoch(r, steps));
    if (r->at.due) TRY(evaluate_epoch(r, &ends));
    for (int64_t done = 1; done <= steps && !ends; done++) {
        if (!r->stopped) TRY(look_for_stop(r));
        if (r->stopped) return OK;
        /* every objective in turn on the same samples */
        for (uint32_t i = 0; run_objective(r, i); i++)
            TRY(step_objective(r, i, &m));
        r->log.samples += run_step_samples(r);
        r->at.done += run_step_samples(r);
        if (r->at.done > run_trained_samples(r))
            r->log.samples -= r->at.done - run_trained_samples(r);
        TRY(run_choose(r, 0));
        bar_step(r, &m, done);
        if (r->at.done >= run_trained_samples(r)) {
            r->at.epoch++;
            r->at.done = 0;
            run_order_epoch(r);
            TRY(evaluate_epoch(r, &ends));
            evaluated = done;
            if (ends || r->stopped) return OK;
        }
        TRY(is_save_due(r, m.tried, &saved, &due));
        if (due) {
            if (done < steps || r->opt->keep) TRY(run_save(r, r->opt->save));
            if (r->opt->keep) TRY(run_keep(r, m.tried));
        }
    }
    if (steps <= 0 || evaluated == steps || ends) return OK;
    TRY(end_epoch(r, r->at.epoch + 1));
    if (!r->stopped) bar_epoch(r, r->at.epoch + 1);
    return OK;
}

Status run_training(Run *r) {
    int64_t steps;
    r->at.samples = r->train.samples;
    TRY(plan_steps(r, &steps));
    TRY(run_order_open(r));
    ampc_scaler sc = {.size = sizeof sc};
    if (r->api->scaler(r->s, &sc) != AMPC_OK) return run_api_fail(r, "step");
    TRY(hyper_apply(r, (RunLength){sc.step + steps,
                                   r->train.samples / run_step_samples(r)}));
    tell_plan(r, steps);
    TRY(run_underflow_open(r));
    TRY(watch_open(r));
    double begin = now_seconds();
    TRY(train_loop(r, steps));
    r->log.trained = now_seconds() - begin;
    run_underflow_close(r);
    return r->opt->save ? run_save(r, r->opt->save) : OK;
}
