/* SPDX-License-Identifier: Apache-2.0 */
/* report.c: the compiler's decisions, for people (text) and for tools
   (JSON). */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "frontend/report/report.h"
#include "ir/base/facts.h"
#include "passes/codes.h"
#include "passes/common/bounds.h"
#include "passes/device/flow.h"
#include "passes/passes.h"

void fact_type(Facts *f, const char *key, TypeId t) {
    StrBuf type = {0};
    sb_put_type(&type, t);
    fact_form(f, key, "\"%s\"", "%s", type.data);
    sb_free(&type);
}

/* ---- casts --------------------------------------------------------------- */

/* Memory and traffic of a planned program's values. */
typedef struct Storage {
    Graph *g;
    const Flow *f;
    int *reads;          /* per root: number of groups that read it */
    const bool *saved;   /* flow_kept                                       */
    int *var_reads;      /* per variable: number of groups that read it */
    const Node **reader; /* per value: its first reader; NULL: none */
    const double *most;  /* bounds_find */
} Storage;

const char *report_part_of(const Node *n) {
    if (n->flags & NODE_UPDATE) return "update";
    return n->flags & NODE_BACKWARD ? "backward" : "forward";
}

static Storage storage_new(Graph *g, Arena *a) {
    const Flow *f = flow_new(g, a);
    int n = g->values.len;
    Storage l = {g,
                 f,
                 NEW_ARRAY(a, int, n),
                 flow_kept(f, a),
                 NEW_ARRAY(a, int, g->module->vars.len + 1),
                 NEW_ARRAY(a, const Node *, n),
                 bounds_find(g, a)};
    for (int i = 0; i < g->order.len; i++) {
        const Node *x = node_at(g, i);
        for (int k = 0; k < x->nin; k++)
            if (!l.reader[x->in[k].i]) l.reader[x->in[k].i] = x;
    }
    for (int i = 0; i < f->read_at[f->ngroup]; i++) {
        const Value *val = value_get(g, f->read[i]);
        l.reads[f->read[i].i]++;
        if (val->kind == VK_VAR) l.var_reads[val->var]++;
    }
    return l;
}

/* Values without a reason are partial sums, which pass reduce adds after
   dtypes are chosen. */
static const char *why_f32(const Storage *l, ValueId v) {
    const char *why = value_get(l->g, v)->why;
    return why ? why : l->g->module->rule ? l->g->module->rule : "a sum";
}

static bool is_stored(const Storage *l, ValueId v) {
    return l->f->def[v.i] >= 0 && l->f->stored[v.i];
}

/* Bytes of one write and of a read per reading kernel; 0 if v is not stored. */
static int64_t moved(const Storage *l, ValueId v) {
    return is_stored(l, v) ? flow_bytes(l->f, v) * (1 + l->reads[v.i]) : 0;
}

/* Extra bytes per step if the readers of a cast read its operand instead.
   For the 16-bit copy of a parameter: if matrix products read the parameter. */
static int64_t without(const Storage *l, const Node *n) {
    ValueId from = n->in[0], to = n->out[0], source = l->f->root[from.i];
    if (!is_stored(l, to)) return 0;
    int64_t wide = type_bytes(value_type(l->g, from));
    int64_t narrow = type_bytes(value_type(l->g, to));
    bool there = l->f->def[source.i] < 0 || l->f->stored[source.i];
    int home = value_get(l->g, to)->home;
    int reads = l->reads[to.i] + (home >= 0 ? l->var_reads[home] : 0);
    return wide * (reads + !there) - narrow * (reads + 1);
}

static const char *cast_reason(const Graph *g, const Node *n, const Node *r) {
    if (codes_value(g, n->out[0]).i) return "kept for backward by --keep f8";
    const Value *to = value_get(g, n->out[0]);
    if (dtype_info[value_dtype(g, n->out[0])].stored && to->why) return to->why;
    if (attr_int(n, AK_user)) return "written in the model";
    if (n->flags & NODE_UPDATE && dtype_is_low(value_dtype(g, n->out[0])))
        return "the copy that products read";
    if (!r) return "the declared type of an output or variable";
    if (op_info[r->op].amp == AMP_LOW) return "products read 16 bits";
    return "computes in fp32";
}

/* The kernel of a node, named by its last result; NULL: the kernel is only
   the cast. */
static const char *kernel_of(const Storage *l, const Node *n) {
    const Flow *f = l->f;
    const Node *last = NULL;
    bool alone = true;
    for (int i = f->first[n->group]; i < f->end[n->group]; i++) {
        last = node_at(l->g, i);
        alone &= last->op == OP_CAST;
    }
    return alone ? NULL : value_get(l->g, last->out[0])->name;
}

/* The layer, or the node of the model, that a node belongs to. */
static void add_of(Facts *f, const Node *n) {
    const char *of = n->loc.layer ? n->loc.layer : n->loc.named;
    fact_name(f, "of", of, NULL, NULL);
}

/* An error budget measures the gradient only if it limits its error. */
static void add_errors(Facts *f, const Value *v) {
    static const char *const text[NUM_ERRORS][2] = {
        [ERROR_LOSS] = {"adds_loss", ", adds %.1e to the error of the loss"},
        [ERROR_GRADIENT] = {"adds_gradient",
                            ", adds %.1e to the error of the gradient"}};
    for (int k = 0; k < NUM_ERRORS; k++)
        if (v->adds[k] > 0)
            fact_form(f, text[k][0], "%.2e", text[k][1], (double)v->adds[k]);
}

static void cast_line(const Storage *l, const Node *n, FactList *casts) {
    const Graph *g = l->g;
    const Node *r = l->reader[n->out[0].i];
    const Value *from = value_get(g, n->in[0]);
    Facts f = {.json = casts->json};
    fact_name(&f, "value", from->name ? from->name : "(constant)", NULL, NULL);
    fact_type(&f, "from", from->type);
    fact_word(&f, "to", dtype_info[value_dtype(g, n->out[0])].text, NULL);
    fact_word(&f, "for", r ? op_info[r->op].text : "output", NULL);
    fact_word(&f, "why", cast_reason(g, n, r), NULL);
    fact_word(&f, "part", report_part_of(n), NULL);
    fact_name(&f, "kernel", kernel_of(l, n), "in the kernel of ",
              "a kernel of its own");
    fact_int(&f, "bytes", moved(l, n->out[0]), NULL);
    fact_int(&f, "without", without(l, n), "%+lld");
    add_of(&f, n);
    add_errors(&f, value_get(g, n->out[0]));
    facts_put(&f,
              "  cast {value} {from} -> {to} for {for}: {why}; {part}, "
              "{kernel}, {bytes} bytes (without it {without})"
              "{adds_loss}{adds_gradient}\n",
              fact_next(casts));
}

static void value_line(const Storage *l, ValueId id, FactList *values) {
    const Graph *g = l->g;
    const Value *v = value_get(g, id);
    const Node *n = node_get(g, v->def);
    bool low = g->module->low != NUM_DTYPES;
    bool wide = low && type_get(v->type)->dtype == DT_F32;
    Facts f = {.json = values->json};
    fact_name(&f, "value", v->name, NULL, NULL);
    fact_word(&f, "op", op_info[n->op].text, NULL);
    fact_type(&f, "type", v->type);
    fact_word(&f, "part", report_part_of(n), NULL);
    fact_int(&f, "bytes", moved(l, id), NULL);
    fact_bool(&f, "saved", l->saved[id.i], ", kept for backward");
    const char *codes = node_makes_blocks(n) && v->why ? v->why : "";
    fact_word(&f, "why", wide ? why_f32(l, id) : codes,
              wide ? "; f32: %s" : "; %s");
    if (isfinite(l->most[id.i]))
        fact_form(&f, "at_most", "%.4g", ", proven: at most %.4g",
                  l->most[id.i]);
    add_of(&f, n);
    add_errors(&f, v);
    facts_put(&f,
              "  {type} {op} {value}: {part}, {bytes} bytes{saved}{why}"
              "{at_most}{adds_loss}{adds_gradient}\n",
              fact_next(values));
}

static bool is_float_cast(const Graph *g, const Node *n) {
    return n->op == OP_CAST && n->group >= 0 &&
           dtype_is_float(value_dtype(g, n->in[0])) &&
           dtype_is_float(value_dtype(g, n->out[0])) &&
           value_dtype(g, n->in[0]) != value_dtype(g, n->out[0]);
}

static void casts_of_graph(Graph *g, FactList *programs) {
    Arena *a = arena_new();
    Storage l = storage_new(g, a);
    FactList casts = fact_lines(programs->json);
    FactList values = fact_lines(programs->json);
    Facts f = {.json = programs->json};
    int64_t bytes = 0;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (!is_float_cast(g, n)) continue;
        bytes += moved(&l, n->out[0]);
        cast_line(&l, n, &casts);
    }
    for (int i = 0; i < g->order.len; i++) {
        ValueId v = node_at(g, i)->out[0];
        if (is_stored(&l, v) && dtype_is_float(value_dtype(g, v)))
            value_line(&l, v, &values);
    }
    fact_word(&f, "program", g->name, NULL);
    fact_word(&f, "target", target_text[g->target], NULL);
    fact_words(&f, "sum", "  %d casts, %lld bytes; values in memory:\n",
               casts.n, (long long)bytes);
    fact_list(&f, "casts", &casts);
    fact_list(&f, "values", &values);
    facts_put(&f, "program {program} on {target}\n{casts}{sum}{values}",
              fact_next(programs));
    arena_free(a);
}

void report_casts(const Module *m, bool json, StrBuf *sb) {
    FactList programs = fact_lines(json);
    for (int i = 0; i < m->graphs.len; i++)
        casts_of_graph(m->graphs.data[i], &programs);
    fact_list_put(&programs, sb);
}

/* ---- in one line --------------------------------------------------------- */

typedef struct Share {
    const char *why;
    int values;
} Share;

typedef struct Sum {
    int products, low_products, f8_products, values, low_values;
    int64_t bytes, low_bytes;
    VEC(Share) wide; /* stored f32 values, by reason */
} Sum;

/* True if n widens a value of 8 bits. */
static bool widens_f8(const Graph *g, const Node *n) {
    return n && !n->fn && n->op == OP_CAST &&
           dtype_info[value_dtype(g, n->in[0])].stored;
}

/* True if n multiplies codes by the scales of their blocks. */
static bool is_of_blocks(const Graph *g, const Node *n) {
    if (n->fn || n->op != OP_MUL) return false;
    const Node *scale = value_maker(g, n->in[1]);
    return widens_f8(g, scale) && value_dtype(g, scale->in[0]) == DT_E8M0;
}

/* True if v is an f8 number, or one in 16 bits. */
static bool reads_f8(const Graph *g, ValueId v) {
    const Node *n;
    if (dtype_info[value_dtype(g, v)].stored) return true;
    while ((n = value_maker(g, v)) &&
           (is_of_blocks(g, n) || (!n->fn && node_kind(n) == KIND_VIEW)))
        v = n->in[0];
    return widens_f8(g, n);
}

static void sum_node(Sum *s, const Storage *l, const Node *n, Arena *a) {
    ValueId v = n->out[0];
    DType d = value_dtype(l->g, v);
    int i = 0;
    if (op_info[n->op].amp == AMP_LOW || n->op == OP_MATMUL_QUANTIZED) {
        s->products++;
        s->low_products += dtype_is_low(value_dtype(l->g, n->in[0]));
        s->f8_products += reads_f8(l->g, n->in[0]);
    }
    if (n->flags & NODE_UPDATE || !is_stored(l, v) || !dtype_is_float(d))
        return;
    s->values++;
    s->bytes += moved(l, v);
    if (dtype_is_low(d)) {
        s->low_values++;
        s->low_bytes += moved(l, v);
        return;
    }
    const char *why = why_f32(l, v);
    while (i < s->wide.len && strcmp(s->wide.data[i].why, why)) i++;
    if (i == s->wide.len) vec_push(a, &s->wide, (Share){why, 0});
    s->wide.data[i].values++;
}

/* attention: 4 of 6 as one routine; in parts: 2 (few keys) */
static void sum_attention(const Graph *g, StrBuf *sb) {
    int n = g->attention.len, whole = 0;
    const char *colon = "; in parts: ";
    const char *const *why = g->attention.data;
    for (int i = 0; i < n; i++) whole += !why[i];
    if (n) sb_printf(sb, "attention: %d of %d as one routine", whole, n);
    for (int i = 0; i < n; i++) {
        int equal = 0, before = 0;
        for (int k = 0; why[i] && k < n; k++) {
            bool same = why[k] && !strcmp(why[k], why[i]);
            equal += same;
            before += same && k < i;
        }
        if (!equal || before) continue;
        sb_printf(sb, "%s%d (%s)", colon, equal, why[i]);
        colon = ", ";
    }
    if (n) sb_puts(sb, "\n");
}

/* logits: 256 of 2048 rows in memory */
static void sum_logits(const Graph *g, StrBuf *sb) {
    if (g->rows_all)
        sb_printf(sb, "logits: %" PRId64 " of %" PRId64 " rows in memory\n",
                  g->rows_at_once, g->rows_all);
}

/* The program that trains, or the first one; NULL: the module has none. */
static Graph *main_program(const Module *m) {
    Graph *g = m->graphs.len ? m->graphs.data[0] : NULL;
    for (int i = m->graphs.len - 1; i >= 0; i--)
        if (m->graphs.data[i]->program == PROGRAM_TRAIN) g = m->graphs.data[i];
    return g;
}

int64_t report_bytes(const Module *m) {
    Sum s = {0};
    Graph *g = main_program(m);
    if (!g) return 0;
    Arena *a = arena_new();
    Storage l = storage_new(g, a);
    for (int i = 0; i < g->order.len; i++) sum_node(&s, &l, node_at(g, i), a);
    arena_free(a);
    return s.bytes;
}

void report_summary(const Module *m, StrBuf *sb) {
    Sum s = {0};
    Graph *g = main_program(m);
    report_trained(m, sb);
    if (g) sum_attention(g, sb);
    if (g) sum_logits(g, sb);
    if (m->low == NUM_DTYPES || !g) return;
    Arena *a = arena_new();
    Storage l = storage_new(g, a);
    for (int i = 0; i < g->order.len; i++) sum_node(&s, &l, node_at(g, i), a);
    sb_printf(sb,
              "%s: %d of %d products, %d of %d values in memory, %.2f of %.2f "
              "MB a step",
              dtype_info[m->low].text, s.low_products, s.products, s.low_values,
              s.values, (double)s.low_bytes / 1e6, (double)s.bytes / 1e6);
    if (s.f8_products)
        sb_printf(sb, "; %d products of f8 numbers", s.f8_products);
    for (int i = 0; i < s.wide.len; i++)
        sb_printf(sb, "%s%d (%s)",
                  i ? ", " : "; in f32: ", s.wide.data[i].values,
                  s.wide.data[i].why);
    sb_puts(sb, "\n");
    arena_free(a);
}

/* ---- memory -------------------------------------------------------------- */

enum { USE_KEPT, USE_FORWARD, USE_BACKWARD, USE_UPDATE, NUSE };

/* Contents of a program's arena at its peak, by use, and bytes stored for
   the backward pass, by dtype. */
typedef struct Fill {
    int64_t at[NUSE], kept[NUM_DTYPES];
    int nkept[NUM_DTYPES];
} Fill;

static int use_of(const Storage *l, uint32_t v) {
    const Node *n = node_get(l->g, value_get(l->g, (ValueId){v})->def);
    if (l->saved[v]) return USE_KEPT;
    if (n->flags & NODE_UPDATE) return USE_UPDATE;
    return n->flags & NODE_BACKWARD ? USE_BACKWARD : USE_FORWARD;
}

static bool in_arena(const Storage *l, uint32_t v) {
    return l->f->def[v] >= 0 && value_get(l->g, (ValueId){v})->offset >= 0;
}

/* The group at which most bytes are in use; a result that overwrites an
   operand counts twice. */
static int fullest_group(const Storage *l, Arena *a) {
    const Flow *f = l->f;
    int64_t *more = NEW_ARRAY(a, int64_t, f->ngroup + 2), sum = 0, most = -1;
    int best = 0;
    for (uint32_t v = 1; v < (uint32_t)l->g->values.len; v++) {
        if (!in_arena(l, v)) continue;
        int last = f->last[v] < f->def[v] ? f->def[v] : f->last[v];
        more[f->def[v]] += flow_bytes(f, (ValueId){v});
        more[last + 1] -= flow_bytes(f, (ValueId){v});
    }
    for (int i = 0; i < f->ngroup; i++) {
        sum += more[i];
        if (sum <= most) continue;
        most = sum;
        best = i;
    }
    return best;
}

/* True if a result of `group` overwrites value v. */
static bool is_replaced(const Storage *l, int group, ValueId v) {
    for (int i = l->f->first[group]; i < l->f->end[group]; i++) {
        ValueId w = node_at(l->g, i)->out[0];
        if (!same_value(v, w) &&
            value_get(l->g, w)->offset == value_get(l->g, v)->offset)
            return true;
    }
    return false;
}

static Fill fill_of(Graph *g) {
    Arena *a = arena_new();
    Storage l = storage_new(g, a);
    Fill fill = {0};
    int at = fullest_group(&l, a);
    for (uint32_t i = 1; i < (uint32_t)g->values.len; i++) {
        ValueId v = {i};
        int64_t bytes = flow_bytes(l.f, v);
        if (l.saved[i]) {
            fill.kept[value_dtype(g, v)] += bytes;
            fill.nkept[value_dtype(g, v)]++;
        }
        if (in_arena(&l, i) && l.f->def[i] <= at &&
            (l.f->def[i] == at || l.f->last[i] >= at) &&
            !(l.f->last[i] == at && is_replaced(&l, at, v)))
            fill.at[use_of(&l, i)] += bytes;
    }
    arena_free(a);
    return fill;
}

static void memory_of_graph(Graph *g, FactList *programs) {
    static const char *const uses[] = {"kept for backward", "forward",
                                       "backward", "update"};
    Fill fill = fill_of(g);
    Facts f = {.json = programs->json}, at = f, kept = f;
    for (int k = 0; k < NUSE; k++)
        fact_row(&at, uses[k], fill.at[k],
                 fill.at[k] ? "  %-24s %12lld\n" : NULL);
    for (int d = 0; d < NUM_DTYPES; d++) {
        Facts of = {.json = programs->json};
        if (!fill.nkept[d]) continue;
        fact_words(&of, "dtype", "%-5s", dtype_info[d].text);
        fact_int(&of, "values", fill.nkept[d], "%4lld");
        fact_int(&of, "bytes", fill.kept[d], "%13lld");
        fact_part(&kept, dtype_info[d].text, &of,
                  "  kept in {dtype} {values} values {bytes}\n");
    }
    fact_word(&f, "program", g->name, "%-8s");
    fact_word(&f, "target", target_text[g->target], "%-5s");
    fact_int(&f, "arena", g->arena_bytes, "%12lld");
    fact_part(&f, "fullest", &at, NULL);
    fact_part(&f, "kept", &kept, NULL);
    facts_put(&f,
              "arena of {program} on {target} {arena} bytes\n{fullest}{kept}",
              fact_next(programs));
}

void report_memory(const Module *m, bool json, StrBuf *sb) {
    FactList programs = fact_lines(json);
    Facts f = {.json = json}, variables = f;
    for (int i = 0; i < m->graphs.len; i++)
        memory_of_graph(m->graphs.data[i], &programs);
    for (int k = VAR_PARAM; k <= VAR_GRAD; k++) {
        long long n = 0;
        for (int i = 0; i < m->vars.len; i++)
            if (m->vars.data[i].kind == (VarKind)k)
                n += type_bytes(type_get(m->vars.data[i].type));
        fact_row(&variables, var_kind_text[k], n, "%-26s %12lld bytes\n");
    }
    fact_list(&f, "programs", &programs);
    fact_break(&f);
    fact_part(&f, "variables", &variables, NULL);
    facts_put(&f, NULL, sb);
    sb_puts(sb, json ? "\n" : "");
}
