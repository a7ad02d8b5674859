/* SPDX-License-Identifier: Apache-2.0 */
/* heap_test.c: every command with glibc's checks of the heap: a write behind a
   block ends the process when the block is freed, and memory has other contents
   before it is written and after it is freed. What a command prints and writes
   must not change by that. Sizes are odd, so that no room is left over. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/support/small_model.h"

static const char pictures[] =
    "dim B = 3\n"
    "model p(x: f32[B,3,5,7]) {\n"
    "  h = relu(Conv2d(x, channels=5, size=3, pad=1, scope=\"c\"))\n"
    "  return y = Linear(mean(h, axes=[2, 3]), units=2, scope=\"fc\")\n"
    "}\n"
    "train p { loss = cross_entropy; optimizer = sgd, lr=1e-2, momentum=0.5 "
    "}\n";

#define CPU  "--target cpu:x86-64-v2 "
#define EVAL "--eval-feed x=d.csv:0-2 --eval-feed target=d.csv:t "

/* In this order, in one folder: a command and the file that it writes. NULL:
   its output is compared. "-": neither, for it tells of times. */
static const char *const commands[][2] = {
    {"m.amp -o m.so " CPU "--seed 3 --ema 0.9", "m.so"},
    {"m.amp -o n.so " CPU "--precision fp16 --report n.txt --emit-onnx n.onnx",
     "n.onnx"},
    {"m.amp -o a.so " CPU "--accumulate 3 --state-dtype int8 --clip-norm 1",
     "a.so"},
    {"p.amp -o p.so " CPU, "p.so"},
    {"models/mlp.onnx -o o.so " CPU "--dim batch=5 --loss cross_entropy",
     "o.so"},
    {"models/mnist_cnn.onnx -o q.so " CPU "--dim batch=3 --loss cross_entropy "
     "--lora *fc*,rank=3 --frozen-dtype int8",
     "q.so"},
    {"inspect m.amp --params", NULL},
    {"inspect m.amp --nodes", NULL},
    {"inspect m.amp --casts --json", NULL},
    {"inspect m.amp --kernels", NULL},
    {"inspect m.amp --memory --json", NULL},
    {"inspect m.amp --roofline", "-"},
    {"inspect m.amp --scaling 3 --json", "-"},
    {"inspect m.amp --ir fuse", NULL},
    {"inspect m.so", NULL},
    {"inspect q.so --params", NULL},
    {"check models/mlp.onnx --dim batch=5 --loss cross_entropy", NULL},
    {"fmt m.amp", NULL},
    {"opt --pass cse g.amp", NULL},
    {"data d.csv", NULL},
    {"run m.so " SMALL_FEED "--epochs 3 --shuffle --save s.safetensors "
     "--save-every 2 --keep 2 --log l",
     "s.safetensors"},
    {"run m.so " SMALL_FEED EVAL
     "--epochs 4 --resume --save s.safetensors --log l "
     "--report run.html --save-best b.safetensors --metric f1 --metric auc",
     "b.safetensors"},
    {"run m.so " SMALL_FEED
     "--load s.safetensors --eval --averaged --fetch outs",
     "outs/y.npy"},
    {"run m.so --feed x=outs/y.npy --feed target=d.csv:t --load b.safetensors "
     "--save-weights w.safetensors --log l",
     "w.safetensors"},
    {"run a.so " SMALL_FEED
     "--epochs 5 --noise-scale 1 --save c.safetensors --log l",
     "c.safetensors"},
    {"run p.so --feed x=tests/images --feed target=tests/images --epochs 2 "
     "--augment x=flip,crop:1 --save i.safetensors --log l",
     "i.safetensors"},
    {"export m.so --load s.safetensors -o e.onnx", "e.onnx"},
    {"export m.so --load s.safetensors --module -o e.so", "e.so"},
    {"audit m.so " SMALL_FEED "--batches 1", NULL},
    {"bisect m.so m.so " SMALL_FEED "--steps 2", NULL},
    {"help run", NULL},
    {"manual cli", NULL},
    {"--list-ops", NULL},
    {"--list-optimizers", NULL},
};

static const char graph[] =
    "graph forward(%x: f32[5,3]) {\n"
    "  %a = tanh %x\n  %b = tanh %x\n  %y = add %a, %b\n  return %y\n}\n";

static void make_folder(const char *name) {
    char path[4][300];
    static const char *const files[] = {"m.amp", "p.amp", "d.csv", "g.amp"};
    const char *texts[] = {small_model, pictures, small_data, graph};
    CHECK_EQ_INT(test_command(NULL,
                              "cd '%s' && mkdir %s && ln -s '%s' %s/models && "
                              "mkdir %s/tests && ln -s '%s' %s/tests/images",
                              test_tmpdir(), name, test_data_path("models"),
                              name, name, test_data_path("tests/images"), name),
                 0);
    for (int i = 0; i < 4; i++) {
        snprintf(path[i], sizeof path[i], "%s/%s", name, files[i]);
        REQUIRE(test_write_file(test_tmp(path[i]), texts[i], strlen(texts[i])));
    }
}

static int run_in(const char *folder, const char *settings, const char *words,
                  char **out) {
    return test_command(out,
                        "cd '%s/%s' && export AMPC_LIBNVRTC=none && %s '%s' %s",
                        test_tmpdir(), folder, settings, test_ampc(), words);
}

static char *file_of(const char *folder, const char *name, size_t *n) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return test_read_file(test_tmp(path), n);
}

/* The file that a command wrote is the same in both folders. */
static void check_file(const char *words, const char *name) {
    size_t n = 0, m = 0;
    char *a = file_of("plain", name, &n), *b = file_of("checked", name, &m);
    CHECK_MSG(a && b && n == m && !memcmp(a, b, n),
              "ampc %s: %s depends on what lies in memory", words, name);
    free(a);
    free(b);
}

/* The address sanitizer watches blocks itself; there other contents are left.
 */
static const char *checks(void) {
#ifdef __SANITIZE_ADDRESS__
    return "ASAN_OPTIONS=malloc_fill_byte=165:max_malloc_fill_size=1073741824";
#else
    if (!dlopen("libc_malloc_debug.so.0", RTLD_LAZY))
        SKIP("no libc_malloc_debug.so.0, a part of glibc");
    return "GLIBC_TUNABLES=glibc.malloc.check=3:glibc.malloc.perturb=165 "
           "LD_PRELOAD=libc_malloc_debug.so.0";
#endif
}

TEST_CASE(heap, commands_stay_within_their_blocks) {
    const char *checked = checks();
    make_folder("plain");
    make_folder("checked");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        const char *words = commands[i][0], *file = commands[i][1];
        char *a, *b;
        int plain = run_in("plain", "", words, &a);
        int now = run_in("checked", checked, words, &b);
        CHECK_MSG(plain == 0 && now == 0,
                  "ampc %s: status %d, with checks of the heap %d\n%s", words,
                  plain, now, b);
        CHECK_MSG(file || !strcmp(a, b), "ampc %s: %s\nwith checks: %s", words,
                  a, b);
        if (file && *file != '-') check_file(words, file);
        free(a);
        free(b);
    }
}
