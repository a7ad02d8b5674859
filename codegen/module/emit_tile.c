/* SPDX-License-Identifier: Apache-2.0 */
/* emit_tile.c: which pairs of steps a CUDA Tile kernel does at once (emit.h):
   a matrix product and an element-wise kernel behind it. Both steps stay in
   the plan, for drivers without such kernels. */
#include "codegen/module/emit_plan.h"

bool emit_is_alone(const Graph *g, const LoweredStep *steps, int i) {
    const Group *x = &g->groups.data[i];
    bool shares = i + 1 < g->groups.len &&
                  (g->groups.data[i + 1].beside || g->groups.data[i + 1].after);
    return !shares && !x->beside && !x->after && !is_value(x->guard.when) &&
           !steps[i].empty && !steps[i].summed && !steps[i].behind;
}

static bool tile_reads(const Graph *g, const LoweredStep *s, ValueId root) {
    for (int i = 0; i < s->nref + s->nep_ref; i++) {
        ValueId v = i < s->nref ? s->refs[i] : s->ep_refs[i - s->nref];
        if (is_value(v) && same_value(view_root(g, v), root)) return true;
    }
    return is_value(s->guard.when) &&
           same_value(view_root(g, s->guard.when), root);
}

bool emit_is_kept(const Graph *g, const LoweredStep *steps, int i,
                  ValueId root) {
    for (int k = i + 2; k < g->groups.len; k++)
        if (tile_reads(g, &steps[k], root)) return true;
    for (int k = 0; k < g->outputs.len; k++)
        if (same_value(view_root(g, g->outputs.data[k].value), root))
            return true;
    for (int k = 0; k < g->writes.len; k++)
        if (same_value(view_root(g, g->writes.data[k].value), root))
            return true;
    return value_get(g, root)->home >= 0;
}

/* The kernel's buffer that is that value, which it only reads; -1: none. */
static int tile_buffer(const Graph *g, const LoweredStep *s, ValueId v) {
    for (int i = 0; i < s->nref; i++)
        if (is_value(s->refs[i]) &&
            same_value(view_root(g, s->refs[i]), view_root(g, v)))
            return s->kernel->bufs.data[i].written ? -1 : i;
    return -1;
}

bool emit_lies_apart(Emit *e, const Graph *g, const ValueId *v,
                     const bool *written, int n) {
    enum { ALIGN = 16 };
    for (int i = 0; i < n; i++) {
        if (is_value(v[i]) && emit_ref(e, g, v[i]).offset % ALIGN) return false;
        for (int k = 0; k < i; k++)
            if ((written[i] || written[k]) && is_value(v[i]) &&
                is_value(v[k]) &&
                emit_lie_over(g, v[i], emit_ref(e, g, v[i]), v[k],
                              emit_ref(e, g, v[k])))
                return false;
    }
    return true;
}

uint32_t emit_tile(Emit *e, const Graph *g, const LoweredStep *steps, int i) {
    static const int64_t replaces = 2;
    const LoweredStep *s = &steps[i];
    TileStep t;
    if (g->target != TARGET_CUDA || !e->out->cuda->tile_archs.len ||
        !emit_is_alone(g, steps, i) || !emit_is_alone(g, steps, i + 1) ||
        s[0].kernel || !s[1].kernel ||
        !cuda_tile_fits(e->a, e->out->cuda, s, &t) ||
        (t.buf = tile_buffer(g, &s[1], t.result)) < 0)
        return 0;
    t.kept = emit_is_kept(g, steps, i, view_root(g, t.result));
    cuda_tile_refs(s, &t);
    if (!emit_lies_apart(e, g, t.refs, t.written, t.nref)) return 0;
    LoweredStep x = {.kind = PLAN_TILE,
                     .fn = cuda_tile_add(e->a, e->out->cuda, &t),
                     .refs = t.refs,
                     .nref = t.nref,
                     .pars = arena_dup(e->a, &replaces, sizeof replaces),
                     .npar = 1,
                     .name = s[0].name};
    x.refs = arena_dup(e->a, t.refs, sizeof t.refs);
    emit_step(e, g, s, 2, &x);
    EmitStep *done = &e->out->steps.data[e->out->steps.len - 1];
    done->both = arena_dup(e->a, &x, sizeof x);
    return x.fn + 1;
}

void emit_tile_warn(const Emit *e) {
    const CudaSource *c = e->out->cuda;
    if (c && c->tile_archs.len && !c->tiles.len)
        warn(e->d, (Loc){0},
             "--tile: no product of this module becomes a CUDA Tile kernel: "
             "that takes one in bf16 or fp16 with an element-wise kernel "
             "behind it");
}
