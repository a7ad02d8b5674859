/* SPDX-License-Identifier: Apache-2.0 */
/* standin_nvrtc.c: libnvrtc's functions that `ampc` calls. Their results
   contain the text and the options; each compilation appends a line to the
   file $STANDIN_RUNS. $STANDIN_REFUSES is an architecture that fails, and
   $STANDIN_BUILTINS a library that must be loaded first. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Program {
    const char *text;
    char arch[16], cubin[64], ptx[200], *log;
    int n, fails;
} Program;

int nvrtcVersion(int *major, int *minor);
int nvrtcGetNumSupportedArchs(int *n);
int nvrtcGetSupportedArchs(int *archs);
int nvrtcCreateProgram(Program **p, const char *text, const char *name, int n,
                       const char *const *headers, const char *const *names);
int nvrtcDestroyProgram(Program **p);
int nvrtcCompileProgram(Program *p, int n, const char *const *options);
int nvrtcGetPTXSize(Program *p, size_t *n);
int nvrtcGetPTX(Program *p, char *to);
int nvrtcGetCUBINSize(Program *p, size_t *n);
int nvrtcGetCUBIN(Program *p, char *to);
int nvrtcGetProgramLogSize(Program *p, size_t *n);
int nvrtcGetProgramLog(Program *p, char *to);

int nvrtcVersion(int *major, int *minor) {
    *major = 12, *minor = 8;
    return 0;
}

int nvrtcGetNumSupportedArchs(int *n) {
    *n = 3;
    return 0;
}

int nvrtcGetSupportedArchs(int *archs) {
    archs[0] = 70, archs[1] = 80, archs[2] = 90;
    return 0;
}

int nvrtcCreateProgram(Program **p, const char *text, const char *name, int n,
                       const char *const *headers, const char *const *names) {
    (void)name, (void)headers, (void)names;
    *p = calloc(1, sizeof **p);
    (*p)->text = text;
    return *p && n > 0 ? 0 : 1;
}

int nvrtcDestroyProgram(Program **p) {
    free((*p)->log);
    free(*p);
    return 0;
}

/* Like ptxas with -v: 40 registers and 100 bytes for the first kernel of a
   text, one and ten more for each later one; no shared memory for sm_90. */
static void write_log(Program *p) {
    size_t size = 0;
    FILE *f = open_memstream(&p->log, &size);
    int k = 0;
    static const char bounds[] = "__launch_bounds__(";
    for (const char *at = p->text; (at = strstr(at, bounds)); k++) {
        at = strstr(at, ")\n");
        const char *name = at + 2;
        int n = (int)strcspn(name, "(");
        fprintf(f,
                "ptxas info    : Compiling entry function '%.*s' for '%s'\n"
                "ptxas info    : Function properties for %.*s\n"
                "    %d bytes stack frame, %d bytes spill stores, %d bytes "
                "spill loads\n"
                "ptxas info    : Used %d registers, used 1 barriers, ",
                n, name, p->arch, n, name, 100 + 10 * k, 200 + 10 * k,
                300 + 10 * k, 40 + k);
        if (strcmp(p->arch, "sm_90") != 0)
            fprintf(f, "%d bytes smem, ", 64 + k);
        fprintf(f, "400 bytes cmem[0]\n");
    }
    fclose(f);
}

int nvrtcCompileProgram(Program *p, int n, const char *const *options) {
    const char *runs = getenv("STANDIN_RUNS"), *no = getenv("STANDIN_REFUSES");
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < n; i++)
        if (!strncmp(options[i], "-arch=", 6))
            snprintf(p->arch, sizeof p->arch, "%s", options[i] + 6);
    FILE *f = runs ? fopen(runs, "a") : NULL;
    if (f) fprintf(f, "%s\n", p->arch), fclose(f);
    for (const char *c = p->text; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    const char *first = getenv("STANDIN_BUILTINS");
    if (first && !dlopen(first, RTLD_LAZY | RTLD_NOLOAD)) {
        p->log = strdup("unit.cu(1): error: no builtins");
        return 7;
    }
    if ((p->fails = no && !strcmp(no, p->arch))) {
        p->log = strdup("unit.cu(3): error: it does not please");
        return 6;
    }
    p->n = snprintf(p->cubin, sizeof p->cubin, "cubin %s %016llx", p->arch,
                    (unsigned long long)hash);
    snprintf(p->ptx, sizeof p->ptx,
             "//\n.version 8.7\n.target sm_80\n// %016llx\n",
             (unsigned long long)hash);
    write_log(p);
    return 0;
}

static int give(const char *text, size_t n, char *to) {
    memcpy(to, text, n);
    return 0;
}

int nvrtcGetPTXSize(Program *p, size_t *n) {
    *n = strlen(p->ptx) + 1;
    return 0;
}

int nvrtcGetPTX(Program *p, char *to) {
    return give(p->ptx, strlen(p->ptx) + 1, to);
}

/* None for a virtual architecture. */
int nvrtcGetCUBINSize(Program *p, size_t *n) {
    *n = strncmp(p->arch, "compute_", 8) ? (size_t)p->n : 0;
    return 0;
}

int nvrtcGetCUBIN(Program *p, char *to) {
    return give(p->cubin, (size_t)p->n, to);
}

int nvrtcGetProgramLogSize(Program *p, size_t *n) {
    *n = p->log ? strlen(p->log) + 1 : 0;
    return 0;
}

int nvrtcGetProgramLog(Program *p, char *to) {
    return give(p->log, strlen(p->log) + 1, to);
}
