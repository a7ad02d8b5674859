#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What PyTorch computes in which dtype (maintainers; needs torch 2.11, onnx).

usage: autocast.py TESTS          writes, in the tests' folder,
  passes/autocast.txt   what torch.autocast returns on a GPU for each op and
                        combination of f32 (of which there is no GPU needed:
                        only dtypes are computed) and f16 operands, a line each:
                        DTYPE OP OPERAND... {ATTRIBUTES}
  traces/levels.txt     losses of Apex's O2 and O3 as its frontend.py defines
                        them, emulated on the CPU over the data of a trace:
                        TRACE LEVEL LOSS..."""
import copy
import itertools
import sys

import numpy as np
import onnx
import torch
import torch.nn as nn
import torch.nn.functional as F
from onnx import numpy_helper
from safetensors.numpy import load_file
from torch._subclasses.fake_tensor import FakeTensorMode

import traces

# ---- autocast ---------------------------------------------------------------

X, N = (4, 8), ()  # a tensor, a number
UNARY = dict(
    neg=torch.neg, abs=torch.abs, sign=torch.sign, floor=torch.floor,
    ceil=torch.ceil, round=torch.round, exp=torch.exp, log=torch.log,
    sqrt=torch.sqrt, rsqrt=torch.rsqrt, reciprocal=torch.reciprocal,
    erf=torch.erf, tanh=torch.tanh, sigmoid=torch.sigmoid,
    log_sigmoid=F.logsigmoid, softplus=F.softplus, sin=torch.sin,
    cos=torch.cos, tan=torch.tan, asin=torch.asin, acos=torch.acos,
    atan=torch.atan, sinh=torch.sinh, cosh=torch.cosh, asinh=torch.asinh,
    acosh=torch.acosh, atanh=torch.atanh, relu=F.relu,
    leaky_relu=F.leaky_relu, gelu=F.gelu,
    gelu_tanh=lambda x: F.gelu(x, approximate="tanh"), elu=F.elu, selu=F.selu,
    celu=F.celu, hard_sigmoid=F.hardsigmoid, hard_swish=F.hardswish,
    mish=F.mish, swish=F.silu, softsign=F.softsign)
BINARY = dict(add=torch.add, sub=torch.sub, mul=torch.mul, div=torch.div,
              min=torch.minimum, max=torch.maximum, pow=torch.pow)
ROWS = [  # op, attributes, operands' shapes, the same of PyTorch
    ("clip", "min=-1., max=1.", [X], lambda x: x.clamp(-1, 1)),
    ("reshape", "shape=[8,4]", [X], lambda x: x.reshape(8, 4)),
    ("transpose", "perm=[1,0]", [X], lambda x: x.permute(1, 0)),
    ("expand", "shape=[2,4,8]", [X], lambda x: x.expand(2, 4, 8)),
    ("concat", "axis=0", [X, X], lambda x, y: torch.cat((x, y))),
    ("trilu", "upper=0", [X], torch.tril),
    ("reduce_sum", "axes=[1]", [X], lambda x: x.sum(1)),
    ("reduce_mean", "axes=[1]", [X], lambda x: x.mean(1)),
    ("reduce_max", "axes=[1]", [X], lambda x: x.amax(1)),
    ("reduce_min", "axes=[1]", [X], lambda x: x.amin(1)),
    ("reduce_prod", "axes=[1]", [X], lambda x: x.prod(1)),
    ("reduce_sumsq", "axes=[1]", [X], lambda x: x.pow(2).sum(1)),
    ("reduce_l1", "axes=[1]", [X], lambda x: x.norm(1, dim=1)),
    ("reduce_l2", "axes=[1]", [X], lambda x: x.norm(2, dim=1)),
    ("reduce_log_sum_exp", "axes=[1]", [X], lambda x: x.logsumexp(1)),
    ("cumsum", "axis=1", [X], lambda x: x.cumsum(1)),
    ("cumprod", "axis=1", [X], lambda x: x.cumprod(1)),
    ("softmax", "axis=1", [X], lambda x: F.softmax(x, 1)),
    ("log_softmax", "axis=1", [X], lambda x: F.log_softmax(x, 1)),
    ("layer_norm", "", [X, (8,), (8,)],
     lambda x, w, b: F.layer_norm(x, (8,), w, b)),
    ("rms_norm", "", [X, (8,)], lambda x, w: F.rms_norm(x, (8,), w)),
    ("group_norm", "groups=2", [(2, 4, 3, 3), (4,), (4,)],
     lambda x, w, b: F.group_norm(x, 2, w, b)),
    ("matmul", "trans_a=0, trans_b=0", [X, (8, 4)], torch.matmul),
    ("conv", "dilations=[1,1], group=1, pads=[1,1,1,1], strides=[1,1]",
     [(1, 2, 5, 5), (3, 2, 3, 3)], lambda x, w: F.conv2d(x, w, padding=1)),
    ("prelu", "", [X, (8,)], F.prelu),
    ("mse_loss", "", [X, X], F.mse_loss),
    ("l1_loss", "", [X, X], F.l1_loss),
    ("huber_loss", "", [X, X], F.huber_loss),
    ("bce_with_logits_loss", "", [X, X], F.binary_cross_entropy_with_logits),
] + [(op, "", [X], f) for op, f in UNARY.items()] + [
    (op, "", list(shapes), f) for op, f in BINARY.items()
    for shapes in ((X, X), (X, N), (N, X))]
TEXT = {torch.float16: "f16", torch.float32: "f32"}


def norm(x, dtype, training):
    """Batch normalisation keeps its parameters in f32."""
    f = lambda *s: torch.empty(*s, device="cuda")
    return F.batch_norm(f(*x).to(dtype), f(4), f(4), f(4), f(4), training)


def autocast_lines():
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.float16)
    for op, attrs, shapes, f in ROWS:
        for types in itertools.product(TEXT, repeat=len(shapes)):
            try:
                y = f(*(torch.empty(s, dtype=t, device="cuda")
                        for s, t in zip(shapes, types)))
            except RuntimeError:  # what torch does not take
                continue
            operands = " ".join(f"{TEXT[t]}[{','.join(map(str, s))}]"
                                for s, t in zip(shapes, types))
            yield f"{TEXT[y.dtype]} {op} {operands} {{{attrs}}}"
    for t in TEXT:
        y = norm((2, 4, 3, 3), t, True)
        yield (f"{TEXT[y.dtype]} batch_norm {TEXT[t]}[2,4,3,3] f32[4] f32[4] "
               "f32[4] f32[4] {training=1}")


# ---- Apex -------------------------------------------------------------------

class Level:
    """O2: the model but its batch normalisation is of 16 bits, the optimizer
    has f32 masters.  O3: all of it is, and there are none."""

    def __init__(self, net, level, low, make_opt):
        self.low, self.masters = low, level == "O2"
        self.net = copy.deepcopy(net).train()
        for m in self.net.modules():
            if not (self.masters and isinstance(m, nn.BatchNorm2d)):
                for p in m.parameters(recurse=False):
                    p.data = p.data.to(low)
                for k, b in m.named_buffers(recurse=False):
                    if b.is_floating_point():
                        m._buffers[k] = b.to(low)
        self.params = [p.detach().float().requires_grad_()
                       for p in self.net.parameters()]
        for copied, of in zip(self.params, net.parameters()):
            copied.data.copy_(of if self.masters else copied.data)
        self.opt = make_opt(self.params)

    def step(self, x, t):
        """O3's optimizer computes in f32 and keeps the parameter in 16 bits."""
        loss = F.cross_entropy(self.net(x.to(self.low)).float(), t)
        self.net.zero_grad()
        loss.backward()
        for p, q in zip(self.params, self.net.parameters()):
            p.grad = q.grad.float()
        self.opt.step()
        with torch.no_grad():
            for p, q in zip(self.params, self.net.parameters()):
                q.copy_(p)
                if not self.masters:
                    p.copy_(q)
        return loss.item()


def level_lines(folder):
    for name, make_net, levels in (
            ("mlp_torchscript_sgd", traces.MLP, ("O3:bf16", "O2")),
            ("cnn_torchscript_slow", traces.CNN, ("O2:bf16", "O3"))):
        net = make_net()
        for i in onnx.load(f"{folder}/{name}/model.onnx").graph.initializer:
            if i.name in net.state_dict():
                net.state_dict()[i.name].copy_(
                    torch.tensor(numpy_helper.to_array(i)))
        t = load_file(f"{folder}/{name}/trace.safetensors")
        make_opt = traces.OPTIMIZERS[name.split("_")[-1]][0]
        for level in levels:
            low = torch.bfloat16 if ":" in level else torch.float16
            run = Level(net, level[:2], low, make_opt)
            losses = [run.step(torch.tensor(x), torch.tensor(y))
                      for x, y in zip(t["x"], t["target"])]
            yield " ".join([name, level] + [f"{v:.8g}" for v in losses])


def main():
    tests = sys.argv[1]
    with FakeTensorMode(allow_non_fake_inputs=True):
        lines = list(autocast_lines())
    torch.set_autocast_enabled("cuda", False)
    for path, text in ((f"{tests}/passes/autocast.txt", lines),
                       (f"{tests}/traces/levels.txt",
                        level_lines(f"{tests}/traces"))):
        with open(path, "w") as f:
            f.writelines(s + "\n" for s in text)


if __name__ == "__main__":
    main()
