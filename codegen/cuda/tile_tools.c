/* SPDX-License-Identifier: Apache-2.0 */
/* tile_tools.c: what a CUDA toolkit has for --tile (cuda.h). */
#define _GNU_SOURCE
#include "codegen/cuda/cuda.h"

#include <stdlib.h>
#include <unistd.h>

enum { TOOL_PLACES = 2 };

/* In the order in which tileiras looks for the last two. It has libdevice in
   it. */
static const char *const tool_places[NTOOLS][TOOL_PLACES] = {
    [TOOL_NVRTC] = {"lib/libnvrtc.so.13", "lib64/libnvrtc.so.13"},
    [TOOL_TILEIRAS] = {"bin/tileiras"},
    [TOOL_PTXAS] = {"bin/ptxas"},
    [TOOL_NVVM] = {"nvvm/lib64/libnvvm.so", "lib/libnvvm.so.4"}};

/* The first of the places that is there; NULL: none is. */
static const char *find_tool(Arena *a, const char *home,
                             const char *const *place) {
    for (int i = 0; i < TOOL_PLACES && place[i]; i++) {
        const char *path = arena_printf(a, "%s/%s", home, place[i]);
        if (access(path, R_OK) == 0) return path;
    }
    return NULL;
}

Status tile_tools(Diag *d, Arena *a, const char *dir, TileTools *t) {
    char *home = realpath(dir, NULL);
    t->home = arena_printf(a, "%s", home ? home : dir);
    free(home);
    for (int i = 0; i < NTOOLS; i++) {
        const char *const *place = tool_places[i];
        t->file[i] = find_tool(a, t->home, place);
        if (t->file[i]) continue;
        return fail(d, (Loc){0},
                    "--tile %s: no %s%s%s there; it wants the folder of a CUDA "
                    "toolkit 13.3 or later, or nvidia/cu13 of pip install "
                    "nvidia-cuda-nvrtc nvidia-cuda-tileiras nvidia-cuda-nvcc "
                    "nvidia-nvvm",
                    dir, place[0], place[1] ? " or " : "",
                    place[1] ? place[1] : "");
    }
    return OK;
}
