/* pipeline.c: the pipeline, in order, and the runner that does every pass's
   chores: verify, dump, name the pass in a bug report.

   a before b, because:
     simplify  autocast   dead or doubled values would distort placement
     loss      programs   every program that trains or evaluates has the loss
     programs  autocast   inference forms of batch_norm have other operands
     autocast  autodiff   the gradient of a cast is the cast back
     autodiff  optimizer  it consumes the gradients
     optimizer expand     whole ops keep their class and short gradients
     expand    fuse       groups are made of primitives
     fuse      schedule   order is between groups
     schedule  memplan    lifetimes need an order                           */
#include "passes/passes.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

const PassInfo pass_table[] = {
    {"simplify", pass_simplify, STAGE_TYPED, "fold constants, drop no-ops"},
    {"loss", pass_loss, STAGE_TYPED, "the scalar loss of --loss"},
    {"programs", pass_programs, STAGE_TYPED, "one graph per program"},
    {"cse", pass_cse, STAGE_TYPED, "one node for equal computations"},
    {"dce", pass_dce, STAGE_TYPED, "drop what nothing needs"},
    {"autocast", pass_autocast, STAGE_CAST, "choose dtypes, place casts"},
    {"autodiff", pass_autodiff, STAGE_DIFF, "append the backward graph"},
    {"optimizer", pass_optimizer, STAGE_STEP,
     "unscale, check, clip, update, scale; 16-bit copies"},
    {"expand", pass_expand, STAGE_STEP, "composites to primitives"},
    {"fuse", pass_fuse, STAGE_FUSED, "group nodes into kernels"},
    {"schedule", pass_schedule, STAGE_FUSED, "order the groups"},
    {"memplan", pass_memplan, STAGE_PLANNED, "place values in one arena"},
};
const int pass_count = sizeof pass_table / sizeof *pass_table;

const char *const pipeline_front =
    "simplify,loss,programs,simplify,cse,dce,autocast";
const char *const pipeline_back =
    "autodiff,optimizer,simplify,cse,dce,expand,simplify,cse,dce,"
    "fuse,schedule,memplan";

typedef struct Runner {
    Module *m;
    const PassInfo *pass;
} Runner;

static void dump_on_bug(void *ctx, FILE *out) {
    const Runner *r = ctx;
    StrBuf sb = {0};
    print_module(r->m, &sb);
    fprintf(out, "in pass %s\n%s", r->pass->name, sb.data ? sb.data : "");
    sb_free(&sb);
}

static Status write_dump(const char *dir, Diag *d, int number, const char *name,
                         const StrBuf *text) {
    StrBuf path = {0};
    if (mkdir(dir, 0777) && errno != EEXIST)
        return fail(d, (Loc){.file = dir}, "%s", strerror(errno));
    sb_printf(&path, "%s/%02d-%s.amp", dir, number, name);
    FILE *f = fopen(path.data, "w");
    bool ok = f && fwrite(text->data, 1, text->len, f) == text->len;
    ok = f && fclose(f) == 0 && ok;
    Status s =
        ok ? OK
           : fail(d, (Loc){.file = intern(path.data)}, "%s", strerror(errno));
    sb_free(&path);
    return s;
}

/* The module's text after a pass, to the dump directory and m->texts. */
static Status record(Module *m, const Options *opt, Diag *d, const char *name,
                     bool keep) {
    Status s = OK;
    if (!opt->dump_ir && !keep) return OK;
    StrBuf text = {0};
    print_module(m, &text);
    if (opt->dump_ir) s = write_dump(opt->dump_ir, d, m->passes, name, &text);
    if (keep) {
        char *copy = arena_dup(m->arena, text.data, text.len + 1);
        StageText t = {intern(name), copy, text.len};
        vec_push(m->arena, &m->texts, t);
    }
    sb_free(&text);
    return s;
}

static const PassInfo *find_pass(const char *name, size_t n) {
    for (int i = 0; i < pass_count; i++)
        if (strlen(pass_table[i].name) == n &&
            !strncmp(pass_table[i].name, name, n))
            return &pass_table[i];
    return NULL;
}

static void verify_or_die(Module *m) {
    Diag bugs = {0};
    if (verify_module(m, (Stage)m->stage, &bugs) == OK) return;
    fputs(bugs.text.data, stderr);
    ASSERT(!"the IR is wrong after a pass");
}

static Status run_one(const Runner *r, Diag *d, const Options *opt) {
    PassCtx cx = {arena_new(), d, opt};
    Status s = r->pass->fn(r->m, &cx);
    arena_free(cx.scratch);
    if (s != OK) return s;
    if ((int)r->pass->stage > r->m->stage) r->m->stage = (int)r->pass->stage;
    r->m->passes++;
    verify_or_die(r->m);
    return OK;
}

Status run_passes(Module *m, Diag *d, const Options *opt, const char *names,
                  bool keep) {
    Runner r = {m, NULL};
    Status s = m->passes ? OK : record(m, opt, d, "import", keep);
    assert_set_hook(dump_on_bug, &r);
    for (const char *p = names; *p && s == OK;) {
        size_t n = strcspn(p, ",");
        r.pass = find_pass(p, n);
        if (!r.pass) {
            fail(d, (Loc){0}, "no pass named '%.*s'", (int)n, p);
            s = ERR_USAGE;
            break;
        }
        s = run_one(&r, d, opt);
        if (s == OK) s = record(m, opt, d, r.pass->name, keep);
        p += n + (p[n] == ',');
    }
    assert_set_hook(NULL, NULL);
    return s;
}
