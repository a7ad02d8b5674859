/* SPDX-License-Identifier: Apache-2.0 */
/* api_files.c: checkpoints, weights, and the place in the data. */
#include <string.h>

#include "runtime/api/session.h"
#include "runtime/base/json.h"

static ampc_status need_path(ampc_session *s, const char *path) {
    if (path && *path) return AMPC_OK;
    return session_fail(s, AMPC_ERR_ARGUMENT, "no path given");
}

/* Only one of the ranks needs access to the file. */
static bool uses_files(const ampc_session *s) {
    return !s->opt.comm || s->opt.comm->rank == 0;
}

/* Files need the first values that program refresh gives to parameters. With
   shards it runs whenever weights were read; where programs train without
   copies it gives none. */
static ampc_status before_saving(ampc_session *s, const char *path) {
    ampc_status status = need_path(s, path);
    bool runs = !s->ranks.shards && !session_on_masters(s, PROG_TRAIN);
    return status == AMPC_OK && runs ? session_refresh(s) : status;
}

ampc_status api_save(ampc_session *s, const char *path) {
    ENTER(s);
    ampc_status status = before_saving(s, path);
    if (status == AMPC_OK && s->opt.comm && s->micro > 0)
        status = session_fail(s, AMPC_ERR_ARGUMENT,
                              "between micro-steps other ranks hold a part of "
                              "the gradients: nothing is saved");
    status = shards_gather(s, status, true);
    if (status == AMPC_OK && uses_files(s)) status = checkpoint_save(s, path);
    return api_leave(s, shards_part(s, status));
}

static ampc_status has_read(ampc_session *s, ampc_status status) {
    if (s->opt.comm) status = comm_share(s, status);
    status = shards_part(s, status);
    if (status == AMPC_OK) status = shards_refresh(s);
    return api_leave(s, status);
}

ampc_status api_load(ampc_session *s, const char *path) {
    ENTER(s);
    ampc_status status = shards_gather(s, need_path(s, path), false);
    if (status == AMPC_OK && uses_files(s))
        status = checkpoint_load(s, path, false);
    return has_read(s, status);
}

ampc_status api_load_weights(ampc_session *s, const ampc_weights *from) {
    ENTER(s);
    ampc_status status = AMPC_OK;
    if (!SIZED(from) || from->size < sizeof *from)
        status = session_unsized(s, "ampc_weights");
    status = shards_gather(s, status, false);
    if (status == AMPC_OK && uses_files(s))
        status = checkpoint_load_weights(s, from);
    return has_read(s, status);
}

ampc_status api_save_weights(ampc_session *s, const char *path) {
    ENTER(s);
    ampc_status status = shards_gather(s, before_saving(s, path), true);
    if (status == AMPC_OK && uses_files(s))
        status = checkpoint_save_weights(s, path);
    return api_leave(s, shards_part(s, status));
}

ampc_status api_resume(ampc_session *s, const char *path) {
    ENTER(s);
    ampc_status status = shards_gather(s, need_path(s, path), false);
    if (status == AMPC_OK && uses_files(s))
        status = checkpoint_load(s, path, true);
    return has_read(s, status);
}

static ampc_status do_set_cursor(ampc_session *s, const char *json) {
    JsonSpan v;
    if (!json || !json_parse(json, strlen(json), &v))
        return session_fail(s, AMPC_ERR_ARGUMENT, "the cursor is not JSON");
    if (!json_is_utf8(json, strlen(json)))
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "the cursor is not JSON: no UTF-8 text");
    char *copy = mem_alloc(s, strlen(json) + 1);
    if (!copy) return session_fail(s, AMPC_ERR_MEMORY, "out of memory");
    strcpy(copy, json);
    session_take_cursor(s, copy);
    return AMPC_OK;
}

ampc_status api_set_cursor(ampc_session *s, const char *json) {
    ENTER(s);
    return api_leave(s, do_set_cursor(s, json));
}

const char *api_get_cursor(const ampc_session *s) {
    return s && s->cursor ? s->cursor : "null";
}
