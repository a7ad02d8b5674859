/* SPDX-License-Identifier: Apache-2.0 */
/* emit_so.c: a PLANNED module to one shared library.

   It works in a folder of its own below $TMPDIR: the embedded headers and
   archive, the kernels as one C file per ISA level, the plan as another; all
   compiled at once, linked, copied to a new file beside the output, extended by
   the sections, and renamed. The compiler's input contains no path, date or
   random number, so equal input gives equal bytes.                          */
#define _POSIX_C_SOURCE 200809L
#include "codegen/cuda/cuda.h"
#include "codegen/kernel/kir.h"
#include "codegen/cost/cost.h"
#include "codegen/embed.h"
#include "ir/base/files.h"
#include "ir/base/leave.h"
#include "ir/base/terminal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Before 2.34 threads were in a library of their own (runtime/base/glibc.h).
 */
#ifdef __GLIBC__
#define CC_OLD_GLIBC                                                           \
    " -Wl,--push-state,--no-as-needed -l:libpthread.so.0 -Wl,--pop-state"
#else
#define CC_OLD_GLIBC ""
#endif
#define CC_LINK                                                                \
    "-shared -static-libgcc -o linked.so %s %s -Wl,--build-id=none "           \
    "-Wl,-s -Wl,--gc-sections -Wl,--as-needed -Wl,-z,noexecstack "             \
    "-Wl,-z,relro -Wl,-z,now -Wl,--version-script=exports.map "                \
    "-lm -lpthread -ldl" CC_OLD_GLIBC

typedef struct EmitSo {
    const Options *opt;
    Diag *d;
    Arena *a;
    const EmitInput *in;
    Module *m;
    char *dir;
    const char *cache;  /* folder of compilers' results; NULL: none */
    const char *linked; /* what the linker made, in dir */
    const char *role;   /* the kind of text that is being written; NULL:
                           internal */
    PlanSource src;
    VEC(CcJob) jobs;
    OutFile module, weights;
} EmitSo;

/* ---- files --------------------------------------------------------------- */

static Status io_error(EmitSo *e, const char *path) {
    return fail(e->d, (Loc){.file = intern(path)}, "%s", strerror(errno));
}

static char *in_dir(EmitSo *e, const char *dir, const char *name) {
    return arena_printf(e->a, "%s/%s", dir, name);
}

/* dir/a/b/c.h: makes dir/a and dir/a/b, too */
static Status put_so_text(EmitSo *e, const char *dir, const char *name,
                          const char *text, size_t n) {
    char *path = in_dir(e, dir, name);
    FileGuard *guard = e->role ? e->opt->guard : NULL;
    for (const char *p = path + strlen(dir) + 1; (p = strchr(p, '/')); p++) {
        char *parent = arena_printf(e->a, "%.*s", (int)(p - path), path);
        TRY(file_folder(e->d, parent, guard, e->role));
    }
    return file_text(e->d, path, text, n, guard, e->role);
}

static Status no_temporary(EmitSo *e, const char *why) {
    const char *tmp = getenv("TMPDIR");
    bool given = tmp && *tmp;
    return fail(e->d, (Loc){0}, "a temporary folder in %s: %s; $TMPDIR %s",
                temporary_place(), why,
                given ? "names the place" : "may name another place");
}

/* ---- sources ------------------------------------------------------------- */

/* *n: number of functions; a text without functions is not written. */
static Status put_kernels(EmitSo *e, const char *dir, const char *name,
                          const IsaLevel *l, KernelPart part, int *n) {
    StrBuf sb = {0};
    *n = print_c_kernels(e->src.kernels, &sb, l->prefix, part);
    Status s = *n ? put_so_text(e, dir, name, sb.data, sb.len) : OK;
    sb_free(&sb);
    return s;
}

static Status put_headers(EmitSo *e, const char *dir) {
    for (size_t i = 0; i < embed_nfile; i++) {
        const EmbedFile *f = &embed_files[i];
        const char *end = strrchr(f->name, '.');
        if (!strncmp(f->name, "runtime/cuda/", 13) ||
            !strncmp(f->name, "runtime/portable/", 17) ||
            (end && (!strcmp(end, ".c") || !strcmp(end, ".txt"))))
            continue;
        TRY(put_so_text(e, dir, f->name, f->data, f->size));
    }
    return OK;
}

/* The files that a unit includes. */
static Status put_includes(EmitSo *e, const char *dir, const CudaUnit *u) {
    CudaHeaders h = cuda_headers(e->a, u->text);
    for (int i = 0; i < h.len; i++)
        TRY(put_so_text(e, dir, h.data[i].name, h.data[i].text,
                        h.data[i].size));
    return OK;
}

/* Units include the same files, the unit of CUDA Tile another one. */
static Status put_units(EmitSo *e, const char *dir) {
    const CudaSource *c = e->src.cuda;
    for (int i = 0; i < c->units.len; i++) {
        const CudaUnit *u = &c->units.data[i];
        if (i == 0) TRY(put_includes(e, dir, u));
        TRY(put_so_text(e, dir, arena_printf(e->a, "unit%d.cu", i), u->text,
                        u->size));
    }
    if (!c->tiles.len) return OK;
    TRY(put_includes(e, dir, &c->tile_unit));
    return put_so_text(e, dir, "tile.cu", c->tile_unit.text, c->tile_unit.size);
}

/* Readable copies: for --emit-c one set of kernels, since levels differ in
   compiler flags only; for --emit-cuda the units; and the headers that these
   include. */
static Status put_readable(EmitSo *e) {
    const char *dir = e->opt->emit_c;
    e->role = "--emit-c";
    if (dir) {
        TRY(file_folder(e->d, dir, e->opt->guard, e->role));
        TRY(put_headers(e, dir));
        const IsaLevel *l = isa_levels;
        int n;
        while (l->isa && !isa_compiled(e->opt, l)) l++;
        if (l->isa)
            TRY(put_kernels(e, dir,
                            arena_printf(e->a, "%skernels.c", l->prefix), l,
                            (KernelPart){KERNELS_ALL, 0, 1}, &n));
        TRY(put_so_text(e, dir, "plan.c", e->src.text.data, e->src.text.len));
    }
    if (!(dir = e->opt->emit_cuda)) return OK;
    e->role = "--emit-cuda";
    TRY(file_folder(e->d, dir, e->opt->guard, e->role));
    return put_units(e, dir);
}

/* Writes kernels of a level, in files that begin with `name`, and adds the jobs
   that compile them. */
static Status put_kernel_parts(EmitSo *e, const IsaLevel *l, const char *name,
                               KernelKinds kinds, int parts) {
    for (KernelPart p = {kinds, 0, parts}; p.part < parts; p.part++) {
        char *base = arena_printf(e->a, "%skernels%d", name, p.part);
        CcJob j = {.arch = isa_arch(e->opt),
                   .source = arena_printf(e->a, "%s.c", base),
                   .object = arena_printf(e->a, "%s.o", base),
                   .log = arena_printf(e->a, "%s.log", base)};
        int n;
        TRY(put_kernels(e, e->dir, j.source, l, p, &n));
        if (n == 0) continue;
        j.words = arena_printf(
            e->a, KERNEL_CFLAGS "%s " CC_COMMON " %s " KERNEL_CALLS " %s -o %s",
            e->opt->quick ? KERNEL_QUICK : "", l->flags, l->prefix, j.source,
            j.object);
        vec_push(e->a, &e->jobs, j);
    }
    return OK;
}

/* Levels are compiled side by side. A single one is in two parts, so that two
   cores compile it. */
static Status put_all_parts(EmitSo *e) {
    int n = 0;
    for (const IsaLevel *l = isa_levels; l->isa; l++)
        n += isa_compiled(e->opt, l);
    for (const IsaLevel *l = isa_levels; l->isa; l++)
        if (isa_compiled(e->opt, l))
            TRY(put_kernel_parts(e, l, l->prefix, KERNELS_LARGE,
                                 n > 1 ? 1 : 2));
    return n ? put_kernel_parts(e, isa_least(e->opt), "small_", KERNELS_SMALL,
                                1)
             : OK;
}

static Status put_inputs(EmitSo *e) {
    char *map =
        arena_printf(e->a, "{ global: %s; local: *; };\n", e->opt->symbol);
    TRY(put_headers(e, e->dir));
    TRY(put_all_parts(e));
    TRY(put_so_text(e, e->dir, "plan.c", e->src.text.data, e->src.text.len));
    TRY(put_so_text(e, e->dir, "exports.map", map, strlen(map)));
    if (!isa_is_here(isa_arch(e->opt))) return OK;
    return put_so_text(e, e->dir, "runtime.a", (const char *)embed_runtime_a,
                       embed_runtime_a_size);
}

/* Writes all input of the compiler to its own folder. A failure names that
   folder's place, not the file. */
static Status put_sources(EmitSo *e) {
    Diag d = {0}, *outer = e->d;
    e->role = NULL;
    e->dir = arena_printf(e->a, "%s/ampc-XXXXXX", temporary_place());
    if (!leave_make_folder(e->dir)) return no_temporary(e, strerror(errno));
    e->d = &d;
    Status s = put_inputs(e);
    e->d = outer;
    const char *why = d.text.data ? strstr(d.text.data, "error: ") : NULL;
    if (why)
        why = arena_printf(e->a, "%.*s", (int)strcspn(why + 7, "\n"), why + 7);
    if (s != OK) no_temporary(e, why ? why : "not written");
    sb_free(&d.text);
    return s;
}

/* ---- compile and link ---------------------------------------------------- */

/* NVRTC runs on threads of this process, concurrently with the C compilers. */
static Status compile_all(EmitSo *e) {
    CudaSource *c = e->src.cuda;
    char *objects = "plan.o";
    const char *arch = isa_arch(e->opt);
    bool is_object = emit_is_object(e->in->path);
    CcJob plan = {.arch = arch,
                  .words = CC_PLAN " plan.c -o plan.o",
                  .source = "plan.c",
                  .object = "plan.o",
                  .log = "plan.log"};
    for (int i = 0; i < e->jobs.len; i++)
        objects = arena_printf(e->a, "%s %s", objects, e->jobs.data[i].object);
    vec_push(e->a, &e->jobs, plan);
    doing(c && c->archs.len ? "compiling kernels for the CPU and the GPU"
                            : "compiling kernels");
    cc_start(e->a, e->cache, e->dir, e->jobs.data, e->jobs.len);
    Status cuda = OK;
    if (c && c->archs.len)
        cuda =
            nvrtc_build(e->d, e->a, e->cache, e->opt->quick, c->units.data,
                        c->units.len, c->archs.data, c->archs.len, &c->build);
    TRY(cc_wait(e->d, e->a, e->cache, e->dir, e->jobs.data, e->jobs.len));
    TRY(cuda);
    if (c && c->tiles.len)
        TRY(tile_build(e->d, e->a, e->opt->tile, e->cache, e->dir, c));
    if (!isa_is_here(arch))
        TRY(emit_runtime(e->opt, e->d, e->a, e->cache, e->dir, is_object));
    compile_cache_trim(e->cache, COMPILE_CACHE_MOST);
    doing("linking");
    if (is_object)
        return emit_object(e->opt, e->d, e->a, e->dir, e->in->path, &e->src,
                           objects, &e->linked);
    e->linked = "linked.so";
    CcJob link = {.arch = arch,
                  .words = arena_printf(e->a, CC_LINK, objects,
                                        emit_runtime_name(e->opt)),
                  .log = "link.log"};
    cc_start(e->a, NULL, e->dir, &link, 1);
    return cc_wait(e->d, e->a, NULL, e->dir, &link, 1);
}

/* ---- the output file ----------------------------------------------------- */

static void put_sections(EmitSo *e, SectionWriter *w) {
    const CudaSource *c = e->src.cuda;
    int nunit = c && c->archs.len ? c->units.len : 0;
    weights_section(w, &e->src);
    if (e->opt->sidecar_weights) {
        section_begin(w, "sidecar");
        section_put(w, &e->src.sidecar, sizeof e->src.sidecar);
        section_end(w);
    }
    for (int i = 0; i < (nunit ? nunit * c->archs.len : 0); i++) {
        section_begin(w, arena_printf(e->a, "cuda:%s:%d",
                                      c->archs.data[i / nunit], i % nunit));
        section_put(w, c->build.image[i].data, c->build.image[i].size);
        section_end(w);
    }
    for (int i = 0; i < nunit; i++)
        section_add_text(w, arena_printf(e->a, "txt:cuda:%d", i),
                         c->units.data[i].text, c->units.data[i].size);
    for (int i = 0; nunit && c->tiles.len && i < c->tile_archs.len; i++) {
        section_begin(w, arena_printf(e->a, "tile:%s", c->tile_archs.data[i]));
        section_put(w, c->tile_images[i].data, c->tile_images[i].size);
        section_end(w);
    }
    if (nunit && c->tiles.len)
        section_add_text(w, "txt:tile", c->tile_unit.text, c->tile_unit.size);
    if (e->in->model_data)
        section_add_text(w, e->in->model_is_text ? "model.amp" : "model",
                         e->in->model_data, e->in->model_size);
    for (int i = 0; i < e->in->nsection; i++) {
        const EmitSection *s = &e->in->sections[i];
        section_add_text(w, s->name, s->data, s->size);
    }
    for (int i = 0; i < e->m->texts.len; i++) {
        const StageText *t = &e->m->texts.data[i];
        section_add_text(w, arena_printf(e->a, "ir:%.27s", t->pass), t->text,
                         t->size);
    }
}

static Status put_module(EmitSo *e, FILE *f) {
    size_t n;
    char *elf = read_file(e->d, in_dir(e, e->dir, e->linked), &n);
    if (!elf) return ERR_USER;
    SectionWriter w = {.file = f, .arena = e->a, .at = n};
    w.failed = fwrite(elf, 1, n, f) != n;
    free(elf);
    if (emit_is_object(e->in->path))
        return w.failed ? io_error(e, e->in->path) : OK;
    put_sections(e, &w);
    return section_finish(&w, e->src.id) ? OK : io_error(e, e->in->path);
}

/* Opens a future output file for writing; NULL after a message. */
static FILE *open_file(EmitSo *e, OutFile *o, const char *path, unsigned mode) {
    FILE *f = NULL;
    if (outfile_open(o, path, mode, NULL, NULL)) f = outfile_stream(o);
    if (!f) file_failed(e->d, path, o);
    return f;
}

/* Both files are complete before the first one is renamed. The old module
   keeps its weights until the new module is in place; the new weights wait
   in a temporary file beside them. */
static Status put_files(EmitSo *e) {
    OutFile *module = &e->module, *weights = &e->weights;
    const char *path = e->in->path, *side = weights_sidecar_path(e->a, path);
    const char *waiting = side;
    bool sidecar = e->opt->sidecar_weights;
    FILE *f;
    if (sidecar) {
        if (!(f = open_file(e, weights, side, 0666))) return ERR_USER;
        if (!weights_sidecar(f, e->m, e->a, &e->src.sidecar))
            return io_error(e, side);
        char *crc = arena_printf(e->a, PLAN_WAITING, e->src.sidecar.crc);
        waiting = arena_printf(e->a, "%s%s", side, crc);
        if (!outfile_suffix(weights, crc) || !outfile_ready(weights))
            return file_failed(e->d, side, weights);
    }
    unsigned mode = emit_is_object(path) ? 0666 : 0777;
    if (!(f = open_file(e, module, path, mode))) return ERR_USER;
    TRY(put_module(e, f));
    if (!outfile_ready(module)) return file_failed(e->d, path, module);
    if (sidecar && !outfile_commit(weights))
        return file_failed(e->d, waiting, weights);
    if (!outfile_commit(module)) return file_failed(e->d, path, module);
    if (sidecar && rename(waiting, side) != 0) return io_error(e, side);
    return OK;
}

/* ---- notes about groups -------------------------------------------------- */

/* On the GPU an epilogue has no loops. */
static void put_note(StrBuf *sb, bool json, const PlanSource *src,
                     const EmitGroup *g) {
    Facts f = {.json = json};
    FactList loops = fact_series(json, ",", ", ");
    const Kernel *k = g->s->kernel;
    const char *what = "loops";
    if (!k && g->target == TARGET_CPU) {
        k = g->s->epilogue;
        what = "epilogue";
    }
    if (g->target == TARGET_CUDA && src->cuda->archs.len) {
        fact_words(&f, "on", "gpu: ");
        fact_cuda(&f, "cuda", src->cuda, g);
    }
    if (k) {
        kernel_loops(k, &loops);
        fact_words(&f, "what", "%s%s: ", f.n ? "\n" : "", what);
        fact_list(&f, what, &loops);
    }
    facts_put_members(&f, NULL, sb);
}

static Status tell_compiled(Arena *a, const EmitInput *in,
                            const PlanSource *src) {
    const char **notes[2];
    StrBuf cost = {0};
    if (!in->compiled) return OK;
    for (int json = 0; json < 2; json++) {
        notes[json] = NEW_ARRAY(a, const char *, src->groups.len + 1);
        for (int i = 0; i < src->groups.len; i++) {
            StrBuf sb = {0};
            put_note(&sb, json, src, &src->groups.data[i]);
            notes[json][i] = arena_printf(a, "%s", sb.data ? sb.data : "");
            sb_free(&sb);
        }
    }
    cost_put(src, &cost);
    Status s = in->compiled(
        in->ctx, (const char *const *const[]){notes[0], notes[1]}, cost.data);
    sb_free(&cost);
    return s;
}

static Status emit_all(EmitSo *e) {
    TRY(emit_plan(e->m, e->opt, e->d, e->in, e->a, &e->src));
    TRY(put_readable(e));
    if (isa_source(e->opt)) {
        TRY(tell_compiled(e->a, e->in, &e->src));
        return emit_source(e->opt, e->d, e->a, e->in->path, &e->src);
    }
    TRY(put_sources(e));
    e->cache = compile_cache_open(e->a, e->opt->cache);
    TRY(compile_all(e));
    TRY(tell_compiled(e->a, e->in, &e->src));
    return put_files(e);
}

Status emit_so(Module *m, const Options *opt, Diag *d, const EmitInput *in) {
    EmitSo e = {.opt = opt, .d = d, .a = arena_new(), .in = in, .m = m};
    Status s = emit_all(&e);
    outfile_abort(&e.module);
    outfile_abort(&e.weights);
    leave_remove_folder();
    sb_free(&e.src.text);
    sb_free(&e.src.index);
    arena_free(e.a);
    return s;
}

Status emit_check(Module *m, const Options *opt, Diag *d, const EmitInput *in) {
    PlanSource src = {0};
    Arena *a = arena_new();
    Status s = emit_plan(m, opt, d, in, a, &src);
    if (s == OK) s = tell_compiled(a, in, &src);
    sb_free(&src.text);
    sb_free(&src.index);
    arena_free(a);
    return s;
}
