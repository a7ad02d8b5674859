/* SPDX-License-Identifier: Apache-2.0 */
/* sections.h: reads the sections after the module's own ELF image (plan.h). */
#ifndef AMPC_SECTIONS_H
#define AMPC_SECTIONS_H

#include "runtime/base/crc.h"
#include "runtime/api/session.h"

typedef struct SectionFile {
    ampc_session *s;
    char path[4200];
    int fd;
    uint64_t size;
    PlanTail tail;
} SectionFile;

/* Receives bytes [at, at + n) of a section. */
typedef ampc_status SectionFn(void *ctx, const uint8_t *p, uint64_t at,
                              uint64_t n);

/* Keeps the file of m open while it is loaded. */
void module_hold(const AmpcModule *m);
/* Path of the file that holds m. */
bool module_path(const AmpcModule *m, char *path, size_t size);
bool section_inside(uint64_t offset, uint64_t bytes, uint64_t limit);
/* Call section_close even after a failure. */
ampc_status section_open(ampc_session *s, SectionFile *f);
void section_close(SectionFile *f);
/* Only sections stored without compression. */
ampc_status section_find(SectionFile *f, const char *name, PlanSection *found,
                         bool *there);
/* Passes on all bytes, then fails if their CRC is wrong. */
ampc_status section_read(SectionFile *f, const PlanSection *sec, SectionFn *fn,
                         void *ctx);
ampc_status section_damaged(SectionFile *f, const char *what);

#endif
