/* SPDX-License-Identifier: Apache-2.0 */
/* load_files.c: opens the files of a load: one, or the shards that an index
   names. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/try.h"
#include "runtime/files/infile.h"
#include "runtime/files/load.h"

#include "runtime/base/glibc.h" /* last */

enum { INDEX_MAX = 64 << 20 };

const char *load_path(const Load *l) { return l->from->paths[0]; }

ampc_status load_memory(Load *l) {
    return session_fail(l->s, AMPC_ERR_MEMORY, "%s: out of memory",
                        load_path(l));
}

ampc_status load_foreign(Load *l, const char *why) {
    return session_fail(l->s, AMPC_ERR_FORMAT,
                        "%s: not a checkpoint of ampc: %s", load_path(l), why);
}

ampc_status load_failed(Load *l, const StFile *f, ampc_status status) {
    l->torn |= f->torn;
    return session_fail(l->s, status, "%s", f->why);
}

void load_close(Load *l, LoadFile *f) {
    st_close(&f->st);
    mem_free(l->s, f->path, f->path_bytes);
    mem_free(l->s, f, sizeof *f);
}

static bool files_room(Load *l) {
    if (l->nfile < l->room) return true;
    size_t room = l->room ? 2 * l->room : 4;
    LoadFile **files = mem_alloc(l->s, room * sizeof *files);
    if (!files) return false;
    if (l->nfile) memcpy(files, l->files, l->nfile * sizeof *files);
    mem_free(l->s, l->files, l->room * sizeof *files);
    l->files = files;
    l->room = room;
    return true;
}

/* Files written by ampc have a checksum; if it is missing, the file was
   damaged. */
static ampc_status file_verify(Load *l, StFile *f) {
    JsonSpan v;
    bool there;
    ampc_status status = st_verify(f, &there);
    if (status != AMPC_OK) return load_failed(l, f, status);
    if (there || !f->metadata.n || !json_get(f->metadata, "ampc", &v))
        return AMPC_OK;
    l->torn = true;
    return load_foreign(l, "it has no checksum");
}

/* Adds file NAME in the folder of `beside` (which may be empty). *json: the
   file is not a safetensors file but may be an index of several. */
static ampc_status add_file(Load *l, const char *beside, const char *name,
                            bool *json) {
    const char *slash = strrchr(beside, '/');
    size_t dir = slash ? (size_t)(slash + 1 - beside) : 0, n = strlen(name);
    LoadFile *f = files_room(l) ? mem_alloc(l->s, sizeof *f) : NULL;
    if (!f) return load_memory(l);
    *f = (LoadFile){.path_bytes = dir + n + 1, .st.fd = -1};
    f->path = mem_alloc(l->s, f->path_bytes);
    if (!f->path) {
        mem_free(l->s, f, sizeof *f);
        return load_memory(l);
    }
    memcpy(f->path, beside, dir);
    memcpy(f->path + dir, name, n + 1);
    ampc_status status = st_open(&l->s->opt, f->path, &f->st);
    *json = status != AMPC_OK && f->st.json;
    if (status != AMPC_OK) status = load_failed(l, &f->st, status);
    if (status == AMPC_OK) status = file_verify(l, &f->st);
    if (status == AMPC_OK)
        l->files[l->nfile++] = f;
    else
        load_close(l, f);
    return status;
}

static bool opened_for(const Load *l, size_t first, JsonSpan name) {
    for (size_t i = first; i < l->nfile; i++) {
        const char *slash = strrchr(l->files[i]->path, '/');
        if (json_equals(name, slash ? slash + 1 : l->files[i]->path))
            return true;
    }
    return false;
}

/* Files that "weight_map" names, in the folder of the index. */
static ampc_status add_shards(Load *l, const char *path, JsonSpan index) {
    JsonSpan map, key, v;
    char name[256];
    bool json;
    size_t first = l->nfile;
    if (!json_get(index, "weight_map", &map) || !json_is_object(map))
        return session_fail(l->s, AMPC_ERR_FORMAT,
                            "%s: neither a safetensors file nor an index of "
                            "some (no weight_map)",
                            path);
    for (JsonIter it = json_iter(map); json_next(&it, &key, &v);) {
        if (opened_for(l, first, v)) continue;
        if (json_text(v, name, sizeof name) <= 0 || strchr(name, '/'))
            return session_fail(l->s, AMPC_ERR_FORMAT,
                                "%s: its weight_map names no file beside it: "
                                "%.*s",
                                path, (int)(v.n < 100 ? v.n : 100), v.p);
        TRY(add_file(l, path, name, &json));
    }
    return AMPC_OK;
}

static ampc_status add_index(Load *l, const char *path) {
    struct stat st;
    JsonSpan index;
    ampc_status status = AMPC_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0 || st.st_size > INDEX_MAX) {
        if (fd >= 0) close(fd);
        return session_fail(l->s, AMPC_ERR_FORMAT, "%s: not a safetensors file",
                            path);
    }
    size_t n = (size_t)st.st_size;
    char *text = mem_alloc(l->s, n);
    if (!text) status = load_memory(l);
    if (text && (!infile_whole(fd, text, n, 0) || !json_parse(text, n, &index)))
        status = session_fail(l->s, AMPC_ERR_FORMAT,
                              "%s: neither a safetensors file nor JSON", path);
    if (status == AMPC_OK) status = add_shards(l, path, index);
    mem_free(l->s, text, n);
    close(fd);
    return status;
}

ampc_status load_open(Load *l) {
    for (size_t i = 0; i < l->from->npath; i++) {
        const char *path = l->from->paths[i];
        bool json = false;
        if (!path || !*path)
            return session_fail(l->s, AMPC_ERR_ARGUMENT, "no path given");
        ampc_status status = add_file(l, "", path, &json);
        if (json && !l->resume) status = add_index(l, path);
        if (status != AMPC_OK) return status;
    }
    return AMPC_OK;
}
