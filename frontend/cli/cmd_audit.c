/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_audit.c: ampc audit OUT.so --feed NAME=FILE ..: what 16 bits cost.

   The step of the module runs in its precision and in fp32 from the same
   weights on the same batches, then with one rounding at a time.  The effect
   of policy lines is estimated by turning off the roundings that they
   remove, and then measured by compiling the step with them. */
#define _POSIX_C_SOURCE 200809L
#include "frontend/cli/cmd_audit.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frontend/cli/kept.h"
#include "ir/base/files.h"

/* ---- measuring ----------------------------------------------------------- */

static double audit_squares(const float *x, const float *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)x[i] - (y ? (double)y[i] : 0);
        sum += d * d;
    }
    return sum;
}

static double ratio(double a, double b) {
    return a == 0 ? 0 : b > 0 ? a / b : INFINITY;
}

static Status audit_fill(Audit *a, int64_t batch) {
    int64_t size = a->feed.batch > 0 ? a->feed.batch : 1;
    int64_t first = batch * size, n = a->feed.samples - first;
    return feeds_fill(&a->s->diag, &a->feed, NULL, first, n < size ? n : size);
}

/* Stores the batches' losses in loss[] (may be NULL), and each gradient's
   difference in a->param if `each`. */
static Status audit_measure(Audit *a, Replica *r, const bool *on,
                            int64_t batches, double *loss, bool each,
                            Apart *out) {
    const double least = 1e-6; /* a loss near 0 is compared with this number */
    double lost = 0, grads = 0;
    for (int i = 0; i < r->grads.len && each; i++) a->param[i] = 0;
    for (int64_t b = 0; b < batches; b++) {
        double own, wide = a->wide[b];
        const float *ref = a->ref + b * r->count;
        TRY(audit_fill(a, b));
        TRY(replica_step(a->s, r, &a->feed, on, &own, a->grad));
        if (loss) loss[b] = own;
        double l = (own - wide) / fmax(fabs(wide), least);
        lost += l * l;
        grads += ratio(audit_squares(a->grad, ref, r->count),
                       audit_squares(ref, NULL, r->count));
        for (int i = 0; i < r->grads.len && each; i++) {
            const ReplicaGrad *g = &r->grads.data[i];
            const float *its = ref + g->at;
            double size = audit_squares(its, NULL, g->count);
            a->param[i] +=
                ratio(audit_squares(a->grad + g->at, its, g->count), size);
            a->part[i] = fmax(a->part[i],
                              ratio(size, audit_squares(ref, NULL, r->count)));
        }
    }
    for (int i = 0; i < r->grads.len && each; i++) {
        a->param[i] = sqrt(a->param[i] / (double)batches);
        if (isnan(a->param[i])) a->param[i] = INFINITY;
    }
    out->loss = sqrt(lost / (double)batches);
    out->grad = sqrt(grads / (double)batches);
    if (isnan(out->loss)) out->loss = INFINITY;
    if (isnan(out->grad)) out->grad = INFINITY;
    return OK;
}

static Status measure_wide(Audit *a) {
    const Replica *r = &a->step;
    bool *none = NEW_ARRAY(a->s->arena, bool, r->sites.len + 1);
    for (int64_t b = 0; b < a->batches; b++) {
        TRY(audit_fill(a, b));
        TRY(replica_step(a->s, &a->step, &a->feed, none, &a->wide[b],
                         a->ref + b * r->count));
        if (!isfinite(a->wide[b]) ||
            !isfinite(audit_squares(a->ref + b * r->count, NULL, r->count)))
            return fail(&a->s->diag, (Loc){0},
                        "batch %lld: loss or gradient are not finite in fp32, "
                        "either: weights, data or model have that from "
                        "elsewhere (ampc --debug-nonfinite says where)",
                        (long long)b);
    }
    return OK;
}

static Status audit_set_scale(Audit *a, float scale) {
    const char *name = own_var_text(OWN_SCALE);
    ampc_input in = ampc_in(name, &scale, sizeof scale, AMPC_DTYPE_F32);
    Run *both[] = {&a->run, &a->step.run};
    for (int i = 0; i < 2; i++)
        if (both[i]->api->write_variable(both[i]->s, name, &in) != AMPC_OK)
            return fail(&a->s->diag, (Loc){0}, "%s: %s", name,
                        both[i]->api->error(both[i]->s));
    a->scale = scale;
    return OK;
}

static Status find_overflow(Audit *a) {
    const Replica *r = &a->step;
    a->overflows = false;
    for (int64_t b = 0; b < a->batches && !a->overflows; b++) {
        double loss;
        TRY(audit_fill(a, b));
        TRY(replica_step(a->s, &a->step, &a->feed, NULL, &loss, a->grad));
        a->overflows =
            isfinite(loss) && !isfinite(audit_squares(a->grad, NULL, r->count));
    }
    return OK;
}

/* Training skips a step whose gradient overflows and lowers the loss scale, and
   so does this, until no batch overflows. */
static Status settle_scale(Audit *a) {
    const char *name = own_var_text(OWN_SCALE);
    ampc_output out =
        ampc_out(name, &a->scale, sizeof a->scale, AMPC_DTYPE_F32);
    Options o;
    TRY(kept_options(a->s, &a->file, &o));
    if (!options_has_scaler(&o)) return OK;
    if (a->run.api->read_variable(a->run.s, name, &out) != AMPC_OK)
        return fail(&a->s->diag, (Loc){0}, "%s: %s", name,
                    a->run.api->error(a->run.s));
    a->first_scale = a->scale;
    TRY(find_overflow(a));
    while (a->overflows && o.scale.kind != SCALE_STATIC) {
        double next = (double)a->scale * o.scale.backoff;
        if (next < fmax(o.scale.min, 0x1p-100)) break;
        TRY(audit_set_scale(a, (float)next));
        TRY(find_overflow(a));
    }
    return OK;
}

/* Runs the module itself; its step compiled anew must give the same loss. */
static Status measure_own(Audit *a) {
    Run *r = &a->run;
    TRY(audit_fill(a, 0));
    if (r->api->micro_step(r->s, a->feed.in, (size_t)a->feed.n, &a->own) ==
        AMPC_OK)
        return OK;
    return fail(&a->s->diag, (Loc){0}, "the module's step: %s",
                r->api->error(r->s));
}

/* Shows the progress on a terminal. */
static void audit_tell(const char *what, int done, int all) {
    static double last;
    if (!isatty(STDERR_FILENO) || (now_seconds() - last < 0.5 && done < all))
        return;
    last = now_seconds();
    fprintf(stderr, done < all ? "\r\033[K%s: %d of %d" : "\r\033[K", what,
            done, all);
    fflush(stderr);
}

static Status measure_alone(Audit *a) {
    int n = a->step.sites.len;
    bool *on = NEW_ARRAY(a->s->arena, bool, n + 1);
    a->alone = NEW_ARRAY(a->s->arena, Apart, n + 1);
    for (int i = 0; i < n; i++) {
        audit_tell("roundings", i, n);
        on[i] = true;
        TRY(audit_measure(a, &a->step, on, 1, NULL, false, &a->alone[i]));
        on[i] = false;
    }
    audit_tell("roundings", n, n);
    return OK;
}

/* The step as it would be without --keep f8. */
static Status measure_same(Audit *a) {
    int n = a->step.sites.len;
    bool *on = NEW_ARRAY(a->s->arena, bool, n + 1);
    for (int i = 0; i < n; i++) {
        on[i] = !dtype_info[a->step.sites.data[i].dtype].stored;
        a->codes |= !on[i];
    }
    return a->codes ? audit_measure(a, &a->step, on, a->batches, NULL, false,
                                    &a->same)
                    : OK;
}

/* ---- lines --------------------------------------------------------------- */

/* The share of the original difference that a step still has: the larger of
   loss and gradient. A difference of up to four fp32 roundings counts as
   none. */
double audit_left(const Audit *a, const Apart *x) {
    const double none = 4 * 0x1p-24;
    double loss = a->all.loss > none ? x->loss / a->all.loss : 0;
    double grad = a->all.grad > none ? x->grad / a->all.grad : 0;
    if (!isfinite(a->all.loss)) loss = isfinite(x->loss) ? 0 : 1;
    if (!isfinite(a->all.grad)) grad = isfinite(x->grad) ? 0 : 1;
    return fmax(loss, grad);
}

double audit_weight(const Audit *a, int site, bool by_bytes) {
    const Apart *x = &a->alone[site];
    double l = a->first.loss > 0 ? x->loss / a->first.loss : 0;
    double g = a->first.grad > 0 ? x->grad / a->first.grad : 0;
    if (!isfinite(x->loss) || !isfinite(x->grad)) return INFINITY;
    double w = l * l + g * g;
    return by_bytes ? w / (double)(1 + a->step.sites.data[site].bytes) : w;
}

static bool chosen(const Audit *a, Str node) {
    for (int i = 0; i < a->nodes.len; i++)
        if (a->nodes.data[i] == node) return true;
    return false;
}

static void audit_choose(Audit *a, Str node) {
    if (node && !chosen(a, node)) vec_push(a->s->arena, &a->nodes, node);
}

/* True if the lines remove a rounding: they name its node, or all readers
   that would round the value themselves. */
static bool spared(const Audit *a, const TwinSite *s) {
    bool all = s->node ? chosen(a, s->node) : s->readers.len > 0;
    for (int i = 0; i < s->readers.len; i++)
        all &= chosen(a, s->readers.data[i]);
    return all;
}

static void add_lines_for(Audit *a, const TwinSite *s) {
    audit_choose(a, s->node);
    for (int i = 0; i < s->readers.len; i++)
        audit_choose(a, s->readers.data[i]);
}

static Status estimate(Audit *a) {
    int n = a->step.sites.len;
    bool *on = NEW_ARRAY(a->s->arena, bool, n + 1);
    for (int i = 0; i < n; i++) on[i] = !spared(a, &a->step.sites.data[i]);
    return audit_measure(a, &a->step, on, a->batches, NULL, false,
                         &a->estimate);
}

/* Bytes of the values whose rounding the lines remove. */
static int64_t spared_bytes(const Audit *a) {
    int64_t sum = 0;
    for (int i = 0; i < a->step.sites.len; i++)
        if (spared(a, &a->step.sites.data[i]))
            sum += a->step.sites.data[i].bytes;
    return sum;
}

/* Sorts roundings by weight, or by weight per byte, largest first. */
static int by_weight(const void *x, const void *y) {
    const double *a = x, *b = y;
    return a[0] < b[0] ? 1 : a[0] > b[0] ? -1 : a[1] < b[1] ? -1 : 1;
}

int *audit_order(const Audit *a, bool by_bytes) {
    int n = a->step.sites.len;
    double(*key)[2] = arena_alloc(a->s->arena, sizeof *key * (size_t)(n + 1));
    int *order = NEW_ARRAY(a->s->arena, int, n + 1);
    for (int i = 0; i < n; i++) {
        key[i][0] = audit_weight(a, i, by_bytes);
        key[i][1] = i;
    }
    qsort(key, (size_t)n, sizeof *key, by_weight);
    for (int i = 0; i < n; i++) order[i] = (int)key[i][1];
    return order;
}

/* The policy lines that remove the first n roundings. */
static Status try_first(Audit *a, const int *order, int n) {
    a->nodes.len = 0;
    for (int i = 0; i < n; i++) add_lines_for(a, &a->step.sites.data[order[i]]);
    return estimate(a);
}

/* Drops nodes as long as the difference stays within `left`. */
static Status drop_nodes(Audit *a, double left) {
    enum { FEW = 12 };
    for (int i = a->nodes.len - 1; i >= 0 && a->nodes.len <= FEW; i--) {
        Str node = a->nodes.data[i];
        a->nodes.data[i] = a->nodes.data[a->nodes.len - 1];
        a->nodes.len--;
        TRY(estimate(a));
        if (audit_left(a, &a->estimate) <= left) continue;
        a->nodes.data[a->nodes.len++] = a->nodes.data[i];
        a->nodes.data[i] = node;
    }
    return OK;
}

/* Takes nodes in this order until at most `left` of the error remains; *done
   is false if all of them do not suffice. */
static Status pick_nodes(Audit *a, bool by_bytes, double left, bool *done) {
    const int *order = audit_order(a, by_bytes);
    int least = 0, most = a->step.sites.len;
    TRY(try_first(a, order, most));
    *done = audit_left(a, &a->estimate) <= left;
    while (*done && least < most) {
        int n = least + (most - least) / 2;
        TRY(try_first(a, order, n));
        if (audit_left(a, &a->estimate) <= left)
            most = n;
        else
            least = n + 1;
    }
    TRY(try_first(a, order, most));
    return *done ? drop_nodes(a, left) : OK;
}

static void make_lines(Audit *a) {
    a->lines.len = 0;
    for (int i = 0; i < a->nodes.len; i++) {
        Setting line = {.text = internf("node %s full", a->nodes.data[i]),
                        .loc = {.file = a->file.path}};
        vec_push(a->s->arena, &a->lines, line);
    }
}

/* The step compiled with the lines. */
static Status measure_lines(Audit *a) {
    Replica r = {0};
    Module *m;
    TRY(audit_module(a->s, &a->file, &a->lines, &m));
    Status st = replica_open(a->s, m, a->objective, a->opt.threads, &r);
    if (st == OK) st = replica_weights(a->s, &r, &a->run);
    if (st == OK)
        st = audit_measure(a, &r, NULL, a->batches, NULL, false, &a->less);
    replica_close(&r);
    TRY(st);
    return audit_bytes(a->s, &a->file, &a->lines, &a->more);
}

/* Drops lines that the measured result does not need, one after the other: a
   line for a node affects more than that node's own roundings. */
static Status drop_lines(Audit *a) {
    const double patience = 10; /* seconds */
    double until = now_seconds() + patience;
    for (int i = a->nodes.len - 1; i >= 0 && now_seconds() < until; i--) {
        Apart less = a->less;
        int64_t more = a->more;
        Str node = a->nodes.data[i];
        if (a->nodes.len == 1) return OK;
        memmove(a->nodes.data + i, a->nodes.data + i + 1,
                sizeof node * (size_t)(a->nodes.len - 1 - i));
        a->nodes.len--;
        make_lines(a);
        TRY(measure_lines(a));
        if (audit_left(a, &a->less) <= 0.5 && a->more <= more) continue;
        vec_push(a->s->arena, &a->nodes, node);
        memmove(a->nodes.data + i + 1, a->nodes.data + i,
                sizeof node * (size_t)(a->nodes.len - 1 - i));
        a->nodes.data[i] = node;
        a->less = less;
        a->more = more;
    }
    make_lines(a);
    return OK;
}

/* Tries two orders and takes the one that widens fewer bytes. The chosen
   lines may change more than the roundings suggest, so the result is
   measured. */
static Status find_lines(Audit *a) {
    static const double aims[] = {0.8, 0.65, 0.5, 0.35, 0.2, 0.1};
    const Settings none = {0};
    TRY(audit_bytes(a->s, &a->file, &none, &a->bytes));
    for (size_t i = 0; i < sizeof aims / sizeof *aims; i++) {
        bool by_error, by_bytes;
        a->nodes.len = 0;
        TRY(pick_nodes(a, true, aims[i], &by_bytes));
        int64_t bytes = spared_bytes(a);
        Str *first = a->nodes.data;
        int n = a->nodes.len, cap = a->nodes.cap;
        a->nodes.data = NULL;
        a->nodes.len = a->nodes.cap = 0;
        TRY(pick_nodes(a, false, aims[i], &by_error));
        if (by_bytes && (!by_error || bytes < spared_bytes(a))) {
            a->nodes.data = first;
            a->nodes.len = n;
            a->nodes.cap = cap;
        }
        if (!a->nodes.len) return OK;
        make_lines(a);
        TRY(measure_lines(a));
        if (audit_left(a, &a->less) <= 0.5) return drop_lines(a);
        if (!by_error && !by_bytes) return OK;
    }
    return OK;
}

static Status write_policy(const Audit *a) {
    StrBuf sb = {0};
    if (!a->policy) return OK;
    sb_printf(&sb,
              "# ampc audit: loss %.1e, gradient %.1e from fp32 without "
              "these lines, %.1e and %.1e with them\n",
              a->all.loss, a->all.grad, a->less.loss, a->less.grad);
    for (int i = 0; i < a->lines.len; i++)
        sb_printf(&sb, "%s\n", a->lines.data[i].text);
    Status st =
        file_text(&a->s->diag, a->policy, sb.data, sb.len, NULL, "--policy");
    sb_free(&sb);
    return st;
}

/* ---- the command --------------------------------------------------------- */

static Status audit_usage(Audit *a, const char *what, const char *arg) {
    fail(&a->s->diag, (Loc){0}, "%s '%s' (see ampc audit --help)", what, arg);
    return ERR_USAGE;
}

static Status take_audit_arg(Audit *a, char **argv, int left, int *used) {
    if (argv[0][0] != '-') {
        if (a->opt.module)
            return audit_usage(a, "unexpected argument", argv[0]);
        a->opt.module = argv[0];
        *used = 1;
        return OK;
    }
    if (option_of_run("audit", argv[0]))
        return run_arg(&a->opt, &a->s->diag, argv, left, used);
    TRY(session_own(a->s, argv, left, used));
    return *used ? OK : audit_usage(a, "unknown option", argv[0]);
}

static Status audit_take_args(Audit *a, int argc, char **argv) {
    const OwnOptions *o = &a->s->own;
    a->s->command = "audit";
    for (int i = 1, used; i < argc; i += used)
        TRY(take_audit_arg(a, argv + i, argc - i, &used));
    if (!a->opt.module)
        return audit_usage(a, "a module is missing after", argv[0]);
    a->json = o->json;
    a->policy = o->policy;
    if (o->objective) a->objective = intern(o->objective);
    if (o->batches) {
        char *end;
        a->batches = strtoll(o->batches, &end, 10);
        if (*end || a->batches < 1 || a->batches > 1000000)
            return audit_usage(a, "--batches: no number from 1:", o->batches);
    }
    return OK;
}

static Status claim_audit_files(Audit *a) {
    Diag *d = &a->s->diag;
    FileGuard *g = a->s->opt.guard;
    TRY(file_reads(d, g, a->opt.module, "the module"));
    for (int i = 0; i < a->opt.load.n; i++)
        TRY(file_reads(d, g, a->opt.load.at[i], "--load"));
    return file_writes(d, g, a->policy, "--policy");
}

static Status audit_open_run(Audit *a) {
    Run *r = &a->run;
    r->opt = &a->opt;
    r->world = 1;
    TRY(run_open_code(r));
    TRY(run_session(r));
    if (r->comm)
        return fail(&r->diag, (Loc){0}, "ampc audit is for one process");
    if (!r->info.trains)
        return fail(&r->diag, (Loc){.file = a->opt.module},
                    "compiled without a loss: it has no gradients");
    for (uint32_t i = 0; *a->objective; i++) {
        const char *name = run_objective(r, i);
        if (!name)
            return fail(&r->diag, (Loc){.file = a->opt.module},
                        "--objective: it has none called '%s'", a->objective);
        if (!strcmp(name, a->objective)) break;
    }
    if (!*a->objective) a->objective = intern(run_objective(r, 0));
    if (*a->objective && r->api->objective(r->s, a->objective) != AMPC_OK)
        return run_api_fail(r, "--objective");
    return run_load(r);
}

static Status audit_prepare(Audit *a) {
    Session *s = a->s;
    Module *m;
    Status st = audit_open_run(a);
    if (a->run.diag.text.data) sb_puts(&s->diag.text, a->run.diag.text.data);
    TRY(st);
    TRY(feeds_open(&s->diag, s->opt.guard, a->run.api,
                   program_name(PROGRAM_MICRO, a->objective), &a->opt.feed,
                   &a->feed));
    int64_t size = a->feed.batch > 0 ? a->feed.batch : 1;
    int64_t most = (a->feed.samples + size - 1) / size;
    if (a->batches > most) a->batches = most;
    TRY(audit_module(s, &a->file, NULL, &m));
    TRY(replica_open(s, m, a->objective, a->opt.threads, &a->step));
    TRY(replica_weights(s, &a->step, &a->run));
    size_t n = (size_t)a->step.count + 1, batches = (size_t)a->batches;
    a->grad = malloc(n * sizeof *a->grad);
    a->ref = malloc(n * batches * sizeof *a->ref);
    if (!a->grad || !a->ref)
        return fail(&s->diag, (Loc){0},
                    "out of memory: %zu gradients of each of %zu batches", n,
                    batches);
    a->loss = NEW_ARRAY(s->arena, double, a->batches);
    a->wide = NEW_ARRAY(s->arena, double, a->batches);
    a->param = NEW_ARRAY(s->arena, double, a->step.grads.len + 1);
    a->part = NEW_ARRAY(s->arena, double, a->step.grads.len + 1);
    return OK;
}

static Status audit(Audit *a) {
    StrBuf sb = {0};
    TRY(claim_audit_files(a));
    TRY(sections_open(a->s->arena, &a->s->diag, a->opt.module, &a->file));
    a->opened = true;
    TRY(audit_prepare(a));
    TRY(settle_scale(a));
    TRY(measure_wide(a));
    TRY(audit_measure(a, &a->step, NULL, 1, NULL, false, &a->first));
    TRY(audit_measure(a, &a->step, NULL, a->batches, a->loss, true, &a->all));
    TRY(measure_alone(a));
    TRY(measure_same(a));
    TRY(audit_budget(a->s, &a->file, &a->budget));
    if (a->step.sites.len && !a->budget) TRY(find_lines(a));
    TRY(measure_own(a)); /* the last operand: random numbers */
    if (a->json)
        audit_put_json(a, &sb);
    else
        audit_put_text(a, &sb);
    fwrite(sb.data, 1, sb.len, stdout);
    sb_free(&sb);
    return write_policy(a);
}

int cmd_audit(int argc, char **argv) {
    Session s;
    session_init(&s);
    Audit a = {.s = &s, .objective = intern(""), .batches = 2};
    run_options_init(&a.opt);
    a.opt.quiet = true;
    Status st = audit_take_args(&a, argc, argv);
    if (st == OK) st = audit(&a);
    replica_close(&a.step);
    feeds_free(&a.feed);
    free(a.ref);
    free(a.grad);
    if (a.run.s) a.run.api->close(a.run.s);
    if (a.run.lib) dlclose(a.run.lib);
    sb_free(&a.run.diag.text);
    if (a.opened) sections_close(&a.file);
    return session_end(&s, st);
}
