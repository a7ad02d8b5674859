#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what the optimizers' sources compute, for optimizers_test.

Run in a folder where the packages below are installed:

    pip install torch==2.15.0 timm==1.0.31 pytorch-optimizer==4.1.0 schedulefree==1.4.1 \
        prodigyopt==1.1.2
    python3 tests/optimizers/make.py > tests/optimizers/reference.txt

Parameters and gradients are doubles.  Each case trains three parameters for 20
steps; a letter says of each step whether a gradient overflows ('o': all are
left out, as a loss scaler does).  A case of groups gives m half the rate and a
weight decay of 0.05.
"""
import importlib
import math
import sys
import types
from importlib import metadata

import torch

SHAPES = {"a": (3,), "m": (5, 4), "c": (2, 3, 2)}
SIZE = [1, 0.05, 4, 0.4]
PLAIN = "." * 20
SKIPS = "...o......o........."


def gradients(i):
    """Numbers in [-1, 1), larger and smaller in turns."""
    state = 77 + i
    out = {}
    for name, shape in SHAPES.items():
        n = math.prod(shape)
        values = []
        for _ in range(n):
            for _ in range(3):
                state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            values.append(((state >> 40) / 2**23 - 1) * SIZE[i % 4])
        out[name] = torch.tensor(values, dtype=torch.float32).double().reshape(shape)
    return out


def initial(name):
    n = math.prod(SHAPES[name])
    values = [((37 * i + 11) % 64 - 32) / 32 for i in range(n)]
    return torch.tensor(values, dtype=torch.float64).reshape(SHAPES[name])


class Both:
    """torch's Muon for matrices, AdamW for the others."""

    def __init__(self, groups, lr, weight_decay=0.1, nesterov=True):
        self.param_groups = []
        self.parts = []
        for g in groups:
            for p in g["params"]:
                o = dict(g, params=[p])
                o.setdefault("lr", lr)
                o.setdefault("weight_decay", weight_decay)
                self.parts.append(torch.optim.Muon([o], nesterov=nesterov)
                                  if p.ndim == 2 else torch.optim.AdamW([o]))

    def step(self):
        for p in self.parts:
            p.step()


def zeropower(grad, coefficients, steps, eps):
    """torch's _zeropower_via_newtonschulz without its cast to bf16."""
    a, b, c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if grad.size(0) > grad.size(1) else x


def timm_file(name, folder="optim"):
    """timm/FOLDER/NAME.py without the rest of timm, which wants torchvision."""
    root = str(metadata.distribution("timm").locate_file("timm"))
    for package, path in (("timm", root), ("timm." + folder, root + "/" + folder)):
        module = sys.modules.setdefault(package, types.ModuleType(package))
        module.__path__ = [path]
    return importlib.import_module(f"timm.{folder}.{name}")


def adafactor(groups, lr, weight_decay=0.0):
    return torch.optim.Adafactor(groups, lr=lr, weight_decay=weight_decay,
                                 eps=(1.1920928955078125e-07, 1e-3))


def schedule_free(groups, **kw):
    from schedulefree import AdamWScheduleFree
    optimizer = AdamWScheduleFree(groups, foreach=False, **kw)
    optimizer.train()
    return optimizer


class scheduled_asgd(torch.optim.ASGD):
    def __init__(self, groups):
        super().__init__(groups, lr=0.1, lambd=0.05, foreach=False)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self, 0.9)

    def step(self):
        super().step()
        self.schedule.step()


def rprop(groups, scale=1.0):
    params = [p for g in groups for p in g["params"]]
    lists = [{"params": [p], "lr": 0.02 * (scale if p.dim() == 2 else 1)} for p in params]
    return torch.optim.Rprop(lists, step_sizes=(1e-6, 0.1), foreach=False)


def rprops():
    """It has no weight decay."""
    fp32 = " --precision fp32"
    for name, micro, extra, kw, make in (
            ("", PLAIN, fp32, {}, rprop), ("_decay_clip", PLAIN, fp32, {"clip": 0.8}, rprop),
            ("_groups", PLAIN, fp32 + " --param-group m,lr_scale=0.5", {},
             lambda groups: rprop(groups, 0.5)),
            ("_fp16", SKIPS, " --precision fp16", {}, rprop)):
        case("rprop" + name, "rprop,lr=0.02,most=0.1", make, micro, extra=extra, **kw)


def prodigies():
    from prodigyopt import Prodigy
    some = {"d0": 1e-2, "use_bias_correction": True, "safeguard_warmup": True}
    for name, options, micro, kw in (
            ("prodigy", "", PLAIN, {}),
            ("prodigy_all", ",d0=1e-2,d_coef=2.0,growth_rate=1.02,weight_decay=0.1,decouple=0,"
             "use_bias_correction,safeguard_warmup", PLAIN,
             {"d_coef": 2.0, "growth_rate": 1.02, "weight_decay": 0.1, "decouple": False, **some}),
            ("prodigy_fp16", ",d0=1e-2,d_coef=0.5", SKIPS, {"d0": 1e-2, "d_coef": 0.5})):
        case(name, "prodigy,lr=1.0" + options,
             lambda groups, kw=kw: Prodigy(groups, lr=1.0, **kw), micro,
             extra=" --precision " + ("fp16" if micro == SKIPS else "fp32"))
    for name, more in (("prodigy_decay_clip", {"clip": 0.8}),
                       ("prodigy_groups", {"groups": True, "scale": 1.0})):
        case(name, "prodigy,lr=1.0,d0=1e-2,weight_decay=0.1",
             lambda groups: Prodigy(groups, lr=1.0, d0=1e-2, weight_decay=0.1),
             extra=" --precision fp32", **more)


def transforms():
    """--gradient, before SGD with momentum."""
    from pytorch_optimizer.optimizer.gradient_centralization import centralize_gradient
    agc = timm_file("agc", "utils").adaptive_clip_grad

    def each(params):
        for p in params:
            torch.nn.utils.clip_grad_norm_([p], 0.5)

    def both(params):
        centralize_gradient([p.grad for p in params])
        agc(params, clip_factor=0.5, eps=0.01)

    for name, options, change in (
            ("agc", "agc", agc),
            ("agc_wide", "agc,clip=0.5,eps=0.01", lambda ps: agc(ps, clip_factor=0.5, eps=0.01)),
            ("clip_each", "clip_each,norm=0.5", each),
            ("centralize", "centralize", lambda ps: centralize_gradient([p.grad for p in ps])),
            ("sign", "sign", lambda ps: [p.grad.sign_() for p in ps]),
            ("both", "centralize --gradient agc,clip=0.5,eps=0.01", both)):
        case("gradient_" + name, "sgd,lr=0.1,momentum=0.9",
             lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
             extra=f" --gradient {options} --precision fp32", change=change)


def case(name, options, make, micro=PLAIN, clip=0, groups=False, extra="", change=None,
         scale=0.5):
    params = {n: torch.nn.Parameter(initial(n)) for n in SHAPES}
    lr = next(float(o[3:]) for o in options.split(",") if o.startswith("lr="))
    if groups:
        rest = [p for n, p in params.items() if n != "m"]
        lists = [{"params": rest},
                 {"params": [params["m"]], "lr": lr * scale, "weight_decay": 0.05}]
        extra += f" --param-group m,lr_scale={scale},weight_decay=0.05"
    else:
        lists = [{"params": list(params.values())}]
    if clip:
        extra += f" --clip-norm {clip}"
    optimizer = make(lists)
    print(f"case {name} {micro} --optimizer {options}{extra}")
    for i, letter in enumerate(micro):
        if letter == ".":
            for n, g in gradients(i).items():
                params[n].grad = g.clone()
            if clip:
                torch.nn.utils.clip_grad_norm_(params.values(), clip)
            if change:
                change(list(params.values()))
            optimizer.step()
        if i in (0, 4, 19):
            for n, p in params.items():
                values = " ".join(f"{v:.17g}" for v in p.detach().flatten().tolist())
                print(f"at {i} {n} {values}")


def four(name, options, cls, decay=0.1, fixed="", label="", **kw):
    """Plain, with all that a step has, with groups, and with fp16's skips."""
    lr = next(float(o[3:]) for o in options.split(",") if o.startswith("lr="))

    def made(**more):
        return lambda groups: cls(groups, **{"lr": lr, **kw, **more})
    fp32 = " --precision fp32"
    decayed = f"{name},{options},weight_decay={decay}{fixed}"
    plain = f"{name},{options}{fixed}"
    name += label
    case(name, plain, made(), extra=fp32)
    case(name + "_decay_clip", decayed, made(weight_decay=decay), clip=0.8, extra=fp32)
    case(name + "_groups", decayed, made(weight_decay=decay), groups=True, extra=fp32)
    case(name + "_fp16", decayed, made(weight_decay=decay), SKIPS,
         extra=" --precision fp16")


def main():
    import pytorch_optimizer
    lamb, lars = timm_file("lamb"), timm_file("lars")
    torch.optim._muon._zeropower_via_newtonschulz = zeropower
    o = torch.optim
    print(f"# tests/optimizers/make.py: torch {torch.__version__}, "
          f"timm {metadata.version('timm')}, pytorch-optimizer 4.1.0, prodigyopt 1.1.2")
    loop = {"foreach": False}
    four("sgd", "lr=0.1", o.SGD, **loop)
    four("sgd", "lr=0.1,momentum=0.9,nesterov", o.SGD, momentum=0.9, nesterov=True, label="_nesterov", **loop)
    four("adam", "lr=0.05", o.Adam, **loop)
    four("adamw", "lr=0.05", o.AdamW, **loop)
    four("adam", "lr=0.05,beta2=0.9,amsgrad", o.Adam, betas=(0.9, 0.9), amsgrad=True,
         label="_amsgrad", **loop)
    four("adamw", "lr=0.05,beta2=0.9,amsgrad", o.AdamW, betas=(0.9, 0.9), amsgrad=True,
         label="_amsgrad", **loop)
    four("asgd", "lr=0.1,lambd=0.05,t0=5.0", o.ASGD, lambd=0.05, t0=5.0, **loop)
    case("asgd_schedule", "asgd,lr=0.1,lambd=0.05", scheduled_asgd,
         extra=" --lr-schedule exponential,gamma=0.9 --precision fp32")
    rprops()
    four("rmsprop", "lr=0.02", o.RMSprop, **loop)
    four("rmsprop", "lr=0.02,alpha=0.9,momentum=0.8,centered", o.RMSprop,
         alpha=0.9, momentum=0.8, centered=True, eps=0.01, fixed=",eps=0.01", label="_centered", **loop)
    four("adagrad", "lr=0.1,lr_decay=0.03", o.Adagrad, lr_decay=0.03, **loop)
    four("adadelta", "lr=1.0", o.Adadelta, **loop)
    four("adamax", "lr=0.02", o.Adamax, **loop)
    four("nadam", "lr=0.02", o.NAdam, **loop)
    four("nadam", "lr=0.02,decoupled_weight_decay", o.NAdam, label="_decoupled",
         decoupled_weight_decay=True, **loop)
    four("radam", "lr=0.02,beta2=0.9", o.RAdam, betas=(0.9, 0.9), **loop)
    four("radam", "lr=0.02,decoupled_weight_decay", o.RAdam, label="_decoupled",
         decoupled_weight_decay=True, **loop)
    four("lion", "lr=0.02", pytorch_optimizer.Lion, weight_decouple=True)
    four("ademamix", "lr=0.02,beta3=0.99,alpha=5.0", pytorch_optimizer.AdEMAMix,
         betas=(0.9, 0.999, 0.99), alpha=5.0, weight_decouple=True)
    four("schedule_free_adamw", "lr=0.05", schedule_free)
    case("schedule_free_adamw_warmup", "schedule_free_adamw,lr=0.05,r=1.0,weight_lr_power=1.0",
         lambda groups: schedule_free(groups, lr=0.05, warmup_steps=6, r=1.0, weight_lr_power=1.0),
         extra=" --lr-schedule constant,warmup=6 --precision fp32")
    adopt, adan = timm_file("adopt"), timm_file("adan")
    four("adopt", "lr=0.02,beta2=0.99", adopt.Adopt, betas=(0.9, 0.99), foreach=False)
    case("adopt_decoupled", "adopt,lr=0.02,decoupled,weight_decay=0.1",
         lambda groups: adopt.Adopt(groups, lr=0.02, decoupled=True, weight_decay=0.1,
                                    foreach=False), extra=" --precision fp32")
    four("adan", "lr=0.02", adan.Adan, foreach=False)
    case("adan_no_prox", "adan,lr=0.02,no_prox,weight_decay=0.1",
         lambda groups: adan.Adan(groups, lr=0.02, no_prox=True, weight_decay=0.1,
                                  foreach=False), extra=" --precision fp32")
    four("lars", "lr=0.5,momentum=0.9", lars.Lars, momentum=0.9)
    four("lars", "lr=0.5,always_adapt", lars.Lars, always_adapt=True, label="_always")
    four("lamb", "lr=0.05", lamb.Lamb, max_grad_norm=None)
    four("adafactor", "lr=0.05", adafactor)
    four("muon", "lr=0.05", Both)
    four("muon", "lr=0.05,nesterov=0", Both, nesterov=False, label="_plain")
    prodigies()
    transforms()


if __name__ == "__main__":
    main()
