#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Learning rates of the schedules of PyTorch and transformers (maintainers; needs
torch, and transformers for inverse_sqrt and models/schedules/wsd.amp).

usage: schedule_values.py TESTS     writes, in the tests' folder,
  schedules/values.csv    option|learning rate of each step, lr 0.1

transformers' warm-up begins at 0, ampc's at lr / warmup (after the first step both
rise alike): its rows begin behind the warm-up, "option|first step|..."."""
import sys
import warnings

import torch
from torch.optim import lr_scheduler as S
from transformers import (get_inverse_sqrt_schedule,
                          get_polynomial_decay_schedule_with_warmup,
                          get_wsd_schedule)

warnings.filterwarnings("ignore")
STEPS, LR = 24, 0.1


def rates(make):
    p = torch.nn.Parameter(torch.zeros(1))
    o = torch.optim.SGD([p], lr=LR)
    s, out = make(o), []
    for _ in range(STEPS):
        out.append(o.param_groups[0]["lr"])
        o.step()
        try:
            s.step()
        except ValueError:  # OneCycleLR ends
            break
    return out


ROWS = [
    ("exponential,gamma=0.9", 0, lambda o: S.ExponentialLR(o, .9)),
    ("step,every=5,gamma=0.3", 0, lambda o: S.StepLR(o, 5, .3)),
    ("polynomial,total=20,power=2", 0, lambda o: S.PolynomialLR(o, 20, 2)),
    ("polynomial,total=20,warmup=4,min=0.001,power=0.5", 4,
     lambda o: get_polynomial_decay_schedule_with_warmup(o, 4, 20, lr_end=.001, power=.5)),
    ("cosine,total=20,min=0.01", 0, lambda o: S.CosineAnnealingLR(o, 20, .01)),
    ("linear,total=20,min=0.01", 0, lambda o: S.LinearLR(o, 1, .1, 20)),
    ("cosine_restarts,every=6,min=0.02", 0,
     lambda o: S.CosineAnnealingWarmRestarts(o, 6, 1, .02)),
    ("cosine_restarts,every=3,multiply=2", 0,
     lambda o: S.CosineAnnealingWarmRestarts(o, 3, 2)),
    ("cosine_restarts,every=1,multiply=3", 0,
     lambda o: S.CosineAnnealingWarmRestarts(o, 1, 3)),
    ("inverse_sqrt,warmup=4", 4, lambda o: get_inverse_sqrt_schedule(o, 4)),
    ("one_cycle,total=20", 0, lambda o: S.OneCycleLR(o, LR, 20, cycle_momentum=False)),
    ("one_cycle,total=24,rise=0.5,div=4,final_div=100", 0,
     lambda o: S.OneCycleLR(o, LR, 24, pct_start=.5, div_factor=4,
                            final_div_factor=100, cycle_momentum=False)),
    ("models/schedules/wsd.amp,total=24,warmup=4,decay=0.25,min=0.01", 4,
     lambda o: get_wsd_schedule(o, 4, 6, num_training_steps=24, min_lr_ratio=.1)),
    ("constant,warmup=5", 0,
     lambda o: S.LambdaLR(o, lambda i: min((i + 1) / 5, 1))),
]


def main():
    with open(f"{sys.argv[1]}/schedules/values.csv", "w", encoding="utf-8") as out:
        for option, first, make in ROWS:
            values = rates(make)[first:]
            if option.startswith("cosine,"):  # PyTorch's rises again after T_max
                values = values[:21]
            if option.startswith("one_cycle,total=20"):  # and this one ends
                values = values[:20]
            out.write(f"{option}|{first}|{'|'.join(f'{v:.9g}' for v in values)}\n")
    print(f"{len(ROWS)} schedules, torch {torch.__version__}")


if __name__ == "__main__":
    main()
