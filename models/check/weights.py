# SPDX-License-Identifier: Apache-2.0
"""Weights in and out, beside PyTorch and ONNX Runtime.

    python weights.py path/to/ampc

needs torch, onnxscript, onnx, onnxruntime and safetensors.  For each model and
exporter: a state_dict, whole or as 16-bit shards with an index, is loaded by
name; training goes on from it; what --save-weights writes passes
load_state_dict(strict=True); what `ampc export` writes passes the ONNX checker,
and ONNX Runtime gives the outputs of our evaluation, and PyTorch's from the
same weights.  Prints one row each; status 1 if one is out of bounds.
"""
import json
import os
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import onnx
import onnxruntime
import torch
from safetensors.torch import load_file, save_file
from torch import nn

BATCH = 4
LIMIT = 2e-5  # of the largest output; sums in other orders, fp32


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8 * 14 * 14, 10)
        self.register_buffer("shift", torch.linspace(-1, 1, 8).view(8, 1, 1))

    def forward(self, x):
        h = torch.relu(self.bn(self.conv(x)) + self.shift)
        h = nn.functional.dropout(h, 0.25, self.training)
        return self.fc(nn.functional.max_pool2d(h, 2).flatten(1))

    def data(self):
        return torch.randn(BATCH, 1, 28, 28)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(50, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", 1e-5,
                                                True, True)
        self.head = nn.Linear(32, 50, bias=False)

    def forward(self, x):
        return self.head(self.block(self.wte(x)).mean(1))

    def data(self):
        return torch.randint(0, 50, (BATCH, 12))


def export(model, path, dynamo):
    x = model.data()
    names = {"input_names": ["x"], "output_names": ["y"]}
    if dynamo:
        torch.onnx.export(model.eval(), (x,), path, dynamo=True,
                          optimize=False, external_data=False, **names)
    else:
        torch.onnx.export(model.train(), (x,), path, dynamo=False,
                          training=torch.onnx.TrainingMode.TRAINING,
                          do_constant_folding=False, **names)


def shards(state, index):
    """16-bit, in two files, as large models are published."""
    names = [k for k in state if not k.endswith("num_batches_tracked")]
    where = {}
    for i, part in enumerate((names[::2], names[1::2])):
        file = f"part{i}.safetensors"
        half = torch.float16 if i else torch.bfloat16
        save_file({k: state[k].to(half) for k in part},
                  os.path.join(os.path.dirname(index), file))
        where.update({k: file for k in part})
    with open(index, "w") as f:
        json.dump({"metadata": {}, "weight_map": where}, f)


def distance(a, b):
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30))


def check(ampc, model, dynamo, split, folder):
    def run(*words):
        done = subprocess.run([ampc, *words], cwd=folder, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            sys.exit(f"ampc {' '.join(words)}:\n{done.stdout}")
        return done.stdout

    def at(name):
        return os.path.join(folder, name)

    torch.manual_seed(0)
    export(model, at("m.onnx"), dynamo)
    for p in model.parameters():  # what is loaded is not what was exported
        p.data += 0.05 * torch.randn_like(p)
    start = "m.safetensors"
    if split:
        start = "m.safetensors.index.json"
        shards(model.state_dict(), at(start))
    else:
        save_file(model.state_dict(), at(start))
    x = model.data()
    np.save(at("x.npy"), x.numpy())
    np.save(at("t.npy"), np.arange(BATCH))
    run("m.onnx", "-o", "m.so", "--loss", "cross_entropy", "--precision",
        "fp32", "--target", "cpu", "--freeze",
        "shift" if hasattr(model, "shift") else "wte.weight")
    said = run("run", "m.so", "--feed", "x=x.npy", "--feed", "target=t.npy",
               "--load", start, "--steps", "5", "--quiet", "--log", "log",
               "--save", "ck", "--save-weights", "trained")
    assert said == "", said
    run("run", "m.so", "--feed", "x=x.npy", "--load", "trained", "--fetch",
        "out")
    ours = np.load(at("out/y.npy"))
    model.load_state_dict(load_file(at("trained")), strict=True)
    with torch.no_grad():
        torchs = model.eval()(x).numpy()
    rows = []
    for load in ("ck", "trained"):
        run("export", "m.so", "--load", load, "-o", "trained.onnx")
        onnx.checker.check_model(at("trained.onnx"), full_check=True)
        ort = onnxruntime.InferenceSession(at("trained.onnx"))
        rows.append(distance(ort.run(None, {"x": x.numpy()})[0], ours))
    return max(rows), distance(torchs, ours)


def main():
    warnings.filterwarnings("ignore")
    ampc, bad = os.path.abspath(sys.argv[1]), False
    print("| model | exporter | weights | ONNX Runtime | PyTorch |")
    print("|---|---|---|---|---|")
    for make in (Conv, Tokens):
        for dynamo in (True, False):
            for split in (False, True):
                with tempfile.TemporaryDirectory() as folder:
                    d = check(ampc, make(), dynamo, split, folder)
                bad |= not max(d) < LIMIT
                print(f"| {make.__name__} | "
                      f"{'dynamo' if dynamo else 'TorchScript'} | "
                      f"{'16-bit shards' if split else 'state_dict'} | "
                      f"{d[0]:.1e} | {d[1]:.1e} |", flush=True)
    sys.exit(bad)


if __name__ == "__main__":
    main()
