/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_audit_report.c: what `ampc audit` has measured, as text and as JSON.   */
#include <math.h>

#include "frontend/cli/cmd_audit.h"

static const char *audit_part_of(const TwinSite *s) {
    return s->parameter ? "weight" : s->backward ? "backward" : "forward";
}

/* Prints the place of a rounding: the node, or the nodes whose products read
   the value. */
static void put_audit_place(const TwinSite *s, StrBuf *sb) {
    if (s->node) {
        sb_put_escaped(sb, s->node);
        return;
    }
    for (int i = 0; i < s->readers.len && i < 3; i++) {
        sb_puts(sb, i ? ", " : "read by ");
        sb_put_escaped(sb, s->readers.data[i]);
    }
}

static void put_sites(const Audit *a, StrBuf *sb) {
    enum { MOST = 20 };
    const int *order = audit_order(a, false);
    int n = a->step.sites.len;
    double sum = 0;
    for (int i = 0; i < n; i++) sum += audit_weight(a, i, false);
    sb_puts(sb, "\nrounded, each alone on the first batch (share: "
                "of the squares of both)\n"
                "    share  gradient      loss       bytes  what\n");
    for (int i = 0; i < n && i < MOST; i++) {
        const TwinSite *s = &a->step.sites.data[order[i]];
        const Apart *x = &a->alone[order[i]];
        sb_printf(sb, "  %5.1f %%  %8.1e  %8.1e  %10lld  %s %s ",
                  isfinite(sum) && sum > 0
                      ? 100 * audit_weight(a, order[i], false) / sum
                      : 0,
                  x->grad, x->loss, (long long)s->bytes,
                  dtype_info[s->dtype].text, audit_part_of(s));
        sb_put_escaped(sb, s->value);
        if (s->node || s->readers.len) sb_puts(sb, "  (");
        put_audit_place(s, sb);
        sb_puts(sb, s->node || s->readers.len ? ")\n" : "\n");
    }
    if (n > MOST)
        sb_printf(sb, "  and %d that change less (--json has all)\n", n - MOST);
}

static void put_parameters(const Audit *a, StrBuf *sb) {
    const double zero =
        1e-12; /* square of the error that fp32 leaves in a sum that is 0 */
    sb_puts(sb, "\n   apart  gradient of\n");
    for (int i = 0; i < a->step.grads.len; i++) {
        bool none = a->part[i] < zero;
        if (none)
            sb_puts(sb, "       -  ");
        else
            sb_printf(sb, "%8.1e  ", a->param[i]);
        sb_put_escaped(sb, a->step.grads.data[i].name);
        sb_puts(sb, none ? "  (about 0, in fp32, too)\n" : "\n");
    }
}

static void put_lines(const Audit *a, StrBuf *sb) {
    if (a->budget) {
        sb_puts(sb, "\ncompiled with an error budget: a smaller one makes it "
                    "less, not policy lines\n");
        return;
    }
    if (!a->lines.len) {
        sb_puts(sb, "\nno policy line makes it less\n");
        return;
    }
    double left = audit_left(a, &a->less);
    sb_printf(sb,
              "\npolicy lines that %s, measured with them: loss %.1e, "
              "gradient %.1e, %.2f MB a step where it is %.2f (%+.1f %%)\n",
              left <= 0.5 ? "halve it" : "make it less, all that there are",
              a->less.loss, a->less.grad, (double)a->more / 1e6,
              (double)a->bytes / 1e6,
              100 * ((double)a->more / (double)a->bytes - 1));
    for (int i = 0; i < a->lines.len; i++)
        sb_printf(sb, "  %s\n", a->lines.data[i].text);
    if (a->policy)
        sb_printf(sb, "written to %s, for ampc MODEL --amp-policy %s\n",
                  a->policy, a->policy);
}

static void put_scale(const Audit *a, StrBuf *sb) {
    if (a->overflows)
        sb_printf(sb,
                  "at loss scale %g the gradient overflows: training skips "
                  "this step (see --loss-scale)\n",
                  (double)a->scale);
    else if (a->scale < a->first_scale)
        sb_printf(sb,
                  "loss scale %g: at the module's %g the gradient overflows, "
                  "and training skips steps until the scale is as small\n",
                  (double)a->scale, (double)a->first_scale);
}

void audit_put_text(const Audit *a, StrBuf *sb) {
    double own = 0, wide = 0;
    for (int64_t b = 0; b < a->batches; b++) {
        own += a->loss[b] / (double)a->batches;
        wide += a->wide[b] / (double)a->batches;
    }
    sb_printf(sb,
              "%s: %lld batch%s of %lld, beside fp32 from the same weights "
              "(relative, root mean square)\n"
              "loss      %.1e  (%.9g, fp32 %.9g)\ngradient  %.1e\n"
              "the module itself on the first batch: loss %.9g, its step "
              "compiled anew %.9g\n",
              a->file.path, (long long)a->batches, a->batches > 1 ? "es" : "",
              (long long)a->feed.batch, a->all.loss, own, wide, a->all.grad,
              a->own, a->loss[0]);
    if (a->codes)
        sb_printf(sb, "without --keep f8: loss %.1e, gradient %.1e\n",
                  a->same.loss, a->same.grad);
    put_scale(a, sb);
    put_parameters(a, sb);
    if (!a->step.sites.len) {
        sb_puts(sb, "\nnothing is rounded to 16 bits or codes\n");
        return;
    }
    put_sites(a, sb);
    put_lines(a, sb);
}

static void put_audit_number(StrBuf *sb, const char *key, double v) {
    if (isfinite(v))
        sb_printf(sb, ",\"%s\":%.9g", key, v);
    else
        sb_printf(sb, ",\"%s\":null", key);
}

static void put_apart(StrBuf *sb, const Apart *x) {
    put_audit_number(sb, "loss", x->loss);
    put_audit_number(sb, "gradient", x->grad);
}

void audit_put_json(const Audit *a, StrBuf *sb) {
    const int *order = audit_order(a, false);
    sb_puts(sb, "{");
    sb_put_json_field(sb, "module", a->file.path);
    sb_printf(sb, ",\"batches\":%lld", (long long)a->batches);
    put_apart(sb, &a->all);
    put_audit_number(sb, "own_loss", a->own);
    put_audit_number(sb, "first_loss", a->loss[0]);
    put_audit_number(sb, "first_loss_fp32", a->wide[0]);
    if (a->codes) {
        sb_printf(sb, ",\"without_codes\":{\"roundings\":%d",
                  a->step.sites.len - a->codes);
        put_apart(sb, &a->same);
        sb_puts(sb, "}");
    }
    if (a->scale > 0)
        sb_printf(sb,
                  ",\"loss_scale\":%.9g,\"first_loss_scale\":%.9g,"
                  "\"overflows\":%s",
                  (double)a->scale, (double)a->first_scale,
                  a->overflows ? "true" : "false");
    sb_puts(sb, ",\n\"parameters\":[");
    for (int i = 0; i < a->step.grads.len; i++) {
        sb_puts(sb, i ? ",\n{" : "{");
        sb_put_json_field(sb, "name", a->step.grads.data[i].name);
        put_audit_number(sb, "gradient", a->param[i]);
        sb_puts(sb, "}");
    }
    sb_puts(sb, "],\n\"roundings\":[");
    for (int i = 0; i < a->step.sites.len; i++) {
        const TwinSite *s = &a->step.sites.data[order[i]];
        sb_puts(sb, i ? ",\n{" : "{");
        sb_put_json_field(sb, "value", s->value);
        sb_puts(sb, ",");
        sb_put_json_field(sb, "node", s->node);
        sb_printf(sb, ",\"dtype\":\"%s\",\"part\":\"%s\",\"bytes\":%lld",
                  dtype_info[s->dtype].text, audit_part_of(s),
                  (long long)s->bytes);
        put_apart(sb, &a->alone[order[i]]);
        sb_puts(sb, "}");
    }
    sb_puts(sb, "],\n\"policy\":[");
    for (int i = 0; i < a->lines.len; i++) {
        sb_puts(sb, i ? "," : "");
        sb_put_json_string(sb, a->lines.data[i].text);
    }
    sb_puts(sb, "]");
    if (a->lines.len) {
        sb_printf(sb, ",\"bytes\":%lld,\"with\":{\"bytes\":%lld",
                  (long long)a->bytes, (long long)a->more);
        put_apart(sb, &a->less);
        sb_puts(sb, "}");
    }
    sb_puts(sb, "}\n");
}
