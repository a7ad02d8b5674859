/* SPDX-License-Identifier: Apache-2.0 */
/* run_fetch.c: model outputs, batch after batch, to DIR/NAME.npy.  The files
   get their names when all are complete; otherwise they are removed, with a
   folder made for them. */
#define _POSIX_C_SOURCE 200809L
#include "frontend/run/run_cmd.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/program/dtype.h"

/* One output.  An output with a batch axis appends its rows; one without
   appends one item per batch along a new first axis. */
typedef struct FetchOne {
    ampc_tensor_info t;
    char *path;
    OutFile file;
    FILE *f;    /* over `file` */
    char *data; /* one batch */
    bool rows;
} FetchOne;

struct Fetch {
    FetchOne *one;
    int n;
    int64_t batch;
};

/* NAME with unusual bytes percent-encoded. */
static void put_fetch_name(StrBuf *sb, const char *name) {
    for (const char *p = name; *p; p++) {
        unsigned char c = (unsigned char)*p;
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                     (c >= '0' && c <= '9') || c == '_' || c == '-' ||
                     (c == '.' && strspn(name, ".") <= (size_t)(p - name));
        if (plain)
            sb_putn(sb, p, 1);
        else
            sb_printf(sb, "%%%02X", c);
    }
}

/* NumPy has not the type. */
static bool is_widened(int dtype) {
    const char *npy = dtype_info[dtype].npy;
    return !npy || npy[0] == 'V';
}

static void put_header(const FetchOne *o, int64_t samples, int64_t batch) {
    StrBuf head = {0};
    int64_t dim[AMPC_RANK_LIMIT + 1];
    int rank = o->t.rank, dtype = o->t.dtype;
    memcpy(dim + 1, o->t.shape, (size_t)rank * sizeof *dim);
    if (o->rows)
        dim[1] = o->t.sample_rows * samples;
    else
        dim[0] = batch > 0 ? (samples + batch - 1) / batch : 1;
    npy_header(&head, is_widened(dtype) ? AMPC_DTYPE_F32 : dtype,
               o->rows ? rank : rank + 1, o->rows ? dim + 1 : dim);
    fwrite(head.data, 1, head.len, o->f);
    sb_free(&head);
}

static Status open_fetch_one(Run *r, FetchOne *o, int64_t samples,
                             int64_t batch) {
    StrBuf path = {0};
    sb_printf(&path, "%s/", r->opt->fetch);
    put_fetch_name(&path, o->t.name);
    sb_puts(&path, ".npy");
    o->path = path.data;
    o->rows = o->t.sample_rows > 0;
    o->data = malloc(o->t.bytes ? o->t.bytes : 1);
    if (!o->data) return fail(&r->diag, (Loc){0}, "out of memory");
    if (outfile_open(&o->file, o->path, 0666, r->guard, "--fetch"))
        o->f = outfile_stream(&o->file);
    if (!o->f) return file_failed(&r->diag, o->path, &o->file);
    put_header(o, samples, batch);
    return OK;
}

Status fetch_open(Run *r, const char *program, int64_t samples) {
    ampc_program_info p = {.size = sizeof p};
    r->api->program(r->api->module, program, &p);
    TRY(file_folder(&r->diag, r->opt->fetch, r->guard, "--fetch"));
    Fetch *f = calloc(1, sizeof *f);
    if (f) f->one = calloc(p.noutput + 1, sizeof *f->one);
    if (!f || !f->one) {
        free(f);
        return fail(&r->diag, (Loc){0}, "out of memory");
    }
    f->batch = r->info.batch;
    r->fetch = f;
    for (uint32_t i = 0; i < p.noutput; i++) {
        FetchOne *o = &f->one[f->n];
        o->t.size = sizeof o->t;
        r->api->output(r->api->module, program, i, &o->t);
        if (strncmp(o->t.name, "ampc.", 5) == 0) continue;
        f->n++;
        TRY(open_fetch_one(r, o, samples, f->batch));
    }
    return OK;
}

static void write_wide(FILE *f, int dtype, const char *data, size_t bytes) {
    size_t size = (size_t)dtype_info[dtype].bytes;
    for (size_t i = 0; i < bytes; i += size) {
        float x = (float)float_at((uint32_t)dtype, data + i);
        fwrite(&x, sizeof x, 1, f);
    }
}

Status fetch_batch(Run *r, Fetch *f, int64_t n) {
    for (int i = 0; i < f->n; i++) {
        FetchOne *o = &f->one[i];
        ampc_output out =
            ampc_out(o->t.name, o->data, o->t.bytes, (ampc_dtype)o->t.dtype);
        if (r->api->read_output(r->s, o->t.name, &out) != AMPC_OK)
            return run_api_fail(r, o->t.name);
        size_t bytes = o->t.bytes;
        if (o->rows)
            bytes =
                bytes / (size_t)o->t.shape[0] * (size_t)(o->t.sample_rows * n);
        if (is_widened(o->t.dtype))
            write_wide(o->f, o->t.dtype, o->data, bytes);
        else
            fwrite(o->data, 1, bytes, o->f);
    }
    return OK;
}

static void fetch_free(Fetch *f) {
    for (int i = 0; i < f->n; i++) {
        outfile_abort(&f->one[i].file);
        free(f->one[i].path);
        free(f->one[i].data);
    }
    free(f->one);
    free(f);
}

void fetch_abort(Run *r) {
    if (!r->fetch) return;
    fetch_free(r->fetch);
    r->fetch = NULL;
    file_guard_undo(r->guard, "--fetch");
}

Status fetch_close(Run *r) {
    Fetch *f = r->fetch;
    Status st = OK;
    if (!f) return OK;
    for (int i = 0; i < f->n && st == OK; i++)
        if (!outfile_ready(&f->one[i].file))
            st = file_failed(&r->diag, f->one[i].path, &f->one[i].file);
    for (int i = 0; i < f->n && st == OK; i++) {
        FetchOne *o = &f->one[i];
        if (outfile_commit(&o->file))
            file_guard_made(r->guard, o->path, "--fetch");
        else
            st = file_failed(&r->diag, o->path, &o->file);
    }
    TRY(st);
    fetch_free(f);
    r->fetch = NULL;
    return OK;
}
