/* SPDX-License-Identifier: Apache-2.0 */
/* options_test.c: the last legal and the first illegal value, at both ends,
   for every number on the command line. */
#include <string.h>

#include "frontend/cli/options_text.h"
#include "ir/fn/optimizer.h"
#include "tests/frontend/options/options.h"
#include "tests/harness.h"

Status options_try(const char *option, const char *value, Diag *d) {
    Arena *a = arena_new();
    Options o;
    bool used;
    options_init(&o, a);
    Status s = options_set(&o, d, option, value, &used);
    arena_free(a);
    return s;
}

/* ---- what options change ------------------------------------------------- */

static const char *text(Str s) { return s ? s : "-"; }

/* Every field of the record, one per line; for lists their length and last
   entry. */
void options_dump(const Options *o, StrBuf *sb) {
    const Objective *j = &o->objectives.data[o->objectives.len - 1];
#define INT(f)        sb_printf(sb, #f "=%lld\n", (long long)(o->f))
#define REAL(f)       sb_printf(sb, #f "=%.17g\n", o->f)
#define TEXT(f)       sb_printf(sb, #f "=%s\n", text(o->f))
#define TEXT_OF(f, s) sb_printf(sb, #f "=%s\n", s)
#define OF_J(p, f, v) sb_printf(sb, #f "=" p "\n", (v)j->f)
#define J_INT(f)      OF_J("%lld", f, long long)
#define J_REAL(f)     OF_J("%.17g", f, double)
    INT(precision), INT(f8_products), INT(half_model), INT(keep_batchnorm),
        INT(master_weights);
    INT(placement), INT(fp16_residuals), REAL(residuals), INT(wide_head),
        INT(remat), INT(keep_f8), INT(logit_rows), INT(objectives.len);
    if (o->remat == REMAT_BYTES) INT(remat_bytes);
    INT(factors), INT(frozen_dtype), REAL(max_error[ERROR_LOSS]),
        REAL(max_error[ERROR_GRADIENT]);
    for (int i = 0; i < o->calibrate.len; i++)
        sb_printf(sb, "calibrate %d=%s\n", i, o->calibrate.data[i]);
    for (int i = 0; i < o->max_trips.len; i++)
        sb_printf(sb, "trips %d=%s %lld\n", i, text(o->max_trips.data[i].glob),
                  (long long)o->max_trips.data[i].most);
    for (int i = 0; i < o->set_inputs.len; i++) {
        const InputValue *x = &o->set_inputs.data[i];
        sb_printf(sb, "set %d=%s", i, x->name);
        for (int k = 0; k < x->numbers.len; k++)
            sb_printf(sb, " %.17g %d %lld", x->numbers.data[k].real,
                      x->numbers.data[k].is_whole,
                      (long long)x->numbers.data[k].whole);
        sb_puts(sb, "\n");
    }
    INT(accumulate), INT(scale.kind), REAL(scale.init), REAL(scale.growth);
    REAL(scale.backoff), REAL(scale.min), REAL(scale.max), INT(scale.interval);
    INT(scale.hysteresis), INT(comm_bucket), INT(dims.len);
    TEXT_OF(comm_dtype, dtype_info[o->comm_dtype].text);
    TEXT_OF(gradient_dtype, dtype_info[o->gradient_dtype].text);
    TEXT_OF(state_dtype, dtype_info[o->state_dtype].text), INT(masters);
    INT(f8_scales), INT(shard_optimizer), INT(clip_previous),
        INT(optimizer_in_backward), INT(sync_batchnorm), INT(heads.len);
    INT(train_rules.len), INT(batchnorm_train), INT(batchnorm_unbiased),
        INT(batchnorm_cumulative);
    INT(batchnorm_frozen.len), INT(dropout), INT(accept_folded);
    INT(targets.len), INT(sidecar_weights), INT(top_k), INT(time_passes);
    INT(debug_nonfinite), INT(count_underflow), TEXT(amp_policy), TEXT(dump_ir);
    TEXT(emit_c), TEXT(emit_cuda), TEXT(emit_onnx), TEXT(report), TEXT(cache);
    TEXT(tile), TEXT(symbol), INT(seed), INT(quick), INT(no_fuse), INT(shuffle);
    J_INT(transforms.len);
    for (int i = 0; i < j->transforms.len; i++) {
        const TransformSpec *t = &j->transforms.data[i];
        sb_printf(sb, "transform %d=%s\n", i, t->fn->info.text);
        for (int k = 0; k < t->keys.len; k++)
            sb_printf(sb, "transform %d.%s=%.17g\n", i,
                      t->keys.data[k].key->name, t->keys.data[k].value);
    }
    INT(average.buffers);
    TEXT_OF(average, o->average.fn ? o->average.fn : "-");
    for (int i = 0; i < o->adapters.len; i++) {
        const AdapterSpec *l = &o->adapters.data[i];
        sb_printf(sb, "%s.feedforward=%d\n", l->option, l->feedforward);
        sb_printf(sb, "lora=%s\nlora.rank=%lld\nlora.alpha=%.17g\n", l->glob,
                  (long long)l->rank, l->alpha);
        sb_printf(sb, "lora.dropout=%.17g\nlora.bias=%d\n", l->dropout,
                  (int)l->bias);
    }
    for (int i = 0; i < AVERAGE_KEYS && o->average.keys[i].name; i++)
        sb_printf(sb, "average.%s=%.17g\n", o->average.keys[i].name,
                  o->average.keys[i].value);
    sb_printf(sb, "name=%s\nloss=%s\n", j->name,
              j->loss.fn ? j->loss.fn->loss : "-");
    J_INT(loss.kind), J_REAL(loss.factor), J_INT(loss.outputs.len);
    J_INT(added.len);
    for (int i = 0; i < j->loss.outputs.len; i++)
        sb_printf(sb, "output %d=%s\n", i, j->loss.outputs.data[i]);
    for (int i = 0; i < j->loss.keys.len; i++)
        sb_printf(sb, "loss.%s=%.17g\n", j->loss.keys.data[i].key->name,
                  j->loss.keys.data[i].value);
    for (int i = 0; i < j->loss.class_weights.len; i++)
        sb_printf(sb, "weight %d=%g\n", i, j->loss.class_weights.data[i]);
    sb_printf(sb, "optimizer=%s\n", j->optimizer.fn->info.text);
    J_REAL(optimizer.lr);
    for (int i = 0; i < j->optimizer.keys.len; i++)
        sb_printf(sb, "optimizer.%s=%.17g\n",
                  j->optimizer.keys.data[i].key->name,
                  j->optimizer.keys.data[i].value);
    J_INT(wrappers.len);
    for (int i = 0; i < j->wrappers.len; i++) {
        const OptimizerSpec *w = &j->wrappers.data[i];
        sb_printf(sb, "wrapper %d=%s\n", i, w->fn->info.text);
        for (int k = 0; k < w->keys.len; k++)
            sb_printf(sb, "wrapper %d.%s=%.17g\n", i, w->keys.data[k].key->name,
                      w->keys.data[k].value);
    }
    sb_printf(sb, "schedule=%s\n", j->schedule.row->word);
    for (int i = 0; i < SCHEDULE_KEYS; i++)
        sb_printf(sb, "schedule.%s=%g\n", schedule_keys[i].name,
                  j->schedule.key[i]);
    J_REAL(clip_norm), J_REAL(clip_value);
    for (int i = 0; i < j->params.len; i++)
        sb_printf(sb, "params %d=%s\n", i, j->params.data[i]);
    for (int i = 0; i < j->param_groups.len; i++) {
        const ParamGroup *g = &j->param_groups.data[i];
        sb_printf(sb, "group %d=%s %g %g\n", i, g->glob, g->lr_scale,
                  g->weight_decay);
    }
    for (int i = 0; i < o->dims.len; i++)
        sb_printf(sb, "dim %d=%s:%d %lld\n", i, o->dims.data[i].name,
                  o->dims.data[i].axis, (long long)o->dims.data[i].value);
    for (int i = 0; i < o->dim_sizes.len; i++) {
        const DimSizes *d = &o->dim_sizes.data[i];
        sb_printf(sb, "sizes %d=%s:%d", i, d->name, d->axis);
        for (int k = 0; k < d->sizes.len; k++)
            sb_printf(sb, " %lld", (long long)d->sizes.data[k]);
        sb_puts(sb, "\n");
    }
    for (int i = 0; i < o->pads.len; i++)
        sb_printf(sb, "pad %d=%s %g\n", i, o->pads.data[i].input,
                  o->pads.data[i].value);
    for (int i = 0; i < o->batch_sizes.len; i++)
        sb_printf(sb, "batch %d=%lld\n", i, (long long)o->batch_sizes.data[i]);
    for (int i = 0; i < o->heads.len; i++)
        sb_printf(sb, "head %d=%s:%d %lld\n", i, o->heads.data[i].name,
                  o->heads.data[i].axis, (long long)o->heads.data[i].value);
    for (int i = 0; i < o->train_rules.len; i++)
        sb_printf(sb, "rule %d=%s %d\n", i, o->train_rules.data[i].glob,
                  o->train_rules.data[i].train);
    for (int i = 0; i < o->batchnorm_frozen.len; i++)
        sb_printf(sb, "frozen %d=%s\n", i, o->batchnorm_frozen.data[i]);
    for (int i = 0; i < o->targets.len; i++)
        sb_printf(sb, "target %d=%d %d %s\n", i, o->targets.data[i].cuda,
                  o->targets.data[i].isa, text(o->targets.data[i].arch));
}

/* Lines of `after` that are not in `before`, separated by "; ". */
static void changes(const char *before, const char *after, StrBuf *sb) {
    for (const char *s = after; *s;) {
        size_t n = strcspn(s, "\n") + 1;
        const char *old = before;
        while (*old && strncmp(old, s, n) != 0) old += strcspn(old, "\n") + 1;
        if (!*old) sb_printf(sb, "%s%.*s", sb->len ? "; " : "", (int)n - 1, s);
        s += n;
    }
}

const OptionRow options_settings[] = {
    {"--precision", "fp16", "precision=2"},
    {"--precision", "fp32", "precision=0"},
    {"--precision", "O0", "precision=0"},
    {"--precision", "O1", "precision=2"},
    {"--precision", "O1:bf16", ""},
    {"--precision", "O2",
     "precision=2; half_model=1; keep_batchnorm=1; master_weights=1"},
    {"--precision", "O2:bf16,keep_batchnorm=0",
     "half_model=1; master_weights=1"},
    {"--precision", "O3,master_weights",
     "precision=2; half_model=1; master_weights=1"},
    {"--placement", "pytorch", "placement=1; fp16_residuals=0; wide_head=0"},
    {"--placement", "exact,head=0", "wide_head=0"},
    {"--placement", "exact,head=0,residuals=inf,head", "fp16_residuals=0"},
    {"--placement", "exact,residuals=2", "fp16_residuals=0; residuals=2"},
    {"--placement", "exact,residuals=inf", "fp16_residuals=0"},
    {"--placement", "exact,residuals=fp16", ""},
    {"--placement", "exact,residuals=2,residuals=fp16", "residuals=2"},
    {"--remat", "auto", ""},
    {"--remat", "none", "remat=1"},
    {"--remat", "12345", "remat=2; remat_bytes=12345"},
    {"--logit-rows", "auto", ""},
    {"--logit-rows", "all", "logit_rows=0"},
    {"--logit-rows", "64", "logit_rows=64"},
    {"--loss", "huber,delta=3:y",
     "loss=huber; loss.kind=3; loss.outputs.len=1; output 0=y; loss.delta=3"},
    {"--loss", "cross_entropy,axis=-2",
     "loss=cross_entropy; loss.kind=3; loss.axis=-2; "
     "loss.ignore_index=-100; loss.label_smoothing=0"},
    {"--loss", "nll,ignore_index=7",
     "loss=nll; loss.kind=3; loss.ignore_index=7"},
    {"--loss", "cross_entropy,label_smoothing=0.25",
     "loss=cross_entropy; loss.kind=3; loss.ignore_index=-100; "
     "loss.label_smoothing=0.25"},
    {"--loss", "nll,class_weights=1/2.5/0",
     "loss=nll; loss.kind=3; loss.ignore_index=-100; weight 0=1; weight 1=2.5; "
     "weight 2=0"},
    {"--loss", "none", "loss.kind=1"},
    {"--loss", "mse", "loss=mse; loss.kind=3"},
    {"--loss", "l1", "loss=l1; loss.kind=3"},
    {"--loss", "bce_with_logits", "loss=bce_with_logits; loss.kind=3"},
    {"--loss", "host", "loss.kind=2"},
    {"--loss", "hinge,squared=1",
     "loss=hinge; loss.kind=3; loss.margin=1; loss.squared=1"},
    {"--loss", "smooth_l1,beta=2", "loss=smooth_l1; loss.kind=3; loss.beta=2"},
    {"--loss", "quantile,q=0.25", "loss=quantile; loss.kind=3; loss.q=0.25"},
    {"--loss", "ctc,blank=1,zero_infinity=1",
     "loss=ctc; loss.kind=3; loss.blank=1; loss.zero_infinity=1"},
    {"--loss", "kl_div,log_target=1",
     "loss=kl_div; loss.kind=3; loss.log_target=1"},
    {"--loss", "triplet,eps=0.5",
     "loss=triplet; loss.kind=3; loss.margin=1; loss.eps=0.5"},
    {"--loss", "info_nce,temperature=2",
     "loss=info_nce; loss.kind=3; loss.temperature=2"},
    {"--loss", "sigmoid_dice,smooth=2",
     "loss=sigmoid_dice; loss.kind=3; loss.smooth=2"},
    {"--loss", "sigmoid_focal,alpha=0.5,gamma=1",
     "loss=sigmoid_focal; loss.kind=3; loss.alpha=0.5; loss.gamma=1"},
    {"--loss", "0.5*mse:y",
     "loss=mse; loss.kind=3; loss.factor=0.5; loss.outputs.len=1; output 0=y"},
    {"--loss", "l1:a + 2*focal,gamma=1:b",
     "loss=l1; loss.kind=3; loss.outputs.len=1; added.len=1; output 0=a"},
    {"--loss", "l1:a+b+2*focal,gamma=1:b",
     "loss=l1; loss.kind=3; loss.outputs.len=1; added.len=1; output 0=a+b"},
    {"--loss", "triplet,margin=2:a,b,c",
     "loss=triplet; loss.kind=3; loss.outputs.len=3; output 0=a; output 1=b; "
     "output 2=c; loss.margin=2; loss.eps=9.9999999999999995e-07"},
    {"--optimizer", "sgd,momentum=0.5,nesterov",
     "optimizer=sgd; optimizer.weight_decay=0; optimizer.momentum=0.5; "
     "optimizer.nesterov=1"},
    {"--optimizer", "sgd,lr=0.75",
     "optimizer=sgd; optimizer.lr=0.75; optimizer.weight_decay=0; "
     "optimizer.momentum=0; optimizer.nesterov=0"},
    {"--optimizer", "sgd,weight_decay=0.75",
     "optimizer=sgd; optimizer.weight_decay=0.75; optimizer.momentum=0; "
     "optimizer.nesterov=0"},
    {"--optimizer", "adamw,lr=0.5", "optimizer.lr=0.5"},
    {"--optimizer", "adamw,beta1=0.5", "optimizer.beta1=0.5"},
    {"--optimizer", "adamw,beta2=0.5", "optimizer.beta2=0.5"},
    {"--optimizer", "adamw,eps=0.5", "optimizer.eps=0.5"},
    {"--optimizer", "adamw,weight_decay=0.5", "optimizer.weight_decay=0.5"},
    {"--param-group", "b*,lr_scale=2", "group 0=b* 2 nan"},
    {"--param-group", "b*,weight_decay=0", "group 0=b* nan 0"},
    {"--lr-schedule", "cosine,total=9,warmup=4,min=0.5",
     "schedule=cosine; schedule.warmup=4; schedule.total=9; "
     "schedule.min=0.5"},
    {"--lr-schedule", "cosine,warmup=5%,total=41",
     "schedule=cosine; schedule.warmup=3; schedule.total=41"},
    {"--lr-schedule", "exponential,gamma=0.5",
     "schedule=exponential; schedule.every=1; schedule.gamma=0.5"},
    {"--lr-schedule", "polynomial,total=3,power=2",
     "schedule=polynomial; schedule.total=3; schedule.power=2"},
    {"--lr-schedule", "inverse_sqrt,warmup=7",
     "schedule=inverse_sqrt; schedule.warmup=7"},
    {"--lr-schedule", "cosine_restarts,every=4,multiply=2",
     "schedule=cosine_restarts; schedule.every=4; schedule.multiply=2"},
    {"--lr-schedule", "one_cycle,total=9,rise=0.25,div=5,final_div=50",
     "schedule=one_cycle; schedule.total=9; schedule.rise=0.25; "
     "schedule.div=5; schedule.final_div=50"},
    {"--lr-schedule", "linear,total=9", "schedule=linear; schedule.total=9"},
    {"--lr-schedule", "step,every=3,gamma=0.5",
     "schedule=step; schedule.every=3; schedule.gamma=0.5"},
    {"--clip-norm", "3", "clip_norm=3"},
    {"--clip-value", "3", "clip_value=3"},
    {"--gradient", "agc,clip=0.5,eps=0.25",
     "transforms.len=1; transform 0=gradient_agc; transform 0.clip=0.5; "
     "transform 0.eps=0.25"},
    {"--gradient", "noise,eta=0.5,gamma=0.25",
     "transforms.len=1; transform 0=gradient_noise; transform 0.eta=0.5; "
     "transform 0.gamma=0.25"},
    {"--wrapper", "sam,rho=0.5,adaptive",
     "wrappers.len=1; wrapper 0=sam; wrapper 0.rho=0.5; "
     "wrapper 0.adaptive=1"},
    {"--wrapper", "lookahead,k=7,alpha=0.25",
     "wrappers.len=1; wrapper 0=lookahead; wrapper 0.k=7; "
     "wrapper 0.alpha=0.25"},
    {"--objective", "a,loss=mse,wrapper=sam,rho=0.25",
     "name=a; loss=mse; loss.kind=3; wrappers.len=1; wrapper 0=sam; "
     "wrapper 0.rho=0.25; wrapper 0.adaptive=0"},
    {"--gradient", "clip_each,norm=3",
     "transforms.len=1; transform 0=gradient_clip_each; transform 0.norm=3"},
    {"--ema", "0.5,warmup=2,power=0.5,every=4,after=3,buffers=average",
     "average.buffers=1; average=average_ema; average.decay=0.5; "
     "average.warmup=2; average.power=0.5; average.every=4; average.after=3"},
    {"--lora", "fc,rank=2,bias=lora_only,alpha=3,dropout=0.5",
     "--lora.feedforward=0; lora=fc; lora.rank=2; lora.alpha=3; "
     "lora.dropout=0.5; lora.bias=1"},
    {"--ia3", "fc,feedforward",
     "--ia3.feedforward=1; lora=fc; lora.rank=0; lora.alpha=0; "
     "lora.dropout=0; lora.bias=0"},
    {"--swa", "start=7,every=2,buffers=copy",
     "average=average_swa; average.start=7; average.every=2"},
    {"--accumulate", "3", "accumulate=3"},
    {"--loss-scale", "none", "scale.kind=1"},
    {"--loss-scale", "static=8", "scale.kind=2; scale.init=8"},
    {"--loss-scale", "dynamic,init=8", "scale.kind=3; scale.init=8"},
    {"--loss-scale", "dynamic,growth=3", "scale.kind=3; scale.growth=3"},
    {"--loss-scale", "dynamic,backoff=0.25",
     "scale.kind=3; scale.backoff=0.25"},
    {"--loss-scale", "dynamic,interval=3", "scale.kind=3; scale.interval=3"},
    {"--loss-scale", "dynamic,hysteresis=3",
     "scale.kind=3; scale.hysteresis=3"},
    {"--loss-scale", "dynamic,min=3", "scale.kind=3; scale.min=3"},
    {"--loss-scale", "dynamic,max=inf", "scale.kind=3; scale.max=inf"},
    {"--comm-bucket", "3", "comm_bucket=3"},
    {"--comm-dtype", "bf16", "comm_dtype=bf16"},
    {"--comm-dtype", "fp16", "comm_dtype=f16"},
    {"--comm-dtype", "fp32", ""},
    {"--shard-optimizer", NULL, "shard_optimizer=1"},
    {"--clip-previous", NULL, "clip_previous=1"},
    {"--optimizer-in-backward", NULL, "optimizer_in_backward=1"},
    {"--precision", "f8", "f8_products=1"},
    {"--f8-scales", "current", ""},
    {"--f8-scales", "delayed", "f8_scales=1"},
    {"--f8-scales", "block", "f8_scales=2"},
    {"--keep", "same", ""},
    {"--keep", "f8", "keep_f8=1"},
    {"--frozen-dtype", "bf16", "frozen_dtype=1"},
    {"--frozen-dtype", "int8", "frozen_dtype=2"},
    {"--frozen-dtype", "int4", "frozen_dtype=3"},
    {"--frozen-dtype", "nf4", "frozen_dtype=4"},
    {"--matmul-precision", "highest", ""},
    {"--matmul-precision", "high", "factors=1"},
    {"--matmul-precision", "medium", "factors=2"},
    {"--max-loss-error", "0.5", "max_error[ERROR_LOSS]=0.5"},
    {"--max-gradient-error", "0.25", "max_error[ERROR_GRADIENT]=0.25"},
    {"--calibrate", "x=f", "calibrate 0=x=f"},
    {"--max-trips", "7", "trips 0=- 7"},
    {"--max-trips", "a=b*=4096", "trips 0=a=b* 4096"},
    {"--set", "x=2", "set 0=x 2 1 2"},
    {"--set", "a=b=-1,1e3,9007199254740993",
     "set 0=a=b -1 1 -1 1000 1 1000 9007199254740992 1 9007199254740993"},
    {"--gradient-dtype", "fp32", ""},
    {"--gradient-dtype", "bf16", "gradient_dtype=bf16"},
    {"--state-dtype", "fp32", ""},
    {"--state-dtype", "bf16", "state_dtype=bf16"},
    {"--state-dtype", "int8", "state_dtype=i8"},
    {"--state-dtype", "f8", "state_dtype=f8e4m3"},
    {"--masters", "fp32", ""},
    {"--masters", "kahan", "masters=1"},
    {"--masters", "none", "masters=2"},
    {"--sync-batchnorm", NULL, "sync_batchnorm=1"},
    {"--dim", "b=3", "dims.len=1; dim 0=b:-1 3"},
    {"--dim", "x:y:2=3", "dims.len=1; dim 0=x:y:2 3"},
    {"--dim", "a=b=3", "dims.len=1; dim 0=a=b:-1 3"},
    {"--dim", "T=8|4|8|6", "dims.len=1; dim 0=T:-1 8; sizes 0=T:-1 4 6 8"},
    {"--dim", "x:1=4|4", "dims.len=1; dim 0=x:1 4"},
    {"--pad", "x=0,a=b=-1.5,x=2", "pad 0=x 2; pad 1=a=b -1.5"},
    {"--batch-sizes", "4,1,4", "batch 0=4; batch 1=1"},
    {"--replace-head", "y=5", "heads.len=1; head 0=y:-1 5"},
    {"--train", "w*", "train_rules.len=1; rule 0=w* 1"},
    {"--freeze", "w*", "train_rules.len=1; rule 0=w* 0"},
    {"--batchnorm", "train", ""},
    {"--batchnorm", "train:population", "batchnorm_unbiased=0"},
    {"--batchnorm", "train:unbiased", "batchnorm_unbiased=1"},
    {"--batchnorm", "train:momentum", "batchnorm_cumulative=0"},
    {"--batchnorm", "train:cumulative", "batchnorm_cumulative=1"},
    {"--batchnorm", "frozen", "batchnorm_frozen.len=1; frozen 0=*"},
    {"--batchnorm", "frozen:a*", "batchnorm_frozen.len=1; frozen 0=a*"},
    {"--dropout", "off", "dropout=0"},
    {"--dropout", "on", ""},
    {"--accept-folded", NULL, "accept_folded=1"},
    {"--target", "cpu",
     "targets.len=4; target 0=0 2 -; target 1=0 3 -; target 2=0 4 -; "
     "target 3=0 5 -"},
    {"--target", "cpu:x86-64-v4+amx", "targets.len=1; target 0=0 5 -"},
    {"--target", "c", "targets.len=1; target 0=0 1 -"},
    {"--target", "cuda",
     "targets.len=3; target 0=1 0 sm_90; target 1=1 0 sm_80; target 2=1 0 "
     "ptx"},
    {"--target", "cpu:x86-64-v3,cuda:ptx",
     "targets.len=2; target 0=0 3 -; target 1=1 0 ptx"},
    {"--weights", "sidecar", "sidecar_weights=1"},
    {"--weights", "embed", ""},
    {"--amp-policy", "f", "amp_policy=f"},
    {"--dump-ir", "f", "dump_ir=f"},
    {"--emit-c", "f", "emit_c=f"},
    {"--emit-cuda", "f", "emit_cuda=f"},
    {"--emit-onnx", "f", "emit_onnx=f"},
    {"--report", "f", "report=f"},
    {"--cache", "f", "cache=f"},
    {"--tile", "f", "tile=f"},
    {"--time-passes", NULL, "time_passes=1"},
    {"--count-underflow", NULL, "count_underflow=1"},
    {"--debug-nonfinite", NULL, "debug_nonfinite=1"},
    {"--symbol", "f", "symbol=f"},
    {"--seed", "3", "seed=3"},
    {"--top-k", "3", "top_k=3"},
    {"--quick", NULL, "quick=1"},
    {"--no-fuse", NULL, "no_fuse=1"},
    {"--shuffle", "3", "shuffle=3"},
    {"--objective",
     "a,loss=huber,delta=3:y,params=w*,params=b*,clip_norm=2,clip_value=4",
     "name=a; loss=huber; loss.kind=3; loss.outputs.len=1; output 0=y; "
     "loss.delta=3; clip_norm=2; "
     "clip_value=4; params 0=w*; params 1=b*"},
    {"--objective",
     "a,loss=mse,optimizer=sgd,lr=0.75,lr_schedule=step,every=3,"
     "param_group=w*,lr_scale=2",
     "name=a; loss=mse; loss.kind=3; optimizer=sgd; optimizer.lr=0.75; "
     "optimizer.weight_decay=0; optimizer.momentum=0; optimizer.nesterov=0; "
     "schedule=step; schedule.every=3; "
     "schedule.gamma=0.1; "
     "group 0=w* 2 nan"},
};
const int options_nsetting = sizeof options_settings / sizeof *options_settings;

/* The compiler's options, as options.def has them, and their values. */
static const struct {
    const char *name, *kind, *value;
} of_compiler[] = {
#define COMPILE(flag, kind, what, resume, value, preset, text)                 \
    {flag, #kind, value},
#include "frontend/cli/options.def"
};

static bool given_once(const char *option) {
    size_t i = 0;
    while (strcmp(of_compiler[i].name, option) != 0) i++;
    return !strcmp(of_compiler[i].kind, "SETTER") ||
           !strcmp(of_compiler[i].kind, "PATH");
}

/* Options in a text, then on the command line, which takes precedence. */
static const struct {
    const char *option, *text, *line;
} said_twice[] = {
    {"--loss", "cross_entropy,label_smoothing=0.3:y", "cross_entropy"},
    {"--loss", "cross_entropy,ignore_index=3,axis=1", "nll"},
    {"--loss", "huber,delta=3", "huber"},
    {"--loss-scale", "dynamic,init=8,interval=3,max=16", "dynamic"},
    {"--loss-scale", "static=8", "dynamic,interval=3"},
    {"--optimizer", "sgd,momentum=0.5,nesterov", "sgd,lr=1"},
    {"--lr-schedule", "step,every=3", "cosine,total=3"},
    {"--precision", "O2,keep_batchnorm=0", "fp16"},
    {"--placement", "exact,residuals=1", "exact"},
    {"--batchnorm", "frozen:a*", "train"},
    {"--batchnorm", "frozen", "frozen:a*"},
    {"--target", "cpu:x86-64-v2", "cpu:x86-64-v3"},
    {"--batch-sizes", "1,2", "3"},
};

static void check_wins(const char *option, const char *text, const char *line) {
    Arena *a = arena_new();
    Diag d = {0};
    Options both, alone;
    StrBuf got = {0}, want = {0};
    bool used;
    options_init(&both, a);
    options_init(&alone, a);
    CHECK_EQ_INT(options_set(&both, &d, option, text, &used), OK);
    options_second_source(&both);
    CHECK_EQ_INT(options_set(&both, &d, option, line, &used), OK);
    CHECK_EQ_INT(options_set(&alone, &d, option, line, &used), OK);
    options_dump(&both, &got);
    options_dump(&alone, &want);
    CHECK_MSG(!strcmp(got.data, want.data), "%s %s, then %s", option, text,
              line);
    sb_free(&got);
    sb_free(&want);
    sb_free(&d.text);
    arena_free(a);
}

/* Also every two values of an option that may be given once. */
TEST_CASE(options, the_command_line_wins) {
    for (size_t i = 0; i < sizeof said_twice / sizeof *said_twice; i++)
        check_wins(said_twice[i].option, said_twice[i].text,
                   said_twice[i].line);
    int pairs = 0;
    for (int i = 0; i < options_nsetting; i++)
        for (int k = 0; k < options_nsetting; k++) {
            const OptionRow *text = &options_settings[i],
                            *line = &options_settings[k];
            if (!given_once(text->option) ||
                strcmp(text->option, line->option) != 0)
                continue;
            check_wins(text->option, text->value, line->value);
            pairs++;
        }
    CHECK(pairs > 500);
}

/* Each option has a row above, and so has each of its words, as in
   "fp32|bf16". */
TEST_CASE(options, every_word_is_tried) {
    for (size_t i = 0; i < sizeof of_compiler / sizeof *of_compiler; i++) {
        const char *option = of_compiler[i].name, *word = of_compiler[i].value;
        if (!word ||
            word[strspn(word, "abcdefghijklmnopqrstuvwxyz0123456789|:")])
            word = ""; /* other values, or none */
        for (; word; word = strchr(word, '|') ? strchr(word, '|') + 1 : NULL) {
            size_t n = strcspn(word, "|");
            int rows = 0;
            for (int k = 0; k < options_nsetting; k++) {
                const OptionRow *r = &options_settings[k];
                rows += !strcmp(r->option, option) &&
                        (!n || (r->value && strlen(r->value) == n &&
                                !strncmp(r->value, word, n)));
            }
            CHECK_MSG(rows > 0, "no row for %s %.*s", option, (int)n, word);
        }
    }
}

TEST_CASE(options, each_key_sets_its_field_and_no_other) {
    for (int i = 0; i < options_nsetting; i++) {
        Arena *a = arena_new();
        Diag d = {0};
        Options o;
        StrBuf before = {0}, after = {0}, got = {0};
        bool used;
        options_init(&o, a);
        options_dump(&o, &before);
        Status s = options_set(&o, &d, options_settings[i].option,
                               options_settings[i].value, &used);
        CHECK_MSG(s == OK, "%s", s == OK ? "" : d.text.data);
        CHECK_EQ_INT(used, options_settings[i].value != NULL);
        options_dump(&o, &after);
        changes(before.data, after.data, &got);
        CHECK_MSG(!strcmp(got.len ? got.data : "", options_settings[i].want),
                  "%s %s\n  sets %s\n  not  %s", options_settings[i].option,
                  options_settings[i].value, got.len ? got.data : "nothing",
                  options_settings[i].want);
        sb_free(&before);
        sb_free(&after);
        sb_free(&got);
        sb_free(&d.text);
        arena_free(a);
    }
}

/* Lines of a `train` block, with the values that the command line accepts. */
TEST_CASE(options, lines_of_a_block) {
    static const struct {
        const char *line, *want, *why;
    } rows[] = {{"accumulate = 3", "accumulate=3", NULL},
                {"accumulate=3", "accumulate=3", NULL},
                {"accumulate 3", NULL, "'=' expected after the name"},
                {"loss_scale = dynamic, \tgrowth=3",
                 "scale.kind=3; scale.growth=3", NULL},
                {"symbol = \"f\"", "symbol=f", NULL},
                {"symbol = \"f", NULL, "is not a C identifier"},
                {"shard_optimizer", "shard_optimizer=1", NULL},
                {"shard_optimizer = 1", NULL, "takes no value"},
                {"accumulate", NULL, "needs a value"},
                {"report = f", NULL, "is an option of the command line"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Arena *a = arena_new();
        Diag d = {0};
        Options o;
        StrBuf before = {0}, after = {0}, got = {0};
        options_init(&o, a);
        options_dump(&o, &before);
        Status s = options_set_line(
            &o, &d, &(Setting){.text = rows[i].line, .loc.file = "x.amp"});
        options_dump(&o, &after);
        changes(before.data, after.data, &got);
        if (rows[i].want) {
            CHECK_EQ_INT(s, OK);
            CHECK_STR(got.len ? got.data : "", rows[i].want);
        } else {
            CHECK_EQ_INT(s, ERR_USER);
            CHECK_HAS(d.text.data, rows[i].why);
        }
        sb_free(&before);
        sb_free(&after);
        sb_free(&got);
        sb_free(&d.text);
        arena_free(a);
    }
}
