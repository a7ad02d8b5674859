#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adapters beside convolutions, compared with PEFT in PyTorch (maintainers).

usage: lora_conv.py AMPC [--steps N]

A small CNN is exported to ONNX and trained with adapters for some steps of AdamW
in fp32, by ampc and by PEFT, from the same weights: LoRA, DoRA, IA3.  A row says
how far the losses are apart, how far the logits of PEFT are that loads ampc's
adapters (ampc export --adapter), and those of ONNX Runtime on the merged model.
Status 1 if a loss is more than 1e-5 apart, or logits are more than 1e-5 of the
largest.

Needs torch, onnxscript, onnxruntime, peft, safetensors, numpy."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from torch import nn

LIMIT, BATCH = 1e-5, 8
LAYERS = ["one", "two", "three"]


def lora(more=""):
    return sum((["--lora", f"{n},rank=4,alpha=8{more}"] for n in LAYERS), [])


CASES = [
    ("lora", lora(), LoraConfig(r=4, lora_alpha=8, target_modules=LAYERS)),
    ("dora", lora(",dora"), LoraConfig(r=4, lora_alpha=8, target_modules=LAYERS,
                                       use_dora=True)),
    ("ia3", ["--ia3", "one", "--ia3", "two", "--ia3", "three,feedforward"],
     IA3Config(target_modules=LAYERS, feedforward_modules=["three"]))]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.two = nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.three = nn.Conv2d(32, 24, 1)
        self.head = nn.Linear(24, 10)

    def forward(self, x):
        x = torch.relu(self.two(torch.relu(self.one(x))))
        return self.head(torch.relu(self.three(x)).mean((2, 3)))


def apart(a, b):
    return float(np.abs(np.asarray(a) - b).max() / np.abs(b).max())


def case(o, folder, name, options, config):
    def at(name):
        return os.path.join(folder, name)

    def run(*words):
        subprocess.run([os.path.abspath(o.ampc), *words], cwd=folder, check=True,
                       stdout=subprocess.DEVNULL)

    torch.manual_seed(0)
    net = Net()
    x = torch.randn(o.steps * BATCH, 3, 16, 16)
    target = torch.randint(0, 10, (o.steps * BATCH,))
    np.save(at("x.npy"), x.numpy())
    np.save(at("target.npy"), target.numpy())
    torch.onnx.export(net, (x[:BATCH],), at("net.onnx"), input_names=["x"],
                      output_names=["logits"], external_data=False)
    run("net.onnx", "-o", "net.so", "--loss", "cross_entropy", "--precision", "fp32",
        "--optimizer", "adamw,lr=1e-2", "--target", "cpu", *options)
    fed = ["--device", "cpu", "--quiet", "--feed", "x=x.npy"]
    train = fed + ["--feed", "target=target.npy"]
    run("run", "net.so", *train, "--steps", "0", "--save", "first.safetensors")
    if os.path.exists(at("log")):
        os.remove(at("log"))
    run("run", "net.so", *train, "--load", "first.safetensors", "--steps", str(o.steps),
        "--log", "log", "--save", "trained.safetensors")
    first = load_file(at("first.safetensors"))
    model = get_peft_model(net, config)
    with torch.no_grad():
        for full, p in model.named_parameters():
            plain = full.replace("base_model.model.", "").replace(
                ".base_layer", "").replace("_vector.default.weight", "_vector")
            plain = plain.replace(".default", "")
            assert p.shape == first[plain].shape, plain
            p.copy_(first[plain])
    base = Net()
    base.load_state_dict({n: first[n] for n in base.state_dict()})
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer, theirs = torch.optim.AdamW(trained, lr=1e-2), []
    for i in range(o.steps):
        some = slice(i * BATCH, (i + 1) * BATCH)
        loss = F.cross_entropy(model(x[some]), target[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    with open(at("log")) as f:
        ours = [json.loads(line)["loss"] for line in f]
    far = max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))
    run("export", "net.so", "--load", "trained.safetensors", "--adapter", "-o", "adapter")
    run("export", "net.so", "--load", "trained.safetensors", "-o", "merged.onnx")
    run("run", "net.so", *fed, "--load", "trained.safetensors", "--fetch", "out")
    want = np.load(at("out/logits.npy"))
    with torch.no_grad():
        loaded = PeftModel.from_pretrained(base, at("adapter")).eval()(x)
    session = onnxruntime.InferenceSession(at("merged.onnx"),
                                           providers=["CPUExecutionProvider"])
    merged = np.concatenate([session.run(None, {"x": x[i:i + BATCH].numpy()})[0]
                             for i in range(0, len(x), BATCH)])
    near = apart(loaded, want), apart(merged, want)
    print(f"{name:5} loss {theirs[0]:.5f} to {theirs[-1]:.5f}, ampc's at most {far:.1e} apart, "
          f"PEFT {near[0]:.1e}, ONNX Runtime {near[1]:.1e}")
    return max(far, *near) < LIMIT


def work(o, folder):
    right = [case(o, folder, *c) for c in CASES]
    return 0 if all(right) else 1


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("ampc")
    p.add_argument("--steps", type=int, default=10)
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return work(o, folder)


if __name__ == "__main__":
    sys.exit(main())
