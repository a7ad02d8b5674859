/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.c: processes on simulated GPUs (ranks.h). */
#define _GNU_SOURCE
#include "tests/frontend/nccl/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* ---- modules ------------------------------------------------------------- */

Compiled ranks_compile(const char *path, const char *options) {
    Compiled c = compile_file_gpu(path, options);
    REQUIRE(sim_build_twins(c.cuda_dir) > 0);
    return c;
}

Compiled ranks_model(const char *model, const char *options, int accumulate,
                     int batch) {
    char all[500], path[100];
    snprintf(path, sizeof path, "tests/onnx/%s", model);
    snprintf(all, sizeof all, "--dim batch=%d --accumulate %d %s", batch,
             accumulate, options);
    return ranks_compile(test_data_path(path), all);
}

const Compiled *ranks_trained(Trained *t, int accumulate) {
    Compiled *c = &t->of[accumulate];
    if (!c->api) *c = ranks_model(t->model, t->options, accumulate, BATCH);
    return c;
}

/* ---- processes ----------------------------------------------------------- */

size_t ranks_machine(char *to, size_t size, const Compiled *c, int devices,
                     bool in_rank_order) {
    return (size_t)snprintf(
        to, size,
        "cd '%s' && rm -f report ended && export TMPDIR=/tmp AMPC_CACHE_DIR=. "
        "AMPC_SIM_REPORT=report "
        "AMPC_LIBCUDA='%s' AMPC_LIBCUBLASLT='%s' AMPC_LIBNCCL='%s' "
        "AMPC_SIM_TWINS='%s' AMPC_SIM_DEVICES=%d AMPC_SIM_NCCL_ORDER=%s; ",
        test_tmpdir(), sim()->path, sim()->cublaslt, sim()->nccl, c->cuda_dir,
        devices, in_rank_order ? "ranks" : "any");
}

int ranks_launch(const Launch *l, char **out) {
    char command[8000];
    size_t n = ranks_machine(command, sizeof command, l->c, l->world,
                             l->in_rank_order);
    /* below the ports that connections get */
    int port = 20000 + (int)(getpid() * 7 + time(NULL)) % 12000;
    for (int r = 0; r < l->world; r++) {
        if (l->world > 1)
            n += (size_t)snprintf(
                command + n, sizeof command - n,
                "export MASTER_ADDR=127.0.0.1 MASTER_PORT=%d WORLD_SIZE=%d "
                "RANK=%d LOCAL_RANK=%d AMPC_SIM_SEED=%d; ",
                port, l->world, r, r, r + 1);
        n += (size_t)snprintf(command + n, sizeof command - n,
                              "sh -c 'M=%s; %s exec %s run $M %s' & p%d=$!; ",
                              l->c->path, l->before ? l->before : "",
                              test_ampc(), l->words, r);
    }
    n += (size_t)snprintf(command + n, sizeof command - n,
                          "(sleep 150; kill -KILL $p0 $p1 $p2 $p3) "
                          ">/dev/null 2>&1 & end=$!; rc=0; ");
    for (int r = 0; r < l->world; r++)
        n += (size_t)snprintf(command + n, sizeof command - n,
                              "wait $p%d; s=$?; touch ended; "
                              "test $rc = 0 && rc=$s; ",
                              r);
    snprintf(command + n, sizeof command - n, "kill $end; exit $rc");
    return test_command(out, "%s", command);
}

char *ranks_run(const Launch *l) {
    char *out, *report;
    int rc = ranks_launch(l, &out);
    CHECK_MSG(rc == 0, "%d ranks: status %d\n%s", l->world, rc, out);
    free(out);
    report = test_read_file(test_tmp("report"), NULL);
    int lines = 0;
    for (const char *p = report; p && *p; p++) lines += *p == '\n';
    CHECK_MSG(lines == l->world, "%s", report);
    return report;
}
