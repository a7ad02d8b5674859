/* SPDX-License-Identifier: Apache-2.0 */
/* nvrtc.c: CUDA C++ to cubins and PTX with NVRTC, which is found at run time
   (cuda.h).  A job is one unit for one architecture; jobs run on threads and
   share nothing, so that their order does not change the results. */
#define _GNU_SOURCE
#include "codegen/cuda/cuda.h"
#include "codegen/cache/compile_cache.h"
#include "runtime/cuda/arch.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the library --------------------------------------------------------- */

#ifdef __SANITIZE_THREAD__
/* The sanitizer cannot follow NVRTC's own locks. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void) { return "race:libnvrtc.so\n"; }
#endif

typedef struct NvrtcProgram_st *Program;

typedef struct Nvrtc {
    int (*Version)(int *major, int *minor);
    int (*GetNumSupportedArchs)(int *n);
    int (*GetSupportedArchs)(int *archs);
    int (*CreateProgram)(Program *p, const char *text, const char *name, int n,
                         const char *const *headers, const char *const *names);
    int (*DestroyProgram)(Program *p);
    int (*CompileProgram)(Program p, int n, const char *const *options);
    int (*GetPTXSize)(Program p, size_t *n);
    int (*GetPTX)(Program p, char *to);
    int (*GetCUBINSize)(Program p, size_t *n);
    int (*GetCUBIN)(Program p, char *to);
    int (*GetProgramLogSize)(Program p, size_t *n);
    int (*GetProgramLog)(Program p, char *to);
    int version; /* 12080 = 12.8 */
    char file[4096];
} Nvrtc;

enum { OLDEST_NVRTC = 12000, QUICK_NVRTC = 12080 /* knows -Ofc */ };

#define ENTRY(name)                                                            \
    { "nvrtc" #name, offsetof(Nvrtc, name) }
static const struct {
    const char *name;
    size_t offset;
} entries[] = {ENTRY(Version),           ENTRY(GetNumSupportedArchs),
               ENTRY(GetSupportedArchs), ENTRY(CreateProgram),
               ENTRY(DestroyProgram),    ENTRY(CompileProgram),
               ENTRY(GetPTXSize),        ENTRY(GetPTX),
               ENTRY(GetCUBINSize),      ENTRY(GetCUBIN),
               ENTRY(GetProgramLogSize), ENTRY(GetProgramLog)};

/* NVRTC opens its second library by name. NVRTC finds the library beside
   itself, unless dlopen is replaced, as sanitizers do. */
static void load_builtins(Nvrtc *n) {
    char path[4200];
    Dl_info info;
    if (!dladdr((const void *)(uintptr_t)n->Version, &info) || !info.dli_fname)
        return;
    snprintf(n->file, sizeof n->file, "%s", info.dli_fname);
    const char *slash = strrchr(n->file, '/');
    int dir = slash ? (int)(slash + 1 - n->file) : 0;
    snprintf(path, sizeof path, "%.*slibnvrtc-builtins.so.%d.%d", dir, n->file,
             n->version / 1000, n->version % 1000 / 10);
    (void)dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* The library stays loaded: it owns threads and memory. */
static bool load(const char *path, Nvrtc *n) {
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    int major = 0, minor = 0;
    bool ok = handle != NULL;
    for (size_t i = 0; ok && i < sizeof entries / sizeof *entries; i++) {
        void *fn = dlsym(handle, entries[i].name);
        memcpy((char *)n + entries[i].offset, &fn, sizeof fn);
        ok = fn != NULL;
    }
    ok = ok && !n->Version(&major, &minor);
    n->version = major * 1000 + minor * 10;
    ok = ok && n->version >= OLDEST_NVRTC;
    if (ok)
        load_builtins(n);
    else if (handle)
        dlclose(handle);
    return ok;
}

static bool nvrtc_load(Arena *a, Nvrtc *n, const char **why) {
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12",
                                        "libnvrtc.so"};
    const char *given = secure_getenv("AMPC_LIBNVRTC");
    if (given && !strcmp(given, "none")) {
        *why = "AMPC_LIBNVRTC=none";
        return false;
    }
    if (given && *given) {
        *why = arena_printf(a, "AMPC_LIBNVRTC=%s is not NVRTC 12.0 or later",
                            given);
        return load(given, n);
    }
    char own[4096]; /* the running program's folder, with a slash */
    ssize_t len = readlink("/proc/self/exe", own, sizeof own - 1);
    while (len > 0 && own[len - 1] != '/') len--;
    own[len > 0 ? len : 0] = 0;
    const char *dirs[] = {"", "/usr/local/cuda/lib64/", own,
                          *own ? arena_printf(a, "%s../lib/", own) : ""};
    for (size_t d = 0; d < sizeof dirs / sizeof *dirs; d++)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if ((!d || *dirs[d]) &&
                load(arena_printf(a, "%s%s", dirs[d], names[i]), n))
                return true;
    *why = "libnvrtc.so.13 and libnvrtc.so.12 are neither where the system "
           "looks for libraries nor in /usr/local/cuda/lib64 nor beside ampc";
    return false;
}

bool nvrtc_facts(Arena *a, NvrtcFacts *out) {
    Nvrtc n;
    int count = 0;
    *out = (NvrtcFacts){0};
    if (!nvrtc_load(a, &n, &out->why)) return false;
    out->toolkit = n.version;
    if (n.GetNumSupportedArchs(&count) || count <= 0) return true;
    int *arch = NEW_ARRAY(a, int, count);
    if (n.GetSupportedArchs(arch)) return true;
    for (int i = 0; i < count; i++)
        if (arch[i] >= gpu_archs[0].number) vec_push(a, &out->archs, arch[i]);
    return true;
}

/* ---- one job ------------------------------------------------------------- */

/* malloc'ed: threads have no arena */
typedef struct Job {
    const char *text, *arch;
    int unit, twin; /* twin: the job whose program also gives this one's
                       code; itself: no other */
    char *log, *cubin, *ptx;
    size_t log_size, cubin_size, ptx_size;
    CompileKey key;
    bool found; /* in the cache */
    bool failed;
} Job;

typedef struct Build {
    const Nvrtc *lib;
    const char *cache;
    bool quick;
    CompileKey key; /* the part of the key that all jobs share */
    const char **headers, **header_names;
    int nheader;
    Job *jobs;
    int njob;
    atomic_int next;
} Build;

typedef int SizeFn(Program p, size_t *n);
typedef int GetFn(Program p, char *to);

/* NULL: there is none */
static char *get(Program p, SizeFn *size, GetFn *fn, size_t *n) {
    *n = 0;
    if (size(p, n) || !*n) return NULL;
    char *data = malloc(*n);
    if (data && !fn(p, data)) return data;
    free(data);
    return NULL;
}

/* NVRTC marks PTX with its own version, which older drivers refuse. Our
   kernels, for compute_80, use nothing newer than CUDA 12.0. */
static void accept_older_drivers(char *ptx) {
    char *v = ptx ? strstr(ptx, "\n.version ") : NULL;
    if (!v || strtod(v += strlen("\n.version "), NULL) <= 8.0) return;
    size_t n = strcspn(v, "\n"); /* "8.7", "10.0" */
    memset(v, ' ', n);
    memcpy(v, "8.0", 3);
}

/* Sizes, then log, cubin and PTX. */
static void keep_job(const char *cache, const Job *j) {
    uint64_t size[] = {j->log_size, j->cubin_size, j->ptx_size};
    StrBuf sb = {0};
    sb_putn(&sb, (const char *)size, sizeof size);
    sb_putn(&sb, j->log, j->log_size);
    sb_putn(&sb, j->cubin, j->cubin_size);
    sb_putn(&sb, j->ptx, j->ptx_size);
    compile_cache_put(cache, j->key, sb.data, sb.len);
    sb_free(&sb);
}

/* Copies the next n bytes of a cached result: one of its three parts. */
static char *part(const char **at, size_t n) {
    char *p = n ? malloc(n) : NULL;
    if (p) memcpy(p, *at, n);
    *at += n;
    return p;
}

static bool find_job(const char *cache, Job *j) {
    uint64_t size[3] = {0};
    size_t n;
    char *kept = compile_cache_get(cache, j->key, &n);
    if (kept && n >= sizeof size) memcpy(size, kept, sizeof size);
    if (!kept || n != sizeof size + size[0] + size[1] + size[2]) {
        free(kept);
        return false;
    }
    const char *at = kept + sizeof size;
    j->log = part(&at, j->log_size = size[0]);
    j->cubin = part(&at, j->cubin_size = size[1]);
    j->ptx = part(&at, j->ptx_size = size[2]);
    free(kept);
    return true;
}

static void compile_job(const Nvrtc *n, const Build *b, Job *j,
                        const char *const *options, int count) {
    Program p;
    char name[32];
    snprintf(name, sizeof name, "unit%d.cu", j->unit);
    if (n->CreateProgram(&p, j->text, name, b->nheader, b->headers,
                         b->header_names))
        return;
    bool ok = n->CompileProgram(p, count, options) == 0;
    j->log = get(p, n->GetProgramLogSize, n->GetProgramLog, &j->log_size);
    if (ok) {
        j->cubin = get(p, n->GetCUBINSize, n->GetCUBIN, &j->cubin_size);
        j->ptx = get(p, n->GetPTXSize, n->GetPTX, &j->ptx_size);
        accept_older_drivers(j->ptx);
    }
    n->DestroyProgram(&p);
}

static void run_job(const Build *b, Job *j) {
    char arch[32];
    const char *options[8] = {arch,
                              "-std=c++17",
                              "-fmad=false",
                              "-default-device",
                              "--ptxas-options=-v",
                              "-modify-stack-limit=false"};
    int count = 6;
    if (b->lib->version >= 12090) options[count++] = "-no-cache";
    if (b->quick && b->lib->version >= QUICK_NVRTC)
        options[count++] = "-Ofc=max";
    snprintf(arch, sizeof arch, "-arch=%s", j->arch);
    if (b->cache) {
        j->key = b->key;
        for (int i = 0; i < count; i++) compile_key_text(&j->key, options[i]);
        compile_key_text(&j->key, j->text);
        j->found = find_job(b->cache, j);
    }
    if (!j->found) compile_job(b->lib, b, j, options, count);
    j->failed = cuda_arch_is_ptx(j->arch) ? !j->ptx : !j->cubin;
}

static void *work(void *ctx) {
    Build *b = ctx;
    for (int i; (i = atomic_fetch_add(&b->next, 1)) < b->njob;)
        if (b->jobs[i].twin == i) run_job(b, &b->jobs[i]);
    return NULL;
}

/* Deep recursion in the compiler: more stack than threads get by default. */
static void run_jobs(Build *b) {
    enum { MAX_THREADS = 64, STACK = 64 << 20 };
    pthread_t thread[MAX_THREADS];
    pthread_attr_t attr;
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    int started = 0;
    if (n > b->njob) n = b->njob;
    if (n > MAX_THREADS) n = MAX_THREADS;
    if (pthread_attr_init(&attr) == 0) {
        pthread_attr_setstacksize(&attr, STACK);
        while (started < n &&
               pthread_create(&thread[started], &attr, work, b) == 0)
            started++;
        pthread_attr_destroy(&attr);
    }
    if (!started) work(b);
    for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
}

/* ---- the log ------------------------------------------------------------- */

static int number_before(const char *line, const char *what) {
    const char *p = strstr(line, what);
    if (!p) return 0;
    while (p > line && p[-1] >= '0' && p[-1] <= '9') p--;
    return atoi(p);
}

static void read_log(Arena *a, Diag *d, const Job *job, CudaBuild *out) {
    CudaUsage u = {0}; /* kernel NULL: none */
    char *rest, *line = job->log ? strtok_r(job->log, "\n", &rest) : NULL;
    for (; line; line = strtok_r(NULL, "\n", &rest)) {
        const char *used = strstr(line, "Used ");
        if (strstr(line, "Compiling entry function")) {
            const char *name = strchr(line, '\''); /* in quotes */
            int n = name ? (int)strcspn(name + 1, "'") : 0;
            u = (CudaUsage){.arch = job->arch};
            if (n) u.kernel = arena_printf(a, "%.*s", n, name + 1);
        } else if (strstr(line, "bytes stack frame")) {
            u.stack += number_before(line, " bytes stack frame");
            u.spill_stores += number_before(line, " bytes spill stores");
            u.spill_loads += number_before(line, " bytes spill loads");
        } else if (used && strstr(line, " registers") && u.kernel) {
            u.registers = atoi(used + 5);
            u.shared = number_before(line, " bytes smem");
            vec_push(a, &out->usage, u);
            u = (CudaUsage){0};
        } else if (strstr(line, "warning")) {
            warn(d, (Loc){0}, "NVRTC, unit %d for %s: %s", job->unit, job->arch,
                 line);
        }
    }
}

/* ---- all ----------------------------------------------------------------- */

/* One job for each image, and the headers. The program of sm_80 yields the
   PTX of compute_80, too. */
static Build build_new(Arena *a, const Nvrtc *lib, const char *cache,
                       bool quick, const CudaUnit *unit, int nunit,
                       const char *const *arch, int narch) {
    CudaHeaders h = cuda_headers(a, unit->text);
    Build b = {.lib = lib,
               .cache = cache,
               .quick = quick,
               .key = compile_key("nvrtc 1"),
               .nheader = h.len,
               .njob = nunit * narch};
    compile_key_add(&b.key, &lib->version, sizeof lib->version);
    compile_key_file(&b.key, lib->file);
    b.headers = NEW_ARRAY(a, const char *, h.len + 1);
    b.header_names = NEW_ARRAY(a, const char *, h.len + 1);
    for (int i = 0; i < h.len; i++) {
        b.headers[i] = h.data[i].text;
        b.header_names[i] = h.data[i].name;
        compile_key_text(&b.key, h.data[i].name);
        compile_key_text(&b.key, h.data[i].text);
    }
    b.jobs = NEW_ARRAY(a, Job, b.njob + 1);
    for (int i = 0; i < b.njob; i++) {
        int u = i % nunit, of = i / nunit;
        b.jobs[i] =
            (Job){.text = unit[u].text, .arch = arch[of], .unit = u, .twin = i};
        for (int k = 0; k < narch && cuda_arch_is_ptx(arch[of]); k++)
            if (!cuda_arch_is_ptx(arch[k]) &&
                !strcmp(strchr(arch[k], '_'), strchr(arch[of], '_')))
                b.jobs[i].twin = k * nunit + u;
    }
    return b;
}

Status nvrtc_build(Diag *d, Arena *a, const char *cache, bool quick,
                   const CudaUnit *unit, int nunit, const char *const *arch,
                   int narch, CudaBuild *out) {
    Nvrtc lib;
    const char *why;
    Status s = OK;
    *out = (CudaBuild){0};
    if (!nvrtc_load(a, &lib, &why))
        return fail(d, (Loc){0}, "no NVRTC: %s", why);
    Build b = build_new(a, &lib, cache, quick, unit, nunit, arch, narch);
    out->toolkit = lib.version;
    out->image = NEW_ARRAY(a, CudaImage, b.njob + 1);
    run_jobs(&b);
    for (int i = 0; i < b.njob && s == OK; i++) {
        const Job *j = &b.jobs[i];
        if (!j->failed) continue;
        fail(d, (Loc){0},
             "internal error: NVRTC refuses unit %d for %s; please report "
             "it with the text that --emit-cuda writes\n%.4000s",
             j->unit, j->arch, j->log ? j->log : "out of memory");
        s = ERR_BUG;
    }
    for (int i = 0; i < b.njob && s == OK && cache; i++)
        if (b.jobs[i].twin == i && !b.jobs[i].found)
            keep_job(cache, &b.jobs[i]);
    for (int i = 0; i < b.njob && s == OK; i++) {
        const Job *from = &b.jobs[b.jobs[i].twin];
        bool ptx = cuda_arch_is_ptx(b.jobs[i].arch);
        size_t n = ptx ? from->ptx_size : from->cubin_size;
        out->image[i] =
            (CudaImage){arena_dup(a, ptx ? from->ptx : from->cubin, n), n};
        read_log(a, d, &b.jobs[i], out);
    }
    for (int i = 0; i < b.njob; i++) {
        free(b.jobs[i].log);
        free(b.jobs[i].cubin);
        free(b.jobs[i].ptx);
    }
    return s;
}

/* ---- CUDA Tile ----------------------------------------------------------- */

enum { TILE_NVRTC = 13030 };

static Status tile_failed(Diag *d, const char *log) {
    fail(d, (Loc){0},
         "internal error: NVRTC refuses the CUDA Tile kernels; please report "
         "it with the text that --emit-cuda writes\n%.4000s",
         log ? log : "out of memory");
    return ERR_BUG;
}

Status nvrtc_tile_ir(Diag *d, Arena *a, const char *file, const CudaUnit *unit,
                     CudaImage *out) {
    static const char *const options[] = {"--enable-tile",
                                          "-std=c++20",
                                          "--fmad=false",
                                          "-arch=sm_90",
                                          "-modify-stack-limit=false",
                                          "-no-cache"};
    Nvrtc n;
    SizeFn *size = NULL;
    GetFn *give = NULL;
    Program p;
    if (load(file, &n) && n.version >= TILE_NVRTC) {
        void *lib = dlopen(file, RTLD_NOW | RTLD_LOCAL);
        void *fn[] = {dlsym(lib, "nvrtcGetTileIRSize"),
                      dlsym(lib, "nvrtcGetTileIR")};
        memcpy(&size, &fn[0], sizeof size);
        memcpy(&give, &fn[1], sizeof give);
    }
    if (!size || !give)
        return fail(d, (Loc){0}, "--tile: %s is not NVRTC 13.3 or later", file);
    CudaHeaders h = cuda_headers(a, unit->text);
    ASSERT(h.len == 1);
    if (n.CreateProgram(&p, unit->text, "tile.cu", 1, &h.data->text,
                        &h.data->name))
        return tile_failed(d, NULL);
    bool ok =
        !n.CompileProgram(p, (int)(sizeof options / sizeof *options), options);
    size_t bytes = 0, log_bytes;
    char *ir = ok ? get(p, size, give, &bytes) : NULL;
    char *log = get(p, n.GetProgramLogSize, n.GetProgramLog, &log_bytes);
    Status s = ir ? OK : tile_failed(d, log);
    if (ir) *out = (CudaImage){arena_dup(a, ir, bytes), bytes};
    n.DestroyProgram(&p);
    free(ir);
    free(log);
    return s;
}
