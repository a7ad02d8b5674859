#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what PEFT's adapters compute in PyTorch, for lora_test.

    pip install torch==2.15.0 peft==0.21.2 transformers==5.24.0
    python3 tests/optimizers/make_lora.py > tests/optimizers/lora.txt

All is in doubles.  A model of three layers (the second keeps its weight as
[in, out], like GPT-2's Conv1D; in cases "conv_.." two are convolutions) trains
for 10 steps of AdamW on the mean squared error; each case has other options.
"merged" is the weight that merge_and_unload leaves.
"""
from importlib import metadata

import torch
from peft import IA3Config, LoraConfig, get_peft_model
from torch import nn
from transformers.pytorch_utils import Conv1D

STEPS = 10
NAMES = ["fc.weight", "fc.bias", "proj.weight", "proj.bias", "head.weight",
         "head.bias", "fc.lora_A.weight", "proj.lora_A.weight", "fc.ia3_l",
         "proj.ia3_l", "one.weight", "one.bias", "two.weight", "two.bias",
         "one.lora_A.weight", "two.lora_A.weight", "last.weight",
         "last.bias", "one.ia3_l", "two.ia3_l"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 8)
        self.proj = Conv1D(5, 8)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.proj(torch.tanh(self.fc(x)))))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(1, 5, 3, stride=2, padding=1)
        self.two = nn.Conv2d(5, 4, 1)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        x = torch.tanh(self.two(torch.tanh(self.one(x.reshape(1, 1, 6, 4)))))
        return self.last(x.reshape(4, 6))


def values(shape, k):
    n = shape.numel()
    return torch.tensor([((37 * i + 11 + 5 * k) % 64 - 32) / 64
                         for i in range(n)], dtype=torch.float64).reshape(shape)


def batch(step):
    state = 77 + step
    out = []
    for _ in range(4 * 6 + 4 * 3):
        for _ in range(3):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append((state >> 40) / 2**23 - 1)
    t = torch.tensor(out, dtype=torch.float32).double()
    return t[:24].reshape(4, 6), t[24:].reshape(4, 3)


def plain(name):
    return (name.replace("base_model.model.", "").replace(".base_layer", "")
            .replace("_vector.default.weight", "_vector")
            .replace(".default", "").replace(".modules_to_save", ""))


def show(key, name, tensor):
    print(key, name, " ".join(f"{v:.17g}" for v in tensor.flatten().tolist()))


def case(name, options, config=None, **lora):
    conv = name.startswith("conv")
    layers = ["one", "two"] if conv else ["fc", "proj"]
    net = Convolutions() if conv else Net()
    net = get_peft_model(net.double(), config or LoraConfig(
        target_modules=layers, **lora)).double()
    with torch.no_grad():
        for n, p in net.named_parameters():
            if plain(n) in NAMES:
                p.copy_(values(p.shape, NAMES.index(plain(n))))
        for m in net.modules():
            if getattr(m, "lora_magnitude_vector", None):
                w = m.base_layer.weight
                norm = (w.flatten(1).norm(dim=1).reshape(1, -1, 1, 1) if conv
                        else w.norm(dim=0 if m.fan_in_fan_out else 1))
                m.lora_magnitude_vector["default"].weight.copy_(norm)
    print(f"case {name} {options}")
    trained = {plain(n): p for n, p in net.named_parameters()
               if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=0.05)
    losses = []
    for i in range(STEPS):
        x, target = batch(i)
        loss = (net(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    show("losses", "-", torch.stack(losses))
    for n, p in trained.items():
        show("at", n, p.detach())
    merged = net.merge_and_unload()
    for n in (f"{layer}.weight" for layer in layers):
        show("merged", n, dict(merged.named_parameters())[n].detach())


def main():
    print("# tests/optimizers/make_lora.py:", ", ".join(
        f"{p} {metadata.version(p)}" for p in ("torch", "peft", "transformers")))
    both = "--lora fc,rank=2,alpha=4{0} --lora proj,rank=2,alpha=4{0}"
    case("biases", both.format(",bias=lora_only"), r=2, lora_alpha=4,
         bias="lora_only")
    case("all_biases", both.format(",bias=all"), r=2, lora_alpha=4, bias="all")
    case("head", both.format("") + " --train head", r=2, lora_alpha=4,
         modules_to_save=["head"])
    case("dora", both.format(",dora"), r=2, lora_alpha=4, use_dora=True)
    case("factors", "--ia3 fc --ia3 proj,feedforward", IA3Config(
        target_modules=["fc", "proj"], feedforward_modules=["proj"]))
    case("ranks", "--lora fc,rank=1 --lora proj,rank=3,alpha=2", r=1,
         lora_alpha=8, rank_pattern={"proj": 3}, alpha_pattern={"proj": 2})
    case("conv_both", "--lora one,rank=2,alpha=4 --lora two,rank=2,alpha=4", r=2,
         lora_alpha=4)
    case("conv_biases", "--lora one,rank=3,bias=lora_only --lora two,rank=1,alpha=2,bias=lora_only",
         r=3, lora_alpha=8, rank_pattern={"two": 1}, alpha_pattern={"two": 2},
         bias="lora_only")
    case("conv_dora", "--lora one,rank=2,alpha=4,dora --lora two,rank=2,alpha=4,dora",
         r=2, lora_alpha=4, use_dora=True)
    case("conv_factors", "--ia3 one --ia3 two,feedforward", IA3Config(
        target_modules=["one", "two"], feedforward_modules=["two"]))


main()
