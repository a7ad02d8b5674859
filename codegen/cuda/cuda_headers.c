/* cuda_headers.c: the embedded files that units include (cuda.h). */
#include "codegen/cuda/cuda.h"
#include "codegen/module/embed.h"

#include <string.h>

/* `name` in runtime/cuda, or kmath.h; NULL: it is not embedded. */
static const EmbedFile *find_file(const char *name, size_t n) {
    for (size_t i = 0; i < embed_nfile; i++) {
        const char *path = embed_files[i].name, *base = strrchr(path, '/') + 1;
        bool there = !strncmp(path, "runtime/cuda/", 13) ||
                     !strcmp(path, "runtime/cpu/kmath.h");
        if (there && strlen(base) == n && !strncmp(base, name, n))
            return &embed_files[i];
    }
    return NULL;
}

static bool has(const CudaHeaders *h, const char *text) {
    for (int i = 0; i < h->len; i++)
        if (h->data[i].text == text) return true;
    return false;
}

static void add_includes(Arena *a, const char *text, CudaHeaders *to) {
    static const char include[] = "#include \"";
    for (const char *p = text; (p = strstr(p, include));) {
        p += sizeof include - 1;
        size_t n = strcspn(p, "\"\n");
        const EmbedFile *f = find_file(p, n);
        if (!f || has(to, f->data)) continue;
        CudaHeader x = {arena_printf(a, "%.*s", (int)n, p), f->data, f->size};
        vec_push(a, to, x);
        add_includes(a, f->data, to);
    }
}

CudaHeaders cuda_headers(Arena *a) {
    CudaHeaders h = {0};
    StrBuf head = {0};
    print_cuda_head(&head);
    add_includes(a, head.data ? head.data : "", &h);
    sb_free(&head);
    return h;
}
