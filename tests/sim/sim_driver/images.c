/* SPDX-License-Identifier: Apache-2.0 */
/* images.c: cubins and PTX. */
#define _POSIX_C_SOURCE 200809L
#include <elf.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/sim_driver/sim_driver.h"
#include "tests/support/simulate.h"

/* ---- images -------------------------------------------------------------- */

/* The smallest cubin with one kernel. */
typedef struct Cubin {
    Elf64_Ehdr head;
    Elf64_Shdr section[4];
    Elf64_Sym symbol[2];
    char text[64];
} Cubin;

static Cubin make_cubin(int sm, const char *kernel) {
    Cubin c;
    memset(&c, 0, sizeof c);
    memcpy(c.head.e_ident, ELFMAG, SELFMAG);
    c.head.e_ident[EI_CLASS] = ELFCLASS64;
    c.head.e_ident[EI_ABIVERSION] = 8;
    c.head.e_machine = 190;
    c.head.e_flags = (Elf64_Word)sm << 8;
    c.head.e_shoff = offsetof(Cubin, section);
    c.head.e_shnum = 4;
    c.head.e_shstrndx = 1;
    memcpy(c.text, "\0.strtab\0.symtab\0", 18);
    snprintf(c.text + 18, sizeof c.text - 18, "%s", kernel);
    c.section[1] = (Elf64_Shdr){.sh_name = 1,
                                .sh_type = SHT_STRTAB,
                                .sh_offset = offsetof(Cubin, text),
                                .sh_size = sizeof c.text};
    c.section[2] = (Elf64_Shdr){.sh_name = 9,
                                .sh_type = SHT_SYMTAB,
                                .sh_offset = offsetof(Cubin, symbol),
                                .sh_size = sizeof c.symbol,
                                .sh_link = 1,
                                .sh_entsize = sizeof *c.symbol};
    c.symbol[1].st_name = 18;
    c.symbol[1].st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    return c;
}

static CUresult load_on(int cc, int driver, bool ptx_only, const void *image) {
    SimConfig c = {.cc = cc,
                   .driver = driver,
                   .ptx_only = ptx_only,
                   .twins = driver_twins()};
    CUcontext ctx;
    CUmodule m;
    open_driver();
    sim()->reset(&c);
    OK(driver_cu.Init(0));
    OK(driver_cu.PrimaryCtxRetain(&ctx, 0));
    OK(driver_cu.CtxPushCurrent(ctx));
    CUresult rc = driver_cu.ModuleLoadDataEx(&m, image, 0, NULL, NULL);
    sim()->reset(NULL);
    return rc;
}

TEST_CASE(sim_driver, cubins_fit_their_architecture) {
    Cubin c = make_cubin(80, "fill");
    OK(load_on(80, 0, false, &c));
    OK(load_on(86, 0, false, &c));
    CHECK_EQ_INT(load_on(90, 0, false, &c), CUDA_NO_BINARY_FOR_GPU);
    CHECK_EQ_INT(load_on(75, 0, false, &c), CUDA_NO_BINARY_FOR_GPU);
    CHECK_EQ_INT(load_on(80, 0, true, &c), CUDA_NO_BINARY_FOR_GPU);
    c = make_cubin(86, "fill");
    CHECK_EQ_INT(load_on(80, 0, false, &c), CUDA_NO_BINARY_FOR_GPU);
    c.head.e_machine = EM_X86_64;
    CHECK_EQ_INT(load_on(86, 0, false, &c), CUDA_INVALID_IMAGE);
    c = make_cubin(80, "k7"); /* no twin has that */
    CHECK_EQ_INT(load_on(80, 0, false, &c), CUDA_INVALID_IMAGE);
}

TEST_CASE(sim_driver, ptx_needs_a_driver_that_knows_it) {
    OK(load_on(120, 0, true, driver_ptx));
    OK(load_on(90, 12000, false, driver_ptx));
    CHECK_EQ_INT(load_on(75, 0, false, driver_ptx), CUDA_INVALID_PTX);
    CHECK_EQ_INT(load_on(90, 11080, false, driver_ptx),
                 CUDA_UNSUPPORTED_PTX_VERSION);
    CHECK_EQ_INT(load_on(90, 0, false, "no PTX"), CUDA_INVALID_PTX);
}
