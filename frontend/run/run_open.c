/* SPDX-License-Identifier: Apache-2.0 */
/* run_open.c: loads a module's code.  `ampc --symbol` may have renamed its one
   exported function, so the name is read from the file's dynamic symbols.   */
#define _GNU_SOURCE
#include "frontend/run/run_cmd.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool inside(uint64_t offset, uint64_t bytes, uint64_t limit) {
    return offset <= limit && bytes <= limit - offset;
}

/* The first function that the symbol table defines and exports. */
static const char *exported_in(const char *file, size_t n,
                               const Elf64_Shdr *syms,
                               const Elf64_Shdr *names) {
    if (!inside(syms->sh_offset, syms->sh_size, n) ||
        !inside(names->sh_offset, names->sh_size, n) || !names->sh_size ||
        file[names->sh_offset + names->sh_size - 1])
        return NULL;
    for (uint64_t i = 0; i < syms->sh_size / sizeof(Elf64_Sym); i++) {
        Elf64_Sym s;
        memcpy(&s, file + syms->sh_offset + i * sizeof s, sizeof s);
        if (ELF64_ST_BIND(s.st_info) == STB_GLOBAL &&
            ELF64_ST_TYPE(s.st_info) == STT_FUNC && s.st_shndx != SHN_UNDEF &&
            s.st_name < names->sh_size)
            return file + names->sh_offset + s.st_name;
    }
    return NULL;
}

static const char *exported_symbol(const char *file, size_t n) {
    Elf64_Ehdr h;
    Elf64_Shdr s[2];
    if (n < sizeof h) return NULL;
    memcpy(&h, file, sizeof h);
    if (memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 ||
        h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_shentsize != sizeof *s ||
        !inside(h.e_shoff, (uint64_t)h.e_shnum * sizeof *s, n))
        return NULL;
    for (unsigned i = 0; i < h.e_shnum; i++) {
        memcpy(&s[0], file + h.e_shoff + i * sizeof *s, sizeof *s);
        if (s[0].sh_type != SHT_DYNSYM || s[0].sh_link >= h.e_shnum) continue;
        memcpy(&s[1], file + h.e_shoff + s[0].sh_link * sizeof *s, sizeof *s);
        return exported_in(file, n, &s[0], &s[1]);
    }
    return NULL;
}

/* ---- a module that becomes shorter while its code is mapped -------------- */

static char shorter[512]; /* the message */

/* The kernel reports a page that is no longer in its file. */
static void end_run(int sig, siginfo_t *what, void *context) {
    (void)context;
    if (what->si_code == BUS_ADRERR &&
        write(STDERR_FILENO, shorter, strlen(shorter)) > 0)
        _exit(ERR_USER);
    signal(sig, SIG_DFL);
    raise(sig);
}

static void watch_file(const char *path) {
    struct sigaction a = {.sa_sigaction = end_run, .sa_flags = SA_SIGINFO};
    Diag d = {0};
    fail(&d, (Loc){.file = path},
         "the file became shorter while it was in use: cp writes into a file, "
         "mv replaces it");
    snprintf(shorter, sizeof shorter, "%s", d.text.data);
    sb_free(&d.text);
    sigaction(SIGBUS, &a, NULL);
}

/* ---- open ---------------------------------------------------------------- */

static Status open_mapped(Run *r, const char *path, const char *file,
                          size_t n) {
    /* without the tail of plan.h it is another library, whose code would run
       when loaded */
    bool ours = n > 8 && memcmp(file + n - 8, "AMPTAIL2", 8) == 0;
    const char *symbol = ours ? exported_symbol(file, n) : NULL;
    ampc_module_fn *fn;
    if (!symbol)
        return fail(&r->diag, (Loc){.file = path},
                    "not a module of ampc, or truncated; "
                    "ampc MODEL -o OUT.so makes one");
    StrBuf local = {0};
    sb_printf(&local, "%s%s", strchr(path, '/') ? "" : "./", path);
    r->lib = dlopen(local.data, RTLD_NOW | RTLD_LOCAL);
    sb_free(&local);
    if (!r->lib) return fail(&r->diag, (Loc){.file = path}, "%s", dlerror());
    *(void **)&fn = dlsym(r->lib, symbol);
    r->api = fn ? fn(AMPC_ABI_VERSION) : NULL;
    if (r->api) return OK;
    return fail(&r->diag, (Loc){.file = path},
                "compiled by another version of ampc");
}

Status run_open_code(Run *r) {
    const char *path = r->opt->module;
    struct stat st;
    Status s;
    /* O_NONBLOCK: opening a named pipe must not block */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0) {
        s = fail(&r->diag, (Loc){.file = path}, "%s", strerror(errno));
    } else if (!S_ISREG(st.st_mode) || st.st_size == 0) {
        s = fail(&r->diag, (Loc){.file = path}, "%snot a module of ampc",
                 S_ISREG(st.st_mode)   ? "the file is empty, "
                 : S_ISDIR(st.st_mode) ? "is a folder, "
                                       : "");
    } else {
        size_t n = (size_t)st.st_size;
        watch_file(path);
        char *file = mmap(NULL, n, PROT_READ, MAP_PRIVATE, fd, 0);
        s = file == MAP_FAILED
                ? fail(&r->diag, (Loc){.file = path}, "%s", strerror(errno))
                : open_mapped(r, path, file, n);
        if (file != MAP_FAILED) munmap(file, n);
    }
    if (fd >= 0) close(fd);
    return s;
}
