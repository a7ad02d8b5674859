/* SPDX-License-Identifier: Apache-2.0 */
/* ops_test.c: every op of the table, compiled, in every dtype, values and
   gradients, compared with the interpreter.

   The files of tests/ops contain small graphs with $T for a dtype. Lines before
   them: # dtypes f32 bf16 f16 f64     instances to make (default: these four)
     # input NAME LO HI            uniform values of an input (default -2 2;
                                   integers: LO <= v < HI)
     # fixed NAME                  no slope is compared (grad_test.c): the
                                   function has no gradient for this input
     # nograd                      no gradients (default: of every float input)
   All instances become disjoint parts of one program "predict", so that one
   compilation tests hundreds of graphs. They are compiled with --quick; each
   graph, in one of its dtypes, without it and with its nodes shuffled, too:
   these versions and unfused ones must agree to the bit.                     */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/levels.h"
#include "ir/fn/fn.h"
#include "runtime/cpu/isa.h"
#include "tests/support/ops_bench.h"

static void check_version(const char *amp, const char *more, OpsData *d,
                          const char *want) {
    char all[200];
    snprintf(all, sizeof all, "--precision fp32 --target cpu:x86-64-v3 %s",
             more);
    Compiled c = compile_file(amp, all);
    ops_run_with(&c, d, 2);
    ops_check_same_bits(d, want, more);
    compiled_close(&c);
}

static const char *write_model(const OpsBench *b, const char *name) {
    const char *text = ops_text(b), *amp = test_tmp(name);
    REQUIRE(test_write_file(amp, text, strlen(text)));
    printf("%s: %d graphs\n", name, b->instances);
    return amp;
}

static const char *level_word(const IsaLevel *l) {
    const CpuIsaWord *w = cpu_isa_words;
    while (w->name[0] && (w->level != l->isa || w->how[0])) w++;
    if (!w->name[0]) FAIL("cpu_isa_words has no word for %s", l->name);
    return w->name;
}

static void run_at_level(const IsaLevel *l, const Compiled *c, OpsBench *b,
                         const EvalTensor **want, OpsData *d) {
    printf("level %s\n", l->name);
    setenv("AMPC_ISA", level_word(l), 1);
    ops_run_with(c, d, 2);
    ops_compare(b, want, d);
}

/* A part of the graphs as for users. `best`: all outputs of the best level;
   they and those of x86-64-v3 do not change. */
static void check_in_turn(const OpsData *best, const OpsData *v3) {
    OpsBench b = ops_bench_in_turn();
    OpsData d = ops_data_new(&b, NULL);
    const char *amp = write_model(&b, "in_turn.amp");
    char *bits = ops_bytes_of(best, &d), *bits_of_v3 = ops_bytes_of(v3, &d);
    unsetenv("AMPC_ISA");
    Compiled c = compile_file_optimised(amp, "--precision fp32");
    for (int threads = 1; threads <= 3; threads++) {
        ops_run_with(&c, &d, threads);
        ops_check_same_bits(&d, bits, "compiled without --quick");
    }
    compiled_close(&c);
    setenv("AMPC_ISA", "v3", 1);
    check_version(amp, "--shuffle 7", &d, bits_of_v3);
    free(bits);
    free(bits_of_v3);
    arena_free(b.a);
}

TEST_CASE(ops, compiled_values_and_gradients_match_the_interpreter) {
    OpsBench b = ops_bench_new();
    size_t n;
    Diag diag = {0};
    Evaluator *e = eval_new(b.all, b.a, EVAL_STORAGE);
    OpsData d = ops_data_new(&b, e), best = ops_data_new(&b, NULL);
    if (eval_run(e, &diag) != OK) FAIL("%s", diag.text.data);
    const EvalTensor **want = ops_wanted(&b, e);
    const char *amp = write_model(&b, "ops.amp");

    Compiled c = compile_file(amp, "--precision fp32 " ALL_LEVELS);
    ops_run_with(&c, &best, 2);
    ops_compare(&b, want, &best);
    char *bits = ops_all_bytes(&best, &n);
    ops_run_with(&c, &d, 1);
    ops_check_same_bits(&d, bits, "one thread");
    ops_run_with(&c, &d, 5);
    ops_check_same_bits(&d, bits, "five threads");
    free(bits);
    for (const IsaLevel *l = isa_levels; l->isa; l++)
        if (l->flags && !l->source && isa_is_here(l->arch))
            run_at_level(l, &c, &b, want, &d);
    setenv("AMPC_ISA", "v3", 1);
    ops_run_with(&c, &d, 2);
    bits = ops_all_bytes(&d, &n);
    compiled_close(&c);
    check_version(amp, "--no-fuse", &d, bits);
    check_in_turn(&best, &d);
    unsetenv("AMPC_ISA");
    free(bits);
    arena_free(b.a);
}

TEST_CASE(ops, every_row_of_the_table_has_a_case) {
    if (ops_bench_only()) SKIP("AMPC_OPS takes some files only");
    OpsBench b = ops_bench_new();
    for (int i = 0; i < NUM_OPS; i++) {
        if (i == OP_GRAD) continue; /* other ops, before anything is compiled */
        CHECK_MSG(b.seen[i], "no case in tests/ops uses %s", op_info[i].text);
        CHECK_MSG(!op_gradient((OpCode)i) || b.differentiated[i],
                  "no case in tests/ops differentiates %s", op_info[i].text);
    }
    for (int i = 0; i < fn_std_count(); i++) {
        const OpInfo *fn = &fn_std_at(i)->info;
        if (fn_std_at(i)->optimizer) continue; /* optimizers_test */
        CHECK_MSG(b.fn_seen[i], "no case in tests/ops uses %s", fn->text);
        CHECK_MSG(fn->amp == AMP_NONE || b.fn_differentiated[i],
                  "no case in tests/ops differentiates %s", fn->text);
    }
    bool types[NUM_DTYPES] = {false};
    for (int i = 1; i < b.all->values.len; i++)
        types[type_get(b.all->values.data[i].type)->dtype] = true;
    for (DType d = 0; d < NUM_DTYPES; d++)
        CHECK_MSG(types[d] || !dtype_is_float(d),
                  "no case in tests/ops has a value of %s", dtype_info[d].text);
    arena_free(b.a);
}
