/* SPDX-License-Identifier: Apache-2.0 */
/* run_profile.c: --profile: a Chrome trace of all steps, and the share of a
   GPU's peak that training reached. */
#define _POSIX_C_SOURCE 200809L
#include "frontend/run/run_cmd.h"
#include "runtime/cuda/peak.h"

#include <string.h>

/* ---- the trace ----------------------------------------------------------- */

/* Viewers cannot open larger files. */
enum { PROFILE_EVENTS = 1000000 };

/* Each step's share of the program's FLOPs, which all run. */
static void count_work(Run *r, const char *program, uint64_t ns) {
    ampc_program_info p = {.size = sizeof p};
    bool trains = !strncmp(program, "train", 5) ||
                  !strncmp(program, "micro", 5) ||
                  !strncmp(program, "update", 6);
    if (!trains || r->api->program(r->api->module, program, &p) != AMPC_OK ||
        !p.nstep)
        return;
    r->log.flops += p.flops / p.nstep;
    r->log.device_s += (double)ns * 1e-9;
}

static void profile_event(void *ctx, const char *program, const char *step,
                          uint64_t begin, uint64_t end) {
    Run *r = ctx;
    RunLog *log = &r->log;
    if (r->gpu) count_work(r, program, end - begin);
    if (log->events == PROFILE_EVENTS) return;
    if (log->events == 0) log->profile_zero = begin;
    StrBuf sb = {0};
    sb_puts(&sb, log->events++ ? ",\n{" : "\n{");
    sb_put_json_field(&sb, "name", step);
    sb_puts(&sb, ",");
    sb_put_json_field(&sb, "cat", program);
    sb_printf(&sb,
              ",\"ph\":\"X\",\"pid\":1,\"tid\":1,\"ts\":%.3f,"
              "\"dur\":%.3f}",
              (double)(begin - log->profile_zero) / 1e3,
              (double)(end - begin) / 1e3);
    fwrite(sb.data, 1, sb.len, log->profile);
    sb_free(&sb);
}

Status profile_open(Run *r) {
    RunLog *log = &r->log;
    const char *path = r->opt->profile;
    if (outfile_open(&log->trace, path, 0666, r->guard, "--profile"))
        log->profile = outfile_stream(&log->trace);
    if (!log->profile) return file_failed(&r->diag, path, &log->trace);
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", log->profile);
    r->api->profile(r->s, profile_event, r);
    return OK;
}

Status profile_close(Run *r) {
    RunLog *log = &r->log;
    r->api->profile(r->s, NULL, NULL);
    fputs("\n]}\n", log->profile);
    log->profile = NULL;
    return outfile_commit(&log->trace)
               ? OK
               : file_failed(&r->diag, r->opt->profile, &log->trace);
}

/* ---- the summary --------------------------------------------------------- */

void profile_text(const Run *r, StrBuf *sb) {
    const RunLog *log = &r->log;
    if (log->flops <= 0 || log->device_s <= 0 || !log->steps) return;
    double peak = peak_of(r->gpu);
    sb_printf(sb, "on the GPU %.4g ms a step, %.4g TFLOP/s",
              1e3 * log->device_s / (double)log->steps,
              1e-12 * log->flops / log->device_s);
    if (peak > 0)
        sb_printf(sb, ": MFU %.1f %% of %.0f TFLOP/s",
                  100 * log->flops / log->device_s / peak, 1e-12 * peak);
    sb_puts(sb, "\n");
}
