/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_bounds_test.c: where each operator begins to be refused.  A row is a
   small model; beside one that is refused stands one that is not, as close to
   it as there is.                                                            */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/support/onnx_util.h"

/* operands: a, b, c .. in order: f32[2,3] is an input, i64{1,2} a list that is
   known, i64:1 such a number.  nodes: OP(operands)>results attributes, ended by
   ';'; attributes are 1, 1.5, [1,2], 'text', ('text','text') or a body,
   {operands|nodes|results}.  want: the type of y behind '=', perhaps with its
   numbers where operand i has 100 i, 100 i + 1, ..; else what the message
   says. */
typedef struct Row {
    int version;
    const char *operands, *nodes, *want;
} Row;

/* ---- reading a row ------------------------------------------------------- */

static void known(Made *m, const char *name, DType d, const char *list,
                  bool scalar) {
    int64_t v[16];
    int n = 0;
    char *end;
    if (d == DT_F32) {
        Onnx__TensorProto *t = made_f32(m, name, "16", 0);
        for (; *list && *list != '}' && *list != ' ';
             list = end + (*end == ','))
            t->float_data[n++] = strtof(list, &end);
        t->n_float_data = (size_t)n;
        t->dims[0] = n;
        t->n_dims = !scalar;
        return;
    }
    for (; *list && *list != '}' && *list != ' '; list = end + (*end == ','))
        v[n++] = strtoll(list, &end, 10);
    made_i64(m, name, n, v)->n_dims = !scalar;
}

static void operands(Made *m, const char *s) {
    for (char name[] = "a"; *s; name[0]++) {
        size_t n = strcspn(s, "[{:"), all = strcspn(s, " ");
        DType d;
        REQUIRE(dtype_from_text(s, n, &d));
        if (s[n] == '[')
            made_input(
                m, name, d,
                arena_printf(m->a, "%.*s", (int)(all - n - 2), s + n + 1));
        else
            known(m, name, d, s + n + 1, s[n] == ':');
        s += all + (s[all] == ' ');
    }
}

static const char *text_of(Made *m, const char **s, const char *stop) {
    size_t n = strcspn(*s, stop);
    const char *text = arena_printf(m->a, "%.*s", (int)n, *s);
    *s += n + ((*s)[n] != 0);
    return text;
}

static void nodes(Made *m, const char *s);

static Made bodies[2];
static int nbody;

static void body(Made *m, Onnx__NodeProto *n, const char *name,
                 const char **s) {
    Made *b = &bodies[nbody++];
    made_start(b, 17);
    for (const char *in = text_of(m, s, "|"); *in;)
        made_input(b, text_of(m, &in, ","), DT_F32, "");
    nodes(b, text_of(m, s, "|"));
    for (const char *out = text_of(m, s, "}"); *out;)
        made_output(b, text_of(m, &out, ","));
    made_attr(m, n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH)->g =
        &b->graph;
}

static void attribute(Made *m, Onnx__NodeProto *n, const char **s) {
    const char *name = text_of(m, s, "=");
    char *end;
    if (**s == '[') {
        int64_t v[16];
        int count = 0;
        for (++*s; **s != ']'; *s = end + (*end == ','))
            v[count++] = strtoll(*s, &end, 10);
        ++*s;
        made_ints(m, n, name, count, v);
    } else if (**s == '\'') {
        ++*s;
        made_str(m, n, name, text_of(m, s, "'"));
    } else if (**s == '{') {
        ++*s;
        body(m, n, name, s);
    } else if (**s == '(') {
        Onnx__AttributeProto *p = made_attr(
            m, n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRINGS);
        p->strings = NEW_ARRAY(m->a, ProtobufCBinaryData, 8);
        while (*(*s)++ != ')' && **s == '\'') {
            ++*s;
            const char *text = text_of(m, s, "'");
            p->strings[p->n_strings++] = (ProtobufCBinaryData){
                strlen(text), (uint8_t *)made_text(m, text)};
        }
    } else {
        double x = strtod(*s, &end);
        if (memchr(*s, '.', (size_t)(end - *s)))
            made_float(m, n, name, (float)x);
        else
            made_int(m, n, name, strtoll(*s, &end, 10));
        *s = end;
    }
}

static void nodes(Made *m, const char *s) {
    while (*s) {
        s += strspn(s, " ;");
        const char *op = text_of(m, &s, "("), *in = text_of(m, &s, ")");
        REQUIRE(*s++ == '>');
        size_t k = strcspn(s, " ;");
        Onnx__NodeProto *n =
            made_node(m, op, in, arena_printf(m->a, "%.*s", (int)k, s));
        for (s += k; *s == ' ';) {
            s++;
            attribute(m, n, &s);
        }
    }
}

/* The numbers of y. */
static void put_values(Made *m, const Graph *g, StrBuf *sb) {
    Evaluator *e = eval_new(g, m->a, EVAL_EXACT);
    for (int i = 0; i < g->inputs.len; i++) {
        ValueId x = g->inputs.data[i];
        EvalTensor *t = eval_tensor_new(m->a, value_get(g, x)->type);
        for (int64_t k = 0; k < type_count(value_type(g, x)); k++) {
            int64_t v = 100 * (value_get(g, x)->name[0] - 'a') + k;
            if (t->f)
                t->f[k] = (double)v;
            else
                t->i[k] = v;
        }
        eval_bind(e, x, t);
    }
    REQUIRE(eval_run(e, &m->d) == OK);
    const EvalTensor *y = eval_get(e, g->outputs.data[0].value);
    for (int64_t k = 0; k < type_count(type_get(y->type)); k++)
        sb_printf(sb, " %g", y->f ? y->f[k] : (double)y->i[k]);
}

static void check_row(const Row *r) {
    Made m;
    StrBuf got = {0};
    made_start(&m, r->version);
    operands(&m, r->operands);
    nodes(&m, r->nodes);
    made_output(&m, "y");
    Module *mod = made_import(&m);
    if (mod) {
        Graph *g = module_graph(mod, "forward");
        sb_puts(&got, "=");
        sb_put_type(&got, value_get(g, g->outputs.data[0].value)->type);
        if (strchr(r->want, ' ')) put_values(&m, g, &got);
    } else {
        sb_puts(&got, made_message(&m));
    }
    bool same = *r->want == '=' ? !strcmp(got.data, r->want)
                                : !mod && strstr(got.data, r->want);
    CHECK_MSG(same, "%d %s: %s\n  gives %s\n  not   %s", r->version,
              r->operands, r->nodes, got.data, r->want);
    sb_free(&got);
    made_end(&m);
    while (nbody) made_end(&bodies[--nbody]);
}

#define CHECK_ROWS(rows)                                                       \
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++)              \
    check_row(&rows[row])

/* ---- the rows ------------------------------------------------------------ */

#define MOST "9223372036854775807"

TEST_CASE(onnx_bounds, parts) {
    static const Row rows[] = {
        {13, "f32[2,3] f32[2,1]", "Concat(a,b)>y axis=1", "=f32[2,4]"},
        {13, "f32[2,3] f32[4,3]", "Concat(a,b)>y axis=-2", "=f32[6,3]"},
        {13, "f32[2,3] f32[2,1]", "Concat(a,b)>y axis=2", "axis 2 is out of"},
        {13, "f32[2,3] f32[2,1]", "Concat(a,b)>y axis=-3", "axis -3 is out of"},
        {18, "f32[6] i64{6,0}", "Split(a,b)>y,z", "=f32[6]"},
        {18, "f32[6] i64{7,-1}", "Split(a,b)>y,z", "split size 1 is -1"},
        {18, "f32[6] i64{1," MOST "}", "Split(a,b)>y,z", "split size 1 is 92"},
        {18, "f32[6] i64{2,3}", "Split(a,b)>y,z", "sum to 5, the axis has 6"},
        {18, "f32[6] i64{6}", "Split(a,b)>y,z", "1 split sizes for 2 results"},
        {11, "f32[6]", "Split(a)>y,z split=[2,4]", "=f32[2]"},
        {11, "f32[6]", "Split(a)>y,z", "=f32[3]"},
        {11, "f32[5]", "Split(a)>y,z", "5 does not divide into 2 parts"},
        {18, "f32[5]", "Split(a)>y,z num_outputs=2", "=f32[3]"},
        {18, "f32[5]", "Split(a)>z,y num_outputs=2", "=f32[2]"},
        {18, "f32[5]", "Split(a)>y,z num_outputs=3", "differs from its 2"},
        {13, "f32[6] i64{0} i64{5}", "Slice(a,b,c)>y", "=f32[5]"},
        {13, "f32[6] i64{0} i64{1,2}", "Slice(a,b,c)>y", "differ in length"},
        {13, "f32[6,6] i64{0} i64{1} i64{0,1}", "Slice(a,b,c,d)>y",
         "differ in length"},
        {13, "f32[6] i64{0} i64{5} i64{0} i64{2}", "Slice(a,b,c,d,e)>y",
         "=f32[3]"},
        {13, "f32[6] i64{0} i64{5} i64{0} i64{2,1}", "Slice(a,b,c,d,e)>y",
         "differ in length"},
        {13, "f32[6,6] i64{1} i64{3} i64{-1}", "Slice(a,b,c,d)>y", "=f32[6,2]"},
        {13, "f32[6] i64{0} i64{1} i64{1}", "Slice(a,b,c,d)>y",
         "axis 1 is out"},
        {9, "f32[6,4]", "Slice(a)>y starts=[1,1] ends=[4,9]", "=f32[3,3]"},
        {9, "f32[6,4]", "Slice(a)>y starts=[1] ends=[3] axes=[1]", "=f32[6,2]"},
        {9, "f32[6]", "Slice(a)>y starts=[1,2] ends=[3]", "differ in length"},
        {13, "f32[3,4] i64{3,0} i64{0,3} i64{1,0} i64{-2,2}",
         "Slice(a,b,c,d,e)>y", "=f32[2,2] 3 1 11 9"},
        {13, "f32[3,4] i64{0,3} i64{3,0} i64{-2,-1} i64{2,-2}",
         "Slice(a,b,c,d,e)>y", "=f32[2,2] 3 1 11 9"},
        {13, "f32[3,4] i64{2,1} i64{-9,4} i64{0,1} i64{-1,3}",
         "Slice(a,b,c,d,e)>y", "=f32[3,1] 9 5 1"},
        {13, "f32[4] i64{-9} i64{-9} i64{0} i64{-1}", "Slice(a,b,c,d,e)>y",
         "=f32[1] 0"},
        {13, "f32[4] i64{9} i64{-9} i64{0} i64{-1}", "Slice(a,b,c,d,e)>y",
         "=f32[4] 3 2 1 0"},
        {13, "f32[4] i64{9} i64{0} i64{0} i64{-1}", "Slice(a,b,c,d,e)>y",
         "=f32[3] 3 2 1"},
        {13, "f32[4] i64{9} i64{9} i64{0} i64{1}", "Slice(a,b,c,d,e)>y",
         "=f32[0]"},
        {13, "f32[4] i64{-9} i64{9} i64{0} i64{9}", "Slice(a,b,c,d,e)>y",
         "=f32[1] 0"},
        {13, "f32[4] i64{-1} i64{-9} i64{0} i64{-9}", "Slice(a,b,c,d,e)>y",
         "=f32[1] 3"},
        {13, "f32[4] i64{3} i64{-5} i64{0} i64{-3}", "Slice(a,b,c,d,e)>y",
         "=f32[2] 3 0"},
        {13, "f32[4] i64{0} i64{4} i64{0} i64{3}", "Slice(a,b,c,d,e)>y",
         "=f32[2] 0 3"},
        {13, "f32[4] i64{0} i64{4} i64{0} i64{4}", "Slice(a,b,c,d,e)>y",
         "=f32[1] 0"},
        {13, "f32[4] i64{2} i64{-9223372036854775808} i64{0} i64{-1}",
         "Slice(a,b,c,d,e)>y", "=f32[3] 2 1 0"},
        {13, "f32[4] i64{1} i64{" MOST "} i64{0} i64{1}", "Slice(a,b,c,d,e)>y",
         "=f32[3] 1 2 3"},
        {13, "f32[4] i64{0} i64{4} i64{0} i64{0}", "Slice(a,b,c,d,e)>y",
         "a step of 0"},
        {13, "f32[0] i64{5} i64{-5} i64{0} i64{-1}", "Slice(a,b,c,d,e)>y",
         "=f32[0]"},
        {18, "f32[3] i64{0,2147483647}", "Pad(a,b)>y", "=f32[2147483650]"},
        {18, "f32[3] i64{0,-2147483648}", "Pad(a,b)>y", "crop more than axis"},
        {18, "f32[3] i64{-2147483649,0}", "Pad(a,b)>y", "a pad of -2147483649"},
        {18, "f32[3] i64{1,2}", "Pad(a,b)>y", "=f32[6] 0 0 1 2 0 0"},
        {18, "f32[3] i64{1,2} f32:7", "Pad(a,b,c)>y", "=f32[6] 7 0 1 2 7 7"},
        {18, "f32[3] i64{-1,2}", "Pad(a,b)>y", "=f32[4] 1 2 0 0"},
        {18, "f32[3] i64{2,1}", "Pad(a,b)>y mode='reflect'",
         "=f32[6] 2 1 0 1 2 1"},
        {19, "f32[3] i64{2,1}", "Pad(a,b)>y mode='wrap'",
         "=f32[6] 1 2 0 1 2 0"},
        {18, "f32[3] i64{2,1}", "Pad(a,b)>y mode='edge'",
         "=f32[6] 0 0 0 1 2 2"},
        {18, "f32[2,2] i64{1,0,0,2}", "Pad(a,b)>y",
         "=f32[3,4] 0 0 0 0 0 1 0 0 2 3 0 0"},
        {13, "f32[2,3]", "Softmax(a)>y axi=1", "unknown attribute 'axi'"},
        {13, "f32[2,3]", "Softmax(a)>y axiss=1", "unknown attribute 'axiss'"},
        {13, "f32[2,3]", "Softmax(a)>y xis=1", "unknown attribute 'xis'"},
        {17, "f32[2,3]", "ReduceMean(a)>y axes=[1] keepdim=0",
         "unknown attribute 'keepdim'"},
        {17, "f32[2,3]", "ReduceMean(a)>y axe=[1] keepdims=0",
         "unknown attribute 'axe'"},
        {17, "f32[2,3]", "ReduceMean(a)>y axes=[1] keepdims=0", "=f32[2] 1 4"},
        {11, "f32[3] f32[2]", "Gather(a,b)>y axis=1", "axis 1 is out of range"},
        {18, "f32[5] i64{3}", "CenterCropPad(a,b)>y", "=f32[3]"},
        {18, "f32[5] i64{0}", "CenterCropPad(a,b)>y", "=f32[0]"},
        {18, "f32[5] i64{-1}", "CenterCropPad(a,b)>y", "a size of -1"},
        {18, "f32[5] i64{3,3}", "CenterCropPad(a,b)>y", "shape has 2 entries"},
        {18, "f32[5,6] i64{9}", "CenterCropPad(a,b)>y axes=[1]", "=f32[5,9]"},
        {18, "f32[5,6] i64{9}", "CenterCropPad(a,b)>y", "shape has 1 entries"},
        {18, "f32[6] i64{-3,-3}", "Pad(a,b)>y", "=f32[0]"},
        {18, "f32[6] i64{-3,-4}", "Pad(a,b)>y", "crop more than axis 0"},
        {18, "f32[6] i64{-1,2}", "Pad(a,b)>y", "=f32[7]"},
        {18, "f32[6] i64{-1,2}", "Pad(a,b)>y mode='edge'", "with mode edge"},
        {18, "f32[6] i64{0,2147483648}", "Pad(a,b)>y", "a pad of 2147483648"},
        {18, "f32[2,3] i64{1,2} i64{1}", "Pad(a,b,,c)>y", "=f32[2,6]"},
        {18, "f32[2,3] i64{1,2} i64{-2}", "Pad(a,b,,c)>y", "=f32[5,3]"},
        {18, "f32[2,3] i64{1,2} i64{2}", "Pad(a,b,,c)>y", "axis 2 is out of"},
        {18, "f32[2,3] i64{1,2} i64{0,1}", "Pad(a,b,,c)>y",
         "2 pads for 2 axes"},
        {18, "f32[2] i64{1,1} f32[]", "Pad(a,b,c)>y", "pad value is not known"},
        {10, "f32[2]", "Pad(a)>y pads=[1,2]", "=f32[5]"},
        {10, "f32[2]", "Pad(a)>y pads=[1]", "1 pads for 1 axes"}};
    CHECK_ROWS(rows);
}

TEST_CASE(onnx_bounds, positions) {
    static const Row rows[] = {
        {11, "i64[2] i64:1 f32{0,1}", "OneHot(a,b,c)>y", "=f32[2,1]"},
        {11, "i64[2] i64:4194304 f32{0,1}", "OneHot(a,b,c)>y",
         "=f32[2,4194304]"},
        {11, "i64[2] i64:0 f32{0,1}", "OneHot(a,b,c)>y", "a depth of 0"},
        {11, "i64[2] i64:4194305 f32{0,1}", "OneHot(a,b,c)>y",
         "a depth of 4.1943e+06"},
        {11, "i64[2] i64[] f32{0,1}", "OneHot(a,b,c)>y", "depth is not known"},
        {11, "i64[2] i64:3 f32{0,1}", "OneHot(a,b,c)>y axis=0", "=f32[3,2]"},
        {11, "i64[2] i64:3 f32{0,1}", "OneHot(a,b,c)>y axis=-2", "=f32[3,2]"},
        {11, "i64[2] i64:3 f32{0,1}", "OneHot(a,b,c)>y axis=2",
         "axis 2 is out"},
        {11, "i64[2] i64:3 f32{0,1,2}", "OneHot(a,b,c)>y", "must be [off, on]"},
        {11, "i64[2] i64:3 f32:0", "OneHot(a,b,c)>y", "must be [off, on]"},
        {11, "i64[1,1,1,1,1,1,1] i64:3 f32{0,1}", "OneHot(a,b,c)>y",
         "=f32[1,1,1,1,1,1,1,3]"},
        {11, "i64[1,1,1,1,1,1,1,1] i64:3 f32{0,1}", "OneHot(a,b,c)>y",
         "3 classes at rank 8"},
        {13, "f32[2,3] i64[2,2]", "GatherElements(a,b)>y axis=1", "=f32[2,2]"},
        {13, "f32[2,3] i64[2,5]", "GatherElements(a,b)>y axis=1", "=f32[2,5]"},
        {13, "f32[2,3] i64[3,2]", "GatherElements(a,b)>y axis=1",
         "indices do not fit"},
        {13, "f32[2,3] i64[2]", "GatherElements(a,b)>y", "indices do not fit"},
        {13, "f32[2,3] i64[4,2]", "GatherND(a,b)>y", "=f32[4]"},
        {13, "f32[2,3] i64[4,1]", "GatherND(a,b)>y", "=f32[4,3]"},
        {13, "f32[2,3] i64[4,3]", "GatherND(a,b)>y", "name no positions"},
        {13, "f32[2,3] i64[4,0]", "GatherND(a,b)>y", "name no positions"},
        {13, "f32[2,3] i64[]", "GatherND(a,b)>y", "name no positions"},
        {13, "f32[2,3] i64[2,1]", "GatherND(a,b)>y batch_dims=1", "=f32[2]"},
        {13, "f32[2,3] i64[3,1]", "GatherND(a,b)>y batch_dims=1",
         "batch dimension 0 of the indices differs"},
        {13, "f32[2,3] i64[2,2]", "GatherND(a,b)>y batch_dims=1",
         "name no positions"},
        {13, "f32[2,3] i64[2,3]", "GatherND(a,b)>y batch_dims=2",
         "name no positions"},
        {13, "f32[2,3] i64[2,1]", "GatherND(a,b)>y batch_dims=3",
         "batch_dims is 3"},
        {13, "f32[2,3] i64[2,1]", "GatherND(a,b)>y batch_dims=-1",
         "batch_dims is -1"},
        {13, "f32[2,1,1,1] i64[1,1,1,1,1]", "GatherND(a,b)>y",
         "=f32[1,1,1,1,1,1,1]"},
        {13, "f32[2,1,1,1,1] i64[1,1,1,1,1,1]", "GatherND(a,b)>y",
         "a result of rank 9; at most 8"},
        {18, "f32[3] i64[2] f32[2]", "ScatterElements(a,b,c)>y", "=f32[3]"},
        {18, "f32[3] i64[2] f32[3]", "ScatterElements(a,b,c)>y",
         "updates do not fit"},
        {18, "f32[3] i64[2] i64[2]", "ScatterElements(a,b,c)>y",
         "the updates are i64, the operand f32"},
        {18, "f32[3] i64[2] f32[2]", "ScatterElements(a,b,c)>y reduction='sum'",
         "reduction 'sum' is unknown"},
        {18, "i64[3] i64[2] i64[2]", "ScatterElements(a,b,c)>y reduction='max'",
         "reduction max of integers"},
        {18, "i64[3] i64[2] i64[2]", "ScatterElements(a,b,c)>y reduction='min'",
         "reduction min of integers"},
        {18, "i64[3] i64[2] i64[2]", "ScatterElements(a,b,c)>y reduction='add'",
         "=i64[3]"},
        {18, "f32[3] i64{1,2} f32[2]", "ScatterElements(a,b,c)>y", "=f32[3]"},
        {18, "f32[3] i64{1,3} f32[2]", "ScatterElements(a,b,c)>y",
         "names no position of the operand"},
        {18, "f32[3] i64{1,-3} f32[2]", "ScatterElements(a,b,c)>y", "=f32[3]"},
        {18, "f32[3] i64{1,-4} f32[2]", "ScatterElements(a,b,c)>y",
         "names no position of the operand"},
        {18, "f32[4,2] i64[3,1] f32[3,2]", "ScatterND(a,b,c)>y", "=f32[4,2]"},
        {18, "f32[4] i64{1,1} f32[2]", "ScatterElements(a,b,c)>y",
         "=f32[4] 0 201 2 3"},
        {18, "f32[4] i64{3,-1,3,0} f32[4]", "ScatterElements(a,b,c)>y",
         "=f32[4] 203 1 2 202"},
        {18, "f32[4] i64{2,1,2} f32[3] i64{1}",
         "Unsqueeze(b,d)>i;ScatterND(a,i,c)>y", "=f32[4] 0 201 202 3"},
        {18, "f32[4,2] i64[0,1] f32[0,2]", "ScatterND(a,b,c)>y",
         "=f32[4,2] 0 1 2 3 4 5 6 7"},
        {18, "f32[4,2] i64[0,2] f32[0]", "ScatterND(a,b,c)>y",
         "=f32[4,2] 0 1 2 3 4 5 6 7"},
        {18, "f32[4,2] i64[0,1] f32[0,2]", "ScatterND(a,b,c)>y reduction='add'",
         "=f32[4,2] 0 1 2 3 4 5 6 7"},
        {18, "f32[4,2] i64[0,1] f32[0,2]", "ScatterND(a,b,c)>y reduction='max'",
         "=f32[4,2] 0 1 2 3 4 5 6 7"},
        {18, "f32[4,2] i64[0,2] f32[0,2]", "ScatterElements(a,b,c)>y",
         "=f32[4,2] 0 1 2 3 4 5 6 7"},
        {18, "i64[3] f32[3] f32[3] i64{2}",
         "Div(a,d)>i;ScatterElements(b,i,c)>y", "=f32[3] 201 202 102"},
        {18, "i64[3] i64[3] i64{7,7,7} i64{2}",
         "Div(a,d)>i;ScatterElements(b,i,c)>y", "=i64[3] 7 7 102"},
        {18, "i64[3,1] f32[3,2] f32[3,2] i64{2}",
         "Div(a,d)>i;ScatterND(b,i,c)>y", "=f32[3,2] 202 203 204 205 104 105"},
        {18, "i64[0] f32[3] f32[0]", "ScatterElements(b,a,c)>y",
         "=f32[3] 100 101 102"},
        {18, "f32[4,2] i64[3,1] f32[3]", "ScatterND(a,b,c)>y",
         "updates do not fit"},
        {11, "f32[4] i64{2}", "TopK(a,b)>y,z", "=f32[2]"},
        {11, "f32[4] i64{1,2}", "TopK(a,b)>y,z",
         "k has 2 elements, needs one"}};
    CHECK_ROWS(rows);
}

TEST_CASE(onnx_bounds, signals) {
    static const Row rows[] = {
        {17, "f32[2,9] i64{2} f32[4]", "STFT(a,b,c)>y", "=f32[2,3,3,2]"},
        {17, "f32[2,9,1] i64{3} f32[4]", "STFT(a,b,c)>y onesided=0",
         "=f32[2,2,4,2]"},
        {17, "f32[1,4] i64{2} i64{2}", "STFT(a,b,,c)>y",
         "=f32[1,2,2,2] 1 0 -1 0 5 0 -1 0"},
        {17, "f32[2,9] i64{2} f32[4] i64{5}", "STFT(a,b,c,d)>y",
         "the window is f32[4] for 5 samples"},
        {17, "f32[2,9] i64{0} f32[4]", "STFT(a,b,c)>y", "4 samples every 0 of"},
        {17, "f32[2,3] i64{1} f32[4]", "STFT(a,b,c)>y", "4 samples every 1 of"},
        {17, "i64{4}", "HannWindow(a)>y", "=f32[4] 0 0.5 1 0.5"},
        {17, "i64{3}", "HannWindow(a)>y periodic=0 output_datatype=11",
         "=f64[3] 0 1 0"},
        {17, "i64{1}", "HannWindow(a)>y periodic=0", "=f32[1] 0"},
        {17, "i64{0}", "BlackmanWindow(a)>y", "not a whole number >= 1"}};
    CHECK_ROWS(rows);
}

TEST_CASE(onnx_bounds, shapes) {
    static const Row rows[] = {
        {13, "f32[2,3]", "Flatten(a)>y axis=2", "=f32[6,1]"},
        {13, "f32[2,3]", "Flatten(a)>y axis=3", "axis 3 is out of range"},
        {13, "f32[2,3]", "Flatten(a)>y axis=-2", "=f32[1,6]"},
        {13, "f32[2,3]", "Flatten(a)>y axis=-3", "axis -3 is out of range"},
        {13, "f32[2,3] i64{0,-1,0}", "Reshape(a,b)>y", "copies a dimension"},
        {13, "f32[2,3] i64{0,-1,1}", "Reshape(a,b)>y", "=f32[2,3,1]"},
        {14, "f32[0,3] i64{0,5}", "Reshape(a,b)>y allowzero=1", "=f32[0,5]"},
        {14, "f32[0,3] i64{0,-1}", "Reshape(a,b)>y allowzero=1",
         "0 elements do not divide into 0"},
        {13, "f32[2,3] i64{-1,4}", "Reshape(a,b)>y", "do not divide into 4"},
        {13, "f32[1,2,2,2] i64{2,2,2} i64{1,2,2,2}",
         "Reshape(a,b)>p;Transpose(p)>q perm=[0,1,2];Reshape(q,c)>y",
         "=f32[1,2,2,2] 0 1 2 3 4 5 6 7"},
        {13, "f32[1,2,2,2] i64{2,2,2} i64{1,2,2,2}",
         "Reshape(a,b)>p;Transpose(p)>q perm=[0,2,1];Reshape(q,c)>y",
         "=f32[1,2,2,2] 0 2 1 3 4 6 5 7"},
        {13, "f32[1,2,2,2] i64{2,2,2} i64{1,2,2,2}",
         "Reshape(a,b)>p;Transpose(p)>q perm=[2,1,0];Reshape(q,c)>y",
         "=f32[1,2,2,2] 0 4 2 6 1 5 3 7"},
        {13, "f32[1,2,2,2] i64{2,2,2} i64{1,2,2,2}",
         "Reshape(a,b)>p;Transpose(p)>q perm=[1,2,0];Reshape(q,c)>y",
         "=f32[1,2,2,2] 0 4 1 5 2 6 3 7"},
        {13, "f32[1,2,3] i64{1,2,3} i64{1,3,2}",
         "Reshape(a,b)>p;Transpose(p)>q perm=[0,2,1];Reshape(q,c)>y",
         "=f32[1,3,2] 0 3 1 4 2 5"},
        {13, "f32[1,2,3] i64{1,3,2} i64{1,2,3}",
         "Reshape(a,b)>p;Transpose(p)>q perm=[0,2,1];Reshape(q,c)>y",
         "=f32[1,2,3] 0 2 4 1 3 5"},
        {13, "f32[2,3] f32{2,3}", "Reshape(a,b)>y",
         "must be a list of integers"},
        {13, "f32[2] i64{0,2}", "Unsqueeze(a,b)>y", "=f32[1,2,1]"},
        {13, "f32[2] i64{0,3}", "Unsqueeze(a,b)>y", "axis 3 is out of range"},
        {13, "f32[2] i64{0,-3}", "Unsqueeze(a,b)>y", "axis 0 is given twice"},
        {11, "f32[2]", "Unsqueeze(a)>y axes=[1]", "=f32[2,1]"},
        {11, "f32[2]", "Unsqueeze(a)>y", "axes are missing"},
        {13, "f32[1,1,1,1,1,1,2] i64{0}", "Unsqueeze(a,b)>y",
         "=f32[1,1,1,1,1,1,1,2]"},
        {13, "f32[1,1,1,1,1,1,2] i64{0,1}", "Unsqueeze(a,b)>y",
         "a result of rank 9; at most 8"},
        {13, "f32[1,2,1]", "Squeeze(a)>y", "=f32[2]"},
        {13, "f32[1,2,1] i64{-1}", "Squeeze(a,b)>y", "=f32[1,2]"},
        {13, "f32[1,2,1] i64{1}", "Squeeze(a,b)>y", "dimension 1 is 2, not 1"},
        {13, "f32[2,3,4]", "Transpose(a)>y", "=f32[4,3,2]"},
        {13, "f32[2,3,4]", "Transpose(a)>y perm=[1,2,0]", "=f32[3,4,2]"},
        {13, "f32[2,3,4]", "Transpose(a)>y perm=[1,0]",
         "perm has 2 entries for rank 3"},
        {13, "f32[2] i64{0}", "Tile(a,b)>y", "=f32[0]"},
        {13, "f32[2] i64{-1}", "Tile(a,b)>y", "a negative repeat"},
        {13, "f32[2] i64{2,2}", "Tile(a,b)>y", "2 repeats for rank 1"},
        {13, "f32[1,4,2,3]", "DepthToSpace(a)>y blocksize=2", "=f32[1,1,4,6]"},
        {13, "f32[1,4,2,3]", "DepthToSpace(a)>y blocksize=1", "=f32[1,4,2,3]"},
        {13, "f32[1,4,2,3]", "DepthToSpace(a)>y blocksize=0", "blocksize is 0"},
        {13, "f32[1,4,2,3]", "DepthToSpace(a)>y blocksize=32769",
         "blocksize is 32769"},
        {13, "f32[1,4,2,3]", "DepthToSpace(a)>y blocksize=32768",
         "4 channels do not divide by 1073741824"},
        {13, "f32[1,6,2,3]", "DepthToSpace(a)>y blocksize=2",
         "6 channels do not divide by 4"},
        {13, "f32[4,2,3]", "DepthToSpace(a)>y blocksize=2", "must have rank 4"},
        {13, "f32[1,1,4,6]", "SpaceToDepth(a)>y blocksize=2", "=f32[1,4,2,3]"},
        {13, "f32[1,1,3,6]", "SpaceToDepth(a)>y blocksize=2",
         "does not divide"},
        {13, "f32[1,1,4,5]", "SpaceToDepth(a)>y blocksize=2",
         "does not divide"},
        {9, "f32[2,3]", "EyeLike(a)>y", "=f32[2,3]"},
        {9, "f32[2,3]", "EyeLike(a)>y dtype=7", "=i64[2,3]"},
        {9, "f32[2,3]", "EyeLike(a)>y k=1", "=f32[2,3] 0 1 0 0 0 1"},
        {9, "f32[2,3]", "EyeLike(a)>y k=2", "=f32[2,3] 0 0 1 0 0 0"},
        {9, "f32[2,3]", "EyeLike(a)>y k=3", "=f32[2,3] 0 0 0 0 0 0"},
        {9, "f32[3,2]", "EyeLike(a)>y k=-1", "=f32[3,2] 0 0 1 0 0 1"},
        {9, "f32[3,2]", "EyeLike(a)>y k=-2", "=f32[3,2] 0 0 0 0 1 0"},
        {9, "f32[3,2]", "EyeLike(a)>y k=" MOST, "=f32[3,2] 0 0 0 0 0 0"},
        {9, "f32[0,2]", "EyeLike(a)>y", "=f32[0,2]"},
        {9, "f32[2,0]", "EyeLike(a)>y", "=f32[2,0]"},
        {9, "f32[6]", "EyeLike(a)>y", "must be a matrix of at most"},
        {9, "f32[2048,2048]", "EyeLike(a)>y", "=f32[2048,2048]"},
        {9, "f32[2049,2048]", "EyeLike(a)>y", "must be a matrix of at most"},
        {11, "i64:0 i64:10 i64:3", "Range(a,b,c)>y", "=i64[4]"},
        {11, "i64:0 i64:9 i64:3", "Range(a,b,c)>y", "=i64[3]"},
        {11, "i64:9 i64:0 i64:-3", "Range(a,b,c)>y", "=i64[3]"},
        {11, "i64:0 i64:9 i64:-3", "Range(a,b,c)>y", "=i64[0]"},
        {11, "f32:0 i64:10 i64:3", "Range(a,b,c)>y", "one element type"},
        {11, "i64{0,1} i64:10 i64:3", "Range(a,b,c)>y",
         "operand 0 must be a scalar"},
        {11, "i64:0 i64[] i64:3", "Range(a,b,c)>y", "depends on data"},
        {15, "f32[2,3,4]", "Shape(a)>y start=1", "=i64[2]"},
        {15, "f32[2,3,4]", "Shape(a)>y start=-1", "=i64[1]"},
        {15, "f32[2,3,4]", "Shape(a)>y start=2 end=1", "=i64[0]"},
        {15, "f32[2,3,4]", "Shape(a)>y start=-9 end=9", "=i64[3]"},
        {15, "f32[2,3,4]", "Shape(a)>y end=-1", "=i64[2]"}};
    CHECK_ROWS(rows);
}

TEST_CASE(onnx_bounds, windows) {
    static const Row rows[] = {
        {13, "f32[1,4,5,5] f32[6,4,3]", "Conv(a,b)>y",
         "differ in rank: 4 and 3"},
        {13, "f32[1,1,2,2,2] f32[1,1,1,1,1]", "Conv(a,b)>y", "=f32[1,1,2,2,2]"},
        {13, "f32[1,1,2,2,2,2] f32[1,1,1,1,1,1]", "Conv(a,b)>y",
         "an operand of rank 6; 1 to 3 spatial axes"},
        {13, "f32[1,1,5] f32[1,1,3]", "Conv(a,b)>y kernel_shape=[3]",
         "=f32[1,1,3]"},
        {13, "f32[1,1,5] f32[1,1,3]", "Conv(a,b)>y kernel_shape=[2]",
         "kernel_shape[0] is 2, the weight has 3"},
        {13, "f32[1,1,5] f32[1,1,3]", "Conv(a,b)>y strides=[1,1]",
         "strides has 2 entries, needs 1"},
        {13, "f32[1,1,5] f32[1,1,3]", "Conv(a,b)>y pads=[1]",
         "pads has 1 entries, needs 2"},
        {13, "f32[1,1,5] f32[1,1,3]", "Conv(a,b)>y pads=[1,0]", "=f32[1,1,4]"},
        {13, "f32[1,1,5] f32[1,1,3]", "Conv(a,b)>y pads=[-1,0]",
         "pads[0] is -1"},
        {13, "f32[1,1,5] f32[1,1,3]", "Conv(a,b)>y strides=[2147483648]",
         "strides[0] is 2147483648"},
        {13, "f32[1,1,5] f32[1,1,3]", "Conv(a,b)>y strides=[2147483647]",
         "=f32[1,1,1]"},
        {13, "f32[1,1,5] f32[1,1,3]",
         "Conv(a,b)>y auto_pad='SAME_UPPER' strides=[2]", "=f32[1,1,3]"},
        {13, "f32[1,1,5] f32[1,1,3]", "Conv(a,b)>y auto_pad='VALID' pads=[1,1]",
         "=f32[1,1,3]"},
        {13, "f32[1,1,5] f32[1,1,3]", "Conv(a,b)>y auto_pad='SAME'",
         "auto_pad 'SAME' is unknown"},
        {13, "f32[1,1,5] f32[2,1,3] f32[1,2]", "Conv(a,b,c)>y",
         "bias must have one element per output"},
        {13, "f32[1,1,5] f32[2,1,3] f32[1]", "Conv(a,b,c)>y",
         "bias must have one element per output"},
        {13, "f32[1,1,5] f32[2,1,3] f32[2]", "Conv(a,b,c)>y", "=f32[1,2,3]"},
        {13, "f32[1,1,3] f32[1,1,3]", "ConvTranspose(a,b)>y strides=[2]",
         "=f32[1,1,7]"},
        {13, "f32[1,1,3] f32[1,1,3]",
         "ConvTranspose(a,b)>y strides=[2] output_padding=[1]", "=f32[1,1,8]"},
        {13, "f32[1,1,3] f32[1,1,3]",
         "ConvTranspose(a,b)>y strides=[2] pads=[1,2]", "=f32[1,1,4]"},
        {13, "f32[1,1,3] f32[1,1,3]",
         "ConvTranspose(a,b)>y strides=[2] auto_pad='SAME_UPPER'",
         "=f32[1,1,6]"},
        {13, "f32[1,1,3] f32[1,1,3]",
         "ConvTranspose(a,b)>y strides=[2] output_shape=[6]", "=f32[1,1,6]"},
        {13, "f32[1,1,3] f32[1,1,3]",
         "ConvTranspose(a,b)>y strides=[2] output_shape=[6,6]",
         "output_shape has 2 entries, needs 1"},
        {13, "f32[1,1,2] f32[1,1,2]",
         "ConvTranspose(a,b)>y dilations=[3] output_padding=[2]",
         "=f32[1,1,7] 0 100 0 0 101 0 0"},
        {13, "f32[1,1,2] f32[1,1,2]",
         "ConvTranspose(a,b)>y dilations=[3] output_padding=[2] pads=[0,1]",
         "=f32[1,1,6] 0 100 0 0 101 0"},
        {13, "f32[1,2,3] f32[2,3,3]", "ConvTranspose(a,b)>y group=2",
         "=f32[1,6,5]"},
        {13, "f32[1,2,3] f32[2,3,3]", "ConvTranspose(a,b)>y group=0",
         "0 groups"},
        {13, "f32[1,2,3] f32[2,3]", "ConvTranspose(a,b)>y",
         "differ in rank: 3 and 2"},
        {13, "f32[1,1,6]", "MaxPool(a)>y kernel_shape=[2] strides=[3]",
         "=f32[1,1,2]"},
        {13, "f32[1,1,6]",
         "MaxPool(a)>y kernel_shape=[2] strides=[3] "
         "ceil_mode=1",
         "=f32[1,1,2]"},
        {13, "f32[1,1,7]",
         "MaxPool(a)>y kernel_shape=[2] strides=[3] "
         "ceil_mode=1",
         "=f32[1,1,3]"},
        {13, "f32[1,1,4]", "MaxPool(a)>y kernel_shape=[4]", "=f32[1,1,1]"},
        {13, "f32[1,1,4]", "MaxPool(a)>y kernel_shape=[5]",
         "a window of 5 on 4 padded"},
        {13, "f32[1,1,4]", "MaxPool(a)>y kernel_shape=[5] pads=[0,1]",
         "=f32[1,1,1]"},
        {13, "f32[1,1,4]", "MaxPool(a)>y kernel_shape=[2] dilations=[4]",
         "a window of 5 on 4 padded"},
        {13, "f32[1,1,4]",
         "MaxPool(a)>y kernel_shape=[5] ceil_mode=1 "
         "strides=[2]",
         "=f32[1,1,1]"},
        {13, "f32[1,1,4]", "MaxPool(a)>y kernel_shape=[5] ceil_mode=1",
         "a window of 5 on 4 padded"},
        {13, "f32[1,1,0]", "MaxPool(a)>y kernel_shape=[1] pads=[0,1]",
         "an empty result along spatial axis 0"},
        {13, "f32[1,1,4]", "MaxPool(a)>y", "'kernel_shape' is missing"},
        {13, "f32[1,2,3,4]",
         "MaxPool(a)>z,y kernel_shape=[1,1] "
         "storage_order=1",
         "storage_order=1 are not"},
        {13, "f32[1,2]", "GlobalAveragePool(a)>y", "=f32[1,2]"},
        {13, "f32[1,2,5]", "GlobalAveragePool(a)>y", "=f32[1,2,1]"},
        {13, "f32[2]", "GlobalAveragePool(a)>y", "an operand of rank 1"}};
    CHECK_ROWS(rows);
}

TEST_CASE(onnx_bounds, sequences) {
    static const Row rows[] = {
        {13, "f32[2,5] i64:2 i64:2",
         "SplitToSequence(a,b)>s axis=1; SequenceAt(s,c)>y", "=f32[2,1]"},
        {13, "f32[2,5] i64:2 i64:3",
         "SplitToSequence(a,b)>s axis=1; SequenceAt(s,c)>y", "axis 3 is out"},
        {13, "f32[2,5] i64:2 i64:-3",
         "SplitToSequence(a,b)>s axis=1; SequenceAt(s,c)>y", "=f32[2,2]"},
        {13, "f32[2,5] i64{1,4} i64:1",
         "SplitToSequence(a,b)>s axis=1; SequenceAt(s,c)>y", "=f32[2,4]"},
        {13, "f32[2,5] i64{1,3} i64:1",
         "SplitToSequence(a,b)>s axis=1; SequenceAt(s,c)>y",
         "sum to 4, the axis has 5"},
        {13, "f32[2,5] i64:0 i64:1",
         "SplitToSequence(a,b)>s axis=1; SequenceAt(s,c)>y", "a chunk of 0"},
        {13, "f32[2,5] i64:1",
         "SplitToSequence(a)>s axis=1 keepdims=0; SequenceAt(s,b)>y",
         "=f32[2]"},
        {13, "f32[2,5] i64:1", "SplitToSequence(a)>s axis=1; SequenceAt(s,b)>y",
         "=f32[2,1]"},
        {13, "f32[4] i64:0",
         "SplitToSequence(a)>s; SequenceErase(s,b)>t; ConcatFromSequence(t)>y "
         "axis=0",
         "=f32[3] 1 2 3"},
        {13, "f32[4] i64:1",
         "SplitToSequence(a)>s; SequenceErase(s,b)>t; ConcatFromSequence(t)>y "
         "axis=0",
         "=f32[3] 0 2 3"},
        {13, "f32[4] i64:3",
         "SplitToSequence(a)>s; SequenceErase(s,b)>t; ConcatFromSequence(t)>y "
         "axis=0",
         "=f32[3] 0 1 2"},
        {13, "f32[4] i64:-1",
         "SplitToSequence(a)>s; SequenceErase(s,b)>t; ConcatFromSequence(t)>y "
         "axis=0",
         "=f32[3] 0 1 2"},
        {13, "f32[4] i64:-4",
         "SplitToSequence(a)>s; SequenceErase(s,b)>t; ConcatFromSequence(t)>y "
         "axis=0",
         "=f32[3] 1 2 3"},
        {13, "f32[4] i64:-2",
         "SplitToSequence(a)>s; SequenceErase(s,b)>t; ConcatFromSequence(t)>y "
         "axis=0",
         "=f32[3] 0 1 3"},
        {13, "f32[4]",
         "SplitToSequence(a)>s; SequenceErase(s)>t; ConcatFromSequence(t)>y "
         "axis=0",
         "=f32[3] 0 1 2"},
        {13, "f32[3] f32[1] i64:0",
         "SplitToSequence(a)>s; SequenceInsert(s,b,c)>t; "
         "ConcatFromSequence(t)>y axis=0",
         "=f32[4] 100 0 1 2"},
        {13, "f32[3] f32[1] i64:1",
         "SplitToSequence(a)>s; SequenceInsert(s,b,c)>t; "
         "ConcatFromSequence(t)>y axis=0",
         "=f32[4] 0 100 1 2"},
        {13, "f32[3] f32[1] i64:3",
         "SplitToSequence(a)>s; SequenceInsert(s,b,c)>t; "
         "ConcatFromSequence(t)>y axis=0",
         "=f32[4] 0 1 2 100"},
        {13, "f32[3] f32[1] i64:-1",
         "SplitToSequence(a)>s; SequenceInsert(s,b,c)>t; "
         "ConcatFromSequence(t)>y axis=0",
         "=f32[4] 0 1 100 2"},
        {13, "f32[3] f32[1] i64:-3",
         "SplitToSequence(a)>s; SequenceInsert(s,b,c)>t; "
         "ConcatFromSequence(t)>y axis=0",
         "=f32[4] 100 0 1 2"},
        {13, "f32[3] f32[1]",
         "SplitToSequence(a)>s; SequenceInsert(s,b)>t; ConcatFromSequence(t)>y "
         "axis=0",
         "=f32[4] 0 1 2 100"},
        {13, "f32[2,5] i64:0",
         "SplitToSequence(a)>s axis=1 keepdims=0; SequenceAt(s,b)>y",
         "=f32[2] 0 5"},
        {13, "f32[2,5] i64:4",
         "SplitToSequence(a)>s axis=1 keepdims=0; SequenceAt(s,b)>y",
         "=f32[2] 4 9"},
        {13, "f32[2,5] i64:0",
         "SplitToSequence(a)>s axis=0 keepdims=0; SequenceAt(s,b)>y",
         "=f32[5] 0 1 2 3 4"},
        {13, "f32[2,4] i64:1 i64:0",
         "SplitToSequence(a,b)>s axis=1 keepdims=0; SequenceAt(s,c)>y",
         "=f32[2,1] 0 4"},
        {13, "f32[2,5]", "SplitToSequence(a)>s axis=1; SequenceLength(s)>y",
         "=i64[] 5"},
        {13, "f32[3]",
         "SplitToSequence(a)>s; ConcatFromSequence(s)>y axis=0 new_axis=1",
         "=f32[3,1] 0 1 2"},
        {13, "f32[4096] i64:1", "SplitToSequence(a)>s; SequenceAt(s,b)>y",
         "=f32[1]"},
        {13, "f32[4097] i64:1", "SplitToSequence(a)>s; SequenceAt(s,b)>y",
         "a sequence of 4097 parts"},
        {13, "f32[2] i64:0", "SequenceAt(a,b)>y", "'a' is not a sequence"},
        {13, "f32[2] i64{0,1}", "SequenceConstruct(a)>s; SequenceAt(s,b)>y",
         "the position must be a scalar"},
        {13, "f32[2] f32[3] i64:1",
         "SequenceConstruct(a)>s; SequenceInsert(s,b)>t; SequenceAt(t,c)>y",
         "=f32[3]"},
        {13, "f32[2] f32[3] i64:1",
         "SequenceConstruct(a)>s; SequenceInsert(s,b,c)>t; SequenceAt(t,c)>y",
         "=f32[3]"},
        {13, "f32[2] f32[3] f32[4] i64:2",
         "SequenceConstruct(a,b)>s; SequenceInsert(s,c)>t; SequenceAt(t,d)>y",
         "=f32[4]"},
        {13, "f32[2] f32[3] f32[4] f32[5] f32[6] i64:4",
         "SequenceConstruct(a,b,c,d)>s; SequenceInsert(s,e)>t; "
         "SequenceAt(t,f)>y",
         "=f32[6]"},
        {13, "f32[2] f32[3] i64:-1 i64:0",
         "SequenceConstruct(a)>s; SequenceInsert(s,b,c)>t; SequenceAt(t,d)>y",
         "=f32[3]"},
        {13, "f32[2] f32[3] i64:2",
         "SequenceConstruct(a)>s; SequenceInsert(s,b,c)>t; SequenceAt(t,c)>y",
         "position 2 of 1"},
        {13, "f32[2] f32[3] i64:-2",
         "SequenceConstruct(a)>s; SequenceInsert(s,b,c)>t; SequenceAt(t,c)>y",
         "position -2 of 1"},
        {13, "f32[2] f32[3] i64:0",
         "SequenceConstruct(a,b)>s; SequenceInsert(s,s)>t; SequenceAt(t,c)>y",
         "operand 1 is a sequence"},
        {13, "f32[2] f32[3] i64:0",
         "SequenceConstruct(a,b)>s; SequenceErase(s)>t; SequenceAt(t,c)>y",
         "=f32[2]"},
        {13, "f32[2] f32[3] i64:0",
         "SequenceConstruct(a,b)>s; SequenceErase(s,c)>t; SequenceAt(t,c)>y",
         "=f32[3]"},
        {13, "f32[2] f32[3]",
         "SequenceConstruct(a,b)>s; ConcatFromSequence(s)>y axis=0", "=f32[5]"},
        {13, "f32[2] f32[2]",
         "SequenceConstruct(a,b)>s; ConcatFromSequence(s)>y axis=1 new_axis=1",
         "=f32[2,2]"},
        {13, "f32[2] f32[2]",
         "SequenceConstruct(a,b)>s; ConcatFromSequence(s)>y axis=2 new_axis=1",
         "axis 2 is out of range for rank 2"},
        {13, "f32[2]", "SequenceEmpty()>s; ConcatFromSequence(s)>y axis=0",
         "the sequence is empty"},
        {13, "f32[1,1,1,1,1,1,1,2]",
         "SequenceConstruct(a)>s; ConcatFromSequence(s)>y axis=0 new_axis=1",
         "a result of rank 9"}};
    CHECK_ROWS(rows);
}

TEST_CASE(onnx_bounds, sizes) {
    static const Row rows[] = {
        {18, "f32[4] f32{0.5,1} i64{4}",
         "Resize(a,b,,c)>y mode='linear' "
         "coordinate_transformation_mode='tf_crop_and_resize'",
         "=f32[4] 1.5 2 2.5 3"},
        {13, "f32[1,1,2,2] f32{1,1,2,3}", "Resize(a,,b)>y", "=f32[1,1,4,6]"},
        {13, "f32[1,1,2,2] f32{1,1,0.5,1.9}", "Resize(a,,b)>y",
         "=f32[1,1,1,3]"},
        {13, "f32[1,1,2,2] f32{1,1,0,2}", "Resize(a,,b)>y", "a scale of 0"},
        {13, "f32[1,1,2,2] i64{1,1,3,5}", "Resize(a,,,b)>y", "=f32[1,1,3,5]"},
        {13, "f32[1,1,2,2] i64{1,1,3,-1}", "Resize(a,,,b)>y", "a size of -1"},
        {13, "f32[1,1,2,2] f32{1,1,2,2} i64{1,1,3,5}", "Resize(a,,b,c)>y",
         "scales or sizes do not fit"},
        {13, "f32[5] i64{12}",
         "Resize(a,,,b)>y nearest_mode='round_prefer_ceil' "
         "coordinate_transformation_mode='asymmetric'",
         "=f32[12] 0 0 1 1 2 2 3 3 3 4 4 4"},
        {13, "f32[5] i64{12}",
         "Resize(a,,,b)>y nearest_mode='round_prefer_floor' "
         "coordinate_transformation_mode='asymmetric'",
         "=f32[12] 0 0 1 1 2 2 2 3 3 4 4 4"},
        {13, "f32[5] i64{12}",
         "Resize(a,,,b)>y nearest_mode='floor' "
         "coordinate_transformation_mode='asymmetric'",
         "=f32[12] 0 0 0 1 1 2 2 2 3 3 4 4"},
        {13, "f32[5] i64{12}",
         "Resize(a,,,b)>y nearest_mode='ceil' "
         "coordinate_transformation_mode='asymmetric'",
         "=f32[12] 0 1 1 2 2 3 3 3 4 4 4 4"},
        {18, "f32[2] i64{4}", "Resize(a,,,b)>y mode='linear' antialias=1",
         "=f32[4] 0 0.25 0.75 1"},
        {18, "f32[2] i64{3}", "Resize(a,,,b)>y mode='linear' antialias=1",
         "=f32[3] 0 0.5 1"},
        {18, "f32[2] i64{4}", "Resize(a,,,b)>y mode='linear'",
         "=f32[4] 0 0.25 0.75 1"},
        {18, "f32[3] i64{5}",
         "Resize(a,,,b)>y mode='linear' "
         "coordinate_transformation_mode='align_corners'",
         "=f32[5] 0 0.5 1 1.5 2"},
        {18, "f32[4] i64{2}", "Resize(a,,,b)>y mode='linear'",
         "=f32[2] 0.5 2.5"},
        {13, "f32[2] f32{nan}", "Resize(a,,b)>y", "a scale of nan"},
        {13, "f32[2] f32{inf}", "Resize(a,,b)>y", "a scale of inf"},
        {13, "f32[0] f32{inf}", "Resize(a,,b)>y", "a scale of inf"},
        {13, "f32[2] f32{-1}", "Resize(a,,b)>y", "a scale of -1"},
        {13, "f32[1,1,2,2]", "Resize(a)>y", "scales or sizes do not fit"},
        {13, "f32[1,1,2,2] f32{2,2}", "Resize(a,,b)>y",
         "scales or sizes do not fit"},
        {18, "f32[1,1,2,2] f32{2,3}", "Resize(a,,b)>y axes=[3,2]",
         "=f32[1,1,6,4]"},
        {18, "f32[1,1,2,2] f32{2,2}", "Resize(a,,b)>y axes=[2,4]",
         "axis 4 is out of range"},
        {13, "f32[1,1,2,2] f32[4]", "Resize(a,,b)>y",
         "its scales is not known at compile time"},
        {13, "f32[2] f32{0,1} f32{2}",
         "Resize(a,b,c)>y coordinate_transformation_mode='tf_crop_and_resize'",
         "=f32[4]"},
        {13, "f32[2] f32{0} f32{2}",
         "Resize(a,b,c)>y coordinate_transformation_mode='tf_crop_and_resize'",
         "scales or sizes do not fit"},
        {13, "f32[2] f32:2", "Resize(a,,b)>y",
         "its scales must be a short list"},
        {13, "f32[2] f32{2}", "Resize(a,,b)>y mode='area'",
         "mode 'area' is unknown"},
        {13, "f32[2] f32{2}",
         "Resize(a,,b)>y coordinate_transformation_mode='corners'",
         "coordinate_transformation_mode 'corners' is unknown"},
        {18, "f32[1,2,4] i64{5,3}",
         "Resize(a,,,b)>y axes=[1,2] keep_aspect_ratio_policy='not_larger'",
         "=f32[1,2,3]"},
        {18, "f32[1,2,4] i64{3,3}",
         "Resize(a,,,b)>y axes=[1,2] keep_aspect_ratio_policy='not_smaller'",
         "=f32[1,3,6]"},
        {18, "f32[1,2,4] i64{3,3}",
         "Resize(a,,,b)>y axes=[1,2] keep_aspect_ratio_policy='larger'",
         "keep_aspect_ratio_policy 'larger' is unknown"},
        {18, "f32[1024] f32{0.0078125}",
         "Resize(a,,b)>y mode='linear' antialias=1", "=f32[8]"},
        {18, "f32[1024] f32{0.00625}",
         "Resize(a,,b)>y mode='linear' antialias=1",
         "a scale of 0.00625 on 1024 elements"},
        {9, "f32[1,1,2,2] f32{1,1,2,2}", "Upsample(a,b)>y", "=f32[1,1,4,4]"},
        {21, "f32[2,3] f32[1] u8[1]", "QuantizeLinear(a,b,c)>y axis=1",
         "=u8[2,3]"},
        {21, "u8[2,3] f32[1]", "DequantizeLinear(a,b)>y", "=f32[2,3]"},
        {21, "f32[2,3] f32{1,2,4} u8[3]", "QuantizeLinear(a,b,c)>y axis=1",
         "=u8[2,3]"},
        {21, "f32[2,3] f32{1,2} u8[2]", "QuantizeLinear(a,b,c)>y axis=1",
         "of rank 1 fits neither"},
        {21, "f32[2,3] f32:1 i32[]", "QuantizeLinear(a,b,c)>y",
         "a result of dtype i32"},
        {21, "f32[2,3] f32:1 i16[]", "QuantizeLinear(a,b,c)>y", "=i16[2,3]"},
        {21, "f32[2,6] f32[2,3]", "QuantizeLinear(a,b)>y axis=1 block_size=2",
         "=u8[2,6]"},
        {21, "f32[1,1,1,1,1,1,2,6] f32[1,1,1,1,1,1,2,3]",
         "QuantizeLinear(a,b)>y axis=7 block_size=2", "=u8[1,1,1,1,1,1,2,6]"},
        {21, "f32[2,5] f32[2,3]", "QuantizeLinear(a,b)>y axis=1 block_size=2",
         "=u8[2,5]"},
        {21, "f32[2,6] f32[2,3]", "QuantizeLinear(a,b)>y axis=1 block_size=4",
         "fits neither an axis nor blocks of 4"},
        {21, "f32[2,6] f32[2,3]", "QuantizeLinear(a,b)>y axis=1",
         "fits neither an axis nor blocks of 0"}};
    CHECK_ROWS(rows);
}

TEST_CASE(onnx_bounds, arithmetic) {
    static const Row rows[] = {
        {13, "f32[] f32[3]", "MatMul(a,b)>y", "must not be scalars"},
        {13, "f32[3] f32[]", "MatMul(a,b)>y", "must not be scalars"},
        {13, "f32[3] f32[3]", "MatMul(a,b)>y", "=f32[]"},
        {13, "f32[3] f32[5,3,2]", "MatMul(a,b)>y", "=f32[5,2]"},
        {13, "f32[5,2,3] f32[3]", "MatMul(a,b)>y", "=f32[5,2]"},
        {13, "f32[2] f32[2,3]", "Gemm(a,b)>y", "operands must be matrices"},
        {13, "f32[2,3] f32[1,3,4]", "Gemm(a,b)>y", "operands must be matrices"},
        {13, "f32[3,2] f32[4,3] f32[4]", "Gemm(a,b,c)>y transA=1 transB=1",
         "=f32[2,4]"},
        {13, "f32[2,3] f32[3,4] f32[7,2,4]", "Gemm(a,b,c)>y",
         "operand C does not broadcast"},
        {11, "f32[2,2]", "Softmax(a)>y axis=0",
         "=f32[2,2] 0.0320586 0.0871443 0.236883 0.643914"},
        {11, "f32[2,2]", "Softmax(a)>y",
         "=f32[2,2] 0.268941 0.731059 0.268941 0.731059"},
        {13, "f32[2,2]", "Softmax(a)>y axis=0",
         "=f32[2,2] 0.119203 0.119203 0.880797 0.880797"},
        {13, "f32[1,2] f32[2,1] f32:2", "Mul(b,c)>q;MatMul(a,q)>y",
         "=f32[1,1] 202"},
        {13, "f32[1,2] f32[2,1] f32:2", "Mul(a,c)>p;MatMul(p,b)>y",
         "=f32[1,1] 202"},
        {13, "f32[1,2] f32[2,1] f32:2 f32:3",
         "Mul(a,c)>p;Mul(b,d)>q;MatMul(p,q)>y", "=f32[1,1] 606"},
        {13, "f32[2]", "Relu(a)>y,z", "2 results"},
        {12, "f32[2]", "Einsum(a)>y equation='a->abcdefghi'",
         "more than 8 labels"},
        {12, "f32[2,3]", "Einsum(a)>y equation='...j'",
         "=f32[2,3] 0 1 2 3 4 5"},
        {11, "f32[2] i64{1,1,0}", "Cast(b)>c to=9;Compress(a,c)>y axis=0",
         "3 conditions"},
        {11, "f32[3] i64{1,0,1}", "Cast(b)>c to=9;Compress(a,c)>y axis=0",
         "=f32[2] 0 2"},
        {11, "f32[2,2] i64{1,0,1}", "Cast(b)>c to=9;Compress(a,c)>y",
         "=f32[2] 0 2"},
        {18, "f32[3]", "ReduceSumSquare(a)>y noop_with_empty_axes=1",
         "=f32[3] 0 1 4"},
        {18, "f32[3]", "ReduceSumSquare(a)>y", "=f32[1] 5"},
        {7, "f32[2,3] f32[3] f32[3] f32[3] f32[3]",
         "BatchNormalization(a,b,c,d,e)>y spatial=0",
         "spatial=0 is not supported"},
        {13, "f32[2]", "SequenceConstruct(a)>s;Relu(s)>y", "is a sequence"},
        {13, "f32[2] f32:0.5 bool[]", "Dropout(a,b,c)>y",
         "training_mode is not known"},
        {13, "f32[1,1,4294967296] f32[1,1,3]", "Conv(a,b)>y",
         "spatial axis 0 has 4294967296 elements"},
        {18, "f32[1,1,3]", "LpPool(a)>y kernel_shape=[2] auto_pad='SAME_UPPER'",
         "=f32[1,1,3] 1 2.23607 2"},
        {18, "f32[1,1,3]", "LpPool(a)>y kernel_shape=[2] auto_pad='SAME_LOWER'",
         "=f32[1,1,3] 0 1 2.23607"},
        {13, "f32[2] i64{4611686018427387904}", "Tile(a,b)>y", "too large"},
        {13, "f32[1,1,1,1,1,1,1,1,1]", "Relu(a)>y", "has rank 9; at most 8"},
        {13, "f32[2] f32[2]", "Relu(a,b)>y", "2 operands"},
        {13, "f32[2]", "Add(a)>y", "1 operand"},
        {13, "f32[2]", "Add(a,)>y", "operand 1"},
        {18, "f32[1,1,3]", "LpPool(a)>y kernel_shape=[2]",
         "=f32[1,1,2] 1 2.23607"},
        {18, "f32[1,1,3]", "LpPool(a)>y kernel_shape=[2] p=1",
         "=f32[1,1,2] 1 3"},
        {18, "f32[1,1,2]", "GlobalLpPool(a)>y", "=f32[1,1,1] 1"},
        {10, "f32{inf,-inf,1}", "IsInf(a)>y", "=bool[3] 1 1 0"},
        {10, "f32{inf,-inf,1}", "IsInf(a)>y detect_negative=0",
         "=bool[3] 1 0 0"},
        {10, "f32{inf,-inf,1}", "IsInf(a)>y detect_positive=0",
         "=bool[3] 0 1 0"},
        {10, "f32{inf,-inf,1}",
         "IsInf(a)>y detect_negative=0 "
         "detect_positive=0",
         "=bool[3] 0 0 0"},
        {13, "f32[1,2,2,2]", "SpaceToDepth(a)>y blocksize=2",
         "=f32[1,8,1,1] 0 4 1 5 2 6 3 7"},
        {13, "f32[1,2,2,2]", "SpaceToDepth(a)>y blocksize=2 mode='CRD'",
         "=f32[1,8,1,1] 0 1 2 3 4 5 6 7"},
        {13, "f32[4] f32:2", "QuantizeLinear(a,b)>q;DequantizeLinear(q,b)>y",
         "=f32[4] 0 0 2 4"},
        {13, "f32[4] f32:2 f32:4",
         "QuantizeLinear(a,b)>q;DequantizeLinear(q,c)>y", "=f32[4] 0 0 4 8"},
        {13, "f32{300,-5,255,256} f32:1",
         "QuantizeLinear(a,b)>q;DequantizeLinear(q,b)>y",
         "=f32[4] 255 0 255 255"},
        {17, "f32[1,3,2,1]", "DFT(a)>y onesided=1", "=f32[1,2,2,2]"},
        {17, "f32[1,3,2,1]", "DFT(a)>y onesided=1 axis=2", "=f32[1,3,2,2]"},
        {20, "f32[1,3,4,1]", "DFT(a)>y onesided=1", "=f32[1,3,3,2]"},
        {13, "f32[2,3] i64{2,0} i64{1}",
         "Unsqueeze(b,c)>i;GatherND(a,i)>y batch_dims=1", "=f32[2] 2 3"},
        {13, "f32[2,3] i64{-1,1} i64{1}",
         "Unsqueeze(b,c)>i;GatherND(a,i)>y batch_dims=1", "=f32[2] 2 4"},
        {13, "f32[2,3] i64{1,2}", "GatherND(a,b)>y", "=f32[] 5"},
        {13, "f32[2,3] i64{-1,-3}", "GatherND(a,b)>y", "=f32[] 3"},
        {13, "f32[2,3] i64{1}", "GatherND(a,b)>y", "=f32[3] 3 4 5"},
        {13, "f32[2,2,2] i64{1,0} i64{1}",
         "Unsqueeze(b,c)>i;GatherND(a,i)>y batch_dims=1", "=f32[2,2] 2 3 4 5"},
        {13, "f32[1,8,1,1]", "DepthToSpace(a)>y blocksize=2",
         "=f32[1,2,2,2] 0 2 4 6 1 3 5 7"},
        {13, "f32[1,8,1,1]", "DepthToSpace(a)>y blocksize=2 mode='CRD'",
         "=f32[1,2,2,2] 0 1 2 3 4 5 6 7"},
        {13, "f32[1,4,1,2]", "DepthToSpace(a)>y blocksize=2 mode='CRD'",
         "=f32[1,1,2,4] 0 2 1 3 4 6 5 7"},
        {6, "f32[1,2,2] f32[2] f32:10", "Sub(a,c)>n broadcast=1;PRelu(n,b)>y",
         "=f32[1,2,2] -1000 -900 -808 -707"},
        {9, "f32[1,2,2] f32[2,1] f32:10", "Sub(a,c)>n;PRelu(n,b)>y",
         "=f32[1,2,2] -1000 -900 -808 -707"},
        {9, "f32[1,2,2] f32[2] f32:10", "Sub(a,c)>n;PRelu(n,b)>y",
         "=f32[1,2,2] -1000 -909 -800 -707"},
        {9, "f32[1,2,2] f32[3]", "PRelu(a,b)>y", "broadcast"},
        {13, "f32[2] f32[2] f32[2]", "Sum(a,b,c)>y", "=f32[2] 300 303"},
        {13, "f32[2] f32[2] f32[2]", "Mean(a,b,c)>y", "=f32[2] 100 101"},
        {13, "f32[2]", "Mean(a)>y", "=f32[2] 0 1"},
        {13, "f32[2] f32[2] f32[2]", "Max(b,a,c)>y", "=f32[2] 200 201"},
        {13, "f32[2] f32[2] f32[2]", "Min(b,a,c)>y", "=f32[2] 0 1"},
        {18, "u8[3] u8[3]", "BitwiseXor(a,b)>y", "=u8[3] 100 100 100"},
        {18, "u8[3] u8[3]", "BitwiseOr(a,b)>y", "=u8[3] 100 101 102"},
        {18, "u8[3] u8[3]", "BitwiseAnd(a,b)>y", "=u8[3] 0 1 2"},
        {18, "u8[3]", "BitwiseNot(a)>y", "=u8[3] 255 254 253"},
        {18, "i8[3]", "BitwiseNot(a)>y", "=i8[3] -1 -2 -3"},
        {11, "u8[3] u8{1,2,7}", "BitShift(a,b)>y direction='LEFT'",
         "=u8[3] 0 4 0"},
        {11, "u8[3] u8[3]", "BitShift(b,a)>y direction='RIGHT'",
         "=u8[3] 100 50 25"},
        {9, "f32{0.55,-0.55,0.45,-0.45,0.5}", "Shrink(a)>y",
         "=f32[5] 0.55 -0.55 0 0 0"},
        {9, "f32{2,-2,1}", "Shrink(a)>y lambd=1.0 bias=0.5",
         "=f32[3] 1.5 -1.5 0"},
        {13, "f32{7,-7,7,-7} f32{3,3,-3,-3}", "Mod(a,b)>y fmod=1",
         "=f32[4] 1 -1 1 -1"},
        {13, "i64{7,-7,7,-7} i64{3,3,-3,-3}", "Mod(a,b)>y",
         "=i64[4] 1 2 -2 -1"},
        {13, "i64{7,-7,7,-7} i64{3,3,-3,-3}", "Mod(a,b)>y fmod=1",
         "=i64[4] 1 -1 1 -1"},
        {13, "i64{7,-7,7,-7} i64{3,3,-3,-3}", "Div(a,b)>y",
         "=i64[4] 2 -2 -2 2"},
        {13, "", "RandomNormal()>y shape=[]", "=f32[]"},
        {13, "", "RandomUniform()>y shape=[2,3] dtype=11", "=f64[2,3]"},
        {13, "", "RandomNormal()>y", "attribute 'shape' is missing"},
        {13, "", "RandomNormal()>y shape=[2] dtype=7", "dtype i64"},
        {13, "", "RandomNormal()>y shape=[2] dtype=99", "element type 99"},
        {13, "f32[2,3]", "RandomNormalLike(a)>y", "=f32[2,3]"},
        {13, "i64[2,3]", "RandomNormalLike(a)>y", "dtype i64"},
        {13, "i64[2,3]", "RandomNormalLike(a)>y dtype=1", "=f32[2,3]"},
        {15, "f32[2,3]", "Bernoulli(a)>y", "=f32[2,3]"},
        {15, "f32[2,3]", "Bernoulli(a)>y dtype=6", "=i32[2,3]"},
        {13, "f32[2,3]", "Multinomial(a)>y sample_size=4", "=i32[2,4]"},
        {13, "f32[2,3]", "Multinomial(a)>y sample_size=4 dtype=7", "=i64[2,4]"},
        {13, "f32[2,3]", "Multinomial(a)>y", "=i32[2,1]"},
        {20, "f32[2]", "Gelu(a)>y approximate='tanh'", "=f32[2]"},
        {20, "f32[2]", "Gelu(a)>y approximate='sigmoid'",
         "approximate 'sigmoid' is neither none nor tanh"},
        {18, "i32[2] i32[2]", "BitwiseAnd(a,b)>y", "=i32[2]"},
        {18, "f32[2] f32[2]", "BitwiseAnd(a,b)>y", "bits of f32"},
        {18, "f32[2]", "BitwiseNot(a)>y", "bits of f32"},
        {11, "u8[2] u8[2]", "BitShift(a,b)>y direction='LEFT'", "=u8[2]"},
        {11, "u8[2] u8[2]", "BitShift(a,b)>y direction='left'",
         "direction 'left'"},
        {11, "f32[2] f32[2]", "BitShift(a,b)>y direction='LEFT'",
         "bits of f32"},
        {6, "f32[2,3,4] f32[3]", "Add(a,b)>y broadcast=1 axis=1",
         "=f32[2,3,4]"},
        {6, "f32[2,3,4] f32[3]", "Add(a,b)>y broadcast=1 axis=-2",
         "=f32[2,3,4]"},
        {6, "f32[2,3,4] f32[3,4]", "Add(a,b)>y broadcast=1 axis=1",
         "=f32[2,3,4]"},
        {6, "f32[2,3,4] f32[3,4]", "Add(a,b)>y broadcast=1 axis=2",
         "axis 2 does not place an operand of rank 2 in one of rank 3"},
        {6, "f32[2,3,4] f32[3]", "Add(a,b)>y broadcast=1 axis=-4",
         "axis -4 does not place"},
        {13, "f32[2,3] i64[2]", "SoftmaxCrossEntropyLoss(a,b)>y", "=f32[]"},
        {13, "f32[3] i64[1]", "SoftmaxCrossEntropyLoss(a,b)>y",
         "must have a batch and a class axis"},
        {13, "f32[3] i64[1]", "NegativeLogLikelihoodLoss(a,b)>y",
         "must have a batch and a class axis"},
        {12, "f32[2,3] f32[3,4]", "Einsum(a,b)>y equation='ij,jk->ki'",
         "=f32[4,2]"},
        {12, "f32[2,3] f32[3,4]", "Einsum(a,b)>y equation='ij,jk'",
         "=f32[2,4]"},
        {12, "f32[3,3]", "Einsum(a)>y equation='ii->i'", "=f32[3]"},
        {12, "f32[2,3]", "Einsum(a)>y equation='ii->i'",
         "a diagonal of 2 by 3"},
        {12, "f32[2,3]", "Einsum(a)>y equation='ijk'", "operand 0 has rank 2"},
        {12, "f32[2,3]", "Einsum(a)>y equation='i'", "operand 0 has rank 2"},
        {12, "f32[2,3]", "Einsum(a)>y equation='...j->j...'", "=f32[3,2]"},
        {12, "f32[2,3]", "Einsum(a)>y equation='ij,jk'",
         "does not have 1 terms"},
        {12, "f32[2,3] f32[3]", "Einsum(a,b)>y equation='ij'",
         "does not have 2 terms"},
        {12, "f32[2,3]", "Einsum(a)>y equation='ij->i1'", "a stray '1'"},
        {14, "f32[3,2,4] f32[1,20,4] f32[1,20,5]",
         "LSTM(a,b,c)>y hidden_size=5", "=f32[3,1,2,5]"},
        {14, "f32[3,2,4] f32[1,20,4] f32[1,20,5]",
         "LSTM(a,b,c)>y hidden_size=6", "hidden_size disagrees"},
        {14, "f32[3,2,4] f32[1,5,4] f32[1,5,5]",
         "RNN(a,b,c)>y activations=('relu')", "=f32[3,1,2,5]"},
        {14, "f32[3,2,4] f32[1,5,4] f32[1,5,5]",
         "RNN(a,b,c)>y activations=('Relu','Tanh')", "2 activations, needs 1"},
        {14, "f32[3,2,4] f32[2,5,4] f32[2,5,5]",
         "RNN(a,b,c)>y activations=('Relu','Tanh') direction='bidirectional'",
         "=f32[3,2,2,5]"},
        {14, "f32[3,2,4] f32[1,5,4] f32[1,5,5]",
         "RNN(a,b,c)>y activations=('Swish')", "activation 0 is not supported"},
        {14, "f32[2,1,1] f32[1,4,1] f32[1,4,1]", /* gates i, o, f, c */
         "LSTM(a,b,c)>y activations=('Relu','Relu','Relu')",
         "=f32[2,1,1,1] 0 1.0403e+06"},
        {14, "f32[1,1,1] f32[1,4,1] f32[1,4,1]",
         "LSTM(a,b,c)>y activations=('Relu','Relu')", "2 activations, needs 3"},
        {14, "f32[1,1,1] f32[1,3,1] f32[1,3,1]",
         "GRU(a,b,c)>y activations=('Relu','Relu','Relu')",
         "3 activations, needs 2"},
        /* every dimension of an equation in another place */
        {12, "f32[2,3,2]", "Einsum(a)>y equation='iji->ij'",
         "=f32[2,3] 0 2 4 7 9 11"},
        {12, "f32[2,2,2]", "Einsum(a)>y equation='iii->i'", "=f32[2] 0 7"},
        {12, "f32[2,2,2]", "Einsum(a)>y equation='iii->'", "=f32[] 7"},
        {12, "f32[2,3]", "Einsum(a)>y equation='ij->'", "=f32[] 15"},
        {12, "f32[2,3]", "Einsum(a)>y equation='ij->j'", "=f32[3] 3 5 7"},
        {12, "f32[2,3]", "Einsum(a)>y equation='ij->ji'",
         "=f32[3,2] 0 3 1 4 2 5"},
        {12, "f32[2,3]", "Einsum(a)>y equation='ba'", "=f32[3,2] 0 3 1 4 2 5"},
        {12, "f32[2] f32[2]", "Einsum(a,b)>y equation='i,i'", "=f32[] 101"},
        {12, "f32[2] f32[2]", "Einsum(a,b)>y equation='i,j'",
         "=f32[2,2] 0 0 100 101"},
        {12, "f32[2] f32[2]", "Einsum(a,b)>y equation='i,j->'", "=f32[] 201"},
        {12, "f32[2] f32[2] f32[2]", "Einsum(a,b,c)>y equation='i,j,k->ik'",
         "=f32[2,2] 0 0 40200 40401"},
        {12, "f32[1,3] f32[2,3]", "Einsum(a,b)>y equation='...j,...j->...j'",
         "=f32[2,3] 0 101 204 0 104 210"},
        {12, "f32[3] f32[2,3]", "Einsum(a,b)>y equation='...j,...j->...'",
         "=f32[2] 305 314"},
        {12, "f32[2,1] f32[2,3]", "Einsum(a,b)>y equation='i...,i...->i...'",
         "=f32[2,3] 0 0 0 103 104 105"},
        {12, "f32[2,1] f32[1,3]", "Einsum(a,b)>y equation='ij,ij->ij'",
         "=f32[2,3] 0 0 0 100 101 102"},
        {12, "f32[2,3]", "Einsum(a)>y equation='ij->ijk'", "in no term"},
        {12, "f32[2,3]", "Einsum(a)>y equation='ij->iij'",
         "twice in the result"},
        {12, "f32[2,3]", "Einsum(a)>y equation=' i j -> j i '",
         "=f32[3,2] 0 3 1 4 2 5"},
        {12, "f32[2,3]", "Einsum(a)>y equation='.j->j'",
         "operand 0 has rank 2"},
        {12, "f32[2,3]", "Einsum(a)>y equation='..j->j'",
         "operand 0 has rank 2"},
        {12, "f32[2,3]", "Einsum(a)>y equation='......->...'",
         "operand 0 has rank 2"},
        {12, "f32[2,3] f32[4,3]", "Einsum(a,b)>y equation='ij,jk->ik'",
         "do not broadcast"},
        {14, "f32[4] i64:0", "CumSum(a,b)>y", "=f32[4]"},
        {14, "f32[4] i64:1", "CumSum(a,b)>y", "axis"}};
    CHECK_ROWS(rows);
}

/* A sum that goes on, and each of its values. */
#define SUMS "body={s,x|Add(s,x)>t;Identity(t)>u|t,u}"
#define SCAN "Scan(a,b)>z,y num_scan_inputs=1 " SUMS

TEST_CASE(onnx_bounds, bodies) {
    static const Row rows[] = {
        {11, "f32[2] f32[3,2]", SCAN, "=f32[3,2] 100 102 202 205 306 310"},
        {11, "f32[2] f32[3,2]", "Scan(a,b)>y,z num_scan_inputs=1 " SUMS,
         "=f32[2] 306 310"},
        {11, "f32[2] f32[3,2]", SCAN " scan_input_directions=[1]",
         "=f32[3,2] 104 106 206 209 306 310"},
        {11, "f32[2] f32[3,2]", SCAN " scan_output_directions=[1]",
         "=f32[3,2] 306 310 202 205 100 102"},
        {11, "f32[2] f32[2,2]", SCAN " scan_output_directions=[1]",
         "=f32[2,2] 202 205 100 102"},
        {11, "f32[2] f32[4,2]", SCAN " scan_output_directions=[1]",
         "=f32[4,2] 412 417 306 310 202 205 100 102"},
        {11, "f32[2] f32[3,2]", SCAN " scan_output_axes=[1]",
         "=f32[2,3] 100 202 306 102 205 310"},
        {11, "f32[2] f32[3,2]", SCAN " scan_output_axes=[-1]",
         "=f32[2,3] 100 202 306 102 205 310"},
        {11, "f32[2] f32[3,2]", SCAN " scan_output_axes=[2]", "axis 2 is out"},
        {11, "f32[2] f32[2,3]", SCAN " scan_input_axes=[1]",
         "=f32[3,2] 100 104 201 208 303 313"},
        {11, "f32[2] f32[2,3]", SCAN " scan_input_axes=[2]", "axis 2 is out"},
        {11, "f32[2] f32[3,2] f32[3,2]",
         "Scan(a,b,c)>z,y num_scan_inputs=2 scan_input_directions=[1] "
         "body={s,x,w|Add(s,x)>t;Sub(x,w)>u|t,u}",
         "scan_input_directions is too short"},
        {11, "f32[2] f32[3,2] f32[3,2]",
         "Scan(a,b,c)>z,y num_scan_inputs=2 scan_input_directions=[0,1] "
         "body={s,x,w|Add(s,x)>t;Sub(x,w)>u|t,u}",
         "=f32[3,2] -104 -104 -100 -100 -96 -96"},
        {11, "f32[2] f32[3,2] f32[2,2]",
         "Scan(a,b,c)>z,y num_scan_inputs=2 "
         "body={s,x,w|Add(s,x)>t;Sub(x,w)>u|t,u}",
         "its operands differ in length"},
        {11, "f32[2] f32[0,2]", SCAN, "0 turns"},
        {11, "f32[1] f32[4097,1]", SCAN, "4097 turns"},
        {8, "f32[2] f32[3,2]", SCAN, "Scan before opset 9"},
        {11, "f32[2] f32[3,2]", "Scan(a,b)>z,y num_scan_inputs=0 " SUMS,
         "num_scan_inputs is 0"},
        {11, "f32[3,2]", "Scan(a)>y num_scan_inputs=1 body={x|Neg(x)>t|t}",
         "=f32[3,2] -0 -1 -2 -3 -4 -5"},
        {11, "f32[2] f32[3,2]", "Scan(a,b)>z,y num_scan_inputs=3 " SUMS,
         "num_scan_inputs is 3"},
        {11, "f32[2] f32[3,2]", "Scan(a,b)>y num_scan_inputs=1 " SUMS,
         "its body gives 2 results"},
        {11, "f32[2] f32[3,2]",
         "Scan(a,b)>z,y num_scan_inputs=1 body={s|Neg(s)>t;Abs(s)>u|t,u}",
         "its body takes 1 operands, is given 2"},
        {11, "i64:3 f32[2]",
         "Loop(a,,b)>y body={i,go,s|Add(s,s)>t;Identity(go)>on|on,t}",
         "=f32[2] 800 808"},
        {11, "i64:0 f32[2]",
         "Loop(a,,b)>y body={i,go,s|Add(s,s)>t;Identity(go)>on|on,t}",
         "=f32[2] 100 101"},
        {11, "i64:3 f32[2] i64:0",
         "Equal(a,c)>k;Loop(a,k,b)>y "
         "body={i,go,s|Add(s,s)>t;Identity(go)>on|on,t}",
         "=f32[2] 100 101"},
        {11, "i64:3 f32[2] i64:0",
         "Equal(a,a)>k;Loop(a,k,b)>y "
         "body={i,go,s|Add(s,s)>t;Identity(go)>on|on,t}",
         "=f32[2] 800 808"},
        {11, "i64:3 f32[2]",
         "Loop(a,,b)>z,y body={i,go,s|Add(s,s)>t;Identity(go)>on;"
         "Identity(i)>u|on,t,u}",
         "=i64[3] 0 1 2"},
        {11, "i64:0 f32[2]",
         "Loop(a,,b)>z,y body={i,go,s|Add(s,s)>t;Identity(go)>on;"
         "Identity(i)>u|on,t,u}",
         "its body does not run once"},
        {11, "i64:9 f32[2] i64:1",
         "Loop(a,,b)>z,y body={i,go,s|Add(s,s)>t;Less(i,c)>on;"
         "Identity(i)>u|on,t,u}",
         "=i64[2] 0 1"},
        {11, "f32[2] i64:2",
         "Loop(,,a)>y body={i,go,s|Add(s,s)>t;Less(i,b)>on|on,t}",
         "=f32[2] 0 8"},
        {11, "f32[2]",
         "Loop(,,a)>y body={i,go,s|Identity(s)>t;Identity(go)>on|on,t}",
         "more than 4096 iterations"},
        {11, "i64:4096 f32[2]",
         "Loop(a,,b)>y body={i,go,s|Identity(s)>t;Identity(go)>on|on,t}",
         "=f32[2] 100 101"},
        {11, "i64:4097 f32[2]",
         "Loop(a,,b)>y body={i,go,s|Identity(s)>t;Identity(go)>on|on,t}",
         "more than 4096 iterations"},
        {11, "i64:3 f32[2]", "Loop(a,,b)>y body={i,go,s|Identity(go)>on|on}",
         "its body gives 1 results"},
        {11, "i64:3 f32[2]", "Loop(a,,b)>y body={i,go|Identity(go)>on|on,go}",
         "its body takes 2 operands, is given 3"},
        {11, "i64:1 f32[2]",
         "Equal(a,a)>k; If(k)>y then_branch={|Neg(b)>t|t} "
         "else_branch={|Abs(b)>t|t}",
         "=f32[2] -100 -101"},
        {11, "i64:1 f32[2]",
         "Less(a,a)>k; If(k)>y then_branch={|Neg(b)>t|t} "
         "else_branch={|Abs(b)>t|t}",
         "=f32[2] 100 101"},
        {11, "i64:1 f32[2]",
         "Equal(a,a)>k; If(k)>y then_branch={|Neg(b)>t|t,t} "
         "else_branch={|Abs(b)>t|t}",
         "a branch gives 2 results"},
        /* operands from outside a body are made first, in whatever order */
        {11, "i64:1 f32[2]",
         "Equal(a,a)>k; If(k)>y then_branch={||z} else_branch={||z}; Neg(b)>z",
         "=f32[2] -100 -101"},
        {11, "i64:1 f32[2]",
         "Equal(a,a)>k; If(k)>x,y then_branch={||w,z} else_branch={||w,z}; "
         "Neg(b)>z; Abs(b)>w",
         "=f32[2] -100 -101"},
        {11, "i64:1 f32[2]",
         "Equal(a,a)>k; If(k)>y then_branch={|Add(z,b)>t|t} "
         "else_branch={|Abs(b)>t|t}; Neg(b)>z",
         "=f32[2] 0 0"},
        {11, "i64:1 f32[2]",
         "Equal(a,a)>k; If(k)>y then_branch={||q} else_branch={||b}", "'q'"},
        {11, "i64:1 f32[2]",
         "Equal(a,a)>k; If(k)>y then_branch={|Neg(q)>t|t} else_branch={||b}",
         "'q'"},
        {11, "i64[1] f32[2]",
         "Equal(a,a)>k; If(k)>y then_branch={||b} else_branch={||b}",
         "its condition depends on data"},
        {11, "i64:9 f32[2] i64[]",
         "Loop(a,,b)>y body={i,go,s|Add(s,s)>t;Less(i,c)>on|on,t}",
         "its trip count is not known at compile time"},
        {11, "i64:2 f32[2]",
         "Loop(a,,b)>y,z body={i,go,s|Identity(go)>on;SequenceConstruct(s)>q|"
         "on,s,q}",
         "a scan output is a sequence"},
        {11, "i64:1 f32[2]", "Equal(a,a)>k; If(k)>y then_branch={|Neg(b)>t|t}",
         "=f32[2] -100 -101"},
        {11, "i64:1 f32[2]", "Less(a,a)>k; If(k)>y then_branch={|Neg(b)>t|t}",
         "attribute 'else_branch' is missing"}};
    CHECK_ROWS(rows);
}
