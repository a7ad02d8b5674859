/* SPDX-License-Identifier: Apache-2.0 */
/* rows.c: see rows.h. */
#include "tests/frontend/onnx_bounds/rows.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/onnx_util.h"
#include "tests/harness.h"

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

/* A known list or number of i4 or u4. */
static void known_nibbles(Made *m, const char *name, const char *s) {
    known(m, name, DT_I64, s + 3, s[2] == ':');
    Onnx__TensorProto *t = m->graph.initializer[m->graph.n_initializer - 1];
    t->data_type = *s == 'i' ? ONNX__TENSOR_PROTO__DATA_TYPE__INT4
                             : ONNX__TENSOR_PROTO__DATA_TYPE__UINT4;
    t->int32_data = NEW_ARRAY(m->a, int32_t, 8);
    for (size_t i = 0; i < t->n_int64_data; i++)
        t->int32_data[i / 2] |= (t->int64_data[i] & 15) << 4 * (i % 2);
    t->n_int32_data = (t->n_int64_data + 1) / 2;
    t->n_int64_data = 0;
}

static void operands(Made *m, const char *s) {
    for (char name[] = "a"; *s; name[0]++) {
        size_t n = strcspn(s, "[{:"), all = strcspn(s, " ");
        DType d;
        bool nibbles = n == 2 && s[1] == '4';
        REQUIRE(nibbles || dtype_from_text(s, n, &d));
        if (nibbles)
            known_nibbles(m, name, s);
        else if (s[n] == '[')
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

void check_row(const Row *r) {
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
