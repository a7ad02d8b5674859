/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_bisect.c: ampc bisect A.so B.so --feed NAME=FILE ..: finds the first
   value in which two modules differ.

   Both start from A's variables and make the same steps.  Values that both
   store under one name are compared in the order of B's step. At the first that
   differs by more than the tolerance, the nodes of its kernel are interpreted
   for both modules from the same operands. If the interpreted results
   differ, the modules compute different things. If they agree but memory
   differs from them, a module's code is wrong. Otherwise operands that agree
   within the tolerance were amplified. */
#include "frontend/cli/cmd_bisect.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum Cause {
    CAUSE_START,
    CAUSE_IR,
    CAUSE_A,
    CAUSE_B,
    CAUSE_GROWN
} Cause;

typedef struct Part {
    bool found;
    int64_t step;        /* from 1 */
    const char *program; /* NULL: before the first step */
    Str value, node;
    double apart;
    Cause cause;
    char *line[2]; /* the node in A and in B; NULL: no node differs */
} Part;

typedef struct Bisect {
    Session *s;
    RunOptions opt;
    const char *path[2];
    Side side[2];
    int64_t steps;
    double tolerance; /* < 0: chosen by the modules' precision */
    bool json;
    Part part;
    Part grown; /* the first value that was only amplified, used unless a
                   cause is found later */
    int looks;  /* number of values interpreted in this step */
} Bisect;

/* ---- a value that parts -------------------------------------------------- */

static char *line_of(Bisect *b, const Graph *g, ValueId v) {
    StrBuf sb = {0};
    if (!v.i || value_get(g, v)->kind != VK_RESULT) return NULL;
    print_node(g, node_get(g, value_get(g, v)->def), &sb);
    char *line =
        arena_printf(b->s->arena, "%.*s", (int)strcspn(sb.data, "\n"), sb.data);
    sb_free(&sb);
    return line;
}

/* Values of two dtypes differ by their roundings. */
static double allowed(const Bisect *b, DType x, DType y) {
    int bits = INT_MAX;
    if (dtype_is_low(x)) bits = dtype_info[x].mantissa;
    if (dtype_is_low(y) && dtype_info[y].mantissa < bits)
        bits = dtype_info[y].mantissa;
    return fmax(b->tolerance, x == y ? 0 : ldexp(1, 1 - bits));
}

/* The distance of two values of a step. A gradient that only another loss scale
   multiplies is equal. */
static double values_apart(const Bisect *b, const Tensor *ta,
                           const Tensor *tb) {
    double ratio = side_scale(&b->side[1]) / side_scale(&b->side[0]);
    double apart = tensors_apart(ta, 1, tb);
    return ratio == 1 ? apart : fmin(apart, tensors_apart(ta, ratio, tb));
}

static void part_at(Bisect *b, const Seen *pa, const Seen *pb, Str name,
                    double apart, Cause cause) {
    ValueId va = graph_find_value(pa->g, name);
    ValueId vb = graph_find_value(pb->g, name);
    const Value *val = value_get(pb->g, vb);
    b->part.found = true;
    b->part.program = pb->g->name;
    b->part.value = name;
    b->part.apart = apart;
    b->part.cause = cause;
    b->part.line[0] = line_of(b, pa->g, va);
    b->part.line[1] = line_of(b, pb->g, vb);
    if (val->kind == VK_RESULT)
        b->part.node = node_get(pb->g, val->def)->loc.named;
}

static const Tensor *settled(const Slice *x, ValueId v, Arena *a) {
    TypeId type = value_get(x->p->g, v)->type;
    return x->value[v.i] ? eval_to_tensor(a, x->value[v.i], type) : NULL;
}

/* The first node of the slices whose results differ though its operands are
   equal. */
static bool part_inside(Bisect *b, const Slice *xa, const Slice *xb, Arena *a) {
    const double least = 1e-9; /* tolerance of an interpreter in double */
    const double several = 4;  /* tolerance of roundings, once dtypes have
                                  differed */
    bool rounded = false;
    for (int i = 0; i < xb->order.len; i++) {
        const Node *n = node_get(xb->p->g, xb->order.data[i]);
        for (int k = 0; k < n->nout; k++) {
            Str name = value_get(xb->p->g, n->out[k])->name;
            ValueId w = graph_find_value(xa->p->g, name);
            const Tensor *tb = settled(xb, n->out[k], a);
            const Tensor *ta = w.i ? settled(xa, w, a) : NULL;
            if (!ta || !tb) continue;
            DType da = type_get(ta->type)->dtype,
                  db = type_get(tb->type)->dtype;
            double apart = values_apart(b, ta, tb);
            rounded |= da != db;
            if (apart <= (rounded ? several * allowed(b, da, db) : least))
                continue;
            part_at(b, xa->p, xb->p, name, apart, CAUSE_IR);
            return true;
        }
    }
    return false;
}

/* True if memory holds the interpreter's result for the same operands. */
static bool code_is_apart(Bisect *b, Slice *x, ValueId v, const Tensor *stored,
                          Arena *a) {
    if (slice_run(x, NULL, a, &b->s->diag) != OK) return false;
    const Tensor *made = settled(x, v, a);
    return made && tensors_apart(stored, 1, made) > b->tolerance;
}

/* Values va and vb, stored as ta and tb, differ by this much. */
static void look_into(Bisect *b, const Seen *pa, ValueId va, const Tensor *ta,
                      const Seen *pb, ValueId vb, const Tensor *tb,
                      double apart) {
    const double most = 1e9; /* limit of multiply-adds that are interpreted */
    const double noise =
        1e-6; /* tolerance of sums in fp32, relative to their terms */
    Slice xa, xb;
    Arena *a = arena_new();
    Diag quiet = {0};
    Str name = value_get(pb->g, vb)->name;
    bool both = slice_find(&xa, &b->side[0], pa, va, &b->side[1], pb) &&
                slice_find(&xb, &b->side[1], pb, vb, &b->side[0], pa);
    bool run = both && xa.work + xb.work < most &&
               slice_run(&xa, NULL, a, &quiet) == OK &&
               slice_run(&xb, &xa, a, &quiet) == OK;
    sb_free(&quiet.text);
    double difference = apart * fmax(tensor_size(ta), tensor_size(tb));
    double largest = both ? fmax(xa.largest, xb.largest) : 0;
    if (run && part_inside(b, &xa, &xb, a)) {
        /* told */
    } else if (difference <= noise * largest) {
        /* tolerance of a sum near 0, and of rounding */
    } else if (run && code_is_apart(b, &xa, va, ta, a)) {
        part_at(b, pa, pb, name, apart, CAUSE_A);
    } else if (run && code_is_apart(b, &xb, vb, tb, a)) {
        part_at(b, pa, pb, name, apart, CAUSE_B);
    } else if (!b->grown.found) {
        part_at(b, pa, pb, name, apart, CAUSE_GROWN);
        b->grown = b->part;
        b->part = (Part){0};
    }
    b->looks++;
    arena_free(a);
}

/* ---- a step -------------------------------------------------------------- */

static void compare_values(Bisect *b, const Seen *pa, const Seen *pb,
                           const Node *n) {
    enum { LOOKS = 300 };
    for (int k = 0; k < n->nout && !b->part.found && b->looks < LOOKS; k++) {
        ValueId v = n->out[k];
        Str name = v.i ? value_get(pb->g, v)->name : NULL;
        ValueId w = name ? graph_find_value(pa->g, name) : NO_VALUE;
        if (!w.i || !pa->bytes[w.i] || !pb->bytes[v.i]) continue;
        Tensor ta = {value_get(pa->g, w)->type, pa->bytes[w.i]};
        Tensor tb = {value_get(pb->g, v)->type, pb->bytes[v.i]};
        if (type_count(type_get(ta.type)) != type_count(type_get(tb.type)))
            continue;
        double apart = values_apart(b, &ta, &tb);
        if (apart >
            allowed(b, type_get(ta.type)->dtype, type_get(tb.type)->dtype))
            look_into(b, pa, w, &ta, pb, v, &tb, apart);
    }
}

static void compare_programs(Bisect *b) {
    for (int i = 0; i < b->side[1].seen.len && !b->part.found; i++) {
        const Seen *pb = &b->side[1].seen.data[i];
        const Seen *pa = side_program(&b->side[0], pb->g->name);
        for (int k = 0; pa && k < pb->g->order.len && !b->part.found; k++)
            compare_values(b, pa, pb, node_at(pb->g, k));
    }
}

static bool travels(const Before *v) { return v->info.kind <= AMPC_KIND_STATE; }

static TypeId bisect_type_of(const Before *v) {
    return type_make((DType)v->info.dtype, v->info.rank, v->info.shape);
}

/* The value that the program writes to a variable; 0: none. */
static ValueId written_to(const Seen *p, const char *name) {
    for (int i = 0; p && i < p->g->writes.len; i++)
        if (!strcmp(value_var(p->g, p->g->writes.data[i].var)->name, name))
            return p->g->writes.data[i].value;
    return NO_VALUE;
}

static void part_of_variable(Bisect *b, const Before *v, const Tensor *ta,
                             const Tensor *tb, double apart) {
    for (int i = b->side[1].seen.len - 1; i >= 0 && !b->part.found; i--) {
        const Seen *pb = &b->side[1].seen.data[i];
        const Seen *pa = side_program(&b->side[0], pb->g->name);
        ValueId w = written_to(pb, v->info.name);
        ValueId from = pa ? written_to(pa, v->info.name) : NO_VALUE;
        if (!w.i || !from.i) continue;
        look_into(b, pa, from, ta, pb, w, tb, apart);
        if (b->part.found) return;
    }
}

static bool same_shape(const Before *a, const Before *b) {
    return a->info.bytes == b->info.bytes && a->info.dtype == b->info.dtype;
}

static Status compare_variables(Bisect *b) {
    for (int i = 0; i < b->side[0].before.len && !b->part.found; i++) {
        const Before *v = &b->side[0].before.data[i];
        const Before *w = side_before(&b->side[1], v->info.name);
        if (!travels(v) || !w || !same_shape(v, w)) continue;
        Arena *a = arena_new();
        Tensor ta = {bisect_type_of(v), arena_alloc(a, v->info.bytes + 1)};
        Tensor tb = {ta.type, arena_alloc(a, v->info.bytes + 1)};
        Status st = side_now(&b->side[0], v, ta.data);
        if (st == OK) st = side_now(&b->side[1], w, tb.data);
        double apart = st == OK ? tensors_apart(&ta, 1, &tb) : 0;
        if (apart > b->tolerance) part_of_variable(b, v, &ta, &tb, apart);
        arena_free(a);
        TRY(st);
    }
    return OK;
}

/* ---- the start ----------------------------------------------------------- */

/* Initial values that both modules start with, unless a file supplies them. */
static void compare_start(Bisect *b) {
    for (int i = 0; i < b->side[0].before.len && !b->part.found; i++) {
        const Before *v = &b->side[0].before.data[i];
        const Before *w = side_before(&b->side[1], v->info.name);
        bool given = b->opt.load.n && travels(v);
        if (!w || given || !same_shape(v, w) ||
            v->info.kind == AMPC_KIND_SHADOW ||
            v->info.kind == AMPC_KIND_GRADIENT)
            continue;
        Tensor ta = {bisect_type_of(v), v->bytes}, tb = {ta.type, w->bytes};
        double apart = tensors_apart(&ta, 1, &tb);
        if (apart <= b->tolerance) continue;
        b->part = (Part){.found = true,
                         .value = intern(v->info.name),
                         .apart = apart,
                         .cause = CAUSE_START};
    }
}

/* Copies A's variables to B. */
static Status copy_variables(Bisect *b) {
    Side *to = &b->side[1];
    for (int i = 0; i < b->side[0].before.len; i++) {
        const Before *v = &b->side[0].before.data[i];
        const Before *w = side_before(to, v->info.name);
        if (!w || !travels(v) || !same_shape(v, w)) continue;
        ampc_input in = ampc_in(v->info.name, v->bytes, v->info.bytes,
                                (ampc_dtype)v->info.dtype);
        if (to->run.api->write_variable(to->run.s, v->info.name, &in) !=
            AMPC_OK)
            return fail(&b->s->diag, (Loc){.file = to->opt.module}, "%s",
                        to->run.api->error(to->run.s));
    }
    return OK;
}

static bool is_low(const Side *x) {
    for (int i = 0; i < x->m->graphs.len; i++) {
        const Graph *g = x->m->graphs.data[i];
        for (int v = 1; v < g->values.len; v++)
            if (dtype_is_low(value_dtype(g, (ValueId){(uint32_t)v})))
                return true;
    }
    return false;
}

/* The error that another order of sums, or other roundings, may cause. */
static double usual_tolerance(const Bisect *b) {
    bool low_a = is_low(&b->side[0]), low_b = is_low(&b->side[1]);
    if (low_a != low_b) return 5e-2;
    return low_a ? 1e-3 : 1e-5;
}

static Status bisect_compare(Bisect *b) {
    int64_t at = 0;
    for (int i = 0; i < 2; i++) {
        TRY(side_open(&b->side[i], b->s, &b->opt, b->path[i]));
        Status st = i && !b->opt.load.n ? OK : run_load(&b->side[i].run);
        if (b->side[i].run.diag.text.data)
            sb_puts(&b->s->diag.text, b->side[i].run.diag.text.data);
        TRY(st);
        TRY(side_keep(&b->side[i]));
    }
    if (b->tolerance < 0) b->tolerance = usual_tolerance(b);
    compare_start(b);
    if (b->part.found) return OK;
    TRY(copy_variables(b));
    for (int64_t step = 1; step <= b->steps; step++) {
        for (int i = 0; i < 2; i++) TRY(side_step(&b->side[i], at));
        b->looks = 0;
        compare_programs(b);
        if (!b->part.found) TRY(compare_variables(b));
        if (!b->part.found) b->part = b->grown;
        b->part.step = step;
        if (b->part.found) return OK;
        const Run *r = &b->side[0].run;
        at += r->info.accumulate *
              (b->side[0].feed.batch > 0 ? b->side[0].feed.batch : 1);
    }
    return OK;
}

/* ---- telling ------------------------------------------------------------- */

static const char *const cause_words[] = {
    [CAUSE_START] = "start", [CAUSE_IR] = "model",    [CAUSE_A] = "code of A",
    [CAUSE_B] = "code of B", [CAUSE_GROWN] = "grown",
};

static const char *const cause_text[] = {
    [CAUSE_START] = "they begin with other numbers",
    [CAUSE_IR] = "from equal operands the two modules compute something else",
    [CAUSE_A] = "A stores other numbers than its IR says: its code is at fault",
    [CAUSE_B] = "B stores other numbers than its IR says: its code is at fault",
    [CAUSE_GROWN] =
        "the operands agree within the tolerance; this op amplifies their "
        "difference",
};

static void put_bisect_text(const Bisect *b, StrBuf *sb) {
    const Part *p = &b->part;
    if (!p->found) {
        sb_printf(sb,
                  "no difference above %g in %lld steps: loss %.9g and "
                  "%.9g in the last\n",
                  b->tolerance, (long long)b->steps, b->side[0].metrics.loss,
                  b->side[1].metrics.loss);
        return;
    }
    if (p->program)
        sb_printf(sb, "step %lld, program %s, value %%", (long long)p->step,
                  p->program);
    else
        sb_puts(sb, "before the first step, variable ");
    sb_put_escaped(sb, p->value);
    if (p->node) {
        sb_puts(sb, " of node ");
        sb_put_escaped(sb, p->node);
    }
    sb_printf(sb, ": %.2g apart (tolerance %g)\n%s\n", p->apart, b->tolerance,
              cause_text[p->cause]);
    for (int i = 0; i < 2; i++)
        if (p->line[i]) sb_printf(sb, "  %c: %s\n", 'A' + i, p->line[i]);
}

static void put_field(StrBuf *sb, const char *key, const char *text) {
    sb_puts(sb, ",");
    sb_put_json_field(sb, key, text);
}

static void put_bisect_json(const Bisect *b, StrBuf *sb) {
    const Part *p = &b->part;
    sb_printf(sb, "{\"part\":%s,\"tolerance\":%.9g",
              p->found ? "true" : "false", b->tolerance);
    if (p->found) {
        sb_printf(sb, ",\"step\":%lld", (long long)p->step);
        put_field(sb, "program", p->program);
        put_field(sb, "value", p->value);
        put_field(sb, "node", p->node);
        put_field(sb, "cause", cause_words[p->cause]);
        put_field(sb, "a", p->line[0]);
        put_field(sb, "b", p->line[1]);
        if (isfinite(p->apart)) sb_printf(sb, ",\"apart\":%.9g", p->apart);
    }
    sb_puts(sb, "}\n");
}

/* ---- the command --------------------------------------------------------- */

static Status bisect_usage(Bisect *b, const char *what, const char *arg) {
    fail(&b->s->diag, (Loc){0}, "%s '%s' (see ampc bisect --help)", what, arg);
    return ERR_USAGE;
}

static Status take_bisect_arg(Bisect *b, char **argv, int left, int *used) {
    *used = 1;
    if (argv[0][0] != '-') {
        if (b->path[1]) return bisect_usage(b, "unexpected argument", argv[0]);
        b->path[b->path[0] != NULL] = argv[0];
        return OK;
    }
    if (option_of_run("bisect", argv[0]))
        return run_arg(&b->opt, &b->s->diag, argv, left, used);
    TRY(session_own(b->s, argv, left, used));
    return *used ? OK : bisect_usage(b, "unknown option", argv[0]);
}

/* Reads a number of at least `least`; NULL leaves `*to` unchanged. */
static bool take_bisect_number(const char *text, double least, double *to) {
    if (!text) return true;
    char *end;
    *to = strtod(text, &end);
    return end != text && !*end && *to >= least && *to <= 1e9;
}

static Status take_args(Bisect *b, int argc, char **argv) {
    const OwnOptions *o = &b->s->own;
    b->s->command = "bisect";
    for (int i = 1, used; i < argc; i += used)
        TRY(take_bisect_arg(b, argv + i, argc - i, &used));
    if (!b->path[1])
        return bisect_usage(b, "two modules are needed after", argv[0]);
    double steps = (double)b->steps;
    if (!take_bisect_number(o->steps, 1, &steps))
        return bisect_usage(b, "--steps: expected a number from 1, got",
                            o->steps);
    if (!take_bisect_number(o->tolerance, 0, &b->tolerance))
        return bisect_usage(b, "--tolerance: expected a number from 0, got",
                            o->tolerance);
    b->steps = (int64_t)steps;
    b->json = o->json;
    return OK;
}

/* Returns status 1 if the modules differ, as diff does. */
int cmd_bisect(int argc, char **argv) {
    Session s;
    session_init(&s);
    Bisect b = {.s = &s, .steps = 10, .tolerance = -1};
    run_options_init(&b.opt);
    b.opt.quiet = true;
    b.opt.device = "cpu";
    Status st = take_args(&b, argc, argv);
    if (st == OK) st = bisect_compare(&b);
    if (st == OK) {
        StrBuf sb = {0};
        if (b.json)
            put_bisect_json(&b, &sb);
        else
            put_bisect_text(&b, &sb);
        fwrite(sb.data, 1, sb.len, stdout);
        sb_free(&sb);
        if (b.part.found) st = ERR_USER;
    }
    for (int i = 0; i < 2; i++) side_close(&b.side[i]);
    return session_end(&s, st);
}
