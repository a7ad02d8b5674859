/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_abi.c: a library with the ABI of MPI 5 over Open MPI, whose constants
   differ: tests programs that use a library with only that interface. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

typedef intptr_t Handle;
enum { COMM_WORLD = 0x101, ERRORS_RETURN = 0x142, BYTE = 0x247 };

/* Open MPI's function of that name. */
static void *real(const char *name) {
    static void *lib;
    if (!lib) lib = dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL);
    void *p = lib ? dlsym(lib, name) : NULL;
    if (!p) abort();
    return p;
}

/* Converts our handle to Open MPI's; numbers of this ABI are below 4096. */
static Handle there(Handle h) {
    if (h == COMM_WORLD) return (Handle)real("ompi_mpi_comm_world");
    if (h == ERRORS_RETURN) return (Handle)real("ompi_mpi_errors_return");
    if (h == BYTE) return (Handle)real("ompi_mpi_byte");
    if (h >= 0 && h < 4096) abort();
    return h;
}

/* MPI_THREAD_SINGLE, FUNNELED, SERIALIZED, MULTIPLE. */
static int level(int theirs) { return theirs ? 512 << theirs : 0; }

#define REAL(name) ((__typeof__(&MPI_##name))(uintptr_t)real("MPI_" #name))
#define CALL(name, parameters, ...)                                            \
    int MPI_##name parameters;                                                 \
    int MPI_##name parameters { return REAL(name)(__VA_ARGS__); }

CALL(Initialized, (int *flag), flag)
CALL(Finalize, (void), )

CALL(Comm_dup, (Handle c, Handle *copy), there(c), copy)
CALL(Comm_free, (Handle * c), c)
CALL(Comm_rank, (Handle c, int *rank), there(c), rank)
CALL(Comm_size, (Handle c, int *size), there(c), size)
CALL(Comm_set_errhandler, (Handle c, Handle e), there(c), there(e))
CALL(Isend,
     (const void *data, int n, Handle type, int to, int tag, Handle c,
      Handle *request),
     data, n, there(type), to, tag, there(c), request)
CALL(Irecv,
     (void *data, int n, Handle type, int from, int tag, Handle c,
      Handle *request),
     data, n, there(type), from, tag, there(c), request)
CALL(Test, (Handle * request, int *done, void *status), request, done, status)

int MPI_Query_thread(int *got);
int MPI_Query_thread(int *got) {
    int rc = REAL(Query_thread)(got);
    *got = level(*got);
    return rc;
}

int MPI_Init_thread(int *argc, char ***argv, int wanted, int *got);
int MPI_Init_thread(int *argc, char ***argv, int wanted, int *got) {
    int rc = REAL(Init_thread)(argc, argv, wanted / 1024, got);
    *got = level(*got);
    return rc;
}
