#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# torch's while_loop in eager mode has a wrong gradient for parameters that its body captures:
# it is that of the last iteration alone, as if the carried value were detached before it.  scan of
# 2.11 loses the carried part, too; 2.15 has it.  Results are right, and nothing warns.
# shellcheck source=torch.sh
. "$(dirname "$0")/torch.sh"
for version in 2.11.0 2.15.0; do
    with_torch "$version" <<'PY'
import logging
import warnings

import torch
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
torch.manual_seed(0)
layer, x, steps = torch.nn.Linear(4, 4), torch.randn(6, 4), torch.randn(5, 3, 4)
same = lambda h: h
cut = lambda h: h.detach()


def looped():
    return while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, torch.tanh(layer(h))),
                      (torch.tensor(0), x))[1]


def unrolled(keep):
    h = torch.tanh(layer(torch.tanh(layer(x))))
    return torch.tanh(layer(keep(h)))


def scanned():
    def body(carry, step):
        h = torch.tanh(layer(step) + carry * .5)
        return h, h.clone()
    return scan(body, torch.zeros(3, 4), steps, dim=0)[1]


def stepped(keep):
    h, all_of_them = torch.zeros(3, 4), []
    for step in steps:
        h = torch.tanh(layer(step) + keep(h) * .5)
        all_of_them.append(h)
    return torch.stack(all_of_them)


def gradient(f, *args):
    layer.zero_grad()
    y = f(*args)
    y.square().mean().backward()
    return y.detach(), layer.weight.grad.clone()


print("torch", torch.__version__)
seen = []
for op, plain in ((looped, unrolled), (scanned, stepped)):
    (y, got), (want_y, want), (_, detached) = gradient(op), gradient(plain, same), gradient(plain, cut)
    assert torch.allclose(y, want_y, atol=1e-6)
    seen.append(torch.allclose(got, want, atol=1e-6))
    print(f"  {op.__name__}: gradient right {seen[-1]}, largest difference {(got - want).abs().max():.3g}, "
          f"that of a detached state {torch.allclose(got, detached, atol=1e-6)}")
assert seen == [False, torch.__version__.startswith("2.15")], "the behaviour has changed"
PY
done
echo "as recorded"
