/* SPDX-License-Identifier: Apache-2.0 */
/* enter.c: what every entry of the API with a session begins and ends with. */
#include "runtime/api/session.h"
#include "runtime/program/mode.h"

static ampc_status set_free(ampc_session *s, ampc_status status) {
    const fenv_t host = s->host_mode;
    host_drop(&s->busy); /* another thread may enter from here on */
    mode_leave(&host);
    return status;
}

ampc_status api_enter(ampc_session *s) {
    if (!s) return AMPC_ERR_ARGUMENT;
    if (host_take(&s->busy)) return AMPC_ERR_BUSY;
    mode_enter(&s->host_mode);
    s->notice[0] = 0;
    ampc_status status = s->backend->enter(s);
    return status == AMPC_OK ? AMPC_OK : set_free(s, status);
}

ampc_status api_leave(ampc_session *s, ampc_status status) {
    s->backend->leave(s);
    s->in.program = -1;
    if (status == AMPC_OK) s->error[0] = 0;
    return set_free(s, status);
}

ampc_status api_unsupported(ampc_session *s, const char *what) {
    return session_fail(s, AMPC_ERR_UNSUPPORTED,
                        "this module cannot %s; its compile options decide",
                        what);
}
