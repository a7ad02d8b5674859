/* SPDX-License-Identifier: Apache-2.0 */
/* locate.c: runs program locate (passes/common/locate.c) before each step and
   reads its result.

   Its ampc.nonfinite is 2 k + kind, with k the number of the value that the
   output ampc.located/K/WAY/OP/DTYPE/LENGTH:NAME/SOURCE describes, and kind 0
   for NaN, 1 for infinities.                                                */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/api/session.h"
#include "runtime/base/try.h"

ampc_status locate_run(ampc_session *s, const ampc_input *in, size_t nin) {
    int program = s->program[PROG_LOCATE];
    int64_t found = INT64_MAX;
    if (program < 0) return AMPC_OK;
    int i = find_known_output(s, program, OUT_NONFINITE);
    if (i < 0)
        return session_fail(s, AMPC_ERR_INTERNAL, "program locate is damaged");
    TRY(session_run(s, PROG_LOCATE, in, nin));
    TRY(s->backend->get(s, output_ref(s, program, i), &found, sizeof found));
    if (s->located.step == INT64_MAX) s->located.step = found;
    return AMPC_OK;
}

/* ---- names --------------------------------------------------------------- */

/* Copies the *text before the next '/' and moves `text` after it. */
static void take_part(const char **text, char *part, size_t size) {
    size_t n = strcspn(*text, "/");
    snprintf(part, size, "%.*s", (int)n, *text);
    *text += n + ((*text)[n] == '/');
}

/* From WAY on. */
static void read_place(ampc_session *s, const char *text, ampc_nonfinite *x) {
    char way[8], dtype[8], *name;
    take_part(&text, way, sizeof way);
    take_part(&text, s->located.op, sizeof s->located.op);
    take_part(&text, dtype, sizeof dtype);
    int n = (int)strtol(text, &name, 10);
    name += *name == ':';
    snprintf(s->located.name, sizeof s->located.name, "%.*s", n, name);
    x->origin = *way == 'i'   ? AMPC_ORIGIN_INPUT
                : *way == 'v' ? AMPC_ORIGIN_VARIABLE
                : *way == 'f' ? AMPC_ORIGIN_FORWARD
                              : AMPC_ORIGIN_BACKWARD;
    x->dtype = AMPC_DTYPE_BOOL;
    while (x->dtype < AMPC_NDTYPE - 1 &&
           strcmp(dtype_name((uint32_t)x->dtype), dtype) != 0)
        x->dtype++;
    x->name = s->located.name;
    x->op = s->located.op;
    x->source = name + n + (name[n] == '/');
}

/* The description of value k; NULL: none. */
static const char *place_of(const ampc_session *s, int64_t k) {
    static const char prefix[] = "ampc.located/";
    const PlanProgram *p = &s->m->programs[s->program[PROG_LOCATE]];
    for (uint32_t i = 0; i < p->nout; i++) {
        const char *name = s->m->tensors[p->out0 + i].name;
        char *end;
        if (strncmp(name, prefix, sizeof prefix - 1) != 0 ||
            strtoll(name + sizeof prefix - 1, &end, 10) != k || *end != '/')
            continue;
        return end + 1;
    }
    return NULL;
}

bool locate_read(ampc_session *s, ampc_nonfinite *x) {
    if (s->program[PROG_LOCATE] < 0 || s->located.step == INT64_MAX)
        return false;
    const char *place = place_of(s, s->located.step >> 1);
    if (!place) return false;
    read_place(s, place, x);
    x->value = s->located.step & 1 ? INFINITY : NAN;
    return true;
}
