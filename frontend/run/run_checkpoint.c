/* SPDX-License-Identifier: Apache-2.0 */
/* run_checkpoint.c: checkpoints of a run: the position in the data that they
   hold, saving, the copies of --keep, and what --resume reads. */
#define _POSIX_C_SOURCE 200809L
#include "frontend/run/run_cmd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ir/base/leave.h"

/* ---- the cursor ---------------------------------------------------------- */

/* ,"KEY":"TEXT", or nothing for NULL. */
static void put_said(StrBuf *sb, const char *key, const char *text) {
    if (!text) return;
    sb_puts(sb, ",");
    sb_put_json_field(sb, key, text);
}

/* All texts of --augment; NULL: none. For free(). */
static char *augment_text(const Run *r) {
    StrBuf all = {0};
    for (int i = 0; i < r->opt->augment.n; i++)
        sb_printf(&all, "%s%s", i ? " " : "", r->opt->augment.at[i]);
    return all.data;
}

static Status cursor_write(Run *r) {
    StrBuf sb = {0};
    char *augment = augment_text(r);
    sb_printf(&sb,
              "{\"epoch\":%" PRId64 ",\"done\":%" PRId64 ",\"samples\":%" PRId64
              ",\"best\":",
              r->at.epoch, r->at.done, r->at.samples);
    if (isfinite(r->at.best))
        sb_printf(&sb, "%.17g,\"stale\":%" PRId64, r->at.best, r->at.stale);
    else
        sb_puts(&sb, "null");
    if (isfinite(r->at.plateau_best))
        sb_printf(&sb, ",\"plateau\":%.17g,\"bad\":%" PRId64,
                  r->at.plateau_best, r->at.plateau_bad);
    put_said(&sb, "by", r->opt->best_by);
    put_said(&sb, "augment", augment);
    run_classes_put(r, &sb);
    sb_puts(&sb, r->at.due ? ",\"due\":1}" : "}");
    ampc_status status = r->api->set_cursor(r->s, sb.data);
    free(augment);
    sb_free(&sb);
    return status == AMPC_OK ? OK : run_api_fail(r, "cursor");
}

/* True if the checkpoint was made with the same text for that key. */
static bool said_same(const char *cursor, const char *key, const char *text) {
    char begin[40];
    StrBuf want = {0};
    snprintf(begin, sizeof begin, ",\"%s\":\"", key);
    const char *found = strstr(cursor, begin);
    if (!text) return !found;
    put_said(&want, key, text);
    bool same = found && !strncmp(found, want.data, want.len);
    sb_free(&want);
    return same;
}

static void check_augment(Run *r, const char *cursor) {
    char *augment = augment_text(r);
    if (!said_same(cursor, "augment", augment))
        log_note(r, "--augment differs from the checkpoint's: from here on "
                    "samples are changed in another way than before");
    free(augment);
}

void run_cursor_read(Run *r) {
    RunCursor c = {.best = INFINITY, .plateau_best = INFINITY};
    const char *text = r->api->get_cursor(r->s);
    int n = sscanf(text,
                   "{\"epoch\":%" SCNd64 ",\"done\":%" SCNd64
                   ",\"samples\":%" SCNd64 ",\"best\":%lf,\"stale\":%" SCNd64,
                   &c.epoch, &c.done, &c.samples, &c.best, &c.stale);
    if (n < 3 || c.epoch < 0 || c.done < 0 || c.done > c.samples) {
        log_note(r, "the checkpoint has no position in the data: starting at "
                    "the first sample");
        return;
    }
    c.due = strstr(text, "\"due\":1") != NULL;
    if (isfinite(c.best) && !said_same(text, "by", r->opt->best_by)) {
        log_note(r, "--best-by differs from the checkpoint's: the search for "
                    "the best epoch begins anew");
        c.best = INFINITY;
        c.stale = 0;
    }
    if (r->train.n) check_augment(r, text);
    const char *plateau = strstr(text, "\"plateau\":");
    if (plateau && sscanf(plateau, "\"plateau\":%lf,\"bad\":%" SCNd64,
                          &c.plateau_best, &c.plateau_bad) != 2)
        c.plateau_best = INFINITY;
    if (r->train.n && c.samples != r->train.samples) {
        log_note(r,
                 "the checkpoint was made with %lld samples, not %lld: "
                 "starting at the beginning of epoch %lld",
                 (long long)c.samples, (long long)r->train.samples,
                 (long long)c.epoch + 1);
        c.done = 0;
        c.samples = r->train.samples;
    }
    r->at = c;
}

Status run_save(Run *r, const char *path) {
    if (r->train.n) TRY(cursor_write(r));
    leave_hold(); /* an interruption waits until the file is complete */
    ampc_status status = r->api->save(r->s, path);
    leave_release();
    if (status == AMPC_OK) return OK;
    Status st = run_api_fail(r, "--save");
    if (path == r->opt->save && run_can_resume(r->opt))
        fail_note(&r->diag, (Loc){0},
                  "the checkpoint of an earlier save is still there: --resume "
                  "goes on from it");
    return st;
}

/* ---- checkpoints kept ---------------------------------------------------- */

/* The step of "NAME.step-STEP", or -1. */
static int64_t kept_step(const char *file, const char *name) {
    char *end;
    size_t n = strlen(name);
    if (strncmp(file, name, n) != 0 || strncmp(file + n, ".step-", 6) != 0 ||
        !file[n + 6] ||
        strspn(file + n + 6, "0123456789") != strlen(file + n + 6))
        return -1;
    errno = 0;
    long long step = strtoll(file + n + 6, &end, 10);
    return errno ? -1 : step;
}

/* The step of the oldest, or the newest, kept checkpoint up to step `last`;
   count: their number. */
static int64_t end_of_kept(const char *dir, const char *name, bool newest,
                           int64_t last, int64_t *count) {
    int64_t found = -1;
    DIR *d = opendir(dir);
    *count = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        int64_t step = kept_step(e->d_name, name);
        if (step < 0 || step > last) continue;
        ++*count;
        if (found < 0 || (newest ? step > found : step < found)) found = step;
    }
    if (d) closedir(d);
    return found;
}

/* The folder of the checkpoint; returns the file's name in it. */
static const char *kept_beside(const char *save, StrBuf *dir) {
    const char *slash = strrchr(save, '/');
    sb_printf(dir, "%.*s", slash ? (int)(slash + 1 - save) : 2,
              slash ? save : "./");
    return slash ? slash + 1 : save;
}

Status run_resume(Run *r) {
    const char *save = r->opt->save;
    char why[1024];
    StrBuf dir = {0}, path = {0};
    int64_t count, step = INT64_MAX;
    bool done = r->api->resume(r->s, save) == AMPC_OK;
    snprintf(why, sizeof why, "%s", done ? "" : r->api->error(r->s));
    const char *name = kept_beside(save, &dir);
    while (!done && r->opt->keep && step > 0) {
        step = end_of_kept(dir.data, name, true, step - 1, &count);
        if (step < 0) break;
        path.len = 0;
        sb_printf(&path, "%s.step-%lld", save, (long long)step);
        done = r->api->resume(r->s, path.data) == AMPC_OK;
    }
    Status st = OK;
    if (!done)
        st = fail(&r->diag, (Loc){0}, "--resume: %s", why);
    else if (*why)
        fprintf(stderr, "%s; resumed from %s\n", why, path.data);
    sb_free(&dir);
    sb_free(&path);
    return st;
}

bool run_can_resume(const RunOptions *o) {
    StrBuf dir = {0}, prev = {0};
    int64_t count;
    const char *name = kept_beside(o->save, &dir);
    sb_printf(&prev, "%s.prev", o->save);
    bool found =
        access(o->save, F_OK) == 0 || access(prev.data, F_OK) == 0 ||
        (o->keep && end_of_kept(dir.data, name, true, INT64_MAX, &count) >= 0);
    sb_free(&dir);
    sb_free(&prev);
    return found;
}

static Status keep_failed(Run *r, const char *path) {
    return fail(&r->diag, (Loc){.file = intern(path)}, "--keep: %s",
                strerror(errno));
}

static bool copy_all(int from, OutFile *to) {
    char part[1 << 16];
    ssize_t n;
    while ((n = read(from, part, sizeof part)) > 0)
        if (!outfile_write(to, part, (uint64_t)n)) return false;
    return n == 0;
}

static Status copy_file(Run *r, const char *from, const char *path) {
    OutFile to;
    int fd = open(from, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return keep_failed(r, path);
    bool ok = outfile_open(&to, path, 0666, NULL, "--keep") &&
              copy_all(fd, &to) && outfile_commit(&to);
    Status st = ok        ? OK
                : *to.why ? file_failed(&r->diag, path, &to)
                          : keep_failed(r, path);
    outfile_abort(&to);
    close(fd);
    return st;
}

/* Gives the checkpoint a second name, or copies it if the file system has no
   hard links. */
static Status keep_as(Run *r, const char *save, const char *path) {
    if (unlink(path) != 0 && errno != ENOENT) return keep_failed(r, path);
    if (link(save, path) == 0) return OK;
    if (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS ||
        errno == EMLINK)
        return copy_file(r, save, path);
    return keep_failed(r, path);
}

Status run_keep(Run *r, int64_t step) {
    if (r->rank) return OK;
    const char *save = r->opt->save;
    StrBuf path = {0}, dir = {0};
    int64_t count;
    sb_printf(&path, "%s.step-%lld", save, (long long)step);
    const char *name = kept_beside(save, &dir);
    Status st = file_writes(&r->diag, r->guard, path.data, "--keep");
    if (st == OK) st = keep_as(r, save, path.data);
    while (st == OK) {
        int64_t old = end_of_kept(dir.data, name, false, step, &count);
        if (count <= r->opt->keep) break;
        path.len = 0;
        sb_printf(&path, "%s.step-%lld", save, (long long)old);
        if (unlink(path.data) != 0) break;
    }
    sb_free(&path);
    sb_free(&dir);
    return st;
}
