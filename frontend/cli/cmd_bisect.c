/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_bisect.c: ampc bisect A.so B.so --feed NAME=FILE ..: finds the first
   value in which two modules differ.

   Both start from A's variables and make the same steps.  Values that both
   store under one name are compared in the order of B's step. At the first that
   differs by more than the tolerance, the nodes of its kernel are interpreted
   for both modules from the same operands. If the interpreted results
   differ, the modules compute different things. If they agree but memory
   differs from them, a module's code is wrong. In both cases only if they
   differ by more than rounding explains (cmd_bisect_rounding.c). Otherwise the
   value is nothing but rounding error, or operands that agree within the
   tolerance were amplified.

   Rounding also decides which of nearly equal numbers is the largest. An index
   or a comparison that differs for that reason is no difference, and nodes that
   read it are interpreted with A's for both modules. */
#include "frontend/cli/cmd_bisect.h"
#include "ir/text/text.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* Two values of a step. */
typedef struct Pair {
    const Tensor *a, *b;
    double ratio; /* times a: a gradient that only another loss scale multiplies
                     is equal */
    double apart, size; /* relative distance, and what it is relative to */
} Pair;

static Pair pair_by(const Tensor *ta, double ratio, const Tensor *tb) {
    return (Pair){ta, tb, ratio, tensors_apart(ta, ratio, tb),
                  fmax(ratio * tensor_size(ta), tensor_size(tb))};
}

static Pair pair_of(const Bisect *b, const Tensor *ta, const Tensor *tb) {
    double ratio = side_scale(&b->side[1]) / side_scale(&b->side[0]);
    Pair plain = pair_by(ta, 1, tb);
    if (ratio == 1) return plain;
    Pair scaled = pair_by(ta, ratio, tb);
    return scaled.apart < plain.apart ? scaled : plain;
}

/* The part of the pair's size that roundings explain if they move the values
   by this much. */
static double explained(const Pair *p, double moved_a, double moved_b) {
    const double several = 4; /* a deviation of random numbers, seen in a few
                                 repetitions */
    double most = several * fmax(p->ratio * moved_a, moved_b);
    return most == 0 ? 0 : most / p->size;
}

static void part_at(Bisect *b, const Seen *pa, const Seen *pb, Str name,
                    const Pair *p, double limit, Cause cause) {
    ValueId va = graph_find_value(pa->g, name);
    ValueId vb = graph_find_value(pb->g, name);
    const Value *val = value_get(pb->g, vb);
    int64_t at = tensors_furthest(p->a, p->ratio, p->b);
    b->part = (Part){
        .found = true,
        .program = pb->g->name,
        .value = name,
        .node = val->kind == VK_RESULT ? node_get(pb->g, val->def)->loc.named
                                       : NULL,
        .apart = p->apart,
        .limit = limit,
        .cause = cause,
        .element = at,
        .number = {p->ratio * tensor_get(p->a, at), tensor_get(p->b, at)},
        .line = {line_of(b, pa->g, va), line_of(b, pb->g, vb)}};
}

static const Tensor *settled(const Slice *x, ValueId v, Arena *a) {
    TypeId type = value_get(x->p->g, v)->type;
    return x->value[v.i] ? eval_to_tensor(a, x->value[v.i], type) : NULL;
}

/* Two slices, run from equal operands. */
typedef struct Slices {
    Slice a, b;
    double *moved_a,
        *moved_b; /* by roundings of one side; NULL: not known yet */
} Slices;

/* True if interpreted value w of A and v of B differ by more than the roundings
   of only one side explain; indices and comparisons, if they differ. */
static bool computed_apart(Bisect *b, Slices *x, ValueId w, ValueId v, Pair *p,
                           double *limit, Arena *a) {
    const double least = 1e-9; /* tolerance of an interpreter in double */
    const Tensor *ta = w.i ? settled(&x->a, w, a) : NULL;
    const Tensor *tb = settled(&x->b, v, a);
    if (!ta || !tb) return false;
    *p = pair_of(b, ta, tb);
    if (p->apart <= least) return false;
    if (x->b.chosen && x->b.chosen[v.i]) return false;
    if (!x->moved_a) x->moved_a = slice_moved(&x->a, NULL, ROUND_APART, a);
    if (!x->moved_b) x->moved_b = slice_moved(&x->b, &x->a, ROUND_APART, a);
    if (!x->moved_a || !x->moved_b) return false;
    *limit = least;
    if (dtype_is_float(value_dtype(x->b.p->g, v)))
        *limit = fmax(least, explained(p, x->moved_a[w.i], x->moved_b[v.i]));
    return p->apart > *limit;
}

static bool same_numbers(const Slices *x, ValueId w, ValueId v, Arena *a) {
    const Tensor *ta = settled(&x->a, w, a), *tb = settled(&x->b, v, a);
    return ta && tb && tensors_apart(ta, 1, tb) == 0;
}

/* B's nodes read A's indices and comparisons where B's differ; with `moved`
   only where rounding makes them differ. True if there are such, and B's slice
   has run again. */
static bool take_equal_choices(Slices *x, const Slice *like,
                               const double *moved, Arena *a) {
    const Graph *g = x->b.p->g;
    bool any = false;
    if (!x->b.chosen) x->b.chosen = NEW_ARRAY(a, EvalTensor *, g->values.len);
    for (int i = 0; i < x->b.order.len; i++) {
        const Node *n = node_get(g, x->b.order.data[i]);
        for (int k = 0; k < n->nout; k++) {
            ValueId v = n->out[k];
            const EvalTensor *own = x->b.value[v.i];
            if (!own || own->f || x->b.chosen[v.i]) continue;
            ValueId w = graph_find_value(x->a.p->g, value_get(g, v)->name);
            EvalTensor *theirs = w.i ? x->a.value[w.i] : NULL;
            if (!theirs || theirs->f ||
                !shape_equal(value_type(x->a.p->g, w), value_type(g, v)) ||
                same_numbers(x, w, v, a) ||
                (moved &&
                 !is_rounded_to(&x->b, v, theirs, moved, ROUND_APART, a)))
                continue;
            x->b.chosen[v.i] = theirs;
            any = true;
        }
    }
    Diag quiet = {0};
    any = any && slice_run(&x->b, like, a, &quiet) == OK;
    sb_free(&quiet.text);
    if (any) x->moved_b = NULL; /* found anew */
    return any;
}

/* Where values va and vb, computed from equal operands, differ: the first node
   on the way to them whose results do. Inner values may have one name by
   chance: they do not count if va and vb are equal. */
static bool part_inside(Bisect *b, Slices *x, ValueId va, ValueId vb,
                        Arena *a) {
    Pair p;
    double limit;
    do
        if (!computed_apart(b, x, va, vb, &p, &limit, a)) return false;
    while (take_equal_choices(x, &x->a, x->moved_b, a));
    for (int i = 0; i < x->b.order.len; i++) {
        const Node *n = node_get(x->b.p->g, x->b.order.data[i]);
        for (int k = 0; k < n->nout; k++) {
            Str name = value_get(x->b.p->g, n->out[k])->name;
            ValueId w = graph_find_value(x->a.p->g, name);
            if (!computed_apart(b, x, w, n->out[k], &p, &limit, a)) continue;
            part_at(b, x->a.p, x->b.p, name, &p, limit, CAUSE_IR);
            return true;
        }
    }
    return false;
}

/* The distance that roundings explain between what the interpreter computes and
   what is stored. */
static double limit_of_code(Slice *x, ValueId v, const Pair *p, Arena *a) {
    const double *moved = slice_moved(x, NULL, ROUND_CODE, a);
    if (!moved) return INFINITY;
    if (dtype_is_float(value_dtype(x->p->g, v)))
        return explained(p, 0, moved[v.i]);
    const EvalTensor *stored = eval_from_tensor(a, p->a);
    return is_rounded_to(x, v, stored, moved, ROUND_CODE, a) ? INFINITY : 0;
}

/* True if memory holds other numbers than the interpreter computes from the
   same operands, and no rounding explains it. */
static bool code_is_apart(Bisect *b, Slice *x, ValueId v, const Tensor *stored,
                          Cause cause, Arena *a) {
    Diag quiet = {0};
    Status st = slice_run(x, NULL, a, &quiet);
    sb_free(&quiet.text);
    const Tensor *made = st == OK ? settled(x, v, a) : NULL;
    if (!made) return false;
    Pair p = pair_by(stored, 1, made);
    if (p.apart <= b->tolerance) return false;
    double limit = fmax(limit_of_code(x, v, &p, a), b->tolerance);
    if (p.apart <= limit) return false;
    Str name = value_get(x->p->g, v)->name;
    part_at(b, b->side == x->side ? x->p : x->q,
            b->side == x->side ? x->q : x->p, name, &p, limit, cause);
    return true;
}

/* Why nobody is at fault for values that only their operands make differ:
   roundings explain the whole value, or equal choices make the values equal. */
static Mark excuse_of(Bisect *b, Slices *x, ValueId va, ValueId vb,
                      const Pair *p, Arena *a) {
    Diag quiet = {0};
    bool run = slice_run(&x->a, NULL, a, &quiet) == OK &&
               slice_run(&x->b, NULL, a, &quiet) == OK;
    sb_free(&quiet.text);
    double *moved_a = run ? slice_moved(&x->a, NULL, ROUND_ALL, a) : NULL;
    double *moved_b = run ? slice_moved(&x->b, NULL, ROUND_ALL, a) : NULL;
    if (moved_a && moved_b && explained(p, moved_a[va.i], moved_b[vb.i]) >= 1)
        return MARK_NOISE;
    if (!run || !take_equal_choices(x, NULL, NULL, a)) return MARK_NONE;
    const Tensor *ta = settled(&x->a, va, a), *tb = settled(&x->b, vb, a);
    bool agree =
        ta && tb &&
        pair_of(b, ta, tb).apart <=
            allowed(b, type_get(ta->type)->dtype, type_get(tb->type)->dtype);
    return agree ? MARK_CHOSEN : MARK_NONE;
}

static void keep_grown(Bisect *b, const Seen *pa, const Seen *pb, Str name,
                       const Pair *p) {
    part_at(b, pa, pb, name, p, b->tolerance, CAUSE_GROWN);
    b->grown = b->part;
    b->part = (Part){0};
}

/* Values va and vb, stored as these two, differ. Returns why that is nobody's
   fault. */
static Mark look_into(Bisect *b, const Seen *pa, ValueId va, const Seen *pb,
                      ValueId vb, const Pair *p) {
    const double most = 1e9;   /* limit of multiply-adds that are interpreted */
    const double noise = 1e-6; /* tolerance of sums in fp32 that are too long to
                                  be interpreted, relative to their terms */
    Slices x = {0};
    Arena *a = arena_new();
    Diag quiet = {0};
    Str name = value_get(pb->g, vb)->name;
    Mark mark = pb->mark[vb.i];
    bool both = slice_find(&x.a, &b->side[0], pa, va, &b->side[1], pb) &&
                slice_find(&x.b, &b->side[1], pb, vb, &b->side[0], pa);
    bool run = both && x.a.work + x.b.work < most &&
               slice_run(&x.a, NULL, a, &quiet) == OK &&
               slice_run(&x.b, &x.a, a, &quiet) == OK;
    sb_free(&quiet.text);
    bool inside = run && part_inside(b, &x, va, vb, a);
    x.b.chosen = NULL;
    if (inside) {
        if (b->part.value != name)
            b->part.of = name, b->part.of_apart = p->apart;
    } else if (!run &&
               p->apart * p->size <=
                   noise * (both ? fmax(x.a.largest, x.b.largest) : 0)) {
        mark = MARK_NOISE;
    } else if (run && (code_is_apart(b, &x.a, va, p->a, CAUSE_A, a) ||
                       code_is_apart(b, &x.b, vb, p->b, CAUSE_B, a))) {
        /* told */    } else if (mark == MARK_BEHIND) {
            /* its operands differ */
        } else if (run && !dtype_is_float(value_dtype(pb->g, vb))) {
            mark = MARK_CHOSEN;
        } else if (!b->grown.found) {
            mark = run ? excuse_of(b, &x, va, vb, p, a) : MARK_NONE;
            if (mark == MARK_NONE) keep_grown(b, pa, pb, name, p);
        }
        pa->mark[va.i] = pb->mark[vb.i] = mark;
        if (pb->told[vb.i] == MARK_NONE) pb->told[vb.i] = mark;
        b->looks++;
        arena_free(a);
        return mark;
}

/* ---- a step -------------------------------------------------------------- */

static void compare_values(Bisect *b, const Seen *pa, const Seen *pb,
                           const Node *n) {
    enum { LOOKS = 300 };
    Mark behind = MARK_NONE;
    for (int k = 0; k < n->nin; k++)
        if (n->in[k].i && mark_of(&b->side[1], pb, n->in[k]) >= MARK_CHOSEN)
            behind = MARK_BEHIND;
    for (int k = 0; k < n->nout && !b->part.found && b->looks < LOOKS; k++) {
        ValueId v = n->out[k];
        Str name = v.i ? value_get(pb->g, v)->name : NULL;
        ValueId w = name ? graph_find_value(pa->g, name) : NO_VALUE;
        if (!v.i) continue;
        pb->mark[v.i] = behind;
        if (!w.i || !pa->bytes[w.i] || !pb->bytes[v.i]) continue;
        pa->mark[w.i] = behind;
        Tensor ta = {value_get(pa->g, w)->type, pa->bytes[w.i]};
        Tensor tb = {value_get(pb->g, v)->type, pb->bytes[v.i]};
        if (type_count(type_get(ta.type)) != type_count(type_get(tb.type)))
            continue;
        Pair p = pair_of(b, &ta, &tb);
        if (p.apart >
            allowed(b, type_get(ta.type)->dtype, type_get(tb.type)->dtype))
            look_into(b, pa, w, pb, v, &p);
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

static void part_of_variable(Bisect *b, Before *v, Before *w, const Pair *p) {
    v->mark = w->mark = MARK_NONE;
    for (int i = b->side[1].seen.len - 1; i >= 0 && !b->part.found; i--) {
        const Seen *pb = &b->side[1].seen.data[i];
        const Seen *pa = side_program(&b->side[0], pb->g->name);
        ValueId to = written_to(pb, v->info.name);
        ValueId from = pa ? written_to(pa, v->info.name) : NO_VALUE;
        if (!to.i || !from.i) continue;
        Mark mark = pb->mark[to.i];
        if (p->apart > b->tolerance) mark = look_into(b, pa, from, pb, to, p);
        if (mark != MARK_NONE) v->mark = w->mark = mark;
    }
}

static bool same_shape(const Before *a, const Before *b) {
    return a->info.bytes == b->info.bytes && a->info.dtype == b->info.dtype;
}

static Status compare_variables(Bisect *b) {
    for (int i = 0; i < b->side[0].before.len && !b->part.found; i++) {
        Before *v = &b->side[0].before.data[i];
        Before *w = side_before(&b->side[1], v->info.name);
        if (!travels(v) || !w || !same_shape(v, w)) continue;
        Arena *a = arena_new();
        Tensor ta = {bisect_type_of(v), arena_alloc(a, v->info.bytes + 1)};
        Tensor tb = {ta.type, arena_alloc(a, v->info.bytes + 1)};
        Status st = side_now(&b->side[0], v, ta.data);
        if (st == OK) st = side_now(&b->side[1], w, tb.data);
        if (st == OK) {
            Pair p = pair_by(&ta, 1, &tb);
            part_of_variable(b, v, w, &p);
        }
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
        int64_t at = tensors_furthest(&ta, 1, &tb);
        if (apart <= b->tolerance) continue;
        b->part = (Part){.found = true,
                         .value = intern(v->info.name),
                         .apart = apart,
                         .limit = b->tolerance,
                         .cause = CAUSE_START,
                         .element = at,
                         .number = {tensor_get(&ta, at), tensor_get(&tb, at)}};
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

/* The fewest significant bits of the 16-bit values in its programs; INT_MAX: it
   has none. */
static int least_bits(const Side *x) {
    int bits = INT_MAX;
    for (int i = 0; i < x->m->graphs.len; i++) {
        const Graph *g = x->m->graphs.data[i];
        for (int v = 1; v < g->values.len; v++) {
            DType d = value_dtype(g, (ValueId){(uint32_t)v});
            if (dtype_is_low(d) && dtype_info[d].mantissa < bits)
                bits = dtype_info[d].mantissa;
        }
    }
    return bits;
}

/* The error that another order of sums, or other roundings, may cause. */
static double usual_tolerance(const Bisect *b) {
    int bits = least_bits(&b->side[0]);
    if (bits != least_bits(&b->side[1])) return 5e-2;
    return bits == INT_MAX ? 1e-5 : 1e-3;
}

static Status bisect_compare(Bisect *b) {
    int64_t at = 0;
    for (int i = 0; i < 2; i++)
        TRY(side_open(&b->side[i], b->s, &b->opt, b->path[i]));
    for (int i = 0; i < 2; i++) {
        TRY(side_feed(&b->side[i]));
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
