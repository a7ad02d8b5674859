/* SPDX-License-Identifier: Apache-2.0 */
/* image_file.c: the parts of cubins and PTX that a driver checks before it
   runs anything: ELF magic, architecture, kernels, their limits. */
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/module.h"

enum {
    EM_NVIDIA = 190,
    INFO_MAX_THREADS = 5,
    INFO_PARAM = 0x17,
    INFO_TILE_PARAM = 0x45 /* seen in tileiras' cubins alone */
};
enum { RESERVED_SHARED = 1024 }; /* the system's own, from sm_90 on */

typedef struct Elf {
    const char *data;
    const Elf64_Ehdr *head;
    const Elf64_Shdr *section;
    const char *names;
    int sm;
} Elf;

static struct CUfunc_st *add(Image *im, const char *name, size_t len) {
    struct CUfunc_st *f =
        realloc(im->fn, (size_t)(im->nfn + 1) * sizeof *im->fn);
    if (!f) return NULL;
    im->fn = f;
    f += im->nfn++;
    memset(f, 0, sizeof *f);
    snprintf(f->name, sizeof f->name, "%.*s", (int)len, name);
    f->dynamic_limit = SIM_STATIC_SHARED;
    return f;
}

/* ---- cubins -------------------------------------------------------------- */

static const Elf64_Shdr *find_section(const Elf *e, const char *prefix,
                                      const char *name) {
    size_t n = strlen(prefix);
    for (int i = 0; i < e->head->e_shnum; i++) {
        const char *s = e->names + e->section[i].sh_name;
        if (!strncmp(s, prefix, n) && !strcmp(s + n, name))
            return &e->section[i];
    }
    return NULL;
}

/* Attributes of one kernel: format byte, number, and a value or a size. */
static void read_info(const Elf *e, const Elf64_Shdr *s, struct CUfunc_st *f) {
    const unsigned char *p = (const unsigned char *)e->data + s->sh_offset;
    const unsigned char *end = p + s->sh_size;
    while (end - p >= 4) {
        unsigned value = p[2] | (unsigned)p[3] << 8;
        if (p[0] == 4 && p[1] == INFO_MAX_THREADS && value >= 4)
            memcpy(&f->max_threads, p + 4, 4);
        if (p[0] == 4 && p[1] == INFO_PARAM) f->nparam++;
        if (p[0] == 4 && p[1] == INFO_TILE_PARAM) {
            f->nparam++;
            f->tile = true;
        }
        p += 4 + (p[0] == 4 ? value : 0);
    }
}

static void read_kernel(const Elf *e, Image *im, const char *name) {
    struct CUfunc_st *f = add(im, name, strlen(name));
    const Elf64_Shdr *info = find_section(e, ".nv.info.", name);
    const Elf64_Shdr *shared = find_section(e, ".nv.shared.", name);
    if (!f) return;
    if (info) read_info(e, info, f);
    if (shared) f->shared = (unsigned)shared->sh_size;
    if (f->shared && e->sm >= 90) f->shared -= RESERVED_SHARED;
}

static CUresult read_elf(const char *data, Image *im) {
    Elf e = {data, (const Elf64_Ehdr *)data, NULL, NULL, 0};
    if (e.head->e_machine != EM_NVIDIA ||
        e.head->e_ident[EI_CLASS] != ELFCLASS64 || !e.head->e_shnum)
        return CUDA_INVALID_IMAGE;
    e.section = (const Elf64_Shdr *)(data + e.head->e_shoff);
    e.names = data + e.section[e.head->e_shstrndx].sh_offset;
    /* since ABI 8 the architecture is in the second byte */
    e.sm = e.head->e_ident[EI_ABIVERSION] >= 8 ? e.head->e_flags >> 8 & 0xff
                                               : e.head->e_flags & 0xff;
    if (sim_config.ptx_only || e.sm / 10 != sim_config.cc / 10 ||
        e.sm > sim_config.cc)
        return CUDA_NO_BINARY_FOR_GPU;
    const Elf64_Shdr *table = find_section(&e, ".symtab", "");
    if (!table || !table->sh_entsize) return CUDA_INVALID_IMAGE;
    const char *strings = data + e.section[table->sh_link].sh_offset;
    const Elf64_Sym *sym = (const Elf64_Sym *)(data + table->sh_offset);
    for (size_t i = 0; i < table->sh_size / table->sh_entsize; i++)
        if (ELF64_ST_TYPE(sym[i].st_info) == STT_FUNC &&
            ELF64_ST_BIND(sym[i].st_info) == STB_GLOBAL)
            read_kernel(&e, im, strings + sym[i].st_name);
    return CUDA_OK;
}

/* ---- PTX ----------------------------------------------------------------- */

/* The newest PTX version that a driver accepts, times 10. */
static int newest_ptx(void) {
    static const int table[][2] = {
        {13000, 90}, {12090, 88}, {12080, 87}, {12070, 86}, {12050, 85},
        {12040, 84}, {12030, 83}, {12020, 82}, {12010, 81}, {12000, 80},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (sim_config.driver >= table[i][0]) return table[i][1];
    return 78;
}

static void read_entries(const char *text, Image *im) {
    static const char mark[] = ".entry ";
    for (const char *p = text; (p = strstr(p, mark)) != NULL;) {
        p += sizeof mark - 1;
        struct CUfunc_st *f = add(im, p, strcspn(p, "( \n\t"));
        const char *body = strchr(p, '{'), *bound = strstr(p, ".maxntid");
        const char *end = strchr(p, ')'), *param = p;
        while (f && end && (param = strstr(param, ".param ")) && param < end) {
            f->nparam++;
            param += 7;
        }
        if (f && body && bound && bound < body)
            f->max_threads = (unsigned)atoi(bound + 8);
    }
}

static CUresult read_ptx(const char *text, Image *im) {
    const char *v = strstr(text, ".version "), *t = strstr(text, ".target sm_");
    int major, minor, sm;
    if (!v || !t || sscanf(v, ".version %d.%d", &major, &minor) != 2 ||
        sscanf(t, ".target sm_%d", &sm) != 1)
        return CUDA_INVALID_PTX;
    if (major * 10 + minor > newest_ptx()) return CUDA_UNSUPPORTED_PTX_VERSION;
    if (sm > sim_config.cc) return CUDA_INVALID_PTX;
    read_entries(text, im);
    return CUDA_OK;
}

CUresult image_read(const void *image, Image *out) {
    *out = (Image){NULL, 0};
    if (!memcmp(image, ELFMAG, SELFMAG)) return read_elf(image, out);
    return read_ptx(image, out);
}
