/* SPDX-License-Identifier: Apache-2.0 */
/* compile.c: see compile.h. */
#include "tests/fuzz/compile.h"

#include <stdio.h>

#include "codegen/codegen.h"
#include "frontend/cli/options_text.h"
#include "ir/text/text.h"

typedef const char *OptionText[2];

static const OptionText sets[][6] = {
    {{"--loss", "mse"}},
    {{"--loss", "cross_entropy"}},
    {{"--loss", "none"}},
    {{"--loss", "none"}, {"--target", "cpu,cuda:sm_80"}},
    {{"--loss", "none"}, {"--precision", "fp16"}, {"--batchnorm", "frozen"}},
    {{"--loss", "mse"}, {"--precision", "fp32"}, {"--no-fuse", NULL}},
    {{"--precision", "fp16"}, {"--loss", "mse"}, {"--optimizer", "adam"}},
    {{"--precision", "fp32"}, {"--loss", "bce_with_logits"}},
    {{"--precision", "fp32"}},
    {{"--precision", "fp16"},
     {"--accumulate", "3"},
     {"--clip-norm", "1"},
     {"--lr-schedule", "cosine,warmup=2,total=9,min=0.1"}},
    {{"--loss", "huber,delta=0.5"},
     {"--optimizer", "sgd,lr=0.1,momentum=0.9,nesterov=1,weight_decay=0.1"},
     {"--clip-value", "1"},
     {"--accumulate", "2"}},
    {{"--loss", "nll"}, {"--batchnorm", "frozen"}, {"--dropout", "off"}},
    {{"--loss", "cross_entropy,label_smoothing=0.1,ignore_index=1"},
     {"--accept-folded", NULL},
     {"--loss-scale", "static=8"}},
    {{"--loss", "mse"}, {"--target", "cpu,cuda:sm_90"}},
    {{"--loss", "cross_entropy"},
     {"--precision", "fp16"},
     {"--target", "cpu,cuda:sm_80"}},
};
enum { SETS = sizeof sets / sizeof *sets };

void compile_begin(Compile *c, const uint8_t *p, size_t n) {
    *c = (Compile){.a = arena_new(), .hash = hash_bytes(0, p, n)};
    options_init(&c->opt, c->a);
    for (const OptionText *o = sets[(c->hash >> 32) % SETS]; (*o)[0]; o++) {
        bool used;
        Status s = options_set(&c->opt, &c->d, (*o)[0], (*o)[1], &used);
        if (fuzz_replaying)
            fprintf(stderr, "%s %s\n", (*o)[0], (*o)[1] ? (*o)[1] : "");
        fuzz_check(s == OK, "%s", c->d.text.data);
    }
}

void compile_check(const Compile *c, Status s) {
    if (fuzz_replaying && c->d.text.data) fputs(c->d.text.data, stderr);
    fuzz_check(s == OK || s == ERR_USER, "status %d: %s", s, c->d.text.data);
    fuzz_check((s == OK) == (c->d.errors == 0), "status %d with %d errors", s,
               c->d.errors);
}

Status compile_parse(Compile *c, const uint8_t *p, size_t n) {
    TRY(parse_module(c->a, &c->d, "input.amp", (const char *)p, n, &c->m));
    return verify_module(c->m, STAGE_TYPED, &c->d);
}

bool compile_read(Compile *c, const uint8_t *p, size_t n) {
    compile_begin(c, p, n);
    Status s = compile_parse(c, p, n);
    compile_check(c, s);
    return s == OK;
}

bool compile_is_short(const Compile *c) {
    enum { MOST_NODES = 1000 };
    int nodes = 0;
    for (int i = 0; i < c->m->graphs.len; i++)
        nodes += c->m->graphs.data[i]->order.len;
    return nodes <= MOST_NODES;
}

void compile_all(Compile *c) {
    Status s = run_pipeline(c->m, &c->d, &c->opt, STAGE_PLANNED, false);
    if (s == OK) s = emit_check(c->m, &c->opt, &c->d, &(EmitInput){0});
    compile_check(c, s);
    if (s == OK) fuzz_taken();
}

void compile_end(Compile *c) {
    sb_free(&c->d.text);
    arena_free(c->a);
}
