/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_list_ops.c: `ampc --list-ops [NAME...]`: all ops, or those with the
   given names. */
#include <ctype.h>
#include <string.h>

#include "frontend/cli/cmd.h"
#include "ir/base/near.h"
#include "ir/fn/fn.h"

static void put_ops_row(const OpInfo *o) {
    static const char *const kinds[] = {"elem",   "gen",    "view", "move",
                                        "reduce", "anchor", "lib",  "function"};
    printf("%-22s %-9s %-8s gradient %-14s %s\n", o->text, kinds[o->kind],
           amp_class_text[o->amp], o->grad_text,
           o->kind == KIND_ELEM ? o->expr : "");
}

/* The head of a definition, in one line. */
static void put_ops_head(const Fn *f) {
    bool space = false;
    const char *p = f->text;
    if (!strncmp(p, "def ", 4)) p += 4;
    for (; *p && *p != '{'; p++) {
        space |= isspace((unsigned char)*p) != 0;
        if (isspace((unsigned char)*p)) continue;
        if (space) putchar(' ');
        space = false;
        putchar(*p);
    }
    putchar('\n');
}

static void put_ops_count(int least, int most, const char *what) {
    if (most < 0)
        printf("%d or more %ss", least, what);
    else if (most > least)
        printf("%d to %d %ss", least, most, what);
    else
        printf("%d %s%s", least, what, least == 1 ? "" : "s");
}

/* True for an op that a user may call; gradients and updates are excluded. */
static void put_op(const OpInfo *o) {
    static const char *const kinds[] = {"int", "float", "ints", "str"};
    printf("%s(", o->text);
    put_ops_count(o->in_min, o->in_max, "operand");
    for (int i = 0; i < o->nattr; i++) {
        const AttrInfo *a = attr_get(o->attrs[i]);
        printf("%s %s: %s", i ? "," : ";", a->text, kinds[a->kind]);
    }
    if (o->kind == KIND_GEN)
        printf("%s shape: ints, dtype", o->nattr ? "," : ";");
    printf(") -> ");
    put_ops_count(o->out_min, o->out_max, "result");
    printf(" class %s\n", amp_class_text[o->amp]);
}

static bool put_named(const char *name) {
    const Fn *f = fn_find(NULL, name, strlen(name));
    if (f) {
        put_ops_head(f);
        return true;
    }
    OpCode op;
    if (op_from_text(name, strlen(name), &op) && op != OP_CALL) {
        put_op(&op_info[op]);
        return true;
    }
    char text[NEAR_TEXT];
    Near near = near_to(name);
    for (int i = 0; i < NUM_OPS; i++)
        if (i != OP_CALL) near_offer(&near, op_info[i].text);
    for (int i = 0; i < fn_std_count(); i++)
        near_offer(&near, fn_std_at(i)->info.text);
    fprintf(stderr,
            "ampc: error: no op is called '%.200s'%s; ampc --list-ops prints "
            "all\n",
            name, near_text(&near, text));
    return false;
}

int cmd_list_ops(int argc, char **argv) {
    int status = OK;
    for (int i = 1; i < argc; i++)
        if (!put_named(argv[i])) status = ERR_USER;
    for (int i = 0; argc == 1 && i < NUM_OPS; i++)
        if (i != OP_CALL) put_ops_row(&op_info[i]);
    for (int i = 0; argc == 1 && i < fn_std_count(); i++)
        if (!fn_std_at(i)->optimizer) put_ops_row(&fn_std_at(i)->info);
    return status;
}
