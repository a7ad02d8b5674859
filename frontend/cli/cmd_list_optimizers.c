/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_list_optimizers.c: `ampc --list-optimizers [NAME...]`: the optimizers
   with their keys, or the definitions of the named ones, which are their
   formulas. */
#include <stdio.h>

#include "frontend/cli/cmd.h"
#include "ir/base/near.h"
#include "ir/fn/optimizer.h"
#include "passes/options.h"

static void put_key(const FnAttr *a, double value) {
    char text[40];
    snprintf(text, sizeof text,
             a->kind == FA_BOOL && value == 0 ? "false"
             : a->kind == FA_BOOL             ? "true"
                                              : "%g",
             value);
    printf("  %-24s %-8s %s", a->name, text, a->doc ? a->doc : "");
    if (a->kind != FA_BOOL && a->hi < 1e38)
        printf(" (%g %s %g)", a->lo, a->open ? "to below" : "to", a->hi);
    putchar('\n');
}

static const char *const kinds[NUM_ROLES] = {
    [ROLE_OPTIMIZER] = "",
    [WRAPPER_BEFORE] = " (--wrapper, before the gradient)",
    [WRAPPER_AFTER] = " (--wrapper, after the step)"};

static void put_optimizer(Arena *a, const Fn *f) {
    OptimizerSpec o = optimizer_default(a, f);
    printf("%s%s: %s\n", f->info.text, kinds[f->optimizer->role],
           f->optimizer->source);
    if (f->optimizer->lr.name) put_key(&f->optimizer->lr, o.lr);
    for (int i = 0; i < o.keys.len; i++)
        put_key(o.keys.data[i].key, o.keys.data[i].value);
}

int cmd_list_optimizers(int argc, char **argv) {
    int status = OK;
    Arena *a = arena_new();
    for (int role = 0; role < NUM_ROLES && argc == 1; role++)
        for (const Fn *f = NULL; (f = optimizer_next(f, role));)
            put_optimizer(a, f);
    for (int i = 1; i < argc; i++) {
        const Fn *f = optimizer_find(NULL, argv[i]);
        if (f) {
            printf("%.*s\n", (int)f->size, f->text);
            continue;
        }
        char text[NEAR_TEXT];
        Near near = near_to(argv[i]);
        for (int role = 0; role < NUM_ROLES; role++)
            for (f = NULL; (f = optimizer_next(f, role));)
                near_offer(&near, f->info.text);
        fprintf(stderr,
                "ampc: error: no optimizer is called '%.200s'%s; ampc "
                "--list-optimizers prints all\n",
                argv[i], near_text(&near, text));
        status = ERR_USER;
    }
    arena_free(a);
    return status;
}
