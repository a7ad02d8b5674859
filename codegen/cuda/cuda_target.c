/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_target.c: which GPU architectures a module gets code for (cuda.h). */
#include "codegen/cuda/cuda.h"
#include "codegen/emit.h"
#include "passes/device/fold.h"

#include <stdlib.h>
#include <string.h>

static void add_target(Options *o, Target t) {
    vec_push(o->arena, &o->targets, t);
}

/* ---- before compiling ---------------------------------------------------- */

static Status bad_arch(Diag *d, const NvrtcFacts *f, const char *arch) {
    StrBuf list = {0};
    for (int i = 0; i < f->archs.len; i++)
        sb_printf(&list, " cuda:sm_%d", f->archs.data[i]);
    fail(d, (Loc){0},
         "--target cuda:%s: NVRTC %d.%d makes code for:%s cuda:ptx", arch,
         f->toolkit / 1000, f->toolkit % 1000 / 10, list.data ? list.data : "");
    sb_free(&list);
    return ERR_USER;
}

static Status check_targets(const Options *o, Diag *d, const NvrtcFacts *f) {
    if (f->why && !f->toolkit)
        return fail(d, (Loc){0},
                    "--target cuda needs NVRTC, which compiles the kernels: "
                    "%s. Install it (pip install nvidia-cuda-nvrtc, or the "
                    "CUDA toolkit) and set AMPC_LIBNVRTC to libnvrtc.so.12 or "
                    ".13",
                    f->why);
    for (int i = 0; i < o->targets.len; i++) {
        const Target *t = &o->targets.data[i];
        bool known = !t->cuda || !strcmp(t->arch, "ptx");
        for (int k = 0; k < f->archs.len && !known; k++)
            known = f->archs.data[k] == atoi(t->arch + 3);
        if (!known) return bad_arch(d, f, t->arch);
    }
    return OK;
}

static Status choose_targets(Options *o, Diag *d, const char *object) {
    NvrtcFacts f;
    if (o->targets.len && !any_gpu(o)) return OK;
    if (object && o->targets.len)
        return fail(d, (Loc){0},
                    "-o %s: an object cannot hold GPU code; use --target cpu, "
                    "or -o OUT.so",
                    object);
    if (!object) nvrtc_facts(o->arena, &f);
    if (o->targets.len) return check_targets(o, d, &f);
    for (const IsaLevel *l = isa_levels; l->isa; l++)
        if (!l->source && isa_is_here(l->arch))
            add_target(o, (Target){.isa = l->isa});
    if (object) return OK;
    for (int i = 0; f.toolkit && gpu_usual(i); i++)
        add_target(o, (Target){.cuda = true, .arch = gpu_usual(i)});
    if (f.toolkit) return OK;
    o->no_cuda = "NVRTC was not found when the module was compiled: it trains "
                 "on the CPU only";
    warn(d, (Loc){0},
         "no GPU code, the module trains on the CPU only: %s. For GPU code "
         "install NVRTC (pip install nvidia-cuda-nvrtc, or the CUDA toolkit) "
         "or set AMPC_LIBNVRTC to its file; --target cpu asks for none",
         f.why);
    return OK;
}

enum { TILE_LEAST = 90 }; /* older GPUs have nothing that our kernels lack */

static bool is_for_tile(const char *arch) {
    return !strncmp(arch, "sm_", 3) && atoi(arch + 3) >= TILE_LEAST;
}

Status cuda_tile_check(const Options *o, Diag *d) {
    TileTools t;
    return o->tile ? tile_tools(d, o->arena, o->tile, &t) : OK;
}

static Status check_tile(const Options *o, Diag *d) {
    bool any = !o->tile;
    for (int i = 0; i < o->targets.len; i++)
        any |= o->targets.data[i].cuda && is_for_tile(o->targets.data[i].arch);
    if (any) return cuda_tile_check(o, d);
    return fail(d, (Loc){0},
                "--tile is for GPUs from sm_90 on, and this module has no code "
                "for one: leave it out, or add --target cuda:sm_90");
}

Status cuda_targets(Options *o, Diag *d, const char *object) {
    TRY(choose_targets(o, d, object));
    TRY(check_tile(o, d));
    if (o->factors != AMPC_FACTORS_F32 && !any_gpu(o))
        warn(d, (Loc){0},
             "--matmul-precision is for GPUs, and this module has no GPU code: "
             "it multiplies fp32. Leave the option out, or add --target cuda");
    return OK;
}

/* ---- what to compile for ------------------------------------------------- */

bool cuda_arch_is_ptx(const char *arch) {
    return !strncmp(arch, "compute_", 8);
}

/* Newest first, PTX last. */
static bool before(const char *a, const char *b) {
    if (cuda_arch_is_ptx(a) != cuda_arch_is_ptx(b)) return cuda_arch_is_ptx(b);
    return atoi(strchr(a, '_') + 1) > atoi(strchr(b, '_') + 1);
}

CudaArchs cuda_archs(const Options *o, Arena *a) {
    CudaArchs r = {0};
    for (int i = 0; i < o->targets.len; i++) {
        const Target *t = &o->targets.data[i];
        int at = 0;
        if (!t->cuda) continue;
        const char *arch =
            strcmp(t->arch, "ptx") ? t->arch : gpu_arch_of_ptx()->ptx;
        while (at < r.len && before(r.data[at], arch)) at++;
        if (at < r.len && !strcmp(r.data[at], arch)) continue;
        vec_push(a, &r, arch);
        for (int k = r.len - 1; k > at; k--) r.data[k] = r.data[k - 1];
        r.data[at] = arch;
    }
    return r;
}

CudaArchs cuda_tile_archs(const Options *o, Arena *a) {
    CudaArchs all = cuda_archs(o, a), r = {0};
    for (int i = 0; o->tile && i < all.len; i++)
        if (is_for_tile(all.data[i])) vec_push(a, &r, all.data[i]);
    return r;
}
