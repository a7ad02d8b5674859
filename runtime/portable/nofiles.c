/* SPDX-License-Identifier: Apache-2.0 */
/* nofiles.c: with AMPC_NO_FILES a module opens no file.  It replaces files/:
   a host reads and writes variables (read_variable, write_variable). */
#include "runtime/api/session.h"

#ifdef AMPC_NO_FILES

static ampc_status no_files(ampc_session *s) {
    return session_fail(s, AMPC_ERR_UNSUPPORTED,
                        "the module was compiled with AMPC_NO_FILES: read and "
                        "write its variables (read_variable, write_variable)");
}

ampc_status checkpoint_save(ampc_session *s, const char *path) {
    (void)path;
    return no_files(s);
}

ampc_status checkpoint_save_weights(ampc_session *s, const char *path) {
    (void)path;
    return no_files(s);
}

ampc_status checkpoint_load(ampc_session *s, const char *path, bool resume) {
    (void)path;
    (void)resume;
    return no_files(s);
}

ampc_status checkpoint_load_weights(ampc_session *s, const ampc_weights *from) {
    (void)from;
    return no_files(s);
}

ampc_status checkpoint_sidecar(ampc_session *s, const char *path,
                               const PlanSidecar *want) {
    (void)path;
    (void)want;
    return no_files(s);
}

#endif
