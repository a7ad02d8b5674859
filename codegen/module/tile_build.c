/* SPDX-License-Identifier: Apache-2.0 */
/* tile_build.c: CUDA Tile kernels to cubins (emit.h).  NVRTC makes Tile IR of
   their text, the same for all architectures; tileiras, a program of the same
   toolkit, makes a cubin of it, without a GPU. Its remarks say which
   instruction computes each product. */
#define _GNU_SOURCE
#include "codegen/cuda/cuda.h"
#include "ir/base/files.h"

#include <stdlib.h>
#include <string.h>

static CompileKey key_of_tile(const TileTools *t, const CudaSource *c,
                              const char *arch, Arena *a) {
    CompileKey k = compile_key("tile 1");
    CudaHeaders h = cuda_headers(a, c->tile_unit.text);
    for (int i = 0; i < NTOOLS; i++) compile_key_file(&k, t->file[i]);
    for (int i = 0; i < h.len; i++) compile_key_text(&k, h.data[i].text);
    compile_key_text(&k, c->tile_unit.text);
    compile_key_text(&k, arch);
    return k;
}

/* ---- what tileiras says -------------------------------------------------- */

/* The rest of the first line behind `mark`; NULL: there is none. */
static const char *remark_of(Arena *a, const char *text, const char *mark) {
    const char *at = strstr(text, mark);
    if (!at) return NULL;
    at += strlen(mark);
    return arena_printf(a, "%.*s", (int)strcspn(at, "\n"), at);
}

/* Remarks name a function, and then the instruction of its product. */
static void read_remarks(Arena *a, const char *arch, const char *log,
                         CudaSource *c) {
    static const char mark[] = "in function: ";
    for (const char *at = log; (at = strstr(at, mark));) {
        at += sizeof mark - 1;
        const char *next = strstr(at, mark);
        const char *part = arena_printf(
            a, "%.*s", next ? (int)(next - at) : (int)strlen(at), at);
        const char *how = remark_of(a, part, "Instruction = ");
        const char *shape = remark_of(a, part, "Shape = ");
        TileUse u = {.arch = arch,
                     .kernel =
                         arena_printf(a, "%.*s", (int)strcspn(at, ":\n"), at)};
        if (!how) continue;
        u.instruction = shape ? arena_printf(a, "%s %s", how, shape) : how;
        vec_push(a, &c->tile_uses, u);
    }
}

/* ---- all ----------------------------------------------------------------- */

/* An image in the cache: the remarks, a NUL, the cubin. */
static Status take_image(Diag *d, Arena *a, const char *dir, const char *arch,
                         StrBuf *kept) {
    size_t n, log_n;
    char *log = read_file(d, arena_printf(a, "%s/%s.log", dir, arch), &log_n);
    char *data = read_file(d, arena_printf(a, "%s/%s.cubin", dir, arch), &n);
    if (log) sb_putn(kept, log, strnlen(log, log_n));
    sb_putn(kept, "", 1);
    if (data) sb_putn(kept, data, n);
    Status s = log && data ? OK : ERR_USER;
    free(log);
    free(data);
    return s;
}

/* Returns the remarks. */
static const char *use_image(Arena *a, CudaSource *c, int i, const char *kept,
                             size_t n) {
    size_t log = strlen(kept) + 1;
    c->tile_images[i] = (CudaImage){arena_dup(a, kept + log, n - log), n - log};
    return arena_dup(a, kept, log);
}

/* tileiras 13.5 crashed in one of some forty runs, and not again. */
static CcJob tileiras_job(Arena *a, const TileTools *t, const char *arch) {
    return (CcJob){.arch = "x86-64",
                   .program = t->file[TOOL_TILEIRAS],
                   .variable = arena_printf(a, "CUDA_HOME=%s", t->home),
                   .words = arena_printf(a,
                                         "--gpu-name %s --remarks=tensorcore "
                                         "-o %s.cubin tile.ir",
                                         arch, arch),
                   .log = arena_printf(a, "%s.log", arch),
                   .again = 2};
}

Status tile_build(Diag *d, Arena *a, const char *tools, const char *cache,
                  const char *dir, CudaSource *c) {
    TileTools t;
    CudaImage ir;
    int n = c->tile_archs.len;
    VEC(CcJob) jobs = {0};
    VEC(int) of = {0};
    const char **remarks = NEW_ARRAY(a, const char *, n + 1);
    TRY(tile_tools(d, a, tools, &t));
    c->tile_images = NEW_ARRAY(a, CudaImage, n + 1);
    for (int i = 0; i < n; i++) {
        size_t size;
        const char *arch = c->tile_archs.data[i];
        char *kept =
            compile_cache_get(cache, key_of_tile(&t, c, arch, a), &size);
        if (kept) {
            remarks[i] = use_image(a, c, i, kept, size);
        } else {
            vec_push(a, &jobs, tileiras_job(a, &t, arch));
            vec_push(a, &of, i);
        }
        free(kept);
    }
    if (jobs.len) {
        TRY(nvrtc_tile_ir(d, a, t.file[TOOL_NVRTC], &c->tile_unit, &ir));
        TRY(file_text(d, arena_printf(a, "%s/tile.ir", dir), ir.data, ir.size,
                      NULL, NULL));
        cc_start(a, NULL, dir, jobs.data, jobs.len);
        TRY(cc_wait(d, a, NULL, dir, jobs.data, jobs.len));
    }
    for (int i = 0; i < jobs.len; i++) {
        StrBuf sb = {0};
        const char *arch = c->tile_archs.data[of.data[i]];
        Status s = take_image(d, a, dir, arch, &sb);
        if (s == OK)
            remarks[of.data[i]] = use_image(a, c, of.data[i], sb.data, sb.len);
        if (s == OK)
            compile_cache_put(cache, key_of_tile(&t, c, arch, a), sb.data,
                              sb.len);
        sb_free(&sb);
        TRY(s);
    }
    for (int i = 0; i < n; i++) /* in one order, whatever the cache had */
        read_remarks(a, c->tile_archs.data[i], remarks[i], c);
    return OK;
}
