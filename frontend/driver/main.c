/* main.c: the command line.  Each command is a file cmd_*.c.               */
#include <errno.h>
#include <string.h>

#include "ir/fn/fn.h"
#include "frontend/driver/cmd.h"
#include "passes/leave.h"

static const char help[] =
    "usage: ampc MODEL.onnx|MODEL.amp -o OUT.so [options]   compile\n"
    "       ampc run OUT.so [options]       train, evaluate, predict\n"
    "       ampc inspect OUT.so|MODEL [--ir STAGE|--casts|--kernels|--memory|"
    "--params|--cuda] [--json]\n"
    "       ampc check MODEL [options]      what would be refused, and why\n"
    "       ampc opt FILE --pass NAME[,NAME...] [options]   IR in, IR out\n"
    "       ampc export OUT.so [--load CKPT] -o MODEL.onnx   trained weights "
    "in the\n"
    "                                       model's own ONNX graph\n"
    "       ampc fmt FILE.amp\n"
    "       ampc --list-ops | --list-passes | --help | --version\n"
    "\n"
    "compile options\n"
    "  --precision P           fp32, bf16 (default), fp16, O0, O1, O1:bf16\n"
    "  --loss L[,k=v][:OUTPUT] auto (default), cross_entropy[,axis=,"
    "ignore_index=,\n"
    "                          label_smoothing=], nll, mse, l1, "
    "huber[,delta=],\n"
    "                          bce_with_logits, none\n"
    "  --optimizer O[,k=v...]  sgd,lr=,momentum=,weight_decay=,nesterov= |\n"
    "                          adam | adamw,lr=,beta1=,beta2=,eps=,"
    "weight_decay=\n"
    "  --param-group GLOB,k=v  lr_scale=, weight_decay= for some parameters\n"
    "  --lr-schedule S         constant | cosine,warmup=,total=,min= | "
    "linear,... |\n"
    "                          step,every=,gamma=\n"
    "  --clip-norm X, --clip-value X\n"
    "  --accumulate N          micro-batches per optimizer step\n"
    "  --loss-scale S          dynamic[,init=,growth=,backoff=,interval=,"
    "min=,max=,\n"
    "                          hysteresis=] | static=K | none\n"
    "  --dim NAME=N, --dim INPUT:AXIS=N   bind a dimension\n"
    "  --replace-head OUTPUT=N            a fresh last layer of N units\n"
    "  --train GLOB, --freeze GLOB        which initializers train\n"
    "  --batchnorm train|train:unbiased|train:population|frozen[:GLOB]\n"
    "  --dropout on|off\n"
    "  --accept-folded         train a file that lost parameters on export\n"
    "  --target T[,T]          cpu, cpu:x86-64-v2, -v3, -v4, cuda, "
    "cuda:sm_NN, cuda:ptx\n"
    "                          (default: cpu, and cuda if NVRTC is found)\n"
    "  --weights embed|sidecar\n"
    "  --dump-ir DIR, --emit-c DIR, --emit-cuda DIR, "
    "--report FILE.txt|.json\n"
    "  --time-passes           time and size of the graph after every pass\n"
    "  --count-underflow       ampc run tells what fp16 flushes to zero\n"
    "  --debug-nonfinite       each skipped step names the first value that is "
    "not finite\n"
    "  --symbol NAME           exported symbol (default ampc_module)\n"
    "  --seed N\n"
    "`ampc run --help` lists the options of run.\n";

static int list_passes(void) {
    for (const PassRow *p = pipeline; p < pipeline + pipeline_length; p++)
        printf("%-10s %-10s %-7s %s\n", p->name, stage_text[p->stage],
               pass_side_text[p->side], p->purpose);
    return 0;
}

static int list_ops(void) {
    static const char *const classes[] = {"LOW",    "FULL", "FULLOUT", "WIDEST",
                                          "FOLLOW", "ANY",  "-"};
    static const char *const kinds[] = {"elem",   "gen",    "view", "move",
                                        "reduce", "anchor", "lib",  "function"};
    for (int i = 0; i < NUM_OPS + fn_std_count(); i++) {
        const OpInfo *o =
            i < NUM_OPS ? &op_info[i] : &fn_std_at(i - NUM_OPS)->info;
        if (i == OP_CALL) continue;
        printf("%-22s %-9s %-8s gradient %-14s %s\n", o->text, kinds[o->kind],
               classes[o->amp], o->grad_text,
               o->kind == KIND_ELEM ? o->expr : "");
    }
    return 0;
}

static int print_help(void) {
    fputs(help, stdout);
    return 0;
}

static int print_version(void) {
    puts("ampc " AMPC_VERSION);
    return 0;
}

static int run(int argc, char **argv) {
    static const struct {
        const char *name;
        Command *run;
    } commands[] = {{"run", cmd_run},       {"inspect", cmd_inspect},
                    {"check", cmd_check},   {"opt", cmd_opt},
                    {"export", cmd_export}, {"fmt", cmd_fmt}};
    static const struct {
        const char *name;
        int (*run)(void);
    } flags[] = {{"--help", print_help},
                 {"-h", print_help},
                 {"--version", print_version},
                 {"--list-ops", list_ops},
                 {"--list-passes", list_passes}};
    if (argc < 2) {
        fputs(help, stderr);
        return ERR_USAGE;
    }
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (!strcmp(argv[1], flags[i].name)) return flags[i].run();
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(argv[1], commands[i].name))
            return commands[i].run(argc - 1, argv + 1);
    return cmd_compile(argc, argv);
}

/* What could not be written counts, whatever the command thought. */
int main(int argc, char **argv) {
    leave_install();
    int status = run(argc, argv);
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    if (status == OK)
        fprintf(stderr, "ampc: error: standard output: %s\n",
                errno ? strerror(errno) : "not all of it could be written");
    return status ? status : ERR_USER;
}
