/* SPDX-License-Identifier: Apache-2.0 */
/* sizes.c: programs for other sizes of the inputs than the module's own:
   KIND@8 for batches of 8, KIND@T=64 where dimension T is 64, KIND@8,T=64.
   A call runs the smallest program in which its inputs have room, and values of
   --pad fill them up. */
#include <stdio.h>
#include <string.h>

#include "runtime/api/session.h"

static const PlanTensor *input_tensor(const ampc_session *s, int program,
                                      int i) {
    return &s->m->tensors[s->m->programs[program].in0 + (uint32_t)i];
}

/* ---- which program ------------------------------------------------------- */

typedef enum Fit { FIT_NONE, FIT_ROOM, FIT_EXACT } Fit;

/* rows: axis 0 may have any length, for the module's own batch. */
static Fit tensor_fit(const PlanTensor *t, const ampc_input *a, bool rows) {
    uint64_t bytes = 0;
    Fit fit = FIT_EXACT;
    dense_bytes(given_dtype(t, a), t->rank, t->dim, &bytes);
    if (a->rank < 0 || (a->rank && !a->shape))
        return a->bytes == bytes ? FIT_EXACT : FIT_NONE;
    if ((uint32_t)a->rank != t->rank) return FIT_NONE;
    for (uint32_t i = 0; i < t->rank; i++) {
        if (a->shape[i] == t->dim[i]) continue;
        if (!(rows && i == 0) && (a->shape[i] < 1 || a->shape[i] > t->dim[i]))
            return FIT_NONE;
        fit = FIT_ROOM;
    }
    return fit;
}

/* *bytes: of all inputs of the program. An input of another program fits in
   none. */
static Fit program_fit(const ampc_session *s, uint32_t program,
                       const ampc_input *in, size_t nin, uint64_t *bytes) {
    const PlanProgram *p = &s->m->programs[program];
    bool own_batch = batch_of(p) == 0;
    Fit all = FIT_EXACT;
    *bytes = 0;
    for (uint32_t i = 0; i < p->nin; i++) {
        const PlanTensor *t = input_tensor(s, (int)program, (int)i);
        uint64_t n = 0;
        dense_bytes(t->dtype, t->rank, t->dim, &n);
        *bytes += n;
    }
    for (size_t i = 0; i < nin && all; i++) {
        const ampc_input *a = input_at(in, i);
        int at = input_place(s->m, p, a, i);
        if (at < 0) return FIT_NONE;
        const PlanTensor *t = input_tensor(s, (int)program, at);
        bool rows = own_batch && t->rank && t->dim[0] == s->own_batch;
        Fit fit = tensor_fit(t, a, rows);
        if (fit < all) all = fit;
    }
    return all;
}

static void choose_program(ampc_session *s, ProgramId id, const ampc_input *in,
                           size_t nin) {
    int own = s->own[id];
    uint64_t least = 0, bytes;
    if (own < 0 || !in || !nin || !input_sized(in)) return;
    Fit best = program_fit(s, (uint32_t)own, in, nin, &least);
    for (uint32_t i = 0; i < s->m->nprogram; i++) {
        if (!size_is_other(s->m, own, i)) continue;
        Fit fit = program_fit(s, i, in, nin, &bytes);
        if (fit < best || !fit || (fit == best && bytes >= least)) continue;
        best = fit;
        least = bytes;
        s->program[id] = (int)i;
        s->batch = batch_of(&s->m->programs[i]);
    }
    if (!s->batch) s->batch = s->own_batch;
}

static const char *list_sizes(const ampc_session *s, char buf[200]) {
    int own = s->own[s->own[PROG_PREDICT] < 0 ? PROG_MICRO : PROG_PREDICT];
    size_t n = 0;
    buf[0] = 0;
    for (uint32_t i = 0; own >= 0 && i < s->m->nprogram && n < 200; i++) {
        const PlanProgram *p = &s->m->programs[i];
        if (!size_is_other(s->m, own, i) || batch_of(p)) continue;
        n += (size_t)snprintf(buf + n, 200 - n, "%s%s",
                              n ? ", " : "; smaller sizes of this module: ",
                              strrchr(p->name, '@') + 1);
    }
    return buf;
}

/* ---- filling up ---------------------------------------------------------- */

/* True if an axis that is not `axis` 0 of samples is shorter than the
   program's. */
static bool is_short(const ampc_session *s, const PlanTensor *t,
                     const ampc_input *a) {
    if (a->rank < 0 || (uint32_t)a->rank != t->rank || !a->shape) return false;
    bool some = false;
    uint64_t bytes = 0;
    for (uint32_t i = rows_has(s, t); i < t->rank; i++) {
        if (a->shape[i] > t->dim[i] || a->shape[i] < 1) return false;
        some |= a->shape[i] < t->dim[i];
    }
    return some && dense_bytes(given_dtype(t, a), t->rank, a->shape, &bytes) &&
           bytes == a->bytes && a->data;
}

/* Whether programs for other sizes have another length of the axis. */
static bool is_sized(const ampc_session *s, ProgramId id, int input,
                     uint32_t axis) {
    int own = s->own[id];
    const PlanTensor *t = input_tensor(s, own, input);
    for (uint32_t i = 0; i < s->m->nprogram; i++)
        if (size_is_other(s->m, own, i) && !batch_of(&s->m->programs[i]) &&
            input_tensor(s, (int)i, input)->dim[axis] != t->dim[axis])
            return true;
    return false;
}

/* The value of --pad, as an element; false: none was given. */
static bool pad_value(const ampc_session *s, const char *input, uint32_t dtype,
                      void *to) {
    JsonSpan info, options, pads, v;
    double x;
    if (!json_parse(s->m->info, strlen(s->m->info), &info) ||
        !json_get(info, "options", &options) ||
        !json_get(options, "pad", &pads) || !json_get(pads, input, &v) ||
        !json_double(v, &x))
        return false;
    number_put(dtype, x, to);
    return true;
}

static ampc_status no_pad(ampc_session *s, const PlanTensor *t,
                          const ampc_input *a, bool sized) {
    char have[160], want[160], sizes[200];
    shape_text(have, (uint32_t)a->dtype, (uint32_t)a->rank, a->shape);
    shape_text(want, t->dtype, t->rank, t->dim);
    return session_fail(
        s, AMPC_ERR_ARGUMENT, "input '%.200s': shape %s given, %s needed%s%s",
        t->name, have, want, list_sizes(s, sizes),
        sized ? "; --pad INPUT=VALUE, when the module is compiled, lets it "
                "fill up what is missing"
              : "");
}

/* An input as the program reads it: its shape and its bytes. */
typedef struct Full {
    int64_t dim[AMPC_MAX_RANK];
    uint64_t bytes;
} Full;

static Full full_of(const ampc_session *s, const PlanTensor *t,
                    const ampc_input *a) {
    Full f = {{0}, 0};
    memcpy(f.dim, t->dim, sizeof f.dim);
    if (rows_has(s, t)) f.dim[0] = a->shape[0];
    dense_bytes(given_dtype(t, a), t->rank, f.dim, &f.bytes);
    f.bytes = (f.bytes + 63) & ~(uint64_t)63;
    return f;
}

/* Fills input `a` up into `room`; *to begins as a copy of it. */
static ampc_status pad_one(ampc_session *s, ProgramId id, int at,
                           const ampc_input *a, char *room, ampc_input *to) {
    const PlanTensor *t = input_tensor(s, s->program[id], at);
    uint32_t dtype = given_dtype(t, a);
    Full f = full_of(s, t, a);
    int64_t *dim = (int64_t *)(void *)room;
    _Alignas(8) char value[8];
    char *data = room + sizeof f.dim;
    size_t each = dtype_bytes(dtype);
    bool sized = true;
    for (uint32_t i = rows_has(s, t); i < t->rank; i++)
        sized &= a->shape[i] == t->dim[i] || is_sized(s, id, at, i);
    if (!sized || !pad_value(s, t->name, dtype, value))
        return no_pad(s, t, a, sized);
    if (input_in_device(a))
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "input '%.200s' lies in the memory of a device: "
                            "give it in one of the module's sizes",
                            t->name);
    memcpy(dim, f.dim, sizeof f.dim);
    dense_bytes(dtype, t->rank, f.dim, &f.bytes);
    for (uint64_t i = 0; i < f.bytes; i += each) memcpy(data + i, value, each);
    corner_copy(data, f.dim, a->data, a->shape, t->rank, each);
    to->data = data;
    to->bytes = (size_t)f.bytes;
    to->shape = dim;
    return AMPC_OK;
}

/* The place of input i if it is to be filled up; -1: it is not. */
static int short_place(const ampc_session *s, ProgramId id,
                       const ampc_input *in, size_t i) {
    const ampc_input *a = input_at(in, i);
    int at = input_place(s->m, &s->m->programs[s->program[id]], a, i);
    if (at < 0) return -1;
    return is_short(s, input_tensor(s, s->program[id], at), a) ? at : -1;
}

static ampc_status pad_inputs(ampc_session *s, ProgramId id,
                              const ampc_input **in, size_t nin) {
    enum { HEAD = AMPC_MAX_RANK * sizeof(int64_t) };
    if (s->program[id] < 0 || !*in || !nin || !input_sized(*in)) return AMPC_OK;
    size_t list = (nin * sizeof **in + 63) & ~(size_t)63, need = 0;
    for (size_t i = 0; i < nin; i++) {
        int at = short_place(s, id, *in, i);
        if (at < 0) continue;
        const PlanTensor *t = input_tensor(s, s->program[id], at);
        need += HEAD + (size_t)full_of(s, t, input_at(*in, i)).bytes;
    }
    if (!need) return AMPC_OK;
    ampc_status status = room_for(s, &s->in.padded, list + need);
    ampc_input *to = (ampc_input *)(void *)s->in.padded.data;
    char *room = s->in.padded.data + list;
    for (size_t i = 0; i < nin && status == AMPC_OK; i++) {
        const ampc_input *a = input_at(*in, i);
        memset(&to[i], 0, sizeof *to);
        memcpy(&to[i], a, a->size < sizeof *to ? a->size : sizeof *to);
        to[i].size = sizeof *to;
        int at = short_place(s, id, *in, i);
        if (at < 0) continue;
        status = pad_one(s, id, at, a, room, &to[i]);
        const PlanTensor *t = input_tensor(s, s->program[id], at);
        room += HEAD + full_of(s, t, a).bytes;
    }
    if (status == AMPC_OK) *in = to;
    return status;
}

const AmpcSizes ampc_sizes = {choose_program, pad_inputs, list_sizes};

/* ---- for any module ------------------------------------------------------ */

void sizes_choose(ampc_session *s, ProgramId id, const ampc_input *in,
                  size_t nin) {
    s->program[id] = s->own[id];
    s->batch = s->own_batch;
    if (s->m->sizes) s->m->sizes->choose(s, id, in, nin);
}

ampc_status sizes_pad(ampc_session *s, ProgramId id, const ampc_input **in,
                      size_t nin) {
    return s->m->sizes ? s->m->sizes->pad(s, id, in, nin) : AMPC_OK;
}

ampc_status api_fit(ampc_session *s, const char *program, const ampc_input *in,
                    size_t nin, const char **name) {
    int id = 0;
    ENTER(s);
    while (program && id < PROG_COUNT && strcmp(program_names[id], program))
        id++;
    if (!program || !name || id == PROG_COUNT || s->own[id] < 0)
        return api_leave(s, session_fail(s, AMPC_ERR_ARGUMENT,
                                         "no program '%.80s' of this module",
                                         program ? program : ""));
    sizes_choose(s, (ProgramId)id, in, nin);
    *name = s->m->programs[s->program[id]].name;
    return api_leave(s, AMPC_OK);
}
