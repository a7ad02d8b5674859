/* SPDX-License-Identifier: Apache-2.0 */
/* bounds.c: the last legal and the first illegal value, at both ends;
   options that exclude or replace each other. */
#include "frontend/cli/options_text.h"
#include "tests/frontend/options/options.h"
#include "tests/harness.h"

typedef struct Bound {
    const char *option, *legal, *illegal;
} Bound;

static const Bound bounds[] = {
    {"--loss", "cross_entropy,label_smoothing=0",
     "cross_entropy,label_smoothing=-1e-9"},
    {"--loss", "cross_entropy,label_smoothing=1",
     "cross_entropy,label_smoothing=1.0000001"},
    {"--loss", "cross_entropy,axis=7", "cross_entropy,axis=8"},
    {"--loss", "cross_entropy,axis=-8", "cross_entropy,axis=-9"},
    {"--loss", "cross_entropy,axis=1", "cross_entropy,axis=1.5"},
    {"--loss", "cross_entropy,ignore_index=-100",
     "cross_entropy,ignore_index=0.5"},
    {"--loss", "huber,delta=0.001", "huber,delta=0"},
    {"--loss", "huber,delta=0.001", "huber,delta=-1"},
    {"--loss", "huber,delta=0.001", "huber,delta=nan"},
    {"--loss", "huber,delta=0.001", "huber,delta="},
    {"--loss", "huber,delta=0.001", "huber,delta"},
    {"--loss", "cross_entropy,class_weights=0/1/2.5",
     "cross_entropy,class_weights=0/-1/2"},
    {"--loss", "nll,class_weights=1", "nll,class_weights=1/"},
    {"--loss", "nll,class_weights=1/2", "mse,class_weights=1/2"},
    {"--top-k", "2", "1"},
    {"--optimizer", "sgd,lr=0", "sgd,lr=-1e-9"},
    {"--optimizer", "sgd,lr=1e38", "sgd,lr=1e39"},
    {"--optimizer", "sgd,lr=1", "sgd,lr=inf"},
    {"--optimizer", "sgd,momentum=1", "sgd,momentum=1.0000001"},
    {"--optimizer", "sgd,momentum=0", "sgd,momentum=-1e-9"},
    {"--optimizer", "sgd,weight_decay=0", "sgd,weight_decay=-1e-9"},
    {"--optimizer", "sgd,momentum=0.1,nesterov", "sgd,nesterov"},
    {"--optimizer", "sgd,momentum=0.1,nesterov=1",
     "sgd,momentum=0.1,nesterov=2"},
    {"--optimizer", "adam,beta1=0", "adam,beta1=-1e-9"},
    {"--optimizer", "adam,beta1=0.9999999", "adam,beta1=1"},
    {"--optimizer", "adam,beta2=0.9999999", "adam,beta2=1"},
    {"--optimizer", "adam,eps=0", "adam,eps=-1e-9"},
    {"--optimizer", "adamw,weight_decay=0", "adamw,weight_decay=-1e-9"},
    {"--optimizer", "adam,lr=1", "adam,momentum=0.9"},
    {"--optimizer", "sgd,lr=1", "sgd,beta1=0.9"},
    {"--param-group", "w,lr_scale=0", "w,lr_scale=-1e-9"},
    {"--param-group", "w,weight_decay=0", "w,weight_decay=-1e-9"},
    {"--lr-schedule", "cosine,total=1", "cosine,total=0"},
    {"--lr-schedule", "cosine,warmup=4,total=5", "cosine,warmup=5,total=5"},
    {"--lr-schedule", "linear,warmup=4,total=5", "linear,warmup=5,total=5"},
    {"--lr-schedule", "cosine,total=5,min=0", "cosine,total=5,min=-1e-9"},
    {"--lr-schedule", "constant,warmup=0", "constant,warmup=-1"},
    {"--lr-schedule", "constant,warmup=2", "constant,warmup=2.5"},
    {"--lr-schedule", "step,every=1", "step,every=0"},
    {"--lr-schedule", "step,every=1", "step"},
    {"--lr-schedule", "step,every=1,gamma=0", "step,every=1,gamma=-1e-9"},
    {"--loss-scale", "static=1e30", "static=1e31"},
    {"--loss-scale", "static=1e-30", "static=0"},
    {"--loss-scale", "static=2", "static=inf"},
    {"--loss-scale", "dynamic,growth=1.001", "dynamic,growth=1"},
    {"--loss-scale", "dynamic,backoff=0.999", "dynamic,backoff=1"},
    {"--loss-scale", "dynamic,backoff=0.001", "dynamic,backoff=0"},
    {"--loss-scale", "dynamic,interval=1", "dynamic,interval=0"},
    {"--loss-scale", "dynamic,hysteresis=1", "dynamic,hysteresis=0"},
    {"--loss-scale", "dynamic,min=0", "dynamic,min=-1e-9"},
    {"--loss-scale", "dynamic,max=inf", "dynamic,max=nan"},
    {"--loss-scale", "dynamic,init=8,min=8,max=8",
     "dynamic,init=8,min=8,max=7"},
    {"--loss-scale", "none", "none,init=2"},
    {"--objective", "a,loss=mse", "a"},
    {"--objective", "a.b-C_1,loss=mse:y,params=w*", "a:b,loss=mse:y"},
    {"--objective", "a,loss=huber,delta=2,clip_norm=1", "a,loss=mse,delta=0"},
    {"--objective",
     "a,loss=mse,optimizer=sgd,lr=1,momentum=0.5,nesterov,lr_schedule=cosine,"
     "total=9,min=0.1,param_group=w,lr_scale=2,clip_value=3",
     "a,loss=mse,optimizer=sgd,beta1=0.5"},
    {"--objective", "a,params=w,loss=mse", "a,params=w,lr=1,loss=mse"},
    {"--objective", "a,loss=mse", "a,lr=1,loss=mse"},
    {"--objective", "a,loss=mse", ",loss=mse"},
    {"--clip-norm", "1e-30", "0"},
    {"--clip-norm", "1e30", "inf"},
    {"--clip-norm", "1", "-1"},
    {"--clip-value", "1e-30", "0"},
    {"--clip-value", "1", "1x"},
    {"--gradient", "agc", "agc,clip=0"},
    {"--gradient", "noise,eta=0,gamma=0", "noise,eta=-1"},
    {"--wrapper", "sam", "sam,rho=-1"},
    {"--wrapper", "lookahead,k=2", "lookahead,k=1.5"},
    {"--gradient", "agc,eps=1", "agcs"},
    {"--ema", "0.9", "1"},
    {"--ema", "0.9,every=2", "0.9,every=1.5"},
    {"--lora", "*attn*,rank=4", "fc,rank=0"},
    {"--lora", "fc,rank=1", "fc,rank=-1"},
    {"--lora", "fc,rank=65536", "fc,rank=65537"},
    {"--lora", "fc,alpha=1e-30", "fc,alpha=0"},
    {"--lora", "fc,dropout=0", "fc,dropout=-1e-9"},
    {"--lora", "fc,dropout=0.9999999", "fc,dropout=1"},
    {"--lora", "fc,dora=1", "fc,dora=2"},
    {"--lora", "fc,bias=all", "fc,bias=some"},
    {"--ia3", "fc,feedforward", "fc,rank=2"},
    {"--swa", "start=1", "every=2"},
    {"--swa", "start=1", "start=0"},
    {"--accumulate", "1", "0"},
    {"--remat", "1", "0"},
    {"--placement", "exact,residuals=0", "exact,residuals=-1"},
    {"--placement", "exact,residuals=inf", "pytorch,residuals=2"},
    {"--placement", "exact,residuals=fp16", "exact,residuals=fp32"},
    {"--placement", "exact,head=0", "exact,head=2"},
    {"--placement", "exact,head=1", "pytorch,head=0"},
    {"--remat", "none", "most"},
    {"--keep", "f8", "int8"},
    {"--logit-rows", "1", "0"},
    {"--logit-rows", "all", "none"},
    {"--logit-rows", "auto", "-1"},
    {"--accumulate", "16777216", "16777217"},
    {"--accumulate", "2", "2.5"},
    {"--seed", "0", "-1"},
    {"--seed", "9223372036854775807", "9223372036854775808"},
    {"--dim", "batch=0", "batch=-1"},
    {"--dim", "x:7=3", "x:8=3"},
    {"--dim", "x:0=3", "x:-1=3"},
    {"--dim", "a:b:0=3", "a:b=3"},
    {"--dim", "batch=9223372036854775807", "batch=9223372036854775808"},
    {"--loss", "mse", "mse,label_smoothing=0.1"},
    {"--loss", "l1", "l1,ignore_index=0"},
    {"--loss", "bce_with_logits", "bce_with_logits,class_weights=1/2"},
    {"--loss", "huber,delta=1", "huber,axis=1"},
    {"--loss", "nll,axis=1,class_weights=1/2", "nll,label_smoothing=0.1"},
    {"--loss", "cross_entropy,label_smoothing=0.1", "cross_entropy,delta=1"},
    {"--loss", "none", "none,axis=1"},
    {"--loss", "mse + l1", "mse + none"},
    {"--loss", "mse + 2*l1", "mse + inf*l1"},
    {"--loss", "-1*mse", "0*mse"},
    {"--loss", "triplet:a,b,c", "triplet:a,b"},
    {"--loss", "dice,smooth=0", "dice,gamma=1"},
    {"--loss", "quantile,q=1", "quantile,q=1.5"},
    {"--loss", "sigmoid_focal,alpha=-1", "sigmoid_focal,alpha=-2"},
    {"--lr-schedule", "constant,warmup=2", "constant,total=3"},
    {"--lr-schedule", "step,every=2,warmup=2", "step,every=2,total=3"},
    {"--lr-schedule", "cosine,total=3", "cosine,total=3,every=2"},
    {"--lr-schedule", "linear,total=3,min=1", "linear,total=3,gamma=0.5"},
    {"--lr-schedule", "cosine,total=40,warmup=5%", "constant,warmup=5%"},
    {"--lr-schedule", "cosine,total=40,warmup=97%",
     "cosine,total=40,warmup=100%"},
    {"--lr-schedule", "exponential,gamma=0.5", "exponential"},
    {"--lr-schedule", "polynomial,total=3,power=2", "polynomial,power=2"},
    {"--lr-schedule", "inverse_sqrt,warmup=1", "inverse_sqrt"},
    {"--lr-schedule", "cosine_restarts,every=4,multiply=1",
     "cosine_restarts,every=4,multiply=0"},
    {"--lr-schedule", "one_cycle,total=9,rise=1", "one_cycle,total=9,rise=1.1"},
    {"--lr-schedule", "one_cycle,total=9", "one_cycle,total=9,warmup=2"},
    {"--param-group", "*,lr_scale=2", "*"},
    {"--dim", "T=1|2", "T=0|2"},
    {"--dim", "T=1|2", "T=1|"},
    {"--dim", "T=1|2", "T=|2"},
    {"--dim", "T=1|9223372036854775807", "T=1|9223372036854775808"},
    {"--pad", "x=1", "x"},
    {"--pad", "x=1", "=1"},
    {"--pad", "x=1,y=0", "x=1,,y=0"},
    {"--pad", "x=-1.7e308", "x=inf"},
    {"--pad", "x=0", "x="},
    {"--batch-sizes", "1", "0"},
    {"--batch-sizes", "1,64", "1,,64"},
    {"--batch-sizes", "2147483647", "2147483648"},
    {"--symbol", "_a1", "1a"},
    {"--symbol", "a", "a-b"},
    {"--target", "cuda:sm_90", "cuda:sm_9"},
    {"--target", "cuda:sm_120", "cuda:sm_1200"},
    {"--target", "cpu:x86-64-v4", "cpu:x86-64-v5"},
    {"--target", "cpu:x86-64-v4+amx", "cpu:x86-64-v3+amx"},
    {"--target", "cpu:x86-64-v2", "cpu:x86-64-v1"},
};

/* Options of the only objective and --objective exclude each other. */
TEST_CASE(options, objectives_have_names_and_their_own_options) {
    static const struct {
        const char *option[2], *value[2], *why;
    } pairs[] = {
        {{"--loss", "--objective"},
         {"mse", "a,loss=mse"},
         "of each --objective"},
        {{"--clip-norm", "--objective"}, {"1", "a,loss=mse"}, "--objective"},
        {{"--objective", "--optimizer"}, {"a,loss=mse", "sgd"}, "--objective"},
        {{"--objective", "--objective"},
         {"a,loss=mse", "a,loss=l1"},
         "'a' was given already"},
        {{"--objective", "--objective"}, {"a,loss=mse", "b,loss=l1"}, NULL},
        {{"--objective", "--accumulate"}, {"a,loss=mse", "2"}, NULL},
        {{"--loss", "--loss"}, {"mse", "mse"}, "--objective NAME"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        Arena *a = arena_new();
        Diag d = {0};
        Options o;
        bool used;
        options_init(&o, a);
        REQUIRE(options_set(&o, &d, pairs[i].option[0], pairs[i].value[0],
                            &used) == OK);
        Status s =
            options_set(&o, &d, pairs[i].option[1], pairs[i].value[1], &used);
        CHECK_MSG((s == OK) == !pairs[i].why, "pair %zu", i);
        if (s != OK && pairs[i].why) CHECK_HAS(d.text.data, pairs[i].why);
        sb_free(&d.text);
        arena_free(a);
    }
}

TEST_CASE(options, bounds_are_exact) {
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        const Bound *b = &bounds[i];
        Diag good = {0}, bad = {0};
        CHECK_MSG(options_try(b->option, b->legal, &good) == OK,
                  "%s %s is refused", b->option, b->legal);
        if (CHECK_MSG(options_try(b->option, b->illegal, &bad) == ERR_USAGE,
                      "%s %s is taken", b->option, b->illegal))
            CHECK_HAS(bad.text.data, b->option);
        sb_free(&good.text);
        sb_free(&bad.text);
    }
}

/* A text's --dim and the command line's: for one symbol the last one counts. */
TEST_CASE(options, dims_of_a_text_are_replaced_one_by_one) {
    static const struct {
        const char *text, *line;
        int n;
        int64_t value[2]; /* of the list */
    } rows[] = {
        {"B=2", "B=3", 1, {3}},        {"B=2", "T=3", 2, {2, 3}},
        {"x:0=2", "x:1=3", 2, {2, 3}}, {"x:1=2", "x:1=3", 1, {3}},
        {"x:0=2", "x=3", 2, {2, 3}},   {"x:7=2", "y:7=3", 2, {2, 3}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Arena *a = arena_new();
        Diag d = {0};
        Options o;
        bool used;
        options_init(&o, a);
        REQUIRE(options_set(&o, &d, "--dim", rows[i].text, &used) == OK);
        options_second_source(&o);
        REQUIRE(options_set(&o, &d, "--dim", rows[i].line, &used) == OK);
        CHECK_EQ_INT(o.dims.len, rows[i].n);
        for (int k = 0; k < rows[i].n && k < o.dims.len; k++)
            CHECK_EQ_INT(o.dims.data[k].value, rows[i].value[k]);
        sb_free(&d.text);
        arena_free(a);
    }
}
