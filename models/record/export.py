#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/onnx: small PyTorch models exported by both exporters, with what
PyTorch computes for them.  Maintainers run it once; tests read the files.

    python models/record/export.py [tests/onnx]

NAME.dyn.onnx   torch.onnx.export(dynamo=True, optimize=False)
gpt.dyn23.onnx  the same at opset 23, where attention is one node
NAME.ts.onnx    TorchScript exporter, TRAINING, no constant folding
NAME.opt.onnx   the default (optimised) export, which must be refused
NAME.fp32       text: one tensor after another,
                "KIND NAME DTYPE RANK DIMS... VALUES..."; KIND is input or
                output, then the updated running statistics as buffer
Needs torch 2.11, onnx, onnxscript.
"""
import os
import sys
import warnings

import onnx
from onnx import numpy_helper
import torch
import torch.nn as nn
import torch.nn.functional as F

warnings.filterwarnings("ignore")


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(12, 16), nn.Linear(16, 5)

    def forward(self, x, y):
        logits = self.fc2(F.gelu(self.fc1(x)))
        return F.cross_entropy(logits, y), logits


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.c2 = nn.Conv2d(4, 6, 3, stride=2)
        self.bn2 = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, 5)

    def forward(self, x, y):
        h = F.max_pool2d(F.relu(self.bn1(self.c1(x))), 2)
        h = F.leaky_relu(self.bn2(self.c2(h)))
        logits = self.fc(h.mean((2, 3)))
        return F.cross_entropy(logits, y), logits


class Block(nn.Module):
    def __init__(self, c, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(c, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.skip = nn.Conv2d(c, out, 1, stride, bias=False)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, 1, 1)
        self.layer1, self.layer2 = Block(4, 4, 1), Block(4, 8, 2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, 5)

    def forward(self, x, y):
        h = F.avg_pool2d(self.stem(x), 3, 2, 1)
        h = self.pool(self.layer2(self.layer1(h))).flatten(1)
        logits = self.fc(h)
        return F.nll_loss(F.log_softmax(logits, 1), y), logits


class GptBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(d, dim=2)
        q, k, v = (z.view(b, t, self.heads, d // self.heads).transpose(1, 2)
                   for z in (q, k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Tied embedding and head, positions, causal attention."""

    def __init__(self, vocab=11, t=6, d=8, layers=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(t, d)
        self.h = nn.ModuleList(GptBlock(d, 2) for _ in range(layers))
        self.ln_f = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, x, y):
        pos = torch.arange(x.shape[1], device=x.device)
        h = self.wte(x) + self.wpe(pos)
        for block in self.h:
            h = block(h)
        logits = self.head(self.ln_f(h))
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]),
                               y.reshape(-1))
        return loss, logits


def images(c):
    return torch.randn(4, c, 9, 9), torch.randint(0, 5, (4,))


CASES = {
    "mlp": (MLP, lambda: (torch.randn(4, 12), torch.randint(0, 5, (4,)))),
    "cnn": (CNN, lambda: images(1)),
    "resnet": (ResNet, lambda: images(3)),
    "gpt": (GPT, lambda: (torch.randint(0, 11, (4, 6)),
                          torch.randint(0, 11, (4, 6)))),
}


def write(f, kind, name, t):
    kind_of = {torch.float32: "f32", torch.int64: "i64"}[t.dtype]
    dims = " ".join(map(str, t.shape))
    values = " ".join(repr(v) if kind_of == "i64" else "%.9g" % v
                      for v in t.detach().reshape(-1).tolist())
    f.write(f"{kind} {name} {kind_of} {t.dim()} {dims} {values}\n")


def tidy(path, state):
    """Traces name the maintainer's folders: keep the source line only.
    Exporting runs the model, which moves the statistics: undo that."""
    m = onnx.load(path)
    for t in m.graph.initializer:
        if "running" in t.name and t.name in state:
            t.CopyFrom(numpy_helper.from_array(state[t.name].numpy(), t.name))
    for node in m.graph.node:
        for p in list(node.metadata_props):
            if p.key != "pkg.torch.onnx.stack_trace":
                node.metadata_props.remove(p)
                continue
            p.value = p.value.strip().splitlines()[-1]
    onnx.save(m, path)


def export(name, out):
    torch.manual_seed(1)
    make, data = CASES[name]
    model = make().train()
    args = data()
    # Statistics that differ from each other, so that nothing is merged.
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.uniform_(m.running_mean, -0.1, 0.1)
            nn.init.uniform_(m.running_var, 0.8, 1.2)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    dims = {"x": {0: "batch"}, "y": {0: "batch"}}
    base = os.path.join(out, name)
    torch.onnx.export(model, args, dynamo=True, optimize=False,
                      dynamic_shapes=dims,
                      verbose=False).save(base + ".dyn.onnx")
    model.load_state_dict(state)
    torch.onnx.export(model, args, base + ".ts.onnx", dynamo=False,
                      training=torch.onnx.TrainingMode.TRAINING,
                      do_constant_folding=False, input_names=["x", "y"],
                      output_names=["loss", "logits"], dynamic_axes=dims,
                      opset_version=17)
    model.load_state_dict(state)
    torch.onnx.export(model, args, dynamo=True, dynamic_shapes=dims,
                      verbose=False).save(base + ".opt.onnx")
    kinds = ["dyn", "ts", "opt"]
    if name == "gpt":
        torch.onnx.export(model, args, dynamo=True, optimize=False,
                          dynamic_shapes=dims, opset_version=23,
                          verbose=False).save(base + ".dyn23.onnx")
        kinds.append("dyn23")
    for kind in kinds:
        tidy(f"{base}.{kind}.onnx", state)
    model.load_state_dict(state)
    loss, logits = model(*args)
    with open(base + ".fp32", "w") as f:
        write(f, "input", "x", args[0])
        write(f, "input", "y", args[1])
        write(f, "output", "loss", loss)
        write(f, "output", "logits", logits)
        for k, v in model.named_buffers():
            if v.dtype == torch.float32:
                write(f, "buffer", k, v)


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else "tests/onnx"
    os.makedirs(out, exist_ok=True)
    for name in CASES:
        export(name, out)


if __name__ == "__main__":
    main()
