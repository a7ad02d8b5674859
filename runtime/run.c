/* run.c: binds programs to memory and runs them.

   Binding resolves every PlanRef to an address once; a run then only patches
   the addresses of inputs that moved and walks the steps.  Nothing allocates
   while steps run, so a call that fails has changed nothing.                */
#define _POSIX_C_SOURCE 200809L
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/json.h"
#include "runtime/session.h"

/* ---- plan facts ---------------------------------------------------------- */

size_t dtype_bytes(uint32_t dtype) {
    static const uint8_t bytes[AMPC_NDTYPE] = {1, 1, 1, 2, 2, 4, 4,
                                               8, 8, 2, 2, 4, 8};
    return dtype < AMPC_NDTYPE ? bytes[dtype] : 0;
}

const char *dtype_name(uint32_t dtype) {
    static const char *const names[AMPC_NDTYPE] = {
        "bool", "u8",  "i8",  "u16",  "i16", "u32", "i32",
        "u64",  "i64", "f16", "bf16", "f32", "f64"};
    return dtype < AMPC_NDTYPE ? names[dtype] : "?";
}

bool dense_bytes(uint32_t dtype, uint32_t rank, const int64_t *dim,
                 uint64_t *bytes) {
    uint64_t n = dtype_bytes(dtype);
    if (n == 0 || rank > AMPC_MAX_RANK) return false;
    for (uint32_t i = 0; i < rank; i++)
        if (dim[i] < 0 || __builtin_mul_overflow(n, (uint64_t)dim[i], &n) ||
            n > INT64_MAX)
            return false;
    *bytes = n;
    return true;
}

const char *shape_text(char buf[160], uint32_t dtype, uint32_t rank,
                       const int64_t *dim) {
    int n = snprintf(buf, 160, "%s[", dtype_name(dtype));
    for (uint32_t i = 0; i < rank && i < AMPC_MAX_RANK && n < 130; i++)
        n += snprintf(buf + n, 160 - (size_t)n, "%s%lld", i ? "," : "",
                      (long long)dim[i]);
    snprintf(buf + n, 160 - (size_t)n, "]");
    return buf;
}

int find_program(const AmpcModule *m, const char *name) {
    for (uint32_t i = 0; i < m->nprogram; i++)
        if (strcmp(m->programs[i].name, name) == 0) return (int)i;
    return -1;
}

int find_var(const AmpcModule *m, const char *name) {
    for (uint32_t i = 0; i < m->nvar; i++)
        if (strcmp(m->vars[i].name, name) == 0) return (int)i;
    return -1;
}

int64_t info_int(const AmpcModule *m, const char *key, int64_t dflt) {
    JsonSpan info, options, v;
    int64_t n;
    if (!m->info || !json_parse(m->info, strlen(m->info), &info)) return dflt;
    if (json_get(info, key, &v) && json_int(v, &n)) return n;
    if (json_get(info, "options", &options) && json_get(options, key, &v) &&
        json_int(v, &n))
        return n;
    return dflt;
}

int64_t module_batch(const AmpcModule *m) {
    int64_t known = info_int(m, "batch", -1);
    if (known >= 0) return known;
    for (uint32_t i = 0; i < m->nprogram; i++) {
        const PlanProgram *p = &m->programs[i];
        for (uint32_t j = 0; j < p->nin; j++)
            if (m->tensors[p->in0 + j].rank > 0)
                return m->tensors[p->in0 + j].dim[0];
    }
    return 0;
}

/* ---- is the plan sound? -------------------------------------------------- */

static bool plan_slice(uint64_t first, uint64_t n, uint64_t size) {
    return first <= size && n <= size - first;
}

static bool plan_ref_ok(const AmpcModule *m, const PlanProgram *p,
                        const PlanRef *r) {
    switch (r->space) {
    case PLAN_NONE: return true;
    case PLAN_ARENA: return r->offset <= p->arena;
    case PLAN_VAR:
        return r->index < m->nvar && r->offset <= m->vars[r->index].bytes;
    case PLAN_INPUT: return r->index < p->nin;
    default: return false;
    }
}

static bool plan_refs_ok(const AmpcModule *m, const PlanProgram *p,
                         uint32_t first, uint32_t n) {
    if (!plan_slice(first, n, m->nref)) return false;
    for (uint32_t i = 0; i < n; i++)
        if (!plan_ref_ok(m, p, &m->refs[first + i])) return false;
    return true;
}

/* Operands and parameters of the library routines; SCATTER_ADD and the like
   take their struct as parameters, COPY a byte count.                       */
typedef struct LibRule {
    uint32_t nref, npar;
} LibRule;

#define LIB_PARS(T) (uint32_t)(sizeof(T) / sizeof(int64_t))
static const LibRule lib_rules[PLAN_NLIB] = {
    [PLAN_LIB_GEMM] = {3, LIB_PARS(CpuGemm)},
    [PLAN_LIB_CONV_FWD] = {3, LIB_PARS(CpuConv)},
    [PLAN_LIB_CONV_DGRAD] = {3, LIB_PARS(CpuConv)},
    [PLAN_LIB_CONV_WGRAD] = {3, LIB_PARS(CpuConv)},
    [PLAN_LIB_MAXPOOL] = {3, LIB_PARS(CpuPool)},
    [PLAN_LIB_MAXPOOL_GRAD] = {3, LIB_PARS(CpuPool)},
    [PLAN_LIB_AVGPOOL] = {2, LIB_PARS(CpuPool)},
    [PLAN_LIB_AVGPOOL_GRAD] = {2, LIB_PARS(CpuPool)},
    [PLAN_LIB_SCATTER_ADD] = {3, LIB_PARS(CpuScatterAdd)},
    [PLAN_LIB_ARGMAX] = {2, LIB_PARS(CpuArgmax)},
    [PLAN_LIB_COPY] = {2, 1},
};

static bool plan_step_ok(const AmpcModule *m, const PlanProgram *p,
                         const PlanStep *t) {
    if (!plan_refs_ok(m, p, t->ref0, t->nref) ||
        !plan_refs_ok(m, p, t->ep_ref0, t->ep_nref) ||
        !plan_slice(t->par0, t->npar, m->npar) ||
        !plan_slice(t->ep_par0, t->ep_npar, m->npar))
        return false;
    if (t->kind == PLAN_KERNEL) return true;
    return t->kind == PLAN_LIB && t->fn < PLAN_NLIB &&
           t->nref == lib_rules[t->fn].nref && t->npar == lib_rules[t->fn].npar;
}

static bool plan_tensors_ok(const AmpcModule *m, const PlanProgram *p,
                            uint32_t first, uint32_t n) {
    uint64_t bytes;
    if (!plan_slice(first, n, m->ntensor)) return false;
    for (uint32_t i = 0; i < n; i++) {
        const PlanTensor *t = &m->tensors[first + i];
        if (!dense_bytes(t->dtype, t->rank, t->dim, &bytes) || !t->name ||
            !plan_ref_ok(m, p, &t->ref))
            return false;
    }
    return true;
}

const char *plan_defect(const AmpcModule *m) {
    uint64_t bytes;
    if (m->version != AMPC_PLAN_VERSION) return "version of the plan";
    for (uint32_t i = 0; i < m->nvar; i++) {
        const PlanVar *v = &m->vars[i];
        if (!dense_bytes(v->dtype, v->rank, v->dim, &bytes) ||
            bytes != v->bytes || !v->name)
            return v->name ? v->name : "a variable";
    }
    for (uint32_t i = 0; i < m->nprogram; i++) {
        const PlanProgram *p = &m->programs[i];
        if (!plan_slice(p->step0, p->nstep, m->nstep) ||
            !plan_tensors_ok(m, p, p->in0, p->nin) ||
            !plan_tensors_ok(m, p, p->out0, p->nout))
            return p->name;
        for (uint32_t j = 0; j < p->nstep; j++)
            if (!plan_step_ok(m, p, &m->steps[p->step0 + j]))
                return m->steps[p->step0 + j].name;
    }
    return NULL;
}

/* ---- messages and memory ------------------------------------------------- */

ampc_status session_fail(ampc_session *s, ampc_status status, const char *fmt,
                         ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->error, sizeof s->error, fmt, ap);
    va_end(ap);
    return status;
}

void session_log(ampc_session *s, const char *fmt, ...) {
    char line[512];
    va_list ap;
    if (!s->opt.log) return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    s->opt.log(s->opt.log_ctx, line);
}

void *mem_alloc(const ampc_session *s, size_t bytes) {
    if (bytes == 0) bytes = 1;
    return s->opt.alloc(s->opt.alloc_ctx, bytes, 64);
}

void mem_free(const ampc_session *s, void *p, size_t bytes) {
    if (p) s->opt.free(s->opt.alloc_ctx, p, bytes ? bytes : 1);
}

/* ---- scalar variables ---------------------------------------------------- */

static double scalar_read(uint32_t dtype, const void *p) {
    switch (dtype) {
    case AMPC_F32: return *(const float *)p;
    case AMPC_F64: return *(const double *)p;
    case AMPC_I32: return *(const int32_t *)p;
    case AMPC_I64: return (double)*(const int64_t *)p;
    case AMPC_U32: return *(const uint32_t *)p;
    case AMPC_U64: return (double)*(const uint64_t *)p;
    case AMPC_BOOL:
    case AMPC_U8: return *(const uint8_t *)p;
    default: return 0;
    }
}

void session_find_known(ampc_session *s) {
    static const char *const names[VAR_KNOWN] = {
        [VAR_SCALE] = "ampc.scale",     [VAR_GOOD] = "ampc.good",
        [VAR_HYST] = "ampc.hyst",       [VAR_STEP] = "ampc.step",
        [VAR_TRIED] = "ampc.tried",     [VAR_SKIPPED] = "ampc.skipped",
        [VAR_BAD_FORWARD] = "ampc.bad_forward",
        [VAR_MICRO] = "ampc.micro"};
    for (int i = 0; i < VAR_KNOWN; i++)
        s->known[i] = find_var(s->m, names[i]);
}

double var_number(const ampc_session *s, int v, double dflt) {
    if (v < 0 || s->m->vars[v].rank != 0 || !s->var[v]) return dflt;
    return scalar_read(s->m->vars[v].dtype, s->var[v]);
}

static bool integral(double x, double lo, double hi) {
    return x >= lo && x <= hi && x == (double)(int64_t)x;
}

bool var_set_number(const ampc_session *s, int var, double x) {
    const PlanVar *v = &s->m->vars[var];
    void *p = s->var[var];
    if (v->rank != 0) return false;
    switch (v->dtype) {
    case AMPC_F32: *(float *)p = (float)x; return true;
    case AMPC_F64: *(double *)p = x; return true;
    case AMPC_I32:
        if (!integral(x, INT32_MIN, INT32_MAX)) return false;
        *(int32_t *)p = (int32_t)x;
        return true;
    case AMPC_I64:
        if (!integral(x, -9007199254740992.0, 9007199254740992.0)) return false;
        *(int64_t *)p = (int64_t)x;
        return true;
    case AMPC_BOOL:
        if (x != 0 && x != 1) return false;
        *(uint8_t *)p = x != 0;
        return true;
    default: return false;
    }
}

/* ---- gradients ----------------------------------------------------------- */

static uint64_t round64(uint64_t n) { return (n + 63) & ~(uint64_t)63; }

ampc_status session_need_grads(ampc_session *s) {
    uint64_t total = 0;
    if (s->grads) return AMPC_OK;
    for (uint32_t i = 0; i < s->m->nvar; i++)
        if (s->m->vars[i].kind == PLAN_GRAD)
            total += round64(s->m->vars[i].bytes);
    char *p = mem_alloc(s, total);
    if (!p)
        return session_fail(s, AMPC_ERR_MEMORY,
                            "out of memory: %llu bytes for gradients",
                            (unsigned long long)total);
    s->grads = p;
    s->grads_bytes = total;
    for (uint32_t i = 0; i < s->m->nvar; i++) {
        if (s->m->vars[i].kind != PLAN_GRAD) continue;
        s->var[i] = p;
        p += round64(s->m->vars[i].bytes);
    }
    session_zero_grads(s);
    return AMPC_OK;
}

void session_zero_grads(ampc_session *s) {
    if (s->grads) memset(s->grads, 0, s->grads_bytes);
}

/* ---- binding ------------------------------------------------------------- */

typedef struct BindCtx {
    ampc_session *s;
    const PlanProgram *p;
    Bound *b;
} BindCtx;

static void *bind_ref(BindCtx *cx, const PlanRef *r, void **slot) {
    switch (r->space) {
    case PLAN_ARENA: return (char *)cx->s->arena + r->offset;
    case PLAN_VAR: return (char *)cx->s->var[r->index] + r->offset;
    case PLAN_INPUT:
        if (slot)
            cx->b->patches[cx->b->npatch++] =
                (BoundPatch){slot, r->index, r->offset};
        return NULL;
    default: return NULL;
    }
}

static void **bind_refs(BindCtx *cx, uint32_t first, uint32_t n, void **buf) {
    for (uint32_t i = 0; i < n; i++)
        buf[i] = bind_ref(cx, &cx->s->m->refs[first + i], &buf[i]);
    return buf + n;
}

/* Counts table entries and those that follow inputs. */
static void bind_count(const AmpcModule *m, const PlanProgram *p, size_t *nbuf,
                       size_t *npatch, bool *grads) {
    *nbuf = *npatch = 0;
    *grads = false;
    for (uint32_t i = 0; i < p->nstep; i++) {
        const PlanStep *t = &m->steps[p->step0 + i];
        for (uint32_t j = 0; j < t->nref + t->ep_nref; j++) {
            const PlanRef *r = &m->refs[j < t->nref ? t->ref0 + j
                                                    : t->ep_ref0 + j - t->nref];
            *npatch += r->space == PLAN_INPUT;
            *grads |= r->space == PLAN_VAR &&
                      m->vars[r->index].kind == PLAN_GRAD;
        }
        *nbuf += t->nref + t->ep_nref;
    }
}

static void bind_step(BindCtx *cx, const PlanStep *t, BoundStep *b,
                      void **buf) {
    const AmpcModule *m = cx->s->m;
    const PlanIsa *isa = cx->s->isa;
    *b = (BoundStep){.kind = t->kind,
                     .lib = t->fn,
                     .buf = buf,
                     .par = m->pars + t->par0,
                     .units = t->units,
                     .grain = t->grain < 1 ? 1 : t->grain,
                     .name = t->name ? t->name : ""};
    if (t->kind == PLAN_KERNEL) b->kernel = isa->kernels[t->fn];
    void **ep = bind_refs(cx, t->ref0, t->nref, buf);
    if (t->epilogue)
        b->epilogue = (CpuEpilogue){isa->epilogues[t->epilogue - 1], ep,
                                    m->pars + t->ep_par0};
    bind_refs(cx, t->ep_ref0, t->ep_nref, ep);
}

static ampc_status session_bind(ampc_session *s, int program) {
    const PlanProgram *p = &s->m->programs[program];
    Bound *b = &s->bound[program];
    size_t nbuf, npatch;
    bool grads;
    if (b->memory) return AMPC_OK;
    bind_count(s->m, p, &nbuf, &npatch, &grads);
    if (grads) {
        ampc_status status = session_need_grads(s);
        if (status != AMPC_OK) return status;
    }
    size_t bytes = p->nstep * sizeof(BoundStep) + npatch * sizeof(BoundPatch) +
                   (nbuf + p->nin + p->nout) * sizeof(void *);
    char *mem = mem_alloc(s, bytes);
    if (!mem)
        return session_fail(s, AMPC_ERR_MEMORY,
                            "out of memory: %zu bytes for program '%s'", bytes,
                            p->name);
    memset(mem, 0, bytes);
    *b = (Bound){.memory = mem, .bytes = bytes, .steps = (BoundStep *)mem};
    b->patches = (BoundPatch *)(b->steps + p->nstep);
    b->inputs = (const void **)(b->patches + npatch);
    b->outputs = (void **)(b->inputs + p->nin);
    void **buf = b->outputs + p->nout;
    BindCtx cx = {s, p, b};
    for (uint32_t i = 0; i < p->nstep; i++) {
        const PlanStep *t = &s->m->steps[p->step0 + i];
        bind_step(&cx, t, &b->steps[i], buf);
        buf += t->nref + t->ep_nref;
    }
    for (uint32_t i = 0; i < p->nout; i++)
        b->outputs[i] = bind_ref(&cx, &s->m->tensors[p->out0 + i].ref, NULL);
    return AMPC_OK;
}

/* ---- inputs -------------------------------------------------------------- */

static const ampc_input *input_at(const ampc_input *in, size_t i) {
    return (const ampc_input *)((const char *)in + i * in->size);
}

static ampc_status input_check(ampc_session *s, const PlanTensor *t,
                               const ampc_input *in) {
    char want[160];
    uint64_t bytes = 0;
    dense_bytes(t->dtype, t->rank, t->dim, &bytes);
    shape_text(want, t->dtype, t->rank, t->dim);
    bool same = in->rank < 0 || (uint32_t)in->rank == t->rank;
    for (uint32_t i = 0; same && in->rank > 0 && i < t->rank; i++)
        same = in->shape && in->shape[i] == t->dim[i];
    if ((uint32_t)in->dtype != t->dtype)
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "input '%.200s': dtype %s given, %s needed",
                            t->name, dtype_name((uint32_t)in->dtype), want);
    if (!same)
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "input '%.200s': another shape given than %s",
                            t->name, want);
    if (in->bytes != bytes)
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "input '%.200s': %zu bytes given, %llu needed (%s)",
                            t->name, in->bytes, (unsigned long long)bytes,
                            want);
    if (bytes && (!in->data || (uintptr_t)in->data % dtype_bytes(t->dtype)))
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "input '%.200s': the data pointer is %s", t->name,
                            in->data ? "not aligned to its elements" : "NULL");
    return AMPC_OK;
}

/* Which program input an argument is for; -1 when there is none. */
static int input_place(const AmpcModule *m, const PlanProgram *p,
                       const ampc_input *in, size_t position) {
    if (!in->name) return position < p->nin ? (int)position : -1;
    for (uint32_t i = 0; i < p->nin; i++)
        if (strcmp(m->tensors[p->in0 + i].name, in->name) == 0) return (int)i;
    return -1;
}

static ampc_status input_count(ampc_session *s, const PlanProgram *p,
                               size_t nin) {
    char names[400] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < p->nin && n < sizeof names - 1; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%.100s",
                              i ? ", " : "", s->m->tensors[p->in0 + i].name);
    return session_fail(s, AMPC_ERR_ARGUMENT,
                        "%zu inputs given, %u needed by program '%s': %s", nin,
                        p->nin, p->name, names);
}

/* Marks an input that the call has not given. */
static const char not_given;

static ampc_status inputs_check(ampc_session *s, const PlanProgram *p,
                                const ampc_input *in, size_t nin,
                                const void **addr) {
    if (nin != p->nin || (nin && !in)) return input_count(s, p, nin);
    for (size_t i = 0; i < nin; i++) addr[i] = &not_given;
    if (nin && in->size < sizeof(ampc_input))
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "ampc_input.size is not set");
    for (size_t i = 0; i < nin; i++) {
        const ampc_input *a = input_at(in, i);
        int at = input_place(s->m, p, a, i);
        if (at < 0 || addr[at] != &not_given)
            return session_fail(s, AMPC_ERR_ARGUMENT,
                                "%s input '%.200s' of program '%s'",
                                at < 0 ? "no" : "twice given:",
                                a->name ? a->name : "(by position)", p->name);
        ampc_status status = input_check(s, &s->m->tensors[p->in0 + at], a);
        if (status != AMPC_OK) return status;
        addr[at] = a->data;
    }
    return AMPC_OK;
}

static void inputs_patch(const PlanProgram *p, Bound *b, const void **addr) {
    if (p->nin == 0 || memcmp(b->inputs, addr, p->nin * sizeof *addr) == 0)
        return;
    memcpy(b->inputs, addr, p->nin * sizeof *addr);
    for (uint32_t i = 0; i < b->npatch; i++) {
        const BoundPatch *t = &b->patches[i];
        *t->slot = (char *)(uintptr_t)addr[t->input] + t->offset;
    }
}

/* ---- the loop ------------------------------------------------------------ */

static void run_chunk(void *ctx, int64_t lo, int64_t hi, int worker) {
    const BoundStep *t = ctx;
    (void)worker;
    t->kernel(t->buf, t->par, lo, hi);
}

static void run_lib(ampc_session *s, const BoundStep *t) {
    const AmpcCpuLib *lib = s->isa->lib;
    AmpcPool *pool = s->pool;
    void **b = t->buf, *scratch = s->scratch;
    const void *par = t->par;
    const CpuEpilogue *ep = t->epilogue.fn ? &t->epilogue : NULL;
    switch (t->lib) {
    case PLAN_LIB_GEMM:
        lib->gemm(pool, par, b[0], b[1], b[2], ep, scratch);
        break;
    case PLAN_LIB_CONV_FWD:
        lib->conv_fwd(pool, par, b[0], b[1], b[2], ep, scratch);
        break;
    case PLAN_LIB_CONV_DGRAD:
        lib->conv_dgrad(pool, par, b[0], b[1], b[2], scratch);
        break;
    case PLAN_LIB_CONV_WGRAD:
        lib->conv_wgrad(pool, par, b[0], b[1], b[2], scratch);
        break;
    case PLAN_LIB_MAXPOOL: lib->maxpool(pool, par, b[0], b[1], b[2]); break;
    case PLAN_LIB_MAXPOOL_GRAD:
        lib->maxpool_grad(pool, par, b[0], b[1], b[2]);
        break;
    case PLAN_LIB_AVGPOOL: lib->avgpool(pool, par, b[0], b[1]); break;
    case PLAN_LIB_AVGPOOL_GRAD: lib->avgpool_grad(pool, par, b[0], b[1]); break;
    case PLAN_LIB_SCATTER_ADD:
        lib->scatter_add(pool, par, b[0], b[1], b[2], scratch);
        break;
    case PLAN_LIB_ARGMAX: lib->argmax(pool, par, b[0], b[1]); break;
    case PLAN_LIB_COPY:
        if (t->par[0] > 0) memmove(b[1], b[0], (size_t)t->par[0]);
        break;
    default: break;
    }
}

static void run_step(ampc_session *s, BoundStep *t) {
    if (t->kind == PLAN_LIB)
        run_lib(s, t);
    else if (t->units <= t->grain)
        t->kernel(t->buf, t->par, 0, t->units);
    else
        pool_run(s->pool, t->units, t->grain, run_chunk, t);
}

static uint64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void run_profiled(ampc_session *s, const PlanProgram *p, Bound *b) {
    uint64_t begin = now_ns();
    for (uint32_t i = 0; i < p->nstep; i++) {
        run_step(s, &b->steps[i]);
        uint64_t end = now_ns();
        s->profile(s->profile_ctx, p->name, b->steps[i].name, begin, end);
        begin = now_ns();
    }
}

/* Threads of the pool round to nearest with subnormals; so must the host's,
   or results would depend on which thread computes them.                    */
static void run_program(ampc_session *s, int program) {
    const PlanProgram *p = &s->m->programs[program];
    Bound *b = &s->bound[program];
#ifdef __SSE__
    unsigned host = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(0x1f80);
#endif
    if (s->profile)
        run_profiled(s, p, b);
    else
        for (uint32_t i = 0; i < p->nstep; i++) run_step(s, &b->steps[i]);
#ifdef __SSE__
    __builtin_ia32_ldmxcsr(host);
#endif
    s->last = program;
}

ampc_status session_prepare(ampc_session *s, ProgramId id) {
    int refresh = s->program[PROG_REFRESH];
    ampc_status status = session_bind(s, s->program[id]);
    if (status == AMPC_OK && s->stale && refresh >= 0)
        status = session_bind(s, refresh);
    return status;
}

ampc_status session_run(ampc_session *s, ProgramId id, const ampc_input *in,
                        size_t nin) {
    const void **addr = s->addr;
    int program = s->program[id], refresh = s->program[PROG_REFRESH];
    const PlanProgram *p = &s->m->programs[program];
    ampc_status status = inputs_check(s, p, in, nin, addr);
    if (status == AMPC_OK) status = session_prepare(s, id);
    if (status != AMPC_OK) return status;
    if (s->stale && refresh >= 0) run_program(s, refresh);
    s->stale = false;
    inputs_patch(p, &s->bound[program], addr);
    run_program(s, program);
    return AMPC_OK;
}

/* ---- scratch ------------------------------------------------------------- */

static size_t lib_scratch(uint32_t lib, const void *par, int threads) {
    switch (lib) {
    case PLAN_LIB_GEMM: return cpu_gemm_scratch(par, threads);
    case PLAN_LIB_CONV_FWD: return cpu_conv_fwd_scratch(par, threads);
    case PLAN_LIB_CONV_DGRAD: return cpu_conv_dgrad_scratch(par, threads);
    case PLAN_LIB_CONV_WGRAD: return cpu_conv_wgrad_scratch(par, threads);
    case PLAN_LIB_SCATTER_ADD: return cpu_scatter_add_scratch(par, threads);
    default: return 0;
    }
}

size_t session_scratch_bytes(const AmpcModule *m, int threads) {
    size_t most = 0;
    for (uint32_t i = 0; i < m->nstep; i++) {
        const PlanStep *t = &m->steps[i];
        if (t->kind != PLAN_LIB || t->fn >= PLAN_NLIB) continue;
        size_t n = lib_scratch(t->fn, m->pars + t->par0, threads);
        if (n > most) most = n;
    }
    return most;
}
