/* SPDX-License-Identifier: Apache-2.0 */
/* placement.c: the storage dtype of every value, at least cost.
   Before:  %h = matmul %x.bf16, %w.bf16 : f32    %r = relu %h : f32
            %r.bf16 = cast %r                      %z = matmul %r.bf16, ..
   After:   %h = matmul %x.bf16, %w.bf16 : f32    %r = relu %h : bf16
            %z = matmul %r, ..

   Arithmetic other than matrix products and convolutions ("products") is f32,
   whatever the storage, so 16 bits only help values that reach memory. A value
   is low (16 bits) or high (f32); a high value that a product reads has a cast
   beside it.  The pass chooses the cheapest assignment, in this order:
     1. bytes read and written in a step
     2. bytes stored for the backward pass
     3. the accuracy price of rounding: 1, plus 1 for each reader that amplifies
        relative errors (exp, log, pow, differences), plus 1 for each later sum
        that the value passes through, as residuals do
     4. the number of roundings; f32 if all else is equal
   Always high are
     - values that leave the program, gradients of parameters, the whole update
     - sums, values computed from sums alone, and values that their reader
       broadcasts: they are few elements, and many results share their error
     - results of exp and log, operands of log, sin and cos, random numbers
     - operands of products that pass autocast left in f32
     - values computed from constants and integers alone, and sums with such
       numbers next to which 16 bits lose the data
     - residual streams that PyTorch keeps in fp32, because all later layers see
       their rounding errors.  They are stored as fp16 after division by 64,
       which gives 11 significant bits (bf16: 8) for magnitudes from 1/256 to
       4.19e6 and an absolute step of 3.8e-6 below; products read a 16-bit copy.
       Streams that a routine, a gather or the host reads are f32. All streams
       in f32 would add 4 to 7 % to the bytes of transformers
       (docs/numerics.md). --placement exact,residuals=inf: all streams in f32.
       =N: f32 for streams as long as the bytes of a step grow by at most N %,
       bf16 for the others. Streams behind most sums per byte come first: a
       rounding error is relative to the stream, which grows with each sum, so
       the last streams weigh most.
     - in fp16, because of its short range: powers, roots, reciprocals, squares,
       and forward products that are then scaled down, such as attention scores;
       the loss scale keeps gradients in range
     - log-softmax values that no forward product reads, and values computed
       from them with at most 1/8 as many elements: PyTorch has them in fp32
     - values after the last forward product, such as class scores, if they are
       small: nearest the loss first, while this adds at most 1/128 to the bytes
       of a step, or if they have at most 2,048 elements.  Errors of earlier
       values average out; these reach the loss.
     - operands of a softmax that a product reads, such as scores of attention
       that no target keeps in its cache, nearest the loss first, while this
       adds at most 1/64 to the bytes of a step: PyTorch's fused attention has
       them in fp32, and exp amplifies their errors
     - values of wide.h: torch.autocast has them in fp32, and a reader would
       amplify their rounding error
   A view has the dtype of its source, as do operand and result of a pool.  Low
   is the module's 16-bit dtype, with two exceptions: slopes of GELU are fp16,
   and so, in bf16 and divided by 64 like streams, are results of convolutions
   that only a norm reads: the batch norms of a ResNet then read 11 bits in as
   many bytes.

   A normalised value has magnitude 1.  If backward needs only the normalised
   form of a residual stream, a rounded copy of that is stored instead of the
   stream.  Values that are linear in it and not in memory (such as the operand
   of a second norm) are recomputed in backward from the copy.

   If a product and its bias are rounded together, the bias is read as 16 bits,
   as in PyTorch: libraries add no other bias to a 16-bit result.

   requires     stage PRIMITIVE, as pass lift leaves it, no equal or dead nodes
   establishes  16 bits wherever they save traffic                           */
#include <math.h>

#include "passes/common/placement_impl.h"

static void find_prices(Place *p) {
    Graph *g = p->g;
    for (int i = g->order.len - 1; i >= 0; i--) {
        const Node *n = node_at(g, i);
        bool sum = n->op == OP_ADD, moves = op_info[n->op].amp == AMP_ANY;
        for (int k = 0; k < n->nin; k++) {
            int behind = sum || moves ? p->price[n->out[0].i] + sum : 0;
            int *price = &p->price[n->in[k].i];
            if (behind > *price) *price = behind;
            *price += op_numeric[n->op].grows;
        }
    }
    for (int v = 0; v < g->values.len; v++) p->price[v]++;
}

/* The traffic is measured on f32 kernels, where values in registers have
   none. */
Place place_begin(Graph *g, PassCtx *cx) {
    Arena *a = cx->scratch;
    const bool *whole =
        cx->opt->fp16_residuals ? place_streams_as_fp16(g, a) : NULL;
    Place p = place_new(g, whole, a);
    find_prices(&p);
    p.traffic = NEW_ARRAY(a, Traffic, g->values.len);
    traffic_join(g, p.traffic, g->values.len, cx);
    place_spare(&p, a);
    if (!whole && cx->opt->residuals < INFINITY)
        place_keep_streams(&p, cx->opt->residuals, a);
    return p;
}

static Status place_graph(Graph *g, PassCtx *cx) {
    Arena *a = cx->scratch;
    if (options_budget(cx->opt)) return place_within(g, cx);
    Place p = place_begin(g, cx);
    bool *low = NEW_ARRAY(a, bool, g->values.len);
    place_cut(&p, low, a);
    place_apply(&p, g, low, a);
    place_keep_normalised(&p, g, a);
    place_narrow_biases(g, a);
    return OK;
}

Status pass_place(Module *m, PassCtx *cx) {
    if (m->low == NUM_DTYPES || m->rule) return OK;
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        if (g->program == PROGRAM_UPDATE || g->program == PROGRAM_REFRESH)
            continue; /* all fp32 */
        TRY(place_graph(g, cx));
    }
    for (int i = 0; i < m->graphs.len; i++)
        shadows_write(m->graphs.data[i], cx->scratch);
    return OK;
}
