/* cuda_headers.c: the embedded files that units include (cuda.h). */
#include "codegen/cuda/cuda.h"
#include "codegen/module/embed.h"

#include <string.h>

/* What `text` includes of runtime/cuda and kmath.h, and what that includes. */
static void add_includes(Arena *a, const char *text, CudaHeaders *to) {
    static const char include[] = "#include \"";
    for (const char *p = text; (p = strstr(p, include));) {
        p += sizeof include - 1;
        size_t n = strcspn(p, "\"\n");
        for (size_t i = 0; i < embed_nfile; i++) {
            const EmbedFile *f = &embed_files[i];
            const char *base = strrchr(f->name, '/') + 1;
            bool wanted = strlen(base) == n && !strncmp(base, p, n) &&
                          (!strncmp(f->name, "runtime/cuda/", 13) ||
                           !strcmp(f->name, "runtime/cpu/kmath.h"));
            for (int k = 0; k < to->len; k++)
                wanted &= to->data[k].text != f->data;
            if (!wanted) continue;
            CudaHeader x = {base, f->data, f->size};
            vec_push(a, to, x);
            add_includes(a, f->data, to);
        }
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
