/* SPDX-License-Identifier: Apache-2.0 */
/* ran.c: see ran.h. */
#define _GNU_SOURCE
#include "tests/frontend/run_cmd/ran.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/program/dtype.h"
#include "runtime/base/json.h"

bool no_links;

/* Replaces the library's function, and answers like a file system without
   links. */
int link(const char *from, const char *to) {
    if (!no_links) return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
    errno = EPERM;
    return -1;
}

void write_npy(const char *name, int dtype, int rank, const int64_t *dim,
               const void *data) {
    StrBuf sb = {0};
    size_t n = dtype_bytes((uint32_t)dtype);
    for (int i = 0; i < rank; i++) n *= (size_t)dim[i];
    npy_header(&sb, dtype, rank, dim);
    CHECK_EQ_INT(sb.len % 64, 0);
    sb_putn(&sb, data, n);
    REQUIRE(test_write_file(test_tmp(name), sb.data, sb.len));
    sb_free(&sb);
}

void write_data(int n) {
    float x[400 * TINY_IN], t[400 * TINY_OUT];
    for (int i = 0; i * TINY_BATCH < n; i++)
        tiny_batch(i, x + i * TINY_BATCH * TINY_IN,
                   t + i * TINY_BATCH * TINY_OUT);
    write_npy("x.npy", AMPC_DTYPE_F32, 2, (int64_t[]){n, TINY_IN}, x);
    write_npy("t.npy", AMPC_DTYPE_F32, 2, (int64_t[]){n, TINY_OUT}, t);
}

ampc_api api_for(const AmpcModule *m) {
    ampc_api a = *tiny_api();
    a.module = tiny_handle(m);
    return a;
}

static char *expand(const char *word) {
    const char *at = strchr(word, '@');
    char *p = NULL;
    int n =
        at ? asprintf(&p, "%.*s%s", (int)(at - word), word, test_tmp(at + 1))
           : asprintf(&p, "%s", word);
    return n < 0 ? NULL : p;
}

static FILE *redirect(FILE *f, const char *path, int *saved) {
    fflush(f);
    *saved = dup(fileno(f));
    FILE *to = fopen(path, "w");
    REQUIRE(to && *saved >= 0);
    dup2(fileno(to), fileno(f));
    return to;
}

static void restore(FILE *f, FILE *to, int saved) {
    fflush(f);
    dup2(saved, fileno(f));
    close(saved);
    fclose(to);
}

/* No message is printed twice. */
static void check_lines_differ(const char *text) {
    for (const char *a = text, *b; *a; a += strcspn(a, "\n") + 1) {
        size_t n = strcspn(a, "\n") + 1;
        if (a[n - 1] != '\n') break;
        for (b = a + n; n > 1 && b; b = strchr(b, '\n'), b += b != NULL)
            CHECK_MSG(strncmp(a, b, n), "twice: %.*s", (int)n, a);
    }
}

Ran run_api(const ampc_api *a, const char *words) {
    char *argv[64] = {"run", "tiny.so"}, *copy = strdup(words), *save = NULL;
    int argc = 2, out, err;
    for (char *w = strtok_r(copy, " ", &save); w;
         w = strtok_r(NULL, " ", &save))
        argv[argc++] = expand(w);
    FILE *fo = redirect(stdout, test_tmp("stdout"), &out);
    FILE *fe = redirect(stderr, test_tmp("stderr"), &err);
    Ran r = {.status = run_cmd(argc, argv, a)};
    restore(stdout, fo, out);
    restore(stderr, fe, err);
    r.out = test_read_file(test_tmp("stdout"), NULL);
    r.err = test_read_file(test_tmp("stderr"), NULL);
    check_lines_differ(r.err);
    for (int i = 2; i < argc; i++) free(argv[i]);
    free(copy);
    return r;
}

Ran run_module(const AmpcModule *m, const char *words) {
    ampc_api a = api_for(m);
    return run_api(&a, words);
}

void ran_free(Ran *r) {
    free(r->out);
    free(r->err);
}

char *good(const AmpcModule *m, const char *words) {
    Ran r = run_module(m, words);
    CHECK_MSG(r.status == 0, "%s\n%s", words, r.err);
    free(r.err);
    return r.out;
}

void bad(const AmpcModule *m, const char *words, int status, const char *why) {
    Ran r = run_module(m, words);
    CHECK_EQ_INT(r.status, status);
    CHECK_HAS(r.err, why);
    ran_free(&r);
}

int count_lines(const char *text) {
    int n = 0;
    for (; *text; text++) n += *text == '\n';
    return n;
}

double field(const char *log, int line, const char *key) {
    JsonSpan v, f;
    double x = NAN;
    while (line-- && (log = strchr(log, '\n'))) log++;
    if (!CHECK(log && *log)) return NAN;
    if (CHECK(json_parse(log, strcspn(log, "\n"), &v)) &&
        CHECK_MSG(json_get(v, key, &f), "%s in %.200s", key, log))
        json_double(f, &x);
    return x;
}

void same_files(const char *a, const char *b) {
    size_t na = 0, nb = 0;
    char *x = test_read_file(test_tmp(a), &na);
    char *y = test_read_file(test_tmp(b), &nb);
    REQUIRE(x && y);
    if (CHECK_EQ_INT(na, nb)) CHECK_MEM(x, y, na);
    free(x);
    free(y);
}
