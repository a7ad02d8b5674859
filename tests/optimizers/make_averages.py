#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records averages of parameters by PyTorch's and timm's own code, for
averages_test, beside the steps of make.py in this folder.

    pip install torch==2.15.0 timm==1.0.31
    python3 tests/optimizers/make_averages.py > tests/optimizers/averages.txt

All is in doubles.  A case trains make.py's parameters by SGD; the letters say
which steps overflow, and are left out.  The case of buffers is a BatchNorm1d
over three channels, of which PyTorch averages the running statistics too.
"""
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import make
from make import PLAIN, SHAPES, SKIPS, gradients, initial, timm_file


class Parameters(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for n in SHAPES:
            setattr(self, n, torch.nn.Parameter(initial(n)))


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = torch.nn.BatchNorm1d(3).double()

    def forward(self, x):
        return (self.bn(x) * x).sum()


def show(step, tensors):
    for n, p in tensors.items():
        values = " ".join(f"{v:.17g}" for v in p.detach().flatten().tolist())
        print(f"at {step} {n} {values}")


def case(name, options, update, module, letters=PLAIN, precision="fp32"):
    """update(t, model): the averages after step t, by their names."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    print(f"case {name} {letters} {options} --optimizer sgd,lr=0.1,momentum=0.9"
          f" --precision {precision}")
    steps = 0
    for i, letter in enumerate(letters):
        if letter == ".":
            steps += 1
            for n, g in gradients(i).items():
                getattr(module, n).grad = g.clone()
            optimizer.step()
            average = update(steps, module)
        if i in (0, 4, 19):
            show(i, dict(average.named_parameters()))


def schedule_free(letters=PLAIN, precision="fp32"):
    """What evaluation reads: x, beside the y of make.py's case."""
    params = {n: torch.nn.Parameter(initial(n)) for n in SHAPES}
    optimizer = make.schedule_free([{"params": list(params.values())}],
                                   lr=0.05, weight_decay=0.1)
    print(f"case schedule_free_{precision} {letters} --optimizer "
          f"schedule_free_adamw,lr=0.05,weight_decay=0.1 --precision {precision}")
    for i, letter in enumerate(letters):
        if letter == ".":
            for n, g in gradients(i).items():
                params[n].grad = g.clone()
            optimizer.step()
        if i in (0, 4, 19):
            optimizer.eval()
            show(i, params)
            optimizer.train()


def torch_average(module, start=1, every=1, **how):
    averaged = AveragedModel(module, **how)

    def update(t, model):
        if t < start:
            return model
        if (t - start) % every == 0:
            averaged.update_parameters(model)
        return averaged.module
    return update


def timm_average(module, **how):
    v3 = timm_file("model_ema", "utils").ModelEmaV3(module, **how)

    def update(t, model):
        v3.update(model, step=t)
        return v3.module
    return update


def buffers():
    module = Norm()
    averaged = AveragedModel(module, use_buffers=True,
                             multi_avg_fn=get_ema_multi_avg_fn(0.8))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    print(f"case buffers {PLAIN} --ema 0.8,buffers=average --optimizer sgd,lr=0.1"
          " --precision fp32")
    for i in range(20):
        g = gradients(i)
        x = torch.cat([g["m"].flatten(), g["c"].flatten()])[:12].reshape(4, 3)
        optimizer.zero_grad()
        module(x).backward()
        optimizer.step()
        averaged.update_parameters(module)
        if i in (0, 4, 19):
            state = averaged.module.state_dict()
            show(i, {k: v for k, v in state.items() if v.is_floating_point()})


def main():
    print(f"# tests/optimizers/make_averages.py: torch {torch.__version__}, timm 1.0.31")
    for name, how in (("", {}), ("_fp16", {"letters": SKIPS, "precision": "fp16"})):
        m = Parameters()
        case("ema" + name, "--ema 0.9", torch_average(
            m, multi_avg_fn=get_ema_multi_avg_fn(0.9)), m, **how)
    m = Parameters()
    case("warmup", "--ema 0.8,warmup=1", timm_average(
        m, decay=0.8, use_warmup=True), m)
    m = Parameters()
    case("after", "--ema 0.6,warmup=2,power=0.75,after=3", timm_average(
        m, decay=0.6, use_warmup=True, warmup_gamma=2.0, warmup_power=0.75,
        update_after_step=3), m)
    schedule_free()
    schedule_free(SKIPS, "fp16")
    m = Parameters()
    case("swa", "--swa start=4,every=3", torch_average(m, start=4, every=3), m)
    buffers()


if __name__ == "__main__":
    main()
